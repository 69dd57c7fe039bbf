//! Page LSNs tell of a change, and an audit finds one, by the setting `wal_log_hints` of the very server that wrote the page,
//! for all the time since the parent: not by what `pg_control` says at two moments, nor by the setting of a primary.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::thread;
use std::time::Duration;

use pgstrata_testbed::cluster::{Builder, Cluster, Major, TrackedServer};
use serde_json::Value;
use support::past::{require_source, tracking};
use support::standby::{backup_of, restartpoint, standby_of};
use support::{PATIENCE, Stage, Store, number, text};

/// Rows by the visibility map and by the heap, when some are gone.
const COUNTS: &str = "
    DELETE FROM t WHERE id <= 5000;
    SET max_parallel_workers_per_gather = 0; SET enable_bitmapscan = off;
    SET enable_seqscan = off; SELECT count(*) FROM t WHERE id > 0;
    SET enable_seqscan = on; SET enable_indexscan = off; SET enable_indexonlyscan = off;
    SELECT count(*) FROM t WHERE id > 0;";

/// A server whose pages have no checksums, and get a new LSN with each bit all the same.
fn logging(builder: Builder) -> Builder {
    let builder = builder.checksums(false).conf("wal_log_hints", "on");
    builder
        .conf("autovacuum", "off")
        .conf("wal_retrieve_retry_interval", "200ms")
}

fn set(cluster: &Cluster, value: &str) {
    cluster.append_conf("wal_log_hints", value).unwrap();
    cluster.restart().unwrap();
}

/// Rows whose pages are all-visible to nobody yet.
fn load(cluster: &Cluster) {
    let script = "DROP TABLE IF EXISTS t;
        CREATE TABLE t (id int PRIMARY KEY, v text);
        INSERT INTO t SELECT g, 'v' FROM generate_series(1, 20000) g;
        SELECT count(*) FROM t; CHECKPOINT";
    cluster.sql("postgres", script).unwrap();
}

/// `VACUUM` while the setting is off: the bit "all visible" has no LSN of its own, before and after all bits have.
fn vacuum_without_logging(cluster: &Cluster) {
    set(cluster, "off");
    cluster.sql("postgres", "VACUUM t; CHECKPOINT").unwrap();
    set(cluster, "on");
}

/// A backup of that server, with what it logged.
fn back_up(stage: &Stage, server: &Cluster, more: &[&str]) -> (Value, String) {
    let words = backup_of(server, more);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let all = [&["--output", "json"], &words[..]].concat();
    let output = stage.run(&all);
    let log = String::from_utf8(output.stderr.clone()).unwrap();
    (stage.require_backup(&output), log)
}

/// The newest layer holds the bit of a page wherever its map does.
fn require_maps(stage: &Stage, name: &str) {
    let until = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore(name, &until));
    restored.check_visibility_maps().unwrap();
    let counts = restored.sql("postgres", COUNTS).unwrap();
    assert_eq!(counts, "15000\n15000", "by the visibility map, by the heap");
}

/// Its control file has the primary's setting.
fn a_standby_goes_by_its_own_setting(major: Major) {
    let stage = Stage::archiving(logging(Cluster::builder(major)), Store::Directory);
    load(&stage.cluster);
    let standby = standby_of(&stage, &stage.cluster.conninfo("postgres"));
    set(&standby, "off");
    restartpoint(&stage, &standby);
    back_up(&stage, &standby, &["--type", "full"]);
    vacuum_without_logging(&stage.cluster);
    restartpoint(&stage, &standby);
    let (layer, log) = back_up(&stage, &standby, &[]);
    require_source(&layer, "digest");
    let said = |line: &&str| line.contains("WARN") && line.contains("on this standby");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
    require_maps(&stage, "off");

    // With its own setting on, replay gives each bit an LSN, whatever the primary does.
    set(&standby, "on");
    load(&stage.cluster);
    restartpoint(&stage, &standby);
    let (layer, _) = back_up(&stage, &standby, &[]);
    require_source(&layer, "digest");
    vacuum_without_logging(&stage.cluster);
    restartpoint(&stage, &standby);
    let (layer, _) = back_up(&stage, &standby, &[]);
    require_source(&layer, "lsn");
    require_maps(&stage, "on");
}

#[test]
fn a_standby_goes_by_its_own_setting_on_15() {
    a_standby_goes_by_its_own_setting(Major::V15);
}

#[test]
fn a_standby_goes_by_its_own_setting_on_18() {
    a_standby_goes_by_its_own_setting(Major::V18);
}

/// The tracker proves the parent's past over restarts, and page LSNs are asked for.
fn a_setting_that_was_off_in_between_is_not_passed_over(major: Major) {
    let server = TrackedServer::copy(major).unwrap();
    let stage = Stage::silent(logging(tracking(&server)), Store::Directory);
    let extension = "CREATE EXTENSION pgstrata";
    stage.cluster.sql("postgres", extension).unwrap();
    load(&stage.cluster);
    let by_lsn = || stage.backup(&["--change-source", "lsn"]);
    by_lsn();
    require_source(&by_lsn(), "lsn");
    vacuum_without_logging(&stage.cluster);
    let layer = by_lsn();
    require_source(&layer, "digest");
    let reason = text(&layer, "/change_source/reason");
    assert!(reason.contains("may have been off before"), "{reason}");
    require_maps(&stage, "restored");
    require_source(&by_lsn(), "lsn");
}

#[test]
fn a_setting_that_was_off_in_between_is_not_passed_over_on_15() {
    a_setting_that_was_off_in_between_is_not_passed_over(Major::V15);
}

#[test]
fn a_setting_that_was_off_in_between_is_not_passed_over_on_18() {
    a_setting_that_was_off_in_between_is_not_passed_over(Major::V18);
}

/// A reader of the standby sets hint bits there, and a crash takes the tracker's marks of them.
fn hint_bits_of_a_standby_are_no_finding(major: Major) {
    let server = TrackedServer::copy(major).unwrap();
    let builder = logging(tracking(&server)).conf("shared_buffers", "2MB");
    // A restartpoint between reading and crash would save the marks.
    let builder = builder.conf("checkpoint_timeout", "1h");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE EXTENSION pgstrata;
         CREATE TABLE crowd AS SELECT g, repeat('x', 500) AS x FROM generate_series(1, 40000) g;
         CREATE INDEX ON crowd (g);
         SELECT count(*) FROM crowd;
         CREATE TABLE t (id int, v text);
         INSERT INTO t SELECT g, 'v' FROM generate_series(1, 20000) g");
    // The LSN of a commit is known for 32 transactions together: while it is the one of a backup's end, a standby writes no hint.
    sql("DO $$ BEGIN FOR i IN 1..64 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$");
    stage.backup(&["--type", "full"]);
    let directory = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(major, &directory)
        .bindir(server.bindir())
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .conf("wal_log_hints", "off")
        .start()
        .unwrap();
    restartpoint(&stage, &standby);
    back_up(&stage, &standby, &["--type", "full", "--wal", "stream"]);
    // A crash within a second after a checkpoint without files voids the history.
    thread::sleep(Duration::from_secs(2));
    // The second table, read by an index, drives the pages of the first one out of memory. The crash comes before their marks
    // are saved.
    let read = "SELECT count(*) FROM t; SET enable_seqscan = off; SET enable_bitmapscan = off;
        SELECT count(x) FROM crowd WHERE g > 0";
    standby.sql("postgres", read).unwrap();
    standby.kill9().unwrap();
    standby.start().unwrap();
    let is_there = "SELECT count(*) = 1 FROM pgstrata.state()";
    standby.wait_for("postgres", is_there, PATIENCE).unwrap();
    restartpoint(&stage, &standby);
    let audited = ["--wal", "stream", "--require-tracker", "--audit", "100%"];
    let (layer, _) = back_up(&stage, &standby, &audited);
    let hints = number(&layer, "/audit/harmless/hint_bits");
    assert!(hints > 10, "{layer:#}");
}

#[test]
fn hint_bits_of_a_standby_are_no_finding_on_15() {
    hint_bits_of_a_standby_are_no_finding(Major::V15);
}

#[test]
fn hint_bits_of_a_standby_are_no_finding_on_18() {
    hint_bits_of_a_standby_are_no_finding(Major::V18);
}
