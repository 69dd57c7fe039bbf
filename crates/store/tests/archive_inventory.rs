//! What is in the archive, and waiting for it.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_pgdata::{ArchiveFile, Lsn, TimelineId};
use pgstrata_store::archive::{self, Archive, GetOptions, PushOptions};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Kind;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use support::wal;

async fn push(repository: &Repository, name: &str, contents: &[u8]) {
    let pg_wal = tempfile::tempdir().unwrap();
    let path = pg_wal.path().join(name);
    std::fs::write(&path, contents).unwrap();
    let options = PushOptions::default();
    archive::push(
        &wal::cluster_in(repository),
        &wal::record(),
        &path,
        &options,
    )
    .await
    .unwrap();
}

async fn push_segment(repository: &Repository, timeline: u32, number: u64) {
    let segment = wal::segment(timeline, number);
    let contents = wal::contents(segment, wal::size(), 1);
    push(repository, &segment.file_name(wal::size()), &contents).await;
}

#[tokio::test]
async fn the_inventory_tells_files_apart_and_shows_gaps() {
    let repository = wal::repository().await;
    for number in [0xFFF, 0x1000, 0x1003, 0x1004, 0x1006] {
        push_segment(&repository, 1, number).await;
    }
    push_segment(&repository, 2, 0x1006).await;
    push(&repository, "00000002.history", b"1\t1/600000\treason\n").await;
    let partial = format!("{}.partial", wal::file_name(1, 0x1007));
    let contents = wal::contents(wal::segment(1, 0x1007), wal::size(), 1);
    push(&repository, &partial, &contents).await;
    let label = format!("{}.00000028.backup", wal::file_name(1, 0x1003));
    push(&repository, &label, b"START WAL LOCATION\n").await;
    repository
        .create("main/wal/00000001/junk", Bytes::from_static(b"x"))
        .await
        .unwrap();
    repository
        .create("main/wal/junk/x", Bytes::from_static(b"x"))
        .await
        .unwrap();

    let archive = Archive::load(&wal::cluster_in(&repository)).await.unwrap();
    let found = archive.list(iter::empty()).await.unwrap();
    let [(first, one), (second, two)] = &found.by_timeline().collect::<Vec<_>>()[..] else {
        unreachable!("two timelines, not {found:?}")
    };
    assert_eq!((first.get(), second.get()), (1, 2));
    let runs: Vec<_> = one.runs.iter().map(|run| run.first..=run.last).collect();
    assert_eq!(runs, [0xFFF..=0x1000, 0x1003..=0x1004, 0x1006..=0x1006]);
    assert_eq!(one.segments(), 5);
    let gaps: Vec<_> = one.gaps().collect();
    assert_eq!(gaps, [0x1001..=0x1002, 0x1005..=0x1005]);
    assert_eq!(one.unknown, ["main/wal/00000001/junk"]);
    assert_eq!(one.history_stored_at, None);
    assert!(two.history_stored_at.is_some());
    assert_eq!(two.gaps().count(), 0);
    assert!(found.holds(wal::segment(2, 0x1006)));
    // A partial segment is none.
    assert!(!found.holds(wal::segment(1, 0x1007)));
    for (file, is_there) in [
        (ArchiveFile::Partial(wal::segment(1, 0x1007)), true),
        (ArchiveFile::Partial(wal::segment(1, 0x1006)), false),
        (ArchiveFile::Segment(wal::segment(1, 0x1006)), true),
        (ArchiveFile::History(TimelineId::new(2)), true),
        (ArchiveFile::History(TimelineId::new(3)), false),
    ] {
        assert_eq!(found.holds_file(file), is_there, "{file:?}");
    }
}

#[tokio::test]
async fn histories_are_read_and_the_first_timeline_has_none() {
    let repository = wal::repository().await;
    let read = |n| {
        let (repository, name) = (repository.clone(), wal::name());
        async move {
            let cluster = ClusterRepository::new(&repository, &name);
            let archive = Archive::load(&cluster).await.unwrap();
            archive.history(TimelineId::new(n)).await
        }
    };
    assert_eq!(read(1).await.unwrap().entries().len(), 1);
    assert_eq!(read(2).await.unwrap_err().kind(), Kind::NotFound);
    push(&repository, "00000002.history", b"1\t0/3000000\treason\n").await;
    let history = read(2).await.unwrap();
    let switch = Lsn::new(0x300_0000);
    assert_eq!(history.switch_point(TimelineId::new(1)), Some(switch));
    let empty = Repository::memory();
    let error = Archive::load(&wal::cluster_in(&empty)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Repository);
}

#[tokio::test]
async fn damage_is_told_with_the_key_of_the_object() {
    let repository = wal::repository().await;
    push_segment(&repository, 1, 7).await;
    let segment = wal::segment(1, 7);
    let name = segment.file_name(wal::size());
    let key = format!("main/wal/00000001/{name}");
    let whole = repository.get(&key).await.unwrap();
    // The first frame, behind the header.
    let mut without_frame = whole.to_vec();
    without_frame[pgstrata_layer::wal::HEADER_BYTES] ^= 1;
    let cut = whole[..whole.len() - 1].to_vec();
    for (damaged, why) in [
        (without_frame, "does not begin with a frame"),
        (cut, "ends"),
    ] {
        repository.delete(&key).await.unwrap();
        repository.create(&key, damaged.into()).await.unwrap();
        let archive = Archive::load(&wal::cluster_in(&repository)).await.unwrap();
        let file = ArchiveFile::Segment(segment);
        let walked = archive.walk(file, &(), |(), _| Ok(())).await;
        for error in [
            walked.unwrap_err(),
            archive.inspect(file).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Damaged, "{error}");
            let said = error.to_string();
            assert!(
                said.contains(&format!("could not read \"{key}\"")),
                "{said}"
            );
            assert!(said.contains(why), "{said}");
        }
    }
}

#[tokio::test]
async fn waiting_ends_when_the_last_segment_arrives() {
    let repository = wal::repository().await;
    let wanted: Vec<_> = (1..=40).map(|n| wal::segment(1, n)).collect();
    for segment in &wanted[..39] {
        push_segment(&repository, 1, segment.number).await;
    }
    let late = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        push_segment(&repository, 1, 40).await;
    };
    let (name, progress) = (wal::name(), Progress::default());
    let timeout = Duration::from_secs(20);
    let cluster = ClusterRepository::new(&repository, &name);
    let archive = Archive::load(&cluster).await.unwrap();
    let wait = archive.wait_for(&wanted, timeout, &progress);
    let started = Instant::now();
    let (waited, ()) = futures::join!(wait, late);
    waited.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn waiting_ends_with_the_name_of_the_first_missing_segment() {
    let repository = wal::repository().await;
    push_segment(&repository, 1, 1).await;
    let wanted = [wal::segment(1, 1), wal::segment(1, 2), wal::segment(1, 3)];
    let timeout = Duration::from_millis(200);
    let (name, progress) = (wal::name(), Progress::default());
    let cluster = ClusterRepository::new(&repository, &name);
    let archive = Archive::load(&cluster).await.unwrap();
    let waited = archive.wait_for(&wanted, timeout, &progress).await;
    let error = waited.unwrap_err();
    assert_eq!(error.kind(), Kind::WalMissing);
    assert!(
        error.to_string().contains("000000010000000000000002"),
        "{error}"
    );
    assert!(error.to_string().contains("1 more"), "{error}");
    assert!(error.hint_text().is_some());
    progress.cancel();
    let waited = archive.wait_for(&wanted, timeout, &progress).await;
    assert_eq!(waited.unwrap_err().kind(), Kind::Interrupted);
}

#[tokio::test]
async fn a_segment_of_another_cluster_is_not_waited_for() {
    let repository = wal::repository().await;
    let segment = wal::segment(1, 1);
    let name = segment.file_name(wal::size());
    let contents = wal::contents(segment, wal::size(), 1);
    let codec = pgstrata_layer::frame::Codec::None;
    let object = pgstrata_layer::wal::encode(&name, &contents, 5, codec).unwrap();
    let key = format!("main/wal/00000001/{name}");
    repository.create(&key, Bytes::from(object)).await.unwrap();
    let progress = Progress::default();
    let timeout = Duration::from_secs(20);
    let cluster = wal::name();
    let cluster = ClusterRepository::new(&repository, &cluster);
    let archive = Archive::load(&cluster).await.unwrap();
    let waited = archive.wait_for(&[segment], timeout, &progress).await;
    assert_eq!(waited.unwrap_err().kind(), Kind::Damaged);
}

/// The archive is listed while layers are looked for: one may be finished in between, with WAL that the listing lacks.
#[tokio::test]
async fn a_listing_that_lacks_the_end_of_a_layer_is_made_again() {
    let memory: std::sync::Arc<dyn object_store::ObjectStore> =
        std::sync::Arc::new(object_store::memory::InMemory::new());
    let store = pgstrata_store::repository::fault::FaultStore::new(memory);
    let repository = Repository::with_store(store.clone());
    wal::init(&repository).await;
    let cluster = wal::cluster_in(&repository);
    let archive = Archive::load(&cluster).await.unwrap();
    push_segment(&repository, 1, 1).await;
    let listed = archive::objects(&cluster).await.unwrap();
    push_segment(&repository, 1, 2).await;
    // What is archived is listed, and what stands in for lost objects.
    for (last, requests) in [(1, 0), (2, 2)] {
        let ends = (1..=last).map(|number| wal::segment(1, number));
        let before = store.operation_count();
        let found = archive.list_beside(listed.clone(), ends, std::iter::empty());
        let found = found.await.unwrap();
        assert_eq!(store.operation_count() - before, requests);
        assert_eq!(found.holds(wal::segment(1, 2)), last == 2);
    }
}

/// One answer "not there" is the end of the archive for PostgreSQL, which then opens for writes.
#[tokio::test]
async fn a_segment_that_the_store_lists_and_does_not_find_is_not_the_end() {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let direct = Repository::with_store(Arc::clone(&memory));
    wal::init(&direct).await;
    let scratch = tempfile::tempdir().unwrap();
    let segment = wal::write(scratch.path(), 1, 0x10, 1);
    wal::push(&direct, &segment).await.unwrap();
    let (name, to) = (wal::file_name(1, 0x10), scratch.path().join("got"));
    let mut told = Vec::new();
    // The object is asked for twice before anybody says that it is not there.
    for (first, second) in (0..10).flat_map(|first| (first..10).map(move |second| (first, second)))
    {
        let store = FaultStore::new(Arc::clone(&memory));
        for nth in [first, second] {
            store.fail(nth..nth + 1, Fault::Absent);
        }
        let through = Repository::with_store(store.clone());
        let options = GetOptions::default();
        let got = archive::get(&wal::cluster_in(&through), &name, &to, &options).await;
        if let Err(error) = got {
            let at = (first, second);
            assert_ne!(error.kind(), Kind::NotFound, "at {at:?}: {error}");
            told.push(error.to_string());
        }
    }
    let is_listed = |error: &String| error.contains("the store lists it");
    assert!(told.iter().any(is_listed), "{told:#?}");
}

/// A segment that was stored once more was archived, though the object for which that stands in has gone.
#[tokio::test]
async fn rule_13_6_the_archive_does_not_end_before_what_stands_in_for_an_object() {
    let repository = wal::repository().await;
    let key = format!("main/wal/00000001/{}", wal::file_name(1, 2));
    repository.create(&key, "damaged".into()).await.unwrap();
    push_segment(&repository, 1, 2).await;
    repository.delete(&key).await.unwrap();
    for (number, kind) in [
        (1, Some(Kind::WalMissing)),
        (2, None),
        (3, Some(Kind::NotFound)),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let got = archive::get(
            &wal::cluster_in(&repository),
            &wal::file_name(1, number),
            &scratch.path().join("to"),
            &GetOptions::default(),
        )
        .await;
        let failed = got.err().map(|error| error.kind());
        assert_eq!(failed, kind, "{number}");
    }
    let archive = Archive::load(&wal::cluster_in(&repository)).await.unwrap();
    let listed = archive.list(iter::empty()).await.unwrap();
    let is_there = [1, 2, 3].map(|number| listed.holds(wal::segment(1, number)));
    assert_eq!(is_there, [false, true, false]);
    let file = ArchiveFile::Segment(wal::segment(1, 2));
    assert!(archive.holds(&wal::file_name(1, 2)).await.unwrap());
    archive.inspect(file).await.unwrap();
    let files = archive.files().await.unwrap();
    let files: Vec<ArchiveFile> = files.into_iter().map(|(file, _)| file).collect();
    assert_eq!(files, [file]);
    let target = wal::repository().await;
    let copy = Archive::load(&wal::cluster_in(&target)).await.unwrap();
    assert!(archive.copy_to(&copy, file).await.unwrap().is_some());
    target.get(&key).await.unwrap();
}

/// Listings of several repositories are put together in the order of their keys.
#[tokio::test]
async fn what_stands_in_for_an_object_has_its_place_in_every_listing() {
    let repository = wal::repository().await;
    for number in 1..=4 {
        push_segment(&repository, 1, number).await;
    }
    let key = format!("main/wal/00000001/{}", wal::file_name(1, 3));
    let object = repository.get(&key).await.unwrap();
    repository.delete(&key).await.unwrap();
    let mended = format!("main/wal-mended/00000001/{}-1", wal::file_name(1, 3));
    repository.create(&mended, object).await.unwrap();
    let cluster = wal::cluster_in(&repository);
    let archive = Archive::load(&cluster).await.unwrap();
    let mut objects = archive::objects(&cluster).await.unwrap();
    objects.sort_by(|one, other| one.key.cmp(&other.key));
    let found = archive.list_beside(objects, iter::empty(), iter::empty());
    let found = found.await.unwrap();
    let runs = found.runs(TimelineId::new(1)).iter();
    let runs: Vec<_> = runs.map(|run| run.first..=run.last).collect();
    assert_eq!(runs, [1..=4]);
}

/// The end of the archive is not where nothing good is left of what was archived.
#[tokio::test]
async fn what_stands_in_for_a_lost_object_and_is_damaged_is_not_the_end() {
    let repository = wal::repository().await;
    push_segment(&repository, 1, 1).await;
    let name = wal::file_name(1, 2);
    let mended = format!("main/wal-mended/00000001/{name}-1");
    repository.create(&mended, "damaged".into()).await.unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let to = scratch.path().join("to");
    let options = GetOptions::default();
    let got = archive::get(&wal::cluster_in(&repository), &name, &to, &options).await;
    assert_eq!(got.unwrap_err().kind(), Kind::Damaged);
    let archive = Archive::load(&wal::cluster_in(&repository)).await.unwrap();
    let file = ArchiveFile::Segment(wal::segment(1, 2));
    let read = archive.inspect(file).await;
    assert_eq!(read.unwrap_err().kind(), Kind::Damaged);
}

/// Of a timeline that has only begun there is nothing else.
#[tokio::test]
async fn a_history_that_stands_in_for_a_lost_one_is_known() {
    let repository = wal::repository().await;
    let key = "main/wal/00000002/00000002.history";
    repository.create(key, "damaged".into()).await.unwrap();
    push(&repository, "00000002.history", b"1\t0/3000000\treason\n").await;
    repository.delete(key).await.unwrap();
    let archive = Archive::load(&wal::cluster_in(&repository)).await.unwrap();
    let timeline = TimelineId::new(2);
    let mut listed = archive.list(iter::empty()).await.unwrap();
    archive.read_histories(&mut listed).await.unwrap();
    assert!(listed.has_history(timeline));
    assert_eq!(listed.history_problem(timeline), None);
    let histories = archive.histories().await.unwrap();
    let histories = histories.into_iter().map(|(of, read)| (of, read.is_ok()));
    assert_eq!(histories.collect::<Vec<_>>(), [(timeline, true)]);
}

/// Two servers were promoted out of one segment. No recovery reads such a file, and whoever pushes it is told what to do.
#[tokio::test]
async fn a_partial_segment_that_waits_is_no_sign_of_another_history() {
    let repository = wal::repository().await;
    let partial = format!("{}.partial", wal::file_name(1, 5));
    let contents = |fill| wal::contents(wal::segment(1, 5), wal::size(), fill);
    push(&repository, &partial, &contents(1)).await;
    let pg_wal = tempfile::tempdir().unwrap();
    std::fs::create_dir(pg_wal.path().join("archive_status")).unwrap();
    std::fs::write(pg_wal.path().join(&partial), contents(2)).unwrap();
    let mark = format!("archive_status/{partial}.ready");
    std::fs::write(pg_wal.path().join(mark), "").unwrap();
    let cluster = wal::cluster_in(&repository);
    let held = Archive::load(&cluster).await.unwrap();
    let waiting = archive::waiting_files(pg_wal.path(), wal::size()).unwrap();
    let compared = held.compare_waiting(pg_wal.path(), &waiting).await.unwrap();
    assert!(compared.other.is_none());
    assert_eq!(compared.unknown[0].0, partial);
}
