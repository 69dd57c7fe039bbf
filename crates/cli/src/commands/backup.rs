//! `backup`.

use std::time::Duration;

use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::backup::{
    self, AuditOptions, BackupOptions, BackupPlan, BackupReport, BackupType as Kind,
    ChangeSourceChoice, CorruptPagePolicy, WalMode as Wal,
};
use pgstrata_engine::error::{Error, Kind as ErrorKind, Result};
use serde_json::{Value, json};

use super::{Context, shares};
use crate::args::{BackupArgs, BackupType, CheckpointPace, CorruptPolicy, Source, WalMode};
use crate::config::choose;
use crate::exit;
use crate::value::{parse_percent, parse_size};

pub(super) async fn run(context: &Context, args: &BackupArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let options = options(context, args)?;
    if args.dry_run {
        let plan = backup::plan(&repository, &name, &options).await?;
        context.report("backup-plan/1", &plan_document(&plan), || plan_text(&plan));
        return Ok(0);
    }
    let report = context
        .watched("backup", |progress| {
            backup::run(&repository, &name, &options, progress)
        })
        .await?;
    context.report("backup/1", &report_document(&report), || {
        report_text(&report)
    });
    let warned = !report.corrupt_pages.is_empty() || !report.warnings.is_empty();
    Ok(if warned { exit::WARNINGS } else { 0 })
}

fn options(context: &Context, args: &BackupArgs) -> Result<BackupOptions> {
    let file = &context.config.settings;
    let default = BackupOptions::default();
    let kind = choose(args.kind, file.kind.as_deref(), "type")?;
    let source = choose(
        args.change_source,
        file.change_source.as_deref(),
        "change-source",
    )?;
    let wal = choose(args.wal, file.wal.as_deref(), "wal")?;
    let policy = choose(
        args.on_corrupt_page,
        file.on_corrupt_page.as_deref(),
        "on-corrupt-page",
    )?;
    let pace = choose(args.checkpoint, file.checkpoint.as_deref(), "checkpoint")?;
    let timeout = args
        .archive_timeout
        .or(file.archive_timeout)
        .map(Duration::from_secs);
    Ok(BackupOptions {
        connection: context.connection(&args.server),
        data_directory: Some(context.data_directory(&args.server)?),
        backup_type: kind.map_or(default.backup_type, Into::into),
        change_source: source.map_or(default.change_source, Into::into),
        require_tracker: args.require_tracker || file.require_tracker == Some(true),
        audit: audit(args, file.audit.as_deref())?,
        codec: context.codec(args.compress.as_deref())?,
        jobs: context.config.jobs()?,
        wal: wal.map_or(default.wal, Into::into),
        wal_timeout: timeout.unwrap_or(default.wal_timeout),
        fast_checkpoint: pace != Some(CheckpointPace::Spread),
        on_corrupt_page: policy.map_or(default.on_corrupt_page, Into::into),
        check_page_headers: !(args.no_page_header_check || file.no_page_header_check == Some(true)),
        max_rate: max_rate(args.max_rate, file.max_rate.as_deref())?,
        shares: shares::shared(args.shares, args.share_timeout),
        ..default
    })
}

fn audit(args: &BackupArgs, file: Option<&str>) -> Result<Option<AuditOptions>> {
    let from_file = || {
        file.map(parse_percent)
            .transpose()
            .map_err(|why| Error::new(ErrorKind::Usage, format!("could not read audit: {why}")))
    };
    let share = match args.audit {
        Some(share) => Some(share),
        None => from_file()?,
    };
    Ok(share.map(|per_million| AuditOptions {
        per_million,
        seed: args.audit_seed,
    }))
}

pub(super) fn max_rate(flag: Option<u64>, file: Option<&str>) -> Result<Option<u64>> {
    match (flag, file) {
        (Some(rate), _) => Ok(Some(rate)),
        (None, None) => Ok(None),
        (None, Some(text)) => parse_size(text).map(Some).map_err(|why| {
            Error::new(
                ErrorKind::Usage,
                format!("\"{text}\" is not a value of max-rate: {why}"),
            )
        }),
    }
}

impl From<BackupType> for Kind {
    fn from(kind: BackupType) -> Self {
        match kind {
            BackupType::Auto => Self::Auto,
            BackupType::Full => Self::Full,
            BackupType::Diff => Self::Differential,
            BackupType::Incr => Self::Incremental,
        }
    }
}

impl From<Source> for ChangeSourceChoice {
    fn from(source: Source) -> Self {
        match source {
            Source::Auto => Self::Auto,
            Source::Tracker => Self::Tracker,
            Source::Summary => Self::Summary,
            Source::Lsn => Self::Lsn,
            Source::Digest => Self::Digest,
        }
    }
}

impl From<WalMode> for Wal {
    fn from(mode: WalMode) -> Self {
        match mode {
            WalMode::Auto => Self::Auto,
            WalMode::Archive => Self::Archive,
            WalMode::Stream => Self::Stream,
        }
    }
}

impl From<CorruptPolicy> for CorruptPagePolicy {
    fn from(policy: CorruptPolicy) -> Self {
        match policy {
            CorruptPolicy::Warn => Self::Warn,
            CorruptPolicy::Fail => Self::Fail,
        }
    }
}

fn plan_document(plan: &BackupPlan) -> Value {
    json!({
        "type": plan.kind.as_str(),
        "type_reason": plan.type_reason,
        "parent": plan.parent.as_ref().map(ToString::to_string),
        "change_source": plan.change_source,
        "wal": plan.wal.to_string(),
        "data_directory": plan.data_directory,
        "from_standby": plan.from_standby,
        "files": plan.file_count,
        "size_bytes": plan.size_bytes,
        "jobs": plan.jobs,
        "warnings": plan.warnings,
    })
}

fn plan_text(plan: &BackupPlan) -> String {
    let parent = plan
        .parent
        .as_ref()
        .map_or_else(|| "none".to_owned(), ToString::to_string);
    let mut text = format!(
        "would take  {} backup: {}\nparent      {parent}\nchanges     {}\nWAL         {}\nreads       {}: {} files, {}\nworkers     {}\n",
        plan.kind.as_str(),
        plan.type_reason,
        plan.change_source.reason,
        plan.wal,
        plan.data_directory.display(),
        HumanCount(plan.file_count),
        BinaryBytes(plan.size_bytes),
        plan.jobs,
    );
    for warning in &plan.warnings {
        text.push_str(&format!("warning     {warning}\n"));
    }
    text
}

fn report_document(report: &BackupReport) -> Value {
    json!({
        "label": report.label.to_string(),
        "type": report.label.kind().as_str(),
        "type_reason": report.type_reason,
        "parent": report.parent.as_ref().map(ToString::to_string),
        "change_source": report.change_source,
        "audit": report.audit.as_ref().map(|audit| json!({
            "pages": audit.pages, "pages_with_hints": audit.pages_with_hints, "seed": audit.seed,
        })),
        "wal": report.wal.to_string(),
        "wal_segments_stored": report.wal_segments_stored,
        "start_lsn": report.start_lsn,
        "stop_lsn": report.stop_lsn,
        "timeline": report.timeline,
        "from_standby": report.from_standby,
        "totals": report.totals,
        "pack_count": report.pack_count,
        "pack_bytes": report.pack_bytes,
        "corrupt_pages": report.corrupt_pages,
        "warnings": report.warnings,
        "started_at": report.started_at,
        "finished_at": report.finished_at,
        "shares": report.shares.iter().map(|share| json!({
            "number": share.number, "host": share.host, "pid": share.pid,
            "bytes_read": share.bytes_read, "pages_stored": share.pages_stored,
        })).collect::<Vec<_>>(),
        "phases": report.phases.iter().map(|phase| json!({
            "name": phase.name, "seconds": phase.took.as_secs_f64(),
        })).collect::<Vec<_>>(),
    })
}

fn report_text(report: &BackupReport) -> String {
    let totals = &report.totals;
    let took = report
        .finished_at
        .duration_since(report.started_at)
        .as_secs_f64();
    let mut text = format!(
        "backup {}, {} in {took:.1} s\n  pages    {} of {} stored, {} marked by {}\n  bytes    {} of cluster, {} read, {} stored\n  WAL      {} to {} on timeline {}\n",
        report.label,
        report.label.kind().as_str(),
        HumanCount(totals.pages_stored),
        HumanCount(totals.relation_blocks),
        HumanCount(totals.pages_marked),
        report.change_source.used.as_str(),
        BinaryBytes(totals.cluster_bytes),
        BinaryBytes(totals.bytes_read),
        BinaryBytes(report.pack_bytes),
        report.start_lsn,
        report.stop_lsn,
        report.timeline,
    );
    let phases = report.phases.iter();
    let phases: Vec<_> = phases
        .map(|phase| format!("{} {:.0}", phase.name, phase.took.as_secs_f64() * 1000.0))
        .collect();
    text.push_str(&format!("  time     {} ms\n", phases.join(", ")));
    let makers = report.shares.iter().map(|one| (&one.host, one.pid));
    if let Some((shares, processes)) = shares::makers(makers) {
        text.push_str(&format!(
            "  shares   {shares}, made by {processes} processes\n"
        ));
    }
    if let Some(audit) = &report.audit {
        text.push_str(&format!(
            "  audit    {} unchanged pages are as in the parent, {} of them but for hint bits; seed {}\n",
            HumanCount(audit.pages),
            HumanCount(audit.pages_with_hints),
            audit.seed
        ));
    }
    for page in &report.corrupt_pages {
        text.push_str(&format!(
            "  corrupt  {} block {}: {}\n",
            page.path, page.block, page.reason
        ));
    }
    for warning in &report.warnings {
        text.push_str(&format!("  warning  {warning}\n"));
    }
    text
}
