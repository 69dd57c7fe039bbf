//! `backup`.

use clap::{Args, ValueEnum};

use super::{CompressArgs, DryRunArgs, ImpactArgs, ServerArgs, WalArgs};
use crate::value::{parse_percent, parse_size};

/// `backup`.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Reach the primary of a standby with this libpq connection string or URI [default: the standby's primary_conninfo]
    ///
    /// A backup of a standby ends in a WAL segment that only the primary can finish. The backup asks it to do so, as a
    /// role that may call pg_switch_wal(). On a primary the option means nothing.
    #[arg(long, env = "PGSTRATA_PRIMARY", value_name = "CONNINFO")]
    pub(crate) primary: Option<String>,

    /// Choose the type of the backup [default: auto]
    #[arg(short = 't', long = "type", value_enum, value_name = "TYPE")]
    pub(crate) kind: Option<BackupType>,

    /// Choose how changed pages are found [default: auto]
    #[arg(
        long,
        env = "PGSTRATA_CHANGE_SOURCE",
        value_enum,
        value_name = "SOURCE"
    )]
    pub(crate) change_source: Option<Source>,

    /// Fail when the page tracker cannot be used, instead of reading every page
    ///
    /// This holds for full backups too: the next backup must be able to use the tracker.
    #[arg(long)]
    pub(crate) require_tracker: bool,

    /// Read this share of the unchanged pages all the same, and compare them with the parent [default: none]
    ///
    /// A difference fails the backup, and makes the next backup compare every page.
    #[arg(long, env = "PGSTRATA_AUDIT", value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) audit: Option<u32>,

    /// Audit the same pages as the audit that had this seed [default: random]
    #[arg(long, value_name = "SEED", requires = "audit")]
    pub(crate) audit_seed: Option<u64>,

    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    #[command(flatten)]
    pub(crate) wal: WalArgs,

    /// Choose the checkpoint with which the backup starts [default: auto, spread with --impact low, fast with --impact none]
    #[arg(long, value_enum, value_name = "PACE")]
    pub(crate) checkpoint: Option<CheckpointPace>,

    /// Choose what happens when the checksum of a page is wrong twice [default: warn]
    #[arg(
        long,
        env = "PGSTRATA_ON_CORRUPT_PAGE",
        value_enum,
        value_name = "POLICY"
    )]
    pub(crate) on_corrupt_page: Option<CorruptPolicy>,

    /// Do not check page headers, for clusters with encrypted or foreign pages
    #[arg(long)]
    pub(crate) no_page_header_check: bool,

    /// Read at most this many bytes per second from the cluster; K, M and G are powers of 1024 [default: no limit]
    #[arg(long, env = "PGSTRATA_MAX_RATE", value_name = "RATE", value_parser = parse_size)]
    pub(crate) max_rate: Option<u64>,

    #[command(flatten)]
    pub(crate) impact: ImpactArgs,
    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
}

/// Types of backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackupType {
    /// `incr` if there is a usable parent, else `full`
    Auto,
    /// Every page
    Full,
    /// The pages that changed since the last full backup
    Diff,
    /// The pages that changed since the last backup
    Incr,
}

/// Change sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// The best source that can be trusted
    Auto,
    /// The server extension's map of changed pages
    Tracker,
    /// WAL summaries of PostgreSQL 17 and later
    Summary,
    /// Every page is read; LSNs tell for main forks, digests for the rest
    Lsn,
    /// Every page is read and its digest compared; nothing is trusted
    Digest,
}

/// Paces of the start checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckpointPace {
    /// Spread while others write, when 64 MiB of WAL or more were written since the last one and a spread one takes half an hour at
    /// most; fast otherwise, on a standby, and for a backup that stores its own WAL
    Auto,
    /// The server makes a checkpoint at once, and whoever waits for the disk waits for it
    Fast,
    /// The server spreads the checkpoint over checkpoint_completion_target: 4.5 minutes as it is installed
    Spread,
}

/// Policies for corrupt pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CorruptPolicy {
    /// The page is stored as it is, the backup is marked, the exit code is 3
    Warn,
    /// The backup fails
    Fail,
}
