//! A backup that several processes make, on several hosts or one.
//!
//! The process that holds the server's backup, the leader, says what the shares are:
//! ranges of the list of files. Whoever creates a share's claim makes it, a pipeline
//! over these files alone, and creates one object that says what came of it. The
//! leader waits for what others make, makes again what they do not finish, and writes
//! the layer's index out of those of the shares; then everything below `share` goes.
//!
//! All coordination is create-if-absent: two processes may do the same share, but only
//! one outcome counts, and no two packs of the layer have the same number. Until the
//! manifest there is no layer, whatever becomes of a helper.

mod help;
mod lead;
mod make;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::share::{self, PACKS_AT_ONCE, Share};

pub use help::{HelpOptions, help};
pub(super) use lead::Lead;
pub use lead::ShareMade;
pub(super) use make::Maker;

use super::packer::Destination;
use crate::catalog::{hex, our_claim};
use crate::error::{Error, Kind, Result};

/// One process among those that make a layer. For threads outside of the runtime.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    destination: Destination,
    /// Who we are, as our claims say.
    us: ClaimRecord,
}

impl Desk {
    /// That of the process that has claimed the layer.
    pub(super) fn new(destination: Destination) -> Self {
        let us = our_claim(
            destination.label.as_str(),
            &hex(&destination.layer_id),
            Timestamp::now(),
        );
        Self { destination, us }
    }

    fn wait<T>(&self, act: impl Future<Output = Result<T>>) -> Result<T> {
        self.destination.runtime.block_on(act)
    }

    /// Claims what `key` stands for; false when another process has.
    fn claim(&self, key: &str) -> Result<bool> {
        let body = Bytes::from(claim::encode(&self.us));
        self.create(key, body)
    }

    /// Creates an object; false when another process has.
    fn create(&self, key: &str, body: Bytes) -> Result<bool> {
        match self.wait(self.destination.repository.create(key, body)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == Kind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What share `number` is; `None` before the shares are cut and after the last is done.
    fn share(&self, number: u32) -> Result<Option<Share>> {
        let Destination {
            repository,
            cluster,
            label,
            ..
        } = &self.destination;
        let key = cluster.share_key(label, number);
        let bytes = match self.wait(repository.get(&key)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = share::decode(&bytes)
            .map_err(|error| Error::from(error).while_doing(format!("could not read \"{key}\"")))?;
        let ours = found.label == label.as_str() && found.layer_id == self.us.layer_id;
        if !ours || found.number != number {
            let what = format!(
                "\"{key}\" is share {} of layer {}",
                found.number, found.label
            );
            return Err(Error::new(Kind::Damaged, what));
        }
        Ok(Some(found))
    }

    /// Refuses when the backup has gone on without us: what we would store now nobody would remove.
    fn check_wanted(&self) -> Result<()> {
        match self.wait(self.is_wanted())? {
            true => Ok(()),
            false => Err(self.unwanted()),
        }
    }

    /// Removes what the shares needed. The first share goes first: who finds it gone stops.
    fn remove_shares(&self) {
        let (repository, cluster) = (&self.destination.repository, &self.destination.cluster);
        let label = &self.destination.label;
        let removing = async {
            repository.delete(&cluster.share_key(label, 0)).await?;
            for object in repository.list(&cluster.shares_prefix(label)).await? {
                repository.delete(&object.key).await?;
            }
            Ok(())
        };
        if let Err(error) = self.wait(removing) {
            tracing::warn!(%label, %error, "could not remove what the shares of the backup have left: it is harmless, and named by verify");
        }
    }

    async fn is_wanted(&self) -> Result<bool> {
        let (cluster, label) = (&self.destination.cluster, &self.destination.label);
        let first = cluster.share_key(label, 0);
        Ok(self.destination.repository.size(&first).await?.is_some())
    }

    fn unwanted(&self) -> Error {
        let what = format!(
            "backup {} went on without this share, or was given up",
            self.destination.label
        );
        Error::new(Kind::Refused, what)
            .hint("a longer --share-timeout of the backup waits longer for its helpers")
    }
}

/// Numbers for packs that no other process of the layer has.
#[derive(Debug)]
pub(super) struct PackNumbers {
    desk: Desk,
    /// The next batch to ask for, and what is left of the last.
    state: Mutex<(u32, Range<u32>)>,
}

impl PackNumbers {
    fn new(desk: Desk) -> Self {
        Self {
            desk,
            state: Mutex::new((0, 0..0)),
        }
    }

    pub(super) fn next(&self) -> Result<u32> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (batch, free) = &mut *state;
        loop {
            if let Some(number) = free.next() {
                return Ok(number);
            }
            self.desk.check_wanted()?;
            let Destination { cluster, label, .. } = &self.desk.destination;
            let mine = self.desk.claim(&cluster.share_packs_key(label, *batch))?;
            let first = batch.saturating_mul(PACKS_AT_ONCE);
            *batch += 1;
            if mine {
                *free = first..first.saturating_add(PACKS_AT_ONCE);
            }
        }
    }
}
