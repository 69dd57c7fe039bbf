//! Want: a store that fails or denies, too few descriptors, files that may not grow, a full disk.
//!
//! The command fails and says why, or it does what it was asked for. What it has done is judged as ever.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::super::chance::Chance;
use super::super::explain::{Excuse, FULL, LIMITED, STORE, excuse};
use super::super::judge::{self, Request, Way};
use super::super::log::{Step, found};
use super::super::program::Outcome;
use super::super::truth::Moment;
use super::super::world::{self, Call, Limit, World};
use super::{Effects, backup};

/// Warnings are done all the same; a restore asks when the history branches.
const DONE: Excuse = excuse(&[3], &[]);
const BRANCHES: Excuse = excuse(&[19], &["branches"]);

/// Any command, on whatever there is.
fn any_command(world: &mut World, chance: &mut Chance) -> (Call, Option<world::Home>) {
    let reads = if world.truth.layers.is_empty() { 0 } else { 1 };
    let acts = [
        ("backup", 2),
        ("restore", reads),
        ("verify", reads),
        ("info", 1),
    ];
    match chance.weighted(&acts).unwrap_or("info") {
        "backup" => {
            let words = world.pgdata_words("backup");
            let call = Call {
                words,
                ..Call::default()
            };
            let kind = chance.one(&["full", "auto"]).unwrap_or(&"full");
            (call.with(["--type", kind]), None)
        }
        "restore" => {
            let home = world.new_home("copy");
            let data = home.data.display().to_string();
            let map = format!("{}={}", world.space_oid, home.space.display());
            let call = Call::of(["--output", "json", "restore", "--target-dir", &data]);
            let immediate = ["--tablespace-map", &map, "--target-type", "immediate"];
            (call.with(immediate), Some(home))
        }
        "verify" => (Call::of(["--output", "json", "verify"]), None),
        _ => (Call::of(["--output", "json", "info"]), None),
    }
}

/// Ends what was begun, and keeps what was reported.
fn take_over(
    world: &mut World,
    outcome: &Outcome,
    home: Option<world::Home>,
    step: &mut Step,
) -> Result<Effects> {
    let is_backup = outcome.words.iter().any(|word| word == "backup");
    if is_backup && outcome.says_done() {
        let layer = world::layer(&outcome.document()?)?;
        step.say(layer.label.clone());
        world.truth.layers.insert(layer.label.clone(), layer);
    }
    if let Some(home) = home {
        world::remove_tree(&home.data)?;
        world::remove_tree(&home.space)?;
    }
    // The answer to the last request may be what was lost.
    Ok(Effects {
        may_come: is_backup && !outcome.says_done(),
        ..Effects::default()
    })
}

/// The network fails, and may be mended while the command runs; or the store denies the command.
pub(super) fn store(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    let (mut call, home) = any_command(world, chance);
    call.denied = chance.percent(20);
    let patience = world.store.gives_up().iter().copied();
    let call = call.with(patience);
    let bytes = chance.between(1, 200) * chance.between(1, 20_000);
    let heals = chance
        .percent(50)
        .then(|| Duration::from_millis(chance.between(100, 4000)));
    let kind = chance.below(5);
    if let Some(network) = world.store.network().filter(|_| !call.denied) {
        match kind {
            0 => network.cut_after(bytes),
            1 => network.stall_after(bytes),
            2 => network.stall_one_after(bytes),
            3 => network.drop_every(chance.between(2, 5)),
            _ => network.delay(Duration::from_millis(chance.between(5, 100))),
        }
        let kinds = ["cut", "stalled", "one stalled", "some dropped", "slow"];
        step.say(format!(
            "{} after {bytes} bytes{}",
            kinds[usize::try_from(kind)?],
            if heals.is_some() { ", then mended" } else { "" }
        ));
    }
    step.say(call.words[2..].join(" "));
    let mut run = world.start(&call, step)?;
    if let Some(time) = heals {
        backup::wait(&mut run, time)?;
        clear(world);
    }
    let excuses = [STORE, DONE, BRANCHES];
    let outcome = world.finish(run, &excuses, step);
    clear(world);
    let outcome = outcome?;
    if call.denied && outcome.says_done() && outcome.code == Some(0) {
        return found("a command did its work with credentials that the store denies");
    }
    take_over(world, &outcome, home, step)
}

fn clear(world: &World) {
    if let Some(network) = world.store.network() {
        network.clear();
    }
}

/// A limit that the operating system sets.
pub(super) fn limit(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    let (mut call, home) = any_command(world, chance);
    let limit = match chance.below(2) {
        0 => Limit::Descriptors(chance.between(8, 80)),
        _ => Limit::FileSize(chance.between(1, 2000)),
    };
    call.limit = Some(limit);
    step.say(format!("{limit:?}, {}", call.words[2..].join(" ")));
    let outcome = world.run(&call, &[LIMITED, DONE, BRANCHES], step)?;
    take_over(world, &outcome, home, step)
}

/// A restore into a file system that is too small, which then becomes larger: the same command completes it.
pub(super) fn full_disk(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let owed = world.truth.promised();
    let Some(moment) = chance.one(&owed).cloned() else {
        step.say("nothing is owed");
        return Ok(());
    };
    let disk = world.new_home("disk");
    world.make_dir(&disk.data)?;
    let megabytes = chance.between(1, 12);
    if !mount(&disk.data, &format!("size={megabytes}m"))? {
        step.say("SKIPPED: only root may mount a small file system");
        return world::remove_tree(&disk.data);
    }
    world.server.own(&disk.data)?;
    let outcome = restore_on(world, &disk, &moment, chance, step);
    let unmounted = run(Command::new("umount").arg(&disk.data))?;
    outcome?;
    step.say(format!("{megabytes} MB, unmounted {unmounted}"));
    world::remove_tree(&disk.data)
}

fn restore_on(
    world: &mut World,
    disk: &world::Home,
    moment: &Moment,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<()> {
    let home = world::Home {
        data: disk.data.join("data"),
        space: disk.data.join("space"),
    };
    let request = Request::of(moment, world, chance);
    let way = Way {
        options: &["--target-action", "promote"],
        excuses: &[FULL],
        kill: None,
    };
    if !request.try_restore(world, &home, &way, step)? {
        step.say("full");
        mount(&disk.data, "remount,size=2g")?;
        request.restore(world, &home, way.options, step)?;
    }
    let copy = judge::start(world, &home)?;
    judge::compare(&moment.contents, &copy)
}

fn mount(at: &Path, options: &str) -> Result<bool> {
    let options = format!("{options},mode=0755");
    let mut mount = Command::new("mount");
    run(mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at))
}

fn run(command: &mut Command) -> Result<bool> {
    let output = command
        .output()
        .context("could not start a program of the system")?;
    Ok(output.status.success())
}
