//! What changed since the parent, and so what to read of each file.
//!
//! A changeset names a superset of the pages changed since the parent's start, or
//! says that it does not know; a file is then compared page by page with the
//! parent's digests. Whatever a source cannot vouch for is compared as well:
//! free space and visibility maps change without their page LSN moving, and a
//! file whose identity differs from the parent's is another file.

use std::collections::BTreeMap;

use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::relation::ForkKind;

use crate::entry::{BLOCK_BYTES, BlockRun, EntryKind};

/// Below this a page LSN is not a position in the WAL: 0 of new pages, 1 of a GiST
/// build, and those of unlogged relations (`FirstNormalUnloggedLSN`).
const FIRST_REAL_LSN: Lsn = Lsn::new(1000);

/// What is known of the changes since the parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Nothing: every page is compared by digest.
    Unknown {
        /// Why, for people.
        reason: String,
    },
    /// Pages of main forks with an LSN at or above the threshold, the parent's start LSN.
    Lsn {
        /// Start LSN of the parent.
        threshold: Lsn,
    },
    /// These blocks.
    Exact(ChangedBlocks),
}

/// Changed blocks by file, as the page tracker or WAL summaries give them. A path
/// that is absent did not change, except beyond the parent's end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedBlocks {
    /// Relation segments that changed, by path.
    pub files: BTreeMap<String, FileChanges>,
    /// Whether the source sees changes of every fork (the tracker sees the physical
    /// write), or of main forks alone (WAL summaries). Other forks are then compared.
    pub covers_all_forks: bool,
}

/// Changes of one relation segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileChanges {
    /// Everything may have changed.
    pub whole: bool,
    /// Changed blocks, ascending, counted from the start of the file.
    pub runs: Vec<BlockRun>,
    /// The file was this short at some time since: no block from here on may come
    /// from the parent.
    pub limit: Option<u32>,
}

impl ChangedBlocks {
    /// What is known to have changed of a file.
    #[must_use]
    pub fn changes_for(&self, path: &str) -> Option<&FileChanges> {
        self.files.get(path)
    }
}

/// A file as the scan of the data directory found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedFile {
    /// Relative to the data directory.
    pub path: String,
    /// Directory, relation segment, or plain file.
    pub kind: EntryKind,
    /// Which fork, for relation segments.
    pub fork: Option<ForkKind>,
    /// Size when scanned.
    pub size_bytes: u64,
    /// As in [`crate::entry::FileEntry::identity`].
    pub identity: u64,
}

/// The same path in the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentFile {
    /// Kind in the parent.
    pub kind: EntryKind,
    /// Size in the parent.
    pub size_bytes: u64,
    /// Identity in the parent.
    pub identity: u64,
    /// BLAKE3 of the whole, for plain files.
    pub content_digest: Option<[u8; 32]>,
}

/// How to read a file. `inherit_limit` goes into the entry; blocks from there on
/// are stored whatever the plan says of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPlan {
    /// Read and store everything.
    Whole,
    /// Read and store these blocks alone; they include all from `inherit_limit` on.
    Blocks {
        /// Blocks to read, ascending.
        runs: Vec<BlockRun>,
        /// Blocks below it that are not in `runs` come from the parent.
        inherit_limit: u32,
    },
    /// Read everything, store pages that [`page_selected`] selects.
    ByLsn {
        /// Start LSN of the parent.
        threshold: Lsn,
        /// Blocks below it that are not selected come from the parent.
        inherit_limit: u32,
    },
    /// Read everything, store pages whose digest differs from the parent's.
    ByDigest {
        /// Blocks below it that are equal come from the parent.
        inherit_limit: u32,
    },
    /// Read everything; refer to the parent when size and digest of the whole are equal.
    PlainByDigest,
}

/// Whether a page of a main fork may have changed since the threshold. Pages whose
/// LSN is not a position in the WAL say nothing, and so count as changed.
#[must_use]
pub fn page_selected(page_lsn: Lsn, threshold: Lsn) -> bool {
    page_lsn >= threshold || page_lsn < FIRST_REAL_LSN
}

/// Decides how to read one file.
#[must_use]
pub fn plan_file(file: &ScannedFile, parent: Option<&ParentFile>, changes: &Changes) -> ReadPlan {
    let Some(parent) = parent.filter(|parent| parent.kind == file.kind) else {
        return ReadPlan::Whole;
    };
    match file.kind {
        EntryKind::Directory => return ReadPlan::Whole,
        EntryKind::Plain if file.size_bytes == parent.size_bytes => return ReadPlan::PlainByDigest,
        EntryKind::Plain => return ReadPlan::Whole,
        EntryKind::Relation => {}
    }
    let block = u64::from(BLOCK_BYTES);
    let whole_blocks = |size_bytes: u64| u32::try_from(size_bytes / block).unwrap_or(u32::MAX);
    if !file.size_bytes.is_multiple_of(block) || file.size_bytes / block > u64::from(u32::MAX) {
        return ReadPlan::Whole;
    }
    let blocks = whole_blocks(file.size_bytes);
    // A partial last block of the parent is not a block to inherit.
    let inherit_limit = blocks.min(whole_blocks(parent.size_bytes));
    let known = file.identity != 0 && parent.identity != 0;
    let same = known && file.identity == parent.identity;
    let main_fork = file.fork == Some(ForkKind::Main);
    match changes {
        Changes::Lsn { threshold } if main_fork && same => ReadPlan::ByLsn {
            threshold: *threshold,
            inherit_limit,
        },
        Changes::Exact(exact) if (same || !known) && (main_fork || exact.covers_all_forks) => {
            plan_exact(exact.changes_for(&file.path), blocks, inherit_limit)
        }
        Changes::Unknown { .. } | Changes::Lsn { .. } | Changes::Exact(_) => {
            ReadPlan::ByDigest { inherit_limit }
        }
    }
}

fn plan_exact(changes: Option<&FileChanges>, blocks: u32, inherit_limit: u32) -> ReadPlan {
    let limit = match changes {
        Some(FileChanges { whole: true, .. }) => return ReadPlan::Whole,
        Some(FileChanges {
            limit: Some(limit), ..
        }) => inherit_limit.min(*limit),
        _ => inherit_limit,
    };
    let mut runs = Vec::new();
    for run in changes.map_or(&[][..], |changes| &changes.runs) {
        let end = u32::try_from(run.end()).unwrap_or(u32::MAX).min(limit);
        if let Some(clipped) = BlockRun::between(run.start, end) {
            BlockRun::append(&mut runs, clipped);
        }
    }
    if let Some(beyond) = BlockRun::between(limit, blocks) {
        BlockRun::append(&mut runs, beyond);
    }
    ReadPlan::Blocks {
        runs,
        inherit_limit: limit,
    }
}
