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

/// The layers of `holder` that a repository has missed, oldest first. The labels are those before a backup and those after
/// it, of the holder and of the repository. Missed is what the repository lacks now and what is newer than the newest that both
/// had before: two that were away one after the other have each missed something, and what is older may have been removed.
///
/// # Errors
/// `Repository` when `holder` cannot be read.
pub async fn missed(
    (holder, held_before, held): (&ClusterRepository, &Labels, &Labels),
    (before, now): (&Labels, &Labels),
) -> Result<Vec<Label>> {
    let of_both = before.intersection(held_before).map(Label::own_stamp);
    let of_one = before.iter().map(Label::own_stamp);
    let Some(newest) = of_both.max().or_else(|| of_one.max()) else {
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
