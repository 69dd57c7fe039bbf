//! Random histories of a cluster, backed up as a full layer and increments on any
//! earlier layer, found by every change source: each restores to what the cluster was.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure is a failed test"
)]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use pgstrata_layer::changeset::{
    ChangedBlocks, Changes, FileChanges, ParentFile, PresentFile, ReadPlan, page_selected,
    plan_file,
};
use pgstrata_layer::digest;
use pgstrata_layer::entry::{BlockRun, EntryKind, FileEntry};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::overlay::PathMerge;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::relation::ForkKind;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use support::merging::merge;
use support::{
    BLOCK, LayerMaker, Selection, SourceFile, StoredLayer, block_count, digest_of_pages, entries,
    page, restore,
};

const PATHS: [&str; 5] = [
    "base/5/16384",
    "base/5/16384.1",
    "base/5/16384_vm",
    "pg_stat/note",
    "pg_xact/0000",
];

#[derive(Clone, Debug)]
enum Op {
    Write { file: usize, block: u32 },
    Zero { file: usize, block: u32 },
    Extend { file: usize, count: u32 },
    ExtendByBytes { file: usize, count: usize },
    Truncate { file: usize, block: u32 },
    Drop { file: usize },
    Recreate { file: usize, count: u32 },
}

#[derive(Clone, Copy, Debug)]
enum Finder {
    Unknown,
    Lsn,
    Tracker,
    Summary,
}

#[derive(Clone, Debug)]
struct Round {
    ops: Vec<Op>,
    finder: Finder,
    /// Chooses the parent among the layers there are.
    parent: usize,
    pages_per_frame: usize,
}

fn ops() -> impl Strategy<Value = Op> {
    let file = 0..PATHS.len();
    let block = 0..12_u32;
    prop_oneof![
        4 => (file.clone(), block.clone()).prop_map(|(file, block)| Op::Write { file, block }),
        1 => (file.clone(), block.clone()).prop_map(|(file, block)| Op::Zero { file, block }),
        2 => (file.clone(), 1..5_u32).prop_map(|(file, count)| Op::Extend { file, count }),
        1 => (file.clone(), 8..BLOCK).prop_map(|(file, count)| Op::ExtendByBytes { file, count }),
        2 => (file.clone(), block).prop_map(|(file, block)| Op::Truncate { file, block }),
        1 => file.clone().prop_map(|file| Op::Drop { file }),
        1 => (file, 0..6_u32).prop_map(|(file, count)| Op::Recreate { file, count }),
    ]
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let finder = prop_oneof![
        Just(Finder::Unknown),
        Just(Finder::Lsn),
        Just(Finder::Tracker),
        Just(Finder::Summary)
    ];
    let round = (
        prop::collection::vec(ops(), 0..12),
        finder,
        0..100_usize,
        1..5_usize,
    )
        .prop_map(|(ops, finder, parent, pages_per_frame)| Round {
            ops,
            finder,
            parent,
            pages_per_frame,
        });
    prop::collection::vec(round, 1..7)
}

/// The cluster, and what a tracker that notes no more than it must knows since each layer.
#[derive(Default)]
struct Model {
    files: BTreeMap<String, SourceFile>,
    lsn: u64,
    trackers: Vec<BTreeMap<String, FileChanges>>,
}

impl Model {
    fn fork(path: &str) -> Option<ForkKind> {
        match path {
            path if path.ends_with("_vm") => Some(ForkKind::Vm),
            path if path.starts_with("base") => Some(ForkKind::Main),
            _ => None,
        }
    }

    /// A page that changed now. Those of the visibility map keep an old LSN.
    fn new_page(&mut self, path: &str) -> Vec<u8> {
        self.lsn += 1;
        let mut page = support::prose(self.lsn, BLOCK);
        let lsn = if Self::fork(path) == Some(ForkKind::Main) {
            self.lsn
        } else {
            5000
        };
        page[..8].copy_from_slice(&lsn.to_le_bytes());
        page
    }

    fn track(&mut self, path: &str, note: impl Fn(&mut FileChanges)) {
        for tracker in &mut self.trackers {
            note(tracker.entry(path.to_owned()).or_default());
        }
    }

    fn mark(&mut self, path: &str, block: u32) {
        self.track(path, |changes| {
            if changes.limit.is_some_and(|limit| limit <= block) {
                return;
            }
            changes.blocks.insert(block);
        });
    }

    fn put(&mut self, path: &str, block: u32, page: &[u8]) {
        let start = usize::try_from(block).unwrap() * BLOCK;
        let file = self.files.get_mut(path).unwrap();
        let end = file.bytes.len().min(start + BLOCK);
        file.bytes[start..end].copy_from_slice(&page[..end - start]);
    }

    /// New blocks are not marked: whoever plans must see that the file became longer.
    fn extend(&mut self, path: &str, bytes: usize) {
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

    fn create(&mut self, path: &str, count: u32) {
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

    fn apply(&mut self, op: &Op) {
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
struct Backup {
    layer: StoredLayer,
    parent: Option<usize>,
    lsn: u64,
}

fn chain(backups: &[Backup], newest: usize) -> Vec<&StoredLayer> {
    let up = |&at: &usize| backups[at].parent;
    std::iter::successors(Some(newest), up)
        .map(|at| &backups[at].layer)
        .collect()
}

/// Entries of a chain by path, newest first.
fn merged(chain: &[&StoredLayer]) -> HashMap<String, Vec<Option<FileEntry>>> {
    PathMerge::new(chain.iter().map(|layer| entries(layer)).collect())
        .map(|found| found.unwrap())
        .map(|found| (found[0].as_ref().unwrap().path.clone(), found))
        .collect()
}

/// Obeys a plan as a backup does.
fn select(
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
            let digests = support::page_digests(chain, found).unwrap();
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

fn changes(finder: Finder, threshold: u64, tracker: &BTreeMap<String, FileChanges>) -> Changes {
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

fn back_up(model: &Model, backups: &[Backup], round: &Round) -> Backup {
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

fn run_history(history: &[Round]) {
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
fn assert_merged_layers_restore(
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

#[test]
fn every_layer_of_a_random_history_restores_to_what_the_cluster_was() {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    let seed = std::env::var("PGSTRATA_TEST_SEED").unwrap_or_else(|_| now.to_string());
    println!("to run again: PGSTRATA_TEST_SEED={seed}");
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &digest::contents(seed.as_bytes()));
    let config = Config {
        cases: 300,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&rounds(), |history| {
        run_history(&history);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("seed {seed}: {error}");
    }
}

fn small_chain() -> (StoredLayer, StoredLayer, StoredLayer) {
    let mut model = Model {
        lsn: 10_000,
        ..Model::default()
    };
    model.create(PATHS[0], 6);
    let mut backups: Vec<Backup> = Vec::new();
    for block in [0, 1, 2] {
        model.apply(&Op::Write { file: 0, block });
        let round = Round {
            ops: Vec::new(),
            finder: Finder::Lsn,
            parent: backups.len().saturating_sub(1),
            pages_per_frame: 2,
        };
        backups.push(back_up(&model, &backups, &round));
        model.trackers.push(BTreeMap::new());
    }
    let mut layers = backups.into_iter().map(|backup| backup.layer);
    (
        layers.next().unwrap(),
        layers.next().unwrap(),
        layers.next().unwrap(),
    )
}

#[test]
fn a_block_without_a_source_is_damage() {
    let (full, first, second) = small_chain();
    assert!(restore(&[&second, &first, &full]).is_ok());
    let message = restore(&[&second, &first]).unwrap_err().to_string();
    assert_eq!(
        message,
        "file \"base/5/16384\" has no source for block 0 in layer 1 of the chain or below"
    );
    assert!(restore(&[&second]).is_err());
    assert!(
        restore(&[&second, &full]).is_ok(),
        "a chain with a gap is for the manifests to refuse"
    );
}

#[test]
fn a_file_that_one_layer_lacks_inherits_nothing_from_below() {
    let (full, _, second) = small_chain();
    let empty = LayerMaker::new([9; 16], Codec::None, 2).finish();
    assert!(restore(&[&second, &empty, &full]).is_err());
}

#[test]
fn truncated_blocks_do_not_come_back() {
    let old = SourceFile {
        kind: EntryKind::Relation,
        mode: 0o600,
        modified: 0,
        identity: 1,
        bytes: support::noise(1, 4 * BLOCK),
    };
    let mut full = LayerMaker::new([1; 16], Codec::None, 2);
    full.store("base/5/1", &old, &Selection::whole(&old));
    let full = full.finish();
    // Truncated to two blocks, extended to four: block 2 is new, block 3 was not stored.
    let mut child = LayerMaker::new([2; 16], Codec::None, 2);
    child.store(
        "base/5/1",
        &old,
        &Selection {
            blocks: vec![2],
            inherit_limit: 2,
        },
    );
    let message = restore(&[&child.finish(), &full]).unwrap_err().to_string();
    assert!(message.contains("no source for block 3"), "{message}");
}

/// Frames that wholly count are copied, provided nothing lies between their blocks; the others are encoded anew.
#[test]
fn merging_copies_what_wholly_counts() {
    let (full, first, second) = small_chain();
    // Blocks 0, 1 and 2 changed, one in each layer; frames hold two pages. The increments' frames are of one page, the
    // base's second is half overwritten, its third is not.
    let (_, copied) = merge(&[&second, &first, &full], 3, [5; 16]);
    assert_eq!(copied, 3);
    let file = |bytes| SourceFile {
        kind: EntryKind::Relation,
        mode: 0o600,
        modified: 0,
        identity: 1,
        bytes,
    };
    let old = file(support::noise(1, 8 * BLOCK));
    let mut base = LayerMaker::new([1; 16], Codec::None, 2);
    base.store("base/5/1", &old, &Selection::whole(&old));
    let base = base.finish();
    // Pages 1 and 6 in one frame: the base's pages 2 to 5 lie between.
    let new = file(support::noise(2, 8 * BLOCK));
    let mut child = LayerMaker::new([2; 16], Codec::None, 2);
    let selection = Selection {
        blocks: vec![1, 6],
        inherit_limit: 8,
    };
    child.store("base/5/1", &new, &selection);
    let child = child.finish();
    let (merged, copied) = merge(&[&child, &base], 2, [5; 16]);
    assert_eq!(copied, 2, "the base's two frames in between");
    let expected = restore(&[&child, &base]).unwrap();
    assert!(restore(&[&merged]).unwrap() == expected);
}

#[test]
fn a_run_of_blocks_is_half_open() {
    let run = BlockRun { start: 3, count: 2 };
    assert_eq!(run.end(), 5);
    assert_eq!(BlockRun::between(3, 5), Some(run));
    assert_eq!(BlockRun::between(5, 5), None);
}
