//! What somebody puts into the repository who may write there: names that no path has, and text that commands a terminal.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use jiff::Timestamp;
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::plain::is_plain;
use pgstrata_layer::restoring::{self, RestoreRecord};
use pgstrata_pgdata::Lsn;
use pgstrata_testbed::cluster::{Builder, Cluster, Major, StopMode, require_same_dump};
use pgstrata_testbed::s3::Bucket;
use support::roles::quiet_moment;
use support::{PATIENCE, Stage, Store, files, process, schema, text, to_lsn};

const PASSED_OVER: &str = "passed over an object with the name";

fn builder() -> Builder {
    let builder = Cluster::builder(Major::V15).conf("archive_mode", "on");
    builder.conf("archive_command", "false")
}

/// What a command shows is plain text, whatever stands in the repository.
fn require_plain(output: &Output, what: &str) -> (String, String) {
    let told = String::from_utf8(output.stdout.clone()).unwrap();
    let log = String::from_utf8(output.stderr.clone()).unwrap();
    for text in [&told, &log] {
        let bad = text.chars().find(|c| !is_plain(*c) && *c != '\n');
        assert_eq!(bad, None, "{what}: {text:?}");
    }
    (told, log)
}

#[test]
fn an_object_whose_name_is_none_keeps_nobody_from_the_repository() {
    let stage = Stage::with_roles(builder(), Bucket::Versioned);
    let pgdata = stage.pgdata();
    stage.ends_as("writer", &["init", "--pgdata", &pgdata], 0);
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    stage.backup(&["--type", "full"]);
    let (lsn, dump) = stage.moment();
    let moment = quiet_moment();

    let keys = stage.keys();
    let layer = keys.iter().find(|key| key.contains("/layer/")).unwrap();
    let (cluster, _) = layer.split_once("/layer/").unwrap();
    let own = layer.rsplit_once('/').unwrap().0;
    let places = [
        "layer/",
        "wal/",
        "restore/",
        "mark/",
        "removal/",
        "verified/",
        "",
    ];
    let places = places.map(|place| format!("{cluster}/{place}"));
    for place in places.iter().chain([&format!("{own}/")]) {
        for name in ["a%0Ab", "a%0Db/claim", "a%C2%9B2Jb", "a%E2%80%AEb/manifest"] {
            let place = format!("/{place}{name}");
            let put = stage.s3().request(Some("writer"), "PUT", &place, "evil");
            let put = put.unwrap();
            assert_eq!(put.status, 200, "{place}: {}", put.body);
        }
    }

    let target = stage.target("restored");
    let into = target.display().to_string();
    let restore = [&["restore", "--target-dir", &into][..], &to_lsn(&lsn)].concat();
    let as_of = ["info", "--repository-as-of", &moment];
    let commands: [(&str, &[&str]); 8] = [
        ("reader", &["info"]),
        ("reader", &as_of),
        ("reader", &["verify", "--deep"]),
        ("reader", &restore),
        ("writer", &["backup", "-D", &pgdata, "--type", "incr"]),
        ("keeper", &["expire", "--keep-full", "1"]),
        ("keeper", &["rescue", "--since", &moment, "--dry-run"]),
        ("keeper", &["merge", "latest", "--dry-run"]),
    ];
    for (role, command) in commands {
        let output = stage.run_as(role, command);
        let (told, log) = require_plain(&output, &command.join(" "));
        assert_eq!(output.status.code(), Some(0), "{command:?}: {log}{told}");
        assert!(!told.contains("2Jb") && !told.contains("evil"), "{told}");
        // Once, however many there are.
        assert_eq!(log.matches(PASSED_OVER).count(), 1, "{command:?}: {log}");
    }
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

#[test]
fn text_of_a_record_commands_no_terminal_and_forges_no_line() {
    const EVIL: &str = "db1\nstatus: ok\r\u{1b}[2J\u{7}\u{9b}2J\u{202e}\u{2028}";
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let full = ["backup", "-D", &pgdata, "--type", "full", "--wal", "stream"];
    stage.ok(&full);
    let cluster = stage.objects().join("main");
    let now = Timestamp::now();
    let restore = RestoreRecord {
        layers: vec![ParentRef {
            label: "20261101-000000F".to_owned(),
            manifest_digest: "0f".repeat(32),
        }],
        start_lsn: Lsn::new(1),
        timeline: 1,
        host: EVIL.to_owned(),
        pid: 1,
        directory: format!("/{EVIL}"),
        started_at: now,
        written_by: EVIL.to_owned(),
    };
    let claim = ClaimRecord {
        label: "20261101-000000F".to_owned(),
        layer_id: "0f".repeat(16),
        host: EVIL.to_owned(),
        pid: 1,
        started_at: now,
        written_by: EVIL.to_owned(),
    };
    for (place, body) in [
        (
            "restore/f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0/needs",
            restoring::encode(&restore),
        ),
        ("layer/20261101-000000F/claim", claim::encode(&claim)),
        (&format!("mark/{}", "\u{9b}2J\u{202e}"), b"evil".to_vec()),
    ] {
        let path = cluster.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, body).unwrap();
    }
    let mut shown = 0;
    for command in [
        &["info"][..],
        &["--output", "json", "info"],
        &["--log-level", "debug", "verify"],
        &["expire", "--keep-full", "1", "--dry-run"],
        &["expire", "--keep-full", "1"],
        &full,
    ] {
        let output = stage.run(command);
        let (told, log) = require_plain(&output, &command.join(" "));
        assert_ne!(output.status.code(), Some(15), "{command:?}: {log}");
        let forged = told.lines().chain(log.lines());
        assert_eq!(
            forged.filter(|line| line.starts_with("status: ok")).count(),
            0
        );
        shown += told.matches("db1\\nstatus").count() + log.matches("db1\\nstatus").count();
        if command.contains(&"json") {
            let info = schema::document(&told);
            assert_eq!(info["restores"][0]["host"], EVIL);
        }
    }
    assert!(shown >= 4, "{shown}");
}

/// Its date is that of a label which no backup can come after.
#[test]
fn a_claim_of_a_day_to_come_is_gone_when_somebody_deletes_it() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let full = ["backup", "-D", &pgdata, "--type", "full", "--wal", "stream"];
    stage.ok(&full);
    let far = stage.objects().join("main/layer/99991231-235959F");
    fs::create_dir(&far).unwrap();
    fs::write(far.join("claim"), "x").unwrap();
    files::age(&stage.objects(), "2 days ago");
    let output = stage.run(&["expire", "--keep-full", "1"]);
    let (told, log) = require_plain(&output, "expire");
    assert!(
        output.status.success() || output.status.code() == Some(3),
        "{log}"
    );
    assert!(told.contains("99991231-235959F stays"), "{told}");
    assert!(!far.join("manifest").exists());
    let (code, log) = stage.fails(&full);
    assert!(code == 13 && log.contains("delete it"), "{log}");
    fs::remove_dir_all(&far).unwrap();
    stage.ok(&full);
}

/// Both timelines are numbers that a server may take next, and one of them is no history at all: who names the timeline that
/// he means gets it all the same, and takes neither number.
#[test]
fn a_history_that_cannot_be_read_stops_only_who_may_need_it() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let layer = stage.backup(&["--type", "full"]);
    let (lsn, dump) = stage.moment();
    let at_end = stage.cluster.dump().unwrap();
    let wal = stage.objects().join("main/wal");
    let put = |timeline: &str, body: &[u8]| {
        let directory = wal.join(timeline);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("{timeline}.history")), body).unwrap();
    };
    put("00000001", b"1");
    put("00000002", b"x");
    put("00000003", &vec![0; 65 << 20]);
    fs::create_dir(wal.join("00000004")).unwrap();
    symlink("/nowhere", wal.join("00000004/00000004.history")).unwrap();
    // Numbers before one that is not near may have been real timelines, too; those before one far ahead are free.
    put("00000009", b"x");
    put("00F00000", b"x");

    let to_end: &[&str] = &[];
    let at_lsn = to_lsn(&lsn);
    let immediate = ["--target-type", "immediate", "--target-action", "promote"];
    let of_two = ["--target-timeline", "2"];
    for unnamed in [to_end, &at_lsn, &["--target-timeline", "latest"], &of_two] {
        let words = ["00000002.history", "--target-timeline"];
        stage.refuses_to_restore(unnamed, 14, &words);
    }

    for (name, target, wanted) in [
        ("one", &["--target-timeline", "1"][..], &at_end),
        ("current", &["--target-timeline", "current"], &at_end),
        ("alone", &immediate, &String::new()),
        (
            "lsn",
            &[&at_lsn[..], &["--target-timeline", "1"]].concat(),
            &dump,
        ),
    ] {
        let restored = stage.restore(name, target);
        let configured = fs::read_to_string(restored.join("postgresql.auto.conf")).unwrap();
        assert!(
            configured.contains("archive-get ") && configured.contains("--along=1 "),
            "{configured}"
        );
        let restored = stage.start_restored(&restored);
        let own = "SELECT timeline_id = 10 FROM pg_control_checkpoint()";
        restored.wait_for("postgres", own, PATIENCE).unwrap();
        let held = restored.dump().unwrap();
        if !wanted.is_empty() {
            require_same_dump(wanted, &held).unwrap();
        }
        let histories = fs::read_dir(restored.pgdata().join("pg_wal")).unwrap();
        let names = histories.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names: Vec<String> = names.filter(|name| name.ends_with(".history")).collect();
        assert_eq!(names, ["0000000A.history"], "{name}");
    }

    // Who follows the latest timeline is not told that the archive ends.
    let to = stage.target("got").display().to_string();
    let beyond = "0000000100000000000000F0";
    let along = ["--along", "1"];
    let get = ["archive-get", beyond, &to, "--hole-timeout", "0s"];
    assert_eq!(stage.run(&get).status.code(), Some(255));
    let output = stage.run(&[&get[..], &along].concat());
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{log}");
    let (code, info) = judged(&stage, "info");
    assert_eq!(code, 3, "{info}");
    let label = text(&layer, "/label");
    for told in [label, "timeline 2", "names its timeline", "delete it"] {
        assert!(info.contains(told), "{told}: {info}");
    }
}

/// The number of a timeline of which only WAL is left, and those before it, belong to servers that have been.
#[test]
fn a_timeline_whose_history_is_lost_is_not_begun_again() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    let (lsn, _) = stage.moment();
    let wal = stage.objects().join("main/wal/00000003");
    fs::create_dir(&wal).unwrap();
    fs::write(wal.join("000000030000000000000002"), "x").unwrap();
    let immediate = ["--target-type", "immediate", "--target-action", "promote"];
    for (name, target) in [
        ("alone", &immediate[..]),
        (
            "lsn",
            &[&to_lsn(&lsn)[..], &["--target-timeline", "1"]].concat(),
        ),
    ] {
        let restored = stage.start_restored(&stage.restore(name, target));
        let own = "SELECT timeline_id = 4 FROM pg_control_checkpoint()";
        restored.wait_for("postgres", own, PATIENCE).unwrap();
    }
}

/// A timeline that began behind a segment which is not there may have come from it, as long as nobody knows.
#[test]
fn wal_behind_the_end_of_a_named_timeline_is_not_passed_over() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    stage.moment();
    let wal = stage.objects().join("main/wal/00000002");
    fs::create_dir(&wal).unwrap();
    fs::write(wal.join("00000002.history"), "x").unwrap();
    let named = ["--target-timeline", "1"];
    let plan = stage.target("plan").display().to_string();
    let plan = [&["restore", "--dry-run", "--target-dir", &plan][..], &named].concat();
    // The first one that is not there.
    let next = "000000020000000000000004";
    fs::write(wal.join(next), "x").unwrap();
    stage.ok(&plan);
    fs::remove_file(wal.join(next)).unwrap();
    let later = "000000020000000000000005";
    fs::write(wal.join(later), "x").unwrap();
    stage.refuses_to_restore(&named, 18, &[later]);
    let to = stage.target("got").display().to_string();
    let get = ["archive-get", "000000010000000000000004", &to];
    let get = [&get[..], &["--along", "1", "--hole-timeout", "0s"]].concat();
    assert_eq!(stage.run(&get).status.code(), Some(255));
}

/// A number that a server has passed over belongs to nobody: a history that says nothing closes the gap.
#[test]
fn a_number_that_no_server_has_used_is_closed_by_a_comment() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    push_history(&stage, "00000003.history", "1\t0/8000000\tpromoted\n");
    let (code, info) = judged(&stage, "info");
    assert!(code == 3 && info.contains("timeline 2"), "{code}: {info}");
    let plan = stage.target("plan").display().to_string();
    let plan = ["restore", "--dry-run", "--target-dir", &plan];
    assert_eq!(stage.run(&plan).status.code(), Some(18));
    let comment = "# no server has been on this timeline\n";
    push_history(&stage, "00000002.history", comment);
    let (code, info) = judged(&stage, "info");
    assert!(!info.contains("timeline 2,"), "{code}: {info}");
    let output = stage.run(&plan);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(!log.contains("00000002.history"), "{log}");
}

/// A history that is as it should be may be the work of who can create objects. It moves no restore off the timeline that has
/// WAL, unless it is told to.
#[test]
fn a_history_and_nothing_else_loses_no_row() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    let (lsn, _) = stage.moment();
    let at_end = stage.cluster.dump().unwrap();
    let forged = format!("1\t{lsn}\tno recovery target specified\n");
    push_history(&stage, "00000002.history", &forged);
    let words = ["timeline 1 goes on beyond", "--target-timeline 2 (no WAL)"];
    for unnamed in [&[][..], &["--target-type", "xid", "--target", "5000"]] {
        stage.refuses_to_restore(unnamed, 19, &words);
    }
    let (code, told) = judged(&stage, "info");
    let words = "there is nothing but its history";
    assert!(code == 3 && told.contains(words), "{code}: {told}");
    let named = stage.restore("named", &["--target-timeline", "1"]);
    let restored = stage.start_restored(&named);
    require_same_dump(&at_end, &restored.dump().unwrap()).unwrap();
}

/// The timeline of a layer, another that nobody can read, and one that the user names and that does not come from it.
#[test]
fn a_history_on_the_way_that_is_not_needed_stops_nobody() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    stage.backup(&["--type", "full"]);
    stage.moment();
    let in_place = ["restore", "--delta", "--target-dir", &stage.pgdata()];
    for (own, target) in [("2", &[][..]), ("3", &["--target-timeline", "1"])] {
        stage.cluster.stop(StopMode::Fast).unwrap();
        stage.ok(&[&in_place[..], target].concat());
        stage.cluster.start().unwrap();
        stage.cluster.wait_promoted(PATIENCE).unwrap();
        let is_own = format!("SELECT timeline_id = {own} FROM pg_control_checkpoint()");
        stage
            .cluster
            .wait_for("postgres", &is_own, PATIENCE)
            .unwrap();
        let table = format!("CREATE TABLE on_{own} AS SELECT 1");
        stage.cluster.sql("postgres", &table).unwrap();
        stage.archive_all();
    }
    let at_end = stage.cluster.dump().unwrap();
    let history = stage.objects().join("main/wal/00000002/00000002.history");
    for lost in [false, true] {
        fs::remove_file(&history).unwrap();
        if !lost {
            fs::write(&history, "x").unwrap();
        }
        let code = if lost { 18 } else { 14 };
        for needs_it in ["2", "latest"] {
            let words = ["00000002.history", "archive-push"];
            stage.refuses_to_restore(&["--target-timeline", needs_it], code, &words);
        }
        let name = format!("named-{lost}");
        let restored = stage.restore(&name, &["--target-timeline", "3"]);
        let restored = stage.start_restored(&restored);
        require_same_dump(&at_end, &restored.dump().unwrap()).unwrap();
    }
}

/// A server that found no history under a number has begun that timeline again.
#[test]
fn a_history_of_another_server_is_not_stored_beside_wal_of_its_timeline() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&["--type", "full"]);
    let (lsn, _) = stage.moment();
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let in_place = ["restore", "--delta", "--target-dir", &stage.pgdata()];
    stage.ok(&[&in_place[..], &to_lsn(&lsn)].concat());
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
    let more = "CREATE TABLE more AS SELECT generate_series(1, 100000)";
    stage.cluster.sql("postgres", more).unwrap();
    stage.archive_all();
    let wal = stage.objects().join("main/wal/00000002");
    let history = stage.pgdata() + "/pg_wal/00000002.history";
    let own = fs::read_to_string(&history).unwrap();
    let switch = own.split('\t').nth(1).unwrap();
    let (high, low) = switch.split_once('/').unwrap();
    let low = u32::from_str_radix(low, 16).unwrap();
    let first = low >> 24;
    let page = low & !8191;
    let there = files::segments(&wal).remove(0);
    assert!(there.ends_with(&format!("{first:02X}")), "{there} {switch}");
    assert!(low & 8191 > 0 && (low + 8192) >> 24 == first, "{switch}");
    let mended = stage.objects().join("main/wal-mended");
    let stored = wal.join("00000002.history");
    fs::remove_file(&stored).unwrap();
    // In an earlier segment, a later one, on another page of the same; where nothing has the name, and where damage has it.
    for is_damaged in [false, true] {
        if is_damaged {
            fs::write(&stored, "no object").unwrap();
        }
        for other in [low - (1 << 24), low + (1 << 24), page - 1, page + 8193] {
            let history = own.replace(switch, &format!("{high}/{other:X}"));
            let (code, log) = pushed_history(&stage, "00000002.history", &history);
            assert_eq!(code, 11, "{other:X}: {log}");
            assert!(log.contains("two servers have begun one timeline"), "{log}");
            assert!(!mended.exists(), "{other:X}");
            assert_eq!(stored.exists(), is_damaged, "{other:X}");
        }
        stage.ok(&["archive-push", &history]);
        assert_eq!(mended.exists(), is_damaged);
        stage.ok(&["verify"]);
    }
    stage.restore("restored", &[]);
}

/// What a push of a history with that text ends with, and says.
fn pushed_history(stage: &Stage, name: &str, text: &str) -> (i32, String) {
    let file = stage.target("pushed").join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, text).unwrap();
    let output = stage.run(&["archive-push", file.to_str().unwrap()]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), log)
}

fn push_history(stage: &Stage, name: &str, text: &str) {
    let (code, log) = pushed_history(stage, name, text);
    assert_eq!(code, 0, "{log}");
}

fn judged(stage: &Stage, command: &str) -> (i32, String) {
    let output = stage.run(&[command]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), told + &log)
}

/// A server that does not archive, and the label of its first layer.
fn backed_up() -> (Stage, String) {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let layer = stage.backup(&["--type", "full", "--wal", "stream"]);
    let label = text(&layer, "/label").to_owned();
    (stage, label)
}

/// Something in the place of a record that nobody can read, or that is too long for one.
fn put_no_record(path: &Path, is_long: bool) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match is_long {
        true => {
            let file = fs::File::create(path).unwrap();
            file.set_len(3 << 30).unwrap();
        }
        false => symlink("/nowhere", path).unwrap(),
    }
}

/// What nobody gets is taken for the worst that it may say, as what nobody can read: it stops nobody who needs it not.
#[test]
fn a_record_that_the_store_does_not_give_out_is_set_aside() {
    for is_long in [false, true] {
        let (stage, label) = backed_up();
        let label = label.as_str();
        stage.ok(&["annotate", label, "why=it"]);
        let cluster = stage.objects().join("main");
        for place in [
            &format!("mark/{label}/000001")[..],
            "wal-released/0000000000000001",
            "verified/20260101-000000-0f0f0f0f0f0f0f0f",
        ] {
            put_no_record(&cluster.join(place), is_long);
        }
        let immediate = ["--target-type", "immediate", "--target-action", "promote"];
        let restored = stage.restore("restored", &immediate);
        stage.start_restored(&restored);
        let (code, info) = judged(&stage, "info");
        assert!(matches!(code, 3 | 14), "{code}: {info}");
        let (code, log) = judged(&stage, "verify");
        assert!(
            matches!(code, 3 | 14) && log.contains("mark/"),
            "{code}: {log}"
        );
        stage.backup(&["--type", "full", "--wal", "stream"]);
        stage.ok(&["annotate", label, "why=x"]);
    }
}

/// What cannot be read out of the source is left out of a copy, and named; a pipe in the place of a segment is a damaged one.
#[test]
fn what_nobody_gets_is_left_out_of_a_copy_and_kept_by_an_expiry() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let layer = stage.backup(&["--type", "full"]);
    let label = text(&layer, "/label");
    stage.moment();
    let cluster = stage.objects().join("main");
    let segment = cluster.join("wal/00000001/0000000100000000000000F0");
    for place in [
        "wal/00000003/00000003.history",
        "wal-released/0000000000000001",
        "distrust/20260101-000000F",
    ] {
        put_no_record(&cluster.join(place), false);
    }
    process::make_pipe(&segment);
    let copied = stage.cluster.create_dir("copied").unwrap();
    let to = format!("file://{}", copied.display());
    let output = stage.run(&["copy", "--to", &to]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(15), "{log}{told}");
    for left in ["00000003.history", "wal-released/", "00F0"] {
        assert!(told.contains(left), "{left}: {told}{log}");
    }
    assert!(
        copied
            .join("main/layer")
            .join(label)
            .join("manifest")
            .exists()
    );
    fs::remove_dir_all(cluster.join("wal/00000003")).unwrap();
    stage.ok(&["pin", label]);
    let output = stage.run(&["expire", "--keep-full", "1"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{log}");

    // Somebody deletes what is pinned.
    stage.backup(&["--type", "full"]);
    fs::remove_dir_all(cluster.join("layer").join(label)).unwrap();
    let words = format!("layer {label} is pinned and not there any more");
    for (command, code) in [("info", 3), ("verify", 15)] {
        let output = stage.run(&[command]);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains(&words), "{told}");
    }
    let output = stage.run(&["--output", "json", "verify"]);
    assert_eq!(output.status.code(), Some(15));
    let verified = schema::document(&String::from_utf8_lossy(&output.stdout));
    let mut alarms = verified["alarms"].as_array().unwrap().iter();
    let is_told = alarms.any(|alarm| alarm["kind"] == "layer" && alarm["layer"] == label);
    assert!(is_told, "{verified:#}");
    let expire = || {
        let output = stage.run(&["expire", "--keep-full", "1"]);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), told)
    };
    let (code, told) = expire();
    assert!(code == Some(3) && told.contains(&words), "{told}");
    // Whoever gives it up has the rules decide again.
    stage.ok(&["unpin", label]);
    let (_, told) = expire();
    assert!(!told.contains(&words), "{told}");
}

/// Nobody needs to know who has begun a layer that was never finished.
#[test]
fn a_claim_that_nobody_can_read_stops_no_command() {
    let (stage, label) = backed_up();
    let layers = stage.objects().join("main/layer");
    for (of, is_long) in [("20260101-140000F", false), ("20260101-150000F", true)] {
        put_no_record(&layers.join(of).join("claim"), is_long);
    }
    let restored = stage.restore(
        "restored",
        &["--target-type", "immediate", "--target-action", "promote"],
    );
    stage.start_restored(&restored);
    for command in [&["info"][..], &["verify"], &["annotate", &label, "why=x"]] {
        let output = stage.run(command);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(
            matches!(output.status.code(), Some(0 | 3)),
            "{command:?}: {log}"
        );
    }
    stage.backup(&["--wal", "stream"]);
    // Nor does a segment of gigabytes take as much memory.
    put_no_record(
        &stage
            .objects()
            .join("main/wal/00000001/0000000100000000000000F0"),
        true,
    );
    let to = stage.target("got").display().to_string();
    let output = stage.run(&["archive-get", "0000000100000000000000F0", &to]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(255) && log.contains("a segment takes at most"),
        "{log}"
    );
}

/// Numbers of marks do not end there.
#[test]
fn a_mark_far_behind_all_others_is_passed_over() {
    let (stage, label) = backed_up();
    let label = label.as_str();
    stage.ok(&["pin", label, "--note", "mine"]);
    let marks = stage.objects().join("main/mark").join(label);
    fs::write(marks.join("4294967295"), "x").unwrap();
    stage.ok(&["unpin", label]);
    stage.ok(&["pin", label, "--note", "again"]);
    stage.ok(&["annotate", label, "why=because"]);
    assert!(marks.join("000003").exists());
    let output = stage.run(&["--output", "json", "info"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("4294967295\" is no mark of ours"), "{log}");
    let info = schema::document(&String::from_utf8_lossy(&output.stdout));
    let pin = info.to_string();
    assert!(pin.contains("again") && !pin.contains("mine"), "{pin}");
}
