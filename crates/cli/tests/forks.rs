//! Restores where a timeline has begun whose first segment is not in the archive: nothing comes back of what was abandoned
//! at that point, though a server would take the old timeline's segment instead.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use serde_json::Value;
use support::standby::{backup_of, follow};
use support::{PATIENCE, Stage, Store, files, text};

const ROWS: &str = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM numbers";
const WAL_MISSING: i32 = 18;
const UNREACHABLE: i32 = 19;

fn stage(major: Major) -> Stage {
    let builder = Cluster::builder(major)
        .initdb_arg("--wal-segsize=1")
        .conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let table = "CREATE TABLE numbers (id int)";
    stage.cluster.sql("postgres", table).unwrap();
    stage.backup(&["--type", "full"]);
    stage
}

/// Inserts a number, and answers the transaction.
fn insert(server: &Cluster, id: u32) -> String {
    let script = format!("INSERT INTO numbers VALUES ({id}) RETURNING pg_current_xact_id()");
    server.sql("postgres", &script).unwrap()
}

fn point(server: &Cluster, name: &str) {
    let script = format!("SELECT pg_create_restore_point('{name}')");
    server.sql("postgres", &script).unwrap();
}

/// The rows of what these arguments restore, and what was said about it.
fn restored(stage: &Stage, name: &str, arguments: &[&str]) -> (String, String) {
    let target = stage.target(name).display().to_string();
    let restore = ["restore", "--target-dir", &target];
    let report = stage.json(&[&restore[..], arguments].concat());
    let server = stage.start_restored(Path::new(&target));
    let rows = server.sql("postgres", ROWS).unwrap();
    server.stop(StopMode::Fast).unwrap();
    (rows, report["notes"].to_string())
}

fn refused(stage: &Stage, arguments: &[&str], code: i32, words: &str) {
    stage.refuses_to_restore(&[&["--dry-run"][..], arguments].concat(), code, &[words]);
}

/// What is archived of a timeline.
fn archived(stage: &Stage, timeline: &str) -> PathBuf {
    stage.objects().join("main/wal").join(timeline)
}

fn wait_for_history(stage: &Stage) {
    wait_for_file(stage, "00000002.history");
}

/// Waits for a file of timeline 2.
fn wait_for_file(stage: &Stage, name: &str) {
    let file = archived(stage, "00000002").join(name);
    let end = Instant::now() + PATIENCE;
    while !file.exists() {
        assert!(Instant::now() < end, "{name} is not archived");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Whole segments of a timeline, in order.
fn segments(stage: &Stage, timeline: &str) -> Vec<PathBuf> {
    let directory = archived(stage, timeline);
    let names = files::segments(&directory).into_iter();
    names.map(|name| directory.join(name)).collect()
}

/// The server goes back in place to before the rows 11 to 13, which timeline 1 keeps.
fn go_back(stage: &Stage) {
    insert(&stage.cluster, 1);
    point(&stage.cluster, "before");
    insert(&stage.cluster, 11);
    point(&stage.cluster, "release");
    insert(&stage.cluster, 12);
    stage.archive_all();
    insert(&stage.cluster, 13);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let pgdata = stage.pgdata();
    let in_place = ["restore", "--target-dir", &pgdata, "--delta"];
    let before = ["--target-type", "name", "--target", "before"];
    let promote = ["--target-action", "promote"];
    stage.ok(&[&in_place[..], &before, &promote].concat());
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
    wait_for_history(stage);
}

fn what_was_abandoned_stays_abandoned(major: Major) {
    let stage = stage(major);
    go_back(&stage);
    let two = insert(&stage.cluster, 2);
    let follow = |timeline| ["--target-timeline", timeline];
    let at = |kind, target| ["--target-type", kind, "--target", target];

    let (rows, notes) = restored(&stage, "to-the-fork", &follow("2"));
    assert_eq!(rows, "1");
    let words = "where timeline 2 began, and stops there";
    assert!(notes.contains(words), "{notes}");
    let (rows, _) = restored(&stage, "abandoned", &follow("1"));
    assert_eq!(rows, "1 11 12 13");
    let promote = ["--target-action", "promote"];
    let before = [&at("name", "before")[..], &follow("2"), &promote].concat();
    assert_eq!(restored(&stage, "before-the-fork", &before).0, "1");
    let standby = ["--target-type", "standby"];
    let standby = [&standby[..], &follow("2")].concat();
    refused(
        &stage,
        &standby,
        WAL_MISSING,
        "would take the WAL of timeline 1",
    );
    for target in [at("name", "release"), at("xid", &two)] {
        let target = [&target[..], &follow("2")].concat();
        refused(&stage, &target, UNREACHABLE, "is not in the archived WAL");
    }

    stage.archive_all();
    insert(&stage.cluster, 3);
    stage.archive_all();
    assert_eq!(restored(&stage, "all", &follow("2")).0, "1 2 3");
    let words = "the history of this cluster branches";
    refused(&stage, &[], UNREACHABLE, words);
    let told = told_of_branches(&stage).expect("info says so before somebody needs the restore");
    assert!(told.contains(words), "{told}");
    a_first_segment_that_is_lost_is_missed(&stage, &two);
    a_history_that_is_lost_is_missed(&stage);
}

/// What `info` says of a restore that would be refused.
fn told_of_branches(stage: &Stage) -> Option<String> {
    let output = stage.run(&["--output", "json", "info"]);
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    let alarms = info["alarms"].as_array().unwrap();
    let reasons = alarms.iter().map(|alarm| alarm["reason"].to_string());
    let mut told = reasons.filter(|reason| reason.contains("the newest state would be refused"));
    told.next()
}

/// The first segment of timeline 2 is gone, and later ones are there.
fn a_first_segment_that_is_lost_is_missed(stage: &Stage, two: &str) {
    let first = segments(stage, "00000002").remove(0);
    let name = first.file_name().unwrap().to_str().unwrap();
    fs::rename(&first, first.with_file_name(".away")).unwrap();
    files::age(&stage.objects(), "20 minutes ago");
    let follow = ["--target-timeline", "2"];
    refused(stage, &follow, WAL_MISSING, name);
    for (kind, target) in [("name", "release"), ("xid", two)] {
        let target = ["--target-type", kind, "--target", target];
        refused(stage, &[&target[..], &follow].concat(), UNREACHABLE, name);
    }
    let output = stage.run(&["--output", "json", "info"]);
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    let alarm = &info["alarms"][0];
    assert_eq!(alarm["kind"], "wal-hole", "{info:#}");
    assert!(alarm["reason"].to_string().contains(name), "{info:#}");
    let begun = archived(stage, "00000002").join("00000002.history");
    let begun = fs::metadata(begun).unwrap().modified().unwrap();
    let begun = Timestamp::try_from(begun)
        .unwrap()
        .strftime("%Y-%m-%dT%H:%M");
    let lost = alarm["lost"].to_string();
    assert!(lost.contains(&format!("after {begun}")), "{info:#}");
    let (_, log) = stage.fails(&["verify"]);
    assert!(log.contains(name), "{log}");
    fs::rename(first.with_file_name(".away"), &first).unwrap();
}

/// The newest layer is of timeline 2, whose history is gone.
fn a_history_that_is_lost_is_missed(stage: &Stage) {
    stage.backup(&["--type", "full"]);
    assert_eq!(told_of_branches(stage), None);
    let history = archived(stage, "00000002").join("00000002.history");
    let away = history.with_file_name(".away");
    fs::rename(&history, &away).unwrap();
    for arguments in [&[][..], &["--target-type", "immediate"]] {
        let words = "\"00000002.history\" is missing from the archive";
        refused(stage, arguments, WAL_MISSING, words);
    }
    fs::rename(&away, &history).unwrap();
    assert_eq!(restored(stage, "with-history", &[]).0, "1 2 3");
}

#[test]
fn rule_13_7_what_was_abandoned_stays_abandoned_on_15() {
    what_was_abandoned_stays_abandoned(Major::V15);
}

#[test]
fn rule_13_7_what_was_abandoned_stays_abandoned_on_18() {
    what_was_abandoned_stays_abandoned(Major::V18);
}

/// A copy that was opened for a test archives and backs itself up beside its original, which is idle: its layer is newer than
/// all that the original has archived.
#[test]
fn a_copy_that_backs_up_beside_its_idle_original_is_told_of_and_never_written_over_it() {
    let stage = stage(Major::V15);
    insert(&stage.cluster, 1);
    point(&stage.cluster, "before");
    insert(&stage.cluster, 2);
    stage.archive_all();
    let keep = ["--target-action", "promote", "--archive-mode", "keep"];
    let at = ["--target-type", "name", "--target", "before"];
    let copy = promoted(&stage, "copy", &[&at[..], &keep].concat());
    insert(&copy, 11);
    // The layer begins in a later second than the last segment of the original was stored.
    thread::sleep(Duration::from_millis(1100));
    backed_up(&stage, &copy);
    assert_eq!(restored(&stage, "plain", &[]).0, "1 11");

    let words = "the server goes on along timeline 1";
    // Neither of these makes the original finish a segment.
    for command in ["info", "verify"] {
        let pgdata = stage.pgdata();
        let conninfo = stage.cluster.conninfo("postgres");
        let output = stage.run(&[command, "-D", &pgdata, "-d", &conninfo, "--no-progress"]);
        let told = String::from_utf8(output.stdout).unwrap();
        assert_ne!(output.status.code(), Some(0), "{told}");
        assert!(told.contains(words), "{told}");
    }
    stage.cluster.sql("postgres", "CHECKPOINT").unwrap();
    stage.cluster.stop(StopMode::Immediate).unwrap();
    let pgdata = stage.pgdata();
    let stopped = "--server-is-stopped";
    let in_place = ["restore", "--delta", "--target-dir", &pgdata, stopped];
    let (code, log) = stage.fails(&in_place);
    assert_eq!(code, UNREACHABLE, "{log}");
    stage.ok(&[&in_place[..], &["--dry-run", "--target-timeline", "2"]].concat());

    // The history of a timeline before that of a server comes with its backup.
    let follow = ["--target-timeline", "2"];
    let third = promoted(&stage, "third", &[&follow[..], &keep].concat());
    insert(&third, 12);
    let history = archived(&stage, "00000002").join("00000002.history");
    let whole = fs::read(&history).unwrap();
    fs::remove_file(&history).unwrap();
    backed_up(&stage, &third);
    assert_eq!(fs::read(&history).unwrap(), whole);
}

fn backed_up(stage: &Stage, server: &Cluster) {
    let words = backup_of(server, &["--type", "full"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    stage.ok(&words);
}

/// A server that archives, made of what these arguments restore.
fn promoted(stage: &Stage, name: &str, arguments: &[&str]) -> Cluster {
    let directory = stage.restore(name, arguments);
    let server = Cluster::adopt(stage.cluster.major(), &directory)
        .start()
        .unwrap();
    server.wait_promoted(PATIENCE).unwrap();
    server
}

/// The old primary has committed and archived what its standby never got.
#[test]
fn rule_13_7_a_failover_brings_back_nothing_that_it_has_lost() {
    let stage = stage(Major::V18);
    let standby = ["--target-type", "standby", "--archive-mode", "keep"];
    let standby = stage.restore("standby", &standby);
    let standby = follow(&stage, &standby, &stage.cluster.conninfo("postgres"));
    insert(&stage.cluster, 1);
    let arrived = "SELECT count(*) = 1 FROM numbers";
    standby.wait_for("postgres", arrived, PATIENCE).unwrap();
    standby.stop(StopMode::Immediate).unwrap();
    insert(&stage.cluster, 11);
    stage.cluster.stop(StopMode::Fast).unwrap();

    // What the primary archived at its end, the standby is not to get.
    for (setting, value) in [("primary_conninfo", ""), ("restore_command", "false")] {
        let script = format!("{setting} = '{value}'\n");
        let conf = standby.pgdata().join("postgresql.auto.conf");
        let text = fs::read_to_string(&conf).unwrap();
        fs::write(&conf, text + &script).unwrap();
    }
    standby.start().unwrap();
    standby.sql("postgres", "SELECT pg_promote()").unwrap();
    standby.wait_promoted(PATIENCE).unwrap();
    insert(&standby, 2);
    wait_for_history(&stage);
    let last = segments(&stage, "00000001").pop().unwrap();
    let last = last.file_name().unwrap().to_str().unwrap();
    // Anybody may have added a history, and nothing else is there of timeline 2.
    let words = "timeline 1 goes on beyond";
    refused(&stage, &[], UNREACHABLE, words);
    let bare = "there is nothing but its history";
    let output = stage.run(&["info"]);
    let (code, info) = (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
    );
    assert!(code == Some(3) && info.contains(bare), "{code:?}: {info}");
    let also = "a restore of the newest state would be refused";
    assert!(!info.contains(also), "told twice: {info}");
    let latest = ["--target-timeline", "latest"];
    let (rows, notes) = restored(&stage, "restored", &latest);
    assert_eq!(rows, "1", "{last}: {notes}");
    assert!(
        notes.contains("nothing that was written on timeline 2"),
        "{notes}"
    );
    let end = standby.sql("postgres", "SELECT pg_switch_wal()").unwrap();
    let first = standby.sql(
        "postgres",
        &format!("SELECT pg_walfile_name('{end}'::pg_lsn - 1)"),
    );
    wait_for_file(&stage, &first.unwrap());
    let (rows, notes) = restored(&stage, "followed", &[]);
    assert_eq!(rows, "1 2", "{notes}");
    assert!(
        notes.contains("promoted after the other had ended"),
        "{notes}"
    );
    let info = String::from_utf8(stage.run(&["info"]).stdout).unwrap();
    assert!(!info.contains(bare), "{info}");
}

/// Exit code of `command` and the reasons of its alarms about servers.
fn told_of_servers(stage: &Stage, command: &[&str]) -> (Option<i32>, Vec<String>) {
    let output = stage.run(&[&["--output", "json"], command].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let alarms = report["alarms"].as_array().unwrap().iter();
    let reasons = alarms.map(|alarm| text(alarm, "/reason").to_owned());
    let reasons = reasons.filter(|reason| reason.contains("two servers"));
    (output.status.code(), reasons.collect())
}

/// `cp -a`, and both are started: the copy archives first, so the archive refuses the original, which alone is told so.
#[test]
fn a_copy_that_archives_before_its_original_is_an_alarm_of_the_repository() {
    let stage = stage(Major::V18);
    let first = stage.json(&["info"])["layers"][0]["label"].clone();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let data = stage.target("copy");
    files::copy_all(stage.cluster.pgdata(), &data);
    let copy = Cluster::adopt(stage.cluster.major(), &data);
    let copy = copy.start().unwrap();
    insert(&copy, 11);
    let words = backup_of(&copy, &["--type", "full"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    stage.require_backup(&stage.run(&[&["--output", "json"], &words[..]].concat()));
    for command in ["info", "verify"] {
        let (code, reasons) = told_of_servers(&stage, &[command]);
        assert_eq!(
            (code, reasons.len()),
            (Some(3), 1),
            "{command}: {reasons:?}"
        );
        let named = reasons[0].contains(first.as_str().unwrap());
        assert!(named && reasons[0].contains("is a copy"), "{reasons:?}");
    }
    // The original has stayed idle, and learns it from the repository, too.
    stage.cluster.start().unwrap();
    let (pgdata, conninfo) = (stage.pgdata(), stage.cluster.conninfo("postgres"));
    let output = stage.run(&["check", "-D", &pgdata, "-d", &conninfo]);
    let checked = String::from_utf8(output.stdout).unwrap();
    assert!(checked.contains("two servers"), "{checked}");
    // Its archiver goes on behind the backup: all WAL is the copy's.
    insert(&copy, 12);
    copy.sql("postgres", "SELECT pg_switch_wal()").unwrap();
    let end = Instant::now() + PATIENCE;
    while !told_of_servers(&stage, &["info"]).1[0].contains("may go on along timeline 1") {
        assert!(Instant::now() < end, "the archiver brings nothing");
        thread::sleep(Duration::from_millis(50));
    }
    // Restores of the copy's history go on.
    let (rows, notes) = restored(&stage, "of-the-copy", &[]);
    assert_eq!(rows, "11 12");
    assert!(notes.contains("may be of another server"), "{notes}");
}

/// An archiver that fails, a restart, a restore in place and a promotion are all of one server.
#[test]
fn one_server_is_not_taken_for_two_whatever_it_goes_through() {
    let stage = stage(Major::V15);
    let archives = stage
        .cluster
        .sql("postgres", "SHOW archive_command")
        .unwrap();
    stage.set_archive_command("false");
    insert(&stage.cluster, 1);
    stage.run(&["backup", "-D", &stage.pgdata(), "--type", "full"]);
    let quiet = |moment: &str| {
        let (_, reasons) = told_of_servers(&stage, &["info"]);
        assert_eq!(reasons, Vec::<String>::new(), "{moment}");
    };
    quiet("its archiver has failed");
    stage.set_archive_command(&archives);
    stage.cluster.stop(StopMode::Fast).unwrap();
    stage.cluster.start().unwrap();
    stage.archive_all();
    stage.backup(&["--type", "full"]);
    quiet("it was started anew");
    go_back(&stage);
    stage.backup(&["--type", "full"]);
    quiet("it was restored in place");
    insert(&stage.cluster, 2);
    stage.archive_all();
    stage.backup(&["--type", "full"]);
    quiet("it was backed up again");
}
