//! What keeps the repository small: merges and expiries, which may be killed like everything else.

use std::collections::BTreeSet;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};

use super::super::chance::Chance;
use super::super::explain::{BUSY, Excuse, excuse};
use super::super::log::Step;
use super::super::truth::{Culling, Period, Rules};
use super::super::world::{Call, World};
use super::{Effects, disturb};

/// Something kept the command from removing what it would have removed; the notes say what.
const NOTED: Excuse = excuse(&[3], &[]);

/// A layer that a rule or a removal wants gone is nothing to merge.
pub(super) const REFUSED: Excuse = excuse(&[13], &["remov", "nothing to merge"]);

/// It was done before the command was killed.
const NOT_PINNED: Excuse = excuse(&[10], &["is not pinned"]);

/// Attempts that were killed look alive for a quarter of an hour. So it passes, more often than not.
fn let_time_pass(world: &World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    if chance.percent(75) {
        step.say("two days later");
        world.store.age()?;
    }
    Ok(())
}

/// An expiry with other rules was killed, and its record names what the rules of this one keep.
const BEGUN: Excuse = excuse(&[13], &["names what this run would keep"]);

pub(super) const MERGE_EXCUSES: [Excuse; 3] = [NOTED, BUSY, REFUSED];
pub(super) const EXPIRE_EXCUSES: [Excuse; 3] = [NOTED, BUSY, BEGUN];

/// Merges the chain of a layer, or a part of it.
pub(super) fn merge(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    let_time_pass(world, chance, step)?;
    let Some((call, effects)) = merge_call(world, chance, step) else {
        step.say("nothing to merge");
        return Ok(Effects::default());
    };
    let call = call.disturbed(disturb(chance, 30));
    let outcome = world.run(&call, &MERGE_EXCUSES, step)?;
    Ok(effects.of(&outcome))
}

/// The call of a merge, and what it may do; nothing when there is nothing to merge.
pub(super) fn merge_call(
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
) -> Option<(Call, Effects)> {
    let stacked = world
        .truth
        .layers
        .values()
        .filter(|layer| layer.parent.is_some());
    let stacked: Vec<String> = stacked.map(|layer| layer.label.clone()).collect();
    let label = chance.one(&stacked)?;
    let chain = world.truth.chain(label);
    // It may be made of a merged layer that stands for one of the chain.
    let mut merged = world.truth.twins(&chain);
    merged.extend(chain.iter().cloned());
    let mut call = Call::of(["--output", "json", "merge", label]);
    // What has a twin may have been replaced by it.
    let has_twin = |at: usize| !world.truth.twins(&chain[at..=at]).is_empty();
    if chain.len() > 2 && chance.percent(40) && !has_twin(1) {
        call = call.with(["--from", &chain[1]]);
    }
    let removes = chance.percent(60);
    if removes {
        call = call.with(["--remove-inputs"]);
    }
    if removes && chance.percent(50) {
        call = call.with(["--ignore-restores"]);
    }
    step.say(call.words[3..].join(" "));
    let may_go = if removes {
        merged.clone()
    } else {
        BTreeSet::new()
    };
    let effects = Effects {
        may_go,
        may_come: true,
        merged,
        ..Effects::default()
    };
    Some((call, effects))
}

/// Pins a layer, or takes a pin out.
pub(super) fn pin(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let pinned: Vec<String> = world.truth.pinned.iter().cloned().collect();
    if chance.percent(50)
        && let Some(label) = chance.one(&pinned)
    {
        step.say(format!("unpin {label}"));
        let unpin = || Call::of(["--output", "json", "unpin", label]);
        let call = unpin().disturbed(disturb(chance, 30));
        if !world.run(&call, &[REFUSED], step)?.says_done() {
            // Whether the pin is out is not known.
            world.run(&unpin(), &[NOT_PINNED], step)?;
        }
        world.truth.pinned.remove(label);
        return Ok(());
    }
    let labels: Vec<String> = world.truth.layers.keys().cloned().collect();
    let Some(label) = chance.one(&labels) else {
        return Ok(());
    };
    step.say(format!("pin {label}"));
    let pin = || Call::of(["--output", "json", "pin", label]);
    let call = pin().disturbed(disturb(chance, 30));
    let mut outcome = world.run(&call, &[REFUSED], step)?;
    if !outcome.says_done() && outcome.disturbed.is_some() {
        // Whether the pin is made is not known.
        outcome = world.run(&pin(), &[REFUSED], step)?;
    }
    if outcome.says_done() {
        world.truth.pinned.insert(label.clone());
    }
    Ok(())
}

/// Removes what random rules do not keep, while so many layers may come of which no command tells.
pub(super) fn expire(
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
    coming: usize,
) -> Result<Effects> {
    let_time_pass(world, chance, step)?;
    let (mut call, effects) = expire_call(chance, step, coming);
    call.disturb = disturb(chance, 30);
    let outcome = world.run(&call, &EXPIRE_EXCUSES, step)?;
    if !outcome.says_done() && outcome.disturbed.is_some() && chance.percent(60) {
        step.say("again");
        call.disturb = None;
        world.run(&call, &EXPIRE_EXCUSES, step)?;
    }
    Ok(effects)
}

/// The call of an expiry, and what it may do when so many layers may come beside it.
pub(super) fn expire_call(chance: &mut Chance, step: &mut Step, coming: usize) -> (Call, Effects) {
    let rules = rules(chance);
    let words = rules.words();
    let mut call = Call::of(["--output", "json", "expire"]);
    call = call.with(words.iter().map(String::as_str));
    if chance.percent(70) {
        call = call.with(["--ignore-restores"]);
    }
    step.say(call.words[3..].join(" "));
    let may_come = rules.max_chain.is_some();
    let culling = Culling {
        rules,
        coming,
        began: Timestamp::now(),
    };
    let effects = Effects {
        may_come,
        cullings: vec![culling],
        ..Effects::default()
    };
    (call, effects)
}

/// Rules as people combine them. `--keep-full` and `--max-chain` come one without the other: a merged layer is a full one, so
/// nobody knows which full layers are counted.
fn rules(chance: &mut Chance) -> Rules {
    let mut rules = Rules::default();
    let count = usize::try_from(chance.between(1, 3)).unwrap_or(1);
    let period = *chance.one(&PERIODS).unwrap_or(&Period::Day);
    match chance.below(20) {
        0..8 => rules.full = Some(count),
        8..13 => rules.max_chain = Some(count),
        13..16 => rules.within = Some(span(chance)),
        16..19 => rules.last_of = Some((period, count)),
        _ => rules.wal = Some(span(chance)),
    }
    match chance.below(10) {
        0 => rules.within = Some(span(chance)),
        1 => rules.last_of = Some((period, count)),
        2..5 => rules.wal = Some(span(chance)),
        5 => (rules.within, rules.wal) = (Some(span(chance)), Some(span(chance))),
        _ => {}
    }
    rules
}

const PERIODS: [Period; 4] = [Period::Day, Period::Week, Period::Month, Period::Year];

/// Hours that no short run takes.
const LONG: [i64; 3] = [1, 24, 36];

/// A span: mostly seconds, of which a run makes a layer in some.
fn span(chance: &mut Chance) -> SignedDuration {
    if chance.percent(25) {
        let hours = chance.one(&LONG).copied();
        return SignedDuration::from_hours(hours.unwrap_or(1));
    }
    let seconds = chance.between(1, 12) * chance.between(1, 12);
    SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(1))
}
