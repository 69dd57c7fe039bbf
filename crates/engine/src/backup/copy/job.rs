//! One file on its way through the backup: what to do with it, and what came of it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pgstrata_layer::block_set::BlockSet;
use pgstrata_layer::changeset::ReadPlan;
use pgstrata_layer::entry::{BlockRun, FrameRef};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::check::Complaint;
use super::suspects::Suspect;
use crate::server::ScannedFile;
use crate::server::scan::{identity, unread};

/// Blocks that a worker reads and stores in one go: 4 MiB, long enough for the
/// disk, short enough that all workers share even a single file.
pub(crate) const PART_BLOCKS: u32 = 512;

/// What the parent has of the file: one digest per block below the inherit limit.
pub(crate) type ParentDigests = Arc<[u64]>;

/// A file and the decision about it. Shared by the parts it is cut into.
#[derive(Debug)]
pub(crate) struct Job {
    /// Position in the scan: the order of the index.
    pub(crate) ordinal: usize,
    pub(crate) file: ScannedFile,
    pub(crate) plan: ReadPlan,
    /// Blocks to compare with the parent although the plan does not read them.
    pub(crate) audit: Vec<BlockRun>,
    /// Blocks that were corrupt in the parent's chain. A repair need not give a page another LSN.
    pub(crate) corrupt: BlockSet,
    /// For [`ReadPlan::ByDigest`], and for the audit.
    pub(crate) digests: Option<ParentDigests>,
    /// For [`ReadPlan::PlainByDigest`].
    pub(crate) parent_content: Option<[u8; 32]>,
    /// How many parts it is cut into.
    pub(crate) parts: u32,
    handle: Mutex<Handle>,
}

/// The open file of a relation. Opened once, so that all parts are of one file; closed
/// with the last part. Parts are taken in order, so at any time each worker has the file
/// of its own part open, and at most one more waits for its next part: what is ahead in
/// the queue is not open yet, and what waits for the index is closed.
#[derive(Debug)]
struct Handle {
    /// `Some(None)`: dropped since the scan.
    opened: Option<Option<Arc<OpenFile>>>,
    /// Parts that nobody has finished.
    parts_left: u32,
}

/// An open file of the cluster.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// Of what was opened: another file may have taken the path since the scan.
    pub(crate) identity: u64,
    /// Whether it is the scanned file, for which alone the plan was made.
    pub(crate) as_scanned: bool,
}

impl Job {
    pub(crate) fn new(
        ordinal: usize,
        file: ScannedFile,
        plan: ReadPlan,
        audit: Vec<BlockRun>,
    ) -> Self {
        let parts = match file.segment {
            Some(_) if is_untouched(&plan, &audit) => 1,
            Some(_) => u32::try_from(file.size_bytes.div_ceil(part_bytes()))
                .unwrap_or(u32::MAX)
                .max(1),
            None => 1,
        };
        Self {
            ordinal,
            file,
            plan,
            audit,
            corrupt: BlockSet::default(),
            digests: None,
            parent_content: None,
            parts,
            handle: Mutex::new(Handle {
                opened: None,
                parts_left: parts,
            }),
        }
    }

    /// Whether the whole file comes from the parent unseen, so that nobody needs to open it.
    pub(crate) fn is_untouched(&self) -> bool {
        is_untouched(&self.plan, &self.audit)
    }

    /// The relation's file below `data_directory`, opened when no part has yet; `None` when
    /// it is gone.
    pub(crate) fn open(&self, data_directory: &Path) -> Result<Option<Arc<OpenFile>>> {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &handle.opened {
            return Ok(opened.clone());
        }
        let found = open(&data_directory.join(&self.file.path), &self.file)?.map(Arc::new);
        handle.opened = Some(found.clone());
        Ok(found)
    }

    /// One part is done; the last one closes the file, however long the outcome waits for its turn.
    pub(crate) fn close_part(&self) {
        let mut handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.parts_left = handle.parts_left.saturating_sub(1);
        if handle.parts_left == 0 {
            handle.opened = None;
        }
    }

    /// The blocks of part `part`.
    pub(crate) fn part_blocks(&self, part: u32) -> Range<u32> {
        let blocks = u32::try_from(self.file.size_bytes / block_bytes()).unwrap_or(u32::MAX);
        let start = part.saturating_mul(PART_BLOCKS);
        start..start.saturating_add(PART_BLOCKS).min(blocks)
    }
}

/// Opens a file of the list, and nothing else that may have taken its path: a link is not
/// followed unless the scan has followed one, and a pipe is not waited for.
pub(crate) fn open(path: &Path, file: &ScannedFile) -> Result<Option<OpenFile>> {
    let mut flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    if !file.is_linked {
        flags |= OFlags::NOFOLLOW;
    }
    let act = || format!("could not open \"{}\"", path.display());
    let opened = match rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty()) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        // A link; a socket, or a device without driver.
        Err(Errno::LOOP | Errno::NXIO) => return Err(not_a_file(path)),
        Err(error) => return Err(unread(&error.into(), &act())),
    };
    let metadata = opened.metadata().context(act)?;
    if !metadata.is_file() {
        return Err(not_a_file(path));
    }
    let identity = identity(&metadata);
    // Without birth times the inode has to do: it is not used again while we look.
    let place = (metadata.dev(), metadata.ino());
    Ok(Some(OpenFile {
        file: opened,
        identity,
        as_scanned: identity == file.identity && place == file.place,
    }))
}

fn not_a_file(path: &Path) -> Error {
    let path = path.display();
    Error::new(
        Kind::File,
        format!(
            "could not open \"{path}\": it was a file when the backup listed it, and is none now"
        ),
    )
    .hint("run the backup again when nothing replaces files of the data directory")
}

fn is_untouched(plan: &ReadPlan, audit: &[BlockRun]) -> bool {
    audit.is_empty() && matches!(plan, ReadPlan::Blocks { runs, .. } if runs.is_empty())
}

pub(crate) fn block_bytes() -> u64 {
    u64::from(pgstrata_layer::entry::BLOCK_BYTES)
}

fn part_bytes() -> u64 {
    u64::from(PART_BLOCKS) * block_bytes()
}

/// Work for one worker.
#[derive(Debug)]
pub(crate) enum WorkItem {
    /// One part of a relation segment.
    Part(Arc<Job>, u32),
    /// Whole files: one large plain file, or many small ones.
    Files(Vec<Arc<Job>>),
}

/// What came of one part, or of a plain file.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The file was dropped.
    pub(crate) gone: bool,
    /// It was empty by then, so what the list had of it is lost. PostgreSQL empties the first file of a relation that it drops, and
    /// removes it after the next checkpoint (`mdunlinkfork`).
    pub(crate) emptied: bool,
    /// Identity of the file that was read.
    pub(crate) identity: u64,
    /// The plan could not be followed, everything was stored: nothing may be inherited.
    pub(crate) whole: bool,
    /// For plain files: permission bits and modification time of the version that was read.
    pub(crate) attributes: Option<(u32, i64)>,
    /// For plain files: it was written all the time, and what is stored may be of no one moment.
    pub(crate) was_torn: bool,
    /// For plain files: how long it was.
    pub(crate) size_bytes: u64,
    /// For plain files.
    pub(crate) content_digest: Option<[u8; 32]>,
    /// For plain files: equal to the parent's.
    pub(crate) inherits: bool,
    pub(crate) frames: Vec<FrameRef>,
    pub(crate) zero_runs: Vec<BlockRun>,
    /// Of the pages in `frames`, in order.
    pub(crate) page_digests: Vec<u64>,
    /// Pages with something wrong, with their block.
    pub(crate) complaints: Vec<(u32, Complaint)>,
    /// Pages that the plan called changed or possibly changed.
    pub(crate) pages_marked: u64,
    pub(crate) bytes_read: u64,
    /// Pages compared with the parent by the audit, and those that differ.
    pub(crate) pages_audited: u64,
    pub(crate) suspects: Vec<Suspect>,
}

/// From a worker, or for directories from the planner, to the assembler.
#[derive(Debug)]
pub(crate) struct PartOutcome {
    pub(crate) job: Arc<Job>,
    pub(crate) part: u32,
    pub(crate) outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::scan::scan;
    use pgstrata_pgdata::Major;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    /// A data directory with a relation and a file, and what its scan says of them.
    fn scanned() -> (tempfile::TempDir, ScannedFile, ScannedFile) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("base/5")).unwrap();
        fs::write(root.path().join("base/5/16384"), vec![1; 8192]).unwrap();
        fs::write(root.path().join("pg_hba.conf"), "local").unwrap();
        let found = scan(root.path(), Major::V15).unwrap();
        let file = |path: &str| {
            let found = found.files.iter().find(|file| file.path == path);
            found.unwrap().clone()
        };
        let (relation, plain) = (file("base/5/16384"), file("pg_hba.conf"));
        (root, relation, plain)
    }

    #[test]
    fn what_took_the_place_of_a_file_is_neither_followed_nor_waited_for() {
        let (root, relation, plain) = scanned();
        for file in [relation, plain] {
            let path = root.path().join(&file.path);
            let began = Instant::now();
            let refused = |what: &str| {
                let error = open(&path, &file).unwrap_err();
                assert_eq!(error.kind(), Kind::File, "{what}");
            };
            fs::remove_file(&path).unwrap();
            assert!(open(&path, &file).unwrap().is_none());
            symlink("/etc/passwd", &path).unwrap();
            refused("a link");
            fs::remove_file(&path).unwrap();
            let mode = Mode::from_raw_mode(0o600);
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
            refused("a pipe");
            fs::remove_file(&path).unwrap();
            let _listening = std::os::unix::net::UnixListener::bind(&path).unwrap();
            refused("a socket");
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
            refused("a directory");
            assert!(began.elapsed().as_secs() < 5);
        }
    }

    #[test]
    fn another_file_of_the_same_path_is_not_as_scanned() {
        let (root, relation, _) = scanned();
        let path = root.path().join(&relation.path);
        let opened = open(&path, &relation).unwrap().unwrap();
        assert!(opened.as_scanned);
        fs::write(root.path().join("new"), vec![1; 8192]).unwrap();
        fs::rename(root.path().join("new"), &path).unwrap();
        let mut without_birth_time = relation;
        for identity in [without_birth_time.identity, opened.identity] {
            without_birth_time.identity = identity;
            let opened = open(&path, &without_birth_time).unwrap().unwrap();
            assert!(!opened.as_scanned);
        }
        // The directory was removed, and a file has its name.
        fs::remove_dir_all(root.path().join("base/5")).unwrap();
        fs::write(root.path().join("base/5"), "").unwrap();
        assert!(open(&path, &without_birth_time).unwrap().is_none());
    }

    #[test]
    fn a_relation_is_closed_with_its_last_part() {
        let (root, relation, _) = scanned();
        let mut job = Job::new(0, relation, ReadPlan::Whole, Vec::new());
        job.handle = Mutex::new(Handle {
            opened: None,
            parts_left: 2,
        });
        let first = Arc::downgrade(&job.open(root.path()).unwrap().unwrap());
        job.close_part();
        assert!(first.upgrade().is_some());
        // The second part is of the same file, whatever has its path now.
        fs::remove_file(root.path().join("base/5/16384")).unwrap();
        assert!(job.open(root.path()).unwrap().is_some());
        job.close_part();
        assert!(first.upgrade().is_none());
    }
}
