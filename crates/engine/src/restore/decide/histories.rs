//! The histories of timelines that a server asks for: without them it does not recover, whatever else is there.

use std::collections::BTreeMap;

use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_store::archive::ArchivedWal;
use pgstrata_store::error::{Error, Kind, Result};

use super::select::{Candidate, Request, Selection};
use crate::restore::target::{Target, TimelineChoice};

/// Refuses a recovery of which nobody knows which way it goes, because a history is `unreadable`. Who has named another
/// timeline, or takes that of a layer, need not know that: anybody who may create objects can put such a thing there, and a byte
/// that rots is enough.
///
/// # Errors
/// Why it cannot be read, for the timeline that the user has named; for any, when recovery follows the latest timeline, which
/// that one may be.
pub fn require_way_known(
    target: &Target,
    timeline: Option<TimelineChoice>,
    unreadable: &BTreeMap<TimelineId, Error>,
) -> Result<()> {
    let by_layer = matches!(target, Target::Immediate | Target::None);
    let needed = match timeline {
        Some(TimelineChoice::Number(named)) => unreadable.get_key_value(&named),
        Some(TimelineChoice::Current) => None,
        None if by_layer => None,
        Some(TimelineChoice::Latest) | None => unreadable.first_key_value(),
    };
    let Some((lost, error)) = needed else {
        return Ok(());
    };
    let act = format!("whether recovery goes along timeline {lost} is not known");
    Err(error.clone().while_doing(act))
}

/// Sentences about the timelines behind the one that recovery follows whose histories cannot be read. Its server begins a
/// timeline of its own at the end, and looks for a number: theirs are taken, whatever they are.
pub(super) fn passed_over(selection: &Selection, archive: &ArchivedWal) -> Vec<String> {
    let own = selection.history.timeline();
    let passed = archive.unreadable_histories().range(own..);
    let notes = passed.map(|(timeline, error)| {
        format!(
            "recovery stays on timeline {own} and passes over timeline {timeline}, of which it is only known that its number is \
             taken: {error}"
        )
    });
    notes.collect()
}

/// Refuses a recovery that would end for want of a history.
///
/// A server reads the history of the timeline that it follows before anything else, which names all that it comes from. Then it
/// asks for that of each number from the layer's timeline on and before its own, whether its own comes from there or not, to have
/// a copy (`restoreTimeLineHistoryFiles`, `src/backend/access/transam/timeline.c`). Behind its own it asks for one number after
/// the other, for the newest timeline, and for one that is free to be its own. `archive-get` does not answer "not there" for a
/// history when there is anything of that timeline, or of a later one; it does so for recoveries with a target. One that
/// stays on a timeline gets no copy of an earlier history, and of a later one the answer that the number is taken.
///
/// # Errors
/// `WalMissing` with the name of the file; `Damaged` when it is there and cannot be read.
pub(super) fn require_histories(
    selection: &Selection,
    request: &Request<'_>,
    archive: &ArchivedWal,
    candidates: &[Candidate],
) -> Result<()> {
    let target = request.target;
    let own = selection.history.timeline();
    if *target == Target::None {
        return Ok(());
    }
    if own != TimelineId::FIRST && !archive.has_history(own) {
        return Err(missing(
            own,
            &format!("a server that recovers along timeline {own} does not start without it"),
        ));
    }
    if let Some(error) = archive.unreadable_histories().get(&own) {
        let act = format!("a server that recovers along timeline {own} reads its history");
        return Err(error.clone().while_doing(act));
    }
    if !target.follows_latest(request.timeline) {
        return Ok(());
    }
    let layer = candidates.get(selection.candidate);
    let begin = layer.map_or(own, |layer| layer.timeline).min(own);
    let has_target = target.has_stop_point() || selection.stop_before.is_some();
    let begin = begin.get();
    let mut between = (begin.max(2)..own.get()).map(TimelineId::new);
    if let Some(lost) = between.find(|passed| !has_target && !archive.has_history(*passed)) {
        let why = format!("a server that recovers to timeline {own} asks for it on the way");
        return Err(missing(lost, &why));
    }
    let next = archive.latest_from(own).get().checked_add(1);
    let Some(next) = next.map(TimelineId::new).filter(|_| !has_target) else {
        return Ok(());
    };
    let archived = archive.by_timeline().map(|(timeline, _)| timeline);
    let with_layers = candidates.iter().map(|layer| layer.timeline);
    match archived.chain(with_layers).find(|known| *known >= next) {
        Some(known) => Err(missing(
            next,
            &format!(
                "there is something of timeline {known}, and a server that looks for the newest timeline gives up at \
                 timeline {next}"
            ),
        )),
        None => Ok(()),
    }
}

pub(super) fn missing(timeline: TimelineId, why: &str) -> Error {
    let file = timeline.history_file_name();
    Error::new(
        Kind::WalMissing,
        format!("\"{file}\" is missing from the archive: {why}"),
    )
    .hint(format!(
        "Store it with \"pgstrata archive-push\": every server that has been on timeline {timeline} or on a later one keeps \
         the file in its pg_wal. A target on a timeline before {timeline} is reached without it."
    ))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use pgstrata_layer::label::Label;
    use pgstrata_pgdata::lsn::Lsn;
    use pgstrata_pgdata::timeline::TimelineHistory;
    use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};

    use super::*;
    use crate::restore::decide::select::Told;

    /// What is said of a recovery along `own` when the archive has these histories and segments of these timelines.
    fn outcome(
        (own, timeline): (u32, Option<TimelineChoice>),
        histories: &[u32],
        with_wal: &[u32],
        target: &Target,
    ) -> Option<String> {
        let mut archive = ArchivedWal::new(WalSegmentSize::DEFAULT);
        let time = Timestamp::UNIX_EPOCH;
        for &number in with_wal {
            let timeline = TimelineId::new(number);
            archive.add_segment(
                WalSegment {
                    timeline,
                    number: 5,
                },
                time,
            );
        }
        for &number in histories {
            let text = format!("1\t0/{number}000000\twhy\n");
            let history = TimelineHistory::parse(TimelineId::new(number), &text).unwrap();
            archive.add_history(history, time);
        }
        let history = archive.history(TimelineId::new(own));
        let selection = Selection {
            candidate: 0,
            coverage: archive.coverage(&history, Lsn::new(5 << 24), None),
            history,
            stops_at: None,
            stop_before: None,
            notes: Vec::new(),
        };
        let layer = Candidate {
            label: Label::parse("20261121-090000F").unwrap(),
            start: Lsn::new(5 << 24),
            stop: Lsn::new(5 << 24),
            timeline: TimelineId::FIRST,
            finished_at: time,
            stamp: String::new(),
            beside: None,
            from_standby: false,
        };
        let request = Request {
            target,
            timeline,
            label: None,
            lost: &[],
            skip_damaged: false,
            told: &Told::default(),
        };
        let outcome = require_histories(&selection, &request, &archive, &[layer]);
        outcome.err().map(|error| {
            assert_eq!(error.kind(), Kind::WalMissing);
            error.to_string()
        })
    }

    #[test]
    fn a_history_that_cannot_be_read_is_passed_over_by_who_need_not_know_it() {
        use TimelineChoice::{Current, Latest, Number};
        let mut archive = ArchivedWal::new(WalSegmentSize::DEFAULT);
        archive.add_unreadable(TimelineId::new(3), Error::new(Kind::Damaged, "rotten"));
        let number = |number| Some(Number(TimelineId::new(number)));
        for (target, timeline, is_passed) in [
            (Target::Default, None, false),
            (Target::Standby, None, false),
            (Target::Lsn(Lsn::new(7)), None, false),
            (Target::Immediate, None, true),
            (Target::Immediate, Some(Latest), false),
            (Target::None, None, true),
            (Target::Default, Some(Latest), false),
            (Target::Default, Some(Current), true),
            (Target::Default, number(1), true),
            (Target::Default, number(3), false),
            (Target::Default, number(4), true),
        ] {
            let found = require_way_known(&target, timeline, archive.unreadable_histories());
            assert_eq!(found.is_ok(), is_passed, "{target} {timeline:?}");
            if let Err(error) = found {
                assert_eq!(error.kind(), Kind::Damaged);
            }
        }
    }

    #[test]
    fn what_a_server_asks_for_in_vain_is_named() {
        let lsn = Target::Lsn(Lsn::new(6 << 24));
        for (own, histories, with_wal, target, wanted) in [
            (1, &[][..], &[1][..], &Target::Default, None),
            (1, &[2], &[1, 2], &Target::Default, None),
            (2, &[2], &[1, 2], &Target::Default, None),
            // Its own.
            (2, &[], &[1, 2], &Target::Default, Some("00000002.history")),
            (
                2,
                &[],
                &[1, 2],
                &Target::Immediate,
                Some("00000002.history"),
            ),
            (2, &[], &[1, 2], &lsn, Some("00000002.history")),
            (2, &[], &[1, 2], &Target::None, None),
            // One on the way to the newest.
            (1, &[], &[1, 2], &Target::Default, Some("00000002.history")),
            (1, &[3], &[1], &Target::Standby, Some("00000002.history")),
            (
                2,
                &[2, 4],
                &[1, 2],
                &Target::Default,
                Some("00000003.history"),
            ),
            (1, &[3], &[1], &lsn, None),
            // One between the layer's and its own, from which it does not come.
            (3, &[3], &[1, 3], &Target::Default, Some("00000002.history")),
            (3, &[3], &[1, 3], &Target::Standby, Some("00000002.history")),
            (3, &[3], &[1, 3], &lsn, None),
            (3, &[2, 3], &[1, 3], &Target::Default, None),
            (1, &[], &[1, 2], &Target::Immediate, None),
        ] {
            let found = outcome((own, None), histories, with_wal, target);
            let named = Some(TimelineChoice::Number(TimelineId::new(own)));
            let told = outcome((own, named), histories, with_wal, target);
            let is_own = wanted
                .is_some_and(|wanted| wanted == TimelineId::new(own).history_file_name().as_str());
            assert_eq!(
                told.is_some(),
                is_own,
                "{own} {histories:?} {with_wal:?} {target}: {told:?}"
            );
            let as_wanted = match (&found, wanted) {
                (Some(found), Some(wanted)) => found.contains(wanted),
                (found, wanted) => found.is_none() && wanted.is_none(),
            };
            assert!(
                as_wanted,
                "{own} {histories:?} {with_wal:?} {target}: {found:?}"
            );
        }
    }
}
