//! What a repository promises is judged by what it shows, and what is not known counts as promised: an archiver that was at
//! work, the histories of timelines, each timeline from its first byte on.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use serde_json::Value;
use support::judged::{
    age, archive, archived_by_switches, backup_alone, check, document, kinds, stored, switch,
};
use support::standby::backup_of;
use support::{PATIENCE, Stage, Store, files, text};

const WARNINGS: i32 = 3;
const FAILED: i32 = 13;
const DAMAGED: i32 = 14;
const WAL_MISSING: i32 = 18;
const TARGET: i32 = 19;

/// The server archives with that command from now on.
fn archive_with(stage: &Stage, command: &str) {
    stage.set_archive_command(command);
    let now = format!("SELECT current_setting('archive_command') = '{command}'");
    stage.cluster.wait_for("postgres", &now, PATIENCE).unwrap();
}

/// Finishes segments that nobody archives.
fn finish_segments(stage: &Stage, count: usize) {
    let switch = "SELECT pg_switch_wal() FROM (SELECT pg_logical_emit_message(true, '', '')) m";
    for _ in 0..count {
        stage.cluster.sql("postgres", switch).unwrap();
    }
}

/// What `info` and `verify` say of missing WAL.
fn require_one_hole(stage: &Stage, lost: &str) {
    require_hole(stage, lost, ("error", WAL_MISSING));
}

fn require_hole(stage: &Stage, lost: &str, (severity, verified): (&str, i32)) {
    let (code, info) = document(stage, &["info"]);
    assert_eq!(
        (code, kinds(&info)),
        (WARNINGS, vec!["wal-hole"]),
        "{info:#}"
    );
    assert_eq!(text(&info, "/alarms/0/severity"), severity);
    assert!(text(&info, "/alarms/0/lost").contains(lost), "{info:#}");
    let (code, report) = document(stage, &["verify"]);
    assert_eq!(code, verified, "{report:#}");
}

/// The backup that the archiver breaks under stores its own WAL, and nobody notes its end. The WAL behind it was promised
/// all the same.
#[test]
fn wal_that_an_archiver_leaves_out_when_it_breaks_under_a_backup_is_a_hole() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    switch(&stage);
    archive_with(&stage, "false");
    // Between this one and what was archived is no gap.
    let broken = backup_alone(&stage);
    finish_segments(&stage, 3);
    let next = backup_alone(&stage);
    age(&stage);
    require_one_hole(&stage, &format!("before the end of {next}"));
    let (_, info) = document(&stage, &["info"]);
    let reason = text(&info, "/alarms/0/reason");
    assert!(reason.contains(", are missing"), "{reason}");
    let (_, report) = document(&stage, &["verify", &broken]);
    assert_eq!(text(&report, "/status"), "ok", "{report:#}");
}

/// A backup that relied on the archiver leaves its note, also when the archiver cannot any more.
#[test]
fn an_archiver_that_breaks_under_the_first_backup_had_promised_what_comes_behind_it() {
    let stage = Stage::archiving(Cluster::builder(Major::V18), Store::Directory);
    switch(&stage);
    let running = stage.begin_backup(&["--type", "full", "--wal", "archive"]);
    archive_with(&stage, "false");
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(WARNINGS), "{output:?}");
    finish_segments(&stage, 3);
    let next = backup_alone(&stage);
    age(&stage);
    require_one_hole(&stage, &format!("before the end of {next}"));
}

/// Other segments, which no backup stored for itself, may be those of backups that have gone.
#[test]
fn a_segment_that_is_lost_with_the_notes_of_the_archiver_may_be_a_hole() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    let between = archived_by_switches(&stage, 3);
    let last = stage.backup(&["--type", "full"]);
    let last = text(&last, "/label");
    switch(&stage);
    for entry in fs::read_dir(archive(&stage)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".backup") || name == between[1] {
            fs::remove_file(&path).unwrap();
        }
    }
    age(&stage);
    let lost = format!("before the end of {last}");
    require_hole(&stage, &lost, ("warning", WARNINGS));
    let (_, info) = document(&stage, &["info"]);
    let reason = text(&info, "/alarms/0/reason");
    assert!(reason.contains("no archiver has left a note"), "{reason}");
}

/// A repository, and what is done to a copy of it.
struct Copies<'a> {
    stage: &'a Stage,
    server: &'a Cluster,
    whole: PathBuf,
}

impl<'a> Copies<'a> {
    /// The repository as it is now, with WAL that was archived an hour ago.
    fn of(stage: &'a Stage, name: &str, server: &'a Cluster) -> Self {
        age(stage);
        let whole = stage.target(name);
        files::copy_all(stored(stage).parent().unwrap(), &whole);
        Self {
            stage,
            server,
            whole,
        }
    }

    /// Does it to the archive of a copy; answers what commands say of that.
    fn after(&self, harm: impl FnOnce(&Path)) -> Said<'_> {
        let harmed = self.stage.target("harmed");
        let _ = fs::remove_dir_all(&harmed);
        files::copy_all(&self.whole, &harmed);
        harm(&harmed.join("main/wal"));
        Said {
            stage: self.stage,
            server: self.server,
            repository: format!("file://{}", harmed.display()),
        }
    }
}

/// What commands say of a repository.
struct Said<'a> {
    stage: &'a Stage,
    server: &'a Cluster,
    repository: String,
}

impl Said<'_> {
    fn run(&self, arguments: &[&str]) -> (i32, Value) {
        let words = [&["--repo", &self.repository][..], arguments].concat();
        document(self.stage, &words)
    }

    /// `info` and `check` raise one alarm of an error, with these words in its reason and in what is lost.
    fn require_alarm(&self, kind: &str, reason: &str, lost: &str) {
        let (code, info) = self.run(&["info"]);
        let mut found = kinds(&info);
        // A restore asks which branch is meant: files that are all as old as each other tell of no end of one.
        found.retain(|kind| *kind != "timelines");
        assert_eq!((code, found), (WARNINGS, vec![kind]), "{info:#}");
        assert_eq!(text(&info, "/alarms/0/severity"), "error");
        assert!(text(&info, "/alarms/0/reason").contains(reason), "{info:#}");
        assert!(text(&info, "/alarms/0/lost").contains(lost), "{info:#}");
        let pgdata = self.server.pgdata().display().to_string();
        let conninfo = self.server.conninfo("postgres");
        let check = ["check", "-D", &pgdata, "-d", &conninfo, "--wal", "stream"];
        let (_, report) = self.run(&check);
        let mut items = report["items"].as_array().unwrap().iter();
        let failed = items.any(|item| item["status"] == "failed" && item["name"] == "WAL archive");
        assert!(failed, "{report:#}");
    }

    /// `verify` ends with that code, and names the object.
    fn require_finding(&self, expected: i32, object: &str) {
        for words in [&["verify"][..], &["verify", "--deep"]] {
            let (code, report) = self.run(words);
            assert_eq!(code, expected, "{report:#}");
            let mut findings = report["findings"].as_array().unwrap().iter();
            assert!(
                findings.any(|finding| text(finding, "/object").ends_with(object)),
                "{object}: {report:#}"
            );
        }
    }

    fn require_no_other_alarm_than(&self, kind: &str) {
        for words in ["info", "verify"] {
            let (code, report) = self.run(&[words]);
            assert_eq!((code, kinds(&report)), (WARNINGS, vec![kind]), "{report:#}");
        }
    }
}

/// The server is taken back to the end of the last backup, and goes on along a new timeline.
fn take_back(stage: &Stage) -> Cluster {
    stage.cluster.stop(StopMode::Fast).unwrap();
    let to = ["--target-type", "immediate", "--target-action", "promote"];
    let directory = stage.restore("back", &[&to[..], &["--archive-mode", "keep"]].concat());
    let server = Cluster::adopt(stage.cluster.major(), &directory)
        .start()
        .unwrap();
    server.wait_promoted(PATIENCE).unwrap();
    server
}

/// Finishes segments, and waits until they are archived.
fn archive_segments(server: &Cluster, count: usize) {
    for _ in 0..count {
        let switch = "SELECT pg_walfile_name(pg_switch_wal()) FROM (SELECT pg_logical_emit_message(true, '', '')) m";
        let name = server.sql("postgres", switch).unwrap();
        let done =
            format!("SELECT coalesce(last_archived_wal >= '{name}', false) FROM pg_stat_archiver");
        server.wait_for("postgres", &done, PATIENCE).unwrap();
    }
}

const HISTORY: &str = "00000002/00000002.history";

/// After a server was taken back, or a standby promoted, what the new timeline has lost is missed, whether there is a backup of
/// it or not.
#[test]
fn what_a_new_timeline_has_lost_is_an_alarm_with_layers_on_it_and_without() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    switch(&stage);
    let server = take_back(&stage);
    archive_segments(&server, 3);
    let before = Copies::of(&stage, "before", &server);
    let words = backup_of(&server, &["--type", "full"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let report = stage.json(&words);
    let layer = text(&report, "/label");
    archive_segments(&server, 1);
    let after = Copies::of(&stage, "after", &server);
    for copies in [&before, &after] {
        let whole = copies.after(|_| ());
        whole.require_no_other_alarm_than("timelines");
        let lost = copies.after(|wal| fs::remove_file(wal.join(HISTORY)).unwrap());
        lost.require_alarm("archive", "00000002.history", "no moment on timeline 2");
        lost.require_finding(WAL_MISSING, HISTORY);

        let altered = copies.after(|wal| files::flip(&wal.join(HISTORY), |length| length - 3));
        altered.require_alarm("archive", "00000002.history", "no moment on timeline 2");
        altered.require_finding(DAMAGED, HISTORY);

        // The old timeline's copy of that segment goes on where the server did not.
        let mut first = String::new();
        let beheaded = copies.after(|wal| {
            first.clone_from(&files::segments(&wal.join("00000002"))[0]);
            let old = first.replacen("00000002", "00000001", 1);
            assert!(wal.join("00000001").join(old).exists());
            fs::remove_file(wal.join("00000002").join(&first)).unwrap();
        });
        beheaded.require_alarm("wal-hole", &first, "no moment on timeline");
        beheaded.require_finding(WAL_MISSING, &first);

        let mut second = String::new();
        let rotten = copies.after(|wal| {
            second.clone_from(&files::segments(&wal.join("00000002"))[1]);
            files::flip(&wal.join("00000002").join(&second), |length| length / 2);
        });
        rotten.require_finding(DAMAGED, &second);
        // No listing tells; that a verification has found something stays on record.
        let (_, info) = rotten.run(&["info"]);
        assert!(kinds(&info).contains(&"verify"), "{info:#}");
    }
    // It is named with the layers that need it.
    let lost = after.after(|wal| fs::remove_file(wal.join(HISTORY)).unwrap());
    let (_, info) = lost.run(&["info"]);
    assert!(text(&info, "/alarms/0/lost").contains(layer), "{info:#}");

    // Files of a timeline of which nothing else is known.
    for name in ["00000003.history", "000000030000000000000007"] {
        let strange = before.after(|wal| {
            fs::create_dir(wal.join("00000003")).unwrap();
            fs::write(wal.join("00000003").join(name), "junk").unwrap();
            files::age(&wal.join("00000003"), "1 hour ago");
        });
        strange.require_finding(DAMAGED, name);
    }
}

/// A restored copy archives nothing. When it is told to after its promotion, it never asks for the history of its timeline.
#[test]
fn the_history_of_a_timeline_comes_with_its_first_segment_when_the_server_never_asks_for_it() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let copy = stage.restore("copy", &["--target-action", "promote"]);
    let server = Cluster::adopt(Major::V15, &copy).start().unwrap();
    server.wait_promoted(PATIENCE).unwrap();
    let history = stored(&stage).join("wal").join(HISTORY);
    let archive = "ALTER SYSTEM SET archive_mode = 'on'";
    server.sql("postgres", archive).unwrap();
    server.restart().unwrap();
    let unmarked = server.pgdata().join("pg_wal/archive_status");
    for mark in ["ready", "done"] {
        assert!(!unmarked.join(format!("00000002.history.{mark}")).exists());
    }
    assert!(!history.exists());
    archive_segments(&server, 1);
    assert!(history.exists());
    age(&stage);
    let (code, report) = document(&stage, &["verify"]);
    assert_eq!(code, 0, "{report:#}");
    let (code, info) = document(&stage, &["info"]);
    assert_eq!(code, 0, "{info:#}");
}

/// The listing shows that nothing whole can be in it.
#[test]
fn a_segment_that_is_too_short_to_be_one_is_an_alarm_without_reading_the_others() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let layer = stage.backup(&["--type", "full"]);
    let between = archived_by_switches(&stage, 3);
    let path = archive(&stage).join(&between[1]);
    let whole = fs::read(&path).unwrap();
    for length in [0, 100] {
        fs::write(&path, &whole[..length]).unwrap();
        let (code, info) = document(&stage, &["info"]);
        assert_eq!(
            (code, kinds(&info)),
            (WARNINGS, vec!["archive"]),
            "{info:#}"
        );
        assert!(
            text(&info, "/alarms/0/reason").contains(&between[1]),
            "{info:#}"
        );
        assert_eq!(check(&stage).0, FAILED);
    }
    // Stored again it stands beside the damaged one.
    let again = stage.target(&between[1]);
    let mut command = stage.command(&["archive-get", &between[0], again.to_str().unwrap()]);
    assert!(command.output().unwrap().status.success());
    fs::write(&path, &whole).unwrap();
    let mut command = stage.command(&["archive-get", &between[1], again.to_str().unwrap()]);
    assert!(command.output().unwrap().status.success());
    fs::write(&path, &whole[..100]).unwrap();
    stage.ok(&["archive-push", again.to_str().unwrap()]);
    let (code, info) = document(&stage, &["info"]);
    assert_eq!(code, 0, "{info:#}");
    stage.ok(&["verify"]);

    // That of a layer makes it unusable.
    let own = text(&document(&stage, &["info"]).1, "/layers/0/wal/first").to_owned();
    fs::write(archive(&stage).join(&own), "").unwrap();
    let (_, info) = document(&stage, &["info"]);
    assert!(kinds(&info).contains(&"layer"), "{info:#}");
    assert!(text(&info, "/layers/0/problem").contains(&own), "{info:#}");
    let (code, _) = stage.fails(&["pin", text(&layer, "/label")]);
    assert_eq!(code, WAL_MISSING);
}

#[test]
fn objects_of_which_nobody_knows_what_they_are_for_are_warnings_of_verify() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    stage.ok(&["verify"]);
    let strange = [
        "zzz",
        "layer/nonsense",
        "layer/foo/bar",
        "junk/bar",
        "wal/00000001/junk",
        "mark/x",
    ];
    for key in strange {
        let path = stored(&stage).join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    let (code, report) = document(&stage, &["verify"]);
    assert_eq!(code, WARNINGS, "{report:#}");
    let findings = report["findings"].as_array().unwrap().iter();
    let mut found: Vec<String> = findings
        .map(|finding| {
            assert_eq!(text(finding, "/kind"), "stray");
            text(finding, "/object")
                .trim_start_matches("main/")
                .to_owned()
        })
        .collect();
    found.sort();
    let mut expected = strange;
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// No restore needs them; what each may say is obeyed as the worst that it may say.
#[test]
fn records_that_cannot_be_read_are_warnings() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    for _ in 0..3 {
        stage.backup(&["--type", "full"]);
        archived_by_switches(&stage, 2);
    }
    stage.ok(&["expire", "--keep-full", "3", "--keep-wal", "0d"]);
    let put = |key: &str| {
        let path = stored(&stage).join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    };
    let released = fs::read_dir(stored(&stage).join("wal-released")).unwrap();
    let released: Vec<PathBuf> = released.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(released.len(), 1, "{released:?}");
    let label = text(&document(&stage, &["info"]).1, "/layers/0/label").to_owned();
    stage.ok(&["pin", &label]);
    stage.ok(&["verify"]);
    let mark = format!("mark/{label}/000000");
    let distrust = format!("distrust/{label}");
    let broken = [
        "wal-released/FFFFFFFFFFFFFFFF",
        "removal/aa/wanted",
        "restore/bb/needs",
        "verified/20261125-000000.000000-aa",
        &mark,
        &distrust,
    ];
    for key in broken {
        put(key);
    }
    let (code, report) = document(&stage, &["verify"]);
    assert_eq!(code, WARNINGS, "{report:#}");
    let findings = report["findings"].as_array().unwrap();
    for key in broken {
        let of_key = |found: &&Value| text(found, "/object").ends_with(key);
        let found = findings.iter().find(of_key);
        assert!(found.is_some(), "{key}: {report:#}");
        assert_eq!(text(found.unwrap(), "/kind"), "record", "{report:#}");
    }
    assert_eq!(findings.len(), broken.len(), "{report:#}");
    let (code, info) = document(&stage, &["info"]);
    let mut alarms = kinds(&info);
    alarms.sort_unstable();
    assert_eq!(
        (code, alarms),
        (WARNINGS, vec!["archive", "removal", "removal"]),
        "what was given up before is not missed: {info:#}"
    );
    assert!(info.to_string().contains("counts as pinned"), "{info:#}");

    // Without the record nobody knows that the holes are meant. Rules that give up the same WAL write it anew.
    for key in &broken[..3] {
        fs::remove_file(stored(&stage).join(key)).unwrap();
    }
    stage.ok(&["pin", &label]);
    for is_damaged in [true, false] {
        match is_damaged {
            true => fs::write(&released[0], "x").unwrap(),
            false => fs::remove_file(&released[0]).unwrap(),
        }
        let (_, info) = document(&stage, &["info"]);
        assert!(kinds(&info).contains(&"wal-hole"), "{info:#}");
        assert_eq!(kinds(&info).contains(&"archive"), is_damaged, "{info:#}");
        stage.ok(&["expire", "--keep-full", "3", "--keep-wal", "0d"]);
        let (code, info) = document(&stage, &["info"]);
        assert_eq!(code, 0, "{info:#}");
    }
}

/// Restarts the server with that `wal_level` and, unless it is `minimal`, with its archiver. Answers the segment that it goes
/// on with.
fn restart_with(stage: &Stage, wal_level: &str) -> String {
    let (archive_mode, senders) = match wal_level {
        "minimal" => ("off", "0"),
        _ => ("on", "10"),
    };
    for (key, value) in [
        ("wal_level", wal_level),
        ("archive_mode", archive_mode),
        ("max_wal_senders", senders),
    ] {
        stage.cluster.append_conf(key, value).unwrap();
    }
    stage.cluster.restart().unwrap();
    let segment = "SELECT pg_walfile_name(pg_current_wal_lsn())";
    stage.cluster.sql("postgres", segment).unwrap()
}

/// What a server wrote with `wal_level = minimal` is archived once it has its archiver again: no segment is missing, and
/// recovery ends there all the same.
fn minimal_wal_is_a_hole_to_what_was_backed_up_before(major: Major) {
    let builder = Cluster::builder(major).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let insert = |id: u32| {
        sql(&format!(
            "INSERT INTO numbers VALUES ({id}) RETURNING pg_current_xact_id()"
        ))
    };
    // A moment after all that was committed, and before all that will be.
    let now = || {
        let time = sql("SELECT pg_sleep(0.05)::text || clock_timestamp()");
        sql("SELECT pg_sleep(0.05)");
        time
    };
    sql("CREATE TABLE numbers (id int)");
    stage.backup(&["--type", "full"]);
    insert(1);
    let time_before = now();
    // Who starts with a level that is no lower says nothing of it.
    restart_with(&stage, "logical");
    insert(2);
    sql("SELECT pg_create_restore_point('before')");
    let minimal = restart_with(&stage, "minimal");
    sql("CREATE TABLE bulk AS SELECT generate_series(1, 100)");
    restart_with(&stage, "replica");
    let transaction = insert(3);
    let time_behind = now();
    sql("SELECT pg_create_restore_point('behind')");
    let lsn_behind = sql("SELECT pg_current_wal_insert_lsn()");
    insert(4);
    stage.archive_all();

    require_minimal(&stage, &minimal);
    for (kind, target) in [
        ("xid", transaction.as_str()),
        ("time", &time_behind),
        ("name", "behind"),
        ("lsn", &lsn_behind),
    ] {
        let target = ["--target-type", kind, "--target", target];
        let words = ["cannot be reached from layer", "wal_level = minimal"];
        stage.refuses_to_restore(&target, TARGET, &words);
    }
    for (kind, target, expected) in [
        ("time", time_before.as_str(), "1"),
        ("name", "before", "1 2"),
    ] {
        let target = ["--target-type", kind, "--target", target];
        let promote = ["--target-action", "promote"];
        let directory = stage.restore(kind, &[&target[..], &promote].concat());
        let server = stage.start_restored(&directory);
        let rows = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM numbers";
        assert_eq!(server.sql("postgres", rows).unwrap(), expected, "{kind}");
    }

    // A layer that starts behind it leads on; only the one before does not.
    stage.backup(&["--type", "full"]);
    sql("SELECT pg_create_restore_point('later')");
    insert(5);
    stage.archive_all();
    let later = ["--target-type", "name", "--target", "later", "--dry-run"];
    stage.restore("later", &later);
    require_minimal(&stage, &minimal);
    stage.ok(&["expire", "--keep-full", "1", "--ignore-restores"]);
    for command in ["verify", "info"] {
        let (code, report) = document(&stage, &[command]);
        assert_eq!((code, kinds(&report)), (0, vec![]), "{report:#}");
    }
}

/// What `verify` says of the segment with which a server went on with `wal_level = minimal`, and `info` of that verification.
fn require_minimal(stage: &Stage, segment: &str) {
    let (code, report) = document(stage, &["verify"]);
    assert_eq!(code, WAL_MISSING, "{report:#}");
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{report:#}");
    let found = |path| text(&findings[0], path);
    assert_eq!(found("/severity"), "error");
    assert_eq!(found("/kind"), "wal-missing");
    assert!(found("/object").ends_with(segment), "{report:#}");
    let message = found("/message");
    assert!(message.contains("wal_level = minimal"), "{message}");
    assert!(found("/hint").contains("take a backup"), "{report:#}");
    let (code, info) = document(stage, &["info"]);
    assert_eq!((code, kinds(&info)), (WARNINGS, vec!["verify"]), "{info:#}");
}

#[test]
fn minimal_wal_is_a_hole_to_what_was_backed_up_before_on_15() {
    minimal_wal_is_a_hole_to_what_was_backed_up_before(Major::V15);
}

#[test]
fn minimal_wal_is_a_hole_to_what_was_backed_up_before_on_18() {
    minimal_wal_is_a_hole_to_what_was_backed_up_before(Major::V18);
}

/// The archiver says that all is well: what it archived last is not there, or a library has taken the command's place.
#[test]
fn an_archiver_that_works_and_brings_nothing_is_an_alarm_where_its_command_names_the_repository() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    switch(&stage);
    let last = "SELECT last_archived_wal FROM pg_stat_archiver";
    let lost = stage.cluster.sql("postgres", last).unwrap();
    let pgdata = stage.pgdata();
    let ask = |command: &str| document(&stage, &[command, "--pgdata", &pgdata]);
    for command in ["info", "verify"] {
        let (code, report) = ask(command);
        assert_eq!((code, kinds(&report)), (0, vec![]), "{report:#}");
    }
    fs::remove_file(archive(&stage).join(&lost)).unwrap();
    for command in ["info", "verify"] {
        let (code, report) = ask(command);
        assert_eq!((code, kinds(&report)), (WARNINGS, vec!["archiver"]));
        let reason = text(&report, "/alarms/0/reason");
        assert!(reason.contains(&lost), "{reason}");
    }
    let set = stage
        .cluster
        .append_conf("archive_library", "basic_archive");
    set.unwrap();
    stage.cluster.reload().unwrap();
    let now = "SELECT current_setting('archive_library') <> ''";
    stage.cluster.wait_for("postgres", now, PATIENCE).unwrap();
    let (code, report) = ask("info");
    assert_eq!((code, kinds(&report)), (WARNINGS, vec!["archiver"]));
    let reason = text(&report, "/alarms/0/reason");
    assert!(
        reason.contains("archive_library is \"basic_archive\""),
        "{reason}"
    );
    let to_do = text(&report, "/alarms/0/to_do");
    assert!(to_do.contains("set archive_library = ''"), "{to_do}");
}
