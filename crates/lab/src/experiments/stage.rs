//! What all experiments share: the record, the lock, the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::experiments::shared::Shared;
use crate::format;
use crate::interrupt;
use crate::measure::environment::warning::{self, warning};
use crate::measure::environment::{Level, Warning, host, mask};
use crate::measure::lock::{self, Lock};
use crate::measure::result::{Arm, Claim, Experiment, Metric, Plan, Run, SCHEMA, epoch, timestamp};
use crate::measure::sample::Window;
use crate::measure::stat;
use crate::report::output::{deliver, tell};

/// What an experiment says of itself before it begins.
pub(super) struct Sketch {
    /// Its name on the command line.
    pub(super) kind: &'static str,
    /// Title.
    pub(super) title: String,
    /// The workload in one line.
    pub(super) workload: String,
    /// Arms, the base first.
    pub(super) arms: Vec<Arm>,
    /// Metrics, the primary one first.
    pub(super) metrics: Vec<Metric>,
    /// Blocks.
    pub(super) blocks: usize,
    /// What a run begins from: `restore`, `fresh` or `reuse`.
    pub(super) state: &'static str,
    /// What it expects to see, unless its user expects something else.
    pub(super) hypothesis: Option<Hypothesis>,
}

/// What is expected, for people and in numbers.
pub(super) struct Hypothesis {
    /// A clause that goes behind "that".
    pub(super) words: String,
    /// All of them hold, or it fails.
    pub(super) claims: Vec<Claim>,
}

impl Hypothesis {
    pub(super) fn new(words: &str, claims: impl IntoIterator<Item = Claim>) -> Self {
        Self {
            words: words.to_owned(),
            claims: claims.into_iter().collect(),
        }
    }
}

/// An experiment under way.
pub(super) struct Stage<'a> {
    /// The record so far.
    pub(super) experiment: Experiment,
    /// Where it is kept.
    pub(super) out: PathBuf,
    shared: &'a Shared,
    _lock: Lock,
}

impl<'a> Stage<'a> {
    /// Takes the machine and opens the record.
    pub(super) fn open(sketch: Sketch, shared: &'a Shared, words: &[String]) -> Result<Self> {
        let lock = lock::acquire(tell)?;
        let warnings = neighbours(shared.foreign_cpu);
        let out = shared.out(sketch.kind);
        std::fs::create_dir_all(&out)
            .with_context(|| format!("could not create \"{}\"", out.display()))?;
        let seed = shared.seed();
        let claims = shared.claims(&sketch.metrics, sketch.arms.len())?;
        let own = shared.hypothesis.clone();
        let hypothesis = own.map(|words| Hypothesis { words, claims });
        let (hypothesis, claims) = hypothesis
            .or(sketch.hypothesis)
            .map(|hypothesis| (hypothesis.words, hypothesis.claims))
            .unzip();
        tell(&format!("seed {seed}, results in {}", out.display()));
        let experiment = Experiment {
            schema: SCHEMA.to_owned(),
            lab_version: env!("CARGO_PKG_VERSION").to_owned(),
            kind: sketch.kind.to_owned(),
            title: sketch.title,
            created: timestamp(),
            command: shared
                .recorded(words, seed)
                .iter()
                .map(|word| mask::mask(word))
                .collect(),
            hypothesis,
            workload: sketch.workload,
            plan: Plan {
                blocks: sketch.blocks,
                seconds: None,
                seed,
                state: sketch.state.to_owned(),
                margin: shared.min_effect,
                interleaved: true,
                same_again: false,
                allowed: shared.allow.clone(),
                foreign_limit: shared.foreign_cpu,
                sweep: None,
                claims: claims.unwrap_or_default(),
            },
            metrics: sketch.metrics,
            arms: sketch.arms,
            warnings,
            ..Experiment::default()
        };
        experiment.save_plan(&out)?;
        Ok(Self {
            experiment,
            out,
            shared,
            _lock: lock,
        })
    }

    /// The order of arms in each block.
    pub(super) fn orders(&self) -> Vec<Vec<usize>> {
        let plan = &self.experiment.plan;
        stat::design::interleaved(self.experiment.arms.len(), plan.blocks, plan.seed)
    }

    /// Says what one run found.
    pub(super) fn progress(&self, (block, arm): (usize, usize), found: &str) {
        let blocks = self.experiment.plan.blocks;
        let arm = &self.experiment.arms[arm].name;
        tell(&format!("block {}/{blocks} {arm}: {found}", block + 1));
    }

    /// Keeps a run, on disk too.
    pub(super) fn record(&mut self, run: Run) -> Result<()> {
        self.experiment.runs.push(run);
        self.experiment.save(&self.out)
    }

    /// The run of an arm in a block, made when it is first asked for: some are measured in several steps.
    pub(super) fn run(&mut self, (block, position, arm): (usize, usize, usize)) -> &mut Run {
        let runs = &mut self.experiment.runs;
        let there = runs
            .iter()
            .position(|run| run.block == block && run.arm == arm);
        let at = there.unwrap_or_else(|| {
            runs.push(Run {
                block,
                position,
                arm,
                started: epoch(),
                ..Run::default()
            });
            runs.len() - 1
        });
        &mut runs[at]
    }

    /// Keeps what was measured so far.
    pub(super) fn save(&self) -> Result<()> {
        self.experiment.save(&self.out)
    }

    /// Adds a sentence for the reader, once.
    pub(super) fn note(&mut self, words: impl Into<String>) {
        let words = words.into();
        if !self.experiment.notes.contains(&words) {
            self.experiment.notes.push(words);
        }
    }

    /// Ends the experiment: what was measured is reported even if it did not
    /// come to its planned end.
    pub(super) fn close(
        mut self,
        outcome: Result<()>,
        describe: impl FnOnce(&mut Experiment),
    ) -> Result<u8> {
        let failure = match outcome {
            Ok(()) => None,
            Err(error) if error.is::<interrupt::Interrupted>() || interrupt::requested() => {
                self.experiment.interrupted = Some("interrupted by the user".to_owned());
                None
            }
            Err(error) => {
                self.experiment.interrupted = Some(mask::mask(&format!("{error:#}")));
                Some(error)
            }
        };
        if self.experiment.runs.is_empty() {
            self.experiment.save(&self.out)?;
            return failure.map_or(Err(interrupt::Interrupted.into()), Err);
        }
        describe(&mut self.experiment);
        self.experiment.note_what_is_published();
        let known = surroundings(&self.experiment);
        self.experiment.warnings.extend(known);
        self.experiment.name_arms_in_warnings();
        let code = deliver(&self.experiment, &self.out, self.shared.ascii)?;
        failure.map_or(Ok(code), Err)
    }
}

/// How long others are watched before anything of the experiment runs.
const WATCHED: Duration = Duration::from_secs(1);

/// What others use of the processor before anything of the experiment runs.
fn neighbours(limit: f64) -> Vec<Warning> {
    let window = Window::open(None);
    std::thread::sleep(WATCHED);
    let used = window.close().foreign;
    if used <= limit {
        return Vec::new();
    }
    let found = format!(
        "others used {} of the processor in the second before the experiment began",
        format::percent(used)
    );
    vec![warning("ENV-FOREIGN-CPU", found)]
}

/// What the machine and the servers are, as far as it disturbs. No verdict is withheld because of it: what is compared here differs by more.
fn surroundings(experiment: &Experiment) -> Vec<Warning> {
    let known = experiment
        .arms
        .iter()
        .filter_map(|arm| arm.environment.as_ref());
    let mut found: Vec<Warning> = known.flat_map(warning::of).collect();
    if found.is_empty() {
        found = warning::of(&host::capture(Path::new("/"), None));
    }
    // What an experiment loads is as large as it means it to be.
    let apart = experiment.arms_apart().into_iter();
    found.extend(apart.filter(|warning| warning.id != "ENV-ARMS-SIZE"));
    for warning in &mut found {
        warning.level = warning.level.min(Level::Warn);
    }
    found
}
