//! Objects that threads are creating in a directory.
//!
//! A thread cannot be told to stop. When a backup is given up, those that write its packs go on until they have given them their names;
//! who removes what the backup has left waits for that, or they would appear afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// A disk that takes longer for a pack has other troubles.
const PATIENCE: Duration = Duration::from_secs(10);

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How many are being created.
#[derive(Debug, Default)]
pub(super) struct Creates(Arc<()>);

impl Creates {
    /// One begins; it ends when this is dropped.
    pub(super) fn begin(&self) -> Arc<()> {
        Arc::clone(&self.0)
    }

    /// Waits until none is under way.
    pub(super) async fn end(&self) {
        let began = Instant::now();
        while Arc::strong_count(&self.0) > 1 && began.elapsed() < PATIENCE {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
