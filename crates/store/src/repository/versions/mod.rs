//! What a bucket of S3 keeps beside what is shown: versions of objects that were overwritten or deleted.
//!
//! Objects are created once and never changed, so a second version of one, or a marker that it was deleted, is either the
//! work of an expiry or of somebody who should not have been there. Both leave the first version where it was. Nothing
//! here ever deletes a version.

mod as_of;
mod bucket;
mod kept;
mod listing;
mod lock;
mod moment;
mod server_side;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use self::as_of::AsOf;
pub(super) use self::bucket::Bucket;
pub use self::kept::KeptObject;
pub use self::listing::Version;
pub use self::lock::Retention;
pub use self::moment::Since;
pub(super) use self::server_side::ServerSide;
use super::Repository;
use super::reason::VERSIONS;
use super::strange::is_strange;
use crate::error::{Error, Kind, Result};

/// What a store does with what is overwritten or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versioning {
    /// It keeps it as an older version.
    Enabled,
    /// It keeps what became an older version before.
    Suspended,
    /// It keeps nothing.
    None,
}

impl Repository {
    /// What the store does with what is overwritten or deleted.
    ///
    /// # Errors
    /// `Unsupported` where that cannot be asked; `Repository` when there is no answer.
    pub async fn versioning(&self) -> Result<Versioning> {
        let bucket = self.bucket()?;
        let asked = self.retrying(|| bucket.versioning()).await;
        asked.map_err(|error| self.error("could not ask for the versioning of", "", &error))
    }

    /// What became of everything below `prefix` since `moment`. What was brought back, by the ids of `back`, is what was
    /// there, whatever tag the store gave it.
    ///
    /// # Errors
    /// `Unsupported` when the store keeps no versions; `Repository` when they cannot be listed.
    pub async fn since(
        &self,
        prefix: &str,
        moment: Timestamp,
        back: &BTreeSet<String>,
    ) -> Result<Since> {
        self.require_key_of_store()?;
        self.require_versions().await?;
        let listed = self.versions_beginning(prefix, "/").await?;
        let versions = listed.map_err(|error| self.no_versions(prefix, &error))?;
        Ok(moment::since(versions, moment, back))
    }

    /// The versions of all objects whose keys begin with `prefix`, a whole key component, and `more`; or why the store did
    /// not list them.
    async fn versions_beginning(
        &self,
        prefix: &str,
        more: &str,
    ) -> Result<object_store::Result<Vec<Version>>> {
        let (bucket, path) = (self.bucket()?, self.path(prefix)?);
        let begin = format!("{path}{more}");
        let listed = self.retrying(|| bucket.versions(&begin, "")).await;
        let root = self.0.root.as_ref();
        Ok(listed.map(|mut versions| {
            for version in &mut versions {
                let own = version.key.strip_prefix(root);
                let own = own.map(|key| key.trim_start_matches('/').to_owned());
                version.key = own.unwrap_or_default();
            }
            versions.retain(|version| !is_strange(&version.key));
            versions
        }))
    }

    fn no_versions(&self, prefix: &str, error: &object_store::Error) -> Error {
        needs_versions(self.error("could not list the versions of", prefix, error))
    }

    /// Puts that version on top of whatever is there, as the newest one; answers the id of that, when the store says it.
    /// Doing so again does no harm.
    ///
    /// # Errors
    /// `Repository` when it cannot be done.
    pub async fn bring_back(&self, version: &Version) -> Result<Option<String>> {
        self.require_key_of_store()?;
        let (bucket, path) = (self.bucket()?, self.path(&version.key)?);
        let copied = self
            .retrying(|| bucket.put_on_top(&path, &version.id))
            .await;
        copied.map_err(|error| {
            let error = self.error("could not bring back", &version.key, &error);
            needs_versions(error)
        })
    }

    /// The repository as it was at `moment`, to read.
    ///
    /// # Errors
    /// `Unsupported` when the store keeps no versions; `Repository` when that cannot be known.
    pub async fn as_of(&self, moment: Timestamp) -> Result<Self> {
        self.require_versions().await?;
        let store = AsOf::new(self.bucket()?.clone(), moment);
        let url = format!("{} as of {moment}", self.url());
        Ok(self.showing_past(Arc::new(store), url))
    }

    /// A copy within the store would need the key of the customer twice.
    fn require_key_of_store(&self) -> Result<()> {
        let server_side = &self.bucket()?.server_side;
        server_side.require_key_of_store("brought back")
    }

    fn bucket(&self) -> Result<&Bucket> {
        let Some(bucket) = &self.0.bucket else {
            let url = self.url();
            let what = match self.0.local {
                Some(_) => format!("{url} is a directory, which keeps no versions of its objects"),
                None => format!("versions of objects are read on S3 alone, and not at {url}"),
            };
            return Err(Error::new(Kind::Unsupported, what).hint(
                "what was overwritten or deleted there can only come back from a copy of the repository",
            ));
        };
        Ok(bucket)
    }

    async fn require_versions(&self) -> Result<()> {
        match self.versioning().await {
            Ok(Versioning::Enabled) => Ok(()),
            Ok(Versioning::Suspended) => {
                tracing::warn!(
                    "somebody has suspended the versioning of the bucket: what is overwritten from then on is lost"
                );
                Ok(())
            }
            Ok(Versioning::None) => {
                let what = format!(
                    "the bucket of {} keeps no versions of its objects",
                    self.url()
                );
                Err(Error::new(Kind::Unsupported, what).hint(
                    "enable the versioning of the bucket: what is overwritten or deleted from then on can come back",
                ))
            }
            // The versions themselves say more.
            Err(error) if error.is_denial() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Credentials that do for everything else may not do for this.
fn needs_versions(error: Error) -> Error {
    match error.is_denial() {
        true => error.hint(VERSIONS),
        false => error,
    }
}
