//! `info`.

use comfy_table::{Table, presets::NOTHING};
use indicatif::{BinaryBytes, HumanCount};
use pgstrata_engine::catalog::{Catalog, Layer};
use pgstrata_engine::error::{Error, Kind, Result};
use pgstrata_layer::label::Label;
use serde_json::{Value, json};

use super::Context;
use crate::args::InfoArgs;

pub(super) async fn run(context: &Context, args: &InfoArgs) -> Result<u8> {
    let repository = context.repository()?;
    let name = context.config.cluster()?;
    let catalog = Catalog::load(&repository, &name).await?;
    let wanted = match &args.label {
        None => None,
        Some(text) => Some(Label::parse(text).ok_or_else(|| {
            Error::new(Kind::Usage, format!("\"{text}\" is not a label"))
                .hint("\"pgstrata info\" shows the labels")
        })?),
    };
    let layers: Vec<&Layer> = match &wanted {
        None => catalog.layers.iter().collect(),
        Some(label) => vec![catalog.layer(label)?],
    };
    let document = json!({
        "cluster": name.as_str(),
        "layers": layers.iter().map(|layer| &layer.manifest).collect::<Vec<_>>(),
        "unfinished": catalog.unfinished.iter().map(|u| json!({
            "label": u.label.to_string(), "objects": u.object_count, "size_bytes": u.size_bytes,
        })).collect::<Vec<Value>>(),
        "damaged": catalog.damaged.iter().map(|(label, error)| json!({
            "label": label.to_string(), "error": error.to_string(),
        })).collect::<Vec<Value>>(),
    });
    context.report("info/1", &document, || {
        text(&catalog, &layers, wanted.is_some())
    });
    Ok(0)
}

fn text(catalog: &Catalog, layers: &[&Layer], details: bool) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header([
        "label",
        "type",
        "finished",
        "cluster",
        "stored",
        "pages",
        "changes by",
        "WAL",
        "state",
    ]);
    for layer in layers {
        table.add_row(row(layer));
    }
    let mut text = format!("{table}\n");
    for layer in layers.iter().filter(|_| details) {
        let source = &layer.manifest.change_source;
        text.push_str(&format!(
            "changes found by {}: {}\n",
            source.used.as_str(),
            source.reason
        ));
        let totals = &layer.manifest.totals;
        text.push_str(&format!(
            "pages: {} in the cluster, {} marked, {} stored; {} read\n",
            HumanCount(totals.relation_blocks),
            HumanCount(totals.pages_marked),
            HumanCount(totals.pages_stored),
            BinaryBytes(totals.bytes_read)
        ));
        let token = layer.manifest.tracker_token.as_deref();
        text.push_str(&format!("tracker token: {}\n", token.unwrap_or("none")));
        for page in &layer.manifest.corrupt_pages {
            text.push_str(&format!(
                "corrupt at the source: {} block {}: {}\n",
                page.path, page.block, page.reason
            ));
        }
    }
    for unfinished in &catalog.unfinished {
        text.push_str(&format!(
            "unfinished: {}, {} objects, {}: a backup at work, or left by one that was stopped\n",
            unfinished.label,
            unfinished.object_count,
            BinaryBytes(unfinished.size_bytes),
        ));
    }
    for (label, error) in &catalog.damaged {
        text.push_str(&format!("damaged: {label}: {error}\n"));
    }
    text
}

fn row(layer: &Layer) -> [String; 9] {
    let manifest = &layer.manifest;
    let state = if manifest.corrupt_pages.is_empty() {
        "ok"
    } else {
        "corrupt pages"
    };
    [
        layer.label.to_string(),
        layer.label.kind().as_str().to_owned(),
        manifest
            .finished_at
            .strftime("%Y-%m-%d %H:%M:%SZ")
            .to_string(),
        BinaryBytes(manifest.totals.cluster_bytes).to_string(),
        BinaryBytes(manifest.pack_bytes).to_string(),
        HumanCount(manifest.totals.pages_stored).to_string(),
        manifest.change_source.used.as_str().to_owned(),
        format!("{} - {}", manifest.start_lsn, manifest.stop_lsn),
        state.to_owned(),
    ]
}
