//! Objects of the archive that are damaged or went, and pushes of the files that they held.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::path::Path;

use pgstrata_layer::frame::Codec;
use pgstrata_store::archive::{self, GetOptions, PushOptions, Pushed};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::Repository;
use support::wal::{push, stored};
use support::{ALONE, wal};

/// What a disk, a store or a hand may make of an object.
fn damages(object: &[u8], another: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let flipped = |at: usize| {
        let mut bytes = object.to_vec();
        bytes[at] ^= 0x10;
        bytes
    };
    vec![
        ("empty", Vec::new()),
        ("cut in the header", object[..60].to_vec()),
        ("cut in the frames", object[..object.len() / 2].to_vec()),
        ("cut in the trailer", object[..object.len() - 3].to_vec()),
        ("longer", [object, b"x"].concat()),
        ("magic", flipped(1)),
        ("version", flipped(8)),
        ("digest in the header", flipped(40)),
        ("name in the header", flipped(70)),
        ("frame header", flipped(130)),
        ("frame", flipped(object.len() / 2)),
        ("trailer", flipped(object.len() - 2)),
        ("zeros", vec![0; object.len()]),
        ("another segment's object", another.to_vec()),
    ]
}

/// Nothing is overwritten or deleted, and still the file is there again.
#[tokio::test]
async fn rule_13_11_pushing_the_intact_file_mends_every_kind_of_damage() {
    let pg_wal = tempfile::tempdir().unwrap();
    let path = wal::write(pg_wal.path(), 1, 5, 1);
    let other = wal::write(pg_wal.path(), 1, 6, 1);
    let good = wal::repository().await;
    push(&good, &path).await.unwrap();
    push(&good, &other).await.unwrap();
    let name = wal::file_name(1, 5);
    let key = format!("main/wal/00000001/{name}");
    let object = good.get(&key).await.unwrap();
    let another = format!("main/wal/00000001/{}", wal::file_name(1, 6));
    let another = good.get(&another).await.unwrap();
    for (what, damaged) in damages(&object, &another) {
        let repository = wal::repository().await;
        repository
            .create(&key, damaged.clone().into())
            .await
            .unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let to = scratch.path().join("to");
        let (cluster, options) = (wal::name(), GetOptions::default());
        let got = archive::get(
            &ClusterRepository::new(&repository, &cluster),
            &name,
            &to,
            &options,
        )
        .await;
        assert!(got.is_err(), "{what} is not noticed");
        assert_eq!(
            push(&repository, &path).await.unwrap(),
            Pushed::Mended,
            "{what}"
        );
        let got = stored(&repository, &name).await.unwrap();
        assert!(got == std::fs::read(&path).unwrap(), "{what}");
        assert_eq!(repository.get(&key).await.unwrap(), damaged, "{what}");
        // Again, and once more when that is damaged too.
        assert_eq!(
            push(&repository, &path).await.unwrap(),
            Pushed::Present,
            "{what}"
        );
        let mended = format!("main/wal-mended/00000001/{name}-1");
        repository.delete(&mended).await.unwrap();
        repository.create(&mended, damaged.into()).await.unwrap();
        assert_eq!(
            push(&repository, &path).await.unwrap(),
            Pushed::Mended,
            "{what}"
        );
        assert!(stored(&repository, &name).await.is_some(), "{what}");
    }
}

#[tokio::test]
async fn what_is_left_of_other_contents_is_not_mended_with_these() {
    let repository = wal::repository().await;
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = wal::write(one.path(), 1, 5, 1);
    let stranger = wal::write(other.path(), 1, 5, 2);
    push(&repository, &path).await.unwrap();
    let key = format!("main/wal/00000001/{}", wal::file_name(1, 5));
    let mut object = repository.get(&key).await.unwrap().to_vec();
    let middle = object.len() / 2;
    object[middle] ^= 1;
    repository.delete(&key).await.unwrap();
    repository.create(&key, object.into()).await.unwrap();
    let error = push(&repository, &stranger).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists, "{error}");
    assert_eq!(push(&repository, &path).await.unwrap(), Pushed::Mended);
    let error = push(&repository, &stranger).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists, "{error}");
}

#[tokio::test]
async fn histories_are_mended_too() {
    let repository = wal::repository().await;
    let pg_wal = tempfile::tempdir().unwrap();
    let path = pg_wal.path().join("00000002.history");
    std::fs::write(&path, "1\t0/2000000\tone\n").unwrap();
    let key = "main/wal/00000002/00000002.history";
    repository.create(key, "".into()).await.unwrap();
    assert_eq!(push(&repository, &path).await.unwrap(), Pushed::Mended);
    let timeline = pgstrata_pgdata::TimelineId::new(2);
    let cluster = wal::cluster_in(&repository);
    let archive = archive::Archive::load(&cluster).await.unwrap();
    let history = archive.history(timeline).await;
    assert_eq!(history.unwrap().entries().len(), 2);
}

/// A push by who has not read the cluster's record.
async fn at_once(repository: &Repository, path: &Path) -> Result<Pushed, Error> {
    let pushed = archive::push_at_once(&wal::cluster_in(repository), path, &ALONE).await;
    pushed.map(|outcome| outcome.pushed)
}

/// Recovery reads what stands in for an object that went. Another file under the name would come before it.
#[tokio::test]
async fn what_stands_in_for_an_object_that_went_refuses_another_file() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let history = |directory: &Path, reason: &str| {
        let path = directory.join("00000002.history");
        std::fs::write(&path, format!("1\t0/2000000\t{reason}\n")).unwrap();
        path
    };
    let files = [
        (
            wal::write(one.path(), 1, 5, 1),
            wal::write(other.path(), 1, 5, 2),
        ),
        (history(one.path(), "one"), history(other.path(), "other")),
    ];
    for (path, stranger) in files {
        let repository = wal::repository().await;
        let name = path.file_name().unwrap().to_str().unwrap();
        let (timeline, whole) = (&name[..8], std::fs::read(&path).unwrap());
        let key = format!("main/wal/{timeline}/{name}");
        repository.create(&key, "rot".into()).await.unwrap();
        assert_eq!(push(&repository, &path).await.unwrap(), Pushed::Mended);
        repository.delete(&key).await.unwrap();
        for pushed in [
            push(&repository, &stranger).await,
            at_once(&repository, &stranger).await,
        ] {
            assert_eq!(pushed.unwrap_err().kind(), Kind::AlreadyExists, "{name}");
        }
        assert_eq!(push(&repository, &path).await.unwrap(), Pushed::Present);
        assert_eq!(repository.list("main/wal").await.unwrap(), [], "{name}");
        let got = stored(&repository, name).await;
        assert!(got.as_ref() == Some(&whole), "{name}");
        // What is left of one that is damaged says the same. When that is pushed again, its own object is there again.
        let mended = format!("main/wal-mended/{timeline}/{name}-1");
        let mut object = repository.get(&mended).await.unwrap().to_vec();
        *object.last_mut().unwrap() ^= 1;
        repository.delete(&mended).await.unwrap();
        repository.create(&mended, object.into()).await.unwrap();
        let error = push(&repository, &stranger).await.unwrap_err();
        assert_eq!(error.kind(), Kind::AlreadyExists, "{name}: {error}");
        assert_eq!(push(&repository, &path).await.unwrap(), Pushed::Mended);
        assert_eq!(wal::names(&repository).await, [name]);
        assert!(stored(&repository, name).await == Some(whole), "{name}");
    }
}

/// Both have the file; the objects that they make of it differ.
#[tokio::test]
async fn two_pushes_that_mend_one_object_in_two_ways_both_succeed() {
    let pg_wal = tempfile::tempdir().unwrap();
    let path = wal::write(pg_wal.path(), 1, 5, 1);
    let name = wal::file_name(1, 5);
    let key = format!("main/wal/00000001/{name}");
    let with = |codec| PushOptions { codec, ..ALONE };
    for _ in 0..10 {
        let repository = wal::repository().await;
        repository.create(&key, "rot".into()).await.unwrap();
        let (cluster, record) = (wal::cluster_in(&repository), wal::record());
        let (plain, small) = (with(Codec::None), with(Codec::Lz4));
        let (first, second) = futures::join!(
            archive::push(&cluster, &record, &path, &plain),
            archive::push(&cluster, &record, &path, &small)
        );
        let pushed = [first.unwrap().pushed, second.unwrap().pushed];
        assert!(pushed.contains(&Pushed::Mended), "{pushed:?}");
        let got = stored(&repository, &name).await.unwrap();
        assert!(got == std::fs::read(&path).unwrap());
    }
}
