//! Bad input gives one clear error that names the object and what to do, and loses nothing.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use pgstrata_testbed::programs::{copy_program, write_script};
use pgstrata_testbed::s3::S3Server;
use support::files::copy_all;
use support::{Stage, Store};

const USAGE: i32 = 2;
const WARNINGS: i32 = 3;
const NOT_FOUND: i32 = 10;
const BUSY: i32 = 12;
const REFUSED: i32 = 13;
const DAMAGED: i32 = 14;
const REPOSITORY: i32 = 15;
const FILE: i32 = 17;
const SERVER: i32 = 16;
const TARGET: i32 = 19;

/// One error line, which holds every one of `words`.
fn require(outcome: (i32, String), code: i32, words: &[&str]) {
    let (found, log) = outcome;
    let errors: Vec<&str> = log.lines().filter(|l| l.contains("error: ")).collect();
    assert_eq!(errors.len(), 1, "not one error:\n{log}");
    assert_eq!(found, code, "{log}");
    for word in words {
        assert!(log.contains(word), "\"{word}\" is not in:\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
}

fn stage() -> Stage {
    Stage::archiving(Cluster::builder(Major::V15), Store::Directory)
}

#[test]
fn what_is_not_known_is_asked_for() {
    let stage = stage();
    let bare = |arguments: &[&str]| {
        let mut command = stage.cluster.command_as_server_user(&stage.program);
        let output = command.args(arguments).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    require(
        bare(&["info"]),
        USAGE,
        &["repository", "--repo", "PGSTRATA_REPO"],
    );
    require(
        bare(&["--repo", "file:///tmp/x", "backup"]),
        USAGE,
        &["cluster", "--cluster"],
    );
    require(
        bare(&["--repo", "ftp://x/y", "--cluster", "main", "info"]),
        USAGE,
        &["ftp"],
    );
    require(
        stage.fails(&["--cluster", "UPPER", "info"]),
        USAGE,
        &["UPPER"],
    );
    require(
        stage.fails(&["backup"]),
        USAGE,
        &["data directory", "--pgdata"],
    );
    require(
        stage.fails(&["--jobs", "0", "backup", "-D", &stage.pgdata()]),
        USAGE,
        &["--jobs"],
    );
    require(
        stage.fails(&["backup", "-D", &stage.pgdata(), "-Z", "gzip"]),
        USAGE,
        &["gzip", "zstd"],
    );
}

#[test]
fn mistakes_in_settings_are_shown_with_their_place() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let directory = stage.cluster.create_dir("settings").unwrap();
    let file = |name: &str, text: &str, mode: u32| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        stage.cluster.own(&path).unwrap();
        path.display().to_string()
    };
    let settings = file("settings.toml", "jobs = 2\n\nrepoo = 'x'\n", 0o644);
    require(
        stage.fails(&["--config", &settings, "info"]),
        USAGE,
        &["settings.toml\", line 3", "repoo", "repo"],
    );
    // Recovery would be the first to read it.
    let holes = file("holes.toml", "hole-timeout = '20'\n", 0o644);
    let target = directory.join("target").display().to_string();
    for command in [&["check"][..], &["restore", "--target-dir", &target]] {
        let outcome = stage.fails(&[&["--config", &holes], command].concat());
        require(outcome, USAGE, &["hole-timeout", "20"]);
    }
    for endless in ["--config", "--credentials"] {
        let outcome = stage.fails(&[endless, "/dev/zero", "--repo", "s3://backups/p", "info"]);
        require(outcome, USAGE, &["/dev/zero", "holds more than 1024 KiB"]);
    }
    let secrets = file("secrets.toml", "access_key_id = 'x'\n", 0o644);
    let on_s3 = ["--repo", "s3://backups/p", "info"];
    require(
        stage.fails(&[&["--credentials", &secrets], &on_s3[..]].concat()),
        REFUSED,
        &["secrets.toml", "by others", "chmod"],
    );
    require(
        stage.fails(&[&["--storage", "acess_key=x"], &on_s3[..]].concat()),
        USAGE,
        &["acess_key", "access_key_id", "region"],
    );
    require(
        stage.fails(&["info", "-j", "-1"]),
        USAGE,
        &["--jobs", "from 1 to 256"],
    );
}

#[test]
fn a_directory_that_is_no_data_directory_is_refused() {
    let stage = stage();
    let empty = stage.cluster.create_dir("empty").unwrap();
    let missing = stage.target("nowhere").display().to_string();
    let (code, log) = stage.fails(&["backup", "-D", &missing]);
    assert!([NOT_FOUND, 17].contains(&code), "{log}");
    assert!(log.contains(&missing), "{log}");
    let (code, log) = stage.fails(&["backup", "-D", &empty.display().to_string()]);
    assert!([REFUSED, 17, NOT_FOUND].contains(&code), "{log}");
    assert!(
        log.contains("empty") && log.contains("data directory"),
        "{log}"
    );
}

#[test]
fn another_cluster_or_version_is_refused_and_the_record_stays() {
    let stage = stage();
    let other = Cluster::builder(Major::V15).start().unwrap();
    let newer = Cluster::builder(Major::V18).start().unwrap();
    for cluster in [&other, &newer] {
        let pgdata = cluster.pgdata().display().to_string();
        require(
            stage.fails(&["init", "-D", &pgdata]),
            REFUSED,
            &["system identifier", "--cluster"],
        );
        let conninfo = cluster.conninfo("postgres");
        require(
            stage.fails(&["backup", "-D", &pgdata, "-d", &conninfo]),
            REFUSED,
            &["system identifier"],
        );
    }
    // The server of one cluster, the directory of another.
    let pgdata = other.pgdata().display().to_string();
    require(
        stage.fails(&["backup", "-D", &pgdata]),
        REFUSED,
        &["is not the data directory of the server"],
    );
    stage.backup(&[]);
}

#[test]
fn a_server_that_is_down_or_says_no_is_named() {
    let stage = stage();
    let pgdata = stage.pgdata();
    stage
        .cluster
        .sql("postgres", "CREATE ROLE nobody LOGIN")
        .unwrap();
    let conninfo = stage.cluster.conninfo_as("nobody", "postgres");
    require(
        stage.fails(&["backup", "-D", &pgdata, "-d", &conninfo]),
        SERVER,
        &["nobody", "GRANT"],
    );
    stage.cluster.stop(StopMode::Fast).unwrap();
    require(
        stage.fails(&["backup", "-D", &pgdata]),
        SERVER,
        &["connect"],
    );
}

#[test]
fn wal_level_minimal_is_refused() {
    let builder = Cluster::builder(Major::V15)
        .conf("wal_level", "minimal")
        .conf("max_wal_senders", "0");
    let stage = Stage::silent(builder, Store::Directory);
    require(
        stage.fails(&["backup", "-D", &stage.pgdata()]),
        REFUSED,
        &["wal_level", "minimal", "replica"],
    );
}

#[test]
fn options_of_s3_are_refused_where_they_cannot_be_obeyed() {
    let stage = stage();
    let pgdata = stage.pgdata();
    // The stage's repository is a directory.
    for option in [
        ["--s3-endpoint", "https://s3.example.com"],
        ["--s3-region", "eu-west-1"],
        ["--s3-ca-file", "/etc/ca.pem"],
    ] {
        let arguments = [&option[..], &["info"]].concat();
        require(
            stage.fails(&arguments),
            USAGE,
            &[option[0], "file:///", "s3://"],
        );
    }
    let far = [
        "--repo",
        "s3://bucket/x",
        "--s3-endpoint",
        "http://s3.example.com",
    ];
    let arguments = [&far[..], &["init", "-D", &pgdata]].concat();
    require(
        stage.fails(&arguments),
        USAGE,
        &["not encrypted", "--storage allow_http=true"],
    );
    let no_file = [&far[..2], &["--s3-ca-file", "/nowhere/ca.pem", "info"]].concat();
    require(stage.fails(&no_file), FILE, &["/nowhere/ca.pem"]);
}

#[test]
fn a_repository_that_cannot_be_used_is_named() {
    let stage = stage();
    let pgdata = stage.pgdata();
    let unreachable = [
        "--repo",
        "s3://bucket/x",
        "--s3-endpoint",
        "http://127.0.0.1:9",
        "--storage",
        "retry_seconds=1",
    ];
    let mut arguments = unreachable.to_vec();
    arguments.extend(["init", "-D", &pgdata]);
    let mut command = stage.command(&arguments);
    command
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "very-secret");
    let output = command.output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(!log.contains("very-secret"), "{log}");
    require(
        (output.status.code().unwrap(), log),
        REPOSITORY,
        &["s3://bucket/x"],
    );
    // Below a file nothing can be created, not even by root.
    let plain = stage.cluster.create_dir("plain").unwrap().join("file");
    fs::write(&plain, "x").unwrap();
    let file = format!("file://{}/repository", plain.display());
    require(
        stage.fails(&["--repo", &file, "init", "-D", &pgdata]),
        REPOSITORY,
        &["plain/file/repository"],
    );
}

#[test]
fn a_repository_within_the_data_directory_is_refused() {
    let stage = stage();
    let pgdata = stage.pgdata();
    let inside = format!("{pgdata}/backups");
    let repository = format!("file://{inside}");
    let init = ["--repo", &repository, "init", "-D", &pgdata];
    require(stage.fails(&init), REFUSED, &["lies in", &pgdata]);
    assert!(!fs::exists(&inside).unwrap());
    // It was made by an earlier version.
    copy_all(&stage.objects(), Path::new(&inside));
    let backup = ["--repo", &repository, "backup", "-D", &pgdata];
    require(stage.fails(&backup), REFUSED, &["lies in", &pgdata]);
    let check = stage.run(&["--repo", &repository, "check", "-D", &pgdata]);
    let told = String::from_utf8_lossy(&check.stdout);
    assert_eq!(check.status.code(), Some(REFUSED), "{told}");
    assert!(told.contains("lies in"), "{told}");
    fs::remove_dir_all(&inside).unwrap();
    for dry in [&["--dry-run"][..], &[]] {
        let copy = [&["copy", "--to", &repository][..], dry].concat();
        require(stage.fails(&copy), REFUSED, &["lies in", &pgdata]);
    }
    assert!(!fs::exists(&inside).unwrap());
}

#[test]
fn a_store_that_overwrites_is_refused_by_init() {
    let stage = stage();
    let s3 = S3Server::start_hostile().unwrap();
    let url = format!("s3://{}/x", s3.bucket());
    let pgdata = stage.pgdata();
    let mut command = stage.command(&["--repo", &url, "--s3-path-style", "init", "-D", &pgdata]);
    let output = command.envs(s3.env()).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    require(
        (output.status.code().unwrap(), log),
        REFUSED,
        &["overwrites", "only if absent", "If-None-Match"],
    );
}

#[test]
fn a_second_backup_at_once_is_told_which_one_runs() {
    let stage = stage();
    stage.cluster.pgbench(&["-i", "-q", "-s", "5"]).unwrap();
    let pgdata = stage.pgdata();
    let slow = stage.command(&["backup", "-D", &pgdata, "--max-rate", "8M"]);
    let first = stage.cluster.background(slow).unwrap();
    let query = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory'";
    stage
        .cluster
        .wait_for("postgres", query, support::PATIENCE)
        .unwrap();
    require(stage.fails(&["backup", "-D", &pgdata]), BUSY, &["another"]);
    first.wait().unwrap();
    assert_eq!(stage.json(&["info"])["layers"].as_array().unwrap().len(), 1);
}

#[test]
fn unknown_labels_and_targets_out_of_reach_are_refused() {
    let stage = stage();
    let target = stage.target("restored").display().to_string();
    let restore = |arguments: &[&str]| {
        let mut all = vec!["restore", "--target-dir", &target];
        all.extend(arguments);
        stage.fails(&all)
    };
    require(restore(&[]), NOT_FOUND, &["\"main\"", "pgstrata backup"]);
    let report = stage.backup(&[]);
    require(
        restore(&["20200101-000000F"]),
        NOT_FOUND,
        &["20200101-000000F"],
    );
    require(restore(&["nonsense"]), USAGE, &["nonsense", "info"]);
    require(
        restore(&[
            "--target-type",
            "time",
            "--target",
            "2001-01-01 00:00:00+00",
        ]),
        TARGET,
        &["2001-01-01"],
    );
    require(
        restore(&[
            "--target-type",
            "time",
            "--target",
            "2999-01-01 00:00:00+00",
        ]),
        TARGET,
        &["2999-01-01"],
    );
    require(
        restore(&["--target-type", "lsn", "--target", "0/1"]),
        TARGET,
        &["0/1"],
    );
    require(
        restore(&["--target-type", "lsn", "--target", "FFFF/0"]),
        TARGET,
        &["FFFF/0"],
    );
    require(
        restore(&["--target-type", "lsn", "--target", "soon"]),
        USAGE,
        &["soon"],
    );
    require(restore(&["--target-type", "lsn"]), USAGE, &["target"]);
    require(
        restore(&[
            "--target-type",
            "lsn",
            "--target",
            support::text(&report, "/stop_lsn"),
            "--target-timeline",
            "9",
        ]),
        TARGET,
        &["9"],
    );
    assert!(
        !std::path::Path::new(&target).exists(),
        "a refused restore left something behind"
    );
}

#[test]
fn rule_10_a_restore_never_writes_over_something() {
    let stage = stage();
    stage.backup(&[]);
    require(
        stage.fails(&["restore", "--target-dir", &stage.pgdata()]),
        REFUSED,
        &[&stage.pgdata()],
    );
    let full = stage.cluster.create_dir("full").unwrap();
    fs::write(full.join("precious"), "data").unwrap();
    require(
        stage.fails(&["restore", "--target-dir", &full.display().to_string()]),
        REFUSED,
        &["not empty"],
    );
    assert_eq!(fs::read_to_string(full.join("precious")).unwrap(), "data");
}

/// Every object of the layer, changed in every way, is found out by `verify` and by `restore`.
#[test]
fn missing_truncated_and_altered_objects_are_named() {
    let stage = stage();
    let report = stage.backup(&[]);
    let label = support::text(&report, "/label");
    let layer = stage.repository.trim_start_matches("file://").to_owned() + "/main/layer/" + label;
    for object in ["manifest", "index-000000", "pack-000000"] {
        let path = format!("{layer}/{object}");
        let original = fs::read(&path).unwrap();
        let mut altered = original.clone();
        let middle = altered.len() / 2;
        altered[middle] ^= 1;
        // Cut by less, a pack still holds every frame, and restores: only verify sees that.
        let truncated = original[..middle].to_vec();
        for bytes in [Some(altered), Some(truncated), None] {
            fs::remove_file(&path).unwrap();
            if let Some(bytes) = &bytes {
                fs::write(&path, bytes).unwrap();
            }
            let (code, log) = stage.fails(&["verify"]);
            assert!(
                [DAMAGED, NOT_FOUND].contains(&code),
                "{object}: exit code {code}\n{log}"
            );
            let target = stage.target("damaged").display().to_string();
            let (code, log) = stage.fails(&["restore", "--target-dir", &target]);
            assert!(
                [DAMAGED, NOT_FOUND].contains(&code),
                "{object}: exit code {code}\n{log}"
            );
            assert!(
                !stage.target("damaged").join("global/pg_control").exists(),
                "{object}: {log}"
            );
            let _ = fs::remove_dir_all(&target);
            let _ = fs::remove_file(&path);
            fs::write(&path, &original).unwrap();
            stage.cluster.own(Path::new(&path)).unwrap();
        }
    }
    stage.ok(&["verify", "--deep"]);
}

#[test]
fn a_repository_that_is_read_only_is_named_and_can_still_be_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    stage.backup(&[]);
    let root = PathBuf::from(stage.repository.trim_start_matches("file://"));
    let mut directories = vec![root];
    let mut seal = |mode: u32| {
        let mut at = 0;
        while let Some(directory) = directories.get(at).cloned() {
            if mode == 0o555 {
                let entries = fs::read_dir(&directory).unwrap().flatten();
                directories.extend(entries.map(|e| e.path()).filter(|path| path.is_dir()));
            }
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            at += 1;
        }
    };
    seal(0o555);
    let pgdata = stage.pgdata();
    require(
        stage.fails(&["backup", "-D", &pgdata]),
        REPOSITORY,
        &["could not", "ermission denied"],
    );
    require(
        stage.fails(&["--cluster", "other", "init", "-D", &pgdata]),
        REPOSITORY,
        &["could not", "ermission denied"],
    );
    assert_eq!(stage.layer_counts(), (1, 0));
    stage.restore("restored", &["--target-type", "none", "--same-timeline"]);
    seal(0o755);
    stage.backup(&[]);
}

#[test]
fn rule_11_a_chain_stands_on_the_very_parent_it_was_made_on() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let label = |report: &serde_json::Value| support::text(report, "/label").to_owned();
    let first = label(&stage.backup(&["--type", "full"]));
    let child = label(&stage.backup(&["--type", "incr"]));
    let other = label(&stage.backup(&["--type", "full"]));
    let layers = PathBuf::from(stage.repository.trim_start_matches("file://")).join("main/layer");
    let manifest = |label: &str| layers.join(label).join("manifest");
    let target = stage.target("restored").display().to_string();
    let restore = || {
        stage.fails(&[
            "restore",
            &child,
            "--target-dir",
            &target,
            "--target-type",
            "none",
            "--same-timeline",
        ])
    };
    let kept = fs::read(manifest(&first)).unwrap();
    fs::remove_file(manifest(&first)).unwrap();
    require(restore(), DAMAGED, &[&child, &first, "is lost"]);
    // The manifest of another layer in its place.
    fs::copy(manifest(&other), manifest(&first)).unwrap();
    stage.cluster.own(&manifest(&first)).unwrap();
    require(restore(), DAMAGED, &[&first]);
    // Incrementals stand on what is whole.
    let next = stage.backup(&["--type", "incr"]);
    assert_eq!(next["parent"].as_str().unwrap(), other);
    for layer in [&other, &label(&next)] {
        fs::remove_file(manifest(layer)).unwrap();
    }
    let full = stage.backup(&["--type", "auto"]);
    assert_eq!(full["type"], "full");
    assert!(
        support::text(&full, "/type_reason").contains("passed over"),
        "{full:#}"
    );
    fs::remove_file(manifest(&first)).unwrap();
    fs::write(manifest(&first), kept).unwrap();
    stage.cluster.own(&manifest(&first)).unwrap();
    stage.restore(
        "whole",
        &[&child, "--target-type", "none", "--same-timeline"],
    );
}

/// Without manifest and note a layer looks like a backup that was interrupted. What stands on it tells that it was finished.
#[test]
fn a_layer_that_others_stand_on_is_lost_and_no_leftover() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let label = |kind: &str| {
        let made = stage.backup(&["--type", kind]);
        support::text(&made, "/label").to_owned()
    };
    let [full, child] = ["full", "incr"].map(label);
    let layers = stage.objects().join("main/layer");
    let aside = stage.target("aside");
    fs::remove_file(layers.join(&full).join("committed")).unwrap();
    fs::rename(layers.join(&full).join("manifest"), &aside).unwrap();
    stage.age();
    let left = files(&layers);
    for rules in [["--keep-full", "1"], ["--keep-within", "30d"]] {
        let expired = stage.run(&[&["expire"], &rules[..]].concat());
        let shown = String::from_utf8(expired.stdout).unwrap();
        assert_eq!(expired.status.code(), Some(WARNINGS), "{shown}");
        assert!(
            shown.contains(&format!("layer {child} stands on it")),
            "{shown}"
        );
    }
    assert_eq!(files(&layers), left, "nothing is removed");
    let verified = stage.run(&["verify"]);
    assert_eq!(verified.status.code(), Some(DAMAGED));
    fs::rename(&aside, layers.join(&full).join("manifest")).unwrap();
    stage.restore(
        "whole",
        &[&child, "--target-type", "none", "--same-timeline"],
    );
}

#[test]
fn a_pinned_layer_that_has_lost_its_parent_is_named_and_nothing_goes() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let label = |kind: &str| {
        let made = stage.backup(&["--type", kind]);
        support::text(&made, "/label").to_owned()
    };
    let [full, parent, pinned, newest] = ["full", "incr", "incr", "full"].map(label);
    stage.ok(&["pin", &pinned, "--note", "before the move"]);
    let layers = stage.objects().join("main/layer");
    let aside = stage.target("aside");
    let before = files(&layers);
    // Its manifest alone, and all of it.
    for part in ["/manifest", ""] {
        let from = layers.join(format!("{parent}{part}"));
        fs::rename(&from, &aside).unwrap();
        let without = files(&layers);
        let info = stage.run(&["info"]);
        let shown = String::from_utf8(info.stdout).unwrap();
        assert_eq!(info.status.code(), Some(WARNINGS), "{shown}");
        let broken = shown.lines().filter(|line| line.contains("broken, pinned"));
        assert_eq!(broken.count(), 1, "{shown}");
        let says = format!("{pinned} cannot be restored: the chain");
        assert_eq!(shown.matches(&says).count(), 1, "{shown}");
        for more in [&["--dry-run"][..], &[]] {
            let expire = [&["expire", "--keep-full", "1"][..], more].concat();
            let expired = stage.run(&expire);
            let shown = String::from_utf8(expired.stdout).unwrap();
            assert_eq!(expired.status.code(), Some(WARNINGS), "{shown}");
            assert_eq!(shown.matches("nothing is removed").count(), 1, "{shown}");
            assert!(shown.contains(&parent), "{shown}");
        }
        let target = stage.target("restored").display().to_string();
        let restore = ["restore", &pinned, "--target-dir", &target];
        let code = if part.is_empty() { NOT_FOUND } else { DAMAGED };
        require(stage.fails(&restore), code, &[&pinned, &parent]);
        assert!(!Path::new(&target).exists());
        assert_eq!(files(&layers), without, "nothing is removed");
        fs::rename(&aside, &from).unwrap();
    }
    assert_eq!(files(&layers), before);
    stage.restore("whole", &[&pinned, "--target-type", "immediate"]);
    // Whoever gives it up has the rules decide again.
    fs::rename(layers.join(&parent), &aside).unwrap();
    stage.ok(&["unpin", &pinned]);
    stage.ok(&["expire", "--keep-full", "1", "--ignore-restores"]);
    let left = files(&layers);
    let newest = layers.join(&newest);
    assert!(
        left.iter().all(|file| file.starts_with(&newest)),
        "{full}: {left:?}"
    );
}

/// Names of all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Files that their own maker could not open again.
#[test]
fn a_umask_that_keeps_the_owner_out_keeps_nobody_from_working() {
    let cluster = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false")
        .start()
        .unwrap();
    let program = cluster
        .installed_binary(Path::new(env!("CARGO_BIN_EXE_pgstrata")))
        .unwrap();
    for umask in ["0777", "0277"] {
        let home = cluster.create_dir(&format!("repository-{umask}")).unwrap();
        // Directories are made as well.
        let repository = format!("file://{}", home.join("deep/below").display());
        let run = |words: &str| {
            let mut shell = cluster.command_as_server_user(Path::new("/bin/sh"));
            shell
                .env("PGSTRATA_REPO", &repository)
                .env("PGSTRATA_CLUSTER", "main")
                .env("PGDATA", cluster.pgdata());
            let script = format!("umask {umask}; exec '{}' {words}", program.display());
            let output = shell.args(["-c", &script]).output().unwrap();
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code().unwrap(), log)
        };
        let works = |words: &str| {
            let (code, log) = run(words);
            assert!([0, 3].contains(&code), "{umask} {words}: {code}: {log}");
        };
        works("init");
        works("backup --type full --wal stream");
        works("backup --type incr --wal stream");
        let switch =
            "SELECT pg_walfile_name(pg_create_restore_point('x')) || (pg_switch_wal() > '0/0')";
        let name = cluster.sql("postgres", switch).unwrap()[..24].to_owned();
        let path = cluster.pgdata().join("pg_wal").join(&name);
        works(&format!("archive-push {}", path.display()));
        let got = home.join("got");
        works(&format!("archive-get {name} {}", got.display()));
        works("verify --deep");
        let target = cluster.socket_dir().join(format!("restored-{umask}"));
        works(&format!(
            "restore --target-dir {} --target-type immediate --target-action promote",
            target.display()
        ));
        let restored = Cluster::adopt(Major::V15, &target).start().unwrap();
        restored.wait_promoted(support::PATIENCE).unwrap();
        works("merge --remove-inputs");
        works("expire --keep-full 1");
    }
}

#[test]
fn paths_that_lead_out_of_the_target_are_damage() {
    use pgstrata_layer::manifest;
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let report = stage.backup(&[]);
    let label = support::text(&report, "/label");
    let path = format!(
        "{}/main/layer/{label}/manifest",
        stage.repository.trim_start_matches("file://")
    );
    let original = fs::read(&path).unwrap();
    for evil in ["../evil", "/tmp/evil", "base/../../evil"] {
        let mut forged = manifest::decode(&original).unwrap();
        forged.index[0].first_path = evil.to_owned();
        fs::remove_file(&path).unwrap();
        fs::write(&path, manifest::encode(&forged)).unwrap();
        let target = stage.target("restored").display().to_string();
        require(
            stage.fails(&["restore", "--target-dir", &target]),
            DAMAGED,
            &[label, evil],
        );
        assert!(!stage.target("restored").exists(), "{evil}");
    }
}

/// The program alone in a directory, as if it had been installed there.
fn installed() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("pgstrata");
    copy_program(env!("CARGO_BIN_EXE_pgstrata").as_ref(), &program).unwrap();
    (directory, program)
}

#[test]
fn the_lab_is_the_program_beside_this_one() {
    let (directory, program) = installed();
    let lab = directory.path().join("pgstrata-lab");
    write_script(&lab, "#!/bin/sh\necho \"$0:$*\"; exit 42\n").unwrap();
    let output = Command::new(&program)
        .args([
            "lab",
            "seed",
            "block-io",
            "--help",
            "--output=x",
            "--",
            "a b",
        ])
        .output()
        .unwrap();
    let expected = format!("{}:seed block-io --help --output=x -- a b\n", lab.display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(output.status.code(), Some(42));
}

#[test]
fn a_lab_that_is_not_installed_is_said_to_be_missing() {
    let (directory, program) = installed();
    let output = Command::new(&program)
        .args(["lab", "--help"])
        .env("PATH", directory.path())
        .output()
        .unwrap();
    require(
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        ),
        NOT_FOUND,
        &["pgstrata-lab", "make install"],
    );
}
