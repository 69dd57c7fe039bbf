//! The report for a browser: one file, no script, nothing fetched.

use super::chart::escape;
use super::{pictures, sweep, terminal};
use crate::analysis::{Analysis, Row};
use crate::environment::{self, Environment, Fact, Level};
use crate::format;
use crate::result::{Experiment, Metric, Table};
use crate::stat::paired::Comparison;
use crate::stat::verdict::{Better, Verdict};

/// Environment facts that the report's head shows, with what follows their value.
const HEADLINES: [(&str, &str); 5] = [
    ("cpu.model", ""),
    ("cpu.count", " processors"),
    ("memory.total_kb", ""),
    ("disk.filesystem", ""),
    ("machine.system", ""),
];

/// Renders the whole page.
#[must_use]
pub fn render(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut body = String::new();
    body.push_str(&head(experiment, analysis));
    body.push_str(&hero(experiment, analysis));
    body.push_str(&tables(&experiment.tables));
    body.push_str(&verdicts(experiment, analysis));
    body.push_str(&pictures(experiment, analysis));
    body.push_str(&warnings(analysis));
    body.push_str(&environment(experiment));
    body.push_str(&repeat(experiment));
    body.push_str(&raw(experiment));
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\
         <link rel=\"icon\" href=\"data:,\">\
         <title>{}</title><style>{}</style></head><body><main>{body}\
         <footer>Made by pgstrata lab {} from its result file. Numbers are computed again from raw values.</footer>\
         </main></body></html>",
        escape(&experiment.title),
        include_str!("style.css"),
        escape(&experiment.lab_version)
    )
}

fn head(experiment: &Experiment, analysis: &Analysis) -> String {
    let plan = &experiment.plan;
    let mut facts = vec![("workload".to_owned(), experiment.workload.clone())];
    if experiment.arms.len() > 1 {
        let hypothesis = experiment
            .hypothesis
            .clone()
            .unwrap_or_else(|| "none stated".to_owned());
        facts.push(("hypothesis".to_owned(), hypothesis));
    }
    facts.push((
        "plan".to_owned(),
        format!(
            "{} blocks × {} arms{}, {} (seed {}), state {}; {} counted, {} dropped",
            plan.blocks,
            experiment.arms.len(),
            plan.seconds
                .map(|s| format!(" × {s} s"))
                .unwrap_or_default(),
            if plan.interleaved {
                "random order"
            } else {
                "one after another"
            },
            plan.seed,
            plan.state,
            analysis.counted.len(),
            analysis.dropped.len()
        ),
    ));
    if let Some(env) = experiment.arms.first().and_then(|a| a.environment.as_ref()) {
        facts.extend(machine(env));
    }
    if let Some(why) = &experiment.interrupted {
        facts.push(("incomplete".to_owned(), why.clone()));
    }
    let list: String = facts
        .iter()
        .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value)))
        .collect();
    format!(
        "<header><p class=\"kind\">pgstrata lab · {} · {}</p><h1>{}</h1><dl class=\"facts\">{list}</dl></header>",
        escape(&experiment.kind),
        escape(experiment.created.get(..10).unwrap_or(&experiment.created)),
        escape(&experiment.title)
    )
}

/// Server and machine in a line each; everything else stands under "Environment".
fn machine(env: &Environment) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    if let Some(version) = env.get("server.version") {
        let short: Vec<&str> = version.split_whitespace().take(2).collect();
        facts.push(("server".to_owned(), short.join(" ")));
    }
    let words: Vec<String> = HEADLINES
        .iter()
        .filter_map(|(name, what)| {
            let value = env.get(name)?;
            Some(match *name {
                "memory.total_kb" => value.parse::<f64>().map_or_else(
                    |_| value.to_owned(),
                    |kb| format::value(kb * 1024.0, format::Unit::Bytes),
                ),
                _ => format!("{value}{what}"),
            })
        })
        .collect();
    if !words.is_empty() {
        facts.push(("machine".to_owned(), words.join(", ")));
    }
    facts
}

fn metric_of<'a>(experiment: &'a Experiment, row: &Row) -> Option<&'a Metric> {
    experiment.metrics.iter().find(|m| m.name == row.metric)
}

fn verdict_class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Withheld => "withheld",
        _ => "",
    }
}

/// What a ratio means, in words: never a bare "x % faster".
fn in_words(compared: &Comparison, metric: &Metric) -> String {
    if matches!(compared.verdict, Verdict::TooFew { .. }) {
        return "may be anything yet".to_owned();
    }
    let change = format::percent((compared.ratio - 1.0).abs());
    let direction = if compared.ratio < 1.0 { "less" } else { "more" };
    match (metric.better, metric.unit) {
        (Better::Higher, _) => format!("does {change} {direction}"),
        (_, format::Unit::Seconds) => format!("needs {change} {direction} time"),
        _ => format!("is {change} {direction}"),
    }
}

/// The primary metric, large, one tile per arm.
fn hero(experiment: &Experiment, analysis: &Analysis) -> String {
    let Some(row) = analysis.rows.first() else {
        return String::new();
    };
    let Some(metric) = metric_of(experiment, row) else {
        return String::new();
    };
    let tiles: String = row
        .comparisons
        .iter()
        .enumerate()
        .filter_map(|(arm, compared)| {
            let compared = compared.as_ref()?;
            Some(format!(
                "<div class=\"tile\"><div class=\"what\">{}: {} to {}</div><div class=\"ratio\">{}</div>\
                 <div class=\"ci\">95 % CI {}</div><div class=\"verdict {}\">{}</div><div class=\"ci\">{} {}</div></div>",
                escape(&metric.title),
                escape(&experiment.arms[arm].name),
                escape(&experiment.arms[0].name),
                terminal::ratio_words(compared),
                escape(&terminal::interval_words(compared)),
                verdict_class(&compared.verdict),
                escape(&compared.verdict.words(experiment.plan.margin)),
                escape(&experiment.arms[arm].name),
                escape(&in_words(compared, metric))
            ))
        })
        .collect();
    if tiles.is_empty() {
        tiles
    } else {
        format!("<div class=\"hero\">{tiles}</div>")
    }
}

/// Cells to this length are figures with their unit or interval.
const FIGURE: usize = 22;
/// Columns of which each has room for such a figure.
const NARROW: usize = 7;

/// Keeps a number and its unit, and the ends of an interval, on one line.
fn together(cell: &str) -> String {
    let mut text = String::with_capacity(cell.len());
    let mut characters = cell.chars().peekable();
    let mut before = ' ';
    while let Some(character) = characters.next() {
        let after = characters.peek().copied().unwrap_or(' ');
        let belongs = before.is_ascii_digit() && !matches!(after, '(' | '±' | '0'..='9')
            || matches!(before, '…' | '±' | '≈');
        text.push(match character {
            ' ' if belongs => '\u{a0}',
            other => other,
        });
        before = character;
    }
    text
}

fn table(caption: &str, head: &[&str], rows: &[Vec<String>]) -> String {
    let heads: String = head
        .iter()
        .map(|h| format!("<th scope=\"col\" role=\"columnheader\">{}</th>", escape(h)))
        .collect();
    let body: String = rows
        .iter()
        .map(|row| {
            let cells: String = row
                .iter()
                .enumerate()
                .map(|(index, cell)| match index {
                    0 => format!("<th scope=\"row\" role=\"rowheader\">{}</th>", escape(cell)),
                    // A figure is not to be torn apart.
                    _ => format!(
                        "<td role=\"cell\"{} data-name=\"{}\">{}</td>",
                        if cell.chars().count() <= FIGURE && head.len() <= NARROW {
                            " class=\"figure\""
                        } else {
                            ""
                        },
                        escape(head.get(index).unwrap_or(&"")),
                        escape(&together(cell))
                    ),
                })
                .collect();
            format!("<tr role=\"row\">{cells}</tr>")
        })
        .collect();
    // Cards on a phone are blocks, which lose the meaning of a table unless the roles say it;
    // and what scrolls must be reachable by keyboard.
    let name = if caption.is_empty() {
        "results"
    } else {
        caption
    };
    let caption = if caption.is_empty() {
        String::new()
    } else {
        format!("<caption>{}</caption>", escape(caption))
    };
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table class=\"cards\" role=\"table\">{caption}\
         <thead role=\"rowgroup\"><tr role=\"row\">{heads}</tr></thead><tbody role=\"rowgroup\">{body}</tbody></table></div>",
        escape(name)
    )
}

fn tables(tables: &[Table]) -> String {
    tables
        .iter()
        .map(|t| {
            let head: Vec<&str> = t.head.iter().map(String::as_str).collect();
            let note = t
                .note
                .as_ref()
                .map(|n| format!("<p class=\"note\">{}</p>", escape(n)))
                .unwrap_or_default();
            format!(
                "<h2>{}</h2>{}{note}",
                escape(&t.title),
                table("", &head, &t.rows)
            )
        })
        .collect()
}

fn verdicts(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut out = String::from("<h2>Results</h2>");
    if experiment.arms.len() == 1 {
        let rows: Vec<Vec<String>> = analysis
            .rows
            .iter()
            .filter_map(|row| {
                let metric = metric_of(experiment, row)?;
                let summary = row.arms.first()?.as_ref()?;
                Some(vec![
                    metric.title.clone(),
                    format::value(summary.median, metric.unit),
                    format::value(summary.least, metric.unit),
                    format::value(summary.most, metric.unit),
                    summary.count.to_string(),
                ])
            })
            .collect();
        out.push_str(&table(
            "Medians over runs",
            &["", "median", "least", "most", "runs"],
            &rows,
        ));
    }
    for arm in 1..experiment.arms.len() {
        let rows: Vec<Vec<String>> = analysis
            .rows
            .iter()
            .filter_map(|row| {
                let metric = metric_of(experiment, row)?;
                let mut cells = terminal::comparison_cells(experiment, row, metric, arm).to_vec();
                let p = row.comparisons.get(arm).and_then(Option::as_ref);
                cells.insert(
                    5,
                    p.map_or_else(String::new, |c| format::p_value(c.p_adjusted)),
                );
                Some(cells)
            })
            .collect();
        let (base, name) = (&experiment.arms[0].name, &experiment.arms[arm].name);
        let head = [
            "",
            &format!("{base} (A)"),
            &format!("{name} (B)"),
            "B/A",
            "95 % CI",
            "p",
            "verdict",
        ];
        out.push_str(&table(
            &format!("{name} against {base}: medians ± spread of single runs"),
            &head,
            &rows,
        ));
    }
    if let Some((_, p)) = analysis.page {
        out.push_str(&format!("<p class=\"note\">Page's trend test that the metric falls as the setting rises: p = {}</p>", escape(&format::p_value(p))));
    }
    out.push_str(&spread(experiment, analysis));
    for sentence in analysis
        .bottlenecks
        .iter()
        .chain(&analysis.unsteady)
        .chain(&experiment.notes)
    {
        out.push_str(&format!("<p class=\"note\">{}</p>", escape(sentence)));
    }
    out
}

/// Less variance can be the result: the table of the pgbench talk.
fn spread(experiment: &Experiment, analysis: &Analysis) -> String {
    let Some(row) = analysis.rows.first() else {
        return String::new();
    };
    let Some(metric) = metric_of(experiment, row) else {
        return String::new();
    };
    let value = |v: f64| format::value(v, metric.unit);
    let rows: Vec<Vec<String>> = row
        .arms
        .iter()
        .enumerate()
        .filter_map(|(arm, summary)| {
            let summary = summary.as_ref()?;
            let compared = row.comparisons.get(arm).and_then(Option::as_ref);
            let deviation = compared.and_then(|c| c.deviation_ratio).map_or_else(
                || format::MISSING.to_owned(),
                |(ratio, i)| {
                    format!(
                        "{} ({} … {})",
                        format::ratio(ratio, None),
                        format::ratio(i.low, None),
                        format::ratio(i.high, None)
                    )
                },
            );
            Some(vec![
                experiment.arms[arm].name.clone(),
                value(summary.mean),
                value(summary.median),
                value(summary.least),
                value(summary.most),
                summary
                    .deviation
                    .map_or_else(|| format::MISSING.to_owned(), value),
                summary.deviation.map_or_else(
                    || format::MISSING.to_owned(),
                    |d| format::percent(d / summary.mean),
                ),
                deviation,
            ])
        })
        .collect();
    if rows.len() < 2 {
        return String::new();
    }
    let head = [
        "",
        "mean",
        "median",
        "least",
        "most",
        "std. deviation",
        "CV",
        "ratio of deviations",
    ];
    table(
        &format!("{}: spread of single runs", metric.title),
        &head,
        &rows,
    )
}

fn pictures(experiment: &Experiment, analysis: &Analysis) -> String {
    let mut out = String::new();
    let mut section = |title: &str, body: String| {
        if !body.is_empty() {
            out.push_str(&format!("<h2>{title}</h2>{body}"));
        }
    };
    section("How sure", pictures::forest(experiment, analysis));
    section("Along the sweep", sweep::sweep(experiment));
    section(
        "Run by run",
        experiment
            .metrics
            .first()
            .map(|m| pictures::dots(experiment, m))
            .unwrap_or_default(),
    );
    section("Over time", pictures::throughput(experiment));
    section("Latency", pictures::latency(experiment));
    section("Commands", statements(experiment));
    section("Waiting", waits(experiment));
    section("Resources", pictures::resources(experiment));
    out
}

fn statements(experiment: &Experiment) -> String {
    let Some(run) = experiment.runs.iter().find(|r| !r.statements.is_empty()) else {
        return String::new();
    };
    let rows: Vec<Vec<String>> = run
        .statements
        .iter()
        .enumerate()
        .map(|(index, (command, _))| {
            let mut cells = vec![command.clone()];
            for arm in 0..experiment.arms.len() {
                let values: Vec<f64> = experiment
                    .runs
                    .iter()
                    .filter(|r| r.arm == arm)
                    .filter_map(|r| r.statements.get(index).map(|s| s.1))
                    .collect();
                cells.push(format::value(
                    crate::stat::median(&values),
                    format::Unit::Seconds,
                ));
            }
            cells
        })
        .collect();
    let mut head = vec!["command"];
    head.extend(experiment.arms.iter().map(|a| a.name.as_str()));
    table(
        "Mean latency of each command, median over runs",
        &head,
        &rows,
    )
}

fn waits(experiment: &Experiment) -> String {
    let mut events = std::collections::BTreeMap::<&str, Vec<f64>>::new();
    for run in &experiment.runs {
        for (event, count) in &run.waits {
            let per_arm = events
                .entry(event)
                .or_insert_with(|| vec![0.0; experiment.arms.len()]);
            per_arm[run.arm] += count;
        }
    }
    let mut totals = vec![0.0; experiment.arms.len()];
    for per_arm in events.values() {
        for (total, count) in totals.iter_mut().zip(per_arm) {
            *total += count;
        }
    }
    let mut ordered: Vec<_> = events.into_iter().collect();
    ordered.sort_by(|a, b| b.1.iter().sum::<f64>().total_cmp(&a.1.iter().sum::<f64>()));
    ordered.truncate(8);
    if ordered.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = ordered
        .iter()
        .map(|(event, counts)| {
            let mut cells = vec![(*event).to_owned()];
            cells.extend(counts.iter().zip(&totals).map(|(c, t)| {
                if *t > 0.0 {
                    format::percent(c / t)
                } else {
                    format::MISSING.to_owned()
                }
            }));
            cells
        })
        .collect();
    let mut head = vec!["event"];
    head.extend(experiment.arms.iter().map(|a| a.name.as_str()));
    table(
        "What active backends were doing, share of samples",
        &head,
        &rows,
    )
}

fn warnings(analysis: &Analysis) -> String {
    if analysis.warnings.is_empty() {
        return String::new();
    }
    let items: String = analysis
        .warnings
        .iter()
        .map(|w| {
            let class = match w.level {
                Level::Block => "block",
                Level::Warn => "warn",
                Level::Info => "info",
            };
            format!(
                "<li class=\"{class}\"><code>{}</code> {}<p>{}. To mend it: {}.</p></li>",
                escape(&w.id),
                escape(&w.found),
                escape(&w.why),
                escape(&w.fix)
            )
        })
        .collect();
    let dropped: String = analysis
        .dropped
        .iter()
        .map(|(block, why)| {
            format!(
                "<p class=\"note\">Block {} does not count: {}</p>",
                block + 1,
                escape(why)
            )
        })
        .collect();
    format!("<h2>What to beware of</h2><ul class=\"warnings\">{items}</ul>{dropped}")
}

fn environment(experiment: &Experiment) -> String {
    let mut out = String::from("<h2>What was compared</h2>");
    let arms: String = experiment
        .arms
        .iter()
        .map(|arm| {
            format!(
                "<dt>{}</dt><dd>{}</dd>",
                escape(&arm.name),
                escape(&arm.description)
            )
        })
        .collect();
    out.push_str(&format!("<dl class=\"facts\">{arms}</dl>"));
    let Some(base) = experiment.arms.first().and_then(|a| a.environment.as_ref()) else {
        return out;
    };
    for arm in experiment.arms.iter().skip(1) {
        let Some(env) = &arm.environment else {
            continue;
        };
        let rows: Vec<Vec<String>> = environment::diff(base, env)
            .into_iter()
            .filter(|d| !d.name.starts_with("contents.") && !d.name.ends_with("fingerprint"))
            .map(|d| vec![d.name, d.first, d.second])
            .collect();
        if rows.is_empty() {
            out.push_str(&format!(
                "<p class=\"note\">{} differs from {} in nothing that was captured</p>",
                escape(&arm.name),
                escape(&experiment.arms[0].name)
            ));
        } else {
            let head = ["", experiment.arms[0].name.as_str(), arm.name.as_str()];
            out.push_str(&table(
                &format!(
                    "What differs between {} and {}",
                    experiment.arms[0].name, arm.name
                ),
                &head,
                &rows,
            ));
        }
    }
    out.push_str(&format!(
        "<details><summary>Everything captured</summary>{}</details>",
        everything(base)
    ));
    out
}

fn everything(env: &Environment) -> String {
    let mut rows: Vec<Vec<String>> = env
        .facts
        .iter()
        .map(|(name, fact)| {
            let value = match fact {
                Fact::Found(value) => value.clone(),
                Fact::NotReadable { not_readable } => format!("not readable: {not_readable}"),
            };
            vec![name.clone(), value]
        })
        .collect();
    rows.extend(
        env.settings
            .iter()
            .filter(|(_, s)| s.source != "default")
            .map(|(name, s)| vec![format!("setting {name}"), s.readable()]),
    );
    table(
        "Facts, and settings that are not defaults",
        &["", "value"],
        &rows,
    )
}

fn repeat(experiment: &Experiment) -> String {
    format!(
        "<h2>How to repeat</h2><pre>{}</pre><p class=\"note\">The seed {} decides the order of runs and pgbench's keys.</p>",
        escape(&experiment.command.join(" ")),
        experiment.plan.seed
    )
}

fn raw(experiment: &Experiment) -> String {
    let metrics: Vec<&Metric> = experiment
        .metrics
        .iter()
        .filter(|m| {
            experiment
                .runs
                .iter()
                .any(|r| r.values.contains_key(&m.name))
        })
        .collect();
    let mut head = vec!["block", "arm"];
    head.extend(metrics.iter().map(|m| m.title.as_str()));
    head.push("note");
    let rows: Vec<Vec<String>> = experiment
        .runs
        .iter()
        .map(|run| {
            let mut cells = vec![
                (run.block + 1).to_string(),
                experiment.arms[run.arm].name.clone(),
            ];
            cells.extend(metrics.iter().map(|m| {
                run.values
                    .get(&m.name)
                    .map_or_else(|| format::MISSING.to_owned(), |v| format::value(*v, m.unit))
            }));
            cells.push(run.dropped.clone().unwrap_or_default());
            cells
        })
        .collect();
    format!(
        "<details><summary>Every run</summary>{}</details>",
        table("All runs in order of time", &head, &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_between_figures_and_not_within() {
        let shown = |cell| together(cell).replace('\u{a0}', "_");
        assert_eq!(shown("1.03 (1.00 … 1.07)"), "1.03 (1.00_…_1.07)");
        assert_eq!(shown("50 ms ± 29 %"), "50_ms ±_29_%");
        assert_eq!(shown("delta 1 247 ms"), "delta 1 247_ms");
    }
}
