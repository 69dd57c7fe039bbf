//! Chains of which each test says how their changes were found, and that they restore to what the server holds.

use pgstrata_testbed::cluster::{Builder, Cluster, Major, TrackedServer, require_same_dump};
use serde_json::Value;

use super::{Stage, Store, text};

/// A server that does not archive: the repository holds the WAL of backups alone.
pub fn stage(builder: Builder) -> Stage {
    let stage = Stage::silent(builder.conf("autovacuum", "off"), Store::Directory);
    sql(
        &stage,
        "CREATE TABLE old AS SELECT g AS id, 0 AS state, repeat('x', 200) AS pad FROM generate_series(1, 20000) g;
         CREATE TABLE new (id int, pad text); VACUUM (FREEZE, ANALYZE)",
    );
    stage
}

/// What the stage's server answers to that script.
pub fn sql(stage: &Stage, script: &str) -> String {
    stage.cluster.sql("postgres", script).unwrap()
}

/// What is rolled back: it changes pages of `old`, in every segment of WAL that it takes.
pub fn branch(stage: &Stage) {
    sql(
        stage,
        "UPDATE old SET state = 1 WHERE id % 3 = 0; CHECKPOINT",
    );
    sql(stage, "SELECT pg_switch_wal()");
}

/// Work that goes past every LSN of the branch, and leaves `old` alone.
pub fn go_past(stage: &Stage) {
    for _ in 0..8 {
        sql(
            stage,
            "INSERT INTO new SELECT g, repeat('n', 200) FROM generate_series(1, 1000) g",
        );
        sql(stage, "SELECT pg_switch_wal()");
    }
}

/// A default backup, with what it logged.
pub fn backup(stage: &Stage, arguments: &[&str]) -> (Value, String) {
    let pgdata = stage.pgdata();
    let all = [&["--output", "json", "backup", "-D", &pgdata], arguments].concat();
    let output = stage.run(&all);
    let report = stage.require_backup(&output);
    (report, String::from_utf8(output.stderr).unwrap())
}

/// Fails unless the changes were found by that source.
pub fn require_source(layer: &Value, source: &str) {
    let reason = text(layer, "/change_source/reason");
    assert_eq!(text(layer, "/change_source/used"), source, "{reason}");
}

/// The next backup stands on a parent of another history, says so once, and restores to what the server holds.
pub fn require_compared(stage: &Stage, parent: &str) {
    let (layer, log) = backup(stage, &[]);
    assert_eq!(text(&layer, "/parent"), parent);
    require_source(&layer, "digest");
    assert!(text(&layer, "/change_source/reason").contains("not proved to lie in the past"));
    let said = |line: &&str| line.contains("WARN") && line.contains("not proved to lie in");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
    require_restores(stage, "after-branch");
}

/// The newest layer restores to what the server holds now.
pub fn require_restores(stage: &Stage, name: &str) {
    let dump = stage.cluster.dump().unwrap();
    let then = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore(name, &then));
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
}

pub fn label(layer: &Value) -> String {
    text(layer, "/label").to_owned()
}

/// A server with WAL summaries.
pub fn summarizing(major: Major) -> Builder {
    Cluster::builder(major).conf("summarize_wal", "on")
}

/// A cluster on that server whose tracker answers from its start.
pub fn tracking(server: &TrackedServer) -> Builder {
    // So that the extension is there before the first backup.
    server.builder().conf("pgstrata.map_size", "64")
}

/// Plays a scene with a server that has the tracker.
pub fn tracked(scene: impl FnOnce(&Stage)) {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let stage = stage(tracking(&server));
    sql(&stage, "CREATE EXTENSION pgstrata");
    scene(&stage);
}
