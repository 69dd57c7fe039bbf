//! Every way in which a process can end, provoked: a recovering server opens for none of them, and every other command ends
//! with the code that OPERATIONS.md names. What is wrong with files and stores is in `archive_ends`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use pgstrata_testbed::proxy::Proxy;
use support::{PATIENCE, Stage, Store, files, process, schema};

const ROWS: &str = "SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM numbers";

/// What a shell does before the program begins, and what recovery says of how the program ended.
///
/// `LIBRARY` stands for the library made of `support/provoke.c`, `UNREAD` for streams whose reader has gone.
const UNDER_RECOVERY: [(&str, &str); 27] = [
    // Signals. That of SIGTERM ends recovery as "pg_ctl stop" does, without an error of its own.
    ("RAISE=1 LIBRARY", "terminated by signal 1:"),
    // A shell in the background may have switched this one off.
    ("RAISE=2 LIBRARY", "could not restore file"),
    ("RAISE=3 LIBRARY", "terminated by signal 3:"),
    ("RAISE=6 LIBRARY", "terminated by signal 6:"),
    // The signal of a system without memory, too.
    ("RAISE=9 LIBRARY", "terminated by signal 9:"),
    ("RAISE=11 LIBRARY", "terminated by signal 11:"),
    ("RAISE=15 LIBRARY", "startup process"),
    // A closed pipe is none of its business; the archive has a hole.
    ("RAISE=13 LIBRARY", "is missing from the archive"),
    // Mistakes of ours, of the first thread and of others.
    ("PANIC=1 LIBRARY", "this is a bug in pgstrata"),
    ("PANIC_AT=8 LIBRARY", "this is a bug in pgstrata"),
    ("PANIC_AT=20 LIBRARY", "this is a bug in pgstrata"),
    // No thread beside the first, or one, or two.
    ("MOST_THREADS=0 LIBRARY", "could not start a thread"),
    ("MOST_THREADS=1 LIBRARY", "could not start a thread"),
    ("MOST_THREADS=2 LIBRARY", "could not start a thread"),
    ("prlimit --pid $$ --nproc=1;", "could not start a thread"),
    // No memory, descriptors, stack.
    ("ulimit -v 60000;", "could not restore file"),
    ("ulimit -n 8;", "could not restore file"),
    ("ulimit -s 8;", "could not restore file"),
    // No room for the file, neither in pg_wal nor in the spool. The server has switched the signal off.
    ("ulimit -f 0;", "exit code 255"),
    ("NO_ROOM=1 LIBRARY", "No space left"),
    // Nobody hears it.
    ("exec >/dev/full 2>&1;", "exit code 255"),
    ("exec >&- 2>&-;", "exit code 255"),
    ("UNREAD", "exit code 255"),
    (TALKATIVE, "exit code 255"),
    ("UNREAD PANIC=1 LIBRARY", "exit code 255"),
    // Settings that make no sense.
    ("PGSTRATA_JOBS=x", "exit code 255"),
    ("PGSTRATA_CONFIG=/nowhere", "exit code 255"),
];

/// It has much to say, and nobody hears it.
const TALKATIVE: &str = "UNREAD PGSTRATA_LOG_LEVEL=debug PGSTRATA_OUTPUT=json";

/// The same for a bucket, with the ways that a network could change: there are more threads, more memory, more descriptors.
const UNDER_RECOVERY_FROM_A_BUCKET: [(&str, &str); 22] = [
    ("RAISE=9 LIBRARY", "terminated by signal 9:"),
    ("RAISE=15 LIBRARY", "startup process"),
    ("RAISE=13 LIBRARY", "is missing from the archive"),
    ("PANIC=1 LIBRARY", "this is a bug in pgstrata"),
    ("PANIC_AT=8 LIBRARY", "this is a bug in pgstrata"),
    ("PANIC_AT=40 LIBRARY", "this is a bug in pgstrata"),
    ("PANIC_AT=150 LIBRARY", "this is a bug in pgstrata"),
    ("MOST_THREADS=0 LIBRARY", "could not start a thread"),
    ("MOST_THREADS=1 LIBRARY", "could not start a thread"),
    ("MOST_THREADS=2 LIBRARY", "could not start a thread"),
    ("prlimit --pid $$ --nproc=1;", "could not start a thread"),
    ("ulimit -v 60000;", "could not restore file"),
    ("ulimit -v 78000;", "could not restore file"),
    ("ulimit -n 8;", "could not restore file"),
    ("ulimit -n 9;", "could not restore file"),
    ("ulimit -s 8;", "could not restore file"),
    ("ulimit -f 0;", "exit code 255"),
    ("NO_ROOM=1 LIBRARY", "No space left"),
    ("exec >&- 2>&-;", "exit code 255"),
    ("UNREAD", "exit code 255"),
    (TALKATIVE, "exit code 255"),
    // Signatures have a time.
    ("CLOCK_AHEAD=86400 LIBRARY", "exit code 255"),
];

/// What recovery does without: it reaches the end of the archive, which is told by the code alone.
const HARMLESS: [&str; 6] = [
    "exec >/dev/full 2>&1;",
    "exec >&- 2>&-;",
    "UNREAD",
    TALKATIVE,
    "NO_ROOM=DIRECTORY PGSTRATA_SPOOL=DIRECTORY LIBRARY",
    "RAISE=13 LIBRARY",
];

/// Words of `restore_command`, and what they become.
const MISTYPED: [(&str, &str); 6] = [
    ("archive-get", "archive-gte"),
    ("archive-get", "archive-get --nonsense"),
    ("archive-get", "archive-get --fetch-ahead=x"),
    ("archive-get", "archive-get --help"),
    ("archive-get", "info"),
    ("archive-get", ""),
];

fn small(major: Major, store: Store) -> Stage {
    let builder = Cluster::builder(major)
        .initdb_arg("--wal-segsize=1")
        .conf("autovacuum", "off");
    Stage::archiving(builder, store)
}

/// A full backup, then a segment with a row each; the name of the third of these segments.
fn rows_in_segments(stage: &Stage) -> String {
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE numbers (id int)");
    stage.backup(&["--type", "full"]);
    let mut third = String::new();
    for id in 1..=4 {
        sql(&format!("INSERT INTO numbers VALUES ({id})"));
        if id == 3 {
            third = sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())");
        }
        stage.archive_all();
    }
    third
}

/// What provokes, beside the server's files.
struct Provoker {
    library: PathBuf,
    pipe: PathBuf,
    spool: PathBuf,
}

impl Provoker {
    fn beside(stage: &Stage) -> Self {
        let spool = stage.cluster.create_dir("spool").unwrap();
        Self {
            library: process::provoker(stage),
            pipe: process::pipe(stage, "unread"),
            spool,
        }
    }

    /// What a shell does for that way.
    fn shell(&self, way: &str) -> String {
        let pipe = self.pipe.display();
        // A pipe can be opened for writing while it has a reader.
        let unread = format!("exec 3<>{pipe} >{pipe} 2>&1 3<&-;");
        way.replace("UNREAD", &unread)
            .replace("LIBRARY", &format!("LD_PRELOAD={}", self.library.display()))
            .replace("DIRECTORY", &self.spool.display().to_string())
    }
}

/// A restored cluster, whose recovery comes to a hole in the archive.
struct Recovery<'a> {
    stage: &'a Stage,
    provoker: &'a Provoker,
    target: PathBuf,
    settings: String,
}

impl<'a> Recovery<'a> {
    fn of(stage: &'a Stage, provoker: &'a Provoker, name: &str, options: &[&str]) -> Self {
        let target = stage.target(name);
        let directory = target.display().to_string();
        let restore = ["restore", "--target-dir", &directory];
        stage.ok(&[options, &restore].concat());
        let settings = fs::read_to_string(target.join("postgresql.auto.conf")).unwrap();
        Self {
            stage,
            provoker,
            target,
            settings,
        }
    }

    /// Words of its settings become others, which must be there.
    fn replace(&self, right: &str, wrong: &str) {
        assert!(self.settings.contains(right), "{right}: {}", self.settings);
        let text = self.settings.replacen(right, wrong, 1);
        fs::write(self.target.join("postgresql.auto.conf"), text).unwrap();
    }

    fn begin_by(&self, way: &str) {
        let way = self.provoker.shell(way);
        self.replace("exec ", &format!("{way} exec "));
    }

    /// The server does not start that way, has not been promoted, and says why.
    fn stops_by(&self, way: &str, words: &str) {
        self.begin_by(&format!(
            "export PGSTRATA_HOLE_TIMEOUT=0s RUST_BACKTRACE=0; {way}"
        ));
        self.stops(way, words);
    }

    /// The same with other words in its settings.
    fn stops_with(&self, right: &str, wrong: &str) {
        self.replace(right, wrong);
        self.stops(wrong, "exit code 255");
    }

    fn stops(&self, way: &str, words: &str) {
        let major = self.stage.cluster.major();
        let error = Cluster::adopt(major, &self.target).start().err();
        let error = error.map(|error| format!("{error:#}"));
        let error = error.unwrap_or_else(|| panic!("{way}: the server has started"));
        assert!(error.contains(words), "{way}: {error}");
        let signal = self.target.join("recovery.signal");
        assert!(signal.exists(), "{way}: {error}");
        let promoted = self.target.join("pg_wal/00000002.history");
        assert!(!promoted.exists(), "{way}: {error}");
    }

    /// The server reaches the end of the archive.
    fn ends(&self, way: &str) {
        let restored = self.stage.start_restored(&self.target);
        assert_eq!(restored.sql("postgres", ROWS).unwrap(), "1 2 3 4", "{way}");
    }
}

/// No way opens the server while the archive has a hole, and `more` says what else is tried. Restores have `options`.
fn require_that_only_the_end_opens(
    stage: &Stage,
    (ways, options): (&[(&str, &str)], &[&str]),
    more: impl FnOnce(&Recovery<'_>),
) {
    let third = rows_in_segments(stage);
    stage.cluster.stop(StopMode::Fast).unwrap();
    let provoker = Provoker::beside(stage);
    let recovery = Recovery::of(stage, &provoker, "restored", options);
    // Whatever copes with its way stops there.
    let object = stage.objects().join("main/wal/00000001").join(third);
    let beside = |name: &str| stage.objects().with_file_name(name);
    let away = beside("away");
    fs::rename(&object, &away).unwrap();
    for (way, words) in ways {
        recovery.stops_by(way, words);
    }
    more(&recovery);
    // The repository is not there, its record cannot be read.
    recovery.begin_by("");
    let (record, kept) = (stage.objects().join("main/cluster"), beside("record"));
    fs::rename(&record, &kept).unwrap();
    recovery.stops("no record", "exit code 255");
    fs::write(&record, "pgstrata cluster 1 2 00\n{}").unwrap();
    recovery.stops("a damaged record", "exit code 255");
    fs::rename(&kept, &record).unwrap();

    fs::rename(&away, &object).unwrap();
    recovery.ends("");
    for (nth, way) in HARMLESS.iter().enumerate() {
        let recovery = Recovery::of(stage, &provoker, &format!("restored {nth}"), options);
        recovery.begin_by(way);
        recovery.ends(way);
    }
    for kept in fs::read_dir(&provoker.spool).unwrap() {
        let ahead = files::segments(&kept.unwrap().path());
        assert!(ahead.is_empty(), "{ahead:?}");
    }
}

#[test]
fn rule_13_6_a_recovering_server_opens_for_no_way_to_end_but_the_proved_end() {
    let stage = small(Major::V15, Store::Directory);
    require_that_only_the_end_opens(&stage, (&UNDER_RECOVERY, &[]), |recovery| {
        for (right, wrong) in MISTYPED {
            recovery.stops_with(right, wrong);
        }
    });
}

#[test]
fn rule_13_6_a_server_that_recovers_from_a_bucket_opens_for_the_proved_end_alone() {
    let stage = small(Major::V18, Store::S3);
    let proxy = Proxy::before(stage.s3_endpoint()).unwrap();
    // Threads look for the address of a name.
    let endpoint = proxy.endpoint().replace("127.0.0.1", "localhost");
    let options = [
        ["--s3-endpoint", &endpoint],
        ["--storage", "retry_seconds=1"],
        ["--storage", "read_timeout=1s"],
    ];
    let tried = (&UNDER_RECOVERY_FROM_A_BUCKET[..], &options.concat()[..]);
    require_that_only_the_end_opens(&stage, tried, |recovery| {
        let port = endpoint.rsplit(':').next().unwrap();
        wrong_addresses_stop(recovery, port);
        wrong_keys_stop(recovery, &proxy);
        bad_networks_stop(recovery, &proxy);
    });
}

fn wrong_addresses_stop(recovery: &Recovery<'_>, port: &str) {
    let bucket = recovery.stage.s3().bucket();
    for (right, wrong) in [
        // Nobody listens there, nobody has the name, and nobody there speaks TLS.
        (format!("localhost:{port}"), "localhost:1".to_owned()),
        (
            format!("http://localhost:{port}"),
            format!("https://nowhere.invalid:{port}"),
        ),
        (
            format!("http://localhost:{port}"),
            format!("https://localhost:{port}"),
        ),
        // A bucket that is not there, and a place in it where nothing is.
        (
            format!("s3://{bucket}/backups"),
            format!("s3://{bucket}x/backups"),
        ),
        (
            format!("s3://{bucket}/backups"),
            format!("s3://{bucket}/nothing"),
        ),
    ] {
        recovery.stops_with(&right, &wrong);
    }
}

/// A key that nobody has, another one's secret, one without a secret, one that has expired, and no file.
fn wrong_keys_stop(recovery: &Recovery<'_>, proxy: &Proxy) {
    recovery.begin_by("");
    let file = Path::new(recovery.stage.credentials());
    let good = fs::read_to_string(file).unwrap();
    let s3 = recovery.stage.s3();
    for wrong in [
        good.replace(s3.access_key(), "nobody"),
        good.replace(s3.secret(), s3.second_secret()),
        good.replace(s3.secret(), ""),
    ] {
        assert!(wrong != good);
        fs::write(file, &wrong).unwrap();
        recovery.stops(&wrong, "exit code 255");
    }
    fs::write(file, &good).unwrap();
    proxy.expire_key(s3.access_key());
    recovery.stops("an expired key", "exit code 255");
    assert!(proxy.refused() > 0);
    proxy.clear();
    let away = file.with_extension("away");
    fs::rename(file, &away).unwrap();
    recovery.stops("no credentials", "exit code 255");
    fs::rename(&away, file).unwrap();
}

/// Connections that break or stand still, from the first byte to the last, and gateways that answer for the store.
fn bad_networks_stop(recovery: &Recovery<'_>, proxy: &Proxy) {
    let at_once = "export PGSTRATA_HOLE_TIMEOUT=0s;";
    recovery.begin_by(at_once);
    proxy.clear();
    recovery.stops("a hole", "is missing from the archive");
    let all = proxy.passed();
    // Who waits for the hole to be filled asks again and again, so it comes to every one of these.
    recovery.begin_by("");
    for after in [1, all / 3, all * 2 / 3, all] {
        proxy.cut_after(after);
        recovery.stops(&format!("cut after {after} of {all}"), "exit code 255");
        assert!(proxy.has_failed(), "cut after {after} of {all}");
    }
    recovery.begin_by(at_once);
    for answers in [
        &[("200 OK", "404 No")][..],
        &[("200 OK", "403 No")],
        &[("200 OK", "503 No")],
        &[("404 Not Found", "200 OK")],
        &[("404 Not Found", "403 Forbidden")],
        // Nothing is listed.
        &[("<Contents>", "<Nothings>"), ("</Contents>", "</Nothings>")],
    ] {
        proxy.rewrite(answers);
        recovery.stops(&format!("{answers:?}"), "exit code 255");
    }
    for after in [1, all / 2] {
        proxy.stall_after(after);
        // It asks some twenty times, each of which takes that long.
        recovery.stops_with("read_timeout=1s", "read_timeout=200ms");
        assert!(proxy.has_failed(), "stalled after {after} of {all}");
    }
    proxy.clear();
}

/// Runs the program in a shell, as the server's user.
fn in_shell(stage: &Stage, before: &str, words: &str) -> Output {
    let mut shell = stage.cluster.command_as_server_user(Path::new("/bin/sh"));
    shell
        .env("PGSTRATA_REPO", &stage.repository)
        .env("PGSTRATA_CLUSTER", "main")
        .env("RUST_BACKTRACE", "0");
    let script = format!("{before} exec '{}' {words}", stage.program.display());
    shell.args(["-c", &script]).output().unwrap()
}

/// With two of the runtime, four for files, a planner and a worker.
const ENOUGH_THREADS: u32 = 8;
const USAGE: i32 = 2;
const WARNINGS: i32 = 3;
const FILE: i32 = 17;
const INTERRUPTED: i32 = 130;
const BUG: i32 = 101;

#[test]
fn every_other_command_ends_with_the_code_of_its_way() {
    let stage = small(Major::V15, Store::Directory);
    rows_in_segments(&stage);
    let provoker = Provoker::beside(&stage);
    let pgdata = stage.pgdata();
    let restore = || {
        let target = stage.target("into");
        let _ = fs::remove_dir_all(&target);
        format!("restore -j 3 --target-dir {}", target.display())
    };
    let commands = [
        "info".to_owned(),
        "verify".to_owned(),
        format!("check --pgdata {pgdata}"),
        format!("backup -j 3 --pgdata {pgdata}"),
        "expire --keep-full 9".to_owned(),
        restore(),
    ];
    let mut panicking = BTreeSet::new();
    for words in &commands {
        let run = |way: &str| {
            restore();
            in_shell(&stage, &provoker.shell(way), words)
        };
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let bug = run("PANIC=1 LIBRARY");
        assert_eq!(bug.status.code(), Some(BUG), "{words}: {}", said(&bug));
        panicking.extend(who_panics(&run));
        for signal in [1, 9, 15] {
            let ended = run(&format!("RAISE={signal} LIBRARY"));
            assert_eq!(
                ended.status.signal(),
                Some(signal),
                "{words}: {}",
                said(&ended)
            );
        }
        // It works, or says why not, once.
        for most in [0, 1, 2, 4, 5, 6, 7, 8, 9] {
            let output = run(&format!("MOST_THREADS={most} LIBRARY"));
            let text = said(&output);
            // The backups that were killed may be at work, for all that an expiry knows.
            if matches!(output.status.code(), Some(0 | WARNINGS)) {
                assert!(most > 5, "{words}, {most}: {text}");
                continue;
            }
            assert!(most < ENOUGH_THREADS, "{words}, {most}: {text}");
            assert_eq!(output.status.code(), Some(FILE), "{words}, {most}: {text}");
            let errors = text.matches("could not start a thread").count();
            assert_eq!(errors, 1, "{words}, {most}: {text}");
            assert!(!text.contains("panicked"), "{words}, {most}: {text}");
        }
        let document = run("PGSTRATA_OUTPUT=json MOST_THREADS=0 LIBRARY");
        let document = String::from_utf8(document.stdout).unwrap();
        assert_eq!(schema::document(&document)["exit_code"], FILE, "{words}");
    }
    // The first, those of the runtime, and those that copy files.
    let threads = ["<unnamed>", "main", "tokio-rt-worker"];
    assert!(panicking.iter().eq(&threads), "{panicking:?}");
    for words in [
        "",
        "nonsense",
        "info --nonsense",
        "--jobs=x info",
        "restore",
        "expire --keep-full x",
    ] {
        let output = in_shell(&stage, "", words);
        assert_eq!(output.status.code(), Some(USAGE), "{words}");
    }
    what_cannot_be_written_is_an_error(&stage);
}

/// The threads that panic, one in each run: whoever reads the clock then.
fn who_panics(run: &impl Fn(&str) -> Output) -> BTreeSet<String> {
    let mut threads = BTreeSet::new();
    let mut readings = 1;
    loop {
        // A thread that panics when the command has done its work may come too late.
        let way = format!("PANIC_AT={readings} LIBRARY");
        let mut tries = (0..3).map(|_| run(&way));
        let is_done = |output: &Output| matches!(output.status.code(), Some(0 | WARNINGS));
        let output = tries.find(|output| !is_done(output) || !has_panicked(output));
        let output = output.unwrap_or_else(|| run(&way));
        let said = String::from_utf8_lossy(&output.stderr);
        let Some((_, from)) = said.split_once("thread '") else {
            // It read the clock no more.
            assert!(readings > 10, "{said}");
            return threads;
        };
        assert_eq!(output.status.code(), Some(BUG), "{readings}: {said}");
        threads.insert(from.split('\'').next().unwrap().to_owned());
        readings += readings / 2 + 1;
    }
}

fn has_panicked(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("panicked at")
}

fn what_cannot_be_written_is_an_error(stage: &Stage) {
    for words in ["info", "verify", "--output json info"] {
        let full = in_shell(stage, "exec >/dev/full;", words);
        assert_eq!(full.status.code(), Some(FILE), "{words}");
        // Its reader has read enough.
        let mut child = stage
            .command(&words.split(' ').collect::<Vec<_>>())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{words}");
    }
}

/// What is asked to stop says that it has stopped; what is killed cannot. Neither leaves a layer, or backup mode.
#[test]
fn a_backup_that_is_stopped_by_a_signal_leaves_nothing() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    for (signal, code) in [
        ("-TERM", Some(INTERRUPTED)),
        ("-INT", Some(INTERRUPTED)),
        ("-HUP", Some(INTERRUPTED)),
        ("-KILL", None),
    ] {
        let mut child = stage.begin_backup(&["--type", "full"]);
        process::signal(&child, signal);
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        stage.wait_out_of_backup_mode();
        assert_eq!(stage.layer_counts().0, 0, "{signal}");
    }
}

/// A key command that does not answer and heeds no signal, with children of which one has left its session.
const DEAF: &str = "#!/bin/sh
trap '' HUP INT QUIT TERM
setsid sleep 777 & away=$!
sleep 777 &
echo $PPID $$ $away $! >LIST.new
mv LIST.new LIST
wait
true
";

/// The processes that the key command has noted, once it has.
fn noted(list: &Path) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    while !list.exists() {
        assert!(Instant::now() < end, "the key command was not started");
        thread::sleep(Duration::from_millis(10));
    }
    let text = fs::read_to_string(list).unwrap();
    fs::remove_file(list).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Waits until they have ended; what waits for somebody to ask how has ended.
fn require_ended(processes: &[String], what: &str) {
    let end = Instant::now() + PATIENCE;
    let is_there = |id: &&String| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    while let Some(id) = processes.iter().find(is_there) {
        assert!(Instant::now() < end, "{what}: process {id} is still there");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn rule_13_8_a_key_command_ends_with_who_has_asked_for_it() {
    let stage = small(Major::V15, Store::Directory);
    stage.archive_all();
    let keys = stage.cluster.create_dir("keys").unwrap();
    let (list, deaf) = (keys.join("list"), keys.join("deaf"));
    fs::write(&deaf, DEAF.replace("LIST", list.to_str().unwrap())).unwrap();
    fs::set_permissions(&deaf, fs::Permissions::from_mode(0o755)).unwrap();
    let sql = "SELECT last_archived_wal FROM pg_stat_archiver";
    let name = stage.cluster.sql("postgres", sql).unwrap();
    let segment = format!("{}/pg_wal/{name}", stage.pgdata());
    let got = stage.target("got").display().to_string();
    let key = ["--key-command", deaf.to_str().unwrap()];
    for words in [
        &["archive-push", &segment][..],
        &["archive-get", &name, &got],
    ] {
        for signal in ["-HUP", "-INT", "-QUIT", "-TERM", "-ABRT", "-KILL"] {
            let mut child = process::spawn(&stage, &[&key, words].concat());
            let processes = noted(&list);
            assert_eq!(processes.len(), 4, "{processes:?}");
            process::signal(&child, signal);
            assert!(child.wait().unwrap().signal().is_some(), "{signal}");
            require_ended(&processes, &format!("{words:?} {signal}"));
        }
    }
    // The server sends its signals to all in the group of the archiver.
    stage.archive_with(&format!("--cluster main {}", key.join(" ")));
    stage
        .cluster
        .sql(
            "postgres",
            "CREATE TABLE switched (); SELECT pg_switch_wal()",
        )
        .unwrap();
    let processes = noted(&list);
    stage.cluster.stop(StopMode::Immediate).unwrap();
    require_ended(&processes, "an immediate shutdown");
}
