//! A parent that was merged, or that is gone: the next backup stands on what is left, by the source that it would have used
//! anyway, stores all that changed since then, and restores to what the server holds.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::PathBuf;

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;
use support::past::{
    backup, label, require_restores, require_source, sql, stage, summarizing, tracked,
};
use support::{Stage, number, text};

/// Changes rows that no other round changes.
fn work(stage: &Stage, round: u32) {
    let first = round * 2000;
    let script = format!(
        "UPDATE old SET state = {round} WHERE id BETWEEN {first} AND {first} + 1000; INSERT INTO new VALUES ({round}, 'x')"
    );
    sql(stage, &script);
}

/// The next backup stands on that layer, without comparing.
fn require_on(stage: &Stage, kind: &str, parent: &str, source: &str) -> Value {
    let (layer, _) = backup(stage, &["--type", kind]);
    assert_eq!(text(&layer, "/parent"), parent);
    require_source(&layer, source);
    layer
}

/// Merges layers into one, in whose place they go; the restores of this test are over.
fn merged(stage: &Stage, arguments: &[&str]) -> String {
    let merge = ["merge", "--remove-inputs", "--ignore-restores"];
    label(&stage.json(&[&merge[..], arguments].concat()))
}

fn labels(stage: &Stage) -> Vec<String> {
    let info = stage.json(&["info"]);
    info["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(label)
        .collect()
}

fn a_merged_layer_is_stood_upon_without_comparing(stage: &Stage, source: &str) {
    let full = label(&stage.backup(&["--type", "full"]));
    work(stage, 1);
    let first = label(&require_on(stage, "incr", &full, source));
    work(stage, 2);
    let second = label(&require_on(stage, "incr", &first, source));

    // Two increments have become one.
    let both = merged(stage, &[&second, "--from", &first]);
    assert_eq!(labels(stage), [full, both.clone()]);
    work(stage, 3);
    let third = label(&require_on(stage, "incr", &both, source));

    // A full layer with the state of the second increment, which the third one is not part of.
    let root = merged(stage, &[&both]);
    assert_eq!(labels(stage), [root.clone(), third]);
    work(stage, 4);
    let differential = label(&require_on(stage, "diff", &root, source));
    require_restores(stage, "differential");

    // The third one stands on the root, which stays for it.
    stage.ok(&["expire", "--max-chain", "1", "--ignore-restores"]);
    let all = labels(stage);
    assert!(!all.contains(&differential), "{all:?}");
    let newest = all.last().unwrap();
    assert!(all.len() == 3 && newest.ends_with('F'), "{all:?}");
    work(stage, 5);
    require_on(stage, "incr", newest, source);
    require_restores(stage, "at-last");
}

/// Somebody has removed the newest layer, or its manifest alone.
fn what_a_removed_layer_held_is_stored_again(stage: &Stage, source: &str) {
    let full = label(&stage.backup(&["--type", "full"]));
    work(stage, 1);
    let first = label(&require_on(stage, "incr", &full, source));
    work(stage, 2);
    let second = require_on(stage, "incr", &first, source);
    fs::remove_dir_all(directory(stage, &second)).unwrap();
    work(stage, 3);
    let third = require_on(stage, "incr", &first, source);
    assert!(stored(&third) > stored(&second), "{third:#}");
    require_restores(stage, "without-second");

    fs::remove_file(directory(stage, &third).join("manifest")).unwrap();
    work(stage, 4);
    let (fourth, log) = backup(stage, &["--type", "incr"]);
    assert!(log.contains("is lost: the layer was finished"), "{log}");
    assert_eq!(text(&fourth, "/parent"), first);
    require_source(&fourth, source);
    assert!(stored(&fourth) > stored(&third), "{fourth:#}");
    require_restores(stage, "without-third");
}

/// Where the objects of that layer are.
fn directory(stage: &Stage, layer: &Value) -> PathBuf {
    stage.objects().join("main/layer").join(label(layer))
}

fn stored(layer: &Value) -> u64 {
    number(layer, "/totals/pages_stored")
}

#[test]
fn a_merged_layer_is_stood_upon_without_comparing_by_lsns() {
    let stage = stage(Cluster::builder(Major::V15));
    a_merged_layer_is_stood_upon_without_comparing(&stage, "lsn");
}

#[test]
fn a_merged_layer_is_stood_upon_without_comparing_by_summaries() {
    let stage = stage(summarizing(Major::V17));
    a_merged_layer_is_stood_upon_without_comparing(&stage, "summary");
}

#[test]
fn a_merged_layer_is_stood_upon_without_comparing_by_the_tracker() {
    tracked(|stage| a_merged_layer_is_stood_upon_without_comparing(stage, "tracker"));
}

#[test]
fn what_a_removed_layer_held_is_stored_again_by_lsns() {
    let stage = stage(Cluster::builder(Major::V15));
    what_a_removed_layer_held_is_stored_again(&stage, "lsn");
}

#[test]
fn what_a_removed_layer_held_is_stored_again_by_summaries() {
    let stage = stage(summarizing(Major::V18));
    what_a_removed_layer_held_is_stored_again(&stage, "summary");
}

#[test]
fn what_a_removed_layer_held_is_stored_again_by_the_tracker() {
    tracked(|stage| what_a_removed_layer_held_is_stored_again(stage, "tracker"));
}
