//! The picture of a sweep: what happens along the values of one setting or load.

use super::chart::{Line, Plot};
use super::pictures::plot;
use crate::format::Unit;
use crate::measure::result::{Experiment, Metric};
use crate::measure::stat::median;

/// The first metric and, where there are any, latencies; nothing for fewer than three values.
#[must_use]
pub fn sweep(experiment: &Experiment) -> String {
    let Some(values) = experiment.plan.sweep.as_ref().filter(|v| v.len() > 2) else {
        return String::new();
    };
    let mut arms: Vec<(usize, f64)> = values.iter().copied().enumerate().collect();
    arms.sort_by(|a, b| a.1.total_cmp(&b.1));
    let latencies: Vec<&Metric> = experiment
        .metrics
        .iter()
        .filter(|metric| metric.name.starts_with('p') && metric.unit == Unit::Seconds)
        .collect();
    let first = experiment
        .metrics
        .first()
        .map_or_else(String::new, |metric| {
            let title = format!("{}: blocks and their median", metric.title);
            along(experiment, &arms, (&title, &[metric]))
        });
    first
        + &along(
            experiment,
            &arms,
            ("Latencies: medians over blocks", &latencies),
        )
}

fn along(
    experiment: &Experiment,
    arms: &[(usize, f64)],
    (title, metrics): (&str, &[&Metric]),
) -> String {
    let [single, ..] = metrics else {
        return String::new();
    };
    let alone = metrics.len() == 1;
    let largest = metrics
        .iter()
        .flat_map(|metric| {
            arms.iter()
                .flat_map(|arm| experiment.values(&metric.name, arm.0))
        })
        .fold(0.0, f64::max);
    let scale = single.unit.scale(largest);
    let mut lines = Vec::new();
    for (index, metric) in metrics.iter().enumerate() {
        let middle = |&(arm, at): &(usize, f64)| {
            let values = experiment.values(&metric.name, arm);
            (!values.is_empty()).then(|| (at, median(&values) / scale.divisor))
        };
        lines.push(Line {
            points: arms.iter().filter_map(middle).collect(),
            class: format!("a{index} thick"),
            label: (!alone).then(|| metric.title.clone()),
        });
    }
    let blocks = if alone {
        experiment.counted_blocks()
    } else {
        Vec::new()
    };
    for block in blocks {
        let value = |&(arm, at): &(usize, f64)| {
            let mut runs = experiment.runs.iter();
            let run = runs.find(|run| run.block == block && run.arm == arm)?;
            Some((at, run.values.get(&single.name)? / scale.divisor))
        };
        lines.push(Line {
            points: arms.iter().filter_map(value).collect(),
            class: "a0 thin".to_owned(),
            label: None,
        });
    }
    let unit = scale.suffix.trim();
    let y_name = match (alone, unit) {
        (true, "") => single.title.clone(),
        (true, unit) => format!("{}, {unit}", single.title),
        (false, unit) => unit.to_owned(),
    };
    // Arms of a load are named "client 4".
    let name = experiment.arms[0].name.rsplit_once(' ');
    let x_name = name.filter(|(_, value)| value.parse::<f64>().is_ok());
    plot(&Plot {
        title: title.to_owned(),
        x_name: x_name.map_or("value", |(name, _)| name).to_owned(),
        y_name,
        lines,
        y_log: !alone,
        ..Plot::default()
    })
}
