//! What the caller of a backup decides.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pgstrata_layer::label::Label;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind};
use pgstrata_store::repository::Repository;

use crate::priority::Impact;
use crate::server::ConnectionOptions;

/// Which layer to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackupType {
    /// Incremental when there is a usable parent, otherwise full.
    #[default]
    Auto,
    /// Everything.
    Full,
    /// What changed since the chain's full layer.
    Differential,
    /// What changed since the newest layer.
    Incremental,
}

/// How to find what changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeSourceChoice {
    /// The best that can answer.
    #[default]
    Auto,
    /// The server extension.
    Tracker,
    /// WAL summaries of PostgreSQL 17 and later.
    Summary,
    /// Page LSNs, digests where they do not tell.
    Lsn,
    /// Digests of every page.
    Digest,
}

/// How the WAL between start and stop gets into the repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalMode {
    /// By the server's archiver when it archives to this repository, otherwise by us.
    #[default]
    Auto,
    /// By the server's archiver; we wait.
    Archive,
    /// By us, out of `pg_wal`, while the backup runs.
    Stream,
}

/// The checkpoint with which a backup starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartCheckpoint {
    /// Made at once.
    #[default]
    Fast,
    /// Spread over `checkpoint_completion_target`, like the server's own ones.
    Spread,
    /// Spread while somebody writes and it has much to write, unless that takes very long.
    Auto,
}

/// What to do about pages whose checksum is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CorruptPagePolicy {
    /// Store them as they are, list them, mark the layer.
    #[default]
    Warn,
    /// Give up the backup.
    Fail,
}

macro_rules! names {
    ($type:ident, $what:literal, $($name:literal $(| $alias:literal)? => $variant:ident),+) => {
        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                match text {
                    $($name $(| $alias)? => Ok(Self::$variant),)+
                    _ => Err(Error::new(Kind::Usage, format!(concat!("unknown ", $what, " \"{}\""), text))
                        .hint(concat!("one of", $(" ", $name),+))),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),+ })
            }
        }
    };
}

names!(BackupType, "backup type", "auto" => Auto, "full" | "F" => Full, "diff" | "differential" => Differential, "incr" | "incremental" => Incremental);
names!(ChangeSourceChoice, "change source", "auto" => Auto, "tracker" | "ptrack" => Tracker, "summary" | "summaries" => Summary, "lsn" | "delta" => Lsn, "digest" | "scan" => Digest);
names!(WalMode, "WAL mode", "auto" => Auto, "archive" => Archive, "stream" => Stream);
names!(CorruptPagePolicy, "policy for corrupt pages", "warn" => Warn, "fail" => Fail);

/// How many of the pages that are called unchanged are looked at all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditOptions {
    /// So many of a million.
    pub per_million: u32,
    /// Draws the same pages as the audit that had it; `None`: others each time.
    pub seed: Option<u64>,
}

/// Everything a backup can be told.
#[derive(Clone, Debug)]
pub struct BackupOptions {
    /// The server.
    pub connection: ConnectionOptions,
    /// Its data directory; `None`: ask the server.
    pub data_directory: Option<PathBuf>,
    /// When the server is a standby, its primary; `None`: ask the standby where that is.
    pub primary: Option<ConnectionOptions>,
    /// Which layer to make.
    pub backup_type: BackupType,
    /// The parent to stand on; `None`: the newest usable.
    pub parent: Option<Label>,
    /// How to find what changed.
    pub change_source: ChangeSourceChoice,
    /// Fail when the tracker cannot be used, rather than read every page.
    pub require_tracker: bool,
    /// Look at some of the pages that the change source calls unchanged.
    pub audit: Option<AuditOptions>,
    /// Compression of frames.
    pub codec: pgstrata_layer::frame::Codec,
    /// Workers that read, check, compress and store; 0: one per core.
    pub jobs: usize,
    /// How the WAL gets into the repository.
    pub wal: WalMode,
    /// How long to wait for WAL in the repository.
    pub wal_timeout: Duration,
    /// How the checkpoint is made with which the backup starts.
    pub checkpoint: StartCheckpoint,
    /// What to do about pages whose checksum is wrong.
    pub on_corrupt_page: CorruptPagePolicy,
    /// Check page headers where there are no checksums, and together with them.
    pub check_page_headers: bool,
    /// Bytes per second to read at most.
    pub max_rate: Option<u64>,
    /// Who comes first when the machine is busy.
    pub impact: Impact,
    /// The same cluster in other repositories, sealed in the same way: they get the objects of the layer while it is made, as
    /// far as they take them. A copy ([`crate::mirror`]) makes the layer exist there.
    pub siblings: Vec<ClusterRepository>,
    /// The same cluster in other repositories, sealed however it is, into which the server may archive as well: none of them
    /// may have WAL of another history.
    pub archives: Vec<ClusterRepository>,
    /// Repositories that may not lie among the files of the cluster either, whether they take part or not.
    pub others: Vec<Repository>,
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self {
            connection: ConnectionOptions::default(),
            data_directory: None,
            primary: None,
            backup_type: BackupType::default(),
            parent: None,
            change_source: ChangeSourceChoice::default(),
            require_tracker: false,
            audit: None,
            codec: pgstrata_layer::frame::Codec::default(),
            jobs: 0,
            wal: WalMode::default(),
            // A busy archiver catches up within minutes, or somebody must look.
            wal_timeout: Duration::from_secs(10 * 60),
            checkpoint: StartCheckpoint::default(),
            on_corrupt_page: CorruptPagePolicy::default(),
            check_page_headers: true,
            max_rate: None,
            impact: Impact::default(),
            siblings: Vec::new(),
            archives: Vec::new(),
            others: Vec::new(),
        }
    }
}
