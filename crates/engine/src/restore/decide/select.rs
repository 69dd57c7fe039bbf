//! Which layer leads to the target, and whether the archive does.
//!
//! A layer can start a recovery to a target only when it is complete before the target, so its *stop* counts, and when
//! the target's timeline passes through it. Whatever recovery would only find out hours later is refused here, and so is
//! a second best that nobody asked for: an older layer because the right one cannot be read, or one of two branches.
//!
//! Manifests and listings say nothing of names, transactions and times in the WAL: [`super::locate`] looks for them, and
//! what it found is [`Told`].

use jiff::Timestamp;
use pgstrata_layer::label::Label;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::{TimelineHistory, TimelineId};
use pgstrata_pgdata::wal::{ArchiveFile, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{ArchivedWal, Coverage};
use pgstrata_store::error::{Error, Kind, Result};

use super::branches::Way;
use super::histories::missing;
use crate::restore::target::{Target, TimelineChoice};

/// What selection knows of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) label: Label,
    pub(crate) start: Lsn,
    pub(crate) stop: Lsn,
    pub(crate) timeline: TimelineId,
    /// When the backup ended, on the clock of its host, which need not be that of the server.
    pub(crate) finished_at: Timestamp,
    /// When the backup was made whose state it is, as [`pgstrata_layer::manifest::Manifest::state_stamp`].
    pub(crate) stamp: String,
    /// What may lie beside it on its timeline.
    pub(crate) beside: Option<BesideLayer>,
    /// Whether it is of a standby, which writes nothing behind the end of its backup.
    pub(crate) from_standby: bool,
}

impl Candidate {
    /// Whether recovery that is to stop at its end reads the first record of the next segment for that (`xlogrecovery.c`,
    /// `recoveryStopsAfter`).
    fn stops_in_next_segment(&self, size: WalSegmentSize) -> bool {
        self.from_standby && self.stop.get().is_multiple_of(size.get())
    }
}

/// The layer that another one does not seem to come after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BesideLayer {
    pub(crate) label: String,
    pub(crate) reason: String,
    /// Whether it is still there; else there is no other server to choose.
    pub(crate) is_there: bool,
}

/// A layer that cannot be restored, and might have been the one.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) label: Label,
    pub(crate) kind: Kind,
    /// Why it cannot.
    pub(crate) why: String,
    /// What its manifest says, when that can be read.
    pub(crate) known: Option<Candidate>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) target: &'a Target,
    pub(crate) timeline: Option<TimelineChoice>,
    /// The layer the user named.
    pub(crate) label: Option<&'a Label>,
    /// Layers that cannot be restored.
    pub(crate) lost: &'a [Lost],
    /// Whether they are passed over.
    pub(crate) skip_damaged: bool,
    /// What the archived WAL says.
    pub(crate) told: &'a Told,
}

impl Request<'_> {
    /// From where on nothing is replayed, as far as the target says it.
    fn until(&self) -> Option<Lsn> {
        match self.target {
            Target::Lsn(lsn) => Some(self.told.until.unwrap_or(*lsn)),
            _ => None,
        }
    }
}

/// What the archived WAL says of target and layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Where the record begins at which recovery stops.
    pub(crate) stop: Option<Lsn>,
    /// For an LSN target, the first position that recovery does not replay.
    pub(crate) until: Option<Lsn>,
    /// Layers from which recovery would stop before they are consistent, or which hold more than the target does.
    pub(crate) too_late: Vec<Label>,
    /// Layers that hold nothing of after the time target.
    pub(crate) in_time: Vec<Label>,
}

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// Index into the candidates.
    pub(crate) candidate: usize,
    pub(crate) history: TimelineHistory,
    /// WAL that recovery will read, as far as the archive knows.
    pub(crate) coverage: Coverage,
    /// Where the record begins at which recovery stops, when it was found.
    pub(crate) stops_at: Option<Lsn>,
    /// Where recovery to the end of the archive must be told to stop, lest it leave its history.
    pub(crate) stop_before: Option<Lsn>,
    /// Things the user should know.
    pub(crate) notes: Vec<String>,
}

/// Why a candidate does not lead to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reject {
    OtherTimeline(TimelineId),
    UnknownTimeline(TimelineId),
    TooLate,
}

pub(crate) fn select(
    candidates: &[Candidate],
    request: &Request<'_>,
    archive: &ArchivedWal,
) -> Result<Selection> {
    let (candidate, history) = choose(candidates, request, archive)?;
    let mut notes = notes(request.target, &candidates[candidate]);
    notes.extend(passed_over(candidates, candidate, request, archive)?);
    notes.extend(branches(candidates, candidate, request, archive, &history)?);
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
        stops_at: None,
        stop_before: None,
        notes,
    })
}

fn choose(
    candidates: &[Candidate],
    request: &Request<'_>,
    archive: &ArchivedWal,
) -> Result<(usize, TimelineHistory)> {
    match request.label {
        Some(label) => named(candidates, request, archive, label),
        None => newest(candidates, request, archive),
    }
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
            "{} is before the end of layer {label}, {}",
            request.target,
            end_of(candidate, request.target)
        ))
        .hint("Leave the label out to let the newest layer before the target be chosen.")),
        Err(Reject::UnknownTimeline(timeline)) => Err(unknown_timeline(timeline, archive)),
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
    best.ok_or_else(|| no_layer(request, &rejects, archive))
}

/// Newer layers rank higher: by the stamps of the backups whose states they are, which only grow. What clocks said when
/// a backup ended does not: they may have been ahead, and set right.
fn rank(candidate: &Candidate) -> (&str, Lsn) {
    (&candidate.stamp, candidate.stop)
}

/// Which layers would have been taken before `chosen`, could they be read: an error, or sentences for who passes them
/// over.
fn passed_over(
    candidates: &[Candidate],
    chosen: usize,
    request: &Request<'_>,
    archive: &ArchivedWal,
) -> Result<Vec<String>> {
    if request.label.is_some() {
        return Ok(Vec::new());
    }
    let chosen = &candidates[chosen];
    let better = request.lost.iter().filter(|lost| match &lost.known {
        Some(known) => judge(known, request, archive).is_ok() && rank(known) > rank(chosen),
        None => {
            let late = candidates.iter().any(|older| {
                older.stamp.as_str() < lost.label.own_stamp()
                    && judge(older, request, archive) == Err(Reject::TooLate)
            });
            lost.label.own_stamp() > chosen.stamp.as_str() && !late
        }
    });
    let better: Vec<&Lost> = better.collect();
    let Some(newest) = better.last() else {
        return Ok(Vec::new());
    };
    let instead = instead(chosen, request);
    if !request.skip_damaged {
        return Err(Error::new(
            newest.kind,
            format!(
                "could not use layer {}, which is newer than any other that leads to {}: {}",
                newest.label, request.target, newest.why
            ),
        )
        .hint(format!(
            "\"pgstrata verify\" says what is wrong. Who names the layer tries it all the same. With --skip-damaged, {instead}"
        )));
    }
    let each = better.iter().map(|lost| {
        let Lost { label, why, .. } = lost;
        format!("layer {label} was passed over, because it cannot be used: {why}")
    });
    Ok(each.chain([instead]).collect())
}

/// What comes of taking `chosen` instead of a newer layer.
fn instead(chosen: &Candidate, request: &Request<'_>) -> String {
    let finished = Target::Time(chosen.finished_at).value().unwrap_or_default();
    let label = &chosen.label;
    match request.target {
        Target::Immediate | Target::None => format!(
            "layer {label} is restored, which ended at {finished}, at {}: what was committed after that is lost",
            chosen.stop
        ),
        _ => format!(
            "layer {label} is restored, which ended at {finished}: recovery replays all WAL from {} on, and nothing is \
             lost as far as the archive holds it",
            chosen.start
        ),
    }
}

/// The history that a restore of the newest state follows; an error when no layer leads there or nobody knows which branch is
/// meant.
pub(super) fn newest_state(
    candidates: &[Candidate],
    archive: &ArchivedWal,
) -> Result<TimelineHistory> {
    let request = Request {
        target: &Target::Default,
        timeline: None,
        label: None,
        lost: &[],
        skip_damaged: true,
        told: &Told::default(),
    };
    let (chosen, history) = newest(candidates, &request, archive)?;
    branches(candidates, chosen, &request, archive, &history)?;
    Ok(history)
}

/// What a repository has, or several together.
pub(super) struct Stock {
    pub(super) candidates: Vec<Candidate>,
    pub(super) archive: ArchivedWal,
}

/// The layer from which a restore out of several repositories begins, and its history, when a branch that is meant is known: an
/// error else. `None` when no layer leads to the target.
pub(super) fn require_one_branch(
    request: &Request<'_>,
    together: &Stock,
    each: &[Stock],
) -> Result<Option<(usize, TimelineHistory)>> {
    let Stock {
        candidates,
        archive,
    } = together;
    let Ok((chosen, history)) = choose(candidates, request, archive) else {
        return Ok(None);
    };
    if request.timeline.is_none() {
        let layer = &candidates[chosen];
        let of = |stock| way_from(layer, request, stock, &history);
        let each: Vec<Way<'_>> = each
            .iter()
            .map(|one| of((&one.candidates, &one.archive)))
            .collect();
        of((candidates, archive)).require_known(request.target, &each)?;
    }
    Ok(Some((chosen, history)))
}

/// The way along `history` from the chosen layer.
fn way_from<'a>(
    chosen: &Candidate,
    request: &'a Request<'_>,
    (candidates, archive): (&'a [Candidate], &'a ArchivedWal),
    history: &'a TimelineHistory,
) -> Way<'a> {
    let stays = request.timeline == Some(TimelineChoice::Current);
    let goes_on = !matches!(request.target, Target::Immediate | Target::None);
    let layer_alone = stays || !goes_on;
    Way {
        candidates,
        archive,
        history,
        from: request.label.map_or(Lsn::INVALID, |_| chosen.stop),
        until: match layer_alone {
            true => Some(chosen.stop),
            false => request.until(),
        },
        layer_alone,
        too_late: &request.told.too_late,
    }
}

/// Sentences about branches of the history; an error when it is not known which one is meant.
fn branches(
    candidates: &[Candidate],
    chosen: usize,
    request: &Request<'_>,
    archive: &ArchivedWal,
    history: &TimelineHistory,
) -> Result<Vec<String>> {
    let chosen = &candidates[chosen];
    let stays = request.timeline == Some(TimelineChoice::Current);
    let goes_on = !matches!(request.target, Target::Immediate | Target::None);
    let way = way_from(chosen, request, (candidates, archive), history);
    let told = match request.timeline {
        Some(TimelineChoice::Number(_) | TimelineChoice::Latest) => true,
        Some(TimelineChoice::Current) => request.label.is_some(),
        None => false,
    };
    let mut notes = way.explain(request.target, told)?;
    if stays && goes_on {
        // It goes on behind the layer, where it was told to.
        let behind = Way {
            from: chosen.stop,
            until: request.until(),
            layer_alone: false,
            ..way
        };
        notes.extend(behind.explain(request.target, true)?);
    }
    Ok(notes)
}

/// Whether `candidate` leads to the target, and along which history.
fn judge(
    candidate: &Candidate,
    request: &Request<'_>,
    archive: &ArchivedWal,
) -> std::result::Result<TimelineHistory, Reject> {
    let history = way(candidate, request, archive)?;
    let told = request.told;
    let in_time = match request.target {
        Target::Lsn(lsn) => candidate.stop <= *lsn,
        // A clock decides only where the WAL does not tell.
        Target::Time(time) => {
            candidate.finished_at < *time || told.in_time.contains(&candidate.label)
        }
        _ => told.stop.is_none_or(|stop| candidate.stop <= stop),
    };
    if in_time && !told.too_late.contains(&candidate.label) {
        Ok(history)
    } else {
        Err(Reject::TooLate)
    }
}

/// The history that recovery from `candidate` follows.
fn way(
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
    match history.contains(candidate.timeline, candidate.start..candidate.stop) {
        true => Ok(history),
        false => Err(Reject::OtherTimeline(timeline)),
    }
}

/// The same, for who does not ask why there is none.
pub(super) fn history_of(
    candidate: &Candidate,
    request: &Request<'_>,
    archive: &ArchivedWal,
) -> Option<TimelineHistory> {
    way(candidate, request, archive).ok()
}

fn no_layer(
    request: &Request<'_>,
    rejects: &[(&Candidate, Reject)],
    archive: &ArchivedWal,
) -> Error {
    let too_late = rejects
        .iter()
        .filter(|(_, reject)| *reject == Reject::TooLate);
    let earliest = too_late
        .map(|(candidate, _)| *candidate)
        .min_by_key(|c| rank(c));
    if let Some(candidate) = earliest {
        return unreachable(format!(
            "{} is before the first backup: the earliest point that can be restored is the end of layer {}, {}",
            request.target,
            candidate.label,
            end_of(candidate, request.target)
        ));
    }
    match rejects.first() {
        Some((_, Reject::UnknownTimeline(timeline))) => unknown_timeline(*timeline, archive),
        Some((_, Reject::OtherTimeline(timeline))) => unreachable(format!(
            "no layer was taken on timeline {timeline} or on a timeline it comes from"
        ))
        .hint("Use --target-timeline=current, or name another timeline; info shows the timeline of each layer."),
        _ => Error::new(Kind::NotFound, "there is no complete layer to restore"),
    }
}

fn unknown_timeline(timeline: TimelineId, archive: &ArchivedWal) -> Error {
    if archive.by_timeline().any(|(known, _)| known == timeline) {
        return missing(
            timeline,
            "files of that timeline are there, and nobody knows where it began",
        );
    }
    unreachable(format!(
        "timeline {timeline} is not known: its history file {} is not in the archive",
        timeline.history_file_name()
    ))
}

fn end_of(candidate: &Candidate, target: &Target) -> String {
    match target {
        Target::Time(_) => format!(
            "at {} by the clock of its host; by that of the server, which wrote the WAL, it holds transactions that ended later, \
             or no WAL of before it is there to tell",
            Target::Time(candidate.finished_at)
                .value()
                .unwrap_or_default()
        ),
        _ => format!("at {}", candidate.stop),
    }
}

fn notes(target: &Target, candidate: &Candidate) -> Vec<String> {
    let mut notes = Vec::new();
    if *target == Target::None {
        notes.push(format!(
            "the server goes on with timeline {}, as its source may: both would archive different WAL under the same \
             names, so let it archive only to a new repository",
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
    let last = WalSegment::containing_end(candidate.timeline, candidate.stop, size).number;
    let own = archive.coverage(history, candidate.start, Some(last));
    if own.end < candidate.stop {
        return Err(Error::new(
            Kind::WalMissing,
            format!(
                "WAL segment {} is not in the archive: layer {} cannot become consistent without it",
                own.missing.file_name(size),
                candidate.label
            ),
        )
        .hint(
            "Store the segment with \"pgstrata archive-push FILE\", out of the server's pg_wal or another archive. With --skip-damaged \
             an older layer is restored.",
        ));
    }
    let stop = candidate.stop;
    let behind = |record: Lsn| Lsn::new(record.get().saturating_add(1)).max(stop);
    let needed = match request.target {
        Target::Lsn(lsn) => Some(behind(*lsn)),
        Target::Immediate if candidate.stops_in_next_segment(size) => Some(behind(stop)),
        Target::Immediate | Target::None => Some(stop),
        _ => request.told.stop.map(behind),
    };
    let last = |end| WalSegment::containing_end(candidate.timeline, end, size).number;
    let coverage = archive.coverage(history, candidate.start, needed.map(last));
    if needed.is_some_and(|needed| coverage.end >= needed) {
        return Ok(coverage);
    }
    match obstacle(request, &coverage, archive) {
        Some(error) => Err(error),
        None => {
            if coverage.more_after {
                notes.push(format!(
                    "WAL segment {} is missing from the archive, though later ones are there: recovery cannot get past it",
                    coverage.missing.file_name(size)
                ));
            } else if archive.holds_file(ArchiveFile::Partial(coverage.missing)) {
                notes.push(partial_note(&coverage.missing.file_name(size)));
            }
            Ok(coverage)
        }
    }
}

/// What a server leaves that stops within a segment, as a standby does that is promoted (`xlog.c`, `CleanupAfterArchiveRecovery`).
fn partial_note(name: &str) -> String {
    format!(
        "the archive holds {name}.partial, which recovery does not read: it ends before that segment. To have it replayed, \
         fetch it with \"pgstrata archive-get\" and put it into the restored pg_wal as {name} before the server starts"
    )
}

/// Why recovery, which finds only `coverage`, does not get to the target, as far as the listing says.
fn obstacle(request: &Request<'_>, coverage: &Coverage, archive: &ArchivedWal) -> Option<Error> {
    let target = request.target;
    let missing = coverage.missing.file_name(archive.segment_size());
    let stops = matches!(target, Target::Lsn(_)) || request.told.stop.is_some();
    match target {
        // All but this is there.
        Target::Immediate => Some(
            unreachable(format!(
                "the layer is of a standby, and ends where a segment does: recovery stops there at the first record of the next one, \
                 and {missing} is not in the archive"
            ))
            .hint("Restore to the end of the archive (--target-type=default)."),
        ),
        _ if stops && coverage.more_after => Some(gap(target, coverage, archive)),
        Target::Lsn(_) => Some(beyond(
            target,
            &format!(
                "segment {missing} of timeline {} is not in the archive yet",
                coverage.missing.timeline
            ),
        )),
        Target::Default if coverage.more_after => {
            Some(match archive.was_released(coverage.missing) {
                true => gap(target, coverage, archive),
                false => hole(
                    &missing,
                    "recovery would not get past it, and open the server without what came after",
                ),
            })
        }
        _ => None,
    }
}

/// Why recovery does not get past the end of `coverage`, behind which there is more, as layers, histories or labels of
/// backups tell: `seen`.
pub(super) fn lost_end(
    target: &Target,
    coverage: &Coverage,
    archive: &ArchivedWal,
    seen: &str,
) -> Error {
    match archive.was_released(coverage.missing) {
        true => gap(target, coverage, archive),
        false => Error::new(
            Kind::WalMissing,
            format!(
                "WAL segment {} is missing from the archive, which does not end before it ({seen}): recovery would not \
                 get past it",
                coverage.missing.file_name(archive.segment_size())
            ),
        )
        .hint(AROUND),
    }
}

/// Why recovery does not get past the end of `coverage`, behind which there is more: WAL was lost there, or given up.
pub(super) fn gap(target: &Target, coverage: &Coverage, archive: &ArchivedWal) -> Error {
    let missing = coverage.missing.file_name(archive.segment_size());
    let so = format!("recovery cannot get to {target}");
    match archive.released_before(coverage.missing) {
        Some(from) => Error::new(
            Kind::WalMissing,
            format!(
                "{so}: WAL segment {missing} is not in the archive, because an expiry has given up the WAL between the layers \
                 before {from}"
            ),
        )
        .hint(given_up(from)),
        None => hole(&missing, &so),
    }
}

/// What can be reached although WAL before `from` was given up.
pub(super) fn given_up(from: Lsn) -> String {
    format!(
        "A layer that starts before {from} can be restored to its own end, with --target-type=immediate; moments between \
         such layers were given up. Later moments can be reached from a layer that starts at {from} or later: \
         \"pgstrata info\" shows the layers."
    )
}

fn hole(missing: &str, so: &str) -> Error {
    Error::new(
        Kind::WalMissing,
        format!(
            "WAL segment {missing} is missing from the archive, though later ones are there: {so}"
        ),
    )
    .hint(AROUND)
}

const AROUND: &str = "Restore to an LSN or a time before the gap, restore a layer to its own end (--target-type=immediate), or use one that was taken after the gap.";

/// An LSN that no archived record has reached.
pub(super) fn beyond(target: &Target, why: &str) -> Error {
    unreachable(format!("{target} is beyond what is archived: {why}")).hint(
        "Run \"select pg_switch_wal()\" on the source and wait until it is archived, or restore to the end of the \
         archive (--target-type=default).",
    )
}

/// Recovery stops *at* a time only by meeting a transaction that ended after it. Without one PostgreSQL replays all
/// there is, and then fails with `recovery ended before configured recovery target was reached`. `last` says what is
/// known of the last transaction in `coverage`.
pub(super) fn after_last_commit(
    target: &Target,
    coverage: &Coverage,
    archive: &ArchivedWal,
    last: &str,
) -> Error {
    if coverage.more_after {
        return gap(target, coverage, archive);
    }
    unreachable(format!(
        "{target} is after the last transaction in the archive: {last}; a server only knows that it has reached a time \
         when it meets a transaction that ended later"
    ))
    .hint("Wait until WAL written after that time is archived (\"select pg_switch_wal()\" on the source), or restore to the end of the archive (--target-type=default).")
}

/// Recovery meets a record of a server with `wal_level = minimal`. PostgreSQL would say so hours later, and end: `cannot
/// continue recovering`.
pub(super) fn beyond_minimal(target: &Target, label: &Label, at: Lsn) -> Error {
    unreachable(format!(
        "{target} cannot be reached from layer {label}: at {at} the server went on with wal_level = minimal, and recovery \
         does not get past that"
    ))
    .hint(format!(
        "Restore to an LSN or a time before {at}, or use a layer that was taken after the server had wal_level = replica again."
    ))
}

pub(super) fn unreachable(message: String) -> Error {
    Error::new(Kind::Target, message)
}

#[cfg(test)]
mod tests;
