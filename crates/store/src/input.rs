//! Files that people name, out of which this program reads.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::error::{Error, FileContext, Kind, Result};

/// Whether what is read there belongs to this process, and to none that comes later: `<(...)` of a shell, standard input.
#[must_use]
pub fn is_of_process(path: &Path) -> bool {
    ["/dev/fd", "/dev/stdin", "/proc"]
        .iter()
        .any(|begin| path.starts_with(begin))
}

/// Refuses a pipe with a name in the file system: to open it waits for somebody who writes, perhaps for ever.
/// What cannot be looked up is left to who opens it.
///
/// # Errors
/// `File` for such a pipe; `act` reads like `could not read "/some/path"`.
pub fn require_no_named_pipe(path: &Path, act: impl FnOnce() -> String) -> Result<()> {
    let is_pipe = fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    if !is_pipe || is_of_process(path) {
        return Ok(());
    }
    let what = format!("{}: it is a named pipe", act());
    Err(Error::new(Kind::File, what)
        .hint("give a file, or what a command prints as <(COMMAND) or /dev/stdin"))
}

/// Refuses what is no file: to open a pipe waits for somebody who writes, perhaps for ever. A link to a file is as good as
/// the file. What cannot be looked up is left to who opens it.
///
/// # Errors
/// `File` for anything else; `act` reads like `could not read "/some/path"`.
pub fn require_file(path: &Path, act: impl FnOnce() -> String) -> Result<()> {
    let Ok(found) = fs::metadata(path).map(|found| found.file_type()) else {
        return Ok(());
    };
    let is = match found {
        found if found.is_file() => return Ok(()),
        found if found.is_dir() => "a directory",
        found if found.is_fifo() => "a named pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    };
    let what = format!("{}: it is {is}, and no file", act());
    Err(Error::new(Kind::File, what).hint("give a file, or a link to one"))
}

/// More than any settings take.
const MOST_BYTES: u64 = 1 << 20;

/// The text of a file with settings, which `what` names, such as "configuration file".
///
/// # Errors
/// `File` when it cannot be read; `Usage` when it holds more than 1 MiB, as a device that never ends.
pub fn read_settings(path: &Path, what: &str) -> Result<String> {
    let shown = path.display();
    let act = || format!("could not read {what} \"{shown}\"");
    require_no_named_pipe(path, act)?;
    let mut text = String::new();
    let mut opened = fs::File::open(path).context(act)?.take(MOST_BYTES + 1);
    opened.read_to_string(&mut text).context(act)?;
    if opened.limit() == 0 {
        let most = MOST_BYTES >> 10;
        return Err(Error::new(
            Kind::Usage,
            format!("{what} \"{shown}\" holds more than {most} KiB"),
        )
        .hint("is it the right file?"));
    }
    Ok(text)
}

/// Bits that others than the owner must not have on a file with a secret; one of root may be read by its group, so that an
/// administrator gives it to a service. The rule is that of libpq for private keys (`fe-secure-openssl.c`).
const OTHERS: u32 = 0o077;
const OTHERS_OF_ROOT: u32 = 0o037;

/// Whether others may use the secret in the file.
#[must_use]
pub fn is_open_to_others(file: &fs::Metadata) -> bool {
    let forbidden = match file.uid() {
        0 => OTHERS_OF_ROOT,
        _ => OTHERS,
    };
    file.mode() & forbidden != 0
}

/// Refuses a file with secrets that others may use; `what` names it, such as "credentials file". A pipe of a shell is nobody
/// else's.
///
/// # Errors
/// `Refused` when others may; `File` when it cannot be looked at.
pub fn require_private(path: &Path, what: &str) -> Result<()> {
    let shown = path.display();
    let found = fs::metadata(path).context(|| format!("could not read {what} \"{shown}\""))?;
    if !found.is_file() || !is_open_to_others(&found) {
        return Ok(());
    }
    let mode = found.mode() & 0o7777;
    let told = format!("{what} \"{shown}\" can be read or written by others (mode {mode:04o})");
    Err(Error::new(Kind::Refused, told).hint(format!(
        "run: chmod 600 \"{shown}\"; a file of root may be read by a group (mode 0640)"
    )))
}
