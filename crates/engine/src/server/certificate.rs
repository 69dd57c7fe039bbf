//! Certificates of servers: whether they are trusted, for whom they speak, and what binds a channel to them.
//!
//! The rules are libpq's. Where `webpki` is stricter than OpenSSL, two habits of PostgreSQL's users are still
//! served: a certificate that signed itself and is its own root, and a host's name in the common name of a
//! certificate that has no alternative names. Everything else that `webpki` refuses is refused.

use std::fmt::Display;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{AlgorithmIdentifier, CertificateDer, ServerName, UnixTime, alg_id};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::revocation::Revocations;

/// What is asked of a server's certificate.
#[derive(Debug)]
pub(super) struct CertificateVerifier {
    pub(super) provider: Arc<CryptoProvider>,
    /// `None` trusts every certificate.
    pub(super) roots: Option<Roots>,
    pub(super) revocations: Option<Revocations>,
    /// Whether the certificate must be the host's.
    pub(super) checks_name: bool,
}

/// Certificates that are trusted.
#[derive(Debug)]
pub(super) struct Roots {
    /// Where they come from, for messages.
    pub(super) place: String,
    pub(super) store: RootCertStore,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// What is wrong with a certificate, in words.
#[derive(Debug)]
struct Distrust(String);

impl Display for Distrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Distrust {}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(roots) = &self.roots else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(end_entity)
            .map_err(|error| distrust(in_words(&error, &roots.place)))?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let trusted = verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &roots.store,
            intermediates,
            now,
            algorithms,
        );
        match trusted {
            // Its validity was looked at before this, and it is trusted by itself.
            Err(error) if is_a_root(&error) && roots.certificates.contains(end_entity) => {
                if self.revocations.is_some() {
                    let what = "the server's certificate signed itself, so no revocation list can speak for it";
                    return Err(distrust(what.to_owned()));
                }
            }
            other => other.map_err(|error| distrust(in_words(&error, &roots.place)))?,
        }
        if let Some(revocations) = &self.revocations {
            let checked = revocations.check(end_entity, intermediates, server_name, now);
            checked.map_err(distrust)?;
        }
        if self.checks_name {
            is_named(&parsed, end_entity, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn distrust(text: String) -> Error {
    let reason: Arc<dyn std::error::Error + Send + Sync> = Arc::new(Distrust(text));
    Error::InvalidCertificate(CertificateError::Other(OtherError(reason)))
}

/// What a failed handshake says, without the words around it.
pub(super) fn reason(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(inner)))
            if inner.is::<Distrust>() =>
        {
            inner.to_string()
        }
        other => in_words(other, "the roots"),
    }
}

fn in_words(error: &Error, roots: &str) -> String {
    let Error::InvalidCertificate(problem) = error else {
        return error.to_string();
    };
    match problem {
        CertificateError::UnknownIssuer => {
            format!("the server's certificate is not signed by a certificate in {roots}")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet".to_owned()
        }
        CertificateError::BadSignature => format!(
            "the server's certificate has the name of one in {roots} and is not signed by its key"
        ),
        _ if error.to_string().contains("UnsupportedCertVersion") => {
            "the server's certificate is of X.509 version 1: make one with alternative names \
             (subjectAltName), which has version 3"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

fn is_a_root(error: &Error) -> bool {
    error.to_string().contains("CaUsedAsEndEntity")
}

fn is_named(
    parsed: &ParsedCertificate<'_>,
    certificate: &CertificateDer<'_>,
    host: &ServerName<'_>,
) -> Result<(), Error> {
    let presented = match verify_server_name(parsed, host) {
        Ok(()) => return Ok(()),
        Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            presented,
            ..
        })) => presented,
        Err(_) => Vec::new(),
    };
    let kind = match host {
        ServerName::IpAddress(_) => "IpAddress(",
        _ => "DnsName(",
    };
    // The common name counts when there is no alternative name of the host's kind.
    let of_kind: Vec<&String> = presented.iter().filter(|n| n.starts_with(kind)).collect();
    let common = common_name(certificate).filter(|_| of_kind.is_empty());
    // Stars before a single label, too.
    let names = of_kind.iter().map(|name| bare(name));
    let mut names = names.chain(common.as_deref());
    if names.any(|name| is_name_of(name, &host.to_str())) {
        return Ok(());
    }
    let names = presented
        .iter()
        .map(|name| bare(name))
        .chain(common.as_deref());
    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    let names = match names.is_empty() {
        true => "nobody".to_owned(),
        false => names.join(", "),
    };
    Err(distrust(format!(
        "the server's certificate is for {names}, and not for \"{}\"",
        host.to_str()
    )))
}

/// `webpki` writes `DnsName("a")` and `IpAddress(127.0.0.1)`.
fn bare(name: &str) -> &str {
    let inner = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// As libpq compares: without regard to case; `*.` at the start stands for one label.
fn is_name_of(name: &str, host: &str) -> bool {
    let (name, host) = (name.to_ascii_lowercase(), host.to_ascii_lowercase());
    match name.strip_prefix("*.") {
        Some(domain) => host
            .split_once('.')
            .is_some_and(|(label, rest)| !label.is_empty() && rest == domain),
        None => name == host,
    }
}

/// RFC 5929, `tls-server-end-point`: the certificate's digest, by the hash of its signature. `None` when that names no hash.
pub(super) fn end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parts, _) = element(certificate)?;
    let (_, _, after_body) = element(parts)?;
    let (_, algorithm, _) = element(after_body)?;
    let is_one_of = |known: &[AlgorithmIdentifier]| known.iter().any(|k| k.as_ref() == algorithm);
    let sha256 = [
        alg_id::ECDSA_SHA256,
        alg_id::RSA_PKCS1_SHA256,
        alg_id::RSA_PSS_SHA256,
    ];
    let sha384 = [
        alg_id::ECDSA_SHA384,
        alg_id::RSA_PKCS1_SHA384,
        alg_id::RSA_PSS_SHA384,
    ];
    let sha512 = [
        alg_id::ECDSA_SHA512,
        alg_id::RSA_PKCS1_SHA512,
        alg_id::RSA_PSS_SHA512,
    ];
    if is_one_of(&sha256) || OLD_SIGNATURES.contains(&algorithm) {
        Some(Sha256::digest(certificate).to_vec())
    } else if is_one_of(&sha384) {
        Some(Sha384::digest(certificate).to_vec())
    } else if is_one_of(&sha512) {
        Some(Sha512::digest(certificate).to_vec())
    } else {
        None
    }
}

/// MD5 and SHA-1 with RSA, SHA-1 with ECDSA: for them the RFC says SHA-256.
const OLD_SIGNATURES: [&[u8]; 3] = [
    &[
        0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04, 0x05, 0x00,
    ],
    &[
        0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05, 0x05, 0x00,
    ],
    &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01],
];

/// `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The last common name of the certificate's subject.
fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parts, _) = element(certificate)?;
    let (_, body, _) = element(parts)?;
    let (tag, _, after_version) = element(body)?;
    // Version 1 does not write its number.
    let from_serial = if tag == 0xa0 { after_version } else { body };
    // Serial number, signature, issuer, validity; then the subject.
    let mut rest = from_serial;
    for _ in 0..4 {
        (_, _, rest) = element(rest)?;
    }
    let (_, mut names, _) = element(rest)?;
    let mut found = None;
    while let Some((_, set, others)) = element(names) {
        names = others;
        let (_, pair, _) = element(set)?;
        let (_, kind, value) = element(pair)?;
        if kind == COMMON_NAME {
            let (_, text, _) = element(value)?;
            found = Some(String::from_utf8(text.to_vec()).ok()?);
        }
    }
    found
}

/// One element of DER: its tag, its contents, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Four bytes of length are more than any certificate has.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            let length = digits
                .iter()
                .fold(0_usize, |length, digit| (length << 8) | usize::from(*digit));
            (length, rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use pgstrata_testbed::certificates::{Identity, Subject};

    use super::*;

    #[test]
    fn names_are_compared_as_libpq_does() {
        assert!(is_name_of("DB.example.com", "db.Example.com"));
        assert!(is_name_of("*.example.com", "db.example.com"));
        assert!(is_name_of("*.internal", "db.internal"));
        assert!(!is_name_of("*.example.com", "a.db.example.com"));
        assert!(!is_name_of("*.example.com", ".example.com"));
        assert!(!is_name_of("*.example.com", "example.com"));
        assert!(!is_name_of("db", "db.example.com"));
    }

    #[test]
    fn a_certificate_cut_anywhere_is_no_panic() {
        let made = Identity::self_signed(Subject {
            common_name: "db.example.com",
            ..Subject::default()
        });
        let whole = CertificateDer::from(made.unwrap().der().to_vec());
        assert_eq!(common_name(&whole).as_deref(), Some("db.example.com"));
        assert_eq!(end_point(&whole), Some(Sha256::digest(&whole).to_vec()));
        for length in 0..whole.len() {
            let cut = CertificateDer::from(whole[..length].to_vec());
            assert_eq!(common_name(&cut), None, "{length}");
            end_point(&cut);
        }
        for at in 0..whole.len() {
            let mut changed = whole.to_vec();
            changed[at] ^= 0xff;
            let changed = CertificateDer::from(changed);
            common_name(&changed);
            end_point(&changed);
        }
    }
}
