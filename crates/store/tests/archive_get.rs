//! What `restore_command` may rely on.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::keys::ClusterName;
use pgstrata_store::archive::{self, Ahead, GetOptions, GetOutcome, PushOptions, Source, Spool};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::fault::{Fault, FaultStore};
use pgstrata_store::repository::{Repository, RepositoryOptions};
use support::wal;

async fn get(repository: &Repository, name: &str, to: &Path) -> Result<GetOutcome, Error> {
    archive::get(
        &wal::cluster_in(repository),
        name,
        to,
        &GetOptions::default(),
    )
    .await
}

/// Archives segments 1 to `count` of timeline 1.
async fn archive_segments(repository: &Repository, count: u64) {
    for number in 1..=count {
        archive_segment(repository, 1, number).await;
    }
}

async fn archive_segment(repository: &Repository, timeline: u32, number: u64) {
    let pg_wal = tempfile::tempdir().unwrap();
    archive_file(repository, &wal::write(pg_wal.path(), timeline, number, 1)).await;
}

async fn archive_file(repository: &Repository, path: &Path) {
    let options = PushOptions {
        neighbours: 0,
        ..PushOptions::default()
    };
    archive::push(&wal::cluster_in(repository), &wal::record(), path, &options)
        .await
        .unwrap();
}

/// Archives a history or a backup label.
async fn archive_text(repository: &Repository, name: &str, text: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(name);
    std::fs::write(&path, text).unwrap();
    archive_file(repository, &path).await;
}

async fn kind_of(repository: &Repository, name: &str) -> Kind {
    let scratch = tempfile::tempdir().unwrap();
    let got = get(repository, name, &scratch.path().join("to")).await;
    assert_eq!(names_in(scratch.path()), [""; 0]);
    got.unwrap_err().kind()
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
    let asked = archive::get(
        &ClusterRepository::new(&repository, &other),
        &name,
        &to,
        &options,
    )
    .await;
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
        let got = archive::get(&wal::cluster_in(&repository), &name, &to, &options).await;
        assert_eq!(got.unwrap_err().kind(), Kind::Refused);
    }
}

/// What follows is on timeline 1, and on 2, which leaves it in segment 5.
async fn branched() -> Repository {
    let repository = wal::repository().await;
    archive_segments(&repository, 4).await;
    let history = "1\t0/500800\tno recovery target specified\n";
    archive_text(&repository, "00000002.history", history).await;
    repository
}

#[tokio::test]
async fn rule_13_6_a_segment_missing_before_later_ones_is_a_hole() {
    let repository = wal::repository().await;
    for number in [1, 3] {
        archive_segment(&repository, 1, number).await;
    }
    let scratch = tempfile::tempdir().unwrap();
    let error = get(
        &repository,
        &wal::file_name(1, 2),
        &scratch.path().join("to"),
    )
    .await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), Kind::WalMissing);
    assert!(error.to_string().contains(&wal::file_name(1, 3)), "{error}");
    assert!(error.hint_text().is_some());
    assert_eq!(
        kind_of(&repository, &wal::file_name(1, 0)).await,
        Kind::WalMissing
    );
    assert_eq!(
        kind_of(&repository, &wal::file_name(1, 4)).await,
        Kind::NotFound
    );
    // Of another timeline nothing is known.
    assert_eq!(
        kind_of(&repository, &wal::file_name(2, 2)).await,
        Kind::NotFound
    );
    // The server asks for these by mistake only; recovery does not depend on them.
    for end in [".partial", ".00000028.backup"] {
        let name = format!("{}{end}", wal::file_name(1, 2));
        assert_eq!(kind_of(&repository, &name).await, Kind::NotFound);
    }
}

#[tokio::test]
async fn rule_13_6_a_partial_segment_or_a_backup_label_shows_that_earlier_segments_were_whole() {
    for (end, text) in [
        (".partial", None),
        (".00000028.backup", Some("START WAL LOCATION: 0/300028\n")),
    ] {
        let repository = wal::repository().await;
        archive_segment(&repository, 1, 1).await;
        let pg_wal = tempfile::tempdir().unwrap();
        let segment = wal::write(pg_wal.path(), 1, 3, 1);
        let file = pg_wal.path().join(format!("{}{end}", wal::file_name(1, 3)));
        match text {
            None => std::fs::rename(segment, &file).unwrap(),
            Some(text) => std::fs::write(&file, text).unwrap(),
        }
        archive_file(&repository, &file).await;
        assert_eq!(
            kind_of(&repository, &wal::file_name(1, 2)).await,
            Kind::WalMissing
        );
        // Of the segment itself only a part may have been written.
        assert_eq!(
            kind_of(&repository, &wal::file_name(1, 3)).await,
            Kind::NotFound
        );
    }
}

/// The server asks for a segment on the newest timeline first, then on older ones.
#[tokio::test]
async fn rule_13_6_the_end_is_one_of_a_history() {
    let repository = branched().await;
    // Timeline 2 has archived nothing yet; both asked in turn, that is the end.
    for timeline in [2, 1] {
        let name = wal::file_name(timeline, 5);
        assert_eq!(kind_of(&repository, &name).await, Kind::NotFound, "{name}");
    }
    archive_segment(&repository, 2, 5).await;
    // An abandoned timeline ends for who follows it alone.
    assert_eq!(
        kind_of(&repository, &wal::file_name(1, 5)).await,
        Kind::NotFound
    );
    archive_segment(&repository, 2, 7).await;
    assert_eq!(
        kind_of(&repository, &wal::file_name(2, 6)).await,
        Kind::WalMissing
    );
    assert_eq!(
        kind_of(&repository, &wal::file_name(1, 5)).await,
        Kind::NotFound
    );
    // What the primary took with it when it was lost: timeline 2 goes along segment 4 of timeline 1.
    let lost = format!("main/wal/00000001/{}", wal::file_name(1, 4));
    repository.delete(&lost).await.unwrap();
    assert_eq!(
        kind_of(&repository, &wal::file_name(1, 4)).await,
        Kind::WalMissing
    );
}

#[tokio::test]
async fn rule_13_6_a_history_missing_before_later_timelines_is_a_hole() {
    let repository = branched().await;
    assert_eq!(
        kind_of(&repository, "00000003.history").await,
        Kind::NotFound
    );
    assert_eq!(
        kind_of(&repository, "00000001.history").await,
        Kind::NotFound
    );
    archive_text(&repository, "00000004.history", "1\t0/500800\tx\n").await;
    assert_eq!(
        kind_of(&repository, "00000003.history").await,
        Kind::WalMissing
    );
    assert_eq!(
        kind_of(&repository, "00000005.history").await,
        Kind::NotFound
    );
    // A timeline whose history was lost.
    archive_segment(&repository, 5, 9).await;
    assert_eq!(
        kind_of(&repository, "00000005.history").await,
        Kind::WalMissing
    );
}

#[tokio::test]
async fn a_hole_that_is_filled_in_time_is_none() {
    let repository = wal::repository().await;
    archive_segment(&repository, 1, 2).await;
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("to");
    let options = GetOptions {
        hole_wait: Duration::from_secs(60),
        ..GetOptions::default()
    };
    let (name, first) = (wal::name(), wal::file_name(1, 1));
    let cluster = ClusterRepository::new(&repository, &name);
    let asked = archive::get(&cluster, &first, &to, &options);
    let filled = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        archive_segment(&repository, 1, 1).await;
    };
    let (got, ()) = futures::join!(asked, filled);
    got.unwrap();
    assert!(std::fs::read(&to).unwrap() == expected(1));
}

#[tokio::test]
async fn a_hole_is_the_end_for_who_says_so_after_the_wait() {
    let repository = wal::repository().await;
    archive_segment(&repository, 1, 2).await;
    let scratch = tempfile::tempdir().unwrap();
    let options = GetOptions {
        hole_wait: Duration::from_millis(400),
        hole_is_end: true,
        ..GetOptions::default()
    };
    let (name, to) = (wal::name(), scratch.path().join("to"));
    let started = Instant::now();
    let got = archive::get(
        &ClusterRepository::new(&repository, &name),
        &wal::file_name(1, 1),
        &to,
        &options,
    )
    .await;
    assert_eq!(got.unwrap_err().kind(), Kind::NotFound);
    assert!(started.elapsed() >= options.hole_wait);
}

/// A damaged history of a later timeline: nobody knows whether it goes along.
#[tokio::test]
async fn in_doubt_it_is_not_the_end() {
    let repository = wal::repository().await;
    archive_segments(&repository, 4).await;
    let damaged = Bytes::from_static(b"no history");
    let key = "main/wal/00000002/00000002.history";
    repository.create(key, damaged).await.unwrap();
    assert_eq!(
        kind_of(&repository, &wal::file_name(1, 5)).await,
        Kind::Damaged
    );
}

struct Reader {
    scratch: tempfile::TempDir,
    options: GetOptions,
    to: std::path::PathBuf,
}

fn reader(count: usize) -> Reader {
    let scratch = tempfile::tempdir().unwrap();
    let spool = Spool::new(scratch.path().join("spool"), "/data");
    Reader {
        options: GetOptions {
            ahead: Some(Ahead { spool, count }),
            system_identifier: Some(wal::SYSTEM),
            ..GetOptions::default()
        },
        to: scratch.path().join("to"),
        scratch,
    }
}

impl Reader {
    async fn get(&self, repository: &Repository, number: u64) -> Result<GetOutcome, Error> {
        let (name, file) = (wal::name(), wal::file_name(1, number));
        archive::get(
            &ClusterRepository::new(repository, &name),
            &file,
            &self.to,
            &self.options,
        )
        .await
    }

    async fn source(&self, repository: &Repository, number: u64) -> Source {
        let got = self.get(repository, number).await.unwrap();
        assert!(std::fs::read(&self.to).unwrap() == expected(number));
        got.source
    }

    /// The only directory in the spool.
    fn spooled(&self) -> std::path::PathBuf {
        let root = self.scratch.path().join("spool");
        let names = names_in(&root);
        assert_eq!(names.len(), 1);
        root.join(&names[0])
    }

    fn spooled_segments(&self) -> Vec<String> {
        let names = names_in(&self.spooled()).into_iter();
        names.filter(|name| name.len() == 24).collect()
    }
}

fn segment_names(numbers: std::ops::RangeInclusive<u64>) -> Vec<String> {
    numbers.map(|number| wal::file_name(1, number)).collect()
}

async fn counted() -> (Repository, Arc<FaultStore>) {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store = FaultStore::new(memory);
    let repository = Repository::with_store(store.clone());
    wal::init(&repository).await;
    (repository, store)
}

#[tokio::test]
async fn segments_fetched_along_are_served_once_and_then_the_end_is_asked_for() {
    let (repository, store) = counted().await;
    archive_segments(&repository, 4).await;
    let reader = reader(8);
    let got = reader.get(&repository, 1).await.unwrap();
    assert_eq!(got.source, Source::Repository);
    assert_eq!(got.ahead, segment_names(2..=4));
    let before = store.operation_count();
    for number in 2..=4 {
        assert_eq!(reader.source(&repository, number).await, Source::Spool);
    }
    assert_eq!(
        store.operation_count() - before,
        3,
        "the repository is asked for the header of each, and for nothing else"
    );
    let end = reader.get(&repository, 5).await;
    assert_eq!(end.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(reader.source(&repository, 2).await, Source::Repository);
}

/// A standby asks for a segment until it is there, and then for the next.
#[tokio::test]
async fn who_follows_asks_for_nothing_but_the_segment_wanted() {
    let (repository, store) = counted().await;
    archive_segments(&repository, 3).await;
    let reader = reader(8);
    for number in 1..=3 {
        reader.get(&repository, number).await.unwrap();
    }
    for number in 4..=6 {
        let end = reader.get(&repository, number).await;
        assert_eq!(end.unwrap_err().kind(), Kind::NotFound);
        archive_segment(&repository, 1, number).await;
        let before = store.operation_count();
        let got = reader.get(&repository, number).await.unwrap();
        assert_eq!(got.ahead, [""; 0]);
        // The record and the segment.
        assert_eq!(store.operation_count() - before, 2);
    }
    // Who has fallen behind fetches more each time.
    archive_segments(&repository, 30).await;
    let mut ahead = Vec::new();
    for number in 7..=30 {
        let got = reader.get(&repository, number).await.unwrap();
        if got.source == Source::Repository {
            ahead.push(got.ahead.len());
        }
    }
    assert_eq!(ahead, [1, 2, 4, 8, 4]);
}

#[tokio::test]
async fn a_spooled_segment_that_was_changed_is_fetched_again() {
    let repository = wal::repository().await;
    archive_segments(&repository, 3).await;
    let reader = reader(2);
    reader.get(&repository, 1).await.unwrap();
    let entry = reader.spooled().join(wal::file_name(1, 2));
    let whole = std::fs::read(&entry).unwrap();
    std::fs::write(&entry, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(reader.source(&repository, 2).await, Source::Repository);
    // Another segment under the name of the next.
    std::fs::write(reader.spooled().join(wal::file_name(1, 3)), &whole).unwrap();
    assert_eq!(reader.source(&repository, 3).await, Source::Repository);
}

#[tokio::test]
async fn a_spool_is_never_served_to_another_repository_cluster_or_reader() {
    let directory = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let url = format!("file://{}/{name}", directory.path().display());
        Repository::open(&RepositoryOptions::new(url)).unwrap()
    };
    let (one, other) = (open("one"), open("other"));
    wal::init(&one).await;
    wal::init(&other).await;
    archive_segments(&one, 2).await;
    let reader = reader(2);
    reader.get(&one, 1).await.unwrap();
    let (name, second) = (wal::name(), wal::file_name(1, 2));
    let got = reader.get(&other, 2).await;
    assert_eq!(got.unwrap_err().kind(), Kind::NotFound);
    let cluster = ClusterName::parse("other").unwrap();
    let got = archive::get(
        &ClusterRepository::new(&one, &cluster),
        &second,
        &reader.to,
        &reader.options,
    )
    .await;
    assert_eq!(got.unwrap_err().kind(), Kind::Repository);
    let stranger = GetOptions {
        system_identifier: Some(1),
        ..reader.options.clone()
    };
    let got = archive::get(
        &ClusterRepository::new(&one, &name),
        &second,
        &reader.to,
        &stranger,
    )
    .await;
    assert_eq!(got.unwrap_err().kind(), Kind::Refused);
    let spool = Spool::new(reader.scratch.path().join("spool"), "/other/data");
    let neighbour = GetOptions {
        ahead: Some(Ahead { spool, count: 2 }),
        ..GetOptions::default()
    };
    let got = archive::get(
        &ClusterRepository::new(&one, &name),
        &second,
        &reader.to,
        &neighbour,
    )
    .await;
    assert_eq!(got.unwrap().source, Source::Repository);
    assert_eq!(reader.source(&one, 2).await, Source::Spool);
}

/// The repository was deleted, and another one made at the same URL for a cluster of that name.
#[tokio::test]
async fn segments_of_a_repository_that_was_replaced_are_not_served() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("repository");
    let url = format!("file://{}", root.display());
    let open = || Repository::open(&RepositoryOptions::new(url.clone())).unwrap();
    let old = open();
    wal::init(&old).await;
    archive_segments(&old, 4).await;
    let reader = reader(8);
    reader.get(&old, 1).await.unwrap();
    assert_eq!(reader.spooled_segments(), segment_names(2..=4));
    std::fs::remove_dir_all(&root).unwrap();
    let new = open();
    wal::init(&new).await;
    archive_segments(&new, 1).await;
    // Another history under the same names, such as that of the server before it was set back.
    let pg_wal = tempfile::tempdir().unwrap();
    archive_file(&new, &wal::write(pg_wal.path(), 1, 2, 7)).await;
    let got = reader.get(&new, 2).await.unwrap();
    assert_eq!(got.source, Source::Repository);
    let other = wal::contents(wal::segment(1, 2), wal::size(), 7);
    assert!(std::fs::read(&reader.to).unwrap() == other);
    // What is not there is not there, whatever was.
    let end = reader.get(&new, 3).await;
    assert_eq!(end.unwrap_err().kind(), Kind::NotFound);
}

/// What to fetch along is begun by the record in the spool, while the repository's own is read.
#[tokio::test]
async fn what_was_fetched_along_by_a_record_that_is_not_the_repositorys_is_thrown_away() {
    let old = wal::repository().await;
    archive_segments(&old, 20).await;
    let reader = reader(2);
    reader.get(&old, 1).await.unwrap();
    assert_eq!(reader.spooled_segments(), segment_names(2..=3));
    // Another repository at the same URL: the record says when it was made.
    let new = Repository::memory();
    let record = pgstrata_layer::cluster::ClusterRecord {
        written_by: "another".to_owned(),
        ..wal::record()
    };
    wal::init_as(&new, &record).await;
    archive_segments(&new, 20).await;
    let got = reader.get(&new, 5).await.unwrap();
    assert_eq!(got.source, Source::Repository);
    assert_eq!(got.ahead, [""; 0]);
    assert_eq!(reader.spooled_segments(), [""; 0]);
    // From then on it goes by the new one.
    let got = reader.get(&new, 6).await.unwrap();
    assert_eq!(got.ahead, segment_names(7..=8));
    assert_eq!(reader.source(&new, 7).await, Source::Spool);
    let other = Repository::memory();
    wal::init_as(&other, &wal::record_of(wal::SYSTEM + 1, wal::MIB)).await;
    let refused = reader.get(&other, 9).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Refused);
}

#[tokio::test]
async fn a_segment_and_those_fetched_along_cost_a_request_each_and_one_for_the_record() {
    let (repository, store) = counted().await;
    archive_segments(&repository, 20).await;
    let reader = reader(4);
    let before = store.operation_count();
    reader.get(&repository, 1).await.unwrap();
    assert_eq!(store.operation_count() - before, 6);
    for number in 2..=5 {
        assert_eq!(reader.source(&repository, number).await, Source::Spool);
    }
    let before = store.operation_count();
    let got = reader.get(&repository, 6).await.unwrap();
    assert_eq!(got.ahead, segment_names(7..=10));
    assert_eq!(store.operation_count() - before, 6);
}

#[tokio::test]
async fn a_spooled_segment_that_cannot_be_asked_about_is_not_served_and_is_not_the_end() {
    for fault in [Fault::Before, Fault::After] {
        let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let direct = Repository::with_store(Arc::clone(&memory));
        wal::init(&direct).await;
        archive_segments(&direct, 3).await;
        let reader = reader(8);
        reader.get(&direct, 1).await.unwrap();
        let failing = Repository::with_store(FaultStore::failing_at(0, fault, memory));
        let got = reader.get(&failing, 2).await;
        assert_eq!(got.unwrap_err().kind(), Kind::Repository);
    }
}

#[tokio::test]
async fn the_spool_is_bounded_and_one_call_fills_it_at_a_time() {
    let repository = wal::repository().await;
    archive_segments(&repository, 9).await;
    let reader = reader(3);
    for number in [1, 5, 2] {
        reader.get(&repository, number).await.unwrap();
        assert_eq!(
            reader.spooled_segments(),
            segment_names(number + 1..=number + 3)
        );
    }
    let lock = std::fs::File::open(reader.spooled().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let got = reader.get(&repository, 7).await.unwrap();
    assert_eq!(got.ahead, [""; 0]);
}

#[tokio::test]
async fn spools_of_recoveries_that_are_over_go_and_nothing_else() {
    let repository = wal::repository().await;
    archive_segments(&repository, 4).await;
    let reader = reader(3);
    let root = reader.scratch.path().join("spool");
    reader.get(&repository, 1).await.unwrap();
    let old = reader.spooled();
    let foreign = root.join("base-0123456789abcdef");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("lock"), b"").unwrap();
    std::fs::write(foreign.join("16384"), b"precious").unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    for directory in [&old, &foreign] {
        let opened = std::fs::File::open(directory).unwrap();
        opened.set_modified(long_ago).unwrap();
    }
    let other = GetOptions {
        ahead: Some(Ahead {
            spool: Spool::new(&root, "/other/data"),
            count: 1,
        }),
        ..GetOptions::default()
    };
    let first = wal::file_name(1, 1);
    archive::get(&wal::cluster_in(&repository), &first, &reader.to, &other)
        .await
        .unwrap();
    assert!(!old.exists());
    assert!(foreign.join("16384").exists());
}

#[tokio::test]
async fn a_spool_that_others_can_write_to_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let repository = wal::repository().await;
    archive_segments(&repository, 2).await;
    let reader = reader(2);
    reader.get(&repository, 1).await.unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(reader.spooled(), open).unwrap();
    assert_eq!(reader.source(&repository, 2).await, Source::Repository);
    assert_eq!(reader.get(&repository, 1).await.unwrap().ahead, [""; 0]);
}

/// The segment asked for is delivered at once; others that take long are not waited for without end.
#[tokio::test]
async fn a_neighbour_that_fails_or_hangs_does_not_keep_the_segment() {
    let (repository, store) = counted().await;
    archive_segments(&repository, 4).await;
    let reader = reader(3);
    // The record, the segment, its neighbours.
    let first = store.operation_count() + 2;
    store.fail(first..first + 1, Fault::Before);
    assert_eq!(reader.source(&repository, 1).await, Source::Repository);
    let first = store.operation_count() + 2;
    store.fail(first..first + 3, Fault::Delayed(Duration::from_secs(300)));
    let started = Instant::now();
    assert_eq!(reader.source(&repository, 2).await, Source::Repository);
    assert!(started.elapsed() < Duration::from_secs(30));
}
