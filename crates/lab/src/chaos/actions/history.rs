//! The history takes another way: a copy becomes the server, a directory goes back in place, a disk goes back to a snapshot.
//!
//! Each of them begins a timeline. Its history is archived before anything else happens, as an administrator would
//! see to: two servers that know nothing of each other's timeline would give it the same number.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pgstrata_testbed::cluster::{Cluster, Major, StopMode};

use super::super::chance::Chance;
use super::super::contents::Contents;
use super::super::explain::{Excuse, excuse};
use super::super::judge::{self, Request, Way};
use super::super::log::{Step, found};
use super::super::truth::Moment;
use super::super::world::{PATIENCE, World, copy_tree, remove_tree};
use super::{crash, disturb, moment};

/// WAL that was not archived would be lost.
const NOT_ARCHIVED: Excuse = excuse(&[13], &["archive"]);

/// Something that is owed, to go on from.
pub(super) fn choose(
    world: &mut World,
    chance: &mut Chance,
    step: &mut Step,
) -> Result<Option<Moment>> {
    if chance.percent(70) {
        moment::seal(world, step)?;
    }
    let owed = world.truth.promised();
    let chosen = chance.one(&owed).cloned();
    match &chosen {
        Some(moment) => step.say(moment.to_string()),
        None => step.say("nothing is owed"),
    }
    Ok(chosen)
}

/// A copy is restored to a moment that is owed, and goes on in the place of the server.
pub(super) fn promote(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let Some(moment) = choose(world, chance, step)? else {
        return Ok(());
    };
    crash::stop(world, chance, step)?;
    world.truth.lose_what_is_not_archived();
    let request = Request::of(&moment, world, chance);
    let home = world.new_home("main");
    let more = ["--target-action", "promote", "--archive-mode", "keep"];
    let more = &more[..if world.shape.archives { 4 } else { 2 }];
    request.restore(world, &home, more, step)?;
    let old = world.home.clone();
    world.move_to(home)?;
    forget_snapshot(world)?;
    go_on(world, Some(&moment.contents), step)?;
    old.remove()
}

/// The server's own directory goes back to a moment that is owed.
pub(super) fn in_place(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let Some(moment) = choose(world, chance, step)? else {
        return Ok(());
    };
    let was_shut_down = crash::stop(world, chance, step)?;
    let request = Request::of(&moment, world, chance);
    let mut more = vec!["--delta", "--links-are-own", "--target-action", "promote"];
    if world.shape.archives {
        more.extend(["--archive-mode", "keep"]);
    }
    if !was_shut_down {
        more.push("--server-is-stopped");
    }
    let mut way = Way {
        options: &more,
        excuses: &[NOT_ARCHIVED],
        met: disturb(chance, 60),
    };
    if !request.restore_in_place(world, &way, (chance, step))? {
        step.say("refused: WAL waits for the archiver");
        world.start_server()?;
        moment::seal(world, step)?;
        world.stop(StopMode::Fast)?;
        way.met = None;
        if !request.restore_in_place(world, &way, (chance, step))? {
            return found("restore --delta refuses although all WAL is archived");
        }
    }
    world.truth.lose_what_is_not_archived();
    go_on(world, Some(&moment.contents), step)
}

/// The server starts on its new timeline, which is archived.
pub(super) fn go_on(world: &mut World, contents: Option<&Contents>, step: &mut Step) -> Result<()> {
    let opened = world.server.start();
    let opened = opened.and_then(|()| world.server.wait_promoted(PATIENCE));
    if let Err(error) = opened {
        return found(format!("the restored server does not go on: {error:#}"));
    }
    if let Some(contents) = contents {
        judge::compare(contents, &world.server)?;
    }
    if !world.shape.archives {
        world.is_reverted = true;
        world.truth.is_ambiguous = true;
    }
    world.sealed = None;
    let latest = world.truth.latest();
    let place = world.learn_timeline()?;
    step.say(format!("goes on with timeline {}", place.timeline));
    // The archive knows of all timelines that there are.
    if world.shape.archives && place.timeline <= latest {
        return found(format!(
            "the restored server goes on with timeline {}, and there is {latest}",
            place.timeline
        ));
    }
    world.is_stirred = true;
    // Where a new timeline begins, one that goes on is a branch only with WAL from after that.
    moment::seal_all(world, step)
}

/// Keeps a cold copy of the server's directories.
pub(super) fn snapshot(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let place = world.place()?;
    crash::stop(world, chance, step)?;
    forget_snapshot(world)?;
    let home = world.new_home("snapshot");
    copy_tree(&world.home.data, &home.data)?;
    copy_tree(&world.home.space, &home.space)?;
    step.say(format!("at {}", place.lsn));
    world.snapshot = Some((home, place));
    world.start_server()
}

fn forget_snapshot(world: &mut World) -> Result<()> {
    let Some((old, _)) = world.snapshot.take() else {
        return Ok(());
    };
    old.remove()
}

/// Puts the copy back. With an archive the server begins a timeline there, which the archive needs; without one it goes
/// on as if nothing had happened.
pub(super) fn revert(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let Some((home, place)) = world.snapshot.clone() else {
        return Ok(());
    };
    crash::stop(world, chance, step)?;
    let same_inodes = chance.percent(50);
    step.say(format!("to {}, inodes kept: {same_inodes}", place.lsn));
    for (from, to) in [
        (&home.data, &world.home.data),
        (&home.space, &world.home.space),
    ] {
        if same_inodes {
            put_back(from, to)?;
        } else {
            remove_tree(to)?;
            copy_tree(from, to)?;
        }
    }
    // Left behind by a server that was killed; no other server runs here.
    let _ = fs::remove_file(world.home.data.join("postmaster.pid"));
    world.truth.cut_off();
    world.truth.lose_after(place);
    world.is_stirred = true;
    world.is_reverted = true;
    if !world.shape.archives {
        return world.start_server();
    }
    begin_timeline(world)?;
    world.truth.lose_what_is_not_archived();
    go_on(world, None, step)
}

/// Recovery is to have no target. What an earlier one was told stays in the configuration, and standbys obey it, too.
const NO_TARGET: [(&str, &str); 5] = [
    ("recovery_target", ""),
    ("recovery_target_name", ""),
    ("recovery_target_lsn", ""),
    ("recovery_target_time", ""),
    ("recovery_target_xid", ""),
];

/// Promotes the stopped server where its own WAL ends. Of the archive it asks only which timelines there are.
pub(super) fn begin_timeline(world: &World) -> Result<()> {
    let history = world.history_command();
    let told = [
        ("recovery_target_timeline", "current"),
        ("restore_command", &history),
    ];
    promote_standby(world, &[&NO_TARGET[..], &told].concat())
}

/// Starts the stopped server as a standby with these settings, promotes it, and stops it.
pub(super) fn promote_standby(world: &World, settings: &[(&str, &str)]) -> Result<()> {
    let signal = world.home.data.join("standby.signal");
    fs::write(&signal, "").with_context(|| format!("could not write \"{}\"", signal.display()))?;
    world.server.own(&signal)?;
    // As a hot standby it could fail, as `adopt` of the world says.
    let mut standby = Cluster::adopt(world.server.major(), &world.home.data)
        .bindir(world.server.bindir())
        .conf("hot_standby", "off");
    for (name, value) in settings {
        standby = standby.conf(name, value);
    }
    if world.server.major() >= Major::V17 {
        // No summarizer runs where nobody is let in, and the promotion would wait for it, and fail.
        standby = standby.conf("summarize_wal", "off");
    }
    let standby = standby.start()?;
    let end = Instant::now() + PATIENCE;
    // It is no standby before its startup process has said so in pg_control.
    while let Err(error) = standby.promote() {
        ensure!(
            Instant::now() < end,
            "the standby is not promoted: {error:#}"
        );
        thread::sleep(Duration::from_millis(50));
    }
    standby.wait_promoted(PATIENCE)?;
    standby.stop(StopMode::Fast)
}

/// Makes a directory equal to another one, into the inodes that are there.
fn put_back(from: &Path, to: &Path) -> Result<()> {
    let names = |directory: &Path| -> io::Result<BTreeSet<OsString>> {
        fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    };
    let (old, new) = (names(from)?, names(to)?);
    for name in new.difference(&old) {
        let path = to.join(name);
        match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir_all(&path)?,
            false => fs::remove_file(&path)?,
        }
    }
    for name in &old {
        let (source, target) = (from.join(name), to.join(name));
        if !new.contains(name) {
            copy_tree(&source, &target)?;
        } else if source.is_symlink() {
            continue;
        } else if source.is_dir() {
            put_back(&source, &target)?;
        } else {
            let mut file = OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(&target)?;
            io::copy(&mut fs::File::open(&source)?, &mut file)?;
        }
    }
    Ok(())
}
