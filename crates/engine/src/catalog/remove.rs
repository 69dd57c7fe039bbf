//! Removing layers: the manifest first, so that what is half removed does not exist; the claim last.

use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;

use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// Removes a layer. The caller knows that no other stands on it.
///
/// # Errors
/// When the repository cannot be written; the layer may then be gone, or have left objects that are harmless.
pub(crate) async fn remove_layer(
    repository: &Repository,
    cluster: &ClusterName,
    label: &Label,
) -> Result<()> {
    let act = || format!("could not remove layer {label}");
    let manifest = cluster.manifest_key(label);
    repository
        .delete(&manifest)
        .await
        .map_err(|error| error.while_doing(act()))?;
    remove_objects(repository, cluster, label)
        .await
        .map_err(|error| error.while_doing(act()))
}

/// Removes what an act that did not finish has left below `label`.
///
/// # Errors
/// `Refused` when there is a manifest after all; when the repository cannot be written.
pub async fn remove_leftover(
    repository: &Repository,
    cluster: &ClusterName,
    label: &Label,
) -> Result<()> {
    if repository
        .size(&cluster.manifest_key(label))
        .await?
        .is_some()
    {
        return Err(Error::new(
            Kind::Refused,
            format!("layer {label} has been finished meanwhile"),
        ));
    }
    remove_objects(repository, cluster, label)
        .await
        .map_err(|error| error.while_doing(format!("could not remove what is left of {label}")))
}

async fn remove_objects(
    repository: &Repository,
    cluster: &ClusterName,
    label: &Label,
) -> Result<()> {
    let claim = cluster.claim_key(label);
    for object in repository.list(&cluster.layer_prefix(label)).await? {
        if object.key != claim {
            repository.delete(&object.key).await?;
        }
    }
    repository.delete(&claim).await
}
