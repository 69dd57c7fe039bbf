//! The judge: restores what is owed, starts it, and compares it with what was true.

use std::fmt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pgstrata_testbed::cluster::{Cluster, SUPERUSER, StopMode};
use serde_json::Value;

use super::chance::Chance;
use super::contents::Contents;
use super::explain::{Excuse, excuse};
use super::hunt::Hunter;
use super::log::{Step, found};
use super::program::Planned;
use super::truth::{Layer, Moment, Names, Reach};
use super::versions;
use super::world::{Access, Call, Home, PATIENCE, World};

/// Several timelines hold something, and nobody said which one counts.
const BRANCHES: Excuse = excuse(&[19], &["branches"]);

/// The same, or the target does not lie on the latest timeline.
const NOT_THERE: Excuse = excuse(&[19], &[]);

/// A verification misses WAL.
const WAL_MISSING: Excuse = excuse(&[18], &["missing from the archive, though later"]);

/// What is not the same in a table that has a copy, row for row.
const LEDGER: &str =
    "SELECT count(*) FROM (SELECT * FROM ledger_one EXCEPT ALL SELECT * FROM ledger_two) a
    FULL JOIN (SELECT * FROM ledger_two EXCEPT ALL SELECT * FROM ledger_one) b USING (id)";

/// Locks of prepared transactions would keep the checks waiting.
const ROLL_BACK_PREPARED: &str = r"SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = current_database() \gexec";

/// A recovery empties unlogged tables.
const COUNT_UNLOGGED: &str = r"SELECT format('SELECT count(*) FROM %s', oid::regclass) FROM pg_class WHERE relkind = 'r' AND relpersistence = 'u' \gexec";

/// By which of its names a moment is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Point,
    Lsn,
    Time,
    Xid,
}

const ALL_NAMES: [By; 4] = [By::Point, By::Lsn, By::Time, By::Xid];

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Point => "name",
            Self::Lsn => "lsn",
            Self::Time => "time",
            Self::Xid => "xid",
        })
    }
}

/// The target's options.
fn target(names: &Names, by: By) -> [String; 4] {
    let point = match by {
        By::Point => names.point.clone(),
        By::Lsn => names.lsn.to_string(),
        By::Time => names.time.clone(),
        By::Xid => names.xid.clone(),
    };
    [
        "--target-type".to_owned(),
        by.to_string(),
        "--target".to_owned(),
        point,
    ]
}

fn named(moment: &Moment) -> String {
    format!("--target-timeline={}", moment.at.timeline)
}

/// How a moment is asked for.
#[derive(Debug)]
pub(super) struct Request {
    words: Vec<String>,
    /// Options that a second try adds, when the first one asks which branch counts.
    then: Vec<String>,
    /// Why the first one may not do.
    asks: Excuse,
    /// Whether the copy of the repository is asked.
    is_on_mirror: bool,
    /// Whether the second reader asks.
    is_by_reader: bool,
}

/// How a restore goes.
#[derive(Debug, Default)]
pub(super) struct Way<'a> {
    /// Further options.
    pub(super) options: &'a [&'a str],
    /// For which reasons it may fail.
    pub(super) excuses: &'a [Excuse],
    /// What meets a first try, after which it is done.
    pub(super) met: Option<Planned>,
}

impl Request {
    /// Asks for a moment by one of its names.
    pub(super) fn of(moment: &Moment, world: &World, chance: &mut Chance) -> Self {
        let names = match &moment.reached_by {
            Reach::EndOf(label) => {
                let words = [label, "--target-type", "immediate"].map(str::to_owned);
                return Self::plain(words.into());
            }
            Reach::Wal(names) => names,
        };
        let by = chance.one(&ALL_NAMES).copied().unwrap_or(By::Point);
        let mut words: Vec<String> = target(names, by).into();
        // Nothing changes between the contents and what any of these names.
        if by != By::Point && chance.percent(20) {
            words.push("--target-exclusive".to_owned());
        }
        let timeline = named(moment);
        if !world.truth.is_on_the_way(moment.at) || chance.percent(30) {
            words.push(timeline);
            let bases: Vec<&Layer> = world.truth.bases(moment.at).collect();
            if let Some(base) = chance.one(&bases).filter(|_| chance.percent(30)) {
                words.insert(0, base.label.clone());
            }
            return Self::plain(words);
        }
        let then = match world.truth.timeline_count() {
            1 => Vec::new(),
            _ => vec![timeline],
        };
        Self {
            then,
            ..Self::plain(words)
        }
    }

    /// The same, when all servers have just archived their WAL. A moment of one that goes on is then not taken for one of a
    /// later timeline, whether the timeline is named or not.
    pub(super) fn of_sealed(moment: &Moment, world: &World, chance: &mut Chance) -> Self {
        let mut request = Self::of(moment, world, chance);
        request.is_by_reader = world.access() == Access::All && chance.percent(30);
        let timeline = named(moment);
        if world.truth.is_asked_about(moment) && chance.percent(60) {
            request.words.retain(|word| *word != timeline);
            request.then = vec![timeline];
            request.asks = NOT_THERE;
        }
        request
    }

    /// Asks for a standby that follows this timeline.
    pub(super) fn standby(timeline: u32) -> Self {
        let timeline = format!("--target-timeline={timeline}");
        Self::plain(vec!["--target-type=standby".to_owned(), timeline])
    }

    fn plain(words: Vec<String>) -> Self {
        Self {
            words,
            then: Vec::new(),
            asks: BRANCHES,
            is_on_mirror: false,
            is_by_reader: false,
        }
    }

    /// Asks the copy of the repository.
    pub(super) fn on_mirror(mut self) -> Self {
        self.is_on_mirror = true;
        self
    }

    /// Restores it into new directories; `options` are further ones.
    pub(super) fn restore(
        &self,
        world: &mut World,
        home: &Home,
        options: &[&str],
        step: &mut Step,
    ) -> Result<()> {
        let way = Way {
            options,
            ..Way::default()
        };
        self.try_restore(world, home, &way, step).map(drop)
    }

    /// The same, which may fail. Returns whether it is done.
    pub(super) fn try_restore(
        &self,
        world: &mut World,
        home: &Home,
        way: &Way<'_>,
        step: &mut Step,
    ) -> Result<bool> {
        let map = format!("{}={}", world.space_oid, home.space.display());
        let options = [&["--tablespace-map", &map], way.options].concat();
        let call = || self.call(home, &options);
        // It may have been done all the same, and would be refused now.
        if self.meet_first(world, call(), way, step)? {
            return Ok(true);
        }
        self.run(world, call(), way.excuses, step)
    }

    /// Restores it into the directory of the stopped server. What was ended on its way is completed by the same restore; what was
    /// done all the same is done or, half of the times, done again. Returns whether it is done.
    pub(super) fn restore_in_place(
        &self,
        world: &mut World,
        way: &Way<'_>,
        (chance, step): (&mut Chance, &mut Step),
    ) -> Result<bool> {
        let home = world.home.clone();
        let call = || self.call(&home, way.options);
        let does_again = chance.percent(50);
        if self.meet_first(world, call(), way, step)? && !does_again {
            return Ok(true);
        }
        self.run(world, call(), way.excuses, step)
    }

    /// Runs it to be met by something, if it is to be. Returns whether it is done all the same.
    fn meet_first(
        &self,
        world: &mut World,
        call: Call,
        way: &Way<'_>,
        step: &mut Step,
    ) -> Result<bool> {
        if way.met.is_none() {
            return Ok(false);
        }
        let call = call.disturbed(way.met);
        let call = call.with(self.then.iter().map(String::as_str));
        Ok(world.run(&call, way.excuses, step)?.says_done())
    }

    fn call(&self, home: &Home, more: &[&str]) -> Call {
        let data = home.data.display().to_string();
        let call = Call::of(["--output", "json", "restore", "--target-dir", &data])
            .with(self.words.iter().map(String::as_str))
            .with(more.iter().copied())
            .on_mirror(self.is_on_mirror);
        if self.is_by_reader {
            return call.by_reader();
        }
        call
    }

    /// Runs it, and once more when it asks which branch counts.
    fn run(
        &self,
        world: &mut World,
        call: Call,
        excuses: &[Excuse],
        step: &mut Step,
    ) -> Result<bool> {
        let mut explained = excuses.to_vec();
        if !self.then.is_empty() {
            explained.push(self.asks.clone());
        }
        let who = if self.is_by_reader {
            ", by the second reader"
        } else {
            ""
        };
        step.say(format!("as {}{who}", self.words.join(" ")));
        let outcome = world.run(&call, &explained, step)?;
        if outcome.code != Some(19) {
            return Ok(outcome.says_done());
        }
        let named = call.with(self.then.iter().map(String::as_str));
        let outcome = world.run(&named, excuses, step)?;
        Ok(outcome.says_done())
    }
}

/// Restores a moment when all servers have archived their WAL, and compares what comes back; looks inside so often in a hundred times.
pub(super) fn moment(
    world: &mut World,
    (moment, inside): (&Moment, u64),
    chance: &mut Chance,
    step: &mut Step,
) -> Result<()> {
    step.say(moment.to_string());
    let request = Request::of_sealed(moment, world, chance);
    let home = world.new_home("copy");
    request.restore(world, &home, &["--target-action", "promote"], step)?;
    if chance.percent(25) {
        recover_hunted(world, &home, chance, step)?;
    }
    let looks_inside = chance.percent(inside);
    restored(world, moment, &home, (looks_inside, step))
}

/// Compares what was restored with the moment, looks inside it on demand, and removes it.
pub(super) fn restored(
    world: &World,
    moment: &Moment,
    home: &Home,
    (looks_inside, step): (bool, &mut Step),
) -> Result<()> {
    one_version(home)?;
    let copy = start(world, home)?;
    compare(&moment.contents, &copy)?;
    if looks_inside {
        look_inside(&copy, step)?;
    }
    drop(copy);
    home.remove()
}

/// Lets a restored server recover while its `archive-get` is killed or held. It may end in the middle, and never early.
fn recover_hunted(world: &World, home: &Home, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let copy = world.copy_of(&home.data).prepare()?;
    let hunter = Hunter::start(&world.program, "archive-get", chance);
    let end = Instant::now() + PATIENCE;
    // Whatever ends the recovery ends the server, and `start` says so when it comes early.
    let mut goes_on = copy.start().is_ok();
    while goes_on && Instant::now() < end {
        let is_open = copy.sql(SUPERUSER, "SELECT NOT pg_is_in_recovery()");
        goes_on = !is_open.is_ok_and(|open| open == "t") && copy.postmaster().is_ok();
        thread::sleep(Duration::from_millis(20));
    }
    let met = hunter.finish()?;
    step.say(format!("archive-get met {met} times"));
    if copy.postmaster().is_ok() {
        copy.stop(StopMode::Fast)?;
    }
    match goes_on {
        true => found("a restored server recovers for ever after its archive-get was met"),
        false => Ok(()),
    }
}

/// A file that was replaced again and again while it was backed up is one of its versions.
fn one_version(home: &Home) -> Result<()> {
    let path = home.data.join("pg_hba.conf");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("could not read \"{}\"", path.display()))?;
    match versions::is_one(&text) {
        true => Ok(()),
        false => found(format!(
            "\"{}\" is put together from several versions",
            path.display()
        )),
    }
}

/// Starts a restored directory, which must open for writes.
pub(super) fn start(world: &World, home: &Home) -> Result<Cluster> {
    let copy = world.copy_of(&home.data).prepare()?;
    let started = copy.start().and_then(|()| copy.wait_promoted(PATIENCE));
    match started {
        Ok(()) => Ok(copy),
        Err(error) => found(format!(
            "the restored server in \"{}\" does not start: {error:#}",
            home.data.display()
        )),
    }
}

/// Compares what a restored server holds with the truth.
pub(super) fn compare(truth: &Contents, copy: &Cluster) -> Result<()> {
    let there = match Contents::of(copy) {
        Ok(there) => there,
        Err(error) => return found(format!("a restored server cannot be read: {error:#}")),
    };
    let differences = truth.differences(&there);
    if differences.is_empty() {
        return Ok(());
    }
    found(format!(
        "the restored server holds something else: {}",
        differences.join("; ")
    ))
}

/// Looks whether tables, indexes, visibility maps and the ledger of a restored server agree with themselves.
pub(super) fn look_inside(copy: &Cluster, step: &mut Step) -> Result<()> {
    let ledger = copy.sql(SUPERUSER, LEDGER)?;
    if ledger != "0" {
        return found(format!(
            "{ledger} rows of the ledger are in one table alone"
        ));
    }
    for database in copy.databases()? {
        copy.sql(&database, ROLL_BACK_PREPARED)?;
        let counts = match copy.sql(&database, COUNT_UNLOGGED) {
            Ok(counts) => counts,
            Err(error) => return found(format!("an unlogged table cannot be read: {error:#}")),
        };
        if counts.lines().any(|count| count != "0") {
            return found(format!("unlogged tables of {database} have rows: {counts}"));
        }
    }
    let has = |extension: &str| {
        let query =
            format!("SELECT count(*) FROM pg_available_extensions WHERE name = '{extension}'");
        copy.sql(SUPERUSER, &query).map(|count| count == "1")
    };
    if !has("amcheck")? {
        step.say("SKIPPED: this server has no amcheck");
    } else if let Err(error) = copy.amcheck() {
        return found(format!("pg_amcheck of a restored server: {error:#}"));
    }
    if let Err(error) = copy.search_indexes() {
        return found(format!("a restored server: {error:#}"));
    }
    if !has("pg_visibility")? {
        step.say("SKIPPED: this server has no pg_visibility");
    } else if let Err(error) = copy.check_visibility_maps() {
        return found(format!("a restored server: {error:#}"));
    }
    Ok(())
}

/// Restores the end of a layer of which nobody knows the contents, and looks whether it agrees with itself.
pub(super) fn layer(world: &mut World, label: &str, step: &mut Step) -> Result<()> {
    step.say(format!("end of {label}, unknown"));
    let words = [label, "--target-type", "immediate"].map(str::to_owned);
    let request = Request::plain(words.into());
    let home = world.new_home("copy");
    request.restore(world, &home, &["--target-action", "promote"], step)?;
    let copy = start(world, &home)?;
    look_inside(&copy, step)?;
    drop(copy);
    home.remove()
}

/// Reads everything that the repository, or its copy, holds.
pub(super) fn verify(world: &mut World, is_on_mirror: bool, step: &mut Step) -> Result<()> {
    if world.truth.layers.is_empty() {
        step.say("no layer to verify");
        return Ok(());
    }
    let call = Call::of(["--output", "json", "verify", "--deep"]).on_mirror(is_on_mirror);
    let lacks_wal = is_on_mirror && world.truth.gave_up_wal;
    let never_archived = !world.shape.archives;
    let mut excuses = unsound(world);
    if lacks_wal {
        excuses.push(WAL_MISSING);
    }
    let outcome = world.run(&call, &excuses, step)?;
    step.say(format!("verify ended with {}", outcome.end()));
    let document = outcome.document()?;
    let mut findings = document["findings"].as_array().into_iter().flatten();
    let is_expected = |found: &Value| {
        // What a killed copy had missed when the source gave it up no copy brings any more (docs/adr/0036). Where nobody
        // archives, WAL of backups that were expired or merged may stay before that of others.
        let is_missed = lacks_wal || never_archived && found["severity"] == "warning";
        is_missed && found["kind"] == "wal-missing" || world.truth.expects(found)
    };
    match findings.find(|found| !is_expected(found)) {
        None => Ok(()),
        Some(fault) => found(format!("verify found what nothing explains: {fault}")),
    }
}

/// What a verification may find that is no fault of the program.
pub(super) fn unsound(world: &World) -> Vec<Excuse> {
    // Leftovers of commands that were killed are warnings.
    let mut excuses = vec![excuse(&[3], &[])];
    if world.truth.has_cut_off() {
        excuses.push(WAL_MISSING);
    }
    // Backups of two histories store their own WAL under the same names.
    if world.truth.is_ambiguous {
        excuses.push(excuse(&[14], &["says that the one before it is at"]));
    }
    excuses
}
