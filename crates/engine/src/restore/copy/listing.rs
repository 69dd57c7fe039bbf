//! `backup_manifest`, in which the restored files are listed with their checksums.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Seek as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::backup_manifest::{ManifestFile, WalRange};
use pgstrata_pgdata::{BackupManifestWriter, FileChecksum, Major};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use rustix::fs::{Mode, OFlags, fchmod};
use sha2::{Digest as _, Sha256};

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
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
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

    /// Ends it, without the files that are `gone` since they were named.
    pub(super) fn finish(self, wal: WalRange, gone: &BTreeSet<String>) -> Result<()> {
        let Self { writer, mut file } = self;
        if writer.finish(&[wal], &mut file).is_err() {
            return Err(file.failure());
        }
        let path = file.path;
        let written = file.file.into_inner();
        let written = written.map_err(io::IntoInnerError::into_error);
        let written = match gone.is_empty() {
            true => written.map(drop),
            false => written.and_then(|file| leave_out(&file, gone)),
        };
        written.context(|| format!("could not write \"{}\"", path.display()))
    }
}

/// Takes the lines of files that are `gone` out of a manifest. Each file has a line, and none of a relation is the last, because
/// `pg_control` comes behind them. The last line of all has the checksum of those before it.
fn leave_out(mut manifest: &File, gone: &BTreeSet<String>) -> io::Result<()> {
    const CHECKSUM: &str = "\"Manifest-Checksum\": ";
    manifest.rewind()?;
    let mut lines = BufReader::new(manifest);
    let mut hash = Sha256::new();
    let (mut line, mut end) = (String::new(), 0);
    while lines.read_line(&mut line)? > 0 {
        if line.starts_with(CHECKSUM) {
            let digest = std::mem::take(&mut hash).finalize();
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            line = format!("{CHECKSUM}\"{digits}\"}}\n");
        }
        let named = line.strip_prefix("{ \"Path\": \"").unwrap_or_default();
        let named = named.split('"').next().unwrap_or_default();
        if !gone.contains(named) {
            hash.update(&line);
            // What was read is longer.
            manifest.write_all_at(line.as_bytes(), end)?;
            end += u64::try_from(line.len()).expect("usize has 64 bits");
        }
        line.clear();
    }
    manifest.set_len(end)
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

#[cfg(test)]
mod tests {
    use super::*;
    use pgstrata_pgdata::{Lsn, TimelineId};

    /// The manifest of files with one byte.
    fn manifest(files: &[&str], gone: &BTreeSet<String>) -> String {
        let written = tempfile::NamedTempFile::new().unwrap();
        let mut file = TextFile {
            path: written.path().to_owned(),
            file: BufWriter::new(written.reopen().unwrap()),
            error: None,
        };
        let writer = BackupManifestWriter::begin(Major::V18, 7, &mut file).unwrap();
        let mut sink = ManifestSink { writer, file };
        for path in files {
            sink.file(path, 0, FileChecksum::of(b"x")).unwrap();
        }
        let wal = WalRange {
            timeline: TimelineId::FIRST,
            start: Lsn::new(1),
            end: Lsn::new(2),
        };
        sink.finish(wal, gone).unwrap();
        std::fs::read_to_string(written.path()).unwrap()
    }

    #[test]
    fn a_manifest_without_a_file_is_one_in_which_it_was_never_named() {
        let files = ["a", "base/5/17", "base/5/17.1", "base/5/17_vm", "c"];
        let gone = ["base/5/17", "base/5/17_vm"];
        let left = files.into_iter().filter(|file| !gone.contains(file));
        let left: Vec<&str> = left.collect();
        let gone = BTreeSet::from(gone.map(str::to_owned));
        let expected = manifest(&left, &BTreeSet::new());
        assert_eq!(manifest(&files, &gone), expected);
    }
}
