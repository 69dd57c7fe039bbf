//! `chaos`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::{ArgAction, Args};
use pgstrata_testbed::cluster::Major;

use crate::chaos::{self, Length, Plan, Verdict};
use crate::experiments::shared::Usage;
use crate::measure::programs;
use crate::measure::result::{epoch, typed};
use crate::number::whole_u64;

/// The exit code of a finding.
const FOUND: u8 = 1;

const EXAMPLES: &str = "\
A run makes a throwaway server with a repository and takes random steps: SQL of all kinds, backups with crashes, kills
and changes beside them, crashes of the server, commands that are killed or held, also those of the archiver and of
recovery, too few descriptors or processes, full disks (for root, who may mount small ones), a network that fails, copies
that go on in the place of their original or beside it, where both archive and are backed up, directories that go back,
readers of a sealed cluster who come and go, expiries by all rules, objects that somebody deletes and a rescue brings
back, a second repository that follows the first.
Now and then, and at the end, it restores moments whose contents it knows, and compares every table. A command that says
that it has done something and has not, or that fails for no reason that the step gave it, is a finding.

  pgstrata lab chaos                            100 steps with a random seed, which is printed
  pgstrata lab chaos --seed 7 --steps 40        the decisions of seed 7
  pgstrata lab chaos --minutes 60 --major 18    for an hour
  pgstrata lab chaos --tracker --store s3       with the page tracker; repository in a bucket behind a faulty network

A seed repeats the decisions. It does not repeat the times: a command that is killed after 300 ms is elsewhere then. So
repeat a finding a few times, and look into the directory that the run has left: steps.jsonl has all steps, steps/ what
each command printed, server.log what the server said; data directories, copies and the repository lie beside them.

Exit codes: 0 nothing was found; 1 a finding; 2 usage; 5 the run itself failed; 130 interrupted.";

/// Arguments of `chaos`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ChaosArguments {
    /// decides everything that is done; random by default, and printed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// how many steps
    #[arg(long, value_name = "M", default_value_t = 100)]
    steps: u64,
    /// go on for so many minutes instead
    #[arg(long, value_name = "T", conflicts_with = "steps")]
    minutes: Option<u64>,
    /// major version of the server
    #[arg(long, value_name = "MAJOR", default_value_t = 15)]
    major: u32,
    /// with the page tracker, built from its sources into a copy of the server: needs the checkout
    #[arg(long)]
    tracker: bool,
    /// where the repository is; by default the seed decides
    #[arg(long, value_enum)]
    store: Option<StoreKind>,
    /// whether the server archives its WAL; by default the seed decides
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    archive: Option<bool>,
    /// restore at most so many of the moments that are owed at the end; all of them by default
    #[arg(long, value_name = "COUNT")]
    at_the_end: Option<usize>,
    /// the program that is tried; by default the one beside this, else on PATH
    #[arg(long, value_name = "PATH")]
    pgstrata: Option<PathBuf>,
    /// directory of the run, which must not exist; by default one below TMPDIR
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// keep the directory also when nothing was found
    #[arg(long)]
    keep: bool,
}

/// Where a repository can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum StoreKind {
    /// A directory
    Directory,
    /// A bucket of an S3 server on this machine, behind a network that fails
    S3,
}

/// `chaos`.
///
/// # Errors
/// When the run itself fails.
pub fn run(arguments: &ChaosArguments, words: &[String]) -> Result<u8> {
    let major = Major::from_number(arguments.major).map_err(|error| Usage(error.to_string()))?;
    let seed = arguments
        .seed
        .unwrap_or_else(|| whole_u64(epoch() * 1000.0) % 1_000_000_000);
    let length = match arguments.minutes {
        Some(minutes) => Length::Time(Duration::from_secs(minutes * 60)),
        None => Length::Steps(arguments.steps),
    };
    let mut repeat = typed(words);
    if arguments.seed.is_none() {
        repeat.push_str(&format!(" --seed {seed}"));
    }
    let plan = Plan {
        seed,
        length,
        major,
        program: programs::find_pgstrata(arguments.pgstrata.as_deref().map(Path::new))?,
        tracker: arguments.tracker,
        is_on_s3: arguments.store.map(|store| store == StoreKind::S3),
        archives: arguments.archive,
        out: arguments.out.clone(),
        keep: arguments.keep,
        at_the_end: arguments.at_the_end,
        repeat,
    };
    match chaos::run(&plan)? {
        Verdict::Nothing => Ok(0),
        Verdict::Finding => Ok(FOUND),
    }
}
