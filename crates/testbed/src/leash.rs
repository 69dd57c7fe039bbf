//! A leash: what a test started ends with the test, however the test ends.
//!
//! A shell outside the test's process group waits for the end of a pipe that
//! only the test holds. When the pipe closes, because the leash was dropped or
//! the test was killed, the shell stops the server and removes its directory.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Waits for the end of the pipe, then kills the server whose data directory is
/// `$1`. A process is taken for that server only if it runs there: `SIGKILL`
/// leaves the file behind, and its number may by then be somebody else's.
const STOP_POSTGRES: &str = r#"
    while read -r _; do :; done
    pid=$(head -n 1 "$1/postmaster.pid" 2>/dev/null)
    runs() { [ "$(readlink "/proc/$pid/cwd")" = "$1" ]; }
    if [ -n "$pid" ] && runs "$1"; then
        kill -QUIT "$pid"
        while runs "$1"; do sleep 0.02; done
    fi
    rm -rf "$2"
"#;

/// Runs the command given after `$1`, the directory, and ends both together.
const RUN: &str = r#"
    directory=$1
    shift
    "$@" &
    pid=$!
    while read -r _; do :; done
    kill -KILL "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    rm -rf "$directory"
"#;

/// Holds a server; dropping it stops the server and removes its directory.
#[derive(Debug)]
pub(crate) struct Leash {
    shell: Child,
}

impl Leash {
    /// Ties whatever server runs in `pgdata` at the end, and `directory`.
    pub(crate) fn postgres(pgdata: &Path, directory: &Path) -> Result<Self> {
        Self::new(STOP_POSTGRES, |shell| {
            shell.arg(pgdata).arg(directory);
        })
    }

    /// Starts `command` (its output goes where the shell's goes) and ties it.
    pub(crate) fn run(command: &Command, directory: &Path, log: &Path) -> Result<Self> {
        let file = std::fs::File::create(log)
            .with_context(|| format!("could not create \"{}\"", log.display()))?;
        let errors = file.try_clone().context("could not duplicate a file")?;
        Self::new(RUN, |shell| {
            shell
                .arg(directory)
                .arg(command.get_program())
                .args(command.get_args())
                .stdout(file)
                .stderr(errors);
            for (key, value) in command.get_envs() {
                shell.env(key, value.unwrap_or_default());
            }
        })
    }

    fn new(script: &str, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "leash"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        prepare(&mut command);
        let shell = command.spawn().context("could not start sh")?;
        Ok(Self { shell })
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nobody is left to tell if it failed.
        let _ = self.shell.wait();
    }
}
