//! What a layer stands on stays locked as long as the layer.
//!
//! A layer stays for the days of the retention after it was made: its manifest is locked so long, and everything else of it
//! somewhat longer. Before the manifest is created, everything on which the layer stands is locked at least as long: the
//! chain, the WAL that makes its layers consistent, the record and the keys of the cluster. What is locked long enough is
//! left; what is extended is extended by more than is needed, so that most layers extend nothing.
//!
//! Each object is looked at, and each version of it. Whoever may lock an object could lock one that vouches for others, and
//! whoever may overwrite one puts a version on top that is not locked.

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
use crate::repository::versions::KeptObject;

/// Each is one small request, or two.
pub(super) const LOCKS_AT_ONCE: usize = 32;

/// Each is a few listings, and one for each file of its WAL.
const LAYERS_AT_ONCE: usize = 8;

/// Extends the locks of everything that the layer `label` needs, of which `manifest` is about to be created on `chain`,
/// newest first. Answers what is to be said of objects that somebody has overwritten.
///
/// # Errors
/// When a lock cannot be extended: then the layer must not be made.
pub(super) async fn extend(
    cluster: &ClusterRepository,
    label: &Label,
    manifest: &Manifest,
    chain: &[Arc<Layer>],
) -> Result<Option<String>> {
    let Some(retention) = cluster.repository.retention() else {
        return Ok(None);
    };
    let now = Timestamp::now();
    let terms = (retention.needed(now), retention.with_margin(now));
    let act = |error: Error| {
        let error = error.while_doing(format!("could not lock what layer {label} needs"));
        error.hint(
            "the credentials must allow s3:ListBucketVersions, s3:GetObjectRetention and s3:PutObjectRetention",
        )
    };
    let extending = async {
        let mut needed = shared(cluster).await?;
        let layers = chain.iter().map(|layer| (&layer.label, &layer.manifest));
        let of_layers = of_layers(cluster, layers.chain([(label, manifest)])).await?;
        needed.extend(of_layers.into_iter().flatten());
        futures::stream::iter(&needed)
            .map(|kept| cluster.repository.extend_lock(kept, terms))
            .buffer_unordered(LOCKS_AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(needed)
    };
    let needed = extending.await.map_err(act)?;
    let replaced = needed.iter().filter(|kept| kept.replacement().is_some());
    let replaced: Vec<&str> = replaced.map(|kept| kept.key.as_str()).collect();
    Ok(replaced.first().map(|first| {
        format!(
            "{} objects that layer {label} needs were overwritten since they were stored, \"{first}\" among them: \"pgstrata check\" says \
             more, and \"pgstrata rescue\" brings them back",
            replaced.len()
        )
    }))
}

/// What all layers need: the record of the cluster, and its keys.
pub(super) async fn shared(cluster: &ClusterRepository) -> Result<Vec<KeptObject>> {
    let name = &cluster.name;
    let mut shared = cluster.repository.kept_below(&name.keys_prefix()).await?;
    shared.extend(cluster.repository.kept(&name.cluster_key()).await?);
    Ok(shared)
}

/// What each of `layers` needs for itself, in their order: its objects, and the WAL that makes it consistent.
pub(super) async fn of_layers(
    cluster: &ClusterRepository,
    layers: impl Iterator<Item = (&Label, &Manifest)>,
) -> Result<Vec<Vec<KeptObject>>> {
    let record = cluster.record().await?;
    let size = WalSegmentSize::try_from(u64::from(record.wal_segment_size))?;
    let looking = layers.map(async |(label, manifest)| {
        let own = objects_of(cluster, label);
        let (mut needed, wal) = futures::try_join!(own, wal_of(cluster, manifest, size))?;
        needed.extend(wal);
        Ok(needed)
    });
    let looking: Vec<_> = looking.collect();
    let looking = futures::stream::iter(looking).buffered(LAYERS_AT_ONCE);
    looking.try_collect().await
}

/// The objects of a layer.
async fn objects_of(cluster: &ClusterRepository, label: &Label) -> Result<Vec<KeptObject>> {
    let prefix = cluster.name.layer_prefix(label);
    let mut objects = cluster.repository.kept_below(&prefix).await?;
    objects.retain(|kept| !cluster.name.is_passing(&kept.key));
    Ok(objects)
}

/// The WAL that makes a layer consistent, and the history of its timeline, as far as they are there; and what stands in for
/// damaged files among them.
async fn wal_of(
    cluster: &ClusterRepository,
    manifest: &Manifest,
    size: WalSegmentSize,
) -> Result<Vec<KeptObject>> {
    let timeline = manifest.timeline;
    let directory = format!("{:08X}", timeline.get());
    let first = manifest.start_lsn.segment(size);
    let last = manifest.stop_lsn.segment(size);
    let mut names: Vec<String> = (first..=last)
        .map(|number| WalSegment { timeline, number }.file_name(size))
        .collect();
    names.push(format!("{directory}.history"));
    let mended = format!("{}/{directory}", cluster.name.mended_wal_prefix());
    let mut found = cluster.repository.kept_below(&mended).await?;
    found.retain(|kept| {
        let (_, file) = kept.key.rsplit_once('/').unwrap_or(("", &kept.key));
        let file = ClusterName::mended_file(file);
        names.iter().any(|name| name == file)
    });
    let keys = names
        .iter()
        .map(|name| cluster.name.wal_key(&directory, name));
    let keys: Vec<String> = keys.collect();
    let looking = keys.iter().map(|key| cluster.repository.kept(key));
    let looking = futures::stream::iter(looking).buffered(LOCKS_AT_ONCE);
    let wal: Vec<Option<KeptObject>> = looking.try_collect().await?;
    found.extend(wal.into_iter().flatten());
    Ok(found)
}

/// The layers of `catalog` that nobody can remove yet, and until when. The store is asked, whatever the record of the cluster
/// says: it may be a bucket that locks by itself.
///
/// # Errors
/// When the repository cannot be read.
pub async fn locked_layers(
    cluster: &ClusterRepository,
    catalog: &Catalog,
) -> Result<HashMap<ParentRef, Timestamp>> {
    let is_retained = cluster.repository.retention().is_some();
    if !is_retained && !cluster.repository.may_lock().await {
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
