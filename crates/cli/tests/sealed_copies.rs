//! Copies of a sealed cluster for recipients of their own: the same layers, which others open.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use serde_json::Value;
use support::vault::Vault;
use support::{Store, schema, text};

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
        let until = [
            "--target-type",
            "lsn",
            "--target",
            lsn,
            "--target-action",
            "promote",
        ];
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
    let backup = || {
        let mut command = stage.command(&["--output", "json", "backup", "--wal", "stream"]);
        command
            .env_remove("PGSTRATA_REPO")
            .env_remove("PGSTRATA_CLUSTER");
        command.args(["-D", &stage.pgdata(), "--config", config.to_str().unwrap()]);
        command.output().unwrap()
    };
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
    vault.ok("one", &pair.for_three());
    assert!(backup().status.success());
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
    let options = [
        ("endpoint", s3.endpoint()),
        ("region", "us-east-1"),
        ("virtual_hosted_style_request", "false"),
        ("allow_http", "true"),
        ("access_key_id", s3.access_key()),
        ("secret_access_key", s3.secret()),
    ];
    let options = options.map(|(name, value)| format!("{name}={value}"));
    let mut plain = vec!["copy", "--to", &to];
    plain.extend(options.iter().flat_map(|option| ["--to-storage", option]));
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
