//! `backup`.

use futures::future::{join, join_all};
use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::backup::{
    self, AuditOptions, BackupOptions, BackupPlan, BackupReport, BackupType as Kind,
    ChangeSourceChoice, CorruptPagePolicy, HarmlessPages, StartCheckpoint, WalMode as Wal,
};
use pgstrata_engine::mirror::{self, Labels, MirrorOptions};
use pgstrata_engine::server::ConnectionOptions;
use pgstrata_layer::manifest::ChangeSource;
use pgstrata_layer::plain::plain;
use pgstrata_store::error::{Error, Kind as Failure, Result};
use pgstrata_store::progress::Progress;
use serde_json::{Value, json};

use super::repositories::ANSWERS_WITHIN;
use super::{Context, stop_on_signal};
use crate::args::{
    BackupArgs, BackupType, CheckpointPace, CorruptPolicy, ImpactLevel, Source, WalMode,
};
use crate::config::{choose, from_file};
use crate::exit;
use crate::progress::{Act, Display};
use crate::value::{parse_percent, parse_size};

pub(super) async fn run(context: &Context, args: &BackupArgs) -> Result<u8> {
    let cluster = context.cluster()?;
    let options = options(context, args)?;
    if args.dry_run.dry_run {
        let plan = backup::plan(&cluster, &options).await?;
        context.report("backup-plan/1", &plan_document(&plan), || plan_text(&plan))?;
        return Ok(0);
    }
    let report = context
        .watched(Act::Backup, |progress| {
            backup::run(&cluster, &options, progress)
        })
        .await?;
    context.report("backup/1", &report_document(&report), || {
        report_text(&report)
    })?;
    let warned = !report.corrupt_pages.is_empty() || !report.warnings.is_empty();
    Ok(if warned { exit::WARNINGS } else { 0 })
}

/// Takes one backup into several repositories: it is stored in the first that takes it, and the others get it from there,
/// so the server is read once.
pub(super) async fn run_in_several(several: &[Context], args: &BackupArgs) -> Result<u8> {
    let progress = Progress::default();
    stop_on_signal(&progress);
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut taken = None;
    // One that stalls costs its time once, and not again with each thing that it is asked.
    let ask = several.iter().map(|one| one.require_answer(ANSWERS_WITHIN));
    let (before, answers) = join(all_labels(several, |_| true), join_all(ask)).await;
    let mut silent: Vec<Option<Error>> = answers.into_iter().map(Result::err).collect();
    for (at, context) in several.iter().enumerate() {
        // A directory that is not mounted has no such cluster.
        let is_there = async {
            if let Some(error) = silent[at].take() {
                return Err(error);
            }
            let cluster = context.cluster()?;
            cluster.record().await?;
            cluster.sealing().await.map(|_| ())
        };
        if let Err(error) = is_there.await {
            tracing::warn!("could not back up into {}: {error}", named(context));
            outcomes.push(Outcome::of(context, "failed", Some(error)));
            continue;
        }
        let others = several.iter().zip(&silent).skip(at + 1);
        let others = others.filter_map(|(other, error)| error.is_none().then_some(other));
        match take(context, others, args, &progress).await {
            Ok(report) => {
                taken = Some((at, report));
                break;
            }
            Err(error) if is_of_repository(&error) => {
                tracing::warn!("could not back up into {}: {error}", named(context));
                outcomes.push(Outcome::of(context, "failed", Some(error)));
            }
            Err(error) => return Err(error),
        }
    }
    let Some((first, mut report)) = taken else {
        let first = outcomes.into_iter().find_map(|outcome| outcome.error);
        let none = || Error::new(Failure::Usage, "there is no repository");
        return Err(first.unwrap_or_else(none));
    };
    outcomes.push(Outcome::of(&several[first], "stored", None));
    for context in &several[first + 1..] {
        let copied = copy_to(&several[first], context, &report, &progress).await;
        outcomes.push(Outcome::of_copy(context, copied));
    }
    for what in missed(several, &before).await {
        tracing::warn!("{what}");
        report.warnings.push(what);
    }
    let context = &several[first];
    let mut document = report_document(&report);
    document["repositories"] = outcomes.iter().map(Outcome::document).collect();
    context.report("backup/1", &document, || {
        let lines = outcomes.iter().map(Outcome::text);
        format!("{}{}", report_text(&report), lines.collect::<String>())
    })?;
    let failed = outcomes.iter().any(|outcome| outcome.error.is_some());
    let warned = !report.corrupt_pages.is_empty() || !report.warnings.is_empty();
    Ok(if warned || failed { exit::WARNINGS } else { 0 })
}

/// The labels that there are in each; nothing of one that does not answer in time, or is not to be asked.
async fn all_labels(several: &[Context], is_asked: impl Fn(usize) -> bool) -> Vec<Option<Labels>> {
    let asked = &is_asked;
    let all = several.iter().enumerate().map(async |(at, context)| {
        let cluster = context.cluster().ok().filter(|_| asked(at))?;
        let asked = tokio::time::timeout(ANSWERS_WITHIN, mirror::labels(&cluster));
        asked.await.ok()?.ok()
    });
    join_all(all).await
}

/// What each repository has missed that another has, and still lacks after this backup, in words.
async fn missed(several: &[Context], all_before: &[Option<Labels>]) -> Vec<String> {
    let present = all_labels(several, |at| all_before[at].is_some()).await;
    let (none, mut said) = (Labels::default(), Vec::new());
    for ((context, before), now) in several.iter().zip(all_before).zip(&present) {
        let (Some(before), Some(now)) = (before, now) else {
            continue;
        };
        for ((other, held_before), held) in several.iter().zip(all_before).zip(&present) {
            let (Ok(holder), Some(held)) = (other.cluster(), held) else {
                continue;
            };
            let held_before = held_before.as_ref().unwrap_or(&none);
            // Who does not answer has been named.
            let missed = mirror::missed((&holder, held_before, held), (before, now))
                .await
                .unwrap_or_default();
            let Some(last) = missed.last() else { continue };
            let (name, other) = (named(context), named(other));
            let layers = match missed.len() {
                1 => "1 layer".to_owned(),
                more => format!("{more} layers"),
            };
            said.push(format!(
                "{name} lacks {layers} that {other} has, up to {last}, and perhaps WAL of that time: it has missed them, and \
                 \"pgstrata --repo {other} copy --to {name}\" brings them"
            ));
            break;
        }
    }
    said
}

/// Whether it is the matter with this repository alone.
fn is_of_repository(error: &Error) -> bool {
    matches!(error.kind(), Failure::Repository | Failure::Damaged)
        || error.is_lack_of_key()
        || error.is_of_other_cluster()
}

/// Takes the backup into one; the others get its objects meanwhile.
async fn take(
    context: &Context,
    others: impl Iterator<Item = &Context>,
    args: &BackupArgs,
    progress: &Progress,
) -> Result<BackupReport> {
    let cluster = context.cluster()?;
    let mut options = options(context, args)?;
    // Why one cannot be opened is said when the backup is to be copied there.
    let others: Vec<_> = others.filter_map(|other| other.cluster().ok()).collect();
    options.archives.clone_from(&others);
    options.siblings = mirror::siblings(&cluster, others).await?;
    let shown = progress.clone();
    let _display = Display::start(Act::Backup, &shown, context.wants_progress);
    backup::run(&cluster, &options, shown.clone()).await
}

/// Brings a backup from where it was stored into another repository, with what it stands on that is not there. Answers how
/// many objects that took.
async fn copy_to(
    from: &Context,
    to: &Context,
    report: &BackupReport,
    progress: &Progress,
) -> Result<u64> {
    if progress.is_cancelled() {
        return Err(Error::new(Failure::Interrupted, "the command was stopped"));
    }
    to.require_answer(ANSWERS_WITHIN).await?;
    let (source, target) = (from.cluster()?, to.cluster()?);
    // A repository that nobody has prepared is a mistake, and not one to fill.
    target.record().await?;
    let options = MirrorOptions {
        labels: vec![report.label.clone()],
        jobs: from.config.jobs()?,
        recipients: None,
        data_directory: None,
    };
    let _display = Display::start(Act::Copy, progress, from.wants_progress);
    let copied = mirror::execute(&source, &target, &options, progress).await?;
    match copied.left_out.first() {
        None => Ok(copied.layers.iter().map(|layer| layer.objects).sum()),
        Some(left) => {
            let error = Error::new(left.kind, format!("{}: {}", left.label, left.why));
            Err(match &left.hint {
                Some(hint) => error.hint(hint),
                None => error,
            })
        }
    }
}

/// What became of the backup in one repository.
struct Outcome {
    name: String,
    url: String,
    state: &'static str,
    copied_objects: Option<u64>,
    error: Option<Error>,
}

impl Outcome {
    fn of(context: &Context, state: &'static str, error: Option<Error>) -> Self {
        let url = context.config.url();
        Self {
            name: named(context),
            url: url.map(str::to_owned).unwrap_or_default(),
            state,
            copied_objects: None,
            error,
        }
    }

    /// What has become of the copy of a backup.
    fn of_copy(context: &Context, copied: Result<u64>) -> Self {
        match copied {
            Ok(objects) => Self {
                copied_objects: Some(objects),
                ..Self::of(context, "copied", None)
            },
            Err(error) => {
                tracing::warn!("the backup is not in {}: {error}", named(context));
                Self::of(context, "failed", Some(error))
            }
        }
    }

    fn document(&self) -> Value {
        json!({
            "name": self.name,
            "url": self.url,
            "state": self.state,
            "copied_objects": self.copied_objects,
            "error": self.error.as_ref().map(ToString::to_string),
        })
    }

    fn text(&self) -> String {
        match &self.error {
            None => format!("  {:<8} in {}, {}\n", self.state, self.name, self.url),
            Some(error) => {
                let copy = format!(
                    "\"pgstrata --repo NAME copy --to {}\" brings it there from a repository that has it",
                    self.name
                );
                // What is refused stays refused until somebody does something about it: a copy is refused too.
                let refused = matches!(
                    error.kind(),
                    Failure::Refused
                        | Failure::Unsupported
                        | Failure::Usage
                        | Failure::AlreadyExists
                );
                let to_do = match (refused, error.hint_text()) {
                    (true, hint) => hint.map(str::to_owned),
                    // A copy would make it anew, also below a mount point.
                    (false, Some(hint)) if error.kind() == Failure::NotFound => {
                        Some(format!("{hint}; then {copy}"))
                    }
                    (false, _) => Some(copy),
                };
                let to_do = to_do.map(|to_do| format!("           {to_do}\n"));
                format!(
                    "  failed   in {}, {}: {}\n{}",
                    self.name,
                    self.url,
                    plain(&error.to_string()),
                    to_do.unwrap_or_default()
                )
            }
        }
    }
}

fn named(context: &Context) -> String {
    context.config.name().unwrap_or_default().to_owned()
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
    let source = source.map_or(default.change_source, Into::into);
    let is_other = !matches!(
        source,
        ChangeSourceChoice::Auto | ChangeSourceChoice::Tracker
    );
    if args.require_tracker && is_other {
        let what =
            "--require-tracker asks for the page tracker, and --change-source for another source";
        return Err(Error::new(Failure::Usage, what).hint("leave out one of them"));
    }
    let wal = choose(args.wal.wal, file.wal.as_deref(), "wal")?;
    let policy = choose(
        args.on_corrupt_page,
        file.on_corrupt_page.as_deref(),
        "on-corrupt-page",
    )?;
    let pace = choose(args.checkpoint, file.checkpoint.as_deref(), "checkpoint")?;
    let impact = context.impact(args.impact)?;
    let timeout = context.archive_timeout(&args.wal)?;
    let primary = args.primary.as_ref().or(file.primary.as_ref());
    Ok(BackupOptions {
        connection: context.connection(&args.server),
        data_directory: Some(context.data_directory(&args.server)?),
        primary: primary
            .cloned()
            .map(|conninfo| ConnectionOptions { conninfo }),
        backup_type: kind.map_or(default.backup_type, Into::into),
        change_source: source,
        // Who names another source beside the file's wish means that.
        require_tracker: args.require_tracker || file.require_tracker == Some(true) && !is_other,
        audit: audit(args, file.audit.as_deref())?,
        codec: context.codec(&args.compress)?,
        jobs: context.config.jobs()?,
        wal: wal.map_or(default.wal, Into::into),
        wal_timeout: timeout.unwrap_or(default.wal_timeout),
        checkpoint: match (pace, impact) {
            (Some(pace), _) => pace.into(),
            (None, ImpactLevel::Low) => StartCheckpoint::Spread,
            (None, ImpactLevel::Auto) => StartCheckpoint::Auto,
            (None, ImpactLevel::None) => StartCheckpoint::Fast,
        },
        on_corrupt_page: policy.map_or(default.on_corrupt_page, Into::into),
        check_page_headers: !(args.no_page_header_check || file.no_page_header_check == Some(true)),
        max_rate: from_file(
            args.max_rate,
            file.max_rate.as_deref(),
            "max-rate",
            parse_size,
        )?,
        impact: impact.into(),
        others: context.config.named_directories(),
        ..default
    })
}

fn audit(args: &BackupArgs, file: Option<&str>) -> Result<Option<AuditOptions>> {
    let share = from_file(args.audit, file, "audit", parse_percent)?;
    Ok(share.map(|per_million| AuditOptions {
        per_million,
        seed: args.audit_seed,
    }))
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

impl From<CheckpointPace> for StartCheckpoint {
    fn from(pace: CheckpointPace) -> Self {
        match pace {
            CheckpointPace::Auto => Self::Auto,
            CheckpointPace::Fast => Self::Fast,
            CheckpointPace::Spread => Self::Spread,
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
        "checkpoint": plan.checkpoint.to_string(),
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
        "would take  {} backup: {}\nparent      {parent}\nchanges     {}\ncheckpoint  {}\nWAL         {}\nreads       {}: {} files, {}\nworkers     {}\n",
        plan.kind.as_str(),
        plan.type_reason,
        plan.change_source.reason,
        plan.checkpoint,
        plan.wal,
        plan.data_directory.display(),
        HumanCount(plan.file_count),
        BinaryBytes(plan.size_bytes),
        plan.jobs,
    );
    for warning in &plan.warnings {
        text.push_str(&format!("warning     {}\n", plain(warning)));
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
            "pages": audit.pages, "seed": audit.seed,
            "harmless": {
                "hint_bits": audit.harmless.hint_bits,
                "logged_hint_bits": audit.harmless.logged_hint_bits,
                "all_visible": audit.harmless.all_visible,
                "last_used_pages": audit.harmless.last_used_pages,
                "empty_pages": audit.harmless.empty_pages,
            },
        })),
        "checkpoint": report.checkpoint.to_string(),
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
        "phases": report.phases.iter().map(|phase| json!({
            "name": phase.name, "seconds": phase.took.as_secs_f64(),
        })).collect::<Vec<_>>(),
    })
}

/// One line on what differs and loses nothing, if there is any.
fn harmless_text(harmless: &HarmlessPages) -> String {
    let kinds = [
        (harmless.hint_bits, "hint bits"),
        (harmless.logged_hint_bits, "logged hint bits"),
        (harmless.all_visible, "all-visible flags"),
        (harmless.last_used_pages, "last used pages of SP-GiST"),
        (harmless.empty_pages, "pages made empty"),
    ];
    let found = kinds.iter().filter(|(count, _)| *count > 0);
    let found: Vec<String> = found
        .map(|(count, kind)| format!("{} in {kind}", HumanCount(*count)))
        .collect();
    if found.is_empty() {
        return String::new();
    }
    format!(
        "           except for changes that need no WAL: {}\n",
        found.join(", ")
    )
}

/// How many pages may have changed, and what says so; of a full backup there is nothing to say.
fn marked_text(report: &BackupReport) -> String {
    match report.change_source.used {
        ChangeSource::Everything => String::new(),
        source => format!(
            "; {} says that {} may have changed",
            source.as_str(),
            HumanCount(report.totals.pages_marked)
        ),
    }
}

fn report_text(report: &BackupReport) -> String {
    let totals = &report.totals;
    let took = report
        .finished_at
        .duration_since(report.started_at)
        .as_secs_f64();
    let mut text = format!(
        "backup {}, {} in {took:.1} s\n  pages    {} of {} stored{}\n  bytes    {} in the cluster, {} read, {} stored\n  WAL      {} to {} on timeline {}\n",
        report.label,
        report.label.kind().as_str(),
        HumanCount(totals.pages_stored),
        HumanCount(totals.relation_blocks),
        marked_text(report),
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
    if let Some(audit) = &report.audit {
        text.push_str(&format!(
            "  audit    {} unchanged pages are the same in the parent; seed {}\n",
            HumanCount(audit.pages),
            audit.seed
        ));
        text.push_str(&harmless_text(&audit.harmless));
    }
    for page in &report.corrupt_pages {
        text.push_str(&format!(
            "  corrupt  {} block {}: {}\n",
            page.path, page.block, page.reason
        ));
    }
    for warning in &report.warnings {
        text.push_str(&format!("  warning  {}\n", plain(warning)));
    }
    text
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use pgstrata_engine::backup::{CheckpointChoice, WalChoice};
    use pgstrata_layer::label::Label;
    use pgstrata_layer::manifest::{ChangeSourceRecord, Totals};
    use pgstrata_pgdata::{Lsn, TimelineId};

    use super::*;

    /// A backup of 2,900 pages, of which 2,798 are marked and 1,500 stored.
    fn report(label: &str, used: ChangeSource) -> BackupReport {
        BackupReport {
            label: Label::parse(label).unwrap(),
            parent: None,
            type_reason: String::new(),
            change_source: ChangeSourceRecord {
                used,
                reason: String::new(),
            },
            audit: None,
            checkpoint: CheckpointChoice {
                is_spread: false,
                reason: String::new(),
            },
            wal: WalChoice {
                streams: false,
                reason: String::new(),
                trouble: None,
                unknown: Vec::new(),
            },
            wal_segments_stored: 0,
            start_lsn: Lsn::new(0x0100_0028),
            stop_lsn: Lsn::new(0x0100_0138),
            timeline: TimelineId::FIRST,
            from_standby: false,
            totals: Totals {
                relation_blocks: 2900,
                pages_marked: 2798,
                pages_stored: 1500,
                ..Totals::default()
            },
            pack_count: 1,
            pack_bytes: 0,
            corrupt_pages: Vec::new(),
            warnings: Vec::new(),
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Timestamp::UNIX_EPOCH,
            phases: Vec::new(),
        }
    }

    /// Everything is stored in a full backup, so nobody has called pages changed.
    #[test]
    fn only_a_change_source_says_how_many_pages_may_have_changed() {
        let increment = "20261121-093305F_20261122-093305I";
        for (label, used, expected) in [
            ("20261121-093305F", ChangeSource::Everything, ""),
            (
                increment,
                ChangeSource::Tracker,
                "; tracker says that 2,798 may have changed",
            ),
            (
                increment,
                ChangeSource::Lsn,
                "; lsn says that 2,798 may have changed",
            ),
        ] {
            let text = report_text(&report(label, used));
            let pages = text.lines().find(|line| line.starts_with("  pages"));
            let expected = format!("  pages    1,500 of 2,900 stored{expected}");
            assert_eq!(pages, Some(expected.as_str()), "{text}");
        }
    }
}
