//! The result file: what was planned, what was measured, what was seen.
//!
//! Raw values only, one set per run, so that anybody can do the statistics
//! again; [`crate::report::analysis`] is a pure function of this. The schema is
//! `schema/result.schema.json`; a reader refuses versions it does not know.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::format::Unit;
use crate::measure::environment::{Environment, Warning, warning};
use crate::measure::sample::Samples;
use crate::measure::stat::Interval;
use crate::measure::stat::verdict::Better;

/// The schema this program writes and reads.
pub const SCHEMA: &str = "pgstrata-lab/result/1";
/// The value of a run that says which share of the machine's processors others used.
pub const FOREIGN: &str = "cpu_foreign";

/// The fact `rate` of a run whose server did not keep it.
pub const UNSUSTAINED: &str = "not sustained";

/// The fact named as a percentile of a run in which too many transactions were not begun to tell it.
pub const WITHHELD: &str = "withheld";

/// One experiment with everything measured in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Version of the program that measured.
    pub lab_version: String,
    /// Which experiment: `ab`, `run`, `block-io`, …
    pub kind: String,
    /// A title for people.
    pub title: String,
    /// When it began, RFC 3339, UTC.
    pub created: String,
    /// The command that repeats it, secrets masked.
    pub command: Vec<String>,
    /// What the experimenter expected to see.
    pub hypothesis: Option<String>,
    /// The workload in one line.
    pub workload: String,
    /// How it was planned.
    pub plan: Plan,
    /// What is compared, the primary metric first.
    pub metrics: Vec<Metric>,
    /// The arms; the first is the base.
    pub arms: Vec<Arm>,
    /// The runs in order of time.
    pub runs: Vec<Run>,
    /// Tables that belong to this experiment alone.
    pub tables: Vec<Table>,
    /// Figures that others published for the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// Sentences for the reader.
    pub notes: Vec<String>,
    /// Conditions found that a reader must know of.
    pub warnings: Vec<Warning>,
    /// Why the experiment ended before its plan did, if it did.
    pub interrupted: Option<String>,
}

/// How the runs were ordered and what counts as the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Blocks planned.
    pub blocks: usize,
    /// Measured seconds of a run; absent where a run ends by itself.
    pub seconds: Option<f64>,
    /// Decides the order and every resampling.
    pub seed: u64,
    /// `restore`, `fresh` or `reuse`.
    pub state: String,
    /// Ratios within 1 ± this are the same.
    pub margin: f64,
    /// False when arms ran one after the other.
    pub interleaved: bool,
    /// Whether the last arm is the base once more, to show the noise.
    pub same_again: bool,
    /// Warning ids that were allowed to stand.
    pub allowed: Vec<String>,
    /// Share of the machine that others may use before a block is contaminated.
    pub foreign_limit: f64,
    /// Numeric value of each arm on a sweep, for the trend test.
    pub sweep: Option<Vec<f64>>,
    /// The hypothesis in numbers: it holds when all of them do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
}

/// A bound that a measurement can prove wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Name of the metric.
    pub metric: String,
    /// Index of the arm.
    pub arm: usize,
    /// Index of the arm to which its ratio is meant: the base's, where nothing else is said.
    #[serde(default, skip_serializing_if = "is_base")]
    pub against: usize,
    /// The published value to which its ratio is meant, in the place of another arm's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// The least ratio, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The greatest ratio, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

impl Claim {
    /// That `metric` of `arm` is at most `ratio` times the base's.
    #[must_use]
    pub fn at_most(metric: &str, arm: usize, ratio: f64) -> Self {
        Self {
            metric: metric.to_owned(),
            arm,
            against: 0,
            published: None,
            at_least: None,
            at_most: Some(ratio),
        }
    }

    /// The same of the ratio to another arm than the base.
    #[must_use]
    pub fn against(self, arm: usize) -> Self {
        Self {
            against: arm,
            ..self
        }
    }

    /// The same of the ratio to what was published.
    #[must_use]
    pub fn to_published(self, value: f64) -> Self {
        Self {
            published: Some(value),
            ..self
        }
    }

    /// That `metric` of `arm` is at least `ratio` times the base's.
    #[must_use]
    pub fn at_least(metric: &str, arm: usize, ratio: f64) -> Self {
        Self {
            at_least: Some(ratio),
            at_most: None,
            ..Self::at_most(metric, arm, ratio)
        }
    }
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_base(arm: &usize) -> bool {
    *arm == 0
}

/// Something measured once per run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Key in [`Run::values`].
    pub name: String,
    /// For people.
    pub title: String,
    /// Unit of the values; seconds, bytes and so on, never scaled.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
}

impl Metric {
    /// A metric whose title is its name.
    #[must_use]
    pub fn new(name: &str, title: &str, unit: Unit, better: Better) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            unit,
            better,
        }
    }

    /// What a transaction costs the server; `pgbench::run` fills them in.
    #[must_use]
    pub fn per_transaction() -> [Self; 2] {
        [
            Self::new(
                "server_cpu_per_transaction",
                "server CPU/tx",
                Unit::Seconds,
                Better::Lower,
            ),
            Self::new(
                "wal_per_transaction",
                "WAL/tx",
                Unit::Bytes,
                Better::Neither,
            ),
        ]
    }
}

/// One of the things compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Short name.
    pub name: String,
    /// What makes it different, secrets masked.
    pub description: String,
    /// What was captured of it.
    pub environment: Option<Environment>,
}

/// One run of one arm.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// From 0; runs of the same block are compared with each other.
    pub block: usize,
    /// Place within the block.
    pub position: usize,
    /// Index into [`Experiment::arms`].
    pub arm: usize,
    /// When measuring began, seconds since 1970.
    pub started: f64,
    /// How long it was measured.
    pub seconds: f64,
    /// Metric name to value, in base units.
    pub values: BTreeMap<String, f64>,
    /// Why its block does not count, by the rule fixed before.
    pub dropped: Option<String>,
    /// Named stretches of time.
    pub phases: Vec<Phase>,
    /// Moments worth a mark.
    pub marks: Vec<Mark>,
    /// Transactions finished in each second.
    pub throughput: Vec<f64>,
    /// (share of transactions, seconds that many stayed under).
    pub latency: Vec<(f64, f64)>,
    /// (command, mean seconds) as pgbench reports with `-r`.
    pub statements: Vec<(String, f64)>,
    /// (event, samples) of waiting backends.
    pub waits: BTreeMap<String, f64>,
    /// Resources over time.
    pub samples: Option<Samples>,
    /// Words found while running: plans, proofs.
    pub facts: BTreeMap<String, String>,
}

/// A named stretch of a run, in seconds from its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name.
    pub name: String,
    /// Begin.
    pub from: f64,
    /// End.
    pub to: f64,
}

/// A moment in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds from the start.
    pub at: f64,
    /// What happened.
    pub what: String,
}

/// A table of words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Caption.
    pub title: String,
    /// Column heads.
    pub head: Vec<String>,
    /// Rows of cells.
    pub rows: Vec<Vec<String>>,
    /// A sentence under the table.
    pub note: Option<String>,
}

/// Figures that others published, beside ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// What is compared.
    pub figure: String,
    /// Unit of all figures.
    pub unit: Unit,
    /// Where the published ones are from, and what differs there, in a sentence or two.
    pub source: String,
    /// The figures.
    pub rows: Vec<Beside>,
}

/// A published figure and ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// Of what.
    pub name: String,
    /// Theirs.
    pub published: Option<f64>,
    /// Ours; a median over blocks.
    pub ours: Option<f64>,
    /// Where ours lies with 95 % confidence.
    pub interval: Option<Interval>,
}

impl Run {
    /// Whether the server did what was due; without a rate there is nothing to keep.
    #[must_use]
    pub fn kept_its_rate(&self) -> bool {
        self.facts
            .get("rate")
            .is_none_or(|rate| rate != UNSUSTAINED)
    }

    /// Whether it has no such value because its server did not get to what was due.
    fn was_late_for(&self, metric: &str) -> bool {
        !self.kept_its_rate() || self.facts.get(metric).is_some_and(|fact| fact == WITHHELD)
    }

    /// Notes which share of the processor others used during a part of the run; the largest one counts.
    pub fn note_foreign(&mut self, share: f64) {
        let noted = self.values.entry(FOREIGN.to_owned()).or_insert(share);
        *noted = noted.max(share);
    }
}

impl Experiment {
    /// Reads a result file, or the one in a result directory.
    ///
    /// # Errors
    /// Fails when it cannot be read, is damaged, or has another schema.
    pub fn load(path: &Path) -> Result<Self> {
        let file = if path.is_dir() {
            path.join("result.json")
        } else {
            path.to_owned()
        };
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("could not read result \"{}\"", file.display()))?;
        let value: serde_json::Value = serde_json::from_str(&text)
            .with_context(|| format!("could not parse result \"{}\"", file.display()))?;
        let schema = value["schema"].as_str().unwrap_or("none");
        if schema != SCHEMA {
            bail!(
                "could not read result \"{}\": its schema is \"{schema}\", this program reads \"{SCHEMA}\"",
                file.display()
            );
        }
        serde_json::from_value(value)
            .with_context(|| format!("could not understand result \"{}\"", file.display()))
    }

    /// Writes `result.json` so that a reader finds the old or the new, never a half.
    ///
    /// # Errors
    /// Fails when the directory cannot be written.
    pub fn save(&self, directory: &Path) -> Result<()> {
        let file = directory.join("result.json");
        let text = serde_json::to_string_pretty(self).context("could not encode the result")?;
        let draft = directory.join("result.json.new");
        std::fs::write(&draft, text)
            .and_then(|()| std::fs::rename(&draft, &file))
            .with_context(|| format!("could not write result \"{}\"", file.display()))
    }

    /// Writes `plan.toml`: what is going to be done, before any of it is.
    ///
    /// # Errors
    /// Fails when the directory cannot be written.
    pub fn save_plan(&self, directory: &Path) -> Result<()> {
        #[derive(Serialize)]
        struct Planned<'a> {
            kind: &'a str,
            title: &'a str,
            created: &'a str,
            command: &'a [String],
            hypothesis: &'a Option<String>,
            workload: &'a str,
            plan: &'a Plan,
            metrics: &'a [Metric],
            arms: Vec<BTreeMap<&'static str, &'a str>>,
        }
        let planned = Planned {
            kind: &self.kind,
            title: &self.title,
            created: &self.created,
            command: &self.command,
            hypothesis: &self.hypothesis,
            workload: &self.workload,
            plan: &self.plan,
            metrics: &self.metrics,
            arms: self
                .arms
                .iter()
                .map(|arm| {
                    BTreeMap::from([
                        ("name", arm.name.as_str()),
                        ("description", arm.description.as_str()),
                    ])
                })
                .collect(),
        };
        let text = toml::to_string_pretty(&planned).context("could not encode the plan")?;
        write(&directory.join("plan.toml"), &text)
    }

    /// Writes `env.json`: the base's environment as `env capture` prints one.
    ///
    /// # Errors
    /// Fails when the directory cannot be written.
    pub fn save_environment(&self, directory: &Path) -> Result<()> {
        let Some(environment) = self.arms.first().and_then(|arm| arm.environment.as_ref()) else {
            return Ok(());
        };
        let text = serde_json::to_string_pretty(environment)
            .context("could not encode the environment")?;
        write(&directory.join("env.json"), &text)
    }

    /// The values of one metric for two arms (base first) over these blocks.
    #[must_use]
    pub fn pairs(
        &self,
        metric: &str,
        arms: (usize, usize),
        blocks: &[usize],
    ) -> (Vec<f64>, Vec<f64>) {
        let (base, arm) = arms;
        let mut pairs = (Vec::new(), Vec::new());
        for &block in blocks {
            let of = |wanted: usize| {
                self.runs
                    .iter()
                    .find(|run| run.block == block && run.arm == wanted)
                    .and_then(|run| run.values.get(metric))
            };
            if let (Some(b), Some(a)) = (of(base), of(arm)) {
                pairs.0.push(*b);
                pairs.1.push(*a);
            }
        }
        pairs
    }

    /// How many of these blocks lack the metric for one of two arms, or for both where one did not get to what was due: the
    /// others are those in which it went well.
    #[must_use]
    pub fn missing(&self, metric: &str, arms: (usize, usize), blocks: &[usize]) -> usize {
        let run = |block: usize, arm: usize| {
            let mut runs = self.runs.iter();
            runs.find(|run| run.block == block && run.arm == arm)
        };
        let has = |run: Option<&Run>| run.is_some_and(|run| run.values.contains_key(metric));
        let is_late = |run: Option<&Run>| run.is_some_and(|run| run.was_late_for(metric));
        let lacks = |block: &&usize| {
            let (base, arm) = (run(**block, arms.0), run(**block, arms.1));
            match (has(base), has(arm)) {
                (true, true) => false,
                (false, false) => is_late(base) || is_late(arm),
                _ => true,
            }
        };
        blocks.iter().filter(lacks).count()
    }

    /// Says of which arms a warning is that is not of all whose environment is known.
    pub fn name_arms_in_warnings(&mut self) {
        let known = self.arms.iter().filter_map(|arm| {
            let environment = arm.environment.as_ref()?;
            Some((arm.name.as_str(), warning::of(environment)))
        });
        let known: Vec<(&str, Vec<Warning>)> = known.collect();
        for warning in &mut self.warnings {
            let is_same = |other: &Warning| other.id == warning.id && other.found == warning.found;
            let named = known.iter().filter(|(_, own)| own.iter().any(is_same));
            let named: Vec<&str> = named.map(|(name, _)| *name).collect();
            if !named.is_empty() && named.len() < known.len() {
                warning.found = format!("{}: {}", named.join(", "), warning.found);
            }
        }
    }

    /// What is wrong with comparing arms to the base, as far as their environments are known.
    #[must_use]
    pub fn arms_apart(&self) -> Vec<Warning> {
        let mut known = self.arms.iter().map(|arm| (arm, arm.environment.as_ref()));
        let Some((_, Some(base))) = known.next() else {
            return Vec::new();
        };
        let between = |(arm, environment): (&Arm, Option<&Environment>)| {
            Some(warning::between(base, environment?, &arm.name))
        };
        known.filter_map(between).flatten().collect()
    }

    /// Says so where no published figures stand beside ours.
    pub fn note_what_is_published(&mut self) {
        if self.published.is_empty() {
            self.notes.push(
                "Nobody has published figures for this experiment that we know of, so none stand beside ours."
                    .to_owned(),
            );
        }
    }

    /// What a user types into a shell to repeat it.
    #[must_use]
    pub fn typed(&self) -> String {
        typed(&self.command)
    }

    /// Blocks that count, in order.
    ///
    /// Out go blocks with a dropped run, and those in which other programs used
    /// more of the processor than was agreed before: but the latter only while
    /// enough blocks for a verdict remain, since where nearly all blocks are
    /// contaminated the machine is what it is, and the report says so.
    #[must_use]
    pub fn counted_blocks(&self) -> Vec<usize> {
        let complete = self.complete_blocks();
        let quiet: Vec<usize> = complete
            .iter()
            .copied()
            .filter(|block| !self.is_contaminated(*block))
            .collect();
        if quiet.len() >= crate::measure::stat::plan::FEWEST_BLOCKS {
            quiet
        } else {
            complete
        }
    }

    /// Blocks in which every arm ran and no run was dropped. Arms that ran one after another make no block: each of
    /// their runs counts by itself.
    #[must_use]
    pub fn complete_blocks(&self) -> Vec<usize> {
        let last = self.runs.iter().map(|run| run.block).max();
        (0..last.map_or(0, |last| last + 1))
            .filter(|block| {
                let runs = || self.runs.iter().filter(|run| run.block == *block);
                let needed = match self.plan.interleaved {
                    true => self.arms.len(),
                    false => 1,
                };
                runs().count() >= needed && runs().all(|run| run.dropped.is_none())
            })
            .collect()
    }

    /// Whether others used more of the processor in a block than was agreed.
    #[must_use]
    pub fn is_contaminated(&self, block: usize) -> bool {
        self.runs
            .iter()
            .filter(|run| run.block == block)
            .filter_map(|run| run.values.get(FOREIGN))
            .any(|share| *share > self.plan.foreign_limit)
    }

    /// All counted values of a metric for one arm, in order of time.
    #[must_use]
    pub fn values(&self, metric: &str, arm: usize) -> Vec<f64> {
        let counted = self.counted_blocks();
        self.runs
            .iter()
            .filter(|run| run.arm == arm && counted.contains(&run.block))
            .filter_map(|run| run.values.get(metric).copied())
            .collect()
    }

    /// The median of all values of a name that one arm has, in blocks that count and in others:
    /// for tables that show and do not judge.
    #[must_use]
    pub fn middle(&self, name: &str, arm: usize) -> Option<f64> {
        let values: Vec<f64> = self
            .runs
            .iter()
            .filter(|run| run.arm == arm)
            .filter_map(|run| run.values.get(name).copied())
            .collect();
        (!values.is_empty()).then(|| crate::measure::stat::median(&values))
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("could not write \"{}\"", file.display()))
}

/// Now, RFC 3339 to the second.
#[must_use]
pub fn timestamp() -> String {
    jiff::Timestamp::now()
        .round(jiff::Unit::Second)
        .unwrap_or_else(|_| jiff::Timestamp::now())
        .to_string()
}

/// Seconds since 1970.
#[must_use]
pub fn epoch() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}

/// What a user types into a shell for these words.
#[must_use]
pub fn typed(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

/// A word as a shell takes it for one word, with nothing in it replaced.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::environment::Setting;

    #[test]
    fn a_warning_that_is_not_of_all_arms_says_of_which_it_is() {
        let of = |fsync: &str| {
            let mut environment = Environment::default();
            let setting = |value: &str| Setting {
                value: value.to_owned(),
                unit: None,
                source: "default".to_owned(),
                pending_restart: false,
            };
            let settings = [("fsync", fsync), ("track_io_timing", "off")];
            let settings = settings.map(|(name, value)| (name.to_owned(), setting(value)));
            environment.settings = settings.into();
            environment
        };
        let arm = |name: &str, fsync: &str| Arm {
            name: name.to_owned(),
            description: String::new(),
            environment: Some(of(fsync)),
        };
        let arms = vec![arm("A", "on"), arm("B", "off"), arm("C", "on")];
        let warnings = arms.iter().filter_map(|arm| arm.environment.as_ref());
        let mut experiment = Experiment {
            warnings: warnings.flat_map(warning::of).collect(),
            arms,
            ..Experiment::default()
        };
        let all = experiment.warnings.clone();
        experiment.name_arms_in_warnings();
        let changed = experiment.warnings.iter().filter(|one| !all.contains(one));
        let changed: Vec<&str> = changed.map(|one| one.found.as_str()).collect();
        assert_eq!(changed, ["B: fsync = off"]);
    }

    #[test]
    fn a_shell_takes_each_word_for_one() {
        let words = [
            "pgstrata-lab",
            "--min-effect=5%",
            "a b",
            "$HOME",
            "it's",
            "",
        ];
        let typed: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let script = format!("printf '%s\\n' {}", typed.join(" "));
        let said = std::process::Command::new("sh")
            .args(["-c", &script])
            .output();
        let said = String::from_utf8(said.unwrap().stdout).unwrap();
        assert_eq!(said.lines().collect::<Vec<_>>(), words);
        assert_eq!(typed[..2], words[..2]);
    }
}
