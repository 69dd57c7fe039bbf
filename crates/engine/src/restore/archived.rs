//! What the archive holds of each timeline, as values: runs of segments, and how far they lead from a start.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::{TimelineEntry, TimelineHistory, TimelineId};
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};

/// Consecutive segments of one timeline, `first` to `last` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRun {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// When the last of them was stored.
    pub(crate) stored_at: Timestamp,
}

/// The archive as recovery sees it: histories and whole segments.
#[derive(Clone, Debug)]
pub(crate) struct ArchivedWal {
    segment_size: WalSegmentSize,
    histories: BTreeMap<TimelineId, TimelineHistory>,
    runs: BTreeMap<TimelineId, Vec<SegmentRun>>,
}

/// How far the archive leads from some segment without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Segments in order, each on the timeline recovery would take it from. Empty when the first is missing.
    pub(crate) parts: Vec<(TimelineId, u64, u64)>,
    /// The first number that is not there.
    pub(crate) missing: WalSegment,
    /// Whether later segments are there, so that `missing` is a hole and not the end.
    pub(crate) more_after: bool,
    /// When the last segment before `missing` was stored.
    pub(crate) stored_at: Option<Timestamp>,
}

impl ArchivedWal {
    pub(crate) fn new(segment_size: WalSegmentSize) -> Self {
        Self {
            segment_size,
            histories: BTreeMap::new(),
            runs: BTreeMap::new(),
        }
    }

    pub(crate) fn add_history(&mut self, history: TimelineHistory) {
        self.histories.insert(history.timeline(), history);
    }

    /// Adds a segment. Numbers of one timeline come in ascending order.
    pub(crate) fn add_segment(&mut self, segment: WalSegment, stored_at: Timestamp) {
        let runs = self.runs.entry(segment.timeline).or_default();
        match runs.last_mut() {
            Some(run) if segment.number <= run.last => {}
            Some(run) if segment.number == run.last + 1 => {
                run.last = segment.number;
                run.stored_at = stored_at;
            }
            _ => runs.push(SegmentRun {
                first: segment.number,
                last: segment.number,
                stored_at,
            }),
        }
    }

    /// Whether the segment is there.
    pub(crate) fn holds(&self, segment: WalSegment) -> bool {
        let mut runs = self.runs(segment.timeline).iter();
        runs.any(|run| (run.first..=run.last).contains(&segment.number))
    }

    pub(crate) fn segment_size(&self) -> WalSegmentSize {
        self.segment_size
    }

    pub(crate) fn runs(&self, timeline: TimelineId) -> &[SegmentRun] {
        self.runs.get(&timeline).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has_history(&self, timeline: TimelineId) -> bool {
        self.histories.contains_key(&timeline)
    }

    /// The way to `timeline`; one without a history file began with the cluster, as far as anyone can tell.
    pub(crate) fn history(&self, timeline: TimelineId) -> TimelineHistory {
        let known = self.histories.get(&timeline).cloned();
        known.unwrap_or_else(|| TimelineHistory::first(timeline))
    }

    /// What `recovery_target_timeline = 'latest'` means to a server on `timeline`: like the server, counts up as long
    /// as there is a history file.
    pub(crate) fn latest_from(&self, timeline: TimelineId) -> TimelineId {
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
    pub(crate) fn coverage(
        &self,
        history: &TimelineHistory,
        start: Lsn,
        limit: Option<u64>,
    ) -> Coverage {
        let mut number = start.segment(self.segment_size);
        let mut parts: Vec<(TimelineId, u64, u64)> = Vec::new();
        let mut stored_at = None;
        while limit.is_none_or(|limit| number <= limit) {
            let Some((timeline, run)) = self.source(history, number) else {
                break;
            };
            // At least this one: the old timeline's copy of a shared segment stands in when the new one's is missing.
            let end = self.last_segment(history, timeline).max(number);
            let end = end.min(run.last);
            let end = limit.map_or(end, |limit| end.min(limit));
            match parts.last_mut() {
                Some(part) if part.0 == timeline => part.2 = end,
                _ => parts.push((timeline, number, end)),
            }
            stored_at = Some(run.stored_at);
            number = end + 1;
        }
        let start_of_missing = Lsn::new(number.saturating_mul(self.segment_size.get()));
        let timeline = history.timeline_at(start_of_missing);
        Coverage {
            parts,
            missing: WalSegment {
                timeline: timeline.unwrap_or(history.timeline()),
                number,
            },
            more_after: self.has_after(history, number),
            stored_at,
        }
    }

    /// The timeline from which recovery takes segment `number`: of the timelines that pass through it the newest whose
    /// copy is there. A segment in which a timeline begins holds the old timeline's bytes before that point.
    fn source(&self, history: &TimelineHistory, number: u64) -> Option<(TimelineId, SegmentRun)> {
        let passing = history.entries().iter().rev().filter(|entry| {
            let begins = entry.begin.segment(self.segment_size) <= number;
            begins && number <= self.last_of(entry)
        });
        for entry in passing {
            let runs = self.runs(entry.timeline);
            let at = runs.partition_point(|run| run.last < number);
            if let Some(run) = runs.get(at).filter(|run| run.first <= number) {
                return Some((entry.timeline, *run));
            }
        }
        None
    }

    /// The last segment of `timeline` that no newer timeline has begun in.
    fn last_segment(&self, history: &TimelineHistory, timeline: TimelineId) -> u64 {
        match history.switch_point(timeline) {
            // The segment with the switch point belongs to both; it is looked up on its own.
            Some(end) => {
                let shared = end.segment(self.segment_size);
                let begin = history.entry(timeline).map_or(Lsn::INVALID, |e| e.begin);
                match shared > begin.segment(self.segment_size) {
                    true => shared - 1,
                    false => shared,
                }
            }
            None => u64::MAX,
        }
    }

    fn last_of(&self, entry: &TimelineEntry) -> u64 {
        entry
            .end
            .map_or(u64::MAX, |end| end.segment(self.segment_size))
    }

    fn has_after(&self, history: &TimelineHistory, number: u64) -> bool {
        history.entries().iter().any(|entry| {
            let last = self.last_of(entry);
            let runs = self.runs(entry.timeline);
            runs.iter()
                .any(|run| run.last > number && run.first <= last && last > number)
        })
    }
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn the_segment_of_a_switch_comes_from_the_newer_timeline() {
        let mut archive = archive(&[(1, 3..=9), (2, 6..=8)]);
        archive.add_history(two(at(6)));
        let coverage = archive.coverage(&two(at(6)), at(3), None);
        assert_eq!(parts(&coverage), [(1, 3, 5), (2, 6, 8)]);
        assert_eq!(coverage.missing.number, 9);
        // Segments of timeline 1 behind the switch are of another history.
        assert!(!coverage.more_after);
    }

    #[test]
    fn the_segment_of_a_switch_may_come_from_the_older_timeline() {
        let archive = archive(&[(1, 3..=6)]);
        let coverage = archive.coverage(&two(at(6)), at(3), None);
        assert_eq!(parts(&coverage), [(1, 3, 6)]);
        assert_eq!(coverage.missing.number, 7);
        assert_eq!(coverage.missing.timeline, TimelineId::new(2));
    }

    #[test]
    fn latest_counts_up_as_the_server_does() {
        let mut archive = archive(&[]);
        for timeline in [2, 3, 5] {
            archive.add_history(TimelineHistory::first(TimelineId::new(timeline)));
        }
        assert_eq!(archive.latest_from(TimelineId::FIRST).get(), 3);
        assert_eq!(archive.latest_from(TimelineId::new(4)).get(), 5);
    }
}
