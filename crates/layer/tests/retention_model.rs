//! Retention against a model that says of each layer by itself why it stays.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::retention::{Held, HistoryLine, Policy, plan};
use proptest::collection::vec;
use proptest::prelude::*;

const DAYS: usize = 14;

/// One layer a day. Of its parent, how far back it is; of other things, one chance in so many.
#[derive(Clone, Debug)]
struct Sketch {
    back: Option<usize>,
    replaced: bool,
    broken: bool,
    in_use: bool,
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let seldom = || prop::bool::weighted(0.12);
    let back = prop::option::weighted(0.6, 1..4_usize);
    (back, seldom(), seldom(), seldom()).prop_map(|(back, replaced, broken, in_use)| Sketch {
        back,
        replaced,
        broken,
        in_use,
    })
}

fn held(sketches: &[Sketch]) -> Vec<Held> {
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
fn wanted(
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

proptest! {
    #[test]
    fn every_line_keeps_what_the_rules_promise_and_nothing_else_stays(
        sketches in vec(sketch(), 1..DAYS),
        membership in vec(vec(any::<bool>(), DAYS), 1..4),
        keep_full in prop::option::of(1..4_usize),
        keep_days in prop::option::of(1..12_u32),
    ) {
        let layers = held(&sketches);
        let line = |on: &Vec<bool>| HistoryLine {
            layers: (0..layers.len()).filter(|at| on[*at]).collect(),
        };
        let lines: Vec<HistoryLine> = membership.iter().map(line).collect();
        let policy = Policy { keep_full, keep_days, max_chain: None };
        let now: Timestamp = "2026-11-14T12:00:00Z".parse().unwrap();
        let days = i64::from(keep_days.unwrap_or(0));
        let cut = now - SignedDuration::from_hours(24 * days);
        let mut expected: Vec<bool> = (0..layers.len())
            .map(|at| wanted(&layers, &lines, &policy, cut, at))
            .collect();
        for at in (0..layers.len()).rev() {
            if let (true, Some(parent)) = (expected[at], layers[at].parent) {
                expected[parent] = true;
            }
        }
        let plan = plan(&layers, &lines, &policy, now);
        let kept: Vec<bool> = plan.keep.iter().map(Option::is_some).collect();
        prop_assert_eq!(kept, expected);
    }

    /// What a merge takes away is no state that a line goes on from, and none of the days that are kept.
    #[test]
    fn a_merge_leaves_every_line_a_layer_to_go_on_from(
        sketches in vec(sketch(), 1..DAYS),
        membership in vec(vec(any::<bool>(), DAYS), 1..4),
        keep_full in prop::option::of(1..4_usize),
        limit in 1..6_usize,
    ) {
        let layers = held(&sketches);
        let line = |on: &Vec<bool>| HistoryLine {
            layers: (0..layers.len()).filter(|at| on[*at]).collect(),
        };
        let lines: Vec<HistoryLine> = membership.iter().map(line).collect();
        let policy = Policy { keep_full, keep_days: None, max_chain: Some(limit) };
        let now: Timestamp = "2026-11-14T12:00:00Z".parse().unwrap();
        let plan = plan(&layers, &lines, &policy, now);
        let Some(step) = plan.merge else { return Ok(()) };
        let mut gone = Vec::new();
        let mut below = layers[step.newest].parent;
        while let Some(at) = below {
            gone.push(at);
            below = layers[at].parent;
        }
        for line in &lines {
            let usable = |at: &&usize| !layers[**at].replaced && !layers[**at].broken;
            if let Some(newest) = line.layers.iter().rfind(usable) {
                prop_assert!(!gone.contains(newest), "{line:?} {step:?}");
            }
        }
        prop_assert!(step.length.1 < step.length.0);
    }
}
