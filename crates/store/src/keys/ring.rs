//! The epochs of a sealed cluster, and what the identities at hand open of them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use age::x25519::Identity;
use bytes::Bytes;
use pgstrata_layer::epoch::{
    EpochRecord, EpochSecrets, KeyBox, KeyRole, ReaderSecrets, decode_box, decode_epoch,
    fingerprint,
};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::Encryption;
use pgstrata_layer::seal::Key;

use super::Home;
use super::identity::{Identities, open_with, own_identity, seal_to};
use crate::error::{Error, Kind, Result};

/// Keys of a sealed cluster: all epochs, each with the secrets that could be opened.
pub struct Ring {
    seal_id: [u8; 16],
    name: ClusterName,
    /// By number, from 1, without gaps.
    epochs: Vec<Epoch>,
    /// How many identities were tried.
    identities: usize,
    /// Data keys that were opened, by what they are sealed as.
    opened: Mutex<HashMap<String, Key>>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} epochs)", self.epochs.len())
    }
}

struct Epoch {
    record: EpochRecord,
    secrets: Option<EpochSecrets>,
    /// To which data keys are sealed; with readers only.
    identity: Option<Identity>,
    /// What the identities at hand are.
    own: Vec<KeyRole>,
    boxes: Vec<String>,
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
            let rest = object.key.strip_prefix(&prefix).unwrap_or_default();
            let number = rest.trim_start_matches('/').split('/').next();
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                keys.entry(number).or_default().push(object.key);
            }
        }
        let mut ring = Self {
            seal_id: sealing_id(seal_id)?,
            name: home.name.clone(),
            epochs: Vec::new(),
            identities: identities.iter().count(),
            opened: Mutex::default(),
        };
        for number in 1.. {
            let key = home.name.epoch_key(seal_id, number);
            let found = keys.get(&number).filter(|keys| keys.contains(&key));
            let Some(found) = found else { break };
            let epoch = ring.read_epoch(home, &key, found, identities).await?;
            ring.epochs.push(epoch);
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

    async fn read_epoch(
        &self,
        home: Home<'_>,
        key: &str,
        keys: &[String],
        identities: &Identities,
    ) -> Result<Epoch> {
        let doing = |error: Error| error.while_doing(format!("could not read \"{key}\""));
        let object = home.repository.get(key).await?;
        let record = decode_epoch(&object).map_err(|error| doing(error.into()))?;
        let before = self.epochs.last().map(|epoch| &epoch.record);
        record.verify(before).map_err(|error| doing(error.into()))?;
        if sealing_id(&record.seal_id)? != self.seal_id {
            let what = format!("epoch {} has seal id {}", record.number, record.seal_id);
            return Err(doing(Error::new(Kind::Damaged, what)));
        }
        let end = format!("-{}", record.verifying_key.get(..8).unwrap_or_default());
        let boxes = keys.iter().filter(|key| key.ends_with(&end)).cloned();
        let mut epoch = Epoch {
            record,
            secrets: None,
            identity: None,
            own: Vec::new(),
            boxes: boxes.collect(),
        };
        for identity in identities.iter() {
            epoch.open(home, identity).await?;
        }
        Ok(epoch)
    }

    /// Takes over what is opened of the same epochs in another repository of the cluster.
    pub(super) fn borrow(&mut self, lender: &Self) {
        self.identities = self.identities.max(lender.identities);
        for (own, other) in self.epochs.iter_mut().zip(&lender.epochs) {
            if own.record != other.record {
                continue;
            }
            if own.secrets.is_none() || own.identity.is_none() && other.identity.is_some() {
                own.secrets.clone_from(&other.secrets);
                own.identity.clone_from(&other.identity);
            }
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
        let at = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
        at.and_then(|at| self.epochs.get(at)).ok_or_else(|| {
            Error::new(Kind::Damaged, format!("epoch {number} is not there"))
                .hint("bring its keys back from a copy of the repository")
        })
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

    fn refused(&self, epoch: u32, what: &str) -> Error {
        let name = self.name.as_str();
        let before = self.epochs.iter().rev();
        let before = before
            .filter(|other| other.secrets.is_some())
            .map(|other| other.record.number)
            .find(|other| *other < epoch);
        let is_shut_out = !self.opens_catalog(epoch);
        let (why, hint) = match (self.identities, before.filter(|_| is_shut_out)) {
            (0, _) => (
                "no identity was given".to_owned(),
                "give --identity FILE, set PGSTRATA_IDENTITY, or write identity or key-command in the configuration file",
            ),
            (_, Some(before)) => (
                format!(
                    "the identity at hand opens what was sealed up to epoch {before}, and was left out when epoch {} began",
                    before.saturating_add(1)
                ),
                "its recipient was taken out with \"pgstrata key remove\": a reader lets it in again with \"pgstrata key add\". Until then it restores what is older only out of a copy of the repository of before that epoch",
            ),
            (count, None) => (
                format!("none of the {count} identities at hand opens {what} of epoch {epoch}"),
                "\"pgstrata key check\" lists who opens what; somebody who opens it lets others in with \"pgstrata key add\" and \"key reseal\"",
            ),
        };
        let message =
            format!("{what} of cluster \"{name}\" cannot be read, which is sealed: {why}");
        Error::new(Kind::Refused, message).hint(hint)
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
        let mut seen = Vec::with_capacity(self.epochs.len());
        for epoch in &self.epochs {
            let mut boxes = Vec::new();
            for key in &epoch.boxes {
                let (found, _) = read_box(home, key, &epoch.record).await?;
                boxes.push(BoxSeen {
                    role: found.role,
                    recipient: found.recipient,
                });
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
        Ok(seen)
    }
}

fn sealing_id(text: &str) -> Result<[u8; 16]> {
    let sealing = pgstrata_layer::cluster::SealRecord {
        version: 1,
        seal_id: text.to_owned(),
    };
    Ok(sealing.seal_id_bytes()?)
}

/// A key box of that epoch, and as it is stored.
pub(super) async fn read_box(
    home: Home<'_>,
    key: &str,
    epoch: &EpochRecord,
) -> Result<(KeyBox, Bytes)> {
    let doing = |error: Error| error.while_doing(format!("could not read \"{key}\""));
    let object = home.repository.get(key).await?;
    let found = decode_box(&object).map_err(|error| doing(error.into()))?;
    found.verify(epoch).map_err(|error| doing(error.into()))?;
    Ok((found, object))
}

impl Epoch {
    /// Opens the boxes of one identity. Those of a reader count more.
    async fn open(&mut self, home: Home<'_>, identity: &Identity) -> Result<()> {
        let recipient = identity.to_public().to_string();
        let print = format!("-{}-", fingerprint(&recipient));
        let own: Vec<String> = self
            .boxes
            .iter()
            .filter(|key| key.contains(&print))
            .cloned()
            .collect();
        for key in own {
            let (found, _) = read_box(home, &key, &self.record).await?;
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
        Ok(())
    }
}
