//! The server: its session, its facts, its files.
//!
//! One dedicated session starts and stops the backup; when it is lost the
//! backup is void. Files are listed only after the start returned, so that the
//! list is never older than the checkpoint recovery begins from.

pub(crate) mod apart;
pub(crate) mod archiver;
mod certificate;
pub mod checkpoint;
pub mod conninfo;
pub mod control;
pub(crate) mod databases;
pub mod facts;
pub(crate) mod held;
pub mod lineage;
pub(crate) mod outside;
mod parameters;
pub(crate) mod pg_wal;
pub mod primary;
pub(crate) mod recovery_left;
mod revocation;
pub mod scan;
mod service;
pub mod session;
pub(crate) mod storage;
pub mod summary;
mod target;
mod tls;
pub mod tracker;
mod tracker_rows;
pub(crate) mod written;

pub use checkpoint::CheckpointOutlook;
pub use conninfo::ConnectionOptions;
pub use control::{CONTROL_PATH, read_control};
pub use facts::ServerFacts;
pub use primary::Primary;
pub use scan::{Scan, ScannedFile};
pub use session::Session;
pub use tracker::{NoTracker, Tracker, TrackerState};
