//! `copy`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{DryRunArgs, ImpactArgs, RecipientArgs};
use crate::value::{key_value, parse_duration};

/// `copy`.
#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The layers to copy, by their labels, with those that they stand on, or latest
    /// [default: all layers and the archive]
    #[arg(value_name = "LABEL")]
    pub(crate) labels: Vec<String>,

    /// Copy into this repository: its URL, or its name in the configuration file
    #[arg(long, value_name = "URL or NAME")]
    pub(crate) to: String,

    /// Read storage options of the repository in --to from this file [default: none]
    ///
    /// The file is as that of --credentials, and holds `endpoint`, `region`, ... too. A repository that the configuration
    /// file names has them there.
    #[arg(long, value_name = "FILE")]
    pub(crate) to_credentials: Option<PathBuf>,

    /// Set one storage option of the repository in --to; may be repeated. Do not put secrets here [default: none]
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) to_storage: Vec<(String, String)>,

    /// Copy again and again what is new, until the command is interrupted
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) follow: bool,

    /// Wait so long between two copies of --follow [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "follow")]
    pub(crate) every: Option<Duration>,

    #[command(flatten)]
    pub(crate) recipients: RecipientArgs,

    #[command(flatten)]
    pub(crate) impact: ImpactArgs,

    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
}
