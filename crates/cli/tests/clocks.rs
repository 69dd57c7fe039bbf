//! Clocks of hosts may be wrong. The store notes times of its own, no alarm stays silent for as long as a clock was ahead, and
//! nothing is removed because one is.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;
use support::judged::{document, kinds, stored};
use support::{Stage, Store, process, schema, text};

const USAGE: i32 = 2;
const WARNINGS: i32 = 3;

/// Ten days, in seconds.
const AHEAD: &str = "864000";

/// Runs a command on a host whose clock is ahead by so many seconds.
fn with_clock(stage: &Stage, (library, ahead): (&Path, &str), arguments: &[&str]) -> (i32, Value) {
    let mut command = stage.command(&[&["--output", "json"], arguments].concat());
    command.env("LD_PRELOAD", library).env("CLOCK_AHEAD", ahead);
    let output = command.output().unwrap();
    let report = schema::document(&String::from_utf8(output.stdout).unwrap());
    (output.status.code().unwrap(), report)
}

#[test]
fn a_clock_that_was_ahead_is_named_and_silences_no_alarm() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let library = process::provoker(&stage);
    let pgdata = stage.pgdata();
    stage.backup(&["--type", "full"]);
    stage.ok(&["verify"]);

    let backup = ["backup", "--pgdata", &pgdata, "--type", "full"];
    let (code, report) = with_clock(&stage, (&library, AHEAD), &backup);
    assert_eq!(code, WARNINGS, "{report:#}");
    let warnings = report["warnings"].to_string();
    assert!(
        warnings.contains("ahead of that of the repository's store"),
        "{warnings}"
    );
    let (code, report) = with_clock(&stage, (&library, AHEAD), &["verify"]);
    assert_eq!(code, 0, "{report:#}");
    for (ahead, words) in [(AHEAD, "ahead of"), ("-864000", "behind"), ("60", "agrees")] {
        let check = ["check", "--pgdata", &pgdata, "--wal", "stream"];
        let (_, report) = with_clock(&stage, (&library, ahead), &check);
        let items = report["items"].as_array().unwrap();
        let clock = items.iter().find(|item| item["name"] == "clock").unwrap();
        assert!(text(clock, "/detail").contains(words), "{clock:#}");
        let is_named = ahead.len() > 2;
        assert_eq!(clock["status"] == "warning", is_named, "{clock:#}");
    }

    assert_eq!(
        document(
            &stage,
            &["info", "--max-age", "1h", "--max-verify-age", "1h"]
        )
        .0,
        0
    );
    thread::sleep(Duration::from_millis(1100));
    let (code, info) = document(
        &stage,
        &["info", "--max-age", "1s", "--max-verify-age", "1s"],
    );
    assert_eq!(code, WARNINGS, "{info:#}");
    assert_eq!(kinds(&info), ["age", "verify"], "{info:#}");

    // Seen from a host whose clock is behind, it is not known.
    let info = ["info", "--max-age", "1h"];
    let (code, info) = with_clock(&stage, (&library, "-864000"), &info);
    assert_eq!(code, WARNINGS, "{info:#}");
    assert!(
        text(&info, "/alarms/0/reason").contains("is still to come"),
        "{info:#}"
    );
}

/// A pin goes by the store's clock: what it would take for over is not promised to anybody.
#[test]
fn a_pin_that_is_over_by_the_clock_of_the_store_is_refused_and_an_expiry_names_clocks_that_differ()
{
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let library = process::provoker(&stage);
    let layer = stage.backup(&["--type", "full"]);
    let behind = (library.as_path(), "-864000");
    let ago = "SELECT to_char((now() - interval '5 days') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
    let until = stage.cluster.sql("postgres", ago).unwrap();
    let pin = ["pin", text(&layer, "/label"), "--until", &until];
    let (code, error) = with_clock(&stage, behind, &pin);
    assert_eq!(code, USAGE, "{error:#}");
    assert!(
        error
            .to_string()
            .contains("the clock of the repository's store"),
        "{error:#}"
    );
    what_clocks_decide_is_not_done(&stage, &library);
    let (code, report) = with_clock(&stage, behind, &["expire", "--keep-full", "1"]);
    assert_eq!(code, 0, "no rule is about time: {report:#}");
    assert_eq!(report["remove"].as_array().unwrap().len(), 2, "{report:#}");
    assert!(
        text(&report, "/remarks/0").contains("behind that of the repository's store"),
        "{report:#}"
    );
    let (code, report) = document(&stage, &["expire", "--keep-full", "1"]);
    assert_eq!((code, &report["remarks"]), (0, &Value::Array(Vec::new())));
    what_is_dated_ahead_stops_no_expiry(&stage);
}

/// By the later clock layers go, by the other one none.
fn what_clocks_decide_is_not_done(stage: &Stage, library: &Path) {
    for _ in 0..2 {
        stage.backup(&["--type", "full"]);
        thread::sleep(Duration::from_millis(1100));
    }
    let behind = "-864000";
    for (ahead, words) in [
        (AHEAD, &["--keep-within", "1h"][..]),
        (behind, &["--keep-within", "1s"]),
    ] {
        let words = [&["expire"], words].concat();
        let (code, report) = with_clock(stage, (library, ahead), &words);
        assert_eq!(code, WARNINGS, "{report:#}");
        let note = text(&report, "/notes/0");
        assert!(note.contains("do not agree"), "{report:#}");
        assert_eq!(report["done"], false, "{report:#}");
    }
    let plan = ["expire", "--keep-within", "1s", "--dry-run"];
    let (_, report) = with_clock(stage, (library, behind), &plan);
    let remarks = report["remarks"].to_string();
    assert!(remarks.contains("by the clock of this host"), "{report:#}");
    let (_, info) = document(stage, &["info"]);
    assert_eq!(info["layers"].as_array().unwrap().len(), 3, "{info:#}");
}

/// A backup was killed where the store's clock was ahead.
fn what_is_dated_ahead_stops_no_expiry(stage: &Stage) {
    let label = "20250101-000000F";
    let left = stored(stage).join("layer").join(label);
    fs::create_dir(&left).unwrap();
    let claim = fs::File::create_new(left.join("claim")).unwrap();
    let ahead = SystemTime::now() + Duration::from_secs(300 * 86400);
    claim.set_modified(ahead).unwrap();
    let owner = fs::metadata(stored(stage)).unwrap();
    for path in [&left, &left.join("claim")] {
        chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let pgdata = stage.pgdata();
    let check = ["check", "--pgdata", &pgdata, "--wal", "stream"];
    let (_, report) = document(stage, &check);
    let items = report["items"].as_array().unwrap();
    let named = |item: &Value| text(item, "/detail").contains("is still to come");
    assert!(items.iter().any(named), "{report:#}");
    let (code, report) = document(stage, &["expire", "--keep-full", "1"]);
    assert_eq!(
        (code, &report["done"]),
        (0, &Value::Bool(true)),
        "{report:#}"
    );
    assert_eq!(report["leftovers"][0], label, "{report:#}");
    assert!(!left.join("claim").exists());
}
