//! What a repository makes of a store that fails.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_store::error::Kind;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};

const BODY: Bytes = Bytes::from_static(b"contents");

fn faulty() -> (Arc<FaultStore>, Repository, Repository) {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let faulty = FaultStore::new(Arc::clone(&memory));
    let through = Repository::with_store(faulty.clone());
    (faulty, through, Repository::with_store(memory))
}

#[tokio::test]
async fn a_create_whose_answer_was_lost_succeeds() {
    let (faults, repository, _) = faulty();
    faults.fail(0..1, Fault::LostAnswer);
    repository.create("a", BODY).await.unwrap();
    assert_eq!(repository.get("a").await.unwrap(), BODY);
}

#[tokio::test]
async fn a_lost_answer_does_not_hide_that_another_was_first() {
    let (faults, repository, other) = faulty();
    other
        .create("a", Bytes::from_static(b"theirs"))
        .await
        .unwrap();
    faults.fail(0..1, Fault::PassingBefore);
    let error = repository.create("a", BODY).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert_eq!(other.get("a").await.unwrap(), Bytes::from_static(b"theirs"));
}

#[tokio::test]
async fn failures_that_pass_are_retried() {
    let (faults, repository, direct) = faulty();
    direct.create("a", BODY).await.unwrap();
    let next = |n: u64| {
        let at = faults.operation_count();
        faults.fail(at..at + n, Fault::PassingBefore);
    };
    next(2);
    assert_eq!(repository.get("a").await.unwrap(), BODY);
    next(2);
    assert_eq!(
        repository.get_range("a", 1..3).await.unwrap(),
        BODY.slice(1..3)
    );
    next(2);
    assert_eq!(
        repository
            .get_ranges("a", &[0..1, 3..4])
            .await
            .unwrap()
            .len(),
        2
    );
    next(2);
    assert_eq!(repository.list("").await.unwrap().len(), 1);
    next(2);
    assert_eq!(repository.list_names("").await.unwrap(), ["a"]);
    next(2);
    assert_eq!(repository.size("a").await.unwrap(), Some(8));
    next(2);
    repository.create("b", BODY).await.unwrap();
    next(2);
    repository.delete("b").await.unwrap();
    assert_eq!(direct.list_names("").await.unwrap(), ["a"]);
}

#[tokio::test]
async fn retries_end() {
    let (faults, repository, _) = faulty();
    faults.fail(0..1000, Fault::PassingBefore);
    let started = Instant::now();
    let error = repository.get("a").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Repository);
    assert!(error.to_string().contains("injected failure"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(faults.operation_count() < 30);
}

#[tokio::test]
async fn other_failures_are_not_retried() {
    let (faults, repository, direct) = faulty();
    faults.fail(0..1, Fault::Before);
    let error = repository.create("a", BODY).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Repository);
    assert_eq!(faults.operation_count(), 1);
    assert!(direct.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_full_store_is_one_clear_error() {
    let (faults, repository, _) = faulty();
    for (kind, words) in [
        (std::io::ErrorKind::StorageFull, "free space"),
        (std::io::ErrorKind::QuotaExceeded, "free space"),
        (std::io::ErrorKind::ReadOnlyFilesystem, "mount"),
        (std::io::ErrorKind::PermissionDenied, "belong"),
    ] {
        let at = faults.operation_count();
        faults.fail(at..at + 1, Fault::Io(kind));
        let error = repository.create("main/cluster", BODY).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Repository);
        assert!(
            error
                .to_string()
                .starts_with("could not write \"main/cluster\" in ")
        );
        assert!(error.hint_text().unwrap().contains(words), "{error}");
        assert_eq!(faults.operation_count(), at + 1, "not retried");
    }
}

#[tokio::test]
async fn a_cut_read_is_damage() {
    let (faults, repository, direct) = faulty();
    direct.create("a", BODY).await.unwrap();
    faults.fail(0..2, Fault::Truncated);
    let error = repository.get_range("a", 0..8).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    let error = repository.get_ranges("a", &[0..2, 4..8]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
}

#[tokio::test]
async fn a_probe_believes_in_a_winner_whose_answer_was_lost() {
    let mut lost = 0;
    for nth in 0..20 {
        let (faults, repository, direct) = faulty();
        faults.fail(nth..nth + 1, Fault::LostAnswer);
        if let Err(error) = repository.probe("main").await {
            // The one create whose refusal is what is looked for is not tried again.
            assert_ne!(error.kind(), Kind::Refused, "{nth}: {error}");
            lost += 1;
        }
        assert!(direct.list("").await.unwrap().is_empty(), "{nth}");
    }
    assert!(lost <= 1, "{lost}");
}

#[tokio::test]
async fn a_store_that_cuts_objects_is_refused() {
    let (faults, repository, direct) = faulty();
    faults.fail(0..1, Fault::Truncated);
    let error = repository.probe("main").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert!(direct.list("").await.unwrap().is_empty());
}

/// `count` objects below "main", and their keys.
async fn objects(repository: &Repository, count: usize) -> Vec<String> {
    let keys: Vec<String> = (0..count).map(|n| format!("main/{n:05}")).collect();
    for key in &keys {
        repository.create(key, BODY).await.unwrap();
    }
    keys
}

#[tokio::test]
async fn a_thousand_deletions_are_one_operation_that_is_repeated_until_all_are_done() {
    let (faults, repository, direct) = faulty();
    let keys = objects(&direct, 2500).await;
    faults.fail(0..1, Fault::PassingBefore);
    faults.fail(2..3, Fault::LostAnswer);
    repository.delete_all(&keys).await.unwrap();
    assert!(direct.list("main").await.unwrap().is_empty());
    // Three batches, two of them twice.
    assert_eq!(faults.operation_count(), 5);
}

#[tokio::test]
async fn a_deletion_that_ends_half_way_is_an_error_and_can_be_repeated() {
    let (faults, repository, direct) = faulty();
    let keys = objects(&direct, 10).await;
    faults.fail(0..1, Fault::Halfway);
    let error = repository.delete_all(&keys).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Repository);
    let words = "could not delete all of 10 objects, the first of them \"main/00000\"";
    assert!(error.to_string().starts_with(words), "{error}");
    assert_eq!(direct.list("main").await.unwrap().len(), 5);
    repository.delete_all(&keys).await.unwrap();
    assert!(direct.list("main").await.unwrap().is_empty());
}
