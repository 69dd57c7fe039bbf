//! Charts with a named row for each thing: names at the left, or above on narrow paper, and none is cut off.

use super::chart::{Plane, escape};
use crate::number::real;

/// Width of a letter of a name; rather too much than too little.
const LETTER: f64 = 6.8;
/// Height of a line of a name.
const LINE: f64 = 15.0;
/// Above the first row, and below the last one.
const EDGES: f64 = 60.0;
/// What names may take at the left.
const MOST_LEFT: f64 = 320.0;

/// Where rows and their names are.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    /// The paper; its vertical range is not used.
    pub(super) plane: Plane,
    names: Vec<Vec<String>>,
    /// Where each row is.
    middles: Vec<f64>,
    is_narrow: bool,
    left: f64,
}

impl Rows {
    /// Rows of these names on paper of this width, for values in this range.
    pub(super) fn new(width: f64, names: &[&str], range: (f64, f64)) -> Self {
        let is_narrow = width < 500.0;
        let longest = names.iter().map(|name| name.chars().count()).max();
        let left = match is_narrow {
            true => 12.0,
            false => (real(longest.unwrap_or(0)) * LETTER + 20.0).clamp(120.0, MOST_LEFT),
        };
        let room = if is_narrow { width - 8.0 } else { left - 20.0 };
        let letters = crate::number::whole(room / LETTER);
        let names: Vec<Vec<String>> = names.iter().map(|name| wrapped(name, letters)).collect();
        let height = |lines: &Vec<String>| match is_narrow {
            true => real(lines.len()) * LINE + 21.0,
            false => (real(lines.len()) * LINE + 8.0).max(24.0),
        };
        let all: f64 = names.iter().map(height).sum();
        let plane = Plane::new((width, EDGES + all), range, (0.0, 1.0)).with_left(left);
        let mut top = plane.top();
        let middles = names.iter().map(|lines| {
            let own = height(lines);
            top += own;
            match is_narrow {
                true => top - 12.0,
                false => top - own / 2.0,
            }
        });
        let middles = middles.collect();
        Self {
            plane,
            names,
            middles,
            is_narrow,
            left,
        }
    }

    /// Where the row is.
    pub(super) fn y(&self, row: usize) -> f64 {
        self.middles.get(row).copied().unwrap_or_default()
    }

    /// The name of the row.
    pub(super) fn name(&self, row: usize) -> String {
        let Some(lines) = self.names.get(row) else {
            return String::new();
        };
        let count = real(lines.len());
        let (x, first, anchor) = match self.is_narrow {
            true => (2.0, self.y(row) - 10.0 - (count - 1.0) * LINE, "start"),
            false => (
                self.left - 10.0,
                self.y(row) + 4.0 - (count - 1.0) * LINE / 2.0,
                "end",
            ),
        };
        let text = lines.iter().zip(0_u32..).map(|(line, number)| {
            format!(
                "<text class=\"name\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                first + f64::from(number) * LINE,
                escape(line)
            )
        });
        text.collect()
    }

    /// The whisker of an interval, between places of the range.
    pub(super) fn whisker(&self, row: usize, class: &str, (low, high): (f64, f64)) -> String {
        format!(
            "<line class=\"whisker {class}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\"/>",
            self.plane.px(low),
            self.plane.px(high),
            self.y(row)
        )
    }

    /// A line across the rows at a place of the range; on narrow paper it stops where names are.
    pub(super) fn across(&self, class: &str, place: f64) -> String {
        let x = self.plane.px(place);
        let stretches: Vec<(f64, f64)> = match self.is_narrow {
            true => self.middles.iter().map(|y| (y - 6.0, y + 12.0)).collect(),
            false => vec![(self.plane.top(), self.plane.floor())],
        };
        let line = |(from, to)| {
            format!(
                "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\"/>"
            )
        };
        stretches.into_iter().map(line).collect()
    }

    /// A bound at a place of the range, and a shade from there to an end of it.
    pub(super) fn beyond(&self, row: usize, (bound, end): (f64, f64), words: &str) -> String {
        let (x, to, y) = (self.plane.px(bound), self.plane.px(end), self.y(row));
        format!(
            "<rect class=\"beyond\" x=\"{0:.1}\" y=\"{1:.1}\" width=\"{4:.1}\" height=\"18\"><title>{2}</title></rect>\
             <line class=\"bound\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{1:.1}\" y2=\"{3:.1}\"><title>{2}</title></line>",
            x.min(to),
            y - 8.0,
            escape(words),
            y + 10.0,
            (to - x).abs()
        )
    }

    /// A sign that something goes on beyond this end of a range around 0.
    pub(super) fn arrow(&self, row: usize, class: &str, end: f64, words: &str) -> String {
        let outward = if end > 0.0 { 5.0 } else { -5.0 };
        // Half of it beyond the frame, so that it covers the end of a whisker.
        let (x, y) = (self.plane.px(end) + outward, self.y(row));
        let back = outward * -2.0;
        format!(
            "<path class=\"point arrow {class}\" d=\"M{x:.1} {y:.1}l{back} -6v12z\"><title>{}</title></path>",
            escape(words)
        )
    }

    /// A point at a place of the range, with words for whoever points at it.
    pub(super) fn point(&self, row: usize, class: &str, place: f64, words: &str) -> String {
        format!(
            "<circle class=\"point {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\"><title>{}</title></circle>",
            self.plane.px(place),
            self.y(row),
            escape(words)
        )
    }
}

/// Lines of at most so many letters, broken between words where that is possible.
fn wrapped(name: &str, letters: usize) -> Vec<String> {
    let letters = letters.max(1);
    let mut lines: Vec<String> = Vec::new();
    for word in name.split_whitespace() {
        let mut rest: Vec<char> = word.chars().collect();
        if let Some(line) = lines.last_mut()
            && line.chars().count() + 1 + rest.len() <= letters
        {
            line.push(' ');
            line.push_str(word);
            continue;
        }
        while rest.len() > letters {
            lines.push(rest.drain(..letters).collect());
        }
        lines.push(rest.into_iter().collect());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{LETTER, Rows, wrapped};

    #[test]
    fn no_line_is_longer_than_its_room_and_no_letter_is_lost() {
        let name = "time, vacuumed with checksums, pg_basebackup_of_a_very_long_name incr";
        for letters in [1, 7, 20, 44, 100] {
            let lines = wrapped(name, letters);
            assert!(lines.iter().all(|line| line.chars().count() <= letters));
            let letters_of = |text: &str| text.replace(' ', "");
            assert_eq!(letters_of(&lines.concat()), letters_of(name));
        }
        assert_eq!(wrapped("a b", 10), ["a b"]);
    }

    #[test]
    fn names_lie_on_the_paper_and_rows_below_each_other() {
        let long = "restore, ".repeat(20);
        for width in [900.0, 360.0] {
            let rows = Rows::new(width, &["short", &long, "short"], (0.0, 1.0));
            assert!(rows.y(0) < rows.y(1) && rows.y(1) < rows.y(2));
            assert!(rows.y(2) < rows.plane.floor());
            let drawn = rows.name(1);
            assert!(drawn.matches("<text").count() > 1, "{drawn}");
            for line in drawn.split("<text").skip(1) {
                let (head, text) = line.split_once('>').unwrap();
                let letters = text.trim_end_matches("</text>").chars().count();
                let at = |name: &str| -> f64 {
                    let from = head.split(&format!(" {name}=\"")).nth(1).unwrap();
                    from.split('"').next().unwrap().parse().unwrap()
                };
                assert!(at("y") > 0.0 && at("y") < rows.plane.floor());
                let length = f64::from(u32::try_from(letters).unwrap()) * LETTER;
                let (from, to) = match head.contains("end") {
                    true => (at("x") - length, at("x")),
                    false => (at("x"), at("x") + length),
                };
                assert!(from >= 0.0 && to <= width, "{line}");
            }
        }
    }

    #[test]
    fn a_line_across_stops_where_names_are_on_narrow_paper() {
        let long = "restore, ".repeat(20);
        let rows = Rows::new(360.0, &["short", &long, "short"], (-1.0, 1.0));
        let at = |element: &str, name: &str| -> f64 {
            let from = element.split(&format!(" {name}=\"")).nth(1).unwrap();
            from.split('"').next().unwrap().parse().unwrap()
        };
        let across = rows.across("one", 0.0);
        let lines: Vec<&str> = across.split("<line").skip(1).collect();
        assert_eq!(lines.len(), 3, "{across}");
        for row in 0..3 {
            for text in rows.name(row).split("<text").skip(1) {
                // A letter is nearly as high as its line.
                let (top, bottom) = (at(text, "y") - 10.0, at(text, "y") + 3.0);
                for line in &lines {
                    let is_apart = at(line, "y2") <= top || at(line, "y1") >= bottom;
                    assert!(is_apart, "{line} goes through {text}");
                }
            }
            // It is there where the row's figures are.
            let y = rows.y(row);
            assert!(
                lines
                    .iter()
                    .any(|line| at(line, "y1") < y && at(line, "y2") > y)
            );
        }
        let wide = Rows::new(900.0, &["short", &long], (-1.0, 1.0));
        assert_eq!(wide.across("one", 0.0).matches("<line").count(), 1);
    }
}
