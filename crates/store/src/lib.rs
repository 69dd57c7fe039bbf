//! The repository of a cluster: its objects, its layers and its archived WAL.
//!
//! Everything that reads or writes a repository does it through this crate, and this
//! crate knows no server and no data directory. It returns typed errors, counts in
//! [`progress`], logs through `tracing`, never prints and never exits.

pub mod archive;
pub mod blocking;
pub mod catalog;
pub mod cluster;
pub mod courtesy;
pub mod direct;
pub mod error;
pub mod input;
pub mod keys;
pub mod limits;
pub mod progress;
pub mod repository;

/// Program and version, as objects record them.
pub const WRITTEN_BY: &str = concat!("pgstrata ", env!("CARGO_PKG_VERSION"));
