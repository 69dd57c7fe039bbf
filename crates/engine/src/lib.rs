//! The engine: everything that touches a cluster, and what commands do with a repository.
//!
//! Decisions come from `pgstrata_layer` as plans; the engine obeys them, on a repository
//! that `pgstrata_store` opens. It returns typed errors, reports through
//! [`pgstrata_store::progress`] and `tracing`, never prints and never exits.

pub mod backup;
pub mod check;
pub mod expire;
mod frames;
pub mod health;
pub mod info;
pub mod init;
mod lines;
pub mod mark;
pub mod merge;
pub mod mirror;
pub mod priority;
pub mod rescue;
pub mod restore;
pub mod server;
pub mod verify;
