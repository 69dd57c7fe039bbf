//! Shows how far a long act has come: a bar on a terminal, else a log line now and then.

use std::io::{self, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use pgstrata_layer::plain::plain_but;
use pgstrata_store::keys::mask;
use pgstrata_store::progress::{Progress, Reading};
use tokio::task::JoinHandle;

use crate::terminal;

/// Often enough to see that it lives, seldom enough for a log file.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Smooth for the eye.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// The bar that is on the terminal, if one is.
static TERMINAL: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Standard error for lines that must not run into the bar.
pub(crate) struct AboveBar;

impl Write for AboveBar {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One event on one line, with the colours of the log.
        let text = String::from_utf8_lossy(bytes);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let colours: &[char] = match terminal::has_colours() {
            true => &['\u{1b}'],
            false => &[],
        };
        let masked = mask(line);
        let shown = plain_but(&masked, colours);
        TERMINAL.suspend(|| writeln!(io::stderr(), "{shown}"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A command that takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Backup,
    Restore,
    Merge,
    Expire,
    Verify,
    Copy,
}

impl Act {
    const fn name(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Restore => "restore",
            Self::Merge => "merge",
            Self::Expire => "expire",
            Self::Verify => "verify",
            Self::Copy => "copy",
        }
    }

    /// What has happened to pages, and to bytes of the repository.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Backup => ("stored", "stored"),
            Self::Restore => ("restored", "fetched"),
            Self::Merge | Self::Expire => ("merged", "fetched"),
            Self::Verify => ("verified", "read"),
            Self::Copy => ("copied", "copied"),
        }
    }

    /// What goes on when every byte is done.
    const fn end(self) -> &'static str {
        match self {
            Self::Backup => "stopping the backup and storing WAL",
            Self::Restore => "making files durable",
            Self::Merge | Self::Expire => "reading back, then removing",
            Self::Verify => "looking at WAL",
            Self::Copy => "copying WAL",
        }
    }

    /// What goes on when there is nothing left whose time could be told.
    fn last(self, now: Reading, waits_for: Option<&str>) -> Option<String> {
        match waits_for {
            Some(what) => Some(format!("waiting for {what}")),
            None => is_over(now).then(|| self.end().to_owned()),
        }
    }

    fn counts(self, now: Reading) -> String {
        let (pages, bytes) = self.words();
        format!(
            "{} pages {pages}, {} {bytes}",
            HumanCount(now.pages),
            HumanBytes(now.stored_bytes)
        )
    }
}

/// Whether there is nothing left whose time could be told.
const fn is_over(now: Reading) -> bool {
    now.total_bytes > 0 && now.done_bytes >= now.total_bytes
}

/// Draws until dropped.
pub(crate) struct Display(JoinHandle<()>, Option<ProgressBar>);

impl Display {
    /// Starts to show `progress` of `act` on standard error; nothing when not `wanted`.
    pub(crate) fn start(act: Act, progress: &Progress, wanted: bool) -> Self {
        let progress = progress.clone();
        if !wanted {
            return Self(tokio::spawn(std::future::ready(())), None);
        }
        if terminal::can_redraw() {
            let bar = TERMINAL.add(ProgressBar::no_length().with_prefix(act.name()));
            let shown = bar.clone();
            return Self(tokio::spawn(draw(act, shown, progress)), Some(bar));
        }
        Self(tokio::spawn(log_lines(act, progress)), None)
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.0.abort();
        if let Some(bar) = &self.1 {
            bar.finish_and_clear();
        }
    }
}

fn style(is_over: bool) -> ProgressStyle {
    let template = if is_over {
        "{prefix} {wide_bar} {percent:>3}% {bytes}/{total_bytes}, {msg}"
    } else {
        "{prefix} {wide_bar} {percent:>3}% {bytes}/{total_bytes}, {msg}, {binary_bytes_per_sec}, ETA {eta}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

async fn draw(act: Act, bar: ProgressBar, progress: Progress) {
    let mut was_over = false;
    bar.set_style(style(was_over));
    loop {
        let now = progress.read();
        let last = act.last(now, progress.waits_for().as_deref());
        if last.is_some() != was_over {
            was_over = last.is_some();
            bar.set_style(style(was_over));
        }
        if now.total_bytes > 0 {
            bar.set_length(now.total_bytes);
        }
        let counts = act.counts(now);
        bar.set_message(match last {
            Some(last) => format!("{counts}, {last}"),
            None => counts,
        });
        bar.set_position(now.done_bytes);
        tokio::time::sleep(DRAW_EVERY).await;
    }
}

async fn log_lines(act: Act, progress: Progress) {
    let started = Instant::now();
    loop {
        tokio::time::sleep(LINE_EVERY).await;
        let now = progress.read();
        let last = act.last(now, progress.waits_for().as_deref());
        let line = line(act, now, started.elapsed(), last);
        tracing::info!("{}: {line}", act.name());
    }
}

fn line(act: Act, now: Reading, elapsed: Duration, last: Option<String>) -> String {
    let done = format!(
        "{} of {}, {}",
        HumanBytes(now.done_bytes),
        HumanBytes(now.total_bytes),
        act.counts(now)
    );
    if let Some(last) = last {
        return format!("{done}, {last}");
    }
    let rate = u128::from(now.done_bytes) * 1000 / elapsed.as_millis().max(1);
    let rate = u64::try_from(rate).unwrap_or(u64::MAX);
    let left = now.total_bytes.saturating_sub(now.done_bytes);
    let eta = match left.checked_div(rate) {
        Some(seconds) if now.total_bytes > 0 => {
            HumanDuration(Duration::from_secs(seconds)).to_string()
        }
        _ => "unknown".to_owned(),
    };
    format!("{done}, {}/s, ETA {eta}", HumanBytes(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_rate_and_time_left() {
        let now = Reading {
            total_bytes: 300 << 20,
            done_bytes: 100 << 20,
            pages: 12_800,
            stored_bytes: 40 << 20,
        };
        let text = line(Act::Backup, now, Duration::from_secs(10), None);
        assert_eq!(
            text,
            "100.00 MiB of 300.00 MiB, 12,800 pages stored, 40.00 MiB stored, 10.00 MiB/s, ETA 20 seconds"
        );
    }

    #[test]
    fn a_restore_restores_and_fetches() {
        let now = Reading {
            total_bytes: 300 << 20,
            done_bytes: 100 << 20,
            pages: 12_800,
            stored_bytes: 40 << 20,
        };
        let text = line(Act::Restore, now, Duration::from_secs(10), None);
        assert!(
            text.contains("12,800 pages restored, 40.00 MiB fetched"),
            "{text}"
        );
        assert!(!text.contains(" stored"), "{text}");
    }

    #[test]
    fn what_is_only_waited_for_has_no_eta() {
        let now = Reading {
            total_bytes: 300 << 20,
            done_bytes: 300 << 20,
            pages: 1,
            stored_bytes: 1,
        };
        for (waits_for, end) in [
            (None, ", stopping the backup and storing WAL"),
            (Some("WAL segment 5"), ", waiting for WAL segment 5"),
        ] {
            let last = Act::Backup.last(now, waits_for);
            let text = line(Act::Backup, now, Duration::from_secs(10), last);
            assert!(text.ends_with(end), "{text}");
            assert!(!text.contains("ETA"), "{text}");
        }
    }

    #[test]
    fn an_unknown_total_gives_an_unknown_eta() {
        let now = Reading {
            total_bytes: 0,
            done_bytes: 0,
            pages: 0,
            stored_bytes: 0,
        };
        let text = line(Act::Backup, now, Duration::from_secs(1), None);
        assert!(text.ends_with("ETA unknown"), "{text}");
    }
}
