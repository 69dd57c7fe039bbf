//! What records of the WAL say of a target: where recovery would stop, and what lies near.
//!
//! The rules are those of `recoveryStopsBefore()` and `recoveryStopsAfter()` in PostgreSQL's `xlogrecovery.c`: only the end
//! of a transaction has a time or a transaction ID at which recovery stops, of subtransactions that committed only the
//! transaction itself counts, and of several restore points of one name the first that is met. Where the server went on with
//! `wal_level = minimal`, recovery ends without having reached anything (`CheckRequiredParameterValues()`).

use std::ops::Range;

use jiff::Timestamp;
use pgstrata_pgdata::control::WalLevel;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::wal_records::{Meaning, TransactionEnd, TransactionId, WalRecord, WalTime};

/// Restore points that are remembered to be shown; who looks for one has an idea of its name.
const POINTS: usize = 8;

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A restore point of this name.
    Point(Vec<u8>),
    /// The end of this transaction.
    Transaction(TransactionId),
    /// The end of a transaction after this moment or, when `or_at` says so, at it.
    After { time: Timestamp, or_at: bool },
    /// Any record that begins here or later.
    Record(Lsn),
}

impl Wanted {
    /// Whether there is nothing to be learnt behind the first place at which recovery would stop.
    pub(crate) const fn first_is_enough(&self) -> bool {
        !matches!(self, Self::Point(_))
    }
}

/// A restore point, or the end of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Where its record begins.
    pub(crate) start: Lsn,
    /// Where it ends.
    pub(crate) end: Lsn,
    /// On the clock of the server; `None` when the record has no time, or none that makes sense.
    pub(crate) time: Option<Timestamp>,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Point(Vec<u8>),
    Committed(TransactionId),
    RolledBack(TransactionId),
    Other,
}

impl Event {
    fn of(record: &WalRecord) -> Self {
        let (time, what) = match &record.meaning {
            Meaning::RestorePoint { name, time } => (timestamp(*time), What::Point(name.clone())),
            Meaning::End(end) if end.committed => {
                (timestamp(end.time), What::Committed(end.transaction))
            }
            Meaning::End(end) => (timestamp(end.time), What::RolledBack(end.transaction)),
            Meaning::Checkpoint { time } => (timestamp(*time), What::Other),
            Meaning::Prepared(_)
            | Meaning::TablespaceCreated { .. }
            | Meaning::DatabaseMade { .. }
            | Meaning::DatabaseDropped(_)
            | Meaning::InitForkMade(_)
            | Meaning::WalLevel(_)
            | Meaning::Other => (None, What::Other),
        };
        Self {
            start: record.start,
            end: record.end,
            time,
            what,
        }
    }

    fn transaction(&self) -> Option<TransactionId> {
        match self.what {
            What::Committed(one) | What::RolledBack(one) => Some(one),
            What::Point(_) | What::Other => None,
        }
    }
}

/// What was seen in some stretch of WAL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sightings {
    /// Where recovery would stop, in order.
    hits: Vec<Event>,
    /// The last restore points, in order.
    pub(crate) points: Vec<Event>,
    /// The last end of a transaction.
    pub(crate) last: Option<Event>,
    /// The ended transactions with the nearest smaller and the nearest greater ID.
    pub(crate) below: Option<Event>,
    pub(crate) above: Option<Event>,
    /// The end of the transaction of which the wanted one is a part.
    pub(crate) whole: Option<Event>,
    /// Where the wanted transaction was prepared.
    pub(crate) prepared: Option<Lsn>,
    /// When a checkpoint began, the latest of all.
    pub(crate) checkpointed: Option<Timestamp>,
    /// Where the records begin with which the server goes on with `wal_level = minimal`, in order.
    minimal: Vec<Lsn>,
}

impl Sightings {
    /// Takes note of a record.
    pub(crate) fn see(&mut self, wanted: &Wanted, record: &WalRecord) {
        let hit = match (wanted, &record.meaning) {
            (Wanted::Record(lsn), _) => record.start >= *lsn,
            (Wanted::Point(wanted), Meaning::RestorePoint { name, .. }) => wanted == name,
            (Wanted::Transaction(wanted), Meaning::End(end)) => *wanted == end.transaction,
            (Wanted::After { time, or_at }, Meaning::End(end)) => {
                timestamp(end.time).is_some_and(|at| at > *time || (*or_at && at == *time))
            }
            _ => false,
        };
        if hit && (self.hits.is_empty() || !wanted.first_is_enough()) {
            self.hits.push(Event::of(record));
        }
        match &record.meaning {
            Meaning::RestorePoint { .. } => {
                self.points.push(Event::of(record));
                if self.points.len() > POINTS {
                    self.points.remove(0);
                }
            }
            Meaning::End(end) => {
                self.last = Some(Event::of(record));
                if let Wanted::Transaction(wanted) = wanted {
                    self.near(*wanted, end, record);
                }
            }
            Meaning::Prepared(transaction) => {
                if *wanted == Wanted::Transaction(*transaction) {
                    self.prepared = Some(record.start);
                }
            }
            Meaning::Checkpoint { time } => {
                self.checkpointed = self.checkpointed.max(timestamp(*time));
            }
            Meaning::WalLevel(WalLevel::Minimal) => self.minimal.push(record.start),
            Meaning::WalLevel(_)
            | Meaning::TablespaceCreated { .. }
            | Meaning::DatabaseMade { .. }
            | Meaning::DatabaseDropped(_)
            | Meaning::InitForkMade(_)
            | Meaning::Other => {}
        }
    }

    fn near(&mut self, wanted: TransactionId, end: &TransactionEnd, record: &WalRecord) {
        let event = Event::of(record);
        if end.subtransactions.contains(&wanted) {
            self.whole = Some(event.clone());
        }
        let found = end.transaction;
        let closer = |old: &Option<Event>| {
            let old = old.as_ref().and_then(Event::transaction);
            old.is_none_or(|old| old.0.abs_diff(wanted.0) > found.0.abs_diff(wanted.0))
        };
        if found < wanted && closer(&self.below) {
            self.below = Some(event);
        } else if found > wanted && closer(&self.above) {
            self.above = Some(event);
        }
    }

    /// Adds what was seen elsewhere, before or behind.
    pub(crate) fn join(&mut self, other: Self) {
        self.hits.extend(other.hits);
        self.hits.sort_by_key(|event| event.start);
        self.points.extend(other.points);
        self.points.sort_by_key(|event| event.start);
        let beyond = self.points.len().saturating_sub(POINTS);
        self.points.drain(..beyond);
        let last = self.last.take().into_iter().chain(other.last);
        self.last = last.max_by_key(|event| event.start);
        let below = self.below.take().into_iter().chain(other.below);
        self.below = below.max_by_key(Event::transaction);
        let above = self.above.take().into_iter().chain(other.above);
        self.above = above.min_by_key(Event::transaction);
        self.whole = self.whole.take().or(other.whole);
        self.prepared = self.prepared.or(other.prepared);
        self.checkpointed = self.checkpointed.max(other.checkpointed);
        self.minimal.extend(other.minimal);
        self.minimal.sort_unstable();
    }

    /// The first record seen of those that recovery from `start` on replays until it stops before the record at `stop`, or behind
    /// it if it is `inclusive`, with which the server goes on with `wal_level = minimal`: there it ends.
    pub(crate) fn minimal_before(&self, start: Lsn, stop: Lsn, inclusive: bool) -> Option<Lsn> {
        let replayed = |at: &Lsn| *at < stop || (inclusive && *at == stop);
        let mut minimal = self.minimal.iter().copied();
        minimal.find(|at| *at >= start).filter(replayed)
    }

    /// Where recovery would stop in that stretch, in order.
    pub(crate) fn hits(&self, range: Range<Lsn>) -> impl Iterator<Item = &Event> {
        let hits = self.hits.iter();
        hits.filter(move |event| range.contains(&event.start))
    }

    /// Whether recovery would stop anywhere in what was read.
    pub(crate) fn is_hit(&self) -> bool {
        !self.hits.is_empty()
    }
}

/// The server's clock can have shown times that ours cannot: then it was no time.
fn timestamp(time: WalTime) -> Option<Timestamp> {
    Timestamp::from_microsecond(time.unix_microseconds()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(start: u64, meaning: Meaning) -> WalRecord {
        WalRecord {
            start: Lsn::new(start),
            end: Lsn::new(start + 40),
            meaning,
        }
    }

    fn end(start: u64, transaction: u32, parts: &[u32]) -> WalRecord {
        let end = TransactionEnd {
            transaction: TransactionId(transaction),
            time: WalTime(i64::try_from(start).unwrap()),
            committed: true,
            subtransactions: parts.iter().copied().map(TransactionId).collect(),
        };
        record(start, Meaning::End(end))
    }

    fn point(start: u64, name: &str) -> WalRecord {
        let name = name.as_bytes().to_vec();
        let time = WalTime(0);
        record(start, Meaning::RestorePoint { name, time })
    }

    fn seen(wanted: &Wanted, records: &[WalRecord]) -> Sightings {
        let mut seen = Sightings::default();
        for record in records {
            seen.see(wanted, record);
        }
        seen
    }

    fn starts(seen: &Sightings) -> Vec<u64> {
        let all = seen.hits(Lsn::INVALID..Lsn::new(u64::MAX));
        all.map(|event| event.start.get()).collect()
    }

    /// Microseconds since 2000, as records have them.
    fn moment(micros: i64) -> Timestamp {
        timestamp(WalTime(micros)).unwrap()
    }

    #[test]
    fn a_time_is_met_by_the_first_end_after_it() {
        let records = [end(10, 3, &[]), end(20, 4, &[]), end(30, 5, &[])];
        for (time, or_at, expected) in [
            (9, false, Some(10)),
            (10, false, Some(20)),
            (10, true, Some(10)),
            (30, false, None),
            (30, true, Some(30)),
        ] {
            let time = moment(time);
            let wanted = Wanted::After { time, or_at };
            let found = starts(&seen(&wanted, &records));
            assert_eq!(found.first().copied(), expected, "{time} {or_at}");
        }
    }

    #[test]
    fn of_a_name_every_point_counts_and_of_others_the_first() {
        let records = [
            point(10, "a"),
            point(20, "b"),
            end(25, 7, &[]),
            point(30, "a"),
            end(40, 7, &[]),
        ];
        assert_eq!(
            starts(&seen(&Wanted::Point(b"a".to_vec()), &records)),
            [10, 30]
        );
        let seven = Wanted::Transaction(TransactionId(7));
        assert_eq!(starts(&seen(&seven, &records)), [25]);
        assert_eq!(starts(&seen(&Wanted::Record(Lsn::new(21)), &records)), [25]);
    }

    #[test]
    fn what_lies_near_a_transaction_is_known() {
        let wanted = Wanted::Transaction(TransactionId(50));
        let records = [
            end(10, 40, &[]),
            end(20, 60, &[]),
            end(30, 48, &[49, 50]),
            end(40, 55, &[]),
            record(45, Meaning::Prepared(TransactionId(50))),
            end(50, 30, &[]),
        ];
        for split in 0..=records.len() {
            let mut joined = seen(&wanted, &records[split..]);
            joined.join(seen(&wanted, &records[..split]));
            let start = |event: &Option<Event>| event.as_ref().unwrap().start.get();
            assert_eq!(start(&joined.below), 30);
            assert_eq!(start(&joined.above), 40);
            assert_eq!(start(&joined.whole), 30);
            assert_eq!(start(&joined.last), 50);
            assert_eq!(joined.prepared, Some(Lsn::new(45)));
            assert!(!joined.is_hit());
        }
    }

    #[test]
    fn recovery_ends_where_the_server_went_on_with_minimal_wal() {
        let wanted = Wanted::Record(Lsn::new(900));
        let level = |start, level| record(start, Meaning::WalLevel(level));
        let records = [
            level(10, WalLevel::Minimal),
            level(20, WalLevel::Replica),
            level(30, WalLevel::Logical),
            level(40, WalLevel::Minimal),
            level(50, WalLevel::Minimal),
            end(60, 3, &[]),
        ];
        for split in 0..=records.len() {
            let mut joined = seen(&wanted, &records[split..]);
            joined.join(seen(&wanted, &records[..split]));
            for (start, stop, inclusive, expected) in [
                (5, 900, true, Some(10)),
                (10, 11, true, Some(10)),
                (11, 900, true, Some(40)),
                (11, 40, true, Some(40)),
                // Who stops before the record does not replay it.
                (11, 40, false, None),
                (41, 900, true, Some(50)),
                (51, 900, true, None),
            ] {
                let found = joined.minimal_before(Lsn::new(start), Lsn::new(stop), inclusive);
                assert_eq!(found.map(Lsn::get), expected, "{start} {stop} {inclusive}");
            }
        }
    }

    #[test]
    fn the_last_restore_points_are_remembered() {
        let wanted = Wanted::Point(b"none".to_vec());
        let records: Vec<WalRecord> = (1..=20).map(|at| point(at * 100, "x")).collect();
        for split in [0, 3, 10, 15, 20] {
            let mut joined = seen(&wanted, &records[split..]);
            joined.join(seen(&wanted, &records[..split]));
            let starts: Vec<u64> = joined.points.iter().map(|one| one.start.get()).collect();
            assert_eq!(starts, (13..=20).map(|at| at * 100).collect::<Vec<u64>>());
        }
    }
}
