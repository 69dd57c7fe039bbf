//! Verification finds whatever was altered, names the object, and finds nothing in what is sound.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    reason = "helpers of tests, about small numbers"
)]

mod restore_common;

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;
use jiff::Timestamp;
use pgstrata_engine::health::AlarmKind;
use pgstrata_engine::info::{self, InfoOptions};
use pgstrata_engine::verify::{self, FindingKind, Scope, Severity, VerifyOptions, VerifyReport};
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::digest;
use pgstrata_layer::entry::{BlockRun, DigestRef, EntryKind, FileEntry};
use pgstrata_layer::frame::{Codec, FrameEncoder};
use pgstrata_layer::index::IndexWriter;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{self, CorruptPage, Manifest};
use pgstrata_layer::pack::PackBuilder;
use pgstrata_layer::retention::Policy;
use pgstrata_layer::wal;
use pgstrata_pgdata::page::page_checksum;
use pgstrata_pgdata::relation::BlockNumber;
use pgstrata_pgdata::{Lsn, TimelineId};
use pgstrata_store::error::{Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use restore_common::{
    Made, chain_of_three, copy_of, expire_by, generations, history, merge_from, rules,
};

/// The chain made by hand, with the records that a backup would have left.
async fn scene() -> (Repository, Made) {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    for label in &made.labels {
        let manifest = manifest_of(&repository, &made, label).await;
        let claim = ClaimRecord {
            label: label.to_string(),
            layer_id: manifest.layer_id.clone(),
            host: "host".to_owned(),
            pid: 1,
            started_at: Timestamp::UNIX_EPOCH,
            written_by: "test".to_owned(),
        };
        let body = Bytes::from(claim::encode(&claim));
        let key = made.cluster.claim_key(label);
        repository.create(&key, body.clone()).await.unwrap();
        let key = made.cluster.committed_key(label);
        repository.create(&key, body).await.unwrap();
    }
    (repository, made)
}

async fn manifest_of(repository: &Repository, made: &Made, label: &Label) -> Manifest {
    let object = repository.get(&made.cluster.manifest_key(label)).await;
    manifest::decode(&object.unwrap()).unwrap()
}

async fn verify(repository: &Repository, made: &Made, scope: Scope, deep: bool) -> VerifyReport {
    let options = VerifyOptions {
        scope,
        deep,
        jobs: 2,
        ..VerifyOptions::default()
    };
    verify::run(&made.within(repository), &options, Progress::default())
        .await
        .unwrap()
}

async fn replace(repository: &Repository, key: &str, body: Option<Vec<u8>>) {
    repository.delete(key).await.unwrap();
    if let Some(body) = body {
        repository.create(key, body.into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_sound_chain_has_no_findings() {
    let (repository, made) = scene().await;
    let plain = verify(&repository, &made, Scope::All, false).await;
    assert_eq!(plain.findings, []);
    assert_eq!(plain.failure(), None);
    assert!(
        plain
            .layers
            .iter()
            .all(|layer| layer.ok && layer.pages == 0)
    );
    let deep = verify(&repository, &made, Scope::All, true).await;
    assert_eq!(deep.findings, []);
    assert_eq!(deep.layers.len(), made.labels.len());
    let mut stored = 0;
    for label in &made.labels {
        // claim and plain files are no relation pages
        stored += manifest_of(&repository, &made, label)
            .await
            .totals
            .pages_stored;
    }
    let (pages, files): (u64, u64) = deep
        .layers
        .iter()
        .fold((0, 0), |(p, f), layer| (p + layer.pages, f + layer.files));
    assert!(0 < pages && pages < stored, "{pages} of {stored}");
    assert!(files >= 4, "{files}");
    assert!(deep.wal_files >= 3, "{}", deep.wal_files);
    let chain = Scope::Chain(made.labels[1].clone());
    assert_eq!(
        verify(&repository, &made, chain, true).await.layers.len(),
        2
    );
}

#[tokio::test]
async fn every_object_at_the_place_of_another_is_named() {
    let (repository, made) = scene().await;
    let prefix = made.cluster.layers_prefix();
    let mut objects = Vec::new();
    for object in repository.list(&prefix).await.unwrap() {
        let body = repository.get(&object.key).await.unwrap().to_vec();
        objects.push((object.key, body));
    }
    let mut pairs = 0;
    for (key, genuine) in &objects {
        // A claim is told twice.
        let others = objects.iter().filter(|(_, body)| body != genuine);
        for (other, body) in others {
            replace(&repository, key, Some(body.clone())).await;
            let report = verify(&repository, &made, Scope::All, false).await;
            let named = report.findings.iter().find(|f| f.object == *key);
            let named = named.unwrap_or_else(|| panic!("{other} at {key}: {:?}", report.findings));
            assert_eq!(named.kind, FindingKind::Damaged, "{other} at {key}");
            pairs += 1;
        }
        replace(&repository, key, Some(genuine.clone())).await;
    }
    assert!(pairs > 300, "{pairs}");
}

#[tokio::test]
async fn rule_13_13_every_object_missing_cut_or_flipped_is_named() {
    let (repository, made) = scene().await;
    let objects = repository
        .list(&made.cluster.layers_prefix())
        .await
        .unwrap();
    assert!(objects.len() >= 18, "{}", objects.len());
    for object in objects {
        let key = &object.key;
        let original = repository.get(key).await.unwrap().to_vec();
        let mut flipped = original.clone();
        flipped[original.len() / 2] ^= 1;
        let cut = original[..original.len() - 1].to_vec();
        for (way, body) in [
            ("missing", None),
            ("cut", Some(cut)),
            ("flipped", Some(flipped)),
        ] {
            // That a layer was committed, its manifest says as well.
            if way == "missing" && key.ends_with("/committed") {
                continue;
            }
            replace(&repository, key, body).await;
            let report = verify(&repository, &made, Scope::All, false).await;
            let named = report.findings.iter().find(|f| f.object == *key);
            let named = named.unwrap_or_else(|| panic!("{key} {way}: {:?}", report.findings));
            // A finished layer is restored without its claim.
            let is_claim = key.ends_with("/claim") || key.ends_with("/committed");
            let (severity, failure) = match is_claim {
                true => (Severity::Warning, None),
                false => (Severity::Error, Some(Kind::Damaged)),
            };
            assert_eq!(named.severity, severity, "{key} {way}");
            assert_eq!(report.failure(), failure, "{key} {way}");
            // That there was a manifest is known from "committed".
            let kind = if way == "missing" && !key.ends_with("/manifest") {
                FindingKind::Missing
            } else {
                FindingKind::Damaged
            };
            assert_eq!(named.kind, kind, "{key} {way}: {}", named.message);
        }
        replace(&repository, key, Some(original)).await;
    }
    assert_eq!(
        verify(&repository, &made, Scope::All, true).await.findings,
        []
    );
}

#[tokio::test]
async fn all_findings_are_listed_and_damaged_packs_name_files() {
    let (repository, made) = scene().await;
    let label = &made.labels[0];
    let pack = made.cluster.pack_key(label, 0);
    let mut bytes = repository.get(&pack).await.unwrap().to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    replace(&repository, &pack, Some(bytes)).await;
    let digest = made.cluster.digest_key(&made.labels[1], 0);
    replace(&repository, &digest, None).await;
    let stray = format!("{}/pack-000099", made.cluster.layer_prefix(label));
    replace(&repository, &stray, Some(b"x".to_vec())).await;
    let report = verify(&repository, &made, Scope::All, false).await;
    let of = |key: &str| report.findings.iter().find(|f| f.object == key).unwrap();
    assert!(
        of(&pack).message.contains("base/5/"),
        "{}",
        of(&pack).message
    );
    assert_eq!(of(&digest).kind, FindingKind::Missing);
    assert_eq!(of(&stray).kind, FindingKind::Stray);
    assert_eq!(of(&stray).severity, Severity::Warning);
    let last = report.findings.last().unwrap();
    assert_eq!(last.severity, Severity::Warning, "the worst come first");
    let ok: Vec<bool> = report.layers.iter().map(|layer| layer.ok).collect();
    assert_eq!(ok, [false, false, true]);
}

/// The same object, as a newer version might have written it.
fn of_version_nine(key: &str, object: &[u8]) -> Vec<u8> {
    let mut newer = object.to_vec();
    // "pgstrata KIND VERSION ...", or eight bytes and the version.
    let at = match newer.starts_with(b"pgstrata ") {
        true => {
            let spaces = newer.iter().enumerate().filter(|(_, byte)| **byte == b' ');
            spaces.map(|(at, _)| at).nth(1).unwrap() + 1
        }
        false => 8,
    };
    assert!(
        [1, 2, b'1', b'2'].contains(&newer[at]),
        "{key}: {}",
        newer[at]
    );
    newer[at] = if newer[at] < 9 { 9 } else { b'9' };
    newer
}

/// What is said of an object.
fn kind_of(report: &VerifyReport, key: &str) -> Option<FindingKind> {
    let mut findings = report.findings.iter();
    let found = findings.find(|found| found.object == key);
    found.map(|found| found.kind)
}

/// Puts `part` into the place of the first part of a layer's index, and into its manifest.
async fn replace_index(repository: &Repository, made: &Made, label: &Label, part: Vec<u8>) {
    let mut manifest = manifest_of(repository, made, label).await;
    manifest.index[0].index_digest = digest::contents_hex(&part);
    let manifest = manifest::encode(&manifest);
    replace(
        repository,
        &made.cluster.manifest_key(label),
        Some(manifest),
    )
    .await;
    replace(repository, &made.cluster.index_key(label, 0), Some(part)).await;
}

#[tokio::test]
async fn what_a_newer_version_wrote_is_called_so_and_hides_no_damage() {
    let (repository, made) = scene().await;
    let wal = repository.list(&made.cluster.wal_prefix()).await.unwrap();
    // No layer stands on the newest: its manifest may change, which names the index.
    let (newest, label, below) = (&made.labels[2], &made.labels[1], &made.labels[0]);
    let (cluster, pack) = (&made.cluster, made.cluster.pack_key(below, 1));
    let index = cluster.index_key(newest, 0);
    for key in [
        cluster.cluster_key(),
        cluster.manifest_key(label),
        cluster.pack_key(label, 0),
        index.clone(),
        cluster.digest_key(label, 0),
        cluster.claim_key(label),
        cluster.committed_key(label),
        wal[0].key.clone(),
    ] {
        let original = repository.get(&key).await.unwrap().to_vec();
        let newer = of_version_nine(&key, &original);
        match key == index {
            true => replace_index(&repository, &made, newest, newer).await,
            false => replace(&repository, &key, Some(newer)).await,
        }
        let report = verify(&repository, &made, Scope::All, true).await;
        let unsupported = Some(FindingKind::Unsupported);
        assert_eq!(kind_of(&report, &key), unsupported, "{key}");
        assert_eq!(report.recorded, key != cluster.cluster_key());
        // A finished layer is restored without its claim.
        let is_claim = key.ends_with("/claim") || key.ends_with("/committed");
        let failure = (!is_claim).then_some(Kind::Unsupported);
        if !key.ends_with("/manifest") {
            assert_eq!(report.failure(), failure, "{:?}", report.findings);
        }
        let whole = repository.get(&pack).await.unwrap().to_vec();
        replace(&repository, &pack, None).await;
        let report = verify(&repository, &made, Scope::All, false).await;
        assert_eq!(kind_of(&report, &key), unsupported, "{key}");
        assert_eq!(kind_of(&report, &pack), Some(FindingKind::Missing), "{key}");
        assert_eq!(report.failure(), Some(Kind::Damaged), "{key}");
        replace(&repository, &pack, Some(whole)).await;
        match key == index {
            true => replace_index(&repository, &made, newest, original).await,
            false => replace(&repository, &key, Some(original)).await,
        }
    }
    let report = verify(&repository, &made, Scope::All, true).await;
    assert_eq!(report.findings, []);
}

#[tokio::test]
async fn a_lost_record_of_the_cluster_hides_no_damage() {
    let (repository, made) = scene().await;
    let pack = made.cluster.pack_key(&made.labels[0], 1);
    let record = made.cluster.cluster_key();
    replace(&repository, &record, None).await;
    replace(&repository, &pack, None).await;
    let report = verify(&repository, &made, Scope::All, false).await;
    for (object, kind) in [
        (&pack, FindingKind::Missing),
        (&record, FindingKind::Damaged),
    ] {
        assert_eq!(kind_of(&report, object), Some(kind), "{object}");
    }
}

#[tokio::test]
async fn wal_that_is_missing_or_damaged_is_named() {
    let (repository, made) = scene().await;
    let manifest = manifest_of(&repository, &made, &made.labels[2]).await;
    let prefix = made.cluster.wal_prefix();
    let objects = repository.list(&prefix).await.unwrap();
    let size = u64::from(manifest.cluster.wal_segment_size);
    let number = manifest.start_lsn.get() / size;
    let name = format!("{number:08X}");
    let key = objects.iter().find(|o| o.key.ends_with(&name)).unwrap();
    let original = repository.get(&key.key).await.unwrap().to_vec();
    let mut flipped = original.clone();
    flipped[original.len() / 2] ^= 1;
    let cases = [
        (None, FindingKind::WalMissing, Kind::WalMissing),
        (Some(flipped), FindingKind::WalDamaged, Kind::Damaged),
    ];
    for (body, kind, failure) in cases {
        replace(&repository, &key.key, body).await;
        let report = verify(&repository, &made, Scope::All, false).await;
        assert_eq!(report.failure(), Some(failure));
        assert_eq!(report.findings[0].kind, kind);
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        assert_eq!(report.findings[0].object, key.key);
        assert_eq!(report.findings[0].layer, made.labels[2].as_str());
    }
}

/// A merged layer needs the WAL of the last one that was merged into it.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_wal_is_damage_of_every_layer_that_needs_it() {
    let (repository, made) = scene().await;
    let merged = merge_from(&repository, &made, 2, false).await.label;
    let key = made
        .cluster
        .wal_key("00000001", &format!("00000001{:016X}", 40));
    let mut flipped = repository.get(&key).await.unwrap().to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let both = BTreeSet::from([made.labels[2].as_str(), merged.as_str()]);
    for body in [None, Some(flipped)] {
        replace(&repository, &key, body).await;
        let report = verify(&repository, &made, Scope::All, false).await;
        let findings = report.findings.iter();
        let named = findings.filter(|found| found.object == key);
        let named: BTreeSet<&str> = named.map(|found| found.layer.as_str()).collect();
        assert_eq!(named, both, "{:?}", report.findings);
        let layers = report.layers.iter().filter(|layer| !layer.ok);
        let damaged: BTreeSet<&str> = layers.map(|layer| layer.label.as_str()).collect();
        assert_eq!(damaged, both);
    }
    let keep_full = rules(Policy {
        keep_full: Some(1),
        ..Policy::default()
    });
    let done = expire_by(&repository, &made, &keep_full).await.unwrap();
    assert_eq!(done.remove, [""; 0], "{done:?}");
}

/// The layer ends where a record begins in its last segment.
#[tokio::test]
async fn the_last_segment_of_a_layer_is_readable_up_to_the_end_of_the_layer() {
    let (repository, made) = scene().await;
    let manifest = manifest_of(&repository, &made, &made.labels[2]).await;
    let name = format!("00000001{:016X}", 41);
    let zeros = vec![0; usize::try_from(manifest.cluster.wal_segment_size).unwrap()];
    let system = manifest.cluster.system_identifier;
    let object = wal::encode(&name, &zeros, system, Codec::default()).unwrap();
    let key = made.cluster.wal_key("00000001", &name);
    replace(&repository, &key, Some(object)).await;
    for scope in [Scope::All, Scope::Chain(made.labels[2].clone())] {
        let report = verify(&repository, &made, scope, false).await;
        let named = report.findings.iter().find(|found| found.object == key);
        let named = named.map(|found| (found.kind, found.layer.as_str()));
        let of_layer = (FindingKind::WalDamaged, made.labels[2].as_str());
        assert_eq!(named, Some(of_layer), "{:?}", report.findings);
        let ok: Vec<bool> = report.layers.iter().map(|layer| layer.ok).collect();
        assert_eq!(ok, [true, true, false]);
    }
}

/// What a server's archiver is to bring may come a moment later: of the past nobody waits for that.
#[tokio::test]
async fn wal_that_was_missing_for_seconds_at_a_moment_of_the_past_is_in_doubt() {
    let (repository, made) = scene().await;
    for start in [20, 30, 40] {
        let note = format!("00000001{start:016X}.00000028.backup");
        let system = manifest_of(&repository, &made, &made.labels[0]).await;
        let system = system.cluster.system_identifier;
        let object = wal::encode(&note, b"of a backup", system, Codec::default()).unwrap();
        let key = made.cluster.wal_key("00000001", &note);
        repository.create(&key, object.into()).await.unwrap();
    }
    let key = made
        .cluster
        .wal_key("00000001", &format!("00000001{:016X}", 45));
    replace(&repository, &key, None).await;
    let options = VerifyOptions {
        as_of: Some(Timestamp::now()),
        ..VerifyOptions::default()
    };
    let report = verify::run(&made.within(&repository), &options, Progress::default()).await;
    let report = report.unwrap();
    let found = report.findings.iter().find(|found| found.object == key);
    let found = found.map(|found| (found.kind, found.severity));
    let doubt = Some((FindingKind::WalMissing, Severity::Warning));
    assert_eq!(found, doubt, "{:?}", report.findings);
    assert_eq!(report.failure(), None, "{:?}", report.findings);
}

#[tokio::test]
async fn who_asks_about_a_layer_is_told_that_the_history_of_its_timeline_is_lost() {
    let repository = Repository::memory();
    let on_two = |at, manifest: &mut Manifest| {
        if at == 2 {
            manifest.timeline = TimelineId::new(2);
        }
    };
    let made = history(&repository, &generations(), &[0, 1, 2], on_two).await;
    for (label, expected) in [
        (&made.labels[1], vec![]),
        (&made.labels[2], vec![AlarmKind::Archive]),
    ] {
        let options = InfoOptions {
            label: Some(label.clone()),
            ..InfoOptions::default()
        };
        let told = info::collect(&made.within(&repository), &options).await;
        let told = told.unwrap();
        let kinds: Vec<AlarmKind> = told.alarms.iter().map(|alarm| alarm.kind).collect();
        assert_eq!(kinds, expected, "{told:?}");
        assert_eq!(told.layers[0].problem.is_some(), !expected.is_empty());
    }
}

#[tokio::test]
async fn a_child_of_another_parent_is_a_broken_chain() {
    let (repository, made) = scene().await;
    let label = &made.labels[0];
    let mut manifest = manifest_of(&repository, &made, label).await;
    manifest.written_by = "somebody else".to_owned();
    let key = made.cluster.manifest_key(label);
    replace(&repository, &key, Some(manifest::encode(&manifest))).await;
    for deep in [false, true] {
        let report = verify(&repository, &made, Scope::All, deep).await;
        let broken = report
            .findings
            .iter()
            .filter(|f| f.kind == FindingKind::BrokenChain);
        let layers: Vec<&str> = broken.map(|f| f.layer.as_str()).collect();
        assert!(layers.contains(&made.labels[1].as_str()), "{layers:?}");
    }
}

#[tokio::test]
async fn an_unknown_layer_and_an_empty_cluster_are_not_found() {
    let (repository, made) = scene().await;
    let options = VerifyOptions {
        scope: Scope::Chain(Label::parse("20200101-000000F").unwrap()),
        ..VerifyOptions::default()
    };
    let verified = verify::run(&made.within(&repository), &options, Progress::default()).await;
    assert_eq!(verified.unwrap_err().kind(), Kind::NotFound);
    for label in &made.labels {
        replace(&repository, &made.cluster.manifest_key(label), None).await;
        replace(&repository, &made.cluster.committed_key(label), None).await;
    }
    let options = VerifyOptions::default();
    let error = verify::run(&made.within(&repository), &options, Progress::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.hint_text().unwrap().contains("manifest"), "{error}");
}

#[tokio::test]
async fn a_stopped_verification_says_so() {
    let (repository, made) = scene().await;
    let progress = Progress::default();
    progress.cancel();
    let options = VerifyOptions::default();
    let stopped = verify::run(&made.within(&repository), &options, progress).await;
    assert_eq!(stopped.unwrap_err().kind(), Kind::Interrupted);
}

/// Verifies a copy, of which so many requests are not answered. Answers also what records there are then, and how many requests
/// there were.
async fn verify_through(
    original: &Repository,
    made: &Made,
    outage: Range<u64>,
) -> (Result<VerifyReport>, usize, u64) {
    let memory = copy_of(original, made).await;
    let store = FaultStore::new(memory.clone());
    store.fail(outage, Fault::PassingBefore);
    let faulty = Repository::with_store(store.clone());
    let options = VerifyOptions {
        deep: true,
        jobs: 1,
        ..VerifyOptions::default()
    };
    let cluster = made.within(&faulty);
    let verified = verify::run(&cluster, &options, Progress::default()).await;
    let sound = Repository::with_store(memory);
    let prefix = made.cluster.verified_prefix();
    let records = sound.list(&prefix).await.unwrap();
    (verified, records.len(), store.operation_count())
}

/// Patience lasts for four tries or five: some outages end before that, and others with the next question.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_that_has_ended_by_the_next_question_is_no_damage() {
    let (repository, made) = scene().await;
    let (sound, _, count) = verify_through(&repository, &made, 0..0).await;
    assert_eq!(sound.unwrap().findings, []);
    let outcomes = futures::stream::iter(0..count)
        .map(|nth| verify_through(&repository, &made, nth..nth + 4))
        .buffer_unordered(16)
        .collect::<Vec<_>>();
    let mut ended = 0;
    for (verified, records, _) in outcomes.await {
        match verified {
            Ok(report) => assert_eq!(report.findings, []),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Repository, "{error}");
                assert_eq!(records, 0, "{error}");
                ended += 1;
            }
        }
    }
    // An outage while an object of a layer is read, or WAL, has ended when that is asked for again.
    assert!(ended > 2, "{ended} of {count}");
}

/// What is wrong with a layer whose objects are all as they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twist {
    Nothing,
    /// A page has another digest than was stored for it.
    Digest,
    /// A plain file has another digest than its entry says.
    Contents,
    /// A page has a wrong checksum.
    Checksum,
    /// A page has a wrong checksum, which the manifest knows.
    KnownChecksum,
    /// A page has a wrong checksum and an LSN within the backup: torn, and replayed.
    Torn,
    /// A block is neither stored nor in a parent.
    Source,
    /// The index names a frame that is another.
    Frame,
}

fn page(block: u32, lsn: Lsn) -> Vec<u8> {
    let mut page = vec![0; 8192];
    page[..4].copy_from_slice(&u32::try_from(lsn.get() >> 32).unwrap().to_le_bytes());
    page[4..8].copy_from_slice(
        &u32::try_from(lsn.get() & 0xFFFF_FFFF)
            .unwrap()
            .to_le_bytes(),
    );
    // pd_lower, pd_upper, pd_special, and the size of a page with its version.
    for (at, word) in [(12, 24_u16), (14, 8192), (16, 8192), (18, 0x2004)] {
        page[at..at + 2].copy_from_slice(&word.to_le_bytes());
    }
    page[5000] = 7;
    let checksum = page_checksum(&page, BlockNumber(block));
    page[8..10].copy_from_slice(&checksum.to_le_bytes());
    page
}

fn entry(path: &str, kind: EntryKind, size_bytes: usize) -> FileEntry {
    FileEntry {
        path: path.to_owned(),
        kind,
        mode: 0o600,
        modified: 0,
        size_bytes: size_bytes as u64,
        identity: 1,
        inherit_limit: 0,
        content_digest: None,
        frames: Vec::new(),
        zero_runs: Vec::new(),
        page_digests: DigestRef::default(),
    }
}

/// Puts a layer with `twist` in the place of the full layer, and removes the others.
async fn twisted(twist: Twist) -> (Repository, Made) {
    let (repository, mut made) = scene().await;
    let label = made.labels[0].clone();
    let mut manifest = manifest_of(&repository, &made, &label).await;
    for object in repository
        .list(&made.cluster.layers_prefix())
        .await
        .unwrap()
    {
        if object.key != made.cluster.claim_key(&label) {
            repository.delete(&object.key).await.unwrap();
        }
    }
    made.labels.truncate(1);
    manifest.cluster.data_checksum_version = 1;
    let layer_id = manifest.layer_id_bytes().unwrap();
    let mut pack = PackBuilder::new(layer_id, 0, 0);
    let mut encoder = FrameEncoder::new(Codec::default()).unwrap();
    let lsn = match twist {
        Twist::Torn => manifest.start_lsn,
        _ => Lsn::new(1_000_000),
    };
    let mut pages = [page(0, lsn), page(1, lsn)];
    if matches!(twist, Twist::Checksum | Twist::KnownChecksum | Twist::Torn) {
        pages[1][5000] = 8;
    }
    let mut digests: Vec<u64> = pages.iter().map(|page| digest::page(page)).collect();
    let mut relation = entry("base/5/10", EntryKind::Relation, 2 * 8192);
    let mut place = |raw: &[u8], count| {
        let placed = pack.append(&mut encoder, raw).unwrap();
        pgstrata_layer::entry::FrameRef {
            pack: 0,
            offset: placed.offset,
            length: placed.length,
            checksum: placed.checksum,
            runs: vec![BlockRun { start: 0, count }],
        }
    };
    relation.frames.push(place(&pages.concat(), 2));
    // Three blocks, the middle one zeros: its digest needs the gap.
    let mut contents = vec![9; 20_000];
    contents[8192..16_384].fill(0);
    let mut plain = entry("pg_note", EntryKind::Plain, contents.len());
    let stored = [&contents[..8192], &contents[16_384..]].concat();
    let mut frame = place(&stored, 1);
    frame.runs.push(BlockRun { start: 2, count: 1 });
    plain.frames.push(frame);
    plain.zero_runs.push(BlockRun { start: 1, count: 1 });
    plain.content_digest = Some(digest::contents(&contents));
    match twist {
        Twist::Digest => digests[1] ^= 1,
        Twist::Contents => plain.content_digest = Some([1; 32]),
        Twist::Source => {
            relation.size_bytes += 8192;
            relation.inherit_limit = 3;
        }
        Twist::Frame => relation.frames[0].checksum ^= 1,
        Twist::KnownChecksum => manifest.corrupt_pages.push(CorruptPage {
            path: "base/5/10".to_owned(),
            block: 1,
            reason: "wrong".to_owned(),
        }),
        Twist::Nothing | Twist::Checksum | Twist::Torn => {}
    }
    let files = [(relation, digests), (plain, Vec::new())];
    store(&repository, &made, (manifest, pack), files).await;
    (repository, made)
}

/// Stores the objects of a layer that has one pack.
async fn store(
    repository: &Repository,
    made: &Made,
    (mut manifest, pack): (Manifest, PackBuilder),
    files: [(FileEntry, Vec<u64>); 2],
) {
    let mut writer = IndexWriter::new(manifest.layer_id_bytes().unwrap()).unwrap();
    for (entry, digests) in files {
        assert!(writer.push(entry, &digests).unwrap().is_none());
    }
    let part = writer.finish().unwrap().unwrap();
    let (cluster, label) = (&made.cluster, &made.labels[0]);
    let bytes = pack.finish();
    manifest.index = vec![part.reference];
    manifest.pack_count = 1;
    manifest.pack_bytes = bytes.len() as u64;
    for (key, body) in [
        (cluster.pack_key(label, 0), bytes),
        (cluster.index_key(label, 0), part.index),
        (cluster.digest_key(label, 0), part.digest),
        (cluster.manifest_key(label), manifest::encode(&manifest)),
    ] {
        repository.create(&key, body.into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_deep_verification_finds_what_checksums_of_objects_cannot() {
    use FindingKind::{BrokenChain, CorruptPages, Damaged};
    let cases: [(Twist, Option<FindingKind>, Option<FindingKind>, &str); 8] = [
        (Twist::Nothing, None, None, ""),
        (
            Twist::Digest,
            None,
            Some(Damaged),
            "block 1 of \"base/5/10\"",
        ),
        (Twist::Contents, None, Some(Damaged), "pg_note"),
        (
            Twist::Checksum,
            None,
            Some(CorruptPages),
            "block 1 of \"base/5/10\"",
        ),
        (
            Twist::KnownChecksum,
            Some(CorruptPages),
            Some(CorruptPages),
            "base/5/10",
        ),
        (Twist::Torn, None, None, ""),
        (Twist::Source, None, Some(BrokenChain), "base/5/10"),
        (Twist::Frame, Some(Damaged), Some(Damaged), "base/5/10"),
    ];
    for (twist, plain, deep, word) in cases {
        let (repository, made) = twisted(twist).await;
        for (expected, is_deep) in [(plain, false), (deep, true)] {
            let report = verify(&repository, &made, Scope::All, is_deep).await;
            let found = report.findings.first().map(|finding| finding.kind);
            assert_eq!(found, expected, "{twist:?}: {:?}", report.findings);
            if let Some(finding) = report.findings.first() {
                assert!(
                    finding.message.contains(word),
                    "{twist:?}: {}",
                    finding.message
                );
            }
            let failed = matches!(expected, Some(Damaged | BrokenChain));
            assert_eq!(report.failure().is_some(), failed, "{twist:?}");
        }
    }
}
