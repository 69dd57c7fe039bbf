//! A repository on a disk without a free byte can be freed; and what root makes in a repository is the server's.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail like tests"
)]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Output;

use pgstrata_testbed::cluster::{Cluster, Major};
use serde_json::Value;
use support::{Stage, Store, namespace};

/// Copies the repository `$1` to a file system of `$2` bytes of its own at `$3`, and fills that to its last byte. `run` then
/// runs the program `$4` there, as the owner of the repository.
const FULL_DISK: &str = r#"
repository=$1 size=$2 small=$3 program=$4; shift 4
user=$(stat -c %u "$repository") group=$(stat -c %g "$repository")
mount --make-rprivate / 2>/dev/null || trap 'umount "$small"' EXIT
mount -t tmpfs -o "size=$size,uid=$user,gid=$group,mode=700" tmpfs "$small"
cp -a "$repository/." "$small"
head -c "$size" /dev/zero >"$small/.full" 2>/dev/null || true
if echo x >"$small/.more" 2>/dev/null && test -s "$small/.more"; then echo "the disk is not full" >&2; exit 99; fi
run() {
    set -- "$program" --repo "file://$small" --cluster main "$@"
    if test "$user" = "$(id -u)"; then "$@"; else setpriv --reuid "$user" --regid "$group" --clear-groups "$@"; fi
}
"#;

/// Runs the command of the words that follow, and says what there is then.
const COMMAND: &str = r#"
run "$@"
echo free "$(df --output=avail --block-size=1 "$small" | tail -1)" >&2
run --output json info
"#;

/// Expires twice with a merge, and then without. Says how each ended, and how much is still laid up in between.
const EXPIRIES: &str = r#"
for time in first second; do
    code=0; run expire --keep-full 1 --max-chain 1 >&2 || code=$?
    echo "$time merge: $code, laid up: $(stat -c %s "$small/.reserve" || true)"
done
code=0; run expire --keep-full 1 >&2 || code=$?
echo "removal: $code"
cd "$small/main/layer" && ls -d */manifest
cd /
"#;

/// What the program said on a full disk: of the command, and of `info` after it.
fn on_a_full_disk(stage: &Stage, small: &Path, command: &[&str]) -> Output {
    script_on_a_full_disk(stage, small, COMMAND, command)
}

fn script_on_a_full_disk(stage: &Stage, small: &Path, script: &str, command: &[&str]) -> Output {
    let repository = stage.objects().display().to_string();
    let size = 64 << 20;
    let words = [
        repository.as_str(),
        &size.to_string(),
        &small.display().to_string(),
        &stage.program.display().to_string(),
    ];
    let mut script = namespace::with_own_mounts(&format!("{FULL_DISK}{script}"), &words);
    script.args(command).output().unwrap()
}

fn documents(output: &Output) -> Vec<Value> {
    let stream = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    stream.map(Result::unwrap).collect()
}

fn free_bytes(log: &str) -> u64 {
    let mut lines = log.lines();
    let line = lines.find_map(|line| line.strip_prefix("free "));
    line.unwrap_or_else(|| panic!("{log}")).parse().unwrap()
}

#[test]
fn an_expiry_frees_a_disk_that_is_full() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    for _ in 0..3 {
        stage.backup(&["--type", "full"]);
    }
    let small = stage.cluster.create_dir("small").unwrap();
    let reserve = stage.objects().join(".reserve");
    assert_eq!(fs::metadata(&reserve).unwrap().len(), 1 << 20);
    let expire = ["--output", "json", "expire", "--keep-full", "1"];
    let output = on_a_full_disk(&stage, &small, &expire);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {log}", output.status);
    let documents = documents(&output);
    assert_eq!(documents[0]["done"], Value::Bool(true), "{documents:#?}");
    assert_eq!(documents[0]["remove"].as_array().unwrap().len(), 2);
    assert_eq!(documents[1]["layers"].as_array().unwrap().len(), 1);
    assert_eq!(documents[1]["status"], "ok");
    assert!(free_bytes(&log) > 2 << 20, "{log}");

    // Without a reserve, as in a repository of an older version, it says what to do.
    fs::remove_file(&reserve).unwrap();
    let output = on_a_full_disk(&stage, &small, &expire);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(15), "{log}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &log;
    assert!(said.contains("No space left on device"), "{said}");
    assert!(said.contains("free some room"), "{said}");
    // The next backup lays one up.
    stage.backup(&["--type", "full"]);
    assert_eq!(fs::metadata(&reserve).unwrap().len(), 1 << 20);
}

/// Everything below a directory, and itself, with its owner.
fn owners(path: &Path) -> Vec<(String, u32)> {
    let metadata = fs::symlink_metadata(path).unwrap();
    let mut found = vec![(path.display().to_string(), metadata.uid())];
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            found.extend(owners(&entry.unwrap().path()));
        }
    }
    found
}

#[test]
fn what_root_makes_in_a_repository_belongs_to_the_server() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let home = stage.cluster.create_dir("home").unwrap();
    let repository = home.join("not/yet/there");
    let pgdata = stage.pgdata();
    let as_root = |arguments: &[&str]| {
        let url = format!("file://{}", repository.display());
        let words = [stage.program.display().to_string(), url];
        let words = [words[0].as_str(), words[1].as_str()];
        let script =
            r#"program=$1 url=$2; shift 2; exec "$program" --repo "$url" --cluster main "$@""#;
        let mut command = namespace::with_own_mounts(script, &words);
        let output = command.args(arguments).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {log}");
    };
    let server = fs::metadata(&pgdata).unwrap().uid();
    let require_owner = |act: &str| {
        for (path, owner) in owners(&home.join("not")) {
            assert_eq!(owner, server, "{act} by root: {path}");
        }
    };
    as_root(&["init", "--pgdata", &pgdata]);
    require_owner("init");
    assert!(repository.join("main/cluster").exists());
    // The first segment is finished, and the next one has begun.
    let sql = |script: &str| stage.cluster.sql("postgres", script).unwrap();
    sql("CREATE TABLE t (id int)");
    sql("SELECT pg_switch_wal()");
    sql("INSERT INTO t VALUES (1)");
    let segment = "000000010000000000000001";
    let wal = Path::new(&pgdata).join("pg_wal").join(segment);
    as_root(&["archive-push", &wal.display().to_string()]);
    require_owner("archive-push");
    assert!(repository.join("main/wal/00000001").join(segment).exists());
    // The server's user goes on where root has been.
    let url = format!("file://{}", repository.display());
    stage.ok(&["--repo", &url, "backup", "--pgdata", &pgdata]);
    as_root(&["expire", "--keep-full", "1"]);
    require_owner("expire");
}

#[test]
fn a_merge_without_room_leaves_the_reserve_to_removals() {
    let stage = Stage::silent(Cluster::builder(Major::V15), Store::Directory);
    let label = |kind: &str| {
        let made = stage.backup(&["--type", kind]);
        support::text(&made, "/label").to_owned()
    };
    let [oldest, full, child] = ["full", "full", "incr"].map(label);
    let small = stage.cluster.create_dir("small").unwrap();
    let output = script_on_a_full_disk(&stage, &small, EXPIRIES, &[]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {said}{log}", output.status);
    let lines: Vec<&str> = said.lines().collect();
    let laid_up = 1 << 20;
    for (line, time) in lines.iter().zip(["first", "second"]) {
        let expected = format!("{time} merge: 15, laid up: {laid_up}");
        assert_eq!(*line, expected, "{said}{log}");
    }
    assert!(log.contains("a merge needs room"), "{log}");
    assert!(log.contains("--keep-full or --keep-within alone"), "{log}");
    assert_eq!(lines[2], "removal: 0", "{said}{log}");
    let left = [full, child].map(|label| format!("{label}/manifest"));
    assert_eq!(lines[3..], left, "{oldest} is gone: {said}{log}");
}
