//! Retention: which layers may go, which WAL with them, and which layers are merged so that a chain does not grow for ever.
//!
//! A layer goes only when no kept layer stands on it. Planning touches nothing; a crash while deleting leaves orphans,
//! never a broken chain.
//!
//! Rules are promises to each server that may go on. When the history branches, each line of it is kept as if it was
//! alone: backups of a copy push no backup of its source out.
//!
//! A rule wants states. Which of them can be left along the WAL is a second question: [`Policy::keep_wal`] limits it, and
//! a pin never asks for more than the pinned state.

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::label::{Label, LayerKind};

/// What is kept. A layer that any rule wants stays, with all it stands on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// That many full layers of each line, the newest that can be restored, and everything since the oldest of them;
    /// everything when there are fewer.
    pub keep_full: Option<usize>,
    /// What it takes to restore to any moment of that time before now, on each line.
    pub keep_within: Option<SignedDuration>,
    /// The last layer of each of so many days, weeks, months and years, on each line.
    pub keep_last_of: LastOf,
    /// How long the WAL between layers is kept. Of older layers only the WAL that makes them consistent stays. Without a
    /// limit it stays from the first layer on that a rule wants.
    pub keep_wal: Option<SignedDuration>,
    /// Layers that the chain of the newest layer may have. The oldest are merged; what a rule about time wants is not
    /// merged away, nor a pinned layer, nor what another line needs.
    pub max_chain: Option<usize>,
}

impl Policy {
    /// Whether no rule says which layers are kept: then all of them are.
    #[must_use]
    pub fn keeps_every_layer(&self) -> bool {
        let of_layers = Self {
            keep_wal: None,
            max_chain: None,
            ..*self
        };
        of_layers == Self::default()
    }
}

/// For each kind of period of how many the last layer is kept. Periods without a layer do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastOf {
    /// Days.
    pub daily: Option<usize>,
    /// Weeks, which begin on Monday.
    pub weekly: Option<usize>,
    /// Months.
    pub monthly: Option<usize>,
    /// Years.
    pub yearly: Option<usize>,
}

impl LastOf {
    fn rules(self) -> [(Why, Option<usize>); 4] {
        [
            (Why::KeepDaily, self.daily),
            (Why::KeepWeekly, self.weekly),
            (Why::KeepMonthly, self.monthly),
            (Why::KeepYearly, self.yearly),
        ]
    }
}

/// A layer as retention sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its label.
    pub label: Label,
    /// What it stands on, as a position in the list.
    pub parent: Option<usize>,
    /// When its backup was finished, as far as clocks can be believed.
    pub finished_at: Timestamp,
    /// Whether a merged layer has its state, so that nobody needs this one.
    pub replaced: bool,
    /// Whether a merged layer was made out of it: it was to go, but for the rules that want its state.
    pub merged: bool,
    /// Whether a restore may be reading it.
    pub in_use: bool,
    /// Whether it is known that it cannot be restored: it stands in for no layer that can.
    pub broken: bool,
    /// What holds it whatever the rules say.
    pub hold: Option<Hold>,
    /// Whether the WAL behind its end stays as long as it does itself, whatever the rules say: they would keep that WAL if a
    /// layer in doubt was whole.
    pub goes_on: bool,
}

/// What holds a layer whatever the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// Somebody has pinned it.
    Pin,
    /// The store has locked it.
    Lock,
    /// It was merged, and cannot be compared with the merged layer now.
    Uncompared,
    /// It was found damaged, would stay if it was whole, and may be whole again.
    Doubt,
    /// It may be of another server than layers before it that stay, and without it no restore from them would ask.
    Witness,
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
    /// Something holds it.
    Held(Hold),
    /// Among the newest full layers, or made since.
    KeepFull,
    /// Restores to a moment of the time that is kept.
    KeepWithin,
    /// The last of a day.
    KeepDaily,
    /// The last of a week.
    KeepWeekly,
    /// The last of a month.
    KeepMonthly,
    /// The last of a year.
    KeepYearly,
    /// No rule says which layers are kept.
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
            Self::Held(Hold::Pin) => "pinned",
            Self::Held(Hold::Lock) => "locked",
            Self::Held(Hold::Uncompared) => "not compared with the merged layer",
            Self::Held(Hold::Doubt) => "found damaged",
            Self::Held(Hold::Witness) => "may be of another server",
            Self::KeepFull => "--keep-full",
            Self::KeepWithin => "--keep-within",
            Self::KeepDaily => "--keep-daily",
            Self::KeepWeekly => "--keep-weekly",
            Self::KeepMonthly => "--keep-monthly",
            Self::KeepYearly => "--keep-yearly",
            Self::NoRule => "no rule against it",
            Self::StoodUpon => "stood upon",
            Self::InUse => "a restore may need it",
        }
    }

    /// The period of a time in UTC, the same for all times of it.
    fn period(self, time: Timestamp) -> (i16, i16) {
        let date = time.to_zoned(TimeZone::UTC).date();
        match self {
            Self::KeepDaily => (date.year(), date.day_of_year()),
            Self::KeepWeekly => {
                let week = date.iso_week_date();
                (week.year(), i16::from(week.week()))
            }
            Self::KeepMonthly => (date.year(), i16::from(date.month())),
            _ => (date.year(), 0),
        }
    }
}

/// The oldest layers of the newest layer's chain, to become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeStep {
    /// The newest of them.
    pub newest: usize,
    /// The oldest of them: the full layer, or the one that stands on a layer that is held.
    pub oldest: usize,
    /// How long the chain is, and will be.
    pub length: (usize, usize),
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpirePlan {
    /// For each layer why it stays, every rule that wants it; nothing when it goes.
    pub keep: Vec<Vec<Why>>,
    /// For each layer whether recovery from it goes on behind its end, so that the WAL from its start on is kept. Of others
    /// that stay only the WAL from their start to their end is.
    pub goes_on: Vec<bool>,
    /// What to merge first; the plan is made again afterwards.
    pub merge: Option<MergeStep>,
}

/// Decides. Layers come in the order of their states, oldest first. A layer that is on no line goes when it is older than
/// what every line keeps by [`Policy::keep_full`] and [`Policy::keep_within`].
#[must_use]
pub fn plan(layers: &[Held], lines: &[HistoryLine], policy: &Policy, now: Timestamp) -> ExpirePlan {
    let promises = promises(layers, lines, policy);
    let rules = rules(layers, lines, policy, &promises, now);
    let newest = newest(layers, &promises);
    let mut keep: Vec<Vec<Why>> = (0..layers.len())
        .map(|at| reasons(&layers[at], at, &newest, &rules, policy))
        .collect();
    let mut ruled: Vec<Vec<Why>> = keep.clone();
    for why in &mut ruled {
        why.retain(|why| !matches!(why, Why::Held(_)));
    }
    keep_below(layers, &mut ruled);
    keep_below(layers, &mut keep);
    let ruled: Vec<bool> = ruled.iter().map(|why| !why.is_empty()).collect();
    let mut goes_on = match policy.keep_wal {
        None => ruled,
        Some(span) => since_cut(layers, lines, &ruled, before(now, span)),
    };
    for (at, goes_on) in goes_on.iter_mut().enumerate() {
        *goes_on |= layers[at].goes_on && !keep[at].is_empty();
    }
    let merge = policy.max_chain.and_then(|limit| {
        let mut newest = newest.iter().rev();
        newest.find_map(|newest| {
            let chain = chain_of(layers, *newest)?;
            let mut needed: BTreeSet<usize> = promises
                .iter()
                .flat_map(|promise| promise.needs(&chain))
                .collect();
            let timed = rules.iter().filter(|(why, _)| *why != Why::KeepFull);
            for (_, wanted) in timed {
                needed.extend(chain.iter().filter(|at| wanted[**at]));
            }
            merge_step(layers, &chain, limit, &needed)
        })
    });
    ExpirePlan {
        keep,
        goes_on,
        merge,
    }
}

/// What each rule of the policy wants.
fn rules(
    layers: &[Held],
    lines: &[HistoryLine],
    policy: &Policy,
    promises: &[Promise<'_>],
    now: Timestamp,
) -> Vec<(Why, Vec<bool>)> {
    let full = policy
        .keep_full
        .map(|_| (Why::KeepFull, since_full(layers, promises)));
    let within = policy.keep_within.map(|span| {
        let wanted = within(layers, lines, before(now, span));
        (Why::KeepWithin, wanted)
    });
    let last_of = policy.keep_last_of.rules().into_iter();
    let last_of = last_of.filter_map(|(why, count)| {
        let wanted = last_of_periods(layers, lines, (why, count?), now);
        Some((why, wanted))
    });
    full.into_iter().chain(within).chain(last_of).collect()
}

/// Why a layer stays by itself.
fn reasons(
    layer: &Held,
    at: usize,
    newest: &BTreeSet<usize>,
    rules: &[(Why, Vec<bool>)],
    policy: &Policy,
) -> Vec<Why> {
    let mut why = Vec::new();
    if newest.contains(&at) {
        why.push(Why::Newest);
    }
    why.extend(layer.hold.map(Why::Held));
    if !layer.replaced {
        let wanting = rules.iter().filter(|(_, wanted)| wanted[at]);
        why.extend(wanting.map(|(why, _)| *why));
        if policy.keeps_every_layer() && !layer.merged && !newest.contains(&at) {
            why.push(Why::NoRule);
        }
    }
    let is_held_alone = matches!(why[..], [Why::Held(_)]);
    if layer.in_use && (why.is_empty() || is_held_alone) {
        why.push(Why::InUse);
    }
    why
}

/// What is kept has what it stands on kept.
fn keep_below(layers: &[Held], keep: &mut [Vec<Why>]) {
    for at in 0..layers.len() {
        if keep[at].is_empty() || keep[at] == [Why::StoodUpon] {
            continue;
        }
        let mut below = layers[at].parent;
        // What is kept for itself has its own turn.
        while let Some(parent) = below.filter(|parent| keep[*parent].is_empty()) {
            keep[parent].push(Why::StoodUpon);
            below = layers[parent].parent;
        }
    }
}

fn before(now: Timestamp, span: SignedDuration) -> Timestamp {
    now.checked_sub(span).unwrap_or(Timestamp::MIN)
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

fn is_usable(layer: &Held) -> bool {
    !layer.replaced && !layer.broken
}

fn promises<'a>(layers: &[Held], lines: &'a [HistoryLine], policy: &Policy) -> Vec<Promise<'a>> {
    let usable = |at: &usize| is_usable(&layers[*at]);
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
    layers.iter().rposition(is_usable).into_iter().collect()
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

/// What was finished since `cut`, and of each line the layer before, from which the first of these moments is reached.
fn within(layers: &[Held], lines: &[HistoryLine], cut: Timestamp) -> Vec<bool> {
    let mut wanted: Vec<bool> = layers
        .iter()
        .map(|layer| layer.finished_at >= cut)
        .collect();
    for line in lines {
        let usable = line.layers.iter().filter(|at| is_usable(&layers[**at]));
        if let Some(at) = last_before(layers, usable, cut) {
            wanted[at] = true;
        }
    }
    wanted
}

/// Of these layers the last that was finished before `cut`.
fn last_before<'a>(
    layers: &[Held],
    among: impl Iterator<Item = &'a usize>,
    cut: Timestamp,
) -> Option<usize> {
    let before = among.filter(|at| layers[**at].finished_at < cut);
    before.max_by_key(|at| layers[**at].finished_at).copied()
}

/// Of each line the last layer of each of its last `count` periods that have one. A layer whose time is still to come, by a
/// clock that was wrong, is the last of none: it would push out another for as long as that clock was ahead. It stays until then.
fn last_of_periods(
    layers: &[Held],
    lines: &[HistoryLine],
    (kind, count): (Why, usize),
    now: Timestamp,
) -> Vec<bool> {
    let mut wanted = vec![false; layers.len()];
    for line in lines {
        let mut last: BTreeMap<(i16, i16), usize> = BTreeMap::new();
        for at in line.layers.iter().filter(|at| is_usable(&layers[**at])) {
            let finished_at = layers[*at].finished_at;
            if finished_at > now {
                wanted[*at] = count > 0;
                continue;
            }
            let of_period = last.entry(kind.period(finished_at)).or_insert(*at);
            if layers[*of_period].finished_at <= finished_at {
                *of_period = *at;
            }
        }
        for at in last.values().rev().take(count) {
            wanted[*at] = true;
        }
    }
    wanted
}

/// Which of the `ruled` layers recovery goes on from, when the WAL since `cut` is kept: those that were finished since, and
/// of each line the last before that, with all that follows it in the line's order. Clocks may have been set back, and
/// then that is more.
fn since_cut(layers: &[Held], lines: &[HistoryLine], ruled: &[bool], cut: Timestamp) -> Vec<bool> {
    let mut goes_on: Vec<bool> = layers
        .iter()
        .zip(ruled)
        .map(|(layer, ruled)| *ruled && layer.finished_at >= cut)
        .collect();
    for line in lines {
        let usable = |at: &&usize| ruled[**at] && is_usable(&layers[**at]);
        let Some(base) = last_before(layers, line.layers.iter().filter(usable), cut) else {
            continue;
        };
        for at in line.layers.iter().filter(|at| **at >= base && ruled[**at]) {
            goes_on[*at] = true;
        }
    }
    goes_on
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

/// How the chain becomes shorter while the states that are `needed` live on. A layer that is held stays what it is, and what
/// it stands on stays with it: only what lies above is merged.
fn merge_step(
    layers: &[Held],
    chain: &[usize],
    limit: usize,
    needed: &BTreeSet<usize>,
) -> Option<MergeStep> {
    let held = chain.iter().position(|at| layers[*at].hold.is_some());
    let (above, stays) = chain.split_at(held.unwrap_or(chain.len()));
    // The state of the layer at `first` lives on in the merged one; those of the older ones are gone.
    let last = above.iter().rposition(|at| needed.contains(at));
    let first = last.unwrap_or(0).max(limit.saturating_sub(stays.len() + 1));
    (first + 1 < above.len()).then(|| MergeStep {
        newest: above[first],
        oldest: above[above.len() - 1],
        length: (chain.len(), first + 1 + stays.len()),
    })
}

#[cfg(test)]
mod tests;
