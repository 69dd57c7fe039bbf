//! `backup-share` and `restore-share`, and what `--shares` of a backup or a restore means.

use std::collections::BTreeSet;
use std::time::Duration;

use pgstrata_engine::error::{Error, Kind, Result};
use pgstrata_engine::shares::{HelpReport, SharedOptions};
use pgstrata_engine::{backup, restore};
use pgstrata_layer::label::Label;
use serde_json::json;

use super::Context;
use crate::args::{BackupShareArgs, RestoreShareArgs};
use crate::config::absolute;
use crate::exit;

pub(super) async fn help_backup(context: &Context, args: &BackupShareArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let file = &context.config.settings;
    let options = backup::HelpOptions {
        label: args.label.as_deref().map(label).transpose()?,
        data_directory: args.pgdata.clone(),
        jobs: context.config.jobs()?,
        max_rate: super::backup::max_rate(args.max_rate, file.max_rate.as_deref())?,
        timeout: timeout(args.share_timeout),
    };
    let report = context
        .watched("backup-share", |progress| {
            backup::help(&repository, &name, &options, progress)
        })
        .await?;
    let work = format!("backup {}", report.label);
    Ok(tell(context, "backup-share/1", (&work, "backup"), &report))
}

pub(super) async fn help_restore(context: &Context, args: &RestoreShareArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let options = restore::HelpOptions {
        directory: absolute(&args.target_dir)?,
        jobs: context.config.jobs()?,
        timeout: timeout(args.share_timeout),
    };
    let report = context
        .watched("restore-share", |progress| {
            restore::help(&repository, &name, &options, progress)
        })
        .await?;
    let work = format!("the restore of {}", report.label);
    Ok(tell(
        context,
        "restore-share/1",
        (&work, "restore"),
        &report,
    ))
}

/// Of a backup under way: there is no latest finished one to name.
fn label(text: &str) -> Result<Label> {
    Label::parse(text).ok_or_else(|| {
        Error::new(Kind::Usage, format!("\"{text}\" is not a label"))
            .hint("leave it out to help the backup under way, or take it from that one's log")
    })
}

/// Reports what a helper did of the `work`, and says how the program ends.
fn tell(context: &Context, schema: &str, (work, act): (&str, &str), report: &HelpReport) -> u8 {
    let document = json!({
        "label": report.label.to_string(),
        "share_count": report.share_count,
        "made": report.made,
        "too_late": report.too_late,
    });
    let late = report.too_late.len();
    context.report(schema, &document, || {
        let mut text = format!(
            "{} of {} shares of {work} made\n",
            report.made.len(),
            report.share_count
        );
        if late > 0 {
            text.push_str(&format!(
                "  warning  {late} more were made too late: the {act} had made them again\n"
            ));
        }
        text
    });
    match late {
        0 => 0,
        _ => exit::WARNINGS,
    }
}

/// What `--shares` and `--share-timeout` ask for; one share is none.
pub(super) fn shared(count: Option<u32>, seconds: Option<u64>) -> Option<SharedOptions> {
    let count = count.filter(|&count| count > 1)?;
    Some(SharedOptions {
        count,
        timeout: timeout(seconds),
    })
}

/// How long processes that share work wait for each other.
fn timeout(seconds: Option<u64>) -> Duration {
    // A pack of 16 MiB comes every few seconds from whoever is alive, unless it finds nothing to store.
    Duration::from_secs(seconds.unwrap_or(300))
}

/// How many shares there are, and how many processes made them; `None` when the work was not shared.
pub(super) fn makers<'a>(
    makers: impl Iterator<Item = (&'a String, u32)>,
) -> Option<(usize, usize)> {
    let makers: Vec<_> = makers.collect();
    let processes: BTreeSet<_> = makers.iter().collect();
    (!makers.is_empty()).then_some((makers.len(), processes.len()))
}
