//! The server ends without being asked, or is restarted, and comes back.

use anyhow::Result;
use pgstrata_testbed::cluster::StopMode;

use super::super::chance::Chance;
use super::super::log::Step;
use super::super::world::World;
use super::statements;

/// Ends the server in one of several ways and starts it again, as often as not in the middle of work.
pub(super) fn take(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    if chance.percent(50) {
        let serial = world.next_serial();
        let (name, _) = statements::run_one(&world.server, chance, serial)?;
        world.is_stirred = true;
        step.say(name);
    }
    stop(world, chance, step)?;
    world.server.start()
}

/// Ends the server in one of several ways. Returns whether it was shut down.
pub(super) fn stop(world: &World, chance: &mut Chance, step: &mut Step) -> Result<bool> {
    let way = chance.below(3);
    step.say(["stopped immediately", "killed", "stopped"][usize::try_from(way)?]);
    match way {
        0 => world.stop(StopMode::Immediate)?,
        1 => world.server.kill9()?,
        _ => world.stop(StopMode::Fast)?,
    }
    Ok(way == 2)
}
