//! Axes, lines and marks as SVG: small, static, without a script.
//!
//! Colours are classes, so that the page's style decides them for light and
//! dark. Every chart has a title for screen readers; colours never carry
//! meaning alone.

use super::band;
use crate::number::real;

/// Width of a letter of a tick's label.
const TICK_LETTER: f64 = 6.5;

/// A line of points.
#[derive(Debug, Clone)]
pub struct Line {
    /// Points; breaks where a value is no number.
    pub points: Vec<(f64, f64)>,
    /// Class: `a0`, `a1`, … for arms, with `thin` for single runs.
    pub class: String,
    /// Name in the legend; none for a line that needs none.
    pub label: Option<String>,
}

/// A shaded stretch of the horizontal axis.
#[derive(Debug, Clone)]
pub struct Shade {
    /// From.
    pub from: f64,
    /// To.
    pub to: f64,
    /// Name, written above.
    pub label: String,
}

/// What a chart shows.
#[derive(Debug, Clone, Default)]
pub struct Plot {
    /// For screen readers and the caption.
    pub title: String,
    /// Name of the horizontal axis.
    pub x_name: String,
    /// Name of the vertical axis.
    pub y_name: String,
    /// Lines.
    pub lines: Vec<Line>,
    /// Whether lines are stacked areas.
    pub stacked: bool,
    /// Shades.
    pub shades: Vec<Shade>,
    /// Vertical marks.
    pub marks: Vec<(f64, String)>,
    /// Upper end of the vertical axis, to share it between charts.
    pub y_most: Option<f64>,
    /// Whether the vertical axis begins at the smallest value, not at zero.
    pub y_free: bool,
    /// Range of the horizontal axis, to share it between charts.
    pub x_range: Option<(f64, f64)>,
    /// Horizontal ticks given instead of chosen.
    pub x_ticks: Option<Vec<(f64, String)>>,
    /// Logarithmic vertical axis.
    pub y_log: bool,
}

/// Text as XML.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Round numbers between two ends, about `wanted` of them.
#[must_use]
pub fn ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return vec![low];
    }
    let rough = span / real(wanted.max(1));
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(power * 10.0);
    let mut at = (low / step).ceil() * step;
    let mut found = Vec::new();
    while at <= high + step * 1e-6 {
        found.push(if at.abs() < step * 1e-6 { 0.0 } else { at });
        at += step;
    }
    found
}

/// A tick's label: as many digits as neighbours need.
#[must_use]
pub fn tick_label(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let (divisor, suffix) = match value.abs().max(step) {
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let decimals = (-(step / divisor).log10().floor()).clamp(0.0, 6.0);
    let mut text = format!("{:.*}", crate::number::whole(decimals) + 1, value / divisor);
    while text.contains('.') && (text.ends_with('0') || text.ends_with('.')) {
        text.pop();
    }
    text + suffix
}

/// The plane of a chart: where values fall on paper.
#[derive(Debug, Clone, Copy)]
pub struct Plane {
    /// Width of the paper.
    pub width: f64,
    /// Height of the paper.
    pub height: f64,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    x: (f64, f64),
    y: (f64, f64),
    y_log: bool,
}

impl Plane {
    /// A plane for values in these ranges.
    #[must_use]
    pub fn new(size: (f64, f64), x: (f64, f64), y: (f64, f64)) -> Self {
        let widen = |(low, high): (f64, f64)| {
            if high > low {
                (low, high)
            } else {
                (low, low + 1.0)
            }
        };
        Self {
            width: size.0,
            height: size.1,
            left: 52.0,
            top: 26.0,
            right: 12.0,
            bottom: 34.0,
            x: widen(x),
            y: widen(y),
            y_log: false,
        }
    }

    /// With another margin at the left, for long names.
    #[must_use]
    pub fn with_left(mut self, left: f64) -> Self {
        self.left = left;
        self
    }

    /// Horizontal place of a value.
    #[must_use]
    pub fn px(&self, x: f64) -> f64 {
        let share = ((x - self.x.0) / (self.x.1 - self.x.0)).clamp(0.0, 1.0);
        self.left + share * (self.width - self.left - self.right)
    }

    /// Vertical place of a value.
    #[must_use]
    pub fn py(&self, y: f64) -> f64 {
        let share = if self.y_log {
            let (low, high) = (self.y.0.ln(), self.y.1.ln());
            (y.max(self.y.0).ln() - low) / (high - low)
        } else {
            (y - self.y.0) / (self.y.1 - self.y.0)
        };
        self.height
            - self.bottom
            - share.clamp(-0.05, 1.05) * (self.height - self.top - self.bottom)
    }

    /// Top of the drawing area.
    #[must_use]
    pub fn top(&self) -> f64 {
        self.top
    }

    /// Bottom of the drawing area.
    #[must_use]
    pub fn floor(&self) -> f64 {
        self.height - self.bottom
    }

    /// Begins the SVG.
    #[must_use]
    pub fn open(&self, title: &str, class: &str) -> String {
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"{}\">",
            self.width,
            self.height,
            escape(title)
        )
    }

    /// Horizontal lines with labels.
    #[must_use]
    pub fn y_axis(&self, name: &str) -> String {
        let mut out = String::new();
        let ticks = if self.y_log {
            log_ticks(self.y.0, self.y.1)
        } else {
            ticks(self.y.0, self.y.1, 4)
        };
        let step = ticks
            .windows(2)
            .map(|w| w[1] - w[0])
            .fold(f64::INFINITY, f64::min);
        for tick in ticks {
            let y = self.py(tick);
            let step = if step.is_finite() && !self.y_log {
                step
            } else {
                tick
            };
            out.push_str(&format!(
                "<line class=\"grid\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                self.left,
                self.width - self.right,
                self.left - 6.0,
                y + 3.5,
                tick_label(tick, step)
            ));
        }
        out.push_str(&format!(
            "<text class=\"axis\" x=\"{:.1}\" y=\"14\" text-anchor=\"start\">{}</text>",
            2.0,
            escape(name)
        ));
        out
    }

    /// Labels along the bottom.
    #[must_use]
    pub fn x_axis(&self, name: &str, given: Option<&[(f64, String)]>) -> String {
        let wanted = crate::number::whole((self.width - self.left) / 90.0).max(2);
        let chosen: Vec<(f64, String)> = given.map_or_else(
            || {
                let ticks = ticks(self.x.0, self.x.1, wanted);
                let step = ticks.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max);
                let step = if step > 0.0 { step } else { 1.0 };
                ticks.iter().map(|t| (*t, tick_label(*t, step))).collect()
            },
            <[(f64, String)]>::to_vec,
        );
        let mut out = format!(
            "<line class=\"base\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\"/>",
            self.left,
            self.width - self.right,
            self.floor()
        );
        for (tick, label) in chosen {
            // A label in the middle of the first or of the last tick would leave the paper.
            let half = real(label.chars().count()) * TICK_LETTER / 2.0;
            let (x, anchor) = match self.px(tick) {
                at if at + half > self.width => (self.width - 1.0, "end"),
                at if at - half < 0.0 => (1.0, "start"),
                at => (at, "middle"),
            };
            out.push_str(&format!(
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                self.floor() + 14.0,
                escape(&label)
            ));
        }
        out.push_str(&format!(
            "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            self.width - self.right,
            self.height - 4.0,
            escape(name)
        ));
        out
    }

    /// A path through points; breaks at what is no number.
    #[must_use]
    pub fn path(&self, points: &[(f64, f64)], class: &str) -> String {
        let mut data = String::new();
        let mut pen_up = true;
        for (x, y) in points {
            if !x.is_finite() || !y.is_finite() {
                pen_up = true;
                continue;
            }
            let command = if pen_up { 'M' } else { 'L' };
            data.push_str(&format!("{command}{:.1} {:.1}", self.px(*x), self.py(*y)));
            pen_up = false;
        }
        format!("<path class=\"line {class}\" d=\"{data}\"/>")
    }
}

/// Powers of ten, and 2 and 5 times where there are few.
#[must_use]
pub fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let mut found = Vec::new();
    let mut power = 10f64.powf(low.log10().floor());
    let factors: &[f64] = if high / low > 1e3 {
        &[1.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    while power <= high {
        found.extend(
            factors
                .iter()
                .map(|f| f * power)
                .filter(|t| *t >= low && *t <= high),
        );
        power *= 10.0;
    }
    found
}

impl Plot {
    /// Draws the plot on paper of this width.
    #[must_use]
    pub fn draw(&self, width: f64, class: &str) -> String {
        let lines = if self.stacked {
            self.stack()
        } else {
            self.lines.clone()
        };
        let all = || {
            lines
                .iter()
                .flat_map(|l| &l.points)
                .filter(|p| p.1.is_finite())
        };
        let x = all().fold((f64::INFINITY, f64::NEG_INFINITY), |r, p| {
            (r.0.min(p.0), r.1.max(p.0))
        });
        let y = all().fold((f64::INFINITY, f64::NEG_INFINITY), |r, p| {
            (r.0.min(p.1), r.1.max(p.1))
        });
        if !x.0.is_finite() {
            return String::new();
        }
        let x = self.x_range.unwrap_or(x);
        let most = self.y_most.unwrap_or(y.1);
        let y = match (self.y_log, self.y_free) {
            (true, _) => (y.0.max(1e-9) * 0.8, most * 1.3),
            (false, true) => (y.0 - (most - y.0) * 0.1, most + (most - y.0) * 0.1),
            (false, false) => (0.0, 1.06 * if most > 0.0 { most } else { 1.0 }),
        };
        let height = if width < 500.0 { 200.0 } else { 260.0 };
        let mut plane = Plane::new((width, height), x, y);
        plane.y_log = self.y_log;
        let names = band::names(&self.shades, |x| plane.px(x), width);
        let room = real(band::lines(&names)) * band::LINE;
        plane.height += room;
        plane.top += room;
        let mut out = plane.open(&self.title, class);
        out.push_str(&self.draw_shades(&plane));
        out.push_str(&band::draw(&names, plane.top));
        out.push_str(&plane.y_axis(&self.y_name));
        out.push_str(&plane.x_axis(&self.x_name, self.x_ticks.as_deref()));
        for (at, what) in &self.marks {
            let x = plane.px(*at);
            out.push_str(&format!(
                "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"><title>{}</title></line>",
                plane.top(),
                plane.floor(),
                escape(what)
            ));
        }
        for (index, line) in lines.iter().enumerate().rev() {
            if self.stacked {
                out.push_str(&area(&plane, &lines, index));
            } else {
                out.push_str(&plane.path(&line.points, &line.class));
            }
        }
        out.push_str("</svg>");
        out
    }

    fn draw_shades(&self, plane: &Plane) -> String {
        let mut out = String::new();
        for (index, shade) in self.shades.iter().enumerate() {
            let (from, to) = (plane.px(shade.from), plane.px(shade.to));
            out.push_str(&format!(
                "<rect class=\"shade s{}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
                index % 2,
                plane.top(),
                (to - from).max(0.5),
                plane.floor() - plane.top(),
                escape(&shade.label)
            ));
        }
        out
    }

    /// Each line raised by those before it; lines without a point are left out.
    fn stack(&self) -> Vec<Line> {
        let mut stacked = self.lines.clone();
        stacked.retain(|line| !line.points.is_empty());
        for index in 1..stacked.len() {
            let (below, rest) = stacked.split_at_mut(index);
            for (point, base) in rest[0].points.iter_mut().zip(&below[index - 1].points) {
                point.1 += base.1;
            }
        }
        stacked
    }

    /// The legend as HTML.
    #[must_use]
    pub fn legend(&self) -> String {
        let mut out = String::new();
        for line in &self.lines {
            if let Some(label) = &line.label {
                out.push_str(&format!(
                    "<span class=\"key\"><i class=\"dot {}\"></i>{}</span>",
                    line.class,
                    escape(label)
                ));
            }
        }
        if out.is_empty() {
            out
        } else {
            format!("<div class=\"legend\">{out}</div>")
        }
    }
}

/// The area between a stacked line and the one below it, in as many pieces as
/// the line has; nothing where it has no value.
fn area(plane: &Plane, lines: &[Line], index: usize) -> String {
    let below = index.checked_sub(1).map(|below| &lines[below].points);
    let mut data = String::new();
    let mut piece: Vec<(f64, f64, f64)> = Vec::new();
    for (place, (x, high)) in lines[index].points.iter().enumerate() {
        let low = below.map_or(0.0, |points| points.get(place).map_or(f64::NAN, |p| p.1));
        if x.is_finite() && high.is_finite() && low.is_finite() {
            piece.push((*x, *high, low));
        } else {
            data.push_str(&outline(plane, &piece));
            piece.clear();
        }
    }
    data.push_str(&outline(plane, &piece));
    if data.is_empty() {
        return data;
    }
    format!("<path class=\"area {}\" d=\"{data}\"/>", lines[index].class)
}

/// Along the upper values of (x, upper, lower) and back along the lower ones.
fn outline(plane: &Plane, piece: &[(f64, f64, f64)]) -> String {
    let there = piece.iter().map(|(x, high, _)| (*x, *high));
    let back = piece.iter().rev().map(|(x, _, low)| (*x, *low));
    let mut data = String::new();
    for (x, y) in there.chain(back) {
        let command = if data.is_empty() { 'M' } else { 'L' };
        data.push_str(&format!("{command}{:.1} {:.1}", plane.px(x), plane.py(y)));
    }
    if !data.is_empty() {
        data.push('Z');
    }
    data
}

#[cfg(test)]
mod tests {
    use super::{Line, Plane, Plot, Shade, TICK_LETTER};

    fn stacked(lines: &[&[f64]]) -> String {
        let line = |values: &&[f64]| Line {
            points: (0u32..)
                .map(f64::from)
                .zip(values.iter().copied())
                .collect(),
            class: "r0".to_owned(),
            label: None,
        };
        let plot = Plot {
            lines: lines.iter().map(line).collect(),
            stacked: true,
            ..Plot::default()
        };
        plot.draw(400.0, "half")
    }

    #[test]
    fn an_area_begins_anew_after_a_gap_and_never_without_a_point() {
        let gap = [1.0, 2.0, f64::NAN, 3.0, 4.0];
        for (lines, areas, pieces) in [
            (&[&gap[..], &[1.0; 5]][..], 2, 4),
            (&[&[1.0; 5], &[]], 1, 1),
            (&[&[], &[1.0; 5]], 1, 1),
            (&[&[f64::NAN; 5], &[f64::NAN; 5]], 0, 0),
        ] {
            let drawn = stacked(lines);
            assert_eq!(drawn.matches("class=\"area").count(), areas, "{drawn}");
            assert_eq!(drawn.matches('Z').count(), pieces, "{drawn}");
            assert!(!drawn.contains("d=\"Z"), "{drawn}");
            assert!(!drawn.contains("NaN"), "{drawn}");
        }
    }

    #[test]
    fn the_labels_of_the_first_and_the_last_tick_stay_on_the_paper() {
        // On narrow paper names stand above rows, and little is left beside them.
        let plane = Plane::new((360.0, 100.0), (0.0, 1.0), (0.0, 1.0)).with_left(12.0);
        let ticks = [0.0, 0.5, 1.0].map(|at| (at, "1000 ms".to_owned()));
        let drawn = plane.x_axis("", Some(&ticks));
        let mut labels = 0;
        for text in drawn.split("<text class=\"tick\"").skip(1) {
            let of = |name: &str| {
                let from = text.split(&format!(" {name}=\"")).nth(1).unwrap();
                from.split('"').next().unwrap()
            };
            let (x, length) = (of("x").parse::<f64>().unwrap(), 7.0 * TICK_LETTER);
            let from = match of("text-anchor") {
                "start" => x,
                "middle" => x - length / 2.0,
                _ => x - length,
            };
            assert!(from >= 0.0 && from + length <= 360.0, "{text}");
            labels += 1;
        }
        assert_eq!(labels, 3);
    }

    #[test]
    fn names_of_stages_stand_above_what_is_drawn() {
        let shade = |label: &str, from: f64, to: f64| Shade {
            label: label.to_owned(),
            from,
            to,
        };
        let plot = Plot {
            lines: vec![Line {
                points: vec![(0.0, 100.0), (10.0, 100.0)],
                class: "r0".to_owned(),
                label: None,
            }],
            shades: vec![shade("delta 1", 0.0, 9.9), shade("sync", 9.9, 10.0)],
            x_range: Some((0.0, 10.0)),
            ..Plot::default()
        };
        let drawn = plot.draw(440.0, "half");
        let at = |element: &str, name: &str| -> f64 {
            let from = element.split(&format!(" {name}=\"")).nth(1).unwrap();
            from.split('"').next().unwrap().parse().unwrap()
        };
        let names: Vec<&str> = drawn.split("<text class=\"shadename\"").skip(1).collect();
        assert_eq!(names.len(), 2, "{drawn}");
        let grid = drawn.split("<line class=\"grid\"").skip(1);
        let highest = grid.map(|line| at(line, "y1")).fold(f64::MAX, f64::min);
        for name in names {
            // Nor is the axis' name in the way, which stands at 14.
            assert!(at(name, "y") < highest && at(name, "y") > 24.0, "{name}");
        }
        // A tick's label would otherwise touch the name of a stage where nothing is more than 0.
        let nothing = Plot {
            y_most: Some(0.0),
            ..plot.clone()
        };
        let nothing = nothing.draw(440.0, "half");
        let grid = nothing.split("<line class=\"grid\"").skip(1);
        let highest = grid.map(|line| at(line, "y1")).fold(f64::MAX, f64::min);
        assert!(highest - 40.0 > 6.0, "{nothing}");
        // What is drawn is as high as without names.
        let bare = Plot {
            shades: Vec::new(),
            ..plot
        };
        assert!(drawn.contains("0 0 440 214") && bare.draw(440.0, "half").contains("0 0 440 200"));
    }
}
