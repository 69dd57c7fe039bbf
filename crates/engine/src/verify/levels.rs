//! WAL in which a server goes on with `wal_level = minimal`: all of it is there, and recovery ends in it.
//!
//! A record tells with which `wal_level` a server goes on. Recovery from an archive ends where it says `minimal`
//! (`CheckRequiredParameterValues`, `src/backend/access/transam/xlog.c`), because the WAL behind it need not have all
//! that changed. That the server archives again later does not help, so such a record counts as a hole. A layer that starts
//! behind it is not concerned.

use std::collections::HashMap;

use pgstrata_pgdata::{ArchiveFile, Lsn, TimelineHistory, WalSegment};
use pgstrata_store::catalog::{Catalog, Layer};

use super::wal::WalSeen;
use super::{FindingKind, Verifier};
use crate::health::{self, RecoveryPath};

impl Verifier {
    /// Requires that no layer leads to a server with `wal_level = minimal` along `way`. Between its `runs` WAL is missing.
    pub(super) fn require_archived_levels(
        &self,
        way: &RecoveryPath<'_>,
        runs: &[Vec<WalSegment>],
        catalog: &Catalog,
        seen: &WalSeen,
    ) {
        let Some(archive) = &self.archive else {
            return;
        };
        if seen.minimal.is_empty() {
            return;
        }
        let is_usable =
            |layer: &&Layer| health::problem(catalog, layer, seen.settled.as_ref()).is_none();
        let leads_there = |layer: &&Layer| {
            let manifest = &layer.manifest;
            let (timeline, stop) = (manifest.timeline, manifest.stop_lsn);
            way.history.is_ancestor(timeline, stop)
        };
        let layers = catalog.layers.iter().filter(is_usable).filter(leads_there);
        let starts: Vec<Lsn> = layers.map(|layer| layer.manifest.start_lsn).collect();
        for run in runs {
            let Some(first) = run.first() else { continue };
            // A layer that starts before it meets the hole first.
            let begin = first.start_lsn(archive.segment_size());
            let starts = starts.iter().copied().filter(|start| *start >= begin);
            let Some(start) = starts.min() else { continue };
            for (segment, at) in ends_from(start, run, &way.history, &seen.minimal) {
                let key = archive.key(ArchiveFile::Segment(segment));
                let message = format!(
                    "from {at} on it was written with wal_level = minimal: no restore of a layer that starts before that gets \
                     past it"
                );
                let hint = format!(
                    "take a backup now, unless one starts behind {at}; restore that one, or an older one to a moment before {at}"
                );
                let kind = FindingKind::WalMissing;
                self.findings.add_hinted(kind, "", (key, message), hint);
            }
        }
    }
}

/// The records of `minimal` that recovery along `history` meets from `start` on in `run`.
fn ends_from(
    start: Lsn,
    run: &[WalSegment],
    history: &TimelineHistory,
    minimal: &HashMap<WalSegment, Vec<Lsn>>,
) -> Vec<(WalSegment, Lsn)> {
    let mut ends = Vec::new();
    for segment in run {
        // A segment begins with what earlier timelines have of it. Behind the place where its own is left it is not read.
        let is_read = |at: Lsn| {
            let timeline = history.timeline_at(at);
            at >= start && timeline.is_some_and(|timeline| timeline <= segment.timeline)
        };
        let records = minimal.get(segment).into_iter().flatten().copied();
        ends.extend(records.filter(|at| is_read(*at)).map(|at| (*segment, at)));
    }
    ends
}

#[cfg(test)]
mod tests {
    use pgstrata_pgdata::TimelineId;

    use super::*;

    fn segment(timeline: u32, number: u64) -> WalSegment {
        WalSegment {
            timeline: TimelineId::new(timeline),
            number,
        }
    }

    /// Segments of 256 bytes: timeline 2 begins in the middle of the second.
    #[test]
    fn only_what_recovery_reads_ends_it() {
        let history = TimelineHistory::parse(TimelineId::new(2), "1\t0/180\t\n").unwrap();
        let lsns = |lsns: &[u64]| lsns.iter().copied().map(Lsn::new).collect();
        let minimal = HashMap::from([
            (segment(1, 0), lsns(&[0x10, 0x20])),
            (segment(1, 1), lsns(&[0x110, 0x190])),
            (segment(2, 1), lsns(&[0x110])),
            (segment(2, 2), lsns(&[0x210])),
        ]);
        let ends = |start: u64, run: &[WalSegment]| -> Vec<u64> {
            let ends = ends_from(Lsn::new(start), run, &history, &minimal);
            ends.into_iter().map(|(_, at)| at.get()).collect()
        };
        let new = [segment(1, 0), segment(2, 1), segment(2, 2), segment(2, 3)];
        assert_eq!(ends(0, &new), [0x10, 0x20, 0x110, 0x210]);
        assert_eq!(ends(0x18, &new), [0x20, 0x110, 0x210]);
        assert_eq!(ends(0x110, &new), [0x110, 0x210]);
        assert_eq!(ends(0x211, &new), Vec::<u64>::new());
        // The old timeline's copy, where the new one's is not there.
        let old = [segment(1, 0), segment(1, 1)];
        assert_eq!(ends(0x30, &old), [0x110]);
    }
}
