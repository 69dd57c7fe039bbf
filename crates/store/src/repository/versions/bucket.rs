//! Requests that the `object_store` crate has no words for. It signs them as URLs; credentials, addresses and the
//! HTTP client are its own.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use object_store::aws::AmazonS3;
use object_store::client::HttpClient;
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{Error, Result};

use super::Versioning;
use super::listing::{Version, VersionPage};
use super::server_side::ServerSide;
use crate::repository::reason::FAILED_LATE;
use crate::repository::strange::has_path;

/// A signed URL is used at once; only clocks that differ need some room.
const VALID: Duration = Duration::from_secs(15 * 60);

/// A bucket of S3, beside its [`object_store::ObjectStore`].
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) s3: AmazonS3,
    pub(crate) http: HttpClient,
    /// Its name.
    pub(crate) name: String,
    /// How the store is to encrypt objects.
    pub(in crate::repository) server_side: ServerSide,
}

/// One request.
#[derive(Debug, Default)]
pub(super) struct Ask<'a> {
    pub(super) query: Vec<(&'a str, String)>,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

impl<'a> Ask<'a> {
    /// A request about a subresource, such as `versioning`.
    pub(super) fn about(subresource: &'a str) -> Self {
        Self {
            query: vec![(subresource, String::new())],
            ..Self::default()
        }
    }
}

impl Bucket {
    /// Makes a request about the object at `path`, or about the bucket when that is empty; answers the body.
    ///
    /// # Errors
    /// As the store's client words them, with the code that the store answered.
    pub(super) async fn ask(&self, method: Method, path: &Path, ask: Ask<'_>) -> Result<Bytes> {
        Ok(self.answer(method, path, ask).await?.1)
    }

    /// So, and answers the headers, too.
    async fn answer(
        &self,
        method: Method,
        path: &Path,
        ask: Ask<'_>,
    ) -> Result<(HeaderMap, Bytes)> {
        let options =
            SignedUrlOptions::default().with_query(ask.query.iter().map(|(k, v)| (*k, v)));
        let mut headers = Vec::with_capacity(ask.headers.len());
        for (name, value) in ask.headers {
            let value = HeaderValue::from_str(&value).map_err(generic)?;
            headers.push((HeaderName::from_static(name), value));
        }
        let signed = headers.iter().cloned();
        let options = signed.fold(options, |options, (name, value)| {
            options.with_signed_header(name, value)
        });
        let url = self
            .s3
            .signed_url_opts(method.clone(), path, VALID, &options)
            .await?;
        let mut request = Request::builder().method(&method).uri(url.as_str());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(ask.body.into()).map_err(generic)?;
        let answer = self.http.execute(request).await.map_err(generic)?;
        let (head, body) = answer.into_parts();
        let body = body.bytes().await.map_err(generic)?;
        if head.status.is_success() {
            return Ok((head.headers, body));
        }
        let (status, text) = (head.status.as_u16(), String::from_utf8_lossy(&body));
        let what = format!("Error performing {method}: status code: {status}, body: {text}");
        Err(match status {
            404 if text.contains("<Code>NoSuchKey<") || text.contains("<Code>NoSuchVersion<") => {
                Error::NotFound {
                    path: path.to_string(),
                    source: what.into(),
                }
            }
            _ => generic(what),
        })
    }
}

impl Bucket {
    /// The versions of all objects whose keys begin with `prefix` and are greater than `after`.
    pub(super) async fn versions(&self, prefix: &str, after: &str) -> Result<Vec<Version>> {
        let (mut all, mut after) = (Vec::new(), (after.to_owned(), String::new()));
        loop {
            let (page, versions) = self.versions_after(prefix, &after).await?;
            all.extend(
                versions
                    .into_iter()
                    .filter(|version| has_path(&version.key)),
            );
            match page.next() {
                Some(next) if next != after => after = next,
                Some(_) => return Err(generic("the listing of versions does not go on")),
                None => return Ok(all),
            }
        }
    }

    /// The next page of a listing that has come to the version `after`, a key and an id.
    ///
    /// Some stores lose their place behind what was there before the bucket had versions, when something newer lies on it:
    /// they list nothing but the oldest version of each object from there on. So a page that would end with such a version
    /// is asked for again, and is shorter.
    async fn versions_after(
        &self,
        prefix: &str,
        after: &(String, String),
    ) -> Result<(VersionPage, Vec<Version>)> {
        let mut most = None;
        loop {
            let mut ask = Ask::about("versions");
            ask.query.push(("prefix", prefix.to_owned()));
            let (key, id) = after;
            for (name, value) in [("key-marker", key), ("version-id-marker", id)] {
                if !value.is_empty() {
                    ask.query.push((name, value.clone()));
                }
            }
            if let Some(most) = most {
                ask.query.push(("max-keys", format!("{most}")));
            }
            let body = self.ask(Method::GET, &Path::default(), ask).await?;
            let (page, versions) = VersionPage::read(&body)?;
            if versions.len() < 2 || !page.ends_before_versions(&versions) {
                return Ok((page, versions));
            }
            most = Some(versions.len() - 1);
        }
    }

    /// Puts an older version on top, as the newest one; answers the id of that, when the store says it.
    pub(super) async fn put_on_top(&self, path: &Path, id: &str) -> Result<Option<String>> {
        let (key, id) = (encoded(path.as_ref()), encoded(id));
        let source = format!("/{}/{key}?versionId={id}", self.name);
        let mut headers = vec![("x-amz-copy-source", source)];
        headers.extend_from_slice(self.server_side.headers());
        let ask = Ask {
            headers,
            ..Ask::default()
        };
        let (headers, body) = self.answer(Method::PUT, path, ask).await?;
        // The answer begins before the copy has ended.
        let text = String::from_utf8_lossy(&body);
        if text.contains("<Error>") {
            return Err(generic(format!("the copy {FAILED_LATE}{text}")));
        }
        let id = headers.get("x-amz-version-id");
        Ok(id.and_then(|id| Some(id.to_str().ok()?.to_owned())))
    }

    /// What the bucket does with what is overwritten or deleted.
    pub(super) async fn versioning(&self) -> Result<Versioning> {
        let (whole, ask) = (Path::default(), Ask::about("versioning"));
        let body = self.ask(Method::GET, &whole, ask).await?;
        let text = String::from_utf8_lossy(&body);
        Ok(match text.as_ref() {
            text if text.contains("<Status>Enabled<") => Versioning::Enabled,
            text if text.contains("<Status>Suspended<") => Versioning::Suspended,
            _ => Versioning::None,
        })
    }
}

/// As part of a URL; slashes stay.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// As the store's client has failures of its own.
pub(super) fn generic(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic {
        store: "S3",
        source: error.into(),
    }
}
