//! `check`.

use pgstrata_engine::check::{self, CheckItem, CheckOptions, CheckReport, CheckStatus};
use pgstrata_layer::plain::plain;
use pgstrata_store::error::Result;
use pgstrata_store::keys::KeySummary;
use serde_json::{Value, json};

use super::Context;
use super::archive::Holes;
use crate::args::CheckArgs;
use crate::config::choose;
use crate::exit;

/// Something that backups need is not there: the code of a refusal.
const FAILED: u8 = 13;

pub(super) async fn run(context: &Context, args: &CheckArgs) -> Result<u8> {
    let cluster = context.cluster()?;
    let default = CheckOptions::default();
    let settings = &context.config.settings;
    let wal = choose(args.wal.wal, settings.wal.as_deref(), "wal")?;
    let timeout = context.archive_timeout(&args.wal)?;
    // A recovery needs it, months later.
    Holes::of_file(context)?;
    let options = CheckOptions {
        connection: context.connection(&args.server),
        data_directory: context.known_data_directory(&args.server),
        wal: wal.map_or(default.wal, Into::into),
        wal_timeout: timeout.unwrap_or(default.wal_timeout),
        max_age: context.max_age(args.age.backup.max_age)?,
        max_verify_age: context.max_verify_age(args.age.max_verify_age)?,
    };
    let report = check::run(&cluster, &options).await;
    let mut document = report_document(&report);
    document["keys"] = report.keys.as_ref().map_or(Value::Null, of_keys);
    print(context, ("check/1", &document), &report)
}

/// Prints a report; returns the exit code.
pub(super) fn show(context: &Context, schema: &str, report: &CheckReport) -> Result<u8> {
    print(context, (schema, &report_document(report)), report)
}

fn print(
    context: &Context,
    (schema, document): (&str, &Value),
    report: &CheckReport,
) -> Result<u8> {
    context.report(schema, document, || report.items.iter().map(line).collect())?;
    Ok(match report.status() {
        CheckStatus::Ok => 0,
        CheckStatus::Warning => exit::WARNINGS,
        CheckStatus::Failed => FAILED,
    })
}

fn report_document(report: &CheckReport) -> Value {
    let items: Vec<Value> = report.items.iter().map(document).collect();
    json!({ "status": word(report.status()), "items": items })
}

/// Who opens a sealed cluster.
fn of_keys(keys: &KeySummary) -> Value {
    json!({
        "epoch": keys.current,
        "readers": keys.readers,
        "writers": keys.writers,
        "keepers": keys.keepers,
        "own_roles": keys.own.iter().map(|role| role.as_str()).collect::<Vec<_>>(),
        "opened_up_to": keys.opened,
        "lone_epochs": keys.lone,
    })
}

fn word(status: CheckStatus) -> &'static str {
    match status {
        CheckStatus::Ok => "ok",
        CheckStatus::Warning => "warning",
        CheckStatus::Failed => "failed",
    }
}

fn document(item: &CheckItem) -> Value {
    json!({ "name": item.name, "status": word(item.status), "detail": item.detail, "hint": item.hint })
}

fn line(item: &CheckItem) -> String {
    let hint = item
        .hint
        .as_ref()
        .map(|hint| format!("{:26}to do: {}\n", "", plain(hint)));
    format!(
        "{:<8} {:<16} {}\n{}",
        word(item.status),
        item.name,
        plain(&item.detail),
        hint.unwrap_or_default()
    )
}
