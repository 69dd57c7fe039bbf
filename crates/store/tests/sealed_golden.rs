//! The golden files of a sealed cluster: what was sealed once is opened for ever, here and by the second reader.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pgstrata_layer::keys::ClusterName;
use pgstrata_pgdata::{ArchiveFile, TimelineId};
use pgstrata_store::archive::Archive;
use pgstrata_store::catalog::Catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Kind;
use pgstrata_store::keys::{Keys, from_file};
use pgstrata_store::repository::{Repository, RepositoryOptions};

const LABELS: [&str; 2] = ["20261121-093305F", "20261121-093305F_20261121-103000I"];

fn of_layer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../layer/tests")
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sealed")
}

/// The cluster as somebody sees it. The identities are no secrets, and a checkout does not keep their mode.
fn seen_by(who: &str) -> ClusterRepository {
    let folder = tempfile::tempdir().unwrap();
    let identity = folder.path().join(who);
    fs::copy(golden().join(who), &identity).unwrap();
    fs::set_permissions(&identity, fs::Permissions::from_mode(0o600)).unwrap();
    let options = RepositoryOptions {
        url: format!("file://{}", golden().display()),
        ..RepositoryOptions::default()
    };
    let repository = Repository::open(&options).unwrap();
    let keys = Keys::new(from_file(&identity).unwrap(), None);
    ClusterRepository::new(&repository, &ClusterName::parse("main").unwrap()).with_keys(keys)
}

#[tokio::test]
async fn golden_objects_are_what_was_sealed() {
    let (reader, writer) = (seen_by("reader"), seen_by("writer"));
    let catalog = Catalog::examine(&reader).await.unwrap();
    assert!(catalog.damaged.is_empty() && catalog.losses.is_empty());
    let labels: Vec<&str> = catalog
        .layers
        .iter()
        .map(|layer| layer.label.as_str())
        .collect();
    assert_eq!(labels, LABELS);
    let mut packs = 0;
    for layer in &catalog.layers {
        let prefix = reader.name.layer_prefix(&layer.label);
        for object in reader.repository.list(&prefix).await.unwrap() {
            if object.key.ends_with("/manifest") {
                continue;
            }
            let path = of_layer().join("golden/none").join(&object.key);
            let expected = fs::read(path).unwrap();
            let opened = reader.get_of(&layer.manifest, &object.key).await.unwrap();
            assert_eq!(opened, expected, "{}", object.key);
            let length = u64::try_from(expected.len()).unwrap();
            let part = reader
                .get_range_of(&layer.manifest, &object.key, 5..length - 1)
                .await;
            assert_eq!(
                part.unwrap(),
                expected[5..expected.len() - 1],
                "{}",
                object.key
            );
            let own = writer.get_of(&layer.manifest, &object.key).await;
            match object.key.contains("/pack-") {
                true => {
                    packs += 1;
                    assert_eq!(own.unwrap_err().kind(), Kind::Refused, "{}", object.key);
                }
                false => assert_eq!(own.unwrap(), expected, "{}", object.key),
            }
        }
    }
    assert_eq!(packs, 5);
    for (cluster, reads) in [(&reader, true), (&writer, false)] {
        let archive = Archive::load(cluster).await.unwrap();
        let history = archive.history(TimelineId::new(2)).await.unwrap();
        assert_eq!(history.entries().len(), 2);
        let name = "000000010000000000000002.00000028.backup";
        assert!(archive.holds(name).await.unwrap());
        let file = ArchiveFile::parse(name, 16_777_216_u64.try_into().unwrap()).unwrap();
        assert_eq!(archive.contents(file).await.is_ok(), reads);
    }
}

/// The record of a restore, as it is clear and as it is sealed.
const RECORD: &str = "restore/0123456789abcdef0123456789abcdef/needs";

#[tokio::test]
async fn a_sealed_record_is_what_was_sealed_at_its_place_alone() {
    let clear = fs::read(of_layer().join("golden/work/main").join(RECORD)).unwrap();
    let key = format!("main/{RECORD}");
    for cluster in [seen_by("reader"), seen_by("writer")] {
        let stored = cluster.repository.get(&key).await.unwrap();
        let sealing = cluster.sealing().await.unwrap();
        let opened = sealing.open_record(&cluster.name, &key, stored.clone());
        assert_eq!(opened.unwrap(), clear);
        let elsewhere = format!("{key}-2");
        let error = sealing.open_record(&cluster.name, &elsewhere, stored.clone());
        assert_eq!(error.unwrap_err().kind(), Kind::Damaged);
        // One that is not sealed is what older programs wrote.
        let old = sealing.open_record(&cluster.name, &key, clear.clone().into());
        assert_eq!(old.unwrap(), clear);
        for at in 8..stored.len() {
            let mut altered = stored.to_vec();
            altered[at] ^= 1;
            let opened = sealing.open_record(&cluster.name, &key, altered.into());
            assert!(opened.is_err(), "byte {at}");
        }
        let own = sealing
            .seal_record(&cluster.name, &key, clear.clone())
            .unwrap();
        assert_ne!(own, stored, "each has a salt of its own");
    }
    assert!(
        !fs::read(golden().join(&key))
            .unwrap()
            .windows(4)
            .any(|word| word == b"host")
    );
    // A record that is sealed has no place in a cluster that is not.
    let repository = Repository::memory();
    let plain = ClusterRepository::new(&repository, &ClusterName::parse("main").unwrap());
    let stored = fs::read(golden().join(&key)).unwrap();
    let sealing = plain.sealing().await.unwrap();
    let error = sealing
        .open_record(&plain.name, &key, stored.into())
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
}

fn second_reader(repository: &Path, what: [&Path; 2], identity: Option<&Path>) -> Output {
    let mut command = Command::new("python3");
    command
        .arg("-B")
        .arg(of_layer().join("reader/read_layer.py"));
    command
        .arg(repository)
        .arg("main")
        .args(what)
        .args(identity);
    command.output().unwrap()
}

fn require_read(output: &Output) {
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
}

#[test]
fn the_second_reader_opens_what_readers_open() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = (golden().join("reader"), golden().join("writer"));
    for label in LABELS {
        let [clear, opened, refused] = ["clear", "opened", "refused"]
            .map(|name| folder.path().join(format!("{label}-{name}")));
        let plain = of_layer().join("golden/none");
        require_read(&second_reader(&plain, [label.as_ref(), &clear], None));
        let read = second_reader(&golden(), [label.as_ref(), &opened], Some(&reader));
        require_read(&read);
        let same = Command::new("diff")
            .arg("-r")
            .args([&clear, &opened])
            .status();
        assert!(same.unwrap().success(), "{label}");
        let read = second_reader(&golden(), [label.as_ref(), &refused], Some(&writer));
        assert!(!read.status.success());
        assert!(String::from_utf8_lossy(&read.stderr).contains("not that of a reader"));
    }
    let record: [&Path; 2] = ["record".as_ref(), RECORD.as_ref()];
    let shown = [&reader, &writer].map(|who| second_reader(&golden(), record, Some(who)));
    for read in &shown {
        require_read(read);
        let clear = of_layer().join("golden/work/main").join(RECORD);
        assert_eq!(read.stdout, fs::read(clear).unwrap());
    }
    for file in [
        "00000002.history",
        "000000010000000000000002.00000028.backup",
    ] {
        let read = second_reader(&golden(), ["wal".as_ref(), file.as_ref()], Some(&reader));
        require_read(&read);
        assert!(!read.stdout.is_empty());
    }
}
