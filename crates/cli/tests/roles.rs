//! What each role may do in the bucket is what it needs: the policies are those of SECURITY.md, and the store denies the rest.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use pgstrata_testbed::s3::Bucket;
use support::Stage;
use support::process::{self, signal};

/// What is said once when something that is not needed any more must stay.
const CALM: &str = "these credentials may not delete";

fn stage() -> Stage {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false");
    let stage = Stage::with_roles(builder, Bucket::Plain);
    let pgdata = stage.pgdata();
    let (_, log) = stage.ends_as("writer", &["init", "--pgdata", &pgdata], 0);
    assert_calm(&log);
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    stage
}

/// The store itself refuses such a request for an object that is there.
fn assert_denied(stage: &Stage, role: &str, method: &str) {
    let place = "/backups/main/cluster";
    let answer = stage.s3().request(Some(role), method, place, "x").unwrap();
    assert_eq!(answer.status, 403, "{role} {method}: {}", answer.body);
}

fn assert_calm(log: &str) {
    assert_eq!(log.matches(CALM).count(), 1, "{log}");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

/// Names of all objects that contain `part`.
fn objects(stage: &Stage, part: &str) -> Vec<String> {
    let mut keys = stage.keys();
    keys.retain(|key| key.contains(part));
    keys
}

#[test]
fn a_writer_that_may_not_delete_does_all_its_work_and_the_keeper_collects_what_it_leaves() {
    let stage = stage();
    assert_denied(&stage, "writer", "DELETE");
    let pgdata = stage.pgdata();
    let (_, log) = stage.ends_as("writer", &["check", "--pgdata", &pgdata], 0);
    assert_calm(&log);
    stage.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-t", "50"]).unwrap();
    stage.backup(&["--type", "incr"]);
    stage.archive_all();
    stage.ends_as("writer", &["info"], 0);
    stage.ends_as("writer", &["verify"], 0);
    // A backup that fails leaves what it has stored.
    let child = stage.begin_backup(&["--type", "full"]);
    signal(&child, "-TERM");
    let log = process::log_of(child);
    assert_eq!(log.matches(CALM).count(), 1, "{log}");
    assert!(!log.contains("could not remove"), "{log}");
    assert!(!objects(&stage, "/probe-").is_empty());

    stage.age_all();
    let (told, _) = stage.ends_as("keeper", &["expire", "--keep-full", "1"], 0);
    assert!(told.contains("without the right to delete"), "{told}");
    for part in ["/probe-", "/clock/", "/beat-"] {
        let left = objects(&stage, part);
        assert!(left.is_empty(), "{left:?}");
    }
    let info = stage.json(&["info"]);
    assert_eq!(info["layers"].as_array().unwrap().len(), 2, "{info:#}");
    let unfinished = info["unfinished"].as_array().unwrap();
    assert!(unfinished.is_empty(), "{info:#}");
    stage.ends_as("keeper", &["verify", "--deep"], 0);
}

#[test]
fn a_reader_that_may_not_write_restores_and_verifies() {
    let stage = stage();
    assert_denied(&stage, "reader", "PUT");
    assert_denied(&stage, "reader", "DELETE");
    stage.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-t", "50"]).unwrap();
    stage.backup(&["--type", "incr"]);
    let (lsn, dump) = stage.moment();
    stage.ends_as("reader", &["info"], 0);
    let (_, log) = stage.ends_as("reader", &["verify", "--deep"], 0);
    assert!(
        log.contains("no record of this verification stays"),
        "{log}"
    );
    let target = stage.target("restored");
    let into = target.display().to_string();
    let arguments = [
        "restore",
        "--target-dir",
        &into,
        "--target-type",
        "lsn",
        "--target",
        &lsn,
        "--target-action",
        "promote",
    ];
    stage.ends_as("reader", &arguments, 0);
    let settings = fs::read_to_string(target.join("postgresql.auto.conf")).unwrap();
    assert!(settings.contains("credentials/reader.toml"), "{settings}");
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}
