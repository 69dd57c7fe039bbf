//! Objects that are too large for memory, on their way into a store that takes each in one piece.
//!
//! Such an object is written into a file without a name, and mapped: the system reads it again as it is sent, and takes it out
//! of memory as it needs to. The file goes with the process, however that ends.

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use memmap2::Mmap;

use crate::error::Result;

/// What `write` writes. It is held in memory where no file takes it, which is said.
pub(super) fn written(write: &dyn Fn(&mut dyn Write) -> Result<()>) -> Result<Bytes> {
    let directory = directory();
    match into_file(&directory, write)? {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            let directory = directory.display();
            tracing::warn!(
                "no file in \"{directory}\" takes the object ({error}), so it is held in memory; TMPDIR names another directory"
            );
            let mut body = Vec::new();
            write(&mut body).map(|()| body.into())
        }
    }
}

/// TMPDIR, or else where large temporary files belong (file-hierarchy(7)); `/tmp` is often memory.
fn directory() -> PathBuf {
    let large = Path::new("/var/tmp");
    match env::var_os("TMPDIR") {
        None if large.is_dir() => large.to_owned(),
        _ => env::temp_dir(),
    }
}

/// The outer error is that of `write`, the inner one that of the file.
fn into_file(
    directory: &Path,
    write: &dyn Fn(&mut dyn Write) -> Result<()>,
) -> Result<io::Result<Bytes>> {
    let file = match tempfile::tempfile_in(directory) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    let mut buffered = BufWriter::new(&file);
    let mut out = Remembering {
        out: &mut buffered,
        failed: None,
    };
    let written = write(&mut out);
    if let Some(error) = out.failed {
        return Ok(Err(error));
    }
    written?;
    let flushed = buffered.flush();
    drop(buffered);
    // What cannot be written later the page cache may forget, and then zeros would be read from there.
    let written = flushed.and_then(|()| file.sync_data());
    Ok(written.and_then(|()| mapped(&file)))
}

#[allow(
    unsafe_code,
    reason = "mapping a file is unsafe for others may change it"
)]
fn mapped(file: &File) -> io::Result<Bytes> {
    // SAFETY: the file has no name, so nobody else can open it, and nothing here writes to it any more.
    let map = unsafe { Mmap::map(file)? };
    Ok(Bytes::from_owner(map))
}

/// A file, and why it could not be written.
pub(super) struct Remembering<'a> {
    pub(super) out: &'a mut dyn Write,
    pub(super) failed: Option<io::Error>,
}

impl Write for Remembering<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes).map_err(|error| {
            let told = io::Error::new(error.kind(), error.to_string());
            self.failed = Some(error);
            told
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Kind};

    #[test]
    fn an_object_is_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let large: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
        for object in [&large[..], b"x", b""] {
            let write = |out: &mut dyn Write| {
                for piece in object.chunks(70_000) {
                    out.write_all(piece).unwrap();
                }
                Ok(())
            };
            let bytes = into_file(directory.path(), &write).unwrap().unwrap();
            assert_eq!(bytes, object);
            assert_eq!(written(&write).unwrap(), object);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_takes_nothing_is_another_error_than_an_object_that_cannot_be_made() {
        let absent = Path::new("/nowhere");
        assert!(into_file(absent, &|_| Ok(())).unwrap().is_err());
        let directory = tempfile::tempdir().unwrap();
        let changed = |_: &mut dyn Write| Err(Error::new(Kind::Refused, "it changed"));
        let error = into_file(directory.path(), &changed).unwrap_err();
        assert_eq!(error.kind(), Kind::Refused);
    }
}
