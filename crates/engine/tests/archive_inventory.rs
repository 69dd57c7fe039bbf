//! What is in the archive, and waiting for it.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use pgstrata_engine::archive::{self, PushOptions};
use pgstrata_engine::error::Kind;
use pgstrata_engine::progress::Progress;
use pgstrata_engine::repository::Repository;
use pgstrata_pgdata::{Lsn, TimelineId};
use support::wal;

async fn push(repository: &Repository, name: &str, contents: &[u8]) {
    let pg_wal = tempfile::tempdir().unwrap();
    let path = pg_wal.path().join(name);
    std::fs::write(&path, contents).unwrap();
    let options = PushOptions::default();
    archive::push(repository, &wal::name(), &wal::record(), &path, &options)
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

    let inventory = archive::inventory(&repository, &wal::name()).await.unwrap();
    let [one, two] = &inventory.timelines[..] else {
        unreachable!("two timelines, not {inventory:?}")
    };
    let numbers: Vec<u64> = one.segments.iter().map(|s| s.number).collect();
    assert_eq!(numbers, [0xFFF, 0x1000, 0x1003, 0x1004, 0x1006]);
    let gaps: Vec<(u64, u64)> = one
        .gaps()
        .iter()
        .map(|(a, b)| (a.number, b.number))
        .collect();
    assert_eq!(gaps, [(0x1001, 0x1002), (0x1005, 0x1005)]);
    assert_eq!(one.partials, [wal::segment(1, 0x1007)]);
    assert_eq!(one.backup_labels, [label]);
    assert_eq!(one.unknown, ["main/wal/00000001/junk"]);
    assert!(!one.has_history);
    assert!(two.has_history);
    assert!(two.gaps().is_empty());
    assert_eq!(two.timeline, TimelineId::new(2));
    let segments = archive::segments(&repository, &wal::name(), TimelineId::new(2)).await;
    assert_eq!(segments.unwrap(), [wal::segment(2, 0x1006)]);
}

#[tokio::test]
async fn histories_are_read_and_the_first_timeline_has_none() {
    let repository = wal::repository().await;
    let read = |n| {
        let (repository, name) = (repository.clone(), wal::name());
        async move { archive::history(&repository, &name, TimelineId::new(n)).await }
    };
    assert_eq!(read(1).await.unwrap().entries().len(), 1);
    assert_eq!(read(2).await.unwrap_err().kind(), Kind::NotFound);
    push(&repository, "00000002.history", b"1\t0/3000000\treason\n").await;
    let history = read(2).await.unwrap();
    let switch = Lsn::new(0x300_0000);
    assert_eq!(history.switch_point(TimelineId::new(1)), Some(switch));
    let empty = Repository::memory();
    let error = archive::history(&empty, &wal::name(), TimelineId::new(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Repository);
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
    let wait = archive::wait_for(&repository, &name, &wanted, timeout, &progress);
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
    let waited = archive::wait_for(&repository, &name, &wanted, timeout, &progress).await;
    let error = waited.unwrap_err();
    assert_eq!(error.kind(), Kind::WalMissing);
    assert!(
        error.to_string().contains("000000010000000000000002"),
        "{error}"
    );
    assert!(error.to_string().contains("1 more"), "{error}");
    assert!(error.hint_text().is_some());
    progress.cancel();
    let waited = archive::wait_for(&repository, &name, &wanted, timeout, &progress).await;
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
    let waited = archive::wait_for(&repository, &cluster, &[segment], timeout, &progress).await;
    assert_eq!(waited.unwrap_err().kind(), Kind::Damaged);
}
