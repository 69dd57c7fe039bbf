//! `rescue`.

use std::collections::BTreeSet;

use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::rescue::{self, RescueReport};
use pgstrata_layer::plain::plain;
use pgstrata_store::error::Result;

use super::{Context, warn_if_to_come};
use crate::args::RescueArgs;
use crate::exit;

/// Names that are shown as text of each kind; JSON has all.
const MOST_NAMES: usize = 20;

pub(super) async fn run(context: &Context, args: &RescueArgs) -> Result<u8> {
    // Its record may be among what was destroyed.
    let cluster = context.cluster()?;
    warn_if_to_come("--since", args.since);
    let report = match args.dry_run.dry_run {
        true => rescue::plan(&cluster, args.since).await?,
        false => rescue::execute(&cluster, args.since).await?,
    };
    context.report("rescue/1", &report, || text(&report))?;
    Ok(match report.failed.first() {
        Some(first) => exit::code(first.kind),
        None if report.broken.is_empty() => 0,
        None => exit::WARNINGS,
    })
}

fn text(report: &RescueReport) -> String {
    let mut text = String::new();
    let mut names = |word: &str, keys: &[String]| {
        for key in keys.iter().take(MOST_NAMES) {
            text.push_str(&format!("{word:<9}{}\n", plain(key)));
        }
        if let Some(more @ 1..) = keys.len().checked_sub(MOST_NAMES) {
            let more = HumanCount(u64::try_from(more).unwrap_or(u64::MAX));
            text.push_str(&format!("{:9}and {more} more, see --output json\n", ""));
        }
    };
    names("deleted", &report.hidden);
    names("replaced", &report.replaced);
    names("new", &report.added);
    names("lost", &report.gone);
    let failed = report.failed.iter();
    let failed: Vec<String> = failed
        .map(|one| format!("{}: {}", one.key, one.why))
        .collect();
    names("failed", &failed);
    names("broken", &report.broken);
    let since = report.since;
    if !report.gone.is_empty() {
        text.push_str(&format!(
            "What is called lost was made after {since} and is gone: a later --since brings it back.\n"
        ));
    }
    if !report.removals.is_empty() {
        text.push_str(
            "Records of removals are new: the next expire refuses what its rules keep. If nobody of yours expired or merged, delete them.\n",
        );
    }
    let hints: BTreeSet<&String> = report
        .failed
        .iter()
        .filter_map(|one| one.hint.as_ref())
        .collect();
    for hint in hints {
        text.push_str(&format!(
            "What is called failed did not come back: {hint}.\n"
        ));
    }
    let count = report.hidden.len() + report.replaced.len();
    let back = count.saturating_sub(failed.len());
    let bytes = BinaryBytes(report.bytes);
    text.push_str(&match (count, report.done) {
        (0, _) if !report.broken.is_empty() => format!(
            "No version of {since} is left to come back, but what is called broken is not whole: try an earlier --since, and see \
             \"pgstrata info\".\n"
        ),
        (0, _) => format!("Everything that was there at {since} is there.\n"),
        (_, true) if !failed.is_empty() => format!(
            "{back} of {count} objects are as they were at {since}, and the others are not: run it again when the reason has gone.\n"
        ),
        (_, true) => format!(
            "{count} objects ({bytes}) are as they were at {since}. Run \"pgstrata verify\" now.\n"
        ),
        (_, false) => format!(
            "{count} objects ({bytes}) would come back. This was a dry run: nothing was changed.\n"
        ),
    });
    text
}
