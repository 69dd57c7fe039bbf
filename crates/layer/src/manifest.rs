//! The manifest: a layer's commit record, created last.
//!
//! It also carries what is known only when the backup ends and must be exact:
//! `backup_label`, `tablespace_map` and `pg_control`. Constant in size but for
//! one line per index part (about one part per 64 GB of cluster).

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use serde::{Deserialize, Serialize};

/// What a layer is, on what it stands, and where its contents are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The layer's own label.
    pub label: String,
    /// 128 random bits in hexadecimal; every pack, index and digest part of the
    /// layer carries them, so an object of another layer is never taken for one.
    pub layer_id: String,
    /// The layer this one stands on; `None` for a full layer.
    pub parent: Option<ParentRef>,
    /// Which cluster was backed up.
    pub cluster: ClusterIdentity,
    /// Program and version that wrote the layer.
    pub written_by: String,
    /// When the backup started and when its manifest was written.
    pub started_at: Timestamp,
    /// See `started_at`.
    pub finished_at: Timestamp,
    /// Redo location of the start checkpoint: recovery starts here.
    pub start_lsn: Lsn,
    /// Recovery must replay to here; WAL needed is `[start_lsn, stop_lsn)`.
    pub stop_lsn: Lsn,
    /// Timeline of `start_lsn`, and of `stop_lsn` (they are equal: a promotion voids the backup).
    pub timeline: TimelineId,
    /// Taken from a standby.
    pub from_standby: bool,
    /// How changed pages were found.
    pub change_source: ChangeSourceRecord,
    /// What the page tracker needs to answer the next backup, when it ran.
    pub tracker_token: Option<String>,
    /// `backup_label` as `pg_backup_stop` returned it, to the byte.
    pub backup_label: String,
    /// `tablespace_map` likewise; `None` when it was empty.
    pub tablespace_map: Option<String>,
    /// `global/pg_control`, read last; hexadecimal, trailing zero bytes cut.
    pub pg_control: String,
    /// Size in bytes to which `pg_control` is padded with zeros.
    pub pg_control_size: u32,
    /// Tablespaces outside the data directory and in place.
    pub tablespaces: Vec<Tablespace>,
    /// Index parts in order of path; part `n` is the object `index-n`.
    pub index: Vec<IndexPartRef>,
    /// Number of packs; pack `n` is the object `pack-n`.
    pub pack_count: u32,
    /// Total bytes of all packs.
    pub pack_bytes: u64,
    /// What was read, found and stored.
    pub totals: Totals,
    /// Pages whose checksum failed twice. Not empty: the layer is marked damaged at the source.
    pub corrupt_pages: Vec<CorruptPage>,
    /// Encryption of frames. Always `None` in version 1; readers refuse anything else.
    pub encryption: Option<Encryption>,
}

/// A reference to the parent, by name and by contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentRef {
    /// The parent's label.
    pub label: String,
    /// BLAKE3 of the parent's manifest object, hexadecimal.
    pub manifest_digest: String,
}

/// What must be equal for two backups to be of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterIdentity {
    /// From `pg_control`.
    pub system_identifier: u64,
    /// Major version, 15 to 18.
    pub major: u16,
    /// From `pg_control`.
    pub catalog_version: u32,
    /// Bytes per page.
    pub block_size: u32,
    /// Bytes per WAL segment.
    pub wal_segment_size: u32,
    /// 0: data checksums off.
    pub data_checksum_version: u32,
}

/// Ways to find changed pages (DESIGN section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeSource {
    /// A full backup: everything is stored.
    Everything,
    /// The server extension's map.
    Tracker,
    /// WAL summaries of PostgreSQL 17 and later.
    Summary,
    /// Page LSN for main forks, digests for the rest.
    Lsn,
    /// Digests of every page.
    Digest,
}

/// Which change source ran, and why that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSourceRecord {
    /// The source that was used.
    pub used: ChangeSource,
    /// One line, for people.
    pub reason: String,
}

/// A tablespace at the time of the backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tablespace {
    /// OID: the name below `pg_tblspc`.
    pub oid: u32,
    /// Directory at the source; `None` for one that lies in place below `pg_tblspc`.
    pub location: Option<String>,
}

/// One part of the index and its digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexPartRef {
    /// Path of the part's first entry: the shard directory.
    pub first_path: String,
    /// Number of entries.
    pub entries: u64,
    /// Length in bytes of the object `index-n`.
    pub index_bytes: u64,
    /// BLAKE3 of that object, hexadecimal.
    pub index_digest: String,
    /// Length in bytes of the object `digest-n`.
    pub digest_bytes: u64,
}

/// Counts of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Files and directories listed.
    pub files: u64,
    /// Sum of the sizes of all files, in bytes: what a restore writes.
    pub cluster_bytes: u64,
    /// Blocks of all relation segments.
    pub relation_blocks: u64,
    /// Blocks the change source called changed or possibly changed.
    pub pages_marked: u64,
    /// Relation pages stored in frames.
    pub pages_stored: u64,
    /// Relation pages that are all zeros (in `zero_runs`).
    pub pages_zero: u64,
    /// Bytes read from the cluster's files.
    pub bytes_read: u64,
}

/// A page whose checksum did not match when read twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorruptPage {
    /// File, relative to the data directory.
    pub path: String,
    /// Block within the file.
    pub block: u32,
    /// What is wrong, for people.
    pub reason: String,
}

/// Room for encryption of frames; version 1 has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encryption {
    /// Version of the scheme.
    pub version: u32,
}
