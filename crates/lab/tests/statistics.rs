//! The lab's statistics against SciPy's opinion (tests/vectors/make.py), and
//! against the truth of simulated experiments.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on says why by failing"
)]

use pgstrata_lab::measure::stat::verdict::{Better, Verdict};
use pgstrata_lab::measure::stat::{
    self, design, mann_whitney, paired, plan, resample, trend, wilcoxon,
};
use pgstrata_lab::number::real;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors/statistics.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect()
}

#[track_caller]
fn assert_close(ours: f64, theirs: f64, tolerance: f64) {
    assert!(
        (ours - theirs).abs() <= tolerance,
        "ours {ours}, theirs {theirs}"
    );
}

#[test]
fn signed_rank_agrees_with_scipy() {
    for case in vectors()["signed_rank"].as_array().unwrap() {
        let values = numbers(&case["values"]);
        let ours = wilcoxon::signed_rank(&values, 0.95);
        assert_close(ours.p, case["p"].as_f64().unwrap(), 1e-9);
        assert_close(ours.estimate, case["estimate"].as_f64().unwrap(), 1e-12);
        match ours.interval {
            None => assert!(case["interval"].is_null(), "{} values", values.len()),
            Some(interval) => {
                let theirs = numbers(&case["interval"]);
                assert_close(interval.low, theirs[0], 1e-12);
                assert_close(interval.high, theirs[1], 1e-12);
            }
        }
    }
}

#[test]
fn signed_rank_of_many_values_agrees_with_scipys_approximation() {
    let case = &vectors()["signed_rank_normal"];
    let ours = wilcoxon::signed_rank(&numbers(&case["values"]), 0.95);
    assert_close(ours.p, case["p"].as_f64().unwrap(), 1e-6);
}

#[test]
fn sign_flip_and_bootstrap_agree_with_scipy() {
    for case in vectors()["signed_rank"].as_array().unwrap() {
        let values = numbers(&case["values"]);
        let tolerance = if values.len() <= 20 { 1e-9 } else { 0.005 };
        assert_close(
            resample::sign_flip(&values, 1),
            case["sign_flip"].as_f64().unwrap(),
            tolerance,
        );
        let ours = resample::bootstrap_median(&values, 0.95, 1);
        let theirs = numbers(&case["bootstrap_median"]);
        assert_close(ours.low, theirs[0], 0.01);
        assert_close(ours.high, theirs[1], 0.01);
    }
}

#[test]
fn mann_whitney_agrees_with_scipy() {
    for case in vectors()["mann_whitney"].as_array().unwrap() {
        let (first, second) = (numbers(&case["first"]), numbers(&case["second"]));
        let ours = mann_whitney::shift(&first, &second, 0.95);
        assert_close(ours.p, case["p"].as_f64().unwrap(), 1e-9);
        assert_close(ours.estimate, case["estimate"].as_f64().unwrap(), 1e-12);
        let interval = ours.interval.unwrap();
        let theirs = numbers(&case["interval"]);
        assert_close(interval.low, theirs[0], 1e-12);
        assert_close(interval.high, theirs[1], 1e-12);
    }
}

#[test]
fn trends_agree_with_scipy() {
    let vectors = vectors();
    for case in vectors["trend"].as_array().unwrap() {
        let values = numbers(&case["values"]);
        let ours = trend::mann_kendall(&values);
        assert_close(ours.s, case["s"].as_f64().unwrap(), 1e-9);
        assert_close(ours.p, case["p"].as_f64().unwrap(), 1e-9);
        assert_close(ours.slope, case["slope"].as_f64().unwrap(), 1e-12);
        let index: Vec<f64> = (0..values.len()).map(real).collect();
        assert_close(
            trend::spearman(&index, &values),
            case["spearman_with_index"].as_f64().unwrap(),
            1e-12,
        );
    }
    for case in vectors["page"].as_array().unwrap() {
        let blocks: Vec<Vec<f64>> = case["blocks"]
            .as_array()
            .unwrap()
            .iter()
            .map(numbers)
            .collect();
        let (l, p) = trend::page(&blocks);
        assert_close(l, case["l"].as_f64().unwrap(), 1e-9);
        assert_close(p, case["p"].as_f64().unwrap(), 1e-9);
    }
    for pair in vectors["normal_quantile"].as_array().unwrap() {
        let pair = numbers(pair);
        assert_close(stat::normal_quantile(pair[0]), pair[1], 1e-7);
    }
}

#[test]
fn holm_steps_down_and_never_falls() {
    let adjusted = stat::holm(&[0.01, 0.04, 0.03, 0.005]);
    for (ours, right) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
        assert_close(*ours, right, 1e-12);
    }
    assert_eq!(stat::holm(&[0.9, 0.8]), vec![1.0, 1.0]);
}

#[test]
fn every_arm_follows_every_other_equally_often_in_a_williams_square() {
    for arms in 2..=7 {
        let rows = design::williams(arms);
        assert_eq!(rows.len(), if arms % 2 == 0 { arms } else { 2 * arms });
        let mut follows = vec![vec![0; arms]; arms];
        for row in &rows {
            let mut seen = row.clone();
            seen.sort_unstable();
            assert_eq!(seen, (0..arms).collect::<Vec<_>>());
            for pair in row.windows(2) {
                follows[pair[0]][pair[1]] += 1;
            }
        }
        let expected = rows.len() / arms;
        for (a, row) in follows.iter().enumerate() {
            for (b, count) in row.iter().enumerate() {
                assert_eq!(*count, if a == b { 0 } else { expected }, "{arms} arms");
            }
        }
    }
}

#[test]
fn two_arms_lead_equally_often_and_the_seed_decides_the_order() {
    let orders = design::interleaved(2, 20, 7);
    assert_eq!(orders.iter().filter(|order| order[0] == 0).count(), 10);
    assert_eq!(orders, design::interleaved(2, 20, 7));
    assert_ne!(orders, design::interleaved(2, 20, 8));
}

#[test]
fn interval_and_test_never_disagree() {
    let seed = 4711;
    println!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    for _ in 0..2000 {
        let n = random.random_range(6..30);
        // Rounded, so that ties and zeros occur.
        let values: Vec<f64> = (0..n)
            .map(|_| (normal(&mut random, 0.4, 1.0) * 4.0).round() / 4.0)
            .collect();
        let ranked = wilcoxon::signed_rank(&values, 0.95);
        let interval = ranked.interval.unwrap();
        assert_eq!(!interval.contains(0.0), ranked.p <= 0.05, "{values:?}");
    }
}

#[test]
fn fewer_than_six_blocks_give_no_verdict() {
    let base = [100.0, 101.0, 99.0, 100.5, 99.5];
    let arm = base.map(|v| v * 2.0);
    let compared = paired::compare(&base, &arm, Better::Higher, 0.01, 1).unwrap();
    assert_eq!(compared.verdict, Verdict::TooFew { blocks: 5 });
    assert!(compared.verdict.words(0.01).contains("needs at least 6"));
}

#[test]
fn a_change_of_level_is_found_where_it_is() {
    let mut values = vec![10.0; 40];
    for (index, value) in values.iter_mut().enumerate() {
        *value += real(index % 3) * 0.1;
        if index >= 24 {
            *value -= 3.0;
        }
    }
    let change = trend::change_point(&values, 500, 3).unwrap();
    assert_eq!(change.at, 24);
    assert!(change.p < 0.01);
    assert_close(change.ratio, 0.7, 0.02);
}

/// A draw from the normal distribution by the polar method.
fn normal(random: &mut Pcg64, mean: f64, deviation: f64) -> f64 {
    loop {
        let u = random.random::<f64>().mul_add(2.0, -1.0);
        let v = random.random::<f64>().mul_add(2.0, -1.0);
        let s = u * u + v * v;
        if s > 0.0 && s < 1.0 {
            return mean + deviation * u * (-2.0 * s.ln() / s).sqrt();
        }
    }
}

/// A machine: block effects, noise of runs, and a hog in the second half.
struct Machine {
    block: f64,
    run: f64,
    hog: f64,
}

impl Machine {
    /// TPS of `blocks` blocks for base and arm, in the order run.
    fn measure(&self, random: &mut Pcg64, blocks: usize, effect: f64) -> (Vec<f64>, Vec<f64>) {
        let mut base = Vec::new();
        let mut arm = Vec::new();
        for block in 0..blocks {
            let hog = if block * 2 >= blocks { self.hog } else { 0.0 };
            let shared = normal(random, 0.0, self.block) - hog;
            base.push((shared + normal(random, 0.0, self.run)).exp() * 1e4);
            arm.push((shared + effect + normal(random, 0.0, self.run)).exp() * 1e4);
        }
        (base, arm)
    }
}

fn is_claim(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Better | Verdict::Worse)
}

/// Story B1: identical arms are called different no more often than one time in twenty.
#[test]
fn identical_arms_are_rarely_called_different() {
    let seed = 101;
    println!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    let machine = Machine {
        block: 0.2,
        run: 0.04,
        hog: 0.0,
    };
    let trials = 2000;
    let claims = (0..trials)
        .filter(|_| {
            let (base, arm) = machine.measure(&mut random, 10, 0.0);
            is_claim(paired_verdict(&base, &arm))
        })
        .count();
    // 5 % of 2000 and four standard deviations.
    assert!(claims <= 100 + 39, "{claims} of {trials}");
    assert!(
        claims >= 40,
        "only {claims} of {trials}: the test has lost its level"
    );
}

/// Without the bootstraps of `paired::compare`, which take most of its time.
fn paired_verdict(base: &[f64], arm: &[f64]) -> Verdict {
    let logs: Vec<f64> = base.iter().zip(arm).map(|(b, a)| (a / b).ln()).collect();
    let ranked = wilcoxon::signed_rank(&logs, 0.95);
    stat::verdict::judge(
        stat::verdict::Evidence {
            interval: ranked.interval.map(stat::Interval::exp),
            blocks: logs.len(),
            deviation: stat::standard_deviation(&logs),
        },
        Better::Higher,
        0.01,
    )
}

/// Story B2: a hog in the second half fools the sequential comparison, not the interleaved one.
#[test]
fn drift_fools_sequential_but_not_interleaved_runs() {
    let seed = 202;
    println!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    let machine = Machine {
        block: 0.05,
        run: 0.03,
        hog: 0.3,
    };
    let trials = 400;
    let mut interleaved = 0;
    let mut sequential = 0;
    for _ in 0..trials {
        let (base, arm) = machine.measure(&mut random, 20, 0.0);
        interleaved += usize::from(is_claim(paired_verdict(&base, &arm)));
        let first = mann_whitney::shift(&base[..10], &base[10..], 0.95);
        sequential += usize::from(first.p < 0.05);
    }
    assert!(interleaved * 20 <= trials * 3, "{interleaved} of {trials}");
    assert!(sequential * 10 >= trials * 9, "{sequential} of {trials}");
}

/// Story B3: a known effect is found, and its interval holds the truth as often as it says.
#[test]
fn a_known_effect_is_found_with_an_honest_interval() {
    let seed = 303;
    println!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    let machine = Machine {
        block: 0.2,
        run: 0.02,
        hog: 0.0,
    };
    let truth: f64 = 0.9;
    let trials = 1000;
    let mut found = 0;
    let mut covered = 0;
    for _ in 0..trials {
        let (base, arm) = machine.measure(&mut random, 10, truth.ln());
        let logs: Vec<f64> = base.iter().zip(&arm).map(|(b, a)| (a / b).ln()).collect();
        let ranked = wilcoxon::signed_rank(&logs, 0.95);
        found += usize::from(paired_verdict(&base, &arm) == Verdict::Worse);
        covered += usize::from(ranked.interval.unwrap().contains(truth.ln()));
    }
    assert!(found * 100 >= trials * 99, "{found} of {trials}");
    assert!(covered * 1000 >= trials * 930, "{covered} of {trials}");
    assert!(covered * 1000 <= trials * 985, "{covered} of {trials}");
}

/// Story B6: the planner's number of blocks reaches the power it promises.
#[test]
fn planned_blocks_reach_the_promised_power() {
    let seed = 606;
    println!("seed {seed}");
    let mut random = Pcg64::seed_from_u64(seed);
    for (deviation, effect) in [(0.05, 0.05), (0.05, 0.03), (0.02, 0.02)] {
        let blocks = plan::blocks_needed(deviation, effect);
        let trials = 1000;
        let found = (0..trials)
            .filter(|_| {
                let logs: Vec<f64> = (0..blocks)
                    .map(|_| normal(&mut random, (1.0f64 + effect).ln(), deviation))
                    .collect();
                wilcoxon::signed_rank(&logs, 0.95).p <= 0.05
            })
            .count();
        let power = real(found) / real(trials);
        assert!(
            (power - 0.8).abs() <= 0.05,
            "power {power} with {blocks} blocks"
        );
    }
}

#[test]
fn the_planner_says_what_the_specification_derives() {
    // Quiet machine: 10 blocks see about 4.4–5 %, and 1 % needs about 200 blocks.
    let at_ten = plan::detectable_effect(0.05, 10);
    assert!((0.044..0.056).contains(&at_ten), "{at_ten}");
    let blocks = plan::blocks_needed(0.05, 0.01);
    assert!((190..220).contains(&blocks), "{blocks}");
}

#[test]
fn what_a_correction_undoes_takes_as_many_more_blocks_as_the_quantiles_say() {
    assert_eq!(plan::blocks_to_prove(10, 0.05, 0.05), 10);
    // (2.576 / 1.960)² = 1.727
    assert_eq!(plan::blocks_to_prove(10, 0.05, 0.01), 18);
}
