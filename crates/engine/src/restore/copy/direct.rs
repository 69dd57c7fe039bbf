//! Writing large new files past the page cache, by threads of their own.
//!
//! A buffered write copies each byte into a page that the kernel has to find, and to write back later. A direct one
//! (open(2), `O_DIRECT`) takes the bytes where they lie, drives nothing out of the cache, and returns when the disk has them. So
//! a worker hands a region over when it has gathered it, and goes on with an empty one
//! ([ADR 39](../../../../../docs/adr/0039-restored-files-bypass-the-page-cache.md)).

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pgstrata_store::direct::{self, ALIGNMENT_BYTES};
use pgstrata_store::error::{Error, Kind, Result};
use rustix::fs::{Advice, OFlags, fadvise};
use tracing::info;

use super::region::Gathered;
use crate::restore::place::claim::Root;

/// Most regions on their way to the disk: more keep no disk busier, and each may keep one file more open.
const MOST_UNDERWAY: usize = 8;

/// Whether new files of `root` may be written past the page cache; if not, says so.
pub(super) fn is_for(root: &Root) -> bool {
    let is_known = direct::is_known(&root.dir);
    if !is_known {
        info!(
            "the files of \"{}\" are written through the page cache: its file system is neither ext4 nor XFS",
            root.path.display()
        );
    }
    is_known
}

/// Whether all bytes of a file of this size can be written so.
pub(super) fn takes_size(size_bytes: u64) -> bool {
    u64::try_from(ALIGNMENT_BYTES).is_ok_and(|alignment| size_bytes.is_multiple_of(alignment))
}

/// A file that is written at positions, past the page cache as long as its file system lets it.
pub(super) struct PositionedFile {
    file: File,
    is_direct: AtomicBool,
}

impl PositionedFile {
    /// Opens it by `open`, so that it is written past the page cache if that is wanted and can be.
    pub(super) fn open(
        past_cache: bool,
        open: impl Fn(OFlags) -> io::Result<File>,
    ) -> io::Result<Self> {
        let opened = past_cache.then(|| open(OFlags::WRONLY | OFlags::DIRECT));
        let file = match opened {
            Some(Err(error)) if error.kind() != io::ErrorKind::InvalidInput => return Err(error),
            Some(Ok(file)) => Some(file),
            Some(Err(_)) | None => None,
        };
        Ok(Self {
            is_direct: file.is_some().into(),
            file: file.map_or_else(|| open(OFlags::WRONLY), Ok)?,
        })
    }

    /// Whether it is written past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Relaxed)
    }

    /// Writes all of `bytes`. When the kernel refuses how they lie, the file is written as others are from then on. Returns
    /// whether they went past the page cache.
    pub(super) fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<bool> {
        if !self.is_direct() {
            return self.file.write_all_at(bytes, offset).map(|()| false);
        }
        let went_past = direct::write_all_at(&self.file, bytes, offset)?;
        if !went_past {
            self.is_direct.store(false, Ordering::Relaxed);
        }
        Ok(went_past)
    }

    /// Asks the system to begin writing back what it has in the page cache.
    pub(super) fn begin_writeback(&self) {
        // On Linux this starts writeback and drops what is already clean. Advice is free to fail.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }
}

/// Full regions on their way to threads that write them, each with what it belongs to, and empty ones on their way back.
pub(super) struct Handover<T> {
    state: Mutex<Underway<T>>,
    changed: Condvar,
    region_bytes: usize,
}

struct Underway<T> {
    full: VecDeque<(T, Gathered)>,
    empty: Vec<Gathered>,
    /// Empty ones that may still be made, and those that were.
    unmade: usize,
    made: usize,
    /// More may come.
    is_open: bool,
    /// Threads that write.
    writers: usize,
    failure: Option<Error>,
}

/// A thread that writes what is handed over; dropped when it does so no more.
pub(super) struct RegionWriter<'h, T> {
    handover: &'h Handover<T>,
}

/// Dropped when nothing more is handed over, whatever the reason.
pub(super) struct HandoverEnd<'h, T> {
    handover: &'h Handover<T>,
}

impl<T> Handover<T> {
    /// For so many workers, each with a region of `region_bytes` of its own.
    pub(super) fn new(workers: usize, region_bytes: usize) -> Self {
        let most = workers.clamp(1, MOST_UNDERWAY);
        Self {
            state: Mutex::new(Underway {
                full: VecDeque::new(),
                empty: Vec::new(),
                unmade: most,
                made: 0,
                is_open: true,
                writers: most,
                failure: None,
            }),
            changed: Condvar::new(),
            region_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Underway<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'g>(&self, state: MutexGuard<'g, Underway<T>>) -> MutexGuard<'g, Underway<T>> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// How many threads shall write.
    pub(super) fn writers(&self) -> usize {
        self.lock().writers
    }

    /// One of these threads, which must be made, and may be dropped without having worked.
    pub(super) fn writer(&self) -> RegionWriter<'_, T> {
        RegionWriter { handover: self }
    }

    /// What says that nothing more comes.
    pub(super) fn end(&self) -> HandoverEnd<'_, T> {
        HandoverEnd { handover: self }
    }

    /// Hands what was gathered over, with what it belongs to, and leaves an empty region in its place; waits until there is one.
    ///
    /// # Errors
    /// When writing has failed; why, [`Self::outcome`] says.
    pub(super) fn give(&self, of: T, gathered: &mut Gathered) -> Result<()> {
        let mut state = self.lock();
        let empty = loop {
            if state.failure.is_some() || state.writers == 0 {
                return Err(Error::new(Kind::Interrupted, "writing has stopped"));
            }
            if let Some(empty) = state.empty.pop() {
                break empty;
            }
            if state.unmade > 0 {
                match Gathered::new(self.region_bytes) {
                    Ok(region) => {
                        state.unmade -= 1;
                        state.made += 1;
                        break region;
                    }
                    // Those that there are will do.
                    Err(error) if state.made > 0 => {
                        tracing::debug!(%error, "there is no memory for another region");
                        state.unmade = 0;
                    }
                    Err(error) => {
                        state.failure.get_or_insert(error);
                        self.changed.notify_all();
                    }
                }
                continue;
            }
            state = self.wait(state);
        };
        let full = std::mem::replace(gathered, empty);
        state.full.push_back((of, full));
        self.changed.notify_all();
        Ok(())
    }

    /// Whether all that was handed over has been written; for when the threads have ended.
    ///
    /// # Errors
    /// The first error of any of them.
    pub(super) fn outcome(self) -> Result<()> {
        let state = self.state.into_inner();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        match state.failure {
            Some(failure) => Err(failure),
            None if state.full.is_empty() => Ok(()),
            None => Err(Error::new(Kind::Interrupted, "writing has stopped")),
        }
    }
}

impl<T> RegionWriter<'_, T> {
    /// Gives all that is handed over to `write`, which leaves it empty, until nothing more comes.
    pub(super) fn work(self, write: impl Fn(&T, &mut Gathered) -> Result<()>) {
        let mut state = self.handover.lock();
        loop {
            let Some((of, mut gathered)) = state.full.pop_front() else {
                if !state.is_open {
                    return;
                }
                state = self.handover.wait(state);
                continue;
            };
            let failed = state.failure.is_some();
            drop(state);
            // After a failure it is given back all the same: a worker may wait for it.
            let written = match failed {
                true => Ok(()),
                false => write(&of, &mut gathered),
            };
            // What it belongs to is let go while nobody waits for the lock: that may close a file.
            drop(of);
            gathered.clear();
            state = self.handover.lock();
            state.empty.push(gathered);
            if let Err(error) = written {
                state.failure.get_or_insert(error);
            }
            self.handover.changed.notify_all();
        }
    }
}

impl<T> Drop for RegionWriter<'_, T> {
    /// Also when it has panicked: workers must not wait for ever.
    fn drop(&mut self) {
        self.handover.lock().writers -= 1;
        self.handover.changed.notify_all();
    }
}

impl<T> Drop for HandoverEnd<'_, T> {
    fn drop(&mut self) {
        self.handover.lock().is_open = false;
        self.handover.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgstrata_store::direct::AlignedBytes;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    const REGION_BYTES: usize = 16 << 10;

    /// Hands `count` regions over to threads that run `write`; returns what became of it, and how many were taken.
    fn handed_over(
        count: usize,
        write: impl Fn(usize) -> Result<()> + Sync,
    ) -> (Result<()>, usize) {
        let handover = Handover::new(2, REGION_BYTES);
        let taken = AtomicUsize::new(0);
        let given = thread::scope(|scope| {
            for _ in 0..handover.writers() {
                let writer = handover.writer();
                scope.spawn(|| {
                    writer.work(|number: &usize, gathered| {
                        let expected = u8::try_from(*number % 256).unwrap();
                        let mut runs = Vec::new();
                        let run = |_, bytes: &[u8]| {
                            runs.extend_from_slice(bytes);
                            Ok(())
                        };
                        gathered.write(run).unwrap();
                        assert_eq!(runs, [expected]);
                        taken.fetch_add(1, Ordering::Relaxed);
                        write(*number)
                    });
                });
            }
            let _end = handover.end();
            let mut gathered = Gathered::new(REGION_BYTES).unwrap();
            (0..count).try_for_each(|number| {
                gathered.place(0, &[u8::try_from(number % 256).unwrap()]);
                handover.give(number, &mut gathered)
            })
        });
        (handover.outcome().and(given), taken.into_inner())
    }

    #[test]
    fn every_region_is_written_once() {
        let (outcome, taken) = handed_over(1000, |_| Ok(()));
        outcome.unwrap();
        assert_eq!(taken, 1000);
    }

    #[test]
    fn the_first_failure_is_told_and_nobody_waits_for_ever() {
        let (outcome, taken) = handed_over(1000, |number| match number {
            7 => Err(Error::new(Kind::File, "the disk is full")),
            _ => Ok(()),
        });
        assert_eq!(outcome.unwrap_err().to_string(), "the disk is full");
        assert!(taken < 1000);
    }

    /// More workers than regions, and no memory for any of them.
    #[test]
    fn nobody_waits_for_a_region_that_cannot_be_had() {
        let workers = 2 * MOST_UNDERWAY;
        let handover = Handover::new(workers, 1 << 47);
        thread::scope(|scope| {
            for _ in 0..handover.writers() {
                let writer = handover.writer();
                scope.spawn(|| writer.work(|_: &usize, _| Ok(())));
            }
            let giving: Vec<_> = (0..workers)
                .map(|number| {
                    let handover = &handover;
                    scope.spawn(move || {
                        let mut gathered = Gathered::new(REGION_BYTES).unwrap();
                        handover.give(number, &mut gathered)
                    })
                })
                .collect();
            let _end = handover.end();
            for given in giving {
                assert!(given.join().unwrap().is_err());
            }
        });
        let error = handover.outcome().unwrap_err();
        assert_ne!(error.kind(), Kind::Interrupted, "{error}");
    }

    #[test]
    fn bytes_that_lie_anywhere_are_written_to_a_file_of_any_kind() {
        for directory in [std::env::temp_dir(), "/var/tmp".into(), "/dev/shm".into()] {
            let directory = tempfile::tempdir_in(directory).unwrap();
            let path = directory.path().join("file");
            File::create(&path).unwrap().set_len(64 << 10).unwrap();
            let open =
                |flags| Ok(rustix::fs::open(&path, flags, rustix::fs::Mode::empty())?.into());
            let file = PositionedFile::open(true, open).unwrap();
            let mut bytes = AlignedBytes::new(24 << 10).unwrap();
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = u8::try_from(at % 251).unwrap();
            }
            file.write_all_at(&bytes[..16 << 10], 8 << 10).unwrap();
            // In memory it begins anywhere; then it has a length that only a buffered write takes.
            file.write_all_at(&bytes[1..8193], 32 << 10).unwrap();
            file.write_all_at(&bytes[5..105], 48 << 10).unwrap();
            let mut expected = vec![0; 64 << 10];
            expected[8 << 10..24 << 10].copy_from_slice(&bytes[..16 << 10]);
            expected[32 << 10..40 << 10].copy_from_slice(&bytes[1..8193]);
            expected[48 << 10..(48 << 10) + 100].copy_from_slice(&bytes[5..105]);
            assert!(std::fs::read(&path).unwrap() == expected);
        }
    }
}
