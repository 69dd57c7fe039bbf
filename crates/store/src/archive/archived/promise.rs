//! What of the archive is promised: all WAL from the first layer on, but for what expiries have given up.
//!
//! An expiry gives up WAL before some position on the timelines that there are. A server that goes back to an earlier
//! position later, on a timeline of its own, writes WAL there again, and that is promised. What is not known counts as promised.

use pgstrata_layer::manifest::Manifest;
use pgstrata_pgdata::timeline::TimelineEntry;

use super::{ArchivedWal, GivenUp, Lsn, TimelineHistory, TimelineId, Timestamp, WalSegment};
use crate::catalog::{CLOCKS_DIFFER, Released};

impl ArchivedWal {
    /// Remembers which WAL between layers expiries have given up.
    pub fn set_released(&mut self, released: Released) {
        self.given_up = released.given_up;
        let unreadable = released.unreadable.into_iter();
        self.unread_releases = unreadable.map(|(_, error)| error.to_string()).collect();
    }

    /// Why more WAL may have been given up than is known, so that a hole may be meant: a record of it cannot be read.
    #[must_use]
    pub fn unread_releases(&self) -> &[String] {
        &self.unread_releases
    }

    /// From where on the archive promises to have no hole, on whatever timeline; `None` when it does so from its beginning.
    #[must_use]
    pub fn promised_from(&self) -> Option<Lsn> {
        self.given_up.iter().map(|given_up| given_up.before).max()
    }

    /// Before which position expiries have given up the WAL between layers of that timeline; `None` when they have not.
    #[must_use]
    pub fn released_until(&self, timeline: TimelineId) -> Option<Lsn> {
        let all = self.given_up.iter();
        let of_it = all.filter(|given_up| self.is_of(given_up, timeline));
        of_it.map(|given_up| given_up.before).max()
    }

    /// The same when that segment lies before it.
    #[must_use]
    pub fn released_before(&self, segment: WalSegment) -> Option<Lsn> {
        let until = self.released_until(segment.timeline);
        until.filter(|until| segment.number < until.segment(self.segment_size))
    }

    /// Whether an expiry has given up the WAL between layers in that segment.
    #[must_use]
    pub fn was_released(&self, segment: WalSegment) -> bool {
        self.released_before(segment).is_some()
    }

    /// Whether the WAL behind the end of that layer is promised on its own timeline. Of one that was finished after WAL there was
    /// given up it is: its server went back to a position before that. Clocks of hosts may differ a little.
    #[must_use]
    pub fn goes_on_from(&self, layer: &Manifest) -> bool {
        !self.is_given_up(layer.timeline, layer.start_lsn, layer.finished_at)
    }

    /// The same along `history`, which may leave the layer's timeline right behind its end, for one that began later.
    #[must_use]
    pub fn goes_on_along(&self, history: &TimelineHistory, layer: &Manifest) -> bool {
        let end = WalSegment::containing_end(layer.timeline, layer.stop_lsn, self.segment_size);
        let mut entries = history.entries().iter();
        let is_given_up = |entry: &TimelineEntry| {
            let from = match entry.timeline.cmp(&layer.timeline) {
                std::cmp::Ordering::Less => return false,
                // Only what makes the layer consistent is needed of it, and that stays.
                std::cmp::Ordering::Equal if self.last_alone(entry) <= end.number => return false,
                std::cmp::Ordering::Equal => layer.start_lsn,
                std::cmp::Ordering::Greater => entry.begin,
            };
            self.is_given_up(entry.timeline, from, layer.finished_at)
        };
        !entries.any(is_given_up)
    }

    /// Whether WAL that somebody goes on with from there was given up, for a layer that was finished then.
    fn is_given_up(&self, timeline: TimelineId, from: Lsn, finished_at: Timestamp) -> bool {
        let number = from.segment(self.segment_size);
        self.given_up.iter().any(|given_up| {
            number < given_up.before.segment(self.segment_size)
                && self.is_of(given_up, timeline)
                && finished_at.duration_since(given_up.at) <= CLOCKS_DIFFER
        })
    }

    /// Whether WAL of that timeline was given up by it. A record of version 1 does not say so: it is of the timelines of which
    /// something was stored before it.
    fn is_of(&self, given_up: &GivenUp, timeline: TimelineId) -> bool {
        if !given_up.timelines.is_empty() {
            return given_up.timelines.contains(&timeline);
        }
        let begun = self.history_stored_at(timeline);
        let first = self.runs(timeline).first().map(|run| run.first_at);
        let mut signs = begun.into_iter().chain(first);
        timeline == TimelineId::FIRST || signs.any(|stored_at| stored_at <= given_up.at)
    }
}

#[cfg(test)]
mod tests {
    use pgstrata_pgdata::wal::WalSegmentSize;

    use super::*;

    const MIB16: u64 = 16 << 20;

    fn at(segment: u64) -> Lsn {
        Lsn::new(segment * MIB16 + 40)
    }

    fn time(minutes: i64) -> Timestamp {
        Timestamp::from_second(60 * minutes).unwrap()
    }

    fn segment(timeline: u32, number: u64) -> WalSegment {
        WalSegment {
            timeline: TimelineId::new(timeline),
            number,
        }
    }

    /// Timeline 1 from the beginning on, and timeline 2, which left it in segment 4 two hours later.
    fn archive(given_up: &[(u64, i64, &[u32])]) -> ArchivedWal {
        let mut archive = ArchivedWal::new(WalSegmentSize::try_from(MIB16).unwrap());
        for number in 3..=9 {
            archive.add_segment(segment(1, number), time(0));
        }
        for number in 4..=9 {
            archive.add_segment(segment(2, number), time(120));
        }
        archive.add_history(two(), time(120));
        let given_up = given_up.iter().map(|(before, minutes, timelines)| GivenUp {
            before: at(*before),
            at: time(*minutes),
            timelines: timelines.iter().copied().map(TimelineId::new).collect(),
        });
        archive.set_released(Released {
            given_up: given_up.collect(),
            ..Released::default()
        });
        archive
    }

    fn two() -> TimelineHistory {
        let text = format!("1\t{}\twhy\n", at(4));
        TimelineHistory::parse(TimelineId::new(2), &text).unwrap()
    }

    #[test]
    fn what_was_given_up_is_promised_to_a_server_that_went_back_later() {
        let is_given_up = |archive: &ArchivedWal, segment, minutes| {
            archive.is_given_up(TimelineId::FIRST, at(segment), time(minutes))
        };
        assert!(!is_given_up(&archive(&[]), 4, 0));
        for timelines in [&[][..], &[1]] {
            let archive = archive(&[(6, 60, timelines)]);
            assert!(is_given_up(&archive, 4, 0));
            assert!(!is_given_up(&archive, 6, 0));
            assert!(!is_given_up(&archive, 4, 66));
            // The clocks of the hosts may differ by as much.
            assert!(is_given_up(&archive, 4, 65));
        }
    }

    #[test]
    fn what_was_given_up_is_of_the_timelines_that_there_were() {
        // By version 1, from before timeline 2 and from behind its begin; and by the timelines themselves.
        for (given_up, of_two) in [
            (&[(8, 60, &[][..])][..], false),
            (&[(8, 180, &[])], true),
            (&[(8, 180, &[1])], false),
            (&[(8, 60, &[1, 2])], true),
        ] {
            let archive = archive(given_up);
            assert!(archive.was_released(segment(1, 7)));
            assert_eq!(archive.was_released(segment(2, 7)), of_two, "{given_up:?}");
            assert!(!archive.was_released(segment(2, 8)));
        }
    }

    #[test]
    fn a_later_record_of_less_counts_on_its_own_timeline() {
        let archive = archive(&[(8, 60, &[1]), (6, 180, &[1, 2])]);
        let until = |timeline| archive.released_until(TimelineId::new(timeline));
        assert_eq!(until(1), Some(at(8)));
        assert_eq!(until(2), Some(at(6)));
        assert_eq!(until(3), None);
        assert_eq!(archive.promised_from(), Some(at(8)));
        assert_eq!(archive.released_before(segment(2, 5)), Some(at(6)));
        assert_eq!(archive.released_before(segment(2, 6)), None);
    }
}
