//! Merging in a repository: the same bytes before and after, whatever fails on the way.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use pgstrata_engine::merge::{self, MergeOptions, MergeReport};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_store::catalog::Catalog;
use pgstrata_store::error::{Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use restore_common::{Files, Made, branch_off, chain, copy_of, generations, page};

const BLOCK: usize = 8192;

/// Five generations: what the other tests have, and two more.
fn five() -> Vec<Files> {
    let mut all = generations().to_vec();
    let mut fourth = all[2].clone();
    let sixty = fourth.get_mut("base/5/60").unwrap().as_mut().unwrap();
    for block in [0, 7, 100, 101, 299] {
        sixty[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&page(4, block as u32));
    }
    fourth.remove("base/5/50");
    all.push(fourth.clone());
    let ten = fourth.get_mut("base/5/10").unwrap().as_mut().unwrap();
    ten.truncate(3 * BLOCK);
    fourth.insert("base/5/70".to_owned(), Some(vec![9; 2 * BLOCK]));
    all.push(fourth);
    all
}

fn merging(label: &Label, into: Option<&Label>) -> MergeOptions {
    MergeOptions {
        label: label.clone(),
        into: into.cloned(),
        codec: Codec::default(),
        jobs: 2,
        remove: false,
        ignore_restores: true,
    }
}

async fn execute(
    repository: &Repository,
    made: &Made,
    options: &MergeOptions,
) -> Result<MergeReport> {
    merge::execute(&made.within(repository), options, &Progress::default()).await
}

/// The restored files of a layer.
async fn restored(
    repository: &Repository,
    made: &Made,
    label: &Label,
) -> BTreeMap<String, Vec<u8>> {
    fn walk(root: &Path, directory: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                found.insert(name, b"directory".to_vec());
                walk(root, &path, found);
            } else {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(repository, &target, Some(label))
        .await
        .unwrap();
    let mut found = BTreeMap::new();
    walk(&target, &target, &mut found);
    found.remove("backup_manifest");
    // It says which directory it is of.
    found.remove("pgstrata.lineage");
    // It names the layer.
    found.remove("postgresql.auto.conf");
    found
}

async fn all_restored(
    repository: &Repository,
    made: &Made,
) -> BTreeMap<Label, BTreeMap<String, Vec<u8>>> {
    let catalog = Catalog::load(&made.within(repository)).await.unwrap();
    let mut all = BTreeMap::new();
    for layer in &catalog.layers {
        all.insert(
            layer.label.clone(),
            restored(repository, made, &layer.label).await,
        );
    }
    all
}

fn parse(label: &str) -> Label {
    Label::parse(label).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_becomes_a_full_layer_and_its_children_stay() {
    let repository = Repository::memory();
    let made = chain(&repository, &five(), &[], None).await;
    let before = all_restored(&repository, &made).await;
    let mut options = merging(&made.labels[2], None);
    let report = execute(&repository, &made, &options).await.unwrap();
    assert!(report.frames_copied > 50, "{report:?}");
    assert!(report.frames_encoded > 0, "{report:?}");
    let merged = parse(&report.label);
    assert_eq!(merged.kind(), LayerKind::Full);
    assert!(report.removed.is_empty());
    assert!(restored(&repository, &made, &merged).await == before[&made.labels[2]]);

    // Its place in time is that of the state, not that of the merge; chains are shorter by it.
    let catalog = Catalog::load(&made.within(&repository)).await.unwrap();
    let labels: Vec<&Label> = catalog.layers.iter().map(|layer| &layer.label).collect();
    assert_eq!(labels[3], &merged);
    assert_eq!(catalog.chain(&made.labels[4]).unwrap().len(), 3);
    assert_eq!(
        catalog.layers[3].manifest.start_lsn,
        catalog.layers[2].manifest.start_lsn
    );

    // Again, it finds what it made; confirmed, the inputs go.
    options.remove = true;
    let again = execute(&repository, &made, &options).await.unwrap();
    assert_eq!(again.label, report.label);
    assert_eq!(again.removed.len(), 3);
    let after = all_restored(&repository, &made).await;
    assert_eq!(after.len(), 3);
    for (label, files) in &after {
        let expected = before.get(label).unwrap_or(&before[&made.labels[2]]);
        assert!(files == expected, "{label}");
    }
    let catalog = Catalog::load(&made.within(&repository)).await.unwrap();
    let error = catalog.layer(&made.labels[2]).unwrap_err();
    assert!(error.to_string().contains("was merged into"), "{error}");
    // As the oldest of a chain, it names what stands for it.
    let options = merging(&made.labels[4], Some(&made.labels[2]));
    let last = execute(&repository, &made, &options).await.unwrap();
    assert_eq!(last.inputs.len(), 3, "{last:?}");
    assert_eq!(last.inputs[2], merged.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn increments_become_one_and_what_is_stood_upon_stays() {
    let repository = Repository::memory();
    let made = chain(&repository, &five(), &[], None).await;
    let before = all_restored(&repository, &made).await;
    let mut options = merging(&made.labels[3], Some(&made.labels[2]));
    options.remove = true;
    let first = execute(&repository, &made, &options).await.unwrap();
    let merged = parse(&first.label);
    assert_eq!(merged.kind(), LayerKind::Incremental);
    assert_eq!(merged.root(), made.labels[0].as_str());
    assert_eq!(first.stands_on.as_deref(), Some(made.labels[1].as_str()));
    assert_eq!(first.removed.len(), 2);
    assert!(restored(&repository, &made, &merged).await == before[&made.labels[3]]);
    assert!(restored(&repository, &made, &made.labels[4]).await == before[&made.labels[4]]);

    // A merged layer merges like any other, and stands for all that its inputs stood for.
    let options = merging(&merged, Some(&made.labels[1]));
    let second = execute(&repository, &made, &options).await.unwrap();
    let catalog = Catalog::load(&made.within(&repository)).await.unwrap();
    let twice = catalog.layer(&parse(&second.label)).unwrap();
    assert_eq!(twice.manifest.replaces.len(), 2);
    assert_eq!(catalog.chain(&made.labels[4]).unwrap().len(), 3);
    // The first increment has no other child than the inputs and the merged ones.
    let mut options = merging(&merged, Some(&made.labels[1]));
    options.remove = true;
    let report = execute(&repository, &made, &options).await.unwrap();
    assert_eq!(report.removed.len(), 2, "{report:?}");
    let after = all_restored(&repository, &made).await;
    assert_eq!(after.len(), 3);
    assert!(after[&made.labels[4]] == before[&made.labels[4]]);
    // The full layer is stood upon by the merged one.
    let error = execute(&repository, &made, &merging(&made.labels[0], None))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
}

/// A server went back to the end of the second layer, and has not been backed up since.
#[tokio::test(flavor = "multi_thread")]
async fn the_layer_from_which_another_timeline_goes_on_outlives_a_merge() {
    let repository = Repository::memory();
    let made = chain(&repository, &five()[..4], &[], None).await;
    branch_off(&repository, &made, 1, 3).await;
    let mut options = merging(&made.labels[3], None);
    options.remove = true;
    let cluster = made.within(&repository);
    let planned = merge::plan(&cluster, &options).await.unwrap();
    let removable: Vec<bool> = planned.inputs.iter().map(|input| input.removable).collect();
    assert_eq!(removable, [true, true, false, false], "{planned:?}");
    let report = execute(&repository, &made, &options).await.unwrap();
    assert_eq!(report.removed.len(), 2, "{report:?}");
    let why = format!(
        "{} stays: it is the newest layer from which timeline 2",
        made.labels[1]
    );
    for notes in [&planned.notes, &report.notes] {
        assert!(notes.iter().any(|note| note.starts_with(&why)), "{notes:?}");
    }
    let catalog = Catalog::load(&cluster).await.unwrap();
    assert!(catalog.whole(&made.labels[1]).is_ok());
}

/// After each failure every listed layer restores to what it was, and a merge that runs again completes.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_fails_anywhere_loses_nothing_and_can_be_repeated() {
    let original = Repository::memory();
    let made = chain(&original, &five()[..3], &[], None).await;
    let newest = restored(&original, &made, &made.labels[2]).await;
    for fault in [Fault::Before, Fault::After] {
        let mut failures = 0;
        for nth in 0.. {
            let memory = copy_of(&original, &made).await;
            let sound = Repository::with_store(memory.clone());
            let store = FaultStore::failing_at(nth, fault, memory.clone());
            let mut options = merging(&made.labels[2], None);
            options.remove = true;
            let faulty = Repository::with_store(store.clone());
            let outcome = execute(&faulty, &made, &options).await;
            let catalog = Catalog::load(&made.within(&sound)).await.unwrap();
            assert!(catalog.damaged.is_empty());
            for layer in &catalog.layers {
                let label = &layer.label;
                assert!(catalog.chain(label).is_ok(), "{label} after {nth}");
                let state = layer
                    .manifest
                    .replaces
                    .last()
                    .map_or(label.as_str(), |r| &r.label);
                if state == made.labels[2].as_str() {
                    assert!(restored(&sound, &made, label).await == newest, "{nth}");
                }
            }
            assert!(!catalog.layers.is_empty());
            if let Ok(report) = outcome {
                // A record that nobody gets may say that the inputs are needed.
                let stays = report.removed.is_empty();
                assert!(!stays || !report.notes.is_empty(), "{nth}");
                assert_eq!(report.removed.len(), if stays { 0 } else { 3 }, "{nth}");
                assert_eq!(catalog.layers.len(), if stays { 4 } else { 1 }, "{nth}");
                if store.operation_count() <= nth {
                    break;
                }
                // What failed was not needed.
                continue;
            }
            failures += 1;
            let left = catalog.layers.len();
            match execute(&sound, &made, &options).await {
                Ok(report) => {
                    let merged = parse(&report.label);
                    assert!(restored(&sound, &made, &merged).await == newest);
                }
                // It failed after the last manifest had gone.
                Err(error) => {
                    assert_eq!(left, 1, "{nth}: {error}");
                    assert!(error.to_string().contains("was merged into"), "{error}");
                }
            }
            let catalog = Catalog::load(&made.within(&sound)).await.unwrap();
            assert_eq!(catalog.layers.len(), 1, "{fault:?} {nth}");
        }
        assert!(failures > 20, "{failures}");
    }
}

/// What is on its way when another operation fails must not arrive after the clean-up: it would look like somebody at
/// work, and keep everything from being removed for a day.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_failed_merge_arrives_late() {
    let original = Repository::memory();
    let made = chain(&original, &five()[..3], &[], None).await;
    let late = Duration::from_millis(20);
    for nth in 0.. {
        let memory = copy_of(&original, &made).await;
        let store = FaultStore::failing_at(nth, Fault::Before, memory.clone());
        store.fail(nth + 1..nth + 2, Fault::Delayed(late));
        let faulty = Repository::with_store(store.clone());
        let merged = execute(&faulty, &made, &merging(&made.labels[2], None)).await;
        if store.operation_count() <= nth {
            assert!(nth > 20 && merged.is_ok(), "{nth}");
            break;
        }
        // What was fetched ahead is fetched again.
        if merged.is_ok() {
            continue;
        }
        tokio::time::sleep(late * 2).await;
        let sound = Repository::with_store(memory);
        let catalog = Catalog::load(&made.within(&sound)).await.unwrap();
        // When the manifest could not be written everything is kept, with its claim.
        let mut left = catalog.unfinished.iter();
        assert!(left.all(|left| left.claim.is_some()), "{nth}: {catalog:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_an_input_is_found_before_anything_is_removed() {
    let repository = Repository::memory();
    let made = chain(&repository, &five()[..3], &[], None).await;
    for key in made.pack_keys(&repository).await {
        let damaged = made.copy_with_flipped_byte(&repository, &key, 60).await;
        let mut options = merging(&made.labels[2], None);
        options.remove = true;
        let error = execute(&damaged, &made, &options).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{key}: {error}");
        let catalog = Catalog::load(&made.within(&damaged)).await.unwrap();
        assert_eq!(catalog.layers.len(), 3);
        assert!(catalog.unfinished.is_empty());
    }
}

/// Another backup may be reading the inputs, or about to stand on one of them.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_removed_while_a_layer_is_being_made() {
    let repository = Repository::memory();
    let made = chain(&repository, &five()[..3], &[], None).await;
    let label = made.labels[2].successor(
        LayerKind::Incremental,
        jiff::civil::date(2026, 11, 21).at(12, 0, 0, 0),
    );
    let claim = made.cluster.claim_key(&label);
    repository
        .create(&claim, bytes::Bytes::from_static(b"x"))
        .await
        .unwrap();
    let mut options = merging(&made.labels[2], None);
    options.remove = true;
    let report = execute(&repository, &made, &options).await.unwrap();
    assert!(report.removed.is_empty());
    assert!(
        report.notes[0].contains("is being made"),
        "{:?}",
        report.notes
    );
    repository.delete(&claim).await.unwrap();
    let report = execute(&repository, &made, &options).await.unwrap();
    assert_eq!(report.removed.len(), 3);
}
