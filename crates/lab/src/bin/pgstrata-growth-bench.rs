//! `scripts/bench growth`: clusters of several sizes, and the same amount of change in each.

#![allow(clippy::print_stdout, reason = "a program's output")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Parser;
use pgstrata_lab::bench::measure::{self, Cost};
use pgstrata_lab::cluster::{Cluster, Major, TrackedServer};

/// Measures what grows with the cluster when what changes does not.
///
/// For each size: a table is loaded and backed up; a fixed number of its pages is changed, three times, and backed up by
/// the tracker, by WAL summaries and by page LSNs; the chain of four is planned and restored.
#[derive(Debug, Parser)]
#[command(name = "pgstrata-growth-bench")]
struct Arguments {
    /// The pgstrata program to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/pgstrata")]
    pgstrata: PathBuf,
    /// Sizes of the table in MB
    #[arg(long, value_delimiter = ',', default_value = "1024,4096,16384")]
    mb: Vec<u64>,
    /// MB of pages that are changed before each increment
    #[arg(long, default_value_t = 64)]
    changed_mb: u64,
}

/// The columns, each 11 wide.
const HEADS: [&str; 10] = [
    "size MB",
    "full",
    "tracker",
    "summary",
    "lsn",
    "index full",
    "index incr",
    "plan",
    "restore",
    "memory",
];

/// Rows in a page: 7 of about 1000 bytes, and room for one more version.
const ROWS: u64 = 7;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    println!(
        "{} MB of pages changed before each increment; seconds, index in kB, memory in MB",
        arguments.changed_mb
    );
    println!("{}", HEADS.map(|head| format!("{head:>11}")).concat());
    let tracked = TrackedServer::copy(Major::V18)?;
    for &mb in &arguments.mb {
        println!("{}", Growth::new(&arguments, &tracked, mb)?.row(mb)?);
    }
    Ok(())
}

/// One size.
struct Growth {
    cluster: Cluster,
    program: PathBuf,
    repository: PathBuf,
    pages: u64,
    changed_pages: u64,
}

impl Growth {
    fn new(arguments: &Arguments, tracked: &TrackedServer, mb: u64) -> Result<Self> {
        let cluster = tracked
            .builder()
            .conf("summarize_wal", "on")
            .conf("max_wal_size", "1GB")
            .conf("autovacuum", "off")
            .start()?;
        cluster.sql("postgres", "CREATE EXTENSION pgstrata")?;
        let pages = mb * (1 << 20) / 8192;
        let load = format!(
            "CREATE TABLE load (id bigint, n int, text text) WITH (fillfactor = 88);
             INSERT INTO load SELECT i, 0, repeat(md5(i::text), 30) FROM generate_series(1, {}) i;
             VACUUM (FREEZE) load; CHECKPOINT",
            pages * ROWS
        );
        for statement in load.split(';') {
            cluster.sql("postgres", statement)?;
        }
        Ok(Self {
            program: cluster.installed_binary(&arguments.pgstrata)?,
            repository: cluster.create_dir("repository")?,
            cluster,
            pages,
            changed_pages: arguments.changed_mb * (1 << 20) / 8192,
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.cluster.command_as_server_user(&self.program);
        let repository = format!("file://{}", self.repository.display());
        command.args(["--repo", &repository, "--cluster", "growth"]);
        command.args(arguments);
        command
    }

    fn backup(&self, arguments: &[&str]) -> Result<Cost> {
        let pgdata = self.cluster.pgdata().display().to_string();
        let backup = ["backup", "--pgdata", &pgdata];
        measure::run(&mut self.command(&[&backup, arguments].concat()))
    }

    fn increment(&self, source: &str) -> Result<Cost> {
        let every = (self.pages / self.changed_pages).max(1) * ROWS;
        let change = format!("UPDATE load SET n = n + 1 WHERE id % {every} = 0");
        self.cluster.sql("postgres", &change)?;
        // The pages are written before, so that the backup's own checkpoint is short.
        self.cluster.sql("postgres", "CHECKPOINT")?;
        let mut options = vec!["--type", "incr", "--change-source", source];
        if source == "tracker" {
            options.push("--require-tracker");
        }
        self.backup(&options)
    }

    fn row(&self, mb: u64) -> Result<String> {
        let pgdata = self.cluster.pgdata().display().to_string();
        measure::run(&mut self.command(&["init", "--pgdata", &pgdata]))?;
        let full = self.backup(&["--type", "full"])?;
        let index_of_full = self.index_bytes()?;
        let tracker = self.increment("tracker")?;
        let index_of_increment = self.index_bytes()? - index_of_full;
        let summary = self.increment("summary")?;
        let lsn = self.increment("lsn")?;
        let target = self.cluster.socket_dir().join("restored");
        let directory = target.display().to_string();
        let restore = ["restore", "--target-dir", &directory, "--type", "immediate"];
        let plan = measure::run(&mut self.command(&[&restore[..], &["--plan"]].concat()))?;
        measure::claim_memory(&self.cluster)?;
        let restored = measure::run(&mut self.command(&restore))?;
        let costs = [full, tracker, summary, lsn, plan, restored];
        let peak = costs.iter().map(|cost| cost.peak_bytes).max().unwrap_or(0);
        let seconds = |cost: Cost| format!("{:>11.2}", cost.wall_seconds);
        let thousands = |bytes: u64| format!("{:>11}", bytes / 1000);
        Ok([
            format!("{mb:>11}"),
            seconds(full),
            seconds(tracker),
            seconds(summary),
            seconds(lsn),
            thousands(index_of_full),
            thousands(index_of_increment),
            seconds(plan),
            seconds(restored),
            thousands(peak / 1000),
        ]
        .concat())
    }

    /// Bytes of all index parts in the repository.
    fn index_bytes(&self) -> Result<u64> {
        let layers = self.repository.join("growth/layer");
        let mut bytes = 0;
        for layer in entries(&layers)? {
            for object in entries(&layer)? {
                let name = object.file_name().unwrap_or_default().to_string_lossy();
                if name.starts_with("index-") {
                    bytes += fs::metadata(&object)?.len();
                }
            }
        }
        Ok(bytes)
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let act = || format!("could not read \"{}\"", directory.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).with_context(act)? {
        paths.push(entry.with_context(act)?.path());
    }
    Ok(paths)
}
