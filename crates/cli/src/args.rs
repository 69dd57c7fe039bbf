//! The command line. Help texts here are what a DBA reads at three in the morning.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::examples;
use crate::value::{at_least_one, key_value, parse_percent, parse_size};

/// Block-level incremental backup for PostgreSQL 15 to 18.
///
/// Takes full, differential and incremental backups of a running server into a
/// directory or an object store, archives WAL, and restores to any point. Every
/// page of a restored cluster is fetched and written once, however long the chain.
#[derive(Debug, Parser)]
#[command(
    name = "pgstrata",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(after_long_help = examples::FIRST_STEPS)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every command takes. Flags beat the environment, the environment
/// beats the configuration file.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Configuration file [default: /etc/pgstrata/pgstrata.toml, when it exists]
    #[arg(long, global = true, env = "PGSTRATA_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Repository: file:///dir, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, global = true, env = "PGSTRATA_REPO", value_name = "URL")]
    pub(crate) repo: Option<String>,

    /// Name of the cluster in the repository: lower-case letters, digits, `.`, `_`, `-`
    #[arg(long, global = true, env = "PGSTRATA_CLUSTER", value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// S3 endpoint, for servers other than AWS
    #[arg(long, global = true, env = "PGSTRATA_S3_ENDPOINT", value_name = "URL")]
    pub(crate) s3_endpoint: Option<String>,

    /// S3 region
    #[arg(long, global = true, env = "PGSTRATA_S3_REGION", value_name = "NAME")]
    pub(crate) s3_region: Option<String>,

    /// S3 addressing of buckets: in the path (most self-hosted servers) or in the host name
    #[arg(long, global = true, env = "PGSTRATA_S3_PATH_STYLE", value_name = "BOOL",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) s3_path_style: Option<bool>,

    /// File with storage options, `key = "value"` lines; for secrets
    ///
    /// Keys are those of the object store: `access_key_id`, `secret_access_key`,
    /// `session_token`, ... The environment variables of the vendor (`AWS_ACCESS_KEY_ID`,
    /// ...) and instance roles work too.
    #[arg(long, global = true, env = "PGSTRATA_CREDENTIALS", value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,

    /// One storage option; may be repeated. Not for secrets: others can see the command line
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) storage: Vec<(String, String)>,

    /// Parallel workers [default: number of cores]
    #[arg(short, long, global = true, env = "PGSTRATA_JOBS", value_name = "N")]
    pub(crate) jobs: Option<usize>,

    /// What to print on standard output
    #[arg(
        long,
        global = true,
        env = "PGSTRATA_OUTPUT",
        value_enum,
        value_name = "FORMAT"
    )]
    pub(crate) output: Option<Output>,

    /// What to log on standard error
    #[arg(
        long,
        global = true,
        env = "PGSTRATA_LOG_LEVEL",
        value_enum,
        value_name = "LEVEL"
    )]
    pub(crate) log_level: Option<LogLevel>,

    /// No progress bar and no progress lines
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,
}

/// Formats of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs; each document names its schema and version
    Json,
}

/// Levels of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Failures
    Error,
    /// And what needs a look
    Warn,
    /// And decisions taken
    Info,
    /// And every step
    Debug,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the cluster's entry in the repository
    ///
    /// Records system identifier, major version, block size and WAL segment size, and
    /// proves that the store honours create-if-absent. Running it again changes nothing.
    #[command(after_help = examples::INIT)]
    Init(InitArgs),

    /// Prove the configuration: repository, server, privileges, and that WAL arrives
    ///
    /// One line for everything that can be wrong, ok, warning or failed, each with what to do.
    /// Changes nothing but for a switch to a new WAL segment. Exit code 0: backups will work;
    /// 3: they will, and somebody should look; 13: they will fail.
    #[command(after_help = examples::CHECK)]
    Check(CheckArgs),

    /// Back up a running server from its data directory on this host
    ///
    /// When it returns 0 the backup is durable in the repository together with the WAL it needs;
    /// before that it does not exist. Exit code 3: done, but pages of the cluster are corrupt.
    #[command(visible_alias = "backup-push", after_help = examples::BACKUP)]
    Backup(BackupArgs),

    /// Help a backup that another process makes with --shares: make some of it
    ///
    /// Runs where the data directory of that backup is seen: on shared storage, in a snapshot taken
    /// since it started, or on the same host. Ends when no share is free.
    #[command(after_help = examples::BACKUP_SHARE)]
    BackupShare(BackupShareArgs),

    /// Put one WAL file into the archive (archive_command)
    ///
    /// Returns 0 only when the file is durable in the repository. Pushing the same file
    /// again succeeds; pushing other contents under the same name fails.
    #[command(visible_alias = "wal-push", after_help = examples::ARCHIVE_PUSH)]
    ArchivePush(ArchivePushArgs),

    /// Fetch one WAL file from the archive (restore_command)
    ///
    /// Exit code 0: fetched; 1: certainly not in the archive; 255: anything else, which
    /// makes PostgreSQL stop instead of ending recovery early.
    #[command(visible_alias = "wal-fetch", after_help = examples::ARCHIVE_GET)]
    ArchiveGet(ArchiveGetArgs),

    /// Fetch WAL files ahead of recovery into the spool (started by archive-get)
    #[command(hide = true)]
    ArchivePrefetch(ArchivePrefetchArgs),

    /// Restore a cluster, to the end of WAL or to any point
    ///
    /// PostgreSQL cannot start a directory whose restore did not finish; running the same command
    /// again completes it. Then start the server: it fetches WAL with "pgstrata archive-get".
    #[command(visible_alias = "backup-fetch", after_help = examples::RESTORE)]
    Restore(Box<RestoreArgs>),

    /// Help a restore that another process makes with --shares: make some of it
    ///
    /// Runs where the directories of that restore are seen at the same paths: on shared storage, or on the
    /// same host. Ends when no share is free.
    #[command(after_help = examples::RESTORE_SHARE)]
    RestoreShare(RestoreShareArgs),

    /// Show the backups of a cluster and its WAL archive
    ///
    /// Goes by manifests and listings, and shows what is damaged with the reason; "verify" reads
    /// the rest. Exit code 0: fine as far as that tells; 3: something cannot be restored.
    #[command(visible_aliases = ["backup-list", "show"], after_help = examples::INFO)]
    Info(InfoArgs),

    /// Prove that backups are what was written, and enough to restore
    ///
    /// Reads every object of the layers and of their WAL and checks every checksum; lists
    /// everything that is wrong. Exit code 0: nothing; 3: warnings; 14: damaged; 18: WAL missing.
    #[command(visible_alias = "validate", after_help = examples::VERIFY)]
    Verify(VerifyArgs),

    /// Merge layers of a chain into one, in the repository, without the server
    ///
    /// Makes a full layer out of a chain, or one increment out of several adjacent ones. What it makes restores
    /// to the same bytes as LABEL; layers that stand on LABEL may stand on it. It is read back and compared
    /// before inputs go, and they go only with --confirm.
    #[command(after_help = examples::MERGE)]
    Merge(MergeArgs),

    /// Remove layers and WAL that no rule keeps; without --confirm only show them
    ///
    /// Never removes a layer on which a kept one stands, nor WAL that a kept one needs; nothing while a backup
    /// runs. Histories of timelines are kept for ever.
    #[command(after_help = examples::EXPIRE)]
    Expire(ExpireArgs),

    /// The page tracker, the server extension that knows which pages changed
    #[command(after_help = examples::TRACKER)]
    Tracker {
        #[command(subcommand)]
        command: TrackerCommand,
    },

    /// Measure: experiments with one command each, honest comparisons of servers
    ///
    /// Runs the program pgstrata-lab, beside this one or on PATH, with everything that follows.
    #[command(disable_help_flag = true, after_help = examples::LAB)]
    Lab {
        /// What the lab is to do; "pgstrata lab --help" lists it
        #[arg(
            value_name = "COMMAND",
            num_args = 0..,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        arguments: Vec<OsString>,
    },

    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },

    /// Print a manual page (roff)
    #[command(after_help = examples::MAN)]
    Man {
        /// Of this command [default: of the program]
        command: Option<String>,
    },
}

/// `tracker`.
#[derive(Debug, Subcommand)]
pub(crate) enum TrackerCommand {
    /// Show whether changes are tracked, since when, and the use of the map; exit 3 if they are not
    Status(TrackerArgs),

    /// Look at each step of the installation and say what to do next
    InstallCheck(TrackerArgs),
}

/// `tracker ...`.
#[derive(Debug, Args)]
pub(crate) struct TrackerArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// How to reach the server and its files.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Data directory of the server
    #[arg(short = 'D', long, env = "PGDATA", value_name = "DIR")]
    pub(crate) pgdata: Option<PathBuf>,

    /// How to connect: a libpq connection string or URI [default: what postmaster.pid and PG* say]
    #[arg(
        short = 'd',
        long = "connection",
        env = "PGSTRATA_CONNECTION",
        value_name = "CONNINFO"
    )]
    pub(crate) connection: Option<String>,
}

/// `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// How backups get their WAL; auto tests the archive when the server archives with pgstrata
    #[arg(long, env = "PGSTRATA_WAL", value_enum, value_name = "MODE")]
    pub(crate) wal: Option<WalMode>,

    /// How long to wait for a WAL segment to arrive in the archive [default: 60]
    #[arg(long, env = "PGSTRATA_ARCHIVE_TIMEOUT", value_name = "SECONDS")]
    pub(crate) archive_timeout: Option<u64>,
}

/// `backup`.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// What to store; auto: incremental when there is a usable parent, else full
    #[arg(short = 't', long = "type", value_enum, value_name = "TYPE")]
    pub(crate) kind: Option<BackupType>,

    /// How changed pages are found; auto: the best that can be trusted
    #[arg(
        long,
        env = "PGSTRATA_CHANGE_SOURCE",
        value_enum,
        value_name = "SOURCE"
    )]
    pub(crate) change_source: Option<Source>,

    /// Fail when the page tracker cannot be used, instead of reading every page
    ///
    /// Also for full backups: the next backup must be able to use the tracker.
    #[arg(long)]
    pub(crate) require_tracker: bool,

    /// Share of the pages called unchanged to read all the same and compare with the parent
    ///
    /// A difference fails the backup, and makes the next one compare every page.
    #[arg(long, env = "PGSTRATA_AUDIT", value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) audit: Option<u32>,

    /// Audit the pages that the audit with this seed looked at
    #[arg(long, value_name = "SEED", requires = "audit")]
    pub(crate) audit_seed: Option<u64>,

    /// Compression of pages: zstd, zstd:N, lz4 or none [default: zstd:1]
    #[arg(short = 'Z', long, env = "PGSTRATA_COMPRESS", value_name = "METHOD")]
    pub(crate) compress: Option<String>,

    /// Where the WAL of this backup comes from; auto: the archive when the server archives
    /// to this repository, else taken by this backup while it runs
    #[arg(long, env = "PGSTRATA_WAL", value_enum, value_name = "MODE")]
    pub(crate) wal: Option<WalMode>,

    /// How long to wait for WAL to arrive in the archive [default: 600]
    #[arg(long, env = "PGSTRATA_ARCHIVE_TIMEOUT", value_name = "SECONDS")]
    pub(crate) archive_timeout: Option<u64>,

    /// Start at once with an immediate checkpoint, or wait for the spread one
    #[arg(long, value_enum, value_name = "PACE")]
    pub(crate) checkpoint: Option<CheckpointPace>,

    /// A page whose checksum fails twice: warn (mark the backup, exit 3) or fail
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

    /// Limit of reading from the cluster, bytes per second (K, M, G: powers of 1024)
    #[arg(long, env = "PGSTRATA_MAX_RATE", value_name = "RATE", value_parser = parse_size)]
    pub(crate) max_rate: Option<u64>,

    /// Cut the work into N shares, which "pgstrata backup-share" on other hosts makes, too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) shares: Option<u32>,

    /// Make the shares of helpers that store nothing for so long [default: 300]
    #[arg(long, value_name = "SECONDS", requires = "shares")]
    pub(crate) share_timeout: Option<u64>,

    /// Show what would be done and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `backup-share`.
#[derive(Debug, Args)]
pub(crate) struct BackupShareArgs {
    /// Label of the backup, as its log and "pgstrata info" show it [default: the one under way]
    #[arg(value_name = "LABEL")]
    pub(crate) label: Option<String>,

    /// The data directory of that backup, as this host sees it
    #[arg(short = 'D', long, env = "PGDATA", value_name = "DIR")]
    pub(crate) pgdata: PathBuf,

    /// Limit of reading from the cluster, bytes per second (K, M, G: powers of 1024)
    #[arg(long, env = "PGSTRATA_MAX_RATE", value_name = "RATE", value_parser = parse_size)]
    pub(crate) max_rate: Option<u64>,

    /// How long to wait for the backup to start and cut its work [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) share_timeout: Option<u64>,
}

/// Types of backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackupType {
    /// Incremental when there is a usable parent, else full
    Auto,
    /// Every page
    Full,
    /// What changed since the last full backup
    Diff,
    /// What changed since the last backup
    Incr,
}

/// Change sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// The best that can be trusted
    Auto,
    /// The server extension's map of changed pages
    Tracker,
    /// WAL summaries of PostgreSQL 17 and later
    Summary,
    /// Reads every page; page LSN for main forks, digests for the rest
    Lsn,
    /// Reads every page and compares digests; trusts nothing
    Digest,
}

/// Sources of a backup's WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WalMode {
    /// Archive when the server archives to this repository, else stream
    Auto,
    /// Wait until the server has archived it
    Archive,
    /// Taken by this backup from the server's pg_wal, held by a temporary slot
    Stream,
}

/// Paces of the start checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckpointPace {
    /// At once
    Fast,
    /// Spread over checkpoint_completion_target
    Spread,
}

/// Policies for corrupt pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CorruptPolicy {
    /// Store the page as it is, mark the backup, exit 3
    Warn,
    /// Fail the backup
    Fail,
}

/// `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Label of a layer: it and those it stands on; latest, or all
    #[arg(value_name = "LABEL", default_value = "all")]
    pub(crate) label: String,

    /// Also decode every page, compare it with its digest and its checksum, and plan the
    /// restore of every file
    #[arg(long)]
    pub(crate) deep: bool,
}

/// `archive-push`.
#[derive(Debug, Args)]
pub(crate) struct ArchivePushArgs {
    /// The file: %p
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// Compression of WAL: zstd, zstd:N, lz4 or none [default: zstd:1]
    #[arg(short = 'Z', long, env = "PGSTRATA_COMPRESS", value_name = "METHOD")]
    pub(crate) compress: Option<String>,

    /// Also push up to N further files that are ready [default: 8]
    #[arg(long, env = "PGSTRATA_PUSH_AHEAD", value_name = "N")]
    pub(crate) ahead: Option<usize>,
}

/// `archive-get`.
#[derive(Debug, Args)]
pub(crate) struct ArchiveGetArgs {
    /// Name of the file: %f
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Where to put it: %p
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// Directory for files fetched ahead [default: below the temporary directory]
    #[arg(long, env = "PGSTRATA_SPOOL", value_name = "DIR")]
    pub(crate) spool: Option<PathBuf>,

    /// How many segments to fetch ahead; 0: none [default: 8]
    #[arg(long, env = "PGSTRATA_PREFETCH", value_name = "N")]
    pub(crate) prefetch: Option<usize>,
}

/// `archive-prefetch`.
#[derive(Debug, Args)]
pub(crate) struct ArchivePrefetchArgs {
    /// Fetch the segments that follow this one
    pub(crate) after: String,

    /// The spool
    #[arg(long, value_name = "DIR")]
    pub(crate) spool: Option<PathBuf>,

    /// How many
    #[arg(long, value_name = "N")]
    pub(crate) count: usize,
}

/// `restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Label of the backup, or latest: the newest one that can reach the target
    #[arg(value_name = "LABEL", default_value = "latest")]
    pub(crate) label: String,

    /// Where to restore: absent or empty, unless a restore was interrupted there, or with --delta
    #[arg(long, value_name = "DIR")]
    pub(crate) target_dir: PathBuf,

    /// Where recovery stops
    #[arg(
        short = 't',
        long = "type",
        value_enum,
        value_name = "TYPE",
        default_value = "default"
    )]
    pub(crate) kind: RecoveryType,

    /// The point for --type time, xid, lsn or name
    ///
    /// A time needs an offset from UTC or a zone: 2026-11-21 09:33:05+00
    #[arg(long, value_name = "POINT")]
    pub(crate) target: Option<String>,

    /// Stop just before the target instead of just after it
    #[arg(long)]
    pub(crate) target_exclusive: bool,

    /// Timeline to follow: latest, current, or a number
    #[arg(long, value_name = "TIMELINE")]
    pub(crate) target_timeline: Option<String>,

    /// What the server does at the target
    #[arg(long, value_enum, value_name = "ACTION")]
    pub(crate) target_action: Option<TargetAction>,

    /// Put a tablespace elsewhere: OLD-DIRECTORY=NEW or OID=NEW; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = key_value)]
    pub(crate) tablespace_map: Vec<(String, String)>,

    /// Put pg_wal there and link it
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,

    /// Change a stopped cluster in place: fetch and write only what differs, remove what does not belong
    ///
    /// The target directory must hold a cluster of the same system identifier. Its pages are read and compared
    /// by digest; times are never trusted. Configuration files and WAL in the directory are replaced too.
    #[arg(long)]
    pub(crate) delta: bool,

    /// For measurement only: oldest-first writes the full backup and then every increment over it
    #[arg(
        long,
        value_enum,
        value_name = "ORDER",
        default_value = "overlay",
        conflicts_with = "delta"
    )]
    pub(crate) unpack_order: UnpackOrder,

    /// Cut the work into N shares, which "pgstrata restore-share" on other hosts makes, too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) shares: Option<u32>,

    /// Make the shares of helpers that nothing is seen of for so long [default: 300]
    #[arg(long, value_name = "SECONDS", requires = "shares")]
    pub(crate) share_timeout: Option<u64>,

    /// Show backup, WAL, timelines and bytes, and do nothing
    #[arg(long)]
    pub(crate) plan: bool,
}

/// `restore-share`.
#[derive(Debug, Args)]
pub(crate) struct RestoreShareArgs {
    /// The --target-dir of that restore
    #[arg(long, value_name = "DIR")]
    pub(crate) target_dir: PathBuf,

    /// How long to wait for the restore to cut its work [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) share_timeout: Option<u64>,
}

/// Orders of unpacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnpackOrder {
    /// Every page once, from the newest layer that has it
    Overlay,
    /// For measurement only: layer over layer, pages written again and again, no backup_manifest
    OldestFirst,
}

/// Kinds of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecoveryType {
    /// To the end of the archived WAL
    Default,
    /// To the end of the backup
    Immediate,
    /// To a time
    Time,
    /// To a transaction
    Xid,
    /// To an LSN
    Lsn,
    /// To a point made by pg_create_restore_point()
    Name,
    /// As a standby
    Standby,
    /// No archive recovery: only the WAL of the backup itself
    None,
}

/// Actions at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetAction {
    /// Wait, for a look and pg_wal_replay_resume()
    Pause,
    /// Open for writes on a new timeline
    Promote,
    /// Stop the server
    Shutdown,
}

/// `merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// The newest layer to merge, or latest: the merged one has its state
    #[arg(value_name = "LABEL")]
    pub(crate) label: String,

    /// The oldest layer to merge [default: the full layer of the chain]
    #[arg(long, value_name = "LABEL")]
    pub(crate) into: Option<String>,

    /// Remove the layers that were merged, as far as no other stands on them
    #[arg(long, conflicts_with = "keep")]
    pub(crate) confirm: bool,

    /// Keep the layers that were merged
    #[arg(long)]
    pub(crate) keep: bool,

    /// Compression of pages that must be encoded anew [default: zstd:1]
    #[arg(short = 'Z', long, env = "PGSTRATA_COMPRESS", value_name = "METHOD")]
    pub(crate) compress: Option<String>,

    /// Show what would be done and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `expire`.
#[derive(Debug, Args)]
pub(crate) struct ExpireArgs {
    /// Keep that many full layers, the newest, and everything since the oldest of them
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) keep_full: Option<usize>,

    /// Keep what it takes to restore to any moment of the last N days
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep_days: Option<u32>,

    /// Merge the oldest layers when the newest layer's chain has more than N; what --keep-days wants is not merged away
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) max_chain: Option<usize>,

    /// Compression of pages that merging encodes anew [default: zstd:1]
    #[arg(short = 'Z', long, env = "PGSTRATA_COMPRESS", value_name = "METHOD")]
    pub(crate) compress: Option<String>,

    /// Do it
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) confirm: bool,

    /// Show what would be done and do nothing (the default)
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Show one backup in detail: its label, or latest
    #[arg(value_name = "LABEL")]
    pub(crate) label: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_of_other_tools_are_understood() {
        for (alias, name) in [
            ("backup-push", "backup"),
            ("backup-fetch", "restore"),
            ("backup-list", "info"),
            ("show", "info"),
            ("wal-push", "archive-push"),
            ("wal-fetch", "archive-get"),
            ("validate", "verify"),
        ] {
            let found = Cli::command();
            let found = found.find_subcommand(alias).map(clap::Command::get_name);
            assert_eq!(found, Some(name));
        }
    }
}
