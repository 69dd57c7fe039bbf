//! Expiry in a repository: what stays restores, and WAL goes only where no layer needs it.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use pgstrata_engine::catalog::Catalog;
use pgstrata_engine::error::{Kind, Result};
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_engine::merge::{self, MergeOptions};
use pgstrata_engine::progress::Progress;
use pgstrata_engine::repository::Repository;
use pgstrata_engine::repository::fault::{Fault, FaultStore};
use pgstrata_engine::restore;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use pgstrata_layer::retention::Policy;
use restore_common::{Made, chain_of_three, copy_of, options};

fn rules(policy: Policy) -> ExpireOptions {
    ExpireOptions {
        policy,
        codec: Codec::default(),
        jobs: 2,
    }
}

fn max_chain(length: usize) -> ExpireOptions {
    rules(Policy {
        max_chain: Some(length),
        ..Policy::default()
    })
}

async fn expire(
    repository: &Repository,
    made: &Made,
    options: &ExpireOptions,
) -> Result<ExpireReport> {
    expire::execute(repository, &made.cluster, options, &Progress::default()).await
}

async fn labels(repository: &Repository, made: &Made) -> Vec<Label> {
    let catalog = Catalog::load(repository, &made.cluster).await.unwrap();
    catalog
        .layers
        .into_iter()
        .map(|layer| layer.label)
        .collect()
}

async fn wal(repository: &Repository, made: &Made) -> Vec<String> {
    let objects = repository.list(&made.cluster.wal_prefix()).await.unwrap();
    objects.into_iter().map(|object| object.key).collect()
}

/// The newest state restores, to the end of its backup.
async fn assert_newest_restores(repository: &Repository, made: &Made) {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let plan = restore::plan(repository, &made.cluster, options(&target))
        .await
        .unwrap();
    restore::execute(repository, &plan, &Progress::default())
        .await
        .unwrap();
    made.assert_restored(&target);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_limit_merges_and_wal_before_the_merged_layer_goes() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let archived = wal(&repository, &made).await;
    let planned = expire::plan(&repository, &made.cluster, &max_chain(2))
        .await
        .unwrap();
    assert!(!planned.done);
    assert_eq!(planned.merge.as_ref().unwrap().new_length, 2);
    assert_eq!(planned.wal_files, 0);
    assert_eq!(labels(&repository, &made).await, made.labels);

    let done = expire(&repository, &made, &max_chain(2)).await.unwrap();
    assert!(done.done && done.notes.is_empty(), "{done:?}");
    let left = labels(&repository, &made).await;
    assert_eq!(left.len(), 2);
    assert_eq!(left[1], made.labels[2]);
    // Layers start ten segments apart; the merged one starts where the second did.
    assert_eq!(done.wal_files, 10);
    let kept = wal(&repository, &made).await;
    assert_eq!(kept, archived[10..]);
    assert_newest_restores(&repository, &made).await;
    // Nothing is left to do.
    let again = expire(&repository, &made, &max_chain(2)).await.unwrap();
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
    let done = expire(&repository, &made, &rules(policy)).await.unwrap();
    assert!(done.done && done.remove.is_empty());
    assert_eq!(
        repository.list(made.cluster.as_str()).await.unwrap(),
        before
    );
    let error = expire(&repository, &made, &rules(Policy::default()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_of_a_merge_go_when_no_rule_wants_them() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let merging = MergeOptions {
        label: made.labels[1].clone(),
        into: None,
        codec: Codec::default(),
        jobs: 2,
        remove: false,
    };
    merge::execute(&repository, &made.cluster, &merging, &Progress::default())
        .await
        .unwrap();
    // The layers are of 2023: of all days that are kept, only the newest is wanted, and what it stands on.
    let policy = Policy {
        keep_days: Some(7),
        ..Policy::default()
    };
    let done = expire(&repository, &made, &rules(policy)).await.unwrap();
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
    let report = expire(&repository, &made, &max_chain(1)).await.unwrap();
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
    let report = expire(&damaged, &made, &max_chain(1)).await.unwrap();
    assert!(
        !report.done && report.notes[0].contains("stands on"),
        "{report:?}"
    );
    assert_eq!(labels(&damaged, &made).await, made.labels[..2]);
}

/// Whatever operation fails, the newest state restores, and running it again completes it.
#[tokio::test(flavor = "multi_thread")]
async fn an_expiry_that_fails_anywhere_loses_nothing() {
    let original = Repository::memory();
    let made = chain_of_three(&original).await;
    let mut failures = 0;
    for nth in 0.. {
        let memory = copy_of(&original, &made).await;
        let sound = Repository::with_store(memory.clone());
        let store = FaultStore::failing_at(nth, Fault::Before, memory.clone());
        let outcome = expire(&Repository::with_store(store), &made, &max_chain(1)).await;
        assert_newest_restores(&sound, &made).await;
        if outcome.is_ok() {
            break;
        }
        failures += 1;
        let done = expire(&sound, &made, &max_chain(1)).await.unwrap();
        assert!(done.done, "{done:?}");
        let left = labels(&sound, &made).await;
        assert_eq!(
            left.len(),
            1,
            "after {nth}: {left:?}, {done:?}, {outcome:?}"
        );
        assert_newest_restores(&sound, &made).await;
    }
    assert!(failures > 50, "{failures}");
}
