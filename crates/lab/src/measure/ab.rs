//! Honest comparisons: arms in randomised interleaved blocks, the same state
//! before every run, the same program under every run of an arm.

mod pace;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use postgres::Client;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::format::Unit;
use crate::interrupt;
use crate::measure::arm::ArmSpec;
use crate::measure::environment::warning::{self, warning};
use crate::measure::environment::{self, Environment};
use crate::measure::expectation::Expectation;
use crate::measure::pgbench::options::{Options, Script};
use crate::measure::pgbench::run::Bench;
use crate::measure::result::{Arm, Claim, Experiment, Metric, Plan, Run, SCHEMA, timestamp};
use crate::measure::server::{Place, Template};
use crate::measure::session;
use crate::measure::settle;
use crate::measure::stat::design;
use crate::measure::stat::verdict::Better;
use crate::measure::workload;

/// What state a run begins in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Data replaced by the template's copy before every run.
    Restore,
    /// A new cluster, loaded anew, for every run.
    Fresh,
    /// Data left as the run before left them.
    Reuse,
}

impl State {
    /// As written on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Restore => "restore",
            Self::Fresh => "fresh",
            Self::Reuse => "reuse",
        }
    }
}

/// A comparison, planned.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Kind in the result: `ab`, `run`, or an experiment's name.
    pub kind: String,
    /// Title.
    pub title: String,
    /// Arms; the first is the base.
    pub arms: Vec<ArmSpec>,
    /// Numbers of a sweep.
    pub sweep: Option<Vec<f64>>,
    /// The load.
    pub options: Options,
    /// Blocks.
    pub blocks: usize,
    /// Longest time for all; runs that would exceed it are not begun.
    pub budget: Option<Duration>,
    /// State before runs.
    pub state: State,
    /// Ratios within 1 ± this are the same.
    pub margin: f64,
    /// Whether to interleave.
    pub interleaved: bool,
    /// Whether to add the base again.
    pub same_again: bool,
    /// What is expected, in words.
    pub hypothesis: Option<String>,
    /// The same in numbers.
    pub claims: Vec<Claim>,
    /// What must hold of every run.
    pub expectations: Vec<Expectation>,
    /// Order and keys.
    pub seed: u64,
    /// Where everything goes.
    pub out: PathBuf,
    /// Longest wait for a quiet machine before a run.
    pub settle: Duration,
    /// Share of the processor others may use.
    pub foreign_limit: f64,
    /// Warning ids allowed to stand.
    pub allowed: Vec<String>,
    /// Whether to watch while measuring.
    pub samplers: bool,
    /// The load program.
    pub pgbench: PathBuf,
    /// The command line, for the record.
    pub command: Vec<String>,
    /// A query asked before every run; its answer is kept with the run.
    pub proof: Option<String>,
}

/// The metrics of a pgbench comparison; under a rate, latency is the question.
#[must_use]
pub fn metrics(paced: bool) -> Vec<Metric> {
    let mut metrics = vec![
        Metric::new("tps", "tps", Unit::PerSecond, Better::Higher),
        Metric::new("p50", "p50", Unit::Seconds, Better::Lower),
        Metric::new("p90", "p90", Unit::Seconds, Better::Lower),
        Metric::new("p99", "p99", Unit::Seconds, Better::Lower),
        Metric::new("p999", "p99.9", Unit::Seconds, Better::Lower),
    ];
    metrics.extend(Metric::per_transaction());
    if paced {
        metrics.rotate_left(3);
    }
    metrics
}

/// A comparison under way.
struct Engine<'a> {
    plan: &'a Comparison,
    specs: Vec<ArmSpec>,
    /// Of each arm.
    loads: Vec<Options>,
    scripts: Vec<(Script, u32)>,
    places: Vec<Place>,
    /// Arm to place: arms that differ only by reload share a server.
    place_of: Vec<usize>,
    hashes: BTreeMap<usize, String>,
    experiment: Experiment,
    began: Instant,
    longest_run: Duration,
    tell: &'a dyn Fn(&str),
}

/// Runs the comparison; whatever was measured is in `out` even if it fails later.
///
/// # Errors
/// Fails when a server, a template or a run fails. An interruption is no
/// error: the experiment says so itself.
pub fn run(plan: &Comparison, tell: &dyn Fn(&str)) -> Result<Experiment> {
    std::fs::create_dir_all(&plan.out)
        .with_context(|| format!("could not create \"{}\"", plan.out.display()))?;
    let mut engine = Engine::new(plan, tell)?;
    engine.experiment.save_plan(&plan.out)?;
    match engine.all() {
        Ok(()) => {}
        Err(error) if error.is::<interrupt::Interrupted>() || interrupt::requested() => {
            engine.experiment.interrupted = Some("interrupted by the user".to_owned());
        }
        Err(error) => {
            engine.experiment.interrupted = Some(format!("{error:#}"));
            engine.finish()?;
            return Err(error);
        }
    }
    engine.finish()
}

/// Every command and statement of a comparison, in order, none executed.
///
/// # Errors
/// Fails when the workload cannot be resolved.
pub fn describe(plan: &Comparison) -> Result<String> {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    let specs = all_arms(plan);
    let directory = tempfile::tempdir().context("could not create a temporary directory")?;
    let scripts = resolve(&plan.options, directory.path())?;
    for spec in &specs {
        line(format!("# arm {}: {}", spec.name, spec.describe()));
        if spec.dsn.is_none() {
            let programs = crate::measure::programs::Programs::find(spec.bindir.as_deref())?;
            line(format!(
                "{}/initdb {}",
                programs.bindir.display(),
                spec.initdb.join(" ")
            ));
            line(format!(
                "{} --initialize --quiet --scale={}",
                plan.pgbench.display(),
                plan.options.scale
            ));
            if let Some(setup) = &spec.setup {
                let sql = std::fs::read_to_string(setup)
                    .with_context(|| format!("could not read \"{}\"", setup.display()))?;
                line(sql.trim().to_owned());
            }
            line("VACUUM (FREEZE, ANALYZE)".to_owned());
            line("CHECKPOINT".to_owned());
        }
    }
    let loads = specs.iter().map(|spec| plan.options.with(&spec.load));
    let loads = loads.collect::<Result<Vec<Options>>>()?;
    let command = |load: &Options, block: usize| {
        let mut words = load.arguments(&scripts, None);
        words.push(format!("--random-seed={}", keys_seed(plan, block)));
        format!("{} {}", plan.pgbench.display(), words.join(" "))
    };
    if pace::is_needed(&loads) {
        for (spec, load) in specs.iter().zip(&loads) {
            line(format!(
                "# arm {}, {} times: a rate in per cent below is one of the slowest arm's median",
                spec.name,
                pace::PILOTS
            ));
            line(command(&load.closed(), 0));
        }
    }
    for (block, order) in orders(plan, specs.len()).iter().enumerate() {
        for arm in order {
            line(format!(
                "# block {block}, arm {}, state {}",
                specs[*arm].name,
                plan.state.name()
            ));
            line("CHECKPOINT".to_owned());
            if let Some(proof) = &plan.proof {
                line(proof.clone());
            }
            line(command(&loads[*arm], block));
        }
    }
    Ok(text)
}

fn all_arms(plan: &Comparison) -> Vec<ArmSpec> {
    let mut specs = plan.arms.clone();
    if plan.same_again
        && let Some(base) = plan.arms.first()
    {
        specs.push(ArmSpec {
            name: format!("{} again", base.name),
            ..base.clone()
        });
    }
    specs
}

fn orders(plan: &Comparison, arms: usize) -> Vec<Vec<usize>> {
    if plan.interleaved {
        design::interleaved(arms, plan.blocks, plan.seed)
    } else {
        // One arm's blocks first, then the next's.
        (0..arms)
            .flat_map(|arm| (0..plan.blocks).map(move |_| vec![arm]))
            .collect()
    }
}

/// pgbench's seed: the same for all arms of a block.
fn keys_seed(plan: &Comparison, block: usize) -> u64 {
    // pgbench takes 32 bits.
    let block = u64::try_from(block).unwrap_or(0);
    plan.seed.wrapping_add(block) & 0x7fff_ffff
}

fn resolve(options: &Options, directory: &Path) -> Result<Vec<(Script, u32)>> {
    options
        .workload
        .iter()
        .map(|spec| workload::resolve(spec, directory))
        .collect()
}

impl<'a> Engine<'a> {
    fn new(plan: &'a Comparison, tell: &'a dyn Fn(&str)) -> Result<Self> {
        let specs = all_arms(plan);
        let loads = specs
            .iter()
            .map(|spec| plan.options.with(&spec.load))
            .collect::<Result<Vec<_>>>()?;
        let arms = specs
            .iter()
            .map(|spec| Arm {
                name: spec.name.clone(),
                description: spec.describe(),
                environment: None,
            })
            .collect();
        let mut engine = Self {
            scripts: resolve(&plan.options, &plan.out)?,
            experiment: blank(plan, arms, &loads),
            plan,
            specs,
            loads,
            places: Vec::new(),
            place_of: Vec::new(),
            hashes: BTreeMap::new(),
            began: Instant::now(),
            longest_run: Duration::ZERO,
            tell,
        };
        if plan.hypothesis.is_none() && plan.arms.len() > 1 {
            let none = warning("HYPOTHESIS-NONE", "none stated");
            engine.experiment.warnings.push(none);
        }
        if engine.loads.iter().any(|load| load.rate.is_none()) {
            let closed = warning(
                "LOAD-CLOSED-LOOP",
                "latencies are service times of a closed loop",
            );
            engine.experiment.warnings.push(closed);
        }
        Ok(engine)
    }

    fn all(&mut self) -> Result<()> {
        self.prepare()?;
        let orders = orders(self.plan, self.specs.len());
        let sequential_blocks = self.plan.blocks;
        for (index, order) in orders.iter().enumerate() {
            for (position, arm) in order.iter().enumerate() {
                if self.is_out_of_time() {
                    (self.tell)("the budget is used up");
                    return Ok(());
                }
                let block = if self.plan.interleaved {
                    index
                } else {
                    index % sequential_blocks
                };
                self.one(block, position, *arm)?;
            }
        }
        Ok(())
    }

    fn is_out_of_time(&self) -> bool {
        self.plan
            .budget
            .is_some_and(|budget| self.began.elapsed() + self.longest_run > budget)
    }

    /// Makes templates and places: arms with the same template key share one.
    fn prepare(&mut self) -> Result<()> {
        let mut templates: BTreeMap<String, Rc<Template>> = BTreeMap::new();
        let mut keys: Vec<String> = Vec::new();
        for spec in self.specs.clone() {
            // Reload settings aside, the same arm is the same server.
            let key = match &spec.dsn {
                Some(dsn) => dsn.clone(),
                None => format!(
                    "{} {:?} {:?}",
                    spec.template_key(),
                    spec.settings,
                    spec.variables
                ),
            };
            if let Some(known) = keys.iter().position(|k| *k == key) {
                self.place_of.push(known);
                continue;
            }
            let place = match &spec.dsn {
                Some(dsn) => Place::Remote {
                    dsn: self.remote(dsn)?,
                },
                None => {
                    let template = match templates.get(&spec.template_key()) {
                        Some(template) => Rc::clone(template),
                        None => {
                            let made = Rc::new(self.template(&spec)?);
                            templates.insert(spec.template_key(), Rc::clone(&made));
                            made
                        }
                    };
                    Place::Own {
                        template,
                        copy: format!("run-{}", self.places.len()),
                        data: None,
                        running: None,
                    }
                }
            };
            self.place_of.push(self.places.len());
            self.places.push(place);
            keys.push(key);
        }
        self.pace()?;
        self.warm_machine()
    }

    /// A discarded block: caches of the machine, clocks, branch predictors.
    fn warm_machine(&mut self) -> Result<()> {
        for arm in 0..self.specs.len() {
            let dsn = self.places[self.place_of[arm]].ready(&self.specs[arm], false)?;
            self.bench(&dsn, arm, 0).warm()?;
            self.places[self.place_of[arm]].stop()?;
        }
        Ok(())
    }

    fn template(&self, spec: &ArmSpec) -> Result<Template> {
        (self.tell)(&format!(
            "loading scale {} for {}",
            self.plan.options.scale, spec.name
        ));
        Template::create(spec, |_, dsn| {
            Bench::initialize(&self.plan.pgbench, dsn, self.plan.options.scale)?;
            let mut client = session::connect(dsn)?;
            for name in &self.plan.options.workload {
                let name = name.split('@').next().unwrap_or(name);
                if let Some(setup) = workload::find(name).and_then(|w| w.setup) {
                    session::run(&mut client, setup)?;
                }
            }
            Ok(())
        })
        .with_context(|| format!("could not prepare arm \"{}\"", spec.name))
    }

    /// A server of somebody else: state cannot be restored, tables must be there.
    fn remote(&self, dsn: &str) -> Result<String> {
        if self.plan.state != State::Reuse {
            bail!(
                "could not use state \"{}\" on a server reached by dsn: only --state reuse",
                self.plan.state.name()
            );
        }
        let mut client = session::connect(dsn)?;
        let present = session::text(&mut client, "SELECT to_regclass('pgbench_accounts')::text")?;
        let builtin = self
            .scripts
            .iter()
            .any(|(s, _)| matches!(s, Script::Builtin(_)));
        if present.is_empty() && builtin {
            bail!(
                "could not use the server: it has no pgbench tables; load them with pgbench --initialize"
            );
        }
        Ok(dsn.to_owned())
    }

    fn one(&mut self, block: usize, position: usize, arm: usize) -> Result<()> {
        let began = Instant::now();
        interrupt::check()?;
        let place = self.place_of[arm];
        for (index, other) in self.places.iter_mut().enumerate() {
            if index != place {
                other.stop()?;
            }
        }
        let spec = self.specs[arm].clone();
        if self.plan.state == State::Fresh
            && let Place::Own { .. } = self.places[place]
        {
            self.places[place].stop()?;
            let made = Rc::new(self.template(&spec)?);
            if let Place::Own { template, data, .. } = &mut self.places[place] {
                *template = made;
                *data = None;
            }
        }
        let anew = self.plan.state == State::Restore;
        let dsn = self.places[place].ready(&spec, anew)?;
        let print = self.places[place].data().map(fingerprint);
        let mut client = session::connect(&dsn)?;
        reload(&mut client, &spec.reload)?;
        self.inspect(&mut client, arm)?;
        // Only a superuser may; on servers of others we do without.
        if let Err(error) = session::run(&mut client, "CHECKPOINT")
            && self.places[place].data().is_some()
        {
            return Err(error);
        }
        let proof = match &self.plan.proof {
            Some(query) => Some(session::text(&mut client, query)?),
            None => None,
        };
        drop(client);
        let calm = settle::settle(self.plan.settle)?;
        let bench = self.bench(&dsn, arm, block);
        bench.warm()?;
        let mut run = bench
            .measure()
            .with_context(|| format!("run of arm \"{}\" in block {block} failed", spec.name))?;
        run.block = block;
        run.position = position;
        run.arm = arm;
        run.facts.insert(
            "settled".to_owned(),
            if calm { "yes" } else { "no" }.to_owned(),
        );
        run.facts
            .extend(print.map(|print| ("data".to_owned(), print)));
        run.facts
            .extend(proof.map(|proof| ("proof".to_owned(), proof)));
        if let Some(data) = self.places[place].data() {
            run.facts
                .insert("wal_segments".to_owned(), wal_segments(data).to_string());
        }
        self.progress(&run);
        self.experiment.runs.push(run);
        self.longest_run = self.longest_run.max(began.elapsed());
        self.experiment.save(&self.plan.out)
    }

    fn bench<'b>(&'b self, dsn: &'b str, arm: usize, block: usize) -> Bench<'b> {
        let place = &self.places[self.place_of[arm]];
        let name = format!(
            "{block:03}-{}",
            self.specs[arm].name.replace(['/', ' '], "-")
        );
        let directory = self.plan.out.join("runs").join(name);
        Bench {
            pgbench: &self.plan.pgbench,
            dsn,
            options: &self.loads[arm],
            scripts: &self.scripts,
            directory,
            seed: keys_seed(self.plan, block),
            postmaster: place.postmaster(),
            data: place.data().map(Path::to_owned),
            server_log: place.log(),
            samplers: self.plan.samplers,
        }
    }

    /// The program must stay the same; the first look is kept as the environment.
    fn inspect(&mut self, client: &mut Client, arm: usize) -> Result<()> {
        let place = &self.places[self.place_of[arm]];
        if let Some(pid) = place.postmaster()
            && let Ok(hash) = environment::server::executable_hash(pid)
        {
            let first = self.hashes.entry(arm).or_insert_with(|| hash.clone());
            if *first != hash {
                let found = format!(
                    "{}: the server's program is not the one of its first run",
                    self.specs[arm].name
                );
                self.experiment
                    .warnings
                    .push(warning("ENV-EXE-CHANGED", found));
            }
        }
        if self.experiment.arms[arm].environment.is_none() {
            let env = capture(client, place);
            self.experiment.warnings.extend(warning::of(&env));
            self.experiment.arms[arm].environment = Some(env);
        }
        Ok(())
    }

    fn progress(&self, run: &Run) {
        let metric = &self.experiment.metrics[0];
        let value = run.values.get(&metric.name).copied().unwrap_or(f64::NAN);
        (self.tell)(&format!(
            "block {}/{} {}: {} {}{}",
            run.block + 1,
            self.plan.blocks,
            self.specs[run.arm].name,
            metric.title,
            crate::format::value(value, metric.unit),
            run.dropped
                .as_ref()
                .map(|why| format!(" (dropped: {why})"))
                .unwrap_or_default()
        ));
    }

    fn finish(mut self) -> Result<Experiment> {
        for place in &mut self.places {
            // The result matters more than a server that does not stop: its leash ends it.
            let _ = place.stop();
        }
        self.compare_arms();
        self.check_expectations();
        self.check_runs();
        self.experiment.save(&self.plan.out)?;
        Ok(self.experiment)
    }

    /// Only at the end is every arm's environment known: which runs first is left to chance.
    fn compare_arms(&mut self) {
        let arms = &self.experiment.arms;
        let base = arms.first().and_then(|arm| arm.environment.as_ref());
        let found: Vec<_> = arms
            .iter()
            .skip(1)
            .filter_map(|arm| {
                Some(warning::between(
                    base?,
                    arm.environment.as_ref()?,
                    &arm.name,
                ))
            })
            .flatten()
            .collect();
        self.experiment.warnings.extend(found);
    }

    fn check_expectations(&mut self) {
        for expectation in &self.plan.expectations {
            let failed = self
                .experiment
                .runs
                .iter()
                .filter(|run| expectation.holds(&run.values) != Some(true))
                .count();
            if failed > 0 {
                let found = format!(
                    "\"{}\" was not so in {failed} of {} runs",
                    expectation.text(),
                    self.experiment.runs.len()
                );
                self.experiment
                    .warnings
                    .push(warning("HYPOTHESIS-NOT-EXERCISED", found));
            }
        }
    }

    fn check_runs(&mut self) {
        let runs = &self.experiment.runs;
        let mut found = Vec::new();
        let unsustained = runs
            .iter()
            .filter(|r| r.facts.get("rate").is_some_and(|f| f == "not sustained"))
            .count();
        if unsustained > 0 {
            found.push(warning(
                "LOAD-RATE-NOT-SUSTAINED",
                format!("in {unsustained} of {} runs", runs.len()),
            ));
        }
        let failed = runs
            .iter()
            .filter(|r| r.values.get("failed").is_some_and(|f| *f > 0.0))
            .count();
        if failed > 0 {
            found.push(warning(
                "RUN-FAILED-TRANSACTIONS",
                format!("in {failed} of {} runs", runs.len()),
            ));
        }
        let uneven = (0..self.plan.blocks)
            .filter(|block| {
                let mut counts = runs
                    .iter()
                    .filter(|r| r.block == *block)
                    .filter_map(|r| r.values.get("checkpoints"));
                counts
                    .next()
                    .is_some_and(|first| counts.any(|c| (c - first).abs() > 0.5))
            })
            .count();
        if uneven > 0 {
            found.push(warning("RUN-CHECKPOINTS", format!("in {uneven} blocks")));
        }
        self.experiment.warnings.extend(found);
    }
}

/// The load in one line; of the plan where every arm has its own.
fn workload_words(planned: &Options, loads: &[Options]) -> String {
    let first = loads.first().map(Options::describe);
    let words = first.filter(|first| loads.iter().all(|load| load.describe() == *first));
    words.unwrap_or_else(|| format!("{}; each arm as it says", planned.describe()))
}

fn blank(plan: &Comparison, arms: Vec<Arm>, loads: &[Options]) -> Experiment {
    Experiment {
        schema: SCHEMA.to_owned(),
        lab_version: env!("CARGO_PKG_VERSION").to_owned(),
        kind: plan.kind.clone(),
        title: plan.title.clone(),
        created: timestamp(),
        command: plan
            .command
            .iter()
            .map(|w| environment::mask::mask(w))
            .collect(),
        hypothesis: plan.hypothesis.clone(),
        workload: workload_words(&plan.options, loads),
        plan: Plan {
            blocks: plan.blocks,
            seconds: plan
                .options
                .transactions
                .is_none()
                .then(|| f64::from(plan.options.time)),
            seed: plan.seed,
            state: plan.state.name().to_owned(),
            margin: plan.margin,
            interleaved: plan.interleaved,
            same_again: plan.same_again,
            allowed: plan.allowed.clone(),
            foreign_limit: plan.foreign_limit,
            sweep: plan.sweep.clone(),
            claims: plan.claims.clone(),
        },
        metrics: metrics(loads.iter().all(|load| load.rate.is_some())),
        arms,
        ..Experiment::default()
    }
}

/// Captures the machine and the server of a place.
fn capture(client: &mut Client, place: &Place) -> Environment {
    let mut env = environment::of_server(client, place.data());
    if let Some(data) = place.data() {
        if let Some(pid) = place.postmaster() {
            environment::server::capture_process(&mut env, pid);
        }
        env.found("data.fingerprint", fingerprint(data));
    }
    env
}

/// Changes settings without a restart and waits until they are seen.
fn reload(client: &mut Client, settings: &BTreeMap<String, String>) -> Result<()> {
    if settings.is_empty() {
        return Ok(());
    }
    for (name, value) in settings {
        let quoted = value.replace('\'', "''");
        session::run(client, &format!("ALTER SYSTEM SET {name} = '{quoted}'"))?;
    }
    session::run(client, "SELECT pg_reload_conf()")?;
    // The postmaster tells backends by a signal; a few milliseconds in general.
    interrupt::sleep(Duration::from_millis(200))
}

fn wal_segments(data: &Path) -> usize {
    std::fs::read_dir(data.join("pg_wal")).map_or(0, |entries| {
        entries
            .flatten()
            .filter(|entry| entry.file_name().len() == 24)
            .count()
    })
}

/// Every so many pages one goes into the fingerprint: a cluster of 15 GB then
/// costs a tenth of a second, and a load that writes does not stay unseen.
const FINGERPRINT_EVERY: u64 = 64;
const PAGE: usize = 8192;

/// Names, sizes and a sample of the pages of all files below `base`: the same
/// copy, the same print.
#[must_use]
pub fn fingerprint(data: &Path) -> String {
    let mut files = Vec::new();
    let base = data.join("base");
    let mut pending = vec![base.clone()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else if let Ok(metadata) = entry.metadata() {
                // The relation map's cache is written at the first connection.
                if !path.to_string_lossy().ends_with("pg_internal.init") {
                    files.push((path, metadata.len()));
                }
            }
        }
    }
    files.sort();
    let mut digest = Sha256::new();
    for (path, size) in files {
        let name = path.strip_prefix(&base).unwrap_or(&path).to_owned();
        digest.update(format!("{name:?} {size}"));
        sample(&path, size, &mut digest);
    }
    let digest = digest.finalize();
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn sample(path: &Path, size: u64, digest: &mut Sha256) {
    let Ok(file) = std::fs::File::open(path) else {
        return;
    };
    let mut page = [0; PAGE];
    let mut at = 0;
    while at < size {
        // A file that shrinks meanwhile gives another print, as it should.
        let read = file.read_at(&mut page, at).unwrap_or(0);
        digest.update(&page[..read]);
        at += FINGERPRINT_EVERY * 8192;
    }
}
