//! Identities: the secrets that people keep, in age's own format.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use age::secrecy::ExposeSecret;
use age::x25519::{Identity, Recipient};
use zeroize::Zeroizing;

use crate::error::{Error, Kind, Result};

/// Age identities of who asks. Cheap to clone.
#[derive(Clone, Default)]
pub struct Identities(Arc<Vec<Identity>>);

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identities({} secret)", self.0.len())
    }
}

impl Identities {
    /// Reads identities as `age-keygen` writes them: a line for each, comments begin with `#`. `origin` says where the
    /// text is from; nothing of the text gets into an error.
    ///
    /// # Errors
    /// `Refused` when there is none, or a line is none.
    pub fn parse(text: &str, origin: &str) -> Result<Self> {
        let mut found = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let identity = Identity::from_str(line).map_err(|_| {
                let what = format!("line {number} of {origin} is not an age identity");
                Error::new(Kind::Refused, what).hint(match line.starts_with("age1") {
                    true => "that is a recipient, the public half; an identity begins with AGE-SECRET-KEY-1",
                    false => "an identity begins with AGE-SECRET-KEY-1; \"pgstrata key generate\" or age-keygen makes one",
                })
            })?;
            found.push(identity);
        }
        match found.is_empty() {
            false => Ok(Self(Arc::new(found))),
            true => Err(
                Error::new(Kind::Refused, format!("{origin} holds no age identity"))
                    .hint("\"pgstrata key generate\" or age-keygen makes one"),
            ),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Identity> {
        self.0.iter()
    }

    /// Their public halves.
    #[must_use]
    pub fn recipients(&self) -> Vec<String> {
        self.iter().map(|own| own.to_public().to_string()).collect()
    }
}

/// Whether `text` is an age X25519 recipient.
#[must_use]
pub fn is_recipient(text: &str) -> bool {
    Recipient::from_str(text).is_ok()
}

/// A new identity, and its recipient.
#[must_use]
pub fn new_identity() -> (Zeroizing<String>, String) {
    let identity = Identity::generate();
    let secret = identity.to_string();
    let text = Zeroizing::new(secret.expose_secret().to_owned());
    (text, identity.to_public().to_string())
}

/// The identity in `text`, which we wrote.
pub(super) fn own_identity(text: &str) -> Result<Identity> {
    Identity::from_str(text).map_err(|_| {
        Error::new(
            Kind::Damaged,
            "a key box holds something else than an identity",
        )
    })
}

/// Seals a few bytes to a recipient, as an age file.
pub(super) fn seal_to(recipient: &str, secret: &[u8]) -> Result<Vec<u8>> {
    let parsed = Recipient::from_str(recipient).map_err(|why| {
        Error::new(
            Kind::Usage,
            format!("\"{recipient}\" is not an age recipient: {why}"),
        )
        .hint("a recipient begins with age1, and is the public half of an identity")
    })?;
    age::encrypt(&parsed, secret)
        .map_err(|error| Error::new(Kind::Refused, format!("could not seal a key: {error}")))
}

/// Opens an age file.
pub(super) fn open_with(identity: &Identity, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
    let opened = age::decrypt(identity, sealed);
    opened.map(Zeroizing::new).map_err(|error| {
        Error::new(
            Kind::Damaged,
            format!("could not open a sealed key: {error}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_read_as_age_writes_them_and_never_shown() {
        let (one, recipient) = new_identity();
        let text = format!(
            "# created: today\n# public key: {recipient}\n\n{}\n",
            one.as_str()
        );
        let read = Identities::parse(&text, "file").unwrap();
        assert_eq!(read.recipients(), [recipient.as_str()]);
        assert!(is_recipient(&recipient) && !is_recipient("age1nonsense"));
        assert!(!format!("{read:?}").contains("AGE-SECRET"));
        for (wrong, expected) in [
            ("", "holds no age identity"),
            ("# only a comment\n", "holds no age identity"),
            (recipient.as_str(), "line 1 of file is not an age identity"),
            ("AGE-SECRET-KEY-1WRONG", "line 1 of file is not"),
        ] {
            let error = Identities::parse(wrong, "file").unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!error.to_string().contains("WRONG"), "{error}");
        }
    }

    #[test]
    fn what_is_sealed_to_one_is_not_opened_by_another() {
        let (one, recipient) = new_identity();
        let (other, _) = new_identity();
        let sealed = seal_to(&recipient, b"secret").unwrap();
        let opened = open_with(&own_identity(&one).unwrap(), &sealed).unwrap();
        assert_eq!(opened.as_slice(), b"secret");
        assert!(open_with(&own_identity(&other).unwrap(), &sealed).is_err());
        assert_eq!(
            seal_to("age1nonsense", b"").unwrap_err().kind(),
            Kind::Usage
        );
    }
}
