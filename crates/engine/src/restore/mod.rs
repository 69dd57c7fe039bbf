//! Restore: from the layers of a chain to a data directory that recovers to a target.
//!
//! [`plan`] chooses the layer, follows the WAL to the target, lays the overlay of the chain over the destination and
//! refuses whatever would fail later; it writes nothing. [`execute`] obeys the plan. Every page is fetched once and
//! written once; everything is durable before `pg_control`, without which no server starts, is renamed into place.
//!
//! Memory: `jobs * (8 MiB + 3 * 4 MiB + 1 MiB)` for ranges and decoded frames; for each job a region of a file, and as much
//! on its way to the disk (4 MiB, 2 MiB from 16 jobs on); two windows of 32 768 planned frames (about 8 MB each); an index
//! part for each layer of the chain; pieces of 8 MiB of two WAL segments; and 48 bytes for every 50 archived WAL segments or
//! so. While the target is looked for, eight segments are read at once, in pieces of 8 MiB.

mod copy;
mod decide;
mod execute;
mod finish;
mod place;
mod replay;
mod settings;
mod target;

use std::path::PathBuf;

use pgstrata_layer::label::Label;
use pgstrata_store::repository::Repository;
use serde::{Deserialize, Serialize};

pub use decide::among::require_one_way_among;
pub use decide::histories::require_way_known;
pub(crate) use decide::newest::newest_state;
pub use decide::newest::require_one_branch;
pub use decide::plan::{PlannedLayer, PlannedWal, RestorePlan, plan};
pub use execute::{RestoreReport, execute};
pub use place::layout::{InPlace, MARKER, Marker, TablespaceMapping, read_marker};
pub use replay::make_way;
pub use settings::KeptLine;
pub use target::{Target, TargetAction, TimelineChoice};

/// What to restore, how far, and to where.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// The layer; `None` lets the target choose.
    pub label: Option<Label>,
    /// How far to recover.
    pub target: Target,
    /// For [`Target::None`], and then needed: the server may go on with the timeline of its source.
    pub same_timeline: bool,
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
    /// A directory for the configuration that lay outside of the data directory; `None`: the data directory.
    pub config_directory: Option<PathBuf>,
    /// The program and arguments that fetch a WAL file, up to and including `archive-get`.
    pub restore_command: Vec<String>,
    /// Threads that fetch, decode and write.
    pub jobs: usize,
    /// How what is there and what is in the layers come together.
    pub method: Method,
    /// Whether the restored server archives; `None`: not, unless it is the very cluster that is changed in place.
    pub archive_mode: Option<ArchiveMode>,
    /// What the user vouches for.
    pub vouched: Vouched,
    /// Other repositories, which may not lie among the files of the cluster either.
    pub others: Vec<Repository>,
}

impl RestoreOptions {
    /// Whether nobody has said which layer or timeline is meant. A standby goes where its primary is.
    pub(crate) fn chooses_freely(&self) -> bool {
        self.label.is_none() && self.timeline.is_none() && self.target != Target::Standby
    }

    /// What of these options shows in what is restored, beside the layer and the directories.
    fn asked(&self) -> String {
        let inclusive = if self.inclusive { "" } else { ", exclusive" };
        let timeline = self
            .timeline
            .map_or("default".to_owned(), |one| one.to_string());
        let action = self.action.as_str();
        let archive_mode = match self.archive_mode {
            Some(ArchiveMode::Keep) => "keep",
            Some(ArchiveMode::Off) | None => "off",
        };
        format!(
            "{}{inclusive}, timeline {timeline}, then {action}, archive mode {archive_mode}, WAL by {:?}",
            self.target, self.restore_command
        )
    }
}

/// What whoever restores knows, and the program cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vouched {
    /// Layers that cannot be read may be passed over.
    pub skip_damaged: bool,
    /// No server runs on the data directory, though that cannot be seen from here.
    pub server_is_stopped: bool,
    /// The links of the data directory lead to directories of this cluster alone.
    pub links_are_own: bool,
}

/// What a restored server does with `archive_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArchiveMode {
    /// It archives nothing.
    Off,
    /// What the layer's configuration says.
    Keep,
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
}
