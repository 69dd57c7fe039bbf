//! One pgbench that runs from beginning to end, and its log cut into slices.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::interrupt;
use crate::measure::latency::Latencies;
use crate::measure::pgbench::options::Options;
use crate::measure::workload;
use crate::number::whole;

/// The load; ends when dropped.
pub(super) struct Load {
    child: Child,
    directory: PathBuf,
}

impl Load {
    /// Begins to send transactions at the rate of `options`.
    pub(super) fn start(
        pgbench: &Path,
        options: &Options,
        seed: u64,
        dsn: &str,
        directory: &Path,
    ) -> Result<Self> {
        let scripts = options
            .workload
            .iter()
            .map(|name| workload::resolve(name, directory))
            .collect::<Result<Vec<_>>>()?;
        let errors = directory.join("pgbench.err");
        let errors = File::create(&errors)
            .with_context(|| format!("could not create \"{}\"", errors.display()))?;
        let child = Command::new(pgbench)
            // Until it is stopped.
            .args(options.arguments(&scripts, Some(1_000_000)))
            .arg(format!("--random-seed={}", seed & 0x7fff_ffff))
            .arg("--log")
            .arg(format!("--log-prefix={}", directory.join("log").display()))
            .arg(dsn)
            .env("PGAPPNAME", "pgbench")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("could not start \"{}\"", pgbench.display()))?;
        Ok(Self {
            child,
            directory: directory.to_owned(),
        })
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("could not look at pgbench")? {
            let said = fs::read_to_string(self.directory.join("pgbench.err")).unwrap_or_default();
            let last = said.lines().next_back().unwrap_or_default();
            bail!("pgbench ended early with {status}: {last}");
        }
        Ok(())
    }

    /// Ends it and reads what the transactions due within each spell had to wait.
    pub(super) fn finish(mut self, slices: &[Vec<Spell>]) -> Result<Vec<Felt>> {
        // pgbench writes its log in pieces: what is in the last one is lost.
        let _ = interrupt::sleep(Duration::from_secs(2));
        self.stop();
        let mut trace = Trace::of(slices);
        let wrong = || format!("could not read the log in \"{}\"", self.directory.display());
        for entry in fs::read_dir(&self.directory).with_context(wrong)?.flatten() {
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with("log.") {
                continue;
            }
            let file = File::open(entry.path()).with_context(wrong)?;
            for line in BufReader::new(file).lines() {
                trace.add(&line.with_context(wrong)?);
            }
            fs::remove_file(entry.path()).with_context(wrong)?;
        }
        Ok(trace.felt)
    }

    fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.child.wait();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A stretch of time, in seconds since 1970: [from, to).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spell {
    pub(super) from: f64,
    pub(super) to: f64,
}

/// What the transactions of one slice felt.
#[derive(Debug, Clone, Default)]
pub(super) struct Felt {
    /// From the moment each was due.
    pub(super) response: Latencies,
    /// Sum of the time they waited before they were begun, seconds.
    pub(super) lag: f64,
    /// Due in each second of the slice.
    pub(super) each_second: Vec<f64>,
}

struct Trace {
    /// All spells in order of time, each with its slice.
    spells: Vec<(Spell, usize)>,
    /// Where each slice begins.
    begins: Vec<f64>,
    felt: Vec<Felt>,
}

impl Trace {
    fn of(slices: &[Vec<Spell>]) -> Self {
        let mut spells: Vec<(Spell, usize)> = slices
            .iter()
            .enumerate()
            .flat_map(|(slice, spells)| spells.iter().map(move |spell| (*spell, slice)))
            .collect();
        spells.sort_by(|a, b| a.0.from.total_cmp(&b.0.from));
        let begin = |spells: &Vec<Spell>| spells.first().map_or(0.0, |spell| spell.from);
        Self {
            spells,
            begins: slices.iter().map(begin).collect(),
            felt: vec![Felt::default(); slices.len()],
        }
    }

    /// One line of the log; the last one may have been cut short.
    fn add(&mut self, line: &str) {
        let Some((due, response, lag)) = transaction(line) else {
            return;
        };
        let after = self.spells.partition_point(|(spell, _)| spell.from <= due);
        let Some((spell, slice)) = after.checked_sub(1).and_then(|at| self.spells.get(at)) else {
            return;
        };
        if due >= spell.to {
            return;
        }
        let felt = &mut self.felt[*slice];
        felt.response.record(response);
        felt.lag += lag;
        let second = whole(due - self.begins[*slice]);
        if felt.each_second.len() <= second {
            felt.each_second.resize(second + 1, 0.0);
        }
        felt.each_second[second] += 1.0;
    }
}

/// When a transaction was due, and what it then took: (seconds, µs, lag in seconds).
fn transaction(line: &str) -> Option<(f64, u64, f64)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, _, time, _, seconds, micros, lag] = fields[..] else {
        return None;
    };
    let response: u64 = time.parse().ok()?;
    let ended = seconds.parse::<f64>().ok()? + micros.parse::<f64>().ok()? / 1e6;
    let due = ended - crate::number::real_u64(response) / 1e6;
    Some((due, response, lag.parse::<f64>().ok()? / 1e6))
}

#[cfg(test)]
mod tests {
    use super::{Spell, Trace};

    #[test]
    fn a_transaction_belongs_to_the_slice_in_which_it_was_due() {
        let spell = |from, to| Spell { from, to };
        let mut trace = Trace::of(&[
            vec![spell(100.0, 101.0), spell(102.0, 103.0)],
            vec![spell(101.0, 102.0)],
        ]);
        for line in [
            // Due at 100.9, ended in the second slice.
            "0 1 500000 0 101 400000 300000",
            "0 2 1000 0 101 501000 0",
            // Due in the second spell of the first slice.
            "0 3 2000 0 102 502000 1000",
            // Due before and after everything; skipped; cut short.
            "0 4 2000 0 100 1000 0",
            "0 5 1000 0 103 2000 0",
            "0 6 skipped 0 101 1 0",
            "0 7 1000 0 101 5",
        ] {
            trace.add(line);
        }
        let counts: Vec<u64> = trace.felt.iter().map(|f| f.response.count()).collect();
        assert_eq!(counts, [2, 1]);
        assert!((trace.felt[0].lag - 0.301).abs() < 1e-9);
        assert_eq!(trace.felt[0].each_second, [1.0, 0.0, 1.0]);
        assert!(trace.felt[0].response.longest().unwrap() > 0.49);
    }
}
