//! Shows how far a long act has come: a bar on a terminal, else a log line now and then.

use std::io::{self, IsTerminal};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use pgstrata_engine::progress::{Progress, Reading};
use tokio::task::JoinHandle;

/// Often enough to see that it lives, seldom enough for a log file.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Smooth for the eye.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// The bar that is on the terminal, if one is.
static TERMINAL: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Standard error for lines that must not run into the bar.
pub(crate) struct AboveBar;

impl io::Write for AboveBar {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        TERMINAL.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Draws until dropped.
pub(crate) struct Display(JoinHandle<()>, Option<ProgressBar>);

impl Display {
    /// Starts to show `progress` of `act` on standard error; nothing when not `wanted`.
    pub(crate) fn start(act: &'static str, progress: &Progress, wanted: bool) -> Self {
        let progress = progress.clone();
        if !wanted {
            return Self(tokio::spawn(std::future::ready(())), None);
        }
        if io::stderr().is_terminal() {
            let bar = bar(act);
            let shown = bar.clone();
            return Self(tokio::spawn(draw(shown, progress)), Some(bar));
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

fn bar(act: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{prefix} {wide_bar} {percent:>3}% {bytes}/{total_bytes} {msg} {binary_bytes_per_sec} ETA {eta}",
    );
    let bar = TERMINAL.add(ProgressBar::no_length().with_prefix(act));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

async fn draw(bar: ProgressBar, progress: Progress) {
    loop {
        let now = progress.read();
        if now.total_bytes > 0 {
            bar.set_length(now.total_bytes);
        }
        bar.set_message(format!(
            "{} pages, {} stored",
            now.pages,
            HumanBytes(now.stored_bytes)
        ));
        bar.set_position(now.done_bytes);
        tokio::time::sleep(DRAW_EVERY).await;
    }
}

async fn log_lines(act: &'static str, progress: Progress) {
    let started = Instant::now();
    loop {
        tokio::time::sleep(LINE_EVERY).await;
        tracing::info!("{act}: {}", line(progress.read(), started.elapsed()));
    }
}

fn line(now: Reading, elapsed: Duration) -> String {
    let rate = u128::from(now.done_bytes) * 1000 / elapsed.as_millis().max(1);
    let rate = u64::try_from(rate).unwrap_or(u64::MAX);
    let left = now.total_bytes.saturating_sub(now.done_bytes);
    let eta = match left.checked_div(rate) {
        Some(seconds) if now.total_bytes > 0 => {
            HumanDuration(Duration::from_secs(seconds)).to_string()
        }
        _ => "unknown".to_owned(),
    };
    format!(
        "{} of {}, {} pages, {} stored, {}/s, ETA {eta}",
        HumanBytes(now.done_bytes),
        HumanBytes(now.total_bytes),
        now.pages,
        HumanBytes(now.stored_bytes),
        HumanBytes(rate),
    )
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
        let text = line(now, Duration::from_secs(10));
        assert_eq!(
            text,
            "100.00 MiB of 300.00 MiB, 12800 pages, 40.00 MiB stored, 10.00 MiB/s, ETA 20 seconds"
        );
    }

    #[test]
    fn an_unknown_total_gives_an_unknown_eta() {
        let now = Reading {
            total_bytes: 0,
            done_bytes: 0,
            pages: 0,
            stored_bytes: 0,
        };
        assert!(line(now, Duration::from_secs(1)).ends_with("ETA unknown"));
    }
}
