//! What limited an arm, in one sentence, by rules in fixed order.

use crate::format;
use crate::measure::result::{Experiment, FOREIGN, Run};
use crate::measure::stat::{mean, median};

/// One sentence per arm that ran a load.
#[must_use]
pub fn sentences(experiment: &Experiment) -> Vec<String> {
    (0..experiment.arms.len())
        .filter_map(|arm| {
            let runs: Vec<&Run> = experiment
                .runs
                .iter()
                .filter(|run| run.arm == arm && run.values.contains_key("cpu_busy"))
                .collect();
            (!runs.is_empty())
                .then(|| format!("{}: {}", experiment.arms[arm].name, sentence(&runs)))
        })
        .collect()
}

/// The median over runs; none where it was not measured, as of a server that somebody else runs.
fn measured(runs: &[&Run], name: &str) -> Option<f64> {
    let values = runs.iter().filter_map(|run| run.values.get(name).copied());
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(&values))
}

/// Who used the processors, as far as it was measured.
fn processors(runs: &[&Run]) -> String {
    let share = |(name, value): (&str, &str)| {
        measured(runs, value).map(|share| format!("{name} {}", format::percent(share)))
    };
    let busy = format::percent(measured(runs, "cpu_busy").unwrap_or(0.0));
    let parts = [
        ("server", "cpu_server"),
        ("client", "cpu_client"),
        ("foreign", FOREIGN),
    ];
    let parts: Vec<String> = parts.into_iter().filter_map(share).collect();
    match parts.is_empty() {
        true => format!("{busy} busy"),
        false => format!("{busy} busy, {}", parts.join(" / ")),
    }
}

fn sentence(runs: &[&Run]) -> String {
    let value = |name: &str| measured(runs, name).unwrap_or(0.0);
    let share = |name: &str| format::percent(value(name));
    if value("failed") > 0.0 {
        return "invalid, transactions failed".to_owned();
    }
    if value("client_thread_busy") > 0.85 {
        return format!(
            "limited by the client: a pgbench thread is {} busy",
            share("client_thread_busy")
        );
    }
    if value("cpu_busy") > 0.9 {
        return format!("limited by this machine's CPU: {}", processors(runs));
    }
    let series = |name: &str| {
        let values: Vec<f64> = runs
            .iter()
            .filter_map(|run| run.samples.as_ref()?.series.get(name))
            .flatten()
            .copied()
            .collect();
        if values.is_empty() {
            0.0
        } else {
            mean(&values)
        }
    };
    if series("disk.util") > 90.0 {
        return format!(
            "limited by the disk: {:.0} % busy, {:.0} MiB/s read, {:.0} MiB/s written, {:.0} KiB per write",
            series("disk.util"),
            series("disk.read"),
            series("disk.write"),
            series("disk.write_size")
        );
    }
    if let Some(words) = waiting(runs) {
        return words;
    }
    let (tps, latency) = (value("tps"), value("latency_mean"));
    let mut words = format!("not saturated: this machine's CPU {}", processors(runs));
    if measured(runs, "cpu_server").is_none() {
        words = format!("{words}; what the server had left was not measured");
    }
    if tps > 0.0 && latency > 0.0 {
        words.push_str(&format!(
            "; {:.1} transactions in flight by Little's law",
            tps * latency
        ));
    }
    words
}

/// Whether one wait event dominates.
fn waiting(runs: &[&Run]) -> Option<String> {
    let mut totals = std::collections::BTreeMap::<&str, f64>::new();
    for run in runs {
        for (event, count) in &run.waits {
            *totals.entry(event).or_default() += count;
        }
    }
    let all: f64 = totals.values().sum();
    let (event, count) = totals
        .iter()
        .filter(|(event, _)| !event.starts_with("Client:") && **event != "running")
        .max_by(|a, b| a.1.total_cmp(b.1))?;
    let share = count / all;
    if share < 0.3 {
        return None;
    }
    let kind = match *event {
        "IO:WALWrite" | "IO:WALSync" | "IO:WalWrite" | "IO:WalSync" | "LWLock:WALWrite" => {
            "commit flush"
        }
        e if e.starts_with("Lock:") || e.starts_with("LWLock:") => "contention",
        e if e.starts_with("IO:") => "input and output",
        _ => "waiting",
    };
    Some(format!(
        "limited by {kind}: backends wait for {event} in {} of the samples",
        format::percent(share)
    ))
}

#[cfg(test)]
mod tests {
    use super::sentence;
    use crate::measure::result::Run;
    use std::collections::BTreeMap;

    #[test]
    fn of_a_server_of_others_nothing_is_said_that_was_not_measured() {
        let run = |values: &[(&str, f64)]| Run {
            values: values
                .iter()
                .map(|(name, share)| ((*name).to_owned(), *share))
                .collect::<BTreeMap<_, _>>(),
            ..Run::default()
        };
        let theirs = run(&[("cpu_busy", 0.5), ("cpu_client", 0.25)]);
        let words = sentence(&[&theirs]);
        assert!(
            words.starts_with("not saturated: this machine's CPU 50"),
            "{words}"
        );
        assert!(
            !words.contains("foreign") && !words.contains("server 0"),
            "{words}"
        );
        assert!(words.ends_with("was not measured"), "{words}");
        let own = run(&[("cpu_busy", 0.5), ("cpu_server", 0.0)]);
        let words = sentence(&[&own]);
        assert!(words.contains("server 0"), "{words}");
    }
}
