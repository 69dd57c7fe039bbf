//! `verify`.

use std::cmp::Reverse;

use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::health::{Alarm, AlarmKind};
use pgstrata_engine::info::server::{self, NotLookedAt, ServerHealth};
use pgstrata_engine::info::{self, InfoOptions};
use pgstrata_engine::verify::{
    self, Finding, Scope, Severity, VerifiedLayer, VerifyOptions, VerifyReport,
};
use pgstrata_layer::plain::plain;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Result};
use serde_json::{Value, json};

use super::{Context, alarm_lines, known, label_or_all, not_looked_at_lines};
use crate::args::VerifyArgs;
use crate::exit;
use crate::progress::Act;

pub(super) async fn run(context: &Context, args: &VerifyArgs) -> Result<u8> {
    let cluster = known(context.cluster_as_of(&args.as_of).await?).await?;
    let wanted = label_or_all(&cluster, &args.label).await?;
    let scope = wanted.map_or(Scope::All, Scope::Chain);
    let age = context.max_age(args.age.max_age)?;
    let server = context.server_to_ask(&args.server, &args.as_of)?;
    let options = VerifyOptions {
        scope,
        deep: args.deep,
        jobs: context.config.jobs()?,
        as_of: args.as_of.repository_as_of,
    };
    let report = context
        .watched(Act::Verify, |progress| {
            verify::run(&cluster, &options, progress)
        })
        .await?;
    let mut told = server::look(&cluster, server.as_ref()).await;
    let wanted = InfoOptions {
        max_age: age,
        as_of: args.as_of.repository_as_of,
        ..InfoOptions::default()
    };
    of_info((&cluster, &options.scope), &wanted, &report, &mut told).await;
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

/// Adds what `info` says and no object does: that the newest backup is old, that nobody knows which branch is meant, and that a
/// layer which is pinned has gone. Who asks about one layer is told what is of all.
async fn of_info(
    (cluster, scope): (&ClusterRepository, &Scope),
    options: &InfoOptions,
    verified: &VerifyReport,
    told: &mut ServerHealth,
) {
    let is_of_all = *scope == Scope::All;
    if !is_of_all && options.max_age.is_none() && told.timeline.is_none() {
        return;
    }
    let report = match info::collect(cluster, options).await {
        Ok(report) => report,
        Err(error) => return not_known(&error, options, told),
    };
    let left = report.leaves(told.timeline);
    let alarms = report.alarms.into_iter();
    let alarms = alarms.filter(|alarm| match (alarm.kind, &alarm.layer) {
        (AlarmKind::Age, _) => true,
        (AlarmKind::Timelines, _) => is_of_all,
        (AlarmKind::Layer, Some(label)) => is_of_all && !is_told(verified, label),
        _ => false,
    });
    add(told, alarms.chain(left));
}

/// Puts these before what the server told, and the worst of all first.
fn add(told: &mut ServerHealth, alarms: impl IntoIterator<Item = Alarm>) {
    told.alarms.splice(0..0, alarms);
    told.alarms.sort_by_key(|alarm| Reverse(alarm.severity));
}

/// What cannot be judged is not in order. But who has no key was never told of branches, and reads that.
fn not_known(error: &Error, options: &InfoOptions, told: &mut ServerHealth) {
    let is_asked = options.max_age.is_some();
    if !is_asked && error.is_lack_of_key() {
        told.not_looked_at.push(NotLookedAt {
            kind: AlarmKind::Timelines,
            reason: error.to_string(),
        });
        return;
    }
    let (severity, kind, what) = match is_asked {
        true => (
            Severity::Error,
            AlarmKind::Age,
            "how old the newest backup is",
        ),
        false => (
            Severity::Warning,
            AlarmKind::Timelines,
            "whether a restore would ask which branch is meant",
        ),
    };
    let alarm = Alarm {
        severity,
        kind,
        layer: None,
        reason: format!("it is not known {what}: {error}"),
        lost: None,
        to_do: error
            .hint_text()
            .unwrap_or("run \"pgstrata info\", and do what it says")
            .to_owned(),
    };
    add(told, [alarm]);
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
    let alarms = told.alarms.iter().map(|alarm| alarm.severity);
    let status = match (report.worst(), alarms.max()) {
        (Some(Severity::Error), _) => "damaged",
        (_, Some(Severity::Error)) => "alarm",
        (None, None) => "ok",
        _ => "warning",
    };
    document["status"] = Value::from(status);
    document["alarms"] = json!(told.alarms);
    document["not_looked_at"] = json!(told.not_looked_at);
    document
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

#[cfg(test)]
mod tests {
    use pgstrata_store::error::Kind;

    use super::*;

    /// The alarm and the status of a document when `info` could not look.
    fn unknown(max_age: Option<std::time::Duration>) -> (AlarmKind, Value) {
        let options = InfoOptions {
            max_age,
            ..InfoOptions::default()
        };
        let mut told = ServerHealth::default();
        let error = Error::new(Kind::Repository, "the store does not answer");
        not_known(&error, &options, &mut told);
        let document = document(&VerifyReport::default(), &told);
        (told.alarms[0].kind, document["status"].clone())
    }

    #[test]
    fn what_could_not_be_looked_at_is_an_alarm_and_no_error_is_a_warning() {
        let asked = unknown(Some(std::time::Duration::from_secs(1)));
        assert_eq!(asked, (AlarmKind::Age, Value::from("alarm")));
        assert_eq!(
            unknown(None),
            (AlarmKind::Timelines, Value::from("warning"))
        );
    }

    #[test]
    fn alarms_are_told_the_worst_first_and_those_of_the_repository_before_the_servers() {
        let alarm = |severity, kind| Alarm {
            severity,
            kind,
            layer: None,
            reason: String::new(),
            lost: None,
            to_do: String::new(),
        };
        let (warning, error) = (Severity::Warning, Severity::Error);
        let mut told = ServerHealth {
            alarms: vec![
                alarm(error, AlarmKind::Archiver),
                alarm(warning, AlarmKind::Slots),
            ],
            ..ServerHealth::default()
        };
        let of_repository = [
            alarm(warning, AlarmKind::Timelines),
            alarm(error, AlarmKind::Layer),
        ];
        add(&mut told, of_repository);
        let kinds: Vec<AlarmKind> = told.alarms.iter().map(|alarm| alarm.kind).collect();
        let expected = [
            AlarmKind::Layer,
            AlarmKind::Archiver,
            AlarmKind::Timelines,
            AlarmKind::Slots,
        ];
        assert_eq!(kinds, expected);
    }
}
