//! Each command under each signal in the middle of its work, with few descriptors, little memory and no room: it ends with the
//! code that OPERATIONS.md names and says why in one line, and the same command completes what it had begun.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;
use support::{PATIENCE, Stage, Store, files, process, text};

const WARNINGS: i32 = 3;
const REFUSED: i32 = 13;
const REPOSITORY: i32 = 15;
const SERVER: i32 = 16;
const FILE: i32 = 17;
const INTERRUPTED: i32 = 130;
const STOP_RECOVERY: i32 = 255;

const HUP: i32 = 1;
const INT: i32 = 2;
const QUIT: i32 = 3;
const ABORT: i32 = 6;
/// The program does not fit: it ends before it has begun.
const SEGV: i32 = 11;
const TERM: i32 = 15;

/// Who is held up by the library for longer has not ended at once.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A command, run again and again on the same repository.
#[derive(Clone)]
struct Act {
    words: String,
    /// Whether it stops at a safe place when it is asked to.
    stops: bool,
    /// What it makes beside the repository, or needs to be absent from it.
    makes: Option<PathBuf>,
}

/// A server, a chain of three layers and a full one beside it, a sealed cluster, and a copy of that repository.
struct Scene {
    stage: Stage,
    library: PathBuf,
    saved: PathBuf,
    /// Of the sealed cluster's reader.
    identity: String,
    /// Of who may become one.
    other: String,
}

impl Scene {
    fn new() -> Self {
        let builder = Cluster::builder(Major::V15)
            .initdb_arg("--wal-segsize=1")
            .conf("autovacuum", "off");
        let stage = Stage::silent(builder, Store::Directory);
        let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
        sql("CREATE TABLE t AS SELECT g, md5(g::text) FROM generate_series(1, 20000) g");
        for kind in ["full", "incr", "incr", "full"] {
            stage.backup(&["--type", kind]);
            sql("UPDATE t SET g = -g WHERE g % 5 = 0");
        }
        let keys = stage.cluster.create_dir("keys").unwrap();
        let [identity, other] = ["one", "other"].map(|who| keys.join(who).display().to_string());
        let [one, other] = [&identity, &other].map(|file| stage.ok(&["key", "generate", file]));
        let pgdata = stage.pgdata();
        let seal = ["init", "--pgdata", &pgdata, "--encrypt"];
        let to = ["--one-recipient", "--recipient", one.trim()];
        stage.ok(&[&["--cluster", "vault"], &seal[..], &to].concat());
        let saved = stage.target("saved");
        files::copy_all(&stage.objects(), &saved);
        Self {
            library: process::provoker(&stage),
            stage,
            saved,
            identity,
            other: other.trim().to_owned(),
        }
    }

    /// The label of the last layer of the chain, and the name of a segment that the archive has.
    fn named(&self) -> (String, String) {
        let info = self.stage.json(&["info"]);
        let label = text(&info, "/layers/2/label").to_owned();
        let wal = fs::read_dir(self.saved.join("main/wal/00000001")).unwrap();
        let names = wal.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        (label, names.min().unwrap())
    }

    /// Every command that reads or writes much, and those that store a few objects.
    fn acts(&self) -> Vec<Act> {
        [self.small_acts(), self.large_acts()].concat()
    }

    /// They are done before anybody could stop them.
    fn small_acts(&self) -> Vec<Act> {
        let (label, _) = self.named();
        let pgdata = self.stage.pgdata();
        let sealed = format!("--cluster vault --identity {}", self.identity);
        let words = [
            format!("pin {label} --note moved"),
            format!("annotate {label} ticket=4711"),
            format!("--cluster second init --pgdata {pgdata}"),
            format!("{sealed} key add --recipient {}", self.other),
            format!("{sealed} key rotate"),
            format!("{sealed} key check"),
        ];
        let act = |words| Act {
            words,
            stops: false,
            makes: None,
        };
        words.map(act).into()
    }

    fn large_acts(&self) -> Vec<Act> {
        let (label, segment) = self.named();
        let pgdata = self.stage.pgdata();
        let scratch = self.stage.target("scratch");
        if !scratch.exists() {
            self.stage.cluster.create_dir("scratch").unwrap();
        }
        let far = scratch.join(&segment);
        let get = format!("archive-get {segment} {}", far.display());
        assert_eq!(self.run("", &get).status.code(), Some(0));
        let at = |name: &str| scratch.join(name);
        let act = |words: &str| Act {
            words: words.to_owned(),
            stops: true,
            makes: None,
        };
        let making = |words: &str, path: PathBuf| Act {
            words: format!("{words}{}", path.display()),
            stops: true,
            makes: Some(path),
        };
        let restore = "restore --target-type immediate --target-dir ";
        let recovered = format!("archive-get {segment} ");
        vec![
            Act {
                stops: false,
                ..act("info")
            },
            act("verify --deep"),
            Act {
                stops: false,
                ..act(&format!("check --pgdata {pgdata}"))
            },
            act(&format!("backup --type full --pgdata {pgdata}")),
            act("expire --keep-full 1"),
            making(restore, at("restored")),
            act(&format!("merge {label} --remove-inputs")),
            making("copy --to file://", at("copied")),
            Act {
                words: format!("archive-push {}", far.display()),
                stops: false,
                makes: Some(
                    self.stage
                        .objects()
                        .join("main/wal/00000001")
                        .join(&segment),
                ),
            },
            Act {
                stops: false,
                ..making(&recovered, at("RECOVERYXLOG"))
            },
        ]
    }

    /// All is as at the beginning.
    fn reset(&self, act: &Act) {
        let objects = self.stage.objects();
        fs::remove_dir_all(&objects).unwrap();
        files::copy_all(&self.saved, &objects);
        match &act.makes {
            Some(path) if path.is_dir() => fs::remove_dir_all(path).unwrap(),
            Some(path) if path.exists() => fs::remove_file(path).unwrap(),
            _ => {}
        }
    }

    /// Runs the program in a shell, as the server's user.
    fn run(&self, before: &str, words: &str) -> Output {
        let mut shell = self
            .stage
            .cluster
            .command_as_server_user(Path::new("/bin/sh"));
        shell
            .env("PGSTRATA_REPO", &self.stage.repository)
            .env("PGSTRATA_CLUSTER", "main")
            .env("PGSTRATA_HOLE_TIMEOUT", "0s")
            // Hundreds of commands, on a machine that other tests keep busy.
            .env("PGSTRATA_IMPACT", "none")
            .env("TMPDIR", self.stage.target("scratch"))
            .env("RUST_BACKTRACE", "0");
        let program = self.stage.program.display();
        let script = format!("ulimit -c 0; {before} exec '{program}' --jobs 2 {words}");
        shell.args(["-c", &script]).output().unwrap()
    }

    /// The same with the library made of `support/provoke.c`.
    fn provoked(&self, settings: &str, words: &str) -> Output {
        let preload = self.library.display();
        self.run(&format!("{settings} LD_PRELOAD={preload}"), words)
    }

    /// How many files the command opens, reads and writes.
    fn count(&self, act: &Act) -> u64 {
        self.reset(act);
        let told = self.stage.target("scratch").join("count");
        let output = self.provoked(&format!("COUNT={}", told.display()), &act.words);
        require_done(&output, &act.words);
        fs::read_to_string(told).unwrap().parse().unwrap()
    }

    /// Runs it with that signal at that place, or earlier when it does less this time: it waits for others, now longer, now less.
    /// Answers how long that has taken, too.
    fn signalled(&self, act: &Act, (signal, mut at): (i32, u64), more: &str) -> (Output, Duration) {
        let told = self.stage.target("scratch").join("count");
        loop {
            self.reset(act);
            let _ = fs::remove_file(&told);
            let count = told.display();
            let way = format!("RAISE={signal} RAISE_AT={at} COUNT={count}{more}");
            let begun = Instant::now();
            let output = self.provoked(&way, &act.words);
            let took = begun.elapsed();
            let done = fs::read_to_string(&told).ok();
            match done.and_then(|done| done.parse::<u64>().ok()) {
                Some(done) if done < at => at = done * 2 / 3,
                _ => return (output, took),
            }
        }
    }

    /// The same command again does what was left, and every layer that is listed is whole.
    fn require_completed(&self, act: &Act, way: &str) {
        let output = self.run("", &act.words);
        require_done(&output, &format!("{} after {way}", act.words));
        self.require_whole_layers(act, way);
    }

    fn require_whole_layers(&self, act: &Act, way: &str) {
        let output = self.run("", "--output json verify");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let serious = findings.iter().find(|found| found["severity"] == "error");
        assert_eq!(serious, None, "{} after {way}: {report:#}", act.words);
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn require_done(output: &Output, what: &str) {
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | WARNINGS)),
        "{what}: {}: {}",
        output.status,
        said(output)
    );
}

/// One error, in one line, and no panic.
fn require_one_error(output: &Output, what: &str) {
    let log = said(output);
    let errors = log
        .lines()
        .filter(|line| line.starts_with("pgstrata: error: "));
    assert_eq!(errors.count(), 1, "{what}: {}: {log}", output.status);
    assert!(!log.contains("panicked"), "{what}: {log}");
}

/// At a third and at two thirds of the work, and elsewhere until one place is early enough to be stopped at.
fn signals_end(scene: &Scene, act: &Act) {
    let whole = scene.count(act);
    let asks = act.stops;
    let thirds = [(TERM, 4), (TERM, 8), (INT, 4), (HUP, 8), (QUIT, 8)];
    let mut stopped = 0;
    for (signal, twelfths) in thirds {
        stopped += usize::from(signal_ends(scene, act, (signal, whole * twelfths / 12)));
    }
    let mut elsewhere = (1..12).map(|twelfths| (TERM, whole * twelfths / 12));
    let stops = stopped > 0 || asks && elsewhere.any(|place| signal_ends(scene, act, place));
    assert_eq!(stops, asks, "{}", act.words);
    if asks {
        let way = "a second signal";
        let (output, took) = scene.signalled(act, (TERM, whole / 3), " RAISE_AGAIN=1");
        let told = format!("{}, {way}: {}", act.words, said(&output));
        assert_eq!(output.status.code(), Some(INTERRUPTED), "{told}");
        assert!(took < AT_ONCE, "{told}");
        scene.require_completed(act, way);
    }
}

/// The signal arrives at that place. Answers whether the command was stopped there, and did not go on to its end.
fn signal_ends(scene: &Scene, act: &Act, (signal, at): (i32, u64)) -> bool {
    let words = &act.words;
    let way = format!("signal {signal} at {at}");
    let (output, _) = scene.signalled(act, (signal, at), "");
    let told = format!("{words}, {way}: {}: {}", output.status, said(&output));
    let is_stopped = output.status.code() == Some(INTERRUPTED);
    if act.stops && [TERM, INT, HUP].contains(&signal) {
        // What cannot be stopped any more is done to its end.
        let is_done = matches!(output.status.code(), Some(0 | WARNINGS));
        assert!(is_stopped || is_done, "{told}");
        if is_stopped {
            require_one_error(&output, &told);
        }
    } else {
        assert_eq!(output.status.signal(), Some(signal), "{told}");
    }
    match output.status.code() {
        Some(0 | WARNINGS) => {}
        _ => scene.require_completed(act, &way),
    }
    is_stopped
}

#[test]
fn a_signal_in_the_middle_ends_each_command_of_the_repository_with_its_code() {
    let scene = Scene::new();
    let acts = scene.acts();
    let of_server = |act: &&Act| act.words.contains("--pgdata") || act.words.contains("archive-");
    for act in acts.iter().filter(|act| !of_server(act)) {
        signals_end(&scene, act);
    }
}

#[test]
fn a_signal_in_the_middle_ends_each_command_of_the_server_with_its_code() {
    let scene = Scene::new();
    let acts = scene.acts();
    let of_server = |act: &&Act| act.words.contains("--pgdata") || act.words.contains("archive-");
    for act in acts.iter().filter(of_server) {
        signals_end(&scene, act);
    }
}

/// It works with little, or says in one line what it lacks.
fn little_is_enough_or_named(scene: &Scene, act: &Act) {
    let words = &act.words;
    let gets = words.starts_with("archive-get");
    let checks = words.starts_with("check");
    for limit in [
        "ulimit -n 4",
        "ulimit -n 8",
        "ulimit -n 12",
        "ulimit -n 16",
        "ulimit -n 24",
        "ulimit -n 32",
        "ulimit -n 48",
        "ulimit -n 63",
        "ulimit -v 30000",
        "ulimit -v 60000",
        "ulimit -v 120000",
        "ulimit -v 250000",
    ] {
        scene.reset(act);
        let output = scene.run(&format!("{limit};"), words);
        let told = format!("{words}, {limit}: {}: {}", output.status, said(&output));
        let memory = limit.contains("-v");
        match (output.status.code(), output.status.signal()) {
            (Some(0 | WARNINGS), _) => {
                scene.require_whole_layers(act, limit);
                continue;
            }
            (Some(STOP_RECOVERY), _) if gets => {}
            (Some(REPOSITORY | SERVER), _) if !memory && !gets => {}
            (Some(FILE), _) if !gets => {}
            // A line of its own says so.
            (Some(REFUSED), _) if checks => continue,
            (_, Some(ABORT | SEGV)) if memory => {
                scene.require_completed(act, limit);
                continue;
            }
            _ => panic!("{told}"),
        }
        require_one_error(&output, &told);
        scene.require_completed(act, limit);
    }
}

#[test]
fn few_descriptors_and_little_memory_are_enough_or_named() {
    let scene = Scene::new();
    for act in scene.acts() {
        little_is_enough_or_named(&scene, &act);
    }
}

/// With these descriptors none of them works. One who may have more has more.
#[test]
fn a_small_soft_limit_of_descriptors_is_raised_to_the_hard_one() {
    let scene = Scene::new();
    for act in scene.acts() {
        scene.reset(&act);
        let few = scene.run("ulimit -n 8;", &act.words);
        assert!(!few.status.success(), "{}", act.words);
        assert!(said(&few).contains("Too many open files"), "{}", said(&few));
        scene.reset(&act);
        let raised = scene.run("ulimit -S -n 8; ulimit -H -n 256;", &act.words);
        require_done(&raised, &act.words);
    }
}

/// A closed or full stream changes nothing of the work, but for what cannot be printed.
fn streams_change_nothing(scene: &Scene, act: &Act) {
    let words = &act.words;
    let of_server = words.starts_with("archive-");
    for (redirected, is_heard) in [
        ("exec 2>&-;", true),
        ("exec 2>/dev/full;", true),
        ("exec >&-;", true),
        ("exec >&- 2>&- <&-;", true),
        ("exec >/dev/full;", false),
    ] {
        scene.reset(act);
        let output = scene.run(redirected, words);
        let told = format!(
            "{words}, {redirected}: {}: {}",
            output.status,
            said(&output)
        );
        let expected: &[i32] = match is_heard || of_server {
            true => &[0, WARNINGS],
            false => &[FILE],
        };
        assert!(expected.contains(&output.status.code().unwrap()), "{told}");
    }
    scene.require_whole_layers(act, "streams");
}

#[test]
fn closed_streams_change_no_code() {
    let scene = Scene::new();
    for act in scene.acts() {
        streams_change_nothing(&scene, &act);
    }
}

#[test]
fn no_room_is_named_and_what_was_begun_is_completed() {
    let scene = Scene::new();
    for act in scene.acts() {
        let words = &act.words;
        scene.reset(&act);
        let output = scene.provoked("NO_ROOM=1", words);
        let told = format!("{words}: {}: {}", output.status, said(&output));
        let expected = match words.split(' ').next().unwrap() {
            // They write nothing that they need.
            "info" | "verify" => &[0, WARNINGS][..],
            _ if words.ends_with("key check") => &[WARNINGS],
            "restore" => &[FILE],
            "archive-get" => &[STOP_RECOVERY],
            "check" => &[REFUSED],
            _ => &[REPOSITORY],
        };
        assert!(expected.contains(&output.status.code().unwrap()), "{told}");
        if ![0, WARNINGS, REFUSED].contains(&expected[0]) {
            require_one_error(&output, &told);
            assert!(told.contains("No space left on device"), "{told}");
        }
        scene.require_completed(&act, "no room");
    }
    nothing_is_fetched_ahead_into_a_full_spool(&scene);
}

fn nothing_is_fetched_ahead_into_a_full_spool(scene: &Scene) {
    let acts = scene.acts();
    let get = acts.last().unwrap();
    scene.reset(get);
    let spool = scene.stage.cluster.create_dir("spool").unwrap();
    let words = format!("{} --spool {}", get.words, spool.display());
    let output = scene.provoked(&format!("NO_ROOM={}", spool.display()), &words);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let to = get.makes.as_ref().unwrap();
    assert_eq!(fs::metadata(to).unwrap().len(), 1 << 20);
}

/// The server writes it for minutes, and looks whether anybody waits.
#[test]
fn a_backup_killed_while_the_server_writes_its_checkpoint_holds_nothing_after_seconds() {
    let builder = Cluster::builder(Major::V15)
        .conf("checkpoint_timeout", "30min")
        .conf("bgwriter_lru_maxpages", "0");
    let stage = Stage::silent(builder, Store::Directory);
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE t AS SELECT g, repeat('x', 500) FROM generate_series(1, 60000) g");
    let pgdata = stage.pgdata();
    let spread = ["--wal", "stream", "--checkpoint", "spread"];
    let mut child = process::spawn(
        &stage,
        &[&["backup", "--pgdata", &pgdata], &spread[..]].concat(),
    );
    let wait_for = |query, patience| stage.cluster.wait_for("postgres", query, patience).unwrap();
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'CheckpointDone')
        AND EXISTS (SELECT FROM pg_replication_slots)";
    wait_for(waits, PATIENCE);
    process::signal(&child, "-KILL");
    child.wait().unwrap();
    let is_gone = "SELECT NOT EXISTS (SELECT FROM pg_replication_slots) AND NOT EXISTS
        (SELECT FROM pg_stat_activity WHERE application_name LIKE 'pgstrata%')";
    wait_for(is_gone, Duration::from_secs(20));
    // The checkpoint goes on, and was not what it waited for.
    let begun = "SELECT count(*) FROM pg_stat_activity
        WHERE backend_type = 'checkpointer' AND wait_event = 'CheckpointWriteDelay'";
    assert_eq!(sql(begun), "1");
    stage.backup(&["--wal", "stream"]);
}
