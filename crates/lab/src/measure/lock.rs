//! One lab at a time on a machine: two would measure each other.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use crate::interrupt;

/// Holds the machine; dropping it lets the next lab begin.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// The file that is locked.
#[must_use]
pub fn path() -> PathBuf {
    std::env::var_os("PGSTRATA_LAB_LOCK").map_or_else(
        || std::env::temp_dir().join("pgstrata-lab.lock"),
        PathBuf::from,
    )
}

/// Waits until no other lab runs here; says for whom through `tell`.
///
/// # Errors
/// Fails when the file cannot be opened, or when interrupted.
pub fn acquire(mut tell: impl FnMut(&str)) -> Result<Lock> {
    let path = path();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("could not open lock \"{}\"", path.display()))?;
    let mut told = false;
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if !told {
            let mut holder = String::new();
            // A holder that cannot be read is still a holder.
            let _ = file.read_to_string(&mut holder);
            let _ = file.rewind();
            tell(&format!(
                "waiting for another lab on this machine: {}",
                holder.trim()
            ));
            told = true;
        }
        interrupt::sleep(Duration::from_millis(200))?;
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| {
            writeln!(
                file,
                "process {} since {}",
                std::process::id(),
                crate::measure::result::timestamp()
            )
        })
        .with_context(|| format!("could not write lock \"{}\"", path.display()))?;
    Ok(Lock { _file: file })
}
