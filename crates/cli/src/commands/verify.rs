//! `verify`.

use std::time::Duration;

use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::health::{Alarm, AlarmKind};
use pgstrata_engine::info::server::{self, ServerHealth};
use pgstrata_engine::info::{self, InfoOptions};
use pgstrata_engine::verify::{
    self, Finding, Scope, Severity, VerifiedLayer, VerifyOptions, VerifyReport,
};
use pgstrata_layer::plain::plain;
use pgstrata_pgdata::TimelineId;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;
use serde_json::{Value, json};

use super::{Context, alarm_lines, known, label_or_all, not_looked_at_lines};
use crate::args::VerifyArgs;
use crate::exit;
use crate::progress::Act;

pub(super) async fn run(context: &Context, args: &VerifyArgs) -> Result<u8> {
    let cluster = known(context.cluster_as_of(&args.as_of).await?).await?;
    let wanted = label_or_all(&cluster, &args.label).await?;
    let scope = wanted.map_or(Scope::All, Scope::Chain);
    let max_age = context.max_age(args.age.max_age)?;
    let options = VerifyOptions {
        scope,
        deep: args.deep,
        jobs: context.config.jobs()?,
    };
    let report = context
        .watched(Act::Verify, |progress| {
            verify::run(&cluster, &options, progress)
        })
        .await?;
    let server = context.server_to_ask(&args.server, &args.as_of);
    let told = match options.scope {
        Scope::All => {
            let mut told = server::look(&cluster, server.as_ref()).await;
            let more = of_info(&cluster, max_age, told.timeline, &report).await;
            told.alarms.splice(0..0, more);
            told
        }
        Scope::Chain(_) => ServerHealth::default(),
    };
    let document = document(&report, &told);
    context.report("verify/1", &document, || text(&report, &told))?;
    let code = match (report.failure(), report.worst()) {
        (Some(kind), _) => exit::code(kind),
        (None, Some(Severity::Warning)) => exit::WARNINGS,
        (None, _) if !told.alarms.is_empty() => exit::WARNINGS,
        (None, _) => 0,
    };
    if let Some(first) = report.findings.first().filter(|_| code != exit::WARNINGS) {
        tracing::error!("{}", line(first));
    }
    Ok(code)
}

/// What `info` says and no object does: that the newest backup is old, that nobody knows which branch is meant, and that a
/// layer which is pinned has gone.
async fn of_info(
    cluster: &ClusterRepository,
    max_age: Option<Duration>,
    timeline: Option<TimelineId>,
    verified: &VerifyReport,
) -> Vec<Alarm> {
    let options = InfoOptions {
        max_age,
        ..InfoOptions::default()
    };
    let Ok(report) = info::collect(cluster, &options).await else {
        return Vec::new();
    };
    let left = report.leaves(timeline);
    let alarms = report.alarms.into_iter().chain(left);
    alarms
        .filter(|alarm| match (alarm.kind, &alarm.layer) {
            (AlarmKind::Age | AlarmKind::Timelines, _) => true,
            (AlarmKind::Layer, Some(label)) => !is_told(verified, label),
            _ => false,
        })
        .collect()
}

/// Whether the report has anything of the layer.
fn is_told(report: &VerifyReport, label: &str) -> bool {
    let mut layers = report.layers.iter();
    let mut findings = report.findings.iter();
    layers.any(|layer| layer.label == label)
        || findings.any(|found| found.layer == label || found.object.contains(label))
}

fn document(report: &VerifyReport, told: &ServerHealth) -> Value {
    let mut document = json!(report);
    let status = match (report.worst(), told.alarms.is_empty()) {
        (None, false) => word(Some(Severity::Warning)),
        (worst, _) => word(worst),
    };
    document["status"] = Value::from(status);
    document["alarms"] = json!(told.alarms);
    document["not_looked_at"] = json!(told.not_looked_at);
    document
}

fn word(worst: Option<Severity>) -> &'static str {
    match worst {
        None => "ok",
        Some(Severity::Warning) => "warning",
        Some(Severity::Error) => "damaged",
    }
}

fn text(report: &VerifyReport, told: &ServerHealth) -> String {
    let mut text: String = report.layers.iter().map(layer_line).collect();
    for finding in &report.findings {
        text.push_str(&format!(
            "{}\n{:10}to do: {}\n",
            line(finding),
            "",
            plain(&finding.hint)
        ));
    }
    for label in &report.removed {
        text.push_str(&format!(
            "removed   {label}: an expiry or a merge removed it while it was verified\n"
        ));
    }
    for alarm in &told.alarms {
        text.push_str(&alarm_lines(alarm));
    }
    text.push_str(&not_looked_at_lines(&told.not_looked_at));
    let count = |severity| {
        let same = report.findings.iter().filter(|f| f.severity == severity);
        same.count()
    };
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let depth = if report.deep {
        "every page"
    } else {
        "every object"
    };
    let alarms = match told.alarms.len() {
        0 => String::new(),
        1 => ", 1 alarm".to_owned(),
        many => format!(", {many} alarms"),
    };
    text.push_str(&format!(
        "verified {depth} of {} layers and {} files of WAL: {errors} errors, {warnings} warnings{alarms}\n",
        report.layers.len(),
        report.wal_files
    ));
    text
}

fn layer_line(layer: &VerifiedLayer) -> String {
    let state = if layer.ok { "ok" } else { "damaged" };
    let pages = match layer.pages {
        0 => String::new(),
        pages => format!(
            ", {} pages, {} files",
            HumanCount(pages),
            HumanCount(layer.files)
        ),
    };
    format!(
        "{state:<9} {}: {} objects, {}, {} frames{pages}\n",
        layer.label,
        HumanCount(layer.objects),
        BinaryBytes(layer.bytes),
        HumanCount(layer.frames)
    )
}

fn line(finding: &Finding) -> String {
    let word = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    plain(&format!(
        "{word:<9} {}: {}",
        finding.object, finding.message
    ))
    .into_owned()
}
