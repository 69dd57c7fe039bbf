//! Layers: which of them can be restored, as far as manifests and listings tell.

use pgstrata_layer::label::Label;
use pgstrata_pgdata::WalSegment;
use pgstrata_store::archive::ArchivedWal;
use pgstrata_store::catalog::{self, Catalog, Layer};

use super::{Alarm, AlarmKind, Facts, Severity};

/// Why a layer cannot be restored; `None` when nothing is known against it.
pub(crate) fn problem(
    catalog: &Catalog,
    layer: &Layer,
    archived: Option<&ArchivedWal>,
) -> Option<String> {
    if let Err(error) = catalog.whole(&layer.label) {
        return Some(error.to_string());
    }
    if let Some(found) = found_damaged(catalog, &layer.label) {
        return Some(found);
    }
    let archived = archived?;
    let size = archived.segment_size();
    let manifest = &layer.manifest;
    let timeline = manifest.timeline;
    if let Some(problem) = archived.history_problem(timeline) {
        let name = timeline.history_file_name();
        return Some(format!("the history of its timeline, {name}, {problem}"));
    }
    let lsns = manifest.start_lsn..manifest.stop_lsn;
    let (first, last) = layer.own_wal(size);
    let mut needed = WalSegment::covering(manifest.timeline, lsns, size);
    if let Some(missing) = needed.find(|segment| !archived.holds(*segment)) {
        let name = missing.file_name(size);
        return Some(format!("its WAL segment {name} is not in the archive"));
    }
    let numbers = first.number..=last.number;
    let mut damaged = archived.damaged();
    let (segment, why) = damaged
        .find(|(one, _)| one.timeline == manifest.timeline && numbers.contains(&one.number))?;
    let name = segment.file_name(size);
    Some(format!("its WAL segment {name} is damaged: {why}"))
}

/// What a verification has found of the layer, or of one on which it stands. It may be in order again.
pub(crate) fn found_damaged(catalog: &Catalog, label: &Label) -> Option<String> {
    if catalog.found_damaged.is_empty() {
        return None;
    }
    let links = catalog.links(label).unwrap_or_default();
    let mut found = links
        .iter()
        .filter_map(|link| catalog.found_damaged.get_key_value(&link.label));
    found
        .next()
        .map(|(damaged, at)| format!("\"pgstrata verify\" found {damaged} damaged at {at}"))
}

/// The layers against which nothing is known, in the order in which they start.
pub(crate) fn usable<'a>(catalog: &'a Catalog, archived: Option<&ArchivedWal>) -> Vec<&'a Layer> {
    let layers = catalog.layers.iter();
    let mut usable: Vec<&Layer> = layers
        .filter(|layer| problem(catalog, layer, archived).is_none())
        .collect();
    usable.sort_by_key(|layer| layer.manifest.start_lsn);
    usable
}

/// That there is no layer any more.
fn all_gone(facts: &Facts<'_>) -> Option<Alarm> {
    let told = facts.traces.as_ref()?;
    Some(Alarm {
        severity: Severity::Error,
        kind: AlarmKind::Layer,
        layer: None,
        reason: format!(
            "there is no layer, though {told}: no expiry and no merge takes the last one"
        ),
        lost: Some("every state of the cluster".to_owned()),
        to_do: "bring back what was deleted: \"pgstrata rescue\" does so in a bucket with versions, and \"pgstrata copy\" out of \
                another repository; otherwise take a full backup now"
            .to_owned(),
    })
}

/// Layers that cannot be restored, and why.
pub(super) fn layers(facts: &Facts<'_>) -> Vec<Alarm> {
    let catalog = facts.catalog;
    let alarm = |label: &Label, reason: String, lost: String| Alarm {
        severity: Severity::Error,
        kind: AlarmKind::Layer,
        layer: Some(label.to_string()),
        reason,
        lost: Some(lost),
        to_do: format!(
            "run \"pgstrata verify {label}\" to see what is lost, and take a full backup"
        ),
    };
    let damaged = catalog.damaged.iter().map(|(label, error)| {
        let reason = format!("the manifest of {label} cannot be used: {error}");
        let lost = format!("{label} and the layers that stand on it");
        let mut alarm = alarm(label, reason, lost);
        if let Some(hint) = error.hint_text().filter(|_| error.is_lost_epoch()) {
            hint.clone_into(&mut alarm.to_do);
        }
        alarm
    });
    let broken = catalog.layers.iter().filter_map(|layer| {
        let label = &layer.label;
        // Named once, with the layer that has lost objects or was found damaged, or with the history.
        let archived = facts.archived.ok();
        let timeline = layer.manifest.timeline;
        let is_lost = archived.is_some_and(|all| all.history_problem(timeline).is_some());
        let is_found = found_damaged(catalog, label).is_some();
        if catalog.nearest_loss(label).is_some() || is_lost || is_found {
            return None;
        }
        let problem = problem(catalog, layer, archived)?;
        let reason = format!("{label} cannot be restored: {problem}");
        Some(alarm(label, reason, label.to_string()))
    });
    let mut alarms = Vec::from_iter(all_gone(facts));
    alarms.extend(losses(catalog));
    alarms.extend(damaged.chain(broken));
    let found = catalog.found_damaged.iter();
    let found = found.filter(|(label, _)| {
        catalog.layers.position(label).is_some() && catalog.nearest_loss(label).is_none()
    });
    alarms.extend(found.map(|(label, at)| {
        let reason = format!("a verification has found {label} damaged, at {at}");
        let mut alarm = alarm(label, reason, with_all_above(catalog, label));
        alarm.to_do = catalog::advice_if_damaged(label);
        alarm
    }));
    alarms
}

/// The layer, and those that stand on it.
fn with_all_above(catalog: &Catalog, label: &Label) -> String {
    let stands = |layer: &&Layer| {
        let links = catalog.links(&layer.label).unwrap_or_default();
        links.iter().skip(1).any(|below| below.label == *label)
    };
    let above = catalog.layers.iter().filter(stands);
    let above: Vec<&str> = above.map(|layer| layer.label.as_str()).collect();
    match above.is_empty() {
        true => label.to_string(),
        false => format!("{label}, nor what stands on it: {}", above.join(", ")),
    }
}

/// Each layer that has lost objects, and all that stand on it.
fn losses(catalog: &Catalog) -> impl Iterator<Item = Alarm> {
    catalog.losses.iter().map(|(label, loss)| {
        let what = loss.describe();
        if !loss.stops_restores() {
            return Alarm {
                severity: Severity::Warning,
                kind: AlarmKind::Layer,
                layer: Some(label.to_string()),
                reason: format!("{label} has lost digests of its pages: {what}"),
                lost: None,
                to_do: "take a full backup: restores work without them, but increments and merges do not"
                    .to_owned(),
            };
        }
        Alarm {
            severity: Severity::Error,
            kind: AlarmKind::Layer,
            layer: Some(label.to_string()),
            reason: format!("{label} has lost objects: {what}"),
            lost: Some(with_all_above(catalog, label)),
            to_do: format!(
                "where another repository has the layer, \"pgstrata copy {label}\" out of it brings them, and \"pgstrata rescue\" \
                 does in a bucket that keeps versions; otherwise take a full backup now; \"pgstrata verify {label}\" names what \
                 was in them"
            ),
        }
    })
}
