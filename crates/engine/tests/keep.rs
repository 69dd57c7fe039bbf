//! What is kept: WAL between layers for a while, pinned layers for as long as they are, and what a plan has shown.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::collections::BTreeSet;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_engine::health::AlarmKind;
use pgstrata_engine::mark;
use pgstrata_engine::restore::{self, RestoreOptions, Target};
use pgstrata_engine::verify::{self, Scope, VerifyOptions};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::Manifest;
use pgstrata_layer::mark::{Annotation, Pin};
use pgstrata_layer::retention::{LastOf, Policy};
use pgstrata_store::error::{Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use restore_common::{
    Files, Made, branch_off, chain_of_three, copy_of, expire_by, generations, history, info,
    labels, merge_from, options, rules,
};

/// All layers, and no WAL between them.
fn layers_alone() -> ExpireOptions {
    rules(Policy {
        keep_wal: Some(SignedDuration::ZERO),
        ..Policy::default()
    })
}

fn max_chain(length: usize) -> ExpireOptions {
    rules(Policy {
        max_chain: Some(length),
        ..Policy::default()
    })
}

async fn keys(repository: &Repository, made: &Made) -> BTreeSet<String> {
    let objects = repository.list(made.cluster.as_str()).await.unwrap();
    objects.into_iter().map(|object| object.key).collect()
}

/// Numbers of the archived segments.
async fn wal(repository: &Repository, made: &Made) -> Vec<u64> {
    let objects = repository.list(&made.cluster.wal_prefix()).await.unwrap();
    let numbers = objects.iter().map(|object| {
        let name = object.key.rsplit('/').next().unwrap();
        u64::from_str_radix(&name[16..], 16).unwrap()
    });
    numbers.collect()
}

async fn require_restores(repository: &Repository, made: &Made, label: &Label) {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(repository, &target, Some(label))
        .await
        .unwrap();
}

/// Layers start in the segments 20, 30 and 40, and end in the next ones. The archive ends with 50.
#[tokio::test(flavor = "multi_thread")]
async fn older_layers_keep_the_wal_that_makes_them_consistent_and_nobody_calls_that_a_loss() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let done = expire_by(&repository, &made, &layers_alone())
        .await
        .unwrap();
    assert!(done.done && done.remove.is_empty(), "{done:?}");
    let goes_on: Vec<bool> = done.keep.iter().map(|kept| kept.goes_on).collect();
    assert_eq!(goes_on, [false, false, true]);
    let expected: Vec<u64> = [20, 21, 30, 31].into_iter().chain(40..=50).collect();
    assert_eq!(wal(&repository, &made).await, expected);
    let runs: Vec<u64> = done.wal.iter().map(|run| run.count).collect();
    assert_eq!((runs, done.wal_files), (vec![8, 8], 16));
    for label in &made.labels {
        require_restores(&repository, &made, label).await;
    }
    let report = info(&repository, &made).await;
    assert_eq!(report.alarms, []);
    let timeline = &report.archive.timelines[0];
    assert!(timeline.missing.is_empty(), "{timeline:?}");
    let released: Vec<u64> = timeline.released.iter().map(|run| run.count).collect();
    assert_eq!(released, [8, 8]);
    let goes_on: Vec<bool> = report.layers.iter().map(|layer| layer.goes_on).collect();
    assert_eq!(goes_on, [false, false, true]);
    let again = expire_by(&repository, &made, &layers_alone())
        .await
        .unwrap();
    assert_eq!((again.wal_files, again.done), (0, true));
    between_it_says_why_it_cannot(&repository, &made).await;
    a_real_loss_is_still_one(&repository, &made).await;
}

async fn between_it_says_why_it_cannot(repository: &Repository, made: &Made) {
    let scratch = tempfile::tempdir().unwrap();
    let record = info(repository, made).await.record.unwrap();
    let size = u64::from(record.wal_segment_size);
    for (segment, given_up) in [(25, true), (33, true), (45, false)] {
        let target = Target::Lsn(pgstrata_pgdata::Lsn::new(segment * size + 50));
        let wanted = RestoreOptions {
            target,
            ..options(&scratch.path().join("data"))
        };
        let planned = restore::plan(&made.within(repository), wanted).await;
        let said = planned.map(drop).map_err(|error| error.to_string());
        let said = said.err().unwrap_or_default();
        let found = said.contains("an expiry has given up");
        assert_eq!(found, given_up, "{segment}: {said}");
        assert!(!said.contains("though later ones"), "{said}");
    }
}

/// A copy of the repository of a server whose archiver was at work: it noted the end of each backup.
async fn of_an_archiver(repository: &Repository, made: &Made) -> Repository {
    let copy = Repository::with_store(copy_of(repository, made).await);
    for start in [20, 30, 40] {
        let note = format!("00000001{start:016X}.00000028.backup");
        let note = made.cluster.wal_key("00000001", &note);
        copy.create(&note, "of a backup".into()).await.unwrap();
    }
    copy
}

/// A server goes back to the end of the first layer after WAL was given up far behind that: what it writes there is promised.
#[tokio::test(flavor = "multi_thread")]
async fn wal_of_a_server_that_went_back_is_promised_where_it_was_given_up_before() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    expire_by(&repository, &made, &layers_alone())
        .await
        .unwrap();
    branch_off(&repository, &made, 0, 6).await;
    let report = info(&repository, &made).await;
    assert_eq!(report.archive.timelines[1].released, []);
    // Segments 21 to 26, of which one was lost.
    let lost = of_an_archiver(&repository, &made).await;
    let number = 24;
    let name = format!("00000002{number:016X}");
    lost.delete(&made.cluster.wal_key("00000002", &name))
        .await
        .unwrap();
    let report = info(&lost, &made).await;
    let two = &report.archive.timelines[1];
    assert_eq!((two.missing.len(), two.released.len()), (1, 0), "{two:?}");
    let holes = report.alarms.iter();
    let holes: Vec<_> = holes
        .filter(|alarm| alarm.kind == AlarmKind::WalHole)
        .collect();
    assert!(
        holes.len() == 1 && holes[0].reason.contains(&name),
        "{:?}",
        report.alarms
    );
    let cut = Repository::with_store(copy_of(&repository, &made).await);
    let key = made.cluster.wal_key("00000002", &name);
    cut.delete(&key).await.unwrap();
    cut.create(&key, Bytes::new()).await.unwrap();
    let report = info(&cut, &made).await;
    let damaged = |alarm: &pgstrata_engine::health::Alarm| alarm.reason.contains("is damaged");
    assert!(report.alarms.iter().any(damaged), "{:?}", report.alarms);
}

/// WAL that is promised, and WAL of a layer.
async fn a_real_loss_is_still_one(repository: &Repository, made: &Made) {
    for (number, kind) in [(44, AlarmKind::WalHole), (30, AlarmKind::Layer)] {
        let copy = of_an_archiver(repository, made).await;
        let name = format!("00000001{:016X}", number);
        let key = made.cluster.wal_key("00000001", &name);
        copy.delete(&key).await.unwrap();
        let report = info(&copy, made).await;
        let kinds: Vec<AlarmKind> = report.alarms.iter().map(|alarm| alarm.kind).collect();
        assert_eq!(kinds, [kind], "{:?}", report.alarms);
    }
    // When nobody knows any more what was given up, every hole counts as a loss where the archiver was at work.
    let copy = of_an_archiver(repository, made).await;
    let released = copy.list(&made.cluster.released_prefix()).await.unwrap();
    assert_eq!(released.len(), 1);
    copy.delete(&released[0].key).await.unwrap();
    assert!(!info(&copy, made).await.alarms.is_empty());
}

/// Whatever operation fails, no layer loses its WAL, and nothing that was meant is an alarm.
#[tokio::test(flavor = "multi_thread")]
async fn giving_up_wal_may_fail_anywhere() {
    let original = Repository::memory();
    let made = chain_of_three(&original).await;
    for fault in [Fault::Before, Fault::Halfway] {
        let mut failures = 0;
        for nth in 0.. {
            let memory = copy_of(&original, &made).await;
            let sound = Repository::with_store(memory.clone());
            let store = FaultStore::failing_at(nth, fault, memory);
            let faulty = Repository::with_store(store.clone());
            let outcome = expire_by(&faulty, &made, &layers_alone()).await;
            let report = info(&sound, &made).await;
            assert_eq!(report.alarms, [], "after {nth}: {outcome:?}");
            if store.operation_count() <= nth {
                break;
            }
            failures += u32::from(outcome.is_err());
            let done = expire_by(&sound, &made, &layers_alone()).await.unwrap();
            assert!(done.done, "after {nth}: {done:?}");
            assert_eq!(wal(&sound, &made).await.len(), 15, "after {nth}");
            assert_eq!(info(&sound, &made).await.alarms, [], "after {nth}");
        }
        assert!(failures > 0, "{failures}");
    }
}

/// All rules hold together but for this one, which limits the others: whoever plans is told what that takes away.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_says_what_a_shorter_keep_wal_takes_from_keep_within() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let cluster = made.within(&repository);
    let days = |days: i64| Some(SignedDuration::from_hours(24 * days));
    let by = |within: i64, wal: i64| {
        rules(Policy {
            keep_within: days(within),
            keep_wal: days(wal),
            ..Policy::default()
        })
    };
    // The layers are of 2023, and all of them are wanted.
    let planned = expire::plan(&cluster, &by(7300, 0)).await.unwrap();
    let first = &planned.remarks[0];
    for words in [
        "not every moment of --keep-within 7300d",
        "--keep-wal 0d is shorter",
        "2 can be restored to their own ends alone",
        "give --keep-wal 7300d",
    ] {
        assert!(first.contains(words), "{words}: {planned:?}");
    }
    assert_eq!((planned.remove.len(), planned.wal_files), (0, 16));
    // Nothing is taken away; or not from this rule, which wants the newest alone.
    for options in [by(7300, 7300), by(7300, 8000), by(1, 0), layers_alone()] {
        let planned = expire::plan(&cluster, &options).await.unwrap();
        let said = planned.remarks.join("\n");
        assert!(!said.contains("--keep-within"), "{options:?}: {said}");
    }
    let done = expire_by(&repository, &made, &by(7300, 0)).await.unwrap();
    assert_eq!((done.done, &done.remarks), (true, &planned.remarks));
    // What has gone before takes nothing away any more.
    let again = expire_by(&repository, &made, &by(7300, 0)).await.unwrap();
    assert!(!again.remarks.join("\n").contains("--keep-within"));
}

/// A copy in which a pack of that layer is damaged, and a verification has found that.
async fn found_damaged(sound: &Repository, made: &Made, at: usize) -> Repository {
    let label = format!("/{}/", made.labels[at]);
    let packs = made.pack_keys(sound).await;
    let pack = packs.iter().find(|key| key.contains(&label)).unwrap();
    let middle = sound.get(pack).await.unwrap().len() / 2;
    let repository = made.copy_with_flipped_byte(sound, pack, middle).await;
    let options = VerifyOptions {
        scope: Scope::All,
        deep: false,
        jobs: 1,
        ..VerifyOptions::default()
    };
    verify::run(&made.within(&repository), &options, Progress::default())
        .await
        .unwrap();
    repository
}

/// The first moments of the time that is kept are reached from the layer in doubt, when it is whole after all.
#[tokio::test(flavor = "multi_thread")]
async fn the_wal_behind_a_layer_that_was_found_damaged_stays_as_if_it_was_whole() {
    let sound = Repository::memory();
    let days = |days: i64| SignedDuration::from_hours(24 * days);
    let ago = |at: usize, manifest: &mut Manifest| {
        let time = Timestamp::now() - days([10, 2, 1][at]);
        (manifest.started_at, manifest.finished_at) = (time, time);
    };
    let made = history(&sound, &generations(), &[0, 1, 2], ago).await;
    let within = |keep_wal| {
        rules(Policy {
            keep_within: Some(days(5)),
            keep_wal,
            ..Policy::default()
        })
    };
    for (keep_wal, stays) in [(None, true), (Some(days(5)), true), (Some(days(0)), false)] {
        let repository = found_damaged(&sound, &made, 0).await;
        let done = expire_by(&repository, &made, &within(keep_wal)).await;
        let done = done.unwrap();
        assert!(done.done && done.remove.is_empty(), "{done:?}");
        assert!(done.keep[0].why.contains("in order again"), "{done:?}");
        assert_eq!(done.keep[0].goes_on, stays, "{done:?}");
        assert_eq!(done.wal_files == 0, stays, "{done:?}");
    }
}

/// Two full layers, and an increment on the second, of which a pack is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_verification_found_damaged_stays_and_is_not_called_pinned() {
    let sound = Repository::memory();
    let made = history(&sound, &generations(), &[0, 1], |_, _| {}).await;
    let newest = made.labels[2].as_str();
    let repository = found_damaged(&sound, &made, 2).await;
    let cluster = made.within(&repository);
    let keep_full = rules(Policy {
        keep_full: Some(1),
        ..Policy::default()
    });
    let planned = expire::plan(&cluster, &keep_full).await.unwrap();
    let why = |at: usize| {
        let label = made.labels[at].as_str();
        let kept = planned.keep.iter().find(|kept| kept.label == label);
        kept.map(|kept| kept.why.as_str()).unwrap_or_default()
    };
    let found = format!("\"pgstrata verify\" found {newest} damaged at ");
    for words in [&*found, "it may be in order again", "--keep-full"] {
        assert!(why(2).contains(words), "{words}: {planned:?}");
    }
    assert!(!why(2).contains("pinned"), "{planned:?}");
    assert!(!why(1).contains("damaged"), "{planned:?}");
    // A pin counts more.
    let pins = Repository::with_store(copy_of(&sound, &made).await);
    pin(&pins, &made, 2).await.unwrap();
    for mark in pins.list(&made.cluster.marks_prefix()).await.unwrap() {
        let bytes = pins.get(&mark.key).await.unwrap();
        repository.create(&mark.key, bytes).await.unwrap();
    }
    let planned = expire::plan(&cluster, &keep_full).await.unwrap();
    let kept = planned.keep.iter().find(|kept| kept.label == newest);
    assert!(kept.unwrap().why.contains("pinned"), "{planned:?}");
}

async fn pin(repository: &Repository, made: &Made, at: usize) -> Result<mark::MarkReport> {
    let pin = Pin {
        until: None,
        note: Some("for the test".to_owned()),
    };
    mark::pin(&made.within(repository), &made.labels[at], pin).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_layer_outlives_merges_and_expiries_until_it_is_unpinned() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let report = pin(&repository, &made, 1).await.unwrap();
    assert_eq!(report.stands_on, [made.labels[0].to_string()]);
    // What lies below a pin is not merged: there is nothing else.
    let done = expire_by(&repository, &made, &max_chain(1)).await.unwrap();
    assert!(done.done && done.merge.is_none(), "{done:?}");
    let merged = merge_from(&repository, &made, 2, true).await;
    assert_eq!(merged.removed, [made.labels[2].to_string()]);
    assert!(
        merged.notes.iter().any(|note| note.contains("pinned")),
        "{:?}",
        merged.notes
    );
    let keep_newest = rules(Policy {
        keep_within: Some(SignedDuration::from_hours(1)),
        ..Policy::default()
    });
    let done = expire_by(&repository, &made, &keep_newest).await.unwrap();
    assert!(done.done && done.remove.is_empty(), "{done:?}");
    assert!(done.keep[1].why.contains("pinned"), "{:?}", done.keep);
    assert!(!done.keep[0].goes_on && !done.keep[1].goes_on);
    let shown = info(&repository, &made).await;
    assert_eq!(shown.alarms, []);
    let note = shown.layers[1].pin.as_ref().unwrap().note.as_deref();
    assert_eq!(note, Some("for the test"));
    require_restores(&repository, &made, &made.labels[1]).await;
    let cluster = made.within(&repository);
    mark::unpin(&cluster, &made.labels[1]).await.unwrap();
    let again = mark::unpin(&cluster, &made.labels[1]).await.unwrap_err();
    assert_eq!(again.kind(), Kind::NotFound);
    let done = expire_by(&repository, &made, &keep_newest).await.unwrap();
    assert_eq!(done.remove.len(), 2, "{done:?}");
    let marks = made.cluster.marks_prefix();
    assert!(repository.list(&marks).await.unwrap().is_empty());
    let left = labels(&repository, &made).await;
    require_restores(&repository, &made, &left[0]).await;
}

/// As after a merge by a program that knows of no pins.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_follows_the_state_when_its_layer_is_gone() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let memory = copy_of(&repository, &made).await;
    let merged = Repository::with_store(memory);
    pin(&repository, &made, 2).await.unwrap();
    let marks = repository.list(&made.cluster.marks_prefix()).await.unwrap();
    merge_from(&merged, &made, 2, true).await;
    for mark in marks {
        let bytes = repository.get(&mark.key).await.unwrap();
        merged.create(&mark.key, bytes).await.unwrap();
    }
    let shown = info(&merged, &made).await;
    assert_eq!(shown.layers.len(), 1);
    assert!(shown.layers[0].pin.is_some());
    let done = expire_by(&merged, &made, &max_chain(1)).await.unwrap();
    assert!(done.keep[0].why.contains("pinned"), "{:?}", done.keep);
    let marks = made.cluster.marks_prefix();
    assert_eq!(merged.list(&marks).await.unwrap().len(), 1);
}

/// A full layer, an increment on it, and another full layer, with which the rules would do. Somebody deletes the increment.
#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_layer_that_was_deleted_can_be_brought_back_after_an_expiry() {
    let repository = Repository::memory();
    let made = history(&repository, &generations(), &[0, 2], |_, _| {}).await;
    let label = &made.labels[1];
    pin(&repository, &made, 1).await.unwrap();
    let keep_full = rules(Policy {
        keep_full: Some(1),
        ..Policy::default()
    });
    let before = keys(&repository, &made).await;
    let prefix = made.cluster.layer_prefix(label);
    let mut objects = Vec::new();
    for object in repository.list(&prefix).await.unwrap() {
        let bytes = repository.get(&object.key).await.unwrap();
        repository.delete(&object.key).await.unwrap();
        objects.push((object.key, bytes));
    }
    let report = expire_by(&repository, &made, &keep_full).await.unwrap();
    let unpin = format!("\"pgstrata unpin {label}\"");
    assert!(!report.done, "{report:?}");
    for words in ["is pinned and not there any more", &*unpin] {
        assert!(report.notes[0].contains(words), "{words}: {report:?}");
    }
    let alarms = info(&repository, &made).await.alarms;
    assert!(
        alarms.iter().any(|alarm| alarm.to_do.contains(&unpin)),
        "{alarms:?}"
    );

    for (key, bytes) in &objects {
        repository.create(key, bytes.clone()).await.unwrap();
    }
    assert_eq!(keys(&repository, &made).await, before);
    let done = expire_by(&repository, &made, &keep_full).await.unwrap();
    assert!(done.done && done.remove.is_empty(), "{done:?}");
    require_restores(&repository, &made, label).await;

    // Whoever gives it up has the rules decide again.
    for (key, _) in &objects {
        repository.delete(key).await.unwrap();
    }
    let cluster = made.within(&repository);
    let unpinned = mark::unpin(&cluster, label).await.unwrap();
    assert!(unpinned.pin.is_none(), "{unpinned:?}");
    let again = mark::unpin(&cluster, label).await.unwrap_err();
    assert_eq!(again.kind(), Kind::NotFound, "{again}");
    let done = expire_by(&repository, &made, &keep_full).await.unwrap();
    assert!(done.done, "{done:?}");
    assert_eq!(labels(&repository, &made).await, made.labels[2..]);
    let marks = made.cluster.marks_prefix();
    assert!(repository.list(&marks).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_pinned_says_so_once() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let cluster = made.within(&repository);
    let unknown = Label::parse("20200101-000000F").unwrap();
    let error = mark::pin(&cluster, &unknown, Pin::default()).await;
    assert_eq!(error.unwrap_err().kind(), Kind::NotFound);
    let over = Pin {
        until: Some("2020-01-01T00:00:00Z".parse().unwrap()),
        note: None,
    };
    let error = mark::pin(&cluster, &made.labels[0], over).await;
    assert_eq!(error.unwrap_err().kind(), Kind::Usage);
    let lines = Annotation {
        key: "note".to_owned(),
        value: Some("two\nlines".to_owned()),
    };
    let error = mark::annotate(&cluster, &made.labels[0], lines).await;
    assert_eq!(error.unwrap_err().kind(), Kind::Usage);
    // Its parent is lost.
    let lost = Repository::with_store(copy_of(&repository, &made).await);
    for object in lost
        .list(&made.cluster.layer_prefix(&made.labels[1]))
        .await
        .unwrap()
    {
        lost.delete(&object.key).await.unwrap();
    }
    let error = pin(&lost, &made, 2).await.unwrap_err();
    assert!(error.to_string().contains("is broken"), "{error}");
    // So is a segment of it.
    let lost = Repository::with_store(copy_of(&repository, &made).await);
    let name = format!("00000001{:016X}", 40);
    lost.delete(&made.cluster.wal_key("00000001", &name))
        .await
        .unwrap();
    let error = pin(&lost, &made, 2).await.unwrap_err();
    assert_eq!(error.kind(), Kind::WalMissing);
    for of in [&repository, &lost] {
        let marks = of.list(&made.cluster.marks_prefix()).await.unwrap();
        assert!(marks.is_empty(), "{marks:?}");
    }
}

/// What cannot be read may be a pin.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_mark_counts_as_a_pin() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let key = made.cluster.mark_key(&made.labels[0], 0);
    repository
        .create(&key, Bytes::from_static(b"?"))
        .await
        .unwrap();
    merge_from(&repository, &made, 2, true).await;
    let done = expire_by(&repository, &made, &max_chain(1)).await.unwrap();
    assert!(done.done, "{done:?}");
    assert!(done.keep[0].why.contains("counts as pinned"), "{done:?}");
    assert_eq!(labels(&repository, &made).await[0], made.labels[0]);
}

/// Nor is a layer unpinned by the loss of a mark, as long as no later one says what holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_mark_counts_as_a_pin_until_a_later_one_settles_it() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    pin(&repository, &made, 0).await.unwrap();
    let within = made.within(&repository);
    let note = Annotation {
        key: "ticket".to_owned(),
        value: Some("DB-1".to_owned()),
    };
    mark::annotate(&within, &made.labels[0], note)
        .await
        .unwrap();
    let key = made.cluster.mark_key(&made.labels[0], 0);
    repository.delete(&key).await.unwrap();
    merge_from(&repository, &made, 2, true).await;
    let done = expire_by(&repository, &made, &max_chain(1)).await.unwrap();
    assert!(done.done, "{done:?}");
    assert!(done.keep[0].why.contains("000000"), "{done:?}");
    assert_eq!(labels(&repository, &made).await[0], made.labels[0]);
    mark::unpin(&within, &made.labels[0]).await.unwrap();
    let done = expire_by(&repository, &made, &max_chain(1)).await.unwrap();
    assert!(done.done, "{done:?}");
    assert_ne!(labels(&repository, &made).await[0], made.labels[0]);
}

/// The objects that are there after an expiry are those that its plan has left, and those of the merge; answers the plan.
async fn require_done_as_planned(
    original: &Repository,
    made: &Made,
    policy: Policy,
    pinned: Option<usize>,
) -> ExpireReport {
    let here = Repository::with_store(copy_of(original, made).await);
    if let Some(at) = pinned {
        pin(&here, made, at).await.unwrap();
    }
    let before = keys(&here, made).await;
    let planned = expire::plan(&made.within(&here), &rules(policy))
        .await
        .unwrap();
    assert_eq!(keys(&here, made).await, before, "a plan changes nothing");
    let done = expire_by(&here, made, &rules(policy)).await.unwrap();
    assert!(done.done, "{done:?}");
    let said = |report: &ExpireReport| {
        let counts = (report.wal_files, report.wal_bytes, report.wal_from);
        let merge = report.merge.clone();
        (report.remove.clone(), report.wal.clone(), counts, merge)
    };
    assert_eq!(said(&planned), said(&done), "{policy:?} {pinned:?}");
    let goes = |key: &String| {
        let name = key.rsplit('/').next().unwrap();
        let of_layer = planned.remove.iter().any(|label| {
            let prefix = made.cluster.layer_prefix(&Label::parse(label).unwrap());
            key.starts_with(&format!("{prefix}/"))
        });
        let mut runs = planned.wal.iter();
        let of_wal = runs.any(|run| *run.first <= *name && *name <= *run.last);
        of_layer || key.contains("/wal/") && of_wal
    };
    let expected: BTreeSet<String> = before.iter().filter(|key| !goes(key)).cloned().collect();
    let merged = done.merged.as_ref().map(|merged| merged.label.clone());
    let new = |key: &String| {
        let of_merge = merged.as_ref().is_some_and(|label| key.contains(label));
        // Of a layer whose maker did not say that it was committed, a record stays that it is gone.
        let of_gone = goes(key) && key.ends_with("/manifest");
        of_merge || of_gone || key.contains("/wal-released/")
    };
    let after = keys(&here, made).await;
    let after: BTreeSet<String> = after.into_iter().filter(|key| !new(key)).collect();
    assert_eq!(after, expected, "{policy:?} {pinned:?}");
    planned
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plan_shows_is_what_is_done_object_by_object() {
    let original = Repository::memory();
    let made = chain_of_three(&original).await;
    let policies = [
        layers_alone().policy,
        max_chain(1).policy,
        max_chain(2).policy,
        Policy {
            keep_wal: Some(SignedDuration::ZERO),
            ..max_chain(2).policy
        },
        Policy {
            keep_full: Some(1),
            ..max_chain(1).policy
        },
    ];
    for pinned in [None, Some(0), Some(1)] {
        for policy in policies {
            require_done_as_planned(&original, &made, policy, pinned).await;
        }
    }
}

/// When the layers of a history of three years were made, and which of them are full.
const DAYS: [&str; 8] = [
    "2020-05-10",
    "2021-03-03",
    "2021-03-04",
    "2021-12-20",
    "2022-01-12",
    "2022-01-14",
    "2022-01-31",
    "2022-02-01",
];
const FULL: [usize; 5] = [0, 1, 3, 4, 6];

/// Rules about time for that history, and which layers go by them.
fn rules_about_time() -> Vec<(Policy, &'static [usize])> {
    let last = |of: LastOf| Policy {
        keep_last_of: of,
        ..Policy::default()
    };
    let [none, one, two, three] = [None, Some(1), Some(2), Some(3)];
    let of = |daily, weekly, monthly, yearly| LastOf {
        daily,
        weekly,
        monthly,
        yearly,
    };
    let since = |day: &str| {
        let moment: Timestamp = format!("{day}T00:00:00Z").parse().unwrap();
        Policy {
            keep_within: Some(Timestamp::now().duration_since(moment)),
            ..Policy::default()
        }
    };
    let without_wal = |policy: Policy| Policy {
        keep_wal: Some(SignedDuration::ZERO),
        ..policy
    };
    let in_one_chain = |policy: Policy| Policy {
        max_chain: Some(1),
        ..policy
    };
    vec![
        (last(of(two, none, none, none)), &[0, 1, 2, 3, 4, 5]),
        (last(of(three, none, none, none)), &[0, 1, 2, 3]),
        // The last days of January and the first of February are one week.
        (last(of(none, three, none, none)), &[0, 1, 2]),
        (last(of(none, none, three, none)), &[0, 1, 2, 4, 5]),
        (last(of(none, none, none, two)), &[0, 1, 2, 4, 5]),
        (last(of(one, two, none, three)), &[1, 2]),
        (without_wal(last(of(one, none, none, three))), &[1, 2, 4, 5]),
        // What was made before is what the first of these moments is reached from.
        (since("2022-01-13"), &[0, 1, 2, 3]),
        (since("2021-06-01"), &[0]),
        (without_wal(since("2021-06-01")), &[0]),
        (
            in_one_chain(last(of(none, none, two, none))),
            &[0, 1, 2, 3, 4, 5],
        ),
        (
            in_one_chain(last(of(none, none, one, none))),
            &[0, 1, 2, 3, 4, 5, 6, 7],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_plan_by_time_shows_is_what_is_done_object_by_object() {
    let original = Repository::memory();
    let files = generations();
    let files: Vec<Files> = (0..DAYS.len()).map(|at| files[at % 3].clone()).collect();
    let at_its_time = |at: usize, manifest: &mut Manifest| {
        let time: Timestamp = format!("{}T12:00:00Z", DAYS[at]).parse().unwrap();
        (manifest.started_at, manifest.finished_at) = (time, time);
    };
    let made = history(&original, &files, &FULL, at_its_time).await;
    for (policy, goes) in rules_about_time() {
        for pinned in [None, Some(1), Some(5)] {
            let stays: &[usize] = match pinned {
                None => &[],
                Some(1) => &[1],
                // And what it stands on.
                Some(_) => &[4, 5],
            };
            let plan = require_done_as_planned(&original, &made, policy, pinned).await;
            let expected = goes.iter().filter(|at| !stays.contains(at));
            let expected: BTreeSet<String> =
                expected.map(|at| made.labels[*at].to_string()).collect();
            let found: BTreeSet<String> = plan.remove.into_iter().collect();
            assert_eq!(found, expected, "{policy:?} {pinned:?}");
        }
    }
}
