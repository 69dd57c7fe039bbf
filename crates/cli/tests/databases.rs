//! Databases that are moved, copied and dropped while a backup runs: a layer is right, or there is none.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::hint;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Background, Builder, Cluster, Major};
use rustix::process::{Pid, Signal, kill_process};
use support::vault::Vault;
use support::{PATIENCE, SLOWLY, Stage, Store, process};

const REFUSED: i32 = 13;

/// A server with a database `source` in a tablespace of its own.
fn stage(major: Major) -> Stage {
    staged(Cluster::builder(major))
}

fn staged(builder: Builder) -> Stage {
    let builder = builder.conf("allow_in_place_tablespaces", "on");
    let stage = Stage::archiving(builder, Store::Directory);
    let server = &stage.cluster;
    for statement in [
        "CREATE TABLESPACE side LOCATION ''",
        "CREATE DATABASE source TABLESPACE side",
    ] {
        server.sql("postgres", statement).unwrap();
    }
    let filled = "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n";
    server.sql("source", filled).unwrap();
    server.sql("postgres", "CHECKPOINT").unwrap();
    stage
}

/// A full backup, with these statements when it is in the middle.
fn backup_beside(stage: &Stage, statements: &[&str]) -> Output {
    let backup = stage.begin_backup(&["--type", "full"]);
    for statement in statements {
        stage.cluster.sql("postgres", statement).unwrap();
    }
    backup.wait_with_output().unwrap()
}

/// Restores the newest layer, and requires the table to be in `database`.
fn require_kept(stage: &Stage, database: &str) {
    let immediate = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.restore("kept", &immediate);
    let copy = stage.start_restored(&restored);
    let rows = copy.sql(database, "SELECT count(*) FROM kept").unwrap();
    assert_eq!(rows, "1000");
}

fn require_refused(stage: &Stage, output: &Output, why: &str) {
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(REFUSED), "{log}");
    assert!(
        log.contains(why) && log.contains("leave the database empty"),
        "{log}"
    );
    assert_eq!(stage.layer_counts(), (0, 0));
    stage.wait_out_of_backup_mode();
}

fn a_database_that_is_moved_under_a_backup_is_never_restored_empty(major: Major) {
    let stage = stage(major);
    let output = backup_beside(&stage, &["ALTER DATABASE source SET TABLESPACE pg_default"]);
    require_refused(&stage, &output, "was moved from \"pg_tblspc/");
    stage.backup(&["--type", "full"]);
    require_kept(&stage, "source");
}

#[test]
fn a_database_that_is_moved_under_a_backup_is_never_restored_empty_on_15() {
    a_database_that_is_moved_under_a_backup_is_never_restored_empty(Major::V15);
}

#[test]
fn a_database_that_is_moved_under_a_backup_is_never_restored_empty_on_18() {
    a_database_that_is_moved_under_a_backup_is_never_restored_empty(Major::V18);
}

/// The directory of the database `source`.
fn directory_of_source(server: &Cluster) -> PathBuf {
    let catalog = server.sql("source", "SELECT pg_relation_filepath('pg_class')");
    let catalog = server.pgdata().join(catalog.unwrap());
    catalog.parent().unwrap().to_owned()
}

/// Moves the database `source` into the default tablespace, and stops the server's process as soon as `is_time`.
fn stopped_mover(server: &Cluster, is_time: impl Fn() -> bool) -> (Background, Pid) {
    let asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'mover'";
    let mut psql = server.command("psql");
    psql.env("PGAPPNAME", "mover")
        .args(["-X", "-d", "postgres"]);
    psql.args(["-c", "SELECT pg_sleep(0.3)"]);
    psql.args(["-c", "ALTER DATABASE source SET TABLESPACE pg_default"]);
    let mover = server.background(psql).unwrap();
    server
        .wait_for("postgres", &format!("SELECT EXISTS ({asked})"), PATIENCE)
        .unwrap();
    let id = server.sql("postgres", asked).unwrap();
    let id = Pid::from_raw(id.parse().unwrap()).unwrap();
    let end = Instant::now() + PATIENCE;
    while !is_time() {
        assert!(Instant::now() < end, "{}", mover.output());
        hint::spin_loop();
    }
    // It may have ended by now.
    kill_process(id, Signal::STOP).ok();
    (mover, id)
}

/// How many files a directory has, if it is there.
fn files_in(directory: &Path) -> Option<usize> {
    fs::read_dir(directory).ok().map(Iterator::count)
}

/// Moves it until the server's process is stopped while it copies the files.
fn stopped_in_the_middle_of_a_move(stage: &Stage) -> (Background, Pid) {
    let server = &stage.cluster;
    let sql = |query: &str| server.sql("postgres", query).unwrap();
    let number = sql("SELECT oid FROM pg_database WHERE datname = 'source'");
    let source = directory_of_source(server);
    let copy = server.pgdata().join("base").join(&number);
    for _ in 0..50 {
        let (mover, id) = stopped_mover(server, || files_in(&copy).is_some_and(|files| files > 0));
        // A mover that was too fast for the signal has removed the source already.
        if files_in(&source).is_some_and(|files| files_in(&copy).unwrap() < files) {
            return (mover, id);
        }
        kill_process(id, Signal::CONT).ok();
        mover.wait().unwrap();
        sql("ALTER DATABASE source SET TABLESPACE side");
    }
    panic!("the copy was never caught");
}

/// Its copy was there when the backup began, and the record of it came afterwards.
#[test]
fn a_database_whose_move_had_begun_before_a_backup_is_never_restored_empty() {
    let stage = stage(Major::V15);
    let (mover, id) = stopped_in_the_middle_of_a_move(&stage);
    let backup = stage.begin_backup(&["--type", "full"]);
    kill_process(id, Signal::CONT).unwrap();
    mover.wait().unwrap();
    let output = backup.wait_with_output().unwrap();
    require_refused(&stage, &output, "was moved from \"pg_tblspc/");
    stage.backup(&["--type", "full"]);
    require_kept(&stage, "source");
}

/// The directory that it leaves still looks as it did, but for the files that are gone.
#[test]
fn a_database_whose_old_directory_is_still_being_removed_is_never_restored_without_files() {
    let stage = stage(Major::V15);
    let server = &stage.cluster;
    let source = directory_of_source(server);
    // It takes the backup some seconds to get to the end.
    let more = "CREATE TABLE more AS SELECT repeat('x', 1000) FROM generate_series(1, 60000)";
    server.sql("postgres", more).unwrap();
    for _ in 0..20 {
        // So many that their removal can be seen.
        for number in 5_000_000..5_001_500 {
            fs::write(source.join(number.to_string()), "").unwrap();
        }
        let backup = stage.begin_backup(&["--type", "full"]);
        // It removes them in this order, too.
        let first = fs::read_dir(&source).unwrap().next().unwrap().unwrap();
        let (mover, id) = stopped_mover(server, || !first.path().exists());
        let was_caught = source.exists();
        let output = backup.wait_with_output().unwrap();
        kill_process(id, Signal::CONT).ok();
        mover.wait().unwrap();
        if was_caught {
            return require_refused(&stage, &output, "was moved from \"pg_tblspc/");
        }
        let back = "ALTER DATABASE source SET TABLESPACE side";
        server.sql("postgres", back).unwrap();
    }
    panic!("the removal was never caught");
}

/// Waits until a session of that application does this.
fn wait_until(stage: &Stage, application: &str, what: &str) {
    let asked = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE";
    let asked = format!("{asked} application_name = '{application}' AND {what})");
    let server = &stage.cluster;
    server.wait_for("postgres", &asked, PATIENCE).unwrap();
}

/// A full backup that waits for the checkpoint of its start. That comes behind the one of another session, which takes minutes.
fn waiting_backup(stage: &Stage) -> (Background, Child) {
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    // Pages to write, over minutes.
    sql("DROP TABLE IF EXISTS dirty");
    sql("CREATE TABLE dirty AS SELECT g, repeat('x', 500) AS t FROM generate_series(1, 20000) g");
    // The backup's own checkpoint comes behind this one, and what happens until then before it.
    let mut other = stage.cluster.command("psql");
    let spread = "SELECT pg_backup_start('other', false)";
    other.env("PGAPPNAME", "other").args(["-c", spread]);
    let other = stage.cluster.background(other).unwrap();
    wait_until(stage, "other", "wait_event = 'CheckpointDone'");
    let pgdata = stage.pgdata();
    let backup = ["backup", "-D", &pgdata, "--type", "full"];
    let patient = ["--checkpoint", "spread"];
    let backup = process::spawn(stage, &[&backup[..], &patient, &SLOWLY].concat());
    wait_until(stage, "pgstrata backup", "wait_event = 'CheckpointStart'");
    (other, backup)
}

/// A full backup with these statements while it waits for the checkpoint of its start, and those when it has started.
fn backup_with_a_slow_start(stage: &Stage, waiting: &str, started: &[&str]) -> Output {
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    let (other, backup) = waiting_backup(stage);
    sql(waiting);
    // Both hurry then.
    sql("CHECKPOINT");
    other.wait().unwrap();
    for statement in started {
        sql(statement);
    }
    backup.wait_with_output().unwrap()
}

/// A server whose checkpoints take minutes unless somebody hurries.
fn slow_stage() -> Stage {
    let builder = Cluster::builder(Major::V15)
        .conf("checkpoint_timeout", "10min")
        .conf("checkpoint_completion_target", "0.9");
    staged(builder)
}

#[test]
fn databases_that_come_while_a_backup_starts_are_known_to_it() {
    let stage = slow_stage();
    let born = "CREATE DATABASE born TEMPLATE source STRATEGY wal_log TABLESPACE pg_default";
    let copied = [
        "CREATE DATABASE copy TEMPLATE born STRATEGY file_copy",
        "DROP DATABASE born",
    ];
    let output = backup_with_a_slow_start(&stage, born, &copied);
    require_refused(&stage, &output, "was copied file by file");
    // What came before the start and is no copy of the dropped one hinders nobody.
    let output = backup_with_a_slow_start(&stage, born, &["DROP DATABASE copy"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    require_kept(&stage, "born");
}

#[test]
fn a_database_whose_source_is_dropped_under_a_backup_is_never_restored_empty() {
    let stage = stage(Major::V15);
    let copy = "CREATE DATABASE copy TEMPLATE source STRATEGY file_copy";
    let output = backup_beside(&stage, &[copy, "DROP DATABASE source"]);
    require_refused(&stage, &output, "was copied file by file");
}

/// Copies the database `source` file by file, and drops its table. No checkpoint has removed the file of that yet.
fn copy_and_drop(stage: &Stage) {
    let server = &stage.cluster;
    let path = server.sql("source", "SELECT pg_relation_filepath('kept')");
    let path = server.pgdata().join(path.unwrap());
    let copy = "CREATE DATABASE born TEMPLATE source STRATEGY file_copy";
    server.sql("postgres", copy).unwrap();
    server.sql("source", "DROP TABLE kept").unwrap();
    let left = fs::metadata(path).map(|file| file.len());
    assert_eq!(left.ok(), Some(0), "it does not lie there empty");
}

/// A full backup with this while it stands still: its list is made, and it has not come to the tablespace of `source`.
fn stopped_backup_beside(stage: &Stage, act: impl FnOnce()) -> Output {
    let backup = stage.begin_backup(&["--type", "full"]);
    process::signal(&backup, "-STOP");
    act();
    process::signal(&backup, "-CONT");
    backup.wait_with_output().unwrap()
}

#[test]
fn a_database_whose_source_loses_a_table_under_a_backup_is_never_restored_without_it() {
    let stage = stage(Major::V15);
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    // Read before `source`, for two seconds.
    sql("CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)");
    let output = stopped_backup_beside(&stage, || copy_and_drop(&stage));
    require_refused(&stage, &output, "was copied file by file");
    // A table of another database hinders nobody.
    let output = stopped_backup_beside(&stage, || {
        sql("CREATE DATABASE another TEMPLATE source STRATEGY file_copy");
        sql("DROP TABLE filler");
    });
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
}

/// As when its file system is unmounted. Files that have not been read then look like those of tables that were dropped.
#[test]
fn a_tablespace_that_goes_away_under_a_backup_is_not_taken_for_dropped_tables() {
    let stage = stage(Major::V15);
    // Read before `source`, for two seconds.
    let filler = "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)";
    stage.cluster.sql("postgres", filler).unwrap();
    let space = directory_of_source(&stage.cluster);
    let space = space.parent().unwrap();
    let away = space.with_extension("away");
    let output = stopped_backup_beside(&stage, || fs::rename(space, &away).unwrap());
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(REFUSED), "{log}");
    assert!(log.contains("is not what the server has there"), "{log}");
    assert_eq!(stage.layer_counts(), (0, 0));
    fs::rename(&away, space).unwrap();
    stage.backup(&["--type", "full"]);
    require_kept(&stage, "source");
}

/// It has started, and takes long to make its list, as after a long search for changes.
#[test]
fn a_database_whose_source_loses_a_table_before_the_list_is_never_restored_without_it() {
    let stage = slow_stage();
    let (other, backup) = waiting_backup(&stage);
    process::signal(&backup, "-STOP");
    stage.cluster.sql("postgres", "CHECKPOINT").unwrap();
    other.wait().unwrap();
    let started = "state = 'idle' AND query LIKE '%pg_backup_start(%'";
    wait_until(&stage, "pgstrata backup", started);
    copy_and_drop(&stage);
    process::signal(&backup, "-CONT");
    let output = backup.wait_with_output().unwrap();
    require_refused(&stage, &output, "was copied file by file");
}

#[test]
fn databases_that_come_with_the_wal_and_go_disturb_no_backup() {
    let stage = stage(Major::V15);
    let copy = "CREATE DATABASE copy TEMPLATE source STRATEGY wal_log TABLESPACE pg_default";
    let output = backup_beside(&stage, &[copy, "DROP DATABASE source"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    require_kept(&stage, "copy");
}

/// A sealed cluster with a database `source`, before which a backup reads for ten seconds.
fn sealed() -> Vault {
    let vault = Vault::new(Major::V15);
    let filler = "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)";
    let kept = "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n";
    for (database, statement) in [
        ("postgres", "CREATE DATABASE filled"),
        ("postgres", "CREATE DATABASE source"),
        ("filled", filler),
        ("source", kept),
        ("source", "CREATE TABLE goes AS SELECT 1"),
        ("postgres", "CHECKPOINT"),
    ] {
        vault.stage.cluster.sql(database, statement).unwrap();
    }
    vault.stage.archive_all();
    vault
}

/// A full backup by who cannot read what he stores, with these statements, each in its database, when it is in the middle. When
/// it ends the WAL with which it began lies in the archive alone.
fn sealed_backup_beside(vault: &Vault, statements: &[(&str, &str)]) -> Output {
    let (stage, pgdata) = (&vault.stage, vault.stage.pgdata());
    let backup = ["backup", "--pgdata", &pgdata, "--type", "full"];
    let mut command = vault.command("writer", &[&backup[..], &SLOWLY].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut runs_until = |is_time: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !is_time() {
            assert!(child.try_wait().unwrap().is_none(), "it ended too early");
            assert!(Instant::now() < end);
            thread::sleep(Duration::from_millis(100));
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
    };
    let layers = stage.objects().join("vault/layer");
    runs_until(&|| {
        let found = fs::read_dir(&layers).into_iter().flatten();
        let mut packs = found.map(|layer| layer.unwrap().path().join("pack-000000"));
        packs.any(|pack| pack.exists())
    });
    let sql = |database: &str, script: &str| stage.cluster.sql(database, script).unwrap();
    let segment = sql("postgres", "SELECT pg_walfile_name(pg_current_wal_lsn())");
    for (database, statement) in statements {
        sql(database, statement);
    }
    let segment = stage.cluster.pgdata().join("pg_wal").join(segment);
    let finish =
        "SELECT pg_logical_emit_message(false, '', ''); SELECT pg_switch_wal(); CHECKPOINT";
    runs_until(&|| {
        sql("postgres", finish);
        !segment.exists()
    });
    child.wait_with_output().unwrap()
}

/// Made with its WAL, page by page, while a table of another database went.
#[test]
fn a_database_that_comes_voids_no_sealed_backup_under_which_tables_go() {
    let vault = sealed();
    let born = "CREATE DATABASE born TEMPLATE source STRATEGY wal_log";
    let output = sealed_backup_beside(
        &vault,
        &[
            ("source", "DROP TABLE goes"),
            ("postgres", born),
            ("postgres", "CHECKPOINT"),
        ],
    );
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let target = vault.stage.target("restored");
    let words = ["restore", "--target-dir", target.to_str().unwrap()];
    let until = ["--target-type", "immediate", "--target-action", "promote"];
    vault.ok("one", &[&words[..], &until].concat());
    let copy = vault.stage.start_restored(&target);
    let rows = copy.sql("born", "SELECT count(*) FROM kept").unwrap();
    assert_eq!(rows, "1000");
}

#[test]
fn a_database_that_may_be_a_copy_of_what_is_not_whole_voids_a_sealed_backup() {
    let logged = "CREATE DATABASE born STRATEGY wal_log";
    let copied = "CREATE DATABASE born TEMPLATE source STRATEGY file_copy";
    for (born, database, went, why) in [
        (
            logged,
            "postgres",
            "DROP DATABASE source",
            "one was removed",
        ),
        (copied, "source", "DROP TABLE kept", "one lost a file"),
    ] {
        let vault = sealed();
        let statements = [("postgres", born), (database, went)];
        let settled = ("postgres", "CHECKPOINT");
        let output = sealed_backup_beside(&vault, &[&statements[..], &[settled]].concat());
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(REFUSED), "{went}: {log}");
        let told = log.contains("a database was made") && log.contains(why);
        assert!(told && log.contains("cannot be read"), "{went}: {log}");
    }
}
