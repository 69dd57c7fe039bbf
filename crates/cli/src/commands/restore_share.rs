//! `restore-share`.

use pgstrata_engine::error::Result;
use pgstrata_engine::progress::Progress;
use pgstrata_engine::restore::{self, HelpOptions, HelpReport};
use serde_json::{Value, json};

use super::Context;
use crate::args::RestoreShareArgs;
use crate::config::absolute;
use crate::exit;
use crate::progress::Display;

pub(super) async fn run(context: &Context, args: &RestoreShareArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let options = HelpOptions {
        directory: absolute(&args.target_dir)?,
        jobs: context.config.jobs()?,
        timeout: super::backup::share_timeout(args.share_timeout),
    };
    let progress = Progress::default();
    super::stop_on_signal(&progress);
    let display = Display::start("restore-share", &progress, context.wants_progress);
    let outcome = restore::help(&repository, &name, &options, progress).await;
    drop(display);
    let report = outcome?;
    context.report("restore-share/1", &document(&report), || text(&report));
    Ok(match report.too_late.is_empty() {
        true => 0,
        false => exit::WARNINGS,
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
        "{} of {} shares of the restore of {} made\n",
        report.made.len(),
        report.share_count,
        report.label
    );
    if !report.too_late.is_empty() {
        text.push_str(&format!(
            "  warning  {} more were made too late: the restore had made them again\n",
            report.too_late.len()
        ));
    }
    text
}
