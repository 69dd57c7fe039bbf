//! What a stage has in its repository, and what `info`, `check` and `verify` say of it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Stage, files, schema, text};

/// The directory of the cluster in the repository.
pub fn stored(stage: &Stage) -> PathBuf {
    let root = stage.repository.strip_prefix("file://").unwrap();
    Path::new(root).join("main")
}

/// The archive of the first timeline.
pub fn archive(stage: &Stage) -> PathBuf {
    stored(stage).join("wal/00000001")
}

/// Finishes a segment, and waits until it is archived.
pub fn switch(stage: &Stage) {
    stage
        .cluster
        .sql("postgres", "SELECT pg_logical_emit_message(false, '', '')")
        .unwrap();
    stage.archive_all();
}

/// Runs a command that prints a document; returns its exit code and the document.
pub fn document(stage: &Stage, arguments: &[&str]) -> (i32, Value) {
    let output = stage.run(&[&["--output", "json"], arguments].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::require(&document);
    (output.status.code().unwrap(), document)
}

pub fn check(stage: &Stage) -> (i32, Value) {
    document(stage, &["check", "--pgdata", &stage.pgdata()])
}

/// The kinds of a document's alarms.
pub fn kinds(info: &Value) -> Vec<&str> {
    let alarms = info["alarms"].as_array().unwrap().iter();
    alarms.map(|alarm| text(alarm, "/kind")).collect()
}

/// Names of the segments that are archived, in order.
pub fn segments(stage: &Stage) -> Vec<String> {
    files::segments(&archive(stage))
}

/// What is archived was archived an hour ago.
pub fn age(stage: &Stage) {
    files::age(&stored(stage).join("wal"), "1 hour ago");
}

/// The segments that so many switches bring into the archive.
pub fn archived_by_switches(stage: &Stage, count: usize) -> Vec<String> {
    let before = segments(stage);
    for _ in 0..count {
        switch(stage);
    }
    let mut segments = segments(stage);
    segments.retain(|name| !before.contains(name));
    segments
}

/// Takes a backup, which stores its own WAL, whatever it says of the archiver.
pub fn backup_alone(stage: &Stage) -> String {
    let pgdata = stage.pgdata();
    let (_, report) = document(stage, &["backup", "-D", &pgdata, "--type", "full"]);
    assert!(text(&report, "/wal").starts_with("stream"), "{report:#}");
    text(&report, "/label").to_owned()
}
