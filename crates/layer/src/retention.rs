//! Retention: which layers may go, and which are merged so that a chain does not grow for ever.
//!
//! A layer goes only when no kept layer stands on it. Planning touches nothing; a crash while deleting leaves orphans,
//! never a broken chain.
//!
//! Rules are promises to each server that may go on. When the history branches, each line of it is kept as if it was
//! alone: backups of a copy push no backup of its source out.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::label::{Label, LayerKind};

/// What is kept. A layer that any rule wants stays, with all it stands on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// That many full layers of each line, the newest that can be restored, and everything since the oldest of them;
    /// everything when there are fewer.
    pub keep_full: Option<usize>,
    /// What it takes to restore to any moment of the last days, on each line.
    pub keep_days: Option<u32>,
    /// Layers that the chain of the newest layer may have. The oldest are merged; what [`Policy::keep_days`] wants is
    /// not merged away, nor what another line needs.
    pub max_chain: Option<usize>,
}

/// A layer as retention sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its label.
    pub label: Label,
    /// What it stands on, as a position in the list.
    pub parent: Option<usize>,
    /// When its backup was finished.
    pub finished_at: Timestamp,
    /// Whether a merged layer has its state, so that nobody needs this one.
    pub replaced: bool,
    /// Whether a merged layer was made out of it: it was to go, but for the rules that want its state.
    pub merged: bool,
    /// Whether a restore may be reading it.
    pub in_use: bool,
    /// Whether it is known that it cannot be restored: it stands in for no layer that can.
    pub broken: bool,
}

/// A way through the history that somebody goes on with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryLine {
    /// Layers from which recovery can follow it, by their positions, ascending.
    pub layers: Vec<usize>,
}

impl HistoryLine {
    /// The history has no branches.
    #[must_use]
    pub fn only(layers: &[Held]) -> Self {
        Self {
            layers: (0..layers.len()).collect(),
        }
    }

    fn holds(&self, at: usize) -> bool {
        self.layers.binary_search(&at).is_ok()
    }
}

/// Why a layer stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The newest layer of each line always stays.
    Newest,
    /// Among the newest full layers, or made since.
    KeepFull,
    /// Restores to a moment of the days that are kept.
    KeepDays,
    /// The chain's length is all that is limited.
    NoRule,
    /// A layer that stays stands on it.
    StoodUpon,
    /// No rule wants it, but a restore may be reading it.
    InUse,
}

impl Why {
    /// For people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Newest => "the newest",
            Self::KeepFull => "--keep-full",
            Self::KeepDays => "--keep-days",
            Self::NoRule => "no rule against it",
            Self::StoodUpon => "stood upon",
            Self::InUse => "a restore may need it",
        }
    }
}

/// The oldest layers of the newest layer's chain, to become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeStep {
    /// The newest of them.
    pub newest: usize,
    /// The full layer.
    pub oldest: usize,
    /// How long the chain is, and will be.
    pub length: (usize, usize),
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpirePlan {
    /// For each layer why it stays; nothing when it goes.
    pub keep: Vec<Option<Why>>,
    /// What to merge first; the plan is made again afterwards.
    pub merge: Option<MergeStep>,
}

/// Decides. Layers come in the order of their states, oldest first. A layer that is on no line goes when it is older than
/// what every line keeps.
#[must_use]
pub fn plan(layers: &[Held], lines: &[HistoryLine], policy: &Policy, now: Timestamp) -> ExpirePlan {
    let promises = promises(layers, lines, policy);
    let days = policy
        .keep_days
        .map(|days| within_days(layers, lines, days, now));
    let full = policy.keep_full.map(|_| since_full(layers, &promises));
    let unlimited = days.is_none() && full.is_none();
    let newest = newest(layers, &promises);
    let wanted = |at: usize| {
        let by = |rule: &Option<Vec<bool>>| rule.as_ref().is_some_and(|rule| rule[at]);
        match layers[at].replaced {
            _ if newest.contains(&at) => Some(Why::Newest),
            false if by(&full) => Some(Why::KeepFull),
            false if by(&days) => Some(Why::KeepDays),
            false if unlimited && !layers[at].merged => Some(Why::NoRule),
            _ => layers[at].in_use.then_some(Why::InUse),
        }
    };
    let mut keep: Vec<Option<Why>> = (0..layers.len()).map(wanted).collect();
    for at in 0..layers.len() {
        if keep[at].is_none_or(|why| why == Why::StoodUpon) {
            continue;
        }
        let mut below = layers[at].parent;
        // What is kept has what it stands on kept, now or in its turn.
        while let Some(parent) = below.filter(|parent| keep[*parent].is_none()) {
            keep[parent] = Some(Why::StoodUpon);
            below = layers[parent].parent;
        }
    }
    let merge = policy.max_chain.and_then(|limit| {
        let mut newest = newest.iter().rev();
        newest.find_map(|newest| {
            let chain = chain_of(layers, *newest)?;
            let mut needed: BTreeSet<usize> = promises
                .iter()
                .flat_map(|promise| promise.needs(&chain))
                .collect();
            if let Some(days) = &days {
                needed.extend(chain.iter().filter(|at| days[**at]));
            }
            merge_step(&chain, limit, &needed)
        })
    });
    ExpirePlan { keep, merge }
}

/// What one line is kept for.
struct Promise<'a> {
    line: &'a HistoryLine,
    /// The newest layer that can be restored.
    newest: Option<usize>,
    /// Everything since this one, by [`Policy::keep_full`].
    since: Option<usize>,
}

impl Promise<'_> {
    /// From which layer of `chain` the line goes on, if the rules want one.
    fn needs(&self, chain: &[usize]) -> impl Iterator<Item = usize> {
        let on_line = chain.iter().copied().find(|at| self.line.holds(*at));
        let wanted = on_line.filter(|at| self.since.is_some_and(|since| *at >= since));
        self.newest.into_iter().chain(wanted)
    }
}

fn promises<'a>(layers: &[Held], lines: &'a [HistoryLine], policy: &Policy) -> Vec<Promise<'a>> {
    let usable = |at: &usize| !layers[*at].replaced && !layers[*at].broken;
    let full = |at: &usize| usable(at) && layers[*at].label.kind() == LayerKind::Full;
    let promise = |line: &'a HistoryLine| Promise {
        line,
        newest: line.layers.iter().copied().rfind(usable),
        since: policy.keep_full.map(|count| {
            let mut full = line.layers.iter().copied().rev().filter(full);
            full.nth(count.max(1) - 1).unwrap_or(0)
        }),
    };
    lines.iter().map(promise).collect()
}

/// The newest layer of each line; when no line has one, the newest of all.
fn newest(layers: &[Held], promises: &[Promise<'_>]) -> BTreeSet<usize> {
    let newest: BTreeSet<usize> = promises.iter().filter_map(|line| line.newest).collect();
    if !newest.is_empty() {
        return newest;
    }
    let usable = |layer: &Held| !layer.replaced && !layer.broken;
    layers.iter().rposition(usable).into_iter().collect()
}

/// From the oldest of the newest full layers of a line on; what is on none, as long as any line has something older.
fn since_full(layers: &[Held], promises: &[Promise<'_>]) -> Vec<bool> {
    let mut on_a_line = vec![false; layers.len()];
    let mut wanted = vec![false; layers.len()];
    let mut oldest = layers.len();
    for promise in promises {
        let since = promise.since.unwrap_or(0);
        oldest = oldest.min(since);
        for at in &promise.line.layers {
            on_a_line[*at] = true;
            wanted[*at] |= *at >= since;
        }
    }
    for at in oldest..layers.len() {
        wanted[at] |= !on_a_line[at];
    }
    wanted
}

/// What was finished in the last days, and of each line the layer before, from which the first of these moments is
/// reached.
fn within_days(layers: &[Held], lines: &[HistoryLine], days: u32, now: Timestamp) -> Vec<bool> {
    let span = SignedDuration::from_hours(i64::from(days) * 24);
    let cut = now.checked_sub(span).unwrap_or(Timestamp::MIN);
    let mut wanted: Vec<bool> = layers
        .iter()
        .map(|layer| layer.finished_at >= cut)
        .collect();
    for line in lines {
        let before = line.layers.iter().filter(|at| {
            let layer = &layers[**at];
            layer.finished_at < cut && !layer.replaced && !layer.broken
        });
        if let Some(at) = before.max_by_key(|at| layers[**at].finished_at) {
            wanted[*at] = true;
        }
    }
    wanted
}

/// The layer at `newest` and all it stands on; nothing when it stands on itself.
fn chain_of(layers: &[Held], newest: usize) -> Option<Vec<usize>> {
    let mut chain = vec![newest];
    while let Some(parent) = layers[*chain.last()?].parent {
        if chain.len() == layers.len() {
            return None;
        }
        chain.push(parent);
    }
    Some(chain)
}

/// How the chain becomes shorter while the states that are `needed` live on.
fn merge_step(chain: &[usize], limit: usize, needed: &BTreeSet<usize>) -> Option<MergeStep> {
    // The state of the layer at `first` lives on in the merged one; those of the older ones are gone.
    let last = chain.iter().rposition(|at| needed.contains(at));
    let last = last.unwrap_or(0);
    let first = last.max(limit.max(1) - 1);
    (first + 1 < chain.len()).then(|| MergeStep {
        newest: chain[first],
        oldest: chain[chain.len() - 1],
        length: (chain.len(), first + 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer per day: `F` starts a chain, others stand on the one before.
    fn days(kinds: &str) -> Vec<Held> {
        let mut layers: Vec<Held> = Vec::new();
        for (day, kind) in kinds.chars().enumerate() {
            let at = jiff::civil::date(2026, 11, 1).at(3, 0, 0, 0)
                + SignedDuration::from_hours(24 * i64::try_from(day).unwrap_or_default());
            let label = match layers.last() {
                Some(last) if kind != 'F' => last.label.successor(LayerKind::Incremental, at),
                _ => Label::full(at),
            };
            layers.push(Held {
                label,
                parent: (kind != 'F').then(|| day - 1),
                finished_at: at
                    .to_zoned(jiff::tz::TimeZone::UTC)
                    .map(|zoned| zoned.timestamp())
                    .unwrap_or_default(),
                replaced: false,
                merged: false,
                in_use: false,
                broken: false,
            });
        }
        layers
    }

    /// The plan when the history has no branches.
    fn alone(layers: &[Held], policy: &Policy, now: Timestamp) -> ExpirePlan {
        plan(layers, &[HistoryLine::only(layers)], policy, now)
    }

    fn now() -> Timestamp {
        "2026-11-10T12:00:00Z".parse().unwrap_or_default()
    }

    fn kept(plan: &ExpirePlan) -> String {
        let sign = |why: &Option<Why>| match why {
            None => '-',
            Some(Why::StoodUpon) => 's',
            Some(_) => 'k',
        };
        plan.keep.iter().map(sign).collect()
    }

    fn policy(full: usize, days: u32, chain: usize) -> Policy {
        Policy {
            keep_full: (full > 0).then_some(full),
            keep_days: (days > 0).then_some(days),
            max_chain: (chain > 0).then_some(chain),
        }
    }

    #[test]
    fn full_layers_are_kept_with_all_that_stands_on_them() {
        let layers = days("FiiFiiFiii");
        assert_eq!(kept(&alone(&layers, &policy(1, 0, 0), now())), "------kkkk");
        assert_eq!(kept(&alone(&layers, &policy(2, 0, 0), now())), "---kkkkkkk");
        assert_eq!(kept(&alone(&layers, &policy(9, 0, 0), now())), "kkkkkkkkkk");
    }

    #[test]
    fn days_keep_the_layer_before_them_and_what_it_stands_on() {
        let layers = days("FiiFiiFiii");
        // Since November 8th, 12:00: those of the 9th and 10th, and that of the 8th at 3:00.
        assert_eq!(kept(&alone(&layers, &policy(0, 2, 0), now())), "------skkk");
        assert_eq!(kept(&alone(&layers, &policy(0, 4, 0), now())), "---sskkkkk");
        assert_eq!(kept(&alone(&layers, &policy(1, 4, 0), now())), "---sskkkkk");
    }

    #[test]
    fn the_newest_layer_always_stays() {
        let layers = days("Fii");
        let later: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap_or_default();
        assert_eq!(kept(&alone(&layers, &policy(0, 1, 0), later)), "ssk");
        assert_eq!(kept(&alone(&[], &policy(1, 1, 1), later)), "");
    }

    #[test]
    fn a_layer_whose_state_a_merged_one_has_is_not_wanted() {
        let mut layers = days("Fiii");
        // The merged layer beside the second: the third stands on it.
        let mut merged = layers[1].clone();
        layers[1].replaced = true;
        merged.parent = None;
        layers.insert(2, merged);
        layers[3].parent = Some(2);
        layers[4].parent = Some(3);
        assert_eq!(kept(&alone(&layers, &policy(0, 30, 0), now())), "k-kkk");
        assert_eq!(kept(&alone(&layers, &policy(0, 0, 9), now())), "k-kkk");
    }

    /// An interrupted merge of the first three layers: the newest input is gone, the others are still there.
    #[test]
    fn what_a_merge_was_to_remove_is_not_wanted_by_a_chain_limit() {
        let mut layers = days("Fiii");
        for input in &mut layers[..2] {
            input.merged = true;
        }
        layers[2].label = Label::full(jiff::civil::date(2026, 11, 5).at(3, 0, 0, 0));
        layers[2].parent = None;
        assert_eq!(kept(&alone(&layers, &policy(0, 0, 9), now())), "--kk");
        assert_eq!(kept(&alone(&layers, &policy(1, 0, 0), now())), "--kk");
        // Two full layers are two full layers; and days want states, which can still be restored.
        assert_eq!(kept(&alone(&layers, &policy(2, 0, 0), now())), "kkkk");
        assert_eq!(kept(&alone(&layers, &policy(0, 30, 0), now())), "kkkk");
    }

    /// Merged by hand, and the inputs were to stay.
    #[test]
    fn a_merge_does_not_make_a_full_layer_less_worth() {
        let mut layers = days("FiFi");
        let mut merged = layers[1].clone();
        merged.parent = None;
        merged.label = Label::full(jiff::civil::date(2026, 11, 6).at(3, 0, 0, 0));
        (layers[0].merged, layers[1].merged, layers[1].replaced) = (true, true, true);
        layers.insert(2, merged);
        layers[4].parent = Some(3);
        let kept = |count| kept(&alone(&layers, &policy(count, 0, 0), now()));
        assert_eq!(kept(5), "k-kkk");
        assert_eq!(kept(3), "k-kkk");
        assert_eq!(kept(2), "--kkk");
        assert_eq!(kept(1), "---kk");
    }

    #[test]
    fn a_layer_that_cannot_be_restored_stands_in_for_none() {
        let mut layers = days("FiiFii");
        for broken in &mut layers[3..] {
            broken.broken = true;
        }
        let plan = |policy| alone(&layers, &policy, now());
        assert_eq!(kept(&plan(policy(1, 0, 0))), "kkkkkk");
        assert_eq!(plan(policy(1, 0, 0)).keep[2], Some(Why::Newest));
        // Of the days before, the newest that can be restored.
        assert_eq!(kept(&plan(policy(0, 6, 0))), "sskskk");
    }

    #[test]
    fn a_layer_that_a_restore_reads_stays_and_keeps_no_other_from_being_the_newest() {
        let mut layers = days("FiiFii");
        layers[1].in_use = true;
        assert_eq!(kept(&alone(&layers, &policy(1, 0, 0), now())), "sk-kkk");
        // Its state lives on elsewhere, but the restore reads this one.
        layers[1].replaced = true;
        let plan = alone(&layers, &policy(1, 0, 0), now());
        assert_eq!(plan.keep[1], Some(Why::InUse));
        assert_eq!(plan.keep[5], Some(Why::Newest));
    }

    #[test]
    fn a_long_chain_is_merged_but_not_what_days_want() {
        let layers = days("Fiiiiiiiii");
        let step = |policy| alone(&layers, &policy, now()).merge;
        let expected = |newest, length| {
            Some(MergeStep {
                newest,
                oldest: 0,
                length: (10, length),
            })
        };
        assert_eq!(step(policy(0, 0, 10)), None);
        assert_eq!(step(policy(0, 0, 4)), expected(6, 4));
        assert_eq!(step(policy(0, 0, 1)), expected(9, 1));
        // The last four days need the layers from the sixth on.
        assert_eq!(step(policy(0, 4, 2)), expected(5, 5));
        assert_eq!(step(policy(0, 90, 2)), None);
        assert_eq!(step(policy(1, 0, 4)), expected(6, 4));
    }

    /// Where `+` stands.
    fn line(on: &str) -> HistoryLine {
        let on = on.chars().enumerate().filter(|(_, sign)| *sign == '+');
        HistoryLine {
            layers: on.map(|(at, _)| at).collect(),
        }
    }

    #[test]
    fn full_layers_of_a_copy_do_not_push_out_those_of_its_source() {
        // After the third day a copy is backed up, then its source goes on.
        let layers = days("FiiFFiFi");
        let lines = [line("+++---++"), line("++++++--")];
        let sign =
            |full, lines: &[HistoryLine]| kept(&plan(&layers, lines, &policy(full, 0, 0), now()));
        assert_eq!(sign(1, &lines), "----kkkk");
        // The source has two full layers, the first and the seventh.
        assert_eq!(sign(2, &lines), "kkkkkkkk");
        assert_eq!(sign(2, &[HistoryLine::only(&layers)]), "----kkkk");
        // The source has one, and makes increments alone.
        let layers = days("FiFFF");
        let plan = plan(
            &layers,
            &[line("++---"), line("+-+++")],
            &policy(1, 0, 0),
            now(),
        );
        assert_eq!(kept(&plan), "kk--k");
    }

    #[test]
    fn the_newest_layer_of_each_line_stays() {
        let layers = days("FFFF");
        let lines = [line("+---"), line("++++")];
        let plan = plan(&layers, &lines, &policy(1, 0, 0), now());
        assert_eq!(kept(&plan), "k--k");
        assert_eq!(plan.keep[0], Some(Why::Newest));
    }

    #[test]
    fn days_keep_the_layer_before_them_on_each_line() {
        let layers = days("FFFFFFFFFF");
        let lines = [line("+++-------"), line("++-+++++++")];
        assert_eq!(
            kept(&plan(&layers, &lines, &policy(0, 2, 0), now())),
            "--k----kkk"
        );
    }

    #[test]
    fn a_branch_that_was_given_up_goes_when_it_is_older_than_what_is_kept() {
        let layers = days("FiFFiF");
        let lines = [line("++-+-+")];
        let kept = |count| kept(&plan(&layers, &lines, &policy(count, 0, 0), now()));
        assert_eq!(kept(1), "-----k");
        assert_eq!(kept(2), "---kkk");
        assert_eq!(kept(3), "kkkkkk");
    }

    #[test]
    fn a_chain_is_not_merged_past_where_another_line_leaves_it() {
        let layers = days("Fiiiiiiiii");
        let here = line("++++++++++");
        let step = |there: &str, policy| {
            let lines = [here.clone(), line(there)];
            let step = plan(&layers, &lines, &policy, now()).merge;
            step.map(|step| (step.newest, step.length.1))
        };
        assert_eq!(step("++--------", policy(0, 0, 2)), Some((1, 9)));
        assert_eq!(step("++--------", policy(1, 0, 2)), Some((1, 9)));
        assert_eq!(step("++++++----", policy(0, 4, 2)), Some((5, 5)));
        assert_eq!(step("----------", policy(0, 0, 2)), Some((8, 2)));
    }
}
