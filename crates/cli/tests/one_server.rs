//! All connections of a command reach one server, and the data directory is that server's: whoever else answers is not believed.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::process::{Output, Stdio};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, TrackedServer};
use serde_json::Value;
use support::standby::{backup_of, catch_up, standby_of};
use support::{PATIENCE, SLOWLY, Stage, Store, text};

const WARNING: i32 = 3;
const REFUSED: i32 = 13;

/// A primary with the extension in database "ops", and a role that may have as many connections as a backup without it takes.
fn tracked(server: &TrackedServer) -> Stage {
    let builder = server.builder().conf("autovacuum", "off");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |database: &str, script: &str| stage.cluster.sql(database, script).unwrap();
    sql(
        "postgres",
        "CREATE ROLE backup LOGIN REPLICATION CONNECTION LIMIT 2;
         GRANT pg_read_all_settings, pg_checkpoint TO backup",
    );
    sql("postgres", "CREATE DATABASE ops");
    for database in ["postgres", "ops"] {
        sql(
            database,
            "GRANT EXECUTE ON FUNCTION pg_backup_start(text, boolean), pg_backup_stop(boolean) TO backup",
        );
    }
    // A time reads otherwise there, unless somebody asks for one way.
    sql("postgres", "ALTER DATABASE ops SET datestyle = 'German'");
    sql(
        "ops",
        "CREATE EXTENSION pgstrata;
         GRANT USAGE ON SCHEMA pgstrata TO backup;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgstrata TO backup",
    );
    sql(
        "postgres",
        "CREATE TABLE t AS SELECT g, 'old' AS v FROM generate_series(1, 20000) g; VACUUM FREEZE t",
    );
    stage
}

/// The program with these words, over this connection.
fn over(stage: &Stage, connection: &str, words: &[&str]) -> Output {
    let pgdata = stage.pgdata();
    let mut command = stage.command(&["--output", "json"]);
    command.args(words);
    command.args(["-D", &pgdata, "-d", connection]);
    let output = command.output().unwrap();
    // The server counts connections of a role until their processes have ended.
    let none = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = 'backup')";
    stage.cluster.wait_for("postgres", none, PATIENCE).unwrap();
    output
}

fn report(output: &Output) -> Value {
    let log = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {log}"))
}

/// A backup that does not use the tracker, and says why aloud.
fn compared(stage: &Stage, connection: &str, kind: &str, why: &str) {
    let made = over(
        stage,
        connection,
        &["backup", "--wal", "stream", "--type", kind],
    );
    let log = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{log}");
    let made = report(&made);
    assert_ne!(text(&made, "/change_source/used"), "tracker");
    let mut warnings = log.lines().filter(|line| line.contains("WARN"));
    assert!(warnings.any(|line| line.contains(why)), "{log}");
    assert!(
        made.get("tracker_token").is_none_or(Value::is_null),
        "{made:#}"
    );
}

/// The item of a report with this name.
fn item<'a>(report: &'a Value, name: &str) -> &'a Value {
    let mut items = report["items"].as_array().unwrap().iter();
    let found = items.find(|item| item["name"] == name);
    found.unwrap_or_else(|| panic!("no item {name}: {report:#}"))
}

#[test]
fn the_tracker_of_another_server_is_not_asked() {
    let server = TrackedServer::copy(Major::V15).unwrap();
    let stage = tracked(&server);
    stage.backup(&["--type", "full", "--wal", "stream"]);
    let directory = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(Major::V15, &directory)
        .bindir(server.bindir())
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .start()
        .unwrap();
    catch_up(&stage, &standby);
    let both = |database: &str| {
        format!(
            "host={},{} port={},{} user=backup dbname={database}",
            stage.cluster.socket_dir().display(),
            standby.socket_dir().display(),
            stage.cluster.port(),
            standby.port()
        )
    };
    let connection = both("postgres");
    let another =
        "database \"ops\" could not be looked into: the connection reached another server";
    compared(&stage, &connection, "full", another);
    stage
        .cluster
        .sql("postgres", "UPDATE t SET v = 'new'")
        .unwrap();
    catch_up(&stage, &standby);
    let required = ["backup", "--wal", "stream", "--require-tracker"];
    let refused = over(&stage, &connection, &required);
    let log = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(REFUSED), "{log}");
    assert!(
        text(&report(&refused), "/message").contains(another),
        "{log}"
    );
    compared(&stage, &connection, "incr", another);

    // One connection less, and all reach the first server.
    let connection = both("ops");
    let used = [1, 2].map(|_| {
        let made = over(&stage, &connection, &["backup", "--wal", "stream"]);
        assert!(made.status.success(), "{made:?}");
        text(&report(&made), "/change_source/used").to_owned()
    });
    // Of the first one's parent there is no token.
    assert_eq!(used, ["lsn", "tracker"]);
}

#[test]
fn a_database_that_lets_nobody_in_is_not_said_to_lack_the_tracker() {
    let server = TrackedServer::copy(Major::V18).unwrap();
    let stage = tracked(&server);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    let connection = stage.cluster.conninfo_as("backup", "postgres");
    let why = "database \"ops\" could not be looked into: could not connect: too many connections for role \"backup\"";
    compared(&stage, &connection, "full", why);
    let status = over(&stage, &connection, &["tracker", "status"]);
    assert_eq!(status.status.code(), Some(WARNING));
    let status = report(&status);
    assert!(text(&status, "/problem/reason").contains(why), "{status:#}");
    let hint = text(&status, "/problem/hint");
    assert!(hint.contains("connection limit"), "{hint}");
    assert!(hint.contains("dbname="), "{hint}");
    let check = report(&over(&stage, &connection, &["tracker", "install-check"]));
    let extension = item(&check, "extension");
    assert!(text(extension, "/detail").contains(why), "{check:#}");
    let check = report(&over(&stage, &connection, &["check", "--wal", "stream"]));
    assert_eq!(
        item(&check, "page tracker")["status"],
        "warning",
        "{check:#}"
    );

    sql("ALTER ROLE backup CONNECTION LIMIT 3; REVOKE CONNECT ON DATABASE ops FROM public");
    let status = report(&over(&stage, &connection, &["tracker", "status"]));
    let hint = text(&status, "/problem/hint");
    assert!(
        hint.starts_with("GRANT CONNECT ON DATABASE ops TO backup;"),
        "{hint}"
    );
    sql("GRANT CONNECT ON DATABASE ops TO backup");
    let status = over(&stage, &connection, &["tracker", "status"]);
    assert_eq!(status.status.code(), Some(0), "{status:?}");
    assert_eq!(text(&report(&status), "/database"), "ops");
}

/// They have the identifier, the state, the port and the checkpoint in common, as two standbys on two hosts have.
fn the_directory_of_another_standby_is_refused(major: Major) {
    let builder = Cluster::builder(major).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    stage.backup(&["--type", "full"]);
    let follower = |name: &str| {
        let directory = stage.restore(name, &["--target-type", "standby"]);
        let adopted = Cluster::adopt(major, &directory);
        adopted.conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
    };
    let asked = follower("asked").start().unwrap();
    let port = asked.port().to_string();
    let copied = follower("copied").conf("port", &port).start().unwrap();
    let directory = copied.pgdata().display().to_string();
    let connection = asked.conninfo("postgres");
    let server = ["-D", &directory, "-d", &connection];
    let (code, log) = stage.fails(&[&["backup", "--type", "full"], &server[..]].concat());
    assert_eq!(code, REFUSED, "{log}");
    let why = "is not the data directory of the server: a snapshot";
    assert!(log.contains(why), "{log}");
    let mut check = stage.command(&[&["--output", "json", "check"], &server[..]].concat());
    let check = report(&check.output().unwrap());
    let item = item(&check, "data directory");
    assert_eq!(item["status"], "failed", "{check:#}");
    assert!(text(item, "/detail").contains(why), "{check:#}");
    let info = stage.json(&[&["info"], &server[..]].concat());
    assert!(info.to_string().contains(why), "{info:#}");
}

#[test]
fn the_directory_of_another_standby_is_refused_on_15() {
    the_directory_of_another_standby_is_refused(Major::V15);
}

#[test]
fn the_directory_of_another_standby_is_refused_on_18() {
    the_directory_of_another_standby_is_refused(Major::V18);
}

/// The primary is gone when the backup ends, and the next host of the connection string belongs to another cluster.
#[test]
fn a_server_of_another_cluster_is_not_asked_to_finish_wal() {
    let builder = Cluster::builder(Major::V15).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let primary = &stage.cluster;
    let standby = standby_of(&stage, &primary.conninfo("postgres"));
    primary
        .sql("postgres", "CREATE TABLE t AS SELECT 1")
        .unwrap();
    catch_up(&stage, &standby);
    let other = Cluster::builder(Major::V15).start().unwrap();
    let either = format!(
        "host={},{} port={},{} user=postgres dbname=postgres",
        primary.socket_dir().display(),
        other.socket_dir().display(),
        primary.port(),
        other.port()
    );
    let mut words = backup_of(&standby, &["--type", "full", "--wal", "stream"]);
    words.extend(["--archive-timeout", "3s", "--primary", &either].map(str::to_owned));
    words.extend(SLOWLY.map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = stage.command(&words);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let started = "SELECT count(*) = 1 FROM pg_stat_activity
        WHERE application_name = 'pgstrata backup' AND state = 'idle' AND query LIKE '%wal_replay_lsn%'";
    standby.wait_for("postgres", started, PATIENCE).unwrap();
    primary.stop(StopMode::Immediate).unwrap();
    let ended = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{log}");
    assert!(log.contains("is of another cluster"), "{log}");
}
