//! Records of restores beside an expiry: what nobody can read, what a wrong clock has dated, and what comes while it looks.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::fs::File;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use pgstrata_engine::expire::ExpireOptions;
use pgstrata_layer::label::Label;
use pgstrata_layer::restoring::RestoreRecord;
use pgstrata_layer::retention::Policy;
use pgstrata_store::catalog::{self, Catalog, Restoring, StoreTime};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::repository::fault::FaultStore;
use pgstrata_store::repository::{Repository, RepositoryOptions};
use restore_common::{Made, copy_of, expire_by, generations, history, labels, rules};

/// A year, in hours.
const YEAR: u64 = 365 * 24;

/// A full layer that [`one_full`] gives up, another, and an increment on that.
async fn two_full(repository: &Repository) -> Made {
    history(repository, &generations(), &[0, 1], |_, _| {}).await
}

/// Everything since the newest full layer.
fn one_full(ignore_restores: bool) -> ExpireOptions {
    ExpireOptions {
        ignore_restores,
        ..rules(Policy {
            keep_full: Some(1),
            ..Policy::default()
        })
    }
}

/// What a restore of that layer needs.
async fn needs(cluster: &ClusterRepository, label: &Label) -> RestoreRecord {
    let catalog = Catalog::load(cluster).await.unwrap();
    let layer = catalog.layer(label).unwrap();
    RestoreRecord {
        layers: vec![layer.reference()],
        start_lsn: layer.manifest.start_lsn,
        timeline: layer.manifest.timeline.get(),
        host: "a host".to_owned(),
        pid: 4711,
        directory: "/restored".to_owned(),
        started_at: Timestamp::now(),
        written_by: "a test".to_owned(),
    }
}

/// A restore says what it needs, and has nothing more to copy.
async fn begin(cluster: &ClusterRepository, record: &RestoreRecord) {
    let begun = Restoring::begin(cluster, record).await.unwrap();
    begun.copied().await;
}

/// The keys of the records of restores.
async fn records(repository: &Repository, made: &Made) -> Vec<String> {
    let prefix = made.cluster.restores_prefix();
    let objects = repository.list(&prefix).await.unwrap().into_iter();
    objects.map(|object| object.key).collect()
}

async fn count_wal(repository: &Repository, made: &Made) -> u64 {
    let objects = repository.list(&made.cluster.wal_prefix()).await.unwrap();
    u64::try_from(objects.len()).unwrap()
}

/// Whoever may create objects can put it there.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_nobody_can_read_is_ignored_with_all_others() {
    let repository = Repository::memory();
    let made = two_full(&repository).await;
    let key = made.cluster.restore_key("x");
    repository.create(&key, "?".into()).await.unwrap();
    let error = expire_by(&repository, &made, &one_full(false)).await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains(&key), "{error}");
    assert_eq!(labels(&repository, &made).await, made.labels);
    let done = expire_by(&repository, &made, &one_full(true)).await;
    let done = done.unwrap();
    assert!(done.done, "{done:?}");
    assert_eq!(labels(&repository, &made).await, made.labels[1..]);
    // A restore may go on whose record that was.
    assert_eq!(records(&repository, &made).await, [key]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_a_wrong_clock_has_dated_counts_until_restores_are_ignored() {
    let scratch = tempfile::tempdir().unwrap();
    let url = format!("file://{}", scratch.path().display());
    let repository = Repository::open(&RepositoryOptions::new(url)).unwrap();
    let made = two_full(&repository).await;
    let cluster = made.within(&repository);
    begin(&cluster, &needs(&cluster, &made.labels[0]).await).await;
    let dated = records(&repository, &made).await;
    let file = File::open(scratch.path().join(&dated[0])).unwrap();
    let half_an_hour_more = Duration::from_secs(3600 * YEAR + 1800);
    file.set_modified(SystemTime::now() + half_an_hour_more)
        .unwrap();
    let now = StoreTime::ask(&cluster).await.unwrap();
    let found = catalog::in_use(&cluster, now).await.unwrap();
    let [restore] = &found[..] else {
        panic!("{found:?}");
    };
    let ahead = format!("is not known: the store has dated that {YEAR} hours");
    for words in [&*ahead, "--ignore-restores"] {
        let said = restore.describe();
        assert!(said.contains(words), "{words}: {said}");
    }
    let done = expire_by(&repository, &made, &one_full(false)).await;
    let done = done.unwrap();
    assert!(done.done && done.keep[0].why.contains(&ahead), "{done:?}");
    assert_eq!(records(&repository, &made).await, dated);

    // Of another the time is known.
    begin(&cluster, &needs(&cluster, &made.labels[1]).await).await;
    let done = expire_by(&repository, &made, &one_full(true)).await;
    let done = done.unwrap();
    assert_eq!(done.remove, [made.labels[0].to_string()], "{done:?}");
    let left = records(&repository, &made).await;
    assert!(left.len() == 1 && left != dated, "{left:?}");
}

/// A restore of what is to go begins at any moment of the expiry.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_names_what_has_gone_and_nothing_that_a_restore_has_kept() {
    let original = Repository::memory();
    let made = two_full(&original).await;
    let record = needs(&made.within(&original), &made.labels[0]).await;
    let options = one_full(false);
    let archived = count_wal(&original, &made).await;
    let (mut went, mut stayed) = (0, 0);
    for nth in 0.. {
        let memory = copy_of(&original, &made).await;
        let sound = Repository::with_store(memory.clone());
        let store = FaultStore::holding_up(nth, memory);
        let held_up = Repository::with_store(store.clone());
        let mut expiry = Box::pin(expire_by(&held_up, &made, &options));
        tokio::select! {
            _ = &mut expiry => break,
            () = store.reached() => {}
        }
        begin(&made.within(&sound), &record).await;
        store.go_on();
        let report = expiry.await.unwrap();
        assert!(report.done, "at {nth}: {report:?}");
        let there = labels(&sound, &made).await;
        let gone = made.labels.iter().filter(|label| !there.contains(label));
        let gone: Vec<String> = gone.map(Label::to_string).collect();
        let wal_files = archived - count_wal(&sound, &made).await;
        let told = (report.remove.clone(), report.wal_files);
        assert_eq!(told, (gone, wal_files), "at {nth}: {report:?}");
        match report.remove.is_empty() {
            true => stayed += 1,
            false => went += 1,
        }
    }
    assert!(went > 5 && stayed > 5, "{went} went, {stayed} stayed");
}
