//! A chain restored from an S3 server whose requests take longer than they do here.
//!
//! A full backup and five increments of a pgbench database go to an S3 server. The
//! chain is restored with and without latency, and from a directory with the same
//! objects. Beside it stand the limits: as many bytes of its packs as the restore
//! fetched are fetched and thrown away, and the cluster's files are copied and synced.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectStore, ObjectStoreExt};
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::S3Server;
use serde_json::Value;

use super::shared::{Preset, Shared};
use super::stage::{Hypothesis, Sketch, Stage};
use super::strata;
use super::tools::ToolArguments;
use crate::contenders::contender::Arena;
use crate::contenders::pgstrata::{AT_ONCE, CLUSTER};
use crate::format::{self, MISSING, Unit};
use crate::interrupt;
use crate::measure::cost;
use crate::measure::programs;
use crate::measure::result::{Arm, Claim, Experiment, Metric, Run, Table};
use crate::measure::stat::verdict::Better;
use crate::measure::stat::{median, paired};
use crate::number::real_u64;
use crate::report::analysis::{interval_words, ratio_words};
use crate::report::output::print;

/// What one GET of the plain transfer asks for.
const RANGE_BYTES: u64 = 8 << 20;

/// Where the repository lies in the bucket.
const PREFIX: &str = "bench";

/// Arguments of `bench s3`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// how large: paper and small are pgbench scale 60, tiny 2
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// pgbench scale (15 MB each)
    #[arg(long, short = 's')]
    scale: Option<u32>,
    /// milliseconds that each request takes longer
    #[arg(long, default_value_t = 20)]
    latency: u64,
    /// blocks
    #[arg(long)]
    blocks: Option<usize>,
    #[command(flatten)]
    tools: ToolArguments,
    #[command(flatten)]
    shared: Shared,
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
    fn words(self, latency: u64) -> String {
        match self {
            Self::Restore(Way::Slow) => format!(
                "the whole chain, from an S3 server whose requests take {latency} ms longer"
            ),
            Self::Restore(Way::Near) => {
                "the whole chain, from the same S3 server without that latency".to_owned()
            }
            Self::Restore(Way::Directory) => {
                "the whole chain, from the same objects as files".to_owned()
            }
            Self::Transfer => format!(
                "as many bytes of its packs as a restore fetches, thrown away; requests take {latency} ms longer"
            ),
            Self::Copy => "the cluster's files copied on this machine, and synced".to_owned(),
        }
    }
}

const ACTS: [(&str, Act); 5] = [
    ("restore from S3, with latency", Act::Restore(Way::Slow)),
    ("restore from S3, without", Act::Restore(Way::Near)),
    ("restore from a directory", Act::Restore(Way::Directory)),
    ("plain transfer, with latency", Act::Transfer),
    ("cp -r + sync", Act::Copy),
];

/// `bench s3`.
///
/// # Errors
/// Fails when a server or the program does.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let tools = arguments.tools.find(arguments.preset)?;
    let (scale, blocks) = match arguments.preset {
        Preset::Tiny => (2, 1),
        // With four comparisons eight blocks are the fewest that prove anything.
        Preset::Small | Preset::Paper => (60, 8),
        Preset::Large => (1000, 8),
    };
    let scale = arguments.scale.unwrap_or(scale);
    let blocks = arguments.blocks.unwrap_or(blocks);
    let workload = format!(
        "pgbench scale {scale}, a full backup and five increments; {} workers, {} ms more for each request",
        tools.jobs, arguments.latency
    );
    if arguments.shared.dry_run {
        let names = ACTS.map(|(name, _)| name).join("\n");
        print(&format!(
            "# {workload}\n# {blocks} times, in random order:\n{names}\n"
        ))?;
        return Ok(0);
    }
    let sketch = Sketch {
        kind: "s3",
        title: "A chain restored from an S3 server".to_owned(),
        workload,
        arms: ACTS
            .map(|(name, act)| Arm {
                name: name.to_owned(),
                description: act.words(arguments.latency),
                environment: None,
            })
            .into(),
        metrics: vec![Metric::new("time", "time", Unit::Seconds, Better::Lower)],
        blocks,
        state: "restore",
        hypothesis: Some(Hypothesis::new(
            "a restore from S3 behind that latency takes at most 1.3 times as long as cp -r + sync of the same files",
            [Claim::at_most("time", 0, 1.3).against(ACTS.len() - 1)],
        )),
    };
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    let outcome = (|| {
        let server = tools
            .server(None)
            .conf("max_wal_size", "4GB")
            .conf("autovacuum", "off")
            .conf("archive_mode", "off");
        let arena = tools.arena(server.start()?)?;
        strata::capture(&mut stage, &arena, strata::ALL_ARMS)?;
        let server = S3Server::start()?;
        let link = Proxy::before(server.endpoint())?;
        link.delay(std::time::Duration::from_millis(arguments.latency));
        let chain = Chain {
            arena: &arena,
            server: &server,
            link: &link,
        };
        chain.make(scale)?;
        chain.copy_objects()?;
        chain.measure(&mut stage)
    })();
    stage.close(outcome, describe)
}

/// The chain, and the ways to it.
struct Chain<'a> {
    arena: &'a Arena,
    server: &'a S3Server,
    link: &'a Proxy,
}

impl Chain<'_> {
    /// The program, with the repository where `way` leads.
    fn command(&self, way: Way, arguments: &[&str]) -> Command {
        let arena = self.arena;
        let mut command = arena.cluster.command_as_server_user(&arena.pgstrata);
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
            .env("PGSTRATA_CLUSTER", CLUSTER)
            .env("PGSTRATA_JOBS", arena.jobs.to_string())
            .args(["--output", "json"])
            .args(arguments);
        command
    }

    /// Where the objects lie as files.
    fn directory(&self) -> PathBuf {
        self.arena.work().join("objects")
    }

    fn run(&self, way: Way, arguments: &[&str]) -> Result<Value> {
        interrupt::check()?;
        let printed = programs::output_of_timed(&mut self.command(way, arguments))?;
        serde_json::from_str(&printed).context("pgstrata did not write JSON")
    }

    /// A full backup and five increments.
    fn make(&self, scale: u32) -> Result<()> {
        let cluster = &self.arena.cluster;
        let pgdata = cluster.pgdata().display().to_string();
        cluster.pgbench(&["-i", "-q", "-s", &scale.to_string()])?;
        cluster.sql("postgres", "VACUUM (FREEZE, ANALYZE)")?;
        self.run(Way::Near, &["init", "--pgdata", &pgdata])?;
        let backup = ["backup", "--pgdata", &pgdata, "--type"];
        let backup = |kind| self.run(Way::Near, &[&backup[..], &[kind], &AT_ONCE].concat());
        backup("full")?;
        for _ in 0..5 {
            cluster.pgbench(&["-n", "-c", "2", "-t", &(scale * 100).to_string()])?;
            backup("incr")?;
        }
        Ok(())
    }

    /// Has the server's objects, which it keeps as files of their names, in a directory too.
    fn copy_objects(&self) -> Result<()> {
        let objects = self.arena.fresh_dir("objects")?;
        let from = self.server.bucket_dir().join(PREFIX).join(".");
        cost::run(Command::new("cp").arg("-r").args([&from, &objects]))?;
        let owner = format!("--reference={}", objects.display());
        cost::run(Command::new("chown").args(["-R", &owner]).arg(&objects)).map(drop)
    }

    fn measure(&self, stage: &mut Stage) -> Result<()> {
        let fetched = self.restored(Way::Near)?.values["fetched"];
        for (block, order) in stage.orders().into_iter().enumerate() {
            for (position, arm) in order.into_iter().enumerate() {
                interrupt::check()?;
                let requests = self.link.requests();
                let mut found = match ACTS[arm].1 {
                    Act::Restore(way) => self.restored(way)?,
                    Act::Transfer => self.transferred(crate::number::whole_u64(fetched))?,
                    Act::Copy => self.copied()?,
                };
                let requests = self.link.requests() - requests;
                found
                    .values
                    .insert("requests".to_owned(), real_u64(requests));
                let time = format::value(found.seconds, Unit::Seconds);
                stage.progress((block, arm), &format!("{time}, {requests} requests"));
                let run = stage.run((block, position, arm));
                run.seconds = found.seconds;
                run.values = found.values;
                stage.save()?;
            }
        }
        Ok(())
    }

    /// Restores the newest; says how long it took and what it moved.
    fn restored(&self, way: Way) -> Result<Run> {
        let target = self.arena.restore_target()?;
        let path = target.display().to_string();
        self.settle()?;
        let restore = [
            "restore",
            "latest",
            "--target-type",
            "immediate",
            "--target-dir",
            &path,
        ];
        let (mut run, report) = self.timed(|| self.run(way, &restore))?;
        self.arena.take_away(&target)?;
        for (name, place) in [("fetched", "/fetched_bytes"), ("written", "/written_bytes")] {
            let value = report.pointer(place).and_then(Value::as_u64);
            let value = value.with_context(|| format!("the report has no {place}: {report:#}"))?;
            run.values.insert(name.to_owned(), real_u64(value));
        }
        Ok(run)
    }

    /// Fetches `wanted` bytes of packs over the slow link.
    fn transferred(&self, wanted: u64) -> Result<Run> {
        let store: Arc<dyn ObjectStore> = Arc::new(self.server.client(self.link.endpoint())?);
        let runtime = tokio::runtime::Runtime::new()?;
        let prefix = object_store::path::Path::from(PREFIX);
        let objects: Vec<_> = runtime.block_on(store.list(Some(&prefix)).try_collect())?;
        let packs = objects
            .into_iter()
            .filter(|object| object.location.as_ref().contains("/pack"));
        let packs: Vec<_> = packs.collect();
        let held: u64 = packs.iter().map(|pack| pack.size).sum();
        ensure!(held > 0, "the repository holds no pack");
        let mut ranges = Vec::new();
        let mut left = wanted;
        // A restore fetches indexes, too: that may be more than the packs hold.
        for pack in packs.iter().cycle() {
            let mut start = 0;
            while start < pack.size && left > 0 {
                let end = pack.size.min(start + RANGE_BYTES.min(left));
                ranges.push((pack.location.clone(), start..end));
                left -= end - start;
                start = end;
            }
            if left == 0 {
                break;
            }
        }
        let fetch = || {
            let fetches = futures::stream::iter(ranges).map(|(path, range)| {
                let store = Arc::clone(&store);
                async move { store.get_range(&path, range).await.map(drop) }
            });
            // Two for each worker.
            let fetched = fetches.buffer_unordered(2 * self.arena.jobs);
            runtime
                .block_on(fetched.try_collect::<()>())
                .map_err(Into::into)
        };
        Ok(self.timed(fetch)?.0)
    }

    fn copied(&self) -> Result<Run> {
        let target = self.arena.fresh_dir("copied")?;
        self.settle()?;
        let source = self.arena.cluster.pgdata();
        let script = "cp -r \"$0/base\" \"$0/global\" \"$1\" && sync -f \"$1\"";
        let mut copy = Command::new("bash");
        copy.args(["-c", script]).arg(source).arg(&target);
        let (run, _) = self.timed(|| programs::output_of_timed(&mut copy))?;
        self.arena.take_away(&target)?;
        Ok(run)
    }

    /// Does something and says how long it took, and how busy the machine's processors were, which server, link and tool
    /// share: 1 is all of them, all the time.
    fn timed<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<(Run, T)> {
        let (begun, window) = (Instant::now(), self.arena.window());
        let done = act()?;
        let seconds = begun.elapsed().as_secs_f64();
        let shares = window.close();
        let mut run = Run {
            seconds,
            ..Run::default()
        };
        for (name, value) in [
            ("time", seconds),
            ("busy", shares.busy),
            ("own", shares.client),
        ] {
            run.values.insert(name.to_owned(), value);
        }
        run.note_foreign(shares.foreign);
        Ok((run, done))
    }

    /// Before the cluster is written once more: nothing else is to be written, and there is memory.
    fn settle(&self) -> Result<()> {
        cost::run(&mut Command::new("sync"))?;
        cost::claim_memory(&self.arena.cluster)
    }
}

fn describe(experiment: &mut Experiment) {
    let counted = experiment.counted_blocks();
    let plan = &experiment.plan;
    let share = |name: &str, arm: usize| {
        let value = experiment.middle(name, arm);
        value.map_or_else(
            || MISSING.to_owned(),
            |share| format!("{:.0} %", share * 100.0),
        )
    };
    let row = |(arm, (name, _)): (usize, &(&str, Act))| {
        let times = experiment.values("time", arm);
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let most = times.iter().copied().fold(0.0, f64::max);
        let (slow, this) = experiment.pairs("time", (0, arm), &counted);
        let compared = (arm > 0)
            .then(|| paired::compare(&this, &slow, Better::Lower, plan.margin, plan.seed))
            .flatten();
        vec![
            (*name).to_owned(),
            if times.is_empty() {
                MISSING.to_owned()
            } else {
                format!("{:.2} s ({least:.2} to {most:.2})", median(&times))
            },
            compared
                .as_ref()
                .map_or_else(|| MISSING.to_owned(), ratio_words),
            compared.as_ref().map_or_else(String::new, interval_words),
            share("busy", arm),
            share("own", arm),
        ]
    };
    let megabytes = |name: &str| experiment.middle(name, 0).unwrap_or(0.0) / 1e6;
    let title = format!(
        "{:.0} MB fetched, {:.0} MB written: medians of {} rounds",
        megabytes("fetched"),
        megabytes("written"),
        plan.blocks
    );
    let table = Table {
        title,
        head: [
            "",
            "time",
            "restore/this",
            "95 % interval",
            "processors busy",
            "by itself",
        ]
        .map(str::to_owned)
        .into(),
        rows: ACTS.iter().enumerate().map(row).collect(),
        note: None,
    };
    experiment.tables = vec![table];
}

#[cfg(test)]
mod tests {
    use super::ACTS;

    #[test]
    fn no_two_arms_are_described_alike() {
        let words: std::collections::BTreeSet<String> =
            ACTS.iter().map(|(_, act)| act.words(20)).collect();
        assert_eq!(words.len(), ACTS.len(), "{words:?}");
    }
}
