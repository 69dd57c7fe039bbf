//! The HTTP client of object stores: whom it trusts, and how long it waits.
//!
//! A connection that stalls costs as long as it is believed to move. A request that sends little is believed
//! for a short time without an answer. One that uploads is believed longer, by its size, because nothing comes
//! back before the last byte has gone: else no slow line could ever store a pack.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http_body::{Body, Frame, SizeHint};
use jiff::SignedDuration;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{Certificate, ClientOptions};
use tokio::time::{Sleep, sleep};

use super::page::PageRequest;
use crate::error::{Error, FileContext, Kind, Result};

/// The default of `read_timeout`. S3 and its likes answer within seconds, also under load; ten tries fit into
/// the repository's patience.
const STALL: Duration = Duration::from_secs(30);

/// 1.2 Mbit/s: an upload that is slower than this is taken for one that stands still. A pack of 16 MiB has two
/// minutes and a half, and three tries are made in any case.
const SLOWEST_BYTES_PER_SECOND: u64 = 150_000;

/// Options of the client before all others: the certificates in `ca_file` are trusted beside the system's.
pub(super) fn options(ca_file: Option<&str>) -> Result<ClientOptions> {
    let mut options = ClientOptions::new();
    let Some(path) = ca_file else {
        return Ok(options);
    };
    let pem = std::fs::read(path).context(|| {
        format!("could not read \"{path}\", the certificate authority of the repository")
    })?;
    let found = Certificate::from_pem_bundle(&pem).ok();
    let Some(found) = found.filter(|certificates| !certificates.is_empty()) else {
        let what = format!("\"{path}\" holds no certificate of an authority that can be used");
        return Err(Error::new(Kind::Usage, what)
            .hint("a PEM file has lines \"-----BEGIN CERTIFICATE-----\""));
    };
    for certificate in found {
        options = options.with_root_certificate(certificate);
    }
    Ok(options)
}

/// Makes clients that know a stalled connection from a long upload.
#[derive(Clone, Debug, Default)]
pub(super) struct Dialer {
    made: Arc<Mutex<Option<HttpClient>>>,
}

impl Dialer {
    /// The client that was made last: that of the store itself, when it has been set up.
    pub(super) fn made(&self) -> Option<HttpClient> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.clone()
    }
}

impl HttpConnector for Dialer {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let told = options.get_config_value(&ClientConfigKey::ReadTimeout);
        let told = told.and_then(|text| text.parse::<SignedDuration>().ok());
        let told = told.and_then(|told| Duration::try_from(told).ok());
        // It would count from the first byte that is sent, and not from the last one. Two clients with a time-out
        // each would have connections of their own, and twice as many as `limits` counts.
        let options = options.clone().with_read_timeout_disabled();
        let client = HttpClient::new(Client {
            inner: ReqwestConnector::default().connect(&options)?,
            stall: told.unwrap_or(STALL),
        });
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        *made = Some(client.clone());
        Ok(client)
    }
}

#[derive(Debug)]
struct Client {
    inner: HttpClient,
    stall: Duration,
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let size_bytes = u64::try_from(request.body().content_length()).unwrap_or(u64::MAX);
        let limit = allowed(self.stall, size_bytes);
        let page = PageRequest::of(request.method(), request.uri());
        let answer = tokio::time::timeout(limit, self.inner.execute(request)).await;
        let (head, body) = answer.map_err(|_| stalled(limit))??.into_parts();
        let length = head.headers.get("content-length");
        let length = length.and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
        let body = HttpResponseBody::new(Watched {
            parts: Mutex::new(body.bytes_stream()),
            size: length.map_or_else(SizeHint::default, SizeHint::with_exact),
            stall: self.stall,
            alarm: None,
        });
        let body = match page.filter(|_| head.status.is_success()) {
            Some(page) => {
                let read = page.read(body.bytes().await?);
                let read = read.map_err(|error| HttpError::new(HttpErrorKind::Decode, error));
                read?.into()
            }
            None => body,
        };
        Ok(HttpResponse::from_parts(head, body))
    }
}

fn stalled(limit: Duration) -> HttpError {
    let what = format!("nothing came for {limit:?}");
    HttpError::new(HttpErrorKind::Timeout, std::io::Error::other(what))
}

/// The body of an answer, which may not stand still.
struct Watched {
    /// What comes must be `Sync`, which a mutex is; nobody locks it.
    parts: Mutex<BoxStream<'static, std::result::Result<Bytes, HttpError>>>,
    size: SizeHint,
    stall: Duration,
    /// Set while somebody waits.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        let this = self.get_mut();
        let parts = this.parts.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Poll::Ready(next) = parts.poll_next_unpin(context) {
            this.alarm = None;
            return Poll::Ready(next.map(|part| part.map(Frame::data)));
        }
        let stall = this.stall;
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep(stall)));
        let rings = alarm.as_mut().poll(context);
        rings.map(|()| Some(Err(stalled(stall))))
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

/// How long an upload may take until the store begins to answer.
fn allowed(stall: Duration, size_bytes: u64) -> Duration {
    stall + Duration::from_secs(size_bytes / SLOWEST_BYTES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_tries_of_a_pack_fit_into_patience_after_the_first() {
        let pack = allowed(STALL, 16 << 20);
        assert!(
            pack > Duration::from_secs(120),
            "slow lines are fast enough"
        );
        assert!(2 * pack < super::super::open::PATIENCE.later, "{pack:?}");
        assert!(9 * STALL < super::super::open::PATIENCE.later);
    }
}
