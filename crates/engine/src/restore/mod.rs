//! Restore: from the layers of a chain to a data directory that recovers to a target.
//!
//! [`plan`] chooses the layer, follows the WAL to the target, lays the overlay of the chain over the destination and
//! refuses whatever would fail later; it writes nothing. [`execute`] obeys the plan. Every page is fetched once and
//! written once; everything is durable before `pg_control`, without which no server starts, is renamed into place.
//!
//! Memory: `jobs * (3 * 8 MiB + 1 MiB)` for ranges and decoded frames, `jobs * 16 MiB` for regions of files (64 MiB in all
//! from 4 to 32 jobs, 2 MiB each from there on), two windows of 32 768 planned frames (about 8 MB each), an index part for
//! each layer of the chain, and 48 bytes for every 50 archived WAL segments or so.

mod archived;
mod compare;
mod destination;
mod durable;
mod execute;
mod in_place;
mod inventory;
mod oldest_first;
mod plan;
mod queue;
pub(crate) mod reads;
mod region;
mod select;
mod settings;
mod shares;
pub mod target;
mod writes;

use std::path::PathBuf;

use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use serde::Serialize;
use tokio::runtime::Handle;

use crate::repository::Repository;
use crate::shares::SharedOptions;

pub use destination::{InPlace, MARKER, Marker, TablespaceMapping, read_marker};
pub use execute::{RestoreReport, execute};
pub use plan::{PlannedLayer, PlannedWal, RestorePlan, plan};
pub use shares::{HelpOptions, ShareMade, help};
pub use target::{Target, TargetAction, TimelineChoice};
pub(crate) use writes::pages_of;

/// What to restore, how far, and to where.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// The layer; `None` lets the target choose.
    pub label: Option<Label>,
    /// How far to recover.
    pub target: Target,
    /// Along which timeline; `None` is PostgreSQL's default for the target.
    pub timeline: Option<TimelineChoice>,
    /// Whether a transaction or record exactly at the target is still replayed.
    pub inclusive: bool,
    /// What the server does at the target.
    pub action: TargetAction,
    /// The data directory to be: absent, empty, or marked by an incomplete restore; for [`Method::Delta`] a cluster.
    pub directory: PathBuf,
    /// Tablespaces that go elsewhere.
    pub tablespaces: Vec<TablespaceMapping>,
    /// A directory for WAL outside of the data directory.
    pub wal_directory: Option<PathBuf>,
    /// The program and arguments that fetch a WAL file, up to and including `archive-get`.
    pub restore_command: Vec<String>,
    /// Threads that fetch, decode and write.
    pub jobs: usize,
    /// How what is there and what is in the layers come together.
    pub method: Method,
    /// Whether other processes may restore some of the files; for [`Method::Overlay`] alone.
    pub shares: Option<SharedOptions>,
}

/// Ways to get from layers to files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Into an empty directory, every page fetched and written once.
    #[default]
    Overlay,
    /// Onto a stopped cluster of the same system identifier: only what differs is fetched and written.
    Delta,
    /// Into an empty directory, one layer after the other, as tools without an overlay do. For measuring what that
    /// costs; writes no `backup_manifest`.
    OldestFirst,
}

/// Where the objects of a cluster are, for threads that are not part of the runtime.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) repository: Repository,
    pub(crate) cluster: ClusterName,
    pub(crate) runtime: Handle,
}
