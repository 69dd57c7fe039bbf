//! Histories of a small cluster that is backed up on any earlier layer, with changes found by any source; each layer restores
//! to what the cluster was, and so does whatever is merged of it.

use std::collections::{BTreeMap, HashMap};

use pgstrata_layer::changeset::{
    ChangedBlocks, Changes, FileChanges, ParentFile, PresentFile, ReadPlan, page_selected,
    plan_file,
};
use pgstrata_layer::digest;
use pgstrata_layer::entry::{EntryKind, FileEntry};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::overlay::PathMerge;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::relation::ForkKind;

use super::merging::merge;
use super::{
    BLOCK, LayerMaker, Selection, SourceFile, StoredLayer, block_count, digest_of_pages, entries,
    page, restore,
};

pub const PATHS: [&str; 5] = [
    "base/5/16384",
    "base/5/16384.1",
    "base/5/16384_vm",
    "pg_stat/note",
    "pg_xact/0000",
];

#[derive(Clone, Debug)]
pub enum Op {
    Write { file: usize, block: u32 },
    Zero { file: usize, block: u32 },
    Extend { file: usize, count: u32 },
    ExtendByBytes { file: usize, count: usize },
    Truncate { file: usize, block: u32 },
    Drop { file: usize },
    Recreate { file: usize, count: u32 },
}

#[derive(Clone, Copy, Debug)]
pub enum Finder {
    Unknown,
    Lsn,
    Tracker,
    Summary,
}

#[derive(Clone, Debug)]
pub struct Round {
    pub ops: Vec<Op>,
    pub finder: Finder,
    /// Chooses the parent among the layers there are.
    pub parent: usize,
    pub pages_per_frame: usize,
}

/// The cluster, and what a tracker that notes no more than it must knows since each layer.
#[derive(Default)]
pub struct Model {
    pub files: BTreeMap<String, SourceFile>,
    pub lsn: u64,
    pub trackers: Vec<BTreeMap<String, FileChanges>>,
}

impl Model {
    pub fn fork(path: &str) -> Option<ForkKind> {
        match path {
            path if path.ends_with("_vm") => Some(ForkKind::Vm),
            path if path.starts_with("base") => Some(ForkKind::Main),
            _ => None,
        }
    }

    /// A page that changed now. Those of the visibility map keep an old LSN.
    pub fn new_page(&mut self, path: &str) -> Vec<u8> {
        self.lsn += 1;
        let mut page = super::prose(self.lsn, BLOCK);
        let lsn = if Self::fork(path) == Some(ForkKind::Main) {
            self.lsn
        } else {
            5000
        };
        page[..8].copy_from_slice(&lsn.to_le_bytes());
        page
    }

    pub fn track(&mut self, path: &str, note: impl Fn(&mut FileChanges)) {
        for tracker in &mut self.trackers {
            note(tracker.entry(path.to_owned()).or_default());
        }
    }

    pub fn mark(&mut self, path: &str, block: u32) {
        self.track(path, |changes| {
            if changes.limit.is_some_and(|limit| limit <= block) {
                return;
            }
            changes.blocks.insert(block);
        });
    }

    pub fn put(&mut self, path: &str, block: u32, page: &[u8]) {
        let start = usize::try_from(block).unwrap() * BLOCK;
        let file = self.files.get_mut(path).unwrap();
        let end = file.bytes.len().min(start + BLOCK);
        file.bytes[start..end].copy_from_slice(&page[..end - start]);
    }

    /// New blocks are not marked: whoever plans must see that the file became longer.
    pub fn extend(&mut self, path: &str, bytes: usize) {
        let file = &self.files[path];
        let (old, first) = (file.bytes.len(), file.bytes.len() / BLOCK);
        self.files
            .get_mut(path)
            .unwrap()
            .bytes
            .resize(old + bytes, 0);
        let end = (old + bytes).div_ceil(BLOCK);
        for block in first..end {
            let page = self.new_page(path);
            let block = u32::try_from(block).unwrap();
            self.put(path, block, &page);
            if !old.is_multiple_of(BLOCK) && block == u32::try_from(first).unwrap() {
                self.mark(path, block);
            }
        }
    }

    pub fn create(&mut self, path: &str, count: u32) {
        self.lsn += 1;
        let kind = if Self::fork(path).is_some() {
            EntryKind::Relation
        } else {
            EntryKind::Plain
        };
        let file = SourceFile {
            kind,
            mode: 0o600,
            modified: 1,
            identity: self.lsn,
            bytes: Vec::new(),
        };
        self.files.insert(path.to_owned(), file);
        self.track(path, |changes| changes.limit = Some(0));
        self.extend(path, usize::try_from(count).unwrap() * BLOCK);
    }

    pub fn apply(&mut self, op: &Op) {
        let (Op::Write { file, .. }
        | Op::Zero { file, .. }
        | Op::Extend { file, .. }
        | Op::ExtendByBytes { file, .. }
        | Op::Truncate { file, .. }
        | Op::Drop { file }
        | Op::Recreate { file, .. }) = op;
        let path = PATHS[*file];
        let blocks = self.files.get(path).map(block_count);
        match (op, blocks) {
            (Op::Write { block, .. }, Some(1..)) => {
                let page = self.new_page(path);
                self.put(path, block % blocks.unwrap(), &page);
                self.mark(path, block % blocks.unwrap());
            }
            (Op::Zero { block, .. }, Some(1..)) => {
                self.put(path, block % blocks.unwrap(), &[0; BLOCK]);
                self.mark(path, block % blocks.unwrap());
            }
            (Op::Extend { count, .. }, Some(_)) => {
                self.extend(path, usize::try_from(*count).unwrap() * BLOCK);
            }
            (Op::ExtendByBytes { count, .. }, Some(_)) => self.extend(path, *count),
            (Op::Truncate { block, .. }, Some(blocks)) if *block < blocks => {
                let length = usize::try_from(*block).unwrap() * BLOCK;
                self.files.get_mut(path).unwrap().bytes.truncate(length);
                let shorter =
                    |limit: Option<u32>| Some(limit.map_or(*block, |old| old.min(*block)));
                self.track(path, |changes| changes.limit = shorter(changes.limit));
            }
            (Op::Drop { .. }, _) => {
                self.files.remove(path);
            }
            (Op::Recreate { count, .. }, _) => self.create(path, *count),
            _ => {}
        }
    }
}

/// A layer, the layers it stands on, and the LSN at which it was made.
pub struct Backup {
    pub layer: StoredLayer,
    pub parent: Option<usize>,
    pub lsn: u64,
}

pub fn chain(backups: &[Backup], newest: usize) -> Vec<&StoredLayer> {
    let up = |&at: &usize| backups[at].parent;
    std::iter::successors(Some(newest), up)
        .map(|at| &backups[at].layer)
        .collect()
}

/// Entries of a chain by path, newest first.
pub fn merged(chain: &[&StoredLayer]) -> HashMap<String, Vec<Option<FileEntry>>> {
    PathMerge::new(chain.iter().map(|layer| entries(layer)).collect())
        .map(|found| found.unwrap())
        .map(|found| (found[0].as_ref().unwrap().path.clone(), found))
        .collect()
}

/// Obeys a plan as a backup does.
pub fn select(
    file: &SourceFile,
    plan: &ReadPlan,
    parent: Option<(&[&StoredLayer], &[Option<FileEntry>])>,
) -> Selection {
    let blocks = 0..block_count(file);
    match plan {
        ReadPlan::Whole => Selection::whole(file),
        ReadPlan::Blocks {
            runs,
            inherit_limit,
        } => Selection {
            blocks: runs
                .iter()
                .flat_map(|run| run.start..run.start + run.count)
                .collect(),
            inherit_limit: *inherit_limit,
        },
        ReadPlan::ByLsn {
            threshold,
            inherit_limit,
        } => {
            let lsn = |block| {
                Lsn::new(u64::from_le_bytes(
                    *page(file, block).first_chunk().unwrap(),
                ))
            };
            let chosen =
                |block: &u32| block >= inherit_limit || page_selected(lsn(*block), *threshold);
            Selection {
                blocks: blocks.filter(chosen).collect(),
                inherit_limit: *inherit_limit,
            }
        }
        ReadPlan::ByDigest { inherit_limit } => {
            let (chain, found) = parent.unwrap();
            let digests = super::page_digests(chain, found).unwrap();
            let differs = |block: &u32| {
                let old = digests.get(usize::try_from(*block).unwrap()).copied();
                block >= inherit_limit || old != Some(digest_of_pages(page(file, *block)))
            };
            Selection {
                blocks: blocks.filter(differs).collect(),
                inherit_limit: *inherit_limit,
            }
        }
        ReadPlan::PlainByDigest => {
            let old = parent.unwrap().1[0].as_ref().unwrap().content_digest;
            if old == Some(digest::contents(&file.bytes)) {
                return Selection {
                    blocks: Vec::new(),
                    inherit_limit: block_count(file),
                };
            }
            Selection::whole(file)
        }
    }
}

pub fn changes(finder: Finder, threshold: u64, tracker: &BTreeMap<String, FileChanges>) -> Changes {
    let exact = |covers_all_forks| {
        let mut files = tracker.clone();
        // WAL summaries do not see what happens to visibility maps.
        files.retain(|path, _| covers_all_forks || Model::fork(path) == Some(ForkKind::Main));
        Changes::Exact(ChangedBlocks {
            files,
            covers_all_forks,
            ..ChangedBlocks::default()
        })
    };
    match finder {
        Finder::Unknown => Changes::Unknown {
            reason: "test".to_owned(),
        },
        Finder::Lsn => Changes::Lsn {
            threshold: Lsn::new(threshold),
        },
        Finder::Tracker => exact(true),
        Finder::Summary => exact(false),
    }
}

pub fn back_up(model: &Model, backups: &[Backup], round: &Round) -> Backup {
    let parent = (!backups.is_empty()).then(|| round.parent % backups.len());
    let id = [u8::try_from(backups.len()).unwrap(); 16];
    let mut maker = LayerMaker::new(id, Codec::Lz4, round.pages_per_frame);
    let parent_chain = parent.map(|at| chain(backups, at)).unwrap_or_default();
    let parent_entries = merged(&parent_chain);
    let no_changes = BTreeMap::new();
    let tracker = parent.map_or(&no_changes, |at| &model.trackers[at]);
    let changes = changes(
        round.finder,
        parent.map_or(0, |at| backups[at].lsn),
        tracker,
    );
    for (path, file) in &model.files {
        let found = parent_entries.get(path);
        let in_parent = found
            .and_then(|found| found[0].as_ref())
            .map(|entry| ParentFile {
                kind: entry.kind,
                size_bytes: entry.size_bytes,
                identity: entry.identity,
                content_digest: entry.content_digest,
            });
        let scanned = PresentFile {
            path: path.clone(),
            kind: file.kind,
            fork: Model::fork(path),
            size_bytes: u64::try_from(file.bytes.len()).unwrap(),
            identity: file.identity,
        };
        let plan = plan_file(&scanned, in_parent.as_ref(), &changes);
        let parent = found.map(|found| (&parent_chain[..], &found[..]));
        maker.store(path, file, &select(file, &plan, parent));
    }
    Backup {
        layer: maker.finish(),
        parent,
        lsn: model.lsn + 1,
    }
}

pub fn run_history(history: &[Round]) {
    let mut model = Model {
        lsn: 10_000,
        ..Model::default()
    };
    for path in PATHS {
        model.create(path, 4);
    }
    let mut backups = Vec::new();
    let mut states = Vec::new();
    for round in history {
        round.ops.iter().for_each(|op| model.apply(op));
        backups.push(back_up(&model, &backups, round));
        model.trackers.push(BTreeMap::new());
        states.push(model.files.clone());
    }
    for (at, state) in states.iter().enumerate() {
        let restored = restore(&chain(&backups, at)).unwrap();
        assert!(
            &restored == state,
            "layer {at} does not restore to what the cluster was"
        );
        assert_merged_layers_restore(&backups, at, &states);
    }
}

/// However many of its layers are merged, a chain restores to what it did, and so do those that stand on it.
pub fn assert_merged_layers_restore(
    backups: &[Backup],
    at: usize,
    states: &[BTreeMap<String, SourceFile>],
) {
    let whole = chain(backups, at);
    for count in 2..=whole.len() {
        let (layer, _) = merge(&whole, count, [0xAB; 16]);
        let mut shorter = vec![&layer];
        shorter.extend(&whole[count..]);
        assert!(
            restore(&shorter).unwrap() == states[at],
            "{count} merged layers of the chain of {at} do not restore"
        );
        for (child, backup) in backups.iter().enumerate() {
            if backup.parent == Some(at) {
                let mut on_it = vec![&backup.layer];
                on_it.extend(&shorter);
                assert!(
                    restore(&on_it).unwrap() == states[child],
                    "{child} does not restore on the merged layer that replaces {at}"
                );
            }
        }
    }
}
