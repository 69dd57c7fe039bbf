//! What keeps the repository small: merges and expiries, which may be killed like everything else.

use std::collections::BTreeSet;

use anyhow::Result;

use super::super::chance::Chance;
use super::super::explain::{BUSY, Excuse, excuse};
use super::super::log::Step;
use super::super::world::{Call, World};
use super::{Effects, disturb};

/// Something kept the command from removing what it would have removed; the notes say what.
const NOTED: Excuse = excuse(&[3], &[]);

/// A layer that a rule or a removal wants gone is nothing to merge.
pub(super) const REFUSED: Excuse = excuse(&[13], &["remov", "nothing to merge"]);

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
    world.run(&call, &MERGE_EXCUSES, step)?;
    Ok(effects)
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
    world.truth.merged.extend(world.truth.twins(&chain));
    world.truth.merged.extend(chain.iter().cloned());
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
    let mut may_go = BTreeSet::new();
    if removes {
        may_go = world.truth.twins(&chain);
        may_go.extend(chain);
    }
    let may_come = true;
    Some((call, Effects { may_go, may_come }))
}

/// Pins a layer, or takes a pin out.
pub(super) fn pin(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let pinned: Vec<String> = world.truth.pinned.iter().cloned().collect();
    if chance.percent(50)
        && let Some(label) = chance.one(&pinned)
    {
        step.say(format!("unpin {label}"));
        let call = Call::of(["--output", "json", "unpin", label]);
        let call = call.disturbed(disturb(chance, 30));
        if !world.run(&call, &[REFUSED], step)?.says_done() {
            // Whether the pin is out is not known.
            world.demand(Call::of(["--output", "json", "unpin", label]), step)?;
        }
        world.truth.pinned.remove(label);
        return Ok(());
    }
    let labels: Vec<String> = world.truth.layers.keys().cloned().collect();
    let Some(label) = chance.one(&labels) else {
        return Ok(());
    };
    step.say(format!("pin {label}"));
    let call = Call::of(["--output", "json", "pin", label]).disturbed(disturb(chance, 30));
    let outcome = world.run(&call, &[REFUSED], step)?;
    if outcome.says_done() {
        world.truth.pinned.insert(label.clone());
    }
    Ok(())
}

/// Removes what a random rule does not keep.
pub(super) fn expire(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    let_time_pass(world, chance, step)?;
    let (call, effects) = expire_call(world, chance, step, 0);
    let call = call.disturbed(disturb(chance, 30));
    world.run(&call, &EXPIRE_EXCUSES, step)?;
    Ok(effects)
}

/// The call of an expiry, and what it may do when so many layers may come beside it.
pub(super) fn expire_call(
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
    coming: usize,
) -> (Call, Effects) {
    let count = chance.between(1, 3);
    let number = count.to_string();
    let count = usize::try_from(count).unwrap_or(1);
    let (rule, mut may_go) = match chance.below(10) {
        0 => (["--keep-days", "1"], BTreeSet::new()),
        1..4 => (
            ["--max-chain", number.as_str()],
            world.truth.may_merge_away(count.saturating_sub(coming)),
        ),
        _ => (
            ["--keep-full", number.as_str()],
            world.truth.may_expire(count, coming),
        ),
    };
    // An expiry may take a layer for replaced, whatever its rule is.
    let all: Vec<String> = world.truth.layers.keys().cloned().collect();
    may_go.extend(world.truth.twins(&all));
    may_go.extend(world.truth.merged.iter().cloned());
    let mut call = Call::of(["--output", "json", "expire"]).with(rule);
    if chance.percent(70) {
        call = call.with(["--ignore-restores"]);
    }
    step.say(format!(
        "{}, {} may go",
        call.words[3..].join(" "),
        may_go.len()
    ));
    let may_come = rule[0] == "--max-chain";
    if !may_come {
        world.truth.strand(&may_go);
    }
    (call, Effects { may_go, may_come })
}
