//! `expire`.

use indicatif::{BinaryBytes, HumanCount};
use jiff::Timestamp;
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_layer::plain::plain;
use pgstrata_store::error::Result;

use super::{Context, known_cluster};
use crate::args::ExpireArgs;
use crate::exit;
use crate::progress::Act;

/// Runs of WAL segments that are shown as text; JSON has all.
const MOST_RUNS: usize = 20;

pub(super) async fn run(context: &Context, args: &ExpireArgs) -> Result<u8> {
    let cluster = known_cluster(context).await?;
    let options = ExpireOptions {
        policy: context.config.rules(&args.rules)?,
        codec: context.codec(&args.compress)?,
        jobs: context.config.jobs()?,
        ignore_restores: args.restores.ignore_restores,
    };
    let report = if args.dry_run.dry_run {
        expire::plan(&cluster, &options).await?
    } else {
        context
            .watched(Act::Expire, async |progress| {
                expire::execute(&cluster, &options, &progress).await
            })
            .await?
    };
    context.report("expire/1", &report, || text(&report, args.dry_run.dry_run))?;
    Ok(match report.notes.is_empty() {
        true => 0,
        false => exit::WARNINGS,
    })
}

fn text(report: &ExpireReport, dry_run: bool) -> String {
    let mut text = String::new();
    for removal in &report.removals {
        let (id, by) = (&removal.id, &removal.by);
        let files = HumanCount(removal.wal_files);
        text.push_str(&format!(
            "begun    removal {id} by {by}: {} layers and {files} WAL files are left of it\n",
            removal.layers.len()
        ));
        for label in &removal.layers {
            text.push_str(&format!("         {label}\n"));
        }
    }
    if let Some(merge) = &report.merge {
        text.push_str(&format!(
            "merge    {} to {}: the chain of {} layers becomes one of {}\n",
            merge.from, merge.label, merge.chain_length, merge.new_length
        ));
    }
    for kept in &report.keep {
        let alone = match kept.goes_on {
            true => "",
            false => "; restores to its own end alone",
        };
        text.push_str(&format!("keep     {}: {}{alone}\n", kept.label, kept.why));
    }
    let left = |label: &String| format!("remove   {label}: an interrupted command left it\n");
    let gone = report.remove.iter();
    text.extend(gone.map(|label| format!("remove   {label}\n")));
    text.extend(report.leftovers.iter().map(left));
    if let Some(from) = report.wal_from {
        text.push_str(&format!(
            "remove   {} WAL files before {from} ({})\n",
            HumanCount(report.wal_files),
            BinaryBytes(report.wal_bytes)
        ));
        for run in report.wal.iter().take(MOST_RUNS) {
            text.push_str(&format!("         {} to {}\n", run.first, run.last));
        }
        if let Some(more @ 1..) = report.wal.len().checked_sub(MOST_RUNS) {
            text.push_str(&format!(
                "         and {more} runs more, see --output json\n"
            ));
        }
    }
    for note in report.remarks.iter().chain(&report.notes) {
        text.push_str(&format!("note     {}\n", plain(note)));
    }
    text.push_str(&ending(report, dry_run));
    if dry_run {
        text.push_str(&planned_when());
    }
    text
}

/// What has been done, in one line.
fn ending(report: &ExpireReport, dry_run: bool) -> String {
    let idle = report.merge.is_none()
        && report.removals.is_empty()
        && report.remove.is_empty()
        && report.leftovers.is_empty()
        && report.wal_files == 0;
    if idle && report.notes.is_empty() {
        return "There is nothing to expire.\n".to_owned();
    }
    let done = match (report.done, dry_run, &report.merged) {
        (true, _, _) => return "All of this was done.\n".to_owned(),
        (false, true, _) => return "This was a dry run: nothing was changed.\n".to_owned(),
        (false, false, None) => "Nothing was removed".to_owned(),
        (false, false, Some(merged)) => match &merged.removed[..] {
            [] => format!("{} was merged, and nothing was removed", merged.label),
            removed => format!(
                "{} was merged, {} removed, and nothing else",
                merged.label,
                removed.join(", ")
            ),
        },
    };
    format!("{done}, for the reasons that the notes give. Run the command again later.\n")
}

/// Nothing is written to learn what time it is in the repository.
fn planned_when() -> String {
    let now = Timestamp::now().strftime("%Y-%m-%d %H:%M:%SZ");
    format!(
        "It was planned for {now} by the clock of this host. What is removed goes by that or the repository's, by whichever is behind.\n"
    )
}

#[cfg(test)]
mod tests {
    use pgstrata_engine::merge::MergeReport;

    use super::*;

    fn report() -> ExpireReport {
        ExpireReport {
            done: false,
            removals: Vec::new(),
            merge: None,
            merged: None,
            keep: Vec::new(),
            remove: vec!["20261121-093305F".to_owned()],
            leftovers: Vec::new(),
            wal_files: 0,
            wal_bytes: 0,
            wal: Vec::new(),
            wal_from: None,
            notes: Vec::new(),
            remarks: Vec::new(),
        }
    }

    fn last_line(report: &ExpireReport, dry_run: bool) -> String {
        let text = text(report, dry_run);
        text.lines().last().unwrap_or_default().to_owned()
    }

    #[test]
    fn the_last_line_says_what_was_done_and_why_not() {
        let dry_run = text(&report(), true);
        assert!(dry_run.contains("\nThis was a dry run: nothing was changed.\n"));
        // Nothing is written to learn what time it is there.
        let last = last_line(&report(), true);
        assert!(last.starts_with("It was planned for 20") && last.contains("of this host"));
        let mut done = report();
        done.done = true;
        assert_eq!(last_line(&done, false), "All of this was done.");
        let mut beside_a_backup = report();
        beside_a_backup.notes = vec!["20261122-100000F is being made".to_owned()];
        let said = last_line(&beside_a_backup, false);
        assert!(said.starts_with("Nothing was removed, for the reasons that the notes give."));
        assert!(text(&beside_a_backup, false).contains("note     20261122-100000F is being made"));
        let mut idle = report();
        idle.remove.clear();
        assert_eq!(last_line(&idle, false), "There is nothing to expire.");
        // Whether there is, nobody knows then.
        idle.notes = beside_a_backup.notes.clone();
        assert!(last_line(&idle, false).starts_with("Nothing was removed"));
    }

    #[test]
    fn a_merge_that_was_made_is_told_when_the_rest_was_not_done() {
        let mut report = report();
        report.notes = vec!["20261122-100000F is being made".to_owned()];
        report.merged = Some(MergeReport {
            label: "20261122-090000F".to_owned(),
            inputs: Vec::new(),
            stands_on: None,
            frames_copied: 0,
            copied_bytes: 0,
            frames_encoded: 0,
            encoded_bytes: 0,
            fetched_bytes: 0,
            pack_bytes: 0,
            removed: vec!["20261121-093305F".to_owned()],
            seconds: 1.0,
            notes: Vec::new(),
        });
        let said = last_line(&report, false);
        for words in [
            "20261122-090000F was merged",
            "20261121-093305F removed, and nothing else",
        ] {
            assert!(said.contains(words), "{said}");
        }
        assert!(!said.contains("Nothing was removed"), "{said}");
    }
}
