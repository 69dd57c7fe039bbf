//! Retention against a model that says of each layer by itself why it stays.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::retention::{HistoryLine, LastOf, Policy, Why, plan};
use proptest::collection::vec;
use proptest::prelude::*;

use support::keeping::{DAYS, Sketch, going_on, held, kept};

fn sketch() -> impl Strategy<Value = Sketch> {
    let seldom = || prop::bool::weighted(0.12);
    let back = prop::option::weighted(0.6, 1..4_usize);
    (back, seldom(), seldom(), seldom(), seldom()).prop_map(
        |(back, replaced, broken, in_use, pinned)| Sketch {
            back,
            replaced,
            broken,
            in_use,
            pinned,
        },
    )
}

fn last_of() -> impl Strategy<Value = LastOf> {
    let some = |end: usize| prop::option::weighted(0.3, 1..end);
    (some(6), some(4), some(3), some(2)).prop_map(|(daily, weekly, monthly, yearly)| LastOf {
        daily,
        weekly,
        monthly,
        yearly,
    })
}

proptest! {
    #[test]
    fn every_line_keeps_what_the_rules_promise_and_nothing_else_stays(
        sketches in vec(sketch(), 1..DAYS),
        membership in vec(vec(any::<bool>(), DAYS), 1..4),
        keep_full in prop::option::of(1..4_usize),
        keep_days in prop::option::of(1..12_i64),
        keep_last_of in last_of(),
        wal_days in prop::option::of(0..12_i64),
    ) {
        let layers = held(&sketches);
        let line = |on: &Vec<bool>| HistoryLine {
            layers: (0..layers.len()).filter(|at| on[*at]).collect(),
        };
        let lines: Vec<HistoryLine> = membership.iter().map(line).collect();
        let span = |days: Option<i64>| days.map(|days| SignedDuration::from_hours(24 * days));
        let policy = Policy {
            keep_full,
            keep_within: span(keep_days),
            keep_last_of,
            keep_wal: span(wal_days),
            max_chain: None,
        };
        let now: Timestamp = "2026-11-14T12:00:00Z".parse().unwrap();
        let expected = kept(&layers, &lines, &policy, now);
        let plan = plan(&layers, &lines, &policy, now);
        let kept: Vec<bool> = plan.keep.iter().map(|why| !why.is_empty()).collect();
        prop_assert_eq!(kept, expected);
        prop_assert_eq!(plan.goes_on, going_on(&layers, &lines, &policy, now));
    }

    /// What a merge takes away is no state that a line goes on from, and none of the days that are kept.
    #[test]
    fn a_merge_leaves_every_line_a_layer_to_go_on_from(
        sketches in vec(sketch(), 1..DAYS),
        membership in vec(vec(any::<bool>(), DAYS), 1..4),
        keep_full in prop::option::of(1..4_usize),
        keep_last_of in last_of(),
        limit in 1..6_usize,
    ) {
        let layers = held(&sketches);
        let line = |on: &Vec<bool>| HistoryLine {
            layers: (0..layers.len()).filter(|at| on[*at]).collect(),
        };
        let lines: Vec<HistoryLine> = membership.iter().map(line).collect();
        let policy = Policy { keep_full, keep_last_of, max_chain: Some(limit), ..Policy::default() };
        let now: Timestamp = "2026-11-14T12:00:00Z".parse().unwrap();
        let plan = plan(&layers, &lines, &policy, now);
        let Some(step) = plan.merge else { return Ok(()) };
        let mut gone = Vec::new();
        let mut at = step.newest;
        while at != step.oldest {
            at = layers[at].parent.unwrap();
            gone.push(at);
        }
        prop_assert!(layers[step.newest].hold.is_none(), "{step:?}");
        for at in &gone {
            prop_assert!(layers[*at].hold.is_none(), "{step:?}");
            let kept = plan.keep[*at].iter().any(|why| *why >= Why::KeepDaily && *why <= Why::KeepYearly);
            prop_assert!(!kept, "{step:?} {:?}", plan.keep[*at]);
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
