//! Copies of a sealed cluster for recipients of their own: the same layers, which others open.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode, require_same_dump};
use serde_json::Value;
use support::vault::Vault;
use support::{PATIENCE, Store, credentials_file, process, schema, text, to_lsn};

const REFUSED: i32 = 13;
const DAMAGED: i32 = 14;
const UNSUPPORTED: i32 = 21;
const WARNINGS: i32 = 3;

/// A vault with a layer, another repository, and people who are none of its readers.
struct Pair {
    vault: Vault,
    to: String,
    there: PathBuf,
    three: String,
    writer: String,
}

impl Pair {
    fn new() -> Self {
        let vault = Vault::new(Major::V15);
        let sql = "CREATE TABLE t AS SELECT g, md5(g::text) AS s FROM generate_series(1, 20000) g";
        vault.stage.cluster.sql("postgres", sql).unwrap();
        vault.backup(&["--type", "full"]);
        let there = vault.stage.cluster.create_dir("mirror").unwrap();
        let three = vault.generate("three");
        let writer = vault.recipient("writer");
        Self {
            to: format!("file://{}", there.display()),
            vault,
            there,
            three,
            writer,
        }
    }

    fn copy<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let copy = ["--output", "json", "copy", "--to", &self.to];
        [&copy[..], more].concat()
    }

    fn for_three(&self) -> Vec<&str> {
        self.copy(&["--recipient", &self.three, "--writer", &self.writer])
    }

    /// The names of the key boxes of the copy, each below its epoch.
    fn boxes(&self) -> Vec<String> {
        boxes_of(&self.there.join("vault/key"))
    }

    /// Restores the copy to `lsn` and compares.
    fn require_restored(&self, who: &str, (lsn, dump): &(String, String)) {
        let target = self
            .vault
            .stage
            .target(&format!("by-{who}-{}", lsn.replace('/', "-")));
        let until = to_lsn(lsn);
        let restore = [
            "--repo",
            &self.to,
            "restore",
            "--target-dir",
            target.to_str().unwrap(),
        ];
        self.vault.ok(who, &[&restore[..], &until].concat());
        let restored = self.vault.stage.start_restored(&target);
        require_same_dump(dump, &restored.dump().unwrap()).unwrap();
    }
}

fn boxes_of(keys: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for seal in fs::read_dir(keys).into_iter().flatten() {
        for epoch in fs::read_dir(seal.unwrap().path()).unwrap() {
            let epoch = epoch.unwrap();
            for key in fs::read_dir(epoch.path()).unwrap() {
                let name = key.unwrap().file_name().into_string().unwrap();
                if name != "epoch" && !name.starts_with('.') {
                    found.push(format!(
                        "{}/{name}",
                        epoch.file_name().into_string().unwrap()
                    ));
                }
            }
        }
    }
    found.sort();
    found
}

fn document(printed: &str) -> Value {
    schema::document(printed)
}

#[test]
fn a_copy_for_others_is_opened_by_them_and_by_none_of_the_source() {
    let pair = Pair::new();
    let (vault, stage) = (&pair.vault, &pair.vault.stage);
    let first = stage.moment();
    let log = vault.fails("writer", &pair.for_three(), REFUSED);
    assert!(log.contains("could not seal the copy"), "{log}");
    let planned = vault.ok("one", &[&pair.for_three()[..], &["--dry-run"]].concat());
    assert_eq!(document(&planned)["key_boxes"], 2, "{planned}");
    assert!(
        fs::read_dir(&pair.there).unwrap().next().is_none(),
        "it writes"
    );
    let made = document(&vault.ok("one", &pair.for_three()));
    assert_eq!(made["key_boxes"], 2, "{made:#}");
    let boxes = pair.boxes();
    assert_eq!(boxes.len(), 2, "{boxes:?}");
    assert!(boxes_of(&stage.objects().join("vault/key")).len() == 4);

    // Repeated, and by who is in both, without saying it again: nothing is added.
    for (who, words) in [
        ("one", pair.for_three()),
        ("writer", pair.copy(&[])),
        ("two", pair.copy(&[])),
    ] {
        let again = document(&vault.ok(who, &words));
        assert_eq!(again["key_boxes"], 0, "{again:#}");
        assert!(again["layers"].as_array().unwrap().is_empty(), "{again:#}");
        assert_eq!(pair.boxes(), boxes, "{who}");
    }

    // Who opens the source does not open the copy.
    let nowhere = stage.target("nowhere").display().to_string();
    for who in ["one", "two", "keeper"] {
        let restore = ["--repo", &pair.to, "restore", "--target-dir", &nowhere];
        let log = vault.fails(who, &restore, REFUSED);
        assert_eq!(log.matches("none of the 1 identities").count(), 1, "{log}");
    }
    pair.require_restored("three", &first);
    vault.ok("three", &["--repo", &pair.to, "verify", "--deep"]);
    vault.fails("three", &["verify", "--deep"], REFUSED);

    // The host of the database makes increments in both.
    vault.backup(&["--type", "incr"]);
    let drop = "DROP TABLE afterwards";
    stage.cluster.sql("postgres", drop).unwrap();
    let second = stage.moment();
    vault.ok("writer", &pair.copy(&[]));
    pair.require_restored("three", &second);
    assert_eq!(pair.boxes(), boxes);
}

#[test]
fn an_epoch_that_is_new_to_a_copy_asks_who_shall_open_it() {
    let pair = Pair::new();
    let (vault, stage) = (&pair.vault, &pair.vault.stage);
    vault.ok("one", &pair.for_three());
    let boxes = pair.boxes();
    vault.ok("one", &["key", "rotate"]);
    vault.backup(&["--type", "incr"]);
    let moment = stage.moment();
    for who in ["one", "writer"] {
        for more in [&[][..], &["--dry-run"]] {
            let log = vault.fails(who, &pair.copy(more), REFUSED);
            let all = [&pair.three, &pair.writer];
            assert!(all.iter().all(|one| log.contains(*one)), "{log}");
        }
    }
    assert_eq!(pair.boxes(), boxes, "a copy that is refused brings no key");
    let made = document(&vault.ok("one", &pair.for_three()));
    assert_eq!(made["key_boxes"], 2, "{made:#}");
    assert_eq!(made["layers"].as_array().unwrap().len(), 1, "{made:#}");
    pair.require_restored("three", &moment);
    vault.fails("one", &["--repo", &pair.to, "info"], REFUSED);

    // Somebody who adds a key box without a key is found, and never named as one of the recipients.
    let own = stage.objects().join("vault/key");
    let seal = fs::read_dir(pair.there.join("vault/key"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let name = boxes_of(&own).pop().unwrap();
    let from = own.join(seal.file_name()).join(&name);
    let text = fs::read_to_string(&from).unwrap();
    let forged = seal.path().join(&name);
    fs::write(&forged, text.replace("writer", "reader")).unwrap();
    vault.fails("writer", &pair.copy(&[]), DAMAGED);
    fs::remove_file(forged).unwrap();
    vault.ok("writer", &pair.copy(&[]));
}

#[test]
fn a_copy_with_the_readers_of_the_source_keeps_them() {
    let pair = Pair::new();
    let vault = &pair.vault;
    vault.ok("writer", &pair.copy(&[]));
    let same = boxes_of(&vault.stage.objects().join("vault/key"));
    assert_eq!(pair.boxes(), same);
    let log = vault.fails("one", &pair.for_three(), REFUSED);
    assert!(
        log.contains("for the recipients of the source already"),
        "{log}"
    );
    assert_eq!(pair.boxes(), same);
    // Epochs and recipients that come later are copied.
    vault.ok("one", &["key", "add", "--recipient", &pair.three]);
    vault.ok("one", &["key", "rotate"]);
    vault.ok("writer", &pair.copy(&[]));
    assert_eq!(
        pair.boxes(),
        boxes_of(&vault.stage.objects().join("vault/key"))
    );
    vault.ok("three", &["--repo", &pair.to, "info"]);
    // A cluster that was made apart has another seal id.
    let apart = format!(
        "file://{}",
        vault.stage.cluster.create_dir("apart").unwrap().display()
    );
    let pgdata = vault.stage.pgdata();
    let init = [
        "--repo",
        &apart,
        "init",
        "-D",
        &pgdata,
        "--encrypt",
        "--one-recipient",
        "--recipient",
        &pair.three,
    ];
    vault.ok("", &init);
    let log = vault.fails("three", &["copy", "--to", &apart], UNSUPPORTED);
    assert!(log.contains("without this cluster"), "{log}");
}

/// Begins an epoch, and archives in it, while a copy is stopped that has begun with the keys of before and stores a layer.
fn rotate_beside(pair: &Pair, copy: &[&str]) -> (Output, (String, String)) {
    let (vault, stage) = (&pair.vault, &pair.vault.stage);
    let sql = "CREATE TABLE large AS SELECT g, md5(random()::text) || md5(random()::text) AS s FROM generate_series(1, 300000) g";
    stage.cluster.sql("postgres", sql).unwrap();
    let taken = vault.backup(&["--type", "full"]);
    let layer = pair.there.join("vault/layer").join(text(&taken, "/label"));
    let mut command = vault.command("one", &[&["--jobs", "1"], copy].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let begun = Instant::now();
    while !layer.exists() {
        assert!(begun.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    process::signal(&child, "-STOP");
    assert!(!layer.join("manifest").exists(), "it was too fast");
    vault.ok("one", &["key", "rotate"]);
    let moment = stage.moment();
    process::signal(&child, "-CONT");
    (child.wait_with_output().unwrap(), moment)
}

#[test]
fn an_epoch_that_begins_while_a_copy_runs_comes_with_its_wal() {
    let pair = Pair::new();
    let (copied, moment) = rotate_beside(&pair, &pair.copy(&[]));
    let log = String::from_utf8_lossy(&copied.stderr).into_owned();
    assert!(copied.status.success(), "{log}");
    let report = document(&String::from_utf8(copied.stdout).unwrap());
    assert_eq!(
        report["left_out"].as_array().unwrap().len(),
        0,
        "{report:#}"
    );
    let same = boxes_of(&pair.vault.stage.objects().join("vault/key"));
    assert_eq!(pair.boxes(), same);
    pair.require_restored("two", &moment);
}

#[test]
fn an_epoch_that_begins_while_a_copy_runs_is_left_out_where_nobody_has_said_who_opens_it() {
    let pair = Pair::new();
    pair.vault.ok("one", &pair.for_three());
    let boxes = pair.boxes();
    let (copied, moment) = rotate_beside(&pair, &pair.copy(&[]));
    let log = String::from_utf8_lossy(&copied.stderr).into_owned();
    assert_eq!(copied.status.code(), Some(REFUSED), "{log}");
    let report = document(&String::from_utf8(copied.stdout).unwrap());
    let left = report["left_out"].as_array().unwrap();
    assert_eq!(left.len(), 1, "{report:#}");
    assert!(text(&left[0], "/label").ends_with("/epoch"), "{report:#}");
    assert_eq!(pair.boxes(), boxes);
    pair.vault.ok("one", &pair.for_three());
    pair.require_restored("three", &moment);
}

#[test]
fn a_backup_goes_into_repositories_with_different_readers() {
    let pair = Pair::new();
    let (vault, stage) = (&pair.vault, &pair.vault.stage);
    vault.ok("one", &pair.for_three());
    let config = stage
        .cluster
        .create_dir("etc")
        .unwrap()
        .join("pgstrata.toml");
    let tables = format!(
        "cluster = 'vault'\nidentity = '{}'\n[repositories.near]\nrepo = '{}'\n[repositories.far]\nrepo = '{}'\n",
        vault.identity("writer"),
        stage.repository,
        pair.to
    );
    fs::write(&config, tables).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).unwrap();
    let in_both = |arguments: &[&str]| {
        let mut command = stage.command(arguments);
        command
            .env_remove("PGSTRATA_REPO")
            .env_remove("PGSTRATA_CLUSTER");
        command.args(["--config", config.to_str().unwrap()]);
        command.output().unwrap()
    };
    let pgdata = stage.pgdata();
    let backup = [
        "--output", "json", "backup", "--wal", "stream", "-D", &pgdata,
    ];
    let backup = || in_both(&backup);
    let taken = backup();
    let log = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(taken.status.success(), "{log}");
    let report = document(&String::from_utf8(taken.stdout).unwrap());
    assert_eq!(report["repositories"][1]["state"], "copied", "{report:#}");
    let label = text(&report, "/label").to_owned();
    let manifest =
        |root: &Path| fs::read(root.join("vault/layer").join(&label).join("manifest")).unwrap();
    assert_eq!(manifest(&stage.objects()), manifest(&pair.there));
    assert_eq!(pair.boxes().len(), 2);
    let moment = stage.moment();
    vault.ok("writer", &pair.copy(&[]));
    pair.require_restored("three", &moment);

    // Of an epoch that is new in one of them the other has no keys: the backup is in the first, and the report says what to do.
    vault.ok("one", &["key", "rotate"]);
    let taken = backup();
    let log = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert_eq!(taken.status.code(), Some(WARNINGS), "{log}");
    assert!(log.contains("recipients of its own"), "{log}");
    let shown = in_both(&["info"]);
    let log = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert_eq!(shown.status.code(), Some(WARNINGS), "{log}");
    assert!(
        log.contains("repository far does not know epoch 2"),
        "{log}"
    );
    vault.ok("one", &pair.for_three());
    assert!(backup().status.success());
    let shown = in_both(&["info"]);
    let log = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(!log.contains("does not know epoch"), "{log}");
    vault.ok("three", &["--repo", &pair.to, "verify", "--deep"]);
}

#[test]
fn a_copy_for_others_goes_to_a_bucket_and_goes_on_after_it_was_stopped() {
    let vault = Vault::on(Cluster::builder(Major::V15), Store::S3);
    vault.backup(&["--type", "full", "--wal", "stream"]);
    let [three, four] = ["three", "four"].map(|who| vault.generate(who));
    let to = vault.stage.repository.replace("/backups", "/mirror");
    let there = vault.stage.objects().parent().unwrap().join("mirror");
    let s3 = vault.stage.s3();
    let options = s3.options();
    let options = options.map(|(name, value)| format!("{name} = '{value}'\n"));
    let file = credentials_file(&vault.stage.cluster, "mirror", &options.concat());
    let file = file.display().to_string();
    let plain = ["copy", "--to", &to, "--to-credentials", &file];
    let for_both = ["--recipient", &three, "--recipient", &four];
    let copy = [&plain[..], &for_both].concat();
    vault.ok("one", &copy);
    let all = boxes_of(&there.join("vault/key"));
    assert_eq!(all.len(), 2);
    // As it was killed between two boxes: neither epoch nor record.
    let seal = fs::read_dir(there.join("vault/key"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    fs::remove_file(seal.join(&all[1])).unwrap();
    fs::remove_file(seal.join("000001/epoch")).unwrap();
    fs::remove_dir_all(there.join("vault/layer")).unwrap();
    fs::remove_file(there.join("vault/cluster")).unwrap();
    let log = vault.fails("one", &plain, REFUSED);
    assert!(log.contains("recipients of its own"), "{log}");
    vault.ok("one", &copy);
    assert_eq!(boxes_of(&there.join("vault/key")), all);
    vault.ok("four", &["--repo", &to, "verify", "--deep"]);
}

/// A pair into which the server archives and backs up. "three" opens the second repository, and has both in his file.
struct Both {
    pair: Pair,
    writer: String,
    reader: String,
}

const END: i32 = 1;
const STOP: i32 = 255;

impl Both {
    fn new() -> Self {
        let pair = Pair::new();
        pair.vault.ok("one", &pair.for_three());
        let etc = pair.vault.stage.cluster.create_dir("etc").unwrap();
        let [writer, reader] = ["writer", "three"].map(|who| {
            let file = etc.join(format!("{who}.toml"));
            let spool = pair.vault.stage.cluster.create_dir(&format!("spool-{who}"));
            let spool = spool.unwrap();
            fs::set_permissions(&spool, fs::Permissions::from_mode(0o700)).unwrap();
            let text = format!(
                "cluster = 'vault'\nidentity = '{}'\nspool = '{}'\nhole-timeout = '1s'\n[repositories.near]\nrepo = '{}'\n\
                 [repositories.far]\nrepo = '{}'\n",
                pair.vault.identity(who),
                spool.display(),
                pair.vault.stage.repository,
                pair.to
            );
            fs::write(&file, text).unwrap();
            pair.vault.stage.cluster.own(&file).unwrap();
            file.display().to_string()
        });
        let both = Self {
            pair,
            writer,
            reader,
        };
        let stage = &both.pair.vault.stage;
        let push = format!(
            "{} --config {} archive-push %p",
            stage.program.display(),
            both.writer
        );
        stage.cluster.append_conf("archive_command", &push).unwrap();
        stage.cluster.reload().unwrap();
        let pgdata = stage.pgdata();
        let taken = both.run(&both.writer, &["backup", "-D", &pgdata, "--type", "full"]);
        assert_eq!(taken.status.code(), Some(0), "{}", said(&taken));
        both
    }

    fn run(&self, config: &str, arguments: &[&str]) -> Output {
        let mut command = self.pair.vault.stage.command(arguments);
        command
            .env_remove("PGSTRATA_REPO")
            .env_remove("PGSTRATA_CLUSTER")
            .env("PGSTRATA_CONFIG", config);
        command.output().unwrap()
    }

    /// As "three" recovers; what is asked for beside the name.
    fn get(&self, name: &str, more: &[&str]) -> (i32, String) {
        let to = self.pair.vault.stage.target("got").display().to_string();
        let words = [&["archive-get"], more, &[name, &to]].concat();
        let output = self.run(&self.reader, &words);
        (output.status.code().unwrap(), said(&output))
    }

    fn require(&self, name: &str, more: &[&str], (code, words): (i32, &str)) {
        let (found, said) = self.get(name, more);
        assert!(
            found == code && said.contains(words),
            "{name} {more:?}: {found}: {said}"
        );
    }

    fn restore(&self, name: &str, more: &[&str]) -> PathBuf {
        let target = self.pair.vault.stage.target(name);
        let words = ["restore", "--target-dir", target.to_str().unwrap()];
        let output = self.run(&self.reader, &[&words[..], more].concat());
        let log = said(&output);
        assert_eq!(output.status.code(), Some(0), "{log}");
        let warning = "repository near is sealed, and the identity at hand does not open it";
        assert_eq!(log.matches(warning).count(), 1, "{log}");
        target
    }

    /// What lies in one of them under the WAL of timeline 1.
    fn near(&self, name: &str) -> PathBuf {
        let objects = self.pair.vault.stage.objects();
        objects.join("vault/wal/00000001").join(name)
    }

    fn far(&self, name: &str) -> PathBuf {
        self.pair.there.join("vault/wal/00000001").join(name)
    }

    /// Stores what the closed one has of a segment in another place, too.
    fn put(&self, name: &str, object: &Path) {
        fs::create_dir_all(object.parent().unwrap()).unwrap();
        fs::copy(self.near(name), object).unwrap();
        self.pair.vault.stage.cluster.own(object).unwrap();
    }

    /// Archives the history of a timeline that left the first one there, in one of them.
    fn push_history(&self, timeline: u32, left: &str, repository: &str) {
        let stage = &self.pair.vault.stage;
        let file = stage.target(&format!("{timeline:08X}.history"));
        fs::write(&file, format!("1\t{left}\tno reason\n")).unwrap();
        stage.cluster.own(&file).unwrap();
        let file = file.display().to_string();
        let pushed = self.run(&self.writer, &["--repo", repository, "archive-push", &file]);
        assert_eq!(pushed.status.code(), Some(0), "{}", said(&pushed));
    }

    /// The segment that was archived last.
    fn last_segment(&self) -> String {
        let stage = &self.pair.vault.stage;
        let sql = "SELECT pg_create_restore_point('here')";
        stage.cluster.sql("postgres", sql).unwrap();
        stage.archive_all();
        let sql = "SELECT last_archived_wal FROM pg_stat_archiver";
        stage.cluster.sql("postgres", sql).unwrap()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn next(name: &str) -> String {
    let number = u64::from_str_radix(&name[16..], 16).unwrap();
    format!("{}{:08X}", &name[..16], number + 1)
}

#[test]
fn recovery_ends_where_all_names_do_though_one_of_two_repositories_is_closed() {
    let both = Both::new();
    let stage = &both.pair.vault.stage;
    let (_, dump) = stage.moment();
    stage
        .cluster
        .sql("postgres", "DROP TABLE afterwards")
        .unwrap();
    let last = both.last_segment();
    stage.cluster.stop(StopMode::Fast).unwrap();

    // It goes on and archives into both: a timeline of which the closed one has a history.
    let keep = ["--target-action", "promote", "--archive-mode", "keep"];
    let target = both.restore("promoted", &keep);
    let promoted = Cluster::adopt(Major::V15, &target).start().unwrap();
    promoted.wait_promoted(PATIENCE).unwrap();
    require_same_dump(&dump, &promoted.dump().unwrap()).unwrap();
    promoted
        .sql("postgres", "CREATE TABLE later (); SELECT pg_switch_wal()")
        .unwrap();
    let archived = "SELECT last_archived_wal LIKE '00000002%' AND last_archived_wal NOT LIKE '%history' FROM pg_stat_archiver";
    promoted.wait_for("postgres", archived, PATIENCE).unwrap();
    let dump = promoted.dump().unwrap();
    promoted.stop(StopMode::Fast).unwrap();
    both.require(&next(&next(&last)), &[], (END, ""));
    let again = stage.start_restored(&both.restore("again", &[]));
    require_same_dump(&dump, &again.dump().unwrap()).unwrap();

    // The closed one alone has a segment of the way.
    let second = both.pair.there.join("vault/wal/00000002");
    for object in fs::read_dir(second).unwrap() {
        let object = object.unwrap();
        if object.file_name().len() == 24 {
            fs::remove_file(object.path()).unwrap();
        }
    }
    let stopped = both.restore("stopped", &[]);
    let server = Cluster::adopt(Major::V15, &stopped);
    // It may have been open for queries for a moment.
    let said = match server.start() {
        Err(error) => format!("{error:#}"),
        Ok(server) => {
            let end = Instant::now() + PATIENCE;
            while !server.log_tail(20).contains("exit code 255") {
                assert!(Instant::now() < end, "{}", server.log_tail(20));
                thread::sleep(Duration::from_millis(100));
            }
            server.log_tail(40)
        }
    };
    assert!(said.contains("exit code 255"), "{said}");
    assert!(
        said.contains("which the identity at hand does not open"),
        "{said}"
    );
    assert!(stopped.join("recovery.signal").exists());
}

#[test]
fn the_names_in_a_closed_repository_decide_whether_the_archive_ends() {
    let both = Both::new();
    let last = both.last_segment();
    let absent = next(&last);
    both.require(&last, &[], (0, ""));
    both.require(&absent, &[], (END, ""));
    both.require("00000002.history", &[], (END, ""));
    let closed = (STOP, "which the identity at hand does not open");
    let hole = ["--on-hole", "end"];

    // The file itself, whatever is said of holes; then what stands in for it.
    let away = both.far("").with_file_name("away");
    fs::rename(both.far(&last), &away).unwrap();
    both.require(&last, &[], closed);
    both.require(&last, &hole, (STOP, "repository near"));
    let mended = both.near("").with_file_name("../wal-mended/00000001");
    fs::create_dir_all(&mended).unwrap();
    let stands_in = mended.join(format!("{last}-2"));
    fs::rename(both.near(&last), &stands_in).unwrap();
    both.require(&last, &hole, closed);
    fs::rename(&stands_in, both.near(&last)).unwrap();
    fs::rename(&away, both.far(&last)).unwrap();
    both.require(&absent, &[], (END, ""));

    // A repository that cannot be reached says nothing.
    let near = both.pair.vault.stage.objects();
    fs::rename(&near, near.with_extension("away")).unwrap();
    both.require(&absent, &hole, (STOP, ""));
    fs::rename(near.with_extension("away"), &near).unwrap();

    // Nobody's identity: nothing is known.
    let text = fs::read_to_string(&both.reader).unwrap();
    let nobody = both.pair.vault.identity("nobody");
    both.pair.vault.generate("nobody");
    let three = both.pair.vault.identity("three");
    fs::write(&both.reader, text.replace(&three, &nobody)).unwrap();
    both.require(&absent, &[], (STOP, "none of the 1 identities"));
}

#[test]
fn what_lies_behind_a_file_in_a_closed_repository_keeps_the_archive_from_ending() {
    let both = Both::new();
    let last = both.last_segment();
    let absent = next(&last);
    let closed = (STOP, "which the identity at hand does not open");
    let hole = ["--on-hole", "end"];
    let mended = both.near("").with_file_name("../wal-mended/00000001");
    let later = next(&absent);
    let objects = both.pair.vault.stage.objects().join("vault");
    for (object, seen) in [
        (both.near(&later), &later),
        (mended.join(format!("{later}-1")), &later),
    ] {
        both.put(&last, &object);
        both.require(&absent, &[], (STOP, seen));
        both.require(&absent, &hole, (END, seen));
        fs::remove_file(object).unwrap();
        both.require(&absent, &[], (END, ""));
    }
    // How far a history goes is known when a repository that is opened has it.
    for (left, known) in [
        ("0/FF000000", (STOP, "timeline 2 goes along timeline 1")),
        ("0/1000028", (END, "")),
    ] {
        both.push_history(2, left, "near");
        let unknown = "the history of timeline 2 is there";
        both.require(&absent, &[], (STOP, unknown));
        both.require(&absent, &hole, (END, unknown));
        both.require("00000002.history", &hole, closed);
        both.push_history(2, left, "far");
        both.require(&absent, &[], known);
        for root in [&objects, &both.pair.there.join("vault")] {
            fs::remove_dir_all(root.join("wal/00000002")).unwrap();
        }
    }
    both.push_history(3, "0/1000028", "near");
    let third = "files of timeline 3 are there";
    both.require("00000002.history", &[], (STOP, third));
    fs::remove_dir_all(objects.join("wal/00000003")).unwrap();
    // So it is with a layer.
    let mut layers: Vec<_> = fs::read_dir(both.pair.there.join("vault/layer"))
        .unwrap()
        .collect();
    layers.sort_by_key(|layer| layer.as_ref().unwrap().file_name());
    let newest = layers.pop().unwrap().unwrap();
    let manifest = newest.path().join("manifest");
    let away = both.far("").with_file_name("away");
    fs::rename(&manifest, &away).unwrap();
    let label = newest.file_name().into_string().unwrap();
    both.require(&absent, &[], (STOP, &format!("layer {label} is there")));
    fs::rename(&away, &manifest).unwrap();
    both.require(&absent, &[], (END, ""));
}
