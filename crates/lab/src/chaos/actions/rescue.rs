//! Somebody deletes objects of the repository and overwrites others, or expires too much, behind a moment that is known. A
//! rescue brings them back from a bucket that keeps versions. Then all is owed that was owed before.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;

use super::super::chance::Chance;
use super::super::explain::{Excuse, STORE};
use super::super::judge::{self, Request};
use super::super::log::{Step, found};
use super::super::program::Outcome;
use super::super::world::{Call, World};
use super::{SELDOM, disturb, judge_some, keep, moment, want};

/// Stores note whole seconds: nothing happens within some of them.
const QUIET: Duration = Duration::from_millis(1600);

/// What meets a rescue before the one that completes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meets {
    Nothing,
    /// It is killed, held or asked to end.
    Signal,
    /// So, while each answer of the store takes its time.
    SignalOnSlowNetwork,
    BadWeather,
}

const MEETS: [(Meets, u64); 4] = [
    (Meets::Nothing, 3),
    (Meets::Signal, 2),
    (Meets::SignalOnSlowNetwork, 3),
    (Meets::BadWeather, 2),
];

/// Destroys some of what there is, or all, and brings it back.
pub(super) fn take(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    // What waits for the archiver would come in between.
    moment::seal_all(world, step)?;
    let since = quiet_moment()?;
    step.say(format!("since {since}"));
    let destroyed = match chance.percent(25) {
        true => {
            expire_by_mistake(world, step)?;
            None
        }
        false => Some(destroy(world, chance, step)?),
    };
    if chance.percent(25) {
        read_the_past(world, &since, chance, step)?;
    }
    let call = || Call::of(["--output", "json", "rescue", "--since", &since]);
    let meets = chance.weighted(&MEETS).unwrap_or(Meets::Nothing);
    if meets != Meets::Nothing {
        step.say(format!("{meets:?}"));
        meet(world, call(), meets, (chance, step))?;
    }
    let rescued = world.demand(call(), step)?;
    let back = brought_back(&rescued)?;
    if let Some(count) = destroyed.filter(|_| meets == Meets::Nothing)
        && count != back
    {
        return found(format!("a rescue of {count} objects names {back}"));
    }
    let left = brought_back(&world.demand(call(), step)?)?;
    if left != 0 {
        return found(format!("{left} objects are to be rescued after the rescue"));
    }
    judge::verify(world, false, step)?;
    judge_some(world, (1, SELDOM), chance, step)
}

/// Deletes some objects and overwrites others; says how many.
fn destroy(world: &World, chance: &mut Chance, step: &mut Step) -> Result<usize> {
    let keys = world.store.keys()?;
    let most = match chance.below(4) {
        0 => keys.len(),
        1 => keys.len() / 3 + 1,
        _ => usize::try_from(chance.between(1, 6))?,
    };
    let doomed = chance.sample(&keys, most);
    for key in &doomed {
        world.store.destroy(key, chance.percent(60))?;
    }
    let (count, all) = (doomed.len(), keys.len());
    step.say(format!("{count} of {all} objects destroyed"));
    Ok(count)
}

/// Removes what a rule does not keep that somebody has chosen too small.
fn expire_by_mistake(world: &mut World, step: &mut Step) -> Result<()> {
    world.store.age()?;
    let words = ["--keep-yearly", "1", "--ignore-restores"];
    let call = Call::of(["--output", "json", "expire"]).with(words);
    let outcome = world.run(&call, &keep::EXPIRE_EXCUSES, step)?;
    let gone = match outcome.says_done() {
        true => outcome.document()?["remove"].as_array().map_or(0, Vec::len),
        false => 0,
    };
    step.say(format!("{gone} layers expired by mistake"));
    Ok(())
}

/// A moment, within seconds in which nothing happens.
fn quiet_moment() -> Result<String> {
    thread::sleep(QUIET);
    let now = Timestamp::from_second(Timestamp::now().as_second())?;
    thread::sleep(QUIET);
    Ok(now.to_string())
}

/// Runs a rescue that something meets.
fn meet(
    world: &mut World,
    mut call: Call,
    meets: Meets,
    (chance, step): (&mut Chance, &mut Step),
) -> Result<()> {
    let mut excuses: &[Excuse] = &[];
    if let Some(network) = world.store.network() {
        match meets {
            Meets::SignalOnSlowNetwork => {
                network.delay(Duration::from_millis(chance.between(5, 60)));
            }
            Meets::BadWeather => {
                excuses = &[STORE];
                step.say(want::bad_weather(network, chance));
                let patience = world.store.gives_up().iter().copied();
                call = call.with_first(patience);
            }
            _ => {}
        }
    }
    if meets != Meets::BadWeather {
        call.disturb = disturb(chance, 100);
    }
    let outcome = world.run(&call, excuses, step);
    if let Some(network) = world.store.network() {
        network.clear();
    }
    outcome.map(drop)
}

/// How many objects a rescue names that it brings back.
fn brought_back(outcome: &Outcome) -> Result<usize> {
    let document = outcome.document()?;
    let count = |kind: &str| {
        let named = document[kind].as_array();
        named
            .map(Vec::len)
            .with_context(|| format!("the rescue names no {kind} objects"))
    };
    Ok(count("hidden")? + count("replaced")?)
}

/// Restores something that is owed out of the bucket as it was.
fn read_the_past(
    world: &mut World,
    since: &str,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<()> {
    let owed = world.truth.promised();
    let Some(moment) = chance.one(&owed) else {
        return Ok(());
    };
    step.say(format!("out of the past: {moment}"));
    let request = Request::of(moment, world, chance);
    let home = world.new_home("copy");
    let options = ["--target-action", "promote", "--repository-as-of", since];
    request.restore(world, &home, &options, step)?;
    judge::restored(world, moment, &home, (false, step))
}
