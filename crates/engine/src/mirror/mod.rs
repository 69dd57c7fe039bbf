//! Copying layers, with all that is said of them, and archived WAL out of one repository into another, without the server.
//!
//! Objects are copied as they are stored, each checked on its way; what is there already is not sent again, so a copy that
//! was stopped goes on where it was. A layer appears in the target when everything it needs is there: the layers it stands
//! on, its WAL, its objects, its marks; its manifest comes last. [`pgstrata_store::catalog::CopiedLayer`] says why that is
//! safe beside expiries, merges and other copies.
//!
//! A layer that is damaged in the source, or was removed there meanwhile, is left out and reported; the others are copied.
//! What it stands on may be lost in the source, where the target has that.

mod cluster;
mod keys;
mod layer;
mod missed;
mod place;
mod released;
mod wal;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::restoring::RestoreRecord;
use pgstrata_store::archive::Archive;
use pgstrata_store::catalog::{self, Catalog, CopiedLayer, Layer, Loss, Restoring};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::Recipients;
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;
use serde::Serialize;

use crate::server::apart::require_apart;

pub use missed::{Labels, labels, missed};
use wal::BothArchives;

/// What to copy.
#[derive(Clone, Debug, Default)]
pub struct MirrorOptions {
    /// Layers to copy, with those that they stand on; empty: all, and the archive.
    pub labels: Vec<Label>,
    /// Objects on their way at once; 0: one per core.
    pub jobs: usize,
    /// Who shall open the copy of a sealed cluster; `None`: who opens the source, or whom an earlier copy has named.
    pub recipients: Option<Recipients>,
    /// The cluster's data directory, where it is known on this host: no copy lies among its files.
    pub data_directory: Option<PathBuf>,
}

/// A layer in a plan or a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MirroredLayer {
    /// Its label.
    pub label: String,
    /// Objects that were, or would be, stored.
    pub objects: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// A layer, a file of the archive or a record that was not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotCopied {
    /// The label of the layer, the name of the file, the key of the record.
    pub label: String,
    /// Why.
    pub why: String,
    /// What kind of error it is.
    #[serde(skip)]
    pub kind: Kind,
    /// Whether nothing is wrong with it: it was removed meanwhile, or its label cannot be had in the target, or that is so of
    /// what it stands on.
    #[serde(skip)]
    pub is_sound: bool,
    /// What can be done about it.
    #[serde(skip)]
    pub hint: Option<String>,
    /// When copying it has failed, if that was tried and something is wrong with it.
    #[serde(skip)]
    pub failed_at: Option<Instant>,
}

/// A layer that is broken in the source is so in the next round, too; who mends it waits that long at most. Each try says
/// in the target that somebody is at work, and nothing is removed there meanwhile.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(300);

/// What was copied, or would be.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MirrorReport {
    /// Whether it was done.
    pub done: bool,
    /// Where from.
    pub from: String,
    /// Where to.
    pub to: String,
    /// Whether the cluster is new there.
    pub new_cluster: bool,
    /// Layers that were copied or completed, oldest first.
    pub layers: Vec<MirroredLayer>,
    /// Layers that were there already.
    pub present: u64,
    /// Layers that were not copied.
    pub left_out: Vec<NotCopied>,
    /// Files of the archive.
    pub wal_files: u64,
    /// Their size in bytes.
    pub wal_bytes: u64,
    /// Pins, annotations and other records.
    pub records: u64,
    /// Key boxes for recipients of the copy.
    pub key_boxes: u64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Those of `others` in which a layer of `source` would be the same, byte for byte: the cluster is there, and sealed alike.
/// One that cannot be asked is none of them.
///
/// # Errors
/// When the record of the cluster in `source` cannot be read.
pub async fn siblings(
    source: &ClusterRepository,
    others: Vec<ClusterRepository>,
) -> Result<Vec<ClusterRepository>> {
    let record = source.record().await?;
    let mut alike = Vec::new();
    for other in others {
        match cluster::compare(source, &other, &record).await {
            Ok(false) => alike.push(other),
            Ok(true) => {}
            Err(error) => {
                tracing::warn!("{} does not take part: {error}", other.repository.url());
            }
        }
    }
    Ok(alike)
}

/// Says what a copy would do; changes nothing.
///
/// # Errors
/// When a repository cannot be read, or the target is of another cluster.
pub async fn plan(
    source: &ClusterRepository,
    target: &ClusterRepository,
    options: &MirrorOptions,
) -> Result<MirrorReport> {
    let mut report = MirrorReport {
        from: source.repository.url().to_owned(),
        to: target.repository.url().to_owned(),
        ..MirrorReport::default()
    };
    options.require_apart(target).await?;
    let record = source.record().await?;
    report.new_cluster = cluster::compare(source, target, &record).await?;
    match report.new_cluster {
        true => target.require_lock(&record).await?,
        false => cluster::require_second(source, target, false).await?,
    }
    let keys = keys::plan(source, target, &record, options.recipients.as_ref()).await?;
    report.key_boxes = keys.map_or(0, |planned| planned.boxes_to_make());
    let target = &target.with_keys_of(source).await?;
    let is_new = report.new_cluster;
    let both = BothSides::read(source, target, options, (is_new, &[])).await?;
    report.present = both.present;
    report.left_out = both.left_out.clone();
    for layer in &both.wanted {
        let there = (!report.new_cluster).then_some(target);
        report
            .layers
            .push(layer::missing(source, there, layer).await?);
    }
    let from = Archive::load(source).await?;
    let to = match report.new_cluster {
        true => None,
        false => Some(Archive::load(target).await?),
    };
    let listed = BothArchives::list(&from, to.as_ref()).await?;
    if options.labels.is_empty() {
        let files = listed.missing(from.segment_size(), both.oldest_lsn());
        report.wal_files = u64::try_from(files.len()).unwrap_or(u64::MAX);
        report.wal_bytes = files.iter().map(|(_, size)| size).sum();
    }
    Ok(report)
}

/// Copies. What could be copied is there when it returns; see [`MirrorReport::left_out`] for the rest.
///
/// # Errors
/// `Refused` when the target is of another cluster, or sealed in another way; when a repository cannot be read or written.
/// What has been copied by then is there, and copying again goes on.
pub async fn execute(
    source: &ClusterRepository,
    target: &ClusterRepository,
    options: &MirrorOptions,
    progress: &Progress,
) -> Result<MirrorReport> {
    let mut report = MirrorReport::default();
    again(source, target, options, progress, &mut report).await?;
    Ok(report)
}

/// Copies what came since, as [`execute`] does, and adds it to `report`: also what was copied before an error.
///
/// # Errors
/// As those of [`execute`].
pub async fn again(
    source: &ClusterRepository,
    target: &ClusterRepository,
    options: &MirrorOptions,
    progress: &Progress,
    report: &mut MirrorReport,
) -> Result<()> {
    let started = Instant::now();
    report.from = source.repository.url().to_owned();
    report.to = target.repository.url().to_owned();
    options.require_apart(target).await?;
    let record = source.record().await?;
    if report.done {
        // It was there before: when it has gone, a new one in its place would only hide that.
        target.record().await?;
    }
    let recipients = options.recipients.as_ref();
    let (is_new, key_boxes) = cluster::make(source, target, &record, recipients).await?;
    report.new_cluster |= is_new;
    report.key_boxes += key_boxes;
    // What was found out of a cluster that was not there is not what it is.
    let target = &target.with_keys_of(source).await?;
    let known = (false, &report.left_out[..]);
    let both = BothSides::read(source, target, options, known).await?;
    report.present = both.present;
    report.left_out = both.left_out.clone();
    let mirror = Mirror {
        source,
        target,
        from: Archive::load(source).await?,
        to: Archive::load(target).await?,
        jobs: limits::workers(options.jobs),
        recipients,
        progress,
    };
    let keeping = both.say_what_is_needed(source, target).await;
    let copied = mirror.run(&both, options, report).await;
    if let Some(keeping) = keeping {
        keeping.failed().await;
    }
    report.seconds += started.elapsed().as_secs_f64();
    copied?;
    target.repository.lay_up_room().await;
    report.done = true;
    Ok(())
}

impl MirrorOptions {
    async fn require_apart(&self, target: &ClusterRepository) -> Result<()> {
        match &self.data_directory {
            Some(directory) => require_apart(&target.repository, directory).await,
            None => Ok(()),
        }
    }
}

/// What there is in both repositories.
struct BothSides {
    source: Catalog,
    target: Catalog,
    /// Layers to copy or to complete, those first on which others stand.
    wanted: Vec<Arc<Layer>>,
    /// Layers that are there.
    present: u64,
    left_out: Vec<NotCopied>,
    /// Labels of layers that are being removed in the source; looked up when a chain is broken there.
    leaving: BTreeSet<Label>,
}

impl BothSides {
    async fn read(
        source: &ClusterRepository,
        target: &ClusterRepository,
        options: &MirrorOptions,
        (is_new, left_out_before): (bool, &[NotCopied]),
    ) -> Result<Self> {
        let mut both = Self {
            source: Catalog::examine(source).await?,
            target: match is_new {
                true => Catalog::default(),
                false => catalog::examine_as_verified(target).await?,
            },
            wanted: Vec::new(),
            present: 0,
            left_out: Vec::new(),
            leaving: BTreeSet::new(),
        };
        let here = &both.source;
        let is_whole = |layer: &Layer| here.whole(&layer.label).is_ok();
        if !here.layers.iter().all(is_whole) {
            both.leaving = catalog::being_removed(source).await?;
        }
        both.choose(&options.labels)?;
        both.leave_out_again(left_out_before);
        Ok(both)
    }

    /// Pure: which layers are to be copied.
    fn choose(&mut self, labels: &[Label]) -> Result<()> {
        let mut asked: Vec<ParentRef> = Vec::new();
        for label in labels {
            asked.extend(self.way_of(label)?);
        }
        let mut coming: HashSet<ParentRef> = HashSet::new();
        for layer in &self.source.layers {
            let reference = layer.reference();
            if !labels.is_empty() && !asked.contains(&reference) {
                continue;
            }
            let is_there = self.target.layers.holds(&reference);
            if is_there && !self.target.losses.contains_key(&layer.label) {
                match self.target.found_damaged.get(&layer.label) {
                    None => self.present += 1,
                    Some(at) => self.left_out.push(damaged_there(&layer.label, *at)),
                }
            } else if let Err(error) = self.can_come(layer, &coming) {
                let left = self.without_base(layer, &error, &self.left_out);
                self.left_out.push(left);
            } else {
                coming.insert(reference);
                self.wanted.push(Arc::new(layer.clone()));
            }
        }
        if labels.is_empty() {
            for (label, error) in &self.source.damaged {
                let broken = NotCopied::broken(label.to_string(), error);
                self.left_out.push(broken);
            }
        }
        Ok(())
    }

    /// The layer of that label and those of the source on which it stands, newest first, down to one that can stand on what is in
    /// the target.
    fn way_of(&self, label: &Label) -> Result<Vec<ParentRef>> {
        let mut way: Vec<ParentRef> = Vec::new();
        let mut next = Some(self.source.layer(label)?);
        // A chain that somebody has tampered with may be a circle.
        while let Some(layer) = next.filter(|_| way.len() < self.source.layers.len()) {
            way.push(layer.reference());
            let parent = layer.manifest.parent.as_ref();
            let lacking = parent.filter(|parent| !self.stands_there(parent));
            next = lacking.and_then(|parent| self.source.standing_for(parent));
        }
        Ok(way)
    }

    /// Whether the layer has what it needs: its own objects in the source, and what it stands on in the source or the target. Those
    /// of `coming` will be there.
    fn can_come(&self, layer: &Layer, coming: &HashSet<ParentRef>) -> Result<()> {
        let Err(error) = self.source.whole(&layer.label) else {
            return Ok(());
        };
        let loss = self.source.losses.get(&layer.label);
        let parent = layer.manifest.parent.as_ref();
        let stands = parent.is_some_and(|parent| {
            let below = self.source.standing_for(parent).map(Layer::reference);
            self.stands_there(parent) || below.is_some_and(|below| coming.contains(&below))
        });
        match stands && !loss.is_some_and(Loss::stops_restores) {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Whether who names `parent` can stand on what is in the target, which may be another layer of the same state.
    fn stands_there(&self, parent: &ParentRef) -> bool {
        let there = self.target.standing_for(parent);
        there.is_some_and(|there| self.target.whole(&there.label).is_ok())
    }

    /// A layer that is left out because of `error`, which may say that it has nothing to stand on. `left_out` are those before it.
    fn without_base(&self, layer: &Layer, error: &Error, left_out: &[NotCopied]) -> NotCopied {
        NotCopied {
            is_sound: self.is_sound_below(layer, error, left_out),
            ..NotCopied::broken(layer.label.to_string(), error)
        }
    }

    /// Whether nothing is wrong with a layer that has nothing to stand on, as `error` says: it was left out as sound, or is being
    /// removed in the source.
    fn is_sound_below(&self, layer: &Layer, error: &Error, left_out: &[NotCopied]) -> bool {
        let parent = layer.manifest.parent.as_ref();
        let Some(parent) = parent.filter(|_| error.kind() == Kind::NotFound) else {
            return false;
        };
        match self.source.standing_for(parent) {
            Some(below) => {
                let (label, mut left_out) = (below.label.as_str(), left_out.iter());
                left_out.any(|left| left.is_sound && left.label == label)
            }
            None => {
                let gone = Label::parse(&parent.label);
                gone.is_some_and(|gone| self.leaving.contains(&gone))
            }
        }
    }

    /// Those that were broken when they were tried a moment ago are not tried now.
    fn leave_out_again(&mut self, before: &[NotCopied]) {
        let is_fresh = |left: &&NotCopied| {
            let ago = left.failed_at.map(|at| at.elapsed());
            !left.is_sound && ago.is_some_and(|ago| ago < TRIED_AGAIN_AFTER)
        };
        let fresh: Vec<&NotCopied> = before.iter().filter(is_fresh).collect();
        let left_out = &mut self.left_out;
        self.wanted.retain(|layer| {
            let label = layer.label.as_str();
            let known = fresh.iter().find(|left| left.label == label);
            left_out.extend(known.map(|left| (*left).clone()));
            known.is_none()
        });
    }

    /// Whether a merged layer of the target has taken the place of `layer`, which a merge there has removed: its label may
    /// have been given up by that.
    fn is_merged_there(&self, layer: &Layer) -> bool {
        self.stands_there(&layer.reference())
    }

    /// Where recovery of the oldest layer begins that will be there: WAL before that is of no use.
    fn oldest_lsn(&self) -> Option<pgstrata_pgdata::Lsn> {
        let there = self.target.layers.iter();
        let there = there.map(|layer| layer.manifest.start_lsn);
        let wanted = self.wanted.iter().map(|layer| layer.manifest.start_lsn);
        there.chain(wanted).min()
    }

    /// So that what is to be copied is not expired in the source meanwhile. A source that cannot be written is read all
    /// the same.
    async fn say_what_is_needed(
        &self,
        source: &ClusterRepository,
        target: &ClusterRepository,
    ) -> Option<Restoring> {
        let first = self.wanted.first()?;
        let record = RestoreRecord {
            layers: self.wanted.iter().map(|layer| layer.reference()).collect(),
            start_lsn: self
                .wanted
                .iter()
                .map(|layer| layer.manifest.start_lsn)
                .min()?,
            timeline: first.manifest.timeline.get(),
            host: catalog::host_name(),
            pid: std::process::id(),
            directory: format!("copy to {}", target.repository.url()),
            started_at: Timestamp::now(),
            written_by: catalog::WRITTEN_BY.to_owned(),
        };
        match Restoring::begin(source, &record).await {
            Ok(keeping) => Some(keeping),
            Err(error) => {
                tracing::debug!(%error, "the source is not told what is copied: an expiry there may remove it meanwhile");
                None
            }
        }
    }
}

impl NotCopied {
    /// What is as it should not be.
    fn broken(name: String, error: &Error) -> Self {
        Self {
            label: name,
            why: error.to_string(),
            kind: error.kind(),
            is_sound: false,
            hint: error.hint_text().map(str::to_owned),
            failed_at: None,
        }
    }

    /// A layer that could not be copied. That it was removed meanwhile, or that its label cannot be had, has kinds of its own; what
    /// exists with other contents is damaged, here or there.
    fn tried(layer: &Layer, error: &Error) -> Self {
        let kinds = [Kind::NotFound, Kind::Busy, Kind::Refused];
        let is_sound = kinds.contains(&error.kind());
        Self {
            is_sound,
            failed_at: (!is_sound).then(Instant::now),
            ..Self::broken(layer.label.to_string(), error)
        }
    }
}

/// Nothing that is there is overwritten, whatever a verification has found of it.
fn damaged_there(label: &Label, at: Timestamp) -> NotCopied {
    let why =
        format!("it is there, and a verification of the target has found it damaged, at {at}");
    let advice = format!(
        "delete the objects that \"pgstrata verify {label}\" names in the target, copy again, and verify"
    );
    NotCopied::broken(
        label.to_string(),
        &Error::new(Kind::Damaged, why).hint(advice),
    )
}

/// A copy under way.
struct Mirror<'a> {
    source: &'a ClusterRepository,
    target: &'a ClusterRepository,
    from: Archive,
    to: Archive,
    jobs: usize,
    recipients: Option<&'a Recipients>,
    progress: &'a Progress,
}

/// Layers that will be in the target: those of its catalog, and those copied since.
struct Standing<'a> {
    target: &'a Catalog,
    copied: HashMap<ParentRef, Arc<Layer>>,
}

impl Standing<'_> {
    /// What a layer stands on in the target, newest first.
    fn chain_below(&self, layer: &Layer) -> Result<Vec<Arc<Layer>>> {
        let mut chain = Vec::new();
        let mut next = layer.manifest.parent.clone();
        while let Some(parent) = next {
            if let Some(found) = self.copied.get(&parent) {
                chain.push(Arc::clone(found));
                next = found.manifest.parent.clone();
                continue;
            }
            let Some(found) = self.target.standing_for(&parent) else {
                let label = &parent.label;
                let what = format!("layer {label}, on which it stands, is not in the target");
                return Err(Error::new(Kind::NotFound, what));
            };
            let rest = self.target.chain(&found.label)?.into_iter();
            chain.extend(rest.map(|layer| Arc::new(layer.clone())));
            break;
        }
        Ok(chain)
    }

    fn add(&mut self, layer: &Arc<Layer>) {
        let names = layer.manifest.replaces.iter().cloned();
        for name in names.chain([layer.reference()]) {
            self.copied.insert(name, Arc::clone(layer));
        }
    }
}

impl Mirror<'_> {
    async fn run(
        &self,
        both: &BothSides,
        options: &MirrorOptions,
        report: &mut MirrorReport,
    ) -> Result<()> {
        let total = both.wanted.iter().map(|layer| layer.manifest.pack_bytes);
        self.progress.set_total(total.sum());
        // Whatever is added leads on from what is there.
        let listed = BothArchives::list(&self.from, Some(&self.to)).await?;
        // Of an epoch that has begun since the keys were copied there may be layers and WAL among them.
        let mut known = self.source.clone();
        self.bring_new_keys(&mut known, report).await?;
        let is_all = options.labels.is_empty();
        let mut judged = BTreeSet::new();
        if is_all {
            // Who finds a hole there knows that it was meant, also when this copy is killed.
            self.released(both, (&listed, Some(&listed)), &mut judged, report)
                .await?;
        }
        cluster::copy_distrust(self.source, self.target, report).await?;
        self.layers(both, report).await?;
        if is_all {
            self.rest(both, (listed, judged), &mut known, report)
                .await?;
        }
        // An object may have been stored again meanwhile, in place of a damaged one.
        self.bring_new_keys(&mut known, report).await
    }

    /// The layers that are wanted, each when what it stands on is there.
    async fn layers(&self, both: &BothSides, report: &mut MirrorReport) -> Result<()> {
        let mut standing = Standing {
            target: &both.target,
            copied: HashMap::new(),
        };
        for layer in &both.wanted {
            let act = format!("could not copy layer {}", layer.label);
            let doing = |error: Error| error.while_doing(&act);
            let chain = match standing.chain_below(layer) {
                Err(error) if is_of_layer(&error) => {
                    let left = both.without_base(layer, &error, &report.left_out);
                    report.left_out.push(left);
                    continue;
                }
                chain => chain.map_err(doing)?,
            };
            match self.layer(layer, &chain).await {
                Ok((copied, marks)) => {
                    report.layers.push(copied);
                    report.records += marks;
                    standing.add(layer);
                }
                Err(error) if error.kind() == Kind::Refused && both.is_merged_there(layer) => {
                    tracing::info!(label = %layer.label, "a layer is there as part of a merged one");
                    report.present += 1;
                }
                Err(error) if is_of_layer(&error) => {
                    report.left_out.push(NotCopied::tried(layer, &error));
                    // It may be WAL that another server has archived meanwhile.
                    self.require_one_server_after(&error).await?;
                }
                Err(error) => return Err(doing(error)),
            }
        }
        Ok(())
    }

    /// What is not of layers that are copied now. `before`: the archives as this copy has found them, and the records that it
    /// has judged by them.
    async fn rest(
        &self,
        both: &BothSides,
        (before, mut judged): (BothArchives, BTreeSet<String>),
        known: &mut ClusterRepository,
        report: &mut MirrorReport,
    ) -> Result<()> {
        for layer in &both.source.layers {
            if both.target.layers.holds(&layer.reference()) {
                let marks = catalog::mark::copy(self.source, self.target, layer).await?;
                report.records += u64::try_from(marks).unwrap_or(u64::MAX);
            }
        }
        let now = match both.wanted.is_empty() {
            true => None,
            false => Some(BothArchives::list(&self.from, Some(&self.to)).await?),
        };
        self.bring_new_keys(known, report).await?;
        self.wal((both, now.as_ref().unwrap_or(&before)), report)
            .await?;
        // What was given up while the WAL was copied is known by now.
        self.released(both, (&before, None), &mut judged, report)
            .await
    }

    /// One layer with its marks and its WAL.
    async fn layer(
        &self,
        layer: &Arc<Layer>,
        chain: &[Arc<Layer>],
    ) -> Result<(MirroredLayer, u64)> {
        let from = self.source.repository.url();
        let copy = CopiedLayer::begin(self.target, layer, chain, from).await?;
        let done = self.objects_of(layer, chain, &copy).await;
        copy.end(done.is_ok()).await;
        match done {
            Ok(done) => Ok(done),
            Err(error) => {
                let layers = [Arc::clone(layer)];
                Err(catalog::unless_removed(self.source, &layers, error).await)
            }
        }
    }

    async fn objects_of(
        &self,
        layer: &Arc<Layer>,
        chain: &[Arc<Layer>],
        copy: &CopiedLayer,
    ) -> Result<(MirroredLayer, u64)> {
        // The pin first: an expiry finds it as soon as it finds the layer.
        let marks = catalog::mark::copy(self.source, self.target, layer).await?;
        let mut copied = layer::copy(self, layer, copy).await?;
        self.wal_of(layer).await?;
        copy.check()?;
        let object = self.manifest(layer).await?;
        copied.objects += 1;
        copied.bytes += u64::try_from(object.len()).unwrap_or(u64::MAX);
        copy.commit(chain, object).await?;
        tracing::info!(label = %layer.label, "copied a layer");
        Ok((copied, u64::try_from(marks).unwrap_or(u64::MAX)))
    }

    /// The manifest as it is in the source, which must be what it was when the layers were listed.
    async fn manifest(&self, layer: &Layer) -> Result<Bytes> {
        let key = self.source.name.manifest_key(&layer.label);
        let object = self.source.repository.get(&key).await?;
        if pgstrata_layer::manifest::digest(&object) == layer.manifest_digest {
            return Ok(object);
        }
        let what = format!("\"{key}\" is not what it was when the copy began");
        Err(Error::new(Kind::Damaged, what))
    }

    fn check_interrupted(&self) -> Result<()> {
        match self.progress.is_cancelled() {
            false => Ok(()),
            true => Err(Error::new(Kind::Interrupted, "the copy was stopped")
                .hint("run it again: what is there already is not sent again")),
        }
    }
}

/// Whether others can be copied all the same.
fn is_of_layer(error: &Error) -> bool {
    let is_theirs = matches!(
        error.kind(),
        Kind::NotFound | Kind::WalMissing | Kind::AlreadyExists | Kind::Busy | Kind::Refused
    );
    is_theirs || error.is_of_one_object()
}
