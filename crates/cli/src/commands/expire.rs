//! `expire`.

use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::error::Result;
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_layer::retention::Policy;

use super::Context;
use crate::args::ExpireArgs;
use crate::exit;

pub(super) async fn run(context: &Context, args: &ExpireArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let options = ExpireOptions {
        policy: Policy {
            keep_full: args.keep_full,
            keep_days: args.keep_days,
            max_chain: args.max_chain,
        },
        codec: context.codec(args.compress.as_deref())?,
        jobs: context.config.jobs()?,
    };
    let report = if args.confirm && !args.dry_run {
        context
            .watched("expire", async |progress| {
                expire::execute(&repository, &name, &options, &progress).await
            })
            .await?
    } else {
        expire::plan(&repository, &name, &options).await?
    };
    context.report("expire/1", &report, || text(&report));
    Ok(match report.notes.is_empty() {
        true => 0,
        false => exit::WARNINGS,
    })
}

fn text(report: &ExpireReport) -> String {
    let mut text = String::new();
    if let Some(merge) = &report.merge {
        text.push_str(&format!(
            "merge    {} to {}: the chain of {} layers becomes one of {}\n",
            merge.into, merge.label, merge.chain_length, merge.new_length
        ));
    }
    for kept in &report.keep {
        text.push_str(&format!("keep     {}: {}\n", kept.label, kept.why));
    }
    for label in &report.remove {
        text.push_str(&format!("remove   {label}\n"));
    }
    for label in &report.leftovers {
        text.push_str(&format!("remove   {label}: left by an interrupted act\n"));
    }
    if let Some(from) = report.wal_from {
        text.push_str(&format!(
            "remove   {} WAL files before {from} ({})\n",
            HumanCount(report.wal_files),
            BinaryBytes(report.wal_bytes)
        ));
    }
    for note in &report.notes {
        text.push_str(&format!("note     {note}\n"));
    }
    let idle = report.merge.is_none()
        && report.remove.is_empty()
        && report.leftovers.is_empty()
        && report.wal_files == 0;
    text.push_str(match (idle, report.done) {
        (true, _) => "There is nothing to expire.\n",
        (false, true) => "This was done.\n",
        (false, false) => "Nothing was changed; --confirm does it.\n",
    });
    text
}
