//! Restores of chains made by hand: every page from its newest source, written once, and nothing that a server could
//! start from before all of it is durable.

#![allow(
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests state facts about small numbers"
)]

mod restore_common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;

use pgstrata_engine::restore::{self, ArchiveMode, MARKER, RestoreOptions, Target};
use pgstrata_layer::manifest::Tablespace;
use pgstrata_store::error::Kind;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use restore_common::{chain, chain_of_three, generations, options, page};

#[tokio::test(flavor = "multi_thread")]
async fn every_page_comes_from_its_newest_source_and_is_written_once() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let plan = restore::plan(&made.within(&repository), options(&target))
        .await
        .unwrap();
    let progress = Progress::default();
    let report = restore::execute(&plan, &progress).await.unwrap();
    made.assert_restored(&target);
    let nonzero: u64 = made
        .files
        .iter()
        .map(|(_, contents)| made.nonzero_blocks(contents))
        .sum();
    assert_eq!(report.pages, nonzero);
    assert_eq!(report.written_bytes, plan.write_bytes);
    assert_eq!(report.fetched_bytes, progress.read().stored_bytes);
    assert!(report.fetched_bytes >= plan.fetch_bytes);
}

/// What planning has read is not asked for again: with an object store that is latency, twice for each layer.
#[tokio::test(flavor = "multi_thread")]
async fn the_indexes_that_planning_has_read_are_not_read_again() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    let store = FaultStore::new(memory);
    let repository = Repository::with_store(store.clone());
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let before = store.operation_count();
    let plan = restore::plan(&made.within(&repository), options(&target))
        .await
        .unwrap();
    assert_eq!(
        store.operation_count() - before,
        13,
        "the record, six listings, three manifests, three indexes"
    );
    let objects = repository.list("").await.unwrap();
    let again = objects
        .iter()
        .filter(|object| object.key.contains("/index-") || object.key.ends_with("/cluster"));
    let again: Vec<String> = again.map(|object| object.key.clone()).collect();
    assert_eq!(again.len(), 4, "{again:?}");
    repository.delete_all(&again).await.unwrap();
    restore::execute(&plan, &Progress::default()).await.unwrap();
    made.assert_restored(&target);
}

#[tokio::test(flavor = "multi_thread")]
async fn zero_runs_become_holes() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(&repository, &target, None).await.unwrap();
    let status = fs::metadata(target.join("base/5/30")).unwrap();
    assert_eq!(status.len(), 64 * 8192);
    assert!(
        status.blocks() * 512 < 32 * 8192,
        "{} blocks",
        status.blocks()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_and_empty_files_are_restored() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(&repository, &target, None).await.unwrap();
    let mode = |path: &str| {
        fs::metadata(target.join(path))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!(mode(""), 0o700);
    assert_eq!(mode("base/5"), 0o700);
    assert_eq!(mode("base/5/10"), 0o600);
    assert_eq!(mode("postgresql.conf"), 0o644);
    assert_eq!(fs::metadata(target.join("base/5/40")).unwrap().len(), 0);
    assert!(target.join("pg_replslot").is_dir());
    assert!(target.join("pg_wal/archive_status").is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_label_is_written_byte_for_byte() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(&repository, &target, None).await.unwrap();
    assert_eq!(
        fs::read_to_string(target.join("backup_label")).unwrap(),
        made.backup_label
    );
    assert!(!target.join("tablespace_map").exists());
    assert_eq!(
        fs::read(target.join("global/pg_control")).unwrap(),
        made.pg_control
    );
}

/// Dropped between the start of the backup and its list of files: the server's map names it, and recovery drops it once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_tablespace_that_the_map_alone_names_is_left_to_the_wal() {
    let scratch = tempfile::tempdir().unwrap();
    let there = scratch.path().join("there").display().to_string();
    let listed = Tablespace {
        oid: 16500,
        location: Some(there.clone()),
    };
    let (kept, gone) = (format!("16500 {there}\n"), "16501 /gone\n");
    for (tablespaces, map, left) in [
        (vec![listed.clone()], format!("{kept}{gone}"), Some(&kept)),
        (vec![listed], kept.clone(), Some(&kept)),
        (Vec::new(), gone.to_owned(), None),
    ] {
        let repository = Repository::memory();
        let made = chain(&repository, &generations(), &tablespaces, Some(&map)).await;
        let target = scratch.path().join("data");
        made.restore(&repository, &target, None).await.unwrap();
        let restored = fs::read_to_string(target.join("tablespace_map")).ok();
        assert_eq!(restored.as_ref(), left);
        assert!(!target.join("pg_tblspc/16501").is_symlink());
        fs::remove_dir_all(&target).unwrap();
        let _ = fs::remove_dir_all(&there);
    }
}

/// Older programs stored it, where an earlier restore had left it in the directory of a server.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_with_the_marker_of_a_restore_restores_without_it() {
    let repository = Repository::memory();
    let mut first = generations()[0].clone();
    first.insert(MARKER.to_owned(), Some(b"{}".to_vec()));
    let made = chain(&repository, &[first], &[], None).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(&repository, &target, None).await.unwrap();
    assert!(target.join("PG_VERSION").exists() && !target.join(MARKER).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_not_empty_is_refused_and_left_alone() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("precious"), b"x").unwrap();
    let error = made.restore(&repository, &target, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert!(error.to_string().contains("precious"), "{error}");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_server_is_refused_by_its_process() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path();
    let mut sleep = std::process::Command::new("sleep");
    let mut server = sleep.arg("600").current_dir(target).spawn().unwrap();
    let pid_file = format!("{}\n/data\n", server.id());
    fs::write(target.join("postmaster.pid"), pid_file).unwrap();
    let error = made.restore(&repository, target, None).await.unwrap_err();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(error.kind(), Kind::Refused);
    assert!(error.to_string().contains("runs in"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_leads_nowhere_and_a_file_in_the_way_are_refused() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    let error = made.restore(&repository, &link, None).await.unwrap_err();
    assert!(error.to_string().contains("leads nowhere"), "{error}");
    let file = scratch.path().join("file");
    fs::write(&file, b"x").unwrap();
    let error = made.restore(&repository, &file, None).await.unwrap_err();
    assert!(error.to_string().contains("is not a directory"), "{error}");
}

/// On failure `pg_control` is absent; the same restore completes what another began.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_fails_anywhere_cannot_be_started_and_is_completed_by_another() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    let made = chain_of_three(&Repository::with_store(memory.clone())).await;
    let scratch = tempfile::tempdir().unwrap();
    let mut failures = 0;
    for nth in 0.. {
        let target = scratch.path().join(format!("data{nth}"));
        let store = FaultStore::failing_at(nth, Fault::Before, memory.clone());
        let outcome = made
            .restore(&Repository::with_store(store.clone()), &target, None)
            .await;
        if outcome.is_ok() {
            made.assert_restored(&target);
            if store.operation_count() <= nth {
                break;
            }
            // What failed was not needed.
            fs::remove_dir_all(&target).unwrap();
            continue;
        }
        failures += 1;
        assert!(!target.join("global/pg_control").exists());
        if target.exists() {
            assert!(
                target.join(MARKER).exists(),
                "after the failure of operation {nth}"
            );
        }
        made.restore(&Repository::with_store(memory.clone()), &target, None)
            .await
            .unwrap();
        made.assert_restored(&target);
        fs::remove_dir_all(&target).unwrap();
    }
    assert!(failures > 10, "{failures}");
}

/// Root restores what another user may change meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_put_in_the_place_of_a_directory_leads_a_restore_nowhere() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    let made = chain_of_three(&Repository::with_store(memory.clone())).await;
    let scratch = tempfile::tempdir().unwrap();
    let (target, outside) = (scratch.path().join("data"), scratch.path().join("outside"));
    fs::create_dir_all(outside.join("5")).unwrap();
    for (path, _) in &made.files {
        if let Some(below) = path.strip_prefix("base/") {
            fs::write(outside.join(below), b"precious").unwrap();
        }
    }
    let store = FaultStore::new(memory);
    let repository = Repository::with_store(store.clone());
    let plan = restore::plan(&made.within(&repository), options(&target))
        .await
        .unwrap();
    // The directories are there, and no page is.
    store.fail(0..u64::MAX, Fault::Delayed(Duration::from_secs(2)));
    let swap = async {
        while !target.join("base/5").exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fs::rename(target.join("base"), scratch.path().join("aside")).unwrap();
        std::os::unix::fs::symlink(&outside, target.join("base")).unwrap();
    };
    let progress = Progress::default();
    let (outcome, ()) = tokio::join!(restore::execute(&plan, &progress), swap);
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), Kind::File, "{error}");
    assert!(!target.join("global/pg_control").exists());
    let mut left = 0;
    for file in fs::read_dir(outside.join("5")).unwrap() {
        assert_eq!(fs::read(file.unwrap().path()).unwrap(), b"precious");
        left += 1;
    }
    assert!(left > 1, "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_killed_after_pg_control_only_loses_its_marker() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    // Everything but the last step: the marker of a restore stopped just before removing it.
    let plan = restore::plan(&made.within(&repository), options(&target))
        .await
        .unwrap();
    let cancelled = Progress::default();
    cancelled.cancel();
    let error = restore::execute(&plan, &cancelled).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Interrupted);
    let marker = fs::read(target.join(MARKER)).unwrap();
    made.restore(&repository, &target, None).await.unwrap();
    fs::write(target.join(MARKER), &marker).unwrap();
    let inode = fs::metadata(target.join("base/5/10")).unwrap().ino();
    // It is done, for this target alone.
    for change in [
        |options: &mut RestoreOptions| options.target = Target::Default,
        |options: &mut RestoreOptions| options.inclusive = false,
        |options: &mut RestoreOptions| options.archive_mode = Some(ArchiveMode::Keep),
    ] {
        let mut options = options(&target);
        change(&mut options);
        let plan = restore::plan(&made.within(&repository), options).await;
        let error = plan.err().unwrap();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(error.to_string().contains("finished restore"), "{error}");
        assert!(target.join(MARKER).exists());
    }
    made.restore(&repository, &target, None).await.unwrap();
    assert!(!target.join(MARKER).exists());
    assert_eq!(fs::metadata(target.join("base/5/10")).unwrap().ino(), inode);
    // It is a cluster now, and no restore touches it.
    let error = made.restore(&repository, &target, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marker_of_another_restore_protects_its_directory() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
    let plan = restore::plan(&made.within(&repository), options(&one))
        .await
        .unwrap();
    let cancelled = Progress::default();
    cancelled.cancel();
    restore::execute(&plan, &cancelled).await.unwrap_err();
    fs::rename(&one, &two).unwrap();
    let error = made.restore(&repository, &two, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert!(error.to_string().contains("incomplete restore"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_found_and_nothing_can_be_started() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    for key in made.pack_keys(&repository).await {
        let scratch = tempfile::tempdir().unwrap();
        let target = scratch.path().join("data");
        let damaged = made.copy_with_flipped_byte(&repository, &key, 60).await;
        let error = made.restore(&damaged, &target, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{key}: {error}");
        assert!(!target.join("global/pg_control").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_zeros_does_not_let_an_older_page_through() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(&repository, &target, None).await.unwrap();
    let contents = fs::read(target.join("base/5/10")).unwrap();
    assert_eq!(&contents[4 * 8192..5 * 8192], &[0; 8192]);
    assert_eq!(&contents[..8192], &page(3, 0)[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_of_none_writes_no_signal_and_turns_archiving_off() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let mut options = options(&target);
    options.target = Target::None;
    let refused = restore::plan(&made.within(&repository), options.clone()).await;
    let refused = refused.err().unwrap();
    assert_eq!(refused.kind(), Kind::Usage);
    assert!(refused.hint_text().unwrap().contains("--same-timeline"));
    options.same_timeline = true;
    let plan = restore::plan(&made.within(&repository), options)
        .await
        .unwrap();
    restore::execute(&plan, &Progress::default()).await.unwrap();
    assert!(!target.join("recovery.signal").exists());
    let conf = fs::read_to_string(target.join("postgresql.auto.conf")).unwrap();
    assert!(conf.contains("archive_mode = 'off'"), "{conf}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_a_newer_format_is_not_restored() {
    let memory = Arc::new(object_store::memory::InMemory::new());
    let repository = Repository::with_store(memory);
    let made = chain_of_three(&repository).await;
    let key = made.cluster.cluster_key();
    let object = repository.get(&key).await.unwrap();
    let mut record = pgstrata_layer::cluster::decode(&object).unwrap();
    record.format = 2;
    let other = Repository::memory();
    for object in repository.list(made.cluster.as_str()).await.unwrap() {
        let bytes = match object.key == key {
            true => pgstrata_layer::cluster::encode(&record).into(),
            false => repository.get(&object.key).await.unwrap(),
        };
        other.create(&object.key, bytes).await.unwrap();
    }
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let plan = restore::plan(&made.within(&other), options(&target)).await;
    let error = plan.err().unwrap();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(!target.exists());
}
