//! The workloads there are, by name.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::measure::pgbench::options::{BUILTINS, Script};

/// A workload with a name.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// The script; absent for pgbench's own.
    pub script: Option<&'static str>,
    /// SQL to run once after loading.
    pub setup: Option<&'static str>,
}

/// All of them.
pub const WORKLOADS: [Workload; 9] = [
    Workload {
        name: "tpcb-like",
        about: "pgbench's default: five statements, contended tellers and branches",
        script: None,
        setup: None,
    },
    Workload {
        name: "simple-update",
        about: "pgbench's -N: one update, one select, one insert",
        script: None,
        setup: None,
    },
    Workload {
        name: "select-only",
        about: "pgbench's -S: one lookup by primary key",
        script: None,
        setup: None,
    },
    Workload {
        name: "ptrack",
        about: "the script of ptrack's benchmark, as published",
        script: Some(include_str!("../../workloads/ptrack.sql")),
        setup: None,
    },
    Workload {
        name: "insert-returning",
        about: "insert, then update by the returned key (\\gset)",
        script: Some(include_str!("../../workloads/insert-returning.sql")),
        setup: Some(
            "CREATE TABLE lab_item (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status int NOT NULL, delta int)",
        ),
    },
    Workload {
        name: "combined-queries",
        about: "two queries in one round trip (\\aset)",
        script: Some(include_str!("../../workloads/combined-queries.sql")),
        setup: None,
    },
    Workload {
        name: "pipeline",
        about: "three lookups in one round trip (pipeline mode)",
        script: Some(include_str!("../../workloads/pipeline.sql")),
        setup: None,
    },
    Workload {
        name: "zipfian-update",
        about: "updates with a hot set",
        script: Some(include_str!("../../workloads/zipfian-update.sql")),
        setup: None,
    },
    Workload {
        name: "range-scan",
        about: "sums a hundred neighbouring rows",
        script: Some(include_str!("../../workloads/range-scan.sql")),
        setup: None,
    },
];

/// The workload of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|w| w.name == name)
}

/// What `NAME[@WEIGHT]` stands for: scripts are written below `directory`.
///
/// # Errors
/// Fails for a name that is neither a workload nor a file, or a weight that is no number.
pub fn resolve(spec: &str, directory: &Path) -> Result<(Script, u32)> {
    let (name, weight) = match spec.rsplit_once('@') {
        Some((name, weight)) => (
            name,
            weight.parse().with_context(|| {
                format!("could not use workload \"{spec}\": \"{weight}\" is no weight")
            })?,
        ),
        None => (spec, 1),
    };
    if BUILTINS.contains(&name) {
        return Ok((Script::Builtin(name.to_owned()), weight));
    }
    if let Some(script) = find(name).and_then(|w| w.script) {
        let path = directory.join(format!("{name}.sql"));
        std::fs::write(&path, script)
            .with_context(|| format!("could not write script \"{}\"", path.display()))?;
        return Ok((Script::File(path), weight));
    }
    let path = PathBuf::from(name);
    if !path.is_file() {
        bail!(
            "could not use workload \"{name}\": it is neither a file nor one of `pgstrata lab workloads list`"
        );
    }
    let path = std::fs::canonicalize(&path)
        .with_context(|| format!("could not find script \"{name}\""))?;
    Ok((Script::File(path), weight))
}
