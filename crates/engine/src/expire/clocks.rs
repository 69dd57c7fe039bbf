//! The clocks by which an expiry goes.
//!
//! A clock that is ahead ends pins, spans and the patience with a branch before their time, and what was removed does not come
//! back. So rules go by the earlier of two clocks, and where the later one would have more removed, nothing is: nobody knows
//! which of them is right. Who is at work is for the store's clock alone to say (ADR 19).

use jiff::{SignedDuration, Timestamp};
use pgstrata_store::catalog::{Catalog, StoreTime, WhenLooked, clocks_differ};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;

/// Clocks that differ by less decide on an hour more or less, which no rule is about.
const MUCH: SignedDuration = SignedDuration::from_hours(1);

/// This host's clock and the store's, at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    store: StoreTime,
    /// Before and after the store was asked.
    host: (Timestamp, Timestamp),
    /// Whether it was.
    is_asked: bool,
}

impl Clocks {
    /// Asks the store.
    ///
    /// # Errors
    /// When the repository cannot be written or listed.
    pub(super) async fn ask(cluster: &ClusterRepository) -> Result<Self> {
        let before = Timestamp::now();
        let store = StoreTime::ask(cluster).await?;
        Ok(Self {
            store,
            host: (before, Timestamp::now()),
            is_asked: true,
        })
    }

    /// This host's alone, when nothing may be written.
    pub(super) fn by_this_host() -> Self {
        let store = StoreTime::by_this_host();
        Self {
            store,
            host: (store.timestamp(), store.timestamp()),
            is_asked: false,
        }
    }

    /// By which leases go.
    pub(super) fn store(self) -> StoreTime {
        self.store
    }

    /// By which it is judged who is at work in a catalog that was read since.
    ///
    /// # Errors
    /// When the repository cannot be written or listed.
    pub(super) async fn looked(
        self,
        cluster: &ClusterRepository,
        catalog: &Catalog,
    ) -> Result<WhenLooked> {
        match self.is_asked {
            true => WhenLooked::at(cluster, catalog, self.store).await,
            false => Ok(self.store.into()),
        }
    }

    /// By which rules go.
    pub(super) fn earlier(self) -> Timestamp {
        self.store.timestamp().min(self.host.0)
    }

    /// The other one, when it shows another time by much.
    pub(super) fn later(self) -> Option<Timestamp> {
        let later = self.store.timestamp().max(self.host.0);
        (later.duration_since(self.earlier()) > MUCH).then_some(later)
    }

    /// What is wrong with them, for people.
    pub(super) fn doubt(self) -> Option<String> {
        clocks_differ(self.host, self.store.timestamp())
    }
}
