//! Histories that branch: what the archive and the layers hold beside the timelines that a recovery passes.
//!
//! Two servers of one cluster can archive into one repository: a primary and a standby that was promoted while it lived
//! on, or a restored copy that was opened for a test. PostgreSQL's "latest" then means the higher number, not the
//! server that counts. Here a branch is passed over without a question only when it is known to have ended
//! (docs/adr/0021); otherwise whoever restores must say which one is meant.

use std::collections::BTreeSet;
use std::path::Path;

use jiff::Timestamp;
use pgstrata_layer::label::Label;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::{TimelineHistory, TimelineId};
use pgstrata_pgdata::wal::WalSegment;
use pgstrata_store::archive::{ArchivedWal, Tail};
use pgstrata_store::error::{Error, Kind, Result};

use super::select::Candidate;
use crate::restore::RestoreOptions;
use crate::restore::place::layout::control_there;
use crate::restore::target::Target;

/// Branches of which a recovery tells more than the number.
const SHOWN: usize = 5;

/// The way that a recovery is about to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way<'a> {
    pub(crate) candidates: &'a [Candidate],
    pub(crate) archive: &'a ArchivedWal,
    pub(crate) history: &'a TimelineHistory,
    /// Forks before this position were settled by whoever named a layer.
    pub(crate) from: Lsn,
    /// Forks from this position on lie behind what is restored.
    pub(crate) until: Option<Lsn>,
    /// Whether only the layer and its own timeline are restored: a branch that no layer was taken of is no other choice,
    /// unless it is that of the server from which the layer's has parted.
    pub(crate) layer_alone: bool,
    /// Layers that end behind the target, as WAL says.
    pub(crate) too_late: &'a [Label],
}

/// What a timeline holds that the way does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    timeline: TimelineId,
    /// Where the way and this timeline part; `None` when they have nothing in common that is known.
    fork: Option<Lsn>,
    wal: Option<Tail>,
    layers: Vec<Label>,
    /// Whether it is known that nothing came after the way took its own direction.
    ended: bool,
}

impl Way<'_> {
    /// All that lies beside the way.
    pub(crate) fn branches(&self) -> Vec<Branch> {
        let of_layers = self.candidates.iter().map(|candidate| candidate.timeline);
        let timelines: BTreeSet<TimelineId> = self.archive.timelines().chain(of_layers).collect();
        let found = timelines
            .into_iter()
            .filter_map(|timeline| self.branch(timeline));
        found.filter(|branch| self.matters(branch)).collect()
    }

    /// Whether the fork lies in what is restored and was not settled.
    fn matters(&self, branch: &Branch) -> bool {
        let fork = branch.fork.unwrap_or(Lsn::INVALID);
        let settled = fork < self.from;
        let behind = branch.fork.zip(self.until);
        let choice = !branch.layers.is_empty() || self.history.entry(branch.timeline).is_some();
        let counts = choice || !self.layer_alone;
        counts && !settled && behind.is_none_or(|(fork, until)| fork < until)
    }

    /// What `timeline` holds beside the way, if it holds anything.
    fn branch(&self, timeline: TimelineId) -> Option<Branch> {
        let (fork, begin) = match self.history.entry(timeline) {
            Some(entry) => (entry.end, entry.end?),
            None => {
                let own = self.archive.history(timeline);
                let begin = own.entry(timeline).map_or(Lsn::INVALID, |own| own.begin);
                (parting(self.history, &own), begin)
            }
        };
        let number = begin.segment(self.archive.segment_size());
        let beyond =
            |candidate: &&Candidate| candidate.timeline == timeline && candidate.stop > begin;
        let layers: Vec<&Candidate> = self.candidates.iter().filter(beyond).collect();
        let wal = self.archive.tail(timeline, number);
        if wal.is_none() && layers.is_empty() {
            return None;
        }
        Some(Branch {
            timeline,
            fork,
            ended: self.has_ended(fork, wal, &layers),
            layers: layers
                .into_iter()
                .map(|layer| layer.label.clone())
                .collect(),
            wal,
        })
    }

    /// A branch has ended when its last segment was stored before the first one of a layer that was taken on the way
    /// behind the fork: who backs up the new timeline goes on with it, and the old one is silent since. What is left
    /// in the very segment of the fork, stored before the promotion, is what a failover loses and no branch, as soon as the
    /// new timeline has more than a history: anybody who may create objects can put one there.
    fn has_ended(&self, fork: Option<Lsn>, wal: Option<Tail>, layers: &[&Candidate]) -> bool {
        let size = self.archive.segment_size();
        let Some(last_at) = self.last_sign(wal, layers) else {
            return false;
        };
        if let (Some(fork), Some(wal)) = (fork, wal)
            && layers.is_empty()
            && wal.last == fork.segment(size)
            && self.goes_on_behind(fork)
            && self
                .promoted_at(fork)
                .is_some_and(|promoted| last_at < promoted)
        {
            return true;
        }
        let fork = fork.unwrap_or(Lsn::INVALID);
        self.candidates.iter().any(|layer| {
            let on_way = layer.start >= fork
                && self
                    .history
                    .contains(layer.timeline, layer.start..layer.stop);
            let start = WalSegment {
                timeline: layer.timeline,
                number: layer.start.segment(size),
            };
            let began = self.archive.watched_at(start);
            on_way && began.is_some_and(|began| last_at < began)
        })
    }

    /// Whether the way has more behind `fork` than histories.
    fn goes_on_behind(&self, fork: Lsn) -> bool {
        let entries = self.history.entries().iter();
        let mut behind = entries.filter(|entry| entry.begin >= fork);
        behind.any(|entry| {
            let (timeline, begin) = (entry.timeline, entry.begin);
            let number = begin.segment(self.archive.segment_size());
            let mut layers = self.candidates.iter();
            self.archive.tail(timeline, number).is_some()
                || layers.any(|layer| layer.timeline == timeline && layer.stop > begin)
        })
    }

    /// When the branch was last seen alive, by the clock of the store; `None` when that cannot be known.
    fn last_sign(&self, wal: Option<Tail>, layers: &[&Candidate]) -> Option<Timestamp> {
        let size = self.archive.segment_size();
        let wal = wal?;
        let archived = |layer: &&Candidate| {
            let stop = WalSegment::containing_end(layer.timeline, layer.stop, size);
            self.archive.holds(stop)
        };
        layers.iter().all(archived).then_some(wal.newest_at)
    }

    /// When the timeline was begun that the way takes at `fork`.
    fn promoted_at(&self, fork: Lsn) -> Option<Timestamp> {
        let mut entries = self.history.entries().iter();
        let taken = entries.rfind(|entry| entry.begin == fork)?;
        self.archive.history_stored_at(taken.timeline)
    }

    /// Whether a layer on the way says that the target is before `fork`: then the branches agree about everything up to it.
    fn is_before(&self, fork: Option<Lsn>) -> bool {
        self.candidates.iter().any(|layer| {
            self.too_late.contains(&layer.label)
                && fork.is_some_and(|fork| layer.stop <= fork)
                && self
                    .history
                    .contains(layer.timeline, layer.start..layer.stop)
        })
    }

    /// The branches that part from the way before the target, as far as that is known.
    fn in_question(&self, target: &Target) -> Vec<Branch> {
        let mut branches = self.branches();
        if matches!(target, Target::Time(_)) {
            branches.retain(|branch| !self.is_before(branch.fork));
        }
        branches
    }

    /// An error when nobody can know what is meant, going by what several repositories have together. `each` is the same way in
    /// each of them: whether a branch has ended is told by the times of one store, and every one that has any of it must say so.
    pub(crate) fn require_known(&self, target: &Target, each: &[Way<'_>]) -> Result<()> {
        let mut branches = self.in_question(target);
        for branch in &mut branches {
            let seen = each.iter().filter_map(|way| way.branch(branch.timeline));
            let ended: Vec<bool> = seen.map(|seen| seen.ended).collect();
            branch.ended = !ended.is_empty() && ended.iter().all(|ended| *ended);
        }
        match branches.iter().all(|branch| branch.ended) {
            true => Ok(()),
            false => Err(self.ambiguous(&branches, target)),
        }
    }

    /// Sentences about what is not restored; an error when nobody can know what is meant.
    pub(crate) fn explain(&self, target: &Target, told: bool) -> Result<Vec<String>> {
        let mut branches = self.in_question(target);
        if !told && branches.iter().any(|branch| !branch.ended) {
            return Err(self.ambiguous(&branches, target));
        }
        branches.sort_by_key(|branch| std::cmp::Reverse(branch.wal.map(|wal| wal.newest_at)));
        let notes = branches.iter().take(SHOWN).map(|branch| {
            let why = match (told, branch.ended) {
                (true, _) => "as told",
                (false, _) => "which was backed up or promoted after the other had ended",
            };
            format!(
                "recovery follows timeline {}, {why}: {}; that is not restored; --target-timeline {} restores it",
                self.history.timeline(),
                self.describe(branch),
                branch.timeline
            )
        });
        let mut notes: Vec<String> = notes.collect();
        if let Some(others) = branches.get(SHOWN..).filter(|others| !others.is_empty()) {
            let timelines = others.iter().map(|branch| branch.timeline);
            let timelines: BTreeSet<TimelineId> = timelines.collect();
            let timelines: Vec<String> = timelines.iter().map(ToString::to_string).collect();
            notes.push(format!(
                "{} other timelines, older ones, are not restored either: {}",
                others.len(),
                timelines.join(", ")
            ));
        }
        Ok(notes)
    }

    fn ambiguous(&self, branches: &[Branch], target: &Target) -> Error {
        let line = self.history.timeline();
        // A standby that is told a number follows no promotion.
        let name = match target {
            Target::Standby => "latest".to_owned(),
            _ => line.to_string(),
        };
        let alive = branches.iter().filter(|branch| !branch.ended);
        let described: Vec<String> = alive.map(|branch| self.describe(branch)).collect();
        let mut choices = vec![format!(
            "--target-timeline {name}{}",
            self.about_line(branches)
        )];
        for branch in branches {
            choices.push(format!(
                "--target-timeline {} ({})",
                branch.timeline,
                self.holds(branch)
            ));
        }
        Error::new(
            Kind::Target,
            format!(
                "the history of this cluster branches, and it is not known which branch is meant: recovery would \
                 follow timeline {line}, but {}",
                described.join("; ")
            ),
        )
        .hint(format!(
            "Say which one: {}. The timeline of a copy that was opened for a test is not the one.",
            choices.join(", or ")
        ))
    }

    fn describe(&self, branch: &Branch) -> String {
        let timeline = branch.timeline;
        let holds = self.holds(branch);
        match (branch.fork, self.history.entry(timeline).is_some()) {
            (Some(fork), true) => {
                format!(
                    "timeline {timeline} goes on beyond {fork}, where it was left, with {holds}"
                )
            }
            (Some(fork), false) => {
                format!("timeline {timeline} went another way at {fork}, with {holds}")
            }
            (None, _) => format!("timeline {timeline}, whose history is not known, has {holds}"),
        }
    }

    fn holds(&self, branch: &Branch) -> String {
        let size = self.archive.segment_size();
        let wal = branch.wal.map_or("no WAL".to_owned(), |wal| {
            let name = |number| {
                let timeline = branch.timeline;
                WalSegment { timeline, number }.file_name(size)
            };
            format!(
                "{} WAL segments, {} to {}, the newest stored at {}",
                wal.count,
                name(wal.first),
                name(wal.last),
                wal.newest_at.strftime("%Y-%m-%d %H:%M:%SZ")
            )
        });
        match branch.layers.last() {
            Some(newest) => format!("{wal}, and {} layers, up to {newest}", branch.layers.len()),
            None => wal,
        }
    }

    /// What the latest timeline itself holds behind the first fork that is in question.
    fn about_line(&self, branches: &[Branch]) -> String {
        let first = branches.iter().filter_map(|branch| branch.fork).min();
        let timeline = self.history.timeline();
        let begin = self.history.entry(timeline).map(|entry| entry.begin);
        let from = first.max(begin).unwrap_or(Lsn::INVALID);
        let layers = self
            .candidates
            .iter()
            .filter(|layer| layer.timeline == timeline && layer.stop > from);
        let own = Branch {
            timeline,
            fork: first,
            wal: self
                .archive
                .tail(timeline, from.segment(self.archive.segment_size())),
            layers: layers.map(|layer| layer.label.clone()).collect(),
            ended: false,
        };
        format!(" ({})", self.holds(&own))
    }
}

/// Refuses to change a directory in place whose server went on where `history`, which a restore would follow unasked, left its
/// timeline: that history may be a copy's, and what the server wrote since would be lost.
///
/// A timeline that the history does not have is that of a copy, which somebody brings up to date.
pub(crate) fn refuse_leaving(
    data: &Path,
    options: &RestoreOptions,
    history: &TimelineHistory,
) -> Result<()> {
    if !options.chooses_freely() {
        return Ok(());
    }
    // An attempt that ended early has moved it aside, and has asked already.
    let Some(control) = control_there(data)? else {
        return Ok(());
    };
    let (own, at) = (control.timeline, control.checkpoint_lsn);
    let Some(left) = history.switch_point(own).filter(|left| *left < at) else {
        return Ok(());
    };
    let other = history.timeline();
    let what = format!(
        "the server of \"{}\" has gone on along timeline {own} to {at} at least, and timeline {other}, which this restore would \
         follow, left that one at {left}: it may be a copy's",
        data.display()
    );
    Err(Error::new(Kind::Target, what).hint(format!(
        "Say which one is meant: --target-timeline {own}, or --target-timeline {other}, as after a failover to that one."
    )))
}

/// Where two histories part; `None` when they have no timeline in common.
fn parting(way: &TimelineHistory, other: &TimelineHistory) -> Option<Lsn> {
    let mut last = None;
    for (one, two) in way.entries().iter().zip(other.entries()) {
        if one.timeline != two.timeline {
            break;
        }
        match (one.end, two.end) {
            (Some(one), Some(two)) if one == two => last = Some(one),
            (Some(one), Some(two)) => return Some(one.min(two)),
            (one, two) => return one.or(two),
        }
    }
    last
}
