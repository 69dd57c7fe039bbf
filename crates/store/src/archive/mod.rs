//! The WAL archive: what `archive_command` and `restore_command` call.
//!
//! A file (segment, partial segment, timeline history, backup label) is one object, written
//! once, checked against the cluster's record before it is stored and after it is fetched.
//! "Not in the archive" is said only when the repository was asked and said so, nothing later
//! is there, and the cluster's record could be read from the same place; everything else is a
//! failure, because PostgreSQL takes "not there" for the end of the archive and opens for writes.

mod archived;
mod begun;
mod closed;
mod contents;
mod copy;
mod end;
mod file;
mod get;
mod inspect;
mod inventory;
mod mended;
mod notes;
mod preface;
mod push;
mod rivals;
mod sealed;
mod spool;
mod wait;
mod waiting;
mod whole;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::wal::WalHeader;
use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegmentSize};

use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

pub use archived::{ArchivedTimeline, ArchivedWal, Coverage, SegmentRun, Tail};
pub use closed::names_in_closed;
pub use get::{GetOptions, GetOutcome, Source, get};
pub use inventory::{archived_timelines, objects};
pub use notes::{LastGiver, Notes};
pub use push::{PushOptions, PushOutcome, Pushed, push, push_at_once};
pub use rivals::ListedFiles;
pub use spool::{Ahead, Spool};
pub use wait::never_arrived;
pub use waiting::{ArchiverMark, WaitingCompared, archiver_marks, marked_files, waiting_files};
pub use whole::{FileRecords, Fork, Forks};

/// Up to this size a segment is handled in memory whole, in one request; larger ones in pieces.
const WHOLE_BYTES: u64 = 64 << 20;

/// Bytes per request when a large object is fetched in pieces.
const PIECE_BYTES: u64 = 8 << 20;

/// The WAL archive of one cluster, with what must be true of its files.
#[derive(Clone, Debug)]
pub struct Archive {
    cluster: ClusterRepository,
    record: ClusterRecord,
    segment_size: WalSegmentSize,
    /// The timeline on which recovery stays, when that is known.
    along: Option<TimelineId>,
}

impl Archive {
    /// The archive of the cluster that has this record.
    ///
    /// # Errors
    /// `Damaged` when the record is another cluster's.
    pub fn new(cluster: &ClusterRepository, record: ClusterRecord) -> Result<Self> {
        cluster.require_own(&record)?;
        let segment_size = WalSegmentSize::try_from(u64::from(record.wal_segment_size))?;
        Ok(Self {
            cluster: cluster.clone(),
            record,
            segment_size,
            along: None,
        })
    }

    /// The same, for a recovery that stays on `timeline`: the history of a later one need not be readable.
    #[must_use]
    pub fn along(mut self, timeline: Option<TimelineId>) -> Self {
        self.along = timeline;
        self
    }

    /// Whether `timeline` is behind the one on which recovery stays: only its number counts.
    fn leaves_aside(&self, timeline: TimelineId) -> bool {
        self.along.is_some_and(|along| timeline > along)
    }

    /// Whether `timeline` is before the one on which recovery stays, whose history names all that it comes from: the server
    /// asks for others only to have a copy.
    fn comes_after(&self, timeline: TimelineId) -> bool {
        self.along.is_some_and(|along| timeline < along)
    }

    /// Whether a recovery goes on though the history of `timeline` could not be read.
    fn passes_over(&self, timeline: TimelineId, error: &Error) -> bool {
        self.leaves_aside(timeline) && error.is_of_one_object()
    }

    /// Reads the cluster's record.
    ///
    /// # Errors
    /// `Repository` when there is no such cluster, never `NotFound`; `Damaged`.
    pub async fn load(cluster: &ClusterRepository) -> Result<Self> {
        match cluster.record().await {
            Ok(record) => Self::new(cluster, record),
            Err(error) if error.kind() == Kind::NotFound => {
                let (name, url) = (cluster.name.as_str(), cluster.repository.url());
                Err(Error::new(
                    Kind::Repository,
                    format!("there is no cluster \"{name}\" in the repository {url}"),
                )
                .hint(cluster.advice_if_absent()))
            }
            Err(error) => Err(error),
        }
    }

    /// The size of the segments of its WAL.
    #[must_use]
    pub fn segment_size(&self) -> WalSegmentSize {
        self.segment_size
    }

    fn parse(&self, name: &str) -> Result<ArchiveFile> {
        ArchiveFile::parse(name, self.segment_size)
            .map_err(|e| Error::new(Kind::Usage, e.to_string()))
    }

    /// Key of the object of `file`.
    #[must_use]
    pub fn key(&self, file: ArchiveFile) -> String {
        let name = file.file_name(self.segment_size);
        self.cluster.name.wal_key(&timeline_of(file).hex8(), &name)
    }

    /// Whether an object's header fits its place: the file, this cluster, a whole segment.
    fn check_header(&self, file: ArchiveFile, header: &WalHeader) -> Result<()> {
        let name = file.file_name(self.segment_size);
        let damaged = |what: String| {
            let key = self.key(file);
            let url = self.cluster.repository.url();
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
