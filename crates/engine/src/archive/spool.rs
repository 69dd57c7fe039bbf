//! Fetching ahead: segments that recovery will ask for next, kept on this machine.
//!
//! The spool holds objects as they lie in the repository, so every check of a fetch is made
//! again when one is used, and a crash, a half-written file or a changed one costs a fetch
//! and nothing else. It is a directory per repository and cluster, private to its user and
//! never in `pg_wal`, with the cluster's record beside the objects; an object of another
//! cluster does not pass. Only segments are kept, and at most as many as were asked for.
//! "Not there" is never answered from a spool.
//!
//! How a program uses it, without a daemon: after a successful [`super::get`] of a segment it
//! asks [`Spool::needs_prefetch`]; if so it starts a detached child (own session, no standard
//! streams) that calls [`prefetch`] with the segment just delivered, and exits at once. Of
//! several children one works, the others find the lock taken and end.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::{cluster, wal};
use pgstrata_pgdata::{ArchiveFile, WalSegment};
use rustix::fs::FlockOperation;

use super::file::{NewFile, remove_leftovers};
use super::{Archive, PIECE_BYTES, WHOLE_BYTES};
use crate::blocking::blocking;
use crate::error::{Error, FileContext, Kind, Result};
use crate::repository::Repository;

const RECORD: &str = "cluster";
const LOCK: &str = "lock";

/// A directory for segments fetched ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spool {
    root: PathBuf,
}

/// How to fetch ahead.
#[derive(Clone, Debug)]
pub struct PrefetchOptions {
    /// Where to.
    pub spool: Spool,
    /// How many segments ahead.
    pub count: usize,
    /// How many requests at once.
    pub jobs: usize,
}

/// What a prefetch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefetchOutcome {
    /// The files it fetched.
    pub fetched: Vec<String>,
    /// The archive ends before the last segment that was wanted.
    pub reached_end: bool,
    /// Another prefetch is at work; this one did nothing.
    pub busy: bool,
}

/// An object that was fetched ahead, not checked yet.
pub(super) struct Spooled {
    archive: Archive,
    file: ArchiveFile,
    object: Bytes,
}

impl Spooled {
    /// Writes the segment to `destination`; `None` when it is not good.
    pub(super) async fn deliver(self, destination: &Path) -> Option<u64> {
        let delivered = self.archive.deliver(self.file, self.object, destination);
        match delivered.await {
            Ok(raw_bytes) => Some(raw_bytes),
            Err(error) => {
                tracing::warn!(%error, "a segment fetched ahead cannot be used");
                None
            }
        }
    }
}

impl Spool {
    /// A spool below `root`, which is made when it is needed.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A spool below the system's directory for temporary files, one per user.
    #[must_use]
    pub fn in_temporary_directory() -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self::new(std::env::temp_dir().join(format!("pgstrata-spool-{user}")))
    }

    /// Whether less than half of the `count` segments after `file_name` are there, and nobody
    /// is fetching them.
    #[must_use]
    pub fn needs_prefetch(
        &self,
        repository: &Repository,
        cluster: &ClusterName,
        file_name: &str,
        count: usize,
    ) -> bool {
        let directory = self.directory(repository, cluster);
        let Some(archive) = cached_archive(&directory, repository, cluster) else {
            return count > 0;
        };
        let Ok(ArchiveFile::Segment(segment)) = archive.parse(file_name) else {
            return false;
        };
        let wanted = following(segment, count);
        let there = |s: &WalSegment| directory.join(s.file_name(archive.segment_size)).exists();
        let present = wanted.iter().filter(|s| there(s)).count();
        present * 2 < count && lock(&directory).is_ok_and(|held| held.is_some())
    }

    /// The object of a segment that was fetched ahead for the cluster that asks; it leaves
    /// the spool with this.
    pub(super) fn take(
        &self,
        repository: &Repository,
        cluster: &ClusterName,
        file_name: &str,
        system_identifier: Option<u64>,
    ) -> Option<Spooled> {
        let directory = self.directory(repository, cluster);
        check_private(&directory).ok()?;
        let archive = cached_archive(&directory, repository, cluster)?;
        archive.check_asker(system_identifier).ok()?;
        let file @ ArchiveFile::Segment(_) = archive.parse(file_name).ok()? else {
            return None;
        };
        let entry = directory.join(file.file_name(archive.segment_size));
        let object = fs::read(&entry).ok()?.into();
        // Used or bad, it will not be asked for again.
        let _ = fs::remove_file(&entry);
        Some(Spooled {
            archive,
            file,
            object,
        })
    }

    /// Removes everything that was fetched ahead for `cluster`.
    pub fn clear(&self, repository: &Repository, cluster: &ClusterName) {
        let directory = self.directory(repository, cluster);
        if check_private(&directory).is_ok() {
            remove_entries(&directory, &[]);
        }
    }

    /// One directory per repository and cluster.
    fn directory(&self, repository: &Repository, cluster: &ClusterName) -> PathBuf {
        let place = format!("{}\n{}", repository.url(), cluster.as_str());
        let digest = blake3::hash(place.as_bytes()).to_hex();
        self.root
            .join(format!("{}-{}", cluster.as_str(), &digest[..16]))
    }

    /// Makes the directory; refuses one that another user could have prepared.
    fn open(&self, repository: &Repository, cluster: &ClusterName) -> Result<PathBuf> {
        let directory = self.directory(repository, cluster);
        for path in [&self.root, &directory] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.context(|| format!("could not create \"{}\"", path.display()))?;
        }
        check_private(&directory)?;
        Ok(directory)
    }
}

/// Fetches the segments after `after_file` into the spool.
///
/// # Errors
/// `Refused` for a spool that others can write to; `File` and `Repository` when it cannot be
/// written or the archive cannot be read. The end of the archive is no error.
pub async fn prefetch(
    repository: &Repository,
    cluster: &ClusterName,
    after_file: &str,
    options: &PrefetchOptions,
) -> Result<PrefetchOutcome> {
    let directory = options.spool.open(repository, cluster)?;
    let held =
        lock(&directory).context(|| format!("could not lock \"{}\"", directory.display()))?;
    let Some(_held) = held else {
        return Ok(PrefetchOutcome {
            busy: true,
            ..PrefetchOutcome::default()
        });
    };
    let archive = Archive::load(repository, cluster).await?;
    let ArchiveFile::Segment(after) = archive.parse(after_file)? else {
        return Err(Error::new(
            Kind::Usage,
            format!("\"{after_file}\" is not a WAL segment"),
        ));
    };
    let wanted = following(after, options.count);
    prepare(&archive, &directory, &wanted)?;
    let missing = wanted.into_iter().map(ArchiveFile::Segment);
    let missing = missing.map(|file| (file, directory.join(file.file_name(archive.segment_size))));
    let fetches = missing
        .filter(|(_, entry)| !entry.exists())
        .map(|(file, entry)| {
            let archive = &archive;
            async move {
                let fetched = archive.fetch_object(file, &entry).await;
                (file, fetched)
            }
        });
    // The end of the archive ends the stream, and with it the requests beyond.
    let fetches: Vec<_> = fetches.collect();
    let mut fetches = futures::stream::iter(fetches).buffered(archive.jobs_that_fit(options.jobs));
    let mut outcome = PrefetchOutcome::default();
    while let Some((file, fetched)) = fetches.next().await {
        match fetched {
            Ok(()) => outcome.fetched.push(file.file_name(archive.segment_size)),
            Err(error) if error.kind() == Kind::NotFound => {
                outcome.reached_end = true;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(outcome)
}

impl Archive {
    /// Objects held in memory at once stay within 128 MiB.
    fn jobs_that_fit(&self, jobs: usize) -> usize {
        let fit = usize::try_from(2 * WHOLE_BYTES / self.segment_size.get()).unwrap_or(1);
        jobs.min(fit).max(1)
    }

    async fn fetch_object(&self, file: ArchiveFile, entry: &Path) -> Result<()> {
        let key = self.key(file);
        if self.segment_size.get() <= WHOLE_BYTES {
            let object = self.repository.get(&key).await?;
            return self.keep(file, entry, vec![object]).await;
        }
        let header = self.present(file).await?;
        let (Some(_), Some(size)) = (header, self.repository.size(&key).await?) else {
            return Err(Error::new(Kind::NotFound, format!("there is no \"{key}\"")));
        };
        let mut pieces = NewFile::create(entry)?;
        let mut start = 0;
        while start < size {
            let end = (start + PIECE_BYTES).min(size);
            pieces.write(&self.repository.get_range(&key, start..end).await?)?;
            start = end;
        }
        pieces.publish()
    }

    async fn keep(&self, file: ArchiveFile, entry: &Path, object: Vec<Bytes>) -> Result<()> {
        let archive = self.clone();
        let entry = entry.to_owned();
        blocking(move || {
            let mut kept = NewFile::create(&entry)?;
            for piece in &object {
                archive.check_header(file, &wal::header(piece)?)?;
                kept.write(piece)?;
            }
            kept.publish()
        })
        .await
    }
}

fn following(segment: WalSegment, count: usize) -> Vec<WalSegment> {
    let next = std::iter::successors(Some(segment.next()), |s| Some(s.next()));
    next.take(count).collect()
}

/// Leaves the record of this cluster and the wanted segments in the directory, nothing else.
fn prepare(archive: &Archive, directory: &Path, wanted: &[WalSegment]) -> Result<()> {
    remove_leftovers(directory, Duration::ZERO);
    let path = directory.join(RECORD);
    let record = cluster::encode(&archive.record);
    let names: Vec<String> = wanted
        .iter()
        .map(|s| s.file_name(archive.segment_size))
        .collect();
    if fs::read(&path).ok().as_deref() == Some(&record[..]) {
        remove_entries(directory, &names);
        return Ok(());
    }
    remove_entries(directory, &[]);
    let mut file = NewFile::create(&path)?;
    file.write(&record)?;
    file.publish()
}

/// Removes the segments that are not in `keep`.
fn remove_entries(directory: &Path, keep: &[String]) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let kept = [RECORD, LOCK].contains(&name) || keep.iter().any(|k| k == name);
        if !kept && !name.starts_with('.') {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The archive as the record in the spool describes it.
fn cached_archive(
    directory: &Path,
    repository: &Repository,
    cluster: &ClusterName,
) -> Option<Archive> {
    let record = fs::read(directory.join(RECORD)).ok()?;
    Archive::new(repository, cluster, cluster::decode(&record).ok()?).ok()
}

/// The lock of one prefetch at a time; `None` when another holds it.
fn lock(directory: &Path) -> io::Result<Option<File>> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(directory.join(LOCK))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Checksums do not tell who wrote an object: only this user may have.
fn check_private(directory: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(directory)
        .context(|| format!("could not look at \"{}\"", directory.display()))?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.is_dir() && ours && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    let path = directory.display();
    Err(Error::new(
        Kind::Refused,
        format!("the spool \"{path}\" is not a directory that only this user can write to"),
    )
    .hint("remove it, or choose another directory for the spool"))
}
