//! The WAL archive: what `archive_command` and `restore_command` call.
//!
//! A file (segment, partial segment, timeline history, backup label) is one object, written
//! once, checked against the cluster's record before it is stored and after it is fetched.
//! "Not in the archive" is said only when the repository was asked and said so, and the
//! cluster's record could be read from the same place; everything else is a failure, because
//! PostgreSQL takes "not there" for the end of the archive and opens for writes.

mod file;
mod get;
mod inspect;
mod inventory;
mod push;
mod spool;

use pgstrata_layer::cluster::{self, ClusterRecord};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::wal::WalHeader;
use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegmentSize};

use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

pub use get::{GetOptions, GetOutcome, Source, get};
pub use inspect::Inspector;
pub use inventory::{
    Inventory, TimelineInventory, history, inventory, segments, timelines, wait_for,
};
pub use push::{PushOptions, PushOutcome, Pushed, push};
pub use spool::{PrefetchOptions, PrefetchOutcome, Spool, prefetch};

/// Up to this size a segment is handled in memory whole, in one request; larger ones in pieces.
const WHOLE_BYTES: u64 = 64 << 20;

/// Bytes per request when a large object is fetched in pieces.
const PIECE_BYTES: u64 = 8 << 20;

/// One cluster's part of a repository, with what must be true of its WAL.
#[derive(Clone, Debug)]
struct Archive {
    repository: Repository,
    cluster: ClusterName,
    record: ClusterRecord,
    segment_size: WalSegmentSize,
}

impl Archive {
    fn new(repository: &Repository, cluster: &ClusterName, record: ClusterRecord) -> Result<Self> {
        let segment_size = WalSegmentSize::try_from(u64::from(record.wal_segment_size))?;
        if record.name != cluster.as_str() {
            let (name, held) = (cluster.as_str(), &record.name);
            return Err(Error::new(
                Kind::Damaged,
                format!("the record of cluster \"{name}\" is that of cluster \"{held}\""),
            ));
        }
        Ok(Self {
            repository: repository.clone(),
            cluster: cluster.clone(),
            record,
            segment_size,
        })
    }

    /// Reads the cluster's record; a record that is not there is a failure, never `NotFound`.
    async fn load(repository: &Repository, cluster: &ClusterName) -> Result<Self> {
        let bytes = match repository.get(&cluster.cluster_key()).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Kind::NotFound => {
                let (name, url) = (cluster.as_str(), repository.url());
                return Err(Error::new(
                    Kind::Repository,
                    format!("there is no cluster \"{name}\" in the repository {url}"),
                )
                .hint("check the repository's URL and the cluster's name, or run init"));
            }
            Err(error) => return Err(error),
        };
        Self::new(repository, cluster, cluster::decode(&bytes)?)
    }

    fn parse(&self, name: &str) -> Result<ArchiveFile> {
        ArchiveFile::parse(name, self.segment_size)
            .map_err(|e| Error::new(Kind::Usage, e.to_string()))
    }

    fn key(&self, file: ArchiveFile) -> String {
        let name = file.file_name(self.segment_size);
        self.cluster.wal_key(&timeline_of(file).hex8(), &name)
    }

    /// Whether an object's header fits its place: the file, this cluster, a whole segment.
    fn check_header(&self, file: ArchiveFile, header: &WalHeader) -> Result<()> {
        let name = file.file_name(self.segment_size);
        let damaged = |what: String| {
            let key = self.key(file);
            let url = self.repository.url();
            Err(Error::new(
                Kind::Damaged,
                format!("archived file \"{key}\" in {url} {what}"),
            ))
        };
        if header.file_name != name {
            return damaged(format!("holds the file \"{}\"", header.file_name));
        }
        let expected = self.record.system_identifier;
        if header.system_identifier != expected {
            let found = header.system_identifier;
            return damaged(format!(
                "is of the cluster with system identifier {found}, expected {expected}"
            ));
        }
        let whole = self.segment_size.get();
        if matches!(file, ArchiveFile::Segment(_)) && header.raw_length != whole {
            let length = header.raw_length;
            return damaged(format!("is {length} bytes long, a segment has {whole}"));
        }
        Ok(())
    }
}

/// The timeline under which a file is stored.
fn timeline_of(file: ArchiveFile) -> TimelineId {
    match file {
        ArchiveFile::Segment(segment)
        | ArchiveFile::Partial(segment)
        | ArchiveFile::BackupLabel { segment, .. } => segment.timeline,
        ArchiveFile::History(timeline) => timeline,
    }
}
