//! A layer that has lost an object: a listing tells, and whoever chooses layers knows.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::time::Duration;

use jiff::SignedDuration;
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_engine::health::{Alarm, AlarmKind, Severity};
use pgstrata_engine::info::{self, InfoOptions, InfoReport};
use pgstrata_engine::restore::{self, RestoreOptions, Vouched};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::retention::Policy;
use pgstrata_store::error::Kind;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use restore_common::{Made, chain_of_three, info, merge_from, options};

/// Puts other contents, or nothing, in the place of an object.
async fn replace(repository: &Repository, key: &str, body: Option<&[u8]>) {
    repository.delete(key).await.unwrap();
    if let Some(body) = body {
        repository.create(key, body.to_vec().into()).await.unwrap();
    }
}

/// Labels of layers that cannot be restored, as `info` says.
fn broken(report: &InfoReport) -> Vec<&str> {
    let layers = report.layers.iter();
    let broken = layers.filter(|layer| layer.problem.is_some());
    broken.map(|layer| layer.label.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_object_that_is_missing_or_of_another_length_is_an_alarm() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    assert_eq!(info(&repository, &made).await.alarms, []);
    let prefix = made.cluster.layers_prefix();
    let mut tried = 0;
    for object in repository.list(&prefix).await.unwrap() {
        let key = &object.key;
        if key.ends_with("/manifest") {
            continue;
        }
        let of = |label: &Label| key.contains(&format!("/{label}/"));
        let at = made.labels.iter().position(of);
        let at = at.unwrap();
        let whole = repository.get(key).await.unwrap();
        for body in [None, Some(&whole[..whole.len() - 1])] {
            replace(&repository, key, body).await;
            let report = info(&repository, &made).await;
            let [
                Alarm {
                    severity,
                    layer,
                    reason,
                    lost,
                    ..
                },
            ] = &report.alarms[..]
            else {
                panic!("{key}: {:?}", report.alarms)
            };
            assert_eq!(layer.as_deref(), Some(made.labels[at].as_str()), "{key}");
            assert!(reason.contains("has lost"), "{key}: {reason}");
            // The sizes of packs are known together.
            let named = reason.contains(key.as_str()) || (key.contains("/pack-") && body.is_some());
            assert!(named, "{key}: {reason}");
            if key.contains("/digest-") {
                assert_eq!((*severity, lost), (Severity::Warning, &None), "{key}");
                assert!(broken(&report).is_empty(), "{key}");
            } else {
                assert_eq!(*severity, Severity::Error, "{key}");
                let above: Vec<&str> = made.labels[at..].iter().map(Label::as_str).collect();
                assert_eq!(broken(&report), above, "{key}");
                for label in above {
                    assert!(lost.as_ref().unwrap().contains(label), "{key}: {lost:?}");
                    // Also of that layer alone.
                    let options = InfoOptions {
                        label: Some(Label::parse(label).unwrap()),
                        ..InfoOptions::default()
                    };
                    let one = info::collect(&made.within(&repository), &options).await;
                    assert_eq!(one.unwrap().alarms, report.alarms, "{key}: {label}");
                }
            }
            tried += 1;
        }
        replace(&repository, key, Some(&whole)).await;
    }
    assert!(tried >= 20, "{tried}");
    assert_eq!(info(&repository, &made).await.alarms, []);
}

/// Who looks at the past asks whether the newest backup was too old then.
#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_the_newest_layer_is_that_at_the_moment_that_is_shown() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let ended = info(&repository, &made).await.layers;
    let ended = ended.iter().map(|layer| layer.finished_at).max().unwrap();
    for (minutes, is_old) in [(30, false), (90, true)] {
        let options = InfoOptions {
            max_age: Some(Duration::from_secs(3600)),
            as_of: Some(ended + SignedDuration::from_mins(minutes)),
            ..InfoOptions::default()
        };
        let report = info::collect(&made.within(&repository), &options).await;
        let alarms = report.unwrap().alarms;
        let found = alarms.iter().any(|alarm| alarm.kind == AlarmKind::Age);
        assert_eq!(found, is_old, "{minutes}: {alarms:?}");
    }
}

async fn expire(repository: &Repository, made: &Made, policy: Policy) -> ExpireReport {
    let options = ExpireOptions {
        policy,
        codec: Codec::default(),
        jobs: 2,
        ignore_restores: true,
    };
    let cluster = made.within(repository);
    let done = expire::execute(&cluster, &options, &Progress::default()).await;
    done.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merged_layer_that_has_lost_an_object_replaces_nothing() {
    let policies = [
        Policy {
            keep_full: Some(1),
            ..Policy::default()
        },
        Policy {
            max_chain: Some(9),
            ..Policy::default()
        },
    ];
    for policy in policies {
        let repository = Repository::memory();
        let made = chain_of_three(&repository).await;
        let merged = merge_from(&repository, &made, 1, false).await;
        let merged = Label::parse(&merged.label).unwrap();
        let pack = made.cluster.pack_key(&merged, 0);
        replace(&repository, &pack, None).await;
        // The newest stands on the layers that were merged, as it did before.
        let report = info(&repository, &made).await;
        assert_eq!(broken(&report), [merged.as_str()]);
        let done = expire(&repository, &made, policy).await;
        assert!(
            done.remarks
                .iter()
                .any(|remark| remark.contains(merged.as_str()))
        );
        let left = info(&repository, &made).await;
        for label in &made.labels {
            let mut layers = left.layers.iter();
            assert!(
                layers.any(|layer| layer.label == label.as_str()),
                "{done:?}"
            );
        }
        let scratch = tempfile::tempdir().unwrap();
        let target = scratch.path().join("data");
        made.restore(&repository, &target, None).await.unwrap();
        made.assert_restored(&target);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_takes_no_layer_that_has_lost_what_it_needs() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let cluster = made.within(&repository);
    let [first, second, third] = &made.labels[..] else {
        panic!("three layers")
    };
    for pack in [0, 1] {
        let key = made.cluster.pack_key(third, pack);
        replace(&repository, &key, None).await;
    }
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let skipping = |skip_damaged| RestoreOptions {
        vouched: Vouched {
            skip_damaged,
            ..Vouched::default()
        },
        ..options(&target)
    };
    let error = restore::plan(&cluster, skipping(false)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    let (said, hint) = (error.to_string(), error.hint_text().unwrap());
    assert!(
        said.contains(third.as_str()) && hint.contains("--skip-damaged"),
        "{said}: {hint}"
    );
    let plan = restore::plan(&cluster, skipping(true)).await.unwrap();
    assert_eq!(plan.label, second.as_str());
    let notes = plan.notes.join("\n");
    assert!(
        notes.contains(&format!("layer {third} was passed over")),
        "{notes}"
    );

    // The layer that is named is refused before anything is touched, unless the lost pack holds nothing that is needed.
    let named = |label: &Label| RestoreOptions {
        label: Some(label.clone()),
        ..options(&target)
    };
    let error = restore::plan(&cluster, named(third)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    assert!(error.to_string().contains("/pack-00000"), "{error}");
    assert!(!target.exists());
    restore::plan(&cluster, named(first)).await.unwrap();
    let key = made.cluster.digest_key(first, 0);
    replace(&repository, &key, None).await;
    let plan = restore::plan(&cluster, named(first)).await.unwrap();
    let notes = plan.notes.join("\n");
    assert!(
        notes.contains("of which this restore needs none"),
        "{notes}"
    );
    made.restore(&repository, &target, Some(first))
        .await
        .unwrap();

    // When none is left, what the newest has lost is named.
    let key = made.cluster.pack_key(first, 0);
    replace(&repository, &key, None).await;
    for skip_damaged in [false, true] {
        let planned = restore::plan(&cluster, skipping(skip_damaged)).await;
        let error = planned.unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(error.to_string().contains("/pack-00000"), "{error}");
    }
}
