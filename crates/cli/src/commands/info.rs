//! `info`.

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use indicatif::{BinaryBytes, HumanCount};
use jiff::{SignedDuration, Timestamp};
use pgstrata_engine::expire::{self, StorageReport};
use pgstrata_engine::info::{self, InfoOptions, InfoReport, LayerInfo, Status, TimelineInfo};
use pgstrata_layer::plain::plain;
use pgstrata_layer::verified::VerifiedRecord;
use pgstrata_store::catalog::restore_is_dated_ahead;
use pgstrata_store::error::Result;

use super::{Context, alarm_lines, label_or_all, not_looked_at_lines};
use crate::args::InfoArgs;
use crate::exit;

/// Corrupt pages that are shown as text; JSON has all.
const MOST_PAGES: usize = 20;

pub(super) async fn run(context: &Context, args: &InfoArgs) -> Result<u8> {
    let cluster = context.cluster_as_of(&args.as_of).await?;
    if args.costs {
        let report = expire::storage(&cluster, &context.config.rules(&args.rules)?).await?;
        context.report("info-costs/1", &report, || costs(&report))?;
        return Ok(0);
    }
    let wanted = label_or_all(&cluster, &args.label).await?;
    let details = wanted.is_some();
    let options = InfoOptions {
        label: wanted,
        max_age: context.max_age(args.age.backup.max_age)?,
        max_verify_age: context.max_verify_age(args.age.max_verify_age)?,
        server: context.server_to_ask(&args.server, &args.as_of)?,
        as_of: args.as_of.repository_as_of,
    };
    let report = info::collect(&cluster, &options).await?;
    context.report("info/1", &report, || text(&report, details))?;
    Ok(match report.status {
        // Nobody knows then what the server would have told: it may have stopped.
        Status::Ok | Status::Empty if report.is_server_silent => exit::WARNINGS,
        Status::Ok | Status::Empty => 0,
        Status::Alarm => exit::WARNINGS,
    })
}

fn text(report: &InfoReport, details: bool) -> String {
    let mut text = head(report);
    if details {
        for layer in &report.layers {
            text.push_str(&layer_details(layer));
        }
    } else if !report.layers.is_empty() {
        text.push_str(&format!("\n{}\n", table(report)));
    }
    for leftover in &report.unfinished {
        text.push_str(&format!(
            "\nunfinished: {}: {}",
            leftover.label,
            plain(&leftover.describe())
        ));
    }
    for restore in &report.restores {
        let age = SignedDuration::from_secs(restore.age_seconds);
        let last_sign = match restore_is_dated_ahead(age) {
            true => "last sign of life dated ahead by a wrong clock".to_owned(),
            false => format!("last sign of life {} ago", took(restore.age_seconds.max(0))),
        };
        text.push_str(&format!(
            "\nrestore:    {} to \"{}\" on \"{}\", begun at {}, {last_sign}: expire keeps its layers and WAL for {} hours after that",
            restore.label,
            plain(&restore.directory),
            plain(&restore.host),
            time(restore.started_at),
            restore.kept_seconds / 3600
        ));
    }
    format!("{}\n", text.trim_end())
}

fn head(report: &InfoReport) -> String {
    let status = match report.status {
        Status::Ok => "ok",
        Status::Empty => "no backup yet",
        Status::Alarm => match report.alarms.len() {
            1 => "1 alarm",
            _ => &format!("{} alarms", report.alarms.len()),
        },
    };
    let server = match &report.record {
        Some(record) => format!(
            "PostgreSQL {}, system identifier {}",
            record.major, record.system_identifier
        ),
        None => "its record cannot be read".to_owned(),
    };
    let mut text = format!(
        "cluster:     {} ({server})\nrepository:  {}\nstatus:      {status}\n",
        report.cluster, report.repository
    );
    for alarm in &report.alarms {
        text.push_str(&alarm_lines(alarm));
    }
    text.push_str(&not_looked_at_lines(&report.not_looked_at));
    if let Some(verified) = &report.verified {
        text.push_str(&verified_line(verified));
    }
    if let Some(problem) = &report.archive.problem {
        text.push_str(&format!(
            "WAL archive: cannot be listed: {}\n",
            plain(problem)
        ));
    } else if report.archive.timelines.is_empty() {
        text.push_str("WAL archive: empty\n");
    }
    for timeline in &report.archive.timelines {
        text.push_str(&timeline_lines(timeline));
    }
    text
}

fn verified_line(verified: &VerifiedRecord) -> String {
    let depth = if verified.deep {
        "every page"
    } else {
        "every object"
    };
    format!(
        "verified:    {depth} of {} layers, at {}: {} errors, {} warnings\n",
        verified.layers,
        time(verified.finished_at),
        verified.errors,
        verified.warnings
    )
}

fn timeline_lines(timeline: &TimelineInfo) -> String {
    let range = match (&timeline.first, &timeline.last) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        _ => "no complete segment".to_owned(),
    };
    let mut text = format!(
        "WAL archive: timeline {}: {range}, {} segments, {}\n",
        timeline.timeline,
        HumanCount(timeline.segments),
        BinaryBytes(timeline.stored_bytes)
    );
    for missing in &timeline.missing {
        text.push_str(&format!(
            "             missing: {} to {}, {} segments\n",
            missing.first,
            missing.last,
            HumanCount(missing.count)
        ));
    }
    for released in &timeline.released {
        text.push_str(&format!(
            "             given up by an expiry: {} to {}, {} segments\n",
            released.first,
            released.last,
            HumanCount(released.count)
        ));
    }
    if timeline.timeline > 1 && !timeline.has_history {
        text.push_str("             the timeline's history file is missing\n");
    }
    for unknown in &timeline.unknown {
        text.push_str(&format!("             unknown file: {}\n", plain(unknown)));
    }
    text
}

fn table(report: &InfoReport) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header([
        "label",
        "type",
        "started",
        "took",
        "start LSN",
        "stop LSN",
        "TL",
        "changes by",
        "pages",
        "cluster",
        "stored",
        "state",
    ]);
    for layer in &report.layers {
        table.add_row([
            layer.label.clone(),
            layer.kind.to_owned(),
            time(layer.started_at),
            took(layer.duration_seconds),
            layer.start_lsn.to_string(),
            layer.stop_lsn.to_string(),
            layer.timeline.to_string(),
            layer.change_source.used.as_str().to_owned(),
            HumanCount(layer.totals.pages_stored).to_string(),
            BinaryBytes(layer.totals.cluster_bytes).to_string(),
            BinaryBytes(layer.stored_bytes).to_string(),
            state(layer),
        ]);
    }
    for column in [3, 6, 8, 9, 10] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn state(layer: &LayerInfo) -> String {
    let state = match (&layer.problem, layer.corrupt_pages.len()) {
        (Some(_), _) => "broken".to_owned(),
        (None, 0) => "ok".to_owned(),
        (None, count) => format!("{count} corrupt pages"),
    };
    match layer.pin {
        Some(_) => format!("{state}, pinned"),
        None => state,
    }
}

/// One line for each thing there is to tell of a layer.
fn layer_details(layer: &LayerInfo) -> String {
    let mut lines = origin(layer);
    lines.extend(sizes(layer));
    for tablespace in &layer.tablespaces {
        let place = tablespace.location.as_deref();
        let place = place.unwrap_or("in the data directory");
        lines.push(("tablespace", format!("{} at {place}", tablespace.oid)));
    }
    for page in layer.corrupt_pages.iter().take(MOST_PAGES) {
        let value = format!("block {} of \"{}\": {}", page.block, page.path, page.reason);
        lines.push(("corrupt page", value));
    }
    if let Some(more @ 1..) = layer.corrupt_pages.len().checked_sub(MOST_PAGES) {
        lines.push(("corrupt page", format!("{more} more, see --output json")));
    }
    if let Some(token) = &layer.tracker_token {
        lines.push(("tracker token", token.clone()));
    }
    if !layer.goes_on {
        let value = "given up behind its end: it restores to its own end alone";
        lines.push(("WAL", value.to_owned()));
    }
    if let Some(pin) = &layer.pin {
        let until = pin.until.map(|until| format!("until {}", time(until)));
        let note = pin.note.as_ref().map(|note| format!(": {note}"));
        let until = until.unwrap_or_else(|| "for ever".to_owned());
        lines.push(("pinned", until + &note.unwrap_or_default()));
    }
    for (key, value) in &layer.annotations {
        lines.push(("annotation", format!("{key}={value}")));
    }
    if let Some(beside) = &layer.beside {
        let value = format!(
            "not known to come after {}: {}",
            beside.label, beside.reason
        );
        lines.push(("history", value));
    }
    let lines = lines.iter();
    let lines: String = lines
        .map(|(name, value)| format!("  {name:<14} {}\n", plain(value)))
        .collect();
    format!("\nbackup {}\n{lines}", layer.label)
}

fn origin(layer: &LayerInfo) -> Vec<(&'static str, String)> {
    let parent = layer.parent.as_ref().map_or_else(String::new, |parent| {
        format!(" on {parent}, {} layers in the chain", layer.chain_length)
    });
    let from = if layer.from_standby {
        "a standby"
    } else {
        "a primary"
    };
    let checksums = if layer.data_checksums { "on" } else { "off" };
    let (start, end) = (time(layer.started_at), time(layer.finished_at));
    let source = &layer.change_source;
    vec![
        ("type", format!("{}{parent}", layer.kind)),
        (
            "state",
            layer.problem.clone().unwrap_or_else(|| state(layer)),
        ),
        (
            "time",
            format!("{start} to {end}, {}", took(layer.duration_seconds)),
        ),
        (
            "WAL",
            format!(
                "{} to {} on timeline {}",
                layer.start_lsn, layer.stop_lsn, layer.timeline
            ),
        ),
        (
            "WAL segments",
            format!("{} to {}", layer.wal.first, layer.wal.last),
        ),
        (
            "taken from",
            format!(
                "{from}, data checksums {checksums}, by {}",
                layer.written_by
            ),
        ),
        (
            "changes by",
            format!("{}: {}", source.used.as_str(), source.reason),
        ),
    ]
}

fn sizes(layer: &LayerInfo) -> [(&'static str, String); 3] {
    let totals = &layer.totals;
    let pages = format!(
        "{} of {} stored, {} marked as changed, {} zeros",
        HumanCount(totals.pages_stored),
        HumanCount(totals.relation_blocks),
        HumanCount(totals.pages_marked),
        HumanCount(totals.pages_zero)
    );
    let cluster = format!(
        "{} in {} files, of which {} were read",
        BinaryBytes(totals.cluster_bytes),
        HumanCount(totals.files),
        BinaryBytes(totals.bytes_read)
    );
    let stored = format!(
        "{}, the chain {}",
        BinaryBytes(layer.stored_bytes),
        BinaryBytes(layer.chain_stored_bytes)
    );
    [("pages", pages), ("cluster", cluster), ("stored", stored)]
}

/// What is stored, and for which rule.
fn costs(report: &StorageReport) -> String {
    let bytes = |bytes: u64| BinaryBytes(bytes).to_string();
    let mut layers = plain_table(&["layer", "stored", "stays because of"]);
    for layer in &report.layers {
        let why = layer.why.clone();
        layers.add_row([
            layer.label.clone(),
            bytes(layer.stored_bytes),
            why.unwrap_or_else(|| "nothing: it would go".to_owned()),
        ]);
    }
    let mut wal = plain_table(&["WAL stored on", "stored", "files"]);
    for day in &report.wal {
        let files = HumanCount(day.files).to_string();
        wal.add_row([day.day.clone(), bytes(day.stored_bytes), files]);
    }
    let mut rules = plain_table(&[
        "without this rule",
        "layers would go",
        "WAL would go",
        "layers",
    ]);
    for rule in &report.rules {
        rules.add_row([
            rule.rule.clone(),
            bytes(rule.layer_bytes),
            bytes(rule.wal_bytes),
            rule.layers.join(", "),
        ]);
    }
    format!(
        "cluster:     {}\nstored:      {}, of which {} are records and leftovers\n\n{}\n\n{}\n\n{}\n",
        report.cluster,
        bytes(report.stored_bytes),
        bytes(report.other_bytes),
        layers.trim_fmt(),
        wal.trim_fmt(),
        rules.trim_fmt()
    )
}

fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(header.iter().copied());
    table
}

fn time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

fn took(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}
