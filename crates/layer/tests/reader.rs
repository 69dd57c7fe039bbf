//! The second reader, written from `docs/FORMAT.md` in another language, restores
//! the golden layers to the files that were stored.

#![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pgstrata_layer::entry::EntryKind;
use support::sample::{self, Files};

/// Variants that Python's standard library can read.
const VARIANTS: [&str; 2] = ["none", "lz4"];

fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn run_reader(repository: &Path, what: &str, target: &Path) -> Output {
    Command::new("python3")
        .arg("-B")
        .arg(tests_folder().join("reader/read_layer.py"))
        .args([
            repository.as_os_str(),
            "main".as_ref(),
            what.as_ref(),
            target.as_ref(),
        ])
        .output()
        .expect("python3 must be installed to run the second reader")
}

fn assert_restored(target: &Path, files: &Files) {
    for (path, file) in files {
        let place = target.join(path);
        let found = fs::metadata(&place).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, file.mode, "{path}");
        if file.kind == EntryKind::Directory {
            assert!(found.is_dir(), "{path}");
        } else {
            assert!(
                fs::read(&place).unwrap() == file.bytes,
                "{path} is not what was stored"
            );
        }
    }
    let dropped = target.join("base/5/16400");
    assert_eq!(dropped.exists(), files.contains_key("base/5/16400"));
}

#[test]
fn the_second_reader_restores_the_golden_layers() {
    let layers = [
        (sample::FULL, sample::files_of_full()),
        (sample::INCREMENTAL, sample::files_of_incremental()),
    ];
    for variant in VARIANTS {
        for (label, files) in &layers {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("restored");
            let output = run_reader(&tests_folder().join("golden").join(variant), label, &target);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert_restored(&target, files);
            let control = fs::read(target.join("global/pg_control")).unwrap();
            assert_eq!(
                (control.len(), &control[..4]),
                (8192, &[0xF2, 0xC1, 0xA9, 0][..])
            );
        }
    }
}

#[test]
fn the_second_reader_stands_children_on_merged_layers() {
    for label in [sample::MERGED, sample::CHILD] {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("restored");
        let output = run_reader(&tests_folder().join("golden/merged"), label, &target);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_restored(&target, &sample::files_of_incremental());
    }
}

#[test]
fn the_second_reader_reads_a_layer_that_names_one_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("restored");
    let output = run_reader(
        &tests_folder().join("golden/beside"),
        sample::BESIDE,
        &target,
    );
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_restored(&target, &sample::files_of_full());
}

#[test]
fn the_second_reader_takes_paths_for_bytes_until_they_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    let (objects, files) = sample::letters_repository();
    for (key, bytes) in objects {
        let path = repository.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let target = folder.path().join("restored");
    let output = run_reader(&repository, sample::FULL, &target);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_restored(&target, &files);
}

/// In the place of its manifest, a layer that was merged and removed may have left a record that it is gone.
#[test]
fn the_second_reader_takes_an_abandonment_record_for_no_layer() {
    let folder = tempfile::tempdir().unwrap();
    for variant in ["merged", "work"] {
        let golden = tests_folder().join("golden").join(variant).join("main");
        let copied = Command::new("cp")
            .arg("-r")
            .args([golden.as_path(), folder.path()])
            .status();
        assert!(copied.unwrap().success());
    }
    let target = folder.path().join("restored");
    let output = run_reader(folder.path(), sample::CHILD, &target);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_restored(&target, &sample::files_of_incremental());
    let target = folder.path().join("none");
    let output = run_reader(folder.path(), sample::INCREMENTAL, &target);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("no layer"),
        "{said}"
    );
}

#[test]
fn the_second_reader_reads_wal() {
    let golden = tests_folder().join("golden/lz4");
    let history = run_reader(&golden, "wal", Path::new(sample::HISTORY));
    assert_eq!(
        String::from_utf8_lossy(&history.stdout),
        sample::HISTORY_TEXT
    );
    let segment = run_reader(&golden, "wal", Path::new(sample::SEGMENT));
    assert!(
        segment.stdout == sample::segment(),
        "{}",
        String::from_utf8_lossy(&segment.stderr)
    );
}

#[test]
fn the_second_reader_knows_what_is_pinned_and_which_wal_was_given_up() {
    let read = |folder: &Path, now: &str| {
        let what = format!("kept:{}", sample::FULL);
        let output = run_reader(folder, &what, Path::new(now));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let golden = tests_folder().join("golden/kept");
    let shown = read(&golden, "2026-12-01T00:00:00Z");
    assert_eq!(shown["pin"], serde_json::Value::Null, "it was taken back");
    assert_eq!(shown["annotations"], serde_json::json!({}));
    assert_eq!(shown["promised_from"], 0x1600_0028);
    let stays = serde_json::json!([[1, 3], [1, 22], [1, 23], [2, 7], [2, 8], [2, 22], [2, 23]]);
    assert_eq!(shown["stays"], stays);
    // Without the last two marks.
    let folder = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .args([golden.join("main").as_path(), folder.path()])
        .status();
    assert!(copied.unwrap().success());
    for number in ["000002", "000003"] {
        let mark = folder.path().join("main/mark").join(sample::FULL);
        fs::remove_file(mark.join(number)).unwrap();
    }
    let shown = read(folder.path(), "2026-12-01T00:00:00Z");
    assert_eq!(shown["pin"]["note"], "before the move");
    assert_eq!(shown["annotations"]["ticket"], "DB-1042");
    let later = read(folder.path(), "2027-02-01T00:00:00Z");
    assert_eq!(later["pin"], serde_json::Value::Null);
}
