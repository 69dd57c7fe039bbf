//! Retention by example.

use super::*;

/// A layer per day: `F` starts a chain, others stand on the one before.
fn days(kinds: &str) -> Vec<Held> {
    let mut layers: Vec<Held> = Vec::new();
    for (day, kind) in kinds.chars().enumerate() {
        let at = jiff::civil::date(2026, 11, 1).at(3, 0, 0, 0)
            + SignedDuration::from_hours(24 * i64::try_from(day).unwrap_or_default());
        let label = match layers.last() {
            Some(last) if kind != 'F' => last.label.successor(LayerKind::Incremental, at),
            _ => Label::full(at),
        };
        layers.push(Held {
            label,
            parent: (kind != 'F').then(|| day - 1),
            finished_at: at
                .to_zoned(jiff::tz::TimeZone::UTC)
                .map(|zoned| zoned.timestamp())
                .unwrap_or_default(),
            replaced: false,
            merged: false,
            in_use: false,
            broken: false,
            hold: None,
            goes_on: false,
        });
    }
    layers
}

/// The plan when the history has no branches.
fn alone(layers: &[Held], policy: &Policy, now: Timestamp) -> ExpirePlan {
    plan(layers, &[HistoryLine::only(layers)], policy, now)
}

fn now() -> Timestamp {
    "2026-11-10T12:00:00Z".parse().unwrap_or_default()
}

fn kept(plan: &ExpirePlan) -> String {
    let sign = |why: &Vec<Why>| match why[..] {
        [] => '-',
        [Why::StoodUpon] => 's',
        _ => 'k',
    };
    plan.keep.iter().map(sign).collect()
}

fn policy(full: usize, days: i64, chain: usize) -> Policy {
    Policy {
        keep_full: (full > 0).then_some(full),
        keep_within: (days > 0).then(|| span(days)),
        max_chain: (chain > 0).then_some(chain),
        ..Policy::default()
    }
}

fn span(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

fn last_of(daily: usize, weekly: usize, monthly: usize, yearly: usize) -> Policy {
    let some = |count| (count > 0).then_some(count);
    Policy {
        keep_last_of: LastOf {
            daily: some(daily),
            weekly: some(weekly),
            monthly: some(monthly),
            yearly: some(yearly),
        },
        ..Policy::default()
    }
}

#[test]
fn full_layers_are_kept_with_all_that_stands_on_them() {
    let layers = days("FiiFiiFiii");
    assert_eq!(kept(&alone(&layers, &policy(1, 0, 0), now())), "------kkkk");
    assert_eq!(kept(&alone(&layers, &policy(2, 0, 0), now())), "---kkkkkkk");
    assert_eq!(kept(&alone(&layers, &policy(9, 0, 0), now())), "kkkkkkkkkk");
}

#[test]
fn days_keep_the_layer_before_them_and_what_it_stands_on() {
    let layers = days("FiiFiiFiii");
    // Since November 8th, 12:00: those of the 9th and 10th, and that of the 8th at 3:00.
    assert_eq!(kept(&alone(&layers, &policy(0, 2, 0), now())), "------skkk");
    assert_eq!(kept(&alone(&layers, &policy(0, 4, 0), now())), "---sskkkkk");
    assert_eq!(kept(&alone(&layers, &policy(1, 4, 0), now())), "---sskkkkk");
}

#[test]
fn the_newest_layer_always_stays() {
    let layers = days("Fii");
    let later: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap_or_default();
    assert_eq!(kept(&alone(&layers, &policy(0, 1, 0), later)), "ssk");
    assert_eq!(kept(&alone(&[], &policy(1, 1, 1), later)), "");
}

#[test]
fn a_layer_whose_state_a_merged_one_has_is_not_wanted() {
    let mut layers = days("Fiii");
    // The merged layer beside the second: the third stands on it.
    let mut merged = layers[1].clone();
    layers[1].replaced = true;
    merged.parent = None;
    layers.insert(2, merged);
    layers[3].parent = Some(2);
    layers[4].parent = Some(3);
    assert_eq!(kept(&alone(&layers, &policy(0, 30, 0), now())), "k-kkk");
    assert_eq!(kept(&alone(&layers, &policy(0, 0, 9), now())), "k-kkk");
}

/// An interrupted merge of the first three layers: the newest input is gone, the others are still there.
#[test]
fn what_a_merge_was_to_remove_is_not_wanted_by_a_chain_limit() {
    let mut layers = days("Fiii");
    for input in &mut layers[..2] {
        input.merged = true;
    }
    layers[2].label = Label::full(jiff::civil::date(2026, 11, 5).at(3, 0, 0, 0));
    layers[2].parent = None;
    assert_eq!(kept(&alone(&layers, &policy(0, 0, 9), now())), "--kk");
    assert_eq!(kept(&alone(&layers, &policy(1, 0, 0), now())), "--kk");
    // Two full layers are two full layers; and days want states, which can still be restored.
    assert_eq!(kept(&alone(&layers, &policy(2, 0, 0), now())), "kkkk");
    assert_eq!(kept(&alone(&layers, &policy(0, 30, 0), now())), "kkkk");
}

/// Merged by hand, and the inputs were to stay.
#[test]
fn a_merge_does_not_make_a_full_layer_less_worth() {
    let mut layers = days("FiFi");
    let mut merged = layers[1].clone();
    merged.parent = None;
    merged.label = Label::full(jiff::civil::date(2026, 11, 6).at(3, 0, 0, 0));
    (layers[0].merged, layers[1].merged, layers[1].replaced) = (true, true, true);
    layers.insert(2, merged);
    layers[4].parent = Some(3);
    let kept = |count| kept(&alone(&layers, &policy(count, 0, 0), now()));
    assert_eq!(kept(5), "k-kkk");
    assert_eq!(kept(3), "k-kkk");
    assert_eq!(kept(2), "--kkk");
    assert_eq!(kept(1), "---kk");
}

#[test]
fn a_layer_that_cannot_be_restored_stands_in_for_none() {
    let mut layers = days("FiiFii");
    for broken in &mut layers[3..] {
        broken.broken = true;
    }
    let plan = |policy| alone(&layers, &policy, now());
    assert_eq!(kept(&plan(policy(1, 0, 0))), "kkkkkk");
    assert_eq!(plan(policy(1, 0, 0)).keep[2], [Why::Newest, Why::KeepFull]);
    // Of the days before, the newest that can be restored.
    assert_eq!(kept(&plan(policy(0, 6, 0))), "sskskk");
}

#[test]
fn a_layer_that_a_restore_reads_stays_and_keeps_no_other_from_being_the_newest() {
    let mut layers = days("FiiFii");
    layers[1].in_use = true;
    assert_eq!(kept(&alone(&layers, &policy(1, 0, 0), now())), "sk-kkk");
    // Its state lives on elsewhere, but the restore reads this one.
    layers[1].replaced = true;
    let plan = alone(&layers, &policy(1, 0, 0), now());
    assert_eq!(plan.keep[1], [Why::InUse]);
    assert_eq!(plan.keep[5], [Why::Newest, Why::KeepFull]);
}

#[test]
fn a_long_chain_is_merged_but_not_what_days_want() {
    let layers = days("Fiiiiiiiii");
    let step = |policy| alone(&layers, &policy, now()).merge;
    let expected = |newest, length| {
        Some(MergeStep {
            newest,
            oldest: 0,
            length: (10, length),
        })
    };
    assert_eq!(step(policy(0, 0, 10)), None);
    assert_eq!(step(policy(0, 0, 4)), expected(6, 4));
    assert_eq!(step(policy(0, 0, 1)), expected(9, 1));
    // The last four days need the layers from the sixth on.
    assert_eq!(step(policy(0, 4, 2)), expected(5, 5));
    assert_eq!(step(policy(0, 90, 2)), None);
    assert_eq!(step(policy(1, 0, 4)), expected(6, 4));
}

/// Where `+` stands.
fn line(on: &str) -> HistoryLine {
    let on = on.chars().enumerate().filter(|(_, sign)| *sign == '+');
    HistoryLine {
        layers: on.map(|(at, _)| at).collect(),
    }
}

#[test]
fn full_layers_of_a_copy_do_not_push_out_those_of_its_source() {
    // After the third day a copy is backed up, then its source goes on.
    let layers = days("FiiFFiFi");
    let lines = [line("+++---++"), line("++++++--")];
    let sign =
        |full, lines: &[HistoryLine]| kept(&plan(&layers, lines, &policy(full, 0, 0), now()));
    assert_eq!(sign(1, &lines), "----kkkk");
    // The source has two full layers, the first and the seventh.
    assert_eq!(sign(2, &lines), "kkkkkkkk");
    assert_eq!(sign(2, &[HistoryLine::only(&layers)]), "----kkkk");
    // The source has one, and makes increments alone.
    let layers = days("FiFFF");
    let plan = plan(
        &layers,
        &[line("++---"), line("+-+++")],
        &policy(1, 0, 0),
        now(),
    );
    assert_eq!(kept(&plan), "kk--k");
}

#[test]
fn the_newest_layer_of_each_line_stays() {
    let layers = days("FFFF");
    let lines = [line("+---"), line("++++")];
    let plan = plan(&layers, &lines, &policy(1, 0, 0), now());
    assert_eq!(kept(&plan), "k--k");
    assert_eq!(plan.keep[0], [Why::Newest, Why::KeepFull]);
}

#[test]
fn days_keep_the_layer_before_them_on_each_line() {
    let layers = days("FFFFFFFFFF");
    let lines = [line("+++-------"), line("++-+++++++")];
    assert_eq!(
        kept(&plan(&layers, &lines, &policy(0, 2, 0), now())),
        "--k----kkk"
    );
}

#[test]
fn a_branch_that_was_given_up_goes_when_it_is_older_than_what_is_kept() {
    let layers = days("FiFFiF");
    let lines = [line("++-+-+")];
    let kept = |count| kept(&plan(&layers, &lines, &policy(count, 0, 0), now()));
    assert_eq!(kept(1), "-----k");
    assert_eq!(kept(2), "---kkk");
    assert_eq!(kept(3), "kkkkkk");
}

#[test]
fn a_chain_is_not_merged_past_where_another_line_leaves_it() {
    let layers = days("Fiiiiiiiii");
    let here = line("++++++++++");
    let step = |there: &str, policy| {
        let lines = [here.clone(), line(there)];
        let step = plan(&layers, &lines, &policy, now()).merge;
        step.map(|step| (step.newest, step.length.1))
    };
    assert_eq!(step("++--------", policy(0, 0, 2)), Some((1, 9)));
    assert_eq!(step("++--------", policy(1, 0, 2)), Some((1, 9)));
    assert_eq!(step("++++++----", policy(0, 4, 2)), Some((5, 5)));
    assert_eq!(step("----------", policy(0, 0, 2)), Some((8, 2)));
}

/// Layers at these times, each full.
fn full_at(times: &[&str]) -> Vec<Held> {
    let mut layers = days(&"F".repeat(times.len()));
    for (layer, time) in layers.iter_mut().zip(times) {
        layer.finished_at = time.parse().unwrap_or_default();
    }
    layers
}

#[test]
fn the_last_layer_of_each_period_stays() {
    // A Saturday, a Sunday and a Monday; the year's end lies in a week of the next year.
    let layers = full_at(&[
        "2026-12-27T23:59:59Z",
        "2026-12-28T00:00:00Z",
        "2026-12-31T22:00:00Z",
        "2026-12-31T23:59:59Z",
        "2027-01-01T00:00:00Z",
        "2027-01-04T00:00:00Z",
    ]);
    let now = layers[5].finished_at;
    let kept = |policy: Policy| kept(&alone(&layers, &policy, now));
    assert_eq!(kept(last_of(9, 0, 0, 0)), "kk-kkk");
    assert_eq!(kept(last_of(2, 0, 0, 0)), "----kk");
    assert_eq!(kept(last_of(0, 9, 0, 0)), "k---kk");
    assert_eq!(kept(last_of(0, 0, 9, 0)), "---k-k");
    assert_eq!(kept(last_of(0, 0, 0, 9)), "---k-k");
    assert_eq!(kept(last_of(1, 2, 0, 2)), "---kkk");
    assert_eq!(kept(last_of(0, 0, 0, 1)), "-----k");
    let plan = alone(&layers, &last_of(1, 0, 2, 2), now);
    let all = [
        Why::Newest,
        Why::KeepDaily,
        Why::KeepMonthly,
        Why::KeepYearly,
    ];
    assert_eq!(plan.keep[5], all);
    assert_eq!(plan.keep[3], [Why::KeepMonthly, Why::KeepYearly]);
}

/// A server that was not backed up for months loses nothing by that: such periods do not count.
#[test]
fn periods_without_a_layer_do_not_count() {
    let layers = full_at(&[
        "2025-03-01T00:00:00Z",
        "2026-02-01T00:00:00Z",
        "2026-11-01T00:00:00Z",
    ]);
    let kept = |policy: Policy| kept(&alone(&layers, &policy, now()));
    assert_eq!(kept(last_of(0, 0, 3, 0)), "kkk");
    assert_eq!(kept(last_of(0, 0, 2, 0)), "-kk");
}

#[test]
fn what_cannot_be_restored_or_lives_on_elsewhere_is_not_the_last_of_a_period() {
    let times = [
        "2026-11-01T01:00:00Z",
        "2026-11-01T02:00:00Z",
        "2026-11-03T00:00:00Z",
    ];
    for spoilt in [
        |layer: &mut Held| layer.broken = true,
        |layer: &mut Held| layer.replaced = true,
    ] {
        let mut layers = full_at(&times);
        spoilt(&mut layers[1]);
        assert_eq!(kept(&alone(&layers, &last_of(2, 0, 0, 0), now())), "k-k");
    }
}

#[test]
fn each_line_keeps_the_last_layers_of_its_own_periods() {
    let layers = days("FFFFFF");
    let lines = [line("++--++"), line("++++--")];
    let kept = |count| kept(&plan(&layers, &lines, &last_of(count, 0, 0, 0), now()));
    assert_eq!(kept(1), "---k-k");
    assert_eq!(kept(2), "--kkkk");
    assert_eq!(kept(3), "-kkkkk");
}

#[test]
fn a_pinned_layer_stays_with_what_it_stands_on_whatever_the_rules_are() {
    let mut layers = days("FiiFiiFiii");
    layers[1].hold = Some(Hold::Pin);
    let plan_1 = alone(&layers, &policy(1, 0, 0), now());
    assert_eq!(kept(&plan_1), "sk----kkkk");
    assert_eq!(plan_1.keep[1], [Why::Held(Hold::Pin)]);
    layers[1].broken = true;
    assert_eq!(kept(&alone(&layers, &policy(1, 0, 0), now())), "sk----kkkk");
    layers[1].replaced = true;
    assert_eq!(kept(&alone(&layers, &policy(1, 0, 0), now())), "sk----kkkk");
}

fn going_on(plan: &ExpirePlan) -> String {
    let signs = plan.goes_on.iter().map(|on| if *on { '+' } else { '.' });
    signs.collect()
}

#[test]
fn a_pin_wants_no_wal_behind_the_end_of_its_layer() {
    let mut layers = days("FiiFiiFiii");
    layers[1].hold = Some(Hold::Pin);
    assert_eq!(
        going_on(&alone(&layers, &policy(1, 0, 0), now())),
        "......++++"
    );
    // What a rule wants as well goes on.
    assert_eq!(
        going_on(&alone(&layers, &policy(9, 0, 0), now())),
        "++++++++++"
    );
}

#[test]
fn older_layers_keep_the_wal_that_makes_them_consistent() {
    let layers = days("FiiFiiFiii");
    let limited = |days, policy| {
        let limited = Policy {
            keep_wal: Some(span(days)),
            ..policy
        };
        going_on(&alone(&layers, &limited, now()))
    };
    // Since November 8th, 12:00: from the layer of the 8th at 3:00 on.
    assert_eq!(limited(2, policy(9, 0, 0)), ".......+++");
    assert_eq!(limited(2, Policy::default()), ".......+++");
    assert_eq!(limited(90, policy(9, 0, 0)), "++++++++++");
    // The layer before these days is not kept: nothing older leads into them.
    assert_eq!(limited(9, policy(1, 0, 0)), "......++++");
    assert_eq!(limited(0, policy(1, 0, 0)), ".........+");
    // The newest layer goes on however old it is.
    let later: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap_or_default();
    let plan = alone(
        &layers,
        &Policy {
            keep_wal: Some(span(2)),
            ..Policy::default()
        },
        later,
    );
    assert_eq!(going_on(&plan), ".........+");
}

#[test]
fn every_line_goes_on_from_its_own_layer_before_the_cut() {
    let layers = days("FFFFFFFFFF");
    let lines = [line("+++-------"), line("++-+++++++")];
    let limited = Policy {
        keep_wal: Some(span(2)),
        ..Policy::default()
    };
    assert_eq!(
        going_on(&plan(&layers, &lines, &limited, now())),
        "..+....+++"
    );
}

#[test]
fn what_is_pinned_is_not_merged_but_what_stands_on_it_is() {
    let mut layers = days("Fiiiiiiiii");
    let step = |layers: &[Held], policy| alone(layers, &policy, now()).merge;
    layers[2].hold = Some(Hold::Pin);
    let expected = |newest, length| {
        Some(MergeStep {
            newest,
            oldest: 3,
            length: (10, length),
        })
    };
    assert_eq!(step(&layers, policy(0, 0, 6)), expected(7, 6));
    // The three at the bottom stay, whatever the limit is.
    assert_eq!(step(&layers, policy(0, 0, 1)), expected(9, 4));
    assert_eq!(step(&layers, policy(0, 4, 2)), expected(5, 8));
    layers[8].hold = Some(Hold::Pin);
    assert_eq!(step(&layers, policy(0, 0, 2)), None);
    layers[9].hold = Some(Hold::Pin);
    assert_eq!(step(&layers, policy(0, 0, 2)), None);
}

#[test]
fn the_last_of_a_period_is_not_merged_away() {
    let layers = days("Fiiiiiiiii");
    // November 1st 2026 is a Sunday: its week's last layer is the first of all, the next week's the eighth.
    let limited = |weekly| Policy {
        max_chain: Some(2),
        ..last_of(0, weekly, 0, 0)
    };
    let step = |weekly| alone(&layers, &limited(weekly), now()).merge;
    assert_eq!(step(3), None);
    assert_eq!(
        step(2).map(|step| (step.newest, step.length.1)),
        Some((7, 3))
    );
}

#[test]
fn a_layer_in_doubt_keeps_the_wal_behind_it_that_the_rules_would_keep_if_it_was_whole() {
    let mut layers = days("FFF");
    layers[1].broken = true;
    layers[1].hold = Some(Hold::Doubt);
    layers[1].goes_on = true;
    let plan_1 = alone(&layers, &policy(1, 0, 0), now());
    assert_eq!(
        (kept(&plan_1), going_on(&plan_1)),
        ("-kk".into(), ".++".into())
    );
    // What is not there any more keeps none.
    layers[1].hold = None;
    let plan_2 = alone(&layers, &policy(1, 0, 0), now());
    assert_eq!(
        (kept(&plan_2), going_on(&plan_2)),
        ("--k".into(), "..+".into())
    );
}

#[test]
fn a_layer_whose_time_is_still_to_come_takes_no_period_and_stays_until_then() {
    let mut layers = days("FFFFF");
    layers[2].finished_at = "2026-12-24T00:00:00Z".parse().unwrap_or_default();
    let kept = |policy: &Policy, now| kept(&alone(&layers, policy, now));
    assert_eq!(kept(&last_of(2, 0, 0, 0), now()), "--kkk");
    assert_eq!(kept(&last_of(1, 0, 0, 0), now()), "--k-k");
    // Then it is the last of a day as any other.
    let later = "2026-12-25T00:00:00Z".parse().unwrap_or_default();
    assert_eq!(kept(&last_of(1, 0, 0, 0), later), "--k-k");
    assert_eq!(kept(&last_of(2, 0, 0, 0), later), "--k-k");
}
