//! What commands leave that may not delete: objects that served for a moment. Nobody reads them.

use std::collections::BTreeSet;

use super::Catalog;
use super::lease::{LEASE, StoreTime};
use crate::cluster::ClusterRepository;
use crate::error::Result;
use crate::repository::PROBE;

/// Removes probe objects, objects that were made to learn the time, and signs of life of layers that are finished.
/// Answers how many they were.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn collect_left(
    cluster: &ClusterRepository,
    catalog: &Catalog,
    now: StoreTime,
) -> Result<usize> {
    let repository = &cluster.repository;
    let home = format!("{}/{PROBE}", cluster.name.as_str());
    let mut left = repository.list_level(cluster.name.as_str()).await?;
    left.retain(|object| object.key.starts_with(&home));
    left.extend(repository.list(&cluster.name.clock_prefix()).await?);
    let finished: BTreeSet<&str> = catalog.layers.iter().map(|l| l.label.as_str()).collect();
    let layers = cluster.name.layers_prefix();
    let is_beat = |key: &str| {
        let name = key[layers.len()..].trim_start_matches('/').split_once('/');
        name.is_some_and(|(label, rest)| finished.contains(label) && rest.starts_with("beat-"))
    };
    let mut beats = repository.list(&layers).await?;
    beats.retain(|object| is_beat(&object.key));
    left.append(&mut beats);
    // Somebody may be about to look for a young one.
    left.retain(|object| now.since(object.modified) > LEASE);
    let keys: Vec<String> = left.into_iter().map(|object| object.key).collect();
    repository.delete_all(&keys).await?;
    Ok(keys.len())
}
