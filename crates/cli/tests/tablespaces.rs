//! Tablespaces whose directories are not those of the server, and what recovery does with directories that are there.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Builder, Cluster, Major, StopMode};
use support::files::copy_all;
use support::past::{label, sql};
use support::{PATIENCE, Stage, Store, namespace, process, text, to_lsn};

const USAGE: i32 = 2;
const WARNINGS: i32 = 3;
const REFUSED: i32 = 13;

/// Runs the words after `$2` as the owner of the directory `$2`, over which the directory `$1` is mounted for them alone.
const UNDER_ANOTHER: &str = r#"
other=$1 own=$2; shift 2
user=$(stat -c %u "$own") group=$(stat -c %g "$own")
mount --bind "$other" "$own"
test "$user" = "$(id -u)" || set -- setpriv --reuid "$user" --regid "$group" --clear-groups "$@"
exec "$@"
"#;

/// The code of a command that sees another directory there, and what it logs.
fn under(stage: &Stage, other: &Path, own: &Path, command: &[&str]) -> (i32, String) {
    let paths = [other, own, &stage.program].map(|path| path.display().to_string());
    let url = format!("--repo={}", stage.repository);
    let words = paths.iter().map(String::as_str);
    let words: Vec<&str> = words.chain([&*url, "--cluster=main"]).collect();
    let mut run = namespace::with_own_mounts(UNDER_ANOTHER, &[&words[..], command].concat());
    run.env("PGSTRATA_CONNECTION", stage.cluster.conninfo("postgres"));
    let output = run.output().unwrap();
    let log = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(log).unwrap(),
    )
}

#[test]
fn a_tablespace_that_is_not_the_servers_is_not_backed_up() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let far = stage.cluster.create_tablespace("far").unwrap();
    sql(
        &stage,
        "CREATE TABLE there TABLESPACE far AS SELECT generate_series(1, 1000) AS id",
    );
    sql(&stage, "CHECKPOINT");
    let pgdata = stage.pgdata();
    let backup = ["backup", "-D", &pgdata];
    stage.ok(&backup);

    // It was mounted for the server alone: nothing is there, or an old copy, or another database's files.
    let empty = stage.cluster.create_dir("empty").unwrap();
    let copy = stage.cluster.create_dir("copy").unwrap();
    // The server tells times in whole seconds.
    thread::sleep(Duration::from_millis(1100));
    copy_all(&far.join("."), &copy);
    let more = stage.cluster.create_dir("more").unwrap();
    copy_all(&far.join("."), &more);
    let version = fs::read_dir(&more).unwrap().next().unwrap().unwrap();
    let other = version.path().join("4711");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("1"), "").unwrap();
    stage.cluster.own(&more).unwrap();
    let counts = stage.layer_counts();
    for (seen, why) in [
        (&empty, "it is not there"),
        (&copy, "other times of its last changes"),
        (&more, "files of database 4711"),
    ] {
        for command in [
            &backup[..],
            &["check", "-D", &pgdata],
            &["backup", "--dry-run", "-D", &pgdata],
        ] {
            let (code, log) = under(&stage, seen, &far, command);
            assert_eq!(code, REFUSED, "{command:?}: {log}");
            assert!(log.contains("is not what the server has there"), "{log}");
            assert!(log.contains(why), "{log}");
        }
    }
    // The same one by another way.
    let (code, log) = under(&stage, &far, &far, &backup);
    assert_eq!(code, 0, "{log}");

    let away = far.join("away");
    fs::rename(far.join(version.file_name()), &away).unwrap();
    let (code, log) = stage.fails(&backup);
    assert_eq!(code, REFUSED, "{log}");
    assert!(log.contains("it is not there"), "{log}");
    fs::rename(&away, far.join(version.file_name())).unwrap();
    assert_eq!(stage.layer_counts().0, counts.0 + 1);
    stage.ok(&backup);
}

#[test]
fn what_else_lies_in_the_directory_of_a_tablespace_is_not_looked_at() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let mounted = stage.cluster.create_tablespace("mounted").unwrap();
    sql(&stage, "CREATE TABLE there TABLESPACE mounted AS SELECT 1");
    // As a file system makes it; whose else it is depends on who runs the test.
    let found = mounted.join("lost+found");
    fs::create_dir(&found).unwrap();
    fs::set_permissions(&found, fs::Permissions::from_mode(0o000)).unwrap();
    for kind in ["full", "incr"] {
        stage.ok(&["backup", "-D", &stage.pgdata(), "--type", kind]);
    }

    // The same where a tablespace is restored to: a restore writes beside it, and so does one in place.
    let other = stage.target("mounted");
    let kept = other.join("lost+found/#12");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, "found by fsck").unwrap();
    stage.cluster.own(&other).unwrap();
    let map = format!("{}={}", mounted.display(), other.display());
    let promoted = ["--target-type", "immediate", "--target-action", "promote"];
    let mapped = [&promoted[..], &["--tablespace-map", &map]].concat();
    let restored = stage.restore("restored", &mapped);
    let directory = restored.display().to_string();
    let again = ["restore", "--delta", "--target-dir", &directory];
    stage.ok(&[&again[..], &mapped].concat());
    assert_eq!(fs::read(&kept).unwrap(), b"found by fsck");
    let copy = stage.start_restored(&restored);
    assert_eq!(copy.sql("postgres", "TABLE there").unwrap(), "1");
}

/// So that data directory and tablespaces can be moved together. The server's own map has the text of the link.
#[test]
fn a_tablespace_behind_a_relative_link_is_backed_up_and_restored() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let far = stage.cluster.create_tablespace("far").unwrap();
    let rows = "SELECT generate_series(1, 1000) AS id";
    sql(
        &stage,
        &format!("CREATE TABLE there TABLESPACE far AS {rows}"),
    );
    let oid = sql(
        &stage,
        "SELECT oid FROM pg_tablespace WHERE spcname = 'far'",
    );
    stage.cluster.stop(StopMode::Fast).unwrap();
    let link = stage.cluster.pgdata().join("pg_tblspc").join(oid.trim());
    fs::remove_file(&link).unwrap();
    symlink(Path::new("../..").join(far.file_name().unwrap()), &link).unwrap();
    stage.cluster.start().unwrap();
    let full = stage.backup(&["--type", "full"]);
    let manifest = stage.manifest(text(&full, "/label"));
    let location = Path::new(text(&manifest, "/tablespaces/0/location"));
    assert_eq!(location, fs::canonicalize(&far).unwrap());
    sql(&stage, "INSERT INTO there VALUES (1001)");
    stage.backup(&["--type", "incr"]);

    let moved = stage.target("moved").display().to_string();
    let map = format!("{}={moved}", location.display());
    let promoted = ["--target-type", "immediate", "--target-action", "promote"];
    let mapped = [&promoted[..], &["--tablespace-map", &map]].concat();
    let restored = stage.restore("restored", &mapped);
    let led = fs::read_link(restored.join("pg_tblspc").join(oid.trim())).unwrap();
    assert_eq!(led, Path::new(&moved));
    let copy = stage.start_restored(&restored);
    let count = copy.sql("postgres", "SELECT count(*) FROM there").unwrap();
    assert_eq!(count, "1001");
}

#[test]
fn a_tablespace_that_is_mapped_twice_is_named_with_both_places() {
    let stage = with_a_backup(Cluster::builder(Major::V15));
    let space = stage.cluster.create_tablespace("twice").unwrap();
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    let oid = sql(
        &stage,
        "SELECT oid FROM pg_tablespace WHERE spcname = 'twice'",
    );
    let target = stage.target("restored").display().to_string();
    let places = ["a", "b"].map(|name| stage.target(name).display().to_string());
    let had = space.display().to_string();
    for second in [oid.trim(), &had] {
        let maps = [
            format!("{}={}", oid.trim(), places[0]),
            format!("{second}={}", places[1]),
        ];
        let (code, log) = stage.fails(&[
            "restore",
            "--target-dir",
            &target,
            "--tablespace-map",
            &maps[0],
            "--tablespace-map",
            &maps[1],
        ]);
        assert_eq!(code, USAGE, "{log}");
        let mapped = format!("tablespace {} is mapped more than once", oid.trim());
        let named = places.iter().all(|place| log.contains(place));
        assert!(log.contains(&mapped) && named, "{log}");
    }
    assert!(!Path::new(&target).exists());
}

#[test]
fn a_tablespace_inside_the_data_directory_is_warned_of() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let inside = Path::new(&stage.pgdata()).join("inside");
    fs::create_dir(&inside).unwrap();
    stage.cluster.own(&inside).unwrap();
    sql(
        &stage,
        &format!("CREATE TABLESPACE inside LOCATION '{}'", inside.display()),
    );
    let output = stage.run(&["backup", "-D", &stage.pgdata()]);
    let report = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(WARNINGS), "{report}");
    assert!(
        report.contains("lies inside the data directory"),
        "{report}"
    );
}

/// Rows of a table in a tablespace, and how many of them were changed.
const COUNTS: &str = "SELECT count(*) || ' ' || count(*) FILTER (WHERE state = 1) FROM rows";

/// A server that archives, with a backup.
fn with_a_backup(builder: Builder) -> Stage {
    let stage = Stage::archiving(builder.conf("autovacuum", "off"), Store::Directory);
    stage.backup(&["--type", "full"]);
    stage
}

fn make_rows(stage: &Stage, tablespace: &str) {
    let rows = "SELECT g AS id, 0 AS state FROM generate_series(1, 50000) g";
    sql(
        stage,
        &format!("CREATE TABLE rows TABLESPACE {tablespace} AS {rows}"),
    );
    stage.archive_all();
}

/// The same, after which a tablespace and rows in it were made; its directory.
fn with_a_tablespace_since_the_backup() -> (Stage, PathBuf) {
    let stage = with_a_backup(Cluster::builder(Major::V15));
    let late = stage.cluster.create_tablespace("late").unwrap();
    make_rows(&stage, "late");
    (stage, late)
}

/// A copy beside the server does not recover so far.
fn require_withheld(stage: &Stage, what: &str) {
    let target = stage.restore("beside", &["--target-action", "promote"]);
    log_of_withholding(&target, what);
}

/// What a server logs from which a segment with a tablespace is withheld.
fn log_of_withholding(target: &Path, what: &str) -> String {
    let started = Cluster::adopt(Major::V15, target).start();
    let end = Instant::now() + PATIENCE;
    loop {
        // It may let readers in before it comes so far.
        let log = match &started {
            Err(error) => format!("{error:#}"),
            Ok(copy) => copy.log_tail(60),
        };
        if log.contains("recovery creates tablespace") && log.contains("exit code 255") {
            return log;
        }
        assert!(Instant::now() < end, "{what}: {log}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn recovery_does_not_write_into_a_tablespace_of_the_server_that_lives_beside_it() {
    let (stage, _) = with_a_tablespace_since_the_backup();
    sql(&stage, "UPDATE rows SET state = 1 WHERE id <= 3000");
    sql(&stage, "CHECKPOINT");
    require_withheld(&stage, "whole");
    // Nothing of the server's is in its memory any more.
    stage.cluster.stop(StopMode::Fast).unwrap();
    stage.cluster.start().unwrap();
    assert_eq!(sql(&stage, COUNTS), "50000 3000");
    stage.cluster.amcheck().unwrap();
}

/// The segment is withheld as a whole: where it begins is what a target must be before.
#[test]
fn a_target_before_the_segment_that_makes_a_tablespace_is_reached_beside_its_server() {
    let stage = with_a_backup(Cluster::builder(Major::V15));
    let before = sql(&stage, "SELECT pg_create_restore_point('before')");
    stage.archive_all();
    let within = sql(&stage, "SELECT pg_create_restore_point('within')");
    stage.cluster.create_tablespace("late").unwrap();
    make_rows(&stage, "late");
    let at = position(&stage, &format!("'{within}'::pg_lsn"));
    let begin = at - at % (16 << 20);
    let (high, low) = (begin >> 32, begin & 0xFFFF_FFFF);
    let hint = format!("a target before {high:X}/{low:X} ");
    let target = stage.restore("within", &to_lsn(&within));
    let log = log_of_withholding(&target, "within");
    assert!(log.contains(&hint), "{hint}: {log}");
    let copy = stage.start_restored_at("before", &before);
    let spaces = "SELECT count(*) FROM pg_tablespace WHERE spcname = 'late'";
    assert_eq!(copy.sql("postgres", spaces).unwrap(), "0");
}

/// A backup of a standby begins in the middle of a segment, behind records that its recovery does not replay.
#[test]
fn a_tablespace_that_was_made_before_recovery_begins_withholds_nothing() {
    let stage = with_a_backup(Cluster::builder(Major::V15).initdb_arg("--wal-segsize=1"));
    stage.archive_all();
    stage.cluster.create_tablespace("late").unwrap();
    let behind = sql(&stage, "SELECT pg_current_wal_insert_lsn()");
    let segment = sql(&stage, &format!("SELECT pg_walfile_name('{behind}')"));
    sql(&stage, "CREATE TABLE there TABLESPACE late AS SELECT 1");
    stage.archive_all();
    let copy = stage.restore("copy", &[]);
    let get_to = |to: &str| {
        let mut command = stage.command(&["archive-get", "--fetch-ahead", "0", &segment, to]);
        // There PostgreSQL runs it.
        let output = command.current_dir(&copy).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), log)
    };
    let get = || get_to("pg_wal/RECOVERYXLOG");
    let withheld = || {
        let (got, log) = get();
        assert!(!got && log.contains("recovery creates tablespace"), "{log}");
    };
    withheld();
    // Who wants to look into it gets it, but not what a restore_command may move into pg_wal itself.
    let aside = stage.target("aside").display().to_string();
    assert!(!get_to(&aside).0);
    let (signal, put_away) = (copy.join("recovery.signal"), copy.join("put-away"));
    fs::rename(&signal, &put_away).unwrap();
    let (got, log) = get_to(&aside);
    assert!(got, "{log}");
    fs::rename(&put_away, &signal).unwrap();
    let label = copy.join("backup_label");
    let text = fs::read_to_string(&label).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    let begins = format!("START WAL LOCATION: {behind} (file {segment})\n{rest}");
    fs::write(&label, begins).unwrap();
    let (got, log) = get();
    assert!(got, "{log}");

    fs::write(&label, "START WAL LOCATION: ?\n").unwrap();
    let (got, log) = get();
    assert!(
        !got && log.contains("restore the directory once more"),
        "{log}"
    );
    // The server has taken it in: from then on pg_control says where it begins, which is the backup's start again.
    fs::remove_file(&label).unwrap();
    withheld();
}

/// A restore of the newest layer that is refused, for that reason, before the directory is a cluster.
fn require_refused(stage: &Stage, more: &[&str], why: &str) {
    let target = stage.target("refused");
    let shown = target.display().to_string();
    let (code, log) = stage.fails(&[&["restore", "--target-dir", &shown], more].concat());
    assert!(code == REFUSED && log.contains(why), "{code}: {log}");
    assert!(!target.join("global/pg_control").exists());
    fs::remove_dir_all(&target).unwrap();
}

/// The record is in the WAL that the layer needs, which lies in `pg_wal`: nobody is asked for it.
#[test]
fn no_restore_recovers_into_a_tablespace_that_was_made_while_the_backup_ran() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let first = label(&stage.backup(&["--type", "full"]));
    let backup = stage.begin_backup(&["--type", "full"]);
    stage.cluster.create_tablespace("late").unwrap();
    sql(
        &stage,
        "CREATE TABLE there TABLESPACE late AS SELECT 1 AS one",
    );
    let output = backup.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(WARNINGS));
    let why = "where there are files of a tablespace";
    require_refused(&stage, &["--target-type", "none", "--same-timeline"], why);
    let immediate = ["--target-type", "immediate"];
    require_refused(&stage, &immediate, why);
    // In place that is known while there is a cluster.
    let copy = stage.restore("copy", &[&[&*first][..], &immediate].concat());
    let shown = copy.display().to_string();
    let delta = ["restore", "--delta", "--target-dir", &shown];
    let (code, log) = stage.fails(&[&delta[..], &immediate].concat());
    assert!(code == REFUSED && log.contains(why), "{code}: {log}");
    assert!(copy.join("global/pg_control").exists(), "{log}");
}

/// It is in the list of files, and recovery leads it back to where the server has it.
#[test]
fn a_tablespace_that_was_made_while_the_backup_started_is_not_moved_in_vain() {
    // The checkpoint of its start takes six seconds. One that is asked for hurries it, and may be what the backup starts with.
    let builder = Cluster::builder(Major::V15)
        .conf("checkpoint_timeout", "30s")
        .conf("checkpoint_completion_target", "0.2");
    let stage = Stage::archiving(builder, Store::Directory);
    let rows =
        "CREATE TABLE changed AS SELECT g, repeat('x', 500) FROM generate_series(1, 50000) g";
    sql(&stage, rows);
    let pgdata = stage.pgdata();
    let backup = process::spawn(&stage, &["backup", "-D", &pgdata, "--checkpoint", "spread"]);
    let waits =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'CheckpointWriteDelay')";
    stage.cluster.wait_for("postgres", waits, PATIENCE).unwrap();
    let late = stage.cluster.create_tablespace("late").unwrap();
    sql(
        &stage,
        "CREATE TABLE there TABLESPACE late AS SELECT 1 AS one",
    );
    let output = backup.wait_with_output().unwrap();
    let (printed, _) = process::ended(output, "backup", WARNINGS);
    assert!(
        printed.contains("which --tablespace-map cannot move"),
        "{printed}"
    );
    let moved = stage.target("moved").display().to_string();
    let map = format!("{}={moved}", late.display());
    let mapped = ["--tablespace-map", &map, "--target-type", "immediate"];
    require_refused(
        &stage,
        &mapped,
        "the statement ran while the backup started",
    );
    fs::remove_dir_all(&moved).unwrap();
    stage.backup(&["--type", "full"]);
    let promoted = [&mapped[..], &["--target-action", "promote"]].concat();
    let copy = stage.start_restored(&stage.restore("later", &promoted));
    assert_eq!(copy.sql("postgres", "SELECT one FROM there").unwrap(), "1");
}

/// The server's map names it, and the list of files does not. A summarizer that stands still holds the backup between the two.
#[test]
fn a_tablespace_that_was_dropped_while_the_backup_started_is_no_riddle_to_a_restore() {
    let builder = Cluster::builder(Major::V18).conf("summarize_wal", "on");
    let stage = Stage::archiving(builder, Store::Directory);
    let short = stage.cluster.create_tablespace("short").unwrap();
    sql(
        &stage,
        "CREATE TABLE rows AS SELECT generate_series(1, 1000) AS id",
    );
    stage.backup(&["--type", "full"]);
    sql(
        &stage,
        "INSERT INTO rows SELECT generate_series(1001, 2000)",
    );
    let summarizer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsummarizer'";
    let summarizer = sql(&stage, summarizer);
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &summarizer]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    let pgdata = stage.pgdata();
    let backup = process::spawn(
        &stage,
        &["backup", "-D", &pgdata, "--change-source", "summary"],
    );
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%pg_available_wal_summaries%' AND pid <> pg_backend_pid())";
    stage.cluster.wait_for("postgres", waits, PATIENCE).unwrap();
    sql(&stage, "DROP TABLESPACE short");
    signal("-CONT");
    process::ended(backup.wait_with_output().unwrap(), "backup", 0);
    fs::remove_dir_all(&short).unwrap();
    let promoted = ["--target-type", "immediate", "--target-action", "promote"];
    let target = stage.restore("dropped", &promoted);
    assert!(!target.join("tablespace_map").exists());
    let copy = stage.start_restored(&target);
    assert_eq!(
        copy.sql("postgres", "SELECT count(*) FROM rows").unwrap(),
        "2000"
    );
    let left = "SELECT count(*) FROM pg_tablespace WHERE spcname = 'short'";
    assert_eq!(copy.sql("postgres", left).unwrap(), "0");
    assert_eq!(fs::read_dir(target.join("pg_tblspc")).unwrap().count(), 0);
}

/// Bytes of a segment of the servers below, and of the header of a page of WAL.
const SEGMENT: u64 = 1 << 20;
const PAGE: u64 = 8192;
const PAGE_HEADER: u64 = 24;

/// A position in the WAL as a number.
fn position(stage: &Stage, query: &str) -> u64 {
    let number = format!("SELECT (({query}) - '0/0')::bigint");
    sql(stage, &number).parse().unwrap()
}

/// Makes a tablespace; answers where that began and where its own record is.
fn make_tablespace(stage: &Stage, name: &str) -> (u64, u64) {
    let began = position(stage, "pg_current_wal_insert_lsn()");
    stage.cluster.create_tablespace(name).unwrap();
    let record = format!(
        "SELECT start_lsn FROM pg_get_wal_records_info('0/0'::pg_lsn + {began}, pg_current_wal_flush_lsn()) WHERE resource_manager = 'Tablespace'"
    );
    (began, position(stage, &record))
}

/// Writes WAL up to a place that lies on the same page or a later one; answers whether it came there.
fn write_up_to(stage: &Stage, goal: u64) -> bool {
    let here = || position(stage, "pg_current_wal_insert_lsn()");
    let emit = |length: u64| {
        sql(
            stage,
            &format!("SELECT pg_logical_emit_message(false, '', repeat('x', {length}))"),
        )
    };
    let began = here();
    emit(0);
    let least = here();
    let Some(missing) = (goal - least).checked_sub(least - began) else {
        return false;
    };
    emit(missing.saturating_sub((goal / PAGE - least / PAGE) * PAGE_HEADER));
    here() == goal
}

/// Makes tablespaces until the record of one begins so many bytes before a segment's end; its name.
fn make_tablespace_before_end(stage: &Stage, distance: u64) -> String {
    sql(stage, "CREATE EXTENSION pg_walinspect");
    let (began, record) = make_tablespace(stage, "first");
    let mut before = record - began;
    for attempt in 0..40 {
        let end = (position(stage, "pg_current_wal_insert_lsn()") / SEGMENT + 1) * SEGMENT;
        if !write_up_to(stage, end - distance - before) {
            sql(stage, "SELECT pg_switch_wal()");
            continue;
        }
        let name = format!("late{attempt}");
        let (began, record) = make_tablespace(stage, &name);
        if record == end - distance {
            return name;
        }
        before = record - began;
    }
    panic!("the record was never where it should be");
}

#[test]
fn a_tablespace_is_seen_whose_record_goes_on_in_the_next_segment() {
    // In the header before what it is of, behind that, and in the path.
    for distance in [8, 16, 32, 64] {
        let stage = with_a_backup(Cluster::builder(Major::V15).initdb_arg("--wal-segsize=1"));
        let late = make_tablespace_before_end(&stage, distance);
        make_rows(&stage, &late);
        require_withheld(&stage, &format!("{distance} before the end"));
    }
}

fn wait_paused(copy: &Cluster) {
    let pauses = "SELECT pg_get_wal_replay_pause_state() = 'paused'";
    copy.wait_for("postgres", pauses, PATIENCE).unwrap();
}

#[test]
fn recovery_makes_tablespaces_where_there_are_none_and_goes_on_with_its_own() {
    let (stage, late) = with_a_tablespace_since_the_backup();
    sql(&stage, "SELECT pg_create_restore_point('here')");
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    fs::rename(&late, late.with_extension("away")).unwrap();
    let late = stage.cluster.create_dir("tablespace-late").unwrap();
    let then = [
        "--target-type",
        "name",
        "--target",
        "here",
        "--target-action",
        "pause",
    ];
    let target = stage.restore("alone", &then);
    let copy = Cluster::adopt(Major::V15, &target).start().unwrap();
    wait_paused(&copy);
    assert!(fs::read_dir(&late).unwrap().next().is_some());
    // It replays the same once more.
    copy.stop(StopMode::Immediate).unwrap();
    copy.start().unwrap();
    wait_paused(&copy);
    copy.sql("postgres", "SELECT pg_wal_replay_resume()")
        .unwrap();
    copy.wait_promoted(PATIENCE).unwrap();
    assert_eq!(copy.sql("postgres", COUNTS).unwrap(), "50000 0");
}
