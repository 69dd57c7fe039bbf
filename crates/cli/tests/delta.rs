//! Restores onto a stopped server's own data directory.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};
use support::{PATIENCE, Stage, Store, namespace, number, text};

/// The source itself goes back to a moment before a load that it would rather not have had.
fn a_server_goes_back_in_place(major: Major, store: Store) {
    let stage = Stage::archiving(Cluster::builder(major), store);
    stage.cluster.pgbench(&["-i", "-q", "-s", "6"]).unwrap();
    stage.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-n", "-t", "100"]).unwrap();
    stage.backup(&["--type", "incr"]);
    stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
    let restore_point = "SELECT pg_create_restore_point('moment')";
    let lsn = stage.cluster.sql("postgres", restore_point).unwrap();
    let before = stage.cluster.dump().unwrap();
    let regret = "DELETE FROM pgbench_tellers; CREATE TABLE stray AS SELECT generate_series(1, 1000); VACUUM; SELECT pg_switch_wal()";
    stage.cluster.pgbench(&["-n", "-t", "100"]).unwrap();
    stage.cluster.sql("postgres", regret).unwrap();

    let pgdata = stage.pgdata();
    let target = [
        "restore",
        "--target-dir",
        &pgdata,
        "--delta",
        "--target-type",
        "lsn",
        "--target",
        &lsn,
        "--target-action",
        "promote",
    ];
    let running = [
        "restore",
        "--target-dir",
        &pgdata,
        "--delta",
        "--target-type",
        "immediate",
    ];
    let (code, why) = stage.fails(&running);
    assert_eq!(code, 13, "{why}");
    assert!(why.contains("runs in"), "{why}");
    stage.cluster.stop(StopMode::Fast).unwrap();
    let report = stage.json(&target);
    assert_eq!(text(&report, "/method"), "delta");
    let (read, written) = (
        number(&report, "/read_bytes"),
        number(&report, "/written_bytes"),
    );
    assert!(read > 80 << 20, "{read}");
    assert!(0 < written && written * 4 < read, "{written} of {read}");
    assert!(number(&report, "/removed") > 0);
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
    require_same_dump(&before, &stage.cluster.dump().unwrap()).unwrap();
    stage.cluster.amcheck().unwrap();
    stage.cluster.check_visibility_maps().unwrap();
}

#[test]
fn a_server_goes_back_in_place_on_15_from_s3() {
    a_server_goes_back_in_place(Major::V15, Store::S3);
}

#[test]
fn a_server_goes_back_in_place_on_18() {
    a_server_goes_back_in_place(Major::V18, Store::Directory);
}

/// A standby that has fallen behind, with a tablespace that went elsewhere, catches up in place; layer over layer
/// gives what the overlay gives.
#[test]
fn a_lagging_standby_is_refreshed_in_place() {
    let stage = Stage::archiving(Cluster::builder(Major::V18), Store::Directory);
    let space = stage.cluster.create_tablespace("away").unwrap();
    stage.cluster.pgbench(&["-i", "-q", "-s", "2"]).unwrap();
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE there TABLESPACE away AS SELECT generate_series(1, 20000) AS id");
    stage.backup(&["--type", "full"]);
    let moved = stage.target("moved-space");
    let map = format!("{}={}", space.display(), moved.display());
    let standby = stage.restore(
        "standby",
        &["--target-type", "standby", "--tablespace-map", &map],
    );
    let start = || {
        let conf = Cluster::adopt(Major::V18, &standby).conf("archive_mode", "off");
        conf.start().unwrap()
    };
    start().stop(StopMode::Fast).unwrap();

    sql("UPDATE there SET id = -id WHERE id % 1000 = 0; CREATE TABLE late AS SELECT 1");
    stage.cluster.pgbench(&["-n", "-t", "100"]).unwrap();
    stage.backup(&["--type", "incr"]);
    let directory = standby.display().to_string();
    let arguments = [
        "restore",
        "--target-dir",
        &directory,
        "--delta",
        "--target-type",
        "standby",
        "--links-are-own",
    ];
    let report = stage.json(&arguments);
    let (read, written) = (
        number(&report, "/read_bytes"),
        number(&report, "/written_bytes"),
    );
    assert!(0 < written && written * 3 < read, "{written} of {read}");
    let refreshed = start();
    let ask =
        "SELECT (SELECT count(*) FROM late), (SELECT sum(id) FROM there), pg_is_in_recovery()";
    refreshed
        .wait_for(
            "postgres",
            "SELECT to_regclass('late') IS NOT NULL",
            PATIENCE,
        )
        .unwrap();
    let expected = sql(&ask.replace("pg_is_in_recovery()", "true"));
    assert_eq!(refreshed.sql("postgres", ask).unwrap(), expected);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A file of the server's user in its data directory, anew whatever the mode of an earlier one was.
fn put(stage: &Stage, name: &str, text: &str, mode: u32) {
    let path = stage.cluster.pgdata().join(name);
    let _ = fs::remove_file(&path);
    fs::write(&path, text).unwrap();
    stage.cluster.own(&path).unwrap();
    set_mode(&path, mode);
}

fn put_directory(stage: &Stage, name: &str) {
    let path = stage.cluster.pgdata().join(name);
    fs::create_dir(&path).unwrap();
    stage.cluster.own(&path).unwrap();
}

fn in_place(pgdata: &str) -> [&str; 8] {
    [
        "restore",
        "--target-dir",
        pgdata,
        "--delta",
        "--target-type",
        "immediate",
        "--target-action",
        "promote",
    ]
}

#[test]
fn a_mode_that_keeps_the_owner_from_writing_stops_no_restore() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let at = |name: &str| stage.cluster.pgdata().join(name);
    put_directory(&stage, "scripts");
    let files = ["server.key", "linked", "closed", "same", "scripts/run.sh"];
    for name in files {
        put(&stage, name, "as it was", 0o400);
    }
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();

    put(&stage, "server.key", "another", 0o400);
    put(&stage, "linked", "precious", 0o400);
    let copy = stage.target("copy-of-linked");
    fs::hard_link(at("linked"), &copy).unwrap();
    put(&stage, "closed", "another", 0o000);
    put(&stage, "scripts/run.sh", "another!!", 0o500);
    put(&stage, "scripts/stray", "new", 0o400);
    put_directory(&stage, "scripts/deep");
    put(&stage, "scripts/deep/stray", "new", 0o000);
    put_directory(&stage, "base/stray");
    for file in ["global/pg_control", "PG_VERSION", "postgresql.auto.conf"] {
        set_mode(&at(file), 0o400);
    }
    for directory in ["scripts/deep", "scripts", "base/stray", "base"] {
        set_mode(&at(directory), 0o500);
    }
    for directory in ["global", "pg_wal", ""] {
        set_mode(&at(directory), 0o500);
    }
    let pgdata = stage.pgdata();
    let dry = [&in_place(&pgdata)[..], &["--dry-run"]].concat();
    stage.ok(&dry);
    assert_eq!(mode(&at("scripts")), 0o500);
    stage.ok(&in_place(&pgdata));

    for name in files {
        assert_eq!(fs::read_to_string(at(name)).unwrap(), "as it was", "{name}");
        assert_eq!(mode(&at(name)), 0o600, "{name}");
    }
    for gone in ["scripts/stray", "scripts/deep", "base/stray"] {
        assert!(!at(gone).exists(), "{gone}");
    }
    for directory in ["", "base", "global", "pg_wal", "scripts"] {
        assert_eq!(mode(&at(directory)) & 0o700, 0o700, "{directory}");
    }
    // The copy shares neither contents nor mode with what was restored.
    assert_eq!(fs::read_to_string(&copy).unwrap(), "precious");
    assert_eq!(mode(&copy), 0o400);
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
}

/// The cluster could not be started from the moment its control file is gone. The test gives files to root, so it is root.
#[test]
fn what_another_user_owns_is_refused_before_anything_is_changed() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let at = |name: &str| stage.cluster.pgdata().join(name);
    put_directory(&stage, "scripts");
    put(&stage, "server.key", "as it was", 0o644);
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    put(&stage, "server.key", "another", 0o644);
    put(&stage, "stray", "new", 0o644);
    let control = fs::read(at("global/pg_control")).unwrap();

    let pgdata = stage.pgdata();
    let restore = in_place(&pgdata);
    for name in ["server.key", "scripts"] {
        chown(at(name), Some(0), Some(0)).unwrap();
        for more in [&["--dry-run"][..], &[]] {
            let (code, log) = stage.fails(&[&restore[..], more].concat());
            assert_eq!(code, 13, "{log}");
            let path = format!("\"{}\"", at(name).display());
            for words in [&path, "belongs to another user", "chown"] {
                assert!(log.contains(words), "{words}: {log}");
            }
            assert!(at("stray").exists() && !at("pgstrata.restore-incomplete").exists());
            assert_eq!(fs::read(at("global/pg_control")).unwrap(), control);
        }
        stage.cluster.own(&at(name)).unwrap();
    }
    // Whoever may write to a file of another user may still not set its mode.
    chown(at("server.key"), Some(0), Some(0)).unwrap();
    set_mode(&at("server.key"), 0o666);
    stage.ok(&restore);
    assert_eq!(fs::read_to_string(at("server.key")).unwrap(), "as it was");
    assert_eq!(mode(&at("server.key")), 0o644);
    assert!(!at("stray").exists());
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
}

/// Runs the words after `$2` as the owner of the directory or file `$1`, which is mounted at `$2` for them alone.
const WITH_A_MOUNT: &str = r#"
mounted=$1 place=$2; shift 2
user=$(stat -c %u "$mounted") group=$(stat -c %g "$mounted")
mount --bind "$mounted" "$place"
test "$user" = "$(id -u)" || set -- setpriv --reuid "$user" --regid "$group" --clear-groups "$@"
code=0; "$@" || code=$?
umount "$place"
exit "$code"
"#;

/// The code of a command that sees `mounted` at `place`, and what it logs.
fn with_a_mount(
    stage: &Stage,
    (mounted, place): (&Path, &Path),
    command: &[&str],
) -> (i32, String) {
    let paths = [mounted, place, &stage.program].map(|path| path.display().to_string());
    let url = format!("--repo={}", stage.repository);
    let words = paths.iter().map(String::as_str);
    let words: Vec<&str> = words.chain([&*url, "--cluster=main"]).collect();
    let mut run = namespace::with_own_mounts(WITH_A_MOUNT, &[&words[..], command].concat());
    let output = run.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    namespace::require_apart(&log);
    (output.status.code().unwrap(), log)
}

/// It could not be removed, and what is mounted there would have been emptied by then.
#[test]
fn what_is_mounted_where_the_layer_has_nothing_is_refused_before_anything_is_changed() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let at = |name: &str| stage.cluster.pgdata().join(name);
    put_directory(&stage, "scripts");
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    put_directory(&stage, "archive");
    put(&stage, "stray", "new", 0o644);
    let mounted = stage.cluster.create_dir("mounted").unwrap();
    let precious = mounted.join("precious");
    fs::write(&precious, "x").unwrap();
    stage.cluster.own(&precious).unwrap();
    let control = fs::read(at("global/pg_control")).unwrap();

    let pgdata = stage.pgdata();
    let restore = in_place(&pgdata);
    for more in [&["--dry-run"][..], &[]] {
        let words = [&restore[..], more].concat();
        let (code, log) = with_a_mount(&stage, (&mounted, &at("archive")), &words);
        assert_eq!(code, 13, "{log}");
        let path = format!("\"{}\"", at("archive").display());
        for words in [&path, "is mounted there", "Unmount it"] {
            assert!(log.contains(words), "{words}: {log}");
        }
        assert!(at("stray").exists() && !at("pgstrata.restore-incomplete").exists());
        assert_eq!(fs::read(at("global/pg_control")).unwrap(), control);
        assert!(precious.exists(), "{log}");
    }
    // Where the layer has a directory, another file system may hold that.
    fs::remove_dir(at("archive")).unwrap();
    let (code, log) = with_a_mount(&stage, (&mounted, &at("scripts")), &restore);
    assert_eq!(code, 0, "{log}");
    assert!(!precious.exists() && !at("stray").exists());
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
}

/// Neither could be removed, and the restore would have come to that when the cluster was taken apart.
#[test]
fn what_is_mounted_where_the_restore_puts_something_else_is_refused_before_anything_is_changed() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let at = |name: &str| stage.cluster.pgdata().join(name);
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    put(&stage, "stray", "new", 0o644);
    let volume = stage.cluster.create_dir("volume").unwrap();
    let (precious, conf) = (volume.join("precious"), volume.join("conf"));
    for file in [&precious, &conf] {
        fs::write(file, "# precious\n").unwrap();
        stage.cluster.own(file).unwrap();
    }
    let control = fs::read(at("global/pg_control")).unwrap();

    let pgdata = stage.pgdata();
    let restore = in_place(&pgdata);
    let wal = stage.target("new-wal").display().to_string();
    let elsewhere = [&restore[..], &["--wal-dir", &wal]].concat();
    for (mounted, name, words) in [
        (&volume, "pg_wal", &elsewhere[..]),
        (&conf, "postgresql.conf", &restore[..]),
        (&conf, "postgresql.auto.conf", &restore[..]),
    ] {
        for more in [&["--dry-run"][..], &[]] {
            let words = [words, more].concat();
            let (code, log) = with_a_mount(&stage, (mounted, &at(name)), &words);
            assert_eq!(code, 13, "{name}: {log}");
            let path = format!("\"{}\"", at(name).display());
            for words in [&path, "is mounted there", "Unmount it"] {
                assert!(log.contains(words), "{words}: {log}");
            }
            assert!(at("stray").exists() && !at("pgstrata.restore-incomplete").exists());
            assert_eq!(fs::read(at("global/pg_control")).unwrap(), control);
            assert_eq!(fs::read_to_string(&precious).unwrap(), "# precious\n");
            assert_eq!(fs::read_to_string(&conf).unwrap(), "# precious\n");
            assert!(!Path::new(&wal).exists(), "{log}");
        }
    }
    stage.ok(&elsewhere);
    assert!(at("pg_wal").is_symlink());
    stage.cluster.start().unwrap();
    stage.cluster.wait_promoted(PATIENCE).unwrap();
}

/// The archiver of its primary had failed, and then the primary was lost: what the standby has received is the only copy.
#[test]
fn wal_that_only_a_standby_has_received_is_not_deleted() {
    let builder = Cluster::builder(Major::V15).conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    stage.backup(&["--type", "full"]);
    let directory = stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(Major::V15, &directory)
        .conf("archive_mode", "off")
        .conf("primary_conninfo", &stage.cluster.conninfo("postgres"))
        .start()
        .unwrap();
    let streams = "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')";
    standby.wait_for("postgres", streams, PATIENCE).unwrap();
    stage
        .cluster
        .append_conf("archive_command", "/bin/false")
        .unwrap();
    stage.cluster.reload().unwrap();
    sql("CREATE TABLE late AS SELECT generate_series(1, 1000) AS id");
    let first = sql("SELECT pg_walfile_name(pg_current_wal_lsn())");
    sql("SELECT pg_switch_wal()");
    sql("INSERT INTO late VALUES (0); SELECT pg_switch_wal()");
    sql("INSERT INTO late VALUES (-1)");
    let end = sql("SELECT pg_current_wal_lsn()");
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{end}'");
    standby.wait_for("postgres", &replayed, PATIENCE).unwrap();
    standby.stop(StopMode::Fast).unwrap();
    stage.cluster.stop(StopMode::Immediate).unwrap();

    let (to, wal) = (directory.display().to_string(), directory.join("pg_wal"));
    let restore = ["restore", "--target-dir", &to, "--delta"];
    let is_there = || wal.join(&first).exists() && directory.join("global/pg_control").exists();
    for more in [&["--dry-run"][..], &["--target-type", "immediate"], &[]] {
        let (code, log) = stage.fails(&[&restore[..], more].concat());
        assert_eq!(code, 13, "{log}");
        assert!(
            log.contains(&format!("2 segments in \"{to}/pg_wal\"")),
            "{log}"
        );
        assert!(log.contains(&first) && is_there(), "{log}");
    }
    let again = ["--target-type", "standby", "--dry-run"];
    let planned = stage.json(&[&restore[..], &again].concat());
    assert!(
        planned["notes"]
            .to_string()
            .contains("only a primary that has them"),
        "{planned}"
    );
    for mark in fs::read_dir(wal.join("archive_status")).unwrap() {
        let mark = mark.unwrap().file_name().into_string().unwrap();
        if let Some(name) = mark.strip_suffix(".done").filter(|name| **name >= *first) {
            stage.ok(&["archive-push", &wal.join(name).display().to_string()]);
        }
    }
    stage.ok(&restore);
    let restored = Cluster::adopt(Major::V15, &directory).start().unwrap();
    restored.wait_promoted(PATIENCE).unwrap();
    assert_eq!(
        restored
            .sql("postgres", "SELECT count(*) FROM late")
            .unwrap(),
        "1001"
    );
}
