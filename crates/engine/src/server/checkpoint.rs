//! What a primary's next checkpoint has to do, as far as the server tells.
//!
//! It is asked in the session for questions: nothing depends on the answers but the comfort of the server's users.

use std::time::Duration;

use pgstrata_pgdata::Lsn;
use pgstrata_store::error::Result;

use super::session::{Session, get, lsn, row_of};

/// The next checkpoint, seen at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointOutlook {
    /// Where the server inserted WAL at that moment.
    pub position: Lsn,
    /// Bytes from the redo location of the last checkpoint to there. A segment that was switched counts whole.
    pub wal_bytes: u64,
    /// How long that took, seconds.
    pub wal_seconds: f64,
    /// `checkpoint_timeout`, seconds.
    pub timeout_seconds: f64,
    /// `max_wal_size`, bytes.
    pub max_wal_bytes: f64,
    /// `checkpoint_completion_target`.
    pub target: f64,
}

impl CheckpointOutlook {
    /// For how long the server plans to spread it: a share of the time until `checkpoint_timeout` or `max_wal_size` asks for the next
    /// one, if WAL goes on coming at this rate (postmaster/checkpointer.c, `IsCheckpointOnSchedule`; access/transam/xlog.c,
    /// `CalculateCheckpointSegments`).
    #[must_use]
    pub fn spread_over(&self) -> Duration {
        let wal_bytes = lossy(self.wal_bytes).max(1.0);
        let until_full =
            self.max_wal_bytes / (1.0 + self.target) / wal_bytes * self.wal_seconds.max(1.0);
        let seconds = self.target * self.timeout_seconds.min(until_full);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// As near as it gets.
fn lossy(bytes: u64) -> f64 {
    let mebibytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    f64::from(mebibytes) * f64::from(1 << 20)
}

impl Session {
    /// Of a primary, what its next checkpoint has to do.
    ///
    /// # Errors
    /// When the server does not answer, or our role may not ask.
    pub async fn checkpoint_outlook(&self) -> Result<CheckpointOutlook> {
        let act = "could not ask what the server's next checkpoint has to do";
        let query = "SELECT pg_current_wal_insert_lsn()::text, redo_lsn::text,
                extract(epoch FROM clock_timestamp() - checkpoint_time)::float8,
                extract(epoch FROM current_setting('checkpoint_timeout')::interval)::float8,
                pg_size_bytes(current_setting('max_wal_size'))::float8,
                current_setting('checkpoint_completion_target')::float8
            FROM pg_control_checkpoint()";
        let row = row_of(self.client(), act, query, &[]).await?;
        let (position, redo) = (lsn(&row, 0, act)?, lsn(&row, 1, act)?);
        Ok(CheckpointOutlook {
            position,
            wal_bytes: position.bytes_since(redo).unwrap_or(0),
            wal_seconds: get(&row, 2, act)?,
            timeout_seconds: get(&row, 3, act)?,
            max_wal_bytes: get(&row, 4, act)?,
            target: get(&row, 5, act)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_spread_until_time_or_wal_asks_for_the_next_one() {
        let outlook = |wal_mib: u64, wal_seconds, timeout_seconds| CheckpointOutlook {
            position: Lsn::new(1),
            wal_bytes: wal_mib << 20,
            wal_seconds,
            timeout_seconds,
            max_wal_bytes: f64::from(1900 << 20),
            target: 0.9,
        };
        let seconds = |outlook: CheckpointOutlook| outlook.spread_over().as_secs_f64().round();
        for (wal_mib, wal_seconds, timeout, expected) in [
            // A tenth of max_wal_size in a minute: it would ask for the next one after ten.
            (100, 60.0, 300.0, 270.0),
            (100, 60.0, 3600.0, 540.0),
            (1000, 60.0, 300.0, 54.0),
            (0, 0.0, 300.0, 270.0),
            // The clock was set back.
            (100, -5.0, 300.0, 9.0),
        ] {
            let outlook = outlook(wal_mib, wal_seconds, timeout);
            assert!((seconds(outlook) - expected).abs() < 1.5, "{outlook:?}");
        }
    }
}
