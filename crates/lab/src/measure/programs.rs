//! Programs: where those of an installation are, and running one to its end.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};

use crate::interrupt;
use pgstrata_testbed::cluster::Major;
use pgstrata_testbed::programs;

/// The programs of one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// Directory of `postgres`, `initdb`, `pg_ctl`.
    pub bindir: PathBuf,
    /// Their major version.
    pub major: Major,
}

impl Programs {
    /// The programs in this directory, or the newest found.
    ///
    /// # Errors
    /// Fails when there are none, or of a version that is not supported.
    pub fn find(bindir: Option<&Path>) -> Result<Self> {
        if let Some(bindir) = bindir {
            return Self::at(bindir);
        }
        for major in Major::ALL.into_iter().rev() {
            let debian = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"));
            if debian.join("initdb").is_file() {
                return Self::at(&debian);
            }
        }
        for major in Major::ALL.into_iter().rev() {
            if let Ok(bindir) = major.bindir() {
                return Ok(Self { bindir, major });
            }
        }
        bail!(
            "could not find PostgreSQL 15 to 18: install it, or name its programs with bindir=DIRECTORY"
        )
    }

    fn at(bindir: &Path) -> Result<Self> {
        let bindir = bindir
            .canonicalize()
            .with_context(|| format!("could not find programs in \"{}\"", bindir.display()))?;
        let said = output(Command::new(bindir.join("postgres")).arg("--version"))?;
        let number = said
            .split_ascii_whitespace()
            .find_map(|word| word.split(['.', 'd', 'b', 'r']).next()?.parse::<u32>().ok());
        let major = Major::ALL
            .into_iter()
            .find(|major| Some(major.number()) == number)
            .with_context(|| {
                format!(
                    "could not use \"{}\": it is {}, and 15 to 18 are supported",
                    bindir.display(),
                    said.trim()
                )
            })?;
        Ok(Self { bindir, major })
    }
}

/// The pgbench all arms are driven by: the newest found, since a newer pgbench
/// drives older servers.
///
/// # Errors
/// Fails when there is none.
pub fn find_pgbench(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    for major in Major::ALL.into_iter().rev() {
        let debian = PathBuf::from(format!("/usr/lib/postgresql/{major}/bin/pgbench"));
        if debian.is_file() {
            return Ok(debian);
        }
    }
    let installed = Major::ALL
        .into_iter()
        .rev()
        .filter_map(|major| Some(major.bindir().ok()?.join("pgbench")));
    programs::on_path("pgbench")
        .or_else(|| installed.into_iter().find(|candidate| candidate.is_file()))
        .context("could not find pgbench: install PostgreSQL's client programs, or give --pgbench")
}

/// The backup program: as given, beside this one, or on `PATH`.
///
/// # Errors
/// Fails when there is none.
pub fn find_pgstrata(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return path
            .canonicalize()
            .with_context(|| format!("could not find \"{}\"", path.display()));
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|lab| Some(lab.parent()?.join("pgstrata")));
    beside
        .filter(|candidate| candidate.is_file())
        .or_else(|| programs::on_path("pgstrata"))
        .context("could not find the program pgstrata: build it beside pgstrata-lab, put it on PATH, or name it with --pgstrata")
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// Fails when it cannot be started or fails, with its own words.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start \"{name}\""))?;
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let status = interrupt::wait(&mut child)?;
    let join =
        |reader: Option<JoinHandle<String>>| reader.and_then(|r| r.join().ok()).unwrap_or_default();
    let (text, errors) = (join(stdout), join(stderr));
    if !status.success() {
        bail!("\"{name}\" ended with {status}: {}", errors.trim());
    }
    Ok(text)
}

/// Like [`output`], for what is timed: its end is seen at once, and an interruption only then.
///
/// # Errors
/// See [`output`].
pub fn output_of_timed(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start \"{name}\""))?;
    interrupt::check()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("\"{name}\" ended with {}: {}", output.status, errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads a pipe to its end beside the program that fills it.
fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        // A broken pipe ends the text; the exit status says the rest.
        let _ = pipe.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}
