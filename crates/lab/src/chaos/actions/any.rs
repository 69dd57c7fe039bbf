//! Any command of the program, on whatever there is: for steps that do something to a command, whichever it is.

use std::fs;

use anyhow::Result;

use super::super::chance::Chance;
use super::super::explain::{CHECK_FAILED, Excuse, NO_ANSWER, OTHER_HISTORY, excuse};
use super::super::judge;
use super::super::log::{Step, found};
use super::super::program::Outcome;
use super::super::world::{Call, Home, World};
use super::{Effects, backup, keep, keys, mirror};

/// Warnings are done all the same.
const DONE: Excuse = excuse(&[3], &[]);

/// A segment has gone.
const EXPIRED: Excuse = excuse(&[1], &[]);

/// A restore without a timeline asks when the history branches.
const BRANCHES: Excuse = excuse(&[19], &["branches"]);

/// A command, and what follows from it.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) call: Call,
    /// For which reasons it may fail although nothing is done to it.
    pub(super) excuses: Vec<Excuse>,
    /// For which more it may fail when something is.
    pub(super) in_trouble: Vec<Excuse>,
    /// What it fills, and nobody needs.
    home: Option<Home>,
    effects: Effects,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Backup,
    Restore,
    Verify,
    VerifyDeep,
    Info,
    Check,
    Merge,
    Expire,
    ArchiveGet,
    Annotate,
    Init,
    Key,
    Copy,
    Tracker,
}

/// Chooses one.
pub(super) fn command(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<Asked> {
    let layers = world.truth.layers.len();
    let when = |possible: bool, weight: u64| if possible { weight } else { 0 };
    let kinds = [
        (Kind::Backup, 4),
        (Kind::Restore, when(layers > 0, 2)),
        (Kind::Verify, when(layers > 0, 1)),
        (Kind::Info, 1),
        (Kind::Check, 1),
        (Kind::Merge, when(layers > 2, 2)),
        (Kind::Expire, when(layers > 3, 2)),
        (Kind::ArchiveGet, when(world.sealed.is_some(), 2)),
        (Kind::Annotate, when(layers > 0, 1)),
        (Kind::Init, 1),
        (Kind::Key, when(world.shape.is_sealed, 4)),
        (Kind::Copy, when(layers > 0, 1)),
        (Kind::VerifyDeep, when(layers > 0, 1)),
        (Kind::Tracker, 1),
    ];
    let kind = chance.weighted(&kinds).unwrap_or(Kind::Info);
    let asked = match kind {
        Kind::Merge => match keep::merge_call(world, chance, step) {
            Some((call, effects)) => kept(call, effects, &keep::MERGE_EXCUSES),
            None => plain("info"),
        },
        Kind::Expire => {
            let (call, effects) = keep::expire_call(chance, step, 0);
            kept(call, effects, &keep::EXPIRE_EXCUSES)
        }
        Kind::Backup => backup(world, chance),
        Kind::Restore => restore(world),
        Kind::Verify => verify(world, &[]),
        Kind::VerifyDeep => verify(world, &["--deep"]),
        Kind::Info => plain("info"),
        Kind::Check => check(world),
        Kind::ArchiveGet => archive_get(world),
        Kind::Annotate => annotate(world, chance),
        Kind::Init => init(world),
        Kind::Key => key(world, chance),
        Kind::Copy => copy(world),
        Kind::Tracker => tracker(world),
    };
    Ok(asked)
}

fn plain(act: &str) -> Asked {
    Asked {
        call: Call::of(["--output", "json", act]),
        excuses: vec![DONE],
        ..Asked::default()
    }
}

fn kept(call: Call, effects: Effects, excuses: &[Excuse]) -> Asked {
    Asked {
        call,
        excuses: excuses.to_vec(),
        effects,
        ..Asked::default()
    }
}

fn backup(world: &World, chance: &mut Chance) -> Asked {
    let call = world.backup_call();
    let kind = chance.one(&["full", "auto", "incr"]).unwrap_or(&"full");
    let call = call.with(["--type", kind]);
    let mut excuses = vec![DONE];
    if backup::must_stand_on_one(&call) {
        excuses.push(backup::NO_PARENT);
    }
    if world.may_repeat_names() {
        excuses.push(OTHER_HISTORY);
    }
    Asked {
        call,
        excuses,
        ..Asked::default()
    }
}

fn restore(world: &mut World) -> Asked {
    let home = world.new_home("copy");
    let data = home.data.display().to_string();
    let map = format!("{}={}", world.space_oid, home.space.display());
    let call = Call::of(["--output", "json", "restore", "--target-dir", &data]);
    let immediate = ["--tablespace-map", &map, "--target-type", "immediate"];
    Asked {
        call: call.with(immediate).with(["--target-action", "promote"]),
        excuses: vec![DONE, BRANCHES],
        home: Some(home),
        ..Asked::default()
    }
}

fn verify(world: &World, options: &[&str]) -> Asked {
    let asked = plain("verify");
    Asked {
        call: asked.call.with(options.iter().copied()),
        excuses: judge::unsound(world),
        ..asked
    }
}

/// Where there is no tracker, that is what it says, as a warning.
fn tracker(world: &World) -> Asked {
    let mut words = world.pgdata_words("tracker");
    words.insert(3, "status".to_owned());
    Asked {
        call: Call {
            words,
            ..Call::default()
        },
        excuses: vec![DONE],
        ..Asked::default()
    }
}

fn check(world: &World) -> Asked {
    let mut excuses = vec![DONE];
    if world.may_repeat_names() {
        excuses.push(CHECK_FAILED);
    }
    Asked {
        call: Call {
            words: world.pgdata_words("check"),
            ..Call::default()
        },
        excuses,
        in_trouble: vec![CHECK_FAILED],
        ..Asked::default()
    }
}

/// A segment that is there: "the archive ends before it" is never the answer.
fn archive_get(world: &mut World) -> Asked {
    let name = world.sealed.clone().unwrap_or_default();
    let path = world.new_home("got").data;
    let path = path.display().to_string();
    Asked {
        call: Call::of(["archive-get", &name, &path]),
        in_trouble: vec![NO_ANSWER],
        ..Asked::default()
    }
}

fn annotate(world: &World, chance: &mut Chance) -> Asked {
    let labels: Vec<String> = world.truth.layers.keys().cloned().collect();
    let label = chance.one(&labels).map_or("latest", String::as_str);
    Asked {
        call: Call::of(["--output", "json", "annotate", label, "ticket=4711"]),
        excuses: vec![keep::REFUSED],
        ..Asked::default()
    }
}

/// The cluster is there, and nothing changes. It is sealed for whom it was sealed before.
fn init(world: &World) -> Asked {
    Asked {
        call: Call {
            words: world.pgdata_words("init"),
            ..Call::default()
        },
        ..Asked::default()
    }
}

fn key(world: &World, chance: &mut Chance) -> Asked {
    let (call, mut excuses) = keys::call(world, chance);
    excuses.push(DONE);
    Asked {
        call,
        excuses,
        ..Asked::default()
    }
}

fn copy(world: &World) -> Asked {
    let (call, excuses) = mirror::call(world);
    Asked {
        call,
        excuses,
        ..Asked::default()
    }
}

impl Asked {
    /// Every reason for which it may fail when `more` may happen to it.
    pub(super) fn explained_by(&self, more: &[Excuse]) -> Vec<Excuse> {
        [&self.excuses[..], &self.in_trouble, more].concat()
    }

    /// What it is told, for the log.
    pub(super) fn words(&self) -> String {
        let is_told = |word: &&String| !["--output", "json"].contains(&word.as_str());
        let words: Vec<&str> = self
            .call
            .words
            .iter()
            .filter(is_told)
            .map(String::as_str)
            .collect();
        words.join(" ")
    }

    /// Ends what was begun, and keeps what was reported.
    pub(super) fn take_over(
        self,
        world: &mut World,
        outcome: &Outcome,
        step: &mut Step,
    ) -> Result<Effects> {
        let is = |act: &str| outcome.words.iter().any(|word| word == act);
        let mut effects = self.effects.of(outcome);
        if is("backup") && outcome.says_done() {
            step.say(world.keep_layer(&outcome.document()?)?.label);
        }
        if is("archive-get") {
            got(world, outcome, step)?;
        }
        if is("key") {
            keys::take_over(world, outcome, step)?;
        }
        if let Some(home) = self.home {
            opens_if_it_may(world, &home, outcome, step)?;
        }
        // The answer to the last request may be what was lost.
        effects.may_come |= is("backup") && !outcome.says_done();
        Ok(effects)
    }
}

/// What a restore leaves opens as a server that agrees with itself, or cannot be started: it then has no `pg_control`.
fn opens_if_it_may(world: &World, home: &Home, outcome: &Outcome, step: &mut Step) -> Result<()> {
    if home.data.join("global/pg_control").exists() {
        let copy = judge::start(world, home)?;
        judge::look_inside(&copy, step)?;
    } else if outcome.says_done() {
        return found("a restore says that it is done, and there is no pg_control");
    }
    home.remove()
}

/// A file that was fetched is the segment that is fetched again when nothing disturbs it; one that was not has no name.
fn got(world: &mut World, outcome: &Outcome, step: &mut Step) -> Result<()> {
    let [.., name, path] = &outcome.words[..] else {
        return Ok(());
    };
    let there = fs::read(path).ok();
    let _ = fs::remove_file(path);
    let Some(there) = there else {
        return match outcome.code {
            Some(0) => found("archive-get fetched nothing, and said 0"),
            _ => Ok(()),
        };
    };
    let again = Call::of(["archive-get", name, path]);
    // An expiry beside the first one may have removed it.
    let fetched = world.run(&again, &[EXPIRED], step)?.says_done();
    let whole = world.shape.wal_segment_mb << 20;
    if u64::try_from(there.len())? != whole || fetched && fs::read(path)? != there {
        return found(format!(
            "archive-get left {} bytes that are not segment {name}",
            there.len()
        ));
    }
    let _ = fs::remove_file(path);
    Ok(())
}
