//! The WAL that makes the layer consistent, written while the files are. Recovery could fetch it itself; with it in place
//! the directory passes `pg_verifybackup` and, restored without recovery settings, stands on its own.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{panic, thread};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use pgstrata_pgdata::wal::WalSegment;
use pgstrata_pgdata::{Lsn, Major};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::progress::Progress;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::super::decide::own_wal::{LayerWal, SEGMENTS_AT_ONCE};
use super::super::decide::plan::PlanInner;
use super::super::replay::WalInPlace;
use super::write::Writer;

/// The segments, and who fetches them.
pub(in crate::restore) struct WalBeside {
    own: LayerWal,
    runtime: Handle,
}

impl WalBeside {
    pub(in crate::restore) fn of(plan: &PlanInner, runtime: &Handle) -> Result<Self> {
        Ok(Self {
            own: LayerWal::of(plan)?,
            runtime: runtime.clone(),
        })
    }

    /// Writes them into `pg_wal`, which is there, while `files` runs, whose progress is `part`. Each is given up when the
    /// other fails: files of a large cluster are hours of work.
    ///
    /// # Errors
    /// That of `files`; `WalMissing` when the archive lacks a segment; when one cannot be read or written.
    pub(in crate::restore) fn write_beside<T>(
        &self,
        writer: &Writer<'_>,
        part: &Progress,
        files: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let done = thread::scope(|scope| -> Result<T> {
            let (go_on, given_up) = oneshot::channel::<()>();
            let begun = thread::Builder::new().spawn_scoped(scope, || {
                let written = self.runtime.block_on(async {
                    tokio::select! {
                        written = self.write(writer) => written,
                        _ = given_up => Ok(()),
                    }
                });
                written.inspect_err(|_| part.cancel())
            });
            let Ok(begun) = begun else {
                // The system denies threads.
                self.runtime.block_on(self.write(writer))?;
                return files();
            };
            let done = files();
            let go_on = done.is_ok().then_some(go_on);
            match begun.join() {
                // What files say then is that they were interrupted.
                Ok(written) => written?,
                Err(panic) => panic::resume_unwind(panic),
            }
            drop(go_on);
            done
        })?;
        self.settle(writer)?;
        Ok(done)
    }

    /// What was written, for who looks what recovery is about to do with it.
    pub(in crate::restore) fn in_place(&self, major: Major, start_lsn: Lsn) -> WalInPlace<'_> {
        WalInPlace {
            major,
            size: self.own.size,
            segments: &self.own.segments,
            start_lsn,
        }
    }

    async fn write(&self, writer: &Writer<'_>) -> Result<()> {
        stream::iter(&self.own.segments)
            .map(|segment| self.write_one(*segment, writer))
            .buffer_unordered(SEGMENTS_AT_ONCE)
            .try_collect()
            .await
    }

    async fn write_one(&self, segment: WalSegment, writer: &Writer<'_>) -> Result<()> {
        let name = segment.file_name(self.own.size);
        let fill = Filling::of(writer.create(&format!("pg_wal/{name}"))?);
        let filled = self.own.walk(segment, &fill, Filling::take).await?;
        filled.end(self.own.size.get())
    }

    /// What is known of their permissions when the files are there.
    fn settle(&self, writer: &Writer<'_>) -> Result<()> {
        for segment in &self.own.segments {
            let name = segment.file_name(self.own.size);
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use jiff::Timestamp;
    use pgstrata_pgdata::{TimelineId, WalSegmentSize};
    use pgstrata_store::repository::Repository;

    use super::*;
    use crate::restore::copy::listing::ManifestSink;
    use crate::restore::place::claim::Claimed;
    use crate::restore::place::layout::{Layout, new_marker};

    #[tokio::test(flavor = "multi_thread")]
    async fn files_are_given_up_when_their_wal_cannot_be_read() {
        let scratch = tempfile::tempdir().unwrap();
        let data = fs::canonicalize(scratch.path()).unwrap().join("data");
        let layout = Layout::new(&data, None, None, &[], &[]).unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let marker = new_marker(&layout, "main", "label", String::new(), now);
        let claimed = Claimed::claim(&layout, &marker, "PG_15_2").unwrap();
        let part = Progress::default().of_part();
        let listing = ManifestSink::create(&claimed, Major::V15, 1).unwrap();
        let writer = Writer::new(&claimed.roots, Vec::new(), listing, &part).unwrap();
        writer.create_directory("pg_wal", 0o700).unwrap();
        let size = WalSegmentSize::try_from(1 << 20).unwrap();
        let lost = WalSegment {
            timeline: TimelineId::FIRST,
            number: 7,
        };
        let beside = WalBeside {
            own: LayerWal::for_test(&Repository::memory(), vec![lost], size),
            runtime: Handle::current(),
        };
        let files = || {
            let end = Instant::now() + Duration::from_secs(60);
            while !part.is_cancelled() {
                assert!(Instant::now() < end, "files go on without their WAL");
                thread::sleep(Duration::from_millis(1));
            }
            Err::<(), _>(Error::new(Kind::Interrupted, "interrupted"))
        };
        let outcome = tokio::task::block_in_place(|| beside.write_beside(&writer, &part, files));
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), Kind::WalMissing, "{error}");
    }
}
