//! `restore`.

use std::env;

use clap::ValueEnum;
use comfy_table::{Table, presets::NOTHING};
use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::restore::{
    self, Method, RestoreOptions, RestorePlan, RestoreReport, TablespaceMapping, Target,
    TimelineChoice,
};
use pgstrata_layer::plain::plain;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::archive::Holes;
use super::{Context, label_or_latest};
use crate::args::{ArchiveMode, AsOfArgs, RestoreArgs, TargetAction};
use crate::config::absolute;
use crate::identity::in_utf8;
use crate::progress::Act;

/// `said` is what the user was told of the repositories.
pub(super) async fn run(context: &Context, args: &RestoreArgs, said: &[String]) -> Result<u8> {
    let cluster = context.cluster_as_of(&args.as_of).await?;
    let mut options = options(context, args)?;
    // The server that recovers asks for WAL of this cluster, and of none that takes its place meanwhile. Of several
    // repositories each has a seal id of its own, and its table in the configuration file is the place for it.
    if !context.config.means_several()
        && let Some(seal_id) = cluster.unnamed_seal_id().await?
    {
        options
            .restore_command
            .insert(1, format!("--seal-id={seal_id}"));
    }
    let mut plan = restore::plan(&cluster, options).await?;
    // Before the hours that it may take: what is taken, and what is not.
    for note in plan.notes.iter().filter(|_| !args.dry_run.dry_run) {
        tracing::info!("{note}");
    }
    if let Some(withheld) = context.config.withheld() {
        tracing::warn!("{withheld}");
        plan.notes.push(withheld);
    }
    plan.notes.extend_from_slice(said);
    if args.dry_run.dry_run {
        context.report("restore-plan/1", &plan, || plan_text(&plan))?;
        return Ok(0);
    }
    let report = context
        .watched(Act::Restore, async |progress| {
            restore::execute(&plan, &progress).await
        })
        .await?;
    context.report("restore/1", &report, || report_text(&report, &plan))?;
    Ok(0)
}

/// Refuses what is to be done at a target where there is none: the server would open for writes instead.
fn require_place_to_stop(args: &RestoreArgs, target: &Target) -> Result<()> {
    let idle = match args.target_action {
        _ if target.has_stop_point() => return Ok(()),
        Some(TargetAction::Pause) => "--target-action pause",
        Some(TargetAction::Shutdown) => "--target-action shutdown",
        _ if args.target_exclusive => "--target-exclusive",
        Some(TargetAction::Promote) | None => return Ok(()),
    };
    let what = format!("{idle} needs a target: recovery to {target} stops nowhere");
    Err(Error::new(Kind::Usage, what).hint(
        "give --target-type and --target; to look at the end of the archive before anything is written, restore with --target-type \
         standby and promote later",
    ))
}

fn options(context: &Context, args: &RestoreArgs) -> Result<RestoreOptions> {
    let (target, timeline) = target_of(args)?;
    require_place_to_stop(args, &target)?;
    // The server that recovers reads the same file.
    Holes::of_file(context)?;
    let map = |(from, to): &(String, String)| {
        Ok(TablespaceMapping {
            from: from.clone(),
            to: absolute(to.as_ref())?,
        })
    };
    Ok(RestoreOptions {
        label: label_or_latest(&args.label)?,
        target,
        same_timeline: args.same_timeline,
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
        config_directory: args.config_dir.as_deref().map(absolute).transpose()?,
        restore_command: restore_command(context, &args.as_of)?,
        jobs: context.config.jobs()?,
        method: match args.delta {
            true => Method::Delta,
            false => Method::Overlay,
        },
        archive_mode: args.archive_mode.map(|mode| match mode {
            ArchiveMode::Off => restore::ArchiveMode::Off,
            ArchiveMode::Keep => restore::ArchiveMode::Keep,
        }),
        vouched: restore::Vouched {
            skip_damaged: args.skip_damaged,
            server_is_stopped: args.server_is_stopped,
            links_are_own: args.links_are_own,
        },
        others: context.config.named_directories(),
    })
}

/// Where recovery shall stop, and which timeline it follows.
pub(super) fn target_of(args: &RestoreArgs) -> Result<(Target, Option<TimelineChoice>)> {
    let timeline = args.target_timeline.as_deref().map(str::parse);
    let target = Target::parse(&spelled(args.target_type), args.target.as_deref())?;
    Ok((target, timeline.transpose()?))
}

fn spelled(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// This program, with the options of this call: what PostgreSQL runs to fetch WAL.
fn restore_command(context: &Context, as_of: &AsOfArgs) -> Result<Vec<String>> {
    let program =
        env::current_exe().context(|| "could not find this program's own path".to_owned())?;
    let mut command = vec![in_utf8(&program)?.to_owned()];
    command.extend(context.config.as_flags()?);
    command.push("archive-get".to_owned());
    let moment = as_of.repository_as_of.iter();
    command.extend(moment.map(|moment| format!("--repository-as-of={moment}")));
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
        text.push_str(&format!("note       {}\n", plain(note)));
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
    for note in &report.notes {
        text.push_str(&format!("  note: {}\n", plain(note)));
    }
    text.push_str("Start the server there; it fetches the WAL it needs.\n");
    text
}
