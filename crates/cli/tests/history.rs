//! A parent that does not lie in the data directory's past: whatever a source says of it, pages
//! are compared, and restored rows are the server's. One that does is stood upon without.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use pgstrata_testbed::cluster::{Builder, Cluster, Major, StopMode, TrackedServer};
use serde_json::Value;
use support::files::copy_all;
use support::past::{
    backup, branch, go_past, label, require_compared, require_restores, require_source, sql, stage,
    summarizing, tracked, tracking,
};
use support::{Stage, Store, number, text};

const LINEAGE: &str = "pgstrata.lineage";

/// Past what was rolled back the next backup compares, and the one after it is fast again; both restore.
fn require_no_past(stage: &Stage, parent: &str, source: &str) {
    go_past(stage);
    require_compared(stage, parent);
    go_past(stage);
    let (next, _) = backup(stage, &[]);
    require_source(&next, source);
    require_restores(stage, "at-last");
}

/// The parent was made on a branch that an in-place restore on the same timeline rolled back.
fn a_branch_that_was_restored_away_is_no_past(stage: &Stage, source: &str) {
    let full = label(&stage.backup(&["--type", "full"]));
    branch(stage);
    let (second, _) = backup(stage, &["--type", "incr"]);
    require_source(&second, source);
    stage.cluster.stop(StopMode::Fast).unwrap();
    let pgdata = stage.pgdata();
    let in_place = ["restore", &full, "--target-dir", &pgdata, "--delta"];
    let none = [&in_place[..], &["--target-type", "none"]].concat();
    let (code, why) = stage.fails(&none);
    assert_eq!(code, 2, "{why}");
    assert!(why.contains("--same-timeline"), "{why}");
    assert!(
        !Path::new(&pgdata)
            .join("pgstrata.restore-incomplete")
            .exists()
    );
    stage.ok(&[&none[..], &["--same-timeline"]].concat());
    stage.cluster.start().unwrap();
    require_no_past(stage, &label(&second), source);
}

/// The parent was made after the snapshot to which the storage was set back.
fn a_branch_that_a_snapshot_took_back_is_no_past(builder: Builder, source: &str) {
    let stage = stage(builder);
    stage.backup(&["--type", "full"]);
    stage.cluster.stop(StopMode::Fast).unwrap();
    let snapshot = Snapshot::take(stage.cluster.pgdata());
    stage.cluster.start().unwrap();
    let (first, _) = backup(&stage, &["--type", "incr"]);
    require_compared_after_start(&first);
    branch(&stage);
    let (second, _) = backup(&stage, &["--type", "incr"]);
    require_source(&second, source);
    stage.cluster.stop(StopMode::Fast).unwrap();
    snapshot.put_back();
    stage.cluster.start().unwrap();
    require_no_past(&stage, &label(&second), source);
}

/// An earlier state was copied over the directory: what is newer stays, the lineage file among it.
fn a_branch_that_was_copied_away_is_no_past(stage: &Stage, source: &str) {
    stage.cluster.stop(StopMode::Fast).unwrap();
    let aside = tempfile::tempdir().unwrap();
    let data = stage.cluster.pgdata();
    copy_all(&data.join("."), aside.path());
    stage.cluster.start().unwrap();
    stage.backup(&["--type", "full"]);
    branch(stage);
    let (second, _) = backup(stage, &["--type", "incr"]);
    require_source(&second, source);
    stage.cluster.stop(StopMode::Fast).unwrap();
    copy_all(&aside.path().join("."), data);
    assert!(data.join(LINEAGE).exists());
    stage.cluster.start().unwrap();
    require_no_past(stage, &label(&second), source);
}

#[test]
fn rule_13_1_a_branch_that_was_copied_away_is_no_past_for_lsns() {
    a_branch_that_was_copied_away_is_no_past(&stage(Cluster::builder(Major::V15)), "lsn");
}

#[test]
fn rule_13_1_a_branch_that_was_copied_away_is_no_past_for_summaries() {
    a_branch_that_was_copied_away_is_no_past(&stage(summarizing(Major::V18)), "summary");
}

#[test]
fn rule_13_1_a_branch_that_was_copied_away_is_no_past_for_the_tracker() {
    tracked(|stage| a_branch_that_was_copied_away_is_no_past(stage, "tracker"));
}

/// A restart alone is no proof of anything, and the tracker alone knows that nothing was put back while no server ran.
#[test]
fn after_a_restart_the_tracker_is_believed_and_others_compare_once() {
    tracked(|stage| {
        stage.backup(&["--type", "full"]);
        for kind in ["incr", "incr", "diff"] {
            stage.cluster.restart().unwrap();
            let (layer, _) = backup(stage, &["--type", kind, "--require-tracker"]);
            require_source(&layer, "tracker");
        }
    });
    let stage = stage(Cluster::builder(Major::V15));
    stage.backup(&["--type", "full"]);
    stage.cluster.restart().unwrap();
    let (layer, _) = backup(&stage, &["--type", "incr"]);
    require_compared_after_start(&layer);
    require_source(&backup(&stage, &["--type", "incr"]).0, "lsn");
    require_restores(&stage, "restarted");
}

fn require_compared_after_start(layer: &Value) {
    require_source(layer, "digest");
    let reason = text(layer, "/change_source/reason");
    assert!(reason.contains("the server was started since"), "{reason}");
}

/// The files of a directory, put back into the very same inodes, as storage does.
struct Snapshot {
    data: PathBuf,
    aside: tempfile::TempDir,
}

impl Snapshot {
    fn take(data: &Path) -> Self {
        let aside = tempfile::tempdir().unwrap();
        copy_all(&data.join("."), aside.path());
        Self {
            data: data.to_owned(),
            aside,
        }
    }

    fn put_back(self) {
        put_back(self.aside.path(), &self.data);
    }
}

fn put_back(from: &Path, to: &Path) {
    let names = |directory: &Path| -> BTreeSet<_> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    let (old, new) = (names(from), names(to));
    for name in new.difference(&old) {
        let path = to.join(name);
        match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir_all(&path).unwrap(),
            false => fs::remove_file(&path).unwrap(),
        }
    }
    for name in &old {
        let (source, target) = (from.join(name), to.join(name));
        if !new.contains(name) {
            copy_all(&source, &target);
        } else if source.is_dir() {
            put_back(&source, &target);
        } else {
            let mut file = OpenOptions::new().write(true).truncate(true).open(&target);
            let file: &mut fs::File = file.as_mut().unwrap();
            io::copy(&mut fs::File::open(&source).unwrap(), file).unwrap();
            file.flush().unwrap();
        }
    }
}

#[test]
fn rule_13_1_a_branch_that_was_restored_away_is_no_past_for_lsns() {
    a_branch_that_was_restored_away_is_no_past(&stage(Cluster::builder(Major::V15)), "lsn");
}

#[test]
fn rule_13_1_a_branch_that_was_restored_away_is_no_past_for_summaries() {
    a_branch_that_was_restored_away_is_no_past(&stage(summarizing(Major::V17)), "summary");
}

#[test]
fn rule_13_1_a_branch_that_was_restored_away_is_no_past_for_the_tracker() {
    tracked(|stage| a_branch_that_was_restored_away_is_no_past(stage, "tracker"));
}

#[test]
fn rule_13_1_a_branch_that_a_snapshot_took_back_is_no_past_for_lsns() {
    a_branch_that_a_snapshot_took_back_is_no_past(Cluster::builder(Major::V15), "lsn");
}

#[test]
fn rule_13_1_a_branch_that_a_snapshot_took_back_is_no_past_for_summaries() {
    a_branch_that_a_snapshot_took_back_is_no_past(summarizing(Major::V18), "summary");
}

#[test]
fn rule_13_1_a_branch_that_a_snapshot_took_back_is_no_past_for_the_tracker() {
    tracked(|stage| {
        stage.backup(&["--type", "full", "--require-tracker"]);
        stage.cluster.stop(StopMode::Fast).unwrap();
        let snapshot = Snapshot::take(stage.cluster.pgdata());
        stage.cluster.start().unwrap();
        branch(stage);
        let (second, _) = backup(stage, &["--require-tracker"]);
        require_source(&second, "tracker");
        stage.cluster.stop(StopMode::Fast).unwrap();
        snapshot.put_back();
        stage.cluster.start().unwrap();
        go_past(stage);
        let pgdata = stage.pgdata();
        let (code, why) = stage.fails(&["backup", "-D", &pgdata, "--require-tracker"]);
        assert_eq!(code, 13, "{why}");
        assert!(why.contains("not proved to lie in the past"), "{why}");
        require_compared(stage, &label(&second));
        go_past(stage);
        require_source(&backup(stage, &[]).0, "tracker");
        require_restores(stage, "at-last");
    });
}

/// The token of the layer was made before the snapshot, and the layer holds pages from after it.
#[test]
fn a_snapshot_from_the_middle_of_a_backup_does_not_have_its_layer_in_the_past() {
    tracked(|stage| {
        stage.backup(&["--type", "full"]);
        // Read in the order of their numbers: the last one is still to come when the first pack is stored.
        sql(
            stage,
            "CREATE TABLE ballast AS SELECT g, repeat('b', 900) AS t FROM generate_series(1, 30000) g;
             CREATE TABLE late AS SELECT id, state, pad FROM old; CHECKPOINT",
        );
        let child = stage.begin_backup(&["--type", "full"]);
        // A crash now is the state that a snapshot of the storage holds.
        let postmaster = stage.cluster.postmaster().unwrap().to_string();
        support::process::signal(&child, "-STOP");
        signal_server(&postmaster, "-STOP");
        let snapshot = Snapshot::take(stage.cluster.pgdata());
        signal_server(&postmaster, "-CONT");
        sql(
            stage,
            "UPDATE late SET state = 2 WHERE id % 3 = 1; CHECKPOINT",
        );
        support::process::signal(&child, "-CONT");
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        stage.cluster.stop(StopMode::Immediate).unwrap();
        snapshot.put_back();
        fs::remove_file(stage.cluster.pgdata().join("postmaster.pid")).unwrap();
        stage.cluster.start().unwrap();
        go_past(stage);
        let info = stage.json(&["info"]);
        let newest = text(&info, "/layers/1/label");
        require_compared(stage, newest);
    });
}

/// Sends a signal to a server's processes, the postmaster first.
fn signal_server(postmaster: &str, signal: &str) {
    let children = Command::new("pgrep").args(["-P", postmaster]).output();
    let children = String::from_utf8(children.unwrap().stdout).unwrap();
    for process in [postmaster].into_iter().chain(children.lines()) {
        let sent = Command::new("kill").args([signal, process]).status();
        assert!(sent.unwrap().success(), "kill {signal} {process}");
    }
}

/// Of a restored directory nothing is proved: the first backup of it compares.
#[test]
fn a_restored_server_compares_first() {
    let stage = stage(Cluster::builder(Major::V15));
    let full = label(&stage.backup(&["--type", "full"]));
    branch(&stage);
    let second = label(&stage.backup(&["--type", "incr"]));
    stage.cluster.stop(StopMode::Fast).unwrap();
    let kinds = ["incr", "diff"];
    for (name, of) in [("newest", &second), ("older", &full)] {
        let then = ["--target-type", "immediate", "--target-action", "promote"];
        let target = stage.restore(name, &[&[of.as_str()], &then[..]].concat());
        let restored = stage.start_restored(&target);
        for kind in kinds {
            require_source(&plan_of(&stage, &restored, kind), "digest");
        }
        restored.stop(StopMode::Fast).unwrap();
        let copy = stage.target(&format!("copy-of-{name}"));
        copy_all(&target, &copy);
        let copy = stage.start_restored(&copy);
        for kind in kinds {
            let plan = plan_of(&stage, &copy, kind);
            require_source(&plan, "digest");
            let reason = text(&plan, "/change_source/reason");
            let doubts = ["is a copy", "is not part of the history"];
            assert!(
                doubts.iter().any(|doubt| reason.contains(doubt)),
                "{reason}"
            );
        }
    }
}

/// What `info` says of the layer of that label.
fn beside(stage: &Stage, label: &str) -> Value {
    let info = stage.json(&["info", label]);
    info["layers"][0]["beside"].clone()
}

fn require_beside(stage: &Stage, label: &str, of: &str, why: &str) {
    let beside = beside(stage, label);
    assert_eq!(text(&beside, "/label"), of);
    let reason = text(&beside, "/reason");
    assert!(reason.contains(why), "{reason}");
    assert!(
        stage
            .ok(&["info", label])
            .contains("not known to come after")
    );
}

/// What a restore would say of `layer` and the one beside it.
fn notes_of(stage: &Stage, arguments: &[&str]) -> Vec<String> {
    let target = stage.target("planned").display().to_string();
    let plan = ["restore", "--target-dir", &target, "--dry-run"];
    let plan = stage.json(&[&plan[..], arguments].concat());
    let notes = plan["notes"].as_array().unwrap().iter();
    let notes = notes.map(|note| note.as_str().unwrap().to_owned());
    notes
        .filter(|note| note.contains("may be of another server"))
        .collect()
}

/// A copy goes on with the timeline of its source, and backs itself up to the same repository.
#[test]
fn layers_of_a_server_and_of_its_copy_are_told_apart() {
    let stage = stage(Cluster::builder(Major::V15));
    let first = label(&stage.backup(&["--type", "full"]));
    stage.cluster.stop(StopMode::Fast).unwrap();
    let data = stage.target("copy");
    copy_all(stage.cluster.pgdata(), &data);
    let copy = stage.start_restored(&data);
    let work = "UPDATE old SET state = 5 WHERE id % 2 = 0; SELECT pg_switch_wal()";
    copy.sql("postgres", work).unwrap();
    let (pgdata, conninfo) = (data.display().to_string(), copy.conninfo("postgres"));
    let of_copy = ["backup", "-D", &pgdata, "-d", &conninfo, "--type", "full"];
    let output = stage.run(&[&["--output", "json"], &of_copy[..]].concat());
    let report = stage.require_backup(&output);
    assert!(text(&report, "/warnings/0").contains(&first), "{report:#}");
    let second = label(&report);
    require_beside(&stage, &second, &first, "is a copy");
    let notes = notes_of(&stage, &[]);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains(&first) && notes[0].contains(&second),
        "{notes:?}"
    );
    // Who names a layer means the server of that one.
    let alone = ["--target-type", "immediate"];
    for named in [&first, &second] {
        let notes = notes_of(&stage, &[&[named.as_str()], &alone[..]].concat());
        assert_eq!(notes, Vec::<String>::new(), "{named}");
    }
    // The server itself does not come after its copy's layer; the layer after that comes after its own.
    copy.stop(StopMode::Fast).unwrap();
    stage.cluster.start().unwrap();
    branch(&stage);
    branch(&stage);
    let third = label(&stage.backup(&["--type", "full"]));
    require_beside(&stage, &third, &second, "does not list it");
    branch(&stage);
    let fourth = label(&stage.backup(&["--type", "incr"]));
    assert_eq!(beside(&stage, &fourth), Value::Null);
    assert_eq!(notes_of(&stage, &[]).len(), 2);
}

/// The layer was made after the snapshot to which the storage was set back, and the first one after it went elsewhere.
#[test]
fn a_layer_after_storage_was_set_back_does_not_come_after_the_one_before() {
    let stage = stage(Cluster::builder(Major::V18));
    let pgdata = stage.pgdata();
    let other = stage.cluster.create_dir("other").unwrap();
    let other = format!("file://{}", other.display());
    stage.ok(&["--repo", &other, "init", "-D", &pgdata]);
    let older = label(&stage.backup(&["--type", "full"]));
    stage.cluster.stop(StopMode::Fast).unwrap();
    let snapshot = Snapshot::take(stage.cluster.pgdata());
    stage.cluster.start().unwrap();
    let first = label(&stage.backup(&["--type", "full"]));
    assert_eq!(
        beside(&stage, &first),
        Value::Null,
        "a restart is no reason"
    );
    stage.cluster.stop(StopMode::Fast).unwrap();
    snapshot.put_back();
    stage.cluster.start().unwrap();
    stage.ok(&["--repo", &other, "backup", "-D", &pgdata]);
    go_past(&stage);
    let second = label(&stage.backup(&["--type", "full"]));
    require_beside(&stage, &second, &first, "does not list it");
    let notes = notes_of(&stage, &[]);
    assert!(notes.len() == 1 && !notes[0].contains(&older), "{notes:?}");
    // Merged or not: the state is the same.
    branch(&stage);
    let third = label(&stage.backup(&["--type", "incr"]));
    assert_eq!(beside(&stage, &third), Value::Null);
}

/// What a backup of another server would do.
fn plan_of(stage: &Stage, server: &Cluster, kind: &str) -> Value {
    let (pgdata, conninfo) = (
        server.pgdata().display().to_string(),
        server.conninfo("postgres"),
    );
    let of = ["backup", "-D", &pgdata, "-d", &conninfo, "--wal", "stream"];
    stage.json(&[&of[..], &["--dry-run", "--type", kind]].concat())
}

/// Who may not write into the data directory is told so, and gets a layer whose children compare.
#[test]
fn a_directory_that_cannot_be_written_makes_the_next_backup_compare() {
    let stage = stage(Cluster::builder(Major::V18));
    stage.backup(&["--type", "full"]);
    let data = stage.cluster.pgdata().to_owned();
    let layer = data.join(LINEAGE);
    let before = fs::read(&layer).unwrap();
    assert!(before.starts_with(b"pgstrata lineage 2 "));
    let in_the_way = data.join("pgstrata.lineage.tmp");
    fs::create_dir(&in_the_way).unwrap();
    branch(&stage);
    let (layer_report, log) = backup(&stage, &[]);
    require_source(&layer_report, "lsn");
    let said = |line: &&str| line.contains("WARN") && line.contains("could not write");
    assert_eq!(log.lines().filter(said).count(), 1, "{log}");
    assert_eq!(fs::read(&layer).unwrap(), before);
    fs::remove_dir(&in_the_way).unwrap();
    branch(&stage);
    require_compared(&stage, &label(&layer_report));
    branch(&stage);
    let (last, _) = backup(&stage, &[]);
    require_source(&last, "lsn");
    // It is of this directory, and in no layer.
    let files = stage.restore("no-lineage", &["--target-type", "immediate"]);
    assert_ne!(
        fs::read(files.join(LINEAGE)).unwrap(),
        fs::read(&layer).unwrap()
    );
    assert!(number(&last, "/totals/files") > 0);
}

/// Two repositories of one server do not forget each other's layers.
#[test]
fn another_repository_has_a_line_of_its_own() {
    let stage = stage(Cluster::builder(Major::V15));
    stage.backup(&["--type", "full"]);
    let other = stage.cluster.create_dir("other").unwrap();
    let other = format!("file://{}", other.display());
    let pgdata = stage.pgdata();
    stage.ok(&["--repo", &other, "init", "-D", &pgdata]);
    stage.ok(&["--repo", &other, "backup", "-D", &pgdata]);
    branch(&stage);
    require_source(&backup(&stage, &[]).0, "lsn");
    let there = stage.json(&["--repo", &other, "backup", "-D", &pgdata]);
    require_source(&there, "lsn");
}

/// Checksums are switched on while the server is down: all pages change, and their LSNs do not.
#[test]
fn checksums_that_were_switched_make_every_source_compare() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let stage = stage(
        tracking(&server)
            .checksums(false)
            .conf("summarize_wal", "on"),
    );
    sql(&stage, "CREATE EXTENSION pgstrata");
    stage.backup(&["--type", "full", "--require-tracker"]);
    // As after a kill of the server between its last checkpoint and the last saving of the map.
    sql(&stage, "CHECKPOINT");
    let map = stage.cluster.pgdata().join("pgstrata.map");
    let unclean = fs::read(&map).unwrap();
    stage.cluster.stop(StopMode::Fast).unwrap();
    fs::write(&map, unclean).unwrap();
    stage
        .cluster
        .run("pg_checksums", &["--enable", "-D", &stage.pgdata()])
        .unwrap();
    stage.cluster.start().unwrap();
    for source in ["auto", "tracker", "summary", "lsn"] {
        let plan = stage.backup(&["--dry-run", "--change-source", source]);
        require_source(&plan, "digest");
        let reason = text(&plan, "/change_source/reason");
        assert!(reason.contains("checksums were switched"), "{reason}");
    }
    require_source(&backup(&stage, &[]).0, "digest");
    require_restores(&stage, "with-checksums");
}

/// A segment of the same name that another server of the same timeline wrote: recovery would end there, and open.
fn wal_of_another_history_is_found(major: Major) {
    let builder = Cluster::builder(major).initdb_arg("--wal-segsize=1");
    let stage = Stage::archiving(builder.conf("autovacuum", "off"), Store::Directory);
    let rows = |server: &Cluster, count: u32| {
        let more = format!("INSERT INTO t SELECT generate_series(1, {count})");
        for query in [&more, "SELECT pg_switch_wal()"] {
            server.sql("postgres", query).unwrap();
        }
    };
    sql(&stage, "CREATE TABLE t (i int)");
    stage.backup(&["--type", "full"]);
    let target = stage.restore("other", &["--target-type", "none", "--same-timeline"]);
    let other = Cluster::adopt(major, &target).start().unwrap();
    for _ in 0..4 {
        rows(&stage.cluster, 300);
        rows(&other, 200);
    }
    stage.archive_all();
    let verify = |code: i32| {
        let output = stage.run(&["--output", "json", "verify"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{report:#}");
        report["findings"].clone()
    };
    assert_eq!(verify(0), Value::Array(Vec::new()));

    let mine = sql(&stage, "SELECT pg_walfile_name(pg_switch_wal())");
    let archived = stage.objects().join("main/wal/00000001");
    let names = fs::read_dir(&archived).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.len() == 24).collect();
    names.sort();
    names.retain(|name| *name < mine && target.join("pg_wal").join(name).exists());
    let exchanged = &names[names.len() - 2];
    let elsewhere = format!("file://{}", stage.target("elsewhere").display());
    let pgdata = target.display().to_string();
    stage.ok(&["--repo", &elsewhere, "init", "--pgdata", &pgdata]);
    let theirs = target.join("pg_wal").join(exchanged).display().to_string();
    stage.ok(&["--repo", &elsewhere, "archive-push", &theirs]);
    let object = stage
        .target("elsewhere")
        .join("main/wal/00000001")
        .join(exchanged);
    fs::copy(object, archived.join(exchanged)).unwrap();

    let findings = verify(14);
    let found = &findings[0];
    assert_eq!(text(found, "/kind"), "wal-damaged", "{findings:#}");
    assert!(
        text(found, "/object").ends_with(exchanged.as_str()),
        "{findings:#}"
    );
    assert!(
        text(found, "/message").contains("the server opens without"),
        "{findings:#}"
    );
}

#[test]
fn wal_of_another_history_is_found_on_15() {
    wal_of_another_history_is_found(Major::V15);
}

#[test]
fn wal_of_another_history_is_found_on_18() {
    wal_of_another_history_is_found(Major::V18);
}
