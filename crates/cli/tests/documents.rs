//! Every document that a command prints as JSON has a schema file and is as it says, errors included; and what cannot be
//! written is not silently lost.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::Stdio;

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;
use support::{Stage, Store, schema};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 10;
const FILE: i32 = 17;

/// Runs a command of which only the document counts; returns it and the exit code.
fn document_of(stage: &Stage, arguments: &[&str]) -> (Value, i32) {
    let output = stage.run(&[&["--output", "json"], arguments].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !text.is_empty(),
        "pgstrata {arguments:?} printed nothing: {log}"
    );
    (schema::document(&text), output.status.code().unwrap())
}

/// Each command once, and as a plan where it has one; together they print every document there is.
#[test]
fn every_document_has_a_schema_and_is_as_it_says() {
    let stage = Stage::archiving(Cluster::builder(Major::V18), Store::Directory);
    let (pgdata, conninfo) = (stage.pgdata(), stage.cluster.conninfo("postgres"));
    let server = ["-D", &pgdata, "-d", &conninfo];
    let mut seen = BTreeSet::new();
    let mut run = |arguments: &[&str], code: i32| {
        let (document, found) = document_of(&stage, arguments);
        assert_eq!(found, code, "pgstrata {arguments:?}: {document:#}");
        seen.insert(document["schema"].as_str().unwrap().to_owned());
        document
    };
    let at_server = |command: &[&'static str], more: &[&'static str]| {
        let words = command.iter().chain(&server).chain(more).copied();
        words.map(str::to_owned).collect::<Vec<String>>()
    };
    fn words(owned: &[String]) -> Vec<&str> {
        owned.iter().map(String::as_str).collect()
    }
    run(&words(&at_server(&["init"], &[])), 0);
    run(&words(&at_server(&["check"], &[])), 0);
    run(&words(&at_server(&["backup"], &["--dry-run"])), 0);
    run(&words(&at_server(&["backup"], &["--type", "full"])), 0);
    run(
        &words(&at_server(
            &["backup"],
            &["--type", "incr", "--audit", "100%"],
        )),
        0,
    );
    run(&words(&at_server(&["tracker", "status"], &[])), 3);
    run(&words(&at_server(&["tracker", "install-check"], &[])), 13);
    stage.archive_all();
    let archived = "SELECT last_archived_wal FROM pg_stat_archiver";
    let name = stage.cluster.sql("postgres", archived).unwrap();
    let fetched = stage.target(&name).display().to_string();
    run(&["archive-get", &name, &fetched], 0);
    run(&["archive-push", &fetched], 0);
    let identity = stage.target("identity").display().to_string();
    run(&["key", "generate", &identity], 0);
    run(&["info"], 0);
    run(&["info", "latest"], 0);
    run(&["verify", "--deep"], 0);
    of_layers(&stage, &mut run);
    let (near, far) = (stage.target("near"), stage.target("far"));
    run(&["copy", "--to", &format!("file://{}", far.display())], 0);
    let config = near.with_extension("toml");
    let table = |name: &str, url: String| format!("[repositories.{name}]\nrepo = '{url}'\n");
    let far = table("far", format!("file://{}", far.display()));
    fs::write(&config, table("near", stage.repository.clone()) + &far).unwrap();
    let mut all = stage.command(&["--output", "json", "info", "--config"]);
    let output = all
        .arg(&config)
        .env_remove("PGSTRATA_REPO")
        .output()
        .unwrap();
    let shown = schema::document(&String::from_utf8(output.stdout).unwrap());
    let shown = shown["schema"].as_str().unwrap().to_owned();
    seen.insert(shown);
    // It needs a bucket that keeps versions: the tests of rescue print it.
    seen.insert("pgstrata.rescue/1".to_owned());
    assert_eq!(
        seen,
        schema::known(),
        "documents that are printed, and schema files"
    );
}

fn of_layers(stage: &Stage, run: &mut impl FnMut(&[&str], i32) -> Value) {
    let (until, note) = ("2999-12-31", "for the test");
    run(&["pin", "latest", "--until", until, "--note", note], 0);
    run(&["annotate", "latest", "ticket=DB-1"], 0);
    let shown = run(&["info", "--costs", "--keep-daily", "7"], 0);
    assert_eq!(shown["rules"].as_array().unwrap().len(), 3, "{shown:#}");
    let shown = run(&["info"], 0);
    let newest = shown["layers"].as_array().unwrap().last().unwrap();
    assert_eq!(newest["pin"]["note"], note);
    assert_eq!(newest["annotations"]["ticket"], "DB-1");
    run(&["unpin", "latest"], 0);
    run(&["merge", "--dry-run"], 0);
    run(&["merge"], 0);
    let target = stage.target("restored").display().to_string();
    run(&["restore", "--target-dir", &target, "--dry-run"], 0);
    run(&["restore", "--target-dir", &target], 0);
    let planned = run(&["expire", "--keep-full", "1", "--dry-run"], 0);
    assert_eq!(planned["done"], false);
    run(&["expire", "--keep-full", "1", "--ignore-restores"], 0);
    let unknown = run(&["info", "20200101-000000F"], NOT_FOUND);
    assert_eq!(unknown["exit_code"], NOT_FOUND);
}

/// Arguments that are not understood are an error like every other: one document, and the exit code of the process in it.
#[test]
fn usage_errors_are_documents_too() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    for (arguments, expected, words) in [
        (&["info", "--nonsense"][..], USAGE, "--nonsense"),
        (&["restore"], USAGE, "--target-dir"),
        (&["nonsense"], USAGE, "nonsense"),
        (&[], USAGE, "no command"),
        (&["--jobs", "0", "info"], USAGE, "from 1 to 256"),
        (&["--jobs", "-1", "info"], USAGE, "from 1 to 256"),
        (&["backup", "--archive-timeout", "30"], USAGE, "unit"),
        (&["archive-get", "--nonsense"], 255, "--nonsense"),
        (&["archive-get", "000000010000000000000001"], 255, "PATH"),
        (&["verify", "nonsense"], USAGE, "not a label"),
    ] {
        let (document, code) = document_of(&stage, arguments);
        assert_eq!(code, expected, "{arguments:?}: {document:#}");
        assert_eq!(document["schema"], "pgstrata.error/1", "{document:#}");
        assert_eq!(document["kind"], "usage", "{document:#}");
        assert_eq!(document["exit_code"], expected, "{document:#}");
        let message = document["message"].as_str().unwrap();
        assert!(
            message.contains(words),
            "\"{words}\" is not in {document:#}"
        );
        assert!(
            !message.contains('\n') && document["hint"].is_string(),
            "{document:#}"
        );
    }
    let mut command = stage.command(&["info", "--nonsense"]);
    let output = command.env("PGSTRATA_OUTPUT", "json").output().unwrap();
    schema::document(std::str::from_utf8(&output.stdout).unwrap());
}

/// One exit code for a cluster that the repository does not know, whichever command is asked.
#[test]
fn an_unknown_cluster_has_one_exit_code() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let far = format!("file://{}", stage.target("far").display());
    let identity = stage.target("identity").display().to_string();
    stage.ok(&["key", "generate", &identity]);
    for arguments in [
        &["info"][..],
        &["verify"],
        &["merge"],
        &["expire", "--keep-full", "1"],
        &["expire", "--keep-full", "1", "--dry-run"],
        &["restore", "--target-dir", "/nowhere/at/all"],
        &["backup", "-D", &pgdata],
        &["archive-push", "/nowhere/000000010000000000000001"],
        &["pin", "latest"],
        &["pin", "20200101-000000F"],
        &["unpin", "latest"],
        &["annotate", "latest", "ticket=DB-1"],
        &["copy", "--to", &far],
        &["copy", "--to", &far, "--dry-run"],
        &["key", "check"],
        &["--identity", &identity, "key", "check"],
        &["--identity", &identity, "key", "rotate"],
    ] {
        let (document, code) = document_of(&stage, &[&["--cluster", "other"], arguments].concat());
        assert_eq!(code, NOT_FOUND, "{arguments:?}: {document:#}");
        assert_eq!(document["exit_code"], NOT_FOUND, "{document:#}");
        let message = document["message"].as_str().unwrap();
        assert!(
            message.contains("\"other\" is not in the repository"),
            "{document:#}"
        );
    }
}

#[test]
fn a_full_standard_output_is_an_error_and_a_closed_pipe_is_none() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    for arguments in [
        &["info"][..],
        &["--output", "json", "info"],
        &["man"],
        &["--help"],
    ] {
        let mut command = stage.command(arguments);
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(FILE), "{arguments:?}: {log}");
        assert!(log.contains("could not write to standard output"), "{log}");
        let mut command = stage.command(arguments);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), log.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}
