//! WAL: what is missing on the ways that recoveries take.
//!
//! What was promised is judged, not what there once was: a restore from any usable layer goes on along the WAL of its
//! timeline, and of each timeline that begins there, to its end, unless an expiry has given that WAL up: then the layer's
//! own end is all that was promised.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use pgstrata_pgdata::timeline::TimelineEntry;
use pgstrata_pgdata::{Lsn, TimelineHistory, TimelineId, WalSegment};
use pgstrata_store::archive::ArchivedWal;
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::error::Error;

use super::archivers::{Archivers, Pledge};
use super::layers::usable;
use super::{Alarm, AlarmKind, ON_ITS_WAY, Severity};

/// What is said of a hole that may be none.
pub(crate) const DOUBTFUL: &str = "; no archiver has left a note: if the server never archived, backups that were expired or merged \
    have left that WAL";

/// WAL that is missing on the way from a layer to the end of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole<'a> {
    /// The first segment that is missing.
    pub(crate) first: WalSegment,
    /// Number of the last one.
    pub(crate) last: u64,
    /// The layer from which recovery comes there.
    pub(crate) from: &'a Layer,
    /// When the WAL before it was stored, or the timeline begun that begins with it: the last moment that can be reached.
    pub(crate) since: Option<Timestamp>,
    /// The first layer behind it.
    pub(crate) until: Option<&'a Layer>,
    /// Whether that WAL was promised, or only may have been.
    pub(crate) is_firm: bool,
    /// What lies behind it was stored just now: what is missing may be on its way.
    pub(crate) is_young: bool,
}

/// The way of a recovery: from the first layer of a history to the history's end.
#[derive(Clone, Debug)]
pub(crate) struct RecoveryPath<'a> {
    pub(crate) layer: &'a Layer,
    pub(crate) history: TimelineHistory,
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

/// The WAL that is missing on any way, each hole once.
pub(crate) fn holes<'a>(
    catalog: &'a Catalog,
    archived: &ArchivedWal,
    now: Timestamp,
) -> Vec<Hole<'a>> {
    let between = Between {
        archived,
        archivers: Archivers::seen(catalog, archived),
        usable: usable(catalog, Some(archived)),
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

/// What holes lie between.
struct Between<'a, 'b> {
    archived: &'b ArchivedWal,
    archivers: Archivers,
    /// In the order in which they start.
    usable: Vec<&'a Layer>,
    latest: Timestamp,
}

impl<'a> Between<'a, '_> {
    fn holes(&self, way: &RecoveryPath<'a>) -> Vec<Hole<'a>> {
        let (archived, size) = (self.archived, self.archived.segment_size());
        let layers = self.usable.iter().copied();
        let layers: Vec<&Layer> = layers.filter(|layer| passes(&way.history, layer)).collect();
        let start = |layer: &Layer| layer.manifest.start_lsn.segment(size);
        // Nobody goes on from a layer whose WAL behind its end was given up: what is missing there was meant to be.
        let goes_on = |layer: &&&Layer| archived.goes_on_along(&way.history, &layer.manifest);
        let Some(first) = layers.iter().find(goes_on).copied() else {
            return Vec::new();
        };
        let behind = |number| {
            let at = layers.partition_point(|layer| start(layer) < number);
            layers.get(at).copied()
        };
        let stretches = archived.stretches(&way.history, first.manifest.start_lsn);
        let missing = stretches.into_iter().filter_map(|(coverage, next)| {
            let missing = coverage.missing;
            // Unless what is missing is the first segment of a timeline.
            let begun_at = || archived.history_stored_at(missing.timeline);
            Some((missing, next?, coverage.stored_at.or_else(begun_at)))
        });
        let mut missing: Vec<Missing> = missing.collect();
        for beheaded in beheaded(archived, way, first) {
            let number = beheaded.0.number;
            let is_known = |known: &Missing| (known.0.number..known.1.number).contains(&number);
            if !missing.iter().any(is_known) {
                missing.push(beheaded);
            }
        }
        let holes = missing.into_iter().filter_map(|(missing, next, since)| {
            let last = next.number - 1;
            let promise = self.archivers.promised(&way.history, (last, next), size);
            let stored_at = archived.stored_from(next);
            (promise != Pledge::None).then(|| Hole {
                is_firm: promise == Pledge::Firm,
                first: missing,
                last,
                from: first,
                since,
                until: behind(next.number),
                is_young: stored_at.is_some_and(|at| self.latest.duration_since(at) <= ON_ITS_WAY),
            })
        });
        holes.collect()
    }
}

/// The first segment that is missing, the next one that is there, and until when WAL was stored before it.
type Missing = (WalSegment, WalSegment, Option<Timestamp>);

/// Segments in which a timeline of the way begins, of which the archive has the older timeline's copy alone, though it has
/// later ones: that copy goes on where the new timeline did not.
fn beheaded(archived: &ArchivedWal, way: &RecoveryPath<'_>, from: &Layer) -> Vec<Missing> {
    let size = archived.segment_size();
    let start = from.manifest.start_lsn;
    let entries = way.history.entries().iter().enumerate().skip(1);
    let begins = entries.filter_map(|(at, entry)| {
        let number = entry.begin.segment(size);
        // Another timeline may begin in the same segment, and its copy has all of the ones before.
        let mut later = way.history.entries()[at + 1..].iter();
        let is_last = later.all(|later| later.begin.segment(size) != number);
        let timeline = entry.timeline;
        (is_last && number >= start.segment(size)).then_some(WalSegment { timeline, number })
    });
    let missing = begins.filter(|segment| !archived.holds(*segment));
    let missing = missing.filter_map(|segment| {
        let next = archived.next_after(&way.history, segment.number)?;
        let begun_at = archived.history_stored_at(segment.timeline);
        Some((segment, next, begun_at))
    });
    missing.collect()
}

/// A timeline that nobody can follow, although the archive has files of it or of a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostHistory {
    pub(crate) timeline: TimelineId,
    /// What is wrong with it, for people.
    problem: String,
    /// Whether there is WAL of that timeline; else recoveries from before it ask for it all the same, and stop.
    has_wal: bool,
    /// It is there, and cannot be read.
    is_there: bool,
    /// The layers on that timeline.
    layers: Vec<String>,
    /// The last of the WAL came just now: the history may be on its way.
    is_young: bool,
}

/// Timelines that a restore from some layer may have to follow, and cannot.
pub(crate) fn lost_histories(
    catalog: &Catalog,
    archived: &ArchivedWal,
    now: Timestamp,
) -> Vec<LostHistory> {
    let mut layers: BTreeMap<TimelineId, Vec<String>> = BTreeMap::new();
    for layer in &catalog.layers {
        let of_timeline = layers.entry(layer.manifest.timeline).or_default();
        of_timeline.push(layer.label.to_string());
    }
    histories_lost_to(&layers, archived, now)
}

/// The same when nobody knows on which timelines layers are: on any that has WAL.
pub(crate) fn histories_lost_to_any(archived: &ArchivedWal, now: Timestamp) -> Vec<LostHistory> {
    let with_wal = archived.timelines();
    let layers = with_wal.map(|timeline| (timeline, Vec::new())).collect();
    histories_lost_to(&layers, archived, now)
}

/// A server that recovers asks for the history of its layer's timeline, then for those of the next ones, and takes the first
/// that is not there for the end of them.
fn histories_lost_to(
    layers: &BTreeMap<TimelineId, Vec<String>>,
    archived: &ArchivedWal,
    now: Timestamp,
) -> Vec<LostHistory> {
    let Some((oldest, _)) = layers.first_key_value() else {
        return Vec::new();
    };
    let all = archived.by_timeline().map(|(timeline, _)| timeline);
    let all: BTreeSet<TimelineId> = all.chain(layers.keys().copied()).collect();
    let asked = archived.latest_from(*oldest).get().checked_add(1);
    let asked = asked.map(TimelineId::new);
    let asked = asked.filter(|next| all.last().is_some_and(|last| last >= next));
    let suspects = all.range(*oldest..).copied().chain(asked);
    let suspects: BTreeSet<TimelineId> = suspects.collect();
    let latest = archived.newest_at().max(now);
    let lost = suspects.into_iter().filter_map(|timeline| {
        let problem = archived.history_problem(timeline)?;
        let has_wal = !archived.runs(timeline).is_empty();
        let is_there = archived.has_history(timeline);
        let layers = layers.get(&timeline);
        if !(has_wal || is_there || layers.is_some() || asked == Some(timeline)) {
            return None;
        }
        let stored_at = archived.runs(timeline).last().map(|run| run.stored_at);
        let is_fresh = stored_at.is_some_and(|at| latest.duration_since(at) <= ON_ITS_WAY);
        Some(LostHistory {
            timeline,
            problem,
            has_wal,
            is_there,
            layers: layers.cloned().unwrap_or_default(),
            is_young: is_fresh && !is_there,
        })
    });
    lost.collect()
}

/// What to do about a history that is missing or damaged.
pub(crate) fn without_history(timeline: TimelineId) -> String {
    format!(
        "run \"pgstrata archive-push {}\" with the file out of pg_wal of the server, of a standby, or out of another archive; a \
         backup of the server stores it, too",
        timeline.history_file_name()
    )
}

impl LostHistory {
    /// What is wrong, in words.
    pub(crate) fn describe(&self) -> String {
        let name = self.timeline.history_file_name();
        let (timeline, problem) = (self.timeline, &self.problem);
        let though = match self.has_wal {
            true => "WAL of that timeline is there",
            false => "files of that timeline, or of a later one, are there",
        };
        format!("the history of timeline {timeline}, {name}, {problem}, though {though}")
    }

    /// Whether it may be on its way.
    pub(crate) fn is_young(&self) -> bool {
        self.is_young
    }

    pub(super) fn alarm(&self) -> Alarm {
        let timeline = self.timeline;
        let mut lost = format!("no moment on timeline {timeline}, nor on one that leaves it later");
        if !self.layers.is_empty() {
            lost.push_str(&format!("; nor {}", self.layers.join(", ")));
        }
        if self.is_there {
            lost.push_str(
                "; any other one only by a restore that names its timeline (--target-timeline)",
            );
        }
        let severity = match self.is_young {
            true => Severity::Warning,
            false => Severity::Error,
        };
        let mut to_do = without_history(timeline);
        if self.is_there && !self.has_wal && self.layers.is_empty() {
            to_do.push_str("; when no server of yours has been on that timeline, somebody has added the object: delete it");
        }
        Alarm {
            severity,
            kind: AlarmKind::Archive,
            layer: None,
            reason: self.describe(),
            lost: Some(lost),
            to_do,
        }
    }
}

/// Timelines of which there is nothing but a history, which leaves another one where that has WAL or layers behind: nobody knows
/// which of them a restore is to follow.
pub(super) fn bare_timelines(catalog: &Catalog, archived: &ArchivedWal) -> Vec<Alarm> {
    let holds = |timeline: TimelineId, from: Lsn| {
        let number = from.segment(archived.segment_size());
        let mut layers = catalog.layers.iter().map(|layer| &layer.manifest);
        archived.tail(timeline, number).is_some()
            || layers.any(|layer| layer.timeline == timeline && layer.stop_lsn > from)
    };
    let layers = catalog.layers.iter();
    let latest = layers.map(|layer| archived.latest_from(layer.manifest.timeline));
    let latest: BTreeSet<TimelineId> = latest.collect();
    let bare = latest.into_iter().filter_map(|timeline| {
        let history = archived.history(timeline);
        let entries = history.entries();
        let lived = |entry: &TimelineEntry| holds(entry.timeline, entry.begin);
        let at = entries.iter().rposition(lived)?;
        let (left, bare) = (entries.get(at)?, entries.get(at + 1)?);
        holds(left.timeline, bare.begin).then(|| bare_timeline(left.timeline, bare))
    });
    bare.collect()
}

fn bare_timeline(left: TimelineId, bare: &TimelineEntry) -> Alarm {
    let TimelineEntry {
        timeline, begin, ..
    } = bare;
    Alarm {
        severity: Severity::Warning,
        kind: AlarmKind::Timelines,
        layer: None,
        reason: format!(
            "of timeline {timeline}, which left timeline {left} at {begin}, there is nothing but its history, and of timeline {left} \
             there is more behind that point: a restore to the end asks which one is meant"
        ),
        lost: None,
        to_do: format!(
            "if a server of yours goes on along timeline {timeline}, run \"select pg_switch_wal()\" on it, and take a backup; when it \
             is sure that no server of yours ever was on that timeline, somebody has added \"{}\": only then delete the object",
            timeline.history_file_name()
        ),
    }
}

/// A restore of the newest state would be refused, because nobody knows which server's that is.
pub(super) fn branches(refused: &Error) -> Alarm {
    let mut to_do = "when one server goes on alone, take a backup of it: restores follow that one then; when another one goes on \
                     beside it, give that a cluster of its own (\"pgstrata init\")"
        .to_owned();
    if let Some(hint) = refused.hint_text() {
        to_do.push_str(&format!(". Who restores before that: {hint}"));
    }
    Alarm {
        severity: Severity::Warning,
        kind: AlarmKind::Timelines,
        layer: None,
        reason: format!("a restore of the newest state would be refused: {refused}"),
        lost: None,
        to_do,
    }
}

/// Segments behind the first layer that are there and cannot be read, as far as their lengths tell.
pub(super) fn damaged(catalog: &Catalog, archived: &ArchivedWal) -> Option<Alarm> {
    let size = archived.segment_size();
    let starts = catalog.layers.iter();
    let first = starts
        .map(|layer| layer.manifest.start_lsn.segment(size))
        .min()?;
    let behind = |segment: &WalSegment| segment.number >= first && !archived.was_released(*segment);
    let mut damaged = archived.damaged().filter(|(segment, _)| behind(segment));
    let (segment, why) = damaged.next()?;
    let more = match damaged.count() {
        0 => String::new(),
        more => format!("; and {more} more are damaged"),
    };
    Some(Alarm {
        severity: Severity::Error,
        kind: AlarmKind::Archive,
        layer: None,
        reason: format!("WAL segment {} is damaged: {why}{more}", segment.file_name(size)),
        lost: Some(format!(
            "no moment behind the segment before it, from layers that started before, on timeline {}",
            segment.timeline
        )),
        to_do: "store it again with \"pgstrata archive-push FILE\" out of the server's pg_wal or another archive; otherwise \
                take a backup now"
            .to_owned(),
    })
}

/// Records of WAL that was given up, which cannot be read.
pub(super) fn unread_releases(archived: &ArchivedWal) -> impl Iterator<Item = Alarm> {
    archived.unread_releases().iter().map(|why| Alarm {
        severity: Severity::Warning,
        kind: AlarmKind::Archive,
        layer: None,
        reason: format!("it is not known which WAL was given up on purpose: {why}"),
        lost: None,
        to_do: "take WAL that is said to be missing for WAL that may have been given up; the next \"pgstrata expire\" with \
                --keep-wal writes down anew what is given up"
            .to_owned(),
    })
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
            format!("; WAL before it was stored until {since}")
        });
        format!("{what} from the archive, though later ones are there{since}")
    }

    pub(super) fn alarm(&self, archived: &ArchivedWal) -> Alarm {
        let since = match self.since {
            Some(since) => format!("after {since}"),
            None => format!("after the end of {}", self.from.label),
        };
        let timeline = self.first.timeline;
        let (lost, then) = match self.until {
            Some(layer) => (
                format!(
                    "no moment on timeline {timeline} {since} and before the end of {}, {}",
                    layer.label, layer.manifest.finished_at
                ),
                "otherwise that time stays lost",
            ),
            None => (
                format!("no moment on timeline {timeline} {since}"),
                "otherwise take a backup now",
            ),
        };
        let (severity, so_far) = match (self.is_young, self.is_firm) {
            (true, _) => (
                Severity::Warning,
                "; those were stored within the last 90 seconds, so it may be on its way",
            ),
            (false, false) => (Severity::Warning, DOUBTFUL),
            (false, true) => (Severity::Error, ""),
        };
        Alarm {
            severity,
            kind: AlarmKind::WalHole,
            layer: None,
            reason: self.describe(archived) + so_far,
            lost: Some(lost),
            to_do: format!(
                "where another repository has them, \"pgstrata copy\" out of it brings them; otherwise look for them in the \
                 server's pg_wal and in other archives, and store each with \"pgstrata archive-push FILE\"; {then}; when nobody is to restore to that time, give up WAL between \
                 layers that is older: add --keep-wal, for example --keep-wal 1d, to your \"pgstrata expire\""
            ),
        }
    }
}
