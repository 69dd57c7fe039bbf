//! Who may open what: the first epoch, key boxes for more recipients, and further epochs.
//!
//! The boxes of an epoch come before its record, which makes it exist. Nothing is taken away: a recipient who is left out of the next epoch opens what was
//! sealed before, for ever.
//!
//! Keys may be changed by two at once. Who lets somebody in stores the box and then looks whether an epoch has begun; who
//! begins an epoch makes it exist and then looks whose boxes have come to the one before. So one of them sees the other, whatever
//! the order, and nobody who was let in is left out.

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::epoch::{
    EpochRecord, EpochSecrets, KeyBox, KeyRole, ReaderSecrets, SigningSeed, decode_epoch,
    encode_box, encode_epoch, fingerprint,
};
use pgstrata_layer::keys::box_maker;
use pgstrata_layer::seal::Key;

use super::Home;
use super::identity::{is_recipient, new_identity, no_recipient, seal_to};
use super::lost::Behind;
use super::ring::{Ring, boxes_now, read_box};
use crate::WRITTEN_BY;
use crate::error::{Error, Kind, Result};

/// As many epochs may begin one after another while somebody is let in.
const MOST_LOOKS: u32 = 20;

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
                return Err(no_recipient(recipient));
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

    /// Readers who are writer or keeper, too.
    pub fn doubled(&self) -> impl Iterator<Item = &str> {
        let others = || self.all.iter().filter(|(role, _)| *role != KeyRole::Reader);
        self.readers()
            .filter(move |reader| others().any(|(_, other)| other == reader))
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
    store_boxes(home, (&record, &secrets), recipients).await?;
    store_record(home, &record).await?;
    Ok(record.seal_id)
}

/// Begins the next epoch: what is written from then on is sealed for `recipients` alone, except that they get the catalogs
/// of all epochs. Who was let into the current one after `ring` was read is let in too. Answers its number.
///
/// # Errors
/// `Refused` when no identity at hand reads the current epoch; `Damaged` when nobody does; `AlreadyExists` when somebody else has begun one.
pub async fn rotate(home: Home<'_>, ring: &Ring, recipients: &Recipients) -> Result<u32> {
    ring.require_read()?;
    recipients.check()?;
    let current = ring.current();
    let signing = &ring.reader(current.number)?.signing;
    let number = ring.unused(home).await?;
    let number = number.ok_or_else(|| Error::new(Kind::Refused, "there are too many epochs"))?;
    let (mut record, secrets) = new_epoch(number);
    record.seal_id.clone_from(&current.seal_id);
    record.sign(signing);
    store_boxes(home, (&record, &secrets), recipients).await?;
    // Whoever began a later one meanwhile took this one for lost.
    if let Some(later) = ring.later_than(home, number).await? {
        let what =
            format!("epoch {later} was begun while this command ran, so epoch {number} was not");
        return Err(
            Error::new(Kind::Refused, what).hint("nobody was let in or taken out: run it again")
        );
    }
    if let Err(error) = store_record(home, &record).await {
        if error.kind() == Kind::AlreadyExists {
            take_back(home, &record).await;
        }
        return Err(error);
    }
    let late = late_comers(home, ring, recipients).await;
    let late = late.map_err(|error| {
        let what = "could not find out whether somebody was let in at the same time";
        error.while_doing(format!("epoch {number} has begun, and {what}"))
    })?;
    for (role, recipient) in late {
        tracing::info!(
            "{recipient} was let in at the same time, and is let into epoch {number} too"
        );
        let one = (role, recipient.as_str());
        if let_in(home, (&record, &secrets), one).await? {
            follow(home, ring, number, one).await?;
        }
    }
    if let Some(later) = ring.later_than(home, number).await? {
        require_to_go_on(home, ring, number, later).await?;
    }
    Ok(number)
}

/// Removes the key boxes of an epoch that was not begun, because another one has its number: they would look like those of one
/// that was replaced. Who may not delete says which are left.
async fn take_back(home: Home<'_>, record: &EpochRecord) {
    let key = home.name.epoch_key(&record.seal_id, record.number);
    let taking = async {
        let there = decode_epoch(&home.repository.get_record(&key).await?)?;
        let own = boxes_now(home, record).await?;
        // Of one with the same beginning of its key nobody could tell them.
        let own: Vec<String> = own
            .into_iter()
            .filter(|key| !there.is_named_by(key))
            .collect();
        home.repository.delete_all(&own).await
    };
    if let Err(error) = taking.await {
        let end = box_maker(&record.verifying_key);
        let prefix = home.name.epoch_prefix(&record.seal_id, record.number);
        tracing::warn!(
            "nothing is sealed until the key boxes below \"{prefix}\" are deleted whose names end in {end}: they are left of an epoch \
             that was not begun, and could not be removed: {error}"
        );
    }
}

/// Refuses what somebody else has begun at the same time, unless it goes on with ours, epoch `number`.
async fn require_to_go_on(home: Home<'_>, ring: &Ring, number: u32, later: u32) -> Result<()> {
    let current = ring.current();
    match ring.behind(home, number).await? {
        Behind::GoesOn(later) => {
            tracing::info!(
                "epoch {later} has begun since, which goes on with epoch {number}: it is for the recipients of that"
            );
            Ok(())
        }
        Behind::Apart(later) => {
            let key = home.name.epoch_key(&current.seal_id, number);
            let what = format!(
                "epoch {number} was begun, and so was epoch {later} at the same time, apart from it"
            );
            Err(Error::new(Kind::Damaged, what).hint(format!(
                "epoch {later} is for the recipients of epoch {}, and nothing is sealed until one of the two goes: take the object \
                 \"{key}\" away, and run this command again; who was taken out by it is not out before",
                current.number
            )))
        }
        Behind::Nothing => {
            let what = format!(
                "epoch {number} has begun, and what is there of epoch {later} does not say yet whether it goes on with it"
            );
            Err(Error::new(Kind::Busy, what).hint(
                "another key command is at work, or was interrupted: wait for its end, and look at \"pgstrata key check\"",
            ))
        }
    }
}

/// Into what somebody was let.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The epoch that is current, into which he was let too if it has begun since the keys were read.
    pub current: u32,
    /// Into how many older epochs he was let now.
    pub older: usize,
    /// Older epochs into which nobody at hand can let him.
    pub closed: Vec<u32>,
}

/// Lets one more recipient in: into the current epoch in that role, and into the catalogs of those before.
///
/// # Errors
/// `Refused` when no identity at hand reads the current epoch.
pub async fn add(home: Home<'_>, ring: &Ring, role: KeyRole, recipient: &str) -> Result<Admission> {
    let current = ring.current().number;
    // Older ones may be closed to everybody who is left.
    let is_new = give(home, ring, (current, role), recipient).await?;
    let in_older = match role {
        KeyRole::Reader => KeyRole::Keeper,
        role => role,
    };
    let (older, closed) = give_older(home, ring, in_older, recipient).await?;
    // Who was in it before was seen by who began the next one, and may have been taken out.
    let current = match is_new {
        true => follow(home, ring, current, (role, recipient)).await?,
        false => current,
    };
    Ok(Admission {
        current,
        older,
        closed,
    })
}

/// Lets a reader of the current epoch into every other.
///
/// # Errors
/// `Refused` for who is no reader of the current one: nobody becomes one by this.
pub async fn reseal(home: Home<'_>, ring: &Ring, recipient: &str) -> Result<Admission> {
    let current = ring.current().number;
    if !ring.has_reader(home, recipient).await? {
        let what = format!("{recipient} is not a reader of epoch {current}, which is current");
        return Err(Error::new(Kind::Refused, what).hint(
            "\"pgstrata key check\" lists who opens what; \"pgstrata key add --recipient\" lets in somebody who shall read everything",
        ));
    }
    // Who begins another epoch meanwhile sees the reader in this one.
    let (older, closed) = give_older(home, ring, KeyRole::Reader, recipient).await?;
    Ok(Admission {
        current,
        older,
        closed,
    })
}

/// Lets a recipient into every epoch but the current one; answers into how many, and into which nobody at hand can let him.
async fn give_older(
    home: Home<'_>,
    ring: &Ring,
    role: KeyRole,
    recipient: &str,
) -> Result<(usize, Vec<u32>)> {
    let current = ring.current().number;
    let (mut given, mut closed) = (0, Vec::new());
    let numbers = ring.records().map(|epoch| epoch.number);
    for number in numbers.filter(|number| *number != current) {
        match give(home, ring, (number, role), recipient).await {
            Ok(is_new) => given += usize::from(is_new),
            Err(error) if error.is_lack_of_key() => {
                if !ring.has_box(number, role, recipient) {
                    closed.push(number);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok((given, closed))
}

/// Lets who has just come into epoch `seen` into those that began meanwhile, until there is none: who began them may not
/// have seen him. Answers the last one.
async fn follow(
    home: Home<'_>,
    ring: &Ring,
    mut seen: u32,
    (role, recipient): (KeyRole, &str),
) -> Result<u32> {
    for _ in 0..MOST_LOOKS {
        let now = ring.again(home).await?;
        let current = now.current().number;
        if current <= seen {
            return Ok(seen);
        }
        let begun = now.records().map(|epoch| epoch.number);
        for number in begun.filter(|number| *number > seen) {
            let given = give(home, &now, (number, role), recipient).await;
            given.map_err(|error| {
                error.while_doing(format!(
                    "{recipient} was let in up to epoch {}, and not into epoch {number}, which has begun meanwhile",
                    number.saturating_sub(1)
                ))
            })?;
        }
        seen = current;
    }
    let what =
        format!("{recipient} was let in up to epoch {seen}, and new epochs begin all the time");
    Err(Error::new(Kind::Busy, what).hint("run it again when nobody else changes keys"))
}

/// Who was let into the current epoch after `ring` was read, but for those who are to be taken out.
async fn late_comers(
    home: Home<'_>,
    ring: &Ring,
    recipients: &Recipients,
) -> Result<Vec<(KeyRole, String)>> {
    let epoch = ring.current();
    let known = ring.boxes_of(epoch.number)?;
    let mut late = Vec::new();
    for key in boxes_now(home, epoch).await? {
        if known.contains(&key) {
            continue;
        }
        let (found, _) = read_box(home, &key, epoch).await?;
        let print = format!("-{}-", fingerprint(&found.recipient));
        let was_in = known.iter().any(|key| key.contains(&print));
        let mut stays = recipients.all.iter();
        if !was_in || stays.any(|(_, own)| *own == found.recipient) {
            late.push((found.role, found.recipient));
        }
    }
    Ok(late)
}

/// Lets a recipient into an epoch; false when he has that role in it already. `home` may be another repository of the
/// cluster than that out of which the ring was read.
pub(super) async fn give(
    home: Home<'_>,
    ring: &Ring,
    (number, role): (u32, KeyRole),
    recipient: &str,
) -> Result<bool> {
    let own = ring.reader(number);
    let signing = match (own, role) {
        (Ok(own), _) => &own.signing,
        // Pages are for the epoch's own readers to give.
        (Err(error), KeyRole::Reader) => return Err(error),
        // A later epoch vouches for who opens no page.
        (Err(_), KeyRole::Writer | KeyRole::Keeper) => &ring.reader(ring.current().number)?.signing,
    };
    let mut secrets = ring.secrets(number)?.clone();
    if role != KeyRole::Reader {
        secrets.reader = None;
    }
    let seen = ring.record_of(number)?;
    store_box(home, seen, (&secrets, signing), (role, recipient)).await
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

async fn store_boxes(
    home: Home<'_>,
    (record, secrets): (&EpochRecord, &EpochSecrets),
    recipients: &Recipients,
) -> Result<()> {
    for (role, recipient) in &recipients.all {
        let_in(home, (record, secrets), (*role, recipient)).await?;
    }
    Ok(())
}

/// The epoch begins.
async fn store_record(home: Home<'_>, record: &EpochRecord) -> Result<()> {
    let key = home.name.epoch_key(&record.seal_id, record.number);
    let body = Bytes::from(encode_epoch(record));
    let created = home.repository.create(&key, body).await;
    created.map_err(|error| match error.kind() {
        Kind::AlreadyExists => error.hint(
            "somebody else has begun an epoch at the same time: look at \"pgstrata key check\", and run the command again if it is still needed",
        ),
        _ => error,
    })
}

/// Stores a key box of an epoch of which all secrets are known; false when the recipient has one in that role already.
async fn let_in(
    home: Home<'_>,
    (record, secrets): (&EpochRecord, &EpochSecrets),
    (role, recipient): (KeyRole, &str),
) -> Result<bool> {
    let reader = secrets.reader.as_ref();
    let signing = &reader.expect("a new epoch has all secrets").signing;
    let catalog = EpochSecrets {
        catalog: secrets.catalog.clone(),
        reader: None,
    };
    let secrets = match role {
        KeyRole::Reader => secrets,
        KeyRole::Writer | KeyRole::Keeper => &catalog,
    };
    store_box(home, record, (secrets, signing), (role, recipient)).await
}

/// Stores a key box, which `signing` vouches for; false when the recipient has one in that role by it already.
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
    let maker = signing.verifying_key();
    let names = (role.as_str(), print.as_str(), maker.as_str());
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
