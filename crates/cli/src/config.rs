//! The configuration file, and what follows from it together with the flags.
//!
//! Every top-level key has the name of a flag. `[clusters.NAME]` holds keys for
//! one cluster; `[storage]` holds options of the object store. Flags beat the
//! environment (clap has merged the two already), the environment beats the file.

pub(crate) mod repositories;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use pgstrata_layer::cluster::SealRecord;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::retention::{LastOf, Policy};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::input::{is_of_process, read_settings, require_private};
use pgstrata_store::keys::{Identities, Keys};
use pgstrata_store::limits;
use pgstrata_store::repository::{
    RepositoryOptions, is_same_option, is_secret_option, read_credentials,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::args::{Global, RuleArgs};
use crate::identity::{self, Origin, in_utf8};
use crate::value::{at_least_one, parse_jobs, parse_span, parse_span_or_none};

const DEFAULT_FILE: &str = "/etc/pgstrata/pgstrata.toml";

/// Keys of the file, at the top or in `[clusters.NAME]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) repo: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) s3_endpoint: Option<String>,
    pub(crate) s3_region: Option<String>,
    pub(crate) s3_path_style: Option<bool>,
    pub(crate) s3_ca_file: Option<PathBuf>,
    pub(crate) credentials: Option<PathBuf>,
    pub(crate) identity: Option<PathBuf>,
    pub(crate) key_command: Option<String>,
    pub(crate) seal_id: Option<String>,
    pub(crate) jobs: Option<usize>,
    pub(crate) output: Option<String>,
    pub(crate) log_level: Option<String>,
    pub(crate) pgdata: Option<PathBuf>,
    pub(crate) connection: Option<String>,
    pub(crate) primary: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) change_source: Option<String>,
    pub(crate) compress: Option<String>,
    pub(crate) wal: Option<String>,
    pub(crate) archive_timeout: Option<String>,
    pub(crate) max_age: Option<String>,
    pub(crate) max_verify_age: Option<String>,
    pub(crate) checkpoint: Option<String>,
    pub(crate) on_corrupt_page: Option<String>,
    pub(crate) no_page_header_check: Option<bool>,
    pub(crate) require_tracker: Option<bool>,
    pub(crate) audit: Option<String>,
    pub(crate) max_rate: Option<String>,
    pub(crate) impact: Option<String>,
    pub(crate) push_ahead: Option<usize>,
    pub(crate) spool: Option<PathBuf>,
    pub(crate) fetch_ahead: Option<usize>,
    pub(crate) on_hole: Option<String>,
    pub(crate) hole_timeout: Option<String>,
    pub(crate) keep_full: Option<usize>,
    #[serde(alias = "keep-days", deserialize_with = "text_or_number")]
    pub(crate) keep_within: Option<String>,
    pub(crate) keep_daily: Option<usize>,
    pub(crate) keep_weekly: Option<usize>,
    pub(crate) keep_monthly: Option<usize>,
    pub(crate) keep_yearly: Option<usize>,
    #[serde(deserialize_with = "text_or_number")]
    pub(crate) keep_wal: Option<String>,
    pub(crate) max_chain: Option<usize>,
    pub(crate) quorum: Option<usize>,
    clusters: BTreeMap<String, Settings>,
    #[serde(deserialize_with = "store_options")]
    storage: BTreeMap<String, String>,
    repositories: BTreeMap<String, Spanned<repositories::Table>>,
}

impl Settings {
    /// Files that it names by relative paths lie beside it: who reads it may be anywhere, as a server that archives.
    fn lie_in(&mut self, directory: &Path) {
        let files = [
            &mut self.s3_ca_file,
            &mut self.credentials,
            &mut self.identity,
            &mut self.pgdata,
            &mut self.spool,
        ];
        lie_in(directory, files);
    }
}

/// An absolute path stays what it is.
fn lie_in<'a>(directory: &Path, files: impl IntoIterator<Item = &'a mut Option<PathBuf>>) {
    for file in files.into_iter().flatten() {
        *file = directory.join(&file);
    }
}

/// Flags, environment and file together.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// Its keys, those of the cluster first.
    pub(crate) settings: Settings,
    storage: BTreeMap<String, String>,
    global: Global,
    /// The repositories that the file names, in their order there.
    repositories: Vec<(String, repositories::Table)>,
    /// Which of them this is, and whether the command uses others beside it.
    chosen: Option<repositories::Chosen>,
}

impl Config {
    /// Reads the file that `global` names, or the default one when it exists.
    pub(crate) fn load(global: Global) -> Result<Self> {
        refuse_secrets(&global.storage, "storage")?;
        let file = match &global.config {
            Some(file) => Some(file.clone()),
            None => if_there(Path::new(DEFAULT_FILE))?,
        };
        let (settings, storage, repositories) = match &file {
            Some(file) => read(file, global.cluster.as_deref())?,
            None => (Settings::default(), BTreeMap::new(), Vec::new()),
        };
        let mut config = Self {
            file,
            settings,
            storage,
            global,
            repositories,
            chosen: None,
        };
        config.leave_other_store();
        Ok(config)
    }

    /// The cluster's name.
    pub(crate) fn cluster(&self) -> Result<ClusterName> {
        let name = self
            .global
            .cluster
            .as_ref()
            .or(self.settings.cluster.as_ref());
        let name =
            name.ok_or_else(|| missing("the cluster's name", "--cluster", "PGSTRATA_CLUSTER"))?;
        ClusterName::parse(name).ok_or_else(|| {
            Error::new(Kind::Usage, format!("\"{name}\" is not a cluster name")).hint(
                "use up to 63 of: lower-case letters, digits, \".\", \"_\", \"-\"; first a letter or a digit",
            )
        })
    }

    /// Where the repository is. What opens it is not looked at.
    pub(crate) fn url(&self) -> Result<&str> {
        let url = self.global.repo.as_ref().or(self.settings.repo.as_ref());
        let url = url.ok_or_else(|| missing("the repository", "--repo", "PGSTRATA_REPO"))?;
        Ok(url)
    }

    /// Where the repository is and how to reach it.
    pub(crate) fn repository(&self) -> Result<RepositoryOptions> {
        let url = self.url()?;
        let mut options = self.storage.clone();
        let credentials = self.credentials();
        if let Some(file) = &credentials {
            let named = read_credentials(file)?;
            let is_named = |key: &String| named.keys().any(|other| is_same_option(key, other));
            options.retain(|key, _| !is_named(key));
        }
        // One option has several names.
        let mut say = |key: String, value: String| {
            options.retain(|other, _| !is_same_option(other, &key));
            options.insert(key, value);
        };
        for (flag, key, value) in self.s3_settings()? {
            if !url.starts_with("s3://") {
                let what = format!("--{flag} is set, and the repository {url} is not on S3");
                return Err(Error::new(Kind::Usage, what).hint(format!(
                    "leave out {flag}, on the command line, in the environment and in the configuration file, or give a repository s3://BUCKET/PREFIX"
                )));
            }
            say(key.to_owned(), value);
        }
        for (key, value) in self.global.storage.iter().cloned() {
            say(key, value);
        }
        Ok(RepositoryOptions {
            url: url.to_owned(),
            options,
            credentials,
        })
    }

    /// What opens the cluster, if it is sealed.
    pub(crate) fn keys(&self) -> Result<Keys> {
        let identities = match self.identity_origin()? {
            Some(origin) => identity::read(&origin)?,
            None => Identities::default(),
        };
        let expected = self
            .global
            .seal_id
            .as_ref()
            .or(self.settings.seal_id.as_ref());
        if let Some(text) = expected {
            require_seal_id(text)?;
        }
        Ok(Keys::new(identities, expected.cloned()))
    }

    fn identity_origin(&self) -> Result<Option<Origin>> {
        let (told, file) = (&self.global, &self.settings);
        identity::origin(
            (told.identity.as_ref(), told.key_command.as_ref()),
            (file.identity.as_ref(), file.key_command.as_ref()),
        )
    }

    fn credentials(&self) -> Option<PathBuf> {
        let flag = self.global.credentials.as_ref();
        flag.or(self.settings.credentials.as_ref()).cloned()
    }

    /// What is said of S3 by options of their own: the option's name, the store's key, the value.
    fn s3_settings(&self) -> Result<Vec<(&'static str, &'static str, String)>> {
        let (told, file) = (&self.global, &self.settings);
        let path_style = told.s3_path_style.or(file.s3_path_style);
        let ca_file = told.s3_ca_file.as_ref().or(file.s3_ca_file.as_ref());
        let ca_file = ca_file.map(|path| absolute(path)).transpose()?;
        let all = [
            (
                "s3-endpoint",
                "aws_endpoint",
                told.s3_endpoint.clone().or(file.s3_endpoint.clone()),
            ),
            (
                "s3-region",
                "aws_region",
                told.s3_region.clone().or(file.s3_region.clone()),
            ),
            (
                "s3-path-style",
                "aws_virtual_hosted_style_request",
                path_style.map(|path_style| (!path_style).to_string()),
            ),
            (
                "s3-ca-file",
                "ca_file",
                ca_file.map(|path| path.display().to_string()),
            ),
        ];
        let said = all.into_iter();
        let said = said.filter_map(|(flag, key, value)| value.map(|value| (flag, key, value)));
        Ok(said.collect())
    }

    /// Number of workers: as asked for, else one per core.
    pub(crate) fn jobs(&self) -> Result<usize> {
        let file = self.settings.jobs.map(|jobs| jobs.to_string());
        match from_file(self.global.jobs, file.as_deref(), "jobs", parse_jobs)? {
            Some(jobs) => {
                let workers = limits::workers(jobs);
                if workers < jobs {
                    tracing::warn!(
                        "{workers} workers instead of {jobs}: more would need too many open files"
                    );
                }
                Ok(workers)
            }
            None => Ok(limits::workers(0)),
        }
    }

    /// The rules of retention: each as the option says, else as the file says.
    pub(crate) fn rules(&self, told: &RuleArgs) -> Result<Policy> {
        let file = &self.settings;
        let count = |told: Option<usize>, file: Option<usize>, key: &str| {
            let file = file.map(|count| count.to_string());
            from_file(told, file.as_deref(), key, at_least_one)
        };
        let within = file.keep_within.as_deref();
        let wal = file.keep_wal.as_deref();
        Ok(Policy {
            keep_full: count(told.keep_full, file.keep_full, "keep-full")?,
            keep_within: from_file(told.keep_within, within, "keep-within", parse_span)?,
            keep_last_of: LastOf {
                daily: count(told.keep_daily, file.keep_daily, "keep-daily")?,
                weekly: count(told.keep_weekly, file.keep_weekly, "keep-weekly")?,
                monthly: count(told.keep_monthly, file.keep_monthly, "keep-monthly")?,
                yearly: count(told.keep_yearly, file.keep_yearly, "keep-yearly")?,
            },
            keep_wal: from_file(told.keep_wal, wal, "keep-wal", parse_span_or_none)?,
            max_chain: count(told.max_chain, file.max_chain, "max-chain")?,
        })
    }

    /// The options of this call as flags, for a restore_command that must work without them.
    /// Secrets stay in the environment and in files; those on the command line are left out.
    pub(crate) fn as_flags(&self) -> Result<Vec<String>> {
        let mut flags = Vec::new();
        let mut flag = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                flags.push(format!("--{name}={value}"));
            }
        };
        let path = |p: &PathBuf| in_utf8(&absolute(p)?).map(str::to_owned);
        flag("config", self.file.as_ref().map(path).transpose()?);
        // What uses several says none, and its restore_command uses them too.
        flag(
            "repo",
            match &self.chosen {
                None => Some(self.url()?.to_owned()),
                Some(chosen) => (!chosen.beside_others).then(|| chosen.name.clone()),
            },
        );
        flag("cluster", Some(self.cluster()?.as_str().to_owned()));
        flag("s3-endpoint", self.global.s3_endpoint.clone());
        flag("s3-region", self.global.s3_region.clone());
        flag(
            "s3-path-style",
            self.global.s3_path_style.map(|p| p.to_string()),
        );
        flag(
            "s3-ca-file",
            self.global.s3_ca_file.as_ref().map(path).transpose()?,
        );
        flag(
            "credentials",
            self.global.credentials.as_ref().map(path).transpose()?,
        );
        match self.identity_origin()? {
            Some(Origin::File(file)) if is_of_process(&file) => {}
            Some(Origin::File(file)) => flag("identity", Some(path(&file)?)),
            Some(Origin::Command(command)) => flag("key-command", Some(command)),
            Some(Origin::Environment) | None => {}
        }
        flag("seal-id", self.global.seal_id.clone());
        let storage = self.global.storage.iter();
        flags.extend(storage.map(|(key, value)| format!("--storage={key}={value}")));
        Ok(flags)
    }

    /// Whether whoever runs with [`Self::as_flags`] uses several repositories.
    pub(crate) fn means_several(&self) -> bool {
        let chosen = self.chosen.as_ref();
        chosen.is_some_and(|chosen| chosen.beside_others)
    }

    /// What [`Self::as_flags`] leaves out, and where it belongs.
    pub(crate) fn withheld(&self) -> Option<String> {
        let kept = match self.identity_origin() {
            Ok(Some(Origin::Environment)) => {
                Some("the identity in PGSTRATA_IDENTITY is not written into restore_command, which others can read".to_owned())
            }
            Ok(Some(Origin::File(file))) if is_of_process(&file) => Some(format!(
                "the identity at {} is not written into restore_command, which will not find it there",
                file.display()
            )),
            _ => None,
        };
        kept.map(|kept| {
            format!(
                "{kept}: without it the restored server cannot fetch WAL, so put it into a file of mode 0600 that the \
                 server's user owns and the configuration names"
            )
        })
    }
}

/// The file, unless nothing is there. Where nobody can tell, as in a directory that this user may not enter, to go on without
/// it would be to do something else than it says.
fn if_there(file: &Path) -> Result<Option<PathBuf>> {
    let looked = file.try_exists();
    let looked = looked.context(|| format!("could not look for \"{}\"", file.display()));
    let looked = looked.map_err(|error| {
        error.hint("run this as a user who may read it, or name another file with --config")
    })?;
    Ok(looked.then(|| file.to_owned()))
}

/// Refuses a secret among the options that were given with `--storage`, or with another `flag` for them.
fn refuse_secrets(storage: &[(String, String)], flag: &str) -> Result<()> {
    let mut options = storage.iter();
    let Some((secret, _)) = options.find(|(key, value)| is_secret_option(key, value)) else {
        return Ok(());
    };
    let what = format!("the secret {secret} stands on the command line, with --{flag}");
    let file = flag.replace("storage", "credentials");
    Err(Error::new(Kind::Usage, what).hint(format!(
        "other users can read it there: make another one, and put it into a file of mode 0600 that --{file} or the configuration names, or into the environment",
    )))
}

/// A time whose unit may be left out, as in the option, so that the value is a number.
fn text_or_number<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a time such as \"14d\", or a number of days"
    )]
    enum TextOrNumber {
        Text(String),
        Number(i64),
    }
    Ok(Some(match TextOrNumber::deserialize(from)? {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Number(days) => days.to_string(),
    }))
}

/// Options of the object store, which are all texts there. A number, true and false stand for their text.
fn store_options<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<BTreeMap<String, String>, D::Error> {
    let options = BTreeMap::<String, toml::Value>::deserialize(from)?.into_iter();
    let text = |(key, value)| match value {
        toml::Value::String(text) => Ok((key, text)),
        toml::Value::Boolean(is_so) => Ok((key, is_so.to_string())),
        toml::Value::Integer(number) => Ok((key, number.to_string())),
        other => Err(D::Error::custom(format!(
            "option {key} of the store is of type {}: write a text, a number, true or false",
            other.type_str()
        ))),
    };
    options.map(text).collect()
}

/// One name for each key, so that the table of a cluster overrides the top level whichever name stands there.
fn renamed(mut table: toml::Table) -> toml::Table {
    if let Some(value) = table.remove("keep-days") {
        table.insert("keep-within".to_owned(), value);
    }
    table
}

/// The flag's value, else the file's value, which `parse` reads as it would read a flag's.
pub(crate) fn from_file<T>(
    flag: Option<T>,
    file: Option<&str>,
    key: &str,
    parse: impl Fn(&str) -> std::result::Result<T, String>,
) -> Result<Option<T>> {
    let Some(text) = file.filter(|_| flag.is_none()) else {
        return Ok(flag);
    };
    parse(text).map(Some).map_err(|why| {
        let what = format!("\"{text}\" is not a value of {key} in the configuration file: {why}");
        Error::new(Kind::Usage, what)
    })
}

/// The flag's value, else the file's value read as a flag's would be.
pub(crate) fn choose<T: ValueEnum>(
    flag: Option<T>,
    file: Option<&str>,
    key: &str,
) -> Result<Option<T>> {
    match (flag, file) {
        (Some(value), _) => Ok(Some(value)),
        (None, None) => Ok(None),
        (None, Some(text)) => T::from_str(text, true).map(Some).map_err(|_| {
            let known: Vec<String> = T::value_variants()
                .iter()
                .filter_map(|v| v.to_possible_value().map(|v| v.get_name().to_owned()))
                .collect();
            Error::new(Kind::Usage, format!("\"{text}\" is not a value of {key}"))
                .hint(format!("use one of: {}", known.join(", ")))
        }),
    }
}

fn require_seal_id(text: &str) -> Result<()> {
    let record = SealRecord {
        version: 1,
        seal_id: text.to_owned(),
    };
    record.seal_id_bytes().map(|_| ()).map_err(|_| {
        Error::new(Kind::Usage, format!("\"{text}\" is not a seal id"))
            .hint("it has 32 hexadecimal digits; \"pgstrata key check\" shows it, as \"init --encrypt\" did")
    })
}

/// `path` from the root; it need not exist.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).context(|| format!("could not make \"{}\" absolute", path.display()))
}

fn missing(what: &str, flag: &str, variable: &str) -> Error {
    Error::new(Kind::Usage, format!("{what} is not known")).hint(format!(
        "give {flag}, set {variable}, or write it in {DEFAULT_FILE}"
    ))
}

/// The keys of the file, those of the cluster first; options of the object store; repositories by name, in their order.
type Contents = (
    Settings,
    BTreeMap<String, String>,
    Vec<(String, repositories::Table)>,
);

fn directory_of(file: &Path) -> Result<PathBuf> {
    let file = absolute(file)?;
    Ok(file.parent().unwrap_or(Path::new("/")).to_owned())
}

fn read(file: &Path, cluster: Option<&str>) -> Result<Contents> {
    let what = "configuration file";
    let text = read_settings(file, what)?;
    let invalid = |error: &toml::de::Error| {
        let line = error.span().map(|span| {
            let before = text.get(..span.start).unwrap_or_default();
            format!(", line {}", before.matches('\n').count() + 1)
        });
        Error::new(
            Kind::Usage,
            format!(
                "could not read configuration file \"{}\"{}: {}",
                file.display(),
                line.unwrap_or_default(),
                error.message().replace('\n', " ")
            ),
        )
    };
    // Read as a whole first: only this knows the line of a mistake.
    let mut whole: Settings = toml::from_str(&text).map_err(|e| invalid(&e))?;
    let nested = |(_, own): &(&String, &Settings)| {
        !own.clusters.is_empty() || !own.storage.is_empty() || !own.repositories.is_empty()
    };
    if let Some((name, _)) = whole.clusters.iter().find(nested) {
        let what = format!(
            "could not read configuration file \"{}\": [clusters.{name}] holds a table",
            file.display()
        );
        let hint = "write [clusters.NAME], [repositories.NAME] and [storage] at the top level";
        return Err(Error::new(Kind::Usage, what).hint(hint));
    }
    // The top level names the cluster whose table then overrides the top level.
    let table: toml::Table = text.parse().map_err(|e| invalid(&e))?;
    let mut table = renamed(table);
    let clusters = table.remove("clusters");
    table.remove("storage");
    table.remove("repositories");
    let name = cluster.or(whole.cluster.as_deref());
    let own = clusters
        .as_ref()
        .zip(name)
        .and_then(|(all, name)| all.get(name));
    if let Some(own) = own.and_then(toml::Value::as_table) {
        table.extend(renamed(own.clone()));
    }
    let storage = std::mem::take(&mut whole.storage);
    let tables = whole.repositories.values();
    let of_tables = tables.flat_map(|table| &table.get_ref().storage);
    if storage
        .iter()
        .chain(of_tables)
        .any(|(key, value)| is_secret_option(key, value))
    {
        require_private(file, what)?;
    }
    let settings: std::result::Result<Settings, _> = toml::Value::Table(table).try_into();
    let mut settings = settings.map_err(|e| invalid(&e))?;
    let directory = directory_of(file)?;
    settings.lie_in(&directory);
    let mut tables = Vec::from_iter(std::mem::take(&mut whole.repositories));
    tables.sort_by_key(|(_, table)| table.span().start);
    let tables = tables.into_iter();
    let tables: Vec<_> = tables
        .map(|(name, table)| (name, table.into_inner().lying_in(&directory)))
        .collect();
    repositories::check(&tables, &settings, &storage).map_err(|error| {
        error.while_doing(format!(
            "could not read configuration file \"{}\"",
            file.display()
        ))
    })?;
    Ok((settings, storage, tables))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, cluster: Option<&str>) -> Result<Contents> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path(), cluster)
    }

    #[test]
    fn a_clusters_table_overrides_the_top_level() {
        let text = "repo = 'file:///r'\ncluster = 'a'\njobs = 2\n[clusters.a]\njobs = 4\n[clusters.b]\njobs = 8\n[storage]\nk = 'v'\n";
        let (a, storage, _) = read_text(text, None).unwrap();
        assert_eq!(a.jobs, Some(4));
        assert_eq!(a.repo.as_deref(), Some("file:///r"));
        assert_eq!(storage.get("k").map(String::as_str), Some("v"));
        let (b, _, _) = read_text(text, Some("b")).unwrap();
        assert_eq!(b.jobs, Some(8));
    }

    #[test]
    fn files_that_it_names_lie_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pgstrata.toml");
        let text = "identity = '/etc/far.identity'\nspool = 'spool'\n";
        let text = format!("{text}[repositories.far]\nrepo = 's3://b/p'\ns3-ca-file = 'ca.pem'\n");
        std::fs::write(&file, text).unwrap();
        let (settings, _, tables) = read(&file, None).unwrap();
        let spool = directory.path().join("spool");
        assert_eq!(settings.spool, Some(spool));
        assert_eq!(settings.identity, Some("/etc/far.identity".into()));
        let ca = tables[0].1.s3_ca_file.as_deref();
        assert_eq!(ca, Some(&*directory.path().join("ca.pem")));
    }

    #[test]
    fn times_of_retention_are_read_as_their_options_are() {
        let within = |text: &str| read_text(text, None).unwrap().0.keep_within;
        for text in [
            "keep-within = 14\n",
            "keep-days = 14\n",
            "keep-days = '14'\n",
        ] {
            assert_eq!(within(text).as_deref(), Some("14"), "{text}");
        }
        let text = "cluster = 'a'\nkeep-within = '2w'\n[clusters.a]\nkeep-days = 3\n";
        assert_eq!(within(text).as_deref(), Some("3"));
        assert_eq!(within("jobs = 2\n"), None);
        let (settings, ..) = read_text("keep-wal = 0\n", None).unwrap();
        assert_eq!(settings.keep_wal.as_deref(), Some("0"));
        let error = read_text("\nkeep-within = 1.5\n", None).unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
        assert!(read_text("keep-within = 1\nkeep-days = 2\n", None).is_err());
    }

    #[test]
    fn options_of_the_store_may_be_booleans_and_numbers() {
        let text = "[storage]\nallow_http = true\nretries = 3\n[repositories.a]\nrepo = 's3://b'\n[repositories.a.storage]\nallow_http = false\n";
        let alone = text.split("[repositories").next().unwrap();
        let (_, storage, _) = read_text(alone, None).unwrap();
        assert_eq!(storage["allow_http"], "true");
        assert_eq!(storage["retries"], "3");
        let own = text.split_once("3\n").unwrap().1;
        assert!(read_text(own, None).is_ok());
        let error = read_text("[storage]\n\nallow_http = [1]\n", None).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("option allow_http of the store is of type array"),
            "{error}"
        );
    }

    #[test]
    fn a_default_file_that_cannot_be_looked_for_is_not_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pgstrata.toml");
        assert_eq!(if_there(&file).unwrap(), None);
        std::fs::write(&file, "").unwrap();
        assert_eq!(if_there(&file).unwrap(), Some(file.clone()));
        // As in a directory that may not be entered, which keeps nobody out who runs this test as root.
        let error = if_there(&file.join("pgstrata.toml")).unwrap_err();
        assert_eq!(error.kind(), Kind::File);
        assert!(
            error
                .hint_text()
                .is_some_and(|hint| hint.contains("--config"))
        );
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let error = read_text("repoo = 'x'\n", None).unwrap_err();
        assert!(error.to_string().contains("repoo"), "{error}");
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, line) in [
            ("repo = 'x'\n\nrepoo = 'x'\n", "line 3"),
            ("repo = 'x'\n[clusters.a]\njobs = 'many'\n", "line 3"),
            ("repo = 'x'\njobs 3\n", "line 2"),
        ] {
            let error = read_text(text, None).unwrap_err().to_string();
            assert!(error.contains(line) && !error.contains('\n'), "{error}");
        }
        let error = read_text("[clusters.a.storage]\nk = 'v'\n", None).unwrap_err();
        assert!(error.to_string().contains("clusters.a"), "{error}");
    }
}
