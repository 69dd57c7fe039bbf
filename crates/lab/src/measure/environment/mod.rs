//! Where an experiment ran: what was found, what differs, what to beware of.
//!
//! Capturing never fails: what cannot be read is recorded as not readable,
//! with the reason. Files are read below a root directory, so that tests can
//! show other machines.

pub mod host;
pub mod mask;
pub mod server;
pub mod warning;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use postgres::Client;
use serde::{Deserialize, Serialize};

pub use warning::{Level, Warning};

/// Something found out, or why it was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Fact {
    /// As found.
    Found(String),
    /// Not found.
    NotReadable {
        /// Why.
        not_readable: String,
    },
}

impl Fact {
    /// The value, if found.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::Found(value) => Some(value),
            Self::NotReadable { .. } => None,
        }
    }
}

/// A setting of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Value in `unit`.
    pub value: String,
    /// Unit, as the server names it.
    pub unit: Option<String>,
    /// Where it comes from.
    pub source: String,
    /// Changed in a file, waiting for a restart.
    pub pending_restart: bool,
}

impl Setting {
    /// The value with its unit multiplied out: `131072` of `8kB` is `1GB`.
    #[must_use]
    pub fn readable(&self) -> String {
        let Some(unit) = &self.unit else {
            return self.value.clone();
        };
        let Ok(value) = self.value.parse::<i64>() else {
            return self.value.clone();
        };
        let kilobytes: Option<i64> = match unit.as_str() {
            "B" if value >= 0 && value % 1024 == 0 => return kilo(value / 1024),
            "kB" => Some(1),
            "MB" => Some(1024),
            _ => unit.strip_suffix("kB").and_then(|n| n.parse().ok()),
        };
        match kilobytes {
            Some(factor) if value >= 0 => kilo(value.saturating_mul(factor)),
            _ => format!("{value}{unit}"),
        }
    }
}

fn kilo(kilobytes: i64) -> String {
    const STEPS: [(i64, &str); 3] = [(1 << 30, "TB"), (1 << 20, "GB"), (1 << 10, "MB")];
    for (size, name) in STEPS {
        if kilobytes >= size && kilobytes % size == 0 {
            return format!("{}{name}", kilobytes / size);
        }
    }
    format!("{kilobytes}kB")
}

/// Everything captured of one place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// `group.name` to what was found.
    pub facts: BTreeMap<String, Fact>,
    /// All settings of the server; empty where no server was asked.
    pub settings: BTreeMap<String, Setting>,
}

impl Environment {
    /// Records what was found.
    pub fn found(&mut self, name: &str, value: impl AsRef<str>) {
        self.facts.insert(
            name.to_owned(),
            Fact::Found(mask::mask(value.as_ref().trim())),
        );
    }

    /// Records why something was not found.
    pub fn not_readable(&mut self, name: &str, why: impl std::fmt::Display) {
        self.facts.insert(
            name.to_owned(),
            Fact::NotReadable {
                not_readable: why.to_string(),
            },
        );
    }

    /// A fact's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.facts.get(name)?.value()
    }

    /// A fact's value as a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.parse().ok()
    }

    /// A setting's value.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(|s| s.value.as_str())
    }

    /// Takes over everything of another capture.
    pub fn merge(&mut self, other: Self) {
        self.facts.extend(other.facts);
        self.settings.extend(other.settings);
    }
}

/// A server and, where its data are on this machine, the machine.
pub fn of_server(client: &mut Client, data: Option<&Path>) -> Environment {
    let mut environment = server::capture(client);
    match data {
        Some(data) => environment.merge(host::capture(Path::new("/"), Some(data))),
        None => environment.not_readable(
            "machine.system",
            "the server is reached by dsn; its machine is not visible",
        ),
    }
    environment
}

/// One line of a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Fact or `setting NAME`.
    pub name: String,
    /// In the first.
    pub first: String,
    /// In the second.
    pub second: String,
}

/// The fact that says for which arms a server was there whose environment only one of them has.
pub const SERVED: &str = "server.served";

/// Facts that differ between any two captures and mean nothing.
const VOLATILE: [&str; 10] = [
    SERVED,
    "noise.",
    "memory.available",
    "memory.page_tables",
    "memory.hugepages_free",
    "disk.free",
    "power.temperature",
    "time.",
    "server.pid",
    "server.started",
];

impl Difference {
    /// Whether it can mean anything for a comparison: what a database holds and hashes of it cannot.
    #[must_use]
    pub fn is_of_the_server(&self) -> bool {
        !self.name.starts_with("contents.") && !self.name.ends_with("fingerprint")
    }
}

/// What differs, settings last, readable units.
#[must_use]
pub fn diff(first: &Environment, second: &Environment) -> Vec<Difference> {
    let show = |env: &Environment, name: &str| match env.facts.get(name) {
        Some(Fact::Found(value)) => value.clone(),
        Some(Fact::NotReadable { not_readable }) => format!("not readable: {not_readable}"),
        None => "–".to_owned(),
    };
    let names: BTreeSet<&String> = first.facts.keys().chain(second.facts.keys()).collect();
    let mut differences: Vec<Difference> = names
        .into_iter()
        .filter(|name| !VOLATILE.iter().any(|prefix| name.starts_with(prefix)))
        .map(|name| Difference {
            name: name.clone(),
            first: show(first, name),
            second: show(second, name),
        })
        .collect();
    let setting = |env: &Environment, name: &str| {
        env.settings
            .get(name)
            .map_or_else(|| "–".to_owned(), Setting::readable)
    };
    let names: BTreeSet<&String> = first
        .settings
        .keys()
        .chain(second.settings.keys())
        .collect();
    differences.extend(names.into_iter().map(|name| Difference {
        name: format!("setting {name}"),
        first: setting(first, name),
        second: setting(second, name),
    }));
    differences.retain(|d| d.first != d.second);
    differences
}
