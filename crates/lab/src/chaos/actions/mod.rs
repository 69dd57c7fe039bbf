//! What a step does to the server, the program and the repository. Each act keeps the truth in step with it.

mod any;
mod backup;
mod crash;
mod fork;
mod history;
mod interlude;
mod keep;
mod keys;
mod mirror;
mod moment;
mod rescue;
mod settings;
mod statements;
mod trouble;
mod want;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;

pub(super) use moment::seal_all;

use super::chance::Chance;
use super::judge;
use super::log::Step;
use super::plan::Act;
use super::program::{Disturbance, Outcome, Planned};
use super::truth::{Culling, Moment};
use super::world::World;

/// What a step may have done to the layers without telling.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) may_go: BTreeSet<String>,
    pub(super) may_come: bool,
    /// Layers of which a merge may have been made.
    pub(super) merged: BTreeSet<String>,
    /// Expiries that were run.
    pub(super) cullings: Vec<Culling>,
}

impl Effects {
    /// What is left of them when the command was refused before it began.
    fn of(mut self, outcome: &Outcome) -> Self {
        if outcome.was_refused() {
            self.merged.clear();
        }
        self
    }

    /// With those of something else in the same step.
    fn add(&mut self, other: Self) {
        self.may_go.extend(other.may_go);
        self.may_come |= other.may_come;
        self.merged.extend(other.merged);
        self.cullings.extend(other.cullings);
    }
}

/// Does it.
pub(super) fn take(
    act: Act,
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<Effects> {
    match act {
        Act::Statements => sql(world, chance, step)?,
        Act::Settings => settings::change(world, chance, step)?,
        Act::Moment => moment::take(world, step)?,
        Act::Seal => moment::seal(world, step)?,
        Act::Crash => crash::take(world, chance, step)?,
        Act::Interlude => interlude::take(world, chance, step)?,
        Act::Judge => judge_some(world, (1, SELDOM), chance, step)?,
        Act::Verify => judge::verify(world, false, step)?,
        Act::Copy => mirror::copy(world, chance, step)?,
        Act::Keys => keys::change(world, chance, step)?,
        Act::Pin => keep::pin(world, chance, step)?,
        Act::Promote => history::promote(world, chance, step)?,
        Act::InPlace => history::in_place(world, chance, step)?,
        Act::Snapshot => history::snapshot(world, chance, step)?,
        Act::Revert => history::revert(world, chance, step)?,
        Act::Fork => fork::fork(world, chance, step)?,
        Act::Turn => fork::turn(world, chance, step)?,
        Act::Part => fork::part(world, chance, step)?,
        Act::FullDisk => want::full_disk(world, chance, step)?,
        Act::Merge => return keep::merge(world, chance, step),
        Act::Expire => return keep::expire(world, chance, step, 0),
        Act::Rescue => rescue::take(world, chance, step)?,
        Act::Store => return want::store(world, chance, step),
        Act::Limit => return want::limit(world, chance, step),
        Act::FullRepository => return want::full_repository(world, chance, step),
        Act::Trouble => return trouble::command(world, chance, step),
        Act::Archiver => return trouble::archiver(world, chance, step),
        Act::Backup => return backup::take(world, chance, step),
    }
    Ok(Effects::default())
}

fn sql(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    world.is_stirred = true;
    for _ in 0..chance.between(1, 6) {
        let serial = world.next_serial();
        let (name, is_done) = statements::run_one(&world.server, chance, serial)?;
        let refused = if is_done { "" } else { " (refused)" };
        step.say(format!("{name}{refused}"));
    }
    Ok(())
}

/// How often in a hundred times it is looked inside what was restored, which takes longer than all the rest: amid other steps,
/// and at the end.
const SELDOM: u64 = 30;
pub(super) const ALWAYS: u64 = 100;

/// Restores so many of the moments that are owed, and looks inside so often.
pub(super) fn judge_some(
    world: &mut World,
    (at_most, inside): (usize, u64),
    chance: &mut Chance,
    step: &mut Step,
) -> Result<()> {
    seal_all(world, step)?;
    let owed = world.truth.promised();
    step.say(format!("{} owed", owed.len()));
    let asked_about = owed.iter().filter(|m| world.truth.is_asked_about(m));
    let asked_about: Vec<Moment> = asked_about.cloned().collect();
    let prefers = at_most == 1 && !asked_about.is_empty() && chance.percent(50);
    let of = if prefers { asked_about } else { owed };
    for moment in chance.sample(&of, at_most) {
        judge::moment(world, (&moment, inside), chance, step)?;
    }
    let known = |label: &String| {
        let reach = super::truth::Reach::EndOf(label.clone());
        world.truth.moments.iter().any(|m| m.reached_by == reach)
    };
    let unknown: Vec<String> = world
        .truth
        .layers
        .keys()
        .filter(|l| !known(l))
        .cloned()
        .collect();
    keys::judge(world, step)?;
    if chance.percent(40)
        && let Some(label) = chance.one(&unknown)
    {
        judge::layer(world, label, step)?;
    }
    Ok(())
}

/// What is done to a command, so often in a hundred times.
pub(super) fn disturb(chance: &mut Chance, share: u64) -> Option<Planned> {
    if !chance.percent(share) {
        return None;
    }
    // Half of the commands on a small cluster have ended after half a second.
    let limit = chance.between(1, 1500);
    let after = Duration::from_millis(chance.between(0, limit));
    let pause = Disturbance::Pause(Duration::from_millis(chance.between(50, 2500)));
    let kinds = [
        (Disturbance::Kill, 5),
        (Disturbance::Terminate, 2),
        (pause, 3),
    ];
    let what = chance.weighted(&kinds)?;
    Some(Planned { after, what })
}
