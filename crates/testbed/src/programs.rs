//! Where programs are: those that `scripts/setup` installed, those on `PATH`, and those that tests make.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The folder that `scripts/setup` fills: `PGSTRATA_DEPS`, or `.deps` of the
/// checkout that this crate was built from.
fn deps() -> PathBuf {
    env::var_os("PGSTRATA_DEPS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps"),
        PathBuf::from,
    )
}

/// The path of something below `.deps`, with every link followed: the user that
/// runs servers may be able to reach only where a link leads to.
pub(crate) fn installed(name: &str) -> Result<PathBuf> {
    let path = deps().join(name);
    path.canonicalize()
        .with_context(|| format!("could not find \"{}\": run scripts/setup", path.display()))
}

/// The same; where the checkout is not, which this crate was built from, the first of these that is there.
pub(crate) fn installed_or(name: &str, elsewhere: &[PathBuf]) -> Result<PathBuf> {
    let found = installed(name);
    let there = |path: &PathBuf| path.canonicalize().ok().filter(|path| path.is_file());
    match elsewhere.iter().find_map(there) {
        Some(path) if found.is_err() => Ok(path),
        _ => found,
    }
}

/// The first file of this name in the directories of `PATH`.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Copies a program to `to`, where it can be started at once.
///
/// # Errors
/// When it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let mut copying = Command::new("cp");
    copying.arg("--").arg(from).arg(to);
    wrote(copying, "", to)
}

/// Makes a script at `at`, which can be started at once.
///
/// # Errors
/// When it cannot be written.
pub fn write_script(at: &Path, text: &str) -> Result<()> {
    let mut writing = Command::new("sh");
    writing.args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"]);
    writing.arg(at);
    wrote(writing, text, at)
}

/// Another process writes what is to be started. If this one had it open, a child that another thread begins meanwhile
/// would have it open too until it is another program, and the start would fail: "Text file busy".
fn wrote(mut command: Command, text: &str, to: &Path) -> Result<()> {
    let act = || format!("could not write \"{}\"", to.display());
    let mut child = command.stdin(Stdio::piped()).spawn().with_context(act)?;
    let mut stdin = child.stdin.take().with_context(act)?;
    stdin.write_all(text.as_bytes()).with_context(act)?;
    drop(stdin);
    let status = child.wait().with_context(act)?;
    ensure!(status.success(), "{}: {status}", act());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn without_the_checkout_programs_of_packages_are_taken() {
        let elsewhere = ["/nowhere/at/all", "/bin/sh"].map(PathBuf::from);
        let found = installed_or("no such program", &elsewhere).unwrap();
        assert_eq!(found, Path::new("/bin/sh").canonicalize().unwrap());
        let error = installed_or("no such program", &elsewhere[..1]).unwrap_err();
        assert!(error.to_string().contains("run scripts/setup"), "{error}");
    }

    /// Starts of 400 programs and scripts, each as soon as it is written, while others fork all the time.
    #[test]
    fn what_was_just_written_starts_while_other_threads_start_processes() {
        let scratch = tempfile::tempdir().unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let _ = Command::new("/bin/true").status();
                    }
                });
            }
            let start = || {
                for number in 0..200 {
                    let program = scratch.path().join(format!("true-{number}"));
                    copy_program(Path::new("/bin/true"), &program)?;
                    ensure!(Command::new(&program).status()?.success());
                    let script = scratch.path().join(format!("script-{number}"));
                    write_script(&script, "#!/bin/sh\nexit 0\n")?;
                    ensure!(Command::new(&script).status()?.success());
                }
                Ok(())
            };
            let outcome = start();
            done.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
    }
}
