//! Several processes make one backup: it restores as any other does, whatever becomes of the helpers, and
//! who does not see the leader's data directory is refused.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_lab::cluster::{Cluster, Major, require_same_dump};
use serde_json::Value;
use support::process::{document, log_of, signal, spawn};
use support::{PATIENCE, Stage, Store, number, text};

const WARNINGS: i32 = 3;
const NOT_FOUND: i32 = 10;
const REFUSED: i32 = 13;

/// A leader, and its label as soon as it has claimed one.
fn lead(stage: &Stage, arguments: &[&str]) -> (Child, String) {
    let pgdata = stage.pgdata();
    let always = ["--output", "json", "backup", "--pgdata", &pgdata];
    let mut leader = spawn(stage, &[&always, arguments].concat());
    let end = Instant::now() + PATIENCE;
    loop {
        let info = stage.json(&["info"]);
        if let Some(label) = info.pointer("/unfinished/0/label").and_then(Value::as_str) {
            return (leader, label.to_owned());
        }
        if let Some(status) = leader.try_wait().unwrap() {
            panic!("the leader ended early, with {status}: {}", log_of(leader));
        }
        assert!(Instant::now() < end, "the leader claims nothing");
    }
}

fn processes(report: &Value) -> BTreeSet<u64> {
    let shares = report["shares"].as_array().unwrap().iter();
    shares.map(|share| number(share, "/pid")).collect()
}

/// A backup by a leader, held back a little, and two helpers: one is told the label, the other finds it.
fn backup_by_three(stage: &Stage, arguments: &[&str], pgdata_of_helpers: &Path) -> Value {
    let slowly = ["--shares", "9", "--max-rate", "8M", "--jobs", "1"];
    let (leader, label) = lead(stage, &[&slowly, arguments].concat());
    let seen = pgdata_of_helpers.display().to_string();
    let help = ["--output", "json", "backup-share", "--pgdata", &seen];
    let told = spawn(stage, &[&help[..], &[&label]].concat());
    let finds = spawn(stage, &help);
    let (told, finds, report) = (document(told), document(finds), document(leader));

    assert_eq!(text(&told, "/label"), label);
    assert_eq!(text(&finds, "/label"), label);
    let made = |helper: &Value| helper["made"].as_array().unwrap().len();
    let helped = made(&told) + made(&finds);
    let of_all = report["shares"].as_array().unwrap().len();
    assert!(0 < helped && helped <= of_all, "{helped} of {of_all}");
    assert!(processes(&report).len() > 1, "{report:#}");
    report
}

fn update(stage: &Stage) {
    let load = stage.cluster.pgbench(&["-n", "-c", "2", "-t", "200"]);
    load.unwrap();
    let more = "INSERT INTO elsewhere SELECT n, repeat('y', 100) FROM generate_series(1, 3000) n;
        DELETE FROM elsewhere WHERE n % 3 = 0;
        DROP TABLE IF EXISTS dropped; CREATE TABLE dropped AS SELECT 1;
        CREATE TABLE IF NOT EXISTS kept AS SELECT n FROM generate_series(1, 5000) n;";
    stage.cluster.sql("postgres", more).unwrap();
}

#[test]
fn a_chain_made_by_several_processes_restores_to_an_exact_lsn() {
    let builder = Cluster::builder(Major::V18).conf("summarize_wal", "on");
    let stage = Stage::archiving(builder, Store::S3);
    stage.cluster.pgbench(&["-i", "-q", "-s", "4"]).unwrap();
    let place = stage.cluster.create_tablespace("place").unwrap();
    let table = "CREATE TABLE elsewhere (n int, t text) TABLESPACE place;
        INSERT INTO elsewhere SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n;";
    stage.cluster.sql("postgres", table).unwrap();
    let pgdata = PathBuf::from(stage.pgdata());
    let mut stored = Vec::new();
    for (kind, expected) in [("full", "everything"), ("incr", "lsn"), ("incr", "summary")] {
        let mut load = stage
            .cluster
            .background_pgbench(&["-n", "-c", "2", "-T", "600"])
            .unwrap();
        let source = if kind == "full" { "auto" } else { expected };
        let how = ["--type", kind, "--change-source", source, "--audit", "5%"];
        let report = backup_by_three(&stage, &how, &pgdata);
        assert!(load.is_running().unwrap(), "{}", load.output());
        load.kill().unwrap();
        let used = text(&report, "/change_source/used");
        assert_eq!(used, expected, "{report:#}");
        assert_eq!(used == "summary", !report["audit"].is_null(), "{report:#}");
        stored.push(number(&report, "/totals/pages_stored"));
        update(&stage);
    }
    let increments = &stored[1..];
    assert!(
        increments
            .iter()
            .all(|&pages| 0 < pages && pages < stored[0]),
        "{stored:?}"
    );
    let last = stage.backup(&["--type", "incr", "--change-source", "digest"]);
    assert_eq!(last["shares"].as_array().unwrap().len(), 0, "made alone");
    stage.ok(&["verify", "--deep"]);
    assert_eq!(stage.layer_counts(), (4, 0));

    let (lsn, before) = stage.moment();
    let map = format!(
        "{}={}",
        place.display(),
        stage.target("restored-place").display()
    );
    let until = ["--type", "lsn", "--target", &lsn];
    let then = ["--target-action", "promote", "--tablespace-map", &map];
    let target = stage.restore("restored", &[until, then].concat());
    let restored = stage.start_restored(&target);
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
    restored.check_visibility_maps().unwrap();
}

/// Process ids in the claims of shares; for repositories in a directory.
fn claimants(stage: &Stage, label: &str) -> BTreeSet<u64> {
    let root = stage.repository.trim_start_matches("file://");
    let Ok(found) = fs::read_dir(format!("{root}/main/layer/{label}/share")) else {
        return BTreeSet::new();
    };
    let paths = found.flatten().map(|entry| entry.path());
    let claims = paths.filter(|path| path.display().to_string().contains("/claim-"));
    let read = claims.filter_map(|path| fs::read_to_string(path).ok());
    let records = read.filter_map(|text| {
        let (_, json) = text.split_once('\n')?;
        serde_json::from_str::<Value>(json).ok()
    });
    records.map(|claim| number(&claim, "/pid")).collect()
}

/// A helper that has claimed a share and will not have made it soon.
fn slow_helper(stage: &Stage, label: &str) -> Child {
    let pgdata = stage.pgdata();
    let always = ["backup-share", label, "--pgdata", &pgdata];
    let mut helper = spawn(stage, &[&always[..], &["--max-rate", "20K"]].concat());
    let end = Instant::now() + PATIENCE;
    while !claimants(stage, label).contains(&u64::from(helper.id())) {
        if let Some(status) = helper.try_wait().unwrap() {
            panic!("the helper ended early, with {status}: {}", log_of(helper));
        }
        assert!(Instant::now() < end, "the helper claims nothing");
        thread::sleep(Duration::from_millis(20));
    }
    helper
}

#[test]
fn shares_of_helpers_that_are_killed_or_too_slow_are_made_again() {
    let stage = Stage::archiving(Cluster::builder(Major::V17), Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let how = ["--shares", "6", "--share-timeout", "3", "--max-rate", "8M"];
    let (leader, label) = lead(&stage, &[&how[..], &["--type", "full"]].concat());
    let killed = slow_helper(&stage, &label);
    signal(&killed, "-KILL");
    let stopped = slow_helper(&stage, &label);
    signal(&stopped, "-STOP");
    let leader_id = u64::from(leader.id());
    let report = document(leader);
    assert_eq!(text(&report, "/label"), label);
    assert_eq!(processes(&report), BTreeSet::from([leader_id]));
    log_of(killed);

    // Back at work when all is over, it finds that out, and does no harm.
    signal(&stopped, "-CONT");
    let output = stopped.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code().unwrap();
    assert!([REFUSED, WARNINGS].contains(&code), "{code}: {log}");
    stage.ok(&["verify", "--deep"]);
    assert_eq!(stage.layer_counts(), (1, 0));

    let (lsn, before) = stage.moment();
    let restored = stage.start_restored_at("restored", &lsn);
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
}

/// The data directory through links, without the databases: as with a mount that is missing.
fn without_databases(stage: &Stage) -> PathBuf {
    let view = stage.cluster.create_dir("view").unwrap();
    for entry in fs::read_dir(stage.pgdata()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "base" {
            std::os::unix::fs::symlink(entry.path(), view.join(entry.file_name())).unwrap();
        }
    }
    view
}

#[test]
fn a_helper_that_sees_another_directory_is_refused() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let other = Cluster::builder(Major::V15).start().unwrap();
    let help = |directory: &Path| {
        let directory = directory.display().to_string();
        stage.fails(&["backup-share", "--pgdata", &directory])
    };
    let (code, log) = help(Path::new(&stage.pgdata()));
    assert_eq!(code, NOT_FOUND, "{log}");
    assert!(log.contains("no backup is under way"), "{log}");

    let copy = stage.cluster.socket_dir().join("copy");
    let mut copying = stage.cluster.command_as_server_user(Path::new("/bin/cp"));
    copying.arg("-a").args([stage.cluster.pgdata(), &copy]);
    assert!(copying.status().unwrap().success());
    let slowly = ["--type", "full", "--shares", "4", "--max-rate", "2M"];
    let (leader, _) = lead(&stage, &[&slowly[..], &["--share-timeout", "60"]].concat());
    let (code, log) = help(&copy);
    assert_eq!(code, REFUSED, "{log}");
    assert!(log.contains("it is a copy"), "{log}");
    let (code, log) = help(other.pgdata());
    assert_eq!(code, REFUSED, "{log}");
    assert!(log.contains("system identifier"), "{log}");

    // What can only be seen afterwards, the leader sees: files that are there and were not found.
    let view = without_databases(&stage);
    let view = view.display().to_string();
    let helped = stage.json(&["backup-share", "--pgdata", &view]);
    assert!(!helped["made"].as_array().unwrap().is_empty(), "{helped:#}");
    let output = leader.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(REFUSED), "{log}");
    assert!(log.contains("was not found by process"), "{log}");
    assert_eq!(stage.layer_counts(), (0, 0));
    stage.wait_out_of_backup_mode();
}
