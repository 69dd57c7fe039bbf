//! What the machine can do at all with the same files: the measure of every tool.

use std::path::PathBuf;
use std::process::Command;

use super::table::{FULL, RESTORE};
use crate::contenders::contender::Arena;

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Reading.
    Read,
    /// Reading, compressing, storing.
    Compress,
    /// Copying.
    Copy,
}

impl Limit {
    pub(super) const ALL: [Self; 3] = [Self::Read, Self::Compress, Self::Copy];

    /// What is run.
    pub(super) fn name(self, jobs: usize) -> String {
        match self {
            Self::Read => "cat".to_owned(),
            Self::Compress => format!("tar | zstd -1 -T{jobs}"),
            Self::Copy => "cp -r + sync".to_owned(),
        }
    }

    /// The act it bounds.
    pub(super) fn act(self) -> &'static str {
        match self {
            Self::Read | Self::Compress => FULL,
            Self::Copy => RESTORE,
        }
    }

    /// What it is, with its command.
    pub(super) fn words(self, jobs: usize) -> String {
        let command = self.script("PGDATA", "LIMIT", jobs);
        format!("what the machine can do at all: {command}")
    }

    /// The command, for the data directory of the arena's server as it is now.
    pub(super) fn command(self, arena: &Arena) -> Command {
        let source = arena.cluster.pgdata().display().to_string();
        let scratch = Self::directory(arena).display().to_string();
        let script = self.script(&source, &scratch, arena.jobs);
        arena.shell(&format!("mkdir {scratch}; {script}"))
    }

    fn script(self, source: &str, scratch: &str, jobs: usize) -> String {
        match self {
            Self::Read => format!(
                "find {source} -path '*/pg_wal' -prune -o -type f -print0 | xargs -0 cat >/dev/null"
            ),
            // The server is running: files may vanish, and tar says so with exit code 1.
            Self::Compress => format!(
                "{{ tar -C {source} --exclude=pg_wal -cf - . 2>/dev/null || [ $? = 1 ]; }} \
                 | zstd -q -1 -T{jobs} >{scratch}/t; sync {scratch}/t"
            ),
            Self::Copy => {
                format!("cp -r {source}/base {source}/global {scratch}; sync -f {scratch}")
            }
        }
    }

    /// Where it writes; to be taken away after each.
    pub(super) fn directory(arena: &Arena) -> PathBuf {
        arena.work().join("limit")
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn no_two_limits_are_described_alike() {
        let words: std::collections::BTreeSet<String> =
            Limit::ALL.iter().map(|limit| limit.words(2)).collect();
        assert_eq!(words.len(), Limit::ALL.len(), "{words:?}");
        assert!(words.iter().any(|words| words.contains("zstd -q -1 -T2")));
    }
}
