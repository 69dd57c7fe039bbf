//! `restore`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{AsOfArgs, DryRunArgs};
use crate::value::tablespace_mapping;

/// `restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The layer to restore, by its label, or latest: the newest one that can reach the target
    #[arg(value_name = "LABEL", default_value = "latest")]
    pub(crate) label: String,

    /// Restore into this directory
    ///
    /// The directory must be absent or empty, unless a restore was interrupted there, or --delta is given.
    #[arg(long, value_name = "DIR")]
    pub(crate) target_dir: PathBuf,

    /// Choose where recovery stops
    #[arg(long, value_enum, value_name = "TYPE", default_value = "default")]
    pub(crate) target_type: RecoveryType,

    /// Stop at this point, for the target types time, xid, lsn and name [default: none]
    ///
    /// Give a time with its offset from UTC, or with its zone in brackets: 2026-11-21 09:33:05+00. Without either it is
    /// a time of this machine's own time zone.
    #[arg(long, value_name = "POINT")]
    pub(crate) target: Option<String>,

    /// Stop just before the target instead of just after it
    #[arg(long)]
    pub(crate) target_exclusive: bool,

    /// Follow this timeline: latest, current (the backup's own) or a number [default: latest]
    ///
    /// The option is needed when another timeline went on beside the latest one.
    #[arg(long, value_name = "TIMELINE")]
    pub(crate) target_timeline: Option<String>,

    /// Continue on the timeline of the source, as --target-type none does
    ///
    /// Source and copy then write different WAL under the same LSNs and file names. Every other target type begins
    /// a new timeline.
    #[arg(long)]
    pub(crate) same_timeline: bool,

    /// Choose what the server does at the target [default: pause]
    #[arg(long, value_enum, value_name = "ACTION")]
    pub(crate) target_action: Option<TargetAction>,

    /// Put a tablespace elsewhere: OLD-DIRECTORY=NEW or OID=NEW, \= in a path; may be repeated [default: none]
    #[arg(long, value_name = "OLD=NEW", value_parser = tablespace_mapping)]
    pub(crate) tablespace_map: Vec<(String, String)>,

    /// Put pg_wal into this directory, and a link to it into the data directory [default: none]
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,

    /// Put the configuration that lay outside of the data directory into this directory [default: the target directory]
    ///
    /// The directory must be absent or empty. Without the option postgresql.conf, pg_hba.conf and pg_ident.conf go into
    /// the target directory, and settings in them that name files of the source are commented out.
    #[arg(long, value_name = "DIR")]
    pub(crate) config_dir: Option<PathBuf>,

    /// Change a stopped cluster in place: write only what differs, remove what does not belong there
    ///
    /// The target directory must hold a cluster of the same system identifier. The command reads its pages and compares
    /// them by digest; it never trusts times. It replaces configuration files and WAL in the directory too.
    #[arg(long)]
    pub(crate) delta: bool,

    /// Choose whether the restored server archives [default: off; with --delta see below]
    ///
    /// The default keeps a copy from archiving beside its source. With --delta the default is "keep" if the directory is
    /// known to be the cluster's own, and its configuration archives this cluster: then the backup's configuration decides.
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) archive_mode: Option<ArchiveMode>,

    /// Skip layers that cannot be read, and take the newest layer that can
    #[arg(long)]
    pub(crate) skip_damaged: bool,

    /// With --delta: promise that no server runs on the directory, where pgstrata cannot see that
    ///
    /// The option is needed after a crash, and when postmaster.pid names a process of another container or host. Any
    /// sign of a running server is an error all the same.
    #[arg(long, requires = "delta")]
    pub(crate) server_is_stopped: bool,

    /// With --delta: promise that the links to tablespaces and WAL belong to this directory, not to its original
    #[arg(long, requires = "delta")]
    pub(crate) links_are_own: bool,

    #[command(flatten)]
    pub(crate) as_of: AsOfArgs,

    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
}

/// What a restored server does with archiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArchiveMode {
    /// The server archives nothing until it is told to
    Off,
    /// The server does what the backup's configuration says
    Keep,
}

/// Kinds of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecoveryType {
    /// At the end of the archived WAL
    Default,
    /// At the end of the backup
    Immediate,
    /// At a time
    Time,
    /// At a transaction
    Xid,
    /// At an LSN
    Lsn,
    /// At a point that pg_create_restore_point() made
    Name,
    /// Never: the server becomes a standby
    Standby,
    /// At the end of the backup's own WAL, without archive recovery; needs --same-timeline
    None,
}

/// Actions at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetAction {
    /// The server waits for a look and for pg_wal_replay_resume()
    Pause,
    /// The server opens for writes on a new timeline
    Promote,
    /// The server stops
    Shutdown,
}
