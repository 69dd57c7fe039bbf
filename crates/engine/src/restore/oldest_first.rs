//! Unpacking as tools without an overlay do: the base first, then every layer over it.
//!
//! Only for measuring what the overlay saves. A page that changed in five layers is fetched and written six times; the
//! files come out the same.

use std::fs::File;
use std::sync::Arc;

use pgstrata_layer::entry::{BlockRun, EntryKind, FileEntry};
use pgstrata_layer::overlay::{FilePlan, Merge, Piece, Take};

use super::reads::{Reading, WantedFrame};
use super::writes::{Part, Writer};
use crate::catalog::ChainEntries;
use crate::error::Result;

/// Writes all layers of the chain, the oldest first. Returns the number of files.
pub(super) fn write(reading: &Reading<'_>, writer: &Writer<'_>) -> Result<u64> {
    let mut files = 0;
    for depth in (0..reading.chain.len()).rev() {
        files = 0;
        writer.write_frames(reading, |window| {
            let layers: Vec<_> = match depth {
                0 => vec![Arc::clone(&reading.chain[0])],
                depth => [0, depth].map(|at| Arc::clone(&reading.chain[at])).to_vec(),
            };
            let source = reading.source;
            let streams = ChainEntries::new(
                &source.repository,
                &source.cluster,
                &layers,
                &source.runtime,
            );
            for entries in Merge::new(streams) {
                let mut entries = entries?;
                files += 1;
                let own = entries.pop().flatten();
                // Of files that were dropped since, nothing is restored.
                let newest = entries.pop().unwrap_or_else(|| own.clone());
                if let (Some(own), Some(newest)) = (own, newest)
                    && own.kind == newest.kind
                {
                    write_entry(writer, depth, own, |frame| window.push(frame))?;
                    window.end_file()?;
                }
            }
            Ok(())
        })?;
    }
    Ok(files)
}

/// Everything one layer holds of one file.
fn write_entry(
    writer: &Writer<'_>,
    layer: usize,
    entry: FileEntry,
    push: impl FnMut(WantedFrame<Part>) -> Result<()>,
) -> Result<()> {
    let plan = FilePlan {
        path: entry.path,
        kind: entry.kind,
        mode: entry.mode,
        modified: entry.modified,
        size_bytes: entry.size_bytes,
        content_digest: entry.content_digest,
        pieces: entry
            .frames
            .into_iter()
            .map(|frame| Piece {
                layer,
                take: takes(&frame.runs),
                frame,
            })
            .collect(),
        zero_runs: entry.zero_runs,
    };
    if plan.kind == EntryKind::Directory {
        return writer.begin(plan, push);
    }
    let existing: Option<File> = writer.open_existing(&plan)?;
    match existing {
        None => writer.begin(plan, push),
        Some(file) => {
            writer.write_zeros(&file, &plan, &plan.zero_runs)?;
            writer.enlist(plan, Vec::new(), push)
        }
    }
}

fn takes(runs: &[BlockRun]) -> Vec<Take> {
    let mut frame_page = 0;
    runs.iter()
        .map(|&run| {
            let take = Take { frame_page, run };
            frame_page += run.count;
            take
        })
        .collect()
}
