//! The command line. Help texts here are what a DBA reads at three in the morning.
//!
//! One habit holds for all commands. A command does what it is told; `--dry-run` shows what it would do and
//! changes nothing. An option that two commands share has one meaning, one kind of value and one sentence of
//! help, so it is written once and flattened into both.

mod archive;
mod backup;
mod copy;
#[cfg(test)]
mod habits;
mod idle;
mod impact;
mod key;
mod layers;
mod past;
mod restore;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use self::archive::{ArchiveGetArgs, ArchivePushArgs, OnHole};
pub(crate) use self::backup::{BackupArgs, BackupType, CheckpointPace, CorruptPolicy, Source};
pub(crate) use self::copy::CopyArgs;
pub(crate) use self::idle::refuse_idle;
pub(crate) use self::impact::{ImpactArgs, ImpactLevel};
pub(crate) use self::key::{KeyCommand, RecipientArgs};
pub(crate) use self::layers::{
    AnnotateArgs, ExpireArgs, InfoArgs, MergeArgs, PinArgs, RuleArgs, UnpinArgs, VerifyArgs,
};
pub(crate) use self::past::{AsOfArgs, RescueArgs};
pub(crate) use self::restore::{ArchiveMode, RestoreArgs, TargetAction};
use crate::examples;
use crate::value::{key_value, parse_days, parse_duration, parse_jobs};

/// Block-level incremental backup for PostgreSQL 15 to 18.
///
/// pgstrata takes full, differential and incremental backups of a running server into a directory or an object
/// store. It archives WAL, and it restores to any point. It fetches and writes every page of a restored cluster
/// once, however long the chain of backups is.
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

/// What the help of each command says instead of describing the global options again.
const GLOBAL_OPTIONS: &str = "\
Options of every command (\"pgstrata --help\" describes them):
  --config, --repo, --cluster, --credentials, --storage, --s3-endpoint, --s3-region,
  --s3-path-style, --s3-ca-file, --identity, --key-command, --seal-id, --jobs, --output, --log-level, --no-progress";

/// The command line as it is parsed and as its help shows it.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command();
    // This copies the global options into the subcommands, whose help then leaves them out.
    command.build();
    let names = command.get_subcommands().map(|of| of.get_name().to_owned());
    let names: Vec<String> = names.collect();
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, point_to_global_options)
    })
}

fn point_to_global_options(command: clap::Command) -> clap::Command {
    let names = command.get_subcommands().map(|of| of.get_name().to_owned());
    let names: Vec<String> = names.collect();
    let command = names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, point_to_global_options)
    });
    let global = |arg: &clap::Arg| arg.get_help_heading() == Some(GLOBAL_HEADING);
    let is_ours = command.get_arguments().any(global);
    let after = command.get_after_help().map(ToString::to_string);
    let command = command.mut_args(|arg| match global(&arg) {
        true => arg.hide(true),
        false => arg,
    });
    if !is_ours {
        return command;
    }
    match after {
        Some(examples) => command.after_help(format!("{GLOBAL_OPTIONS}\n\n{examples}")),
        None => command.after_help(GLOBAL_OPTIONS),
    }
}

const GLOBAL_HEADING: &str = "Options of every command";

/// Options that every command takes. Flags override the environment, and the environment overrides the
/// configuration file.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = GLOBAL_HEADING)]
pub(crate) struct Global {
    /// Read this configuration file [default: /etc/pgstrata/pgstrata.toml, if it exists]
    #[arg(long, global = true, env = "PGSTRATA_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Use this repository: file:///dir, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix, or the name of
    /// one in the configuration file [default: that of the configuration file, or all that it names]
    #[arg(long, global = true, env = "PGSTRATA_REPO", value_name = "URL or NAME")]
    pub(crate) repo: Option<String>,

    /// Use this cluster of the repository; its name has lower-case letters, digits, `.`, `_` and `-`
    /// [default: none, it must be given]
    #[arg(long, global = true, env = "PGSTRATA_CLUSTER", value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// Connect to this S3 endpoint, for servers other than AWS [default: AWS]
    #[arg(long, global = true, env = "PGSTRATA_S3_ENDPOINT", value_name = "URL")]
    pub(crate) s3_endpoint: Option<String>,

    /// Use this S3 region [default: us-east-1]
    #[arg(long, global = true, env = "PGSTRATA_S3_REGION", value_name = "NAME")]
    pub(crate) s3_region: Option<String>,

    /// Put the bucket into the path of S3 requests, and not into the host name; most self-hosted servers need that
    /// [default: true]
    #[arg(long, global = true, env = "PGSTRATA_S3_PATH_STYLE", value_name = "BOOL",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) s3_path_style: Option<bool>,

    /// Trust the certificate authorities in this PEM file for the S3 endpoint, beside those of the system
    /// [default: those of the system]
    #[arg(long, global = true, env = "PGSTRATA_S3_CA_FILE", value_name = "FILE")]
    pub(crate) s3_ca_file: Option<PathBuf>,

    /// Read storage options from this file, `key = "value"` lines; secrets belong here [default: none]
    ///
    /// The keys are those of the object store: `access_key_id`, `secret_access_key`, `session_token`, ... Other users
    /// must not be able to read the file. Keys and session tokens of S3 are read again when it changes. The environment variables of the vendor (`AWS_ACCESS_KEY_ID`, ...) and
    /// the role of the machine work too.
    #[arg(long, global = true, env = "PGSTRATA_CREDENTIALS", value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,

    /// Set one storage option; may be repeated. Secrets are refused here, because other users see the command line
    /// [default: none]
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) storage: Vec<(String, String)>,

    /// Open a sealed cluster with the age identity in this file, which nobody else may read
    /// [default: what the environment variable PGSTRATA_IDENTITY names or holds]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) identity: Option<PathBuf>,

    /// Open a sealed cluster with the age identity that this command prints, such as that of a key service
    /// [default: none]
    #[arg(long, global = true, value_name = "COMMAND")]
    pub(crate) key_command: Option<String>,

    /// Refuse a cluster that is not sealed with this id, which "init --encrypt" prints [default: any]
    #[arg(long, global = true, env = "PGSTRATA_SEAL_ID", value_name = "ID")]
    pub(crate) seal_id: Option<String>,

    /// Work with N threads [default: number of cores]
    #[arg(short, long, global = true, env = "PGSTRATA_JOBS", value_name = "N",
          value_parser = parse_jobs, allow_negative_numbers = true)]
    pub(crate) jobs: Option<usize>,

    /// Choose what standard output holds [default: text]
    #[arg(
        long,
        global = true,
        env = "PGSTRATA_OUTPUT",
        value_enum,
        value_name = "FORMAT"
    )]
    pub(crate) output: Option<Output>,

    /// Choose what is logged on standard error [default: info; warn for commands that the server runs]
    #[arg(
        long,
        global = true,
        env = "PGSTRATA_LOG_LEVEL",
        value_enum,
        value_name = "LEVEL"
    )]
    pub(crate) log_level: Option<LogLevel>,

    /// Show no progress bar and no progress lines
    #[arg(long, global = true)]
    pub(crate) no_progress: bool,
}

/// Formats of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for people
    Text,
    /// One JSON document for programs; its first key names its schema
    Json,
}

/// Levels of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Failures
    Error,
    /// Failures, and what somebody should look at
    Warn,
    /// The same, and decisions
    Info,
    /// The same, and every step
    Debug,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the cluster's entry in the repository
    ///
    /// The entry records system identifier, major version, block size and WAL segment size. The command also proves
    /// that the store never overwrites an object that exists. Running it again changes nothing.
    #[command(after_help = examples::INIT)]
    Init(InitArgs),

    /// Prove that backups will work: repository, server, privileges, and that WAL arrives
    ///
    /// The command prints one line for each thing that can be wrong: ok, warning or failed, and what to do. It
    /// creates and removes a few objects in the repository, and the server switches to a new WAL segment; "pgstrata
    /// info" changes nothing. Exit code 0: backups will work; 3: they will work, and there is a warning; 13: they will
    /// fail, or something that was promised cannot be restored.
    #[command(after_help = examples::CHECK)]
    Check(CheckArgs),

    /// Back up a running server from its data directory on this host
    ///
    /// When the command returns 0, the backup is durable in the repository, and so is the WAL that it needs. Before
    /// that the backup does not exist. Exit code 3: the backup is complete, and somebody should look at a warning;
    /// pages of the cluster may be corrupt.
    #[command(visible_alias = "backup-push", after_help = examples::BACKUP)]
    Backup(BackupArgs),

    /// Put one WAL file into the archive; archive_command calls it
    ///
    /// The command returns 0 only when the file is durable in the repository. If the archive has the file already, the
    /// command reads it back, and mends it when it is damaged. Other contents under the same name are an error.
    #[command(visible_alias = "wal-push", after_help = examples::ARCHIVE_PUSH)]
    ArchivePush(ArchivePushArgs),

    /// Fetch one WAL file from the archive; restore_command calls it
    ///
    /// Exit code 0: the file was fetched; 1: the archive ends before the file; 255: anything else, a hole in the
    /// archive included. PostgreSQL stops at 255, instead of ending recovery early.
    #[command(visible_alias = "wal-fetch", after_help = examples::ARCHIVE_GET)]
    ArchiveGet(ArchiveGetArgs),

    /// Restore a cluster, to the end of WAL or to any point
    ///
    /// PostgreSQL cannot start a directory whose restore did not finish. Run the same command again to complete it.
    /// Then start the server; it fetches its WAL with "pgstrata archive-get".
    #[command(visible_alias = "backup-fetch", after_help = examples::RESTORE)]
    Restore(Box<RestoreArgs>),

    /// Show the backups of a cluster and its WAL archive
    ///
    /// The command reads manifests and listings, and shows what is damaged with the reason. "pgstrata verify" reads
    /// the rest. Exit code 0: nothing is wrong as far as listings tell; 3: there is an alarm, which says what cannot be
    /// restored because of it, if anything.
    #[command(visible_aliases = ["backup-list", "show"], after_help = examples::INFO)]
    Info(InfoArgs),

    /// Prove that backups are what was written, and that they can be restored
    ///
    /// The command reads every object of the layers and of their WAL, checks every checksum, and lists everything that
    /// is wrong. Exit code 0: nothing is wrong; 3: there are warnings or alarms; 14: something is damaged; 15: an object
    /// is not given out; 18: WAL is missing; 21: a newer version wrote something.
    #[command(visible_alias = "validate", after_help = examples::VERIFY)]
    Verify(VerifyArgs),

    /// Merge layers of a chain into one layer, in the repository, without the server
    ///
    /// The command makes a full layer out of a chain, or one increment out of several adjacent ones. The new layer
    /// restores to the same bytes as LABEL, and layers that stand on LABEL can stand on it. The command reads the
    /// new layer back and compares it. The merged layers stay, unless --remove-inputs is given.
    #[command(after_help = examples::MERGE)]
    Merge(MergeArgs),

    /// Copy layers and WAL into another repository, without the server
    ///
    /// The command copies layers with those that they stand on, their WAL, pins and annotations; without a LABEL all of
    /// them and the rest of the archive. What is there already is neither sent nor read again, so a copy that was stopped
    /// goes on where it was; "pgstrata verify" reads it. Everything else is checked on its way. Exit code 0: all is there;
    /// another one: something was left out, and the report says what.
    ///
    /// A sealed cluster is copied for the recipients that it has. With --recipient, --writer and --keeper the copy is
    /// opened by these alone; the command then needs the identity of a reader. Name them again when the source has a
    /// new epoch; other copies need no such option.
    #[command(after_help = examples::COPY)]
    Copy(CopyArgs),

    /// Remove the layers and the WAL that no rule keeps
    ///
    /// The command needs a rule, here or in the configuration file. A layer stays when any rule wants it. It removes at
    /// once; --dry-run shows first what would go. It never removes the newest layer, a pinned one, a layer on which a kept
    /// one stands, or WAL that a kept layer needs to be consistent. It removes nothing while a backup is at work. It keeps
    /// the histories of timelines for ever.
    #[command(after_help = examples::EXPIRE)]
    Expire(ExpireArgs),

    /// Bring back what somebody has deleted or overwritten in a bucket that keeps versions
    ///
    /// The command lists what was there at a moment and is hidden or replaced now, and puts the versions of that moment on
    /// top again. It deletes nothing. What was removed before that moment stays removed; what was made since stays.
    #[command(after_help = examples::RESCUE)]
    Rescue(RescueArgs),

    /// Keep a layer, whatever the rules are
    ///
    /// The layer stays with all it stands on and with the WAL that makes it consistent, until --until or "pgstrata unpin".
    /// A layer that cannot be restored, or is being removed, cannot be pinned. A merge leaves a pinned layer where it is.
    #[command(after_help = examples::PIN)]
    Pin(PinArgs),

    /// Let the rules decide about a pinned layer again
    #[command(after_help = examples::UNPIN)]
    Unpin(UnpinArgs),

    /// Write something about a layer that "pgstrata info" shows
    ///
    /// A key has lower-case letters, digits, `.`, `_` and `-`. A second value takes the place of the first.
    #[command(after_help = examples::ANNOTATE)]
    Annotate(AnnotateArgs),

    /// Decide who can read a sealed cluster
    ///
    /// A cluster is sealed by "init --encrypt". Everybody who shall read it has an age identity, a secret, and gives away its
    /// public half, the recipient. Whoever loses all identities of readers loses the backups.
    #[command(after_help = examples::KEY)]
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },

    /// Look at the page tracker, the server extension that knows which pages changed
    #[command(after_help = examples::TRACKER)]
    Tracker {
        #[command(subcommand)]
        command: TrackerCommand,
    },

    /// Measure servers: experiments with one command each, and fair comparisons
    ///
    /// This runs the program pgstrata-lab with everything that follows. The program lies beside this one or on PATH.
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
        /// The shell that will read the script
        shell: clap_complete::Shell,
    },

    /// Print a manual page (roff)
    #[command(after_help = examples::MAN)]
    Man {
        /// The command that the page describes [default: the program]
        command: Option<String>,
    },
}

/// `tracker`.
#[derive(Debug, Subcommand)]
pub(crate) enum TrackerCommand {
    /// Show whether changes are tracked, since when, and how full the map is
    ///
    /// Exit code 0: changes are tracked; 3: they are not.
    Status(TrackerArgs),

    /// Look at each step of the installation and say what to do next
    ///
    /// Exit code 0: the tracker is installed; 3: it works, and somebody should look; 13: a step is missing.
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
    /// Use the server with this data directory [default: none]
    #[arg(short = 'D', long, env = "PGDATA", value_name = "DIR")]
    pub(crate) pgdata: Option<PathBuf>,

    /// Connect with this libpq connection string or URI [default: what postmaster.pid and PG* say]
    #[arg(
        short = 'd',
        long = "connection",
        env = "PGSTRATA_CONNECTION",
        value_name = "CONNINFO"
    )]
    pub(crate) connection: Option<String>,
}

/// How old the newest backup may be.
#[derive(Debug, Clone, Args)]
pub(crate) struct BackupAgeArgs {
    /// Raise an alarm when the newest backup is older than this, such as 26h [default: never]
    #[arg(long, env = "PGSTRATA_MAX_AGE", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) max_age: Option<Duration>,
}

/// How old the newest backup may be, and the newest verification.
#[derive(Debug, Clone, Args)]
pub(crate) struct AgeArgs {
    #[command(flatten)]
    pub(crate) backup: BackupAgeArgs,

    /// Raise an alarm when "pgstrata verify" has not found everything in order for longer than this, such as 8d [default: never]
    #[arg(long, env = "PGSTRATA_MAX_VERIFY_AGE", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) max_verify_age: Option<Duration>,
}

/// How the WAL of backups gets into the repository.
#[derive(Debug, Clone, Args)]
pub(crate) struct WalArgs {
    /// Choose how backups get their WAL [default: auto]
    #[arg(long, env = "PGSTRATA_WAL", value_enum, value_name = "MODE")]
    pub(crate) wal: Option<WalMode>,

    /// Wait no longer than this for WAL to arrive in the archive [default: 10m; 90s for check]
    #[arg(long, env = "PGSTRATA_ARCHIVE_TIMEOUT", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) archive_timeout: Option<Duration>,
}

/// Sources of a backup's WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WalMode {
    /// `archive` if the server archives to this repository, else `stream`
    Auto,
    /// Wait until the server has archived the WAL
    Archive,
    /// The backup copies the WAL from the server's pg_wal, which a temporary slot keeps
    Stream,
}

/// How what is stored is compressed.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompressArgs {
    /// Compress what is stored with zstd, zstd:N (N from 1 to 22), lz4 or none [default: zstd:1]
    #[arg(short = 'Z', long, env = "PGSTRATA_COMPRESS", value_name = "METHOD")]
    pub(crate) compress: Option<String>,
}

/// Whether the command acts.
#[derive(Debug, Clone, Args)]
pub(crate) struct DryRunArgs {
    /// Show what the command would do, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What commands that remove layers do about restores.
#[derive(Debug, Clone, Args)]
pub(crate) struct RestoresArgs {
    /// Remove also what a restore may still need
    ///
    /// Without this option the command keeps what a restore needs until 24 hours after its last sign of life.
    #[arg(long)]
    pub(crate) ignore_restores: bool,
}

/// `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Seal everything of this cluster, so that --recipient alone can read it
    #[arg(long)]
    pub(crate) encrypt: bool,

    #[command(flatten)]
    pub(crate) recipients: RecipientArgs,

    /// Be content with one --recipient: who loses that identity loses the backups
    #[arg(long, requires = "encrypt")]
    pub(crate) one_recipient: bool,

    /// Lock every layer in the store for so many days after it was made, with all it stands on: 30d; the bucket needs
    /// Object Lock [default: no locks]
    #[arg(long, value_name = "TIME", value_parser = parse_days)]
    pub(crate) retain: Option<u32>,

    /// With --retain: choose who may lift a lock
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        default_value = "compliance",
        requires = "retain"
    )]
    pub(crate) retain_mode: RetainMode,
}

/// Who may lift a lock, in the words of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RetainMode {
    /// Nobody, not even the owner of the account
    Compliance,
    /// Whoever has the right s3:BypassGovernanceRetention
    Governance,
}

/// `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) wal: WalArgs,
    #[command(flatten)]
    pub(crate) age: AgeArgs,
}
