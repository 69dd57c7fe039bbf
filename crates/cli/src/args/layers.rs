//! Commands on layers that need no server: `info`, `verify`, `merge` and `expire`.

use clap::Args;
use jiff::{SignedDuration, Timestamp};

use super::{
    AgeArgs, AsOfArgs, BackupAgeArgs, CompressArgs, DryRunArgs, ImpactArgs, RestoresArgs,
    ServerArgs,
};
use crate::value::{at_least_one, key_value, parse_span, parse_span_or_none, parse_until};

/// `info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// The layer to show in detail, by its label, or latest, or all in one line each
    #[arg(value_name = "LABEL", default_value = "all")]
    pub(crate) label: String,
    #[command(flatten)]
    pub(crate) age: AgeArgs,
    #[command(flatten)]
    pub(crate) as_of: AsOfArgs,

    /// Show instead what is stored, by layer and by day of WAL, and what each rule costs
    #[arg(long)]
    pub(crate) costs: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
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

    #[command(flatten)]
    pub(crate) age: BackupAgeArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) as_of: AsOfArgs,
    #[command(flatten)]
    pub(crate) impact: ImpactArgs,
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
    pub(crate) impact: ImpactArgs,
    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
}

/// `pin`.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// The layer that stays, by its label, or latest
    #[arg(value_name = "LABEL")]
    pub(crate) label: String,

    /// Let the pin end after this day (2027-01-31, in UTC) or moment (2027-01-31T12:00:00Z) [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_until)]
    pub(crate) until: Option<Timestamp>,

    /// Write down why [default: nothing]
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

/// `unpin`.
#[derive(Debug, Args)]
pub(crate) struct UnpinArgs {
    /// The layer of which the rules decide again, by its label, or latest
    #[arg(value_name = "LABEL")]
    pub(crate) label: String,
}

/// `annotate`.
#[derive(Debug, Args)]
pub(crate) struct AnnotateArgs {
    /// The layer, by its label, or latest
    #[arg(value_name = "LABEL")]
    pub(crate) label: String,

    /// What is written about it; KEY= takes the key away
    #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) annotation: (String, String),
}

/// `expire`.
#[derive(Debug, Args)]
pub(crate) struct ExpireArgs {
    #[command(flatten)]
    pub(crate) restores: RestoresArgs,
    #[command(flatten)]
    pub(crate) compress: CompressArgs,
    #[command(flatten)]
    pub(crate) impact: ImpactArgs,
    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
    // Last: what follows would stand below its heading in the help.
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
}

/// Rules of retention. The configuration file may have them too; an option overrides the key of its name.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules, all of them together")]
pub(crate) struct RuleArgs {
    /// Keep the N newest full layers, and everything since the oldest of them [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) keep_full: Option<usize>,

    /// Keep what it takes to restore to any moment of this time before now, unless a shorter --keep-wal limits it: 14d, 2w,
    /// 36h; a number alone is of days [default: no such rule]
    #[arg(long, alias = "keep-days", value_name = "TIME", value_parser = parse_span, allow_negative_numbers = true)]
    pub(crate) keep_within: Option<SignedDuration>,

    /// Keep the last layer of each of the last N days that have one; days, weeks, months and years are those of UTC
    /// [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) keep_daily: Option<usize>,

    /// Keep the last layer of each of the last N weeks that have one, from Monday to Sunday [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) keep_weekly: Option<usize>,

    /// Keep the last layer of each of the last N months that have one [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) keep_monthly: Option<usize>,

    /// Keep the last layer of each of the last N years that have one [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) keep_yearly: Option<usize>,

    /// Keep the WAL between layers for no longer than this; an older layer restores to its own end alone
    /// [default: as long as the layers are kept]
    #[arg(long, value_name = "TIME", value_parser = parse_span_or_none, allow_negative_numbers = true)]
    pub(crate) keep_wal: Option<SignedDuration>,

    /// Merge the oldest layers when the newest chain has more than N, except what rules about time keep, and pins
    /// [default: no such rule]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) max_chain: Option<usize>,
}
