//! Removing layers: the manifest first, so that what is half removed does not exist; the claim last.

use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{self, ParentRef};

use super::abandon::{self, Fate};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// Removes a layer that our own verdict names. Doing so again, or while another does the same, does no harm.
///
/// # Errors
/// When the repository cannot be written; the layer may then be gone, or have left objects that are harmless.
pub(super) async fn remove_layer(cluster: &ClusterRepository, layer: &ParentRef) -> Result<()> {
    let act = |error: Error| error.while_doing(format!("could not remove layer {}", layer.label));
    let Some(label) = Label::parse(&layer.label) else {
        let what = format!("\"{}\" is not the label of a layer", layer.label);
        return Err(Error::new(Kind::Damaged, what));
    };
    let removing = async {
        if !close_committed(cluster, &label, layer).await? {
            return Ok(());
        }
        remove_objects(cluster, &label).await?;
        remove_late_manifest(cluster, &label, layer).await
    };
    removing.await.map_err(act)
}

/// Removes a manifest that somebody who copied the layer, too, has created after ours was gone: he had looked at the objects
/// before they went. Who has come since, to store all of it, has claimed the label again.
async fn remove_late_manifest(
    cluster: &ClusterRepository,
    label: &Label,
    layer: &ParentRef,
) -> Result<()> {
    let key = cluster.name.manifest_key(label);
    match cluster.repository.get(&key).await {
        Ok(object) if manifest::digest(&object) == layer.manifest_digest => {}
        Err(error) if error.kind() != Kind::NotFound => return Err(error),
        _ => return Ok(()),
    }
    let claim = cluster.name.claim_key(label);
    match cluster.repository.size(&claim).await? {
        Some(_) => Ok(()),
        None => cluster.repository.delete(&key).await,
    }
}

/// Removes the manifest, and makes sure that it does not come back: its maker may have been stopped before it heard that
/// it was created, and create it again. False when there is nothing left to remove.
async fn close_committed(
    cluster: &ClusterRepository,
    label: &Label,
    layer: &ParentRef,
) -> Result<bool> {
    let key = cluster.name.manifest_key(label);
    loop {
        match cluster.repository.get(&key).await {
            Ok(object) if manifest::digest(&object) == layer.manifest_digest => {
                cluster.repository.delete(&key).await?;
            }
            Ok(object) if abandon::describe(&object).is_some() => return Ok(true),
            Ok(_) => {
                tracing::warn!(%label, "the label is another layer's by now: nothing of it is removed");
                return Ok(false);
            }
            Err(error) if error.kind() == Kind::NotFound => {
                // Somebody has removed all of it, or all but a record that stays.
                let left = cluster
                    .repository
                    .list(&cluster.name.layer_prefix(label))
                    .await?;
                if left.is_empty() {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
        if abandon::close(cluster, label).await? == Fate::Abandoned {
            return Ok(true);
        }
    }
}

/// Whether anything is left of a layer that a verdict names: the layer, or objects of it. Another layer of the label, or the
/// record that there is none, is nothing of it.
///
/// # Errors
/// When the repository cannot be read.
pub(super) async fn is_left(cluster: &ClusterRepository, layer: &ParentRef) -> Result<bool> {
    let Some(label) = Label::parse(&layer.label) else {
        return Ok(false);
    };
    let key = cluster.name.manifest_key(&label);
    match cluster.repository.get(&key).await {
        Ok(object) if manifest::digest(&object) == layer.manifest_digest => return Ok(true),
        Ok(object) if abandon::describe(&object).is_none() => return Ok(false),
        Ok(_) => {}
        Err(error) if error.kind() == Kind::NotFound => {}
        Err(error) => return Err(error),
    }
    let prefix = cluster.name.layer_prefix(&label);
    let left = cluster.repository.list(&prefix).await?;
    Ok(left.iter().any(|object| object.key != key))
}

/// Removes what an act that did not finish has left below `label`. Nothing can come of that act afterwards.
///
/// # Errors
/// `Refused` when there is a manifest after all; when the repository cannot be written.
pub async fn remove_leftover(cluster: &ClusterRepository, label: &Label) -> Result<()> {
    if abandon::close(cluster, label).await? == Fate::Committed {
        return Err(Error::new(
            Kind::Refused,
            format!("layer {label} has been finished meanwhile"),
        ));
    }
    remove_objects(cluster, label)
        .await
        .map_err(|error| error.while_doing(format!("could not remove what is left of {label}")))
}

/// Removes what our own act has stored, which has failed before it sent its manifest, and never will.
///
/// # Errors
/// When the repository cannot be written.
pub(super) async fn remove_own(cluster: &ClusterRepository, label: &Label) -> Result<()> {
    cluster.repository.end_of_creates().await;
    remove_objects(cluster, label).await
}

/// All but what stands in the manifest's place.
async fn remove_objects(cluster: &ClusterRepository, label: &Label) -> Result<()> {
    let last = [
        cluster.name.committed_key(label),
        cluster.name.claim_key(label),
    ];
    let stays = cluster.name.manifest_key(label);
    let objects = cluster
        .repository
        .list(&cluster.name.layer_prefix(label))
        .await?;
    let keys = objects.into_iter().map(|object| object.key);
    let keys: Vec<String> = keys
        .filter(|key| *key != stays && !last.contains(key))
        .collect();
    cluster.repository.delete_all(&keys).await?;
    for key in last {
        cluster.repository.delete(&key).await?;
    }
    Ok(())
}
