//! CPU and file work off the threads that wait for the repository.

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
