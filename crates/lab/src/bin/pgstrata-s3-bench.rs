//! `scripts/bench s3`: a chain of six restored from an S3 server whose requests take 20 ms longer than they do here, beside
//! what the link and the disk can do at all with the same bytes.

#![allow(clippy::print_stdout, reason = "a program's output")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectStore, ObjectStoreExt};
use pgstrata_lab::bench::measure;
use pgstrata_lab::cluster::{Cluster, Major};
use pgstrata_lab::s3::S3Server;
use pgstrata_lab::sample::Window;
use pgstrata_lab::slow_link::SlowLink;
use pgstrata_lab::stat::median;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use serde_json::Value;

/// What one GET of the plain transfer asks for.
const RANGE_BYTES: u64 = 8 << 20;

/// Where the repository lies in the bucket.
const PREFIX: &str = "bench";

/// Measures the restore of a chain from S3 with latency.
///
/// A full backup and five increments of a pgbench database go to an S3 server. Then, in shuffled order and several
/// times: the chain is restored with and without latency, and from a directory with the same objects; as many bytes of its
/// packs as the restore fetched are fetched and thrown away, 8 MiB at a time (the limit of the link); and the cluster's
/// files are copied and synced (the limit of the disk).
#[derive(Debug, Parser)]
#[command(name = "pgstrata-s3-bench")]
struct Arguments {
    /// The pgstrata program to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/pgstrata")]
    pgstrata: PathBuf,
    /// Major version of PostgreSQL
    #[arg(long, default_value_t = 18)]
    major: u32,
    /// Scale of pgbench (15 MB each)
    #[arg(long, default_value_t = 60)]
    scale: u32,
    /// Milliseconds that each request takes longer
    #[arg(long, default_value_t = 20)]
    latency: u64,
    /// Workers of the restore [default: number of cores]
    #[arg(long)]
    jobs: Option<usize>,
    /// Rounds; medians are over them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seed of the order within a round
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let jobs = match arguments.jobs {
        Some(jobs) => jobs,
        None => std::thread::available_parallelism()?.get(),
    };
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let cluster = Cluster::builder(Major::from_number(arguments.major)?)
        .conf("max_wal_size", "4GB")
        .conf("autovacuum", "off")
        .start()?;
    let server = S3Server::start()?;
    let latency = Duration::from_millis(arguments.latency);
    let link = SlowLink::before(server.endpoint(), latency)?;
    let bench = Bench {
        program: cluster.installed_binary(&arguments.pgstrata)?,
        cluster: &cluster,
        server: &server,
        link: &link,
        jobs,
    };
    println!(
        "{jobs} workers, {} rounds, {} ms more for each request, seed {seed}",
        arguments.rounds, arguments.latency
    );
    bench.make_chain(arguments.scale)?;
    bench.copy_objects()?;
    let mut random = Pcg64::seed_from_u64(seed);
    let mut times: Vec<Vec<Took>> = vec![Vec::new(); Act::ALL.len()];
    let mut fetched = bench.restored(Way::Near)?.1;
    for round in 1..=arguments.rounds {
        let mut order = Act::ALL;
        order.shuffle(&mut random);
        for act in order {
            let begun = link.requests();
            let took = bench.measured(act, &mut fetched)?;
            println!(
                "  round {round} {:<34}{:>7.2} s{:>6} requests",
                act.name(),
                took.seconds,
                link.requests() - begun
            );
            times[act.place()].push(took);
        }
    }
    println!(
        "\n{} MB fetched, {} MB written: medians of {} rounds",
        fetched.packs / 1_000_000,
        fetched.written / 1_000_000,
        arguments.rounds
    );
    let of = |act: Act, figure: fn(&Took) -> f64| -> Vec<f64> {
        times[act.place()].iter().map(figure).collect()
    };
    let slow = median(&of(Act::Restore(Way::Slow), |took| took.seconds));
    for act in Act::ALL {
        let times = of(act, |took| took.seconds);
        let middle = median(&times);
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let most = times.iter().copied().fold(0.0, f64::max);
        println!(
            "{:<36}{middle:>7.2} s ({least:.2} to {most:.2})   restore/this {:>5.2}   processors busy {:>3.0} %, by itself {:>3.0} %",
            act.name(),
            slow / middle,
            100.0 * median(&of(act, |took| took.busy)),
            100.0 * median(&of(act, |took| took.own)),
        );
    }
    Ok(())
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Restore(Way),
    Transfer,
    Copy,
}

/// How a restore gets to the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the S3 server, over the slow link.
    Slow,
    /// From the S3 server.
    Near,
    /// From files.
    Directory,
}

impl Act {
    const ALL: [Self; 5] = [
        Self::Restore(Way::Slow),
        Self::Restore(Way::Near),
        Self::Restore(Way::Directory),
        Self::Transfer,
        Self::Copy,
    ];

    fn place(self) -> usize {
        Self::ALL.iter().position(|&act| act == self).unwrap_or(0)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Restore(Way::Slow) => "restore from S3, with latency",
            Self::Restore(Way::Near) => "restore from S3, without",
            Self::Restore(Way::Directory) => "restore from a directory",
            Self::Transfer => "plain transfer, with latency",
            Self::Copy => "cp -r + sync",
        }
    }
}

/// How long an act took, and how busy the machine's processors were, which server, link and tool share: 1 is all of them,
/// all the time.
#[derive(Clone, Copy, Debug)]
struct Took {
    seconds: f64,
    busy: f64,
    /// By the process that did it.
    own: f64,
}

impl Took {
    /// Measures `act`.
    fn by<T>(act: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        let (begun, window) = (Instant::now(), Window::open(None));
        let done = act()?;
        let seconds = begun.elapsed().as_secs_f64();
        let shares = window.close();
        let took = Self {
            seconds,
            busy: shares.busy,
            own: shares.client,
        };
        Ok((took, done))
    }
}

/// What a restore says of itself.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    packs: u64,
    written: u64,
}

struct Bench<'a> {
    program: PathBuf,
    cluster: &'a Cluster,
    server: &'a S3Server,
    link: &'a SlowLink,
    jobs: usize,
}

impl Bench<'_> {
    /// The program, with the repository where `way` leads.
    fn command(&self, way: Way, arguments: &[&str]) -> Command {
        let mut command = self.cluster.command_as_server_user(&self.program);
        let endpoint = match way {
            Way::Slow => Some(self.link.endpoint()),
            Way::Near => Some(self.server.endpoint()),
            Way::Directory => None,
        };
        let repository = match endpoint {
            Some(endpoint) => {
                command.envs(self.server.pgstrata_env(endpoint));
                format!("s3://{}/{PREFIX}", self.server.bucket())
            }
            None => format!("file://{}", self.directory().display()),
        };
        command
            .env("PGSTRATA_REPO", repository)
            .env("PGSTRATA_CLUSTER", "bench")
            .env("PGSTRATA_JOBS", self.jobs.to_string())
            .args(["--output", "json"])
            .args(arguments)
            .stderr(Stdio::piped());
        command
    }

    /// Where the objects lie as files.
    fn directory(&self) -> PathBuf {
        self.cluster.socket_dir().join("objects")
    }

    fn run(&self, way: Way, arguments: &[&str]) -> Result<Value> {
        let output = self.command(way, arguments).output()?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            bail!("pgstrata {arguments:?} ended with {}: {log}", output.status);
        }
        serde_json::from_slice(&output.stdout).context("pgstrata did not write JSON")
    }

    /// A full backup and five increments.
    fn make_chain(&self, scale: u32) -> Result<()> {
        let near = Way::Near;
        let pgdata = self.cluster.pgdata().display().to_string();
        self.cluster
            .pgbench(&["-i", "-q", "-s", &scale.to_string()])?;
        self.cluster.sql("postgres", "VACUUM (FREEZE, ANALYZE)")?;
        self.run(near, &["init", "--pgdata", &pgdata])?;
        self.run(near, &["backup", "--pgdata", &pgdata, "--type", "full"])?;
        for _ in 0..5 {
            let transactions = (scale * 100).to_string();
            self.cluster
                .pgbench(&["-n", "-c", "2", "-t", &transactions])?;
            self.run(near, &["backup", "--pgdata", &pgdata, "--type", "incr"])?;
        }
        Ok(())
    }

    /// Has the server's objects, which it keeps as files of their names, in a directory too.
    fn copy_objects(&self) -> Result<()> {
        let objects = self.cluster.create_dir("objects")?;
        let from = self.server.bucket_dir().join(PREFIX).join(".");
        measure::run(Command::new("cp").arg("-r").args([&from, &objects]))?;
        let owner = format!("--reference={}", objects.display());
        measure::run(Command::new("chown").args(["-R", &owner]).arg(&objects)).map(drop)
    }

    fn measured(&self, act: Act, bytes: &mut Bytes) -> Result<Took> {
        match act {
            Act::Restore(way) => {
                let (took, found) = self.restored(way)?;
                *bytes = found;
                Ok(took)
            }
            Act::Transfer => self.transferred(bytes.packs),
            Act::Copy => self.copied(),
        }
    }

    /// Restores the newest; says how long it took and what it moved.
    fn restored(&self, way: Way) -> Result<(Took, Bytes)> {
        let target = self.cluster.create_dir("restored")?;
        let path = target.display().to_string();
        self.settle()?;
        let restore = [
            "restore",
            "latest",
            "--type",
            "immediate",
            "--target-dir",
            &path,
        ];
        let (took, report) = Took::by(|| self.run(way, &restore))?;
        fs::remove_dir_all(&target)?;
        let number = |name: &str| {
            let value = report.pointer(name).and_then(Value::as_u64);
            value.with_context(|| format!("the report has no {name}: {report:#}"))
        };
        let bytes = Bytes {
            packs: number("/fetched_bytes")?,
            written: number("/written_bytes")?,
        };
        Ok((took, bytes))
    }

    /// Fetches `wanted` bytes of packs over the slow link.
    fn transferred(&self, wanted: u64) -> Result<Took> {
        let store = self.server.client(self.link.endpoint())?;
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let runtime = tokio::runtime::Runtime::new()?;
        let ranges = runtime.block_on(async {
            let prefix = object_store::path::Path::from(PREFIX);
            let objects: Vec<_> = store.list(Some(&prefix)).try_collect().await?;
            let mut ranges = Vec::new();
            let mut left = wanted;
            for object in objects {
                if !object.location.as_ref().contains("/pack") {
                    continue;
                }
                let mut start = 0;
                while start < object.size && left > 0 {
                    let end = object.size.min(start + RANGE_BYTES.min(left));
                    ranges.push((object.location.clone(), start..end));
                    left -= end - start;
                    start = end;
                }
            }
            ensure!(left == 0, "the packs hold {left} bytes less than {wanted}");
            Ok(ranges)
        })?;
        // Two for each worker.
        let fetching = || {
            let fetches = futures::stream::iter(ranges).map(|(path, range)| {
                let store = Arc::clone(&store);
                async move { store.get_range(&path, range).await.map(drop) }
            });
            let fetched = fetches.buffer_unordered(2 * self.jobs).try_collect::<()>();
            runtime.block_on(fetched).map_err(Into::into)
        };
        Ok(Took::by(fetching)?.0)
    }

    /// Before the cluster is written once more: nothing else is to be written, and there is memory.
    fn settle(&self) -> Result<()> {
        measure::run(&mut Command::new("sync"))?;
        measure::claim_memory(self.cluster)
    }

    fn copied(&self) -> Result<Took> {
        let target = self.cluster.create_dir("copied")?;
        let source = self.cluster.pgdata();
        self.settle()?;
        let (took, ()) = Took::by(|| copy_and_sync(source, &target))?;
        fs::remove_dir_all(&target)?;
        Ok(took)
    }
}

fn copy_and_sync(source: &Path, target: &Path) -> Result<()> {
    let script = "cp -r \"$0/base\" \"$0/global\" \"$1\" && sync -f \"$1\"";
    let mut command = Command::new("bash");
    let status = command
        .args(["-c", script])
        .args([source, target])
        .status()?;
    ensure!(status.success(), "cp ended with {status}");
    Ok(())
}
