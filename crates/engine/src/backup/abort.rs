//! Stopping everything at once: the first failure wins, all threads and tasks look here.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use tokio::sync::watch;

/// How often [`Progress::cancel`] is looked at: below what a person notices.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Shared between all parts of one backup. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Abort(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    first: Mutex<Option<Error>>,
    raised: watch::Sender<bool>,
}

impl Abort {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared {
            first: Mutex::new(None),
            raised: watch::Sender::new(false),
        }))
    }

    /// Ends the backup with `error`, unless it has already ended with another.
    pub(super) fn fail(&self, error: Error) {
        let mut first = self.0.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(error);
        }
        drop(first);
        self.0.raised.send_replace(true);
    }

    pub(super) fn is_raised(&self) -> bool {
        *self.0.raised.borrow()
    }

    /// The error the backup ended with, once; a placeholder for whoever asks later.
    pub(super) fn take(&self) -> Error {
        let mut first = self.0.first.lock().unwrap_or_else(PoisonError::into_inner);
        first
            .take()
            .unwrap_or_else(|| Error::new(Kind::Interrupted, "the backup was stopped"))
    }

    /// Resolves when the backup has ended with an error.
    pub(super) async fn raised(&self) {
        let mut raised = self.0.raised.subscribe();
        // The sender lives as long as `self`.
        raised.wait_for(|raised| *raised).await.ok();
    }

    /// Runs `act`, unless the backup ends first.
    pub(super) async fn guard<T>(&self, act: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.raised() => Err(self.take()),
            outcome = act => outcome,
        }
    }

    /// Raises when the caller cancels or `lost` resolves. Runs until aborted.
    pub(super) async fn watch(self, progress: Progress, lost: impl Future<Output = Error>) {
        tokio::pin!(lost);
        loop {
            tokio::select! {
                error = &mut lost => return self.fail(error),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if progress.is_cancelled() {
                return self.fail(interrupted());
            }
        }
    }
}

/// Runs what may be dropped at any point, unless the caller cancels first: the server may say nothing for long.
pub(super) async fn unless_cancelled<T>(
    progress: &Progress,
    act: impl Future<Output = Result<T>>,
) -> Result<T> {
    let cancelled = async {
        while !progress.is_cancelled() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        outcome = act => outcome,
        () = cancelled => Err(interrupted()),
    }
}

fn interrupted() -> Error {
    Error::new(Kind::Interrupted, "the backup was interrupted")
}
