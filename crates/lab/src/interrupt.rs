//! Ctrl-C: noticed, not obeyed at once, so that servers are stopped and
//! partial results kept.

use std::fs;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use postgres::{CancelToken, NoTls};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How often a wait looks up: nobody notices a twentieth of a second.
const GLANCE: Duration = Duration::from_millis(50);

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static SESSIONS: Mutex<Vec<CancelToken>> = Mutex::new(Vec::new());
static WATCHER: Once = Once::new();

/// The experiment was interrupted by the user.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Starts noticing SIGINT, SIGTERM, and SIGHUP where who has started us has not asked that it be ignored (nohup(1)).
///
/// # Errors
/// Fails when the kernel refuses.
pub fn install() -> Result<()> {
    let flag = Arc::clone(FLAG.get_or_init(Arc::default));
    let hangup = (!ignores_hangup()).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .context("could not watch for interruption")?;
    }
    Ok(())
}

/// Whether SIGHUP is ignored, or nobody knows (proc_pid_status(5)).
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let signals = ignored.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    signals.is_none_or(|signals| signals >> (SIGHUP - 1) & 1 == 1)
}

/// Whether the user asked to stop.
#[must_use]
pub fn requested() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails if the user asked to stop.
///
/// # Errors
/// [`Interrupted`].
pub fn check() -> Result<()> {
    if requested() {
        return Err(Interrupted.into());
    }
    Ok(())
}

/// Sleeps, but not beyond an interruption.
///
/// # Errors
/// [`Interrupted`].
pub fn sleep(duration: Duration) -> Result<()> {
    let end = std::time::Instant::now() + duration;
    while std::time::Instant::now() < end {
        check()?;
        std::thread::sleep(GLANCE.min(end.saturating_duration_since(std::time::Instant::now())));
    }
    check()
}

/// Waits for a child; an interruption kills it.
///
/// # Errors
/// [`Interrupted`], or when the child cannot be waited for.
pub fn wait(child: &mut Child) -> Result<ExitStatus> {
    // Glances get longer: a child of milliseconds is noticed at once.
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait().context("could not wait for a program")? {
            check()?;
            return Ok(status);
        }
        if requested() {
            // It may have ended by itself since.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Interrupted.into());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// Makes an interruption cancel what this session runs.
pub fn cancels(token: CancelToken) {
    SESSIONS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(token);
    WATCHER.call_once(|| {
        std::thread::spawn(|| {
            while !requested() {
                std::thread::sleep(GLANCE);
            }
            let sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
            for token in sessions.iter() {
                // The session may be gone, and then there is nothing to cancel.
                let _ = token.cancel_query(NoTls);
            }
        });
    });
}
