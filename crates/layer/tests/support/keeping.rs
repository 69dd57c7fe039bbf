//! Says of each layer by itself why it stays.

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::retention::{Held, HistoryLine, Hold, Policy};

pub const DAYS: usize = 14;

/// One layer a day. Of its parent, how far back it is; of other things, one chance in so many.
#[derive(Clone, Debug)]
pub struct Sketch {
    pub back: Option<usize>,
    pub replaced: bool,
    pub broken: bool,
    pub in_use: bool,
    pub pinned: bool,
}

pub fn held(sketches: &[Sketch]) -> Vec<Held> {
    let mut layers: Vec<Held> = Vec::new();
    for (day, sketch) in sketches.iter().enumerate() {
        let at = jiff::civil::date(2026, 11, 1).at(3, 0, 0, 0)
            + SignedDuration::from_hours(24 * i64::try_from(day).unwrap());
        let parent = sketch.back.and_then(|back| day.checked_sub(back));
        let label = match parent {
            Some(parent) => layers[parent].label.successor(LayerKind::Incremental, at),
            None => Label::full(at),
        };
        let zoned = at.to_zoned(jiff::tz::TimeZone::UTC).unwrap();
        layers.push(Held {
            label,
            parent,
            finished_at: zoned.timestamp(),
            replaced: sketch.replaced,
            merged: false,
            in_use: sketch.in_use,
            broken: sketch.broken,
            hold: sketch.pinned.then_some(Hold::Pin),
            goes_on: false,
        });
    }
    layers
}

/// The days, weeks, months and years since some moment in which a time lies: 1970-01-01 was a Thursday.
fn periods(time: Timestamp) -> [i64; 4] {
    let day = time.as_second().div_euclid(86_400);
    let date = time.strftime("%Y %m").to_string();
    let (year, month) = date.split_once(' ').unwrap();
    let (year, month): (i64, i64) = (year.parse().unwrap(), month.parse().unwrap());
    [day, (day + 3).div_euclid(7), year * 12 + month, year]
}

/// Whether the layer is the last of one of the last `count` of its line's periods of that kind.
fn is_last_of(
    layers: &[Held],
    line: &HistoryLine,
    at: usize,
    (kind, count): (usize, usize),
) -> bool {
    let usable = |other: &&usize| !layers[**other].replaced && !layers[**other].broken;
    let period = |at: usize| periods(layers[at].finished_at)[kind];
    let on: Vec<usize> = line.layers.iter().filter(usable).copied().collect();
    let mut newer: Vec<i64> = on.iter().map(|other| period(*other)).collect();
    newer.retain(|other| *other > period(at));
    newer.dedup();
    let last = on.iter().rfind(|other| period(**other) == period(at));
    last == Some(&at) && newer.len() < count
}

/// Whether a rule wants the layer, pins apart.
pub fn wanted(
    layers: &[Held],
    lines: &[HistoryLine],
    policy: &Policy,
    now: Timestamp,
    at: usize,
) -> bool {
    let usable = |at: usize| !layers[at].replaced && !layers[at].broken;
    let on = |line: &HistoryLine| line.layers.contains(&at);
    let newer = |line: &HistoryLine| {
        let newer = line.layers.iter().filter(|other| **other > at);
        newer
            .copied()
            .filter(|other| usable(*other))
            .collect::<Vec<_>>()
    };
    let is_newest = |line: &HistoryLine| on(line) && usable(at) && newer(line).is_empty();
    let any_line = lines
        .iter()
        .any(|line| line.layers.iter().any(|at| usable(*at)));
    let newest_of_all = !any_line && usable(at) && !(at + 1..layers.len()).any(usable);
    if lines.iter().any(is_newest) || newest_of_all || layers[at].in_use {
        return true;
    }
    if layers[at].replaced {
        return false;
    }
    let on_none = !lines.iter().any(on);
    let by_full = policy.keep_full.is_some_and(|count| {
        let full = |other: &usize| layers[*other].label.kind() == LayerKind::Full;
        let few =
            |line: &HistoryLine| newer(line).iter().filter(|other| full(other)).count() < count;
        lines.iter().any(|line| (on(line) || on_none) && few(line))
    });
    let by_time = policy.keep_within.is_some_and(|span| {
        let cut = now - span;
        let before = |line: &HistoryLine| {
            let next = newer(line).into_iter().next();
            let reached = next.is_none_or(|next| layers[next].finished_at >= cut);
            on(line) && usable(at) && reached
        };
        layers[at].finished_at >= cut || lines.iter().any(before)
    });
    let last_of = policy.keep_last_of;
    let counts = [
        last_of.daily,
        last_of.weekly,
        last_of.monthly,
        last_of.yearly,
    ];
    let by_period = counts.iter().enumerate().any(|(kind, count)| {
        let is_last = |line| count.is_some_and(|count| is_last_of(layers, line, at, (kind, count)));
        lines.iter().any(is_last)
    });
    let none = policy.keep_full.is_none()
        && policy.keep_within.is_none()
        && counts.iter().all(Option::is_none);
    by_full || by_time || by_period || none
}

/// Which layers stay: those that a rule or somebody wants, and those that they stand on.
pub fn kept(layers: &[Held], lines: &[HistoryLine], policy: &Policy, now: Timestamp) -> Vec<bool> {
    let wanted = |at: usize| layers[at].hold.is_some() || wanted(layers, lines, policy, now, at);
    with_below(layers, (0..layers.len()).map(wanted).collect())
}

/// From which layers recovery goes on behind their end.
pub fn going_on(
    layers: &[Held],
    lines: &[HistoryLine],
    policy: &Policy,
    now: Timestamp,
) -> Vec<bool> {
    let ruled = |at| wanted(layers, lines, policy, now, at);
    let ruled = with_below(layers, (0..layers.len()).map(ruled).collect());
    let Some(span) = policy.keep_wal else {
        return ruled;
    };
    let cut = now - span;
    let leads_there = |line: &HistoryLine, at: usize| {
        let usable = |other: &usize| {
            let layer = &layers[*other];
            ruled[*other] && !layer.replaced && !layer.broken
        };
        // It is not older than the last one before the cut.
        let mut later = line.layers.iter().filter(|other| **other > at);
        let passed = later.any(|other| usable(other) && layers[*other].finished_at < cut);
        let mut up_to = line.layers.iter().filter(|other| **other <= at);
        line.layers.contains(&at)
            && !passed
            && up_to.any(|other| usable(other) && layers[*other].finished_at < cut)
    };
    let goes_on = |at: usize| {
        let young = layers[at].finished_at >= cut;
        ruled[at] && (young || lines.iter().any(|line| leads_there(line, at)))
    };
    (0..layers.len()).map(goes_on).collect()
}

fn with_below(layers: &[Held], mut kept: Vec<bool>) -> Vec<bool> {
    for at in (0..layers.len()).rev() {
        if let (true, Some(parent)) = (kept[at], layers[at].parent) {
            kept[parent] = true;
        }
    }
    kept
}
