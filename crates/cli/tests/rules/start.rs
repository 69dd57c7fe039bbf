//! Start and stop: one session, the right storage, and nothing listed before the checkpoint.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Stdio;

use pgstrata_testbed::cluster::{Cluster, Major};

use crate::support::{PATIENCE, Stage, Store, text};

const REFUSED: i32 = 13;

/// The storage that is read shows the checkpoint with which the backup began.
#[test]
fn rule_1_a_copy_of_the_data_directory_is_not_taken_for_the_servers_storage() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let copy = stage.target("copy").display().to_string();
    let mut cp = stage
        .cluster
        .command_as_server_user(std::path::Path::new("/bin/cp"));
    cp.args(["-a", &stage.pgdata(), &copy]);
    assert!(cp.status().unwrap().success());
    let conninfo = stage.cluster.conninfo("postgres");
    let (code, log) = stage.fails(&["backup", "-D", &copy, "-d", &conninfo]);
    assert_eq!(code, REFUSED, "{log}");
    assert!(log.contains(&copy) && log.contains("a copy"), "{log}");
    assert_eq!(stage.layer_counts(), (0, 0));
    stage.wait_out_of_backup_mode();
    a_link_to_the_repository_is_refused(&stage);
    rule_1_files_are_listed_after_the_start_has_returned(&stage);
}

/// Its own objects would be in every backup.
fn a_link_to_the_repository_is_refused(stage: &Stage) {
    let pgdata = stage.pgdata();
    let link = stage.cluster.pgdata().join("objects");
    symlink(stage.objects(), &link).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let (code, log) = stage.fails(&[&["backup", "-D", &pgdata], more].concat());
        assert_eq!(code, REFUSED, "{log}");
        assert!(log.contains("a directory of the cluster"), "{log}");
    }
    let checked = stage.run(&["check", "-D", &pgdata]);
    let found = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(REFUSED), "{found}");
    assert!(found.contains("a directory of the cluster"), "{found}");
    assert_eq!(stage.layer_counts(), (0, 0));
    fs::remove_file(link).unwrap();
}

/// A table that is made while the server still writes its checkpoint is in the list.
fn rule_1_files_are_listed_after_the_start_has_returned(stage: &Stage) {
    for (name, value) in [
        ("checkpoint_timeout", "10min"),
        ("checkpoint_completion_target", "0.9"),
    ] {
        stage.cluster.append_conf(name, value).unwrap();
    }
    stage.cluster.reload().unwrap();
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let pgdata = stage.pgdata();
    let mut patient = stage.command(&["--output", "json", "backup", "-D", &pgdata]);
    let child = patient
        .args(["--checkpoint", "spread"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let waits =
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'pgstrata backup'
        AND state = 'active' AND wait_event = 'CheckpointDone'";
    stage.cluster.wait_for("postgres", waits, PATIENCE).unwrap();
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE made_meanwhile AS SELECT generate_series(1, 1000) AS id");
    let path = sql("SELECT pg_relation_filepath('made_meanwhile')");
    // The one under way is hurried on.
    sql("CHECKPOINT");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let label = text(&report, "/label");
    let restored = stage.restore("restored", &[label, "--target-type", "immediate"]);
    assert!(restored.join(&path).exists(), "{path} was not listed");
}
