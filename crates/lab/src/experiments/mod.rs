//! Experiments, each with one command: those that others published, and our own.
//!
//! Every experiment is planned as a list of steps before anything runs, so that
//! `--dry-run` shows exactly what would be done. Whatever was measured is in
//! the result file after every run, also when the experiment is interrupted.

pub mod archive;
pub mod backup_speedup;
pub mod block_io;
pub mod copy_ring;
mod extension;
pub mod growth;
pub mod impact;
mod pages;
pub mod reverse_delta;
pub mod s3_restore;
pub mod shared;
pub mod speed;
mod stage;
mod strata;
mod tools;
pub mod tracking;
mod unpack;

use anyhow::Result;
use clap::Subcommand;

/// The published ones.
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

/// How fast, how large, and beside what.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Backup and restore against the limits of the machine and against other tools
    Speed(speed::Arguments),
    /// WAL segments to and from an S3 server with latency
    Archive(archive::Arguments),
    /// A chain restored from an S3 server with latency
    S3(s3_restore::Arguments),
    /// Clusters of several sizes with the same amount of change
    Growth(growth::Arguments),
}

/// Runs one of our own.
///
/// # Errors
/// Fails when it does.
pub fn bench(command: BenchCommand, words: &[String]) -> Result<u8> {
    match command {
        BenchCommand::Speed(arguments) => speed::run(&arguments, words),
        BenchCommand::Archive(arguments) => archive::run(&arguments, words),
        BenchCommand::S3(arguments) => s3_restore::run(&arguments, words),
        BenchCommand::Growth(arguments) => growth::run(&arguments, words),
    }
}

/// Runs a published one.
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
