//! Which layers hold nothing that was committed after a moment: WAL decides, which has one clock alone, that of the server.
//!
//! When a backup ended is a time of its host, whose clock may be ahead, or behind, or that of a standby; the moment that is
//! asked for is one of the server. So what a manifest says only tells where to look first. The last transaction that ended
//! before the stop of a layer was also the latest: when it ended after the moment, the layer is too late; else the layer leads
//! there. A transaction of an hour before the backup counts as well as one that ended during it: recovery would not stop
//! between them, and hand out what was committed meanwhile.
//!
//! Along a history later layers hold later transactions. So two layers are looked at as a rule: the one that their hosts'
//! clocks suggest, and the next one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::{TimelineHistory, TimelineId};
use pgstrata_pgdata::wal::WalSegment;
use pgstrata_store::error::Result;

use super::locate::Locator;
use super::scan::WalScan;
use super::select::{Candidate, Request, Selection, Told, history_of};

/// Transactions that end together are written in any order, and a checkpoint has whole seconds, of when it began.
const TOGETHER: SignedDuration = SignedDuration::from_secs(10);

/// What the WAL says of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    InTime,
    /// Or not known to be in time, because the WAL that would tell was given up.
    TooLate,
    /// Its own WAL is missing or damaged, and no recovery can start from it; or nothing ended in it, its checkpoint began just
    /// before the moment, and no WAL of before it is there.
    Unknown,
}

/// A layer, and the history that recovery from it would follow.
struct OnWay<'a> {
    layer: &'a Candidate,
    history: TimelineHistory,
}

impl Locator<'_> {
    /// What the archived WAL says of the layers that may lead to `time`.
    pub(super) async fn told_of_layers(
        &self,
        request: &Request<'_>,
        time: Timestamp,
    ) -> Result<Told> {
        let lost = request.lost.iter().filter_map(|lost| lost.known.as_ref());
        let mut ways: BTreeMap<TimelineId, Vec<OnWay<'_>>> = BTreeMap::new();
        for layer in self.candidates.iter().chain(lost) {
            if let Some(history) = history_of(layer, request, self.listed) {
                let way = ways.entry(history.timeline()).or_default();
                way.push(OnWay { layer, history });
            }
        }
        let mut told = Told::default();
        for way in ways.values_mut() {
            way.sort_by_key(|on_way| on_way.layer.stop);
            self.told_of_way(request, time, way, &mut told).await?;
        }
        Ok(told)
    }

    /// Whether recovery from the chosen layer stops at a transaction that ended after `time` before it gets to `at`. Where that is
    /// not known it may.
    pub(super) async fn stops_before(
        &self,
        request: &Request<'_>,
        (time, at): (Timestamp, Lsn),
        selection: &Selection,
    ) -> Result<bool> {
        // A layer that ended there would hold such a transaction.
        let layer = Candidate {
            stop: at,
            ..self.candidates[selection.candidate].clone()
        };
        let on_way = OnWay {
            layer: &layer,
            history: selection.history.clone(),
        };
        let placement = self.placement(request, time, &on_way).await?;
        Ok(placement != Placement::InTime)
    }

    /// The same for layers of one history, the first to stop first.
    async fn told_of_way(
        &self,
        request: &Request<'_>,
        time: Timestamp,
        way: &[OnWay<'_>],
        told: &mut Told,
    ) -> Result<()> {
        let suggested = way.iter().rposition(|on| on.layer.finished_at < time);
        let mut at = suggested.unwrap_or(0);
        // Layers before `in_time` are in time, and those from `too_late` on are not.
        let (mut in_time, mut too_late) = (0, way.len());
        while in_time <= at && at < too_late {
            match self.placement(request, time, &way[at]).await? {
                Placement::InTime => {
                    in_time = at + 1;
                    at += 1;
                }
                Placement::TooLate => {
                    too_late = at;
                    at = at.saturating_sub(1);
                }
                // What the clocks say stands.
                Placement::Unknown => break,
            }
        }
        let labels =
            |way: &[OnWay<'_>]| -> Vec<_> { way.iter().map(|on| on.layer.label.clone()).collect() };
        told.in_time.extend(labels(&way[..in_time]));
        told.too_late.extend(labels(&way[too_late..]));
        Ok(())
    }

    async fn placement(
        &self,
        request: &Request<'_>,
        time: Timestamp,
        on_way: &OnWay<'_>,
    ) -> Result<Placement> {
        let OnWay { layer, history } = on_way;
        let first = layer.start.segment(self.size());
        let last = WalSegment::containing_end(layer.timeline, layer.stop, self.size()).number;
        let own = self.listed.coverage(history, layer.start, Some(last));
        if own.end < layer.stop {
            return Ok(Placement::Unknown);
        }
        let mut scan = self.scan(request, self.after(time));
        let mut number = last;
        loop {
            let begin = Lsn::new(number.saturating_mul(self.size().get()));
            let coverage = self.listed.coverage(history, begin, Some(last));
            let is_own = number >= first;
            if coverage.end < layer.stop {
                // WAL before the layer was given up, or never archived.
                let began = scan.seen.checkpointed;
                return Ok(match began.is_some_and(|began| began <= time) {
                    true => Placement::Unknown,
                    false => Placement::TooLate,
                });
            }
            let end = Lsn::new((number + 1).saturating_mul(self.size().get()));
            let range = begin..layer.stop.min(end);
            if scan.forward(&coverage.parts, range).await?.is_some() {
                return Ok(match is_own {
                    true => Placement::Unknown,
                    false => Placement::TooLate,
                });
            }
            if scan.seen.is_hit() {
                return Ok(Placement::TooLate);
            }
            match last_time(&scan, time, number <= first) {
                LastTime::Before => return Ok(Placement::InTime),
                // An earlier one of the layer's own WAL may have ended a moment later, and recovery would stop there.
                LastTime::Near if number <= first => return Ok(Placement::InTime),
                LastTime::Near | LastTime::None => {}
            }
            let Some(before) = number.checked_sub(1) else {
                return Ok(Placement::TooLate);
            };
            number = before;
        }
    }
}

/// What the last record says that has a time.
enum LastTime {
    /// It is of well before the moment.
    Before,
    /// It is of before the moment, and not by much.
    Near,
    /// Nothing yet.
    None,
}

/// The record of a checkpoint has the time at which that began, and comes when it ends: it tells only who has read, as
/// `is_whole` says, all that lies between.
fn last_time(scan: &WalScan<'_>, time: Timestamp, is_whole: bool) -> LastTime {
    let is_before = |at: Option<Timestamp>| {
        let late = at.and_then(|at| at.checked_add(TOGETHER).ok());
        late.is_some_and(|late| late <= time)
    };
    let ended = scan.seen.last.as_ref().map(|event| event.time);
    match ended {
        _ if is_whole && is_before(scan.seen.checkpointed) => LastTime::Before,
        Some(at) if is_before(at) => LastTime::Before,
        Some(Some(_)) => LastTime::Near,
        _ => LastTime::None,
    }
}
