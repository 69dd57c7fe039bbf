//! The blocks as tables: medians, spread, and ratios to the limits.

use std::collections::BTreeMap;

use super::profile::Profile;
use crate::format::MISSING;
use crate::measure::result::{Experiment, Table};
use crate::measure::stat::verdict::Better;
use crate::measure::stat::{median, paired};
use crate::report::analysis::{interval_words, ratio_words};

/// A full backup.
pub(super) const FULL: &str = "full";
/// An incremental one.
pub(super) const INCREMENTAL: &str = "incremental";
/// A restore of the newest.
pub(super) const RESTORE: &str = "restore";
/// A restore of a full backup of the state that the chain ends in.
pub(super) const RESTORE_OF_ONE: &str = "restore of one";

/// Something that is measured, and what it is compared with.
pub(super) struct Act {
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    /// The same tool's, or that of the limit whose name begins so.
    against: Against,
}

impl Act {
    /// How the name of the limit begins that it is compared with.
    pub(super) fn limit(&self) -> Option<&'static str> {
        match self.against {
            Against::Limit(name) => Some(name),
            Against::Own(_) => None,
        }
    }
}

enum Against {
    Own(&'static str),
    Limit(&'static str),
}

/// In the order of the tables.
pub(super) const ACTS: [Act; 4] = [
    Act {
        key: FULL,
        title: "full backup",
        against: Against::Limit("tar | zstd -1"),
    },
    Act {
        key: INCREMENTAL,
        title: "incremental backup",
        against: Against::Own(FULL),
    },
    Act {
        key: RESTORE,
        title: "restore of the newest backup",
        against: Against::Limit("cp -r + sync"),
    },
    Act {
        key: RESTORE_OF_ONE,
        title: "restore of one full backup of the same state",
        against: Against::Own(RESTORE),
    },
];

/// One figure of every time that a run did this act.
pub(super) fn figures<'a>(
    values: &'a BTreeMap<String, f64>,
    act: &'a str,
    figure: &'a str,
) -> impl Iterator<Item = f64> + 'a {
    let wanted = move |name: &str| {
        let rest = name.strip_prefix(act)?.strip_prefix('.')?;
        rest.split_once('.').map(|(_nth, last)| last == figure)
    };
    values
        .iter()
        .filter(move |(name, _)| wanted(name) == Some(true))
        .map(|(_, value)| *value)
}

/// Adds the tables; the arms from `contenders` on are limits.
pub(super) fn describe(experiment: &mut Experiment, contenders: usize, profiles: &[Profile]) {
    let mut tables: Vec<Table> = ACTS
        .iter()
        .filter_map(|act| costs(experiment, act, contenders))
        .collect();
    tables.extend(phases(experiment));
    if !profiles.is_empty() {
        tables.push(kinds_of_work(&experiment.arms[0].name, profiles));
    }
    experiment.tables = tables;
}

/// What one act cost, fastest first.
fn costs(experiment: &Experiment, act: &Act, contenders: usize) -> Option<Table> {
    let mut rows = Vec::new();
    for arm in 0..experiment.arms.len() {
        let column = |figure: &str| -> Vec<f64> {
            let runs = experiment.runs.iter().filter(|run| run.arm == arm);
            runs.flat_map(|run| figures(&run.values, act.key, figure))
                .collect()
        };
        let seconds = column("time");
        if seconds.is_empty() {
            continue;
        }
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let megabytes = |bytes: f64| format!("{:.0}", bytes / 1e6);
        let middle = |figure: &str| megabytes(median(&column(figure)));
        let cells = vec![
            experiment.arms[arm].name.clone(),
            format!("{:.2}", median(&seconds)),
            format!("({least:.2} – {:.2})", most(&seconds)),
            ratio(experiment, act, arm, contenders),
            format!("{:.2}", median(&column("cpu"))),
            middle("read"),
            middle("written"),
            middle("stored"),
            megabytes(most(&column("memory"))),
        ];
        rows.push((median(&seconds), cells));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let against = match act.against {
        Against::Limit(name) => name,
        Against::Own(FULL) => "the same tool's full backup",
        Against::Own(_) => "the same tool's chain",
    };
    (!rows.is_empty()).then(|| Table {
        title: format!("{}, against {against}", act.title),
        head: [
            "",
            "s",
            "(range)",
            "ratio",
            "CPU s",
            "read MB",
            "wrote MB",
            "stored MB",
            "peak MB",
        ]
        .map(str::to_owned)
        .into(),
        rows: rows.into_iter().map(|(_, cells)| cells).collect(),
        note: None,
    })
}

/// The ratio to the act's yardstick, block by block, with its interval where there are blocks enough.
fn ratio(experiment: &Experiment, act: &Act, arm: usize, contenders: usize) -> String {
    let yardstick = match act.against {
        Against::Own(other) => Some((other, arm)),
        Against::Limit(name) => {
            let limits = experiment.arms.iter().enumerate().skip(contenders);
            let mut named = limits.filter(|(_, limit)| limit.name.starts_with(name));
            named.next().map(|(limit, _)| (act.key, limit))
        }
    };
    let Some((other, of)) = yardstick else {
        return MISSING.to_owned();
    };
    let value = |block: usize, arm: usize, name: &str| {
        let mut runs = experiment.runs.iter();
        let run = runs.find(|run| run.block == block && run.arm == arm)?;
        run.values.get(name).copied()
    };
    let (base, ours): (Vec<f64>, Vec<f64>) = experiment
        .counted_blocks()
        .into_iter()
        .filter_map(|block| Some((value(block, of, other)?, value(block, arm, act.key)?)))
        .unzip();
    let plan = &experiment.plan;
    match paired::compare(&base, &ours, Better::Lower, plan.margin, plan.seed) {
        None => MISSING.to_owned(),
        Some(found) if found.interval.is_none() || (other, of) == (act.key, arm) => {
            ratio_words(&found)
        }
        Some(found) => format!("{} ({})", ratio_words(&found), interval_words(&found)),
    }
}

/// Where the time of each tool's backups goes that says so: medians of its phases.
fn phases(experiment: &Experiment) -> Option<Table> {
    let mut rows = Vec::new();
    for (arm, name) in experiment
        .arms
        .iter()
        .enumerate()
        .map(|(i, a)| (i, &a.name))
    {
        for act in &ACTS {
            let mut found: Vec<(&str, Vec<f64>)> = Vec::new();
            let runs = experiment.runs.iter().filter(|run| run.arm == arm);
            for phase in runs.flat_map(|run| &run.phases) {
                let Some(("", name)) = phase
                    .name
                    .strip_prefix(act.key)
                    .and_then(|rest| rest.split_once(": "))
                else {
                    continue;
                };
                let seconds = phase.to - phase.from;
                match found.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, all)) => all.push(seconds),
                    None => found.push((name, vec![seconds])),
                }
            }
            if !found.is_empty() {
                let medians = found
                    .iter()
                    .map(|(name, all)| format!("{name} {:.0}", median(all) * 1000.0));
                let medians = medians.collect::<Vec<_>>().join(", ");
                rows.push(vec![name.clone(), act.key.to_owned(), medians]);
            }
        }
    }
    (!rows.is_empty()).then(|| Table {
        title: "Where the time of a backup goes, ms".to_owned(),
        head: ["", "", "medians"].map(str::to_owned).into(),
        rows,
        note: None,
    })
}

/// Where the time on cores went, and how much of the wall-clock time that was.
fn kinds_of_work(name: &str, profiles: &[Profile]) -> Table {
    let row = |profile: &Profile| {
        let shares = profile.shares.iter();
        let shares = shares.map(|(kind, share)| format!("{kind} {:.0} %", share * 100.0));
        vec![
            profile.name.clone(),
            format!("{:.2}", profile.core_seconds),
            format!("{:.2}", profile.wall_seconds),
            shares.collect::<Vec<_>>().join(", "),
        ]
    };
    Table {
        title: format!("Time on the cores of {name}"),
        head: ["", "s on cores", "s", "shares"].map(str::to_owned).into(),
        rows: profiles.iter().map(row).collect(),
        note: profiles
            .first()
            .and_then(|profile| profile.picture.parent())
            .map(|directory| format!("Flame graphs are in {}.", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::result::{Arm, Phase, Run};

    /// Two blocks of a tool, `tar` and `cp`; the tool's increments twice a block.
    fn experiment() -> Experiment {
        let arms = ["tool", "tar | zstd -1 -T2", "cp -r + sync"];
        let acts: [&[(&str, f64)]; 3] = [
            &[
                ("full.0", 3.0),
                ("incremental.1", 0.5),
                ("incremental.2", 1.0),
                ("restore.0", 2.0),
                ("restore of one.0", 1.5),
            ],
            &[("full.0", 1.5)],
            &[("restore.0", 4.0)],
        ];
        let run = |block: usize, arm: usize| {
            let factor = if block == 0 { 1.0 } else { 1.5 };
            let mut values = BTreeMap::new();
            for (name, seconds) in acts[arm] {
                for figure in ["cpu", "read", "written", "stored", "memory"] {
                    values.insert(format!("{name}.{figure}"), 5e6);
                }
                values.insert(format!("{name}.time"), seconds * factor);
                let (act, _) = name.split_once('.').unwrap();
                let times: Vec<f64> = figures(&values, act, "time").collect();
                values.insert(act.to_owned(), median(&times));
            }
            let phase = |name: &str, from: f64, to: f64| Phase {
                name: name.to_owned(),
                from,
                to,
            };
            Run {
                block,
                arm,
                values,
                phases: match arm {
                    0 => vec![
                        phase("full: checkpoint", 0.0, 0.02 * factor),
                        phase("full: copy", 1.0, 1.1),
                    ],
                    _ => Vec::new(),
                },
                ..Run::default()
            }
        };
        let arm = |name: &str| Arm {
            name: name.to_owned(),
            description: String::new(),
            environment: None,
        };
        Experiment {
            arms: arms.map(arm).into(),
            runs: (0..6).map(|i| run(i / 3, i % 3)).collect(),
            ..Experiment::default()
        }
    }

    #[test]
    fn rows_show_medians_ranges_and_ratios() {
        let mut experiment = experiment();
        describe(&mut experiment, 1, &[]);
        let row = |table: usize, row: usize| experiment.tables[table].rows[row][..4].join(" ");
        assert_eq!(row(0, 0), "tar | zstd -1 -T2 1.88 (1.50 – 2.25) 1.000");
        assert_eq!(row(0, 1), "tool 3.75 (3.00 – 4.50) 2.000");
        // Both increments of a block, and their median by the full backup of the block.
        assert_eq!(row(1, 0), "tool 0.88 (0.50 – 1.50) 0.250");
        assert_eq!(row(2, 0), "tool 2.50 (2.00 – 3.00) 0.500");
        assert_eq!(row(3, 0), "tool 1.88 (1.50 – 2.25) 0.750");
    }

    #[test]
    fn phases_are_medians_in_the_order_of_the_tool() {
        let table = phases(&experiment()).unwrap();
        assert_eq!(table.rows, [["tool", "full", "checkpoint 25, copy 100"]]);
    }
}
