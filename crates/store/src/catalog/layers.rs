//! The layers of a catalog, and which stands on which.
//!
//! What is asked of each layer (what it stands on, whether its chain is whole, who stands on it) is found out once for
//! all of them, so that ten thousand layers in one chain cost ten thousand steps and not their square.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Deref;

use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;

use super::Layer;

/// Finished layers, oldest first.
#[derive(Debug, Default)]
pub struct Layers {
    list: Vec<Layer>,
    by_label: HashMap<Label, usize>,
    /// The last layer that has the state of the one of that label.
    replacing: HashMap<String, usize>,
    /// Who names the key as parent may stand on any of these, and stands on the last.
    standing: HashMap<ParentRef, Vec<usize>>,
    /// Who names the key as parent.
    naming: HashMap<ParentRef, Vec<usize>>,
    below: Vec<StandsOn>,
    chains: Vec<ChainState>,
    /// Of each the nearest of its chain, itself included, that has lost what restores need.
    lost: Vec<Option<usize>>,
}

/// What a layer stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandsOn {
    /// It is full.
    Nothing,
    At(usize),
    Missing,
}

/// All that a layer stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainState {
    /// So many layers, the layer itself included.
    Whole(usize),
    /// What the layer there stands on is missing.
    Missing(usize),
    /// The layer there stands on itself.
    Circle(usize),
}

impl Layers {
    /// Layers in their order, of which nothing is known to be lost.
    pub(super) fn new(list: Vec<Layer>) -> Self {
        let lost = vec![false; list.len()];
        Self::with(list, &lost)
    }

    /// Layers in their order, and which of them have lost what restores need.
    fn with(list: Vec<Layer>, lost: &[bool]) -> Self {
        let mut by_label = HashMap::with_capacity(list.len());
        let mut replacing = HashMap::new();
        let mut standing: HashMap<ParentRef, Vec<usize>> = HashMap::with_capacity(list.len());
        let mut naming: HashMap<ParentRef, Vec<usize>> = HashMap::with_capacity(list.len());
        for (at, layer) in list.iter().enumerate() {
            by_label.entry(layer.label.clone()).or_insert(at);
            for name in names(layer) {
                let all = standing.entry(name).or_default();
                all.push(at);
                // The last is the one stood upon.
                all.sort_by_key(|at| !lost[*at]);
            }
            for replaced in &layer.manifest.replaces {
                replacing.insert(replaced.label.clone(), at);
            }
            if let Some(parent) = &layer.manifest.parent {
                naming.entry(parent.clone()).or_default().push(at);
            }
        }
        let below = list.iter().map(|layer| match &layer.manifest.parent {
            None => StandsOn::Nothing,
            Some(parent) => match standing.get(parent).and_then(|all| all.last()) {
                Some(at) => StandsOn::At(*at),
                None => StandsOn::Missing,
            },
        });
        let below: Vec<StandsOn> = below.collect();
        let mut made = Self {
            chains: chains(&below),
            below,
            list,
            by_label,
            replacing,
            standing,
            naming,
            lost: Vec::new(),
        };
        let numbers = 0..made.list.len();
        made.lost = numbers.map(|at| lost[at].then_some(at)).collect();
        let inherited = made.along_numbers(|at, below: Option<&Option<usize>>| {
            made.lost[at].or_else(|| below.copied().flatten())
        });
        for (own, inherited) in made.lost.iter_mut().zip(inherited) {
            *own = inherited.unwrap_or(*own);
        }
        made
    }

    /// Marks which layers have lost what restores need. Of those on which one may stand, one that is whole is better.
    pub(super) fn mark_lost(&mut self, is_lost: impl Fn(&Layer) -> bool) {
        let list = std::mem::take(&mut self.list);
        let lost: Vec<bool> = list.iter().map(is_lost).collect();
        *self = Self::with(list, &lost);
    }

    /// The nearest layer of the chain of the one there, itself included, that has lost what restores need.
    pub(super) fn lost_below(&self, at: usize) -> Option<&Layer> {
        self.list.get(self.lost[at]?)
    }

    /// Without those of which `keep` says no.
    pub(super) fn retain(&mut self, keep: impl Fn(&Layer) -> bool) {
        let mut list = std::mem::take(&mut self.list);
        list.retain(keep);
        *self = Self::new(list);
    }

    /// Where the layer of that label is.
    #[must_use]
    pub fn position(&self, label: &Label) -> Option<usize> {
        self.by_label.get(label).copied()
    }

    /// Whether it is there, with that manifest.
    #[must_use]
    pub fn holds(&self, layer: &ParentRef) -> bool {
        let found = self.standing.get(layer).into_iter().flatten();
        let mut found = found.map(|at| &self.list[*at]);
        found.any(|found| found.label.as_str() == layer.label)
    }

    /// The layer on which who names `parent` stands, if there is one.
    #[must_use]
    pub fn standing_for(&self, parent: &ParentRef) -> Option<&Layer> {
        let last = self.standing.get(parent)?.last()?;
        self.list.get(*last)
    }

    /// The last layer that replaces the one of that label.
    pub(super) fn replacing(&self, label: &Label) -> Option<&Layer> {
        self.list.get(*self.replacing.get(label.as_str())?)
    }

    /// What the layer there stands on, when that is there.
    #[must_use]
    pub fn below(&self, at: usize) -> Option<usize> {
        match self.below[at] {
            StandsOn::At(below) => Some(below),
            StandsOn::Nothing | StandsOn::Missing => None,
        }
    }

    /// Layers that name the one of that name as parent.
    pub fn children(&self, name: &ParentRef) -> impl Iterator<Item = &Layer> {
        let children = self.naming.get(name).into_iter().flatten();
        children.map(|at| &self.list[*at])
    }

    pub(super) fn chain(&self, at: usize) -> ChainState {
        self.chains[at]
    }

    /// For each layer what `of` makes of it, and of what it has made of the one below. Nothing where a chain is broken.
    pub fn along_chains<T>(&self, of: impl Fn(&Layer, Option<&T>) -> T) -> Vec<Option<T>> {
        self.along_numbers(|at, below| of(&self.list[at], below))
    }

    fn along_numbers<T>(&self, of: impl Fn(usize, Option<&T>) -> T) -> Vec<Option<T>> {
        let lengths = self.chains.iter().enumerate();
        let lengths = lengths.filter_map(|(at, chain)| match chain {
            ChainState::Whole(length) => Some((*length, at)),
            ChainState::Missing(_) | ChainState::Circle(_) => None,
        });
        let mut order: Vec<(usize, usize)> = lengths.collect();
        order.sort_unstable();
        let mut made: Vec<Option<T>> = self.list.iter().map(|_| None).collect();
        for (_, at) in order {
            let below = self.below(at).and_then(|below| made[below].as_ref());
            made[at] = Some(of(at, below));
        }
        made
    }

    /// Those of `unwanted`, newest first, that can be removed in this order while every other layer keeps a parent, and
    /// nobody can stand on one of `leaving` instead.
    pub(super) fn removable(
        &self,
        unwanted: &[Label],
        leaving: &BTreeSet<ParentRef>,
    ) -> Vec<Label> {
        let unwanted: HashSet<&Label> = unwanted.iter().collect();
        let stays: Vec<bool> = self
            .list
            .iter()
            .map(|layer| !leaving.contains(&layer.reference()))
            .collect();
        let mut gone = vec![false; self.list.len()];
        let mut removable = Vec::new();
        for (at, layer) in self.list.iter().enumerate().rev() {
            if !unwanted.contains(&layer.label) {
                continue;
            }
            let left = |other: &&usize| **other != at && !gone[**other];
            let needed = names(layer).any(|name| {
                let mut children = self.naming.get(&name).into_iter().flatten().filter(left);
                let mut others = self.standing.get(&name).into_iter().flatten().filter(left);
                children.next().is_some() && !others.any(|other| stays[*other])
            });
            if !needed {
                gone[at] = true;
                removable.push(layer.label.clone());
            }
        }
        removable
    }
}

/// By which names others stand on a layer.
fn names(layer: &Layer) -> impl Iterator<Item = ParentRef> {
    std::iter::once(layer.reference()).chain(layer.manifest.replaces.iter().cloned())
}

/// Follows each layer down until one is reached of which it is known.
fn chains(below: &[StandsOn]) -> Vec<ChainState> {
    let mut known: Vec<Option<ChainState>> = vec![None; below.len()];
    for start in 0..below.len() {
        let (mut path, mut at) = (Vec::new(), start);
        let mut chain = loop {
            if let Some(chain) = known[at] {
                break chain;
            }
            // Who comes here again before it is known better has gone in a circle.
            known[at] = Some(ChainState::Circle(at));
            path.push(at);
            match below[at] {
                StandsOn::Nothing => break ChainState::Whole(0),
                StandsOn::Missing => break ChainState::Missing(at),
                StandsOn::At(next) => at = next,
            }
        };
        for at in path.into_iter().rev() {
            if let ChainState::Whole(length) = &mut chain {
                *length += 1;
            }
            known[at] = Some(chain);
        }
    }
    let known = known.into_iter();
    known
        .map(|chain| chain.expect("every layer was a start"))
        .collect()
}

impl Deref for Layers {
    type Target = [Layer];

    fn deref(&self) -> &[Layer] {
        &self.list
    }
}

impl IntoIterator for Layers {
    type Item = Layer;
    type IntoIter = std::vec::IntoIter<Layer>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl<'a> IntoIterator for &'a Layers {
    type Item = &'a Layer;
    type IntoIter = std::slice::Iter<'a, Layer>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_as_long_as_what_it_stands_on_or_says_where_it_breaks() {
        let below = [
            StandsOn::At(1),
            StandsOn::At(2),
            StandsOn::Nothing,
            StandsOn::Missing,
            StandsOn::At(3),
            StandsOn::At(6),
            StandsOn::At(5),
            StandsOn::At(5),
            StandsOn::At(8),
        ];
        let expected = [
            ChainState::Whole(3),
            ChainState::Whole(2),
            ChainState::Whole(1),
            ChainState::Missing(3),
            ChainState::Missing(3),
            ChainState::Circle(5),
            ChainState::Circle(5),
            ChainState::Circle(5),
            ChainState::Circle(8),
        ];
        assert_eq!(chains(&below), expected);
    }
}
