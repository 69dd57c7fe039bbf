//! Honest comparisons: arms in randomised interleaved blocks, the same state
//! before every run, the same program under every run of an arm.

mod describe;
mod files;
mod pace;
mod reload;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use postgres::Client;
use serde::{Deserialize, Serialize};

pub use self::describe::describe;
use self::files::{fingerprint, wal_segments};
use self::reload::Lent;
use crate::format::{Unit, percent};
use crate::interrupt;
use crate::measure::arm::ArmSpec;
use crate::measure::environment::warning::{self, warning};
use crate::measure::environment::{self, Environment, mask};
use crate::measure::expectation::Expectation;
use crate::measure::pgbench::options::{Options, Script};
use crate::measure::pgbench::run::{Bench, skipped_share};
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

/// The metrics of arms with these loads; where all have a rate, latency is the question.
#[must_use]
pub fn metrics(loads: &[Options]) -> Vec<Metric> {
    let mut metrics = vec![
        Metric::new("tps", "tps", Unit::PerSecond, Better::Higher),
        Metric::new("p50", "p50", Unit::Seconds, Better::Lower),
        Metric::new("p90", "p90", Unit::Seconds, Better::Lower),
        Metric::new("p99", "p99", Unit::Seconds, Better::Lower),
        Metric::new("p999", "p99.9", Unit::Seconds, Better::Lower),
    ];
    metrics.extend(Metric::per_transaction());
    if loads.iter().all(|load| load.rate.is_some()) {
        metrics.rotate_left(3);
    }
    // Percentiles are of transactions that were begun; this is of all that were due.
    if loads.iter().any(|load| load.latency_limit.is_some()) {
        let late = Metric::new("late_share", "late", Unit::Ratio, Better::Lower);
        metrics.push(late);
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
    /// Arm to place: arms that are the same server share one.
    place_of: Vec<usize>,
    /// Places of others whose settings arms change.
    lent: BTreeMap<usize, Lent>,
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
            return Err(match engine.finish() {
                Ok(_) => error,
                // What could not be put back is no less important than what ended it.
                Err(more) => error.context(format!("{more:#}")),
            });
        }
    }
    engine.finish()
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

/// The seed of the block's warm-ups, far from that of any block: keys that were sent before would be found in caches,
/// and what is measured would be hits alone.
fn warm_seed(plan: &Comparison, block: usize) -> u64 {
    keys_seed(plan, block) ^ 0x4000_0000
}

/// The load of each arm; the scale is the plan's.
fn loads(plan: &Comparison, specs: &[ArmSpec]) -> Result<Vec<Options>> {
    let each = specs.iter().map(|spec| plan.options.with(&spec.load));
    each.collect()
}

/// The scale of pgbench's tables on a server that somebody else loaded; `None` where there are none.
fn scale_there(dsn: &str) -> Result<Option<u32>> {
    let mut client = session::connect(dsn)?;
    let there = "SELECT to_regclass('pgbench_branches')::text";
    if session::text(&mut client, there)?.is_empty() {
        return Ok(None);
    }
    let count = session::text(&mut client, "SELECT count(*)::text FROM pgbench_branches")?;
    let count: u32 = count.parse().context("could not read pgbench's scale")?;
    Ok((count > 0).then_some(count))
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
        let mut loads = loads(plan, &specs)?;
        for (spec, load) in specs.iter().zip(&mut loads) {
            if let (Some(dsn), State::Reuse) = (&spec.dsn, plan.state) {
                load.scale = scale_there(dsn)?.unwrap_or(load.scale);
            }
        }
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
            lent: BTreeMap::new(),
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
            let key = match &spec.dsn {
                Some(dsn) => dsn.clone(),
                None => format!(
                    "{} {:?} {:?} {:?}",
                    spec.template_key(),
                    spec.settings,
                    spec.reload,
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
        self.look_at_lent()?;
        self.pace()?;
        self.warm_machine()
    }

    /// What any arm changes is looked up on every server of others before anything is changed: two strings may lead to one.
    fn look_at_lent(&mut self) -> Result<()> {
        let names = self.specs.iter().flat_map(|spec| spec.reload.keys());
        let names: BTreeSet<String> = names.cloned().collect();
        for (place, there) in self.places.iter().enumerate() {
            if let (Place::Remote { dsn }, false) = (there, names.is_empty()) {
                self.lent.insert(place, Lent::look(dsn, &names)?);
            }
        }
        Ok(())
    }

    /// The arm's server, with what this arm changes by reload and without what others do.
    fn ready(&mut self, arm: usize, anew: bool) -> Result<String> {
        let (place, spec) = (self.place_of[arm], &self.specs[arm]);
        let dsn = self.places[place].ready(spec, anew)?;
        match self.lent.get_mut(&place) {
            Some(lent) => lent.give(&spec.reload)?,
            None => reload::set(&dsn, &spec.reload)?,
        }
        Ok(dsn)
    }

    /// A discarded block: caches of the machine, clocks, branch predictors.
    fn warm_machine(&mut self) -> Result<()> {
        for arm in 0..self.specs.len() {
            let dsn = self.ready(arm, false)?;
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
        // Where servers take turns each is started for its run: one that still ran would begin warm, and more often where
        // two arms share it.
        if self.places.len() > 1 {
            for server in &mut self.places {
                server.stop()?;
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
        let dsn = self.ready(arm, anew)?;
        let print = self.places[place].data().map(fingerprint);
        let mut client = session::connect(&dsn)?;
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
            warm_seed: warm_seed(self.plan, block),
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
        let put_back = self.put_back();
        for place in &mut self.places {
            // The result matters more than a server that does not stop: its leash ends it.
            let _ = place.stop();
        }
        self.compare_arms();
        self.check_expectations();
        self.check_runs();
        self.experiment.save(&self.plan.out)?;
        put_back.map(|()| self.experiment)
    }

    /// Servers of others get their settings back, each of them even where another one refuses.
    fn put_back(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for lent in self.lent.values_mut() {
            let done = lent.put_back();
            if let Err(error) = &done {
                let words = mask::mask(&format!("{error:#}"));
                // Whoever was interrupted is not told of errors.
                (self.tell)(&words);
                let left = warning("ENV-SETTINGS-LEFT", words);
                self.experiment.warnings.push(left);
            }
            outcome = outcome.and(done);
        }
        outcome
    }

    /// Only at the end is every arm's environment known: which runs first is left to chance.
    fn compare_arms(&mut self) {
        let found = self.experiment.arms_apart();
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
        let unsustained = runs.iter().filter(|run| !run.kept_its_rate()).count();
        if unsustained > 0 {
            let skipped = runs.iter().map(|run| skipped_share(&run.values));
            let most = skipped.fold(0.0, f64::max);
            let mut words = format!("in {unsustained} of {} runs", runs.len());
            if most > 0.0 {
                words.push_str(&format!(
                    "; up to {} came too late to be begun",
                    percent(most)
                ));
            }
            found.push(warning("LOAD-RATE-NOT-SUSTAINED", words));
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
    words.unwrap_or_else(|| {
        // The plan does not know how large tables of others are.
        let scales: BTreeSet<u32> = loads.iter().map(|load| load.scale).collect();
        let planned = Options {
            scale: loads.first().map_or(planned.scale, |load| load.scale),
            ..planned.clone()
        };
        let scales = match scales.len() {
            0 | 1 => String::new(),
            _ => format!(", among them scales {scales:?}"),
        };
        format!("{}; each arm as it says{scales}", planned.describe())
    })
}

fn blank(plan: &Comparison, arms: Vec<Arm>, loads: &[Options]) -> Experiment {
    Experiment {
        schema: SCHEMA.to_owned(),
        lab_version: env!("CARGO_PKG_VERSION").to_owned(),
        kind: plan.kind.clone(),
        title: plan.title.clone(),
        created: timestamp(),
        command: plan.command.iter().map(|w| mask::mask(w)).collect(),
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
        metrics: metrics(loads),
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
