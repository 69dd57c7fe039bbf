//! The command line: what can be asked, what is printed, exit codes.
//!
//! 0 done; 1 a regression is proven (`gate`) or a fault was found (`chaos`); 2 usage; 3 unclear (`gate`);
//! 4 a condition makes the comparison invalid; 5 a run failed; 130 interrupted
//! (the partial result is kept and can be analysed).

pub mod chaos;
pub mod compare;
pub mod inspect;
pub mod measure;

use std::io::ErrorKind;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::experiments::shared::Usage;
use crate::interrupt;
use crate::report::output::tell;

/// Experiments and honest comparisons of PostgreSQL.
#[derive(Debug, Parser)]
#[command(name = "pgstrata lab", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is wrong with this machine (and a server) for measuring
    Doctor(inspect::DoctorArguments),
    /// Capture an environment, or show what differs between two
    #[command(subcommand)]
    Env(inspect::EnvCommand),
    /// Measure one server
    Run(measure::RunArguments),
    /// Compare arms in randomised interleaved blocks
    Ab(measure::AbArguments),
    /// Say how many blocks an effect needs, from a pilot's result
    Plan(compare::PlanArguments),
    /// Reproduce a published experiment
    #[command(subcommand)]
    Seed(crate::experiments::SeedCommand),
    /// Measure what users feel while a backup runs: pgstrata and what else is installed
    Impact(Box<crate::experiments::impact::Arguments>),
    /// Measure speed, size and memory as ratios
    #[command(subcommand)]
    Bench(crate::experiments::BenchCommand),
    /// Drive a server and pgstrata at random, restore what was promised, and compare
    Chaos(chaos::ChaosArguments),
    /// Analyse a result again: terminal, HTML, JSON, CSV
    Report(compare::ReportArguments),
    /// Compare two results of different sessions: at most "possible"
    Compare(compare::CompareArguments),
    /// Fail a build on a proven regression
    Gate(compare::GateArguments),
    /// Repeat an experiment here, and say what differs from the original's environment
    Rerun(compare::RerunArguments),
    /// List workloads, or show one
    #[command(subcommand)]
    Workloads(inspect::WorkloadsCommand),
}

/// Runs the program; returns its exit code.
#[must_use]
pub fn main(arguments: Vec<String>) -> u8 {
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors: clap knows where to print them.
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return match error.print() {
                Err(failed) if code == 0 && failed.kind() != ErrorKind::BrokenPipe => {
                    tell(&format!(
                        "error: could not write to standard output: {failed}"
                    ));
                    5
                }
                _ => code,
            };
        }
    };
    let outcome = interrupt::install().and_then(|()| dispatch(cli.command, &recorded(&arguments)));
    match outcome {
        Ok(code) => code,
        Err(error) if error.is::<interrupt::Interrupted>() || interrupt::requested() => {
            tell("interrupted");
            130
        }
        Err(error) => {
            tell(&format!(
                "error: {}",
                crate::measure::environment::mask::mask(&format!("{error:#}"))
            ));
            if error.is::<Usage>() { 2 } else { 5 }
        }
    }
}

/// The command line as a user would type it again.
fn recorded(arguments: &[String]) -> Vec<String> {
    let mut words = vec!["pgstrata".to_owned(), "lab".to_owned()];
    words.extend(arguments.iter().skip(1).cloned());
    words
}

/// Parses recorded words and runs them.
fn repeat(words: &[String]) -> Result<u8> {
    let arguments: Vec<&String> = words.iter().skip(1).collect();
    let cli = Cli::try_parse_from(arguments)
        .map_err(|error| Usage(format!("could not repeat the command: {error}")))?;
    dispatch(cli.command, words)
}

fn dispatch(command: Command, words: &[String]) -> Result<u8> {
    match command {
        Command::Doctor(arguments) => inspect::doctor(&arguments),
        Command::Env(arguments) => inspect::env(&arguments),
        Command::Run(arguments) => measure::run(arguments, words),
        Command::Ab(arguments) => measure::ab(arguments, words),
        Command::Plan(arguments) => compare::plan(&arguments),
        Command::Seed(arguments) => crate::experiments::run(arguments, words),
        Command::Impact(arguments) => crate::experiments::impact::run(&arguments, words),
        Command::Bench(arguments) => crate::experiments::bench(arguments, words),
        Command::Chaos(arguments) => chaos::run(&arguments, words),
        Command::Report(arguments) => compare::report(&arguments),
        Command::Compare(arguments) => compare::compare(&arguments, words),
        Command::Gate(arguments) => compare::gate(&arguments),
        Command::Rerun(arguments) => compare::rerun(&arguments),
        Command::Workloads(arguments) => inspect::workloads(&arguments),
    }
}
