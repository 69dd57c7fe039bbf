//! Room laid up in a directory, so that a full one can be freed.
//!
//! Nothing is removed before a record of it is written, and a full disk takes no record. A hidden file holds some room;
//! who cannot write a removal gives part of it up and tries again. Nobody else does: a layer, be it merged or backed up, would
//! take all of it, and leave none for the removal that makes room. It is no object, and nothing depends on it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// A record of a removal takes 150 bytes for each layer, twice: room for three thousand layers.
const RESERVE_BYTES: u64 = 1 << 20;

/// What is given up at a time: another process that waits for room may take it first.
const PORTION_BYTES: u64 = RESERVE_BYTES / 4;

fn open(directory: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | more;
    let path = directory.join(".reserve");
    Ok(File::from(rustix::fs::open(
        &path,
        flags,
        Mode::from_raw_mode(0o640),
    )?))
}

/// Fills the reserve, with bytes that no file system makes smaller.
pub(super) fn lay_up(directory: &Path) -> io::Result<File> {
    let file = open(directory, OFlags::CREATE)?;
    let held = file.metadata()?.len();
    let mut at = held;
    while at < RESERVE_BYTES {
        let bytes: Vec<u8> = (0..PORTION_BYTES.min(RESERVE_BYTES - at))
            .map(|_| rand::random())
            .collect();
        let written = file
            .write_all_at(&bytes, at)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            // The last free bytes are better left to others.
            file.set_len(held)?;
            return Err(error);
        }
        at += PORTION_BYTES;
    }
    Ok(file)
}

/// Gives up a portion; false when nothing is left.
pub(super) fn free(directory: &Path) -> io::Result<bool> {
    let file = match open(directory, OFlags::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let held = file.metadata()?.len();
    if held == 0 {
        return Ok(false);
    }
    file.set_len(held.saturating_sub(PORTION_BYTES))?;
    file.sync_all()?;
    if held <= PORTION_BYTES {
        fs::remove_file(directory.join(".reserve"))?;
    }
    Ok(true)
}
