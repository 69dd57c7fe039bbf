//! What a repository has missed that others have: layers of the time while it was away.
//!
//! Repositories have rules of their own, so an older layer that only one of them has was expired in the other. But no rule
//! takes the newest layer: what is newer than a repository's newest one came while it was away.

use std::collections::BTreeSet;

use pgstrata_layer::label::Label;
use pgstrata_store::catalog::Catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;

/// The labels in a repository, of layers or not.
pub type Labels = BTreeSet<Label>;

/// The labels that there are in `cluster`.
///
/// # Errors
/// `Repository` when it cannot be listed.
pub async fn labels(cluster: &ClusterRepository) -> Result<Labels> {
    let prefix = cluster.name.layers_prefix();
    let names = cluster.repository.list_names(&prefix).await?;
    Ok(names.iter().filter_map(|name| Label::parse(name)).collect())
}

/// The layers of `holder`, which has the labels `held`, that are newer than all of `before`, and none of `now`: what a repository
/// had before a backup, and has after it. Oldest first.
///
/// # Errors
/// `Repository` when `holder` cannot be read.
pub async fn missed(
    (holder, held): (&ClusterRepository, &Labels),
    (before, now): (&Labels, &Labels),
) -> Result<Vec<Label>> {
    let Some(newest) = before.iter().map(Label::own_stamp).max() else {
        return Ok(Vec::new());
    };
    let is_new = |label: &Label| label.own_stamp() > newest && !now.contains(label);
    if !held.iter().any(is_new) {
        return Ok(Vec::new());
    }
    let catalog = Catalog::load(holder).await?;
    // A merged layer has the state of one that is older than itself.
    let layers = catalog
        .layers
        .iter()
        .filter(|layer| layer.manifest.replaces.is_empty());
    let missed = layers.map(|layer| layer.label.clone()).filter(is_new);
    Ok(missed.collect())
}
