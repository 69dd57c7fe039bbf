//! Runs one command and says what it cost: time, CPU, bytes, memory.
//!
//! Everything is read from `/proc` of the command and its process group: the
//! kernel adds the CPU time and I/O of children that were waited for to their
//! parent (proc(5), `/proc/pid/stat` fields 14-17 and `/proc/pid/io`), so the
//! figures of a finished command include its workers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, setsid, waitid};
use serde::{Deserialize, Serialize};

use crate::interrupt;

use crate::measure::sample;
use pgstrata_testbed::cluster::Cluster;

/// Short against the shortest command worth measuring, long against its own cost.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// What a command cost.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Wall-clock time, seconds.
    pub wall_seconds: f64,
    /// User and system time of the command and its children, seconds.
    pub cpu_seconds: f64,
    /// User and system time of the server meanwhile, seconds.
    pub server_cpu_seconds: f64,
    /// Bytes asked for by read calls, cached or not.
    pub read_bytes: u64,
    /// Bytes given to write calls.
    pub written_bytes: u64,
    /// Largest sum of resident memory of the command and its children, bytes; 0 when nobody looked.
    pub peak_bytes: u64,
    /// Share of the machine's processors that others used meanwhile; 0 when nobody looked.
    pub foreign_share: f64,
}

/// Whether somebody looks at the memory of a command, which takes processor time: all processes of the machine are looked at
/// to find its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Sampled,
    Unseen,
}

/// Runs `command` to its end, and disturbs nobody meanwhile: its memory is not looked at. An exit code other than 0 is an
/// error that shows its output.
///
/// # Errors
/// When the command cannot be started, fails, or `/proc` cannot be read.
pub fn run(command: &mut Command) -> Result<Cost> {
    watched(command, Memory::Unseen).map(|(cost, _)| cost)
}

/// Like [`run`], with the peak memory of the command and what it printed to standard output.
///
/// # Errors
/// See [`run`].
pub fn run_and_read(command: &mut Command) -> Result<(Cost, String)> {
    watched(command, Memory::Sampled)
}

fn watched(command: &mut Command, memory: Memory) -> Result<(Cost, String)> {
    let name = format!("{command:?}");
    let (output, complaints) = (tempfile::tempfile()?, tempfile::tempfile()?);
    lead_a_session(command);
    command
        .stdout(output.try_clone()?)
        .stderr(complaints.try_clone()?)
        .stdin(Stdio::null());
    let started = Instant::now();
    let child = command
        .spawn()
        .with_context(|| format!("could not start {name}"))?;
    let (mut cost, status) = watch(child, started, memory)?;
    cost.wall_seconds = cost.wall_seconds.max(1e-6);
    let output = text_of(output)?;
    if !status {
        bail!("{name} failed:\n{output}{}", text_of(complaints)?);
    }
    Ok((cost, output))
}

/// The command will lead a session, as cron and systemd start one: Linux shares processors by session (sched(7), "The
/// autogroup feature"). It leads its process group, too.
fn lead_a_session(command: &mut Command) {
    let lead = || setsid().map(drop).map_err(io::Error::from);
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    #[allow(unsafe_code, reason = "the standard library has no word for it")]
    unsafe {
        command.pre_exec(lead);
    }
}

/// Touches four times the memory that a copy of `cluster` takes, at most half of what is free, and gives it back: a
/// virtual machine may have returned free memory to its host, and whoever writes first then waits for it, page by page
/// (3 s for 1.6 GB where this was found, instead of 0.8 s).
///
/// # Errors
/// When the server does not say how large its databases are.
pub fn claim_memory(cluster: &Cluster) -> Result<()> {
    let size = "SELECT sum(pg_database_size(oid))::bigint FROM pg_database";
    let cluster_bytes: u64 = cluster.sql("postgres", size)?.trim().parse()?;
    let free = sample::kilobytes(Path::new("/"), "MemFree");
    #[expect(clippy::as_conversions, reason = "kilobytes are whole and few")]
    let most = free as u64 * 1024 / 2;
    let wanted = usize::try_from(most.min(cluster_bytes * 4)).expect("usize has 64 bits");
    let mut memory = vec![0_u8; wanted];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    drop(std::hint::black_box(memory));
    Ok(())
}

fn text_of(mut file: fs::File) -> Result<String> {
    file.rewind()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn watch(mut child: Child, started: Instant, memory: Memory) -> Result<(Cost, bool)> {
    let id = child.id();
    let pid = Pid::from_child(&child);
    let counters = open_counters(id)?;
    let done = AtomicBool::new(false);
    let peak = AtomicU64::new(0);
    let wall = thread::scope(|scope| -> Result<f64> {
        scope.spawn(|| {
            let mut group = Group::led_by(id);
            while !done.load(Ordering::Relaxed) {
                if interrupt::requested() {
                    // It may have ended by itself since.
                    let _ = kill_process_group(pid, Signal::TERM);
                }
                if memory == Memory::Sampled {
                    peak.fetch_max(group.resident_bytes(), Ordering::Relaxed);
                }
                thread::sleep(SAMPLE_EVERY);
            }
        });
        // The zombie is kept until its last figures are read.
        let ended = waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
        let wall = started.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        ended?;
        Ok(wall)
    })?;
    let io = counters.map_or_else(|| Ok(BTreeMap::new()), read_counters)?;
    let cost = Cost {
        wall_seconds: wall,
        cpu_seconds: cpu_seconds_of(id)?,
        server_cpu_seconds: 0.0,
        read_bytes: io.get("rchar").copied().unwrap_or(0),
        written_bytes: io.get("wchar").copied().unwrap_or(0),
        peak_bytes: peak.into_inner(),
        foreign_share: 0.0,
    };
    Ok((cost, child.wait()?.success()))
}

/// User and system time of process `id` and its children that were waited for.
///
/// # Errors
/// When the process is gone.
pub fn cpu_seconds_of(id: u32) -> Result<f64> {
    let stat = stat_fields(id).with_context(|| format!("process {id} is gone"))?;
    let ticks: u64 = stat
        .iter()
        .skip(11)
        .take(4)
        .filter_map(|f| f.parse::<u64>().ok())
        .sum();
    let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
    Ok(f64::from(ticks) / f64::from(u32::try_from(rustix::param::clock_ticks_per_second())?))
}

/// The file of a process's I/O counters. Of a zombie it belongs to root, but who has it open may
/// read it: so it is opened while the process runs. `None` when it has ended already, at once.
fn open_counters(id: u32) -> Result<Option<fs::File>> {
    match fs::File::open(format!("/proc/{id}/io")) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error).with_context(|| format!("could not open /proc/{id}/io")),
    }
}

fn read_counters(mut file: fs::File) -> Result<BTreeMap<String, u64>> {
    let mut text = String::new();
    file.read_to_string(&mut text)
        .context("could not read the I/O counters of a process")?;
    let pair = |line: &str| {
        let (key, value) = line.split_once(": ")?;
        Some((key.to_owned(), value.parse().ok()?))
    };
    Ok(text.lines().filter_map(pair).collect())
}

/// The processes of a process group.
struct Group {
    leader: u32,
    members: Vec<u32>,
    /// The process or thread of the system that was made last when they were looked for.
    newest: Option<String>,
}

impl Group {
    fn led_by(leader: u32) -> Self {
        Self {
            leader,
            members: Vec::new(),
            newest: None,
        }
    }

    /// Of all that are there now.
    fn resident_bytes(&mut self) -> u64 {
        // Without a new process on the machine it has no new member (proc_loadavg(5), the fifth field).
        let load = fs::read_to_string("/proc/loadavg").ok();
        let newest = load.and_then(|load| load.split_whitespace().nth(4).map(str::to_owned));
        if newest.is_none() || newest != self.newest {
            let in_group = |id: &u32| {
                let fields = stat_fields(*id);
                fields.and_then(|f| f.get(2)?.parse::<u32>().ok()) == Some(self.leader)
            };
            self.members = process_ids().filter(in_group).collect();
            self.newest = newest;
        }
        self.members
            .iter()
            .copied()
            .filter_map(resident_bytes)
            .sum()
    }
}

fn resident_bytes(id: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

fn process_ids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// Fields of `/proc/id/stat` from the third (state) on; the second may hold spaces.
fn stat_fields(id: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_counts_bytes_cpu_and_memory_of_children() {
        // What tail has read it keeps until somebody takes it.
        let script =
            "head -c 64000000 /dev/zero | tail -c 64000000 | { sleep 0.5; cat >/dev/null; }";
        let bash = || {
            let mut bash = Command::new("bash");
            bash.args(["-c", script]);
            bash
        };
        assert_eq!(run(&mut bash()).unwrap().peak_bytes, 0);
        let (cost, _) = run_and_read(&mut bash()).unwrap();
        assert!(cost.read_bytes >= 128_000_000, "{cost:?}");
        assert!(cost.written_bytes >= 128_000_000, "{cost:?}");
        assert!(cost.peak_bytes >= 64_000_000, "{cost:?}");
        assert!(cost.wall_seconds > 0.0);
    }

    #[test]
    fn a_failing_command_is_an_error_with_its_output() {
        let error =
            run(Command::new("bash").args(["-c", "echo broken pipe organ; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("broken pipe organ"), "{error}");
    }
}
