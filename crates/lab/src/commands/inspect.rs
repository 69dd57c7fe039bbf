//! `doctor`, `env` and `workloads`: looking without measuring.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use crate::experiments::shared::Usage;
use crate::measure::environment::{self, Environment, Level, warning};
use crate::measure::session;
use crate::measure::workload;
use crate::report::output::print;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// a server to look at as well
    #[arg(long)]
    dsn: Option<String>,
    /// where clusters would lie
    #[arg(long, default_value = "/tmp")]
    scratch: PathBuf,
}

/// What can be done with environments.
#[derive(Debug, Subcommand)]
pub enum EnvCommand {
    /// Print an environment as JSON
    Capture(DoctorArguments),
    /// Print what differs between two captures or results
    Diff {
        /// a capture or a result
        first: PathBuf,
        /// another
        second: PathBuf,
    },
}

/// What can be done with workloads.
#[derive(Debug, Subcommand)]
pub enum WorkloadsCommand {
    /// List them
    List,
    /// Print one's script
    Show {
        /// its name
        name: String,
    },
}

fn capture(arguments: &DoctorArguments) -> Result<Environment> {
    let mut env = environment::host::capture(Path::new("/"), Some(&arguments.scratch));
    if let Some(dsn) = &arguments.dsn {
        env.merge(environment::server::capture(&mut session::connect(dsn)?));
    }
    Ok(env)
}

/// `doctor`: 0, or 4 when something makes comparisons invalid.
///
/// # Errors
/// Fails when the server cannot be reached.
pub fn doctor(arguments: &DoctorArguments) -> Result<u8> {
    let env = capture(arguments)?;
    let mut found = warning::of(&env);
    found.sort_by_key(|w| std::cmp::Reverse(w.level));
    let mut text = String::new();
    for name in [
        "machine.system",
        "kernel.release",
        "cpu.model",
        "cpu.count",
        "memory.total_kb",
        "server.version",
    ] {
        if let Some(value) = env.get(name) {
            text.push_str(&format!("{name:<18} {value}\n"));
        }
    }
    text.push('\n');
    for w in &found {
        let sign = match w.level {
            Level::Block => "✗",
            Level::Warn => "!",
            Level::Info => "i",
        };
        text.push_str(&format!(
            "{sign} {}  {}: {}\n    {}\n",
            w.id, w.found, w.why, w.fix
        ));
    }
    if found.is_empty() {
        text.push_str("nothing to beware of was found\n");
    }
    print(&text)?;
    Ok(if found.iter().any(|w| w.level == Level::Block) {
        4
    } else {
        0
    })
}

/// `env capture` and `env diff`.
///
/// # Errors
/// Fails when a file cannot be read or a server not reached.
pub fn env(command: &EnvCommand) -> Result<u8> {
    match command {
        EnvCommand::Capture(arguments) => {
            let env = capture(arguments)?;
            print(
                &serde_json::to_string_pretty(&env).context("could not encode the environment")?,
            )?;
        }
        EnvCommand::Diff { first, second } => {
            let differences = environment::diff(&load(first)?, &load(second)?);
            let mut text = String::new();
            for d in &differences {
                text.push_str(&format!("{}\n  - {}\n  + {}\n", d.name, d.first, d.second));
            }
            if differences.is_empty() {
                text.push_str("no difference\n");
            }
            print(&text)?;
        }
    }
    Ok(0)
}

/// A capture, or the base's environment in a result.
fn load(path: &Path) -> Result<Environment> {
    let file = if path.is_dir() {
        path.join("result.json")
    } else {
        path.to_owned()
    };
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("could not read \"{}\"", file.display()))?;
    let value: serde_json::Value = serde_json::from_str(&text)
        .with_context(|| format!("could not parse \"{}\"", file.display()))?;
    let part = if value.get("schema").is_some() {
        value["arms"][0]["environment"].clone()
    } else {
        value
    };
    serde_json::from_value(part)
        .with_context(|| format!("could not find an environment in \"{}\"", file.display()))
}

/// `workloads`.
///
/// # Errors
/// Fails for an unknown name.
pub fn workloads(command: &WorkloadsCommand) -> Result<u8> {
    match command {
        WorkloadsCommand::List => {
            let lines: String = workload::WORKLOADS
                .iter()
                .map(|w| format!("{:<18} {}\n", w.name, w.about))
                .collect();
            print(&lines)?;
        }
        WorkloadsCommand::Show { name } => {
            let found = workload::find(name).ok_or_else(|| {
                Usage(format!(
                    "could not find workload \"{name}\": see `workloads list`"
                ))
            })?;
            let script = found.script.map_or_else(
                || format!("-- pgbench's own: pgbench --show-script={name}\n"),
                str::to_owned,
            );
            print(&format!(
                "{script}{}",
                found
                    .setup
                    .map(|s| format!("\n-- once, after loading:\n{s};\n"))
                    .unwrap_or_default()
            ))?;
        }
    }
    Ok(0)
}
