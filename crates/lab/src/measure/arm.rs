//! An arm: one of the things an experiment compares, as written on the command line.
//!
//! `NAME[:KEY=VALUE[,KEY=VALUE]...]` with keys `bindir`, `pgdata`, `dsn`, `setup`,
//! `initdb` (repeatable), `guc.X`, `reload.X`, `env.X` and `load.X`; or a TOML file
//! with the same keys.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::measure::environment::mask::mask;
use crate::measure::pgbench::options::{self, Options};

/// What makes an arm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArmSpec {
    /// Short name.
    pub name: String,
    /// Directory of `postgres`, `initdb`, `pg_ctl`; the lab finds one if absent.
    pub bindir: Option<PathBuf>,
    /// A stopped cluster to copy instead of a new one.
    pub pgdata: Option<PathBuf>,
    /// A server somebody else runs.
    pub dsn: Option<String>,
    /// SQL file run once after loading.
    pub setup: Option<PathBuf>,
    /// Further arguments of `initdb`.
    pub initdb: Vec<String>,
    /// Settings given at start.
    pub settings: BTreeMap<String, String>,
    /// Settings changed by `ALTER SYSTEM` and reload, without a restart.
    pub reload: BTreeMap<String, String>,
    /// Environment of the server.
    pub variables: BTreeMap<String, String>,
    /// What its load has otherwise: see [`Options::with`].
    pub load: BTreeMap<String, String>,
}

impl ArmSpec {
    /// Parses what stands on the command line.
    ///
    /// # Errors
    /// Fails for an unknown key, a missing value or an unreadable file.
    pub fn parse(text: &str) -> Result<Self> {
        if Path::new(text).extension().is_some_and(|e| e == "toml") {
            return Self::from_file(Path::new(text));
        }
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        if name.is_empty() {
            bail!("could not parse arm \"{text}\": it has no name");
        }
        let mut arm = Self {
            name: name.to_owned(),
            ..Self::default()
        };
        // A DSN holds commas and equal signs of its own: it ends the list.
        let (pairs, dsn) = match rest.strip_prefix("dsn=") {
            Some(dsn) => ("", Some(dsn)),
            None => match rest.split_once(",dsn=") {
                Some((pairs, dsn)) => (pairs, Some(dsn)),
                None => (rest, None),
            },
        };
        arm.dsn = dsn.map(str::to_owned);
        for pair in pairs.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').with_context(|| {
                format!("could not parse arm \"{text}\": \"{pair}\" is not KEY=VALUE")
            })?;
            arm.set(key, value)
                .with_context(|| format!("could not parse arm \"{}\"", mask(text)))?;
        }
        arm.check()?;
        Ok(arm)
    }

    fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("could not read arm \"{}\"", path.display()))?;
        let table: toml::Table = text
            .parse()
            .with_context(|| format!("could not parse arm \"{}\"", path.display()))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut arm = Self {
            name: stem.into_owned(),
            ..Self::default()
        };
        for (key, value) in &table {
            match value {
                toml::Value::String(text) if key == "name" => arm.name.clone_from(text),
                toml::Value::String(text) => arm.set(key, text)?,
                toml::Value::Array(items) => {
                    for item in items {
                        let text = item.as_str().with_context(|| {
                            format!(
                                "could not parse arm \"{}\": {key} holds no text",
                                path.display()
                            )
                        })?;
                        arm.set(key, text)?;
                    }
                }
                toml::Value::Table(inner) => {
                    for (name, value) in inner {
                        let text = value
                            .as_str()
                            .map_or_else(|| value.to_string(), str::to_owned);
                        arm.set(&format!("{key}.{name}"), &text)?;
                    }
                }
                other => arm.set(key, &other.to_string())?,
            }
        }
        arm.check()?;
        Ok(arm)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let text = value.to_owned();
        match key {
            "bindir" => self.bindir = Some(value.into()),
            "pgdata" => self.pgdata = Some(value.into()),
            "dsn" => self.dsn = Some(text),
            "setup" => self.setup = Some(value.into()),
            "initdb" => self.initdb.push(text),
            _ => {
                let (kind, name) = key.split_once('.').unwrap_or((key, ""));
                let map = match kind {
                    "guc" => &mut self.settings,
                    "reload" => &mut self.reload,
                    "env" => &mut self.variables,
                    "load" => &mut self.load,
                    _ => bail!(
                        "\"{key}\" is not bindir, pgdata, dsn, setup, initdb, guc.X, reload.X, env.X or load.X"
                    ),
                };
                if name.is_empty() {
                    bail!("\"{key}\" names no setting");
                }
                let name = match kind {
                    // One setting under two spellings would be changed and put back in the same run.
                    "reload" => name.to_ascii_lowercase(),
                    _ => name.to_owned(),
                };
                map.insert(name, text);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        Options::default()
            .with(&self.load)
            .with_context(|| format!("could not use arm \"{}\"", self.name))?;
        let own = self.bindir.is_some()
            || self.pgdata.is_some()
            || self.setup.is_some()
            || !self.initdb.is_empty()
            || !self.settings.is_empty()
            || !self.variables.is_empty();
        if self.dsn.is_some() && own {
            bail!(
                "could not use arm \"{}\": a server reached by dsn is run by somebody else, so bindir, pgdata, setup, initdb, guc and env cannot be set",
                self.name
            );
        }
        Ok(())
    }

    /// The arm in one line, secrets masked.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut words = Vec::new();
        words.extend(
            self.bindir
                .iter()
                .map(|p| format!("bindir={}", p.display())),
        );
        words.extend(
            self.pgdata
                .iter()
                .map(|p| format!("pgdata={}", p.display())),
        );
        words.extend(self.dsn.iter().map(|d| format!("dsn={}", mask(d))));
        words.extend(self.setup.iter().map(|p| format!("setup={}", p.display())));
        words.extend(self.initdb.iter().map(|i| format!("initdb={i}")));
        for (kind, map) in [
            ("guc", &self.settings),
            ("reload", &self.reload),
            ("env", &self.variables),
            ("load", &self.load),
        ] {
            words.extend(map.iter().map(|(k, v)| mask(&format!("{kind}.{k}={v}"))));
        }
        if words.is_empty() {
            "as found".to_owned()
        } else {
            words.join(", ")
        }
    }

    /// What decides the files of a new cluster: arms with the same share one template.
    #[must_use]
    pub fn template_key(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?}",
            self.bindir, self.pgdata, self.initdb, self.setup
        )
    }
}

/// Expands `NAME=V1,V2,…` into arms that are the base but for one setting, or for its
/// load where the name is one of [`options::VARIED`]; the values as numbers, where all
/// are numbers, make the sweep.
///
/// # Errors
/// Fails when the text is not a sweep, or the base cannot be changed so.
pub fn sweep(base: &ArmSpec, text: &str) -> Result<(Vec<ArmSpec>, Option<Vec<f64>>)> {
    let wrong = || format!("could not parse sweep \"{text}\": expected NAME=VALUE,VALUE…");
    let (name, values) = text.split_once('=').with_context(wrong)?;
    let values: Vec<&str> = values.split(',').filter(|v| !v.is_empty()).collect();
    if name.is_empty() || values.len() < 2 {
        bail!("{}", wrong());
    }
    let arm = |value: &&str| {
        let mut arm = base.clone();
        let kind = if options::VARIED.contains(&name) {
            arm.name = format!("{name} {value}");
            &mut arm.load
        } else {
            arm.name = (*value).to_owned();
            &mut arm.settings
        };
        kind.insert(name.to_owned(), (*value).to_owned());
        arm.check()?;
        Ok(arm)
    };
    let arms = values.iter().map(arm).collect::<Result<_>>()?;
    let number = |value: &&str| value.trim_end_matches('%').parse().ok();
    let numbers: Option<Vec<f64>> = values.iter().map(number).collect();
    Ok((arms, numbers))
}

#[cfg(test)]
mod tests {
    use super::{ArmSpec, sweep};

    #[test]
    fn a_sweep_is_the_base_but_for_one_setting() {
        let base = ArmSpec::parse("base:guc.work_mem=8MB").unwrap();
        let (arms, numbers) = sweep(&base, "shared_buffers=32MB,64MB").unwrap();
        let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
        assert_eq!(names, ["32MB", "64MB"]);
        for arm in &arms {
            assert_eq!(arm.settings["work_mem"], "8MB");
            assert_eq!(arm.settings["shared_buffers"], arm.name);
        }
        assert_eq!(numbers, None);
    }

    #[test]
    fn a_sweep_of_the_load_leaves_the_server_alone() {
        let base = ArmSpec::parse("base:dsn=host=elsewhere").unwrap();
        let (arms, numbers) = sweep(&base, "client=1,4").unwrap();
        assert!(arms.iter().all(|arm| arm.settings.is_empty()));
        assert_eq!(arms[1].name, "client 4");
        assert_eq!(arms[1].load["client"], "4");
        assert_eq!(numbers, Some(vec![1.0, 4.0]));
    }

    #[test]
    fn what_somebody_else_runs_is_not_set_up() {
        for own in ["setup=/a.sql", "guc.work_mem=1MB", "bindir=/a", "env.A=1"] {
            let wrong = ArmSpec::parse(&format!("server:{own},dsn=host=elsewhere"));
            assert!(wrong.unwrap_err().to_string().contains("cannot be set"));
        }
        let arm = ArmSpec::parse("server:reload.Work_Mem=1MB,dsn=host=elsewhere").unwrap();
        assert_eq!(arm.reload["work_mem"], "1MB");
    }

    #[test]
    fn what_is_no_sweep_is_refused() {
        let own = ArmSpec::default();
        let others = ArmSpec::parse("base:dsn=host=elsewhere").unwrap();
        for text in ["client", "client=1", "=1,2", "client=one,two", "rate=0,1"] {
            assert!(sweep(&own, text).is_err(), "{text}");
        }
        // Its settings are somebody else's.
        assert!(sweep(&others, "work_mem=1MB,2MB").is_err());
    }
}
