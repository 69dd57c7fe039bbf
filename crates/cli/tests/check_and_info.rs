//! `check` says of everything that can be wrong whether it is, and what to do; `info`
//! shows what is there, damaged or not.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use pgstrata_testbed::s3::S3Server;
use serde_json::Value;
use support::judged::{document, kinds};
use support::{PATIENCE, Stage, Store, files, schema};

const USAGE: i32 = 2;
const WARNINGS: i32 = 3;
const FAILED: i32 = 13;
const DAMAGED: i32 = 14;
const LOCAL_FILE: i32 = 17;
const UNSUPPORTED: i32 = 21;

/// What to do about files and directories of the cluster that cannot be read.
const TO_DO: &str = "run pgstrata as the server's user";

/// The role of `docs/OPERATIONS.md`, section "Set up".
const ROLE: &str = "
    CREATE ROLE pgstrata LOGIN REPLICATION;
    GRANT pg_read_all_settings TO pgstrata;
    GRANT EXECUTE ON FUNCTION pg_catalog.pg_backup_start(text, boolean) TO pgstrata;
    GRANT EXECUTE ON FUNCTION pg_catalog.pg_backup_stop(boolean) TO pgstrata;
    GRANT EXECUTE ON FUNCTION pg_catalog.pg_switch_wal() TO pgstrata;";

/// Runs `check` as `role`; returns the exit code and the document.
fn check(stage: &Stage, role: &str, arguments: &[&str]) -> (i32, Value) {
    let (pgdata, conninfo) = (stage.pgdata(), stage.cluster.conninfo_as(role, "postgres"));
    let mut all = vec!["--output", "json", "check", "-D", &pgdata, "-d", &conninfo];
    all.extend(arguments);
    let output = stage.run(&all);
    let document = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), document)
}

/// The items of that name as `status: detail (hint)`.
fn lines(document: &Value, name: &str) -> Vec<String> {
    let items = document["items"].as_array().unwrap().iter();
    let text = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    items
        .filter(|item| item["name"] == name)
        .map(|item| {
            let (status, detail) = (text(item, "status"), text(item, "detail"));
            format!("{status}: {detail} ({})", text(item, "hint"))
        })
        .collect()
}

/// One item of `name` has all of `words`.
fn require(document: &Value, name: &str, words: &[&str]) {
    let lines = lines(document, name);
    let found = lines
        .iter()
        .any(|l| words.iter().all(|word| l.contains(word)));
    assert!(found, "no item {name} with {words:?} in {document:#}");
}

fn directory_of(stage: &Stage) -> PathBuf {
    PathBuf::from(stage.repository.trim_start_matches("file://")).join("main")
}

fn the_least_role_passes_and_each_lack_is_named(major: Major, store: Store) {
    let stage = Stage::archiving(Cluster::builder(major), store);
    stage.cluster.sql("postgres", ROLE).unwrap();
    let (code, document) = check(&stage, "pgstrata", &[]);
    assert_eq!(code, 0, "{document:#}");
    assert_eq!(document["schema"], "pgstrata.check/1");
    assert_eq!(document["status"], "ok");
    for name in [
        "repository",
        "cluster record",
        "server",
        "privileges",
        "data directory",
        "cluster identity",
        "WAL",
        "slots",
        "archive backlog",
        "room for WAL",
        "page tracker",
        "layers",
    ] {
        require(&document, name, &["ok: "]);
    }
    require(&document, "WAL", &["arrived in", "reads back"]);
    require(&document, "page tracker", &["without the pgstrata library"]);

    let grant = "REVOKE EXECUTE ON FUNCTION pg_switch_wal() FROM pgstrata";
    stage.cluster.sql("postgres", grant).unwrap();
    let (code, document) = check(&stage, "pgstrata", &[]);
    assert_eq!(code, WARNINGS, "{document:#}");
    require(&document, "WAL", &["warning: ", "GRANT", "pg_switch_wal"]);

    stage
        .cluster
        .sql("postgres", "CREATE ROLE nobody LOGIN")
        .unwrap();
    let (code, document) = check(&stage, "nobody", &["--wal", "stream"]);
    assert_eq!(code, FAILED, "{document:#}");
    require(
        &document,
        "privileges",
        &["failed: ", "GRANT EXECUTE", "pg_backup_start"],
    );
    require(
        &document,
        "WAL",
        &["failed: ", "ALTER ROLE \"nobody\" REPLICATION"],
    );
    require(&document, "repository", &["ok: "]);
}

#[test]
fn the_least_role_passes_and_each_lack_is_named_on_15_to_s3() {
    the_least_role_passes_and_each_lack_is_named(Major::V15, Store::S3);
}

#[test]
fn the_least_role_passes_and_each_lack_is_named_on_18() {
    the_least_role_passes_and_each_lack_is_named(Major::V18, Store::Directory);
}

#[test]
fn wal_that_does_not_arrive_and_slots_left_behind_are_named() {
    let stage = Stage::silent(
        Cluster::builder(Major::V15).conf("archive_mode", "on"),
        Store::Directory,
    );
    let role = stage
        .cluster
        .sql("postgres", "SELECT current_user")
        .unwrap();
    let role = role.trim();
    let (code, document) = check(&stage, role, &[]);
    assert_eq!(code, WARNINGS, "{document:#}");
    require(
        &document,
        "WAL",
        &[
            "warning: ",
            "store their own",
            "cannot be restored: every moment after the end of the newest backup",
            "archive_command",
        ],
    );

    let broken = "pgstrata-is-not-there archive-push %p";
    stage
        .cluster
        .append_conf("archive_command", broken)
        .unwrap();
    stage.cluster.reload().unwrap();
    let (code, document) = check(&stage, role, &["--archive-timeout", "3s"]);
    assert_eq!(code, FAILED, "{document:#}");
    require(&document, "WAL", &["failed: ", "did not arrive", "log"]);
    who_looks_waits_as_long_as_the_configuration_says(&stage);

    let slot = "SELECT pg_create_physical_replication_slot('pgstrata_left', true)";
    stage.cluster.sql("postgres", slot).unwrap();
    let (_, document) = check(&stage, role, &["--wal", "stream"]);
    require(
        &document,
        "slots",
        &[
            "warning: ",
            "pgstrata_left",
            "pg_drop_replication_slot('pgstrata_left')",
        ],
    );
    // Neither the checks' own slots nor anything else of theirs stays.
    let query = "SELECT count(*) = 1 FROM pg_replication_slots";
    stage.cluster.wait_for("postgres", query, PATIENCE).unwrap();
    let objects = fs::read_dir(directory_of(&stage)).unwrap();
    let names: Vec<String> = objects
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, ["cluster"]);

    stage.cluster.stop(StopMode::Immediate).unwrap();
    let (code, document) = check(&stage, role, &[]);
    assert_eq!(code, FAILED, "{document:#}");
    require(&document, "server", &["failed: ", "could not connect"]);
    require(&document, "layers", &["ok: "]);
}

fn who_looks_waits_as_long_as_the_configuration_says(stage: &Stage) {
    let pgdata = stage.pgdata();
    files::age(
        &Path::new(&pgdata).join("pg_wal/archive_status"),
        "5 minutes ago",
    );
    let patient =
        support::credentials_file(&stage.cluster, "patient", "archive-timeout = \"1h\"\n");
    let patient = patient.display().to_string();
    let info = ["info", "-D", &pgdata];
    for (words, is_late) in [
        (&info[..], true),
        (&[&["--config", &patient], &info[..]].concat(), false),
    ] {
        let (_, info) = document(stage, words);
        for kind in ["archiver", "backlog"] {
            assert_eq!(kinds(&info).contains(&kind), is_late, "{kind}: {info:#}");
        }
    }
}

#[test]
fn a_file_that_nobody_may_read_fails_the_check_and_not_the_backup_alone() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let file = Path::new(&stage.pgdata()).join("notes");
    fs::write(&file, "by root").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
    let role = stage
        .cluster
        .sql("postgres", "SELECT current_user")
        .unwrap();
    let (code, document) = check(&stage, role.trim(), &[]);
    assert_eq!(code, FAILED, "{document:#}");
    let path = file.display().to_string();
    require(&document, "data directory", &["failed: ", &path, TO_DO]);
    let (code, log) = stage.fails(&["backup", "-D", &stage.pgdata()]);
    assert_eq!(code, LOCAL_FILE, "{log}");
    assert!(log.contains(&path) && log.contains(TO_DO), "{log}");
}

/// As somebody makes it who moves the server's log there. What a file system has in its own uppermost directory is none of it.
#[test]
fn a_directory_that_nobody_may_list_is_named_with_what_to_do() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let user = stage.cluster.sql("postgres", "SELECT current_user");
    let user = user.unwrap();
    let of_mount = Path::new(&stage.pgdata()).join("lost+found");
    fs::create_dir(&of_mount).unwrap();
    fs::set_permissions(&of_mount, Permissions::from_mode(0o000)).unwrap();
    stage.ok(&["backup", "-D", &stage.pgdata()]);
    let counts = stage.layer_counts();
    for name in ["mine", "log"] {
        let directory = Path::new(&stage.pgdata()).join(name);
        fs::create_dir_all(&directory).unwrap();
        let mode = fs::metadata(&directory).unwrap().permissions();
        fs::set_permissions(&directory, Permissions::from_mode(0o000)).unwrap();
        let could_not = format!("could not list \"{}\"", directory.display());
        let (code, document) = check(&stage, user.trim(), &[]);
        assert_eq!(code, FAILED, "{document:#}");
        require(
            &document,
            "data directory",
            &["failed: ", &could_not, TO_DO],
        );
        let (code, log) = stage.fails(&["backup", "-D", &stage.pgdata()]);
        assert_eq!(code, LOCAL_FILE, "{log}");
        assert!(log.contains(&could_not) && log.contains(TO_DO), "{log}");
        fs::set_permissions(&directory, mode).unwrap();
        fs::remove_dir(&directory).unwrap();
    }
    assert_eq!(stage.layer_counts(), counts);
}

/// A service counts more than what else the environment says.
/// A core dump, or a log that nobody rotates: it would be read for hours, and then there is no room for it in an index.
#[test]
fn a_file_that_is_too_large_for_a_layer_fails_the_check_and_no_backup_reads_it() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let (pgdata, core) = (stage.pgdata(), stage.cluster.pgdata().join("core.4711"));
    // Nothing but a hole.
    let hole = fs::File::create(&core).unwrap();
    hole.set_len(768 << 30).unwrap();
    stage.cluster.own(&core).unwrap();
    let plan = ["backup", "--dry-run", "-D", &pgdata];
    stage.ok(&plan);
    hole.set_len((768 << 30) + 1).unwrap();
    let words = [
        "core.4711",
        "at most 768 GiB",
        "move it out of the data directory",
    ];
    let (code, document) = check(&stage, "postgres", &[]);
    assert_eq!(code, FAILED, "{document:#}");
    require(&document, "data directory", &words);
    for command in [&plan[..], &["backup", "-D", &pgdata]] {
        let (code, log) = stage.fails(command);
        assert_eq!(code, UNSUPPORTED, "{command:?}: {log}");
        for word in words {
            assert!(log.contains(word), "{command:?}: {word}: {log}");
        }
    }
    assert_eq!(stage.layer_counts(), (0, 0));
    stage.wait_out_of_backup_mode();
    fs::remove_file(&core).unwrap();
    stage.ok(&["backup", "-D", &pgdata]);
}

#[test]
fn a_connection_service_names_the_server() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let server = &stage.cluster;
    let user = server.sql("postgres", "SELECT current_user").unwrap();
    let file = stage.target("services");
    let (host, port, user) = (server.socket_dir().display(), server.port(), user.trim());
    let text = format!("[main]\nhost={host}\nport={port}\nuser={user}\n");
    fs::write(&file, text).unwrap();
    let pgdata = stage.pgdata();
    let asked = |service: &str| {
        let mut command = stage.command(&["backup", "-D", &pgdata]);
        command
            .env("PGSERVICE", service)
            .env("PGSERVICEFILE", &file);
        command.env("PGHOST", "/nowhere").env("PGPORT", "1");
        let output = command.env("PGUSER", "nobody").output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), log)
    };
    let (code, log) = asked("main");
    assert_eq!(code, Some(0), "{log}");
    let (code, log) = asked("other");
    assert_eq!(code, Some(USAGE), "{log}");
    let words = "there is no connection service \"other\"";
    assert!(log.contains(words), "{log}");
}

#[test]
fn a_store_that_overwrites_fails_the_check() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    // Without a word about the server, postmaster.pid says where it is.
    let mut command = stage.command(&["backup", "-D", &stage.pgdata()]);
    let role = stage
        .cluster
        .sql("postgres", "SELECT current_user")
        .unwrap();
    command.env_remove("PGHOST").env_remove("PGPORT");
    let output = command.env("PGUSER", role.trim()).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");

    let s3 = S3Server::start_hostile().unwrap();
    let url = format!("s3://{}/x", s3.bucket());
    let pgdata = stage.pgdata();
    let arguments = [
        "--output",
        "json",
        "--repo",
        &url,
        "--s3-path-style=true",
        "check",
    ];
    let mut command = stage.command(&arguments);
    let output = command
        .args(["-D", &pgdata])
        .envs(s3.env())
        .output()
        .unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(FAILED), "{document:#}");
    require(
        &document,
        "repository",
        &["failed: ", "overwrites", "If-None-Match"],
    );
    require(&document, "server", &["ok: "]);
}

/// Copies a directory of files; owner and group are those of `from`.
fn copy(from: &Path, to: &Path) {
    let owner = fs::metadata(from).unwrap();
    let give = |path: &Path| chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    fs::create_dir(to).unwrap();
    give(to);
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let copied = to.join(entry.file_name());
        fs::copy(entry.path(), &copied).unwrap();
        give(&copied);
    }
}

#[test]
fn leftovers_and_damage_are_listed_by_info_and_check() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let (full, child) = sound_layers_are_shown(&stage);
    leftovers_are_shown(&stage, &full);
    alarms_about_all_are_told_who_asks_about_one(&stage);
    the_newest_layer_is_not_passed_over(&stage, &child);
    damage_is_shown(&stage, &full, &child);
    layers_that_are_all_gone_are_missed(&stage);
}

fn alarms_about_all_are_told_who_asks_about_one(stage: &Stage) {
    thread::sleep(Duration::from_millis(1100));
    for command in ["info", "verify"] {
        let (code, found) = document(stage, &[command, "latest", "--max-age", "1s"]);
        assert_eq!((code, kinds(&found)), (WARNINGS, vec!["age"]), "{found:#}");
    }
    for idle in [
        &["info", "--costs", "latest"][..],
        &["info", "latest", "--keep-full", "2"],
    ] {
        assert_eq!(stage.fails(idle).0, USAGE, "{idle:?}");
    }
}

/// Who verifies what he has just backed up must not be told of an older one.
fn the_newest_layer_is_not_passed_over(stage: &Stage, child: &str) {
    let manifest = directory_of(stage)
        .join("layer")
        .join(child)
        .join("manifest");
    files::flip(&manifest, |length| length / 2);
    for command in ["verify", "info", "merge"] {
        let (code, log) = stage.fails(&[command, "latest"]);
        assert_eq!(code, DAMAGED, "{log}");
        assert!(log.contains(&format!("would be {child}")), "{log}");
    }
    files::flip(&manifest, |length| length / 2);
    stage.ok(&["verify", "latest"]);
}

/// First a verification tells of them, then nothing but what the server noted of the backups.
fn layers_that_are_all_gone_are_missed(stage: &Stage) {
    let main = directory_of(stage);
    fs::remove_dir_all(main.join("layer")).unwrap();
    for told in ["verified layers", "notes that the server ended backup"] {
        let (code, info) = document(stage, &["info"]);
        assert_eq!((code, kinds(&info)), (WARNINGS, vec!["layer"]), "{info:#}");
        assert_eq!(support::text(&info, "/alarms/0/severity"), "error");
        let reason = support::text(&info, "/alarms/0/reason");
        assert!(reason.contains(told), "{reason}");
        let (code, report) = document(stage, &["check", "-D", &stage.pgdata()]);
        assert_eq!(code, FAILED, "{report:#}");
        require(&report, "layers", &["failed: ", told]);
        let _ = fs::remove_dir_all(main.join("verified"));
    }
    let archive = fs::read_dir(main.join("wal/00000001")).unwrap();
    let notes = archive.map(|entry| entry.unwrap().path());
    for note in notes.filter(|path| path.extension().is_some_and(|end| end == "backup")) {
        fs::remove_file(note).unwrap();
    }
    let (code, info) = document(stage, &["info"]);
    assert_eq!((code, support::text(&info, "/status")), (0, "empty"));
}

/// Takes a full backup and one on it; returns their labels.
fn sound_layers_are_shown(stage: &Stage) -> (String, String) {
    let empty = stage.json(&["info"]);
    assert_eq!(empty["status"], "empty");
    schema::require(&empty);
    assert!(stage.ok(&["info"]).contains("no backup yet"));
    let report = stage.backup(&["--type", "full"]);
    let full = support::text(&report, "/label").to_owned();
    let report = stage.backup(&["--type", "incr"]);
    let child = support::text(&report, "/label").to_owned();

    let sound = stage.json(&["info"]);
    schema::require(&sound);
    assert_eq!(sound["status"], "ok");
    assert_eq!(sound["layers"][1]["parent"], full.as_str());
    assert_eq!(sound["layers"][1]["chain_length"], 2);
    let table = stage.ok(&["info"]);
    for words in [
        &full,
        &child,
        "cluster:     main",
        "timeline 1: 0000000100000000",
        "lsn",
    ] {
        assert!(table.contains(words), "\"{words}\" is not in:\n{table}");
    }
    let details = stage.ok(&["info", &child]);
    assert_eq!(details, stage.ok(&["info", "latest"]));
    for words in [
        "changes by     lsn: ",
        "2 layers in the chain",
        "WAL segments",
        "marked as changed",
    ] {
        assert!(details.contains(words), "\"{words}\" is not in:\n{details}");
    }

    (full, child)
}

fn leftovers_are_shown(stage: &Stage, full: &str) {
    // An interrupted backup leaves objects and a claim, but no manifest.
    let layers = directory_of(stage).join("layer");
    let left = layers.join("20200101-000000F");
    copy(&layers.join(full), &left);
    for name in ["manifest", "committed"] {
        fs::remove_file(left.join(name)).unwrap();
    }
    stage.age();
    let output = stage.run(&["info"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("unfinished: 20200101-000000F: "), "{text}");
    assert!(text.contains("was interrupted"), "{text}");
    let role = stage
        .cluster
        .sql("postgres", "SELECT current_user")
        .unwrap();
    let (code, document) = check(stage, role.trim(), &[]);
    assert_eq!(code, WARNINGS, "{document:#}");
    require(
        &document,
        "leftovers",
        &["warning: ", "20200101-000000F", "interrupted", "harmless"],
    );
    assert_eq!(stage.run(&["verify"]).status.code(), Some(WARNINGS));
}

fn damage_is_shown(stage: &Stage, full: &str, child: &str) {
    // A damaged manifest takes the layers that stand on it along.
    let layers = directory_of(stage).join("layer");
    let manifest = layers.join(full).join("manifest");
    let mut bytes = fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&manifest, bytes).unwrap();
    let output = stage.run(&["--output", "json", "info"]);
    assert_eq!(output.status.code(), Some(WARNINGS));
    let damaged: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::require(&damaged);
    assert_eq!(damaged["status"], "alarm");
    assert_eq!(damaged["alarms"][0]["layer"], full);
    assert_eq!(damaged["damaged"][0]["label"], full);
    let problem = damaged["layers"][0]["problem"].as_str().unwrap();
    assert!(problem.contains(full), "{problem}");
    let role = stage
        .cluster
        .sql("postgres", "SELECT current_user")
        .unwrap();
    let text = String::from_utf8(stage.run(&["info"]).stdout).unwrap();
    for words in [
        format!("the manifest of {full} cannot be used"),
        format!("{child} cannot be restored: "),
    ] {
        assert!(text.contains(&words), "\"{words}\" is not in:\n{text}");
    }
    let (code, document) = check(stage, role.trim(), &[]);
    assert_eq!(code, FAILED, "{document:#}");
    require(&document, "layers", &["failed: ", full, "full backup"]);
}

#[test]
fn info_sees_that_the_wal_of_a_layer_is_missing() {
    let stage = Stage::silent(Cluster::builder(Major::V18), Store::Directory);
    let report = stage.backup(&[]);
    let wal = directory_of(&stage).join("wal/00000001");
    let names = fs::read_dir(&wal).unwrap();
    for name in names {
        fs::remove_file(name.unwrap().path()).unwrap();
    }
    let output = stage.run(&["--output", "json", "info"]);
    assert_eq!(output.status.code(), Some(WARNINGS));
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::require(&info);
    let problem = info["layers"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("is not in the archive"), "{problem}");
    let output = stage.run(&["verify", support::text(&report, "/label")]);
    assert_eq!(output.status.code(), Some(18));
}

/// The items and alarms about configuration that `command` shows.
fn of_configuration(stage: &Stage, command: &str) -> String {
    let (pgdata, conninfo) = (
        stage.pgdata(),
        stage.cluster.conninfo_as("pgstrata", "postgres"),
    );
    let words = ["--output", "json", command, "-D", &pgdata, "-d", &conninfo];
    let output = stage.run(&words);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let alarms = document["alarms"].as_array().unwrap().iter();
    let mut of_files = alarms.filter(|alarm| alarm["kind"] == "configuration");
    of_files.next().map(Value::to_string).unwrap_or_default()
}

/// The server was taken back in place. What is still in its configuration binds every standby that is made from it.
#[test]
fn what_is_left_of_a_recovery_is_a_warning_until_it_is_reset() {
    let builder = Cluster::builder(Major::V15).initdb_arg("--wal-segsize=1");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(ROLE);
    sql("CREATE TABLE numbers (id int)");
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    let (_, document) = check(&stage, "pgstrata", &[]);
    assert!(lines(&document, "files").is_empty(), "{document:#}");
    stage.cluster.stop(StopMode::Fast).unwrap();
    let pgdata = stage.pgdata();
    let in_place = ["restore", "--target-dir", &pgdata, "--delta"];
    let then = ["--target-type", "immediate", "--target-action", "promote"];
    let said = stage.ok(&[&in_place[..], &then].concat());
    for name in ["recovery_target;", "recovery_target_timeline;"] {
        let statement = format!("ALTER SYSTEM RESET {name}");
        assert!(said.contains(&statement), "{said}");
    }
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();

    let set = "(recovery_target = 'immediate', recovery_target_timeline = 'current')";
    let (code, document) = check(&stage, "pgstrata", &[]);
    assert_eq!(code, WARNINGS, "{document:#}");
    let words = ["warning: ", set, "promotes itself there"];
    require(&document, "files", &words);
    for command in ["info", "verify"] {
        let alarm = of_configuration(&stage, command);
        assert!(alarm.contains(set), "{command}: {alarm}");
    }

    // What the warning says is enough, without a restart.
    let mut items = document["items"].as_array().unwrap().iter();
    let item = items.find(|item| item["name"] == "files").unwrap();
    let to_do = item["hint"].as_str().unwrap();
    let (statements, rest) = to_do.split_once("; then ").unwrap();
    assert!(rest.starts_with("SELECT pg_reload_conf()"), "{to_do}");
    for name in ["recovery_target_action", "restore_command"] {
        assert!(statements.contains(name), "{to_do}");
    }
    for statement in statements.split("; ") {
        sql(statement);
    }
    sql("SELECT pg_reload_conf()");
    let seen = "SELECT pending_restart FROM pg_settings WHERE name = 'recovery_target'";
    stage.cluster.wait_for("postgres", seen, PATIENCE).unwrap();
    let (_, document) = check(&stage, "pgstrata", &[]);
    assert!(lines(&document, "files").is_empty(), "{document:#}");
    assert_eq!(of_configuration(&stage, "info"), "");
    a_standby_follows(&stage);
}

/// A standby that is made from the primary now has what the files have now.
#[test]
fn a_target_in_the_files_is_a_warning_whether_the_server_has_it_or_not() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql(ROLE);
    // The superuser sees pg_file_settings, and who takes backups reads the files.
    let require_warned = |words: &[&str]| {
        for role in ["postgres", "pgstrata"] {
            let (code, document) = check(&stage, role, &[]);
            assert_eq!(code, WARNINGS, "{document:#}");
            require(&document, "files", &[&["warning: "][..], words].concat());
        }
        let alarm = of_configuration(&stage, "info");
        assert!(words.iter().all(|word| alarm.contains(word)), "{alarm}");
    };
    let require_fine = || {
        for role in ["postgres", "pgstrata"] {
            let (_, document) = check(&stage, role, &[]);
            assert!(lines(&document, "files").is_empty(), "{document:#}");
        }
    };
    let waits = |name: &str, waits: bool| {
        let query =
            format!("SELECT pending_restart = {waits} FROM pg_settings WHERE name = '{name}'");
        stage
            .cluster
            .wait_for("postgres", &query, PATIENCE)
            .unwrap();
    };
    let time = "recovery_target_time";
    let set = |name: &str, value: &str| stage.cluster.append_conf(name, value).unwrap();
    let said = ["(recovery_target_time = '2001-01-01')", "stops there"];
    require_fine();
    set("Recovery_Target_Time", "2001-01-01");
    require_warned(&said);
    stage.cluster.reload().unwrap();
    waits(time, true);
    require_warned(&said);
    // Behind it, in whatever spelling, nothing is left of it.
    set("RECOVERY_TARGET_TIME", "");
    stage.cluster.reload().unwrap();
    waits(time, false);
    require_fine();
    set("recovery_target_timeline", "current");
    stage.cluster.reload().unwrap();
    waits("recovery_target_timeline", true);
    require_warned(&[
        "(recovery_target_timeline = 'current')",
        "follows no timeline but",
    ]);
}

fn a_standby_follows(stage: &Stage) {
    let directory = stage.target("standby");
    let program = stage.cluster.bindir().join("pg_basebackup");
    let mut copy = stage.cluster.command_as_server_user(&program);
    copy.args(["-R", "-c", "fast", "-D"]).arg(&directory);
    let copied = copy.output().unwrap();
    let log = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.success(), "{log}");
    let standby = Cluster::adopt(Major::V15, &directory)
        .conf("archive_mode", "off")
        .start()
        .unwrap();
    let insert = "INSERT INTO numbers VALUES (1)";
    stage.cluster.sql("postgres", insert).unwrap();
    let arrived = "SELECT count(*) = 1 AND pg_is_in_recovery() FROM numbers";
    standby.wait_for("postgres", arrived, PATIENCE).unwrap();
}
