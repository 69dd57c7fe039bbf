//! Published experiments, each with one command.

use anyhow::Result;
use clap::Subcommand;

/// The experiments.
#[derive(Debug, Subcommand)]
pub enum SeedCommand {}

/// Runs one.
///
/// # Errors
/// Fails when it does.
pub fn run(command: SeedCommand, _words: &[String]) -> Result<u8> {
    match command {}
}
