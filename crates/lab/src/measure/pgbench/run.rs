//! One measured run of pgbench.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::log::{Columns, Merged};
use super::options::{Options, Script};
use super::rate::Rate;
use super::summary::{self, Summary};
use crate::interrupt;
use crate::measure::counters;
use crate::measure::result::{FOREIGN, Mark, Run, UNSUSTAINED, WITHHELD, epoch};
use crate::measure::sample::{Sampler, Shares, Watch, Window};
use crate::measure::session;
use crate::number::{real, real_u64, whole_u64};

/// Ten looks a second catch what a tenth of the backends' time goes to.
const WAIT_PERIOD: Duration = Duration::from_millis(100);

/// Where and how to measure.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The program.
    pub pgbench: &'a Path,
    /// The server.
    pub dsn: &'a str,
    /// The load.
    pub options: &'a Options,
    /// Scripts with weights.
    pub scripts: &'a [(Script, u32)],
    /// Where logs go.
    pub directory: PathBuf,
    /// Decides pgbench's keys: the same within a block.
    pub seed: u64,
    /// The same of the warm-up, which must not send the keys that are measured.
    pub warm_seed: u64,
    /// The server's process, if on this machine.
    pub postmaster: Option<u32>,
    /// The server's data, if on this machine.
    pub data: Option<PathBuf>,
    /// The server's log, if on this machine.
    pub server_log: Option<PathBuf>,
    /// Whether to watch while measuring.
    pub samplers: bool,
}

impl Bench<'_> {
    /// Loads pgbench's tables.
    ///
    /// # Errors
    /// Fails with pgbench's words.
    pub fn initialize(pgbench: &Path, dsn: &str, scale: u32) -> Result<()> {
        crate::measure::programs::output(
            Command::new(pgbench)
                .args(["--initialize", "--quiet"])
                .arg(format!("--scale={scale}"))
                .arg(dsn),
        )
        .context("could not load pgbench's tables")?;
        Ok(())
    }

    /// Runs the load unmeasured.
    ///
    /// # Errors
    /// Fails with pgbench's words.
    pub fn warm(&self) -> Result<()> {
        if self.options.warmup == 0 {
            return Ok(());
        }
        let seconds = Some(self.options.warmup);
        let words = self.options.seeded(self.scripts, seconds, self.warm_seed);
        crate::measure::programs::output(Command::new(self.pgbench).args(words).arg(self.dsn))
            .context("could not warm up")?;
        Ok(())
    }

    /// Transactions per second of one run.
    ///
    /// # Errors
    /// Fails when pgbench cannot be started or understood.
    pub fn throughput(&self) -> Result<f64> {
        let run = self
            .measure()
            .context("could not find out what the server can do")?;
        Ok(run.values["tps"])
    }

    /// Runs the load and measures.
    ///
    /// # Errors
    /// Fails when pgbench cannot be started or understood.
    pub fn measure(&self) -> Result<Run> {
        fs::create_dir_all(&self.directory)
            .with_context(|| format!("could not create \"{}\"", self.directory.display()))?;
        for log in self.logs()? {
            // Of a run that was interrupted.
            fs::remove_file(&log)
                .with_context(|| format!("could not remove \"{}\"", log.display()))?;
        }
        let mut client = session::connect(self.dsn)?;
        let before = counters::read(&mut client);
        let waits = self.samplers.then(|| Waits::start(self.dsn));
        let sampler = self.samplers.then(|| {
            Sampler::start(Watch {
                data: self.data.clone(),
                process: self.postmaster,
                period: None,
            })
        });
        let window = Window::open(self.postmaster);
        let started = epoch();
        let summary = self.execute();
        let seconds = epoch() - started;
        let shares = window.close();
        let samples = sampler.map(Sampler::finish);
        let waits = waits.map(Waits::finish).unwrap_or_default();
        let summary = summary?;
        // Backends report their counters when they end; give the last ones time.
        interrupt::sleep(Duration::from_millis(200))?;
        let growth = counters::growth(&before, &counters::read(&mut client));
        let log = self.read_logs(whole_u64(started))?;
        let mut run = Run {
            started,
            seconds,
            samples,
            waits,
            throughput: log.whole_seconds(seconds).to_vec(),
            latency: log.response.curve(),
            statements: summary.statements.clone(),
            marks: self.marks(started, seconds),
            ..Run::default()
        };
        self.values(&mut run, &summary, &log);
        run.facts.extend(
            summary
                .scale
                .map(|scale| ("scale".to_owned(), scale.to_string())),
        );
        shares_into(&mut run.values, shares, self, seconds);
        growth_into(&mut run.values, &growth, summary.transactions);
        run.values.extend(growth);
        judge(&mut run, &summary, &log, self.options)?;
        Ok(run)
    }

    fn execute(&self) -> Result<Summary> {
        let out = self.directory.join("pgbench.out");
        let errors = self.directory.join("pgbench.err");
        let create = |path: &Path| {
            File::create(path).with_context(|| format!("could not create \"{}\"", path.display()))
        };
        let mut words = self.options.seeded(self.scripts, None, self.seed);
        words.push("--log".to_owned());
        words.push(format!(
            "--log-prefix={}",
            self.directory.join("log").display()
        ));
        words.push("--progress=1".to_owned());
        words.push("--progress-timestamp".to_owned());
        words.extend(
            self.options
                .sampling_rate
                .map(|share| format!("--sampling-rate={share}")),
        );
        let mut child = Command::new(self.pgbench)
            .args(words)
            .arg(self.dsn)
            .env("PGAPPNAME", "pgbench")
            .stdin(Stdio::null())
            .stdout(create(&out)?)
            .stderr(create(&errors)?)
            .spawn()
            .with_context(|| format!("could not start \"{}\"", self.pgbench.display()))?;
        let status = interrupt::wait(&mut child)?;
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let (said, complained) = (read(&out), read(&errors));
        // Status 2 is "some clients aborted": its summary is still printed.
        if !status.success() && status.code() != Some(2) {
            let words: Vec<&str> = complained
                .lines()
                .filter(|l| l.contains("error") || l.contains("fatal"))
                .collect();
            bail!("pgbench ended with {status}: {}", words.join("; "));
        }
        summary::parse(&said, &complained)
    }

    fn read_logs(&self, start: u64) -> Result<Merged> {
        let columns = Columns {
            lag: self.options.rate.is_some(),
            retries: self.options.max_tries.is_some_and(|tries| tries != 1),
        };
        let mut merged = Merged::sampled(self.options.sampling_rate.unwrap_or(1.0));
        for log in self.logs()? {
            let file = File::open(&log)
                .with_context(|| format!("could not open \"{}\"", log.display()))?;
            merged.add(BufReader::new(file), columns, start)?;
            compress(&log)?;
        }
        Ok(merged)
    }

    /// What pgbench has logged: a file for each of its threads.
    fn logs(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.directory)
            .with_context(|| format!("could not list \"{}\"", self.directory.display()))?;
        let is_log = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("log.") && !name.ends_with(".zst")
        };
        Ok(entries
            .flatten()
            .map(|entry| entry.path())
            .filter(is_log)
            .collect())
    }

    fn values(&self, run: &mut Run, summary: &Summary, log: &Merged) {
        let mut put = |name: &str, value: Option<f64>| {
            if let Some(value) = value {
                run.values.insert(name.to_owned(), value);
            }
        };
        put("tps", Some(summary.tps));
        put("transactions", Some(real_u64(summary.transactions)));
        put("latency_mean", Some(summary.latency_mean));
        let skipped = skipped_of(summary.transactions, summary.skipped);
        for (name, q) in [
            ("p50", 0.5),
            ("p90", 0.9),
            ("p95", 0.95),
            ("p99", 0.99),
            ("p999", 0.999),
        ] {
            // What was too late to be begun lies beyond every percentile: more of it than a tenth of what does moves it.
            let stands = skipped <= (1.0 - q) / 10.0;
            if !stands {
                run.facts.insert(name.to_owned(), WITHHELD.to_owned());
            }
            put(name, log.response.quantile(q).filter(|_| stands));
        }
        put("latency_median", log.response.median());
        put("latency_min", log.response.shortest());
        put("latency_max", log.response.longest());
        put("latency_deviation", log.response.deviation());
        put("failed", Some(real_u64(summary.failed)));
        put("skipped", Some(real_u64(summary.skipped)));
        put("retries", Some(real_u64(summary.retries)));
        if self.options.rate.is_some() {
            put("service_p50", log.service.quantile(0.5));
            put("service_p99", log.service.quantile(0.99));
            put("lag_mean", summary.lag_mean);
        }
        if let Some(limit) = self.options.latency_limit {
            // Skipped transactions were late before they began.
            let late = summary.above_limit + summary.skipped;
            let all = summary.transactions + summary.skipped;
            put("late_share", Some(real_u64(late) / real_u64(all.max(1))));
            put("latency_limit", Some(limit / 1000.0));
        }
    }

    /// Checkpoints and autovacuums, from the server's log.
    fn marks(&self, started: f64, seconds: f64) -> Vec<Mark> {
        let Some(text) = self
            .server_log
            .as_ref()
            .and_then(|p| fs::read_to_string(p).ok())
        else {
            return Vec::new();
        };
        text.lines()
            .filter_map(|line| {
                let (stamp, message) = line.split_once(' ')?;
                let at = stamp.parse::<f64>().ok()? - started;
                let what = message.trim_start_matches("LOG:").trim();
                let known = [
                    "checkpoint starting",
                    "checkpoint complete",
                    "automatic vacuum",
                ];
                let known = known.iter().find(|k| what.starts_with(**k))?;
                (0.0..=seconds).contains(&at).then(|| Mark {
                    at,
                    what: (*known).to_owned(),
                })
            })
            .collect()
    }
}

fn shares_into(values: &mut BTreeMap<String, f64>, shares: Shares, bench: &Bench, seconds: f64) {
    let mut put = |name: &str, value: f64| {
        values.insert(name.to_owned(), value);
    };
    put("cpu_busy", shares.busy);
    put("cpu_client", shares.client);
    put("cpu_steal", shares.steal);
    put(
        "client_thread_busy",
        shares.client_seconds / seconds / f64::from(bench.options.threads()),
    );
    // Without the server's process, foreign and server cannot be told apart.
    if bench.postmaster.is_some() {
        put("cpu_server", shares.server);
        put(FOREIGN, shares.foreign);
        put("server_cpu_seconds", shares.server_seconds);
        let transactions = values.get("transactions").copied().unwrap_or(0.0);
        if transactions > 0.0 {
            values.insert(
                "server_cpu_per_transaction".to_owned(),
                shares.server_seconds / transactions,
            );
        }
    }
}

fn growth_into(
    values: &mut BTreeMap<String, f64>,
    growth: &BTreeMap<String, f64>,
    transactions: u64,
) {
    let each = |name: &str| growth.get(name).map(|v| v / real_u64(transactions.max(1)));
    if let Some(bytes) = each("pg_stat_wal.wal_bytes") {
        values.insert("wal_per_transaction".to_owned(), bytes);
    }
    if let (Some(images), Some(records)) = (
        growth.get("pg_stat_wal.wal_fpi"),
        growth.get("pg_stat_wal.wal_records"),
    ) && *records > 0.0
    {
        values.insert("wal_image_share".to_owned(), images / records);
    }
    values.insert("checkpoints".to_owned(), counters::checkpoints(growth));
}

/// Share of transactions that are too late to be begun from which a rate is not sustained: the users behind them waited
/// and got nothing.
const MOST_SKIPPED: f64 = 0.01;

/// The share of transactions that were due and not begun.
fn skipped_of(transactions: u64, skipped: u64) -> f64 {
    real_u64(skipped) / real_u64((transactions + skipped).max(1))
}

/// The same of a run's values.
#[must_use]
pub fn skipped_share(values: &BTreeMap<String, f64>) -> f64 {
    let value = |name: &str| values.get(name).copied().unwrap_or(0.0);
    let skipped = value("skipped");
    skipped / (value("transactions") + skipped).max(1.0)
}

/// Drops a run that is not what was planned, by rules fixed before.
fn judge(run: &mut Run, summary: &Summary, log: &Merged, options: &Options) -> Result<()> {
    let logged = log.succeeded();
    if options.sampling_rate.is_none() && logged != summary.transactions {
        bail!(
            "could not use the run: pgbench reports {} transactions and logged {logged}",
            summary.transactions
        );
    }
    if summary.aborted {
        run.dropped = Some("clients gave up".to_owned());
    } else if summary.failed > 0 {
        run.dropped = Some(format!("{} transactions failed", summary.failed));
    }
    if let Some(Rate::PerSecond(rate)) = options.rate {
        let (first, last) = log.lag_of_thirds();
        let offered = summary.tps + real_u64(summary.skipped) / run.seconds.max(1e-3);
        // Transactions are due at random: a count that misses by three of its standard deviations is still that rate.
        let chance = 3.0 * (rate / run.seconds.max(1e-3)).sqrt();
        let begun = skipped_of(summary.transactions, summary.skipped) <= MOST_SKIPPED;
        let sustained = begun && offered >= rate * 0.97 - chance && last <= (first * 3.0).max(0.01);
        run.facts.insert(
            "rate".to_owned(),
            if sustained { "sustained" } else { UNSUSTAINED }.to_owned(),
        );
        if !sustained {
            // The percentiles of a growing queue measure the length of the run.
            for name in [
                "p50",
                "p90",
                "p95",
                "p99",
                "p999",
                "service_p50",
                "service_p99",
            ] {
                run.values.remove(name);
            }
        }
    }
    Ok(())
}

/// Keeps a log, small.
fn compress(path: &Path) -> Result<()> {
    let target = PathBuf::from(format!("{}.zst", path.display()));
    let wrong = || format!("could not compress \"{}\"", path.display());
    let input = File::open(path).with_context(wrong)?;
    let output = File::create(&target).with_context(wrong)?;
    zstd::stream::copy_encode(BufReader::new(input), output, 1).with_context(wrong)?;
    fs::remove_file(path).with_context(wrong)
}

/// Looks what backends wait for.
struct Waits {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<String, f64>>,
}

impl Waits {
    fn start(dsn: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (stop, dsn) = (Arc::clone(&stop), dsn.to_owned());
            std::thread::spawn(move || watch(&dsn, &stop))
        };
        Self { stop, thread }
    }

    fn finish(self) -> BTreeMap<String, f64> {
        self.stop.store(true, Ordering::Relaxed);
        // Without waits the report says less, and nothing wrong.
        self.thread.join().unwrap_or_default()
    }
}

fn watch(dsn: &str, stop: &AtomicBool) -> BTreeMap<String, f64> {
    let mut seen = BTreeMap::new();
    let query = "SELECT coalesce(wait_event_type || ':' || wait_event, 'running'), count(*) \
                 FROM pg_stat_activity WHERE application_name = 'pgbench' AND state <> 'idle' GROUP BY 1";
    let Ok(mut client) = session::connect(dsn) else {
        return seen;
    };
    while !stop.load(Ordering::Relaxed) && !interrupt::requested() {
        for row in client.query(query, &[]).unwrap_or_default() {
            let (event, count): (String, i64) = (row.get(0), row.get(1));
            let count = usize::try_from(count).map_or(0.0, real);
            *seen.entry(event).or_insert(0.0) += count;
        }
        std::thread::sleep(WAIT_PERIOD);
    }
    seen
}
