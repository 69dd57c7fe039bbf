//! Merging and expiry with real servers: the same bytes before and after, killed on the way or not.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use serde_json::Value;
use support::{Stage, Store, number, text};

/// Restored directories are the same, byte for byte; `backup_manifest` tells when it was written, the lineage where.
fn assert_same_bytes(one: &Path, other: &Path) {
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference", "-x", "backup_manifest"]);
    diff.args(["-x", "pgstrata.lineage"]);
    let output = diff.args([one, other]).output().unwrap();
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && found.is_empty(), "{found}");
}

fn labels(stage: &Stage) -> Vec<String> {
    let info = stage.json(&["info"]);
    let layers = info.pointer("/layers").and_then(Value::as_array).unwrap();
    layers
        .iter()
        .map(|layer| text(layer, "/label").to_owned())
        .collect()
}

/// A merge that is killed where it happens to be; what is listed afterwards must be restorable.
fn kill_merges(stage: &Stage, label: &str) {
    for milliseconds in [2, 5, 15, 40] {
        let mut merge = stage
            .command(&["merge", label, "--no-progress"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(milliseconds));
        merge.kill().unwrap();
        merge.wait().unwrap();
        let target = stage.target("nowhere").display().to_string();
        stage.ok(&[
            "restore",
            "--target-dir",
            &target,
            "--target-type",
            "immediate",
            "--dry-run",
        ]);
    }
}

/// Everything is sound; merges that were killed may have left objects of layers that never were.
fn verify_but_for_leftovers(stage: &Stage) {
    let output = stage.run(&["--output", "json", "verify", "--deep"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report.pointer("/findings").and_then(Value::as_array);
    for finding in findings.unwrap() {
        assert_eq!(text(finding, "/kind"), "unfinished", "{report:#}");
    }
    assert!(matches!(output.status.code(), Some(0 | 3)), "{report:#}");
}

fn a_merged_chain_restores_to_the_same_bytes(major: Major, store: Store) {
    let stage = Stage::archiving(Cluster::builder(major), store);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    stage.backup(&["--type", "full"]);
    for _ in 0..3 {
        stage.cluster.pgbench(&["-n", "-t", "60"]).unwrap();
        stage.cluster.sql("postgres", "VACUUM").unwrap();
        stage.backup(&["--type", "incr"]);
    }
    let made = labels(&stage);
    let immediate =
        |label: &str, name: &str| stage.restore(name, &[label, "--target-type", "immediate"]);
    let before = immediate(&made[3], "before");
    let of_third = immediate(&made[2], "of-third");

    if store == Store::Directory {
        kill_merges(&stage, &made[2]);
        // They count as being at work for a while.
        stage.age();
    }
    let plan = stage.json(&["merge", &made[2], "--dry-run"]);
    assert_eq!(
        plan.pointer("/inputs")
            .and_then(Value::as_array)
            .unwrap()
            .len(),
        3
    );
    let report = stage.json(&["merge", &made[2]]);
    let merged = text(&report, "/label").to_owned();
    assert!(merged.ends_with('F'), "{merged}");
    assert!(
        labels(&stage).starts_with(&made[..3]),
        "nothing goes unasked"
    );
    // A merge that was killed may have been done by then.
    if store == Store::S3 {
        let bytes = number(&report, "/copied_bytes") + number(&report, "/encoded_bytes");
        assert!(bytes > 0, "{report:#}");
    }
    // This test's own restores are over.
    let over = "--ignore-restores";
    let again = stage.json(&["merge", &made[2], "--remove-inputs", over]);
    assert_eq!(text(&again, "/label"), merged);
    assert_eq!(labels(&stage), [merged.clone(), made[3].clone()]);
    verify_but_for_leftovers(&stage);

    assert_same_bytes(&before, &immediate(&made[3], "after"));
    // The label of the layer stands in its settings.
    let of_merged = immediate(&merged, "of-merged");
    for directory in [&of_merged, &of_third] {
        std::fs::remove_file(directory.join("postgresql.auto.conf")).unwrap();
    }
    assert_same_bytes(&of_third, &of_merged);

    stage.cluster.pgbench(&["-n", "-t", "60"]).unwrap();
    let incremental = stage.backup(&["--type", "auto"]);
    assert_eq!(text(&incremental, "/parent"), made[3]);
    stage.cluster.pgbench(&["-n", "-t", "20"]).unwrap();
    let expected = stage.cluster.dump().unwrap();
    stage
        .cluster
        .sql("postgres", "SELECT pg_switch_wal()")
        .unwrap();
    let planned = stage.json(&["expire", "--max-chain", "1", "--dry-run"]);
    assert_eq!(planned.pointer("/done"), Some(&Value::Bool(false)));
    assert_eq!(labels(&stage).len(), 3, "a plan changes nothing");
    let done = stage.json(&["expire", "--max-chain", "1", over]);
    assert_eq!(number(&done, "/merge/new_length"), 1);
    assert!(number(&done, "/wal_files") > 0, "{done:#}");
    assert_eq!(labels(&stage).len(), 1);
    stage
        .cluster
        .stop(pgstrata_testbed::cluster::StopMode::Fast)
        .unwrap();
    let restored = stage.start_restored(&stage.restore("latest", &["--target-action", "promote"]));
    require_same_dump(&expected, &restored.dump().unwrap()).unwrap();
    restored.amcheck().unwrap();
}

#[test]
fn a_merged_chain_restores_to_the_same_bytes_on_15() {
    a_merged_chain_restores_to_the_same_bytes(Major::V15, Store::Directory);
}

#[test]
fn a_merged_chain_restores_to_the_same_bytes_on_18_from_s3() {
    a_merged_chain_restores_to_the_same_bytes(Major::V18, Store::S3);
}

/// Changes a byte here and there in the first pack of a layer, from its first frame on; answers the pack's key.
fn damage_pack(stage: &Stage, label: &str) -> String {
    let key = format!("main/layer/{label}/pack-000000");
    let path = stage.objects().join(&key);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes
        .iter_mut()
        .skip(60)
        .step_by(4096)
        .for_each(|byte| *byte ^= 1);
    std::fs::write(&path, bytes).unwrap();
    key
}

#[test]
fn a_merge_of_a_damaged_layer_names_the_pack_and_what_to_do() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    stage.backup(&["--type", "incr"]);
    let made = labels(&stage);
    let key = damage_pack(&stage, &made[0]);
    let verify = format!("pgstrata verify {}", made[0]);
    for command in [&["merge", &made[1]][..], &["expire", "--max-chain", "1"]] {
        let (code, log) = stage.fails(command);
        assert_eq!(code, 14, "{log}");
        for words in [
            "could not merge 2 layers",
            &format!("could not read \"{key}\": frame at "),
            &verify,
            "take a full backup",
        ] {
            assert!(log.contains(words), "\"{words}\" is not in:\n{log}");
        }
        assert_eq!(labels(&stage), made, "nothing goes");
    }
    let target = stage.target("restored").display().to_string();
    let restore = [
        "restore",
        "--target-dir",
        &target,
        "--target-type",
        "immediate",
    ];
    let (code, log) = stage.fails(&restore);
    assert_eq!(code, 14, "{log}");
    assert!(log.contains(&key) && log.contains(&verify), "{log}");
}

#[test]
fn expiry_says_what_it_needs_to_know() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let (code, why) = stage.fails(&["expire"]);
    assert_eq!(code, 2, "{why}");
    assert!(why.contains("--keep-full"), "{why}");
    let (code, why) = stage.fails(&["merge", "20261121-093305F"]);
    assert_eq!(code, 10, "{why}");
}
