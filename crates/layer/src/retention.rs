//! Retention: which layers may go, and which are merged so that a chain does not grow for ever.
//!
//! A layer goes only when no kept layer stands on it. Planning touches nothing; a crash while deleting leaves orphans,
//! never a broken chain.

use jiff::{SignedDuration, Timestamp};

use crate::label::{Label, LayerKind};

/// What is kept. A layer that any rule wants stays, with all it stands on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// That many full layers, the newest that can be restored, and everything since the oldest of them; everything when
    /// there are fewer.
    pub keep_full: Option<usize>,
    /// What it takes to restore to any moment of the last days.
    pub keep_days: Option<u32>,
    /// Layers that the chain of the newest layer may have. The oldest are merged; what [`Policy::keep_days`] wants is
    /// not merged away.
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

/// Why a layer stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The newest layer always stays.
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

/// Decides. Layers come in the order of their states, oldest first.
#[must_use]
pub fn plan(layers: &[Held], policy: &Policy, now: Timestamp) -> ExpirePlan {
    let days = policy.keep_days.map(|days| within_days(layers, days, now));
    let full = policy.keep_full.map(|count| since_full(layers, count));
    let unlimited = days.is_none() && full.is_none();
    let newest = layers
        .iter()
        .rposition(|layer| !layer.replaced && !layer.broken);
    let wanted = |at: usize| {
        let by = |rule: &Option<Vec<bool>>| rule.as_ref().is_some_and(|rule| rule[at]);
        match layers[at].replaced {
            _ if Some(at) == newest => Some(Why::Newest),
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
        // Bounded by the number of layers, should they stand in a circle.
        for _ in 0..layers.len() {
            let Some(parent) = below else { break };
            keep[parent].get_or_insert(Why::StoodUpon);
            below = layers[parent].parent;
        }
    }
    let merge = policy
        .max_chain
        .zip(newest)
        .and_then(|(limit, newest)| merge_step(layers, newest, limit, days.as_deref()));
    ExpirePlan { keep, merge }
}

/// From the oldest of the newest `count` full layers on.
fn since_full(layers: &[Held], count: usize) -> Vec<bool> {
    let full = |(_, layer): &(usize, &Held)| {
        layer.label.kind() == LayerKind::Full && !layer.replaced && !layer.broken
    };
    let positions = layers.iter().enumerate().filter(full).map(|(at, _)| at);
    let first = positions.rev().nth(count.max(1) - 1).unwrap_or(0);
    (0..layers.len()).map(|at| at >= first).collect()
}

/// What was finished in the last days, and the layer before, from which the first of these moments is reached.
fn within_days(layers: &[Held], days: u32, now: Timestamp) -> Vec<bool> {
    let span = SignedDuration::from_hours(i64::from(days) * 24);
    let cut = now.checked_sub(span).unwrap_or(Timestamp::MIN);
    let before = layers
        .iter()
        .enumerate()
        .filter(|(_, layer)| layer.finished_at < cut && !layer.replaced && !layer.broken)
        .max_by_key(|(_, layer)| layer.finished_at)
        .map(|(at, _)| at);
    let wanted = |(at, layer): (usize, &Held)| layer.finished_at >= cut || Some(at) == before;
    layers.iter().enumerate().map(wanted).collect()
}

fn merge_step(
    layers: &[Held],
    newest: usize,
    limit: usize,
    wanted: Option<&[bool]>,
) -> Option<MergeStep> {
    let mut chain = vec![newest];
    while let Some(parent) = layers[*chain.last()?].parent {
        if chain.contains(&parent) {
            return None;
        }
        chain.push(parent);
    }
    // The state of the layer at `first` lives on in the merged one; those of the older ones are gone.
    let mut first = limit.max(1) - 1;
    let still = |at: &usize| wanted.is_some_and(|wanted| wanted[*at]);
    while chain.get(first + 1..)?.iter().any(still) {
        first += 1;
    }
    let oldest = *chain.last()?;
    (first + 1 < chain.len()).then(|| MergeStep {
        newest: chain[first],
        oldest,
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
        assert_eq!(kept(&plan(&layers, &policy(1, 0, 0), now())), "------kkkk");
        assert_eq!(kept(&plan(&layers, &policy(2, 0, 0), now())), "---kkkkkkk");
        assert_eq!(kept(&plan(&layers, &policy(9, 0, 0), now())), "kkkkkkkkkk");
    }

    #[test]
    fn days_keep_the_layer_before_them_and_what_it_stands_on() {
        let layers = days("FiiFiiFiii");
        // Since November 8th, 12:00: those of the 9th and 10th, and that of the 8th at 3:00.
        assert_eq!(kept(&plan(&layers, &policy(0, 2, 0), now())), "------skkk");
        assert_eq!(kept(&plan(&layers, &policy(0, 4, 0), now())), "---sskkkkk");
        assert_eq!(kept(&plan(&layers, &policy(1, 4, 0), now())), "---sskkkkk");
    }

    #[test]
    fn the_newest_layer_always_stays() {
        let layers = days("Fii");
        let later: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap_or_default();
        assert_eq!(kept(&plan(&layers, &policy(0, 1, 0), later)), "ssk");
        assert_eq!(kept(&plan(&[], &policy(1, 1, 1), later)), "");
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
        assert_eq!(kept(&plan(&layers, &policy(0, 30, 0), now())), "k-kkk");
        assert_eq!(kept(&plan(&layers, &policy(0, 0, 9), now())), "k-kkk");
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
        assert_eq!(kept(&plan(&layers, &policy(0, 0, 9), now())), "--kk");
        assert_eq!(kept(&plan(&layers, &policy(1, 0, 0), now())), "--kk");
        // Two full layers are two full layers; and days want states, which can still be restored.
        assert_eq!(kept(&plan(&layers, &policy(2, 0, 0), now())), "kkkk");
        assert_eq!(kept(&plan(&layers, &policy(0, 30, 0), now())), "kkkk");
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
        let kept = |count| kept(&plan(&layers, &policy(count, 0, 0), now()));
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
        let plan = |policy| plan(&layers, &policy, now());
        assert_eq!(kept(&plan(policy(1, 0, 0))), "kkkkkk");
        assert_eq!(plan(policy(1, 0, 0)).keep[2], Some(Why::Newest));
        // Of the days before, the newest that can be restored.
        assert_eq!(kept(&plan(policy(0, 6, 0))), "sskskk");
    }

    #[test]
    fn a_layer_that_a_restore_reads_stays_and_keeps_no_other_from_being_the_newest() {
        let mut layers = days("FiiFii");
        layers[1].in_use = true;
        assert_eq!(kept(&plan(&layers, &policy(1, 0, 0), now())), "sk-kkk");
        // Its state lives on elsewhere, but the restore reads this one.
        layers[1].replaced = true;
        let plan = plan(&layers, &policy(1, 0, 0), now());
        assert_eq!(plan.keep[1], Some(Why::InUse));
        assert_eq!(plan.keep[5], Some(Why::Newest));
    }

    #[test]
    fn a_long_chain_is_merged_but_not_what_days_want() {
        let layers = days("Fiiiiiiiii");
        let step = |policy| plan(&layers, &policy, now()).merge;
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
}
