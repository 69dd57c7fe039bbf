//! Removing layers while others make new ones.
//!
//! Who removes announces it, then looks who is at work; who makes a layer has claimed its label, then looks for
//! announcements. Whatever happens at the same time, one sees the other: the remover withdraws, or the layer is not
//! committed on one that goes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::removal::{self, RemovalRecord};

use super::presence::{ABANDONED_AFTER, WRITTEN_BY, at_work, host_name};
use super::{Catalog, Layer, remove_layer};
use crate::error::{Error, Kind, Result};
use crate::info::is_running;
use crate::repository::Repository;

/// What became of a removal.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Layers that are gone, newest first.
    pub(crate) labels: Vec<Label>,
    /// Why nothing was removed.
    pub(crate) notes: Vec<String>,
}

/// Removes those of `wanted` that no other layer needs, unless somebody is making a layer. `instead` has what is kept of
/// them, and must be there.
///
/// # Errors
/// `Busy` when another process is removing layers; when the repository cannot be read or written.
pub(crate) async fn remove_layers(
    repository: &Repository,
    cluster: &ClusterName,
    wanted: &[Arc<Layer>],
    instead: Option<&Label>,
) -> Result<Removed> {
    if wanted.is_empty() {
        return Ok(Removed::default());
    }
    announce(repository, cluster, wanted).await?;
    let outcome = remove_announced(repository, cluster, wanted, instead).await;
    let withdrawn = repository.delete(&cluster.removal_key()).await;
    let removed = outcome?;
    withdrawn?;
    Ok(removed)
}

async fn announce(
    repository: &Repository,
    cluster: &ClusterName,
    wanted: &[Arc<Layer>],
) -> Result<()> {
    let record = RemovalRecord {
        layers: wanted.iter().map(|layer| layer.reference()).collect(),
        host: host_name(),
        pid: std::process::id(),
        started_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
    };
    let key = cluster.removal_key();
    let body = Bytes::from(removal::encode(&record));
    match repository.create(&key, body.clone()).await {
        Err(error) if error.kind() == Kind::AlreadyExists => {}
        created => return created,
    }
    if let Some(other) = find(repository, cluster)
        .await?
        .filter(|other| !is_over(other))
    {
        return Err(Error::new(
            Kind::Busy,
            format!(
                "process {} on \"{}\" is removing layers since {}",
                other.pid, other.host, other.started_at
            ),
        )
        .hint("run it again later; if that process is gone, a day later at most"));
    }
    // What it names and did not remove is whole, or no layer any more.
    repository.delete(&key).await?;
    repository.create(&key, body).await
}

async fn remove_announced(
    repository: &Repository,
    cluster: &ClusterName,
    wanted: &[Arc<Layer>],
    instead: Option<&Label>,
) -> Result<Removed> {
    let catalog = Catalog::load(repository, cluster).await?;
    if let Some(instead) = instead {
        catalog.layer(instead)?;
    }
    let notes = at_work(&catalog);
    if !notes.is_empty() {
        return Ok(Removed {
            labels: Vec::new(),
            notes,
        });
    }
    let known = |layer: &&Layer| {
        wanted
            .iter()
            .any(|wanted| wanted.reference() == layer.reference())
    };
    let known: Vec<Label> = catalog
        .layers
        .iter()
        .filter(known)
        .map(|layer| layer.label.clone())
        .collect();
    let labels = catalog.removable(&known);
    for label in &labels {
        remove_layer(repository, cluster, label).await?;
    }
    Ok(Removed { labels, notes })
}

/// The layers that somebody is removing.
///
/// # Errors
/// When the repository cannot be read.
pub(super) async fn leaving(
    repository: &Repository,
    cluster: &ClusterName,
) -> Result<BTreeSet<ParentRef>> {
    let found = find(repository, cluster).await?;
    // Our own process may be doing both.
    let going_on = found.filter(|record| !is_over(record) || record.pid == std::process::id());
    Ok(going_on
        .into_iter()
        .flat_map(|record| record.layers)
        .collect())
}

async fn find(repository: &Repository, cluster: &ClusterName) -> Result<Option<RemovalRecord>> {
    match repository.get(&cluster.removal_key()).await {
        Ok(object) => Ok(Some(removal::decode(&object)?)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the process that announced it is gone, or taken for dead.
fn is_over(record: &RemovalRecord) -> bool {
    let age = Timestamp::now().duration_since(record.started_at);
    is_running(&record.host, record.pid) == Some(false) || age > ABANDONED_AFTER
}
