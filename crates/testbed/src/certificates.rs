//! Certificates for servers and clients of tests: an authority of the test's own, and what it signs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DnType,
    IsCa, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// The number of the next certificate.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// Who signs certificates.
pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// For whom a certificate is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject<'a> {
    /// Its common name.
    pub common_name: &'a str,
    /// Its alternative names: hosts and addresses.
    pub names: &'a [&'a str],
    /// Whether its time has passed.
    pub is_expired: bool,
}

impl Subject<'_> {
    fn parameters(self) -> Result<CertificateParams> {
        let names: Vec<String> = self.names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters =
            CertificateParams::new(names).context("a name is none of a certificate")?;
        let kind = DnType::CommonName;
        parameters.distinguished_name.push(kind, self.common_name);
        if self.is_expired {
            parameters.not_after = date_time_ymd(2001, 1, 1);
        }
        Ok(parameters)
    }
}

/// A certificate with its key.
#[derive(Debug)]
pub struct Identity {
    certificate: Certificate,
    key: KeyPair,
    serial: u64,
}

impl Authority {
    /// An authority of that name, with a key that nobody else has.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new(name: &str) -> Result<Self> {
        let (parameters, key) = of_authority(Subject {
            common_name: name,
            ..Subject::default()
        })?;
        let certificate = parameters.self_signed(&key).context("could not sign")?;
        Ok(Self {
            certificate,
            issuer: Issuer::new(parameters, key),
        })
    }

    /// A certificate that it signed.
    ///
    /// # Errors
    /// When no key can be made, or the subject has a name that cannot be.
    pub fn issue(&self, subject: Subject<'_>) -> Result<Identity> {
        let key = KeyPair::generate().context("could not make a key")?;
        let mut parameters = subject.parameters()?;
        let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        parameters.serial_number = Some(SerialNumber::from(serial));
        let signed = parameters.signed_by(&key, &self.issuer);
        Ok(Identity {
            certificate: signed.context("could not sign")?,
            key,
            serial,
        })
    }

    /// Writes its certificate, which everybody may read.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, directory: &Path) -> Result<PathBuf> {
        let path = directory.join("ca.crt");
        write(&path, &self.certificate.pem(), 0o644)?;
        Ok(path)
    }

    /// Writes the list of certificates that it took back, which says when the next one comes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_revoked(&self, path: &Path, revoked: &[&Identity], next_year: i32) -> Result<()> {
        let long_ago = date_time_ymd(2000, 1, 1);
        let revoked = revoked.iter().map(|identity| RevokedCertParams {
            serial_number: SerialNumber::from(identity.serial),
            revocation_time: long_ago,
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: long_ago,
            next_update: date_time_ymd(next_year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).context("could not sign")?;
        write(path, &list.pem().context("could not write a list")?, 0o644)
    }
}

impl Identity {
    /// A certificate that vouches for itself, as `openssl req -x509` makes it.
    ///
    /// # Errors
    /// When no key can be made, or the subject has a name that cannot be.
    pub fn self_signed(subject: Subject<'_>) -> Result<Self> {
        let (parameters, key) = of_authority(subject)?;
        let certificate = parameters.self_signed(&key).context("could not sign")?;
        Ok(Self {
            certificate,
            key,
            serial: 0,
        })
    }

    /// The certificate in DER.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        self.certificate.der()
    }

    /// Writes `NAME.crt` and `NAME.key`, which only its owner may read; returns both paths.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, directory: &Path, name: &str) -> Result<[PathBuf; 2]> {
        let certificate = directory.join(format!("{name}.crt"));
        write(&certificate, &self.certificate.pem(), 0o644)?;
        let key = directory.join(format!("{name}.key"));
        write(&key, &self.key.serialize_pem(), 0o600)?;
        Ok([certificate, key])
    }
}

fn of_authority(subject: Subject<'_>) -> Result<(CertificateParams, KeyPair)> {
    let key = KeyPair::generate().context("could not make a key")?;
    let mut parameters = subject.parameters()?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Ok((parameters, key))
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let failed = || format!("could not write \"{}\"", path.display());
    fs::write(path, text).with_context(failed)?;
    fs::set_permissions(path, Permissions::from_mode(mode)).with_context(failed)
}
