//! How `archive-get` and `archive-push` end: 1 is said of the end of the archive alone, 0 of a file that is there.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use pgstrata_testbed::cluster::{Cluster, Major};
use pgstrata_testbed::s3::S3Server;
use support::{Stage, Store, files, process};

const STOP: i32 = 255;
const END: i32 = 1;
const DAMAGED: i32 = 14;

/// Segments of a mebibyte, all of which are archived: first, last.
fn archived(store: Store) -> (Stage, Vec<String>) {
    let builder = Cluster::builder(Major::V15).initdb_arg("--wal-segsize=1");
    let stage = Stage::archiving(builder, store);
    for _ in 0..6 {
        finish_segment(&stage);
    }
    let query = "SELECT last_archived_wal FROM pg_stat_archiver";
    let last = stage.cluster.sql("postgres", query).unwrap();
    let number = u64::from_str_radix(&last[16..], 16).unwrap();
    let names = (number - 3..=number + 2).map(|n| format!("{}{n:08X}", &last[..16]));
    (stage, names.collect())
}

/// A quiet server does not switch: there must be something in the segment.
fn finish_segment(stage: &Stage) {
    let query = "SELECT pg_create_restore_point('x')";
    stage.cluster.sql("postgres", query).unwrap();
    stage.archive_all();
}

fn repository(stage: &Stage) -> PathBuf {
    PathBuf::from(stage.repository.trim_start_matches("file://"))
}

fn object(stage: &Stage, name: &str) -> PathBuf {
    repository(stage).join("main/wal/00000001").join(name)
}

/// Runs the program in a shell after `setting`, with `words`, redirections among them.
fn in_shell(stage: &Stage, setting: &str, words: &str) -> Output {
    let mut shell = stage.cluster.command_as_server_user(Path::new("/bin/sh"));
    shell
        .env("PGSTRATA_REPO", &stage.repository)
        .env("PGSTRATA_CLUSTER", "main")
        .env("PGSTRATA_HOLE_TIMEOUT", "0s");
    let script = format!("{setting} exec '{}' {words}", stage.program.display());
    shell.args(["-c", &script]).output().unwrap()
}

/// Exit code as a shell says it, which is what the server sees.
fn code(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    let signal = output.status.signal().map(|signal| 128 + signal);
    signal.or(output.status.code()).unwrap()
}

/// What recovery asks for: a segment that is there, and the one behind the last.
struct Asked<'a> {
    stage: &'a Stage,
    there: &'a str,
    to: &'a str,
    get: String,
    get_end: String,
}

impl Asked<'_> {
    /// Runs what must stop recovery.
    fn stops(&self, setting: &str, words: &str) {
        let output = in_shell(self.stage, setting, words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let ended = code(&output);
        assert!(ended >= 126, "{setting} {words}: {ended}: {said}");
        assert!(!Path::new(self.to).exists(), "{setting} {words}");
    }
}

#[test]
fn rule_13_6_every_way_to_end_but_one_stops_recovery() {
    let (stage, names) = archived(Store::Directory);
    let (there, end) = (&names[0], names.last().unwrap());
    let scratch = stage.cluster.create_dir("scratch").unwrap();
    let to = scratch.join("RECOVERYXLOG").display().to_string();
    let asked = Asked {
        stage: &stage,
        there,
        to: &to,
        get: format!("archive-get {there} {to}"),
        get_end: format!("archive-get {end} {to}"),
    };
    wrong_words_stop(&asked);
    wrong_configuration_stops(&asked, &scratch);
    what_cannot_be_had_stops(&asked);
    what_cannot_be_written_changes_nothing(&stage, (&asked.get, &asked.get_end), &to);
    damage_and_holes_stop(&stage, &names, &to);
}

fn wrong_words_stop(asked: &Asked<'_>) {
    let (there, to) = (asked.there, asked.to);
    for words in [
        format!("archive-get {there}"),
        "archive-get".to_owned(),
        format!("archive-get {there} {to} more"),
        format!("archive-get --nonsense {there} {to}"),
        format!("--nonsense archive-get {there} {to}"),
        format!("--jobs x archive-get {there} {to}"),
        format!("archive-get --fetch-ahead=-1 {there} {to}"),
        format!("archive-get nonsense {to}"),
        format!("archive-get '' {to}"),
        format!("archive-get \"$(printf '\\377')\" {to}"),
        format!("wal-fetch {there} {to} more"),
        format!("archvie-get {there} {to}"),
        format!("{there} {to}"),
        format!("archive-push {to}"),
        format!("archive-push {there} {to}"),
        format!("info {there} {to}"),
        format!("archive-get --help {there} {to}"),
        format!("archive-get {there} {to} --version"),
        format!("help archive-get {there} {to}"),
        format!("man {there}"),
    ] {
        asked.stops("", &words);
    }
}

fn wrong_configuration_stops(asked: &Asked<'_>, scratch: &Path) {
    let config = scratch.join("config.toml");
    fs::write(&config, "nonsense = 1\n").unwrap();
    for setting in [
        "export PGSTRATA_JOBS=x;",
        "export PGSTRATA_OUTPUT=x;",
        "export PGSTRATA_LOG_LEVEL=x;",
        "export PGSTRATA_FETCH_AHEAD=x;",
        "export PGSTRATA_ON_HOLE=x;",
        "export PGSTRATA_S3_PATH_STYLE=x;",
        "export PGSTRATA_CONFIG=/nowhere;",
        &format!("export PGSTRATA_CONFIG={};", config.display()),
        "export PGSTRATA_CLUSTER=;",
        "export PGSTRATA_CLUSTER=UPPER;",
        "export PGSTRATA_CLUSTER=unknown;",
        "export PGSTRATA_CLUSTER=\"$(printf '\\377')\";",
        "export PGSTRATA_REPO=;",
        "export PGSTRATA_REPO=nonsense;",
        "export PGSTRATA_REPO=ftp://x/y;",
        "export PGSTRATA_REPO=file:///nowhere;",
        &format!("export PGSTRATA_REPO={}/main;", asked.stage.repository),
        &format!("export PGSTRATA_REPO=file://{};", scratch.display()),
        "unset PGSTRATA_REPO;",
    ] {
        asked.stops(setting, &asked.get);
        asked.stops(setting, &asked.get_end);
    }
}

/// Descriptors, memory, threads, room: it works with few, or says so.
fn what_cannot_be_had_stops(asked: &Asked<'_>) {
    let got = in_shell(asked.stage, "", &asked.get);
    assert_eq!(code(&got), 0, "{}", String::from_utf8_lossy(&got.stderr));
    fs::remove_file(asked.to).unwrap();
    for limit in [
        "ulimit -n 3",
        "ulimit -n 6",
        "ulimit -n 8",
        "ulimit -n 10",
        "ulimit -v 20000",
        "ulimit -v 60000",
        "prlimit --pid $$ --nproc=1",
        "ulimit -f 0",
        "ulimit -s 8",
    ] {
        for words in [&asked.get, &asked.get_end] {
            let output = in_shell(asked.stage, &format!("{limit};"), words);
            let ended = code(&output);
            let whole = fs::metadata(asked.to).map(|m| m.len()).ok();
            let said = String::from_utf8_lossy(&output.stderr);
            let fine = match ended {
                0 => whole == Some(1 << 20) && words == &asked.get,
                END => words == &asked.get_end,
                other => other >= 126 && whole.is_none(),
            };
            assert!(fine, "{limit}, {words}: {ended}, {whole:?}: {said}");
            let _ = fs::remove_file(asked.to);
        }
    }
}

fn what_cannot_be_written_changes_nothing(stage: &Stage, (get, end): (&str, &str), to: &str) {
    // It can be opened for writing while somebody reads it, who is gone then.
    let pipe = process::pipe(stage, "unread").display().to_string();
    let spoken = in_shell(stage, "", &format!("--log-level debug {get}"));
    assert!(!spoken.stderr.is_empty());
    fs::remove_file(to).unwrap();
    for redirected in [
        ">/dev/full",
        "2>/dev/full",
        ">/dev/full 2>&1",
        ">&-",
        "2>&-",
        ">&- 2>&- <&-",
        &format!("3<>{pipe} >{pipe} 3<&-"),
        &format!("3<>{pipe} 2>{pipe} 3<&-"),
        &format!("3<>{pipe} >{pipe} 2>&1 3<&-"),
    ] {
        for globals in [
            "",
            "--output json",
            "--log-level debug",
            "--log-level debug --output json",
        ] {
            let got = in_shell(stage, "", &format!("{globals} {get} {redirected}"));
            assert_eq!(code(&got), 0, "{globals} {redirected}");
            assert_eq!(fs::metadata(to).unwrap().len(), 1 << 20);
            fs::remove_file(to).unwrap();
            let ended = in_shell(stage, "", &format!("{globals} {end} {redirected}"));
            assert_eq!(code(&ended), END, "{globals} {redirected}");
            let failed = in_shell(stage, "", &format!("{globals} {get}/absent {redirected}"));
            assert_eq!(code(&failed), STOP, "{globals} {redirected}");
            let usage = in_shell(stage, "", &format!("{globals} {get} more {redirected}"));
            assert_eq!(code(&usage), STOP, "{globals} {redirected}");
        }
    }
    // The normal end is no line in the server's log; who asks for a document gets one.
    let ended = in_shell(stage, "", end);
    assert_eq!((code(&ended), &ended.stderr[..]), (END, &b""[..]));
    let ended = in_shell(stage, "", &format!("--output json {end}"));
    let document: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(document["exit_code"], END, "{document:#}");
    let help = in_shell(stage, "", "archive-get --help");
    assert_eq!(code(&help), 0);
}

/// A server and a program are told of the same end.
fn document_names_the_exit_code(stage: &Stage, get: &str, (ended, kind): (i32, &str)) {
    let output = in_shell(stage, "", &format!("--output json {get}"));
    let document = support::schema::document(&String::from_utf8(output.stdout.clone()).unwrap());
    assert_eq!(code(&output), ended, "{document:#}");
    assert_eq!(document["exit_code"], ended, "{document:#}");
    assert_eq!(document["kind"], kind, "{document:#}");
}

fn damage_and_holes_stop(stage: &Stage, names: &[String], to: &str) {
    let (hole, later) = (&names[1], &names[2]);
    let path = object(stage, hole);
    let good = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let get = format!("archive-get {hole} {to}");
    let output = in_shell(stage, "", &get);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code(&output), STOP, "{said}");
    assert!(
        said.contains(hole.as_str()) && said.contains(later.as_str()),
        "{said}"
    );
    document_names_the_exit_code(stage, &get, (STOP, "wal-missing"));
    let end = format!("{get} --on-hole end");
    let output = in_shell(stage, "", &end);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code(&output), END, "{said}");
    assert!(said.contains(hole.as_str()), "{said}");
    document_names_the_exit_code(stage, &end, (END, "not-found"));
    fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert_eq!(code(&in_shell(stage, "", &get)), STOP);
    document_names_the_exit_code(stage, &get, (STOP, "damaged"));
    fs::write(&path, &good).unwrap();
    assert_eq!(code(&in_shell(stage, "", &get)), 0);
    // What cannot be read is not absent.
    fs::remove_file(to).unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(code(&in_shell(stage, "", &get)), STOP);
}

/// All of the archive is gone, or all of it behind some segment, and only layers tell that there was more.
#[test]
fn rule_13_6_wal_that_is_gone_with_all_later_wal_is_not_the_end() {
    let builder = Cluster::builder(Major::V15).initdb_arg("--wal-segsize=1");
    let stage = Stage::archiving(builder, Store::Directory);
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    let first = stage.backup(&["--type", "full"]);
    let first = support::text(&first, "/label").to_owned();
    let child = stage.backup(&["--type", "incr"]);
    finish_segment(&stage);
    let kept = sql("SELECT last_archived_wal FROM pg_stat_archiver");
    for _ in 0..3 {
        finish_segment(&stage);
    }
    stage.backup(&["--type", "full"]);
    // The label of a merged layer is new, and its state is not.
    stage.ok(&["merge", support::text(&child, "/label")]);
    finish_segment(&stage);
    let last = sql("SELECT last_archived_wal FROM pg_stat_archiver");
    let scratch = stage.cluster.create_dir("scratch").unwrap();
    let to = scratch.join("to").display().to_string();
    let get = |name: &str| in_shell(&stage, "", &format!("archive-get {name} {to}"));
    let name = |number: u64| format!("{}{number:08X}", &kept[..16]);
    let number = |name: &str| u64::from_str_radix(&name[16..24], 16).unwrap();
    let end = name(number(&last) + 1);
    assert_eq!(code(&get(&end)), END);
    assert_eq!(code(&get("00000002.history")), END);

    let words = [&first[..], "--target-type", "default", "--skip-damaged"];
    let target = stage.restore("restored", &words);
    let wal = repository(&stage).join("main/wal/00000001");
    for entry in fs::read_dir(&wal).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap() > kept.as_str() {
            fs::remove_file(path).unwrap();
        }
    }
    let hole = name(number(&kept) + 1);
    let output = get(&hole);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code(&output), STOP, "{said}");
    assert!(said.contains("goes along timeline 1"), "{said}");
    assert_eq!(code(&get(&end)), END);

    // Nor does restore take it for the end.
    stage.refuses_to_restore(&words, 18, &["goes along timeline 1"]);

    // The server that recovers from it does not open.
    fs::remove_dir_all(repository(&stage).join("main/wal")).unwrap();
    for name in [&kept, &hole, &end, "00000002.history"] {
        let output = get(name);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(code(&output), STOP, "{name}: {said}");
    }
    let error = Cluster::adopt(Major::V15, &target).start();
    let error = format!("{:#}", error.err().unwrap());
    assert!(error.contains("exit code 255"), "{error}");
}

/// 0 only for a file that is in the repository.
#[test]
fn archive_push_never_says_0_for_nothing() {
    let (stage, _) = archived(Store::Directory);
    let end = stage
        .cluster
        .sql("postgres", "SELECT pg_switch_wal()")
        .unwrap();
    stage.wait_archived(&end);
    stage
        .cluster
        .append_conf("archive_command", "false")
        .unwrap();
    stage.cluster.reload().unwrap();
    let query =
        "SELECT pg_walfile_name(pg_create_restore_point('x')) || ' ' || (pg_switch_wal() > '0/0')";
    let name = stage.cluster.sql("postgres", query).unwrap()[..24].to_owned();
    let path = stage.cluster.pgdata().join("pg_wal").join(&name);
    let path = path.display().to_string();
    let push = format!("archive-push {path}");
    for (setting, words) in [
        ("", format!("archive-push --help {path}")),
        ("", format!("archive-push {path} --version")),
        ("", format!("archive-push {path} more")),
        ("", format!("help archive-push {path}")),
        ("", format!("man archive-push {path}")),
        ("", format!("archvie-push {path}")),
        ("", format!("archive-push {path}.absent")),
        ("export PGSTRATA_JOBS=x;", push.clone()),
        ("export PGSTRATA_CLUSTER=unknown;", push.clone()),
        ("export PGSTRATA_REPO=file:///nowhere/at/all;", push.clone()),
        ("ulimit -n 6;", push.clone()),
        ("prlimit --pid $$ --nproc=1;", push.clone()),
        ("ulimit -v 60000;", push.clone()),
        ("ulimit -f 0;", push.clone()),
    ] {
        let output = in_shell(&stage, setting, &words);
        let said = String::from_utf8_lossy(&output.stderr);
        let there = object(&stage, &name).exists();
        assert!(code(&output) != 0 || there, "{setting} {words}: {said}");
        assert!(!there || words == push, "{setting} {words}: {said}");
    }
    for redirected in [">/dev/full", "2>/dev/full", ">&- 2>&-"] {
        let output = in_shell(&stage, "", &format!("--output json {push} {redirected}"));
        assert_eq!(code(&output), 0, "{redirected}");
        assert!(object(&stage, &name).exists());
    }
}

/// A segment on S3, a bucket that is not there, and one that holds something else.
#[test]
fn rule_13_6_a_wrong_bucket_or_prefix_is_not_the_end() {
    let (stage, names) = archived(Store::S3);
    let scratch = stage.cluster.create_dir("scratch").unwrap();
    let to = scratch.join("to").display().to_string();
    let get = |repository: &str, name: &str| {
        let mut command = stage.command(&["--repo", repository, "archive-get", name, &to]);
        command.args(["--hole-timeout", "0s"]);
        code(&command.output().unwrap())
    };
    let right = stage.repository.clone();
    let bucket = right.trim_end_matches("/backups");
    assert_eq!(get(&right, &names[0]), 0);
    assert_eq!(get(&right, names.last().unwrap()), END);
    for wrong in [
        format!("{bucket}x/backups"),
        bucket.to_owned(),
        format!("{right}/main"),
    ] {
        assert_eq!(get(&wrong, &names[0]), STOP, "{wrong}");
        assert_eq!(get(&wrong, names.last().unwrap()), STOP, "{wrong}");
    }
}

/// What `verify` says of WAL that is damaged or missing is done, and then nothing is wrong.
#[test]
fn rule_13_11_what_verify_recommends_for_wal_is_a_repair() {
    let builder = Cluster::builder(Major::V15).initdb_arg("--wal-segsize=1");
    let stage = Stage::archiving(builder, Store::Directory);
    let layer = stage.backup(&["--type", "full"]);
    finish_segment(&stage);
    finish_segment(&stage);
    let lsn = support::text(&layer, "/start_lsn");
    let query =
        format!("SELECT pg_walfile_name('{lsn}'), pg_walfile_name('{lsn}'::pg_lsn + 1048576)");
    let names = stage.cluster.sql("postgres", &query).unwrap();
    let (name, next) = names.split_once('|').unwrap();
    let intact = stage.cluster.create_dir("intact").unwrap().join(name);
    let intact = intact.display().to_string();
    stage.ok(&["archive-get", name, &intact]);
    let (path, other) = (object(&stage, name), object(&stage, next));
    let mended = repository(&stage).join("main/wal-mended");
    let good = fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        Some(bytes)
    };
    for (what, damaged) in [
        ("missing", None),
        ("empty", Some(Vec::new())),
        ("cut", Some(good[..good.len() / 2].to_vec())),
        ("header", flipped(20)),
        ("frame", flipped(good.len() / 2)),
        ("trailer", flipped(good.len() - 1)),
        ("another segment", Some(fs::read(&other).unwrap())),
    ] {
        fs::remove_file(&path).unwrap();
        if let Some(bytes) = &damaged {
            fs::write(&path, bytes).unwrap();
        }
        let output = stage.run(&["verify"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let code = if damaged.is_some() { 14 } else { 18 };
        assert_eq!(output.status.code(), Some(code), "{what}: {said}");
        assert!(
            said.contains("archive-push") && said.contains(name),
            "{what}: {said}"
        );
        stage.ok(&["archive-push", &intact]);
        stage.ok(&["verify", "--deep"]);
        let to = stage.target("got");
        stage.ok(&["archive-get", name, &to.display().to_string()]);
        assert!(
            fs::read(&to).unwrap() == fs::read(&intact).unwrap(),
            "{what}"
        );
        assert_eq!(
            fs::read(&path).ok(),
            damaged.or_else(|| fs::read(&path).ok())
        );
        let _ = fs::remove_dir_all(&mended);
    }
}

/// The server waits for its `archive_command`, and an operator for his.
#[test]
fn a_pipe_and_an_empty_history_are_refused_at_once() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let scratch = stage.cluster.create_dir("scratch").unwrap();
    for (name, is_pipe, code, word) in [
        ("000000010000000000000098", true, 17, "a named pipe"),
        ("00000002.history", true, 17, "a named pipe"),
        ("pipe", true, 2, "pipe"),
        ("00000003.history", false, 13, "the file is empty"),
    ] {
        let path = scratch.join(name);
        match is_pipe {
            true => process::make_pipe(&path),
            false => fs::write(&path, "").unwrap(),
        }
        stage.cluster.own(&path).unwrap();
        let (found, said) = stage.fails(&["archive-push", &path.display().to_string()]);
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
        assert!(said.contains(word) && said.contains(name), "{said}");
        assert_eq!(found, code, "{said}");
    }
    assert!(!object(&stage, "000000010000000000000098").exists());
}

/// The memory of a process in kB, without that of mapped files, which the system takes back as it likes; 0 when it has ended.
fn memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn require_little_memory(stage: &Stage, words: &[&str]) {
    let mut child = support::process::spawn(stage, words);
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(memory(child.id()));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    support::process::ended(output, &format!("{words:?}"), 0);
    assert!((1..128 << 10).contains(&most), "{words:?}: {most} kB");
}

/// A segment of 256 MiB that does not compress goes through in pieces.
#[test]
fn a_large_segment_takes_no_more_memory_than_a_piece_of_it() {
    push_and_get_a_large_segment(Store::Directory);
}

#[test]
fn a_large_segment_in_a_bucket_takes_no_more_memory_than_a_piece_of_it() {
    push_and_get_a_large_segment(Store::S3);
}

fn push_and_get_a_large_segment(store: Store) {
    let builder = Cluster::builder(Major::V15)
        .initdb_arg("--wal-segsize=256")
        .conf("min_wal_size", "512MB")
        .conf("max_wal_size", "1GB");
    let stage = Stage::silent(builder, store);
    let wal = stage.cluster.pgdata().join("pg_wal");
    let names = fs::read_dir(&wal).unwrap();
    let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let name = names.find(|name| name.len() == 24).unwrap();
    let mut bytes = fs::read(wal.join(&name)).unwrap();
    assert_eq!(bytes.len(), 256 << 20);
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for word in bytes[8192..].chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    let scratch = stage.cluster.create_dir("scratch").unwrap();
    let (from, to) = (scratch.join(&name), scratch.join("got"));
    fs::write(&from, &bytes).unwrap();
    let (pushed, got) = (from.display().to_string(), to.display().to_string());
    for words in [
        &["archive-push", &pushed][..],
        // It is there, and is read back.
        &["archive-push", &pushed],
        &["archive-get", &name, &got],
    ] {
        require_little_memory(&stage, words);
    }
    assert!(fs::read(&to).unwrap() == bytes);
    // The segment that a backup needs comes with its restore.
    fs::remove_file(stage.objects().join("main/wal/00000001").join(&name)).unwrap();
    stage.backup(&["--type", "full"]);
    let restored = stage.target("restored").display().to_string();
    let words = [
        "restore",
        "--target-dir",
        &restored,
        "--target-type",
        "immediate",
        "--target-action",
        "promote",
    ];
    require_little_memory(&stage, &words);
    stage.start_restored(Path::new(&restored));
    copy_a_large_segment(&stage, &mut bytes);
}

/// A copy takes it in pieces, too, and takes nothing of one that is damaged.
fn copy_a_large_segment(stage: &Stage, bytes: &mut [u8]) {
    let archive = "main/wal/00000001";
    let names = fs::read_dir(stage.objects().join(archive)).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let newest = names.filter(|name| name.len() == 24).max().unwrap();
    let next = u64::from_str_radix(&newest[16..], 16).unwrap() + 1;
    let name = format!("{}{next:08X}", &newest[..16]);
    bytes[8..16].copy_from_slice(&(next << 28).to_le_bytes());
    let from = stage.target("scratch").join(&name);
    fs::write(&from, &*bytes).unwrap();
    stage.ok(&["archive-push", &from.display().to_string()]);
    let object = stage.objects().join(archive).join(&name);
    let copied = |other: &str| stage.target(other).join(archive).join(&name);
    let far = |other: &str| {
        let directory = stage.cluster.create_dir(other).unwrap();
        format!("file://{}", directory.display())
    };
    require_little_memory(stage, &["copy", "--to", &far("far")]);
    let stored = fs::read(&object).unwrap();
    assert!(stored == fs::read(copied("far")).unwrap());
    let s3 = S3Server::start().unwrap();
    let lines = s3.options();
    let lines = lines.map(|(key, value)| format!("{key} = \"{value}\"\n"));
    let credentials = support::credentials_file(&stage.cluster, "bucket", &lines.concat());
    let to = format!("s3://{}/far", s3.bucket());
    let with = ["--to-credentials", &credentials.display().to_string()];
    require_little_memory(stage, &[&["copy", "--to", &to][..], &with].concat());
    let in_bucket = s3.bucket_dir().join("far").join(archive).join(&name);
    assert!(stored == fs::read(in_bucket).unwrap());
    files::flip(&object, |length| length * 9 / 10);
    let (code, log) = stage.fails(&["copy", "--to", &far("farther")]);
    assert_eq!(code, DAMAGED, "{log}");
    assert!(log.contains(&name), "{log}");
    assert!(!copied("farther").exists());
    assert!(copied("farther").parent().unwrap().exists());
}

/// Killed at any moment, it leaves the whole file or nothing in `pg_wal`, where nobody would look for the rest.
#[test]
fn a_killed_archive_get_leaves_nothing() {
    let (stage, names) = archived(Store::Directory);
    let scratch = stage.cluster.create_dir("scratch").unwrap();
    let to = scratch.join("RECOVERYXLOG");
    let path = to.display().to_string();
    let mut cut_short = 0;
    for delay in 0..120 {
        let arguments = ["archive-get", &names[0], &path, "--fetch-ahead", "0"];
        let mut child = support::process::spawn(&stage, &arguments);
        std::thread::sleep(std::time::Duration::from_micros(500 * delay));
        child.kill().unwrap();
        cut_short += u32::from(!child.wait().unwrap().success());
        for entry in fs::read_dir(&scratch).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.path(), to, "after {delay} half milliseconds");
            assert_eq!(entry.metadata().unwrap().len(), 1 << 20);
        }
        let _ = fs::remove_file(&to);
    }
    assert!(cut_short > 0);
}

/// `pg_rewind` runs `restore_command` where it was started, which may be the home of another user.
#[test]
fn a_file_is_fetched_from_where_the_caller_may_not_look_around() {
    let (stage, names) = archived(Store::Directory);
    let closed = stage.cluster.create_dir("closed").unwrap();
    let closed = closed.display();
    let setting = format!("chmod 700 '{closed}' && cd '{closed}' && chmod 0 . &&");
    let to = stage.target("got").display().to_string();
    let get = |to: &str| format!("archive-get --fetch-ahead 0 {} '{to}'", names[0]);
    let output = in_shell(&stage, &setting, &get(&to));
    assert_eq!(
        code(&output),
        0,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(Path::new(&to).exists());
    // A server's is always its data directory: what cannot be looked at there stops it.
    let output = in_shell(&stage, &setting, &get("RECOVERYXLOG"));
    assert_eq!(code(&output), STOP);
}

#[test]
fn a_segment_that_is_not_there_is_not_called_unfinished() {
    let (stage, names) = archived(Store::Directory);
    let absent = stage
        .cluster
        .pgdata()
        .join("pg_wal")
        .join(names[5].replace("0000000100000000", "0000000100000001"));
    let output = in_shell(&stage, "", &format!("archive-push '{}'", absent.display()));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("No such file"), "{said}");
}
