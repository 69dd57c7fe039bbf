//! `backup_manifest`, in which the restored files are listed with their checksums.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use pgstrata_pgdata::backup_manifest::{ManifestFile, WalRange};
use pgstrata_pgdata::{BackupManifestWriter, FileChecksum, Major};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::{Mode, OFlags, fchmod};

use super::write::give_to_owner;
use crate::restore::place::beneath;
use crate::restore::place::claim::Claimed;

/// `backup_manifest` on its way to disk.
pub(crate) struct ManifestSink {
    writer: BackupManifestWriter,
    file: TextFile,
}

impl ManifestSink {
    /// Begins it.
    pub(crate) fn create(claimed: &Claimed, major: Major, system_identifier: u64) -> Result<Self> {
        const NAME: &str = "backup_manifest";
        let root = &claimed.roots[0];
        let path = root.path.join(NAME);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let file = beneath::open(&root.dir, Path::new(NAME), flags, Mode::RUSR | Mode::WUSR)
            .context(|| format!("could not create \"{}\"", path.display()))?;
        fchmod(&file, Mode::RUSR | Mode::WUSR)
            .map_err(io::Error::from)
            .and_then(|()| give_to_owner(&file, &claimed.roots[0]))
            .context(|| format!("could not create \"{}\"", path.display()))?;
        let mut file = TextFile {
            path,
            file: BufWriter::new(file),
            error: None,
        };
        let begun = BackupManifestWriter::begin(major, system_identifier, &mut file);
        match begun {
            Ok(writer) => Ok(Self { writer, file }),
            Err(_) => Err(file.failure()),
        }
    }

    /// Names a file.
    pub(super) fn file(&mut self, path: &str, modified: i64, checksum: FileChecksum) -> Result<()> {
        let listed = ManifestFile {
            path: path.as_bytes(),
            modified,
            checksum,
        };
        self.writer
            .file(&listed, &mut self.file)
            .map_err(|_| self.file.failure())
    }

    /// Ends it.
    pub(super) fn finish(self, wal: WalRange) -> Result<()> {
        let Self { writer, mut file } = self;
        if writer.finish(&[wal], &mut file).is_err() {
            return Err(file.failure());
        }
        let path = file.path;
        file.file
            .into_inner()
            .map_err(io::IntoInnerError::into_error)
            .map(drop)
            .context(|| format!("could not write \"{}\"", path.display()))
    }
}

/// A file that text is formatted into; keeps the error that [`fmt::Error`] cannot carry.
struct TextFile {
    path: PathBuf,
    file: BufWriter<File>,
    error: Option<io::Error>,
}

impl TextFile {
    fn failure(&mut self) -> Error {
        let error = self
            .error
            .take()
            .unwrap_or_else(|| io::Error::other("formatting failed"));
        Error::new(
            Kind::File,
            format!("could not write \"{}\": {error}", self.path.display()),
        )
    }
}

impl fmt::Write for TextFile {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.file.write_all(text.as_bytes()).map_err(|e| {
            self.error = Some(e);
            fmt::Error
        })
    }
}
