//! Settings that arms change on a running server, by `ALTER SYSTEM` and reload.
//!
//! Arms that share somebody else's server each find their own: what one arm names, the next one does not keep, and in
//! the end `postgresql.auto.conf` says what it said before. A change that sessions would not see is refused, since arms
//! would be compared that do not differ.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use postgres::{Client, Row};

use crate::interrupt;
use crate::measure::environment::mask::mask;
use crate::measure::session;

/// The postmaster reads within milliseconds; a busy machine gets some more.
const LONGEST: Duration = Duration::from_secs(10);

/// Lists of names are written in another way than they are given, so they could not be put back.
const LISTS: [&str; 4] = [
    "local_preload_libraries",
    "search_path",
    "session_preload_libraries",
    "temp_tablespaces",
];

/// Where values are from that the configuration file does not change.
const STRONGER: [&str; 6] = [
    "command line",
    "database",
    "database user",
    "environment variable",
    "override",
    "user",
];

/// A server of somebody else, and what its `postgresql.auto.conf` said of the settings that arms change.
#[derive(Debug)]
pub(super) struct Lent {
    dsn: String,
    before: BTreeMap<String, Option<String>>,
    is_changed: bool,
}

impl Lent {
    /// Looks; changes nothing.
    pub(super) fn look(dsn: &str, names: &BTreeSet<String>) -> Result<Self> {
        let mut client = session::connect(dsn)?;
        let before = names
            .iter()
            .map(|name| Ok((name.clone(), written(&mut client, name)?)));
        Ok(Self {
            dsn: dsn.to_owned(),
            before: before
                .collect::<Result<_>>()
                .context("could not read what would have to be put back")?,
            is_changed: false,
        })
    }

    /// Gives the server what an arm names, and the rest back.
    pub(super) fn give(&mut self, arm: &BTreeMap<String, String>) -> Result<()> {
        self.is_changed = true;
        let wanted = |(name, before): (&String, &Option<String>)| {
            let value = arm.get(name).cloned().or_else(|| before.clone());
            (name.clone(), value)
        };
        change(&self.dsn, arm, &self.before.iter().map(wanted).collect())
    }

    /// Puts back what was found. Nothing interrupts it.
    pub(super) fn put_back(&mut self) -> Result<()> {
        if !self.is_changed {
            return Ok(());
        }
        let by_hand = || {
            let each = self.before.iter();
            let each = each.map(|(name, value)| statement(name, value.as_deref()));
            format!(
                "could not put back the settings of \"{}\"; do it by hand: {}; SELECT pg_reload_conf()",
                mask(&self.dsn),
                each.collect::<Vec<_>>().join("; ")
            )
        };
        let done = session::undisturbed(&self.dsn).and_then(|mut client| {
            alter(&mut client, &self.before)?;
            session::run(&mut client, "SELECT pg_reload_conf()")
        });
        done.with_context(by_hand)?;
        self.is_changed = false;
        Ok(())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Only a panic comes here with something to do; who ends an experiment says what could not be put back.
        let _ = self.put_back();
    }
}

/// Changes settings of a server that has them for one arm alone.
pub(super) fn set(dsn: &str, arm: &BTreeMap<String, String>) -> Result<()> {
    let wanted = arm
        .iter()
        .map(|(name, value)| (name.clone(), Some(value.clone())));
    change(dsn, arm, &wanted.collect())
}

/// The statement that writes a value into `postgresql.auto.conf`, or takes it out.
pub(super) fn statement(name: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("ALTER SYSTEM SET {name} = '{}'", value.replace('\'', "''")),
        None => format!("ALTER SYSTEM RESET {name}"),
    }
}

/// Writes what is wanted and waits until new sessions have it.
fn change(
    dsn: &str,
    arm: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, Option<String>>,
) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut client = session::connect(dsn)?;
    for name in arm.keys() {
        require_changeable(&mut client, name)?;
    }
    let before = read_last(&mut client)?;
    if !alter(&mut client, wanted)? {
        return Ok(());
    }
    session::run(&mut client, "SELECT pg_reload_conf()")?;
    let end = Instant::now() + LONGEST;
    while read_last(&mut session::undisturbed(dsn)?)? == before {
        if Instant::now() >= end {
            bail!(
                "could not change settings by reload: the server has not read its configuration within {} s; see its log",
                LONGEST.as_secs()
            );
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

/// Writes what differs; whether anything does.
fn alter(client: &mut Client, wanted: &BTreeMap<String, Option<String>>) -> Result<bool> {
    let mut differs = false;
    for (name, value) in wanted {
        if written(client, name)? != *value {
            session::run(client, &statement(name, value.as_deref()))?;
            differs = true;
        }
    }
    Ok(differs)
}

/// When the postmaster had read its configuration last before it made this session.
fn read_last(client: &mut Client) -> Result<String> {
    session::text(client, "SELECT pg_conf_load_time()::text")
}

fn row_of(client: &mut Client, query: &str, name: &str) -> Result<Option<Row>> {
    client
        .query_opt(query, &[&name])
        .map_err(|error| session::in_words(query, &error))
}

/// What `postgresql.auto.conf` says of a setting.
fn written(client: &mut Client, name: &str) -> Result<Option<String>> {
    let query = "SELECT setting FROM pg_file_settings \
         WHERE lower(name) = $1 AND sourcefile LIKE '%postgresql.auto.conf' ORDER BY seqno DESC LIMIT 1";
    Ok(row_of(client, query, name)?.and_then(|row| row.get(0)))
}

/// Refuses a change that the sessions which measure would not see, or that could not be put back.
fn require_changeable(client: &mut Client, name: &str) -> Result<()> {
    let why = if LISTS.contains(&name) {
        "it is a list of names, which could not be put back as it was".to_owned()
    } else {
        let query = "SELECT context, source FROM pg_settings WHERE lower(name) = $1";
        // Of what the server does not know, ALTER SYSTEM says so.
        let Some(row) = row_of(client, query, name)? else {
            return Ok(());
        };
        let (context, source): (String, String) = (row.get(0), row.get(1));
        if ["internal", "postmaster"].contains(&context.as_str()) {
            format!(
                "the server takes it at its start alone; use guc.{name} and a server of the lab's own"
            )
        } else if STRONGER.contains(&source.as_str()) {
            format!("its value is from the source \"{source}\", which is stronger")
        } else {
            return Ok(());
        }
    };
    bail!("could not change \"{name}\" by reload: {why}")
}
