//! Several processes make one restore: it gives what one process gives, whatever becomes of the helpers or the leader,
//! and nobody writes to it any more once a server may run.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_lab::cluster::{Cluster, Major, require_same_dump};
use serde_json::Value;
use support::files::require_same_files;
use support::process::{document, log_of, signal, spawn};
use support::{PATIENCE, Stage, Store, number, text};

const USAGE: i32 = 2;
const WARNINGS: i32 = 3;
const NOT_FOUND: i32 = 10;
const REFUSED: i32 = 13;

/// Where files wait for their shares, in every directory of a restore.
const SHARES: &str = "pgstrata.shares";

/// Where a chain was backed up, and what its last moment holds.
struct Scene {
    stage: Stage,
    tablespace: PathBuf,
    dump: String,
    lsn: String,
}

impl Scene {
    /// A full layer and an increment, both made under load.
    fn new(major: Major, store: Store) -> Self {
        let stage = Stage::archiving(Cluster::builder(major), store);
        stage.cluster.pgbench(&["-i", "-q", "-s", "4"]).unwrap();
        let tablespace = stage.cluster.create_tablespace("place").unwrap();
        let table = "CREATE TABLE elsewhere (n int, t text) TABLESPACE place;
            INSERT INTO elsewhere SELECT n, repeat('x', 100) FROM generate_series(1, 60000) n;";
        stage.cluster.sql("postgres", table).unwrap();
        for kind in ["full", "incr"] {
            let forever = ["-n", "-c", "2", "-T", "600"];
            let mut load = stage.cluster.background_pgbench(&forever).unwrap();
            stage.backup(&["--type", kind]);
            assert!(load.is_running().unwrap(), "{}", load.output());
            load.kill().unwrap();
            let change = "UPDATE elsewhere SET t = repeat('y', 100) WHERE n % 7 = 0";
            stage.cluster.sql("postgres", change).unwrap();
        }
        let (lsn, dump) = stage.moment();
        Self {
            stage,
            tablespace,
            dump,
            lsn,
        }
    }

    /// The directories of a restore of that name: for data, and for the tablespace.
    fn directories(&self, name: &str) -> [PathBuf; 2] {
        [name.to_owned(), format!("{name}-place")].map(|name| self.stage.target(&name))
    }

    fn restore_arguments(&self, name: &str, more: &[&str]) -> Vec<String> {
        let [data, place] = self
            .directories(name)
            .map(|path| path.display().to_string());
        let map = format!("{}={place}", self.tablespace.display());
        let always = ["--output", "json", "restore", "--target-dir", &data];
        let until = ["--type", "lsn", "--target", &self.lsn];
        let then = ["--target-action", "promote", "--tablespace-map", &map];
        let all = [&always[..], &until, &then, more].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    fn restore(&self, name: &str, more: &[&str]) -> Child {
        let arguments = self.restore_arguments(name, more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        spawn(&self.stage, &arguments)
    }

    /// A leader that has cut its work and is held there, with most of it to be done.
    fn held_leader(&self, name: &str, more: &[&str]) -> Child {
        let shared = ["--shares", "12", "--jobs", "1"];
        let mut leader = self.restore(name, &[&shared[..], more].concat());
        let [data, _] = self.directories(name);
        let end = Instant::now() + PATIENCE;
        while !data.join(SHARES).join("work").exists() {
            if let Some(status) = leader.try_wait().unwrap() {
                panic!("the leader ended early, with {status}: {}", log_of(leader));
            }
            assert!(Instant::now() < end, "the leader cuts nothing");
            thread::sleep(Duration::from_millis(1));
        }
        signal(&leader, "-STOP");
        leader
    }

    fn helper(&self, name: &str) -> Child {
        let [data, _] = self
            .directories(name)
            .map(|path| path.display().to_string());
        let always = ["--output", "json", "restore-share", "--target-dir", &data];
        spawn(&self.stage, &[&always[..], &["--jobs", "1"]].concat())
    }

    /// A helper that is held in the middle of a share, and the number of that share.
    fn held_helper(&self, name: &str) -> (Child, u64) {
        let mut helper = self.helper(name);
        let [data, _] = self.directories(name);
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = helper.try_wait().unwrap() {
                panic!("the helper ended early, with {status}: {}", log_of(helper));
            }
            assert!(Instant::now() < end, "the helper is never in a share");
            if share_at_work(&data, &helper).is_some() {
                signal(&helper, "-STOP");
                thread::sleep(Duration::from_millis(50));
                if let Some(number) = share_at_work(&data, &helper) {
                    return (helper, number);
                }
                signal(&helper, "-CONT");
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for a helper that is at work again when all is over: it finds that out, and changes nothing.
    fn let_go(&self, name: &str, helper: Child) {
        let directories = self.directories(name);
        for directory in &directories {
            assert!(!directory.join(SHARES).exists(), "{}", directory.display());
        }
        let before = directories.each_ref().map(|path| snapshot(path));
        signal(&helper, "-CONT");
        let output = helper.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code().unwrap();
        assert!([REFUSED, WARNINGS].contains(&code), "{code}: {log}");
        for (directory, before) in directories.iter().zip(before) {
            assert!(!before.is_empty());
            let after = snapshot(directory);
            let changed: BTreeSet<_> = before
                .iter()
                .filter(|(path, found)| after.get(*path) != Some(found))
                .chain(after.iter().filter(|(path, _)| !before.contains_key(*path)))
                .map(|(path, _)| path)
                .collect();
            assert!(changed.is_empty(), "{log}\nchanged: {changed:?}");
        }
    }

    fn verify_by_server(&self, data: &Path) {
        let directory = data.display().to_string();
        let said = self.stage.cluster.run("pg_verifybackup", &[&directory]);
        assert!(said.unwrap().contains("successfully verified"));
    }

    fn require_right(&self, data: &Path) {
        let restored = self.stage.start_restored(data);
        require_same_dump(&self.dump, &restored.dump().unwrap()).unwrap();
        restored.amcheck().unwrap();
        restored.check_visibility_maps().unwrap();
    }
}

/// The share that a process has claimed and not finished.
fn share_at_work(data: &Path, process: &Child) -> Option<u64> {
    let found = fs::read_dir(data.join(SHARES)).ok()?;
    let names = found.flatten().map(|entry| entry.path());
    names
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let number: u64 = name.strip_prefix("claim-")?.parse().ok()?;
            let record = fs::read_to_string(&path).ok()?;
            let (_, json) = record.split_once('\n')?;
            let claim: Value = serde_json::from_str(json).ok()?;
            let is_theirs = claim["pid"] == process.id();
            let is_done = path.with_file_name(format!("done-{number}")).exists();
            (is_theirs && !is_done).then_some(number)
        })
        .next()
}

/// Everything that could be seen to change, by path.
type Snapshot = BTreeMap<PathBuf, (u64, u32, (i64, i64), (i64, i64), u64)>;

fn snapshot(root: &Path) -> Snapshot {
    let (mut all, mut waiting) = (Snapshot::new(), vec![root.to_owned()]);
    while let Some(path) = waiting.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        if found.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            waiting.extend(entries.map(|entry| entry.unwrap().path()));
        }
        let mut contents = DefaultHasher::new();
        if found.is_file() {
            fs::read(&path).unwrap().hash(&mut contents);
        }
        let seen = (
            found.ino(),
            found.mode(),
            (found.mtime(), found.mtime_nsec()),
            (found.ctime(), found.ctime_nsec()),
            contents.finish(),
        );
        all.insert(path, seen);
    }
    all
}

/// Who made each share, by its number.
fn makers(report: &Value) -> BTreeMap<u64, u64> {
    let shares = report["shares"].as_array().unwrap().iter();
    shares
        .map(|share| (number(share, "/number"), number(share, "/pid")))
        .collect()
}

fn made_by(helper: &Value) -> Vec<u64> {
    let made = helper["made"].as_array().unwrap().iter();
    made.map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn a_restore_by_three_processes_is_that_of_one() {
    let scene = Scene::new(Major::V17, Store::S3);
    let wal = scene.stage.target("shared-wal");
    let leader = scene.held_leader("shared", &["--wal-dir", wal.to_str().unwrap()]);
    let (held, _) = scene.held_helper("shared");
    let helper = scene.helper("shared");
    let (leader_id, held_id) = (u64::from(leader.id()), u64::from(held.id()));
    let helper_id = u64::from(helper.id());
    let helper = document(helper);
    signal(&held, "-CONT");
    let held = document(held);
    signal(&leader, "-CONT");
    let report = document(leader);

    assert_eq!(
        number(&held, "/share_count"),
        number(&helper, "/share_count")
    );
    assert_eq!(text(&held, "/label"), text(&report, "/label"));
    let makers = makers(&report);
    assert_eq!(makers.len(), report["shares"].as_array().unwrap().len());
    for (id, made) in [(held_id, made_by(&held)), (helper_id, made_by(&helper))] {
        assert!(!made.is_empty(), "{held:#}{helper:#}");
        assert!(made.iter().all(|number| makers[number] == id), "{report:#}");
    }
    let ours = [leader_id, held_id, helper_id];
    assert!(makers.values().all(|pid| ours.contains(pid)), "{report:#}");

    let alone = document(scene.restore("alone", &[]));
    assert_eq!(alone["shares"].as_array().unwrap().len(), 0);
    for same in ["/files", "/pages", "/written_bytes"] {
        assert_eq!(number(&report, same), number(&alone, same), "{same}");
    }
    let [[shared, place], [alone, _]] = ["shared", "alone"].map(|name| scene.directories(name));
    assert!(require_same_files(&alone, &shared) > 40 << 20);
    assert!(snapshot(&place).len() > 3);
    assert_eq!(fs::read_link(shared.join("pg_wal")).unwrap(), wal);
    for directory in [&shared, &place, &wal] {
        assert!(!directory.join(SHARES).exists(), "{}", directory.display());
    }
    scene.verify_by_server(&shared);
    scene.require_right(&shared);
}

#[test]
fn helpers_and_leaders_may_stop_at_any_moment() {
    let scene = Scene::new(Major::V15, Store::Directory);

    // One helper is killed in a share, one is stopped in a share and goes on when all is over.
    let leader = scene.held_leader("left", &["--share-timeout", "3"]);
    let (mut killed, first) = scene.held_helper("left");
    signal(&killed, "-KILL");
    killed.wait().unwrap();
    let (stopped, second) = scene.held_helper("left");
    refuse_who_does_not_belong(&scene, "left");
    signal(&leader, "-CONT");
    let leader_id = u64::from(leader.id());
    let report = document(leader);
    let makers = makers(&report);
    assert_eq!(
        [makers[&first], makers[&second]],
        [leader_id; 2],
        "{report:#}"
    );
    scene.let_go("left", stopped);
    let [left, _] = scene.directories("left");
    scene.verify_by_server(&left);
    scene.require_right(&left);

    // The leader is killed. Another one restores while a helper of the first is stopped.
    let mut leader = scene.held_leader("dead", &[]);
    let (stopped, _) = scene.held_helper("dead");
    signal(&leader, "-KILL");
    leader.wait().unwrap();
    let [dead, _] = scene.directories("dead");
    assert!(dead.join(SHARES).exists());
    assert!(!dead.join("global/pg_control").exists());
    let again = document(scene.restore("dead", &["--shares", "4"]));
    assert!(again["shares"].as_array().unwrap().len() > 1, "{again:#}");
    scene.let_go("dead", stopped);
    scene.verify_by_server(&dead);
    scene.require_right(&dead);
}

/// While a restore of that name is under way.
fn refuse_who_does_not_belong(scene: &Scene, name: &str) {
    let stage = &scene.stage;
    let [data, place] = scene
        .directories(name)
        .map(|path| path.display().to_string());
    let nothing = stage.cluster.create_dir("nothing").unwrap();
    let nothing = nothing.display().to_string();
    let elsewhere = format!("file://{nothing}");
    let pgdata = stage.pgdata();
    let helps = |directory: &str, more: &[&str]| {
        stage.fails(&[&["restore-share", "--target-dir", directory], more].concat())
    };
    for (directory, more, code, what) in [
        (&*nothing, &[][..], NOT_FOUND, "is under way"),
        (&*pgdata, &[], NOT_FOUND, "is under way"),
        (&*place, &[], REFUSED, "belongs to a restore to"),
        (&*data, &["--cluster", "other"], REFUSED, "is of cluster"),
        (&*data, &["--repo", &elsewhere], NOT_FOUND, "layer"),
    ] {
        let (found, log) = helps(directory, more);
        assert_eq!(found, code, "{directory} {more:?}: {log}");
        assert!(log.contains(what), "{directory} {more:?}: {log}");
    }
    let delta = [
        "restore",
        "--target-dir",
        &nothing,
        "--shares",
        "4",
        "--delta",
    ];
    let (code, log) = stage.fails(&delta);
    assert_eq!(code, USAGE, "{log}");
    assert!(log.contains("cannot be shared"), "{log}");
}
