//! Samples as a table for people: medians, spread, and ratios to the limits.

use std::fmt::Write;

use super::chain::Sample;
use super::profile::Profile;
use crate::number::real_u64;
use crate::stat;

/// The order of acts in the table.
const ACTS: [(&str, &str); 4] = [
    ("full", "full backup"),
    ("incremental", "incremental backup"),
    ("restore", "restore of the newest backup"),
    (
        "restore of one",
        "restore of one full backup of the same state",
    ),
];

/// One row: everything of one name and act.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// `W1` or `W2`.
    pub workload: String,
    /// Contender or limit.
    pub name: String,
    /// See [`Sample::act`].
    pub act: String,
    /// Number of samples.
    pub samples: usize,
    /// Median wall-clock time, seconds.
    pub seconds: f64,
    /// Fastest and slowest, seconds.
    pub seconds_range: (f64, f64),
    /// Median CPU time of tool and server, seconds.
    pub cpu_seconds: f64,
    /// Median bytes read by the tool.
    pub read_bytes: f64,
    /// Median bytes written by the tool.
    pub written_bytes: f64,
    /// Median bytes added to the repository (restore: size of the cluster).
    pub stored_bytes: f64,
    /// Largest peak of resident memory, bytes.
    pub peak_bytes: f64,
}

/// Groups samples into rows, fastest first within an act.
#[must_use]
pub fn rows(samples: &[Sample]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (act, _) in ACTS {
        let mut names: Vec<&str> = Vec::new();
        for sample in samples.iter().filter(|s| s.act == act) {
            if !names.contains(&sample.name.as_str()) {
                names.push(&sample.name);
            }
        }
        let mut group: Vec<Row> = names.iter().map(|name| row(samples, name, act)).collect();
        group.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        rows.extend(group);
    }
    rows
}

fn row(samples: &[Sample], name: &str, act: &str) -> Row {
    let mine: Vec<&Sample> = samples
        .iter()
        .filter(|s| s.name == name && s.act == act)
        .collect();
    let column = |value: fn(&Sample) -> f64| mine.iter().map(|s| value(s)).collect::<Vec<f64>>();
    let seconds = column(|s| s.cost.wall_seconds);
    let extreme =
        |pick: fn(f64, f64) -> f64, from: f64, of: &[f64]| of.iter().copied().fold(from, pick);
    Row {
        workload: mine.first().map(|s| s.workload.clone()).unwrap_or_default(),
        name: name.to_owned(),
        act: act.to_owned(),
        samples: mine.len(),
        seconds: stat::median(&seconds),
        seconds_range: (
            extreme(f64::min, f64::INFINITY, &seconds),
            extreme(f64::max, 0.0, &seconds),
        ),
        cpu_seconds: stat::median(&column(|s| s.cost.cpu_seconds + s.cost.server_cpu_seconds)),
        read_bytes: stat::median(&column(|s| real_u64(s.cost.read_bytes))),
        written_bytes: stat::median(&column(|s| real_u64(s.cost.written_bytes))),
        stored_bytes: stat::median(&column(|s| real_u64(s.stored_bytes))),
        peak_bytes: extreme(f64::max, 0.0, &column(|s| real_u64(s.cost.peak_bytes))),
    }
}

/// The rows as text. Ratios are to the first limit of the act: `tar | zstd` for a
/// full backup, the same contender's full for an increment, `cp` for a restore.
#[must_use]
pub fn render(rows: &[Row]) -> String {
    let mut text = String::new();
    for (act, title) in ACTS {
        let group: Vec<&Row> = rows.iter().filter(|r| r.act == act).collect();
        if group.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{title}, against {}", against(act));
        let _ = writeln!(
            text,
            "  {:<24} {:>8} {:>17} {:>7} {:>8} {:>9} {:>9} {:>9} {:>8}",
            "", "s", "(range)", "ratio", "CPU s", "read MB", "wrote MB", "stored MB", "peak MB"
        );
        for row in group {
            let ratio = yardstick(rows, row)
                .map_or_else(|| "–".to_owned(), |y| format!("{:.2}", row.seconds / y));
            let mb = |bytes: f64| format!("{:.0}", bytes / 1e6);
            let (low, high) = row.seconds_range;
            let _ = writeln!(
                text,
                "  {:<24} {:>8.2} {:>17} {:>7} {:>8.2} {:>9} {:>9} {:>9} {:>8}",
                row.name,
                row.seconds,
                format!("({low:.2} – {high:.2})"),
                ratio,
                row.cpu_seconds,
                mb(row.read_bytes),
                mb(row.written_bytes),
                mb(row.stored_bytes),
                mb(row.peak_bytes),
            );
        }
    }
    text
}

/// Where the time of each tool's backups goes that says so: medians of its phases, milliseconds.
#[must_use]
pub fn phases(samples: &[Sample]) -> String {
    let mut text = String::new();
    for row in rows(samples) {
        let of = |s: &&Sample| s.name == row.name && s.act == row.act;
        let mine: Vec<&Sample> = samples.iter().filter(of).collect();
        let Some(first) = mine.first().filter(|first| !first.phases.is_empty()) else {
            continue;
        };
        let medians = first.phases.iter().map(|(name, _)| {
            let named = |s: &&Sample| s.phases.iter().find(|phase| phase.0 == *name).map(|p| p.1);
            let seconds: Vec<f64> = mine.iter().filter_map(named).collect();
            format!("{name} {:.0}", stat::median(&seconds) * 1000.0)
        });
        let medians = medians.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "  {:<24} {:<11} {medians}", row.name, row.act);
    }
    text
}

/// Profiles for people: where the time on cores went, and how much of the wall-clock time that was.
#[must_use]
pub fn profiles(profiles: &[Profile]) -> String {
    let mut text = String::new();
    for profile in profiles {
        let shares: Vec<String> = profile
            .shares
            .iter()
            .map(|(kind, share)| format!("{kind} {:.0} %", share * 100.0))
            .collect();
        let _ = writeln!(
            text,
            "  {:<18} {:>6.2} s on cores in {:>6.2} s: {}",
            profile.name,
            profile.core_seconds,
            profile.wall_seconds,
            shares.join(", ")
        );
    }
    text
}

fn against(act: &str) -> &'static str {
    match act {
        "full" => "tar | zstd -1",
        "incremental" => "the same tool's full backup",
        "restore of one" => "the same tool's chain",
        _ => "cp -r + sync",
    }
}

fn yardstick(rows: &[Row], row: &Row) -> Option<f64> {
    let matches = |other: &&Row| match row.act.as_str() {
        "full" => other.act == "full" && other.name.starts_with("tar "),
        "incremental" => other.act == "full" && other.name == row.name,
        "restore of one" => other.act == "restore" && other.name == row.name,
        _ => other.act == "restore" && other.name.starts_with("cp "),
    };
    rows.iter().find(matches).map(|r| r.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Cost;

    fn sample(name: &str, act: &str, round: usize, seconds: f64) -> Sample {
        let cost = Cost {
            wall_seconds: seconds,
            ..Cost::default()
        };
        Sample {
            workload: "W1".into(),
            name: name.into(),
            act: act.into(),
            round,
            cost,
            stored_bytes: 5_000_000,
            phases: Vec::new(),
        }
    }

    #[test]
    fn phases_are_medians_in_the_order_of_the_tool() {
        let phased = |round, checkpoint| Sample {
            phases: vec![("checkpoint".into(), checkpoint), ("copy".into(), 0.1)],
            ..sample("tool", "incremental", round, 1.0)
        };
        let samples = [
            phased(1, 0.25),
            phased(2, 0.02),
            phased(3, 0.03),
            sample("silent", "full", 1, 1.0),
        ];
        let text = phases(&samples);
        assert!(text.ends_with("checkpoint 30, copy 100\n"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn rows_show_medians_ranges_and_ratios() {
        let samples = [
            sample("tool", "full", 1, 2.0),
            sample("tool", "full", 2, 4.0),
            sample("tool", "full", 3, 3.0),
            sample("tar | zstd -1 -T2", "full", 1, 1.5),
            sample("tool", "incremental", 1, 0.75),
            sample("cp -r + sync", "restore", 1, 4.0),
            sample("tool", "restore", 1, 2.0),
            sample("tool", "restore of one", 1, 1.9),
        ];
        let rows = rows(&samples);
        assert_eq!(rows.len(), 6);
        let text = render(&rows);
        let line = text
            .lines()
            .find(|l| l.trim_start().starts_with("tool"))
            .unwrap();
        assert!(
            line.contains("3.00") && line.contains("(2.00 – 4.00)") && line.contains("2.00"),
            "{line}"
        );
        let last = text.lines().last().unwrap();
        assert!(last.contains("0.95"), "{last}");
    }
}
