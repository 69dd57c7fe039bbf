//! Readers beside an expiry: at each of a reader's operations of the store, layers that it reads are merged and removed.
//! Nobody calls that damage.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::collections::BTreeSet;

use bytes::Bytes;
use jiff::SignedDuration;
use pgstrata_engine::expire::{self, ExpireOptions};
use pgstrata_engine::info::{self, InfoOptions};
use pgstrata_engine::merge::{self, MergeOptions};
use pgstrata_engine::verify::{self, FindingKind, Scope, Severity, VerifyOptions, VerifyReport};
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::retention::Policy;
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::error::{Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use restore_common::{Made, chain_of_three, copy_of};

/// As the layer's backup has left it.
fn claim_of(layer: &Layer) -> Bytes {
    let record = ClaimRecord {
        label: layer.label.to_string(),
        layer_id: layer.manifest.layer_id.clone(),
        host: "elsewhere".to_owned(),
        pid: 4711,
        started_at: layer.manifest.started_at,
        written_by: "a test".to_owned(),
    };
    claim::encode(&record).into()
}

/// A chain of three layers, and the WAL that each needs.
struct Scene {
    repository: Repository,
    made: Made,
}

/// What leaves a chain of that length.
fn max_chain(length: usize) -> Policy {
    Policy {
        max_chain: Some(length),
        ..Policy::default()
    }
}

impl Scene {
    /// With all WAL since the first layer.
    async fn with_all_wal() -> Self {
        let repository = Repository::memory();
        let made = chain_of_three(&repository).await;
        let catalog = Catalog::load(&made.within(&repository)).await.unwrap();
        for layer in &catalog.layers {
            let claim = claim_of(layer);
            for key in [
                made.cluster.claim_key(&layer.label),
                made.cluster.committed_key(&layer.label),
            ] {
                repository.create(&key, claim.clone()).await.unwrap();
            }
        }
        Self { repository, made }
    }

    async fn new() -> Self {
        let Self { repository, made } = Self::with_all_wal().await;
        let catalog = Catalog::load(&made.within(&repository)).await.unwrap();
        let mut needed = BTreeSet::new();
        for layer in &catalog.layers {
            let manifest = &layer.manifest;
            let size = u64::from(manifest.cluster.wal_segment_size);
            let size = WalSegmentSize::try_from(size).unwrap();
            let lsns = manifest.start_lsn..manifest.stop_lsn;
            let segments = WalSegment::covering(manifest.timeline, lsns, size);
            needed.extend(segments.map(|segment| segment.file_name(size)));
        }
        for object in repository.list(&made.cluster.wal_prefix()).await.unwrap() {
            let name = object.key.rsplit('/').next().unwrap();
            if !needed.contains(name) {
                repository.delete(&object.key).await.unwrap();
            }
        }
        Self { repository, made }
    }

    /// What `reader` says when before its `nth` operation an expiry by `policy` ends, or fails half way. Also whether it came
    /// to that operation.
    async fn beside<T>(
        &self,
        nth: u64,
        policy: Policy,
        reader: impl AsyncFnOnce(Repository) -> T,
    ) -> (T, bool) {
        let memory = copy_of(&self.repository, &self.made).await;
        let store = FaultStore::holding_up(nth, memory.clone());
        let mut reading = Box::pin(reader(Repository::with_store(store.clone())));
        tokio::select! {
            outcome = &mut reading => return (outcome, false),
            () = store.reached() => {}
        }
        let sound = Repository::with_store(memory.clone());
        if nth % 2 == 1 {
            // Somewhere in it, also while it removes.
            let most = self.operations_of_an_expiry(policy).await;
            let fails = most - 1 - (nth / 2) % most.min(30);
            let failing = FaultStore::failing_at(fails, Fault::Before, memory);
            let failing = Repository::with_store(failing);
            self.expire(&failing, policy).await.ok();
        } else {
            self.expire(&sound, policy).await.ok();
        }
        store.go_on();
        (reading.await, true)
    }

    async fn operations_of_an_expiry(&self, policy: Policy) -> u64 {
        let store = FaultStore::new(copy_of(&self.repository, &self.made).await);
        let repository = Repository::with_store(store.clone());
        self.expire(&repository, policy).await.unwrap();
        store.operation_count()
    }

    async fn expire(&self, repository: &Repository, policy: Policy) -> Result<()> {
        let options = ExpireOptions {
            policy,
            codec: Codec::None,
            jobs: 1,
            ignore_restores: true,
        };
        let cluster = self.made.within(repository);
        let expired = expire::execute(&cluster, &options, &Progress::default()).await;
        expired.map(|_| ())
    }

    async fn verify(&self, repository: &Repository, deep: bool) -> Result<VerifyReport> {
        let options = VerifyOptions {
            scope: Scope::All,
            deep,
            jobs: 1,
            ..VerifyOptions::default()
        };
        let cluster = self.made.within(repository);
        verify::run(&cluster, &options, Progress::default()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verification_calls_what_was_removed_meanwhile_removed_and_not_damaged() {
    let scene = Scene::new().await;
    let mut removed = 0;
    for length in [1, 2] {
        for nth in 0.. {
            let reader = async |repository: Repository| scene.verify(&repository, true).await;
            let (report, met) = scene.beside(nth, max_chain(length), reader).await;
            let report = report.unwrap();
            let mut findings = report.findings.iter();
            let error = findings.find(|found| found.severity == Severity::Error);
            assert_eq!(error, None, "at {nth}, to {length}");
            removed += report.removed.len();
            let told = report.layers.len() + report.removed.len();
            assert!((1..=3).contains(&told), "at {nth}, to {length}: {report:?}");
            if !met {
                break;
            }
        }
    }
    assert!(removed > 30, "{removed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_that_concerns_a_layer_that_stays_is_not_forgotten_with_one_that_went() {
    let scene = Scene::new().await;
    let prefix = scene.made.cluster.wal_prefix();
    let last = scene.repository.list(&prefix).await.unwrap().pop().unwrap();
    let mut bytes = scene.repository.get(&last.key).await.unwrap().to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    // Behind the newest layer, so that it is the first one's way that leads there.
    let (stem, number) = last.key.split_at(last.key.len() - 8);
    let next = u32::from_str_radix(number, 16).unwrap() + 1;
    let next = format!("{stem}{next:08X}");
    scene.repository.create(&next, bytes.into()).await.unwrap();
    for nth in (0..).step_by(2) {
        let reader = async |repository: Repository| scene.verify(&repository, false).await;
        let (report, met) = scene.beside(nth, max_chain(1), reader).await;
        let found: Vec<(FindingKind, String)> = report
            .unwrap()
            .findings
            .into_iter()
            .map(|found| (found.kind, found.object))
            .collect();
        let damaged = (FindingKind::WalDamaged, next.clone());
        assert_eq!(found, [damaged], "at {nth}");
        if !met {
            break;
        }
    }
}

/// Of a removal of WAL that has begun, the segments may be gone in any part.
#[tokio::test(flavor = "multi_thread")]
async fn wal_that_is_given_up_meanwhile_is_no_loss() {
    let scene = Scene::with_all_wal().await;
    let policy = Policy {
        keep_wal: Some(SignedDuration::ZERO),
        ..Policy::default()
    };
    let before = scene
        .repository
        .list(&scene.made.cluster.wal_prefix())
        .await;
    let memory = Repository::with_store(copy_of(&scene.repository, &scene.made).await);
    scene.expire(&memory, policy).await.unwrap();
    let after = memory.list(&scene.made.cluster.wal_prefix()).await;
    let went = before.unwrap().len() - after.unwrap().len();
    assert!(went > 8, "{went} segments went");
    for nth in 0.. {
        let reader = async |repository: Repository| scene.verify(&repository, false).await;
        let (report, met) = scene.beside(nth, policy, reader).await;
        assert_eq!(report.unwrap().findings, [], "at {nth}");
        let reader = async |repository: Repository| {
            let cluster = scene.made.within(&repository);
            info::collect(&cluster, &InfoOptions::default()).await
        };
        let (report, _) = scene.beside(nth, policy, reader).await;
        assert_eq!(report.unwrap().alarms, [], "at {nth}");
        if !met {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn info_raises_no_alarm_because_of_what_was_removed_meanwhile() {
    let scene = Scene::new().await;
    for length in [1, 2] {
        for nth in 0.. {
            let reader = async |repository: Repository| {
                let cluster = scene.made.within(&repository);
                info::collect(&cluster, &InfoOptions::default()).await
            };
            let (report, met) = scene.beside(nth, max_chain(length), reader).await;
            assert_eq!(report.unwrap().alarms, [], "at {nth}, to {length}");
            if !met {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_whose_layers_were_removed_meanwhile_says_so() {
    let scene = Scene::new().await;
    let (mut restored, mut removed) = (0, 0);
    for nth in 0.. {
        let scratch = tempfile::tempdir().unwrap();
        let target = scratch.path().join("data");
        let reader =
            async |repository: Repository| scene.made.restore(&repository, &target, None).await;
        let (outcome, met) = scene.beside(nth, max_chain(1), reader).await;
        match outcome {
            Ok(_) => {
                scene.made.assert_restored(&target);
                restored += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Busy, "at {nth}: {error}");
                let said = "was removed by an expiry or a merge while it was read";
                assert!(error.to_string().contains(said), "at {nth}: {error}");
                removed += 1;
            }
        }
        if !met {
            break;
        }
    }
    assert!(restored > 1 && removed > 5, "{restored}, {removed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_that_reads_back_what_was_removed_meanwhile_says_so() {
    let scene = Scene::new().await;
    let (mut merged, mut removed) = (0, 0);
    for nth in 0.. {
        let reader = async |repository: Repository| {
            let options = MergeOptions {
                label: scene.made.labels[1].clone(),
                into: None,
                codec: Codec::None,
                jobs: 1,
                remove: false,
                ignore_restores: true,
            };
            let cluster = scene.made.within(&repository);
            merge::execute(&cluster, &options, &Progress::default()).await
        };
        let (outcome, met) = scene.beside(nth, max_chain(1), reader).await;
        match outcome {
            Ok(_) => merged += 1,
            // Before it had looked what there is.
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => {
                // Refused by its look after the claim, before it has read anything.
                let kinds = [Kind::Busy, Kind::Refused];
                assert!(kinds.contains(&error.kind()), "at {nth}: {error}");
                removed += 1;
            }
        }
        if !met {
            break;
        }
    }
    assert!(merged > 5 && removed > 2, "{merged}, {removed}");
}
