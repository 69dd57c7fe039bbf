//! How clusters come to be: made by initdb, or adopted from a directory.

use std::env;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::template::Template;
use super::{Cluster, Major, SUPERUSER, output_of};
use crate::leash::Leash;
use crate::os_user::ServerUser;

/// Sockets have paths of at most 107 bytes, of which the name takes 20.
const LONGEST_SOCKET_DIR: usize = 80;

/// A new cluster, described.
#[derive(Debug, Clone)]
pub struct Builder {
    major: Major,
    bindir: Option<PathBuf>,
    initdb_arguments: Vec<String>,
    settings: Vec<(String, String)>,
    checksums: bool,
    durable: bool,
    tcp: bool,
}

impl Builder {
    pub(super) fn new(major: Major) -> Self {
        Self {
            major,
            bindir: None,
            initdb_arguments: Vec::new(),
            settings: Vec::new(),
            checksums: true,
            durable: false,
            tcp: false,
        }
    }

    /// Takes the programs from another directory than `scripts/setup` filled.
    #[must_use]
    pub fn bindir(mut self, path: &Path) -> Self {
        self.bindir = Some(path.to_owned());
        self
    }

    /// Adds an argument for initdb, such as `--wal-segsize=1`.
    #[must_use]
    pub fn initdb_arg(mut self, argument: &str) -> Self {
        self.initdb_arguments.push(argument.to_owned());
        self
    }

    /// Adds a line to `postgresql.conf`.
    #[must_use]
    pub fn conf(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Whether pages carry checksums; they do unless told otherwise.
    #[must_use]
    pub const fn checksums(mut self, on: bool) -> Self {
        self.checksums = on;
        self
    }

    /// Whether the server waits for the disk, as real ones do; it does not
    /// unless told to.
    #[must_use]
    pub const fn durable(mut self, on: bool) -> Self {
        self.durable = on;
        self
    }

    /// Whether the server also listens on 127.0.0.1.
    #[must_use]
    pub const fn tcp(mut self, on: bool) -> Self {
        self.tcp = on;
        self
    }

    /// Creates the cluster and starts it.
    pub fn start(self) -> Result<Cluster> {
        let cluster = self.create()?;
        cluster.start()?;
        Ok(cluster)
    }

    /// Creates the cluster without starting it.
    pub fn create(self) -> Result<Cluster> {
        let cluster = Home::new(self.major, self.bindir.clone())?.cluster(None, self.tcp)?;
        let mut arguments = self.initdb_arguments.clone();
        arguments.extend(self.checksum_argument().map(str::to_owned));
        let initdb = || {
            let mut initdb = cluster.command("initdb");
            initdb
                .args(["--no-sync", "--no-instructions", "--auth=trust"])
                .args(["--encoding=UTF8", "--locale=C", "--username", SUPERUSER])
                .args(&arguments)
                .arg("--pgdata")
                .arg(&cluster.pgdata);
            output_of(&mut initdb).map(drop)
        };
        // Programs from elsewhere are mostly thrown away together with the cluster.
        let usual = self.bindir.is_none();
        let template = usual.then(|| Template::of(&cluster.bindir.join("initdb"), &arguments));
        match template.flatten() {
            Some(template) => {
                let created = template.create(&cluster.pgdata, initdb);
                created.and_then(|()| cluster.user.own_tree(&cluster.pgdata))
            }
            None => initdb(),
        }
        .context("could not create a cluster")?;
        if !self.durable {
            cluster.append_conf("fsync", "off")?;
        }
        for (key, value) in &self.settings {
            cluster.append_conf(key, value)?;
        }
        Ok(cluster)
    }

    /// PostgreSQL 18 turned the default around.
    fn checksum_argument(&self) -> Option<&'static str> {
        match (self.checksums, self.major >= Major::V18) {
            (true, _) => Some("--data-checksums"),
            (false, true) => Some("--no-data-checksums"),
            (false, false) => None,
        }
    }
}

/// A server on an existing data directory, described.
///
/// The directory stays when the cluster is dropped; only the server ends. Where
/// it listens and logs is given on its command line: no file is written, except
/// that root hands the directory and its tablespaces to the server's user.
#[derive(Debug, Clone)]
pub struct Adoption {
    major: Major,
    bindir: Option<PathBuf>,
    pgdata: PathBuf,
    settings: Vec<(String, String)>,
    variables: Vec<(String, String)>,
    tcp: bool,
}

impl Adoption {
    pub(super) fn new(major: Major, pgdata: &Path) -> Self {
        Self {
            major,
            bindir: None,
            pgdata: pgdata.to_owned(),
            settings: Vec::new(),
            variables: Vec::new(),
            tcp: false,
        }
    }

    /// Takes the programs from another directory than `scripts/setup` filled.
    #[must_use]
    pub fn bindir(mut self, path: &Path) -> Self {
        self.bindir = Some(path.to_owned());
        self
    }

    /// Overrides a setting, at every start, on the server's command line.
    #[must_use]
    pub fn conf(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets a variable of the server's environment, at every start.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Whether the server also listens on 127.0.0.1.
    #[must_use]
    pub const fn tcp(mut self, on: bool) -> Self {
        self.tcp = on;
        self
    }

    /// Starts the server; it accepts connections when this returns, though it
    /// may still be in recovery: see [`Cluster::wait_promoted`].
    pub fn start(self) -> Result<Cluster> {
        let cluster = self.prepare()?;
        cluster.start()?;
        Ok(cluster)
    }

    /// Makes everything ready without starting the server.
    pub fn prepare(self) -> Result<Cluster> {
        let pgdata = self
            .pgdata
            .canonicalize()
            .with_context(|| format!("could not find \"{}\"", self.pgdata.display()))?;
        let home = Home::new(self.major, self.bindir)?;
        home.user.own_tree(&pgdata)?;
        own_linked_directories(home.user, &pgdata)?;
        let mut cluster = home.cluster(Some(pgdata), self.tcp)?;
        cluster.options.extend(self.settings);
        cluster.variables.extend(self.variables);
        Ok(cluster)
    }
}

/// The links by which a data directory reaches what lies elsewhere: its WAL and tablespaces.
fn links_out_of(pgdata: &Path) -> Result<Vec<PathBuf>> {
    let tablespaces = pgdata.join("pg_tblspc");
    let mut links = vec![pgdata.join("pg_wal")];
    if tablespaces.is_dir() {
        for entry in fs::read_dir(&tablespaces)
            .with_context(|| format!("could not list \"{}\"", tablespaces.display()))?
        {
            links.push(entry?.path());
        }
    }
    links.retain(|link| link.is_symlink());
    Ok(links)
}

fn own_linked_directories(user: ServerUser, pgdata: &Path) -> Result<()> {
    for link in links_out_of(pgdata)? {
        let target = link
            .canonicalize()
            .with_context(|| format!("could not follow link \"{}\"", link.display()))?;
        user.own_tree(&target)?;
    }
    Ok(())
}

/// What every cluster has before it has data.
struct Home {
    major: Major,
    bindir: PathBuf,
    directory: PathBuf,
    user: ServerUser,
}

impl Home {
    fn new(major: Major, bindir: Option<PathBuf>) -> Result<Self> {
        let bindir = bindir.map_or_else(|| major.bindir(), Ok)?;
        let user = ServerUser::find()?;
        let directory = tempfile::Builder::new()
            .prefix("pgs-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir_in(short_temp_dir()?)
            .context("could not create a temporary directory")?
            // From here the leash removes it, even if this program is killed.
            .keep();
        user.own(&directory)?;
        Ok(Self {
            major,
            bindir,
            directory,
            user,
        })
    }

    fn cluster(self, pgdata: Option<PathBuf>, tcp: bool) -> Result<Cluster> {
        let pgdata = pgdata.unwrap_or_else(|| self.directory.join("data"));
        let port = free_port()?;
        let listen = if tcp { "127.0.0.1" } else { "" };
        let directory = self.directory.display().to_string();
        let options = [
            ("port", port.to_string()),
            ("listen_addresses", listen.to_owned()),
            ("unix_socket_directories", directory),
            ("logging_collector", "off".to_owned()),
            ("log_destination", "stderr".to_owned()),
        ];
        Ok(Cluster {
            _leash: Leash::postgres(&pgdata, &self.directory)?,
            major: self.major,
            bindir: self.bindir,
            directory: self.directory,
            pgdata,
            port,
            user: self.user,
            options: options.map(|(key, value)| (key.to_owned(), value)).into(),
            variables: Vec::new(),
        })
    }
}

/// Where sockets may lie. A long `TMPDIR` will not do.
fn short_temp_dir() -> Result<PathBuf> {
    let usual = env::temp_dir().canonicalize();
    match usual {
        Ok(path) if path.as_os_str().len() < LONGEST_SOCKET_DIR => Ok(path),
        _ => Path::new("/tmp")
            .canonicalize()
            .context("could not find /tmp"),
    }
}

/// A port that was free a moment ago. The kernel deals them out in no order, so
/// two tests hardly ever get the same one; without TCP it would not matter.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("could not find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// A line of `postgresql.conf`.
pub(super) fn setting(key: &str, value: &str) -> String {
    format!(
        "{key} = '{}'",
        value.replace('\\', r"\\").replace('\'', "''")
    )
}

/// What the caller's environment says about PostgreSQL is about another server.
pub(super) fn forget_postgres_environment(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("PG") && name != "PGSTRATA_DEPS" {
            command.env_remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_quoted_as_postgresql_reads_them() {
        assert_eq!(
            setting("archive_command", r"it's a\b"),
            r"archive_command = 'it''s a\\b'"
        );
    }
}
