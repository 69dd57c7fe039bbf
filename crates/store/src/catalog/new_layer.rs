//! A layer that this process is making: claimed, kept alive, then committed or cleared away.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::Manifest;

use super::abandon;
use super::label::{LayerPlan, claim};
use super::lease::{BEAT_EVERY, Beats, Heartbeat, clocks_differ};
use super::presence::{WRITTEN_BY, commit_layer, hex, host_name};
use super::remove::remove_own;
use super::{Catalog, Layer};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Result};
use crate::keys::LayerSeal;

/// A layer of which this process has claimed the label. Gives signs of life until it ends.
#[derive(Debug)]
pub struct NewLayer {
    cluster: ClusterRepository,
    label: Label,
    id: [u8; 16],
    claim: ClaimRecord,
    /// Between which times of this host it was created.
    claimed: (Timestamp, Timestamp),
    seal: LayerSeal,
    heart: Heartbeat,
    /// Its manifest was sent, and may be there or not.
    may_exist: AtomicBool,
}

impl NewLayer {
    /// Claims a label for a layer as `plan` has it. Should the layer be given up by somebody, `lost` is told so, once:
    /// the commit would fail.
    ///
    /// # Errors
    /// When the repository cannot be written.
    pub async fn begin(
        cluster: &ClusterRepository,
        catalog: &Catalog,
        plan: LayerPlan<'_>,
        started_at: Timestamp,
        lost: impl Fn(Error) + Send + Sync + 'static,
    ) -> Result<Self> {
        let id: [u8; 16] = rand::random();
        cluster.require_newest_epoch().await?;
        let seal = cluster.sealing().await?.new_layer(id)?;
        let mut record = ClaimRecord {
            label: String::new(),
            layer_id: hex(&id),
            host: host_name(),
            pid: std::process::id(),
            started_at,
            written_by: WRITTEN_BY.to_owned(),
        };
        let before = Timestamp::now();
        let label = claim(cluster, catalog, plan, record.clone()).await?;
        let claimed = (before, Timestamp::now());
        label.as_str().clone_into(&mut record.label);
        Ok(Self {
            heart: keep_alive(cluster, &record, false, lost),
            cluster: cluster.clone(),
            label,
            id,
            claim: record,
            claimed,
            seal,
            may_exist: AtomicBool::new(false),
        })
    }

    /// The label that was claimed.
    #[must_use]
    pub fn label(&self) -> &Label {
        &self.label
    }

    /// Its claim.
    #[must_use]
    pub fn claim(&self) -> &ClaimRecord {
        &self.claim
    }

    /// What is wrong with this host's clock, when the store has noted another time for the claim; nothing when it does not
    /// tell.
    pub async fn clock_doubt(&self) -> Option<String> {
        let key = self.cluster.name.claim_key(&self.label);
        let noted = self.cluster.repository.modified(&key).await;
        clocks_differ(self.claimed, noted.ok().flatten()?)
    }

    /// What its packs and its index have in their headers.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// How its objects are sealed.
    #[must_use]
    pub fn seal(&self) -> &LayerSeal {
        &self.seal
    }

    /// The object of its manifest. `manifest` must say how the layer is sealed.
    ///
    /// # Errors
    /// When it does not.
    pub async fn encode(&self, manifest: &Manifest) -> Result<Vec<u8>> {
        self.cluster.sealing().await?.encode(manifest)
    }

    /// Makes the layer exist, on `chain`, newest layer first; see [`commit_layer`].
    ///
    /// # Errors
    /// `Refused` when it was given up, or what it stands on has gone; when the repository cannot be read or written.
    pub async fn commit(&self, chain: &[Arc<Layer>], manifest: Vec<u8>) -> Result<Option<String>> {
        // Who was taken out while the layer was made must not read it.
        let newest = self.cluster.require_newest_epoch().await;
        newest.map_err(|error| error.while_doing("the layer was given up"))?;
        let committed = commit_layer(&self.cluster, &self.label, chain, manifest).await;
        committed.map_err(|not| {
            self.may_exist.store(not.may_exist, Ordering::Relaxed);
            not.error
        })
    }

    /// Whether nobody knows if the layer exists: the answer to its manifest was lost, and so was what became of that.
    #[must_use]
    pub fn may_exist(&self) -> bool {
        self.may_exist.load(Ordering::Relaxed)
    }

    /// The end of the act, well or not. What a failed one has stored is removed as far as the repository lets us, the
    /// claim last; unless it is not known whether the layer exists.
    pub async fn end<T>(self, outcome: &Result<T>) {
        let may_exist = self.may_exist();
        let beats = self.heart.stop().await;
        let label = &self.label;
        if outcome.is_ok() {
            beats.remove().await;
            self.cluster.repository.lay_up_room().await;
        } else if may_exist {
            // The manifest may have been created, or may yet be, although we were told otherwise.
            tracing::warn!(%label, "it is not known whether the layer was committed: see info");
        } else if let Err(error) = remove_own(&self.cluster, label).await
            && !self.cluster.repository.note_left(&error)
        {
            tracing::warn!(%label, %error, "could not remove what was stored of a layer that failed: it is harmless, and listed by info");
        }
    }
}

/// Signs of life of who makes the layer that `record` claims, perhaps together with others.
pub(super) fn keep_alive(
    cluster: &ClusterRepository,
    record: &ClaimRecord,
    together: bool,
    lost: impl Fn(Error) + Send + Sync + 'static,
) -> Heartbeat {
    let label = &Label::parse(&record.label).expect("a claim has the label of a layer");
    let (name, own_label) = (cluster.name.clone(), label.clone());
    let beats = Beats {
        repository: cluster.repository.clone(),
        key: Box::new(move |number| name.beat_key(&own_label, number)),
        body: Bytes::from(claim::encode(record)),
        every: BEAT_EVERY,
        count: AtomicU32::new(0),
        own: Mutex::default(),
        may_be_there: together,
    };
    let (repository, key) = (cluster.repository.clone(), cluster.name.manifest_key(label));
    let (label, lost) = (label.clone(), Arc::new(lost));
    Heartbeat::start(beats, move || {
        let (repository, key) = (repository.clone(), key.clone());
        let (label, lost) = (label.clone(), Arc::clone(&lost));
        async move {
            let found = repository.get(&key).await.ok();
            let how = found.and_then(|object| abandon::describe(&object));
            let Some(how) = how else { return false };
            lost(abandon::given_up(&label, &how));
            true
        }
    })
}
