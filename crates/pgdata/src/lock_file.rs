//! `postmaster.pid`: what a running server says of itself (`src/include/utils/pidfile.h`).

use std::path::PathBuf;

/// Its name in the data directory.
pub const LOCK_FILE: &str = "postmaster.pid";

/// What the file says, as far as it is there: a server writes it in pieces while it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockFile {
    /// The postmaster's process. A server for single users puts a minus sign before it.
    pub pid: Option<i32>,
    /// The port on which it listens.
    pub port: Option<u16>,
    /// The first directory of its sockets.
    pub socket_directory: Option<PathBuf>,
    /// The first address on which it listens.
    pub address: Option<String>,
    /// Key and identifier of its System V shared memory. The key is printed as an `unsigned long`.
    pub shared_memory: Option<(u64, i32)>,
}

impl LockFile {
    /// Reads what is there. An empty line counts as one that is not there.
    #[must_use]
    pub fn parse(contents: &[u8]) -> Self {
        let text = String::from_utf8_lossy(contents);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let line = |nth: usize| lines.get(nth).copied().filter(|line| !line.is_empty());
        let shared_memory = line(6).and_then(|line| {
            let mut words = line.split_ascii_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        });
        Self {
            pid: line(0).and_then(|line| line.parse().ok()),
            port: line(3).and_then(|line| line.parse().ok()),
            socket_directory: line(4).map(PathBuf::from),
            address: line(5).map(str::to_owned),
            shared_memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_is_read_as_far_as_it_is_there() {
        let whole = b"-4711\n/data\n1790000000\n5432\n/run/postgresql\nlocalhost\n  18446744073709551615         7\nready   \n";
        let expected = LockFile {
            pid: Some(-4711),
            port: Some(5432),
            socket_directory: Some(PathBuf::from("/run/postgresql")),
            address: Some("localhost".to_owned()),
            shared_memory: Some((u64::MAX, 7)),
        };
        assert_eq!(LockFile::parse(whole), expected);
        assert_eq!(LockFile::parse(b""), LockFile::default());
        for length in 0..whole.len() {
            let _ = LockFile::parse(&whole[..length]);
        }
    }
}
