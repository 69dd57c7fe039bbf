//! What object stores answer: pages of a listing, and why a request failed.
//!
//! The files of the store that read it need nothing else of it but an error that tests inject, which has a stand-in here.

use std::io;

use bytes::Bytes;
use http::{Method, Uri};
use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use serde::Deserialize;

mod fault;
mod versions;

#[path = "../../crates/store/src/repository/page.rs"]
mod page;
#[path = "../../crates/store/src/repository/reason.rs"]
mod reason;
#[path = "../../crates/store/src/repository/signatures.rs"]
mod signatures;
#[path = "../../crates/store/src/repository/strange.rs"]
mod strange;

use page::PageRequest;
use reason::{OfThePast, Reason};

const S3: &str = "http://s/b?list-type=2&continuation-token=t";
const AZURE: &str = "http://s/c?restype=container&comp=list&marker=t";

/// What no message may show.
const SECRET: &str = "IQoJb3JpZ2luX2VjEXAMPLE";
/// A code, an address and 300 characters of what the store says.
const LONGEST: usize = 400;

pub fn answers(bytes: &[u8]) {
    let listing = strange::without_strangers(Bytes::copy_from_slice(bytes));
    assert!(listing.len() <= bytes.len());
    // One mark of the encoding is taken away, and not a second one.
    if !listing.starts_with("\u{FEFF}".as_bytes()) {
        assert_eq!(strange::without_strangers(listing.clone()), listing);
    }
    objects(bytes);
    blobs(bytes);
    versions::page(bytes);
    // The fuzzer learns what is planted.
    if let Some(text) = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains(SECRET))
    {
        reasons(text);
    }
}

/// A page as the `object_store` crate reads it, as far as it names something: of S3, and of Azure.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ObjectPage {
    #[serde(default)]
    contents: Vec<Keyed>,
    #[serde(default)]
    common_prefixes: Vec<Prefixed>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Keyed {
    key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Prefixed {
    prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BlobPage {
    blobs: Blobs,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blobs {
    #[serde(default)]
    blob: Vec<Named>,
    #[serde(default)]
    blob_prefix: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Named {
    name: String,
}

/// Names of objects, and of prefixes.
type Names = (Vec<String>, Vec<String>);

fn objects(bytes: &[u8]) {
    only_paths(S3, bytes, |text| {
        let page: ObjectPage = quick_xml::de::from_str(text).ok()?;
        let keys = page.contents.into_iter().map(|one| one.key);
        let prefixes = page.common_prefixes.into_iter().map(|one| one.prefix);
        Some((keys.collect(), prefixes.collect()))
    });
}

fn blobs(bytes: &[u8]) {
    only_paths(AZURE, bytes, |text| {
        let BlobPage { blobs } = quick_xml::de::from_str(text).ok()?;
        let names = |all: Vec<Named>| all.into_iter().map(|one| one.name).collect();
        Some((names(blobs.blob), names(blobs.blob_prefix)))
    });
}

/// A page that is read names what the answer names and has a path, and nothing else: one name without refuses all of it.
fn only_paths(uri: &str, bytes: &[u8], read: fn(&str) -> Option<Names>) {
    let request = PageRequest::of(&Method::GET, &Uri::try_from(uri).unwrap()).unwrap();
    let Ok(page) = request.read(Bytes::copy_from_slice(bytes)) else {
        return;
    };
    let text = std::str::from_utf8(bytes).unwrap();
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let Some((names, prefixes)) = read(text) else {
        return;
    };
    let is_path = |name: &str| Path::parse(name).is_ok_and(|path| path.as_ref() == name);
    let with_path = |name: &String| is_path(name);
    let before_slash = |name: &String| is_path(name.strip_suffix('/').unwrap_or(name));
    let expected = (
        names.into_iter().filter(with_path).collect(),
        prefixes.into_iter().filter(before_slash).collect(),
    );
    let left = read(std::str::from_utf8(&page).unwrap());
    assert_eq!(left, Some(expected), "{text:?}");
}

/// Each kind of failure with the answer in it.
fn reasons(answer: &str) {
    let middle = answer.floor_char_boundary(answer.len() / 2);
    let (before, after) = answer.split_at(middle);
    let planted = format!("{before}\nx-amz-security-token:{SECRET}\n{after}");
    for status in [
        "400 Bad Request",
        "403 Forbidden",
        "404 Not Found",
        "503 Slow Down",
    ] {
        let said = format!(
            "Error performing GET http://s/b/k in 1s - Server returned non-2xx status code: {status}: {planted}"
        );
        for store in ["S3", "MicrosoftAzure", "GCS"] {
            let source = said.clone().into();
            explained(&Error::Generic { store, source });
        }
        for make in [not_found, exists, denied, unknown] {
            explained(&make(said.clone()));
        }
    }
    for words in [
        planted.clone(),
        format!("DeleteObjects request failed for key k: {planted}"),
    ] {
        let source = words.into();
        explained(&Error::Generic {
            store: "S3",
            source,
        });
    }
    for kind in [
        HttpErrorKind::Connect,
        HttpErrorKind::Timeout,
        HttpErrorKind::Unknown,
    ] {
        let source = HttpError::new(kind, io::Error::other(planted.clone())).into();
        explained(&Error::Generic {
            store: "S3",
            source,
        });
    }
    let request = PageRequest::of(&Method::GET, &Uri::try_from(S3).unwrap()).unwrap();
    if let Err(none) = request.read(Bytes::from(planted)) {
        let source = none.into();
        explained(&Error::Generic {
            store: "S3",
            source,
        });
    }
}

fn not_found(said: String) -> Error {
    let (path, source) = ("main/cluster".to_owned(), said.into());
    Error::NotFound { path, source }
}

fn exists(said: String) -> Error {
    let (path, source) = ("main/cluster".to_owned(), said.into());
    Error::AlreadyExists { path, source }
}

fn denied(said: String) -> Error {
    let (path, source) = ("main/cluster".to_owned(), OfThePast(said.into()).into());
    Error::PermissionDenied { path, source }
}

fn unknown(said: String) -> Error {
    let (path, source) = ("main/cluster".to_owned(), said.into());
    Error::Unauthenticated { path, source }
}

/// A reason is one short line, and does not show what signs requests.
fn explained(error: &Error) {
    let _ = reason::may_deny_what_exists(error);
    let reason = Reason::of(error);
    assert!(!reason.text.contains(SECRET), "{reason:?} of {error:?}");
    assert!(!reason.text.contains('\n'), "{reason:?} of {error:?}");
    assert!(reason.text.chars().count() <= LONGEST, "{reason:?}");
    // Who takes it for absent goes on without it, and who may try again does not.
    assert!(!(reason.object_is_absent && reason.may_pass), "{reason:?}");
}
