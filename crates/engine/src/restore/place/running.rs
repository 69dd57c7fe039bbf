//! Whether a server may be running on a data directory.
//!
//! A process identifier means something in one PID namespace of one host, and a data directory may be seen from several:
//! the containers of one pod share the volume and the host's name. So a live process proves that the directory is in
//! use; nothing that is merely not seen proves that it is not. What is certain is refused; what is doubtful is refused
//! until somebody says that the server is stopped.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::control::ClusterState;
use pgstrata_pgdata::{ControlFile, LOCK_FILE, LockFile};
use pgstrata_store::error::{Error, Kind, Result};
use rustix::process::{Pid, test_kill_process};

use super::layout::{CONTROL, read_if_there};
use super::links::all_links;

/// What speaks for a running server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sign {
    /// One runs.
    Certain(String),
    /// One may run, and it cannot be seen from here.
    Doubtful(String),
}

/// Refuses a data directory on which a server runs, or may run unless `vouched`.
///
/// # Errors
/// `Refused`, with what speaks for the server; when the directory cannot be looked at.
pub(crate) fn refuse_running_server(data: &Path, vouched: bool) -> Result<()> {
    let signs = signs(data)?;
    let certain = signs.iter().find_map(|sign| match sign {
        Sign::Certain(why) => Some(why),
        Sign::Doubtful(_) => None,
    });
    if let Some(why) = certain {
        return Err(Error::new(
            Kind::Refused,
            format!("a server runs in \"{}\": {why}", data.display()),
        )
        .hint("Stop it first."));
    }
    match signs.first() {
        Some(Sign::Doubtful(why)) if !vouched => Err(Error::new(
            Kind::Refused,
            format!(
                "a server may be running in \"{}\", in another container or on another host: {why}",
                data.display()
            ),
        )
        .hint(
            "Look where the server runs; when it is stopped for certain, say so with --server-is-stopped. Pages that are \
             changed under a running server are lost.",
        )),
        _ => Ok(()),
    }
}

/// Everything that speaks for a running server.
fn signs(data: &Path) -> Result<Vec<Sign>> {
    let mut signs = Vec::new();
    match read_if_there(&data.join(LOCK_FILE))? {
        Some(contents) => signs.extend(signs_by(&LockFile::parse(&contents), data)),
        None => signs.extend(unclean_shutdown(data)?),
    }
    signs.extend(processes_in(data));
    signs.extend(shared_memory_by_inode(data));
    Ok(signs)
}

/// What speaks for the server that left this file.
fn signs_by(says: &LockFile, data: &Path) -> Vec<Sign> {
    let mut signs = vec![process_by(says, data)];
    if answers(says, data) {
        signs.push(Sign::Certain("its socket answers".to_owned()));
    }
    if let Some((key, id)) = says.shared_memory
        && let Some(segment) = shared_memory().into_iter().find(|one| one.id == id)
        && segment.key == key_of(key)
        && segment.attached > 0
    {
        signs.push(Sign::Certain(format!(
            "{} processes use its shared memory (key {})",
            segment.attached, segment.key
        )));
    }
    signs
}

fn process_by(says: &LockFile, data: &Path) -> Sign {
    let pid = says.pid.map(i32::saturating_abs).and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return Sign::Doubtful(format!("its {LOCK_FILE} names no process"));
    };
    let number = pid.as_raw_nonzero();
    let gone = matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    if gone || pid == rustix::process::getpid() {
        return Sign::Doubtful(format!(
            "its {LOCK_FILE} names process {number}, which cannot be seen from here"
        ));
    }
    match works_in(Path::new(&format!("/proc/{number}")), data) {
        Some(true) => Sign::Certain(format!("process {number}")),
        Some(false) => Sign::Doubtful(format!(
            "its {LOCK_FILE} names process {number}, which here is another program"
        )),
        None => Sign::Doubtful(format!(
            "its {LOCK_FILE} names process {number}, and it cannot be seen what that is"
        )),
    }
}

/// Whether the server's socket takes a connection, and the socket's lock says that it is of this directory.
fn answers(says: &LockFile, data: &Path) -> bool {
    let (Some(directory), Some(port)) = (&says.socket_directory, says.port) else {
        return false;
    };
    let socket = directory.join(format!(".s.PGSQL.{port}"));
    let lock = directory.join(format!(".s.PGSQL.{port}.lock"));
    let Ok(lock) = fs::read(lock) else {
        return false;
    };
    let lock = String::from_utf8_lossy(&lock);
    let mut lines = lock.lines();
    let same_pid = lines.next().and_then(|line| line.trim().parse().ok()) == says.pid;
    let same_directory = lines
        .next()
        .is_some_and(|line| is_same(Path::new(line.trim()), data).unwrap_or(false));
    (same_pid || same_directory) && UnixStream::connect(socket).is_ok()
}

/// A server removes its `postmaster.pid` when it has shut down. Without one, a control file that says anything else is
/// of a copy, or of a server that lost the file and lives on.
fn unclean_shutdown(data: &Path) -> Result<Option<Sign>> {
    if data.join("backup_label").exists() {
        // It was put there by a restore or a base backup, never started since, and the control file is that of the source.
        return Ok(None);
    }
    let Some(bytes) = read_if_there(&data.join(CONTROL))? else {
        return Ok(None);
    };
    let Ok(control) = ControlFile::parse(&bytes) else {
        return Ok(Some(Sign::Doubtful(
            "its pg_control cannot be read".to_owned(),
        )));
    };
    Ok(match control.state {
        ClusterState::ShutDown | ClusterState::ShutDownInRecovery => None,
        state => Some(Sign::Doubtful(format!(
            "its pg_control says \"{state}\", and there is no {LOCK_FILE}"
        ))),
    })
}

/// A process that works in the data directory, as every process of a server does.
fn processes_in(data: &Path) -> Option<Sign> {
    let found = servers().find(|process| works_in(process, data) == Some(true))?;
    let number = found.file_name()?.display().to_string();
    Some(Sign::Certain(format!("process {number}")))
}

/// Refuses `directory`, to which a link of `data` leads, when one of another running server leads there, too. Servers in
/// other PID namespaces are not seen, nor those of other users unless root looks.
pub(crate) fn refuse_other_server(data: &Path, directory: &Path) -> Result<()> {
    for process in servers().filter(|process| works_in(process, data) == Some(false)) {
        let other = process.join("cwd");
        let links = all_links(&other).unwrap_or_default();
        let leads_there = |link: &&String| is_same(&other.join(link), directory) == Some(true);
        if let Some(link) = links.iter().find(leads_there) {
            let other = fs::read_link(&other).unwrap_or(other);
            return Err(Error::new(
                Kind::Refused,
                format!(
                    "\"{}\" is in use: a server runs in \"{}\", whose link \"{link}\" leads there",
                    directory.display(),
                    other.display()
                ),
            )
            .hint(
                "Give this restore an empty directory with --tablespace-map or --wal-dir. If the files belong to the \
                 directory that is restored, stop that server first.",
            ));
        }
    }
    Ok(())
}

/// Processes of PostgreSQL servers that can be seen, as directories of `/proc`.
fn servers() -> impl Iterator<Item = PathBuf> {
    let own = rustix::process::getpid().as_raw_nonzero().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(move |entry| {
        let name = entry.file_name();
        name.as_bytes().iter().all(u8::is_ascii_digit) && name != own.as_str()
    });
    processes
        .map(|entry| entry.path())
        .filter(|process| is_server(process))
}

/// Whether a process is a program of PostgreSQL's name, and not a shell that stands in the directory.
fn is_server(process: &Path) -> bool {
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    name.trim() == "postgres" || name.trim() == "postmaster"
}

/// Whether a process works in `data`; `None` when that cannot be seen.
fn works_in(process: &Path, data: &Path) -> Option<bool> {
    is_same(&process.join("cwd"), data)
}

fn is_same(one: &Path, other: &Path) -> Option<bool> {
    let (one, other) = (fs::metadata(one).ok()?, fs::metadata(other).ok()?);
    Some((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// A segment of System V shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedMemory {
    key: i32,
    id: i32,
    attached: u64,
}

/// The key of shared memory that a longer number becomes: its lowest 32 bits.
fn key_of(number: u64) -> i32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// All that this IPC namespace has; nothing where the system does not tell.
fn shared_memory() -> Vec<SharedMemory> {
    let text = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    text.lines().filter_map(parse_segment).collect()
}

/// key, shmid, perms, size, cpid, lpid, nattch, …
fn parse_segment(line: &str) -> Option<SharedMemory> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    Some(SharedMemory {
        key: words.first()?.parse().ok()?,
        id: words.get(1)?.parse().ok()?,
        attached: words.get(6)?.parse().ok()?,
    })
}

/// A server takes the inode of its data directory as the key of its shared memory. Two directories on two file systems
/// may have the same, so this alone proves nothing.
fn shared_memory_by_inode(data: &Path) -> Option<Sign> {
    let key = key_of(fs::metadata(data).ok()?.ino());
    let found = shared_memory()
        .into_iter()
        .find(|segment| segment.key == key && segment.attached > 0)?;
    Some(Sign::Doubtful(format!(
        "{} processes use shared memory of the key that its server takes ({key})",
        found.attached
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_does_not_prove_that_no_server_runs_needs_somebodys_word() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path();
        refuse_running_server(data, false).unwrap();
        // Empty, torn, a process that is gone, and one that works elsewhere (the first of all, or this one).
        for contents in ["", "abc", "2147483647\n/data\n", "1\n/data\n"] {
            fs::write(data.join(LOCK_FILE), contents).unwrap();
            let error = refuse_running_server(data, false).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused);
            assert!(
                error.hint_text().unwrap().contains("--server-is-stopped"),
                "{error}"
            );
            refuse_running_server(data, true).unwrap();
        }
    }

    /// A restore was killed before it had removed its marker, and the server has crashed since.
    #[test]
    fn a_marker_beside_a_control_file_proves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let data = scratch.path();
        fs::create_dir(data.join("global")).unwrap();
        let control = include_bytes!("../../../../pgdata/tests/golden/15/pg_control_production");
        fs::write(data.join(CONTROL), control).unwrap();
        fs::write(data.join(crate::restore::MARKER), "{}").unwrap();
        let error = refuse_running_server(data, false).unwrap_err();
        let hint = error.hint_text().unwrap();
        assert!(hint.contains("--server-is-stopped"), "{error}");
        // No server has started since the restore.
        fs::write(data.join("backup_label"), "").unwrap();
        refuse_running_server(data, false).unwrap();
    }

    #[test]
    fn shared_memory_is_told_by_key_and_users() {
        let header =
            "       key      shmid perms                  size  cpid  lpid nattch   uid   gid";
        let line = "   5374132          0   600                    56 26115 26120      6   103   106 103 106 1 1 1 4096 0";
        assert_eq!(parse_segment(header), None);
        let expected = SharedMemory {
            key: 5_374_132,
            id: 0,
            attached: 6,
        };
        assert_eq!(parse_segment(line), Some(expected));
    }
}
