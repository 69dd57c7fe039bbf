//! A backup of any kind, with something going on beside it.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use pgstrata_testbed::cluster::{Major, StopMode};

use super::super::chance::Chance;
use super::super::contents::Contents;
use super::super::explain::{BUSY, CRASHED, Excuse, OTHER_HISTORY, excuse};
use super::super::log::{Step, found};
use super::super::program::{Outcome, Run};
use super::super::truth::{Layer, Moment, Reach};
use super::super::world::{Call, World};
use super::{Effects, crash, disturb, keep, settings, statements};

/// What goes on beside a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Statements,
    Settings,
    SecondBackup,
    BackupOfSibling,
    Removal,
    ServerStops(StopMode),
    PowerFails,
    PostmasterDies,
    ChildDies,
}

const BESIDE: [(Beside, u64); 11] = [
    (Beside::Nothing, 40),
    (Beside::Statements, 36),
    (Beside::Settings, 8),
    (Beside::SecondBackup, 6),
    (Beside::BackupOfSibling, 12),
    (Beside::Removal, 8),
    (Beside::ServerStops(StopMode::Immediate), 4),
    (Beside::ServerStops(StopMode::Fast), 3),
    (Beside::PowerFails, 3),
    (Beside::PostmasterDies, 3),
    (Beside::ChildDies, 4),
];

/// A backup that found nothing to stand on, although it was told to.
pub(super) const NO_PARENT: Excuse = excuse(&[10], &["there is no layer to stand on"]);

/// What it was to stand on is being removed.
const OVERTAKEN: Excuse = excuse(&[13], &["remov"]);

/// A database that recovery would copy from a directory that the backup has not seen whole.
const DATABASE_MOVED: Excuse = excuse(&[13], &["was moved from", "was copied file by file"]);

/// Done, with a warning. Which one is looked at where the report is.
const WARNED: Excuse = excuse(&[3], &[]);

pub(super) fn take(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Effects> {
    // The first layer is made in peace, so that every run has something to lose.
    let is_first = world.truth.layers.is_empty();
    let is_possible = |beside: &Beside| {
        !is_first && (*beside != Beside::BackupOfSibling || world.sibling.is_some())
    };
    let beside = chance.weighted(&BESIDE).filter(is_possible);
    let beside = beside.unwrap_or(Beside::Nothing);
    let call = call(world, chance);
    let call = call.disturbed(disturb(chance, 35).filter(|_| !is_first));
    let mut excuses = vec![WARNED];
    if must_stand_on_one(&call) {
        excuses.push(NO_PARENT);
    }
    if world.may_repeat_names() {
        excuses.push(OTHER_HISTORY);
    }
    step.say(call.words[5..].join(" "));
    let mut run = world.start(&call, step)?;
    wait(&mut run, Duration::from_millis(chance.between(20, 600)))?;
    let (explained, mut effects) = match beside {
        Beside::Removal => remove_beside(world, chance, step)?,
        _ => (
            go_on_beside(beside, world, chance, step)?,
            Effects::default(),
        ),
    };
    excuses.extend(explained);
    let outcome = world.finish(run, &excuses, step)?;
    if matches!(
        beside,
        Beside::ServerStops(_) | Beside::PowerFails | Beside::PostmasterDies
    ) {
        world.start_server()?;
    }
    report(world, &outcome, beside, step)?;
    let is_second = matches!(beside, Beside::SecondBackup | Beside::BackupOfSibling);
    effects.may_come |= outcome.may_have_acted() || is_second;
    Ok(effects)
}

/// The options.
fn call(world: &World, chance: &mut Chance) -> Call {
    let has_layers = !world.truth.line().is_empty();
    let types = [
        ("full", 20),
        ("auto", 20),
        ("incr", if has_layers { 45 } else { 0 }),
        ("diff", if has_layers { 15 } else { 0 }),
    ];
    let summaries = world.server.major() >= Major::V17;
    let sources = [
        ("auto", 40),
        ("lsn", 25),
        ("digest", 15),
        ("summary", if summaries { 30 } else { 0 }),
        ("tracker", if world.is_tracked() { 40 } else { 0 }),
    ];
    let wals = [
        ("auto", 4),
        ("stream", 3),
        ("archive", if world.shape.archives { 4 } else { 0 }),
    ];
    let mut call = world.backup_call();
    for (option, choice) in [
        ("--type", chance.weighted(&types)),
        ("--change-source", chance.weighted(&sources)),
        ("--wal", chance.weighted(&wals)),
        ("--jobs", chance.one(&["1", "2", "4"]).copied()),
    ] {
        call = call.with([option, choice.unwrap_or("auto")]);
    }
    if chance.percent(30) {
        call = call.with(["--audit", chance.one(&["5%", "100%"]).unwrap_or(&"5%")]);
    }
    if chance.percent(30) {
        call = call.with(["--max-rate", "20M"]);
    }
    if chance.percent(30) {
        let methods = ["none", "lz4", "zstd:3"];
        call = call.with(["--compress", chance.one(&methods).unwrap_or(&"none")]);
    }
    call
}

/// Whether the backup is told to stand on a layer.
pub(super) fn must_stand_on_one(call: &Call) -> bool {
    let told = call.words.windows(2).filter(|pair| pair[0] == "--type");
    let mut kinds = told.map(|pair| pair[1].as_str());
    kinds.any(|kind| ["incr", "diff"].contains(&kind))
}

/// Lets some time pass, while the run goes on and may be disturbed.
pub(super) fn wait(run: &mut Run, time: Duration) -> Result<()> {
    let end = run.elapsed() + time;
    while run.elapsed() < end && run.ended()?.is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Removes layers while the backup may stand on them; returns what it explains, and what it may have done.
fn remove_beside(
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<(Vec<Excuse>, Effects)> {
    let merge = match chance.percent(50) {
        true => keep::merge_call(world, chance, step),
        false => None,
    };
    let (call, effects, excuses) = match merge {
        Some((call, effects)) => (call, effects, keep::MERGE_EXCUSES),
        None => {
            let (call, effects) = keep::expire_call(chance, step, 1);
            (call, effects, keep::EXPIRE_EXCUSES)
        }
    };
    step.say("beside it");
    let outcome = world.run(&call, &excuses, step)?;
    Ok((vec![OVERTAKEN], effects.of(&outcome)))
}

/// Does it; returns what it explains.
fn go_on_beside(
    beside: Beside,
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<Vec<Excuse>> {
    if beside != Beside::Nothing {
        step.say(format!("beside it {beside:?}"));
    }
    match beside {
        Beside::Nothing | Beside::Removal => Ok(Vec::new()),
        Beside::Statements => {
            world.is_stirred = true;
            for _ in 0..chance.between(1, 8) {
                let serial = world.next_serial();
                statements::run_one(&world.server, chance, serial)?;
            }
            Ok(vec![DATABASE_MOVED])
        }
        Beside::Settings => settings::change(world, chance, step).map(|()| Vec::new()),
        Beside::SecondBackup => second(world, step).map(|_| vec![BUSY]),
        Beside::BackupOfSibling => {
            world.change_places();
            let layer = second(world, step)?;
            if let Some(layer) = layer {
                keep_end(world, &layer)?;
            }
            world.change_places();
            Ok(vec![BUSY])
        }
        Beside::ServerStops(mode) => world.stop(mode).map(|()| vec![CRASHED]),
        Beside::PowerFails => world.server.kill9().map(|()| vec![CRASHED]),
        Beside::PostmasterDies => world.server.kill_postmaster().map(|()| vec![CRASHED]),
        Beside::ChildDies => crash::child(world, chance, step).map(|()| vec![CRASHED]),
    }
}

/// A backup that another one is in the way of; the layer, if there is one.
fn second(world: &mut World, step: &mut Step) -> Result<Option<Layer>> {
    let call = world.backup_call();
    let mut excuses = vec![BUSY, WARNED];
    if world.may_repeat_names() {
        excuses.push(OTHER_HISTORY);
    }
    let second = world.run(&call, &excuses, step)?;
    if !second.says_done() {
        return Ok(None);
    }
    world.keep_layer(&second.document()?).map(Some)
}

/// Keeps the layer, and the moment at its end when nothing else went on.
fn report(world: &mut World, outcome: &Outcome, beside: Beside, step: &mut Step) -> Result<()> {
    if !outcome.says_done() {
        return Ok(());
    }
    let document = outcome.document()?;
    let corrupt = document["corrupt_pages"].as_array().map_or(0, Vec::len);
    if corrupt > 0 {
        return found(format!(
            "the backup calls {corrupt} pages of a healthy cluster corrupt: {}",
            document["corrupt_pages"]
        ));
    }
    let warnings = document["warnings"].as_array().map_or(0, Vec::len);
    if outcome.code == Some(3) && warnings == 0 {
        return found("the backup ended with 3 and warns of nothing");
    }
    if warnings > 0 {
        step.say(format!("warnings {}", document["warnings"]));
    }
    let layer = world.keep_layer(&document)?;
    step.say(format!(
        "{} by {}",
        layer.label,
        document["change_source"]["used"].as_str().unwrap_or("?")
    ));
    match beside {
        Beside::Nothing | Beside::BackupOfSibling => keep_end(world, &layer),
        _ => Ok(()),
    }
}

/// Keeps the end of a layer as a moment of truth: the server has not changed since.
fn keep_end(world: &mut World, layer: &Layer) -> Result<()> {
    let moment = Moment {
        at: layer.stop,
        reached_by: Reach::EndOf(layer.label.clone()),
        contents: Contents::of(&world.server)?,
        is_archived: true,
    };
    world.truth.moments.push(moment);
    Ok(())
}
