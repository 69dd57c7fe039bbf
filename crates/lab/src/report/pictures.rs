//! The pictures of a report: dots, throughput, latency, resources.

use super::chart::{Line, Plane, Plot, Shade, escape};
use crate::format::{self, Scale, Unit};
use crate::measure::result::{Experiment, Metric, Run};
use crate::measure::sample::{CHARTS, Chart};
use crate::measure::stat::median;
use crate::number::real;

/// Wide and narrow paper: one of them is shown, by the width of the window.
const PAPERS: [(f64, &str); 2] = [(900.0, "wide"), (360.0, "narrow")];
/// Colours of the style sheet: arms beyond them begin again, in another shape or with another stroke.
const COLOURS: usize = 12;
/// Shapes of points.
const SHAPES: usize = 3;

/// The class of an arm's colour, with a stroke of its own where an arm before it has that colour.
pub(super) fn class(arm: usize) -> String {
    let colour = format!("a{}", arm % COLOURS);
    match arm / COLOURS {
        0 => colour,
        round => format!("{colour} d{}", 1 + (round - 1) % 2),
    }
}

/// Arms differ in shape as well as in colour, and two of one colour differ in shape.
fn shape_of(arm: usize) -> usize {
    (arm + arm / COLOURS) % SHAPES
}

pub(super) fn both(draw: impl Fn(f64, &str) -> String) -> String {
    PAPERS
        .iter()
        .map(|(width, class)| draw(*width, class))
        .collect()
}

pub(super) fn plot(plot: &Plot) -> String {
    let drawing = both(|width, class| plot.draw(width, class));
    if drawing.is_empty() {
        return drawing;
    }
    format!(
        "<figure><figcaption>{}</figcaption>{}{drawing}</figure>",
        escape(&plot.title),
        plot.legend()
    )
}

/// What an axis of this metric is called.
pub(super) fn axis_name(metric: &Metric, scale: Scale) -> String {
    let title = &metric.title;
    // Transactions per second have it in their name.
    let is_said = title == "tps" || title.contains("/s") || title.contains("per second");
    let rate = match metric.unit {
        Unit::PerSecond if !is_said => "/s",
        _ => "",
    };
    match scale.suffix.trim() {
        "" => format!("{title}{rate}"),
        suffix => format!("{title}{rate}, {suffix}"),
    }
}

/// A metric's values block by block, arms of a block joined.
#[must_use]
pub fn dots(experiment: &Experiment, metric: &Metric) -> String {
    let all: Vec<(&Run, f64)> = experiment
        .runs
        .iter()
        .filter_map(|run| Some((run, *run.values.get(&metric.name)?)))
        .collect();
    if all.len() < 2 {
        return String::new();
    }
    let draw = |width: f64, class: &str| dots_on((width, class), experiment, metric, &all);
    format!(
        "<figure><figcaption>{} of every run, in order of time</figcaption>{}{}</figure>",
        escape(&metric.title),
        arm_legend(experiment),
        both(draw)
    )
}

fn dots_on(
    (width, class): (f64, &str),
    experiment: &Experiment,
    metric: &Metric,
    all: &[(&Run, f64)],
) -> String {
    let counted = experiment.counted_blocks();
    let largest = all.iter().map(|(_, v)| *v).fold(0.0, f64::max);
    let scale = metric.unit.scale(largest);
    let least = all
        .iter()
        .map(|(_, v)| *v / scale.divisor)
        .fold(f64::INFINITY, f64::min);
    let most = largest / scale.divisor;
    let pad = (most - least).max(most * 0.01) * 0.12;
    let arms = real(experiment.arms.len());
    let blocks = real(experiment.plan.blocks.max(1));
    let plane = Plane::new(
        (width, if width < 500.0 { 220.0 } else { 260.0 }),
        (-0.5, blocks - 0.5),
        ((least - pad).max(0.0), most + pad),
    );
    let mut out = plane.open(&format!("{} of every run, by block", metric.title), class);
    out.push_str(&plane.y_axis(&axis_name(metric, scale)));
    let step = (blocks / (width / 45.0)).ceil().max(1.0);
    let ticks: Vec<(f64, String)> = (0..experiment.plan.blocks)
        .step_by(crate::number::whole(step))
        .map(|b| (real(b), (b + 1).to_string()))
        .collect();
    out.push_str(&plane.x_axis("block", Some(&ticks)));
    for block in 0..experiment.plan.blocks {
        let mut points: Vec<(usize, f64, f64)> = all
            .iter()
            .filter(|(run, _)| run.block == block)
            .map(|(run, v)| (run.arm, place(block, run.arm, arms), v / scale.divisor))
            .collect();
        points.sort_by_key(|p| p.0);
        let faded = if counted.contains(&block) { "" } else { " out" };
        let line: Vec<(f64, f64)> = points.iter().map(|p| (p.1, p.2)).collect();
        out.push_str(&plane.path(&line, "joins"));
        for (arm, x, y) in points {
            out.push_str(&shape(
                &plane,
                (x, y),
                arm,
                faded,
                &format!(
                    "block {}, {}: {}",
                    block + 1,
                    experiment.arms[arm].name,
                    format::value(y * scale.divisor, metric.unit)
                ),
            ));
        }
    }
    out.push_str("</svg>");
    out
}

fn place(block: usize, arm: usize, arms: f64) -> f64 {
    real(block) + (real(arm) - (arms - 1.0) / 2.0) * (0.5 / arms.max(1.0))
}

fn shape(plane: &Plane, at: (f64, f64), arm: usize, faded: &str, title: &str) -> String {
    let (x, y) = (plane.px(at.0), plane.py(at.1));
    let title = format!("<title>{}</title>", escape(title));
    let class = format!("point {}{faded}", class(arm));
    match shape_of(arm) {
        0 => format!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\">{title}</circle>"
        ),
        1 => format!(
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"8.5\" height=\"8.5\">{title}</rect>",
            x - 4.25,
            y - 4.25
        ),
        _ => format!(
            "<path class=\"{class}\" d=\"M{x:.1} {:.1}l5.5 9.5h-11z\">{title}</path>",
            y - 5.5
        ),
    }
}

fn arm_legend(experiment: &Experiment) -> String {
    if experiment.arms.len() < 2 {
        return String::new();
    }
    let keys: String = experiment
        .arms
        .iter()
        .enumerate()
        .map(|(index, arm)| {
            format!(
                "<span class=\"key\"><i class=\"dot a{} k{}\"></i>{}</span>",
                index % COLOURS,
                shape_of(index),
                escape(&arm.name)
            )
        })
        .collect();
    format!("<div class=\"legend\">{keys}</div>")
}

/// Throughput over time: single runs thin, the median of an arm thick.
#[must_use]
pub fn throughput(experiment: &Experiment) -> String {
    let mut lines = Vec::new();
    let mut marks = Vec::new();
    for run in &experiment.runs {
        if run.throughput.len() < 3 {
            return String::new();
        }
        lines.push(Line {
            points: run
                .throughput
                .iter()
                .enumerate()
                .map(|(s, v)| (real(s) + 0.5, *v))
                .collect(),
            class: format!("{} thin", class(run.arm)),
            label: None,
        });
        marks.extend(run.marks.iter().map(|mark| (mark.at, mark.what.clone())));
    }
    for (index, arm) in experiment.arms.iter().enumerate() {
        let runs: Vec<&Run> = experiment.runs.iter().filter(|r| r.arm == index).collect();
        let longest = runs.iter().map(|r| r.throughput.len()).max().unwrap_or(0);
        let points = (0..longest)
            .map(|second| {
                let values: Vec<f64> = runs
                    .iter()
                    .filter_map(|r| r.throughput.get(second).copied())
                    .collect();
                (real(second) + 0.5, median(&values))
            })
            .collect();
        lines.push(Line {
            points,
            class: format!("{} thick", class(index)),
            label: Some(arm.name.clone()),
        });
    }
    lines.reverse();
    plot(&Plot {
        title: "Throughput over time: runs thin, their median thick; marks are checkpoints and autovacuums".to_owned(),
        x_name: "seconds".to_owned(),
        y_name: "transactions per second".to_owned(),
        lines,
        marks,
        ..Plot::default()
    })
}

/// Latency by share of transactions: what one in so many sees.
#[must_use]
pub fn latency(experiment: &Experiment) -> String {
    let largest = experiment
        .runs
        .iter()
        .flat_map(|r| &r.latency)
        .map(|p| p.1)
        .fold(0.0, f64::max);
    if largest <= 0.0 {
        return String::new();
    }
    let scale = crate::format::Unit::Seconds.scale(largest);
    let lines = latency_lines(experiment, scale.divisor);
    let ticks = [
        (0.0, "all"),
        (0.301, "p50"),
        (1.0, "p90"),
        (2.0, "p99"),
        (3.0, "p99.9"),
        (4.0, "p99.99"),
        (5.0, "p99.999"),
    ];
    let most = lines
        .iter()
        .flat_map(|l| &l.points)
        .map(|p| p.0)
        .fold(0.0, f64::max);
    plot(&Plot {
        title: "Latency: the time that so many transactions stay under".to_owned(),
        x_name: "share of transactions".to_owned(),
        y_name: scale.suffix.trim().to_owned(),
        lines,
        x_ticks: Some(
            ticks
                .iter()
                .filter(|t| t.0 <= most)
                .map(|t| (t.0, t.1.to_owned()))
                .collect(),
        ),
        y_log: true,
        ..Plot::default()
    })
}

fn latency_lines(experiment: &Experiment, divisor: f64) -> Vec<Line> {
    let mut lines = Vec::new();
    let place = |q: f64| -(1.0 - q).log10();
    for run in &experiment.runs {
        lines.push(Line {
            points: run
                .latency
                .iter()
                .map(|(q, v)| (place(*q), v / divisor))
                .collect(),
            class: format!("{} thin", class(run.arm)),
            label: None,
        });
    }
    for (index, arm) in experiment.arms.iter().enumerate() {
        let runs: Vec<&Run> = experiment
            .runs
            .iter()
            .filter(|r| r.arm == index && !r.latency.is_empty())
            .collect();
        let shortest = runs.iter().map(|r| r.latency.len()).min().unwrap_or(0);
        let points = (0..shortest)
            .map(|i| {
                let values: Vec<f64> = runs.iter().map(|r| r.latency[i].1).collect();
                (place(runs[0].latency[i].0), median(&values) / divisor)
            })
            .collect();
        lines.push(Line {
            points,
            class: format!("{} thick", class(index)),
            label: Some(arm.name.clone()),
        });
    }
    lines.reverse();
    lines
}

/// The resources of a run of each arm, side by side on common axes.
#[must_use]
pub fn resources(experiment: &Experiment) -> String {
    let mut chosen: Vec<&Run> = Vec::new();
    let mut missing: Vec<&str> = Vec::new();
    for (index, arm) in experiment.arms.iter().enumerate() {
        let mut of_arm = experiment
            .runs
            .iter()
            .filter(|r| r.arm == index && r.samples.as_ref().is_some_and(|s| s.time.len() > 1));
        // The last run of each arm: caches and files are in their usual state.
        match of_arm.next_back() {
            Some(run) => chosen.push(run),
            None => missing.push(&arm.name),
        }
    }
    let charts: String = CHARTS
        .iter()
        .map(|chart| resource(experiment, chart, &chosen))
        .collect();
    if charts.is_empty() {
        return charts;
    }
    let left_out = match missing.is_empty() {
        true => String::new(),
        false => format!(
            " Not drawn, since nothing was sampled: {}.",
            escape(&missing.join("; "))
        ),
    };
    format!("<p class=\"note\">The last run of each arm.{left_out}</p>{charts}")
}

fn resource(experiment: &Experiment, chart: &Chart, runs: &[&Run]) -> String {
    let plots: Vec<Plot> = runs
        .iter()
        .map(|run| resource_plot(chart, run, &experiment.arms[run.arm].name))
        .collect();
    let most = plots
        .iter()
        .map(|p| {
            let mut sums: Vec<f64> = Vec::new();
            for line in &p.lines {
                for (index, point) in line.points.iter().enumerate() {
                    if sums.len() <= index {
                        sums.push(0.0);
                    }
                    sums[index] = if p.stacked {
                        sums[index] + point.1
                    } else {
                        sums[index].max(point.1)
                    };
                }
            }
            sums.into_iter().fold(0.0, f64::max)
        })
        .fold(0.0, f64::max);
    if plots.iter().all(|p| p.lines.is_empty()) {
        return String::new();
    }
    let longest = runs.iter().map(|run| run_length(run)).fold(0.0, f64::max);
    // As wide as they are shown, so that their letters are not enlarged or reduced.
    let width = if plots.len() == 1 { 900.0 } else { 440.0 };
    let drawings: String = plots
        .into_iter()
        .zip(runs)
        .map(|(mut p, run)| {
            p.y_most = Some(most);
            p.x_range = Some((0.0, longest));
            let arm = escape(&experiment.arms[run.arm].name);
            format!(
                "<div><p class=\"note\">{arm}, block {}</p>{}</div>",
                run.block + 1,
                p.draw(width, "half")
            )
        })
        .collect();
    let keys = resource_plot(chart, runs[0], "").legend();
    format!(
        "<figure class=\"resource\"><figcaption>{}</figcaption>{keys}<div class=\"pair\">{drawings}</div></figure>",
        escape(chart.title)
    )
}

/// Seconds from the start to the last thing known of a run.
fn run_length(run: &Run) -> f64 {
    let sampled = run.samples.as_ref().and_then(|s| s.time.last().copied());
    run.phases
        .iter()
        .map(|phase| phase.to)
        .chain(sampled)
        .fold(0.0, f64::max)
}

fn resource_plot(chart: &Chart, run: &Run, arm: &str) -> Plot {
    let samples = run.samples.clone().unwrap_or_default();
    let lines = chart
        .series
        .iter()
        .enumerate()
        .map(|(index, (name, label))| Line {
            points: samples
                .time
                .iter()
                .zip(samples.series.get(*name).into_iter().flatten())
                .map(|(t, v)| (*t, *v))
                .collect(),
            class: format!("r{index}"),
            label: Some((*label).to_owned()),
        })
        .filter(|line| line.points.iter().any(|point| point.1.is_finite()))
        .collect();
    Plot {
        title: format!("{} during a run of {arm}", chart.title),
        x_name: "seconds".to_owned(),
        y_name: chart.unit.to_owned(),
        lines,
        stacked: chart.stacked,
        shades: run
            .phases
            .iter()
            .map(|p| Shade {
                from: p.from,
                to: p.to,
                label: p.name.clone(),
            })
            .collect(),
        marks: run.marks.iter().map(|m| (m.at, m.what.clone())).collect(),
        ..Plot::default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::measure::result::Arm;
    use crate::measure::sample::Samples;
    use crate::measure::stat::verdict::Better;

    /// Blocks of a base that takes a second, and of arms that take as many as `arms` says, a little more or less.
    pub(in crate::report) fn experiment(arms: &[f64]) -> Experiment {
        let arm = |nth: usize| Arm {
            name: format!("arm {nth}"),
            description: String::new(),
            environment: None,
        };
        let run = |block: u8, arm: usize, seconds: f64| Run {
            block: block.into(),
            arm,
            values: [("time".to_owned(), seconds * (1.0 + f64::from(block) * 0.01))].into(),
            ..Run::default()
        };
        let times: Vec<f64> = std::iter::once(1.0).chain(arms.iter().copied()).collect();
        let mut experiment = Experiment {
            arms: (0..times.len()).map(arm).collect(),
            metrics: vec![Metric::new("time", "time", Unit::Seconds, Better::Lower)],
            runs: (0..8_u8)
                .flat_map(|block| {
                    let each = times.iter().enumerate();
                    each.map(move |(arm, seconds)| run(block, arm, *seconds))
                })
                .collect(),
            ..Experiment::default()
        };
        experiment.plan.interleaved = true;
        experiment.plan.margin = 0.01;
        experiment.plan.blocks = 8;
        experiment.plan.foreign_limit = 1.0;
        experiment
    }

    #[test]
    fn every_arm_has_a_picture_of_its_resources_and_one_without_samples_is_named() {
        let mut experiment = experiment(&[1.0; 8]);
        for run in experiment.runs.iter_mut().filter(|run| run.arm != 3) {
            run.samples = Some(Samples {
                time: vec![0.0, 1.0],
                series: [("disk.util".to_owned(), vec![1.0, 2.0])].into(),
                own_cost: 0.0,
            });
        }
        let drawn = resources(&experiment);
        for arm in (0..9).filter(|arm| *arm != 3) {
            assert!(drawn.contains(&format!(">arm {arm}, block 8<")), "{drawn}");
        }
        let left_out = "Not drawn, since nothing was sampled: arm 3.";
        assert!(drawn.contains(left_out), "{drawn}");
        assert!(!resources(&Experiment::default()).contains("arm"));
    }

    #[test]
    fn more_arms_than_colours_are_drawn_and_none_looks_like_another() {
        let style = include_str!("style.css");
        let mut experiment = experiment(&[1.0; 29]);
        for run in &mut experiment.runs {
            run.throughput = vec![1.0; 4];
            run.latency = vec![(0.0, 0.1), (0.5, 0.2)];
        }
        let metric = &experiment.metrics[0];
        let dots = dots(&experiment, metric);
        for drawn in [&dots, &throughput(&experiment), &latency(&experiment)] {
            for kind in ["line", "point", "dot"] {
                let begin = format!("class=\"{kind} a");
                for class in drawn.split(&begin).skip(1) {
                    let colour = class.split([' ', '"']).next().unwrap();
                    let rule = format!(".{kind}.a{colour}{{");
                    assert!(style.contains(&rule), "{rule} is in no style");
                }
            }
        }
        let keys = dots.split("<i class=\"").skip(1);
        let keys: std::collections::BTreeSet<&str> =
            keys.map(|key| key.split('"').next().unwrap()).collect();
        assert_eq!(keys.len(), 30, "{keys:?}");
        let lines: std::collections::BTreeSet<String> = (0..30).map(class).collect();
        assert_eq!(lines.len(), 30);
        for stroke in ["d1", "d2"] {
            assert!(style.contains(&format!(".line.{stroke}{{")), "{stroke}");
        }
    }

    #[test]
    fn a_rate_is_said_to_be_one() {
        let named = |title: &str, unit: Unit, largest: f64| {
            axis_name(
                &Metric::new("", title, unit, Better::Higher),
                unit.scale(largest),
            )
        };
        for (title, unit, largest, expected) in [
            ("segments", Unit::PerSecond, 40.0, "segments/s"),
            ("segments", Unit::PerSecond, 40_000.0, "segments/s, k"),
            ("tps", Unit::PerSecond, 40.0, "tps"),
            ("tps", Unit::PerSecond, 40_000.0, "tps, k"),
            ("each", Unit::Seconds, 2.0, "each, s"),
            ("rows", Unit::Count, 2.0, "rows"),
        ] {
            assert_eq!(named(title, unit, largest), expected);
        }
    }
}
