//! Servers of arms: templates, and the server a run is measured on.
//!
//! A template is loaded once and never started again; every run that writes
//! gets a fresh copy of it. Copies live in the template's own directory, which
//! its leash removes even if this program is killed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, bail};

use crate::measure::arm::ArmSpec;
use crate::measure::programs::{Programs, output};
use crate::measure::session;
use pgstrata_testbed::cluster::{Adoption, Cluster, StopMode};

/// Settings every server of the lab starts with unless the arm says otherwise:
/// no checkpoint falls into a short run by chance, and the log can be dated.
const SETTINGS: [(&str, &str); 4] = [
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "8GB"),
    ("log_checkpoints", "on"),
    ("log_line_prefix", "%n "),
];

/// What a copy of somebody's cluster starts with, on the command line: its files would lead it to what is the original's.
/// Where it listens and logs is set for every server. Settings of recovery count for nothing, since a cluster in recovery is
/// refused.
const APART: [(&str, &str); 6] = [
    // The archive of the original would take the copy's WAL for the original's.
    ("archive_mode", "off"),
    // An arm that archives names its own way.
    ("archive_command", ""),
    ("archive_library", ""),
    // Subscriptions would take from a publisher's slot what the original is to get.
    ("max_logical_replication_workers", "0"),
    // The first commit would wait for a standby that follows the original.
    ("synchronous_standby_names", ""),
    // Relative, so it lies in the copy. An empty name would be an error in the log.
    ("external_pid_file", "postmaster.lab.pid"),
];

/// Files that lead a server out of its directory when it starts: to its primary, its archive or its tablespaces.
const LEADING_OUT: [&str; 3] = ["standby.signal", "recovery.signal", "tablespace_map"];

/// A loaded cluster that copies are made of.
#[derive(Debug)]
pub struct Template {
    cluster: Cluster,
    programs: Programs,
}

impl Template {
    /// Makes a cluster and has `load` fill it through a connection string.
    ///
    /// # Errors
    /// Fails when it cannot be created or filled.
    pub fn create(arm: &ArmSpec, load: impl FnOnce(&Cluster, &str) -> Result<()>) -> Result<Self> {
        let programs = Programs::find(arm.bindir.as_deref())?;
        let mut builder = Cluster::builder(programs.major)
            .bindir(&programs.bindir)
            .durable(true);
        for argument in &arm.initdb {
            builder = match argument.as_str() {
                "--no-data-checksums" => builder.checksums(false),
                "--data-checksums" | "-k" => builder.checksums(true),
                other => builder.initdb_arg(other),
            };
        }
        for (name, value) in SETTINGS {
            builder = builder.conf(name, value);
        }
        let cluster = builder.create()?;
        if let Some(pgdata) = &arm.pgdata {
            take_over(&cluster, pgdata)?;
            check_version(&cluster)?;
        }
        let settings = apart(arm).iter().copied();
        let server = server_on(&programs, cluster.pgdata(), settings).start()?;
        let dsn = server.conninfo("postgres");
        load(&server, &dsn)?;
        if let Some(setup) = &arm.setup {
            let sql = std::fs::read_to_string(setup)
                .with_context(|| format!("could not read \"{}\"", setup.display()))?;
            session::run(&mut session::connect(&dsn)?, &sql)?;
        }
        let mut client = session::connect(&dsn)?;
        session::run(&mut client, "VACUUM (FREEZE, ANALYZE)")?;
        session::run(&mut client, "CHECKPOINT")?;
        drop(client);
        server.stop(StopMode::Fast)?;
        Ok(Self { cluster, programs })
    }

    /// The programs it was made by.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Replaces `copy` (a name within the template's directory) by the template.
    ///
    /// # Errors
    /// Fails when files cannot be copied.
    pub fn copy_to(&self, copy: &str) -> Result<PathBuf> {
        let target = self.cluster.socket_dir().join(copy);
        if target.exists() {
            std::fs::remove_dir_all(&target)
                .with_context(|| format!("could not remove \"{}\"", target.display()))?;
        }
        output(
            Command::new("cp")
                .args(["-a", "--reflink=auto"])
                .arg(self.cluster.pgdata())
                .arg(&target),
        )
        .with_context(|| format!("could not copy the template to \"{}\"", target.display()))?;
        Ok(target)
    }

    /// Starts a server on a copy, with the arm's settings and environment on top
    /// of the template's.
    ///
    /// # Errors
    /// Fails when it does not start.
    pub fn start(&self, data: &Path, arm: &ArmSpec) -> Result<Cluster> {
        let settings = arm.settings.iter();
        let settings = settings.map(|(name, value)| (name.as_str(), value.as_str()));
        let settings = apart(arm).iter().copied().chain(settings);
        let mut adoption = server_on(&self.programs, data, settings);
        for (name, value) in &arm.variables {
            adoption = adoption.env(name, value);
        }
        adoption.start()
    }
}

/// What keeps the arm's server apart from somebody else's.
fn apart(arm: &ArmSpec) -> &'static [(&'static str, &'static str)] {
    match arm.pgdata {
        Some(_) => &APART,
        None => &[],
    }
}

/// Describes a server on `data`. `data_directory` comes last: PostgreSQL follows that of a configuration file, or of an arm,
/// before it follows `-D`.
fn server_on<'a>(
    programs: &Programs,
    data: &Path,
    settings: impl Iterator<Item = (&'a str, &'a str)>,
) -> Adoption {
    let mut adoption = Cluster::adopt(programs.major, data).bindir(&programs.bindir);
    for (name, value) in settings {
        adoption = adoption.conf(name, value);
    }
    adoption.conf("data_directory", &data.display().to_string())
}

/// Puts a copy of somebody's stopped cluster in the place of a fresh one.
fn take_over(cluster: &Cluster, pgdata: &Path) -> Result<()> {
    let wrong = || format!("could not copy cluster \"{}\"", pgdata.display());
    // Of a link the copy would be the cluster itself.
    let pgdata = &pgdata.canonicalize().with_context(wrong)?;
    if pgdata.join("postmaster.pid").exists() {
        bail!(
            "{}: it has a postmaster.pid; stop the server first",
            wrong()
        );
    }
    if let Some(link) = link_in(pgdata).with_context(wrong)? {
        bail!(
            "{}: \"{}\" is a symbolic link, so the copy would write where the cluster itself does; restore a \
             backup of it with everything in one directory, and measure that",
            wrong(),
            link.display()
        );
    }
    for name in LEADING_OUT {
        if pgdata.join(name).exists() {
            bail!(
                "{}: it has a {name}, so the copy would take from its primary or its archive, or write into its \
                 tablespaces; restore a backup of it, let the recovery end, stop that server, and measure that",
                wrong()
            );
        }
    }
    let target = cluster.pgdata();
    std::fs::remove_dir_all(target)
        .with_context(|| format!("could not remove \"{}\"", target.display()))?;
    output(
        Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(pgdata)
            .arg(target),
    )
    .with_context(wrong)?;
    for (name, value) in SETTINGS {
        cluster.append_conf(name, value)?;
    }
    Ok(())
}

/// A symbolic link anywhere below a directory.
fn link_in(directory: &Path) -> Result<Option<PathBuf>> {
    let wrong = || format!("could not list \"{}\"", directory.display());
    for entry in std::fs::read_dir(directory).with_context(wrong)? {
        let entry = entry.with_context(wrong)?;
        let kind = entry.file_type().with_context(wrong)?;
        if kind.is_symlink() {
            return Ok(Some(entry.path()));
        }
        if kind.is_dir()
            && let Some(link) = link_in(&entry.path())?
        {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

/// A copy must be of the programs' major version.
fn check_version(cluster: &Cluster) -> Result<()> {
    let path = cluster.pgdata().join("PG_VERSION");
    let version = std::fs::read_to_string(&path)
        .with_context(|| format!("could not read \"{}\"", path.display()))?;
    if version.trim() != cluster.major().to_string() {
        bail!(
            "could not use the cluster: its files are of version {}, the programs of {}",
            version.trim(),
            cluster.major()
        );
    }
    Ok(())
}

/// Where an arm's server is.
#[derive(Debug)]
pub enum Place {
    /// Somebody else runs it.
    Remote {
        /// Connection string.
        dsn: String,
    },
    /// The lab runs it.
    Own {
        /// What its data is a copy of.
        template: Rc<Template>,
        /// The copy's name.
        copy: String,
        /// The copy, once made.
        data: Option<PathBuf>,
        /// The server, while it runs.
        running: Option<Cluster>,
    },
}

impl Place {
    /// Stops the server if the lab runs it.
    ///
    /// # Errors
    /// Fails when it does not stop.
    pub fn stop(&mut self) -> Result<()> {
        if let Self::Own { running, .. } = self
            && let Some(cluster) = running.take()
        {
            cluster.stop(StopMode::Fast)?;
        }
        Ok(())
    }

    /// Makes the server ready for a run; `anew` replaces its data by the template's.
    ///
    /// # Errors
    /// Fails when it cannot be copied or started.
    pub fn ready(&mut self, arm: &ArmSpec, anew: bool) -> Result<String> {
        let (template, copy, data, running) = match self {
            Self::Remote { dsn } => return Ok(dsn.clone()),
            Self::Own {
                template,
                copy,
                data,
                running,
            } => (template, copy, data, running),
        };
        if anew && let Some(cluster) = running.take() {
            cluster.stop(StopMode::Fast)?;
            drop(cluster);
        }
        let directory = match data {
            Some(directory) if !anew => directory.clone(),
            _ => data.insert(template.copy_to(copy)?).clone(),
        };
        let cluster = match running.take() {
            Some(cluster) => running.insert(cluster),
            None => running.insert(template.start(&directory, arm)?),
        };
        Ok(cluster.conninfo("postgres"))
    }

    /// The postmaster, if it is on this machine and ours.
    #[must_use]
    pub fn postmaster(&self) -> Option<u32> {
        let Self::Own { data, .. } = self else {
            return None;
        };
        postmaster_of(data.as_deref()?)
    }

    /// The data directory, if it is ours.
    #[must_use]
    pub fn data(&self) -> Option<&Path> {
        match self {
            Self::Own { data, .. } => data.as_deref(),
            Self::Remote { .. } => None,
        }
    }

    /// The server's log, if it is ours.
    #[must_use]
    pub fn log(&self) -> Option<PathBuf> {
        match self {
            Self::Own { running, .. } => running.as_ref().map(Cluster::log),
            Self::Remote { .. } => None,
        }
    }
}

/// The process that runs on a data directory.
#[must_use]
pub fn postmaster_of(data: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok()
}
