//! Identities are secrets: no core dump, log, command line or file of a restored server tells them.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use support::vault::Vault;
use support::{PATIENCE, Store, process, text};

const USAGE: i32 = 2;
const REFUSED: i32 = 13;
const FILE: i32 = 17;

const SECRET: &str = "AGE-SECRET-KEY-";

fn silent() -> Vault {
    Vault::on(Cluster::builder(Major::V15), Store::Directory)
}

/// Somebody's identity itself.
fn secret(vault: &Vault, who: &str) -> String {
    let file = fs::read_to_string(vault.identity(who)).unwrap();
    let mut lines = file.lines();
    lines
        .find(|line| line.starts_with(SECRET))
        .unwrap()
        .to_owned()
}

/// Whether the kernel gives what the process remembers to nobody: then root owns what /proc says of it.
fn is_guarded(child: &Child) -> bool {
    let file = format!("/proc/{}/environ", child.id());
    fs::metadata(file).unwrap().uid() == 0
}

/// A pipe that the server's user may open as /dev/stdin.
fn pipe(vault: &Vault) -> (io::PipeReader, io::PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    let owner = fs::metadata(vault.stage.pgdata()).unwrap();
    fchown(&reader, Some(owner.uid()), Some(owner.gid())).unwrap();
    (reader, writer)
}

/// A pipe with a name, that the server's user may read.
fn fifo(vault: &Vault, name: &str) -> String {
    let path = vault.identity(name);
    process::make_pipe(path.as_ref());
    vault.stage.cluster.own(path.as_ref()).unwrap();
    path
}

/// A process that waits for its configuration file, before it has read anything else.
#[test]
fn an_identity_in_the_environment_is_guarded_before_anything_is_read() {
    let vault = silent();
    for (value, expected) in [(Some(secret(&vault, "one")), true), (None, false)] {
        let (reader, mut writer) = pipe(&vault);
        // As much as a pipe takes.
        writer.write_all(&[b'\n'; 64 << 10]).unwrap();
        let mut command = vault.stage.command(&["--cluster", "vault", "info"]);
        command.env("PGSTRATA_CONFIG", "/dev/stdin").stdin(reader);
        command.envs(value.map(|value| ("PGSTRATA_IDENTITY", value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // Its copy of the pipe's end.
        drop(command);
        // There is room when the process reads.
        writer.write_all(b"\n").unwrap();
        assert_eq!(is_guarded(&child), expected);
        drop(writer);
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), expected, "{log}");
        assert!(!log.contains(SECRET), "{log}");
    }
}

#[test]
fn an_identity_of_a_file_or_a_program_is_guarded_before_it_is_read() {
    let vault = silent();
    // The program looks at its guard, and at who has asked.
    let seen = vault.identity("seen");
    let own = vault.identity("one");
    let asker = "$(cut -d ' ' -f 4 /proc/$PPID/stat)";
    let command =
        format!("stat -c %u /proc/$PPID/environ /proc/{asker}/environ > {seen}; cat {own}");
    vault.ok("", &["info", "--key-command", &command]);
    assert_eq!(fs::read_to_string(&seen).unwrap(), "0\n0\n");

    let (reader, mut writer) = pipe(&vault);
    let mut command = vault.stage.command(&["--cluster", "vault", "info"]);
    command.args(["--identity", "/dev/stdin"]).stdin(reader);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(command);
    let end = Instant::now() + PATIENCE;
    while !is_guarded(&child) {
        assert!(Instant::now() < end, "it reads without a guard");
        thread::sleep(Duration::from_millis(10));
    }
    writer.write_all(&fs::read(&own).unwrap()).unwrap();
    drop(writer);
    assert!(child.wait_with_output().unwrap().status.success());
}

/// What a process may leave when it crashes, in bytes; and what it could allow itself.
fn most_of_a_core_dump(process: u32) -> [String; 2] {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max core file size"));
    let mut words = line.unwrap().split_whitespace().map(str::to_owned);
    [words.next().unwrap(), words.next().unwrap()]
}

#[test]
fn a_command_with_the_keys_of_a_store_leaves_no_core_dump() {
    let vault = silent();
    // What a shell allows its commands, and the tests have from it.
    let mut prlimit = Command::new("prlimit");
    let own = std::process::id();
    let [_, most] = most_of_a_core_dump(own);
    prlimit.args([format!("--core={most}:"), format!("--pid={own}")]);
    assert!(prlimit.status().unwrap().success());
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", store.local_addr().unwrap());
    let at = [
        "--repo",
        "s3://bucket/x",
        "--s3-endpoint",
        &endpoint,
        "--storage",
        "allow_http=true",
    ];
    let mut command = vault.stage.command(&[&at[..], &["info"]].concat());
    command
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "very-secret");
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    // It gets no answer.
    let asked = store.accept().unwrap();
    let lowered = if most == "0" { "0" } else { "1" };
    assert_eq!(most_of_a_core_dump(child.id())[0], lowered);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(asked);

    let (reader, mut writer) = pipe(&vault);
    writer.write_all(&[b'\n'; 64 << 10]).unwrap();
    let mut command = vault.stage.command(&["info"]);
    command
        .env("PGSTRATA_CONFIG", "/dev/stdin")
        .stdin(reader)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    writer.write_all(b"\n").unwrap();
    assert_eq!(most_of_a_core_dump(child.id())[0], most);
    drop(writer);
    child.wait().unwrap();
}

/// Runs a command that makes what others must not see, and requires that it is guarded when that `is_made`; answers what
/// it prints. Nobody reads that before, so it stays.
fn printed_under_guard(mut command: Command, is_made: impl Fn() -> bool) -> String {
    let (mut reader, mut writer) = io::pipe().unwrap();
    // As much as a pipe takes.
    writer.write_all(&[b'\n'; 64 << 10]).unwrap();
    let mut child = command.stdout(writer).spawn().unwrap();
    // Its copy of the pipe's end.
    drop(command);
    let end = Instant::now() + PATIENCE;
    while !is_made() {
        assert!(Instant::now() < end, "nothing is made");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(is_guarded(&child));
    let mut printed = String::new();
    reader.read_to_string(&mut printed).unwrap();
    assert!(child.wait().unwrap().success());
    printed
}

/// An epoch has an identity of its own.
#[test]
fn who_makes_an_epoch_is_guarded() {
    let vault = silent();
    let pgdata = vault.stage.pgdata();
    let recipient = vault.recipient("one");
    let init = ["--cluster", "more", "init", "--pgdata", &pgdata];
    let to = ["--encrypt", "--one-recipient", "--recipient", &recipient];
    let command = vault.stage.command(&[&init[..], &to].concat());
    let record = vault.stage.objects().join("more/cluster");
    let printed = printed_under_guard(command, || record.exists());
    assert!(printed.contains("seal id"), "{printed}");
}

#[test]
fn a_configuration_file_with_a_secret_is_nobody_elses() {
    let vault = silent();
    let config = vault.identity("open.toml");
    let keys = |table: &str| format!("[{table}storage]\nsecret_access_key = \"{SECRET}\"\n");
    let far = format!(
        "[repositories.far]\nrepo = \"s3://b/p\"\n{}",
        keys("repositories.far.")
    );
    for text in [keys(""), far] {
        fs::write(&config, text).unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
        let log = vault.fails("", &["info", "--config", &config], REFUSED);
        assert!(
            log.contains("can be read or written by others (mode 0644)"),
            "{log}"
        );
        assert!(!log.contains(SECRET), "{log}");
    }
    fs::write(&config, "[storage]\nretry_seconds = \"2\"\n").unwrap();
    vault.ok("one", &["info", "--config", &config]);
}

#[test]
fn who_makes_an_identity_is_guarded() {
    let vault = silent();
    let file = vault.identity("new");
    let command = vault.stage.command(&["key", "generate", &file]);
    let is_written = || fs::read_to_string(&file).map_or(0, |text| text.lines().count()) >= 2;
    let printed = printed_under_guard(command, is_written);
    assert_eq!(printed.trim(), vault.recipient("new"));
    assert!(!printed.contains(SECRET));
}

/// Files below `directory` that hold the word.
fn telling(directory: &Path, word: &str) -> Vec<String> {
    let found = Command::new("grep")
        .args(["-rlaF", word])
        .arg(directory)
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    found.lines().map(str::to_owned).collect()
}

#[test]
fn an_identity_in_the_environment_restores_and_stays_there() {
    let vault = silent();
    let stage = &vault.stage;
    let create = "CREATE TABLE t AS SELECT generate_series(1, 1000) AS n";
    stage.cluster.sql("postgres", create).unwrap();
    let full = vault.backup(&["--type", "full", "--wal", "stream"]);
    let dump = stage.cluster.dump().unwrap();
    let config = vault.identity("pgstrata.toml");
    fs::write(&config, format!("repo = \"{}\"\n", stage.repository)).unwrap();
    let own = secret(&vault, "one");
    let target = stage.target("restored");
    let run = |arguments: &[&str]| {
        let mut command = stage.command(&["--cluster", "vault", "--log-level", "debug"]);
        command
            .env("PGSTRATA_IDENTITY", &own)
            .env("PGSTRATA_CONFIG", &config);
        let output = command.args(arguments).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {log}");
        assert!(!log.contains(&own[20..]), "{arguments:?}: {log}");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!printed.contains(&own[20..]), "{arguments:?}: {printed}");
        log
    };
    run(&["info"]);
    run(&["verify", "--deep"]);
    let to = ["restore", text(&full, "/label"), "--target-dir"];
    let to = [&to[..], &[target.to_str().unwrap()]].concat();
    let then = ["--target-type", "immediate", "--target-action", "promote"];
    let log = run(&[&to[..], &then].concat());
    assert!(
        log.contains("the identity in PGSTRATA_IDENTITY is not written into restore_command"),
        "{log}"
    );
    let settings = fs::read_to_string(target.join("postgresql.auto.conf")).unwrap();
    assert!(settings.contains("restore_command"), "{settings}");
    assert!(settings.contains(&config), "{settings}");
    assert_eq!(telling(&target, &own[20..]), Vec::<String>::new());
    assert_eq!(telling(&stage.objects(), &own[20..]), Vec::<String>::new());

    // As the restore says: the server finds an identity by its configuration.
    let identity = format!("identity = \"{}\"\n", vault.identity("one"));
    let repository = fs::read_to_string(&config).unwrap();
    fs::write(&config, repository + &identity).unwrap();
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

/// Ends with that code, and prints nothing of the secret; answers what it prints.
fn says_nothing_of(own: &str, command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {printed}");
    let upper = printed.to_uppercase();
    assert!(!upper.contains(&own[20..]), "{printed}");
    printed
}

#[test]
fn an_identity_that_stands_in_the_wrong_place_is_not_printed() {
    let vault = silent();
    let own = secret(&vault, "one");
    let file = fs::read_to_string(vault.identity("one")).unwrap();
    let quoted = format!("\"{own}\"");
    let small = own.to_lowercase();
    for (value, code) in [(&file, 0), (&quoted, REFUSED), (&small, 0)] {
        for output in ["text", "json"] {
            let mut command = vault.command("", &["--output", output, "info"]);
            command.env("PGSTRATA_IDENTITY", value);
            says_nothing_of(&own, &mut command, code);
        }
    }
    let (spaced, echo) = (format!(" {own}"), format!("echo {own}"));
    let repository = format!("file:///{own}");
    for words in [
        &["key", "remove", &own][..],
        &["key", "remove", &small],
        &["key", "add", "--recipient", &file],
        &["key", "reseal", &spaced],
        &[
            "restore",
            "--target-dir",
            "/nowhere",
            "--key-command",
            &echo,
        ],
        &["--repo", &repository, "info"],
        &["info", "--identity", &quoted],
    ] {
        for output in ["text", "json"] {
            let words = [&["--output", output], words].concat();
            let printed = says_nothing_of(&own, &mut vault.command("one", &words), USAGE);
            let says = "an identity itself stands on the command line";
            assert!(printed.contains(says), "{printed}");
        }
    }
    let cat = format!("cat {} >&2; exit 1", vault.identity("one"));
    let mut command = vault.command("", &["info", "--key-command", &cat]);
    let printed = says_nothing_of(&own, &mut command, REFUSED);
    assert!(printed.contains("AGE-SECRET-KEY-..."), "{printed}");
    let config = vault.identity("pgstrata.toml");
    fs::write(&config, format!("key-command = \"{echo}\"\n")).unwrap();
    let mut command = vault.command("", &["info", "--config", &config]);
    let printed = says_nothing_of(&own, &mut command, USAGE);
    let says = "an identity itself stands in the configuration file";
    assert!(printed.contains(says), "{printed}");
}

#[test]
fn a_pipe_with_a_name_is_refused_and_not_waited_for() {
    let vault = silent();
    let pipe = fifo(&vault, "pipe");
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o600)).unwrap();
    for option in ["--identity", "--config", "--credentials"] {
        let log = vault.fails("", &["info", option, &pipe], FILE);
        assert!(log.contains("it is a named pipe"), "{option}: {log}");
    }
}

#[test]
fn an_identity_that_restore_command_could_not_name_is_refused_or_left_out() {
    let vault = silent();
    vault.backup(&["--type", "full", "--wal", "stream"]);
    let target = vault.stage.target("restored");
    let to = [
        "restore",
        "--dry-run",
        "--target-dir",
        target.to_str().unwrap(),
    ];
    // A name in Latin-1.
    let named = [vault.identity("caf").as_bytes(), b"\xe9"].concat();
    let named = OsStr::from_bytes(&named);
    fs::copy(vault.identity("one"), named).unwrap();
    vault.stage.cluster.own(named.as_ref()).unwrap();
    let of_option = |command: &mut Command| command.arg("--identity").arg(named).output();
    let of_environment = |command: &mut Command| command.env("PGSTRATA_IDENTITY", named).output();
    for output in [
        of_option(&mut vault.command("", &to)),
        of_environment(&mut vault.command("", &to)),
    ] {
        let output = output.unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(USAGE), "{log}");
        assert!(log.contains("is not UTF-8"), "{log}");
    }

    let (reader, mut writer) = pipe(&vault);
    let own = fs::read(vault.identity("one")).unwrap();
    writer.write_all(&own).unwrap();
    drop(writer);
    let mut command = vault.command("", &to);
    command.args(["--identity", "/dev/stdin"]).stdin(reader);
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let says = "the identity at /dev/stdin is not written into restore_command";
    assert!(log.contains(says), "{log}");
    let plan = String::from_utf8_lossy(&output.stdout);
    assert!(!plan.contains("--identity"), "{plan}");
}
