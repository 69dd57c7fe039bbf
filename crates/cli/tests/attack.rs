//! What somebody does to a sealed cluster with locks who has taken over the host of the database: he creates, overwrites and
//! locks objects, and no more.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::cluster::{self, ClusterRecord, FORMAT, SEALED_FORMAT};
use pgstrata_testbed::cluster::require_same_dump;
use support::roles::{forged_removal, quiet_moment};
use support::vault::{Vault, lasting};
use support::{PATIENCE, Stage, schema, text, to_lsn};

const WARNINGS: i32 = 3;
const DAMAGED: i32 = 14;

fn backup(vault: &Vault, kind: &str) -> String {
    let report = vault.backup(&["--type", kind]);
    text(&report, "/label").to_owned()
}

/// Stores something with the writer's rights, whatever is there.
fn put(stage: &Stage, key: &str, body: &str) {
    let put = stage
        .s3()
        .request(Some("writer"), "PUT", &format!("/{key}"), body);
    let put = put.unwrap();
    assert_eq!(put.status, 200, "{key}: {}", put.body);
}

fn in_days(days: i64) -> String {
    let time = Timestamp::now() + SignedDuration::from_hours(24 * days);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The versions of an object, the oldest last.
fn versions(stage: &Stage, key: &str) -> Vec<String> {
    let asked = format!("?versions=&prefix={key}");
    let listed = stage.s3().request(None, "GET", &asked, "").unwrap();
    let listed = listed.body.split("<Version>").skip(1);
    let own = listed.filter(|version| version.contains(&format!("<Key>{key}</Key>")));
    let ids = own.map(|version| {
        let rest = version.split("<VersionId>").nth(1).unwrap();
        rest.split('<').next().unwrap().to_owned()
    });
    let mut ids: Vec<String> = ids.collect();
    // They begin with the time at which they were made.
    ids.sort_unstable_by(|one, other| other.cmp(one));
    ids
}

/// Until when each version of an object is locked, the oldest last.
fn locks(stage: &Stage, key: &str) -> Vec<Option<Timestamp>> {
    let ids = versions(stage, key).into_iter();
    let locks = ids.map(|id| {
        let asked = format!("/{key}?retention=&versionId={id}");
        let body = stage.s3().request(None, "GET", &asked, "").unwrap().body;
        let date = body.split("<RetainUntilDate>").nth(1)?;
        Some(date.split('<').next().unwrap().parse().unwrap())
    });
    locks.collect()
}

/// The owner of the bucket leaves the newest version of every object a day.
fn shorten(stage: &Stage) {
    for key in lasting(stage) {
        let answer = stage.s3().lock(None, &key, &in_days(1)).unwrap();
        assert_eq!(answer.status, 200, "{key}: {}", answer.body);
    }
}

/// `check` warns of nothing but that nobody names a seal id.
fn require_all_locked(vault: &Vault) {
    let pgdata = vault.stage.pgdata();
    let check = ["check", "--pgdata", &pgdata];
    let (checked, _) = vault.ends_as(("writer", "writer"), &check, WARNINGS);
    assert!(
        checked.contains("every layer is locked for 8 days"),
        "{checked}"
    );
    let warnings = checked.lines().filter(|line| line.starts_with("warning"));
    assert_eq!(warnings.count(), 1, "{checked}");
}

/// The record, as `change` makes it.
fn forged(stage: &Stage, change: impl Fn(&mut ClusterRecord)) -> String {
    let key = "/backups/vault/cluster";
    let stored = stage.s3().request(Some("writer"), "GET", key, "");
    let mut record = cluster::decode(stored.unwrap().body.as_bytes()).unwrap();
    change(&mut record);
    String::from_utf8(cluster::encode(&record)).unwrap()
}

#[test]
fn a_promise_to_lock_is_not_taken_back_by_who_overwrites_the_record() {
    let vault = Vault::lifted();
    let stage = &vault.stage;
    let pgdata = stage.pgdata();
    backup(&vault, "full");
    backup(&vault, "full");
    let moment = quiet_moment();
    let unlocked = forged(stage, |record| {
        record.retention = None;
        record.format = SEALED_FORMAT;
    });
    let clear = forged(stage, |record| {
        record.retention = None;
        record.sealing = None;
        record.format = FORMAT;
    });
    let shorter = forged(stage, |record| record.retention.as_mut().unwrap().days = 1);
    let into = stage.target("never").display().to_string();
    for evil in [unlocked, clear, shorter] {
        put(stage, "backups/vault/cluster", &evil);
        // A lock of his own shows nothing.
        let lock = stage
            .s3()
            .lock(None, "backups/vault/cluster", &in_days(9))
            .unwrap();
        assert_eq!(lock.status, 200, "{}", lock.body);
        let before = stage.keys();
        for (who, command) in [
            (("writer", "writer"), &["backup", "--pgdata", &pgdata][..]),
            (("keeper", "keeper"), &["expire", "--keep-full", "1"]),
            (
                ("reader", "one"),
                &[
                    "restore",
                    "--target-dir",
                    &into,
                    "--target-type",
                    "immediate",
                ],
            ),
        ] {
            let (_, log) = vault.ends_as(who, command, DAMAGED);
            assert!(log.contains("was replaced at 20"), "{log}");
            assert!(log.contains("pgstrata rescue --since 20"), "{log}");
        }
        let mut check = vault.command("writer", &["check", "--pgdata", &pgdata]);
        let checked = check.output().unwrap();
        assert_ne!(checked.status.code(), Some(0));
        let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.contains("was replaced at 20"), "{checked}");
        let after = stage.keys();
        let lost = before.iter().filter(|key| !after.contains(key));
        assert_eq!(lost.collect::<Vec<_>>(), Vec::<&String>::new());
    }
    let rescue = ["rescue", "--since", &moment];
    vault.ends_as(("keeper", "keeper"), &rescue, 0);
    // It has five versions now, and is what it was.
    assert_eq!(versions(stage, "backups/vault/cluster").len(), 5);
    let label = backup(&vault, "incr");
    let manifest = format!("backups/vault/layer/{label}/manifest");
    assert!(locks(stage, &manifest)[0].is_some());
    require_all_locked(&vault);
}

#[test]
fn no_object_vouches_for_the_lock_of_another_nor_a_version_for_another_version() {
    let vault = Vault::lifted();
    let stage = &vault.stage;
    let pgdata = stage.pgdata();
    let full = backup(&vault, "full");
    let own = format!("/layer/{full}/");
    shorten(stage);
    let manifest = format!("backups/vault/layer/{full}/manifest");
    let claim = format!("backups/vault/layer/{full}/claim");
    for key in [&manifest, &claim] {
        let lock = stage.s3().lock(None, key, &in_days(40)).unwrap();
        assert_eq!(lock.status, 200, "{}", lock.body);
    }
    let moment = quiet_moment();
    let keys = lasting(stage);
    let pack = keys
        .iter()
        .find(|key| key.contains(&own) && key.contains("/pack-"));
    let pack = pack.unwrap();
    // As long as the pack, so that names and sizes show nothing.
    let stored = std::fs::metadata(stage.s3().bucket_dir().join(pack)).unwrap();
    let evil = "e".repeat(usize::try_from(stored.len()).unwrap());
    put(stage, pack, &evil);
    let check = ["check", "--pgdata", &pgdata];
    let (checked, _) = vault.ends_as(("writer", "writer"), &check, WARNINGS);
    let short = &pack["backups/".len()..];
    assert!(checked.contains("1 are not what was stored"), "{checked}");
    assert!(checked.contains(short), "{checked}");

    // The increment locks all of the layer below, and of the pack the version that is the pack.
    let (said, _) = vault.ends_as(
        ("writer", "writer"),
        &["backup", "--pgdata", &pgdata, "--type", "incr"],
        WARNINGS,
    );
    assert!(said.contains("1 objects that layer"), "{said}");
    assert!(said.contains(short), "{said}");
    let needed = Timestamp::now() + SignedDuration::from_hours(24 * 8 - 1);
    let below = keys.iter().filter(|key| key.contains(&own));
    for key in below.clone() {
        let first = *locks(stage, key).last().unwrap();
        assert!(
            first.is_some_and(|until| until > needed),
            "{key}: {first:?}"
        );
    }

    let rescue = ["rescue", "--since", &moment];
    vault.ends_as(("keeper", "keeper"), &rescue, 0);
    let (checked, _) = vault.ends_as(("writer", "writer"), &check, WARNINGS);
    assert!(checked.contains("1 are not: "), "{checked}");
    assert!(checked.contains(short), "{checked}");
    backup(&vault, "incr");
    for key in below {
        let all = locks(stage, key);
        let locked = all
            .iter()
            .all(|lock| lock.is_some_and(|until| until > needed));
        assert!(locked, "{key}: {all:?}");
    }
    require_all_locked(&vault);
}

/// What he adds: keys and contents. He locks one of them for years.
fn additions(stage: &Stage) -> Vec<(String, String)> {
    let seal = stage.keys();
    let epoch = seal.iter().find(|key| key.ends_with("/000001/epoch"));
    let epoch = epoch.unwrap().replace("/000001/", "/000002/");
    let current = "SELECT pg_walfile_name(pg_current_wal_lsn() + 16777216)";
    let name = stage.cluster.sql("postgres", current).unwrap();
    let timeline = &name[..8];
    let mut added = vec![
        (epoch, "junk".to_owned()),
        (
            "backups/vault/layer/99991231-235959F/manifest".to_owned(),
            "junk".to_owned(),
        ),
        (
            format!("backups/vault/wal/{timeline}/{name}"),
            "junk".to_owned(),
        ),
    ];
    let label = "20261121-093305F";
    let removal = forged_removal(&[(label, b"junk")]).into_iter();
    added.extend(removal.map(|(key, body)| (format!("backups/vault/{key}"), body)));
    added
}

/// Overwrites everything that lasts, and adds something; answers the keys of both.
fn attack(stage: &Stage) -> [Vec<String>; 2] {
    let keys = lasting(stage);
    for key in &keys {
        put(stage, key, "evil");
        let place = format!("/{key}");
        let deleted = stage.s3().request(Some("writer"), "DELETE", &place, "");
        assert_eq!(deleted.unwrap().status, 403, "{key}");
    }
    let added = additions(stage);
    for (key, body) in &added {
        put(stage, key, body);
    }
    let lock = stage.s3().lock(None, &added[0].0, &in_days(4000)).unwrap();
    assert_eq!(lock.status, 200, "{}", lock.body);
    [keys, added.into_iter().map(|(key, _)| key).collect()]
}

/// Restores to that position as a reader, and compares.
fn require_restored(vault: &Vault, name: &str, (lsn, dump): (&str, &str), more: &[&str]) {
    let target = vault.stage.target(name);
    let into = target.display().to_string();
    let restore = ["restore", "--target-dir", &into];
    let words = [&restore[..], &to_lsn(lsn), more].concat();
    vault.ends_as(("reader", "one"), &words, 0);
    let server = vault.stage.start_restored(&target);
    require_same_dump(dump, &server.dump().unwrap()).unwrap();
}

/// A rescue names what was overwritten and what was added, and brings back what was there.
fn rescue(vault: &Vault, moment: &str, [keys, added]: &[Vec<String>; 2]) {
    let words = ["--output", "json", "rescue", "--since", moment];
    let plan = [&words[..], &["--dry-run"]].concat();
    let (planned, _) = vault.ends_as(("keeper", "keeper"), &plan, 0);
    let planned = schema::document(&planned);
    let list = |what: &str| -> BTreeSet<String> {
        let keys = planned[what].as_array().unwrap().iter();
        keys.map(|key| format!("backups/{}", key.as_str().unwrap()))
            .collect()
    };
    assert_eq!(list("replaced"), keys.iter().cloned().collect());
    assert_eq!(list("added"), added.iter().cloned().collect());
    assert_eq!(planned["removals"].as_array().unwrap().len(), 2);
    // A layer that he has added is not whole.
    vault.ends_as(("keeper", "keeper"), &words, WARNINGS);
}

#[test]
fn what_a_writer_overwrites_adds_and_locks_is_seen_and_comes_back() {
    let vault = Vault::lifted();
    let stage = &vault.stage;
    backup(&vault, "full");
    stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
    backup(&vault, "incr");
    let (lsn, dump) = stage.moment();
    let state = (lsn.as_str(), dump.as_str());
    let moment = quiet_moment();
    let touched = attack(stage);
    for words in [&["info"][..], &["verify"], &["key", "check"]] {
        let output = vault.run("writer", words);
        assert_ne!(output.status.code(), Some(0), "{words:?}");
    }
    require_restored(&vault, "then", state, &["--repository-as-of", &moment]);
    rescue(&vault, &moment, &touched);

    // What was added is in the way, and named; it hides nothing.
    let (code, named) = vault.verify("one", &[]);
    assert_eq!(code, DAMAGED);
    let [_, added] = touched;
    for key in &added[..3] {
        let parts: Vec<&str> = key.rsplit('/').collect();
        // An epoch and a layer by their directory, WAL by its name.
        let own = parts[if key.contains("/wal/") { 0 } else { 1 }];
        let is_named = named.iter().any(|line| line.contains(own));
        assert!(is_named, "{key}: {named:?}");
    }
    for key in &added {
        match key.contains("/wal/") {
            // The server comes to that name, and this store lets nobody create what a deletion marker hides.
            true => delete_versions(stage, key),
            false => delete(stage, key),
        }
    }
    assert_eq!(vault.verify("one", &["--deep"]), (0, Vec::new()));
    require_restored(&vault, "now", state, &[]);
    // And life goes on, when the archiver has tried again what was in its way.
    stage.cluster.pgbench(&["-n", "-t", "50"]).unwrap();
    stage
        .cluster
        .sql("postgres", "SELECT pg_switch_wal()")
        .unwrap();
    let works =
        "SELECT last_archived_time > coalesce(last_failed_time, '-infinity') FROM pg_stat_archiver";
    stage.cluster.wait_for("postgres", works, PATIENCE).unwrap();
    backup(&vault, "incr");
    let again = "DROP TABLE afterwards";
    stage.cluster.sql("postgres", again).unwrap();
    let (lsn, dump) = stage.moment();
    require_restored(&vault, "later", (&lsn, &dump), &[]);
    assert_eq!(vault.verify("one", &[]), (0, Vec::new()));
    vault.ends_as(("keeper", "keeper"), &["expire", "--keep-full", "1"], 0);
    require_key_box_missed(&vault);
}

/// Whose key box is deleted is told by whoever looks, and it comes back.
fn require_key_box_missed(vault: &Vault) {
    let stage = &vault.stage;
    let moment = quiet_moment();
    let before = stage.keys();
    let of_reader = before.iter().find(|key| key.contains("/000001/reader-"));
    let of_reader = of_reader.unwrap();
    delete(stage, of_reader);
    let pgdata = stage.pgdata();
    let checked = vault.run("writer", &["check", "-D", &pgdata]);
    let said = [checked.stdout, checked.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.contains("1 objects of the keys were deleted"),
        "{said}"
    );
    let rescue = ["rescue", "--since", &moment];
    vault.ends_as(("keeper", "keeper"), &rescue, 0);
    let keys = stage.keys();
    assert!(keys.contains(of_reader), "{keys:?}");
}

fn delete_versions(stage: &Stage, key: &str) {
    for version in versions(stage, key) {
        let place = format!("/{key}?versionId={version}");
        let deleted = stage.s3().request(None, "DELETE", &place, "");
        assert_eq!(deleted.unwrap().status, 204, "{key}");
    }
}

fn delete(stage: &Stage, key: &str) {
    let place = format!("/{key}");
    let deleted = stage.s3().request(Some("keeper"), "DELETE", &place, "");
    assert_eq!(deleted.unwrap().status, 204, "{key}");
}
