//! Pushing a file into the archive.
//!
//! A push ends with success only when the object is durable. A file that is there already
//! with the same contents is success too: the server repeats a push after a crash. What is there is then
//! read to its end. When it turns out damaged, the file is stored once more, where readers look then
//! ([`super::mended`]): so pushing an intact file is a repair.
//!
//! Neighbours: with a backlog the server asks for one file after the other. A push therefore
//! also pushes segments that are marked ready behind the one asked for. It does
//! not touch their marks: the server asks for each of them in turn, and each of those pushes
//! finds its object, leaves neighbours alone, and is quick. So only the server ever decides that
//! a file is archived, and a crash of either side loses nothing.
//!
//! Never is a later segment stored before an earlier one: to whoever reads meanwhile, or after this host
//! is lost, that would be a hole. Neighbours are read and compressed at once, and stored one after the other.
//!
//! What need not wait does not: the cluster's record, the file and what the archive has under its name ([`there`]) are read at
//! the same time, and the file is compressed meanwhile. Nothing is stored before all three are known.
//!
//! A segment brings the history of its timeline along when the server has no mark for that, and so will never ask for it;
//! and segments before it that have none. A server that crashed between finishing a segment and marking it as ready marks it
//! at a later checkpoint, and asks for the segments behind it first (`XLogWrite` and `XLogArchiveCheckDone` in PostgreSQL's
//! `xlog.c` and `xlogarchive.c`); when its host is lost meanwhile, the segment would be missing for good.
//!
//! Nor is a segment stored before the server has finished it: objects are never overwritten, so that the
//! finished one would be refused from then on. The server marks what is finished, in `archive_status` beside the segments.
//! A standby also marks a segment in which its timeline was left: that one ends there, and is not stored ([`super::whole`]).

mod there;

use std::io::Write;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use pgstrata_layer::cluster::{ClusterRecord, FORMAT};
use pgstrata_layer::frame::Codec;
use pgstrata_layer::wal::{self, WalDescription};
use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegment, WalSegmentSize};
use tokio::sync::mpsc::UnboundedSender;

use super::contents::{Contents, Encoded, first_page};
use super::file::directory_of;
use super::notes::Notes;
use super::sealed;
use super::whole::{Forks, is_marked};
use super::{Archive, WHOLE_BYTES};
use crate::blocking::blocking;
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::keys::Sealing;
use there::InArchive;

/// A push brings at most so many earlier segments along that the server has not marked. A crash leaves one or two; more are
/// left by a server that did not archive, and those it marks itself.
const MOST_UNMARKED: usize = 8;

/// Keys are read at most so many times more. Each time another epoch has begun, which a person does.
const MOST_EPOCHS_BEGUN: usize = 5;

/// How to push.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// How WAL is compressed.
    pub codec: Codec,
    /// At most this many ready neighbours are pushed along.
    pub neighbours: usize,
    /// At most this many files are read and compressed at once (fewer when segments are large).
    pub jobs: usize,
    /// Where to note what was pushed along, so that it need not be read back.
    pub notes: Option<Notes>,
    /// Whether the caller knows that segments are finished. Else a mark of the server must say so, or the
    /// segment after it, unless the file lies where no server leaves marks.
    pub finished: bool,
    /// Who is told as soon as the file itself is there, while neighbours are still pushed.
    pub told: Option<UnboundedSender<PushOutcome>>,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            codec: Codec::default(),
            neighbours: 8,
            jobs: 4,
            notes: None,
            finished: false,
            told: None,
        }
    }
}

impl PushOptions {
    /// Whether this host has just stored a file of that name, whatever its contents.
    fn have_noted(&self, file_name: &str) -> bool {
        let notes = self.notes.as_ref();
        notes.is_some_and(|notes| notes.know(file_name))
    }
}

/// What became of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// It was stored by this push.
    Stored {
        /// Length of the file.
        raw_bytes: u64,
        /// Length of its object.
        stored_bytes: u64,
    },
    /// It was in the archive already, with the same contents.
    Present,
    /// What was in the archive is damaged; this push stored the file beside it.
    Mended,
    /// Nothing was stored: the server asks for a file of its own that ends where the timeline was left, which is no segment.
    LeftOut,
}

/// What a push did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushOutcome {
    /// The file's name.
    pub file_name: String,
    /// What became of it.
    pub pushed: Pushed,
    /// Neighbours that are in the archive now. One that failed is not an error: the server
    /// will ask for it, and that push will say why.
    pub neighbours: Vec<(String, Pushed)>,
}

/// Pushes the file at `path` into the archive of `cluster`, and ready neighbours with it.
///
/// # Errors
/// `Usage` when the server archives no file of that name; `Refused` when the file is
/// incomplete, or not of this cluster; `AlreadyExists` when the archive holds other contents
/// under its name; `File` and `Repository` when it cannot be read or stored.
pub async fn push(
    cluster: &ClusterRepository,
    record: &ClusterRecord,
    path: &Path,
    options: &PushOptions,
) -> Result<PushOutcome> {
    let archive = Archive::new(cluster, record.clone())?;
    archive.push(path, None, options).await
}

/// As [`push`], for who has not read the cluster's record: it is read while the file is, and before anything is stored.
///
/// # Errors
/// As for [`push`]; those of [`ClusterRepository::record`].
pub async fn push_at_once(
    cluster: &ClusterRepository,
    path: &Path,
    options: &PushOptions,
) -> Result<PushOutcome> {
    let early = async {
        Ok(match cluster.expects_clear() {
            true => Early::look(cluster, path, options).await,
            // What is made of the file depends on keys, and they on the record.
            false => None,
        })
    };
    let (record, early) = futures::try_join!(cluster.record(), early)?;
    let archive = Archive::new(cluster, record)?;
    let early = early.filter(|early| early.agrees_with(&archive));
    archive.push(path, early, options).await
}

/// A file that was read, and what the archive has under its name.
struct Looked {
    readied: Readied,
    found: InArchive,
}

/// A file, as far as it has been made an object.
enum Readied {
    Read(Contents),
    Encoded(Encoded),
}

/// A segment that was looked at before the cluster's record was known. What the record would say was taken from the
/// segment itself, so this counts only when the record says the same.
struct Early {
    guessed: Archive,
    looked: Result<Looked>,
}

/// A file ready to be stored, unless there is something already.
struct Prepared {
    name: String,
    file: ArchiveFile,
    found: InArchive,
    object: Encoded,
}

impl Early {
    async fn look(cluster: &ClusterRepository, path: &Path, options: &PushOptions) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        if !is_segment_of_any_size(name) {
            return None;
        }
        let page = first_page(path)?;
        let record = ClusterRecord {
            name: cluster.name.as_str().to_owned(),
            format: FORMAT,
            system_identifier: page.system_identifier,
            major: u16::try_from(page.major.get()).ok()?,
            catalog_version: page.major.catalog_version(),
            block_size: page.block_size,
            wal_segment_size: u32::try_from(page.segment_size.get()).ok()?,
            created_at: Timestamp::UNIX_EPOCH,
            written_by: String::new(),
            sealing: None,
            retention: None,
        };
        let guessed = Archive::new(&cluster.supposed(), record).ok()?;
        let file @ ArchiveFile::Segment(segment) = guessed.parse(name).ok()? else {
            return None;
        };
        if !options.finished {
            guessed.require_finished(path, segment).ok()?;
        }
        let is_noted = options.have_noted(name);
        let codec = (!is_noted).then_some(options.codec);
        let looked = guessed.look(path, file, codec, is_noted).await;
        Some(Self { guessed, looked })
    }

    /// Whether all was right that was guessed of the record and that a push looks at.
    fn agrees_with(&self, archive: &Archive) -> bool {
        let (guessed, read) = (&self.guessed.record, &archive.record);
        guessed.sealing == read.sealing
            && guessed.system_identifier == read.system_identifier
            && guessed.major == read.major
            && guessed.wal_segment_size == read.wal_segment_size
    }
}

impl Readied {
    fn description(&self) -> &WalDescription {
        match self {
            Self::Read(contents) => &contents.description,
            Self::Encoded(object) => &object.contents.description,
        }
    }

    /// The object; made when it is waited for, and not before.
    async fn encoded(self, codec: Codec) -> Result<Encoded> {
        match self {
            Self::Read(contents) => blocking(move || contents.encode(codec)).await,
            Self::Encoded(object) => Ok(object),
        }
    }
}

impl Archive {
    /// Reads the keys again when an epoch began while they were read: whoever changes keys must not make the archiver fail.
    async fn with_newest_keys(mut self) -> Result<Self> {
        for _ in 0..MOST_EPOCHS_BEGUN {
            let Sealing::Sealed(ring) = self.sealing().await? else {
                return Ok(self);
            };
            match ring.is_behind(self.cluster.home()).await? {
                false => return Ok(self),
                true => self.cluster = self.cluster.supposed(),
            }
        }
        self.cluster.require_newest_epoch().await?;
        Ok(self)
    }

    async fn push(
        self,
        path: &Path,
        early: Option<Early>,
        options: &PushOptions,
    ) -> Result<PushOutcome> {
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        let file = self.parse(name)?;
        let doing = |error: Error| error.while_doing(format!("could not archive \"{name}\""));
        let archive = self.with_newest_keys().await.map_err(doing)?;
        let looked = match early {
            Some(early) => early.looked,
            None => archive.look_at_finished(path, file, options).await,
        };
        let looked = looked.map_err(doing)?;
        let (mut forks, mut is_left_out) = (Forks::default(), false);
        if let (ArchiveFile::Segment(segment), false) = (file, options.finished) {
            forks = Forks::beside(directory_of(path)).map_err(doing)?;
            let leaving_out = archive.leaves_out(path, segment, &forks);
            is_left_out = leaving_out.await.map_err(doing)?;
        }
        if let (ArchiveFile::Segment(segment), InArchive::Nothing) = (file, &looked.found) {
            let unmarked = archive.push_unmarked(path, segment, &forks, options);
            unmarked.await.map_err(doing)?;
        }
        // What is there was pushed as a neighbour, and those behind it with it.
        let ready = match looked.found {
            InArchive::Nothing if !is_left_out => {
                let ready = archive.ready_neighbours(path, file, options.neighbours);
                archive.until_abandoned(path, ready, &forks).await
            }
            _ => Vec::new(),
        };
        let made = archive.prepare(path, ready, options);
        let mut made = pin!(made);
        // While it is stored the first ones are read; none is stored before it is there.
        let storing = async {
            let pushed = match is_left_out {
                true => Pushed::LeftOut,
                false => archive.store(file, looked, options).await?,
            };
            let outcome = PushOutcome {
                file_name: name.to_owned(),
                pushed,
                neighbours: Vec::new(),
            };
            if let Some(told) = &options.told {
                // Nobody may be waiting for it any more.
                let _ = told.send(outcome.clone());
            }
            Ok(outcome)
        };
        let (outcome, first) = futures::join!(storing, made.next());
        let outcome = outcome.map_err(doing)?;
        let neighbours = archive.push_neighbours(first, made, options).await;
        Ok(PushOutcome {
            neighbours,
            ..outcome
        })
    }

    /// Stores what lies beside a segment, belongs before it, and has no mark of the server: the history of its timeline, when
    /// the server was promoted while it archived nothing, and segments that a crash kept from being marked.
    async fn push_unmarked(
        &self,
        path: &Path,
        segment: WalSegment,
        forks: &Forks,
        options: &PushOptions,
    ) -> Result<()> {
        let directory = path.parent().unwrap_or(path);
        for file in self.unmarked_before(directory, segment, options) {
            let name = file.file_name(self.segment_size);
            let path = directory.join(&name);
            let pushed = async {
                if let ArchiveFile::Segment(segment) = file
                    && self.abandoned(&path, segment, forks).await?.is_some()
                {
                    return Ok(());
                }
                let looked = self.look(&path, file, None, false).await?;
                self.store(file, looked, options).await.map(|_| ())
            };
            let doing =
                |error: Error| error.while_doing(format!("could not archive \"{name}\" with it"));
            pushed.await.map_err(doing)?;
        }
        Ok(())
    }

    /// In the order in which they are to be stored.
    fn unmarked_before(
        &self,
        directory: &Path,
        segment: WalSegment,
        options: &PushOptions,
    ) -> Vec<ArchiveFile> {
        let marks = directory.join("archive_status");
        if !marks.is_dir() {
            return Vec::new();
        }
        let is_unmarked = |file: &ArchiveFile| {
            let name = file.file_name(self.segment_size);
            directory.join(&name).exists() && !is_marked(&marks, &name)
        };
        let history = ArchiveFile::History(segment.timeline);
        let has_history = segment.timeline != TimelineId::FIRST;
        let history = Some(history).filter(|file| has_history && is_unmarked(file));
        // What the caller alone knows to be finished the server marks later.
        let most = if options.finished { 0 } else { MOST_UNMARKED };
        let before = |segment: &WalSegment| {
            let number = segment.number.checked_sub(1)?;
            Some(WalSegment { number, ..*segment })
        };
        let earlier = std::iter::successors(before(&segment), before);
        let earlier = earlier.take(most).take_while(|earlier| {
            is_unmarked(&ArchiveFile::Segment(*earlier)) && self.has_begun(directory, *earlier)
        });
        let mut earlier: Vec<_> = earlier.map(ArchiveFile::Segment).collect();
        earlier.reverse();
        history.into_iter().chain(earlier).collect()
    }

    /// Reads and compresses these files, some at once, in order.
    fn prepare(
        &self,
        path: &Path,
        files: Vec<ArchiveFile>,
        options: &PushOptions,
    ) -> impl Stream<Item = Result<Prepared>> {
        let codec = options.codec;
        let made = files.into_iter().map(move |file| async move {
            let name = file.file_name(self.segment_size);
            let path = path.with_file_name(&name);
            let looked = self.look(&path, file, Some(codec), false).await?;
            Ok(Prepared {
                name,
                file,
                found: looked.found,
                object: looked.readied.encoded(codec).await?,
            })
        });
        let made: Vec<_> = made.collect();
        futures::stream::iter(made).buffered(self.neighbours_at_once(options))
    }

    /// Stores neighbours one after the other, while those behind are made.
    async fn push_neighbours(
        &self,
        first: Option<Result<Prepared>>,
        mut made: Pin<&mut impl Stream<Item = Result<Prepared>>>,
        options: &PushOptions,
    ) -> Vec<(String, Pushed)> {
        let (mut along, mut ready) = (Vec::new(), first);
        while let Some(neighbour) = ready {
            let stored = self.push_neighbour(neighbour, options);
            let (stored, next) = futures::join!(stored, made.next());
            match stored {
                Ok(pushed) => along.push(pushed),
                Err(error) => {
                    // What is behind it must not be there without it.
                    tracing::debug!(%error, "could not archive a neighbour");
                    break;
                }
            }
            ready = next;
        }
        along
    }

    async fn push_neighbour(
        &self,
        ready: Result<Prepared>,
        options: &PushOptions,
    ) -> Result<(String, Pushed)> {
        let ready = ready?;
        let digest = ready.object.contents.description.raw_digest;
        let pushed = match ready.found {
            InArchive::Nothing => self.create(ready.file, ready.object).await?,
            _ => self.settle_encoded(ready.file, ready.object).await?,
        };
        if let Some(notes) = &options.notes {
            notes.add(&ready.name, &digest);
        }
        Ok((ready.name, pushed))
    }

    /// Files and objects stay within 128 MiB.
    fn neighbours_at_once(&self, options: &PushOptions) -> usize {
        let fit = usize::try_from(WHOLE_BYTES / self.segment_size.get()).unwrap_or(0);
        options.jobs.min(fit).max(1)
    }

    /// The segments after `file` that the server marked as ready, in order and without a gap.
    fn ready_neighbours(&self, path: &Path, file: ArchiveFile, limit: usize) -> Vec<ArchiveFile> {
        let (ArchiveFile::Segment(segment), Some(directory)) = (file, path.parent()) else {
            return Vec::new();
        };
        if self.segment_size.get() > WHOLE_BYTES {
            return Vec::new();
        }
        // Without the directory (the file is not in pg_wal) there is nothing to push along.
        let Ok(marks) = std::fs::read_dir(directory.join("archive_status")) else {
            return Vec::new();
        };
        let mut ready: Vec<ArchiveFile> = marks
            .flatten()
            .filter_map(|mark| mark.file_name().into_string().ok())
            .filter_map(|name| self.parse(name.strip_suffix(".ready")?).ok())
            .filter(|f| matches!(f, ArchiveFile::Segment(s) if *s > segment))
            .collect();
        ready.sort_unstable();
        let expected = std::iter::successors(Some(segment.next()), |s| Some(s.next()));
        let adjacent = ready.into_iter().zip(expected);
        let adjacent = adjacent.take_while(|(file, next)| *file == ArchiveFile::Segment(*next));
        adjacent.take(limit).map(|(file, _)| file).collect()
    }

    /// As [`Self::look`], at what the server writes no more: what is read before it has finished a segment is cut for good.
    async fn look_at_finished(
        &self,
        path: &Path,
        file: ArchiveFile,
        options: &PushOptions,
    ) -> Result<Looked> {
        if let (ArchiveFile::Segment(segment), false) = (file, options.finished)
            && path.exists()
        {
            self.require_finished(path, segment)?;
        }
        let is_noted = options.have_noted(&file.file_name(self.segment_size));
        self.look(path, file, None, is_noted).await
    }

    /// Reads the file while the archive is asked what it has, and makes it an object when it is told how. One that `is_noted`
    /// was stored by this host a moment ago.
    async fn look(
        &self,
        path: &Path,
        file: ArchiveFile,
        codec: Option<Codec>,
        is_noted: bool,
    ) -> Result<Looked> {
        let sealing = self.sealing().await?.clone();
        let read = |codec| self.ready(path, file, codec, sealing);
        let (readied, found) = match self.cluster.repository.directory() {
            // It answers at once, and what is there already need not be compressed.
            Some(_) => {
                let found = self.found(file, is_noted).await;
                let codec = codec.filter(|_| matches!(found, Ok(InArchive::Nothing)));
                // What is wrong with the file is said first.
                (read(codec).await?, found?)
            }
            None => {
                let (readied, found) = futures::join!(read(codec), self.found(file, is_noted));
                (readied?, found?)
            }
        };
        // One whose header is there is compared with that.
        if let (ArchiveFile::History(timeline), Readied::Read(contents)) = (file, &readied)
            && !matches!(found, InArchive::Header(_))
        {
            let history = contents.history(timeline)?;
            self.require_begun_there(&history).await?;
        }
        Ok(Looked { readied, found })
    }

    /// Reads the file, and makes it an object when it is told how.
    async fn ready(
        &self,
        path: &Path,
        file: ArchiveFile,
        codec: Option<Codec>,
        sealing: Sealing,
    ) -> Result<Readied> {
        let (archive, path) = (self.clone(), path.to_owned());
        blocking(move || {
            if let Some(codec) = codec
                && let Some(encoded) =
                    Contents::read_encoded(&archive, &path, file, &sealing, codec)?
            {
                return Ok(Readied::Encoded(encoded));
            }
            let contents = Contents::read(&archive, &path, file, sealing)?;
            Ok(match codec {
                Some(codec) => Readied::Encoded(contents.encode(codec)?),
                None => Readied::Read(contents),
            })
        })
        .await
    }

    async fn store(
        &self,
        file: ArchiveFile,
        looked: Looked,
        options: &PushOptions,
    ) -> Result<Pushed> {
        let description = looked.readied.description().clone();
        if let InArchive::Header(header) = &looked.found {
            self.check_same(&description, header)?;
            let notes = options.notes.as_ref();
            if notes.is_some_and(|n| n.take(&description.file_name, &description.raw_digest)) {
                self.cluster
                    .repository
                    .make_durable(&self.key(file))
                    .await?;
                return Ok(Pushed::Present);
            }
        }
        let encoding = looked.readied.encoded(options.codec);
        match looked.found {
            InArchive::Nothing => self.create(file, encoding.await?).await,
            _ => self.settle(file, &description, encoding).await,
        }
    }

    async fn create(&self, file: ArchiveFile, object: Encoded) -> Result<Pushed> {
        let raw_bytes = object.contents.description.raw_length;
        match self.put(&self.key(file), &object).await {
            Ok(stored_bytes) => Ok(Pushed::Stored {
                raw_bytes,
                stored_bytes,
            }),
            // Another push was quicker; it may have compressed in another way.
            Err(error) if error.kind() == Kind::AlreadyExists => {
                self.settle_encoded(file, object).await
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the object `key`; answers its length.
    async fn put(&self, key: &str, object: &Encoded) -> Result<u64> {
        let repository = &self.cluster.repository;
        let Some(body) = &object.body else {
            let (contents, codec) = (object.contents.clone(), object.codec);
            let length = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&length);
            let write = move |out: &mut dyn Write| {
                counted.store(contents.write(codec, out)?, Ordering::Relaxed);
                Ok(())
            };
            repository.create_written(key, write).await?;
            return Ok(length.load(Ordering::Relaxed));
        };
        repository.create(key, body.clone()).await?;
        Ok(u64::try_from(body.len()).unwrap_or(u64::MAX))
    }

    /// The header of the object that holds `file`, or of what stands in for it; `None` when there is none.
    pub(super) async fn present(&self, file: ArchiveFile) -> Result<Option<wal::WalHeader>> {
        let read = async |key: String| self.header_of(&key).await;
        let absent = || Error::new(Kind::NotFound, "there is no such object");
        let found = self.first_there(file, async |key| read(key).await?.ok_or_else(absent));
        match found.await {
            Ok(header) => Ok(Some(header)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The header of the object `key`; `None` when there is none.
    pub(super) async fn header_of(&self, key: &str) -> Result<Option<wal::WalHeader>> {
        let sealing = self.sealing().await?;
        let read = match sealing {
            Sealing::Clear => {
                let length = u64::try_from(wal::HEADER_BYTES).unwrap_or(u64::MAX);
                self.cluster.repository.get_range(key, 0..length).await
            }
            Sealing::Sealed(_) => {
                let length = u64::try_from(sealed::HEAD_BYTES).unwrap_or(u64::MAX);
                self.cluster.repository.get_up_to(key, 0..length).await
            }
        };
        // What stands in for an object has its name, and a number.
        let name = key
            .rsplit('/')
            .next()
            .and_then(|name| name.split('-').next());
        match read {
            Ok(bytes) => {
                let header = sealed::header(sealing, name.unwrap_or_default(), &bytes);
                let header =
                    header.map_err(|e| e.while_doing(format!("could not read \"{key}\"")))?;
                Ok(Some(header))
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a segment may have that name: the smaller segments are, the more of them there are.
fn is_segment_of_any_size(name: &str) -> bool {
    let smallest = WalSegmentSize::try_from(1 << 20).expect("1 MiB is a size of segments");
    matches!(
        ArchiveFile::parse(name, smallest),
        Ok(ArchiveFile::Segment(_))
    )
}
