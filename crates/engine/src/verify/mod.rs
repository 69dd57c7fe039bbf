//! Verification: is every byte of every layer still what was written, and enough?
//!
//! For each layer: its link to its parent, every object present, the checksums of
//! manifest, index parts, digest parts and packs, every frame that the index names
//! where the index says, and the WAL from start to stop; of all layers also the WAL
//! from the first of them to the end of each timeline. A deep verification also
//! decodes every frame, compares every page with its digest and its checksum and
//! every plain file with its digest, and plans the restore of every file.
//!
//! Everything found wrong is listed; only an unreachable repository ends it early.
//! Each object of a layer is read once, but for packs whose frames are named far
//! apart in the index. Memory is bounded by `jobs` packs and frames, one index and
//! digest part, and the plan of 65,536 frames.

mod chain;
mod files;
mod finding;
mod layer;
mod packs;
mod pages;
mod wal;

use std::sync::Arc;

use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_store::archive::Archive;
use pgstrata_store::catalog::{self, Catalog, Layer, StoreTime, Unfinished};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;
use serde::Serialize;

pub use finding::{Finding, FindingKind};

pub use crate::health::Severity;
use crate::info::{Leftover, stored_bytes};
use finding::Findings;
use wal::WalSeen;

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
        // Damage outweighs what a newer program can read, and that outweighs what is missing alone.
        let weight = |kind: &Kind| match kind {
            Kind::WalMissing => 0,
            Kind::Unsupported => 1,
            _ => 2,
        };
        let kinds = errors.map(|finding| match finding.kind {
            FindingKind::WalMissing => Kind::WalMissing,
            FindingKind::Unsupported => Kind::Unsupported,
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
    let catalog = Catalog::load(cluster).await?;
    let (archive, lost) = match Archive::load(cluster).await {
        Err(error) if error.kind() != Kind::Damaged => return Err(error),
        Ok(archive) => (Some(archive), None),
        Err(error) => (None, Some(error)),
    };
    let mut verifier = Verifier {
        cluster: cluster.clone(),
        archive,
        deep: options.deep,
        jobs: limits::workers(options.jobs),
        progress,
        findings: Findings::default(),
    };
    if let Some(error) = lost {
        // Nobody restores without it, and no WAL can be judged.
        let key = cluster.name.cluster_key();
        let findings = &verifier.findings;
        findings.add(FindingKind::Damaged, "", key, error.to_string());
    }
    let layers = verifier.select(&catalog, &options.scope)?;
    let total = layers.iter().map(|layer| stored_bytes(layer)).sum();
    verifier.progress.set_total(total);
    let mut report = VerifyReport {
        deep: options.deep,
        ..VerifyReport::default()
    };
    let mut seen = WalSeen::default();
    for layer in layers {
        let layer = Arc::new(layer.clone());
        let mut verified = verifier.layer(&layer).await?;
        if options.deep {
            verifier.overlay(&catalog, &layer).await?;
        }
        verifier.wal_of(&layer, &mut seen).await?;
        verified.label = layer.label.to_string();
        report.layers.push(verified);
    }
    if options.scope == Scope::All {
        verifier.promised_wal(&catalog, &mut seen).await?;
    }
    report.wal_files = seen.read;
    report.findings = std::mem::take(&mut verifier.findings).into_vec();
    verifier.forget_removed(&catalog, &mut report).await?;
    report
        .findings
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for layer in &mut report.layers {
        let wrong = |f: &Finding| f.severity == Severity::Error && f.layer == layer.label;
        layer.ok = !report.findings.iter().any(wrong);
    }
    Ok(report)
}

/// One verification under way.
struct Verifier {
    cluster: ClusterRepository,
    /// `None` when the cluster's record is damaged.
    archive: Option<Archive>,
    deep: bool,
    jobs: usize,
    progress: Progress,
    findings: Findings,
}

impl Verifier {
    /// The layers to verify, oldest first. Those that cannot be used become findings.
    fn select<'a>(&self, catalog: &'a Catalog, scope: &Scope) -> Result<Vec<&'a Layer>> {
        match scope {
            Scope::All => {
                let none = catalog.layers.is_empty() && catalog.damaged.is_empty();
                if none {
                    return Err(nothing_to_verify(&self.cluster.name, &catalog.unfinished));
                }
                for (label, error) in &catalog.damaged {
                    self.note_damaged(label, error);
                }
                for unfinished in &catalog.unfinished {
                    self.note_unfinished(unfinished);
                }
                for layer in &catalog.layers {
                    self.check_parent(catalog, layer);
                }
                Ok(catalog.layers.iter().collect())
            }
            Scope::Chain(label) => self.select_chain(catalog, label),
        }
    }

    fn select_chain<'a>(&self, catalog: &'a Catalog, label: &Label) -> Result<Vec<&'a Layer>> {
        let damaged = |label: &Label| catalog.damaged.iter().find(|(found, _)| found == label);
        if let Some((label, error)) = damaged(label) {
            self.note_damaged(label, error);
            return Ok(Vec::new());
        }
        let mut chain = vec![catalog.layer(label)?];
        while let Some(layer) = chain.last().copied() {
            self.check_parent(catalog, layer);
            let Some(reference) = &layer.manifest.parent else {
                break;
            };
            let named = Label::parse(&reference.label);
            if let Some((label, error)) = named.as_ref().and_then(damaged) {
                self.note_damaged(label, error);
            }
            match parent_of(catalog, reference) {
                Some(found) if chain.iter().all(|seen| seen.label != found.label) => {
                    chain.push(found);
                }
                _ => break,
            }
        }
        chain.reverse();
        Ok(chain)
    }

    fn note_damaged(&self, label: &Label, error: &Error) {
        let kind = FindingKind::of(error).unwrap_or(FindingKind::Damaged);
        let key = self.cluster.name.manifest_key(label);
        self.findings.add(kind, label, key, error.to_string());
    }

    fn note_unfinished(&self, unfinished: &Unfinished) {
        let leftover = Leftover::of(unfinished, StoreTime::by_this_host());
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
        let Some(kind) = FindingKind::of(&error) else {
            return Err(error);
        };
        if kind == FindingKind::Unreadable {
            // This object, or the whole repository? The latter says so here, and ends it.
            self.cluster
                .repository
                .get(&self.cluster.name.cluster_key())
                .await?;
        }
        self.findings.add(kind, label, key, error.to_string());
        Ok(None)
    }

    /// An expiry may have removed layers while they were read: nothing is wrong with those.
    async fn forget_removed(&self, catalog: &Catalog, report: &mut VerifyReport) -> Result<()> {
        if report.failure().is_none() {
            return Ok(());
        }
        let layers: Vec<Arc<Layer>> = catalog.layers.iter().cloned().map(Arc::new).collect();
        for label in catalog::removed_since(&self.cluster, &layers).await? {
            tracing::info!(%label, "the layer was removed while it was verified");
            let prefix = format!("{}/", self.cluster.name.layer_prefix(&label));
            report.findings.retain(|found| {
                found.layer != label.as_str() && !found.object.starts_with(&prefix)
            });
            report.layers.retain(|layer| layer.label != label.as_str());
        }
        Ok(())
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
            "layer {} has {} objects and no manifest: a backup is running or was interrupted, or \
             its manifest was lost; take a full backup",
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
