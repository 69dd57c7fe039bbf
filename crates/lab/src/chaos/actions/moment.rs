//! Moments of truth: what the server holds now, under every name by which recovery finds it.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::super::contents::Contents;
use super::super::log::{Step, found};
use super::super::truth::{Lsn, Moment, Names, Place, Reach};
use super::super::world::{PATIENCE, World};

/// Clocks of a machine tell microseconds; two statements are further apart.
const APART: Duration = Duration::from_millis(2);

/// An archiver has stored a segment of a small cluster by then, unless something is wrong.
const SOON: Duration = Duration::from_secs(10);

/// Keeps what the server holds now. Nobody else may write meanwhile.
pub(super) fn take(world: &mut World, step: &mut Step) -> Result<()> {
    let contents = Contents::of(&world.server)?;
    let serial = world.next_serial();
    let point = format!("moment-{serial}");
    let script = format!(
        "SELECT pg_current_wal_insert_lsn(); SELECT pg_create_restore_point('{point}') \\g /dev/null
         SELECT clock_timestamp(); SELECT pg_sleep({});
         BEGIN; SELECT pg_current_xact_id(); SELECT pg_logical_emit_message(true, 'chaos', '{point}') \\g /dev/null
         COMMIT; SELECT pg_current_wal_insert_lsn()",
        APART.as_secs_f64()
    );
    let printed = world.sql(&script)?;
    let mut lines = printed.lines().filter(|line| !line.is_empty());
    let mut next = || lines.next().context("the server named no moment");
    let (lsn, time) = (Lsn::parse(next()?)?, next()?.to_owned());
    let (xid, end) = (next()?.to_owned(), Lsn::parse(next()?)?);
    thread::sleep(APART);
    let at = Place {
        timeline: world.truth.current,
        lsn: end,
    };
    step.say(format!("{point} at {end}, {} hashes", contents.len()));
    world.truth.moments.push(Moment {
        at,
        reached_by: Reach::Wal(Names {
            point,
            lsn,
            time,
            xid,
        }),
        contents,
        is_archived: false,
    });
    world.is_stirred = false;
    Ok(())
}

/// Finishes the WAL segment and waits until the server's archiver was told that it is durable.
pub(super) fn seal(world: &mut World, step: &mut Step) -> Result<()> {
    if !world.shape.archives {
        return Ok(());
    }
    // A switch in a segment without a record does nothing.
    world.sql("SELECT pg_create_restore_point('seal')")?;
    let end = world.sql("SELECT pg_switch_wal()")?;
    let segment = world.sql(&format!("SELECT pg_walfile_name('{end}'::pg_lsn - 1)"))?;
    let query =
        format!("SELECT coalesce(last_archived_wal >= '{segment}', false) FROM pg_stat_archiver");
    if world.server.wait_for("postgres", &query, SOON).is_err() {
        pass_over_second_partial(world, step)?;
    }
    if let Err(error) = world.server.wait_for("postgres", &query, PATIENCE) {
        return found(format!("the archiver does not store {segment}: {error:#}"));
    }
    let place = Place {
        timeline: world.truth.current,
        lsn: Lsn::parse(&end)?,
    };
    world.truth.archived_up_to(place, &segment);
    step.say(format!("archived up to {segment}"));
    world.sealed = Some(segment);
    Ok(())
}

/// Does what `archive-push` advises when another server was promoted out of the same segment before.
fn pass_over_second_partial(world: &World, step: &mut Step) -> Result<()> {
    let failed = world.sql("SELECT coalesce(last_failed_wal, '') FROM pg_stat_archiver")?;
    let marks = world.home.data.join("pg_wal/archive_status");
    let ready = marks.join(format!("{failed}.ready"));
    if failed.ends_with(".partial") && ready.exists() {
        step.say(format!("{failed} is the second one"));
        fs::rename(&ready, marks.join(format!("{failed}.done")))
            .with_context(|| format!("could not rename \"{}\"", ready.display()))?;
    }
    Ok(())
}

/// The same for all servers that live.
pub(in super::super) fn seal_all(world: &mut World, step: &mut Step) -> Result<()> {
    seal(world, step)?;
    if world.change_places() {
        seal(world, step)?;
        world.change_places();
    }
    Ok(())
}
