//! Restores that several processes make: the files are those of an ordinary restore, whoever makes them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pgstrata_engine::error::{Kind, Result};
use pgstrata_engine::progress::Progress;
use pgstrata_engine::repository::Repository;
use pgstrata_engine::repository::fault::{Fault, FaultStore};
use pgstrata_engine::restore::{
    self, HelpOptions, MARKER, Method, RestoreOptions, RestoreReport, ShareMade,
};
use pgstrata_engine::shares::SharedOptions;
use pgstrata_layer::keys::ClusterName;
use restore_common::{chain_of_three, options};
use serde_json::Value;

const SHARES: SharedOptions = SharedOptions {
    count: 4,
    timeout: Duration::from_secs(60),
};

async fn restore_with(
    repository: &Repository,
    cluster: &ClusterName,
    options: RestoreOptions,
) -> Result<RestoreReport> {
    let plan = restore::plan(repository, cluster, options).await?;
    restore::execute(repository, &plan, &Progress::default()).await
}

fn shared(directory: &Path) -> RestoreOptions {
    RestoreOptions {
        shares: Some(SHARES),
        ..options(directory)
    }
}

/// Mode and contents by path; contents are `None` for directories.
type Tree = BTreeMap<String, (u32, Option<Vec<u8>>)>;

fn tree(root: &Path) -> Tree {
    let (mut tree, mut waiting) = (Tree::new(), vec![root.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(root).unwrap().display().to_string();
            let found = fs::symlink_metadata(&path).unwrap();
            let contents = found.is_file().then(|| fs::read(&path).unwrap());
            if found.is_dir() {
                waiting.push(path);
            }
            tree.insert(below, (found.permissions().mode(), contents));
        }
    }
    tree
}

/// What `backup_manifest` says of each file: size and checksum.
fn listed(tree: &mut Tree) -> BTreeSet<String> {
    let (_, text) = tree.remove("backup_manifest").unwrap();
    let manifest: Value = serde_json::from_slice(&text.unwrap()).unwrap();
    let files = manifest["Files"].as_array().unwrap().iter();
    files
        .map(|file| format!("{} {} {}", file["Path"], file["Size"], file["Checksum"]))
        .collect()
}

fn assert_same(one: &Path, other: &Path) {
    let (mut one, mut other) = (tree(one), tree(other));
    assert_eq!(listed(&mut one), listed(&mut other));
    let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&one), names(&other));
    for (path, found) in &one {
        assert!(other[path] == *found, "{path} differs");
    }
}

fn assert_counts_add_up(report: &RestoreReport) {
    let numbers = report.shares.iter().map(|share| share.number);
    assert!(numbers.eq(0..u32::try_from(report.shares.len()).unwrap()));
    let sum = |count: fn(&ShareMade) -> u64| report.shares.iter().map(count).sum::<u64>();
    assert!(report.shares.len() > 1, "{:?}", report.shares);
    assert!(sum(|share| share.files) < report.files);
    assert_eq!(sum(|share| share.written_bytes), report.written_bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_restore_gives_the_files_of_an_ordinary_one() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let (alone, target) = (scratch.path().join("alone"), scratch.path().join("data"));
    let ordinary = made.restore(&repository, &alone, None).await.unwrap();
    assert!(ordinary.shares.is_empty());
    let report = restore_with(&repository, &made.cluster, shared(&target))
        .await
        .unwrap();
    assert_counts_add_up(&report);
    assert_eq!(report.files, ordinary.files);
    assert_eq!(report.pages, ordinary.pages);
    assert_eq!(report.written_bytes, ordinary.written_bytes);
    assert!(
        report
            .notes
            .iter()
            .all(|note| ordinary.notes.contains(note))
    );
    assert_same(&target, &alone);
}

#[tokio::test(flavor = "multi_thread")]
async fn helpers_change_nothing_in_what_is_restored() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let (alone, target) = (scratch.path().join("alone"), scratch.path().join("data"));
    made.restore(&repository, &alone, None).await.unwrap();
    for round in 0..8 {
        let help = |_| {
            let (repository, cluster) = (repository.clone(), made.cluster.clone());
            let options = HelpOptions {
                directory: target.clone(),
                jobs: 2,
                timeout: Duration::ZERO,
            };
            tokio::spawn(async move {
                // It may ask too early, or too late: most rounds have a helper that does neither.
                for _ in 0..200 {
                    let progress = Progress::default();
                    match restore::help(&repository, &cluster, &options, progress).await {
                        Ok(report) => return Ok(report.made),
                        Err(error) if error.kind() == Kind::NotFound => {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(Vec::new())
            })
        };
        let helpers: Vec<_> = (0..2).map(help).collect();
        let report = restore_with(&repository, &made.cluster, shared(&target)).await;
        assert_counts_add_up(&report.unwrap());
        assert_same(&target, &alone);
        for helper in helpers {
            if let Err(error) = helper.await.unwrap() {
                // Between two looks of a helper the directory came, or went.
                let kinds = [Kind::File, Kind::Refused];
                assert!(kinds.contains(&error.kind()), "round {round}: {error}");
            }
        }
        assert_same(&target, &alone);
        fs::remove_dir_all(&target).unwrap();
    }
}

/// CORRECTNESS 10: on failure `pg_control` is absent; the same restore, shared or not, completes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_restore_that_fails_anywhere_cannot_be_started() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    let whole = Repository::with_store(memory.clone());
    let made = chain_of_three(&whole).await;
    let scratch = tempfile::tempdir().unwrap();
    let alone = scratch.path().join("alone");
    made.restore(&whole, &alone, None).await.unwrap();
    let mut failures = 0;
    for nth in 0.. {
        let target = scratch.path().join(format!("data{nth}"));
        let store = FaultStore::failing_at(nth, Fault::Before, memory.clone());
        let faulty = Repository::with_store(store);
        let outcome = restore_with(&faulty, &made.cluster, shared(&target)).await;
        if outcome.is_ok() {
            assert_same(&target, &alone);
            break;
        }
        failures += 1;
        assert!(!target.join("global/pg_control").exists());
        if target.exists() {
            assert!(target.join(MARKER).exists(), "operation {nth} failed");
        }
        let again = match nth % 2 {
            0 => shared(&target),
            _ => options(&target),
        };
        restore_with(&whole, &made.cluster, again).await.unwrap();
        assert_same(&target, &alone);
        fs::remove_dir_all(&target).unwrap();
    }
    assert!(failures > 10, "{failures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_methods_are_not_shared() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    for method in [Method::Delta, Method::OldestFirst] {
        let options = RestoreOptions {
            method,
            ..shared(&scratch.path().join("data"))
        };
        let refused = restore::plan(&repository, &made.cluster, options).await;
        assert_eq!(refused.unwrap_err().kind(), Kind::Usage);
    }
}
