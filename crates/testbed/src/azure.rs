//! Azure Blob Storage on this machine: Azurite, the emulator of Microsoft.
//!
//! It speaks HTTP, and names the account in the path and not in the host. It keeps everything in memory.

use std::process::Command;

use anyhow::{Context, Result};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Request;
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use rand::Rng as _;

use crate::cluster::free_port;
use crate::leash::Leash;
use crate::programs;
use crate::request::{self, Answer};
use crate::s3::wait_until_it_answers;

const ACCOUNT: &str = "pgstrata";
const CONTAINER: &str = "backups";

/// The version of the protocol for which signatures are made.
const VERSION: &str = "2023-11-03";

/// A server with one account and one container on a free loopback port. It answers a second after its start.
#[derive(Debug)]
pub struct AzureServer {
    address: String,
    key: String,
    /// Ends the server when dropped.
    _leash: Leash,
}

impl AzureServer {
    /// Starts it.
    ///
    /// # Errors
    /// When it is not installed, or does not answer.
    pub fn start() -> Result<Self> {
        let program = programs::installed("azurite/azurite")?;
        let directory = tempfile::Builder::new()
            .prefix("pgs-azure-")
            .tempdir()
            .context("could not create a temporary directory")?
            .keep();
        let port = free_port()?;
        let key = BASE64_STANDARD.encode(rand::rng().random::<[u8; 32]>());
        let mut command = Command::new(program);
        command
            .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{key}"))
            .args(["--silent", "--inMemoryPersistence", "--disableTelemetry"])
            .arg("--disableProductStyleUrl")
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
        let log = directory.join("log");
        let leash = Leash::run(&command, &directory, &log)?;
        let address = format!("127.0.0.1:{port}");
        wait_until_it_answers("azurite", &address, &log)?;
        let server = Self {
            address,
            key,
            _leash: leash,
        };
        let made = server.request("PUT", &format!("/{CONTAINER}?restype=container"))?;
        made.must_succeed()
            .context("could not create a container")?;
        Ok(server)
    }

    /// Where the account is.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.behind(&self.root())
    }

    /// Where the account is behind `root`, an `http://host:port` that leads to this server.
    #[must_use]
    pub fn behind(&self, root: &str) -> String {
        format!("{root}/{ACCOUNT}")
    }

    /// Where the server listens, as a URL without the account.
    #[must_use]
    pub fn root(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The only account.
    #[must_use]
    pub const fn account(&self) -> &'static str {
        ACCOUNT
    }

    /// The key of the account.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The only container.
    #[must_use]
    pub const fn container(&self) -> &'static str {
        CONTAINER
    }

    /// A shared access signature for the container: `permissions` are the letters of the protocol, such as `rl` for
    /// reading and listing; `expiry` is a time such as `2030-01-01T00:00:00Z`.
    #[must_use]
    pub fn shared_access(&self, permissions: &str, expiry: &str) -> String {
        let place = format!("/blob/{ACCOUNT}/{CONTAINER}");
        // The last seven are not used: a snapshot, a key, and headers of the answer.
        let mut fields = vec![permissions, "", expiry, &place, "", "", "", VERSION, "c"];
        fields.resize(16, "");
        let secret = BASE64_STANDARD.decode(&self.key).unwrap_or_default();
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let signature = hmac::sign(&secret, fields.join("\n").as_bytes());
        let signature = BASE64_STANDARD.encode(signature.as_ref());
        let signature = signature
            .replace('+', "%2B")
            .replace('/', "%2F")
            .replace('=', "%3D");
        format!("sv={VERSION}&sr=c&sp={permissions}&se={expiry}&sig={signature}")
    }

    /// Makes a request as the owner of the account; `rest` follows the account in the URL. What is put into a container is an
    /// empty block blob.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn request(&self, method: &str, rest: &str) -> Result<Answer> {
        let mut request = self.unsigned(method, rest)?;
        let credential = AzureCredential::AccessKey(AzureAccessKey::try_new(&self.key)?);
        AzureAuthorizer::new(&credential, ACCOUNT).try_authorize(&mut request)?;
        request::send(request).with_context(|| format!("no answer to {method} {rest}"))
    }

    /// The same as somebody with that shared access signature, `rest` without a query.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn request_as(&self, signature: &str, method: &str, rest: &str) -> Result<Answer> {
        let request = self.unsigned(method, &format!("{rest}?{signature}"))?;
        request::send(request).with_context(|| format!("no answer to {method} {rest}"))
    }

    fn unsigned(&self, method: &str, rest: &str) -> Result<HttpRequest> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{rest}", self.endpoint()))
            .header("x-ms-blob-type", "BlockBlob")
            .header("x-ms-version", VERSION)
            .header("content-length", 0);
        Ok(request.body(HttpRequestBody::empty())?)
    }
}
