//! The engine: everything that touches a cluster, a repository or a clock.
//!
//! Decisions come from `pgstrata_layer` as plans; the engine obeys them. It
//! returns typed errors, reports through [`progress`] and `tracing`, never
//! prints and never exits.

pub mod archive;
pub mod backup;
mod blocking;
pub mod catalog;
pub mod check;
pub mod cluster;
pub mod error;
pub mod expire;
pub mod info;
pub mod init;
pub mod merge;
pub mod progress;
pub mod repository;
pub mod restore;
pub mod shares;
pub mod tracker;
pub mod verify;
