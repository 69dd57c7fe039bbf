//! `archive-push` and `archive-get`, which the server runs.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pgstrata_pgdata::timeline::TimelineId;

use super::{AsOfArgs, CompressArgs};
use crate::value::{at_least_one, parse_duration};

/// `archive-push`.
#[derive(Debug, Args)]
pub(crate) struct ArchivePushArgs {
    /// The file to store; archive_command writes %p
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    #[command(flatten)]
    pub(crate) compress: CompressArgs,

    /// Push also up to N further files that are ready [default: 8]
    #[arg(long, env = "PGSTRATA_PUSH_AHEAD", value_name = "N")]
    pub(crate) push_ahead: Option<usize>,

    /// Succeed when N of several repositories have the file [default: all of them]
    #[arg(long, env = "PGSTRATA_QUORUM", value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) quorum: Option<usize>,
}

/// `archive-get`.
#[derive(Debug, Args)]
pub(crate) struct ArchiveGetArgs {
    /// The name of the file; restore_command writes %f
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Where to put the file; restore_command writes %p
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// Keep files that are fetched ahead in this directory [default: one below TMPDIR]
    #[arg(long, env = "PGSTRATA_SPOOL", value_name = "DIR")]
    pub(crate) spool: Option<PathBuf>,

    /// Fetch also up to N further segments, at most 128 MiB of them [default: 8]
    #[arg(long, env = "PGSTRATA_FETCH_AHEAD", value_name = "N")]
    pub(crate) fetch_ahead: Option<usize>,

    /// Choose the answer when a file is missing and later files are there [default: stop]
    #[arg(long, env = "PGSTRATA_ON_HOLE", value_enum, value_name = "ANSWER")]
    pub(crate) on_hole: Option<OnHole>,

    /// Wait no longer than this for such a file to arrive [default: 20s]
    #[arg(long, env = "PGSTRATA_HOLE_TIMEOUT", value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) hole_timeout: Option<Duration>,

    /// Say that recovery stays on timeline N: of a later one whose history cannot be read only the number counts
    /// [default: recovery may follow any timeline]
    #[arg(long, value_name = "N")]
    pub(crate) along: Option<NonZeroU32>,

    #[command(flatten)]
    pub(crate) as_of: AsOfArgs,
}

impl ArchiveGetArgs {
    /// The timeline on which recovery stays.
    pub(crate) fn along(&self) -> Option<TimelineId> {
        self.along.map(|number| TimelineId::new(number.get()))
    }
}

/// Answers to a hole in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnHole {
    /// Exit code 255: PostgreSQL stops, and the rows of later files cannot go missing
    Stop,
    /// Exit code 1: for standbys that can stream the file, and for recoveries with a target, where PostgreSQL itself
    /// fails when it does not reach the target
    End,
}
