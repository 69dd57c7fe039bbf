//! The overlay of a layer's chain: has every block of every file a source?

use std::sync::Arc;

use pgstrata_layer::entry::{EntryKind, FileEntry};
use pgstrata_layer::label::Label;
use pgstrata_layer::overlay::{FilePlan, PathMerge, chain_of, plan_file};
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::error::{Error, Result};

use super::outage::{kind_of, outlast};
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
        if let Some((of, index)) = self.withheld_index(&chain) {
            // Of its own one it was said when that was read.
            if of != label {
                let what = format!("a restore needs \"{index}\", which is not given out");
                let kind = FindingKind::Unreadable;
                self.findings.add(kind, label, key, what);
            }
            return Ok(());
        }
        let chain = Chain::new(&self.cluster, chain);
        let complaints = match outlast(&self.cluster, || self.complaints(&chain)).await {
            Ok(complaints) => complaints,
            Err(error) => vec![error],
        };
        self.check_interrupted()?;
        for error in complaints {
            let kind = match kind_of(&self.cluster, &error).await? {
                kind @ (FindingKind::Unreadable | FindingKind::Unsupported) => kind,
                _ => FindingKind::BrokenChain,
            };
            self.findings
                .add(kind, label, key.clone(), error.to_string());
        }
        Ok(())
    }

    /// The first part of an index of the chain that the store does not give out, and whose it is.
    fn withheld_index<'c>(&self, chain: &'c [Arc<Layer>]) -> Option<(&'c Label, String)> {
        chain.iter().find_map(|layer| {
            let label = &layer.label;
            let parts = u32::try_from(layer.manifest.index.len()).expect("a manifest is small");
            let mut keys = (0..parts).map(|part| self.cluster.name.index_key(label, part));
            let withheld = keys.find(|key| self.is_withheld(key))?;
            Some((label, withheld))
        })
    }

    /// What is wrong with the plans of files. An outage ends the look.
    async fn complaints(&self, chain: &Chain) -> Result<Vec<Error>> {
        let (chain, progress) = (chain.clone(), self.progress.clone());
        let look = move || {
            let mut complaints = Vec::new();
            for merged in PathMerge::new(chain.entries()) {
                match merged.and_then(|entries: Vec<Option<FileEntry>>| check_file(&entries)) {
                    Ok(()) => {}
                    Err(error) if error.is_outage() => return Err(error),
                    Err(error) => complaints.push(error),
                }
                if progress.is_cancelled() || complaints.len() >= MOST_COMPLAINTS {
                    break;
                }
            }
            Ok(complaints)
        };
        blocking(look).await
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
