//! `restore`.

use std::env;

use clap::ValueEnum;
use comfy_table::{Table, presets::NOTHING};
use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::error::{Error, FileContext, Kind, Result};
use pgstrata_engine::restore::{
    self, Method, RestoreOptions, RestorePlan, RestoreReport, TablespaceMapping, Target,
};
use pgstrata_layer::label::Label;

use super::{Context, shares};
use crate::args::{RestoreArgs, UnpackOrder};
use crate::config::absolute;

pub(super) async fn run(context: &Context, args: &RestoreArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let plan = restore::plan(&repository, &name, options(context, args)?).await?;
    if args.plan {
        context.report("restore-plan/1", &plan, || plan_text(&plan));
        return Ok(0);
    }
    let report = context
        .watched("restore", async |progress| {
            restore::execute(&repository, &plan, &progress).await
        })
        .await?;
    context.report("restore/1", &report, || report_text(&report, &plan));
    Ok(0)
}

fn options(context: &Context, args: &RestoreArgs) -> Result<RestoreOptions> {
    let label = match args.label.as_str() {
        "latest" | "LATEST" => None,
        text => Some(Label::parse(text).ok_or_else(|| {
            Error::new(Kind::Usage, format!("\"{text}\" is not a label"))
                .hint("\"pgstrata info\" shows the labels; or say latest")
        })?),
    };
    let timeline = args
        .target_timeline
        .as_deref()
        .map(str::parse)
        .transpose()?;
    let map = |(from, to): &(String, String)| {
        Ok(TablespaceMapping {
            from: from.clone(),
            to: absolute(to.as_ref())?,
        })
    };
    Ok(RestoreOptions {
        label,
        target: Target::parse(&spelled(args.kind), args.target.as_deref())?,
        timeline,
        inclusive: !args.target_exclusive,
        action: args
            .target_action
            .map(|action| spelled(action).parse())
            .transpose()?
            .unwrap_or_default(),
        directory: absolute(&args.target_dir)?,
        tablespaces: args.tablespace_map.iter().map(map).collect::<Result<_>>()?,
        wal_directory: args.wal_dir.as_deref().map(absolute).transpose()?,
        restore_command: restore_command(context)?,
        jobs: context.config.jobs()?,
        method: match (args.delta, args.unpack_order) {
            (true, _) => Method::Delta,
            (false, UnpackOrder::Overlay) => Method::Overlay,
            (false, UnpackOrder::OldestFirst) => Method::OldestFirst,
        },
        shares: shares::shared(args.shares, args.share_timeout),
    })
}

fn spelled(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// This program, with the options of this call: what PostgreSQL runs to fetch WAL.
fn restore_command(context: &Context) -> Result<Vec<String>> {
    let program =
        env::current_exe().context(|| "could not find this program's own path".to_owned())?;
    let mut command = vec![program.display().to_string()];
    command.extend(context.config.as_flags()?);
    command.push("archive-get".to_owned());
    Ok(command)
}

fn plan_text(plan: &RestorePlan) -> String {
    let wal = &plan.wal;
    let timelines: Vec<String> = wal.timelines.iter().map(ToString::to_string).collect();
    let target = match &plan.target {
        Some(value) => format!("{} {value}", plan.target_type),
        None => plan.target_type.clone(),
    };
    let mut text = format!(
        "restore    {} of cluster \"{}\" to {}{}\ntarget     {target}, timeline {}\nWAL        {} .. {}: {} segments from {}, consistent at {}, timelines {}\nfetch      {}{} from packs in {} frames, read amplification {:.3}\nwrite      {} of {}: {} files\n",
        plan.label,
        plan.cluster,
        plan.directory.display(),
        if plan.resumes {
            ", completing an interrupted restore"
        } else {
            ""
        },
        plan.timeline,
        wal.first_segment,
        wal.last_segment,
        HumanCount(wal.segment_count),
        wal.start_lsn,
        wal.consistent_lsn,
        timelines.join(", "),
        if plan.method == Method::Delta {
            "at most "
        } else {
            ""
        },
        BinaryBytes(plan.fetch_bytes),
        HumanCount(plan.frames),
        plan.read_amplification,
        BinaryBytes(plan.write_bytes),
        BinaryBytes(plan.cluster_bytes),
        HumanCount(plan.files),
    );
    if plan.existing_bytes > 0 {
        text.push_str(&format!(
            "compare    {} that are there; only what differs is fetched and written\n",
            BinaryBytes(plan.existing_bytes)
        ));
    }
    for (oid, directory) in &plan.tablespaces {
        text.push_str(&format!("tablespace {oid} in {}\n", directory.display()));
    }
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_header(["layer", "finished", "frames", "bytes", "needed"]);
    for layer in &plan.layers {
        table.add_row([
            layer.label.clone(),
            layer.finished_at.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
            HumanCount(layer.frames).to_string(),
            BinaryBytes(layer.fetch_bytes).to_string(),
            BinaryBytes(layer.needed_bytes).to_string(),
        ]);
    }
    text.push_str(&format!("{table}\n"));
    for note in &plan.notes {
        text.push_str(&format!("note       {note}\n"));
    }
    text
}

fn report_text(report: &RestoreReport, plan: &RestorePlan) -> String {
    let mut text = format!(
        "restored {} to {} in {:.1} s\n  {} files, {} pages written ({}), {} fetched\n",
        report.label,
        plan.directory.display(),
        report.seconds,
        HumanCount(report.files),
        HumanCount(report.pages),
        BinaryBytes(report.written_bytes),
        BinaryBytes(report.fetched_bytes),
    );
    if report.method == Method::Delta {
        text.push_str(&format!(
            "  in place: {} compared, {} files and directories removed\n",
            BinaryBytes(report.read_bytes),
            HumanCount(report.removed),
        ));
    }
    let makers = report.shares.iter().map(|one| (&one.host, one.pid));
    if let Some((shares, processes)) = shares::makers(makers) {
        text.push_str(&format!(
            "  {shares} shares, made by {processes} processes\n"
        ));
    }
    for note in &report.notes {
        text.push_str(&format!("  note: {note}\n"));
    }
    text.push_str("Start the server there; it fetches the WAL it needs.\n");
    text
}
