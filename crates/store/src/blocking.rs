//! CPU and file work off the threads that wait for the repository.

use std::time::Duration;

use crate::error::{Error, Kind, Result};

/// Runs `act` on a thread of its own. A panic there is a panic here.
///
/// # Errors
/// That of `act`; `Interrupted` when the runtime is shutting down.
pub async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(act).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::new(Kind::Interrupted, "the program is ending")),
        },
    }
}

/// What `act` answers within that time, on a thread of its own; nothing else. Who asks a file system that does not answer, one
/// of another machine say, waits for ever, and nobody can stop him: the thread is left to that, and ends with the process.
pub async fn answer_within<T: Send + 'static>(
    time: Duration,
    act: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let asked = tokio::task::spawn_blocking(act);
    match tokio::time::timeout(time, asked).await.ok()? {
        Ok(answer) => Some(answer),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}
