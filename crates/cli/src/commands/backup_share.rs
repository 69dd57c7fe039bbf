//! `backup-share`.

use pgstrata_engine::backup::{self, HelpOptions, HelpReport};
use pgstrata_engine::error::{Error, Kind, Result};
use pgstrata_engine::progress::Progress;
use pgstrata_layer::label::Label;
use serde_json::{Value, json};

use super::Context;
use crate::args::BackupShareArgs;
use crate::exit;
use crate::progress::Display;

pub(super) async fn run(context: &Context, args: &BackupShareArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let file = &context.config.settings;
    let options = HelpOptions {
        label: args.label.as_deref().map(label).transpose()?,
        data_directory: args.pgdata.clone(),
        jobs: context.config.jobs()?,
        max_rate: super::backup::max_rate(args.max_rate, file.max_rate.as_deref())?,
        timeout: super::backup::share_timeout(args.share_timeout),
    };
    let progress = Progress::default();
    super::stop_on_signal(&progress);
    let display = Display::start("backup-share", &progress, context.wants_progress);
    let outcome = backup::help(&repository, &name, &options, progress).await;
    drop(display);
    let report = outcome?;
    context.report("backup-share/1", &document(&report), || text(&report));
    Ok(match report.too_late.is_empty() {
        true => 0,
        false => exit::WARNINGS,
    })
}

/// Of a backup under way: there is no latest finished one to name.
fn label(text: &str) -> Result<Label> {
    Label::parse(text).ok_or_else(|| {
        Error::new(Kind::Usage, format!("\"{text}\" is not a label"))
            .hint("leave it out to help the backup under way, or take it from that one's log")
    })
}

fn document(report: &HelpReport) -> Value {
    json!({
        "label": report.label.to_string(),
        "share_count": report.share_count,
        "made": report.made,
        "too_late": report.too_late,
    })
}

fn text(report: &HelpReport) -> String {
    let mut text = format!(
        "{} of {} shares of backup {} made\n",
        report.made.len(),
        report.share_count,
        report.label
    );
    if !report.too_late.is_empty() {
        text.push_str(&format!(
            "  warning  {} more were made too late: the backup had made them again\n",
            report.too_late.len()
        ));
    }
    text
}
