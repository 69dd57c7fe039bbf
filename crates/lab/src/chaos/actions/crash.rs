//! The server ends without being asked, or is restarted, and comes back.

use anyhow::Result;
use pgstrata_testbed::cluster::StopMode;

use super::super::chance::Chance;
use super::super::log::Step;
use super::super::world::{PATIENCE, World};
use super::statements;

/// Processes after whose death a server ends all others and recovers. The last one is a backend in a transaction.
const CHILDREN: [&str; 4] = ["checkpointer", "walwriter", "background writer", "backend"];

/// A backend that works on rows and is killed by the program that it starts.
const SUICIDE: &str = "BEGIN; CREATE TABLE lost AS SELECT generate_series(1, 5000) AS id;
    COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID'; COMMIT";

/// Ends the server in one of several ways and starts it again, as often as not in the middle of work.
pub(super) fn take(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    if chance.percent(50) {
        let serial = world.next_serial();
        let (name, _) = statements::run_one(&world.server, chance, serial)?;
        world.is_stirred = true;
        step.say(name);
    }
    if chance.percent(25) {
        return child(world, chance, step);
    }
    stop(world, chance, step)?;
    world.start_server()
}

/// Ends the server in one of several ways. Returns whether it was shut down.
pub(super) fn stop(world: &World, chance: &mut Chance, step: &mut Step) -> Result<bool> {
    let way = chance.below(4);
    let said = [
        "stopped immediately",
        "killed",
        "stopped",
        "postmaster killed",
    ];
    step.say(said[usize::try_from(way)?]);
    match way {
        0 => world.stop(StopMode::Immediate)?,
        1 => world.server.kill9()?,
        2 => world.stop(StopMode::Fast)?,
        _ => world.server.kill_postmaster()?,
    }
    Ok(way == 2)
}

/// Ends one process of the server, and waits until that has recovered by itself.
pub(super) fn child(world: &World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let which = chance.one(&CHILDREN).copied().unwrap_or("checkpointer");
    step.say(format!("{which} killed"));
    let old = world.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'")?;
    if which == "backend" {
        // Its end is what was asked for.
        let _ = world.sql(SUICIDE);
    } else if !world.server.kill_child(which)? {
        return Ok(());
    }
    let query =
        format!("SELECT pid <> {old} FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
    world.server.wait_for("postgres", &query, PATIENCE)
}
