//! A second repository: what was copied into it is as good as what it was copied from.

use anyhow::Result;

use super::super::chance::Chance;
use super::super::explain::{BUSY, Excuse, OTHER_HISTORY, excuse};
use super::super::judge::{self, Request};
use super::super::log::Step;
use super::super::world::{Call, World};
use super::{disturb, moment};

/// What a removal has begun with is left out, and the report says so.
const LEFT_OUT: Excuse = excuse(&[3], &[]);

/// Copies all there is. When that is done, the copy owes what the repository owes.
pub(super) fn copy(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    moment::seal(world, step)?;
    let to = world.store.mirror();
    let call = Call::of(["--output", "json", "copy", "--to", &to]).disturbed(disturb(chance, 40));
    let mut excuses = vec![LEFT_OUT, BUSY];
    if world.may_repeat_names() || world.is_reverted {
        excuses.push(OTHER_HISTORY);
    }
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
    judge::restored(world, moment, &home, chance.percent(20))
}
