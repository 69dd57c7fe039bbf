//! Which layer leads to the target, and whether the archive does.
//!
//! A layer can start a recovery to a target only when it is complete before the target, so its *stop* counts, and when
//! the target's timeline passes through it. Whatever recovery would only find out hours later is refused here.

use jiff::Timestamp;
use pgstrata_layer::label::Label;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::{TimelineHistory, TimelineId};
use pgstrata_pgdata::wal::WalSegment;

use super::archived::{ArchivedWal, Coverage};
use super::target::{Target, TimelineChoice};
use crate::error::{Error, Kind, Result};

/// What selection knows of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) label: Label,
    pub(super) start: Lsn,
    pub(super) stop: Lsn,
    pub(super) timeline: TimelineId,
    /// After this time nothing of the backup was still to be replayed.
    pub(super) finished_at: Timestamp,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) target: &'a Target,
    pub(super) timeline: Option<TimelineChoice>,
    /// The layer the user named.
    pub(super) label: Option<&'a Label>,
    pub(super) now: Timestamp,
}

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// Index into the candidates.
    pub(super) candidate: usize,
    pub(super) history: TimelineHistory,
    /// WAL that recovery will read, as far as the archive knows.
    pub(super) coverage: Coverage,
    /// Things the user should know.
    pub(super) notes: Vec<String>,
}

/// Why a candidate does not lead to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reject {
    OtherTimeline(TimelineId),
    UnknownTimeline(TimelineId),
    TooLate,
}

pub(super) fn select(
    candidates: &[Candidate],
    request: &Request<'_>,
    archive: &ArchivedWal,
) -> Result<Selection> {
    if matches!(request.target, Target::Time(time) if *time > request.now) {
        return Err(unreachable(format!(
            "{} is in the future: it is now {}",
            request.target,
            Target::Time(request.now).value().unwrap_or_default()
        )));
    }
    let (candidate, history) = match request.label {
        Some(label) => named(candidates, request, archive, label)?,
        None => newest(candidates, request, archive)?,
    };
    let mut notes = notes(request, &candidates[candidate]);
    let coverage = reach(
        &candidates[candidate],
        request,
        archive,
        &history,
        &mut notes,
    )?;
    Ok(Selection {
        candidate,
        history,
        coverage,
        notes,
    })
}

fn named(
    candidates: &[Candidate],
    request: &Request<'_>,
    archive: &ArchivedWal,
    label: &Label,
) -> Result<(usize, TimelineHistory)> {
    let found = candidates
        .iter()
        .position(|candidate| candidate.label == *label);
    let index =
        found.ok_or_else(|| Error::new(Kind::NotFound, format!("there is no layer {label}")))?;
    let candidate = &candidates[index];
    match judge(candidate, request, archive) {
        Ok(history) => Ok((index, history)),
        Err(Reject::TooLate) => Err(unreachable(format!(
            "{} is before the end of layer {label}, which is at {}",
            request.target,
            end_of(candidate, request.target)
        ))
        .hint("Leave the label out to let the newest layer before the target be chosen.")),
        Err(Reject::UnknownTimeline(timeline)) => Err(unknown_timeline(timeline)),
        Err(Reject::OtherTimeline(timeline)) => Err(unreachable(format!(
            "layer {label} was taken on timeline {}, which timeline {timeline} does not pass at {}",
            candidate.timeline, candidate.stop
        ))
        .hint("Use --target-timeline=current to stay on the layer's own timeline.")),
    }
}

fn newest(
    candidates: &[Candidate],
    request: &Request<'_>,
    archive: &ArchivedWal,
) -> Result<(usize, TimelineHistory)> {
    if candidates.is_empty() {
        return Err(Error::new(
            Kind::NotFound,
            "there is no complete layer to restore",
        ));
    }
    let mut best: Option<(usize, TimelineHistory)> = None;
    let mut rejects = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        match judge(candidate, request, archive) {
            Err(reject) => rejects.push((candidate, reject)),
            Ok(history) => {
                let newer = best
                    .as_ref()
                    .is_none_or(|(at, _)| rank(candidate) >= rank(&candidates[*at]));
                if newer {
                    best = Some((index, history));
                }
            }
        }
    }
    best.ok_or_else(|| no_layer(request, &rejects))
}

/// Newer layers rank higher; ended later on the clock and, for equal clocks, in the WAL.
fn rank(candidate: &Candidate) -> (Timestamp, Lsn) {
    (candidate.finished_at, candidate.stop)
}

/// Whether `candidate` leads to the target, and along which history.
fn judge(
    candidate: &Candidate,
    request: &Request<'_>,
    archive: &ArchivedWal,
) -> std::result::Result<TimelineHistory, Reject> {
    let timeline = match request.timeline {
        Some(TimelineChoice::Current) => candidate.timeline,
        Some(TimelineChoice::Number(timeline)) => timeline,
        Some(TimelineChoice::Latest) => archive.latest_from(candidate.timeline),
        None if matches!(request.target, Target::Immediate | Target::None) => candidate.timeline,
        None => archive.latest_from(candidate.timeline),
    };
    // The server, too, wants the history file of a timeline that is named, but for the first.
    let named = matches!(request.timeline, Some(TimelineChoice::Number(_)));
    if named && timeline != TimelineId::FIRST && !archive.has_history(timeline) {
        return Err(Reject::UnknownTimeline(timeline));
    }
    let history = archive.history(timeline);
    if !history.contains(candidate.timeline, candidate.start..candidate.stop) {
        return Err(Reject::OtherTimeline(timeline));
    }
    let in_time = match request.target {
        Target::Lsn(lsn) => candidate.stop <= *lsn,
        Target::Time(time) => candidate.finished_at < *time,
        _ => true,
    };
    if in_time {
        Ok(history)
    } else {
        Err(Reject::TooLate)
    }
}

fn no_layer(request: &Request<'_>, rejects: &[(&Candidate, Reject)]) -> Error {
    let too_late = rejects
        .iter()
        .filter(|(_, reject)| *reject == Reject::TooLate);
    let earliest = too_late
        .map(|(candidate, _)| *candidate)
        .min_by_key(|c| rank(c));
    if let Some(candidate) = earliest {
        return unreachable(format!(
            "{} is before the first backup: the earliest point that can be restored is the end of layer {}, at {}",
            request.target,
            candidate.label,
            end_of(candidate, request.target)
        ));
    }
    match rejects.first() {
        Some((_, Reject::UnknownTimeline(timeline))) => unknown_timeline(*timeline),
        Some((_, Reject::OtherTimeline(timeline))) => unreachable(format!(
            "no layer was taken on timeline {timeline} or on a timeline it comes from"
        ))
        .hint("Use --target-timeline=current, or name another timeline; info shows the timeline of each layer."),
        _ => Error::new(Kind::NotFound, "there is no complete layer to restore"),
    }
}

fn unknown_timeline(timeline: TimelineId) -> Error {
    unreachable(format!(
        "timeline {timeline} is not known: its history file {} is not in the archive",
        timeline.history_file_name()
    ))
}

fn end_of(candidate: &Candidate, target: &Target) -> String {
    match target {
        Target::Time(_) => Target::Time(candidate.finished_at)
            .value()
            .unwrap_or_default(),
        _ => candidate.stop.to_string(),
    }
}

fn notes(request: &Request<'_>, candidate: &Candidate) -> Vec<String> {
    let mut notes = Vec::new();
    if request.label.is_none() && matches!(request.target, Target::Xid(_) | Target::Name(_)) {
        notes.push(format!(
            "where {} lies is not known before its WAL is replayed; the newest layer was chosen: if recovery ends \
             without reaching it, name a layer that is older than {}",
            request.target, candidate.label
        ));
    }
    if *request.target == Target::None {
        notes.push(format!(
            "the server will go on with timeline {}, as its source may: archiving is turned off, because both would \
             archive different WAL under the same names; turn it on only for a new repository",
            candidate.timeline
        ));
    }
    notes
}

/// Follows the archive from the layer's start to the target.
fn reach(
    candidate: &Candidate,
    request: &Request<'_>,
    archive: &ArchivedWal,
    history: &TimelineHistory,
    notes: &mut Vec<String>,
) -> Result<Coverage> {
    let size = archive.segment_size();
    let stop = WalSegment::containing_end(candidate.timeline, candidate.stop, size).number;
    let own = archive.coverage(history, candidate.start, Some(stop));
    if own.missing.number <= stop {
        return Err(Error::new(
            Kind::WalMissing,
            format!(
                "WAL segment {} is not in the archive: layer {} cannot become consistent without it",
                own.missing.file_name(size),
                candidate.label
            ),
        ));
    }
    let limit = match request.target {
        Target::Lsn(lsn) => Some(lsn.segment(size).max(stop)),
        Target::Immediate | Target::None => Some(stop),
        _ => None,
    };
    let coverage = archive.coverage(history, candidate.start, limit);
    if limit.is_some_and(|limit| coverage.missing.number > limit) {
        return Ok(coverage);
    }
    match obstacle(request.target, &coverage, archive) {
        Some(error) => Err(error),
        None => {
            if coverage.more_after {
                notes.push(format!(
                    "WAL segment {} is missing from the archive, though later ones are there: recovery cannot get past it",
                    coverage.missing.file_name(size)
                ));
            }
            Ok(coverage)
        }
    }
}

/// Why recovery, which finds only `coverage`, does not get to the target.
fn obstacle(target: &Target, coverage: &Coverage, archive: &ArchivedWal) -> Option<Error> {
    let missing = coverage.missing.file_name(archive.segment_size());
    let hole = |what: String| {
        Error::new(
            Kind::WalMissing,
            format!("WAL segment {missing} is missing from the archive, though later ones are there: {what}"),
        )
        .hint("Restore to an LSN or a time before the gap, or use a layer that was taken after it.")
    };
    match target {
        Target::Time(time) if coverage.stored_at.is_some_and(|stored_at| stored_at >= *time) => None,
        Target::Time(_) | Target::Lsn(_) if coverage.more_after => {
            Some(hole(format!("recovery cannot get to {target}")))
        }
        Target::Time(_) => Some(after_last_commit(target, coverage, archive)),
        Target::Lsn(_) => Some(
            unreachable(format!(
                "{target} is beyond what is archived: segment {missing} of timeline {} is not in the archive yet",
                coverage.missing.timeline
            ))
            .hint(
                "Run \"select pg_switch_wal()\" on the source and wait until it is archived, or restore to the end of \
                 the archive (--type=default).",
            ),
        ),
        Target::Default if coverage.more_after => {
            Some(hole("recovery would end there and open the server without what came after".to_owned()))
        }
        _ => None,
    }
}

/// Recovery stops *at* a time only by meeting a transaction that ended after it. Without one PostgreSQL replays all
/// there is, and then fails with `recovery ended before configured recovery target was reached`.
fn after_last_commit(target: &Target, coverage: &Coverage, archive: &ArchivedWal) -> Error {
    let size = archive.segment_size();
    let last = coverage
        .parts
        .last()
        .map(|&(timeline, _, number)| WalSegment { timeline, number }.file_name(size));
    let stored = coverage
        .stored_at
        .map(Target::Time)
        .and_then(|time| time.value());
    unreachable(format!(
        "{target} is after the last transaction in the archive: its last segment, {}, was stored at {}; a server only \
         knows that it has reached a time when it meets a transaction that ended later",
        last.unwrap_or_default(),
        stored.unwrap_or_default()
    ))
    .hint("Wait until WAL written after that time is archived (\"select pg_switch_wal()\" on the source), or restore to the end of the archive (--type=default).")
}

fn unreachable(message: String) -> Error {
    Error::new(Kind::Target, message)
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use pgstrata_pgdata::wal::WalSegmentSize;

    use super::*;

    const SEGMENT: u64 = 16 << 20;

    fn lsn(segment: u64, offset: u64) -> Lsn {
        Lsn::new(segment * SEGMENT + offset)
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn layer(label: &str, timeline: u32, segment: u64, finished: i64) -> Candidate {
        Candidate {
            label: Label::parse(label).unwrap(),
            start: lsn(segment, 40),
            stop: lsn(segment, 1000),
            timeline: TimelineId::new(timeline),
            finished_at: second(finished),
        }
    }

    const A: &str = "20261121-090000F";
    const B: &str = "20261121-090000F_20261121-100000I";
    const C: &str = "20261121-090000F_20261121-110000I";

    fn three() -> Vec<Candidate> {
        vec![
            layer(A, 1, 10, 10),
            layer(B, 1, 20, 20),
            layer(C, 1, 30, 30),
        ]
    }

    /// Segment n of the archive was stored at second n.
    fn archive(parts: &[(u32, RangeInclusive<u64>)], histories: &[(u32, &str)]) -> ArchivedWal {
        let mut archive = ArchivedWal::new(WalSegmentSize::DEFAULT);
        for (timeline, numbers) in parts {
            for number in numbers.clone() {
                let timeline = TimelineId::new(*timeline);
                let time = second(i64::try_from(number).unwrap());
                archive.add_segment(WalSegment { timeline, number }, time);
            }
        }
        for (timeline, text) in histories {
            let history = TimelineHistory::parse(TimelineId::new(*timeline), text).unwrap();
            archive.add_history(history);
        }
        archive
    }

    struct Ask<'a> {
        target: Target,
        timeline: Option<TimelineChoice>,
        label: Option<&'a str>,
    }

    fn ask(target: Target) -> Ask<'static> {
        Ask {
            target,
            timeline: None,
            label: None,
        }
    }

    fn choose(layers: &[Candidate], ask: &Ask<'_>, archive: &ArchivedWal) -> Result<Selection> {
        let label = ask.label.map(|label| Label::parse(label).unwrap());
        let request = Request {
            target: &ask.target,
            timeline: ask.timeline,
            label: label.as_ref(),
            now: second(1000),
        };
        select(layers, &request, archive)
    }

    fn refused(
        layers: &[Candidate],
        ask: &Ask<'_>,
        archive: &ArchivedWal,
        kind: Kind,
        words: &str,
    ) {
        let error = choose(layers, ask, archive).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn the_newest_layer_whose_stop_is_before_the_target_is_chosen() {
        let archive = archive(&[(1, 10..=40)], &[]);
        for (target, expected) in [
            (Target::Default, C),
            (Target::Immediate, C),
            (Target::Standby, C),
            (Target::None, C),
            (Target::Xid(700), C),
            (Target::Lsn(lsn(30, 1000)), C),
            // The start of C is before this, its stop is not.
            (Target::Lsn(lsn(30, 999)), B),
            (Target::Lsn(lsn(10, 1000)), A),
            (Target::Time(second(31)), C),
            (Target::Time(second(30)), B),
        ] {
            let selection = choose(&three(), &ask(target.clone()), &archive).unwrap();
            assert_eq!(
                three()[selection.candidate].label.as_str(),
                expected,
                "{target}"
            );
        }
    }

    #[test]
    fn a_target_before_the_first_backup_is_refused() {
        let archive = archive(&[(1, 10..=40)], &[]);
        let words = "before the first backup";
        refused(
            &three(),
            &ask(Target::Lsn(lsn(10, 999))),
            &archive,
            Kind::Target,
            words,
        );
        refused(
            &three(),
            &ask(Target::Time(second(9))),
            &archive,
            Kind::Target,
            words,
        );
    }

    #[test]
    fn a_target_beyond_the_archive_is_refused() {
        let archive = archive(&[(1, 10..=40)], &[]);
        refused(
            &three(),
            &ask(Target::Lsn(lsn(41, 0))),
            &archive,
            Kind::Target,
            "beyond what is archived",
        );
        refused(
            &three(),
            &ask(Target::Time(second(1001))),
            &archive,
            Kind::Target,
            "in the future",
        );
        let words = "after the last transaction in the archive";
        refused(
            &three(),
            &ask(Target::Time(second(41))),
            &archive,
            Kind::Target,
            words,
        );
        assert!(choose(&three(), &ask(Target::Time(second(39))), &archive).is_ok());
    }

    #[test]
    fn a_gap_between_layer_and_target_is_refused() {
        let gap = archive(&[(1, 10..=34), (1, 36..=40)], &[]);
        let words = "000000010000000000000023 is missing";
        refused(
            &three(),
            &ask(Target::Default),
            &gap,
            Kind::WalMissing,
            words,
        );
        refused(
            &three(),
            &ask(Target::Lsn(lsn(36, 0))),
            &gap,
            Kind::WalMissing,
            words,
        );
        refused(
            &three(),
            &ask(Target::Time(second(36))),
            &gap,
            Kind::WalMissing,
            words,
        );
        assert!(choose(&three(), &ask(Target::Lsn(lsn(34, 9))), &gap).is_ok());
        assert!(choose(&three(), &ask(Target::Time(second(33))), &gap).is_ok());
        assert!(choose(&three(), &ask(Target::Immediate), &gap).is_ok());
        let notes = choose(&three(), &ask(Target::Xid(700)), &gap)
            .unwrap()
            .notes;
        assert!(notes.iter().any(|note| note.contains(words)), "{notes:?}");
    }

    #[test]
    fn a_layer_without_its_own_wal_is_refused() {
        let archive = archive(&[(1, 10..=29), (1, 31..=40)], &[]);
        refused(
            &three(),
            &ask(Target::Immediate),
            &archive,
            Kind::WalMissing,
            "cannot become consistent",
        );
    }

    #[test]
    fn only_layers_that_the_target_timeline_passes_are_chosen() {
        // Timeline 2 leaves timeline 1 between B and C.
        let history = format!("1\t{}\twhy\n", lsn(25, 500));
        let archive = archive(&[(1, 10..=40), (2, 25..=50)], &[(2, &history)]);
        let mut layers = three();
        let latest = choose(&layers, &ask(Target::Default), &archive).unwrap();
        assert_eq!(layers[latest.candidate].label.as_str(), B);
        assert_eq!(latest.history.timeline().get(), 2);

        let current = Ask {
            timeline: Some(TimelineChoice::Current),
            ..ask(Target::Default)
        };
        let stayed = choose(&layers, &current, &archive).unwrap();
        assert_eq!(layers[stayed.candidate].label.as_str(), C);

        let named = Ask {
            label: Some(C),
            ..ask(Target::Default)
        };
        refused(
            &layers,
            &named,
            &archive,
            Kind::Target,
            "which timeline 2 does not pass",
        );

        layers.push(layer("20261121-120000F", 2, 45, 45));
        let one = TimelineChoice::Number(TimelineId::FIRST);
        let old = Ask {
            timeline: Some(one),
            ..ask(Target::Default)
        };
        let chosen = choose(&layers, &old, &archive).unwrap();
        assert_eq!(layers[chosen.candidate].label.as_str(), C);

        let nine = TimelineChoice::Number(TimelineId::new(9));
        let unknown = Ask {
            timeline: Some(nine),
            ..ask(Target::Default)
        };
        refused(
            &layers,
            &unknown,
            &archive,
            Kind::Target,
            "00000009.history is not in the archive",
        );
    }

    #[test]
    fn a_named_layer_must_exist_and_end_before_the_target() {
        let archive = archive(&[(1, 10..=40)], &[]);
        let late = Ask {
            label: Some(C),
            ..ask(Target::Lsn(lsn(30, 999)))
        };
        refused(
            &three(),
            &late,
            &archive,
            Kind::Target,
            "before the end of layer",
        );
        let absent = Ask {
            label: Some("20200101-000000F"),
            ..ask(Target::Default)
        };
        refused(
            &three(),
            &absent,
            &archive,
            Kind::NotFound,
            "there is no layer",
        );
        refused(
            &[],
            &ask(Target::Default),
            &archive,
            Kind::NotFound,
            "no complete layer",
        );
    }
}
