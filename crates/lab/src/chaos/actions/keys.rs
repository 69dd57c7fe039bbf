//! Keys of a sealed cluster: a second reader is let in and taken out, and epochs begin.

use anyhow::Result;

use super::super::chance::Chance;
use super::super::explain::{Excuse, excuse};
use super::super::log::{Step, found};
use super::super::program::Outcome;
use super::super::world::{Access, Call, World};
use super::disturb;

/// He was not in, so there is nobody to take out.
const OPENS_NOTHING: Excuse = excuse(&[10], &["opens nothing"]);

/// Whoever is let into the past reads the present.
const NO_READER: Excuse = excuse(&[13], &["is not a reader"]);

/// An epoch with one reader is a warning.
const ONE_READER: Excuse = excuse(&[3], &[]);

/// Who is not in is refused.
const REFUSED: Excuse = excuse(&[13], &["sealed"]);

/// What is done to the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Rotate,
    Check,
    Add,
    Reseal,
    Remove,
}

const DEEDS: [(Deed, u64); 5] = [
    (Deed::Rotate, 3),
    (Deed::Check, 1),
    (Deed::Add, 3),
    (Deed::Reseal, 3),
    (Deed::Remove, 2),
];

/// Changes who reads, or begins an epoch.
pub(super) fn change(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let (call, mut excuses) = call(world, chance);
    excuses.push(ONE_READER);
    let call = call.disturbed(disturb(chance, 25));
    step.say(call.words[2..].join(" "));
    let outcome = world.run(&call, &excuses, step)?;
    take_over(world, &outcome, step)
}

/// A command, and for which reasons it may fail although nothing is done to it.
pub(super) fn call(world: &World, chance: &mut Chance) -> (Call, Vec<Excuse>) {
    let deed = chance.weighted(&DEEDS).unwrap_or(Deed::Check);
    let (recipient, is_in) = match &world.reader {
        Some(reader) => (reader.recipient.as_str(), reader.access != Access::None),
        None => ("", false),
    };
    let unless_in = |excuse: Excuse| if is_in { Vec::new() } else { vec![excuse] };
    let key = Call::of(["--output", "json", "key"]);
    match deed {
        Deed::Rotate => (key.with(["rotate"]), Vec::new()),
        Deed::Check => (key.with(["check"]), Vec::new()),
        Deed::Add => (key.with(["add", "--recipient", recipient]), Vec::new()),
        Deed::Reseal => (key.with(["reseal", recipient]), unless_in(NO_READER)),
        Deed::Remove => (key.with(["remove", recipient]), unless_in(OPENS_NOTHING)),
    }
}

/// Completes what was begun, which keeps everybody from sealing until somebody does, and keeps who reads what now.
pub(super) fn take_over(world: &mut World, outcome: &Outcome, step: &mut Step) -> Result<()> {
    let is = |act: &str| outcome.words.iter().any(|word| word == act);
    let is_done = outcome.says_done();
    let words = outcome.words.iter().map(String::as_str);
    let again = Call::of(words);
    let access = if is("rotate") || is("add") {
        if !is_done {
            world.demand(again, step)?;
        }
        match world.access() {
            Access::None if is("add") => Access::Present,
            access => access,
        }
    } else if is("remove") {
        if !is_done {
            // It may have been done all the same.
            world.run(&again, &[OPENS_NOTHING], step)?;
        }
        Access::None
    } else if is("reseal") && is_done {
        Access::All
    } else {
        return Ok(());
    };
    if let Some(reader) = &mut world.reader {
        step.say(format!("the second reader reads: {access:?}"));
        reader.access = access;
    }
    Ok(())
}

/// Whoever was taken out, or never was in, reads nothing.
pub(super) fn judge(world: &mut World, step: &mut Step) -> Result<()> {
    if world.reader.is_none() || world.access() != Access::None {
        return Ok(());
    }
    let call = Call::of(["--output", "json", "info"]).by_reader();
    let outcome = world.run(&call, &[REFUSED], step)?;
    step.say("the second reader is refused");
    match outcome.code {
        Some(13) => Ok(()),
        _ => found("somebody reads a sealed cluster who is not in"),
    }
}
