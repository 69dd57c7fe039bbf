//! Records of WAL that the source has given up, in the target.
//!
//! Such a record ends the alarm about WAL that is missing, for all that lies before it. So it is copied only where the target
//! gets no WAL because the source has it no more, and never where the target has a hole of its own: it had that WAL, and has
//! lost it. A hole is of the source's making when what lies behind it came into the target after the record was written.

use std::collections::BTreeSet;
use std::iter::empty;

use jiff::Timestamp;
use pgstrata_pgdata::{TimelineId, WalSegment};
use pgstrata_store::archive::{ArchivedTimeline, ArchivedWal, SegmentRun};
use pgstrata_store::catalog::{CLOCKS_DIFFER, GivenUp, wal_given_up};
use pgstrata_store::error::{Kind, Result};

use super::cluster::copy_object;
use super::wal::BothArchives;
use super::{BothSides, Mirror, MirrorReport, NotCopied};

/// What a record is judged by.
struct Explained<'a> {
    source: &'a ArchivedWal,
    /// The target before this copy, with what it has given up itself.
    before: &'a ArchivedWal,
    target: &'a ArchivedWal,
    /// The first segment that is of use in the target.
    first: u64,
}

impl Explained<'_> {
    /// Whether the target lacks WAL because the source has given it up, and none for another reason.
    fn is_due(&self, given_up: &GivenUp) -> bool {
        let is_of = |timeline: TimelineId| {
            given_up.timelines.is_empty() || given_up.timelines.contains(&timeline)
        };
        let of_it = self.before.by_timeline().filter(|(one, _)| is_of(*one));
        let lacks = of_it.flat_map(|(timeline, found)| self.lacks(given_up, timeline, found));
        let lacks: Vec<Lack> = lacks.collect();
        let mut of_it = self.source.by_timeline().filter(|(one, _)| is_of(*one));
        let mut is_withheld =
            || of_it.any(|(timeline, found)| self.is_withheld(given_up, timeline, found));
        !lacks.contains(&Lack::Lost) && (!lacks.is_empty() || is_withheld())
    }

    /// Whether WAL behind the end of what the target had is in neither of them.
    fn is_withheld(
        &self,
        given_up: &GivenUp,
        timeline: TimelineId,
        source: &ArchivedTimeline,
    ) -> bool {
        let end = given_up.before.segment(self.source.segment_size());
        let had = self.before.runs(timeline).last().map(|run| run.last + 1);
        let from = had.unwrap_or(0).max(self.first);
        let before_all = had
            .zip(source.runs.first())
            .map(|(had, run)| had..run.first);
        let gaps = source.gaps().map(|gap| *gap.start()..*gap.end() + 1);
        let mut gaps = before_all.into_iter().chain(gaps);
        gaps.any(|gap| {
            let mut numbers = gap.start.max(from)..gap.end.min(end);
            numbers.any(|number| !self.target.holds(WalSegment { timeline, number }))
        })
    }

    /// The holes that the target had, that no record explains, and that this copy cannot fill.
    fn lacks(
        &self,
        given_up: &GivenUp,
        timeline: TimelineId,
        before: &ArchivedTimeline,
    ) -> Vec<Lack> {
        let end = given_up.before.segment(self.before.segment_size());
        // Clocks of hosts may differ a little.
        let known_at = given_up.at.checked_add(CLOCKS_DIFFER);
        let known_at = known_at.unwrap_or(Timestamp::MAX);
        let lack = |pair: &[SegmentRun]| {
            let behind = &pair[1];
            let from = (pair[0].last + 1).max(self.first);
            let mut numbers = from..behind.first.min(end);
            let is_open = numbers.any(|number| {
                let segment = WalSegment { timeline, number };
                !self.before.was_released(segment) && !self.source.holds(segment)
            });
            is_open.then_some(match behind.first_at < known_at {
                true => Lack::Lost,
                false => Lack::NeverThere,
            })
        };
        before.runs.windows(2).filter_map(lack).collect()
    }
}

/// WAL that the target lacks before WAL that it has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// It may have had that.
    Lost,
    /// What lies behind it came when the source had given it up: the copy was killed before the record came.
    NeverThere,
}

impl Mirror<'_> {
    /// Copies the records that say why the target lacks WAL, but for those of which it is known (`judged`). `before`: the
    /// archives as this copy has found them; `now`: as they are, when they were listed since the last one was judged.
    pub(super) async fn released(
        &self,
        both: &BothSides,
        (before, now): (&BothArchives, Option<&BothArchives>),
        judged: &mut BTreeSet<String>,
        report: &mut MirrorReport,
    ) -> Result<()> {
        let listed = |prefix: String| async move { self.target.repository.list(&prefix).await };
        let there = listed(self.target.name.released_prefix()).await?;
        if let Some(object) = there.first() {
            self.target.repository.make_durable(&object.key).await?;
        }
        let said = wal_given_up(self.source).await?;
        let is_new = |key: &String| there.iter().all(|there| there.key != *key);
        for (key, error) in said.unreadable {
            if is_new(&key) && judged.insert(key.clone()) {
                report.left_out.push(NotCopied::broken(key, &error));
            }
        }
        let name = &self.source.name;
        let records = said.given_up.into_iter();
        let records = records.map(|given_up| (name.released_key(given_up.before), given_up));
        let records: Vec<_> = records
            .filter(|(key, _)| is_new(key) && judged.insert(key.clone()))
            .collect();
        if records.is_empty() {
            return Ok(());
        }
        let fresh;
        let now = match now {
            Some(now) => now,
            None => {
                fresh = BothArchives::list(&self.from, Some(&self.to)).await?;
                &fresh
            }
        };
        let size = self.from.segment_size();
        let mut had = self
            .to
            .list_beside(before.objects_there(), empty(), empty())
            .await?;
        had.set_released(wal_given_up(self.target).await?);
        let judge = Explained {
            source: &self
                .from
                .list_beside(now.objects_here(), empty(), empty())
                .await?,
            before: &had,
            target: &self
                .to
                .list_beside(now.objects_there(), empty(), empty())
                .await?,
            first: both.oldest_lsn().map_or(0, |oldest| oldest.segment(size)),
        };
        for (key, _) in records
            .iter()
            .filter(|(_, given_up)| judge.is_due(given_up))
        {
            match copy_object(self.source, self.target, key).await {
                Ok(new) => report.records += u64::from(new),
                // Somebody has removed it, or made it, meanwhile.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::AlreadyExists) => {}
                Err(error) if error.is_of_one_object() => {
                    report.left_out.push(NotCopied::broken(key.clone(), &error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a failed test")]
mod tests {
    use pgstrata_pgdata::{Lsn, WalSegmentSize};

    use super::*;

    const SIZE: u64 = 16 << 20;

    fn archive(segments: &[u64], stored: &str) -> ArchivedWal {
        let mut archived = ArchivedWal::new(WalSegmentSize::try_from(SIZE).unwrap());
        for number in segments {
            let segment = WalSegment {
                timeline: TimelineId::FIRST,
                number: *number,
            };
            archived.add_segment(segment, stored.parse().unwrap());
        }
        archived
    }

    /// The source has given up what it lacks before segment 8, at noon.
    fn is_due(source: &[u64], before: &ArchivedWal, target: &[u64]) -> bool {
        let noon = "2026-11-20T12:00:00Z";
        let judged = Explained {
            source: &archive(source, noon),
            before,
            target: &archive(target, noon),
            first: 2,
        };
        judged.is_due(&GivenUp {
            before: Lsn::new(8 * SIZE),
            at: noon.parse().unwrap(),
            timelines: vec![TimelineId::FIRST],
        })
    }

    #[test]
    fn a_record_comes_with_the_hole_that_it_explains_and_to_no_other_one() {
        let (early, late) = ("2026-11-20T11:00:00Z", "2026-11-20T13:00:00Z");
        let source = [2, 3, 7, 8, 9];
        let new = archive(&[], early);
        assert!(is_due(&source, &new, &[]));
        let behind = archive(&[2, 3, 4], early);
        assert!(is_due(&source, &behind, &[2, 3, 4]));
        let whole = [2, 3, 4, 5, 6, 7, 8];
        assert!(!is_due(&source, &archive(&whole, early), &whole));
        // It came while this was copied.
        assert!(!is_due(&source, &behind, &whole));
        let lost = [2, 3, 4, 6, 7, 8];
        assert!(!is_due(&source, &archive(&lost, early), &lost));
        let both = archive(&[2, 3, 5], early);
        assert!(
            !is_due(&source, &both, &[2, 3, 5]),
            "it has lost one before"
        );
        // What was lost before the first layer, or behind the end, is none of it.
        assert!(is_due(&source, &archive(&[0, 2, 3], early), &[0, 2, 3]));
        // A copy that was killed had begun when the source had it no more.
        let killed = [2, 3, 7, 8];
        assert!(is_due(&source, &archive(&killed, late), &killed));
        assert!(!is_due(&source, &archive(&killed, early), &killed));
        // What the source still has comes now.
        assert!(is_due(&source, &archive(&[2, 4], early), &[2, 3, 4]));
        // All that the source has begins behind what the target has.
        assert!(is_due(&[7, 8, 9], &behind, &[2, 3, 4]));
    }
}
