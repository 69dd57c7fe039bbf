//! What goes wrong with a repository on Azure Blob Storage, and how it is said; and the ways in.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::{Repository, RepositoryOptions};
use pgstrata_testbed::azure::AzureServer;
use pgstrata_testbed::proxy::Proxy;
use support::failures;

const LATER: &str = "2099-01-01T00:00:00Z";

/// 32 bytes that are no key of the account.
const WRONG: &str = "d3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmcgd3Jvbmcgd3I=";

fn assert_clear(error: &Error, expected: &str) {
    support::assert_clear(error, "az://", &[WRONG, "sig="], expected);
}

/// The repository with a shared access signature instead of the key.
fn shared(server: &AzureServer, permissions: &str, expiry: &str) -> RepositoryOptions {
    let mut options = support::azure(server, "p");
    options.options.remove("access_key");
    options.with("sas_key", server.shared_access(permissions, expiry))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_container_is_told_from_a_missing_object() {
    let server = AzureServer::start().unwrap();
    let mut options = support::azure(&server, "p");
    options.url = "az://nosuchcontainer/p".to_owned();
    for error in failures(&options).await {
        assert_clear(&error, "the container does not exist");
    }
    let repository = Repository::open(&support::azure(&server, "p")).unwrap();
    let error = repository.get("main/cluster").await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_has_every_object_but_those_whose_names_are_none() {
    let server = AzureServer::start().unwrap();
    let repository = Repository::open(&support::azure(&server, "p")).unwrap();
    let put = |name: &str| {
        let place = format!("/{}/p/main/{name}", server.container());
        let put = server.request("PUT", &place);
        let put = put.unwrap();
        assert!(put.status / 100 == 2, "{name}: {}", put.body);
    };
    support::require_names(&repository, put).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_one_clear_error() {
    let server = AzureServer::start().unwrap();
    let right = support::azure(&server, "p");
    let wrong = right.clone().with("access_key", WRONG);
    let expired = shared(&server, "rcwdl", "2020-01-01T00:00:00Z");
    for options in [wrong, expired] {
        for error in failures(&options).await {
            // The service itself says AuthenticationFailed.
            assert_clear(&error, "access denied, to these credentials");
        }
        let repository = Repository::open(&options).unwrap();
        let keys = ["main/a".to_owned(), "main/b".to_owned()];
        let error = repository.delete_all(&keys).await.unwrap_err();
        assert_clear(&error, "access denied");
    }
    let nobody = right.with("account_name", "nobody");
    let nobody = nobody.with("endpoint", format!("{}/nobody", server.root()));
    for error in failures(&nobody).await {
        assert_clear(&error, "the account");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_none_and_a_missing_account_are_usage_errors() {
    let server = AzureServer::start().unwrap();
    let no_key = support::azure(&server, "p").with("access_key", "not base64!");
    let error = Repository::open(&no_key).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert!(!error.to_string().contains("not base64!"), "{error}");
    let error = Repository::open(&RepositoryOptions::new("az://c/p")).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert!(
        error.hint_text().unwrap().contains("account_name"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_access_signature_does_what_it_allows() {
    let server = AzureServer::start().unwrap();
    let body = Bytes::from_static(b"x");
    let all = Repository::open(&shared(&server, "rcwdl", LATER)).unwrap();
    all.probe("main").await.unwrap();
    all.create("main/a", body.clone()).await.unwrap();
    all.create("main/b", body.clone()).await.unwrap();

    let writer = Repository::open(&shared(&server, "rcl", LATER)).unwrap();
    writer.create("main/c", body.clone()).await.unwrap();
    require_create_only(&writer).await;
    let keys = ["main/a".to_owned(), "main/b".to_owned()];
    for denied in [
        writer.delete("main/a").await.unwrap_err(),
        writer.delete_all(&keys).await.unwrap_err(),
    ] {
        assert_clear(&denied, "access denied");
        assert!(denied.is_denial(), "{denied}");
    }

    let reader = Repository::open(&shared(&server, "rl", LATER)).unwrap();
    assert_eq!(reader.get("main/a").await.unwrap(), body);
    assert_eq!(reader.list("main").await.unwrap().len(), 3);
    let denied = reader.create("main/d", body).await.unwrap_err();
    assert_clear(&denied, "access denied");
    all.delete_all(&keys).await.unwrap();
    assert_eq!(all.list("main").await.unwrap().len(), 1);
}

/// The host of a database needs no right to delete, and none to overwrite: `main/c` is there.
async fn require_create_only(writer: &Repository) {
    let body = Bytes::from_static(b"x");
    writer.create("main/c", body).await.unwrap();
    writer.probe("elsewhere").await.unwrap();
    let again = writer.create("main/c", Bytes::from_static(b"y")).await;
    assert_eq!(again.unwrap_err().kind(), Kind::AlreadyExists);
}

/// The service itself has another word than the emulator for a create that meets an object.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_meets_its_own_object_is_not_denied_by_azure_itself() {
    let server = AzureServer::start().unwrap();
    let network = Proxy::before(&server.root()).unwrap();
    let open_as = |letters: &str| {
        let options = shared(&server, letters, LATER).with("retry_seconds", "1");
        let endpoint = server.behind(network.endpoint());
        Repository::open(&options.with("endpoint", endpoint)).unwrap()
    };
    let writer = open_as("rcl");
    let body = Bytes::from_static(b"x");
    writer.create("main/c", body).await.unwrap();
    network.rewrite(&[(
        "<Code>AuthorizationPermissionMismatch</Code>",
        "<Code>UnauthorizedBlobOverwrite</Code>",
    )]);
    require_create_only(&writer).await;
    let another = Bytes::from_static(b"y");
    let denied = open_as("rl").create("main/d", another).await.unwrap_err();
    assert_clear(&denied, "access denied (UnauthorizedBlobOverwrite)");
    assert!(denied.is_denial(), "{denied}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_store_is_one_clear_error_in_time() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let root = format!("http://127.0.0.1:{port}");
    let options = RepositoryOptions::new("az://backups/p")
        .with("endpoint", format!("{root}/account"))
        .with("account_name", "account")
        .with("retry_seconds", "1");
    let begun = Instant::now();
    for error in failures(&options.clone().with("access_key", WRONG)).await {
        assert_clear(&error, "could not connect");
    }
    assert!(begun.elapsed().as_secs() < 30);
    // Without keys the machine is asked for its identity.
    let identity = format!("{root}/metadata/identity/oauth2/token");
    for error in failures(&options.with("msi_endpoint", identity)).await {
        assert_clear(&error, "there are no credentials");
        assert!(error.hint_text().unwrap().contains("sas_key"), "{error}");
    }
}

#[test]
fn unencrypted_endpoints_must_be_allowed() {
    let open = |url: &str, key: &str, endpoint: &str, allow: Option<&str>| {
        let mut options = RepositoryOptions::new(url).with(key, endpoint);
        if url.starts_with("az") {
            options = options.with("account_name", "a").with("access_key", WRONG);
        } else {
            options = options.with("skip_signature", "true");
        }
        if let Some(allow) = allow {
            options = options.with("allow_http", allow);
        }
        Repository::open(&options)
    };
    for (url, key) in [("az://b/p", "endpoint"), ("gs://b/p", "base_url")] {
        let far = "http://store.example.com/a";
        for refused in [
            open(url, key, far, None),
            open(url, key, "http://127.0.0.1", Some("false")),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{error}");
            assert!(error.hint_text().unwrap().contains("allow_http"));
        }
        open(url, key, far, Some("true")).unwrap();
        open(url, key, "http://127.0.0.1:1/a", None).unwrap();
        open(url, key, "https://store.example.com", None).unwrap();
    }
}

#[tokio::test]
async fn versions_and_locks_are_read_on_s3_alone() {
    let az = RepositoryOptions::new("az://b/p")
        .with("account_name", "a")
        .with("access_key", WRONG);
    let gs = RepositoryOptions::new("gs://b/p").with("skip_signature", "true");
    for options in [az, gs] {
        let repository = Repository::open(&options).unwrap();
        let moment = jiff::Timestamp::UNIX_EPOCH;
        for (error, said) in [
            (repository.require_lock().await.unwrap_err(), "locked"),
            (repository.versioning().await.unwrap_err(), "versions"),
            (repository.as_of(moment).await.unwrap_err(), "versions"),
            (
                repository
                    .since("", moment, &BTreeSet::new())
                    .await
                    .unwrap_err(),
                "versions",
            ),
        ] {
            assert_eq!(error.kind(), Kind::Unsupported, "{error}");
            let text = error.to_string();
            assert!(
                text.contains(said) && text.contains("on S3 alone"),
                "{text}"
            );
            assert!(text.contains(&options.url), "{text}");
            assert!(error.hint_text().is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_breaks_is_not_the_end() {
    let server = AzureServer::start().unwrap();
    let network = Proxy::before(&server.root()).unwrap();
    let endpoint = server.behind(network.endpoint());
    let options = support::azure(&server, "p")
        .with("endpoint", endpoint)
        .with("retry_seconds", "30")
        .with("read_timeout", "1s");
    let repository = Repository::open(&options).unwrap();
    repository.list("main").await.unwrap();
    let body: Bytes = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    for (key, stalls) in [("main/cut", false), ("main/stalled", true)] {
        match stalls {
            true => network.stall_one_after(2_000_000),
            false => network.cut_after(2_000_000),
        }
        let mending = async {
            while !network.has_failed() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            network.clear();
        };
        let (created, ()) = tokio::join!(repository.create(key, body.clone()), mending);
        created.unwrap();
        assert_eq!(repository.get(key).await.unwrap(), body, "{key}");
    }
}

/// The server's clock, by which leases are judged, comes with every object that is listed.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_stores_is_the_same_to_see() {
    let server = AzureServer::start().unwrap();
    let repository = Repository::open(&support::azure(&server, "p")).unwrap();
    let client = MicrosoftAzureBuilder::new()
        .with_account(server.account())
        .with_access_key(server.key())
        .with_endpoint(server.endpoint())
        .with_container_name(server.container())
        .with_allow_http(true)
        .build()
        .unwrap();
    let body = Bytes::from_static(b"theirs");
    client
        .put(&Path::from("p/main/theirs"), body.clone().into())
        .await
        .unwrap();
    let error = repository.create("main/theirs", Bytes::from_static(b"ours"));
    assert_eq!(error.await.unwrap_err().kind(), Kind::AlreadyExists);
    repository.create("main/ours", body).await.unwrap();
    let listed = repository.list("main").await.unwrap();
    let head = client.head(&Path::from("p/main/ours")).await.unwrap();
    let seen = listed
        .iter()
        .find(|object| object.key == "main/ours")
        .unwrap();
    assert_eq!(seen.modified.as_second(), head.last_modified.timestamp());
    assert_eq!(client.list(None).collect::<Vec<_>>().await.len(), 2);
}
