//! `scripts/bench archive`: segments a second through `archive-push` and `archive-get`, one at a time and eight at once, to an S3 server
//! whose requests take 20 ms longer than they do here.

#![allow(clippy::print_stdout, reason = "a program's output")]

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use pgstrata_lab::cluster::{Cluster, Major};
use pgstrata_lab::s3::S3Server;
use pgstrata_lab::slow_link::SlowLink;

/// Measures the WAL archive on S3 with latency.
///
/// Pushes the WAL of a server that has loaded tables, one process a segment as PostgreSQL does: one at a time, with a
/// backlog (neighbours are pushed along), eight processes at once. Then gets it: one at a time without fetching
/// ahead, as recovery does with a pause for the replay of each segment (beside a cp of the same file), eight at once.
/// What was got is compared with what was pushed.
#[derive(Debug, Parser)]
#[command(name = "pgstrata-archive-bench")]
struct Arguments {
    /// The pgstrata program to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/pgstrata")]
    pgstrata: PathBuf,
    /// Major version of PostgreSQL
    #[arg(long, default_value_t = 18)]
    major: u32,
    /// Segments of 16 MiB
    #[arg(long, default_value_t = 24)]
    segments: usize,
    /// Milliseconds that each request takes longer
    #[arg(long, default_value_t = 20)]
    latency: u64,
    /// Milliseconds that recovery takes to replay a segment
    #[arg(long, default_value_t = 100)]
    replay: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let cluster = Cluster::builder(Major::from_number(arguments.major)?)
        .conf("max_wal_size", "8GB")
        .conf("wal_keep_size", "8GB")
        .conf("checkpoint_timeout", "1h")
        .conf("archive_mode", "off")
        .start()?;
    let wal = Wal::write(&cluster, arguments.segments)?;
    let server = S3Server::start()?;
    let link = SlowLink::before(server.endpoint(), Duration::from_millis(arguments.latency))?;
    let bench = Bench {
        program: cluster.installed_binary(&arguments.pgstrata)?,
        cluster: &cluster,
        server: &server,
        link: &link,
        wal,
    };
    println!(
        "{} segments of 16 MiB, {} ms more for each request",
        bench.wal.names.len(),
        arguments.latency
    );
    println!(
        "{:<34}{:>12}{:>12}{:>11}",
        "", "segments/s", "ms each", "requests"
    );
    bench.pushes()?;
    bench.gets(Duration::from_millis(arguments.replay))
}

/// Segments in a directory of their own.
struct Wal {
    directory: PathBuf,
    names: Vec<String>,
}

impl Wal {
    fn write(cluster: &Cluster, count: usize) -> Result<Self> {
        let load = "CREATE TABLE load (id bigint, text text)";
        cluster.sql("postgres", load)?;
        let source = cluster.pgdata().join("pg_wal");
        let complete = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())";
        let mut names = Vec::new();
        while names.len() < count {
            cluster.sql(
                "postgres",
                "INSERT INTO load SELECT i, md5(i::text) FROM generate_series(1, 200000) i",
            )?;
            let current = cluster.sql("postgres", complete)?;
            names = segments(&source)?;
            names.retain(|name| name.as_str() < current.trim());
        }
        // The first holds what initdb wrote.
        names.drain(..names.len() - count);
        let directory = cluster.create_dir("wal")?;
        let owner = fs::metadata(&directory)?;
        for name in &names {
            let copy = directory.join(name);
            fs::copy(source.join(name), &copy)?;
            chown(&copy, Some(owner.uid()), Some(owner.gid()))?;
        }
        Ok(Self { directory, names })
    }
}

fn segments(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

struct Bench<'a> {
    program: PathBuf,
    cluster: &'a Cluster,
    server: &'a S3Server,
    link: &'a SlowLink,
    wal: Wal,
}

impl Bench<'_> {
    /// The program for a cluster of this name in the bucket.
    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.cluster.command_as_server_user(&self.program);
        command
            .env(
                "PGSTRATA_REPO",
                format!("s3://{}/bench", self.server.bucket()),
            )
            .env("PGSTRATA_CLUSTER", name)
            .envs(self.server.pgstrata_env(self.link.endpoint()))
            .args(arguments)
            .stdout(Stdio::null());
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let output = self.command(name, arguments).output()?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr);
            bail!("pgstrata {arguments:?} ended with {}: {log}", output.status);
        }
        Ok(())
    }

    /// Does `each` for every segment, `at_once` of them at the same time, and prints how fast.
    fn measure(
        &self,
        what: &str,
        at_once: usize,
        each: impl Fn(&str) -> Result<()> + Sync,
    ) -> Result<()> {
        let names = &self.wal.names;
        let next = Mutex::new(names.iter());
        let (start, requests) = (Instant::now(), self.link.requests());
        thread::scope(|scope| {
            let work = || -> Result<Duration> {
                let mut spent = Duration::ZERO;
                loop {
                    let name = next.lock().map_or(None, |mut names| names.next());
                    let Some(name) = name else { return Ok(spent) };
                    let begun = Instant::now();
                    each(name)?;
                    spent += begun.elapsed();
                }
            };
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            let mut spent = Duration::ZERO;
            for worker in workers {
                spent += worker
                    .join()
                    .map_err(|_| anyhow::anyhow!("a worker panicked"))??;
            }
            let count = u32::try_from(names.len())?;
            println!(
                "{what:<34}{:>12.1}{:>12.0}{:>11}",
                f64::from(count) / start.elapsed().as_secs_f64(),
                spent.as_secs_f64() * 1e3 / f64::from(count),
                self.link.requests() - requests,
            );
            Ok(())
        })
    }

    fn pushes(&self) -> Result<()> {
        let pgdata = self.cluster.pgdata().display().to_string();
        let path = |name: &str| self.wal.directory.join(name).display().to_string();
        for name in ["one", "eight", "backlog"] {
            self.run(name, &["init", "--pgdata", &pgdata])?;
        }
        self.measure("archive-push, one at a time", 1, |segment| {
            self.run("one", &["archive-push", "--ahead", "0", &path(segment)])
        })?;
        self.measure("archive-push, eight at once", 8, |segment| {
            self.run("eight", &["archive-push", "--ahead", "0", &path(segment)])
        })?;
        let marks = self.wal.directory.join("archive_status");
        fs::create_dir(&marks)?;
        for segment in &self.wal.names {
            fs::write(marks.join(format!("{segment}.ready")), "")?;
        }
        let owner = fs::metadata(&self.wal.directory)?;
        chown(&marks, Some(owner.uid()), Some(owner.gid()))?;
        self.measure("archive-push, backlog of the server", 1, |segment| {
            self.run("backlog", &["archive-push", &path(segment)])?;
            let mark = |state: &str| marks.join(format!("{segment}.{state}"));
            fs::rename(mark("ready"), mark("done")).context("could not mark a segment")
        })
    }

    fn gets(&self, replay: Duration) -> Result<()> {
        let target = self.cluster.create_dir("got")?;
        let spool = self.cluster.create_dir("spool")?.display().to_string();
        let get = |segment: &str, ahead: &str| {
            let path = target.join(segment).display().to_string();
            let options = ["--prefetch", ahead, "--spool", &spool];
            self.run(
                "one",
                &[&["archive-get", segment, &path], &options[..]].concat(),
            )
        };
        let one_by_one = [("one at a time", 1), ("eight at once", 8)];
        for (what, at_once) in one_by_one {
            let what = format!("archive-get, {what}");
            self.measure(&what, at_once, |segment| get(segment, "0"))?;
            self.check_and_remove(&target)?;
        }
        self.measure("archive-get, fetching ahead", 1, |segment| {
            get(segment, "8")
        })?;
        self.check_and_remove(&target)?;
        self.waits("archive-get", replay, |segment| get(segment, "8"))?;
        self.check_and_remove(&target)?;
        self.waits("cp", replay, |segment| {
            let source = self.wal.directory.join(segment);
            let mut cp = self.cluster.command_as_server_user(Path::new("cp"));
            let status = cp.args([source, target.join(segment)]).status()?;
            ensure!(status.success(), "cp ended with {status}");
            Ok(())
        })?;
        self.check_and_remove(&target)
    }

    fn check_and_remove(&self, target: &Path) -> Result<()> {
        for segment in &self.wal.names {
            let path = target.join(segment);
            let same = fs::read(&path)? == fs::read(self.wal.directory.join(segment))?;
            ensure!(same, "{segment} is not what was pushed");
            fs::remove_file(&path).context("could not remove a segment")?;
        }
        Ok(())
    }

    /// What recovery waits when it takes `replay` for each segment.
    fn waits(&self, what: &str, replay: Duration, get: impl Fn(&str) -> Result<()>) -> Result<()> {
        let mut waits = Vec::new();
        for segment in &self.wal.names {
            let begun = Instant::now();
            get(segment)?;
            waits.push(begun.elapsed().as_secs_f64() * 1e3);
            thread::sleep(replay);
        }
        let longest = waits.iter().copied().fold(0.0, f64::max);
        waits.sort_by(f64::total_cmp);
        println!(
            "recovery that replays a segment in {} ms waits {:.0} ms for {what} (median), {longest:.0} ms at most",
            replay.as_millis(),
            waits[waits.len() / 2],
        );
        Ok(())
    }
}
