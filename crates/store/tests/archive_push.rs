//! What `archive_command` may rely on.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use pgstrata_layer::frame::Codec;
use pgstrata_pgdata::WalSegmentSize;
use pgstrata_store::archive::{self, PushOptions, Pushed};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::Repository;
use pgstrata_store::repository::fault::{Fault, FaultStore};
use support::wal::{push, stored};
use support::{ALONE, wal};

#[tokio::test]
async fn every_kind_of_file_comes_back_as_it_was() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let segment = wal::segment(2, 9);
    let whole = wal::contents(segment, wal::size(), 1);
    let files = [
        (segment.file_name(wal::size()), whole.clone()),
        (format!("{}.partial", segment.file_name(wal::size())), whole),
        (
            "00000002.history".to_owned(),
            b"1\t0/800000\tno recovery target specified\n".to_vec(),
        ),
        (
            format!("{}.00000028.backup", segment.file_name(wal::size())),
            b"START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\n".to_vec(),
        ),
    ];
    for (name, contents) in &files {
        let path = pg_wal.path().join(name);
        std::fs::write(&path, contents).unwrap();
        let first = push(&repository, &path).await.unwrap();
        assert!(matches!(first, Pushed::Stored { .. }), "{name}");
    }
    for (name, contents) in &files {
        assert_eq!(
            stored(&repository, name).await.as_ref(),
            Some(contents),
            "{name}"
        );
    }
}

#[tokio::test]
async fn an_identical_push_succeeds_and_stores_nothing() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let path = wal::write(pg_wal.path(), 1, 1, 1);
    push(&repository, &path).await.unwrap();
    let before = repository.list("").await.unwrap();
    assert_eq!(push(&repository, &path).await.unwrap(), Pushed::Present);
    let recompressed = PushOptions {
        codec: Codec::None,
        ..ALONE
    };
    let (name, record) = (wal::name(), wal::record());
    let again = archive::push(
        &ClusterRepository::new(&repository, &name),
        &record,
        &path,
        &recompressed,
    )
    .await;
    assert_eq!(again.unwrap().pushed, Pushed::Present);
    assert_eq!(repository.list("").await.unwrap(), before);
}

#[tokio::test]
async fn other_contents_under_a_name_are_refused_and_the_first_stay() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let other_wal = tempfile::tempdir().unwrap();
    let path = wal::write(pg_wal.path(), 1, 1, 1);
    let other = wal::write(other_wal.path(), 1, 1, 2);
    push(&repository, &path).await.unwrap();
    let error = push(&repository, &other).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(
        error.to_string().contains("000000010000000000000001"),
        "{error}"
    );
    assert!(error.hint_text().is_some());

    let history = pg_wal.path().join("00000002.history");
    std::fs::write(&history, "1\t0/2000000\tone\n").unwrap();
    push(&repository, &history).await.unwrap();
    std::fs::write(&history, "1\t0/3000000\tother\n").unwrap();
    let error = push(&repository, &history).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);

    let name = wal::file_name(1, 1);
    assert_eq!(
        stored(&repository, &name).await,
        Some(std::fs::read(&path).unwrap())
    );
    let history = stored(&repository, "00000002.history").await.unwrap();
    assert_eq!(history, b"1\t0/2000000\tone\n");
}

#[tokio::test]
async fn of_two_clusters_pushing_one_name_one_wins() {
    let repository = wal::repository().await;
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = [
        wal::write(one.path(), 1, 1, 1),
        wal::write(other.path(), 1, 1, 2),
    ];
    let (first, second) =
        futures::join!(push(&repository, &paths[0]), push(&repository, &paths[1]));
    let winner = match (&first, &second) {
        (Ok(_), Err(e)) | (Err(e), Ok(_)) => {
            assert_eq!(e.kind(), Kind::AlreadyExists);
            if first.is_ok() { &paths[0] } else { &paths[1] }
        }
        both => unreachable!("one of two must win: {both:?}"),
    };
    let name = wal::file_name(1, 1);
    assert_eq!(
        stored(&repository, &name).await,
        Some(std::fs::read(winner).unwrap())
    );
}

async fn assert_refused(bytes: &[u8], name: &str, words: &str) {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let path = pg_wal.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let first = push(&repository, &path).await;
    // In one pass.
    let second = push_at_once(&repository, &path).await;
    for pushed in [first, second] {
        let error = pushed.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(repository.list("main/wal").await.unwrap(), []);
}

#[tokio::test]
async fn files_that_are_not_what_their_name_says_are_refused() {
    let segment = wal::segment(1, 7);
    let name = segment.file_name(wal::size());
    let good = wal::contents(segment, wal::size(), 1);
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    assert_refused(&good[..good.len() - 1], &name, "complete segment").await;
    assert_refused(&[], &name, "complete segment").await;
    assert_refused(&[&good[..], b"x"].concat(), &name, "complete segment").await;
    assert_refused(
        &changed(24, &5_u64.to_le_bytes()),
        &name,
        "system identifier 5",
    )
    .await;
    assert_refused(&changed(32, &(2 * wal::MIB).to_le_bytes()), &name, "").await;
    assert_refused(&changed(0, &[0; 2]), &name, "magic").await;
    assert_refused(
        &changed(0, &0xD118_u16.to_le_bytes()),
        &name,
        "PostgreSQL 18",
    )
    .await;
    assert_refused(&good, &wal::file_name(1, 8), "begins at").await;
    assert_refused(&changed(4, &2_u32.to_le_bytes()), &name, "timeline 2").await;
    assert_refused(b"no history", "00000002.history", "line").await;
    assert_refused(b"3\t0/1\tlater\n", "00000002.history", "increase").await;
}

/// A crash of the file system leaves such files. Once stored they would keep the right ones out.
#[tokio::test]
async fn an_empty_history_is_refused_and_a_comment_is_not() {
    for nothing in [&b""[..], b"\n", b" \t\r\n \n", &[0; 42]] {
        assert_refused(nothing, "00000002.history", "the file is empty").await;
    }
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    // No recovery reads a label: it holds up no archiver.
    let label = pg_wal
        .path()
        .join(format!("{}.00000028.backup", wal::file_name(1, 7)));
    std::fs::write(&label, "").unwrap();
    push(&repository, &label).await.unwrap();
    let history = pg_wal.path().join("00000002.history");
    std::fs::write(&history, "").unwrap();
    let error = push(&repository, &history).await.unwrap_err();
    let hint = error.hint_text().unwrap();
    assert!(
        hint.contains("pg_wal") && hint.contains("# nobody"),
        "{hint}"
    );
    // It is not in the way of the right one.
    std::fs::write(&history, "1\t0/2000000\tone\n").unwrap();
    push(&repository, &history).await.unwrap();
    let gap = pg_wal.path().join("00000003.history");
    std::fs::write(&gap, "# nobody\n").unwrap();
    let pushed = push(&repository, &gap).await.unwrap();
    assert!(matches!(pushed, Pushed::Stored { .. }));
}

fn make_pipe(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}

/// Whoever opens a pipe waits for somebody who writes.
#[tokio::test]
async fn what_is_no_file_is_refused_and_a_link_to_one_is_not() {
    let repository = wal::repository().await;
    let scratch = tempfile::tempdir().unwrap();
    let label = format!("{}.00000028.backup", wal::file_name(1, 7));
    for name in [&wal::file_name(1, 7), "00000002.history", &label] {
        let path = scratch.path().join(name);
        for what in ["a named pipe", "a directory", "a device"] {
            match what {
                "a named pipe" => make_pipe(&path),
                "a directory" => std::fs::create_dir(&path).unwrap(),
                _ => std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            }
            let outcomes = [
                push(&repository, &path).await,
                push_at_once(&repository, &path).await,
            ];
            for outcome in outcomes {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), Kind::File, "{error}");
                let said = error.to_string();
                assert!(said.contains(what) && said.contains(name), "{said}");
            }
            let _ = std::fs::remove_dir(&path);
            let _ = std::fs::remove_file(&path);
        }
    }
    // Nor is a pipe opened that has another name.
    let pipe = scratch.path().join("pipe");
    make_pipe(&pipe);
    let error = push_at_once(&repository, &pipe).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    let elsewhere = tempfile::tempdir().unwrap();
    let link = scratch.path().join(wal::file_name(1, 1));
    let file = wal::write(elsewhere.path(), 1, 1, 1);
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let pushed = push_at_once(&repository, &link).await.unwrap();
    assert!(matches!(pushed, Pushed::Stored { .. }));
}

#[tokio::test]
async fn the_first_segment_of_a_timeline_may_begin_with_the_page_before_it() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let contents = wal::contents(wal::segment(1, 7), wal::size(), 1);
    let path = pg_wal.path().join(wal::file_name(2, 7));
    std::fs::write(&path, contents).unwrap();
    push(&repository, &path).await.unwrap();
}

#[tokio::test]
async fn names_the_server_does_not_archive_are_usage_errors() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    for name in [
        "x",
        "archive_status",
        "00000001000000000000000g",
        "000000010000000000001000",
    ] {
        let path = pg_wal.path().join(name);
        std::fs::write(&path, b"x").unwrap();
        let error = push(&repository, &path).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{name}: {error}");
    }
    let absent = pg_wal.path().join(wal::file_name(1, 1));
    assert_eq!(
        push(&repository, &absent).await.unwrap_err().kind(),
        Kind::File
    );
}

/// Stored too early it could never be replaced, and the server would ask for it for ever.
#[tokio::test]
async fn a_segment_that_the_server_may_still_write_is_refused() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let current = wal::write(pg_wal.path(), 1, 5, 1);
    let mark = |kind: &str| {
        let marks = pg_wal.path().join("archive_status");
        marks.join(format!("{}.{kind}", wal::file_name(1, 5)))
    };
    std::fs::remove_file(mark("ready")).unwrap();
    // The server keeps a file for the next segment, which was the third one.
    let later = pg_wal.path().join(wal::file_name(1, 6));
    let recycled = wal::contents(wal::segment(1, 3), wal::size(), 1);
    std::fs::write(&later, recycled).unwrap();
    let refused = push(&repository, &current).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Refused);
    assert!(
        refused.to_string().contains("has not finished"),
        "{refused}"
    );
    assert!(refused.hint_text().unwrap().contains("pg_switch_wal"));

    // Finished is what the server has marked, or left for the next one.
    std::fs::write(mark("done"), b"").unwrap();
    let stored = push(&repository, &current).await.unwrap();
    assert!(matches!(stored, Pushed::Stored { .. }));
    let other = wal::repository().await;
    std::fs::remove_file(mark("done")).unwrap();
    let begun = wal::contents(wal::segment(1, 6), wal::size(), 1);
    std::fs::write(&later, begun).unwrap();
    let stored = push(&other, &current).await.unwrap();
    assert!(matches!(stored, Pushed::Stored { .. }));
}

/// What was read while the server wrote it would be cut for good.
#[tokio::test]
async fn a_segment_that_is_finished_while_it_is_pushed_is_stored_whole_or_not_at_all() {
    for knows_record in [false, true] {
        let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let direct = Repository::with_store(Arc::clone(&memory));
        wal::init(&direct).await;
        let store = FaultStore::holding_up(0, memory);
        let through = Repository::with_store(store.clone());
        let pg_wal = tempfile::tempdir().unwrap();
        let path = wal::write(pg_wal.path(), 1, 5, 1);
        let name = wal::file_name(1, 5);
        let mark = pg_wal.path().join(format!("archive_status/{name}.ready"));
        let whole = std::fs::read(&path).unwrap();
        std::fs::remove_file(&mark).unwrap();
        let mut begun = whole.clone();
        begun[whole.len() / 2..].fill(0);
        std::fs::write(&path, begun).unwrap();
        let pushing = async {
            match knows_record {
                true => push(&through, &path).await,
                false => push_at_once(&through, &path).await,
            }
        };
        let finishing = async {
            store.reached().await;
            // By now a push that reads at once has read.
            tokio::time::sleep(Duration::from_millis(300)).await;
            std::fs::write(&path, &whole).unwrap();
            std::fs::write(&mark, b"").unwrap();
            store.go_on();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            pushed = pushing => {
                let refused = pushed.is_err_and(|error| error.kind() == Kind::Refused);
                assert_eq!(refused, knows_record);
            }
            () = finishing => unreachable!(),
        }
        let there = stored(&direct, &name).await;
        assert!(there.is_none_or(|there| there == whole), "it was cut");
        std::fs::write(&mark, b"").unwrap();
        std::fs::write(&path, &whole).unwrap();
        push(&direct, &path).await.unwrap();
        assert!(stored(&direct, &name).await == Some(whole));
    }
}

/// The largest that is read and compressed in one pass, and a larger one.
#[tokio::test]
async fn large_segments_come_back_as_they_were() {
    for (bytes, at_once) in [(64 << 20, true), (128 << 20, true), (128 << 20, false)] {
        a_large_segment_comes_back_as_it_was(bytes, at_once).await;
    }
}

async fn a_large_segment_comes_back_as_it_was(bytes: u32, at_once: bool) {
    let record = wal::record_of(wal::SYSTEM, bytes);
    let size = WalSegmentSize::try_from(u64::from(bytes)).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let url = format!("file://{}", scratch.path().join("repo").display());
    let repository =
        Repository::open(&pgstrata_store::repository::RepositoryOptions::new(url)).unwrap();
    let encoded = pgstrata_layer::cluster::encode(&record);
    repository
        .create("main/cluster", encoded.into())
        .await
        .unwrap();
    let segment = wal::segment(1, 3);
    let name = segment.file_name(size);
    let path = scratch.path().join(&name);
    let contents = wal::contents(segment, size, 1);
    std::fs::write(&path, &contents).unwrap();
    let cluster = wal::cluster_in(&repository);
    let pushed = match at_once {
        true => archive::push_at_once(&cluster, &path, &ALONE).await,
        false => archive::push(&cluster, &record, &path, &ALONE).await,
    };
    assert!(matches!(pushed.unwrap().pushed, Pushed::Stored { .. }));
    assert!(stored(&repository, &name).await.unwrap() == contents);
}

/// A file is archived if and only if a push said so, or will be found by the push repeated.
#[tokio::test]
async fn a_push_survives_the_failure_of_every_store_operation() {
    let pg_wal = tempfile::tempdir().unwrap();
    let path = wal::write(pg_wal.path(), 1, 5, 1);
    wal::write(pg_wal.path(), 1, 6, 1);
    let names = [wal::file_name(1, 5), wal::file_name(1, 6)];
    let expected = names
        .clone()
        .map(|n| std::fs::read(pg_wal.path().join(n)).unwrap());
    let options = PushOptions {
        neighbours: 1,
        jobs: 2,
        ..ALONE
    };
    let record = wal::record();
    for fault in [
        Fault::Before,
        Fault::After,
        Fault::PassingBefore,
        Fault::LostAnswer,
    ] {
        for nth in 0.. {
            let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let direct = Repository::with_store(Arc::clone(&memory));
            wal::init(&direct).await;
            let store = FaultStore::failing_at(nth, fault, memory);
            let through = Repository::with_store(store.clone());
            let outcome = archive::push(&wal::cluster_in(&through), &record, &path, &options).await;
            let names = [&names[0], &names[1]];
            let there = direct.list("main/wal").await.unwrap();
            let there = names.map(|n| there.iter().any(|object| object.key.ends_with(n)));
            assert!(there != [false, true], "{fault:?} {nth}: a hole");
            if outcome.is_ok() {
                let got = stored(&direct, names[0]).await;
                assert!(got.as_ref() == Some(&expected[0]), "{fault:?} {nth}");
            } else {
                assert!(!matches!(fault, Fault::PassingBefore | Fault::LostAnswer));
            }
            for (name, expected) in names.into_iter().zip(&expected) {
                let got = stored(&direct, name).await;
                assert!(
                    got.is_none_or(|g| g == *expected),
                    "{fault:?} {nth}: whole or not there"
                );
            }
            let again = archive::push(&wal::cluster_in(&direct), &record, &path, &options).await;
            let again = again.unwrap();
            let fresh = again.pushed != Pushed::Present;
            assert_eq!(
                again.neighbours.len(),
                usize::from(fresh),
                "{fault:?} {nth}"
            );
            // The server asks for each, whatever became of it as a neighbour.
            let second = pg_wal.path().join(names[1]);
            push(&direct, &second).await.unwrap();
            let got = stored(&direct, names[1]).await;
            assert!(got.as_ref() == Some(&expected[1]), "{fault:?} {nth}");
            if store.operation_count() <= nth {
                assert!(nth >= 6, "both files need two looks and a create");
                break;
            }
        }
    }
}

/// The server asks for each neighbour in turn; that need not fetch what was stored a moment ago.
#[tokio::test]
async fn a_neighbour_just_pushed_is_not_read_back_and_any_other_file_is() {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store = FaultStore::new(Arc::clone(&memory));
    let repository = Repository::with_store(store.clone());
    wal::init(&repository).await;
    let pg_wal = tempfile::tempdir().unwrap();
    let first = wal::write(pg_wal.path(), 1, 5, 1);
    let second = wal::write(pg_wal.path(), 1, 6, 1);
    let scratch = tempfile::tempdir().unwrap();
    let notes = archive::Notes::new(scratch.path().join("spool"), repository.url(), "main");
    let options = PushOptions {
        neighbours: 8,
        jobs: 4,
        notes: Some(notes),
        ..ALONE
    };
    let (name, record) = (wal::name(), wal::record());
    let along = archive::push(
        &ClusterRepository::new(&repository, &name),
        &record,
        &first,
        &options,
    )
    .await;
    assert_eq!(along.unwrap().neighbours.len(), 1);
    let requests = async || {
        let before = store.operation_count();
        let again = archive::push(
            &ClusterRepository::new(&repository, &name),
            &record,
            &second,
            &options,
        )
        .await;
        assert_eq!(again.unwrap().pushed, Pushed::Present);
        store.operation_count() - before
    };
    assert_eq!(requests().await, 1, "the header");
    // By hand, once more: that is somebody who wants to know.
    assert_eq!(
        requests().await,
        3,
        "the header, that of what stands in, the object"
    );
}

async fn push_at_once(repository: &Repository, path: &Path) -> Result<Pushed, Error> {
    let pushed = archive::push_at_once(&wal::cluster_in(repository), path, &ALONE).await;
    pushed.map(|outcome| outcome.pushed)
}

#[tokio::test]
async fn who_has_not_read_the_record_stores_a_segment_with_four_requests() {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store = FaultStore::new(memory);
    let repository = Repository::with_store(store.clone());
    wal::init(&repository).await;
    let pg_wal = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let notes = archive::Notes::new(scratch.path().join("spool"), repository.url(), "main");
    let options = PushOptions {
        neighbours: 8,
        notes: Some(notes),
        ..ALONE
    };
    let count = async |path: &Path| {
        let before = store.operation_count();
        let cluster = wal::cluster_in(&repository);
        let outcome = archive::push_at_once(&cluster, path, &options).await;
        (outcome.unwrap().pushed, store.operation_count() - before)
    };
    let first = wal::write(pg_wal.path(), 1, 5, 1);
    let (pushed, requests) = count(&first).await;
    assert!(matches!(pushed, Pushed::Stored { .. }));
    assert_eq!(
        requests, 4,
        "the record, the header, that of what stands in, the object"
    );
    let second = wal::write(pg_wal.path(), 1, 6, 1);
    let third = wal::write(pg_wal.path(), 1, 7, 1);
    assert_eq!(
        count(&second).await.1,
        7,
        "the next one's headers, and its object"
    );
    let (pushed, requests) = count(&third).await;
    assert_eq!(pushed, Pushed::Present);
    assert_eq!(
        requests, 2,
        "the record, the header: it was stored a moment ago"
    );
    for number in 5..=7 {
        let name = wal::file_name(1, number);
        let path = pg_wal.path().join(&name);
        let expected = std::fs::read(&path).unwrap();
        assert_eq!(stored(&repository, &name).await, Some(expected));
    }
}

/// What a segment says of itself is not the record of the cluster that it is pushed to.
#[tokio::test]
async fn nothing_is_stored_before_the_record_is_known_to_be_this_clusters() {
    let others = [
        wal::record_of(wal::SYSTEM + 1, wal::MIB),
        wal::record_of(wal::SYSTEM, 2 * wal::MIB),
        pgstrata_layer::cluster::ClusterRecord {
            major: 16,
            ..wal::record()
        },
    ];
    for record in others {
        let repository = Repository::memory();
        wal::init_as(&repository, &record).await;
        let pg_wal = tempfile::tempdir().unwrap();
        let path = wal::write(pg_wal.path(), 1, 1, 1);
        wal::write(pg_wal.path(), 1, 2, 1);
        let options = PushOptions {
            neighbours: 4,
            ..ALONE
        };
        let pushed = archive::push_at_once(&wal::cluster_in(&repository), &path, &options).await;
        assert_eq!(pushed.unwrap_err().kind(), Kind::Refused);
        assert_eq!(repository.list("main/wal").await.unwrap(), []);
    }
    let nowhere = Repository::memory();
    let pg_wal = tempfile::tempdir().unwrap();
    let path = wal::write(pg_wal.path(), 1, 1, 1);
    assert_eq!(
        push_at_once(&nowhere, &path).await.unwrap_err().kind(),
        Kind::NotFound
    );
    assert_eq!(nowhere.list("").await.unwrap(), []);
}

#[tokio::test]
async fn a_push_at_once_refuses_another_history_and_mends_damage() {
    let repository = wal::repository().await;
    let (pg_wal, other_wal) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = wal::write(pg_wal.path(), 1, 1, 1);
    let other = wal::write(other_wal.path(), 1, 1, 2);
    push_at_once(&repository, &path).await.unwrap();
    assert_eq!(
        push_at_once(&repository, &path).await.unwrap(),
        Pushed::Present
    );
    let refused = push_at_once(&repository, &other).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::AlreadyExists);
    let key = format!("main/wal/00000001/{}", wal::file_name(1, 1));
    let mut damaged = repository.get(&key).await.unwrap().to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    repository.delete(&key).await.unwrap();
    repository.create(&key, damaged.into()).await.unwrap();
    assert_eq!(
        push_at_once(&repository, &path).await.unwrap(),
        Pushed::Mended
    );
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(
        stored(&repository, &wal::file_name(1, 1)).await,
        Some(whole)
    );
}

/// Two at once, of one server and of two.
#[tokio::test]
async fn of_pushes_at_once_one_stores_and_all_agree() {
    let repository = wal::repository().await;
    let (pg_wal, other_wal) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = wal::write(pg_wal.path(), 1, 1, 1);
    let other = wal::write(other_wal.path(), 1, 1, 2);
    let (one, same, another) = futures::join!(
        push_at_once(&repository, &path),
        push_at_once(&repository, &path),
        push_at_once(&repository, &other)
    );
    assert_eq!(one.is_ok(), same.is_ok(), "{one:?} {same:?}");
    assert_ne!(one.is_ok(), another.is_ok(), "{one:?} {another:?}");
    let winner = if one.is_ok() { &path } else { &other };
    let expected = std::fs::read(winner).unwrap();
    assert_eq!(
        stored(&repository, &wal::file_name(1, 1)).await,
        Some(expected)
    );
}

#[tokio::test]
async fn a_push_at_once_that_fails_anywhere_has_stored_all_or_says_so() {
    for fault in [Fault::Before, Fault::After, Fault::LostAnswer] {
        for nth in 0.. {
            let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let direct = Repository::with_store(Arc::clone(&memory));
            wal::init(&direct).await;
            let store = FaultStore::failing_at(nth, fault, memory);
            let through = Repository::with_store(store.clone());
            let pg_wal = tempfile::tempdir().unwrap();
            let path = wal::write(pg_wal.path(), 1, 1, 1);
            let pushed = push_at_once(&through, &path).await;
            let name = wal::file_name(1, 1);
            let expected = std::fs::read(&path).unwrap();
            match (pushed, stored(&direct, &name).await) {
                (Ok(_), held) => assert_eq!(held, Some(expected), "{fault:?} {nth}"),
                (Err(_), held) => assert!(held.is_none_or(|held| held == expected)),
            }
            // The server asks again.
            push_at_once(&direct, &path).await.unwrap();
            if store.operation_count() <= nth {
                break;
            }
        }
    }
}
