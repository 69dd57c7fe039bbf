//! Configuration outside the data directory, as Debian's packages have it: it is in the backup, and the restored server
//! starts with it, from the data directory or from a directory of its own.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use serde_json::Value;
use support::{PATIENCE, Stage, Store, text};

const WARNINGS: i32 = 3;
const USAGE: i32 = 2;
const REFUSED: i32 = 13;

const UNTIL: [&str; 4] = ["--target-type", "immediate", "--target-action", "promote"];

/// A server whose configuration was moved out of its data directory.
struct Moved {
    stage: Stage,
    server: Cluster,
    etc: PathBuf,
}

/// Everything below belongs to the server's user.
fn give(stage: &Stage, path: &Path) {
    let owner = fs::metadata(stage.cluster.pgdata()).unwrap();
    let mut all = vec![path.to_owned()];
    while let Some(path) = all.pop() {
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        if path.is_dir() {
            let entries = fs::read_dir(path).unwrap();
            all.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
}

/// Starts a server with the layout that `pg_createcluster` makes, of any version: `etc/main` has the three files and
/// `conf.d`. The files name others by all ways.
fn moved(major: Major) -> Moved {
    let stage = Stage::archiving(Cluster::builder(major), Store::Directory);
    stage.cluster.stop(StopMode::Fast).unwrap();
    let data = stage.cluster.pgdata();
    let etc = stage.cluster.socket_dir().join("etc");
    let main = etc.join("main");
    for directory in ["main/conf.d", "main/empty.d", "common"] {
        fs::create_dir_all(etc.join(directory)).unwrap();
    }
    for name in ["postgresql.conf", "pg_hba.conf", "pg_ident.conf"] {
        fs::rename(data.join(name), main.join(name)).unwrap();
    }
    let mut conf = fs::read_to_string(main.join("postgresql.conf")).unwrap();
    conf.push_str(&format!(
        "data_directory = '{data}'\nhba_file = '{main}/pg_hba.conf'\nident_file = '{main}/pg_ident.conf'\n\
         external_pid_file = '{etc}/main.pid'\ninclude_dir = 'conf.d'\ninclude_dir 'empty.d'\n\
         include '{etc}/common/site.conf'\ninclude_if_exists 'gone.conf'\n",
        data = data.display(),
        main = main.display(),
        etc = etc.display(),
    ));
    fs::write(main.join("postgresql.conf"), conf).unwrap();
    fs::write(main.join("conf.d/memory.conf"), "work_mem = '7MB'\n").unwrap();
    // The server passes over it; no recovery of a copy can reach it.
    let target = "RECOVERY_TARGET_NAME = 'nowhere'\n";
    fs::write(main.join("conf.d/target.conf"), target).unwrap();
    fs::write(etc.join("common/site.conf"), "include 'deeper.conf'\n").unwrap();
    fs::write(etc.join("common/deeper.conf"), "cluster_name = 'moved'\n").unwrap();
    fs::write(main.join("admins"), "postgres\n").unwrap();
    let mut hba = "local all @admins trust\n".to_owned();
    if major >= Major::V16 {
        hba.push_str("include more_hba.conf\n");
    }
    fs::write(main.join("pg_hba.conf"), hba).unwrap();
    fs::write(main.join("more_hba.conf"), "local postgres other trust\n").unwrap();
    give(&stage, &etc);
    let config = main.join("postgresql.conf").display().to_string();
    let server = Cluster::adopt(major, data).conf("config_file", &config);
    let server = server.start().unwrap();
    server
        .sql(
            "postgres",
            "CREATE ROLE other LOGIN; CREATE TABLE kept AS SELECT 1",
        )
        .unwrap();
    Moved { stage, server, etc }
}

impl Moved {
    fn backup_words(&self, more: &[&str]) -> Vec<String> {
        let conninfo = self.server.conninfo("postgres");
        let pgdata = self.stage.pgdata();
        let words = ["backup", "-D", &pgdata, "-d", &conninfo];
        words
            .iter()
            .chain(more)
            .map(|&word| word.to_owned())
            .collect()
    }

    fn backup(&self, more: &[&str]) -> Value {
        let words = self.backup_words(more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.stage.json(&words)
    }

    fn setting(server: &Cluster, name: &str) -> String {
        server.sql("postgres", &format!("SHOW {name}")).unwrap()
    }

    /// What the files say holds, and nothing of it leads to the source.
    fn require_configured(&self, restored: &Cluster, config: &Path) {
        self.require_configured_as(restored, config, "moved");
        if restored.major() >= Major::V16 {
            let one = restored.sql_as("other", "postgres", "SELECT current_user");
            assert_eq!(one.unwrap(), "other");
        }
    }

    fn require_configured_as(&self, restored: &Cluster, config: &Path, name: &str) {
        restored.wait_promoted(PATIENCE).unwrap();
        let target = restored.pgdata().display().to_string();
        let of = |name: &str| config.join(name).display().to_string();
        for (setting, value) in [
            ("data_directory", target.as_str()),
            ("hba_file", &of("pg_hba.conf")),
            ("ident_file", &of("pg_ident.conf")),
            ("config_file", &of("postgresql.conf")),
            ("work_mem", "7MB"),
            ("cluster_name", name),
        ] {
            assert_eq!(Self::setting(restored, setting), value, "{setting}");
        }
        assert_eq!(restored.sql("postgres", "SELECT 1 FROM kept").unwrap(), "1");
        let broken = "SELECT count(*) FROM pg_hba_file_rules WHERE error IS NOT NULL";
        assert_eq!(restored.sql("postgres", broken).unwrap(), "0");
        let etc = self.etc.display().to_string();
        let files =
            "SELECT coalesce(string_agg(DISTINCT sourcefile, ' '), '') FROM pg_file_settings";
        let files = restored.sql("postgres", files).unwrap();
        assert!(
            !files.split(' ').any(|file| file.starts_with(&etc)),
            "{files}"
        );
        // The source went on running beside it.
        let source = Self::setting(&self.server, "data_directory");
        assert_eq!(source, self.stage.pgdata());
    }
}

fn a_restored_server_starts_with_configuration_from_outside(major: Major) {
    let moved = moved(major);
    let stage = &moved.stage;
    moved.backup(&["--type", "full"]);
    fs::write(
        moved.etc.join("main/conf.d/memory.conf"),
        "work_mem = '7MB' # 2\n",
    )
    .unwrap();
    moved.backup(&["--type", "incr"]);
    stage.ok(&["verify", "--deep"]);

    let target = stage.target("inside");
    let directory = target.display().to_string();
    let report = stage.json(&[&["restore", "--target-dir", &directory][..], &UNTIL].concat());
    let notes = report["notes"].to_string();
    for words in [
        "(was ",
        "data_directory, external_pid_file, hba_file, ident_file",
        "one target of recovery at a time: RECOVERY_TARGET_NAME",
        "pg_ctl -D",
    ] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
    assert!(!target.join("pgstrata.config").exists());
    let mut verify = stage.cluster.command("pg_verifybackup");
    let verified = verify.arg("-n").arg(&target).output().unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success(), "{said}");
    let restored = Cluster::adopt(major, &target).start().unwrap();
    moved.require_configured(&restored, &target);
    let included = target.join(format!(
        "pgstrata.included{}/main/conf.d/memory.conf",
        moved.etc.display()
    ));
    assert!(fs::read_to_string(&included).unwrap().contains("# 2"));

    // What is in the data directory now comes with the next backup as it is, and the one after it restores.
    let (pgdata, conninfo) = (directory, restored.conninfo("postgres"));
    let words = ["backup", "-D", &pgdata, "-d", &conninfo, "--type", "full"];
    let layer = stage.json(&words);
    let again = stage.restore("again", &[&[text(&layer, "/label")][..], &UNTIL].concat());
    let again = Cluster::adopt(major, &again).start().unwrap();
    moved.require_configured(&again, again.pgdata());
}

#[test]
fn a_restored_server_starts_with_configuration_from_outside_on_15() {
    a_restored_server_starts_with_configuration_from_outside(Major::V15);
}

#[test]
fn a_restored_server_starts_with_configuration_from_outside_on_18() {
    a_restored_server_starts_with_configuration_from_outside(Major::V18);
}

/// No restore touches the configuration of the source where it lies, and the server that was taken back is started with it.
#[test]
fn a_server_that_was_taken_back_in_place_starts_with_its_configuration_from_outside() {
    let moved = moved(Major::V15);
    let stage = &moved.stage;
    moved.backup(&["--type", "full"]);
    moved.server.stop(StopMode::Fast).unwrap();
    let pgdata = stage.pgdata();
    let words = ["restore", "--target-dir", &pgdata, "--delta"];
    stage.ok(&[&words[..], &UNTIL].concat());
    moved.server.start().unwrap();
    moved.server.wait_promoted(PATIENCE).unwrap();
    let config = moved.etc.join("main/postgresql.conf").display().to_string();
    assert_eq!(Moved::setting(&moved.server, "config_file"), config);
    let kept = moved.server.sql("postgres", "SELECT 1 FROM kept");
    assert_eq!(kept.unwrap(), "1");
}

/// The server has read the file, and whoever takes backups may not.
#[test]
fn configuration_that_backups_leave_out_is_an_alarm_of_all_who_judge() {
    let moved = moved(Major::V15);
    let stage = &moved.stage;
    let backup = moved.backup(&["--type", "full"]);
    assert_eq!(
        backup["warnings"].as_array().unwrap().len(),
        0,
        "{backup:#}"
    );
    let ident = moved.etc.join("main/pg_ident.conf");
    fs::set_permissions(&ident, Permissions::from_mode(0o000)).unwrap();
    let (pgdata, conninfo) = (stage.pgdata(), moved.server.conninfo("postgres"));
    for command in ["info", "verify", "check"] {
        let words = ["--output", "json", command, "-D", &pgdata, "-d", &conninfo];
        let output = stage.command(&words).output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let document: Value = serde_json::from_str(&shown).unwrap();
        let (place, kind, reason) = match command {
            "check" => ("/items", "/name", "/detail"),
            _ => ("/alarms", "/kind", "/reason"),
        };
        let all = document.pointer(place).unwrap().as_array().unwrap().iter();
        let mut of_files = all.filter(|one| ["files", "configuration"].contains(&text(one, kind)));
        let named = of_files.find(|one| text(one, reason).contains(ident.to_str().unwrap()));
        let named = named.unwrap_or_else(|| panic!("{command}: {shown}"));
        let lost = match command {
            "check" => text(named, reason).split_once("; cannot be restored: "),
            _ => Some(("", text(named, "/lost"))),
        };
        let lost = lost.map(|(_, lost)| lost);
        let expected = "this part of the configuration, when this host is lost";
        assert_eq!(lost, Some(expected), "{command}: {named:#}");
    }
}

#[test]
fn configuration_from_outside_goes_where_the_user_says_and_nowhere_else() {
    let moved = moved(Major::V15);
    let stage = &moved.stage;
    let layer = moved.backup(&["--type", "full"]);
    let before = contents(&moved.etc);
    let config = stage.target("config-of-copy");
    let named = config.display().to_string();
    let target = stage.restore("copy", &[&["--config-dir", &named][..], &UNTIL].concat());
    assert!(!target.join("postgresql.conf").exists());
    assert!(config.join("conf.d/memory.conf").exists());
    let restored = Cluster::adopt(Major::V15, &target);
    let file = config.join("postgresql.conf").display().to_string();
    let restored = restored.conf("config_file", &file).start().unwrap();
    moved.require_configured(&restored, &config);

    // What is there already stays.
    let other = stage.target("other").display().to_string();
    let words = ["restore", "--target-dir", &other, "--config-dir", &named];
    let (code, log) = stage.fails(&[&words[..], &UNTIL].concat());
    assert_eq!(code, REFUSED, "{log}");
    assert!(log.contains("the directory for configuration"), "{log}");

    // In place, the files of the source's configuration are left alone.
    restored.stop(StopMode::Fast).unwrap();
    let delta = ["--delta", "--links-are-own"];
    let label = text(&layer, "/label");
    stage.restore("copy", &[&[label][..], &delta, &UNTIL].concat());
    let restored = Cluster::adopt(Major::V15, &target).start().unwrap();
    moved.require_configured(&restored, &target);
    assert!(contents(&moved.etc) == before);

    // A layer without such files has nothing to put there.
    restored.stop(StopMode::Fast).unwrap();
    drop(restored);
    let inside = Cluster::adopt(Major::V15, &target).start().unwrap();
    let (pgdata, conninfo) = (target.display().to_string(), inside.conninfo("postgres"));
    let words = ["backup", "-D", &pgdata, "-d", &conninfo, "--type", "full"];
    let inside = stage.json(&words);
    let empty = stage.target("empty").display().to_string();
    let words = ["restore", text(&inside, "/label"), "--target-dir", &other];
    let (code, log) = stage.fails(&[&words[..], &["--config-dir", &empty], &UNTIL].concat());
    assert_eq!(code, USAGE, "{log}");
}

/// A program of Debian's package postgresql-common, which those of the servers bring, on the clusters below `etc`.
fn debian(stage: &Stage, etc: &Path, program: &str) -> Command {
    let program = Path::new("/usr/bin").join(program);
    let mut command = stage.cluster.command_as_server_user(&program);
    command.env("PG_CLUSTER_CONF_ROOT", etc);
    command
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `pg_createcluster` takes a data directory over: it moves the configuration, and sets what its own configuration says.
fn created(major: Major) -> Moved {
    let stage = Stage::archiving(Cluster::builder(major), Store::Directory);
    stage.cluster.stop(StopMode::Fast).unwrap();
    let sockets = stage.cluster.socket_dir();
    let etc = stage.cluster.create_dir("etc").unwrap();
    let mut create = debian(&stage, &etc, "pg_createcluster");
    create
        .args(["--start-conf", "manual", "--no-status"])
        .args(["--port", &stage.cluster.port().to_string()])
        .args([Path::new("--socketdir"), sockets])
        .args([Path::new("--logfile"), &sockets.join("debian.log")])
        .args([Path::new("--datadir"), stage.cluster.pgdata()])
        .args([&major.to_string(), "main"]);
    output_of(&mut create);
    assert!(!stage.cluster.pgdata().join("postgresql.conf").exists());
    let main = etc.join(major.to_string()).join("main");
    fs::write(main.join("conf.d/memory.conf"), "work_mem = '7MB'\n").unwrap();
    give(&stage, &main.join("conf.d"));
    let config = main.join("postgresql.conf").display().to_string();
    let server = Cluster::adopt(major, stage.cluster.pgdata()).conf("config_file", &config);
    let server = server.start().unwrap();
    server
        .sql("postgres", "CREATE TABLE kept AS SELECT 1")
        .unwrap();
    Moved { stage, server, etc }
}

#[test]
fn a_cluster_that_pg_createcluster_made_restores_and_pg_ctlcluster_starts_it() {
    let moved = created(Major::V15);
    let stage = &moved.stage;
    let named = Moved::setting(&moved.server, "cluster_name");
    assert_eq!(named, "15/main", "what createcluster.conf sets");
    moved.backup(&["--type", "full"]);
    let inside = stage.restore("inside", &UNTIL);
    let restored = Cluster::adopt(Major::V15, &inside).start().unwrap();
    moved.require_configured_as(&restored, &inside, "15/main");

    // In Debian's place, and with the port of the source.
    moved.server.stop(StopMode::Fast).unwrap();
    let config = moved.etc.join("15/copy");
    let named = config.display().to_string();
    let outside = stage.restore("outside", &[&["--config-dir", &named][..], &UNTIL].concat());
    let log = stage.cluster.socket_dir().join("copy.log");
    std::os::unix::fs::symlink(log, config.join("log")).unwrap();
    let control =
        |act: &str| output_of(debian(stage, &moved.etc, "pg_ctlcluster").args(["15", "copy", act]));
    control("start");
    let listed = output_of(&mut debian(stage, &moved.etc, "pg_lsclusters"));
    let asked = stage.cluster.sql("postgres", "SHOW data_directory");
    control("stop");
    assert_eq!(asked.unwrap(), outside.display().to_string());
    let line = listed.lines().find(|line| line.contains("copy"));
    assert!(line.is_some_and(|line| line.contains("online")), "{listed}");
}

/// All files below a directory, with what they hold.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(contents(&path)),
            false => found.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

#[test]
fn configuration_that_cannot_be_read_is_named_and_the_rest_is_stored() {
    let moved = moved(Major::V15);
    let secret = moved.etc.join("common/deeper.conf");
    // Even the server's own user reads what belongs to it; a directory in its place is read by nobody.
    fs::rename(&secret, moved.etc.join("aside")).unwrap();
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o755)).unwrap();
    let words = moved.backup_words(&["--type", "full"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (code, log) = moved.stage.fails(&words);
    assert_eq!(code, WARNINGS, "{log}");
    assert!(log.contains("common/deeper.conf"), "{log}");
    fs::remove_dir(&secret).unwrap();
    let target = moved.stage.target("without").display().to_string();
    let words = ["restore", "--target-dir", &target];
    let report = moved.stage.json(&[&words[..], &UNTIL].concat());
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("is neither in the layer nor on this host"),
        "{notes}"
    );
    let restored = Cluster::adopt(Major::V15, Path::new(&target))
        .start()
        .unwrap();
    assert_eq!(Moved::setting(&restored, "work_mem"), "7MB");
    assert_eq!(Moved::setting(&restored, "cluster_name"), "");
}

/// Files of the server's user beside its data directory, and lines about them at the end of its configuration there.
fn put_beside(stage: &Stage, files: &[(&str, &str)], lines: &str) -> PathBuf {
    let data = stage.cluster.pgdata();
    let beside = data.parent().unwrap();
    for (name, text) in files {
        let path = beside.join(name);
        let above = path.parent().unwrap();
        fs::create_dir_all(above).unwrap();
        fs::write(&path, text).unwrap();
        let made = if above == beside {
            path.as_path()
        } else {
            above
        };
        give(stage, made);
    }
    let conf = data.join("postgresql.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text + lines).unwrap();
    beside.to_owned()
}

/// The files of the data directory come along with it, and what they include beside it does, too.
#[test]
fn what_a_relative_path_includes_beside_the_data_directory_is_found_in_a_copy_elsewhere() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let files = [
        ("site.conf", "include 'deeper.conf'\nwork_mem = '7MB'\n"),
        ("deeper.conf", "cluster_name = 'beside'\n"),
        ("site.d/one.conf", "maintenance_work_mem = '9MB'\n"),
        ("admins", "postgres\n"),
    ];
    let lines = "include '../site.conf'\ninclude_dir = '../site.d'\n";
    let beside = put_beside(&stage, &files, lines);
    let hba = stage.cluster.pgdata().join("pg_hba.conf");
    fs::write(&hba, "local all @../admins trust\n").unwrap();
    stage.cluster.restart().unwrap();
    stage.backup(&["--type", "full"]);
    // Nothing lies beside it.
    let target = stage.restore("deep/copy", &UNTIL);
    let restored = Cluster::adopt(Major::V15, &target).start().unwrap();
    restored.wait_promoted(PATIENCE).unwrap();
    for (name, value) in [
        ("work_mem", "7MB"),
        ("maintenance_work_mem", "9MB"),
        ("cluster_name", "beside"),
    ] {
        assert_eq!(Moved::setting(&restored, name), value, "{name}");
    }
    let broken = "SELECT count(*) FROM pg_hba_file_rules WHERE error IS NOT NULL";
    assert_eq!(restored.sql("postgres", broken).unwrap(), "0");
    let files = "SELECT string_agg(DISTINCT sourcefile, ' ') FROM pg_file_settings";
    let files = restored.sql("postgres", files).unwrap();
    let of_the_source = beside.join("site.conf");
    let mut files = files.split(' ').map(Path::new);
    assert!(files.all(|file| file != of_the_source));
}

/// Where the source's data directory was, no layer says.
#[test]
fn a_relative_include_that_may_mean_several_files_loses_none_of_them() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let files = [
        ("site.conf", "work_mem = '7MB'\n"),
        ("other/site.conf", "cluster_name = 'other'\n"),
        ("gone.conf", "maintenance_work_mem = '9MB'\n"),
    ];
    let other = stage.cluster.socket_dir().join("other/site.conf");
    let lines = format!(
        "include '../site.conf'\ninclude '{}'\ninclude '../gone.conf'\n",
        other.display()
    );
    let beside = put_beside(&stage, &files, &lines);
    stage.cluster.restart().unwrap();
    fs::remove_file(beside.join("gone.conf")).unwrap();
    let (code, log) = stage.fails(&["backup", "-D", &stage.pgdata(), "--type", "full"]);
    assert_eq!(code, WARNINGS, "{log}");
    let target = stage.target("deep/copy");
    let directory = target.display().to_string();
    let report = stage.json(&[&["restore", "--target-dir", &directory][..], &UNTIL].concat());
    let notes = report["notes"].to_string();
    for words in ["which may be any of", "gone.conf", "was taken out of the"] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
    for place in [&beside.join("site.conf"), &other] {
        let kept = target.join(format!("pgstrata.included{}", place.display()));
        assert_eq!(fs::read(kept).unwrap(), fs::read(place).unwrap());
    }
    let conf = fs::read_to_string(target.join("postgresql.conf")).unwrap();
    for line in [
        "\ninclude '../site.conf'\n",
        "\n# taken out by pgstrata restore: include '../gone.conf'\n",
    ] {
        assert!(conf.contains(line), "{line}: {conf}");
    }
}

/// The server passed over it, and another file that ends so was overridden behind its own line.
#[test]
fn a_file_that_did_not_exist_is_not_taken_for_one_that_another_line_includes() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let files = [
        ("base/site.conf", "work_mem = '7MB'\n"),
        ("more.conf", "cluster_name = 'more'\n"),
    ];
    let base = stage.cluster.socket_dir().join("base/site.conf");
    let lines = format!(
        "include '{}'\nwork_mem = '9MB'\ninclude_if_exists '../site.conf'\ninclude_if_exists '../more.conf'\n",
        base.display()
    );
    put_beside(&stage, &files, &lines);
    stage.cluster.restart().unwrap();
    stage.backup(&["--type", "full"]);
    let target = stage.target("deep/copy");
    let directory = target.display().to_string();
    let report = stage.json(&[&["restore", "--target-dir", &directory][..], &UNTIL].concat());
    let restored = Cluster::adopt(Major::V15, &target).start().unwrap();
    restored.wait_promoted(PATIENCE).unwrap();
    for (name, value) in [("work_mem", "9MB"), ("cluster_name", "more")] {
        assert_eq!(Moved::setting(&restored, name), value, "{name}");
    }
    let notes = report["notes"].as_array().unwrap().iter();
    let notes: Vec<&str> = notes.map(|note| note.as_str().unwrap()).collect();
    for (file, words) in [
        ("../site.conf", "which may be any of"),
        ("../more.conf", "no other place in the layer ends so"),
    ] {
        let mut about = notes.iter().filter(|note| note.contains(file));
        assert!(about.any(|note| note.contains(words)), "{file}: {notes:?}");
    }
}

/// A copy that began to run on its original's data would be the end of both.
#[test]
fn a_restored_server_does_not_start_on_the_data_of_its_source() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let data = stage.pgdata();
    stage.cluster.append_conf("data_directory", &data).unwrap();
    stage.cluster.restart().unwrap();
    stage.backup(&["--type", "full"]);
    let target = stage.restore("copy", &UNTIL);
    let mut asked = stage.cluster.command("postgres");
    asked.args(["-C", "data_directory", "-D"]).arg(&target);
    let asked = asked.output().unwrap();
    let said = String::from_utf8_lossy(&asked.stdout);
    assert_eq!(said.trim(), target.display().to_string());
    let mut verify = stage.cluster.command("pg_verifybackup");
    assert!(
        verify
            .arg("-n")
            .arg(&target)
            .output()
            .unwrap()
            .status
            .success()
    );
}
