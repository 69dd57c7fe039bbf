//! Trouble: commands that are killed or held, those of a person and those of the archiver, whose network may fail, too.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::super::chance::Chance;
use super::super::explain::{Excuse, STORE, excuse};
use super::super::hunt::Hunter;
use super::super::judge::{self, Request, Way};
use super::super::log::Step;
use super::super::world::World;
use super::{Effects, any, backup, disturb, keep, moment, statements, want};

/// What it stands on, or has begun, went while it was held.
const OVERTAKEN: Excuse = excuse(&[10, 12, 13], &[]);

/// Any command is killed or held in the middle of its work.
pub(super) fn command(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    match chance.below(100) {
        0..25 => return restore(world, chance, step).map(|()| Effects::default()),
        25..45 => return overtaken(world, chance, step),
        _ => {}
    }
    let mut asked = any::command(world, chance, step)?;
    asked.call.disturb = disturb(chance, 100);
    step.say(asked.words());
    let outcome = world.run(&asked.call, &asked.explained_by(&[]), step)?;
    asked.take_over(world, &outcome, step)
}

/// A command is held for so long that it counts as dead, an expiry takes away what nothing keeps any more, and it goes on.
fn overtaken(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    let asked = any::command(world, chance, step)?;
    step.say(asked.words());
    let mut run = world.start(&asked.call, step)?;
    backup::wait(&mut run, Duration::from_millis(chance.between(1, 800)))?;
    let mut gone = Effects::default();
    if !run.hold()? {
        step.say("held for two days");
        // What is held may have made a layer, and not told yet.
        let expired = keep::expire(world, chance, step, 1);
        run.let_go()?;
        gone = expired?;
    }
    let excuses = asked.explained_by(&[OVERTAKEN]);
    let outcome = world.finish(run, &excuses, step)?;
    let mut effects = asked.take_over(world, &outcome, step)?;
    effects.add(gone);
    Ok(effects)
}

/// A restore is killed or held; the same command completes it.
fn restore(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let owed = world.truth.promised();
    let Some(moment) = chance.one(&owed).cloned() else {
        step.say("nothing is owed");
        return Ok(());
    };
    step.say(moment.to_string());
    let request = Request::of(&moment, world, chance);
    let home = world.new_home("copy");
    let way = Way {
        options: &["--target-action", "promote"],
        excuses: &[],
        met: disturb(chance, 100),
    };
    request.try_restore(world, &home, &way, step)?;
    judge::restored(world, &moment, &home, (false, step))
}

/// The archiver's commands are killed or held, or its network fails. In the end all WAL is archived.
pub(super) fn archiver(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    let network = world.store.archiver().filter(|_| chance.percent(60));
    let mut hunter = None;
    match network {
        Some((network, key)) if chance.percent(15) => {
            network.expire_key(key);
            step.say("denied");
        }
        Some((network, _)) => step.say(want::bad_weather(network, chance)),
        None => hunter = Some(Hunter::start(&world.program, "archive-push", chance)),
    }
    let outcome = work(world, chance, step);
    if let Some((network, _)) = world.store.archiver() {
        network.clear();
    }
    if let Some(hunter) = hunter {
        step.say(format!("met {} times", hunter.finish()?));
    }
    let effects = outcome?;
    moment::seal(world, step)?;
    Ok(effects)
}

/// WAL comes, and a command looks at it or waits for it.
fn work(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    world.is_stirred = true;
    for _ in 0..chance.between(1, 4) {
        let serial = world.next_serial();
        statements::run_one(&world.server, chance, serial)?;
        world.sql("SELECT pg_create_restore_point('trouble'); SELECT pg_switch_wal()")?;
    }
    thread::sleep(Duration::from_millis(chance.between(50, 1500)));
    if !chance.percent(40) {
        return Ok(Effects::default());
    }
    let mut asked = any::command(world, chance, step)?;
    // "key check" is another command.
    let named = asked.call.words.iter();
    let mut named = named.filter(|word| ["backup", "check", "key"].contains(&word.as_str()));
    if named.next().is_some_and(|word| word != "key") {
        asked.call = std::mem::take(&mut asked.call).with(["--archive-timeout", "20s"]);
    }
    step.say(asked.words());
    let waits_in_vain = super::super::explain::excuse(&[18], &[]);
    let outcome = world.run(
        &asked.call,
        &asked.explained_by(&[STORE, waits_in_vain]),
        step,
    )?;
    asked.take_over(world, &outcome, step)
}
