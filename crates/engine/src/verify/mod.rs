//! Verification: is every byte of every layer still what was written, and enough?
//!
//! For each layer: its link to its parent, every object present, the checksums of
//! manifest, index parts, digest parts and packs, every frame that the index names
//! where the index says, and the WAL from start to stop; of all layers also the WAL
//! from the first of them to the end of each timeline. A deep verification also
//! decodes every frame, compares every page with its digest and its checksum and
//! every plain file with its digest, and plans the restore of every file.
//!
//! Everything found wrong is listed; only an unreachable repository ends it early, or one that has nothing but errors that pass
//! for a manifest or for a record beside the layers: those every command reads.
//! First each object is read by itself, then it is looked how layers and WAL fit
//! together. A layer that somebody removes meanwhile is named as removed; nothing
//! is wrong because of it.
//! Each object of a layer is read once, but for packs whose frames are named far
//! apart in the index. Memory is bounded by `jobs` packs and frames, one index and
//! digest part, and the plan of 65,536 frames.

mod chain;
mod files;
mod finding;
mod keyless;
mod keys;
mod layer;
mod levels;
mod outage;
mod packs;
mod pages;
mod records;
mod strays;
mod wal;

use std::collections::BTreeSet;
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::verified::VerifiedRecord;
use pgstrata_store::archive::Archive;
use pgstrata_store::catalog::{self, Catalog, LastVerified, Layer, StoreTime, Unfinished};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;
use serde::Serialize;

pub use finding::{Finding, FindingKind};

use crate::health;
pub use crate::health::Severity;
use crate::info::{Leftover, stored_bytes};
use finding::Findings;
use outage::kind_of;
use wal::WalSeen;

/// When layers or WAL are removed while it is looked how they fit together, that is looked at again: so often.
const LOOKS: u32 = 60;

/// What is said of WAL that may have come a moment later.
const MAY_HAVE_COME: &str = "; what follows it had been stored in the last 90 seconds before that moment of the repository, so it may \
     have been on its way";

/// Between two looks at an archive of which something is being removed, or may be on its way.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Which layers to verify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All there are.
    #[default]
    All,
    /// This one and those it stands on.
    Chain(Label),
}

/// What to verify.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// Which layers.
    pub scope: Scope,
    /// Decode every page.
    pub deep: bool,
    /// Objects that are read and checked at once; 0: one per core.
    pub jobs: usize,
    /// When the repository was as it is read; `None`: it is as it is.
    pub as_of: Option<Timestamp>,
}

impl VerifyOptions {
    /// The time by which it is judged what may be on its way: of the past not that of today.
    fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        self.as_of.map_or(now, |moment| moment.min(now))
    }

    /// How long to wait for it. To the past nothing comes any more.
    fn patience(&self) -> Duration {
        match self.as_of {
            None => health::ON_ITS_WAY.unsigned_abs(),
            Some(_) => Duration::ZERO,
        }
    }

    /// Whether what is missing is in doubt, and not lost: it may have come a moment later.
    fn doubts(&self, is_young: bool) -> bool {
        is_young && self.as_of.is_some()
    }
}

/// What was read of one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifiedLayer {
    /// Its label.
    pub label: String,
    /// Whether nothing is wrong with it; warnings aside.
    pub ok: bool,
    /// Objects read.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Frames whose place and checksum were compared with the index.
    pub frames: u64,
    /// Pages decoded and compared with their digests.
    pub pages: u64,
    /// Plain files decoded and compared with their digests.
    pub files: u64,
}

/// What to do without a cluster's record.
const LOST_RECORD: &str = "bring the record back from a copy of the repository, or with \"pgstrata rescue\" where the store keeps \
                           versions: layers and WAL are as they were, but nobody restores them without it";

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Whether pages were decoded.
    pub deep: bool,
    /// Layers verified, oldest first.
    pub layers: Vec<VerifiedLayer>,
    /// Files of the WAL archive read.
    pub wal_files: u64,
    /// What is wrong; the worst first.
    pub findings: Vec<Finding>,
    /// Layers that were removed while they were read: nothing is said of those.
    pub removed: Vec<String>,
    /// Whether the repository says from now on that this verification took place.
    pub recorded: bool,
}

impl VerifyReport {
    /// The worst there is; `None` when nothing is wrong.
    #[must_use]
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }

    /// The kind of error it amounts to; `None` when every layer can be relied on.
    #[must_use]
    pub fn failure(&self) -> Option<Kind> {
        let errors = self
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error);
        // Damage outweighs what cannot be read, that what a newer program can read, and that what is missing alone.
        let weight = |kind: &Kind| match kind {
            Kind::WalMissing => 0,
            Kind::Unsupported => 1,
            Kind::Repository => 2,
            _ => 3,
        };
        let kinds = errors.map(|finding| match finding.kind {
            FindingKind::WalMissing => Kind::WalMissing,
            FindingKind::Unsupported => Kind::Unsupported,
            FindingKind::Unreadable => Kind::Repository,
            _ => Kind::Damaged,
        });
        kinds.max_by_key(weight)
    }
}

/// Verifies layers of `cluster`.
///
/// # Errors
/// `NotFound` when there is no such layer, or none at all; `Repository` when the
/// repository cannot be reached; `Interrupted`. Damage is no error but a finding.
pub async fn run(
    cluster: &ClusterRepository,
    options: &VerifyOptions,
    progress: Progress,
) -> Result<VerifyReport> {
    if let Some(ring) = cluster.sealing().await?.ring()
        && ring.is_without_identity()
    {
        return keyless::run(cluster, options, progress).await;
    }
    let began = (Timestamp::now(), Instant::now());
    // One of a single layer takes none of them back.
    let to_come = match options.scope {
        Scope::All => catalog::verifications_to_come(cluster).await?,
        Scope::Chain(_) => Vec::new(),
    };
    let catalog = Catalog::examine(cluster).await?;
    let layers = select(&cluster.name, &catalog, &options.scope)?;
    let total = layers.iter().map(|layer| stored_bytes(layer)).sum();
    progress.set_total(total);
    let mut verifier = Verifier::begin(cluster, options, progress).await?;
    let mut report = VerifyReport {
        deep: options.deep,
        ..VerifyReport::default()
    };
    for layer in &layers {
        let layer = Arc::new((*layer).clone());
        let mut verified = verifier.layer(&layer).await?;
        verified.label = layer.label.to_string();
        report.layers.push(verified);
    }
    let concerns = |epoch| {
        let sealed = layers.iter();
        let mut sealed = sealed.filter_map(|layer| layer.manifest.encryption.as_ref());
        options.scope == Scope::All || sealed.any(|sealed| sealed.epoch == epoch)
    };
    keys::check(cluster, &verifier.findings, concerns).await?;
    report.findings = std::mem::take(&mut verifier.findings).into_vec();
    let mut seen = WalSeen::default();
    let now = verifier.relations(&options.scope, &mut seen).await?;
    report.wal_files = seen.read;
    keys::lost(cluster, &verifier.findings, |_| options.scope == Scope::All).await?;
    let there = |layer: &Layer| now.layers.iter().any(|now| now == layer);
    let gone = layers.iter().filter(|layer| !there(layer));
    report.forget(&cluster.name, gone.map(|layer| &layer.label));
    if let Scope::Chain(label) = &options.scope
        && report.removed.iter().any(|gone| gone == label.as_str())
    {
        let what = format!("layer {label} was removed while it was verified");
        return Err(Error::new(Kind::NotFound, what).hint("\"pgstrata info\" lists the layers"));
    }
    report.require_layers(now.layers.is_empty())?;
    report
        .findings
        .append(&mut std::mem::take(&mut verifier.findings).into_vec());
    report
        .findings
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    report.judge_layers();
    // Nothing is written into what a newer version keeps.
    if !verifier.is_newer() {
        let mut record = report.record(&cluster.name, &options.scope, began);
        let has_opened_all = verifier.has_opened_all();
        report.recorded = match has_opened_all {
            true => noted(cluster, &record).await,
            false => noted_in_part(cluster, &mut record).await,
        };
        if report.recorded && has_opened_all && record.errors == 0 {
            settle(cluster, &to_come).await;
        }
    }
    Ok(report)
}

/// Whoever opens no pages or WAL has found what he found, and nothing in order: that would silence who has looked further.
async fn noted_in_part(cluster: &ClusterRepository, record: &mut VerifiedRecord) -> bool {
    if record.errors == 0 {
        tracing::warn!(
            "no record of this verification stays in the repository: no identity at hand opens all pages and WAL, and those were \
             compared with their checksums alone; a reader's identity is needed to find them in order"
        );
        return false;
    }
    // One of a layer that found errors takes nothing back.
    if record.label.is_none()
        && let Err(error) = repeat_known(cluster, record).await
    {
        tracing::warn!("no record of this verification stays in the repository: {error}");
        return false;
    }
    noted(cluster, record).await
}

async fn repeat_known(cluster: &ClusterRepository, record: &mut VerifiedRecord) -> Result<()> {
    let (known, catalog) =
        futures::try_join!(catalog::last_verified(cluster), Catalog::examine(cluster))?;
    repeat(record, &known, &catalog);
    Ok(())
}

/// Says of all layers again what is known against them and the WAL, because the record is to take the place of older ones.
fn repeat(record: &mut VerifiedRecord, known: &LastVerified, catalog: &Catalog) {
    for label in known.damaged.keys() {
        let is_new = !record.damaged.iter().any(|named| named == label.as_str());
        if is_new && catalog.layers.position(label).is_some() {
            record.damaged.push(label.to_string());
            record.errors += 1;
        }
    }
    let of_others = |found: &VerifiedRecord| found.other_errors.unwrap_or(found.errors);
    let before = known.failed.iter().map(|failed| of_others(&failed.record));
    let (before, own) = (before.max().unwrap_or(0), of_others(record));
    let more = before.saturating_sub(own);
    record.errors += more;
    record.other_errors = Some(own + more);
}

/// Takes back what records say that no later one is behind, because the store's clock was ahead when they came.
async fn settle(cluster: &ClusterRepository, to_come: &[String]) {
    if let Err(error) = catalog::forget_verifications(cluster, to_come).await {
        tracing::warn!("records of verifications whose time is to come still count: {error}");
    }
}

async fn noted(cluster: &ClusterRepository, record: &VerifiedRecord) -> bool {
    let noted = catalog::note_verified(cluster, record).await;
    if let Err(error) = &noted {
        tracing::warn!("no record of this verification stays in the repository: {error}");
    }
    noted.is_ok()
}

impl VerifyReport {
    /// What stays of it in the repository.
    fn record(
        &self,
        cluster: &ClusterName,
        scope: &Scope,
        (started_at, began): (Timestamp, Instant),
    ) -> VerifiedRecord {
        // A clock that was set back meanwhile does not change how long it took.
        let finished_at = Timestamp::now();
        let elapsed = SignedDuration::try_from(began.elapsed()).unwrap_or(SignedDuration::MAX);
        let took = finished_at.duration_since(started_at).max(elapsed);
        let count = |counts: &dyn Fn(&Finding) -> bool| {
            let same = self.findings.iter().filter(|found| counts(found));
            u64::try_from(same.count()).expect("usize has 64 bits")
        };
        let is_error = |found: &Finding| found.severity == Severity::Error;
        let errors = count(&is_error);
        let damaged = self.damaged_layers();
        // WAL outlives the layers that need it first.
        let archive = format!("{}/", cluster.wal_prefix());
        let is_other =
            |found: &Finding| !damaged.contains(&found.layer) || found.object.starts_with(&archive);
        let others = count(&|found| is_error(found) && is_other(found));
        VerifiedRecord {
            label: match scope {
                Scope::All => None,
                Scope::Chain(label) => Some(label.to_string()),
            },
            deep: self.deep,
            layers: u64::try_from(self.layers.len()).expect("usize has 64 bits"),
            newest: self.layers.last().map(|layer| layer.label.clone()),
            wal_files: self.wal_files,
            errors,
            warnings: count(&|found| found.severity == Severity::Warning),
            other_errors: (errors > 0).then_some(others),
            damaged,
            host: catalog::host_name(),
            pid: std::process::id(),
            started_at: finished_at.checked_sub(took).unwrap_or(Timestamp::MIN),
            finished_at,
            written_by: catalog::WRITTEN_BY.to_owned(),
        }
    }

    /// With a layer something is wrong when an error is its own: one of its objects, or of the WAL that makes it consistent.
    fn judge_layers(&mut self) {
        let errors = self.findings.iter();
        let errors = errors.filter(|found| found.severity == Severity::Error);
        let wrong: BTreeSet<&str> = errors.map(|found| found.layer.as_str()).collect();
        for layer in &mut self.layers {
            layer.ok = !wrong.contains(layer.label.as_str());
        }
    }

    /// Layers that cannot be relied on. What the store did not give out today it may never give out again.
    fn damaged_layers(&self) -> Vec<String> {
        let layers = self.layers.iter().filter(|layer| !layer.ok);
        layers.map(|layer| layer.label.clone()).collect()
    }

    /// Refuses to say that all is well when nothing is left: no expiry and no merge removes the last layer.
    fn require_layers(&self, nothing_is_left: bool) -> Result<()> {
        let count = self.removed.len();
        if !nothing_is_left || count == 0 {
            return Ok(());
        }
        let what = format!(
            "all {count} layers went away while they were verified, and no expiry or merge removes the last one"
        );
        Err(Error::new(Kind::Damaged, what).hint(
            "bring back what was deleted: \"pgstrata rescue\" does so in a bucket with versions",
        ))
    }

    /// Nothing is wrong with layers that an expiry or a merge has removed while they were read.
    fn forget<'a>(&mut self, cluster: &ClusterName, gone: impl Iterator<Item = &'a Label>) {
        for label in gone {
            tracing::info!(%label, "the layer was removed while it was verified");
            let prefix = format!("{}/", cluster.layer_prefix(label));
            self.findings.retain(|found| {
                found.layer != label.as_str() && !found.object.starts_with(&prefix)
            });
            self.layers.retain(|layer| layer.label != label.as_str());
            self.removed.push(label.to_string());
        }
    }
}

/// The layers to verify, oldest first, as far as they can be used.
fn select<'a>(
    cluster: &ClusterName,
    catalog: &'a Catalog,
    scope: &Scope,
) -> Result<Vec<&'a Layer>> {
    match scope {
        Scope::All if catalog.layers.is_empty() && catalog.damaged.is_empty() => {
            Err(nothing_to_verify(cluster, &catalog.unfinished))
        }
        Scope::All => Ok(catalog.layers.iter().collect()),
        Scope::Chain(label) if catalog.damaged.iter().any(|(damaged, _)| damaged == label) => {
            Ok(Vec::new())
        }
        Scope::Chain(label) => {
            let mut chain = vec![catalog.layer(label)?];
            while let Some(parent) = chain.last().and_then(|l| l.manifest.parent.as_ref()) {
                match parent_of(catalog, parent) {
                    Some(found) if chain.iter().all(|seen| seen.label != found.label) => {
                        chain.push(found);
                    }
                    _ => break,
                }
            }
            chain.reverse();
            Ok(chain)
        }
    }
}

/// One verification under way.
struct Verifier {
    cluster: ClusterRepository,
    /// `None` when the cluster's record is lost: no WAL can be judged.
    archive: Option<Archive>,
    options: VerifyOptions,
    deep: bool,
    jobs: usize,
    progress: Progress,
    /// What is found now: first in objects, then between them.
    findings: Findings,
    /// What is wrong with the cluster's record.
    record: Option<Error>,
    /// Whether anything was compared with its checksum alone, because no identity at hand opens it.
    is_closed: AtomicBool,
    /// Keys of objects that the store does not give out. Whoever needs one of them does not ask again.
    withheld: Mutex<BTreeSet<String>>,
}

impl Verifier {
    async fn begin(
        cluster: &ClusterRepository,
        options: &VerifyOptions,
        progress: Progress,
    ) -> Result<Self> {
        let loaded = match cluster.record().await {
            Ok(record) => Archive::new(cluster, record),
            Err(error) => Err(error),
        };
        let (archive, record) = match loaded {
            Ok(archive) => (Some(archive), None),
            Err(error) => match error.kind() {
                Kind::NotFound | Kind::Damaged | Kind::Unsupported => (None, Some(error)),
                _ => return Err(error),
            },
        };
        Ok(Self {
            cluster: cluster.clone(),
            archive,
            options: options.clone(),
            deep: options.deep,
            jobs: limits::workers(options.jobs),
            progress,
            findings: Findings::default(),
            record,
            is_closed: AtomicBool::default(),
            withheld: Mutex::default(),
        })
    }

    /// Something is there that no identity at hand opens.
    fn note_closed(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn has_opened_all(&self) -> bool {
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether a version wrote the cluster that this one does not know.
    fn is_newer(&self) -> bool {
        let error = self.record.as_ref();
        error.is_some_and(|error| error.kind() == Kind::Unsupported)
    }

    /// What layers are to each other and to the archive, as the catalog is now, which is the answer. When layers or WAL are
    /// removed meanwhile it is looked at anew.
    async fn relations(&mut self, scope: &Scope, seen: &mut WalSeen) -> Result<Catalog> {
        for look in 1.. {
            self.findings = Findings::default();
            seen.look_again();
            let catalog = Catalog::examine(&self.cluster).await?;
            self.relate(&catalog, scope, seen).await?;
            if look == LOOKS || !self.findings.any() {
                return Ok(catalog);
            }
            let layers = catalog.layers.iter().map(Layer::known_as);
            let removed = catalog::removed_since(&self.cluster, layers).await?;
            let wal_stays = match (&self.archive, &seen.settled) {
                (Some(archive), Some(before)) => {
                    let now = archive.list(iter::empty()).await?;
                    now.holds_all_of(before)
                }
                _ => true,
            };
            if removed.is_empty() && wal_stays {
                return Ok(catalog);
            }
            if !wal_stays {
                // Whoever removes it takes some time.
                self.check_interrupted()?;
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        unreachable!("the last look is the answer")
    }

    async fn relate(&self, catalog: &Catalog, scope: &Scope, seen: &mut WalSeen) -> Result<()> {
        if let Some(error) = &self.record {
            self.note_record(error);
        }
        let layers = match select(&self.cluster.name, catalog, scope) {
            Ok(layers) => layers,
            // All were removed.
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        self.note_unusable(catalog, scope, &layers).await?;
        for layer in layers {
            self.check_interrupted()?;
            self.check_parent(catalog, layer);
            if self.deep {
                self.overlay(catalog, &Arc::new(layer.clone())).await?;
            }
            self.wal_of(layer, seen).await?;
        }
        match scope {
            Scope::All => {
                let found = strays::find(&self.cluster, self.archive.as_ref(), &self.findings);
                let aside = found.await?;
                records::check(&self.cluster, &self.findings).await?;
                self.promised_wal(catalog, seen).await?;
                self.wal_aside(catalog, aside, seen).await
            }
            Scope::Chain(_) => Ok(()),
        }
    }

    /// Nobody restores without it.
    fn note_record(&self, error: &Error) {
        let kind = FindingKind::of(error).unwrap_or(FindingKind::Damaged);
        let key = self.cluster.name.cluster_key();
        let hint = error.hint_text().unwrap_or(LOST_RECORD).to_owned();
        let found = (key, error.to_string());
        self.findings.add_hinted(kind, "", found, hint);
    }

    /// Manifests that cannot be used, and layers that have none.
    async fn note_unusable(
        &self,
        catalog: &Catalog,
        scope: &Scope,
        layers: &[&Layer],
    ) -> Result<()> {
        let concerns = |label: &Label| match scope {
            Scope::All => true,
            Scope::Chain(wanted) => {
                let parents = layers.iter().filter_map(|l| l.manifest.parent.as_ref());
                label == wanted || parents.into_iter().any(|p| p.label == label.as_str())
            }
        };
        let damaged = catalog.damaged.iter();
        for (label, error) in damaged.filter(|(label, _)| concerns(label)) {
            self.note_damaged(label, error);
        }
        if *scope == Scope::All && !catalog.unfinished.is_empty() {
            let leaving = catalog::being_removed(&self.cluster).await?;
            let unfinished = catalog.unfinished.iter();
            for unfinished in unfinished.filter(|left| !leaving.contains(&left.label)) {
                self.note_unfinished(unfinished);
            }
        }
        Ok(())
    }

    fn note_damaged(&self, label: &Label, error: &Error) {
        let kind = FindingKind::of(error).unwrap_or(FindingKind::Damaged);
        let key = self.cluster.name.manifest_key(label);
        self.findings.add_error(kind, label, (key, error));
    }

    fn note_unfinished(&self, unfinished: &Unfinished) {
        let leftover = Leftover::of(unfinished, StoreTime::at(self.options.now()));
        if leftover.running == Some(true) {
            return;
        }
        let message = format!("has no manifest: {}", leftover.describe());
        let key = self.cluster.name.layer_prefix(&unfinished.label);
        self.findings
            .add(FindingKind::Unfinished, &unfinished.label, key, message);
    }

    /// Whether the parent is there with the very contents the layer was made on.
    fn check_parent(&self, catalog: &Catalog, layer: &Layer) {
        let Some(parent) = &layer.manifest.parent else {
            return;
        };
        let complaint = match parent_of(catalog, parent) {
            None => format!("its parent {} is not there, or damaged", parent.label),
            Some(found) if !found.manifest.stands_for(&found.manifest_digest, parent) => format!(
                "the manifest of its parent {} has digest {}, expected {}",
                parent.label, found.manifest_digest, parent.manifest_digest
            ),
            Some(found)
                if found.manifest.cluster.system_identifier
                    != layer.manifest.cluster.system_identifier =>
            {
                format!("its parent {} is of another cluster", parent.label)
            }
            Some(_) => return,
        };
        let key = self.cluster.name.manifest_key(&layer.label);
        self.findings
            .add(FindingKind::BrokenChain, &layer.label, key, complaint);
    }

    /// Passes a success on; turns an object's failure into a finding.
    async fn found<T>(&self, label: &Label, key: &str, outcome: Result<T>) -> Result<Option<T>> {
        let error = match outcome {
            Ok(found) => return Ok(Some(found)),
            Err(error) => error,
        };
        let kind = kind_of(&self.cluster, &error).await?;
        if kind == FindingKind::Unreadable {
            self.withheld_keys().insert(key.to_owned());
        }
        self.findings.add_error(kind, label, (key, &error));
        Ok(None)
    }

    fn withheld_keys(&self) -> MutexGuard<'_, BTreeSet<String>> {
        let keys = self.withheld.lock();
        keys.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was found that the store does not give the object out.
    fn is_withheld(&self, key: &str) -> bool {
        self.withheld_keys().contains(key)
    }

    fn check_interrupted(&self) -> Result<()> {
        if self.progress.is_cancelled() {
            return Err(Error::new(
                Kind::Interrupted,
                "the verification was stopped",
            ));
        }
        Ok(())
    }
}

fn nothing_to_verify(cluster: &ClusterName, unfinished: &[Unfinished]) -> Error {
    let name = cluster.as_str();
    let error = Error::new(
        Kind::NotFound,
        format!("cluster \"{name}\" has no finished layer to verify"),
    );
    match unfinished.last() {
        None => error.hint("take one with \"pgstrata backup\""),
        Some(last) => error.hint(format!(
            "layer {} has {} objects and no manifest: a backup is running or was interrupted; take a \
             full backup",
            last.label, last.object_count
        )),
    }
}

/// The layer that is stood upon, merged or not; failing that, whatever has the name.
fn parent_of<'a>(catalog: &'a Catalog, parent: &ParentRef) -> Option<&'a Layer> {
    let named = || {
        let mut layers = catalog.layers.iter();
        layers.find(|found| found.label.as_str() == parent.label)
    };
    catalog.standing_for(parent).or_else(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_well_when_all_that_was_verified_has_gone() {
        let gone = VerifyReport {
            removed: vec!["20261125-030303F".to_owned()],
            ..VerifyReport::default()
        };
        let kind = |nothing_is_left| gone.require_layers(nothing_is_left).map_err(|e| e.kind());
        assert_eq!(kind(true), Err(Kind::Damaged));
        assert_eq!(kind(false), Ok(()));
        assert!(VerifyReport::default().require_layers(true).is_ok());
    }
}
