//! What pgbench prints at its end.

use anyhow::{Context, Result};

/// The summary of one run of pgbench.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Transactions that succeeded.
    pub transactions: u64,
    /// Transactions that failed.
    pub failed: u64,
    /// Transactions not started because too late.
    pub skipped: u64,
    /// Transactions above the latency limit.
    pub above_limit: u64,
    /// Transactions that needed another try.
    pub retried: u64,
    /// Further tries in all.
    pub retries: u64,
    /// Mean latency in seconds.
    pub latency_mean: f64,
    /// Transactions per second without connection time.
    pub tps: f64,
    /// Mean schedule lag in seconds.
    pub lag_mean: Option<f64>,
    /// Initial connection time in seconds.
    pub connection: Option<f64>,
    /// Scale it says it used.
    pub scale: Option<u64>,
    /// (command, mean seconds), with `-r`.
    pub statements: Vec<(String, f64)>,
    /// Clients that gave up: the load was lower than asked for.
    pub aborted: bool,
}

/// Parses the output of pgbench 12 to 19.
///
/// # Errors
/// Fails when there is no tps line: then pgbench did not finish.
pub fn parse(output: &str, errors: &str) -> Result<Summary> {
    let mut summary = Summary {
        aborted: errors.contains("aborted") || output.contains("Run was aborted"),
        ..Summary::default()
    };
    let mut tps = None;
    let mut in_statements = false;
    for line in output.lines() {
        if in_statements && line.starts_with(' ') {
            summary.statements.extend(statement(line));
            continue;
        }
        in_statements = line.contains("statement latencies in milliseconds");
        if let Some(rest) = line.strip_prefix("tps = ") {
            // Before 14 there are two lines; the second excludes connecting.
            tps = first_number(rest);
        } else if let Some((key, value)) = line.split_once(['=', ':']) {
            field(&mut summary, key.trim(), value.trim());
        }
    }
    summary.tps = tps.context(
        "could not read pgbench's summary: it has no tps line; see its messages beside the result",
    )?;
    Ok(summary)
}

fn field(summary: &mut Summary, key: &str, value: &str) {
    let count = || first_number(value).map_or(0, crate::number::whole_u64);
    let seconds = || first_number(value).map(|ms| ms / 1000.0);
    match key {
        "number of transactions actually processed" => summary.transactions = count(),
        "number of failed transactions" => summary.failed = count(),
        "number of transactions skipped" => summary.skipped = count(),
        "number of transactions retried" => summary.retried = count(),
        "total number of retries" => summary.retries = count(),
        "scaling factor" => summary.scale = Some(count()),
        "latency average" => summary.latency_mean = seconds().unwrap_or_default(),
        "initial connection time" => summary.connection = seconds(),
        "rate limit schedule lag" => {
            summary.lag_mean = value
                .strip_prefix("avg ")
                .and_then(first_number)
                .map(|ms| ms / 1000.0);
        }
        _ if key.starts_with("number of transactions above the") => summary.above_limit = count(),
        _ => {}
    }
}

fn first_number(text: &str) -> Option<f64> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

/// `0.027  BEGIN;` or, with retries, `0.027  0  0  BEGIN;`.
fn statement(line: &str) -> Option<(String, f64)> {
    let mut rest = line.trim_start();
    let (time, after) = rest.split_once(' ')?;
    let milliseconds: f64 = time.parse().ok()?;
    rest = after.trim_start();
    for _ in 0..2 {
        if let Some((word, after)) = rest.split_once(' ')
            && word.parse::<u64>().is_ok()
        {
            rest = after.trim_start();
        }
    }
    Some((rest.trim_end().to_owned(), milliseconds / 1000.0))
}
