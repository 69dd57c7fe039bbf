//! Published experiments, each with one command.
//!
//! Every experiment is planned as a list of steps before anything runs, so that
//! `--dry-run` shows exactly what would be done. Whatever was measured is in
//! the result file after every run, also when the experiment is interrupted.

pub mod backup_speedup;
pub mod block_io;
pub mod copy_ring;
mod extension;
pub mod impact;
mod pages;
pub mod reverse_delta;
mod stage;
mod strata;
mod tools;
pub mod tracking;
mod unpack;

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
    /// An incremental backup against a full one of the same state
    BackupSpeedup(backup_speedup::Arguments),
    /// Block I/O with SQL alone: nine steps over any connection
    BlockIo(block_io::Arguments),
    /// COPY under two builds or configurations: does the bulk-write ring matter?
    CopyRing(copy_ring::Arguments),
    /// A chain of deltas restored oldest first, newest first and as one overlay
    ReverseDelta(reverse_delta::Arguments),
    /// Throughput with the page tracker off and at several map sizes
    Tracking(tracking::Arguments),
}

/// Runs one.
///
/// # Errors
/// Fails when it does.
pub fn run(command: SeedCommand, words: &[String]) -> Result<u8> {
    match command {
        SeedCommand::BackupSpeedup(arguments) => backup_speedup::run(&arguments, words),
        SeedCommand::BlockIo(arguments) => block_io::run(&arguments, words),
        SeedCommand::CopyRing(arguments) => copy_ring::run(&arguments, words),
        SeedCommand::ReverseDelta(arguments) => reverse_delta::run(&arguments, words),
        SeedCommand::Tracking(arguments) => tracking::run(&arguments, words),
    }
}
