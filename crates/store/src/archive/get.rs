//! Getting a file out of the archive.
//!
//! The destination appears whole and verified, or not at all. `NotFound` means that the archive ends before the file: the
//! repository was asked for the object and said that it has none, it has nothing later on this history either, and the
//! cluster's record could be read there afterwards. An unmounted directory, a wrong prefix, an outage or a hole is another
//! kind of error. Verification: the object's name, the cluster's system identifier, the length of a segment, every frame's
//! checksum, the digest of the whole.
//!
//! A hole may be one for a moment only: what two hosts push arrives in any order. So it is asked again for a while.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegmentSize};

use super::file::{NewFile, require_replaceable};
use super::mended::is_damage;
use super::sealed::ObjectReader;
use super::spool::{Ahead, Neighbours};
use super::{Archive, WHOLE_BYTES, timeline_of};
use crate::blocking::blocking;
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::keys::Sealing;

/// Objects of segments of the usual size are no longer: what does not compress is stored as it is, with some bytes for each
/// frame. Larger segments are seldom, and are asked for when the record has said how large they are.
const EARLY_BYTES: u64 = WalSegmentSize::DEFAULT.get() + (1 << 20);

/// Between two looks whether a hole has been filled.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How to get.
#[derive(Clone, Debug, Default)]
pub struct GetOptions {
    /// Segments to fetch along, if any.
    pub ahead: Option<Ahead>,
    /// The cluster that asks, from its `pg_control`: WAL of another is refused.
    pub system_identifier: Option<u64>,
    /// How long to wait for a file that is missing though the archive goes on behind it.
    pub hole_wait: Duration,
    /// Such a file that does not come is answered as if the archive ended before it.
    pub hole_is_end: bool,
    /// The timeline on which recovery stays, when that is known: of a later one whose history cannot be read, or is missing
    /// though there is anything of that timeline or of one behind it, the server is told that its number is taken, and no more.
    pub along: Option<TimelineId>,
}

/// What is given for the history of a later timeline that nobody has. The server stays on another one, and looks for a
/// number that is free for its own: that there is a file is all it wants to know (`existsTimeLineHistory`,
/// `src/backend/access/transam/timeline.c`).
const TAKEN: &str =
    "# pgstrata archive-get --along: this timeline is taken, and its history is not known\n";

/// Where a file came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It had been fetched ahead.
    Spool,
    /// It was fetched now.
    Repository,
}

/// What a get did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetOutcome {
    /// Where the file came from.
    pub source: Source,
    /// Its length.
    pub raw_bytes: u64,
    /// Segments that were fetched along, for the next ones.
    pub ahead: Vec<String>,
}

/// Writes the archived file `file_name` to `destination`.
///
/// # Errors
/// `NotFound` only when the archive ends before the file; `WalMissing` when it does not, and yet has no such file;
/// `Damaged`, `Refused`, `Repository`, `File` and others for everything else.
pub async fn get(
    cluster: &ClusterRepository,
    file_name: &str,
    destination: &Path,
    options: &GetOptions,
) -> Result<GetOutcome> {
    let doing = |e: Error| e.while_doing(format!("could not get \"{file_name}\" from the archive"));
    require_replaceable(destination).map_err(doing)?;
    let asking = options.system_identifier;
    let spooled = options
        .ahead
        .as_ref()
        .and_then(|ahead| ahead.take(cluster, file_name, asking));
    if let Some(spooled) = spooled
        && let Some(raw_bytes) = spooled.deliver(destination).await.map_err(doing)?
    {
        return Ok(GetOutcome {
            source: Source::Spool,
            raw_bytes,
            ahead: Vec::new(),
        });
    }
    let asked = Asked {
        cluster,
        file_name,
        destination,
        options,
    };
    let known = options
        .ahead
        .as_ref()
        .and_then(|ahead| ahead.neighbours(cluster, file_name, asking));
    let (got, ahead) = match known {
        Some(batch) => batch.run_along(asked.get(Some(&batch))).await,
        None => asked.get_and_others().await.map_err(doing)?,
    };
    Ok(GetOutcome {
        source: Source::Repository,
        raw_bytes: got.map_err(doing)?,
        ahead,
    })
}

/// Answers that the timeline is there, to who only looks for a number that is free.
fn say_taken(file: ArchiveFile, to: &Path, why: &str) -> Result<u64> {
    let timeline = timeline_of(file);
    tracing::warn!("timeline {timeline} counts as taken, and no more is known of it: {why}");
    let mut new_file = NewFile::create(to)?;
    new_file.write(TAKEN.as_bytes())?;
    new_file.publish()?;
    Ok(u64::try_from(TAKEN.len()).unwrap_or(u64::MAX))
}

/// One file that is asked for.
struct Asked<'a> {
    cluster: &'a ClusterRepository,
    file_name: &'a str,
    destination: &'a Path,
    options: &'a GetOptions,
}

impl Asked<'_> {
    /// Reads the cluster's record, and meanwhile the object; that is believed only when the record allows it.
    async fn begin(&self) -> Result<(Archive, ArchiveFile, Option<Bytes>)> {
        let (archive, early) = futures::join!(Archive::load(self.cluster), self.early());
        let archive = archive?.along(self.options.along);
        archive.check_asker(self.options.system_identifier)?;
        let file = archive.parse(self.file_name)?;
        Ok((archive, file, early?))
    }

    /// The object of a segment, unless there is none, or it is longer than those of usual segments.
    async fn early(&self) -> Result<Option<Bytes>> {
        // A directory answers at once, and of segments known to be larger half would be fetched twice.
        let is_far = self.cluster.repository.directory().is_none();
        let ahead = self.options.ahead.as_ref();
        let known = ahead.and_then(|ahead| ahead.segment_size(self.cluster));
        let is_usual = known.is_none_or(|size| size <= WalSegmentSize::DEFAULT);
        let file = ArchiveFile::parse(self.file_name, WalSegmentSize::DEFAULT);
        let (true, Ok(ArchiveFile::Segment(segment))) = (is_far && is_usual, file) else {
            return Ok(None);
        };
        let timeline = segment.timeline.hex8();
        let key = self.cluster.name.wal_key(&timeline, self.file_name);
        match self.cluster.repository.get_start(&key, EARLY_BYTES).await {
            Ok((object, size_bytes)) => {
                let is_whole = u64::try_from(object.len()) == Ok(size_bytes);
                Ok(is_whole.then_some(object))
            }
            // Whether that is the end is found out when the record is known.
            Err(error) if error.kind() == Kind::NotFound || is_damage(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gets the file while `batch` fetches others for what is taken for the cluster's record.
    async fn get(&self, batch: Option<&Neighbours>) -> Result<u64> {
        let (archive, file, early) = self.begin().await?;
        if let Some(batch) = batch {
            batch.require(&archive);
        }
        archive
            .get(file, self.destination, self.options, early)
            .await
    }

    /// Gets the file, and then others for the record that was read.
    async fn get_and_others(&self) -> Result<(Result<u64>, Vec<String>)> {
        let (archive, file, early) = self.begin().await?;
        let batch = match (&self.options.ahead, file) {
            (Some(ahead), ArchiveFile::Segment(segment)) => {
                Neighbours::open(&archive, ahead, segment)
            }
            _ => None,
        };
        let wanted = archive.get(file, self.destination, self.options, early);
        Ok(match &batch {
            None => (wanted.await, Vec::new()),
            Some(batch) => batch.run_along(wanted).await,
        })
    }
}

impl Archive {
    /// Delivers the file; from `early` when that holds it.
    async fn get(
        &self,
        file: ArchiveFile,
        to: &Path,
        options: &GetOptions,
        early: Option<Bytes>,
    ) -> Result<u64> {
        let started = Instant::now();
        if let Some(object) = early
            && let Ok(raw_bytes) = self.deliver(file, object, to).await
        {
            return Ok(raw_bytes);
        }
        // What was the matter is found again, and what stands in for the object.
        loop {
            let absent = match self.fetch(file, to).await {
                Err(error) if error.kind() == Kind::NotFound => error,
                Err(error) => return self.pass_over(file, to, error),
                got => return got,
            };
            let taken = self.taken_before(file).await?;
            if let Some(seen) = taken {
                return say_taken(file, to, &seen);
            }
            let beyond = self.beyond(file).await?;
            // Only if the record is still there, the answers were answers.
            self.check_record().await?;
            let Some(seen) = beyond else {
                return Err(absent);
            };
            if started.elapsed() < options.hole_wait {
                tracing::info!("waiting for a file that is missing though {seen}");
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            let hole = self.hole(file, &seen);
            if !options.hole_is_end {
                return Err(hole);
            }
            tracing::warn!("{hole}; it is answered as the end");
            return Err(absent);
        }
    }

    /// To a recovery that stays on an earlier timeline, a history that cannot be read says that its number is taken; one that
    /// stays on a later timeline needs it not.
    fn pass_over(&self, file: ArchiveFile, to: &Path, error: Error) -> Result<u64> {
        let ArchiveFile::History(timeline) = file else {
            return Err(error);
        };
        if self.passes_over(timeline, &error) {
            return say_taken(file, to, &error.to_string());
        }
        if self.comes_after(timeline) && error.is_of_one_object() {
            tracing::warn!(
                "the history of timeline {timeline} is not needed, and passed over: {error}"
            );
            return Err(Error::new(Kind::NotFound, error.to_string()));
        }
        Err(error)
    }

    async fn fetch(&self, file: ArchiveFile, to: &Path) -> Result<u64> {
        if file == ArchiveFile::History(TimelineId::FIRST) {
            // A server that ends its recovery asks for it, and copies what it gets into the history of its own timeline.
            return Err(Error::new(
                Kind::NotFound,
                "the first timeline has no history",
            ));
        }
        let whole = self.segment_size.get() <= WHOLE_BYTES;
        let read = async |key: String| match whole {
            true => self.fetch_whole(file, &key, to).await,
            false => self.fetch_in_pieces(file, &key, to).await,
        };
        self.first_there(file, read).await
    }

    pub(super) fn check_asker(&self, system_identifier: Option<u64>) -> Result<()> {
        let held = self.record.system_identifier;
        match system_identifier {
            Some(asking) if asking != held => Err(Error::new(
                Kind::Refused,
                format!(
                    "the server has system identifier {asking}, the archive of cluster \"{}\" is of {held}",
                    self.cluster.name.as_str()
                ),
            )
            .hint("check the repository's URL and the cluster's name")
            .for_other_cluster()),
            _ => Ok(()),
        }
    }

    /// Whether the cluster's record is still what it was when this began.
    pub(super) async fn check_record(&self) -> Result<()> {
        let again = Self::load(&self.cluster).await?;
        if again.record == self.record {
            return Ok(());
        }
        Err(Error::new(
            Kind::Repository,
            "the cluster's record changed while its archive was read",
        ))
    }

    async fn fetch_whole(&self, file: ArchiveFile, key: &str, to: &Path) -> Result<u64> {
        let object = self.object(file, key).await?;
        self.deliver(file, object, to).await
    }

    async fn fetch_in_pieces(&self, file: ArchiveFile, key: &str, to: &Path) -> Result<u64> {
        let sealing = self.sealing().await?;
        let begin = || Delivery::new(self, file, to, sealing);
        let delivery = self.in_pieces(key, begin, |mut delivery, piece| {
            delivery.take(piece)?;
            Ok(delivery)
        });
        let delivery = delivery.await?;
        blocking(move || delivery.finish()).await
    }

    /// Writes the file that a whole object holds.
    async fn deliver(&self, file: ArchiveFile, object: Bytes, to: &Path) -> Result<u64> {
        self.decode(file, object, to).await?.publish()
    }

    /// Writes the file that a whole object holds, checked, but without its name.
    pub(super) async fn decode(
        &self,
        file: ArchiveFile,
        object: Bytes,
        to: &Path,
    ) -> Result<Decoded> {
        let archive = self.clone();
        let to = to.to_owned();
        let sealing = self.sealing().await?.clone();
        blocking(move || {
            let mut delivery = Delivery::new(&archive, file, &to, &sealing)?;
            delivery.take(&object)?;
            delivery.check()
        })
        .await
    }
}

/// An object on its way to a file: decoded and checked as it comes.
struct Delivery {
    archive: Archive,
    file: ArchiveFile,
    reader: ObjectReader,
    new_file: NewFile,
}

impl Delivery {
    fn new(archive: &Archive, file: ArchiveFile, to: &Path, sealing: &Sealing) -> Result<Self> {
        let name = file.file_name(archive.segment_size);
        Ok(Self {
            archive: archive.clone(),
            file,
            reader: ObjectReader::new(sealing, &name, true),
            new_file: NewFile::create(to)?,
        })
    }

    fn take(&mut self, piece: &[u8]) -> Result<()> {
        let new_file = &mut self.new_file;
        let mut written = Ok(());
        self.reader.feed(piece, |raw| {
            if written.is_ok() {
                written = new_file.write(raw);
            }
        })?;
        written
    }

    fn finish(self) -> Result<u64> {
        self.check()?.publish()
    }

    fn check(self) -> Result<Decoded> {
        let header = self.reader.finish()?;
        self.archive.check_header(self.file, &header)?;
        Ok(Decoded {
            new_file: self.new_file,
            raw_bytes: header.raw_length,
        })
    }
}

/// A whole file of the archive that nobody sees yet.
pub(super) struct Decoded {
    new_file: NewFile,
    raw_bytes: u64,
}

impl Decoded {
    /// Gives it its name; answers its length.
    pub(super) fn publish(self) -> Result<u64> {
        self.new_file.publish()?;
        Ok(self.raw_bytes)
    }
}
