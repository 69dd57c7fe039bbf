//! Fetching ahead: segments that recovery will ask for next, kept on this machine.
//!
//! The spool holds objects as they lie in the repository, so every check of a fetch is made
//! again when one is used, and a crash, a half-written file or a changed one costs a fetch
//! and nothing else. It is a directory per repository, cluster and reader, private to its user and
//! never in `pg_wal`, with the cluster's record beside the objects; an object of another
//! cluster does not pass. A repository may have been replaced by another at the same URL, or may have lost the object, since
//! it was fetched: so the repository is asked for the object's header, which has the digest of the segment, before one is
//! used. Only segments are kept, at most as many as were asked for and [`MOST_BYTES`] of them.
//! "Not there" is never answered from a spool.
//!
//! All is done by the process that was asked for a segment, while it fetches that one, and before it ends: a child
//! that outlives it would be reaped by the server where that is process 1, and taken for a crashed one of its own. The
//! segment asked for is delivered as soon as it is there; others are begun for [`BEGIN_WITHIN`], and those begun are
//! waited for, because what is thrown away was paid for.
//!
//! How many: as many as there may be, until the archive's end is met. From then on one more each time, so that a standby
//! that follows a server asks for nothing that is not there yet.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{Either, select};
use pgstrata_layer::cluster;
use pgstrata_pgdata::{ArchiveFile, WalSegment, WalSegmentSize};
use rustix::fs::FlockOperation;

use super::file::NewFile;
use super::get::Decoded;
use super::mended::is_damage;
use super::sealed;
use super::{Archive, WHOLE_BYTES};
use crate::blocking::blocking;
use crate::cluster::ClusterRepository;
use crate::error::{Error, FileContext, Kind, Result};

const RECORD: &str = "cluster";
const LOCK: &str = "lock";
const WINDOW: &str = "window";

/// Segments in a spool, and in memory on their way there, have no more bytes than this.
const MOST_BYTES: u64 = 2 * WHOLE_BYTES;

/// Four requests at once hide the latency of a store; more of them would only delay the segment that is waited for.
const AT_ONCE: usize = 4;

/// A segment that is not on its way by then waits for its turn.
const BEGIN_WITHIN: Duration = Duration::from_millis(500);

/// Segments that are on their way are given up after this; the next call may find the store better.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// A spool that nobody has used for so long is of a recovery that is over.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A directory for segments fetched ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spool {
    root: PathBuf,
    reader: PathBuf,
}

/// How to fetch ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Where to.
    pub spool: Spool,
    /// How many segments ahead, at most.
    pub count: usize,
}

/// An object that was fetched ahead, not checked yet.
pub(super) struct Spooled {
    archive: Archive,
    file: ArchiveFile,
    object: Bytes,
}

impl Spooled {
    /// Writes the segment to `destination`; `None` when it is not good. It has its name there only when the repository has
    /// said that it is the segment that it holds now; that is asked while it is decoded.
    pub(super) async fn deliver(self, destination: &Path) -> Result<Option<u64>> {
        let decoding = self
            .archive
            .decode(self.file, self.object.clone(), destination);
        let (decoded, is_of_now) = futures::join!(decoding, self.is_of_now());
        if !is_of_now? {
            return Ok(None);
        }
        match decoded.and_then(Decoded::publish) {
            Ok(raw_bytes) => Ok(Some(raw_bytes)),
            Err(error) => {
                tracing::warn!(%error, "a segment fetched ahead cannot be used");
                Ok(None)
            }
        }
    }

    /// Whether the repository has this very segment now. Its header has the segment's digest, so that is one small request.
    async fn is_of_now(&self) -> Result<bool> {
        let sealing = self.archive.sealing().await?;
        let name = self.file.file_name(self.archive.segment_size);
        let ours = match sealed::header(sealing, &name, &self.object) {
            Ok(ours) => ours,
            Err(error) if is_damage(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        match self.archive.header_of(&self.archive.key(self.file)).await {
            Ok(Some(there)) if there == ours => Ok(true),
            Ok(_) => {
                tracing::warn!(
                    "the segment {} that was fetched ahead is not the one in the repository now, which is asked for it",
                    ours.file_name
                );
                Ok(false)
            }
            // Reading it says so, or finds what stands in for it.
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Spool {
    /// A spool below `root`, which is made when it is needed, for who works in the directory `reader`.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, reader: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            reader: reader.into(),
        }
    }

    /// The directory for temporary files of this user.
    #[must_use]
    pub fn default_root() -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        std::env::temp_dir().join(format!("pgstrata-spool-{user}"))
    }

    /// One directory per repository, cluster and reader.
    fn directory(&self, cluster: &ClusterRepository) -> PathBuf {
        let (url, name) = (cluster.repository.url(), cluster.name.as_str());
        let mut place = format!("{url}\n{name}\n").into_bytes();
        place.extend_from_slice(self.reader.as_os_str().as_encoded_bytes());
        let digest = blake3::hash(&place).to_hex();
        self.root.join(format!("{name}-{}", &digest[..16]))
    }

    /// Makes the directory; refuses one that another user could have prepared.
    fn open(&self, cluster: &ClusterRepository) -> Result<PathBuf> {
        let directory = self.directory(cluster);
        for path in [&self.root, &directory] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
            made.context(|| format!("could not create \"{}\"", path.display()))?;
        }
        check_root(&self.root)?;
        check_private(&directory)?;
        Ok(directory)
    }
}

impl Ahead {
    /// The spool's directory, when it is fit for use, and the archive as its record describes it to the cluster that asks.
    fn archive(
        &self,
        cluster: &ClusterRepository,
        system_identifier: Option<u64>,
    ) -> Option<(PathBuf, Archive)> {
        let directory = self.spool.directory(cluster);
        check_root(&self.spool.root).ok()?;
        check_private(&directory).ok()?;
        let archive = cached_archive(&directory, cluster)?;
        archive.check_asker(system_identifier).ok()?;
        Some((directory, archive))
    }

    /// The size of segments by the record in the spool, when there is one.
    pub(super) fn segment_size(&self, cluster: &ClusterRepository) -> Option<WalSegmentSize> {
        let (_, archive) = self.archive(cluster, None)?;
        Some(archive.segment_size)
    }

    /// What to fetch with a segment, going by the record in the spool, which need not be the cluster's any more:
    /// [`Neighbours::require`] says it when that is known.
    pub(super) fn neighbours(
        &self,
        cluster: &ClusterRepository,
        file_name: &str,
        system_identifier: Option<u64>,
    ) -> Option<Neighbours> {
        let (_, archive) = self.archive(cluster, system_identifier)?;
        let ArchiveFile::Segment(segment) = archive.parse(file_name).ok()? else {
            return None;
        };
        Neighbours::open(&archive, self, segment)
    }

    /// The object of a segment that was fetched ahead for the cluster that asks; it leaves
    /// the spool with this.
    pub(super) fn take(
        &self,
        cluster: &ClusterRepository,
        file_name: &str,
        system_identifier: Option<u64>,
    ) -> Option<Spooled> {
        let (directory, archive) = self.archive(cluster, system_identifier)?;
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
}

/// The segments that are fetched with one that was asked for.
pub(super) struct Neighbours {
    archive: Archive,
    directory: PathBuf,
    /// Of several calls one works; the lock goes with it.
    _lock: File,
    wanted: Vec<WalSegment>,
    /// As many as there may be: nothing speaks against there being all of them.
    is_full: bool,
    most: usize,
    gain: Mutex<Gain>,
    /// It fetches for another cluster than the repository's.
    is_void: AtomicBool,
}

#[derive(Default)]
struct Gain {
    fetched: Vec<String>,
    reached_end: bool,
    failed: bool,
}

/// How many segments of that size, in bytes, are fetched ahead where so many are asked for.
fn most(asked_for: usize, segment_size: u64) -> usize {
    match segment_size > WHOLE_BYTES {
        true => 0,
        false => asked_for.min(usize::try_from(MOST_BYTES / segment_size).unwrap_or(0)),
    }
}

impl Neighbours {
    /// What to fetch with `segment`; `None` when there is no room, or another call is at work.
    pub(super) fn open(archive: &Archive, ahead: &Ahead, segment: WalSegment) -> Option<Self> {
        let most = most(ahead.count, archive.segment_size.get());
        if most == 0 {
            return None;
        }
        match Self::prepare(archive, ahead, segment, most) {
            Ok(batch) => batch,
            Err(error) => {
                // Recovery gets its file all the same, only slower.
                tracing::info!(%error, "fetching no segments ahead");
                None
            }
        }
    }

    fn prepare(
        archive: &Archive,
        ahead: &Ahead,
        segment: WalSegment,
        most: usize,
    ) -> Result<Option<Self>> {
        let spool = &ahead.spool;
        let directory = spool.open(&archive.cluster)?;
        let held =
            lock(&directory).context(|| format!("could not lock \"{}\"", directory.display()))?;
        let Some(held) = held else {
            return Ok(None);
        };
        remove_forgotten(&spool.root, &directory);
        let window = window(&directory).unwrap_or(most).min(most);
        let wanted = following(segment, window);
        clean(archive, &directory, &wanted)?;
        Ok(Some(Self {
            archive: archive.clone(),
            directory,
            _lock: held,
            wanted,
            is_full: window == most,
            most,
            gain: Mutex::default(),
            is_void: AtomicBool::new(false),
        }))
    }

    /// Empties the spool, and keeps it empty, unless this fetches for the cluster of that archive.
    pub(super) fn require(&self, archive: &Archive) {
        if self.archive.record == archive.record {
            return;
        }
        self.is_void.store(true, Ordering::SeqCst);
        self.empty();
    }

    fn empty(&self) {
        let _ = fs::remove_file(self.directory.join(RECORD));
        remove_entries(&self.directory, &[]);
    }

    /// Runs `wanted`, which delivers the segment asked for, and fetches the others with it. Answers what came
    /// of it, and the files that were fetched.
    pub(super) async fn run_along(
        &self,
        wanted: impl Future<Output = Result<u64>>,
    ) -> (Result<u64>, Vec<String>) {
        let got = if self.is_full {
            self.run_beside(wanted).await
        } else {
            let got = wanted.await;
            if got.is_ok() {
                let _ = tokio::time::timeout(GIVE_UP_AFTER, self.fetch()).await;
            }
            got
        };
        let gain = std::mem::take(&mut *self.gain.lock().unwrap_or_else(PoisonError::into_inner));
        if self.is_void.load(Ordering::SeqCst) {
            // Also of what came since.
            self.empty();
            return (got, Vec::new());
        }
        self.remember(&got, &gain);
        (got, gain.fetched)
    }

    async fn run_beside(&self, wanted: impl Future<Output = Result<u64>>) -> Result<u64> {
        let (wanted, others) = (std::pin::pin!(wanted), std::pin::pin!(self.fetch()));
        match select(wanted, others).await {
            Either::Left((Ok(raw_bytes), others)) => {
                let _ = tokio::time::timeout(GIVE_UP_AFTER, others).await;
                Ok(raw_bytes)
            }
            Either::Left((failed, _)) => failed,
            Either::Right(((), wanted)) => wanted.await,
        }
    }

    /// Fetches in order, until the end of the archive or a failure.
    async fn fetch(&self) {
        let began = Instant::now();
        let fetches = self.wanted.iter().map(|segment| async move {
            let file = ArchiveFile::Segment(*segment);
            let entry = self
                .directory
                .join(file.file_name(self.archive.segment_size));
            if entry.exists() {
                return Ok(None);
            }
            if began.elapsed() > BEGIN_WITHIN {
                return Err(Error::new(Kind::Busy, "it is late"));
            }
            self.archive.fetch_object(file, &entry).await?;
            Ok(Some(file.file_name(self.archive.segment_size)))
        });
        let fetches: Vec<_> = fetches.collect();
        let mut fetches = futures::stream::iter(fetches).buffered(AT_ONCE);
        while let Some(fetched) = fetches.next().await {
            let mut gain = self.gain.lock().unwrap_or_else(PoisonError::into_inner);
            match fetched {
                Ok(name) => gain.fetched.extend(name),
                Err(error) => {
                    gain.reached_end = error.kind() == Kind::NotFound;
                    gain.failed = error.kind() != Kind::Busy;
                    tracing::debug!(%error, "fetching no more segments ahead");
                    return;
                }
            }
        }
    }

    /// How many to fetch the next time.
    fn remember(&self, got: &Result<u64>, gain: &Gain) {
        let next = match got {
            Err(error) if error.kind() == Kind::NotFound => 0,
            // It says nothing about the archive's end.
            Err(_) => return,
            Ok(_) if gain.reached_end => 0,
            Ok(_) if gain.failed => gain.fetched.len().max(1),
            Ok(_) => (self.wanted.len() * 2).clamp(1, self.most),
        };
        if matches!(got, Err(error) if error.kind() == Kind::NotFound) {
            // Nothing of what lies here will be asked for.
            remove_entries(&self.directory, &[]);
        }
        let path = self.directory.join(WINDOW);
        let text = next.to_string();
        if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            let written = NewFile::create(&path).and_then(|mut file| {
                file.write(text.as_bytes())?;
                file.publish()
            });
            if let Err(error) = written {
                tracing::debug!(%error, "could not keep the number of segments to fetch ahead");
            }
        }
    }
}

/// The number of segments to fetch ahead, when there is a reason for less than all.
fn window(directory: &Path) -> Option<usize> {
    let text = fs::read_to_string(directory.join(WINDOW)).ok()?;
    text.parse().ok()
}

impl Archive {
    async fn fetch_object(&self, file: ArchiveFile, entry: &Path) -> Result<()> {
        let object = self.object(file, &self.key(file)).await?;
        let archive = self.clone();
        let entry = entry.to_owned();
        let sealing = self.sealing().await?.clone();
        let name = file.file_name(self.segment_size);
        blocking(move || {
            archive.check_header(file, &sealed::header(&sealing, &name, &object)?)?;
            let mut kept = NewFile::create(&entry)?;
            kept.write(&object)?;
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
fn clean(archive: &Archive, directory: &Path, wanted: &[WalSegment]) -> Result<()> {
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
        let kept = [RECORD, LOCK, WINDOW].contains(&name) || keep.iter().any(|k| k == name);
        if !kept && !name.starts_with('.') {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes the spools of recoveries that are over.
fn remove_forgotten(root: &Path, but: &Path) {
    let Ok(entries) = fs::read_dir(root) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let age = entry.metadata().and_then(|m| m.modified()).ok();
        let age = age.and_then(|modified| modified.elapsed().ok());
        let forgotten = age.is_some_and(|age| age > FORGOTTEN_AFTER);
        if path != but && forgotten && is_spool(&path) {
            for name in names(&path) {
                let _ = fs::remove_file(path.join(name));
            }
            let _ = fs::remove_dir(&path);
        }
    }
}

/// Whether nothing but a spool is like this: the root may be a directory that somebody else uses too.
fn is_spool(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let digest = name.and_then(|name| name.rsplit_once('-')).map(|(_, d)| d);
    let named = digest.is_some_and(|d| d.len() == 16 && d.bytes().all(|b| b.is_ascii_hexdigit()));
    let own = |name: &String| {
        let segment = name.len() == 24 && name.bytes().all(|b| b.is_ascii_hexdigit());
        segment || [RECORD, LOCK, WINDOW].contains(&name.as_str())
    };
    named && check_private(path).is_ok() && path.join(LOCK).exists() && names(path).iter().all(own)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(name).collect()
}

/// The archive as the record in the spool describes it.
fn cached_archive(directory: &Path, cluster: &ClusterRepository) -> Option<Archive> {
    let record = fs::read(directory.join(RECORD)).ok()?;
    let record = pgstrata_layer::cluster::decode(&record).ok()?;
    Archive::new(&cluster.supposed(), record).ok()
}

/// The lock of one batch at a time; `None` when another holds it.
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
pub(super) fn check_private(directory: &Path) -> Result<()> {
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

/// What is in the root must stay what it is: nobody else may rename or remove it.
pub(super) fn check_root(root: &Path) -> Result<()> {
    let metadata = fs::metadata(root);
    let metadata = metadata.context(|| format!("could not look at \"{}\"", root.display()))?;
    let mode = metadata.mode();
    let safe = mode & 0o022 == 0 || mode & 0o1000 != 0;
    if metadata.is_dir() && metadata.uid() == 0 && safe {
        return Ok(());
    }
    check_private(root)
}

#[cfg(test)]
mod tests {
    use super::most;

    #[test]
    fn segments_ahead_are_bounded_by_their_bytes() {
        const MIB: u64 = 1 << 20;
        for (mib, count) in [(1, 8), (16, 8), (32, 4), (64, 2), (128, 0), (1024, 0)] {
            assert_eq!(most(8, mib * MIB), count, "{mib} MiB");
        }
        assert_eq!(most(3, 16 * MIB), 3);
        assert_eq!(most(0, 16 * MIB), 0);
    }
}
