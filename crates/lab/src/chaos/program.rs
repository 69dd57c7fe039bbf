//! One run of the program: what it was told, what was done to it, and how it ended.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::interrupt;

/// How often a run is looked at: short against the commands of a small cluster, which take tenths of a second.
const GLANCE: Duration = Duration::from_millis(5);

/// No command on a cluster of some MB takes so long, however slow the machine is; a store that fails is given up earlier.
const LONGEST: Duration = Duration::from_secs(420);

/// What is done to a command while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// SIGKILL.
    Kill,
    /// SIGTERM, as systemd sends it.
    Terminate,
    /// SIGSTOP, and SIGCONT after this time.
    Pause(Duration),
}

/// A disturbance and when it comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    pub(super) after: Duration,
    pub(super) what: Disturbance,
}

/// A command that runs.
#[derive(Debug)]
pub(super) struct Run {
    child: Child,
    words: Vec<String>,
    output: PathBuf,
    errors: PathBuf,
    begin: Instant,
    planned: Option<Planned>,
    disturbed: Option<Disturbance>,
    paused_at: Option<Instant>,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) words: Vec<String>,
    /// Nothing when a signal ended it.
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// Whether it was ended because it would not end.
    pub(super) hung: bool,
    pub(super) disturbed: Option<Disturbance>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) seconds: f64,
}

impl Run {
    /// Starts it; what it prints goes to `<stem>.out` and `<stem>.err`.
    pub(super) fn start(
        mut command: Command,
        words: &[String],
        stem: &str,
        planned: Option<Planned>,
    ) -> Result<Self> {
        let create = |ending: &str| -> Result<(PathBuf, File)> {
            let path = PathBuf::from(format!("{stem}.{ending}"));
            let file = File::create(&path)
                .with_context(|| format!("could not create \"{}\"", path.display()))?;
            Ok((path, file))
        };
        let ((output, out), (errors, err)) = (create("out")?, create("err")?);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command
            .spawn()
            .with_context(|| format!("could not start {command:?}"))?;
        Ok(Self {
            child,
            words: words.to_vec(),
            output,
            errors,
            begin: Instant::now(),
            planned,
            disturbed: None,
            paused_at: None,
        })
    }

    /// How long it has been running.
    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Whether it has ended; disturbs it when that is due.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait().context("could not wait for a run")?;
        if status.is_none() {
            self.disturb()?;
        }
        Ok(status)
    }

    fn disturb(&mut self) -> Result<()> {
        if let (Some(since), Some(Disturbance::Pause(pause))) = (self.paused_at, self.disturbed)
            && since.elapsed() >= pause
        {
            self.paused_at = None;
            return self.signal(Signal::CONT);
        }
        let Some(planned) = self.planned.filter(|due| self.elapsed() >= due.after) else {
            return Ok(());
        };
        self.planned = None;
        self.disturbed = Some(planned.what);
        match planned.what {
            Disturbance::Kill => self.signal(Signal::KILL),
            Disturbance::Terminate => self.signal(Signal::TERM),
            Disturbance::Pause(_) => {
                self.paused_at = Some(Instant::now());
                self.signal(Signal::STOP)
            }
        }
    }

    /// Stops it where it is, until [`Run::let_go`]; whether it has ended before.
    pub(super) fn hold(&mut self) -> Result<bool> {
        if self.ended()?.is_some() {
            return Ok(true);
        }
        self.disturbed = Some(Disturbance::Pause(LONGEST));
        self.signal(Signal::STOP).map(|()| false)
    }

    /// Lets it go on.
    pub(super) fn let_go(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.child.id()).context("a process number is positive")?;
        let process = Pid::from_raw(id).context("a process number is not zero")?;
        // It is not reaped before `ended` sees its end, so the number is its own.
        kill_process(process, signal).context("could not send a signal")
    }

    /// Waits for its end.
    pub(super) fn finish(mut self) -> Result<Outcome> {
        let mut hung = false;
        let status = loop {
            if let Some(status) = self.ended()? {
                break status;
            }
            if self.elapsed() > LONGEST || interrupt::requested() {
                hung = !interrupt::requested();
                self.child.kill().context("could not kill a run")?;
                break self.child.wait().context("could not wait for a run")?;
            }
            thread::sleep(GLANCE);
        };
        interrupt::check()?;
        let read = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ok(Outcome {
            code: status.code(),
            signal: status.signal(),
            hung,
            disturbed: self.disturbed,
            stdout: read(&self.output),
            stderr: read(&self.errors),
            seconds: self.elapsed().as_secs_f64(),
            words: self.words,
        })
    }
}

impl Outcome {
    /// Whether the command said that what it was asked for is done.
    pub(super) fn says_done(&self) -> bool {
        matches!(self.code, Some(0 | 3))
    }

    /// Whether nothing met the command, and it says that it would not begin.
    pub(super) fn was_refused(&self) -> bool {
        self.disturbed.is_none() && matches!(self.code, Some(12 | 13))
    }

    /// Whether it may have acted without being able to say so.
    pub(super) fn may_have_acted(&self) -> bool {
        self.disturbed.is_some()
    }

    /// The document that it printed.
    pub(super) fn document(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout)
            .with_context(|| format!("\"{}\" printed no JSON document", self.words.join(" ")))
    }

    /// The end in a word: the exit code or the signal.
    pub(super) fn end(&self) -> String {
        match (self.hung, self.code, self.signal) {
            (true, ..) => "hung".to_owned(),
            (_, Some(code), _) => code.to_string(),
            (_, None, Some(signal)) => format!("sig{signal}"),
            _ => "?".to_owned(),
        }
    }

    /// The last error that it logged, or else its last line.
    pub(super) fn complaint(&self) -> &str {
        let mut lines = self.stderr.lines().rev();
        let last = self.stderr.lines().next_back().unwrap_or_default();
        lines
            .find(|line| line.contains("error:") || line.contains("ERROR"))
            .unwrap_or(last)
    }
}
