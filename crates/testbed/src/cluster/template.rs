//! New clusters that are copies of one that initdb made: they cost a fifth of its work, and tests make hundreds.
//!
//! Templates are kept where `PGSTRATA_TEST_TEMPLATES` says, as `.cargo/config.toml` does for whatever cargo runs; without it
//! every cluster is made by initdb. A copy gets a system identifier of its own, as from initdb: it stands at the start of
//! `pg_control`, whose CRC-32C covers it (`ControlFileData`, `src/include/catalog/pg_control.h`), and in the first page of each
//! WAL segment (`XLogLongPageHeaderData`, `src/include/access/xlog_internal.h`).

use std::env;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use crc_fast::{CrcAlgorithm, checksum};

const TEMPLATES: &str = "PGSTRATA_TEST_TEMPLATES";

/// Where the system identifier stands in the first page of a WAL segment.
const IDENTIFIER_IN_WAL: u64 = 24;

/// A cluster that was made before, by the same initdb with the same arguments.
pub(super) struct Template {
    directory: PathBuf,
}

impl Template {
    /// None where no templates are kept, and for arguments that name places outside the data directory.
    pub(super) fn of(initdb: &Path, arguments: &[String]) -> Option<Self> {
        if arguments.iter().any(|argument| argument.contains('/')) {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        let user = rustix::process::geteuid().as_raw();
        let changed = fs::metadata(initdb).and_then(|file| file.modified()).ok()?;
        (user, initdb, changed, arguments).hash(&mut hasher);
        let templates = PathBuf::from(env::var_os(TEMPLATES)?);
        Some(Self {
            directory: templates.join(format!("{:016x}", hasher.finish())),
        })
    }

    /// Makes `data` a new cluster, which `initdb` makes there when there is no template yet.
    pub(super) fn create(&self, data: &Path, initdb: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.directory.is_dir() {
            copy(&self.directory, data)?;
            return identify(data);
        }
        initdb()?;
        self.keep(data)
    }

    /// Keeps a copy of the new cluster, unless somebody else has done it or is at it.
    fn keep(&self, data: &Path) -> Result<()> {
        let unfinished = self.directory.with_extension("new");
        let templates = self.directory.parent().unwrap_or(&self.directory);
        fs::create_dir_all(templates)
            .with_context(|| format!("could not create \"{}\"", templates.display()))?;
        let lock = self.directory.with_extension("lock");
        let lock = File::create(&lock)
            .with_context(|| format!("could not create \"{}\"", lock.display()))?;
        if lock.try_lock().is_err() || self.directory.is_dir() {
            return Ok(());
        }
        if unfinished.is_dir() {
            fs::remove_dir_all(&unfinished)
                .with_context(|| format!("could not remove \"{}\"", unfinished.display()))?;
        }
        copy(data, &unfinished)?;
        fs::rename(&unfinished, &self.directory)
            .with_context(|| format!("could not rename \"{}\"", unfinished.display()))
    }
}

/// A new cluster has files and directories only.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("could not copy \"{}\"", from.display());
    let mode = fs::metadata(from)
        .with_context(failed)?
        .permissions()
        .mode();
    DirBuilder::new()
        .mode(mode)
        .create(to)
        .with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let place = to.join(entry.file_name());
        if entry.file_type().with_context(failed)?.is_dir() {
            copy(&entry.path(), &place)?;
        } else {
            fs::copy(entry.path(), place).with_context(failed)?;
        }
    }
    Ok(())
}

/// Gives a cluster that never ran a system identifier of its own.
fn identify(data: &Path) -> Result<()> {
    let identifier = new_identifier()?.to_ne_bytes();
    let path = data.join("global/pg_control");
    let failed = || format!("could not give \"{}\" an identifier", data.display());
    let mut control = fs::read(&path).with_context(failed)?;
    let crc = crc_offset(&control).with_context(failed)?;
    control[..identifier.len()].copy_from_slice(&identifier);
    let sum = crc_of(&control[..crc]);
    control[crc..crc + sum.len()].copy_from_slice(&sum);
    fs::write(&path, control).with_context(failed)?;

    for entry in fs::read_dir(data.join("pg_wal")).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        if entry.file_type().with_context(failed)?.is_file() {
            let segment = File::options().write(true).open(entry.path());
            let segment = segment.with_context(failed)?;
            segment
                .write_all_at(&identifier, IDENTIFIER_IN_WAL)
                .with_context(failed)?;
        }
    }
    Ok(())
}

/// As initdb makes it: the time, and the process beside others of the same microsecond.
fn new_identifier() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let (micros, process) = (u64::from(now.subsec_micros()), u64::from(process::id()));
    Ok(now.as_secs() << 32 | micros << 12 | (process & 0xfff))
}

/// Where the CRC stands: its place differs between versions, and nowhere else is that of the bytes before.
fn crc_offset(control: &[u8]) -> Result<usize> {
    let offsets = (64..control.len().min(1024)).step_by(4);
    let mut offsets = offsets.filter(|&at| control[at..].starts_with(&crc_of(&control[..at])));
    offsets.next().context("pg_control has no checksum")
}

fn crc_of(bytes: &[u8]) -> [u8; 4] {
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(crc)
        .expect("a CRC-32 has 32 bits")
        .to_ne_bytes()
}
