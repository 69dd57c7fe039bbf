//! The log of a run: a line for people and a line of JSON for each step, and what repeats the run.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use super::program::Outcome;
use crate::report::output::print;

/// A fault of the program that is tried. Every other error is one of the run itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Finding(pub(super) String);

/// Fails with a finding.
pub(super) fn found<T>(what: impl Into<String>) -> Result<T> {
    Err(Finding(what.into()).into())
}

/// One run of the program, as the log keeps it.
#[derive(Debug, Serialize)]
struct Ran {
    words: Vec<String>,
    end: String,
    disturbed: Option<String>,
    seconds: f64,
}

/// What a step did.
#[derive(Debug, Default, Serialize)]
pub(super) struct Step {
    step: u64,
    act: String,
    /// What happened, in words.
    said: Vec<String>,
    /// The runs of the program.
    ran: Vec<Ran>,
    seconds: f64,
    finding: Option<String>,
}

impl Step {
    pub(super) fn new(step: u64, act: impl Into<String>) -> Self {
        Self {
            step,
            act: act.into(),
            ..Self::default()
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.step
    }

    /// Adds what happened.
    pub(super) fn say(&mut self, what: impl Into<String>) {
        self.said.push(what.into());
    }

    /// Adds a run of the program.
    pub(super) fn ran(&mut self, outcome: &Outcome) {
        self.ran.push(Ran {
            words: outcome.words.clone(),
            end: outcome.end(),
            disturbed: outcome.disturbed.map(|what| format!("{what:?}")),
            seconds: outcome.seconds,
        });
    }

    /// Whether a run of the program did not end well.
    pub(super) fn met_trouble(&self) -> bool {
        self.ran.iter().any(|ran| ran.end != "0")
    }

    fn line(&self) -> String {
        let codes: Vec<&str> = self.ran.iter().map(|ran| ran.end.as_str()).collect();
        let codes = if codes.is_empty() {
            "-".to_owned()
        } else {
            codes.join(",")
        };
        format!(
            "{:>4}  {:<10} {codes:<9} {:>6.2} s  {}",
            self.step,
            self.act,
            self.seconds,
            self.said.join("; ")
        )
    }
}

/// Where steps are written.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    pub(super) fn create(directory: &Path) -> Result<Self> {
        let path = directory.join("steps.jsonl");
        let file = OpenOptions::new().create_new(true).append(true).open(&path);
        let file = file.with_context(|| format!("could not create \"{}\"", path.display()))?;
        Ok(Self { file, path })
    }

    /// Writes and prints a step that has ended.
    pub(super) fn write(
        &mut self,
        mut step: Step,
        seconds: f64,
        finding: Option<&Finding>,
    ) -> Result<()> {
        step.seconds = seconds;
        step.finding = finding.map(ToString::to_string);
        let json = serde_json::to_string(&step).context("could not write a step as JSON")?;
        writeln!(self.file, "{json}")
            .with_context(|| format!("could not write \"{}\"", self.path.display()))?;
        print(&step.line())
    }
}

/// Keeps a server's log beside the steps, when the server's own directory goes.
pub(super) fn keep_server_log(from: &Path, directory: &Path, name: &str) -> Result<()> {
    let to = directory.join(name);
    fs::copy(from, &to)
        .with_context(|| format!("could not write \"{}\"", to.display()))
        .map(drop)
}
