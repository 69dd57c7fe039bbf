//! A store that says of one object, for ever, that it is to be asked for later: verification names that object, and verifies all
//! others.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod restore_common;
#[path = "../../store/tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use jiff::Timestamp;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_engine::verify::{self, FindingKind, VerifyOptions, VerifyReport};
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::digest;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{self, IndexPartRef};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Kind;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::FaultStore;
use restore_common::{Made, branch_off, chain_of_three, copy_of};
use support::places::push;
use support::vault::{self, Vault};

/// A store that has lost some of its disks, and the object that lies on them.
fn degraded(inner: &Arc<InMemory>, withheld: Option<&str>) -> Repository {
    let inner: Arc<dyn ObjectStore> = inner.clone();
    Repository::with_store(match withheld {
        Some(key) => FaultStore::withholding(key, inner),
        None => FaultStore::new(inner),
    })
}

fn claim_of(label: &Label, layer_id: &str) -> Vec<u8> {
    claim::encode(&ClaimRecord {
        label: label.to_string(),
        layer_id: layer_id.to_owned(),
        host: "host".to_owned(),
        pid: 1,
        started_at: Timestamp::UNIX_EPOCH,
        written_by: "test".to_owned(),
    })
}

/// The chain made by hand, with the claims that a backup would have left.
async fn scene() -> (Repository, Made) {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    for label in &made.labels {
        let object = repository.get(&made.cluster.manifest_key(label)).await;
        let manifest = manifest::decode(&object.unwrap()).unwrap();
        for key in [
            made.cluster.claim_key(label),
            made.cluster.committed_key(label),
        ] {
            let body = claim_of(label, &manifest.layer_id);
            repository.create(&key, body.into()).await.unwrap();
        }
    }
    (repository, made)
}

/// Verifies a copy of which one object is not given out.
async fn verify_without(
    original: &Repository,
    made: &Made,
    withheld: Option<&str>,
    options: &VerifyOptions,
) -> VerifyReport {
    let copy = copy_of(original, made).await;
    let repository = degraded(&copy, withheld);
    let cluster = made.within(&repository);
    let verified = verify::run(&cluster, options, Progress::default()).await;
    verified.unwrap()
}

/// Requires that exactly one finding is about the object, and answers what all others are about.
fn others<'r>(report: &'r VerifyReport, withheld: &str) -> BTreeSet<&'r str> {
    let findings = report.findings.iter();
    let (own, others): (Vec<_>, Vec<_>) = findings.partition(|found| found.object == withheld);
    let kinds: Vec<FindingKind> = own.iter().map(|found| found.kind).collect();
    let said = &report.findings;
    assert_eq!(kinds, [FindingKind::Unreadable], "{withheld}: {said:?}");
    others.iter().map(|found| found.object.as_str()).collect()
}

fn objects(report: &VerifyReport) -> u64 {
    report.layers.iter().map(|layer| layer.objects).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_never_given_out_is_named_and_all_others_are_verified() {
    let (repository, made) = scene().await;
    let (cluster, label) = (&made.cluster, &made.labels[0]);
    let segment = |number: u64| cluster.wal_key("00000001", &format!("00000001{number:016X}"));
    // Of the layer, of the layer's own WAL, and of the WAL between layers.
    let keys = [
        cluster.index_key(label, 0),
        cluster.digest_key(label, 0),
        cluster.pack_key(label, 0),
        cluster.claim_key(label),
        cluster.committed_key(label),
        segment(20),
        segment(25),
    ];
    for deep in [false, true] {
        let options = VerifyOptions {
            deep,
            jobs: 2,
            ..VerifyOptions::default()
        };
        let sound = verify_without(&repository, &made, None, &options).await;
        assert_eq!(sound.findings, []);
        let looks = keys.iter().map(String::as_str);
        let looks = looks.map(|key| verify_without(&repository, &made, Some(key), &options));
        for (key, found) in keys.iter().zip(join_all(looks).await) {
            require_one(&made, (key.as_str(), deep), &found, &sound);
        }
    }
}

/// What a verification reports without one object of the first layer, or of the WAL from its start on.
fn require_one(
    made: &Made,
    (key, deep): (&str, bool),
    report: &VerifyReport,
    sound: &VerifyReport,
) {
    let is = |words: &[&str]| words.iter().any(|word| key.contains(word));
    // Nobody can plan a restore of the layers that stand on it.
    let breaks_chain = deep && is(&["/index-"]);
    let above = made.labels[1..].iter().filter(|_| breaks_chain);
    let above = above.map(|label| made.cluster.manifest_key(label));
    let above: BTreeSet<String> = above.collect();
    let above: BTreeSet<&str> = above.iter().map(String::as_str).collect();
    assert_eq!(others(report, key), above, "{key} {deep}");
    let ok: Vec<bool> = report.layers.iter().map(|layer| layer.ok).collect();
    let is_of_layer = is(&["/index-", "/digest-", "/pack-", "0000000000000014"]);
    assert_eq!(ok, [!is_of_layer, !breaks_chain, !breaks_chain], "{key}");
    // A finished layer is restored without its claim.
    let is_claim = is(&["/claim", "/committed"]);
    let failure = (!is_claim).then_some(Kind::Repository);
    assert_eq!(report.failure(), failure, "{key} {deep}");
    assert!(report.recorded, "{key} {deep}");
    let is_wal = is(&["/wal/"]);
    let less = |is_less: bool| u64::from(is_less);
    let layers = objects(sound) - less(!is_claim && !is_wal);
    let wal_files = sound.wal_files - less(is_wal);
    let read = (objects(report), report.wal_files);
    assert_eq!(read, (layers, wal_files), "{key} {deep}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_is_never_given_out_is_named() {
    let (repository, made) = scene().await;
    branch_off(&repository, &made, 1, 3).await;
    // Nothing is waited for that may be on its way.
    let options = VerifyOptions {
        as_of: Some(Timestamp::now()),
        ..VerifyOptions::default()
    };
    let history = made.cluster.wal_key("00000002", "00000002.history");
    let found = verify_without(&repository, &made, Some(&history), &options).await;
    others(&found, &history);
}

/// Puts a layer with an object of each kind into a sealed cluster, and WAL; answers the keys.
async fn fill(vault: &Vault) -> Vec<String> {
    let writer = vault.writer();
    let sealing = writer.sealing().await.unwrap();
    let label = Label::parse("20261123-080000F").unwrap();
    let (name, id) = (vault::name(), [7; 16]);
    let seal = sealing.new_layer(id).unwrap();
    let mut own = vault::manifest(label.as_str(), id, &seal);
    let raw = vec![7_u8; 1000];
    own.index = vec![IndexPartRef {
        first_path: "base".to_owned(),
        entries: 1,
        index_bytes: 1000,
        index_digest: digest::contents_hex(&raw),
        digest_bytes: 1000,
    }];
    own.pack_count = 1;
    own.pack_bytes = seal.stored_bytes(1000);
    let mut keys = vec![
        name.index_key(&label, 0),
        name.digest_key(&label, 0),
        name.pack_key(&label, 0),
    ];
    for key in &keys {
        let body = seal.seal(&name, key, raw.clone()).unwrap();
        writer.repository.create(key, body.into()).await.unwrap();
    }
    let claimed = claim_of(&label, &own.layer_id);
    let records = [
        (name.claim_key(&label), claimed),
        (name.manifest_key(&label), sealing.encode(&own).unwrap()),
    ];
    for (key, body) in records {
        writer.repository.create(&key, body.into()).await.unwrap();
        keys.push(key);
    }
    let scratch = tempfile::tempdir().unwrap();
    for file in ["000000010000000000000003", "000000010000000000000004"] {
        push(&writer, scratch.path(), file).await;
        keys.push(name.wal_key(&file[..8], file));
    }
    keys
}

async fn verify_keyless(memory: &Arc<InMemory>, withheld: Option<&str>) -> VerifyReport {
    let repository = degraded(memory, withheld);
    let cluster = ClusterRepository::new(&repository, &vault::name());
    let options = VerifyOptions::default();
    let verified = verify::run(&cluster, &options, Progress::default()).await;
    verified.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_such_an_object_is_named_as_well() {
    let memory = Arc::new(InMemory::new());
    let vault = Vault::within(Repository::with_store(memory.clone())).await;
    let mut keys = fill(&vault).await;
    let boxes = vault::name().seals_prefix(&vault.seal_id);
    let boxes = vault.repository.list(&boxes).await.unwrap();
    let mut boxes = boxes.into_iter().map(|object| object.key);
    keys.extend(boxes.find(|key| !key.ends_with("/epoch")));
    assert_eq!(keys.len(), 8);
    let sound = verify_keyless(&memory, None).await;
    assert_eq!(sound.findings, []);
    let looks = keys.iter().map(String::as_str);
    let looks = looks.map(|key| verify_keyless(&memory, Some(key)));
    for (key, found) in keys.iter().zip(join_all(looks).await) {
        assert_eq!(others(&found, key), BTreeSet::new(), "{key}");
        let is_wal = key.contains("/wal/");
        let wal_files = sound.wal_files - u64::from(is_wal);
        assert_eq!(found.wal_files, wal_files, "{key}");
    }
}
