//! Running the lab as its users run it.
#![allow(
    dead_code,
    reason = "every test program takes what it needs of this module"
)]

pub(crate) mod browser;
pub(crate) mod made;
pub(crate) mod schema;

use std::path::PathBuf;
use std::process::{Command, Output};

use pgstrata_lab::measure::result::Experiment;
use tempfile::TempDir;

/// The program with a scratch directory and a lock of its own.
pub(crate) struct Lab {
    pub(crate) scratch: TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let scratch = tempfile::Builder::new()
            .prefix("pgs-lab-")
            .tempdir()
            .unwrap();
        Self { scratch }
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.scratch.path().join("out")
    }

    /// The program with these words; results go to [`Lab::out`].
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgstrata-lab"));
        command
            .args(words)
            .current_dir(self.scratch.path())
            // Beside other tests a backup that gives way hardly gets on.
            .env("PGSTRATA_IMPACT", "none")
            .env("PGSTRATA_LAB_LOCK", self.scratch.path().join("lock"));
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs an experiment that must end with 0; returns its result and what it printed.
    pub(crate) fn experiment(&self, words: &[&str]) -> (Experiment, String) {
        let out = self.out();
        let mut all = words.to_vec();
        let path = out.to_str().unwrap();
        let at = all.iter().position(|w| *w == "--").unwrap_or(all.len());
        all.splice(at..at, ["--out", path]);
        let output = self.run(&all);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let document = std::fs::read_to_string(out.join("result.json")).unwrap();
        let document = serde_json::from_str(&document).unwrap();
        let complaints = schema::complaints(&schema::schema(), &document);
        assert!(complaints.is_empty(), "{complaints:#?}");
        (Experiment::load(&out).unwrap(), text(&output.stdout))
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn said(output: &Output) -> String {
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
}
