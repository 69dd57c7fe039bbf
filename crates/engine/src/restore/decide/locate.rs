//! Where the target lies in the archived WAL, and so which layer leads to it.
//!
//! PostgreSQL looks for its target while it recovers, and when there is none it fails at the end of the archive, hours
//! later. So times, transactions, restore points and LSNs are looked for before anything is written. A search reads no
//! more than recovery would, and mostly much less:
//!
//! * an LSN is there when a record begins at it or later: read from its own segment on;
//! * a time is met when a transaction ended later: read from the end of the archive back; which layers are of before it, their
//!   own WAL says ([`super::moments`]);
//! * a transaction or a restore point can lie anywhere: read from the newest layer on, then from the one before it up to
//!   there, and so on. So the newest layer from which recovery gets there is found, and no segment is read twice.
//!
//! Where a search comes upon a server that went on with `wal_level = minimal` before the target, the target is refused:
//! recovery does not get past that. No search is made for it; `verify` reads all WAL.
//!
//! Where WAL cannot be read, what manifests and listings say decides, and a note says so.

use std::ops::Range;

use jiff::Timestamp;
use pgstrata_pgdata::Major;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};
use pgstrata_pgdata::wal_records::TransactionId;
use pgstrata_store::archive::{Archive, ArchivedWal, Coverage};
use pgstrata_store::error::Result;

use super::scan::{Unread, WalScan};
use super::select::{
    Candidate, Request, Selection, Told, after_last_commit, beyond, beyond_minimal, gap, given_up,
    lost_end, select, unreachable,
};
use super::sightings::{Event, Wanted, What};
use crate::restore::target::Target;

/// Who shows more names shows none.
const SHOWN: usize = 5;

pub(super) const EVERYWHERE: Range<Lsn> = Lsn::INVALID..Lsn::new(u64::MAX);

/// Chooses the layer and looks for the target.
pub(crate) struct Locator<'a> {
    pub(crate) candidates: &'a [Candidate],
    pub(crate) archive: &'a Archive,
    pub(crate) listed: &'a ArchivedWal,
    pub(crate) major: Major,
    /// Whether recovery stops after the target rather than before it.
    pub(crate) inclusive: bool,
}

impl Locator<'_> {
    /// The newest layer from which recovery gets to the target.
    ///
    /// # Errors
    /// `Target` or `WalMissing` when it is not there; `Repository` when the archive cannot be asked.
    pub(crate) async fn select(&self, request: &Request<'_>) -> Result<Selection> {
        match request.target {
            Target::Lsn(lsn) => self.position(request, *lsn).await,
            Target::Time(time) => self.moment(request, *time).await,
            Target::Name(name) => {
                let wanted = Wanted::Point(name.clone().into_bytes());
                self.place(request, wanted).await
            }
            Target::Xid(xid) => {
                // What of the epoch the server reads, it ignores as well.
                let low = u32::try_from(xid & u64::from(u32::MAX)).expect("32 bits are left");
                let wanted = Wanted::Transaction(TransactionId(low));
                self.place(request, wanted).await
            }
            Target::Default | Target::Standby => {
                let selection = select(self.candidates, request, self.listed)?;
                let selection = self.fork(selection, request).await?;
                self.require_end(selection, request).await
            }
            Target::Immediate | Target::None => select(self.candidates, request, self.listed),
        }
    }

    /// Refuses a recovery to the end of the archive which `archive-get` would not let end there.
    ///
    /// The listing shows later segments. What else tells that there were more is asked as `archive-get` asks it.
    async fn require_end(
        &self,
        mut selection: Selection,
        request: &Request<'_>,
    ) -> Result<Selection> {
        let coverage = &selection.coverage;
        if selection.stop_before.is_some() || coverage.more_after {
            return Ok(selection);
        }
        // Which way recovery goes is known by now.
        let along = Some(selection.history.timeline());
        let archive = self.archive.clone().along(along);
        let Some(seen) = archive.goes_on_without(coverage.missing).await? else {
            return Ok(selection);
        };
        let error = lost_end(request.target, coverage, self.listed, &seen);
        match request.target {
            // A standby may get it from its primary.
            Target::Standby => selection.notes.push(error.to_string()),
            _ => return Err(error),
        }
        Ok(selection)
    }

    pub(super) fn scan(&self, request: &Request<'_>, wanted: Wanted) -> WalScan<'_> {
        let name = request.target.to_string();
        WalScan::new(self.archive, self.major, self.size(), wanted, name)
    }

    pub(super) fn size(&self) -> WalSegmentSize {
        self.listed.segment_size()
    }

    /// An LSN is reached by a record that begins there or later; the segment that would hold it may end before.
    async fn position(&self, request: &Request<'_>, lsn: Lsn) -> Result<Selection> {
        let mut selection = select(self.candidates, request, self.listed)?;
        let start = self.candidates[selection.candidate].start;
        let coverage = self.listed.coverage(&selection.history, start, None);
        let mut scan = self.scan(request, Wanted::Record(lsn));
        // The segment that holds it is read from its start in any case.
        let begin = Lsn::new(lsn.get() - lsn.get() % self.size().get()).max(start);
        let unread = scan.forward(&coverage.parts, begin..coverage.end).await?;
        if let Some(stop) = scan.seen.hits(EVERYWHERE).next() {
            let minimal = self.minimal_before(&scan, start, stop);
            self.require_none_minimal(request, &selection, minimal)?;
            // The record may be the first one of a branch.
            let until = if self.inclusive { stop.end } else { stop.start };
            let told = Told {
                until: Some(until),
                ..request.told.clone()
            };
            let request = Request {
                told: &told,
                ..*request
            };
            let selection = select(self.candidates, &request, self.listed)?;
            return Ok(self.ending_at(stop, selection));
        }
        let Some(unread) = unread else {
            let missing = coverage.missing.file_name(self.size());
            let why = format!(
                "no record begins there, or later and before {}, from where segment {missing} is not in the archive",
                coverage.end
            );
            return Err(beyond(request.target, &why));
        };
        self.require_on_way(request, &coverage, &unread)?;
        selection.notes.push(unsure(request.target, &unread));
        Ok(selection)
    }

    async fn moment(&self, request: &Request<'_>, time: Timestamp) -> Result<Selection> {
        let told = self.told_of_layers(request, time).await?;
        let request = Request {
            told: &told,
            ..*request
        };
        let mut selection = select(self.candidates, &request, self.listed)?;
        let stop = self.candidates[selection.candidate].stop;
        let mut scan = self.scan(&request, self.after(time));
        let coverage = &selection.coverage;
        let range = stop..coverage.end;
        let unread = scan.backward(&coverage.parts, range).await?;
        // The last one that was seen: recovery stops there or before.
        if let Some(hit) = scan.seen.hits(EVERYWHERE).next() {
            let mut minimal = self.minimal_before(&scan, stop, hit);
            if let Some(at) = minimal
                && self.stops_before(&request, (time, at), &selection).await?
            {
                minimal = None;
            }
            self.require_none_minimal(&request, &selection, minimal)?;
            let early = self.met_in_a_fork(&request, time, &selection).await?;
            return Ok(self.ending_at(early.as_ref().unwrap_or(hit), selection));
        }
        let Some(unread) = unread else {
            let last = scan.seen.last.as_ref();
            let last = last.map_or(
                format!(
                    "none ended after {stop}, the end of layer {}",
                    self.candidates[selection.candidate].label
                ),
                |event| format!("{} {}", subject(event), described(event)),
            );
            let last = format!("{last} ({})", scan.cost());
            return Err(after_last_commit(
                request.target,
                coverage,
                self.listed,
                &last,
            ));
        };
        self.require_on_way(&request, coverage, &unread)?;
        self.by_upload(request.target, time, coverage, &unread)?;
        selection.notes.push(unsure(request.target, &unread));
        Ok(selection)
    }

    /// Where `time` is met in a segment in which the way takes another timeline, before it does: there recovery stops, or
    /// before. Elsewhere the server finds what it needs on any timeline that passes.
    async fn met_in_a_fork(
        &self,
        request: &Request<'_>,
        time: Timestamp,
        selection: &Selection,
    ) -> Result<Option<Event>> {
        let stop = self.candidates[selection.candidate].stop;
        let forks = selection
            .history
            .entries()
            .iter()
            .filter_map(|entry| entry.end);
        for fork in forks.filter(|fork| *fork > stop) {
            let begin = Lsn::new(fork.get() - fork.get() % self.size().get()).max(stop);
            let mut scan = self.scan(request, self.after(time));
            scan.forward(&selection.coverage.parts, begin..fork).await?;
            if let Some(met) = scan.seen.hits(EVERYWHERE).next() {
                return Ok(Some(met.clone()));
            }
        }
        Ok(None)
    }

    /// Where recovery from `start` on ends before it stops at `stop`, as far as WAL was read.
    fn minimal_before(&self, scan: &WalScan<'_>, start: Lsn, stop: &Event) -> Option<Lsn> {
        scan.seen.minimal_before(start, stop.start, self.inclusive)
    }

    /// Requires that recovery from the chosen layer does not end at a record of a server with `wal_level = minimal`.
    fn require_none_minimal(
        &self,
        request: &Request<'_>,
        selection: &Selection,
        minimal: Option<Lsn>,
    ) -> Result<()> {
        let label = &self.candidates[selection.candidate].label;
        match minimal {
            Some(at) => Err(beyond_minimal(request.target, label, at)),
            None => Ok(()),
        }
    }

    pub(super) fn after(&self, time: Timestamp) -> Wanted {
        Wanted::After {
            time,
            or_at: !self.inclusive,
        }
    }

    /// What is known when the WAL cannot be read: transactions ended before their segment was stored, by the clock of
    /// the store. That may be wrong, so the refusal says what it rests on.
    fn by_upload(
        &self,
        target: &Target,
        time: Timestamp,
        coverage: &Coverage,
        unread: &Unread,
    ) -> Result<()> {
        if coverage
            .stored_at
            .is_some_and(|stored_at| stored_at >= time)
        {
            return Ok(());
        }
        let last = coverage.parts.last().map(|&(timeline, _, number)| {
            let segment = WalSegment { timeline, number };
            segment.file_name(self.size())
        });
        let last = last.unwrap_or_default();
        let last = match coverage.stored_at {
            Some(at) => format!("its last segment, {last}, was stored at {}", written(at)),
            None => format!("it is not known when its last segment, {last}, was stored"),
        };
        if coverage.more_after {
            return Err(gap(target, coverage, self.listed));
        }
        Err(unreachable(format!(
            "{target} is after all that is known of the archive: archived WAL could not be read ({}), and {last}, by the clock of the store",
            unread.why
        ))
        .hint("Mend the WAL that cannot be read (\"pgstrata verify\" names it), wait until later WAL is archived, or restore to the end of the archive (--target-type=default)."))
    }

    /// A transaction or a restore point.
    async fn place(&self, request: &Request<'_>, wanted: Wanted) -> Result<Selection> {
        let first = select(self.candidates, request, self.listed)?;
        let coverage =
            self.listed
                .coverage(&first.history, self.candidates[first.candidate].start, None);
        let mut upto = Lsn::new(u64::MAX);
        let mut wall: Option<Unread> = None;
        let mut told = Told::default();
        let mut scan = self.scan(request, wanted);
        let mut found = None;
        let mut minimal = None;
        for layer in self.on_the_way(&first, request) {
            let coverage = self.listed.coverage(&first.history, layer.start, None);
            let end = coverage.end;
            let range = layer.start..end.min(upto);
            if let Some(unread) = scan.forward(&coverage.parts, range).await? {
                wall = Some(unread);
            }
            let end = wall.as_ref().map_or(end, |wall| wall.at.min(end));
            let hit = scan.seen.hits(layer.start..end).next();
            let ends = hit.and_then(|hit| self.minimal_before(&scan, layer.start, hit));
            match hit {
                // An older layer may lead to another one, which lies before.
                Some(_) if ends.is_some() => {
                    minimal = minimal.or(ends.map(|at| (layer, at)));
                }
                Some(hit) if hit.start >= layer.stop => {
                    found = Some((hit.clone(), layer));
                    break;
                }
                Some(_) => told.too_late.push(layer.label.clone()),
                None => {}
            }
            upto = layer.start;
        }
        let Some((hit, layer)) = found else {
            if let Some((layer, at)) = minimal {
                return Err(beyond_minimal(request.target, &layer.label, at));
            }
            return self.not_found(
                request,
                first,
                &scan,
                Missed {
                    told,
                    wall,
                    coverage,
                },
            );
        };
        told.stop = Some(hit.start);
        let request = Request {
            told: &told,
            ..*request
        };
        let mut selection = select(self.candidates, &request, self.listed)?;
        let newest = match request.label {
            Some(_) => String::new(),
            None => format!("; {} is the newest layer before it", layer.label),
        };
        selection.notes.push(format!(
            "{} {}{newest} ({})",
            request.target,
            described(&hit),
            scan.cost()
        ));
        let others = scan.seen.hits(layer.start..Lsn::new(u64::MAX)).skip(1);
        let others: Vec<String> = others.map(described).collect();
        selection.notes.extend(several(request.target, &others));
        Ok(self.ending_at(&hit, selection))
    }

    /// Lets recovery follow the timeline on which it stops, and no later one, where the archive has the end of it. When a
    /// server stops before the next timeline begins, in the very segment, it reads its prepared transactions out of the
    /// segment of the old one (`XLogReadTwoPhaseData`, `src/backend/access/transam/twophase.c`), which it never fetched.
    ///
    /// Also when a later one was named: up to there they are one history.
    fn ending_at(&self, stop: &Event, mut selection: Selection) -> Selection {
        selection.stops_at = Some(stop.start);
        let history = &selection.history;
        let own = history.timeline_at(stop.start);
        let Some(own) = own.filter(|own| *own != history.timeline()) else {
            return selection;
        };
        let mut segments = WalSegment::covering(own, stop.start..stop.end, self.size());
        if !history.is_ancestor(own, stop.end)
            || !segments.all(|segment| self.listed.holds(segment))
        {
            return selection;
        }
        selection.notes.push(format!(
            "recovery stops on timeline {own} and follows no later one"
        ));
        selection.history = self.listed.history(own);
        let start = self.candidates[selection.candidate].start;
        selection.coverage = self.listed.coverage(&selection.history, start, None);
        selection
    }

    /// The layers on the history that recovery would follow, the last to start first.
    fn on_the_way(&self, first: &Selection, request: &Request<'_>) -> Vec<&Candidate> {
        let candidates = self.candidates.iter();
        let mut layers: Vec<&Candidate> = candidates
            .filter(|layer| request.label.is_none_or(|label| *label == layer.label))
            .filter(|layer| {
                let range = layer.start..layer.stop;
                first.history.contains(layer.timeline, range)
            })
            .collect();
        layers.sort_by_key(|layer| std::cmp::Reverse(layer.start));
        layers
    }

    /// No layer leads to the target, as far as WAL could be read.
    fn not_found(
        &self,
        request: &Request<'_>,
        mut first: Selection,
        scan: &WalScan<'_>,
        missed: Missed,
    ) -> Result<Selection> {
        let target = request.target;
        if let Some(unread) = &missed.wall {
            self.require_on_way(request, &missed.coverage, unread)?;
            let label = &self.candidates[first.candidate].label;
            first.notes.push(format!(
                "{}; the newest layer was chosen: if recovery ends without reaching it, name a layer that is older than \
                 {label}",
                unsure(target, unread)
            ));
            return Ok(first);
        }
        if let Some(hit) = scan.seen.hits(EVERYWHERE).next() {
            let mut told = missed.told;
            told.stop = Some(hit.start);
            let request = Request {
                told: &told,
                ..*request
            };
            return select(self.candidates, &request, self.listed);
        }
        let searched = self.on_the_way(&first, request);
        let from = searched.last().map_or(Lsn::INVALID, |layer| layer.start);
        let hole = self.holes(&first, from);
        Err(unreachable(format!(
            "{target} is not in the archived WAL of timeline {}, which was read from {from} to {}{hole} ({})",
            first.history.timeline(),
            missed.coverage.end,
            scan.cost()
        ))
        .hint(self.nearest(target, scan)))
    }

    /// What of the WAL from there on could not be searched, because it is missing.
    fn holes(&self, selection: &Selection, from: Lsn) -> String {
        let stretches = self.listed.stretches(&selection.history, from).into_iter();
        let holes = stretches.filter_map(|(coverage, next)| {
            let (missing, next) = (coverage.missing, next?);
            let name = |number| WalSegment { number, ..missing }.file_name(self.size());
            let first = name(missing.number);
            Some(match next.number - missing.number {
                1 => format!("segment {first}"),
                count => format!("{count} segments, {first} to {}", name(next.number - 1)),
            })
        });
        let mut holes: Vec<String> = holes.collect();
        let more = holes.len().saturating_sub(SHOWN);
        holes.truncate(SHOWN);
        match (holes.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!(", but for what is missing: {}", holes.join("; ")),
            (false, more) => format!(
                ", but for what is missing: {}; and more, in {more} other places",
                holes.join("; ")
            ),
        }
    }

    /// What could have been meant.
    fn nearest(&self, target: &Target, scan: &WalScan<'_>) -> String {
        let seen = &scan.seen;
        let mut near = Vec::new();
        if let Some(whole) = &seen.whole {
            near.push(format!(
                "It is a part of {}, which {}: name that one.",
                subject(whole),
                described(whole)
            ));
        }
        if let Some(prepared) = seen.prepared {
            near.push(format!("It was prepared at {prepared}, and has not ended."));
        }
        if matches!(target, Target::Name(_)) {
            let points = seen.points.iter().rev().take(SHOWN);
            let points: Vec<String> = points
                .map(|event| format!("{}, which {}", subject(event), described(event)))
                .collect();
            near.push(match points.is_empty() {
                true => "There are no restore points in it.".to_owned(),
                false => format!("The last restore points in it: {}.", points.join("; ")),
            });
        } else {
            let others = seen.below.iter().chain(&seen.above);
            let others: Vec<String> = others
                .map(|event| format!("{}, which {}", subject(event), described(event)))
                .collect();
            if !others.is_empty() {
                near.push(format!("The nearest in it: {}.", others.join("; ")));
            }
        }
        near.extend(self.listed.promised_from().map(given_up));
        near.push(match &seen.last {
            Some(last) => format!(
                "The last to end: {}, which {}.",
                subject(last),
                described(last)
            ),
            None => "No transaction ended in it.".to_owned(),
        });
        near.join(" ")
    }
}

/// A search without success.
struct Missed {
    told: Told,
    /// Where WAL could not be read.
    wall: Option<Unread>,
    /// Of the layer that would be taken.
    coverage: Coverage,
}

/// What is said when the archived WAL does not tell.
fn unsure(target: &Target, unread: &Unread) -> String {
    format!(
        "whether recovery reaches {target} is not known, because archived WAL could not be read: {}",
        unread.why
    )
}

/// What is said when there are `others` behind the one at which recovery stops.
fn several(target: &Target, others: &[String]) -> Option<String> {
    (!others.is_empty()).then(|| {
        format!(
            "there is more than one {target}: recovery stops at the first behind the layer; another {}: --target-type lsn \
             gets there",
            others.join(", another ")
        )
    })
}

/// "transaction 812", "restore point "x"".
fn subject(event: &Event) -> String {
    match &event.what {
        What::Point(name) => format!("restore point \"{}\"", String::from_utf8_lossy(name)),
        What::Committed(TransactionId(xid)) | What::RolledBack(TransactionId(xid)) => {
            format!("transaction {xid}")
        }
        What::Other => "a record".to_owned(),
    }
}

/// "committed at 2026-11-21 09:33:05.25+00, LSN 0/3000028".
fn described(event: &Event) -> String {
    let act = match event.what {
        What::Point(_) => "was made",
        What::Committed(_) => "committed",
        What::RolledBack(_) => "was rolled back",
        What::Other => "begins",
    };
    let time = event.time.map(|time| format!(" at {}", written(time)));
    format!("{act}{}, LSN {}", time.unwrap_or_default(), event.end)
}

fn written(time: Timestamp) -> String {
    Target::Time(time).value().unwrap_or_default()
}
