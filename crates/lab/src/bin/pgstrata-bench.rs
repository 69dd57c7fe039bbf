//! `make bench`: backup and restore against the limits of the machine and against peers.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program's output"
)]

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use pgstrata_lab::bench;
use pgstrata_lab::bench::chain::{Chain, Sample, Workload};
use pgstrata_lab::bench::contender::{Arena, Contender, jobs};
use pgstrata_lab::bench::pgbackrest::PgBackRest;
use pgstrata_lab::bench::pgstrata::Pgstrata;
use pgstrata_lab::bench::table;
use pgstrata_lab::cluster::{Cluster, Major, TrackedServer};
use serde_json::json;

/// Compares backup tools with each other and with the limits of this machine.
///
/// W1: two tables, a fifth of one updated, one increment. W2: pgbench, five
/// increments. All contenders work on one server in one run, in shuffled order;
/// every restored cluster is started and must answer as the source did.
#[derive(Debug, Parser)]
#[command(name = "pgstrata-bench")]
struct Arguments {
    /// The pgstrata program to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/pgstrata")]
    pgstrata: PathBuf,
    /// Major version of PostgreSQL
    #[arg(long, default_value_t = 18)]
    major: u32,
    /// Rounds; medians are over them
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Size of W1 in MB of both tables together; 0: leave W1 out
    #[arg(long, default_value_t = 400)]
    w1_mb: u64,
    /// MB of further data in W1 that nothing ever changes
    #[arg(long, default_value_t = 0)]
    neighbour_mb: u64,
    /// Scale of W2 (15 MB each); 0: leave W2 out
    #[arg(long, default_value_t = 0)]
    w2_scale: u32,
    /// Workers for every contender [default: number of cores]
    #[arg(long)]
    jobs: Option<usize>,
    /// Change sources of pgstrata to compare; with tracker among them everybody works on a server that has it
    #[arg(long, value_delimiter = ',', default_value = "lsn,digest")]
    sources: Vec<String>,
    /// Leave peers out
    #[arg(long)]
    no_peers: bool,
    /// Empty the page cache before each act (root only)
    #[arg(long)]
    cold: bool,
    /// Seed of the order of contenders
    #[arg(long)]
    seed: Option<u64>,
    /// Profile one more round of the first contender with perf: flame graphs into that directory
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
    /// Write all samples there, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let jobs = jobs(arguments.jobs);
    println!("{jobs} workers, {} rounds, seed {seed}", arguments.rounds);
    let major = Major::from_number(arguments.major)?;
    let contenders = contenders(&arguments)?;
    let (mut samples, mut profiles) = (Vec::new(), Vec::new());
    let tracked = match arguments.sources.iter().any(|source| source == "tracker") {
        true => Some(TrackedServer::copy(major)?),
        false => None,
    };
    for workload in workloads(&arguments) {
        let cluster = server(major, tracked.as_ref())?;
        let arena = Arena::new(cluster, &arguments.pgstrata, jobs)?;
        workload.load(&arena.cluster)?;
        let chain = Chain {
            arena: &arena,
            workload,
            contenders: &contenders,
            seed,
            cold: arguments.cold,
        };
        let found = chain.run(arguments.rounds, progress)?;
        println!(
            "\n{} on PostgreSQL {}: medians of {} rounds",
            workload.name(),
            arguments.major,
            arguments.rounds
        );
        println!("{}", table::render(&table::rows(&found)));
        println!(
            "Where the time of a backup goes, ms\n{}",
            table::phases(&found)
        );
        samples.extend(found);
        if let (Some(directory), Some(contender)) = (&arguments.profile, contenders.first()) {
            fs::create_dir_all(directory)
                .with_context(|| format!("could not create \"{}\"", directory.display()))?;
            let found = chain.profiled(contender.as_ref(), directory)?;
            println!("\nTime on the cores of {}", contender.name());
            println!("{}", table::profiles(&found));
            profiles.extend(found);
        }
    }
    if let Some(path) = &arguments.json {
        let document = json!({ "schema": "pgstrata.bench/1", "seed": seed, "jobs": jobs, "samples": samples, "profiles": profiles });
        fs::write(path, serde_json::to_string_pretty(&document)?)
            .with_context(|| format!("could not write \"{}\"", path.display()))?;
    }
    Ok(())
}

fn progress(sample: &Sample) {
    eprintln!(
        "  round {} {:<24} {:<11} {:.2} s",
        sample.round, sample.name, sample.act, sample.cost.wall_seconds
    );
}

fn workloads(arguments: &Arguments) -> Vec<Workload> {
    let mut workloads = Vec::new();
    if arguments.w1_mb > 0 {
        // 157 rows of 52 bytes fill a page of 8192.
        workloads.push(Workload::TwoTables {
            rows: arguments.w1_mb * 1_000_000 / 2 / 8192 * 157,
            // 8 of them fill one.
            neighbour_rows: arguments.neighbour_mb * 1_000_000 / 8192 * 8,
        });
    }
    if arguments.w2_scale > 0 {
        let scale = arguments.w2_scale;
        workloads.push(Workload::Pgbench {
            scale,
            transactions: scale * 200,
        });
    }
    workloads
}

fn contenders(arguments: &Arguments) -> Result<Vec<Box<dyn Contender>>> {
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for source in &arguments.sources {
        let change_source = match source.as_str() {
            "auto" => "auto",
            "tracker" => "tracker",
            "summary" => "summary",
            "lsn" => "lsn",
            "digest" => "digest",
            other => bail!("unknown change source \"{other}\""),
        };
        contenders.push(Box::new(Pgstrata {
            compress: "zstd",
            change_source,
        }));
    }
    if !arguments.no_peers {
        contenders.push(Box::new(Pgstrata {
            compress: "lz4",
            change_source: "auto",
        }));
        contenders.push(Box::new(Pgstrata {
            compress: "none",
            change_source: "auto",
        }));
        let major = Major::from_number(arguments.major)?;
        contenders.extend(bench::peers(major));
        if PgBackRest::is_installed() && !PgBackRest::knows(major) {
            eprintln!(
                "pgBackRest is left out: the installed release does not know PostgreSQL {}",
                arguments.major
            );
        }
    }
    Ok(contenders)
}

fn server(major: Major, tracked: Option<&TrackedServer>) -> Result<Cluster> {
    let server = tracked.map_or_else(|| Cluster::builder(major), TrackedServer::builder);
    let mut builder = server
        .conf("archive_mode", "on")
        .conf("archive_command", "true")
        .conf("shared_buffers", "256MB")
        .conf("max_wal_size", "4GB")
        .conf("autovacuum", "off");
    if major >= Major::V17 {
        builder = builder.conf("summarize_wal", "on");
    }
    let cluster = builder.start()?;
    if tracked.is_some() {
        cluster.sql("postgres", "CREATE EXTENSION pgstrata")?;
    }
    Ok(cluster)
}
