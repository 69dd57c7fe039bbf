//! Where identities come from: files that nobody else can read, and programs that print them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use zeroize::Zeroizing;

use super::guard;
use super::identity::{Identities, new_identity};
use crate::error::{Error, FileContext, Kind, Result};
use crate::input::require_no_named_pipe;

/// A key service answers in seconds, or does not.
pub const KEY_COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Who waits longer is told for what.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// An identity is 74 bytes; a file of many, with comments, is still short.
const MOST_BYTES: u64 = 64 << 10;

/// What others may do with a file of secrets: nothing.
const OPEN_TO_OTHERS: u32 = 0o177;

/// Keeps what this process remembers out of core dumps, and out of the reach of other processes of the same user.
pub fn keep_out_of_dumps() {
    // Where the kernel does not know this, nothing else does.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Reads the identities in a file.
///
/// # Errors
/// `Refused` when others can read it, or it holds no identity; `File` when it cannot be read.
pub fn from_file(path: &Path) -> Result<Identities> {
    let shown = path.display();
    let act = || format!("could not read identity file \"{shown}\"");
    require_no_named_pipe(path, act)?;
    let file = File::open(path).context(act)?;
    let metadata = file.metadata().context(act)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if metadata.is_file() && mode & OPEN_TO_OTHERS != 0 {
        let what =
            format!("identity file \"{shown}\" has mode {mode:04o}, and may have 0600 at most");
        return Err(Error::new(Kind::Refused, what).hint(format!(
            "run \"chmod 600 {shown}\"; if others could read it, make another identity and take this one out with \"pgstrata key remove\""
        )));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .context(act)?;
    if is_too_long(&text) {
        let what = format!(
            "identity file \"{shown}\" holds more than {} KiB",
            MOST_BYTES >> 10
        );
        return Err(Error::new(Kind::Refused, what)
            .hint("it must be a file as \"pgstrata key generate\" or age-keygen writes it"));
    }
    Identities::parse(&text, &format!("identity file \"{shown}\""))
}

/// Runs a program by `sh` and reads the identities that it prints. It is ended, with all that it has started, when it
/// takes longer than `timeout`, and when this process ends: [`guard`] looks after that.
///
/// # Errors
/// `Refused` when it fails, takes too long, or prints no identity. What it prints on standard output is never shown.
pub fn from_command(command: &str, timeout: Duration) -> Result<Identities> {
    let refused = |what: String| {
        Error::new(Kind::Refused, format!("key command {what}"))
            .hint("it must print an age identity on standard output and exit with 0; try it by hand as the same user")
    };
    // By this name also a program that was replaced meanwhile.
    let mut child = Command::new("/proc/self/exe")
        .arg0("pgstrata")
        .args([guard::GUARD, command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| refused(format!("could not be started: {error}")))?;
    let printed = read_all(child.stdout.take());
    let complaint = read_all(child.stderr.take());
    let mut ended = wait(&mut child, timeout.min(TOLD_AFTER));
    if matches!(ended, Ok(None)) && timeout > TOLD_AFTER {
        let seconds = timeout.as_secs();
        tracing::info!("waiting for the key command, which has {seconds} s to end");
        ended = wait(&mut child, timeout.saturating_sub(TOLD_AFTER));
    }
    let status = match ended {
        Ok(Some(status)) => status,
        ended => {
            end(&mut child);
            return Err(refused(match ended {
                Err(error) => format!("could not be waited for: {error}"),
                Ok(_) => format!("did not end within {} s", timeout.as_secs()),
            }));
        }
    };
    // What another user runs may still hold the pipes.
    let text = printed.recv_timeout(guard::ENDS_WITHIN).unwrap_or_default();
    if is_too_long(&text) {
        return Err(refused(format!(
            "printed more than {} KiB",
            MOST_BYTES >> 10
        )));
    }
    if !status.success() {
        let said = complaint
            .recv_timeout(guard::ENDS_WITHIN)
            .unwrap_or_default();
        return Err(refused(failure(status, &said)));
    }
    Identities::parse(&text, "the output of the key command")
}

/// What became of a command, by what it said last and what its guard said after that.
fn failure(status: ExitStatus, said: &str) -> String {
    let mut last = said.lines().rev().filter(|line| !line.trim().is_empty());
    let how = last.next();
    let how = how.map_or_else(|| format!("ended with {status}"), str::to_owned);
    format!("{how}: {}", last.next().unwrap_or("it said nothing"))
}

fn is_too_long(text: &str) -> bool {
    u64::try_from(text.len()).is_ok_and(|length| length > MOST_BYTES)
}

fn read_all(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Zeroizing<String>> {
    let (give, text) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Zeroizing::new(Vec::new());
        if let Some(from) = from {
            // What cannot be read is missing, which is noticed.
            let _ = from.take(MOST_BYTES + 1).read_to_end(&mut bytes);
        }
        let text = Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned());
        // Nobody may be waiting for it any more.
        let _ = give.send(text);
    });
    text
}

fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    let started = Instant::now();
    loop {
        let status = child.try_wait()?;
        if status.is_some() || started.elapsed() >= timeout {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has the guard end what it guards.
fn end(child: &mut Child) {
    drop(child.stdin.take());
    if !matches!(wait(child, 2 * guard::ENDS_WITHIN), Ok(Some(_))) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Makes an identity and writes it into a new file; answers its recipient.
///
/// # Errors
/// `File` when the file is there, or cannot be written.
pub fn generate(path: &Path) -> Result<String> {
    use io::Write;
    let (identity, recipient) = new_identity();
    let act = || format!("could not write identity file \"{}\"", path.display());
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .context(act)?;
    let text = Zeroizing::new(format!(
        "# public key: {recipient}\n{}\n",
        identity.as_str()
    ));
    file.write_all(text.as_bytes()).context(act)?;
    file.sync_all().context(act)?;
    Ok(recipient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("identity");
        let recipient = generate(&path).unwrap();
        assert_eq!(from_file(&path).unwrap().recipients(), [recipient]);
        assert_eq!(generate(&path).unwrap_err().kind(), Kind::File);
        for mode in [0o640, 0o604, 0o700, 0o644] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = from_file(&path).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused, "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(from_file(&path).is_ok());
        let long = directory.path().join("long");
        fs::write(&long, "#\n".repeat(40_000)).unwrap();
        fs::set_permissions(&long, fs::Permissions::from_mode(0o600)).unwrap();
        let error = from_file(&long).unwrap_err();
        assert!(error.to_string().contains("more than 64 KiB"), "{error}");
    }

    #[test]
    fn what_a_failed_command_said_last_is_told_beside_its_status() {
        let status = ExitStatus::default();
        for (said, expected) in [
            (
                "no such key\nended with exit status: 3\n",
                "ended with exit status: 3: no such key",
            ),
            (
                "ended with signal: 9\n",
                "ended with signal: 9: it said nothing",
            ),
            ("", "ended with exit status: 0: it said nothing"),
        ] {
            assert_eq!(failure(status, said), expected);
        }
    }
}
