//! The tracker as change source: chains made with it restore to what the server
//! held, and what it does not know is never taken for unchanged.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

#[path = "tracker/resets.rs"]
mod resets;
mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::Duration;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, TrackedServer, require_same_dump};
use serde_json::Value;
use support::process::{document, signal, spawn, wait_until_open};
use support::standby::{restartpoint, switch_wal_all_the_time};
use support::{PATIENCE, Stage, Store, number, text};

const WARNING: i32 = 3;
const REFUSED: i32 = 13;

/// A run of the program that need not succeed: exit code and JSON document.
fn outcome(stage: &Stage, arguments: &[&str]) -> (i32, Value) {
    let pgdata = stage.pgdata();
    let mut command = stage.command(&["--output", "json"]);
    let output = command.args(arguments).args(["--pgdata", &pgdata]).output();
    let output = output.unwrap();
    let document = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), document)
}

/// A cluster with the extension in a database that backups do not connect to.
fn tracked_stage(server: &TrackedServer, checksums: bool) -> Stage {
    let builder = server.builder().checksums(checksums);
    let stage = Stage::archiving(builder.conf("autovacuum_naptime", "1"), Store::Directory);
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
    if let Some(audit) = layer.get("audit").filter(|audit| !audit.is_null()) {
        assert!(number(audit, "/pages") > 5000, "{audit}");
        return;
    }
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

fn chains_by_tracker_and_by_digest_restore_the_same(major: Major, checksums: bool) {
    let server = TrackedServer::copy(major).unwrap();
    let stage = tracked_stage(&server, checksums);
    stage.backup(&["--type", "full", "--require-tracker"]);
    for round in 0..3 {
        let load = stage
            .cluster
            .background_pgbench(&["-n", "-c", "2", "-t", "400"])
            .unwrap();
        disturb(&stage.cluster, round);
        // The newest layer is asked for, then the oldest: any token of the history will do.
        let kind = if round == 1 { "diff" } else { "incr" };
        let mut options = vec!["--type", kind, "--change-source", "tracker"];
        if round == 2 {
            // After a restart, a crash, and under load: every page, hint bits aside.
            options.extend(["--audit", "100%"]);
        }
        let layer = stage.backup(&options);
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
    let (lsn, dump) = stage.moment();
    let target = ["--target-type", "lsn", "--target", &lsn];
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
    chains_by_tracker_and_by_digest_restore_the_same(Major::V15, false);
}

#[test]
fn chains_by_tracker_and_by_digest_restore_the_same_on_18() {
    chains_by_tracker_and_by_digest_restore_the_same(Major::V18, true);
}

/// Each server tracks its own files: a chain of the standby stands on the standby's tokens, the
/// primary's say nothing about it, and both outlive the standby's promotion.
#[test]
fn a_standby_is_backed_up_by_its_own_tracker() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let stage = tracked_stage(&server, true);
    stage.backup(&["--type", "full", "--require-tracker"]);
    let standby = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(Major::V18, &standby)
        .bindir(server.bindir())
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .start()
        .unwrap();
    let (pgdata, conninfo) = (
        standby.pgdata().display().to_string(),
        standby.conninfo("postgres"),
    );
    let backup = |more: &[&str]| {
        let of = ["backup", "-D", &pgdata, "-d", &conninfo, "--wal", "stream"];
        stage.json(&[&of[..], more].concat())
    };
    let switching = switch_wal_all_the_time(&stage);
    restartpoint(&stage, &standby);
    // Its parent was made on the primary.
    let first = backup(&["--type", "incr"]);
    let reason = text(&first, "/change_source/reason");
    assert!(
        reason.contains("the token is not of this history"),
        "{reason}"
    );
    for round in 0..2 {
        disturb(&stage.cluster, round);
        stage.cluster.pgbench(&["-n", "-t", "200"]).unwrap();
        restartpoint(&stage, &standby);
        let layer = backup(&["--type", "incr", "--require-tracker", "--audit", "100%"]);
        require_by_tracker(&layer);
        assert_eq!(layer["from_standby"], true);
    }
    drop(switching);
    stage.cluster.stop(StopMode::Fast).unwrap();
    standby.sql("postgres", "SELECT pg_promote()").unwrap();
    standby.wait_promoted(PATIENCE).unwrap();
    disturb(&standby, 2);
    require_by_tracker(&backup(&["--type", "incr", "--require-tracker"]));
    let dump = standby.dump().unwrap();
    let last = backup(&["--type", "incr", "--require-tracker", "--audit", "100%"]);
    require_by_tracker(&last);
    let restored = stage.start_restored(
        &stage.restore("of-standby", &["--target-type", "none", "--same-timeline"]),
    );
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
    restored.check_visibility_maps().unwrap();
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
fn rule_4_12_what_voids_the_history_falls_back_aloud() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let stage = Stage::archiving(server.builder(), Store::Directory);
    let cluster = &stage.cluster;
    let change = || {
        let script =
            "CREATE TABLE IF NOT EXISTS t (i int); INSERT INTO t SELECT generate_series(1, 1000)";
        cluster.sql("postgres", script).unwrap();
    };
    // The library runs, the extension was not created.
    require_layer(&stage, "everything");
    let (code, status) = outcome(&stage, &["tracker", "status"]);
    assert_eq!(code, 3, "{status}");
    let (code, check) = outcome(&stage, &["tracker", "install-check"]);
    assert_eq!(code, 13, "{check}");
    assert_eq!(failed_items(&check), ["extension"]);
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
    let (code, status) = outcome(&stage, &["tracker", "status"]);
    assert_eq!((code, text(&status, "/database")), (0, "postgres"));
    // Of each backup, one from before it and one from after it.
    assert_eq!(number(&status, "/state/tokens"), 4);
    let (code, check) = outcome(&stage, &["tracker", "install-check"]);
    assert_eq!((code, failed_items(&check).len()), (0, 0), "{check}");
    require_rights(&stage);
    require_update(&stage);
    // The server was started without the library.
    cluster.append_conf("shared_preload_libraries", "").unwrap();
    cluster.restart().unwrap();
    require_fallback(&stage, "the server runs without the pgstrata library");
    let (code, check) = outcome(&stage, &["tracker", "install-check"]);
    assert_eq!((code, failed_items(&check)), (13, vec!["library"]));
    cluster
        .append_conf("shared_preload_libraries", "pgstrata")
        .unwrap();
    cluster.restart().unwrap();
    change();
    // Made without the library, the parent has no token, and nothing proves that it lies in the past.
    require_layer(&stage, "digest");
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

/// A role without rights learns the statements that give them, and then has them.
fn require_rights(stage: &Stage) {
    let role = "CREATE ROLE backup LOGIN REPLICATION IN ROLE pg_read_all_settings";
    stage.cluster.sql("postgres", role).unwrap();
    let connection = stage.cluster.conninfo_as("backup", "postgres");
    let check = ["tracker", "install-check", "--connection", &connection];
    let (code, report) = outcome(stage, &check);
    assert_eq!((code, failed_items(&report)), (13, vec!["rights"]));
    let items = report["items"].as_array().unwrap();
    let mut hints = items.iter().filter_map(|item| item["hint"].as_str());
    let statements = hints.next().unwrap().split_once(": ").unwrap().1;
    stage.cluster.sql("postgres", statements).unwrap();
    let (code, report) = outcome(stage, &check);
    assert_eq!((code, failed_items(&report).len()), (0, 0), "{report}");
}

/// Functions of an older version are named with the statement that renews them.
fn require_update(stage: &Stage) {
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("DROP EXTENSION pgstrata; CREATE EXTENSION pgstrata VERSION '1.0'");
    let (code, report) = outcome(stage, &["tracker", "install-check"]);
    let items = report["items"].as_array().unwrap();
    let warning = |item: &&Value| item["status"] == "warning";
    let warned: Vec<&Value> = items.iter().filter(warning).collect();
    let [item] = warned.as_slice() else {
        panic!("{report}")
    };
    assert_eq!((code, text(item, "/name")), (3, "version"), "{report}");
    let (database, statement) = text(item, "/hint").split_once(": ").unwrap();
    assert_eq!(database, "in database \"postgres\"");
    sql(statement);
    let (code, report) = outcome(stage, &["tracker", "install-check"]);
    assert_eq!(code, 0, "{report}");
}

/// What is missing is named with what gets it, wherever somebody meets it.
#[test]
fn a_server_without_the_trackers_parts_says_how_to_get_them() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let (code, report) = outcome(&stage, &["tracker", "install-check"]);
    assert_eq!(code, 13, "{report}");
    assert_eq!(failed_items(&report), ["files", "library"]);
    let files = &report["items"].as_array().unwrap()[1];
    let hint = text(files, "/hint");
    assert!(hint.contains("postgresql-server-dev-15"), "{hint}");
    assert!(hint.contains("make -C ext install"), "{hint}");
    let (code, status) = outcome(&stage, &["tracker", "status"]);
    assert_eq!(code, 3, "{status}");
    let hint = text(&status, "/problem/hint");
    assert!(hint.contains("pgstrata tracker install-check"), "{hint}");
    let (code, refused) = outcome(&stage, &["backup", "--require-tracker"]);
    assert_eq!(code, 13, "{refused}");
    let error = text(&refused, "/message");
    assert!(
        error.ends_with("cannot be used: the server runs without the pgstrata library"),
        "{error}"
    );
    let hint = text(&refused, "/hint");
    assert!(hint.contains("pgstrata tracker install-check"), "{hint}");
}

fn failed_items(report: &Value) -> Vec<&str> {
    let items = report["items"].as_array().unwrap().iter();
    let failed = items.filter(|item| item["status"] == "failed");
    failed.map(|item| item["name"].as_str().unwrap()).collect()
}

/// PostgreSQL drops a session's temporary slots with any error: what the tracker cannot do must not cost the
/// backup the slot that keeps its WAL.
#[test]
fn rule_13_9_an_error_of_the_tracker_costs_a_backup_nothing() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let builder = server.builder().conf("pgstrata.map_size", "1");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE EXTENSION pgstrata");
    sql(
        "CREATE ROLE backup LOGIN REPLICATION IN ROLE pg_read_all_settings;
         GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean) TO backup;
         GRANT EXECUTE ON FUNCTION pg_backup_stop(boolean) TO backup",
    );
    let may = |how: &str| {
        let (act, whom) = match how {
            "GRANT" => ("GRANT", "TO"),
            _ => ("REVOKE", "FROM"),
        };
        sql(&format!(
            "{act} USAGE ON SCHEMA pgstrata {whom} backup;
             {act} EXECUTE ON ALL FUNCTIONS IN SCHEMA pgstrata {whom} backup"
        ));
    };
    let backup = || streamed_as_backup(&stage);
    let without = |source: &str, why: &str| {
        let (used, said) = backup();
        assert_eq!(used, source, "{said:#?}");
        let [line] = said.as_slice() else {
            panic!("{said:#?}")
        };
        assert!(line.contains(why), "{line}");
    };
    without("everything", "permission denied for schema pgstrata");
    may("GRANT");
    assert_eq!(backup(), ("lsn".to_owned(), Vec::new()));
    assert_eq!(backup(), ("tracker".to_owned(), Vec::new()));
    sql("REVOKE EXECUTE ON FUNCTION pgstrata.changes(text) FROM backup");
    let refused = as_backup(&stage, &["--require-tracker"]);
    let log = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(REFUSED), "{log}");
    assert!(
        log.contains("permission denied for function changes"),
        "{log}"
    );
    may("REVOKE");
    // Nobody can say that it was not reset.
    without("digest", "permission denied for schema pgstrata");
    may("GRANT");
    assert_eq!(backup(), ("lsn".to_owned(), Vec::new()));
    stage.cluster.append_conf("fsync", "off").unwrap();
    stage.cluster.reload().unwrap();
    let off = "SELECT NOT current_setting('fsync')::bool";
    stage.cluster.wait_for("postgres", off, PATIENCE).unwrap();
    without("lsn", "fsync");
    stage.cluster.append_conf("fsync", "on").unwrap();
    stage.cluster.restart().unwrap();
    assert_eq!(backup().0, "digest");
    assert_eq!(backup(), ("tracker".to_owned(), Vec::new()));
    fill_map(&stage);
    without("lsn", "full");
}

/// Changes more relations than a map of 1 MB has room for.
fn fill_map(stage: &Stage) {
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(
        "DO $$ BEGIN FOR n IN 1..400 LOOP EXECUTE format('CREATE TABLE many%s AS SELECT 1 AS i', n); END LOOP; END $$",
    );
    sql("CHECKPOINT");
    assert_eq!(sql("SELECT overflow FROM pgstrata.state()"), "t");
}

/// A backup by a role with few rights that stores its WAL itself: the change source, and what it said of the tracker.
fn streamed_as_backup(stage: &Stage) -> (String, Vec<String>) {
    let output = as_backup(stage, &[]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Backups within one second are dated apart, and say so: that is another subject.
    let said = log.lines().filter(|line| {
        line.contains("WARN") && !line.contains("the clock is behind the latest layer")
    });
    (
        text(&report, "/change_source/used").to_owned(),
        said.map(str::to_owned).collect(),
    )
}

fn as_backup(stage: &Stage, more: &[&str]) -> Output {
    let (pgdata, conninfo) = (
        stage.pgdata(),
        stage.cluster.conninfo_as("backup", "postgres"),
    );
    let mut command = stage.command(&["--output", "json", "backup", "-D", &pgdata]);
    command
        .args(["-d", &conninfo, "--wal", "stream"])
        .args(more);
    command.output().unwrap()
}

/// A page is changed past the server: a backup without audit cannot know, one with it
/// refuses, and no later one trusts the tracker, until the pages were compared.
#[test]
fn an_audit_finds_a_page_that_the_tracker_did_not_see() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    // Without checksums the page is as good as any other.
    let stage = tracked_stage(&server, false);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    stage.backup(&["--type", "full"]);
    let file = sql("SELECT pg_relation_filepath('quiet')");
    stage.cluster.restart().unwrap();
    let honest = stage.backup(&["--audit", "100"]);
    assert_eq!(text(&honest, "/change_source/used"), "tracker");
    assert!(number(&honest, "/audit/pages") > 5000, "{honest}");
    alter(&stage.cluster.pgdata().join(&file), 17);

    // An audit draws the same pages from the same seed, and says which seed it was.
    let (code, refusal) = outcome(&stage, &["backup", "--audit", "100%", "--audit-seed", "42"]);
    let message = text(&refusal, "/message");
    assert_eq!(code, 22, "{message}");
    assert!(
        message.contains(&format!("block 17 of \"{file}\"")),
        "{message}"
    );
    assert!(message.contains("seed 42"), "{message}");
    let layers = stage.json(&["info"]);
    assert_eq!(layers["layers"].as_array().unwrap().len(), 2);

    // The layers before are not trusted by anybody any more.
    for arguments in [
        &["--require-tracker"][..],
        &["--require-tracker", "--type", "diff"],
    ] {
        let mut all = vec!["backup"];
        all.extend(arguments);
        let (code, refusal) = outcome(&stage, &all);
        assert_eq!(code, 13);
        assert!(
            text(&refusal, "/message").contains("the audit of"),
            "{refusal}"
        );
    }
    let next = stage.backup(&["--change-source", "tracker", "--audit", "1%"]);
    assert_eq!(text(&next, "/change_source/used"), "digest");
    assert!(text(&next, "/change_source/reason").contains("block 17"));
    assert!(number(&next, "/totals/pages_stored") > 0);
    let after = stage.backup(&["--require-tracker", "--audit", "100%"]);
    assert_eq!(text(&after, "/change_source/used"), "tracker");
}

/// A relation changes while it is read, and is dropped before the audit judges: with its
/// file its marks are gone, and replay drops it as well.
#[test]
fn what_is_dropped_while_it_is_audited_is_no_finding() {
    let server = TrackedServer::copy(Major::V15).unwrap();
    let stage = tracked_stage(&server, true);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let tables = ["one", "two", "three"];
    for table in tables {
        sql(&format!(
            "CREATE TABLE {table} WITH (autovacuum_enabled = off) AS TABLE quiet"
        ));
    }
    for table in tables {
        sql(&format!("VACUUM (FREEZE) {table}"));
    }
    // Or the backup's own checkpoint would write them, after its token.
    sql("CHECKPOINT");
    let files = tables.map(|table| sql(&format!("SELECT pg_relation_filepath('{table}')")));
    stage.backup(&["--type", "full"]);

    // One table after the other is read, each for some seconds.
    let pgdata = stage.pgdata();
    let mut arguments = vec!["--output", "json", "backup", "--pgdata", &pgdata];
    arguments.extend(["--audit", "100%", "--require-tracker"]);
    arguments.extend(["--max-rate", "8M", "--jobs", "1"]);
    let mut child = spawn(&stage, &arguments);
    let first = wait_until_open(&mut child, &files, None);
    let table = tables[first];
    sql(&format!("DELETE FROM {table} WHERE g = 100000"));
    sql("CHECKPOINT");
    wait_until_open(&mut child, &files, Some(first));
    sql(&format!("DROP TABLE {table}"));
    let report = document(child);
    assert_eq!(text(&report, "/change_source/used"), "tracker");
    assert!(number(&report, "/audit/pages") > 15_000, "{report}");
    let target = stage.restore("dropped", &[]);
    let restored = stage.start_restored(&target);
    let left = format!("SELECT to_regclass('{table}') IS NULL");
    assert_eq!(restored.sql("postgres", &left).unwrap(), "t");
}

/// More pages are written while they are audited than are kept to be judged.
#[test]
fn an_audit_under_load_passes_however_much_is_written_meanwhile() {
    let server = TrackedServer::copy(Major::V15).unwrap();
    let stage = tracked_stage(&server, true);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let tables = ["one", "two"];
    for table in tables {
        sql(&format!(
            "CREATE TABLE {table} WITH (autovacuum_enabled = off) AS TABLE quiet"
        ));
        sql(&format!("VACUUM (FREEZE) {table}"));
    }
    sql("CHECKPOINT");
    let files = tables.map(|table| sql(&format!("SELECT pg_relation_filepath('{table}')")));
    stage.backup(&["--type", "full"]);

    let pgdata = stage.pgdata();
    let mut arguments = vec!["--output", "json", "backup", "--pgdata", &pgdata];
    arguments.extend(["--audit", "100%", "--require-tracker"]);
    arguments.extend(["--max-rate", "8M", "--jobs", "1"]);
    let mut child = spawn(&stage, &arguments);
    let first = wait_until_open(&mut child, &files, None);
    // The other table changes before it is read.
    signal(&child, "-STOP");
    sql(&format!("UPDATE {} SET g = g", tables[1 - first]));
    sql("CHECKPOINT");
    signal(&child, "-CONT");
    let report = document(child);
    assert_eq!(text(&report, "/change_source/used"), "tracker");
    assert!(number(&report, "/audit/pages") > 10_000, "{report}");
    stage.backup(&["--require-tracker", "--audit", "100%"]);
    // Nobody can say any more what was written meanwhile: the layer is none the worse for that.
    let mut child = spawn(&stage, &arguments);
    let first = wait_until_open(&mut child, &files, None);
    signal(&child, "-STOP");
    sql(&format!("UPDATE {} SET g = g", tables[1 - first]));
    sql("CHECKPOINT");
    stage
        .cluster
        .sql("elsewhere", "SELECT pgstrata.reset()")
        .unwrap();
    signal(&child, "-CONT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(WARNING),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let warned = report["warnings"].to_string();
    assert!(warned.contains("came to no end"), "{warned}");
    assert!(report["audit"].is_null(), "{report}");
}

/// Changes one byte in the middle of a block, past the server.
fn alter(file: &Path, block: u64) {
    flip(file, block * 8192 + 6000, 1);
}

/// Flips bits of one byte of a file, past the server.
fn flip(file: &Path, at: u64, bits: u8) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= bits;
    file.write_all_at(&byte, at).unwrap();
}

/// What reaches a disk before a crash and that no WAL repeats is counted by kind, and
/// passes; what only looks like it does not.
#[test]
fn an_audit_counts_what_needs_no_wal_and_finds_what_looks_like_it() {
    let server = TrackedServer::copy(Major::V15).unwrap();
    let stage = tracked_stage(&server, false);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(
        "CREATE TABLE fresh (g int, place point) WITH (autovacuum_enabled = false);
         INSERT INTO fresh SELECT g, point(g, g % 7) FROM generate_series(1, 5000) g;
         CREATE INDEX fresh_place ON fresh USING spgist (place);
         CHECKPOINT",
    );
    stage.backup(&["--type", "full"]);
    stage.cluster.restart().unwrap();
    stage.backup(&["--require-tracker", "--audit", "100%"]);
    let path = |relation: &str| {
        let path = sql(&format!("SELECT pg_relation_filepath('{relation}')"));
        stage.cluster.pgdata().join(path)
    };
    let (heap, index, quiet) = (path("fresh"), path("fresh_place"), path("quiet"));

    // PD_ALL_VISIBLE of one page, HEAP_XMIN_COMMITTED of the first tuple of another (48 bytes
    // from the end), and a byte of what the metapage remembers.
    flip(&heap, 3 * 8192 + 10, 4);
    flip(&heap, 5 * 8192 - 48 + 21, 1);
    flip(&index, 40, 1);
    let audited = stage.backup(&["--require-tracker", "--audit", "100%"]);
    for kind in ["all_visible", "hint_bits", "last_used_pages"] {
        let count = number(&audited, &format!("/audit/harmless/{kind}"));
        assert_eq!(count, 1, "{kind}: {audited:#}");
    }

    let found = |what: &str| {
        let (code, refusal) = outcome(&stage, &["backup", "--audit", "100%"]);
        assert_eq!(code, 22, "{what}: {refusal:#}");
    };
    // The map has the bit of block 6, and the parent's page has not.
    let mut map = vec![0_u8; 8192];
    for (at, value) in [(12, 24_u16), (14, 8192), (16, 8192), (18, 8196)] {
        map[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    map[24 + 1] = 1 << 4;
    std::fs::write(heap.with_file_name(format!("{}_vm", text_of(&heap))), map).unwrap();
    flip(&heap, 6 * 8192 + 10, 4);
    found("a page that the map calls all-visible");
    flip(&heap, 6 * 8192 + 10, 4);
    stage.backup(&[]);
    // A page that ceased to be all-visible.
    flip(&quiet, 9 * 8192 + 10, 4);
    found("a page that is not all-visible any more");
}

fn text_of(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Without full pages a hint bit is logged by a record that recovery has nothing to do
/// for: the page, written before the crash, is marked by nobody.
#[test]
fn hint_bits_logged_without_their_page_are_no_finding() {
    let server = TrackedServer::copy(Major::V15).unwrap();
    let builder = server.builder().checksums(true);
    let builder = builder
        .conf("full_page_writes", "off")
        .conf("autovacuum", "off")
        .conf("shared_buffers", "1MB");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE DATABASE elsewhere");
    stage
        .cluster
        .sql("elsewhere", "CREATE EXTENSION pgstrata")
        .unwrap();
    sql(
        "CREATE TABLE crowd AS SELECT g, repeat('x', 500) AS t FROM generate_series(1, 20000) g;
         VACUUM FREEZE crowd;
         CREATE TABLE fresh (g int);
         INSERT INTO fresh SELECT generate_series(1, 20000);
         CHECKPOINT",
    );
    stage.backup(&["--type", "full"]);
    // The second reading writes what the first one left in memory.
    sql("SELECT count(*) FROM fresh; SELECT count(*) FROM crowd");
    sql("SELECT pg_switch_wal()");
    stage.cluster.stop(StopMode::Immediate).unwrap();
    stage.cluster.start().unwrap();
    let audited = stage.backup(&["--require-tracker", "--audit", "100%"]);
    let hints = number(&audited, "/audit/harmless/logged_hint_bits");
    assert!(hints > 10, "{audited:#}");
    let rows = sql("SELECT count(*) FROM fresh");
    let restored = stage.restore(
        "restored",
        &["--target-type", "immediate", "--target-action", "promote"],
    );
    let restored = stage.start_restored(&restored);
    let same = restored.sql("postgres", "SELECT count(*) FROM fresh");
    assert_eq!(same.unwrap(), rows);
}

fn require_layer(stage: &Stage, source: &str) {
    let layer = stage.backup(&[]);
    let used = text(&layer, "/change_source/used");
    assert_eq!(used, source, "{}", text(&layer, "/change_source/reason"));
}
