//! Objects that nobody can delete for a while, in a bucket with Object Lock.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::process::Output;

use jiff::{SignedDuration, Timestamp};
use pgstrata_testbed::cluster::{Cluster, Major};
use pgstrata_testbed::s3::{Bucket, S3Server};
use support::process::{self, signal};
use support::{Stage, text};

const REFUSED: i32 = 13;
const UNREACHABLE: i32 = 15;
const UNSUPPORTED: i32 = 21;

/// Days for which layers are locked.
const DAYS: i64 = 8;

fn stage(bucket: Bucket) -> Stage {
    let builder = Cluster::builder(Major::V15)
        .conf("archive_mode", "on")
        .conf("archive_command", "false");
    Stage::with_roles(builder, bucket)
}

/// Until when an object is locked; nothing when it is not.
fn locked(stage: &Stage, key: &str) -> Option<Timestamp> {
    let answer = stage
        .s3()
        .request(None, "GET", &format!("/{key}?retention="), "");
    let body = answer.unwrap().body;
    let date = body.split("<RetainUntilDate>").nth(1)?;
    Some(date.split('<').next().unwrap().parse().unwrap())
}

/// For how many whole days it is still locked, whatever the seconds since.
fn locked_for(stage: &Stage, key: &str) -> i64 {
    let until = locked(stage, key);
    assert!(until.is_some(), "{key} is not locked");
    let left = until.unwrap().duration_since(Timestamp::now()) + SignedDuration::from_hours(1);
    left.as_hours() / 24
}

/// Everything of a layer.
fn objects(stage: &Stage, label: &str) -> Vec<String> {
    let mut keys = stage.keys();
    keys.retain(|key| key.contains(&format!("/layer/{label}/")) && !key.contains("/beat-"));
    assert!(keys.len() > 4, "{keys:?}");
    keys
}

#[test]
fn what_a_layer_stands_on_is_locked_as_long_as_the_layer() {
    let stage = stage(Bucket::Locked);
    let pgdata = stage.pgdata();
    let init = ["init", "--pgdata", &pgdata, "--retain", "8d"];
    let (told, _) = stage.ends_as("writer", &init, 0);
    assert!(told.contains("locked: every layer for 8 days"), "{told}");
    stage.begin_archiving();
    stage.cluster.pgbench(&["-i", "-q", "-s", "1"]).unwrap();
    let full = stage.backup(&["--type", "full"]);
    let full = text(&full, "/label").to_owned();
    let manifest = format!("backups/main/layer/{full}/manifest");
    for key in objects(&stage, &full) {
        let days = if key == manifest { DAYS } else { DAYS + 2 };
        assert_eq!(locked_for(&stage, &key), days, "{key}");
    }
    let wal: Vec<String> = stage
        .keys()
        .into_iter()
        .filter(|key| key.contains("/wal/"))
        .collect();
    assert!(!wal.is_empty());
    for key in wal.iter().chain([&"backups/main/cluster".to_owned()]) {
        assert_eq!(locked_for(&stage, key), DAYS + 2, "{key}");
    }
    for passing in stage.keys().iter().filter(|key| key.contains("/probe-")) {
        assert_eq!(locked(&stage, passing), None, "{passing}");
    }
    // An increment extends what it stands on, with room for the next ones.
    let child = stage.backup(&["--type", "incr"]);
    let child = text(&child, "/label").to_owned();
    let ends = locked(&stage, &format!("backups/main/layer/{child}/manifest")).unwrap();
    assert_eq!(locked_for(&stage, &manifest), DAYS + 2);
    for key in objects(&stage, &full) {
        assert!(locked(&stage, &key).unwrap() >= ends, "{key}");
    }
    let before = locked(&stage, &manifest);
    stage.backup(&["--type", "incr"]);
    assert_eq!(
        locked(&stage, &manifest),
        before,
        "it was locked long enough"
    );
    assert_nobody_takes_it(&stage, &full);
}

fn assert_nobody_takes_it(stage: &Stage, full: &str) {
    stage.backup(&["--type", "full"]);
    let before = stage.keys();
    let expire = ["expire", "--keep-full", "1"];
    let (told, _) = stage.ends_as("keeper", &[&expire[..], &["--dry-run"]].concat(), 0);
    assert!(
        told.contains(&format!("{full}: it is locked until ")),
        "{told}"
    );
    let (told, _) = stage.ends_as("keeper", &expire, 0);
    assert!(told.contains("it is locked until "), "{told}");
    let after = stage.keys();
    let lasts = |key: &&String| key.contains("/layer/") || key.contains("/wal/");
    let gone: Vec<&String> = before
        .iter()
        .filter(lasts)
        .filter(|key| !after.contains(key))
        .collect();
    assert!(gone.iter().all(|key| key.contains("/beat-")), "{gone:?}");
    stage.ends_as("writer", &["verify", "--deep"], 0);
    let (checked, _) = stage.ends_as("writer", &["check", "--pgdata", &stage.pgdata()], 0);
    assert!(
        checked.contains("every layer is locked for 8 days"),
        "{checked}"
    );
    // What an interrupted backup has left is locked as well.
    let child = stage.begin_backup(&["--type", "full"]);
    signal(&child, "-KILL");
    process::log_of(child);
    stage.age_all();
    let (told, _) = stage.ends_as("keeper", &expire, 0);
    assert!(!told.contains("an interrupted command left it"), "{told}");
    // The owner of the bucket cannot delete the version that is locked.
    let listed = stage
        .s3()
        .request(None, "GET", "?versions=&prefix=backups/main/cluster", "");
    let listed = listed.unwrap().body;
    let id = listed
        .split("<VersionId>")
        .nth(1)
        .unwrap()
        .split('<')
        .next()
        .unwrap();
    let place = format!("/backups/main/cluster?versionId={id}");
    let deleted = stage.s3().request(None, "DELETE", &place, "").unwrap();
    assert_eq!(deleted.status, 403, "{}", deleted.body);
}

#[test]
fn a_bucket_that_cannot_lock_is_refused_and_check_says_what_is_not_protected() {
    for (bucket, said) in [
        (Bucket::Plain, "because the bucket keeps no versions"),
        (Bucket::Versioned, "the bucket keeps versions"),
    ] {
        let stage = stage(bucket);
        let pgdata = stage.pgdata();
        let init = ["init", "--pgdata", &pgdata];
        let locking = [&init[..], &["--retain", "30d"]].concat();
        let (_, log) = stage.ends_as("writer", &locking, UNSUPPORTED);
        assert!(log.contains("has no Object Lock"), "{log}");
        assert!(stage.keys().is_empty(), "nothing was begun");
        stage.ends_as("writer", &init, 0);
        let (_, log) = stage.ends_as("writer", &locking, UNSUPPORTED);
        assert!(log.contains("has no Object Lock"), "{log}");
        let check = stage.run_as("writer", &["check", "--pgdata", &pgdata, "--wal", "stream"]);
        let checked = String::from_utf8(check.stdout).unwrap();
        assert!(checked.contains(said), "{checked}");
    }
}

#[test]
fn a_cluster_keeps_the_retention_that_it_was_made_with() {
    let stage = stage(Bucket::Locked);
    let pgdata = stage.pgdata();
    let init = |days: &'static str| {
        ["init", "--pgdata", pgdata.as_str(), "--retain", days].map(str::to_owned)
    };
    let run = |days, code| {
        let words = init(days);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        stage.ends_as("writer", &words, code).1
    };
    run("8d", 0);
    run("8d", 0);
    let log = run("9d", REFUSED);
    assert!(log.contains("has another retention"), "{log}");
}

/// A store believes no request from another day, so that no clock of a host makes a lock too short, or one that nobody can undo
/// too long.
#[test]
fn a_host_with_another_clock_locks_nothing_for_another_time() {
    let stage = stage(Bucket::Locked);
    let pgdata = stage.pgdata();
    let library = process::provoker(&stage);
    let ends = |ahead: SignedDuration, words: &[&str]| {
        let mut command = stage.command(words);
        command.env("LD_PRELOAD", &library);
        command.env("CLOCK_AHEAD", ahead.as_secs().to_string());
        let output = command.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), log)
    };
    let init = ["init", "--pgdata", &pgdata, "--retain", "8d"];
    let backup = ["backup", "--pgdata", &pgdata, "--wal", "stream"];
    let day = SignedDuration::from_hours(24);
    let refuses_both = |words: &[&str]| {
        for ahead in [day, -day] {
            let before = stage.keys();
            let (code, log) = ends(ahead, words);
            assert_eq!(code, UNREACHABLE, "{log}");
            assert!(log.contains("set this machine's clock"), "{log}");
            assert_eq!(stage.keys(), before);
        }
    };
    refuses_both(&init);
    stage.ends_as("writer", &init, 0);
    stage.begin_archiving();
    refuses_both(&backup);
    // Some minutes are no other time.
    for ahead in [10, -10].map(SignedDuration::from_mins) {
        let (code, log) = ends(ahead, &backup);
        assert_eq!(code, 0, "{log}");
    }
    let manifests = stage.keys();
    let manifests = manifests.iter().filter(|key| key.ends_with("/manifest"));
    let days: Vec<i64> = manifests.map(|key| locked_for(&stage, key)).collect();
    assert_eq!(days, [DAYS + 2, DAYS], "that of the parent was extended");
    stage.ends_as("writer", &["verify", "--deep"], 0);
}

/// A copy to below `second/`, as the owner of the bucket.
fn copy_into(stage: &Stage, server: &S3Server, more: &[&str]) -> Output {
    let to = format!("s3://{}/second", server.bucket());
    let options = [
        ("endpoint", server.endpoint()),
        ("region", "us-east-1"),
        ("virtual_hosted_style_request", "false"),
        ("allow_http", "true"),
        ("access_key_id", server.access_key()),
        ("secret_access_key", server.secret()),
    ];
    let options = options.map(|(name, value)| format!("{name}={value}"));
    let mut copy = vec!["copy", "--to", &to];
    copy.extend(options.iter().flat_map(|option| ["--to-storage", option]));
    copy.extend(more);
    stage.run(&copy)
}

#[test]
fn what_is_copied_into_a_bucket_with_locks_is_locked_too() {
    let stage = stage(Bucket::Locked);
    let pgdata = stage.pgdata();
    stage.ends_as(
        "writer",
        &["init", "--pgdata", &pgdata, "--retain", "8d"],
        0,
    );
    stage.begin_archiving();
    let full = stage.backup(&["--type", "full"]);
    let full = text(&full, "/label").to_owned();
    let child = stage.backup(&["--type", "incr"]);
    let child = text(&child, "/label").to_owned();
    let directory = stage.target("near").display().to_string();
    let near = format!("file://{directory}");
    stage.ok(&["copy", "--to", &near]);
    // No role has rights outside of its prefix.
    let copied = copy_into(&stage, stage.s3(), &[]);
    let log = String::from_utf8_lossy(&copied.stderr);
    assert_eq!(copied.status.code(), Some(0), "{log}");
    let plain = S3Server::start().unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let refused = copy_into(&stage, &plain, more);
        let log = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(UNSUPPORTED), "{log}");
        assert!(log.contains("has no Object Lock"), "{log}");
    }
    let begun = std::fs::read_dir(plain.bucket_dir()).unwrap();
    assert_eq!(begun.count(), 0, "nothing was begun");
    let ends = locked(&stage, &format!("second/main/layer/{child}/manifest")).unwrap();
    let copied = objects(&stage, &full);
    let copied = copied.iter().filter(|key| key.starts_with("second/"));
    let copied: Vec<&String> = copied.collect();
    assert!(copied.len() > 4, "{copied:?}");
    for key in copied {
        assert!(locked(&stage, key).unwrap() >= ends, "{key}");
    }
    let mut verify = stage.command(&["--repo", &near, "verify"]);
    for of_s3 in ["ENDPOINT", "REGION", "PATH_STYLE"] {
        verify.env_remove(format!("PGSTRATA_S3_{of_s3}"));
    }
    let output = verify.env_remove("PGSTRATA_CREDENTIALS").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
}
