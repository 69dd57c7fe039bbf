//! One suite for every kind of store: what the engine relies on.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

mod conformance {
    use bytes::Bytes;
    use futures::future;
    use pgstrata_store::error::Kind;
    use pgstrata_store::repository::Repository;

    pub(crate) async fn all(repository: &Repository) {
        created_objects_read_back(repository).await;
        a_create_never_overwrites(repository).await;
        one_of_many_creates_wins(repository).await;
        absence_is_told_from_failure(repository).await;
        ranges_are_exact(repository).await;
        listings_are_whole_and_in_order(repository).await;
        deletion_removes_one_object(repository).await;
        many_objects_are_deleted_at_once(repository).await;
        repository.probe("main").await.unwrap();
        repository.probe("").await.unwrap();
        the_probe_leaves_nothing(repository).await;
    }

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    async fn created_objects_read_back(repository: &Repository) {
        for size in [0_usize, 1, 4096, 1 << 20, 16 << 20] {
            let key = format!("sizes/{size}");
            let body: Bytes = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
            repository.create(&key, body.clone()).await.unwrap();
            assert_eq!(repository.get(&key).await.unwrap(), body, "{size} bytes");
            let expected = u64::try_from(size).unwrap();
            assert_eq!(repository.size(&key).await.unwrap(), Some(expected));
        }
    }

    async fn a_create_never_overwrites(repository: &Repository) {
        repository.create("once/a", bytes("first")).await.unwrap();
        repository.create("once/a", bytes("first")).await.unwrap();
        for other in ["other", "longer than first", ""] {
            let error = repository.create("once/a", bytes(other)).await.unwrap_err();
            assert_eq!(error.kind(), Kind::AlreadyExists);
        }
        assert_eq!(repository.get("once/a").await.unwrap(), bytes("first"));
    }

    async fn one_of_many_creates_wins(repository: &Repository) {
        for round in 0..5 {
            let key = format!("race/{round}");
            let creates = (0..16).map(|n| repository.create(&key, bytes(&format!("racer {n}"))));
            let results = future::join_all(creates).await;
            let won: Vec<_> = (0..16).filter(|&n| results[n].is_ok()).collect();
            assert_eq!(won.len(), 1, "round {round}");
            let stored = repository.get(&key).await.unwrap();
            assert_eq!(stored, bytes(&format!("racer {}", won[0])));
            for lost in results.iter().filter_map(|r| r.as_ref().err()) {
                assert_eq!(lost.kind(), Kind::AlreadyExists);
            }
        }
    }

    async fn absence_is_told_from_failure(repository: &Repository) {
        let error = repository.get("absent/a").await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(error.hint_text(), None);
        let error = repository.get_range("absent/a", 0..4).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(repository.size("absent/a").await.unwrap(), None);
        assert!(repository.list("absent").await.unwrap().is_empty());
        assert!(repository.list_names("absent").await.unwrap().is_empty());
        repository.delete("absent/a").await.unwrap();
    }

    async fn ranges_are_exact(repository: &Repository) {
        repository
            .create("range/a", bytes("0123456789"))
            .await
            .unwrap();
        let read = |range| repository.get_range("range/a", range);
        assert_eq!(read(0..10).await.unwrap(), bytes("0123456789"));
        assert_eq!(read(3..7).await.unwrap(), bytes("3456"));
        assert_eq!(read(9..10).await.unwrap(), bytes("9"));
        assert_eq!(read(4..4).await.unwrap(), bytes(""));
        for beyond in [5..11, 10..11, 100..200] {
            let error = read(beyond.clone()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Damaged, "{beyond:?}: {error}");
        }
        let many = [8..10, 0..2, 5..5, 2..3];
        let got = repository.get_ranges("range/a", &many).await.unwrap();
        assert_eq!(got, [bytes("89"), bytes("01"), bytes(""), bytes("2")]);
        let beyond = repository.get_ranges("range/a", &[0..2, 8..12]).await;
        assert_eq!(beyond.unwrap_err().kind(), Kind::Damaged);
    }

    async fn listings_are_whole_and_in_order(repository: &Repository) {
        let keys = ["list/b/2", "list/a", "list/b/10", "list/c/d/e", "listing/x"];
        for key in keys {
            repository.create(key, bytes(key)).await.unwrap();
        }
        let below = repository.list("list").await.unwrap();
        let found: Vec<&str> = below.iter().map(|o| o.key.as_str()).collect();
        assert_eq!(found, ["list/a", "list/b/10", "list/b/2", "list/c/d/e"]);
        assert_eq!(below[0].size_bytes, 6);
        let age = jiff::Timestamp::now().duration_since(below[0].modified);
        assert!(age.abs().as_secs() < 600, "{age:?}");
        let names = repository.list_names("list").await.unwrap();
        assert_eq!(names, ["a", "b", "c"]);
        let after = repository.list_from("list", "list/b/10").await.unwrap();
        let found: Vec<&str> = after.iter().map(|o| o.key.as_str()).collect();
        assert_eq!(found, ["list/b/2", "list/c/d/e"]);
        let some = repository.list_some("list", "list/a", 2).await.unwrap();
        // A directory gives all of them.
        assert_eq!(some[..2], ["list/b/10", "list/b/2"]);
        let whole = repository.list("").await.unwrap();
        assert!(whole.iter().any(|o| o.key == "listing/x"));
        let names = repository.list_names("").await.unwrap();
        assert!(names.iter().any(|n| n == "listing"));
    }

    async fn deletion_removes_one_object(repository: &Repository) {
        repository.create("gone/a", bytes("a")).await.unwrap();
        repository.create("gone/ab", bytes("ab")).await.unwrap();
        repository.delete("gone/a").await.unwrap();
        assert_eq!(repository.size("gone/a").await.unwrap(), None);
        assert_eq!(repository.list_names("gone").await.unwrap(), ["ab"]);
        repository.create("gone/a", bytes("again")).await.unwrap();
        assert_eq!(repository.get("gone/a").await.unwrap(), bytes("again"));
    }

    async fn many_objects_are_deleted_at_once(repository: &Repository) {
        let keys: Vec<String> = (0..1100)
            .map(|n| format!("many/{}/object-{n}", n % 3))
            .collect();
        // Not all of them are there.
        let there = keys.iter().filter(|key| !key.ends_with('7'));
        let creates: Vec<_> = there
            .map(|key| repository.create(key, bytes("x")))
            .collect();
        for created in future::join_all(creates).await {
            created.unwrap();
        }
        repository.create("many/0/stays", bytes("y")).await.unwrap();
        repository.delete_all(&keys).await.unwrap();
        let left = repository.list("many").await.unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
        assert_eq!(left[0].key, "many/0/stays");
        repository.delete_all(&keys).await.unwrap();
        repository.delete_all(&[]).await.unwrap();
    }

    async fn the_probe_leaves_nothing(repository: &Repository) {
        let left = repository.list("").await.unwrap();
        assert!(!left.iter().any(|o| o.key.contains("probe-")), "{left:?}");
    }
}

use pgstrata_store::repository::{Repository, RepositoryOptions};
use pgstrata_testbed::azure::AzureServer;
use pgstrata_testbed::s3::S3Server;

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    conformance::all(&Repository::memory()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_conforms() {
    let scratch = tempfile::tempdir().unwrap();
    let url = format!("file://{}/not yet there/repo", scratch.path().display());
    let repository = Repository::open(&RepositoryOptions::new(url)).unwrap();
    conformance::all(&repository).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_server_conforms() {
    let server = S3Server::start().unwrap();
    let repository = Repository::open(&support::options(&server, "some/prefix/")).unwrap();
    conformance::all(&repository).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_azure_server_conforms() {
    let server = AzureServer::start().unwrap();
    let repository = Repository::open(&support::azure(&server, "some/prefix/")).unwrap();
    conformance::all(&repository).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_of_other_prefixes_are_not_seen() {
    let server = S3Server::start().unwrap();
    let one = Repository::open(&support::options(&server, "a")).unwrap();
    let other = Repository::open(&support::options(&server, "ab")).unwrap();
    other
        .create("main/cluster", bytes::Bytes::from_static(b"x"))
        .await
        .unwrap();
    assert!(one.list("").await.unwrap().is_empty());
    assert_eq!(other.list_names("").await.unwrap(), ["main"]);
}
