//! The commands of docs/RUNBOOKS.md, run as they stand there.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use pgstrata_testbed::s3::Bucket;
use support::{PATIENCE, Stage, Store};

const DATA_DIRECTORY: &str = "/var/lib/postgresql/15/main";
const TIME: &str = "2026-11-21 09:33:05+00";
const SEGMENT: &str = "000000010000000000000007";

fn text() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/RUNBOOKS.md");
    fs::read_to_string(path).unwrap()
}

/// Titles of the runbooks that have commands, and these.
fn runbooks() -> Vec<(String, Vec<String>)> {
    let text = text();
    let sections = text.split("\n## ").skip(1);
    let sections = sections.map(|section| {
        let (title, rest) = section.split_once('\n').unwrap();
        let blocks = rest.split("```sh\n").skip(1);
        let blocks = blocks.map(|block| block.split("```").next().unwrap().to_owned());
        (title.to_owned(), blocks.collect())
    });
    sections.collect()
}

/// A server with a table, a backup, and a configuration file as the runbooks expect it.
struct Desk {
    stage: Stage,
    config: PathBuf,
    /// Where a copy listens.
    port: String,
    /// What stands in the text, and what that is here.
    names: Vec<(String, String)>,
}

/// Settings that have a server listen where that one does.
fn place(server: &Cluster) -> [(&'static str, String); 2] {
    let sockets = server.socket_dir().display().to_string();
    [
        ("unix_socket_directories", sockets),
        ("port", server.port().to_string()),
    ]
}

impl Desk {
    fn new() -> Self {
        let builder = Cluster::builder(Major::V15)
            .initdb_arg("--wal-segsize=1")
            .conf("wal_keep_size", "64MB");
        Self::on(Stage::archiving(builder, Store::Directory))
    }

    fn on(stage: Stage) -> Self {
        let server = &stage.cluster;
        // Whoever starts a copy of it says nothing of sockets and ports.
        let port = server.port().to_string();
        for (name, value) in place(server) {
            server.append_conf(name, &value).unwrap();
        }
        let orders = "CREATE TABLE orders AS SELECT generate_series(1, 1000) AS id";
        server.sql("postgres", orders).unwrap();
        stage.backup(&["--type", "full"]);
        let etc = server.create_dir("etc").unwrap();
        let config = etc.join("pgstrata.toml");
        let settings = format!(
            "repo = \"{}\"\ncluster = \"main\"\npgdata = \"{}\"\n",
            stage.repository,
            stage.pgdata()
        );
        fs::write(&config, settings).unwrap();
        let scratch = server.create_dir("restore").unwrap();
        // Nobody else has it by the time that the copy starts, hopefully; else the copy does not start. The server listens to
        // its socket alone, so its own number is free, too.
        let own = port;
        let port = loop {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port().to_string();
            if port != own {
                break port;
            }
        };
        let names = [
            (DATA_DIRECTORY, stage.pgdata()),
            ("/restore", scratch.display().to_string()),
            ("/etc/pgstrata", etc.display().to_string()),
        ];
        Self {
            names: names.map(|(from, to)| (from.to_owned(), to)).into(),
            config,
            port,
            stage,
        }
    }

    /// What is named last is looked for first.
    fn name(&mut self, from: &str, to: &str) {
        self.names.insert(0, (from.to_owned(), to.to_owned()));
    }

    /// A time at which everything so far was there.
    fn mark_time(&mut self) {
        let sql = |query| self.stage.cluster.sql("postgres", query).unwrap();
        sql("SELECT pg_sleep(0.05)");
        let time = sql("SELECT clock_timestamp()");
        sql("SELECT pg_sleep(0.05)");
        self.name(TIME, &time);
    }

    /// Runs the commands of a runbook, each of which must succeed; returns what they print.
    fn follow(&self, title: &str) -> String {
        let runbooks = runbooks();
        let found = runbooks.iter().find(|(known, _)| known == title);
        let (_, blocks) = found.unwrap_or_else(|| panic!("there is no runbook \"{title}\""));
        self.type_in(title, &blocks.join("\n"))
    }

    /// Runs these commands; returns what they print.
    fn type_in(&self, title: &str, commands: &str) -> String {
        let mut script = format!("set -eu\n{commands}");
        // First, because times and paths have digits, too.
        script = script.replace("5433", &self.port);
        for (from, to) in &self.names {
            script = script.replace(from, to);
        }
        let bash = Path::new("/bin/bash");
        let mut command = self.stage.cluster.command_as_server_user(bash);
        let programs = [
            self.stage.program.parent().unwrap(),
            self.stage.cluster.bindir(),
            Path::new("/usr/bin"),
            Path::new("/bin"),
        ];
        let known = self.stage.command(&[]);
        for (name, value) in known.get_envs() {
            let of_store = name.to_string_lossy();
            let of_store =
                of_store.starts_with("PGSTRATA_S3_") || of_store == "PGSTRATA_CREDENTIALS";
            if let Some(value) = value.filter(|_| of_store) {
                command.env(name, value);
            }
        }
        command
            .env("PATH", std::env::join_paths(programs).unwrap())
            .env("PGSTRATA_CONFIG", &self.config)
            .env("PGOPTIONS", "-c client_min_messages=warning")
            .args(["-x", "-c", &script]);
        // A server that the script starts keeps its standard output open.
        let log = self.config.with_extension("log");
        let file = fs::File::create(&log).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let status = command.status().unwrap();
        let printed = fs::read_to_string(&log).unwrap();
        assert!(status.success(), "{title}: {status}\n{printed}");
        printed
    }

    /// Nothing is left of a recovery that a standby of this server would obey.
    fn require_reset(&self) {
        let file = Path::new(&self.stage.pgdata()).join("postgresql.auto.conf");
        let settings = fs::read_to_string(file).unwrap();
        let left = settings.lines().filter(|line| {
            let of_the_way = line.starts_with("recovery_target") && !line.ends_with("''");
            of_the_way || line.starts_with("restore_command")
        });
        let left: Vec<&str> = left.collect();
        assert!(left.is_empty(), "{left:?}");
    }

    fn orders(&self) -> String {
        let count = "SELECT count(*) FROM orders";
        self.stage.cluster.sql("postgres", count).unwrap()
    }

    /// The objects of archived segments.
    fn archived(&self) -> PathBuf {
        self.stage.objects().join("main/wal/00000001")
    }

    /// An archived segment that the server still has.
    fn kept_segment(&self) -> String {
        let names = fs::read_dir(self.archived()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let kept = Path::new(&self.stage.pgdata()).join("pg_wal");
        let mut names: Vec<String> = names
            .filter(|name| name.len() == 24 && kept.join(name).exists())
            .collect();
        names.sort();
        names.pop().unwrap()
    }
}

#[test]
fn every_runbook_has_a_test() {
    let own = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runbooks.rs"));
    let own = own.unwrap();
    let text = text();
    for (title, blocks) in runbooks() {
        assert!(!blocks.is_empty(), "{title} has no commands");
        assert!(own.contains(&format!("follow(\"{title}\"")), "{title}");
        assert!(text.contains(&format!("[{title}](#")), "{title}");
    }
}

#[test]
fn bring_a_table_back() {
    let mut desk = Desk::new();
    desk.mark_time();
    desk.stage
        .cluster
        .sql("postgres", "DELETE FROM orders WHERE id > 10")
        .unwrap();
    desk.stage.archive_all();
    desk.follow("Bring a table back");
    assert_eq!(desk.orders(), "1000");
}

#[test]
fn the_server_is_lost() {
    let desk = Desk::new();
    desk.stage.archive_all();
    desk.stage.cluster.stop(StopMode::Immediate).unwrap();
    fs::remove_dir_all(desk.stage.pgdata()).unwrap();
    desk.follow("The server is lost");
    assert_eq!(desk.orders(), "1000");
    assert_eq!(desk.stage.layer_counts(), (2, 0));
}

#[test]
fn the_server_is_lost_and_its_wal_is_there() {
    let mut desk = Desk::new();
    desk.stage.archive_all();
    let server = &desk.stage.cluster;
    server.append_conf("archive_command", "false").unwrap();
    server.reload().unwrap();
    let sql = |query| server.sql("postgres", query).unwrap();
    sql("INSERT INTO orders SELECT generate_series(1001, 1500)");
    sql("SELECT pg_switch_wal()");
    sql("INSERT INTO orders SELECT generate_series(1501, 1700)");
    let last = sql("SELECT pg_walfile_name(pg_current_wal_lsn())");
    server.stop(StopMode::Immediate).unwrap();
    let old = Path::new(&desk.stage.pgdata()).with_file_name("old");
    fs::rename(desk.stage.pgdata(), &old).unwrap();
    desk.name("/mnt/old", &old.display().to_string());
    desk.name(SEGMENT, &last);
    let printed = desk.follow("The server is lost and its WAL is there");
    assert!(
        printed.contains("not finished this segment") && printed.contains("before its server"),
        "{printed}"
    );
    assert_eq!(desk.orders(), "1700");
}

#[test]
fn take_the_server_back() {
    let mut desk = Desk::new();
    desk.mark_time();
    desk.stage
        .cluster
        .sql("postgres", "DROP TABLE orders")
        .unwrap();
    desk.stage.archive_all();
    desk.follow("Take the server back");
    assert_eq!(desk.orders(), "1000");
    desk.require_reset();
}

#[test]
fn a_page_is_damaged() {
    let mut desk = Desk::new();
    let sql = |query: &str| desk.stage.cluster.sql("postgres", query).unwrap();
    let file = sql("SELECT pg_relation_filepath('orders')");
    let layer = desk.stage.backup(&["--type", "full"]);
    sql("CHECKPOINT");
    desk.stage.cluster.stop(StopMode::Fast).unwrap();
    let path = Path::new(&desk.stage.pgdata()).join(file);
    let mut bytes = fs::read(&path).unwrap();
    bytes[3000..5000].fill(0xAA);
    fs::write(&path, bytes).unwrap();
    desk.stage.cluster.start().unwrap();
    let sql = |query: &str| desk.stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE later AS SELECT 'committed' AS said");
    let label = support::text(&layer, "/label").to_owned();
    desk.name("20261121-093305F", &label);
    desk.follow("A page is damaged");
    assert_eq!(desk.orders(), "1000");
    let said = desk.stage.cluster.sql("postgres", "SELECT said FROM later");
    assert_eq!(said.unwrap(), "committed");
}

#[test]
fn promote_while_the_repository_is_away() {
    let mut desk = Desk::new();
    desk.stage.archive_all();
    let directory = desk.stage.restore("standby", &["--target-type", "standby"]);
    let standby = Cluster::adopt(Major::V15, &directory).start().unwrap();
    assert_eq!(
        standby
            .sql("postgres", "SELECT pg_is_in_recovery()")
            .unwrap(),
        "t"
    );
    desk.stage.cluster.stop(StopMode::Immediate).unwrap();
    let repository = desk.stage.objects();
    fs::rename(&repository, repository.with_extension("away")).unwrap();
    let end = Instant::now() + PATIENCE;
    while standby.postmaster().is_ok() {
        assert!(Instant::now() < end, "the standby goes on");
        thread::sleep(Duration::from_millis(100));
    }
    desk.name(DATA_DIRECTORY, &directory.display().to_string());
    let printed = desk.follow("Promote while the repository is away");
    assert!(printed.lines().any(|line| line == "f"), "{printed}");
    desk.stage
        .cluster
        .sql("postgres", "INSERT INTO orders VALUES (1001)")
        .unwrap();
    assert_eq!(desk.orders(), "1001");
}

#[test]
fn mend_the_archive() {
    for damages in [false, true] {
        let mut desk = Desk::new();
        for _ in 0..3 {
            desk.stage.archive_all();
        }
        let name = desk.kept_segment();
        desk.stage.archive_all();
        let object = desk.archived().join(&name);
        if damages {
            let mut bytes = fs::read(&object).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&object, bytes).unwrap();
        } else {
            fs::remove_file(&object).unwrap();
        }
        desk.name(SEGMENT, &name);
        let printed = desk.follow("Mend the archive");
        assert!(printed.contains(&name), "{printed}");
        desk.stage.ok(&["verify"]);
    }
}

#[test]
fn archiving_stands_still() {
    let desk = Desk::new();
    let server = &desk.stage.cluster;
    let works = server.sql("postgres", "SHOW archive_command").unwrap();
    server.append_conf("archive_command", "false").unwrap();
    server.reload().unwrap();
    server
        .sql("postgres", "CREATE TABLE more (); SELECT pg_switch_wal()")
        .unwrap();
    let failed = "SELECT failed_count > 0 FROM pg_stat_archiver";
    server.wait_for("postgres", failed, PATIENCE).unwrap();
    // The cure; the runbook's reload makes it known.
    server.append_conf("archive_command", &works).unwrap();
    let printed = desk.follow("Archiving stands still");
    assert!(printed.contains("archiver"), "{printed}");
}

#[test]
fn a_backup_is_damaged() {
    let desk = Desk::new();
    let layers = desk.stage.objects().join("main/layer");
    let layer = fs::read_dir(&layers).unwrap().next().unwrap().unwrap();
    let pack = layer.path().join("pack-000000");
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&pack, bytes).unwrap();
    let printed = desk.follow("A backup is damaged");
    let label = layer.file_name().into_string().unwrap();
    assert!(printed.contains(&label), "{printed}");
}

#[test]
fn the_repository_is_full() {
    let desk = Desk::new();
    desk.stage.backup(&["--type", "full"]);
    desk.follow("The repository is full");
    assert_eq!(desk.stage.layer_counts(), (1, 0));
}

#[test]
fn somebody_deleted_backups() {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false");
    let stage = Stage::with_roles(builder, Bucket::Versioned);
    stage.ok(&["init", "--pgdata", &stage.pgdata()]);
    stage.begin_archiving();
    let mut desk = Desk::on(stage);
    desk.stage.archive_all();
    // Stores note whole seconds.
    thread::sleep(Duration::from_secs(2));
    let now = "SELECT date_trunc('second', clock_timestamp())";
    let now = desk.stage.cluster.sql("postgres", now).unwrap();
    thread::sleep(Duration::from_secs(2));
    desk.name(TIME, &now);
    let home = desk.stage.pgdata().replace("/data", "");
    let keeper = format!("{home}/credentials/keeper.toml");
    desk.name("/etc/pgstrata/keeper.toml", &keeper);
    for key in desk.stage.keys() {
        let place = format!("/{key}");
        let written = desk.stage.s3().request(None, "PUT", &place, "evil");
        assert_eq!(written.unwrap().status, 200);
    }
    let (code, _) = desk.stage.fails(&["verify"]);
    assert_ne!(code, 0);
    let printed = desk.follow("Somebody deleted backups");
    assert!(printed.contains("manifest"), "{printed}");
    let keys = desk.stage.keys();
    let segment = keys.iter().find(|key| key.contains("/wal/00000001/"));
    let segment = segment.unwrap();
    let added = format!("{}0000000100000000000000FF", &segment[..segment.len() - 24]);
    let written = desk
        .stage
        .s3()
        .request(None, "PUT", &format!("/{added}"), "evil");
    assert_eq!(written.unwrap().status, 200);
    let printed = desk.follow("Somebody has added objects");
    let (_bucket, key) = added.split_once('/').unwrap();
    assert!(printed.contains(key), "{key}: {printed}");
}

#[test]
fn make_a_second_repository() {
    let mut desk = Desk::new();
    desk.stage.archive_all();
    let second = desk.stage.target("second").display().to_string();
    desk.name("/mnt/second", &second);
    desk.follow("Make a second repository");
    let second = format!("file://{second}");
    let shown = desk.stage.ok(&["--repo", &second, "info"]);
    assert!(shown.contains("status:      ok"), "{shown}");
}

#[test]
fn prove_that_backups_restore() {
    let desk = Desk::new();
    desk.stage.archive_all();
    desk.follow("Prove that backups restore");
}

#[test]
fn go_to_a_new_major_version() {
    let old = Cluster::builder(Major::V16).initdb_arg("--wal-segsize=1");
    let mut desk = Desk::on(Stage::archiving(old, Store::Directory));
    let archive = format!(
        "PGSTRATA_CONFIG={} {} archive-push %p",
        desk.config.display(),
        desk.stage.program.display()
    );
    let new = Cluster::builder(Major::V17)
        .initdb_arg("--wal-segsize=1")
        .conf("archive_mode", "on")
        .conf("archive_command", &archive);
    let new = new.start().unwrap();
    new.stop(StopMode::Fast).unwrap();
    for (name, value) in place(&desk.stage.cluster) {
        new.append_conf(name, &value).unwrap();
    }
    let above = new.pgdata().parent().unwrap().display().to_string();
    desk.name(
        "/var/lib/postgresql/18/main",
        &new.pgdata().display().to_string(),
    );
    desk.names
        .push(("/var/lib/postgresql/18".to_owned(), above));
    for (version, server) in [("15", &desk.stage.cluster), ("18", &new)] {
        let programs = server.bindir().display().to_string();
        desk.names
            .push((format!("/usr/lib/postgresql/{version}/bin"), programs));
    }
    desk.follow("Go to a new major version");
    // Where the old one was, and listens no more.
    assert_eq!(desk.orders(), "1000");
    let layers = desk.stage.objects().join("main-18/layer");
    assert_eq!(fs::read_dir(layers).unwrap().count(), 1);
    assert_eq!(desk.stage.layer_counts(), (2, 0));
}

/// A sealed cluster beside the clear one, with three readers and a writer whose identities lie where the configuration
/// does. The configuration names that cluster, and no identity.
struct Sealed {
    desk: Desk,
    etc: PathBuf,
}

const REFUSED: i32 = 13;

impl Sealed {
    fn new() -> Self {
        let desk = Desk::new();
        let etc = desk.config.parent().unwrap().to_owned();
        let sealed = Self { desk, etc };
        let people = ["reader", "other", "third", "writer"];
        let recipients = people.map(|who| sealed.generate(who));
        let pgdata = sealed.desk.stage.pgdata();
        let mut init = vec!["--cluster", "sealed", "init", "-D", &pgdata, "--encrypt"];
        for (who, recipient) in people.iter().zip(&recipients) {
            let role = if *who == "writer" {
                "--writer"
            } else {
                "--recipient"
            };
            init.extend([role, recipient]);
        }
        sealed.desk.stage.ok(&init);
        let settings = fs::read_to_string(&sealed.desk.config).unwrap();
        let settings = settings.replace("\"main\"", "\"sealed\"") + "wal = \"stream\"\n";
        fs::write(&sealed.desk.config, settings).unwrap();
        sealed
    }

    fn identity(&self, who: &str) -> String {
        let file = self.etc.join(format!("{who}.identity"));
        file.display().to_string()
    }

    fn generate(&self, who: &str) -> String {
        let stage = &self.desk.stage;
        let made = stage.ok(&["key", "generate", &self.identity(who)]);
        made.trim().to_owned()
    }

    /// Runs the program with somebody's identity; returns its exit code and standard error.
    fn run(&self, who: &str, arguments: &[&str]) -> (i32, String) {
        let identity = self.identity(who);
        let begin = ["--cluster", "sealed", "--identity", &identity];
        let output = self.desk.stage.run(&[&begin[..], arguments].concat());
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), log)
    }

    fn ok(&self, who: &str, arguments: &[&str]) {
        let (code, log) = self.run(who, arguments);
        assert_eq!(code, 0, "{who} {arguments:?}: {log}");
    }

    fn full_backup(&self, who: &str) {
        let pgdata = self.desk.stage.pgdata();
        let words = ["backup", "-D", &pgdata, "--type", "full", "--wal", "stream"];
        self.ok(who, &words);
    }

    /// Who was taken out reads nothing of what is there now, and stores nothing.
    fn require_shut_out(&self, who: &str) {
        let pgdata = self.desk.stage.pgdata();
        let nowhere = self.desk.stage.target("nowhere").display().to_string();
        for words in [
            &["info"][..],
            &["verify"],
            &["restore", "latest", "--target-dir", &nowhere],
            &["backup", "-D", &pgdata, "--wal", "stream"],
        ] {
            let (code, log) = self.run(who, words);
            assert_eq!(code, REFUSED, "{who} {words:?}: {log}");
            assert!(log.contains("was left out when epoch 2 began"), "{log}");
        }
        assert!(!Path::new(&nowhere).exists());
    }

    /// Follows a runbook, which tells no secret.
    fn follow(&mut self, title: &str, old: &str) {
        let file = fs::read_to_string(self.identity(old)).unwrap();
        let recipient = file.lines().next().unwrap();
        let recipient = recipient.trim_start_matches("# public key: ");
        self.desk.name("$OLD_RECIPIENT", recipient);
        let printed = self.desk.follow(title);
        assert!(!printed.contains("AGE-SECRET-KEY"), "{printed}");
    }
}

#[test]
fn a_key_is_stolen() {
    for stolen in ["writer", "other"] {
        let mut sealed = Sealed::new();
        sealed.follow("A key is stolen", stolen);
        sealed.require_shut_out(stolen);
        let target = sealed.desk.stage.target("restored").display().to_string();
        let to = ["restore", "--target-dir", &target];
        sealed.ok(
            "reader",
            &[&to[..], &["--target-type", "immediate"]].concat(),
        );
    }
}

#[test]
fn an_identity_is_lost() {
    let mut sealed = Sealed::new();
    sealed.full_backup("writer");
    sealed.follow("An identity is lost", "other");
    sealed.full_backup("writer");
    sealed.ok("new-reader", &["verify", "--deep"]);
    // Whoever finds it opens nothing.
    sealed.require_shut_out("other");
}

#[test]
fn the_database_host_was_taken_over() {
    let mut sealed = Sealed::new();
    let stage = &sealed.desk.stage;
    let command = format!(
        "{} --repo {} --cluster sealed --identity {} archive-push %p",
        stage.program.display(),
        stage.repository,
        sealed.identity("writer")
    );
    let server = &stage.cluster;
    server.append_conf("archive_command", &command).unwrap();
    server.reload().unwrap();
    // Until the archiver has heard of it.
    let archived = stage.objects().join("sealed/wal/00000001");
    let end = Instant::now() + PATIENCE;
    while !archived.exists() {
        assert!(Instant::now() < end, "nothing is archived");
        stage.archive_all();
    }
    sealed.full_backup("writer");
    sealed.desk.mark_time();
    let stage = &sealed.desk.stage;
    let evil = "UPDATE orders SET id = 0";
    stage.cluster.sql("postgres", evil).unwrap();
    stage.archive_all();
    let pgdata = stage.pgdata();
    sealed.full_backup("writer");
    // The segment before that backup may still wait for the archiver, and "verify" would miss it.
    stage.archive_all();
    stage.cluster.stop(StopMode::Immediate).unwrap();
    fs::remove_dir_all(&pgdata).unwrap();
    sealed.follow("The database host was taken over", "writer");
    sealed.desk.require_reset();
    let good = "SELECT count(*) FROM orders WHERE id > 0";
    let count = sealed.desk.stage.cluster.sql("postgres", good);
    assert_eq!(count.unwrap(), "1000");
    sealed.require_shut_out("writer");
}

/// What stands in backquotes in the numbered list of "Keys" in docs/SECURITY.md.
fn ceremony() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SECURITY.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once("\n## Keys\n").unwrap();
    let numbered = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
    let lines = section.lines().filter(numbered);
    let words = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
    words.map(str::to_owned).collect()
}

#[test]
fn the_keys_are_made_as_the_document_says() {
    let steps = ceremony();
    let (commands, settings): (Vec<String>, Vec<String>) = steps
        .into_iter()
        .partition(|step| step.starts_with("pgstrata "));
    let [reader, writer, init, check, restore] = &commands[..] else {
        panic!("other commands than expected: {commands:?}");
    };
    let [identity, seal_id] = &settings[..] else {
        panic!("other settings than expected: {settings:?}");
    };
    let desk = Desk::new();
    let old = fs::read_to_string(&desk.config).unwrap();
    fs::write(&desk.config, old.replace("\"main\"", "\"sealed\"")).unwrap();
    let etc = desk.config.parent().unwrap();
    let files = ["one", "two"].map(|who| etc.join(who).display().to_string());
    let mut init = init.clone();
    for file in &files {
        desk.type_in("a reader", &reader.replace("FILE", file));
    }
    desk.type_in("the writer", writer);
    let made = [
        &files[0],
        &files[1],
        &etc.join("writer.identity").display().to_string(),
    ];
    for file in made {
        let text = fs::read_to_string(file).unwrap();
        let recipient = text.lines().next().unwrap();
        let recipient = recipient.trim_start_matches("# public key: ");
        init = init.replacen("age1…", recipient, 1);
    }
    let told = desk.type_in("init", &init);
    let (_, id) = told.split_once("seal id ").unwrap();
    let (id, _) = id.split_once(':').unwrap();
    let identity = identity.replace("/etc/pgstrata", &etc.display().to_string());
    let settings = [
        &fs::read_to_string(&desk.config).unwrap(),
        &identity,
        &seal_id.replace('…', id),
        "wal = \"stream\"",
    ];
    fs::write(&desk.config, settings.join("\n")).unwrap();
    desk.type_in("the host", "pgstrata backup --type full");
    for (number, file) in files.iter().enumerate() {
        let says = desk.type_in("check", &check.replace("FILE", file));
        assert!(says.contains("opens everything"), "{says}");
        let target = desk.stage.target(&format!("opened-{number}"));
        let target = target.display().to_string();
        let restore = restore.replace("FILE", file).replace("DIR", &target);
        desk.type_in("restore", &restore);
        let restored = desk.stage.start_restored(Path::new(&target));
        let count = restored.sql("postgres", "SELECT count(*) FROM orders");
        assert_eq!(count.unwrap(), "1000");
    }
    // The host cannot, and another seal id is refused.
    let (code, log) =
        desk.stage
            .fails(&["--cluster", "sealed", "--seal-id", &"0".repeat(32), "info"]);
    assert!(code == REFUSED && log.contains("expected 0000"), "{log}");
}
