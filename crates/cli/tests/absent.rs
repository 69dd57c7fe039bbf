//! What is not there: a repository that is not mounted, a cluster whose record is lost. Each command says which of the two it
//! is, and none makes the first look like a new repository.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;

use pgstrata_testbed::cluster::{Cluster, Major};
use support::judged::{document, kinds, stored};
use support::{Stage, Store, text};

const WARNINGS: i32 = 3;
const NOT_FOUND: i32 = 10;
const FAILED: i32 = 13;
const DAMAGED: i32 = 14;

#[test]
fn a_repository_that_is_not_mounted_is_never_made_by_looking() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let place = stage.target("mountpoint");
    let url = format!("file://{}", place.display());
    let target = stage.target("restored").display().to_string();
    for is_there in [true, false] {
        if is_there {
            fs::create_dir(&place).unwrap();
        }
        for words in [
            &["info"][..],
            &["check", "--pgdata", &pgdata],
            &["verify"],
            &["restore", "--target-dir", &target],
            &["backup", "--pgdata", &pgdata],
            &["expire", "--keep-full", "1"],
            &["info"],
        ] {
            let output = stage.run(&[&["--repo", &url], words].concat());
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8(said).unwrap();
            assert!(
                said.contains("is empty or not there: is it mounted?"),
                "{words:?}: {said}"
            );
            let expected = match words[0] {
                "check" => FAILED,
                _ => NOT_FOUND,
            };
            assert_eq!(output.status.code(), Some(expected), "{words:?}: {said}");
            let made = fs::read_dir(&place).map_or(0, Iterator::count);
            assert_eq!(made, 0, "{words:?}: {said}");
            assert_eq!(place.exists(), is_there, "{words:?}");
        }
        if is_there {
            fs::remove_dir(&place).unwrap();
        }
    }
}

#[test]
fn a_record_that_is_lost_beside_layers_is_damage_for_every_command() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    stage.backup(&["--type", "full"]);
    stage.backup(&["--type", "incr"]);
    let record = stored(&stage).join("cluster");
    let whole = fs::read(&record).unwrap();
    fs::remove_file(&record).unwrap();
    let target = stage.target("restored").display().to_string();
    let copy = format!("file://{}", stage.target("copy").display());
    for words in [
        &["verify"][..],
        &["restore", "--target-dir", &target],
        &["expire", "--keep-full", "1"],
        &["expire", "--keep-full", "1", "--dry-run"],
        &["merge", "--dry-run"],
        &["merge"],
        &["pin", "latest"],
        &["backup", "--pgdata", &pgdata],
        &["backup", "--pgdata", &pgdata, "--dry-run"],
        &["copy", "--to", &copy],
    ] {
        let output = stage.run(words);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(output.status.code(), Some(DAMAGED), "{words:?}: {said}");
        assert!(said.contains("the record of cluster"), "{words:?}: {said}");
        assert!(
            said.contains("is lost from the repository"),
            "{words:?}: {said}"
        );
        assert!(said.contains("where 2 layers are"), "{words:?}: {said}");
    }
    let (code, info) = document(&stage, &["info"]);
    assert_eq!((code, kinds(&info)[0]), (WARNINGS, "record"), "{info:#}");
    assert!(
        text(&info, "/alarms/0/to_do").contains("pgstrata init"),
        "{info:#}"
    );
    let (code, report) = document(&stage, &["check", "--pgdata", &pgdata]);
    assert_eq!(code, FAILED, "{report:#}");
    assert!(
        report.to_string().contains("is lost from the repository"),
        "{report:#}"
    );

    // What the hint says is a repair.
    stage.ok(&["init", "--pgdata", &pgdata]);
    stage.ok(&["verify"]);
    fs::write(&record, whole).unwrap();
    stage.ok(&["verify"]);
}
