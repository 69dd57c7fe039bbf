//! `copy`: one repository out of another, checked, resumed, beside everything else that goes on.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

#[path = "copy/archive.rs"]
mod archive;
#[path = "copy/lost.rs"]
mod lost;
#[path = "copy/marks.rs"]
mod marks;
mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use pgstrata_testbed::cluster::{Cluster, Major, StopMode};
use pgstrata_testbed::s3::S3Server;
use serde_json::Value;
use support::{PATIENCE, Stage, Store, files, namespace, process, schema, text};

const NOT_FOUND: i32 = 10;
const DAMAGED: i32 = 14;
const REFUSED: i32 = 13;
const WARNINGS: i32 = 3;
const UNSUPPORTED: i32 = 21;

/// A stage with rows and a full layer.
fn stage(store: Store) -> Stage {
    let stage = Stage::archiving(Cluster::builder(Major::V15), store);
    let sql = |query| stage.cluster.sql("postgres", query).unwrap();
    sql(
        "CREATE TABLE t AS SELECT g, repeat(md5(g::text), 8) AS s FROM generate_series(1, 20000) g",
    );
    stage.backup(&["--type", "full"]);
    stage
}

fn change(stage: &Stage) {
    let sql = "UPDATE t SET s = s || 'x' WHERE g % 7 = 0";
    stage.cluster.sql("postgres", sql).unwrap();
}

/// Another repository in a directory, which is not made yet.
fn other(stage: &Stage, name: &str) -> (String, PathBuf) {
    let directory = stage.cluster.create_dir(name).unwrap();
    (format!("file://{}", directory.display()), directory)
}

fn copy(stage: &Stage, to: &str, more: &[&str]) -> Value {
    stage.json(&[&["copy", "--to", to][..], more].concat())
}

/// Runs a command on that repository, which must succeed.
fn at(stage: &Stage, repository: &str, arguments: &[&str]) -> Value {
    stage.json(&[&["--repo", repository][..], arguments].concat())
}

/// All files below a directory, which may be missing, or go meanwhile.
fn below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(below(&path)),
            false => found.push(path),
        }
    }
    found.retain(|path| {
        !path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
    });
    found
}

/// All objects below a directory, with their contents.
fn objects(root: &Path) -> Vec<(String, Vec<u8>)> {
    let all = below(root);
    let all = all.into_iter().map(|path| {
        let name = path.strip_prefix(root).unwrap().display().to_string();
        (name, fs::read(&path).unwrap())
    });
    let mut all: Vec<_> = all.collect();
    all.sort();
    all
}

/// What copies leave alone, or differs for who wrote it.
fn counts(name: &str) -> bool {
    let own = ["/claim", "/committed", "/verified/", "/restore/", "/clock/"];
    !own.iter().any(|part| name.contains(part)) && !name.contains("/beat-")
}

fn same_objects(one: &Path, other: &Path) {
    let of = |root: &Path| {
        let all = objects(root).into_iter();
        all.filter(|(name, _)| counts(name)).collect::<Vec<_>>()
    };
    let (mut one, other) = (of(one), of(other));
    // WAL before the first layer is of no use.
    let is_wal = |name: &str| name.starts_with("main/wal/");
    let first = other
        .iter()
        .find(|(name, _)| is_wal(name))
        .unwrap()
        .0
        .clone();
    one.retain(|(name, _)| !is_wal(name) || *name >= first);
    let names =
        |all: &[(String, Vec<u8>)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&one), names(&other));
    assert!(one == other, "an object differs");
}

#[test]
fn a_copy_has_every_object_and_restores() {
    let stage = stage(Store::Directory);
    change(&stage);
    let label = stage.backup(&["--type", "incr"]);
    let label = text(&label, "/label").to_owned();
    stage.ok(&["pin", &label, "--note", "kept"]);
    stage.ok(&["annotate", &label, "ticket=DB-1"]);
    let (lsn, expected) = stage.moment();
    let (to, directory) = other(&stage, "mirror");
    let planned = copy(&stage, &to, &["--dry-run"]);
    assert_eq!(planned["done"], false);
    assert_eq!(planned["layers"].as_array().unwrap().len(), 2);
    assert!(
        fs::read_dir(&directory).unwrap().next().is_none(),
        "a plan writes"
    );
    let report = copy(&stage, &to, &[]);
    assert_eq!(report["new_cluster"], true);
    assert_eq!(report["layers"].as_array().unwrap().len(), 2);
    same_objects(&stage.objects(), &directory);
    let info = at(&stage, &to, &["info"]);
    let newest = info["layers"].as_array().unwrap().last().unwrap();
    assert_eq!(newest["pin"]["note"], "kept");
    assert_eq!(newest["annotations"]["ticket"], "DB-1");
    at(&stage, &to, &["verify", "--deep"]);
    // Nothing is sent again, and nothing of the copy is left.
    let again = copy(&stage, &to, &[]);
    assert!(again["layers"].as_array().unwrap().is_empty(), "{again:#}");
    assert_eq!(again["present"], 2);
    assert_eq!(again["wal_files"], 0);
    for root in [&stage.objects(), &directory] {
        let names = objects(root).into_iter().map(|(name, _)| name);
        let left: Vec<_> = names
            .filter(|name| name.contains("/restore/") || name.contains("/beat-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    // A child of a copied layer, made in the copy.
    let target = stage.target("restored");
    let shown = target.display().to_string();
    stage.ok(&[
        "--repo",
        &to,
        "restore",
        "--target-dir",
        &shown,
        "--target-type",
        "lsn",
        "--target",
        &lsn,
        "--target-action",
        "promote",
    ]);
    let restored = stage.start_restored(&target);
    assert_eq!(restored.dump().unwrap(), expected);
    let pgdata = stage.pgdata();
    let child = at(&stage, &to, &["backup", "--pgdata", &pgdata]);
    assert_eq!(child["type"], "incremental", "{child:#}");
    assert_eq!(child["parent"], Value::from(label));
}

#[test]
fn a_copy_goes_to_s3_and_back() {
    let stage = stage(Store::Directory);
    stage.moment();
    let s3 = S3Server::start().unwrap();
    let credentials = stage.cluster.create_dir("far").unwrap().join("far.toml");
    let lines = s3.options();
    let lines = lines.map(|(key, value)| format!("{key} = \"{value}\"\n"));
    fs::write(&credentials, lines.concat()).unwrap();
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).unwrap();
    stage.cluster.own(&credentials).unwrap();
    let credentials = credentials.display().to_string();
    let far = format!("s3://{}/copies", s3.bucket());
    copy(&stage, &far, &["--to-credentials", &credentials]);
    same_objects(&stage.objects(), &s3.bucket_dir().join("copies"));
    let (back, directory) = other(&stage, "back");
    stage.json(&[
        "--repo",
        &far,
        "--credentials",
        &credentials,
        "copy",
        "--to",
        &back,
    ]);
    same_objects(&stage.objects(), &directory);
    at(&stage, &back, &["verify", "--deep"]);
}

#[test]
fn a_damaged_object_is_never_copied() {
    let stage = stage(Store::Directory);
    let whole = stage.backup(&["--type", "full"]);
    let whole = text(&whole, "/label").to_owned();
    change(&stage);
    let label = stage.backup(&["--type", "incr"]);
    let label = text(&label, "/label").to_owned();
    let layer = stage.objects().join("main/layer").join(&label);
    for (number, name) in ["pack-000000", "index-000000", "digest-000000"]
        .iter()
        .enumerate()
    {
        let path = layer.join(name);
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        fs::write(&path, &bad).unwrap();
        let (to, directory) = other(&stage, &format!("mirror{number}"));
        let (code, log) = stage.fails(&["copy", "--to", &to]);
        assert_eq!(code, DAMAGED, "{name}: {log}");
        assert!(log.contains(&label), "{name}: {log}");
        let there = directory.join("main/layer").join(&label);
        assert!(!there.join("manifest").exists(), "{name}");
        assert!(!there.join(name).exists(), "{name}");
        // The others are there, and restore.
        assert!(
            directory
                .join("main/layer")
                .join(&whole)
                .join("manifest")
                .exists()
        );
        at(&stage, &to, &["verify", "--deep", &whole]);
        // Mended, it follows.
        fs::write(&path, &good).unwrap();
        let report = copy(&stage, &to, &[]);
        assert_eq!(report["layers"].as_array().unwrap().len(), 1, "{report:#}");
        at(&stage, &to, &["verify", "--deep"]);
    }
}

#[test]
fn damaged_wal_is_never_copied() {
    let stage = stage(Store::Directory);
    stage.moment();
    let wal = stage.objects().join("main/wal/00000001");
    let mut segments: Vec<PathBuf> = below(&wal);
    segments.retain(|path| path.file_name().unwrap().len() == 24);
    segments.sort();
    let last = segments.last().unwrap();
    let mut bytes = fs::read(last).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(last, bytes).unwrap();
    let (to, directory) = other(&stage, "mirror");
    let (code, log) = stage.fails(&["copy", "--to", &to]);
    assert_eq!(code, DAMAGED, "{log}");
    let copied = directory
        .join("main/wal/00000001")
        .join(last.file_name().unwrap());
    assert!(!copied.exists());
    at(&stage, &to, &["verify", "--deep"]);
}

/// Starts a copy and kills it when some of the packs are there.
fn kill_in_the_middle(stage: &Stage, to: &str, directory: &Path) {
    let mut child = process::spawn(stage, &["--jobs", "1", "copy", "--to", to]);
    let packs = || {
        below(directory)
            .iter()
            .filter(|path| path.display().to_string().contains("pack-"))
            .count()
    };
    let end = Instant::now() + PATIENCE;
    while packs() == 0 {
        assert!(
            child.try_wait().unwrap().is_none(),
            "{}",
            process::log_of(child)
        );
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A layer of several packs.
fn large(stage: &Stage) {
    let sql = "CREATE TABLE large AS SELECT g, repeat(md5(random()::text), 60) AS s FROM generate_series(1, 60000) g";
    stage.cluster.sql("postgres", sql).unwrap();
    stage.backup(&["--type", "full", "--compress", "none"]);
}

#[test]
fn a_killed_copy_goes_on_where_it_was_also_after_an_expiry() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    large(&stage);
    let (to, directory) = other(&stage, "mirror");
    kill_in_the_middle(&stage, &to, &directory);
    let layers = directory.join("main/layer");
    let label = fs::read_dir(&layers)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    assert!(
        !label.join("manifest").exists(),
        "it was too fast to be killed"
    );
    let before = below(&label);
    // Days later an expiry leaves it for who copies again.
    age(&directory, "2 days ago");
    stage.ok(&["--repo", &to, "expire", "--keep-full", "1"]);
    let kept = below(&label);
    assert!(before.iter().all(|path| kept.contains(path)), "{kept:?}");
    let report = copy(&stage, &to, &[]);
    let sent = report
        .pointer("/layers/0/objects")
        .unwrap()
        .as_u64()
        .unwrap();
    let all = objects(&label)
        .iter()
        .filter(|(name, _)| counts(&format!("/{name}")))
        .count();
    assert!(
        sent < u64::try_from(all).unwrap(),
        "{sent} of {all} were sent again"
    );
    same_objects(&stage.objects(), &directory);
    at(&stage, &to, &["verify", "--deep"]);
}

#[test]
fn a_copy_that_nobody_completes_is_given_up_at_last() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    large(&stage);
    let (to, directory) = other(&stage, "mirror");
    kill_in_the_middle(&stage, &to, &directory);
    // A day later it may yet be completed, and an expiry says that it stays.
    age(&directory, "1 day ago");
    let expire = ["--repo", &to, "expire", "--keep-full", "1"];
    let told = stage.ok(&expire);
    assert!(told.contains("is not complete: repeat the copy"), "{told}");
    assert!(told.contains("given up in 5 days 23 hours"), "{told}");
    age(&directory, "8 days ago");
    stage.ok(&["--repo", &to, "expire", "--keep-full", "1"]);
    let packs = below(&directory.join("main/layer"));
    assert_eq!(
        packs.len(),
        1,
        "only the record that it was given up: {packs:?}"
    );
    let (code, log) = stage.fails(&["copy", "--to", &to]);
    assert_eq!(code, WARNINGS, "{log}");
    assert!(log.contains("given up"), "{log}");
    let label = text(&stage.json(&["info"]), "/layers/0/label").to_owned();
    let (code, log) = stage.fails(&["copy", "--to", &to, &label]);
    assert_eq!(code, REFUSED, "it was asked for: {log}");
    // What does not stand on it is copied.
    stage.backup(&["--type", "full"]);
    let (code, _) = stage.fails(&["copy", "--to", &to]);
    assert_eq!(code, WARNINGS);
    at(&stage, &to, &["verify", "--deep"]);
}

fn age(directory: &Path, when: &str) {
    files::age(&directory.join("main"), when);
}

#[test]
fn two_copies_at_once_make_one_mirror() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    large(&stage);
    change_large(&stage);
    let (to, directory) = other(&stage, "mirror");
    let children: Vec<_> = (0..3)
        .map(|_| process::spawn(&stage, &["copy", "--to", &to]))
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{log}");
    }
    same_objects(&stage.objects(), &directory);
    at(&stage, &to, &["verify", "--deep"]);
}

fn change_large(stage: &Stage) {
    let sql = "UPDATE large SET s = s || 'x' WHERE g % 50 = 0";
    stage.cluster.sql("postgres", sql).unwrap();
    stage.backup(&["--type", "incr"]);
}

#[test]
fn a_layer_that_expires_during_its_copy_is_left_out_and_the_source_is_told() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    large(&stage);
    stage.backup(&["--type", "full"]);
    let (to, directory) = other(&stage, "mirror");
    // While it is copied, an expiry that asks keeps it.
    let child = process::spawn(&stage, &["--jobs", "1", "copy", "--to", &to]);
    let restore = stage.objects().join("main/restore");
    let end = Instant::now() + PATIENCE;
    while below(&restore).is_empty() {
        assert!(Instant::now() < end, "the source is not told");
        thread::sleep(Duration::from_millis(1));
    }
    stage.ok(&["expire", "--keep-full", "1", "--ignore-restores"]);
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    // Either it was faster, or says that the layer went; the target is sound in both cases.
    assert!(output.status.success() || log.contains("removed"), "{log}");
    at(&stage, &to, &["verify", "--deep"]);
    copy(&stage, &to, &[]);
    assert!(below(&directory).len() > 3);
}

#[test]
fn another_cluster_is_refused_and_other_keys_too() {
    let stage = stage(Store::Directory);
    let (to, directory) = other(&stage, "mirror");
    let stranger = Cluster::builder(Major::V15).start().unwrap();
    let pgdata = stranger.pgdata().display().to_string();
    let init = |arguments: &[&str]| {
        let output = stage.command(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pgstrata"));
    command.args(["--repo", &to, "--cluster", "main", "init", "-D", &pgdata]);
    assert!(command.status().unwrap().success());
    let before = objects(&directory);
    let (code, log) = stage.fails(&["copy", "--to", &to]);
    assert_eq!(code, REFUSED, "{log}");
    assert_eq!(before, objects(&directory));
    let (sealed, _) = other(&stage, "sealed");
    let identity = stage.target("identity").display().to_string();
    let made = stage.json(&["key", "generate", &identity]);
    let recipient = text(&made, "/recipient").to_owned();
    let own = stage.pgdata();
    init(&[
        "--repo",
        &sealed,
        "init",
        "-D",
        &own,
        "--encrypt",
        "--one-recipient",
        "--recipient",
        &recipient,
    ]);
    // The source is not sealed, and the target is.
    let (code, log) = stage.fails(&["copy", "--to", &sealed]);
    assert_eq!(code, UNSUPPORTED, "{log}");
    assert!(log.contains("init --encrypt"), "{log}");
    let (new, _) = other(&stage, "new");
    let (code, log) = stage.fails(&["copy", "--to", &new, "--recipient", &recipient]);
    assert!(code == REFUSED && log.contains("not sealed"), "{log}");
}

#[test]
fn a_sealed_cluster_is_copied_as_it_is() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    let identity = stage.target("identity").display().to_string();
    let made = stage.json(&["key", "generate", &identity]);
    let recipient = text(&made, "/recipient").to_owned();
    let (from, here) = other(&stage, "sealed");
    let (to, there) = other(&stage, "mirror");
    let pgdata = stage.pgdata();
    stage.ok(&[
        "--repo",
        &from,
        "init",
        "-D",
        &pgdata,
        "--encrypt",
        "--one-recipient",
        "--recipient",
        &recipient,
    ]);
    let open = ["--identity", &identity, "--repo", &from];
    stage.ok(&[&open[..], &["backup", "-D", &pgdata, "--wal", "stream"]].concat());
    let (code, log) = stage.fails(&["--repo", &from, "copy", "--to", &to]);
    assert_eq!(code, REFUSED, "without a key: {log}");
    stage.ok(&[&open[..], &["copy", "--to", &to]].concat());
    same_objects(&here, &there);
    stage.ok(&["--identity", &identity, "--repo", &to, "verify", "--deep"]);
}

/// Copies out of the repository `$1` to a file system of its own at `$2`, on which there is no room for the layer; then gives it
/// room, and copies again. `$3` is the program. Says what each command ended with.
const INTO_A_SMALL_DISK: &str = r#"
repository=$1 small=$2 program=$3
user=$(stat -c %u "$repository") group=$(stat -c %g "$repository")
mount --make-rprivate / 2>/dev/null || trap 'umount "$small"' EXIT
mount -t tmpfs -o "size=24m,uid=$user,gid=$group,mode=700" tmpfs "$small"
run() {
    set -- "$program" --cluster main "$@"
    test "$user" = "$(id -u)" || set -- setpriv --reuid "$user" --regid "$group" --clear-groups "$@"
    if "$@"; then echo "ended 0"; else echo "ended $?"; fi
}
run --repo "file://$repository" copy --to "file://$small"
if ls "$small"/main/layer/*/manifest 2>/dev/null; then echo "ended with a manifest"; fi
mount -o remount,size=400m "$small"
run --repo "file://$repository" copy --to "file://$small"
run --repo "file://$small" verify --deep
"#;

#[test]
fn a_full_target_is_an_error_and_the_copy_goes_on_when_there_is_room() {
    let stage = Stage::archiving(Cluster::builder(Major::V15), Store::Directory);
    large(&stage);
    let small = stage.cluster.create_dir("small").unwrap();
    let words = [stage.objects(), small, stage.program.clone()];
    let words = words.map(|word| word.display().to_string());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = namespace::with_own_mounts(INTO_A_SMALL_DISK, &words)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let ended: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("ended"))
        .collect();
    assert_eq!(ended, ["ended 15", "ended 0", "ended 0"], "{said}\n{log}");
    assert!(log.contains("No space"), "{log}");
}

#[test]
fn a_mirror_follows_until_it_is_stopped() {
    let stage = stage(Store::Directory);
    let (to, directory) = other(&stage, "mirror");
    let follow = [
        "--output", "json", "copy", "--to", &to, "--follow", "--every", "200ms",
    ];
    let mut child = process::spawn(&stage, &follow);
    let mut follows = |kind: &str| {
        change(&stage);
        let label = stage.backup(&["--type", kind]);
        let layer = directory.join("main/layer").join(text(&label, "/label"));
        let end = Instant::now() + PATIENCE;
        while !layer.join("manifest").exists() {
            assert!(child.try_wait().unwrap().is_none(), "the mirror has ended");
            assert!(Instant::now() < end);
            thread::sleep(Duration::from_millis(50));
        }
    };
    follows("incr");
    // Where the target was unmounted nothing is made, and it goes on when that is there again.
    let away = directory.with_extension("away");
    fs::rename(&directory, &away).unwrap();
    fs::create_dir(&directory).unwrap();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    fs::remove_dir(&directory).unwrap();
    fs::rename(&away, &directory).unwrap();
    follows("full");
    // The layer is there before the copy of it has ended.
    thread::sleep(Duration::from_secs(2));
    process::signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let report = schema::document(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(report["layers"].as_array().unwrap().len(), 3, "{report:#}");
    assert!(log.contains("is it mounted?"), "{log}");

    // Whose last round failed is not well.
    let child = process::spawn(&stage, &follow);
    thread::sleep(Duration::from_secs(2));
    fs::rename(&directory, &away).unwrap();
    thread::sleep(Duration::from_secs(2));
    process::signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(NOT_FOUND), "{log}");
    assert!(log.contains("the last round of the copy failed"), "{log}");
    schema::document(&String::from_utf8(output.stdout).unwrap());
}

#[test]
fn one_layer_comes_with_what_it_stands_on_and_a_lost_object_comes_back() {
    let stage = stage(Store::Directory);
    change(&stage);
    let child = stage.backup(&["--type", "incr"]);
    stage.backup(&["--type", "full"]);
    let label = text(&child, "/label").to_owned();
    let (to, directory) = other(&stage, "mirror");
    let report = copy(&stage, &to, &[&label]);
    let layers = report["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2, "{report:#}");
    assert_eq!(layers[1]["label"], Value::from(label.clone()));
    at(&stage, &to, &["verify", "--deep"]);
    let pack = directory
        .join("main/layer")
        .join(&label)
        .join("pack-000000");
    let bytes = fs::read(&pack).unwrap();
    fs::remove_file(&pack).unwrap();
    copy(&stage, &to, &[&label]);
    assert_eq!(fs::read(&pack).unwrap(), bytes);
    // A manifest that is lost comes back as well.
    let manifest = pack.with_file_name("manifest");
    let bytes = fs::read(&manifest).unwrap();
    fs::remove_file(&manifest).unwrap();
    copy(&stage, &to, &[&label]);
    assert_eq!(fs::read(&manifest).unwrap(), bytes);
}

const NEXT_LABEL: Duration = Duration::from_millis(1100);

/// At both ends layers are merged and removed while a mirror goes on. Nothing that is there afterwards is broken.
#[test]
fn a_mirror_follows_beside_expiries_and_merges_at_both_ends() {
    let stage = stage(Store::Directory);
    let (to, _) = other(&stage, "mirror");
    let copying = ["copy", "--to", &to, "--follow", "--every", "100ms"];
    let mut child = process::spawn(&stage, &copying);
    for round in 0..4 {
        change(&stage);
        let kind = if round == 2 { "full" } else { "incr" };
        stage.backup(&["--type", kind]);
        let merge = ["merge", "latest", "--remove-inputs"];
        let expire = ["expire", "--keep-full", "1", "--ignore-restores"];
        let at_source = [&merge[..], &expire][round % 2];
        let at_target = [&["--repo", &to][..], [&expire[..], &merge][round % 2]].concat();
        for words in [at_source, &at_target] {
            // Two layers that are made within one second, one at each end, have one label.
            thread::sleep(NEXT_LABEL);
            // There may be nothing to merge, or something is being copied right now.
            let output = stage.run(words);
            let log = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code().unwrap();
            assert!(
                [0, 2, 3, 13, 16].contains(&code),
                "{words:?}: {code}: {log}"
            );
        }
        assert!(child.try_wait().unwrap().is_none(), "the mirror has ended");
        thread::sleep(NEXT_LABEL);
    }
    process::signal(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    // In its last round a layer may have been in the middle of its removal.
    let code = output.status.code().unwrap();
    assert!([0, WARNINGS].contains(&code), "{code}: {log}");
    let last = stage.backup(&["--type", "incr"]);
    // An input of the last merge there, which was about to come back, may have been given up.
    let output = stage.run(&["copy", "--to", &to]);
    let log = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code().unwrap();
    assert!([0, WARNINGS].contains(&code), "{code}: {log}");
    for repository in [&stage.repository, &to] {
        let found = at(&stage, repository, &["verify", "--deep"]);
        assert_eq!(found["findings"], Value::Array(Vec::new()), "{repository}");
    }
    let roots = ["here", "there"].map(|name| stage.target(name));
    for (root, repository) in roots.iter().zip([&stage.repository, &to]) {
        let into = root.display().to_string();
        let label = text(&last, "/label");
        let restore = ["restore", label, "--target-dir", &into];
        at(
            &stage,
            repository,
            &[&restore[..], &["--target-type", "immediate"]].concat(),
        );
    }
    let base = roots.each_ref().map(|root| objects(&root.join("base")));
    assert!(!base[0].is_empty() && base[0] == base[1]);
}

/// Also where only a link leads: a restore in place would remove it, and what somebody has put there is not removed.
#[test]
fn nothing_is_copied_or_restored_among_the_files_of_a_cluster() {
    let stage = stage(Store::Directory);
    let space = stage.cluster.create_tablespace("space").unwrap();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let (pgdata, wal) = (stage.cluster.pgdata().to_owned(), stage.target("wal"));
    fs::rename(pgdata.join("pg_wal"), &wal).unwrap();
    symlink(&wal, pgdata.join("pg_wal")).unwrap();
    stage.cluster.start().unwrap();
    stage.backup(&["--type", "full"]);
    let version = fs::read_dir(&space).unwrap().next().unwrap().unwrap();
    let refused = |words: &[&str]| {
        let (code, log) = stage.fails(words);
        assert_eq!(code, REFUSED, "{words:?}: {log}");
        log
    };
    for above in [
        &wal,
        &pgdata.join("pg_wal"),
        &space,
        &version.path(),
        &pgdata,
    ] {
        let place = above.join("far");
        let to = format!("file://{}", place.display());
        refused(&["copy", "--to", &to]);
        refused(&["copy", "--to", &to, "--dry-run"]);
        assert!(!place.exists(), "{place:?}");
    }
    // Who says where the cluster is copies nothing around it, either.
    let settings = stage
        .cluster
        .create_dir("settings")
        .unwrap()
        .join("own.toml");
    fs::write(&settings, format!("pgdata = \"{}\"\n", pgdata.display())).unwrap();
    let settings = settings.display().to_string();
    let around = format!("file://{}", pgdata.parent().unwrap().display());
    let log = refused(&["--config", &settings, "copy", "--to", &around]);
    assert!(log.contains("\" holds \""), "{log}");
    let immediate = ["--target-type", "immediate"];
    let x = wal.join("x").display().to_string();
    refused(&[&["restore", "--target-dir", &x][..], &immediate].concat());

    stage.archive_all();
    stage.cluster.stop(StopMode::Fast).unwrap();
    let root = pgdata.display().to_string();
    let own = [
        &["restore", "--target-dir", &root, "--delta"][..],
        &immediate,
    ]
    .concat();
    for place in [
        wal.join("near"),
        version.path().join("near"),
        pgdata.join("near"),
    ] {
        files::copy_all(&stage.objects(), &place);
        let log = refused(&own);
        assert!(log.contains("holds a repository"), "{log}");
        refused(&[&own[..], &["--dry-run"]].concat());
        assert!(pgdata.join("global/pg_control").exists());
        fs::remove_dir_all(&place).unwrap();
    }
    stage.ok(&own);
}
