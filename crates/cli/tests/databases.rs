//! Databases that are moved, copied and dropped while a backup runs: a layer is right, or there is none.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::process::Output;

use pgstrata_testbed::cluster::{Cluster, Major};
use support::{Stage, Store};

const REFUSED: i32 = 13;

/// A server with a database `source` in a tablespace of its own.
fn stage(major: Major) -> Stage {
    let builder = Cluster::builder(major).conf("allow_in_place_tablespaces", "on");
    let stage = Stage::archiving(builder, Store::Directory);
    let server = &stage.cluster;
    for statement in [
        "CREATE TABLESPACE side LOCATION ''",
        "CREATE DATABASE source TABLESPACE side",
    ] {
        server.sql("postgres", statement).unwrap();
    }
    let filled = "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n";
    server.sql("source", filled).unwrap();
    server.sql("postgres", "CHECKPOINT").unwrap();
    stage
}

/// A full backup, with these statements when it is in the middle.
fn backup_beside(stage: &Stage, statements: &[&str]) -> Output {
    let backup = stage.begin_backup(&["--type", "full"]);
    for statement in statements {
        stage.cluster.sql("postgres", statement).unwrap();
    }
    backup.wait_with_output().unwrap()
}

/// Restores the newest layer, and requires the table to be in `database`.
fn require_kept(stage: &Stage, database: &str) {
    let immediate = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.restore("kept", &immediate);
    let copy = stage.start_restored(&restored);
    let rows = copy.sql(database, "SELECT count(*) FROM kept").unwrap();
    assert_eq!(rows, "1000");
}

fn require_refused(stage: &Stage, output: &Output, why: &str) {
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(REFUSED), "{log}");
    assert!(
        log.contains(why) && log.contains("leave the database empty"),
        "{log}"
    );
    assert_eq!(stage.layer_counts(), (0, 0));
    stage.wait_out_of_backup_mode();
}

fn a_database_that_is_moved_under_a_backup_is_never_restored_empty(major: Major) {
    let stage = stage(major);
    let output = backup_beside(&stage, &["ALTER DATABASE source SET TABLESPACE pg_default"]);
    require_refused(&stage, &output, "was moved from \"pg_tblspc/");
    stage.backup(&["--type", "full"]);
    require_kept(&stage, "source");
}

#[test]
fn a_database_that_is_moved_under_a_backup_is_never_restored_empty_on_15() {
    a_database_that_is_moved_under_a_backup_is_never_restored_empty(Major::V15);
}

#[test]
fn a_database_that_is_moved_under_a_backup_is_never_restored_empty_on_18() {
    a_database_that_is_moved_under_a_backup_is_never_restored_empty(Major::V18);
}

#[test]
fn a_database_whose_source_is_dropped_under_a_backup_is_never_restored_empty() {
    let stage = stage(Major::V15);
    let copy = "CREATE DATABASE copy TEMPLATE source STRATEGY file_copy";
    let output = backup_beside(&stage, &[copy, "DROP DATABASE source"]);
    require_refused(&stage, &output, "was copied file by file");
}

#[test]
fn databases_that_come_with_the_wal_and_go_disturb_no_backup() {
    let stage = stage(Major::V15);
    let copy = "CREATE DATABASE copy TEMPLATE source STRATEGY wal_log TABLESPACE pg_default";
    let output = backup_beside(&stage, &[copy, "DROP DATABASE source"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    require_kept(&stage, "copy");
}
