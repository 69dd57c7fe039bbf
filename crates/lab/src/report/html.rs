//! The report for a browser: one file, no script, nothing fetched.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::arms::{self, Apart};
use super::files::Link;
use super::{beside, forest, pictures, sweep, unstable};
use crate::format;
use crate::measure::environment::{Environment, Fact, Level};
use crate::measure::result::{Arm, Experiment, Metric, Table};
use crate::measure::stat::paired::Comparison;
use crate::measure::stat::verdict::{Better, Verdict};
use crate::report::analysis::{Analysis, Row, interval_words, ratio_words};
use crate::report::conclusion::{Outcome, conclude};

mod results;

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

/// Renders the whole page, without links to files.
#[must_use]
pub fn render(experiment: &Experiment, analysis: &Analysis) -> String {
    render_with(experiment, analysis, &[])
}

/// Renders the whole page with links to the result's files.
#[must_use]
pub fn render_with(experiment: &Experiment, analysis: &Analysis, links: &[Link]) -> String {
    let mut conclusion = conclusion(experiment, analysis);
    let mut hero = hero(experiment, analysis);
    let mut sections = sections(experiment, analysis, links);
    let bodies = sections.iter_mut().map(|(_, body)| body);
    let parts = [&mut conclusion, &mut hero].into_iter().chain(bodies);
    unstable::explain(parts.map(|part| &mut part.0), &note(unstable::MEANING).0);
    let beware = beware(experiment, analysis);
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
                    (head(experiment))
                    (conclusion)
                    @if let Some((title, body)) = &beware { (section(title, body)) }
                    (hero)
                    (contents(beware.iter().chain(&sections)))
                    @for (title, body) in &sections { (section(title, body)) }
                    footer {
                        "Made by pgstrata lab " (experiment.lab_version) " from its result file. "
                        (provenance(experiment))
                    }
                }
            }
        }
    };
    page.into_string()
}

/// Which figures are of the day of measuring, and which of today's program.
fn provenance(experiment: &Experiment) -> String {
    let made = match (
        experiment.tables.is_empty(),
        experiment.published.is_empty(),
    ) {
        (true, true) => "",
        (false, true) => "; the experiment's own tables were made when it ended",
        (true, false) => {
            "; the picture beside what was published was made when the experiment ended"
        }
        (false, false) => {
            "; the experiment's own tables and the picture beside what was published were made when it ended"
        }
    };
    format!("Tiles, intervals and verdicts are computed again from the raw values{made}.")
}

/// A heading, and what stands below it.
type Section = (String, Markup);

fn section(title: &str, body: &Markup) -> Markup {
    html! {
        h2 id=(anchor(title)) { (title) }
        (body)
    }
}

/// Everything below the tiles, in the order of reading.
fn sections(experiment: &Experiment, analysis: &Analysis, links: &[Link]) -> Vec<Section> {
    let beside: String = experiment.published.iter().map(beside::draw).collect();
    let facts = facts(experiment, analysis);
    let mut sections = vec![("How it was measured".to_owned(), list_of(&facts))];
    let claims = forest::claims(experiment, analysis);
    if !claims.is_empty() {
        let title = "What the conclusion rests on".to_owned();
        sections.insert(0, (title, PreEscaped(claims)));
    }
    if !beside.is_empty() {
        sections.push(("Beside what was published".to_owned(), PreEscaped(beside)));
    }
    sections.extend(tables(&experiment.tables));
    let verdicts = results::verdicts(experiment, analysis);
    sections.push(("Results".to_owned(), verdicts));
    sections.extend(pictures(experiment, analysis));
    sections.push((arms::title(experiment).to_owned(), environment(experiment)));
    sections.push(("How to repeat".to_owned(), repeat(experiment)));
    let runs = html! { (results::every_run(experiment)) (files(links)) };
    sections.push(("Every run".to_owned(), runs));
    sections
}

fn files(links: &[Link]) -> Markup {
    html! {
        @if !links.is_empty() {
            p class="note" { "Files of the result:" }
            ul class="note" {
                @for link in links { li { a href=(link.href) { (link.name) } ", " (link.what) } }
            }
        }
    }
}

fn contents<'a>(sections: impl Iterator<Item = &'a Section>) -> Markup {
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
    let (outcome, sentence) = conclude(experiment, analysis);
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

fn head(experiment: &Experiment) -> Markup {
    let day = experiment.created.get(..10).unwrap_or(&experiment.created);
    html! {
        header {
            p class="kind" { "pgstrata lab · " (experiment.kind) " · " (day) }
            h1 { (experiment.title) }
        }
    }
}

/// What was done, how often, and where.
fn facts(experiment: &Experiment, analysis: &Analysis) -> Vec<(String, String)> {
    let plan = &experiment.plan;
    let mut facts = vec![("workload".to_owned(), experiment.workload.clone())];
    if experiment.arms.len() > 1 || experiment.hypothesis.is_some() {
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
    if let Some((_, env)) = arms::captured(experiment).first() {
        facts.extend(machine(env));
    }
    facts
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
        Verdict::Withheld | Verdict::Partial { .. } => "withheld",
        _ => "",
    }
}

/// What a ratio means, in words: never a bare "x % faster".
fn in_words(compared: &Comparison, metric: &Metric) -> String {
    if matches!(compared.verdict, Verdict::TooFew { .. }) {
        return "may be anything yet".to_owned();
    }
    if matches!(compared.verdict, Verdict::Partial { .. }) {
        return "cannot be judged by the blocks that are left".to_owned();
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

fn pictures(experiment: &Experiment, analysis: &Analysis) -> Vec<Section> {
    let runs = experiment.metrics.first();
    let runs = runs.map(|metric| pictures::dots(experiment, metric));
    let sections = [
        ("How sure", forest::forest(experiment, analysis)),
        ("Along the sweep", sweep::sweep(experiment)),
        ("Run by run", runs.unwrap_or_default()),
        ("Over time", pictures::throughput(experiment)),
        ("Latency", pictures::latency(experiment)),
        ("Commands", results::statements(experiment).into_string()),
        ("Waiting", results::waits(experiment).into_string()),
        ("Resources", pictures::resources(experiment)),
    ];
    let some = sections.into_iter().filter(|(_, body)| !body.is_empty());
    some.map(|(title, body)| (title.to_owned(), PreEscaped(body)))
        .collect()
}

/// What a reader must know before any figure; nothing where there is nothing.
fn beware(experiment: &Experiment, analysis: &Analysis) -> Option<Section> {
    let mut sentences = analysis.dropped_words();
    sentences.extend(analysis.drift_words(experiment));
    if analysis.warnings.is_empty() && sentences.is_empty() {
        return None;
    }
    let class = |level: Level| match level {
        Level::Block => "block",
        Level::Warn => "warn",
        Level::Info => "info",
    };
    let body = html! {
        ul class="warnings" {
            @for w in &analysis.warnings {
                li class=(class(w.level)) {
                    code { (w.id) } " " (w.found)
                    p { (w.why) ". To mend it: " (w.fix) "." }
                }
            }
        }
        @for sentence in &sentences { (note(sentence)) }
    };
    Some(("What to beware of".to_owned(), body))
}

fn environment(experiment: &Experiment) -> Markup {
    let described = |arm: &Arm| (arm.name.clone(), arm.description.clone());
    let arms: Vec<(String, String)> = experiment.arms.iter().map(described).collect();
    html! {
        (list_of(&arms))
        @for apart in arms::apart(experiment) { (differences(apart)) }
        @if let Some(sentence) = arms::only(experiment) { (note(&sentence)) }
        @if let Some((name, base)) = arms::captured(experiment).first() {
            details { summary { "Everything captured of " (name) } (everything(base)) }
        }
    }
}

fn differences(apart: Apart<'_>) -> Markup {
    let words = apart.words();
    if apart.facts.is_empty() {
        return note(&format!("{words}."));
    }
    let facts = apart.facts.into_iter();
    let rows: Vec<Vec<String>> = facts.map(|f| vec![f.name, f.first, f.second]).collect();
    table(&words, &["", apart.base, apart.name], &rows)
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
        // Of two results each has a seed of its own.
        @if experiment.kind != "compare" {
            p class="note" {
                "The seed " (experiment.plan.seed) " decides the order of runs and pgbench's keys."
            }
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
