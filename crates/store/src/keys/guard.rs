//! A key command that never outlives who has asked for it.
//!
//! The server runs `archive-push` and `archive-get`. What these leave behind becomes a child of the server where the
//! server is process 1, as in a container, and the server takes a bad exit code of such a child for a crash of its own. So
//! this program stands once more between itself and the key command, as a guard. It ends the command, with all that the
//! command has started, when the command is done, when it is told to, and when who has asked is gone, however that ended,
//! by SIGKILL too.
//!
//! The guard learns that by its standard input, which ends then. All that the command has started is below the guard: what
//! loses its parent becomes a child of the guard, and of nobody else. All of them are in the process group of who has
//! asked, so signals of the server to that group reach them. The guard itself ends with 0 or 1, which a server takes for no
//! crash.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::obtain::keep_out_of_dumps;

/// The word by which this program is called as a guard.
pub(super) const GUARD: &str = "guard-key-command";

/// What another user runs, as by sudo, cannot be killed, and may take its time to end.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The key command to be guarded, when the program was called for that.
#[must_use]
pub fn guarded(arguments: &[OsString]) -> Option<&OsStr> {
    match arguments {
        [_, word, command] if word == GUARD => Some(command),
        _ => None,
    }
}

/// Runs a key command by `sh` until it ends, or who has asked for it.
///
/// # Errors
/// What became of a command that has failed, in words.
pub fn guard(command: &OsStr) -> Result<(), String> {
    keep_out_of_dumps();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build();
    let ended = runtime.and_then(|runtime| runtime.block_on(run(command)));
    end_all();
    match ended {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(format!("ended with {status}")),
        // Nobody hears it any more.
        Ok(None) => Ok(()),
        Err(error) => Err(format!("could not be started: {error}")),
    }
}

/// The command's end, unless who has asked for it is gone before.
async fn run(command: &OsStr) -> io::Result<Option<std::process::ExitStatus>> {
    // Who has asked may have been sent it too, and is about to end. They are caught: the command would ignore what its
    // parent ignores.
    let all = [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
    ];
    let _caught: Vec<_> = all.into_iter().map(signal).collect::<io::Result<_>>()?;
    set_child_subreaper(Some(getpid()))?;
    let asker = io::stdin().as_fd().try_clone_to_owned()?;
    let mut asker = Receiver::from_owned_fd(asker)?;
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .spawn()?;
    tokio::select! {
        status = child.wait() => status.map(Some),
        // Nothing is ever written.
        _ = asker.read_u8() => Ok(None),
    }
}

/// Ends whatever is left below this process.
fn end_all() {
    let started = Instant::now();
    while started.elapsed() < ENDS_WITHIN {
        match waitpid(None, WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => {
                for child in children() {
                    // It may have ended; what is below it becomes a child then.
                    let _ = kill_process(child, Signal::KILL);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// The children of this process, by what each process says of its parent.
fn children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = all.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name of the program comes before, in parentheses, and may hold anything.
        let (_, rest) = stat.rsplit_once(')')?;
        let parent = rest.split_ascii_whitespace().nth(1)?;
        (parent == own).then_some(pid)
    });
    numbered.filter_map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_is_called_by_its_word_alone() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        let called = words("pgstrata guard-key-command true");
        assert_eq!(guarded(&called), Some(OsStr::new("true")));
        for other in [
            "pgstrata guard-key-command",
            "pgstrata info guard-key-command",
            "pgstrata --key-command guard-key-command info",
        ] {
            assert_eq!(guarded(&words(other)), None, "{other}");
        }
    }
}
