//! Want: a store that fails or denies, too few descriptors or processes, files that may not grow, full disks.
//!
//! The command fails and says why, or it does what it was asked for. What it has done is judged as ever.

use std::time::Duration;

use anyhow::Result;
use pgstrata_testbed::proxy::Proxy;

use super::super::chance::Chance;
use super::super::disk::Disk;
use super::super::explain::{Excuse, FULL, LIMITED, STORE};
use super::super::judge::{self, Request, Way};
use super::super::log::{Step, found};
use super::super::truth::Moment;
use super::super::world::{self, Limit, World};
use super::{Effects, any, backup, moment};

/// Commands open few files and connections, whatever there is to do. The smallest usual limit is four times this.
const ENOUGH_DESCRIPTORS: u64 = 256;

/// A way in which a network fails; says which.
pub(super) fn bad_weather(network: &Proxy, chance: &mut Chance) -> String {
    let bytes = chance.between(1, 200) * chance.between(1, 20_000);
    let how = match chance.below(5) {
        0 => {
            network.cut_after(bytes);
            "cut"
        }
        1 => {
            network.stall_after(bytes);
            "stalled"
        }
        2 => {
            network.stall_one_after(bytes);
            "one stalled"
        }
        3 => {
            network.drop_every(chance.between(2, 5));
            "some dropped"
        }
        _ => {
            network.delay(Duration::from_millis(chance.between(5, 100)));
            "slow"
        }
    };
    format!("{how} after {bytes} bytes")
}

/// The network fails, and may be mended while the command runs; or the store denies the command.
pub(super) fn store(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    let mut asked = any::command(world, chance, step)?;
    // The status of the tracker needs no repository, and no credentials.
    let needs_store = !asked.call.words.iter().any(|word| word == "tracker");
    asked.call.denied = chance.percent(20) && needs_store;
    let patience = world.store.gives_up().iter().copied();
    asked.call = std::mem::take(&mut asked.call).with_first(patience);
    let heals = chance
        .percent(50)
        .then(|| Duration::from_millis(chance.between(100, 4000)));
    if let Some(network) = world.store.network().filter(|_| !asked.call.denied) {
        let mended = if heals.is_some() { ", then mended" } else { "" };
        step.say(bad_weather(network, chance) + mended);
    }
    step.say(asked.words());
    let mut run = world.start(&asked.call, step)?;
    if let Some(time) = heals {
        backup::wait(&mut run, time)?;
        clear(world);
    }
    let outcome = world.finish(run, &asked.explained_by(&[STORE]), step);
    clear(world);
    let outcome = outcome?;
    if asked.call.denied && outcome.says_done() && outcome.code == Some(0) {
        return found("a command did its work with credentials that the store denies");
    }
    asked.take_over(world, &outcome, step)
}

fn clear(world: &World) {
    if let Some(network) = world.store.network() {
        network.clear();
    }
}

/// A limit that the operating system sets.
pub(super) fn limit(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    let mut asked = any::command(world, chance, step)?;
    let limit = match chance.below(4) {
        0 => Limit::Descriptors(chance.between(8, 80)),
        1 => Limit::FileSize(chance.between(1, 2000)),
        2 => Limit::Processes(*chance.one(&[1, 1, 40, 400]).unwrap_or(&1)),
        _ => Limit::Descriptors(ENOUGH_DESCRIPTORS),
    };
    asked.call.limit = Some(limit);
    step.say(format!("{limit:?}, {}", asked.words()));
    let excuses: Vec<Excuse> = match limit {
        Limit::Descriptors(ENOUGH_DESCRIPTORS) => asked.excuses.clone(),
        _ => asked.explained_by(&[LIMITED]),
    };
    let outcome = world.run(&asked.call, &excuses, step)?;
    asked.take_over(world, &outcome, step)
}

/// The disk of the repository fills, under a command and under the archiver, and has room again.
pub(super) fn full_repository(
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<Effects> {
    let asked = any::command(world, chance, step)?;
    let room = chance.between(0, 60) * chance.between(0, 60);
    step.say(format!("{room} KiB free, {}", asked.words()));
    if let Some(disk) = world.store.disk() {
        disk.fill(room)?;
    }
    if world.shape.archives && chance.percent(50) {
        world.sql("SELECT pg_create_restore_point('full'); SELECT pg_switch_wal()")?;
    }
    let outcome = world.run(&asked.call, &asked.explained_by(&[FULL]), step);
    if let Some(disk) = world.store.disk() {
        disk.enlarge()?;
    }
    let effects = asked.take_over(world, &outcome?, step)?;
    moment::seal(world, step)?;
    Ok(effects)
}

/// A restore into a file system that is too small, which then becomes larger: the same command completes it.
pub(super) fn full_disk(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let owed = world.truth.promised();
    let Some(moment) = chance.one(&owed).cloned() else {
        step.say("nothing is owed");
        return Ok(());
    };
    let target = world.new_home("disk");
    world.make_dir(&target.data)?;
    let megabytes = chance.between(1, 12);
    let Some(disk) = Disk::small(&target.data, megabytes)? else {
        step.say("SKIPPED: only root may mount a small file system");
        return world::remove_tree(&target.data);
    };
    world.server.own(&target.data)?;
    step.say(format!("{megabytes} MB"));
    let outcome = restore_on(world, &disk, &moment, chance, step);
    drop(disk);
    outcome?;
    world::remove_tree(&target.data)
}

fn restore_on(
    world: &mut World,
    disk: &Disk,
    moment: &Moment,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<()> {
    let home = world::Home {
        data: disk.at().join("data"),
        space: disk.at().join("space"),
    };
    let request = Request::of(moment, world, chance);
    let way = Way {
        options: &["--target-action", "promote"],
        excuses: &[FULL],
        met: None,
    };
    if !request.try_restore(world, &home, &way, step)? {
        step.say("full");
        disk.enlarge()?;
        request.restore(world, &home, way.options, step)?;
    }
    let copy = judge::start(world, &home)?;
    judge::compare(&moment.contents, &copy)
}
