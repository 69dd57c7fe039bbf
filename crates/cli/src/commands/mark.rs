//! `pin`, `unpin` and `annotate`.

use pgstrata_engine::mark::{self, MarkReport};
use pgstrata_layer::mark::{Annotation, Pin};
use pgstrata_store::error::Result;

use super::{Context, known_cluster, label};
use crate::args::{AnnotateArgs, PinArgs, UnpinArgs};

pub(super) async fn pin(context: &Context, args: &PinArgs) -> Result<u8> {
    let cluster = known_cluster(context).await?;
    let label = label(&cluster, &args.label).await?;
    let pin = Pin {
        until: args.until,
        note: args.note.clone(),
    };
    let report = mark::pin(&cluster, &label, pin).await?;
    show(context, &report)
}

pub(super) async fn unpin(context: &Context, args: &UnpinArgs) -> Result<u8> {
    let cluster = known_cluster(context).await?;
    let label = label(&cluster, &args.label).await?;
    let report = mark::unpin(&cluster, &label).await?;
    show(context, &report)
}

pub(super) async fn annotate(context: &Context, args: &AnnotateArgs) -> Result<u8> {
    let cluster = known_cluster(context).await?;
    let label = label(&cluster, &args.label).await?;
    let (key, value) = args.annotation.clone();
    let annotation = Annotation {
        key,
        value: Some(value).filter(|value| !value.is_empty()),
    };
    let report = mark::annotate(&cluster, &label, annotation).await?;
    show(context, &report)
}

fn show(context: &Context, report: &MarkReport) -> Result<u8> {
    context.report("mark/1", report, || text(report))?;
    Ok(0)
}

fn text(report: &MarkReport) -> String {
    let mut text = match &report.pin {
        None => format!("layer {} is not pinned: the rules decide\n", report.label),
        Some(pin) => {
            let until = pin.until.map(|until| format!(" until {until}"));
            let note = pin.note.as_ref().map(|note| format!(": {note}"));
            format!(
                "layer {} is pinned{}{}\n",
                report.label,
                until.unwrap_or_default(),
                note.unwrap_or_default()
            )
        }
    };
    if report.pin.is_some() && !report.stands_on.is_empty() {
        let below = report.stands_on.join(", ");
        text.push_str(&format!("with it stays what it stands on: {below}\n"));
    }
    for (key, value) in &report.annotations {
        text.push_str(&format!("{key}={value}\n"));
    }
    text
}
