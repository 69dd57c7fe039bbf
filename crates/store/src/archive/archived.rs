//! What the archive holds of each timeline, as values: runs of segments, and how far they lead from a start.

mod promise;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::{TimelineEntry, TimelineHistory, TimelineId};
use pgstrata_pgdata::wal::{ArchiveFile, WalSegment, WalSegmentSize};

use crate::catalog::GivenUp;
use crate::error::Error;

/// Consecutive segments of one timeline, `first` to `last` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRun {
    /// Number of the first.
    pub first: u64,
    /// Number of the last.
    pub last: u64,
    /// When the first of them was stored.
    pub first_at: Timestamp,
    /// When the last of them was stored.
    pub stored_at: Timestamp,
    /// When the one was stored that came last.
    newest_at: Timestamp,
}

/// What the archive holds of a timeline from some segment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Number of the first segment.
    pub first: u64,
    /// Number of the last.
    pub last: u64,
    /// How many there are; less than `last - first + 1` when some are missing.
    pub count: u64,
    /// When the segment was stored that came last; of a run that began before, that of the whole run.
    pub newest_at: Timestamp,
}

/// The archive as recovery sees it: histories and whole segments.
#[derive(Clone, Debug)]
pub struct ArchivedWal {
    segment_size: WalSegmentSize,
    timelines: BTreeMap<TimelineId, ArchivedTimeline>,
    /// Partial segments, which take no part in recovery.
    partials: BTreeSet<(TimelineId, u64)>,
    /// Segments of which the time counts by itself, and when they were stored.
    watched: BTreeMap<(TimelineId, u64), Option<Timestamp>>,
    /// Segments whose objects are shorter than one can be, and why they cannot be read.
    short: BTreeMap<WalSegment, Option<String>>,
    /// Why histories that are there cannot be read.
    unreadable: BTreeMap<TimelineId, Error>,
    /// What expiries have given up.
    given_up: Vec<GivenUp>,
    /// Why it may be that less is promised.
    unread_releases: Vec<String>,
}

/// What is stored under one timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchivedTimeline {
    /// Whole segments, in order.
    pub runs: Vec<SegmentRun>,
    /// When its history was stored; `None` when that is not there.
    pub history_stored_at: Option<Timestamp>,
    /// Its history, when that was read.
    history: Option<TimelineHistory>,
    /// Numbers of the segments in which backups started whose end the server's archiver noted.
    pub backup_labels: BTreeSet<u64>,
    /// Total length of its objects, in bytes.
    pub stored_bytes: u64,
    /// Keys of objects that are no file of an archive.
    pub unknown: Vec<String>,
}

impl ArchivedTimeline {
    /// Number of whole segments.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.runs.iter().map(|run| run.last - run.first + 1).sum()
    }

    /// The runs of segments missing between the first and the last: numbers of the first and the last of each.
    pub fn gaps(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        let pairs = self.runs.windows(2);
        pairs.map(|pair| pair[0].last + 1..=pair[1].first - 1)
    }
}

/// How far the archive leads from some segment without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Segments in order, each on the timeline recovery would take it from. Empty when the first is missing.
    pub parts: Vec<(TimelineId, u64, u64)>,
    /// Where the WAL of the history ends: where `missing` begins, or the switch point in it when only the copy of the
    /// timeline is there that was left at that point.
    pub end: Lsn,
    /// The timeline whose WAL behind `end` a server would replay all the same, though it is not of the history.
    pub strays_to: Option<TimelineId>,
    /// The first segment that is not there.
    pub missing: WalSegment,
    /// Whether later segments are there, so that `missing` is a hole and not the end.
    pub more_after: bool,
    /// When the last segment before `missing` was stored; `None` when there is none, or when it is one within a run, of
    /// which only the last one's time is known.
    pub stored_at: Option<Timestamp>,
}

impl ArchivedWal {
    /// An empty one.
    #[must_use]
    pub fn new(segment_size: WalSegmentSize) -> Self {
        Self {
            segment_size,
            timelines: BTreeMap::new(),
            partials: BTreeSet::new(),
            watched: BTreeMap::new(),
            short: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            given_up: Vec::new(),
            unread_releases: Vec::new(),
        }
    }

    /// Remembers of these segments when each was stored, should they be added later.
    pub fn watch(&mut self, segments: impl Iterator<Item = WalSegment>) {
        let keys = segments.map(|segment| ((segment.timeline, segment.number), None));
        self.watched.extend(keys);
    }

    /// When a watched segment was stored.
    #[must_use]
    pub fn watched_at(&self, segment: WalSegment) -> Option<Timestamp> {
        *self.watched.get(&(segment.timeline, segment.number))?
    }

    /// Adds a history, stored at that time.
    pub fn add_history(&mut self, history: TimelineHistory, stored_at: Timestamp) {
        let found = self.timelines.entry(history.timeline()).or_default();
        found.history_stored_at = Some(stored_at);
        found.history = Some(history);
    }

    /// The segments whose objects are shorter than one can be, and why they cannot be read, as far as that was looked at.
    pub(super) fn short(&mut self) -> &mut BTreeMap<WalSegment, Option<String>> {
        &mut self.short
    }

    /// The segments that are known to be damaged, and why.
    pub fn damaged(&self) -> impl Iterator<Item = (WalSegment, &str)> {
        let short = self.short.iter();
        short.filter_map(|(segment, why)| Some((*segment, why.as_deref()?)))
    }

    /// Remembers that the history of `timeline` is there, and why it cannot be read.
    pub fn add_unreadable(&mut self, timeline: TimelineId, why: Error) {
        self.unreadable.insert(timeline, why);
    }

    /// The timelines whose histories are there and could not be read, and why.
    #[must_use]
    pub fn unreadable_histories(&self) -> &BTreeMap<TimelineId, Error> {
        &self.unreadable
    }

    /// Why nobody can follow `timeline`: its history is not there, or could not be read; `None` when nothing is known against
    /// it. The first timeline has no history.
    #[must_use]
    pub fn history_problem(&self, timeline: TimelineId) -> Option<String> {
        match self.unreadable.get(&timeline) {
            Some(why) => Some(format!("cannot be read: {why}")),
            None if timeline == TimelineId::FIRST || self.has_history(timeline) => None,
            None => Some("is missing from the archive".to_owned()),
        }
    }

    /// When the history of `timeline` was stored: soon after the promotion that began it.
    #[must_use]
    pub fn history_stored_at(&self, timeline: TimelineId) -> Option<Timestamp> {
        self.timelines.get(&timeline)?.history_stored_at
    }

    /// Every timeline of which there is a whole segment.
    pub fn timelines(&self) -> impl Iterator<Item = TimelineId> {
        let with_wal = self.timelines.iter();
        let with_wal = with_wal.filter(|(_, found)| !found.runs.is_empty());
        with_wal.map(|(timeline, _)| *timeline)
    }

    /// Every timeline of which anything is stored, oldest first.
    pub fn by_timeline(&self) -> impl Iterator<Item = (TimelineId, &ArchivedTimeline)> {
        let all = self.timelines.iter();
        all.map(|(timeline, found)| (*timeline, found))
    }

    /// What is stored under `timeline`.
    pub(super) fn of_timeline(&mut self, timeline: TimelineId) -> &mut ArchivedTimeline {
        self.timelines.entry(timeline).or_default()
    }

    /// What there is of `timeline` from segment `from` on.
    #[must_use]
    pub fn tail(&self, timeline: TimelineId, from: u64) -> Option<Tail> {
        let runs = self.runs(timeline).iter().filter(|run| run.last >= from);
        let each = runs.map(|run| {
            let first = run.first.max(from);
            Tail {
                first,
                last: run.last,
                count: run.last - first + 1,
                newest_at: run.newest_at,
            }
        });
        each.reduce(|one, next| Tail {
            first: one.first,
            last: next.last,
            count: one.count + next.count,
            newest_at: one.newest_at.max(next.newest_at),
        })
    }

    /// Adds a segment. Numbers of one timeline come in ascending order.
    pub fn add_segment(&mut self, segment: WalSegment, stored_at: Timestamp) {
        if let Some(time) = self.watched.get_mut(&(segment.timeline, segment.number)) {
            *time = Some(stored_at);
        }
        let runs = &mut self.timelines.entry(segment.timeline).or_default().runs;
        match runs.last_mut() {
            Some(run) if segment.number <= run.last => {}
            Some(run) if segment.number == run.last + 1 => {
                run.last = segment.number;
                run.stored_at = stored_at;
                run.newest_at = run.newest_at.max(stored_at);
            }
            _ => runs.push(SegmentRun {
                first: segment.number,
                last: segment.number,
                first_at: stored_at,
                stored_at,
                newest_at: stored_at,
            }),
        }
    }

    /// Adds the note of a backup that began in `segment`.
    pub fn add_backup_label(&mut self, segment: WalSegment) {
        let found = self.of_timeline(segment.timeline);
        found.backup_labels.insert(segment.number);
    }

    /// Adds the partial segment of that name.
    pub fn add_partial(&mut self, segment: WalSegment) {
        self.partials.insert((segment.timeline, segment.number));
    }

    /// Whether the file is there; of labels of backups nobody knows.
    #[must_use]
    pub fn holds_file(&self, file: ArchiveFile) -> bool {
        match file {
            ArchiveFile::Segment(segment) => self.holds(segment),
            ArchiveFile::Partial(segment) => {
                let key = (segment.timeline, segment.number);
                self.partials.contains(&key)
            }
            ArchiveFile::History(timeline) => self.has_history(timeline),
            ArchiveFile::BackupLabel { .. } => false,
        }
    }

    /// Whether the segment is there.
    #[must_use]
    pub fn holds(&self, segment: WalSegment) -> bool {
        self.run_of(segment).is_some()
    }

    /// Whether every segment of `other` is there.
    #[must_use]
    pub fn holds_all_of(&self, other: &Self) -> bool {
        other.by_timeline().all(|(timeline, found)| {
            found.runs.iter().all(|run| {
                let number = run.first;
                let here = self.run_of(WalSegment { timeline, number });
                here.is_some_and(|here| run.last <= here.last)
            })
        })
    }

    /// The run that holds the segment.
    fn run_of(&self, segment: WalSegment) -> Option<&SegmentRun> {
        let runs = self.runs(segment.timeline);
        let at = runs.partition_point(|run| run.last < segment.number);
        runs.get(at).filter(|run| run.first <= segment.number)
    }

    /// Size of its segments.
    #[must_use]
    pub fn segment_size(&self) -> WalSegmentSize {
        self.segment_size
    }

    /// Its whole segments of `timeline`, in order.
    #[must_use]
    pub fn runs(&self, timeline: TimelineId) -> &[SegmentRun] {
        let found = self.timelines.get(&timeline);
        found.map_or(&[], |found| found.runs.as_slice())
    }

    /// Whether the history of `timeline` is there.
    #[must_use]
    pub fn has_history(&self, timeline: TimelineId) -> bool {
        self.history_stored_at(timeline).is_some()
    }

    /// The way to `timeline`; one without a history file began with the cluster, as far as anyone can tell.
    #[must_use]
    pub fn history(&self, timeline: TimelineId) -> TimelineHistory {
        let known = self.timelines.get(&timeline);
        let known = known.and_then(|found| found.history.clone());
        known.unwrap_or_else(|| TimelineHistory::first(timeline))
    }

    /// What `recovery_target_timeline = 'latest'` means to a server on `timeline`: like the server, counts up as long
    /// as there is a history file.
    #[must_use]
    pub fn latest_from(&self, timeline: TimelineId) -> TimelineId {
        let mut newest = timeline;
        while let Some(next) = newest.get().checked_add(1).map(TimelineId::new) {
            if !self.has_history(next) {
                break;
            }
            newest = next;
        }
        newest
    }

    /// Follows `history` from the segment holding `start` as far as segments reach, but not beyond segment `limit`.
    ///
    /// A segment in which a timeline begins is there once for each timeline that passes through it. The old one's copy
    /// holds the history up to the switch point, and behind it what was abandoned there. A server that does not find the
    /// new one's copy takes the old one's and replays all of it, and the segments of the old timeline behind it too.
    #[must_use]
    pub fn coverage(&self, history: &TimelineHistory, start: Lsn, limit: Option<u64>) -> Coverage {
        let mut end = start;
        let mut parts: Vec<(TimelineId, u64, u64)> = Vec::new();
        let (mut stored_at, mut strays_to) = (None, None);
        loop {
            let number = end.segment(self.segment_size);
            if limit.is_some_and(|limit| number > limit) {
                break;
            }
            let before = parts.last().map(|part| part.0);
            let Some((entry, run)) = self.taken(history, number, before) else {
                break;
            };
            let timeline = entry.timeline;
            if entry.end.is_some_and(|left| left <= end) {
                strays_to = Some(timeline);
                break;
            }
            let last = self.last_alone(entry).max(number).min(run.last);
            let last = limit.map_or(last, |limit| last.min(limit));
            match parts.last_mut() {
                Some(part) if part.0 == timeline => part.2 = last,
                _ => parts.push((timeline, number, last)),
            }
            stored_at = (last == run.last).then_some(run.stored_at);
            let whole = self.start_of(last.saturating_add(1));
            end = entry.end.map_or(whole, |left| left.min(whole));
        }
        let missing = self.missing_at(history, end, strays_to.is_some());
        Coverage {
            parts,
            end,
            strays_to,
            missing,
            more_after: self.next_after(history, missing.number).is_some(),
            stored_at,
        }
    }

    /// All WAL along `history` from the segment holding `start` on, in stretches: with each comes the first segment behind the hole
    /// that ends it, and with the last one none.
    #[must_use]
    pub fn stretches(
        &self,
        history: &TimelineHistory,
        start: Lsn,
    ) -> Vec<(Coverage, Option<WalSegment>)> {
        let (mut stretches, mut from) = (Vec::new(), start);
        loop {
            let coverage = self.coverage(history, from, None);
            let next = self.next_after(history, coverage.missing.number);
            stretches.push((coverage, next));
            match next {
                Some(next) => from = next.start_lsn(self.segment_size),
                None => return stretches,
            }
        }
    }

    /// The segment that is wanted at `end`: of one that is there in part the copy of the newest timeline.
    fn missing_at(&self, history: &TimelineHistory, end: Lsn, in_part: bool) -> WalSegment {
        let number = end.segment(self.segment_size);
        let wanted = match in_part {
            true => Lsn::new(self.start_of(number.saturating_add(1)).get() - 1),
            false => self.start_of(number),
        };
        let timeline = history.timeline_at(wanted);
        WalSegment {
            timeline: timeline.unwrap_or(history.timeline()),
            number,
        }
    }

    /// The copy of segment `number` that a server takes which follows `history` and has read `before` last: the newest
    /// that is there of a timeline that has begun, whether it has been left or not; but never one of a timeline older
    /// than `before` (`XLogFileReadAnyTLI`, `src/backend/access/transam/xlogrecovery.c`).
    fn taken<'a>(
        &self,
        history: &'a TimelineHistory,
        number: u64,
        before: Option<TimelineId>,
    ) -> Option<(&'a TimelineEntry, SegmentRun)> {
        let begun = history.entries().iter().rev().filter(|entry| {
            let begins = entry.begin.segment(self.segment_size) <= number;
            begins && before.is_none_or(|before| entry.timeline >= before)
        });
        let mut copies = begun.filter_map(|entry| {
            let timeline = entry.timeline;
            let run = self.run_of(WalSegment { timeline, number })?;
            Some((entry, *run))
        });
        copies.next()
    }

    fn start_of(&self, number: u64) -> Lsn {
        Lsn::new(number.saturating_mul(self.segment_size.get()))
    }

    /// The last segment before the one in which the timeline is left: no newer one has a copy of it.
    fn last_alone(&self, entry: &TimelineEntry) -> u64 {
        let left = entry.end.map(|end| end.segment(self.segment_size));
        left.map_or(u64::MAX, |left| left.saturating_sub(1))
    }

    /// The last segment that holds WAL of the timeline.
    fn last_of(&self, entry: &TimelineEntry) -> u64 {
        let last = |end: Lsn| end.get().saturating_sub(1) / self.segment_size.get();
        entry.end.map_or(u64::MAX, last)
    }

    /// The first segment behind segment `number` that a recovery along `history` could take.
    #[must_use]
    pub fn next_after(&self, history: &TimelineHistory, number: u64) -> Option<WalSegment> {
        let entries = history.entries().iter();
        let found = entries.filter_map(|entry| {
            let begin = entry.begin.segment(self.segment_size).max(number + 1);
            let last = self.last_of(entry);
            let runs = self.runs(entry.timeline);
            let run = runs.get(runs.partition_point(|run| run.last < begin))?;
            let number = run.first.max(begin);
            (number <= last).then_some(WalSegment {
                timeline: entry.timeline,
                number,
            })
        });
        found.min_by_key(|segment| (segment.number, std::cmp::Reverse(segment.timeline)))
    }

    /// When the first segment was stored of the run that holds `segment`.
    #[must_use]
    pub fn stored_from(&self, segment: WalSegment) -> Option<Timestamp> {
        Some(self.run_of(segment)?.first_at)
    }

    /// When the newest segment of all was stored; the beginning of time when there is none.
    #[must_use]
    pub fn newest_at(&self) -> Timestamp {
        let runs = self.timelines.values().flat_map(|found| &found.runs);
        let newest = runs.map(|run| run.newest_at).max();
        newest.unwrap_or(Timestamp::MIN)
    }

    /// Whether the server's archiver noted the end of any backup on this timeline.
    #[must_use]
    pub fn has_backup_labels(&self, timeline: TimelineId) -> bool {
        let found = self.timelines.get(&timeline);
        found.is_some_and(|found| !found.backup_labels.is_empty())
    }

    /// Whether the server's archiver noted the end of a backup that started in `segment`.
    #[must_use]
    pub fn has_backup_label(&self, segment: WalSegment) -> bool {
        let found = self.timelines.get(&segment.timeline);
        found.is_some_and(|found| found.backup_labels.contains(&segment.number))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    const MIB16: u64 = 16 << 20;

    fn size() -> WalSegmentSize {
        WalSegmentSize::try_from(MIB16).unwrap()
    }

    fn at(segment: u64) -> Lsn {
        Lsn::new(segment * MIB16 + 40)
    }

    fn archive(segments: &[(u32, std::ops::RangeInclusive<u64>)]) -> ArchivedWal {
        let mut archive = ArchivedWal::new(size());
        for (timeline, numbers) in segments {
            for number in numbers.clone() {
                let timeline = TimelineId::new(*timeline);
                let time = Timestamp::from_second(i64::try_from(number).unwrap()).unwrap();
                archive.add_segment(WalSegment { timeline, number }, time);
            }
        }
        archive
    }

    fn two(switch: Lsn) -> TimelineHistory {
        TimelineHistory::parse(TimelineId::new(2), &format!("1\t{switch}\twhy\n")).unwrap()
    }

    fn parts(coverage: &Coverage) -> Vec<(u32, u64, u64)> {
        coverage
            .parts
            .iter()
            .map(|p| (p.0.get(), p.1, p.2))
            .collect()
    }

    #[test]
    fn the_way_ends_at_the_first_gap() {
        let archive = archive(&[(1, 3..=5), (1, 7..=9)]);
        let history = TimelineHistory::first(TimelineId::FIRST);
        let coverage = archive.coverage(&history, at(3), None);
        assert_eq!(parts(&coverage), [(1, 3, 5)]);
        assert_eq!(coverage.missing.number, 6);
        assert!(coverage.more_after);
        assert_eq!(coverage.stored_at, Some(Timestamp::from_second(5).unwrap()));
        let coverage = archive.coverage(&history, at(7), None);
        assert_eq!(parts(&coverage), [(1, 7, 9)]);
        assert!(!coverage.more_after);
        let coverage = archive.coverage(&history, at(7), Some(8));
        assert_eq!(parts(&coverage), [(1, 7, 8)]);
        assert_eq!(coverage.stored_at, None);
    }

    #[test]
    fn what_was_removed_is_missed_and_what_came_is_not() {
        let before = archive(&[(1, 3..=9), (2, 8..=12)]);
        let holds =
            |timelines: &[(u32, RangeInclusive<u64>)]| archive(timelines).holds_all_of(&before);
        assert!(holds(&[(1, 2..=9), (2, 8..=13), (3, 1..=1)]));
        assert!(!holds(&[(1, 4..=9), (2, 8..=12)]));
        assert!(!holds(&[(1, 3..=9), (2, 8..=9), (2, 11..=12)]));
        assert!(!holds(&[(1, 3..=9)]));
    }

    #[test]
    fn the_segment_of_a_switch_comes_from_the_newer_timeline() {
        let mut archive = archive(&[(1, 3..=9), (2, 6..=8)]);
        archive.add_history(two(at(6)), Timestamp::UNIX_EPOCH);
        let coverage = archive.coverage(&two(at(6)), at(3), None);
        assert_eq!(parts(&coverage), [(1, 3, 5), (2, 6, 8)]);
        assert_eq!(coverage.missing.number, 9);
        // Segments of timeline 1 behind the switch are of another history.
        assert!(!coverage.more_after);
    }

    #[test]
    fn an_older_copy_of_the_segment_of_a_switch_leads_to_the_switch() {
        let switch = at(6);
        for (segments, more_after) in [
            (vec![(1, 3..=6)], false),
            (vec![(1, 3..=9)], false),
            (vec![(1, 3..=9), (2, 7..=8)], true),
        ] {
            let coverage = archive(&segments).coverage(&two(switch), at(3), None);
            assert_eq!(parts(&coverage), [(1, 3, 6)], "{segments:?}");
            assert_eq!(coverage.end, switch);
            assert_eq!(coverage.strays_to, Some(TimelineId::FIRST));
            assert_eq!(coverage.missing.number, 6);
            assert_eq!(coverage.missing.timeline, TimelineId::new(2));
            assert_eq!(coverage.more_after, more_after);
        }
        let lone = archive(&[(1, 3..=5)]).coverage(&two(switch), at(3), None);
        assert_eq!((lone.end, lone.strays_to), (Lsn::new(6 * MIB16), None));
    }

    #[test]
    fn no_older_copy_leads_on_from_behind_the_switch() {
        let behind = Lsn::new(at(6).get() + 8);
        let coverage = archive(&[(1, 3..=9)]).coverage(&two(at(6)), behind, None);
        assert_eq!(parts(&coverage), []);
        assert_eq!(coverage.end, behind);
        assert_eq!(coverage.missing.timeline, TimelineId::new(2));
    }

    #[test]
    fn behind_a_switch_between_segments_the_server_strays_as_well() {
        let switch = Lsn::new(6 * MIB16);
        let coverage = archive(&[(1, 3..=6)]).coverage(&two(switch), at(3), None);
        assert_eq!(parts(&coverage), [(1, 3, 5)]);
        assert_eq!(coverage.end, switch);
        assert_eq!(coverage.strays_to, Some(TimelineId::FIRST));
        let coverage = archive(&[(1, 3..=5)]).coverage(&two(switch), at(3), None);
        assert_eq!((coverage.end, coverage.strays_to), (switch, None));
    }

    #[test]
    fn coverage_is_what_a_server_replays_of_its_history() {
        let seed =
            std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
        println!("seed {seed}: SEED={seed} repeats it");
        let mut random = StdRng::seed_from_u64(seed);
        let mut strayed = 0;
        for _ in 0..20_000 {
            let world = World::any(&mut random);
            strayed += u32::from(world.check(&mut random));
        }
        assert!(strayed > 100, "only {strayed} archives led astray");
    }

    /// Switch points lie at quarters of segments; of each quarter of a copy the timeline that wrote it is known.
    struct World {
        archive: ArchivedWal,
        histories: Vec<TimelineHistory>,
    }

    const QUARTER: u64 = MIB16 / 4;
    const SEGMENTS: u64 = 8;

    impl World {
        fn any(random: &mut StdRng) -> Self {
            let mut texts = vec![String::new()];
            for number in 2..=random.random_range(1..=4) {
                let parent = random.random_range(1..number);
                let from = Lsn::new(random.random_range(0..SEGMENTS * 4) * QUARTER);
                let text = format!("{}{parent}\t{from}\twhy\n", texts[parent - 1]);
                texts.push(text);
            }
            let mut archive = ArchivedWal::new(size());
            let mut histories = Vec::new();
            for (timeline, text) in (1..).zip(&texts) {
                let timeline = TimelineId::new(timeline);
                let history = TimelineHistory::parse(timeline, text).unwrap();
                let begin = history.entry(timeline).unwrap().begin.segment(size());
                for number in begin..SEGMENTS {
                    if random.random_ratio(3, 4) {
                        archive.add_segment(WalSegment { timeline, number }, Timestamp::UNIX_EPOCH);
                    }
                }
                histories.push(history);
            }
            Self { archive, histories }
        }

        /// Which timeline wrote what the copy of `timeline` holds at `position`.
        fn writer(&self, timeline: TimelineId, position: Lsn) -> TimelineId {
            let index = usize::try_from(timeline.get() - 1).unwrap();
            self.histories[index].timeline_at(position).unwrap()
        }

        /// As `XLogFileReadAnyTLI` chooses; the timelines of which each quarter is replayed from `start` on.
        fn replay(&self, history: &TimelineHistory, start: Lsn) -> Vec<(Lsn, TimelineId)> {
            let mut current = TimelineId::new(0);
            let mut replayed = Vec::new();
            let mut position = start;
            'segments: loop {
                let number = position.segment(size());
                for entry in history.entries().iter().rev() {
                    let timeline = entry.timeline;
                    if timeline < current {
                        break;
                    }
                    let begun = number >= entry.begin.segment(size());
                    if !begun || !self.archive.holds(WalSegment { timeline, number }) {
                        continue;
                    }
                    current = timeline;
                    while position.segment(size()) == number {
                        replayed.push((position, self.writer(timeline, position)));
                        position = Lsn::new(position.get() + QUARTER);
                    }
                    continue 'segments;
                }
                return replayed;
            }
        }

        /// Whether the server would have left its history.
        fn check(&self, random: &mut StdRng) -> bool {
            let history = &self.histories[random.random_range(0..self.histories.len())];
            let start = Lsn::new(random.random_range(0..SEGMENTS * 4) * QUARTER);
            let replayed = self.replay(history, start);
            let astray = replayed
                .iter()
                .find(|(at, writer)| history.timeline_at(*at) != Some(*writer));
            let last = replayed.last().map(|(at, _)| Lsn::new(at.get() + QUARTER));
            let end = astray.map(|(at, _)| *at).or(last).unwrap_or(start);
            let coverage = self.archive.coverage(history, start, None);
            let described = format!(
                "{history:?} from {start} in {:?}: {coverage:?}",
                self.archive
            );
            assert_eq!(coverage.end, end, "{described}");
            assert_eq!(
                coverage.strays_to.is_some(),
                astray.is_some(),
                "{described}"
            );
            let limit = random.random_range(0..SEGMENTS);
            let limited = self.archive.coverage(history, start, Some(limit));
            let until = Lsn::new((limit + 1) * MIB16).max(start);
            assert_eq!(limited.end, end.min(until), "{limit}: {described}");
            assert!(!self.archive.holds(coverage.missing), "{described}");
            astray.is_some()
        }
    }

    #[test]
    fn latest_counts_up_as_the_server_does() {
        let mut archive = archive(&[]);
        for timeline in [2, 3, 5] {
            let history = TimelineHistory::first(TimelineId::new(timeline));
            archive.add_history(history, Timestamp::UNIX_EPOCH);
        }
        assert_eq!(archive.latest_from(TimelineId::FIRST).get(), 3);
        assert_eq!(archive.latest_from(TimelineId::new(4)).get(), 5);
    }
}
