//! Epochs whose records are lost, and epochs that have begun since the keys were read.
//!
//! Somebody who removes the record of the newest epoch would have everything sealed in the one before, also for those who
//! were taken out since. What else is there shows it: key boxes, and objects that were sealed in that epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use pgstrata_layer::epoch::{decode_box, decode_epoch};

use super::ring::{Ring, epoch_of};
use super::{Home, Sealing};
use crate::error::{Error, Kind, Result};
use crate::repository::record::is_far;

/// Who begins an epoch stores its key boxes and then its record, which takes less than that.
pub(super) const LOOKS: u32 = 5;
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

const BRING_BACK: &str = "when another key command is at work, wait for its end, and run this again; otherwise bring that object back from a copy of the repository or from an older version of it, before you take backups; when it is lost for good, or a \"key rotate\" was interrupted, begin a new epoch with \"pgstrata key rotate\", and take out again with \"key remove\" who was taken out in the lost one";

/// How the epochs of the repository are now, beside what is known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochsNow {
    /// The last one that is known is the newest.
    Same,
    /// That one has begun since.
    Begun(u32),
    /// The record of that one is not there, and something shows that it was.
    Lost(u32),
}

/// What has come behind an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// That one has begun, and goes on with it.
    GoesOn(u32),
    /// That one has begun, and goes on with an earlier one.
    Apart(u32),
    /// No record of another, as long as anybody takes to store one.
    Nothing,
}

impl Ring {
    /// Notes that an object is sealed in that epoch.
    pub fn note(&self, number: u32) {
        if self.find(number).is_none() {
            let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
            missed.insert(number);
        }
    }

    /// The error about an epoch whose record is not there.
    #[must_use]
    pub fn not_there(&self, number: u32) -> Error {
        let newest = self.newest();
        let lost = self.lost_below(&newest.listed, number);
        if let Some(why) = newest.aside.get(&lost) {
            return why.clone();
        }
        let key = self.name().epoch_key(&self.current().seal_id, lost);
        let what = format!("epoch {lost} is not there: \"{key}\" is lost");
        Error::new(Kind::Damaged, what)
            .hint(BRING_BACK)
            .for_lost_epoch()
    }

    fn newest(&self) -> &Self {
        self.later.get().map_or(self, |later| later.newest())
    }

    /// Numbers that objects name, and that are not known.
    fn missed_now(&self) -> BTreeSet<u32> {
        let missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let missed = missed.iter().copied();
        let last = self.newest().current().number;
        missed
            .filter(|number| self.find(*number).is_none())
            .filter(|number| !is_far(*number, last))
            .collect()
    }

    /// The last number up to `number` that has no record: those behind it go on with that epoch.
    fn lost_below(&self, listed: &BTreeMap<u32, bool>, number: u32) -> u32 {
        let mut below = (1..=number).rev();
        let lost = below.find(|number| !listed.get(number).is_some_and(|is_there| *is_there));
        lost.unwrap_or(number)
    }

    /// The number of a new epoch: above every one that anything shows.
    pub(super) async fn unused(&self, home: Home<'_>) -> Result<Option<u32>> {
        let current = self.current().number;
        let highest = match self.now(home).await? {
            // The record that is there refuses another.
            EpochsNow::Same | EpochsNow::Begun(_) => current,
            EpochsNow::Lost(lost) => {
                let listed = self.list(home).await?;
                let all = listed.into_keys().chain(self.missed_now());
                all.fold(lost.max(current), u32::max)
            }
        };
        Ok(highest.checked_add(1))
    }

    /// An epoch behind that one, of which the repository shows anything.
    pub(super) async fn later_than(&self, home: Home<'_>, number: u32) -> Result<Option<u32>> {
        let highest = self.list(home).await?.into_keys().next_back();
        Ok(highest.filter(|highest| *highest > number))
    }

    /// What has come behind epoch `number`, which is there. A record that may be about to come is waited for.
    pub(super) async fn behind(&self, home: Home<'_>, number: u32) -> Result<Behind> {
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            let now = self.again(home).await?;
            match (now.apart, now.current().number) {
                (Some(apart), _) => return Ok(Behind::Apart(apart)),
                (None, current) if current > number => return Ok(Behind::GoesOn(current)),
                (None, _) => {}
            }
        }
        Ok(Behind::Nothing)
    }

    async fn list(&self, home: Home<'_>) -> Result<BTreeMap<u32, bool>> {
        let seal_id = &self.current().seal_id;
        let prefix = home.name.seals_prefix(seal_id);
        let mut listed = BTreeMap::new();
        for object in home.repository.list(&prefix).await? {
            if let Some(number) = epoch_of(&prefix, &object.key) {
                let is_record = object.key == home.name.epoch_key(seal_id, number)
                    && !self.aside.contains_key(&number);
                *listed.entry(number).or_default() |= is_record;
            }
        }
        // As when the keys were read.
        let last = self.current().number;
        listed.retain(|number, _| !is_far(*number, last));
        Ok(listed)
    }

    /// How the epochs of the repository are now. What may be about to begin is waited for.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn now(&self, home: Home<'_>) -> Result<EpochsNow> {
        let current = self.current().number;
        let mut now = EpochsNow::Same;
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            let listed = self.list(home).await?;
            let is_known = |number: &u32| self.listed.get(number) == Some(&true);
            let mut begun = listed
                .iter()
                .filter(|(number, is_there)| **is_there && **number > current && !is_known(number));
            if let Some((number, _)) = begun.next_back() {
                return Ok(EpochsNow::Begun(*number));
            }
            let missed = self.missed_now().last().copied();
            let shown = listed.keys().next_back().copied();
            let Some(highest) = shown.max(missed).filter(|highest| *highest > current) else {
                return Ok(EpochsNow::Same);
            };
            now = EpochsNow::Lost(self.lost_below(&listed, highest));
            let is_sure = missed.is_some_and(|missed| missed > current)
                || listed.get(&highest) == Some(&true)
                || self.aside.contains_key(&highest);
            if is_sure {
                break;
            }
        }
        Ok(now)
    }

    /// Refuses to seal when the last epoch that is known is not the newest of the repository.
    ///
    /// # Errors
    /// `Damaged` when the record of a newer one is lost, or one may have been replaced; `Refused` when one has begun since.
    pub async fn require_newest(&self, home: Home<'_>) -> Result<()> {
        self.require_undoubted(home).await?;
        self.require_not_apart(home)?;
        let current = self.current().number;
        match self.now(home).await? {
            EpochsNow::Same => Ok(()),
            EpochsNow::Begun(number) => {
                let what = format!(
                    "epoch {number} has begun while this command ran, and what it makes is sealed for the recipients of epoch {current}"
                );
                Err(Error::new(Kind::Refused, what).hint("run it again"))
            }
            EpochsNow::Lost(number) => Err(self.not_there(number)),
        }
    }

    /// Refuses to seal when an epoch goes on with an earlier one than the last.
    fn require_not_apart(&self, home: Home<'_>) -> Result<()> {
        let Some(apart) = self.apart else {
            return Ok(());
        };
        let before = self.records().map(|record| record.number);
        let before = before.filter(|number| *number < apart).max().unwrap_or(1);
        let key = home.name.epoch_key(&self.current().seal_id, before);
        let what = format!("epoch {apart} was begun apart from epoch {before}");
        Err(Error::new(Kind::Damaged, what).hint(format!(
            "it was begun while \"{key}\" was lost, or by somebody who was taken out: when you began it, restore what you need of epoch {before}, and take that object away again; otherwise begin another cluster"
        )))
    }

    /// Refuses to copy out of a repository that lacks an epoch of the one at `target`.
    ///
    /// # Errors
    /// `Refused` then.
    pub async fn require_not_ahead(&self, target: Home<'_>) -> Result<()> {
        let current = self.current().number;
        let highest = self.list(target).await?.into_keys().next_back();
        let Some(highest) = highest.filter(|highest| *highest > current) else {
            return Ok(());
        };
        let key = target.name.epoch_key(&self.current().seal_id, highest);
        let what = format!(
            "epoch {highest} has begun in the target, and the source knows none after epoch {current}: what it sealed since may be for who was taken out"
        );
        Err(Error::new(Kind::Refused, what).hint(format!(
            "change keys in the source alone; if \"{key}\" is lost in the source, copy out of the target into it first; where keys \
             were changed in both, copy into an empty place"
        )))
    }

    /// Whether an epoch has begun since the keys were read. Who has no time looks again only when what was read shows
    /// something newer: keys that were read while an epoch began.
    ///
    /// # Errors
    /// As for [`Ring::require_newest`], except for an epoch that has begun.
    pub(crate) async fn is_behind(&self, home: Home<'_>) -> Result<bool> {
        self.require_undoubted(home).await?;
        self.require_not_apart(home)?;
        let current = self.current().number;
        let shown = self.listed.keys().next_back().copied();
        let highest = shown.max(self.missed_now().last().copied());
        if highest.is_none_or(|highest| highest <= current) {
            return Ok(false);
        }
        match self.now(home).await? {
            EpochsNow::Same => Ok(false),
            EpochsNow::Begun(_) => Ok(true),
            EpochsNow::Lost(number) => Err(self.not_there(number)),
        }
    }

    /// All epochs whose records are lost: newer ones of which anything is there, those in which something is sealed, and those
    /// in whose record's place is something else.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn lost(&self, home: Home<'_>) -> Result<BTreeSet<u32>> {
        self.look_again(home).await;
        let listed = &self.newest().listed;
        let missed = self.missed_now().into_iter();
        let mut lost: BTreeSet<u32> = missed.map(|one| self.lost_below(listed, one)).collect();
        if let EpochsNow::Lost(number) = self.newest().now(home).await? {
            lost.insert(number);
        }
        lost.extend(self.newest().aside.keys());
        Ok(lost)
    }

    /// Key boxes and records of epochs that somebody has deleted, as far as the store keeps versions. What was none of ours
    /// may go.
    ///
    /// # Errors
    /// When the store does not tell.
    pub async fn deleted(&self, home: Home<'_>) -> Result<Vec<String>> {
        let prefix = home.name.seals_prefix(&self.current().seal_id);
        let mut deleted = Vec::new();
        for kept in home.repository.kept_below(&prefix).await? {
            if !kept.is_hidden() {
                continue;
            }
            let object = home.repository.contents(&kept.key, kept.first()).await?;
            let own_box = decode_box(&object).is_ok_and(|found| {
                let mut records = self.records();
                records.any(|record| {
                    let maker = self.maker_of(record, &kept.key);
                    maker.is_some_and(|maker| found.verify_by(record, maker).is_ok())
                })
            });
            let own_epoch = decode_epoch(&object).is_ok_and(|found| {
                let mut records = self.records();
                records.any(|record| found.verify(Some(record)).is_ok())
            });
            if own_box || own_epoch {
                deleted.push(kept.key);
            }
        }
        Ok(deleted)
    }

    /// Reads the epochs once more when one is not known that an object names.
    async fn look_again(&self, home: Home<'_>) -> bool {
        let mut looked = self.looked.lock().await;
        let missed = self.missed_now().last().copied();
        if let Some(highest) = missed.filter(|highest| *highest > *looked) {
            *looked = highest;
            match self.again(home).await {
                Ok(now) if now.current().number > self.current().number => {
                    // Nobody else sets it under the lock.
                    let _ = self.later.set(Box::new(now));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "could not read the epochs again"),
            }
        }
        self.later.get().is_some()
    }
}

impl Sealing {
    /// Reads the epochs once more when one is not known that an object names; false when there is none that is newer.
    pub(crate) async fn look_again(&self, home: Home<'_>) -> bool {
        match self {
            Self::Clear => false,
            Self::Sealed(ring) => ring.look_again(home).await,
        }
    }
}
