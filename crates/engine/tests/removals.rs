//! Removals that somebody has decided on: what they name goes when this run decides so too, and not because they say so.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

#[path = "../../layer/tests/support/forged.rs"]
mod forged;
mod restore_common;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pgstrata_engine::expire::{self, ExpireOptions};
use pgstrata_engine::mark;
use pgstrata_engine::mirror::{self, MirrorOptions};
use pgstrata_engine::restore::{self, Method, RestoreOptions, Target};
use pgstrata_layer::claim::ClaimRecord;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest::{self, Manifest};
use pgstrata_layer::mark::{Annotation, Pin};
use pgstrata_layer::removal::WalKept;
use pgstrata_layer::restoring::RestoreRecord;
use pgstrata_layer::retention::Policy;
use pgstrata_pgdata::{Lsn, TimelineId};
use pgstrata_store::catalog::{self, Catalog, LayerPlan, Restoring};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use pgstrata_store::repository::{Repository, RepositoryOptions};
use restore_common::{
    Made, branch_off, chain_of_three, copy_of, expire_by, generations, history, labels, merge_from,
    options, rules, store_layer, switched_object, wal_segment_size,
};

fn keep_full(count: usize) -> ExpireOptions {
    rules(Policy {
        keep_full: Some(count),
        ..Policy::default()
    })
}

/// The layers are of 2023: the newest state alone is wanted, and what it stands on.
fn newest_alone() -> ExpireOptions {
    rules(Policy {
        keep_within: Some(SignedDuration::from_hours(7 * 24)),
        ..Policy::default()
    })
}

async fn keys(repository: &Repository, made: &Made) -> BTreeSet<String> {
    let objects = repository.list(made.cluster.as_str()).await.unwrap();
    objects.into_iter().map(|object| object.key).collect()
}

async fn require_restores(repository: &Repository, made: &Made, label: Option<&Label>) {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(repository, &target, label).await.unwrap();
}

/// What a host that may only create objects can put there. Answers the keys.
async fn forge(
    repository: &Repository,
    made: &Made,
    named: &[&Label],
    wal: Option<(Lsn, Vec<WalKept>)>,
) -> [String; 2] {
    let catalog = Catalog::load(&made.within(repository)).await.unwrap();
    let layers = named.iter();
    let layers: Vec<_> = layers
        .map(|label| catalog.layer(label).unwrap().reference())
        .collect();
    let forged = forged::removal(&layers, wal);
    for (key, body) in &forged {
        let key = format!("{}/{key}", made.cluster.as_str());
        repository.create(&key, body.clone().into()).await.unwrap();
    }
    forged.map(|(key, _)| format!("{}/{key}", made.cluster.as_str()))
}

/// The plan shows it, the deed is refused, nothing is gone, and without the record all is as ever. Answers the error.
async fn require_refused(
    repository: &Repository,
    made: &Made,
    options: &ExpireOptions,
    forged: &[String; 2],
) -> Error {
    let before = keys(repository, made).await;
    let planned = expire::plan(&made.within(repository), options)
        .await
        .unwrap();
    let [removal] = &planned.removals[..] else {
        panic!("{planned:?}");
    };
    assert_eq!(removal.id, "f0f0");
    assert!(
        removal.by.contains("process 4711 on \"stolen\""),
        "{removal:?}"
    );
    assert!(!removal.refused.is_empty(), "{removal:?}");
    let error = expire_by(repository, made, options).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains(&forged[0]), "{error}");
    let hint = error.hint_text().unwrap_or_default();
    assert!(hint.contains(&forged[1]), "{hint}");
    assert!(planned.notes.contains(&error.to_string()), "{planned:?}");
    assert_eq!(keys(repository, made).await, before);
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_removal_takes_nothing_that_the_rules_keep() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let named: Vec<&Label> = made.labels.iter().rev().collect();
    let forged = forge(&repository, &made, &named, None).await;
    let error = require_refused(&repository, &made, &keep_full(1), &forged).await;
    for label in &made.labels {
        assert!(error.to_string().contains(label.as_str()), "{error}");
    }
    assert!(error.to_string().contains("--keep-full"), "{error}");
    require_restores(&repository, &made, None).await;
    for key in &forged {
        repository.delete(key).await.unwrap();
    }
    assert!(
        expire_by(&repository, &made, &keep_full(1))
            .await
            .unwrap()
            .done
    );
    assert_eq!(labels(&repository, &made).await, made.labels);
}

/// A restore in place takes the directory apart before it has read a page. It does not for a layer that is about to go.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_taken_apart_for_a_layer_that_is_being_removed() {
    let original = Repository::memory();
    let made = chain_of_three(&original).await;
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("data");
    made.restore(&original, &directory, None).await.unwrap();
    let control = || std::fs::read(directory.join("global/pg_control")).unwrap();
    let before = control();
    let in_place = async |repository: &Repository, target| {
        let options = RestoreOptions {
            method: Method::Delta,
            label: Some(made.labels[1].clone()),
            target,
            ..options(&directory)
        };
        let plan = restore::plan(&made.within(repository), options).await?;
        restore::execute(&plan, &Progress::default()).await
    };
    let catalog = Catalog::load(&made.within(&original)).await.unwrap();
    let newest = catalog.layer(&made.labels[2]).unwrap().manifest.start_lsn;
    // Its own WAL stays, and what is behind that goes.
    let wal_goes = || Some((newest, Vec::new()));
    for (named, wal, target, refused) in [
        (vec![1, 0], None, Target::Immediate, true),
        (vec![0], None, Target::Immediate, true),
        (Vec::new(), wal_goes(), Target::Default, true),
        (Vec::new(), wal_goes(), Target::Immediate, false),
        (vec![2], None, Target::Immediate, false),
    ] {
        let repository = Repository::with_store(copy_of(&original, &made).await);
        let named: Vec<&Label> = named.into_iter().map(|at| &made.labels[at]).collect();
        forge(&repository, &made, &named, wal).await;
        let done = in_place(&repository, target).await;
        if !refused {
            done.unwrap();
            continue;
        }
        let error = done.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        assert!(error.to_string().contains("being removed"), "{error}");
        assert!(control() == before);
    }
}

/// What it says that it needs would keep the removal from being completed.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_a_removal_refuses_leaves_nothing_behind() {
    let source = Repository::memory();
    let made = chain_of_three(&source).await;
    let target = Repository::with_store(copy_of(&source, &made).await);
    let newest = &made.labels[2];
    forge(&target, &made, &[newest], None).await;
    let manifest = made.cluster.manifest_key(newest);
    target.delete(&manifest).await.unwrap();
    let before = keys(&target, &made).await;
    let (from, to) = (made.within(&source), made.within(&target));
    let (options, progress) = (MirrorOptions::default(), Progress::default());
    let report = mirror::execute(&from, &to, &options, &progress).await;
    let report = report.unwrap();
    assert_eq!((report.layers.len(), report.left_out.len()), (0, 1));
    assert!(
        report.left_out[0].why.contains("being removed"),
        "{report:?}"
    );
    assert_eq!(keys(&target, &made).await, before);
}

/// It was said to be made, and who cannot pin again takes nothing back of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_outlives_another_that_is_refused() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let cluster = made.within(&repository);
    let pin = |note: &str| Pin {
        until: None,
        note: Some(note.to_owned()),
    };
    let first = &made.labels[0];
    mark::pin(&cluster, first, pin("first")).await.unwrap();
    let forged = forge(&repository, &made, &[first], None).await;
    let refused = mark::pin(&cluster, first, pin("second")).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Refused, "{refused}");
    for key in &forged {
        repository.delete(key).await.unwrap();
    }
    let unpinned = mark::unpin(&cluster, first).await;
    assert!(unpinned.unwrap().pin.is_none());
    // The layer that nobody had pinned is not pinned then.
    let second = &made.labels[1];
    forge(&repository, &made, &[second], None).await;
    mark::pin(&cluster, second, pin("third")).await.unwrap_err();
    assert!(mark::unpin(&cluster, second).await.is_err());
}

/// Nobody knows whether a mark that is damaged or gone was a pin.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_that_is_refused_unpins_nothing_of_which_it_is_not_known() {
    for is_damaged in [false, true] {
        let repository = Repository::memory();
        let made = chain_of_three(&repository).await;
        let cluster = made.within(&repository);
        let first = &made.labels[0];
        mark::pin(&cluster, first, Pin::default()).await.unwrap();
        let (key, value) = ("ticket".to_owned(), Some("4711".to_owned()));
        let note = Annotation { key, value };
        mark::annotate(&cluster, first, note).await.unwrap();
        let key = made.cluster.mark_key(first, 0);
        repository.delete(&key).await.unwrap();
        if is_damaged {
            repository.create(&key, "?".into()).await.unwrap();
        }
        let forged = forge(&repository, &made, &[first], None).await;
        let refused = mark::pin(&cluster, first, Pin::default())
            .await
            .unwrap_err();
        assert!(
            refused.hint_text().unwrap().contains("is not known"),
            "{refused}"
        );
        for key in &forged {
            repository.delete(key).await.unwrap();
        }
        let unpinned = mark::unpin(&cluster, first).await;
        assert!(
            unpinned.is_ok(),
            "{is_damaged}: it was not pinned: {unpinned:?}"
        );
    }
}

/// Layers start in the segments 20, 30 and 40. The archive ends with 50.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_removal_of_wal_takes_none_that_the_rules_keep() {
    let original = Repository::memory();
    let made = chain_of_three(&original).await;
    let catalog = Catalog::load(&made.within(&original)).await.unwrap();
    let newest = &catalog.layer(&made.labels[2]).unwrap().manifest;
    // The WAL that one layer needs would stay: then a hole would be called one that was meant, too.
    let kept = WalKept {
        timeline: newest.timeline,
        start_lsn: newest.start_lsn,
        stop_lsn: newest.stop_lsn,
    };
    for kept in [Vec::new(), vec![kept]] {
        let repository = Repository::with_store(copy_of(&original, &made).await);
        let wal = Some((Lsn::new(newest.stop_lsn.get() + (1 << 40)), kept));
        let forged = forge(&repository, &made, &[], wal).await;
        let error = require_refused(&repository, &made, &keep_full(1), &forged).await;
        assert!(error.to_string().contains("files of WAL"), "{error}");
        require_restores(&repository, &made, None).await;
    }
    // What the rules give up anyway may be named.
    let repository = Repository::with_store(copy_of(&original, &made).await);
    let first = &catalog.layer(&made.labels[0]).unwrap().manifest;
    let wal = Some((first.start_lsn, Vec::new()));
    forge(&repository, &made, &[], wal).await;
    assert!(
        expire_by(&repository, &made, &keep_full(1))
            .await
            .unwrap()
            .done
    );
    let left = keys(&repository, &made).await;
    assert!(!left.iter().any(|key| key.contains("/wanted")), "{left:?}");
}

/// All layers, and no WAL between them.
fn layers_alone() -> ExpireOptions {
    rules(Policy {
        keep_wal: Some(SignedDuration::ZERO),
        ..Policy::default()
    })
}

/// What a complete expiry by [`layers_alone`] leaves, and a server that was taken back to the end of the first layer since. With
/// what that expiry had decided.
async fn taken_back(repository: &Repository) -> (Made, (Lsn, Vec<WalKept>)) {
    let made = chain_of_three(repository).await;
    let done = expire_by(repository, &made, &layers_alone()).await;
    assert!(done.unwrap().done);
    branch_off(repository, &made, 0, 6).await;
    let catalog = Catalog::load(&made.within(repository)).await.unwrap();
    let kept = catalog.layers[..2].iter().map(|layer| WalKept {
        timeline: layer.manifest.timeline,
        start_lsn: layer.manifest.start_lsn,
        stop_lsn: layer.manifest.stop_lsn,
    });
    let kept = kept.collect();
    (made, (catalog.layers[2].manifest.start_lsn, kept))
}

/// A copy of the repository in a directory, where a test says when objects were stored.
async fn in_directory(original: &Repository, made: &Made, root: &Path) -> Repository {
    let url = format!("file://{}", root.display());
    let copy = Repository::open(&RepositoryOptions::new(url)).unwrap();
    for object in original.list(made.cluster.as_str()).await.unwrap() {
        let bytes = original.get(&object.key).await.unwrap();
        copy.create(&object.key, bytes).await.unwrap();
    }
    copy
}

fn stored_hours_ago(root: &Path, key: &str, hours: u64) {
    let file = File::open(root.join(key)).unwrap();
    let time = SystemTime::now() - Duration::from_secs(3600 * hours);
    file.set_modified(time).unwrap();
}

/// Makes a layer of the second timeline, which starts in segment 24.
async fn commit_on_branch(cluster: &ClusterRepository) {
    let id = [9; 16];
    let claim = ClaimRecord {
        label: String::new(),
        layer_id: catalog::hex(&id),
        host: "a host".to_owned(),
        pid: 1,
        started_at: Timestamp::now(),
        written_by: "a test".to_owned(),
    };
    let catalog = Catalog::load(cluster).await.unwrap();
    let plan = LayerPlan {
        kind: LayerKind::Full,
        parent: None,
    };
    let label = catalog::claim(cluster, &catalog, plan, claim).await;
    let label = label.unwrap();
    let [files, ..] = generations();
    let stored = store_layer(cluster, &label, id, None, &files).await;
    let manifest = Manifest {
        timeline: TimelineId::new(2),
        start_lsn: Lsn::new(24 * wal_segment_size() + 40),
        stop_lsn: Lsn::new(25 * wal_segment_size() + 40),
        ..stored.unwrap()
    };
    let object = manifest::encode(&manifest);
    catalog::commit_layer(cluster, &label, &[], object)
        .await
        .unwrap();
}

/// Its remover was killed before it forgot the removal. By its position alone what the server writes now is named, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_of_wal_is_over_when_nothing_is_left_but_a_timeline_that_began_since() {
    let original = Repository::memory();
    let (made, decided) = taken_back(&original).await;
    let again = format!("00000001{:016X}", 25);
    let again = made.cluster.wal_key("00000001", &again);
    let history = made.cluster.wal_key("00000002", "00000002.history");
    // The age of the verdict; how old the timeline is, and whether what was removed was pushed once more.
    for (verdict, began, is_again, is_over) in [
        (2, 1, false, true),
        (0, 0, false, false),
        (2, 3, false, false),
        (2, 1, true, false),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let repository = in_directory(&original, &made, scratch.path()).await;
        let forged = forge(&repository, &made, &[], Some(decided.clone())).await;
        stored_hours_ago(scratch.path(), &forged[1], verdict);
        stored_hours_ago(scratch.path(), &history, began);
        if is_again {
            let object = switched_object(25);
            repository.create(&again, object.into()).await.unwrap();
        }
        let cluster = made.within(&repository);
        let leaving = catalog::check_stays(&cluster, &[]).await.unwrap();
        let start = Lsn::new(24 * wal_segment_size());
        let refused = catalog::check_wal(&leaving, start).unwrap_err();
        assert!(refused.to_string().contains("\"f0f0\""), "{refused}");
        let hint = refused.hint_text().unwrap();
        assert!(hint.contains("removal/f0f0/verdict"), "{hint}");

        if !is_over {
            let error = require_refused(&repository, &made, &layers_alone(), &forged).await;
            let hint = error.hint_text().unwrap();
            assert!(hint.contains("was taken back since"), "{hint}");
            continue;
        }
        let done = expire_by(&repository, &made, &layers_alone()).await;
        let done = done.unwrap();
        assert!(done.done && done.removals[0].wal_files == 0, "{done:?}");
        let left = keys(&repository, &made).await;
        assert!(!left.contains(&forged[0]), "{left:?}");
        commit_on_branch(&cluster).await;
        assert_eq!(labels(&repository, &made).await.len(), 4);
    }
}

/// A merged layer with its inputs, of which nothing but the oldest two states are unwanted by [`newest_alone`].
async fn merged(repository: &Repository) -> Made {
    let made = chain_of_three(repository).await;
    merge_from(repository, &made, 1, false).await;
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pinned_or_restored_stays_although_a_removal_names_it() {
    let original = Repository::memory();
    let made = merged(&original).await;
    let named = [&made.labels[1], &made.labels[0]];

    let repository = Repository::with_store(copy_of(&original, &made).await);
    let pin = Pin {
        until: None,
        note: None,
    };
    mark::pin(&made.within(&repository), &made.labels[0], pin)
        .await
        .unwrap();
    let forged = forge(&repository, &made, &named, None).await;
    let error = require_refused(&repository, &made, &newest_alone(), &forged).await;
    assert!(error.to_string().contains("it is pinned"), "{error}");

    let repository = Repository::with_store(copy_of(&original, &made).await);
    require_restores(&repository, &made, Some(&made.labels[0])).await;
    let forged = forge(&repository, &made, &named, None).await;
    let mut options = newest_alone();
    options.ignore_restores = false;
    let error = require_refused(&repository, &made, &options, &forged).await;
    assert!(error.to_string().contains("the restore to "), "{error}");
    // It says itself what it leaves out of account.
    let done = expire_by(&repository, &made, &newest_alone())
        .await
        .unwrap();
    assert!(done.done, "{done:?}");
    assert_eq!(labels(&repository, &made).await.len(), 2);
}

/// Who may not delete leaves the record of each copy that he has made.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_keeps_what_it_needs_until_its_layer_is_there() {
    let original = Repository::memory();
    let made = merged(&original).await;
    let mut options = newest_alone();
    options.ignore_restores = false;
    for (is_there, left_over) in [(false, 4), (true, 2)] {
        let repository = Repository::with_store(copy_of(&original, &made).await);
        let cluster = made.within(&repository);
        let catalog = Catalog::load(&cluster).await.unwrap();
        let layer = catalog.layer(&made.labels[0]).unwrap();
        let id = match is_there {
            true => layer.manifest.layer_id.clone(),
            false => "0".repeat(32),
        };
        let record = RestoreRecord {
            layers: catalog
                .layers
                .iter()
                .map(|layer| layer.reference())
                .collect(),
            start_lsn: Lsn::new(u64::MAX),
            timeline: 1,
            host: "a host".to_owned(),
            pid: 4711,
            directory: RestoreRecord::place_of_copy(layer.label.as_str(), "elsewhere"),
            started_at: Timestamp::now(),
            written_by: "a test".to_owned(),
        };
        let copy = Restoring::begin_copy(&cluster, &id, &record).await.unwrap();
        copy.copied().await;
        let done = expire_by(&repository, &made, &options).await.unwrap();
        assert!(done.done, "{done:?}");
        assert_eq!(
            labels(&repository, &made).await.len(),
            left_over,
            "{done:?}"
        );
        let records = keys(&repository, &made).await;
        let records = records.iter().filter(|key| key.contains("/restore/"));
        assert_eq!(records.count() == 0, is_there);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_carries_out_no_removal_but_its_own() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let forged = forge(&repository, &made, &[&made.labels[2]], None).await;
    merge_from(&repository, &made, 1, true).await;
    let left = labels(&repository, &made).await;
    assert!(left.contains(&made.labels[2]), "{left:?}");
    let all = keys(&repository, &made).await;
    assert!(forged.iter().all(|key| all.contains(key)), "{all:?}");
    require_restores(&repository, &made, Some(&made.labels[2])).await;
}

/// Killed anywhere behind its verdict: with its rules it is completed, and with others that keep what is left it is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_was_interrupted_is_completed_by_its_own_rules() {
    let original = Repository::memory();
    let made = merged(&original).await;
    let (mut pending, mut refused) = (0, 0);
    for nth in 0.. {
        let memory = copy_of(&original, &made).await;
        let sound = Repository::with_store(memory.clone());
        let store = FaultStore::failing_at(nth, Fault::Before, memory);
        let faulty = Repository::with_store(store.clone());
        let outcome = expire_by(&faulty, &made, &newest_alone()).await;
        if store.operation_count() <= nth {
            assert!(outcome.unwrap().done);
            break;
        }
        let cluster = made.within(&sound);
        let left = catalog::pending_removals(&cluster).await.unwrap();
        if left.is_empty() {
            continue;
        }
        pending += 1;
        let before = keys(&sound, &made).await;
        match expire_by(&sound, &made, &keep_full(9)).await {
            Ok(done) => assert!(done.done, "at {nth}: {done:?}"),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Refused, "at {nth}: {error}");
                assert!(error.to_string().contains("--remove-inputs"), "{error}");
                assert_eq!(keys(&sound, &made).await, before, "at {nth}");
                refused += 1;
            }
        }
        let planned = expire::plan(&cluster, &newest_alone()).await.unwrap();
        let done = expire_by(&sound, &made, &newest_alone()).await.unwrap();
        assert!(done.done, "at {nth}: {done:?}");
        let shown = (&planned.removals, &planned.remove, &planned.leftovers);
        assert_eq!((&done.removals, &done.remove, &done.leftovers), shown);
        let after = keys(&sound, &made).await;
        let gone = |part: &str| !after.iter().any(|key| key.contains(part));
        assert!(gone("/wanted"), "at {nth}: {after:?}");
        for label in &made.labels[..2] {
            let prefix = format!("{}/", made.cluster.layer_prefix(label));
            let mut objects = after.iter().filter(|key| key.starts_with(&prefix));
            let manifest = made.cluster.manifest_key(label);
            // A record that there will be none may stay.
            assert!(objects.all(|key| *key == manifest), "at {nth}: {after:?}");
        }
        require_restores(&sound, &made, None).await;
    }
    assert!(
        pending > 5 && refused > 2,
        "{pending} pending, {refused} refused"
    );
}

/// Who may store layers can make one that claims to be the same merge, and has other contents.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_claims_to_be_the_same_merge_is_compared_before_the_other_goes() {
    let repository = Repository::memory();
    let made = merged(&repository).await;
    let cluster = made.within(&repository);
    let catalog = Catalog::load(&cluster).await.unwrap();
    let other = catalog.layer(&made.labels[0]).unwrap().clone();
    let mut objects = Vec::new();
    for object in repository
        .list(&made.cluster.layer_prefix(&other.label))
        .await
        .unwrap()
    {
        let name = object.key.rsplit('/').next().unwrap().to_owned();
        objects.push((name, repository.get(&object.key).await.unwrap()));
    }
    assert!(
        expire_by(&repository, &made, &newest_alone())
            .await
            .unwrap()
            .done
    );
    let catalog = Catalog::load(&cluster).await.unwrap();
    let merged = catalog
        .layers
        .iter()
        .find(|layer| !layer.manifest.replaces.is_empty());
    let merged = merged.unwrap();

    let label = Label::full(jiff::civil::date(2027, 11, 21).at(9, 0, 0, 0));
    let claimed = Manifest {
        label: label.to_string(),
        layer_id: other.manifest.layer_id.clone(),
        index: other.manifest.index.clone(),
        pack_count: other.manifest.pack_count,
        pack_bytes: other.manifest.pack_bytes,
        totals: other.manifest.totals,
        ..merged.manifest.clone()
    };
    let prefix = made.cluster.layer_prefix(&label);
    for (name, bytes) in objects.iter().filter(|(name, _)| name != "manifest") {
        repository
            .create(&format!("{prefix}/{name}"), bytes.clone())
            .await
            .unwrap();
    }
    let object = Bytes::from(manifest::encode(&claimed));
    let key = made.cluster.manifest_key(&label);
    repository.create(&key, object).await.unwrap();

    let planned = expire::plan(&cluster, &newest_alone()).await.unwrap();
    assert_eq!(planned.remove, [merged.label.to_string()], "{planned:?}");
    let error = expire_by(&repository, &made, &newest_alone())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("could not verify layer"),
        "{error}"
    );
    assert!(labels(&repository, &made).await.contains(&merged.label));
}

/// Rules by number: the chain of the newest layer is merged, and full layers are kept.
fn short_chains(keep_full: usize, max_chain: usize) -> ExpireOptions {
    rules(Policy {
        keep_full: Some(keep_full),
        max_chain: Some(max_chain),
        ..Policy::default()
    })
}

/// The repositories that an expiry by these rules leaves when it is killed at each operation behind its verdict.
async fn killed(original: &Repository, made: &Made, options: &ExpireOptions) -> Vec<Repository> {
    let mut left = Vec::new();
    for nth in 0.. {
        let memory = copy_of(original, made).await;
        let sound = Repository::with_store(memory.clone());
        let store = FaultStore::failing_at(nth, Fault::Before, memory);
        let outcome = expire_by(&Repository::with_store(store.clone()), made, options).await;
        if store.operation_count() <= nth {
            assert!(outcome.unwrap().done);
            break;
        }
        let pending = catalog::pending_removals(&made.within(&sound)).await;
        if !pending.unwrap().is_empty() {
            left.push(sound);
        }
    }
    left
}

async fn spoil_packs(repository: &Repository, made: &Made, label: &Label) {
    let prefix = made.cluster.layer_prefix(label);
    for object in repository.list(&prefix).await.unwrap() {
        if object.key.contains("/pack-") {
            let mut bytes = repository.get(&object.key).await.unwrap().to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            repository.delete(&object.key).await.unwrap();
            repository.create(&object.key, bytes.into()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_was_killed_while_it_removed_what_it_had_merged_is_completed() {
    let original = Repository::memory();
    let made = chain_of_three(&original).await;
    for max_chain in [1, 2] {
        let options = short_chains(2, max_chain);
        let (mut refused, mut spoilt) = (0, 0);
        for left in killed(&original, &made, &options).await {
            let before = labels(&left, &made).await;
            let merged = before.iter().find(|label| !made.labels.contains(label));
            let merged = merged.unwrap().clone();
            let planned = expire::plan(&made.within(&left), &options).await.unwrap();
            // Rules that keep every state do not, and neither is a merged layer believed that cannot be read.
            if before.contains(&made.labels[0]) {
                let error = expire_by(&left, &made, &keep_full(2)).await.unwrap_err();
                assert_eq!(error.kind(), Kind::Refused, "{error}");
                refused += 1;
                let copy = Repository::with_store(copy_of(&left, &made).await);
                spoil_packs(&copy, &made, &merged).await;
                let error = expire_by(&copy, &made, &options).await.unwrap_err();
                let error = error.to_string();
                assert!(error.contains("could not verify layer"), "{error}");
                assert_eq!(labels(&copy, &made).await, before);
                spoilt += 1;
            }
            let done = expire_by(&left, &made, &options).await.unwrap();
            assert!(done.done, "{done:?}");
            assert_eq!(
                (&done.removals, &done.remove),
                (&planned.removals, &planned.remove)
            );
            let mut stays = vec![merged];
            stays.extend(made.labels.last().filter(|_| max_chain == 2).cloned());
            let mut after = labels(&left, &made).await;
            after.sort();
            stays.sort();
            assert_eq!(after, stays);
            let all = keys(&left, &made).await;
            assert!(!all.iter().any(|key| key.contains("/wanted")), "{all:?}");
            require_restores(&left, &made, None).await;
        }
        assert!(
            refused > 2 && spoilt > 2,
            "{refused} refused, {spoilt} spoilt"
        );
    }
}

/// An honest merge needs no right to delete, and neither do a claim and a removal that name what it was made of.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_removal_of_what_was_merged_takes_nothing_that_this_run_would_not_merge() {
    let original = Repository::memory();
    let made = merged(&original).await;
    let named = [&made.labels[1], &made.labels[0]];
    for options in [keep_full(2), short_chains(2, 3), short_chains(2, 9)] {
        let repository = Repository::with_store(copy_of(&original, &made).await);
        let forged = forge(&repository, &made, &named, None).await;
        let error = require_refused(&repository, &made, &options, &forged).await;
        assert!(error.to_string().contains("--keep-full"), "{error}");
    }
    // It would have merged these itself; but not before the merged layer was compared.
    let repository = Repository::with_store(copy_of(&original, &made).await);
    forge(&repository, &made, &named, None).await;
    let all = labels(&repository, &made).await;
    let own = all.iter().find(|label| !made.labels.contains(label));
    spoil_packs(&repository, &made, own.unwrap()).await;
    let error = expire_by(&repository, &made, &short_chains(2, 2)).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("could not verify layer"), "{error}");
    assert_eq!(labels(&repository, &made).await, all);

    // A chain on which the newest layer does not stand is nothing that it would merge.
    let repository = Repository::memory();
    let [first, second, third] = generations();
    let all = [first, second, third.clone(), third];
    let made = history(&repository, &all, &[0, 3], |_, _| {}).await;
    merge_from(&repository, &made, 2, false).await;
    let named = [&made.labels[1], &made.labels[0]];
    let forged = forge(&repository, &made, &named, None).await;
    require_refused(&repository, &made, &short_chains(3, 1), &forged).await;
    // Nor when the claim says that the layer is gone whose state it has.
    let gone = made.labels[2].clone();
    let prefix = made.cluster.layer_prefix(&gone);
    for object in repository.list(&prefix).await.unwrap() {
        repository.delete(&object.key).await.unwrap();
    }
    require_refused(&repository, &made, &short_chains(3, 1), &forged).await;
}
