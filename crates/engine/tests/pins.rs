//! Pins of layers that somebody has deleted, or left a part of, and of those that have the state of such a layer.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod restore_common;

use std::collections::BTreeSet;
use std::fs::File;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pgstrata_engine::expire::ExpireReport;
use pgstrata_engine::mark;
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::label::Label;
use pgstrata_layer::mark::Pin;
use pgstrata_layer::retention::Policy;
use pgstrata_store::error::Kind;
use pgstrata_store::repository::{Repository, RepositoryOptions};
use restore_common::{
    Made, chain_of_three, copy_of, expire_by, generations, history, info, labels, merge_from, rules,
};
use tempfile::TempDir;

/// A full layer, an increment on it that is pinned, and another full layer, with which the rules would do.
struct Pinned {
    root: TempDir,
    repository: Repository,
    made: Made,
}

impl Pinned {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let url = format!("file://{}", root.path().display());
        let repository = Repository::open(&RepositoryOptions::new(url)).unwrap();
        let made = history(&repository, &generations(), &[0, 2], |_, _| {}).await;
        let cluster = made.within(&repository);
        let pinned = mark::pin(&cluster, &made.labels[1], Pin::default()).await;
        pinned.unwrap();
        Self {
            root,
            repository,
            made,
        }
    }

    fn label(&self) -> &Label {
        &self.made.labels[1]
    }

    /// Somebody deletes objects of the pinned layer, long ago; those stay that are wanted.
    async fn delete_all_but(&self, stays: impl Fn(&str) -> bool) {
        let prefix = self.made.cluster.layer_prefix(self.label());
        let long_ago = SystemTime::now() - Duration::from_secs(2 * 3600);
        for object in self.repository.list(&prefix).await.unwrap() {
            if stays(&object.key) {
                let file = File::open(self.root.path().join(&object.key)).unwrap();
                file.set_modified(long_ago).unwrap();
            } else {
                self.repository.delete(&object.key).await.unwrap();
            }
        }
    }

    /// Gives the pinned layer the claim of who began it then.
    async fn claimed_at(&self, started_at: Timestamp) {
        let record = ClaimRecord {
            label: self.label().to_string(),
            layer_id: "0f".repeat(16),
            host: "db1".to_owned(),
            pid: 1,
            started_at,
            written_by: "a test".to_owned(),
        };
        let key = self.made.cluster.claim_key(self.label());
        self.repository.delete(&key).await.unwrap();
        let claim = Bytes::from(claim::encode(&record));
        self.repository.create(&key, claim).await.unwrap();
    }

    async fn keys(&self) -> BTreeSet<String> {
        let home = self.made.cluster.as_str();
        let objects = self.repository.list(home).await.unwrap();
        objects.into_iter().map(|object| object.key).collect()
    }

    async fn expire(&self) -> ExpireReport {
        let keep_full = rules(Policy {
            keep_full: Some(1),
            ..Policy::default()
        });
        let done = expire_by(&self.repository, &self.made, &keep_full).await;
        done.unwrap()
    }

    /// An expiry touches nothing, and says how it can go on; then it does.
    async fn require_untouched_until_unpinned(&self, words: &str) {
        let before = self.keys().await;
        let report = self.expire().await;
        assert!(!report.done && report.leftovers.is_empty(), "{report:?}");
        let unpin = format!("\"pgstrata unpin {}\"", self.label());
        for words in [words, &*unpin] {
            assert!(report.notes[0].contains(words), "{words}: {report:?}");
        }
        assert_eq!(self.keys().await, before);
        let cluster = self.made.within(&self.repository);
        mark::unpin(&cluster, self.label()).await.unwrap();
        let again = mark::unpin(&cluster, self.label()).await.unwrap_err();
        assert_eq!(again.kind(), Kind::NotFound, "{again}");
        let done = self.expire().await;
        assert!(done.done, "{done:?}");
        let left = labels(&self.repository, &self.made).await;
        assert_eq!(left, self.made.labels[2..]);
        let prefix = self.made.cluster.layer_prefix(self.label());
        let packs = self.repository.list(&prefix).await.unwrap();
        assert!(packs.iter().all(|object| !is_pack(&object.key)));
    }
}

fn is_pack(key: &str) -> bool {
    key.contains("/pack-")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_layer_of_which_packs_are_left_is_not_finished_off() {
    let pinned = Pinned::new().await;
    pinned.delete_all_but(is_pack).await;
    let words = "is pinned and not there any more (some of its objects are)";
    pinned.require_untouched_until_unpinned(words).await;
}

/// Nobody could note that it was committed, and whoever deleted the manifest has left the claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_layer_that_has_lost_its_manifest_alone_is_not_finished_off() {
    let pinned = Pinned::new().await;
    let before = Timestamp::now() - SignedDuration::from_hours(2);
    pinned.claimed_at(before).await;
    let is_lost = |key: &str| key.ends_with("/manifest") || key.ends_with("/committed");
    pinned.delete_all_but(|key| !is_lost(key)).await;
    let words = "is pinned and not there any more (some of its objects are)";
    pinned.require_untouched_until_unpinned(words).await;
}

/// It has brought the pin before the layer, and will never be completed.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_pinned_layer_that_was_stopped_for_good_stops_no_expiry() {
    let pinned = Pinned::new().await;
    pinned.claimed_at(Timestamp::now()).await;
    let is_there = |key: &str| is_pack(key) || key.ends_with("/claim");
    pinned.delete_all_but(is_there).await;
    let done = pinned.expire().await;
    assert!(done.done, "{done:?}");
    assert_eq!(done.leftovers, [pinned.label().to_string()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mark_of_a_deleted_layer_that_cannot_be_read_counts_as_a_pin() {
    let pinned = Pinned::new().await;
    let key = pinned.made.cluster.mark_key(pinned.label(), 0);
    pinned.repository.delete(&key).await.unwrap();
    let unreadable = Bytes::from_static(b"?");
    pinned.repository.create(&key, unreadable).await.unwrap();
    pinned.delete_all_but(|_| false).await;
    let words = "which counts as a pin), though no expiry";
    pinned.require_untouched_until_unpinned(words).await;
    let marks = pinned.made.cluster.marks_prefix();
    assert!(pinned.repository.list(&marks).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_that_a_merged_layer_has_is_taken_back_by_either_label() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let pinned = &made.labels[2];
    let cluster = made.within(&repository);
    mark::pin(&cluster, pinned, Pin::default()).await.unwrap();
    merge_from(&repository, &made, 2, true).await;
    let prefix = made.cluster.layer_prefix(pinned);
    for object in repository.list(&prefix).await.unwrap() {
        repository.delete(&object.key).await.unwrap();
    }
    let mut there = labels(&repository, &made).await.into_iter();
    let merged = there.find(|label| !made.labels.contains(label));
    let merged = merged.unwrap();
    for label in [pinned, &merged] {
        let copy = Repository::with_store(copy_of(&repository, &made).await);
        let is_pinned = async || {
            let shown = info(&copy, &made).await.layers;
            let mut shown = shown.iter();
            let shown = shown.find(|shown| shown.label == merged.as_str());
            shown.unwrap().pin.is_some()
        };
        assert!(is_pinned().await);
        let cluster = made.within(&copy);
        mark::unpin(&cluster, label).await.unwrap();
        assert!(!is_pinned().await, "{label}");
        let again = mark::unpin(&cluster, label).await.unwrap_err();
        assert_eq!(again.kind(), Kind::NotFound, "{again}");
    }
}
