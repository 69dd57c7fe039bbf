//! The truth: what was in the server when, and which of it the repository still owes.
//!
//! Nothing here asks the program that is tried, but for one thing: which layers it lists. What a listing has
//! lost must have been given up by a step that said so. Everything else follows from what the servers said:
//! their timelines, where they stood, and up to where their archiver was told that WAL is durable.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::Value;

use super::contents::Contents;
pub(super) use rules::{Culling, Period, Rules};

/// How many characters the name of a WAL segment has.
const SEGMENT_NAME: usize = 24;

/// A position in the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Lsn(pub(super) u64);

impl Lsn {
    /// Reads what PostgreSQL prints.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let halves = text.trim().split_once('/');
        let parsed = halves.and_then(|(high, low)| {
            let high = u64::from_str_radix(high, 16).ok()?;
            Some((high << 32) | u64::from_str_radix(low, 16).ok()?)
        });
        parsed
            .map(Self)
            .with_context(|| format!("\"{text}\" is no LSN"))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// A place in the history: a position on a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) timeline: u32,
    pub(super) lsn: Lsn,
}

/// How a moment is named to `restore`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    /// The restore point.
    pub(super) point: String,
    /// Where the record of the restore point begins at the earliest, which is where the contents were.
    pub(super) lsn: Lsn,
    /// The server's clock after the restore point and before the transaction.
    pub(super) time: String,
    /// A transaction after the restore point that changes nothing.
    pub(super) xid: String,
}

/// A moment whose contents are known.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    /// Recovery must get here, and no further than to the next change.
    pub(super) at: Place,
    pub(super) reached_by: Reach,
    pub(super) contents: Contents,
    /// Whether its WAL is in the archive.
    pub(super) is_archived: bool,
}

/// What leads to a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reach {
    /// Archived WAL, under any of these names.
    Wal(Names),
    /// The end of this layer.
    EndOf(String),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = format!("{} of timeline {}", self.at.lsn, self.at.timeline);
        match &self.reached_by {
            Reach::Wal(names) => write!(f, "{} ({at})", names.point),
            Reach::EndOf(label) => write!(f, "end of {label} ({at})"),
        }
    }
}

/// A layer that a command reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) label: String,
    pub(super) is_full: bool,
    /// What it stands on.
    pub(super) parent: Option<String>,
    pub(super) stop: Place,
    /// When the backup of this state ended: a merge changes nothing about it.
    pub(super) ended: Timestamp,
}

/// What is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Truth {
    /// Of each timeline but the first: those before it, each with the place where it was left.
    histories: BTreeMap<u32, Vec<Place>>,
    pub(super) current: u32,
    /// The timeline of a second server that lives beside the first one.
    pub(super) sibling: Option<u32>,
    /// Timelines of servers that lived beside another one, and ended, each with the latest one of then. Their branches stay.
    parted: BTreeMap<u32, u32>,
    pub(super) layers: BTreeMap<String, Layer>,
    pub(super) moments: Vec<Moment>,
    /// Layers that a merge was made of. An expiry removes them unless a rule of its own wants them.
    pub(super) merged: BTreeSet<String>,
    /// Layers that a command has pinned, and none has unpinned. A merge may replace what they stand on.
    pub(super) pinned: BTreeSet<String>,
    /// Layers that are owed to their own ends: the WAL after them went. Pins alone have kept them from an expiry, or one gave up
    /// the WAL between layers.
    stranded: BTreeSet<String>,
    /// Whether an expiry has given up WAL between layers that stayed.
    pub(super) gave_up_wal: bool,
    /// What a command was about to remove that did not end well. Whoever removes next completes it.
    pub(super) doomed: BTreeSet<String>,
    /// Of each timeline the last segment that its server's archiver was seen to store.
    archived: BTreeMap<u32, String>,
    /// Timelines of servers whose storage went, or was set back, before all their WAL was archived, each with the last segment
    /// that was archived then.
    cut_off: BTreeMap<u32, String>,
    /// Where each layer ended that was ever listed.
    ends: BTreeMap<String, Place>,
    /// Whether two timelines may have one number: servers went back that no archive told of each other.
    pub(super) is_ambiguous: bool,
}

impl Truth {
    pub(super) fn new() -> Self {
        Self {
            current: 1,
            ..Self::default()
        }
    }

    /// A server goes on with this timeline, whose history this is.
    ///
    /// A recovery towards a younger timeline that ends before that begins has it in its history all the same, left where
    /// the recovery ended. What was left later before it was left there, too.
    pub(super) fn begin(&mut self, timeline: u32, mut history: Vec<Place>) {
        let mut left = Lsn(u64::MAX);
        for fork in history.iter_mut().rev() {
            left = left.min(fork.lsn);
            fork.lsn = left;
        }
        self.histories.insert(timeline, history);
        self.current = timeline;
    }

    /// The timeline with the highest number, which a restore follows that is told of none.
    pub(super) fn latest(&self) -> u32 {
        let begun = self.histories.keys().copied();
        begun.fold(self.current, u32::max)
    }

    /// Whether a moment is of a server that goes on, and a restore that is told of no timeline may not come by it: then it
    /// asks.
    pub(super) fn is_asked_about(&self, moment: &Moment) -> bool {
        let mut timelines = [Some(self.current), self.sibling].into_iter().flatten();
        let is_alive = timelines.any(|timeline| self.is_on_line(moment.at, timeline));
        let is_named = matches!(moment.reached_by, Reach::Wal(_));
        is_alive && is_named && !self.is_on_the_way(moment.at)
    }

    /// Whether a restore that is told of no timeline comes by this place, or asks.
    pub(super) fn is_on_the_way(&self, place: Place) -> bool {
        self.is_on_line(place, self.current) && self.is_on_line(place, self.latest())
    }

    /// How many timelines there were.
    pub(super) fn timeline_count(&self) -> usize {
        self.histories.len() + 1
    }

    /// Whether this place lies in the past of that one.
    pub(super) fn is_past(&self, place: Place, of: Place) -> bool {
        if place.timeline == of.timeline {
            return place.lsn <= of.lsn;
        }
        place.lsn <= of.lsn && self.is_on_line(place, of.timeline)
    }

    /// Whether this place is on the way to the end of that timeline.
    pub(super) fn is_on_line(&self, place: Place, timeline: u32) -> bool {
        let mut left = self.histories.get(&timeline).into_iter().flatten();
        place.timeline == timeline
            || left.any(|fork| fork.timeline == place.timeline && place.lsn <= fork.lsn)
    }

    /// Whether recovery can begin somewhere before this place, and which layers would do.
    pub(super) fn bases(&self, of: Place) -> impl Iterator<Item = &Layer> {
        let layers = self.layers.values();
        // A merged layer goes on as far as the one whose state it has.
        let goes_on = |layer: &&Layer| {
            let mut stranded = self.stranded.iter();
            !stranded.any(|label| self.ends.get(label) == Some(&layer.stop))
        };
        layers
            .filter(goes_on)
            .filter(move |layer| self.is_past(layer.stop, of))
    }

    /// What pinned layers stand on, with them.
    fn pinned_chains(&self) -> BTreeSet<String> {
        let chains = self.pinned.iter().flat_map(|label| self.chain(label));
        chains.collect()
    }

    /// Whether pinned layers can go without that layer: in the chain of each that stands on it a merged layer stands for it,
    /// or for one between both.
    fn is_replaced(&self, label: &String, listed: &BTreeMap<String, Layer>) -> bool {
        let chains = self.pinned.iter().map(|pinned| self.chain(pinned));
        let mut affected = chains.filter(|chain| chain.contains(label));
        affected.all(|chain| {
            let mut between = chain[1..].iter().rev().skip_while(|one| *one != label);
            between.any(|one| {
                let end = self.layers[one].stop;
                listed
                    .values()
                    .any(|layer| layer.stop == end && layer.label != *one)
            })
        })
    }

    /// The moments that must be restorable now.
    pub(super) fn promised(&self) -> Vec<Moment> {
        let owed = |moment: &&Moment| match &moment.reached_by {
            Reach::EndOf(label) => self.layers.contains_key(label),
            Reach::Wal(_) => moment.is_archived && self.bases(moment.at).next().is_some(),
        };
        self.moments.iter().filter(owed).cloned().collect()
    }

    /// The archiver of the server was told that all WAL up to here is durable, which ends with this segment.
    pub(super) fn archived_up_to(&mut self, end: Place, segment: &str) {
        self.archived.insert(end.timeline, segment.to_owned());
        for moment in &mut self.moments {
            let at = moment.at;
            moment.is_archived |= at.timeline == end.timeline && at.lsn <= end.lsn;
        }
    }

    /// The server is gone, or goes back: what it had not archived after this place is lost.
    pub(super) fn lose_after(&mut self, place: Place) {
        self.moments.retain(|moment| {
            let is_later = moment.at.timeline == place.timeline && moment.at.lsn > place.lsn;
            matches!(moment.reached_by, Reach::EndOf(_)) || moment.is_archived || !is_later
        });
    }

    /// The server's WAL ends where it was archived last: what it wrote later went, or is set back.
    pub(super) fn cut_off(&mut self) {
        let last = self.archived.get(&self.current).cloned();
        let cut_off = self.cut_off.entry(self.current);
        cut_off.or_insert(last.unwrap_or_default());
    }

    /// Whether any server's WAL ended so.
    pub(super) fn has_cut_off(&self) -> bool {
        !self.cut_off.is_empty()
    }

    /// The server is gone: what it had not archived is lost. The one beside it has yet to archive its own.
    pub(super) fn lose_what_is_not_archived(&mut self) {
        self.cut_off();
        let sibling = self.sibling;
        self.moments
            .retain(|moment| moment.is_archived || Some(moment.at.timeline) == sibling);
    }

    /// Whether a layer may take what changed since `parent` from a source that knows only its own history.
    pub(super) fn may_stand_on(&self, layer: &Layer, parent: &str) -> bool {
        let end = self.ends.get(parent);
        self.is_ambiguous || end.is_none_or(|end| self.is_past(*end, layer.stop))
    }

    /// A layer with those that it stands on, the newest first. A merged layer stands in for one that is gone.
    pub(super) fn chain(&self, label: &str) -> Vec<String> {
        let mut chain = Vec::new();
        let mut next = self.layers.get(label);
        while let Some(layer) = next {
            chain.push(layer.label.clone());
            let parent = layer.parent.as_ref();
            next =
                parent.and_then(|parent| self.layers.get(parent).or_else(|| self.stand_in(parent)));
        }
        chain
    }

    fn stand_in(&self, label: &str) -> Option<&Layer> {
        let end = self.ends.get(label)?;
        self.layers.values().find(|layer| layer.stop == *end)
    }

    /// The layers of the timeline that the server is on, oldest first.
    pub(super) fn line(&self) -> Vec<&Layer> {
        self.line_of(self.current)
    }

    fn line_of(&self, timeline: u32) -> Vec<&Layer> {
        let layers = self.layers.values();
        let on_line = layers.filter(|layer| self.is_on_line(layer.stop, timeline));
        let mut line: Vec<&Layer> = on_line.collect();
        line.sort_by_key(|layer| layer.stop.lsn);
        line
    }

    /// Those of `labels` whose state another layer has, and those others: a merged layer stands for what it replaces.
    pub(super) fn twins(&self, labels: &[String]) -> BTreeSet<String> {
        let of = |label: &String| self.layers.get(label).map(|layer| layer.stop);
        let is_twin = |layer: &&Layer| {
            let mut others = labels.iter().filter(|label| **label != layer.label);
            others.any(|label| of(label) == Some(layer.stop))
        };
        let twins = self.layers.values().filter(is_twin);
        twins.map(|layer| layer.label.clone()).collect()
    }

    /// Timelines of other servers whose branches an expiry keeps like that of the server: the one that lives beside it, and
    /// those that did, unless a timeline that was begun later goes on from there.
    fn branches(&self) -> impl Iterator<Item = u32> {
        let goes_on = |timeline: u32, latest: u32| {
            let later = self.histories.range(latest + 1..);
            let mut forks = later.flat_map(|(_, history)| history);
            forks.any(|fork| fork.timeline == timeline)
        };
        let ended = self.parted.iter();
        let ended = ended.filter(move |(timeline, latest)| !goes_on(**timeline, **latest));
        self.sibling
            .into_iter()
            .chain(ended.map(|(timeline, _)| *timeline))
    }

    /// The server that lived beside the other one has ended.
    pub(super) fn part(&mut self) {
        let latest = self.latest();
        let ended = self.sibling.take();
        self.parted.extend(ended.map(|timeline| (timeline, latest)));
    }

    /// Whether an alarm tells of WAL that went with a server's storage, before a backup that stored its own.
    pub(super) fn explains(&self, alarm: &Value) -> bool {
        alarm["kind"] == "wal-hole" && self.is_cut_off_in(&alarm["reason"])
    }

    /// Whether a verification may find it: the same, what killed commands left, and that backups of two histories stored their
    /// own WAL under the same names.
    pub(super) fn expects(&self, finding: &Value) -> bool {
        match finding["kind"].as_str() {
            Some("stray" | "unfinished") => true,
            Some("wal-missing") => self.is_cut_off_in(&finding["message"]),
            Some("wal-damaged") => self.is_ambiguous,
            _ => false,
        }
    }

    /// Whether a text names a segment that went with a server's storage.
    fn is_cut_off_in(&self, text: &Value) -> bool {
        let words = text.as_str().unwrap_or_default().split_whitespace();
        let mut names = words.filter_map(|word| word.get(..SEGMENT_NAME));
        names.any(|name| {
            let timeline = u32::from_str_radix(&name[..8], 16);
            let last = timeline.ok().and_then(|line| self.cut_off.get(&line));
            last.is_some_and(|last| name > last.as_str())
        })
    }

    /// Takes over what is listed now. `may_go` are layers that a step was allowed to remove, `may_come` says whether
    /// one may have come of which no command reported. Returns what should not be as it is.
    pub(super) fn reconcile(
        &mut self,
        listed: Vec<Layer>,
        may_go: &BTreeSet<String>,
        may_come: bool,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let pinned = self.pinned_chains();
        let listed: BTreeMap<String, Layer> = listed
            .into_iter()
            .map(|layer| (layer.label.clone(), layer))
            .collect();
        for label in self.layers.keys().filter(|l| !listed.contains_key(*l)) {
            if self.pinned.contains(label)
                || pinned.contains(label) && !self.is_replaced(label, &listed)
            {
                wrong.push(format!("layer {label} is gone, and a pin keeps it"));
            } else if !may_go.contains(label) && !self.doomed.contains(label) {
                wrong.push(format!("layer {label} is gone, and nothing removed it"));
            }
        }
        for label in listed.keys().filter(|l| !self.layers.contains_key(*l)) {
            if !may_come {
                wrong.push(format!("layer {label} is there, and no command made it"));
            }
        }
        let ends = listed
            .values()
            .map(|layer| (layer.label.clone(), layer.stop));
        self.ends.extend(ends);
        self.layers = listed;
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn place(timeline: u32, lsn: u64) -> Place {
        let lsn = Lsn(lsn);
        Place { timeline, lsn }
    }

    pub(super) fn layer(label: &str, is_full: bool, stop: Place) -> Layer {
        let label = label.to_owned();
        Layer {
            label,
            is_full,
            parent: None,
            stop,
            ended: Timestamp::from_second(stop.lsn.0.try_into().unwrap()).unwrap(),
        }
    }

    pub(super) fn moment(at: Place, is_archived: bool) -> Moment {
        let names = Names {
            point: format!("m{}", at.lsn),
            lsn: at.lsn,
            time: String::new(),
            xid: String::new(),
        };
        Moment {
            at,
            reached_by: Reach::Wal(names),
            contents: Contents::default(),
            is_archived,
        }
    }

    /// Layers at 100 (full), 200 and 300 (full) of timeline 1, which was left at 250 for timeline 2 with a layer at 400.
    pub(super) fn branched() -> Truth {
        let mut truth = Truth::new();
        truth.begin(2, vec![place(1, 250)]);
        let layers = [
            layer("a", true, place(1, 100)),
            layer("b", false, place(1, 200)),
            layer("c", true, place(1, 300)),
            layer("d", false, place(2, 400)),
        ];
        let none = BTreeSet::new();
        assert!(truth.reconcile(layers.into(), &none, true).is_empty());
        truth
    }

    #[test]
    fn lsns_are_read_and_shown_as_postgresql_shows_them() {
        let lsn = Lsn::parse("1/5A3C1D8\n").unwrap();
        assert_eq!(lsn, Lsn(0x1_05A3_C1D8));
        assert_eq!(lsn.to_string(), "1/5A3C1D8");
        assert!(Lsn::parse("5A3C1D8").is_err());
    }

    #[test]
    fn what_a_pinned_layer_stands_on_is_replaced_at_most_and_the_wal_after_it_may_go() {
        let mut truth = branched();
        let ends = [
            ("a", None, 100),
            ("b", Some("a"), 200),
            ("c", Some("b"), 220),
            ("d", Some("c"), 230),
        ];
        let layers = ends.map(|(label, parent, lsn)| Layer {
            parent: parent.map(str::to_owned),
            ..layer(label, parent.is_none(), place(1, lsn))
        });
        let all: BTreeSet<String> = truth.layers.keys().cloned().collect();
        assert!(truth.reconcile(layers.into(), &all, true).is_empty());
        truth.pinned.insert("d".to_owned());
        assert_eq!(truth.bases(place(1, 240)).count(), 4);
        truth.strand(&all);
        assert_eq!(truth.bases(place(1, 240)).count(), 0);
        // "b" goes for "c", and "c" for itself; nothing stands for "a" alone.
        let left = ["a", "d"].map(|label| truth.layers[label].clone());
        let merged = layer("merged", false, place(1, 220));
        let now = left.iter().cloned().chain([merged]).collect();
        let mut after = truth.clone();
        assert!(after.reconcile(now, &all, true).is_empty());
        assert_eq!(after.bases(place(1, 240)).count(), 0);
        let merged = layer("merged", true, place(1, 100));
        let gone =
            ["b", "c", "d"].map(|label| format!("layer {label} is gone, and a pin keeps it"));
        assert_eq!(truth.reconcile([merged].into(), &all, true), gone);
    }

    #[test]
    fn a_moment_is_owed_when_its_wal_is_archived_and_a_layer_lies_before_it() {
        let mut truth = branched();
        let moments = [
            (place(1, 50), false),
            (place(1, 150), true),
            (place(1, 240), true),
            (place(1, 280), true),
            (place(2, 260), true),
            (place(2, 500), true),
        ];
        truth.moments = moments.iter().map(|(at, _)| moment(*at, true)).collect();
        let owed: Vec<Place> = truth.promised().iter().map(|moment| moment.at).collect();
        let expected = moments.iter().filter(|(_, owed)| *owed).map(|(at, _)| *at);
        assert_eq!(owed, expected.collect::<Vec<_>>());
        truth
            .moments
            .iter_mut()
            .for_each(|moment| moment.is_archived = false);
        assert!(truth.promised().is_empty());
        truth.archived_up_to(place(2, 300), "");
        let owed = truth.promised();
        assert_eq!(owed.len(), 1);
        assert_eq!(owed[0].at, place(2, 260));
    }

    #[test]
    fn a_layer_beyond_the_fork_is_no_base_of_the_new_timeline() {
        let mut truth = branched();
        truth.layers.retain(|label, _| label == "c");
        truth.moments = vec![moment(place(2, 500), true), moment(place(1, 310), true)];
        let owed = truth.promised();
        assert_eq!(owed.len(), 1);
        assert_eq!(owed[0].at, place(1, 310));
    }

    #[test]
    fn a_recovery_that_ends_before_its_timeline_begins_leaves_the_one_before_there() {
        let mut truth = branched();
        truth.begin(3, vec![place(1, 250), place(2, 220)]);
        assert!(truth.is_on_line(place(1, 220), 3));
        assert!(!truth.is_on_line(place(1, 240), 3));
        assert!(truth.is_on_line(place(1, 240), 2));
    }

    #[test]
    fn what_was_not_archived_is_lost_with_the_server() {
        let mut truth = branched();
        truth.moments = vec![
            moment(place(1, 150), false),
            moment(place(1, 240), true),
            moment(place(1, 245), false),
        ];
        truth.lose_after(place(1, 200));
        let left: Vec<Place> = truth.moments.iter().map(|moment| moment.at).collect();
        assert_eq!(left, [place(1, 150), place(1, 240)]);
    }

    /// Timeline 1 goes on beside timeline 2, with the layer "c".
    pub(super) fn of_two_servers() -> Truth {
        let mut truth = branched();
        truth.sibling = Some(1);
        truth
    }

    #[test]
    fn a_server_that_ends_takes_nothing_of_the_one_beside_it_along() {
        let mut truth = of_two_servers();
        truth.moments = vec![
            moment(place(1, 310), false),
            moment(place(2, 410), false),
            moment(place(2, 405), true),
        ];
        truth.lose_what_is_not_archived();
        let left: Vec<Place> = truth.moments.iter().map(|moment| moment.at).collect();
        assert_eq!(left, [place(1, 310), place(2, 405)]);
    }

    #[test]
    fn the_other_servers_layers_are_in_the_past_as_far_as_the_fork() {
        let truth = of_two_servers();
        let newest = layer("e", false, place(2, 450));
        assert!(truth.may_stand_on(&newest, "b"));
        assert!(truth.may_stand_on(&newest, "d"));
        assert!(!truth.may_stand_on(&newest, "c"));
        assert!(!truth.may_stand_on(&layer("e", false, place(1, 450)), "d"));
    }

    #[test]
    fn who_goes_on_with_an_older_timeline_must_name_it() {
        let mut truth = of_two_servers();
        assert!(truth.is_on_the_way(place(1, 250)));
        assert!(truth.is_on_the_way(place(2, 260)));
        truth.current = 1;
        assert!(truth.is_on_the_way(place(1, 250)));
        assert!(!truth.is_on_the_way(place(1, 260)));
        assert!(!truth.is_on_the_way(place(2, 260)));
        let of_each = [1, 2].map(|timeline| moment(place(timeline, 260), true));
        assert!(truth.is_asked_about(&of_each[0]));
        assert!(!truth.is_asked_about(&of_each[1]));
        truth.sibling = Some(2);
        assert!(of_each.iter().all(|moment| truth.is_asked_about(moment)));
    }

    #[test]
    fn a_merged_layer_stands_in_for_what_it_replaced() {
        let mut truth = branched();
        let upper = Layer {
            parent: Some("b".to_owned()),
            ..layer("u", false, place(1, 240))
        };
        let merged = layer("m", true, place(1, 200));
        let none = BTreeSet::new();
        truth.reconcile(
            vec![upper.clone(), layer("b", false, place(1, 200))],
            &none,
            true,
        );
        truth.reconcile(vec![upper, merged], &none, true);
        assert_eq!(truth.chain("u"), ["u", "m"]);
    }

    #[test]
    fn a_merged_layer_and_what_it_replaces_are_twins() {
        let mut truth = branched();
        truth
            .layers
            .insert("m".into(), layer("m", true, place(1, 200)));
        let all: Vec<String> = truth.layers.keys().cloned().collect();
        let twins = ["b", "m"].map(str::to_owned);
        assert_eq!(truth.twins(&all), BTreeSet::from(twins.clone()));
        assert_eq!(truth.twins(&twins[..1]), BTreeSet::from(["m".to_owned()]));
    }

    #[test]
    fn a_layer_that_goes_or_comes_by_itself_is_wrong() {
        let mut truth = branched();
        let listed: Vec<Layer> = truth.layers.values().skip(1).cloned().collect();
        let gone = truth.reconcile(listed.clone(), &BTreeSet::new(), false);
        assert_eq!(gone.len(), 1);
        assert!(gone[0].contains("layer a is gone"), "{gone:?}");
        let mut more = listed;
        more.push(layer("x", true, place(2, 900)));
        let come = truth.reconcile(more, &BTreeSet::new(), false);
        assert!(come[0].contains("layer x is there"), "{come:?}");
    }
}
