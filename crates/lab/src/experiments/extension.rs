//! The server extension for throwaway clusters, without installing it.
//!
//! Built from its sources into a directory of its own, which the servers are
//! told to look into (`dynamic_library_path`); the installation stays as it is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::measure::programs::{self, Programs};

/// What CREATE EXTENSION does beside making the functions, and by which backups find them.
const REGISTER: &str = "SET allow_system_table_mods = on;
    INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
    SELECT pg_nextoid('pg_extension', 'oid', 'pg_extension_oid_index'), 'pgstrata', nspowner, oid, false, '1.0'
      FROM pg_namespace WHERE nspname = 'pgstrata';
    RESET allow_system_table_mods";

/// The setting that names the libraries which a server loads when it starts.
const PRELOADED: &str = "shared_preload_libraries";

/// A library that servers can load.
#[derive(Debug)]
pub(super) struct Extension {
    /// Where it was built; absent when it is an installed one.
    built: Option<TempDir>,
    /// SQL that makes its functions.
    sql: String,
}

/// Where the sources are: as given, or of the checkout this program was built in.
pub(super) fn sources(given: Option<&Path>) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ext");
    given
        .map(Path::to_owned)
        .or_else(|| here.join("Makefile").is_file().then_some(here))
}

impl Extension {
    /// Builds the sources, or takes what is installed where there are none.
    pub(super) fn find(programs: &Programs, given: Option<&Path>) -> Result<Self> {
        if let Some(sources) = sources(given) {
            return Self::build(programs, &sources).with_context(|| {
                format!(
                    "could not build the extension from \"{}\"",
                    sources.display()
                )
            });
        }
        let library = installed_library(programs, "pgstrata")?;
        if !library.is_file() {
            bail!(
                "could not find the extension: \"{}\" does not exist; install it, or name its sources with --extension",
                library.display()
            );
        }
        Ok(Self {
            built: None,
            sql: "CREATE EXTENSION pgstrata".to_owned(),
        })
    }

    fn build(programs: &Programs, sources: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("pgs-ext-lab-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .context("could not create a temporary directory")?;
        copy_sources(sources, directory.path())?;
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(directory.path()).arg(format!(
            "PG_CONFIG={}",
            programs.bindir.join("pg_config").display()
        ));
        programs::output(&mut make)?;
        let script = directory.path().join("sql/pgstrata--1.0.sql");
        let sql = fs::read_to_string(&script)
            .with_context(|| format!("could not read \"{}\"", script.display()))?;
        let sql = format!(
            "CREATE SCHEMA pgstrata; SET search_path = pgstrata; {}; RESET search_path; {REGISTER}",
            functions(&sql)
        );
        Ok(Self {
            built: Some(directory),
            sql,
        })
    }

    /// Settings of a server that is to load it.
    pub(super) fn settings(&self, map_megabytes: u64) -> BTreeMap<String, String> {
        let mut settings = self.path_setting();
        settings.insert(PRELOADED.to_owned(), "pgstrata".to_owned());
        settings.insert("pgstrata.map_size".to_owned(), map_megabytes.to_string());
        settings
    }

    /// The setting with which a server finds it.
    pub(super) fn path_setting(&self) -> BTreeMap<String, String> {
        self.built
            .iter()
            .map(|built| {
                (
                    "dynamic_library_path".to_owned(),
                    format!("{}:$libdir", built.path().display()),
                )
            })
            .collect()
    }

    /// SQL that makes its functions in a database.
    pub(super) fn sql(&self) -> String {
        let path = self.path_setting();
        let set: String = path
            .iter()
            .map(|(name, value)| format!("SET {name} = '{value}'; "))
            .collect();
        format!("{set}{}", self.sql)
    }
}

/// The script as SQL alone: without psql's commands, and with the library's name.
fn functions(script: &str) -> String {
    script
        .lines()
        .filter(|line| !line.starts_with('\\'))
        .collect::<Vec<_>>()
        .join("\n")
        .replace("MODULE_PATHNAME", "pgstrata")
}

fn copy_sources(from: &Path, to: &Path) -> Result<()> {
    let wrong = || format!("could not copy \"{}\"", from.display());
    for entry in fs::read_dir(from).with_context(wrong)?.flatten() {
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let wanted = [".c", ".h", ".control"]
            .iter()
            .any(|end| text.ends_with(end))
            || text == "Makefile";
        if wanted {
            fs::copy(entry.path(), to.join(&name)).with_context(wrong)?;
        }
    }
    let sql = to.join("sql");
    fs::create_dir(&sql).with_context(wrong)?;
    for entry in fs::read_dir(from.join("sql"))
        .with_context(wrong)?
        .flatten()
    {
        fs::copy(entry.path(), sql.join(entry.file_name())).with_context(wrong)?;
    }
    Ok(())
}

/// Whether this server is one patched for ptrack, and has its library.
pub(super) fn has_ptrack(programs: &Programs) -> bool {
    installed_library(programs, "ptrack").is_ok_and(|library| library.is_file())
}

/// What such a server needs to track changes, beside the libraries that `settings` already loads. The map has the size
/// that ptrack's manual proposes for up to 64 GB.
pub(super) fn ptrack_settings(settings: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut libraries = vec!["ptrack"];
    libraries.extend(settings.get(PRELOADED).map(String::as_str));
    BTreeMap::from([
        (PRELOADED.to_owned(), libraries.join(",")),
        ("ptrack.map_size".to_owned(), "64".to_owned()),
    ])
}

fn installed_library(programs: &Programs, name: &str) -> Result<PathBuf> {
    let said =
        programs::output(Command::new(programs.bindir.join("pg_config")).arg("--pkglibdir"))?;
    Ok(Path::new(said.trim()).join(format!("{name}.so")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patched_server_loads_ptrack_beside_our_library() {
        for (loaded, expected) in [(None, "ptrack"), (Some("pgstrata"), "ptrack,pgstrata")] {
            let ours = loaded.map(|library| (PRELOADED.to_owned(), library.to_owned()));
            let mut settings: BTreeMap<_, _> = ours.into_iter().collect();
            settings.append(&mut ptrack_settings(&settings));
            assert_eq!(settings[PRELOADED], expected);
            assert_eq!(settings["ptrack.map_size"], "64");
        }
    }
}
