//! Random histories of a cluster, backed up as a full layer and increments on any
//! earlier layer, found by every change source: each restores to what the cluster was.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure is a failed test"
)]

mod support;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use pgstrata_layer::digest;
use pgstrata_layer::entry::{BlockRun, EntryKind};
use pgstrata_layer::frame::Codec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use support::history::{Backup, Finder, Model, Op, PATHS, Round, back_up, run_history};
use support::merging::merge;
use support::{BLOCK, LayerMaker, Selection, SourceFile, StoredLayer, restore};

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
