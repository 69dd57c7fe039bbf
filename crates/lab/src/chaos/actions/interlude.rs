//! Interludes: the server runs for a while without the tracker, or a tool changes its files while it is stopped.

use anyhow::Result;
use pgstrata_testbed::cluster::{Cluster, StopMode};

use super::super::chance::Chance;
use super::super::log::Step;
use super::super::world::{PATIENCE, World};
use super::{crash, statements};

pub(super) fn take(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    match chance.percent(60) {
        true => without_libraries(world, chance, step),
        false => switch_checksums(world, step),
    }
}

/// Nobody notes which pages change.
fn without_libraries(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    crash::stop(world, chance, step)?;
    let bare = Cluster::adopt(world.server.major(), &world.home.data)
        .bindir(world.server.bindir())
        .conf("hot_standby", "off")
        .conf("shared_preload_libraries", "")
        .start()?;
    bare.wait_promoted(PATIENCE)?;
    step.say("without libraries");
    world.is_stirred = true;
    for _ in 0..chance.between(1, 6) {
        let serial = world.next_serial();
        let (name, _) = statements::run_one(&bare, chance, serial)?;
        step.say(name);
    }
    match chance.percent(50) {
        true => bare.stop(StopMode::Fast)?,
        false => bare.kill9()?,
    }
    drop(bare);
    world.start_server()
}

/// Every page is written, and no LSN tells of it.
fn switch_checksums(world: &mut World, step: &mut Step) -> Result<()> {
    let has = world.sql("SHOW data_checksums")? == "on";
    let switch = if has { "--disable" } else { "--enable" };
    step.say(format!("pg_checksums {switch}"));
    world.stop(StopMode::Fast)?;
    let data = world.home.data.display().to_string();
    world.server.run("pg_checksums", &[switch, "-D", &data])?;
    world.start_server()
}
