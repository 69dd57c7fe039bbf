//! Retention against a model that says of each layer by itself why it stays.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::retention::{HistoryLine, Policy, plan};
use proptest::collection::vec;
use proptest::prelude::*;

use support::keeping::{DAYS, Sketch, held, kept};

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
        let expected = kept(&layers, &lines, &policy, cut);
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
