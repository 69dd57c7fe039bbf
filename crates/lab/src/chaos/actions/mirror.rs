//! A second repository: what was copied into it is as good as what it was copied from.

use std::time::Duration;

use anyhow::Result;

use super::super::chance::Chance;
use super::super::explain::{BUSY, Excuse, OTHER_HISTORY, excuse};
use super::super::judge::{self, Request};
use super::super::log::Step;
use super::super::program::{Disturbance, Planned};
use super::super::world::{Call, World};
use super::{disturb, moment, sql};

/// What a removal has begun with is left out, and the report says so.
const LEFT_OUT: Excuse = excuse(&[3], &[]);

/// The call, and for which reasons it may fail although nothing is done to it.
pub(super) fn call(world: &World) -> (Call, Vec<Excuse>) {
    let call = Call::of(["--output", "json", "copy", "--to", &world.store.mirror()]);
    let mut excuses = vec![LEFT_OUT, BUSY];
    if world.may_repeat_names() || world.is_reverted {
        excuses.push(OTHER_HISTORY);
    }
    (call, excuses)
}

/// Copies what is new again and again, while more comes, until it is asked to end.
fn follow(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let (call, excuses) = call(world);
    let end = Planned {
        after: Duration::from_millis(chance.between(200, 5000)),
        what: Disturbance::Terminate,
    };
    let call = call.with(["--follow", "--every", "1s"]);
    let run = world.start(&call.disturbed(Some(end)), step)?;
    step.say("followed");
    let written = sql(world, chance, step).and_then(|()| moment::seal(world, step));
    world.finish(run, &excuses, step)?;
    written
}

/// Copies all there is. When that is done, the copy owes what the repository owes.
pub(super) fn copy(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    if chance.percent(25) {
        follow(world, chance, step)?;
    }
    moment::seal(world, step)?;
    let (call, excuses) = call(world);
    let call = call.disturbed(disturb(chance, 40));
    let outcome = world.run(&call, &excuses, step)?;
    if outcome.code != Some(0) {
        return Ok(());
    }
    let owed = world.truth.promised();
    let Some(moment) = chance.one(&owed) else {
        return judge::verify(world, true, step);
    };
    if chance.percent(30) {
        return judge::verify(world, true, step);
    }
    step.say(format!("from the copy: {moment}"));
    let home = world.new_home("copy");
    let request = Request::of(moment, world, chance).on_mirror();
    request.restore(world, &home, &["--target-action", "promote"], step)?;
    judge::restored(world, moment, &home, (chance.percent(20), step))
}
