//! Alarms: what `info`, `check` and `verify` say when what was promised cannot be restored.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use serde_json::Value;
use support::judged::{
    age, archive, archived_by_switches, backup_alone, check, document, kinds, segments, stored,
    switch,
};
use support::standby::{backup_of, restartpoint, standby_of};
use support::{PATIENCE, Stage, Store, files, restore_alone, schema, text};

const WARNINGS: i32 = 3;
const FAILED: i32 = 13;
const DAMAGED: i32 = 14;
const WAL_MISSING: i32 = 18;

#[test]
fn a_hole_in_the_promised_wal_is_an_error_everywhere() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    let between = archived_by_switches(&stage, 4);
    let child = stage.backup(&["--type", "incr"]);
    let child = text(&child, "/label");
    switch(&stage);
    assert_eq!(text(&document(&stage, &["info"]).1, "/status"), "ok");
    assert_eq!(check(&stage).0, 0);
    stage.ok(&["verify"]);

    let [_, first, last, ..] = &between[..] else {
        panic!("too few segments: {between:?}")
    };
    for name in [first, last] {
        fs::remove_file(archive(&stage).join(name)).unwrap();
    }
    // One host may be ahead of another: what was stored just now may be no hole, and yet nothing is called ok.
    let (code, info) = document(&stage, &["info"]);
    assert_eq!((code, text(&info, "/status")), (WARNINGS, "alarm"));
    assert_eq!(kinds(&info), ["wal-hole"], "{info:#}");
    assert_eq!(text(&info, "/alarms/0/severity"), "warning");
    assert_eq!(check(&stage).0, WARNINGS);
    age(&stage);

    let (code, info) = document(&stage, &["info"]);
    assert_eq!((code, text(&info, "/status")), (WARNINGS, "alarm"));
    assert_eq!(kinds(&info), ["wal-hole"], "{info:#}");
    let alarm = &info["alarms"][0];
    assert_eq!(text(alarm, "/severity"), "error");
    let reason = text(alarm, "/reason");
    assert!(
        reason.contains(&format!("{first} to {last}, 2, are")),
        "{reason}"
    );
    let lost = text(alarm, "/lost");
    assert!(
        lost.contains(&format!("before the end of {child}")),
        "{lost}"
    );
    assert!(text(alarm, "/to_do").contains("archive-push"));
    let shown = String::from_utf8(stage.run(&["info"]).stdout).unwrap();
    assert!(shown.contains(reason) && shown.contains(lost), "{shown}");

    let (code, report) = check(&stage);
    assert_eq!(code, FAILED, "{report:#}");
    let items = report["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["name"] == "WAL archive");
    assert!(
        text(item.unwrap(), "/detail").contains(reason),
        "{report:#}"
    );

    let (code, report) = document(&stage, &["verify"]);
    assert_eq!(code, WAL_MISSING, "{report:#}");
    let finding = &report["findings"][0];
    assert_eq!(text(finding, "/kind"), "wal-missing");
    assert!(
        text(finding, "/object").ends_with(first.as_str()),
        "{report:#}"
    );
    // The layers themselves can be restored.
    stage.ok(&["verify", child]);
}

/// The later layer needs none of what is missing, and the moments in between are lost all the same.
#[test]
fn a_hole_that_reaches_from_one_layer_to_the_next_is_one() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    let between = archived_by_switches(&stage, 3);
    stage.backup(&["--type", "full"]);
    switch(&stage);
    for name in &between {
        fs::remove_file(archive(&stage).join(name)).unwrap();
    }
    age(&stage);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!(
        (code, kinds(&info)),
        (WARNINGS, vec!["wal-hole"]),
        "{info:#}"
    );
    assert!(
        text(&info, "/alarms/0/lost").starts_with("no moment on timeline 1 after"),
        "{info:#}"
    );
    assert_eq!(check(&stage).0, FAILED);
    assert_eq!(document(&stage, &["verify"]).0, WAL_MISSING);
}

#[test]
fn damage_in_wal_between_backups_is_found_by_verify() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    switch(&stage);
    let before = segments(&stage);
    let much = "CREATE TABLE much AS SELECT md5(g::text) FROM generate_series(1, 20000) g";
    stage.cluster.sql("postgres", much).unwrap();
    switch(&stage);
    let added = segments(&stage);
    let name = added.iter().find(|name| !before.contains(name)).unwrap();
    files::flip(&archive(&stage).join(name), |length| length / 2);
    let (code, report) = document(&stage, &["verify"]);
    assert_eq!(code, DAMAGED, "{report:#}");
    let finding = &report["findings"][0];
    assert_eq!(text(finding, "/kind"), "wal-damaged");
    assert!(text(finding, "/object").ends_with(name.as_str()));
}

#[test]
fn backups_that_bring_their_own_wal_promise_nothing_in_between() {
    let stage = Stage::silent(Cluster::builder(Major::V18), Store::Directory);
    for kind in ["full", "incr"] {
        stage.backup(&["--type", kind]);
        let switch = "SELECT pg_switch_wal() FROM (SELECT pg_logical_emit_message(true, '', '')) m";
        for _ in 0..3 {
            stage.cluster.sql("postgres", switch).unwrap();
        }
    }
    age(&stage);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!(code, 0, "{info:#}");
    assert!(
        !info["archive"]["timelines"][0]["missing"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    stage.ok(&["verify"]);
}

/// The WAL of a layer that a merge has taken stays, and nobody had promised what lies before and behind it.
#[test]
fn a_merge_of_such_backups_makes_no_hole() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let mut last = String::new();
    for kind in ["full", "full", "incr"] {
        last = text(&stage.backup(&["--type", kind]), "/label").to_owned();
        let switch = "SELECT pg_switch_wal() FROM (SELECT pg_logical_emit_message(true, '', '')) m";
        for _ in 0..3 {
            stage.cluster.sql("postgres", switch).unwrap();
        }
    }
    stage.ok(&["merge", &last, "--remove-inputs"]);
    age(&stage);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!(code, 0, "{info:#}");
    assert_eq!(info["layers"].as_array().unwrap().len(), 2);
    stage.ok(&["verify"]);
}

/// The same where no layer is left behind the hole.
#[test]
fn an_expiry_of_such_backups_makes_no_hole() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    for _ in 0..4 {
        stage.backup(&["--type", "full"]);
        let switch = "SELECT pg_switch_wal() FROM (SELECT pg_logical_emit_message(true, '', '')) m";
        for _ in 0..3 {
            stage.cluster.sql("postgres", switch).unwrap();
        }
    }
    let layers = stored(&stage).join("layer");
    let mut labels: Vec<PathBuf> = fs::read_dir(&layers)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    labels.sort();
    for layer in &labels[1..] {
        fs::remove_dir_all(layer).unwrap();
    }
    age(&stage);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!(code, 0, "{info:#}");
    stage.ok(&["verify"]);
}

/// A standby's backups have no note of the archiver: WAL between them was promised where there is more than their own.
#[test]
fn a_hole_between_backups_of_a_standby_is_one_where_there_is_more_wal_than_theirs() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let standby = standby_of(&stage, &stage.cluster.conninfo("postgres"));
    let full = || {
        restartpoint(&stage, &standby);
        let words = backup_of(&standby, &["--type", "full"]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        text(&stage.json(&words), "/label").to_owned()
    };
    let first = full();
    let between = archived_by_switches(&stage, 3);
    let second = full();
    switch(&stage);
    // The first layer of all is the primary's, and has such a note.
    stage.ok(&["expire", "--keep-full", "2", "--ignore-restores"]);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!(code, 0, "{info:#}");
    let labels = [
        text(&info, "/layers/0/label"),
        text(&info, "/layers/1/label"),
    ];
    assert_eq!(labels, [&first, &second]);
    fs::remove_file(archive(&stage).join(&between[1])).unwrap();
    age(&stage);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!(
        (code, kinds(&info)),
        (WARNINGS, vec!["wal-hole"]),
        "{info:#}"
    );
    assert_eq!(text(&info, "/alarms/0/severity"), "error");
    let lost = text(&info, "/alarms/0/lost");
    assert!(
        lost.contains(&format!("before the end of {second}")),
        "{lost}"
    );
    assert_eq!(document(&stage, &["verify"]).0, WAL_MISSING);

    // Nothing but what the backups themselves need: nobody promised more.
    let own = |name: &str| {
        [0, 1].iter().any(|layer| {
            let end = |which| text(&info, &format!("/layers/{layer}/wal/{which}")).to_owned();
            (end("first")..=end("last")).contains(&name.to_owned())
        })
    };
    for name in segments(&stage) {
        if !own(&name) {
            fs::remove_file(archive(&stage).join(&name)).unwrap();
        }
    }
    // What the last verification has found counts until the next one.
    let (code, info) = document(&stage, &["info"]);
    assert_eq!((code, kinds(&info)), (WARNINGS, vec!["verify"]), "{info:#}");
    stage.ok(&["verify"]);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!((code, text(&info, "/status")), (0, "ok"), "{info:#}");
}

#[test]
fn a_newest_backup_that_is_too_old_is_an_alarm() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let (code, info) = document(&stage, &["info", "--max-age", "1h"]);
    assert_eq!((code, kinds(&info)), (WARNINGS, vec!["age"]));
    assert_eq!(text(&info, "/alarms/0/lost"), "every state of the cluster");
    stage.backup(&[]);
    assert_eq!(document(&stage, &["info", "--max-age", "1h"]).0, 0);
    thread::sleep(Duration::from_millis(1100));
    let (code, info) = document(&stage, &["info", "--max-age", "1s"]);
    assert_eq!((code, kinds(&info)), (WARNINGS, vec!["age"]));
    assert_eq!(info["alarms"][0]["lost"], Value::Null, "{info:#}");
    let (code, report) = document(&stage, &["verify", "--max-age", "1s"]);
    assert_eq!((code, kinds(&report)), (WARNINGS, vec!["age"]));
    assert_eq!(document(&stage, &["verify", "--max-age", "1h"]).0, 0);
    let pgdata = stage.pgdata();
    let (code, report) = document(&stage, &["check", "--pgdata", &pgdata, "--max-age", "1s"]);
    assert_eq!(code, FAILED, "{report:#}");
}

#[test]
fn layers_that_nobody_has_verified_for_long_are_an_alarm() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let asked = |age: &str| document(&stage, &["info", "--max-verify-age", age]);
    // There is nothing to verify yet.
    assert_eq!(asked("1s").0, 0);
    let label = stage.backup(&["--type", "full"]);
    let label = text(&label, "/label");
    assert_eq!(asked("1h").0, 0);
    thread::sleep(Duration::from_millis(1100));
    let (code, info) = asked("1s");
    assert_eq!((code, kinds(&info)), (WARNINGS, vec!["verify"]), "{info:#}");
    assert_eq!(text(&info, "/alarms/0/severity"), "warning");
    assert!(text(&info, "/alarms/0/reason").contains("no verification"));
    assert_eq!(info["verified"], Value::Null);
    let pgdata = stage.pgdata();
    let (code, report) = document(
        &stage,
        &["check", "--pgdata", &pgdata, "--max-verify-age", "1s"],
    );
    assert_eq!(code, WARNINGS, "{report:#}");
    assert!(
        report["items"].to_string().contains("no verification"),
        "{report:#}"
    );

    // That of one layer says nothing of the others.
    let (_, verified) = document(&stage, &["verify", label]);
    assert_eq!(verified["recorded"], true);
    assert_eq!(asked("1s").0, WARNINGS);
    document(&stage, &["verify"]);
    let (code, info) = asked("1h");
    assert_eq!((code, text(&info, "/status")), (0, "ok"));
    assert_eq!(info["verified"]["errors"], 0, "{info:#}");
    let shown = String::from_utf8(stage.run(&["info"]).stdout).unwrap();
    assert!(
        shown.contains("verified:    every object of 1 layers"),
        "{shown}"
    );

    // One that finds something does not silence what it should have raised.
    let pack = stored(&stage).join(format!("layer/{label}/pack-000000"));
    let whole = fs::read(&pack).unwrap();
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 1;
    fs::write(&pack, bytes).unwrap();
    assert_eq!(document(&stage, &["verify"]).0, DAMAGED);
    fs::write(&pack, whole).unwrap();
    thread::sleep(Duration::from_millis(1100));
    let (code, info) = asked("1s");
    let found = (code, kinds(&info));
    assert_eq!(found, (WARNINGS, vec!["layer", "verify"]), "{info:#}");
    assert_eq!(text(&info, "/alarms/1/severity"), "error");
    assert!(
        text(&info, "/alarms/1/reason").contains("; the last one, at "),
        "{info:#}"
    );
    assert_eq!(document(&stage, &["verify"]).0, 0);
    assert_eq!(asked("1h").0, 0);

    // Whose layers are all younger than that has none the less never verified.
    thread::sleep(Duration::from_secs(3));
    stage.backup(&["--type", "full"]);
    stage.ok(&["expire", "--keep-full", "1", "--ignore-restores"]);
    assert_eq!(asked("2s").0, WARNINGS);

    // An expiry keeps the last of them.
    let records = stored(&stage).join("verified");
    for second in 0..40 {
        let name = records.join(format!("20250101-0000{second:02}-00000000"));
        fs::write(&name, "of long ago").unwrap();
        support::files::age(&name, "1 day ago");
    }
    stage.ok(&["expire", "--keep-full", "1"]);
    assert_eq!(fs::read_dir(&records).unwrap().count(), 30);
    assert_eq!(asked("1h").0, 0);
}

#[test]
fn what_a_verification_has_found_damaged_counts_for_nothing_until_it_is_found_in_order() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let full = || text(&stage.backup(&["--type", "full"]), "/label").to_owned();
    let (older, damaged) = (full(), full());
    let child = stage.backup(&["--type", "incr"]);
    let child = text(&child, "/label").to_owned();
    let pack = stored(&stage).join(format!("layer/{damaged}/pack-000000"));
    let whole = fs::read(&pack).unwrap();
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 1;
    fs::write(&pack, bytes).unwrap();
    // Nobody has looked.
    assert_eq!(document(&stage, &["info"]).0, 0);
    // What was found of one layer counts, too.
    for verify in [&["verify"][..], &["verify", &child]] {
        assert_eq!(document(&stage, verify).0, DAMAGED);
        let (code, info) = document(&stage, &["info"]);
        assert_eq!((code, kinds(&info)), (WARNINGS, vec!["layer"]), "{info:#}");
        assert_eq!(text(&info, "/alarms/0/layer"), damaged);
        let lost = text(&info, "/alarms/0/lost");
        assert!(lost.contains(&child) && !lost.contains(&older), "{lost}");
    }
    let (code, log) = stage.fails(&["pin", &child]);
    assert_eq!(code, DAMAGED, "{log}");
    assert!(log.contains(&format!("found {damaged} damaged")), "{log}");
    // The older one is what rules are to keep; the younger ones may be in order again, and stay as if they were.
    let expire = ["expire", "--keep-full", "1", "--ignore-restores"];
    let (_, report) = document(&stage, &expire);
    assert_eq!(report["remove"], Value::Array(Vec::new()), "{report:#}");
    assert!(
        report["remarks"].to_string().contains(&damaged),
        "{report:#}"
    );
    stage.ok(&["verify", &older]);

    fs::write(&pack, whole).unwrap();
    assert_eq!(document(&stage, &["verify", &damaged]).0, 0);
    assert_eq!(document(&stage, &["info"]).0, 0);
    stage.ok(&["pin", &child]);
    stage.ok(&["unpin", &child]);
    let (_, report) = document(&stage, &expire);
    assert_eq!(report["remove"], serde_json::json!([older]), "{report:#}");
}

#[test]
fn who_may_not_write_verifies_without_leaving_a_record() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    // Where the records would go.
    fs::write(stored(&stage).join("verified"), "no directory").unwrap();
    let output = stage.run(&["--output", "json", "verify"]);
    let said = String::from_utf8_lossy(&output.stderr);
    // The file there has no place.
    assert_eq!(output.status.code(), Some(WARNINGS), "{said}");
    assert!(
        said.contains("no record of this verification stays"),
        "{said}"
    );
    let report = schema::document(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(report["recorded"], false);
}

#[test]
fn an_archiver_that_fails_is_named_whoever_made_its_command() {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false");
    let stage = Stage::silent(builder, Store::Directory);
    stage
        .cluster
        .sql("postgres", "SELECT pg_switch_wal()")
        .unwrap();
    let failed = "SELECT failed_count > 0 FROM pg_stat_archiver";
    stage
        .cluster
        .wait_for("postgres", failed, PATIENCE)
        .unwrap();
    let (code, report) = check(&stage);
    assert_eq!(code, WARNINGS, "{report:#}");
    let items = report["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["name"] == "WAL").unwrap();
    for words in ["archiver fails with", "cannot be restored: what the server"] {
        assert!(text(item, "/detail").contains(words), "{item:#}");
    }
    assert!(text(item, "/hint").contains("archive_command"), "{item:#}");
}

#[test]
fn an_archive_that_is_somewhere_else_is_no_archive() {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "true");
    let stage = Stage::silent(builder, Store::Directory);
    let archived = |command: &str| {
        stage
            .cluster
            .append_conf("archive_command", command)
            .unwrap();
        stage.cluster.reload().unwrap();
        let now = "SELECT current_setting('archive_command') = ".to_owned();
        let now = format!("{now}'{}'", command.replace('\'', "''"));
        stage.cluster.wait_for("postgres", &now, PATIENCE).unwrap();
        let sql = |text: &str| stage.cluster.sql("postgres", text).unwrap();
        let last = sql(
            "SELECT pg_walfile_name(pg_switch_wal()) FROM (SELECT pg_logical_emit_message(true, '', '')) m",
        );
        let done = format!("SELECT last_archived_wal >= '{last}' FROM pg_stat_archiver");
        stage.cluster.wait_for("postgres", &done, PATIENCE).unwrap();
    };
    let found = |options: &[&str]| {
        let pgdata = stage.pgdata();
        let words = [&["check", "--pgdata", &pgdata], options].concat();
        let (_, report) = document(&stage, &words);
        let items = report["items"].as_array().unwrap().iter();
        let mut items = items.filter(|item| item["name"] == "WAL");
        let item = items.next().unwrap();
        let said = format!("{}; {}", item["detail"], item["hint"]);
        (text(item, "/status").to_owned(), said)
    };
    archived("true");
    for options in [&[][..], &["--wal", "stream"]] {
        let (status, said) = found(options);
        assert_eq!(status, "warning", "{said}");
        let elsewhere = r#"the server archives elsewhere (archive_command is \"true\")"#;
        assert!(said.contains(elsewhere), "{said}");
        assert!(said.contains("and no later point"), "{said}");
    }
    // It is ours, and works, for somebody else.
    archived("true # pgstrata --repo file:///elsewhere --cluster main archive-push %p");
    for options in [&[][..], &["--wal", "stream"]] {
        let (status, said) = found(options);
        assert_eq!(status, "warning", "{said}");
        assert!(said.contains("another repository"), "{said}");
    }
    // A wrapper is not seen to be ours; what it has archived is here.
    let wrapper = stage.target("archive.sh");
    let program = stage.program.display();
    let push = format!(
        "exec {program} --repo {} archive-push --cluster main \"$1\"\n",
        stage.repository
    );
    fs::write(&wrapper, push).unwrap();
    archived(&format!("sh {} %p", wrapper.display()));
    for options in [&[][..], &["--wal", "stream"]] {
        let (status, said) = found(options);
        assert_eq!(status, "ok", "{said}");
    }
}

#[test]
fn a_damaged_record_of_the_cluster_hides_no_other_damage() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let label = stage.backup(&["--type", "full"]);
    let label = text(&label, "/label");
    let record = stored(&stage).join("cluster");
    let mut bytes = fs::read(&record).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&record, bytes).unwrap();
    let pack = stored(&stage).join(format!("layer/{label}/pack-000000"));
    let whole = fs::read(&pack).unwrap();
    fs::write(&pack, &whole[..whole.len() / 2]).unwrap();
    let (code, report) = document(&stage, &["verify"]);
    assert_eq!(code, DAMAGED, "{report:#}");
    let objects: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| text(finding, "/object"))
        .collect();
    assert!(
        objects.iter().any(|key| key.ends_with("/cluster")),
        "{objects:?}"
    );
    assert!(
        objects.iter().any(|key| key.ends_with("/pack-000000")),
        "{objects:?}"
    );
}

#[test]
fn expire_does_not_take_a_broken_backup_for_one_of_those_to_keep() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let good = stage.backup(&["--type", "full"]);
    let good = text(&good, "/label");
    let before = segments(&stage);
    stage
        .cluster
        .sql("postgres", "SELECT pg_switch_wal()")
        .unwrap();
    stage.backup(&["--type", "full"]);
    let of_second = segments(&stage);
    let lost = of_second.iter().find(|name| !before.contains(name));
    fs::remove_file(archive(&stage).join(lost.unwrap())).unwrap();
    let (_, report) = document(&stage, &["expire", "--keep-full", "1"]);
    assert_eq!(report["remove"].as_array().unwrap().len(), 0, "{report:#}");
    assert_eq!(text(&report, "/keep/0/label"), good);
    stage.restore("restored", &[good, "--target-type", "immediate"]);
}

#[test]
fn a_lost_pack_is_an_alarm_and_its_backup_is_none_of_those_to_keep() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let good = stage.backup(&["--type", "full"]);
    let good = text(&good, "/label");
    let bad = stage.backup(&["--type", "full"]);
    let bad = text(&bad, "/label");
    let pack = stored(&stage).join(format!("layer/{bad}/pack-000000"));
    let whole = fs::read(&pack).unwrap();
    for left in [Some(&whole[..whole.len() - 1]), None] {
        match left {
            Some(bytes) => fs::write(&pack, bytes).unwrap(),
            None => fs::remove_file(&pack).unwrap(),
        }
        let (code, info) = document(&stage, &["info"]);
        assert_eq!((code, kinds(&info)), (WARNINGS, vec!["layer"]), "{info:#}");
        assert_eq!(text(&info, "/alarms/0/layer"), bad);
        assert_eq!(text(&info, "/alarms/0/lost"), bad);
        let (code, report) = check(&stage);
        assert_eq!(code, FAILED, "{report:#}");
        let (_, report) = document(&stage, &["expire", "--keep-full", "1"]);
        assert_eq!(report["remove"].as_array().unwrap().len(), 0, "{report:#}");
        let remarks = report["remarks"].to_string();
        assert!(remarks.contains(bad), "{report:#}");
    }
    let target = stage.target("refused").display().to_string();
    let restore = restore_alone(&target);
    for named in [&[][..], &[bad][..]] {
        let (code, log) = stage.fails(&[&restore[..], named].concat());
        assert_eq!(code, DAMAGED, "{log}");
        assert!(log.contains(bad) && log.contains("pack-000000"), "{log}");
        assert!(!Path::new(&target).exists());
    }
    // Nothing new stands on it.
    let child = stage.backup(&["--type", "incr"]);
    assert_eq!(text(&child, "/parent"), good);
    let restored = ["--target-type", "immediate", "--skip-damaged"];
    stage.restore("restored", &restored);
}

#[test]
fn a_finished_layer_that_has_lost_its_manifest_is_lost_and_not_unfinished() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let good = stage.backup(&["--type", "full"]);
    let good = text(&good, "/label");
    let lost = stage.backup(&["--type", "full"]);
    let lost = text(&lost, "/label");
    let directory = stored(&stage).join(format!("layer/{lost}"));
    fs::remove_file(directory.join("manifest")).unwrap();
    let says_so =
        |text: &str| text.contains(lost) && text.contains("manifest") && text.contains("is lost");

    let (code, info) = document(&stage, &["info"]);
    assert_eq!((code, kinds(&info)), (WARNINGS, vec!["layer"]), "{info:#}");
    assert!(says_so(text(&info, "/alarms/0/reason")), "{info:#}");
    assert_eq!(text(&info, "/damaged/0/label"), lost);
    assert_eq!(info["unfinished"].as_array().unwrap().len(), 0, "{info:#}");
    let (code, report) = check(&stage);
    assert_eq!(code, FAILED, "{report:#}");
    assert!(says_so(&report["items"].to_string()), "{report:#}");
    let (code, report) = document(&stage, &["verify"]);
    assert_eq!(code, DAMAGED, "{report:#}");
    assert!(says_so(text(&report, "/findings/0/message")), "{report:#}");
    // Nobody knows on what it stood, and what is left of it may yet be whole again.
    let (code, report) = document(&stage, &["expire", "--keep-full", "1"]);
    assert_eq!(code, WARNINGS, "{report:#}");
    assert!(directory.join("pack-000000").exists());

    let target = stage.target("refused").display().to_string();
    for named in [&[][..], &[lost][..]] {
        let restore = [
            "restore",
            "--target-dir",
            &target,
            "--target-type",
            "immediate",
        ];
        let (code, log) = stage.fails(&[&restore[..], named].concat());
        assert_eq!(code, DAMAGED, "{log}");
        assert!(says_so(&log), "{log}");
        assert!(!Path::new(&target).exists());
    }
    let child = stage.backup(&["--type", "incr"]);
    assert_eq!(text(&child, "/parent"), good);
    let before = ["--target-type", "immediate", "--skip-damaged"];
    stage.restore("restored", &before);
}

#[test]
fn what_piles_up_in_pg_wal_is_named() {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false")
        .conf("min_wal_size", "32MB")
        .conf("max_wal_size", "32MB");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |text: &str| stage.cluster.sql("postgres", text).unwrap();
    sql("SELECT pg_create_physical_replication_slot('forgotten', true)");
    for _ in 0..8 {
        sql("SELECT pg_switch_wal() FROM (SELECT pg_logical_emit_message(true, '', '')) m");
    }
    let found = |name: &str| {
        let pgdata = stage.pgdata();
        let (code, report) = document(&stage, &["check", "--pgdata", &pgdata, "--wal", "stream"]);
        assert_eq!(code, WARNINGS, "{report:#}");
        let items = report["items"].as_array().unwrap().iter();
        let items = items.filter(|item| item["name"] == name);
        items.cloned().collect::<Vec<Value>>()
    };
    let slots = found("slots");
    let [_, slot] = &slots[..] else {
        panic!("{slots:?}")
    };
    assert_eq!(text(slot, "/status"), "warning");
    for word in ["\"forgotten\"", "used by nobody", "more than max_wal_size"] {
        assert!(text(slot, "/detail").contains(word), "{slot:#}");
    }
    assert!(text(slot, "/hint").contains("pg_drop_replication_slot('forgotten')"));
    let backlog = found("archive backlog");
    assert_eq!(text(&backlog[0], "/status"), "ok", "{backlog:?}");
    let status = Path::new(&stage.pgdata()).join("pg_wal/archive_status");
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for entry in fs::read_dir(status).unwrap() {
        let file = File::open(entry.unwrap().path()).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    let backlog = found("archive backlog");
    assert_eq!(text(&backlog[0], "/status"), "warning", "{backlog:?}");
    assert!(text(&backlog[0], "/detail").contains("files wait to be archived, the first since"));

    assert_eq!(text(&found("room for WAL")[0], "/status"), "ok");
    // More than any disk of today has.
    sql("ALTER SYSTEM SET max_wal_size = '2000TB'");
    stage.cluster.reload().unwrap();
    stage
        .cluster
        .wait_for(
            "postgres",
            "SELECT current_setting('max_wal_size') = '2000TB'",
            PATIENCE,
        )
        .unwrap();
    let room = found("room for WAL");
    assert_eq!(text(&room[0], "/status"), "warning", "{room:?}");
    assert!(text(&room[0], "/hint").contains("make room"));

    require_told_by_who_looks(&stage);
}

/// Who looks at the repository on the server's host is told the same.
fn require_told_by_who_looks(stage: &Stage) {
    backup_alone(stage);
    // The slot holds less than that.
    let all = ["archiver", "backlog", "room"];
    for command in ["info", "verify"] {
        let (code, report) = document(stage, &[command, "--pgdata", &stage.pgdata()]);
        assert_eq!(code, WARNINGS, "{report:#}");
        assert_eq!(kinds(&report), all, "{report:#}");
        assert!(
            report["not_looked_at"].as_array().unwrap().is_empty(),
            "{report:#}"
        );
        let (code, report) = document(stage, &[command]);
        assert_eq!((code, kinds(&report)), (0, vec![]), "{report:#}");
        let unseen = report["not_looked_at"].as_array().unwrap();
        let unseen: Vec<&str> = unseen.iter().map(|one| text(one, "/kind")).collect();
        assert_eq!(
            unseen,
            ["archiver", "configuration", "slots", "backlog", "room"]
        );
        let shown = stage.ok(&[command]);
        let line = "not seen:    archiver, files, slots, archive backlog, room for WAL: no server is named";
        assert!(shown.contains(line), "{shown}");
    }
    stage.cluster.stop(StopMode::Fast).unwrap();
    let (code, info) = document(stage, &["info", "--pgdata", &stage.pgdata()]);
    assert_eq!(code, WARNINGS, "{info:#}");
    assert_eq!(
        info["not_looked_at"].as_array().unwrap().len(),
        5,
        "{info:#}"
    );
}

/// A record that keeps everybody from removing anything is told by who looks, with what to do about it.
#[test]
fn what_keeps_expire_from_removing_is_named() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    stage.backup(&["--type", "full"]);
    let cluster = stage.objects().join("main");
    let verdict = cluster.join("removal/00000000000000000000000000000001/verdict");
    let needs = cluster.join("restore/00000000000000000000000000000002/needs");
    let expire = ["expire", "--keep-full", "1"];
    for record in [&verdict, &needs] {
        let directory = record.parent().unwrap();
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("wanted"), "rubbish").unwrap();
        fs::write(record, "rubbish").unwrap();
        // Who expires may delete there.
        let owner = fs::metadata(&cluster).unwrap();
        for path in [directory, directory.parent().unwrap()] {
            chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        let (code, info) = document(&stage, &["info"]);
        assert_eq!((code, text(&info, "/status")), (WARNINGS, "alarm"));
        assert_eq!(kinds(&info), ["removal"], "{info:#}");
        let key = record.strip_prefix(cluster.parent().unwrap()).unwrap();
        let key = key.display().to_string();
        assert!(text(&info, "/alarms/0/reason").contains(&key), "{info:#}");
        assert!(text(&info, "/alarms/0/to_do").contains("can be deleted"));
        let (_, found) = check(&stage);
        assert!(found.to_string().contains(&key), "{found:#}");
        let output = stage.run(&expire);
        assert_eq!(output.status.code(), Some(DAMAGED));
        assert!(String::from_utf8_lossy(&output.stderr).contains(&key));
        if record == &verdict {
            fs::remove_dir_all(directory).unwrap();
        }
    }
    // No restore is that old.
    let long_ago = SystemTime::now() - Duration::from_secs(8 * 86_400);
    for entry in fs::read_dir(needs.parent().unwrap()).unwrap() {
        let file = File::open(entry.unwrap().path()).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    assert_eq!(text(&document(&stage, &["info"]).1, "/status"), "ok");
    stage.ok(&expire);
    assert_eq!(stage.json(&["info"])["layers"].as_array().unwrap().len(), 1);
    assert!(!needs.exists());
}
