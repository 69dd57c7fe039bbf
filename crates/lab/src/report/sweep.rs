//! The picture of a sweep: what happens along the values of one setting or load.

use super::chart::{Line, Plot};
use super::pictures::{axis_name, class, plot};
use crate::format::Unit;
use crate::measure::result::{Experiment, Metric};
use crate::measure::stat::median;

/// Letters of an axis' name that narrow paper has room for.
const LONGEST: usize = 45;

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
        .filter(|metric| is_latency(metric))
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

/// Whether it is a percentile of latencies.
fn is_latency(metric: &Metric) -> bool {
    let is_percentile = |name: &str| {
        name.strip_prefix('p')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    metric.unit == Unit::Seconds && is_percentile(&metric.name)
}

/// What the arms' values are: what stands before them, as in "client 4"; or what the descriptions say, with the unit
/// that stands behind them, as in "32 MB"; or, where neither is known, what runs.
fn x_name(experiment: &Experiment) -> String {
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let names = || experiment.arms.iter().map(|arm| arm.name.as_str());
    let before = names().find_map(|name| name.rsplit_once(' '));
    if let Some((word, _)) = before.filter(|(_, value)| is_number(value)) {
        return word.to_owned();
    }
    // The base may be "off".
    let split = names().filter_map(|name| name.split_once(' '));
    let mut units = split
        .filter(|(value, _)| is_number(value))
        .map(|(_, unit)| unit);
    let unit = units
        .next()
        .filter(|first| units.all(|unit| unit == *first));
    match (described(experiment), unit) {
        (Some(what), Some(unit)) => format!("{what}, {unit}"),
        (Some(what), None) => what.to_owned(),
        (None, Some(unit)) => unit.to_owned(),
        (None, None) => {
            let words = experiment.workload.split([',', ';']).next();
            let short = words.filter(|words| words.chars().count() <= LONGEST);
            short.unwrap_or("setting").to_owned()
        }
    }
}

/// The settings of a description.
fn settings(description: &str) -> impl Iterator<Item = (&str, &str)> {
    description
        .split(", ")
        .filter_map(|part| part.split_once('='))
}

/// The one setting that the descriptions give different values, or what all of them say in other words.
fn described(experiment: &Experiment) -> Option<&str> {
    let descriptions = || experiment.arms.iter().map(|arm| arm.description.as_str());
    let first = descriptions().next()?;
    let differs = |(key, value): &(&str, &str)| {
        let mut others = descriptions().skip(1);
        others.any(|other| !settings(other).any(|(k, v)| k == *key && v == *value))
    };
    let mut differing = settings(first).filter(differs).map(|(key, _)| key);
    match (differing.next(), differing.next()) {
        (Some(key), None) => Some(key.split_once('.').map_or(key, |(_, name)| name)),
        (None, None) if !first.contains('=') && descriptions().all(|other| other == first) => {
            Some(first).filter(|words| !words.is_empty() && *words != "as found")
        }
        _ => None,
    }
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
            class: format!("{} thick", class(index)),
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
    let y_name = match alone {
        true => axis_name(single, scale),
        false => scale.suffix.trim().to_owned(),
    };
    plot(&Plot {
        title: title.to_owned(),
        x_name: x_name(experiment),
        y_name,
        lines,
        y_log: !alone,
        ..Plot::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::result::Arm;
    use crate::measure::stat::verdict::Better;

    #[test]
    fn the_axis_says_what_the_arms_differ_in_and_its_unit() {
        let size = "size of the table";
        let map = |mb: u32| format!("bindir=/x/bin, guc.pgstrata.map_size={mb}, guc.a=pgstrata");
        let (off, small, large) = (map(0), map(32), map(1024));
        for (arms, expected) in [
            (
                [("client 1", "load.client=1"), ("client 8", "load.client=8")],
                "client",
            ),
            (
                [("off", off.as_str()), ("1024 MB", large.as_str())],
                "pgstrata.map_size, MB",
            ),
            (
                [("none", off.as_str()), ("some", small.as_str())],
                "pgstrata.map_size",
            ),
            (
                [("256 MB", size), ("1024 MB", size)],
                "size of the table, MB",
            ),
            (
                [("256 MB", "a table of 256 MB"), ("1024 MB", "of 1024 MB")],
                "MB",
            ),
            (
                [("512 kB", "as found"), ("4 MB", "as found")],
                "pgbench tpcb-like",
            ),
        ] {
            let arm = |(name, description): &(&str, &str)| Arm {
                name: (*name).to_owned(),
                description: (*description).to_owned(),
                environment: None,
            };
            let experiment = Experiment {
                arms: arms.iter().map(arm).collect(),
                workload: "pgbench tpcb-like, 2 clients; scale 2".to_owned(),
                ..Experiment::default()
            };
            assert_eq!(x_name(&experiment), expected);
        }
    }

    #[test]
    fn a_latency_is_a_percentile_in_seconds_and_not_whatever_begins_with_p() {
        let is = |name, unit| is_latency(&Metric::new(name, name, unit, Better::Lower));
        for name in ["p50", "p90", "p99", "p999"] {
            assert!(is(name, Unit::Seconds), "{name}");
            assert!(!is(name, Unit::Bytes), "{name}");
        }
        for name in ["plan", "p", "full", "pages"] {
            assert!(!is(name, Unit::Seconds), "{name}");
        }
    }
}
