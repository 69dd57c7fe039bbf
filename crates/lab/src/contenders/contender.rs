//! What takes part in a benchmark: backup tools, and the limits of the machine.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::format::{self, Unit};
use crate::interrupt;
use crate::measure::cost::{self, Cost};
use crate::measure::sample::Window;
use crate::number::real_u64;
use pgstrata_testbed::cluster::Cluster;
use rustix::process::test_kill_process;

/// Workers: as many as asked for, else one per core.
#[must_use]
pub fn jobs(asked: Option<usize>) -> usize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Where a benchmark works.
#[derive(Debug)]
pub struct Arena {
    /// The server that is backed up.
    pub cluster: Cluster,
    /// The `pgstrata` program, where the server's user can run it.
    pub pgstrata: PathBuf,
    /// Another build of it, likewise.
    pub baseline: Option<PathBuf>,
    /// Workers that every contender may use.
    pub jobs: usize,
}

impl Arena {
    /// The server, and the program where the server's user can run it.
    ///
    /// # Errors
    /// When the program cannot be copied.
    pub fn new(cluster: Cluster, pgstrata: &Path, jobs: usize) -> Result<Self> {
        Ok(Self {
            pgstrata: cluster.installed_binary(pgstrata)?,
            baseline: None,
            jobs,
            cluster,
        })
    }

    /// The arena with another build of `pgstrata` beside it.
    ///
    /// # Errors
    /// When the program cannot be copied.
    pub fn with_baseline(mut self, program: &Path) -> Result<Self> {
        let copy = self.cluster.create_dir("baseline")?.join("pgstrata");
        fs::copy(program, &copy)
            .with_context(|| format!("could not copy program \"{}\"", program.display()))?;
        self.baseline = Some(copy);
        Ok(self)
    }

    /// Sends the server's WAL to the archive of this contender alone; of none, to nowhere.
    ///
    /// # Errors
    /// When the server refuses, or the user wants to stop.
    pub fn select(&self, contender: Option<&dyn Contender>) -> Result<()> {
        let command = contender
            .and_then(|contender| contender.archive_command(self))
            .unwrap_or_else(|| "true".to_owned());
        let current = self.cluster.sql("postgres", "SHOW archive_command")?;
        if current == command {
            return Ok(());
        }
        self.cluster.sql(
            "postgres",
            &format!("ALTER SYSTEM SET archive_command = '{command}'"),
        )?;
        self.cluster.reload()?;
        // The archiver reads its configuration when it wakes up.
        interrupt::sleep(Duration::from_millis(300))
    }

    /// Gives a contender an empty repository, into which nothing is archived before it is there, and the server's WAL.
    ///
    /// # Errors
    /// When the contender or the server refuses, or the user wants to stop.
    pub fn start_over(&self, contender: &dyn Contender) -> Result<()> {
        self.select(None)?;
        contender.reset(self)?;
        self.select(Some(contender))
    }

    /// Runs a command and says what it cost, the server's part included, and what it printed.
    ///
    /// # Errors
    /// When it fails, or the server is gone.
    pub fn measured(&self, command: &mut Command) -> Result<(Cost, String)> {
        let postmaster = self.cluster.postmaster()?;
        let runs = || test_kill_process(postmaster).context("the server is gone");
        runs()?;
        let window = self.window();
        let (mut cost, printed) = cost::run_and_read(command)?;
        let shares = window.close();
        runs()?;
        cost.foreign_share = shares.foreign;
        cost.server_cpu_seconds = shares.server_seconds;
        Ok((cost, printed))
    }

    /// The server's process, while it is known.
    #[must_use]
    pub fn server_process(&self) -> Option<u32> {
        let postmaster = self.cluster.postmaster().ok()?;
        u32::try_from(postmaster.as_raw_pid()).ok()
    }

    /// From now on it is seen who uses the processors: the server, the lab, or others.
    #[must_use]
    pub fn window(&self) -> Window {
        Window::open(self.server_process())
    }

    /// An empty directory for a restored cluster, as closed as PostgreSQL wants it.
    ///
    /// # Errors
    /// When it cannot be made, or the file system has no room for a cluster like the source.
    pub fn restore_target(&self) -> Result<PathBuf> {
        let target = self.fresh_dir("restored")?;
        self.require_room()?;
        fs::set_permissions(&target, Permissions::from_mode(0o700))
            .context("could not close the target directory")?;
        Ok(target)
    }

    /// A server that finds no room for its WAL crashes, in the middle of what is measured.
    fn require_room(&self) -> Result<()> {
        // No more WAL than there are pages comes of looking at all of them (hint bits).
        let query = "SELECT sum + least(sum, pg_size_bytes(current_setting('max_wal_size')))
            FROM (SELECT sum(pg_database_size(oid)) FROM pg_database) AS all_databases";
        let needed = self.cluster.sql("postgres", query)?;
        let needed: f64 = needed.parse().context("could not read what is needed")?;
        let at = self.work();
        let there = rustix::fs::statvfs(at)
            .with_context(|| format!("could not look at \"{}\"", at.display()))?;
        let free = real_u64(there.f_bavail * there.f_frsize);
        ensure!(
            free >= needed,
            "no room to restore in \"{}\": a cluster like this takes {} with its WAL, {} are free; make room, or take a smaller preset",
            at.display(),
            format::value(needed, Unit::Bytes),
            format::value(free, Unit::Bytes)
        );
        Ok(())
    }

    /// Opens a restored cluster beside the source, whose archive it leaves alone, and waits until
    /// it accepts writes. `environment` is what its `restore_command` needs.
    ///
    /// # Errors
    /// When it does not start.
    pub fn open(&self, target: &Path, environment: &[(&str, String)]) -> Result<Cluster> {
        let mut adoption = Cluster::adopt(self.cluster.major(), target)
            .bindir(self.cluster.bindir())
            .conf("archive_mode", "off")
            .conf("shared_preload_libraries", "");
        for (name, value) in environment {
            adoption = adoption.env(name, value);
        }
        let restored = adoption.start()?;
        restored.wait_promoted(Duration::from_secs(300))?;
        Ok(restored)
    }

    /// Where repositories and restored clusters go.
    #[must_use]
    pub fn work(&self) -> &Path {
        self.cluster.socket_dir()
    }

    /// An empty directory for this name, replacing what an earlier round left.
    ///
    /// # Errors
    /// When it cannot be removed or created.
    pub fn fresh_dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.work().join(name);
        if path.exists() {
            self.take_away(&path)?;
        }
        self.cluster.create_dir(name)
    }

    /// Takes a tree away and gives its space back, but deletes no file before the arena ends: the emptied files stay aside.
    ///
    /// ext4 without a journal passes over every inode that was freed within the last minute when it takes a new one
    /// (`recently_deleted` in the kernel's fs/ext4/ialloc.c). Files that one act of an experiment deletes would slow the next
    /// act down.
    ///
    /// # Errors
    /// When it cannot be moved or emptied.
    pub fn take_away(&self, tree: &Path) -> Result<()> {
        let aside = self.work().join("emptied");
        fs::create_dir_all(&aside)
            .and_then(|()| tempfile::Builder::new().prefix("").tempdir_in(&aside))
            .and_then(|aside| {
                let moved = aside.keep().join("tree");
                fs::rename(tree, &moved)?;
                empty_files(&moved)
            })
            .with_context(|| format!("could not take \"{}\" away", tree.display()))
    }

    /// A shell command, run as the server's user.
    #[must_use]
    pub fn shell(&self, script: &str) -> Command {
        let mut command = self.cluster.command_as_server_user(Path::new("bash"));
        command.args(["-c", &format!("set -euo pipefail; {script}")]);
        command
    }
}

/// A backup tool with one configuration. Commands are built here and measured elsewhere.
pub trait Contender: std::fmt::Debug {
    /// Short and unique: `pgstrata zstd lsn`.
    fn name(&self) -> String;

    /// The tool alone: the first word of the name.
    fn tool(&self) -> String {
        let name = self.name();
        name.split(' ').next().unwrap_or_default().to_owned()
    }

    /// What it is and does, for whoever reads a report.
    fn words(&self) -> String;

    /// The command that says which release it is.
    fn version(&self, arena: &Arena) -> Command;

    /// How it finds what changed, where its user chooses that: such configurations all take part in experiments about backups.
    fn change_source(&self) -> &str {
        ""
    }

    /// `archive_command` while this contender works; `None`: archiving to nowhere.
    fn archive_command(&self, arena: &Arena) -> Option<String>;

    /// Makes an empty repository, dropping what an earlier round left.
    ///
    /// # Errors
    /// When it cannot be made.
    fn reset(&self, arena: &Arena) -> Result<()>;

    /// The command that takes a full backup.
    fn full(&self, arena: &Arena) -> Command;

    /// Whether [`Self::full`] works beside the backups there are, and [`Self::restore`] then takes its backup.
    fn takes_another_full(&self) -> bool {
        true
    }

    /// The command that takes the incremental backup number `nth`, from 1.
    fn incremental(&self, arena: &Arena, nth: usize) -> Command;

    /// The phases of a backup that printed this, in their order, with their seconds; of most tools nobody knows.
    fn phases(&self, _printed: &str) -> Vec<(String, f64)> {
        Vec::new()
    }

    /// The command that restores the newest of `increments` backups on a full one into the empty `target`.
    fn restore(&self, arena: &Arena, increments: usize, target: &Path) -> Command;

    /// Whether it restores the backups that another configuration of its tool takes, and takes none.
    fn borrows(&self) -> bool {
        false
    }

    /// Where its repository lies: its size is what the backups stored.
    fn repository(&self, arena: &Arena) -> PathBuf {
        arena.work().join(self.repository_name())
    }

    /// The name of that directory.
    fn repository_name(&self) -> String {
        format!("repository-{}", self.name().replace(' ', "-"))
    }
}

/// Does this with every file below `path`; links are not followed.
fn for_each_file(path: &Path, act: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            for_each_file(&entry.path(), act)?;
        } else if kind.is_file() {
            act(&entry.path())?;
        }
    }
    Ok(())
}

/// Leaves no byte in the files below `path`.
fn empty_files(path: &Path) -> io::Result<()> {
    for_each_file(path, &mut |file| {
        match File::options().write(true).open(file) {
            Ok(file) => file.set_len(0),
            // An archiver that was at work there has ended just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    })
}

/// Reads all files below `path`, so that as much of them is in the page cache as fits.
///
/// # Errors
/// When one cannot be read.
pub fn read_tree(path: &Path) -> Result<()> {
    for_each_file(path, &mut |file| {
        io::copy(&mut File::open(file)?, &mut io::sink()).map(drop)
    })
    .with_context(|| format!("could not read \"{}\"", path.display()))
}

/// Leaves nothing in the page cache of this machine; what a hypervisor keeps of its disks is beyond us.
///
/// # Errors
/// Only root may do that.
pub fn empty_page_cache() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("could not empty the page cache")
}

/// Sum of the sizes of all files below `path`, bytes.
///
/// # Errors
/// When a directory cannot be read.
pub fn tree_bytes(path: &Path) -> Result<u64> {
    let mut total = 0;
    for_each_file(path, &mut |file| {
        total += fs::symlink_metadata(file)?.len();
        Ok(())
    })
    .with_context(|| format!("could not list \"{}\"", path.display()))?;
    Ok(total)
}
