//! A server that was copied, or set back, under the name of its original: its backups take no name in the archive that the
//! original will need, and say why.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use serde_json::Value;
use support::files::{copy_all, flip, segments};
use support::standby::{backup_of, catch_up};
use support::{PATIENCE, Stage, Store, text};

const WARNINGS: i32 = 3;
const EXISTS: i32 = 11;
const BUSY: i32 = 12;
const REFUSED: i32 = 13;

const FINISH: &str = "SELECT pg_create_restore_point('x'), pg_switch_wal()";
const ROWS: &str = "SELECT string_agg(i::text, ',' ORDER BY i) FROM t";
const REFUSED_BY_ARCHIVE: &str = "SELECT coalesce(last_failed_time > last_archived_time, last_failed_time IS NOT NULL) FROM pg_stat_archiver";

/// What a server does not say when its WAL is of another history.
const MISLEADING: [&str; 3] = [
    "stores its own WAL",
    "or use --wal stream",
    "arrive in the archive",
];

/// Every object of the repository, by its path.
fn keys(stage: &Stage) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![stage.objects()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => assert!(found.insert(path.display().to_string())),
            }
        }
    }
    found
}

fn insert(server: &Cluster, row: u32) {
    let script = format!("INSERT INTO t VALUES ({row})");
    server.sql("postgres", &script).unwrap();
}

/// A server with a table and a layer.
fn archiving(major: Major) -> Stage {
    let builder = Cluster::builder(major).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    stage
        .cluster
        .sql("postgres", "CREATE TABLE t (i int)")
        .unwrap();
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    stage
}

/// The stopped server's directory, as cp(1) copies it.
fn copied(stage: &Stage) -> std::path::PathBuf {
    let aside = stage.cluster.create_dir("copied").unwrap();
    stage.cluster.stop(StopMode::Fast).unwrap();
    copy_all(&stage.cluster.pgdata().join("."), &aside);
    aside
}

fn on(server: &Cluster, words: &[&str]) -> Vec<String> {
    let pgdata = server.pgdata().display().to_string();
    let conninfo = server.conninfo("postgres");
    let server = ["-D".to_owned(), pgdata, "-d".to_owned(), conninfo];
    let words = words.iter().map(|&word| word.to_owned());
    words.chain(server).collect()
}

fn run_on(stage: &Stage, server: &Cluster, words: &[&str]) -> Output {
    let words = on(server, words);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runs = std::iter::repeat_with(|| stage.run(&words));
    // The session of the one before may not have ended yet.
    let done = { runs }.find(|output| output.status.code() != Some(BUSY));
    done.unwrap()
}

/// What the command said, on both streams.
fn said(output: &Output) -> String {
    let (out, log) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(log)
    )
}

/// No backup of `server` leaves anything in the repository, and each says why; so does a check.
fn stores_nothing(stage: &Stage, server: &Cluster) {
    let waits = server
        .sql("postgres", "SELECT last_failed_wal FROM pg_stat_archiver")
        .unwrap();
    let before = keys(stage);
    for more in [
        &[][..],
        &["--wal", "stream"],
        &["--wal", "archive"],
        &["--dry-run"],
        &["--type", "full"],
    ] {
        let output = run_on(stage, server, &[&["backup"], more].concat());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(EXISTS), "{more:?}: {said}");
        let why = format!("the archive already has WAL segment \"{waits}\" with other contents");
        for words in [&why, "it is of another history", "init --cluster NAME"] {
            assert!(said.contains(words), "{more:?}: {words}: {said}");
        }
        assert!(!said.contains("WARN"), "{said}");
        says_nothing_misleading(&said);
        assert_eq!(keys(stage), before, "{more:?}");
    }
    let output = run_on(stage, server, &["check"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(REFUSED), "{said}");
    assert!(said.contains("it is of another history"), "{said}");
    assert!(said.contains("init --cluster NAME"), "{said}");
    says_nothing_misleading(&said);
    assert_eq!(keys(stage), before);
}

fn says_nothing_misleading(said: &str) {
    for misleading in MISLEADING {
        assert!(!said.contains(misleading), "{misleading}: {said}");
    }
}

/// The rows of the newest state in the archive.
fn restored(stage: &Stage, name: &str) -> String {
    let restored = stage.start_restored(&stage.restore(name, &["--target-action", "promote"]));
    restored.sql("postgres", ROWS).unwrap()
}

fn a_copy_beside_its_original_takes_no_name_in_the_archive(major: Major) {
    let stage = archiving(major);
    let aside = copied(&stage);
    stage.cluster.start().unwrap();
    let original = &stage.cluster;
    insert(original, 100);
    stage.archive_all();
    let copy = Cluster::adopt(major, &aside).start().unwrap();
    for row in [200, 201] {
        insert(&copy, row);
        copy.sql("postgres", FINISH).unwrap();
    }
    copy.wait_for("postgres", REFUSED_BY_ARCHIVE, PATIENCE)
        .unwrap();
    stores_nothing(&stage, &copy);
    for row in [101, 102, 103] {
        insert(original, row);
        stage.archive_all();
    }
    let failed = "SELECT failed_count FROM pg_stat_archiver";
    assert_eq!(original.sql("postgres", failed).unwrap(), "0");
    // What waits in the copy is by now refused at both ends.
    stores_nothing(&stage, &copy);
    stage.backup(&[]);
    insert(original, 104);
    stage.archive_all();
    assert_eq!(restored(&stage, "all"), "100,101,102,103,104");
    stage.ok(&["verify"]);
}

#[test]
fn a_copy_beside_its_original_takes_no_name_in_the_archive_on_15() {
    a_copy_beside_its_original_takes_no_name_in_the_archive(Major::V15);
}

#[test]
fn a_copy_beside_its_original_takes_no_name_in_the_archive_on_18() {
    a_copy_beside_its_original_takes_no_name_in_the_archive(Major::V18);
}

#[test]
fn a_server_that_was_set_back_takes_no_name_in_the_archive() {
    let stage = archiving(Major::V15);
    let aside = copied(&stage);
    stage.cluster.start().unwrap();
    insert(&stage.cluster, 100);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    fs::remove_dir_all(stage.cluster.pgdata()).unwrap();
    copy_all(&aside, stage.cluster.pgdata());
    stage.cluster.start().unwrap();
    // Beyond all that the archive has.
    for row in 200..205 {
        insert(&stage.cluster, row);
        stage.cluster.sql("postgres", FINISH).unwrap();
    }
    let failing = stage
        .cluster
        .wait_for("postgres", REFUSED_BY_ARCHIVE, PATIENCE);
    failing.unwrap();
    stores_nothing(&stage, &stage.cluster);
    assert_eq!(restored(&stage, "before"), "100");
}

/// A server whose archiver does not work, and the name of a segment that waits for it.
fn silent_with_one_that_waits() -> (Stage, String) {
    let builder = Cluster::builder(Major::V15).conf("archive_mode", "on");
    let stage = Stage::silent(builder.conf("archive_command", "false"), Store::Directory);
    stage.cluster.sql("postgres", FINISH).unwrap();
    let waiting = "SELECT count(*) > 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    stage
        .cluster
        .wait_for("postgres", waiting, PATIENCE)
        .unwrap();
    let oldest = "SELECT min(replace(name, '.ready', '')) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    let oldest = stage.cluster.sql("postgres", oldest).unwrap();
    (stage, oldest)
}

/// A backup that stores its own WAL: what it warns of.
fn warnings_of(stage: &Stage) -> String {
    let pgdata = stage.pgdata();
    let words = ["--output", "json", "backup", "-D", &pgdata];
    let output = stage.run(&[&words[..], &["--wal", "stream", "--type", "full"]].concat());
    assert_eq!(output.status.code(), Some(WARNINGS), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["warnings"].to_string()
}

/// It was archived before the server crashed, or by hand; or what the archive has of it is damaged, and nobody knows.
#[test]
fn what_waits_and_is_there_is_the_same_or_not_known() {
    let (stage, waits) = silent_with_one_that_waits();
    let path = stage.cluster.pgdata().join("pg_wal").join(&waits);
    stage.ok(&["archive-push", &path.display().to_string()]);
    let warnings = warnings_of(&stage);
    assert!(warnings.contains("the server's archiver"), "{warnings}");
    assert!(!warnings.contains("is not known"), "{warnings}");

    let object = stage.objects().join("main/wal/00000001").join(&waits);
    flip(&object, |_| 0);
    let warnings = warnings_of(&stage);
    assert!(warnings.contains(&waits), "{warnings}");
    assert!(
        warnings.contains("is of another history than this server is not known"),
        "{warnings}"
    );
    let output = run_on(&stage, &stage.cluster, &["check", "--wal", "stream"]);
    let check = said(&output);
    assert_eq!(output.status.code(), Some(WARNINGS), "{check}");
    assert!(check.contains("is not known"), "{check}");
}

/// The oldest is the server's own, and one behind it is not.
#[test]
fn an_own_segment_before_them_does_not_hide_those_of_another_server() {
    let (stage, waits) = silent_with_one_that_waits();
    let wal = stage.cluster.pgdata().join("pg_wal");
    stage.ok(&["archive-push", &wal.join(&waits).display().to_string()]);
    stage.cluster.sql("postgres", FINISH).unwrap();
    let next = segments(&wal).into_iter().find(|name| *name > waits);
    let next = next.unwrap();
    let other = stage.cluster.create_dir("other").unwrap().join(&next);
    fs::copy(wal.join(&next), &other).unwrap();
    flip(&other, |_| 5000);
    stage.cluster.own(&other).unwrap();
    stage.ok(&["archive-push", &other.display().to_string()]);
    let before = keys(&stage);
    let output = run_on(&stage, &stage.cluster, &["backup", "--wal", "stream"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(EXISTS), "{said}");
    assert!(
        said.contains(&format!("WAL segment \"{next}\" with other contents")),
        "{said}"
    );
    assert_eq!(keys(&stage), before);
}

fn delta(pgdata: &str) -> [&str; 7] {
    [
        "restore",
        "--target-dir",
        pgdata,
        "--delta",
        "--target-type",
        "immediate",
        "--server-is-stopped",
    ]
}

/// Nothing but those of the files that are wanted waits any more.
fn keep_marks(server: &Cluster, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let marks = server.pgdata().join("pg_wal/archive_status");
    let mut kept = Vec::new();
    for mark in fs::read_dir(marks).unwrap() {
        let path = mark.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        match name.strip_suffix(".ready") {
            Some(file) if is_wanted(file) => kept.push(file.to_owned()),
            Some(_) => fs::remove_file(&path).unwrap(),
            None => {}
        }
    }
    kept.sort();
    kept
}

/// A copy was there first, under the same names; what the original could not bring is nowhere else.
#[test]
fn what_the_archiver_was_refused_is_not_deleted_by_a_restore_in_place() {
    let stage = archiving(Major::V15);
    let aside = copied(&stage);
    let copy = Cluster::adopt(Major::V15, &aside).start().unwrap();
    let mut last = String::new();
    for row in 200..205 {
        insert(&copy, row);
        let segment = "SELECT pg_walfile_name(pg_current_wal_lsn())";
        last = copy.sql("postgres", segment).unwrap();
        copy.sql("postgres", FINISH).unwrap();
    }
    let archived =
        format!("SELECT coalesce(last_archived_wal >= '{last}', false) FROM pg_stat_archiver");
    copy.wait_for("postgres", &archived, PATIENCE).unwrap();
    let original = &stage.cluster;
    original.start().unwrap();
    for row in [100, 101] {
        insert(original, row);
        original.sql("postgres", FINISH).unwrap();
    }
    let refused = original.wait_for("postgres", REFUSED_BY_ARCHIVE, PATIENCE);
    refused.unwrap();
    original.kill9().unwrap();
    let waiting = keep_marks(original, |_| true);
    assert!(waiting.len() >= 2, "{waiting:?}");

    let pgdata = stage.pgdata();
    let control = original.pgdata().join("global/pg_control");
    for more in [&["--dry-run"][..], &[]] {
        let (code, log) = stage.fails(&[&delta(&pgdata)[..], more].concat());
        assert_eq!(code, REFUSED, "{log}");
        let name = format!("\"{}\"", waiting[0]);
        for words in [&name, "was never archived", "of another server", "Copy pg"] {
            assert!(log.contains(words), "{words}: {log}");
        }
        assert!(!log.contains("archive-push"), "{log}");
        assert!(control.exists() && keep_marks(original, |_| true) == waiting);
    }
    // Somebody says that it is not wanted.
    keep_marks(original, |_| false);
    stage.ok(&delta(&pgdata));
}

/// As a power failure of the archive's host leaves it: the file that still waits is the only good copy.
#[test]
fn what_waits_and_is_damaged_in_the_archive_is_not_deleted_by_a_restore_in_place() {
    let (stage, waits) = silent_with_one_that_waits();
    let path = stage.cluster.pgdata().join("pg_wal").join(&waits);
    let push = ["archive-push", path.to_str().unwrap()];
    stage.ok(&push);
    // There is a layer now.
    warnings_of(&stage);
    stage.cluster.stop(StopMode::Fast).unwrap();
    assert_eq!(keep_marks(&stage.cluster, |file| file == waits).len(), 1);
    let pgdata = stage.pgdata();
    let plan = [&delta(&pgdata)[..], &["--dry-run"]].concat();
    stage.ok(&plan);
    let object = stage.objects().join("main/wal/00000001").join(&waits);
    flip(&object, |_| 0);
    let (code, log) = stage.fails(&plan);
    assert_eq!(code, REFUSED, "{log}");
    for words in [waits.as_str(), "cannot be read", "pgstrata archive-push"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    stage.ok(&push);
    let said = stage.json(&plan)["notes"].to_string();
    assert!(!said.contains("is not known"), "{said}");
}

/// What it received and its primary has archived waits for its archiver, too.
#[test]
fn a_standby_that_archives_always_is_not_called_of_another_history() {
    let stage = archiving(Major::V15);
    let directory = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(Major::V15, &directory)
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .conf("archive_mode", "always")
        .conf("archive_command", "false");
    let standby = standby.start().unwrap();
    insert(&stage.cluster, 100);
    stage.archive_all();
    catch_up(&stage, &standby);
    let marks = standby.pgdata().join("pg_wal/archive_status");
    let is_there = |mark: &Path| mark.extension().is_some_and(|kind| kind == "ready");
    let marked = fs::read_dir(marks).unwrap();
    let waiting = marked.filter(|mark| is_there(&mark.as_ref().unwrap().path()));
    assert!(waiting.count() > 0, "nothing waits");
    let primary = stage.cluster.conninfo("postgres");
    let words = backup_of(&standby, &["--output", "json", "--primary", &primary]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = stage.run(&words);
    assert_eq!(output.status.code(), Some(WARNINGS), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(text(&report, "/warnings/0").contains("archiver"));
    assert!(!said(&output).contains("another history"));
}
