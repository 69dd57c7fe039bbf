//! The layer format and every decision made on it. No I/O, no clock, no async.
//!
//! A **layer** is what one backup leaves in the repository: packs of frames, an
//! index that says which block of which file lies in which frame, page digests,
//! and a manifest. Everything here turns bytes into values, values into bytes,
//! or values into plans; `docs/FORMAT.md` is the normative text of the bytes.
//!
//! Invariants:
//! - Bytes read back are strangers: magic, version, length and checksum are
//!   checked before meaning, damage is an [`Error`], never a panic.
//! - Encoders are deterministic: equal values give equal bytes.
//! - The overlay gives every block of every file exactly one source.

pub mod abandoned;
pub mod audit;
pub mod block_set;
mod bytes;
pub mod changeset;
pub mod claim;
pub mod cluster;
pub mod digest;
pub mod distrust;
pub mod entry;
pub mod epoch;
mod error;
pub mod frame;
pub mod index;
pub mod keys;
pub mod label;
pub mod lineage;
pub mod manifest;
pub mod mark;
pub mod merge;
mod object;
pub mod outside;
pub mod overlay;
pub mod pack;
pub mod plain;
mod record;
pub mod released;
pub mod removal;
pub mod restoring;
pub mod retention;
pub mod seal;
pub mod sealed;
pub mod verified;
pub mod wal;

pub use error::{Error, Kind, Result};
