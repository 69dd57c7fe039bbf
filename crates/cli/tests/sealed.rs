//! A sealed cluster: the host of the database backs up, and cannot read what it stored; who shall read it can.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use serde_json::Value;
use support::vault::Vault;
use support::{Store, number, text};

const REFUSED: i32 = 13;
const DAMAGED: i32 = 14;
const USAGE: i32 = 2;

/// A word that lies in a page and in the WAL, and nowhere else.
const SECRET: &str = "xyzzyTOPSECRETplugh";

/// Files below `directory` that hold `word`.
fn holding(directory: &Path, word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holding(&path, word));
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let mut windows = bytes.windows(word.len());
        if windows.any(|window| window == word.as_bytes()) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn the_host_of_the_database_makes_increments_that_it_cannot_read() {
    let vault = Vault::new(Major::V18);
    let stage = &vault.stage;
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql(&format!(
        "CREATE TABLE secrets AS SELECT '{SECRET}' || n AS word FROM generate_series(1, 5000) n"
    ));
    let full = vault.backup(&["--type", "full"]);
    sql("UPDATE secrets SET word = word || 'again' WHERE word LIKE '%7'");
    let incremental = vault.backup(&["--type", "incr"]);
    assert!(
        text(&incremental, "/label").ends_with('I'),
        "{incremental:#}"
    );
    let (lsn, dump) = stage.moment();

    // Without sealing the word would be found.
    stage.ok(&[
        "backup",
        "--pgdata",
        &stage.pgdata(),
        "--type",
        "full",
        "--compress",
        "none",
        "--wal",
        "stream",
    ]);
    assert!(!holding(&stage.objects().join("main"), SECRET).is_empty());
    for word in [
        SECRET,
        "backup_label",
        "START WAL LOCATION",
        "pg_xact",
        "base/",
    ] {
        assert_eq!(
            holding(&stage.objects().join("vault"), word),
            Vec::<String>::new()
        );
    }

    // The writer sees what it needs, and reads nothing back.
    assert!(
        vault
            .ok("writer", &["info"])
            .contains(text(&full, "/label"))
    );
    let nowhere = stage.target("nowhere").display().to_string();
    for who in ["writer", "keeper", ""] {
        vault.fails(who, &["restore", "--target-dir", &nowhere], REFUSED);
    }
    let segment = sql("SELECT last_archived_wal FROM pg_stat_archiver");
    let fetched = stage.target(&segment).display().to_string();
    vault.fails("writer", &["archive-get", &segment, &fetched], 255);
    vault.ok("one", &["archive-get", &segment, &fetched]);
    // Pushing it again is no error, with WAL that cannot be read back.
    vault.ok("writer", &["archive-push", &fetched]);

    // Everybody verifies as far as he can.
    for who in ["", "keeper", "writer", "one"] {
        vault.ok(who, &["verify"]);
    }
    vault.ok("one", &["verify", "--deep"]);
    vault.ok("keeper", &["expire", "--keep-full", "1", "--dry-run"]);

    let target = vault.restore("two", "restored", &lsn);
    who_removes_sees_where_and_the_store_does_not(&vault, &target);
    let restored = stage.start_restored(Path::new(&target));
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    drop(restored);

    // Merged by a reader: the same state, in a layer whose writer is a reader.
    vault.fails("keeper", &["merge"], REFUSED);
    vault.ok("one", &["merge"]);
    vault.ok("one", &["verify", "--deep"]);
    let merged = vault.restore("one", "merged", &lsn);
    let merged = stage.start_restored(Path::new(&merged));
    require_same_dump(&dump, &merged.dump().unwrap()).unwrap();
}

/// A restore to `target` goes on.
fn who_removes_sees_where_and_the_store_does_not(vault: &Vault, target: &str) {
    let info = vault.ok("keeper", &["--output", "json", "info"]);
    assert!(info.contains(target), "{info}");
    let objects = vault.stage.objects().join("vault");
    assert_eq!(holding(&objects.join("restore"), "PGSTSEAL").len(), 1);
    assert_eq!(holding(&objects, target), Vec::<String>::new());
}

#[test]
fn keys_let_in_and_leave_out() {
    let vault = Vault::new(Major::V15);
    let stage = &vault.stage;
    vault.backup(&["--type", "full"]);
    let two = fs::read_to_string(vault.identity("two")).unwrap();
    let two = two
        .lines()
        .next()
        .unwrap()
        .trim_start_matches("# public key: ")
        .to_owned();
    vault.fails("writer", &["key", "remove", &two], REFUSED);
    vault.ok("one", &["key", "remove", &two]);
    let checked = vault.run("one", &["key", "check"]);
    let shown = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(3), "{shown}");
    assert!(
        shown.contains("one reader") && shown.contains("epoch 2"),
        "{shown}"
    );
    // The chain goes on across epochs.
    vault.backup(&["--type", "incr"]);
    let (lsn, dump) = stage.moment();
    vault.ok("one", &["verify", "--deep"]);
    let restored = vault.restore("one", "restored", &lsn);
    let restored = stage.start_restored(Path::new(&restored));
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
    drop(restored);
    let nowhere = stage.target("nowhere").display().to_string();
    vault.fails("two", &["restore", "--target-dir", &nowhere], REFUSED);
    // Let in again, for what comes and for what was.
    vault.ok("one", &["key", "add", "--recipient", &two]);
    vault.ok("one", &["key", "reseal", &two]);
    let again = vault.restore("two", "again", &lsn);
    let again = stage.start_restored(Path::new(&again));
    require_same_dump(&dump, &again.dump().unwrap()).unwrap();
}

#[test]
fn wrong_keys_and_half_sealed_repositories_are_one_clear_error_each() {
    let vault = Vault::new(Major::V18);
    let stage = &vault.stage;
    let pgdata = stage.pgdata();
    let full = vault.backup(&["--type", "full", "--wal", "stream"]);
    let label = text(&full, "/label");
    let other = vault.generate("other");
    wrong_identities(&vault);
    wrong_recipients(&vault, &other);

    // A cluster that was begun without is not sealed later, and an identity is not ignored.
    let clear = [
        "init",
        "--pgdata",
        &pgdata,
        "--encrypt",
        "--recipient",
        &other,
        "--one-recipient",
    ];
    let (code, log) = stage.fails(&clear);
    assert!(code == REFUSED && log.contains("not sealed"), "{log}");
    let (code, log) = stage.fails(&["info", "--identity", &vault.identity("one")]);
    assert!(code == REFUSED && log.contains("is not sealed"), "{log}");

    // A clear layer in a sealed cluster, and a record that was exchanged for that of a clear one.
    stage.backup(&["--type", "full", "--wal", "stream"]);
    let (main, own) = (stage.objects().join("main"), stage.objects().join("vault"));
    let clear = fs::read_dir(main.join("layer"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let genuine = own.join("layer").join(label);
    for (object, says) in [
        ("manifest", "manifest is not sealed"),
        ("pack-000000", "does not begin as a sealed object does"),
        ("index-000000", "does not begin as a sealed object does"),
        ("digest-000000", "does not begin as a sealed object does"),
    ] {
        let kept = fs::read(genuine.join(object)).unwrap();
        fs::write(genuine.join(object), fs::read(clear.join(object)).unwrap()).unwrap();
        for who in ["", "one"] {
            let log = vault.fails(who, &["verify"], DAMAGED);
            // What is too long is not looked at.
            if !log.contains("takes at most") {
                assert!(log.contains(says), "{who} {object}: {log}");
                assert!(log.contains("everything in this cluster is"), "{log}");
            }
            let named = format!("vault/layer/{label}/{object}");
            assert!(log.contains(&named), "{who} {object}: {log}");
        }
        fs::write(genuine.join(object), kept).unwrap();
    }
    vault.ok("one", &["verify", "--deep"]);
    exchanged_records(&vault);
    vault.ok("one", &["verify"]);
}

/// The record of the sealed cluster, exchanged for that of another one that is clear, and for a clear one of its own name.
fn exchanged_records(vault: &Vault) {
    let (stage, pgdata) = (&vault.stage, vault.stage.pgdata());
    let own = stage.objects().join("vault/cluster");
    let elsewhere = stage.cluster.create_dir("elsewhere").unwrap();
    let url = format!("file://{}", elsewhere.display());
    stage.ok(&[
        "--repo",
        &url,
        "--cluster",
        "vault",
        "init",
        "--pgdata",
        &pgdata,
    ]);
    let kept = fs::read(&own).unwrap();
    for (other, code, says) in [
        (
            stage.objects().join("main/cluster"),
            DAMAGED,
            "it is the record of cluster \"main\"",
        ),
        (
            elsewhere.join("vault/cluster"),
            REFUSED,
            "cluster \"vault\" is not sealed, and an identity or a seal id was given for it",
        ),
    ] {
        fs::write(&own, fs::read(other).unwrap()).unwrap();
        let backup = ["backup", "--pgdata", &pgdata, "--wal", "stream"];
        for (who, words) in [
            ("writer", &backup[..]),
            ("writer", &["info"]),
            ("one", &["verify"]),
        ] {
            let log = vault.fails(who, words, code);
            assert!(log.contains(says), "{words:?}: {log}");
        }
        fs::write(&own, &kept).unwrap();
    }
}

fn wrong_identities(vault: &Vault) {
    let log = vault.fails("missing", &["info"], 17);
    assert!(log.contains("identity file"), "{log}");
    let log = vault.fails("other", &["info"], REFUSED);
    assert!(
        log.contains("none of the 1 identities at hand opens"),
        "{log}"
    );
    let log = vault.fails("", &["info"], REFUSED);
    assert!(log.contains("no identity was given"), "{log}");
    let empty = vault.identity("empty");
    fs::write(&empty, "").unwrap();
    fs::set_permissions(&empty, fs::Permissions::from_mode(0o600)).unwrap();
    vault.stage.cluster.own(empty.as_ref()).unwrap();
    let log = vault.fails("empty", &["info"], REFUSED);
    let says = format!("identity file \"{empty}\" holds no age identity");
    assert!(log.contains(&says), "{log}");
    let mut command = vault.stage.command(&["--cluster", "vault", "info"]);
    let output = command.env("PGSTRATA_IDENTITY", "").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(USAGE), "{log}");
    assert!(
        log.contains("the environment variable PGSTRATA_IDENTITY is empty"),
        "{log}"
    );
    let reader = fs::read_to_string(vault.identity("one")).unwrap();
    fs::write(vault.identity("open"), &reader).unwrap();
    let log = vault.fails("open", &["info"], REFUSED);
    assert!(log.contains("chmod 600"), "{log}");
    let secret = reader.lines().last().unwrap();
    let log = vault.fails("", &["info", "--identity", secret], USAGE);
    assert!(!log.contains(secret), "{log}");
    let command = format!("cat {}", vault.identity("one"));
    vault.ok("", &["info", "--key-command", &command]);
    let log = vault.fails(
        "",
        &["info", "--key-command", "echo no key >&2; exit 4"],
        REFUSED,
    );
    assert!(log.contains("no key"), "{log}");
    for (wrong, expected) in [
        ("exit 3", "ended with exit status: 3"),
        ("kill -9 $$", "ended with signal: 9"),
        ("true", "holds no age identity"),
        ("echo rubbish", "is not an age identity"),
        ("head -c 1000 /dev/zero", "is not an age identity"),
        ("yes '#' | head -c 70000", "more than 64 KiB"),
    ] {
        let log = vault.fails("", &["info", "--key-command", wrong], REFUSED);
        assert!(log.contains(expected), "{wrong}: {log}");
    }
}

fn wrong_recipients(vault: &Vault, other: &str) {
    let (stage, pgdata) = (&vault.stage, vault.stage.pgdata());
    let reader = fs::read_to_string(vault.identity("one")).unwrap();
    let secret = reader.lines().last().unwrap();
    let init = [
        "--cluster",
        "third",
        "init",
        "--pgdata",
        &pgdata,
        "--encrypt",
    ];
    let with = |more: &[&str]| stage.fails(&[&init[..], more].concat());
    assert_eq!(with(&[]).0, USAGE);
    assert_eq!(with(&["--recipient", "age1nonsense"]).0, USAGE);
    let (code, log) = with(&["--recipient", other]);
    assert!(code == USAGE && log.contains("--one-recipient"), "{log}");
    let (code, log) = with(&["--recipient", secret, "--recipient", other]);
    assert!(code == USAGE && !log.contains(secret), "{log}");
    stage.ok(&[&init[..], &["--recipient", other, "--one-recipient"]].concat());
}

/// Far away parts of objects are fetched, and digests before they are needed.
#[test]
fn a_sealed_cluster_on_s3_is_compared_by_digests_and_restored() {
    let vault = Vault::on(Cluster::builder(Major::V18), Store::S3);
    let (stage, streamed) = (&vault.stage, ["--wal", "stream", "--type"]);
    let sql = |query: &str| stage.cluster.sql("postgres", query).unwrap();
    sql("CREATE TABLE t AS SELECT n, repeat('x', 200) AS pad FROM generate_series(1, 20000) n");
    let full = vault.backup(&[&streamed[..], &["full"]].concat());
    sql("UPDATE t SET pad = 'y' WHERE n BETWEEN 500 AND 600");
    let dump = stage.cluster.dump().unwrap();
    let incremental = [&streamed[..], &["incr", "--change-source", "digest"]].concat();
    let incremental = vault.backup(&incremental);
    assert_eq!(text(&incremental, "/change_source/used"), "digest");
    let pages = |report: &Value| number(report, "/totals/pages_stored");
    assert!(
        pages(&incremental) * 5 < pages(&full),
        "{incremental:#} {full:#}"
    );
    vault.ok("one", &["verify", "--deep"]);
    vault.ok("", &["verify"]);
    let target = stage.target("restored");
    let to = ["restore", "--target-dir", target.to_str().unwrap()];
    let then = ["--target-type", "immediate", "--target-action", "promote"];
    vault.ok("two", &[&to[..], &then].concat());
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}
