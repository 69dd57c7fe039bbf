//! Other repositories that get the objects of a layer while it is made in one, as they are.
//!
//! That spares a copy ([`super::CopiedLayer`]) from reading them again; it is the copy that makes the layer exist there, and
//! it stores what is missing. So nothing that goes wrong here is an error of the backup: a sibling that does not take an
//! object in time is left alone from then on.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use jiff::Timestamp;
use pgstrata_layer::claim;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::restoring::RestoreRecord;
use pgstrata_pgdata::lsn::Lsn;

use super::new_layer::NewLayer;
use super::presence::{WRITTEN_BY, host_name};
use super::remove::remove_own;
use super::restoring::Restoring;
use super::{Layer, LayerPlan};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// The backup holds its memory, and perhaps the server's changes, while it waits for an object to be stored.
const PATIENCE: Duration = Duration::from_secs(30);

/// The siblings of one layer under way.
#[derive(Debug, Default)]
pub struct Siblings(Vec<Sibling>);

#[derive(Debug)]
struct Sibling {
    cluster: ClusterRepository,
    keeping: Restoring,
    is_lost: AtomicBool,
}

impl Siblings {
    /// Claims the label of `layer`, which is made on `chain`, in the siblings that answer and are sealed like the
    /// repository in which it is made.
    pub async fn begin(
        clusters: &[ClusterRepository],
        layer: &NewLayer,
        plan: LayerPlan<'_>,
        chain: &[Arc<Layer>],
    ) -> Self {
        let beginning = clusters.iter().map(|cluster| async move {
            let begun = tokio::time::timeout(PATIENCE, begin(cluster, layer, chain)).await;
            let late = Err(Error::new(Kind::Repository, "it does not answer"));
            match begun.unwrap_or(late) {
                Ok(sibling) => Some(sibling),
                Err(error) => {
                    let url = cluster.repository.url();
                    tracing::warn!(label = %layer.label(), kind = ?plan.kind, "{url} does not get the layer while it is made: {error}");
                    None
                }
            }
        });
        Self(join_all(beginning).await.into_iter().flatten().collect())
    }

    /// Stores an object in all of them that took the ones before.
    pub async fn store(&self, key: &str, body: &Bytes) {
        let storing = self.0.iter().map(|sibling| sibling.store(key, body));
        join_all(storing).await;
    }

    /// The end of the backup. What was stored of a layer goes when that is nowhere and never will be: nobody can be at work on
    /// it. It stays when the layer may exist: somebody may have found it, and be copying it, or have done so.
    pub async fn end(self, may_exist: bool, label: &Label) {
        for sibling in self.0 {
            if may_exist {
                sibling.keeping.copied().await;
            } else {
                let removed = remove_own(&sibling.cluster, label);
                if !matches!(tokio::time::timeout(PATIENCE, removed).await, Ok(Ok(()))) {
                    let url = sibling.cluster.repository.url();
                    tracing::warn!(%label, "could not remove what {url} got of a layer that failed: it is harmless, and listed by info");
                }
                let _ = tokio::time::timeout(PATIENCE, sibling.keeping.failed()).await;
            }
        }
    }
}

async fn begin(
    cluster: &ClusterRepository,
    layer: &NewLayer,
    chain: &[Arc<Layer>],
) -> Result<Sibling> {
    let claim = layer.claim();
    // Its manifest is not known yet.
    let own = ParentRef {
        label: claim.label.clone(),
        manifest_digest: "0".repeat(64),
    };
    let below = chain.iter().map(|layer| layer.reference());
    let record = RestoreRecord {
        layers: iter::once(own).chain(below).collect(),
        // The layer starts where no expiry is while somebody is at work on it; the copy says where.
        start_lsn: Lsn::new(u64::MAX),
        timeline: 1,
        host: host_name(),
        pid: std::process::id(),
        directory: RestoreRecord::place_of_copy(&claim.label, "a backup that goes on"),
        started_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
    };
    let keeping = Restoring::begin_copy(cluster, &claim.layer_id, &record).await?;
    let label = layer.label();
    let body = Bytes::from(claim::encode(claim));
    let created = cluster
        .repository
        .create(&cluster.name.claim_key(label), body)
        .await;
    if let Err(error) = created {
        keeping.failed().await;
        return Err(error);
    }
    Ok(Sibling {
        cluster: cluster.clone(),
        keeping,
        is_lost: AtomicBool::new(false),
    })
}

impl Sibling {
    async fn store(&self, key: &str, body: &Bytes) {
        if self.is_lost.load(Ordering::Relaxed) {
            return;
        }
        let creating = self.cluster.repository.create(key, body.clone());
        let why = match tokio::time::timeout(PATIENCE, creating).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it did not take \"{key}\" in {} s", PATIENCE.as_secs()),
        };
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            let url = self.cluster.repository.url();
            tracing::warn!("{url} does not get the rest of the layer while it is made: {why}");
        }
    }
}
