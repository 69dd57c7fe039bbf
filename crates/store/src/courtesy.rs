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

/// [`Rests::in_vain`].
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Looks are counted for so long at a time. The system counts processor time in hundredths of a second.
const WINDOW: Duration = Duration::from_millis(200);

/// And for so long in the first window, which is over before there is anything to rest from. It tells little, so each is
/// twice as long as the one before it.
const FIRST_WINDOW: Duration = Duration::from_millis(20);

/// Percent of all processors' time: when others use less, nobody is in their way.
const OTHERS_USE: u64 = 10;

/// Of a hundred looks, in how many somebody waits when others use the processors, and when they do no longer.
const BUSY: u64 = 5;
const QUIET: u64 = 1;

/// Of a hundred looks, in how many somebody waits where it is of no use to wait for the end of it: then a backup costs others the
/// same processor time, however slowly it takes it.
const ALWAYS: u64 = 95;

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

/// Whether others who are not nice used processors in the last window. As long as that is not known, they do.
static OTHERS_WORK: AtomicBool = AtomicBool::new(true);

/// Whether each piece is followed by a pause, because others want the processors. As long as that is not known, they do.
static IS_PACED: AtomicBool = AtomicBool::new(true);

/// The window that is open.
static WINDOW_OPEN: Mutex<Option<OpenWindow>> = Mutex::new(None);

#[derive(Clone, Copy, Debug)]
struct OpenWindow {
    began: Instant,
    length: Duration,
    /// What the processors had done until it began.
    spent: Option<Spent>,
}

thread_local! {
    /// When the piece of work began that this thread is at.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How threads rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rests {
    /// No rest is longer; zero: there is none.
    pub longest: Duration,
    /// Whether a rest waits for the end of a crowd that does not end, too: one that is seen in 95 of 100 looks. Otherwise it is a pause there.
    pub in_vain: bool,
}

impl Rests {
    /// None at all.
    pub const NONE: Self = Self {
        longest: Duration::ZERO,
        in_vain: false,
    };
}

/// From now on threads of this process that [`rest`] do so in this way.
pub fn begin(rests: Rests) {
    let micros = u64::try_from(rests.longest.as_micros()).unwrap_or(u64::MAX);
    MOST.store(micros, Ordering::Relaxed);
    IN_VAIN.store(rests.in_vain, Ordering::Relaxed);
    if !rests.longest.is_zero() {
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

/// Whether a worker too many is in the way of others, as far as is known before anybody has looked.
#[must_use]
pub fn has_company() -> bool {
    if !is_practised() {
        return false;
    }
    take_stock();
    OTHERS_WORK.load(Ordering::Relaxed)
}

/// Ends the window when its time has come.
fn take_stock() {
    let Ok(mut window) = WINDOW_OPEN.try_lock() else {
        return;
    };
    let ended = *window;
    if ended.is_some_and(|ended| ended.began.elapsed() < ended.length) {
        return;
    }
    let before = ended.and_then(|ended| ended.spent);
    let spent = Spent::until_now(before);
    *window = Some(OpenWindow {
        began: Instant::now(),
        length: ended.map_or(FIRST_WINDOW, |ended| WINDOW.min(ended.length * 2)),
        spent,
    });
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
        NOBODY => IS_PACED.store(others_work, Ordering::Relaxed),
        0..QUIET => IS_PACED.store(false, Ordering::Relaxed),
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
    /// Of that, what threads took that are nice (nice(1)): they want to be in nobody's way.
    nice: Duration,
    /// What this process took of the time of threads.
    own: Duration,
    /// And of the time of nice ones.
    own_nice: Duration,
}

impl Spent {
    /// What was spent `before` saves the look at each thread where nobody nice took anything since then.
    fn until_now(before: Option<Self>) -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let ticks_a_second = clock_ticks_per_second();
        let now = Self::of_processors(&text, ticks_a_second)?;
        let own = clock_gettime(ClockId::ProcessCPUTime);
        Some(Self {
            own: Duration::try_from(own).ok()?,
            own_nice: match before {
                Some(before) if before.nice == now.nice => before.own_nice,
                _ => own_nice(ticks_a_second)?,
            },
            ..now
        })
    }

    /// From proc_stat(5), the line `cpu`: user, nice, system, idle, iowait, irq, softirq, steal.
    fn of_processors(stat: &str, ticks_a_second: u64) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields = line.split_ascii_whitespace().take(8).map(str::parse::<u64>);
        let ticks: Vec<u64> = fields.collect::<Result<_, _>>().ok()?;
        let time = |ticks: &[u64]| duration(ticks.iter().sum(), ticks_a_second);
        Some(Self {
            all: time(&ticks)?,
            threads: time(ticks.get(..3)?)?,
            nice: time(ticks.get(1..2)?)?,
            own: Duration::ZERO,
            own_nice: Duration::ZERO,
        })
    }

    /// Percent of all processors' time that other processes took since then, without those that are nice.
    fn by_others_since(self, before: Self) -> Option<u64> {
        let all = self.all.checked_sub(before.all)?.as_micros();
        let threads = self.threads.checked_sub(before.threads)?;
        let others = threads.saturating_sub(self.own.checked_sub(before.own)?);
        let nice = self.nice.checked_sub(before.nice)?;
        let nice = nice.saturating_sub(self.own_nice.saturating_sub(before.own_nice));
        let in_the_way = others.saturating_sub(nice).as_micros();
        u64::try_from((in_the_way * 100).checked_div(all)?).ok()
    }
}

fn duration(ticks: u64, ticks_a_second: u64) -> Option<Duration> {
    let micros = ticks.checked_mul(1_000_000)?.checked_div(ticks_a_second)?;
    Some(Duration::from_micros(micros))
}

/// What the nice ones of this process's threads took as users, as long as they live.
fn own_nice(ticks_a_second: u64) -> Option<Duration> {
    let mut ticks = 0;
    for thread in fs::read_dir("/proc/self/task").ok()?.flatten() {
        // It may have ended.
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        ticks += nice_ticks(&stat).unwrap_or(0);
    }
    duration(ticks, ticks_a_second)
}

/// The time that a thread took as a user, when it is nice (proc_pid_stat(5), fields 14 and 19).
fn nice_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    // The first of these is the third.
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let nice: i32 = fields.get(19 - 3)?.parse().ok()?;
    let user = fields.get(14 - 3)?.parse().ok()?;
    Some(if nice > 0 { user } else { 0 })
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
        let waits = IN_VAIN.load(Ordering::Relaxed) || may_end(SHARE.load(Ordering::Relaxed));
        while waits && now.elapsed() < most {
            thread::sleep(LOOK_AGAIN);
            if !is_crowded() {
                break;
            }
        }
    }
    if IS_PACED.load(Ordering::Relaxed) {
        thread::sleep((piece.min(LONGEST_PIECE) * PAUSES).min(most));
    }
}

/// Whether a crowd may come to an end in which somebody waited in so many of a hundred looks of the last window; where nobody
/// looked in that, it may.
fn may_end(share: u64) -> bool {
    !(ALWAYS..=100).contains(&share)
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
        let of = |stat: &str| Spent::of_processors(stat, 100);
        let line = "cpu  1000 200 300 8000 100 50 50 300 9999 9999\ncpu0 1 2 3\n";
        let read = of(line).unwrap();
        let seconds = [read.all, read.threads, read.nice].map(|time| time.as_secs());
        assert_eq!(seconds, [100, 15, 2]);
        for wrong in ["", "cpu0 1 2 3 4", "cpu  1 2", "cpu  1 2 x 4"] {
            assert!(of(wrong).is_none(), "{wrong}");
        }
        let spent = |all, threads, nice, own, own_nice| {
            let all = [all, threads, nice, own, own_nice].map(Duration::from_millis);
            let [all, threads, nice, own, own_nice] = all;
            Spent {
                all,
                threads,
                nice,
                own,
                own_nice,
            }
        };
        let before = spent(1000, 500, 100, 400, 50);
        for (all, threads, nice, own, own_nice, others) in [
            (1400, 900, 100, 800, 50, Some(0)),
            (1400, 900, 100, 700, 50, Some(25)),
            // Nice ones are not in the way, and our own are no others.
            (1400, 900, 200, 700, 50, Some(0)),
            (1400, 900, 200, 700, 150, Some(25)),
            (1400, 900, 180, 700, 90, Some(15)),
            // A nice thread of ours has ended.
            (1400, 900, 200, 700, 0, Some(0)),
            // The system rounds.
            (1400, 890, 100, 800, 50, Some(0)),
            (1000, 500, 100, 400, 50, None),
            (900, 500, 100, 400, 50, None),
        ] {
            let now = spent(all, threads, nice, own, own_nice);
            assert_eq!(now.by_others_since(before), others, "{now:?}");
        }
        let now = Spent::until_now(None).unwrap();
        assert!(now.all >= now.threads && now.threads >= now.own / 2);
        assert!(now.threads >= now.nice);
        let counted = Duration::from_secs(1 << 40);
        let now = Spent {
            own_nice: counted,
            ..now
        };
        let later = Spent::until_now(Some(now)).unwrap();
        assert_eq!(later.own_nice == counted, later.nice == now.nice);
    }

    #[test]
    fn a_crowd_that_nobody_has_seen_without_end_may_end() {
        for (share, ends) in [
            (0, true),
            (94, true),
            (95, false),
            (100, false),
            (NOBODY, true),
        ] {
            assert_eq!(may_end(share), ends, "{share}");
        }
    }

    #[test]
    fn the_time_of_a_nice_thread_is_read_of_the_system() {
        let line = |nice: &str| {
            format!("7 (a) b) S 1 7 7 0 -1 4194304 5 0 0 0 42 9 0 0 20 {nice} 1 0 99 0 0\n")
        };
        for (nice, ticks) in [
            ("0", Some(0)),
            ("-5", Some(0)),
            ("10", Some(42)),
            ("x", None),
        ] {
            assert_eq!(nice_ticks(&line(nice)), ticks, "{nice}");
        }
        assert_eq!(nice_ticks(""), None);
        let ours = fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert!(nice_ticks(&ours).is_some());
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
        assert!(!is_practised() && !has_company());
        let began = Instant::now();
        rest();
        assert!(began.elapsed() < Duration::from_secs(5));
        let mut file = tempfile::tempfile().unwrap();
        let bytes = vec![7; 3 * PIECE_BYTES + 11];
        write(&file, &bytes).unwrap();
        begin(Rests {
            longest: Duration::from_millis(2),
            in_vain: false,
        });
        // Others, as this process's own threads are nobody in the way.
        let threads = thread::available_parallelism().unwrap().get() + 2;
        let others = Spinning::start(threads);
        assert_eq!(crowding(), None);
        // Nothing is known yet.
        assert!(has_company() && IS_PACED.load(Ordering::Relaxed));
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
        begin(Rests::NONE);
        let mut read = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, [&bytes[..], &bytes].concat());
    }
}
