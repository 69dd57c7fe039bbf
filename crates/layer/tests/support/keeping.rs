//! Says of each layer by itself why it stays.

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::retention::{Held, HistoryLine, Policy};

pub const DAYS: usize = 14;

/// One layer a day. Of its parent, how far back it is; of other things, one chance in so many.
#[derive(Clone, Debug)]
pub struct Sketch {
    pub back: Option<usize>,
    pub replaced: bool,
    pub broken: bool,
    pub in_use: bool,
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
        });
    }
    layers
}

/// Whether a rule wants the layer.
pub fn wanted(
    layers: &[Held],
    lines: &[HistoryLine],
    policy: &Policy,
    cut: Timestamp,
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
    let by_days = policy.keep_days.is_some_and(|_| {
        let before = |line: &HistoryLine| {
            let next = newer(line).into_iter().next();
            let reached = next.is_none_or(|next| layers[next].finished_at >= cut);
            on(line) && usable(at) && reached
        };
        layers[at].finished_at >= cut || lines.iter().any(before)
    });
    by_full || by_days || (policy.keep_full.is_none() && policy.keep_days.is_none())
}

/// Which layers stay: those that a rule wants, and those that they stand on.
pub fn kept(layers: &[Held], lines: &[HistoryLine], policy: &Policy, cut: Timestamp) -> Vec<bool> {
    let wanted = |at| wanted(layers, lines, policy, cut, at);
    let mut kept: Vec<bool> = (0..layers.len()).map(wanted).collect();
    for at in (0..layers.len()).rev() {
        if let (true, Some(parent)) = (kept[at], layers[at].parent) {
            kept[parent] = true;
        }
    }
    kept
}
