//! The keys of a sealed cluster in the target: those of the source, or others for the recipients of the copy.

use std::sync::Arc;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::copies::{self, KeyPlan, KeysFound};
use pgstrata_store::keys::{EpochsNow, Recipients, Ring};

use super::cluster::copy_object;
use super::{Mirror, MirrorReport, NotCopied};

/// What a copy is to do to the keys of the target, and what there was when that was decided.
pub(super) struct Planned {
    ring: Arc<Ring>,
    here: KeysFound,
    there: KeysFound,
    plan: KeyPlan,
}

impl Planned {
    /// Key boxes that are to be made for recipients of the copy.
    pub(super) fn boxes_to_make(&self) -> u64 {
        u64::try_from(self.plan.give.len()).unwrap_or(u64::MAX)
    }
}

/// What a copy is to do to the keys of the target, which may not be there yet; nothing when the cluster is not sealed.
///
/// # Errors
/// As for [`copies::plan`]; `Refused` when recipients are named for a cluster that is not sealed, and when no identity of a
/// reader is there to seal for them.
pub(super) async fn plan(
    source: &ClusterRepository,
    target: &ClusterRepository,
    record: &ClusterRecord,
    recipients: Option<&Recipients>,
) -> Result<Option<Planned>> {
    if record.sealing.is_none() {
        return match recipients {
            None => Ok(None),
            Some(_) => {
                let name = source.name.as_str();
                let what = format!(
                    "recipients are given for a copy of cluster \"{name}\", which is not sealed"
                );
                Err(Error::new(Kind::Refused, what).hint(TO_SEAL))
            }
        };
    }
    let sealing = source.sealing().await?;
    let Some(ring) = sealing.ring() else {
        let what = "the cluster was not sealed a moment ago, and is now";
        return Err(Error::new(Kind::Damaged, what));
    };
    // What the copy seals later would be for whoever has replaced an epoch.
    ring.require_undoubted(source.home()).await?;
    let here = ring.find_in(source.home()).await?;
    let there = match target.repository.directory() {
        Some(directory) if !directory.exists() => KeysFound::default(),
        _ => {
            ring.require_not_ahead(target.home()).await?;
            ring.find_in(target.home()).await?
        }
    };
    let plan = copies::plan(ring, &here, &there, recipients)?;
    copies::require_read(ring, &here, &there, &plan)?;
    for (epoch, ..) in &plan.give {
        let opened = ring.require_reader(*epoch);
        opened
            .map_err(|error| error.while_doing("could not seal the copy for other recipients"))?;
    }
    Ok(Some(Planned {
        ring: Arc::clone(ring),
        here,
        there,
        plan,
    }))
}

/// How a sealed copy of a clear cluster is to be had.
pub(super) const TO_SEAL: &str = "objects are copied as they are, so a copy of a cluster that is not sealed is not sealed: \
     begin a sealed one beside it, with \"pgstrata --cluster NAME init --encrypt\" and a full backup into it";

/// Does what [`plan`] says; answers how many key boxes were made for recipients of its own. The record of an epoch, which
/// makes it exist, comes after its boxes.
///
/// # Errors
/// `Refused` when another copy has brought boxes of the other kind meanwhile; when a repository cannot be read or written.
pub(super) async fn bring(
    source: &ClusterRepository,
    target: &ClusterRepository,
    planned: Option<Planned>,
) -> Result<u64> {
    let Some(planned) = planned else {
        return Ok(0);
    };
    let (ring, plan) = (&planned.ring, &planned.plan);
    let apart = |error: Error| match error.kind() {
        Kind::AlreadyExists => error.hint(copies::CHANGED_APART),
        _ => error,
    };
    for key in &plan.boxes {
        copy_object(source, target, key).await.map_err(apart)?;
    }
    let made = copies::give(target.home(), ring, &plan.give).await?;
    if !plan.boxes.is_empty() || made > 0 {
        // Each stores its boxes and then looks, so of two copies at once at least one sees the other.
        let now = ring.find_in(target.home()).await?;
        copies::require_unmixed(&planned.here, &planned.there, &now)?;
    }
    for key in &plan.epochs {
        copy_object(source, target, key).await.map_err(apart)?;
    }
    Ok(made)
}

impl Mirror<'_> {
    /// Brings the keys of an epoch that has begun in the source since the keys of `known` were read, which is the source and
    /// becomes what it is now. Whoever has listed objects of the source before needs no other keys for them. Where the target
    /// must not have them, that is reported: what is sealed in that epoch is copied, and nobody opens it there.
    ///
    /// # Errors
    /// When a repository cannot be read or written.
    pub(super) async fn bring_new_keys(
        &self,
        known: &mut ClusterRepository,
        report: &mut MirrorReport,
    ) -> Result<()> {
        let Some(ring) = known.sealing().await?.ring() else {
            return Ok(());
        };
        let EpochsNow::Begun(epoch) = ring.now(known.home()).await? else {
            return Ok(());
        };
        let key = known.name.epoch_key(&ring.current().seal_id, epoch);
        tracing::info!("epoch {epoch} has begun while the copy ran");
        let now = known.with_keys_of(known).await?;
        let bringing = async {
            let record = now.record().await?;
            let planned = plan(&now, self.target, &record, self.recipients).await?;
            bring(&now, self.target, planned).await
        };
        match bringing.await {
            Ok(made) => report.key_boxes += made,
            Err(error) if super::is_of_layer(&error) => {
                report.left_out.push(NotCopied::broken(key, &error));
            }
            Err(error) => return Err(error.while_doing("could not copy the keys")),
        }
        *known = now;
        Ok(())
    }
}
