//! The archive of a mirror: what of it is durable, and what its records say of the WAL that it lacks.

use std::fs;
use std::path::{Path, PathBuf};

use super::support::{Stage, Store, files, number, process, text};
use super::{at, copy, other, stage};

const WAL: &str = "main/wal/00000001";

/// A copy that was killed may have linked a segment whose name nobody has made durable.
#[test]
fn a_copy_syncs_the_directories_of_wal_and_records_that_it_finds() {
    let stage = stage(Store::Directory);
    stage.archive_all();
    let (to, directory) = other(&stage, "mirror");
    copy(&stage, &to, &[]);
    let told = stage.cluster.create_dir("told").unwrap().join("synced");
    let mut again = stage.command(&["copy", "--to", &to]);
    again
        .env("LD_PRELOAD", process::provoker(&stage))
        .env("SYNCED", &told);
    let output = again.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let synced = fs::read_to_string(told).unwrap_or_default();
    let wal = fs::canonicalize(directory.join(WAL)).unwrap();
    let wal = wal.display().to_string();
    assert!(synced.lines().any(|line| line == wal), "{wal}: {synced}");
}

/// Three full layers with WAL between them.
fn three_layers() -> Stage {
    let stage = stage(Store::Directory);
    for _ in 0..2 {
        between(&stage);
        stage.backup(&["--type", "full"]);
    }
    stage
}

fn between(stage: &Stage) {
    for _ in 0..4 {
        let sql = "SELECT pg_create_restore_point('between')";
        stage.cluster.sql("postgres", sql).unwrap();
        stage.archive_all();
    }
}

fn give_up(stage: &Stage, layers: &str) {
    stage.ok(&["expire", "--keep-full", layers, "--keep-wal", "0d"]);
    assert_eq!(released(&stage.objects()), 1);
}

/// How many records of WAL given up there are.
fn released(root: &Path) -> usize {
    fs::read_dir(root.join("main/wal-released")).map_or(0, Iterator::count)
}

fn segments(root: &Path) -> Vec<PathBuf> {
    let directory = root.join(WAL);
    let names = files::segments(&directory).into_iter();
    names.map(|name| directory.join(name)).collect()
}

#[test]
fn a_mirror_that_has_lost_wal_is_not_told_that_the_source_has_given_it_up() {
    let stage = three_layers();
    let (to, directory) = other(&stage, "mirror");
    copy(&stage, &to, &[]);
    let whole = segments(&directory);
    give_up(&stage, "3");
    let kept = segments(&stage.objects());
    let name = |path: &PathBuf| path.file_name().unwrap().to_owned();
    let is_kept = |path: &PathBuf| kept.iter().any(|kept| name(kept) == name(path));
    let gone = whole.iter().filter(|path| !is_kept(path));
    let gone: Vec<_> = gone.filter(|path| name(path) > name(&kept[0])).collect();
    assert!(gone.len() > 2, "{whole:?}, {kept:?}");
    // It has all of it.
    let report = copy(&stage, &to, &[]);
    assert_eq!((number(&report, "/records"), released(&directory)), (0, 0));
    at(&stage, &to, &["verify"]);
    fs::remove_file(gone[1]).unwrap();
    // What is missing for a moment may be on its way.
    files::age(&directory.join("main/wal"), "1 hour ago");
    for _ in 0..2 {
        let report = copy(&stage, &to, &[]);
        assert_eq!((number(&report, "/records"), released(&directory)), (0, 0));
        let verify = ["--repo", &to, "--output", "json", "verify"];
        let output = stage.run(&verify);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_ne!(output.status.code(), Some(0), "{said}");
        let lost = name(gone[1]).into_string().unwrap();
        assert!(said.contains(&lost), "{lost}: {said}");
    }
}

#[test]
fn a_mirror_that_never_got_wal_is_told_that_the_source_has_given_it_up() {
    let stage = three_layers();
    let (to, behind) = other(&stage, "behind");
    copy(&stage, &to, &[]);
    between(&stage);
    let last = stage.backup(&["--type", "full"]);
    give_up(&stage, "4");
    let (fresh, directory) = other(&stage, "new");
    for (to, directory) in [(&to, &behind), (&fresh, &directory)] {
        let report = copy(&stage, to, &[]);
        assert_eq!(released(directory), 1, "{report:#}");
        at(&stage, to, &["verify"]);
        let info = at(&stage, to, &["info"]);
        let layers = info["layers"].as_array().unwrap();
        assert_eq!(
            text(layers.last().unwrap(), "/label"),
            text(&last, "/label")
        );
    }
}
