//! Which record of an epoch is the one that was begun.
//!
//! Who was a reader keeps for ever what signs the next epoch. Where he may overwrite objects he can put an epoch of his own in
//! the place of the very one that took him out: it is well signed, and has boxes for everybody, himself among them. Two things
//! tell. A store with versions keeps the true record, which is the first version that the epoch before has signed: that one
//! is used. And the true epoch's key boxes are there, with names that end in its key. Nothing is sealed while either shows
//! that a record was replaced. Nobody can acknowledge it by another epoch: who has replaced one could begin the next one, too.

use std::collections::BTreeSet;

use pgstrata_layer::epoch::{EpochRecord, decode_epoch};

use super::Home;
use super::lost::{LOOK_AGAIN, LOOKS};
use super::ring::{Ring, of_listed, role_of, sealing_id};
use super::unread::no_record;
use crate::error::{Error, Kind, Result};
use crate::repository::record::is_short;
use crate::repository::versions::KeptObject;

/// So many versions of a record are looked at, the first ones. Whoever may overwrite could make any number of them.
const MOST_VERSIONS: usize = 100;

/// What to do about a key box of another epoch of the same number.
const CONTESTED: &str = "somebody may have put an epoch of his own in the place of the one that took him out, so nothing is sealed. Compare whom \"pgstrata key check\" lists with whom you have let in: when the record was replaced, bring it back from a copy of the repository or from an older version of it; when it is yours, delete the key box, which somebody has added, or which is left of two key commands at once. \"key rotate\" is no way out: who has replaced an epoch could begin the next one, too";

/// What is in the place of an epoch's record, and may be one.
enum Judged {
    /// It goes on with the epoch before.
    Next(EpochRecord),
    /// It goes on with an earlier one.
    Apart(EpochRecord),
    /// It goes on with one whose record is lost, as far as that is to be known.
    Behind,
}

impl Ring {
    /// The record of the next epoch; nothing when it goes on with one whose record is lost, and when it is none of this
    /// cluster: everybody who may create objects can put something there, and nobody is to lose what is older by that.
    pub(super) async fn read_record(
        &mut self,
        home: Home<'_>,
        (number, key): (u32, &str),
    ) -> Result<Option<EpochRecord>> {
        let (read, kept) = futures::join!(
            home.repository.get_record(key),
            home.repository.replaced(key)
        );
        let judged = match read.map_err(|error| of_listed(key, error)) {
            Err(error) if !error.is_of_one_object() => return Err(error),
            read => read.and_then(|object| self.judge(number, &object)),
        };
        if let Some(kept) = kept?
            && let Some(record) = self.first_begun(home, number, &kept).await?
        {
            let is_shown = matches!(&judged, Ok(Judged::Next(shown)) if *shown == record);
            if let Some(error) = home
                .repository
                .replacement_error(&kept)
                .filter(|_| !is_shown)
            {
                self.replaced.insert(number, error);
            }
            return Ok(Some(record));
        }
        match judged {
            Ok(Judged::Next(record)) => Ok(Some(record)),
            Ok(Judged::Apart(record)) => {
                self.apart = Some(number);
                Ok(Some(record))
            }
            Ok(Judged::Behind) => Ok(None),
            Err(error) => {
                self.listed.insert(number, false);
                self.aside.insert(number, no_record(key, error));
                Ok(None)
            }
        }
    }

    /// The record of an epoch that was replaced, as it was begun: the first of its versions that goes on with the epoch before.
    async fn first_begun(
        &self,
        home: Home<'_>,
        number: u32,
        kept: &KeptObject,
    ) -> Result<Option<EpochRecord>> {
        let versions = kept.versions().iter().rev();
        let short = versions.filter(|version| is_short(version.size_bytes.unwrap_or_default()));
        for version in short.take(MOST_VERSIONS) {
            let object = home.repository.contents(&kept.key, version).await?;
            if let Ok(Judged::Next(record)) = self.judge(number, &object) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn judge(&self, number: u32, object: &[u8]) -> Result<Judged> {
        let record = decode_epoch(object)?;
        if record.number != number {
            let what = format!("it is the record of epoch {}", record.number);
            return Err(Error::new(Kind::Damaged, what));
        }
        let before = self.epochs.last().map(|epoch| &epoch.record);
        let mut is_next = true;
        if let Err(error) = record.verify(before) {
            let next = before.map_or(1, |before| before.number.saturating_add(1));
            if record.number > next {
                return Ok(Judged::Behind);
            }
            let mut earlier = self.epochs.iter();
            if !earlier.any(|epoch| record.verify(Some(&epoch.record)).is_ok()) {
                return Err(error.into());
            }
            is_next = false;
        }
        if sealing_id(&record.seal_id)? != self.seal_id {
            let what = format!("epoch {} has seal id {}", record.number, record.seal_id);
            return Err(Error::new(Kind::Damaged, what));
        }
        Ok(match is_next {
            true => Judged::Next(record),
            false => Judged::Apart(record),
        })
    }

    /// What speaks against the records of epochs that are there, each with its epoch and an object. The key boxes of a key
    /// command that has lost against another one are about to go, and are waited for.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn doubts(&self, home: Home<'_>) -> Result<Vec<(u32, String, Error)>> {
        let seal_id = &self.current().seal_id;
        let replaced = self.replaced.iter();
        let replaced = replaced.map(|(number, error)| {
            let key = home.name.epoch_key(seal_id, *number);
            (*number, key, error.clone())
        });
        let rivals = self.rivals.get_or_try_init(|| self.look_for_rivals(home));
        let rivals = rivals.await?.iter().map(|(number, key)| {
            let what = format!(
                "\"{key}\" is a key box of another epoch {number} than the one whose record is there"
            );
            let error = Error::new(Kind::Damaged, what).hint(CONTESTED);
            (*number, key.clone(), error)
        });
        Ok(replaced.chain(rivals).collect())
    }

    /// Refuses to seal when the record of an epoch may have been replaced.
    ///
    /// # Errors
    /// `Damaged` then; when the repository cannot be read.
    pub async fn require_undoubted(&self, home: Home<'_>) -> Result<()> {
        let doubts = self.doubts(home).await?.into_iter();
        let first = { doubts }.next();
        first.map_or(Ok(()), |(.., error)| Err(error))
    }

    /// Key boxes of readers that another epoch of the same number has made, when they stay.
    async fn look_for_rivals(&self, home: Home<'_>) -> Result<Vec<(u32, String)>> {
        let mut found = Vec::new();
        for look in 0..LOOKS {
            if self.contested.is_empty() {
                break;
            }
            if look > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            found = Vec::new();
            for number in &self.contested {
                let record = self.record_of(*number)?;
                let prefix = home.name.epoch_prefix(&record.seal_id, *number);
                let listed = home.repository.list(&prefix).await?;
                let keys: Vec<String> = listed.into_iter().map(|object| object.key).collect();
                let rivals = rivals_among(record, &keys).into_iter();
                found.extend(rivals.map(|key| (*number, key)));
            }
            if found.is_empty() {
                break;
            }
        }
        Ok(found)
    }
}

/// Keys of readers' boxes that another epoch of the same number has made. A name tells that: what is in it may have been
/// overwritten, too.
pub(super) fn rivals_among(record: &EpochRecord, keys: &[String]) -> BTreeSet<String> {
    let is_rival = |key: &&String| {
        let name = key.rsplit('/').next().unwrap_or(key);
        let parts: Vec<&str> = name.split('-').collect();
        let is_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_box = matches!(parts[..], [_, print, end] if is_hex(print, 16) && is_hex(end, 8));
        is_box && role_of(key) == Some("reader") && !record.is_named_by(key)
    };
    keys.iter().filter(is_rival).cloned().collect()
}
