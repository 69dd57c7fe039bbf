//! What a verification has found damaged: nothing stands on it, a restore takes it when it is named alone, and what is older
//! stays.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;
use support::judged::{archive, archived_by_switches, document, kinds};
use support::{Stage, Store, files, text};

const DAMAGED: i32 = 14;
const UNREADABLE: i32 = 15;

/// Two full layers, the older one first.
fn two_layers() -> (Stage, [String; 2]) {
    let builder = Cluster::builder(Major::V15).initdb_arg("--wal-segsize=1");
    let stage = Stage::archiving(builder, Store::Directory);
    let labels = [(); 2].map(|()| {
        let layer = stage.backup(&["--type", "full"]);
        text(&layer, "/label").to_owned()
    });
    stage.archive_all();
    (stage, labels)
}

fn pack(stage: &Stage, label: &str) -> PathBuf {
    stage
        .objects()
        .join(format!("main/layer/{label}/pack-000000"))
}

/// An expiry that is to keep one full layer removes nothing, and says because of which.
fn require_both_stay(stage: &Stage, damaged: &str) {
    let expire = ["expire", "--keep-full", "1", "--ignore-restores"];
    let report = stage.json(&[&expire[..], &["--dry-run"]].concat());
    let remove = report["remove"].as_array().unwrap();
    assert!(remove.is_empty(), "{report:#}");
    assert!(report.to_string().contains(damaged), "{report:#}");
}

/// The layer of which a restore to the end of its own WAL is planned.
fn planned(stage: &Stage, arguments: &[&str]) -> Value {
    let target = stage.target("planned").display().to_string();
    let plan = ["restore", "--dry-run", "--target-dir", &target];
    let immediate = ["--target-type", "immediate"];
    stage.json(&[&plan[..], &immediate, arguments].concat())
}

#[test]
fn a_layer_that_was_not_given_out_is_no_reason_to_remove_the_one_before() {
    let (stage, [older, newer]) = two_layers();
    let pack = pack(&stage, &newer);
    let mode = fs::metadata(&pack).unwrap().permissions();
    fs::set_permissions(&pack, Permissions::from_mode(0o000)).unwrap();
    assert_eq!(stage.fails(&["verify"]).0, UNREADABLE);
    require_both_stay(&stage, &newer);

    let words = format!("found {newer} damaged");
    let immediate = ["--target-type", "immediate"];
    stage.refuses_to_restore(&immediate, DAMAGED, &[&words, "--skip-damaged", &older]);
    let plan = planned(&stage, &["--skip-damaged"]);
    assert_eq!(plan["layers"][0]["label"], older, "{plan:#}");
    let plan = planned(&stage, &[&newer]);
    assert_eq!(plan["layers"][0]["label"], newer, "{plan:#}");
    assert!(plan["notes"].to_string().contains(&words), "{plan:#}");

    fs::set_permissions(&pack, mode).unwrap();
    stage.ok(&["verify"]);
    let plan = planned(&stage, &[]);
    assert_eq!(plan["layers"][0]["label"], newer, "{plan:#}");
}

#[test]
fn a_layer_whose_own_wal_is_damaged_is_no_reason_to_remove_the_one_before() {
    let (stage, [_, newer]) = two_layers();
    let info = stage.json(&["info", &newer]);
    let segment = text(&info, "/layers/0/wal/first");
    let segment = stage.objects().join("main/wal/00000001").join(segment);
    files::flip(&segment, |length| length * 2 / 3);
    assert_eq!(stage.fails(&["verify"]).0, DAMAGED);
    require_both_stay(&stage, &newer);
}

#[test]
fn nothing_stands_on_a_layer_that_was_found_damaged() {
    let (stage, [older, newer]) = two_layers();
    files::flip(&pack(&stage, &newer), |length| length * 2 / 3);
    assert_eq!(stage.fails(&["verify"]).0, DAMAGED);
    let layer = stage.backup(&[]);
    assert_eq!(text(&layer, "/parent"), older, "{layer:#}");
    let reason = text(&layer, "/type_reason");
    assert!(reason.contains("nothing is to stand on"), "{reason}");
    stage.ok(&["verify", text(&layer, "/label")]);
}

/// The layer's alarm goes when it is found in order, and that of the WAL stays until somebody has read all of it.
#[test]
fn damaged_wal_is_not_forgotten_with_the_layer_that_was_damaged_beside_it() {
    let (stage, [_, newer]) = two_layers();
    let behind = archived_by_switches(&stage, 1).remove(0);
    let segment = archive(&stage).join(behind);
    let pack = pack(&stage, &newer);
    let whole = [&pack, &segment].map(|path| fs::read(path).unwrap());
    for path in [&pack, &segment] {
        files::flip(path, |length| length * 2 / 3);
    }
    assert_eq!(stage.fails(&["verify"]).0, DAMAGED);
    let (_, info) = document(&stage, &["info"]);
    assert_eq!(kinds(&info), ["layer", "verify"], "{info:#}");
    fs::write(&pack, &whole[0]).unwrap();
    stage.ok(&["verify", &newer]);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!((code, kinds(&info)), (3, vec!["verify"]), "{info:#}");
    let reason = text(&info, "/alarms/0/reason");
    assert!(reason.contains("of them in WAL"), "{reason}");
    fs::write(&segment, &whole[1]).unwrap();
    stage.ok(&["verify"]);
    stage.ok(&["info"]);
}

/// Nobody has verified it, and a restore finds the segment missing.
#[test]
fn a_layer_without_its_own_wal_is_passed_over_by_who_says_so() {
    let (stage, [older, newer]) = two_layers();
    let info = stage.json(&["info", &newer]);
    let segment = text(&info, "/layers/0/wal/last");
    fs::remove_file(stage.objects().join("main/wal/00000001").join(segment)).unwrap();
    let immediate = ["--target-type", "immediate"];
    stage.refuses_to_restore(&immediate, 18, &[segment, "--skip-damaged"]);
    let plan = planned(&stage, &["--skip-damaged"]);
    assert_eq!(plan["layers"][0]["label"], older, "{plan:#}");
}

/// Whoever verifies after each backup verifies that one.
#[test]
fn what_was_found_is_not_forgotten_because_others_were_verified_since() {
    let (stage, [older, newer]) = two_layers();
    files::flip(&pack(&stage, &newer), |length| length * 2 / 3);
    assert_eq!(stage.fails(&["verify"]).0, DAMAGED);
    for round in 0..2 {
        for _ in 0..31 {
            stage.ok(&["verify", &older]);
        }
        let (code, log) = stage.fails(&["info"]);
        assert_eq!(code, 3, "{round}: {log}");
        // The first one removes records.
        require_both_stay(&stage, &newer);
        let expire = ["expire", "--keep-full", "1", "--ignore-restores"];
        let report = stage.json(&expire);
        assert_eq!(report["remove"], serde_json::json!([]), "{report:#}");
        let records = fs::read_dir(stage.objects().join("main/verified")).unwrap();
        assert_eq!(records.count(), 31, "{round}");
    }
}

#[test]
fn a_copy_does_not_pass_a_damaged_layer_for_present_and_brings_what_is_deleted() {
    let (stage, [_, newer]) = two_layers();
    let from = format!(
        "file://{}",
        stage.cluster.create_dir("copy").unwrap().display()
    );
    stage.ok(&["copy", "--to", &from]);
    let pack = pack(&stage, &newer);
    let whole = fs::read(&pack).unwrap();
    files::flip(&pack, |length| length * 2 / 3);
    assert_eq!(stage.fails(&["verify"]).0, DAMAGED);
    let own = stage.repository.clone();
    let copy = ["--repo", &from, "copy", "--to", &own];
    for arguments in [
        &copy[..],
        &[&copy[..], &["--dry-run"]].concat(),
        &[&copy[..], &[&newer]].concat(),
    ] {
        let (code, log) = stage.fails(arguments);
        assert_eq!(code, DAMAGED, "{log}");
    }
    fs::remove_file(&pack).unwrap();
    stage.ok(&copy);
    assert!(fs::read(&pack).unwrap() == whole);
    stage.ok(&["verify"]);
    stage.ok(&copy);
}
