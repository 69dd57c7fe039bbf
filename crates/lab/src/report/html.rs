//! The report for a browser: one file, no script, nothing fetched.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{beside, pictures, sweep, terminal};
use crate::format;
use crate::measure::environment::{self, Environment, Fact, Level};
use crate::measure::result::{Arm, Experiment, Metric, Table};
use crate::measure::stat::paired::Comparison;
use crate::measure::stat::verdict::{Better, Verdict};
use crate::report::analysis::{Analysis, Row, interval_words, ratio_words};
use crate::report::conclusion::{Outcome, conclude};

/// Environment facts that the report's head shows, with what follows their value.
const HEADLINES: [(&str, &str); 5] = [
    ("cpu.model", ""),
    ("cpu.count", " processors"),
    ("memory.total_kb", ""),
    ("disk.filesystem", ""),
    ("machine.system", ""),
];

/// What a browser may do with the page: show it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// Renders the whole page.
#[must_use]
pub fn render(experiment: &Experiment, analysis: &Analysis) -> String {
    let sections = sections(experiment, analysis);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                link rel="icon" href="data:,";
                title { (experiment.title) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                main {
                    (head(experiment, analysis))
                    (conclusion(experiment, analysis))
                    (warnings(analysis))
                    (hero(experiment, analysis))
                    (contents(&sections))
                    @for (title, body) in &sections {
                        h2 id=(anchor(title)) { (title) }
                        (body)
                    }
                    footer {
                        "Made by pgstrata lab " (experiment.lab_version)
                        " from its result file. Numbers are computed again from raw values."
                    }
                }
            }
        }
    };
    page.into_string()
}

/// A heading, and what stands below it.
type Section = (String, Markup);

/// Everything below the head, in the order of reading.
fn sections(experiment: &Experiment, analysis: &Analysis) -> Vec<Section> {
    let beside: String = experiment.published.iter().map(beside::draw).collect();
    let mut sections = Vec::new();
    if !beside.is_empty() {
        sections.push(("Beside what was published".to_owned(), PreEscaped(beside)));
    }
    sections.extend(tables(&experiment.tables));
    sections.push(("Results".to_owned(), verdicts(experiment, analysis)));
    sections.extend(pictures(experiment, analysis));
    sections.push(("What was compared".to_owned(), environment(experiment)));
    sections.push(("How to repeat".to_owned(), repeat(experiment)));
    sections.push(("Every run".to_owned(), raw(experiment)));
    sections
}

fn contents(sections: &[Section]) -> Markup {
    html! {
        nav aria-label="contents" {
            ul class="contents" {
                @for (title, _) in sections { li { a href={ "#" (anchor(title)) } { (title) } } }
            }
        }
    }
}

/// What a link to a heading names.
fn anchor(title: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    title.to_lowercase().chars().map(letter).collect()
}

fn conclusion(experiment: &Experiment, analysis: &Analysis) -> Markup {
    let Some((outcome, sentence)) = conclude(experiment, analysis) else {
        return nothing();
    };
    let class = match outcome {
        Outcome::Held => "conclusion better",
        Outcome::Failed => "conclusion worse",
        Outcome::Unclear | Outcome::Open => "conclusion",
    };
    html! { p class=(class) { (sentence) } }
}

fn nothing() -> Markup {
    PreEscaped(String::new())
}

fn head(experiment: &Experiment, analysis: &Analysis) -> Markup {
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
    let day = experiment.created.get(..10).unwrap_or(&experiment.created);
    html! {
        header {
            p class="kind" { "pgstrata lab · " (experiment.kind) " · " (day) }
            h1 { (experiment.title) }
            (list_of(&facts))
        }
    }
}

fn list_of(facts: &[(String, String)]) -> Markup {
    html! {
        dl class="facts" {
            @for (name, value) in facts { dt { (name) } dd { (value) } }
        }
    }
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
fn hero(experiment: &Experiment, analysis: &Analysis) -> Markup {
    let Some(row) = analysis.rows.first() else {
        return nothing();
    };
    let Some(metric) = metric_of(experiment, row) else {
        return nothing();
    };
    let compared = || row.comparisons.iter().zip(&experiment.arms);
    if compared().all(|(compared, _)| compared.is_none()) {
        return nothing();
    }
    html! {
        div class="hero" {
            @for (compared, arm) in compared() {
                @if let Some(compared) = compared {
                    div class="tile" {
                        div class="what" { (metric.title) ": " (arm.name) " to " (experiment.arms[0].name) }
                        div class="ratio" { (ratio_words(compared)) }
                        div class="ci" { "95 % CI " (interval_words(compared)) }
                        div class={ "verdict " (verdict_class(&compared.verdict)) } {
                            (compared.verdict.words(experiment.plan.margin))
                        }
                        div class="ci" { (arm.name) " " (in_words(compared, metric)) }
                    }
                }
            }
        }
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

/// Cards on a phone are blocks, which lose the meaning of a table unless the roles say it;
/// and what scrolls must be reachable by keyboard.
fn table(caption: &str, head: &[&str], rows: &[Vec<String>]) -> Markup {
    let name = if caption.is_empty() {
        "results"
    } else {
        caption
    };
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(name) {
            table class="cards" role="table" {
                @if !caption.is_empty() { caption { (caption) } }
                thead role="rowgroup" {
                    tr role="row" {
                        @for name in head { th scope="col" role="columnheader" { (name) } }
                    }
                }
                tbody role="rowgroup" {
                    @for cells in rows { (row(head, cells)) }
                }
            }
        }
    }
}

fn row(head: &[&str], cells: &[String]) -> Markup {
    // A figure is not to be torn apart.
    let class =
        |cell: &str| (cell.chars().count() <= FIGURE && head.len() <= NARROW).then_some("figure");
    html! {
        tr role="row" {
            @for (index, cell) in cells.iter().enumerate() {
                @if index == 0 {
                    th scope="row" role="rowheader" { (cell) }
                } @else {
                    td role="cell" class=[class(cell)] data-name=(head.get(index).unwrap_or(&"")) {
                        (together(cell))
                    }
                }
            }
        }
    }
}

fn note(words: &str) -> Markup {
    html! { p class="note" { (words) } }
}

fn tables(tables: &[Table]) -> Vec<Section> {
    let section = |t: &Table| {
        let head: Vec<&str> = t.head.iter().map(String::as_str).collect();
        let body = html! {
            (table("", &head, &t.rows))
            @if let Some(words) = &t.note { (note(words)) }
        };
        (t.title.clone(), body)
    };
    tables.iter().map(section).collect()
}

fn verdicts(experiment: &Experiment, analysis: &Analysis) -> Markup {
    let sentences = analysis.bottlenecks.iter();
    let sentences = sentences.chain(&analysis.unsteady).chain(&experiment.notes);
    html! {
        @if experiment.arms.len() == 1 { (medians(experiment, analysis)) }
        @for arm in 1..experiment.arms.len() { (compared(experiment, analysis, arm)) }
        @if let Some((_, p)) = analysis.page {
            p class="note" {
                "Page's trend test that the metric falls as the setting rises: p = " (format::p_value(p))
            }
        }
        (spread(experiment, analysis))
        @if is_unstable(analysis) {
            (note("~ marks an interval that the bootstrap finds wider or narrower by more than a fifth: more blocks would settle it."))
        }
        @for sentence in sentences { (note(sentence)) }
    }
}

/// Whether an interval is marked as one that the cross-check does not confirm.
fn is_unstable(analysis: &Analysis) -> bool {
    let mut compared = analysis.rows.iter().flat_map(|row| &row.comparisons);
    compared.any(|compared| compared.as_ref().is_some_and(|compared| compared.unstable))
}

fn medians(experiment: &Experiment, analysis: &Analysis) -> Markup {
    let cells = |row: &Row| {
        let metric = metric_of(experiment, row)?;
        let summary = row.arms.first()?.as_ref()?;
        Some(vec![
            metric.title.clone(),
            format::value(summary.median, metric.unit),
            format::value(summary.least, metric.unit),
            format::value(summary.most, metric.unit),
            summary.count.to_string(),
        ])
    };
    let rows: Vec<Vec<String>> = analysis.rows.iter().filter_map(cells).collect();
    let head = ["", "median", "least", "most", "runs"];
    table("Medians over runs", &head, &rows)
}

fn compared(experiment: &Experiment, analysis: &Analysis, arm: usize) -> Markup {
    let cells = |row: &Row| {
        let metric = metric_of(experiment, row)?;
        let mut cells = terminal::comparison_cells(experiment, row, metric, arm).to_vec();
        let compared = row.comparisons.get(arm).and_then(Option::as_ref);
        let p = compared.map_or_else(String::new, |c| format::p_value(c.p_adjusted));
        cells.insert(5, p);
        Some(cells)
    };
    let rows: Vec<Vec<String>> = analysis.rows.iter().filter_map(cells).collect();
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
    let caption = format!("{name} against {base}: medians ± spread of single runs");
    table(&caption, &head, &rows)
}

/// Less variance can be the result: the table of the pgbench talk.
fn spread(experiment: &Experiment, analysis: &Analysis) -> Markup {
    let Some(row) = analysis.rows.first() else {
        return nothing();
    };
    let Some(metric) = metric_of(experiment, row) else {
        return nothing();
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
        return nothing();
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

fn pictures(experiment: &Experiment, analysis: &Analysis) -> Vec<Section> {
    let runs = experiment.metrics.first();
    let runs = runs.map(|metric| pictures::dots(experiment, metric));
    let sections = [
        ("How sure", pictures::forest(experiment, analysis)),
        ("Along the sweep", sweep::sweep(experiment)),
        ("Run by run", runs.unwrap_or_default()),
        ("Over time", pictures::throughput(experiment)),
        ("Latency", pictures::latency(experiment)),
        ("Commands", statements(experiment).into_string()),
        ("Waiting", waits(experiment).into_string()),
        ("Resources", pictures::resources(experiment)),
    ];
    let some = sections.into_iter().filter(|(_, body)| !body.is_empty());
    some.map(|(title, body)| (title.to_owned(), PreEscaped(body)))
        .collect()
}

fn statements(experiment: &Experiment) -> Markup {
    let Some(run) = experiment.runs.iter().find(|r| !r.statements.is_empty()) else {
        return nothing();
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
                    crate::measure::stat::median(&values),
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

fn waits(experiment: &Experiment) -> Markup {
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
        return nothing();
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

fn warnings(analysis: &Analysis) -> Markup {
    if analysis.warnings.is_empty() {
        return nothing();
    }
    let class = |level: Level| match level {
        Level::Block => "block",
        Level::Warn => "warn",
        Level::Info => "info",
    };
    html! {
        h2 { "What to beware of" }
        ul class="warnings" {
            @for w in &analysis.warnings {
                li class=(class(w.level)) {
                    code { (w.id) } " " (w.found)
                    p { (w.why) ". To mend it: " (w.fix) "." }
                }
            }
        }
        @for (block, why) in &analysis.dropped {
            p class="note" { "Block " (block + 1) " does not count: " (why) }
        }
    }
}

fn environment(experiment: &Experiment) -> Markup {
    let described = |arm: &Arm| (arm.name.clone(), arm.description.clone());
    let arms: Vec<(String, String)> = experiment.arms.iter().map(described).collect();
    let base = experiment.arms.first().and_then(|a| a.environment.as_ref());
    html! {
        (list_of(&arms))
        @if let Some(base) = base {
            @for arm in experiment.arms.iter().skip(1) {
                @if let Some(env) = &arm.environment {
                    (differences((&experiment.arms[0].name, base), (&arm.name, env)))
                }
            }
            details { summary { "Everything captured" } (everything(base)) }
        }
    }
}

/// What differs between two arms' environments, each with its name.
fn differences(first: (&str, &Environment), second: (&str, &Environment)) -> Markup {
    let rows: Vec<Vec<String>> = environment::diff(first.1, second.1)
        .into_iter()
        .filter(|d| !d.name.starts_with("contents.") && !d.name.ends_with("fingerprint"))
        .map(|d| vec![d.name, d.first, d.second])
        .collect();
    let (base, name) = (first.0, second.0);
    if rows.is_empty() {
        return note(&format!(
            "{name} differs from {base} in nothing that was captured"
        ));
    }
    let caption = format!("What differs between {base} and {name}");
    table(&caption, &["", base, name], &rows)
}

fn everything(env: &Environment) -> Markup {
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

fn repeat(experiment: &Experiment) -> Markup {
    html! {
        pre { (experiment.typed()) }
        p class="note" {
            "The seed " (experiment.plan.seed) " decides the order of runs and pgbench's keys."
        }
    }
}

fn raw(experiment: &Experiment) -> Markup {
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
    let all = table("", &head, &rows);
    html! {
        details { summary { "All runs in order of time" } (all) }
        p class="note" {
            "Files beside this page: "
            a href="result.json" { "result.json" } ", everything measured; "
            a href="runs.csv" { "runs.csv" } ", a line for each run."
        }
    }
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
