//! Getting a file out of the archive.
//!
//! The destination appears whole and verified, or not at all. `NotFound` means that the
//! repository was asked for the object, said that it has none, and that the cluster's record
//! could be read there afterwards: an unmounted directory, a wrong prefix or an outage in
//! between is another kind of error. Verification: the object's name, the cluster's system
//! identifier, the length of a segment, every frame's checksum, the digest of the whole.

use std::path::Path;

use bytes::Bytes;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::wal::WalReader;
use pgstrata_pgdata::ArchiveFile;

use super::file::NewFile;
use super::spool::Spool;
use super::{Archive, PIECE_BYTES, WHOLE_BYTES};
use crate::blocking::blocking;
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// How to get.
#[derive(Clone, Debug, Default)]
pub struct GetOptions {
    /// Where segments fetched ahead lie, if anywhere.
    pub spool: Option<Spool>,
    /// The cluster that asks, from its `pg_control`: WAL of another is refused.
    pub system_identifier: Option<u64>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetOutcome {
    /// Where the file came from.
    pub source: Source,
    /// Its length.
    pub raw_bytes: u64,
}

/// Writes the archived file `file_name` to `destination`.
///
/// # Errors
/// `NotFound` only when the file is certainly not in the archive; `Damaged`, `Refused`,
/// `Repository`, `File` and others for everything else.
pub async fn get(
    repository: &Repository,
    cluster: &ClusterName,
    file_name: &str,
    destination: &Path,
    options: &GetOptions,
) -> Result<GetOutcome> {
    let doing = |e: Error| e.while_doing(format!("could not get \"{file_name}\" from the archive"));
    let asking = options.system_identifier;
    let spooled = options
        .spool
        .as_ref()
        .and_then(|spool| spool.take(repository, cluster, file_name, asking));
    if let Some(spooled) = spooled
        && let Some(raw_bytes) = spooled.deliver(destination).await
    {
        return Ok(GetOutcome {
            source: Source::Spool,
            raw_bytes,
        });
    }
    let archive = Archive::load(repository, cluster).await.map_err(doing)?;
    let got = archive.get(file_name, destination, options).await;
    if let (Err(error), Some(spool)) = (&got, &options.spool)
        && error.kind() == Kind::NotFound
    {
        // The end of this timeline's archive: what lies in the spool will not be asked for.
        spool.clear(repository, cluster);
    }
    let raw_bytes = got.map_err(doing)?;
    Ok(GetOutcome {
        source: Source::Repository,
        raw_bytes,
    })
}

impl Archive {
    async fn get(&self, file_name: &str, to: &Path, options: &GetOptions) -> Result<u64> {
        self.check_asker(options.system_identifier)?;
        let file = self.parse(file_name)?;
        let fetched = if self.segment_size.get() <= WHOLE_BYTES {
            self.fetch_whole(file, to).await
        } else {
            self.fetch_in_pieces(file, to).await
        };
        match fetched {
            Err(error) if error.kind() == Kind::NotFound => Err(self.certainly_absent(error).await),
            other => other,
        }
    }

    pub(super) fn check_asker(&self, system_identifier: Option<u64>) -> Result<()> {
        let held = self.record.system_identifier;
        match system_identifier {
            Some(asking) if asking != held => Err(Error::new(
                Kind::Refused,
                format!(
                    "the server has system identifier {asking}, the archive of cluster \"{}\" is of {held}",
                    self.cluster.as_str()
                ),
            )
            .hint("check the repository's URL and the cluster's name")),
            _ => Ok(()),
        }
    }

    /// The object was not found; only if the record is still there, that is an answer.
    async fn certainly_absent(&self, absent: Error) -> Error {
        match Self::load(&self.repository, &self.cluster).await {
            Ok(again) if again.record == self.record => absent,
            Ok(_) => Error::new(
                Kind::Repository,
                "the cluster's record changed while its archive was read",
            ),
            Err(error) => error,
        }
    }

    async fn fetch_whole(&self, file: ArchiveFile, to: &Path) -> Result<u64> {
        let object = self.repository.get(&self.key(file)).await?;
        self.deliver(file, object, to).await
    }

    async fn fetch_in_pieces(&self, file: ArchiveFile, to: &Path) -> Result<u64> {
        let key = self.key(file);
        let Some(size) = self.repository.size(&key).await? else {
            // Says that it is not there, or what else is the matter.
            return self.fetch_whole(file, to).await;
        };
        let mut delivery = Delivery::new(self, file, to)?;
        let mut start = 0;
        while start < size {
            let end = (start + PIECE_BYTES).min(size);
            let piece = self.repository.get_range(&key, start..end).await?;
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
