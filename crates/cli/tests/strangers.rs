//! What somebody puts into the repository who may write there: names that no path has, and text that commands a terminal.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::fs;
use std::process::Output;

use jiff::Timestamp;
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::plain::is_plain;
use pgstrata_layer::restoring::{self, RestoreRecord};
use pgstrata_pgdata::Lsn;
use pgstrata_testbed::cluster::{Builder, Cluster, Major, require_same_dump};
use pgstrata_testbed::s3::Bucket;
use support::roles::quiet_moment;
use support::{Stage, Store, files, schema, to_lsn};

const PASSED_OVER: &str = "passed over an object with the name";

fn builder() -> Builder {
    let builder = Cluster::builder(Major::V15).conf("archive_mode", "on");
    builder.conf("archive_command", "false")
}

/// What a command shows is plain text, whatever stands in the repository.
fn require_plain(output: &Output, what: &str) -> (String, String) {
    let told = String::from_utf8(output.stdout.clone()).unwrap();
    let log = String::from_utf8(output.stderr.clone()).unwrap();
    for text in [&told, &log] {
        let bad = text.chars().find(|c| !is_plain(*c) && *c != '\n');
        assert_eq!(bad, None, "{what}: {text:?}");
    }
    (told, log)
}

#[test]
fn an_object_whose_name_is_none_keeps_nobody_from_the_repository() {
    let stage = Stage::with_roles(builder(), Bucket::Versioned);
    let pgdata = stage.pgdata();
    stage.ends_as("writer", &["init", "--pgdata", &pgdata], 0);
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    stage.backup(&["--type", "full"]);
    let (lsn, dump) = stage.moment();
    let moment = quiet_moment();

    let keys = stage.keys();
    let layer = keys.iter().find(|key| key.contains("/layer/")).unwrap();
    let (cluster, _) = layer.split_once("/layer/").unwrap();
    let own = layer.rsplit_once('/').unwrap().0;
    let places = [
        "layer/",
        "wal/",
        "restore/",
        "mark/",
        "removal/",
        "verified/",
        "",
    ];
    let places = places.map(|place| format!("{cluster}/{place}"));
    for place in places.iter().chain([&format!("{own}/")]) {
        for name in ["a%0Ab", "a%0Db/claim", "a%C2%9B2Jb", "a%E2%80%AEb/manifest"] {
            let place = format!("/{place}{name}");
            let put = stage.s3().request(Some("writer"), "PUT", &place, "evil");
            let put = put.unwrap();
            assert_eq!(put.status, 200, "{place}: {}", put.body);
        }
    }

    let target = stage.target("restored");
    let into = target.display().to_string();
    let restore = [&["restore", "--target-dir", &into][..], &to_lsn(&lsn)].concat();
    let as_of = ["info", "--repository-as-of", &moment];
    let commands: [(&str, &[&str]); 8] = [
        ("reader", &["info"]),
        ("reader", &as_of),
        ("reader", &["verify", "--deep"]),
        ("reader", &restore),
        ("writer", &["backup", "-D", &pgdata, "--type", "incr"]),
        ("keeper", &["expire", "--keep-full", "1"]),
        ("keeper", &["rescue", "--since", &moment, "--dry-run"]),
        ("keeper", &["merge", "latest", "--dry-run"]),
    ];
    for (role, command) in commands {
        let output = stage.run_as(role, command);
        let (told, log) = require_plain(&output, &command.join(" "));
        assert_eq!(output.status.code(), Some(0), "{command:?}: {log}{told}");
        assert!(!told.contains("2Jb") && !told.contains("evil"), "{told}");
        // Once, however many there are.
        assert_eq!(log.matches(PASSED_OVER).count(), 1, "{command:?}: {log}");
    }
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
}

#[test]
fn text_of_a_record_commands_no_terminal_and_forges_no_line() {
    const EVIL: &str = "db1\nstatus: ok\r\u{1b}[2J\u{7}\u{9b}2J\u{202e}\u{2028}";
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let full = ["backup", "-D", &pgdata, "--type", "full", "--wal", "stream"];
    stage.ok(&full);
    let cluster = stage.objects().join("main");
    let now = Timestamp::now();
    let restore = RestoreRecord {
        layers: vec![ParentRef {
            label: "20261101-000000F".to_owned(),
            manifest_digest: "0f".repeat(32),
        }],
        start_lsn: Lsn::new(1),
        timeline: 1,
        host: EVIL.to_owned(),
        pid: 1,
        directory: format!("/{EVIL}"),
        started_at: now,
        written_by: EVIL.to_owned(),
    };
    let claim = ClaimRecord {
        label: "20261101-000000F".to_owned(),
        layer_id: "0f".repeat(16),
        host: EVIL.to_owned(),
        pid: 1,
        started_at: now,
        written_by: EVIL.to_owned(),
    };
    for (place, body) in [
        (
            "restore/f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0/needs",
            restoring::encode(&restore),
        ),
        ("layer/20261101-000000F/claim", claim::encode(&claim)),
        (&format!("mark/{}", "\u{9b}2J\u{202e}"), b"evil".to_vec()),
    ] {
        let path = cluster.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, body).unwrap();
    }
    let mut shown = 0;
    for command in [
        &["info"][..],
        &["--output", "json", "info"],
        &["--log-level", "debug", "verify"],
        &["expire", "--keep-full", "1", "--dry-run"],
        &["expire", "--keep-full", "1"],
        &full,
    ] {
        let output = stage.run(command);
        let (told, log) = require_plain(&output, &command.join(" "));
        assert_ne!(output.status.code(), Some(15), "{command:?}: {log}");
        let forged = told.lines().chain(log.lines());
        assert_eq!(
            forged.filter(|line| line.starts_with("status: ok")).count(),
            0
        );
        shown += told.matches("db1\\nstatus").count() + log.matches("db1\\nstatus").count();
        if command.contains(&"json") {
            let info = schema::document(&told);
            assert_eq!(info["restores"][0]["host"], EVIL);
        }
    }
    assert!(shown >= 4, "{shown}");
}

/// Its date is that of a label which no backup can come after.
#[test]
fn a_claim_of_a_day_to_come_is_gone_when_somebody_deletes_it() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let pgdata = stage.pgdata();
    let full = ["backup", "-D", &pgdata, "--type", "full", "--wal", "stream"];
    stage.ok(&full);
    let far = stage.objects().join("main/layer/99991231-235959F");
    fs::create_dir(&far).unwrap();
    fs::write(far.join("claim"), "x").unwrap();
    files::age(&stage.objects(), "2 days ago");
    let output = stage.run(&["expire", "--keep-full", "1"]);
    let (told, log) = require_plain(&output, "expire");
    assert!(
        output.status.success() || output.status.code() == Some(3),
        "{log}"
    );
    assert!(told.contains("99991231-235959F stays"), "{told}");
    assert!(!far.join("manifest").exists());
    let (code, log) = stage.fails(&full);
    assert!(code == 13 && log.contains("delete it"), "{log}");
    fs::remove_dir_all(&far).unwrap();
    stage.ok(&full);
}
