//! Two servers of one cluster: a copy is promoted and lives beside its original, until one of the two ends.
//!
//! Both archive into the repository, and both are backed up into it under the same name, as it happens when a copy is opened
//! for a test, or when an old primary writes on after a failover. The copy begins a timeline of its own: two servers on one
//! timeline are another matter (docs/adr/0029).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::{lchown, symlink};

use anyhow::{Context, Result};
use pgstrata_testbed::cluster::StopMode;

use super::super::chance::Chance;
use super::super::contents::Contents;
use super::super::judge::Request;
use super::super::log::{Step, found};
use super::super::world::{Home, World, copy_tree};
use super::{crash, history, moment, sql};

/// What the copy is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyOf {
    /// A moment that is owed
    Moment,
    /// All that is archived, which a standby replays before it is promoted
    Archive,
    /// The server's own directories, with whatever the program keeps there
    Storage,
}

/// Makes a copy, which begins a timeline. The steps that follow are those of either.
pub(super) fn fork(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let kinds = [
        (CopyOf::Moment, 4),
        (CopyOf::Archive, 3),
        (CopyOf::Storage, 4),
    ];
    let made = match chance.weighted(&kinds) {
        Some(CopyOf::Moment) => from_moment(world, chance, step)?,
        Some(CopyOf::Archive) => from_archive(world, step)?,
        _ => Some(from_storage(world, chance, step)?),
    };
    let Some(contents) = made else {
        return Ok(());
    };
    history::go_on(world, Some(&contents), step)?;
    if chance.percent(50) {
        world.change_places();
    }
    step.say(format!("next is timeline {}", world.truth.current));
    Ok(())
}

/// Restores a moment that is owed, with an archiver.
fn from_moment(
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<Option<Contents>> {
    let Some(moment) = history::choose(world, chance, step)? else {
        return Ok(None);
    };
    let request = Request::of(&moment, world, chance);
    let home = world.new_home("main");
    let options = ["--target-action", "promote", "--archive-mode", "keep"];
    request.restore(world, &home, &options, step)?;
    world.live_beside(home)?;
    Ok(Some(moment.contents))
}

/// Restores a standby, which replays what is archived, and is promoted.
fn from_archive(world: &mut World, step: &mut Step) -> Result<Option<Contents>> {
    moment::seal(world, step)?;
    let place = world.place()?;
    if world.truth.bases(place).next().is_none() {
        step.say("no standby can begin anywhere");
        return Ok(None);
    }
    step.say("a standby");
    let contents = Contents::of(&world.server)?;
    let request = Request::standby(place.timeline);
    let home = world.new_home("main");
    request.restore(world, &home, &["--archive-mode", "keep"], step)?;
    world.live_beside(home)?;
    match history::promote_standby(world, &[]) {
        Ok(()) => Ok(Some(contents)),
        Err(error) => found(format!("a restored standby is not promoted: {error:#}")),
    }
}

/// Copies the stopped server's directories; the copy is promoted where its WAL ends.
fn from_storage(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Contents> {
    step.say("a copy of the storage");
    crash::stop(world, chance, step)?;
    let home = world.new_home("main");
    copy_tree(&world.home.data, &home.data)?;
    copy_tree(&world.home.space, &home.space)?;
    world.start_server()?;
    let contents = Contents::of(&world.server)?;
    link_space(world, &home)?;
    // Left behind by a server that was killed; no other server runs there.
    let _ = fs::remove_file(home.data.join("postmaster.pid"));
    world.live_beside(home)?;
    history::begin_timeline(world)?;
    Ok(contents)
}

/// Leads the link to the tablespace into the copy's own directory.
fn link_space(world: &World, home: &Home) -> Result<()> {
    let link = home.data.join("pg_tblspc").join(&world.space_oid);
    let context = || format!("could not replace \"{}\"", link.display());
    let old = fs::symlink_metadata(&link).with_context(context)?;
    fs::remove_file(&link).with_context(context)?;
    symlink(&home.space, &link).with_context(context)?;
    lchown(&link, Some(old.uid()), Some(old.gid())).with_context(context)
}

/// The other server has its turn, and writes.
pub(super) fn turn(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    world.change_places();
    step.say(format!("timeline {}", world.truth.current));
    sql(world, chance, step)
}

/// One of the two ends, with or without all its WAL in the archive. The other one goes on as the server.
pub(super) fn part(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    if chance.percent(50) {
        world.change_places();
    }
    step.say(format!("timeline {} ends", world.truth.current));
    if chance.percent(60) {
        moment::seal(world, step)?;
        world.stop(StopMode::Fast)?;
    } else {
        crash::stop(world, chance, step)?;
        world.truth.lose_what_is_not_archived();
    }
    world.change_places();
    world.bury_sibling()?;
    step.say(format!("timeline {} goes on", world.truth.current));
    Ok(())
}
