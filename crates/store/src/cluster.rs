//! One cluster's part of a repository: what almost everything in it is asked of.

use pgstrata_layer::cluster::{self, ClusterRecord};
use pgstrata_layer::keys::ClusterName;

use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// A repository, and the name of a cluster in it. Cheap to clone.
///
/// The cluster need not be there: [`ClusterRepository::record`] says whether it is.
#[derive(Clone, Debug)]
pub struct ClusterRepository {
    /// Where its objects are.
    pub repository: Repository,
    /// The name under which they are there.
    pub name: ClusterName,
}

impl ClusterRepository {
    /// The part of `name` in `repository`.
    #[must_use]
    pub fn new(repository: &Repository, name: &ClusterName) -> Self {
        Self {
            repository: repository.clone(),
            name: name.clone(),
        }
    }

    /// The record of the cluster, as `init` made it. Whoever reads the record reads it here.
    ///
    /// # Errors
    /// `Kind::NotFound` when there is no such cluster in the repository; `Damaged` when the record
    /// cannot be read, or is another cluster's.
    pub async fn record(&self) -> Result<ClusterRecord> {
        let key = self.name.cluster_key();
        let name = self.name.as_str();
        let bytes = self
            .repository
            .get(&key)
            .await
            .map_err(|error| match error.kind() {
                Kind::NotFound => Error::new(
                    Kind::NotFound,
                    format!(
                        "cluster \"{name}\" is not in the repository {}",
                        self.repository.url()
                    ),
                )
                .hint("create it with \"pgstrata init\", or look at --repo and --cluster"),
                _ => error,
            })?;
        let record = cluster::decode(&bytes)
            .map_err(|error| Error::from(error).while_doing(format!("could not read \"{key}\"")))?;
        self.require_own(&record)?;
        Ok(record)
    }

    /// Refuses a record that is another cluster's.
    pub(crate) fn require_own(&self, record: &ClusterRecord) -> Result<()> {
        if record.name == self.name.as_str() {
            return Ok(());
        }
        let key = self.name.cluster_key();
        Err(Error::new(
            Kind::Damaged,
            format!(
                "could not read \"{key}\": it is the record of cluster \"{}\"",
                record.name
            ),
        ))
    }
}
