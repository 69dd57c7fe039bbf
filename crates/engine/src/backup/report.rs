//! What a backup tells its caller.

use std::path::PathBuf;

use jiff::Timestamp;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest::{ChangeSourceRecord, CorruptPage, Totals};
use pgstrata_pgdata::{Lsn, TimelineId};

use super::decide::audit::AuditReport;
use super::decide::checkpoint::CheckpointChoice;
use super::phases::Phase;
use super::wal::WalChoice;

/// A finished backup.
#[derive(Clone, Debug)]
pub struct BackupReport {
    /// The new layer.
    pub label: Label,
    /// The layer it stands on.
    pub parent: Option<Label>,
    /// Why it is of its kind.
    pub type_reason: String,
    /// How changed pages were found.
    pub change_source: ChangeSourceRecord,
    /// The audit that passed; `None` when none was asked for, or every page was read anyway.
    pub audit: Option<AuditReport>,
    /// How the checkpoint was made with which it started.
    pub checkpoint: CheckpointChoice,
    /// How the WAL got into the repository.
    pub wal: WalChoice,
    /// Segments that we stored ourselves.
    pub wal_segments_stored: u64,
    /// Where recovery begins.
    pub start_lsn: Lsn,
    /// Where the backup is consistent.
    pub stop_lsn: Lsn,
    /// The timeline of both.
    pub timeline: TimelineId,
    /// Taken from a standby.
    pub from_standby: bool,
    /// Counts.
    pub totals: Totals,
    /// Number of packs.
    pub pack_count: u32,
    /// Bytes of all packs.
    pub pack_bytes: u64,
    /// Pages that are corrupt at the source. Not empty: done with warnings.
    pub corrupt_pages: Vec<CorruptPage>,
    /// What else somebody should know. Not empty: done with warnings.
    pub warnings: Vec<String>,
    /// When it started.
    pub started_at: Timestamp,
    /// When the layer came to exist.
    pub finished_at: Timestamp,
    /// Where the time went.
    pub phases: Vec<Phase>,
}

/// What a backup would do now.
#[derive(Clone, Debug)]
pub struct BackupPlan {
    /// Kind of the layer.
    pub kind: LayerKind,
    /// Why.
    pub type_reason: String,
    /// The layer it would stand on.
    pub parent: Option<Label>,
    /// How changed pages would be found.
    pub change_source: ChangeSourceRecord,
    /// How the checkpoint would be made with which it starts.
    pub checkpoint: CheckpointChoice,
    /// How the WAL would get into the repository.
    pub wal: WalChoice,
    /// The directory to read.
    pub data_directory: PathBuf,
    /// From a standby.
    pub from_standby: bool,
    /// Files and directories.
    pub file_count: u64,
    /// Sum of the sizes of all files.
    pub size_bytes: u64,
    /// Workers.
    pub jobs: usize,
    /// What somebody should know.
    pub warnings: Vec<String>,
}
