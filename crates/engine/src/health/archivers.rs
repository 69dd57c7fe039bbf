//! Where the archive shows an archiver at work. From there on WAL without a hole is promised, whatever became of the
//! archiver. Before, backups that store their own WAL leave a hole between each two, and nobody had promised more.
//!
//! The archiver of a primary notes the end of each backup, and a backup that relies on it stores that note when the archiver
//! does not. Without a note, segments that no backup stored for itself tell less: they are the archiver's, or the own WAL of
//! layers that a merge or an expiry has taken. Beside the own WAL of a layer that is there they raise a doubt; by themselves
//! they tell nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use pgstrata_pgdata::{TimelineHistory, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{ArchivedTimeline, ArchivedWal, SegmentRun};
use pgstrata_store::catalog::{Catalog, Layer, kept_until};

/// Whether WAL behind a layer's own was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pledge {
    /// Nothing tells of an archiver.
    None,
    /// Something may.
    Doubtful,
    /// There was one.
    Firm,
}

/// The WAL that a layer needs for itself, and what an expiry leaves behind that and a copy brings with it. An archiver goes further.
#[derive(Clone, Copy, Debug)]
struct OwnWal {
    first: WalSegment,
    /// Number of the last segment.
    last: u64,
    from_standby: bool,
}

impl OwnWal {
    fn of(layer: &Layer, size: WalSegmentSize) -> Self {
        let (first, _) = layer.own_wal(size);
        Self {
            first,
            last: WalSegment::containing_end(first.timeline, kept_until(layer), size).number,
            from_standby: layer.manifest.from_standby,
        }
    }

    fn numbers(&self) -> RangeInclusive<u64> {
        self.first.number..=self.last
    }
}

/// What tells of archivers.
#[derive(Debug, Default)]
pub(super) struct Archivers {
    /// The first sign of one on each timeline: the number of a segment.
    firm: BTreeMap<TimelineId, u64>,
    /// The first segment that may be one.
    doubtful: BTreeMap<TimelineId, u64>,
    /// First segments of runs that layers may have stored for themselves.
    own: BTreeSet<WalSegment>,
}

impl Archivers {
    pub(super) fn seen(catalog: &Catalog, archived: &ArchivedWal) -> Self {
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
        let (told, silent): (Vec<_>, Vec<_>) =
            archived.by_timeline().partition(|(timeline, found)| {
                of_layers.contains_key(timeline) || !found.backup_labels.is_empty()
            });
        for (timeline, found) in told {
            let mut own = of_layers.remove(&timeline).unwrap_or_default();
            own.sort_unstable_by_key(|own| own.first);
            // Nobody notes the end of a standby's backups. Where there are any, any segment tells that is none of these.
            let by_itself = match own.iter().any(|own| own.from_standby) {
                true => Pledge::Firm,
                false => Pledge::None,
            };
            seen.look((timeline, found), &own, by_itself);
        }
        // All that is on a timeline without a layer may be of layers that have gone, unless there is an archiver elsewhere.
        let elsewhere = match (seen.firm.is_empty(), seen.doubtful.is_empty()) {
            (false, _) => Pledge::Firm,
            (true, false) => Pledge::Doubtful,
            (true, true) => Pledge::None,
        };
        for silent in silent {
            seen.look(silent, &[], elsewhere);
        }
        seen
    }

    /// `own` is that of the layers on the timeline, in order; `by_itself` is what a segment tells that lies apart from it.
    fn look(
        &mut self,
        (timeline, found): (TimelineId, &ArchivedTimeline),
        own: &[OwnWal],
        by_itself: Pledge,
    ) {
        if let Some(number) = found.backup_labels.first() {
            note(&mut self.firm, timeline, *number);
        }
        let mut passed = 0;
        for run in &found.runs {
            passed += own[passed..].partition_point(|own| own.last < run.first);
            let behind = own.partition_point(|own| own.first.number <= run.last);
            let own = &own[passed..behind.max(passed)];
            let tells = match (by_itself, own.is_empty()) {
                (Pledge::None, false) => Pledge::Doubtful,
                (by_itself, _) => by_itself,
            };
            let strange = first_strange(run, own);
            match (tells, strange) {
                (Pledge::Firm, Some(number)) => note(&mut self.firm, timeline, number),
                (Pledge::Doubtful, Some(number)) => note(&mut self.doubtful, timeline, number),
                (Pledge::None, _) | (_, None) => {}
            }
            if tells == Pledge::None || strange != Some(run.first) {
                let number = run.first;
                self.own.insert(WalSegment { timeline, number });
            }
        }
    }

    /// Whether there was an archiver on the way up to segment `last`, or one that stored what comes behind it.
    pub(super) fn promised(
        &self,
        history: &TimelineHistory,
        (last, next): (u64, WalSegment),
        size: WalSegmentSize,
    ) -> Pledge {
        let is_passed = |since: &BTreeMap<TimelineId, u64>| {
            history.entries().iter().any(|entry| {
                let until = entry.end.map_or(last, |end| end.segment(size).min(last));
                let since = since.get(&entry.timeline);
                since.is_some_and(|since| *since <= until)
            })
        };
        let is_archived = !self.own.contains(&next);
        let since = self.firm.get(&next.timeline);
        let is_firm = since.is_some_and(|since| *since <= next.number);
        match () {
            () if is_passed(&self.firm) || is_archived && is_firm => Pledge::Firm,
            () if is_passed(&self.doubtful) || is_archived => Pledge::Doubtful,
            () => Pledge::None,
        }
    }
}

fn note(since: &mut BTreeMap<TimelineId, u64>, timeline: TimelineId, number: u64) {
    let first = since.entry(timeline).or_insert(number);
    *first = number.min(*first);
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use jiff::Timestamp;
    use pgstrata_layer::label::Label;
    use pgstrata_layer::manifest::{self, Manifest};
    use pgstrata_pgdata::Lsn;

    use super::Pledge::{Doubtful, Firm, None};
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

    /// Of a layer that starts in the first of these segments of the first timeline, and ends in the last one.
    fn of_layer(numbers: &RangeInclusive<u64>, from_standby: bool) -> OwnWal {
        let golden =
            include_bytes!("../../../layer/tests/golden/none/main/layer/20261121-093305F/manifest");
        let golden = manifest::decode(golden).unwrap();
        let size = WalSegmentSize::DEFAULT;
        let within = |number: &u64| Lsn::new(number * size.get() + 40);
        let layer = Layer {
            label: Label::parse(&golden.label).unwrap(),
            manifest_digest: String::new(),
            manifest: Manifest {
                start_lsn: within(numbers.start()),
                stop_lsn: within(numbers.end()),
                from_standby,
                ..golden
            },
        };
        OwnWal::of(&layer, size)
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

    /// Whether a hole up to `last` was promised, behind which `next` comes.
    fn promise(
        layers: &[OwnWal],
        archived: &ArchivedWal,
        history: &TimelineHistory,
        (last, next): (u64, WalSegment),
    ) -> Pledge {
        let archivers = Archivers::beside(layers.iter().copied(), archived);
        archivers.promised(history, (last, next), archived.segment_size())
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
                let found = promise(layers, &archived, &history, place);
                assert_eq!(found, None, "{layers:?}");
            }
        }
    }

    #[test]
    fn the_note_of_an_archiver_is_a_promise_from_there_on() {
        let history = TimelineHistory::first(ONE);
        let layers = [own(ONE, 3..=3), own(ONE, 7..=7), own(ONE, 12..=12)];
        let mut archived = archive(&[(ONE, 3..=3), (ONE, 7..=7), (ONE, 12..=12)]);
        archived.add_backup_label(segment(ONE, 7));
        let found = |last, next| promise(&layers, &archived, &history, (last, segment(ONE, next)));
        assert_eq!((found(6, 7), found(11, 12)), (None, Firm));
        // What an archiver has stored behind a hole shows that it was at work before.
        let mut archived = archive(&[(ONE, 3..=3), (ONE, 6..=7)]);
        let place = (5, segment(ONE, 6));
        assert_eq!(promise(&layers[..2], &archived, &history, place), Doubtful);
        archived.add_backup_label(segment(ONE, 3));
        assert_eq!(promise(&layers[..2], &archived, &history, place), Firm);
    }

    #[test]
    fn a_segment_that_no_backup_stored_for_itself_may_be_an_archivers() {
        let history = TimelineHistory::first(ONE);
        let layers = [own(ONE, 3..=3), own(ONE, 7..=7), own(ONE, 12..=12)];
        // Behind the first layer, or before the second: or of a layer that was expired, one backup soon after another.
        for runs in [
            [(ONE, 3..=4), (ONE, 7..=7), (ONE, 12..=12)],
            [(ONE, 3..=3), (ONE, 6..=7), (ONE, 12..=12)],
        ] {
            let archived = archive(&runs);
            let place = (11, segment(ONE, 12));
            let found = promise(&layers, &archived, &history, place);
            assert_eq!(found, Doubtful, "{runs:?}");
        }
        // It came later: nobody had promised what lies between the first two.
        let archived = archive(&[(ONE, 3..=3), (ONE, 7..=8), (ONE, 12..=12)]);
        let found = |last, next| promise(&layers, &archived, &history, (last, segment(ONE, next)));
        assert_eq!((found(6, 7), found(11, 12)), (None, Doubtful));
    }

    #[test]
    fn what_was_promised_on_a_timeline_is_promised_on_those_that_leave_it_later() {
        let size = WalSegmentSize::DEFAULT;
        let left_in = |number: u64| {
            let left = Lsn::new(number * size.get() + 40);
            TimelineHistory::parse(TWO, &format!("1\t{left}\twhy\n")).unwrap()
        };
        let layers = [own(ONE, 3..=3), own(TWO, 9..=9)];
        let mut archived = archive(&[(ONE, 3..=3), (ONE, 5..=6), (TWO, 9..=9)]);
        let place = (8, segment(TWO, 9));
        // Segments that lie by themselves tell nothing; a note does.
        assert_eq!(promise(&layers, &archived, &left_in(6), place), None);
        archived.add_backup_label(segment(ONE, 5));
        assert_eq!(promise(&layers, &archived, &left_in(6), place), Firm);
        // Unless it is of the branch that was given up.
        assert_eq!(promise(&layers, &archived, &left_in(3), place), None);
    }

    #[test]
    fn a_standby_is_told_by_any_segment_and_so_is_a_timeline_without_layers_beside_an_archiver() {
        let history = TimelineHistory::first(ONE);
        let runs = [(ONE, 3..=3), (ONE, 5..=6), (ONE, 9..=9)];
        let archived = archive(&runs);
        let mut layers = [own(ONE, 3..=3), own(ONE, 9..=9)];
        let place = (8, segment(ONE, 9));
        assert_eq!(promise(&layers, &archived, &history, place), None);
        layers[1].from_standby = true;
        assert_eq!(promise(&layers, &archived, &history, place), Firm);
        // Without a layer they may be the WAL of those that an expiry has taken, unless the server archived on another timeline.
        let with_second = [&[(TWO, 4..=5)][..], &runs].concat();
        let mut archived = archive(&with_second);
        let whole = [own(TWO, 4..=5)];
        assert_eq!(promise(&whole, &archived, &history, place), None);
        let half = [own(TWO, 4..=4)];
        assert_eq!(promise(&half, &archived, &history, place), Doubtful);
        archived.add_backup_label(segment(TWO, 4));
        assert_eq!(promise(&whole, &archived, &history, place), Firm);
    }

    #[test]
    fn what_stays_with_a_layer_of_a_standby_is_no_sign_of_an_archiver() {
        let history = TimelineHistory::first(ONE);
        let found = |from_standby, runs: &[(TimelineId, RangeInclusive<u64>)], next: u64| {
            let layers = [3..=3, 9..=9].map(|numbers| of_layer(&numbers, from_standby));
            let place = (next - 1, segment(ONE, next));
            promise(&layers, &archive(runs), &history, place)
        };
        // As in a copy of the two layers alone. Nothing stays behind a primary's.
        let copied = [(ONE, 3..=4), (ONE, 9..=10)];
        assert_eq!(found(true, &copied, 9), None);
        assert_eq!(found(false, &copied, 9), Doubtful);
        // An archiver goes on behind that, or has begun before.
        assert_eq!(found(true, &[(ONE, 3..=5), (ONE, 9..=10)], 9), Firm);
        assert_eq!(found(true, &[(ONE, 3..=4), (ONE, 8..=10)], 8), Firm);
    }
}
