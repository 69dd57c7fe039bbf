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
//! Nor is a segment stored before the server has finished it: objects are never overwritten, so that the
//! finished one would be refused from then on. The server marks what is finished, in `archive_status` beside the segments.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use futures::future;
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::digest::ContentHasher;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::wal::{self, WalDescription, WalWriter};
use pgstrata_pgdata::{ArchiveFile, TimelineHistory, WalPageHeader, WalSegment};

use super::mended::{MOST_MENDED, is_damage};
use super::notes::Notes;
use super::{Archive, WHOLE_BYTES};
use crate::blocking::blocking;
use crate::catalog::hex;
use crate::cluster::ClusterRepository;
use crate::error::{Error, FileContext, Kind, Result};

/// Files are read in pieces of this size.
const READ_BYTES: usize = 1 << 20;

/// A history is a line per timeline, a backup label a dozen lines; larger ones are neither.
const MAX_TEXT_BYTES: u64 = 16 << 20;

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
}

impl Default for PushOptions {
    fn default() -> Self {
        Self {
            codec: Codec::default(),
            neighbours: 8,
            jobs: 4,
            notes: None,
            finished: false,
        }
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
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    let file = archive.parse(name)?;
    let doing = |error: Error| error.while_doing(format!("could not archive \"{name}\""));
    let looked = archive.look(path, file).await.map_err(doing)?;
    if let (ArchiveFile::Segment(segment), false) = (file, options.finished) {
        archive.require_finished(path, segment).map_err(doing)?;
    }
    // What is there was pushed as a neighbour, and those behind it with it.
    let fresh = matches!(looked.found, InArchive::Nothing);
    let pushed = archive.store(file, looked, options).await.map_err(doing)?;
    let neighbours = match fresh {
        true => archive.push_neighbours(path, file, options).await,
        false => Vec::new(),
    };
    Ok(PushOutcome {
        file_name: name.to_owned(),
        pushed,
        neighbours,
    })
}

/// A file that was read, and what the archive has under its name.
struct Looked {
    contents: Contents,
    found: InArchive,
}

enum InArchive {
    Nothing,
    Header(wal::WalHeader),
    Damage,
}

/// A file ready to be stored, unless there is something already.
struct Prepared {
    name: String,
    file: ArchiveFile,
    found: InArchive,
    object: Encoded,
}

impl Archive {
    async fn push_neighbours(
        &self,
        path: &Path,
        file: ArchiveFile,
        options: &PushOptions,
    ) -> Vec<(String, Pushed)> {
        let ready = self.ready_neighbours(path, file, options.neighbours);
        let made = ready.into_iter().map(|neighbour| async move {
            let name = neighbour.file_name(self.segment_size);
            let looked = self.look(&path.with_file_name(&name), neighbour).await?;
            let codec = options.codec;
            let object = blocking(move || looked.contents.encode(codec)).await?;
            Ok::<_, Error>(Prepared {
                name,
                file: neighbour,
                found: looked.found,
                object,
            })
        });
        let made: Vec<_> = made.collect();
        let mut made = futures::stream::iter(made).buffered(self.neighbours_at_once(options));
        let mut along = Vec::new();
        while let Some(made) = made.next().await {
            match self.push_neighbour(made, options).await {
                Ok(pushed) => along.push(pushed),
                Err(error) => {
                    // What is behind it must not be there without it.
                    tracing::debug!(%error, "could not archive a neighbour");
                    break;
                }
            }
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

    /// Refuses a segment in `pg_wal` that the server may still write.
    fn require_finished(&self, path: &Path, segment: WalSegment) -> Result<()> {
        let directory = path.parent().unwrap_or(path);
        let marks = directory.join("archive_status");
        if !marks.is_dir() {
            return Ok(());
        }
        let name = segment.file_name(self.segment_size);
        let is_marked = |kind| marks.join(format!("{name}.{kind}")).exists();
        if is_marked("ready") || is_marked("done") || self.has_begun(directory, segment.next()) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Refused,
            "the server has not finished this segment: archive_status has neither a mark \"ready\" nor \"done\" for it",
        )
        .hint("push it when the server asks for it; SELECT pg_switch_wal() finishes the current segment"))
    }

    /// Whether the file of `segment` holds its first page already. A file that the server keeps for later use has the
    /// address of the segment that it was.
    fn has_begun(&self, directory: &Path, segment: WalSegment) -> bool {
        let mut page = [0; WalPageHeader::SIZE_BYTES];
        let path = directory.join(segment.file_name(self.segment_size));
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut page));
        let header = read.ok().and_then(|()| WalPageHeader::parse(&page).ok());
        header.is_some_and(|header| header.page_address == segment.start_lsn(self.segment_size))
    }

    async fn look(&self, path: &Path, file: ArchiveFile) -> Result<Looked> {
        let archive = self.clone();
        let opened = path.to_owned();
        let read = blocking(move || Contents::read(&archive, &opened, file));
        let key = self.key(file);
        let (contents, found) = futures::join!(read, self.header_of(&key));
        let contents = contents?;
        let found = match found {
            Ok(None) => InArchive::Nothing,
            Ok(Some(header)) => InArchive::Header(header),
            Err(error) if is_damage(&error) => InArchive::Damage,
            Err(error) => return Err(error),
        };
        Ok(Looked { contents, found })
    }

    async fn store(
        &self,
        file: ArchiveFile,
        looked: Looked,
        options: &PushOptions,
    ) -> Result<Pushed> {
        let description = &looked.contents.description;
        if let InArchive::Header(header) = &looked.found {
            self.check_same(description, header)?;
            let notes = options.notes.as_ref();
            if notes.is_some_and(|n| n.take(&description.file_name, &description.raw_digest)) {
                self.cluster
                    .repository
                    .make_durable(&self.key(file))
                    .await?;
                return Ok(Pushed::Present);
            }
        }
        let description = description.clone();
        let codec = options.codec;
        // Begun only when it is needed.
        let encoding = blocking(move || looked.contents.encode(codec));
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

    async fn settle_encoded(&self, file: ArchiveFile, object: Encoded) -> Result<Pushed> {
        let description = object.contents.description.clone();
        self.settle(file, &description, future::ready(Ok(object)))
            .await
    }

    /// Reads what is there under the name of `file`; only when that is damaged, stores the file beside it.
    async fn settle(
        &self,
        file: ArchiveFile,
        description: &WalDescription,
        encoding: impl Future<Output = Result<Encoded>>,
    ) -> Result<Pushed> {
        let mut damage = None;
        for number in 0..=MOST_MENDED {
            let key = self.place(file, number);
            match self.inspect_object(file, &key).await {
                Ok(header) => {
                    self.check_same(description, &header)?;
                    self.cluster.repository.make_durable(&key).await?;
                    return Ok(Pushed::Present);
                }
                Err(error) if is_damage(&error) => {
                    self.check_remains(description, &key).await?;
                    damage.get_or_insert(error);
                }
                Err(error) if error.kind() == Kind::NotFound => {
                    return self.mend(&key, encoding.await?, damage).await;
                }
                Err(error) => return Err(error),
            }
        }
        let damage = damage.map_or(String::new(), |error| format!(": {error}"));
        Err(Error::new(
            Kind::Damaged,
            format!("the archive has nothing but damaged copies of the file{damage}"),
        )
        .hint("look at the store: it does not keep what it is given"))
    }

    /// Stores `object` as `key`, in place of what is damaged, if anything is; what stores at the same time has the same file.
    async fn mend(&self, key: &str, object: Encoded, damage: Option<Error>) -> Result<Pushed> {
        let raw_bytes = object.contents.description.raw_length;
        let stored_bytes = self.put(key, &object).await?;
        let Some(damage) = damage else {
            // It was deleted since it was seen.
            return Ok(Pushed::Stored {
                raw_bytes,
                stored_bytes,
            });
        };
        tracing::warn!("stored the file as \"{key}\", because {damage}");
        Ok(Pushed::Mended)
    }

    /// The header of the object that holds `file`, or of what stands in for it; `None` when there is none.
    pub(super) async fn present(&self, file: ArchiveFile) -> Result<Option<wal::WalHeader>> {
        let read = async |key: String| self.header_of(&key).await;
        let absent = || Error::new(Kind::NotFound, "there is no such object");
        let found = self.first_good(file, async |key| read(key).await?.ok_or_else(absent));
        match found.await {
            Ok(header) => Ok(Some(header)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The header of the object `key`; `None` when there is none.
    pub(super) async fn header_of(&self, key: &str) -> Result<Option<wal::WalHeader>> {
        let length = u64::try_from(wal::HEADER_BYTES).unwrap_or(u64::MAX);
        match self.cluster.repository.get_range(key, 0..length).await {
            Ok(bytes) => Ok(Some(wal::header(&bytes).map_err(|e| {
                Error::from(e).while_doing(format!("could not read \"{key}\""))
            })?)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is left of a damaged object may still say that it was of other contents than the file.
    async fn check_remains(&self, description: &WalDescription, key: &str) -> Result<()> {
        match self.header_of(key).await {
            Ok(Some(header)) if header.file_name == description.file_name => {
                self.check_same(description, &header)
            }
            // Nothing is known of it, or it is no object of this file at all.
            Ok(_) => Ok(()),
            Err(error) if is_damage(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the object with that header is of the file that is pushed.
    fn check_same(&self, description: &WalDescription, present: &wal::WalHeader) -> Result<()> {
        // An object of another file under this name is damage, which reading it tells.
        let same = present.file_name != description.file_name
            || present.system_identifier == description.system_identifier
                && present.raw_length == description.raw_length
                && present.raw_digest == description.raw_digest;
        if same {
            return Ok(());
        }
        let url = self.cluster.repository.url();
        let (found, expected) = (
            hex(&present.raw_digest[..8]),
            hex(&description.raw_digest[..8]),
        );
        Err(Error::new(
            Kind::AlreadyExists,
            format!(
                "the archive in {url} holds a file of that name with other contents \
                 ({} bytes, digest {found}; the file has {} bytes, digest {expected})",
                present.raw_length, description.raw_length
            ),
        )
        .hint(
            "another server, such as a restored copy, archives under this cluster's name, or this one was set back to an \
             earlier state: give this server or the other one a name of its own (pgstrata init --cluster NAME, the same \
             NAME in its archive_command, a full backup); what waits for its archiver is then stored under that name. A new \
             timeline does not help: the file would be refused again",
        ))
    }
}

/// A file that was read, checked and digested.
#[derive(Clone)]
struct Contents {
    path: PathBuf,
    /// The file, unless it is too large to be kept.
    raw: Option<Vec<u8>>,
    description: WalDescription,
}

/// An object ready to be stored.
struct Encoded {
    /// `None` of a file too large to be kept: it is encoded while it is stored.
    body: Option<Bytes>,
    contents: Contents,
    codec: Codec,
}

impl Contents {
    fn read(archive: &Archive, path: &Path, file: ArchiveFile) -> Result<Self> {
        let act = || format!("could not read \"{}\"", path.display());
        let opened = File::open(path).context(act)?;
        let length = opened.metadata().context(act)?.len();
        archive.check_length(file, length)?;
        let keep = length <= WHOLE_BYTES;
        let capacity = if keep {
            usize::try_from(length).unwrap_or(0)
        } else {
            0
        };
        let mut raw = Vec::with_capacity(capacity);
        let mut head = Vec::new();
        let mut hasher = ContentHasher::new();
        let raw_length = pieces(path, opened, |piece| {
            if head.is_empty() {
                head = piece[..piece.len().min(WalPageHeader::SIZE_BYTES)].to_vec();
            }
            hasher.update(piece);
            if keep {
                raw.extend_from_slice(piece);
            }
            Ok(())
        })?;
        archive.check_length(file, raw_length)?;
        archive.check_contents(file, &head, &raw)?;
        Ok(Self {
            path: path.to_owned(),
            raw: keep.then_some(raw),
            description: WalDescription {
                file_name: file.file_name(archive.segment_size),
                system_identifier: archive.record.system_identifier,
                raw_length,
                raw_digest: hasher.finish(),
            },
        })
    }

    fn encode(mut self, codec: Codec) -> Result<Encoded> {
        let body = match self.raw.take() {
            Some(raw) => {
                let mut writer = WalWriter::new(&self.description, codec)?;
                writer.append(&raw)?;
                Some(writer.finish()?.into())
            }
            None => None,
        };
        Ok(Encoded {
            body,
            contents: self,
            codec,
        })
    }

    /// Reads the file a second time, and writes its object; answers the object's length. The file must not have changed.
    fn write(&self, codec: Codec, out: &mut dyn Write) -> Result<u64> {
        let path = &self.path;
        let opened =
            File::open(path).context(|| format!("could not read \"{}\"", path.display()))?;
        let mut writer = WalWriter::new(&self.description, codec)?;
        let mut hasher = ContentHasher::new();
        let mut length = 0;
        let mut pass_on = |bytes: Vec<u8>| {
            length += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            out.write_all(&bytes)
                .context(|| "could not write the object".to_owned())
        };
        pieces(path, opened, |piece| {
            hasher.update(piece);
            writer.append(piece)?;
            pass_on(writer.take())
        })?;
        if hasher.finish() != self.description.raw_digest {
            let path = path.display();
            return Err(Error::new(
                Kind::Refused,
                format!("\"{path}\" changed while it was read"),
            ));
        }
        pass_on(writer.finish()?)?;
        Ok(length)
    }
}

/// Hands the file out in pieces; answers its length.
fn pieces(path: &Path, mut file: File, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let mut buffer = vec![0; READ_BYTES];
    let mut length = 0;
    loop {
        let read = match file.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.context(|| format!("could not read \"{}\"", path.display()))?,
        };
        if read == 0 {
            return Ok(length);
        }
        length += u64::try_from(read).unwrap_or(u64::MAX);
        take(&buffer[..read])?;
    }
}

impl Archive {
    fn check_length(&self, file: ArchiveFile, length: u64) -> Result<()> {
        let whole = self.segment_size.get();
        let refused = |what: String| Err(Error::new(Kind::Refused, what));
        match file {
            ArchiveFile::Segment(_) if length != whole => refused(format!(
                "the file is {length} bytes long, a complete segment of this cluster has {whole}"
            )),
            ArchiveFile::Partial(_) if length > whole => refused(format!(
                "the file is {length} bytes long, a segment of this cluster has {whole}"
            )),
            ArchiveFile::History(_) | ArchiveFile::BackupLabel { .. }
                if length > MAX_TEXT_BYTES =>
            {
                refused(format!(
                    "the file is {length} bytes long, too many for a text"
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_contents(&self, file: ArchiveFile, head: &[u8], raw: &[u8]) -> Result<()> {
        match file {
            ArchiveFile::Segment(named) | ArchiveFile::Partial(named) => {
                self.check_segment(named, head)
            }
            ArchiveFile::History(timeline) => {
                // The reason at the end of a line may be in any encoding.
                let text = String::from_utf8_lossy(raw);
                let parsed = TimelineHistory::parse(timeline, &text);
                parsed.map(|_| ()).map_err(refused)
            }
            ArchiveFile::BackupLabel { .. } => Ok(()),
        }
    }

    /// What the first page of a segment says must fit its name and the cluster's record.
    fn check_segment(&self, named: WalSegment, head: &[u8]) -> Result<()> {
        let page = WalPageHeader::parse(head).map_err(refused)?;
        let (found, expected) = (page.system_identifier, self.record.system_identifier);
        if found != expected {
            return Err(refused(format!(
                "the segment is of the cluster with system identifier {found}, \
                 this is the archive of {expected}"
            ))
            .hint("use the name this cluster was given by init, or init a new name for it"));
        }
        if page.segment_size != self.segment_size {
            return Err(refused(format!(
                "the segment says that segments have {} bytes, the archive's have {}",
                page.segment_size, self.segment_size
            )));
        }
        if page.page_address != named.start_lsn(self.segment_size) {
            return Err(refused(format!(
                "the segment begins at {}, its name says {}",
                page.page_address,
                named.start_lsn(self.segment_size)
            )));
        }
        // The first segment of a timeline begins with the page of the timeline before it.
        if page.timeline > named.timeline {
            return Err(refused(format!(
                "the segment is of timeline {}, its name says {}",
                page.timeline, named.timeline
            )));
        }
        if page.major.get() != u32::from(self.record.major) {
            return Err(refused(format!(
                "the segment was written by PostgreSQL {}, this is the archive of PostgreSQL {}",
                page.major.get(),
                self.record.major
            )));
        }
        Ok(())
    }
}

fn refused(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Refused, what.to_string())
}
