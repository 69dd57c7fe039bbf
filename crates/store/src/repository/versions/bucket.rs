//! Requests that the `object_store` crate has no words for. It signs them as URLs; credentials, addresses and the
//! HTTP client are its own.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request};
use object_store::aws::AmazonS3;
use object_store::client::HttpClient;
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{Error, Result};

use super::Versioning;
use super::listing::{Version, VersionPage};
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
            return Ok(body);
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
            let mut ask = Ask::about("versions");
            ask.query.push(("prefix", prefix.to_owned()));
            let (key, id) = &after;
            for (name, value) in [("key-marker", key), ("version-id-marker", id)] {
                if !value.is_empty() {
                    ask.query.push((name, value.clone()));
                }
            }
            let body = self.ask(Method::GET, &Path::default(), ask).await?;
            let (page, versions) = VersionPage::read(&body)?;
            all.extend(
                versions
                    .into_iter()
                    .filter(|version| has_path(&version.key)),
            );
            let next = page.next_key_marker.filter(|_| page.is_truncated);
            match next.map(|key| (key, page.next_version_id_marker.unwrap_or_default())) {
                Some(next) if next != after => after = next,
                Some(_) => return Err(generic("the listing of versions does not go on")),
                None => return Ok(all),
            }
        }
    }

    /// Puts an older version on top, as the newest one.
    pub(super) async fn put_on_top(&self, path: &Path, id: &str) -> Result<()> {
        let (key, id) = (encoded(path.as_ref()), encoded(id));
        let source = format!("/{}/{key}?versionId={id}", self.name);
        let ask = Ask {
            headers: vec![("x-amz-copy-source", source)],
            ..Ask::default()
        };
        let body = self.ask(Method::PUT, path, ask).await?;
        // The answer begins before the copy has ended.
        let text = String::from_utf8_lossy(&body);
        match text.contains("<Error>") {
            true => Err(generic(format!("the copy failed, body: {text}"))),
            false => Ok(()),
        }
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
