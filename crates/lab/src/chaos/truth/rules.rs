//! The rules of an expiry: which layers may go, and which WAL, by a plain reading of the manual.
//!
//! Nobody knows at which moment the program read its clock. So the truth looks later, when the command has ended. What a rule
//! about time wants then, it wanted before: the newest layers, of those that are too old the last one, and the WAL since that.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::{Layer, Lsn, Truth};

/// Stores note whole seconds, and what they have noted counts when it is earlier than what a backup says of its end.
const NOTED: SignedDuration = SignedDuration::from_secs(2);

/// What runs beside an expiry was started less than a second before, and may have ended by then.
const BESIDE: SignedDuration = SignedDuration::from_secs(2);

const DAY: SignedDuration = SignedDuration::from_hours(24);

const SECONDS_OF_DAY: i64 = 24 * 3600;

/// 1 January 1970 was a Thursday: so many days after a Monday.
const THURSDAY: i64 = 3;

/// Periods of UTC of which the last layer is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Period {
    Day,
    Week,
    Month,
    Year,
}

impl Period {
    /// Its number: the same for all times of one period, and higher for later ones.
    fn number(self, time: Timestamp) -> i64 {
        let day = time.as_second().div_euclid(SECONDS_OF_DAY);
        let date = time.to_zoned(TimeZone::UTC).date();
        let year = i64::from(date.year());
        match self {
            Self::Day => day,
            Self::Week => (day + THURSDAY).div_euclid(7),
            Self::Month => year * 12 + i64::from(date.month()),
            Self::Year => year,
        }
    }
}

/// What an expiry is told to keep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Rules {
    /// So many full layers, and all since.
    pub(in super::super) full: Option<usize>,
    /// What it takes to restore to any moment of that time.
    pub(in super::super) within: Option<SignedDuration>,
    /// The last layer of each of so many periods.
    pub(in super::super) last_of: Option<(Period, usize)>,
    /// The WAL between layers of that time, and no older one.
    pub(in super::super) wal: Option<SignedDuration>,
    /// The newest chain has no more layers than that.
    pub(in super::super) max_chain: Option<usize>,
}

/// Hours where they are whole.
fn spelled(span: SignedDuration) -> String {
    match span.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds => format!("{seconds}s"),
    }
}

impl Rules {
    /// As the program is told them.
    pub(in super::super) fn words(&self) -> Vec<String> {
        let count = |option, count: Option<usize>| Some((option, count?.to_string()));
        let within = self.within.map(|span| match span == DAY {
            true => ("--keep-days", "1".to_owned()),
            false => ("--keep-within", spelled(span)),
        });
        let last_of = self.last_of.map(|(period, count)| {
            let option = match period {
                Period::Day => "--keep-daily",
                Period::Week => "--keep-weekly",
                Period::Month => "--keep-monthly",
                Period::Year => "--keep-yearly",
            };
            (option, count.to_string())
        });
        let all = [
            count("--keep-full", self.full),
            within,
            last_of,
            self.wal.map(|span| ("--keep-wal", spelled(span))),
            count("--max-chain", self.max_chain),
        ];
        let told = all.into_iter().flatten();
        told.flat_map(|(option, value)| [option.to_owned(), value])
            .collect()
    }

    /// Whether any of them says which layers stay; otherwise all do.
    fn choose(&self) -> bool {
        self.full.is_some() || self.within.is_some() || self.last_of.is_some()
    }
}

/// An expiry that was run.
#[derive(Debug)]
pub(in super::super) struct Culling {
    pub(in super::super) rules: Rules,
    /// How many layers may have come beside it of which no command told.
    pub(in super::super) coming: usize,
    /// Before it was run.
    pub(in super::super) began: Timestamp,
}

impl Culling {
    /// When a span ends that the rules name, as seen from `now`: what is older is too old.
    fn cut(&self, now: Timestamp, span: SignedDuration) -> Timestamp {
        let cut = now.saturating_sub(span).unwrap_or(Timestamp::MIN);
        cut.saturating_add(NOTED).unwrap_or(cut)
    }

    /// Whether a layer that came beside it may count as too old.
    fn may_have_aged(&self, cut: Timestamp) -> bool {
        let earliest = self.began.saturating_sub(BESIDE).unwrap_or(self.began);
        self.coming > 0 && cut > earliest
    }
}

impl Truth {
    /// What an expiry may have removed by now. What is pinned is not left out.
    pub(in super::super) fn may_go(&self, culling: &Culling, now: Timestamp) -> BTreeSet<String> {
        let all: Vec<String> = self.layers.keys().cloned().collect();
        let rules = &culling.rules;
        let mut may_go = BTreeSet::new();
        if rules.choose() {
            let kept = self.kept(culling, now);
            may_go.extend(all.iter().filter(|label| !kept.contains(*label)).cloned());
        }
        if let Some(count) = rules.max_chain {
            let needed = self.wanted_by_time(culling, now);
            let count = count.saturating_sub(culling.coming);
            may_go.extend(self.may_merge_away(count, &needed));
        }
        // An expiry may take a layer for replaced, whatever its rules are.
        may_go.extend(self.twins(&all));
        may_go.extend(self.merged.iter().cloned());
        may_go
    }

    /// What the rules want, with all on which it stands.
    fn kept(&self, culling: &Culling, now: Timestamp) -> BTreeSet<String> {
        let mut wanted = self.wanted_by_time(culling, now);
        if let Some(count) = culling.rules.full {
            wanted.extend(self.wanted_by_number(count, culling.coming));
        }
        wanted.iter().flat_map(|label| self.chain(label)).collect()
    }

    /// What rules about time want by themselves. A merge may put another layer of the same state in its place.
    pub(in super::super) fn wanted_by_time(
        &self,
        culling: &Culling,
        now: Timestamp,
    ) -> BTreeSet<String> {
        let mut wanted = BTreeSet::new();
        if let Some(span) = culling.rules.within {
            wanted.extend(self.within(culling, culling.cut(now, span)));
        }
        if let Some((period, count)) = culling.rules.last_of {
            wanted.extend(self.last_of(period, count, culling.coming));
        }
        wanted.into_iter().map(str::to_owned).collect()
    }

    /// What is wrong when a layer has gone that a rule about time wants, and none that is listed has its state. A removal that
    /// was begun before, or by the same step in another way (`may_go`), may have taken it.
    pub(in super::super) fn states_lost(
        &self,
        culling: &Culling,
        may_go: &BTreeSet<String>,
        listed: &[Layer],
        now: Timestamp,
    ) -> Vec<String> {
        let wanted = self.wanted_by_time(culling, now);
        let is_lost = |label: &&String| {
            let end = self.layers[*label].stop;
            let is_excused = may_go.contains(*label) || self.doomed.contains(*label);
            !is_excused && !listed.iter().any(|layer| layer.stop == end)
        };
        let lost = wanted.iter().filter(is_lost);
        lost.map(|label| format!("layer {label} is gone, and a rule about time keeps its state"))
            .collect()
    }

    /// What was finished since, and of each line the last one before, from which the first of these moments is reached.
    fn within(&self, culling: &Culling, cut: Timestamp) -> BTreeSet<&str> {
        let since = self.layers.values().filter(|layer| layer.ended >= cut);
        let mut wanted: BTreeSet<&str> = since.map(|layer| layer.label.as_str()).collect();
        for (line, comes) in self.lines() {
            let before = line.into_iter().filter(|layer| layer.ended < cut);
            if !(comes && culling.may_have_aged(cut)) {
                let last = before.max_by_key(|layer| layer.ended);
                wanted.extend(last.map(|layer| layer.label.as_str()));
            }
        }
        wanted
    }

    /// Of each line the last layer of each of its last periods that have one. One that comes may be the last of a period that
    /// has one, or begin another.
    fn last_of(&self, period: Period, count: usize, coming: usize) -> BTreeSet<&str> {
        let mut wanted = BTreeSet::new();
        for (mut line, comes) in self.lines() {
            let coming = if comes { coming } else { 0 };
            line.sort_by_key(|layer| layer.ended);
            let in_order = line.into_iter();
            let last: BTreeMap<i64, &Layer> = in_order
                .map(|layer| (period.number(layer.ended), layer))
                .collect();
            let newest = last.values().rev().take(count.saturating_sub(coming));
            wanted.extend(newest.skip(coming).map(|layer| layer.label.as_str()));
        }
        wanted
    }

    /// The lines for each of which the rules keep something, and whether the server's own layers come there. Where nobody knows
    /// how timelines follow each other, it is the newest layer alone.
    fn lines(&self) -> Vec<(Vec<&Layer>, bool)> {
        if self.is_ambiguous {
            let newest = self.layers.values().max_by_key(|layer| layer.ended);
            return vec![(newest.into_iter().collect(), true)];
        }
        let others = self.branches().map(|timeline| (timeline, false));
        let lines = others.chain([(self.current, true)]);
        lines
            .map(|(timeline, comes)| (self.line_of(timeline), comes))
            .collect()
    }

    /// Of each line the newest `count` full layers, when `coming` more may come beside the expiry, and what is newer. With none
    /// of the known ones kept, one that comes is; it comes on the server's line.
    fn wanted_by_number(&self, count: usize, coming: usize) -> BTreeSet<String> {
        let of_known = count.saturating_sub(coming);
        if self.is_ambiguous {
            let newest = self.newest_chain().into_iter();
            return newest.filter(|_| of_known > 0).collect();
        }
        let mut kept = self.newest_fulls(self.current, of_known);
        for timeline in self.branches() {
            kept.extend(self.newest_fulls(timeline, count));
        }
        kept.into_iter().map(str::to_owned).collect()
    }

    /// The newest `count` full layers of a line, and all that comes after the first of them.
    fn newest_fulls(&self, timeline: u32, count: usize) -> BTreeSet<&str> {
        let Some(last) = count.checked_sub(1) else {
            return BTreeSet::new();
        };
        let line = self.line_of(timeline);
        let fulls = line.iter().filter(|layer| layer.is_full);
        let first = fulls.rev().nth(last).copied();
        // A merged layer has the state of one that it replaces, and that one may go.
        let is_kept = |layer: &&&Layer| {
            first.is_none_or(|first| layer.stop.lsn > first.stop.lsn || **layer == first)
        };
        let kept = line.iter().filter(is_kept);
        kept.map(|layer| layer.label.as_str()).collect()
    }

    fn newest_chain(&self) -> Vec<String> {
        let newest = self.layers.values().max_by_key(|layer| layer.ended);
        newest.map_or_else(Vec::new, |layer| self.chain(&layer.label))
    }

    /// What may be merged away when the newest chain of every line is to have `count` layers: the older part of any, from the
    /// oldest layer on that is `needed`, whose state lives on. What is pinned is not, so more of what stands on it may be.
    pub(super) fn may_merge_away(
        &self,
        count: usize,
        needed: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let chains = self.layers.keys().map(|label| self.chain(label));
        let long = chains.filter(|chain| chain.len() > count);
        let older = long.flat_map(|chain| {
            let is_held = chain.iter().any(|label| self.pinned.contains(label));
            let kept = if is_held { 0 } else { count.saturating_sub(1) };
            let oldest = chain.iter().rposition(|label| needed.contains(label));
            chain.into_iter().skip(kept.max(oldest.unwrap_or(0)))
        });
        older.collect()
    }

    /// An expiry has removed what it has: of the WAL behind layers nothing is owed that its rules give up. `may_go` is what it
    /// may have removed, and what is left of that may have stayed for another reason.
    pub(in super::super) fn give_up_wal(
        &mut self,
        culling: &Culling,
        may_go: &BTreeSet<String>,
        now: Timestamp,
    ) {
        let rules = &culling.rules;
        if rules.choose() || rules.max_chain.is_none() {
            self.strand(may_go);
        }
        let Some(span) = rules.wal else {
            return;
        };
        let from = self.wal_from(may_go, culling.cut(now, span));
        let older = self.layers.values();
        let older = older.filter(|layer| from.is_none_or(|from| layer.stop.lsn < from));
        let older: Vec<String> = older.map(|layer| layer.label.clone()).collect();
        self.gave_up_wal |= !older.is_empty();
        self.stranded.extend(older);
    }

    /// From where on all WAL stays: from the first layer that a rule keeps and that was finished since, and of each line from
    /// the last kept one before. Which of the older ones are kept by rules is not known: the last of all is not before it.
    fn wal_from(&self, may_go: &BTreeSet<String>, cut: Timestamp) -> Option<Lsn> {
        let is_kept = |layer: &&Layer| !may_go.contains(&layer.label);
        let since = self.layers.values().filter(|layer| layer.ended >= cut);
        let since = since.filter(is_kept).map(|layer| layer.stop.lsn).min();
        let lines = self.lines().into_iter().filter_map(|(line, _)| {
            let before = line.into_iter().filter(|layer| layer.ended < cut);
            let before: Vec<&Layer> = before.collect();
            let last = before.iter().max_by_key(|layer| layer.ended)?;
            before.iter().any(is_kept).then_some(last.stop.lsn)
        });
        lines.chain(since).min()
    }

    /// An expiry removes what it may, but for what is pinned.
    pub(super) fn strand(&mut self, may_go: &BTreeSet<String>) {
        let kept = self.pinned_chains();
        self.stranded.extend(kept.intersection(may_go).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{branched, layer, moment, of_two_servers, place};
    use super::super::{Moment, Reach};
    use super::*;

    fn labels(text: &str) -> BTreeSet<String> {
        text.chars().map(String::from).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn culling(rules: Rules, coming: usize) -> Culling {
        let began = at(1000);
        Culling {
            rules,
            coming,
            began,
        }
    }

    fn may_go_of_fulls(truth: &Truth, count: usize, coming: usize) -> BTreeSet<String> {
        let rules = Rules {
            full: Some(count),
            ..Rules::default()
        };
        truth.may_go(&culling(rules, coming), at(1000))
    }

    fn span(seconds: i64) -> Option<SignedDuration> {
        Some(SignedDuration::from_secs(seconds))
    }

    #[test]
    fn what_stands_on_a_pinned_layer_may_be_merged_up_to_its_end() {
        let mut truth = chain_of_four();
        let none = BTreeSet::new();
        assert_eq!(truth.may_merge_away(2, &none), labels("abc"));
        truth.pinned.insert("b".to_owned());
        assert_eq!(truth.may_merge_away(2, &none), labels("abcd"));
        assert_eq!(truth.may_merge_away(4, &none), none);
    }

    /// Of histories that cannot be told apart the newest backup is kept, and a merge of older ones is none.
    #[test]
    fn a_merge_makes_no_newest_backup() {
        let mut truth = Truth::new();
        truth.is_ambiguous = true;
        let layers = [("1F", 10), ("2F", 30), ("3F", 20)];
        let layers = layers.map(|(label, lsn)| layer(label, true, place(1, lsn)));
        let none = BTreeSet::new();
        assert!(truth.reconcile(layers.into(), &none, true).is_empty());
        let may_go = ["1F", "3F"].map(str::to_owned);
        assert_eq!(may_go_of_fulls(&truth, 1, 0), BTreeSet::from(may_go));
    }

    #[test]
    fn an_expiry_keeps_the_newest_full_layers_of_the_line_and_all_after_them() {
        let mut truth = branched();
        // The full layer at 300 lies on the branch that was left.
        assert_eq!(
            may_go_of_fulls(&truth, 1, 0),
            BTreeSet::from(["c".to_owned()])
        );
        truth
            .layers
            .insert("e".into(), layer("e", true, place(2, 450)));
        let expected = ["a", "b", "c", "d"].map(str::to_owned);
        assert_eq!(may_go_of_fulls(&truth, 1, 0), BTreeSet::from(expected));
        assert_eq!(
            may_go_of_fulls(&truth, 5, 0),
            BTreeSet::from(["c".to_owned()])
        );
        assert_eq!(may_go_of_fulls(&truth, 1, 1).len(), truth.layers.len());
    }

    #[test]
    fn an_expiry_keeps_the_line_of_a_second_server_while_it_lives_and_after_that() {
        let mut truth = of_two_servers();
        truth
            .layers
            .insert("e".into(), layer("e", true, place(2, 450)));
        let [a, b, d] = ["a", "b", "d"].map(str::to_owned);
        assert_eq!(may_go_of_fulls(&truth, 1, 0), BTreeSet::from([a, b, d]));
        // What comes is no layer of the other one.
        assert!(!may_go_of_fulls(&truth, 1, 1).contains("c"));
        truth.part();
        assert!(!may_go_of_fulls(&truth, 1, 0).contains("c"));
        truth.begin(3, vec![place(1, 320)]);
        assert!(may_go_of_fulls(&truth, 1, 0).contains("e"));
    }

    #[test]
    fn only_the_older_part_of_a_long_chain_is_merged_away() {
        let mut truth = branched();
        let stack = |label: &str, parent: &str, lsn| Layer {
            parent: Some(parent.to_owned()),
            ..layer(label, false, place(2, lsn))
        };
        truth.layers.insert("e".into(), stack("e", "a", 500));
        truth.layers.insert("f".into(), stack("f", "e", 600));
        assert_eq!(truth.chain("f"), ["f", "e", "a"]);
        let none = BTreeSet::new();
        let gone = truth.may_merge_away(2, &none);
        assert_eq!(gone, BTreeSet::from(["a".to_owned(), "e".to_owned()]));
        assert_eq!(truth.may_merge_away(9, &none), BTreeSet::new());
    }

    #[test]
    fn rules_are_told_as_the_program_takes_them() {
        let rules = Rules {
            within: Some(DAY),
            last_of: Some((Period::Week, 2)),
            wal: span(90),
            max_chain: Some(3),
            ..Rules::default()
        };
        let words = "--keep-days 1 --keep-weekly 2 --keep-wal 90s --max-chain 3";
        assert_eq!(rules.words().join(" "), words);
        let rules = Rules {
            full: Some(1),
            within: span(7200),
            ..Rules::default()
        };
        assert_eq!(rules.words().join(" "), "--keep-full 1 --keep-within 2h");
    }

    /// A chain of four on one timeline, finished at the seconds 100, 200, 300 and 400.
    fn chain_of_four() -> Truth {
        let mut truth = Truth::new();
        let chain = [
            ("a", None),
            ("b", Some("a")),
            ("c", Some("b")),
            ("d", Some("c")),
        ];
        let layers = chain
            .iter()
            .zip(1..)
            .map(|((label, parent), number)| Layer {
                parent: parent.map(str::to_owned),
                ..layer(label, parent.is_none(), place(1, number * 100))
            });
        let layers = layers.collect();
        assert!(truth.reconcile(layers, &BTreeSet::new(), true).is_empty());
        truth
    }

    #[test]
    fn what_a_span_reaches_stays_with_the_last_layer_before_it_and_what_that_stands_on() {
        let mut truth = branched();
        let within = |seconds| Rules {
            within: span(seconds),
            ..Rules::default()
        };
        let may_go = |truth: &Truth, seconds, coming| {
            truth.may_go(&culling(within(seconds), coming), at(1000))
        };
        assert!(may_go(&truth, 1000, 0).is_empty());
        // "b" is the last before on the line, and "c" lies on the branch that was left.
        assert_eq!(may_go(&truth, 650, 0), labels("ac"));
        assert_eq!(may_go(&truth, 750, 0), labels("a"));
        assert_eq!(may_go(&truth, 10, 0), labels("abc"));
        // A layer that came beside it would be the last one before, if it was as old.
        assert_eq!(may_go(&truth, 10, 1), labels("abc"));
        let late = culling(within(10), 1);
        assert_eq!(truth.may_go(&late, at(1020)), labels("abcd"));
        assert_eq!(truth.may_go(&late, at(1007)), labels("abcd"));
        assert_eq!(truth.may_go(&late, at(1006)), labels("abc"));
        // The line of a second server is kept as well.
        truth.sibling = Some(1);
        assert_eq!(may_go(&truth, 10, 0), labels("ab"));
        truth.sibling = None;
        // A store that notes whole seconds may call a layer older than it is.
        assert_eq!(may_go(&truth, 601, 0), labels("abc"));
        assert_eq!(may_go(&truth, 603, 0), labels("ac"));
        // Where nobody knows the lines, the newest layer of all stays.
        (truth.is_ambiguous, truth.current) = (true, 1);
        assert_eq!(may_go(&truth, 10, 0), labels("abc"));
        assert!(may_go(&chain_of_four(), 10, 0).is_empty());
    }

    #[test]
    fn the_last_layer_of_each_of_the_last_periods_stays() {
        let mut truth = chain_of_four();
        let day = SECONDS_OF_DAY;
        for (label, ended) in [
            ("a", day),
            ("b", day + 5),
            ("c", 4 * day - 1),
            ("d", 4 * day),
        ] {
            let layer = truth.layers.get_mut(label).unwrap();
            (layer.ended, layer.parent) = (at(ended), None);
        }
        let may_go = |truth: &Truth, period, count, coming| {
            let rules = Rules {
                last_of: Some((period, count)),
                ..Rules::default()
            };
            truth.may_go(&culling(rules, coming), at(5 * day))
        };
        assert_eq!(may_go(&truth, Period::Day, 1, 0), labels("abc"));
        assert_eq!(may_go(&truth, Period::Day, 2, 0), labels("ab"));
        assert_eq!(may_go(&truth, Period::Day, 3, 0), labels("a"));
        assert_eq!(may_go(&truth, Period::Day, 9, 0), labels("a"));
        // What comes is of the last day or begins another.
        assert_eq!(may_go(&truth, Period::Day, 3, 1), labels("abd"));
        // The first Monday is the fifth day.
        assert_eq!(may_go(&truth, Period::Week, 2, 0), labels("ab"));
        assert_eq!(may_go(&truth, Period::Month, 2, 0), labels("abc"));
        truth.layers.get_mut("d").unwrap().ended = at(365 * day);
        assert_eq!(may_go(&truth, Period::Month, 2, 0), labels("ab"));
        assert_eq!(may_go(&truth, Period::Year, 2, 0), labels("ab"));
        assert_eq!(may_go(&truth, Period::Year, 1, 0), labels("abc"));
        truth.layers.get_mut("b").unwrap().ended = at(35 * day);
        assert_eq!(may_go(&truth, Period::Year, 3, 0), labels("ac"));
        let chained = chain_of_four();
        assert!(may_go(&chained, Period::Year, 1, 0).is_empty());
    }

    #[test]
    fn a_layer_stays_when_any_rule_wants_it_and_all_do_without_a_rule_about_them() {
        let mut truth = branched();
        let may_go = |truth: &Truth, rules| truth.may_go(&culling(rules, 0), at(1000));
        let wal = Rules {
            wal: span(1),
            ..Rules::default()
        };
        assert!(may_go(&truth, wal).is_empty());
        truth.merged = labels("a");
        assert_eq!(may_go(&truth, wal_and(None)), labels("a"));
        truth.merged = BTreeSet::new();
        let both = Rules {
            within: span(10),
            full: Some(1),
            ..Rules::default()
        };
        assert_eq!(may_go(&truth, both), labels("c"));
    }

    fn wal_and(within: Option<SignedDuration>) -> Rules {
        Rules {
            wal: span(1),
            within,
            ..Rules::default()
        }
    }

    #[test]
    fn what_a_rule_about_time_wants_is_not_merged_away_and_the_oldest_of_it_may_have_another_label()
    {
        let truth = chain_of_four();
        let may_go = |seconds| {
            let rules = Rules {
                within: span(seconds),
                max_chain: Some(2),
                ..Rules::default()
            };
            let culling = culling(rules, 0);
            let wanted = truth.wanted_by_time(&culling, at(1000));
            (truth.may_go(&culling, at(1000)), wanted)
        };
        assert_eq!(may_go(5000), (labels("a"), labels("abcd")));
        assert_eq!(may_go(750), (labels("ab"), labels("bcd")));
        assert_eq!(may_go(10), (labels("abc"), labels("d")));
    }

    #[test]
    fn a_state_that_a_rule_about_time_wants_lives_on_under_another_label_at_least() {
        let truth = chain_of_four();
        let rules = Rules {
            within: span(750),
            max_chain: Some(2),
            ..Rules::default()
        };
        let (culling, none) = (culling(rules, 0), BTreeSet::new());
        let merged = layer("m", true, place(1, 200));
        let newer = ["c", "d"].map(|label| truth.layers[label].clone());
        let lost = |truth: &Truth, listed: &[Layer], may_go: &BTreeSet<String>| {
            truth.states_lost(&culling, may_go, listed, at(1000))
        };
        let left: Vec<Layer> = newer.iter().cloned().chain([merged]).collect();
        assert!(lost(&truth, &left, &none).is_empty());
        let wrong = lost(&truth, &newer, &none);
        assert_eq!(
            wrong,
            ["layer b is gone, and a rule about time keeps its state"]
        );
        assert!(lost(&truth, &newer, &labels("b")).is_empty());
        let mut begun = truth.clone();
        begun.doomed = labels("b");
        assert!(lost(&begun, &newer, &none).is_empty());
    }

    /// Moments between the layers of the chain of four.
    fn with_moments() -> Truth {
        let mut truth = chain_of_four();
        let moments = [150, 250, 350, 450];
        truth.moments = moments.map(|lsn| moment(place(1, lsn), true)).into();
        truth
    }

    fn owed(truth: &Truth) -> Vec<u64> {
        let owed = truth.promised();
        owed.iter().map(|moment| moment.at.lsn.0).collect()
    }

    #[test]
    fn wal_between_layers_is_owed_from_the_last_layer_before_the_span_on() {
        let gave_up = |seconds, may_go: &str| {
            let mut truth = with_moments();
            let rules = Rules {
                wal: span(seconds),
                ..Rules::default()
            };
            truth.give_up_wal(&culling(rules, 0), &labels(may_go), at(1000));
            truth
        };
        assert_eq!(owed(&gave_up(5000, "")), [150, 250, 350, 450]);
        assert!(!gave_up(5000, "").gave_up_wal);
        assert_eq!(owed(&gave_up(750, "")), [250, 350, 450]);
        assert!(gave_up(750, "").gave_up_wal);
        assert_eq!(owed(&gave_up(10, "")), [450]);
        // Of "b" and "c", which no rule keeps for certain, either may be the last one before.
        assert_eq!(owed(&gave_up(650, "bc")), [350, 450]);
        // No rule keeps any layer before.
        assert_eq!(owed(&gave_up(650, "abc")), [450]);
        assert!(owed(&gave_up(650, "abcd")).is_empty());
    }

    #[test]
    fn an_end_is_owed_whose_wal_behind_it_went_and_wal_stays_without_a_rule_about_it() {
        let mut truth = with_moments();
        let end = truth.layers["a"].clone();
        truth.moments.push(Moment {
            reached_by: Reach::EndOf(end.label),
            ..moment(end.stop, true)
        });
        truth.give_up_wal(&culling(Rules::default(), 0), &labels(""), at(1000));
        assert_eq!(owed(&truth), [150, 250, 350, 450, 100]);
        truth.give_up_wal(&culling(wal_and(span(1)), 0), &labels(""), at(1000));
        assert_eq!(owed(&truth), [450, 100]);
        truth.pinned = labels("d");
        let full = Rules {
            full: Some(1),
            ..Rules::default()
        };
        truth.give_up_wal(&culling(full, 0), &labels("d"), at(1000));
        assert_eq!(owed(&truth), [100]);
    }

    #[test]
    fn the_line_of_a_second_server_keeps_its_wal_too() {
        let mut truth = of_two_servers();
        truth.moments = [place(1, 150), place(1, 310), place(2, 410)]
            .map(|at| moment(at, true))
            .into();
        let mut alone = truth.clone();
        alone.sibling = None;
        truth.give_up_wal(&culling(wal_and(None), 0), &labels(""), at(1000));
        // "c" is the last layer of the one, "d" of the other.
        assert_eq!(owed(&truth), [310, 410]);
        alone.give_up_wal(&culling(wal_and(None), 0), &labels(""), at(1000));
        assert_eq!(owed(&alone), [410]);
    }
}
