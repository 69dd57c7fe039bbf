//! Who is at work, known from the repository alone.
//!
//! Whoever makes a layer creates an object below its label at least once a minute: packs, or a sign of life. Whoever
//! wants to know creates an object too, and compares the two times that the store itself has noted. No process id, no
//! host name and no clock of a host has a part in it.
//!
//! A wrong answer costs an attempt or some patience, never a layer: what is taken for dead is fenced before anything of
//! it is removed ([`super::abandon`]), and then cannot be committed.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio::task::JoinHandle;

use super::{Catalog, Unfinished, hex};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::repository::{PROBE, Repository};

/// Who has stored nothing for that long is taken for dead: many signs of life in a row were lost, or its host sleeps.
pub const LEASE: SignedDuration = SignedDuration::from_mins(15);

/// A sign of life as often as this; none in the first minute.
pub(super) const BEAT_EVERY: Duration = Duration::from_secs(60);

/// More than one means to be stopped for minutes again and again.
const QUESTIONS: u32 = 10;

/// Clocks that differ by more are a reason to look: ages, retention and targets in time are wrong by as much.
pub const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(5);

/// What is wrong when the store has noted the time `store` for what this host created between these two times of its own.
#[must_use]
pub fn clocks_differ(host: (Timestamp, Timestamp), store: Timestamp) -> Option<String> {
    let (before, after) = host;
    let (by, is) = match (before.duration_since(store), store.duration_since(after)) {
        (by, _) if by > CLOCKS_DIFFER => (by, "ahead of"),
        (_, by) if by > CLOCKS_DIFFER => (by, "behind"),
        _ => return None,
    };
    let by = SignedDuration::from_secs(by.as_secs());
    Some(format!(
        "the clock of this host is {by:#} {is} that of the repository's store: the times of backups, and what retention rules and \
         --max-age make of them, are wrong by as much; set the clock"
    ))
}

/// The time by the store's clock, or for words alone by this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTime(Timestamp);

impl StoreTime {
    /// Asks the store: creates an object, and looks what time the store has noted for it.
    ///
    /// # Errors
    /// When the repository cannot be written or listed.
    pub async fn ask(cluster: &ClusterRepository) -> Result<Self> {
        let act = |error: Error| error.while_doing("could not ask the repository for its time");
        for _ in 0..QUESTIONS {
            let asked = Self::ask_once(cluster).await.map_err(act)?;
            if let Some(now) = asked {
                return Ok(now);
            }
        }
        let what = "what is created there is not listed";
        Err(act(Error::new(Kind::Repository, what)))
    }

    /// The same for who only looks: nothing stays, no directory either.
    ///
    /// # Errors
    /// As for [`StoreTime::ask`].
    pub async fn look(cluster: &ClusterRepository) -> Result<Self> {
        let chance = hex(&rand::random::<[u8; 16]>());
        let key = format!("{}/{PROBE}{chance}", cluster.name.as_str());
        cluster.repository.create(&key, Bytes::new()).await?;
        let noted = cluster.repository.modified(&key).await;
        cluster.repository.tidy(&[key]).await;
        let what = "what is created there is not found";
        noted?
            .map(Self)
            .ok_or_else(|| Error::new(Kind::Repository, what))
    }

    /// Nothing when somebody has tidied up our object before we looked: we were stopped for long.
    async fn ask_once(cluster: &ClusterRepository) -> Result<Option<Self>> {
        let prefix = cluster.name.clock_prefix();
        let key = format!("{prefix}/{}", hex(&rand::random::<[u8; 16]>()));
        cluster.repository.create(&key, Bytes::new()).await?;
        let listed = cluster.repository.list(&prefix).await?;
        let ours = listed.iter().find(|object| object.key == key);
        let Some(now) = ours.map(|object| Self(object.modified)) else {
            return Ok(None);
        };
        // Those of others too, when they were killed before they came to it.
        let left = listed.into_iter();
        let left = left.filter(|object| object.key == key || now.since(object.modified) > LEASE);
        let left: Vec<String> = left.map(|object| object.key).collect();
        cluster.repository.tidy(&left).await;
        Ok(Some(now))
    }

    /// This host's clock instead, when nothing may be written: good for words, not for deciding.
    #[must_use]
    pub fn by_this_host() -> Self {
        Self(Timestamp::now())
    }

    /// That moment: for who looks at a repository as it was then.
    #[must_use]
    pub fn at(moment: Timestamp) -> Self {
        Self(moment)
    }

    /// The earlier of that moment and this host's time: by it nothing ends early because a clock is ahead.
    #[must_use]
    pub fn or_earlier(self) -> Timestamp {
        self.0.min(Timestamp::now())
    }

    /// As a time of a clock.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        self.0
    }

    /// How long ago an object was written.
    pub fn since(self, modified: Timestamp) -> SignedDuration {
        self.0.duration_since(modified)
    }
}

/// When a catalog was looked at, by the store's clock. Whoever looks may be stopped for long between his question and his look:
/// what was stored meanwhile is young, and not dated ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhenLooked {
    /// Before the catalog was read. By this time an attempt is old.
    before: StoreTime,
    /// After it was read. By this time an attempt is dated ahead.
    after: StoreTime,
}

impl From<StoreTime> for WhenLooked {
    /// For words alone: nothing is decided by it.
    fn from(now: StoreTime) -> Self {
        Self {
            before: now,
            after: now,
        }
    }
}

impl WhenLooked {
    /// Of a catalog that was read after the store was asked for the time `before`. It is asked once more when something of an
    /// attempt looks as if it was dated ahead.
    ///
    /// # Errors
    /// As for [`StoreTime::ask`].
    pub async fn at(
        cluster: &ClusterRepository,
        catalog: &Catalog,
        before: StoreTime,
    ) -> Result<Self> {
        let mut unfinished = catalog.unfinished.iter();
        let after = match unfinished.any(|left| left.is_dated_ahead(before)) {
            true => StoreTime::ask(cluster).await?,
            false => before,
        };
        Ok(Self { before, after })
    }
}

impl Unfinished {
    /// Whether somebody may be making it: something was stored lately, and it is not given up. A time that is far ahead says
    /// nothing of life, or what a wrong clock has dated would keep everything from being removed until then.
    #[must_use]
    pub fn is_at_work(&self, looked: impl Into<WhenLooked>) -> bool {
        let WhenLooked { before, after } = looked.into();
        let quiet = self.modified.map(|last| before.since(last));
        let fresh = quiet.is_some_and(|quiet| quiet <= LEASE);
        let known = fresh && !self.is_dated_ahead(after);
        known && !self.abandoned && !self.was_committed && !self.was_merged
    }

    /// Whether the store has dated something of it later than now, by more than its clock may have been put back: then its
    /// clock was wrong, or is.
    #[must_use]
    pub fn is_dated_ahead(&self, now: StoreTime) -> bool {
        let quiet = self.modified.map(|last| now.since(last));
        quiet.is_some_and(|quiet| quiet < -LEASE)
    }
}

/// Backups and merges under way, which may be reading layers or be about to stand on them.
pub fn at_work(catalog: &Catalog, looked: impl Into<WhenLooked>) -> Vec<String> {
    let looked = looked.into();
    let unfinished = catalog.unfinished.iter();
    unfinished
        .filter(|unfinished| unfinished.is_at_work(looked))
        .map(|unfinished| {
            format!(
                "{} is being made, or was interrupted less than {} minutes ago: nothing is removed meanwhile",
                unfinished.label,
                LEASE.as_mins()
            )
        })
        .collect()
}

/// Signs of life, until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct Heartbeat {
    task: JoinHandle<()>,
    beats: Arc<Beats>,
}

/// Where they go.
pub(super) struct Beats {
    pub(crate) repository: Repository,
    /// The key of each.
    pub(crate) key: Box<dyn Fn(u32) -> String + Send + Sync>,
    /// What they hold.
    pub(crate) body: Bytes,
    /// How often.
    pub(crate) every: Duration,
    /// How many there are.
    pub(crate) count: AtomicU32,
    /// Those of them that we have given.
    pub(crate) own: Mutex<Vec<u32>>,
    /// Whether others give signs under the same keys.
    pub(crate) may_be_there: bool,
}

impl std::fmt::Debug for Beats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Beats(like {})", (self.key)(0))
    }
}

impl Heartbeat {
    /// Begins, with the first sign after one period. `look` is done with each; it ends them.
    pub(crate) fn start<F, L>(beats: Beats, look: L) -> Self
    where
        L: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = bool> + Send,
    {
        let beats = Arc::new(beats);
        let ours = Arc::clone(&beats);
        let task = tokio::spawn(async move {
            let mut pause = ours.every;
            loop {
                tokio::time::sleep(pause).await;
                pause = match ours.beat().await {
                    true => ours.every,
                    // The repository has been patient already.
                    false => ours.every / 6,
                };
                if look().await {
                    return;
                }
            }
        });
        Self { task, beats }
    }

    /// Gives a sign of life now.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub(super) async fn beat_now(&self) -> Result<()> {
        self.beats.store().await
    }

    /// No sign is created any more when it returns.
    pub(super) async fn stop(mut self) -> Arc<Beats> {
        self.task.abort();
        (&mut self.task).await.ok();
        Arc::clone(&self.beats)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Beats {
    /// Gives one sign of life; false when it could not be stored. The act goes on: its commit does not rely on it.
    async fn beat(&self) -> bool {
        if let Err(error) = self.store().await {
            tracing::warn!(%error, "could not store a sign of life: without one for {} minutes an expiry takes this process for dead", LEASE.as_mins());
            return false;
        }
        true
    }

    /// Stores the next sign of life.
    async fn store(&self) -> Result<()> {
        loop {
            let number = self.count.load(Ordering::Relaxed);
            let key = (self.key)(number);
            // One that is there is no sign that somebody lives now, whatever it holds.
            let is_there = self.may_be_there && self.repository.size(&key).await?.is_some();
            let created = match is_there {
                true => Err(Error::new(Kind::AlreadyExists, "it is there")),
                false => self.repository.create(&key, self.body.clone()).await,
            };
            match created {
                Ok(()) => {
                    self.own().push(number);
                    self.count.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                // The other one's may have been removed meanwhile, and the store keep the name for what it was.
                Err(error) if self.may_be_there && is_taken(&error) => {
                    self.count.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes them, as far as the repository lets us.
    pub(super) async fn remove(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.tidy(0..count).await;
    }

    /// Removes those that we have given: others may be at work.
    pub(super) async fn remove_own(&self) {
        let own = mem::take(&mut *self.own());
        self.tidy(own).await;
    }

    async fn tidy(&self, numbers: impl IntoIterator<Item = u32>) {
        let keys = numbers.into_iter().map(|number| (self.key)(number));
        self.repository.tidy(&keys.collect::<Vec<_>>()).await;
    }

    fn own(&self) -> MutexGuard<'_, Vec<u32>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether something has the name, or had it where the store keeps versions.
fn is_taken(error: &Error) -> bool {
    error.kind() == Kind::AlreadyExists || error.is_of_one_object()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use super::*;
    use pgstrata_layer::keys::ClusterName;
    use pgstrata_layer::label::Label;

    fn unfinished(modified: Timestamp) -> Unfinished {
        Unfinished {
            label: Label::full(jiff::civil::date(2026, 11, 21).at(9, 0, 0, 0)),
            claim: None,
            object_count: 1,
            size_bytes: 1,
            modified: Some(modified),
            abandoned: false,
            was_committed: false,
            was_merged: false,
        }
    }

    #[test]
    fn a_writer_is_at_work_while_its_last_object_is_young_and_it_is_not_given_up() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1000);
        let at = |minutes| unfinished(now - SignedDuration::from_mins(minutes));
        assert!(at(0).is_at_work(StoreTime(now)));
        assert!(at(14).is_at_work(StoreTime(now)));
        // The store's clock was put back by a little: patience. By more it tells nothing.
        assert!(at(-14).is_at_work(StoreTime(now)));
        for minutes in [-16, -600, 16] {
            assert!(!at(minutes).is_at_work(StoreTime(now)), "{minutes}");
            assert_eq!(at(minutes).is_dated_ahead(StoreTime(now)), minutes < 0);
        }
        let mut fenced = at(0);
        fenced.abandoned = true;
        assert!(!fenced.is_at_work(StoreTime(now)));
    }

    #[test]
    fn a_writer_that_came_while_the_look_was_held_up_is_at_work() {
        let before = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1000);
        let later = |minutes| StoreTime(before + SignedDuration::from_mins(minutes));
        let came = unfinished(before + SignedDuration::from_mins(40));
        for (after, expected) in [(0, false), (24, false), (26, true), (41, true), (600, true)] {
            let looked = WhenLooked {
                before: StoreTime(before),
                after: later(after),
            };
            assert_eq!(came.is_at_work(looked), expected, "{after}");
        }
        // By the time before the look it is judged who is silent.
        let silent = unfinished(before - SignedDuration::from_mins(16));
        let young = unfinished(before - SignedDuration::from_mins(14));
        for (left, expected) in [(silent, false), (young, true)] {
            let looked = WhenLooked {
                before: StoreTime(before),
                after: later(40),
            };
            assert_eq!(left.is_at_work(looked), expected);
        }
    }

    #[tokio::test]
    async fn the_store_is_asked_again_when_something_looks_dated_ahead_and_only_then() {
        let name = ClusterName::parse("main").unwrap();
        let cluster = ClusterRepository::new(&Repository::memory(), &name);
        let now = StoreTime::ask(&cluster).await.unwrap();
        let mut catalog = Catalog::default();
        catalog.unfinished.push(unfinished(now.timestamp()));
        let looked = WhenLooked::at(&cluster, &catalog, now).await.unwrap();
        assert_eq!(looked, WhenLooked::from(now));
        let early = StoreTime(now.timestamp() - SignedDuration::from_mins(30));
        assert!(!catalog.unfinished[0].is_at_work(early));
        let looked = WhenLooked::at(&cluster, &catalog, early).await.unwrap();
        assert!(looked.after.timestamp() >= now.timestamp(), "{looked:?}");
        assert!(catalog.unfinished[0].is_at_work(looked));
    }

    #[tokio::test]
    async fn the_store_is_asked_for_the_time_and_nothing_stays_behind() {
        let name = ClusterName::parse("main").unwrap();
        let cluster = ClusterRepository::new(&Repository::memory(), &name);
        let now = StoreTime::ask(&cluster).await.unwrap();
        assert!(now.since(Timestamp::now()).as_secs().abs() < 60);
        assert!(cluster.repository.list("main").await.unwrap().is_empty());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn signs_of_life_come_until_they_are_stopped() {
        let repository = Repository::memory();
        let beats = Beats {
            repository: repository.clone(),
            key: Box::new(|number| format!("main/beat-{number}")),
            body: Bytes::from_static(b"here"),
            every: Duration::from_millis(20),
            count: AtomicU32::new(0),
            own: Mutex::default(),
            may_be_there: false,
        };
        let heart = Heartbeat::start(beats, || async { false });
        while repository.list("main").await.unwrap().len() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let beats = heart.stop().await;
        let count = repository.list("main").await.unwrap().len();
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(repository.list("main").await.unwrap().len(), count);
        // One that was stored and not counted when it was stopped may stay.
        beats.remove().await;
        assert!(repository.list("main").await.unwrap().len() <= 1);
    }
}
