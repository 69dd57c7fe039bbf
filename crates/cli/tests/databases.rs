//! Databases that are moved, copied and dropped while a backup runs: a layer is right, or there is none.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::hint;
use std::path::Path;
use std::process::Output;
use std::time::Instant;

use pgstrata_testbed::cluster::{Background, Cluster, Major};
use rustix::process::{Pid, Signal, kill_process};
use support::{PATIENCE, Stage, Store};

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

/// Moves the database `source` into the default tablespace, and stops the server's process while it copies the files.
fn stopped_in_the_middle_of_a_move(stage: &Stage) -> (Background, Pid) {
    let server = &stage.cluster;
    let sql = |query: &str| server.sql("postgres", query).unwrap();
    let number = sql("SELECT oid FROM pg_database WHERE datname = 'source'");
    let catalog = server.sql("source", "SELECT pg_relation_filepath('pg_class')");
    let source = server.pgdata().join(catalog.unwrap());
    let source = source.parent().unwrap();
    let copy = server.pgdata().join("base").join(&number);
    let asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'mover'";
    for _ in 0..50 {
        let mut psql = server.command("psql");
        psql.env("PGAPPNAME", "mover")
            .args(["-X", "-d", "postgres"]);
        psql.args(["-c", "SELECT pg_sleep(0.3)"]);
        psql.args(["-c", "ALTER DATABASE source SET TABLESPACE pg_default"]);
        let mover = server.background(psql).unwrap();
        server
            .wait_for("postgres", &format!("SELECT EXISTS ({asked})"), PATIENCE)
            .unwrap();
        let id = Pid::from_raw(sql(asked).parse().unwrap()).unwrap();
        let end = Instant::now() + PATIENCE;
        while !copy.join("PG_VERSION").exists() {
            assert!(Instant::now() < end, "{}", mover.output());
            hint::spin_loop();
        }
        kill_process(id, Signal::STOP).unwrap();
        // It copies the files of a directory in the order in which the directory has them.
        let count = |directory: &Path| fs::read_dir(directory).unwrap().count();
        if count(&copy) < count(source) {
            return (mover, id);
        }
        kill_process(id, Signal::CONT).unwrap();
        mover.wait().unwrap();
        sql("ALTER DATABASE source SET TABLESPACE side");
    }
    panic!("the copy was never caught");
}

/// Its copy was there when the backup began, and the record of it came afterwards.
#[test]
fn a_database_whose_move_had_begun_before_a_backup_is_never_restored_empty() {
    let stage = stage(Major::V15);
    let (mover, id) = stopped_in_the_middle_of_a_move(&stage);
    let backup = stage.begin_backup(&["--type", "full"]);
    kill_process(id, Signal::CONT).unwrap();
    mover.wait().unwrap();
    let output = backup.wait_with_output().unwrap();
    require_refused(&stage, &output, "was moved from \"pg_tblspc/");
    stage.backup(&["--type", "full"]);
    require_kept(&stage, "source");
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
