//! What each role may do in the bucket is what it needs: the policies are those of SECURITY.md, and the store denies the rest.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::{Bucket, S3Server};
use support::process::{self, signal};
use support::roles::{forged_removal, policy};
use support::vault::Vault;
use support::{Stage, credentials_file, schema, text};

const WARNINGS: i32 = 3;
const UNREACHABLE: i32 = 15;

/// What is said once when something that is not needed any more must stay.
const CALM: &str = "these credentials may not delete";

fn stage() -> Stage {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false");
    let stage = Stage::with_roles(builder, Bucket::Plain);
    let pgdata = stage.pgdata();
    let (_, log) = stage.ends_as("writer", &["init", "--pgdata", &pgdata], 0);
    assert_calm(&log);
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    stage
}

/// The store itself refuses such a request for an object that is there.
fn assert_denied(stage: &Stage, role: &str, method: &str) {
    let place = "/backups/main/cluster";
    let answer = stage.s3().request(Some(role), method, place, "x").unwrap();
    assert_eq!(answer.status, 403, "{role} {method}: {}", answer.body);
}

fn assert_calm(log: &str) {
    assert_eq!(log.matches(CALM).count(), 1, "{log}");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

/// Names of all objects that contain `part`.
fn objects(stage: &Stage, part: &str) -> Vec<String> {
    let mut keys = stage.keys();
    keys.retain(|key| key.contains(part));
    keys
}

#[test]
fn a_writer_that_may_not_delete_does_all_its_work_and_the_keeper_collects_what_it_leaves() {
    let stage = stage();
    assert_denied(&stage, "writer", "DELETE");
    let pgdata = stage.pgdata();
    let (_, log) = stage.ends_as("writer", &["check", "--pgdata", &pgdata], 0);
    assert_calm(&log);
    stage.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-t", "50"]).unwrap();
    stage.backup(&["--type", "incr"]);
    stage.archive_all();
    stage.ends_as("writer", &["info"], 0);
    stage.ends_as("writer", &["verify"], 0);
    // A backup that fails leaves what it has stored.
    let child = stage.begin_backup(&["--type", "full"]);
    signal(&child, "-TERM");
    let log = process::log_of(child);
    assert_eq!(log.matches(CALM).count(), 1, "{log}");
    assert!(!log.contains("could not remove"), "{log}");
    assert!(!objects(&stage, "/probe-").is_empty());

    stage.age_all();
    let (told, _) = stage.ends_as("keeper", &["expire", "--keep-full", "1"], 0);
    assert!(told.contains("without the right to delete"), "{told}");
    for part in ["/probe-", "/clock/", "/beat-"] {
        let left = objects(&stage, part);
        assert!(left.is_empty(), "{left:?}");
    }
    let info = stage.json(&["info"]);
    assert_eq!(info["layers"].as_array().unwrap().len(), 2, "{info:#}");
    let unfinished = info["unfinished"].as_array().unwrap();
    assert!(unfinished.is_empty(), "{info:#}");
    stage.ends_as("keeper", &["verify", "--deep"], 0);
}

#[test]
fn a_reader_that_may_not_write_restores_and_verifies() {
    let stage = stage();
    assert_denied(&stage, "reader", "PUT");
    assert_denied(&stage, "reader", "DELETE");
    stage.backup(&["--type", "full"]);
    stage.cluster.pgbench(&["-t", "50"]).unwrap();
    stage.backup(&["--type", "incr"]);
    let (lsn, dump) = stage.moment();
    let before = stage.keys();
    stage.ends_as("reader", &["info"], 0);
    // A plan needs no other right either.
    let pgdata = stage.pgdata();
    for plan in [
        &["backup", "--pgdata", &pgdata][..],
        &["merge", "latest"],
        &["expire", "--keep-full", "1"],
        &["restore", "--target-dir", "/nowhere/to/be"],
    ] {
        stage.ends_as("reader", &[plan, &["--dry-run"]].concat(), 0);
    }
    let (_, log) = stage.ends_as("reader", &["verify", "--deep"], 0);
    assert_eq!(stage.keys(), before);
    assert!(
        log.contains("no record of this verification stays"),
        "{log}"
    );
    let target = stage.target("restored");
    let into = target.display().to_string();
    let arguments = [
        "restore",
        "--target-dir",
        &into,
        "--target-type",
        "lsn",
        "--target",
        &lsn,
        "--target-action",
        "promote",
    ];
    stage.ends_as("reader", &arguments, 0);
    let settings = fs::read_to_string(target.join("postgresql.auto.conf")).unwrap();
    assert!(settings.contains("credentials/reader.toml"), "{settings}");
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

/// A sealed cluster with some data, and the labels of a full layer and so many increments.
fn sealed(increments: usize) -> (Vault, Vec<String>) {
    let vault = Vault::with_roles(Cluster::builder(Major::V15), Bucket::Plain, &[]);
    let pgbench = |words| vault.stage.cluster.pgbench(words).unwrap();
    pgbench(&["-i", "-q", "-s", "1"]);
    let mut labels = Vec::new();
    for number in 0..=increments {
        pgbench(&["-n", "-t", "50"]);
        let kind = if number == 0 { "full" } else { "incr" };
        let made = vault.backup(&["--type", kind]);
        labels.push(text(&made, "/label").to_owned());
    }
    (vault, labels)
}

/// What is stored, without what the archiver may still be storing.
fn settled(vault: &Vault) -> Vec<String> {
    let mut keys = vault.stage.keys();
    keys.retain(|key| !key.contains("/wal/"));
    keys
}

/// The command is refused by the store, and changes nothing.
fn assert_forbidden(vault: &Vault, as_whom: (&str, &str), words: &[&str]) {
    let before = settled(vault);
    let (_, log) = vault.ends_as(as_whom, words, UNREACHABLE);
    assert!(log.contains("access denied"), "{words:?}: {log}");
    assert_eq!(settled(vault), before, "{words:?}");
}

#[test]
fn marks_and_keys_need_the_right_to_create_and_none_to_delete() {
    let (vault, labels) = sealed(0);
    let (label, two) = (&labels[0], vault.recipient("two"));
    let three = vault.generate("three");
    for (who, words) in [
        ("writer", &["pin", label, "--note", "before the move"][..]),
        ("writer", &["annotate", label, "ticket=DB-1042"]),
        ("writer", &["unpin", label]),
        ("one", &["key", "rotate"]),
        ("one", &["key", "add", "--recipient", &three]),
        ("one", &["key", "reseal", &three]),
        ("one", &["key", "remove", &two]),
    ] {
        assert_forbidden(&vault, ("reader", who), words);
        let before = vault.stage.keys();
        let (_, log) = vault.ends_as(("writer", who), words, 0);
        assert!(!log.contains("WARN") && !log.contains(CALM), "{log}");
        assert_ne!(vault.stage.keys(), before, "{words:?} has done something");
    }
    // To look at keys is to read. One reader of each epoch is one to lose.
    vault.ends_as(("reader", "three"), &["key", "check"], 0);
    vault.ends_as(("reader", "three"), &["verify", "--deep"], 0);
    let (told, _) = vault.ends_as(("reader", "two"), &["key", "check"], WARNINGS);
    assert!(told.contains("epoch"), "{told}");
}

#[test]
fn a_merge_needs_the_right_to_delete_for_its_inputs_alone() {
    let (vault, labels) = sealed(2);
    let merge = ["--output", "json", "merge", &labels[2]];
    let removing = [&merge[..], &["--remove-inputs"]].concat();
    vault.ends_as(("reader", "one"), &[&merge[..], &["--dry-run"]].concat(), 0);
    assert_forbidden(&vault, ("reader", "one"), &merge);
    let before = vault.stage.keys();
    let (merged, _) = vault.ends_as(("writer", "one"), &merge, 0);
    let merged = schema::document(&merged);
    let after = vault.stage.keys();
    let lost = before.iter().find(|key| !after.contains(key));
    assert_eq!(lost, None);
    let (_, log) = vault.ends_as(("writer", "one"), &removing, UNREACHABLE);
    assert!(log.contains("access denied"), "{log}");
    // One that cannot remove decides on nothing: that would keep others from their work.
    let decided = vault.stage.keys().into_iter();
    let decided: Vec<String> = decided.filter(|key| key.ends_with("/verdict")).collect();
    assert!(decided.is_empty(), "{decided:?}");
    for label in &labels {
        let manifest = format!("backups/vault/layer/{label}/manifest");
        assert!(vault.stage.keys().contains(&manifest), "{label}");
    }
    let (again, _) = vault.ends_as(("keeper", "one"), &removing, 0);
    let again = schema::document(&again);
    assert_eq!(again["label"], merged["label"]);
    assert_eq!(again["removed"].as_array().unwrap().len(), 3, "{again:#}");
    vault.ends_as(("reader", "one"), &["verify", "--deep"], 0);
}

/// So a policy may allow the writer to do nothing else.
#[test]
fn every_object_is_stored_by_a_request_that_asks_not_to_overwrite() {
    let stage = Stage::with_roles(Cluster::builder(Major::V15), Bucket::Locked);
    let proxy = Proxy::before(stage.s3().endpoint()).unwrap();
    let ends = |role: &str, words: &[&str]| {
        let mut command = stage.command(words);
        command.env("PGSTRATA_CREDENTIALS", stage.credentials_of(role));
        command.env("PGSTRATA_S3_ENDPOINT", proxy.endpoint());
        process::ended(command.output().unwrap(), &format!("{words:?}"), 0)
    };
    let pgdata = stage.pgdata();
    ends("writer", &["init", "--pgdata", &pgdata, "--retain", "8d"]);
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    for kind in ["full", "incr", "incr"] {
        stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
        let backup = ["backup", "--pgdata", &pgdata, "--type", kind];
        ends("writer", &[&backup[..], &["--wal", "stream"]].concat());
    }
    ends("writer", &["pin", "latest"]);
    ends("writer", &["annotate", "latest", "ticket=DB-1042"]);
    ends("writer", &["unpin", "latest"]);
    ends("writer", &["verify", "--deep"]);
    ends("keeper", &["merge", "latest"]);
    ends("keeper", &["expire", "--keep-full", "1"]);
    assert!(proxy.requests() > 50, "{}", proxy.requests());
    assert_eq!(proxy.overwriting(), 0);
    // Another one would have been seen.
    let address = proxy.endpoint().trim_start_matches("http://");
    let mut client = TcpStream::connect(address).unwrap();
    client
        .write_all(b"PUT /pgstrata/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    let _ = client.read(&mut [0; 100]).unwrap();
    assert_eq!(proxy.overwriting(), 1);
}

/// Another bucket of another server, with accounts and policies of its own.
struct Elsewhere {
    server: S3Server,
    options: Vec<String>,
}

impl Elsewhere {
    fn start() -> Self {
        let server = S3Server::start().unwrap();
        server.allow(&policy(&server, &[])).unwrap();
        let options = [
            ("endpoint", server.endpoint()),
            ("region", server.region()),
            ("virtual_hosted_style_request", "false"),
            ("allow_http", "true"),
        ];
        let options = options.map(|(name, value)| format!("--to-storage={name}={value}"));
        Self {
            options: options.into(),
            server,
        }
    }

    fn repository(&self) -> String {
        format!("s3://{}/backups", self.server.bucket())
    }

    /// The file with the account of a role there.
    fn credentials(&self, vault: &Vault, role: &str) -> String {
        let secret = self.server.role_secret(role).unwrap();
        let keys = format!("access_key_id = \"{role}\"\nsecret_access_key = \"{secret}\"\n");
        let name = format!("{role}-elsewhere");
        let file = credentials_file(&vault.stage.cluster, &name, &keys);
        file.display().to_string()
    }

    /// Copies with a reader's rights here and those of `role` there.
    fn copy(&self, vault: &Vault, role: &str, more: &[&str], code: i32) -> (String, String) {
        let (to, file) = (self.repository(), self.credentials(vault, role));
        let mut words = vec!["copy", "--to", &to, "--to-credentials", &file];
        words.extend(self.options.iter().map(String::as_str));
        words.extend(more);
        let before = vault.stage.keys();
        let ended = vault.ends_as(("reader", "writer"), &words, code);
        assert_eq!(vault.stage.keys(), before, "the source is read alone");
        ended
    }
}

#[test]
fn a_copy_reads_here_and_creates_there() {
    let (vault, labels) = sealed(1);
    let there = Elsewhere::start();
    let begun = || fs::read_dir(there.server.bucket_dir()).unwrap().count();
    there.copy(&vault, "reader", &["--dry-run"], 0);
    let (_, log) = there.copy(&vault, "reader", &[], UNREACHABLE);
    assert!(log.contains("access denied"), "{log}");
    assert_eq!(begun(), 0, "nothing was begun");
    let (_, log) = there.copy(&vault, "writer", &[], 0);
    assert_calm(&log);
    let next = vault.backup(&["--type", "incr"]);
    vault.stage.archive_all();
    let (told, log) = there.copy(&vault, "writer", &[], 0);
    assert_calm(&log);
    assert!(told.contains(text(&next, "/label")), "{told}");
    assert!(!told.contains(&format!("{}:", labels[0])), "{told}");
    // It is whole for who reads there.
    let mut verify = vault.command("one", &["--repo", &there.repository(), "verify", "--deep"]);
    verify.env("PGSTRATA_S3_ENDPOINT", there.server.endpoint());
    verify.env("PGSTRATA_CREDENTIALS", there.credentials(&vault, "reader"));
    process::ended(verify.output().unwrap(), "verify there", 0);
}

/// Keys of what lasts.
fn lasting(stage: &Stage) -> Vec<String> {
    let mut keys = stage.keys();
    let passes = |key: &String| {
        ["/clock/", "/probe-", "/beat-"]
            .iter()
            .any(|part| key.contains(part))
    };
    keys.retain(|key| !passes(key));
    keys
}

#[test]
fn a_removal_that_a_writer_forges_takes_nothing_away() {
    let stage = stage();
    let [full, child] = ["full", "incr"].map(|kind| {
        let report = stage.backup(&["--type", kind]);
        text(&report, "/label").to_owned()
    });
    let manifest = |label: &str| {
        let place = format!("/backups/main/layer/{label}/manifest");
        let answer = stage.s3().request(Some("writer"), "GET", &place, "");
        answer.unwrap().body
    };
    let manifests = [&child, &full].map(|label| (label.as_str(), manifest(label)));
    let layers = manifests
        .each_ref()
        .map(|(label, bytes)| (*label, bytes.as_bytes()));
    let forged = forged_removal(&layers);
    for (key, body) in &forged {
        let place = format!("/backups/main/{key}");
        let answer = stage.s3().request(Some("writer"), "PUT", &place, body);
        assert_eq!(answer.unwrap().status, 200);
    }
    let before = lasting(&stage);
    let expire = ["expire", "--keep-full", "1"];
    let (told, _) = stage.ends_as("reader", &[&expire[..], &["--dry-run"]].concat(), 3);
    assert!(
        told.contains("begun    removal f0f0 by process 4711 on \"stolen\""),
        "{told}"
    );
    let (_, log) = stage.ends_as("keeper", &expire, 13);
    for said in [
        &full,
        &child,
        "main/removal/f0f0/wanted",
        "main/removal/f0f0/verdict",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    assert_eq!(lasting(&stage), before);
    // What the error says to do.
    for (key, _) in &forged {
        let place = format!("/backups/main/{key}");
        let answer = stage.s3().request(Some("keeper"), "DELETE", &place, "");
        assert_eq!(answer.unwrap().status, 204);
    }
    stage.ends_as("keeper", &expire, 0);
    stage.ends_as("keeper", &["verify", "--deep"], 0);
    let info = stage.json(&["info"]);
    assert_eq!(info["layers"].as_array().unwrap().len(), 2, "{info:#}");
}
