//! What to ask of pgbench.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::rate::Rate;

/// How statements reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// As text, parsed every time.
    Simple,
    /// Parse, bind and execute, not reused.
    Extended,
    /// Parsed once, reused.
    Prepared,
}

impl Protocol {
    /// As pgbench spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Extended => "extended",
            Self::Prepared => "prepared",
        }
    }
}

/// The options of pgbench that the lab knows; others go after `--`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// built-in (tpcb-like, simple-update, select-only), a workload of `workloads list`, or a
    /// script file; NAME@WEIGHT mixes several
    #[arg(
        long,
        short = 'w',
        default_value = "select-only",
        value_name = "NAME[@WEIGHT]"
    )]
    pub workload: Vec<String>,
    /// clients
    #[arg(long, short = 'c', default_value_t = 2)]
    pub client: u32,
    /// pgbench threads; by default as many as clients, to half the cores
    #[arg(long, short = 'j')]
    pub jobs: Option<u32>,
    /// measured seconds per run
    #[arg(long, short = 'T', default_value_t = 10)]
    pub time: u32,
    /// transactions per client instead of seconds
    #[arg(long, short = 't')]
    pub transactions: Option<u32>,
    /// how statements reach the server
    #[arg(long, short = 'M', value_enum, default_value = "prepared")]
    pub protocol: Protocol,
    /// pgbench scale: 15 MB each; always passed on, since pgbench does not detect it with scripts. Of a server reached by
    /// dsn it is that of the tables there
    #[arg(long, short = 's', default_value_t = 10)]
    pub scale: u32,
    /// transactions per second of an open loop: latency then counts from the scheduled start; or a share such as 60% of
    /// what the slowest arm does in a closed loop, measured first
    #[arg(long, short = 'R')]
    pub rate: Option<Rate>,
    /// milliseconds after which a transaction counts as late; with --rate it is then not started, and a rate
    /// of which more than 1 % is not started is not sustained
    #[arg(long, short = 'L')]
    pub latency_limit: Option<f64>,
    /// tries of a transaction that fails to serialize or deadlocks
    #[arg(long)]
    pub max_tries: Option<u32>,
    /// report each command's latency
    #[arg(long, short = 'r')]
    pub report_per_command: bool,
    /// share of transactions to log, where logging all would cost
    #[arg(long)]
    pub sampling_rate: Option<f64>,
    /// unmeasured seconds before each run
    #[arg(long, default_value_t = 2)]
    pub warmup: u32,
    /// further arguments for pgbench
    #[arg(last = true)]
    pub extra: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workload: vec!["select-only".to_owned()],
            client: 2,
            jobs: None,
            time: 10,
            transactions: None,
            protocol: Protocol::Prepared,
            scale: 10,
            rate: None,
            latency_limit: None,
            max_tries: None,
            report_per_command: false,
            sampling_rate: None,
            warmup: 2,
            extra: Vec::new(),
        }
    }
}

/// A script of the load and its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    /// One of pgbench's own.
    Builtin(String),
    /// A file.
    File(PathBuf),
}

/// What one arm's load may have otherwise than the others'.
pub const VARIED: [&str; 3] = ["client", "protocol", "rate"];

/// pgbench's own scripts.
pub const BUILTINS: [&str; 3] = ["tpcb-like", "simple-update", "select-only"];

impl Options {
    /// These options with what one arm has otherwise, by the names of [`VARIED`].
    ///
    /// # Errors
    /// Fails for another name, or a value that is none.
    pub fn with(&self, load: &BTreeMap<String, String>) -> Result<Self> {
        let mut options = self.clone();
        for (name, value) in load {
            let wrong = || format!("\"{value}\" is no {name} of a load");
            match name.as_str() {
                "client" => {
                    let count = value.parse().ok().filter(|count| *count > 0);
                    options.client = count.with_context(wrong)?;
                }
                "rate" => options.rate = Some(value.parse().with_context(wrong)?),
                "protocol" => {
                    options.protocol = Protocol::from_str(value, true).ok().with_context(wrong)?;
                }
                _ => bail!("\"load.{name}\" is not load.client, load.protocol or load.rate"),
            }
        }
        Ok(options)
    }

    /// The same load as a closed loop.
    #[must_use]
    pub fn closed(&self) -> Self {
        Self {
            rate: None,
            ..self.clone()
        }
    }

    /// Threads to use.
    #[must_use]
    pub fn threads(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let half = u32::try_from(cores.div_ceil(2)).unwrap_or(u32::MAX);
        self.jobs.unwrap_or_else(|| self.client.min(half).max(1))
    }

    /// Whether the load is known to leave data alone.
    #[must_use]
    pub fn reads_only(&self) -> bool {
        self.workload
            .iter()
            .all(|w| w.split('@').next() == Some("select-only"))
    }

    /// The arguments, but for connection, log and random seed. `scripts` pairs
    /// each script with its weight.
    #[must_use]
    pub fn arguments(&self, scripts: &[(Script, u32)], seconds: Option<u32>) -> Vec<String> {
        let mut arguments = vec![
            "--no-vacuum".to_owned(),
            format!("--client={}", self.client),
            format!("--jobs={}", self.threads()),
            format!("--protocol={}", self.protocol.name()),
        ];
        // pgbench detects the scale for its own scripts, and warns when told as well.
        if scripts.iter().any(|(s, _)| matches!(s, Script::File(_))) {
            arguments.push(format!("--scale={}", self.scale));
        }
        for (script, weight) in scripts {
            arguments.push(match script {
                Script::Builtin(name) => format!("--builtin={name}@{weight}"),
                Script::File(path) => format!("--file={}@{weight}", path.display()),
            });
        }
        match (seconds, self.transactions) {
            (Some(seconds), _) => arguments.push(format!("--time={seconds}")),
            (None, Some(count)) => arguments.push(format!("--transactions={count}")),
            (None, None) => arguments.push(format!("--time={}", self.time)),
        }
        let optional = [
            self.rate.map(|v| format!("--rate={v}")),
            self.latency_limit.map(|v| format!("--latency-limit={v}")),
            self.max_tries.map(|v| format!("--max-tries={v}")),
            self.report_per_command
                .then(|| "--report-per-command".to_owned()),
        ];
        arguments.extend(optional.into_iter().flatten());
        arguments.extend(self.extra.iter().cloned());
        arguments
    }

    /// The same with the seed of pgbench's keys.
    #[must_use]
    pub fn seeded(
        &self,
        scripts: &[(Script, u32)],
        seconds: Option<u32>,
        seed: u64,
    ) -> Vec<String> {
        let mut arguments = self.arguments(scripts, seconds);
        arguments.push(format!("--random-seed={seed}"));
        arguments
    }

    /// The load in one line for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut words = format!(
            "pgbench {}, {}, {} clients, {} threads, scale {}",
            self.workload.join(" + "),
            self.protocol.name(),
            self.client,
            self.threads(),
            self.scale
        );
        match self.rate {
            Some(Rate::PerSecond(rate)) => {
                words.push_str(&format!(", open loop at {rate}/s"));
            }
            Some(share) => words.push_str(&format!(", open loop at {share} of the capacity")),
            None => words.push_str(", closed loop"),
        }
        words
    }
}
