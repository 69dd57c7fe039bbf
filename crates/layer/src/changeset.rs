//! What changed since the parent, and so what to read of each file.
//!
//! A changeset names a superset of the pages changed since the parent's start, or
//! says that it does not know; a file is then compared page by page with the
//! parent's digests. Whatever a source cannot vouch for is compared as well:
//! free space and visibility maps change without their page LSN moving, and a
//! file whose identity differs from the parent's is another file. The tracker sees
//! it when a file is replaced, so it is trusted where equal identities do not prove
//! that the file is the same; LSNs are not: what was copied into its place has older ones.

use std::collections::{BTreeMap, BTreeSet};

use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::relation::{BLOCKS_PER_SEGMENT, ForkKind};

use crate::block_set::BlockSet;
use crate::entry::{BLOCK_BYTES, BlockRun, EntryKind, proves_sameness};

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
    /// Relation forks that changed as a whole, by the path of their first segment.
    pub whole_forks: BTreeSet<String>,
    /// Main forks that were this short at some time, in blocks, by the path of their first
    /// segment: no block of the fork from there on may come from the parent.
    pub fork_limits: BTreeMap<String, u32>,
    /// Directories in which every file may have changed.
    pub directories: BTreeSet<String>,
    /// Forks of which nothing is known in the whole cluster: they are compared.
    pub unknown_forks: BTreeSet<ForkKind>,
    /// Whether the source sees changes of every fork (the tracker sees the physical
    /// write), or of main forks alone (WAL summaries). Other forks are then compared.
    pub covers_all_forks: bool,
}

/// Changes of one relation segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileChanges {
    /// Changed blocks, counted from the start of the file.
    pub blocks: BlockSet,
    /// The file was this short at some time since: no block from here on may come
    /// from the parent.
    pub limit: Option<u32>,
}

impl ChangedBlocks {
    /// Whether the source says, or cannot exclude, that a block has changed.
    #[must_use]
    pub fn may_have_changed(&self, path: &str, fork: ForkKind, block: u32) -> bool {
        let named = self
            .files
            .get(path)
            .is_some_and(|file| file.blocks.contains(block));
        let cut = self.limit_of(path).is_some_and(|limit| limit <= block);
        named || cut || !self.covers(Some(fork)) || self.is_whole(path)
    }

    /// Whether nothing of this file may come from the parent.
    fn is_whole(&self, path: &str) -> bool {
        let (directory, _) = path.rsplit_once('/').unwrap_or(("", path));
        self.directories.contains(directory) || self.whole_forks.contains(first_segment(path).0)
    }

    /// From which block of this file on nothing may come from the parent.
    fn limit_of(&self, path: &str) -> Option<u32> {
        let (first, number) = first_segment(path);
        let of_fork = self.fork_limits.get(first);
        let of_fork = of_fork.map(|limit| limit.saturating_sub(number * BLOCKS_PER_SEGMENT));
        let of_file = self.files.get(path).and_then(|file| file.limit);
        of_fork.into_iter().chain(of_file).min()
    }

    /// Whether the source can tell the changes of this fork.
    fn covers(&self, fork: Option<ForkKind>) -> bool {
        fork.is_some_and(|fork| {
            (fork == ForkKind::Main || self.covers_all_forks) && !self.unknown_forks.contains(&fork)
        })
    }
}

/// A file as the scan of the data directory found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentFile {
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
pub fn plan_file(file: &PresentFile, parent: Option<&ParentFile>, changes: &Changes) -> ReadPlan {
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
    let another = known && file.identity != parent.identity;
    let same = file.identity == parent.identity && proves_sameness(file.identity);
    let main_fork = file.fork == Some(ForkKind::Main);
    match changes {
        Changes::Lsn { threshold } if main_fork && same => ReadPlan::ByLsn {
            threshold: *threshold,
            inherit_limit,
        },
        Changes::Exact(exact) if !another && exact.covers(file.fork) => {
            if exact.is_whole(&file.path) {
                return ReadPlan::Whole;
            }
            let limit = exact.limit_of(&file.path).unwrap_or(inherit_limit);
            let changed = exact.files.get(&file.path).map(|file| &file.blocks);
            plan_exact(changed, blocks, inherit_limit.min(limit))
        }
        Changes::Unknown { .. } | Changes::Lsn { .. } | Changes::Exact(_) => {
            ReadPlan::ByDigest { inherit_limit }
        }
    }
}

/// The path of a fork's first segment, and how many segments come before this one.
fn first_segment(path: &str) -> (&str, u32) {
    let split = path
        .rsplit_once('.')
        .and_then(|(first, number)| Some((first, number.parse().ok()?)));
    split.unwrap_or((path, 0))
}

fn plan_exact(changed: Option<&BlockSet>, blocks: u32, limit: u32) -> ReadPlan {
    let mut runs = changed.map_or_else(Vec::new, |changed| changed.runs_below(limit));
    if let Some(beyond) = BlockRun::between(limit, blocks) {
        BlockRun::append(&mut runs, beyond);
    }
    ReadPlan::Blocks {
        runs,
        inherit_limit: limit,
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests fail by panics")]
mod tests {
    use super::*;
    use crate::entry::file_identity;

    fn plan(path: &str, fork: ForkKind, exact: ChangedBlocks) -> ReadPlan {
        let (size_bytes, kind) = (10 * u64::from(BLOCK_BYTES), EntryKind::Relation);
        let identity = file_identity(7, Some(1));
        let file = PresentFile {
            path: path.to_owned(),
            kind,
            fork: Some(fork),
            size_bytes,
            identity,
        };
        let parent = ParentFile {
            kind,
            size_bytes,
            identity,
            content_digest: None,
        };
        plan_file(&file, Some(&parent), &Changes::Exact(exact))
    }

    fn tracker() -> ChangedBlocks {
        ChangedBlocks {
            covers_all_forks: true,
            ..ChangedBlocks::default()
        }
    }

    /// How the main fork of a relation is read that had the one identity and has the other.
    fn plan_identities(parent: u64, file: u64, changes: &Changes) -> ReadPlan {
        let (size_bytes, kind) = (10 * u64::from(BLOCK_BYTES), EntryKind::Relation);
        let file = PresentFile {
            path: "base/5/16384".to_owned(),
            kind,
            fork: Some(ForkKind::Main),
            size_bytes,
            identity: file,
        };
        let parent = ParentFile {
            kind,
            size_bytes,
            identity: parent,
            content_digest: None,
        };
        plan_file(&file, Some(&parent), changes)
    }

    #[test]
    fn a_file_with_another_inode_is_compared_where_there_are_no_birth_times() {
        let tracked = Changes::Exact(tracker());
        let compared = ReadPlan::ByDigest { inherit_limit: 10 };
        let (inode, other) = (file_identity(7, None), file_identity(8, None));
        let born = file_identity(7, Some(1));
        assert_eq!(plan_identities(inode, other, &tracked), compared);
        assert_eq!(plan_identities(inode, born, &tracked), compared);
        assert_eq!(plan_identities(born, inode, &tracked), compared);
        for identities in [(inode, inode), (born, born), (0, inode), (inode, 0), (0, 0)] {
            let plan = plan_identities(identities.0, identities.1, &tracked);
            assert!(matches!(plan, ReadPlan::Blocks { .. }), "{identities:?}");
        }
    }

    #[test]
    fn page_lsns_are_believed_only_of_a_file_with_the_birth_time_of_the_parents() {
        let threshold = Lsn::new(0x0100_0000);
        let by_lsn = ReadPlan::ByLsn {
            threshold,
            inherit_limit: 10,
        };
        let (inode, born) = (file_identity(7, None), file_identity(7, Some(1)));
        let plan = |parent, file| plan_identities(parent, file, &Changes::Lsn { threshold });
        assert_eq!(plan(born, born), by_lsn);
        for identities in [(inode, inode), (born, inode), (0, 0), (0, born)] {
            let compared = ReadPlan::ByDigest { inherit_limit: 10 };
            assert_eq!(plan(identities.0, identities.1), compared);
        }
        assert_ne!(born, file_identity(7, Some(2)));
        assert_ne!(born, file_identity(8, Some(1)));
    }

    #[test]
    fn a_file_that_is_not_named_is_not_read() {
        let nothing = ReadPlan::Blocks {
            runs: Vec::new(),
            inherit_limit: 10,
        };
        assert_eq!(plan("base/5/16384", ForkKind::Main, tracker()), nothing);
        assert_eq!(plan("base/5/16384_vm", ForkKind::Vm, tracker()), nothing);
    }

    #[test]
    fn a_fork_that_changed_as_a_whole_is_read_in_every_segment() {
        let whole = |path: &str, fork| {
            let mut exact = tracker();
            exact.whole_forks.insert("base/5/16384".to_owned());
            plan(path, fork, exact) == ReadPlan::Whole
        };
        assert!(whole("base/5/16384", ForkKind::Main));
        assert!(whole("base/5/16384.12", ForkKind::Main));
        assert!(!whole("base/5/16384_vm", ForkKind::Vm));
        assert!(!whole("base/5/163841", ForkKind::Main));
    }

    #[test]
    fn a_fork_that_was_cut_is_read_from_there_on() {
        let cut = |path: &str, limit| {
            let mut exact = tracker();
            exact.fork_limits.insert("base/5/16384".to_owned(), limit);
            match plan(path, ForkKind::Main, exact) {
                ReadPlan::Blocks {
                    runs,
                    inherit_limit,
                } => (runs, inherit_limit),
                other => panic!("{other:?}"),
            }
        };
        let from = |start| {
            vec![BlockRun {
                start,
                count: 10 - start,
            }]
        };
        assert_eq!(cut("base/5/16384", 3), (from(3), 3));
        assert_eq!(cut("base/5/16384.1", 3), (from(0), 0));
        assert_eq!(cut("base/5/16384.1", BLOCKS_PER_SEGMENT + 4), (from(4), 4));
        assert_eq!(cut("base/5/16384", BLOCKS_PER_SEGMENT + 4), (vec![], 10));
        assert_eq!(cut("base/5/16385", 3), (vec![], 10));
    }

    #[test]
    fn a_directory_that_changed_changes_its_files_alone() {
        let whole = |path: &str| {
            let mut exact = tracker();
            exact.directories.insert("base/5".to_owned());
            plan(path, ForkKind::Main, exact) == ReadPlan::Whole
        };
        assert!(whole("base/5/16384"));
        assert!(!whole("base/51/16384"));
    }

    #[test]
    fn forks_of_which_nothing_is_known_are_compared() {
        let mut exact = tracker();
        exact.unknown_forks.insert(ForkKind::Fsm);
        let compared = ReadPlan::ByDigest { inherit_limit: 10 };
        let fsm = plan("base/5/16384_fsm", ForkKind::Fsm, exact.clone());
        assert_eq!(fsm, compared);
        assert_ne!(plan("base/5/16384", ForkKind::Main, exact), compared);
        let summaries = ChangedBlocks::default();
        assert_eq!(plan("base/5/16384_vm", ForkKind::Vm, summaries), compared);
    }
}
