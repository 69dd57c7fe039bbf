//! A sealed cluster verified by who holds no key: whatever rots or gets lost is found, and named.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pgstrata_layer::abandoned::{self, AbandonedRecord};
use pgstrata_testbed::cluster::Major;
use support::vault::Vault;
use support::{files, judged, text};

const DAMAGED: i32 = 14;
const WAL_MISSING: i32 = 18;

/// Requires that an object is damaged or lost for who verifies without a key, and only that.
fn require_found(vault: &Vault, object: &Path, code: i32, what: &str) -> Vec<String> {
    let root = vault.stage.objects();
    let key = object.strip_prefix(&root).unwrap().display().to_string();
    let (found, named) = vault.verify("", &[]);
    assert_eq!(found, code, "{what} of {key}: {named:?}");
    let about = named.iter().filter(|line| line.contains(&key));
    assert_eq!(about.count(), 1, "{what} of {key}: {named:?}");
    named
}

/// The object with so much behind it that nobody should read it whole: whoever may create objects would have all memory used up.
fn lengthen(object: &Path, genuine: &[u8]) {
    let mut long = genuine.to_vec();
    long.resize(genuine.len() + (20 << 20), 0);
    fs::write(object, long).unwrap();
}

fn require_not_copied(vault: &Vault, object: &Path) {
    let genuine = fs::read(object).unwrap();
    lengthen(object, &genuine);
    let to = format!("file://{}", vault.stage.target("copy").display());
    let output = vault.run("writer", &["copy", "--to", &to]);
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    assert_eq!(output.status.code(), Some(DAMAGED), "{told}");
    assert!(told.contains(", expected "), "{told}");
    fs::write(object, genuine).unwrap();
}

fn require_quiet(vault: &Vault, after: &str) {
    // What was stored just now may have others on their way.
    files::age(&vault.stage.objects().join("vault/wal"), "2 hours ago");
    let (code, named) = vault.verify("", &[]);
    assert_eq!((code, named), (0, Vec::new()), "after {after}");
}

/// A segment behind the backups that the archiver noted, and before others.
fn a_segment(vault: &Vault) -> PathBuf {
    let archived = vault.stage.objects().join("vault/wal/00000001");
    let names = fs::read_dir(&archived).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut segments: Vec<String> = names.filter(|name| name.len() == 24).collect();
    segments.sort();
    archived.join(&segments[segments.len() - 2])
}

#[test]
fn without_a_key_rot_and_loss_of_every_kind_are_found_and_named() {
    let vault = Vault::new(Major::V18);
    vault.backup(&["--type", "full"]);
    let create = "CREATE TABLE t AS SELECT generate_series(1, 10000) AS n";
    vault.stage.cluster.sql("postgres", create).unwrap();
    let child = vault.backup(&["--type", "incr"]);
    for _ in 0..3 {
        vault.stage.archive_all();
    }
    require_quiet(&vault, "nothing");
    let objects = vault.stage.objects().join("vault");
    let layer = objects.join("layer").join(text(&child, "/label"));
    let segment = a_segment(&vault);
    let mut places = ["pack-000000", "index-000000", "digest-000000", "manifest"]
        .map(|name| layer.join(name))
        .to_vec();
    places.push(segment.clone());
    for place in &places {
        let genuine = fs::read(place).unwrap();
        let lost = match *place == segment {
            true => WAL_MISSING,
            false => DAMAGED,
        };
        let mut flipped = genuine.clone();
        flipped[genuine.len() / 2] ^= 1;
        fs::write(place, &flipped).unwrap();
        require_found(&vault, place, DAMAGED, "a flip");
        fs::write(place, &genuine[..genuine.len() / 2]).unwrap();
        require_found(&vault, place, DAMAGED, "a cut");
        if !place.ends_with("manifest") {
            lengthen(place, &genuine);
            let named = require_found(&vault, place, DAMAGED, "a tail");
            let mut named = named.iter();
            assert!(named.any(|line| line.contains("takes at most")));
        }
        if place.ends_with("manifest") {
            let record = AbandonedRecord {
                label: text(&child, "/label").to_owned(),
                host: "db1".to_owned(),
                pid: 1,
                abandoned_at: Timestamp::now(),
                written_by: "test".to_owned(),
            };
            fs::write(place, abandoned::encode(&record)).unwrap();
            require_found(&vault, place, DAMAGED, "a record that it was given up");
        }
        fs::remove_file(place).unwrap();
        files::age(&objects.join("wal"), "2 hours ago");
        require_found(&vault, place, lost, "a loss");
        fs::write(place, &genuine).unwrap();
        vault.stage.cluster.own(place).unwrap();
        require_quiet(&vault, &place.display().to_string());
    }
    for place in &places[..2] {
        require_not_copied(&vault, place);
    }
}

#[test]
fn without_a_key_what_stands_in_for_a_damaged_segment_counts_and_a_rotten_key_box_is_found() {
    let vault = Vault::new(Major::V15);
    vault.backup(&["--type", "full"]);
    for _ in 0..2 {
        vault.stage.archive_all();
    }
    let objects = vault.stage.objects().join("vault");
    let segment = a_segment(&vault);
    let genuine = fs::read(&segment).unwrap();
    fs::write(&segment, b"rot").unwrap();
    require_found(&vault, &segment, DAMAGED, "rot");
    let mended = objects.join("wal-mended/00000001");
    fs::create_dir_all(&mended).unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();
    fs::write(mended.join(format!("{name}-1")), b"rot, too").unwrap();
    fs::write(mended.join(format!("{name}-2")), &genuine).unwrap();
    require_quiet(&vault, "mending");

    let seal = fs::read_dir(objects.join("key")).unwrap().next().unwrap();
    let epoch = seal.unwrap().path().join("000001");
    let boxes = fs::read_dir(&epoch).unwrap();
    let mut boxes: Vec<PathBuf> = boxes.map(|entry| entry.unwrap().path()).collect();
    boxes.retain(|path| !path.ends_with("epoch"));
    assert_eq!(boxes.len(), 4);
    for place in &boxes {
        let genuine = fs::read(place).unwrap();
        let mut flipped = genuine.clone();
        flipped[genuine.len() / 2] ^= 1;
        fs::write(place, &flipped).unwrap();
        require_found(&vault, place, DAMAGED, "a flip");
        fs::write(place, &genuine).unwrap();
    }
    // One that has the place of another's is signed all the same.
    let genuine = fs::read(&boxes[0]).unwrap();
    fs::copy(&boxes[1], &boxes[0]).unwrap();
    require_found(&vault, &boxes[0], DAMAGED, "an exchange");
    let log = vault.fails("one", &["key", "rotate"], DAMAGED);
    assert!(log.contains("has its place at"), "{log}");
    fs::write(&boxes[0], &genuine).unwrap();
    require_quiet(&vault, "key boxes");
}

/// No recovery asks for it, but whoever has changed it may have changed more.
#[test]
fn a_label_of_a_backup_that_was_exchanged_is_found_by_who_has_a_key() {
    let vault = Vault::new(Major::V15);
    for _ in 0..2 {
        vault.backup(&["--type", "full"]);
    }
    vault.stage.archive_all();
    let archived = vault.stage.objects().join("vault/wal/00000001");
    let names = fs::read_dir(&archived).unwrap();
    let mut labels: Vec<PathBuf> = names.map(|entry| entry.unwrap().path()).collect();
    labels.retain(|path| path.extension().is_some_and(|end| end == "backup"));
    assert!(labels.len() > 1, "{labels:?}");
    let genuine = fs::read(&labels[0]).unwrap();
    let mut flipped = genuine.clone();
    flipped[genuine.len() / 2] ^= 1;
    for changed in [flipped, fs::read(&labels[1]).unwrap()] {
        fs::write(&labels[0], changed).unwrap();
        let (code, named) = vault.verify("one", &[]);
        assert_eq!(code, DAMAGED, "{named:?}");
        let name = labels[0].file_name().unwrap().to_str().unwrap();
        assert!(named.iter().any(|line| line.contains(name)), "{named:?}");
    }
    fs::write(&labels[0], genuine).unwrap();
    assert_eq!(vault.verify("one", &[]), (0, Vec::new()));
}

/// An expiry leaves the gap that a loss makes longer.
#[test]
fn without_a_key_wal_that_is_lost_right_behind_what_was_given_up_is_found_and_named() {
    let vault = Vault::new(Major::V15);
    let mut newest = String::new();
    for _ in 0..3 {
        let layer = vault.backup(&["--type", "full"]);
        let query = format!("SELECT pg_walfile_name('{}')", text(&layer, "/start_lsn"));
        newest = vault.stage.cluster.sql("postgres", &query).unwrap();
        for _ in 0..3 {
            judged::switch(&vault.stage);
        }
    }
    vault.ok("one", &["expire", "--keep-wal", "0d"]);
    require_quiet(&vault, "an expiry");
    let archived = vault.stage.objects().join("vault/wal/00000001");
    let (begin, number) = newest.split_at(16);
    let number = u32::from_str_radix(number, 16).unwrap();
    let before = archived.join(format!("{begin}{:08X}", number - 1));
    assert!(!before.exists(), "{} was not given up", before.display());
    let segment = archived.join(&newest);
    fs::remove_file(&segment).unwrap();
    require_found(&vault, &segment, WAL_MISSING, "a loss");
}
