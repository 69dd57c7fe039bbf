//! Who has written to files of a running server says so with `pgstrata.reset()`: the next backup compares every page, whatever
//! became of the tracker, and the one after it does not.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use pgstrata_testbed::cluster::{Major, TrackedServer};
use serde_json::Value;

use super::support::process::{document, signal, spawn, wait_until_open};
use super::support::{PATIENCE, Stage, Store, text};
use super::{as_backup, fill_map, require_layer, streamed_as_backup};

/// The role that takes backups, with what it needs beside the tracker.
const ROLE: &str = "CREATE ROLE backup LOGIN REPLICATION IN ROLE pg_read_all_settings;
     GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean), pg_backup_stop(boolean) TO backup";

/// The tracker, with all that the role may ask it.
const CREATE: &str = "CREATE EXTENSION pgstrata;
     GRANT USAGE ON SCHEMA pgstrata TO backup;
     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgstrata TO backup";

/// The block that is written past the server, and where it is.
const BLOCK: usize = 3;
const OFFSET: u64 = 3 * 8192;

fn page_of(file: &Path) -> Vec<u8> {
    let mut page = vec![0; 8192];
    let file = File::open(file).unwrap();
    file.read_exact_at(&mut page, OFFSET).unwrap();
    page
}

/// What a layer holds of that page of that file.
fn page_in_layer(stage: &Stage, label: &str, file: &str) -> Vec<u8> {
    let name = format!("restored-{label}");
    let target = stage.restore(&name, &[label, "--target-type", "immediate"]);
    page_of(&target.join(file))
}

/// The page has been read when an older copy of it is put in its place. Checksum and LSN of that are in order.
#[test]
fn a_reset_while_a_backup_runs_makes_the_next_one_compare() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let builder = server.builder().checksums(true).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE EXTENSION pgstrata");
    let tables = ["one", "two"];
    for table in tables {
        sql(&format!(
            "CREATE TABLE {table} AS SELECT g, repeat('x', 500) AS t FROM generate_series(1, 20000) g"
        ));
        sql(&format!("VACUUM (FREEZE) {table}"));
    }
    sql("CHECKPOINT");
    let files = tables.map(|table| sql(&format!("SELECT pg_relation_filepath('{table}')")));
    let on_disk = |nth: usize| page_of(&stage.cluster.pgdata().join(&files[nth]));
    let older = [on_disk(0), on_disk(1)];
    for table in tables {
        sql(&format!(
            "UPDATE {table} SET t = 'y' WHERE ctid = '({BLOCK},1)'"
        ));
    }
    sql("CHECKPOINT");
    let newer = [on_disk(0), on_disk(1)];

    let pgdata = stage.pgdata();
    let mut arguments = vec!["--output", "json", "backup", "--pgdata", &pgdata];
    arguments.extend(["--type", "full", "--max-rate", "8M", "--jobs", "1"]);
    let mut child = spawn(&stage, &arguments);
    let first = wait_until_open(&mut child, &files, None);
    // One file after the other.
    wait_until_open(&mut child, &files, Some(first));
    signal(&child, "-STOP");
    let file = stage.cluster.pgdata().join(&files[first]);
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&older[first], OFFSET).unwrap();
    sql("SELECT pgstrata.reset()");
    signal(&child, "-CONT");
    let stopped = document(child);

    let next = stage.backup(&[]);
    let reason = text(&next, "/change_source/reason");
    assert_eq!(text(&next, "/change_source/used"), "digest", "{reason}");
    assert!(reason.contains("it was reset by role"), "{reason}");
    let in_layer = |layer: &Value| page_in_layer(&stage, text(layer, "/label"), &files[first]);
    assert_ne!(older[first], newer[first]);
    assert!(in_layer(&stopped) == newer[first], "it was not read before");
    assert!(on_disk(first) == older[first], "the server has written it");
    assert!(in_layer(&next) == older[first], "it is not the disk's");
    require_layer(&stage, "tracker");
}

/// With `fsync` off, and when the map is full, the history is void as well, and changes are found without the tracker.
#[test]
fn rule_4_12_a_reset_counts_whether_changes_are_tracked_or_not() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let builder = server.builder().checksums(true);
    let builder = builder
        .conf("pgstrata.map_size", "1")
        .conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let reset = || sql("SELECT pgstrata.reset()");
    sql("CREATE EXTENSION pgstrata");
    require_layer(&stage, "everything");
    reset();
    for (fsync, seen) in [("off", "history_reason LIKE '%fsync%'"), ("on", "tracking")] {
        stage.cluster.append_conf("fsync", fsync).unwrap();
        stage.cluster.reload().unwrap();
        let seen = format!("SELECT {seen} FROM pgstrata.state()");
        let waiting = stage.cluster.wait_for("postgres", &seen, PATIENCE);
        waiting.unwrap();
    }
    require_layer(&stage, "digest");
    require_layer(&stage, "tracker");
    reset();
    fill_map(&stage);
    require_layer(&stage, "digest");
    // Of a layer that was made without a token it is known where it began.
    require_layer(&stage, "lsn");
    reset();
    require_layer(&stage, "digest");
    require_layer(&stage, "lsn");
}

/// Nobody can say then that it was not reset. The layer has no token, so its child asks where the WAL was at the last reset.
#[test]
fn who_cannot_ask_about_a_token_any_more_compares_once() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let builder = server.builder().checksums(true).conf("autovacuum", "off");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(ROLE);
    let require = |sources: &[&str]| {
        for source in sources {
            let (used, said) = streamed_as_backup(&stage);
            assert_eq!(used, *source, "{said:#?}");
        }
    };
    sql(CREATE);
    require(&["everything", "tracker"]);
    sql("DROP EXTENSION pgstrata");
    require(&["digest", "lsn"]);
    sql(CREATE);
    require(&["lsn", "tracker"]);
    // A token is made, and nobody may ask about it: then it is as good as none.
    sql("REVOKE EXECUTE ON FUNCTION pgstrata.token_status(text) FROM backup");
    require(&["digest", "lsn", "lsn"]);
}

/// What keeps the role from asking the tracker, what lets it ask again, and what a backup advises meanwhile. The extension is in
/// another database, for which a backup needs a third connection.
const SHUT_OUT: [[&str; 3]; 2] = [
    [
        "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgstrata FROM backup",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgstrata TO backup",
        "tracker install-check",
    ],
    [
        "ALTER ROLE backup CONNECTION LIMIT 2",
        "ALTER ROLE backup CONNECTION LIMIT -1",
        "connection limit",
    ],
];

/// A layer by the role, whose connections from before have ended, and the log. Changes are found so.
fn made_by_role(stage: &Stage, source: &str) -> (Value, String) {
    let none = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = 'backup')";
    stage.cluster.wait_for("postgres", none, PATIENCE).unwrap();
    let output = as_backup(stage, &[]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let layer = stage.require_backup(&output);
    assert_eq!(text(&layer, "/change_source/used"), source, "{log}");
    (layer, log)
}

/// No layer has a token then.
#[test]
fn a_reset_is_not_forgotten_while_nobody_can_ask_the_tracker() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let builder = server.builder().checksums(true).conf("autovacuum", "off");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |database: &str, script: &str| stage.cluster.sql(database, script).unwrap();
    sql("postgres", ROLE);
    sql("postgres", "CREATE DATABASE ops");
    sql("ops", CREATE);
    sql(
        "postgres",
        "CREATE TABLE t AS SELECT g, repeat('x', 500) AS t FROM generate_series(1, 200) g",
    );
    sql("postgres", "CHECKPOINT");
    let file = sql("postgres", "SELECT pg_relation_filepath('t')");
    let path = stage.cluster.pgdata().join(&file);
    let older = page_of(&path);
    let update = format!("UPDATE t SET t = 'y' WHERE ctid = '({BLOCK},1)'");
    sql("postgres", &update);
    sql("postgres", "CHECKPOINT");
    // Either has an LSN from before all layers.
    let pages = [older, page_of(&path)];
    assert!(pages[0] != pages[1], "the server has not written it");
    for source in ["everything", "tracker"] {
        made_by_role(&stage, source);
    }
    for (page, [shut, open, advice]) in pages.iter().zip(SHUT_OUT) {
        sql("ops", shut);
        made_by_role(&stage, "digest");
        let (_, log) = made_by_role(&stage, "digest");
        let mut lines = log.lines();
        let advised = |line: &str| line.contains("each backup compares") && line.contains(advice);
        assert!(lines.any(advised), "{shut}: {log}");
        let written = OpenOptions::new().write(true).open(&path).unwrap();
        written.write_all_at(page, OFFSET).unwrap();
        sql("ops", "SELECT pgstrata.reset()");
        let (layer, _) = made_by_role(&stage, "digest");
        let held = page_in_layer(&stage, text(&layer, "/label"), &file);
        assert!(held == *page, "{shut}: it is not the disk's");
        sql("ops", open);
        for source in ["lsn", "tracker"] {
            made_by_role(&stage, source);
        }
    }
}
