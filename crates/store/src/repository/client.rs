//! The HTTP client of object stores: whom it trusts, and how long it waits.
//!
//! A connection that stalls costs as long as it is believed to move. A request that sends little is believed
//! for a short time without an answer. One that uploads is believed longer, by its size, because nothing comes
//! back before the last byte has gone: else no slow line could ever store a pack.

use std::time::Duration;

use async_trait::async_trait;
use jiff::SignedDuration;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpService, ReqwestConnector,
};
use object_store::{Certificate, ClientOptions};

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
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let told = options.get_config_value(&ClientConfigKey::ReadTimeout);
        let told = told.and_then(|text| text.parse::<SignedDuration>().ok());
        let stall = told
            .and_then(|told| Duration::try_from(told).ok())
            .unwrap_or(STALL);
        let asking = options.clone().with_read_timeout(stall);
        // It would count from the first byte that is sent, and not from the last one.
        let uploading = options.clone().with_read_timeout_disabled();
        let inner = ReqwestConnector::default();
        Ok(HttpClient::new(Client {
            asking: inner.connect(&asking)?,
            uploading: inner.connect(&uploading)?,
            stall,
        }))
    }
}

#[derive(Debug)]
struct Client {
    asking: HttpClient,
    uploading: HttpClient,
    stall: Duration,
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let size_bytes = u64::try_from(request.body().content_length()).unwrap_or(u64::MAX);
        if size_bytes == 0 {
            return self.asking.execute(request).await;
        }
        let limit = allowed(self.stall, size_bytes);
        match tokio::time::timeout(limit, self.uploading.execute(request)).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(HttpError::new(HttpErrorKind::Timeout, elapsed)),
        }
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
