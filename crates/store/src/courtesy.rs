//! Letting others go first: between two small pieces of its work, a command that gives way looks whether somebody waits for
//! a processor, and rests while that is so.
//!
//! The kernel's policy for idle threads does that by itself within one group of processes only (control groups; sessions,
//! sched(7), "The autogroup feature"). A server is mostly in another group than a backup, and then its processes wait for
//! a whole slice of the scheduler, some milliseconds, where a transaction takes less than one. A piece here takes a fraction of a
//! millisecond. What is stored goes to the disk in pieces as well: who waits for WAL to be durable waits behind one of
//! them, and not behind a pack.
//!
//! Where others use next to nothing of the processors nobody rests: of two threads that want the same processor then, one is
//! this process's own or passes by.
//!
//! It concerns the process as a whole, and everybody's work comes to an end: no rest is longer than was said at the beginning.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};
use tracing::debug;

/// What is written at once: a fast disk has it durable in half a millisecond.
pub(crate) const PIECE_BYTES: usize = 512 << 10;

/// Between two looks. Threads that were waiting have their processors after that.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The longest rest in microseconds; 0 when nobody rests.
static MOST: AtomicU64 = AtomicU64::new(0);

/// Looks are counted for so long at a time. The system counts processor time in hundredths of a second.
const WINDOW: Duration = Duration::from_millis(200);

/// Percent of all processors' time: when others use less, nobody is in their way.
const OTHERS_USE: u64 = 10;

/// Of a hundred looks, in how many somebody waits when others use the processors, and when they do no longer.
const BUSY: u64 = 5;
const QUIET: u64 = 1;

/// While others use the processors a piece is followed by a pause so many times as long: most of what they do then meets
/// nobody, and a whole backup takes some four times the processor time that it needs.
const PAUSES: u32 = 3;

/// A piece that took longer has waited for a disk, and took no processor meanwhile.
const LONGEST_PIECE: Duration = Duration::from_millis(1);

/// How often threads looked in this window, and how often somebody waited.
static LOOKS: AtomicU64 = AtomicU64::new(0);
static CROWDED: AtomicU64 = AtomicU64::new(0);

/// Of a hundred looks of the last window, in how many somebody waited; [`NOBODY`] when none was made.
static SHARE: AtomicU64 = AtomicU64::new(NOBODY);
const NOBODY: u64 = u64::MAX;

/// Whether others used processors in the last window. As long as that is not known, they do.
static OTHERS_WORK: AtomicBool = AtomicBool::new(true);

/// Whether each piece is followed by a pause, because others want the processors.
static IS_PACED: AtomicBool = AtomicBool::new(false);

/// The window that is open: since when, and what the processors had done until then.
static WINDOW_BEGAN: Mutex<Option<(Instant, Option<Spent>)>> = Mutex::new(None);

thread_local! {
    /// When the piece of work began that this thread is at.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// From now on threads of this process that [`rest`] do so for at most `most` each time.
pub fn begin(most: Duration) {
    let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    MOST.store(micros, Ordering::Relaxed);
    if !most.is_zero() {
        take_stock();
    }
}

/// Whether threads of this process rest.
#[must_use]
pub fn is_practised() -> bool {
    MOST.load(Ordering::Relaxed) > 0
}

/// Of a hundred looks a moment ago, in how many somebody waited for a processor; `None` when nobody looked.
#[must_use]
pub fn crowding() -> Option<u64> {
    take_stock();
    Some(SHARE.load(Ordering::Relaxed)).filter(|share| *share != NOBODY)
}

/// Ends the window when its time has come.
fn take_stock() {
    let Ok(mut window) = WINDOW_BEGAN.try_lock() else {
        return;
    };
    if window.is_some_and(|(began, _)| began.elapsed() < WINDOW) {
        return;
    }
    let before = window.and_then(|(_, spent)| spent);
    let spent = Spent::until_now();
    *window = Some((Instant::now(), spent));
    let others = before
        .zip(spent)
        .and_then(|(before, now)| now.by_others_since(before));
    let others_work = others.is_none_or(|others| others >= OTHERS_USE);
    if OTHERS_WORK.swap(others_work, Ordering::Relaxed) != others_work {
        debug!(?others, others_work, "percent of the processors' time");
    }
    let looks = LOOKS.swap(0, Ordering::Relaxed);
    let crowded = CROWDED.swap(0, Ordering::Relaxed);
    let share = (crowded * 100).checked_div(looks).unwrap_or(NOBODY);
    SHARE.store(share, Ordering::Relaxed);
    match share {
        NOBODY | 0..QUIET => IS_PACED.store(false, Ordering::Relaxed),
        BUSY.. => IS_PACED.store(true, Ordering::Relaxed),
        _ => {}
    }
}

/// Processor time since the machine and this process were started.
#[derive(Clone, Copy, Debug)]
struct Spent {
    /// Of all processors, idle or not.
    all: Duration,
    /// Of it, what threads took: users' and the kernel's own. Interrupts are nobody's.
    threads: Duration,
    /// Of that, what this process took.
    own: Duration,
}

impl Spent {
    fn until_now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let (all, threads) = processor_time(&text, clock_ticks_per_second())?;
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own = Duration::try_from(own).ok()?;
        Some(Self { all, threads, own })
    }

    /// Percent of all processors' time that other processes took since then.
    fn by_others_since(self, before: Self) -> Option<u64> {
        let all = self.all.checked_sub(before.all)?.as_micros();
        let threads = self.threads.checked_sub(before.threads)?;
        let others = threads.saturating_sub(self.own.checked_sub(before.own)?);
        u64::try_from((others.as_micros() * 100).checked_div(all)?).ok()
    }
}

/// All time of all processors, and what of it threads took (proc_stat(5), the line `cpu`: user, nice, system, idle, iowait, irq,
/// softirq, steal).
fn processor_time(stat: &str, ticks_a_second: u64) -> Option<(Duration, Duration)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields = line.split_ascii_whitespace().take(8).map(str::parse::<u64>);
    let ticks: Vec<u64> = fields.collect::<Result<_, _>>().ok()?;
    let time = |ticks: &[u64]| {
        let sum: u64 = ticks.iter().sum();
        let micros = sum.checked_mul(1_000_000)?.checked_div(ticks_a_second)?;
        Some(Duration::from_micros(micros))
    };
    Some((time(&ticks)?, time(ticks.get(..3)?)?))
}

/// Between two pieces of work: returns when everybody who wants a processor has one, or after a while; and while others want
/// the processors, after a pause that depends on how long the piece took.
pub fn rest() {
    let most = Duration::from_micros(MOST.load(Ordering::Relaxed));
    if most.is_zero() {
        return;
    }
    take_stock();
    if OTHERS_WORK.load(Ordering::Relaxed) {
        rest_beside_others(most);
    }
    BEGAN.set(Some(Instant::now()));
}

fn rest_beside_others(most: Duration) {
    let now = Instant::now();
    let piece = BEGAN.get().map_or(Duration::ZERO, |began| now - began);
    LOOKS.fetch_add(1, Ordering::Relaxed);
    if is_crowded() {
        CROWDED.fetch_add(1, Ordering::Relaxed);
        loop {
            thread::sleep(LOOK_AGAIN);
            if now.elapsed() >= most || !is_crowded() {
                break;
            }
        }
    }
    if IS_PACED.load(Ordering::Relaxed) {
        thread::sleep((piece.min(LONGEST_PIECE) * PAUSES).min(most));
    }
}

/// Writes all of `bytes` at the end of `file`; in pieces, each on its way to the disk before the next, when others work and go first.
pub(crate) fn write(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    if !is_practised() || !OTHERS_WORK.load(Ordering::Relaxed) {
        return file.write_all(bytes);
    }
    for piece in bytes.chunks(PIECE_BYTES) {
        let from = file.stream_position()?;
        file.write_all(piece)?;
        write_back(file, from)?;
        rest();
    }
    Ok(())
}

/// Waits until what was written from there on is on the disk. It makes nothing durable: that needs more than the data.
fn write_back(file: &File, from: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let from = i64::try_from(from).map_err(io::Error::other)?;
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it takes numbers, of a file that is open.
    #[allow(unsafe_code, reason = "no crate that we use has a word for it")]
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), from, 0, flags) };
    match done {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // File systems that have no such thing. The sync at the end says what there is to say.
            error
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE)
                ) =>
            {
                Ok(())
            }
            error => Err(error),
        },
    }
}

/// Whether more threads want a processor than there are processors.
fn is_crowded() -> bool {
    static PROCESSORS: OnceLock<Option<(File, u64)>> = OnceLock::new();
    let known = PROCESSORS.get_or_init(|| {
        let load = File::open("/proc/loadavg").ok()?;
        let online = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
        Some((load, count(&online)?))
    });
    let Some((load, processors)) = known else {
        return false;
    };
    let mut text = [0; 64];
    let read = load.read_at(&mut text, 0).unwrap_or(0);
    let running = runnable(&String::from_utf8_lossy(&text[..read]));
    running.is_some_and(|running| running > *processors)
}

/// Threads that run or wait for a processor (proc_loadavg(5), the fourth field).
fn runnable(loadavg: &str) -> Option<u64> {
    let field = loadavg.split_ascii_whitespace().nth(3)?;
    field.split_once('/')?.0.parse().ok()
}

/// How many numbers a list like `0-3,8` has.
fn count(list: &str) -> Option<u64> {
    let mut count = 0;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn who_wants_a_processor_is_read_of_the_system() {
        assert_eq!(runnable("0.20 0.18 0.12 3/880 10347\n"), Some(3));
        for wrong in ["", "0.20 0.18", "0.2 0.1 0.1 x/8 1", "0.2 0.1 0.1 3 1"] {
            assert_eq!(runnable(wrong), None, "{wrong}");
        }
        assert_eq!(count("0-1\n"), Some(2));
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        assert_eq!(count("3-1"), None);
        assert_eq!(count(""), None);
        assert!(runnable(&fs::read_to_string("/proc/loadavg").unwrap()).is_some());
    }

    #[test]
    fn what_others_take_of_the_processors_is_read_of_the_system() {
        let second = |count| Some(Duration::from_secs(count));
        let of = |stat: &str| processor_time(stat, 100);
        let line = "cpu  1000 200 300 8000 100 50 50 300 9999 9999\ncpu0 1 2 3\n";
        assert_eq!(of(line), second(100).zip(second(15)));
        for wrong in ["", "cpu0 1 2 3 4", "cpu  1 2", "cpu  1 2 x 4"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let spent = |all, threads, own| {
            let [all, threads, own] = [all, threads, own].map(Duration::from_millis);
            Spent { all, threads, own }
        };
        let before = spent(1000, 500, 400);
        for (all, threads, own, others) in [
            (1400, 900, 800, Some(0)),
            (1400, 900, 700, Some(25)),
            // The system rounds.
            (1400, 890, 800, Some(0)),
            (1000, 500, 400, None),
            (900, 500, 400, None),
        ] {
            let now = spent(all, threads, own);
            assert_eq!(now.by_others_since(before), others, "{now:?}");
        }
        let now = Spent::until_now().unwrap();
        assert!(now.all >= now.threads && now.threads >= now.own / 2);
    }

    /// Processes that want a processor each, also when an assertion fails no longer than this lives.
    struct Spinning(Vec<Child>);

    impl Spinning {
        fn start(count: usize) -> Self {
            let spin = || {
                Command::new("sh")
                    .args(["-c", "while :; do :; done"])
                    .spawn()
            };
            Self((0..count).map(|_| spin().unwrap()).collect())
        }
    }

    impl Drop for Spinning {
        fn drop(&mut self) {
            for process in &mut self.0 {
                let _ = process.kill().and_then(|()| process.wait());
            }
        }
    }

    #[test]
    fn a_rest_ends_on_a_machine_that_is_always_busy() {
        // One process, and so one setting: both are tried here.
        assert!(!is_practised());
        let began = Instant::now();
        rest();
        assert!(began.elapsed() < Duration::from_secs(5));
        let mut file = tempfile::tempfile().unwrap();
        let bytes = vec![7; 3 * PIECE_BYTES + 11];
        write(&file, &bytes).unwrap();
        begin(Duration::from_millis(2));
        // Others, as this process's own threads are nobody in the way.
        let threads = thread::available_parallelism().unwrap().get() + 2;
        let others = Spinning::start(threads);
        assert_eq!(crowding(), None);
        for _ in 0..3 {
            rest();
            thread::sleep(WINDOW);
        }
        rest();
        assert!(OTHERS_WORK.load(Ordering::Relaxed));
        assert!(crowding().is_some_and(|share| share > 0));
        assert!(IS_PACED.load(Ordering::Relaxed));
        write(&file, &bytes).unwrap();
        drop(others);
        begin(Duration::ZERO);
        let mut read = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, [&bytes[..], &bytes].concat());
    }
}
