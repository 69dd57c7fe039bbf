//! The published table beside ours, and what had really changed.

use super::scene::Variant;
use crate::format::{self, MISSING, Unit};
use crate::measure::environment::{self, Difference, Environment};
use crate::measure::result::{Beside, Experiment, Published, Table};
use crate::measure::stat::paired;
use crate::measure::stat::verdict::Better;

/// Time and size of an increment as shares of those of a full backup, when a fifth of the rows was updated.
pub(super) const PUBLISHED: (f64, f64) = (0.272, 0.238);

const SOURCE: &str = "Published: ptrack with pg_probackup, wall time of one run each.";

/// Adds the tables, and the pictures.
pub(super) fn describe(experiment: &mut Experiment, variants: &[Variant]) {
    experiment.published = [
        ("time", "Time", PUBLISHED.0),
        ("stored", "Stored bytes", PUBLISHED.1),
    ]
    .map(|(metric, words, published)| beside(experiment, variants, (metric, words), published))
    .into();
    let mut tables = vec![ratios(experiment, variants)];
    for variant in variants {
        tables.push(scene(experiment, *variant));
    }
    experiment.tables = tables;
    if variants.iter().any(|v| !v.vacuumed) {
        experiment.notes.push(
            "Never vacuumed: the first look at a row after its transaction ended sets hint bits, which makes its page dirty; with \
             checksums (the default since PostgreSQL 18) the whole page then goes into WAL and gets a new LSN. So reading changes pages, \
             and an incremental backup takes them all: vacuum before the first backup."
                .to_owned(),
        );
    }
}

/// What the servers of further scenes have otherwise than that of the first one.
pub(super) fn servers(servers: &[(String, Environment)]) -> Option<Table> {
    let ((words, first), rest) = servers.split_first()?;
    let rows: Vec<Vec<String>> = rest
        .iter()
        .flat_map(|(scene, server)| {
            let facts = environment::diff(first, server).into_iter();
            let facts = facts.filter(Difference::is_of_the_server);
            facts.map(move |fact| vec![scene.clone(), fact.name, fact.first, fact.second])
        })
        .collect();
    let note = rows
        .is_empty()
        .then(|| "They differ in nothing that was captured.".to_owned());
    (!rest.is_empty()).then(|| Table {
        title: "What differs between the servers of the scenes".to_owned(),
        head: ["scene", "what", words, "there"].map(str::to_owned).into(),
        rows,
        note,
    })
}

/// The full backup that an increment is compared with: its own tool's.
fn full_of(experiment: &Experiment, arm: usize) -> Option<usize> {
    let name = &experiment.arms[arm].name;
    let tool = name.split(' ').next()?;
    (name.ends_with(" incr")).then(|| {
        experiment
            .arms
            .iter()
            .position(|a| a.name == format!("{tool} full"))
    })?
}

fn beside(
    experiment: &Experiment,
    variants: &[Variant],
    (metric, words): (&str, &str),
    published: f64,
) -> Published {
    let plan = &experiment.plan;
    let counted = experiment.counted_blocks();
    let mut rows = Vec::new();
    for variant in variants {
        let name = format!("{metric}{}", variant.key());
        for arm in 0..experiment.arms.len() {
            let Some(full) = full_of(experiment, arm) else {
                continue;
            };
            let (base, ours) = experiment.pairs(&name, (full, arm), &counted);
            let compared = paired::compare(&base, &ours, Better::Lower, plan.margin, plan.seed);
            rows.push(Beside {
                name: format!("{}, {}", experiment.arms[arm].name, variant.words()),
                published: Some(published),
                ours: compared.as_ref().map(|compared| compared.ratio),
                interval: compared.and_then(|compared| compared.interval),
            });
        }
    }
    Published {
        figure: format!("{words} of an incremental backup, to a full one of the same tool"),
        unit: Unit::Ratio,
        source: SOURCE.to_owned(),
        rows,
    }
}

fn ratios(experiment: &Experiment, variants: &[Variant]) -> Table {
    let mut rows = vec![vec![
        "published: ptrack, pg_probackup".to_owned(),
        format::ratio(PUBLISHED.0, None),
        format::ratio(PUBLISHED.1, None),
        "0.182".to_owned(),
        MISSING.to_owned(),
        MISSING.to_owned(),
    ]];
    for variant in variants {
        for arm in 0..experiment.arms.len() {
            let Some(full) = full_of(experiment, arm) else {
                continue;
            };
            let key = variant.key();
            let ratio = |name: &str| {
                let (a, b) = (
                    experiment.middle(&format!("{name}{key}"), arm),
                    experiment.middle(&format!("{name}{key}"), full),
                );
                match (a, b) {
                    (Some(a), Some(b)) if b > 0.0 => format::ratio(a / b, None),
                    _ => MISSING.to_owned(),
                }
            };
            let value = |name: &str| experiment.middle(&format!("{name}{key}"), arm);
            let share = match (value("changed"), value("pages")) {
                (Some(changed), Some(pages)) if pages > 0.0 => format::ratio(changed / pages, None),
                _ => MISSING.to_owned(),
            };
            let efficiency = match (value("stored"), value("changed")) {
                (Some(stored), Some(changed)) if changed > 0.0 => {
                    format::ratio(stored / (changed * 8192.0), None)
                }
                _ => MISSING.to_owned(),
            };
            let exact = match (value("backed_up"), value("changed")) {
                (Some(pages), Some(changed)) if changed > 0.0 => {
                    format::ratio(pages / changed, None)
                }
                _ => MISSING.to_owned(),
            };
            rows.push(vec![
                format!("{}, {}", experiment.arms[arm].name, variant.words()),
                ratio("time"),
                ratio("stored"),
                share,
                exact,
                efficiency,
            ]);
        }
    }
    Table {
        title: "Incremental as a share of full".to_owned(),
        head: ["", "time", "stored", "pages changed", "backed up / changed", "stored / changed"].map(str::to_owned).into(),
        rows,
        note: Some(
            "Pages changed: share of all relation pages whose LSN is beyond the full backup's, counted on disk. Backed up / changed: pages in the \
             increment by those; less than 1 would be a page lost. Stored / changed: bytes the \
             increment added to the repository, its WAL included, by bytes of those pages; compression makes it smaller than 1. Published \
             time is wall time of one run each; its transfer alone was 0.094, with other caches. Its share of pages is worked out from its \
             rows: the text does not give it."
                .to_owned(),
        ),
    }
}

fn scene(experiment: &Experiment, variant: Variant) -> Table {
    let key = variant.key();
    let rows = (0..experiment.arms.len())
        .map(|arm| {
            let cell = |name: &str, unit: Unit| {
                experiment
                    .middle(&format!("{name}{key}"), arm)
                    .map_or_else(|| MISSING.to_owned(), |v| format::value(v, unit))
            };
            vec![
                experiment.arms[arm].name.clone(),
                cell("time", Unit::Seconds),
                cell("cpu", Unit::Seconds),
                cell("server_cpu", Unit::Seconds),
                cell("read", Unit::Bytes),
                cell("stored", Unit::Bytes),
                cell("memory", Unit::Bytes),
                cell("restore", Unit::Seconds),
                cell("open", Unit::Seconds),
                cell("verified", Unit::Seconds),
            ]
        })
        .collect();
    let value = |name: &str| experiment.middle(&format!("{name}{key}"), 0);
    let changed = match (value("changed"), value("pages")) {
        (Some(changed), Some(pages)) => format!(": {changed:.0} of {pages:.0} pages changed"),
        _ => String::new(),
    };
    Table {
        title: format!("{}{changed}", variant.words()),
        head: ["", "time", "CPU", "server CPU", "read", "stored", "memory", "restore", "first query", "verified"]
            .map(str::to_owned)
            .into(),
        rows,
        note: Some("Restored clusters were opened, checked by pg_amcheck, and hold the rows of the source.".to_owned()),
    }
}
