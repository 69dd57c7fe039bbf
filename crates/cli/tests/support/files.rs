//! Files in directories: copied, made older, compared byte for byte.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Names that differ between any two copies of a cluster: they describe one run of a server.
const OF_ONE_RUN: [&str; 4] = ["pg_control", "postmaster.pid", "postmaster.opts", "pg_stat"];

/// Everything below the directories that hold relations and transaction status.
fn comparable(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let parts = [
        "base",
        "global",
        "pg_tblspc",
        "pg_xact",
        "pg_multixact",
        "pg_commit_ts",
        "pg_twophase",
    ];
    for part in parts {
        collect(root, part, &mut found);
    }
    found.insert("PG_VERSION".to_owned());
    found.insert("postgresql.conf".to_owned());
    found
}

/// Follows links: those of tablespaces lead out of the data directory.
fn collect(root: &Path, below: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("{below}/{name}");
        let left_out = OF_ONE_RUN.contains(&name.as_str())
            || name.starts_with("pg_internal.init")
            || name.starts_with("pgsql_tmp");
        if left_out {
            continue;
        }
        if fs::metadata(root.join(&path)).unwrap().is_dir() {
            collect(root, &path, found);
        } else {
            found.insert(path);
        }
    }
}

/// Whether the file belongs to an unlogged relation, of which a backup keeps the init fork alone.
fn is_emptied(path: &str, all: &BTreeSet<String>) -> bool {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let number: String = name.chars().take_while(char::is_ascii_digit).collect();
    !number.is_empty()
        && !name.ends_with("_init")
        && all.contains(&format!("{directory}/{number}_init"))
}

/// Copies as cp(1) does, with owners and times: into `to` when that is a directory.
pub fn copy_all(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// Changes a bit of the byte that `at` chooses by the file's length.
pub fn flip(path: &Path, at: impl FnOnce(usize) -> usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = at(bytes.len());
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Every file below `directory` is from then, as date(1) says it.
pub fn age(directory: &Path, when: &str) {
    let mut touch = Command::new("find");
    touch.arg(directory);
    touch.args(["-type", "f", "-exec", "touch", "-d", when, "{}", "+"]);
    assert!(touch.status().unwrap().success());
}

/// Fails unless both directories hold the same files with the same bytes; returns how many bytes
/// were compared.
pub fn require_same_files(source: &Path, restored: &Path) -> u64 {
    let (left, right) = (comparable(source), comparable(restored));
    let expected: BTreeSet<String> = left
        .iter()
        .filter(|path| !is_emptied(path, &left))
        .cloned()
        .collect();
    let missing: Vec<_> = expected.difference(&right).collect();
    let extra: Vec<_> = right.difference(&expected).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "missing from the restored directory: {missing:?}; only there: {extra:?}"
    );
    let mut compared = 0;
    for path in &expected {
        let one = fs::read(source.join(path)).unwrap();
        let other = fs::read(restored.join(path)).unwrap();
        assert_eq!(one.len(), other.len(), "sizes of {path} differ");
        if let Some(at) = (0..one.len()).find(|&at| one[at] != other[at]) {
            panic!(
                "{path} differs in byte {at}, offset {} of block {}",
                at % 8192,
                at / 8192
            );
        }
        compared += one.len();
    }
    u64::try_from(compared).unwrap()
}

/// Names of the whole segments in a directory of the archive, in order.
pub fn segments(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.len() == 24).collect();
    names.sort();
    names
}
