//! `copy`.

use std::time::Duration;

use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::mirror::{self, MirrorOptions, MirrorReport, NotCopied};
use pgstrata_layer::plain::plain;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;

use super::{Context, known_cluster, label};
use crate::args::CopyArgs;
use crate::exit;
use crate::progress::Act;

/// Small enough to lose little with the first repository, and long enough not to list all the time.
const EVERY: Duration = Duration::from_secs(10);

pub(super) async fn run(context: &Context, args: &CopyArgs) -> Result<u8> {
    let source = known_cluster(context).await?;
    let more = (args.to_credentials.clone(), args.to_storage.clone());
    let other = context.config.other(&args.to, more)?;
    let target = context.with(&other).cluster()?;
    let recipients = args.recipients.recipients()?;
    let mut options = MirrorOptions {
        labels: Vec::new(),
        jobs: context.config.jobs()?,
        recipients: (!recipients.all.is_empty()).then_some(recipients),
        data_directory: context.config.settings.pgdata.clone(),
    };
    for text in &args.labels {
        options.labels.push(label(&source, text).await?);
    }
    if args.dry_run.dry_run {
        let plan = mirror::plan(&source, &target, &options).await?;
        context.report("copy/1", &plan, || text(&plan))?;
        return Ok(code(&plan, &options));
    }
    let (report, failed) = context
        .watched(Act::Copy, async |progress| match args.follow {
            false => {
                let report = mirror::execute(&source, &target, &options, &progress).await?;
                warn_of(&report.left_out, &[]);
                Ok((report, None))
            }
            true => {
                let every = args.every.unwrap_or(EVERY);
                follow(context, args, &options, (every, &progress)).await
            }
        })
        .await?;
    context.report("copy/1", &report, || text(&report))?;
    // An error would be a second document.
    Ok(match failed {
        Some(error) => {
            tracing::error!("the last round of the copy failed: {error}");
            exit::code(error.kind())
        }
        None => code(&report, &options),
    })
}

/// Copies until somebody stops it, whatever becomes of the repositories meanwhile; answers what was copied in all, and why the
/// last round failed, if it did.
async fn follow(
    context: &Context,
    args: &CopyArgs,
    options: &MirrorOptions,
    (every, progress): (Duration, &Progress),
) -> Result<(MirrorReport, Option<Error>)> {
    let mut report = MirrorReport::default();
    let mut failed = None;
    loop {
        let known = report.left_out.clone();
        let opened = both(context, args);
        // When both could be opened before, a file that says how is being written, or was taken away for a while.
        let is_shut = opened.is_err();
        let copied = match opened {
            Ok((source, target)) => {
                mirror::again(&source, &target, options, progress, &mut report).await
            }
            Err(error) => Err(error),
        };
        match copied {
            Ok(()) => {
                failed = None;
                warn_of(&report.left_out, &known);
            }
            Err(error) if error.kind() == Kind::Interrupted && report.done => {}
            Err(error) if report.done && (is_shut || passes(&error)) => {
                let advice = advice(error.hint_text());
                tracing::warn!("could not copy, and will try again: {error}{advice}");
                failed = Some(error);
            }
            Err(error) => return Err(error),
        }
        let end = tokio::time::Instant::now() + every;
        while tokio::time::Instant::now() < end && !progress.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(100).min(every)).await;
        }
        if progress.is_cancelled() {
            return Ok((report, failed));
        }
    }
}

/// Opened anew, because what is known of a cluster is found out once.
fn both(context: &Context, args: &CopyArgs) -> Result<(ClusterRepository, ClusterRepository)> {
    let more = (args.to_credentials.clone(), args.to_storage.clone());
    let other = context.config.other(&args.to, more)?;
    Ok((context.cluster()?, context.with(&other).cluster()?))
}

/// Whether trying again may help.
fn passes(error: &Error) -> bool {
    matches!(
        error.kind(),
        Kind::Repository | Kind::Busy | Kind::NotFound | Kind::Damaged
    )
}

/// Says which layers are left out, but for those of which that was said.
fn warn_of(left_out: &[NotCopied], known: &[NotCopied]) {
    for left in left_out.iter().filter(|left| !known.contains(left)) {
        let advice = advice(left.hint.as_deref());
        tracing::warn!("{} is left out: {}{advice}", left.label, left.why);
    }
}

/// What can be done, at the end of a line that says what is wrong.
fn advice(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!("; {hint}"))
}

/// What is broken, and a layer that was asked for, are errors. Of a copy of everything a layer that was removed meanwhile,
/// or whose label cannot be had there, is a warning.
fn code(report: &MirrorReport, options: &MirrorOptions) -> u8 {
    let all = options.labels.is_empty();
    let error = report.left_out.iter().find(|left| !(all && left.is_sound));
    match error {
        Some(left) => exit::code(left.kind),
        None if report.left_out.is_empty() => 0,
        None => exit::WARNINGS,
    }
}

fn text(report: &MirrorReport) -> String {
    let act = match report.done {
        true => "copied",
        false => "would copy",
    };
    let mut text = format!("{act} out of {} into {}\n", report.from, report.to);
    if report.new_cluster {
        text.push_str("  the cluster is new there\n");
    }
    for layer in &report.layers {
        text.push_str(&format!(
            "  layer    {}: {} objects, {}\n",
            layer.label,
            HumanCount(layer.objects),
            BinaryBytes(layer.bytes)
        ));
    }
    text.push_str(&format!(
        "  WAL      {} files, {}\n  records  {}\n  present  {} layers\n",
        HumanCount(report.wal_files),
        BinaryBytes(report.wal_bytes),
        HumanCount(report.records),
        HumanCount(report.present),
    ));
    if report.key_boxes > 0 {
        text.push_str(&format!(
            "  keys     {} key boxes for recipients of the copy\n",
            HumanCount(report.key_boxes)
        ));
    }
    for left in &report.left_out {
        text.push_str(&format!(
            "  left out {}: {}\n",
            left.label,
            plain(&left.why)
        ));
    }
    text
}
