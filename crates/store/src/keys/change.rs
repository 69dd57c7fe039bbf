//! Who may open what: the first epoch, key boxes for more recipients, and further epochs.
//!
//! The boxes of an epoch come before its record, which makes it exist. Nothing is taken away: a recipient who is left out of the next epoch opens what was
//! sealed before, for ever.

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::epoch::{
    EpochRecord, EpochSecrets, KeyBox, KeyRole, ReaderSecrets, SigningSeed, encode_box,
    encode_epoch, fingerprint,
};
use pgstrata_layer::seal::Key;

use super::Home;
use super::identity::{is_recipient, new_identity, seal_to};
use super::ring::Ring;
use crate::WRITTEN_BY;
use crate::error::{Error, Kind, Result};

/// Who opens an epoch, by role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipients {
    /// Age recipients, each with what it may do.
    pub all: Vec<(KeyRole, String)>,
}

impl Recipients {
    /// Refuses what is no recipient, and a set that nobody could read.
    ///
    /// # Errors
    /// `Usage` then.
    pub fn check(&self) -> Result<()> {
        for (_, recipient) in &self.all {
            if !is_recipient(recipient) {
                let mut shown = recipient.as_str();
                if shown.starts_with("AGE-SECRET-KEY-") {
                    shown = "what was given";
                }
                return Err(Error::new(
                    Kind::Usage,
                    format!("\"{shown}\" is not an age recipient"),
                )
                .hint("a recipient begins with age1, and is the public half of an identity: \"pgstrata key generate\" or age-keygen prints it"));
            }
        }
        match self.readers().next() {
            Some(_) => Ok(()),
            None => Err(Error::new(
                Kind::Usage,
                "nobody could read what is sealed: there is no reader",
            )
            .hint("give --recipient age1…, once for each who may restore")),
        }
    }

    /// Those who read everything.
    pub fn readers(&self) -> impl Iterator<Item = &str> {
        let readers = self.all.iter().filter(|(role, _)| *role == KeyRole::Reader);
        readers.map(|(_, recipient)| recipient.as_str())
    }
}

/// Begins the first epoch of a cluster that is about to be made; answers its seal id.
///
/// # Errors
/// `Usage` when a recipient is none; when the repository cannot be written.
pub async fn begin(home: Home<'_>, recipients: &Recipients) -> Result<String> {
    recipients.check()?;
    let (mut record, secrets) = new_epoch(1);
    record.seal_id = record.own_seal_id();
    create(home, &record, &secrets, recipients).await?;
    Ok(record.seal_id)
}

/// Begins the next epoch: what is written from then on is sealed for `recipients` alone, except that they get the catalogs
/// of all epochs. Answers its number.
///
/// # Errors
/// `Refused` when no identity at hand reads the current epoch; `AlreadyExists` when somebody else has begun one.
pub async fn rotate(home: Home<'_>, ring: &Ring, recipients: &Recipients) -> Result<u32> {
    recipients.check()?;
    let current = ring.current();
    let signing = &ring.reader(current.number)?.signing;
    let number = current.number.checked_add(1);
    let number = number.ok_or_else(|| Error::new(Kind::Refused, "there are too many epochs"))?;
    let (mut record, secrets) = new_epoch(number);
    record.seal_id.clone_from(&current.seal_id);
    record.sign(signing);
    create(home, &record, &secrets, recipients).await?;
    Ok(number)
}

/// Lets one more recipient in: into the current epoch in that role, and into the catalogs of those before.
///
/// # Errors
/// `Refused` when no identity at hand reads an epoch.
pub async fn add(home: Home<'_>, ring: &Ring, role: KeyRole, recipient: &str) -> Result<()> {
    let current = ring.current().number;
    for number in 1..=current {
        let role = match (role, number == current) {
            (KeyRole::Reader, false) => KeyRole::Keeper,
            (role, _) => role,
        };
        let _ = give(home, ring, (number, role), recipient).await?;
    }
    Ok(())
}

/// Lets a reader into every epoch; answers into how many he was let.
///
/// # Errors
/// `Refused` when no identity at hand reads an epoch.
pub async fn reseal(home: Home<'_>, ring: &Ring, recipient: &str) -> Result<usize> {
    let mut count = 0;
    for number in 1..=ring.current().number {
        count += usize::from(give(home, ring, (number, KeyRole::Reader), recipient).await?);
    }
    Ok(count)
}

/// Lets a recipient into an epoch; false when he has that role in it already. `home` may be another repository of the
/// cluster than that out of which the ring was read.
pub(super) async fn give(
    home: Home<'_>,
    ring: &Ring,
    (number, role): (u32, KeyRole),
    recipient: &str,
) -> Result<bool> {
    let reader = ring.reader(number)?;
    let mut secrets = ring.secrets(number)?.clone();
    if role != KeyRole::Reader {
        secrets.reader = None;
    }
    let seen = ring.record_of(number)?;
    store_box(home, seen, (&secrets, &reader.signing), (role, recipient)).await
}

fn new_epoch(number: u32) -> (EpochRecord, EpochSecrets) {
    let (identity, recipient) = new_identity();
    let signing = SigningSeed::new(Key::new(rand::random()));
    let record = EpochRecord {
        seal_id: String::new(),
        number,
        recipient,
        verifying_key: signing.verifying_key(),
        created_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
        signature: String::new(),
    };
    let secrets = EpochSecrets {
        catalog: Key::new(rand::random()),
        reader: Some(ReaderSecrets { identity, signing }),
    };
    (record, secrets)
}

async fn create(
    home: Home<'_>,
    record: &EpochRecord,
    secrets: &EpochSecrets,
    recipients: &Recipients,
) -> Result<()> {
    let reader = secrets.reader.as_ref();
    let signing = &reader.expect("a new epoch has all secrets").signing;
    let catalog = EpochSecrets {
        catalog: secrets.catalog.clone(),
        reader: None,
    };
    for (role, recipient) in &recipients.all {
        let secrets = match role {
            KeyRole::Reader => secrets,
            KeyRole::Writer | KeyRole::Keeper => &catalog,
        };
        store_box(home, record, (secrets, signing), (*role, recipient)).await?;
    }
    let key = home.name.epoch_key(&record.seal_id, record.number);
    let body = Bytes::from(encode_epoch(record));
    home.repository.create(&key, body).await
}

/// Stores a key box; false when the recipient has one in that role already.
async fn store_box(
    home: Home<'_>,
    epoch: &EpochRecord,
    (secrets, signing): (&EpochSecrets, &SigningSeed),
    (role, recipient): (KeyRole, &str),
) -> Result<bool> {
    let mut made = KeyBox {
        seal_id: epoch.seal_id.clone(),
        epoch: epoch.number,
        role,
        recipient: recipient.to_owned(),
        sealed: String::new(),
        created_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
        signature: String::new(),
    };
    made.put(&seal_to(recipient, secrets.encode().as_bytes())?);
    made.sign(signing);
    let print = fingerprint(recipient);
    let names = (role.as_str(), print.as_str(), epoch.verifying_key.as_str());
    let key = home.name.key_box_key(&epoch.seal_id, epoch.number, names);
    match home
        .repository
        .create(&key, Bytes::from(encode_box(&made)))
        .await
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == Kind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}
