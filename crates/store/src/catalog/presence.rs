//! Making a layer exist: what it is made of, and what it stands on, is looked at once more.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use pgstrata_layer::claim;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{self, Manifest};
use pgstrata_pgdata::lsn::Lsn;

use super::abandon::{self, Fate};
use super::loss::Loss;
use super::removal::{self, Leaving};
use super::{Catalog, FETCH_AT_ONCE, Layer, retain};
pub use crate::WRITTEN_BY;
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::repository::record::require_short;

/// This host's name, as claims have it. For people alone.
pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// Lower-case hexadecimal, as manifests and claims have layer ids.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Why a layer was not committed.
#[derive(Debug)]
pub struct NotCommitted {
    /// What went wrong.
    pub error: Error,
    /// It is not known whether the layer exists, or will.
    pub may_exist: bool,
}

/// Before its manifest was sent, or when it is known that the manifest will never be there.
impl From<Error> for NotCommitted {
    fn from(error: Error) -> Self {
        Self {
            error,
            may_exist: false,
        }
    }
}

impl From<NotCommitted> for Error {
    fn from(not: NotCommitted) -> Self {
        not.error
    }
}

/// Makes a layer exist whose label has been claimed, unless an object of it is not there, or a layer of `chain`, newest
/// first, has been removed or is about to be. Answers what somebody should look at, though the layer is good.
///
/// # Errors
/// `Refused` then; when the repository cannot be read or written.
pub async fn commit_layer(
    cluster: &ClusterRepository,
    label: &Label,
    chain: &[Arc<Layer>],
    object: Vec<u8>,
) -> std::result::Result<Option<String>, NotCommitted> {
    // What we could not read back must not be written.
    let manifest = cluster.sealing().await?.manifest(&object)?;
    let key = cluster.name.manifest_key(label);
    require_short(&key, u64::try_from(object.len()).unwrap_or(u64::MAX))?;
    let (claim, leaving) = futures::try_join!(
        check_own(cluster, label, &manifest),
        check_stays(cluster, chain)
    )?;
    check_wal(&leaving, manifest.start_lsn)?;
    let overwritten = retain::extend(cluster, label, &manifest, chain).await?;
    let object = Bytes::from(object);
    if let Err(error) = cluster.repository.create(&key, object.clone()).await {
        let committed = settle(cluster, label, &object).await;
        match committed {
            Ok(true) => tracing::warn!(%label, %error, "the layer was committed all the same"),
            Ok(false) => {
                let error = match cluster.repository.get(&key).await {
                    Ok(found) if error.kind() == Kind::AlreadyExists => {
                        let how = abandon::describe(&found);
                        abandon::given_up(label, &how.unwrap_or_else(|| error.to_string()))
                    }
                    _ => error,
                };
                return Err(error.into());
            }
            Err(unknown) => {
                tracing::debug!(%label, error = %unknown, "what became of the manifest is not known");
                return Err(NotCommitted {
                    error,
                    may_exist: true,
                });
            }
        }
    }
    // From here on nobody creates the manifest again: who removes the layer need not leave a record.
    if let Err(error) = cluster
        .repository
        .create(&cluster.name.committed_key(label), claim)
        .await
    {
        tracing::debug!(%label, %error, "could not note that the layer is committed: that does no harm");
    }
    Ok(overwritten)
}

/// After a manifest could not be created, or was and its answer was lost: true when it is there, false when it never
/// will be.
async fn settle(cluster: &ClusterRepository, label: &Label, object: &Bytes) -> Result<bool> {
    if abandon::abandon(cluster, label).await? == Fate::Abandoned {
        return Ok(false);
    }
    let key = cluster.name.manifest_key(label);
    if cluster.repository.get(&key).await? != *object {
        let what = format!("\"{key}\" is not the manifest that was to be created");
        return Err(Error::new(Kind::Damaged, what));
    }
    cluster.repository.make_durable(&key).await?;
    Ok(true)
}

/// Refuses when the claim is not there or not ours, or an object that the manifest names is not there in its length.
/// Answers the claim.
pub(super) async fn check_own(
    cluster: &ClusterRepository,
    label: &Label,
    manifest: &Manifest,
) -> Result<Bytes> {
    let (key, prefix) = (
        cluster.name.claim_key(label),
        cluster.name.layer_prefix(label),
    );
    let (claim, objects) = futures::join!(
        cluster.repository.get(&key),
        cluster.repository.list(&prefix)
    );
    let claim = match claim {
        Ok(claim) => claim,
        Err(error) if error.kind() == Kind::NotFound => {
            return Err(abandon::given_up(label, "its claim is gone"));
        }
        Err(error) => return Err(error),
    };
    let id = claim::decode(&claim)
        .map_err(|error| Error::from(error).while_doing(format!("could not read \"{key}\"")))?
        .layer_id;
    if id != manifest.layer_id {
        return Err(abandon::given_up(label, "its claim is another's"));
    }
    let objects = objects?;
    let sizes: BTreeMap<&str, u64> = objects
        .iter()
        .map(|object| (object.key.as_str(), object.size_bytes))
        .collect();
    match Loss::of(&cluster.name, label, manifest, &sizes) {
        None => Ok(claim),
        Some(loss) => Err(abandon::given_up(label, &loss.describe())),
    }
}

/// Refuses when a layer of `chain`, newest first, has been removed or is about to be, unless a merged one has taken its
/// place. Whoever calls it has claimed the label of the layer that is to stand on them. Answers what else is going.
///
/// # Errors
/// `Refused` then; when the repository cannot be read.
pub async fn check_stays(cluster: &ClusterRepository, chain: &[Arc<Layer>]) -> Result<Leaving> {
    let leaving = removal::leaving(cluster).await?;
    let Some(newest) = chain.first() else {
        return Ok(leaving);
    };
    let stays = |layer: &Layer| !leaving.names(layer);
    // Read, not looked up: a record that it is gone may have its place.
    let looking = chain.iter().map(|layer| async {
        let object = match cluster
            .repository
            .get(&cluster.name.manifest_key(&layer.label))
            .await
        {
            Ok(object) => object,
            Err(error) if error.kind() == Kind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok::<bool, Error>(manifest::digest(&object) == layer.manifest_digest && stays(layer))
    });
    let there: Vec<bool> = futures::stream::iter(looking)
        .buffer_unordered(FETCH_AT_ONCE)
        .try_collect()
        .await?;
    if there.iter().all(|there| *there) {
        return Ok(leaving);
    }
    let mut catalog = Catalog::load(cluster).await?;
    catalog.layers.retain(stays);
    let parent = newest.reference();
    let standing = catalog.standing_for(&parent);
    match standing.is_some_and(|layer| catalog.chain(&layer.label).is_ok()) {
        true => Ok(leaving),
        false => Err(Error::new(
            Kind::Refused,
            format!(
                "layer {} or one that it stands on was removed in the meantime",
                newest.label
            ),
        )
        .hint(
            "start again; when that does not help, \"pgstrata expire --dry-run\" shows a removal that was begun and not \
             completed",
        )),
    }
}

/// Refuses when WAL of a layer that starts there is going away. `leaving` is to be of the time of the claim: whoever
/// has looked before it did not know that the layer would be.
///
/// # Errors
/// `Refused` then.
pub fn check_wal(leaving: &Leaving, start_lsn: Lsn) -> Result<()> {
    match &leaving.wal_before {
        Some((before, id)) if start_lsn < *before => {
            let what = format!(
                "WAL before {before} is being removed, by the removal \"{id}\", and the layer starts at {start_lsn}"
            );
            Err(Error::new(Kind::Refused, what).hint(format!(
                "start again, when the server has come further. When it was taken back since, as by a restore of an older layer, run \
                 \"pgstrata expire\": that ends a removal of which nothing is left. When that is refused, and no expire and no merge \
                 runs, delete \"removal/{id}/wanted\" and then \"removal/{id}/verdict\" of the cluster"
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses when one of `chain`, newest first, has been removed or is about to be, also where a merged one takes its place; and
/// when WAL behind the newest is, if what is to come of it `goes_on` behind that layer. Whoever calls it has said in the repository
/// that he needs them, unless he may only read (`is_known`): a remover who announces later finds that, and who did before is
/// found here.
///
/// # Errors
/// `Busy` then; when the repository cannot be read.
pub async fn require_staying(
    cluster: &ClusterRepository,
    chain: &[Arc<Layer>],
    goes_on: bool,
    is_known: bool,
) -> Result<()> {
    let mut found = match is_known {
        true => removal::leaving(cluster).await,
        false => removal::leaving_so_far(cluster).await,
    };
    // Who restores may have the right to create nothing but his own record.
    if is_known && matches!(&found, Err(error) if error.kind() == Kind::Repository) {
        found = removal::leaving_so_far(cluster).await;
    }
    let leaving = match found {
        Err(error) if error.is_of_one_object() => {
            tracing::warn!(%error, "it is not known whether the layers are being removed");
            return Ok(());
        }
        found => found?,
    };
    let busy = |what: String| {
        Err(Error::new(Kind::Busy, what).hint(
            "nothing was changed; restore into another directory, which loses nothing when the layer goes meanwhile, or choose another \
             layer; \"pgstrata expire --dry-run\" shows a removal that was begun and not completed",
        ))
    };
    let mut going = chain.iter();
    if let Some(layer) = going.find(|layer| leaving.names(layer)) {
        return busy(format!("layer {} is being removed", layer.label));
    }
    let gone = removed_since(cluster, chain.iter().map(|layer| layer.known_as())).await?;
    if let Some(label) = gone.first() {
        return busy(format!(
            "layer {label} was removed since the restore was planned"
        ));
    }
    let wal = chain.first().filter(|_| goes_on);
    match wal.map(|newest| check_wal(&leaving, newest.manifest.start_lsn)) {
        Some(Err(error)) => busy(error.to_string()),
        _ => Ok(()),
    }
}

/// Those of `layers`, by their labels and the digests of their manifests, whose manifest is not there any more: they were
/// removed since they were listed.
///
/// # Errors
/// When the repository cannot be read.
pub async fn removed_since<'l>(
    cluster: &ClusterRepository,
    layers: impl Iterator<Item = (&'l Label, &'l str)>,
) -> Result<Vec<Label>> {
    let looking = layers.map(|(label, digest)| async move {
        let key = cluster.name.manifest_key(label);
        match cluster.repository.get(&key).await {
            Ok(object) => Ok((manifest::digest(&object) != digest).then_some(label)),
            Err(error) if error.kind() == Kind::NotFound => Ok(Some(label)),
            Err(error) => Err(error),
        }
    });
    let found: Vec<Option<&Label>> = futures::stream::iter(looking)
        .buffered(FETCH_AT_ONCE)
        .try_collect()
        .await?;
    Ok(found.into_iter().flatten().cloned().collect())
}

/// What kept an act from reading `layers`: what it says, or that somebody has removed one of them meanwhile. An object
/// that is missing then is no damage.
pub async fn unless_removed(
    cluster: &ClusterRepository,
    layers: &[Arc<Layer>],
    error: Error,
) -> Error {
    let about_objects = [Kind::Damaged, Kind::NotFound, Kind::WalMissing];
    if !about_objects.contains(&error.kind()) {
        return error;
    }
    let gone = removed_since(cluster, layers.iter().map(|layer| layer.known_as())).await;
    let Some(label) = gone.ok().and_then(|gone| gone.into_iter().next()) else {
        return error;
    };
    tracing::debug!(%label, %error, "a layer has gone meanwhile");
    Error::new(
        Kind::Busy,
        format!("layer {label} was removed by an expiry or a merge while it was read"),
    )
    .hint("run it again")
}
