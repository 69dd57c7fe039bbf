//! Facts about PostgreSQL 15 to 18, as values.
//!
//! Bytes and names come in, values go out: no I/O, no clock, no async. Everything parsed here was written by someone
//! else, so damage is an [`Error`] and never a panic. Only little-endian clusters with 8 KiB blocks are supported;
//! anything else is refused by [`control::ControlFile::parse`] before it can be misread.

pub mod backup_manifest;
mod bytes;
pub mod checksum;
pub mod conf;
pub mod control;
mod error;
pub mod exclude;
pub mod label;
mod lock_file;
pub mod lsn;
pub mod page;
pub mod relation;
pub mod timeline;
pub mod unlogged;
pub mod version;
pub mod wal;
pub mod wal_continuity;
pub mod wal_pages;
pub mod wal_records;

pub use backup_manifest::BackupManifestWriter;
pub use checksum::FileChecksum;
pub use control::ControlFile;
pub use error::{Error, Kind, Result};
pub use label::{BackupLabel, TablespaceMap};
pub use lock_file::{LOCK_FILE, LockFile};
pub use lsn::Lsn;
pub use relation::{
    BlockNumber, DatabaseDirectory, ForkKind, Oid, PathKind, RelSegment, RelationFork,
};
pub use timeline::{TimelineHistory, TimelineId};
pub use version::Major;
pub use wal::{ArchiveFile, WalPageHeader, WalSegment, WalSegmentSize};
pub use wal_continuity::WalContinuity;
pub use wal_records::{RecordReader, SegmentEnds, WalRecord};
