//! Names of stretches of time, in lines above a drawing: nothing that is drawn goes through them there.

use super::chart::{Shade, escape};
use crate::number::real;

/// Width of a letter; rather too much than too little.
const LETTER: f64 = 6.5;
/// Height of a line of names.
pub(super) const LINE: f64 = 14.0;
/// Lines of names: with more of them the drawing below would be small beside its names.
const MOST_LINES: usize = 3;
/// Between two names.
const GAP: f64 = 3.0;

/// A name and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Name<'a> {
    label: &'a str,
    /// Middle of what it names.
    middle: f64,
    /// Middle of the name.
    at: f64,
    /// 0 is the line next to the drawing.
    line: usize,
    /// Whether it is as narrow as what it names.
    is_within: bool,
}

impl Name<'_> {
    fn half(&self) -> f64 {
        half(self.label)
    }
}

fn half(label: &str) -> f64 {
    real(label.chars().count()) * LETTER / 2.0
}

/// Names for as many stretches as there is room for on paper of this width; `px` says where on it a moment is.
pub(super) fn names<'a>(shades: &'a [Shade], px: impl Fn(f64) -> f64, width: f64) -> Vec<Name<'a>> {
    let mut stretches: Vec<(&Shade, f64, f64)> = shades
        .iter()
        .map(|shade| (shade, px(shade.from), px(shade.to)))
        .collect();
    // In their own order neighbours stand like stairs; if that is not enough, the longest matter most.
    let in_order = placed(&stretches, width);
    if in_order.len() == shades.len() {
        return in_order;
    }
    stretches.sort_by(|a, b| (b.2 - b.1).total_cmp(&(a.2 - a.1)));
    placed(&stretches, width)
}

/// Each name in the lowest line where it meets none of those before it.
fn placed<'a>(stretches: &[(&'a Shade, f64, f64)], width: f64) -> Vec<Name<'a>> {
    let mut placed: Vec<Name<'a>> = Vec::new();
    for (shade, from, to) in stretches {
        let half = half(&shade.label);
        if half * 2.0 > width {
            continue;
        }
        let middle = f64::midpoint(*from, *to);
        let at = middle.clamp(half, width - half);
        let is_free = |line: &usize| {
            let mut others = placed.iter().filter(|name| name.line == *line);
            others.all(|other| (other.at - at).abs() >= half + other.half() + GAP)
        };
        if let Some(line) = (0..MOST_LINES).find(is_free) {
            placed.push(Name {
                label: &shade.label,
                middle,
                at,
                line,
                is_within: half * 2.0 <= to - from,
            });
        }
    }
    placed
}

/// Lines that these names take.
pub(super) fn lines(names: &[Name<'_>]) -> usize {
    let taken = names.iter().map(|name| name.line + 1);
    taken.max().unwrap_or(0)
}

/// The names above `top`, with a lead to what they name where that is not plain; names stand on leads, not under them.
pub(super) fn draw(names: &[Name<'_>], top: f64) -> String {
    let baseline = |name: &Name<'_>| top - 6.0 - real(name.line) * LINE;
    let leads = names
        .iter()
        .filter(|name| name.line > 0 || !name.is_within)
        .map(|name| {
            format!(
                "<line class=\"lead\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{top:.1}\"/>",
                name.middle,
                baseline(name) + 2.0
            )
        });
    let texts = names.iter().map(|name| {
        format!(
            "<text class=\"shadename\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            name.at,
            baseline(name),
            escape(name.label)
        )
    });
    leads.chain(texts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shades(ends: &[f64]) -> Vec<Shade> {
        let shade = |(nth, ends): (usize, &[f64])| Shade {
            from: ends[0],
            to: ends[1],
            label: format!("delta {nth}"),
        };
        ends.windows(2).enumerate().map(shade).collect()
    }

    #[test]
    fn stretches_too_short_for_their_names_are_named_all_the_same_and_no_names_meet() {
        // As of a restore: two long stretches, and three that are hardly seen.
        let shades = shades(&[0.0, 4.0, 8.0, 8.1, 8.3, 8.6]);
        let px = |seconds: f64| 52.0 + seconds * 30.0;
        let names = names(&shades, px, 360.0);
        assert_eq!(names.len(), shades.len(), "{names:?}");
        for (nth, name) in names.iter().enumerate() {
            assert!(name.at >= name.half() && name.at + name.half() <= 360.0);
            for other in names[..nth].iter().filter(|other| other.line == name.line) {
                let apart = (name.at - other.at).abs();
                assert!(apart > name.half() + other.half(), "{name:?} {other:?}");
            }
        }
        let drawn = draw(&names, 100.0);
        // All are above the drawing, and whatever is beside its name is led to.
        for text in drawn.split("<text").skip(1) {
            let y = text
                .split(" y=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap();
            assert!(y.parse::<f64>().unwrap() < 100.0, "{text}");
        }
        assert_eq!(drawn.matches("class=\"lead\"").count(), 3, "{drawn}");
    }

    #[test]
    fn as_many_short_stretches_as_three_lines_hold_are_all_named() {
        // Backups, one after the other: each is less than half as wide as its name.
        let shades = shades(&[0.0, 2.45, 4.54, 6.58, 8.73, 10.47, 12.44]);
        let names = names(&shades, |at| 52.0 + at * 9.5, 440.0);
        assert_eq!(names.len(), shades.len(), "{names:?}");
    }

    #[test]
    fn the_longest_stretches_are_named_where_there_is_no_room_for_all() {
        let ends: Vec<f64> = (0_u32..60).map(|n| f64::from(n * n)).collect();
        let shades = shades(&ends);
        let names = names(&shades, |at| at / 10.0, 360.0);
        assert!(names.len() < shades.len());
        assert_eq!(names[0].label, "delta 58");
        assert_eq!(lines(&names), MOST_LINES);
    }
}
