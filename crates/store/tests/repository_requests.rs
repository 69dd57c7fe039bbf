//! What requests to S3 say that no real server shows.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use pgstrata_layer::cluster::{LockMode, RetentionRecord};
use pgstrata_store::error::Kind;
use pgstrata_store::repository::versions::Version;
use pgstrata_store::repository::{Repository, RepositoryOptions};
use pgstrata_testbed::recorder::{Asked, Recorder, Reply};

/// A store that takes everything.
fn taking() -> Recorder {
    let taken = |_: &Asked| Reply {
        status: 200,
        headers: vec![("ETag", "\"x\"".to_owned())],
        ..Reply::default()
    };
    Recorder::start(taken).unwrap()
}

fn recorded(store: &Recorder) -> RepositoryOptions {
    RepositoryOptions::new("s3://b/p")
        .with("endpoint", store.endpoint())
        .with("access_key_id", "a")
        .with("secret_access_key", "b")
        .with("retry_seconds", "1")
}

/// For how long objects of a cluster are locked.
fn week() -> RetentionRecord {
    RetentionRecord {
        version: 1,
        mode: LockMode::Compliance,
        days: 7,
    }
}

fn version(key: &str) -> Version {
    Version {
        key: key.to_owned(),
        id: "1".to_owned(),
        modified: jiff::Timestamp::UNIX_EPOCH,
        size_bytes: Some(1),
        e_tag: None,
        is_latest: false,
    }
}

/// What the last request asked of the encryption and of the checksum of the object, and whether it may overwrite.
fn asked_for(store: &Recorder) -> BTreeMap<String, String> {
    let mut headers = store.asked().pop().unwrap().headers;
    let marks = ["server-side-encryption", "checksum", "if-none-match"];
    headers.retain(|name, _| marks.iter().any(|mark| name.contains(mark)));
    headers
}

#[tokio::test]
async fn locked_objects_and_rescued_ones_are_encrypted_as_all_others() {
    let store = taking();
    let bare = recorded(&store);
    let kms = bare
        .clone()
        .with("aws_server_side_encryption", "aws:kms")
        .with("aws_sse_kms_key_id", "arn:aws:kms:x:1:key/ours")
        .with("sse_bucket_key_enabled", "yes");
    let own = bare.clone().with("server_side_encryption", "AES256");
    for (options, count) in [(bare, 0), (own, 1), (kms, 3)] {
        let body = Bytes::from_static(b"x");
        let open = Repository::open(&options).unwrap();
        open.create("main/layer/x/pack", body.clone())
            .await
            .unwrap();
        let expected = asked_for(&store);
        assert_eq!(expected.len(), 2 + count, "{expected:?}");
        let locking = Repository::open(&options).unwrap();
        locking.retain(week().into());
        locking.create("main/layer/x/pack", body).await.unwrap();
        let last = store.asked().pop().unwrap();
        assert!(last.headers.contains_key("x-amz-object-lock-mode"));
        assert_eq!(asked_for(&store), expected);
        open.bring_back(&version("main/a")).await.unwrap();
        let last = store.asked().pop().unwrap();
        assert!(last.headers.contains_key("x-amz-copy-source"));
        let mut copied = expected;
        copied.retain(|name, _| name.contains("encryption"));
        assert_eq!(asked_for(&store), copied);
    }
}

#[tokio::test]
async fn keys_of_the_customer_are_refused_where_objects_are_locked_or_brought_back() {
    let store = taking();
    let key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let options = recorded(&store)
        .with("server_side_encryption", "sse-c")
        .with("sse_customer_key_base64", key);
    let body = Bytes::from_static(b"x");
    let repository = Repository::open(&options).unwrap();
    repository.create("main/a", body.clone()).await.unwrap();
    assert_eq!(asked_for(&store).len(), 5);
    repository.retain(week().into());
    let moment = jiff::Timestamp::UNIX_EPOCH;
    let asked = store.asked().len();
    for error in [
        repository.require_lock().await.unwrap_err(),
        repository.create("main/b", body).await.unwrap_err(),
        repository.bring_back(&version("main/a")).await.unwrap_err(),
        repository
            .since("main", moment, &BTreeSet::new())
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().contains("sse-c"), "{error}");
    }
    assert_eq!(store.asked().len(), asked);
    // A key for nothing is no encryption.
    let unused = recorded(&store).with("aws_sse_kms_key_id", "ours");
    let error = Repository::open(&unused).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
}

/// A store that holds that object under every name, and whose answer to a create was lost.
fn holding(body: &Bytes) -> Recorder {
    let body = body.clone();
    let held = move |asked: &Asked| {
        let whole = 0..body.len();
        let (status, part) = match (asked.method.as_str(), asked.range()) {
            ("PUT", _) => (412, 0..0),
            (_, None) => (200, whole),
            (_, Some((first, last))) => (206, first..body.len().min(last + 1)),
        };
        let mut headers = vec![
            ("ETag", "\"x\"".to_owned()),
            ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT".to_owned()),
        ];
        if status == 206 {
            let range = format!("bytes {}-{}/{}", part.start, part.end - 1, body.len());
            headers.push(("Content-Range", range));
        }
        Reply {
            status,
            headers,
            body: body.slice(part).into(),
        }
    };
    Recorder::start(held).unwrap()
}

/// A segment may have 1 GB, for which there is no room in memory.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_answer_was_lost_is_compared_in_parts() {
    let body: Bytes = (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut other = body.to_vec();
    *other.last_mut().unwrap() ^= 1;
    let beginning = body.slice(..17_000_000);
    for (there, said) in [
        (body.clone(), None),
        (other.into(), Some("other contents")),
        (beginning, Some("cut off")),
    ] {
        let store = holding(&there);
        let repository = Repository::open(&recorded(&store)).unwrap();
        let created = repository.create("main/a", body.clone()).await;
        let error = created.err().map(|error| error.to_string());
        match (&error, said) {
            (None, None) => {}
            (Some(error), Some(said)) => assert!(error.contains(said), "{error}"),
            other => panic!("{other:?}"),
        }
        let mut reads = store.asked();
        reads.retain(|asked| asked.method == "GET");
        let (mut from, most) = (0, 8 << 20);
        for asked in &reads {
            let (first, last) = asked.range().unwrap();
            assert!(last + 1 - first <= most, "{asked:?}");
            // Once more from the first byte, for one that may grow.
            assert!(first == from || first == 0, "{asked:?}");
            from = last + 1;
        }
        assert_eq!(from, there.len());
    }
}

/// A copy within the store is answered with status 200 before it has ended, and its failure comes in the body.
#[tokio::test]
async fn an_object_whose_copy_fails_after_its_answer_had_begun_is_brought_back_again() {
    for (code, tries) in [
        ("SlowDown", 2),
        ("InternalError", 2),
        ("InvalidObjectState", 1),
    ] {
        let count = AtomicU32::new(0);
        let failing = move |_: &Asked| {
            let first = count.fetch_add(1, Ordering::Relaxed) == 0;
            let body = match first {
                true => format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>"),
                false => "<CopyObjectResult></CopyObjectResult>".to_owned(),
            };
            Reply {
                status: 200,
                body: body.into_bytes(),
                ..Reply::default()
            }
        };
        let store = Recorder::start(failing).unwrap();
        let repository = Repository::open(&recorded(&store)).unwrap();
        let brought = repository.bring_back(&version("main/a")).await;
        assert_eq!(brought.is_ok(), tries > 1, "{code}: {brought:?}");
        assert_eq!(store.asked().len(), tries, "{code}");
        assert!(
            brought.err().is_none_or(|error| !error.is_outage()),
            "{code}"
        );
    }
    let busy = |_: &Asked| Reply {
        status: 503,
        ..Reply::default()
    };
    let store = Recorder::start(busy).unwrap();
    let repository = Repository::open(&recorded(&store)).unwrap();
    let error = repository.bring_back(&version("main/a")).await.unwrap_err();
    assert!(error.is_outage(), "{error}");
}

/// Parts of a key may have files of their own, and whoever renews them writes one after the other.
#[tokio::test]
async fn a_key_that_is_refused_while_its_files_are_renewed_is_not_the_last_one() {
    let scratch = tempfile::tempdir().unwrap();
    let token = scratch.path().join("token");
    // The answer to a HEAD has no body.
    for asks_for_size in [false, true] {
        std::fs::write(&token, "old").unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&token, mode).unwrap();
        let late = token.clone();
        let refusing = move |asked: &Asked| {
            let is_new = asked.headers["x-amz-security-token"] == "new";
            std::fs::write(&late, "new").unwrap();
            let (status, code) = match is_new {
                true => (404, "NoSuchKey"),
                false => (403, "InvalidToken"),
            };
            Reply {
                status,
                body: format!("<Error><Code>{code}</Code></Error>").into_bytes(),
                ..Reply::default()
            }
        };
        let store = Recorder::start(refusing).unwrap();
        let options = recorded(&store).with("session_token_file", token.to_str().unwrap());
        let repository = Repository::open(&options).unwrap();
        match asks_for_size {
            true => assert_eq!(repository.size("main/a").await.unwrap(), None),
            false => {
                let error = repository.get("main/a").await.unwrap_err();
                assert_eq!(error.kind(), Kind::NotFound, "{error}");
            }
        }
        assert_eq!(store.asked().len(), 2);
    }
}
