//! What `restore_command` may rely on.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_engine::archive::{
    self, GetOptions, GetOutcome, PrefetchOptions, PushOptions, Source, Spool,
};
use pgstrata_engine::error::{Error, Kind};
use pgstrata_engine::repository::fault::{Fault, FaultStore};
use pgstrata_engine::repository::{Repository, RepositoryOptions};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::keys::ClusterName;
use support::wal;

async fn get(repository: &Repository, name: &str, to: &Path) -> Result<GetOutcome, Error> {
    archive::get(repository, &wal::name(), name, to, &GetOptions::default()).await
}

/// Archives segments 1 to `count` of timeline 1.
async fn archive_segments(repository: &Repository, count: u64) {
    let pg_wal = tempfile::tempdir().unwrap();
    for number in 1..=count {
        let path = wal::write(pg_wal.path(), 1, number, 1);
        let options = PushOptions {
            neighbours: 0,
            ..PushOptions::default()
        };
        archive::push(repository, &wal::name(), &wal::record(), &path, &options)
            .await
            .unwrap();
    }
}

fn expected(number: u64) -> Vec<u8> {
    wal::contents(wal::segment(1, number), wal::size(), 1)
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_destination_has_another_name_and_nothing_else_appears() {
    let repository = wal::repository().await;
    archive_segments(&repository, 1).await;
    let pg_wal = tempfile::tempdir().unwrap();
    let to = pg_wal.path().join("RECOVERYXLOG");
    std::fs::write(&to, b"left over").unwrap();
    let got = get(&repository, &wal::file_name(1, 1), &to).await.unwrap();
    assert_eq!(got.source, Source::Repository);
    assert_eq!(got.raw_bytes, wal::size().get());
    assert!(std::fs::read(&to).unwrap() == expected(1));
    assert_eq!(names_in(pg_wal.path()), ["RECOVERYXLOG"]);
}

#[tokio::test]
async fn not_found_is_said_only_when_it_is_certain() {
    let repository = wal::repository().await;
    archive_segments(&repository, 1).await;
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("to");
    for name in [
        wal::file_name(1, 2),
        "00000002.history".to_owned(),
        wal::file_name(2, 1),
    ] {
        let error = get(&repository, &name, &to).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{name}");
    }
    // The same question in the wrong place is a failure.
    let empty = Repository::memory();
    let error = get(&empty, &wal::file_name(1, 1), &to).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Repository);
    assert!(error.hint_text().is_some());
    let other = ClusterName::parse("other").unwrap();
    let (name, options) = (wal::file_name(1, 1), GetOptions::default());
    let asked = archive::get(&repository, &other, &name, &to, &options).await;
    assert_eq!(asked.unwrap_err().kind(), Kind::Repository);
    let absent = RepositoryOptions::new(format!("file://{}/absent", scratch.path().display()));
    let absent = Repository::open(&absent).unwrap();
    let error = get(&absent, &wal::file_name(1, 1), &to).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Repository);
    let error = get(&repository, "nonsense", &to).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert_eq!(names_in(scratch.path()), [""; 0]);
}

/// Rule 7: an outage during recovery must not look like the end of the archive.
#[tokio::test]
async fn no_failure_of_a_store_operation_looks_like_the_end_of_the_archive() {
    let absent = wal::file_name(1, 2);
    for name in [wal::file_name(1, 1), absent.clone()] {
        for fault in [
            Fault::Before,
            Fault::After,
            Fault::Truncated,
            Fault::LostAnswer,
        ] {
            for nth in 0.. {
                let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
                let direct = Repository::with_store(Arc::clone(&memory));
                wal::init(&direct).await;
                archive_segments(&direct, 1).await;
                let store = FaultStore::failing_at(nth, fault, memory);
                let through = Repository::with_store(store.clone());
                let pg_wal = tempfile::tempdir().unwrap();
                let to = pg_wal.path().join("to");
                let got = get(&through, &name, &to).await;
                let hit = store.operation_count() > nth;
                match got {
                    Ok(_) => assert!(std::fs::read(&to).unwrap() == expected(1)),
                    Err(error) => {
                        assert_eq!(names_in(pg_wal.path()), [""; 0]);
                        let failed = hit && matches!(fault, Fault::Before | Fault::After);
                        let end = error.kind() == Kind::NotFound;
                        assert!(!(end && failed), "{name} {fault:?} {nth}: {error}");
                        assert!(!end || name == absent, "{name} {fault:?} {nth}: {error}");
                    }
                }
                if store.operation_count() <= nth {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn every_damaged_object_is_refused() {
    let good = wal::repository().await;
    archive_segments(&good, 1).await;
    let name = wal::file_name(1, 1);
    let key = format!("main/wal/00000001/{name}");
    let object = good.get(&key).await.unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("to");
    for at in [
        0,
        20,
        60,
        127,
        128,
        5000,
        object.len() / 2,
        object.len() - 1,
    ] {
        let mut flipped = object.to_vec();
        flipped[at] ^= 1;
        for bytes in [flipped, object[..at].to_vec()] {
            let repository = wal::repository().await;
            repository.create(&key, Bytes::from(bytes)).await.unwrap();
            let error = get(&repository, &name, &to).await.unwrap_err();
            assert!(
                matches!(error.kind(), Kind::Damaged | Kind::Unsupported),
                "{at}: {error}"
            );
            assert_eq!(names_in(scratch.path()), [""; 0]);
        }
    }
}

#[tokio::test]
async fn objects_of_another_file_cluster_or_length_are_refused() {
    let name = wal::file_name(1, 1);
    let other = pgstrata_layer::wal::encode;
    let objects = [
        other(
            &wal::file_name(1, 2),
            &expected(1),
            wal::SYSTEM,
            Codec::None,
        )
        .unwrap(),
        other(&name, &expected(1), wal::SYSTEM + 1, Codec::None).unwrap(),
        other(&name, &expected(1)[..4096], wal::SYSTEM, Codec::None).unwrap(),
    ];
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("to");
    for object in objects {
        let repository = wal::repository().await;
        let key = format!("main/wal/00000001/{name}");
        repository.create(&key, Bytes::from(object)).await.unwrap();
        let error = get(&repository, &name, &to).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert_eq!(names_in(scratch.path()), [""; 0]);
    }
}

#[tokio::test]
async fn a_server_of_another_cluster_is_refused() {
    let repository = wal::repository().await;
    archive_segments(&repository, 1).await;
    let scratch = tempfile::tempdir().unwrap();
    let options = GetOptions {
        system_identifier: Some(1),
        ..GetOptions::default()
    };
    for name in [wal::file_name(1, 1), wal::file_name(1, 2)] {
        let to = scratch.path().join("to");
        let got = archive::get(&repository, &wal::name(), &name, &to, &options).await;
        assert_eq!(got.unwrap_err().kind(), Kind::Refused);
    }
}

struct Ahead {
    _scratch: tempfile::TempDir,
    options: PrefetchOptions,
    get: GetOptions,
    to: std::path::PathBuf,
}

fn ahead(count: usize) -> Ahead {
    let scratch = tempfile::tempdir().unwrap();
    let spool = Spool::new(scratch.path().join("spool"));
    Ahead {
        options: PrefetchOptions {
            spool: spool.clone(),
            count,
            jobs: 3,
        },
        get: GetOptions {
            spool: Some(spool),
            system_identifier: Some(wal::SYSTEM),
        },
        to: scratch.path().join("to"),
        _scratch: scratch,
    }
}

/// The only directory in the spool.
fn spooled(ahead: &Ahead) -> std::path::PathBuf {
    let root = ahead._scratch.path().join("spool");
    let names = names_in(&root);
    assert_eq!(names.len(), 1);
    root.join(&names[0])
}

#[tokio::test]
async fn segments_fetched_ahead_are_served_once_and_then_the_end_is_asked_for() {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store = FaultStore::new(memory);
    let repository = Repository::with_store(store.clone());
    wal::init(&repository).await;
    archive_segments(&repository, 4).await;
    let ahead = ahead(8);
    let (name, first) = (wal::name(), wal::file_name(1, 1));
    assert!(
        ahead
            .options
            .spool
            .needs_prefetch(&repository, &name, &first, 8)
    );
    let outcome = archive::prefetch(&repository, &name, &first, &ahead.options)
        .await
        .unwrap();
    let fetched: Vec<String> = (2..=4).map(|n| wal::file_name(1, n)).collect();
    assert_eq!(outcome.fetched, fetched);
    assert!(outcome.reached_end);
    assert!(
        !ahead
            .options
            .spool
            .needs_prefetch(&repository, &name, &first, 3)
    );

    let before = store.operation_count();
    for number in 2..=4 {
        let file = wal::file_name(1, number);
        let got = archive::get(&repository, &name, &file, &ahead.to, &ahead.get)
            .await
            .unwrap();
        assert_eq!(got.source, Source::Spool);
        assert!(std::fs::read(&ahead.to).unwrap() == expected(number));
    }
    assert_eq!(
        store.operation_count(),
        before,
        "the repository is not asked"
    );
    let end = wal::file_name(1, 5);
    let got = archive::get(&repository, &name, &end, &ahead.to, &ahead.get).await;
    assert_eq!(got.unwrap_err().kind(), Kind::NotFound);
    let again = wal::file_name(1, 2);
    let got = archive::get(&repository, &name, &again, &ahead.to, &ahead.get)
        .await
        .unwrap();
    assert_eq!(got.source, Source::Repository);
}

#[tokio::test]
async fn a_spooled_segment_that_was_changed_is_fetched_again() {
    let repository = wal::repository().await;
    archive_segments(&repository, 3).await;
    let ahead = ahead(2);
    let name = wal::name();
    let first = wal::file_name(1, 1);
    archive::prefetch(&repository, &name, &first, &ahead.options)
        .await
        .unwrap();
    let entry = spooled(&ahead).join(wal::file_name(1, 2));
    let whole = std::fs::read(&entry).unwrap();
    std::fs::write(&entry, &whole[..whole.len() / 2]).unwrap();
    // Another segment under the name of the next.
    std::fs::write(spooled(&ahead).join(wal::file_name(1, 3)), &whole).unwrap();
    for number in 2..=3 {
        let file = wal::file_name(1, number);
        let got = archive::get(&repository, &name, &file, &ahead.to, &ahead.get)
            .await
            .unwrap();
        assert_eq!(got.source, Source::Repository);
        assert!(std::fs::read(&ahead.to).unwrap() == expected(number));
    }
}

#[tokio::test]
async fn a_spool_is_never_served_to_another_repository_or_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let url = format!("file://{}/{name}", directory.path().display());
        Repository::open(&RepositoryOptions::new(url)).unwrap()
    };
    let (one, other) = (open("one"), open("other"));
    wal::init(&one).await;
    wal::init(&other).await;
    archive_segments(&one, 2).await;
    let ahead = ahead(2);
    let name = wal::name();
    let second = wal::file_name(1, 2);
    archive::prefetch(&one, &name, &wal::file_name(1, 1), &ahead.options)
        .await
        .unwrap();
    let got = archive::get(&other, &name, &second, &ahead.to, &ahead.get).await;
    assert_eq!(got.unwrap_err().kind(), Kind::NotFound);
    let cluster = ClusterName::parse("other").unwrap();
    let got = archive::get(&one, &cluster, &second, &ahead.to, &ahead.get).await;
    assert_eq!(got.unwrap_err().kind(), Kind::Repository);
    let stranger = GetOptions {
        system_identifier: Some(1),
        ..ahead.get.clone()
    };
    let got = archive::get(&one, &name, &second, &ahead.to, &stranger).await;
    assert_eq!(got.unwrap_err().kind(), Kind::Refused);
    let got = archive::get(&one, &name, &second, &ahead.to, &ahead.get)
        .await
        .unwrap();
    assert_eq!(got.source, Source::Spool);
}

#[tokio::test]
async fn the_spool_is_bounded_and_one_prefetch_works_at_a_time() {
    let repository = wal::repository().await;
    archive_segments(&repository, 9).await;
    let ahead = ahead(3);
    let name = wal::name();
    for number in [1, 4, 5] {
        let after = wal::file_name(1, number);
        archive::prefetch(&repository, &name, &after, &ahead.options)
            .await
            .unwrap();
        let entries = names_in(&spooled(&ahead));
        let segments: Vec<String> = (number + 1..=number + 3)
            .map(|n| wal::file_name(1, n))
            .collect();
        assert_eq!(entries[..3], segments);
        assert_eq!(entries[3..], ["cluster", "lock"]);
    }
    let lock = std::fs::File::open(spooled(&ahead).join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let after = wal::file_name(1, 6);
    let outcome = archive::prefetch(&repository, &name, &after, &ahead.options)
        .await
        .unwrap();
    assert!(outcome.busy);
    assert!(
        !ahead
            .options
            .spool
            .needs_prefetch(&repository, &name, &wal::file_name(1, 9), 3)
    );
}

#[tokio::test]
async fn a_spool_that_others_can_write_to_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let repository = wal::repository().await;
    archive_segments(&repository, 2).await;
    let ahead = ahead(2);
    let name = wal::name();
    let first = wal::file_name(1, 1);
    archive::prefetch(&repository, &name, &first, &ahead.options)
        .await
        .unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(spooled(&ahead), open).unwrap();
    let error = archive::prefetch(&repository, &name, &first, &ahead.options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    let second = wal::file_name(1, 2);
    let got = archive::get(&repository, &name, &second, &ahead.to, &ahead.get)
        .await
        .unwrap();
    assert_eq!(got.source, Source::Repository);
}
