//! What docs/OPERATIONS.md promises: the role it makes is enough, a plan changes nothing, limits hold.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use support::process::{ended, signal, spawn};
use support::{PATIENCE, Stage, Store, number, text};

/// What the manual says from "A role with the least privileges" on.
fn of_the_role() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPERATIONS.md");
    let text = fs::read_to_string(path).unwrap();
    let section = text.split("A role with the least privileges").nth(1);
    section.unwrap().to_owned()
}

/// The statements there.
fn least_privileges() -> String {
    let section = of_the_role();
    let sql = section.split("```sql").nth(1).unwrap();
    sql.split("```").next().unwrap().to_owned()
}

/// The lines for `pg_hba.conf` and for `pg_ident.conf` there.
fn lines_for_the_role() -> (String, String) {
    let section = of_the_role();
    let lines = section.split("# pg_hba.conf").nth(1).unwrap();
    let lines = lines.split("```").next().unwrap();
    let (hba, ident) = lines.split_once("# pg_ident.conf").unwrap();
    let of_file = |text: &str| text.lines().skip(1).collect::<Vec<_>>().join("\n");
    (of_file(hba), of_file(ident))
}

/// The script for a schedule there: a backup with a warning is complete, and without an expiry the repository would fill.
#[test]
fn the_nightly_script_of_the_manual_expires_behind_every_backup_that_is_there() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPERATIONS.md");
    let text = fs::read_to_string(path).unwrap();
    let script = text.split("# /usr/local/bin/pgstrata-nightly").nth(1);
    let script = script.unwrap().split("```").next().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let (program, log) = (scratch.path().join("pgstrata"), scratch.path().join("log"));
    fs::write(
        &program,
        "#!/bin/sh\necho $1 >> \"$LOG\"\n[ $1 = backup ] && exit $BACKUP\nexit $EXPIRE\n",
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for (backup, expiry, code, expires) in [
        (0, 0, 0, true),
        (3, 0, 3, true),
        (0, 3, 3, true),
        (3, 13, 13, true),
        (16, 0, 16, false),
    ] {
        fs::write(&log, "").unwrap();
        let ended = Command::new("sh")
            .args(["-c", script])
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", scratch.path().display()),
            )
            .env("LOG", &log)
            .env("BACKUP", backup.to_string())
            .env("EXPIRE", expiry.to_string())
            .status()
            .unwrap();
        assert_eq!(ended.code(), Some(code), "{backup} {expiry}");
        let ran = fs::read_to_string(&log).unwrap();
        assert_eq!(ran.contains("expire"), expires, "{ran}");
    }
}

/// Settings of the role that would end or mislead a session that trusts them.
const HOSTILE: &str = "
    CREATE SCHEMA trap AUTHORIZATION pgstrata;
    CREATE FUNCTION trap.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE FUNCTION trap.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT 'minimal' $$;
    ALTER ROLE pgstrata SET search_path = trap, pg_catalog;
    ALTER ROLE pgstrata SET statement_timeout = '300ms';
    ALTER ROLE pgstrata SET idle_session_timeout = '300ms';
    ALTER ROLE pgstrata SET idle_in_transaction_session_timeout = '300ms';
    ALTER ROLE pgstrata SET lock_timeout = '1ms';
    ALTER ROLE pgstrata SET default_transaction_read_only = on;
    ALTER ROLE pgstrata SET default_transaction_isolation = 'serializable';";

fn the_role_of_the_manual_is_enough(major: Major) {
    let stage = Stage::archiving(Cluster::builder(major), Store::Directory);
    stage.cluster.pgbench(&["-i", "-q", "-s", "2"]).unwrap();
    stage.cluster.sql("postgres", &least_privileges()).unwrap();
    let conninfo = stage.cluster.conninfo_as("pgstrata", "postgres");
    let pgdata = stage.pgdata();
    let server = ["-D", &pgdata, "-d", &conninfo];
    let with = |command: &[&str], more: &[&str]| {
        let all: Vec<&str> = [command, &server, more].concat();
        stage.json(&all)
    };
    with(&["init"], &[]);
    let check = with(&["check"], &[]);
    assert_eq!(check["status"], "ok", "{check:#}");
    let full = with(&["backup"], &["--type", "full"]);
    assert_eq!(full["wal_segments_stored"], 0, "{full:#}");

    stage.cluster.sql("postgres", HOSTILE).unwrap();
    // Slower than any of the timeouts, and with the WAL taken by the backup itself.
    let begun = Instant::now();
    let streamed = with(
        &["backup"],
        &["--type", "full", "--wal", "stream", "--max-rate", "20M"],
    );
    let took = begun.elapsed();
    assert!(
        number(&streamed, "/wal_segments_stored") > 0,
        "{streamed:#}"
    );
    let read = number(&streamed, "/totals/bytes_read");
    let at_least = std::time::Duration::from_millis(read * 900 / (20 << 20));
    assert!(took >= at_least, "{read} bytes in {took:?}");
    assert!(took.as_millis() > 1000, "{took:?}");

    stage
        .cluster
        .sql("postgres", "UPDATE pgbench_tellers SET tbalance = 1")
        .unwrap();
    a_plan_changes_nothing(&stage, &server);
    let layer = with(&["backup"], &["--change-source", "lsn"]);
    assert_eq!(text(&layer, "/change_source/used"), "lsn");
    let stored = number(&layer, "/totals/pages_stored");
    assert!(
        0 < stored && stored < 200,
        "{stored} pages for one small table"
    );
    let before = stage.cluster.dump().unwrap();
    let arguments = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = stage.start_restored(&stage.restore("restored", &arguments));
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
}

fn a_plan_changes_nothing(stage: &Stage, server: &[&str]) {
    let counts = stage.layer_counts();
    let wal = "SELECT pg_current_wal_lsn()";
    let at = stage.cluster.sql("postgres", wal).unwrap();
    let checkpoint = "SELECT checkpoint_lsn FROM pg_control_checkpoint()";
    let last = stage.cluster.sql("postgres", checkpoint).unwrap();
    let all: Vec<&str> = [&["backup"], server, &["--dry-run"]].concat();
    let plan = stage.json(&all);
    assert_eq!(text(&plan, "/type"), "incremental");
    assert_eq!(text(&plan, "/change_source/used"), "lsn");
    assert!(number(&plan, "/size_bytes") > 10 << 20);
    assert_eq!(stage.layer_counts(), counts);
    assert_eq!(stage.cluster.sql("postgres", checkpoint).unwrap(), last);
    // A hint bit may have been logged; a backup would have switched to another segment.
    let query = format!("SELECT pg_current_wal_lsn() - '{at}'::pg_lsn < 1000000");
    assert_eq!(stage.cluster.sql("postgres", &query).unwrap(), "t");
}

#[test]
fn the_role_of_the_manual_is_enough_on_15() {
    the_role_of_the_manual_is_enough(Major::V15);
}

#[test]
fn the_role_of_the_manual_is_enough_on_18() {
    the_role_of_the_manual_is_enough(Major::V18);
}

#[test]
fn the_lines_of_the_manual_let_the_role_in_and_nobody_else_as_it() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    stage.cluster.sql("postgres", &least_privileges()).unwrap();
    let (hba, ident) = lines_for_the_role();
    let user = stage
        .cluster
        .command_as_server_user(Path::new("id"))
        .arg("-un")
        .output();
    let user = String::from_utf8(user.unwrap().stdout).unwrap();
    // The manual's server runs as "postgres".
    let ident = ident.replacen(" postgres ", &format!(" {} ", user.trim()), 1);
    let place = |name: &str| stage.cluster.pgdata().join(name);
    let before = fs::read_to_string(place("pg_hba.conf")).unwrap();
    let only = format!("{hba}\nlocal all pgstrata reject\nhost all pgstrata all reject\n{before}");
    fs::write(place("pg_hba.conf"), only).unwrap();
    let conninfo = stage.cluster.conninfo_as("pgstrata", "postgres");
    let pgdata = stage.pgdata();
    let backup = ["backup", "-D", &pgdata, "-d", &conninfo, "--wal", "stream"];
    for (map, is_let_in) in [("", false), (ident.as_str(), true)] {
        fs::write(place("pg_ident.conf"), map).unwrap();
        stage.cluster.reload().unwrap();
        // The postmaster reads its files when the signal has come.
        let end = Instant::now() + support::PATIENCE;
        loop {
            let output = stage.command(&backup).output().unwrap();
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(is_let_in || !output.status.success(), "{log}");
            if output.status.success() || log.contains("authentication failed") != is_let_in {
                assert_eq!(output.status.success(), is_let_in, "{log}");
                break;
            }
            assert!(Instant::now() < end, "{log}");
        }
    }
}

/// WAL that does not arrive ends the backup after its own time, and nothing is claimed to exist.
#[test]
fn rule_1_a_backup_whose_wal_does_not_arrive_does_not_exist() {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        // Neither the archive nor pg_wal has what the server believes to be archived.
        .conf("archive_command", "rm %p # pgstrata archive-push");
    let stage = Stage::silent(builder, Store::Directory);
    let pgdata = stage.pgdata();
    let relying = ["--wal", "archive", "--archive-timeout", "2s"];
    let (code, log) = stage.fails(&[&["backup", "-D", &pgdata], &relying[..]].concat());
    assert_eq!(code, 18, "{log}");
    assert!(
        log.contains("0000000100000000") && log.contains("did not arrive in the archive in 2 s"),
        "{log}"
    );
    assert_eq!(stage.layer_counts(), (0, 0));
    stage
        .cluster
        .append_conf("archive_command", "true")
        .unwrap();
    stage.cluster.reload().unwrap();
    stage.wait_out_of_backup_mode();
    let (code, log) = stage.fails(&["check", "-D", &pgdata, "--archive-timeout", "2s"]);
    assert_ne!(code, 0, "{log}");
    // A backup that takes its own WAL needs no archive, and stands on its own.
    let report = stage.backup(&["--wal", "stream"]);
    assert!(number(&report, "/wal_segments_stored") > 0);
    let before = stage.cluster.dump().unwrap();
    let restored = stage.start_restored(&stage.restore("restored", &[]));
    require_same_dump(&before, &restored.dump().unwrap()).unwrap();
}

/// A server that takes connections and says nothing, as one whose processes were stopped; and what leads to it.
fn silent_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let conninfo = format!("host=127.0.0.1 port={port} user=nobody sslmode=disable");
    (listener, conninfo)
}

/// What a test waits for, which must not be for ever.
fn awaited<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn end_of(mut child: Child) -> Output {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_server_that_takes_connections_and_says_nothing_holds_nobody_up() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let (_silent, conninfo) = silent_server();
    let conninfo = format!("{conninfo} connect_timeout=1");
    let says = "has not answered within 1 s";
    let check = spawn(&stage, &["check", "-D", &pgdata, "-d", &conninfo]);
    let (printed, _) = ended(end_of(check), "check", 13);
    assert!(printed.contains(says), "{printed}");
    assert!(printed.contains("127.0.0.1"), "{printed}");
    // What is known without it.
    assert!(printed.contains("cluster record"), "{printed}");
    let backup = spawn(&stage, &["backup", "-D", &pgdata, "-d", &conninfo]);
    let (_, log) = ended(end_of(backup), "backup", 16);
    assert!(
        log.contains(says) && log.contains("connect_timeout"),
        "{log}"
    );

    // Who waits for ever is stopped by the first signal.
    let (silent, conninfo) = silent_server();
    let mut backup = stage.command(&["backup", "-D", &pgdata, "-d", &conninfo]);
    backup.env("PGCONNECT_TIMEOUT", "0");
    backup.stdout(Stdio::piped()).stderr(Stdio::piped());
    let backup = backup.spawn().unwrap();
    let connected: TcpStream = awaited("the backup does not connect", || {
        silent.accept().ok().map(|(stream, _)| stream)
    });
    signal(&backup, "-TERM");
    ended(end_of(backup), "a backup that was stopped", 130);
    drop(connected);
}
