//! Stopped at any moment, a backup leaves no visible layer and a server out of backup mode, the
//! next backup works, and leftovers are reported; a restore leaves what no server starts, and
//! running it again completes it.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};
use pgstrata_testbed::proxy::Proxy;
use support::{PATIENCE, Stage, Store, number, text};

const WARNINGS: i32 = 3;
const REPOSITORY: i32 = 15;
const SERVER: i32 = 16;
const INTERRUPTED: i32 = 130;

/// What the server says when a session ends that has started a backup.
const ABORTED: &str = "aborting backup due to backend exiting before pg_backup_stop was called";

fn signal(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([signal, &id]).status().unwrap();
    assert!(sent.success(), "kill {signal} {id}: {sent}");
}

/// Exit code (negative: signal) and standard error.
fn end_of(child: Child) -> (i32, String) {
    use std::os::unix::process::ExitStatusExt as _;
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let signal = output.status.signal().map(|signal| -signal);
    (signal.or(output.status.code()).unwrap(), log)
}

fn times_aborted(stage: &Stage) -> usize {
    let log = fs::read_to_string(stage.cluster.log()).unwrap();
    log.matches(ABORTED).count()
}

/// The server is out of backup mode because it noticed, and nothing visible has come of it.
fn require_no_trace(stage: &Stage, aborted: usize, layers: usize, unfinished: usize) {
    stage.wait_out_of_backup_mode();
    let end = Instant::now() + PATIENCE;
    while times_aborted(stage) < aborted {
        assert!(Instant::now() < end, "{}", stage.cluster.log_tail(30));
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(stage.layer_counts(), (layers, unfinished));
}

fn a_backup_stopped_under_load_leaves_nothing_visible(major: Major) {
    let builder = Cluster::builder(major).conf("wal_log_hints", "on");
    let stage = Stage::archiving(builder, Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "5"]).unwrap();
    stage.backup(&["--type", "full"]);
    let mut load = stage
        .cluster
        .background_pgbench(&["-n", "-c", "2", "-T", "600"])
        .unwrap();

    let killed = stage.begin_backup(&["--type", "full"]);
    signal(&killed, "-KILL");
    assert_eq!(end_of(killed).0, -9);
    require_no_trace(&stage, 1, 1, 1);
    // For a quarter of an hour nobody can tell it from one that is at work.
    stage.age();
    let output = stage.run(&["check", "--pgdata", &stage.pgdata()]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(WARNINGS), "{said}");
    assert!(
        said.contains("leftovers") && said.contains("unfinished"),
        "{said}"
    );

    let asked = stage.begin_backup(&["--type", "full"]);
    signal(&asked, "-TERM");
    let (code, log) = end_of(asked);
    assert_eq!(code, INTERRUPTED, "{log}");
    assert!(log.contains("interrupted"), "{log}");
    require_no_trace(&stage, 2, 1, 1);

    let cut_off = stage.begin_backup(&["--type", "full"]);
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgstrata backup'";
    assert_eq!(stage.cluster.sql("postgres", terminate).unwrap(), "t");
    let (code, log) = end_of(cut_off);
    assert_eq!(code, SERVER, "{log}");
    assert!(log.contains("lost the connection"), "{log}");
    require_no_trace(&stage, 3, 1, 1);

    // The incremental that the kill left in the middle of the load stands on the full one.
    assert!(load.is_running().unwrap(), "{}", load.output());
    let layer = stage.backup(&["--type", "incr", "--change-source", "lsn"]);
    assert_eq!(text(&layer, "/change_source/used"), "lsn");
    assert!(number(&layer, "/totals/pages_stored") > 0);

    let orphaned = stage.begin_backup(&["--type", "full"]);
    stage.cluster.stop(StopMode::Immediate).unwrap();
    let (code, log) = end_of(orphaned);
    assert_eq!(code, SERVER, "{log}");
    drop(load);
    stage.cluster.start().unwrap();
    assert_eq!(stage.layer_counts(), (2, 1));
    // What the crash threw away is not in the parent either: the next layer equals the server. Nothing proves that no
    // files were put back while it was down.
    let layer = stage.backup(&["--type", "incr", "--change-source", "lsn"]);
    assert_eq!(text(&layer, "/change_source/used"), "digest");
    let before = stage.cluster.dump().unwrap();
    let arguments = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("restored", &arguments));
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
    restored.check_visibility_maps().unwrap();
}

#[test]
fn a_backup_stopped_under_load_leaves_nothing_visible_on_15() {
    a_backup_stopped_under_load_leaves_nothing_visible(Major::V15);
}

#[test]
fn a_backup_stopped_under_load_leaves_nothing_visible_on_18() {
    a_backup_stopped_under_load_leaves_nothing_visible(Major::V18);
}

/// A directory on a file system of 24 MB of its own; `None` when this user may not mount.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(directory: &'a Path, stage: &Stage) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let owner = fs::metadata(stage.cluster.pgdata()).unwrap();
        let options = format!("size=24m,uid={},gid={}", owner.uid(), owner.gid());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]);
        let outcome = mount.arg(directory).stderr(Stdio::null()).status();
        outcome
            .is_ok_and(|status| status.success())
            .then_some(Self(directory))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// The limit of file sizes stands in for a full disk everywhere; where a file system may be
/// mounted a disk that is really full is tried as well.
#[test]
fn a_full_repository_ends_the_backup_and_is_named() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "5"]).unwrap();
    let pgdata = stage.pgdata();
    let program = stage.program.display().to_string();
    let mut limited = stage.cluster.command_as_server_user(Path::new("/bin/sh"));
    let script = r#"ulimit -f 4096; exec "$0" "$@""#;
    limited.args(["-c", script, &program, "--repo", &stage.repository]);
    limited.args(["--cluster", "main", "backup", "-D", &pgdata, "-Z", "none"]);
    let output = limited.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(REPOSITORY), "{log}");
    assert!(
        log.contains("pack-") && log.contains("could not write"),
        "{log}"
    );
    require_no_trace(&stage, 1, 0, 0);

    let mount_point = stage.cluster.create_dir("small").unwrap();
    if let Some(disk) = SmallDisk::mount(&mount_point, &stage) {
        let small = format!("file://{}", disk.0.display());
        stage.ok(&["--repo", &small, "init", "-D", &pgdata]);
        let (code, log) = stage.fails(&["--repo", &small, "backup", "-D", &pgdata, "-Z", "none"]);
        assert_eq!(code, REPOSITORY, "{log}");
        assert!(
            log.contains("No space left on device") && log.contains("free space"),
            "{log}"
        );
        let info = stage.json(&["--repo", &small, "info"]);
        assert_eq!(info["layers"].as_array().unwrap().len(), 0);
        // What it had stored is gone: there is room for a smaller one.
        stage.ok(&["--repo", &small, "backup", "-D", &pgdata, "-Z", "zstd:3"]);
    } else {
        eprintln!("not tried with a file system of its own: this user may not mount");
    }
    stage.backup(&[]);
    assert_eq!(stage.layer_counts(), (1, 0));
}

/// The bytes of a restore do not come all at once, so it can be stopped in the middle.
#[test]
fn an_object_store_that_fails_leaves_no_layer_and_no_cluster_that_starts() {
    let builder = Cluster::builder(Major::V18).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::S3);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let proxy = Proxy::before(stage.s3_endpoint()).unwrap();
    let pgdata = stage.pgdata();
    let through = [
        "--s3-endpoint",
        proxy.endpoint(),
        "--storage",
        "retry_seconds=1",
    ];
    let backup = |expected: i32, words: &[&str]| {
        let mut arguments = through.to_vec();
        arguments.extend(["backup", "-D", &pgdata, "--type", "full", "-Z", "none"]);
        let output = stage.run(&arguments);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(expected), "{log}");
        for word in words {
            assert!(log.contains(word), "{word} is not in {log}");
        }
    };
    // In good weather, to know how many bytes there are to lose.
    proxy.clear();
    backup(0, &[]);
    let all = proxy.passed();
    let (full, _) = stage.layer_counts();
    assert_eq!(full, 1);
    for (nth, after) in [2 << 10, all / 3, all - all / 100].into_iter().enumerate() {
        proxy.cut_after(after);
        backup(REPOSITORY, &["could not"]);
        assert!(proxy.has_failed());
        let (layers, unfinished) = stage.layer_counts();
        // Cleaning up was not possible either; what is left is listed.
        assert_eq!(layers, 1, "cut after {after} of {all} bytes");
        assert!(unfinished <= nth + 1, "{unfinished} unfinished");
        stage.wait_out_of_backup_mode();
    }
    // One connection in four breaks, and trying again is enough.
    proxy.drop_every(4);
    let mut arguments = vec!["--s3-endpoint", proxy.endpoint()];
    arguments.extend(["backup", "-D", &pgdata, "--type", "full"]);
    stage.ok(&arguments);
    assert!(proxy.dropped() > 0);
    assert_eq!(stage.layer_counts().0, 2);
    a_killed_restore_cannot_be_started_and_is_completed(&stage, &proxy);
}

fn a_killed_restore_cannot_be_started_and_is_completed(stage: &Stage, proxy: &Proxy) {
    let before = stage.cluster.dump().unwrap();
    stage.archive_all();
    let target = stage.target("restored");
    let directory = target.display().to_string();
    proxy.stall_after(2 << 20);
    let arguments = [
        "--s3-endpoint",
        proxy.endpoint(),
        "restore",
        "--target-dir",
        &directory,
    ];
    let restore = stage
        .command(&arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while !proxy.has_failed() {
        assert!(Instant::now() < end, "the restore ended before it stalled");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(300));
    signal(&restore, "-KILL");
    assert_eq!(end_of(restore).0, -9);
    proxy.clear();
    assert!(target.join("base").is_dir(), "nothing was restored yet");
    assert!(!target.join("global/pg_control").exists());
    let cannot = Cluster::adopt(stage.cluster.major(), &target).start();
    let error = format!("{:#}", cannot.err().unwrap());
    assert!(error.contains("global/pg_control"), "{error}");

    // The same command completes it.
    let again = stage.json(&["restore", "--target-dir", &directory]);
    assert!(number(&again, "/pages") > 1000);
    let (code, log) = stage.fails(&["restore", "--target-dir", &directory]);
    assert_eq!(code, 13, "{log}");
    let restored = stage.start_restored(&target);
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
    let (code, log) = stage.fails(&["restore", "--target-dir", &directory]);
    assert_eq!(code, 13, "{log}");
    assert!(log.contains("a server runs in"), "{log}");
}
