//! `global/pg_control`: what a cluster is and where it stands.
//!
//! The formats 1300 (PostgreSQL 15 and 16) and 1700 (17) have every field at the same offset. 1800 (18) stores one more
//! byte before the nonce, which moves the checksum; every field read here stays where it was.

use std::fmt;

use crate::bytes::Fields;
use crate::relation::{BLOCK_SIZE, BLOCKS_PER_SEGMENT};
use crate::{Error, FileChecksum, Lsn, Major, Result, TimelineId, WalSegmentSize};

/// Size of the file; the part with meaning is smaller.
pub const CONTROL_FILE_SIZE: usize = 8192;

/// `XLOG_BLCKSZ` of the supported builds.
const WAL_BLOCK_SIZE: u32 = 8192;

/// `MAXIMUM_ALIGNOF` of every 64-bit machine.
const MAX_ALIGN: u32 = 8;

/// `FLOATFORMAT_VALUE`: what an IEEE 754 machine stores to prove that it is one.
const FLOAT_FORMAT: f64 = 1_234_567.0;

/// `DBState`: what the cluster was doing when the file was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// Starting up.
    Startup,
    /// Shut down cleanly.
    ShutDown,
    /// Shut down cleanly while in recovery.
    ShutDownInRecovery,
    /// Shutting down.
    ShuttingDown,
    /// In crash recovery.
    InCrashRecovery,
    /// In archive recovery: a standby, or a restore under way.
    InArchiveRecovery,
    /// In production; also what a killed cluster says.
    InProduction,
}

impl ClusterState {
    /// What the control file of a running server says.
    #[must_use]
    pub fn of_running(in_recovery: bool) -> Self {
        match in_recovery {
            true => Self::InArchiveRecovery,
            false => Self::InProduction,
        }
    }
}

impl fmt::Display for ClusterState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The words of pg_controldata.
        formatter.write_str(match self {
            Self::Startup => "starting up",
            Self::ShutDown => "shut down",
            Self::ShutDownInRecovery => "shut down in recovery",
            Self::ShuttingDown => "shutting down",
            Self::InCrashRecovery => "in crash recovery",
            Self::InArchiveRecovery => "in archive recovery",
            Self::InProduction => "in production",
        })
    }
}

/// `wal_level` as last recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WalLevel {
    /// Not enough for any backup of a running cluster.
    Minimal,
    /// Enough.
    Replica,
    /// Enough.
    Logical,
}

impl WalLevel {
    /// The level with that number (`access/xlog.h`).
    pub(crate) const fn of(number: i32) -> Option<Self> {
        match number {
            0 => Some(Self::Minimal),
            1 => Some(Self::Replica),
            2 => Some(Self::Logical),
            _ => None,
        }
    }
}

impl fmt::Display for WalLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Minimal => "minimal",
            Self::Replica => "replica",
            Self::Logical => "logical",
        })
    }
}

/// The contents of `pg_control` that a backup has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlFile {
    /// The cluster, and every copy of it.
    pub system_identifier: u64,
    /// The version that can start it.
    pub major: Major,
    /// `CATALOG_VERSION_NO`.
    pub catalog_version: u32,
    /// What the cluster was doing.
    pub state: ClusterState,
    /// When the file was last written, in seconds of Unix time.
    pub time: i64,
    /// Where the record of the last checkpoint is.
    pub checkpoint_lsn: Lsn,
    /// Where recovery from that checkpoint begins.
    pub redo_lsn: Lsn,
    /// The timeline of that checkpoint.
    pub timeline: TimelineId,
    /// The timeline before, when that checkpoint began a new one; otherwise the same.
    pub previous_timeline: TimelineId,
    /// `full_page_writes` at that checkpoint.
    pub full_page_writes: bool,
    /// How far recovery must go before the cluster is consistent; `None` outside archive recovery.
    pub min_recovery_lsn: Option<Lsn>,
    /// The timeline of that position.
    pub min_recovery_timeline: Option<TimelineId>,
    /// Redo position of the backup being recovered from, until its end is reached.
    pub backup_start_lsn: Option<Lsn>,
    /// Where that backup ends, when it was taken on a standby.
    pub backup_end_lsn: Option<Lsn>,
    /// Whether an end-of-backup record must still be seen.
    pub backup_end_required: bool,
    /// `wal_level`.
    pub wal_level: WalLevel,
    /// `wal_log_hints`: on a standby that of its primary, whatever its own is.
    pub wal_log_hints: bool,
    /// Size of a block in bytes: always [`BLOCK_SIZE`].
    pub block_size: u32,
    /// Blocks in a full segment file: always [`BLOCKS_PER_SEGMENT`].
    pub blocks_per_segment: u32,
    /// Size of a WAL page in bytes: always 8192.
    pub wal_block_size: u32,
    /// Size of a WAL segment.
    pub wal_segment_size: WalSegmentSize,
    /// Version of the page checksums; zero without.
    pub data_checksum_version: u32,
}

impl ControlFile {
    /// Reads the contents of `pg_control`. Bytes after the checksum do not matter and may be absent.
    ///
    /// # Errors
    ///
    /// [`Kind::Unsupported`](crate::Kind::Unsupported) for another version, block size or machine;
    /// [`Kind::Damaged`](crate::Kind::Damaged) when the checksum does not match, as it can when the file was read while
    /// it was written: read it again; [`Kind::Malformed`](crate::Kind::Malformed) otherwise.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields(bytes);
        let control_version = fields.word(8).ok_or_else(|| too_short(bytes))?;
        let crc_offset = match control_version {
            1300 | 1700 => 288,
            1800 => 292,
            _ => {
                return Err(Error::unsupported(format!(
                    "pg_control has format version {control_version}: PostgreSQL 15 to 18 write 1300, 1700 or 1800"
                )));
            }
        };
        check_crc(bytes, crc_offset)?;
        let raw = Raw::read(fields).ok_or_else(|| too_short(bytes))?;
        raw.check_machine()?;
        raw.interpret(control_version)
    }

    /// Whether pages carry checksums.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.data_checksum_version != 0
    }
}

fn check_crc(bytes: &[u8], crc_offset: usize) -> Result<()> {
    let covered = bytes.get(..crc_offset).ok_or_else(|| too_short(bytes))?;
    let found = Fields(bytes)
        .word(crc_offset)
        .ok_or_else(|| too_short(bytes))?;
    let expected = FileChecksum::of(covered).crc();
    if found == expected {
        Ok(())
    } else {
        Err(Error::damaged(format!(
            "pg_control has checksum {found:08x}, expected {expected:08x}"
        )))
    }
}

fn too_short(bytes: &[u8]) -> Error {
    Error::malformed(format!(
        "pg_control has {} bytes, expected {CONTROL_FILE_SIZE}",
        bytes.len()
    ))
}

/// The fields as stored.
struct Raw {
    system_identifier: u64,
    catalog_version: u32,
    state: u32,
    time: i64,
    checkpoint: u64,
    redo: u64,
    timeline: u32,
    previous_timeline: u32,
    full_page_writes: u8,
    min_recovery: u64,
    min_recovery_timeline: u32,
    backup_start: u64,
    backup_end: u64,
    backup_end_required: u8,
    wal_level: i32,
    wal_log_hints: u8,
    max_align: u32,
    float_format: f64,
    block_size: u32,
    blocks_per_segment: u32,
    wal_block_size: u32,
    wal_segment_size: u32,
    data_checksum_version: u32,
}

impl Raw {
    fn read(fields: Fields<'_>) -> Option<Self> {
        Some(Self {
            system_identifier: fields.long(0)?,
            catalog_version: fields.word(12)?,
            state: fields.word(16)?,
            time: fields.signed_long(24)?,
            checkpoint: fields.long(32)?,
            redo: fields.long(40)?,
            timeline: fields.word(48)?,
            previous_timeline: fields.word(52)?,
            full_page_writes: fields.byte(56)?,
            min_recovery: fields.long(136)?,
            min_recovery_timeline: fields.word(144)?,
            backup_start: fields.long(152)?,
            backup_end: fields.long(160)?,
            backup_end_required: fields.byte(168)?,
            wal_level: fields.signed_word(172)?,
            wal_log_hints: fields.byte(176)?,
            max_align: fields.word(204)?,
            float_format: fields.double(208)?,
            block_size: fields.word(216)?,
            blocks_per_segment: fields.word(220)?,
            wal_block_size: fields.word(224)?,
            wal_segment_size: fields.word(228)?,
            data_checksum_version: fields.word(252)?,
        })
    }

    fn check_machine(&self) -> Result<()> {
        if self.max_align != MAX_ALIGN || self.float_format.to_bits() != FLOAT_FORMAT.to_bits() {
            return Err(Error::unsupported(format!(
                "pg_control was written on another kind of machine: alignment {}, float format {}; expected {MAX_ALIGN} and {FLOAT_FORMAT}",
                self.max_align, self.float_format
            )));
        }
        let sizes = [
            (
                "block size",
                self.block_size,
                u32::try_from(BLOCK_SIZE).expect("8192 fits 32 bits"),
            ),
            (
                "relation segment size in blocks",
                self.blocks_per_segment,
                BLOCKS_PER_SEGMENT,
            ),
            ("WAL block size", self.wal_block_size, WAL_BLOCK_SIZE),
        ];
        for (name, found, expected) in sizes {
            if found != expected {
                return Err(Error::unsupported(format!(
                    "the cluster has {name} {found}: only {expected} is supported"
                )));
            }
        }
        Ok(())
    }

    fn interpret(self, control_version: u32) -> Result<ControlFile> {
        let major = Major::from_catalog_version(self.catalog_version)
            .filter(|major| major.control_version() == control_version)
            .ok_or_else(|| {
                Error::unsupported(format!(
                    "pg_control has catalog version {}: not that of a released PostgreSQL 15 to 18",
                    self.catalog_version
                ))
            })?;
        Ok(ControlFile {
            system_identifier: self.system_identifier,
            major,
            catalog_version: self.catalog_version,
            state: cluster_state(self.state)?,
            time: self.time,
            checkpoint_lsn: Lsn::new(self.checkpoint),
            redo_lsn: Lsn::new(self.redo),
            timeline: TimelineId::new(self.timeline),
            previous_timeline: TimelineId::new(self.previous_timeline),
            full_page_writes: self.full_page_writes != 0,
            min_recovery_lsn: valid(self.min_recovery),
            min_recovery_timeline: (self.min_recovery_timeline != 0)
                .then_some(TimelineId::new(self.min_recovery_timeline)),
            backup_start_lsn: valid(self.backup_start),
            backup_end_lsn: valid(self.backup_end),
            backup_end_required: self.backup_end_required != 0,
            wal_level: wal_level(self.wal_level)?,
            wal_log_hints: self.wal_log_hints != 0,
            block_size: self.block_size,
            blocks_per_segment: self.blocks_per_segment,
            wal_block_size: self.wal_block_size,
            wal_segment_size: WalSegmentSize::try_from(u64::from(self.wal_segment_size))?,
            data_checksum_version: self.data_checksum_version,
        })
    }
}

fn valid(position: u64) -> Option<Lsn> {
    (position != 0).then_some(Lsn::new(position))
}

fn cluster_state(number: u32) -> Result<ClusterState> {
    Ok(match number {
        0 => ClusterState::Startup,
        1 => ClusterState::ShutDown,
        2 => ClusterState::ShutDownInRecovery,
        3 => ClusterState::ShuttingDown,
        4 => ClusterState::InCrashRecovery,
        5 => ClusterState::InArchiveRecovery,
        6 => ClusterState::InProduction,
        _ => {
            return Err(Error::malformed(format!(
                "pg_control has unknown cluster state {number}"
            )));
        }
    })
}

fn wal_level(number: i32) -> Result<WalLevel> {
    let unknown = || Error::malformed(format!("pg_control has unknown wal_level {number}"));
    WalLevel::of(number).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_8_a_torn_or_foreign_file_is_refused() {
        for size in [0, 1, 8, 11, 12, 287, 291] {
            assert!(ControlFile::parse(&vec![0; size]).is_err());
        }
        let mut bytes = vec![0; CONTROL_FILE_SIZE];
        bytes[8..12].copy_from_slice(&1201_u32.to_le_bytes());
        assert_eq!(
            ControlFile::parse(&bytes).unwrap_err().kind(),
            crate::Kind::Unsupported
        );
        bytes[8..12].copy_from_slice(&1300_u32.to_be_bytes());
        assert_eq!(
            ControlFile::parse(&bytes).unwrap_err().kind(),
            crate::Kind::Unsupported
        );
        bytes[8..12].copy_from_slice(&1300_u32.to_le_bytes());
        assert_eq!(
            ControlFile::parse(&bytes).unwrap_err().kind(),
            crate::Kind::Damaged
        );
    }
}
