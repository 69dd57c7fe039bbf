//! TLS to the server, as libpq does it: what `sslmode` and its like ask for, and the connection.
//!
//! Nothing is read from disk for a server on a unix socket, where TLS has no use.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::input::is_open_to_others;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use super::certificate::{CertificateVerifier, Roots, end_point, reason};
use super::revocation::{RevocationFiles, Revocations};

/// How much TLS is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SslMode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl SslMode {
    const ALL: [(&'static str, Self); 6] = [
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];

    /// `where_from` names the parameter or the variable that says so.
    pub(super) fn parse(text: &str, where_from: &str) -> Result<Self> {
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known.map(|(_, mode)| *mode).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            usage(format!(
                "{where_from} is \"{text}\", which is not a mode of TLS"
            ))
            .hint(format!("use one of: {names}"))
        })
    }

    fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, mode)| *mode == self);
        found.map_or("", |(name, _)| name)
    }
}

/// What is asked for, with files that need not be there.
#[derive(Clone, Debug)]
pub(super) struct TlsOptions {
    pub(super) mode: SslMode,
    pub(super) root: TrustRoot,
    /// What the authorities took back.
    pub(super) revoked: RevocationFiles,
    /// The client's certificate and key.
    pub(super) certificate: NamedFile,
    pub(super) key: NamedFile,
    pub(super) versions: Vec<&'static SupportedProtocolVersion>,
}

/// Whose signatures are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TrustRoot {
    System,
    File(NamedFile),
}

/// A file, and whether somebody named it or it has the name that libpq looks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedFile {
    pub(super) path: PathBuf,
    pub(super) is_default: bool,
}

impl TlsOptions {
    /// Reads the files.
    pub(super) fn connector(&self) -> Result<Connector> {
        if self.mode == SslMode::Disable {
            return Ok(Connector::off());
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let roots = self.roots()?;
        let verifier = CertificateVerifier {
            revocations: self.revocations(roots.as_ref(), &provider)?,
            provider: Arc::clone(&provider),
            roots,
            checks_name: self.mode == SslMode::VerifyFull,
        };
        let failed = |error: &rustls::Error| usage(format!("could not set up TLS: {error}"));
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.versions)
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match self.client_certificate()? {
            None => builder.with_no_client_auth(),
            Some(own) => builder
                .with_client_auth_cert(own.chain, own.key)
                .map_err(|error| {
                    let files = format!("\"{}\"", self.certificate.path.display());
                    usage(format!(
                        "could not use the client certificate {files}: {error}"
                    ))
                    .hint("does sslkey name the key that belongs to the certificate?")
                })?,
        };
        // Servers since 17 tell other protocols from theirs by this.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Connector {
            config: Some(Arc::new(config)),
            needs_name: self.mode == SslMode::VerifyFull,
        })
    }

    /// libpq verifies whenever there is a root file, also where the mode does not ask for it.
    fn roots(&self) -> Result<Option<Roots>> {
        match &self.root {
            TrustRoot::System => system_roots().map(Some),
            TrustRoot::File(file) if file.path.exists() => roots_of(&file.path).map(Some),
            TrustRoot::File(file) if self.mode >= SslMode::VerifyCa || !file.is_default => {
                let path = file.path.display();
                Err(usage(format!(
                    "sslmode is {}, and there is no file \"{path}\" with trusted certificates",
                    self.mode.name()
                ))
                .hint(
                    "give the file of the certificate authority with sslrootcert, or use \
                     sslrootcert=system for those that this machine trusts",
                ))
            }
            TrustRoot::File(_) => Ok(None),
        }
    }

    /// As in libpq, the default list speaks of the authorities in a file, not of those of the machine.
    fn revocations(
        &self,
        roots: Option<&Roots>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Revocations>> {
        match roots {
            Some(_) if self.root == TrustRoot::System && !self.revoked.are_named() => Ok(None),
            Some(roots) => self.revoked.read(roots, provider),
            None if self.revoked.are_named() => {
                let what =
                    "revocation lists are given, and the server's certificate is not verified";
                Err(usage(what).hint(
                    "give the file of the certificate authority with sslrootcert, or leave out \
                     sslcrl, sslcrldir and their variables",
                ))
            }
            None => Ok(None),
        }
    }

    fn client_certificate(&self) -> Result<Option<ClientCertificate>> {
        let file = &self.certificate;
        if file.is_default && !file.path.exists() {
            return Ok(None);
        }
        let path = file.path.display();
        let chain = certificates(&file.path).map_err(|error| {
            error.while_doing(format!("could not use client certificate \"{path}\""))
        })?;
        let key = private_key(&self.key.path)?;
        Ok(Some(ClientCertificate { chain, key }))
    }
}

struct ClientCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

fn usage(message: impl Into<String>) -> Error {
    Error::new(Kind::Usage, message)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let act = || format!("could not read \"{}\"", path.display());
    let pem = fs::read(path).context(act)?;
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| usage(format!("{}: {error}", act())))?;
    if found.is_empty() {
        return Err(
            usage(format!("\"{}\" holds no certificate", path.display()))
                .hint("a PEM file has lines \"-----BEGIN CERTIFICATE-----\""),
        );
    }
    Ok(found)
}

fn roots_of(path: &Path) -> Result<Roots> {
    let certificates = certificates(path)?;
    let mut store = RootCertStore::empty();
    for certificate in &certificates {
        store.add(certificate.clone()).map_err(|error| {
            usage(format!(
                "\"{}\" holds an unusable certificate: {error}",
                path.display()
            ))
        })?;
    }
    Ok(Roots {
        place: format!("\"{}\"", path.display()),
        store,
        certificates,
    })
}

fn system_roots() -> Result<Roots> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    // Old machines hold some that cannot be read; a server that needs one of them is refused.
    let (usable, _) = store.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found
            .errors
            .first()
            .map_or(String::new(), |error| format!(": {error}"));
        return Err(
            usage(format!("this machine trusts no certificate authority{why}"))
                .hint("install the package ca-certificates, or give a file with sslrootcert"),
        );
    }
    Ok(Roots {
        place: "this machine's trusted certificates".to_owned(),
        store,
        certificates: Vec::new(),
    })
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let act = || format!("could not read private key \"{}\"", path.display());
    let metadata = fs::metadata(path).context(act)?;
    if is_open_to_others(&metadata) {
        let what = format!("private key \"{}\" can be used by others", path.display());
        let hint = format!("run: chmod 0600 \"{}\"", path.display());
        return Err(Error::new(Kind::Refused, what).hint(hint));
    }
    let pem = fs::read(path).context(act)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        usage(format!("{}: {error}", act()))
            .hint("it must be a PEM file, and may not be encrypted with a password")
    })
}

/// Makes connections speak TLS.
#[derive(Clone)]
pub(super) struct Connector {
    /// `None` never speaks it.
    config: Option<Arc<ClientConfig>>,
    needs_name: bool,
}

impl Connector {
    pub(super) const fn off() -> Self {
        Self {
            config: None,
            needs_name: false,
        }
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = MaybeTls;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Handshake> {
        let name = match ServerName::try_from(domain.to_owned()) {
            Ok(name) => name,
            Err(_) if self.needs_name && self.config.is_some() => {
                let what = format!("\"{domain}\" is no name that a certificate can have");
                return Err(io::Error::other(what));
            }
            // Nobody compares it, and no address is sent to the server.
            Err(_) => ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST)),
        };
        Ok(Handshake {
            config: self.config.clone(),
            name,
        })
    }
}

/// One connection's way into TLS.
pub(super) struct Handshake {
    config: Option<Arc<ClientConfig>>,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = MaybeTls;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<MaybeTls>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let Some(config) = self.config else {
                return Err(io::Error::other("TLS is switched off"));
            };
            let connected = TlsConnector::from(config).connect(self.name, socket).await;
            connected.map(MaybeTls).map_err(|error| {
                let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref());
                match of_tls {
                    Some(of_tls) => io::Error::other(reason(of_tls)),
                    None => error,
                }
            })
        })
    }
}

/// A connection that speaks TLS.
pub(super) struct MaybeTls(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for MaybeTls {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        match certificate.and_then(end_point) {
            Some(digest) => ChannelBinding::tls_server_end_point(digest),
            None => ChannelBinding::none(),
        }
    }
}

impl AsyncRead for MaybeTls {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for MaybeTls {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
