//! The tracker as change source: chains made with it restore to what the server
//! held, and what it does not know is never taken for unchanged.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::thread;
use std::time::Duration;

use pgstrata_lab::cluster::{Cluster, Major, StopMode, require_same_dump};
use serde_json::Value;
use support::tracked::Server;
use support::{Stage, Store, number, text};

/// A cluster with the extension in a database that backups do not connect to.
fn tracked_stage(server: &Server) -> Stage {
    let stage = Stage::archiving(
        server.builder().conf("autovacuum_naptime", "1"),
        Store::Directory,
    );
    let sql = |database: &str, script: &str| stage.cluster.sql(database, script).unwrap();
    sql("postgres", "CREATE DATABASE elsewhere");
    sql("elsewhere", "CREATE EXTENSION pgstrata");
    stage.cluster.pgbench(&["-i", "-q", "-s", "2"]).unwrap();
    sql(
        "postgres",
        "CREATE TABLE quiet AS SELECT g, repeat('x', 500) AS t FROM generate_series(1, 100000) g;
         VACUUM (FREEZE, ANALYZE)",
    );
    stage
}

/// What a backup by tracker must be, whatever it found.
fn require_by_tracker(layer: &Value) {
    assert_eq!(
        text(layer, "/change_source/used"),
        "tracker",
        "{}",
        text(layer, "/change_source/reason")
    );
    let (marked, stored) = (
        number(layer, "/totals/pages_marked"),
        number(layer, "/totals/pages_stored") + number(layer, "/totals/pages_zero"),
    );
    assert!(0 < stored && stored <= marked, "{stored} of {marked}");
    // The quiet table, 57 MiB, is not read; 12 MiB are for files that have no pages, and for
    // the free space maps, all of which are compared after a crash.
    let read = number(layer, "/totals/bytes_read");
    assert!(
        read <= marked * 8192 + (12 << 20),
        "{read} bytes read for {marked} pages"
    );
}

/// Everything that makes, moves, cuts and drops files.
fn disturb(cluster: &Cluster, round: usize) {
    let sql = |database: &str, script: &str| cluster.sql(database, script).unwrap();
    sql(
        "postgres",
        &format!(
            "CREATE TABLE IF NOT EXISTS cut AS SELECT g FROM generate_series(1, 20000) g;
             DELETE FROM cut WHERE g > 5000;
             VACUUM (TRUNCATE) cut;
             INSERT INTO cut SELECT generate_series(1, 3000);
             CREATE TABLE made{round} AS SELECT * FROM pg_class;
             CREATE INDEX ON made{round} (relname);
             DROP TABLE IF EXISTS made{};
             REINDEX TABLE pgbench_branches;
             DELETE FROM pgbench_accounts WHERE aid % 1000 = {round};",
            round.wrapping_sub(2)
        ),
    );
    for strategy in ["wal_log", "file_copy"] {
        let copy = format!("copy_{strategy}");
        sql("elsewhere", &format!("DROP DATABASE IF EXISTS {copy}"));
        sql(
            "elsewhere",
            &format!("CREATE DATABASE {copy} TEMPLATE elsewhere STRATEGY {strategy}"),
        );
    }
}

fn chains_by_tracker_and_by_digest_restore_the_same(major: Major) {
    let server = Server::copy(major);
    let stage = tracked_stage(&server);
    stage.backup(&["--type", "full", "--require-tracker"]);
    for round in 0..3 {
        let load = stage
            .cluster
            .background_pgbench(&["-n", "-c", "2", "-t", "400"])
            .unwrap();
        disturb(&stage.cluster, round);
        // The newest layer is asked for, then the oldest: any token of the history will do.
        let kind = if round == 1 { "diff" } else { "incr" };
        let layer = stage.backup(&["--type", kind, "--change-source", "tracker"]);
        require_by_tracker(&layer);
        load.wait().unwrap();
        match round {
            0 => stage.cluster.restart().unwrap(),
            1 => {
                disturb(&stage.cluster, 7);
                let load = stage
                    .cluster
                    .background_pgbench(&["-n", "-c", "2", "-T", "60"])
                    .unwrap();
                // A crash within a second after a checkpoint without files voids the history.
                thread::sleep(Duration::from_secs(2));
                stage.cluster.kill9().unwrap();
                load.kill().unwrap();
                stage.cluster.start().unwrap();
            }
            _ => {}
        }
    }
    disturb(&stage.cluster, 8);
    let by_tracker = stage.backup(&["--require-tracker"]);
    require_by_tracker(&by_tracker);
    let by_digest = stage.backup(&["--type", "diff", "--change-source", "digest"]);
    assert_eq!(text(&by_digest, "/change_source/used"), "digest");
    stage.cluster.pgbench(&["-n", "-t", "200"]).unwrap();
    let lsn = stage
        .cluster
        .sql("postgres", "SELECT pg_create_restore_point('moment')")
        .unwrap();
    let dump = stage.cluster.dump().unwrap();
    stage.archive_all();
    let target = ["--type", "lsn", "--target", &lsn];
    for (name, layer) in [("by-tracker", &by_tracker), ("by-digest", &by_digest)] {
        let label = text(layer, "/label");
        let mut all = vec![label, "--target-action", "promote"];
        all.extend(target);
        let restored = stage.start_restored(&stage.restore(name, &all));
        require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
        if name == "by-tracker" {
            restored.amcheck().unwrap();
            restored.check_visibility_maps().unwrap();
        }
    }
}

#[test]
fn chains_by_tracker_and_by_digest_restore_the_same_on_15() {
    chains_by_tracker_and_by_digest_restore_the_same(Major::V15);
}

#[test]
fn chains_by_tracker_and_by_digest_restore_the_same_on_18() {
    chains_by_tracker_and_by_digest_restore_the_same(Major::V18);
}

/// The log of a backup that asked for the tracker and did not get it, and the report's reason.
fn fallback(stage: &Stage) -> (String, String) {
    let pgdata = stage.pgdata();
    let arguments = ["backup", "--change-source", "tracker", "--pgdata", &pgdata];
    let mut command = stage.command(&["--output", "json"]);
    let output = command.args(arguments).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_ne!(text(&report, "/change_source/used"), "tracker");
    (log, text(&report, "/change_source/reason").to_owned())
}

/// What the tracker cannot know is said once, aloud; with `--require-tracker` it is an error;
/// and the layer made without it can be stood upon with it again.
fn require_fallback(stage: &Stage, why: &str) {
    let pgdata = stage.pgdata();
    let (code, refusal) = stage.fails(&["backup", "--require-tracker", "--pgdata", &pgdata]);
    assert_eq!(code, 13, "{refusal}");
    assert!(refusal.contains(why), "{refusal}");
    let (log, reason) = fallback(stage);
    assert!(
        reason.contains(&format!("not by tracker: {why}")),
        "{reason}"
    );
    let said = log.lines().filter(|line| line.contains("not by tracker"));
    assert_eq!(
        said.filter(|line| line.contains("WARN")).count(),
        1,
        "{log}"
    );
}

#[test]
fn what_voids_the_history_falls_back_aloud() {
    let server = Server::copy(Major::V18);
    let stage = Stage::archiving(server.builder(), Store::Directory);
    let cluster = &stage.cluster;
    let change = || {
        let script =
            "CREATE TABLE IF NOT EXISTS t (i int); INSERT INTO t SELECT generate_series(1, 1000)";
        cluster.sql("postgres", script).unwrap();
    };
    // The library runs, the extension was not created.
    require_layer(&stage, "everything");
    require_fallback(
        &stage,
        "the library is loaded, but no database has the extension",
    );
    cluster
        .sql("postgres", "CREATE EXTENSION pgstrata")
        .unwrap();
    let report = stage.backup(&[]);
    assert!(text(&report, "/change_source/reason").contains("was made without it"));
    change();
    require_layer(&stage, "tracker");
    // The server was started without the library.
    cluster.append_conf("shared_preload_libraries", "").unwrap();
    cluster.restart().unwrap();
    require_fallback(&stage, "the server runs without the pgstrata library");
    cluster
        .append_conf("shared_preload_libraries", "pgstrata")
        .unwrap();
    cluster.restart().unwrap();
    change();
    // Made without the library, the parent has no token.
    require_layer(&stage, "lsn");
    change();
    require_layer(&stage, "tracker");
    // A control file that the server has not written.
    cluster.stop(StopMode::Fast).unwrap();
    cluster
        .run("pg_resetwal", &["-D", &stage.pgdata()])
        .unwrap();
    cluster.start().unwrap();
    change();
    require_fallback(&stage, "the token is not of this history");
    change();
    require_layer(&stage, "tracker");
}

fn require_layer(stage: &Stage, source: &str) {
    let layer = stage.backup(&[]);
    let used = text(&layer, "/change_source/used");
    assert_eq!(used, source, "{}", text(&layer, "/change_source/reason"));
}
