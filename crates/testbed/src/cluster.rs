//! Throwaway PostgreSQL clusters for tests, the demo and measurements.
//!
//! ```no_run
//! use pgstrata_testbed::cluster::{Cluster, Major};
//!
//! # fn main() -> anyhow::Result<()> {
//! let cluster = Cluster::builder(Major::V18).conf("wal_level", "logical").start()?;
//! assert_eq!(cluster.sql("postgres", "SELECT 1")?, "1");
//! # Ok(())
//! # }
//! ```
//!
//! A cluster listens on a Unix socket in a short path of its own and nowhere
//! else, unless told to. It ends with the value, and also with the program that
//! holds the value if that is killed; both remove its directory. `fsync` is off
//! unless asked for, so a cluster may not outlive the machine, but it outlives
//! `kill9`. Run by root, every server program runs as user `postgres`.

mod background;
mod builder;
mod checks;
mod major;
mod template;
mod tracked;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

pub use self::background::Background;
pub(crate) use self::builder::free_port;
pub use self::builder::{Adoption, Builder};
pub use self::checks::require_same_dump;
pub use self::major::Major;
pub use self::tracked::TrackedServer;
use crate::leash::Leash;
use crate::os_user::ServerUser;
use crate::programs;

/// The superuser of every throwaway cluster.
pub const SUPERUSER: &str = "postgres";

/// How often waiting functions look again: short against a server's start
/// (0.1 s), long against one query (1 ms).
const POLL: Duration = Duration::from_millis(20);

/// How a server is stopped, as `pg_ctl` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Wait for clients to leave, then write a shutdown checkpoint.
    Smart,
    /// Disconnect clients, then write a shutdown checkpoint.
    Fast,
    /// Abort at once; the next start recovers.
    Immediate,
}

impl StopMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Smart => "smart",
            Self::Fast => "fast",
            Self::Immediate => "immediate",
        }
    }
}

/// A PostgreSQL server of our own, running or stopped.
#[derive(Debug)]
pub struct Cluster {
    major: Major,
    bindir: PathBuf,
    /// Ours: socket, log, copied programs; `pgdata` too unless adopted.
    directory: PathBuf,
    pgdata: PathBuf,
    port: u16,
    user: ServerUser,
    /// Given to the server at every start; beats what its files say.
    options: Vec<(String, String)>,
    /// Environment of the server, beside what this program's gives it.
    variables: Vec<(String, String)>,
    /// Stops the server and removes `directory` when dropped.
    _leash: Leash,
}

impl Cluster {
    /// Describes a new cluster.
    #[must_use]
    pub fn builder(major: Major) -> Builder {
        Builder::new(major)
    }

    /// Describes a server on an existing data directory, a restored one say.
    #[must_use]
    pub fn adopt(major: Major, pgdata: &Path) -> Adoption {
        Adoption::new(major, pgdata)
    }

    /// The major version.
    #[must_use]
    pub const fn major(&self) -> Major {
        self.major
    }

    /// The directory of the server's programs.
    #[must_use]
    pub fn bindir(&self) -> &Path {
        &self.bindir
    }

    /// The data directory.
    #[must_use]
    pub fn pgdata(&self) -> &Path {
        &self.pgdata
    }

    /// The port: the socket's name, and the TCP port if TCP was asked for.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the Unix socket; `PGHOST` for this cluster.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.directory
    }

    /// A libpq connection string for the superuser.
    #[must_use]
    pub fn conninfo(&self, database: &str) -> String {
        self.conninfo_as(SUPERUSER, database)
    }

    /// A libpq connection string for any role (every role is trusted).
    #[must_use]
    pub fn conninfo_as(&self, role: &str, database: &str) -> String {
        format!(
            "host={} port={} user={role} dbname={database}",
            self.directory.display(),
            self.port
        )
    }

    /// Runs a psql script as superuser, statement by statement, and returns what
    /// it printed: unaligned, rows only, without the last line break.
    pub fn sql(&self, database: &str, script: &str) -> Result<String> {
        self.sql_as(SUPERUSER, database, script)
    }

    /// Like [`Cluster::sql`], as any role.
    pub fn sql_as(&self, role: &str, database: &str, script: &str) -> Result<String> {
        let mut psql = self.command("psql");
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-f", "-", "-d"])
            .arg(self.conninfo_as(role, database));
        let about = || format!("could not run SQL in database \"{database}\": {script}");
        let printed = run_with_input(&mut psql, script)
            .map_err(|error| self.with_log_of_a_crash(error))
            .with_context(about)?;
        Ok(printed.trim_end_matches('\n').to_owned())
    }

    /// Only the server's log tells why it broke off, and a throwaway cluster takes that with it.
    fn with_log_of_a_crash(&self, error: Error) -> Error {
        match format!("{error:#}").contains("server closed the connection") {
            true => error.context(format!("server log ends: {}", self.log_tail(40))),
            false => error,
        }
    }

    /// Runs `query` again until it prints `t`.
    pub fn wait_for(&self, database: &str, query: &str, timeout: Duration) -> Result<()> {
        let end = Instant::now() + timeout;
        loop {
            let last = self.sql(database, query);
            if last.as_ref().is_ok_and(|printed| printed == "t") {
                return Ok(());
            }
            if Instant::now() > end {
                bail!(
                    "query was not true within {timeout:?}: {query}: last {last:?}; server log: {}",
                    self.log_tail(20)
                );
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until recovery has ended and the server accepts writes.
    pub fn wait_promoted(&self, timeout: Duration) -> Result<()> {
        self.wait_for(SUPERUSER, "SELECT NOT pg_is_in_recovery()", timeout)
    }

    /// Waits until recovery has reached its target and paused there.
    pub fn wait_paused(&self, timeout: Duration) -> Result<()> {
        let query = "SELECT pg_get_wal_replay_pause_state() = 'paused'";
        self.wait_for(SUPERUSER, query, timeout)
    }

    /// Runs pgbench against database `postgres` to its end; returns its report.
    pub fn pgbench(&self, arguments: &[&str]) -> Result<String> {
        self.run("pgbench", arguments)
    }

    /// Starts pgbench against database `postgres` and returns at once.
    pub fn background_pgbench(&self, arguments: &[&str]) -> Result<Background> {
        let mut pgbench = self.command("pgbench");
        pgbench.args(arguments);
        self.background(pgbench)
    }

    /// Starts any command in the background, usually one from
    /// [`Cluster::command`] or [`Cluster::command_as_server_user`].
    pub fn background(&self, command: Command) -> Result<Background> {
        Background::start(command, &self.directory)
    }

    /// A program of this major version (or any path), to run as the server's
    /// user, connecting to this cluster unless told otherwise.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        self.command_as_server_user(&self.bindir.join(program))
    }

    /// Like [`Cluster::command`] for a program elsewhere, which the server's
    /// user must be able to reach: see [`Cluster::installed_binary`].
    #[must_use]
    pub fn command_as_server_user(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        builder::forget_postgres_environment(&mut command);
        command
            .env("PGHOST", &self.directory)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", SUPERUSER)
            .env("PGDATABASE", SUPERUSER)
            .env("LC_ALL", "C")
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        self.user.apply(&mut command, &self.directory);
        command
    }

    /// Runs a program of this major version; returns its standard output.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        output_of(self.command(program).args(arguments))
    }

    /// Copies a program to where the server's user can run it, for
    /// `archive_command` and `restore_command`.
    pub fn installed_binary(&self, program: &Path) -> Result<PathBuf> {
        let name = program.file_name().context("a program has a name")?;
        let target = self.directory.join("bin");
        fs::create_dir_all(&target)
            .with_context(|| format!("could not create \"{}\"", target.display()))?;
        let copy = target.join(name);
        programs::copy_program(program, &copy)?;
        Ok(copy)
    }

    /// Creates an empty directory that the server's user owns: for a
    /// tablespace, a repository, or the target of a restore.
    pub fn create_dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::create_dir(&path)
            .with_context(|| format!("could not create directory \"{}\"", path.display()))?;
        self.user.own(&path)?;
        Ok(path)
    }

    /// Gives a file or directory elsewhere to the server's user.
    pub fn own(&self, path: &Path) -> Result<()> {
        self.user.own(path)
    }

    /// Creates tablespace `name` in a directory of its own, which is returned.
    pub fn create_tablespace(&self, name: &str) -> Result<PathBuf> {
        let path = self.create_dir(&format!("tablespace-{name}"))?;
        let statement = format!("CREATE TABLESPACE {name} LOCATION '{}'", path.display());
        self.sql(SUPERUSER, &statement)?;
        Ok(path)
    }

    /// Starts the server and waits until it accepts connections.
    pub fn start(&self) -> Result<()> {
        let mut pg_ctl = self.command("pg_ctl");
        pg_ctl.args(["start", "-s", "-w", "-t", "120", "-D"]);
        pg_ctl.arg(&self.pgdata).arg("-l").arg(self.log());
        pg_ctl.arg("-o").arg(self.server_options());
        pg_ctl.envs(self.variables.iter().map(|(name, value)| (name, value)));
        output_of(&mut pg_ctl).with_context(|| {
            format!(
                "could not start PostgreSQL {} on \"{}\"; its log ends: {}",
                self.major,
                self.pgdata.display(),
                self.log_tail(20)
            )
        })?;
        Ok(())
    }

    /// Stops the server.
    pub fn stop(&self, mode: StopMode) -> Result<()> {
        let mut pg_ctl = self.command("pg_ctl");
        pg_ctl.args(["stop", "-s", "-w", "-t", "120", "-m", mode.name(), "-D"]);
        output_of(pg_ctl.arg(&self.pgdata))
            .with_context(|| format!("server log ends: {}", self.log_tail(20)))?;
        Ok(())
    }

    /// Stops the server cleanly and starts it again.
    pub fn restart(&self) -> Result<()> {
        self.stop(StopMode::Fast)?;
        self.start()
    }

    /// Kills every process of the server at once, as the loss of power would.
    pub fn kill9(&self) -> Result<()> {
        let postmaster = self.postmaster()?;
        // A stopped postmaster cannot react to the death of its children.
        kill_process(postmaster, Signal::STOP).context("could not stop the postmaster")?;
        let processes = children_of(postmaster)?;
        for process in processes.iter().chain([&postmaster]) {
            // A child may have ended by itself since the list was made.
            let _ = kill_process(*process, Signal::KILL);
        }
        let killed: Vec<Pid> = processes.into_iter().chain([postmaster]).collect();
        wait_until_none(&killed, Duration::from_secs(30), is_running)
            .context("processes survived SIGKILL")?;
        // Until somebody reaps it, the next server takes the dead postmaster for
        // a live one. Where nobody does (pid 1 of some containers), the file goes.
        if wait_until_none(&killed, Duration::from_secs(5), exists).is_err() {
            let file = self.pgdata.join("postmaster.pid");
            fs::remove_file(&file)
                .with_context(|| format!("could not remove \"{}\"", file.display()))?;
        }
        Ok(())
    }

    /// Kills the postmaster alone, as a kernel without memory may. Its children end by themselves; returns when they have.
    pub fn kill_postmaster(&self) -> Result<()> {
        let postmaster = self.postmaster()?;
        let mut processes = children_of(postmaster)?;
        kill_process(postmaster, Signal::KILL).context("could not kill the postmaster")?;
        processes.push(postmaster);
        wait_until_none(&processes, Duration::from_secs(60), is_running)
            .context("processes survived their postmaster")?;
        if wait_until_none(&processes, Duration::from_secs(5), exists).is_err() {
            let file = self.pgdata.join("postmaster.pid");
            fs::remove_file(&file)
                .with_context(|| format!("could not remove \"{}\"", file.display()))?;
        }
        Ok(())
    }

    /// Kills the child of the postmaster that calls itself `postgres: <title>`, after which the server ends all others and
    /// recovers by itself. Returns when the child is gone; false when there is none.
    pub fn kill_child(&self, title: &str) -> Result<bool> {
        let wanted = format!("postgres: {title}");
        let is_wanted = |process: &&Pid| {
            let file = format!("/proc/{}/cmdline", process.as_raw_nonzero());
            fs::read(file).is_ok_and(|name| String::from_utf8_lossy(&name).starts_with(&wanted))
        };
        let children = children_of(self.postmaster()?)?;
        let Some(child) = children.iter().find(is_wanted) else {
            return Ok(false);
        };
        // It may have ended meanwhile.
        if kill_process(*child, Signal::KILL).is_err() {
            return Ok(false);
        }
        wait_until_none(&[*child], Duration::from_secs(60), exists)?;
        Ok(true)
    }

    /// Ends the recovery of a standby.
    pub fn promote(&self) -> Result<()> {
        let mut pg_ctl = self.command("pg_ctl");
        pg_ctl.args(["promote", "-s", "-w", "-t", "120", "-D"]);
        output_of(pg_ctl.arg(&self.pgdata))
            .with_context(|| format!("server log ends: {}", self.log_tail(20)))?;
        Ok(())
    }

    /// Adds a setting to `postgresql.conf`; it waits for a reload or restart.
    pub fn append_conf(&self, key: &str, value: &str) -> Result<()> {
        let path = self.pgdata.join("postgresql.conf");
        let mut file = OpenOptions::new()
            .append(true)
            .open(&path)
            .with_context(|| format!("could not open \"{}\"", path.display()))?;
        writeln!(file, "{}", builder::setting(key, value))
            .with_context(|| format!("could not write \"{}\"", path.display()))
    }

    /// Makes the server read its configuration files again.
    pub fn reload(&self) -> Result<()> {
        self.sql(SUPERUSER, "SELECT pg_reload_conf()").map(drop)
    }

    /// Where the server logs.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log_tail(&self, line_count: usize) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.len().saturating_sub(line_count);
        lines.get(first..).unwrap_or_default().join("\n")
    }

    /// The process that the server's others are children of.
    pub fn postmaster(&self) -> Result<Pid> {
        let path = self.pgdata.join("postmaster.pid");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("could not read \"{}\"", path.display()))?;
        text.lines()
            .next()
            .and_then(parse_pid)
            .with_context(|| format!("\"{}\" names no process", path.display()))
    }

    /// The server's command line. `pg_ctl` hands it to a shell.
    fn server_options(&self) -> String {
        self.options
            .iter()
            .map(|(key, value)| format!("-c {key}='{}'", value.replace('\'', r"'\''")))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.trim().parse().ok()?)
}

/// The state and the parent of a process, from the kernel.
fn process_stat(process: Pid) -> Option<(String, Pid)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    // The name in parentheses may itself hold spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    let state = fields.next()?.to_owned();
    Some((state, parse_pid(fields.next()?)?))
}

fn children_of(parent: Pid) -> Result<Vec<Pid>> {
    let entries = fs::read_dir("/proc").context("could not list /proc")?;
    let processes = entries.filter_map(|entry| parse_pid(entry.ok()?.file_name().to_str()?));
    Ok(processes
        .filter(|process| process_stat(*process).is_some_and(|(_, of)| of == parent))
        .collect())
}

fn exists(process: Pid) -> bool {
    process_stat(process).is_some()
}

/// A process that has ended exists until it is reaped.
fn is_running(process: Pid) -> bool {
    process_stat(process).is_some_and(|(state, _)| state != "Z" && state != "X")
}

fn wait_until_none(processes: &[Pid], timeout: Duration, is: fn(Pid) -> bool) -> Result<()> {
    let end = Instant::now() + timeout;
    while processes.iter().any(|process| is(*process)) {
        ensure!(Instant::now() < end, "waited for {timeout:?}");
        thread::sleep(POLL);
    }
    Ok(())
}

/// Runs a command to its end; its standard output if it succeeded.
fn output_of(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("could not start {command:?}"))?;
    succeeded(command, &output)
}

fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start {command:?}"))?;
    let pipe = child.stdin.take();
    // Written from a thread: the child may fill its output before reading all.
    let output = thread::scope(|scope| {
        scope.spawn(move || pipe.map(|mut pipe| pipe.write_all(input.as_bytes())));
        child.wait_with_output()
    });
    let output = output.with_context(|| format!("could not wait for {command:?}"))?;
    succeeded(command, &output)
}

/// Of what a program printed that failed, the end is told: some print whole databases.
const TOLD_BYTES: usize = 16 << 10;

fn succeeded(command: &Command, output: &Output) -> Result<String> {
    let told = &output.stdout[output.stdout.len().saturating_sub(TOLD_BYTES)..];
    ensure!(
        output.status.success(),
        "{command:?} failed with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(told),
    );
    String::from_utf8(output.stdout.clone())
        .with_context(|| format!("{command:?} printed something that is not UTF-8"))
}
