//! Waiting until segments are in the archive.

use std::time::{Duration, Instant};

use futures::future;
use pgstrata_pgdata::{ArchiveFile, WalSegment};

use super::Archive;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;

/// Segments looked up at once while waiting.
const LOOKUPS: usize = 16;

/// An idle server has its last segment in the archive some hundredths of a second after a backup.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A tenth of a second while somebody may be watching; later it may add two per cent to the
/// wait, which saves an object store thousands of requests.
fn longest_pause(waited: Duration) -> Duration {
    (waited / 50).clamp(Duration::from_millis(100), Duration::from_secs(1))
}

impl Archive {
    /// Waits until every one of `segments` is in the archive, whole and of this cluster.
    ///
    /// # Errors
    /// `WalMissing` after `timeout`; `Interrupted` when `progress` is cancelled; `Repository` and
    /// `Damaged` at once.
    pub async fn wait_for(
        &self,
        segments: &[WalSegment],
        timeout: Duration,
        progress: &Progress,
    ) -> Result<()> {
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut missing = segments;
        loop {
            while !missing.is_empty() {
                let batch = &missing[..missing.len().min(LOOKUPS)];
                let arrived = self.count_arrived(batch).await?;
                missing = &missing[arrived..];
                if arrived < batch.len() {
                    break;
                }
                pause = FIRST_PAUSE;
            }
            let Some(first) = missing.first() else {
                return Ok(());
            };
            if progress.is_cancelled() {
                return Err(Error::new(
                    Kind::Interrupted,
                    "stopped while waiting for WAL",
                ));
            }
            if started.elapsed() >= timeout {
                let name = first.file_name(self.segment_size);
                return Err(never_arrived(&name, missing.len(), timeout).hint(
                    "look at pg_stat_archiver and the server's log for failures of archive_command",
                ));
            }
            let left = timeout.saturating_sub(started.elapsed());
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 3 / 2).min(longest_pause(started.elapsed()));
        }
    }

    /// How many of `segments` are there before the first that is not.
    async fn count_arrived(&self, segments: &[WalSegment]) -> Result<usize> {
        let lookups = segments.iter().map(|&segment| async move {
            let file = ArchiveFile::Segment(segment);
            match self.present(file).await? {
                Some(header) => self.check_header(file, &header).map(|()| true),
                None => Ok(false),
            }
        });
        let found = future::try_join_all(lookups).await?;
        Ok(found.iter().take_while(|there| **there).count())
    }
}

/// WAL that was waited for in vain: the first of so many segments.
#[must_use]
pub fn never_arrived(first: &str, missing: usize, timeout: Duration) -> Error {
    let others = match missing {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let seconds = timeout.as_secs();
    Error::new(
        Kind::WalMissing,
        format!("WAL segment \"{first}\"{others} did not arrive in the archive in {seconds} s"),
    )
}
