//! Revocation lists: which certificates of servers their authorities have taken back.
//!
//! As in libpq, each certificate of a server's chain but the root needs a list of its authority that is not out of date. Other
//! than there, a list that somebody named must be there. The lists are read once for a connection's address.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustls::CertificateError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};

use super::certificate::Roots;
use super::tls::NamedFile;

/// Where the lists are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RevocationFiles {
    /// `None` when a directory is named and no file.
    pub(super) file: Option<NamedFile>,
    pub(super) directory: Option<PathBuf>,
}

/// Lists that a certificate must not be on.
#[derive(Debug)]
pub(super) struct Revocations {
    /// Where they are, for messages.
    place: String,
    /// One with all lists, and one with each: of two lists of an authority only the first is asked.
    verifiers: Vec<Arc<WebPkiServerVerifier>>,
}

impl RevocationFiles {
    /// Whether somebody asked for lists.
    pub(super) fn are_named(&self) -> bool {
        self.directory.is_some() || self.file.as_ref().is_some_and(|file| !file.is_default)
    }

    /// Reads the lists; `None` when there are none and nobody asked for any.
    pub(super) fn read(
        &self,
        roots: &Roots,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Revocations>> {
        let file = self.file.as_ref();
        let file = file.filter(|file| !file.is_default || file.path.exists());
        let (mut lists, mut places) = (Vec::new(), Vec::new());
        if let Some(file) = file {
            places.push(&file.path);
            lists.extend(lists_in(slice::from_ref(&file.path), &file.path)?);
        }
        if let Some(directory) = &self.directory {
            places.push(directory);
            lists.extend(lists_in(&files_of(directory)?, directory)?);
        }
        if lists.is_empty() {
            return Ok(None);
        }
        let places = places.iter().map(|path| format!("\"{}\"", path.display()));
        let place = places.collect::<Vec<_>>().join(" and ");
        let store = Arc::new(roots.store.clone());
        let builder = || {
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&store), Arc::clone(provider))
        };
        let all = builder().with_crls(lists.iter().cloned());
        let mut builders = vec![all.enforce_revocation_expiration()];
        builders.extend(lists.into_iter().map(|list| {
            let one = builder().with_crls([list]);
            one.allow_unknown_revocation_status()
        }));
        let built = builders.into_iter().map(|builder| builder.build());
        let verifiers: std::result::Result<_, _> = built.collect();
        let verifiers = verifiers.map_err(|error| {
            usage(format!(
                "could not use the revocation lists in {place}: {error}"
            ))
        })?;
        Ok(Some(Revocations { place, verifiers }))
    }
}

impl Revocations {
    /// What speaks against the certificate, in words. Its name is not looked at.
    pub(super) fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> std::result::Result<(), String> {
        for verifier in &self.verifiers {
            let checked = verifier.verify_server_cert(certificate, intermediates, name, &[], now);
            match checked {
                // The name comes last.
                Ok(_)
                | Err(rustls::Error::InvalidCertificate(
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. },
                )) => {}
                Err(error) => return Err(self.in_words(&error)),
            }
        }
        Ok(())
    }

    fn in_words(&self, error: &rustls::Error) -> String {
        let place = &self.place;
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Revoked) => {
                format!("the server's certificate was revoked: it is on the list in {place}")
            }
            rustls::Error::InvalidCertificate(CertificateError::UnknownRevocationStatus) => {
                format!(
                    "whether the server's certificate was revoked is not known: {place} has no list of \
                 the authority that signed it"
                )
            }
            rustls::Error::InvalidCertificate(
                CertificateError::ExpiredRevocationList
                | CertificateError::ExpiredRevocationListContext { .. },
            ) => format!("the revocation list in {place} is out of date"),
            other => format!("could not use the revocation lists in {place}: {other}"),
        }
    }
}

fn usage(message: impl Into<String>) -> Error {
    Error::new(Kind::Usage, message)
}

fn files_of(directory: &Path) -> Result<Vec<PathBuf>> {
    let act = || format!("could not read directory \"{}\"", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).context(act)? {
        let path = entry.context(act)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// All lists in the files, of which there must be one.
fn lists_in(files: &[PathBuf], place: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>> {
    let mut lists = Vec::new();
    for file in files {
        let act = || format!("could not read \"{}\"", file.display());
        let pem = fs::read(file).context(act)?;
        for list in CertificateRevocationListDer::pem_slice_iter(&pem) {
            let list = list.map_err(|error| usage(format!("{}: {error}", act())))?;
            // A directory has names and links that lead to the same file.
            if !lists.contains(&list) {
                lists.push(list);
            }
        }
    }
    if lists.is_empty() {
        let what = format!("\"{}\" holds no revocation list", place.display());
        return Err(usage(what).hint("a PEM file has lines \"-----BEGIN X509 CRL-----\""));
    }
    Ok(lists)
}
