//! Somebody with the credentials of a writer overwrites and deletes everything: the past can be read, and comes back.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::{Bucket, S3Server};
use serde_json::{Value, json};
use support::roles::{policy, policy_without, quiet_moment};
use support::{Stage, Store, schema, text, to_lsn};

const UNSUPPORTED: i32 = 21;
const WARNINGS: i32 = 3;
const DENIED: i32 = 15;

/// A server with a full backup that was expired, a full and an incremental one, and WAL; at the end a quiet moment.
struct Scene {
    stage: Stage,
    expired: String,
    lsn: String,
    dump: String,
    moment: String,
}

fn scene() -> Scene {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false");
    let stage = Stage::with_roles(builder, Bucket::Versioned);
    let pgdata = stage.pgdata();
    stage.ends_as("writer", &["init", "--pgdata", &pgdata], 0);
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "3"]).unwrap();
    let expired = stage.backup(&["--type", "full"]);
    stage.backup(&["--type", "full"]);
    stage.ends_as("keeper", &["expire", "--keep-full", "1"], 0);
    stage.cluster.pgbench(&["-t", "50"]).unwrap();
    stage.backup(&["--type", "incr"]);
    let (lsn, dump) = stage.moment();
    Scene {
        expired: text(&expired, "/label").to_owned(),
        moment: quiet_moment(),
        stage,
        lsn,
        dump,
    }
}

impl Scene {
    /// Overwrites every object, and deletes two of three, as somebody who has the writer's credentials.
    fn attack(&self) -> usize {
        let s3 = self.let_the_writer_delete();
        let keys = self.stage.keys();
        for (number, key) in keys.iter().enumerate() {
            let place = format!("/{key}");
            let written = s3.request(Some("writer"), "PUT", &place, "evil").unwrap();
            assert_eq!(written.status, 200, "{key}: {}", written.body);
            if number % 3 > 0 {
                self.delete(key);
            }
        }
        keys.len()
    }

    fn delete(&self, key: &str) {
        let place = format!("/{key}");
        let deleted = self
            .stage
            .s3()
            .request(Some("writer"), "DELETE", &place, "");
        let deleted = deleted.unwrap();
        assert_eq!(deleted.status, 204, "{key}: {}", deleted.body);
    }

    fn let_the_writer_delete(&self) -> &S3Server {
        let s3 = self.stage.s3();
        let deleting = json!({
            "Effect": "Allow",
            "Principal": { "AWS": ["writer"] },
            "Action": ["s3:DeleteObject"],
            "Resource": format!("arn:aws:s3:::{}/backups/*", s3.bucket()),
        });
        s3.allow(&policy(s3, &[deleting])).unwrap();
        s3
    }

    fn require_restorable(&self, name: &str, more: &[&str]) {
        let stage = &self.stage;
        let target = stage.target(name);
        let into = target.display().to_string();
        let until = to_lsn(&self.lsn);
        let arguments = [&["restore", "--target-dir", &into][..], &until, more].concat();
        stage.ends_as("reader", &arguments, 0);
        let restored = stage.start_restored(&target);
        require_same_dump(&self.dump, &restored.dump().unwrap()).unwrap();
    }

    /// Kills a rescue after a while; tells whether it had not ended by then.
    fn kill_rescue(&self, far: &Proxy, after: Duration) -> bool {
        let mut command = self.stage.command(&["rescue", "--since", &self.moment]);
        command.env("PGSTRATA_CREDENTIALS", self.stage.credentials_of("keeper"));
        command.env("PGSTRATA_S3_ENDPOINT", far.endpoint());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        thread::sleep(after);
        let runs = child.try_wait().unwrap().is_none();
        child.kill().unwrap();
        child.wait().unwrap();
        runs
    }

    fn rescue(&self, more: &[&str]) -> Value {
        let arguments = ["--output", "json", "rescue", "--since", &self.moment];
        let (printed, _) = self
            .stage
            .ends_as("keeper", &[&arguments, more].concat(), 0);
        schema::document(&printed)
    }
}

fn count(report: &Value, what: &str) -> usize {
    report[what].as_array().unwrap().len()
}

#[test]
fn what_an_attacker_overwrote_and_deleted_is_read_as_it_was_and_comes_back() {
    let scene = scene();
    let stage = &scene.stage;
    let attacked = scene.attack();
    assert!(attacked > 20, "{attacked}");
    assert_ne!(stage.run_as("reader", &["info"]).status.code(), Some(0));

    let as_of = ["--repository-as-of", &scene.moment];
    stage.ends_as("reader", &[&["info"][..], &as_of].concat(), 0);
    stage.ends_as("reader", &[&["verify", "--deep"][..], &as_of].concat(), 0);
    scene.require_restorable("then", &as_of);

    let planned = scene.rescue(&["--dry-run"]);
    let there = count(&planned, "hidden") + count(&planned, "replaced");
    assert!(there > 15 && there <= attacked, "{planned:#}");
    assert!(count(&planned, "replaced") > 3, "{planned:#}");
    assert_eq!(planned["done"], false);
    assert_ne!(stage.run_as("reader", &["info"]).status.code(), Some(0));
    // Those that are killed bring back a part, and the next one the rest.
    let far = Proxy::before(stage.s3().endpoint()).unwrap();
    far.delay(Duration::from_millis(100));
    let mut parts = BTreeSet::from([there]);
    for wait in (100..).step_by(40).map(Duration::from_millis) {
        let was_killed = scene.kill_rescue(&far, wait);
        let left = scene.rescue(&["--dry-run"]);
        parts.insert(count(&left, "hidden") + count(&left, "replaced"));
        if !was_killed || parts.len() > 3 {
            break;
        }
    }
    assert!(parts.len() > 2, "{parts:?} objects were left");
    let done = scene.rescue(&[]);
    assert_eq!(done["done"], true);
    for what in ["hidden", "replaced"] {
        let planned = planned[what].as_array().unwrap();
        let done = done[what].as_array().unwrap();
        assert!(done.iter().all(|key| planned.contains(key)), "{done:?}");
    }

    stage.ends_as("reader", &["verify", "--deep"], 0);
    scene.require_restorable("now", &[]);
    let (info, _) = stage.ends_as("reader", &["info"], 0);
    assert!(!info.contains(&scene.expired), "{info}");
    let again = scene.rescue(&[]);
    assert_eq!(
        count(&again, "hidden") + count(&again, "replaced"),
        0,
        "{again:#}"
    );
    // Life goes on: increments stand on what has come back.
    stage.backup(&["--type", "incr"]);
    stage.ends_as("keeper", &["expire", "--keep-full", "1"], 0);
}

#[test]
fn what_was_deleted_and_not_overwritten_comes_back_too_and_what_cannot_is_named() {
    let scene = scene();
    let stage = &scene.stage;
    scene.let_the_writer_delete();
    let keys = stage.keys();
    let last = |what: &str| keys.iter().rfind(|key| key.contains(what)).unwrap();
    let deleted = [last("/manifest"), last("/wal/")];
    // From before the bucket had versions, and without a tag.
    let file = stage.s3().bucket_dir().join(deleted[1]);
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&file, bytes).unwrap();
    deleted.iter().for_each(|key| scene.delete(key));

    let as_of = ["--repository-as-of", &scene.moment];
    stage.ends_as("reader", &[&["verify"][..], &as_of].concat(), 0);
    let planned = scene.rescue(&["--dry-run"]);
    assert_eq!(count(&planned, "hidden"), 2, "{planned:#}");
    let done = scene.rescue(&[]);
    assert_eq!(done["hidden"], planned["hidden"]);
    assert_eq!(count(&done, "broken"), 0, "{done:#}");
    stage.ends_as("reader", &["verify"], 0);
    scene.require_restorable("now", &[]);

    // What no version of that moment has.
    let pack = keys.iter().find(|key| key.contains("/pack-")).unwrap();
    fs::remove_file(stage.s3().bucket_dir().join(pack)).unwrap();
    let arguments = ["rescue", "--since", &scene.moment];
    let (said, _) = stage.ends_as("keeper", &arguments, WARNINGS);
    assert!(said.contains("broken"), "{said}");
    assert!(!said.contains("Everything"), "{said}");
}

/// As of a version that was moved to archive storage, or whose key is lost: here the policy keeps it.
#[test]
fn an_object_that_the_store_does_not_give_back_keeps_no_other_hidden() {
    let scene = scene();
    let stage = &scene.stage;
    let s3 = scene.let_the_writer_delete();
    let keys = stage.keys();
    let last = |what: &str| keys.iter().rfind(|key| key.contains(what)).unwrap();
    let mut manifests = keys.iter().filter(|key| key.ends_with("/manifest")).rev();
    let [lossy, whole] = [manifests.next().unwrap(), manifests.next().unwrap()];
    let layer = lossy.strip_suffix("manifest").unwrap();
    let pack = last(&format!("{layer}pack-"));
    let deleted = [pack, lossy, whole, last("/wal/")];
    deleted.iter().for_each(|key| scene.delete(key));
    let kept = json!({
        "Effect": "Deny",
        "Principal": { "AWS": ["keeper"] },
        "Action": ["s3:PutObject"],
        "Resource": format!("arn:aws:s3:::{}/{pack}", s3.bucket()),
    });
    s3.allow(&policy(s3, &[kept])).unwrap();

    let arguments = ["--output", "json", "rescue", "--since", &scene.moment];
    let (printed, _) = stage.ends_as("keeper", &arguments, DENIED);
    let report = schema::document(&printed);
    assert_eq!(count(&report, "hidden"), 4, "{report:#}");
    let names = |key: &str| key.strip_prefix("backups/").unwrap().to_owned();
    let failed = report["failed"].as_array().unwrap();
    let failed: Vec<&str> = failed.iter().map(|one| text(one, "/key")).collect();
    assert_eq!(failed, [names(lossy), names(pack)], "{report:#}");
    let now = stage.keys();
    let is_back = deleted.map(|key| now.contains(key));
    assert_eq!(is_back, [false, false, true, true]);
    let (said, _) = stage.ends_as("keeper", &arguments[2..], DENIED);
    for words in [
        "failed   main/layer/",
        "did not come back",
        "0 of 2 objects",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }

    s3.allow(&policy(s3, &[])).unwrap();
    let done = scene.rescue(&[]);
    assert_eq!((count(&done, "hidden"), count(&done, "failed")), (2, 0));
    assert_eq!(count(&done, "broken"), 0, "{done:#}");
    stage.ends_as("reader", &["verify"], 0);
}

/// A policy that was written before, or by somebody who did not read the manual to its end.
#[test]
fn without_the_rights_to_see_versions_the_daily_work_goes_on_and_a_rescue_says_what_it_lacks() {
    let scene = scene();
    let (stage, pgdata) = (&scene.stage, scene.stage.pgdata());
    let s3 = stage.s3();
    let into = stage.target("then").display().to_string();
    let restore = ["restore", "--target-dir", &into];
    let as_of = ["--repository-as-of", &scene.moment];
    let past = [
        ("keeper", vec!["rescue", "--since", &scene.moment]),
        ("reader", [&["info"][..], &as_of].concat()),
        ("reader", [&restore[..], &as_of].concat()),
    ];
    for (number, lacking) in [
        &["s3:ListBucketVersions"][..],
        &["s3:GetObjectVersion"],
        &[
            "s3:ListBucketVersions",
            "s3:GetObjectVersion",
            "s3:GetBucketVersioning",
        ],
    ]
    .iter()
    .enumerate()
    {
        s3.allow(&policy_without(s3, lacking)).unwrap();
        stage.backup(&["--type", "incr"]);
        let check = ["check", "-D", &pgdata, "--wal", "archive"];
        let checked = stage.run_as("writer", &check);
        let code = checked.status.code();
        assert!(
            code == Some(0) || code == Some(WARNINGS),
            "{lacking:?}: {checked:?}"
        );
        stage.ends_as("reader", &["info"], 0);
        stage.ends_as("reader", &["verify", "--deep"], 0);
        scene.require_restorable(&format!("without-{number}"), &[]);
        stage.ends_as(
            "keeper",
            &["expire", "--keep-full", "1", "--ignore-restores"],
            0,
        );
        // Nothing was replaced, so no version has to be read to tell one from another.
        let past = past
            .iter()
            .filter(|(who, _)| lacking[0] != "s3:GetObjectVersion" || *who == "reader");
        for (role, arguments) in past {
            let (said, log) = stage.ends_as(role, arguments, DENIED);
            assert!(
                log.contains("must allow s3:ListBucketVersions"),
                "{lacking:?}: {log}"
            );
            assert!(said.is_empty(), "{said}");
        }
    }
}

#[test]
fn a_repository_that_keeps_no_versions_has_no_past() {
    let builder = Cluster::builder(Major::V15);
    let bucket = Stage::with_roles(builder, Bucket::Plain);
    let pgdata = bucket.pgdata();
    bucket.ends_as("writer", &["init", "--pgdata", &pgdata], 0);
    let directory = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let moment = "2026-01-01T00:00:00Z";
    let into = directory.target("restored").display().to_string();
    for arguments in [
        &["rescue", "--since", moment][..],
        &["info", "--repository-as-of", moment],
        &["verify", "--repository-as-of", moment],
        &[
            "restore",
            "--target-dir",
            &into,
            "--repository-as-of",
            moment,
        ],
    ] {
        let (_, log) = bucket.ends_as("keeper", arguments, UNSUPPORTED);
        assert!(log.contains("keeps no versions of its objects"), "{log}");
        assert!(log.contains("hint"), "{log}");
        let (code, log) = directory.fails(arguments);
        assert_eq!(code, UNSUPPORTED, "{log}");
        assert!(
            log.contains("is a directory, which keeps no versions"),
            "{log}"
        );
    }
}
