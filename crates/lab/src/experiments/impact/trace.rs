//! One pgbench that runs from beginning to end, and its log cut into slices.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use zstd::stream::Encoder;

use crate::interrupt;
use crate::measure::latency::Latencies;
use crate::measure::pgbench::options::Options;
use crate::measure::result::Run;
use crate::measure::workload;
use crate::number::whole;

/// The log of all transactions.
const KEPT: &str = "transactions.log.zst";
/// Where the slices are in it.
const SLICES: &str = "slices.csv";

/// Writes down when each slice was, in as many spells as it has: with the log, all that its figures are made of.
pub(super) fn keep_slices<'a>(
    slices: impl Iterator<Item = (&'a Run, &'a [Spell])>,
    directory: &Path,
) -> Result<()> {
    let mut text = "block,arm,from,to\n".to_owned();
    for (run, spells) in slices {
        for Spell { from, to } in spells {
            text.push_str(&format!(
                "{},{},{from:.6},{to:.6}\n",
                run.block + 1,
                run.arm + 1
            ));
        }
    }
    let file = directory.join(SLICES);
    fs::write(&file, text).with_context(|| format!("could not write \"{}\"", file.display()))
}

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

    /// Ends it and reads what the transactions due within each spell had to wait; its log is kept, small, and how large it
    /// then is comes with that.
    pub(super) fn finish(mut self, slices: &[Vec<Spell>]) -> Result<(Vec<Felt>, u64)> {
        // pgbench writes its log in pieces: what is in the last one is lost.
        let _ = interrupt::sleep(Duration::from_secs(2));
        self.stop();
        let mut trace = Trace::of(slices);
        let kept = trace.read(&self.directory).with_context(|| {
            format!("could not read the log in \"{}\"", self.directory.display())
        })?;
        Ok((trace.felt, kept))
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

    /// Reads what pgbench's threads have logged, and makes one small file of it; returns its size.
    fn read(&mut self, directory: &Path) -> Result<u64> {
        let mut logs: Vec<PathBuf> = fs::read_dir(directory)?
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("log."))
            .map(|entry| entry.path())
            .collect();
        logs.sort();
        let kept = directory.join(KEPT);
        let mut keeper = Encoder::new(BufWriter::new(File::create(&kept)?), 1)?;
        for log in logs {
            for line in BufReader::new(File::open(&log)?).lines() {
                let line = line?;
                self.add(&line);
                writeln!(keeper, "{line}")?;
            }
            // Both at once may be more than there is room for.
            fs::remove_file(log)?;
        }
        keeper.finish()?.flush()?;
        Ok(fs::metadata(kept)?.len())
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
    use super::{KEPT, SLICES, Spell, Trace, keep_slices};
    use crate::measure::result::Run;

    #[test]
    fn what_is_kept_of_the_log_makes_the_same_figures_again() {
        let scratch = tempfile::tempdir().unwrap();
        let file = |name: &str| scratch.path().join(name);
        std::fs::write(file("log.7"), "0 1 500000 0 101 400000 300000\n").unwrap();
        std::fs::write(file("log.7.1"), "1 1 2000 0 102 502000 1000\n").unwrap();
        std::fs::write(file("pgbench.err"), "log of something else\n").unwrap();
        let spells = [
            vec![Spell {
                from: 100.25,
                to: 101.0,
            }],
            vec![Spell {
                from: 102.0,
                to: 103.0,
            }],
        ];
        let mut trace = Trace::of(&spells);
        let size = trace.read(scratch.path()).unwrap();
        assert_eq!(size, std::fs::metadata(file(KEPT)).unwrap().len());
        assert!(!file("log.7").exists() && !file("log.7.1").exists());
        assert!(file("pgbench.err").exists());
        let kept = std::fs::File::open(file(KEPT)).unwrap();
        let kept = String::from_utf8(zstd::decode_all(kept).unwrap()).unwrap();
        assert_eq!(kept.lines().count(), 2, "{kept}");

        let runs = [(0, 1), (2, 0)].map(|(block, arm)| Run {
            block,
            arm,
            ..Run::default()
        });
        let slices = runs.iter().zip(spells.iter().map(Vec::as_slice));
        keep_slices(slices, scratch.path()).unwrap();
        let written = std::fs::read_to_string(file(SLICES)).unwrap();
        let lines: Vec<&str> = written.lines().skip(1).collect();
        assert_eq!(
            lines,
            ["1,2,100.250000,101.000000", "3,1,102.000000,103.000000"]
        );
        let spell = |line: &&str| {
            let numbers: Vec<f64> = line.split(',').map(|n| n.parse().unwrap()).collect();
            vec![Spell {
                from: numbers[2],
                to: numbers[3],
            }]
        };
        let again: Vec<Vec<Spell>> = lines.iter().map(spell).collect();
        let mut again = Trace::of(&again);
        kept.lines().for_each(|line| again.add(line));
        for (one, other) in trace.felt.iter().zip(&again.felt) {
            assert_eq!(one.response.count(), 1);
            assert_eq!(one.response.longest(), other.response.longest());
            assert!((one.lag - other.lag).abs() < 1e-9);
        }
    }

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
