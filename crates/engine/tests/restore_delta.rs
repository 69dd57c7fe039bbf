//! Restores onto what is there, and layer over layer: the same bytes as a restore into an empty directory, and no more
//! fetched and written than must be.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pgstrata_engine::restore::{self, ArchiveMode, MARKER, Method, RestoreReport, Target};
use pgstrata_engine::server::lineage;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::Tablespace;
use pgstrata_pgdata::ControlFile;
use pgstrata_store::catalog::{self, StoreTime};
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use pgstrata_store::repository::{Repository, RepositoryOptions};
use restore_common::there::{cancelled, in_place, tree};
use restore_common::{Made, chain, chain_of_three, generations, options, pages, settled};
use tempfile::TempDir;

async fn restore(
    repository: &Repository,
    made: &Made,
    (directory, method): (&Path, Method),
    label: Option<&Label>,
) -> Result<RestoreReport> {
    let mut options = options(directory);
    options.method = method;
    options.label = label.cloned();
    let plan = restore::plan(&made.within(repository), options).await?;
    restore::execute(&plan, &Progress::default()).await
}

/// A chain, and its newest state in a directory of its own.
async fn restored(repository: &Repository) -> (Made, TempDir, PathBuf) {
    let made = chain_of_three(repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    restore(repository, &made, (&target, Method::Overlay), None)
        .await
        .unwrap();
    (made, scratch, target)
}

fn assert_same(left: &Path, right: &Path) {
    let (left, right) = (tree(left), tree(right));
    assert_eq!(
        left.keys().collect::<Vec<_>>(),
        right.keys().collect::<Vec<_>>()
    );
    for (path, contents) in &left {
        assert!(contents == &right[path], "{path} differs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_layer_can_be_restored_in_place_over_every_other() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let fresh = |label: &Label| scratch.path().join(label.as_str());
    for label in &made.labels {
        let to = (fresh(label), Method::Overlay);
        restore(&repository, &made, (&to.0, to.1), Some(label))
            .await
            .unwrap();
    }
    let first = (target.as_path(), Method::Overlay);
    restore(&repository, &made, first, Some(&made.labels[0]))
        .await
        .unwrap();
    let delta = (target.as_path(), Method::Delta);
    for at in [2, 0, 1, 2, 1, 0] {
        let label = &made.labels[at];
        let report = restore(&repository, &made, delta, Some(label))
            .await
            .unwrap();
        assert!(report.read_bytes > 0);
        assert_same(&target, &fresh(label));
    }
}

/// A misspelt directory does not become a second cluster.
#[tokio::test(flavor = "multi_thread")]
async fn where_no_cluster_is_none_is_changed_in_place() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    for there in [false, true] {
        if there {
            fs::create_dir(&target).unwrap();
        }
        let delta = (target.as_path(), Method::Delta);
        let error = restore(&repository, &made, delta, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(error.to_string().contains("absent or empty"), "{error}");
        assert!(error.hint_text().unwrap().contains("--delta"), "{error}");
        assert_eq!(target.exists(), there);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_right_is_neither_fetched_nor_written() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let all = restore(&repository, &made, (&target, Method::Overlay), None)
        .await
        .unwrap();
    let delta = (target.as_path(), Method::Delta);
    let report = restore(&repository, &made, delta, None).await.unwrap();
    // postgresql.auto.conf alone differs: recovery settings were put into it.
    assert_eq!((report.pages, report.frames), (1, 1));
    assert!(report.written_bytes < 100, "{}", report.written_bytes);
    assert!(report.fetched_bytes < 1000 && all.fetched_bytes > 10_000);
    made.assert_restored(&target);

    // One page of a large file: one frame of three pages is fetched for it.
    let file = target.join("base/5/60");
    let mut contents = fs::read(&file).unwrap();
    contents[7 * 8192 + 100] ^= 1;
    fs::write(&file, &contents).unwrap();
    let report = restore(&repository, &made, delta, None).await.unwrap();
    assert_eq!((report.pages, report.frames), (2, 2));
    assert!(
        report.written_bytes < 8192 + 100,
        "{}",
        report.written_bytes
    );
    made.assert_restored(&target);
}

/// mtime and size say nothing: contents do.
#[tokio::test(flavor = "multi_thread")]
async fn times_are_not_trusted_and_strays_go() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let (fresh, target) = (scratch.path().join("fresh"), scratch.path().join("data"));
    for to in [&fresh, &target] {
        restore(&repository, &made, (to, Method::Overlay), None)
            .await
            .unwrap();
    }
    let time = fs::metadata(target.join("base/5/10"))
        .unwrap()
        .modified()
        .unwrap();
    for path in ["base/5/10", "pg_note"] {
        let mut contents = fs::read(target.join(path)).unwrap();
        contents[8192] ^= 0xff;
        fs::write(target.join(path), &contents).unwrap();
        let file = fs::File::options()
            .write(true)
            .open(target.join(path))
            .unwrap();
        file.set_modified(time).unwrap();
    }
    // Pages where zeros belong, a file too long, one too short, one missing, and what does not belong at all.
    fs::write(target.join("base/5/30"), vec![3; 64 * 8192]).unwrap();
    fs::write(target.join("base/5/40"), vec![1; 5 * 8192]).unwrap();
    fs::write(target.join("base/5/60"), vec![1; 100]).unwrap();
    fs::remove_file(target.join("base/5/20")).unwrap();
    for path in [
        "standby.signal",
        "base/5/stray",
        "pg_replslot/slot",
        "pg_wal/old",
    ] {
        fs::write(target.join(path), b"x").unwrap();
    }
    fs::create_dir_all(target.join("base/77/deep")).unwrap();
    fs::write(target.join("base/77/deep/file"), b"x").unwrap();
    let outside = scratch.path().join("outside");
    fs::write(&outside, b"precious").unwrap();
    symlink(&outside, target.join("base/5/link")).unwrap();
    // Part of a copy made with hard links: its other name must keep what it has.
    let copy = scratch.path().join("copy");
    fs::hard_link(target.join("base/5/50"), &copy).unwrap_or_else(|_| {
        fs::hard_link(target.join("base/5/60"), &copy).unwrap();
    });
    let before = fs::read(&copy).unwrap();
    let report = restore(&repository, &made, (&target, Method::Delta), None)
        .await
        .unwrap();
    assert!(report.removed >= 8, "{}", report.removed);
    assert_same(&target, &fresh);
    assert_eq!(fs::read(&outside).unwrap(), b"precious");
    assert_eq!(fs::read(&copy).unwrap(), before);
    // What backup_manifest says is the same too, times of the restore's own files aside.
    let sums = |root: &Path| {
        let text = fs::read_to_string(root.join("backup_manifest")).unwrap();
        let lines = text.lines().filter(|line| line.contains("base/"));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sums(&target), sums(&fresh));
}

/// Whether an error says that no server can be started from the directory, and what to do.
fn says_taken_apart(error: &Error) -> bool {
    let what = "cannot be started until a restore with --delta has completed";
    let hint = error.hint_text().unwrap_or_default();
    error.to_string().contains(what) && hint.contains("restore another layer (LABEL --delta)")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_that_fails_anywhere_cannot_be_started_and_is_completed_by_another() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    let repository = Repository::with_store(memory.clone());
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let (first, last) = (&made.labels[0], &made.labels[2]);
    let fresh = scratch.path().join("fresh");
    restore(&repository, &made, (&fresh, Method::Overlay), Some(last))
        .await
        .unwrap();
    let (mut failures, mut begun) = (0, 0);
    for nth in 0.. {
        let target = scratch.path().join(format!("data{nth}"));
        restore(&repository, &made, (&target, Method::Overlay), Some(first))
            .await
            .unwrap();
        let store = FaultStore::failing_at(nth, Fault::Before, memory.clone());
        let faulty = Repository::with_store(store.clone());
        let delta = (target.as_path(), Method::Delta);
        let outcome = restore(&faulty, &made, delta, Some(last)).await;
        let Err(error) = outcome else {
            assert_same(&target, &fresh);
            if store.operation_count() <= nth {
                break;
            }
            // What failed was not needed.
            fs::remove_dir_all(&target).unwrap();
            continue;
        };
        failures += 1;
        let is_begun = target.join(MARKER).exists();
        assert_eq!(says_taken_apart(&error), is_begun, "{error}");
        if is_begun {
            begun += 1;
            assert!(!target.join("global/pg_control").exists());
            // Only a restore in place may go on from here: it knows that this was a cluster of somebody's.
            let error = restore(&repository, &made, (&target, Method::Overlay), Some(last))
                .await
                .unwrap_err();
            assert_eq!(error.kind(), Kind::Refused);
            assert!(error.hint_text().unwrap().contains("--delta"));
        } else {
            assert!(target.join("global/pg_control").exists());
        }
        restore(&repository, &made, delta, Some(last))
            .await
            .unwrap();
        assert_same(&target, &fresh);
        fs::remove_dir_all(&target).unwrap();
    }
    // What planning has read is not read again, so most fail before anything is changed; how many of the few
    // others are met depends on who reads ahead.
    assert!(failures > 10 && begun > 0, "{failures} {begun}");
}

/// There is no server of which a backup could be taken.
#[tokio::test(flavor = "multi_thread")]
async fn damage_that_a_delta_meets_in_its_middle_calls_for_no_backup() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    // All of it is to be fetched, and none of it can be decoded.
    fs::write(target.join("base/5/60"), vec![1; 8192]).unwrap();
    let keys = made.pack_keys(&repository).await;
    let newest = made.labels[2].as_str();
    let key = keys.iter().find(|key| key.contains(newest)).unwrap();
    let size = repository.get(key).await.unwrap().len();
    let damaged = made
        .copy_with_flipped_byte(&repository, key, size / 2)
        .await;
    let delta = (target.as_path(), Method::Delta);
    let error = restore(&damaged, &made, delta, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(says_taken_apart(&error), "{error:?}");
    let hint = error.hint_text().unwrap();
    assert!(!hint.contains("full backup"), "{hint}");
    restore(&repository, &made, delta, None).await.unwrap();
    made.assert_restored(&target);
}

/// What version 15 calls its directory in that of a tablespace.
const VERSION: &str = "PG_15_202209061";

/// A layer with a tablespace in that directory.
async fn with_tablespace(repository: &Repository, space: &Path) -> Made {
    let location = Some(space.display().to_string());
    let oid = 16402;
    let mut files = generations()[2].clone();
    let version = format!("pg_tblspc/{oid}/{VERSION}");
    for directory in [version.clone(), format!("{version}/5")] {
        files.insert(directory, None);
    }
    files.insert(format!("{version}/5/70"), Some(pages(4, 3)));
    let made = chain(repository, &[files], &[Tablespace { oid, location }], None).await;
    let control = ControlFile::parse(&made.pg_control).unwrap();
    assert!(VERSION.ends_with(&control.catalog_version.to_string()));
    made
}

/// As after pg_upgrade.
fn put_another_version(space: &Path) -> PathBuf {
    let other = space.join("PG_18_202506291/5/1");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::write(&other, b"precious").unwrap();
    other
}

/// The data directory was moved away, and the marker in the directory of its tablespace stayed.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_delta_left_beside_the_data_directory_is_not_cleared() {
    let repository = Repository::memory();
    let scratch = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(scratch.path()).unwrap();
    let (target, aside, space) = (root.join("data"), root.join("aside"), root.join("space"));
    let made = with_tablespace(&repository, &space).await;
    let fresh = (target.as_path(), Method::Overlay);
    restore(&repository, &made, fresh, None).await.unwrap();
    let other = put_another_version(&space);
    let plan = restore::plan(&made.within(&repository), in_place(&target)).await;
    let plan = plan.unwrap();
    restore::execute(&plan, &cancelled()).await.unwrap_err();
    let left = tree(&space);
    assert!(left.contains_key(MARKER) && left.contains_key(VERSION));

    fs::rename(&target, &aside).unwrap();
    let error = restore(&repository, &made, fresh, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains("incomplete restore"), "{error}");
    let hint = error.hint_text().unwrap();
    for words in ["--delta", "--tablespace-map=16402="] {
        assert!(hint.contains(words), "{words}: {hint}");
    }
    assert!(tree(&space) == left && !target.exists());

    fs::rename(&aside, &target).unwrap();
    let delta = (target.as_path(), Method::Delta);
    restore(&repository, &made, delta, None).await.unwrap();
    made.assert_restored(&target);
    assert_eq!(fs::read(&other).unwrap(), b"precious");
}

/// It was given up, and another version has used the directory since.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_restore_is_given_nothing_but_its_own_version_of_a_tablespace() {
    let repository = Repository::memory();
    let scratch = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(scratch.path()).unwrap();
    let (target, space) = (root.join("data"), root.join("space"));
    let made = with_tablespace(&repository, &space).await;
    let plan = restore::plan(&made.within(&repository), options(&target)).await;
    let plan = plan.unwrap();
    restore::execute(&plan, &cancelled()).await.unwrap_err();
    let half = space.join(VERSION).join("5/half");
    fs::create_dir_all(half.parent().unwrap()).unwrap();
    fs::write(&half, b"x").unwrap();
    let other = put_another_version(&space);
    let before = settled(|| tree(&root));
    let fresh = (target.as_path(), Method::Overlay);
    let error = restore(&repository, &made, fresh, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains("PG_18"), "{error}");
    assert!(tree(&root) == before);

    fs::rename(other.ancestors().nth(2).unwrap(), root.join("elsewhere")).unwrap();
    restore(&repository, &made, fresh, None).await.unwrap();
    made.assert_restored(&target);
    assert!(!half.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_clusters_and_running_servers_are_refused_and_left_alone() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    let delta = (target.as_path(), Method::Delta);
    let refused = async |why: &str| {
        let before = tree(&target);
        let error = restore(&repository, &made, delta, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(before == tree(&target), "{why}");
    };
    let pid = target.join("postmaster.pid");
    let mut sleep = std::process::Command::new("sleep");
    let mut server = sleep.arg("600").current_dir(&target).spawn().unwrap();
    fs::write(&pid, format!("{}\n/data\n", server.id())).unwrap();
    refused("runs in").await;
    server.kill().unwrap();
    server.wait().unwrap();
    refused("may be running").await;
    fs::remove_file(&pid).unwrap();

    for name in [
        "0000000100000000000000F0",
        "0000000100000000000000F1.partial",
        "00000007.history",
    ] {
        let ready = target.join(format!("pg_wal/archive_status/{name}.ready"));
        fs::write(&ready, b"").unwrap();
        fs::write(target.join("pg_wal").join(name), b"x").unwrap();
        refused(&format!("never archived, the first is {name}")).await;
        fs::remove_file(&ready).unwrap();
    }

    let control = target.join("global/pg_control");
    let ours = fs::read(&control).unwrap();
    let other = include_bytes!("../../pgdata/tests/golden/16/pg_control_production");
    fs::write(&control, other).unwrap();
    refused("another cluster").await;
    fs::remove_file(&control).unwrap();
    refused("not empty").await;
    fs::write(&control, &ours).unwrap();
    // The stale file of a server that was killed does not count when somebody says so.
    fs::write(&pid, "999999999\n/data\n").unwrap();
    refused("may be running").await;
    let mut options = in_place(&target);
    options.vouched.server_is_stopped = true;
    let plan = restore::plan(&made.within(&repository), options).await;
    let progress = Progress::default();
    restore::execute(&plan.unwrap(), &progress).await.unwrap();
    made.assert_restored(&target);
    assert!(!pid.exists());
}

/// PostgreSQL writes values in the encoding of whoever set them, so the lines here are not UTF-8.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_is_refreshed_keeps_its_primary() {
    let repository = Repository::memory();
    let (made, scratch, target) = restored(&repository).await;
    let conf = target.join("postgresql.auto.conf");
    let primary = b"primary_conninfo = 'host=p application_name=m\xfcller'".as_slice();
    let slot = b"primary_slot_name = 'own' # f\xfcr beide".as_slice();
    let other = b"work_mem = 1 # \xfc\n".as_slice();
    fs::write(&conf, [other, primary, b"\n"].concat()).unwrap();
    fs::write(target.join("postgresql.conf"), "include 'slot.conf'\n").unwrap();
    fs::write(target.join("slot.conf"), slot).unwrap();
    let cluster = made.within(&repository);
    let mut delta = in_place(&target);
    let cancelled = cancelled();
    // Interrupted, with another target first, and run again, it still knows.
    for to in [Target::Immediate, Target::Standby] {
        delta.target = to;
        let plan = restore::plan(&cluster, delta.clone()).await.unwrap();
        restore::execute(&plan, &cancelled).await.unwrap_err();
        assert!(!target.join("slot.conf").exists());
        fs::write(&conf, "").unwrap();
    }
    let follows_nobody = "no primary_conninfo";
    let notes = async |options| {
        let plan = restore::plan(&cluster, options).await.unwrap();
        let report = restore::execute(&plan, &Progress::default()).await;
        report.unwrap().notes.join("\n")
    };
    let said = notes(delta).await;
    assert!(!said.contains(follows_nobody), "{said}");
    let bytes = fs::read(&conf).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    for kept in [primary, slot] {
        let mut lines = bytes.split(|&byte| byte == b'\n');
        assert!(lines.any(|line| line == kept), "{text}");
    }
    assert!(!text.contains("work_mem = 1"), "{text}");
    assert!(target.join("standby.signal").exists());

    let mut new = options(&scratch.path().join("new"));
    new.target = Target::Standby;
    let said = notes(new).await;
    assert!(said.contains(follows_nobody), "{said}");
}

/// No restore of the layer succeeds without it, so the cluster that is there stays, and a plan says so, too.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_changed_for_a_layer_whose_own_wal_cannot_be_read() {
    let repository = Repository::memory();
    let (made, scratch, target) = restored(&repository).await;
    let delta = in_place(&target);
    let plan = restore::plan(&made.within(&repository), delta.clone()).await;
    let key = made
        .cluster
        .wal_key("00000001", &plan.unwrap().wal.first_segment);
    let size = repository.get(&key).await.unwrap().len();
    let damaged = made
        .copy_with_flipped_byte(&repository, &key, size / 2)
        .await;
    let before = tree(&target);
    let planned = restore::plan(&made.within(&damaged), delta).await;
    let error = planned.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(error.to_string().contains(&key), "{error}");
    assert!(before == tree(&target));
    // In a new directory nothing is lost, and the reason is the same.
    let new = scratch.path().join("new");
    let outcome = restore(&damaged, &made, (&new, Method::Overlay), None).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert!(!new.join("global/pg_control").exists());
}

/// A marker that stayed would say of the server's directory that it is no cluster any more.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_has_changed_nothing_leaves_no_marker() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    let before = tree(&target);
    // It cannot be marked, as on a full disk.
    let in_the_way = target.join(format!("{MARKER}.tmp"));
    fs::create_dir(&in_the_way).unwrap();
    fs::write(in_the_way.join("file"), b"x").unwrap();
    let delta = (target.as_path(), Method::Delta);
    let error = restore(&repository, &made, delta, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::File, "{error}");
    fs::remove_dir_all(&in_the_way).unwrap();
    assert!(tree(&target) == before);

    // Another restore has finished since this one was planned.
    let wanted = in_place(&target);
    let cluster = made.within(&repository);
    let plan = async || restore::plan(&cluster, wanted.clone()).await.unwrap();
    let cancelled = cancelled();
    restore::execute(&plan().await, &cancelled)
        .await
        .unwrap_err();
    let late = plan().await;
    restore::execute(&plan().await, &Progress::default())
        .await
        .unwrap();
    let error = restore::execute(&late, &Progress::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(!target.join(MARKER).exists());
    made.assert_restored(&target);
}

/// Nothing but the same restore makes a cluster of it again.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restore_that_took_the_directory_apart_needs_is_kept() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    let wanted = in_place(&target);
    let cluster = made.within(&repository);
    let now = StoreTime::ask(&cluster).await.unwrap();
    let needed = async || catalog::in_use(&cluster, now).await.unwrap().len();
    let before = needed().await;
    let plan = restore::plan(&cluster, wanted.clone()).await.unwrap();
    assert!(!plan.resumes);
    let cancelled = cancelled();
    restore::execute(&plan, &cancelled).await.unwrap_err();
    assert!(!target.join("global/pg_control").exists());
    assert_eq!(needed().await, before + 1);
    let plan = restore::plan(&cluster, wanted).await.unwrap();
    assert!(plan.resumes);
    restore::execute(&plan, &Progress::default()).await.unwrap();
    made.assert_restored(&target);
}

/// The lineage file, which proves the link, goes with the first attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_tablespace_made_since_is_the_clusters_own_in_every_attempt() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(scratch.path()).unwrap();
    let (target, space) = (root.join("data"), root.join("space"));
    restore(&repository, &made, (&target, Method::Overlay), None)
        .await
        .unwrap();
    let catalog = ControlFile::parse(&made.pg_control)
        .unwrap()
        .catalog_version;
    let version = space.join(format!("PG_15_{catalog}"));
    let link = target.join("pg_tblspc/16400");
    let put = || {
        fs::create_dir_all(version.join("5")).unwrap();
        symlink(&space, &link).unwrap();
    };
    put();
    let mut known = lineage::read(&target).unwrap().unwrap();
    known.place = lineage::place(&target).unwrap();
    let opened = fs::File::open(&target).unwrap();
    lineage::write(&opened, &target, &known).unwrap();
    let delta = in_place(&target);
    let cluster = made.within(&repository);
    let plan = restore::plan(&cluster, delta.clone()).await.unwrap();
    let cancelled = cancelled();
    restore::execute(&plan, &cancelled).await.unwrap_err();
    // As if it had been killed before it came to the link.
    put();
    let plan = restore::plan(&cluster, delta).await.unwrap();
    restore::execute(&plan, &Progress::default()).await.unwrap();
    assert!(!link.is_symlink() && !version.exists() && space.exists());
    made.assert_restored(&target);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_a_disk_that_is_lost_goes_and_makes_no_directory() {
    let repository = Repository::memory();
    let (made, scratch, target) = restored(&repository).await;
    let lost = scratch.path().join("lost");
    let link = target.join("pg_tblspc/16400");
    symlink(lost.join("space"), &link).unwrap();
    let mut delta = in_place(&target);
    delta.vouched.links_are_own = true;
    let plan = restore::plan(&made.within(&repository), delta).await;
    let progress = Progress::default();
    restore::execute(&plan.unwrap(), &progress).await.unwrap();
    assert!(!link.is_symlink() && !lost.exists());
    made.assert_restored(&target);
}

/// A server follows it wherever it leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_relative_link_is_followed_or_refused_and_never_forgotten() {
    let repository = Repository::memory();
    let (made, scratch, target) = restored(&repository).await;
    let (wal, link) = (scratch.path().join("wal2"), target.join("pg_wal"));
    fs::rename(&link, &wal).unwrap();
    symlink("../wal2", &link).unwrap();
    fs::write(wal.join("old"), b"x").unwrap();
    let mut delta = in_place(&target);
    delta.vouched.links_are_own = true;
    let cluster = made.within(&repository);
    let plan = restore::plan(&cluster, delta.clone()).await.unwrap();
    assert_eq!(plan.wal_directory, fs::canonicalize(&wal).ok());
    restore::execute(&plan, &Progress::default()).await.unwrap();
    made.assert_restored(&target);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("../wal2"));
    assert!(wal.join("archive_status").is_dir() && !wal.join("old").exists());

    fs::remove_file(&link).unwrap();
    symlink("../lost/wal2", &link).unwrap();
    let before = tree(&target);
    let error = restore::plan(&cluster, delta).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains("link \"pg_wal\""), "{error}");
    let hint = error.hint_text().unwrap();
    assert!(hint.contains("--wal-dir"), "{hint}");
    assert!(tree(&target) == before);
}

/// The server archives on, and the layer's configuration says how.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_layer_says_otherwise_of_archiving_is_noted() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    let own = "archive_command = '/usr/local/bin/archive %p'\n";
    fs::write(target.join("postgresql.auto.conf"), own).unwrap();
    let delta = (target.as_path(), Method::Delta);
    for is_otherwise in [true, false] {
        let report = restore(&repository, &made, delta, None).await.unwrap();
        assert_eq!(report.archive_mode, ArchiveMode::Keep);
        let notes = report.notes.join("\n");
        assert_eq!(notes.contains("(archive_command)"), is_otherwise, "{notes}");
    }
}

/// Block 0 and 2 of `base/5/10` are overwritten in the base's first frame of three pages: that frame is decoded once,
/// for the one page that still counts.
#[tokio::test(flavor = "multi_thread")]
async fn half_overwritten_frames_are_decoded_once() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let plan = restore::plan(&made.within(&repository), options(&target))
        .await
        .unwrap();
    assert!(plan.read_amplification > 1.0, "{}", plan.read_amplification);
    let base = &plan.layers[2];
    assert!(base.needed_bytes < base.fetch_bytes, "{base:?}");
    let report = restore::execute(&plan, &Progress::default()).await.unwrap();
    assert_eq!(report.frames, plan.frames);
    // Without the increments nothing is fetched in vain.
    let mut alone = options(&scratch.path().join("full"));
    alone.label = Some(made.labels[0].clone());
    let plan = restore::plan(&made.within(&repository), alone)
        .await
        .unwrap();
    assert!((plan.read_amplification - 1.0).abs() < 1e-9);
}

/// Between the plan and the first change somebody starts the server where its process cannot be seen.
#[tokio::test(flavor = "multi_thread")]
async fn rule_13_4_a_server_that_was_started_since_the_plan_is_left_alone() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    let mut options = in_place(&target);
    options.vouched.server_is_stopped = true;
    let changes: [fn(&Path); 2] = [
        |data| fs::write(data.join("postmaster.pid"), "999999999\n/data\n").unwrap(),
        |data| {
            let control = data.join("global/pg_control");
            let mut contents = fs::read(&control).unwrap();
            contents[4096] ^= 1;
            fs::write(&control, contents).unwrap();
        },
    ];
    for change in changes {
        let plan = restore::plan(&made.within(&repository), options.clone()).await;
        let plan = plan.unwrap();
        change(&target);
        let before = tree(&target);
        let error = restore::execute(&plan, &Progress::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(error.to_string().contains("was started"), "{error}");
        assert!(before == tree(&target), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_does_not_remove_the_repository_that_it_reads() {
    let scratch = tempfile::tempdir().unwrap();
    let open = |directory: &Path| {
        let url = format!("file://{}", directory.display());
        Repository::open(&RepositoryOptions::new(url)).unwrap()
    };
    let (apart, target) = (scratch.path().join("apart"), scratch.path().join("data"));
    let made = chain_of_three(&open(&apart)).await;
    let below = apart.join("restored");
    let into = restore(&open(&apart), &made, (&below, Method::Overlay), None).await;
    assert_eq!(into.unwrap_err().kind(), Kind::Refused);
    assert!(!below.exists());
    restore(&open(&apart), &made, (&target, Method::Overlay), None)
        .await
        .unwrap();
    let inside = target.join("backups");
    fs::rename(&apart, &inside).unwrap();
    let before = tree(&target);
    let onto = restore(&open(&inside), &made, (&target, Method::Delta), None).await;
    let error = onto.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains("lies in"), "{error}");
    assert!(before == tree(&target));
}
