//! A layer that comes into this repository out of another one, as it is: under its label, with its id, byte for byte.
//!
//! Who copies does what who makes a layer does: claim, look, store, look again, manifest. What differs: all who copy a layer
//! store the same objects, so several may do so at once, and one goes on where another was stopped. Therefore nothing is
//! removed when a copy fails, and the record of what it is to stand on keeps an expiry from giving it up for some days: a
//! label that was given up can never be used again, and the layer could not be copied here any more.
//!
//! Another copy may have made the layer while this one was stopped, and an expiry have removed it: no record is left then that
//! keeps this one from creating the manifest. So it looks at its objects once more when that is there, and takes it back.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::abandoned;
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::restoring::RestoreRecord;

use super::lease::Heartbeat;
use super::new_layer::keep_alive;
use super::presence::{WRITTEN_BY, check_own, check_stays, check_wal, host_name};
use super::removal::{check_returns, leaving_so_far};
use super::restoring::Restoring;
use super::{Layer, abandon, retain};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// A layer that this process copies, perhaps together with others.
#[derive(Debug)]
pub struct CopiedLayer {
    cluster: ClusterRepository,
    layer: Layer,
    heart: Heartbeat,
    keeping: Restoring,
    lost: Arc<Mutex<Option<Error>>>,
}

impl CopiedLayer {
    /// Claims the label of `layer`, which is to stand on `chain`, newest first, or goes on where somebody was stopped.
    /// `from` is for people.
    ///
    /// # Errors
    /// `Refused` when the label is another layer's here, or was given up; when the repository cannot be read or written.
    pub async fn begin(
        cluster: &ClusterRepository,
        layer: &Layer,
        chain: &[Arc<Layer>],
        from: &str,
    ) -> Result<Self> {
        require_free(cluster, layer).await?;
        require_peace(cluster, layer, chain).await?;
        let record = needs(layer, chain, from);
        // Before the claim: who finds that finds this.
        let keeping = Restoring::begin_copy(cluster, &layer.manifest.layer_id, &record).await?;
        let claim = ClaimRecord {
            label: layer.label.to_string(),
            layer_id: layer.manifest.layer_id.clone(),
            host: host_name(),
            pid: std::process::id(),
            started_at: Timestamp::now(),
            written_by: WRITTEN_BY.to_owned(),
        };
        if let Err(error) = create_claim(cluster, layer, &claim).await {
            keeping.failed().await;
            return Err(error);
        }
        keeping.stand_in(&claim.layer_id).await;
        let lost = Arc::new(Mutex::new(None));
        let told = Arc::clone(&lost);
        let heart = keep_alive(cluster, &claim, true, move |error| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        });
        let copied = Self {
            cluster: cluster.clone(),
            layer: layer.clone(),
            heart,
            keeping,
            lost,
        };
        match copied.stand_up(chain).await {
            Ok(()) => Ok(copied),
            Err(error) if error.kind() == Kind::Refused => {
                copied.refused().await;
                Err(error)
            }
            Err(error) => {
                copied.end(false).await;
                Err(error)
            }
        }
    }

    /// What it stands on goes, so nothing need stay for it.
    async fn refused(self) {
        self.heart.stop().await.remove_own().await;
        self.keeping.failed().await;
    }

    /// From now on somebody is at work, and on what stays.
    async fn stand_up(&self, chain: &[Arc<Layer>]) -> Result<()> {
        let (cluster, layer) = (&self.cluster, &self.layer);
        // What is there of an earlier copy may be old.
        self.heart.beat_now().await?;
        // After the claim, so that who removes sees us, or we see the removal.
        let leaving = check_stays(cluster, chain).await?;
        check_wal(&leaving, layer.manifest.start_lsn)?;
        check_returns(cluster, layer, &leaving).await
    }

    /// Whether the copy was given up by somebody meanwhile, and goes on in vain.
    ///
    /// # Errors
    /// `Refused` then.
    pub fn check(&self) -> Result<()> {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.take().map_or(Ok(()), Err)
    }

    /// Makes the layer exist here, on `chain`. All its objects and its WAL must be here; `object` is its manifest as it is
    /// in the other repository.
    ///
    /// # Errors
    /// `Refused` when an object is not here, when what it stands on or the layer itself has gone, or when the copy was given
    /// up; when the repository cannot be read or written. Then it is not known whether the layer exists; copying again finds
    /// out.
    pub async fn commit(&self, chain: &[Arc<Layer>], object: Bytes) -> Result<()> {
        let (cluster, layer) = (&self.cluster, &self.layer);
        let (claim, leaving) = futures::try_join!(
            check_own(cluster, &layer.label, &layer.manifest),
            check_stays(cluster, chain)
        )?;
        check_wal(&leaving, layer.manifest.start_lsn)?;
        check_returns(cluster, layer, &leaving).await?;
        let overwritten = retain::extend(cluster, &layer.label, &layer.manifest, chain).await?;
        if let Some(overwritten) = overwritten {
            tracing::warn!("{overwritten}");
        }
        let key = cluster.name.manifest_key(&layer.label);
        match cluster.repository.create(&key, object.clone()).await {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::AlreadyExists => {
                require_free(cluster, layer).await?;
                return Err(error.hint(
                    "if that manifest is damaged, delete it by hand while nothing else runs, and copy again",
                ));
            }
            Err(error) => return Err(error),
        }
        cluster.repository.make_durable(&key).await?;
        let committed = cluster.name.committed_key(&layer.label);
        if let Err(error) = cluster.repository.create(&committed, claim).await {
            tracing::debug!(label = %layer.label, %error, "could not note that the layer is committed: that does no harm");
        }
        // After the note, which would call the manifest of a layer lost that was removed before.
        self.require_whole(&object).await
    }

    /// Takes the manifest back when an object that it names is not there: another copy had made the layer, and somebody had
    /// removed it, before we created the manifest.
    async fn require_whole(&self, object: &Bytes) -> Result<()> {
        let (cluster, layer) = (&self.cluster, &self.layer);
        let lost = match check_own(cluster, &layer.label, &layer.manifest).await {
            Err(error) if error.kind() == Kind::Refused => error,
            checked => return checked.map(drop),
        };
        tracing::debug!(label = %layer.label, error = %lost, "the manifest is taken back");
        let key = cluster.name.manifest_key(&layer.label);
        let advice = match self.take_back(&key, object).await {
            Ok(()) => "copy it again, when it is still wanted".to_owned(),
            Err(error) => format!(
                "its manifest is there and nothing else, because {error}: delete \"{key}\", and copy again"
            ),
        };
        let what = "another copy of it was removed there before this one was complete";
        Err(Error::new(Kind::Refused, what).hint(advice))
    }

    /// Removes the note and then the manifest: the note alone would say that the manifest was lost.
    async fn take_back(&self, key: &str, object: &Bytes) -> Result<()> {
        let repository = &self.cluster.repository;
        let committed = self.cluster.name.committed_key(&self.layer.label);
        repository.delete(&committed).await?;
        match repository.get(key).await {
            Ok(found) if found == *object => repository.delete(key).await,
            Err(error) if error.kind() != Kind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The end of the copy. What a failed one has stored stays, but for its signs of life, for who copies again.
    pub async fn end(self, done: bool) {
        let beats = self.heart.stop().await;
        match done {
            true => {
                beats.remove().await;
                self.keeping.done(&self.layer.manifest.layer_id).await;
            }
            false => {
                // Nobody is at work any more: who removes there need not wait for a layer that can perhaps never be copied.
                beats.remove_own().await;
                self.keeping.copied().await;
            }
        }
    }
}

/// What must stay here until the copy is complete.
fn needs(layer: &Layer, chain: &[Arc<Layer>], from: &str) -> RestoreRecord {
    let own = std::iter::once(layer.reference());
    let below = chain.iter().map(|layer| layer.reference());
    RestoreRecord {
        layers: own.chain(below).collect(),
        start_lsn: layer.manifest.start_lsn,
        timeline: layer.manifest.timeline.get(),
        host: host_name(),
        pid: std::process::id(),
        directory: RestoreRecord::place_of_copy(layer.label.as_str(), from),
        started_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
    }
}

/// Refuses a layer that a removal here names, or something that it needs: what a copy says that it needs would keep that removal
/// from being completed, for as long as the copy is tried.
async fn require_peace(
    cluster: &ClusterRepository,
    layer: &Layer,
    chain: &[Arc<Layer>],
) -> Result<()> {
    let leaving = leaving_so_far(cluster).await?;
    check_returns(cluster, layer, &leaving).await?;
    if let Some(below) = chain.iter().find(|below| leaving.names(below)) {
        let what = format!(
            "layer {}, on which it stands, is being removed there",
            below.label
        );
        return Err(
            Error::new(Kind::Refused, what).hint("copy it again when an expire there has ended")
        );
    }
    check_wal(&leaving, layer.manifest.start_lsn)
}

/// Refuses a label of which there can be no layer here any more.
async fn require_free(cluster: &ClusterRepository, layer: &Layer) -> Result<()> {
    let key = cluster.name.manifest_key(&layer.label);
    match cluster.repository.get(&key).await {
        Ok(object) if abandoned::is_one(&object) => {
            let how = abandon::describe(&object).unwrap_or_default();
            let url = cluster.repository.url();
            let what = format!("its label was given up in {url}, so it can never be there: {how}");
            Err(Error::new(Kind::Refused, what)
                .hint("layers that do not stand on it can be copied; take a full backup to begin a new chain"))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates the claim; that of somebody who copies the same layer is as good.
async fn create_claim(
    cluster: &ClusterRepository,
    layer: &Layer,
    claim: &ClaimRecord,
) -> Result<()> {
    let key = cluster.name.claim_key(&layer.label);
    let body = Bytes::from(claim::encode(claim));
    let error = match cluster.repository.create(&key, body).await {
        Err(error) if error.kind() == Kind::AlreadyExists => error,
        created => return created,
    };
    let found = claim::decode(&cluster.repository.get(&key).await?)
        .map_err(|error| Error::from(error).while_doing(format!("could not read \"{key}\"")))?;
    if found.layer_id == claim.layer_id && found.label == claim.label {
        return Ok(());
    }
    let url = cluster.repository.url();
    tracing::debug!(%error, "the label is taken");
    Err(Error::new(
        Kind::Refused,
        format!("its label is that of another layer in {url}, begun by process {} on \"{}\"", found.pid, found.host),
    )
    .hint("the two repositories were written apart from one another; copy into one that is written by copies alone, or by backups into both"))
}
