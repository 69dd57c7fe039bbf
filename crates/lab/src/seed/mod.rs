//! Published experiments, each with one command.
//!
//! Every experiment is planned as a list of steps before anything runs, so that
//! `--dry-run` shows exactly what would be done. Whatever was measured is in
//! the result file after every run, also when the experiment is interrupted.

pub mod block_io;
pub mod copy_ring;
mod extension;
mod stage;
pub mod tracking;

use anyhow::Result;
use clap::{Subcommand, ValueEnum};

/// How large an experiment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Under two minutes: to see that everything works
    Tiny,
    /// Minutes, on any machine; ratios that matter are those of the original
    Small,
    /// As published
    Paper,
}

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum SeedCommand {
    /// Block I/O with SQL alone: nine steps over any connection
    BlockIo(block_io::Arguments),
    /// COPY under two builds or configurations: does the bulk-write ring matter?
    CopyRing(copy_ring::Arguments),
    /// Throughput with the page tracker off and at several map sizes
    Tracking(tracking::Arguments),
}

/// Runs one.
///
/// # Errors
/// Fails when it does.
pub fn run(command: SeedCommand, words: &[String]) -> Result<u8> {
    match command {
        SeedCommand::BlockIo(arguments) => block_io::run(&arguments, words),
        SeedCommand::CopyRing(arguments) => copy_ring::run(&arguments, words),
        SeedCommand::Tracking(arguments) => tracking::run(&arguments, words),
    }
}
