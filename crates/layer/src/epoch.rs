//! Epochs and key boxes: who may open what was sealed since when.
//!
//! An epoch has a key pair for data, a key for signing, and a catalog key. Its record holds the public halves; key boxes
//! hold the secret halves, each sealed to one recipient. A box is signed by its epoch, or by a later one when it opens no
//! page, and every epoch but the first by the one before it; the first is known by the cluster's seal id, which is made of
//! its public halves. So who can write to the repository, and holds no key, can neither add a reader nor begin an epoch of
//! his own.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::bytes::{from_hex, from_hex_exact, to_hex};
use crate::digest::contents;
use crate::error::{Error, Result};
use crate::keys::box_maker;
use crate::record;
use crate::seal::Key;

const EPOCH: &str = "epoch";
const BOX: &str = "keybox";

/// The public half of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochRecord {
    /// Of the cluster; that of the first epoch's [`EpochRecord::seal_id`].
    pub seal_id: String,
    /// From 1, ascending. A number is missing when the record of an epoch was lost: none is used twice.
    pub number: u32,
    /// To whom data keys are sealed: an age recipient, `age1…`.
    pub recipient: String,
    /// Ed25519 key that verifies key boxes and the next epoch, hexadecimal.
    pub verifying_key: String,
    /// When it began.
    pub created_at: Timestamp,
    /// Program and version that made it.
    pub written_by: String,
    /// By the epoch before, hexadecimal; empty in the first.
    pub signature: String,
}

impl EpochRecord {
    /// What the cluster is known by whose first epoch this is: 16 bytes in hexadecimal.
    #[must_use]
    pub fn own_seal_id(&self) -> String {
        let text = format!(
            "pgstrata epoch 1\n{}\n{}\n",
            self.recipient, self.verifying_key
        );
        to_hex(&contents(text.as_bytes())[..16])
    }

    /// Those of the keys at which its key boxes are. The others are none, or made by other epochs.
    #[must_use]
    pub fn boxes_among(&self, keys: impl Iterator<Item = String>) -> Vec<String> {
        keys.filter(|key| self.is_named_by(key)).collect()
    }

    /// Whether a key box with that key says by its name that this epoch has made it.
    #[must_use]
    pub fn is_named_by(&self, key: &str) -> bool {
        key.rsplit_once('-')
            .is_some_and(|(_, end)| end == box_maker(&self.verifying_key))
    }

    /// What the epoch before signs.
    fn signed(&self) -> String {
        format!(
            "pgstrata epoch\n{}\n{}\n{}\n{}\n",
            self.seal_id, self.number, self.recipient, self.verifying_key
        )
    }

    /// Signs it with the secret of the epoch before.
    pub fn sign(&mut self, before: &SigningSeed) {
        self.signature = before.sign(self.signed().as_bytes());
    }

    /// Whether `before` began it; the first one is known by its seal id.
    ///
    /// # Errors
    /// When it did not.
    pub fn verify(&self, before: Option<&Self>) -> Result<()> {
        let genuine = match before {
            None => self.number == 1 && self.own_seal_id() == self.seal_id,
            Some(before) => {
                // A number between them may be lost: none is used twice.
                let follows = before.number < self.number;
                let signed = self.signed();
                follows
                    && before.seal_id == self.seal_id
                    && verifies(&before.verifying_key, signed.as_bytes(), &self.signature)
            }
        };
        match genuine {
            true => Ok(()),
            false => Err(Error::damaged(format!(
                "epoch {} was not begun by who may read epoch {}: it is forged, or belongs to another cluster",
                self.number,
                self.number.saturating_sub(1)
            ))),
        }
    }
}

/// What somebody may do who opens a key box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyRole {
    /// Read everything, and decide who else may.
    Reader,
    /// Make backups, and read what that needs: no page.
    Writer,
    /// Expire, and read what that needs: no page.
    Keeper,
}

impl KeyRole {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Writer => "writer",
            Self::Keeper => "keeper",
        }
    }
}

/// EpochSecrets of an epoch, sealed to one recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyBox {
    /// Of the cluster.
    pub seal_id: String,
    /// Of which epoch.
    pub epoch: u32,
    /// What the secrets allow.
    pub role: KeyRole,
    /// Who can open it: an age recipient, `age1…`.
    pub recipient: String,
    /// [`EpochSecrets`] as an age file, hexadecimal.
    pub sealed: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// Program and version that made it.
    pub written_by: String,
    /// By its epoch, hexadecimal.
    pub signature: String,
}

impl KeyBox {
    fn signed(&self) -> String {
        format!(
            "pgstrata keybox\n{}\n{}\n{}\n{}\n{}\n",
            self.seal_id,
            self.epoch,
            self.role.as_str(),
            self.recipient,
            self.sealed
        )
    }

    /// Puts an age file in.
    pub fn put(&mut self, age_file: &[u8]) {
        self.sealed = to_hex(age_file);
    }

    /// Signs it with the secret of its epoch.
    pub fn sign(&mut self, own: &SigningSeed) {
        self.signature = own.sign(self.signed().as_bytes());
    }

    /// Whether `epoch` made it.
    ///
    /// # Errors
    /// When it did not.
    pub fn verify(&self, epoch: &EpochRecord) -> Result<()> {
        self.verify_by(epoch, epoch)
    }

    /// Whether `maker` made it for `epoch`: that one itself, or a later one of the same cluster, which lets nobody read pages.
    ///
    /// # Errors
    /// When it did not.
    pub fn verify_by(&self, epoch: &EpochRecord, maker: &EpochRecord) -> Result<()> {
        let own = self.seal_id == epoch.seal_id && self.epoch == epoch.number;
        let may = match maker.number == epoch.number {
            true => maker == epoch,
            false => {
                let is_later = maker.number > epoch.number && maker.seal_id == epoch.seal_id;
                is_later && self.role != KeyRole::Reader
            }
        };
        let signed = self.signed();
        match own && may && verifies(&maker.verifying_key, signed.as_bytes(), &self.signature) {
            true => Ok(()),
            false => Err(Error::damaged(format!(
                "key box of {} was not made by epoch {}: it is forged, or belongs to another",
                self.recipient, maker.number
            ))),
        }
    }

    /// The age file.
    ///
    /// # Errors
    /// When it is not hexadecimal.
    pub fn sealed_bytes(&self) -> Result<Vec<u8>> {
        from_hex(&self.sealed)
            .ok_or_else(|| Error::damaged("key box holds something that is not hexadecimal"))
    }
}

/// Ed25519 secret of an epoch.
#[derive(Clone)]
pub struct SigningSeed(Key);

impl std::fmt::Debug for SigningSeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningSeed(secret)")
    }
}

impl SigningSeed {
    /// The secret with these random bits.
    #[must_use]
    pub fn new(seed: Key) -> Self {
        Self(seed)
    }

    fn pair(&self) -> Ed25519KeyPair {
        let pair = Ed25519KeyPair::from_seed_unchecked(self.0.bits());
        pair.expect("every 32 bytes are a seed")
    }

    /// The public half, hexadecimal.
    #[must_use]
    pub fn verifying_key(&self) -> String {
        to_hex(self.pair().public_key().as_ref())
    }

    fn sign(&self, text: &[u8]) -> String {
        to_hex(self.pair().sign(text).as_ref())
    }
}

fn verifies(verifying_key: &str, text: &[u8], signature: &str) -> bool {
    let (Some(key), Some(signature)) = (
        from_hex_exact::<32>(verifying_key),
        from_hex_exact::<64>(signature),
    ) else {
        return false;
    };
    UnparsedPublicKey::new(&ED25519, key)
        .verify(text, &signature)
        .is_ok()
}

/// What a key box holds when it is opened.
#[derive(Clone, Debug)]
pub struct EpochSecrets {
    /// Opens what is sealed with the catalog key.
    pub catalog: Key,
    /// For readers.
    pub reader: Option<ReaderSecrets>,
}

/// What only readers have of an epoch.
#[derive(Clone)]
pub struct ReaderSecrets {
    /// The age identity to which data keys are sealed, `AGE-SECRET-KEY-1…`.
    pub identity: Zeroizing<String>,
    /// Signs key boxes and the next epoch.
    pub signing: SigningSeed,
}

impl std::fmt::Debug for ReaderSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReaderSecrets(secret)")
    }
}

impl EpochSecrets {
    /// As they are before they are sealed: a line for each, `catalog` and 64 hexadecimal digits; of readers also
    /// `identity` and the age identity, `signing` and 64 hexadecimal digits.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(format!("catalog {}\n", to_hex(self.catalog.bits())));
        if let Some(reader) = &self.reader {
            text.push_str("identity ");
            text.push_str(&reader.identity);
            text.push_str("\nsigning ");
            text.push_str(&to_hex(reader.signing.0.bits()));
            text.push('\n');
        }
        text
    }

    /// Reads them.
    ///
    /// # Errors
    /// When they are something else. What was found is not told.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::damaged("key box holds something else than keys");
        let text = std::str::from_utf8(bytes).map_err(|_| wrong())?;
        let mut lines = text.lines();
        let mut next = |word: &str| {
            let line = lines.next()?;
            line.strip_prefix(word)?.strip_prefix(' ')
        };
        let key = |digits: &str| from_hex_exact::<32>(digits).map(Key::new);
        let catalog = next("catalog").and_then(key).ok_or_else(wrong)?;
        let reader = match next("identity") {
            None => None,
            Some(identity) => {
                if !identity.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return Err(wrong());
                }
                let identity = Zeroizing::new(identity.to_owned());
                let signing = next("signing").and_then(key).ok_or_else(wrong)?;
                let signing = SigningSeed::new(signing);
                Some(ReaderSecrets { identity, signing })
            }
        };
        Ok(Self { catalog, reader })
    }
}

/// The object's bytes.
#[must_use]
pub fn encode_epoch(record: &EpochRecord) -> Vec<u8> {
    record::encode(EPOCH, record)
}

/// Reads an epoch record. Whether it is genuine is another question: [`EpochRecord::verify`].
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode_epoch(bytes: &[u8]) -> Result<EpochRecord> {
    record::decode(EPOCH, bytes)
}

/// The object's bytes.
#[must_use]
pub fn encode_box(record: &KeyBox) -> Vec<u8> {
    record::encode(BOX, record)
}

/// Reads a key box. Whether it is genuine is another question: [`KeyBox::verify`].
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode_box(bytes: &[u8]) -> Result<KeyBox> {
    record::decode(BOX, bytes)
}

/// What names a recipient in the key of his box: 16 hexadecimal digits.
#[must_use]
pub fn fingerprint(recipient: &str) -> String {
    to_hex(&contents(recipient.as_bytes())[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    fn seed(bits: u8) -> SigningSeed {
        SigningSeed::new(Key::new([bits; 32]))
    }

    fn epoch(number: u32, signing: &SigningSeed, before: Option<&SigningSeed>) -> EpochRecord {
        let mut record = EpochRecord {
            seal_id: String::new(),
            number,
            recipient: "age1example".to_owned(),
            verifying_key: signing.verifying_key(),
            created_at: "2026-11-23T07:00:00Z".parse().unwrap(),
            written_by: "test".to_owned(),
            signature: String::new(),
        };
        record.seal_id = match before {
            None => record.own_seal_id(),
            Some(_) => epoch(1, &seed(1), None).seal_id,
        };
        if let Some(before) = before {
            record.sign(before);
        }
        record
    }

    #[test]
    fn an_epoch_is_begun_by_the_one_before_and_by_nobody_else() {
        let first = epoch(1, &seed(1), None);
        first.verify(None).unwrap();
        let second = epoch(2, &seed(2), Some(&seed(1)));
        second.verify(Some(&first)).unwrap();
        assert!(second.verify(None).is_err());
        let forged = epoch(2, &seed(3), Some(&seed(3)));
        assert!(forged.verify(Some(&first)).is_err());
        let third = epoch(3, &seed(3), Some(&seed(2)));
        third.verify(Some(&second)).unwrap();
        assert!(third.verify(Some(&first)).is_err());
        // The first one's readers go on behind a second whose record is lost, and not behind one that is there.
        let behind = epoch(3, &seed(3), Some(&seed(1)));
        behind.verify(Some(&first)).unwrap();
        assert!(behind.verify(Some(&second)).is_err());
        assert!(first.verify(Some(&second)).is_err());
        assert!(second.verify(Some(&second)).is_err());
        let mut other = first.clone();
        other.recipient = "age1other".to_owned();
        assert!(other.verify(None).is_err());
        let mut altered = second.clone();
        altered.recipient = "age1other".to_owned();
        assert!(altered.verify(Some(&first)).is_err());
        require_damage_found(&encode_epoch(&second), decode_epoch);
    }

    #[test]
    fn a_box_belongs_to_its_epoch_role_and_recipient() {
        let first = epoch(1, &seed(1), None);
        let mut own = KeyBox {
            seal_id: first.seal_id.clone(),
            epoch: 1,
            role: KeyRole::Writer,
            recipient: "age1somebody".to_owned(),
            sealed: "00ff".to_owned(),
            created_at: "2026-11-23T07:00:00Z".parse().unwrap(),
            written_by: "test".to_owned(),
            signature: String::new(),
        };
        own.sign(&seed(1));
        own.verify(&first).unwrap();
        let mut other = own.clone();
        other.role = KeyRole::Reader;
        assert!(other.verify(&first).is_err());
        other = own.clone();
        other.recipient.push('x');
        assert!(other.verify(&first).is_err());
        other = own.clone();
        other.sign(&seed(2));
        assert!(other.verify(&first).is_err());
        require_damage_found(&encode_box(&own), decode_box);
    }

    #[test]
    fn a_later_epoch_makes_boxes_for_an_older_one_and_none_of_a_reader() {
        let first = epoch(1, &seed(1), None);
        let second = epoch(2, &seed(2), Some(&seed(1)));
        let made = |of: &EpochRecord, role, by: &SigningSeed| {
            let mut made = KeyBox {
                seal_id: first.seal_id.clone(),
                epoch: of.number,
                role,
                recipient: "age1somebody".to_owned(),
                sealed: "00ff".to_owned(),
                created_at: "2026-11-23T07:00:00Z".parse().unwrap(),
                written_by: "test".to_owned(),
                signature: String::new(),
            };
            made.sign(by);
            made
        };
        for role in [KeyRole::Writer, KeyRole::Keeper] {
            let vouched = made(&first, role, &seed(2));
            vouched.verify_by(&first, &second).unwrap();
            assert!(vouched.verify(&first).is_err());
            assert!(vouched.verify_by(&second, &second).is_err());
            // Who was taken out lets nobody into what came since.
            let back = made(&second, role, &seed(1));
            assert!(back.verify_by(&second, &first).is_err());
        }
        let reader = made(&first, KeyRole::Reader, &seed(2));
        assert!(reader.verify_by(&first, &second).is_err());
        // Another epoch of the same number is not a later one.
        let other = epoch(2, &seed(3), Some(&seed(1)));
        let of_other = made(&second, KeyRole::Keeper, &seed(3));
        assert!(of_other.verify_by(&second, &other).is_err());
    }

    #[test]
    fn secrets_come_back_and_are_never_shown() {
        let writer = EpochSecrets {
            catalog: Key::new([9; 32]),
            reader: None,
        };
        let read = EpochSecrets::decode(writer.encode().as_bytes()).unwrap();
        assert_eq!(read.catalog.bits(), writer.catalog.bits());
        assert!(read.reader.is_none());
        let reader = EpochSecrets {
            reader: Some(ReaderSecrets {
                identity: Zeroizing::new("AGE-SECRET-KEY-1X".to_owned()),
                signing: seed(5),
            }),
            ..writer
        };
        let read = EpochSecrets::decode(reader.encode().as_bytes()).unwrap();
        let own = read.reader.unwrap();
        assert_eq!(own.identity.as_str(), "AGE-SECRET-KEY-1X");
        assert_eq!(own.signing.verifying_key(), seed(5).verifying_key());
        let shown = format!("{reader:?}");
        assert!(
            !shown.contains("AGE-SECRET") && !shown.contains("0909"),
            "{shown}"
        );
        // Read as it is written, and in no other way.
        let text = String::from_utf8(reader.encode().as_bytes().to_vec()).unwrap();
        let with_return = text.replace("KEY-1X\n", "KEY-1X\r\r\n");
        assert!(EpochSecrets::decode(with_return.as_bytes()).is_err());
        let error = EpochSecrets::decode(b"catalog secret").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
