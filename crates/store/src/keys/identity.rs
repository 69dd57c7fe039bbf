//! Identities: the secrets that people keep, in age's own format.

use std::borrow::Cow;
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

/// Whether `text` is an age X25519 recipient, as age writes it.
#[must_use]
pub fn is_recipient(text: &str) -> bool {
    Recipient::from_str(text).is_ok_and(|own| own.to_string() == text)
}

/// The recipient that somebody names, as age writes it: capitals are allowed, and key boxes have names.
///
/// # Errors
/// `Usage` when it is none.
pub fn recipient(text: &str) -> Result<String> {
    match Recipient::from_str(text) {
        Ok(own) => Ok(own.to_string()),
        Err(_) => Err(no_recipient(text)),
    }
}

pub(super) fn no_recipient(text: &str) -> Error {
    let what = format!("\"{}\" is not an age recipient", mask(text));
    Error::new(Kind::Usage, what).hint("a recipient begins with age1, and is the public half of an identity: \"pgstrata key generate\" or age-keygen prints it")
}

const SECRET: &str = "AGE-SECRET-KEY-";

/// More of an identity than its beginning, in letters and digits.
const TELLING: usize = 4;

/// Where an identity stands in `text`, behind [`SECRET`]. Names of files may hold that word.
fn find_secret(text: &str) -> Option<(usize, usize)> {
    let upper = text.to_ascii_uppercase();
    upper.match_indices(SECRET).find_map(|(at, _)| {
        let begin = at + SECRET.len();
        let rest = upper.get(begin..).unwrap_or_default();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
        // Another one may follow without a line end between them: it is found by its own beginning.
        let ends = [end, rest.find(SECRET)].into_iter().flatten();
        let length = ends.min().unwrap_or(rest.len());
        let is_secret = rest.starts_with('1') && length >= TELLING || length >= 5 * TELLING;
        is_secret.then_some((begin, begin + length))
    })
}

/// Whether an identity stands in `text`, however it is written.
#[must_use]
pub fn holds_secret(text: &str) -> bool {
    find_secret(text).is_some()
}

/// `text` without the identities in it.
#[must_use]
pub fn mask(text: &str) -> Cow<'_, str> {
    let Some((begin, end)) = find_secret(text) else {
        return Cow::Borrowed(text);
    };
    let (before, after) = (&text[..begin], &text[end..]);
    Cow::Owned([before, "...", &mask(after)].concat())
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
    fn a_recipient_in_capitals_is_the_same_and_one_in_both_is_none() {
        let (_, own) = new_identity();
        let capitals = own.to_ascii_uppercase();
        assert_eq!(recipient(&own).unwrap(), own);
        assert_eq!(recipient(&capitals).unwrap(), own);
        assert!(!is_recipient(&capitals));
        let mixed = format!("age1{}", &capitals[4..]);
        assert_eq!(recipient(&mixed).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn an_identity_is_masked_wherever_it_stands() {
        let (own, recipient) = new_identity();
        let own = own.as_str();
        for secret in [own.to_owned(), own.to_lowercase()] {
            let text = format!("# {recipient}\n\"{secret}\"\necho {secret}");
            assert!(holds_secret(&text));
            let shown = mask(&text);
            assert!(!shown.contains(&secret[16..]), "{shown}");
            assert!(shown.contains(&recipient) && shown.contains("...\"\necho"));
        }
        // As files become one that ends without a line end.
        let joined = format!("{own}{own}");
        assert_eq!(mask(&joined), "AGE-SECRET-KEY-...AGE-SECRET-KEY-...");
        for harmless in [
            "an identity begins with AGE-SECRET-KEY-1; make one",
            "/keys/age-secret-key-prod.txt",
            "grep AGE-SECRET-KEY- file",
            "é",
        ] {
            assert!(!holds_secret(harmless));
            assert_eq!(mask(harmless), harmless);
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
