//! A program that runs beside the test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A running program; dropping it kills it.
#[derive(Debug)]
pub struct Background {
    child: Child,
    described: String,
    output: PathBuf,
}

impl Background {
    pub(super) fn start(mut command: Command, directory: &Path) -> Result<Self> {
        let described = format!("{command:?}");
        let (file, output) = tempfile::Builder::new()
            .prefix("output-")
            .tempfile_in(directory)
            .and_then(|file| file.keep().map_err(|error| error.error))
            .context("could not create a file for the output of a program")?;
        let errors: File = file.try_clone().context("could not duplicate a file")?;
        let child = command
            .stdout(file)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("could not start {described}"))?;
        Ok(Self {
            child,
            described,
            output,
        })
    }

    /// The process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still running.
    pub fn is_running(&mut self) -> Result<bool> {
        let status = self.child.try_wait().context("could not ask for a child")?;
        Ok(status.is_none())
    }

    /// What it has printed so far, errors among it.
    #[must_use]
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for its end, which must be a success; returns what it printed.
    pub fn wait(mut self) -> Result<String> {
        let status = self.child.wait().context("could not wait for a child")?;
        let output = self.output();
        ensure!(
            status.success(),
            "{} failed with {status}: {output}",
            self.described
        );
        Ok(output)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.child.id()).context("a process number is positive")?;
        let process = Pid::from_raw(id).context("a process number is not zero")?;
        kill_process(process, signal)
            .with_context(|| format!("could not signal {}", self.described))
    }

    /// Kills it and waits for its end; returns what it had printed.
    pub fn kill(mut self) -> Result<String> {
        self.child.kill().context("could not kill a child")?;
        self.child.wait().context("could not wait for a child")?;
        Ok(self.output())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Either fails only if the program has ended, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
