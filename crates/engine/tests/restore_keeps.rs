//! What a restore in place must not lose: WAL of which nobody else has a good copy, and what was set since an earlier attempt.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod restore_common;

use std::fs;
use std::path::{Path, PathBuf};

use pgstrata_engine::restore::{self, MARKER, RestoreOptions, Target};
use pgstrata_layer::wal::HEADER_BYTES;
use pgstrata_pgdata::{TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{self, PushOptions, Pushed};
use pgstrata_store::error::Kind;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use restore_common::there::{cancelled, in_place, tree};
use restore_common::{Made, chain_of_three, options, switched, wal_segment_size};
use tempfile::TempDir;

/// A chain, and its newest state in a directory of its own.
async fn restored(repository: &Repository) -> (Made, TempDir, PathBuf) {
    let made = chain_of_three(repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    made.restore(repository, &target, None).await.unwrap();
    (made, scratch, target)
}

/// The name and the contents of a segment that the archive has and no layer needs.
fn segment_between() -> (String, Vec<u8>) {
    archived(45)
}

/// The same of the segment of that number.
fn archived(number: u64) -> (String, Vec<u8>) {
    let timeline = TimelineId::FIRST;
    let segment = WalSegment { timeline, number };
    let size = WalSegmentSize::try_from(wal_segment_size()).unwrap();
    (segment.file_name(size), switched(segment))
}

/// Lets a file wait for the archiver of the server in that directory.
fn let_wait(target: &Path, name: &str, contents: &[u8]) -> PathBuf {
    let path = target.join("pg_wal").join(name);
    fs::write(&path, contents).unwrap();
    let mark = format!("pg_wal/archive_status/{name}.ready");
    fs::write(target.join(mark), b"").unwrap();
    path
}

/// Nothing is changed for a restore in place that is refused with these words.
async fn refused(repository: &Repository, made: &Made, target: &Path, words: &[&str]) {
    let before = tree(target);
    let planned = restore::plan(&made.within(repository), in_place(target)).await;
    let error = planned.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    for words in words {
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    assert!(tree(target) == before);
}

/// As a power failure of the archive's host leaves it: the file that still waits is the only good copy.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_kept_while_what_the_archive_has_of_it_is_damaged() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    let (name, contents) = segment_between();
    let path = let_wait(&target, &name, &contents);
    let planned = restore::plan(&made.within(&repository), in_place(&target)).await;
    assert!(!planned.unwrap().notes.join("").contains(&name));
    let key = made.cluster.wal_key("00000001", &name);
    let size = repository.get(&key).await.unwrap().len();
    // In the header, and behind it.
    for at in [HEADER_BYTES / 2, (HEADER_BYTES + size) / 2] {
        let damaged = made.copy_with_flipped_byte(&repository, &key, at).await;
        refused(&damaged, &made, &target, &[&name, "cannot be read"]).await;
        let cluster = made.within(&damaged);
        let pushed = archive::push_at_once(&cluster, &path, &PushOptions::default()).await;
        assert_eq!(pushed.unwrap().pushed, Pushed::Mended);
        restore::plan(&cluster, in_place(&target)).await.unwrap();
    }
}

/// Good ends say nothing of what lies between.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_kept_while_one_object_in_the_middle_of_many_is_damaged() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    for number in 31..40 {
        let (name, contents) = archived(number);
        let_wait(&target, &name, &contents);
    }
    let cluster = made.within(&repository);
    restore::plan(&cluster, in_place(&target)).await.unwrap();
    let (name, _) = archived(35);
    let key = made.cluster.wal_key("00000001", &name);
    let size = repository.get(&key).await.unwrap().len();
    let damaged = made.copy_with_flipped_byte(&repository, &key, (HEADER_BYTES + size) / 2);
    let words = [&*name, "cannot be read"];
    refused(&damaged.await, &made, &target, &words).await;
}

/// The object was damaged, then stored beside that, then lost; now what was stored beside it is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_kept_while_only_a_damaged_stand_in_is_left_of_it() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    let (name, contents) = segment_between();
    let_wait(&target, &name, &contents);
    let key = made.cluster.wal_key("00000001", &name);
    let object = repository.get(&key).await.unwrap();
    repository.delete(&key).await.unwrap();
    let stand_in = made.cluster.mended_wal_key("00000001", &name, 1);
    repository.create(&stand_in, object.clone()).await.unwrap();
    let cluster = made.within(&repository);
    restore::plan(&cluster, in_place(&target)).await.unwrap();
    repository.delete(&stand_in).await.unwrap();
    let cut = object.slice(..object.len() - 3);
    repository.create(&stand_in, cut).await.unwrap();
    refused(&repository, &made, &target, &[&name, "cannot be read"]).await;
}

/// No recovery reads it, and what the server wrote last before its primary's end is nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_partial_segment_that_waits_is_kept_while_the_archive_has_another() {
    let repository = Repository::memory();
    let (made, scratch, target) = restored(&repository).await;
    let (segment, mut contents) = segment_between();
    let name = format!("{segment}.partial");
    let archived = scratch.path().join(&name);
    fs::write(&archived, &contents).unwrap();
    let cluster = made.within(&repository);
    let pushed = archive::push_at_once(&cluster, &archived, &PushOptions::default()).await;
    pushed.unwrap();
    let_wait(&target, &name, &contents);
    restore::plan(&cluster, in_place(&target)).await.unwrap();
    *contents.last_mut().unwrap() ^= 1;
    let_wait(&target, &name, &contents);
    let words = [&*name, "promoted out of one segment"];
    refused(&repository, &made, &target, &words).await;
}

/// A restore was killed when all was done but that its marker goes, and the server has run since.
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_beside_a_control_file_does_not_hide_what_was_set_since() {
    let repository = Repository::memory();
    let (made, _scratch, target) = restored(&repository).await;
    let conf = target.join("postgresql.auto.conf");
    let follow = |host: &str| {
        let line = format!("primary_conninfo = 'host={host}'\n");
        fs::write(&conf, line).unwrap();
    };
    let cluster = made.within(&repository);
    let refresh = RestoreOptions {
        target: Target::Standby,
        ..in_place(&target)
    };
    let plan = async || restore::plan(&cluster, refresh.clone()).await.unwrap();
    let progress = Progress::default();
    follow("old");
    restore::execute(&plan().await, &cancelled())
        .await
        .unwrap_err();
    let marker = fs::read(target.join(MARKER)).unwrap();
    restore::execute(&plan().await, &progress).await.unwrap();
    let kept = || fs::read_to_string(&conf).unwrap();
    assert!(kept().contains("host=old"), "{}", kept());

    fs::write(target.join(MARKER), marker).unwrap();
    follow("new");
    let planned = plan().await;
    assert!(!planned.resumes);
    restore::execute(&planned, &progress).await.unwrap();
    let kept = kept();
    assert!(
        kept.contains("host=new") && !kept.contains("host=old"),
        "{kept}"
    );
    assert!(!target.join(MARKER).exists());
}

/// A restore that was killed when all was done but for its marker is complete, until a server has begun to recover there.
#[tokio::test]
async fn a_restore_is_not_called_complete_where_a_server_has_run_since() {
    let repository = Repository::memory();
    let made = chain_of_three(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("data");
    let cluster = made.within(&repository);
    let plan = async || restore::plan(&cluster, options(&target)).await;
    let progress = Progress::default();
    let stopped = restore::execute(&plan().await.unwrap(), &cancelled()).await;
    stopped.unwrap_err();
    let marker = fs::read(target.join(MARKER)).unwrap();
    let again = plan().await.unwrap();
    restore::execute(&again, &progress).await.unwrap();

    fs::write(target.join(MARKER), &marker).unwrap();
    let again = plan().await.unwrap();
    restore::execute(&again, &progress).await.unwrap();
    assert!(!target.join(MARKER).exists());

    fs::write(target.join(MARKER), &marker).unwrap();
    let label = target.join("backup_label");
    fs::rename(&label, target.join("backup_label.old")).unwrap();
    let before = tree(&target);
    let error = plan().await.unwrap_err();
    assert!(error.to_string().contains("has run there since"), "{error}");
    assert!(tree(&target) == before);
}
