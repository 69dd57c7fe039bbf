//! Backups of standbys whose primary does nothing: the primary is asked to finish the WAL segment in which the backup
//! ends; who cannot be asked is named at once; and a parent that ended after the standby's last restartpoint is compared.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Builder, Cluster, Major, StopMode, require_same_dump};
use support::standby::{backup_of, catch_up, restartpoint, standby_of};
use support::{PATIENCE, Stage, Store, text};

const WARNINGS: i32 = 3;
const SERVER: i32 = 16;

/// A server that writes nothing by itself for as long as a test takes.
fn idle(major: Major) -> Builder {
    Cluster::builder(major)
        .conf("autovacuum", "off")
        .conf("checkpoint_timeout", "1h")
        .conf("bgwriter_lru_maxpages", "0")
}

fn words(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

fn json(stage: &Stage, standby: &Cluster, more: &[&str]) -> serde_json::Value {
    let all = backup_of(standby, more);
    stage.json(&words(&all))
}

/// A chain from the standby of a primary that nobody uses, which is asked to finish WAL. Both layers start at the same restartpoint, the second
/// one before the first one ended.
fn rule_4_11_a_parent_from_after_the_restartpoint_is_compared(major: Major) {
    let stage = Stage::archiving(idle(major), Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE ROLE replicator LOGIN REPLICATION;
         CREATE TABLE numbers AS SELECT g, repeat('x', 200) AS t FROM generate_series(1, 20000) g");
    let follows = stage.cluster.conninfo_as("replicator", "postgres");
    let standby = standby_of(
        &stage,
        &format!("{follows} gssencmode=prefer sslcompression=0"),
    );
    sql("INSERT INTO numbers SELECT g, 'before the full one' FROM generate_series(1, 500) g");
    catch_up(&stage, &standby);
    // Its own setting plays no part: it writes no WAL.
    standby.append_conf("full_page_writes", "off").unwrap();
    standby.reload().unwrap();
    let full = json(&stage, &standby, &["--type", "full"]);
    assert_eq!(full["from_standby"], true);
    let planned = json(&stage, &standby, &["--dry-run", "--checkpoint", "auto"]);
    let reason = text(&planned, "/checkpoint");
    assert_eq!(reason, "fast: the server is a standby");

    sql("UPDATE numbers SET t = 'since' WHERE g % 1000 = 0");
    catch_up(&stage, &standby);
    let dump = standby.dump().unwrap();
    for source in ["auto", "lsn", "summary"] {
        let layer = json(
            &stage,
            &standby,
            &["--type", "incr", "--change-source", source],
        );
        let reason = text(&layer, "/change_source/reason");
        assert_eq!(layer["start_lsn"], full["start_lsn"], "{source}");
        assert_eq!(text(&layer, "/change_source/used"), "digest", "{source}");
        assert!(reason.contains("last restartpoint"), "{source}: {reason}");
    }
    stage.ok(&["verify", "--deep"]);
    let until = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("restored", &until));
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
    restored.check_visibility_maps().unwrap();
}

#[test]
fn an_idle_primary_is_asked_and_a_parent_from_after_the_restartpoint_is_compared_on_15() {
    rule_4_11_a_parent_from_after_the_restartpoint_is_compared(Major::V15);
}

#[test]
fn an_idle_primary_is_asked_and_a_parent_from_after_the_restartpoint_is_compared_on_18() {
    rule_4_11_a_parent_from_after_the_restartpoint_is_compared(Major::V18);
}

/// Replay stands still behind what the standby has: a query holds it, or somebody has paused it.
#[test]
fn a_standby_that_replays_later_stores_what_it_has_received() {
    let stage = Stage::archiving(idle(Major::V15), Store::Directory);
    let standby = standby_of(&stage, &stage.cluster.conninfo("postgres"));
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE numbers AS SELECT generate_series(1, 1000) AS id");
    catch_up(&stage, &standby);
    let paused = "SELECT pg_get_wal_replay_pause_state() = 'paused'";
    standby
        .sql("postgres", "SELECT pg_wal_replay_pause()")
        .unwrap();
    sql("INSERT INTO numbers VALUES (1001)");
    standby.wait_for("postgres", paused, PATIENCE).unwrap();
    let all = [
        "--type",
        "full",
        "--wal",
        "stream",
        "--archive-timeout",
        "20s",
    ];
    let layer = json(&stage, &standby, &all);
    assert_eq!(layer["from_standby"], true);
    let until = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("restored", &until));
    let count = "SELECT count(*) FROM numbers";
    assert_eq!(restored.sql("postgres", count).unwrap(), "1000");
}

/// A standby, and one that follows it.
fn two_standbys(stage: &Stage) -> (Cluster, Cluster) {
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let first = standby_of(stage, &stage.cluster.conninfo("postgres"));
    let directory = stage.restore("second", &["--target-type", "standby"]);
    let second = Cluster::adopt(Major::V15, &directory)
        .conf("primary_conninfo", &first.conninfo("postgres"))
        .start()
        .unwrap();
    catch_up(stage, &second);
    (first, second)
}

/// A backup that stores its own WAL and has begun to copy files.
fn slow_backup(stage: &Stage, standby: &Cluster) -> Child {
    let slow = ["--type", "full", "--wal", "stream", "--max-rate", "16M"];
    let all = backup_of(standby, &slow);
    let mut command = stage.command(&words(&all));
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let started = "SELECT count(*) = 1 FROM pg_stat_activity
        WHERE application_name = 'pgstrata backup' AND state = 'idle' AND query LIKE '%wal_replay_lsn%'";
    standby.wait_for("postgres", started, PATIENCE).unwrap();
    child
}

fn archived(stage: &Stage, segment: &str) -> PathBuf {
    stage.objects().join("main/wal/00000001").join(segment)
}

/// The standby goes on where the other one was promoted: its own file of the old timeline's last segment ends there, and no
/// server has finished that.
#[test]
fn a_segment_in_which_the_timeline_was_left_is_not_stored_as_a_whole_one() {
    let stage = Stage::archiving(
        idle(Major::V15).initdb_arg("--wal-segsize=1"),
        Store::Directory,
    );
    let (first, second) = two_standbys(&stage);
    let before = stage.layer_counts();
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE before AS SELECT 1");
    let left = sql("SELECT pg_walfile_name(pg_current_wal_lsn())");
    catch_up(&stage, &second);
    // The backup will end where the standby is now, or later.
    second.sql("postgres", "CHECKPOINT").unwrap();
    let child = slow_backup(&stage, &second);
    first.sql("postgres", "SELECT pg_promote()").unwrap();
    for table in ["one", "two", "three"] {
        let work = format!("CREATE TABLE {table} AS SELECT 1");
        first.sql("postgres", &work).unwrap();
        first.sql("postgres", "SELECT pg_switch_wal()").unwrap();
    }
    let followed = "SELECT count(*) = 1 FROM pg_class WHERE relname = 'three'";
    second.wait_for("postgres", followed, PATIENCE).unwrap();
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let object = archived(&stage, &left);
    assert!(!object.exists(), "{log}");
    assert_eq!(output.status.code(), Some(13), "{log}");
    assert!(
        log.contains("from timeline 1, on which the backup started, to timeline 2"),
        "{log}"
    );
    assert_eq!(stage.layer_counts(), before);

    // Nor is it taken from somebody's hand.
    let file = second.pgdata().join("pg_wal").join(&left);
    let file = file.display().to_string();
    let (code, log) = stage.fails(&["archive-push", &file]);
    assert_eq!(code, 13, "{log}");
    assert!(log.contains("timeline 2 leaves timeline 1"), "{log}");
    assert!(!object.exists());

    // The promotion was a mistake: the primary has not stopped, and its own file arrives.
    drop((first, second));
    stage.archive_all();
    assert!(object.exists());
    stage.ok(&["verify"]);
}

/// The line breaks behind the record of a switch: the standby has replayed that, and its file still has what it held
/// when it had another name.
#[test]
fn a_segment_is_stored_when_what_is_behind_its_switch_has_come() {
    let stage = Stage::archiving(
        idle(Major::V15).initdb_arg("--wal-segsize=1"),
        Store::Directory,
    );
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    stage.backup(&["--type", "full"]);
    let directory = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(Major::V15, &directory).prepare().unwrap();
    let follows = stage.cluster.conninfo("postgres");
    standby.append_conf("primary_conninfo", &follows).unwrap();
    standby.start().unwrap();
    stage.set_archive_command("false");
    sql("CREATE TABLE before AS SELECT 1");
    catch_up(&stage, &standby);
    standby.sql("postgres", "CHECKPOINT").unwrap();
    for (name, value) in [
        ("primary_conninfo", ""),
        ("wal_retrieve_retry_interval", "100ms"),
    ] {
        standby.append_conf(name, value).unwrap();
    }
    standby.reload().unwrap();
    let broken = "SELECT count(*) = 0 FROM pg_stat_wal_receiver";
    standby.wait_for("postgres", broken, PATIENCE).unwrap();

    sql("CREATE TABLE last AS SELECT 1");
    let name = sql("SELECT pg_walfile_name(pg_current_wal_lsn())");
    let end = sql("SELECT pg_switch_wal()");
    let segment = |server: &Cluster| server.pgdata().join("pg_wal").join(&name);
    let whole = fs::read(segment(&stage.cluster)).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let used = (used + 1).next_multiple_of(8192);
    assert!(used < whole.len());
    let options = File::options().write(true).open(segment(&standby));
    let file = options.unwrap();
    file.write_all_at(&vec![7; whole.len() - used], u64::try_from(used).unwrap())
        .unwrap();
    file.write_all_at(&whole[..used], 0).unwrap();
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'::pg_lsn");
    standby.wait_for("postgres", &replayed, PATIENCE).unwrap();

    let log = stage.cluster.socket_dir().join("backup.log");
    let all = backup_of(&standby, &["--type", "full", "--wal", "stream"]);
    let mut command = stage.command(&words(&all));
    let mut child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !said().contains(&format!(", waiting for WAL segment {name}")) {
        assert!(child.try_wait().unwrap().is_none(), "{}", said());
        assert!(Instant::now() < deadline, "{}", said());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!archived(&stage, &name).exists());
    file.write_all_at(&whole, 0).unwrap();
    assert!(child.wait().unwrap().success(), "{}", said());
    assert!(archived(&stage, &name).exists());
    // The primary's archiver compares it with its own.
    stage.begin_archiving();
    stage.archive_all();
}

/// A standby of a standby that is promoted while the other one is backed up: its layer would have two timelines.
#[test]
fn a_standby_that_followed_to_another_timeline_is_told_at_once_and_backed_up_again() {
    let stage = Stage::archiving(idle(Major::V15), Store::Directory);
    let (first, second) = two_standbys(&stage);
    let before = stage.layer_counts();
    let child = slow_backup(&stage, &second);
    first.sql("postgres", "SELECT pg_promote()").unwrap();
    let work = "CREATE TABLE later AS SELECT g FROM generate_series(1, 1000) g; CHECKPOINT";
    first.sql("postgres", work).unwrap();
    let followed = "SELECT count(*) = 1 FROM pg_class WHERE relname = 'later'";
    second.wait_for("postgres", followed, PATIENCE).unwrap();
    second.sql("postgres", "CHECKPOINT").unwrap();
    let begun = Instant::now();
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(13), "{log}");
    assert!(
        log.contains("from timeline 1, on which the backup started, to timeline 2"),
        "{log}"
    );
    assert!(
        begun.elapsed() < PATIENCE,
        "it waited for WAL that nobody writes"
    );
    assert_eq!(stage.layer_counts(), before);

    // By now its last restartpoint is on the new one.
    let follows = first.conninfo("postgres");
    let again = ["--type", "full", "--wal", "stream", "--primary", &follows];
    let layer = json(&stage, &second, &again);
    assert_eq!(layer["timeline"], 2);
}

/// The very server that is copied is promoted, and runs `then` at once. The copy would last for half a minute.
fn a_promotion_ends_the_copy(stage: &Stage, standby: &Cluster, (wal, then): (&str, &str)) {
    let before = stage.layer_counts();
    let slow = ["--type", "full", "--wal", wal, "--max-rate", "2M"];
    let mut command = stage.command(&words(&backup_of(standby, &slow)));
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let started = "SELECT count(*) = 1 FROM pg_stat_activity
        WHERE application_name = 'pgstrata backup' AND state = 'idle'
          AND (query LIKE '%pg_backup_start%' OR query LIKE '%wal_replay_lsn%')";
    standby.wait_for("postgres", started, PATIENCE).unwrap();
    // By then it copies.
    thread::sleep(Duration::from_secs(1));
    let promote = format!("SELECT pg_promote(); {then}");
    standby.sql("postgres", &promote).unwrap();
    let promoted = Instant::now();
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    require_told_of_promotion((output.status, promoted.elapsed()), &log);
    assert_eq!(stage.layer_counts(), before);
    let left = "SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name LIKE 'pgstrata%'";
    standby.wait_for("postgres", left, PATIENCE).unwrap();
}

/// How a backup has ended, and how long after the promotion.
fn require_told_of_promotion((status, took): (ExitStatus, Duration), log: &str) {
    assert_eq!(status.code(), Some(13), "{log}");
    assert!(
        log.contains("the standby was promoted while it was backed up"),
        "{log}"
    );
    assert!(took < Duration::from_secs(15), "{took:?}: {log}");
}

/// The checkpoint takes the new timeline out of the control file's minimum recovery point, before anybody has looked.
#[test]
fn a_standby_that_is_promoted_under_its_backup_is_told_at_once_though_a_checkpoint_has_ended() {
    let stage = Stage::archiving(idle(Major::V15), Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let standby = standby_of(&stage, &stage.cluster.conninfo("postgres"));
    a_promotion_ends_the_copy(&stage, &standby, ("stream", "CHECKPOINT"));
}

/// A standby that archives into its primary's repository, after `first`.
fn archiving_standby(stage: &Stage, first: &str) -> Cluster {
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    stage.backup(&["--type", "full"]);
    let directory = stage.restore("standby", &["--target-type", "standby"]);
    let archives = stage.cluster.sql("postgres", "SHOW archive_command");
    let standby = Cluster::adopt(Major::V15, &directory)
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .conf("archive_mode", "always")
        .conf("archive_command", &format!("{first}{}", archives.unwrap()))
        .start()
        .unwrap();
    stage.archive_all();
    catch_up(stage, &standby);
    standby
}

/// Nobody looks for finished segments there while files are copied.
#[test]
fn a_standby_that_archives_and_is_promoted_under_its_backup_is_told_at_once() {
    let stage = Stage::archiving(idle(Major::V15), Store::Directory);
    let standby = archiving_standby(&stage, "");
    a_promotion_ends_the_copy(&stage, &standby, ("archive", "SELECT 1"));
}

/// With these the acts of a backup can be followed, which waits for WAL for a minute.
const SLOWLY_AND_ALOUD: [&str; 6] = [
    "--max-rate",
    "16M",
    "--log-level",
    "info",
    "--archive-timeout",
    "60s",
];

/// Waits until a backup at work has written that to its log.
fn said_by_then(backup: &mut Child, log: &Path, wanted: &str) {
    let end = Instant::now() + PATIENCE;
    let said = || fs::read_to_string(log).unwrap();
    while !said().contains(wanted) {
        assert!(backup.try_wait().unwrap().is_none(), "{}", said());
        assert!(Instant::now() < end, "\"{wanted}\" is not in {}", said());
        thread::sleep(Duration::from_millis(50));
    }
}

/// It has stopped, and waits for a segment that nobody finishes any more: the primary is gone, and the standby's archiver, which
/// works, has the beginning of it alone.
#[test]
fn a_standby_that_is_promoted_while_its_backup_waits_for_wal_is_told_at_once() {
    for wal in ["archive", "stream"] {
        let stage = Stage::archiving(idle(Major::V15), Store::Directory);
        let standby = archiving_standby(&stage, "");
        // The backup ends behind it, in a segment that the primary has not finished.
        restartpoint(&stage, &standby);
        let before = stage.layer_counts();
        let log = stage.cluster.socket_dir().join("backup.log");
        let mut all = backup_of(&standby, &["--type", "full", "--wal", wal]);
        all.extend(SLOWLY_AND_ALOUD.map(str::to_owned));
        let mut command = stage.command(&words(&all));
        let mut child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        let said = || fs::read_to_string(&log).unwrap();
        said_by_then(&mut child, &log, "the backup has started");
        stage.cluster.stop(StopMode::Immediate).unwrap();
        said_by_then(&mut child, &log, "SELECT pg_switch_wal() on the primary");
        let promote = "SELECT pg_promote(); CHECKPOINT";
        standby.sql("postgres", promote).unwrap();
        let promoted = Instant::now();
        let status = child.wait().unwrap();
        require_told_of_promotion((status, promoted.elapsed()), &said());
        assert_eq!(stage.layer_counts(), before);
    }
}

/// It has all its WAL, and waits for archivers that are slow: the promotion changes nothing about that.
#[test]
fn a_standby_that_is_promoted_when_all_wal_of_its_backup_is_there_spoils_nothing() {
    let stage = Stage::archiving(idle(Major::V15), Store::Directory);
    let gate = stage.target("gate");
    let gated = format!("while test -e {}; do sleep 0.1; done; ", gate.display());
    let standby = archiving_standby(&stage, &gated);
    restartpoint(&stage, &standby);
    let log = stage.cluster.socket_dir().join("backup.log");
    let mut all = backup_of(&standby, &["--type", "full", "--wal", "archive"]);
    all.extend(SLOWLY_AND_ALOUD.map(str::to_owned));
    let mut command = stage.command(&words(&all));
    let mut child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    said_by_then(&mut child, &log, "the backup has started");
    stage.set_archive_command("sleep 100");
    fs::write(&gate, "").unwrap();
    said_by_then(&mut child, &log, "the backup has stopped");
    // The backup has the primary finish the segment.
    thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none(), "{}", said());
    stage.cluster.stop(StopMode::Immediate).unwrap();
    standby.sql("postgres", "SELECT pg_promote()").unwrap();
    let promoted = Instant::now();
    let status = child.wait().unwrap();
    assert!(matches!(status.code(), Some(0 | WARNINGS)), "{}", said());
    assert!(promoted.elapsed() < Duration::from_secs(15), "{}", said());
    stage.json(&["verify", "--deep"]);
}

/// The role that backs up may not see where the primary is.
#[test]
fn what_only_the_primary_can_end_is_said_at_once_and_shown_while_it_lasts() {
    let stage = Stage::archiving(idle(Major::V15), Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE ROLE plain LOGIN REPLICATION;
         GRANT EXECUTE ON FUNCTION pg_catalog.pg_backup_start(text, boolean) TO plain;
         GRANT EXECUTE ON FUNCTION pg_catalog.pg_backup_stop(boolean) TO plain");
    let standby = standby_of(&stage, &stage.cluster.conninfo("postgres"));
    sql("CREATE TABLE numbers AS SELECT 1");
    catch_up(&stage, &standby);
    let log = stage.cluster.socket_dir().join("backup.log");
    let mut all = backup_of(&standby, &["--type", "full", "--wal", "stream"]);
    all.extend(["-d".to_owned(), standby.conninfo_as("plain", "postgres")]);
    all.drain(3..5);
    let mut command = stage.command(&words(&all));
    let mut child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    for wanted in [
        "will wait at its end until the primary has finished a WAL segment",
        "run SELECT pg_switch_wal() on the primary",
        "role \"plain\" may not see the primary_conninfo",
        ", waiting for WAL segment 0000",
    ] {
        said_by_then(&mut child, &log, wanted);
    }
    stage.archive_all();
    assert!(child.wait().unwrap().success(), "{}", said());
    // Also to who reads warnings alone.
    let said_at_once = said();
    let mut lines = said_at_once.lines();
    let line = lines.find(|line| line.contains("will wait at its end"));
    assert!(line.unwrap().contains("WARN"), "{line:?}");
    // Before anything of the backup's own time has passed.
    let first = said().find("will wait at its end").unwrap();
    assert!(
        first < said().find("pg_switch_wal() on").unwrap(),
        "{}",
        said()
    );

    // Told where it is, the next one need not wait.
    let primary = stage.cluster.conninfo("postgres");
    let told = ["--type", "full", "--primary", &primary];
    json(&stage, &standby, &told);
    all.push("--dry-run".to_owned());
    let plan = stage.json(&words(&all));
    let warning = text(&plan, "/warnings/0");
    assert!(warning.contains("--primary"), "{warning}");
    wrong_primaries_are_refused_before_the_copy(&stage, &standby);
}

fn wrong_primaries_are_refused_before_the_copy(stage: &Stage, standby: &Cluster) {
    let other = Cluster::builder(Major::V15).start().unwrap();
    stage
        .cluster
        .sql("postgres", "CREATE ROLE nobody LOGIN")
        .unwrap();
    let before = stage.layer_counts();
    for (conninfo, why) in [
        (other.conninfo("postgres"), "is of another cluster"),
        (standby.conninfo("postgres"), "is a standby itself"),
        (
            stage.cluster.conninfo_as("nobody", "postgres"),
            "role \"nobody\" may not call pg_switch_wal()",
        ),
    ] {
        let all = backup_of(standby, &["--type", "full", "--primary", &conninfo]);
        let (code, log) = stage.fails(&words(&all));
        assert_eq!(code, SERVER, "{log}");
        assert!(log.contains(why), "{why}: {log}");
        assert!(log.contains("--primary"), "{log}");
    }
    assert_eq!(stage.layer_counts(), before);
}
