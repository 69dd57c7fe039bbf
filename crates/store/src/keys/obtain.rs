//! Where identities come from: files that nobody else can read, and programs that print them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{DumpableBehavior, Pid, Signal, kill_process_group, set_dumpable_behavior};
use zeroize::Zeroizing;

use super::identity::{Identities, new_identity};
use crate::error::{Error, FileContext, Kind, Result};
use crate::input::require_no_named_pipe;

/// A key service answers in seconds, or does not.
pub const KEY_COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

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

/// Runs a program by `sh` and reads the identities that it prints. It is killed, with all it has started, when it takes longer than `timeout`.
///
/// # Errors
/// `Refused` when it fails, takes too long, or prints no identity. What it prints on standard output is never shown.
pub fn from_command(command: &str, timeout: Duration) -> Result<Identities> {
    let refused = |what: String| {
        Error::new(Kind::Refused, format!("key command {what}"))
            .hint("it must print an age identity on standard output and exit with 0; try it by hand as the same user")
    };
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| refused(format!("could not be started: {error}")))?;
    let printed = read_all(child.stdout.take());
    let complaint = read_all(child.stderr.take());
    let status = match wait(&mut child, timeout) {
        Ok(Some(status)) => status,
        ended => {
            end(&mut child);
            return Err(refused(match ended {
                Err(error) => format!("could not be waited for: {error}"),
                Ok(_) => format!("did not end within {} s", timeout.as_secs()),
            }));
        }
    };
    // What it left behind may hold the pipes.
    end(&mut child);
    let text = printed.join().unwrap_or_default();
    if is_too_long(&text) {
        return Err(refused(format!(
            "printed more than {} KiB",
            MOST_BYTES >> 10
        )));
    }
    if !status.success() {
        let said = complaint.join().unwrap_or_default();
        let last = said.lines().last().unwrap_or("it said nothing").to_owned();
        return Err(refused(format!("failed with {status}: {last}")));
    }
    Identities::parse(&text, "the output of the key command")
}

fn is_too_long(text: &str) -> bool {
    u64::try_from(text.len()).is_ok_and(|length| length > MOST_BYTES)
}

fn read_all(from: Option<impl Read + Send + 'static>) -> JoinHandle<Zeroizing<String>> {
    std::thread::spawn(move || {
        let mut bytes = Zeroizing::new(Vec::new());
        if let Some(from) = from {
            // What cannot be read is missing, which is noticed.
            let _ = from.take(MOST_BYTES + 1).read_to_end(&mut bytes);
        }
        Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned())
    })
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

fn end(child: &mut Child) {
    // Its group, which may be empty by now.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
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
    fn a_key_command_answers_or_is_an_error() {
        let (identity, recipient) = new_identity();
        let long = Duration::from_secs(60);
        let command = format!("echo '{}'", identity.as_str());
        let read = from_command(&command, long).unwrap();
        assert_eq!(read.recipients(), [recipient]);
        for (wrong, expected) in [
            ("exit 3", "failed with"),
            ("echo no such key >&2; exit 1", "no such key"),
            ("true", "holds no age identity"),
            ("echo rubbish", "is not an age identity"),
            ("head -c 1000 /dev/zero", "is not an age identity"),
            ("yes", "more than 64 KiB"),
            ("yes '#' | head -c 70000", "more than 64 KiB"),
        ] {
            let error = from_command(wrong, long).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused, "{wrong}: {error}");
            assert!(error.to_string().contains(expected), "{wrong}: {error}");
        }
        let error = from_command("sleep 1000", Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
    }
}
