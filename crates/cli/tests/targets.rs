//! Targets are where the WAL has them: what can be reached is restored, from the newest layer that leads there, and what
//! cannot is refused before anything is written.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use support::{PATIENCE, Stage, Store, process, text};

const WARNINGS: i32 = 3;
const ROWS: &str = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM numbers";

fn stage(major: Major, store: Store) -> Stage {
    let builder = Cluster::builder(major)
        .initdb_arg("--wal-segsize=1")
        .conf("max_prepared_transactions", "5")
        .conf("autovacuum", "off");
    let stage = Stage::archiving(builder, store);
    sql(&stage, "CREATE TABLE numbers (id int)");
    stage
}

fn sql(stage: &Stage, script: &str) -> String {
    stage.cluster.sql("postgres", script).unwrap()
}

/// Inserts a number, and answers the transaction.
fn insert(stage: &Stage, id: u32) -> String {
    let script = format!("INSERT INTO numbers VALUES ({id}) RETURNING pg_current_xact_id()");
    sql(stage, &script)
}

/// A moment after all that was committed, and before all that will be.
fn now(stage: &Stage) -> String {
    let time = sql(stage, "SELECT pg_sleep(0.05)::text || clock_timestamp()");
    sql(stage, "SELECT pg_sleep(0.05)");
    time
}

fn restored(stage: &Stage, name: &str, arguments: &[&str]) -> (String, String, String) {
    let target = stage.target(name).display().to_string();
    let restore = [
        "restore",
        "--target-dir",
        &target,
        "--target-action",
        "promote",
    ];
    let report = stage.json(&[&restore[..], arguments].concat());
    let server = stage.start_restored(Path::new(&target));
    let rows = server.sql("postgres", ROWS).unwrap();
    server.stop(StopMode::Fast).unwrap();
    let label = text(&report, "/label").to_owned();
    (label, rows, report["notes"].to_string())
}

fn refused(stage: &Stage, arguments: &[&str], words: &[&str]) {
    stage.refuses_to_restore(arguments, 19, words);
}

/// The server would open for writes at the end of the archive instead.
#[test]
fn what_is_done_at_a_target_needs_one() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    let target = stage.target("nowhere").display().to_string();
    let restore = ["restore", "--target-dir", &target, "--dry-run"];
    for idle in [
        &["--target-action", "pause"][..],
        &["--target-action", "shutdown"],
        &["--target-exclusive"],
    ] {
        let (code, log) = stage.fails(&[&restore[..], idle].concat());
        assert!(code == 2 && log.contains("needs a target"), "{code}: {log}");
        let immediate = ["--target-type", "immediate"];
        stage.ok(&[&restore[..], idle, &immediate].concat());
    }
    let untold = ["--target", "2026-11-21 09:33:05+00"];
    let (code, log) = stage.fails(&[&restore[..], &untold].concat());
    assert!(code == 2 && log.contains("--target-type time"), "{log}");
    let (code, log) = stage.fails(&["init", "--retain-mode", "governance"]);
    assert!(code == 2 && log.contains("--retain"), "{code}: {log}");
}

fn segments(stage: &Stage) -> Vec<PathBuf> {
    let directory = stage.objects().join("main/wal/00000001");
    let names = support::files::segments(&directory).into_iter();
    names.map(|name| directory.join(name)).collect()
}

/// The store's clock is an hour behind, or ahead.
fn store_clock(stage: &Stage, moved: &str) {
    for segment in segments(stage) {
        let mut touch = Command::new("touch");
        assert!(
            touch
                .args(["-d", moved])
                .arg(&segment)
                .status()
                .unwrap()
                .success()
        );
    }
}

fn layer(stage: &Stage, kind: &str) -> String {
    text(&stage.backup(&["--type", kind]), "/label").to_owned()
}

fn times_are_those_of_commits(major: Major, store: Store) {
    let stage = stage(major, store);
    let full = layer(&stage, "full");
    insert(&stage, 1);
    let reached = now(&stage);
    insert(&stage, 2);
    let last = now(&stage);
    stage.archive_all();
    let time = |target| ["--target-type", "time", "--target", target];
    // Where the store's clock is behind, segments look older than what is in them.
    store_clock(&stage, "1 hour ago");
    let (label, rows, _) = restored(&stage, "reached", &time(&reached));
    assert_eq!((label, rows.as_str()), (full, "1"));
    // Where it is ahead, or late, they look newer; the server would fail at the end of the archive.
    store_clock(&stage, "1 hour");
    let words = ["after the last transaction in the archive", "committed at"];
    refused(&stage, &time(&last), &words);
    insert(&stage, 3);
    stage.archive_all();
    let (_, rows, _) = restored(&stage, "last", &time(&last));
    assert_eq!(rows, "1 2");
}

#[test]
fn rule_13_12_times_are_those_of_commits_on_15_with_s3() {
    times_are_those_of_commits(Major::V15, Store::S3);
}

#[test]
fn rule_13_12_times_are_those_of_commits_on_18() {
    times_are_those_of_commits(Major::V18, Store::Directory);
}

/// Of WAL that cannot be read nothing is known but when the store took it, by the clock of the store. Nothing passes over
/// that answer but WAL that can be read.
#[test]
fn a_time_in_wal_that_cannot_be_read_is_judged_by_when_that_was_stored() {
    let stage = stage(Major::V17, Store::Directory);
    let full = layer(&stage, "full");
    insert(&stage, 1);
    let readable = now(&stage);
    insert(&stage, 2);
    stage.archive_all();
    let asked = now(&stage);
    insert(&stage, 3);
    stage.archive_all();
    let last = segments(&stage).pop().unwrap();
    let good = fs::read(&last).unwrap();
    let mut damaged = good.clone();
    damaged[good.len() / 2] ^= 1;
    let time = |target| ["--target-type", "time", "--target", target];
    let target = stage.target("planned").display().to_string();
    let planned = |time: &[&str]| {
        let plan = ["restore", "--target-dir", &target, "--dry-run"];
        let plan = stage.json(&[&plan[..], time].concat());
        assert_eq!(text(&plan, "/label"), full);
        plan["notes"].to_string()
    };
    let unread = "archived WAL could not be read";

    fs::write(&last, &damaged).unwrap();
    let notes = planned(&time(&asked));
    assert!(notes.contains(unread), "{notes}");
    // The same WAL, stored by a clock that is behind.
    store_clock(&stage, "1 hour ago");
    let name = last.file_name().unwrap().display();
    let stored = format!("its last segment, {name}, was stored at ");
    let words = [
        "after all that is known of the archive",
        unread,
        &stored,
        "--target-type=default",
    ];
    refused(&stage, &time(&asked), &words);
    // What lies before it is found by what was committed.
    let notes = planned(&time(&readable));
    assert!(!notes.contains(unread), "{notes}");

    fs::write(&last, &good).unwrap();
    store_clock(&stage, "1 hour ago");
    let notes = planned(&time(&asked));
    assert!(!notes.contains(unread), "{notes}");
}

/// A backup that waited for its WAL was finished long after its last page, and leads to times in between.
#[test]
fn a_time_between_the_stop_of_a_backup_and_its_manifest_is_reached() {
    let stage = stage(Major::V16, Store::Directory);
    let before = now(&stage);
    sql(&stage, "CREATE TABLE committed_after_it ()");
    let full = layer(&stage, "full");
    insert(&stage, 1);
    let after_one = now(&stage);
    insert(&stage, 2);
    stage.archive_all();
    host_clock(&stage, &full, "2100-01-01T00:00:00Z");
    let time = |target| ["--target-type", "time", "--target", target];
    let (label, rows, _) = restored(&stage, "between", &time(&after_one));
    assert_eq!((label.as_str(), rows.as_str()), (full.as_str(), "1"));
    refused(&stage, &time(&before), &["before the first backup"]);
    // What happened while the backup was at work is in it, whether it is wanted or not.
    let backup = stage.begin_backup(&["--type", "full"]);
    process::signal(&backup, "-STOP");
    insert(&stage, 3);
    let within = now(&stage);
    insert(&stage, 4);
    process::signal(&backup, "-CONT");
    let output = backup.wait_with_output().unwrap();
    // The layer whose times were changed is none that the server knows: it may be another server's.
    assert_eq!(output.status.code(), Some(WARNINGS));
    insert(&stage, 5);
    stage.archive_all();
    let (label, rows, _) = restored(&stage, "within", &time(&within));
    assert_eq!((label, rows.as_str()), (full, "1 2 3"));
}

/// The clock of the host that took the backup, while it took it.
fn host_clock(stage: &Stage, layer: &str, time: &str) {
    let path = stage.objects().join(format!("main/layer/{layer}/manifest"));
    let mut manifest = pgstrata_layer::manifest::decode(&fs::read(&path).unwrap()).unwrap();
    manifest.started_at = time.parse().unwrap();
    manifest.finished_at = manifest.started_at;
    fs::write(&path, pgstrata_layer::manifest::encode(&manifest)).unwrap();
}

/// A host's clock says nothing of what is in a layer; what the server wrote into the WAL does.
#[test]
fn rule_13_12_what_was_committed_before_a_backup_is_in_it_whatever_its_host_says() {
    let stage = stage(Major::V15, Store::Directory);
    let full = layer(&stage, "full");
    insert(&stage, 1);
    let asked = now(&stage);
    insert(&stage, 2);
    // A manifest names the one of its parent, and these are changed.
    let late = layer(&stage, "full");
    let quiet = now(&stage);
    let last = layer(&stage, "full");
    insert(&stage, 3);
    stage.archive_all();
    let time = |target| ["--target-type", "time", "--target", target];
    for (name, clock) in [
        ("behind", "2001-01-01T00:00:00Z"),
        ("ahead", "2100-01-01T00:00:00Z"),
    ] {
        for layer in [&full, &late, &last] {
            host_clock(&stage, layer, clock);
        }
        let (label, rows, _) = restored(&stage, name, &time(&asked));
        assert_eq!((label.as_str(), rows.as_str()), (full.as_str(), "1"));
        // Nothing was committed between it and that moment.
        let (label, rows, _) = restored(&stage, &format!("quiet-{name}"), &time(&quiet));
        assert_eq!((label.as_str(), rows.as_str()), (last.as_str(), "1 2"));
        let mut named = vec![late.as_str()];
        named.extend(time(&asked));
        refused(&stage, &named, &["is before the end of layer", &late]);
    }
}

#[test]
fn a_restore_point_is_reached_from_the_newest_layer_before_it() {
    let stage = stage(Major::V17, Store::Directory);
    let point = |name: &str| sql(&stage, &format!("SELECT pg_create_restore_point('{name}')"));
    let name = |target| ["--target-type", "name", "--target", target];
    let full = layer(&stage, "full");
    insert(&stage, 1);
    point("before the increment");
    insert(&stage, 2);
    let increment = layer(&stage, "incr");
    insert(&stage, 3);
    let first = point("twice");
    insert(&stage, 4);
    let second = point("twice");
    let last = insert(&stage, 5);
    stage.archive_all();

    let (label, rows, notes) = restored(&stage, "before", &name("before the increment"));
    assert_eq!((label, rows.as_str()), (full.clone(), "1"));
    assert!(notes.contains("is the newest layer before it"), "{notes}");
    let (label, rows, notes) = restored(&stage, "twice", &name("twice"));
    assert_eq!((label, rows.as_str()), (increment.clone(), "1 2 3"));
    for words in ["there is more than one", &first, &second] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
    let words = [
        "restore point \"Twice\" is not in the archived WAL",
        "restore point \"twice\", which was made at",
        "restore point \"before the increment\", which was made at",
        &format!("The last to end: transaction {last}, which committed at"),
    ];
    refused(&stage, &name("Twice"), &words);
    // A layer that was named is not changed for another.
    let named = [&[increment.as_str()][..], &name("before the increment")].concat();
    refused(
        &stage,
        &named,
        &["is not in the archived WAL", "The last restore points"],
    );

    // What lies behind damage is not reached, and what lies before it is.
    let damaged = segments(&stage).pop().unwrap();
    let mut object = fs::read(&damaged).unwrap();
    let middle = object.len() / 2;
    object[middle] ^= 1;
    fs::write(&damaged, &object).unwrap();
    let target = stage.target("unknown").display().to_string();
    let restore = ["restore", "--target-dir", &target, "--dry-run"];
    let plan = stage.json(&[&restore[..], &name("Twice")].concat());
    assert_eq!(text(&plan, "/label"), increment);
    let notes = plan["notes"].to_string();
    assert!(notes.contains("archived WAL could not be read"), "{notes}");
    let plan = stage.json(&[&restore[..], &name("before the increment")].concat());
    assert_eq!(text(&plan, "/label"), full);
}

#[test]
fn a_transaction_is_reached_where_it_ended() {
    let stage = stage(Major::V18, Store::Directory);
    let xid = |target| ["--target-type", "xid", "--target", target];
    let full = layer(&stage, "full");
    insert(&stage, 1);
    let early = sql(
        &stage,
        "SELECT pg_walfile_name(pg_current_wal_insert_lsn())",
    );
    let two = insert(&stage, 2);
    // It begins before the increment, and ends after it.
    let prepared = sql(
        &stage,
        "BEGIN; INSERT INTO numbers VALUES (100) RETURNING pg_current_xact_id(); PREPARE TRANSACTION 'late'",
    );
    let open = sql(
        &stage,
        "BEGIN; INSERT INTO numbers VALUES (101) RETURNING pg_current_xact_id(); PREPARE TRANSACTION 'never'",
    );
    let increment = layer(&stage, "incr");
    insert(&stage, 3);
    // A commit record of 12 000 bytes that begins in the last 6 000 of a segment.
    let part = "CREATE TABLE parts (id int); BEGIN; INSERT INTO numbers VALUES (4); SAVEPOINT a;
        INSERT INTO numbers VALUES (5); RELEASE a;
        DO $$ BEGIN FOR i IN 1..3000 LOOP BEGIN INSERT INTO parts VALUES (i);
            EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$;
        SELECT min(xmin::text::int) || ' ' || max(xmin::text::int) FROM numbers WHERE id IN (4, 5);
        DO $$ BEGIN PERFORM pg_logical_emit_message(false, '', repeat('x',
            (1048576 - (pg_current_wal_insert_lsn() - '0/0') % 1048576 - 6000)::int)); END $$; COMMIT";
    let part = sql(&stage, part);
    let (whole, part) = part.trim().split_once(' ').unwrap();
    let rolled_back = sql(
        &stage,
        "BEGIN; INSERT INTO numbers VALUES (6) RETURNING pg_current_xact_id(); ROLLBACK",
    );
    sql(&stage, "COMMIT PREPARED 'late'");
    let seven = insert(&stage, 7);
    stage.archive_all();

    let cases = [
        (two.as_str(), &full, "1 2"),
        (whole, &increment, "1 2 3 4 5"),
        (&rolled_back, &increment, "1 2 3 4 5"),
        (&prepared, &increment, "1 2 3 4 5 100"),
        (&seven, &increment, "1 2 3 4 5 7 100"),
    ];
    for (target, expected, rows) in cases {
        let (label, found, notes) = restored(&stage, &format!("at-{target}"), &xid(target));
        assert_eq!((&label, found.as_str()), (expected, rows), "{target}");
        let rolled = notes.contains("was rolled back at");
        assert_eq!(rolled, target == rolled_back, "{notes}");
    }
    let of = format!("It is a part of transaction {whole}, which committed at");
    refused(&stage, &xid(part), &["is not in the archived WAL", &of]);
    refused(
        &stage,
        &xid(&open),
        &["It was prepared at", "has not ended"],
    );
    let beyond = (seven.parse::<u64>().unwrap() + 1000).to_string();
    let nearest = format!("The nearest in it: transaction {seven}, which committed at");
    refused(&stage, &xid(&beyond), &[&nearest]);
    // Who looks for it is told of what could not be searched.
    let gone = stage.objects().join("main/wal/00000001").join(&early);
    fs::remove_file(gone).unwrap();
    let missing = format!("but for what is missing: segment {early}");
    refused(&stage, &xid(&two), &[&missing]);
}

/// The place of an LSN may be archived, and hold nothing: a segment that was ended early.
#[test]
fn an_lsn_behind_the_last_record_is_not_promised() {
    let stage = stage(Major::V15, Store::Directory);
    layer(&stage, "full");
    insert(&stage, 1);
    let end = sql(&stage, "SELECT pg_switch_wal()");
    stage.wait_archived(&end);
    let lsn = ["--target-type", "lsn", "--target", &end];
    refused(
        &stage,
        &lsn,
        &["beyond what is archived", "no record begins there"],
    );
    insert(&stage, 2);
    stage.archive_all();
    let (_, rows, _) = restored(&stage, "reached", &lsn);
    assert!(rows == "1" || rows == "1 2", "{rows}");
}

/// The way to the target crosses from one timeline to the next.
#[test]
fn a_target_behind_a_promotion_is_found() {
    let stage = stage(Major::V16, Store::Directory);
    let full = layer(&stage, "full");
    insert(&stage, 1);
    let standby = ["--target-type", "standby", "--archive-mode", "keep"];
    let standby = stage.restore("standby", &standby);
    let standby = Cluster::adopt(Major::V16, &standby)
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .start()
        .unwrap();
    let arrived = "SELECT count(*) = 1 FROM numbers";
    standby.wait_for("postgres", arrived, PATIENCE).unwrap();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let sql = |script: &str| standby.sql("postgres", script).unwrap();
    sql("SELECT pg_promote()");
    standby.wait_promoted(PATIENCE).unwrap();
    let two = sql("INSERT INTO numbers VALUES (2) RETURNING pg_current_xact_id()");
    let after_two = sql("SELECT pg_sleep(0.05)::text || clock_timestamp()");
    sql("SELECT pg_sleep(0.05); INSERT INTO numbers VALUES (3)");
    sql("SELECT pg_create_restore_point('promoted')");
    sql("INSERT INTO numbers VALUES (4)");
    let end = sql("SELECT pg_switch_wal()");
    let archived = format!(
        "SELECT coalesce(last_archived_wal >= pg_walfile_name('{end}'::pg_lsn - 1), false) FROM pg_stat_archiver"
    );
    standby.wait_for("postgres", &archived, PATIENCE).unwrap();
    for (kind, target, expected) in [
        ("xid", two.as_str(), "1 2"),
        ("time", &after_two, "1 2"),
        ("name", "promoted", "1 2 3"),
    ] {
        let target = ["--target-type", kind, "--target", target];
        let (label, rows, _) = restored(&stage, kind, &target);
        assert_eq!((&label, rows.as_str()), (&full, expected), "{kind}");
    }
    refused(
        &stage,
        &["--target-type", "name", "--target", "none"],
        &["of timeline 2"],
    );
}

/// A server that stops before the next timeline begins, in the very segment, looks for its prepared transactions in the
/// segment of the old one.
#[test]
fn a_target_before_a_promotion_is_reached_with_its_prepared_transactions() {
    let stage = stage(Major::V15, Store::Directory);
    let pgdata = stage.pgdata();
    stage.ok(&["backup", "--pgdata", &pgdata]);
    let prepare = "BEGIN; INSERT INTO numbers VALUES (1); PREPARE TRANSACTION 'kept'";
    sql(&stage, prepare);
    let moment = now(&stage);
    insert(&stage, 5);
    sql(&stage, "SELECT pg_create_restore_point('before')");
    insert(&stage, 2);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();

    let before = ["--target-type", "name", "--target", "before"];
    let replaces = ["--target-action", "promote", "--archive-mode", "keep"];
    let target = stage.restore("successor", &[&before[..], &replaces].concat());
    let successor = Cluster::adopt(stage.cluster.major(), &target)
        .start()
        .unwrap();
    successor.wait_promoted(PATIENCE).unwrap();
    successor
        .sql("postgres", "INSERT INTO numbers VALUES (3)")
        .unwrap();
    let pgdata = target.display().to_string();
    let mut backup = stage.command_beside(&successor, &["backup", "--pgdata", &pgdata]);
    assert!(backup.status().unwrap().success());
    let fork = successor.sql(
        "postgres",
        "SELECT split_part(pg_read_file('pg_wal/00000002.history'), E'\t', 2)",
    );
    let fork = fork.unwrap();
    successor.stop(StopMode::Fast).unwrap();

    let time = ["--target-type", "time", "--target", &moment];
    let named = [&before[..], &["--target-timeline", "2"]].concat();
    for (name, target, expected) in [
        ("again", &before[..], "5"),
        ("in-time", &time, ""),
        ("named", &named, "5"),
    ] {
        let (_, rows, notes) = restored(&stage, name, target);
        assert_eq!(rows, expected, "{name}");
        let stops = "recovery stops on timeline 1";
        assert!(notes.contains(stops), "{name}: {notes}");
    }
    // The first record there is one of the branch, and the old timeline has another.
    let target = stage.target("at-fork").display().to_string();
    let plan = ["restore", "--dry-run", "--target-dir", &target];
    let at_fork = ["--target-type", "lsn", "--target", &fork];
    let notes = stage.json(&[&plan[..], &at_fork].concat())["notes"].to_string();
    let passed = format!("timeline 1 goes on beyond {fork}");
    assert!(notes.contains(&passed), "{notes}");
}

/// The source has recovered to it long ago, and takes no notice. Its name is in capitals, which the server takes for the same,
/// but does not take for hidden by a line that has none.
fn a_target_that_the_source_has_left_in_its_files_stops_no_copy(major: Major) {
    let stage = stage(major, Store::Directory);
    let conf_d = stage.cluster.pgdata().join("conf.d");
    fs::create_dir(&conf_d).unwrap();
    let line = "Recovery_Target_Time = '2001-01-01 00:00:00+00'\r\n";
    fs::write(conf_d.join("a.conf"), line).unwrap();
    stage.cluster.append_conf("Include_Dir", "conf.d").unwrap();
    stage.cluster.restart().unwrap();
    insert(&stage, 1);
    layer(&stage, "full");
    insert(&stage, 2);
    let (lsn, _) = stage.moment();
    insert(&stage, 3);
    let time = now(&stage);
    insert(&stage, 4);
    stage.archive_all();

    let (_, rows, notes) = restored(&stage, "end", &[]);
    assert_eq!(rows, "1 2 3 4");
    let said = "one target of recovery at a time: Recovery_Target_Time";
    assert!(notes.contains(said), "{notes}");
    let at_lsn = ["--target-type", "lsn", "--target", &lsn];
    assert_eq!(restored(&stage, "lsn", &at_lsn).1, "1 2");

    // What was advised when it had recovered does not bring the old target back.
    let at_time = ["--target-type", "time", "--target", &time];
    let (_, rows, notes) = restored(&stage, "time", &at_time);
    assert_eq!(rows, "1 2 3");
    let reset = "ALTER SYSTEM RESET recovery_target_time";
    assert!(notes.contains(reset), "{notes}");
    let target = stage.target("time");
    let server = stage.start_restored(&target);
    server.sql("postgres", reset).unwrap();
    server.restart().unwrap();
    assert_eq!(server.sql("postgres", ROWS).unwrap(), "1 2 3");
}

#[test]
fn a_target_that_the_source_has_left_in_its_files_stops_no_copy_on_15() {
    a_target_that_the_source_has_left_in_its_files_stops_no_copy(Major::V15);
}

#[test]
fn a_target_that_the_source_has_left_in_its_files_stops_no_copy_on_18() {
    a_target_that_the_source_has_left_in_its_files_stops_no_copy(Major::V18);
}
