//! What `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)` says.

use anyhow::{Context, Result};
use postgres::{Client, SimpleQueryMessage};
use serde_json::Value;

use crate::measure::session;

/// The figures of one plan.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    /// How the table was read, with the workers launched.
    pub(super) plan: String,
    /// Execution time at the server, seconds.
    pub(super) seconds: f64,
    /// Blocks found in shared buffers.
    pub(super) hit: f64,
    /// Blocks read from the kernel.
    pub(super) read: f64,
    /// Time of those reads, where the server told.
    pub(super) io_seconds: Option<f64>,
}

/// Runs an `EXPLAIN` and returns its document.
pub(super) fn text(client: &mut Client, statement: &str) -> Result<String> {
    let answer = client
        .simple_query(statement)
        .map_err(|error| session::in_words(statement, &error))?;
    let lines: Vec<&str> = answer
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    Ok(lines.join("\n"))
}

/// Reads the document.
pub(super) fn read(text: &str) -> Result<Found> {
    let document: Value = serde_json::from_str(text).context("could not parse a plan")?;
    let top = &document[0];
    let plan = &top["Plan"];
    let number = |value: &Value| value.as_f64();
    // The name changed in 17.
    let io = number(&plan["Shared I/O Read Time"]).or_else(|| number(&plan["I/O Read Time"]));
    let workers = workers(plan);
    let mut words = scan(plan).unwrap_or_else(|| "no scan".to_owned());
    if workers > 0.0 {
        words.push_str(&format!(", {workers} workers"));
    }
    Ok(Found {
        plan: words,
        seconds: number(&top["Execution Time"])
            .context("could not find the execution time of a plan")?
            / 1000.0,
        hit: number(&plan["Shared Hit Blocks"]).unwrap_or(0.0),
        read: number(&plan["Shared Read Blocks"]).unwrap_or(0.0),
        io_seconds: io.map(|ms| ms / 1000.0),
    })
}

/// The outermost node that reads the table.
fn scan(plan: &Value) -> Option<String> {
    let kind = plan["Node Type"].as_str()?;
    if kind.contains("Scan") {
        return Some(kind.to_owned());
    }
    plan["Plans"].as_array()?.iter().find_map(scan)
}

fn workers(plan: &Value) -> f64 {
    let own = plan["Workers Launched"].as_f64().unwrap_or(0.0);
    let below = plan["Plans"].as_array();
    own + below.map_or(0.0, |plans| plans.iter().map(workers).sum())
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_parallel_plan_is_read() {
        let text = r#"[{"Plan": {"Node Type": "Aggregate", "Shared Hit Blocks": 96, "Shared Read Blocks": 12970,
            "I/O Read Time": 12.5, "Plans": [{"Node Type": "Gather", "Workers Launched": 2, "Plans": [
            {"Node Type": "Aggregate", "Plans": [{"Node Type": "Seq Scan"}]}]}]}, "Execution Time": 30.25}]"#;
        let found = read(text).unwrap();
        assert_eq!(found.plan, "Seq Scan, 2 workers");
        assert!((found.seconds - 0.03025).abs() < 1e-12);
        assert!((found.read - 12970.0).abs() < 1e-9);
        assert!((found.io_seconds.unwrap() - 0.0125).abs() < 1e-12);
        assert!(read("[]").is_err());
    }
}
