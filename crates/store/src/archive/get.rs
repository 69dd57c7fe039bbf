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
use pgstrata_layer::wal::WalReader;
use pgstrata_pgdata::ArchiveFile;

use super::file::NewFile;
use super::spool::{Ahead, Neighbours};
use super::{Archive, PIECE_BYTES, WHOLE_BYTES};
use crate::blocking::blocking;
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

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
}

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
    let asking = options.system_identifier;
    let spooled = options
        .ahead
        .as_ref()
        .and_then(|ahead| ahead.take(cluster, file_name, asking));
    if let Some(spooled) = spooled
        && spooled.is_of_now().await.map_err(doing)?
        && let Some(raw_bytes) = spooled.deliver(destination).await
    {
        return Ok(GetOutcome {
            source: Source::Spool,
            raw_bytes,
            ahead: Vec::new(),
        });
    }
    let archive = Archive::load(cluster).await.map_err(doing)?;
    archive.check_asker(asking).map_err(doing)?;
    let file = archive.parse(file_name).map_err(doing)?;
    let batch = match (&options.ahead, file) {
        (Some(ahead), ArchiveFile::Segment(segment)) => Neighbours::open(&archive, ahead, segment),
        _ => None,
    };
    let wanted = archive.get(file, destination, options);
    let (got, ahead) = match &batch {
        None => (wanted.await, Vec::new()),
        Some(batch) => batch.run_along(wanted).await,
    };
    Ok(GetOutcome {
        source: Source::Repository,
        raw_bytes: got.map_err(doing)?,
        ahead,
    })
}

impl Archive {
    async fn get(&self, file: ArchiveFile, to: &Path, options: &GetOptions) -> Result<u64> {
        let started = Instant::now();
        loop {
            let absent = match self.fetch(file, to).await {
                Err(error) if error.kind() == Kind::NotFound => error,
                other => return other,
            };
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

    async fn fetch(&self, file: ArchiveFile, to: &Path) -> Result<u64> {
        let whole = self.segment_size.get() <= WHOLE_BYTES;
        let read = async |key: String| match whole {
            true => self.fetch_whole(file, &key, to).await,
            false => self.fetch_in_pieces(file, &key, to).await,
        };
        self.first_good(file, read).await
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
            .hint("check the repository's URL and the cluster's name")),
            _ => Ok(()),
        }
    }

    /// Whether the cluster's record is still what it was when this began.
    async fn check_record(&self) -> Result<()> {
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
        let object = self.cluster.repository.get(key).await?;
        self.deliver(file, object, to).await
    }

    async fn fetch_in_pieces(&self, file: ArchiveFile, key: &str, to: &Path) -> Result<u64> {
        let Some(size) = self.cluster.repository.size(key).await? else {
            // Says that it is not there, or what else is the matter.
            return self.fetch_whole(file, key, to).await;
        };
        let mut delivery = Delivery::new(self, file, to)?;
        let mut start = 0;
        while start < size {
            let end = (start + PIECE_BYTES).min(size);
            let piece = self.cluster.repository.get_range(key, start..end).await?;
            delivery = blocking(move || {
                delivery.take(&piece)?;
                Ok(delivery)
            })
            .await?;
            start = end;
        }
        blocking(move || delivery.finish()).await
    }

    /// Writes the file that a whole object holds.
    pub(super) async fn deliver(&self, file: ArchiveFile, object: Bytes, to: &Path) -> Result<u64> {
        let archive = self.clone();
        let to = to.to_owned();
        blocking(move || {
            let mut delivery = Delivery::new(&archive, file, &to)?;
            delivery.take(&object)?;
            delivery.finish()
        })
        .await
    }
}

/// An object on its way to a file: decoded and checked as it comes.
struct Delivery {
    archive: Archive,
    file: ArchiveFile,
    reader: WalReader,
    new_file: NewFile,
}

impl Delivery {
    fn new(archive: &Archive, file: ArchiveFile, to: &Path) -> Result<Self> {
        Ok(Self {
            archive: archive.clone(),
            file,
            reader: WalReader::new(&file.file_name(archive.segment_size)),
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
        let header = self.reader.finish()?;
        self.archive.check_header(self.file, &header)?;
        self.new_file.publish()?;
        Ok(header.raw_length)
    }
}
