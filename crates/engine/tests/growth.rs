//! Chains as they become when nobody merges them: what looks at every layer takes as many steps as there are layers.
//! With a search for each parent, as it was once, ten thousand layers took an hour.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::time::Instant;

use bytes::Bytes;
use jiff::SignedDuration;
use pgstrata_engine::expire::{self, ExpireOptions};
use pgstrata_engine::info::{self, InfoOptions};
use pgstrata_engine::merge::{self, MergeOptions};
use pgstrata_engine::restore;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest;
use pgstrata_layer::retention::Policy;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};
use pgstrata_store::catalog::Catalog;
use pgstrata_store::repository::Repository;
use restore_common::{Made, chain, generations, options};

/// A full layer, and increments in which nothing has changed, each on the one before; answers the last.
async fn long_chain(repository: &Repository, layers: usize) -> (Made, Label) {
    let [first, ..] = generations();
    let made = chain(repository, &[first.clone(), first], &[], None).await;
    let catalog = Catalog::load(&made.within(repository)).await.unwrap();
    let second = catalog.layer(&made.labels[1]).unwrap();
    let mut objects = Vec::new();
    let prefix = made.cluster.layer_prefix(&second.label);
    for object in repository.list(&prefix).await.unwrap() {
        let name = object.key.rsplit('/').next().unwrap().to_owned();
        if name != "manifest" {
            objects.push((name, repository.get(&object.key).await.unwrap()));
        }
    }
    let size = WalSegmentSize::try_from(u64::from(second.manifest.cluster.wal_segment_size));
    let size = size.unwrap();
    let mut manifest = second.manifest.clone();
    let (mut label, mut parent) = (second.label.clone(), second.reference());
    let mut time = jiff::civil::date(2026, 11, 21).at(10, 0, 0, 0);
    for number in 2..layers as u64 {
        time += SignedDuration::from_mins(1);
        label = label.successor(LayerKind::Incremental, time);
        manifest.label = label.to_string();
        manifest.parent = Some(parent);
        manifest.start_lsn = Lsn::new((40 + number) * size.get() + 40);
        manifest.stop_lsn = Lsn::new((40 + number) * size.get() + 400);
        manifest.finished_at += SignedDuration::from_mins(1);
        let object = manifest::encode(&manifest);
        parent = manifest::ParentRef {
            label: label.to_string(),
            manifest_digest: manifest::digest(&object),
        };
        let prefix = made.cluster.layer_prefix(&label);
        for (name, bytes) in &objects {
            let key = format!("{prefix}/{name}");
            repository.create(&key, bytes.clone()).await.unwrap();
        }
        let key = made.cluster.manifest_key(&label);
        repository.create(&key, object.into()).await.unwrap();
        let segment = WalSegment {
            timeline: TimelineId::FIRST,
            number: 40 + number,
        };
        let key = made.cluster.wal_key("00000001", &segment.file_name(size));
        // Nobody reads it.
        let wal = Bytes::from(vec![0; 1024]);
        repository.create(&key, wal).await.ok();
    }
    (made, label)
}

async fn look_at_everything(layers: usize) {
    let repository = Repository::memory();
    let (made, newest) = long_chain(&repository, layers).await;
    let cluster = made.within(&repository);
    let mut begun = Instant::now();
    let mut say = |what: &str| {
        println!("{layers} layers, {what}: {:?}", begun.elapsed());
        begun = Instant::now();
    };
    let report = info::collect(&cluster, &InfoOptions::default()).await;
    let report = report.unwrap();
    say("info");
    assert_eq!(report.layers.len(), layers);
    let last = report.layers.last().unwrap();
    assert_eq!(last.chain_length, layers as u64);
    assert_eq!(last.problem, None);
    let sum: u64 = report.layers.iter().map(|layer| layer.stored_bytes).sum();
    assert_eq!(last.chain_stored_bytes, sum);

    let expiry = ExpireOptions {
        policy: Policy {
            keep_within: Some(jiff::SignedDuration::from_hours(24)),
            max_chain: Some(100),
            ..Policy::default()
        },
        codec: Codec::None,
        jobs: 1,
        ignore_restores: true,
    };
    let planned = expire::plan(&cluster, &expiry).await.unwrap();
    say("expire --dry-run");
    // After the merge.
    assert_eq!(planned.keep.len(), 100);
    assert!(
        planned
            .merge
            .is_some_and(|merge| merge.chain_length == layers)
    );

    let merging = MergeOptions {
        label: newest.clone(),
        into: None,
        codec: Codec::None,
        jobs: 1,
        remove: true,
        ignore_restores: true,
    };
    let planned = merge::plan(&cluster, &merging).await.unwrap();
    say("merge --dry-run");
    assert!(planned.inputs.iter().all(|input| input.removable));

    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let planned = restore::plan(&cluster, options(&target)).await.unwrap();
    say("restore --dry-run");
    assert_eq!(planned.label, newest.to_string());
    assert_eq!(planned.layers.len(), layers);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_layers_in_one_chain() {
    look_at_everything(2_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_layers_in_one_chain() {
    look_at_everything(10_000).await;
}
