//! Unlogged relations that are made while a backup runs.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::PathBuf;

use pgstrata_testbed::cluster::{Background, Cluster, Major, StopMode};
use support::{PATIENCE, Stage, Store, process};

/// A server that builds an index of an unlogged table until there is a file.
struct Building {
    stage: Stage,
    gate: PathBuf,
    builder: Background,
}

impl Building {
    fn on(major: Major) -> Self {
        let stage = Stage::archiving(Cluster::builder(major), Store::Directory);
        stage.cluster.pgbench(&["-i", "-q", "-s", "2"]).unwrap();
        let gate = stage.target("gate");
        let make = format!(
            "CREATE FUNCTION held(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
                WHILE (pg_stat_file('{}', true)).size IS NULL LOOP PERFORM pg_sleep(0.02); END LOOP;
                RETURN i; END $$;
             CREATE UNLOGGED TABLE scratch AS SELECT generate_series(1, 100) AS i",
            gate.display()
        );
        stage.cluster.sql("postgres", &make).unwrap();
        let mut index = stage.cluster.command("psql");
        index.args(["-d", "postgres", "-c", "CREATE INDEX ON scratch (held(i))"]);
        let builder = stage.cluster.background(index).unwrap();
        let builds =
            "SELECT count(*) = 1 FROM pg_stat_progress_create_index WHERE phase ~ '^building'";
        stage
            .cluster
            .wait_for("postgres", builds, PATIENCE)
            .unwrap();
        Self {
            stage,
            gate,
            builder,
        }
    }

    /// Lets the index be built to its end.
    fn end(self) -> Stage {
        fs::write(&self.gate, "").unwrap();
        self.builder.wait().unwrap();
        self.stage
    }
}

fn is_usable(restored: &Cluster) {
    let sql = |statement: &str| restored.sql("postgres", statement).unwrap();
    assert_eq!(sql("SELECT count(*) FROM scratch"), "0");
    sql("INSERT INTO scratch VALUES (7)");
    let by_index = "SET enable_seqscan = off; SELECT i FROM scratch WHERE held(i) = 7";
    assert_eq!(sql(by_index), "7");
    restored.amcheck().unwrap();
}

/// Such an index gets its init fork when it was built. Recovery makes the main fork of that one at its end, and fails when one is
/// there.
fn an_index_that_is_done_behind_the_backup_is_not_in_the_way(major: Major) {
    let building = Building::on(major);
    building.stage.backup(&["--type", "full"]);
    let stage = building.end();
    stage.archive_all();
    is_usable(&stage.start_restored(&stage.restore("later", &["--target-action", "promote"])));
}

fn an_index_that_is_done_within_the_backup_is_not_in_the_way(major: Major) {
    let building = Building::on(major);
    let full = ["--type", "full", "--wal", "stream", "--output", "json"];
    let backup = building.stage.begin_backup(&full);
    let stage = building.end();
    process::document(backup);
    // Nobody is asked for WAL that lies in pg_wal.
    let target = stage.restore("alone", &["--target-type", "none", "--same-timeline"]);
    let said = stage
        .cluster
        .run("pg_verifybackup", &[&target.display().to_string()]);
    assert!(said.unwrap().contains("successfully verified"));
    is_usable(&stage.start_restored(&target));
}

#[test]
fn an_index_of_an_unlogged_table_that_is_done_behind_the_backup_15() {
    an_index_that_is_done_behind_the_backup_is_not_in_the_way(Major::V15);
}

#[test]
fn an_index_of_an_unlogged_table_that_is_done_behind_the_backup_18() {
    an_index_that_is_done_behind_the_backup_is_not_in_the_way(Major::V18);
}

#[test]
fn an_index_of_an_unlogged_table_that_is_done_within_the_backup_15() {
    an_index_that_is_done_within_the_backup_is_not_in_the_way(Major::V15);
}

#[test]
fn an_index_of_an_unlogged_table_that_is_done_within_the_backup_18() {
    an_index_that_is_done_within_the_backup_is_not_in_the_way(Major::V18);
}

/// A server of the stage's past with a permanent table, whose file has the number that an unlogged one has on the stage's own
/// server behind the fork, and the segment that made that one.
fn with_one_number_twice(stage: &Stage) -> (Cluster, String) {
    let sql = |statement: &str| stage.cluster.sql("postgres", statement).unwrap();
    sql("SELECT pg_switch_wal()");
    let fork = sql("SELECT pg_create_restore_point('fork')");
    // Past all numbers that WAL has set aside for a server that recovers, and past what the other one writes.
    sql("SELECT count(lo_creat(-1)) FROM generate_series(1, 10000)");
    sql("SELECT pg_logical_emit_message(false, '', repeat('x', 4000000))");
    let at = sql("SELECT pg_current_wal_insert_lsn()");
    sql("CREATE UNLOGGED TABLE theirs (i int)");
    let theirs = sql("SELECT pg_relation_filenode('theirs')");
    let segment = sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
    assert_eq!(segment, sql(&format!("SELECT pg_walfile_name('{fork}')")));
    stage.archive_all();

    let other = stage.start_restored_at("other", &fork);
    let sql = |statement: &str| other.sql("postgres", statement).unwrap();
    let used: u32 = sql("SELECT lo_creat(-1)").parse().unwrap();
    let between = theirs.parse::<u32>().unwrap() - 1 - used;
    let use_up = format!("SELECT count(lo_creat(-1)) FROM generate_series(1, {between})");
    sql(&use_up);
    sql("CREATE TABLE ours AS SELECT generate_series(1, 100) AS i");
    assert_eq!(sql("SELECT pg_relation_filenode('ours')"), theirs);
    sql("CHECKPOINT");
    let begins = format!("SELECT redo_lsn < '{at}' FROM pg_control_checkpoint()");
    assert_eq!(sql(&begins), "t");
    (other, segment)
}

/// Neither when somebody fetches it, nor when a server asks for it that is told to follow the other timeline: it asks before it
/// finds out that it cannot.
#[test]
fn wal_of_another_history_costs_no_table() {
    let builder = Cluster::builder(Major::V15).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    stage.backup(&["--type", "full"]);
    let (other, segment) = with_one_number_twice(&stage);
    let sql = |statement: &str| other.sql("postgres", statement).unwrap();
    let file = sql("SELECT pg_relation_filepath('ours')");
    let file = other.pgdata().join(file);
    let elsewhere = stage.target("fetched").display().to_string();
    for to in [&*elsewhere, "pg_wal/RECOVERYXLOG"] {
        let mut get = stage.command(&["archive-get", "--fetch-ahead", "0", &segment, to]);
        let output = get.current_dir(other.pgdata()).output().unwrap();
        process::ended(output, to, 0);
        assert!(file.exists(), "{to}");
    }
    sql("ALTER SYSTEM RESET recovery_target_lsn");
    sql("ALTER SYSTEM SET recovery_target_timeline = '1'");
    other.stop(StopMode::Fast).unwrap();
    let signal = other.pgdata().join("recovery.signal");
    fs::write(&signal, "").unwrap();
    stage.cluster.own(&signal).unwrap();
    assert!(other.start().is_err());
    let log = other.log_tail(60);
    let asked = format!("restored log file \"{segment}\"");
    assert!(log.contains(&asked), "{log}");
    assert!(file.exists(), "{log}");
    fs::remove_file(&signal).unwrap();
    other.start().unwrap();
    assert_eq!(sql("SELECT count(*) FROM ours"), "100");
}
