//! The WAL archive on an S3 server whose requests take longer than they do here.
//!
//! The WAL of a server that has loaded tables is pushed, one process a segment as
//! PostgreSQL does: one at a time, eight at once, and with a backlog (neighbours are
//! pushed along). Then it is got: one at a time, eight at once, fetching ahead, and
//! as recovery does, with a pause for the replay of each segment. What was got is
//! compared with what was pushed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use pgstrata_testbed::proxy::Proxy;
use pgstrata_testbed::s3::S3Server;

use super::shared::{Preset, Shared};
use super::stage::{Hypothesis, Sketch, Stage};
use super::strata;
use super::tools::ToolArguments;
use crate::contenders::contender::Arena;
use crate::format::{MISSING, Unit};
use crate::interrupt;
use crate::measure::programs;
use crate::measure::result::{Arm, Claim, Experiment, Metric, Table};
use crate::measure::stat::median;
use crate::measure::stat::verdict::Better;
use crate::number::{real, real_u64};
use crate::report::output::print;

/// Arguments of `bench archive`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// how large: paper and small are 24 segments of 16 MiB, tiny 8
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// segments
    #[arg(long)]
    segments: Option<usize>,
    /// milliseconds that each request takes longer
    #[arg(long, default_value_t = 20)]
    latency: u64,
    /// milliseconds that recovery takes to replay a segment
    #[arg(long, default_value_t = 100)]
    replay: u64,
    /// blocks
    #[arg(long)]
    blocks: Option<usize>,
    #[command(flatten)]
    tools: ToolArguments,
    #[command(flatten)]
    shared: Shared,
}

/// What happens to all segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Pushed by so many processes at once.
    Push(usize),
    /// Pushed with what else is ready.
    PushBacklog,
    /// Got by so many processes at once, so many segments ahead.
    Get(usize, &'static str),
    /// Got by recovery.
    Recover,
    /// Copied by recovery from the local disk.
    RecoverByCopy,
}

impl Act {
    fn is_in_recovery(self) -> bool {
        matches!(self, Self::Recover | Self::RecoverByCopy)
    }

    fn words(self) -> String {
        match self {
            Self::Push(1) => "one archive-push after the other, each for one segment".to_owned(),
            Self::Push(at_once) => format!("{at_once} archive-push at once, each for one segment"),
            Self::PushBacklog => {
                "one archive-push after the other, each with its neighbours that are ready"
                    .to_owned()
            }
            Self::Get(1, "0") => "one archive-get after the other, each for one segment".to_owned(),
            Self::Get(1, ahead) => {
                format!("one archive-get after the other, each with {ahead} segments ahead")
            }
            Self::Get(at_once, _) => format!("{at_once} archive-get at once, each for one segment"),
            Self::Recover => {
                "archive-get with 8 segments ahead, and a pause to replay each".to_owned()
            }
            Self::RecoverByCopy => "cp from the local disk, and a pause to replay each".to_owned(),
        }
    }
}

fn claims() -> [Claim; 3] {
    let at = |act: Act| {
        ACTS.iter()
            .position(|(_, other)| *other == act)
            .unwrap_or(0)
    };
    [
        Claim::at_least("rate", at(Act::Push(8)), 1.0).against(at(Act::Push(1))),
        Claim::at_least("rate", at(Act::Get(8, "0")), 1.0).against(at(Act::Get(1, "0"))),
        Claim::at_most("each", at(Act::Recover), 1.0).against(at(Act::RecoverByCopy)),
    ]
}

const ACTS: [(&str, Act); 8] = [
    ("archive-push, one at a time", Act::Push(1)),
    ("archive-push, eight at once", Act::Push(8)),
    ("archive-push, backlog of the server", Act::PushBacklog),
    ("archive-get, one at a time", Act::Get(1, "0")),
    ("archive-get, eight at once", Act::Get(8, "0")),
    ("archive-get, fetching ahead", Act::Get(1, "8")),
    ("archive-get, in recovery", Act::Recover),
    ("cp, in recovery", Act::RecoverByCopy),
];

/// The cluster whose segments are got.
const SOURCE: &str = "source";

/// `bench archive`.
///
/// # Errors
/// Fails when a server or the program does, or a segment is not what was pushed.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let tools = arguments.tools.find(arguments.preset)?;
    let (segments, blocks) = match arguments.preset {
        Preset::Tiny => (8, 1),
        // With seven comparisons ten blocks are the fewest that prove anything.
        Preset::Small | Preset::Paper | Preset::Large => (24, 10),
    };
    let segments = arguments.segments.unwrap_or(segments);
    let blocks = arguments.blocks.unwrap_or(blocks);
    let workload = format!(
        "{segments} segments of 16 MiB, {} ms more for each request, {} ms to replay one",
        arguments.latency, arguments.replay
    );
    if arguments.shared.dry_run {
        let names = ACTS.map(|(name, _)| name).join("\n");
        print(&format!(
            "# {workload}\n# {blocks} times, in random order:\n{names}\n"
        ))?;
        return Ok(0);
    }
    let sketch = Sketch {
        kind: "archive",
        title: "WAL to and from an S3 server".to_owned(),
        workload,
        arms: ACTS
            .map(|(name, act)| Arm {
                name: name.to_owned(),
                description: act.words(),
                environment: None,
            })
            .into(),
        metrics: vec![
            Metric::new("rate", "segments", Unit::PerSecond, Better::Higher),
            Metric::new("each", "each", Unit::Seconds, Better::Lower),
        ],
        blocks,
        state: "restore",
        hypothesis: Some(Hypothesis::new(
            "eight callers at once are faster than one, and recovery waits no longer for archive-get than for cp",
            claims(),
        )),
    };
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    let outcome = (|| {
        let server = tools
            .server(None)
            .conf("max_wal_size", "8GB")
            .conf("wal_keep_size", "8GB")
            .conf("archive_mode", "off");
        let arena = tools.arena(server.start()?)?;
        strata::capture(&mut stage, &arena, strata::ALL_ARMS)?;
        let wal = Wal::write(&arena, segments)?;
        let server = S3Server::start()?;
        let link = Proxy::before(server.endpoint())?;
        let archive = Archive {
            arena: &arena,
            server: &server,
            link: &link,
            wal: &wal,
            replay: Duration::from_millis(arguments.replay),
        };
        archive.push(SOURCE, 8)?;
        link.delay(Duration::from_millis(arguments.latency));
        archive.measure(&mut stage)
    })();
    stage.close(outcome, |experiment| describe(experiment, arguments.replay))
}

/// Segments in a directory of their own.
struct Wal {
    directory: PathBuf,
    names: Vec<String>,
}

impl Wal {
    fn write(arena: &Arena, count: usize) -> Result<Self> {
        let cluster = &arena.cluster;
        cluster.sql("postgres", "CREATE TABLE load (id bigint, text text)")?;
        let source = cluster.pgdata().join("pg_wal");
        let mut names = Vec::new();
        while names.len() < count {
            interrupt::check()?;
            cluster.sql(
                "postgres",
                "INSERT INTO load SELECT i, md5(i::text) FROM generate_series(1, 200000) i",
            )?;
            let complete = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())";
            let current = cluster.sql("postgres", complete)?;
            names = segments(&source)?;
            names.retain(|name| name.as_str() < current.trim());
        }
        // The first holds what initdb wrote.
        names.drain(..names.len() - count);
        let directory = arena.fresh_dir("wal")?;
        for name in &names {
            let copy = directory.join(name);
            fs::copy(source.join(name), &copy)?;
            as_its_parent(&copy)?;
        }
        Ok(Self { directory, names })
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// Gives a new file to whom its directory belongs: the server's user.
fn as_its_parent(path: &Path) -> Result<()> {
    let owner = fs::metadata(path.parent().context("a file lies in a directory")?)?;
    chown(path, Some(owner.uid()), Some(owner.gid())).context("could not change an owner")
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

/// The archive, and the link to it.
struct Archive<'a> {
    arena: &'a Arena,
    server: &'a S3Server,
    link: &'a Proxy,
    wal: &'a Wal,
    replay: Duration,
}

impl Archive<'_> {
    fn measure(&self, stage: &mut Stage) -> Result<()> {
        for (block, order) in stage.orders().into_iter().enumerate() {
            for (position, arm) in order.into_iter().enumerate() {
                interrupt::check()?;
                let (begun, window) = (Instant::now(), self.arena.window());
                let times = self.act(ACTS[arm].1, &format!("{arm}-{block}"))?;
                let foreign = window.close().foreign;
                let mut figures = figures(&times);
                if ACTS[arm].1.is_in_recovery() {
                    // The pauses are in it.
                    figures.remove("rate");
                }
                stage.progress(
                    (block, arm),
                    &format!("{:.0} ms each", figures["each"] * 1e3),
                );
                let run = stage.run((block, position, arm));
                run.seconds = begun.elapsed().as_secs_f64();
                run.values = figures;
                run.note_foreign(foreign);
                stage.save()?;
            }
        }
        Ok(())
    }

    /// The program for a cluster of this name in the bucket.
    fn run(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let mut command = self
            .arena
            .cluster
            .command_as_server_user(&self.arena.pgstrata);
        let repository = format!("s3://{}/bench", self.server.bucket());
        command
            .env("PGSTRATA_REPO", repository)
            .env("PGSTRATA_CLUSTER", name)
            .envs(self.server.pgstrata_env(self.link.endpoint()))
            .args(arguments);
        programs::output_of_timed(&mut command).map(drop)
    }

    fn act(&self, act: Act, name: &str) -> Result<Times> {
        let target = self.arena.fresh_dir("got")?;
        let spool = self.arena.fresh_dir("spool")?.display().to_string();
        let get = |segment: &str, ahead: &str| {
            let path = target.join(segment).display().to_string();
            let options = ["--fetch-ahead", ahead, "--spool", &spool];
            let words = [&["archive-get", segment, &path], &options[..]].concat();
            self.run(SOURCE, &words)
        };
        let times = match act {
            Act::Push(at_once) => return self.push(name, at_once),
            Act::PushBacklog => return self.push_backlog(name),
            Act::Get(at_once, ahead) => {
                self.each(at_once, Duration::ZERO, |segment| get(segment, ahead))?
            }
            Act::Recover => self.each(1, self.replay, |segment| get(segment, "8"))?,
            Act::RecoverByCopy => self.each(1, self.replay, |segment| {
                let mut cp = self.arena.cluster.command_as_server_user(Path::new("cp"));
                cp.arg(self.wal.path(segment)).arg(target.join(segment));
                programs::output_of_timed(&mut cp).map(drop)
            })?,
        };
        for segment in &self.wal.names {
            let same = fs::read(target.join(segment))? == fs::read(self.wal.path(segment))?;
            ensure!(same, "{segment} is not what was pushed");
        }
        Ok(times)
    }

    fn init(&self, name: &str) -> Result<()> {
        let pgdata = self.arena.cluster.pgdata().display().to_string();
        self.run(name, &["init", "--pgdata", &pgdata])
    }

    fn push(&self, name: &str, at_once: usize) -> Result<Times> {
        self.init(name)?;
        self.each(at_once, Duration::ZERO, |segment| {
            let path = self.wal.path(segment);
            self.run(name, &["archive-push", "--push-ahead", "0", &path])
        })
    }

    fn push_backlog(&self, name: &str) -> Result<Times> {
        self.init(name)?;
        let marks = self.wal.directory.join("archive_status");
        fs::create_dir(&marks)?;
        as_its_parent(&marks)?;
        for segment in &self.wal.names {
            fs::write(marks.join(format!("{segment}.ready")), "")?;
        }
        let times = self.each(1, Duration::ZERO, |segment| {
            self.run(name, &["archive-push", &self.wal.path(segment)])?;
            let mark = |state: &str| marks.join(format!("{segment}.{state}"));
            fs::rename(mark("ready"), mark("done")).context("could not mark a segment")
        });
        self.arena.take_away(&marks)?;
        times
    }

    /// Does `each` for every segment, `at_once` of them at the same time, with a pause after each.
    fn each(
        &self,
        at_once: usize,
        pause: Duration,
        each: impl Fn(&str) -> Result<()> + Sync,
    ) -> Result<Times> {
        let next = Mutex::new(self.wal.names.iter());
        let (begun, requests) = (Instant::now(), self.link.requests());
        let work = || -> Result<Vec<f64>> {
            let mut seconds = Vec::new();
            loop {
                let name = next.lock().map_or(None, |mut names| names.next());
                let Some(name) = name else { return Ok(seconds) };
                let begun = Instant::now();
                each(name)?;
                seconds.push(begun.elapsed().as_secs_f64());
                interrupt::sleep(pause)?;
            }
        };
        let seconds = thread::scope(|scope| {
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            let mut all = Vec::new();
            for worker in workers {
                all.extend(worker.join().map_err(|_| anyhow!("a worker panicked"))??);
            }
            Ok::<_, anyhow::Error>(all)
        })?;
        Ok(Times {
            all: begun.elapsed().as_secs_f64(),
            each: seconds,
            requests: self.link.requests() - requests,
        })
    }
}

/// What it took to do something with every segment.
struct Times {
    /// Seconds for all together.
    all: f64,
    /// Seconds for each.
    each: Vec<f64>,
    requests: u64,
}

fn figures(times: &Times) -> BTreeMap<String, f64> {
    let count = real(times.each.len());
    let longest = times.each.iter().copied().fold(0.0, f64::max);
    BTreeMap::from([
        ("rate".to_owned(), count / times.all),
        ("each".to_owned(), times.each.iter().sum::<f64>() / count),
        ("requests".to_owned(), real_u64(times.requests)),
        ("wait".to_owned(), median(&times.each)),
        ("longest".to_owned(), longest),
    ])
}

fn describe(experiment: &mut Experiment, replay: u64) {
    let table = |title: String, waits: bool, columns: &[(&str, &str, f64, usize)]| {
        let row = |(arm, (name, _)): (usize, &(&str, Act))| {
            let mut cells = vec![(*name).to_owned()];
            cells.extend(columns.iter().map(|(_, key, factor, digits)| {
                let value = experiment.middle(key, arm);
                value.map_or_else(
                    || MISSING.to_owned(),
                    |v| format!("{:.*}", digits, v * factor),
                )
            }));
            cells
        };
        let acts = ACTS.iter().enumerate();
        Table {
            title,
            head: std::iter::once("")
                .chain(columns.iter().map(|(head, ..)| *head))
                .map(str::to_owned)
                .collect(),
            rows: acts
                .filter(|(_, (_, act))| act.is_in_recovery() == waits)
                .map(row)
                .collect(),
            note: None,
        }
    };
    let speed = [
        ("segments/s", "rate", 1.0, 1),
        ("ms each", "each", 1e3, 0),
        ("requests", "requests", 1.0, 0),
    ];
    let waits = [
        ("ms (median)", "wait", 1e3, 0),
        ("ms at most", "longest", 1e3, 0),
    ];
    experiment.tables = vec![
        table(experiment.workload.clone(), false, &speed),
        table(
            format!("What recovery waits that replays a segment in {replay} ms"),
            true,
            &waits,
        ),
    ];
}
