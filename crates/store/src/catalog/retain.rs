//! What a layer stands on stays locked as long as the layer.
//!
//! A layer stays for the days of the retention after it was made: its manifest is locked so long, and everything else of it
//! somewhat longer. Before the manifest is created, everything on which the layer stands is locked at least as long: the
//! chain, the WAL that makes its layers consistent, the record and the keys of the cluster. What is locked long enough is
//! left; what is extended is extended by more than is needed, so that most layers extend nothing.

use std::collections::HashMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{Manifest, ParentRef};
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};

use super::{Catalog, Layer};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Result};

/// Each is two small requests.
const LOCKS_AT_ONCE: usize = 16;

/// From when and until when: what must hold, and what is made of it where it does not.
type LockTerms = (Timestamp, Timestamp);

/// Extends the locks of everything that the layer `label` needs, of which `manifest` is about to be created on `chain`,
/// newest first.
///
/// # Errors
/// When a lock cannot be extended: then the layer must not be made.
pub(super) async fn extend(
    cluster: &ClusterRepository,
    label: &Label,
    manifest: &Manifest,
    chain: &[Arc<Layer>],
) -> Result<()> {
    let Some(retention) = cluster.repository.retention() else {
        return Ok(());
    };
    let now = Timestamp::now();
    let terms = (retention.needed(now), retention.with_margin(now));
    let act = |error: Error| {
        let error = error.while_doing(format!("could not lock what layer {label} needs"));
        error.hint("the credentials must allow s3:GetObjectRetention and s3:PutObjectRetention")
    };
    let extending = async {
        let name = &cluster.name;
        let keys = cluster
            .repository
            .list(&format!("{}/key", name.as_str()))
            .await?;
        let mut shared: Vec<String> = keys.into_iter().map(|object| object.key).collect();
        shared.push(name.cluster_key());
        shared.extend(wal_of(cluster, manifest).await?);
        lock_all(cluster, shared, terms).await?;
        // The claim is the oldest object of the layer.
        extend_layer(cluster, label, &name.claim_key(label), terms).await?;
        for layer in chain {
            let witness = name.manifest_key(&layer.label);
            if extend_layer(cluster, &layer.label, &witness, terms).await? {
                lock_all(cluster, wal_of(cluster, &layer.manifest).await?, terms).await?;
                // When this is there, so is all before it.
                cluster.repository.extend_lock(&witness, terms).await?;
            }
        }
        Ok(())
    };
    extending.await.map_err(act)
}

/// Extends the locks of a layer's objects but its manifest, unless `witness` is locked long enough: true when it was not.
async fn extend_layer(
    cluster: &ClusterRepository,
    label: &Label,
    witness: &str,
    terms: LockTerms,
) -> Result<bool> {
    let locked = cluster.repository.locked_until(witness).await?;
    if locked.is_some_and(|locked| locked >= terms.0) {
        return Ok(false);
    }
    let (prefix, last) = (
        cluster.name.layer_prefix(label),
        cluster.name.manifest_key(label),
    );
    let objects = cluster.repository.list(&prefix).await?.into_iter();
    let keys = objects.map(|object| object.key);
    let keys = keys.filter(|key| *key != last && !cluster.name.is_passing(key));
    lock_all(cluster, keys.collect(), terms).await?;
    Ok(true)
}

async fn lock_all(cluster: &ClusterRepository, keys: Vec<String>, terms: LockTerms) -> Result<()> {
    futures::stream::iter(&keys)
        .map(|key| cluster.repository.extend_lock(key, terms))
        .buffer_unordered(LOCKS_AT_ONCE)
        .try_collect()
        .await
}

/// Keys of the WAL that makes a layer consistent, and of the history of its timeline, as far as they are there; and of what
/// stands in for damaged files among them.
async fn wal_of(cluster: &ClusterRepository, manifest: &Manifest) -> Result<Vec<String>> {
    let record = cluster.record().await?;
    let size = WalSegmentSize::try_from(u64::from(record.wal_segment_size))?;
    let timeline = manifest.timeline;
    let directory = format!("{:08X}", timeline.get());
    let first = manifest.start_lsn.segment(size);
    let last = manifest.stop_lsn.segment(size);
    let mut names: Vec<String> = (first..=last)
        .map(|number| WalSegment { timeline, number }.file_name(size))
        .collect();
    names.push(format!("{directory}.history"));
    let mended = format!("{}/{directory}", cluster.name.mended_wal_prefix());
    let mended = cluster.repository.list(&mended).await?.into_iter();
    let mut keys: Vec<String> = mended.map(|object| object.key).collect();
    keys.retain(|key| {
        let (_, file) = key.rsplit_once('/').unwrap_or(("", key));
        let file = ClusterName::mended_file(file);
        names.iter().any(|name| name == file)
    });
    for name in names {
        let key = cluster.name.wal_key(&directory, &name);
        if cluster.repository.size(&key).await?.is_some() {
            keys.push(key);
        }
    }
    Ok(keys)
}

/// The layers of `catalog` that nobody can remove yet, and until when.
///
/// # Errors
/// When the repository cannot be read.
pub async fn locked_layers(
    cluster: &ClusterRepository,
    catalog: &Catalog,
) -> Result<HashMap<ParentRef, Timestamp>> {
    if cluster.repository.retention().is_none() {
        return Ok(HashMap::new());
    }
    let now = Timestamp::now();
    let asking = catalog.layers.iter().map(|layer| async move {
        let key = cluster.name.manifest_key(&layer.label);
        let until = cluster.repository.locked_until(&key).await?;
        Ok::<_, Error>(until.map(|until| (layer.reference(), until)))
    });
    let found: Vec<Option<(ParentRef, Timestamp)>> = futures::stream::iter(asking)
        .buffer_unordered(LOCKS_AT_ONCE)
        .try_collect()
        .await?;
    let locked = found.into_iter().flatten();
    Ok(locked.filter(|(_, until)| *until > now).collect())
}

/// What is said of a layer that is locked.
#[must_use]
pub fn describe_lock(until: Timestamp) -> String {
    format!(
        "it is locked until {}",
        until.strftime("%Y-%m-%d %H:%M:%SZ")
    )
}
