//! Two servers that were cut off from each other, and promoted out of the same state: each archives into one of the repositories,
//! on the same timeline with the same history. No restore and no copy may join what they wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, StopMode};

use super::support::{PATIENCE, files, text};
use super::{EXISTS, STOP, Two, WARNINGS, log};

const WAL_MISSING: i32 = 18;
const UNREACHABLE: i32 = 19;
const SAID: &str = "two servers have archived";

/// A server that has a layer and a row in both repositories, and is stopped.
fn one_server() -> Two {
    let two = Two::in_directories();
    let sql = |query| two.stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE marks (said text)");
    two.backup(0, "full");
    sql("INSERT INTO marks VALUES ('both')");
    two.stage.archive_all();
    two
}

/// It goes on as two servers, which archive so many segments each.
fn part(two: &Two, near: u32, far: u32) {
    two.stage.cluster.stop(StopMode::Fast).unwrap();
    for (name, count) in [("near", near), ("far", far)] {
        go_on(two, (name, count), true);
    }
}

/// A copy of the stopped server goes on, which may begin a timeline, and archives so many segments into that repository.
fn go_on(two: &Two, (name, count): (&str, u32), is_promoted: bool) {
    let directory = two.stage.target(&format!("server-{name}"));
    let copied = Command::new("cp")
        .arg("-a")
        .args([two.stage.cluster.pgdata(), &directory])
        .status();
    assert!(copied.unwrap().success());
    if is_promoted {
        fs::write(directory.join("recovery.signal"), "").unwrap();
    }
    let program = two.stage.program.display();
    let config = two.config.display();
    let archive = format!("{program} --config {config} --repo {name} archive-push %p");
    let server = Cluster::adopt(two.stage.cluster.major(), &directory)
        .conf("archive_command", &archive)
        .conf("restore_command", "false")
        .start()
        .unwrap();
    server.wait_promoted(PATIENCE).unwrap();
    if is_promoted {
        // What the archiver has done is counted from before the copy.
        let archived = "SELECT EXISTS (SELECT FROM pg_ls_archive_statusdir() WHERE name = '00000002.history.done')";
        server.wait_for("postgres", archived, PATIENCE).unwrap();
    }
    for number in 1..=count {
        let insert = format!(
            "INSERT INTO marks VALUES ('{name} {number}'); CREATE UNLOGGED TABLE of_{number} ()"
        );
        server.sql("postgres", &insert).unwrap();
        let end = server.sql("postgres", "SELECT pg_switch_wal()").unwrap();
        let archived = format!(
            "SELECT last_archived_wal >= pg_walfile_name('{end}'::pg_lsn - 1) FROM pg_stat_archiver"
        );
        server.wait_for("postgres", &archived, PATIENCE).unwrap();
    }
    server.stop(StopMode::Immediate).unwrap();
}

fn wal(root: &Path) -> Vec<PathBuf> {
    let directory = root.join("main/wal/00000002");
    let names = files::segments(&directory).into_iter();
    names.map(|name| directory.join(name)).collect()
}

fn marks(two: &Two, directory: &Path) -> String {
    let server = two.stage.start_restored(directory);
    let sql = "SELECT string_agg(said, ',' ORDER BY said) FROM marks";
    let said = server.sql("postgres", sql).unwrap();
    server.stop(StopMode::Fast).unwrap();
    said
}

#[test]
fn a_copy_does_not_join_the_wal_of_two_servers() {
    let two = one_server();
    part(&two, 4, 2);
    let history = |root: &Path| fs::read(root.join("main/wal/00000002/00000002.history")).unwrap();
    assert_eq!(
        history(&two.near),
        history(&two.far),
        "no server knows of the other"
    );
    let before = wal(&two.far);
    assert!(before.len() < wal(&two.near).len());
    for (from, to) in [("near", "far"), ("far", "near")] {
        for more in [&["--dry-run"][..], &[]] {
            let copy = [&["--repo", from, "copy", "--to", to][..], more].concat();
            let output = two.run(&copy);
            assert_eq!(output.status.code(), Some(EXISTS), "{}", log(&output));
            assert!(log(&output).contains(SAID), "{}", log(&output));
        }
    }
    assert_eq!(wal(&two.far), before);
    let target = two.stage.target("restored");
    let into = ["restore", "--target-dir", target.to_str().unwrap()];
    let output = two.run(&[&["--repo", "far"], &into[..]].concat());
    assert!(output.status.success(), "{}", log(&output));
    assert_eq!(marks(&two, &target), "both,far 1,far 2");
}

/// A layer of the one is not made to stand in the archive of the other.
#[test]
fn no_layer_comes_with_the_wal_of_another_server() {
    let two = one_server();
    part(&two, 2, 4);
    let server = Cluster::adopt(two.stage.cluster.major(), &two.stage.target("server-near"));
    let server = server.conf("archive_command", "false").start().unwrap();
    let pgdata = two.stage.target("server-near").display().to_string();
    let backup = [
        "--output", "json", "--repo", "near", "backup", "-D", &pgdata,
    ];
    let mut taking = two.stage.command_beside(&server, &backup);
    taking
        .args(["--wal", "stream", "--type", "full"])
        .env_remove("PGSTRATA_REPO")
        .env_remove("PGSTRATA_CLUSTER")
        .env("PGSTRATA_CONFIG", &two.config);
    let output = taking.output().unwrap();
    assert!(output.status.success(), "{}", log(&output));
    let taken = serde_json::from_slice(&output.stdout).unwrap();
    let label = text(&taken, "/label").to_owned();
    server.stop(StopMode::Immediate).unwrap();
    let layers = || fs::read_dir(two.far.join("main/layer")).unwrap().count();
    let before = (layers(), wal(&two.far));
    for label in [&[][..], &[label.as_str()]] {
        let copy = [&["--repo", "near", "copy", "--to", "far"][..], label].concat();
        let output = two.run(&copy);
        assert_eq!(output.status.code(), Some(EXISTS), "{}", log(&output));
    }
    assert_eq!((layers(), wal(&two.far)), before);
}

/// The archiver is refused by one of them, and brings nothing to the other either.
#[test]
fn no_backup_begins_where_another_repository_has_wal_of_another_server() {
    let two = Two::in_directories();
    let cluster = &two.stage.cluster;
    two.stage.archive_all();
    two.stage.set_archive_command("false");
    let finish = "SELECT pg_create_restore_point('x'), pg_switch_wal()";
    cluster.sql("postgres", finish).unwrap();
    let waits = "SELECT count(*) > 0 FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    cluster.wait_for("postgres", waits, PATIENCE).unwrap();
    let waits = waits.replace("count(*) > 0", "min(replace(name, '.ready', ''))");
    let name = cluster.sql("postgres", &waits).unwrap();
    let other = cluster.create_dir("other").unwrap().join(&name);
    fs::copy(cluster.pgdata().join("pg_wal").join(&name), &other).unwrap();
    files::flip(&other, |_| 5000);
    cluster.own(&other).unwrap();
    let push = two.run(&["--repo", "far", "archive-push", other.to_str().unwrap()]);
    assert!(push.status.success(), "{}", log(&push));
    let stored = || {
        let wal = |root: &Path| files::segments(&root.join("main/wal/00000001"));
        let layers = [&two.near, &two.far].map(|root| root.join("main/layer").exists());
        (wal(&two.near), wal(&two.far), layers)
    };
    let before = stored();
    let pgdata = two.stage.pgdata();
    for wal in ["auto", "stream"] {
        let output = two.run(&["backup", "-D", &pgdata, "--wal", wal]);
        assert_eq!(output.status.code(), Some(EXISTS), "{}", log(&output));
        let said = log(&output);
        let why = format!("the archive in file://{} already has", two.far.display());
        assert!(said.contains(&why) && said.contains(&name), "{said}");
        assert_eq!(stored(), before);
    }
}

#[test]
fn a_restore_out_of_the_repositories_of_two_servers_is_refused_and_who_looks_is_told() {
    let two = one_server();
    part(&two, 2, 4);
    let target = two.stage.target("restored");
    let into = ["restore", "--target-dir", target.to_str().unwrap()];
    for latest in [&[][..], &["--target-timeline", "2"], &["--dry-run"]] {
        let output = two.run(&[&into[..], latest].concat());
        assert_eq!(output.status.code(), Some(UNREACHABLE), "{}", log(&output));
        for word in [SAID, "near", "far", "--repo"] {
            assert!(log(&output).contains(word), "{word}: {}", log(&output));
        }
        assert!(!target.exists());
    }
    for command in ["info", "verify"] {
        let shown = two.json(WARNINGS, &[command]);
        let notes = shown["notes"].to_string();
        assert!(notes.contains(SAID) && notes.contains("near"), "{shown:#}");
    }
    // What they have of before is of one server.
    let first = ["--target-timeline", "1", "--dry-run"];
    two.json(0, &[&into[..], &first].concat());
    let output = two.run(&[&["--repo", "near"], &into[..]].concat());
    assert!(output.status.success(), "{}", log(&output));
    assert_eq!(marks(&two, &target), "both,near 1,near 2");
}

/// The file, in a cluster, of the unlogged table that a server was the last to make.
fn last_unlogged(server: &Path) -> PathBuf {
    let base = server.join("base");
    let databases = fs::read_dir(&base).unwrap().flatten();
    let files = databases.flat_map(|database| fs::read_dir(database.path()).unwrap().flatten());
    let unlogged = files.filter_map(|file| {
        let name = file.file_name().into_string().ok()?;
        let number: u32 = name.strip_suffix("_init")?.parse().ok()?;
        Some((number, file.path().with_file_name(number.to_string())))
    });
    let (_, last) = unlogged.max().unwrap();
    last.strip_prefix(server).unwrap().to_owned()
}

/// It was restored, and follows both, when nobody knew of it yet. Nor is anything done because of that segment: what it calls
/// unlogged may be a table of this server.
#[test]
fn recovery_stops_where_the_next_segment_is_of_another_server() {
    let two = one_server();
    let target = two.stage.target("restored");
    let into = ["restore", "--target-dir", target.to_str().unwrap()];
    let output = two.run(&[&into[..], &["--target-type", "standby"]].concat());
    assert!(output.status.success(), "{}", log(&output));
    fs::remove_file(target.join("standby.signal")).unwrap();
    fs::write(target.join("recovery.signal"), "").unwrap();
    part(&two, 2, 3);
    let table = target.join(last_unlogged(&two.stage.target("server-far")));
    fs::write(&table, [0; 8192]).unwrap();
    two.stage.cluster.own(&table).unwrap();
    let server = Cluster::adopt(two.stage.cluster.major(), &target).conf("archive_mode", "off");
    let server = server.prepare().unwrap();
    // It may accept connections before it comes to that segment.
    let _ = server.start();
    let end = Instant::now() + PATIENCE;
    let mut said = String::new();
    while !said.contains(SAID) {
        assert!(Instant::now() < end, "{said}");
        thread::sleep(Duration::from_millis(100));
        said = server.log_tail(200);
    }
    let opened = server.sql("postgres", "SELECT NOT pg_is_in_recovery()");
    assert_ne!(opened.unwrap_or_default(), "t", "{said}");
    assert!(said.contains("near") && said.contains("far"), "{said}");
    assert!(table.exists(), "{said}");
}

#[test]
fn archive_get_looks_at_the_segment_before_when_another_repository_gives_the_next_one() {
    let two = one_server();
    part(&two, 2, 4);
    let names = files::segments(&two.far.join("main/wal/00000002"));
    let shared = wal(&two.near).len();
    let (before, next) = (&names[shared - 1], &names[shared]);
    // Nobody has got the segment before.
    let (code, said, got) = two.get(next, &[]);
    assert_eq!(code, 0, "{said}");
    fs::remove_file(got).unwrap();
    let held = PathBuf::from(two.get_to_push(before));
    let (code, said, got) = two.get(next, &[]);
    assert_eq!(code, STOP, "{said}");
    assert!(
        said.contains(SAID) && said.contains(before.as_str()),
        "{said}"
    );
    assert!(!got.exists());
    // Also when the note of who gave it is lost.
    for note in fs::read_dir(two.spool()).unwrap().flatten() {
        fs::remove_dir_all(note.path()).unwrap();
    }
    let (code, said, _) = two.get(next, &[]);
    assert_eq!(code, STOP, "{said}");
    // A repository that is away may have given it.
    let away = two.near.with_extension("away");
    fs::rename(&two.near, &away).unwrap();
    let (code, said, _) = two.get(next, &[]);
    assert_eq!(code, STOP, "{said}");
    fs::rename(&away, &two.near).unwrap();
    // Of a server that follows the other one nothing is wrong.
    fs::remove_file(&held).unwrap();
    let plain = fs::read_to_string(&two.config).unwrap();
    fs::write(&two.config, two.far_first(&plain)).unwrap();
    two.get_to_push(before);
    fs::write(&two.config, plain).unwrap();
    let (code, said, _) = two.get(next, &[]);
    assert_eq!(code, 0, "{said}");
}

/// The old server went on, and archived into the one; a copy was promoted, and archived so many segments into the other.
fn with_promoted_copy(far: u32) -> Two {
    let two = one_server();
    two.stage.cluster.stop(StopMode::Fast).unwrap();
    go_on(&two, ("near", 2), false);
    go_on(&two, ("far", far), true);
    two
}

/// Neither repository alone has a trace of both.
#[test]
fn a_branch_of_which_one_repository_alone_knows_is_asked_about() {
    let two = with_promoted_copy(2);
    let told = fs::read_to_string(&two.config).unwrap();
    let target = two.stage.target("restored");
    let into = ["restore", "--target-dir", target.to_str().unwrap()];
    for told in [two.far_first(&told), told] {
        fs::write(&two.config, told).unwrap();
        for more in [
            &[][..],
            &["--dry-run"],
            &["--target-type", "time", "--target", "2100-01-01"],
        ] {
            let output = two.run(&[&into[..], more].concat());
            assert_eq!(output.status.code(), Some(UNREACHABLE), "{}", log(&output));
            for word in ["branches", "--target-timeline 1", "--target-timeline 2"] {
                assert!(log(&output).contains(word), "{word}: {}", log(&output));
            }
            assert!(!target.exists());
        }
    }
    for (timeline, rows) in [("1", "both,near 1,near 2"), ("2", "both,far 1,far 2")] {
        two.json(0, &[&into[..], &["--target-timeline", timeline]].concat());
        assert_eq!(marks(&two, &target), rows);
        fs::remove_dir_all(&target).unwrap();
    }
}

/// Of the promotion nothing but the history was archived: where the new timeline has no WAL, a server takes that of the old one.
#[test]
fn a_timeline_with_nothing_but_a_history_leads_into_no_other_one() {
    let two = with_promoted_copy(0);
    let target = two.stage.target("restored");
    let into = ["restore", "--target-dir", target.to_str().unwrap()];
    for (more, code) in [
        (&[][..], UNREACHABLE),
        (&["--target-timeline", "2"], WAL_MISSING),
    ] {
        let output = two.run(&[&into[..], more].concat());
        assert_eq!(output.status.code(), Some(code), "{}", log(&output));
        assert!(
            log(&output).contains("--target-timeline 1"),
            "{}",
            log(&output)
        );
        assert!(!target.exists());
    }
    two.json(0, &[&into[..], &["--target-timeline", "1"]].concat());
    assert_eq!(marks(&two, &target), "both,near 1,near 2");
}
