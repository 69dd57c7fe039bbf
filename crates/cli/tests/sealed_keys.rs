//! What is said of the keys of a sealed cluster, and of keys that do not fit.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::{Value, json};
use support::vault::Vault;
use support::{Store, schema};

const REFUSED: i32 = 13;
const DAMAGED: i32 = 14;
const WARNINGS: i32 = 3;

fn silent() -> Vault {
    Vault::on(Cluster::builder(Major::V15), Store::Directory)
}

/// The report of `check`, and its items about keys.
fn check(vault: &Vault, who: &str) -> (i32, Value, Vec<Value>) {
    let pgdata = vault.stage.pgdata();
    let words = [
        "--output", "json", "check", "-D", &pgdata, "--wal", "stream",
    ];
    let output = vault.run(who, &words);
    let printed = String::from_utf8(output.stdout).unwrap();
    let report = schema::document(&printed);
    let items = report["items"].as_array().unwrap().iter();
    let items = items.filter(|item| item["name"] == "keys").cloned();
    (
        output.status.code().unwrap(),
        report.clone(),
        items.collect(),
    )
}

#[test]
fn check_says_who_opens_a_sealed_cluster_and_nothing_of_a_clear_one() {
    let vault = silent();
    let (code, report, items) = check(&vault, "writer");
    let detail = items[0]["detail"].as_str().unwrap();
    assert_eq!(items.len(), 1, "{report:#}");
    assert_eq!(items[0]["status"], "ok", "{report:#}");
    assert!(
        detail.contains("epoch 1 is current: 2 readers, 1 writer, 1 keeper"),
        "{detail}"
    );
    assert!(detail.contains("is a writer of it"), "{detail}");
    assert!(code == 0 || code == WARNINGS, "{report:#}");
    let expected = json!({
        "epoch": 1, "readers": 2, "writers": 1, "keepers": 1, "own_roles": ["writer"], "opened_up_to": 1, "lone_epochs": [],
    });
    assert_eq!(report["keys"], expected);

    // One reader is left: whoever asks is warned.
    vault.ok("one", &["key", "remove", &vault.recipient("two")]);
    let (code, report, items) = check(&vault, "one");
    assert_eq!(code, WARNINGS, "{report:#}");
    assert_eq!(items[1]["status"], "warning", "{report:#}");
    assert!(
        items[1]["detail"].as_str().unwrap().contains("one reader"),
        "{report:#}"
    );
    assert_eq!(report["keys"]["lone_epochs"], json!([2]));
    assert_eq!(report["keys"]["own_roles"], json!(["reader"]));

    // Who was left out, who never was in, and who shows nothing: backups would fail.
    vault.generate("other");
    for (who, says, opened) in [
        ("two", "up to epoch 1, and was left out since", json!(1)),
        ("other", "opens nothing", Value::Null),
        ("", "opens nothing", Value::Null),
    ] {
        let (code, report, items) = check(&vault, who);
        assert_eq!(code, REFUSED, "{report:#}");
        assert_eq!(items[0]["status"], "failed", "{report:#}");
        assert!(
            items[0]["detail"].as_str().unwrap().contains(says),
            "{report:#}"
        );
        assert_eq!(report["keys"]["opened_up_to"], opened, "{report:#}");
    }
    let pgdata = vault.stage.pgdata();
    let clear = vault.stage.run(&[
        "--output", "json", "check", "-D", &pgdata, "--wal", "stream",
    ]);
    let clear = schema::document(&String::from_utf8(clear.stdout).unwrap());
    assert_eq!(clear["keys"], Value::Null);
    let items = clear["items"].as_array().unwrap();
    assert!(items.iter().all(|item| item["name"] != "keys"), "{clear:#}");
}

#[test]
fn who_was_taken_out_is_told_what_he_opens() {
    let vault = silent();
    let pgdata = vault.stage.pgdata();
    vault.backup(&["--type", "full", "--wal", "stream"]);
    vault.ok("one", &["key", "remove", &vault.recipient("two")]);
    vault.ok("one", &["key", "remove", &vault.recipient("writer")]);
    let nowhere = vault.stage.target("nowhere").display().to_string();
    for (who, words) in [
        ("two", &["restore", "--target-dir", &nowhere][..]),
        ("two", &["info"]),
        ("writer", &["backup", "-D", &pgdata, "--wal", "stream"]),
        ("two", &["key", "rotate"]),
    ] {
        let log = vault.fails(who, words, REFUSED);
        let says = match who {
            "two" => "opens what was sealed up to epoch 1, and was left out when epoch 2 began",
            _ => "opens what was sealed up to epoch 2, and was left out when epoch 3 began",
        };
        assert!(log.contains(says) && log.contains("key add"), "{log}");
    }
    let checked = vault.run("two", &["key", "check"]);
    let shown = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(WARNINGS), "{shown}");
    assert!(
        shown.contains("epoch 3 is current, and the identity at hand opens nothing of it"),
        "{shown}"
    );
}

/// The directory of the cluster's first epoch.
fn first_epoch(vault: &Vault) -> PathBuf {
    let keys = vault.stage.objects().join("vault/key");
    let seal = fs::read_dir(keys).unwrap().next().unwrap().unwrap().path();
    seal.join("000001")
}

#[test]
fn an_identity_file_may_hold_several_and_an_epoch_may_be_opened_by_nobody() {
    let vault = silent();
    vault.generate("other");
    let both = [vault.identity("other"), vault.identity("one")];
    let both = both.map(|file| fs::read_to_string(file).unwrap()).concat();
    let file = vault.identity("several");
    fs::copy(vault.identity("one"), &file).unwrap();
    fs::write(&file, &both).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    vault.stage.cluster.own(file.as_ref()).unwrap();
    vault.ok("several", &["info"]);
    fs::write(
        &file,
        both.replacen("AGE-SECRET-KEY-1", "AGE-SECRET-KEY-2", 1),
    )
    .unwrap();
    let log = vault.fails("several", &["info"], REFUSED);
    assert!(log.contains("line 2 of identity file"), "{log}");
    let log = vault.fails("", &["info", "--key-command", "yes"], REFUSED);
    assert!(log.contains("more than 64 KiB"), "{log}");

    // Every box is lost: nobody opens it, and each is told so.
    let epoch = first_epoch(&vault);
    let kept = epoch.with_file_name("kept");
    fs::create_dir(&kept).unwrap();
    for key in fs::read_dir(&epoch).unwrap() {
        let key = key.unwrap();
        if key.file_name() != "epoch" {
            fs::rename(key.path(), kept.join(key.file_name())).unwrap();
        }
    }
    for who in ["one", "writer"] {
        let log = vault.fails(who, &["info"], REFUSED);
        assert!(
            log.contains("none of the 1 identities at hand opens"),
            "{log}"
        );
    }
    let (code, report, items) = check(&vault, "one");
    assert_eq!(code, REFUSED, "{report:#}");
    let detail = items[0]["detail"].as_str().unwrap();
    assert!(detail.contains("epoch 1 is current: 0 readers"), "{detail}");
    assert_eq!(report["keys"]["lone_epochs"], json!([1]));
    // The epoch is lost too.
    fs::rename(epoch.join("epoch"), kept.join("epoch")).unwrap();
    let log = vault.fails("one", &["info"], DAMAGED);
    assert!(log.contains("its keys below"), "{log}");
    let (code, report, items) = check(&vault, "one");
    assert!(
        code == REFUSED && items[0]["status"] == "failed",
        "{report:#}"
    );
}
