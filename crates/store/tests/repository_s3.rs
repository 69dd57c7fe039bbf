//! What goes wrong with an S3 repository, and how it is said.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::{Repository, RepositoryOptions};
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::S3Server;

const SECRET: &str = "a secret that is not shown";

async fn failures(options: &RepositoryOptions) -> [Error; 4] {
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

fn assert_clear(error: &Error, expected: &str) {
    assert_eq!(error.kind(), Kind::Repository, "{error}");
    let text = error.to_string();
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("s3://"), "{text}");
    assert!(error.hint_text().is_some(), "{text}");
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains("secret-"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    assert!(text.len() < 300, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_told_from_a_missing_object() {
    let server = S3Server::start().unwrap();
    let mut options = support::options(&server, "p");
    options.url = "s3://nosuchbucket/p".to_owned();
    for error in failures(&options).await {
        assert_clear(&error, "the bucket does not exist");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_one_clear_error() {
    let server = S3Server::start().unwrap();
    let wrong_secret = support::options(&server, "p").with("secret_access_key", SECRET);
    for error in failures(&wrong_secret).await {
        assert_clear(&error, "the secret key is wrong");
    }
    let wrong_key = support::options(&server, "p").with("access_key_id", "nobody");
    for error in failures(&wrong_key).await {
        assert_clear(&error, "the access key is unknown");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_store_is_one_clear_error_in_time() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let endpoint = format!("http://127.0.0.1:{port}");
    let options = RepositoryOptions::new("s3://backups/p")
        .with("endpoint", endpoint)
        .with("allow_http", "true")
        .with("region", "us-east-1")
        .with("access_key_id", "a")
        .with("secret_access_key", SECRET)
        .with("retry_seconds", "1");
    let started = std::time::Instant::now();
    for error in failures(&options).await {
        assert_clear(&error, "could not connect");
    }
    assert!(started.elapsed().as_secs() < 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_without_tls_is_named() {
    let server = S3Server::start().unwrap();
    let endpoint = server.endpoint().replace("http://", "https://");
    let options = support::options(&server, "p").with("endpoint", endpoint);
    for error in failures(&options).await {
        assert_clear(&error, "the port does not speak TLS");
        assert!(error.hint_text().unwrap().contains("http://"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credentials_are_called_missing() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let options = RepositoryOptions::new("s3://backups/p")
        .with("region", "us-east-1")
        .with("metadata_endpoint", format!("http://127.0.0.1:{port}"))
        .with("retry_seconds", "1");
    for error in failures(&options).await {
        assert_clear(&error, "there are no credentials");
        assert!(
            error.hint_text().unwrap().contains("--credentials"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_create_if_absent_is_refused() {
    let server = S3Server::start_hostile().unwrap();
    let repository = Repository::open(&support::options(&server, "p")).unwrap();
    let error = repository.probe("main").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains("overwrites objects"), "{error}");
    assert!(error.hint_text().is_some());
    assert!(repository.list("main").await.unwrap().is_empty());
}

#[test]
fn unencrypted_endpoints_must_be_allowed() {
    let options = RepositoryOptions::new("s3://b/p").with("endpoint", "http://127.0.0.1:1");
    let error = Repository::open(&options).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert!(error.hint_text().unwrap().contains("allow_http"));
}

#[test]
fn bad_urls_and_options_are_usage_errors() {
    let urls = [
        "",
        "repo",
        "ftp://host/x",
        "s3://",
        "s3:///x",
        "file://relative/x",
        "file:///a/../b",
        "s3://key:secret@bucket/x",
    ];
    for url in urls {
        let error = Repository::open(&RepositoryOptions::new(url)).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{url}");
        assert!(!error.to_string().contains("secret@"), "{error}");
    }
    for url in ["s3://b", "gs://b", "az://b", "file:///x"] {
        let options = RepositoryOptions::new(url).with("colour", "red");
        let error = Repository::open(&options).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{url}");
        assert!(error.to_string().contains("colour"), "{error}");
    }
}

#[test]
fn secrets_are_not_shown() {
    let options = RepositoryOptions::new("s3://b/p")
        .with("access_key_id", "a")
        .with("secret_access_key", SECRET);
    assert!(!format!("{options:?}").contains(SECRET));
    let repository = Repository::open(&options.with("region", "x")).unwrap();
    assert!(!repository.url().contains(SECRET));
    assert!(!format!("{repository:?}").contains(SECRET));
}

#[test]
fn a_secret_may_come_from_a_file() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("secret");
    let options = RepositoryOptions::new("s3://b/p")
        .with("access_key_id", "a")
        .with("secret_access_key_file", path.to_str().unwrap());
    let error = Repository::open(&options).unwrap_err();
    assert_eq!(error.kind(), Kind::File);
    std::fs::write(&path, "a secret\n").unwrap();
    Repository::open(&options).unwrap();
}

/// Each try of the client takes longer than patience lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_stalls_is_not_the_end() {
    let server = S3Server::start().unwrap();
    let proxy = Arc::new(Proxy::before(server.endpoint()).unwrap());
    let options = support::options(&server, "p")
        .with("endpoint", proxy.endpoint())
        .with("read_timeout", "2s")
        .with("retry_seconds", "1");
    let repository = Repository::open(&options).unwrap();
    let body = Bytes::from_static(b"x");
    repository
        .create("main/cluster", body.clone())
        .await
        .unwrap();
    proxy.stall_after(1);
    let weather = Arc::clone(&proxy);
    let clearing = thread::spawn(move || {
        // The client itself tries three times before it answers.
        thread::sleep(Duration::from_secs(9));
        weather.clear();
    });
    let read = repository.get("main/cluster").await;
    assert!(proxy.requests() >= 4, "{}", proxy.requests());
    clearing.join().unwrap();
    assert_eq!(read.unwrap(), body);
}
