//! Layers that may be of another server than those before them, on the same timeline.
//!
//! A copy of a data directory that is simply started goes on with its source's timeline, and so does a server whose storage
//! was set back. Names tell nothing there. What tells is the manifest, when the directory did not seem to come after the
//! newest layer (`beside`), and the archive: an archiver brings one segment after the other, and is refused at the first one
//! that the archive has otherwise. So where it has brought a layer's own WAL, and has gone on behind it, all WAL before
//! is of the same history. Where a backup has stored that WAL by itself, the WAL before it may be of another one, and recovery
//! would go from one into the other. A directory that was moved looks like a copy, and nothing recorded tells them apart.

use std::collections::BTreeSet;
use std::ops::Range;

use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{Beside, Manifest};
use pgstrata_pgdata::{Lsn, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::ArchivedWal;
use pgstrata_store::catalog::{Catalog, Layer};

use super::layers::usable;
use super::{Alarm, AlarmKind, Severity};
use crate::server::lineage::tells_of_copy;

/// What is added to the advice to look for WAL that is missing.
pub(crate) const MAY_BE_OF_ANOTHER: &str = "; two servers may have written this timeline's WAL under the same names, so a segment that is \
    found may be of another history than the archive: store none that does not come from the server whose WAL lies before it";

/// What may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// Recovery from a layer before comes to its WAL, and what lies before that may be another server's.
    WalOfTwo,
    /// It is a copy's, and its original may go on.
    Copy,
}

/// A layer that is not proved to come after one before it.
#[derive(Clone, Debug)]
pub(crate) struct Unproved<'a> {
    layer: &'a Layer,
    beside: &'a Beside,
    doubt: Doubt,
    /// Where its own WAL begins.
    first: WalSegment,
}

/// Whether an archiver is known to have brought the WAL that a backup of `timeline` needs for itself, and to have gone on.
/// `begins` are the segments in which backups began: what the next one has stored tells nothing of an archiver, without its note.
pub(crate) fn was_archived(
    (timeline, range): (TimelineId, Range<Lsn>),
    archived: &ArchivedWal,
    begins: &BTreeSet<WalSegment>,
) -> bool {
    let size = archived.segment_size();
    let first = WalSegment::containing(timeline, range.start, size);
    let last = WalSegment::containing_end(timeline, range.end, size).number;
    // The server may have been promoted meanwhile.
    let went_on = archived.timelines().any(|one| {
        let history = archived.history(one);
        let next = archived.next_after(&history, last);
        let next = next.filter(|next| next.number == last + 1);
        history.contains(timeline, range.clone())
            && next.is_some_and(|next| !begins.contains(&next) || archived.has_backup_label(next))
    });
    archived.has_backup_label(first) && went_on
}

/// All of them, the oldest first.
pub(crate) fn unproved<'a>(catalog: &'a Catalog, archived: &ArchivedWal) -> Vec<Unproved<'a>> {
    let size = archived.segment_size();
    let begins = begins(catalog, size);
    let usable = usable(catalog, Some(archived));
    let mut known = BTreeSet::new();
    let found = catalog.layers.iter().filter_map(|layer| {
        let beside = layer.manifest.beside.as_ref()?;
        let first = layer.own_wal(size).0;
        let doubt = if is_led_to(&usable, layer, archived) && !is_archived(layer, archived, &begins)
        {
            Doubt::WalOfTwo
        } else if tells_of_copy(&beside.reason) && counts(catalog, layer, beside) {
            Doubt::Copy
        } else {
            return None;
        };
        // A merged layer has the state of another one.
        known.insert(first).then_some(Unproved {
            layer,
            beside,
            doubt,
            first,
        })
    });
    found.collect()
}

fn is_archived(layer: &Layer, archived: &ArchivedWal, begins: &BTreeSet<WalSegment>) -> bool {
    let Manifest {
        timeline,
        start_lsn,
        stop_lsn,
        ..
    } = layer.manifest;
    was_archived((timeline, start_lsn..stop_lsn), archived, begins)
}

/// Of the layers `going` those that must stay, each with why. They may be of another server than one before them that stays, and
/// recovery from that one comes to their WAL, or will when WAL comes that is missing now: without their manifests no restore
/// would ask which server is meant.
pub(crate) fn witnesses(
    catalog: &Catalog,
    archived: &ArchivedWal,
    going: &[Label],
) -> Vec<(Label, String)> {
    let size = archived.segment_size();
    let begins = begins(catalog, size);
    let mut going: BTreeSet<&Label> = going.iter().collect();
    let mut found = Vec::new();
    // The oldest first: one that stays may lead to others.
    for layer in &catalog.layers {
        let Some(beside) = layer.manifest.beside.as_ref() else {
            continue;
        };
        if !going.contains(&layer.label) || is_archived(layer, archived, &begins) {
            continue;
        }
        let layers = catalog.layers.iter();
        let mut staying = layers.filter(|one| !going.contains(&one.label));
        // A merged layer has the state of another one, and says the same.
        let own_wal = layer.own_wal(size);
        let says_so = |one: &&Layer| one.manifest.beside.is_some() && one.own_wal(size) == own_wal;
        if staying.clone().any(|one| says_so(&one)) {
            continue;
        }
        if let Some(older) = staying.find(|older| may_lead_to(older, layer, archived)) {
            let (other, older) = (&beside.layer.label, &older.label);
            let why = format!(
                "it may be of another server than {other}, and without it no restore from {older} would ask which of the two is meant"
            );
            going.remove(&layer.label);
            found.push((layer.label.clone(), why));
        }
    }
    found
}

/// The segments in which backups began.
fn begins(catalog: &Catalog, size: WalSegmentSize) -> BTreeSet<WalSegment> {
    let begins = catalog.layers.iter().map(|layer| layer.own_wal(size).0);
    begins.collect()
}

/// Whether recovery from a layer before it comes to its WAL.
fn is_led_to(usable: &[&Layer], layer: &Layer, archived: &ArchivedWal) -> bool {
    let first = layer.own_wal(archived.segment_size()).0;
    let mut before = usable.iter();
    before.any(|older| {
        is_before(older, layer, archived) && leads_to(archived, from_start(&older.manifest), first)
    })
}

/// Whether recovery from the older layer comes to the WAL of the other one, or nobody has given up that it will.
fn may_lead_to(older: &Layer, layer: &Layer, archived: &ArchivedWal) -> bool {
    let first = layer.own_wal(archived.segment_size()).0;
    let history = archived.history(layer.manifest.timeline);
    is_before(older, layer, archived)
        && (archived.goes_on_along(&history, &older.manifest)
            || leads_to(archived, from_start(&older.manifest), first))
}

/// Whether the older layer lies before the other one on its history.
fn is_before(older: &Layer, layer: &Layer, archived: &ArchivedWal) -> bool {
    let history = archived.history(layer.manifest.timeline);
    let (older, layer) = (&older.manifest, &layer.manifest);
    older.start_lsn < layer.start_lsn && history.is_ancestor(older.timeline, older.stop_lsn)
}

fn from_start(layer: &Manifest) -> (TimelineId, Lsn) {
    (layer.timeline, layer.start_lsn)
}

/// Whether all WAL is there from that position on to `first`, and that segment, too.
pub(crate) fn leads_to(
    archived: &ArchivedWal,
    (timeline, start): (TimelineId, Lsn),
    first: WalSegment,
) -> bool {
    let history = archived.history(first.timeline);
    let way = archived.coverage(&history, start, Some(first.number));
    history.entry(timeline).is_some() && way.end > first.start_lsn(archived.segment_size())
}

/// Whether nobody has said yet that the copy counts, or that it does not: the layer of its original is there, and no server
/// was backed up since on a timeline that was begun later, from where on all others are branches.
fn counts(catalog: &Catalog, layer: &Layer, beside: &Beside) -> bool {
    let own = &layer.manifest;
    let is_settled = catalog.layers.iter().any(|later| {
        later.manifest.timeline > own.timeline && later.manifest.state_stamp() > own.state_stamp()
    });
    !is_settled && catalog.standing_for(&beside.layer).is_some()
}

/// Whether WAL of that timeline may be of two servers.
pub(crate) fn is_doubted(unproved: &[Unproved<'_>], timeline: TimelineId) -> bool {
    let mut layers = unproved.iter().map(|one| &one.layer.manifest);
    layers.any(|layer| layer.timeline == timeline)
}

/// One alarm of each kind, about the newest layer.
pub(super) fn alarms(unproved: &[Unproved<'_>], archived: &ArchivedWal) -> Vec<Alarm> {
    let kinds = [Doubt::WalOfTwo, Doubt::Copy];
    let alarms = kinds.into_iter().filter_map(|doubt| {
        let mut same = unproved.iter().rev().filter(|one| one.doubt == doubt);
        let newest = same.next()?;
        let older: Vec<&str> = same.map(|one| one.layer.label.as_str()).collect();
        let more = match older.is_empty() {
            true => String::new(),
            false => format!("; the same is true of {}", older.join(", ")),
        };
        let mut alarm = newest.alarm(archived);
        alarm.reason.push_str(&more);
        Some(alarm)
    });
    alarms.collect()
}

impl Unproved<'_> {
    fn alarm(&self, archived: &ArchivedWal) -> Alarm {
        let Self { layer, beside, .. } = self;
        let (label, other) = (&layer.label, &beside.layer.label);
        let (timeline, at) = (layer.manifest.timeline, layer.manifest.finished_at);
        let size = archived.segment_size();
        let (name, from) = (self.first.file_name(size), self.first.start_lsn(size));
        let why = format!(
            "layer {label}, made at {at}, is not known to come after {other}, which is of the same timeline {timeline} ({})",
            beside.reason
        );
        let (reason, lost, to_do) = match self.doubt {
            Doubt::WalOfTwo => (
                format!(
                    "the archive may hold WAL of two servers one behind the other: {why}, and its backup has stored WAL from {name} \
                     on that no archiver is known to have brought"
                ),
                format!(
                    "from layers before {label}, no moment behind {from}: a restore to there asks which server is meant; and nothing that \
                     the server of {other} has committed since the two parted, but for what is archived before {from}"
                ),
                format!(
                    "find out which server counts, take a full backup of it, and give the other one, or this server when its archiver is \
                     refused, a cluster of its own (OPERATIONS.md, \"When the archive has another history\"). What is restored from \
                     {label} on is sound. The alarm ends when the layers before {label} have expired, or an expiry with --keep-wal has \
                     given up the WAL between them"
                ),
            ),
            Doubt::Copy => (
                format!("two servers may go on along timeline {timeline}: {why}"),
                format!(
                    "what the server of {other} has written since the two parted, if it goes on: of one of them the archive takes no WAL"
                ),
                format!(
                    "look whether the server of {other} runs, and its archiver with it. When both go on, give one a cluster of its own \
                     (\"pgstrata init\") or promote the copy. When the data directory was moved, nothing is lost. The alarm \
                     ends when layer {other} has expired, or with a backup after the server that counts has begun a timeline, as a promotion does"
                ),
            ),
        };
        Alarm {
            severity: Severity::Warning,
            kind: AlarmKind::Timelines,
            layer: None,
            reason,
            lost: Some(lost),
            to_do,
        }
    }
}
