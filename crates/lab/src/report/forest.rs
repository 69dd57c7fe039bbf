//! Ratios with their intervals: of every arm to the base, and those on which the conclusion rests, with their bounds.

use super::chart::{escape, ticks};
use super::conclusion;
use super::pictures::{both, class};
use super::rows::Rows;
use crate::format;
use crate::measure::result::{Claim, Experiment};
use crate::measure::stat::paired::Comparison;
use crate::measure::stat::verdict::Verdict;
use crate::report::analysis::{Analysis, ratio_words};

/// Logarithm of the greatest ratio that is drawn: beyond it an arrow says enough.
const FARTHEST: f64 = 4.0;

/// A row of a forest.
struct Bounded<'a> {
    name: String,
    arm: usize,
    compared: Comparison,
    /// What the ratio is claimed to keep.
    claim: Option<&'a Claim>,
}

/// What all rows of a forest share.
struct Framing {
    caption: String,
    /// Name of the axis.
    axis: &'static str,
    /// Ratios within 1 ± this are the same: shaded, where nothing else is.
    margin: Option<f64>,
}

/// Ratios with intervals, one row per arm and metric, the margin shaded.
#[must_use]
pub(super) fn forest(experiment: &Experiment, analysis: &Analysis) -> String {
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
                rows.push(Bounded {
                    name,
                    arm,
                    compared: compared.clone(),
                    claim: None,
                });
            }
        }
    }
    let base = experiment.arms.first().map_or("", |arm| arm.name.as_str());
    let framing = Framing {
        caption: format!("Ratios to {base} with 95 % intervals; the band is “same”"),
        axis: "ratio to the base",
        margin: Some(experiment.plan.margin),
    };
    figure(&rows, &framing)
}

/// The ratios that the hypothesis is about, each with the bound that it is claimed to keep.
#[must_use]
pub(super) fn claims(experiment: &Experiment, analysis: &Analysis) -> String {
    let row = |claim| {
        let compared = conclusion::comparison(experiment, analysis, claim)?;
        // The conclusion does not tell it either.
        let is_told = !matches!(compared.verdict, Verdict::Partial { .. });
        is_told.then(|| Bounded {
            name: conclusion::name(experiment, claim),
            arm: claim.arm,
            compared,
            claim: Some(claim),
        })
    };
    let rows: Vec<Bounded<'_>> = experiment.plan.claims.iter().filter_map(row).collect();
    let framing = Framing {
        caption: "Ratios with 95 % intervals; in the shade the hypothesis is wrong".to_owned(),
        axis: "ratio",
        margin: None,
    };
    figure(&rows, &framing)
}

fn figure(rows: &[Bounded<'_>], framing: &Framing) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut reach = (1.0 + framing.margin.unwrap_or(0.01)).ln() * 2.0;
    for row in rows {
        let ratio = row.compared.ratio;
        let ends = row.compared.interval;
        let ends = ends.map_or([ratio; 2], |interval| [interval.low, interval.high]);
        let bounds = row.claim.map(|claim| [claim.at_least, claim.at_most]);
        let bounds = bounds.into_iter().flatten().flatten();
        let all = ends.into_iter().chain(bounds);
        reach = all.map(|ratio| ratio.ln().abs()).fold(reach, f64::max);
    }
    let reach = reach.min(FARTHEST) * 1.1;
    let drawing = both(|width, class| draw((width, class), rows, framing, reach));
    let legend = match drawing.contains("class=\"point arrow") {
        true => {
            "<div class=\"legend\"><span class=\"key\">◀ ▶ goes on beyond the frame</span></div>"
        }
        false => "",
    };
    format!(
        "<figure><figcaption>{}</figcaption>{legend}{drawing}</figure>",
        escape(&framing.caption)
    )
}

fn draw(
    (width, paper): (f64, &str),
    bounded: &[Bounded<'_>],
    framing: &Framing,
    reach: f64,
) -> String {
    let names: Vec<&str> = bounded.iter().map(|row| row.name.as_str()).collect();
    let rows = Rows::new(width, &names, (-reach, reach));
    let plane = &rows.plane;
    let mut out = plane.open(&framing.caption, paper);
    if let Some(margin) = framing.margin {
        let edge = (1.0 + margin).ln();
        out.push_str(&format!(
            "<rect class=\"margin\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>same within ±{}</title></rect>",
            plane.px(-edge), plane.top(), plane.px(edge) - plane.px(-edge), plane.floor() - plane.top(), format::percent(margin)
        ));
    }
    let ticks: Vec<(f64, String)> = ratio_ticks(reach, width)
        .into_iter()
        .map(|r| (r.ln(), ratio_label(r)))
        .collect();
    out.push_str(&plane.x_axis(framing.axis, Some(&ticks)));
    for (index, row) in bounded.iter().enumerate() {
        if let Some(claim) = row.claim {
            out.push_str(&bounds(&rows, index, claim, reach));
        }
    }
    out.push_str(&rows.across("one", 0.0));
    for (index, row) in bounded.iter().enumerate() {
        out.push_str(&rows.name(index));
        out.push_str(&drawn(&rows, index, row, reach));
    }
    out.push_str("</svg>");
    out
}

/// What the ratio of a row is claimed not to be.
fn bounds(rows: &Rows, index: usize, claim: &Claim, reach: f64) -> String {
    let sides = [
        (claim.at_least, "at least", -reach),
        (claim.at_most, "at most", reach),
    ];
    let shade = |(bound, words, end): (Option<f64>, &str, f64)| {
        let bound = bound?;
        let words = format!("{words} {bound}");
        Some(rows.beyond(index, (bound.ln(), end), &words))
    };
    sides.into_iter().filter_map(shade).collect()
}

/// Interval and point of a row.
fn drawn(rows: &Rows, index: usize, row: &Bounded<'_>, reach: f64) -> String {
    let mut out = String::new();
    let (compared, class) = (&row.compared, class(row.arm));
    let ratio = compared.ratio.ln();
    let (low, high) = compared
        .interval
        .map_or((ratio, ratio), |i| (i.low.ln(), i.high.ln()));
    let words = format!("{} {}", row.name, ratio_words(compared));
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
    out
}

fn ratio_ticks(reach: f64, width: f64) -> Vec<f64> {
    let wanted = if width < 500.0 { 3 } else { 6 };
    let candidates: &[f64] = if reach < 0.15 {
        return ticks((-reach).exp(), reach.exp(), wanted);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::analysis::analyse;
    use crate::report::pictures::tests::experiment;

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
    fn what_is_claimed_of_other_arms_than_the_base_is_drawn_with_its_bounds() {
        let mut experiment = experiment(&[2.0, 3.0]);
        assert_eq!(claims(&experiment, &analyse(&experiment)), "");
        experiment.plan.claims = vec![
            Claim::at_most("time", 2, 1.4).against(1),
            Claim::at_least("time", 1, 0.9),
            // Of nothing that was measured.
            Claim::at_most("p99", 1, 1.0),
        ];
        let drawn = claims(&experiment, &analyse(&experiment));
        // On wide and on narrow paper.
        assert_eq!(drawn.matches("class=\"point ").count(), 4, "{drawn}");
        assert_eq!(drawn.matches("class=\"whisker ").count(), 4, "{drawn}");
        for words in ["time, arm 2 to arm 1", "time, arm 1 to arm 0"] {
            assert!(drawn.contains(words), "no {words} in {drawn}");
        }
        for words in ["at most 1.4<", "at least 0.9<"] {
            // Bound and shade say it, on both papers.
            assert_eq!(drawn.matches(words).count(), 4, "{drawn}");
        }
        // The bound lies between 1 and the ratio of 1.5, and the shade behind it.
        let at = |element: &str, name: &str| -> f64 {
            let from = element.split(&format!(" {name}=\"")).nth(1).unwrap();
            from.split('"').next().unwrap().parse().unwrap()
        };
        let element = |class: &str| {
            let from = drawn.split(&format!("class=\"{class}\"")).nth(1);
            from.unwrap().split('>').next().unwrap().to_owned()
        };
        let (bound, one) = (at(&element("bound"), "x1"), at(&element("one"), "x1"));
        let ratio = at(&element("point a2"), "cx");
        assert!(one < bound && bound < ratio, "{one} {bound} {ratio}");
        let shade = element("beyond");
        assert!((at(&shade, "x") - bound).abs() < 0.11, "{shade}");
        assert!(at(&shade, "width") > ratio - bound, "{shade}");
    }
}
