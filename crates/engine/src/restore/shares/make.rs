//! Making one share: its files into directories of their own, and one record that says what came of it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::overlay::Overlay;
use pgstrata_layer::restore_share::{RestoreShareDone, RestoreWork};

use super::super::destination::Root;
use super::super::reads::Reading;
use super::super::writes::{Listing, Writer};
use super::super::{Source, durable};
use super::Desk;
use crate::catalog::{ChainEntries, Layer};
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;

/// What a process needs to make shares of one restore.
pub(super) struct Maker {
    pub(super) desk: Desk,
    pub(super) work: RestoreWork,
    pub(super) source: Source,
    /// Newest first.
    pub(super) chain: Vec<Arc<Layer>>,
    /// As a [`Writer`] wants them.
    pub(super) prefixes: Vec<(String, usize)>,
    pub(super) jobs: usize,
    pub(super) progress: Progress,
}

impl Maker {
    /// Makes a share; false when another process has made it meanwhile.
    pub(super) fn make(&self, number: u32, attempt: u32) -> Result<bool> {
        tracing::info!(label = %self.work.label, number, of = self.work.count(), "making a share");
        let staging = self.desk.stage(number, attempt)?;
        let done = self.restore(number, attempt, &staging)?;
        drop(staging);
        // From here on the files may be moved: nothing of them is open any more.
        self.desk.check_wanted()?;
        self.desk.finish(&done)
    }

    /// The files of a share, durable in `staging`.
    fn restore(&self, number: u32, attempt: u32, staging: &[Root]) -> Result<RestoreShareDone> {
        let (first, end) = self.work.range(number).ok_or_else(|| {
            let what = format!("there is no share {number}");
            Error::new(Kind::Damaged, what)
        })?;
        let before = self.progress.read();
        let frames = AtomicU64::new(0);
        let listing = Listing::Kept(Vec::new());
        let prefixes = self.prefixes.clone();
        let writer = Writer::new(staging, prefixes, Some(listing), &self.progress)?;
        let reading = Reading {
            source: &self.source,
            chain: &self.chain,
            progress: &self.progress,
            workers: self.jobs,
            frames: &frames,
        };
        writer.write_frames(&reading, |window| {
            let mut directory = String::new();
            for planned in Overlay::new(self.entries(first)) {
                let (file, _) = planned?;
                if end.is_some_and(|end| file.path.as_str() >= end) {
                    break;
                }
                if file.kind == EntryKind::Directory {
                    continue;
                }
                create_parents(&writer, &file.path, &mut directory)?;
                writer.begin(file, |frame| window.push(frame))?;
                window.end_file()?;
            }
            Ok(())
        })?;
        let written_bytes = writer.written_bytes();
        let files = writer.into_kept();
        durable::sync(staging)?;
        let after = self.progress.read();
        Ok(RestoreShareDone {
            restore_id: self.work.restore_id.clone(),
            number,
            attempt,
            host: self.desk.us.host.clone(),
            pid: self.desk.us.pid,
            pages: after.pages - before.pages,
            written_bytes,
            fetched_bytes: after.stored_bytes - before.stored_bytes,
            frames: frames.into_inner(),
            files,
        })
    }

    fn entries(&self, from: &str) -> Vec<ChainEntries> {
        let Source {
            repository,
            cluster,
            runtime,
        } = &self.source;
        ChainEntries::starting_at(from, repository, cluster, &self.chain, runtime)
    }
}

/// Creates the directories above a file, unless they are those above the `last` one.
fn create_parents(writer: &Writer<'_>, path: &str, last: &mut String) -> Result<()> {
    let Some((directory, _)) = path.rsplit_once('/') else {
        return Ok(());
    };
    if directory == last {
        return Ok(());
    }
    for (end, _) in directory.match_indices('/') {
        writer.create_directory(&directory[..end], 0o700)?;
    }
    writer.create_directory(directory, 0o700)?;
    directory.clone_into(last);
    Ok(())
}
