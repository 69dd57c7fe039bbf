//! Plain files: each is stored as it was at one moment, to its end.
//!
//! The size in the list is a hint. What PostgreSQL replaces by rename is one whole
//! version, because it is read through one descriptor. What is written in place is
//! read until it held still: unchanged in identity, size and times from before the
//! reading to after it, when the times are old enough to tell; else until it was read
//! twice with the same digest, some time apart, and unchanged in between. After
//! [`TRIES`] the [`Nature`] of the file decides.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pgstrata_layer::changeset::ReadPlan;
use pgstrata_layer::digest::ContentHasher;
use pgstrata_layer::entry::{BlockRun, FrameRef};
use pgstrata_layer::outside::is_outside;
use pgstrata_pgdata::relation::{BLOCK_SIZE, PathKind};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::SeekFrom;

use super::job::{Job, OpenFile, Outcome, block_bytes, open};
use super::read::{Worker, read_at};
use crate::server::outside::source_of;
use crate::server::scan::{frame_bytes_of, identity};

/// How often a file is read anew that does not hold still: for about a second.
const TRIES: u32 = 10;

/// A file of this size is read anew only once: what was stored of it before is waste.
const LARGE_BYTES: u64 = 64 << 20;
const TRIES_OF_LARGE: u32 = 2;

/// Longer than the clock of a file system's times takes to move on (1 to 10 ms on
/// Linux), and than an editor or the server needs between two writes of one file.
const QUIET: Duration = Duration::from_millis(100);

/// File systems without parts of a second have times of whole ones, or of every other.
const COARSE: Duration = Duration::from_secs(2);

/// What it means when a file does not hold still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nature {
    /// Replay brings it to its state at the end, whatever mixture of versions it starts
    /// from, as with pages of relations: SLRUs, and relation files of an odd size.
    Replayed,
    /// The server reads it: it is stored whole, or there is no backup.
    Needed,
    /// Anything else, such as a log: what was written while it was read may be missing.
    Foreign,
}

impl Nature {
    fn of(path: &str) -> Self {
        const REPLAYED: [&str; 3] = ["pg_xact", "pg_multixact", "pg_commit_ts"];
        // The rest of pg_logical serves slots, which no restore has.
        const NEEDED: [&str; 5] = ["base", "global", "pg_stat", "pg_tblspc", "pg_twophase"];
        let (first, below) = path.split_once('/').unwrap_or((path, ""));
        let is_relation = matches!(PathKind::of(path), PathKind::RelSegment(_));
        if is_relation || !below.is_empty() && REPLAYED.contains(&first) {
            Self::Replayed
        } else if ["PG_VERSION", "pg_logical/replorigin_checkpoint"].contains(&path)
            || path.ends_with(".conf")
            || is_outside(path)
            || !below.is_empty() && NEEDED.contains(&first)
        {
            Self::Needed
        } else {
            Self::Foreign
        }
    }
}

/// Everything that shows that a file was written, or is another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChangeStamp {
    identity: u64,
    inode: (u64, u64),
    size_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    links: u64,
}

impl ChangeStamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            identity: identity(metadata),
            inode: (metadata.dev(), metadata.ino()),
            size_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            links: metadata.nlink(),
        }
    }

    /// Whether a write from now on would show in the times: they are not of this moment,
    /// nor of the future.
    fn is_old(&self, now: SystemTime) -> bool {
        let newest = self.modified.max(self.changed);
        let coarse = self.modified.1 == 0 && self.changed.1 == 0;
        let wanted = if coarse { COARSE } else { QUIET };
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(newest.0), u32::try_from(newest.1)) else {
            return false;
        };
        let newest = UNIX_EPOCH + Duration::new(seconds, nanos);
        now.duration_since(newest).is_ok_and(|age| age > wanted)
    }
}

/// What a reading leaves in the packs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Nothing,
    Frames,
}

/// How much of a file is read, and what is kept of it.
#[derive(Clone, Copy)]
struct Portion {
    limit_bytes: u64,
    /// Of a frame, and read at once. By the size at this reading, which may be another one than the list's.
    frame_bytes: usize,
    store: Store,
}

impl Portion {
    fn compared(path: &str, limit_bytes: u64) -> Result<Self> {
        Ok(Self {
            limit_bytes,
            frame_bytes: frame_bytes_of(path, limit_bytes)?,
            store: Store::Nothing,
        })
    }

    fn stored(path: &str, limit_bytes: u64) -> Result<Self> {
        Ok(Self {
            store: Store::Frames,
            ..Self::compared(path, limit_bytes)?
        })
    }
}

/// A file as one reading from its beginning found it.
#[derive(Default)]
struct PlainVersion {
    size_bytes: u64,
    digest: [u8; 32],
    /// When it was stored.
    frames: Vec<FrameRef>,
}

impl PlainVersion {
    fn is_same(&self, other: &Self) -> bool {
        (self.size_bytes, self.digest) == (other.size_bytes, other.digest)
    }
}

/// What came of one try.
enum Try {
    /// As it was at one moment.
    Whole(PlainVersion),
    /// The same twice, and it was written meanwhile: of one moment, or twice the same mixture.
    Moving(PlainVersion),
    /// The file's beginning as it was at one moment: it grows.
    Beginning(PlainVersion),
    /// Bytes of several versions, perhaps.
    Torn(PlainVersion),
}

impl Worker<'_> {
    /// Stores a plain file, or refers to the parent for it.
    pub(crate) fn plain_file(&mut self, job: &Job) -> Result<Outcome> {
        let nature = Nature::of(&job.file.path);
        let mut outcome = Outcome::default();
        let tries = match job.file.size_bytes {
            LARGE_BYTES.. => TRIES_OF_LARGE,
            _ => TRIES,
        };
        for attempt in 1..=tries {
            let Some(open) = self.open_plain(job, nature)? else {
                outcome.gone = true;
                return Ok(outcome);
            };
            if self.is_as_in_parent(job, &open, &mut outcome)? {
                return Ok(outcome);
            }
            let found = self.read_once(job, &open, nature, &mut outcome)?;
            let last = attempt == tries;
            let replaced = || open.file.metadata().is_ok_and(|now| now.nlink() == 0);
            let reading = match found {
                Try::Whole(reading) => reading,
                // Nobody writes into the old version any more.
                Try::Moving(reading) if replaced() => reading,
                Try::Beginning(reading) if nature == Nature::Foreign => reading,
                Try::Torn(reading) if nature == Nature::Replayed => reading,
                Try::Moving(reading) | Try::Torn(reading) if last && nature == Nature::Foreign => {
                    outcome.was_torn = true;
                    reading
                }
                _ => {
                    thread::sleep(QUIET);
                    continue;
                }
            };
            outcome.of_version(&open)?;
            outcome.emptied = job.file.size_bytes > 0 && self.metadata(job, &open)?.len() == 0;
            outcome.size_bytes = reading.size_bytes;
            outcome.content_digest = Some(reading.digest);
            outcome.frames = reading.frames;
            return Ok(outcome);
        }
        Err(never_still(&job.file.path))
    }

    /// Opens the version that is there now. What was replaced in two steps, rather than by a
    /// rename over the old one, is missing in between.
    fn open_plain(&self, job: &Job, nature: Nature) -> Result<Option<OpenFile>> {
        let path = source_of(self.context.data_directory, &job.file.path);
        let found = open(&path, &job.file)?;
        // Without its directory it was dropped.
        let directory_is_there = || path.parent().is_some_and(Path::exists);
        if found.is_some() || nature != Nature::Needed || !directory_is_there() {
            return Ok(found);
        }
        thread::sleep(QUIET);
        open(&path, &job.file)
    }

    /// Whether the file has the parent's contents: then nothing is stored.
    fn is_as_in_parent(
        &mut self,
        job: &Job,
        open: &OpenFile,
        outcome: &mut Outcome,
    ) -> Result<bool> {
        let (ReadPlan::PlainByDigest, Some(parent)) = (&job.plan, job.parent_content) else {
            return Ok(false);
        };
        let metadata = self.metadata(job, open)?;
        // The plan says so of the listed size.
        if metadata.len() != job.file.size_bytes {
            return Ok(false);
        }
        let all = Portion::compared(&job.file.path, metadata.len())?;
        let reading = self.read_plain(job, open, all, outcome)?;
        // A mixture of versions that is, to the byte, an older version is no mixture.
        let same = reading.digest == parent && reading.size_bytes == metadata.len();
        if same {
            outcome.of_version(open)?;
            outcome.inherits = true;
            outcome.size_bytes = reading.size_bytes;
            outcome.content_digest = Some(parent);
        }
        Ok(same)
    }

    /// Reads and stores the file once; twice when its times do not show whether it held still.
    fn read_once(
        &mut self,
        job: &Job,
        open: &OpenFile,
        nature: Nature,
        outcome: &mut Outcome,
    ) -> Result<Try> {
        let path = &job.file.path;
        await_write(&open.file);
        let before = ChangeStamp::of(&self.metadata(job, open)?);
        if nature == Nature::Replayed || before.is_old(SystemTime::now()) {
            let all = Portion::stored(path, before.size_bytes)?;
            let reading = self.read_plain(job, open, all, outcome)?;
            let after = ChangeStamp::of(&self.metadata(job, open)?);
            return Ok(if after == before {
                Try::Whole(reading)
            } else {
                Try::Torn(reading)
            });
        }
        let all = Portion::compared(path, before.size_bytes)?;
        let first = self.read_plain(job, open, all, outcome)?;
        await_write(&open.file);
        let between = ChangeStamp::of(&self.metadata(job, open)?);
        thread::sleep(QUIET);
        // What it has grown by is not read: a second reading of the same bytes tells whether
        // the first was of one moment, and a file that always grows has no end.
        let same = Portion::stored(path, first.size_bytes)?;
        let second = self.read_plain(job, open, same, outcome)?;
        let after = ChangeStamp::of(&self.metadata(job, open)?);
        Ok(if !second.is_same(&first) {
            Try::Torn(second)
        } else if between.size_bytes != first.size_bytes {
            Try::Beginning(second)
        } else if after == between || after.size_bytes > first.size_bytes {
            // What was added since is of a later moment.
            Try::Whole(second)
        } else {
            Try::Moving(second)
        })
    }

    /// Reads the file up to the limit of `part`, or to its end when that comes first.
    fn read_plain(
        &mut self,
        job: &Job,
        open: &OpenFile,
        part: Portion,
        outcome: &mut Outcome,
    ) -> Result<PlainVersion> {
        let mut reading = PlainVersion::default();
        let mut hasher = ContentHasher::new();
        self.buffer
            .resize(self.buffer.len().max(part.frame_bytes), 0);
        while reading.size_bytes < part.limit_bytes {
            if self.context.abort.is_raised() {
                return Err(Error::new(Kind::Interrupted, "the backup was stopped"));
            }
            let left = usize::try_from(part.limit_bytes - reading.size_bytes).unwrap_or(usize::MAX);
            let wanted = left.min(part.frame_bytes);
            self.context.limiter.wait(wanted, self.context.abort);
            let read = read_at(&open.file, &mut self.buffer[..wanted], reading.size_bytes)
                .context(|| format!("could not read \"{}\"", job.file.path))?;
            hasher.update(&self.buffer[..read]);
            if part.store == Store::Frames && read > 0 {
                let run = BlockRun {
                    start: block_of(reading.size_bytes),
                    count: u32::try_from(read.div_ceil(BLOCK_SIZE)).expect("a frame is small"),
                };
                let frame =
                    self.packs
                        .encode(&mut self.encoder, &self.buffer[..read], vec![run])?;
                reading.frames.push(frame);
            }
            let read_bytes = u64::try_from(read).expect("usize has 64 bits");
            outcome.bytes_read += read_bytes;
            reading.size_bytes += read_bytes;
            if read < wanted {
                // The file's end; a partial block can only be the last.
                break;
            }
        }
        reading.digest = hasher.finish();
        Ok(reading)
    }

    fn metadata(&self, job: &Job, open: &OpenFile) -> Result<Metadata> {
        let about = || format!("could not look at \"{}\"", job.file.path);
        open.file.metadata().context(about)
    }
}

impl Outcome {
    /// Notes which version of the file it is of.
    fn of_version(&mut self, open: &OpenFile) -> Result<()> {
        let about = || "could not look at an open file".to_owned();
        let metadata = open.file.metadata().context(about)?;
        self.identity = open.identity;
        self.attributes = Some((metadata.mode() & 0o7777, metadata.mtime()));
        Ok(())
    }
}

/// Waits for the end of a write that is under way. Its writer may have been stopped within it for longer than any
/// pause, and its times are those of its beginning. A write holds the inode's lock, which looking for data takes (ext4,
/// Btrfs, tmpfs, overlayfs); where it does not, reading takes it (XFS).
fn await_write(file: &File) {
    // Of no interest is what it finds, and whether the file system can look.
    let _ = rustix::fs::seek(file, SeekFrom::Data(0));
}

fn never_still(path: &str) -> Error {
    Error::new(
        Kind::File,
        format!("could not back up \"{path}\": it changed whenever it was read"),
    )
    .hint("find out what keeps writing to it, and run the backup again")
}

fn block_of(position: u64) -> u32 {
    u32::try_from(position / block_bytes()).expect("what is so large was refused")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use pgstrata_layer::frame::{Codec, MAX_RAW_BYTES};
    use pgstrata_layer::index::{LARGE_PLAIN_BYTES, MAX_PLAIN_BYTES};
    use pgstrata_layer::keys::ClusterName;
    use pgstrata_layer::label::Label;
    use pgstrata_pgdata::{Lsn, Major};
    use pgstrata_store::cluster::ClusterRepository;
    use pgstrata_store::keys::LayerSeal;
    use pgstrata_store::progress::Progress;
    use pgstrata_store::repository::Repository;
    use tokio::runtime::Runtime;

    use super::*;
    use crate::backup::abort::Abort;
    use crate::backup::copy::cache::PageCache;
    use crate::backup::copy::check::PageCheck;
    use crate::backup::copy::limiter::Limiter;
    use crate::backup::copy::read::WorkerContext;
    use crate::frames::LayerWriter;
    use crate::server::ScannedFile;
    use crate::server::scan::scan;

    /// The file at `path`, as a backup lists it.
    fn listed(root: &Path, path: &str) -> Result<ScannedFile> {
        let found = scan(root, Major::V15)?;
        let file = found.files.into_iter().find(|file| file.path == path);
        Ok(file.unwrap())
    }

    /// What a worker makes of a listed file.
    fn outcome_of(root: &Path, file: ScannedFile) -> Result<Outcome> {
        let job = Job::new(0, file, ReadPlan::Whole, Vec::new());
        with_worker(root, |worker| worker.plain_file(&job))
    }

    /// What comes of `act` with a worker that stores frames as they are.
    fn with_worker<T>(root: &Path, act: impl FnOnce(&mut Worker<'_>) -> Result<T>) -> Result<T> {
        let runtime = Runtime::new().unwrap();
        let _entered = runtime.enter();
        let cluster =
            ClusterRepository::new(&Repository::memory(), &ClusterName::parse("main").unwrap());
        let label = Label::parse("20260101-000000F").unwrap();
        let progress = Progress::default();
        let layer = LayerWriter::new(
            cluster,
            label,
            [7; 16],
            LayerSeal::clear(),
            progress.clone(),
        );
        let check = PageCheck::new(false, false, Lsn::new(0));
        let (limiter, abort) = (Limiter::new(None), Abort::new());
        let context = WorkerContext {
            data_directory: root,
            codec: Codec::None,
            check: &check,
            fail_on_corrupt_page: false,
            limiter: &limiter,
            cache: &PageCache::new(true),
            progress: &progress,
            abort: &abort,
        };
        let mut worker = Worker::new(&context, layer.packs(4 << 20), channel().0)?;
        act(&mut worker)
    }

    fn digest_of(bytes: &[u8]) -> Option<[u8; 32]> {
        let mut hasher = ContentHasher::new();
        hasher.update(bytes);
        Some(hasher.finish())
    }

    /// Lets `act` go on in a thread while the file at `path` is read.
    fn beside(act: impl Fn(usize, &Path) + Sync, path: &str) -> Result<Outcome> {
        let root = tempfile::tempdir().unwrap();
        let full = root.path().join(path);
        fs::create_dir_all(full.parent().unwrap()).unwrap();
        fs::write(&full, "").unwrap();
        act(0, &full);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1.. {
                    act(turn, &full);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            thread::sleep(Duration::from_millis(20));
            let outcome = listed(root.path(), path).and_then(|file| outcome_of(root.path(), file));
            stop.store(true, Ordering::Relaxed);
            outcome
        })
    }

    fn letters(turn: usize) -> Vec<u8> {
        [b"a", b"b"][turn % 2].repeat(400_000)
    }

    #[test]
    fn a_file_is_stored_to_its_end_whatever_the_list_said() {
        let root = tempfile::tempdir().unwrap();
        let text: Vec<u8> = (0..1_000_003_u32).map(|n| n.to_le_bytes()[0]).collect();
        fs::write(root.path().join("pg_hba.conf"), &text).unwrap();
        for size_bytes in [0, 10, 1_000_003, 5_000_000] {
            for pause in [0, 150] {
                thread::sleep(Duration::from_millis(pause));
                let mut file = listed(root.path(), "pg_hba.conf").unwrap();
                file.size_bytes = size_bytes;
                let outcome = outcome_of(root.path(), file).unwrap();
                assert_eq!(outcome.size_bytes, 1_000_003);
                assert_eq!(outcome.content_digest, digest_of(&text));
                assert_eq!(outcome.frames.len(), 8);
                let blocks = outcome.frames.iter().map(FrameRef::page_count).sum::<u64>();
                assert_eq!(blocks, 1_000_003_u64.div_ceil(8192));
            }
        }
    }

    /// The list may have seen a relation's file while it grew.
    #[test]
    fn a_relation_file_of_odd_size_that_was_emptied_since_the_list_is_told() {
        let root = tempfile::tempdir().unwrap();
        let path = "base/5/16384";
        let full = root.path().join(path);
        fs::create_dir_all(full.parent().unwrap()).unwrap();
        for left in [8193, 1, 0] {
            fs::write(&full, vec![1; 8193]).unwrap();
            let file = listed(root.path(), path).unwrap();
            let opened = OpenOptions::new().write(true).open(&full).unwrap();
            opened.set_len(left).unwrap();
            let outcome = outcome_of(root.path(), file).unwrap();
            assert_eq!(outcome.emptied, left == 0, "{left}");
        }
    }

    #[test]
    fn the_frames_of_a_large_file_are_the_largest_there_are() {
        let frame_bytes =
            |size_bytes| Portion::stored("core", size_bytes).map(|all| all.frame_bytes);
        assert_eq!(frame_bytes(LARGE_PLAIN_BYTES).unwrap(), 128 << 10);
        assert_eq!(frame_bytes(LARGE_PLAIN_BYTES + 1).unwrap(), MAX_RAW_BYTES);
        assert_eq!(frame_bytes(MAX_PLAIN_BYTES).unwrap(), MAX_RAW_BYTES);
        let refused = frame_bytes(MAX_PLAIN_BYTES + 1).unwrap_err();
        assert_eq!(refused.kind(), Kind::Unsupported);

        // As one of them is stored, but for its size.
        let root = tempfile::tempdir().unwrap();
        let text: Vec<u8> = (0..700_001_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(root.path().join("core"), &text).unwrap();
        let file = listed(root.path(), "core").unwrap();
        let opened = open(&root.path().join("core"), &file).unwrap().unwrap();
        let job = Job::new(0, file, ReadPlan::Whole, Vec::new());
        let all = Portion {
            limit_bytes: job.file.size_bytes,
            frame_bytes: MAX_RAW_BYTES,
            store: Store::Frames,
        };
        let mut outcome = Outcome::default();
        let version = with_worker(root.path(), |worker| {
            worker.read_plain(&job, &opened, all, &mut outcome)
        });
        let version = version.unwrap();
        assert_eq!(Some(version.digest), digest_of(&text));
        let runs = version.frames.iter().flat_map(|frame| &frame.runs);
        let runs: Vec<(u32, u32)> = runs.map(|run| (run.start, run.count)).collect();
        assert_eq!(runs, [(0, 128), (128, 128), (256, 86)]);
        assert!(version.frames.iter().all(|frame| frame.runs.len() == 1));
    }

    #[test]
    fn what_is_replaced_all_the_time_is_stored_as_one_version() {
        let replace = |turn: usize, path: &Path| {
            let new = path.with_extension("new");
            fs::write(&new, letters(turn)).unwrap();
            fs::rename(&new, path).unwrap();
        };
        let outcome = beside(replace, "pg_logical/replorigin_checkpoint").unwrap();
        let whole = [0, 1].map(|turn| digest_of(&letters(turn)));
        assert!(whole.contains(&outcome.content_digest));
    }

    #[test]
    fn what_is_written_in_place_all_the_time_is_stored_as_one_version_or_refused() {
        let rewrite = |turn: usize, path: &Path| {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &letters(turn), 0).unwrap();
        };
        match beside(rewrite, "pg_hba.conf") {
            Ok(outcome) => {
                let whole = [0, 1].map(|turn| digest_of(&letters(turn)));
                assert!(whole.contains(&outcome.content_digest));
            }
            Err(error) => assert_eq!(error.kind(), Kind::File),
        }
        // What the server does not read may be torn, and that is said.
        let outcome = beside(rewrite, "some/file").unwrap();
        let whole = [0, 1].map(|turn| digest_of(&letters(turn)));
        assert!(outcome.was_torn || whole.contains(&outcome.content_digest));
        // Replay does not mind.
        assert!(!beside(rewrite, "pg_xact/0000").unwrap().was_torn);
    }

    #[test]
    fn a_log_that_grows_all_the_time_ends() {
        let grow = |_: usize, path: &Path| {
            let mut file = OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(&[b'x'; 50_000]).unwrap();
            thread::sleep(Duration::from_millis(1));
        };
        let outcome = beside(grow, "log/postgresql.log").unwrap();
        assert!(outcome.size_bytes >= 50_000 && !outcome.was_torn);
        let size = usize::try_from(outcome.size_bytes).unwrap();
        assert_eq!(outcome.content_digest, digest_of(&vec![b'x'; size]));
    }

    #[test]
    fn a_file_that_is_away_for_a_moment_is_found() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pg_hba.conf");
        fs::write(&path, "local").unwrap();
        let file = listed(root.path(), "pg_hba.conf").unwrap();
        fs::rename(&path, root.path().join("aside")).unwrap();
        let found = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(40));
                fs::rename(root.path().join("aside"), &path).unwrap();
            });
            outcome_of(root.path(), file.clone())
        });
        assert_eq!(found.unwrap().size_bytes, 5);
        fs::remove_file(&path).unwrap();
        assert!(outcome_of(root.path(), file).unwrap().gone);
    }

    #[test]
    fn a_file_is_what_its_path_says() {
        for (path, nature) in [
            ("pg_xact/0000", Nature::Replayed),
            ("pg_multixact/offsets/0000", Nature::Replayed),
            ("base/5/16384", Nature::Replayed),
            ("base/5/pg_filenode.map", Nature::Needed),
            ("global/pg_filenode.map", Nature::Needed),
            ("pg_logical/replorigin_checkpoint", Nature::Needed),
            ("pg_twophase/000002E1", Nature::Needed),
            ("pg_hba.conf", Nature::Needed),
            ("conf.d/a.conf", Nature::Needed),
            ("PG_VERSION", Nature::Needed),
            ("pg_logical/mappings/map-1", Nature::Foreign),
            ("log/postgresql.log", Nature::Foreign),
            ("pg_log/postgresql.log", Nature::Foreign),
            ("logfile", Nature::Foreign),
        ] {
            assert_eq!(Nature::of(path), nature, "{path}");
        }
    }

    #[test]
    fn times_of_this_moment_and_of_the_future_tell_nothing() {
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        let mark = |modified, changed| ChangeStamp {
            identity: 1,
            inode: (1, 1),
            size_bytes: 1,
            modified,
            changed,
            links: 1,
        };
        assert!(mark((990, 5), (990, 5)).is_old(now));
        assert!(!mark((999, 950_000_000), (990, 5)).is_old(now));
        assert!(!mark((990, 5), (999, 950_000_000)).is_old(now));
        assert!(!mark((1001, 5), (990, 5)).is_old(now));
        // Whole seconds may be of a clock that knows no parts.
        assert!(!mark((999, 0), (999, 0)).is_old(now));
        assert!(mark((997, 0), (997, 0)).is_old(now));
    }
}
