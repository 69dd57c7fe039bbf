//! Clocks of hosts may be wrong. The store notes times of its own, and no alarm stays silent for as long as a clock was ahead.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::path::Path;
use std::thread;
use std::time::Duration;

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;
use support::judged::{document, kinds};
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

/// An expiry goes by the store's clock: what it would take for over is not promised to anybody.
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
    let (code, report) = with_clock(&stage, behind, &["expire", "--keep-full", "1"]);
    assert_eq!(code, 0, "it went by the store's clock: {report:#}");
    assert!(
        text(&report, "/remarks/0").contains("behind that of the repository's store"),
        "{report:#}"
    );
    let (code, report) = document(&stage, &["expire", "--keep-full", "1"]);
    assert_eq!((code, &report["remarks"]), (0, &Value::Array(Vec::new())));
}
