//! One page of a listing: whether it is one, and whether the listing goes on behind it.
//!
//! Everything in an answer with status 200 is optional to the `object_store` crate: another document counts as an empty page, and
//! what does not say where the next one begins as the last. Who takes a part for the whole misses objects, and says that an
//! archive ends or that there is no backup. So a page must say which it is; what does not is an error that may pass.

use std::error::Error as StdError;
use std::fmt;

use bytes::Bytes;
use http::{Method, Uri};
use pgstrata_layer::plain::plain;
use quick_xml::Reader;
use quick_xml::events::Event;
use serde::Deserialize;

use super::strange::without_strangers;

/// How a page begins: of objects of S3 and Google Cloud Storage, and of Azure.
const OBJECTS: &str = "ListBucketResult";
const BLOBS: &str = "EnumerationResults";

/// So does one of versions.
pub(super) const VERSIONS: &str = "ListVersionsResult";

const OTHER: &str = "something else than the store may answer at its address, or it has too much to do: check the repository's endpoint, \
    and what stands before it; try again later";
const ENDLESS: &str = "use a store, or a version of it, that says where the next page of a listing begins, as ListObjectsV2 and \
    ListObjectVersions of S3 do: with this one objects would be missed";

/// An answer that is no page of a listing, or does not lead to its end.
#[derive(Debug)]
pub(super) struct NoListing {
    what: String,
    /// What to do.
    pub(super) hint: &'static str,
}

impl NoListing {
    fn new(what: impl Into<String>, hint: &'static str) -> Self {
        let what = what.into();
        Self { what, hint }
    }

    fn unreadable(error: impl fmt::Display) -> Self {
        let what = format!("the store's listing cannot be read: {error}");
        Self::new(what, OTHER)
    }
}

impl fmt::Display for NoListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what.fmt(f)
    }
}

impl StdError for NoListing {}

/// What a page says of itself. Nobody says all of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct PageEnd {
    is_truncated: Option<String>,
    next_continuation_token: Option<String>,
    next_marker: Option<String>,
    /// Of an error.
    code: Option<String>,
}

/// A request for a page of objects.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageRequest {
    /// How the answer begins.
    root: &'static str,
    /// Where the page begins; nothing for the first one.
    token: Option<String>,
}

impl PageRequest {
    /// Nothing when the request does not list objects.
    pub(super) fn of(method: &Method, uri: &Uri) -> Option<Self> {
        let query = uri.query().filter(|_| *method == Method::GET)?;
        let has = |wanted: &str| query.split('&').any(|pair| pair == wanted);
        let (root, name) = match () {
            () if has("list-type=2") => (OBJECTS, "continuation-token"),
            () if has("comp=list") => (BLOBS, "marker"),
            () => return None,
        };
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let token = pairs.find(|(key, _)| key == name);
        Some(Self {
            root,
            token: token.map(|(_, token)| token.into_owned()),
        })
    }

    /// The page that the store answered with success, without objects that have no path.
    ///
    /// # Errors
    /// When it is none, or does not lead to the end of the listing.
    pub(super) fn read(&self, answer: Bytes) -> Result<Bytes, NoListing> {
        let page = without_strangers(answer);
        let text = std::str::from_utf8(&page).map_err(NoListing::unreadable)?;
        require_root(text, self.root)?;
        let end: PageEnd = quick_xml::de::from_str(text).map_err(NoListing::unreadable)?;
        let next = match self.root {
            BLOBS => end.next_marker,
            _ => end.next_continuation_token,
        };
        let next = next.filter(|token| !token.trim().is_empty());
        // Azure says nothing but where the next page begins.
        if self.root == OBJECTS {
            require_end(end.is_truncated.as_deref(), next.is_some())?;
        }
        match next.is_some() && next == self.token {
            true => Err(NoListing::new(
                "the store's listing does not go on: behind a page comes the same one again",
                ENDLESS,
            )),
            false => Ok(page),
        }
    }
}

/// Refuses a document that does not begin so.
pub(super) fn require_root(text: &str, expected: &str) -> Result<(), NoListing> {
    let Some(root) = root_of(text) else {
        return Err(NoListing::unreadable("it is no XML"));
    };
    if root == expected {
        return Ok(());
    }
    let end = quick_xml::de::from_str::<PageEnd>(text);
    let code = end.ok().and_then(|end| end.code);
    let code = code.map_or(String::new(), |code| format!(" ({})", plain(&code)));
    let root = plain(&root);
    let what = format!("the store answered with <{root}>{code} instead of a listing");
    Err(NoListing::new(what, OTHER))
}

/// Refuses a page that does not say whether it is the last, or that says that it is not and not which is the next.
pub(super) fn require_end(is_truncated: Option<&str>, has_next: bool) -> Result<(), NoListing> {
    if has_next || is_last(is_truncated) {
        return Ok(());
    }
    let said = is_truncated.map(|said| said.trim().to_ascii_lowercase());
    let what = match said.as_deref() {
        Some("true" | "1") => {
            "the store's listing breaks off: it says that more follows, and not where"
        }
        _ => "the store's listing does not say whether more follows",
    };
    Err(NoListing::new(what, ENDLESS))
}

/// Whether a page says that it is the last.
pub(super) fn is_last(is_truncated: Option<&str>) -> bool {
    let said = is_truncated.map(str::trim);
    said.is_some_and(|said| said == "0" || said.eq_ignore_ascii_case("false"))
}

/// How the document begins.
fn root_of(text: &str) -> Option<String> {
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event().ok()? {
            Event::Start(tag) | Event::Empty(tag) => {
                let name = tag.local_name();
                return Some(String::from_utf8_lossy(name.as_ref()).into_owned());
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;

    const S3: &str = "http://s/b?continuation-token=a%2Fb%2B%3D+c&list-type=2&prefix=a";
    const AZURE: &str = "http://s/c?restype=container&comp=list&marker=2%211%21x";

    fn read(uri: &str, page: &str) -> Result<Bytes, String> {
        let request = PageRequest::of(&Method::GET, &uri.parse().unwrap()).unwrap();
        let read = request.read(Bytes::from(page.to_owned()));
        read.map_err(|error| error.to_string())
    }

    const MORE: &str = "<IsTruncated>true</IsTruncated>";

    fn bucket(inner: &str) -> String {
        let object = "<Contents><Key>k</Key></Contents>";
        format!("<?xml version=\"1.0\"?>\n<ListBucketResult>{inner}{object}</ListBucketResult>")
    }

    /// A page that says that another follows, and where.
    fn followed(token: &str) -> String {
        let token = format!("<NextContinuationToken>{token}</NextContinuationToken>");
        bucket(&format!("{MORE}{token}"))
    }

    fn container(end: &str) -> String {
        format!("<EnumerationResults><Blobs/>{end}</EnumerationResults>")
    }

    fn marker(marker: &str) -> String {
        container(&format!("<NextMarker>{marker}</NextMarker>"))
    }

    #[test]
    fn what_is_no_page_or_leads_to_no_end_is_refused() {
        let error = "<Error><Code>ServiceBusy</Code><Message>x</Message></Error>".to_owned();
        let html = "<!DOCTYPE html>\n<html><br></html>".to_owned();
        let perhaps = bucket("<IsTruncated>perhaps</IsTruncated>");
        let of_version_1 = bucket(&format!("{MORE}<NextMarker>k</NextMarker>"));
        for (uri, page, said) in [
            (S3, error.clone(), "<Error> (ServiceBusy) instead"),
            (AZURE, error, "<Error> (ServiceBusy) instead"),
            (S3, html, "<html> instead"),
            (S3, marker(""), "<EnumerationResults> instead"),
            (AZURE, bucket(""), "<ListBucketResult> instead"),
            (S3, String::new(), "cannot be read"),
            (AZURE, "busy".to_owned(), "cannot be read"),
            (S3, bucket("<IsTruncated>false"), "cannot be read"),
            (S3, bucket(""), "whether more follows"),
            (S3, perhaps, "whether more follows"),
            (S3, bucket(MORE), "and not where"),
            (S3, of_version_1, "and not where"),
            (S3, followed(" "), "and not where"),
            (S3, followed("a/b+= c"), "the same one again"),
            (S3, followed("<![CDATA[a/b+= c]]>"), "the same one again"),
            (AZURE, marker("2!1!x"), "the same one again"),
        ] {
            let refused = read(uri, &page).unwrap_err();
            assert!(refused.contains(said), "{page}: {refused}");
        }
    }

    #[test]
    fn a_page_that_is_the_last_or_leads_to_another_is_read() {
        for (uri, page) in [
            (S3, bucket("<IsTruncated>false</IsTruncated>")),
            (S3, followed("a/b%2B= c")),
            (AZURE, marker("")),
            (AZURE, container("<NextMarker/>")),
            (AZURE, marker("2!1!y")),
        ] {
            assert_eq!(read(uri, &page).as_deref(), Ok(page.as_bytes()));
        }
    }

    #[test]
    fn a_request_for_a_listing_is_known_for_each_kind_of_store() {
        let listing = |root, token: Option<&str>| {
            let token = token.map(str::to_owned);
            Some(PageRequest { root, token })
        };
        for (method, uri, expected) in [
            (Method::GET, S3, listing(OBJECTS, Some("a/b+= c"))),
            (Method::GET, AZURE, listing(BLOBS, Some("2!1!x"))),
            (
                Method::GET,
                "http://s/c?comp=list&marker=%zz%4%e4%",
                listing(BLOBS, Some("%zz%4\u{FFFD}%")),
            ),
            (
                Method::GET,
                "http://s/b?list-type=2&prefix=a",
                listing(OBJECTS, None),
            ),
            (
                Method::GET,
                "http://s/b?restype=container&comp=list",
                listing(BLOBS, None),
            ),
            (Method::GET, "http://s/b/key?comp=blocklist", None),
            (Method::GET, "http://s/b/list-type=2", None),
            (Method::PUT, "http://s/b?comp=list", None),
        ] {
            assert_eq!(
                PageRequest::of(&method, &uri.parse().unwrap()),
                expected,
                "{uri}"
            );
        }
    }
}
