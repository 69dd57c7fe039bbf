//! What a process may have and use: how many files and connections are open at most, and what that allows; its umask.
//!
//! Every command is made of workers and requests: a worker has one file of a cluster
//! open, a request to the repository one connection or one file. Both are counted, so
//! the sum is known whatever the number of tables: it stays below 256, and with a
//! smaller limit of the process there are fewer of both.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock, RwLock};
use std::thread::{self, Scope};

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

use crate::error::{Error, Kind, Result};

/// Beside workers and requests: up to eight files whose last pages are on their way to the disk, standard streams, the runtime, the log, sessions with
/// the server, the directories in which a restore works, and a name being looked up.
/// Measured: fewer than 30.
const OTHERS: u64 = 40;

/// With `MOST_REQUESTS` and `OTHERS` below 256, and more than a disk or a network card needs.
const MOST_WORKERS: u64 = 64;

/// See [`MOST_WORKERS`].
const MOST_REQUESTS: u64 = 96;

/// Raises the limit of open files as far as it may be raised. For the beginning of a program.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        // Some systems refuse "unlimited" although they name it; what there is will do.
        tracing::debug!("could not raise the limit of open files");
    }
}

/// Files that this process makes can be opened by their owner, whatever its umask says: it opens many of them again. For
/// the beginning of a program.
pub fn keep_owners_access() {
    // There is no way to ask without setting.
    let told = umask(Mode::RWXU | Mode::RWXG | Mode::RWXO);
    umask(told - Mode::RWXU);
}

/// When this process crashes it leaves no core dump. Other processes of the user may look into it all the same.
pub(crate) fn leave_no_core_dump() {
    // With nothing allowed the kernel still gives a dump to a program that collects them; with one byte it does not (core(5)).
    const NONE: u64 = 1;
    let limit = getrlimit(Resource::Core);
    if limit.current.is_none_or(|current| current > NONE) {
        let lowered = Rlimit {
            current: Some(NONE),
            ..limit
        };
        let _ = setrlimit(Resource::Core, lowered);
    }
}

/// How many workers there are when `jobs` are asked for; 0 asks for one per core.
#[must_use]
pub fn workers(jobs: usize) -> usize {
    let wanted = match jobs {
        0 => thread::available_parallelism().map_or(1, NonZeroUsize::get),
        jobs => jobs,
    };
    wanted.min(shares().workers)
}

/// Starts `count` workers, at least one: those that `work` makes of the numbers from 0. When the system denies a thread,
/// those that there are do the work; returns how many.
///
/// # Errors
/// `File` when the system denies the first.
pub fn start_workers<'scope, W>(
    scope: &'scope Scope<'scope, '_>,
    count: usize,
    mut work: impl FnMut(usize) -> W,
) -> Result<usize>
where
    W: FnOnce() + Send + 'scope,
{
    for number in 0..count.max(1) {
        let started = thread::Builder::new().spawn_scoped(scope, work(number));
        match started {
            Ok(_) => {}
            Err(error) if number == 0 => return Err(no_thread(&error.to_string())),
            Err(error) => {
                tracing::warn!(
                    "{number} workers instead of {count}: the system denies more threads ({error})"
                );
                // What they would have held is let go.
                (number + 1..count).for_each(|number| drop(work(number)));
                return Ok(number);
            }
        }
    }
    Ok(count.max(1))
}

/// Whether the system gives `count` threads more at once.
///
/// # Errors
/// `File` when it does not.
pub fn try_threads(count: usize) -> Result<()> {
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write();
    let threads = (0..count).map(|_| {
        let gate = Arc::clone(&gate);
        thread::Builder::new().spawn(move || drop(gate.read()))
    });
    let threads: Vec<_> = threads.collect();
    drop(closed);
    let mut outcome = Ok(());
    for thread in threads {
        match thread {
            // It does nothing that can fail.
            Ok(started) => drop(started.join()),
            Err(error) => outcome = Err(no_thread(&error.to_string())),
        }
    }
    outcome
}

/// The system denies a thread, for `reason`.
#[must_use]
pub fn no_thread(reason: &str) -> Error {
    Error::new(Kind::File, format!("could not start a thread: {reason}")).hint(
        "a limit of threads is reached (ulimit -u, systemd's LimitNPROC and TasksMax, a container's pids limit), or one of memory: \
         raise it, end other processes, or use fewer --jobs",
    )
}

/// How many requests to a repository there are at once.
pub(crate) fn requests() -> usize {
    shares().requests
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    workers: usize,
    requests: usize,
}

fn shares() -> Shares {
    static SHARES: OnceLock<Shares> = OnceLock::new();
    *SHARES.get_or_init(|| shares_of(getrlimit(Resource::Nofile).current))
}

/// `None` is a process without limit.
fn shares_of(limit: Option<u64>) -> Shares {
    let spare = limit.unwrap_or(u64::MAX).saturating_sub(OTHERS);
    let workers = (spare / 3).clamp(1, MOST_WORKERS);
    let requests = spare.saturating_sub(workers).clamp(2, MOST_REQUESTS);
    let small = |number| usize::try_from(number).expect("below 256");
    Shares {
        workers: small(workers),
        requests: small(requests),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_together_stays_below_256() {
        const { assert!(OTHERS + MOST_WORKERS + MOST_REQUESTS < 256) };
        let most = Shares {
            workers: 64,
            requests: 96,
        };
        for limit in [Some(256), Some(1024), None] {
            assert_eq!(shares_of(limit), most, "{limit:?}");
        }
    }

    #[test]
    fn a_small_limit_is_kept_and_leaves_something_of_each() {
        for limit in 0..256 {
            let Shares { workers, requests } = shares_of(Some(limit));
            assert!(workers >= 1 && requests >= 2, "{limit}");
            let used = OTHERS + u64::try_from(workers + requests).unwrap();
            assert!(used <= limit.max(OTHERS + 3), "{limit}: {used}");
        }
    }
}
