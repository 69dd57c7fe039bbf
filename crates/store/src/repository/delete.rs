//! Deleting, for those who may, and for those who may not.
//!
//! Credentials that cannot delete are a good idea for the host of a database, and enough for everything it does. What a
//! command cannot clean up it leaves, and says so once; an expiry, which may delete, collects it.

use std::sync::atomic::Ordering;

use futures::{StreamExt, stream};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::reason::Reason;
use super::{ObjectInfo, Repository};
use crate::error::{Error, Result};

/// What S3 deletes with one request.
const DELETED_AT_ONCE: usize = 1000;

/// Requests that the `object_store` crate makes at once for so many, where the store deletes one object at a time.
const REQUESTS_FOR_DELETION: usize = 10;

impl Repository {
    /// Deletes the object `key`, durably. An object that is not there is no error.
    ///
    /// # Errors
    /// `Repository` when it cannot be deleted.
    pub async fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key)?;
        match self.retrying(|| self.0.store.delete(&path)).await {
            Ok(()) => Ok(()),
            Err(error) if Reason::of(&error).object_is_absent => Ok(()),
            Err(error) => Err(self.error("could not delete", key, &error)),
        }
    }

    /// Deletes all these objects, durably, in any order. One that is not there is no error; after an error any of them may
    /// be gone.
    ///
    /// # Errors
    /// `Repository` when one of them cannot be deleted.
    pub async fn delete_all(&self, keys: &[String]) -> Result<()> {
        for batch in keys.chunks(DELETED_AT_ONCE) {
            self.delete_batch(batch).await?;
        }
        Ok(())
    }

    /// With one request, where the store can. Repeated as a whole: what has gone by then is no error.
    async fn delete_batch(&self, keys: &[String]) -> Result<()> {
        let paths: Vec<Path> = keys
            .iter()
            .map(|key| self.path(key))
            .collect::<Result<_>>()?;
        let deleting = || async {
            let paths = stream::iter(paths.clone()).map(Ok).boxed();
            let mut deleted = self.0.store.delete_stream(paths);
            let mut failed: Option<(bool, object_store::Error)> = None;
            while let Some(outcome) = deleted.next().await {
                let Err(error) = outcome else { continue };
                let reason = Reason::of(&error);
                // What does not pass tells more than what does.
                let lasting = !reason.may_pass;
                let first = failed.as_ref().is_none_or(|(known, _)| !known && lasting);
                if !reason.object_is_absent && first {
                    failed = Some((lasting, error));
                }
            }
            failed.map_or(Ok(()), |(_, error)| Err(error))
        };
        let deleted = self.retrying_as(keys.len().min(REQUESTS_FOR_DELETION), deleting);
        deleted.await.map_err(|error| match keys {
            [one] => self.error("could not delete", one, &error),
            _ => {
                let (first, count) = (&keys[0], keys.len());
                let act = format!("could not delete all of {count} objects, the first of them");
                self.error(&act, first, &error)
            }
        })
    }

    /// Deletes what does no harm when it stays, as far as that is allowed and works.
    pub(crate) async fn tidy(&self, keys: &[String]) {
        if let Err(error) = self.delete_all(keys).await {
            self.note_left(&error);
        }
    }

    /// Says once that what is not needed stays; true when that is so because `error` is a denial.
    pub(crate) fn note_left(&self, error: &Error) -> bool {
        if !error.is_denial() {
            tracing::debug!(%error, "an object that is not needed stays");
            return false;
        }
        if !self.0.told_of_denial.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "these credentials may not delete: what is not needed any more stays, until an expire that may delete collects it"
            );
        }
        true
    }

    /// Removes files below `prefix` that writers which were killed have left in a directory, and that are no objects: where the
    /// file system has no files without a name. Answers how many.
    ///
    /// # Errors
    /// `Repository` when they cannot be looked for or removed.
    pub async fn collect_hidden(&self, prefix: &str) -> Result<usize> {
        let Some(local) = &self.0.local else {
            return Ok(0);
        };
        let collected = local.collect_hidden(prefix).await;
        collected.map_err(|e| {
            self.error(
                "could not remove what killed commands have left below",
                prefix,
                &e,
            )
        })
    }

    /// Whether the store has denied a deletion of this process.
    pub(crate) fn was_denied_deletion(&self) -> bool {
        self.0.told_of_denial.load(Ordering::Relaxed)
    }

    /// The objects one level below `prefix`, in order of key.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub(crate) async fn list_level(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let path = self.path(prefix)?;
        let found = self
            .retrying(|| self.0.store.list_with_delimiter(Some(&path)))
            .await
            .map_err(|e| self.error("could not list", prefix, &e))?;
        self.infos(found.objects)
    }
}
