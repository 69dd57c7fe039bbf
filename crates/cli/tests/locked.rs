//! Objects that nobody can delete for a while, in a bucket with Object Lock.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::process::Output;

use jiff::{SignedDuration, Timestamp};
use pgstrata_testbed::cluster::{Cluster, Major, require_same_dump};
use pgstrata_testbed::s3::{Bucket, ROLES, S3Server};
use serde_json::{Value, json};
use support::process::{self, signal};
use support::roles::policy;
use support::vault::{Vault, lasting};
use support::{Stage, credentials_file, schema, text};

const WARNINGS: i32 = 3;
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

/// What the store says of the lock of an object: of `what`, if it is locked.
fn lock_of(stage: &Stage, key: &str, what: &str) -> Option<String> {
    let answer = stage
        .s3()
        .request(None, "GET", &format!("/{key}?retention="), "");
    let body = answer.unwrap().body;
    let said = body.split(&format!("<{what}>")).nth(1)?;
    Some(said.split('<').next().unwrap().to_owned())
}

/// Until when an object is locked; nothing when it is not.
fn locked(stage: &Stage, key: &str) -> Option<Timestamp> {
    let date = lock_of(stage, key, "RetainUntilDate")?;
    Some(date.parse().unwrap())
}

/// For how many whole days it is still locked, whatever the seconds since.
fn locked_for(stage: &Stage, key: &str) -> i64 {
    let until = locked(stage, key);
    assert!(until.is_some(), "{key} is not locked");
    let left = until.unwrap().duration_since(Timestamp::now()) + SignedDuration::from_hours(1);
    left.as_hours() / 24
}

/// What all layers of the sealed cluster need beside their own objects.
fn shared(stage: &Stage) -> Vec<String> {
    let mut keys = lasting(stage);
    keys.retain(|key| key.contains("/key/") || key == "backups/vault/cluster");
    assert!(keys.len() > 4, "{keys:?}");
    keys
}

/// The objects of a layer, and the WAL that makes it consistent, as `info` names that.
fn needed_by(vault: &Vault, label: &str) -> Vec<String> {
    let info = vault.ok("writer", &["--output", "json", "info"]);
    let info = schema::document(&info);
    let layers = info["layers"].as_array().unwrap();
    let layer = layers.iter().find(|layer| layer["label"] == label).unwrap();
    let (first, last) = (text(layer, "/wal/first"), text(layer, "/wal/last"));
    let keys = lasting(&vault.stage).into_iter().filter(|key| {
        let file = key.rsplit('/').next().unwrap();
        // Neither the notes of the archiver beside it, nor what is mended of another.
        let is_segment = file.len() == 24 || key.contains("/wal-mended/");
        let of_wal =
            key.contains("/wal") && is_segment && first <= &file[..24] && &file[..24] <= last;
        key.contains(&format!("/layer/{label}/")) || of_wal
    });
    let keys: Vec<String> = keys.collect();
    for part in ["/claim", "/index-", "/pack-", "/manifest", "/wal/"] {
        assert!(
            keys.iter().any(|key| key.contains(part)),
            "{part}: {keys:?}"
        );
    }
    keys
}

fn in_hours(hours: i64) -> String {
    let time = Timestamp::now() + SignedDuration::from_hours(hours);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The owner of the bucket leaves every lock a day; answers what he did so.
fn shorten(stage: &Stage) -> Vec<String> {
    let (keys, until) = (lasting(stage), in_hours(24));
    for key in &keys {
        let answer = stage.s3().lock(None, key, &until).unwrap();
        assert_eq!(answer.status, 200, "{key}: {}", answer.body);
        assert!(locked_for(stage, key) <= 1, "{key}");
    }
    keys
}

/// Segments that no layer needs.
fn between(stage: &Stage) {
    let sql = |sql| stage.cluster.sql("postgres", sql).unwrap();
    sql("CREATE TABLE IF NOT EXISTS later (n int)");
    for _ in 0..3 {
        sql("INSERT INTO later VALUES (1)");
        stage.archive_all();
    }
}

/// Somebody overwrites the first segment that a layer needs, and it is stored once more; answers the key of the damaged one.
fn mend(vault: &Vault, label: &str) -> String {
    let stage = &vault.stage;
    let mut wal = needed_by(vault, label);
    wal.retain(|key| key.contains("/wal/"));
    let key = wal.remove(0);
    let name = key.rsplit('/').next().unwrap();
    let file = stage.target(name).display().to_string();
    let get = ["archive-get", "--fetch-ahead", "0", name, &file];
    vault.ends_as(("reader", "one"), &get, 0);
    let put = stage.s3().request(None, "PUT", &format!("/{key}"), "evil");
    assert_eq!(put.unwrap().status, 200);
    let push = ["archive-push", "--push-ahead", "0", &file];
    vault.ends_as(("writer", "writer"), &push, 0);
    key
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
    // Who may only read sees the same.
    let seen = stage.ends_as("reader", &[&expire[..], &["--dry-run"]].concat(), 0);
    assert!(seen.0.contains("it is locked until "), "{seen:?}");
    let (costs, _) = stage.ends_as("reader", &["info", "--costs"], 0);
    assert!(
        costs.contains("locks") && !costs.contains("pins"),
        "{costs}"
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

/// Each object that a new layer needs is looked at: nothing counts as locked because another object is.
#[test]
fn a_new_layer_locks_again_all_that_it_needs_where_a_lock_was_shortened() {
    let vault = Vault::lifted();
    let stage = &vault.stage;
    let label = |report: &Value| text(report, "/label").to_owned();
    let full = label(&vault.backup(&["--type", "full"]));
    between(stage);
    let child = label(&vault.backup(&["--type", "incr"]));
    let damaged = mend(&vault, &full);
    between(stage);
    for key in lasting(stage).iter().filter(|key| **key != damaged) {
        let mode = lock_of(stage, key, "Mode");
        assert_eq!(mode.as_deref(), Some("GOVERNANCE"), "{key}");
        for role in ROLES {
            let answer = stage.s3().lock(Some(role), key, &in_hours(24)).unwrap();
            assert_eq!(answer.status, 403, "{role} {key}: {}", answer.body);
        }
    }
    let shortened = shorten(stage);
    let pgdata = stage.pgdata();
    let increment = [
        "--output", "json", "backup", "--pgdata", &pgdata, "--type", "incr",
    ];
    let (report, _) = vault.ends_as(("writer", "writer"), &increment, WARNINGS);
    assert!(report.contains("were overwritten since"), "{report}");
    let newest = label(&schema::document(&report));
    let ends = locked(stage, &format!("backups/vault/layer/{newest}/manifest")).unwrap();
    assert_eq!(
        locked_for(stage, &format!("backups/vault/layer/{newest}/manifest")),
        DAYS
    );
    let of_layers = [&full, &child, &newest].map(|label| needed_by(&vault, label));
    let needed = [&shared(stage)[..], &of_layers.concat()].concat();
    assert!(
        needed.iter().any(|key| key.contains("/wal-mended/")),
        "{needed:?}"
    );
    for key in &needed {
        assert!(locked(stage, key).unwrap() >= ends, "{key}");
    }
    // What lies between layers is not kept for their sake.
    let other: Vec<&String> = shortened
        .iter()
        .filter(|key| !needed.contains(key))
        .collect();
    assert!(other.len() >= 4, "{other:?}");
    for key in other {
        assert!(
            key.contains("/wal/") && locked_for(stage, key) <= 1,
            "{key}"
        );
    }
    a_lock_that_cannot_be_extended_fails_the_backup(&vault, &full);
}

fn a_lock_that_cannot_be_extended_fails_the_backup(vault: &Vault, of: &str) {
    let stage = &vault.stage;
    shorten(stage);
    let s3 = stage.s3();
    let denied = json!({
        "Effect": "Deny",
        "Principal": { "AWS": ["writer"] },
        "Action": ["s3:PutObjectRetention"],
        "Resource": format!("arn:aws:s3:::{}/backups/vault/layer/{of}/*", s3.bucket()),
    });
    s3.allow(&policy(s3, &[denied])).unwrap();
    let layers = |stage: &Stage| {
        let keys = stage.keys().into_iter();
        let manifests = keys.filter(|key| key.ends_with("/manifest"));
        manifests.collect::<Vec<String>>()
    };
    let before = layers(stage);
    let backup = ["backup", "--pgdata", &stage.pgdata(), "--type", "incr"];
    let log = vault.fails("writer", &backup, UNREACHABLE);
    assert!(log.contains("could not lock what layer"), "{log}");
    assert!(log.contains("s3:PutObjectRetention"), "{log}");
    assert_eq!(layers(stage), before);
    s3.allow(&policy(s3, &[])).unwrap();
    vault.ends_as(("writer", "writer"), &backup, WARNINGS);
}

#[test]
fn a_merged_layer_locks_what_it_stands_on_and_its_inputs_stay_while_they_are_locked() {
    let vault = Vault::lifted();
    let stage = &vault.stage;
    let label = |report: &Value| text(report, "/label").to_owned();
    let full = label(&vault.backup(&["--type", "full"]));
    let inputs = [(); 2].map(|()| {
        stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
        label(&vault.backup(&["--type", "incr"]))
    });
    let (lsn, dump) = stage.moment();
    shorten(stage);
    let before = stage.keys();
    let merge = ["merge", &inputs[1], "--from", &inputs[0], "--remove-inputs"];
    let as_json = [&["--output", "json"], &merge[..]].concat();
    let (merged, _) = vault.ends_as(("keeper", "one"), &as_json, WARNINGS);
    let merged = schema::document(&merged);
    let notes = merged["notes"].to_string();
    for input in &inputs {
        let stays = format!("{input} stays: it is locked until ");
        assert!(notes.contains(&stays), "{notes}");
    }
    let after = stage.keys();
    let gone: Vec<&String> = before.iter().filter(|key| !after.contains(key)).collect();
    assert!(gone.iter().all(|key| !key.contains("/layer/")), "{gone:?}");

    let merged = label(&merged);
    let ends = locked(stage, &format!("backups/vault/layer/{merged}/manifest")).unwrap();
    let of_layers = [&full, &merged].map(|label| needed_by(&vault, label));
    for key in [&shared(stage)[..], &of_layers.concat()].concat() {
        assert!(locked(stage, &key).unwrap() >= ends, "{key}");
    }
    for key in inputs.iter().flat_map(|input| objects(stage, input)) {
        assert!(locked_for(stage, &key) <= 1, "nothing stands on it: {key}");
    }
    let target = stage.target("restored");
    let into = target.display().to_string();
    let until = ["--target-type", "lsn", "--target", &lsn];
    let restore = ["restore", &merged, "--target-dir", &into];
    let words = [&restore[..], &until, &["--target-action", "promote"]].concat();
    vault.ends_as(("reader", "one"), &words, 0);
    let restored = stage.start_restored(&target);
    require_same_dump(&dump, &restored.dump().unwrap()).unwrap();
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
    for ahead in [4, -4].map(SignedDuration::from_mins) {
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
    let options = server.options();
    let options = options.map(|(name, value)| format!("{name} = '{value}'\n"));
    let file = credentials_file(&stage.cluster, "second", &options.concat());
    let file = file.display().to_string();
    let mut copy = vec!["copy", "--to", &to, "--to-credentials", &file];
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

#[test]
fn check_names_the_layers_that_are_not_locked() {
    let stage = stage(Bucket::Locked);
    let pgdata = stage.pgdata();
    let init = ["init", "--pgdata", &pgdata, "--retain", "8d"];
    stage.ends_as("writer", &init, 0);
    stage.begin_archiving();
    let labels = [(); 2].map(|()| {
        let report = stage.backup(&["--type", "full"]);
        text(&report, "/label").to_owned()
    });
    let check = ["check", "--pgdata", &pgdata];
    let (checked, _) = stage.ends_as("writer", &check, 0);
    assert!(
        checked.contains("every layer is locked for 8 days"),
        "{checked}"
    );
    // The same bytes once more, as a rescue brings them back, or by somebody who does not want them locked.
    let place = format!("/backups/main/layer/{}/manifest", labels[0]);
    let request = |method, body: &str| {
        stage
            .s3()
            .request(Some("writer"), method, &place, body)
            .unwrap()
    };
    let manifest = request("GET", "").body;
    assert_eq!(request("PUT", &manifest).status, 200);
    assert_eq!(locked(&stage, &place[1..]), None);
    let (checked, _) = stage.ends_as("writer", &check, 3);
    assert!(
        checked.contains(&format!("1 are not: \"main/layer/{}/manifest\"", labels[0])),
        "{checked}"
    );
    assert!(!checked.contains("every layer is locked"), "{checked}");
}

/// Copied by other means, a cluster keeps the record that says that it is locked.
#[test]
fn a_locked_cluster_in_a_bucket_without_locks_is_named() {
    let stage = stage(Bucket::Locked);
    let pgdata = stage.pgdata();
    let init = ["init", "--pgdata", &pgdata, "--retain", "8d"];
    stage.ends_as("writer", &init, 0);
    let plain = S3Server::start().unwrap();
    let keys = stage.keys();
    let record = keys.iter().find(|key| key.ends_with("/cluster")).unwrap();
    let body = stage
        .s3()
        .request(None, "GET", &format!("/{record}"), "")
        .unwrap()
        .body;
    plain.request(None, "PUT", "/main/cluster", &body).unwrap();
    let options = plain
        .options()
        .map(|(name, value)| format!("{name} = '{value}'\n"));
    let file = credentials_file(&stage.cluster, "plain", &options.concat());
    let (url, file) = (
        format!("s3://{}", plain.bucket()),
        file.display().to_string(),
    );
    let at = ["--s3-endpoint", plain.endpoint()];
    let own = ["--repo", &url, "--cluster", "main", "--credentials", &file];
    let own = [&own[..], &at].concat();
    for (words, code) in [
        (&["init", "--pgdata", &pgdata][..], UNSUPPORTED),
        (
            &["backup", "--pgdata", &pgdata, "--wal", "stream"],
            UNREACHABLE,
        ),
    ] {
        let output = stage.run(&[&own[..], words].concat());
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{log}");
        assert!(log.contains("has no Object Lock"), "{log}");
        assert!(log.contains("turn on versions and Object Lock"), "{log}");
        assert!(!log.contains('<'), "{log}");
    }
}
