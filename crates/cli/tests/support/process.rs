//! Processes that run while a test looks on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{PATIENCE, Stage};

/// Makes a named pipe.
pub fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

/// A named pipe of the server's user.
pub fn pipe(stage: &Stage, name: &str) -> PathBuf {
    let path = stage.target(name);
    make_pipe(&path);
    stage.cluster.own(&path).unwrap();
    path
}

/// Starts the program; what it says is kept.
pub fn spawn(stage: &Stage, arguments: &[&str]) -> Child {
    let mut command = stage.command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// What a process that has ended, or is about to, wrote to standard error.
pub fn log_of(child: Child) -> String {
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned()
}

/// Standard output and standard error of what must have ended with that code.
pub fn ended(output: Output, what: &str, code: i32) -> (String, String) {
    let [printed, log] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    let ended = output.status.code();
    assert_eq!(ended, Some(code), "{what}: {printed}\n{log}");
    (printed, log)
}

/// Waits for a process, which must succeed; returns its JSON document.
pub fn document(child: Child) -> Value {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{status}: {log}");
    serde_json::from_slice(&stdout).unwrap()
}

/// The library made of `provoke.c`, where the server's user can load it before all others.
pub fn provoker(stage: &Stage) -> PathBuf {
    let library = stage.target("provoke.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/provoke.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    compiler.arg(&library).arg(source).arg("-ldl");
    assert!(compiler.status().unwrap().success());
    library
}

/// Sends a signal by its name with a dash.
pub fn signal(child: &Child, signal: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args([signal, &id]).status().unwrap();
    assert!(sent.success(), "kill {signal} {id}: {sent}");
}

/// Waits until the process has one of the files open, but `but`, and says which.
pub fn wait_until_open(child: &mut Child, files: &[String], but: Option<usize>) -> usize {
    let descriptors = format!("/proc/{}/fd", child.id());
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        assert!(child.try_wait().unwrap().is_none(), "the backup has ended");
        let open = fs::read_dir(&descriptors).unwrap().flatten();
        let paths: Vec<_> = open
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .collect();
        let is_open = |file: &String| paths.iter().any(|path| path.ends_with(file));
        let found = (0..files.len()).find(|&nth| Some(nth) != but && is_open(&files[nth]));
        if let Some(nth) = found {
            return nth;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("the backup opened none of {files:?}");
}
