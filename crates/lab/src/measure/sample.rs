//! Resources over time: the pictures beside every result.
//!
//! One thread reads counters of the kernel once a second. Counters become
//! rates at once, so that a series is what is drawn. Units are in the names of
//! [`CHARTS`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::number::real_u64;

/// Series by name, each with one value per moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Moments, seconds from the start of the run.
    pub time: Vec<f64>,
    /// Values.
    pub series: BTreeMap<String, Vec<f64>>,
    /// Share of one core the sampler itself used.
    pub own_cost: f64,
}

/// A picture: its title, its unit, and its series (name in [`Samples`], label).
#[derive(Debug, Clone, Copy)]
pub struct Chart {
    /// Title.
    pub title: &'static str,
    /// Unit of the vertical axis.
    pub unit: &'static str,
    /// (series, label).
    pub series: &'static [(&'static str, &'static str)],
    /// Whether the series are parts of a whole.
    pub stacked: bool,
}

/// The pictures, named as Netdata names them.
pub const CHARTS: [Chart; 11] = [
    Chart {
        title: "Disk I/O",
        unit: "MiB/s",
        series: &[("disk.read", "in"), ("disk.write", "out")],
        stacked: false,
    },
    Chart {
        title: "Disk total I/O time",
        unit: "ms/s",
        series: &[("disk.read_time", "reads"), ("disk.write_time", "writes")],
        stacked: false,
    },
    Chart {
        title: "Disk utilization",
        unit: "%",
        series: &[("disk.util", "busy")],
        stacked: false,
    },
    Chart {
        title: "Average completed I/O time",
        unit: "ms/op",
        series: &[("disk.read_await", "reads"), ("disk.write_await", "writes")],
        stacked: false,
    },
    Chart {
        title: "Average I/O size",
        unit: "KiB/op",
        series: &[("disk.read_size", "reads"), ("disk.write_size", "writes")],
        stacked: false,
    },
    Chart {
        title: "CPU",
        unit: "%",
        series: &[
            ("cpu.user", "user"),
            ("cpu.system", "system"),
            ("cpu.softirq", "softirq"),
            ("cpu.iowait", "iowait"),
            ("cpu.steal", "steal"),
        ],
        stacked: true,
    },
    Chart {
        title: "Network",
        unit: "Mbit/s",
        series: &[("net.received", "received"), ("net.sent", "sent")],
        stacked: false,
    },
    Chart {
        title: "Committed memory",
        unit: "GiB",
        series: &[("mem.committed", "committed")],
        stacked: false,
    },
    Chart {
        title: "Transparent huge pages",
        unit: "MiB",
        series: &[("mem.huge", "anonymous")],
        stacked: false,
    },
    Chart {
        title: "Virtual memory of the programs measured",
        unit: "GiB",
        series: &[("mem.virtual", "virtual")],
        stacked: false,
    },
    Chart {
        title: "Writeback memory",
        unit: "GiB",
        series: &[("mem.dirty", "dirty"), ("mem.writeback", "writeback")],
        stacked: false,
    },
];

/// Processor time of the whole machine, in clock ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Processor {
    user: f64,
    system: f64,
    idle: f64,
    iowait: f64,
    softirq: f64,
    steal: f64,
}

impl Processor {
    /// Reads /proc/stat below `root`.
    #[must_use]
    pub fn read(root: &Path) -> Option<Self> {
        let text = fs::read_to_string(root.join("proc/stat")).ok()?;
        let fields: Vec<f64> = text
            .lines()
            .next()?
            .split_ascii_whitespace()
            .skip(1)
            .filter_map(|f| f.parse().ok())
            .collect();
        let at = |index: usize| fields.get(index).copied().unwrap_or(0.0);
        Some(Self {
            user: at(0) + at(1),
            system: at(2) + at(5),
            idle: at(3),
            iowait: at(4),
            softirq: at(6),
            steal: at(7),
        })
    }

    /// Ticks in which a core did something, steal included.
    #[must_use]
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.softirq + self.steal
    }

    /// Ticks given to other guests.
    #[must_use]
    pub fn stolen(&self) -> f64 {
        self.steal
    }

    /// All ticks of all cores.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.busy() + self.idle + self.iowait
    }
}

/// Processor ticks of a process, the reaped children in the second number.
#[must_use]
pub fn process_ticks(pid: u32) -> Option<(f64, f64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let at = |index: usize| fields.get(index).and_then(|f| f.parse::<f64>().ok());
    // Fields 14 to 17 of proc(5), counted after the name.
    Some((at(11)? + at(12)?, at(13)? + at(14)?))
}

/// Ticks of a process and of all that descend from it.
#[must_use]
pub fn tree_ticks(pid: u32) -> f64 {
    let own = process_ticks(pid).map_or(0.0, |(own, reaped)| own + reaped);
    own + children(pid).into_iter().map(tree_ticks).sum::<f64>()
}

/// Ticks of the kernel's threads; 0 where another name space hides them.
fn kernel_ticks() -> f64 {
    const THREADS: u32 = 2;
    let name = fs::read_to_string(format!("/proc/{THREADS}/comm")).unwrap_or_default();
    match name.trim() {
        "kthreadd" => tree_ticks(THREADS),
        _ => 0.0,
    }
}

fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for thread in threads.flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(
            text.split_ascii_whitespace()
                .filter_map(|p| p.parse::<u32>().ok()),
        );
    }
    found
}

fn tree_virtual(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own: f64 = status
        .lines()
        .find_map(|l| l.strip_prefix("VmSize:"))
        .and_then(|v| v.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(0.0);
    own + children(pid).into_iter().map(tree_virtual).sum::<f64>()
}

/// Counters that become rates.
#[derive(Debug, Clone, Default)]
struct Counters {
    at: f64,
    processor: Processor,
    /// reads, sectors, ms, writes, sectors, ms, busy ms.
    disk: [f64; 7],
    received: f64,
    sent: f64,
}

fn counters(root: &Path, disk: Option<&str>, at: f64) -> Counters {
    let mut counters = Counters {
        at,
        processor: Processor::read(root).unwrap_or_default(),
        ..Counters::default()
    };
    let text = fs::read_to_string(root.join("proc/diskstats")).unwrap_or_default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if disk.is_some() && fields.get(2).copied() == disk {
            let at = |index: usize| {
                fields
                    .get(index)
                    .and_then(|f| f.parse().ok())
                    .unwrap_or(0.0)
            };
            counters.disk = [at(3), at(5), at(6), at(7), at(9), at(10), at(12)];
        }
    }
    let text = fs::read_to_string(root.join("proc/net/dev")).unwrap_or_default();
    for line in text.lines().skip(2) {
        let Some((_, values)) = line.split_once(':') else {
            continue;
        };
        // Loopback too: stores and servers of tests are reached by it.
        let fields: Vec<f64> = values
            .split_ascii_whitespace()
            .filter_map(|f| f.parse().ok())
            .collect();
        counters.received += fields.first().copied().unwrap_or(0.0);
        counters.sent += fields.get(8).copied().unwrap_or(0.0);
    }
    counters
}

fn memory(root: &Path) -> BTreeMap<String, f64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (key, rest) = line.split_once(':')?;
            let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
            Some((key.to_owned(), value))
        })
        .collect()
}

/// What `/proc/meminfo` below `root` has under `key`, in kilobytes; 0 when it has nothing.
#[must_use]
pub fn kilobytes(root: &Path, key: &str) -> f64 {
    memory(root).get(key).copied().unwrap_or(0.0)
}

/// Kilobytes waiting to be written or being written.
#[must_use]
pub fn dirty_kilobytes(root: &Path) -> f64 {
    kilobytes(root, "Dirty") + kilobytes(root, "Writeback")
}

impl Samples {
    fn push(&mut self, before: &Counters, now: &Counters, root: &Path, pid: Option<u32>) {
        let seconds = (now.at - before.at).max(1e-3);
        self.time.push(now.at);
        let mut put = |name: &str, value: f64| {
            self.series.entry(name.to_owned()).or_default().push(value);
        };
        let d: Vec<f64> = now
            .disk
            .iter()
            .zip(before.disk)
            .map(|(n, b)| n - b)
            .collect();
        let per = |amount: f64, operations: f64| {
            if operations > 0.0 {
                amount / operations
            } else {
                0.0
            }
        };
        put("disk.read", d[1] * 512.0 / 1_048_576.0 / seconds);
        put("disk.write", d[4] * 512.0 / 1_048_576.0 / seconds);
        put("disk.read_time", d[2] / seconds);
        put("disk.write_time", d[5] / seconds);
        put("disk.util", (d[6] / seconds / 10.0).min(100.0));
        put("disk.read_await", per(d[2], d[0]));
        put("disk.write_await", per(d[5], d[3]));
        put("disk.read_size", per(d[1] / 2.0, d[0]));
        put("disk.write_size", per(d[4] / 2.0, d[3]));
        let ticks = (now.processor.total() - before.processor.total()).max(1.0);
        let share = |of: fn(&Processor) -> f64| {
            (of(&now.processor) - of(&before.processor)).max(0.0) / ticks * 100.0
        };
        put("cpu.user", share(|p| p.user));
        put("cpu.system", share(|p| p.system));
        put("cpu.softirq", share(|p| p.softirq));
        put("cpu.iowait", share(|p| p.iowait));
        put("cpu.steal", share(|p| p.steal));
        put(
            "net.received",
            (now.received - before.received) * 8e-6 / seconds,
        );
        put("net.sent", (now.sent - before.sent) * 8e-6 / seconds);
        let memory = memory(root);
        let gib = |key: &str| memory.get(key).copied().unwrap_or(0.0) / 1_048_576.0;
        put("mem.committed", gib("Committed_AS"));
        put("mem.huge", gib("AnonHugePages") * 1024.0);
        put("mem.virtual", pid.map_or(0.0, tree_virtual) / 1_048_576.0);
        put("mem.dirty", gib("Dirty"));
        put("mem.writeback", gib("Writeback"));
    }
}

/// A running sampler.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    samples: Arc<Mutex<Samples>>,
    thread: Option<JoinHandle<()>>,
}

/// What to watch.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// Directory whose disk is watched.
    pub data: Option<PathBuf>,
    /// Process tree whose memory is watched.
    pub process: Option<u32>,
    /// Time between samples; one second if absent.
    pub period: Option<Duration>,
}

impl Sampler {
    /// Starts watching.
    #[must_use]
    pub fn start(watch: Watch) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let samples = Arc::new(Mutex::new(Samples::default()));
        let thread = {
            let (stop, samples) = (Arc::clone(&stop), Arc::clone(&samples));
            std::thread::spawn(move || watching(&watch, &stop, &samples))
        };
        Self {
            stop,
            samples,
            thread: Some(thread),
        }
    }

    /// Stops watching and hands out what was seen.
    #[must_use]
    pub fn finish(mut self) -> Samples {
        self.end();
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *samples)
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A sampler that died has said all it can say.
            let _ = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

fn watching(watch: &Watch, stop: &AtomicBool, samples: &Mutex<Samples>) {
    let root = Path::new("/");
    let disk = watch.data.as_deref().and_then(|data| disk_name(root, data));
    let period = watch.period.unwrap_or(Duration::from_secs(1));
    let start = Instant::now();
    let mut spent = Duration::ZERO;
    let mut before = counters(root, disk.as_deref(), 0.0);
    let mut due = start + period;
    loop {
        while Instant::now() < due && !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        }
        let began = Instant::now();
        let now = counters(root, disk.as_deref(), start.elapsed().as_secs_f64());
        // The last stretch is cut short; a sliver of it would be noise.
        if now.at - before.at > period.as_secs_f64() * 0.3 {
            let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.push(&before, &now, root, watch.process);
            spent += began.elapsed();
            samples.own_cost = spent.as_secs_f64() / start.elapsed().as_secs_f64();
            before = now;
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
        due += period;
    }
}

/// The disk below a directory, as /proc/diskstats names it.
#[must_use]
pub fn disk_name(root: &Path, data: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(data).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = fs::read_to_string(root.join("proc/diskstats")).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let found = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (found == (major, minor)).then(|| fields.next().map(str::to_owned))?
    })
}

/// The processor over a window: who used it.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    processor: Processor,
    /// The lab with all it started that lives or was waited for.
    lab: f64,
    reaped: f64,
    server: f64,
    /// What writes to disks for all of them.
    kernel: f64,
    postmaster: Option<u32>,
    began: Instant,
}

/// Shares of the machine's processor (all cores are 1) over a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    /// Busy at all.
    pub busy: f64,
    /// The server and what it started.
    pub server: f64,
    /// The lab's finished children: pgbench.
    pub client: f64,
    /// Anybody else; the kernel's own threads, where they can be seen, are nobody.
    pub foreign: f64,
    /// Given to other guests.
    pub steal: f64,
    /// Seconds of processor the client used.
    pub client_seconds: f64,
    /// Seconds of processor the server used.
    pub server_seconds: f64,
}

impl Window {
    /// Opens a window. `postmaster` is the server's process on this machine.
    #[must_use]
    pub fn open(postmaster: Option<u32>) -> Self {
        let lab = std::process::id();
        let (_, reaped) = process_ticks(lab).unwrap_or_default();
        Self {
            processor: Processor::read(Path::new("/")).unwrap_or_default(),
            lab: tree_ticks(lab),
            reaped,
            server: postmaster.map_or(0.0, tree_ticks),
            kernel: kernel_ticks(),
            postmaster,
            began: Instant::now(),
        }
    }

    /// Closes it. Children started in it must have been waited for.
    #[must_use]
    pub fn close(self) -> Shares {
        let now = Self::open(self.postmaster);
        let total = (now.processor.total() - self.processor.total()).max(1.0);
        let busy = now.processor.busy() - self.processor.busy();
        let client = now.reaped - self.reaped;
        let lab = now.lab - self.lab;
        let server = (now.server - self.server).max(0.0);
        let kernel = now.kernel - self.kernel;
        let steal = now.processor.stolen() - self.processor.stolen();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let seconds = self.began.elapsed().as_secs_f64().max(1e-3);
        let ticks_per_second = real_u64(rustix::param::clock_ticks_per_second());
        let whole = (crate::number::real(cores) * seconds * ticks_per_second).max(total * 0.5);
        Shares {
            busy: busy / whole,
            server: server / whole,
            client: client / whole,
            foreign: ((busy - steal - lab - server - kernel) / whole).max(0.0),
            steal: steal / whole,
            client_seconds: client / ticks_per_second,
            server_seconds: server / ticks_per_second,
        }
    }
}
