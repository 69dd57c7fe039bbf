//! The pictures of a report: forest, dots, throughput, latency, resources.

use super::chart::{Line, Plane, Plot, Shade, escape};
use super::rows::Rows;
use crate::format::{self, Scale, Unit};
use crate::measure::result::{Experiment, Metric, Run};
use crate::measure::sample::{CHARTS, Chart};
use crate::measure::stat::median;
use crate::measure::stat::paired::Comparison;
use crate::number::real;
use crate::report::analysis::Analysis;

/// Wide and narrow paper: one of them is shown, by the width of the window.
const PAPERS: [(f64, &str); 2] = [(900.0, "wide"), (360.0, "narrow")];
/// Logarithm of the greatest ratio that is drawn: beyond it an arrow says enough.
const FARTHEST: f64 = 4.0;

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

/// Ratios with intervals, one row per arm and metric, the margin shaded.
#[must_use]
pub fn forest(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut rows = Vec::new();
    for row in &analysis.rows {
        let title = experiment
            .metrics
            .iter()
            .find(|m| m.name == row.metric)
            .map_or(&row.metric, |m| &m.title);
        for (arm, compared) in row.comparisons.iter().enumerate() {
            if let Some(compared) = compared {
                let name = if experiment.arms.len() > 2 {
                    format!("{title}, {}", experiment.arms[arm].name)
                } else {
                    title.clone()
                };
                rows.push((name, arm, compared));
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let margin = experiment.plan.margin;
    let mut reach = (1.0f64 + margin).ln() * 2.0;
    for (_, _, compared) in &rows {
        let ends = compared
            .interval
            .map_or([compared.ratio; 2], |i| [i.low, i.high]);
        reach = ends.iter().map(|r| r.ln().abs()).fold(reach, f64::max);
    }
    let reach = reach.min(FARTHEST) * 1.1;
    let drawing = both(|width, class| forest_on((width, class), &rows, margin, reach));
    let legend = match drawing.contains("class=\"point arrow") {
        true => {
            "<div class=\"legend\"><span class=\"key\">◀ ▶ goes on beyond the frame</span></div>"
        }
        false => "",
    };
    format!(
        "<figure><figcaption>Ratios to {} with 95 % intervals; the band is “same”</figcaption>{legend}{drawing}</figure>",
        escape(&experiment.arms[0].name)
    )
}

fn forest_on(
    (width, class): (f64, &str),
    compared: &[(String, usize, &Comparison)],
    margin: f64,
    reach: f64,
) -> String {
    let names: Vec<&str> = compared.iter().map(|row| row.0.as_str()).collect();
    let rows = Rows::new(width, &names, (-reach, reach));
    let plane = &rows.plane;
    let mut out = plane.open("ratios to the base with 95 % intervals", class);
    let edge = (1.0 + margin).ln();
    out.push_str(&format!(
            "<rect class=\"margin\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>same within ±{}</title></rect>",
            plane.px(-edge), plane.top(), plane.px(edge) - plane.px(-edge), plane.floor() - plane.top(), format::percent(margin)
        ));
    let ticks: Vec<(f64, String)> = ratio_ticks(reach, width)
        .into_iter()
        .map(|r| (r.ln(), ratio_label(r)))
        .collect();
    out.push_str(&plane.x_axis("ratio to the base", Some(&ticks)));
    out.push_str(&rows.across("one", 0.0));
    for (index, (name, arm, compared)) in compared.iter().enumerate() {
        out.push_str(&rows.name(index));
        let class = format!("a{arm}");
        let ratio = compared.ratio.ln();
        let (low, high) = compared
            .interval
            .map_or((ratio, ratio), |i| (i.low.ln(), i.high.ln()));
        let words = format!("{name} {}", super::analysis::ratio_words(compared));
        if compared.interval.is_some() && low < reach && high > -reach {
            out.push_str(&rows.whisker(index, &class, (low.max(-reach), high.min(reach))));
        }
        if ratio.abs() <= reach {
            out.push_str(&rows.point(index, &class, ratio, &words));
        }
        for end in [-reach, reach] {
            if (end < 0.0 && low < end) || (end > 0.0 && high > end) {
                out.push_str(&rows.arrow(index, &class, end, &words));
            }
        }
    }
    out.push_str("</svg>");
    out
}

fn ratio_ticks(reach: f64, width: f64) -> Vec<f64> {
    let wanted = if width < 500.0 { 3 } else { 6 };
    let candidates: &[f64] = if reach < 0.15 {
        return super::chart::ticks((-reach).exp(), reach.exp(), wanted);
    } else if reach < 0.8 {
        &[0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0]
    } else {
        &[0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
    };
    let inside: Vec<f64> = candidates
        .iter()
        .copied()
        .filter(|r| r.ln().abs() <= reach)
        .collect();
    if width < 500.0 && inside.len() > 5 {
        inside
            .into_iter()
            .filter(|r| [0.05, 0.1, 0.5, 0.7, 1.0, 1.5, 2.0, 10.0, 20.0].contains(r))
            .collect()
    } else {
        inside
    }
}

fn ratio_label(ratio: f64) -> String {
    let text = format!("{ratio:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
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

/// Arms differ in shape as well as in colour.
fn shape(plane: &Plane, at: (f64, f64), arm: usize, faded: &str, title: &str) -> String {
    let (x, y) = (plane.px(at.0), plane.py(at.1));
    let title = format!("<title>{}</title>", escape(title));
    match arm % 3 {
        0 => format!(
            "<circle class=\"point a{arm}{faded}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\">{title}</circle>"
        ),
        1 => format!(
            "<rect class=\"point a{arm}{faded}\" x=\"{:.1}\" y=\"{:.1}\" width=\"8.5\" height=\"8.5\">{title}</rect>",
            x - 4.25,
            y - 4.25
        ),
        _ => format!(
            "<path class=\"point a{arm}{faded}\" d=\"M{x:.1} {:.1}l5.5 9.5h-11z\">{title}</path>",
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
                "<span class=\"key\"><i class=\"dot a{index} k{}\"></i>{}</span>",
                index % 3,
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
            class: format!("a{} thin", run.arm),
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
            class: format!("a{index} thick"),
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
            class: format!("a{} thin", run.arm),
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
            class: format!("a{index} thick"),
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
mod tests {
    use super::*;
    use crate::measure::result::Arm;
    use crate::measure::sample::Samples;
    use crate::measure::stat::verdict::Better;
    use crate::report::analysis::analyse;

    /// Blocks of a base that takes a second, and of arms that take as many as `arms` says, a little more or less.
    fn experiment(arms: &[f64]) -> Experiment {
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
    fn what_ends_at_the_frame_has_an_arrow_and_the_legend_says_why() {
        let drawn = |arms: &[f64]| {
            let experiment = experiment(arms);
            forest(&experiment, &analyse(&experiment))
        };
        let near = drawn(&[70.0]);
        assert!(!near.contains("point arrow") && !near.contains("beyond the frame"));
        assert!(near.contains("class=\"point a1\""), "{near}");
        let far = drawn(&[1000.0, 2.0]);
        // On wide and on narrow paper; where the point would be there is no place.
        assert_eq!(far.matches("class=\"point arrow a1\"").count(), 2, "{far}");
        assert_eq!(far.matches("class=\"point a1\"").count(), 0, "{far}");
        assert_eq!(far.matches("class=\"point a2\"").count(), 2, "{far}");
        assert!(far.contains("beyond the frame"), "{far}");
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
