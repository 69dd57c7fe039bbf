//! What goes wrong with an S3 repository, and how it is said.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pgstrata_layer::claim::ClaimRecord;
use pgstrata_layer::cluster::{LockMode, RetentionRecord};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_store::catalog::{self, Catalog, LayerPlan, remove_leftover};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::versions::Retention;
use pgstrata_store::repository::{Repository, RepositoryOptions};
use pgstrata_testbed::certificates::{Authority, Subject};
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::{Bucket, S3Server};
use support::failures;

const SECRET: &str = "a secret that is not shown";

fn assert_clear(error: &Error, expected: &str) {
    support::assert_clear(error, "s3://", &[SECRET, "secret-"], expected);
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
async fn a_listing_has_every_object_but_those_whose_names_are_none() {
    let server = S3Server::start().unwrap();
    let repository = Repository::open(&support::options(&server, "p")).unwrap();
    let put = |name: &str| {
        let put = server.request(None, "PUT", &format!("/p/main/{name}"), "");
        let put = put.unwrap();
        assert!(put.status / 100 == 2, "{name}: {}", put.body);
    };
    support::require_names(&repository, put).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_create_if_absent_is_refused() {
    let server = S3Server::start_hostile().unwrap();
    let repository = Repository::open(&support::options(&server, "p")).unwrap();
    let error = repository.probe("main").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains("overwrites objects"), "{error}");
    assert!(error.hint_text().is_some());
    let left = repository.list("main").await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn unencrypted_endpoints_must_be_allowed() {
    let at = |endpoint: &str| RepositoryOptions::new("s3://b/p").with("endpoint", endpoint);
    let far = at("http://s3.example.com:9000");
    for options in [
        far.clone(),
        at("http://10.0.0.1"),
        at("http://127.0.0.1").with("allow_http", "false"),
    ] {
        let error = Repository::open(&options).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.hint_text().unwrap().contains("allow_http"));
    }
    Repository::open(&far.with("allow_http", "true")).unwrap();
    // Nobody listens between a program and its own machine.
    Repository::open(&at("http://127.0.0.1:1")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_of_ones_own_is_trusted_when_it_is_named() {
    let authority = Authority::new("of the house").unwrap();
    let subject = Subject {
        common_name: "s3",
        names: &["localhost"],
        is_expired: false,
    };
    let server = S3Server::start_with_tls(&authority.issue(subject).unwrap()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let file = authority.write(scratch.path()).unwrap();
    let named = server.endpoint().replace("127.0.0.1", "localhost");
    let options = support::options(&server, "p").with("endpoint", named);
    for error in failures(&options).await {
        assert_clear(&error, "its authority is not trusted");
        assert!(
            error.hint_text().unwrap().contains("--s3-ca-file"),
            "{error}"
        );
    }
    let trusting = options.with("ca_file", file.to_str().unwrap());
    let repository = Repository::open(&trusting).unwrap();
    repository.probe("main").await.unwrap();
    let elsewhere = trusting.clone().with("endpoint", server.endpoint());
    for error in failures(&elsewhere).await {
        assert_clear(&error, "it is for another host");
    }
    std::fs::write(&file, "no certificate").unwrap();
    let error = Repository::open(&trusting).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
    assert!(error.to_string().contains("ca.crt"), "{error}");
}

/// A credentials file.
fn write_keys(file: &Path, access_key: &str, secret: &str) {
    let text = format!("access_key_id = '{access_key}'\nsecret_access_key = '{secret}'\n");
    std::fs::write(file, text).unwrap();
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(file, mode).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_expire_are_read_again_from_their_file() {
    let server = S3Server::start_with(Bucket::Locked).unwrap();
    let first = || (server.access_key(), server.secret());
    let second = || (server.second_access_key(), server.second_secret());
    let proxy = Proxy::before(server.endpoint()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("s3.toml");
    let write = |(key, secret): (&str, &str)| write_keys(&file, key, secret);
    write(first());
    let mut options = support::options(&server, "p")
        .with("endpoint", proxy.endpoint())
        .with("retry_seconds", "60");
    options.options.remove("access_key_id");
    options.options.remove("secret_access_key");
    options.credentials = Some(file.clone());
    let repository = Repository::open(&options).unwrap();
    let retention = RetentionRecord {
        version: 1,
        mode: LockMode::Governance,
        days: 1,
    };
    repository.retain(Retention::from(retention));
    let body = Bytes::from(vec![7; 1 << 20]);
    repository.create("main/a", body.clone()).await.unwrap();

    // Renewed in time: nobody notices.
    proxy.expire_key(first().0);
    write(second());
    assert_eq!(repository.get("main/a").await.unwrap(), body);
    assert_eq!(proxy.refused(), 0);

    // Renewed too late: every kind of request waits for it.
    proxy.expire_key(second().0);
    let renewing = async {
        while proxy.refused() < 7 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        write(first());
    };
    // Those about locks and versions are signed in the URL.
    let locked = "main/layer/20261121-093305F/manifest";
    let (created, read, listed, size, manifest, kept, can_lock, ()) = tokio::join!(
        repository.create("main/b", body.clone()),
        repository.get("main/a"),
        repository.list("main"),
        repository.size("main/a"),
        repository.create(locked, body.clone()),
        repository.kept("main/a"),
        repository.require_lock(),
        renewing
    );
    created.unwrap();
    manifest.unwrap();
    assert!(repository.locked_until(locked).await.unwrap().is_some());
    assert_eq!(kept.unwrap().unwrap().versions().len(), 1);
    can_lock.unwrap();
    assert_eq!(read.unwrap(), body);
    assert!(!listed.unwrap().is_empty());
    assert_eq!(size.unwrap(), Some(1 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_token_that_nobody_can_renew_is_one_clear_error_at_once() {
    let server = S3Server::start().unwrap();
    let proxy = Proxy::before(server.endpoint()).unwrap();
    proxy.expire_key(server.access_key());
    let options = support::options(&server, "p")
        .with("endpoint", proxy.endpoint())
        .with("retry_seconds", "600");
    for error in failures(&options).await {
        assert_clear(&error, "the session token has expired");
        assert!(
            error.hint_text().unwrap().contains("--credentials"),
            "{error}"
        );
    }
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
        "s3://my bucket/x",
        "s3://bucket\n/x",
        "az://my container/x",
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

/// Refused as a mistake, with that word, and without a secret. The client would panic with the first request.
fn require_usage(options: &RepositoryOptions, (key, value): (&str, &str), word: &str) {
    let error = Repository::open(&options.clone().with(key, value)).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{key} {value:?}: {error}");
    let told = format!("{error}; {}", error.hint_text().unwrap());
    assert!(told.contains(word), "{key} {value:?}: {told}");
    assert!(!told.contains("secret-"), "{told}");
}

#[test]
fn an_address_that_is_none_is_a_usage_error_that_says_how_to_write_it() {
    let s3 = RepositoryOptions::new("s3://b/p");
    let google = RepositoryOptions::new("gs://b/p").with("skip_signature", "true");
    let azure = RepositoryOptions::new("az://b/p").with("account_name", "account");
    for (options, key, address) in [
        (&s3, "endpoint", "minio:9000"),
        (&s3, "endpoint", "minio.example.com"),
        (&google, "base_url", "storage.example.com"),
        (&azure, "endpoint", "azurite:10000/account"),
        (&azure, "authority_host", "login.example.com"),
    ] {
        let written = format!("write https://{address},");
        require_usage(options, (key, address), &written);
    }
    for address in [
        "",
        "https://",
        "ftp://minio",
        "http://127.0.0.1:99999",
        "https://key:secret-x@min io",
    ] {
        require_usage(&s3, ("endpoint", address), "like https://minio:9000");
    }
    // Where the bucket is part of the host's name, fewer names can be.
    let mut hosted = s3.with("path_style", "false");
    Repository::open(&hosted).unwrap();
    hosted.url = "s3://tenant:b/p".to_owned();
    require_usage(&hosted, ("path_style", "false"), "bucket");
    Repository::open(&hosted.with("path_style", "true")).unwrap();
}

#[test]
fn a_value_that_no_header_holds_is_a_usage_error() {
    let far = RepositoryOptions::new("s3://b/p");
    let near = far.clone().with("endpoint", "http://127.0.0.1:1");
    let google = RepositoryOptions::new("gs://b/p");
    let azure = RepositoryOptions::new("az://b/p").with("account_name", "account");
    for (options, key, value) in [
        (&far, "region", "eu west"),
        (&near, "region", "eu\n"),
        (&near, "access_key_id", "A\n"),
        (&near, "session_token", "secret-x\n"),
        (&near, "session_token", "secret-\0"),
        (&near, "default_content_type", "x\n"),
        (&google, "bearer_token", "secret-x\n"),
        (&azure, "token", "secret-x\n"),
        (&azure, "account_name", "account\n"),
        (&azure, "tenant_id", "a tenant"),
    ] {
        require_usage(options, (key, value), key);
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
    for (mode, kind) in [(0o600, None), (0o644, Some(Kind::Refused))] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let refused = Repository::open(&options).err();
        assert_eq!(refused.map(|error| error.kind()), kind, "{mode:o}");
    }
    // What is no secret may be read by everybody.
    let region = scratch.path().join("region");
    std::fs::write(&region, "eu-central-1\n").unwrap();
    std::fs::set_permissions(&region, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let options = RepositoryOptions::new("s3://b/p")
        .with("region_file", region.to_str().unwrap())
        .with("access_key_id_file", region.to_str().unwrap())
        .with("secret_access_key_file", path.to_str().unwrap());
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

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_that_stalls_costs_half_a_minute() {
    let server = S3Server::start().unwrap();
    let proxy = Proxy::before(server.endpoint()).unwrap();
    let mut options = support::options(&server, "p").with("endpoint", proxy.endpoint());
    options.options.remove("retry_seconds");
    let repository = Repository::open(&options).unwrap();
    let body = Bytes::from(vec![7; 1 << 20]);
    repository.create("main/a", body.clone()).await.unwrap();
    proxy.stall_one_after(100_000);
    let begun = Instant::now();
    assert_eq!(repository.get("main/a").await.unwrap(), body);
    assert!(proxy.has_failed());
    // It was two minutes; no machine is so slow that it needs one.
    assert!(
        begun.elapsed() < Duration::from_secs(90),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_may_take_longer_than_an_answer_and_not_for_ever() {
    let server = S3Server::start().unwrap();
    let proxy = Proxy::before(server.endpoint()).unwrap();
    let options = support::options(&server, "p")
        .with("endpoint", proxy.endpoint())
        .with("read_timeout", "1s");
    let repository = Repository::open(&options).unwrap();
    // One MiB has seven seconds more than a question.
    let body = Bytes::from(vec![7; 1 << 20]);
    proxy.delay(Duration::from_secs(3));
    repository.create("main/slow", body.clone()).await.unwrap();
    assert_eq!(proxy.requests(), 1, "it was sent again");
    proxy.stall_one_after(500_000);
    let begun = Instant::now();
    repository
        .create("main/stalled", body.clone())
        .await
        .unwrap();
    assert!(proxy.has_failed());
    assert!(
        begun.elapsed() > Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(repository.get("main/stalled").await.unwrap(), body);
}

/// Stores small objects; answers the repository behind a proxy that counts requests from then on.
async fn stored(server: &S3Server, direct: &Repository, keys: &[String]) -> (Proxy, Repository) {
    let creates = keys
        .iter()
        .map(|key| direct.create(key, Bytes::from_static(b"x")));
    let creates: Vec<_> = creates.collect();
    for created in futures::future::join_all(creates).await {
        created.unwrap();
    }
    let proxy = Proxy::before(server.endpoint()).unwrap();
    let options = support::options(server, "p").with("endpoint", proxy.endpoint());
    let repository = Repository::open(&options).unwrap();
    (proxy, repository)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_objects_are_deleted_with_three_requests() {
    let server = S3Server::start().unwrap();
    let direct = Repository::open(&support::options(&server, "p")).unwrap();
    let keys: Vec<String> = (0..2100).map(|n| format!("main/{n}")).collect();
    let (proxy, repository) = stored(&server, &direct, &keys).await;
    repository.delete_all(&keys).await.unwrap();
    assert_eq!(proxy.requests(), 3);
    assert!(direct.list("main").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_of_many_packs_goes_with_few_requests() {
    let server = S3Server::start().unwrap();
    let direct = Repository::open(&support::options(&server, "p")).unwrap();
    let name = ClusterName::parse("main").unwrap();
    let label = Label::parse("20261121-093305F").unwrap();
    let keys: Vec<String> = (0..2100).map(|n| name.pack_key(&label, n)).collect();
    let (proxy, repository) = stored(&server, &direct, &keys).await;
    let cluster = ClusterRepository::new(&repository, &name);
    remove_leftover(&cluster, &label).await.unwrap();
    let left = direct.list(&name.layer_prefix(&label)).await.unwrap();
    assert!(
        left.iter()
            .all(|object| object.key == name.manifest_key(&label))
    );
    assert!(proxy.requests() < 30, "{}", proxy.requests());
}

/// Some stores refuse a name that the marker of a deletion has. A backup that fails deletes its claim, and the next one may
/// begin within the same second.
#[tokio::test(flavor = "multi_thread")]
async fn a_label_whose_claim_a_marker_hides_is_passed_over() {
    let server = S3Server::start_with(Bucket::Versioned).unwrap();
    let options = support::options(&server, "p").with("retry_seconds", "1");
    let repository = Repository::open(&options).unwrap();
    let name = ClusterName::parse("main").unwrap();
    let cluster = ClusterRepository::new(&repository, &name);
    let mut labels = Vec::new();
    for number in 0..2 {
        let record = ClaimRecord {
            label: String::new(),
            layer_id: format!("{number:032x}"),
            host: "db1".to_owned(),
            pid: 1,
            started_at: "2026-11-21T09:33:05Z".parse().unwrap(),
            written_by: "test".to_owned(),
        };
        let plan = LayerPlan {
            kind: LayerKind::Full,
            parent: None,
        };
        let catalog = Catalog::load(&cluster).await.unwrap();
        let label = catalog::claim(&cluster, &catalog, plan, record).await;
        let label = label.unwrap();
        let key = name.claim_key(&label);
        repository.delete(&key).await.unwrap();
        labels.push(label.to_string());
    }
    assert_eq!(labels, ["20261121-093305F", "20261121-093306F"]);
}

/// A store that keeps connections open and holds one object; returns its address and how many connections came.
fn store_that_keeps_connections() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let came = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&came);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || answer_all(&client));
        }
    });
    (endpoint, came)
}

fn answer_all(mut client: &TcpStream) {
    let mut reader = BufReader::new(client);
    loop {
        let (mut length, mut line, mut body) = (0, String::new(), "x");
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.starts_with("PUT ") {
                body = "";
            }
            let lower = line.to_ascii_lowercase();
            if let Some(bytes) = lower.strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
        let head = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT";
        let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        client.write_all(answer.as_bytes()).unwrap();
    }
}

#[tokio::test]
async fn uploads_and_questions_share_their_connections() {
    let (endpoint, came) = store_that_keeps_connections();
    let options = RepositoryOptions::new("s3://b/p")
        .with("endpoint", endpoint)
        .with("access_key_id", "a")
        .with("secret_access_key", SECRET);
    let repository = Repository::open(&options).unwrap();
    for _ in 0..3 {
        let body = Bytes::from_static(b"x");
        repository.create("main/a", body.clone()).await.unwrap();
        assert_eq!(repository.get("main/a").await.unwrap(), body);
    }
    // As many as there are requests at once is what the limit of open files is reckoned with.
    assert_eq!(came.load(Ordering::SeqCst), 1);
}

/// Puts an object of so many bytes through a network that ends or stalls in the middle of it, and is mended.
async fn put_through(
    options: &RepositoryOptions,
    fault: impl Fn(&Proxy),
    network: &Proxy,
) -> Result<(), Error> {
    let repository = Repository::open(options).unwrap();
    // The question takes what a connection is opened with, so that the fault meets the object.
    repository.list("main").await.unwrap();
    let body: Bytes = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fault(network);
    let mending = async {
        while !network.has_failed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        network.clear();
    };
    let (created, ()) = tokio::join!(repository.create("main/pack", body.clone()), mending);
    created?;
    assert_eq!(repository.get("main/pack").await?, body);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_in_the_middle_is_made_again() {
    for stalls in [false, true] {
        let server = S3Server::start().unwrap();
        let network = Proxy::before(server.endpoint()).unwrap();
        let options = support::options(&server, "p")
            .with("endpoint", network.endpoint())
            .with("read_timeout", "1s");
        let fault = |network: &Proxy| match stalls {
            true => network.stall_one_after(2_000_000),
            false => network.cut_after(2_000_000),
        };
        let put = put_through(&options, fault, &network).await;
        put.unwrap_or_else(|error| panic!("stalls: {stalls}: {error}"));
    }
}

/// What this store makes of a broken upload without a checksum is why there is one. It is refused with words that say so.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_an_upload_is_never_taken_for_the_object() {
    let server = S3Server::start().unwrap();
    let network = Proxy::before(server.endpoint()).unwrap();
    let options = support::options(&server, "p")
        .with("endpoint", network.endpoint())
        .with("checksum_algorithm", "none")
        // A busy machine needs longer for three tries.
        .with("retry_seconds", "8");
    let put = put_through(&options, |network| network.cut_after(2_000_000), &network).await;
    let error = put.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists);
    assert!(error.to_string().contains("cut off"), "{error}");
    let hint = error.hint_text().unwrap_or_default();
    assert!(hint.contains("checksum_algorithm"), "{hint}");
}

/// The gateway of these tests is one for uploads of more than 256 KiB, depending on who is faster.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_before_it_has_read_the_bytes_is_asked_what_is_there() {
    let server = S3Server::start().unwrap();
    let network = Proxy::before(server.endpoint()).unwrap();
    let options = support::options(&server, "p")
        .with("endpoint", network.endpoint())
        .with("retry_seconds", "1");
    let repository = Repository::open(&options).unwrap();
    let body = Bytes::from(vec![7; 1_000_000]);
    repository.create("main/pack", body.clone()).await.unwrap();
    network.break_uploads();
    repository.create("main/pack", body.clone()).await.unwrap();
    let other = Bytes::from(vec![8; body.len()]);
    let error = repository.create("main/pack", other).await.unwrap_err();
    assert_eq!(error.kind(), Kind::AlreadyExists, "{error}");
    let error = repository.create("main/new", body).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Repository, "{error}");
    assert_eq!(repository.size("main/new").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_a_deletion_marker_hides_is_said_so_in_time() {
    let server = S3Server::start_with(Bucket::Versioned).unwrap();
    let repository = Repository::open(&support::options(&server, "p")).unwrap();
    let body = Bytes::from_static(b"again");
    repository.create("main/a", body.clone()).await.unwrap();
    repository.delete("main/a").await.unwrap();
    let started = Instant::now();
    let error = repository.create("main/a", body).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(30), "{error}");
    assert_eq!(error.kind(), Kind::Repository, "{error}");
    assert!(
        error.to_string().contains("shows no such object"),
        "{error}"
    );
    assert!(error.hint_text().unwrap().contains("rescue"), "{error}");
}

/// A page of the gateway has a thousand versions.
#[tokio::test(flavor = "multi_thread")]
async fn no_version_is_lost_behind_one_from_before_the_bucket_had_versions() {
    let server = S3Server::start_with(Bucket::Versioned).unwrap();
    let repository = Repository::open(&support::options(&server, "p")).unwrap();
    let layer = server.bucket_dir().join("p/main/layer");
    fs::create_dir_all(&layer).unwrap();
    let old: Vec<String> = (0..501).map(|number| format!("{number:03}")).collect();
    for name in &old {
        fs::write(layer.join(name), "old").unwrap();
    }
    let moment = jiff::Timestamp::now();
    // Stores note whole seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for name in &old {
        let key = format!("main/layer/{name}");
        repository.delete(&key).await.unwrap();
    }
    let body = Bytes::from_static(b"new");
    repository.create("main/new", body).await.unwrap();
    let mut back = BTreeSet::new();
    let found = repository.since("main", moment, &back).await.unwrap();
    assert_eq!(found.hidden.len(), old.len());
    assert_eq!(found.replaced, []);
    assert_eq!(found.added, ["main/new"]);

    // What has no tag is known by its id alone.
    back.extend(repository.bring_back(&found.hidden[0]).await.unwrap());
    for (known, replaced) in [(&BTreeSet::new(), 1), (&back, 0)] {
        let now = repository.since("main", moment, known).await.unwrap();
        assert_eq!(now.replaced.len(), replaced);
        assert_eq!(now.hidden.len(), old.len() - 1);
    }
}
