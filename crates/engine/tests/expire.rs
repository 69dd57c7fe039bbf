//! Expiry in a repository: what stays restores, and WAL goes only where no layer needs it.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{self, Manifest};
use pgstrata_layer::retention::Policy;
use pgstrata_store::catalog::{self, Catalog, Layer};
use pgstrata_store::error::{Kind, Result};
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use restore_common::{
    Files, Made, chain, chain_of_three, copy_of, expire_by, generations, history, labels,
    merge_from, rules,
};

fn max_chain(length: usize) -> ExpireOptions {
    rules(Policy {
        max_chain: Some(length),
        ..Policy::default()
    })
}

async fn wal(repository: &Repository, made: &Made) -> Vec<String> {
    let objects = repository.list(&made.cluster.wal_prefix()).await.unwrap();
    objects.into_iter().map(|object| object.key).collect()
}

/// The newest state restores, to the end of its backup.
async fn assert_newest_restores(repository: &Repository, made: &Made) {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(repository, &target, None).await.unwrap();
    made.assert_restored(&target);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_limit_merges_and_wal_before_the_merged_layer_goes() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let archived = wal(&repository, &made).await;
    // What stands in for a damaged object goes and stays with it.
    for (of, key) in [(0, "goes"), (10, "stays")] {
        let name = archived[of].rsplit('/').next().unwrap();
        let timeline = &name[..8];
        let mended = made.cluster.mended_wal_key(timeline, name, 1);
        repository.create(&mended, key.into()).await.unwrap();
    }
    let planned = expire::plan(&made.within(&repository), &max_chain(2))
        .await
        .unwrap();
    assert!(!planned.done);
    assert_eq!(planned.merge.as_ref().unwrap().new_length, 2);
    // As it will be after the merge.
    assert_eq!(planned.wal_files, 10 + 1);
    assert_eq!(planned.remove.len(), 2);
    assert_eq!(labels(&repository, &made).await, made.labels);

    let done = expire_by(&repository, &made, &max_chain(2)).await.unwrap();
    assert!(done.done && done.notes.is_empty(), "{done:?}");
    let left = labels(&repository, &made).await;
    assert_eq!(left.len(), 2);
    assert_eq!(left[1], made.labels[2]);
    // Layers start ten segments apart; the merged one starts where the second did.
    assert_eq!(done.wal_files, 10 + 1);
    assert_eq!((&done.remove, &done.wal), (&planned.remove, &planned.wal));
    let kept = wal(&repository, &made).await;
    assert_eq!(kept, archived[10..]);
    let mended = made.cluster.mended_wal_prefix();
    let mended = repository.list(&mended).await.unwrap();
    assert_eq!(mended.len(), 1);
    assert_eq!(&repository.get(&mended[0].key).await.unwrap()[..], b"stays");
    assert_newest_restores(&repository, &made).await;
    // Nothing is left to do.
    let again = expire_by(&repository, &made, &max_chain(2)).await.unwrap();
    assert_eq!((again.wal_files, again.remove.len()), (0, 0));
    assert!(again.merge.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_keep_everything_change_nothing() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let before = repository.list(made.cluster.as_str()).await.unwrap();
    let policy = Policy {
        keep_full: Some(1),
        ..Policy::default()
    };
    let done = expire_by(&repository, &made, &rules(policy)).await.unwrap();
    assert!(done.done && done.remove.is_empty());
    assert_eq!(
        repository.list(made.cluster.as_str()).await.unwrap(),
        before
    );
    let error = expire_by(&repository, &made, &rules(Policy::default()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_of_a_merge_go_when_no_rule_wants_them() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    merge_from(&repository, &made, 1, false).await;
    // The layers are of 2023: of all days that are kept, only the newest is wanted, and what it stands on.
    let policy = Policy {
        keep_within: Some(SignedDuration::from_hours(7 * 24)),
        ..Policy::default()
    };
    let done = expire_by(&repository, &made, &rules(policy)).await.unwrap();
    assert_eq!(
        done.remove,
        [made.labels[1].to_string(), made.labels[0].to_string()]
    );
    assert_newest_restores(&repository, &made).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_while_a_backup_runs_or_a_manifest_is_damaged() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let running = Label::full(jiff::civil::date(2026, 11, 21).at(13, 0, 0, 0));
    let claim = made.cluster.claim_key(&running);
    repository
        .create(&claim, bytes::Bytes::from_static(b"?"))
        .await
        .unwrap();
    let report = expire_by(&repository, &made, &max_chain(1)).await.unwrap();
    assert!(
        !report.done && report.notes[0].contains("is being made"),
        "{report:?}"
    );
    assert_eq!(labels(&repository, &made).await, made.labels);
    repository.delete(&claim).await.unwrap();

    let manifest = made.cluster.manifest_key(&made.labels[2]);
    let damaged = made
        .copy_with_flipped_byte(&repository, &manifest, 200)
        .await;
    let report = expire_by(&damaged, &made, &max_chain(1)).await.unwrap();
    assert!(
        !report.done && report.notes[0].contains("stands on"),
        "{report:?}"
    );
    assert_eq!(labels(&damaged, &made).await, made.labels[..2]);
}

/// It was merged and removed before, and the copy that brings it again has begun just now.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_while_a_layer_is_copied_that_was_merged_into_another() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    merge_from(&repository, &made, 1, false).await;
    let catalog = Catalog::load(&made.within(&repository)).await.unwrap();
    let copied = catalog.layer(&made.labels[1]).unwrap();
    let claim = made.cluster.claim_key(&copied.label);
    repository
        .create(&claim, claim_of(&copied.manifest))
        .await
        .unwrap();
    let manifest = made.cluster.manifest_key(&copied.label);
    repository.delete(&manifest).await.unwrap();
    let prefix = made.cluster.layer_prefix(&copied.label);
    let before = repository.list(&prefix).await.unwrap();

    let policy = Policy {
        keep_full: Some(1),
        ..Policy::default()
    };
    let report = expire_by(&repository, &made, &rules(policy)).await.unwrap();
    assert!(
        !report.done && report.notes[0].contains("is being made"),
        "{report:?}"
    );
    // Nor does a merge of other layers give it up.
    let merged = merge_from(&repository, &made, 2, true).await;
    let notes = &merged.notes;
    assert!(
        merged.removed.is_empty() && notes[0].contains("is being made"),
        "{merged:?}"
    );
    assert_eq!(repository.list(&prefix).await.unwrap(), before);
}

/// A backup begins at any moment of an expiry: what was merged and removed before is told.
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_beside_a_backup_tells_of_the_merge_that_it_has_made() {
    let original = Repository::memory();
    let made = chain_of_three(&original).await;
    let running = Label::full(jiff::civil::date(2026, 11, 21).at(13, 0, 0, 0));
    let claim = made.cluster.claim_key(&running);
    let (mut told, mut nth) = (0, 0);
    loop {
        let memory = copy_of(&original, &made).await;
        let sound = Repository::with_store(memory.clone());
        let store = FaultStore::holding_up(nth, memory);
        let held_up = Repository::with_store(store.clone());
        let options = max_chain(1);
        let mut expiry = Box::pin(expire_by(&held_up, &made, &options));
        tokio::select! {
            _ = &mut expiry => break,
            () = store.reached() => {}
        }
        let claimed = sound.create(&claim, Bytes::from_static(b"?")).await;
        claimed.unwrap();
        store.go_on();
        // What it has begun to remove it removes.
        let report = expiry.await.ok().filter(|report| !report.done);
        if let Some(report) = report {
            let left = labels(&sound, &made).await;
            assert_eq!(report.merged.is_some(), left != made.labels, "{report:?}");
            assert!(!report.notes.is_empty(), "{report:?}");
            told += u32::from(report.merged.is_some());
        }
        nth += 3;
    }
    assert!(told > 0);
}

/// Whatever operation fails, the newest state restores, and running it again completes it.
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_fails_anywhere_loses_nothing() {
    let failures = expiries_that_fail(Fault::Before).await;
    assert!(failures > 50, "{failures}");
}

/// The same when of a request to delete many half is done.
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_whose_deletions_end_half_way_loses_nothing() {
    let failures = expiries_that_fail(Fault::Halfway).await;
    assert!(failures > 3, "{failures}");
}

/// Answers how many did.
async fn expiries_that_fail(fault: Fault) -> u32 {
    let original = Repository::memory();
    let made = chain_of_three(&original).await;
    let mut failures = 0;
    for nth in 0.. {
        let memory = copy_of(&original, &made).await;
        let sound = Repository::with_store(memory.clone());
        let store = FaultStore::failing_at(nth, fault, memory.clone());
        let faulty = Repository::with_store(store.clone());
        let outcome = expire_by(&faulty, &made, &max_chain(1)).await;
        let ended = store.operation_count() <= nth;
        if fault == Fault::Halfway && outcome.is_ok() && !ended {
            // It was no deletion.
            continue;
        }
        assert_newest_restores(&sound, &made).await;
        if ended {
            assert!(outcome.unwrap().done);
            break;
        }
        failures += u32::from(outcome.is_err());
        let done = expire_by(&sound, &made, &max_chain(1)).await.unwrap();
        assert!(done.done, "{done:?}");
        let left = labels(&sound, &made).await;
        assert_eq!(
            left.len(),
            1,
            "after {nth}: {left:?}, {done:?}, {outcome:?}"
        );
        assert_newest_restores(&sound, &made).await;
    }
    failures
}

/// A chain of four layers, of which three are older than five days, and the objects of a fifth on them.
async fn four_of_five() -> (Repository, Made, Vec<(String, Bytes)>) {
    let repository = Repository::memory();
    let files: Vec<Files> = (0..5).map(|at| generations()[at % 3].clone()).collect();
    let ago = |at: usize, manifest: &mut Manifest| {
        let days = [20, 19, 18, 4, 3][at];
        let time = Timestamp::now() - SignedDuration::from_hours(24 * days);
        (manifest.started_at, manifest.finished_at) = (time, time);
    };
    let made = history(&repository, &files, &[0], ago).await;
    let prefix = made.cluster.layer_prefix(&made.labels[4]);
    let mut fifth = Vec::new();
    for object in repository.list(&prefix).await.unwrap() {
        let bytes = repository.get(&object.key).await.unwrap();
        repository.delete(&object.key).await.unwrap();
        fifth.push((object.key, bytes));
    }
    (repository, made, fifth)
}

/// The host goes down in the night, while WAL goes. The next night there is a layer more, and those are to be merged whose WAL
/// that was.
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_gave_wal_up_is_completed_when_a_merge_is_due() {
    let (original, made, fifth) = four_of_five().await;
    let options = rules(Policy {
        keep_wal: Some(SignedDuration::from_hours(5 * 24)),
        ..max_chain(4).policy
    });
    let mut completed = 0;
    for nth in 0.. {
        let memory = copy_of(&original, &made).await;
        let sound = Repository::with_store(memory.clone());
        let store = FaultStore::failing_at(nth, Fault::Before, memory);
        let failing = Repository::with_store(store.clone());
        let outcome = expire_by(&failing, &made, &options).await;
        if store.operation_count() <= nth {
            let done = outcome.unwrap();
            let did = (done.done, done.merge.is_some(), done.wal_files);
            assert_eq!(did, (true, false, 16), "{done:?}");
            break;
        }
        let cluster = made.within(&sound);
        let pending = async || catalog::pending_removals(&cluster).await.unwrap();
        if pending().await.is_empty() {
            continue;
        }
        for (key, bytes) in &fifth {
            sound.create(key, bytes.clone()).await.unwrap();
        }
        let planned = expire::plan(&cluster, &options).await.unwrap();
        let done = expire_by(&sound, &made, &options).await.unwrap();
        assert!(done.done && done.merged.is_some(), "at {nth}: {done:?}");
        let shown = (&planned.remove, planned.wal_files);
        assert_eq!((&done.remove, done.wal_files), shown, "at {nth}: {done:?}");
        assert!(pending().await.is_empty(), "at {nth}: {done:?}");
        assert_eq!(labels(&sound, &made).await.len(), 4, "at {nth}: {done:?}");
        // What makes the merged layer consistent, and all since the third one.
        assert_eq!(wal(&sound, &made).await.len(), 2 + 31, "at {nth}: {done:?}");
        assert_newest_restores(&sound, &made).await;
        completed += 1;
    }
    assert!(completed > 2, "{completed}");
}

/// The objects of an increment on the second layer, in which nothing changed, and its manifest.
async fn increment_on_the_second(made: &Made) -> (Label, Vec<(String, Bytes)>, Vec<u8>) {
    let [first, second, _] = generations();
    let elsewhere = Repository::memory();
    let chain = chain(
        &elsewhere,
        &[first, second.clone(), second.clone(), second],
        &[],
        None,
    )
    .await;
    let label = chain.labels[3].clone();
    let catalog = Catalog::load(&chain.within(&elsewhere)).await.unwrap();
    let mut manifest = catalog.layer(&label).unwrap().manifest.clone();
    manifest.parent = Some(catalog.layer(&made.labels[1]).unwrap().reference());
    // Of which the WAL is there.
    let third = &catalog.layer(&chain.labels[2]).unwrap().manifest;
    manifest.start_lsn = third.start_lsn;
    manifest.stop_lsn = third.stop_lsn;
    manifest.backup_label.clone_from(&third.backup_label);
    let mut objects = Vec::new();
    for object in elsewhere
        .list(&chain.cluster.layer_prefix(&label))
        .await
        .unwrap()
    {
        if !object.key.ends_with("/manifest") {
            let bytes = elsewhere.get(&object.key).await.unwrap();
            objects.push((object.key, bytes));
        }
    }
    (label, objects, manifest::encode(&manifest))
}

/// The claim of the layer of that manifest.
fn claim_of(manifest: &Manifest) -> Bytes {
    let record = ClaimRecord {
        label: manifest.label.clone(),
        layer_id: manifest.layer_id.clone(),
        host: "elsewhere".to_owned(),
        pid: 4711,
        started_at: manifest.started_at,
        written_by: "a test".to_owned(),
    };
    claim::encode(&record).into()
}

/// A backup on the second layer that is made while an expiry runs.
struct Meeting {
    original: Repository,
    made: Made,
    label: Label,
    objects: Vec<(String, Bytes)>,
    manifest: Vec<u8>,
    chain: Vec<Arc<Layer>>,
}

/// What came out of it.
struct Met {
    sound: Repository,
    expired: Result<ExpireReport>,
    /// Nothing when the expiry had ended before.
    committed: Option<Result<()>>,
    operations: u64,
}

impl Meeting {
    async fn new() -> Self {
        let original = Repository::memory();
        let made = chain_of_three(&original).await;
        let (label, objects, manifest) = increment_on_the_second(&made).await;
        let catalog = Catalog::load(&made.within(&original)).await.unwrap();
        let chain = catalog.chain(&made.labels[1]).unwrap().into_iter();
        Self {
            chain: chain.map(|layer| Arc::new(layer.clone())).collect(),
            original,
            made,
            label,
            objects,
            manifest,
        }
    }

    /// Stores all but the manifest, once that operation of the expiry has begun.
    async fn begin(&self, sound: &Repository, store: &FaultStore, nth: Option<u64>) {
        while nth.is_some_and(|nth| store.operation_count() <= nth) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let claim = claim_of(&manifest::decode(&self.manifest).unwrap());
        let key = self.made.cluster.claim_key(&self.label);
        sound.create(&key, claim).await.unwrap();
        for (key, bytes) in &self.objects {
            sound.create(key, bytes.clone()).await.unwrap();
        }
    }

    async fn commit(&self, sound: &Repository) -> Result<()> {
        let manifest = self.manifest.clone();
        let cluster = self.made.within(sound);
        let committed = catalog::commit_layer(&cluster, &self.label, &self.chain, manifest);
        Ok(committed.await.map(|_| ())?)
    }

    /// The backup begins while the expiry's `nth` operation hangs, and commits then or when the expiry has ended.
    async fn at(&self, nth: u64, at_the_end: bool) -> Met {
        let memory = copy_of(&self.original, &self.made).await;
        let sound = Repository::with_store(memory.clone());
        let pause = Fault::Delayed(Duration::from_millis(30));
        let store = FaultStore::failing_at(nth, pause, memory);
        let (faulty, options) = (Repository::with_store(store.clone()), max_chain(1));
        let mut expiry = Box::pin(expire_by(&faulty, &self.made, &options));
        let expired = tokio::select! {
            outcome = &mut expiry => Some(outcome),
            () = self.begin(&sound, &store, Some(nth)) => None,
        };
        let (expired, committed) = match expired {
            Some(expired) => (expired, None),
            None if at_the_end => (expiry.await, Some(self.commit(&sound).await)),
            None => {
                let (expired, committed) = tokio::join!(expiry, self.commit(&sound));
                (expired, Some(committed))
            }
        };
        Met {
            sound,
            expired,
            committed,
            operations: store.operation_count(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_13_5_a_commit_looks_at_its_claim_and_its_objects_once_more() {
    let meeting = Meeting::new().await;
    let cluster = &meeting.made.cluster;
    let mut objects = meeting.objects.clone();
    objects.push((cluster.claim_key(&meeting.label), Bytes::new()));
    for (lost, contents) in &objects {
        for cut in [false, true] {
            let memory = copy_of(&meeting.original, &meeting.made).await;
            let sound = Repository::with_store(memory.clone());
            meeting.begin(&sound, &FaultStore::new(memory), None).await;
            sound.delete(lost).await.unwrap();
            if cut && !contents.is_empty() {
                let less = contents.slice(..contents.len() - 1);
                sound.create(lost, less).await.unwrap();
            }
            let error = meeting.commit(&sound).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Refused, "{lost}: {error}");
            let manifest = cluster.manifest_key(&meeting.label);
            assert_eq!(sound.size(&manifest).await.unwrap(), None, "{lost}");
        }
    }
    assert!(objects.len() >= 4);
}

/// At every moment of the expiry. No layer is ever without what it stands on.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_at_any_moment_of_an_expiry_stands_on_what_stays() {
    let meeting = Meeting::new().await;
    let made = &meeting.made;
    let (mut committed, mut refused, mut withdrew) = (0, 0, 0);
    for nth in 0.. {
        let mut operations = 0;
        for at_the_end in [false, true] {
            let met = meeting.at(nth, at_the_end).await;
            operations = met.operations;
            let catalog = Catalog::load(&made.within(&met.sound)).await.unwrap();
            for layer in &catalog.layers {
                let whole = catalog.chain(&layer.label);
                assert!(whole.is_ok(), "at {nth}: {whole:?}, {:?}", met.expired);
            }
            match met.committed {
                Some(Ok(())) => {
                    committed += 1;
                    // Committed before the expiry had looked, it may be part of the merged layer.
                    let stamp = meeting.label.own_stamp();
                    let mut layers = catalog.layers.iter();
                    let standing = layers.rfind(|layer| layer.manifest.state_stamp() == stamp);
                    let standing = &standing.unwrap().label;
                    // Chains are looked at every time; a whole restore takes half a second.
                    if nth % 7 == 0 {
                        assert_restores(&met.sound, made, standing).await;
                    }
                }
                Some(Err(error)) => {
                    refused += 1;
                    assert_eq!(error.kind(), Kind::Refused, "{error}");
                }
                None => {}
            }
            withdrew += u32::from(!matches!(met.expired, Ok(report) if report.done));
        }
        if operations <= nth {
            break;
        }
    }
    // Each of the ways out is taken.
    let told = format!("{committed} committed, {refused} refused, {withdrew} withdrew");
    assert!(committed > 10 && refused > 10 && withdrew > 10, "{told}");
}

/// Two expiries of different hosts may merge the same layers.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_equal_merges_one_goes() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let elsewhere = Repository::with_store(copy_of(&repository, &made).await);
    for store in [&repository, &elsewhere] {
        merge_from(store, &made, 2, false).await;
        // Labels have whole seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    let ours = labels(&repository, &made).await;
    for object in elsewhere.list(&made.cluster.layers_prefix()).await.unwrap() {
        if !ours
            .iter()
            .any(|label| object.key.contains(&format!("/{label}/")))
        {
            let bytes = elsewhere.get(&object.key).await.unwrap();
            repository.create(&object.key, bytes).await.unwrap();
        }
    }
    assert_eq!(labels(&repository, &made).await.len(), 5);
    let done = expire_by(&repository, &made, &max_chain(9)).await.unwrap();
    assert!(done.done, "{done:?}");
    assert_eq!(labels(&repository, &made).await.len(), 1);
    assert_newest_restores(&repository, &made).await;
}

/// The layer restores to the files of the second generation.
async fn assert_restores(repository: &Repository, made: &Made, label: &Label) {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(repository, &target, Some(label))
        .await
        .unwrap();
    for (path, contents) in &generations()[1] {
        if let (true, Some(contents)) = (path.starts_with("base/5/"), contents) {
            assert!(
                std::fs::read(target.join(path)).unwrap() == *contents,
                "{path}"
            );
        }
    }
}
