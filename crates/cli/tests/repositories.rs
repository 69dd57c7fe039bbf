//! Several repositories in the configuration file: what goes to all, what comes from the first that has it, and what is
//! never said because one of them is down.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

#[path = "repositories/apart.rs"]
mod apart;
#[path = "repositories/mistakes.rs"]
mod mistakes;
#[path = "repositories/once.rs"]
mod once;
#[path = "repositories/rivals.rs"]
mod rivals;
#[path = "repositories/stalled.rs"]
mod stalled;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::S3Server;
use serde_json::Value;
use support::{PATIENCE, SLOWLY, Stage, Store, number, schema, text};

const WARNINGS: i32 = 3;
const EXISTS: i32 = 11;
const REFUSED: i32 = 13;
const USAGE: i32 = 2;
const END: i32 = 1;
const STOP: i32 = 255;

/// A server with two repositories: `near` in a directory and `far` on S3 behind a network that can break, or in a directory too.
struct Two {
    stage: Stage,
    config: PathBuf,
    near: PathBuf,
    /// The objects of `far`.
    far: PathBuf,
    network: Option<(Proxy, S3Server)>,
}

impl Two {
    fn in_directories() -> Self {
        let stage = Stage::silent(builder(), Store::Directory);
        let far = stage.cluster.create_dir("far").unwrap();
        let table = format!("repo = 'file://{}'\n", far.display());
        Self::begin(stage, (far, &table), None)
    }

    /// `far` is another server with keys of its own.
    fn with_a_network() -> Self {
        Self::with_s3(S3Server::start().unwrap())
    }

    fn with_s3(s3: S3Server) -> Self {
        let stage = Stage::silent(builder(), Store::Directory);
        let proxy = Proxy::before(s3.endpoint()).unwrap();
        let keys = stage.cluster.create_dir("keys").unwrap().join("far.toml");
        let text = format!(
            "access_key_id = '{}'\nsecret_access_key = '{}'\n",
            s3.access_key(),
            s3.secret()
        );
        fs::write(&keys, text).unwrap();
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
        stage.cluster.own(&keys).unwrap();
        let table = format!(
            "repo = 's3://{}/far'\ns3-endpoint = '{}'\ns3-path-style = true\ncredentials = '{}'\n\
             [repositories.far.storage]\nallow_http = 'true'\nretry_seconds = '2'\n",
            s3.bucket(),
            proxy.endpoint(),
            keys.display()
        );
        let far = s3.bucket_dir().join("far");
        Self::begin(stage, (far, &table), Some((proxy, s3)))
    }

    fn begin(
        stage: Stage,
        (far, table): (PathBuf, &str),
        network: Option<(Proxy, S3Server)>,
    ) -> Self {
        let near = stage.objects();
        let config = stage
            .cluster
            .create_dir("etc")
            .unwrap()
            .join("pgstrata.toml");
        let spool = stage.cluster.create_dir("spool").unwrap();
        let text = format!(
            "cluster = 'main'\nspool = '{}'\n[repositories.near]\nrepo = 'file://{}'\n[repositories.far]\n{table}",
            spool.display(),
            near.display()
        );
        fs::write(&config, text).unwrap();
        stage.cluster.own(&config).unwrap();
        fs::set_permissions(&spool, fs::Permissions::from_mode(0o700)).unwrap();
        let two = Self {
            stage,
            config,
            near,
            far,
            network,
        };
        let made = two.run(&["--repo", "near", "copy", "--to", "far"]);
        assert!(made.status.success(), "{}", log(&made));
        let command = format!(
            "{} --config {} archive-push %p",
            two.stage.program.display(),
            two.config.display()
        );
        let cluster = &two.stage.cluster;
        cluster.append_conf("archive_command", &command).unwrap();
        cluster.reload().unwrap();
        cluster
            .sql(
                "postgres",
                "CREATE TABLE t AS SELECT g, md5(g::text) AS s FROM generate_series(1, 20000) g",
            )
            .unwrap();
        two
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.stage.command(arguments);
        command
            .env_remove("PGSTRATA_REPO")
            .env_remove("PGSTRATA_CLUSTER");
        command.env("PGSTRATA_CONFIG", &self.config);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that ends with that code; answers its document.
    fn json(&self, code: i32, arguments: &[&str]) -> Value {
        let output = self.run(&[&["--output", "json"], arguments].concat());
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            log(&output)
        );
        schema::document(&String::from_utf8(output.stdout).unwrap())
    }

    fn backup(&self, code: i32, kind: &str) -> Value {
        let pgdata = self.stage.pgdata();
        self.json(code, &["backup", "-D", &pgdata, "--type", kind])
    }

    fn get(&self, name: &str, more: &[&str]) -> (i32, String, PathBuf) {
        let to = self.stage.target(&format!("got-{name}"));
        let _ = fs::remove_file(&to);
        let shown = to.display().to_string();
        let output = self.run(
            &[
                &["archive-get", "--fetch-ahead", "0"],
                more,
                &[name, &shown],
            ]
            .concat(),
        );
        (output.status.code().unwrap(), log(&output), to)
    }

    /// Where a segment lies under its own name, as in `pg_wal`.
    fn get_to_push(&self, name: &str) -> String {
        let (_, _, file) = self.get(name, &[]);
        let shown = file.with_file_name(name);
        fs::rename(&file, &shown).unwrap();
        shown.display().to_string()
    }

    /// Identities with which a clear repository is not opened: one that is not there, and one that should open it.
    fn wrong_identities(&self) -> [String; 2] {
        let keys = self.stage.cluster.create_dir("identities").unwrap();
        let needless = keys.join("needless").display().to_string();
        let made = self.run(&["key", "generate", &needless]);
        assert!(made.status.success(), "{}", log(&made));
        [keys.join("absent").display().to_string(), needless]
    }

    fn open_near_with(&self, plain: &str, identity: &str) {
        let table = "[repositories.near]\n";
        let text = plain.replace(table, &format!("{table}identity = '{identity}'\n"));
        fs::write(&self.config, text).unwrap();
    }

    /// The configuration with its tables the other way round.
    fn far_first(&self, text: &str) -> String {
        let near = text.find("[repositories.near]").unwrap();
        let far = text.find("[repositories.far]").unwrap();
        [&text[..near], &text[far..], &text[near..far]].concat()
    }

    /// Where this host keeps notes of them.
    fn spool(&self) -> PathBuf {
        self.config.with_file_name("../spool")
    }

    fn proxy(&self) -> &Proxy {
        &self.network.as_ref().unwrap().0
    }

    /// The name of the last segment that both have.
    fn last_segment(&self) -> String {
        let sql = "SELECT pg_create_restore_point('here')";
        self.stage.cluster.sql("postgres", sql).unwrap();
        self.stage.archive_all();
        let sql = "SELECT last_archived_wal FROM pg_stat_archiver";
        self.stage.cluster.sql("postgres", sql).unwrap()
    }
}

fn builder() -> pgstrata_testbed::cluster::Builder {
    let builder = Cluster::builder(Major::V15).conf("archive_mode", "on");
    builder.conf("archive_command", "false")
}

fn log(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    format!("{text}{}", String::from_utf8_lossy(&output.stdout))
}

fn segment(root: &Path, name: &str) -> PathBuf {
    root.join("main/wal/00000001").join(name)
}

/// What became of a backup in each repository.
fn states(report: &Value) -> Vec<&str> {
    let all = report["repositories"].as_array().unwrap().iter();
    all.map(|one| text(one, "/state")).collect()
}

fn spoil(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// The segment that follows.
fn next(name: &str) -> String {
    let number = u64::from_str_radix(&name[16..], 16).unwrap();
    format!("{}{:08X}", &name[..16], number + 1)
}

#[test]
fn a_backup_is_the_same_layer_in_all_and_what_looks_shows_all() {
    let two = Two::in_directories();
    let report = two.backup(0, "full");
    let label = text(&report, "/label").to_owned();
    let manifest =
        |root: &Path| fs::read(root.join("main/layer").join(&label).join("manifest")).unwrap();
    assert_eq!(manifest(&two.near), manifest(&two.far));
    let states: Vec<_> = report["repositories"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["state"].clone())
        .collect();
    assert_eq!(states, ["stored", "copied"]);
    // All but the manifest was stored while the server was read.
    assert_eq!(
        report.pointer("/repositories/1/copied_objects"),
        Some(&Value::from(1))
    );
    two.last_segment();
    for command in [
        &["info"][..],
        &["verify", "--deep"],
        &["check", "-D", &two.stage.pgdata()],
    ] {
        let shown = two.json(0, command);
        let all = shown["repositories"].as_array().unwrap();
        assert_eq!(all[0]["name"], "near");
        assert_eq!(all[1]["name"], "far");
        all.iter().for_each(|one| schema::require(&one["document"]));
    }
    let one = two.json(0, &["--repo", "far", "info"]);
    assert_eq!(one["schema"], "pgstrata.info/1");
    // What removes asks for one.
    for command in [
        &["expire", "--keep-full", "1"][..],
        &["merge"],
        &["pin", "latest"],
    ] {
        let output = two.run(command);
        assert_eq!(output.status.code(), Some(USAGE), "{}", log(&output));
        assert!(log(&output).contains("near, far"), "{}", log(&output));
    }
    two.json(0, &["--repo", "far", "pin", "latest"]);
    let output = two.run(&["--repo", "nowhere", "info"]);
    assert_eq!(output.status.code(), Some(USAGE), "{}", log(&output));
}

#[test]
fn a_repository_that_breaks_during_a_backup_is_a_warning_and_catches_up() {
    let two = Two::with_a_network();
    two.backup(0, "full");
    let sql = "CREATE TABLE more AS SELECT g, repeat(md5(random()::text), 60) AS s FROM generate_series(1, 20000) g";
    two.stage.cluster.sql("postgres", sql).unwrap();
    // In the middle: some of the layer goes through. The archiver fails meanwhile, so the backup stores its own WAL.
    two.proxy().cut_after(1_000_000);
    let pgdata = two.stage.pgdata();
    let report = two.json(
        WARNINGS,
        &["backup", "-D", &pgdata, "--type", "incr", "--wal", "stream"],
    );
    let label = text(&report, "/label").to_owned();
    let states: Vec<_> = report["repositories"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["state"].clone())
        .collect();
    assert_eq!(states, ["stored", "failed"], "{report:#}");
    assert!(
        !two.far
            .join("main/layer")
            .join(&label)
            .join("manifest")
            .exists()
    );
    // The one that has it restores, and says that the other was not there.
    let target = two.stage.target("restored").display().to_string();
    let restored = two.run(&[
        "restore",
        &label,
        "--target-dir",
        &target,
        "--target-type",
        "immediate",
    ]);
    assert!(restored.status.success(), "{}", log(&restored));
    assert!(log(&restored).contains("far"), "{}", log(&restored));
    two.proxy().clear();
    // The next one brings what is missing too.
    two.last_segment();
    two.stage
        .cluster
        .sql("postgres", "UPDATE more SET g = g + 1 WHERE g % 10 = 0")
        .unwrap();
    two.backup(0, "incr");
    assert!(
        two.far
            .join("main/layer")
            .join(&label)
            .join("manifest")
            .exists()
    );
    two.json(0, &["--repo", "far", "verify", "--deep"]);
}

#[test]
fn the_first_repository_may_be_away_and_catches_up_from_its_sibling() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let name = two.last_segment();
    let away = two.near.with_extension("away");
    fs::rename(&two.near, &away).unwrap();
    let pgdata = two.stage.pgdata();
    let report = two.json(
        WARNINGS,
        &["backup", "-D", &pgdata, "--type", "incr", "--wal", "stream"],
    );
    let states = report["repositories"].as_array().unwrap().iter();
    let states: Vec<_> = states.map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["failed", "stored"], "{report:#}");
    assert!(
        !two.near.exists(),
        "a directory that is not there is made by nobody but init and copy"
    );
    // Recovery goes on, and does not end.
    let (code, said, _) = two.get(&name, &[]);
    assert_eq!(code, 0, "{said}");
    let (code, said, _) = two.get(&next(&next(&next(&name))), &[]);
    assert_eq!(code, STOP, "{said}");
    fs::rename(&away, &two.near).unwrap();
    // The next backup stands on what is there, and says what is not.
    two.last_segment();
    // Labels are of seconds, and near does not know which of them far has given.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let missed = text(&report, "/label");
    let report = two.backup(WARNINGS, "incr");
    let warning = text(&report, "/warnings/0");
    let words = format!("near lacks 1 layer that far has, up to {missed}");
    assert!(warning.contains(&words), "{report:#}");
    assert!(
        warning.contains("pgstrata --repo far copy --to near"),
        "{report:#}"
    );
    let copied = two.json(0, &["--repo", "far", "copy", "--to", "near"]);
    assert_eq!(copied["layers"].as_array().unwrap().len(), 1, "{copied:#}");
    // The archiver comes to it again.
    two.last_segment();
    let report = two.backup(0, "incr");
    assert!(text(&report, "/parent").ends_with('I'), "{report:#}");
    two.json(0, &["verify", "--deep"]);
}

/// The directory of the layer that is being made there, once a pack of it is stored.
fn being_made(root: &Path) -> PathBuf {
    let end = Instant::now() + PATIENCE;
    loop {
        let layers = fs::read_dir(root.join("main/layer")).unwrap();
        let mut layers = layers.map(|layer| layer.unwrap().path());
        let found =
            layers.find(|at| at.join("pack-000000").exists() && !at.join("manifest").exists());
        match found {
            Some(found) => return found,
            None => assert!(Instant::now() < end, "the backup stores nothing"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_backup_begins_again_in_the_next_repository_when_the_first_breaks_in_the_middle() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let sql = "CREATE TABLE more AS SELECT g, repeat(md5(random()::text), 60) AS s FROM generate_series(1, 20000) g";
    two.stage.cluster.sql("postgres", sql).unwrap();
    let dump = two.stage.cluster.dump().unwrap();
    let pgdata = two.stage.pgdata();
    let backup = ["--output", "json", "backup", "--pgdata", &pgdata];
    let way = ["--type", "full", "--wal", "stream"];
    let mut command = two.command(&[&backup[..], &way, &SLOWLY].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let begun = being_made(&two.near);
    let allow = |mode| fs::set_permissions(&begun, fs::Permissions::from_mode(mode)).unwrap();
    allow(0o500);
    let output = child.wait_with_output().unwrap();
    allow(0o700);
    assert_eq!(output.status.code(), Some(WARNINGS), "{}", log(&output));
    let report = schema::document(std::str::from_utf8(&output.stdout).unwrap());
    let states = report["repositories"].as_array().unwrap().iter();
    let states: Vec<_> = states.map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["failed", "stored"], "{report:#}");
    let manifest = |root: &Path| {
        let layer = root.join("main/layer").join(text(&report, "/label"));
        layer.join("manifest").exists()
    };
    assert_eq!([&two.near, &two.far].map(|at| manifest(at)), [false, true]);
    two.json(0, &["--repo", "far", "verify", "--deep"]);
    let target = two.stage.target("restored");
    let to = ["restore", "--target-dir", target.to_str().unwrap()];
    let then = ["--target-type", "immediate", "--target-action", "promote"];
    let restored = two.run(&[&["--repo", "far"], &to[..], &then].concat());
    assert!(restored.status.success(), "{}", log(&restored));
    let restored = two.stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

#[test]
fn archive_get_takes_the_next_repository_when_the_first_is_damaged_or_has_a_hole() {
    let two = Two::in_directories();
    let name = two.last_segment();
    let later = two.last_segment();
    assert_ne!(name, later);
    let (code, said, got) = two.get(&name, &[]);
    assert_eq!(code, 0, "{said}");
    let whole = fs::read(&got).unwrap();
    spoil(&segment(&two.near, &name));
    let (code, said, got) = two.get(&name, &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("far") && said.contains("near"), "{said}");
    assert_eq!(fs::read(got).unwrap(), whole);
    // A hole in the first.
    fs::remove_file(segment(&two.near, &name)).unwrap();
    let (code, said, got) = two.get(&name, &[]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read(got).unwrap(), whole);
    // Damaged in one and gone in the other: not the end.
    spoil(&segment(&two.far, &name));
    let (code, said, _) = two.get(&name, &["--hole-timeout", "1s"]);
    assert_eq!(code, STOP, "{said}");
    // The end of one alone is not the end.
    fs::remove_file(segment(&two.near, &later)).unwrap();
    let (code, said, _) = two.get(&later, &[]);
    assert_eq!(code, 0, "{said}");
    // Both lack it.
    let (code, said, _) = two.get(&next(&later), &[]);
    assert_eq!(code, END, "{said}");
}

#[test]
fn archive_get_says_the_end_only_when_every_repository_does() {
    let two = Two::with_a_network();
    let name = two.last_segment();
    let absent = next(&name);
    assert_eq!(two.get(&absent, &[]).0, END);
    two.proxy().cut_after(1);
    // What is there comes from the one that answers.
    let (code, said, _) = two.get(&name, &[]);
    assert_eq!(code, 0, "{said}");
    // What is not there may be in the one that does not, whatever is said of holes.
    let (code, said, _) = two.get(&absent, &[]);
    assert_eq!(code, STOP, "{said}");
    let (code, said, _) = two.get(&absent, &["--on-hole", "end", "--hole-timeout", "1s"]);
    assert_eq!(code, STOP, "{said}");
    two.proxy().clear();
    let (code, said, _) = two.get(&absent, &[]);
    assert_eq!(code, END, "{said}");
}

#[test]
fn a_segment_is_archived_when_the_quorum_has_it() {
    let two = Two::with_a_network();
    let name = two.last_segment();
    let path = two.get_to_push(&name);
    fs::remove_file(segment(&two.near, &name)).unwrap();
    fs::remove_file(segment(&two.far, &name)).unwrap();
    two.proxy().cut_after(1);
    let output = two.run(&["archive-push", "--push-ahead", "0", &path]);
    assert_ne!(output.status.code(), Some(0), "{}", log(&output));
    let output = two.run(&["archive-push", "--push-ahead", "0", "--quorum", "1", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(segment(&two.near, &name).exists());
    let output = two.run(&["archive-push", "--quorum", "3", &path]);
    assert_eq!(output.status.code(), Some(USAGE), "{}", log(&output));
    two.proxy().clear();
    two.json(0, &["--repo", "near", "copy", "--to", "far"]);

    // A table that was taken out does not make one copy out of two.
    let plain = fs::read_to_string(&two.config).unwrap();
    let alone = plain.split("[repositories.far]").next().unwrap();
    for (text, words, code) in [
        (alone, &[][..], USAGE),
        (alone, &["--quorum", "3"], USAGE),
        (alone, &["--quorum", "1"], 0),
        // The file speaks of all of them, and who names one means that one.
        (&plain, &["--repo", "near"], 0),
    ] {
        fs::write(&two.config, format!("quorum = 2\n{text}")).unwrap();
        let output = two.run(&[&["archive-push", &path], words].concat());
        let said = log(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(
            code == 0 || said.contains("there is 1 repository"),
            "{said}"
        );
    }
}

/// What is removed below a directory, and comes back.
fn without(root: &Path, act: impl FnOnce()) {
    let away = root.with_extension("away");
    fs::rename(root, &away).unwrap();
    act();
    match root.is_dir() {
        true => fs::remove_dir(root).unwrap(),
        false => drop(fs::remove_file(root)),
    }
    fs::rename(&away, root).unwrap();
}

#[test]
fn a_repository_that_is_gone_empty_or_damaged_is_outvoted_by_a_quorum() {
    let two = Two::in_directories();
    let name = two.last_segment();
    let path = two.get_to_push(&name);
    let pushed = |more: &[&str]| {
        let _ = fs::remove_file(segment(&two.far, &name));
        let push = ["archive-push", "--push-ahead", "0"];
        let output = two.run(&[&push, more, &[&path]].concat());
        (output.status.code().unwrap(), log(&output))
    };
    let outvoted = |what: &str, expected: &str| {
        let (code, said) = pushed(&[]);
        assert_ne!(code, 0, "{what}: {said}");
        assert!(said.contains(expected), "{what}: {said}");
        let (code, said) = pushed(&["--quorum", "1"]);
        assert_eq!(code, 0, "{what}: {said}");
        assert!(said.contains("repository near"), "{what}: {said}");
        assert!(segment(&two.far, &name).exists(), "{what}");
    };
    without(&two.near, || outvoted("gone", "is it mounted?"));
    without(&two.near, || {
        fs::create_dir(&two.near).unwrap();
        outvoted("empty", "is it mounted?");
    });
    without(&two.near, || {
        fs::write(&two.near, "").unwrap();
        outvoted("a file", "is a file");
    });
    let record = two.near.join("main/cluster");
    without(&record, || outvoted("without its record", "near"));
    without(&record, || {
        fs::write(&record, "damaged").unwrap();
        outvoted("damaged", "near");
    });
    let plain = fs::read_to_string(&two.config).unwrap();
    for identity in two.wrong_identities() {
        two.open_near_with(&plain, &identity);
        outvoted(&identity, "near");
    }
    fs::write(&two.config, &plain).unwrap();

    // Another file of that name, and another cluster, are outvoted by nobody.
    spoil(Path::new(&path));
    let (code, said) = pushed(&["--quorum", "1"]);
    assert_eq!(code, EXISTS, "{said}");
    spoil(Path::new(&path));
    let other = Stage::silent(builder(), Store::Directory);
    let text = plain.replace(
        &format!("'file://{}'", two.near.display()),
        &format!("'file://{}'", other.objects().display()),
    );
    assert_ne!(text, plain);
    fs::write(&two.config, text).unwrap();
    let (code, said) = pushed(&["--quorum", "1"]);
    assert_eq!(code, REFUSED, "{said}");
    assert!(said.contains("system identifier"), "{said}");
    // A backup goes to the one that is ours.
    let report = two.backup(WARNINGS, "full");
    assert_eq!(states(&report), ["failed", "stored"], "{report:#}");
}

#[test]
fn a_repository_that_cannot_be_opened_is_left_for_the_next_one() {
    let two = Two::in_directories();
    two.backup(0, "full");
    let name = two.last_segment();
    let plain = fs::read_to_string(&two.config).unwrap();
    for (number, identity) in two.wrong_identities().into_iter().enumerate() {
        two.open_near_with(&plain, &identity);
        let (code, said, _) = two.get(&name, &[]);
        assert_eq!(code, 0, "{identity}: {said}");
        assert!(said.contains("repository near"), "{identity}: {said}");
        // The other one says that it ends before that, which is not the end.
        let (code, said, _) = two.get("0000000100000000000000F0", &[]);
        assert_eq!(code, STOP, "{identity}: {said}");
        let target = two.stage.target(&format!("restored-{number}"));
        let shown = target.display().to_string();
        let restored = two.run(&["restore", "--target-dir", &shown]);
        assert!(restored.status.success(), "{identity}: {}", log(&restored));
        let said = log(&restored);
        assert!(said.contains("repository near"), "{identity}: {said}");
        let pgdata = two.stage.pgdata();
        let backup = ["backup", "-D", &pgdata, "--wal", "stream", "--type", "full"];
        let report = two.json(WARNINGS, &backup);
        assert_eq!(states(&report), ["failed", "stored"], "{report:#}");
        // As the second one it is no reason to fail either.
        let swapped = two.far_first(&fs::read_to_string(&two.config).unwrap());
        fs::write(&two.config, swapped).unwrap();
        let report = two.json(WARNINGS, &backup);
        assert_eq!(states(&report), ["stored", "failed"], "{report:#}");
        // When none can be opened, the first one says why.
        let both = plain.replace("repo = ", &format!("identity = '{identity}'\nrepo = "));
        fs::write(&two.config, both).unwrap();
        let output = two.run(&["restore", "--target-dir", &format!("{shown}-no")]);
        assert!(!output.status.success());
        assert!(
            log(&output).contains("repository near: "),
            "{}",
            log(&output)
        );
    }
}

#[test]
fn a_restore_takes_the_next_repository_when_the_first_is_damaged() {
    let two = Two::in_directories();
    let report = two.backup(0, "full");
    let label = text(&report, "/label").to_owned();
    let (lsn, expected) = two.stage.moment();
    let packs = two.near.join("main/layer").join(&label);
    for entry in fs::read_dir(&packs).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("pack-") {
            spoil(&entry.path());
        }
    }
    let target = two.stage.target("restored");
    let shown = target.display().to_string();
    let output = two.run(&[
        "restore",
        "--target-dir",
        &shown,
        "--target-type",
        "lsn",
        "--target",
        &lsn,
        "--target-action",
        "promote",
    ]);
    assert!(output.status.success(), "{}", log(&output));
    assert!(
        log(&output).contains("repository near cannot be restored from"),
        "{}",
        log(&output)
    );
    let conf = fs::read_to_string(target.join("postgresql.auto.conf")).unwrap();
    let line = conf
        .lines()
        .find(|line| line.starts_with("restore_command"))
        .unwrap();
    assert!(!line.contains("--repo"), "{line}");
    let restored = two.stage.start_restored(&target);
    assert_eq!(restored.dump().unwrap(), expected);
}

#[test]
fn keys_of_one_repository_beside_several_are_refused() {
    let two = Two::in_directories();
    let text = fs::read_to_string(&two.config).unwrap();
    for (key, named) in [
        ("repo = 'file:///x'", "repo"),
        ("s3-endpoint = 'http://x'", "s3-endpoint"),
    ] {
        fs::write(&two.config, format!("{key}\n{text}")).unwrap();
        let output = two.run(&["info"]);
        assert_eq!(output.status.code(), Some(USAGE), "{}", log(&output));
        assert!(log(&output).contains(named), "{}", log(&output));
    }
    fs::write(&two.config, &text).unwrap();
    let output = two.run(&["--s3-endpoint", "http://x", "info"]);
    assert_eq!(output.status.code(), Some(USAGE), "{}", log(&output));
}

/// What the file says of its bucket says nothing of a directory, as of the copy that is left when the bucket is gone.
#[test]
fn a_repository_of_another_kind_is_reached_beside_a_file_that_describes_a_bucket() {
    let stage = Stage::archiving(builder(), Store::Directory);
    let config = stage.target("of-a-bucket.toml");
    let text = "repo = 's3://bucket/x'\ns3-endpoint = 'https://s3.example.com'\ncluster = 'main'\n\
                credentials = '/nowhere/far.toml'\n[storage]\nallow_http = 'true'\n";
    fs::write(&config, text).unwrap();
    stage.cluster.own(&config).unwrap();
    let config = config.display().to_string();
    // The stage's own repository is told, and is a directory.
    stage.ok(&["--config", &config, "info"]);
    stage.ok(&["--config", &config, "backup", "-D", &stage.pgdata()]);
    stage.ok(&["--config", &config, "verify"]);
    let typed = ["--config", &config, "--s3-region", "eu-west-1", "info"];
    let (code, log) = stage.fails(&typed);
    assert_eq!(code, USAGE, "{log}");
}
