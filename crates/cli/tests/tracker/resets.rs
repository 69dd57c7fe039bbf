//! Who has written to files of a running server says so with `pgstrata.reset()`: the next backup compares every page, whatever
//! became of the tracker, and the one after it does not.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use pgstrata_testbed::cluster::{Major, TrackedServer};
use serde_json::Value;

use super::support::process::{document, signal, spawn, wait_until_open};
use super::support::{PATIENCE, Stage, Store, text};
use super::{fill_map, require_layer, streamed_as_backup};

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

/// Nobody can say then that it was not reset. The layer has no token, so that its child asks nothing.
#[test]
fn who_cannot_ask_the_tracker_any_more_compares_once() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let builder = server.builder().checksums(true).conf("autovacuum", "off");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(
        "CREATE ROLE backup LOGIN REPLICATION IN ROLE pg_read_all_settings;
         GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean), pg_backup_stop(boolean) TO backup",
    );
    let create = "CREATE EXTENSION pgstrata;
         GRANT USAGE ON SCHEMA pgstrata TO backup;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgstrata TO backup";
    let require = |sources: &[&str]| {
        for source in sources {
            let (used, said) = streamed_as_backup(&stage);
            assert_eq!(used, *source, "{said:#?}");
        }
    };
    sql(create);
    require(&["everything", "tracker"]);
    sql("DROP EXTENSION pgstrata");
    require(&["digest", "lsn"]);
    sql(create);
    require(&["lsn", "tracker"]);
    // A token is made, and nobody may ask about it: then it is as good as none.
    sql("REVOKE EXECUTE ON FUNCTION pgstrata.token_status(text) FROM backup");
    require(&["digest", "lsn", "lsn"]);
}
