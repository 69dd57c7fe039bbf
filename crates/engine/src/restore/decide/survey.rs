//! What a restore of a chain fetches and writes, added up before anything is written; and whether all of it is there.

use std::sync::Arc;

use pgstrata_layer::entry::{BLOCK_BYTES, EntryKind};
use pgstrata_layer::outside;
use pgstrata_layer::overlay::{FilePlan, Overlay};
use pgstrata_pgdata::wal::WalSegmentSize;
use pgstrata_store::blocking::blocking;
use pgstrata_store::catalog::{self, Layer, Loss};
use pgstrata_store::error::{Error, Kind, Result};

use super::plan::prefixes;
use crate::frames::Chain;
use crate::restore::place::in_place::{Inventory, belonging};
use crate::restore::place::layout::{Layout, MARKER};

/// What is fetched of one layer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LayerFetch {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) needed_bytes: u64,
}

/// What the overlay adds up to.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) files: u64,
    pub(super) cluster_bytes: u64,
    pub(super) write_bytes: u64,
    /// By layer of the chain.
    pub(super) layers: Vec<LayerFetch>,
    /// Bytes by directory.
    pub(super) roots: Vec<u64>,
    /// Configuration files from outside of the data directory.
    pub(super) outside: u64,
}

/// As [`survey`], on a thread of its own.
async fn survey_of(chain: Chain, losses: Vec<Option<Loss>>, layout: &Layout) -> Result<Survey> {
    let (prefixes, roots) = (prefixes(layout), layout.directories().len());
    tokio::task::spawn_blocking(move || survey(&chain, &losses, &prefixes, roots))
        .await
        .map_err(|e| Error::new(Kind::Interrupted, format!("planning was stopped: {e}")))?
}

/// Lays the overlay once without reading pages: whatever is wrong with the indexes, and what is needed and lost, is found
/// before anything is written.
fn survey(
    chain: &Chain,
    losses: &[Option<Loss>],
    prefixes: &[(String, usize)],
    roots: usize,
) -> Result<Survey> {
    let mut survey = Survey {
        layers: vec![LayerFetch::default(); chain.layers.len()],
        roots: vec![0; roots],
        ..Survey::default()
    };
    for planned in Overlay::new(chain.entries()) {
        let (file, _) = planned?;
        // Older programs stored it, where a restore had left it in the directory of a server.
        if file.path == MARKER {
            continue;
        }
        check_place(&file)?;
        check_packs(chain, losses, &file)?;
        survey.files += 1;
        let is_outside = outside::parse(&file.path).is_some();
        survey.outside += u64::from(is_outside && file.kind != EntryKind::Directory);
        survey.cluster_bytes += file.size_bytes;
        let zeros: u64 = file.zero_runs.iter().map(|run| u64::from(run.count)).sum();
        let written = file
            .size_bytes
            .saturating_sub(zeros * u64::from(BLOCK_BYTES));
        survey.write_bytes += written;
        let root = prefixes.iter().find(|(prefix, _)| {
            file.path
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
        });
        // A file takes whole blocks of the file system, of 4 KiB as a rule.
        survey.roots[root.map_or(0, |(_, root)| *root)] += written.next_multiple_of(4096);
        for piece in &file.pieces {
            let layer = &mut survey.layers[piece.layer];
            let (length, pages) = (u64::from(piece.frame.length), piece.frame.page_count());
            let taken: u64 = piece
                .take
                .iter()
                .map(|take| u64::from(take.run.count))
                .sum();
            layer.frames += 1;
            layer.bytes += length;
            layer.needed_bytes += length * taken / pages.max(1);
        }
    }
    Ok(survey)
}

/// Paths that a restore writes itself must not come from an index: a server could start too early or wrongly.
fn check_place(file: &FilePlan) -> Result<()> {
    const OURS: [&str; 7] = [
        "global/pg_control",
        "backup_label",
        "tablespace_map",
        "backup_manifest",
        "recovery.signal",
        "standby.signal",
        "postmaster.pid",
    ];
    let wrong = OURS.contains(&file.path.as_str())
        || (file.kind != EntryKind::Directory
            && matches!(file.path.as_str(), "pg_wal" | "pg_tblspc" | "global"));
    match wrong {
        false => Ok(()),
        true => Err(Error::new(
            Kind::Damaged,
            format!(
                "the index has a file \"{}\", which no backup stores",
                file.path
            ),
        )),
    }
}

/// Everything that the file needs is there, as far as a listing tells.
fn check_packs(chain: &Chain, losses: &[Option<Loss>], file: &FilePlan) -> Result<()> {
    let lost = file.pieces.iter().find(|piece| {
        let end = piece.frame.offset + u64::from(piece.frame.length);
        let loss = losses[piece.layer].as_ref();
        loss.is_some_and(|loss| !loss.has_pack(piece.frame.pack, end))
    });
    let Some(piece) = lost else { return Ok(()) };
    let label = &chain.layers[piece.layer].label;
    let key = chain.cluster.name.pack_key(label, piece.frame.pack);
    Err(Error::new(
        Kind::Damaged,
        format!(
            "layer {label} has lost \"{key}\" or a part of it, which holds pages of \"{}\"",
            file.path
        ),
    )
    .hint("bring it back from a copy of the repository, or restore another layer: \"pgstrata info\" tells which can be restored"))
}

/// What is there, when nothing is mounted in it but where the layer has a directory.
pub(super) async fn removable(inventory: Inventory, chain: &Chain) -> Result<Inventory> {
    if !inventory.has_mounts() {
        return Ok(inventory);
    }
    let chain = chain.clone();
    blocking(move || {
        inventory.strays(belonging(&chain))?;
        Ok(inventory)
    })
    .await
}

/// What is there is compared with digests, which a restore into an empty directory does not need.
pub(super) fn require_digests(chain: &[Arc<Layer>], losses: &[Option<Loss>]) -> Result<()> {
    let mut losses = chain.iter().zip(losses);
    let lost = losses.find_map(|(layer, loss)| Some((layer, loss.as_ref()?.lost_digests()?)));
    match lost {
        None => Ok(()),
        Some((layer, what)) => Err(Error::new(
            Kind::Damaged,
            format!(
                "layer {} has lost digests, with which a restore in place compares what is there: {what}",
                layer.label
            ),
        )
        .hint("restore into an empty directory, without --delta")),
    }
}

impl Survey {
    /// Where configuration from outside of the source's data directory goes.
    pub(super) fn outside_note(&self, layout: &Layout) -> Result<Option<String>> {
        let directory = layout.config.as_ref().unwrap_or(&layout.data);
        match self.outside {
            0 if layout.config.is_some() => Err(Error::new(
                Kind::Usage,
                "the layer has no configuration from outside of the data directory to put elsewhere",
            )
            .hint("leave out --config-dir")),
            0 => Ok(None),
            count => Ok(Some(format!(
                "{count} configuration files lay outside of the source's data directory: they go to \"{}\"",
                directory.display()
            ))),
        }
    }

    /// Bytes needed below each directory, the layer's own WAL included.
    pub(super) fn space(
        &self,
        segment_size: WalSegmentSize,
        layer: &Layer,
        inventory: &Inventory,
        wal_root: usize,
    ) -> Vec<u64> {
        let manifest = &layer.manifest;
        let first = manifest.start_lsn.segment(segment_size);
        let last = manifest.stop_lsn.segment(segment_size);
        let wal = (last - first.min(last) + 1).saturating_mul(segment_size.get());
        let mut space = self.roots.clone();
        space[wal_root] = space[wal_root].saturating_add(wal);
        // What is there is overwritten or removed first.
        for (space, taken) in space.iter_mut().zip(&inventory.taken) {
            *space = space.saturating_sub(*taken);
        }
        space
    }
}

/// What the chain holds; who meets a layer that an expiry removes meanwhile is told of that, and of no damage.
pub(super) async fn survey_unless_removed(
    chain: Chain,
    losses: Vec<Option<Loss>>,
    layout: &Layout,
) -> Result<Survey> {
    match survey_of(chain.clone(), losses, layout).await {
        Ok(survey) => Ok(survey),
        Err(error) => Err(catalog::unless_removed(&chain.cluster, &chain.layers, error).await),
    }
}
