//! How long ago somebody has made a backup, and found nothing wrong.
//!
//! A host whose clock was ahead would silence these alarms for as long as it was. So each moment is the earlier of what the
//! host has said of itself and what the store has noted, and one that is still to come tells nothing.

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::Label;
use pgstrata_store::catalog::{CLOCKS_DIFFER, Layer, Verified};

use super::layers::usable;
use super::{Alarm, AlarmKind, Facts, Severity};

/// Whether the newest backup is too old.
pub(super) fn age(facts: &Facts<'_>) -> Option<Alarm> {
    let limit = SignedDuration::try_from(facts.max_age?).unwrap_or(SignedDuration::MAX);
    let usable = usable(facts.catalog, facts.archived.ok()).into_iter();
    let (known, ahead): (Vec<&Layer>, Vec<&Layer>) =
        usable.partition(|layer| has_passed(facts, ended(facts, layer)));
    let newest = known.into_iter().max_by_key(|layer| ended(facts, layer));
    let mut lost = None;
    let reason = match newest {
        None if ahead.is_empty() => {
            lost = Some("every state of the cluster".to_owned());
            "there is no backup that can be restored".to_owned()
        }
        None => "it is not known how old the newest backup is".to_owned(),
        Some(newest) => {
            let ended = ended(facts, newest);
            let age = facts.now.duration_since(ended);
            if age <= limit {
                return None;
            }
            let (label, whole) = (&newest.label, SignedDuration::from_secs(age.as_secs()));
            format!(
                "the newest backup, {label}, ended {whole:#} ago, at {ended}: more than {limit:#}"
            )
        }
    };
    let ahead = ahead.last().map(|layer| {
        format!(
            "; the time of {}, {}, is still to come, because a clock is wrong: it tells nothing",
            layer.label, layer.manifest.finished_at
        )
    });
    Some(Alarm {
        severity: Severity::Error,
        kind: AlarmKind::Age,
        layer: None,
        reason: reason + &ahead.unwrap_or_default(),
        lost,
        to_do: "run \"pgstrata backup\", and find out why the last one is so old".to_owned(),
    })
}

/// When the backup ended.
fn ended(facts: &Facts<'_>, layer: &Layer) -> Timestamp {
    let told = layer.manifest.finished_at;
    let stored_at = facts.catalog.stored_at.get(&layer.label);
    stored_at.map_or(told, |stored_at| told.min(*stored_at))
}

fn has_passed(facts: &Facts<'_>, moment: Timestamp) -> bool {
    moment.duration_since(facts.now) <= CLOCKS_DIFFER
}

/// Whether too much time has passed since somebody found nothing wrong, or whether somebody has found what nothing else here
/// tells of, such as WAL that is not what was written, and nobody has begun to look again since.
pub(super) fn verified(facts: &Facts<'_>) -> Option<Alarm> {
    overdue(facts).or_else(|| {
        let mut failed = facts.verified.failed.iter();
        let (failed, untold) =
            failed.find_map(|failed| Some((failed, untold(facts, failed)?)))?;
        Some(Alarm {
            severity: Severity::Error,
            kind: AlarmKind::Verify,
            layer: None,
            reason: format!(
                "the verification of all layers that ended at {} found {untold}, and none that has begun since has found them gone",
                failed.at()
            ),
            lost: None,
            to_do: AFTER_ERRORS.to_owned(),
        })
    })
}

/// What a verification has found and no alarm about a layer tells; `None` when those tell all. They go with their layers, and
/// the errors may not.
fn untold(facts: &Facts<'_>, verified: &Verified) -> Option<String> {
    let record = &verified.record;
    let errors = record.errors;
    match record.other_errors {
        Some(0) => None,
        Some(others) if others < errors => Some(format!(
            "{errors} errors, {others} of them in WAL or beside the damaged layers"
        )),
        Some(_) => Some(format!("{errors} errors")),
        // An older program has not counted them.
        None => {
            let catalog = facts.catalog;
            let is_told = |label: Label| {
                catalog.found_damaged.contains_key(&label)
                    && catalog.layers.position(&label).is_some()
            };
            let mut damaged = record.damaged.iter();
            let all_told = !record.damaged.is_empty()
                && damaged.all(|label| Label::parse(label).is_some_and(is_told));
            (!all_told).then(|| format!("{errors} errors"))
        }
    }
}

const AFTER_ERRORS: &str = "run \"pgstrata verify\", and do what it says";

/// Before the first verification time passes since the cluster is there: an expiry may have taken the first layers. While there
/// is nothing to verify, nobody has to.
fn overdue(facts: &Facts<'_>) -> Option<Alarm> {
    let limit = SignedDuration::try_from(facts.max_verify_age?).unwrap_or(SignedDuration::MAX);
    let layers = facts.catalog.layers.iter();
    let oldest = layers.map(|layer| ended(facts, layer)).min()?;
    let whole = |moment| SignedDuration::from_secs(facts.now.duration_since(moment).as_secs());
    let oldest = facts
        .created_at
        .map_or(oldest, |created| created.min(oldest));
    let clean = facts.verified.clean.as_ref().map(Verified::at);
    let clean = clean.filter(|clean| has_passed(facts, *clean));
    let since = clean.unwrap_or(oldest);
    if has_passed(facts, since) && facts.now.duration_since(since) <= limit {
        return None;
    }
    let reason = match clean {
        Some(clean) => format!(
            "the last verification of all layers that found nothing wrong ended {:#} ago, at {clean}: more than {limit:#}",
            whole(clean)
        ),
        None if !has_passed(facts, oldest) => format!(
            "no verification of all layers that found nothing wrong is on record, and the time since which there is something to \
             verify, {oldest}, is still to come, because a clock is wrong"
        ),
        None => format!(
            "no verification of all layers that found nothing wrong is on record, though the cluster has been here for {:#}: \
             more than {limit:#}",
            whole(oldest)
        ),
    };
    let failed = facts.verified.failed.first().map(|failed| {
        let which = match facts.verified.newest.as_ref() == Some(failed) {
            true => "the last one",
            false => "one that ended before it",
        };
        format!(
            "; {which}, at {}, found {} errors",
            failed.at(),
            failed.record.errors
        )
    });
    let (severity, to_do) = match failed {
        Some(_) => (Severity::Error, AFTER_ERRORS),
        None => (
            Severity::Warning,
            "run \"pgstrata verify\" on a schedule, as a user who may create objects in the repository, and for a sealed cluster \
             with a reader's identity",
        ),
    };
    Some(Alarm {
        severity,
        kind: AlarmKind::Verify,
        layer: None,
        reason: reason + &failed.unwrap_or_default(),
        lost: None,
        to_do: to_do.to_owned(),
    })
}
