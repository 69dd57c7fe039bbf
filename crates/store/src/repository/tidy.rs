//! Removing what nobody needs any more, for those who may, and for those who may not.
//!
//! Credentials that cannot delete are a good idea for the host of a database, and enough for everything it does. What a
//! command cannot clean up it leaves, and says so once; an expiry, which may delete, collects it.

use std::sync::atomic::Ordering;

use super::{ObjectInfo, Repository};
use crate::error::{Error, Result};

impl Repository {
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
