//! Unlogged relations that are made while a backup runs.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::PathBuf;

use pgstrata_testbed::cluster::{Background, Cluster, Major};
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
