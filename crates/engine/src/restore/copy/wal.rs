//! The WAL that makes the layer consistent, written while the files are. Recovery could fetch it itself; with it in place
//! the directory passes `pg_verifybackup` and, restored without recovery settings, stands on its own.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{panic, thread};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use pgstrata_pgdata::wal::{ArchiveFile, WalSegment, WalSegmentSize};
use pgstrata_pgdata::{Lsn, Major};
use pgstrata_store::archive::Archive;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::super::decide::plan::PlanInner;
use super::super::replay::WalInPlace;
use super::write::Writer;

/// Each has a piece of its object in memory.
const SEGMENTS_AT_ONCE: usize = 2;

/// The segments, and where they come from.
pub(in crate::restore) struct WalBeside {
    archive: Archive,
    segments: Vec<WalSegment>,
    size: WalSegmentSize,
    runtime: Handle,
}

impl WalBeside {
    pub(in crate::restore) fn of(plan: &PlanInner, runtime: &Handle) -> Result<Self> {
        let parts = plan.wal_parts.iter();
        let segments = parts.flat_map(|&(timeline, first, last)| {
            (first..=last).map(move |number| WalSegment { timeline, number })
        });
        Ok(Self {
            archive: Archive::new(&plan.cluster, plan.record.clone())?,
            segments: segments.collect(),
            size: plan.segment_size,
            runtime: runtime.clone(),
        })
    }

    /// Writes them into `pg_wal`, which is there, while `files` runs; gives up when that fails.
    ///
    /// # Errors
    /// That of `files`; `WalMissing` when the archive lacks a segment; when one cannot be read or written.
    pub(in crate::restore) fn write_beside<T>(
        &self,
        writer: &Writer<'_>,
        files: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let done = thread::scope(|scope| -> Result<T> {
            let (go_on, given_up) = oneshot::channel::<()>();
            let begun = thread::Builder::new().spawn_scoped(scope, || {
                self.runtime.block_on(async {
                    tokio::select! {
                        written = self.write(writer) => written,
                        _ = given_up => Ok(()),
                    }
                })
            });
            let done = files()?;
            match begun {
                Ok(begun) => match begun.join() {
                    Ok(written) => written?,
                    Err(panic) => panic::resume_unwind(panic),
                },
                // The system denies threads.
                Err(_) => self.runtime.block_on(self.write(writer))?,
            }
            drop(go_on);
            Ok(done)
        })?;
        self.settle(writer)?;
        Ok(done)
    }

    /// What was written, for who looks what recovery is about to do with it.
    pub(in crate::restore) fn in_place(&self, major: Major, start_lsn: Lsn) -> WalInPlace<'_> {
        WalInPlace {
            major,
            size: self.size,
            segments: &self.segments,
            start_lsn,
        }
    }

    async fn write(&self, writer: &Writer<'_>) -> Result<()> {
        stream::iter(&self.segments)
            .map(|segment| self.write_one(*segment, writer))
            .buffer_unordered(SEGMENTS_AT_ONCE)
            .try_collect()
            .await
    }

    async fn write_one(&self, segment: WalSegment, writer: &Writer<'_>) -> Result<()> {
        let name = segment.file_name(self.size);
        let fill = Filling::of(writer.create(&format!("pg_wal/{name}"))?);
        let file = ArchiveFile::Segment(segment);
        let filled = self.archive.walk(file, &fill, Filling::take).await;
        let filled = filled.map_err(|error| match error.kind() {
            Kind::NotFound => Error::new(
                Kind::WalMissing,
                format!("WAL segment {name} is not in the archive"),
            ),
            _ => error,
        })?;
        filled.end(self.size.get())
    }

    /// What is known of their permissions when the files are there.
    fn settle(&self, writer: &Writer<'_>) -> Result<()> {
        for segment in &self.segments {
            let name = segment.file_name(self.size);
            writer.admit_group(&format!("pg_wal/{name}"))?;
            // It comes from the archive; without this the server would archive it again.
            writer.write_whole(&format!("pg_wal/archive_status/{name}.done"), b"", false)?;
        }
        Ok(())
    }
}

/// A file that is written from its start to its end; again from its start when what came was damaged.
#[derive(Clone)]
struct Filling {
    file: Arc<File>,
    path: Arc<Path>,
    written_bytes: u64,
}

impl Filling {
    fn of((file, path): (File, PathBuf)) -> Self {
        Self {
            file: Arc::new(file),
            path: path.into(),
            written_bytes: 0,
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<()> {
        let at = self.written_bytes;
        let written = self.file.write_all_at(piece, at);
        written.context(|| format!("could not write \"{}\"", self.path.display()))?;
        self.written_bytes += u64::try_from(piece.len()).expect("usize has 64 bits");
        Ok(())
    }

    /// It has `size_bytes`, and nothing behind them of what was damaged.
    fn end(self, size_bytes: u64) -> Result<()> {
        if self.written_bytes != size_bytes {
            let (path, found) = (self.path.display(), self.written_bytes);
            let what =
                format!("\"{path}\" has {found} bytes in the archive, expected {size_bytes}");
            return Err(Error::new(Kind::Damaged, what));
        }
        let cut = self.file.set_len(size_bytes);
        cut.context(|| format!("could not write \"{}\"", self.path.display()))
    }
}
