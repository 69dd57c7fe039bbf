//! WAL summaries as change source, on the versions that have them: chains restore to what
//! the server held, visibility maps included, and a gap is never taken for unchanged.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};
use support::{Stage, Store, number, text};

/// What WAL summaries see in other ways than by block, and what they do not see at all.
fn disturb(cluster: &Cluster, round: usize) {
    let script = format!(
        "CREATE TABLE IF NOT EXISTS cut AS SELECT g FROM generate_series(1, 20000) g;
         VACUUM (FREEZE) cut;
         DELETE FROM cut WHERE g > 5000;
         VACUUM (TRUNCATE) cut;
         INSERT INTO cut SELECT generate_series(1, 3000);
         CREATE TABLE made{round} AS SELECT * FROM pg_class;
         CREATE INDEX ON made{round} (relname);
         TRUNCATE pgbench_history;
         VACUUM (FREEZE) quiet;
         DELETE FROM quiet WHERE g % 5000 = {round};"
    );
    cluster.sql("postgres", &script).unwrap();
    for strategy in ["wal_log", "file_copy"] {
        let copy = format!("copy_{strategy}");
        let run = |script: String| cluster.sql("postgres", &script).unwrap();
        run(format!("DROP DATABASE IF EXISTS {copy}"));
        run(format!(
            "CREATE DATABASE {copy} TEMPLATE template0 STRATEGY {strategy}"
        ));
    }
}

fn a_chain_by_summaries_restores_and_a_gap_falls_back_aloud(major: Major) {
    let builder = Cluster::builder(major).conf("summarize_wal", "on");
    let stage = Stage::archiving(builder, Store::Directory);
    let cluster = &stage.cluster;
    cluster.pgbench(&["-i", "-q", "-s", "2"]).unwrap();
    let quiet = "CREATE TABLE quiet AS
        SELECT g, repeat('x', 500) AS t FROM generate_series(1, 50000) g; VACUUM (FREEZE, ANALYZE)";
    cluster.sql("postgres", quiet).unwrap();
    stage.backup(&["--type", "full"]);
    for round in 0..2 {
        let load = cluster
            .background_pgbench(&["-n", "-c", "2", "-t", "200"])
            .unwrap();
        disturb(cluster, round);
        let layer = stage.backup(&["--change-source", "summary"]);
        let reason = text(&layer, "/change_source/reason");
        assert_eq!(text(&layer, "/change_source/used"), "summary", "{reason}");
        let marked = number(&layer, "/totals/pages_marked");
        assert!(number(&layer, "/totals/pages_stored") <= marked);
        // Of the quiet table, 28 MiB, the few pages that changed are read, and the maps.
        let read = number(&layer, "/totals/bytes_read");
        assert!(
            read <= marked * 8192 + (16 << 20),
            "{read} bytes read for {marked} pages"
        );
        load.wait().unwrap();
        if round > 0 {
            continue;
        }
        cluster.restart().unwrap();
        // Nothing proves that no files were put back meanwhile: once every page is compared.
        let layer = stage.backup(&["--change-source", "summary"]);
        let reason = text(&layer, "/change_source/reason");
        assert_eq!(text(&layer, "/change_source/used"), "digest", "{reason}");
        assert!(reason.contains("the server was started since"), "{reason}");
    }

    // The summaries since the parent are gone: said once, and every page is read.
    disturb(cluster, 2);
    cluster.sql("postgres", "CHECKPOINT").unwrap();
    let caught_up = "SELECT summarized_lsn >= (SELECT redo_lsn FROM pg_control_checkpoint())
        FROM pg_get_wal_summarizer_state()";
    cluster
        .wait_for("postgres", caught_up, support::PATIENCE)
        .unwrap();
    for entry in fs::read_dir(cluster.pgdata().join("pg_wal/summaries")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let pgdata = stage.pgdata();
    let output = stage.run(&["--output", "json", "backup", "--pgdata", &pgdata]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    let said = log
        .lines()
        .filter(|line| line.contains("not by summary: WAL from"));
    assert_eq!(
        said.filter(|line| line.contains("WARN")).count(),
        1,
        "{log}"
    );
    disturb(cluster, 3);
    let layer = stage.backup(&[]);
    assert_eq!(text(&layer, "/change_source/used"), "summary");

    let (lsn, dump) = stage.moment();
    let restored = stage.start_restored_at("restored", &lsn);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
    restored.check_visibility_maps().unwrap();
}

#[test]
fn a_chain_by_summaries_restores_and_a_gap_falls_back_aloud_on_17() {
    a_chain_by_summaries_restores_and_a_gap_falls_back_aloud(Major::V17);
}

#[test]
fn a_chain_by_summaries_restores_and_a_gap_falls_back_aloud_on_18() {
    a_chain_by_summaries_restores_and_a_gap_falls_back_aloud(Major::V18);
}

/// A vacuum tells an SP-GiST index's metapage, without WAL, which pages were used last.
#[test]
fn a_metapage_of_spgist_that_changed_without_wal_is_no_finding() {
    let builder = Cluster::builder(Major::V17).checksums(true);
    let builder = builder
        .conf("summarize_wal", "on")
        .conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(
        "CREATE TABLE places AS SELECT point(g, g % 91) AS place FROM generate_series(1, 40000) g;
         CREATE INDEX ON places USING spgist (place);
         CHECKPOINT",
    );
    stage.backup(&["--type", "full"]);
    sql(
        "INSERT INTO places SELECT point(g / 7, g) FROM generate_series(1, 10000) g;
         DELETE FROM places WHERE place[0] > 39000;
         VACUUM places",
    );
    let audited = stage.backup(&["--change-source", "summary", "--audit", "100%"]);
    assert_eq!(text(&audited, "/change_source/used"), "summary");
    assert_eq!(
        number(&audited, "/audit/harmless/last_used_pages"),
        1,
        "{audited:#}"
    );
}

/// The copy puts back what it has, and takes nothing away but WAL that its own would run into.
fn put_over(stage: &Stage, copy: &Path) {
    let data = stage.cluster.pgdata();
    let mut cp = Command::new("cp");
    let done = cp.arg("-a").arg(copy.join(".")).arg(data).status().unwrap();
    assert!(done.success());
    for entry in fs::read_dir(data.join("pg_wal")).unwrap() {
        let entry = entry.unwrap();
        let is_newer = !copy.join("pg_wal").join(entry.file_name()).exists();
        if entry.file_type().unwrap().is_file() && is_newer {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// `pg_basebackup --incremental` of PostgreSQL 18.6 falls for it: rows that were updated come back. When the server runs
/// again, the script is run with the directory of its summaries.
fn summaries_of_a_lost_history_are_not_believed(major: Major, script: &str) {
    let builder = Cluster::builder(major)
        .initdb_arg("--wal-segsize=1")
        .conf("summarize_wal", "on")
        .conf("autovacuum", "off");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(
        "CREATE TABLE t AS SELECT g AS id, 0 AS v, repeat('x', 500) AS pad FROM generate_series(1, 20000) g",
    );
    sql("VACUUM (FREEZE, ANALYZE) t");
    stage.cluster.stop(StopMode::Fast).unwrap();
    let copy = stage.target("copy");
    let mut cp = Command::new("cp");
    let done = cp.arg("-a").arg(stage.cluster.pgdata()).arg(&copy).status();
    assert!(done.unwrap().success());

    // The history that is lost is longer than the next one, and changes other pages.
    stage.cluster.start().unwrap();
    sql(
        "CREATE TABLE lost AS SELECT g, repeat('y', 500) FROM generate_series(1, 60000) g; CHECKPOINT",
    );
    let caught_up = "SELECT summarized_lsn >= (SELECT redo_lsn FROM pg_control_checkpoint())
        FROM pg_get_wal_summarizer_state()";
    stage
        .cluster
        .wait_for("postgres", caught_up, support::PATIENCE)
        .unwrap();
    let end = sql("SELECT pg_current_wal_lsn()");
    stage.cluster.stop(StopMode::Immediate).unwrap();
    put_over(&stage, &copy);
    stage.cluster.start().unwrap();
    let mut shell = stage.cluster.command_as_server_user(Path::new("/bin/sh"));
    let summaries = stage.cluster.pgdata().join("pg_wal/summaries");
    let done = shell.args(["-c", script]).arg(summaries).status();
    assert!(done.unwrap().success());

    stage.backup(&["--type", "full"]);
    sql("UPDATE t SET v = 1 WHERE id BETWEEN 10001 AND 10100; CHECKPOINT");
    let layer = stage.backup(&["--change-source", "summary"]);
    let is_in_range = format!("SELECT pg_current_wal_lsn() < '{end}'");
    assert_eq!(sql(&is_in_range), "t", "the lost history must be longer");
    let reason = text(&layer, "/change_source/reason");
    assert!(reason.contains("history that is lost"), "{reason}");
    let restored = stage.restore(
        "restored",
        &["--target-type", "immediate", "--target-action", "promote"],
    );
    let restored = stage.start_restored(&restored);
    let counts = "SELECT count(*) FILTER (WHERE v = 0), count(*) FILTER (WHERE v = 1) FROM t";
    assert_eq!(restored.sql("postgres", counts).unwrap(), "19900|100");
}

#[test]
fn summaries_of_a_history_that_was_overwritten_are_not_believed() {
    summaries_of_a_lost_history_are_not_believed(Major::V18, "true");
}

/// That sets the time at which a file was changed last, as all that follows does.
#[test]
fn summaries_of_a_lost_history_are_not_believed_when_their_rights_were_changed() {
    let script = r#"chmod -R u-w "$0" && chmod -R u+w "$0""#;
    summaries_of_a_lost_history_are_not_believed(Major::V17, script);
}

#[test]
fn summaries_of_a_lost_history_are_not_believed_when_they_were_linked() {
    let script = r#"cp -al "$0" "$0.linked""#;
    summaries_of_a_lost_history_are_not_believed(Major::V18, script);
}

/// Such a file is new in every respect, whatever the clock says.
#[test]
fn summaries_of_a_lost_history_are_not_believed_when_they_were_written_anew() {
    let script = r#"for file in "$0"/*; do cp "$file" "$file.new" && mv "$file.new" "$file"; done"#;
    summaries_of_a_lost_history_are_not_believed(Major::V17, script);
}

/// Nothing of the WAL names it, nor its repair.
#[test]
fn a_corrupt_page_of_the_parent_is_read_again_until_it_is_repaired() {
    let builder = Cluster::builder(Major::V18)
        .conf("summarize_wal", "on")
        .conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let script = "CREATE TABLE t AS SELECT g, repeat('x', 500) FROM generate_series(1, 1000) g;
        VACUUM t; SELECT count(*) FROM t; CHECKPOINT; SELECT pg_relation_filepath('t')";
    let printed = stage.cluster.sql("postgres", script).unwrap();
    let table = printed.lines().last().unwrap();
    let file = stage.cluster.pgdata().join(table);
    let good = fs::read(&file).unwrap();
    let set = |byte: u8| {
        let opened = OpenOptions::new().write(true).open(&file).unwrap();
        opened.write_all_at(&[byte], 3 * 8192 + 5000).unwrap();
    };
    let pgdata = stage.pgdata();
    let backup = |more: &[&str], code: i32| {
        let words = ["--output", "json", "backup", "--pgdata", &pgdata];
        let output = stage.run(&[&words[..], more].concat());
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{log}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default()
    };
    set(!good[3 * 8192 + 5000]);
    backup(&["--type", "full"], 3);
    for _ in 0..2 {
        let layer = backup(&["--change-source", "summary"], 3);
        assert_eq!(text(&layer, "/change_source/used"), "summary");
        assert_eq!(text(&layer, "/corrupt_pages/0/path"), table);
        assert_eq!(number(&layer, "/corrupt_pages/0/block"), 3);
    }
    let refused = ["--change-source", "summary", "--on-corrupt-page", "fail"];
    backup(&refused, 20);
    set(good[3 * 8192 + 5000]);
    let layer = backup(&refused, 0);
    assert_eq!(text(&layer, "/change_source/used"), "summary");
    let restored = stage.restore("restored", &["--target-type", "immediate"]);
    assert_eq!(fs::read(restored.join(table)).unwrap(), good);
}
