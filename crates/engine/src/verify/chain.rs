//! The overlay of a layer's chain: has every block of every file a source?

use std::sync::Arc;

use pgstrata_layer::entry::{EntryKind, FileEntry};
use pgstrata_layer::overlay::{FilePlan, PathMerge, chain_of, plan_file};
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::error::{Error, Result};

use super::{FindingKind, Verifier};
use crate::frames::Chain;

/// Complaints of one chain that are listed.
const MOST_COMPLAINTS: usize = 100;

impl Verifier {
    /// Plans the restore of every file of `layer`, as a restore would.
    pub(super) async fn overlay(&self, catalog: &Catalog, layer: &Arc<Layer>) -> Result<()> {
        let label = &layer.label;
        let key = self.cluster.name.manifest_key(label);
        let chain: Vec<Arc<Layer>> = match catalog.links(label) {
            Ok(chain) => chain.into_iter().map(|l| Arc::new(l.clone())).collect(),
            // Further down the chain than the link that was checked for this layer.
            Err(error) => {
                self.findings
                    .add(FindingKind::BrokenChain, label, key, error.to_string());
                return Ok(());
            }
        };
        let chain = Chain::new(&self.cluster, chain);
        let progress = self.progress.clone();
        let complaints = blocking(move || {
            let mut complaints = Vec::new();
            for merged in PathMerge::new(chain.entries()) {
                match merged.and_then(|entries: Vec<Option<FileEntry>>| check_file(&entries)) {
                    Ok(()) => {}
                    Err(error) => complaints.push(error),
                }
                if progress.is_cancelled() || complaints.len() >= MOST_COMPLAINTS {
                    break;
                }
            }
            Ok(complaints)
        })
        .await?;
        self.check_interrupted()?;
        for error in complaints {
            let kind = match FindingKind::of(&error) {
                None => return Err(error),
                Some(FindingKind::Unreadable) => {
                    self.require_reachable().await?;
                    FindingKind::Unreadable
                }
                Some(FindingKind::Unsupported) => FindingKind::Unsupported,
                Some(_) => FindingKind::BrokenChain,
            };
            self.findings
                .add(kind, label, key.clone(), error.to_string());
        }
        Ok(())
    }
}

/// One file: all of its blocks have a source, and a plain file has one source.
fn check_file(entries: &[Option<FileEntry>]) -> Result<()> {
    let chain = chain_of(entries);
    let plan = plan_file(&chain)?;
    match plan.kind {
        EntryKind::Plain => check_plain(&plan, &chain),
        EntryKind::Directory | EntryKind::Relation => Ok(()),
    }
}

/// An inherited plain file is inherited whole, from a file of the same contents.
fn check_plain(plan: &FilePlan, chain: &[(usize, &FileEntry)]) -> Result<()> {
    let mut layers = plan.pieces.iter().map(|piece| piece.layer);
    let Some(first) = layers.next() else {
        return Ok(());
    };
    let source = chain.iter().find(|(layer, _)| *layer == first);
    let same = source.is_some_and(|(_, entry)| entry.content_digest == plan.content_digest);
    if same && layers.all(|layer| layer == first) {
        return Ok(());
    }
    Err(Error::new(
        pgstrata_store::error::Kind::Damaged,
        format!(
            "file \"{}\" is put together from files of other contents",
            plan.path
        ),
    ))
}
