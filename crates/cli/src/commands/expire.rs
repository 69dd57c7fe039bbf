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
    let idle = report.merge.is_none()
        && report.removals.is_empty()
        && report.remove.is_empty()
        && report.leftovers.is_empty()
        && report.wal_files == 0;
    text.push_str(match (idle, report.done, dry_run) {
        (true, _, _) => "There is nothing to expire.\n",
        (false, true, _) => "All of this was done.\n",
        (false, false, true) => "This was a dry run: nothing was changed.\n",
        (false, false, false) => {
            "Nothing was removed, for the reasons that the notes give. Run the command again later.\n"
        }
    });
    if dry_run {
        text.push_str(&planned_when());
    }
    text
}

/// Nothing is written to learn what time it is in the repository.
fn planned_when() -> String {
    let now = Timestamp::now().strftime("%Y-%m-%d %H:%M:%SZ");
    format!(
        "It was planned for {now} by the clock of this host. What is removed goes by the clock of the repository.\n"
    )
}

#[cfg(test)]
mod tests {
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
    }
}
