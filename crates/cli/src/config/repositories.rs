//! Several repositories in the configuration file, each a table `[repositories.NAME]`, and which of them a command uses.
//!
//! Without `--repo` a command uses all, in their order in the file. With the name of one it uses that, as if it were the
//! only one. A URL is none of them: nothing of the tables is used for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::future::join_all;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::{RealDirectory, Repository, RepositoryOptions};
use serde::Deserialize;

use super::{Config, Settings, refuse_secrets};

/// What the file says of one repository.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Table {
    repo: String,
    s3_endpoint: Option<String>,
    s3_region: Option<String>,
    s3_path_style: Option<bool>,
    pub(super) s3_ca_file: Option<PathBuf>,
    credentials: Option<PathBuf>,
    identity: Option<PathBuf>,
    key_command: Option<String>,
    seal_id: Option<String>,
    #[serde(default, deserialize_with = "super::store_options")]
    pub(super) storage: BTreeMap<String, String>,
}

impl Table {
    /// In a file in that directory, where files lie that it names by relative paths.
    pub(super) fn lying_in(mut self, directory: &Path) -> Self {
        let files = [
            &mut self.s3_ca_file,
            &mut self.credentials,
            &mut self.identity,
        ];
        super::lie_in(directory, files);
        self
    }

    /// Whether both are certainly one repository. The same bucket at two endpoints is two; at one endpoint that is written in
    /// two ways it is one.
    fn is(&self, other: &Self) -> bool {
        let place = |table: &Self| {
            let storage = table.storage.iter();
            let said: BTreeMap<String, String> = storage
                .map(|(key, value)| match key.contains("endpoint") {
                    true => (key.clone(), address(value)),
                    false => (key.clone(), value.clone()),
                })
                .collect();
            let endpoint = table.s3_endpoint.as_deref().map(address);
            (address(&table.repo), endpoint, said)
        };
        place(self) == place(other)
    }
}

/// A URL as it is written mostly. Case counts behind the host alone.
fn address(url: &str) -> String {
    let url = url.trim_end_matches('/');
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{}://{}{path}", scheme.to_lowercase(), host.to_lowercase())
}

/// The kind of store at a URL. What is no URL is the path of a directory.
fn kind(url: &str) -> String {
    url.split_once("://")
        .map_or_else(|| "file".to_owned(), |(scheme, _)| scheme.to_lowercase())
}

/// A repository of the file that a command uses.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Its name.
    pub(crate) name: String,
    /// Whether the command uses others too.
    pub(crate) beside_others: bool,
}

/// Refuses a name that could be taken for a URL, and keys at the top that belong into the tables.
pub(super) fn check(
    tables: &[(String, Table)],
    top: &Settings,
    storage: &BTreeMap<String, String>,
) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    for (name, table) in tables {
        if name.is_empty() || !name.chars().all(fits) {
            let what = format!("\"{name}\" is not a name of a repository");
            return Err(Error::new(Kind::Usage, what)
                .hint("use letters, digits, \".\", \"_\" and \"-\" in [repositories.NAME]"));
        }
        let same = |(other, that): &&(String, Table)| other != name && that.is(table);
        if let Some((other, _)) = tables.iter().find(same) {
            let what = format!(
                "repositories \"{name}\" and \"{other}\" are the same, {}",
                table.repo
            );
            return Err(Error::new(Kind::Usage, what).hint("leave one of them out"));
        }
    }
    let said = [
        ("repo", top.repo.is_some()),
        ("s3-endpoint", top.s3_endpoint.is_some()),
        ("s3-region", top.s3_region.is_some()),
        ("s3-path-style", top.s3_path_style.is_some()),
        ("s3-ca-file", top.s3_ca_file.is_some()),
        ("credentials", top.credentials.is_some()),
        ("seal-id", top.seal_id.is_some()),
        ("[storage]", !storage.is_empty()),
    ];
    match said.iter().find(|(_, said)| *said) {
        None => Ok(()),
        Some((key, _)) => {
            let what = format!("{key} stands beside [repositories.{}]", tables[0].0);
            Err(Error::new(Kind::Usage, what)
                .hint("write what is of one repository into its table: repo, s3-..., credentials, seal-id, storage"))
        }
    }
}

impl Config {
    /// What the command uses: one configuration for each repository.
    pub(crate) fn chosen(&self) -> Result<Vec<Self>> {
        match &self.global.repo {
            _ if self.repositories.is_empty() => Ok(vec![self.clone()]),
            Some(told) => {
                let mut one = self.called(told)?;
                // The file says how many of all must have a file, and who names one means that one.
                one.settings.quorum = None;
                Ok(vec![one])
            }
            None if self.repositories.len() == 1 => Ok(vec![self.of(0, false)]),
            None => {
                self.require_own_options()?;
                let all = 0..self.repositories.len();
                Ok(all.map(|at| self.of(at, true)).collect())
            }
        }
    }

    /// Refuses one directory under two of these names: what is stored in both would be there once. One that does not answer
    /// is none that does.
    pub(crate) async fn require_apart(&self, names: &[&str]) -> Result<()> {
        let found = self.directories().filter(|(name, _)| names.contains(name));
        let found = found.map(async |(name, repository)| {
            let directory = repository.directory()?;
            let real = RealDirectory::at(directory).await.ok()?;
            Some((name, directory.to_owned(), real))
        });
        let found: Vec<_> = join_all(found).await.into_iter().flatten().collect();
        for (at, (name, directory, here)) in found.iter().enumerate() {
            let mut before = found.iter().take(at);
            if let Some((other, ..)) = before.find(|(_, _, there)| here.is(there)) {
                let what = format!(
                    "repositories \"{other}\" and \"{name}\" are the same directory, {}",
                    directory.display()
                );
                return Err(Error::new(Kind::Usage, what).hint("leave one of them out"));
            }
        }
        Ok(())
    }

    /// The repositories of the file that are directories.
    pub(crate) fn named_directories(&self) -> Vec<Repository> {
        self.directories()
            .map(|(_, repository)| repository)
            .collect()
    }

    fn directories(&self) -> impl Iterator<Item = (&str, Repository)> {
        let of_files = self.repositories.iter();
        let of_files = of_files.filter(|(_, table)| table.repo.starts_with("file:"));
        of_files.filter_map(|(name, table)| {
            let opened = Repository::open(&RepositoryOptions::new(&table.repo));
            Some((name.as_str(), opened.ok()?))
        })
    }

    /// The repository of that name or at that URL.
    pub(crate) fn called(&self, told: &str) -> Result<Self> {
        let mut names = self.repositories.iter().map(|(name, _)| name);
        if let Some(at) = names.position(|name| name == told) {
            return Ok(self.of(at, false));
        }
        if told.contains(':') || told.starts_with('/') {
            let mut one = self.clone();
            one.global.repo = Some(told.to_owned());
            one.chosen = None;
            return Ok(one);
        }
        let error = Error::new(
            Kind::Usage,
            format!("\"{told}\" is neither the URL nor the name of a repository"),
        );
        Err(match self.repositories.is_empty() {
            true => error.hint("use file:///directory or s3://bucket/prefix"),
            false => error.hint(format!("the configuration file names {}", self.names())),
        })
    }

    /// The names of all repositories in the file.
    pub(crate) fn names(&self) -> String {
        let names = self.repositories.iter().map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// The name that the file gives to this repository.
    pub(crate) fn name(&self) -> Option<&str> {
        self.chosen.as_ref().map(|chosen| chosen.name.as_str())
    }

    /// The configuration for one repository of the file. Who opens a cluster may be said for all of them.
    fn of(&self, at: usize, beside_others: bool) -> Self {
        let (name, table) = &self.repositories[at];
        let mut one = self.clone();
        one.global.repo = None;
        one.chosen = Some(Chosen {
            name: name.clone(),
            beside_others,
        });
        one.storage.clone_from(&table.storage);
        let settings = &mut one.settings;
        settings.repo = Some(table.repo.clone());
        settings.s3_endpoint.clone_from(&table.s3_endpoint);
        settings.s3_region.clone_from(&table.s3_region);
        settings.s3_path_style = table.s3_path_style;
        settings.s3_ca_file.clone_from(&table.s3_ca_file);
        settings.credentials.clone_from(&table.credentials);
        settings.seal_id.clone_from(&table.seal_id);
        if table.identity.is_some() || table.key_command.is_some() {
            settings.identity.clone_from(&table.identity);
            settings.key_command.clone_from(&table.key_command);
        }
        one
    }

    /// The repository into which to copy. Options of the command line are those of the other one.
    pub(crate) fn other(
        &self,
        told: &str,
        more: (Option<PathBuf>, Vec<(String, String)>),
    ) -> Result<Self> {
        refuse_secrets(&more.1, "to-storage")?;
        let mut one = self.called(told)?;
        let global = &mut one.global;
        let of_file = one.chosen.is_some();
        (global.s3_endpoint, global.s3_region, global.s3_path_style) = (None, None, None);
        (global.s3_ca_file, global.seal_id) = (None, None);
        (global.credentials, global.storage) = more;
        if !of_file {
            one.forget_store();
            one.settings.seal_id = None;
        }
        Ok(one)
    }

    /// What the file says of its repository's store says nothing of one of another kind that the command line names, or the
    /// environment.
    pub(super) fn leave_other_store(&mut self) {
        let of_file = self.settings.repo.as_deref();
        let kinds = self.global.repo.as_deref().zip(of_file);
        if kinds.is_some_and(|(told, of_file)| kind(told) != kind(of_file)) {
            self.forget_store();
        }
    }

    /// Nothing that the file says at its top is used to reach a store.
    fn forget_store(&mut self) {
        let top = &mut self.settings;
        (top.s3_endpoint, top.s3_region, top.s3_path_style) = (None, None, None);
        (top.s3_ca_file, top.credentials) = (None, None);
        self.storage.clear();
    }

    /// Options that would be those of every repository are those of none.
    fn require_own_options(&self) -> Result<()> {
        let told = &self.global;
        let said = [
            ("--s3-endpoint", told.s3_endpoint.is_some()),
            ("--s3-region", told.s3_region.is_some()),
            ("--s3-path-style", told.s3_path_style.is_some()),
            ("--s3-ca-file", told.s3_ca_file.is_some()),
            ("--credentials", told.credentials.is_some()),
            ("--storage", !told.storage.is_empty()),
            ("--seal-id", told.seal_id.is_some()),
        ];
        match said.iter().find(|(_, said)| *said) {
            None => Ok(()),
            Some((flag, _)) => {
                let what = format!(
                    "{flag} is set, and several repositories are meant: {}",
                    self.names()
                );
                Err(Error::new(Kind::Usage, what).hint(
                    "name one of them with --repo, or leave out the option, also in the environment, and write it into [repositories.NAME]",
                ))
            }
        }
    }
}
