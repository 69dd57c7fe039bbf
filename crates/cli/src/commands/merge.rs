//! `merge`.

use comfy_table::{Table, presets::NOTHING};
use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::merge::{self, MergeOptions, MergePlan, MergeReport};
use pgstrata_layer::plain::plain;
use pgstrata_store::error::Result;

use super::{Context, known_cluster, label};
use crate::args::MergeArgs;
use crate::exit;
use crate::progress::Act;

pub(super) async fn run(context: &Context, args: &MergeArgs) -> Result<u8> {
    let cluster = known_cluster(context).await?;
    let options = MergeOptions {
        label: label(&cluster, &args.label).await?,
        into: match &args.from {
            Some(text) => Some(label(&cluster, text).await?),
            None => None,
        },
        codec: context.codec(&args.compress)?,
        jobs: context.config.jobs()?,
        ignore_restores: args.restores.ignore_restores,
        remove: args.remove_inputs,
    };
    let plan = merge::plan(&cluster, &options).await?;
    if args.dry_run.dry_run {
        context.report("merge-plan/1", &plan, || plan_text(&plan))?;
        return Ok(0);
    }
    let report = context
        .watched(Act::Merge, async |progress| {
            merge::execute(&cluster, &options, &progress).await
        })
        .await?;
    context.report("merge/1", &report, || {
        report_text(&report, &plan, args.remove_inputs)
    })?;
    Ok(match report.notes.is_empty() {
        true => 0,
        false => exit::WARNINGS,
    })
}

fn plan_text(plan: &MergePlan) -> String {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_header(["merge", "stored", "afterwards"]);
    for input in &plan.inputs {
        table.add_row([
            input.label.clone(),
            BinaryBytes(input.pack_bytes).to_string(),
            match input.removable {
                true => "can go".to_owned(),
                false if plan.notes.iter().any(|note| note.starts_with(&input.label)) => {
                    "stays: see the note".to_owned()
                }
                false => "stays: another layer stands on it".to_owned(),
            },
        ]);
    }
    let onto = match &plan.stands_on {
        Some(label) => format!("one increment on {label}"),
        None => "a full layer".to_owned(),
    };
    let mut text = format!("{table}\ninto {onto}\n");
    if let Some(existing) = &plan.existing {
        text.push_str(&format!("{existing} is that layer already\n"));
    }
    for note in &plan.notes {
        text.push_str(&format!("note: {}\n", plain(note)));
    }
    text
}

fn report_text(report: &MergeReport, plan: &MergePlan, removes: bool) -> String {
    let mut text = format!(
        "merged {} layers into {} in {:.1} s, read back and compared\n  {} frames copied ({}), {} encoded anew ({}), {} fetched\n",
        report.inputs.len(),
        report.label,
        report.seconds,
        HumanCount(report.frames_copied),
        BinaryBytes(report.copied_bytes),
        HumanCount(report.frames_encoded),
        BinaryBytes(report.encoded_bytes),
        BinaryBytes(report.fetched_bytes),
    );
    for label in &report.removed {
        text.push_str(&format!("  removed {label}\n"));
    }
    for note in &report.notes {
        text.push_str(&format!("  note: {}\n", plain(note)));
    }
    if !removes && plan.inputs.iter().any(|input| input.removable) {
        text.push_str("The merged layers are still there; --remove-inputs removes them.\n");
    }
    text
}
