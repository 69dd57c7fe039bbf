//! Published figures beside ours, as a picture.

use super::chart::{escape, log_ticks, ticks};
use super::pictures::both;
use super::rows::Rows;
use crate::format;
use crate::measure::result::{Beside, Published};

/// One picture; nothing when there is nothing to compare.
#[must_use]
pub fn draw(published: &Published) -> String {
    let rows: Vec<&Beside> = published.rows.iter().filter(|row| is_drawn(row)).collect();
    if rows.iter().all(|row| row.ours.is_none()) {
        return String::new();
    }
    let drawing = both(|width, class| draw_on((width, class), published, &rows));
    let ours = match rows.iter().any(|row| row.interval.is_some()) {
        true => "ours, with its interval",
        false => "ours, without an interval",
    };
    format!(
        "<figure><figcaption>{}</figcaption><div class=\"legend\"><span class=\"key\"><i class=\"dot published\"></i>published</span>\
         <span class=\"key\"><i class=\"dot a1\"></i>{ours}</span></div>{drawing}<p class=\"note\">{}</p></figure>",
        escape(&published.figure),
        escape(&published.source)
    )
}

/// On a scale of ratios there is no place for what is not more than nothing.
fn is_drawn(row: &Beside) -> bool {
    let mut figures = row.published.iter().chain(&row.ours);
    let is_there = row.published.is_some() || row.ours.is_some();
    is_there && figures.all(|figure| figure.is_finite() && *figure > 0.0)
}

fn draw_on((width, class): (f64, &str), published: &Published, beside: &[&Beside]) -> String {
    let value = |figure: f64| format::value(figure, published.unit);
    let ends = beside.iter().flat_map(|row| {
        let interval = row
            .interval
            .map_or([None; 2], |i| [Some(i.low), Some(i.high)]);
        [row.published, row.ours].into_iter().chain(interval)
    });
    let ends = ends.flatten().filter(|end| end.is_finite() && *end > 0.0);
    let (low, high) = ends.fold((f64::INFINITY, 0.0_f64), |(low, high), end| {
        (low.min(end), high.max(end))
    });
    // A little room beyond the outermost points.
    let pad = (high / low).powf(0.06).max(1.01);
    let (low, high) = (low / pad, high * pad);
    let names: Vec<&str> = beside.iter().map(|row| row.name.as_str()).collect();
    let rows = Rows::new(width, &names, (low.ln(), high.ln()));
    let mut out = rows.plane.open(&published.figure, class);
    let wanted = if width < 500.0 { 3 } else { 6 };
    let marks = match high / low < 4.0 {
        true => ticks(low, high, wanted),
        false => thinned(log_ticks(low, high), wanted),
    };
    let marks: Vec<(f64, String)> = marks
        .into_iter()
        .filter(|mark| *mark > 0.0)
        .map(|mark| (mark.ln(), value(mark)))
        .collect();
    out.push_str(&rows.plane.x_axis("", Some(&marks)));
    for (index, row) in beside.iter().enumerate() {
        out.push_str(&rows.name(index));
        if let Some(interval) = row.interval {
            let places = (interval.low.max(low).ln(), interval.high.min(high).ln());
            out.push_str(&rows.whisker(index, "a1", places));
        }
        if let Some(figure) = row.published {
            let words = format!("{}, published: {}", row.name, value(figure));
            out.push_str(&rows.point(index, "published", figure.ln(), &words));
        }
        if let Some(figure) = row.ours {
            let words = format!("{}, ours: {}", row.name, value(figure));
            out.push_str(&rows.point(index, "a1", figure.ln(), &words));
        }
    }
    out.push_str("</svg>");
    out
}

/// Every second, third, … of them, so that labels do not meet.
fn thinned(marks: Vec<f64>, wanted: usize) -> Vec<f64> {
    let step = marks.len().div_ceil(wanted).max(1);
    marks.into_iter().step_by(step).collect()
}

#[cfg(test)]
mod tests {
    use super::draw;
    use crate::format::Unit;
    use crate::measure::result::{Beside, Published};
    use crate::measure::stat::Interval;

    fn row(published: Option<f64>, ours: Option<f64>) -> Beside {
        Beside {
            name: "step <one>".to_owned(),
            published,
            ours,
            interval: ours.map(|ours| Interval {
                low: ours * 0.9,
                high: ours * 1.2,
            }),
        }
    }

    fn drawn(rows: &[Beside]) -> String {
        draw(&Published {
            figure: "Time of each step".to_owned(),
            unit: Unit::Seconds,
            source: "Somebody's machine.".to_owned(),
            rows: rows.to_vec(),
        })
    }

    #[test]
    fn each_figure_has_a_point_and_what_is_missing_has_none() {
        let rows = [
            row(Some(0.3), Some(0.2)),
            row(Some(0.000_3), None),
            row(None, Some(12.0)),
            row(None, None),
            row(Some(0.0), Some(1.0)),
        ];
        let picture = drawn(&rows);
        // On wide and on narrow paper.
        assert_eq!(picture.matches("class=\"point published\"").count(), 4);
        assert_eq!(picture.matches("class=\"point a1\"").count(), 4);
        assert_eq!(picture.matches("class=\"whisker a1\"").count(), 4);
        assert!(
            picture.contains("step &lt;one&gt;, published: 300 ms"),
            "{picture}"
        );
        assert!(
            !picture.contains("NaN") && !picture.contains("inf"),
            "{picture}"
        );
    }

    #[test]
    fn an_interval_is_promised_only_where_there_is_one() {
        let with = row(Some(1.0), Some(2.0));
        let without = Beside {
            interval: None,
            ..with.clone()
        };
        assert!(drawn(&[with.clone(), without.clone()]).contains("ours, with its interval"));
        let picture = drawn(&[without]);
        assert!(!picture.contains("with its interval"), "{picture}");
    }

    #[test]
    fn without_a_figure_of_ours_there_is_no_picture() {
        assert_eq!(drawn(&[row(Some(1.0), None)]), "");
        assert_eq!(drawn(&[]), "");
        assert!(drawn(&[row(None, Some(1.0))]).contains("</svg>"));
    }
}
