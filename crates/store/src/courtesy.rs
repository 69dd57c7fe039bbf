//! Letting others go first: between two small pieces of its work, a command that gives way looks whether somebody waits for
//! a processor, and rests while that is so.
//!
//! The kernel's policy for idle threads does that by itself within one group of processes only (control groups; sessions,
//! sched(7), "The autogroup feature"). A server is mostly in another group than a backup, and then its processes wait for
//! a whole slice of the scheduler, some milliseconds, where a transaction takes less than one. A piece here takes a fraction of a
//! millisecond. What is stored goes to the disk in pieces as well: who waits for WAL to be durable waits behind one of
//! them, and not behind a pack.
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

/// What is written at once: a fast disk has it durable in half a millisecond.
const PIECE_BYTES: usize = 512 << 10;

/// Between two looks. Threads that were waiting have their processors after that.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The longest rest in microseconds; 0 when nobody rests.
static MOST: AtomicU64 = AtomicU64::new(0);

/// Looks are counted for so long at a time.
const WINDOW: Duration = Duration::from_millis(100);

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

/// Whether others use the processors.
static IS_PACED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// When the piece of work began that this thread is at.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// From now on threads of this process that [`rest`] do so for at most `most` each time.
pub fn begin(most: Duration) {
    let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    MOST.store(micros, Ordering::Relaxed);
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
    static OPENED: Mutex<Option<Instant>> = Mutex::new(None);
    if let Ok(mut opened) = OPENED.try_lock()
        && opened.is_none_or(|opened| opened.elapsed() >= WINDOW)
    {
        *opened = Some(Instant::now());
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
}

/// Between two pieces of work: returns when everybody who wants a processor has one, or after a while; and while others use
/// the processors, after a pause that depends on how long the piece took.
pub fn rest() {
    let most = Duration::from_micros(MOST.load(Ordering::Relaxed));
    if most.is_zero() {
        return;
    }
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
    take_stock();
    if IS_PACED.load(Ordering::Relaxed) {
        thread::sleep((piece.min(LONGEST_PIECE) * PAUSES).min(most));
    }
    BEGAN.set(Some(Instant::now()));
}

/// Writes all of `bytes` at the end of `file`; in pieces, each on its way to the disk before the next, when others go first.
pub(crate) fn write(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    if !is_practised() {
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
        let busy = std::sync::atomic::AtomicBool::new(true);
        thread::scope(|scope| {
            let spin = || {
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let threads = thread::available_parallelism().unwrap().get() + 2;
            (0..threads).for_each(|_| drop(scope.spawn(spin)));
            assert_eq!(crowding(), None);
            for _ in 0..3 {
                rest();
            }
            thread::sleep(WINDOW);
            rest();
            assert!(crowding().is_some_and(|share| share > 0));
            assert!(IS_PACED.load(Ordering::Relaxed));
            write(&file, &bytes).unwrap();
            busy.store(false, Ordering::Relaxed);
        });
        begin(Duration::ZERO);
        let mut read = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, [&bytes[..], &bytes].concat());
    }
}
