//! Pages that are wrong: read again, listed, stored as they are, and the backup is marked.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use serde_json::Value;

use crate::support::process::{document, signal, spawn, wait_until_open};
use crate::support::{Stage, Store, restore_alone, text};

const WARNINGS: i32 = 3;
const CORRUPT_PAGES: i32 = 20;

struct Scene {
    stage: Stage,
    /// A table of many pages, relative to the data directory.
    table: String,
}

impl Scene {
    fn start() -> Self {
        let builder = Cluster::builder(Major::V15).conf("autovacuum", "off");
        let stage = Stage::silent(builder, Store::Directory);
        let script = "CREATE TABLE t AS SELECT g AS id, repeat('x', 500) AS pad FROM generate_series(1, 1000) g;
            VACUUM t; SELECT count(*) FROM t; CHECKPOINT; SELECT pg_relation_filepath('t')";
        let printed = stage.cluster.sql("postgres", script).unwrap();
        let table = printed.lines().last().unwrap().to_owned();
        Self { stage, table }
    }

    fn file(&self) -> PathBuf {
        self.stage.cluster.pgdata().join(&self.table)
    }

    fn damage(&self, block: u64, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(self.file()).unwrap();
        file.write_all_at(bytes, block * 8192 + offset).unwrap();
    }

    fn try_backup(&self, arguments: &[&str]) -> (i32, Value, String) {
        let pgdata = self.stage.pgdata();
        let mut command = self.stage.command(&["--output", "json", "backup"]);
        let output = command
            .args(["--pgdata", &pgdata])
            .args(arguments)
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), report, log)
    }

    /// A backup that must find exactly these blocks of the table corrupt.
    fn require_corrupt(&self, arguments: &[&str], blocks: &[u64]) -> Value {
        let (code, report, log) = self.try_backup(arguments);
        assert_eq!(code, WARNINGS, "{log}");
        let pages = report["corrupt_pages"].as_array().unwrap();
        let found: Vec<u64> = pages
            .iter()
            .filter(|page| page["path"] == self.table.as_str())
            .map(|page| page["block"].as_u64().unwrap())
            .collect();
        assert_eq!(found, blocks, "{report:#}");
        assert_eq!(pages.len(), blocks.len(), "{report:#}");
        report
    }
}

#[test]
fn rule_5_corrupt_pages_are_listed_stored_as_they_are_and_mark_the_backup() {
    let scene = Scene::start();
    scene.damage(3, 5000, b"bit rot");
    scene.damage(7, 100, &[0xff; 16]);
    // A page of zeros is new, not corrupt.
    scene.damage(5, 0, &[0; 8192]);
    let full = scene.require_corrupt(&["--type", "full"], &[3, 7]);
    let reason = full["corrupt_pages"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("checksum"), "{reason}");
    let label = text(&full, "/label");
    let shown = scene.stage.ok(&["info", label]);
    assert!(
        shown.contains(&scene.table) && shown.contains("block 3"),
        "{shown}"
    );

    // An incremental reads every page by LSN or digest, and says so again.
    for source in ["lsn", "digest"] {
        let report = scene.require_corrupt(&["--type", "incr", "--change-source", source], &[3, 7]);
        assert_eq!(text(&report, "/change_source/used"), source);
        let stored = report["totals"]["pages_stored"].as_u64().unwrap();
        assert!(stored < 100, "{stored} pages though nothing has changed");
    }

    let counts = scene.stage.layer_counts();
    let (code, _, log) = scene.try_backup(&["--type", "full", "--on-corrupt-page", "fail"]);
    assert_eq!(code, CORRUPT_PAGES, "{log}");
    assert!(
        log.contains(&scene.table) && log.contains("is corrupt"),
        "{log}"
    );
    assert_eq!(scene.stage.layer_counts(), counts);
    scene.stage.wait_out_of_backup_mode();

    let target = scene.stage.target("restored").display().to_string();
    let restore = restore_alone(&target);
    let mut plan = restore.to_vec();
    plan.push("--dry-run");
    let plan = scene.stage.json(&plan);
    assert!(plan["notes"].to_string().contains("corrupt"), "{plan:#}");
    scene.stage.ok(&restore);
    let restored = fs::read(scene.stage.target("restored").join(&scene.table)).unwrap();
    assert_eq!(restored, fs::read(scene.file()).unwrap());
    rule_5_headers_are_checked_without_checksums_unless_told_otherwise(&scene);
}

/// Encrypted pages and those of extensions have headers of their own.
fn rule_5_headers_are_checked_without_checksums_unless_told_otherwise(scene: &Scene) {
    let cluster = &scene.stage.cluster;
    cluster.stop(StopMode::Fast).unwrap();
    cluster
        .run("pg_checksums", &["--disable", "-D", &scene.stage.pgdata()])
        .unwrap();
    cluster.start().unwrap();
    scene.damage(9, 14, &[0, 0]);
    let report = scene.require_corrupt(&["--type", "incr", "--change-source", "lsn"], &[9]);
    // Rule 4.7: LSNs do not tell across a change of checksums.
    assert_eq!(text(&report, "/change_source/used"), "digest");
    let reason = text(&report, "/change_source/reason");
    assert!(reason.contains("checksums"), "{reason}");
    let (code, report, log) = scene.try_backup(&["--type", "incr", "--no-page-header-check"]);
    assert_eq!(code, 0, "{log}");
    assert_eq!(report["corrupt_pages"].as_array().unwrap().len(), 0);
}

/// A file read while something else writes: the second reading is right, and nothing is reported.
#[test]
fn rule_5_files_may_vanish_grow_and_shrink_while_they_are_read() {
    let builder = Cluster::builder(Major::V18)
        .conf("autovacuum", "off")
        .conf("full_page_writes", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "4"]).unwrap();
    let script = stage.cluster.socket_dir().join("churn.sql");
    fs::write(
        &script,
        "DROP TABLE IF EXISTS churn:client_id;
         CREATE TABLE churn:client_id AS SELECT g AS id, repeat('c', 300) AS pad FROM generate_series(1, 3000) g;
         DELETE FROM churn:client_id WHERE id > 100; VACUUM churn:client_id;
         INSERT INTO churn:client_id SELECT g, repeat('d', 300) FROM generate_series(1, 6000) g;
         TRUNCATE churn:client_id;",
    )
    .unwrap();
    let file = script.display().to_string();
    let churn = stage
        .cluster
        .background_pgbench(&["-n", "-c", "2", "-T", "600", "-f", &file])
        .unwrap();
    let load = stage
        .cluster
        .background_pgbench(&["-n", "-c", "1", "-T", "600"])
        .unwrap();
    let full = stage.backup(&["--type", "full", "--max-rate", "20M", "--jobs", "2"]);
    assert_eq!(full["corrupt_pages"].as_array().unwrap().len(), 0);
    rule_4_1_the_threshold_is_the_start_of_the_parent(&stage, &full, (churn, load));
}

/// What a file has lost since it was listed counts as zeros, behind a page that was zeros before.
#[test]
fn rule_5_a_tail_is_cut_behind_a_page_of_zeros_while_the_file_is_read() {
    let builder = Cluster::builder(Major::V18).conf("autovacuum", "off");
    let stage = Stage::silent(builder, Store::Directory);
    let tables = ["one", "two"];
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let files = tables.map(|table| {
        sql(&format!(
            "CREATE TABLE {table} AS SELECT g AS id, repeat('x', 400) AS pad FROM generate_series(1, 50000) g"
        ));
        sql(&format!("SELECT pg_relation_filepath('{table}')"))
    });
    stage.cluster.stop(StopMode::Fast).unwrap();
    for file in &files {
        let path = stage.cluster.pgdata().join(file);
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[0; 8192], 2505 * 8192).unwrap();
    }
    stage.cluster.start().unwrap();
    let pgdata = stage.pgdata();
    let mut slow = vec![
        "--output", "json", "backup", "--pgdata", &pgdata, "--wal", "stream",
    ];
    slow.extend(["--max-rate", "8M", "--jobs", "1"]);
    let mut child = spawn(&stage, &slow);
    let other = tables[1 - wait_until_open(&mut child, &files, None)];
    signal(&child, "-STOP");
    sql(&format!("DELETE FROM {other} WHERE ctid >= '(2510,0)'"));
    sql(&format!("VACUUM {other}"));
    let blocks = sql(&format!("SELECT pg_relation_size('{other}') / 8192"));
    assert_eq!(blocks, "2510");
    let sums = "SELECT (SELECT sum(id) FROM one), (SELECT sum(id) FROM two)";
    let expected = sql(sums);
    signal(&child, "-CONT");
    document(child);
    let there = ["--target-type", "immediate", "--target-action", "promote"];
    let target = stage.restore("cut", &there);
    let restored = stage.start_restored(&target);
    assert_eq!(restored.sql("postgres", sums).unwrap(), expected);
}

type Loads = (
    pgstrata_testbed::cluster::Background,
    pgstrata_testbed::cluster::Background,
);

/// Pages were copied before they changed again within the same backup. A threshold at its end
/// would miss those changes.
fn rule_4_1_the_threshold_is_the_start_of_the_parent(stage: &Stage, full: &Value, loads: Loads) {
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let (start, stop) = (text(full, "/start_lsn"), text(full, "/stop_lsn"));
    let query = format!("SELECT '{stop}'::pg_lsn - '{start}'::pg_lsn > 1000000");
    assert_eq!(
        sql(&query),
        "t",
        "too little happened from {start} to {stop}"
    );
    let under_load = stage.backup(&["--type", "incr", "--change-source", "lsn"]);
    assert_eq!(text(&under_load, "/change_source/used"), "lsn");
    drop(loads);
    let idle = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'";
    stage
        .cluster
        .wait_for("postgres", idle, crate::support::PATIENCE)
        .unwrap();
    stage
        .cluster
        .run("vacuumdb", &["--all", "--quiet"])
        .unwrap();
    stage.cluster.dump().unwrap();
    sql("CHECKPOINT");
    let last = stage.backup(&["--type", "incr", "--change-source", "lsn"]);
    assert_eq!(text(&last, "/change_source/used"), "lsn");
    assert_eq!(last["parent"], under_load["label"]);
    stage.cluster.stop(StopMode::Fast).unwrap();
    let restored = stage.restore("restored", &["--target-type", "immediate"]);
    crate::support::files::require_same_files(stage.cluster.pgdata(), &restored);
    let checksums = Command::new(stage.cluster.bindir().join("pg_checksums"))
        .args(["--check", "-D", &stage.pgdata()])
        .output()
        .unwrap();
    assert!(checksums.status.success(), "{checksums:?}");
    stage.cluster.start().unwrap();
    rule_6_tablespaces_come_and_go_while_files_are_read(stage);
}

/// Replay makes the new one where it was, or not at all: that is said, and the next layer has it.
fn rule_6_tablespaces_come_and_go_while_files_are_read(stage: &Stage) {
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let place = |name: &str| {
        let directory = stage.cluster.create_dir(name).unwrap();
        (directory.display().to_string(), name.to_owned())
    };
    let create = |(directory, name): &(String, String)| {
        sql(&format!("CREATE TABLESPACE {name} LOCATION '{directory}'"));
    };
    let (early, late) = (place("early"), place("late"));
    create(&early);
    sql("CREATE TABLE goes TABLESPACE early AS SELECT 1 AS id");
    let running = stage.begin_backup(&["--type", "full"]);
    sql("DROP TABLE goes");
    sql("DROP TABLESPACE early");
    create(&late);
    sql("CREATE TABLE stays TABLESPACE late AS SELECT generate_series(1, 1000) AS id");
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report = String::from_utf8_lossy(&output.stdout);
    let warning = format!("was created in \"{}\" while the backup ran", late.0);
    assert!(report.contains(&warning), "{report}");

    stage.backup(&["--type", "incr"]);
    let moved = stage.target("late-moved").display().to_string();
    let map = format!("{}={moved}", late.0);
    let map = ["--tablespace-map", &map, "--target-type", "immediate"];
    let promoting = [&map[..], &["--target-action", "promote"]].concat();
    let restored = stage.start_restored(&stage.restore("later", &promoting));
    let count = "SELECT count(*) FROM stays";
    assert_eq!(restored.sql("postgres", count).unwrap(), "1000");
    let names = "SELECT string_agg(spcname, ' ') FROM pg_tablespace WHERE spcname !~ '^pg_'";
    assert_eq!(restored.sql("postgres", names).unwrap(), "late");
}
