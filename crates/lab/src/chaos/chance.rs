//! Chance: every decision of a run comes from its seed.
//!
//! Each step draws from a source of its own, made from the seed and the step's number. So a decision
//! that one step takes more or less does not change the steps after it.

use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// Where the decisions of one step come from.
#[derive(Debug)]
pub(super) struct Chance(Pcg64);

impl Chance {
    /// The source of this step.
    pub(super) fn of_step(seed: u64, step: u64) -> Self {
        // An odd number with many bits: neighbouring seeds and steps share no source.
        Self(Pcg64::seed_from_u64(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(step),
        ))
    }

    /// A number below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0.random_range(0..limit.max(1))
    }

    /// A number of this range, both ends included.
    pub(super) fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0.random_range(from..=to)
    }

    /// Whether something happens that happens so often in a hundred times.
    pub(super) fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// One of these; nothing when there is none.
    pub(super) fn one<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = self.below(u64::try_from(of.len()).unwrap_or(u64::MAX));
        of.get(usize::try_from(at).unwrap_or_default())
    }

    /// One of these, each as often as its weight says; nothing when no weight is above 0.
    pub(super) fn weighted<T: Copy>(&mut self, of: &[(T, u64)]) -> Option<T> {
        let total: u64 = of.iter().map(|(_, weight)| weight).sum();
        if total == 0 {
            return None;
        }
        let mut at = self.below(total);
        for (item, weight) in of {
            if at < *weight {
                return Some(*item);
            }
            at -= weight;
        }
        None
    }

    /// So many of these at most, in their order.
    pub(super) fn sample<T: Clone>(&mut self, of: &[T], at_most: usize) -> Vec<T> {
        let mut left = of.to_vec();
        while left.len() > at_most {
            let at = self.below(u64::try_from(left.len()).unwrap_or(u64::MAX));
            left.remove(usize::try_from(at).unwrap_or_default());
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_decisions_and_steps_differ() {
        let draw = |seed, step| {
            let mut chance = Chance::of_step(seed, step);
            (0..20).map(|_| chance.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
    }

    #[test]
    fn what_weighs_nothing_is_never_taken() {
        let mut chance = Chance::of_step(1, 1);
        for _ in 0..100 {
            assert_eq!(chance.weighted(&[('a', 0), ('b', 3)]), Some('b'));
        }
        assert_eq!(chance.weighted(&[('a', 0)]), None);
        assert_eq!(chance.sample(&[1, 2, 3], 5), [1, 2, 3]);
        assert_eq!(chance.sample(&[1, 2, 3], 2).len(), 2);
    }
}
