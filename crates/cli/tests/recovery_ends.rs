//! Where recovery ends: at the end of the archive, and nowhere before.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use support::{PATIENCE, Stage, Store, namespace, text};

const ROWS: &str = "SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM numbers";

fn insert(cluster: &Cluster, id: u32) {
    let statement = format!("INSERT INTO numbers VALUES ({id})");
    cluster.sql("postgres", &statement).unwrap();
}

/// A full backup, then a segment with a row each, from 1 to `count`; the names of these segments.
fn rows_in_segments(stage: &Stage, count: u32) -> Vec<String> {
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE numbers (id int)");
    stage.backup(&["--type", "full"]);
    let segments = (1..=count).map(|id| {
        insert(&stage.cluster, id);
        let name = sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
        stage.archive_all();
        name
    });
    segments.collect()
}

fn small() -> Stage {
    let builder = Cluster::builder(Major::V15)
        .initdb_arg("--wal-segsize=1")
        .conf("autovacuum", "off");
    Stage::archiving(builder, Store::Directory)
}

fn object(stage: &Stage, name: &str) -> PathBuf {
    let root = Path::new(stage.repository.trim_start_matches("file://"));
    root.join("main/wal").join(&name[..8]).join(name)
}

/// The server does not start, and has not been promoted.
fn require_stopped(major: Major, target: &Path) -> String {
    let error = Cluster::adopt(major, target).start().err().unwrap();
    let error = format!("{error:#}");
    assert!(error.contains("could not restore file"), "{error}");
    assert!(target.join("recovery.signal").exists());
    error
}

#[test]
fn rule_13_6_a_segment_that_went_missing_stops_recovery_until_it_is_back() {
    let stage = small();
    let segments = rows_in_segments(&stage, 4);
    stage.cluster.stop(StopMode::Fast).unwrap();
    let target = stage.restore("restored", &[]);
    let third = object(&stage, &segments[2]);
    let away = third.with_file_name(".away");
    fs::rename(&third, &away).unwrap();
    let error = require_stopped(Major::V15, &target);
    assert!(error.contains("exit code 255"), "{error}");
    assert!(error.contains("is missing from the archive"), "{error}");
    // A misspelt command.
    let conf = target.join("postgresql.auto.conf");
    let good = fs::read_to_string(&conf).unwrap();
    for (right, wrong) in [
        ("archive-get", "archive-gte"),
        ("archive-get", "archive-get --nonsense"),
        ("archive-get", "archive-get --help"),
        ("exec ", "PGSTRATA_JOBS=x exec "),
    ] {
        fs::write(&conf, good.replace(right, wrong)).unwrap();
        require_stopped(Major::V15, &target);
    }
    fs::write(&conf, good).unwrap();
    fs::rename(&away, &third).unwrap();
    let restored = stage.start_restored(&target);
    assert_eq!(restored.sql("postgres", ROWS).unwrap(), "1 2 3 4");
    // The normal end is not an error in the server's log.
    let log = fs::read_to_string(restored.log()).unwrap();
    let promoted = log.rfind("archive recovery complete").unwrap();
    let last = log[..promoted].rfind("database system was").unwrap();
    assert!(!log[last..].contains("pgstrata"), "{}", &log[last..]);
}

/// The primary is lost with a segment that it has not archived; its standby was promoted after it.
#[test]
fn rule_13_6_a_segment_that_only_a_later_timeline_knows_of_stops_recovery() {
    let stage = small();
    let segments = rows_in_segments(&stage, 3);
    let full = stage.json(&["info"])["layers"][0]["label"]
        .as_str()
        .unwrap()
        .to_owned();
    let archiving = ["--target-action", "promote", "--archive-mode", "keep"];
    let copy = stage.restore("copy", &archiving);
    let copy = Cluster::adopt(Major::V15, &copy).start().unwrap();
    copy.wait_promoted(PATIENCE).unwrap();
    insert(&copy, 100);
    copy.sql("postgres", "SELECT pg_switch_wal()").unwrap();
    let archived = "SELECT last_archived_wal LIKE '00000002%0' OR last_archived_wal >= pg_walfile_name(pg_current_wal_lsn() - 1) FROM pg_stat_archiver";
    copy.wait_for("postgres", archived, PATIENCE).unwrap();
    copy.stop(StopMode::Fast).unwrap();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let targets = ["latest", "current"].map(|timeline| {
        let name = format!("restored-{timeline}");
        stage.restore(&name, &[&full, "--target-timeline", timeline])
    });
    for later in fs::read_dir(object(&stage, &segments[2]).parent().unwrap()).unwrap() {
        let later = later.unwrap();
        if later.file_name().into_string().unwrap() >= segments[2] {
            fs::remove_file(later.path()).unwrap();
        }
    }
    for target in targets {
        let error = require_stopped(Major::V15, &target);
        assert!(
            error.contains("timeline 2 goes along timeline 1"),
            "{error}"
        );
    }
    // Restore promises nothing that archive-get would not deliver.
    // On the way of timeline 2 later segments tell, on that of timeline 1 only its history.
    for (timeline, why) in [
        ("latest", "though later ones are there"),
        ("current", "timeline 2 goes along timeline 1"),
    ] {
        let words = [&full[..], "--target-timeline", timeline];
        stage.refuses_to_restore(&words, 18, &[why]);
    }
}

/// The server reads ahead, and what lies there is not needed.
fn damage_behind_a_target_does_not_stop_recovery(major: Major) {
    let builder = Cluster::builder(major)
        .initdb_arg("--wal-segsize=1")
        .conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE numbers (id int)");
    stage.backup(&["--type", "full"]);
    insert(&stage.cluster, 1);
    sql("SELECT pg_create_restore_point('good')");
    stage.archive_all();
    let names = (2..=4).map(|id| {
        insert(&stage.cluster, id);
        let name = sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
        stage.archive_all();
        name
    });
    let names: Vec<String> = names.collect();
    let damaged = object(&stage, &names[0]);
    let mut bytes = fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let promote = ["--target-action", "promote"];
    for (kind, more, expected) in [
        ("name", &["--target", "good"][..], "1"),
        ("immediate", &[], ""),
    ] {
        let target = [&["--target-type", kind][..], more, &promote].concat();
        let restored = stage.start_restored(&stage.restore(kind, &target));
        assert_eq!(restored.sql("postgres", ROWS).unwrap(), expected, "{kind}");
        let prefetch = restored.sql("postgres", "SHOW recovery_prefetch").unwrap();
        assert_eq!(prefetch, "off");
        restored.stop(StopMode::Fast).unwrap();
    }
    // To the end of the archive it is needed.
    require_stopped(major, &stage.restore("default", &[]));
}

#[test]
fn damage_behind_a_target_does_not_stop_recovery_on_15() {
    damage_behind_a_target_does_not_stop_recovery(Major::V15);
}

#[test]
fn damage_behind_a_target_does_not_stop_recovery_on_18() {
    damage_behind_a_target_does_not_stop_recovery(Major::V18);
}

/// A standby asks for what is not there yet, and sees a later segment arrive a moment before an earlier one.
#[test]
fn a_hole_of_a_moment_does_not_stop_a_standby_that_follows() {
    let stage = small();
    rows_in_segments(&stage, 1);
    let standby = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(Major::V15, &standby)
        .conf("wal_retrieve_retry_interval", "200ms")
        .start()
        .unwrap();
    let holds = |count: u32| format!("SELECT count(*) = {count} FROM numbers");
    standby.wait_for("postgres", &holds(1), PATIENCE).unwrap();
    // A directory where the next object belongs: its push fails until that is gone.
    insert(&stage.cluster, 2);
    let query = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())";
    let second = stage.cluster.sql("postgres", query).unwrap();
    let away = stage.target("away");
    stage.archive_all();
    // The standby may have been quicker; then there is a third, and so on.
    fs::rename(object(&stage, &second), &away).unwrap();
    insert(&stage.cluster, 3);
    let third = stage.cluster.sql("postgres", query).unwrap();
    stage.archive_all();
    assert!(object(&stage, &third).exists());
    thread::sleep(Duration::from_secs(4));
    fs::rename(&away, object(&stage, &second)).unwrap();
    standby.wait_for("postgres", &holds(3), PATIENCE).unwrap();
    let log = fs::read_to_string(standby.log()).unwrap();
    assert!(!log.contains("could not restore file"), "{log}");
}

/// Without an archive the WAL of each backup is an island. What lies behind its end is not needed.
#[test]
fn a_backup_before_a_gap_restores_to_its_own_end() {
    let builder = Cluster::builder(Major::V18).initdb_arg("--wal-segsize=1");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE numbers (id int)");
    insert(&stage.cluster, 1);
    let first = stage.backup(&["--type", "full"]);
    let first = text(&first, "/label").to_owned();
    for id in 2..=6 {
        insert(&stage.cluster, id);
        sql("SELECT pg_switch_wal()");
    }
    stage.backup(&["--type", "full"]);
    let arguments = [
        &first,
        "--target-type",
        "immediate",
        "--target-action",
        "promote",
    ];
    let restored = stage.start_restored(&stage.restore("first", &arguments));
    assert_eq!(restored.sql("postgres", ROWS).unwrap(), "1");
    let newest = stage.start_restored(&stage.restore("newest", &[]));
    assert_eq!(newest.sql("postgres", ROWS).unwrap(), "1 2 3 4 5 6");
}

/// A server that is process 1 of its namespace; it ends with this.
struct ProcessOne {
    namespace: Child,
    log: PathBuf,
}

impl Drop for ProcessOne {
    fn drop(&mut self) {
        namespace::kill(&mut self.namespace);
    }
}

impl ProcessOne {
    /// Starts the server of `settings` on `data`, with nothing between it and the namespace.
    fn start(stage: &Stage, data: &Path, settings: &[&str], variables: &[(&str, &str)]) -> Self {
        let log = stage.target("log-of-process-1");
        let owner = fs::metadata(data).unwrap();
        let mut server = Command::new(stage.cluster.bindir().join("postgres"));
        server.arg("-D").arg(data);
        for setting in settings {
            server.args(["-c", setting]);
        }
        server
            .envs(variables.iter().copied())
            .env("LC_ALL", "C")
            .current_dir(stage.cluster.socket_dir());
        let out = fs::File::create(&log).unwrap();
        let mut command = namespace::apart(&server, &owner, &[]);
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out);
        let namespace = command.spawn().unwrap();
        Self { namespace, log }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_for(&mut self, words: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.said().contains(words) {
            let ended = self.namespace.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{}", self.said());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// In a container the server is process 1: it reaps what its commands leave, and takes it for a backend that crashed.
#[test]
fn rule_13_8_nothing_outlives_restore_command_where_the_server_is_process_1() {
    let stage = small();
    let segments = rows_in_segments(&stage, 24);
    let target = stage.restore("restored", &["--target-type", "standby"]);
    let scratch = stage.cluster.create_dir("tmp").unwrap();
    let directory = stage.cluster.create_dir("socket-of-process-1").unwrap();
    let directory = format!("unix_socket_directories={}", directory.display());
    let settings = [
        "archive_mode=off",
        "listen_addresses=",
        "wal_retrieve_retry_interval=100ms",
        "logging_collector=off",
        // Tells of every child that it reaps, and which it was.
        "log_min_messages=debug2",
        &directory,
    ];
    let variables = [
        ("TMPDIR", scratch.to_str().unwrap()),
        ("PGSTRATA_LOG_LEVEL", "info"),
    ];
    let mut server = ProcessOne::start(&stage, &target, &settings, &variables);
    let last = segments.last().unwrap();
    server.wait_for(&format!("restored log file \"{last}\" from archive"));
    // It asks on for what is not there, and goes on with what comes.
    thread::sleep(Duration::from_secs(3));
    insert(&stage.cluster, 25);
    let query = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())";
    let next = stage.cluster.sql("postgres", query).unwrap();
    stage.archive_all();
    server.wait_for(&format!("restored log file \"{next}\" from archive"));
    thread::sleep(Duration::from_secs(1));
    let said = server.said();
    assert!(said.contains("[1] LOG:  starting PostgreSQL"), "{said}");
    assert!(said.contains("from the spool"), "{said}");
    for harm in [
        // As 15 and 18 call a child that they have not started.
        "server process (PID",
        "untracked child process",
        "terminating any other active",
        "reinitializing",
    ] {
        assert!(!said.contains(harm), "{said}");
    }
}
