//! Listings that are none, or a part of one, are never taken for the whole; and what a store repeats of a signature stays secret.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_store::archive::{self, GetOptions};
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::{Repository, RepositoryOptions};
use pgstrata_testbed::azure::AzureServer;
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::{Bucket, S3Server};
use support::wal;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const LAST: &str = "<IsTruncated>false</IsTruncated>";
const MORE: &str = "<IsTruncated>true</IsTruncated>";

/// What a client reads in the place of what the server says, so that nothing is listed, and what it is to say.
type NoListing = ([(&'static str, &'static str); 2], &'static str);
const OBJECTS: (&str, &str) = ("Contents", "Other");
const NO_LISTINGS: [NoListing; 2] = [
    ([("ListBucketResult", "Error"), OBJECTS], ERROR),
    ([(LAST, MORE), OBJECTS], BREAKS_OFF),
];
const ERROR: &str = "answered with <Error> instead";
const BREAKS_OFF: &str = "says that more follows, and not where";

/// A repository behind a network.
fn behind(server: &S3Server) -> (Proxy, Repository) {
    let proxy = Proxy::before(server.endpoint()).unwrap();
    let options = support::options(server, "p").with("endpoint", proxy.endpoint());
    let repository = Repository::open(&options.with("retry_seconds", "1"));
    (proxy, repository.unwrap())
}

/// What all ways to list answer.
async fn lists(repository: &Repository) -> [Result<usize, Error>; 5] {
    let (all, from, some, names) = tokio::join!(
        repository.list("main"),
        repository.list_from("main", "main/0"),
        repository.list_some("main", "main/0", 9),
        repository.list_names("main"),
    );
    // Not beside the others, which would see its objects.
    let probe = repository.probe("main").await;
    [
        all.map(|found| found.len()),
        from.map(|found| found.len()),
        some.map(|found| found.len()),
        names.map(|found| found.len()),
        probe.map(|()| 1),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_whole_listing_is_no_empty_one() {
    let server = S3Server::start().unwrap();
    let (network, repository) = behind(&server);
    let body = Bytes::from_static(b"x");
    repository.create("main/a", body).await.unwrap();
    for (pairs, expected) in NO_LISTINGS {
        network.rewrite(&pairs);
        for listed in lists(&repository).await {
            support::assert_clear(&listed.unwrap_err(), "s3://", &[], expected);
        }
        // It may have been a moment.
        let mending = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            network.clear();
        };
        let (listed, ()) = tokio::join!(repository.list("main"), mending);
        assert_eq!(listed.unwrap().len(), 1);
    }
    for listed in lists(&repository).await {
        assert_eq!(listed.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_not_empty_because_something_else_answers() {
    let server = AzureServer::start().unwrap();
    let network = Proxy::before(&server.root()).unwrap();
    let options = support::azure(&server, "p")
        .with("endpoint", server.behind(network.endpoint()))
        .with("retry_seconds", "1");
    let repository = Repository::open(&options).unwrap();
    let body = Bytes::from_static(b"x");
    repository.create("main/a", body).await.unwrap();
    for listed in lists(&repository).await {
        assert_eq!(listed.unwrap(), 1);
    }
    network.rewrite(&[("EnumerationResults", "Error")]);
    for listed in lists(&repository).await {
        support::assert_clear(&listed.unwrap_err(), "az://", &[], ERROR);
    }
}

/// A server would open with what it has, and lose what comes behind.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_does_not_end_at_a_hole_behind_which_nothing_is_listed() {
    let server = S3Server::start().unwrap();
    let (network, repository) = behind(&server);
    wal::init(&repository).await;
    let scratch = tempfile::tempdir().unwrap();
    for number in [1, 2, 4] {
        let segment = wal::write(scratch.path(), 1, number, 1);
        wal::push(&repository, &segment).await.unwrap();
    }
    let (cluster, to) = (wal::cluster_in(&repository), scratch.path().join("to"));
    let hole = wal::file_name(1, 3);
    let get = || async {
        let options = GetOptions::default();
        archive::get(&cluster, &hole, &to, &options).await
    };
    let whole = get().await.unwrap_err();
    assert_ne!(whole.kind(), Kind::NotFound, "{whole}");
    for (pairs, expected) in NO_LISTINGS {
        network.rewrite(&pairs);
        let error = get().await.unwrap_err();
        support::assert_clear(&error, "s3://", &[], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_versions_that_is_none_leaves_nothing_unknown() {
    let server = S3Server::start_with(Bucket::Versioned).unwrap();
    let (network, repository) = behind(&server);
    let body = Bytes::from_static(b"x");
    repository.create("main/a", body).await.unwrap();
    let now = Timestamp::now();
    let versions = ("Version>", "Other>");
    for (pairs, expected) in [
        ([("ListVersionsResult", "Error"), versions], ERROR),
        ([(LAST, MORE), versions], BREAKS_OFF),
    ] {
        network.rewrite(&pairs);
        let (past, nothing) = (repository.as_of(now).await.unwrap(), BTreeSet::new());
        let (kept, first, since, listed) = tokio::join!(
            repository.kept("main/a"),
            repository.require_first("main/a"),
            repository.since("main", now, &nothing),
            past.list("main"),
        );
        for error in [
            kept.unwrap_err(),
            first.unwrap_err(),
            since.unwrap_err(),
            listed.unwrap_err(),
        ] {
            support::assert_clear(&error, "s3://", &[], expected);
        }
        network.clear();
        assert_eq!(past.list("main").await.unwrap().len(), 1);
    }
}

/// What is logged by the crate, line by line.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut log = self.0.lock().unwrap();
        log.push_str(&format!("{field}={value:?}\n"));
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pgstrata_store")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A store that denies what is signed in its URL, has no time for anything else, and repeats what it was asked, as AWS does.
fn store_that_repeats() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || repeat(&client));
        }
    });
    endpoint
}

fn repeat(mut client: &TcpStream) {
    let lines = BufReader::new(client).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let head = head.join("\n").replace('&', "&amp;");
    // The end of a signed URL has the signature; so much is shown of an answer.
    let (status, head) = match head.split_once("X-Amz-Expires=") {
        Some((_, end)) => ("403 Forbidden", end),
        None => ("503 Slow Down", head.as_str()),
    };
    let body =
        format!("<Error><Code>Odd</Code><CanonicalRequest>{head}</CanonicalRequest></Error>");
    let length = body.len();
    let answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    client.write_all(answer.as_bytes()).unwrap();
}

#[tokio::test]
async fn what_a_store_repeats_of_a_signature_is_not_logged() {
    let options = RepositoryOptions::new("s3://b/p")
        .with("endpoint", store_that_repeats())
        .with("access_key_id", "a")
        .with("secret_access_key", "never shown")
        .with("session_token", "IQoJ/se+cret==token")
        .with("retry_seconds", "1");
    let repository = Repository::open(&options).unwrap();
    let log = Log::default();
    let logging = tracing::subscriber::set_default(log.clone());
    repository.require_first("main/a").await.unwrap();
    repository.get("main/a").await.unwrap_err();
    let body = Bytes::from_static(b"x");
    repository.create("main/a", body).await.unwrap_err();
    drop(logging);
    let log = log.0.lock().unwrap().clone();
    for line in [
        "whether an object was replaced is not known",
        "repeating a request",
        "repeating a create",
        "X-Amz-Security-Token=***",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    for secret in ["IQoJ", "cret%3D", "never shown"] {
        assert!(!log.contains(secret), "{log}");
    }
    let hexadecimal = |word: &str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let mut words = log.split(|c: char| !c.is_ascii_alphanumeric());
    assert!(!words.any(hexadecimal), "a signature: {log}");
}
