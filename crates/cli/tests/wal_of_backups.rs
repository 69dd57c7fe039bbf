//! The WAL of a backup is in the repository before the layer exists: brought by the
//! server's archiver, or by the backup itself.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use pgstrata_testbed::cluster::{Builder, Cluster, Major, StopMode, require_same_dump};
use support::files::copy_all;
use support::judged::{document, kinds};
use support::process;
use support::{PATIENCE, Stage, Store, number, restore_alone, text};

const EXISTS: i32 = 11;
const BUSY: i32 = 12;
const INTERRUPTED: i32 = 130;
const SERVER_FAILED: i32 = 16;
const WAL_MISSING: i32 = 18;
const WARNINGS: i32 = 3;
const REFUSED: i32 = 13;
const DAMAGED: i32 = 14;

/// Fills a segment, so that the archiver has something to do.
fn switch_wal(stage: &Stage) {
    stage
        .cluster
        .sql(
            "postgres",
            "SELECT pg_create_restore_point('x'), pg_switch_wal()",
        )
        .unwrap();
}

fn slots_are_gone(stage: &Stage) {
    // A slot ends with its session, which the server notices a moment later.
    let query = "SELECT NOT EXISTS (SELECT FROM pg_replication_slots)";
    stage.cluster.wait_for("postgres", query, PATIENCE).unwrap();
}

fn auto_relies_on_an_archiver_that_was_seen_to_work(major: Major, store: Store) {
    let stage = Stage::archiving(Cluster::builder(major), store);
    switch_wal(&stage);
    let archived = "SELECT last_archived_wal IS NOT NULL AND
        coalesce(last_failed_time < last_archived_time, true) FROM pg_stat_archiver";
    stage
        .cluster
        .wait_for("postgres", archived, PATIENCE)
        .unwrap();
    let relied = stage.backup(&[]);
    let how = text(&relied, "/wal");
    assert!(
        how.starts_with("archive: ") && how.contains("arrived"),
        "{how}"
    );
    assert_eq!(number(&relied, "/wal_segments_stored"), 0);

    // What the backup stores, the archiver pushes again: that is the same file, and no failure.
    let failed = "SELECT failed_count FROM pg_stat_archiver";
    let before = stage.cluster.sql("postgres", failed).unwrap();
    let streamed = stage.backup(&["--wal", "stream"]);
    assert!(number(&streamed, "/wal_segments_stored") >= 1);
    slots_are_gone(&stage);
    switch_wal(&stage);
    let last = "SELECT pg_walfile_name(pg_switch_wal()) IS NOT NULL";
    stage.cluster.sql("postgres", last).unwrap();
    let query = "SELECT count(*) = 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    stage.cluster.wait_for("postgres", query, PATIENCE).unwrap();
    assert_eq!(stage.cluster.sql("postgres", failed).unwrap(), before);
    stage.ok(&["verify", "--deep"]);
}

#[test]
fn auto_relies_on_an_archiver_that_was_seen_to_work_on_15() {
    auto_relies_on_an_archiver_that_was_seen_to_work(Major::V15, Store::Directory);
}

#[test]
fn auto_relies_on_an_archiver_that_was_seen_to_work_on_18_to_s3() {
    auto_relies_on_an_archiver_that_was_seen_to_work(Major::V18, Store::S3);
}

fn a_backup_without_an_archive_stands_alone(major: Major, store: Store) {
    let stage = Stage::silent(Cluster::builder(major).initdb_arg("--wal-segsize=1"), store);
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let load = stage
        .cluster
        .background_pgbench(&["-n", "-c", "2", "-t", "400"])
        .unwrap();
    let report = stage.backup(&["--max-rate", "30M"]);
    load.wait().unwrap();
    let how = text(&report, "/wal");
    assert_eq!(how, "stream: the server does not archive");
    let phases = report["phases"].as_array().unwrap().iter();
    let phases: Vec<_> = phases.map(|phase| text(phase, "/name")).collect();
    let order = "prepare checkpoint changes list copy stop wal commit";
    assert_eq!(phases.join(" "), order);
    assert!(number(&report, "/wal_segments_stored") >= 1);
    slots_are_gone(&stage);
    stage.ok(&["verify", "--deep"]);
    let target = stage.restore("alone", &["--target-type", "none", "--same-timeline"]);
    let restored = Cluster::adopt(major, &target).start().unwrap();
    restored.wait_promoted(PATIENCE).unwrap();
    restored.amcheck().unwrap();
    let count = "SELECT count(*) FROM pgbench_accounts";
    assert_eq!(restored.sql("postgres", count).unwrap().trim(), "100000");

    // A quiet moment later, source and copy hold the same.
    let dump = stage.cluster.dump().unwrap();
    let second = stage.backup(&["--type", "incr"]);
    assert!(number(&second, "/wal_segments_stored") >= 1);
    let again = stage.restore("again", &["--target-type", "none", "--same-timeline"]);
    let again = Cluster::adopt(major, &again).start().unwrap();
    again.wait_promoted(PATIENCE).unwrap();
    require_same_dump(&dump, &again.dump().unwrap()).unwrap();
}

#[test]
fn a_backup_without_an_archive_stands_alone_on_15_from_s3() {
    a_backup_without_an_archive_stands_alone(Major::V15, Store::S3);
}

#[test]
fn a_backup_without_an_archive_stands_alone_on_18() {
    a_backup_without_an_archive_stands_alone(Major::V18, Store::Directory);
}

/// Puts the marks of what waits for the archiver back by five minutes.
fn make_ready_marks_old(stage: &Stage) {
    let marks = stage.cluster.pgdata().join("pg_wal/archive_status");
    let mut count = 0;
    for mark in fs::read_dir(marks).unwrap() {
        let path = mark.unwrap().path();
        if path.extension().is_some_and(|e| e == "ready") {
            let file = File::options().write(true).open(path).unwrap();
            let earlier = SystemTime::now() - Duration::from_secs(300);
            file.set_modified(earlier).unwrap();
            count += 1;
        }
    }
    assert!(count > 0, "nothing waits for the archiver");
}

/// The server archives elsewhere, and the role may not stream: waiting would be in vain.
fn refuses_at_once_when_neither_way_is_open(stage: &Stage) {
    let role = "CREATE ROLE archived LOGIN;
        GRANT pg_read_all_settings TO archived;
        GRANT EXECUTE ON FUNCTION pg_catalog.pg_backup_start(text, boolean) TO archived;
        GRANT EXECUTE ON FUNCTION pg_catalog.pg_backup_stop(boolean) TO archived;";
    stage.cluster.sql("postgres", role).unwrap();
    let pgdata = stage.pgdata();
    let conninfo = stage.cluster.conninfo_as("archived", "postgres");
    let (code, log) = stage.fails(&["backup", "-D", &pgdata, "-d", &conninfo]);
    assert_eq!(code, REFUSED, "{log}");
    for words in [
        "archives elsewhere (archive_command is \"true\")",
        "ALTER ROLE \"archived\" REPLICATION",
    ] {
        assert!(log.contains(words), "\"{words}\" is not in:\n{log}");
    }
}

/// A copy of the data directory as storage keeps one.
fn set_aside(stage: &Stage) -> PathBuf {
    stage.cluster.stop(StopMode::Fast).unwrap();
    let aside = stage.cluster.create_dir("aside").unwrap();
    copy_all(&stage.cluster.pgdata().join("."), &aside);
    stage.cluster.start().unwrap();
    aside
}

/// Storage is set back to `aside`.
fn take_back(stage: &Stage, aside: &Path) {
    stage.cluster.stop(StopMode::Fast).unwrap();
    fs::remove_dir_all(stage.cluster.pgdata()).unwrap();
    copy_all(aside, stage.cluster.pgdata());
    stage.cluster.start().unwrap();
}

/// Storage was set back, and the archive holds WAL of the time that is gone, under names that the server uses again.
fn wal_of_a_time_that_is_gone_is_refused_before_the_copy(major: Major) {
    let stage = Stage::archiving(Cluster::builder(major), Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE lives (life int)");
    switch_wal(&stage);
    stage.archive_all();
    let aside = set_aside(&stage);
    sql("INSERT INTO lives SELECT 1 FROM generate_series(1, 1000)");
    stage.backup(&["--type", "full"]);
    for _ in 0..3 {
        switch_wal(&stage);
    }
    stage.archive_all();
    take_back(&stage, &aside);
    sql("INSERT INTO lives SELECT 2 FROM generate_series(1, 1000)");
    let pgdata = stage.pgdata();
    // It switches no segment then, which the archiver would stumble over.
    let checked = stage.run(&["check", "-D", &pgdata]);
    let report = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(checked.status.code(), Some(REFUSED), "{report}");
    assert!(report.contains("it is of another history"), "{report}");
    for more in [
        &["--type", "full"][..],
        &["--dry-run"],
        &[],
        &["--wal", "stream"],
        &["--wal", "archive"],
    ] {
        let backup = [&["backup", "-D", &pgdata], more].concat();
        // The session of the one before may not have ended yet.
        let ended = std::iter::repeat_with(|| stage.fails(&backup));
        let (code, log) = { ended }.find(|(code, _)| *code != BUSY).unwrap();
        assert_eq!(code, EXISTS, "{more:?}: {log}");
        assert!(log.contains("it is of another history"), "{log}");
    }
    assert_eq!(stage.layer_counts().0, 1);
    // Nor beyond what is there: what its archiver stumbled over will be missing before it.
    for _ in 0..6 {
        switch_wal(&stage);
    }
    for wal in ["auto", "stream", "archive"] {
        let backup = ["backup", "-D", &pgdata, "--type", "full", "--wal", wal];
        let (code, log) = stage.fails(&backup);
        assert_eq!(code, EXISTS, "{wal}: {log}");
        assert!(log.contains("with other contents"), "{log}");
    }
    assert_eq!(stage.layer_counts(), (1, 0));
    let restored = stage.restore("gone", &["--target-action", "promote"]);
    let restored = stage.start_restored(&restored);
    assert_eq!(restored.sql("postgres", LIVES).unwrap(), "1");
}

#[test]
fn wal_of_a_time_that_is_gone_is_refused_before_the_copy_on_15() {
    wal_of_a_time_that_is_gone_is_refused_before_the_copy(Major::V15);
}

#[test]
fn wal_of_a_time_that_is_gone_is_refused_before_the_copy_on_18() {
    wal_of_a_time_that_is_gone_is_refused_before_the_copy(Major::V18);
}

/// A server whose storage was set back, and that is still writing the first segment that the archive has of the time
/// that is gone. Rows: 1 of that time, 2 of now.
fn set_back(major: Major) -> Stage {
    let stage = Stage::archiving(Cluster::builder(major), Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE lives (life int)");
    stage.backup(&["--type", "full"]);
    switch_wal(&stage);
    stage.archive_all();
    let aside = set_aside(&stage);
    sql("INSERT INTO lives SELECT 1 FROM generate_series(1, 1000)");
    for _ in 0..3 {
        switch_wal(&stage);
    }
    stage.archive_all();
    take_back(&stage, &aside);
    sql("INSERT INTO lives SELECT 2 FROM generate_series(1, 1000)");
    stage
}

/// Backups of two histories store their own WAL one behind the other. Recovery cannot go from one to the other, and neither is
/// another server's that could be deleted.
#[test]
fn no_wal_that_a_layer_needs_is_called_fit_to_be_deleted() {
    let builder = Cluster::builder(Major::V18).initdb_arg("--wal-segsize=1");
    let stage = Stage::silent(builder.conf("autovacuum", "off"), Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE lives (life int)");
    let aside = set_aside(&stage);
    sql("INSERT INTO lives SELECT 1 FROM generate_series(1, 1000)");
    for _ in 0..2 {
        switch_wal(&stage);
    }
    let gone = stage.backup(&["--type", "full"]);
    take_back(&stage, &aside);
    sql("INSERT INTO lives SELECT 2 FROM generate_series(1, 500)");
    stage.backup(&["--type", "full"]);

    let (code, log) = stage.fails(&["verify"]);
    let keep = format!(
        "{} needs the segment to become consistent, so keep it",
        text(&gone, "/label")
    );
    assert_eq!(code, DAMAGED, "{log}");
    assert!(log.contains(&keep), "{log}");
    for layer in [text(&gone, "/label"), "latest"] {
        stage.ok(&[
            "restore",
            layer,
            "--target-dir",
            &stage.target(layer).display().to_string(),
            "--target-type",
            "immediate",
        ]);
    }
}

const NOTHING_WAITS: &str =
    "SELECT count(*) = 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";

const LIVES: &str = "SELECT DISTINCT life FROM lives";

/// The advice of the error is followed, and nothing is left for the archiver to stumble over.
#[test]
fn a_server_of_another_history_goes_on_under_a_name_of_its_own() {
    let stage = set_back(Major::V15);
    switch_wal(&stage);
    let failing =
        "SELECT last_failed_time > coalesce(last_archived_time, '-infinity') FROM pg_stat_archiver";
    stage
        .cluster
        .wait_for("postgres", failing, PATIENCE)
        .unwrap();
    let refused = stage
        .cluster
        .sql("postgres", "SELECT last_failed_wal FROM pg_stat_archiver");
    let path = stage.cluster.pgdata().join("pg_wal").join(refused.unwrap());
    let (code, log) = stage.fails(&["archive-push", &path.display().to_string()]);
    assert_eq!(code, EXISTS, "{log}");
    for words in ["init --cluster", "archive_command", "full backup"] {
        assert!(log.contains(words), "\"{words}\" is not in:\n{log}");
    }
    let pgdata = stage.pgdata();
    stage.ok(&["--cluster", "second", "init", "--pgdata", &pgdata]);
    let command = format!(
        "{} --repo {} --cluster second archive-push %p",
        stage.program.display(),
        stage.repository
    );
    stage.set_archive_command(&command);
    stage
        .cluster
        .wait_for("postgres", NOTHING_WAITS, PATIENCE)
        .unwrap();
    let second = ["--cluster", "second"];
    stage.ok(&[&second[..], &["backup", "-D", &pgdata, "--type", "full"]].concat());
    stage.ok(&[&second[..], &["verify"]].concat());
    let target = stage.target("second").display().to_string();
    let restore = restore_alone(&target);
    stage.ok(&[&second[..], &restore, &["--target-action", "promote"]].concat());
    let restored = stage.start_restored(&stage.target("second"));
    assert_eq!(restored.sql("postgres", LIVES).unwrap(), "2");
    // What the old name has is as it was.
    let restored = stage.start_restored(&stage.restore("first", &["--target-action", "promote"]));
    assert_eq!(restored.sql("postgres", LIVES).unwrap(), "1");
}

fn a_server_of_another_history_goes_on_along_a_new_timeline(major: Major) {
    let stage = set_back(major);
    let pgdata = stage.pgdata();
    let (code, log) = stage.fails(&["backup", "-D", &pgdata]);
    assert_eq!(code, EXISTS, "{log}");
    assert!(
        log.contains("When the archive has another history"),
        "{log}"
    );
    stage.cluster.stop(StopMode::Immediate).unwrap();
    let signal = stage.cluster.pgdata().join("standby.signal");
    fs::copy(stage.cluster.pgdata().join("PG_VERSION"), &signal).unwrap();
    stage.cluster.own(&signal).unwrap();
    stage.cluster.start().unwrap();
    stage
        .cluster
        .sql("postgres", "SELECT pg_promote()")
        .unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
    switch_wal(&stage);
    stage
        .cluster
        .wait_for("postgres", NOTHING_WAITS, PATIENCE)
        .unwrap();
    let failed = "SELECT failed_count FROM pg_stat_archiver";
    assert_eq!(stage.cluster.sql("postgres", failed).unwrap(), "0");
    let told = ["--target-timeline", "2", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("before", &told));
    assert_eq!(restored.sql("postgres", LIVES).unwrap(), "2");
    stage.backup(&["--type", "full"]);
    switch_wal(&stage);
    stage.archive_all();
    stage.ok(&["verify"]);
    let restored = stage.start_restored(&stage.restore("after", &["--target-action", "promote"]));
    assert_eq!(restored.sql("postgres", LIVES).unwrap(), "2");
}

#[test]
fn a_server_of_another_history_goes_on_along_a_new_timeline_on_15() {
    a_server_of_another_history_goes_on_along_a_new_timeline(Major::V15);
}

#[test]
fn a_server_of_another_history_goes_on_along_a_new_timeline_on_18() {
    a_server_of_another_history_goes_on_along_a_new_timeline(Major::V18);
}

/// Another server pushes segments of the same names while the backup waits for its own.
#[test]
fn wal_of_another_server_is_not_taken_for_the_backups_own() {
    let builder = Cluster::builder(Major::V15).conf("archive_mode", "on");
    let stage = Stage::silent(builder.conf("archive_command", "false"), Store::Directory);
    let pgdata = stage.pgdata();
    let waits = [
        "backup", "-D", &pgdata, "--type", "full", "--wal", "archive",
    ];
    let mut child = process::spawn(&stage, &waits);
    let wal = stage.cluster.pgdata().join("pg_wal");
    let scratch = stage.cluster.create_dir("other").unwrap();
    let end = Instant::now() + PATIENCE;
    let mut pushed = 0;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the backup waits");
        for mark in fs::read_dir(wal.join("archive_status")).unwrap() {
            let name = mark.unwrap().file_name().into_string().unwrap();
            let name = name.strip_suffix(".ready").filter(|name| name.len() == 24);
            let Some(name) = name.filter(|name| !scratch.join(name).exists()) else {
                continue;
            };
            let mut bytes = fs::read(wal.join(name)).unwrap();
            bytes[5000] ^= 1;
            let other = scratch.join(name);
            fs::write(&other, bytes).unwrap();
            stage.ok(&["archive-push", &other.display().to_string()]);
            pushed += 1;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(EXISTS), "{log}");
    assert!(log.contains("with other contents"), "{log}");
    assert!(pushed > 0);
    assert_eq!(stage.layer_counts(), (0, 0));
}

/// Takes a backup that ends well and tells that the archiver does not; returns its report.
fn warns_of_the_archiver(stage: &Stage, arguments: &[&str]) -> serde_json::Value {
    let pgdata = stage.pgdata();
    let all = ["--output", "json", "backup", "--pgdata", &pgdata];
    let output = stage.run(&[&all[..], arguments].concat());
    let log = String::from_utf8_lossy(&output.stderr);
    let plans = arguments.contains(&"--dry-run");
    let code = if plans { 0 } else { WARNINGS };
    assert_eq!(output.status.code(), Some(code), "{log}");
    assert!(plans || log.contains("WARN"), "{log}");
    let report = serde_json::from_slice(&output.stdout).unwrap();
    let warning = text(&report, "/warnings/0");
    assert!(warning.contains("the server's archiver "), "{warning}");
    report
}

/// Our command, but it fails: auto sees that and takes the WAL itself.
fn our_command_fails_and_is_not_relied_on(stage: &Stage) {
    let failing = "SELECT last_failed_time > last_archived_time FROM pg_stat_archiver";
    stage.set_archive_command("false pgstrata archive-push %p");
    switch_wal(stage);
    stage
        .cluster
        .wait_for("postgres", failing, PATIENCE)
        .unwrap();
    let report = warns_of_the_archiver(stage, &[]);
    let how = text(&report, "/wal");
    assert!(
        how.starts_with("stream: the server's archiver fails"),
        "{how}"
    );
    let failed = "SELECT last_failed_wal || ' ' || last_archived_wal FROM pg_stat_archiver";
    let failed = stage.cluster.sql("postgres", failed).unwrap();
    let warning = text(&report, "/warnings/0");
    for words in failed.split(' ').chain(["last at", "nothing since"]) {
        assert!(warning.contains(words), "\"{words}\" is not in: {warning}");
    }
    // Whoever asked for that, and whoever only asks what would be done.
    warns_of_the_archiver(stage, &["--wal", "stream", "--type", "full"]);
    warns_of_the_archiver(stage, &["--dry-run"]);
}

#[test]
fn wal_that_does_not_arrive_ends_the_backup_in_time() {
    let builder = Cluster::builder(Major::V15);
    let stage = Stage::silent(builder.conf("archive_mode", "on"), Store::Directory);
    let pgdata = stage.pgdata();
    let refused = stage.fails(&["backup", "-D", &pgdata, "--wal", "archive"]);
    assert_eq!(refused.0, REFUSED, "{}", refused.1);
    assert!(refused.1.contains("archive_command"), "{}", refused.1);

    // Archives, but elsewhere: auto takes the WAL itself.
    stage
        .cluster
        .append_conf("archive_command", "true")
        .unwrap();
    stage.cluster.reload().unwrap();
    let report = stage.backup(&[]);
    assert_eq!(
        text(&report, "/wal"),
        "stream: the server archives elsewhere"
    );
    refuses_at_once_when_neither_way_is_open(&stage);
    let waits = [
        "backup",
        "-D",
        &pgdata,
        "--wal",
        "archive",
        "--archive-timeout",
        "2s",
    ];
    // Archive waits in vain for what is nowhere.
    stage.set_archive_command("rm %p");
    let started = Instant::now();
    let (code, log) = stage.fails(&waits);
    assert!(started.elapsed() < Duration::from_secs(60), "{log}");
    assert_eq!(code, WAL_MISSING, "{log}");
    for words in [
        "did not arrive in the archive in 2 s",
        "archiver's last file was",
        "--wal stream",
    ] {
        assert!(log.contains(words), "\"{words}\" is not in:\n{log}");
    }

    our_command_fails_and_is_not_relied_on(&stage);
    let (code, log) = stage.fails(&waits);
    assert_eq!(code, WARNINGS, "{log}");

    // It cannot even be started, which pg_stat_archiver never hears of.
    stage.set_archive_command("true pgstrata archive-push %p");
    let taken = "SELECT last_failed_time < last_archived_time FROM pg_stat_archiver";
    stage.cluster.wait_for("postgres", taken, PATIENCE).unwrap();
    stage.set_archive_command("/is-not-there/pgstrata archive-push %p");
    switch_wal(&stage);
    make_ready_marks_old(&stage);
    let report = warns_of_the_archiver(&stage, &[]);
    let how = text(&report, "/wal");
    assert!(
        how.starts_with("stream: the server's archiver has not taken 0000"),
        "{how}"
    );

    // The failed backups left neither a layer, nor objects, nor a slot. WAL that was thrown away is missed.
    let (code, info) = document(&stage, &["info"]);
    assert_eq!((code, kinds(&info)), (WARNINGS, vec!["wal-hole"]));
    assert_eq!(info["layers"].as_array().unwrap().len(), 5);
    assert_eq!(info["unfinished"].as_array().unwrap().len(), 0);
    slots_are_gone(&stage);
}

#[test]
fn a_backup_on_a_later_timeline_stores_its_history() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&[]);
    let target = stage.restore(
        "second",
        &["--target-type", "immediate", "--target-action", "promote"],
    );
    let second = stage.start_restored(&target);
    let pgdata = target.display().to_string();
    let conninfo = second.conninfo("postgres");
    let report = stage.json(&["backup", "-D", &pgdata, "-d", &conninfo, "--type", "full"]);
    assert_eq!(number(&report, "/timeline"), 2);
    let info = stage.json(&["info"]);
    let timelines = info.pointer("/archive/timelines").unwrap();
    assert_eq!(timelines[1]["timeline"], 2);
    assert_eq!(timelines[1]["has_history"], true, "{timelines:#}");
    stage.ok(&["verify"]);
}

/// The archiver worked when the backup began to rely on it.
fn a_backup_outlives_an_archiver_that_breaks_under_it(major: Major, store: Store) {
    let stage = Stage::archiving(Cluster::builder(major), store);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    stage.archive_all();
    let child = stage.begin_backup(&["--wal", "archive", "--output", "json"]);
    stage.set_archive_command("false pgstrata archive-push %p");
    let dump = stage.cluster.dump().unwrap();
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(WARNINGS), "{log}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(number(&report, "/wal_segments_stored") >= 1, "{report:#}");
    let warning = text(&report, "/warnings/0");
    assert!(warning.contains("archive_command failed with"), "{warning}");
    let until = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("restored", &until));
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

#[test]
fn a_backup_outlives_an_archiver_that_breaks_under_it_on_15() {
    a_backup_outlives_an_archiver_that_breaks_under_it(Major::V15, Store::Directory);
}

#[test]
fn a_backup_outlives_an_archiver_that_breaks_under_it_on_18_to_s3() {
    a_backup_outlives_an_archiver_that_breaks_under_it(Major::V18, Store::S3);
}

/// Many pages that a checkpoint would have to write, which then takes nearly an hour.
fn slow_checkpoints(builder: Builder) -> Builder {
    builder
        .conf("checkpoint_timeout", "1h")
        .conf("autovacuum", "off")
}

/// The control file still has the old timeline.
#[test]
fn a_backup_right_after_a_promotion_is_of_the_new_timeline() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&[]);
    let standby = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(Major::V15, &standby)
        .conf("checkpoint_timeout", "1h")
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .start()
        .unwrap();
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let end = stage.cluster.sql("postgres", "SELECT pg_current_wal_lsn()");
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{}'", end.unwrap());
    standby.wait_for("postgres", &replayed, PATIENCE).unwrap();
    standby.sql("postgres", "SELECT pg_promote()").unwrap();
    standby.wait_promoted(PATIENCE).unwrap();
    let timeline = "SELECT timeline_id FROM pg_control_checkpoint()";
    assert_eq!(standby.sql("postgres", timeline).unwrap(), "1");
    let (pgdata, conninfo) = (
        standby.pgdata().display().to_string(),
        standby.conninfo("postgres"),
    );
    let report = stage.json(&["backup", "-D", &pgdata, "-d", &conninfo, "--type", "full"]);
    assert_eq!(number(&report, "/timeline"), 2);
    stage.ok(&["verify", "--deep"]);
}

/// A server does not see that its client is gone while it waits for a checkpoint.
#[test]
fn a_backup_that_is_stopped_while_it_starts_leaves_nothing_in_the_server() {
    let builder = slow_checkpoints(Cluster::builder(Major::V15));
    let stage = Stage::silent(builder, Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let pgdata = stage.pgdata();
    let child = process::spawn(&stage, &["backup", "-D", &pgdata, "--checkpoint", "spread"]);
    let starts = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%pg_backup_start(%'
        AND state = 'active' AND wait_event LIKE 'Checkpoint%' AND pid <> pg_backend_pid())";
    stage
        .cluster
        .wait_for("postgres", starts, PATIENCE)
        .unwrap();
    process::signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(INTERRUPTED), "{log}");
    let gone =
        "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'pgstrata%')
        AND NOT EXISTS (SELECT FROM pg_replication_slots)
        AND NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory')";
    let soon = Duration::from_secs(30);
    stage.cluster.wait_for("postgres", gone, soon).unwrap();
    assert_eq!(stage.layer_counts(), (0, 0));
}

/// The server takes the slot away from a backup that is held up, and ends its connection.
#[test]
fn a_backup_whose_slot_keeps_too_much_says_what_limits_it() {
    let builder = Cluster::builder(Major::V15).conf("max_slot_wal_keep_size", "16MB");
    let stage = Stage::silent(builder, Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    // A slot begins where the last checkpoint did.
    stage.cluster.sql("postgres", "CHECKPOINT").unwrap();
    let child = stage.begin_backup(&["--wal", "stream"]);
    process::signal(&child, "-STOP");
    for _ in 0..5 {
        switch_wal(&stage);
    }
    stage.cluster.sql("postgres", "CHECKPOINT").unwrap();
    slots_are_gone(&stage);
    process::signal(&child, "-CONT");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(SERVER_FAILED), "{log}");
    assert!(log.contains("max_slot_wal_keep_size"), "{log}");
    assert_eq!(stage.layer_counts(), (0, 0), "{log}");
}

/// Since 18 a server takes away a slot of which it was asked nothing for so long, and ends the session that made it.
#[test]
fn the_slot_of_a_backup_never_looks_idle() {
    let builder = Cluster::builder(Major::V18).conf("idle_replication_slot_timeout", "2s");
    let stage = Stage::silent(builder, Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "4"]).unwrap();
    let child = stage.begin_backup(&["--wal", "stream", "--output", "json"]);
    std::thread::sleep(Duration::from_secs(3));
    // It looks for idle slots then.
    stage.cluster.sql("postgres", "CHECKPOINT").unwrap();
    let slot = "SELECT count(*) FROM pg_replication_slots WHERE temporary";
    assert_eq!(stage.cluster.sql("postgres", slot).unwrap(), "1");
    let output = child.wait_with_output().unwrap();
    stage.require_backup(&output);
}

/// Neither way to store WAL is used, whoever chooses it, and nothing of the server is in "main".
fn refuses_to_store_wal_of_another_cluster(stage: &Stage) {
    let pgdata = stage.pgdata();
    for more in [&[][..], &["--wal", "archive", "--archive-timeout", "5s"]] {
        let (code, log) = stage.fails(&[&["backup", "-D", &pgdata], more].concat());
        assert_eq!(code, REFUSED, "{more:?}: {log}");
        for words in ["archives as cluster \"copy\"", "say --cluster copy"] {
            assert!(log.contains(words), "{more:?}: {log}");
        }
        assert_eq!(stage.layer_counts(), (0, 0));
        assert!(!stage.objects().join("main/wal").exists());
    }
}

/// A copy of a server got a name of its own in its `archive_command`, perhaps in a repository of its own, and its schedule did
/// not.
#[test]
fn a_server_that_archives_as_another_cluster_brings_no_wal_into_this_one() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let is_told = |word: &str| {
        let told = format!("SELECT current_setting('archive_command') ~ '{word}'");
        stage.cluster.wait_for("postgres", &told, PATIENCE).unwrap();
    };
    let elsewhere = stage.cluster.create_dir("elsewhere").unwrap();
    let elsewhere = format!("file://{}", elsewhere.display());
    let init = ["--cluster", "copy", "init", "-D", &pgdata];
    stage.ok(&[&["--repo", &elsewhere], &init[..]].concat());
    let program = stage.program.display();
    let command = format!("{program} --repo {elsewhere} --cluster copy archive-push %p");
    stage.set_archive_command(&command);
    is_told("elsewhere");
    refuses_to_store_wal_of_another_cluster(&stage);
    stage.ok(&init);
    stage.archive_with("--cluster copy");
    is_told("push --cluster copy");
    refuses_to_store_wal_of_another_cluster(&stage);
    let (code, shown) = document(&stage, &["check", "-D", &pgdata]);
    assert_eq!(code, REFUSED, "{shown:#}");
    let shown = shown.to_string();
    assert!(shown.contains("archives as cluster"), "{shown}");
    stage.ok(&["--cluster", "copy", "backup", "-D", &pgdata]);
    // Who says so means it.
    stage.backup(&["--wal", "stream"]);
}
