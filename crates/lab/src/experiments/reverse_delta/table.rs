//! Stage stamps and totals in the published form.

use super::chain::stages;
use crate::format::{self, MISSING, Unit};
use crate::measure::result::{Beside, Experiment, Published, Run, Table};
use crate::measure::stat::paired::Comparison;
use crate::measure::stat::verdict::Better;
use crate::measure::stat::{median, paired};
use crate::report::analysis::{interval_words, ratio_words};

/// How many times faster newest first was, in two tries.
const PUBLISHED: [f64; 2] = [2.54, 2.71];

/// Seconds of the layers of each order, in the order in which they were unpacked.
const STAGES: [[f64; 6]; 2] = [
    [13.0, 208.0, 151.0, 209.0, 201.0, 193.0],
    [248.0, 64.0, 41.0, 7.0, 13.0, 11.0],
];

/// Adds the tables, and the picture.
pub(super) fn describe(experiment: &mut Experiment) {
    experiment.published = vec![beside(experiment)];
    let shares = [0, 1].map(|arm| shares(experiment, arm));
    experiment.published.extend(shares);
    let of =
        |arm: usize| -> Vec<&Run> { experiment.runs.iter().filter(|r| r.arm == arm).collect() };
    let mut tables = vec![totals(experiment)];
    let rows: Vec<Vec<String>> = [(0, "16:15, 17:21"), (1, "6:24, 6:24")]
        .into_iter()
        .map(|(arm, published)| {
            let mut cells = vec![experiment.arms[arm].name.clone()];
            cells.extend(stages(&of(arm)).into_iter().map(|(name, seconds)| {
                format!("{name} {}", format::value(seconds, Unit::Seconds))
            }));
            cells.resize(8, MISSING.to_owned());
            cells.push(published.to_owned());
            cells
        })
        .collect();
    tables.push(Table {
        title: "Stages, in the order they ran; means over runs".to_owned(),
        head: ["", "1st", "2nd", "3rd", "4th", "5th", "6th", "last", "published total, min:s"].map(str::to_owned).into(),
        rows,
        note: Some(
            "Published, seconds: oldest first 13, 208, 151, 209, 201, 193; newest first 248, 64, 41, 7, 13, 11; speed-up 2.54 and 2.71. \
             Its disk was busy all the time at 60 to 80 MiB/s, so it measured the volume."
                .to_owned(),
        ),
    });
    experiment.tables = tables;
}

/// How many times faster an arm is than oldest first.
fn faster(experiment: &Experiment, arm: usize) -> Option<Comparison> {
    let plan = &experiment.plan;
    let (base, ours) = experiment.pairs("time", (0, arm), &experiment.counted_blocks());
    paired::compare(&ours, &base, Better::Higher, plan.margin, plan.seed).filter(|_| arm > 0)
}

fn beside(experiment: &Experiment) -> Published {
    let rows = (1..experiment.arms.len()).map(|arm| {
        let faster = faster(experiment, arm);
        Beside {
            name: experiment.arms[arm].name.clone(),
            published: (arm == 1).then_some(PUBLISHED[0]),
            ours: faster.as_ref().map(|faster| faster.ratio),
            interval: faster.and_then(|faster| faster.interval),
        }
    });
    let again = Beside {
        name: "newest first, their second try".to_owned(),
        published: Some(PUBLISHED[1]),
        ours: None,
        interval: None,
    };
    Published {
        figure: "Times faster than oldest first".to_owned(),
        unit: Unit::Ratio,
        source: "Published: 16:15 against 6:24 minutes; 17:21 against 6:24 in a second try. Its disk was busy all the time."
            .to_owned(),
        rows: rows.chain([again]).collect(),
    }
}

/// Which share of the time each layer takes in one of the orders by layers.
fn shares(experiment: &Experiment, arm: usize) -> Published {
    let runs: Vec<&Run> = experiment.runs.iter().filter(|r| r.arm == arm).collect();
    let ours = stages(&runs);
    let published: f64 = STAGES[arm].iter().sum();
    let measured: f64 = ours.iter().map(|(_, seconds)| seconds).sum();
    let rows = STAGES[arm]
        .iter()
        .zip(&ours)
        .map(|(then, (name, now))| Beside {
            name: name.clone(),
            published: Some(then / published),
            ours: Some(now / measured),
            interval: None,
        });
    Published {
        figure: format!(
            "Share of the time that each layer takes, {}",
            experiment.arms[arm].name
        ),
        unit: Unit::Ratio,
        source: "Published: one try. Ours: means over runs.".to_owned(),
        rows: rows.collect(),
    }
}

fn totals(experiment: &Experiment) -> Table {
    let counted = experiment.counted_blocks();
    let missing = || MISSING.to_owned();
    let rows = (0..experiment.arms.len())
        .map(|arm| {
            let middle = |name: &str, unit: Unit| {
                let values = experiment.values(name, arm);
                if values.is_empty() {
                    missing()
                } else {
                    format::value(median(&values), unit)
                }
            };
            let faster = faster(experiment, arm);
            let (first, second) = experiment.pairs("written", (0, arm), &counted);
            let fewer = if second.is_empty() {
                missing()
            } else {
                format::ratio(median(&first) / median(&second), None)
            };
            vec![
                experiment.arms[arm].name.clone(),
                middle("time", Unit::Seconds),
                faster.as_ref().map_or_else(missing, ratio_words),
                faster.as_ref().map_or_else(missing, interval_words),
                middle("written", Unit::Bytes),
                fewer,
            ]
        })
        .collect();
    Table {
        title: "Restoring base and five deltas".to_owned(),
        head: ["", "time", "times faster than oldest first", "95 % interval", "written", "times fewer bytes"].map(str::to_owned).into(),
        rows,
        note: Some(
            "Both orders by layers are unpacked by the lab itself, from the same repository and with as many threads; the rest are the \
             programs as users run them, started anew; they also write the WAL that recovery needs, 16 MiB or more. Relation files of all orders were equal, and whole restores were opened, checked by \
             pg_amcheck and compared with the source: by pg_dumpall, above scale 50 by sums of its tables."
                .to_owned(),
        ),
    }
}
