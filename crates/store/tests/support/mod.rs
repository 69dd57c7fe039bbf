//! How a test reaches the servers of object stores, and archives to test with.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "not every test needs all of it"
)]

pub(crate) mod places;
pub(crate) mod vault;

use bytes::Bytes;
use pgstrata_layer::frame::Codec;
use pgstrata_store::archive::PushOptions;
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::{ObjectInfo, Repository, RepositoryOptions};
use pgstrata_testbed::azure::AzureServer;
use pgstrata_testbed::s3::S3Server;

/// One file, and no other with it.
pub(crate) const ALONE: PushOptions = PushOptions {
    codec: Codec::Zstd(1),
    neighbours: 0,
    jobs: 1,
    notes: None,
    finished: false,
    told: None,
};

/// The repository at `prefix` of the server's bucket; gives up early.
pub(crate) fn options(server: &S3Server, prefix: &str) -> RepositoryOptions {
    RepositoryOptions::new(format!("s3://{}/{prefix}", server.bucket()))
        .with("endpoint", server.endpoint())
        .with("region", server.region())
        .with("allow_http", "true")
        .with("path_style", "true")
        .with("access_key_id", server.access_key())
        .with("secret_access_key", server.secret())
        .with("retry_seconds", "3")
}

/// The repository at `prefix` of the server's container; gives up early.
pub(crate) fn azure(server: &AzureServer, prefix: &str) -> RepositoryOptions {
    RepositoryOptions::new(format!("az://{}/{prefix}", server.container()))
        .with("endpoint", server.endpoint())
        .with("account_name", server.account())
        .with("access_key", server.key())
        .with("retry_seconds", "3")
}

/// Lists what is below `main` when somebody has put objects there whose names are none: `put` takes a path of an URL, which
/// goes on behind the repository's.
pub(crate) async fn require_names(repository: &Repository, put: impl Fn(&str)) {
    let strange = [
        "a%0Ab",
        "c%0D",
        "%09d",
        "e%C2%9Bf",
        "g%E2%80%AEh",
        "i%7F",
        "j%0Ak/l",
    ];
    let good = [" lead", "and&<so>\"on'", "trail ", "x", "y/z", "ü"];
    let encoded = [
        "%20lead",
        "and%26%3Cso%3E%22on%27",
        "trail%20",
        "x",
        "y/z",
        "%C3%BC",
    ];
    strange.iter().chain(&encoded).for_each(|name| put(name));
    let below = |names: &[&str]| -> Vec<String> {
        names.iter().map(|name| format!("main/{name}")).collect()
    };
    let keys = |found: Vec<ObjectInfo>| -> Vec<String> {
        found.into_iter().map(|object| object.key).collect()
    };
    assert_eq!(keys(repository.list("main").await.unwrap()), below(&good));
    let from = repository.list_from("main", "main/trail ").await;
    assert_eq!(keys(from.unwrap()), below(&good[3..]));
    let some = repository.list_some("main", "main/and", 9).await;
    assert_eq!(some.unwrap(), below(&good[1..]));
    let names = repository.list_names("main").await.unwrap();
    assert_eq!(names, [" lead", good[1], "trail ", "x", "y", "ü"]);
    for key in below(&good) {
        assert_eq!(repository.size(&key).await.unwrap(), Some(0), "{key:?}");
    }
}

/// What each way to use a repository says that cannot be used.
pub(crate) async fn failures(options: &RepositoryOptions) -> [Error; 4] {
    let repository = Repository::open(options).unwrap();
    [
        repository
            .create("main/cluster", Bytes::from_static(b"x"))
            .await
            .unwrap_err(),
        repository.get("main/cluster").await.unwrap_err(),
        repository.list("main").await.unwrap_err(),
        repository.probe("main").await.unwrap_err(),
    ]
}

/// One error of the store says `expected`, what to do, and in which repository, without any of the secrets.
pub(crate) fn assert_clear(error: &Error, scheme: &str, secrets: &[&str], expected: &str) {
    assert_eq!(error.kind(), Kind::Repository, "{error}");
    let text = error.to_string();
    assert!(text.contains(expected), "{text}");
    assert!(text.contains(scheme), "{text}");
    assert!(error.hint_text().is_some(), "{text}");
    for secret in secrets {
        assert!(!text.contains(secret), "{text}");
    }
    assert!(!text.contains('\n'), "{text}");
    assert!(text.len() < 300, "{text}");
}

/// Archives made up for tests: small segments with true headers.
pub(crate) mod wal {
    use std::path::{Path, PathBuf};

    use bytes::Bytes;
    use pgstrata_layer::cluster::{self, ClusterRecord};
    use pgstrata_layer::keys::ClusterName;
    use pgstrata_pgdata::{Major, TimelineId, WalSegment, WalSegmentSize};
    use pgstrata_store::archive::{self, GetOptions, Pushed};
    use pgstrata_store::cluster::ClusterRepository;
    use pgstrata_store::error::{Error, Kind};
    use pgstrata_store::repository::Repository;

    use super::ALONE;

    pub(crate) const SYSTEM: u64 = 7_000_000_000_000_000_001;
    pub(crate) const MIB: u32 = 1 << 20;

    pub(crate) fn name() -> ClusterName {
        ClusterName::parse("main").unwrap()
    }

    pub(crate) fn cluster_in(repository: &Repository) -> ClusterRepository {
        ClusterRepository::new(repository, &name())
    }

    pub(crate) fn size() -> WalSegmentSize {
        WalSegmentSize::try_from(u64::from(MIB)).unwrap()
    }

    pub(crate) fn record() -> ClusterRecord {
        record_of(SYSTEM, MIB)
    }

    pub(crate) fn record_of(system_identifier: u64, wal_segment_size: u32) -> ClusterRecord {
        ClusterRecord {
            name: "main".to_owned(),
            format: cluster::FORMAT,
            system_identifier,
            major: 15,
            catalog_version: Major::V15.catalog_version(),
            block_size: 8192,
            wal_segment_size,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            written_by: "test".to_owned(),
            sealing: None,
            retention: None,
        }
    }

    /// A repository in memory that knows the cluster.
    pub(crate) async fn repository() -> Repository {
        let repository = Repository::memory();
        init(&repository).await;
        repository
    }

    pub(crate) async fn init(repository: &Repository) {
        init_as(repository, &record()).await;
    }

    pub(crate) async fn init_as(repository: &Repository, record: &ClusterRecord) {
        let record = Bytes::from(cluster::encode(record));
        repository
            .create(&name().cluster_key(), record)
            .await
            .unwrap();
    }

    pub(crate) async fn push(repository: &Repository, path: &Path) -> Result<Pushed, Error> {
        let pushed = archive::push(&cluster_in(repository), &record(), path, &ALONE).await;
        pushed.map(|outcome| outcome.pushed)
    }

    /// What the archive gives back; `None` when it says that there is nothing.
    pub(crate) async fn stored(repository: &Repository, name: &str) -> Option<Vec<u8>> {
        let scratch = tempfile::tempdir().unwrap();
        let to = scratch.path().join("got");
        match archive::get(&cluster_in(repository), name, &to, &GetOptions::default()).await {
            Ok(_) => Some(std::fs::read(&to).unwrap()),
            Err(error) => {
                assert_eq!(error.kind(), Kind::NotFound, "{error}");
                None
            }
        }
    }

    /// Names of what the archive has, in order.
    pub(crate) async fn names(repository: &Repository) -> Vec<String> {
        let there = repository.list("main/wal").await.unwrap();
        let name = |key: &str| key.rsplit('/').next().unwrap().to_owned();
        there.iter().map(|object| name(&object.key)).collect()
    }

    pub(crate) fn segment(timeline: u32, number: u64) -> WalSegment {
        WalSegment {
            timeline: TimelineId::new(timeline),
            number,
        }
    }

    pub(crate) fn file_name(timeline: u32, number: u64) -> String {
        segment(timeline, number).file_name(size())
    }

    /// The contents of a segment; `seed` tells histories apart.
    pub(crate) fn contents(segment: WalSegment, size: WalSegmentSize, seed: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(Major::V15.wal_page_magic().to_le_bytes());
        bytes.extend(0x0006_u16.to_le_bytes());
        bytes.extend(segment.timeline.get().to_le_bytes());
        bytes.extend(segment.start_lsn(size).get().to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend(SYSTEM.to_le_bytes());
        bytes.extend(u32::try_from(size.get()).unwrap().to_le_bytes());
        bytes.extend(8192_u32.to_le_bytes());
        let mut word = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + segment.number;
        while bytes.len() < usize::try_from(size.get()).unwrap() {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Half of it compresses.
            bytes.extend((word >> 32).to_le_bytes());
            bytes.extend([0; 8]);
        }
        bytes.truncate(usize::try_from(size.get()).unwrap());
        bytes
    }

    /// Writes the segment where a server would have it, marked as ready.
    pub(crate) fn write(pg_wal: &Path, timeline: u32, number: u64, seed: u64) -> PathBuf {
        let segment = segment(timeline, number);
        let path = pg_wal.join(segment.file_name(size()));
        std::fs::write(&path, contents(segment, size(), seed)).unwrap();
        let marks = pg_wal.join("archive_status");
        std::fs::create_dir_all(&marks).unwrap();
        let mark = format!("{}.ready", segment.file_name(size()));
        std::fs::write(marks.join(mark), b"").unwrap();
        path
    }
}
