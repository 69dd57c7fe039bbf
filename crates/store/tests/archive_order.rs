//! In which order WAL gets into the archive, while the server goes on.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_pgdata::WalSegmentSize;
use pgstrata_store::archive::{self, PushOptions, Pushed};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Kind;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use pgstrata_store::repository::{Repository, RepositoryOptions};
use support::wal::{push, stored};
use support::{ALONE, wal};

#[tokio::test]
async fn ready_neighbours_are_pushed_along_and_their_marks_stay() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let first = wal::write(pg_wal.path(), 1, 5, 1);
    for number in [3, 6, 7, 8, 9] {
        wal::write(pg_wal.path(), 1, number, 1);
    }
    // A segment that is not complete fails for itself, not for the one asked for; those behind it wait.
    std::fs::write(pg_wal.path().join(wal::file_name(1, 8)), b"short").unwrap();
    std::fs::write(pg_wal.path().join("archive_status/junk.ready"), b"").unwrap();
    let marks = || {
        std::fs::read_dir(pg_wal.path().join("archive_status"))
            .unwrap()
            .count()
    };
    let before = marks();
    let options = PushOptions {
        neighbours: 4,
        jobs: 4,
        ..ALONE
    };
    let record = wal::record();
    let outcome = archive::push(&wal::cluster_in(&repository), &record, &first, &options)
        .await
        .unwrap();
    let along: Vec<String> = outcome
        .neighbours
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(along, [wal::file_name(1, 6), wal::file_name(1, 7)]);
    assert_eq!(marks(), before);
    let again = archive::push(&wal::cluster_in(&repository), &record, &first, &options)
        .await
        .unwrap();
    assert_eq!(again.pushed, Pushed::Present);
    assert!(again.neighbours.is_empty(), "they were looked at before");
    let name = wal::file_name(1, 6);
    let path = pg_wal.path().join(&name);
    assert_eq!(push(&repository, &path).await.unwrap(), Pushed::Present);
    assert_eq!(
        stored(&repository, &name).await,
        Some(std::fs::read(&path).unwrap())
    );
}

/// Segments 5 to 9 are ready; the store fails, or answers late, at one operation after the other.
#[tokio::test]
async fn a_later_segment_is_never_there_before_an_earlier_one() {
    let pg_wal = tempfile::tempdir().unwrap();
    for number in 5..=9 {
        wal::write(pg_wal.path(), 1, number, 1);
    }
    let path = pg_wal.path().join(wal::file_name(1, 5));
    let options = PushOptions {
        neighbours: 8,
        jobs: 4,
        ..ALONE
    };
    for nth in 0..16 {
        let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let direct = Repository::with_store(Arc::clone(&memory));
        wal::init(&direct).await;
        let store = FaultStore::failing_at(nth, Fault::Before, Arc::clone(&memory));
        let late = Fault::Delayed(std::time::Duration::from_millis(100));
        store.fail(nth + 1..nth + 2, late);
        let through = Repository::with_store(store);
        let record = wal::record();
        let name = wal::name();
        let cluster = ClusterRepository::new(&through, &name);
        let pushing = archive::push(&cluster, &record, &path, &options);
        let looking = async {
            for _ in 0..40 {
                assert_no_hole(&direct, nth).await;
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let (_, ()) = futures::join!(pushing, looking);
        assert_no_hole(&direct, nth).await;
    }
}

async fn assert_no_hole(repository: &Repository, nth: u64) {
    let names = wal::names(repository).await;
    let expected: Vec<String> = (5..)
        .take(names.len())
        .map(|n| wal::file_name(1, n))
        .collect();
    assert_eq!(names, expected, "failure of operation {nth}");
}

/// A crash between the end of a segment and its mark: the server asks for the next one first, and may never get to the other.
#[tokio::test]
async fn segments_that_a_crash_left_without_a_mark_are_stored_before_those_behind_them() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let mark = |number, kind| {
        let name = format!("{}.{kind}", wal::file_name(2, number));
        pg_wal.path().join("archive_status").join(name)
    };
    for number in 3..=8 {
        wal::write(pg_wal.path(), 2, number, 1);
    }
    // What is marked is archived, or will be asked for.
    std::fs::rename(mark(4, "ready"), mark(4, "done")).unwrap();
    for number in [3, 5, 6] {
        std::fs::remove_file(mark(number, "ready")).unwrap();
    }
    let path = |number| pg_wal.path().join(wal::file_name(2, number));
    let stored = push(&repository, &path(7)).await.unwrap();
    assert!(matches!(stored, Pushed::Stored { .. }));
    let names = async || wal::names(&repository).await;
    let expected = |numbers: &[u64]| -> Vec<String> {
        numbers.iter().map(|n| wal::file_name(2, *n)).collect()
    };
    assert_eq!(names().await, expected(&[5, 6, 7]));
    // A file that the server keeps for later use is none, whatever its name.
    wal::write(pg_wal.path(), 2, 11, 1);
    std::fs::write(path(10), std::fs::read(path(3)).unwrap()).unwrap();
    push(&repository, &path(11)).await.unwrap();
    assert_eq!(names().await, expected(&[5, 6, 7, 11]));
    // What cannot be stored is not passed over.
    std::fs::remove_file(mark(8, "ready")).unwrap();
    wal::write(pg_wal.path(), 2, 9, 1);
    std::fs::write(path(8), &std::fs::read(path(8)).unwrap()[..9000]).unwrap();
    let error = push(&repository, &path(9)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    let both = [wal::file_name(2, 8), wal::file_name(2, 9)];
    let text = error.to_string();
    assert!(both.iter().all(|name| text.contains(name)), "{text}");
    assert_eq!(names().await, expected(&[5, 6, 7, 11]));
}

/// Segments of 4 MiB that are pushed while something is done to their files.
struct Disturbed {
    /// In one pass.
    at_once: bool,
    repository: Repository,
    /// With which error one is refused.
    refused: Kind,
}

impl Disturbed {
    const BYTES: u32 = 4 * wal::MIB;
    const ROUNDS: u64 = 40;

    fn size() -> WalSegmentSize {
        WalSegmentSize::try_from(u64::from(Self::BYTES)).unwrap()
    }

    /// Each is stored whole or not at all, and both happen.
    async fn try_all(&self, disturb: fn(&Path, u64)) {
        let record = wal::record_of(wal::SYSTEM, Self::BYTES);
        wal::init_as(&self.repository, &record).await;
        let cluster = wal::cluster_in(&self.repository);
        let pg_wal = tempfile::tempdir().unwrap();
        let (mut stored_whole, mut refused) = (0, 0);
        for round in 0..Self::ROUNDS {
            let segment = wal::segment(1, 1 + round);
            let name = segment.file_name(Self::size());
            let path = pg_wal.path().join(&name);
            let contents = wal::contents(segment, Self::size(), 1);
            std::fs::write(&path, &contents).unwrap();
            let disturbed = path.clone();
            let server = std::thread::spawn(move || {
                // Soon in the first rounds, and at last later than the slowest machine reads.
                std::thread::sleep(Duration::from_micros(10 * round.pow(3)));
                disturb(&disturbed, round);
            });
            let pushed = match self.at_once {
                true => archive::push_at_once(&cluster, &path, &ALONE).await,
                false => archive::push(&cluster, &record, &path, &ALONE).await,
            };
            server.join().unwrap();
            match pushed {
                Ok(_) => {
                    let kept = stored(&self.repository, &name).await;
                    assert!(kept == Some(contents), "another file in round {round}");
                    stored_whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), self.refused, "{error}");
                    refused += 1;
                }
            }
        }
        assert!(stored_whole > 0 && refused > 0, "{stored_whole}, {refused}");
    }
}

/// The server gives a segment that it needs no more the name of a later one, and writes that into it: also while a
/// backup reads it, to compare it with the archive.
#[tokio::test]
async fn a_segment_that_the_server_uses_again_while_it_is_read_is_not_stored_as_a_mixture() {
    let scratch = tempfile::tempdir().unwrap();
    let url = format!("file://{}", scratch.path().join("repo").display());
    let directory = Repository::open(&RepositoryOptions::new(url)).unwrap();
    for (at_once, repository) in [(false, Repository::memory()), (true, directory)] {
        let disturbed = Disturbed {
            at_once,
            repository,
            refused: Kind::File,
        };
        disturbed
            .try_all(|path, round| {
                let after = wal::segment(1, 1000 + round);
                let to = path.with_file_name(after.file_name(Disturbed::size()));
                std::fs::rename(path, &to).unwrap();
                let file = std::fs::OpenOptions::new().write(true).open(&to).unwrap();
                let later = wal::contents(after, Disturbed::size(), 2);
                file.write_all_at(&later, 0).unwrap();
            })
            .await;
    }
}

/// What it has more is read, and must be in no digest of what is stored.
#[tokio::test]
async fn a_segment_that_grows_while_it_is_read_is_stored_whole_or_not_at_all() {
    let disturbed = Disturbed {
        at_once: true,
        repository: Repository::memory(),
        refused: Kind::Refused,
    };
    disturbed
        .try_all(|path, _| {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            let end = u64::from(Disturbed::BYTES);
            file.write_all_at(&[7; 8192], end).unwrap();
        })
        .await;
}
