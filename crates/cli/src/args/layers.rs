//! Commands on layers that need no server: `info`, `verify`, `merge` and `expire`.

use clap::Args;

use super::{AgeArgs, CompressArgs, DryRunArgs, RestoresArgs};
use crate::value::{at_least_one, at_least_one_day};

/// `info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// The layer to show in detail, by its label, or latest, or all in one line each
    #[arg(value_name = "LABEL", default_value = "all")]
    pub(crate) label: String,
    #[command(flatten)]
    pub(crate) age: AgeArgs,
}

/// `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The layer to verify with those that it stands on, by its label, or latest, or all
    #[arg(value_name = "LABEL", default_value = "all")]
    pub(crate) label: String,

    /// Decode every page too, compare it with its digest and its checksum, and plan the restore of every file
    #[arg(long)]
    pub(crate) deep: bool,
}

/// `merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// The newest layer to merge, by its label, or latest; the merged layer has its state
    #[arg(value_name = "LABEL", default_value = "latest")]
    pub(crate) label: String,

    /// Merge from this layer on, the oldest one of them [default: the full layer of the chain]
    #[arg(long, value_name = "LABEL")]
    pub(crate) from: Option<String>,

    /// Remove the layers that were merged, unless another layer stands on them
    #[arg(long)]
    pub(crate) remove_inputs: bool,

    #[command(flatten)]
    pub(crate) restores: RestoresArgs,
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
}

/// `expire`.
#[derive(Debug, Args)]
pub(crate) struct ExpireArgs {
    /// Keep the N newest full layers, and everything since the oldest of them [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) keep_full: Option<usize>,

    /// Keep what it takes to restore to any moment of the last N days [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one_day, allow_negative_numbers = true)]
    pub(crate) keep_days: Option<u32>,

    /// Merge the oldest layers when the newest chain has more than N, except what --keep-days keeps
    /// [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) max_chain: Option<usize>,

    #[command(flatten)]
    pub(crate) restores: RestoresArgs,
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
}
