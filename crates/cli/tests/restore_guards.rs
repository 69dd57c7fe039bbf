//! What a restore refuses because it would harm another server, or be another state than the one that is meant.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use support::files::copy_all;
use support::standby::follow;
use support::{PATIENCE, Stage, Store, namespace, text};

fn insert(cluster: &Cluster, id: u32) {
    let script = format!("INSERT INTO numbers VALUES ({id})");
    cluster.sql("postgres", &script).unwrap();
}

const ROWS: &str = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM numbers";

fn rows(stage: &Stage, target: &Path) -> String {
    let restored = stage.start_restored(target);
    restored.sql("postgres", ROWS).unwrap()
}

fn stage(major: Major) -> Stage {
    let builder = Cluster::builder(major)
        .initdb_arg("--wal-segsize=1")
        .conf("autovacuum", "off");
    let stage = Stage::archiving(builder, Store::Directory);
    let table = "CREATE TABLE numbers (id int)";
    stage.cluster.sql("postgres", table).unwrap();
    stage
}

/// Ends the segment that `server` writes to and waits until it is archived.
fn archive_all_of(server: &Cluster) {
    let end = server.sql("postgres", "SELECT pg_switch_wal()").unwrap();
    let query = format!(
        "SELECT coalesce(last_archived_wal >= pg_walfile_name('{end}'::pg_lsn - 1), false) FROM pg_stat_archiver"
    );
    server.wait_for("postgres", &query, PATIENCE).unwrap();
}

/// A copy was opened for a test and archived beside its source.
#[test]
fn rule_13_7_a_promoted_copy_is_followed_only_when_told() {
    let stage = stage(Major::V15);
    stage.backup(&["--type", "full"]);
    insert(&stage.cluster, 1);
    stage.archive_all();
    let keep = ["--archive-mode", "keep", "--target-action", "promote"];
    let copy = stage.restore("copy", &keep);
    let copy = Cluster::adopt(Major::V15, &copy).start().unwrap();
    copy.wait_promoted(PATIENCE).unwrap();
    insert(&copy, 100);
    archive_all_of(&copy);
    insert(&stage.cluster, 2);
    stage.archive_all();
    insert(&stage.cluster, 3);
    stage.archive_all();
    let lsn = "SELECT pg_current_wal_lsn()";
    let lsn = stage.cluster.sql("postgres", lsn).unwrap();

    let directory = stage.target("refused").display().to_string();
    let lsn = ["--target-type", "lsn", "--target", &lsn];
    for more in [&[][..], &["--target-type", "standby"], &lsn] {
        let all = [&["restore", "--target-dir", &directory][..], more].concat();
        let (code, log) = stage.fails(&all);
        assert_eq!(code, 19, "{log}");
        let followed = match more.contains(&"standby") {
            true => "--target-timeline latest (",
            false => "--target-timeline 2 (",
        };
        for words in ["branches", "--target-timeline 1 (", followed] {
            assert!(log.contains(words), "{words}: {log}");
        }
        assert!(!Path::new(&directory).exists());
    }
    for (timeline, expected) in [("1", "1 2 3"), ("2", "1 100")] {
        let told = ["--target-timeline", timeline];
        let target = stage.restore(&format!("told-{timeline}"), &told);
        assert_eq!(rows(&stage, &target), expected);
    }
    latest_is_no_layer_of_either_branch(&stage, &copy);
}

/// The word `latest` is not taken for the layer of a copy that was made last, nor for the other.
fn latest_is_no_layer_of_either_branch(stage: &Stage, copy: &Cluster) {
    // One layer before the fork is of both.
    stage.ok(&["pin", "latest"]);
    stage.backup(&["--type", "full"]);
    let data = copy.pgdata().display().to_string();
    let backup = ["backup", "--type", "full", "--pgdata", &data];
    let output = stage.command_beside(copy, &backup).output().unwrap();
    // It may say that another server is backed up under this name.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    // A branch that has ended by then would not be meant.
    insert(&stage.cluster, 4);
    stage.archive_all();
    for words in [
        &["pin", "latest"][..],
        &["annotate", "latest", "a=b"],
        &["merge"],
    ] {
        let (code, log) = stage.fails(words);
        assert_eq!(code, 19, "{words:?}: {log}");
        assert!(log.contains("more than one branch"), "{log}");
    }
}

/// A standby takes over; nothing has to be said to restore what it has.
#[test]
fn a_failover_is_followed_without_being_told() {
    let stage = stage(Major::V18);
    stage.backup(&["--type", "full"]);
    let standby = ["--target-type", "standby", "--archive-mode", "keep"];
    let standby = stage.restore("standby", &standby);
    let standby = follow(&stage, &standby, &stage.cluster.conninfo("postgres"));
    insert(&stage.cluster, 1);
    let arrived = "SELECT count(*) = 1 FROM numbers";
    standby.wait_for("postgres", arrived, PATIENCE).unwrap();
    stage.cluster.stop(StopMode::Fast).unwrap();
    standby.sql("postgres", "SELECT pg_promote()").unwrap();
    standby.wait_promoted(PATIENCE).unwrap();
    insert(&standby, 2);
    archive_all_of(&standby);
    assert_eq!(rows(&stage, &stage.restore("restored", &[])), "1 2");
}

/// The old primary of a failover writes on, and archives nothing. In the archive, what it wrote would stand in the way of every
/// restore that nobody tells a timeline.
#[test]
fn rule_13_7_what_an_old_primary_wrote_on_is_not_to_be_archived() {
    let stage = stage(Major::V15);
    stage.backup(&["--type", "full"]);
    let standby = ["--target-type", "standby", "--archive-mode", "keep"];
    let standby = stage.restore("standby", &standby);
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let broken = stage.cluster.append_conf("archive_command", "false");
    broken.unwrap();
    stage.cluster.start().unwrap();
    let standby = follow(&stage, &standby, &stage.cluster.conninfo("postgres"));
    insert(&stage.cluster, 1);
    let arrived = "SELECT count(*) = 1 FROM numbers";
    standby.wait_for("postgres", arrived, PATIENCE).unwrap();
    standby.sql("postgres", "SELECT pg_promote()").unwrap();
    standby.wait_promoted(PATIENCE).unwrap();
    insert(&standby, 2);
    archive_all_of(&standby);
    for id in [100, 101] {
        insert(&stage.cluster, id);
        let switch = "SELECT pg_switch_wal()";
        stage.cluster.sql("postgres", switch).unwrap();
    }
    stage.cluster.stop(StopMode::Fast).unwrap();

    let history = standby.pgdata().join("pg_wal/00000002.history");
    let history = fs::read_to_string(history).unwrap();
    let left = history.split_whitespace().nth(1).unwrap();
    let pgdata = stage.pgdata();
    let restore = ["restore", "--target-dir", &pgdata, "--delta"];
    let restore = [&restore[..], &["--target-type", "standby"]].concat();
    let (code, log) = stage.fails(&restore);
    assert_eq!(code, 13, "{log}");
    let of_a_branch = format!("timeline 2 left timeline 1 at {left}");
    for words in ["never archived", &of_a_branch, "Copy pg_wal away"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(!log.contains("archive-push"), "{log}");
    let status = stage.cluster.pgdata().join("pg_wal/archive_status");
    for entry in fs::read_dir(status).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "ready") {
            fs::remove_file(&path).unwrap();
        }
    }
    stage.ok(&restore);
    assert_eq!(rows(&stage, &stage.restore("restored", &[])), "1 2");
}

#[test]
fn rule_13_7_a_damaged_newest_layer_is_named_and_passed_over_only_when_told() {
    let stage = stage(Major::V15);
    let full = stage.backup(&["--type", "full"]);
    insert(&stage.cluster, 1);
    let newest = stage.backup(&["--type", "incr"]);
    let (full, newest) = (text(&full, "/label"), text(&newest, "/label"));
    stage.archive_all();
    let root = stage.repository.strip_prefix("file://").unwrap();
    let manifest = PathBuf::from(format!("{root}/main/layer/{newest}/manifest"));
    let whole = fs::read(&manifest).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&manifest, &damaged).unwrap();

    let directory = stage.target("restored").display().to_string();
    let restore = [
        "restore",
        "--target-dir",
        &directory,
        "--target-type",
        "immediate",
    ];
    let (code, log) = stage.fails(&restore);
    assert_eq!(code, 14, "{log}");
    assert!(
        log.contains(newest) && log.contains("--skip-damaged"),
        "{log}"
    );
    let skipping = [
        &restore[..],
        &["--skip-damaged", "--target-action", "promote"],
    ]
    .concat();
    let report = stage.json(&skipping);
    assert_eq!(text(&report, "/label"), full);
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("was passed over") && notes.contains("is lost"),
        "{notes}"
    );
    let restored = stage.start_restored(Path::new(&directory));
    assert_eq!(restored.sql("postgres", ROWS).unwrap(), "");
    // The full layer is not newer than what is chosen here: no matter.
    fs::write(&manifest, &whole).unwrap();
    stage.restore("whole", &[]);
}

#[test]
fn a_restored_copy_does_not_archive_and_says_so() {
    let stage = stage(Major::V15);
    let commands = ["recovery_end_command", "archive_cleanup_command"];
    let trace = stage.target("trace");
    for name in commands {
        let command = format!("touch {}", trace.display());
        stage.cluster.append_conf(name, &command).unwrap();
    }
    let odd = "ALTER SYSTEM SET application_name = 'x'";
    stage.cluster.sql("postgres", odd).unwrap();
    // PostgreSQL writes what it is given, in whatever encoding.
    let auto = stage.cluster.pgdata().join("postgresql.auto.conf");
    let mut contents = fs::read(&auto).unwrap();
    contents.extend_from_slice(b"pgstrata.note = 'm\xfcller'\n");
    fs::write(&auto, &contents).unwrap();
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    for (mode, expected) in [("off", "off"), ("keep", "on")] {
        let directory = stage.target(mode).display().to_string();
        let mut arguments = vec!["restore", "--target-dir", &directory];
        arguments.extend(["--target-action", "promote"]);
        if mode == "keep" {
            arguments.extend(["--archive-mode", "keep"]);
        }
        let said = stage.ok(&arguments);
        assert_eq!(
            said.contains("archiving is off in this copy"),
            mode == "off",
            "{said}"
        );
        let conf = fs::read(Path::new(&directory).join("postgresql.auto.conf")).unwrap();
        let note = b"pgstrata.note = 'm\xfcller'\n";
        assert!(conf.windows(note.len()).any(|part| part == note));
        let text = String::from_utf8_lossy(&conf);
        let comment = text.contains("# archiving is off in this restored copy");
        assert_eq!(comment, mode == "off", "{text}");
        let copy = Cluster::adopt(Major::V15, Path::new(&directory))
            .start()
            .unwrap();
        copy.wait_promoted(PATIENCE).unwrap();
        let setting = "SELECT current_setting('archive_mode')";
        assert_eq!(copy.sql("postgres", setting).unwrap(), expected);
        copy.stop(StopMode::Fast).unwrap();
    }
    assert!(!trace.exists(), "a command of the source ran in the copy");
}

/// Runs the program in namespaces of its own, as another container would.
fn elsewhere(stage: &Stage, namespaces: &[&str], arguments: &[&str]) -> Output {
    let owner = fs::metadata(stage.cluster.pgdata()).unwrap();
    let mut command = stage.command(arguments);
    command.current_dir(stage.cluster.socket_dir());
    let output = namespace::apart(&command, &owner, namespaces).output();
    let output = output.unwrap();
    namespace::require_apart(&String::from_utf8_lossy(&output.stderr));
    output
}

fn refused(output: &Output, words: &str) {
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(13), "{log}");
    assert!(log.contains(words), "{words}: {log}");
}

#[test]
fn rule_13_4_a_server_of_another_pid_namespace_is_not_written_under() {
    let stage = stage(Major::V15);
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    let pgdata = stage.pgdata();
    let restore = [
        "restore",
        "--target-dir",
        &pgdata,
        "--delta",
        "--target-type",
        "immediate",
    ];
    let vouched = [&restore[..], &["--server-is-stopped"]].concat();
    let pid_file = stage.cluster.pgdata().join("postmaster.pid");
    let alive = || stage.cluster.sql("postgres", "CHECKPOINT").unwrap();

    // Its process is not seen; its shared memory is, and without that its socket. No word helps against these.
    for namespaces in [&[][..], &["--ipc"]] {
        for arguments in [&restore[..], &vouched[..]] {
            refused(
                &elsewhere(&stage, namespaces, arguments),
                "a server runs in",
            );
            alive();
        }
    }
    // A server that finds its file changed shuts down; this one does not look.
    let postmaster = stage.cluster.postmaster().unwrap();
    let signal = |signal: &str| {
        let id = postmaster.as_raw_nonzero().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    // Nothing but the file, and the file that says where the socket is has lost its end.
    let whole = fs::read(&pid_file).unwrap();
    let first = whole.iter().position(|&byte| byte == b'\n').unwrap();
    fs::write(&pid_file, &whole[..=first]).unwrap();
    refused(&elsewhere(&stage, &["--ipc"], &restore), "may be running");
    fs::write(&pid_file, b"").unwrap();
    refused(&elsewhere(&stage, &["--ipc"], &restore), "names no process");
    // Without the file: the process, seen or not, and the control file.
    fs::remove_file(&pid_file).unwrap();
    refused(&stage.run(&vouched), "a server runs in");
    refused(&elsewhere(&stage, &[], &restore), "may be running");
    refused(&elsewhere(&stage, &["--ipc"], &restore), "in production");
    fs::write(&pid_file, &whole).unwrap();
    fs::set_permissions(
        &pid_file,
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    stage.cluster.own(&pid_file).unwrap();
    signal("-CONT");
    alive();

    // A server that was killed leaves its file; somebody has to say that it is dead.
    stage.cluster.kill9().unwrap();
    refused(&stage.run(&restore), "--server-is-stopped");
    let (code, log) = (
        stage.run(&vouched).status.code(),
        "the restore of a killed server",
    );
    assert_eq!(code, Some(0), "{log}");
    stage.cluster.start().unwrap();
}

/// A data directory is copied with its links, and the copy restored in place.
#[test]
fn rule_13_10_a_copy_does_not_reach_the_tablespaces_of_its_original() {
    let stage = stage(Major::V15);
    let space = stage.cluster.create_tablespace("space").unwrap();
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE there TABLESPACE space AS SELECT generate_series(1, 1000) AS id");
    stage.backup(&["--type", "full"]);
    let late = stage.cluster.create_tablespace("late").unwrap();
    sql("CREATE TABLE later TABLESPACE late AS SELECT generate_series(1, 1000) AS id");
    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let copy = stage.target("copy");
    copy_all(stage.cluster.pgdata(), &copy);
    stage.cluster.start().unwrap();

    let directory = copy.display().to_string();
    let restore = [
        "restore",
        "--target-dir",
        &directory,
        "--delta",
        "--target-type",
        "immediate",
    ];
    let (code, log) = stage.fails(&restore);
    assert_eq!(code, 13, "{log}");
    assert!(
        log.contains("pg_tblspc/") && log.contains("--links-are-own"),
        "{log}"
    );
    let map = format!("{}={}", space.display(), stage.target("moved").display());
    let mapped = [&restore[..], &["--tablespace-map", &map]].concat();
    // The other link is of a tablespace that the layer does not have.
    let (code, log) = stage.fails(&mapped);
    assert_eq!(code, 13, "{log}");
    assert!(log.contains(&late.display().to_string()), "{log}");
    // Whatever somebody says: the original runs.
    for told in [&restore[..], &mapped] {
        let (code, log) = stage.fails(&[told, &["--links-are-own"]].concat());
        assert_eq!(code, 13, "{log}");
        assert!(log.contains("is in use: a server runs in"), "{log}");
    }
    // The original's directory is not to be had by naming it.
    let same = format!("{0}={0}", space.display());
    stage.fails(&[&restore[..], &["--tablespace-map", &same]].concat());
    for entry in fs::read_dir(copy.join("pg_tblspc")).unwrap() {
        let link = entry.unwrap().path();
        if fs::read_link(&link).unwrap() == late {
            fs::remove_file(&link).unwrap();
        }
    }
    stage.ok(&[&mapped[..], &["--target-action", "promote"]].concat());
    let restored = Cluster::adopt(Major::V15, &copy).start().unwrap();
    restored.wait_promoted(PATIENCE).unwrap();
    let count = "SELECT count(*) FROM there";
    assert_eq!(restored.sql("postgres", count).unwrap(), "1000");
    let archive_mode = "SELECT current_setting('archive_mode')";
    assert_eq!(restored.sql("postgres", archive_mode).unwrap(), "off");
    assert_eq!(sql(count), "1000");
    assert_eq!(sql("SELECT count(*) FROM later"), "1000");
    stage.cluster.amcheck().unwrap();
}

/// A backup of that cluster would store it, and a restore in place would remove it.
#[test]
fn nothing_is_restored_among_the_files_of_a_cluster() {
    let stage = stage(Major::V15);
    let space = stage.cluster.create_tablespace("space").unwrap();
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    let inside = Path::new(&stage.pgdata()).join("x");
    let version = fs::read_dir(&space).unwrap().next().unwrap().unwrap();
    let below = version.path().join("x").display().to_string();
    let x = inside.display().to_string();
    let target = stage.target("restored").display().to_string();
    let free = format!("{}={}", space.display(), stage.target("free").display());
    let taken = format!("{}={x}", space.display());
    let free = ["--tablespace-map", &free];
    for (rest, words) in [
        (&["--target-dir", &x][..], "the data directory of a cluster"),
        (&["--target-dir", &target, "--wal-dir", &x], "the data dir"),
        (&["--target-dir", &target, "--config-dir", &x], "the data d"),
        (&["--target-dir", &below], "the directory of a tablespace"),
    ] {
        let (code, log) = stage.fails(&[&["restore"], rest, &free].concat());
        assert_eq!(code, 13, "{rest:?}: {log}");
        assert!(log.contains("lies inside") && log.contains(words), "{log}");
    }
    let map = ["--target-dir", &target, "--tablespace-map", &taken];
    let (code, log) = stage.fails(&[&["restore"], &map[..]].concat());
    assert_eq!(code, 13, "{log}");
    assert!(log.contains(&x) && log.contains("outside of it"), "{log}");
    for made in [&x, &below, &target] {
        assert!(!Path::new(made).exists(), "{made}");
    }
    // The cluster itself is restored in place, its tablespace too.
    stage.cluster.stop(StopMode::Fast).unwrap();
    let pgdata = stage.pgdata();
    let own = ["restore", "--target-dir", &pgdata, "--delta"];
    stage.ok(&[&own[..], &["--target-type", "immediate"]].concat());
}

/// Whoever may write there may not set the mode at the end. The test gives a directory to root, so it is root.
#[test]
fn a_directory_of_another_user_is_refused_before_anything_is_written() {
    let stage = stage(Major::V15);
    let space = stage.cluster.create_tablespace("space").unwrap();
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    let theirs = stage.cluster.create_dir("theirs").unwrap();
    chown(&theirs, Some(0), Some(0)).unwrap();
    fs::set_permissions(&theirs, Permissions::from_mode(0o777)).unwrap();
    let at = theirs.display().to_string();
    let map = |to: &Path| format!("{}={}", space.display(), to.display());
    let (taken, free) = (map(&theirs), map(&stage.target("free")));
    let words = [at.as_str(), "belongs to another user", "chown"];
    for arguments in [
        &["--tablespace-map", &taken][..],
        &["--tablespace-map", &free, "--wal-dir", &at],
    ] {
        for more in [&["--dry-run"][..], &[]] {
            stage.refuses_to_restore(&[arguments, more].concat(), 13, &words);
        }
    }
    let data = ["restore", "--target-dir", &at, "--tablespace-map", &free];
    let (code, log) = stage.fails(&data);
    assert_eq!(code, 13, "{log}");
    assert!(words.iter().all(|words| log.contains(words)), "{log}");
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
    assert!(!stage.target("free").exists());
}

/// The server could not run it, and would run whatever has the name that a text can hold.
#[test]
fn a_program_whose_path_is_no_text_restores_nothing() {
    let stage = stage(Major::V15);
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    let odd = stage
        .cluster
        .socket_dir()
        .join(OsStr::from_bytes(b"odd-\xff"));
    fs::create_dir(&odd).unwrap();
    let program = odd.join("pgstrata");
    fs::copy(&stage.program, &program).unwrap();
    let target = stage.target("restored");
    let mut command = stage.cluster.command_as_server_user(&program);
    command.args(["--repo", &stage.repository, "--cluster", "main", "restore"]);
    let output = command.arg("--target-dir").arg(&target).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("is not UTF-8"), "{log}");
    assert!(!target.exists());
}

/// Root restores into directories that it makes: all of it belongs to whom the data directory belongs.
#[test]
fn what_root_restores_belongs_to_the_owner_of_the_data_directory() {
    let stage = stage(Major::V15);
    let space = stage.cluster.create_tablespace("space").unwrap();
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE there TABLESPACE space AS SELECT generate_series(1, 1000) AS id");
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    let outside = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(outside.path(), mode).unwrap();
    let data = stage.cluster.create_dir("restored").unwrap();
    let (moved, wal) = (
        outside.path().join("deep/space"),
        outside.path().join("wal"),
    );
    let mut command = Command::new(&stage.program);
    command.args(["--repo", &stage.repository, "--cluster", "main", "restore"]);
    command.args(["--target-dir", &data.display().to_string()]);
    command.args(["--wal-dir", &wal.display().to_string()]);
    let map = format!("{}={}", space.display(), moved.display());
    command.args(["--target-type", "immediate", "--target-action", "promote"]);
    let output = command.args(["--tablespace-map", &map]).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let owner = fs::metadata(&data).unwrap().uid();
    for path in [
        &moved,
        &wal,
        &outside.path().join("deep"),
        &wal.join("archive_status"),
    ] {
        assert_eq!(
            fs::metadata(path).unwrap().uid(),
            owner,
            "{}",
            path.display()
        );
    }
    let restored = Cluster::adopt(Major::V15, &data).start().unwrap();
    restored.wait_promoted(PATIENCE).unwrap();
    let count = "SELECT count(*) FROM there";
    assert_eq!(restored.sql("postgres", count).unwrap(), "1000");
}

/// Other users see the command line of every process.
#[test]
fn a_secret_on_the_command_line_is_refused_and_shown_nowhere() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::S3);
    stage.backup(&["--type", "full"]);
    stage.archive_all();
    let secret = stage.s3_secret();
    let target = stage.target("restored");
    let restore = ["restore", "--target-dir", &target.display().to_string()];
    for (key, value) in [
        ("aws_secret_access_key", secret.to_owned()),
        ("SECRET_ACCESS_KEY", secret.to_owned()),
        ("session_token", secret.to_owned()),
        // One within a URL.
        ("proxy_url", format!("http://me:{secret}@127.0.0.1:1")),
    ] {
        let option = format!("{key}={value}");
        let options = ["--output", "json", "--storage", &option];
        let copy = ["copy", "--to", "s3://elsewhere/p", "--to-storage", &option];
        for (words, advice) in [
            ([&options[..], &restore].concat(), "--credentials"),
            (copy.to_vec(), "--to-credentials"),
        ] {
            let output = stage.run(&words);
            let log = String::from_utf8_lossy(&output.stderr);
            let told = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(2), "{log}");
            let says = format!("the secret {key} stands on the command line");
            assert!(log.contains(&says) && log.contains(advice), "{log}");
            assert!(
                !log.contains(secret) && !told.contains(secret),
                "{log}{told}"
            );
            assert!(!target.exists());
        }
    }
    // The name of a file that holds one is none.
    let file = stage.target("token");
    fs::write(&file, "nothing").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    stage.cluster.own(&file).unwrap();
    let option = format!("secret_access_key_file={}", file.display());
    let (_, log) = stage.fails(&["--storage", &option, "info"]);
    assert!(!log.contains("stands on the command line"), "{log}");
}
