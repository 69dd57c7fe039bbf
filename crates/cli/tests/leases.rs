//! Expiry beside backups and restores of which it can see nothing but the repository: in other PID namespaces, under
//! other names, stopped for long.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use pgstrata_testbed::programs::copy_program;
use serde_json::Value;
use support::namespace;
use support::process::{self, signal};
use support::{PATIENCE, Stage, Store, files, text};

const REFUSED: i32 = 13;
const DAMAGED: i32 = 14;
const WARNINGS: i32 = 3;

/// A server with two full backups, of which one is to go.
fn stage(store: Store) -> Stage {
    let stage = Stage::archiving(Cluster::builder(Major::V15), store);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    stage.backup(&["--type", "full"]);
    stage.backup(&["--type", "full"]);
    stage
}

/// Runs a command in a PID namespace of its own, as the server's user: no process of the host can be seen there.
///
/// It gives way as commands do by default, although not even the leader of its session can be seen.
fn elsewhere(stage: &Stage, arguments: &[&str]) -> Output {
    let owner = fs::metadata(stage.pgdata()).unwrap();
    let mut command = stage.command(arguments);
    let mut command = namespace::apart(command.env_remove("PGSTRATA_IMPACT"), &owner, &[]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    namespace::require_apart(&String::from_utf8_lossy(&output.stderr));
    output
}

fn expire(run: impl Fn(&[&str]) -> Output, more: &[&str]) -> (i32, Value) {
    let arguments = ["--output", "json", "expire", "--keep-full", "1"];
    let output = run(&[&arguments, more].concat());
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout);
    let document = document.unwrap_or_else(|error| panic!("{error}: {log}"));
    (output.status.code().unwrap(), document)
}

fn ended(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), log)
}

fn require_all_well(stage: &Stage) {
    let report = stage.json(&["verify", "--deep"]);
    assert!(report.to_string().contains("\"findings\":[]"), "{report:#}");
    let info = stage.json(&["info"]);
    assert_eq!(text(&info, "/status"), "ok", "{info:#}");
}

/// A way to run the program.
type Run<'a> = dyn Fn(&[&str]) -> Output + 'a;

fn a_backup_that_cannot_be_seen_is_left_alone(store: Store) {
    let stage = stage(store);
    let beside = |arguments: &[&str]| stage.run(arguments);
    let unseen = |arguments: &[&str]| elsewhere(&stage, arguments);
    let runs: [&Run; 2] = [&unseen, &beside];
    for run in runs {
        let backup = stage.begin_backup(&["--type", "full"]);
        signal(&backup, "-STOP");
        let (code, report) = expire(run, &[]);
        assert_eq!(code, WARNINGS, "{report:#}");
        let note = text(&report, "/notes/0");
        assert!(note.contains("is being made"), "{report:#}");
        assert_eq!(report["done"], false);
        signal(&backup, "-CONT");
        let (code, log) = ended(backup);
        assert_eq!(code, 0, "{log}");
    }
    require_all_well(&stage);
    // Finished, they no longer keep anything from going.
    let (code, report) = expire(unseen, &[]);
    assert_eq!(
        (code, &report["done"]),
        (0, &Value::Bool(true)),
        "{report:#}"
    );
    let before = stage.cluster.dump().unwrap();
    let arguments = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("restored", &arguments));
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
}

#[test]
fn a_backup_that_cannot_be_seen_is_left_alone_in_a_directory() {
    a_backup_that_cannot_be_seen_is_left_alone(Store::Directory);
}

#[test]
fn a_backup_that_cannot_be_seen_is_left_alone_on_s3() {
    a_backup_that_cannot_be_seen_is_left_alone(Store::S3);
}

/// The program under another name, as a package or a wrapper may have it.
#[test]
fn a_backup_by_a_renamed_program_is_left_alone() {
    let mut stage = stage(Store::Directory);
    let renamed = stage.program.with_file_name("backup-tool");
    fs::rename(&stage.program, &renamed).unwrap();
    copy_program(&renamed, &stage.program).unwrap();
    let usual = std::mem::replace(&mut stage.program, renamed);
    let backup = stage.begin_backup(&["--type", "full"]);
    signal(&backup, "-STOP");
    stage.program = usual;
    let (code, report) = expire(|arguments| stage.run(arguments), &[]);
    assert_eq!(code, WARNINGS, "{report:#}");
    signal(&backup, "-CONT");
    let (code, log) = ended(backup);
    assert_eq!(code, 0, "{log}");
    require_all_well(&stage);
}

/// Stopped for longer than the lease, a backup loses its objects, and fails when it goes on; its server is well.
fn a_backup_that_was_given_up_fails(store: Store) {
    let stage = stage(store);
    let backup = stage.begin_backup(&["--type", "full"]);
    signal(&backup, "-STOP");
    stage.age();
    let (code, report) = expire(|arguments| elsewhere(&stage, arguments), &[]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(
        report["leftovers"].as_array().unwrap().len(),
        1,
        "{report:#}"
    );
    assert_eq!(stage.layer_counts(), (1, 0));
    signal(&backup, "-CONT");
    let (code, log) = ended(backup);
    assert_eq!(code, REFUSED, "{log}");
    assert!(log.contains("was given up in the meantime"), "{log}");
    stage.wait_out_of_backup_mode();
    assert_eq!(stage.layer_counts(), (1, 0));
    require_all_well(&stage);
    stage.backup(&["--type", "incr"]);
    let before = stage.cluster.dump().unwrap();
    let arguments = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("restored", &arguments));
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
}

#[test]
fn a_backup_that_was_given_up_fails_in_a_directory() {
    a_backup_that_was_given_up_fails(Store::Directory);
}

#[test]
fn a_backup_that_was_given_up_fails_on_s3() {
    a_backup_that_was_given_up_fails(Store::S3);
}

/// A restore that has not finished recovering keeps its layers and its WAL, and everybody is told; for a day, or until
/// somebody says otherwise.
#[test]
fn what_a_restore_needs_is_not_expired_unnoticed() {
    let stage = stage(Store::Directory);
    let info = stage.json(&["info"]);
    let oldest = text(&info, "/layers/0/label").to_owned();
    let arguments = [
        "--target-type",
        "immediate",
        "--target-action",
        "promote",
        &oldest,
    ];
    let target = stage.restore("restored", &arguments);
    let info = stage.json(&["info"]);
    let restore = &info["restores"][0];
    assert_eq!(text(restore, "/label"), oldest, "{info:#}");
    assert_eq!(text(restore, "/directory"), target.display().to_string());
    let (code, report) = expire(|arguments| stage.run(arguments), &[]);
    assert_eq!(code, 0, "{report:#}");
    let kept = report["keep"].as_array().unwrap().iter();
    let mut kept = kept.filter(|kept| text(kept, "/label") == oldest);
    let why = text(kept.next().unwrap(), "/why").to_owned();
    assert!(
        why.contains("restore to") && why.contains("hours") && why.contains("--ignore-restores"),
        "{why}"
    );
    assert_eq!(stage.layer_counts(), (2, 0));
    // Its WAL is there: the copy recovers.
    drop(stage.start_restored(&target));

    let (code, report) = expire(|arguments| stage.run(arguments), &["--ignore-restores"]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(text(&report, "/remove/0"), oldest, "{report:#}");
    assert_eq!(stage.layer_counts(), (1, 0));

    stage.age();
    assert_eq!(stage.json(&["info"])["restores"], Value::Array(Vec::new()));
    let (code, report) = expire(|arguments| stage.run(arguments), &[]);
    assert_eq!(code, 0, "{report:#}");
    let left = fs::read_dir(stage.objects().join("main/restore")).unwrap();
    let left = left.map(|id| fs::read_dir(id.unwrap().path()).unwrap().count());
    assert_eq!(left.sum::<usize>(), 0, "old records are forgotten");
}

/// A sign of life a minute, and none is left when the backup is done.
#[test]
fn a_long_backup_gives_signs_of_life() {
    let stage = stage(Store::Directory);
    let backup = process::spawn(
        &stage,
        &[
            "backup",
            "--pgdata",
            &stage.pgdata(),
            "--type",
            "full",
            "--compress",
            "none",
            "--jobs",
            "1",
            "--max-rate",
            "600k",
        ],
    );
    let beat = || {
        let layers = fs::read_dir(stage.objects().join("main/layer")).unwrap();
        let found = layers.map(|layer| layer.unwrap().path().join("beat-000000"));
        found.filter(|beat| beat.exists()).count()
    };
    let end = Instant::now() + PATIENCE + Duration::from_secs(60);
    while beat() == 0 {
        assert!(Instant::now() < end, "no sign of life");
        thread::sleep(Duration::from_millis(200));
    }
    signal(&backup, "-TERM");
    ended(backup);
    assert_eq!(beat(), 0);
    assert_eq!(stage.layer_counts(), (2, 0));
}

/// A mirror tries again and again, and no try may look like work that somebody waits for.
#[test]
fn an_expiry_goes_on_beside_a_mirror_that_cannot_copy_a_damaged_layer() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let full = || text(&stage.backup(&["--type", "full"]), "/label").to_owned();
    let [first, damaged, last] = [full(), full(), full()];
    let pack = stage.objects().join("main/layer").join(&damaged);
    let pack = pack.join("pack-000000");
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let mirror = stage.cluster.create_dir("mirror").unwrap();
    let to = format!("file://{}", mirror.display());
    let follow = ["copy", "--to", &to, "--follow", "--every", "100ms"];
    let child = process::spawn(&stage, &follow);
    let layers = mirror.join("main/layer");
    let end = Instant::now() + PATIENCE;
    while !layers.join(&last).join("manifest").exists() {
        assert!(Instant::now() < end, "the others are not copied");
        thread::sleep(Duration::from_millis(50));
    }
    // What it has stored is old then, and it tries again.
    thread::sleep(Duration::from_secs(1));
    files::age(&mirror.join("main"), "20 minutes ago");
    thread::sleep(Duration::from_secs(1));
    let expired = stage.json(&["--repo", &to, "expire", "--keep-full", "1"]);
    assert!(
        !layers.join(&first).join("manifest").exists(),
        "{expired:#}"
    );
    let left = fs::read_dir(layers.join(&damaged)).unwrap().flatten();
    let mut left = left.map(|entry| entry.file_name().into_string().unwrap());
    assert!(left.all(|name| !name.starts_with("beat-")));
    signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(DAMAGED), "{log}");
    assert_eq!(log.matches("is left out").count(), 1, "{log}");
}
