//! What the machine can do at all with the same files: the measure of every tool.

use std::path::PathBuf;
use std::process::Command;

use super::contender::Arena;

/// A limit, the act it bounds, and the command that shows it.
#[derive(Debug)]
pub struct Limit {
    /// What is run.
    pub name: String,
    /// `full` or `restore`.
    pub act: &'static str,
    /// The command.
    pub command: Command,
}

/// Where a limit writes; to be removed after each.
#[must_use]
pub fn limit_directory(arena: &Arena) -> PathBuf {
    arena.work().join("limit")
}

/// The limits for the data directory of the arena's server as it is now.
#[must_use]
pub fn limits(arena: &Arena) -> Vec<Limit> {
    let source = arena.cluster.pgdata().display().to_string();
    let scratch = limit_directory(arena).display().to_string();
    let jobs = arena.jobs;
    let limit = |name: &str, act, script: String| Limit {
        name: name.to_owned(),
        act,
        command: arena.shell(&format!("mkdir {scratch}; {script}")),
    };
    // The server is running: files may vanish, and tar says so with exit code 1.
    let tar = format!("{{ tar -C {source} --exclude=pg_wal -cf - . 2>/dev/null || [ $? = 1 ]; }}");
    let zstd = format!("zstd -q -1 -T{jobs}");
    vec![
        limit(
            "cat",
            "full",
            format!(
                "find {source} -path '*/pg_wal' -prune -o -type f -print0 | xargs -0 cat >/dev/null"
            ),
        ),
        limit(
            &format!("tar | zstd -1 -T{jobs}"),
            "full",
            format!("{tar} | {zstd} >{scratch}/t; sync {scratch}/t"),
        ),
        limit(
            "cp -r + sync",
            "restore",
            format!("cp -r {source}/base {source}/global {scratch}; sync -f {scratch}"),
        ),
    ]
}
