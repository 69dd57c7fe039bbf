//! A hunter: it kills or holds commands that a server starts, as they come.
//!
//! `archive-push` and `archive-get` are not started by the run, and live for some hundredths of a second. So a thread
//! looks for them among all processes, by the run's own copy of the program.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::chance::Chance;
use super::program::Disturbance;

/// Commands live for some hundredths of a second, and a look takes some milliseconds.
const GLANCE: Duration = Duration::from_millis(8);

/// What is done to one process, how long after it was found.
#[derive(Debug, Clone, Copy)]
struct Shot {
    after: Duration,
    what: Disturbance,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Hunter {
    over: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Hunter {
    /// Meets the first processes of this program that have this word: one to three of them.
    pub(super) fn start(program: &Path, word: &'static str, chance: &mut Chance) -> Self {
        let pause = Duration::from_millis(chance.between(20, 1500));
        let kinds = [
            (Disturbance::Kill, 5),
            (Disturbance::Terminate, 2),
            (Disturbance::Pause(pause), 3),
        ];
        let count = chance.between(1, 3);
        let shots: Vec<Shot> = (0..count)
            .map(|_| Shot {
                after: Duration::from_millis(chance.between(0, 40)),
                what: chance.weighted(&kinds).unwrap_or(Disturbance::Kill),
            })
            .collect();
        let over = Arc::new(AtomicBool::new(false));
        let (flag, program) = (Arc::clone(&over), program.to_owned());
        let thread = thread::spawn(move || hunt(&program, word, &shots, &flag));
        Self { over, thread }
    }

    /// Ends the hunt; says how many processes were met.
    pub(super) fn finish(self) -> Result<usize> {
        self.over.store(true, Ordering::SeqCst);
        let met = self.thread.join();
        met.ok().context("a hunter has panicked")
    }
}

fn hunt(program: &Path, word: &str, shots: &[Shot], over: &AtomicBool) -> usize {
    let mut known = BTreeSet::new();
    let mut met = 0;
    for shot in shots {
        let found = loop {
            if over.load(Ordering::SeqCst) {
                return met;
            }
            match look(program, word, &mut known) {
                Some(process) => break process,
                None => thread::sleep(GLANCE),
            }
        };
        thread::sleep(shot.after);
        // It may have ended meanwhile.
        let send = |signal| kill_process(found, signal).is_ok();
        met += usize::from(match shot.what {
            Disturbance::Kill => send(Signal::KILL),
            Disturbance::Terminate => send(Signal::TERM),
            Disturbance::Pause(time) => {
                let held = send(Signal::STOP);
                thread::sleep(time);
                send(Signal::CONT);
                held
            }
        });
    }
    met
}

/// A process that was not found before.
fn look(program: &Path, word: &str, known: &mut BTreeSet<i32>) -> Option<Pid> {
    let entries = fs::read_dir("/proc").ok()?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut found = numbers.filter(|number: &i32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next() == Some(program.as_os_str().as_bytes())
            && words.any(|other| other == word.as_bytes())
    });
    let found = found.find(|number| known.insert(*number))?;
    Pid::from_raw(found)
}
