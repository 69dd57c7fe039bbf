//! What a backup costs those who use the server meanwhile.
//!
//! pgbench sends transactions at a fixed rate, whatever the server does, and every
//! one counts from the moment it was due. Slices without a backup and slices
//! filled with one tool's backups alternate in random order under this one load;
//! compared are the percentiles of the transactions that were due within them.

mod scene;
mod table;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use self::scene::Scene;
use super::shared::Preset;
use super::stage::{Hypothesis, Sketch, Stage};
use super::strata;
use super::tools::ToolArguments;
use crate::contenders::contender::Contender;
use crate::contenders::pgstrata::{Pgstrata, Storage};
use crate::experiments::shared::Shared;
use crate::format::Unit;
use crate::measure::pgbench::options::{Options, Protocol};
use crate::measure::pgbench::rate::Rate;
use crate::measure::programs;
use crate::measure::result::{Arm, Claim, Metric};
use crate::measure::stat::verdict::Better;
use crate::report::output::{print, tell};
use pgstrata_testbed::cluster::Major;

/// Arguments of `impact`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// how large: paper is pgbench scale 100, slices of 60 s; small 20, 15 s; tiny 5, 2 s
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// pgbench scale
    #[arg(long, short = 's')]
    scale: Option<u32>,
    /// transactions per second, or a share of what the server does in a closed loop
    #[arg(long, short = 'R', default_value = "30%")]
    rate: Rate,
    /// clients
    #[arg(long, short = 'c', default_value_t = 8)]
    client: u32,
    /// shortest length of a slice in seconds, longer where the rate gives too few transactions for a p99;
    /// backups follow each other to its end
    #[arg(long, short = 'T')]
    time: Option<u32>,
    /// blocks
    #[arg(long)]
    blocks: Option<usize>,
    /// how changed pages are found; by default all that the server has, tiny: lsn
    #[arg(long, value_delimiter = ',')]
    change_source: Vec<String>,
    /// sources of the extension, for change source tracker
    #[arg(long, value_name = "DIR")]
    extension: Option<PathBuf>,
    /// compare these values of the program's own --impact with its default as well
    #[arg(long, value_delimiter = ',')]
    impact: Vec<String>,
    /// measure what verify and merge of the program cost users as well
    #[arg(long)]
    upkeep: bool,
    #[command(flatten)]
    tools: ToolArguments,
    #[command(flatten)]
    shared: Shared,
}

/// A preset, worked out.
#[derive(Debug, Clone, Copy)]
struct Size {
    scale: u32,
    slice: Duration,
    /// Between slices, for what a backup leaves behind.
    pause: Duration,
    blocks: usize,
}

impl Arguments {
    fn size(&self) -> Size {
        // With two comparisons seven blocks are the fewest that prove anything; with nine, ten.
        let (scale, slice, pause, blocks) = match self.preset {
            Preset::Tiny => (5, 2, 1, 7),
            Preset::Small => (20, 15, 2, 10),
            Preset::Paper => (100, 60, 10, 12),
            Preset::Large => (1000, 60, 10, 12),
        };
        Size {
            scale: self.scale.unwrap_or(scale),
            slice: Duration::from_secs(self.time.unwrap_or(slice).into()),
            pause: Duration::from_secs(pause),
            blocks: self.blocks.unwrap_or(blocks),
        }
    }

    fn sources(&self, major: Major) -> Result<Vec<String>> {
        let all = match self.preset {
            Preset::Tiny => &["lsn"],
            _ => strata::sources(major),
        };
        strata::chosen(&self.change_source, all, major)
    }

    fn load(&self) -> Options {
        Options {
            workload: vec!["simple-update".to_owned()],
            client: self.client,
            protocol: Protocol::Prepared,
            scale: self.size().scale,
            ..Options::default()
        }
    }
}

/// What arms are called that start a backup and stop it, and what comes behind that; arms of backups end so, too.
const BRACKET: &str = "start and stop";
/// The value of a run that says what all transactions together waited longer because of one backup.
const ADDED: &str = "added_waiting";
const FULL: &str = "full";
const INCREMENTAL: &str = "incr";

/// What happens in the slices of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Nothing: the base.
    Nothing,
    /// A checkpoint a second: every tool's backup begins with one.
    Checkpoints,
    /// A backup is started, nothing is read, and it is stopped when this contender's backup would be done; whether
    /// its full one.
    Bracket(usize, bool),
    /// Backups of this contender; whether full ones.
    Backups(usize, bool),
    /// Work in the program's repository, which asks nothing of the server.
    Upkeep(Upkeep),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    /// The newest chain is read.
    Verify,
    /// The newest chain becomes one layer.
    Merge,
}

fn acts(contenders: &[Box<dyn Contender + '_>], checkpoints: bool, upkeep: bool) -> Vec<Act> {
    let backups = strata::acts(contenders).into_iter();
    let mut acts = vec![Act::Nothing];
    if checkpoints {
        acts.extend([
            Act::Checkpoints,
            Act::Bracket(0, true),
            Act::Bracket(0, false),
        ]);
    }
    acts.extend(backups.map(|(contender, full)| Act::Backups(contender, full)));
    if upkeep {
        acts.extend([Act::Upkeep(Upkeep::Verify), Act::Upkeep(Upkeep::Merge)]);
    }
    acts
}

fn arms(acts: &[Act], contenders: &[Box<dyn Contender + '_>]) -> Vec<Arm> {
    let mut backups = strata::arms(contenders).into_iter();
    let mut name = |act: &Act| {
        match act {
        Act::Nothing => Some(("quiet".to_owned(), "no backup runs".to_owned())),
        Act::Checkpoints => Some((
            "checkpoints".to_owned(),
            "no backup, but a checkpoint every second: every backup begins with one".to_owned(),
        )),
        Act::Bracket(_, full) => {
            let kind = if *full { FULL } else { INCREMENTAL };
            Some((
                format!("{BRACKET}, {kind}"),
                format!(
                    "pg_backup_start() and pg_backup_stop() around nothing, as far apart as with pgstrata {kind}"
                ),
            ))
        }
        Act::Backups(..) => backups
            .next()
            .map(|(name, what)| (name, format!("{what}, again and again"))),
        Act::Upkeep(Upkeep::Verify) => Some((
            "pgstrata verify".to_owned(),
            "the newest layers are verified, again and again".to_owned(),
        )),
        Act::Upkeep(Upkeep::Merge) => Some((
            "pgstrata merge".to_owned(),
            "the newest layers are merged; before each time, uncounted, an incremental backup and a pause"
                .to_owned(),
        )),
    }
    };
    acts.iter()
        .filter_map(|act| {
            let (name, description) = name(act)?;
            Some(Arm {
                name,
                description,
                environment: None,
            })
        })
        .collect()
}

/// `impact`.
///
/// # Errors
/// Fails when a server or a tool does, or a restored cluster is not what it should be.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let tools = arguments.tools.find(arguments.preset)?;
    let sources = arguments.sources(tools.programs.major)?;
    let pgbench = programs::find_pgbench(arguments.shared.pgbench.as_deref())?;
    let storage = Storage::Directory;
    let mut contenders = strata::contenders(&sources, &storage, tools.others);
    let archives = strata::is_archived(&storage, tools.others);
    let ours = |source: &str| strata::pgstrata(source, archives, &storage);
    for impact in &arguments.impact {
        contenders.extend(sources.iter().map(|source| -> Box<dyn Contender + '_> {
            Box::new(Pgstrata {
                impact: Some(impact.clone()),
                ..ours(source)
            })
        }));
    }
    let checkpoints = arguments.preset != Preset::Tiny;
    let acts = acts(&contenders, checkpoints, arguments.upkeep);
    let size = arguments.size();
    if arguments.shared.dry_run {
        print(&scene::describe(
            (&size, &arguments.load(), arguments.rate),
            &arms(&acts, &contenders),
            &pgbench,
        ))?;
        return Ok(0);
    }
    let sketch = Sketch {
        kind: "impact",
        title: "What users feel while a backup runs".to_owned(),
        workload: arguments.load().describe(),
        arms: arms(&acts, &contenders),
        metrics: vec![
            Metric::new("p99", "p99", Unit::Seconds, Better::Lower),
            Metric::new("p50", "p50", Unit::Seconds, Better::Lower),
            Metric::new("p90", "p90", Unit::Seconds, Better::Lower),
            Metric::new("p999", "p99.9", Unit::Seconds, Better::Lower),
            Metric::new(ADDED, "waiting that one adds", Unit::Seconds, Better::Lower),
        ],
        blocks: size.blocks,
        state: "reuse",
        hypothesis: Some(hypothesis(&acts, &contenders)),
    };
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    stage.experiment.warnings.extend(tools.left_out());
    let outcome = (|| {
        let given = arguments.extension.as_deref();
        let extension = strata::tracker(&sources, &tools.programs, given)?;
        tell(&format!("loading scale {}", size.scale));
        let scene = Scene::set(
            &tools,
            (&pgbench, arguments.load()),
            extension.as_ref(),
            (&contenders, ours(&sources[0])),
        )?;
        let watch = !arguments.shared.no_samplers;
        scene.measure(&mut stage, &acts, (size, arguments.rate, watch))
    })();
    stage.close(outcome, table::describe)
}

/// What is expected of ours, and beside pgBackRest where that takes part.
fn hypothesis(acts: &[Act], contenders: &[Box<dyn Contender + '_>]) -> Hypothesis {
    let tools: Vec<String> = contenders.iter().map(|it| it.tool()).collect();
    let mut claims = claims(acts, &tools);
    let beside = waiting(acts, &tools);
    let words = match beside.is_empty() {
        true => "users do not feel a backup by pgstrata",
        false => {
            "users do not feel a backup by pgstrata, and it adds at most half the waiting that pgBackRest's adds"
        }
    };
    claims.extend(beside);
    Hypothesis::new(words, claims)
}

/// What "do not feel" means, for what the program does with its own settings; for backups beyond what every backup costs
/// that is started and stopped, where that was measured.
fn claims(acts: &[Act], tools: &[String]) -> Vec<Claim> {
    let bracket = |full: bool| {
        let mut acts = acts.iter();
        acts.position(|act| matches!(act, Act::Bracket(_, of_full) if *of_full == full))
    };
    let ours = acts.iter().enumerate().filter_map(|(arm, act)| match act {
        Act::Backups(contender, full) if tools[*contender] == "pgstrata" => {
            Some((arm, bracket(*full).unwrap_or(0)))
        }
        Act::Upkeep(_) => Some((arm, 0)),
        _ => None,
    });
    ours.flat_map(|(arm, base)| {
        [("p50", 1.05), ("p90", 1.15), ("p99", 1.15)]
            .map(|(metric, most)| Claim::at_most(metric, arm, most).against(base))
    })
    .collect()
}

/// What "half the waiting" means: of each of our backups against pgBackRest's of the same kind; nothing where that takes
/// no part.
fn waiting(acts: &[Act], tools: &[String]) -> Vec<Claim> {
    let theirs = |full: bool| {
        let of = |act: &Act| matches!(act, Act::Backups(contender, of_full) if tools[*contender] == "pgbackrest" && *of_full == full);
        acts.iter().position(of)
    };
    let ours = acts.iter().enumerate().filter_map(|(arm, act)| match act {
        Act::Backups(contender, full) if tools[*contender] == "pgstrata" => {
            Some(Claim::at_most(ADDED, arm, 0.5).against(theirs(*full)?))
        }
        _ => None,
    });
    ours.collect()
}

#[cfg(test)]
mod tests {
    use super::{Act, Storage, acts, arms, strata};

    #[test]
    fn the_base_is_a_server_left_alone_and_every_arm_has_a_name() {
        let sources = ["lsn".to_owned(), "digest".to_owned()];
        let contenders = strata::contenders(&sources, &Storage::Directory, None);
        let acts = acts(&contenders, true, true);
        let names: Vec<String> = arms(&acts, &contenders)
            .into_iter()
            .map(|arm| arm.name)
            .collect();
        assert_eq!(acts[0], Act::Nothing);
        assert_eq!(
            names,
            [
                "quiet",
                "checkpoints",
                "start and stop, full",
                "start and stop, incr",
                "pgstrata full",
                "pgstrata lsn incr",
                "pgstrata digest incr",
                "pgstrata verify",
                "pgstrata merge"
            ]
        );
        assert_eq!(acts.len(), names.len());
        let tools: Vec<String> = contenders.iter().map(|it| it.tool()).collect();
        let claims = super::claims(&acts, &tools);
        let against = |arm: usize| {
            let of_arm = claims.iter().filter(|claim| claim.arm == arm);
            of_arm.map(|claim| claim.against).collect::<Vec<_>>()
        };
        assert_eq!((against(4), against(5)), (vec![2; 3], vec![3; 3]));
        assert_eq!(against(7), vec![0; 3]);
    }

    #[test]
    fn the_waiting_that_a_backup_adds_is_claimed_against_pgbackrest_where_that_takes_part() {
        let acts = [
            Act::Nothing,
            Act::Bracket(0, true),
            Act::Backups(0, true),
            Act::Backups(0, false),
            Act::Backups(1, true),
            Act::Backups(1, false),
        ];
        let claimed = |other: &str| {
            let tools = ["pgstrata", other].map(str::to_owned);
            super::waiting(&acts, &tools)
        };
        let half = |arm, theirs| super::Claim::at_most("added_waiting", arm, 0.5).against(theirs);
        assert_eq!(claimed("pgbackrest"), [half(2, 4), half(3, 5)]);
        assert_eq!(claimed("native"), []);
    }
}
