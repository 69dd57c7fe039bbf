//! One judgement of the health of a cluster's backups: what is wrong and since when, what cannot be restored because
//! of it, what to do.
//!
//! `info`, `check` and `verify` show the same alarms; `expire` and `restore` take no layer for usable that is not. What was promised is judged, not what there once was: a restore
//! from any usable layer goes on along the WAL of its timeline, and of each timeline that begins there, to its end, unless an
//! expiry has given that WAL up: then the layer's own end is all that was promised.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::label::Label;
use pgstrata_pgdata::{TimelineHistory, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{ArchivedWal, SegmentRun};
use pgstrata_store::catalog::{Catalog, LastVerified, Layer};
use pgstrata_store::error::Error;
use serde::Serialize;

/// One host may be ahead of another, and a backup ahead of the archiver: a segment that has been missing for no longer before
/// one that was stored may be on its way. An idle server looks once a minute whether it has to start its archiver again, or
/// to repeat a command that failed (`postmaster.c`, `PGARCH_AUTOWAKE_INTERVAL`).
pub(crate) const ON_ITS_WAY: SignedDuration = SignedDuration::from_secs(90);

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Restores work; somebody should look.
    Warning,
    /// A restore that was promised fails or loses something.
    Error,
}

/// What an alarm is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlarmKind {
    /// The cluster's record cannot be read.
    Record,
    /// Nobody can open what was sealed in an epoch.
    Keys,
    /// The archive cannot be listed.
    Archive,
    /// A layer cannot be restored.
    Layer,
    /// WAL is missing from the archive, though later WAL is there.
    WalHole,
    /// The newest backup is too old.
    Age,
    /// Nobody has verified the layers for too long.
    Verify,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alarm {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub kind: AlarmKind,
    /// The layer that it is about, if it is about one.
    pub layer: Option<String>,
    /// What is wrong, and since when; for people.
    pub reason: String,
    /// What cannot be restored because of it; `None` when everything can.
    pub lost: Option<String>,
    /// What to do.
    pub to_do: String,
}

/// What is judged.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) archived: Result<&'a ArchivedWal, &'a Error>,
    /// Why a history that is there cannot be read.
    pub(crate) histories: Option<&'a Error>,
    /// Why the cluster's record cannot be used.
    pub(crate) record: Option<&'a Error>,
    /// Why nobody can open what was sealed.
    pub(crate) keys: Option<&'a Error>,
    pub(crate) now: Timestamp,
    /// The oldest that the newest backup may be.
    pub(crate) max_age: Option<Duration>,
    /// What is on record of verifications.
    pub(crate) verified: &'a LastVerified,
    /// The longest that there may have been none that found nothing wrong.
    pub(crate) max_verify_age: Option<Duration>,
}

/// WAL that is missing on the way from a layer to the end of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole<'a> {
    /// The first segment that is missing.
    pub(crate) first: WalSegment,
    /// Number of the last one.
    pub(crate) last: u64,
    /// The layer from which recovery comes there.
    pub(crate) from: &'a Layer,
    /// When the WAL before it was stored, the last moment that can be reached.
    pub(crate) since: Option<Timestamp>,
    /// The first layer behind it.
    pub(crate) until: Option<&'a Layer>,
    /// What lies behind it was stored just now: what is missing may be on its way.
    pub(crate) is_young: bool,
}

/// The way of a recovery: from the first layer of a history to the history's end.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryPath<'a> {
    pub(crate) layer: &'a Layer,
    pub(crate) history: TimelineHistory,
}

/// Everything that is wrong, the worst first.
pub(crate) fn judge(facts: &Facts<'_>) -> Vec<Alarm> {
    let mut alarms = Vec::new();
    if let Some(error) = facts.record {
        alarms.push(Alarm {
            severity: Severity::Error,
            kind: AlarmKind::Record,
            layer: None,
            reason: error.to_string(),
            lost: Some("nothing, until the record is brought back".to_owned()),
            to_do: "bring the object back from a copy of the repository".to_owned(),
        });
    }
    alarms.extend(facts.keys.map(|error| Alarm {
        severity: Severity::Error,
        kind: AlarmKind::Keys,
        layer: None,
        reason: error.to_string(),
        lost: Some("layers and WAL of that time".to_owned()),
        to_do: error.hint_text().unwrap_or_default().to_owned(),
    }));
    match facts.archived {
        Ok(archived) => {
            let holes = holes(facts.catalog, archived, facts.now);
            alarms.extend(holes.iter().map(|hole| hole.alarm(archived)));
        }
        Err(error) => alarms.push(Alarm {
            severity: Severity::Error,
            kind: AlarmKind::Archive,
            layer: None,
            reason: format!("the WAL archive cannot be listed: {error}"),
            lost: None,
            to_do: "look at the store: its permissions, its disk, its log".to_owned(),
        }),
    }
    alarms.extend(facts.histories.map(|error| {
        Alarm {
            severity: Severity::Error,
            kind: AlarmKind::Archive,
            layer: None,
            reason: format!("the history of a timeline cannot be read: {error}"),
            lost: Some("no moment on that timeline".to_owned()),
            to_do:
                "store it again with \"pgstrata archive-push FILE\"; the server has it in pg_wal"
                    .to_owned(),
        }
    }));
    alarms.extend(layers(facts));
    alarms.extend(age(facts));
    alarms.extend(verified(facts));
    alarms.sort_by_key(|alarm| std::cmp::Reverse(alarm.severity));
    alarms
}

/// Why a layer cannot be restored; `None` when nothing is known against it.
pub(crate) fn problem(
    catalog: &Catalog,
    layer: &Layer,
    archived: Option<&ArchivedWal>,
) -> Option<String> {
    if let Err(error) = catalog.whole(&layer.label) {
        return Some(error.to_string());
    }
    let archived = archived?;
    let size = archived.segment_size();
    let manifest = &layer.manifest;
    let lsns = manifest.start_lsn..manifest.stop_lsn;
    let mut needed = WalSegment::covering(manifest.timeline, lsns, size);
    let missing = needed.find(|segment| !archived.holds(*segment))?;
    let name = missing.file_name(size);
    Some(format!("its WAL segment {name} is not in the archive"))
}

fn layers(facts: &Facts<'_>) -> Vec<Alarm> {
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
        // Named once, with the layer that has lost objects.
        if catalog.nearest_loss(label).is_some() {
            return None;
        }
        let problem = problem(catalog, layer, facts.archived.ok())?;
        let reason = format!("{label} cannot be restored: {problem}");
        Some(alarm(label, reason, label.to_string()))
    });
    let mut alarms: Vec<Alarm> = losses(catalog).collect();
    alarms.extend(damaged.chain(broken));
    alarms
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
        let stands = |layer: &&Layer| {
            let links = catalog.links(&layer.label).unwrap_or_default();
            links.iter().skip(1).any(|below| below.label == *label)
        };
        let above = catalog.layers.iter().filter(stands);
        let above: Vec<&str> = above.map(|layer| layer.label.as_str()).collect();
        let lost = match above.is_empty() {
            true => label.to_string(),
            false => format!("{label}, nor what stands on it: {}", above.join(", ")),
        };
        Alarm {
            severity: Severity::Error,
            kind: AlarmKind::Layer,
            layer: Some(label.to_string()),
            reason: format!("{label} has lost objects: {what}"),
            lost: Some(lost),
            to_do: format!(
                "bring them back from a copy of the repository, or take a full backup now; \
                 \"pgstrata verify {label}\" names what was in them"
            ),
        }
    })
}

fn age(facts: &Facts<'_>) -> Option<Alarm> {
    let max_age = facts.max_age?;
    let alarm = |reason| Alarm {
        severity: Severity::Error,
        kind: AlarmKind::Age,
        layer: None,
        reason,
        lost: None,
        to_do: "run \"pgstrata backup\", and find out why the last one is so old".to_owned(),
    };
    let archived = facts.archived.ok();
    let usable = usable(facts.catalog, archived).into_iter();
    let Some(newest) = usable.max_by_key(|layer| layer.manifest.finished_at) else {
        return Some(alarm("there is no backup that can be restored".to_owned()));
    };
    let age = facts.now.duration_since(newest.manifest.finished_at);
    let limit = SignedDuration::try_from(max_age).unwrap_or(SignedDuration::MAX);
    (age > limit).then(|| {
        let (label, whole) = (&newest.label, SignedDuration::from_secs(age.as_secs()));
        alarm(format!(
            "the newest backup, {label}, ended {whole:#} ago, at {}: more than {limit:#}",
            newest.manifest.finished_at
        ))
    })
}

/// Whether too much time has passed since somebody found nothing wrong. While there was nothing to verify, no time passes.
fn verified(facts: &Facts<'_>) -> Option<Alarm> {
    let limit = SignedDuration::try_from(facts.max_verify_age?).unwrap_or(SignedDuration::MAX);
    let whole = |moment| SignedDuration::from_secs(facts.now.duration_since(moment).as_secs());
    let finished = facts.catalog.layers.iter();
    let oldest = finished.map(|layer| layer.manifest.finished_at).min()?;
    let clean = facts.verified.clean.as_ref();
    let last = clean.map_or(oldest, |clean| clean.finished_at);
    if facts.now.duration_since(last.max(oldest)) <= limit {
        return None;
    }
    let reason = match clean {
        Some(clean) => format!(
            "the last verification of all layers that found nothing wrong ended {:#} ago, at {}: more than {limit:#}",
            whole(clean.finished_at),
            clean.finished_at
        ),
        None => format!(
            "no verification of all layers that found nothing wrong is on record, though the oldest layer ended {:#} ago: \
             more than {limit:#}",
            whole(oldest)
        ),
    };
    let newest = facts.verified.newest.as_ref();
    let failed = newest.filter(|newest| newest.errors > 0).map(|newest| {
        format!(
            "; the last one, at {}, found {} errors",
            newest.finished_at, newest.errors
        )
    });
    let to_do = match failed {
        Some(_) => "run \"pgstrata verify\", and do what it says",
        None => {
            "run \"pgstrata verify\" on a schedule, as a user who may create objects in the repository"
        }
    };
    Some(Alarm {
        severity: if failed.is_some() {
            Severity::Error
        } else {
            Severity::Warning
        },
        kind: AlarmKind::Verify,
        layer: None,
        reason: reason + &failed.unwrap_or_default(),
        lost: None,
        to_do: to_do.to_owned(),
    })
}

/// For each timeline the way to its end, from the first layer that leads there.
pub(crate) fn ways<'a>(catalog: &'a Catalog, archived: &ArchivedWal) -> Vec<RecoveryPath<'a>> {
    let usable = usable(catalog, Some(archived));
    let of_layers = catalog.layers.iter().map(|layer| layer.manifest.timeline);
    let mut timelines: Vec<TimelineId> = archived.timelines().chain(of_layers).collect();
    timelines.sort_unstable();
    timelines.dedup();
    let ways = timelines.into_iter().filter_map(|timeline| {
        let history = archived.history(timeline);
        let layer = usable.iter().find(|layer| passes(&history, layer))?;
        Some(RecoveryPath { layer, history })
    });
    ways.collect()
}

/// Whether recovery from `layer` can follow `history`.
fn passes(history: &TimelineHistory, layer: &Layer) -> bool {
    let manifest = &layer.manifest;
    history.is_ancestor(manifest.timeline, manifest.stop_lsn)
}

/// The layers against which nothing is known, in the order in which they start.
fn usable<'a>(catalog: &'a Catalog, archived: Option<&ArchivedWal>) -> Vec<&'a Layer> {
    let layers = catalog.layers.iter();
    let mut usable: Vec<&Layer> = layers
        .filter(|layer| problem(catalog, layer, archived).is_none())
        .collect();
    usable.sort_by_key(|layer| layer.manifest.start_lsn);
    usable
}

/// The WAL that is missing on any way, each hole once.
pub(crate) fn holes<'a>(
    catalog: &'a Catalog,
    archived: &ArchivedWal,
    now: Timestamp,
) -> Vec<Hole<'a>> {
    let between = Between {
        archived,
        archivers: Archivers::noted(catalog, archived),
        usable: usable(catalog, Some(archived)),
        begins: never_promised(catalog, archived),
        latest: archived.newest_at().max(now),
    };
    let (mut holes, mut known) = (Vec::new(), BTreeSet::new());
    for way in ways(catalog, archived) {
        for hole in between.holes(&way) {
            if known.insert(hole.first) {
                holes.push(hole);
            }
        }
    }
    holes
}

/// Numbers of the segments behind backups of which the server's archiver noted no end: no WAL was promised from there to
/// the next backup. A standby has no such notes: of its backups it counts whether there is any WAL but that of backups.
fn never_promised(catalog: &Catalog, archived: &ArchivedWal) -> BTreeSet<u64> {
    let size = archived.segment_size();
    let of_layers = || catalog.layers.iter().map(|layer| own_segments(layer, size));
    let mut more_than_own = BTreeSet::new();
    let behind = catalog.layers.iter().filter_map(|layer| {
        let (start, end) = own_segments(layer, size);
        let timeline = start.timeline;
        let noted = match layer.manifest.from_standby {
            false => archived.has_backup_label(start),
            true if more_than_own.contains(&timeline) => true,
            true => {
                let own = of_layers().filter(|(first, _)| first.timeline == timeline);
                let own = own.map(|(first, last)| first.number..=last.number);
                let more = has_more_than(archived.runs(timeline), own.collect());
                if more {
                    more_than_own.insert(timeline);
                }
                more
            }
        };
        (!noted).then_some(end.next().number)
    });
    behind.collect()
}

/// The first and the last segment of a layer's own WAL.
fn own_segments(layer: &Layer, size: WalSegmentSize) -> (WalSegment, WalSegment) {
    let manifest = &layer.manifest;
    let timeline = manifest.timeline;
    (
        WalSegment::containing(timeline, manifest.start_lsn, size),
        WalSegment::containing_end(timeline, manifest.stop_lsn, size),
    )
}

/// Whether `runs`, in order, have a segment that none of `own` has.
fn has_more_than(runs: &[SegmentRun], mut own: Vec<RangeInclusive<u64>>) -> bool {
    own.sort_unstable_by_key(|range| *range.start());
    runs.iter().any(|run| {
        let mut next = run.first;
        for range in &own {
            if *range.start() <= next && next <= *range.end() {
                next = *range.end() + 1;
            }
        }
        next <= run.last
    })
}

/// Where there was no archiver: backups of primaries were taken, and it noted none of them. An archiver that comes to work
/// later notes the next one.
struct Archivers {
    /// Of each timeline with layers, whether there was none.
    none_on: BTreeMap<TimelineId, bool>,
    /// When no layer of a timeline is left, those of all others tell it.
    none_elsewhere: bool,
}

impl Archivers {
    fn noted(catalog: &Catalog, archived: &ArchivedWal) -> Self {
        let mut none_on = BTreeMap::new();
        for layer in &catalog.layers {
            let manifest = &layer.manifest;
            let none = none_on
                .entry(manifest.timeline)
                .or_insert_with(|| !archived.has_backup_labels(manifest.timeline));
            *none &= !manifest.from_standby;
        }
        let of_primaries = |layer: &Layer| !layer.manifest.from_standby;
        let mut all = archived.by_timeline().map(|(timeline, _)| timeline);
        let none_elsewhere = !catalog.layers.is_empty()
            && catalog.layers.iter().all(of_primaries)
            && !all.any(|timeline| archived.has_backup_labels(timeline));
        Self {
            none_on,
            none_elsewhere,
        }
    }

    fn had_none(&self, timeline: TimelineId) -> bool {
        let known = self.none_on.get(&timeline);
        known.copied().unwrap_or(self.none_elsewhere)
    }
}

/// What holes lie between.
struct Between<'a, 'b> {
    archived: &'b ArchivedWal,
    archivers: Archivers,
    /// In the order in which they start.
    usable: Vec<&'a Layer>,
    /// Segments with which a hole may begin that was never promised to be filled.
    begins: BTreeSet<u64>,
    latest: Timestamp,
}

impl<'a> Between<'a, '_> {
    fn holes(&self, way: &RecoveryPath<'a>) -> Vec<Hole<'a>> {
        let (archived, size) = (self.archived, self.archived.segment_size());
        let layers = self.usable.iter().copied();
        let layers: Vec<&Layer> = layers.filter(|layer| passes(&way.history, layer)).collect();
        let start = |layer: &Layer| layer.manifest.start_lsn.segment(size);
        // Nobody goes on from a layer whose WAL behind its end was given up: what is missing there was meant to be.
        let goes_on = |layer: &&&Layer| !archived.was_released(start(layer));
        let Some(first) = layers.iter().find(goes_on).copied() else {
            return Vec::new();
        };
        let behind = |number| {
            let at = layers.partition_point(|layer| start(layer) < number);
            layers.get(at).copied()
        };
        let mut holes = Vec::new();
        let mut from = first.manifest.start_lsn;
        loop {
            let coverage = archived.coverage(&way.history, from, None);
            let Some(next) = archived.next_after(&way.history, coverage.missing.number) else {
                return holes;
            };
            let stored_at = archived.stored_from(next);
            let hole = Hole {
                first: coverage.missing,
                last: next.number - 1,
                from: first,
                since: coverage.stored_at,
                until: behind(next.number),
                is_young: stored_at.is_some_and(|at| self.latest.duration_since(at) <= ON_ITS_WAY),
            };
            if !self.was_never_promised(way, &hole) {
                holes.push(hole);
            }
            from = next.start_lsn(size);
        }
    }

    /// Backups that store their own WAL, and no archiver, leave a hole between each two. The archiver's note of the
    /// backup before it tells that there was one. When a layer beside it is gone, which a merge or an expiry has taken,
    /// the notes of the timelines tell it.
    fn was_never_promised(&self, way: &RecoveryPath<'_>, hole: &Hole<'_>) -> bool {
        let size = self.archived.segment_size();
        let begins_a_layer = hole.until.is_some_and(|layer| {
            let (start, _) = own_segments(layer, size);
            start.number == hole.last + 1
        });
        if begins_a_layer && self.begins.contains(&hole.first.number) {
            return true;
        }
        let number = hole.last;
        let last = WalSegment {
            number,
            ..hole.first
        }
        .start_lsn(size);
        let first = hole.first.timeline;
        let last = way.history.timeline_at(last).unwrap_or(first).max(first);
        let passed = way.history.entries().iter().map(|entry| entry.timeline);
        let mut passed = passed.filter(|passed| (first..=last).contains(passed));
        passed.all(|timeline| self.archivers.had_none(timeline))
    }
}

impl Hole<'_> {
    /// What is missing, in words.
    pub(crate) fn describe(&self, archived: &ArchivedWal) -> String {
        let size = archived.segment_size();
        let name = |number| {
            WalSegment {
                number,
                ..self.first
            }
            .file_name(size)
        };
        let first = name(self.first.number);
        let what = match self.last - self.first.number {
            0 => format!("WAL segment {first} is missing"),
            more => format!(
                "WAL segments {first} to {}, {}, are missing",
                name(self.last),
                more + 1
            ),
        };
        let since = self.since.map_or_else(String::new, |since| {
            format!("; the one before was stored at {since}")
        });
        format!("{what} from the archive, though later ones are there{since}")
    }

    fn alarm(&self, archived: &ArchivedWal) -> Alarm {
        let since = match self.since {
            Some(since) => format!("after {since}"),
            None => format!("after the end of {}", self.from.label),
        };
        let (lost, then) = match self.until {
            Some(layer) => (
                format!(
                    "no moment {since} and before the end of {}, {}",
                    layer.label, layer.manifest.finished_at
                ),
                "otherwise that time stays lost",
            ),
            None => (format!("no moment {since}"), "otherwise take a backup now"),
        };
        let (severity, so_far) = match self.is_young {
            true => (
                Severity::Warning,
                "; those were stored within the last 90 seconds, so it may be on its way",
            ),
            false => (Severity::Error, ""),
        };
        Alarm {
            severity,
            kind: AlarmKind::WalHole,
            layer: None,
            reason: self.describe(archived) + so_far,
            lost: Some(lost),
            to_do: format!(
                "look for them in the server's pg_wal and in other archives, and store each with \
                 \"pgstrata archive-push FILE\"; {then}"
            ),
        }
    }
}
