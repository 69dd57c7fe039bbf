//! The repository's past: `rescue`, and the option to read the repository as it was.

use clap::Args;
use jiff::Timestamp;

use super::DryRunArgs;
use crate::value::parse_moment;

/// `rescue`.
#[derive(Debug, Args)]
pub(crate) struct RescueArgs {
    /// Bring back what was hidden or replaced since this moment: 2026-11-21T09:33:05Z
    ///
    /// Take the last moment at which everything was in order. Stores note whole seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) since: Timestamp,

    #[command(flatten)]
    pub(crate) dry_run: DryRunArgs,
}

/// What of the repository commands see that only read it.
#[derive(Debug, Clone, Args)]
pub(crate) struct AsOfArgs {
    /// Read the repository as it was at this moment, from a bucket that keeps versions: 2026-11-21T09:33:05Z
    /// [default: as it is]
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) repository_as_of: Option<Timestamp>,
}
