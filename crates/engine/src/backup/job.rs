//! One file on its way through the backup: what to do with it, and what came of it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pgstrata_layer::changeset::ReadPlan;
use pgstrata_layer::entry::{BlockRun, FrameRef};

use super::audit::Suspect;
use super::pages::Complaint;
use crate::cluster::ScannedFile;
use crate::cluster::scan::identity;
use crate::error::{FileContext, Result};

/// Blocks that a worker reads and stores in one go: 4 MiB, long enough for the
/// disk, short enough that all workers share even a single file.
pub(super) const PART_BLOCKS: u32 = 512;

/// What the parent has of the file: one digest per block below the inherit limit.
pub(super) type ParentDigests = Arc<[u64]>;

/// A file and the decision about it. Shared by the parts it is cut into.
#[derive(Debug)]
pub(super) struct Job {
    /// Position in the scan: the order of the index.
    pub(super) ordinal: usize,
    pub(super) file: ScannedFile,
    pub(super) plan: ReadPlan,
    /// Blocks to compare with the parent although the plan does not read them.
    pub(super) audit: Vec<BlockRun>,
    /// For [`ReadPlan::ByDigest`], and for the audit.
    pub(super) digests: Option<ParentDigests>,
    /// For [`ReadPlan::PlainByDigest`].
    pub(super) parent_content: Option<[u8; 32]>,
    /// How many parts it is cut into.
    pub(super) parts: u32,
    opened: Mutex<Option<Opened>>,
}

/// What opening the file showed. Opened once, so that all parts are of one file.
#[derive(Clone, Debug)]
pub(super) enum Opened {
    /// Dropped since the scan.
    Gone,
    /// There.
    File(Arc<OpenFile>),
}

/// An open file of the cluster.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: File,
    /// Of what was opened: another file may have taken the path since the scan.
    pub(super) identity: u64,
    /// Whether it is the scanned file, for which alone the plan was made.
    pub(super) as_scanned: bool,
}

impl Job {
    pub(super) fn new(
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
            digests: None,
            parent_content: None,
            parts,
            opened: Mutex::new(None),
        }
    }

    /// Whether the whole file comes from the parent unseen, so that nobody needs to open it.
    pub(super) fn is_untouched(&self) -> bool {
        is_untouched(&self.plan, &self.audit)
    }

    /// Opens the file below `data_directory` when no part has yet.
    pub(super) fn open(&self, data_directory: &Path) -> Result<Opened> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*opened {
            return Ok(opened.clone());
        }
        let path = data_directory.join(&self.file.path);
        let act = || format!("could not open \"{}\"", path.display());
        let found = match File::open(&path) {
            Ok(file) => {
                let identity = identity(&file.metadata().context(act)?);
                let as_scanned = identity == self.file.identity;
                Opened::File(Arc::new(OpenFile {
                    file,
                    identity,
                    as_scanned,
                }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Opened::Gone,
            Err(error) => return Err(error).context(act),
        };
        *opened = Some(found.clone());
        Ok(found)
    }

    /// The blocks of part `part`.
    pub(super) fn part_blocks(&self, part: u32) -> Range<u32> {
        let blocks = u32::try_from(self.file.size_bytes / block_bytes()).unwrap_or(u32::MAX);
        let start = part.saturating_mul(PART_BLOCKS);
        start..start.saturating_add(PART_BLOCKS).min(blocks)
    }
}

fn is_untouched(plan: &ReadPlan, audit: &[BlockRun]) -> bool {
    audit.is_empty() && matches!(plan, ReadPlan::Blocks { runs, .. } if runs.is_empty())
}

pub(super) fn block_bytes() -> u64 {
    u64::from(pgstrata_layer::entry::BLOCK_BYTES)
}

fn part_bytes() -> u64 {
    u64::from(PART_BLOCKS) * block_bytes()
}

/// Work for one worker.
#[derive(Debug)]
pub(super) enum Item {
    /// One part of a relation segment.
    Part(Arc<Job>, u32),
    /// Whole files: one large plain file, or many small ones.
    Files(Vec<Arc<Job>>),
}

/// What came of one part, or of a plain file.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The file was dropped.
    pub(super) gone: bool,
    /// Identity of the file that was read.
    pub(super) identity: u64,
    /// The plan could not be followed, everything was stored: nothing may be inherited.
    pub(super) whole: bool,
    /// For plain files: how long it was.
    pub(super) size_bytes: u64,
    /// For plain files.
    pub(super) content_digest: Option<[u8; 32]>,
    /// For plain files: equal to the parent's.
    pub(super) inherits: bool,
    pub(super) frames: Vec<FrameRef>,
    pub(super) zero_runs: Vec<BlockRun>,
    /// Of the pages in `frames`, in order.
    pub(super) page_digests: Vec<u64>,
    /// Pages with something wrong, with their block.
    pub(super) complaints: Vec<(u32, Complaint)>,
    /// Pages that the plan called changed or possibly changed.
    pub(super) pages_marked: u64,
    pub(super) bytes_read: u64,
    /// Pages compared with the parent by the audit, and those that differ.
    pub(super) pages_audited: u64,
    pub(super) suspects: Vec<Suspect>,
}

/// From a worker, or for directories from the planner, to the assembler.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) job: Arc<Job>,
    pub(super) part: u32,
    pub(super) outcome: Outcome,
}
