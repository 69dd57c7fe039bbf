//! Where the CPU time of a command goes: samples of perf(1), as a flame graph and as shares.
//!
//! The whole machine is sampled and the command's process picked out afterwards: that needs
//! no stop at its start, and shows the kernel's part. A command that waits is not sampled:
//! waiting is what the wall-clock time has left.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options as FolderOptions};
use inferno::flamegraph;
use rustix::process::{Pid, Signal, kill_process};

use crate::number::real_u64;

/// Samples per second and core; not a divisor of anything that happens regularly.
const FREQUENCY: &str = "499";

/// perf opens an event for each core before it samples, and has no sign for when it does.
const SETTLE: Duration = Duration::from_millis(700);

/// Kinds of work, the innermost function that matches decides; the first match counts.
const KINDS: [(&str, &[&str]); 6] = [
    ("compression", &["ZSTD_", "HUF_", "FSE_", "LZ4_", "zstd::"]),
    (
        "checksums",
        &["blake3", "xxh", "Xxh", "crc", "checksum", "digest"],
    ),
    ("fsync", &["fsync", "fdatasync", "sync_file_range"]),
    (
        "read and write",
        &[
            "vfs_read",
            "vfs_write",
            "pread",
            "pwrite",
            "ksys_",
            "splice",
        ],
    ),
    (
        "memory",
        &["page_fault", "madvise", "munmap", "mmap", "brk"],
    ),
    ("other kernel", &["_[k]"]),
];

/// Samples of one command.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    /// What was profiled.
    pub(super) name: String,
    /// Wall-clock time, seconds.
    pub(super) wall_seconds: f64,
    /// Time on a core, seconds.
    pub(super) core_seconds: f64,
    /// Share of the time on cores by kind of work, largest first; of 1.
    pub(super) shares: Vec<(String, f64)>,
    /// The flame graph.
    pub(super) picture: PathBuf,
}

/// perf, sampling.
struct Recording {
    perf: Child,
    data: PathBuf,
}

/// Runs `command` to its end and writes `NAME.svg` into `directory`.
///
/// # Errors
/// When perf is missing or may not sample the machine, or the command fails.
pub(super) fn profile(command: &mut Command, directory: &Path, name: &str) -> Result<Profile> {
    let recording = Recording::start(&directory.join(format!("{name}.data")))?;
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("could not start {command:?}"))?;
    let (pid, status) = (child.id(), child.wait()?);
    let wall_seconds = started.elapsed().as_secs_f64();
    let folded = recording.folded(pid)?;
    ensure!(status.success(), "{command:?} failed with {status}");
    let picture = directory.join(format!("{name}.svg"));
    draw(&folded, name, &picture)?;
    let (samples, shares) = shares(&folded);
    Ok(Profile {
        name: name.to_owned(),
        wall_seconds,
        core_seconds: real_u64(samples) / FREQUENCY.parse::<f64>()?,
        shares,
        picture,
    })
}

impl Recording {
    fn start(data: &Path) -> Result<Self> {
        let mut perf = Command::new("perf");
        perf.args(["record", "--quiet", "--all-cpus", "--event", "cpu-clock"])
            .args(["--freq", FREQUENCY, "--call-graph", "dwarf,16384"])
            .arg("--output")
            .arg(data)
            .stderr(Stdio::piped());
        let mut perf = perf
            .spawn()
            .context("could not start perf (Debian package linux-perf)")?;
        thread::sleep(SETTLE);
        if perf.try_wait()?.is_some() {
            let output = perf.wait_with_output()?;
            bail!(
                "perf may not sample this machine: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(Self {
            perf,
            data: data.to_owned(),
        })
    }

    /// The stacks of one process, a line for each: frames from the outermost on, and a count.
    fn folded(mut self, pid: u32) -> Result<String> {
        kill_process(Pid::from_child(&self.perf), Signal::INT)?;
        self.perf.wait()?;
        let mut script = Command::new("perf");
        script
            .args(["script", "--no-inline", "--pid", &pid.to_string()])
            .args(["--fields", "comm,pid,tid,time,event,ip,sym,dso", "--input"])
            .arg(&self.data)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut script = script.spawn().context("could not start perf script")?;
        let stacks = script.stdout.take().context("standard output is piped")?;
        let mut options = FolderOptions::default();
        options.annotate_kernel = true;
        let mut folded = Vec::new();
        Folder::from(options).collapse(BufReader::new(stacks), &mut folded)?;
        let status = script.wait()?;
        ensure!(status.success(), "perf script failed with {status}");
        fs::remove_file(&self.data)
            .with_context(|| format!("could not remove \"{}\"", self.data.display()))?;
        Ok(String::from_utf8(folded)?)
    }
}

fn draw(folded: &str, title: &str, picture: &Path) -> Result<()> {
    let file = File::create(picture)
        .with_context(|| format!("could not create \"{}\"", picture.display()))?;
    let mut options = flamegraph::Options::default();
    title.clone_into(&mut options.title);
    flamegraph::from_lines(&mut options, folded.lines(), BufWriter::new(file))?;
    Ok(())
}

/// Number of samples, and the share of each kind of work.
fn shares(folded: &str) -> (u64, Vec<(String, f64)>) {
    let mut counts: Vec<(&str, u64)> = Vec::new();
    let mut all = 0;
    for line in folded.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else {
            continue;
        };
        let count = count.parse().unwrap_or(0);
        all += count;
        let kind = kind_of(stack);
        match counts.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, sum)) => *sum += count,
            None => counts.push((kind, count)),
        }
    }
    counts.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
    let share = |count| real_u64(count) / real_u64(all).max(1.0);
    let named = counts
        .iter()
        .map(|(name, count)| ((*name).to_owned(), share(*count)));
    (all, named.collect())
}

fn kind_of(stack: &str) -> &'static str {
    for frame in stack.rsplit(';') {
        for (kind, marks) in &KINDS[..KINDS.len() - 1] {
            if marks.iter().any(|mark| frame.contains(mark)) {
                return kind;
            }
        }
    }
    let (kind, marks) = KINDS[KINDS.len() - 1];
    match marks.iter().any(|mark| stack.contains(mark)) {
        true => kind,
        false => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_frame_that_is_known_names_the_kind() {
        let folded = "pgstrata;worker;ZSTD_compress;HUF_build 60\n\
            pgstrata;worker;pwrite64;entry_[k];vfs_write_[k];copy_[k] 20\n\
            pgstrata;verify;blake3_hash 10\n\
            pgstrata;main;schedule_[k] 6\n\
            pgstrata;main 4\n";
        let (samples, shares) = shares(folded);
        assert_eq!(samples, 100);
        let expected = [
            ("compression", 0.6),
            ("read and write", 0.2),
            ("checksums", 0.1),
            ("other kernel", 0.06),
            ("other", 0.04),
        ];
        assert_eq!(shares.len(), expected.len());
        for ((name, share), (kind, part)) in shares.iter().zip(expected) {
            assert_eq!(name, kind);
            assert!((share - part).abs() < 1e-9, "{name}: {share}");
        }
    }

    #[test]
    fn a_flame_graph_is_a_picture() {
        let directory = tempfile::tempdir().unwrap();
        let picture = directory.path().join("p.svg");
        draw("a;b 3\na;c 1", "title", &picture).unwrap();
        let text = fs::read_to_string(picture).unwrap();
        assert!(text.contains("<svg") && text.contains("title"));
    }
}
