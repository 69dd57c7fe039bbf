//! WAL: what is missing on the ways that recoveries take.
//!
//! What was promised is judged, not what there once was: a restore from any usable layer goes on along the WAL of its
//! timeline, and of each timeline that begins there, to its end, unless an expiry has given that WAL up: then the layer's
//! own end is all that was promised.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use jiff::Timestamp;
use pgstrata_pgdata::{TimelineHistory, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{ArchivedTimeline, ArchivedWal, SegmentRun};
use pgstrata_store::catalog::{Catalog, Layer};

use super::layers::usable;
use super::{Alarm, AlarmKind, ON_ITS_WAY, Severity};

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

/// The WAL that a layer needs for itself.
#[derive(Clone, Copy, Debug)]
struct OwnWal {
    first: WalSegment,
    /// Number of the last segment.
    last: u64,
    from_standby: bool,
}

impl OwnWal {
    fn of(layer: &Layer, size: WalSegmentSize) -> Self {
        let manifest = &layer.manifest;
        let timeline = manifest.timeline;
        Self {
            first: WalSegment::containing(timeline, manifest.start_lsn, size),
            last: WalSegment::containing_end(timeline, manifest.stop_lsn, size).number,
            from_standby: manifest.from_standby,
        }
    }

    fn numbers(&self) -> RangeInclusive<u64> {
        self.first.number..=self.last
    }
}

/// Where the archive shows an archiver at work. From there on WAL without a hole is promised, whatever became of the
/// archiver. Before, backups that store their own WAL leave a hole between each two, and nobody had promised more.
///
/// The archiver notes the end of a backup, and it stores segments that no backup stores for itself. Such a segment lies beside
/// the own WAL of a layer that is there. Segments that lie by themselves may be the own WAL of a layer that a merge or an expiry has
/// taken: they tell nothing. So may all of a timeline without a layer, unless an archiver is seen on another.
#[derive(Debug, Default)]
struct Archivers {
    /// The first sign of it on each timeline: the number of a segment.
    since: BTreeMap<TimelineId, u64>,
    /// First segments of runs that layers may have stored for themselves.
    own: BTreeSet<WalSegment>,
}

impl Archivers {
    fn seen(catalog: &Catalog, archived: &ArchivedWal) -> Self {
        let size = archived.segment_size();
        let layers = catalog.layers.iter();
        Self::beside(layers.map(|layer| OwnWal::of(layer, size)), archived)
    }

    fn beside(layers: impl Iterator<Item = OwnWal>, archived: &ArchivedWal) -> Self {
        let mut of_layers: BTreeMap<TimelineId, Vec<OwnWal>> = BTreeMap::new();
        for own in layers {
            of_layers.entry(own.first.timeline).or_default().push(own);
        }
        let mut seen = Self::default();
        let is_told = |timeline: &TimelineId, found: &ArchivedTimeline| {
            of_layers.contains_key(timeline) || !found.backup_labels.is_empty()
        };
        let (told, silent): (Vec<_>, Vec<_>) = archived
            .by_timeline()
            .partition(|(timeline, found)| is_told(timeline, found));
        for (timeline, found) in told {
            let mut own = of_layers.remove(&timeline).unwrap_or_default();
            own.sort_unstable_by_key(|own| own.first);
            // Nobody notes the end of a standby's backups. Where there are any, any segment tells.
            let all_tell = own.iter().any(|own| own.from_standby);
            seen.look(timeline, found, &own, all_tell);
        }
        let is_anywhere = !seen.since.is_empty();
        for (timeline, found) in silent {
            seen.look(timeline, found, &[], is_anywhere);
        }
        seen
    }

    fn look(
        &mut self,
        timeline: TimelineId,
        found: &ArchivedTimeline,
        own: &[OwnWal],
        all_tell: bool,
    ) {
        self.note(timeline, found.backup_labels.first().copied());
        let mut passed = 0;
        for run in &found.runs {
            passed += own[passed..].partition_point(|own| own.last < run.first);
            let behind = own.partition_point(|own| own.first.number <= run.last);
            let own = &own[passed..behind.max(passed)];
            let strange = first_strange(run, own);
            let tells = all_tell || !own.is_empty();
            self.note(timeline, strange.filter(|_| tells));
            if !tells || strange != Some(run.first) {
                let number = run.first;
                self.own.insert(WalSegment { timeline, number });
            }
        }
    }

    fn note(&mut self, timeline: TimelineId, number: Option<u64>) {
        if let Some(number) = number {
            let first = self.since.entry(timeline).or_insert(number);
            *first = number.min(*first);
        }
    }

    /// Whether nothing shows an archiver on the way up to segment `last`, and what comes behind it was stored by a backup for
    /// itself.
    fn never_promised(
        &self,
        history: &TimelineHistory,
        (last, next): (u64, WalSegment),
        size: WalSegmentSize,
    ) -> bool {
        let mut passed = history.entries().iter();
        let was_at_work = passed.any(|entry| {
            let until = entry.end.map_or(last, |end| end.segment(size).min(last));
            let since = self.since.get(&entry.timeline);
            since.is_some_and(|since| *since <= until)
        });
        !was_at_work && self.own.contains(&next)
    }
}

/// The first segment of a run that is none of a layer's own.
fn first_strange(run: &SegmentRun, own: &[OwnWal]) -> Option<u64> {
    let mut next = run.first;
    for own in own {
        if own.numbers().contains(&next) {
            next = own.last + 1;
        }
    }
    (next <= run.last).then_some(next)
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
        let goes_on = |layer: &&&Layer| !archived.was_released(start(layer));
        let Some(first) = layers.iter().find(goes_on).copied() else {
            return Vec::new();
        };
        let behind = |number| {
            let at = layers.partition_point(|layer| start(layer) < number);
            layers.get(at).copied()
        };
        let stretches = archived.stretches(&way.history, first.manifest.start_lsn);
        let missing = stretches
            .into_iter()
            .filter_map(|(coverage, next)| Some((coverage.missing, next?, coverage.stored_at)));
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
            let is_free = self
                .archivers
                .never_promised(&way.history, (last, next), size);
            let stored_at = archived.stored_from(next);
            (!is_free).then(|| Hole {
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

/// The first segment that is missing, the next one that is there, and when the one before was stored.
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
        let before = segment.number.checked_sub(1);
        let before = archived.coverage(&way.history, start, before);
        Some((segment, next, before.stored_at))
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
            layers: layers.cloned().unwrap_or_default(),
            is_young: is_fresh && !is_there,
        })
    });
    lost.collect()
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
        let severity = match self.is_young {
            true => Severity::Warning,
            false => Severity::Error,
        };
        Alarm {
            severity,
            kind: AlarmKind::Archive,
            layer: None,
            reason: self.describe(),
            lost: Some(lost),
            to_do: format!(
                "run \"pgstrata archive-push {}\" with the file out of pg_wal of the server, of a standby, or out of another \
                 archive; a backup of the server stores it, too",
                timeline.history_file_name()
            ),
        }
    }
}

/// Segments behind the first layer that are there and cannot be read, as far as their lengths tell.
pub(super) fn damaged(catalog: &Catalog, archived: &ArchivedWal) -> Option<Alarm> {
    let size = archived.segment_size();
    let starts = catalog.layers.iter();
    let first = starts
        .map(|layer| layer.manifest.start_lsn.segment(size))
        .min()?;
    let behind =
        |segment: &WalSegment| segment.number >= first && !archived.was_released(segment.number);
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
                 \"pgstrata archive-push FILE\"; {then}; when nobody is to restore to that time, \
                 an \"expire --keep-wal\" gives up WAL between layers"
            ),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use pgstrata_pgdata::Lsn;

    use super::*;

    const ONE: TimelineId = TimelineId::FIRST;
    const TWO: TimelineId = TimelineId::new(2);

    fn segment(timeline: TimelineId, number: u64) -> WalSegment {
        WalSegment { timeline, number }
    }

    fn own(timeline: TimelineId, numbers: RangeInclusive<u64>) -> OwnWal {
        OwnWal {
            first: segment(timeline, *numbers.start()),
            last: *numbers.end(),
            from_standby: false,
        }
    }

    fn archive(runs: &[(TimelineId, RangeInclusive<u64>)]) -> ArchivedWal {
        let mut archived = ArchivedWal::new(WalSegmentSize::DEFAULT);
        for (timeline, numbers) in runs {
            for number in numbers.clone() {
                archived.add_segment(segment(*timeline, number), Timestamp::UNIX_EPOCH);
            }
        }
        archived
    }

    /// Whether a hole up to `last` was never promised, behind which `next` comes.
    fn is_free(
        layers: &[OwnWal],
        archived: &ArchivedWal,
        history: &TimelineHistory,
        (last, next): (u64, WalSegment),
    ) -> bool {
        let archivers = Archivers::beside(layers.iter().copied(), archived);
        archivers.never_promised(history, (last, next), archived.segment_size())
    }

    #[test]
    fn backups_that_store_their_own_wal_promise_nothing_between_them() {
        let archived = archive(&[(ONE, 3..=3), (ONE, 5..=6), (ONE, 9..=9)]);
        let history = TimelineHistory::first(ONE);
        let all = [own(ONE, 3..=3), own(ONE, 5..=6), own(ONE, 9..=9)];
        // Also when a merge or an expiry has taken a layer, and left its WAL.
        for layers in [&all[..], &[all[0], all[2]], &[all[0]]] {
            for (last, next) in [(4, 5), (8, 9)] {
                let place = (last, segment(ONE, next));
                assert!(is_free(layers, &archived, &history, place), "{layers:?}");
            }
        }
    }

    #[test]
    fn a_segment_that_no_backup_stored_for_itself_shows_an_archiver() {
        let history = TimelineHistory::first(ONE);
        let layers = [own(ONE, 3..=3), own(ONE, 7..=7), own(ONE, 12..=12)];
        // Behind the first layer, or before the second.
        for runs in [
            [(ONE, 3..=4), (ONE, 7..=7), (ONE, 12..=12)],
            [(ONE, 3..=3), (ONE, 6..=7), (ONE, 12..=12)],
        ] {
            let archived = archive(&runs);
            let place = (11, segment(ONE, 12));
            assert!(!is_free(&layers, &archived, &history, place), "{runs:?}");
        }
        // The archiver came later: nobody had promised what lies between the first two.
        let archived = archive(&[(ONE, 3..=3), (ONE, 7..=8), (ONE, 12..=12)]);
        assert!(is_free(&layers, &archived, &history, (6, segment(ONE, 7))));
        assert!(!is_free(
            &layers,
            &archived,
            &history,
            (11, segment(ONE, 12))
        ));
    }

    #[test]
    fn what_was_promised_on_a_timeline_is_promised_on_those_that_leave_it_later() {
        let size = WalSegmentSize::DEFAULT;
        let left_in = |number: u64| {
            let left = Lsn::new(number * size.get() + 40);
            TimelineHistory::parse(TWO, &format!("1\t{left}\twhy\n")).unwrap()
        };
        let layers = [own(ONE, 3..=3), own(TWO, 9..=9)];
        let archived = archive(&[(ONE, 3..=3), (ONE, 5..=6), (TWO, 9..=9)]);
        let place = (8, segment(TWO, 9));
        // Segments that lie by themselves tell nothing; those beside a layer do.
        assert!(is_free(&layers, &archived, &left_in(6), place));
        let archived = archive(&[(ONE, 3..=6), (TWO, 9..=9)]);
        assert!(!is_free(&layers, &archived, &left_in(6), place));
        // Unless they are of the branch that was given up.
        assert!(is_free(&layers, &archived, &left_in(3), place));
    }

    #[test]
    fn a_standby_is_told_by_any_segment_and_so_is_a_timeline_without_layers_beside_an_archiver() {
        let history = TimelineHistory::first(ONE);
        let runs = [(ONE, 3..=3), (ONE, 5..=6), (ONE, 9..=9)];
        let archived = archive(&runs);
        let mut layers = [own(ONE, 3..=3), own(ONE, 9..=9)];
        let place = (8, segment(ONE, 9));
        assert!(is_free(&layers, &archived, &history, place));
        layers[1].from_standby = true;
        assert!(!is_free(&layers, &archived, &history, place));
        // Without a layer they may be the WAL of those that an expiry has taken, unless the server archived on another timeline.
        let with_second = [&[(TWO, 4..=5)][..], &runs].concat();
        let archived = archive(&with_second);
        assert!(is_free(&[own(TWO, 4..=5)], &archived, &history, place));
        assert!(!is_free(&[own(TWO, 4..=4)], &archived, &history, place));
    }
}
