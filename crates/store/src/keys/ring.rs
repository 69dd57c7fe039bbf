//! The epochs of a sealed cluster, and what the identities at hand open of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use age::x25519::Identity;
use bytes::Bytes;
use futures::future::join_all;
use pgstrata_layer::epoch::{
    EpochRecord, EpochSecrets, KeyBox, KeyRole, ReaderSecrets, decode_box, fingerprint,
};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::Encryption;
use pgstrata_layer::seal::Key;

use super::Home;
use super::genuine::rivals_among;
use super::identity::{Identities, open_with, own_identity, seal_to};
use super::unread::{BRING_BACK, NO_BOX, nobody_opens, unread_error};
use crate::error::{Error, Kind, Result};
use crate::repository::record::is_far;

/// Keys of a sealed cluster: all epochs, each with the secrets that could be opened.
pub struct Ring {
    pub(super) seal_id: [u8; 16],
    name: ClusterName,
    /// By number, from 1. Numbers whose records are lost are left out.
    pub(super) epochs: Vec<Epoch>,
    /// All numbers that are in the repository, and whether a record is there that may be one of this cluster.
    pub(super) listed: BTreeMap<u32, bool>,
    /// What is in the place of an epoch's record, and is none: unreadable, or begun by no epoch that is known.
    pub(super) aside: BTreeMap<u32, Error>,
    /// Numbers that were asked for, of objects that name them, and are not known.
    pub(super) missed: Mutex<BTreeSet<u32>>,
    /// An epoch that does not go on with the one before, whose record was lost when it was begun.
    pub(super) apart: Option<u32>,
    /// Epochs for which the store shows another record than the one that was begun, and what is to be said of that.
    pub(super) replaced: BTreeMap<u32, Error>,
    /// Epochs that have a record, and a key box of a reader that another one of the same number has made.
    pub(super) contested: BTreeSet<u32>,
    /// Those boxes, when they have stayed, each with its epoch.
    pub(super) rivals: tokio::sync::OnceCell<Vec<(u32, String)>>,
    /// The highest number for which the repository was read again, and what it had then.
    pub(super) looked: tokio::sync::Mutex<u32>,
    pub(super) later: OnceLock<Box<Ring>>,
    /// How many identities were tried.
    identities: usize,
    /// Those that were tried here.
    pub(super) own: Identities,
    /// Data keys that were opened, by what they are sealed as.
    opened: Mutex<HashMap<String, Key>>,
    warned: Once,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} epochs)", self.epochs.len())
    }
}

pub(super) struct Epoch {
    pub(super) record: EpochRecord,
    pub(super) secrets: Option<EpochSecrets>,
    /// To which data keys are sealed; with readers only.
    identity: Option<Identity>,
    /// What the identities at hand are.
    own: Vec<KeyRole>,
    boxes: Vec<String>,
    /// Key boxes that later epochs have made for its catalog, each with its maker.
    pub(super) late_boxes: Vec<(String, EpochRecord)>,
}

/// What is known of an epoch.
#[derive(Clone, Debug)]
pub struct EpochSeen {
    /// Its number.
    pub number: u32,
    /// Its record.
    pub record: EpochRecord,
    /// Its key boxes.
    pub boxes: Vec<BoxSeen>,
    /// Whether the identities at hand open its catalog.
    pub opens_catalog: bool,
    /// Whether they open pages and WAL.
    pub opens_data: bool,
    /// What they are, each role once.
    pub own: Vec<KeyRole>,
}

/// A key box, as everybody sees it.
#[derive(Clone, Debug)]
pub struct BoxSeen {
    /// What it allows.
    pub role: KeyRole,
    /// Who opens it.
    pub recipient: String,
}

impl Ring {
    /// Reads the epochs, and opens what `identities` open.
    pub(super) async fn load(
        home: Home<'_>,
        seal_id: &str,
        identities: &Identities,
    ) -> Result<Self> {
        let prefix = home.name.seals_prefix(seal_id);
        let listed = home.repository.list(&prefix).await?;
        let mut keys: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for object in listed {
            if let Some(number) = epoch_of(&prefix, &object.key) {
                keys.entry(number).or_default().push(object.key);
            }
        }
        let is_there = |(number, keys): (&u32, &Vec<String>)| {
            (
                *number,
                keys.contains(&home.name.epoch_key(seal_id, *number)),
            )
        };
        let mut ring = Self {
            seal_id: sealing_id(seal_id)?,
            name: home.name.clone(),
            epochs: Vec::new(),
            listed: keys.iter().map(is_there).collect(),
            aside: BTreeMap::new(),
            missed: Mutex::default(),
            apart: None,
            replaced: BTreeMap::new(),
            contested: BTreeSet::new(),
            rivals: tokio::sync::OnceCell::new(),
            looked: tokio::sync::Mutex::default(),
            later: OnceLock::new(),
            identities: identities.iter().count(),
            own: identities.clone(),
            opened: Mutex::default(),
            warned: Once::new(),
        };
        ring.read_epochs(home, seal_id, &keys).await?;
        ring.forget_far();
        if ring.epochs.is_empty()
            && let Some((_, why)) = ring.aside.pop_first()
        {
            return Err(why);
        }
        match ring.epochs.is_empty() {
            false => Ok(ring),
            true => Err(Error::new(
                Kind::Damaged,
                format!(
                    "cluster \"{}\" is sealed, and its keys below \"{prefix}\" are not there",
                    home.name.as_str()
                ),
            )
            .hint(
                "bring them back from a copy of the repository: nothing can be read without them",
            )),
        }
    }

    /// Reads those epochs whose records are among `keys`, and opens what there is.
    async fn read_epochs(
        &mut self,
        home: Home<'_>,
        seal_id: &str,
        keys: &BTreeMap<u32, Vec<String>>,
    ) -> Result<()> {
        for (number, found) in keys {
            let key = home.name.epoch_key(seal_id, *number);
            if !found.contains(&key) {
                continue;
            }
            let Some(record) = self.read_record(home, (*number, &key)).await? else {
                continue;
            };
            if !rivals_among(&record, found).is_empty() {
                self.contested.insert(*number);
            }
            let epoch = self.read_epoch(home, record, found).await?;
            self.epochs.push(epoch);
        }
        self.open_late(home, keys).await
    }

    /// Leaves out numbers that no epoch of ours can have: who puts something in such a place would have all numbers used up.
    fn forget_far(&mut self) {
        let Some(last) = self.epochs.last().map(|epoch| epoch.record.number) else {
            return;
        };
        let mut listed = self.listed.keys();
        if let Some(far) = listed.find(|number| is_far(**number, last)) {
            tracing::warn!(
                "something is in the place of epoch {far}, which cannot be: epoch {last} is the last one. It is passed over: find out \
                 who can write there, and delete it"
            );
        }
        self.listed.retain(|number, _| !is_far(*number, last));
        self.aside.retain(|number, _| !is_far(*number, last));
    }

    async fn read_epoch(
        &self,
        home: Home<'_>,
        record: EpochRecord,
        keys: &[String],
    ) -> Result<Epoch> {
        let boxes = record.boxes_among(keys.iter().cloned());
        let mut epoch = Epoch {
            record,
            secrets: None,
            identity: None,
            own: Vec::new(),
            boxes,
            late_boxes: Vec::new(),
        };
        if !epoch.has_reader() {
            // A listing at the moment at which the epoch began may have missed what came right before it.
            epoch.boxes = boxes_now(home, &epoch.record).await?;
        }
        for identity in self.own.iter() {
            epoch.open(home, identity).await?;
        }
        Ok(epoch)
    }

    /// Takes over what is opened of the same epochs in another repository of the cluster.
    pub(super) fn borrow(&mut self, lender: &Self) {
        self.identities = self.identities.max(lender.identities);
        for own in &mut self.epochs {
            let mut lent = lender.epochs.iter();
            let Some(other) = lent.find(|lent| lent.record == own.record) else {
                continue;
            };
            if own.secrets.is_none() || own.identity.is_none() && other.identity.is_some() {
                own.secrets.clone_from(&other.secrets);
                own.identity.clone_from(&other.identity);
            }
        }
    }

    /// The same, as it is now, without what was borrowed.
    pub(super) async fn again(&self, home: Home<'_>) -> Result<Self> {
        Self::load(home, &self.current().seal_id, &self.own).await
    }

    /// Keys of the boxes that an epoch had when it was read.
    pub(super) fn boxes_of(&self, epoch: u32) -> Result<&[String]> {
        Ok(&self.epoch(epoch)?.boxes)
    }

    /// Epochs without a key box of a reader: nobody can open what was sealed in them.
    #[must_use]
    pub fn unread(&self) -> Vec<u32> {
        let epochs = self.epochs.iter().filter(|epoch| !epoch.has_reader());
        epochs.map(|epoch| epoch.record.number).collect()
    }

    /// Why nobody can open what was sealed in some of them, if so.
    #[must_use]
    pub fn unread_error(&self) -> Option<Error> {
        unread_error(&self.unread())
    }

    /// Refuses when nobody could open what is sealed from now on.
    ///
    /// # Errors
    /// `Damaged` then.
    pub fn require_read(&self) -> Result<()> {
        let current = self.current().number;
        let unread = self.unread().contains(&current);
        let unread = unread.then(|| unread_error(&[current])).flatten();
        unread.map_or(Ok(()), Err)
    }

    /// Says once when nobody could open what is sealed from now on, for who has to go on all the same.
    pub(crate) fn warn_unless_read(&self) {
        if let Err(error) = self.require_read() {
            self.warned.call_once(|| {
                let hint = error.hint_text().unwrap_or_default();
                tracing::warn!(
                    "what is stored can be restored by nobody as it is: {error}; {hint}"
                );
            });
        }
    }

    /// The cluster's name.
    pub(super) fn name(&self) -> &ClusterName {
        &self.name
    }

    /// The records of all epochs, in their order.
    pub(super) fn records(&self) -> impl Iterator<Item = &EpochRecord> {
        self.epochs.iter().map(|epoch| &epoch.record)
    }

    /// Whether nobody tried to open it.
    #[must_use]
    pub fn is_without_identity(&self) -> bool {
        self.identities == 0
    }

    /// What is part of every key that is derived.
    #[must_use]
    pub fn seal_id(&self) -> [u8; 16] {
        self.seal_id
    }

    /// The newest epoch: what is written is sealed for its readers.
    #[must_use]
    pub fn current(&self) -> &EpochRecord {
        let last = self.epochs.last().expect("a ring has an epoch");
        &last.record
    }

    fn epoch(&self, number: u32) -> Result<&Epoch> {
        self.find(number).ok_or_else(|| {
            self.note(number);
            self.not_there(number)
        })
    }

    pub(super) fn find(&self, number: u32) -> Option<&Epoch> {
        let mut epochs = self.epochs.iter();
        let own = epochs.find(|epoch| epoch.record.number == number);
        own.or_else(|| self.later.get()?.find(number))
    }

    pub(super) fn record_of(&self, epoch: u32) -> Result<&EpochRecord> {
        Ok(&self.epoch(epoch)?.record)
    }

    /// The key of what writers, keepers and readers read.
    ///
    /// # Errors
    /// `Refused` when no identity at hand opens it.
    pub fn catalog_key(&self, epoch: u32) -> Result<&Key> {
        match &self.epoch(epoch)?.secrets {
            Some(secrets) => Ok(&secrets.catalog),
            None => Err(self.refused(epoch, "the catalog")),
        }
    }

    /// What a reader has of an epoch.
    pub(super) fn reader(&self, epoch: u32) -> Result<&ReaderSecrets> {
        let secrets = self.epoch(epoch)?.secrets.as_ref();
        let reader = secrets.and_then(|secrets| secrets.reader.as_ref());
        reader.ok_or_else(|| self.refused(epoch, "pages and WAL"))
    }

    /// Refuses when no identity at hand reads all of an epoch, which lets others in.
    ///
    /// # Errors
    /// `Refused` then.
    pub fn require_reader(&self, epoch: u32) -> Result<()> {
        self.reader(epoch).map(|_| ())
    }

    /// Whether the recipient is a reader of the current epoch, as the repository says now.
    pub(super) async fn has_reader(&self, home: Home<'_>, recipient: &str) -> Result<bool> {
        let record = self.current();
        let print = fingerprint(recipient);
        let role = KeyRole::Reader.as_str();
        let names = (role, print.as_str(), record.verifying_key.as_str());
        let key = home.name.key_box_key(&record.seal_id, record.number, names);
        match read_box(home, &key, record).await {
            Ok((found, _)) => Ok(found.recipient == recipient),
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether an epoch had a key box of that name when the keys were read.
    pub(super) fn has_box(&self, epoch: u32, role: KeyRole, recipient: &str) -> bool {
        let begin = format!("/{}-{}-", role.as_str(), fingerprint(recipient));
        self.find(epoch).is_some_and(|epoch| {
            let late = epoch.late_boxes.iter().map(|(key, _)| key);
            let mut all = epoch.boxes.iter().chain(late);
            all.any(|key| key.contains(&begin))
        })
    }

    /// Whether the identities at hand are of readers, who may not have been let into older epochs.
    fn is_of_reader(&self) -> bool {
        let own = self.epochs.last().map(|epoch| epoch.own.as_slice());
        own.unwrap_or_default().contains(&KeyRole::Reader)
    }

    pub(super) fn secrets(&self, epoch: u32) -> Result<&EpochSecrets> {
        let secrets = self.epoch(epoch)?.secrets.as_ref();
        secrets.ok_or_else(|| self.refused(epoch, "the catalog"))
    }

    /// Whether pages and WAL of that epoch can be read.
    #[must_use]
    pub fn opens_data(&self, epoch: u32) -> bool {
        self.epoch(epoch)
            .is_ok_and(|epoch| epoch.identity.is_some())
    }

    /// Whether any epoch's catalog can be read.
    #[must_use]
    pub fn opens_catalog(&self, epoch: u32) -> bool {
        self.epoch(epoch).is_ok_and(|epoch| epoch.secrets.is_some())
    }

    /// Whether pages and WAL of no epoch can be read.
    #[must_use]
    pub fn opens_no_data(&self) -> bool {
        self.epochs.iter().all(|epoch| epoch.identity.is_none())
    }

    fn refused(&self, epoch: u32, what: &str) -> Error {
        let name = self.name.as_str();
        let before = self.epochs.iter().rev();
        let before = before
            .filter(|other| other.secrets.is_some())
            .map(|other| other.record.number)
            .find(|other| *other < epoch);
        let is_shut_out = !self.opens_catalog(epoch);
        let is_unread = self.unread().contains(&epoch);
        // Who makes backups needs no reader to go on.
        let kind = match self.identities > 0 && is_unread && is_shut_out {
            true => Kind::Damaged,
            false => Kind::Refused,
        };
        let (why, hint) = match (self.identities, before.filter(|_| is_shut_out)) {
            (0, _) => (
                "no identity was given".to_owned(),
                "give --identity FILE, set PGSTRATA_IDENTITY, or write identity or key-command in the configuration file",
            ),
            _ if is_unread => (nobody_opens(&[epoch]), BRING_BACK),
            (_, Some(before)) => (
                format!(
                    "the identity at hand opens what was sealed up to epoch {before}, and was left out when epoch {} began",
                    before.saturating_add(1)
                ),
                "its recipient was taken out with \"pgstrata key remove\": a reader lets it in again with \"pgstrata key add\". Until then it restores what is older only out of a copy of the repository of before that epoch",
            ),
            (count, None) => (
                format!("none of the {count} identities at hand opens {what} of epoch {epoch}"),
                match is_shut_out || self.is_of_reader() {
                    true => {
                        "\"pgstrata key check\" lists who opens what; a reader of it lets others in with \"pgstrata key add\", and readers into older epochs with \"key reseal\""
                    }
                    false => {
                        "it is the identity of a writer or keeper, who reads no page: give that of a reader; \"pgstrata key check\" lists who opens what"
                    }
                },
            ),
        };
        let message =
            format!("{what} of cluster \"{name}\" cannot be read, which is sealed: {why}");
        Error::new(kind, message).hint(hint).for_lack_of_key()
    }

    /// A random data key, and as it is sealed to the readers of the current epoch.
    pub fn new_data_key(&self) -> Result<(Key, Vec<u8>)> {
        let key = Key::new(rand::random());
        let sealed = seal_to(&self.current().recipient, key.bits())?;
        Ok((key, sealed))
    }

    /// The data key that is sealed so.
    pub(super) fn open_data_key(&self, encryption: &Encryption) -> Result<Key> {
        let known = |opened: &HashMap<String, Key>| opened.get(&encryption.data_key).cloned();
        if let Some(key) = known(&self.opened.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(key);
        }
        let key = self.unseal_data_key(encryption.epoch, &encryption.data_key_bytes()?)?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.insert(encryption.data_key.clone(), key.clone());
        Ok(key)
    }

    /// The data key in an age file.
    ///
    /// # Errors
    /// `Refused` when no identity at hand opens it; `Damaged` when it was altered.
    pub fn unseal_data_key(&self, epoch: u32, sealed: &[u8]) -> Result<Key> {
        let Some(identity) = &self.epoch(epoch)?.identity else {
            return Err(self.refused(epoch, "pages and WAL"));
        };
        let bits = open_with(identity, sealed)?;
        Key::from_slice(&bits)
            .ok_or_else(|| Error::new(Kind::Damaged, "a data key has the wrong length"))
    }

    /// Everything that is known of each epoch; reads every key box.
    ///
    /// # Errors
    /// When the repository cannot be read, or a key box is forged.
    pub async fn survey(&self, home: Home<'_>) -> Result<Vec<EpochSeen>> {
        let (seen, forged) = self.survey_all(home).await?;
        forged.into_iter().next().map_or(Ok(seen), Err)
    }

    /// The same, and what speaks against an epoch's record, and what is wrong with those key boxes that are none, which are
    /// left out.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn survey_all(&self, home: Home<'_>) -> Result<(Vec<EpochSeen>, Vec<Error>)> {
        let doubts = self.doubts(home).await?.into_iter();
        let mut forged: Vec<Error> = doubts.map(|(_, _, error)| error).collect();
        let mut seen = Vec::with_capacity(self.epochs.len());
        for epoch in &self.epochs {
            let mut boxes = Vec::new();
            for (_, read) in epoch.read_boxes(home).await {
                match read {
                    Ok(found) => boxes.push(BoxSeen {
                        role: found.role,
                        recipient: found.recipient,
                    }),
                    Err(error) if error.is_of_one_object() => forged.push(error),
                    Err(error) => return Err(error),
                }
            }
            boxes.sort_by(|a, b| (a.role, &a.recipient).cmp(&(b.role, &b.recipient)));
            seen.push(EpochSeen {
                number: epoch.record.number,
                record: epoch.record.clone(),
                boxes,
                opens_catalog: epoch.secrets.is_some(),
                opens_data: epoch.identity.is_some(),
                own: epoch.own.clone(),
            });
        }
        Ok((seen, forged))
    }
}

impl Ring {
    /// What is wrong with epochs, each with its place: records that were replaced, key boxes that their epoch has not made or
    /// that are elsewhere than they should be, and epochs that have none for a reader. Needs no identity.
    pub async fn inspect(&self, home: Home<'_>) -> Vec<(u32, String, Error)> {
        let mut wrong = self.doubts(home).await.unwrap_or_else(|error| {
            let place = home.name.seals_prefix(&self.current().seal_id);
            vec![(self.current().number, place, error)]
        });
        for epoch in &self.epochs {
            let number = epoch.record.number;
            if !epoch.has_reader() {
                let place = home.name.epoch_prefix(&epoch.record.seal_id, number);
                let error = Error::new(Kind::NotFound, nobody_opens(&[number])).hint(BRING_BACK);
                wrong.push((number, place, error));
            }
            for (key, read) in epoch.read_boxes(home).await {
                if let Err(error) = read {
                    wrong.push((number, key, error));
                }
            }
        }
        wrong
    }
}

/// Keys of the boxes that an epoch has now.
pub(super) async fn boxes_now(home: Home<'_>, epoch: &EpochRecord) -> Result<Vec<String>> {
    let prefix = home.name.epoch_prefix(&epoch.seal_id, epoch.number);
    let listed = home.repository.list(&prefix).await?;
    let keys = listed.into_iter().map(|object| object.key);
    Ok(epoch.boxes_among(keys))
}

/// The role in the name of a key box.
pub(super) fn role_of(key: &str) -> Option<&str> {
    let name = key.rsplit('/').next()?;
    name.split_once('-').map(|(role, _)| role)
}

/// The number of the epoch to which an object below `prefix` belongs.
pub(super) fn epoch_of(prefix: &str, key: &str) -> Option<u32> {
    let (number, _) = key
        .strip_prefix(prefix)?
        .strip_prefix('/')?
        .split_once('/')?;
    let epoch: u32 = number.parse().ok()?;
    (epoch > 0 && format!("{epoch:06}") == number).then_some(epoch)
}

pub(super) fn sealing_id(text: &str) -> Result<[u8; 16]> {
    let sealing = pgstrata_layer::cluster::SealRecord {
        version: 1,
        seal_id: text.to_owned(),
    };
    Ok(sealing.seal_id_bytes()?)
}

/// The error about an object of the keys that a listing has shown. That it is not there is no answer to what is read with its
/// key: a segment would be taken for absent, and the archive for ended.
pub(super) fn of_listed(key: &str, error: Error) -> Error {
    match error.kind() {
        Kind::NotFound => {
            let what = format!("\"{key}\" is listed, and the store says that it is not there");
            Error::new(Kind::Damaged, what)
        }
        _ => error,
    }
}

/// A key box that an epoch has made for itself, and as it is stored.
pub(super) async fn read_box(
    home: Home<'_>,
    key: &str,
    epoch: &EpochRecord,
) -> Result<(KeyBox, Bytes)> {
    read_box_by(home, key, (epoch, epoch)).await
}

/// A key box of that epoch, and as it is stored; who has made it comes second.
pub(super) async fn read_box_by(
    home: Home<'_>,
    key: &str,
    (epoch, maker): (&EpochRecord, &EpochRecord),
) -> Result<(KeyBox, Bytes)> {
    let doing = |error: Error| {
        let error = error.while_doing(format!("could not read \"{key}\""));
        error.hint(NO_BOX)
    };
    let object = home.repository.get_record(key).await?;
    let found = decode_box(&object).map_err(|error| doing(error.into()))?;
    let verified = found.verify_by(epoch, maker);
    verified.map_err(|error| doing(error.into()))?;
    let print = fingerprint(&found.recipient);
    let names = (
        found.role.as_str(),
        print.as_str(),
        maker.verifying_key.as_str(),
    );
    let own = home.name.key_box_key(&epoch.seal_id, epoch.number, names);
    match own == key {
        true => Ok((found, object)),
        // It would count for two, and the one whose place it has for none: the next epoch would leave him out.
        false => Err(doing(Error::new(
            Kind::Damaged,
            format!(
                "it is the key box of {} as a {}, which has its place at \"{own}\"",
                found.recipient,
                found.role.as_str()
            ),
        ))),
    }
}

impl Epoch {
    /// Whether anybody reads all that was sealed in it, as far as names tell.
    fn has_reader(&self) -> bool {
        self.boxes.iter().any(|key| role_of(key) == Some("reader"))
    }

    /// Every box, with its key.
    async fn read_boxes(&self, home: Home<'_>) -> Vec<(String, Result<KeyBox>)> {
        let own = self.boxes.iter().map(|key| (key, &self.record));
        let all = own.chain(self.late_boxes.iter().map(|(key, maker)| (key, maker)));
        let read = all.map(async |(key, maker)| {
            let read = read_box_by(home, key, (&self.record, maker)).await;
            (key.clone(), read.map(|(found, _)| found))
        });
        join_all(read).await
    }

    /// Opens its own boxes of one identity. Those of a reader count more.
    async fn open(&mut self, home: Home<'_>, identity: &Identity) -> Result<()> {
        let own = self
            .boxes
            .iter()
            .map(|key| (key.clone(), self.record.clone()));
        let own: Vec<(String, EpochRecord)> = own.collect();
        match self.open_boxes(home, identity, &own).await? {
            Some(error) if self.secrets.is_none() => Err(error),
            _ => Ok(()),
        }
    }

    /// Opens those boxes of one identity, each of which comes with its maker; answers what is wrong with one that is none.
    pub(super) async fn open_boxes(
        &mut self,
        home: Home<'_>,
        identity: &Identity,
        boxes: &[(String, EpochRecord)],
    ) -> Result<Option<Error>> {
        let recipient = identity.to_public().to_string();
        let print = format!("-{}-", fingerprint(&recipient));
        let mut none = None;
        for (key, maker) in boxes.iter().filter(|(key, _)| key.contains(&print)) {
            let read = read_box_by(home, key, (&self.record, maker)).await;
            let found = match read.map_err(|error| of_listed(key, error)) {
                Ok((found, _)) => found,
                // Everybody who may create objects can put something there: another box may open the epoch.
                Err(error) if error.is_of_one_object() => {
                    none.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if found.recipient != recipient {
                continue;
            }
            if !self.own.contains(&found.role) {
                self.own.push(found.role);
                self.own.sort_unstable();
            }
            if self.identity.is_some() {
                continue;
            }
            let doing = |error: Error| error.while_doing(format!("could not open \"{key}\""));
            let opened = open_with(identity, &found.sealed_bytes()?).map_err(doing)?;
            let secrets = EpochSecrets::decode(&opened).map_err(|error| doing(error.into()))?;
            if let Some(reader) = &secrets.reader {
                let data = own_identity(&reader.identity).map_err(doing)?;
                let fits = data.to_public().to_string() == self.record.recipient
                    && reader.signing.verifying_key() == self.record.verifying_key;
                if !fits {
                    let what = "it holds keys of another epoch";
                    return Err(doing(Error::new(Kind::Damaged, what)));
                }
                self.identity = Some(data);
            }
            self.secrets = Some(secrets);
        }
        Ok(none)
    }
}
