//! Which pages a backup looks at although its change source calls them unchanged.
//!
//! Each page is drawn by itself, by a number that seed, path and block give: the same
//! seed draws the same pages, however the files are cut and in whatever order they come.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::changeset::ReadPlan;
use crate::entry::BlockRun;

/// A random share of all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    seed: u64,
    /// Numbers up to here are drawn; `None`: no page.
    limit: Option<u64>,
}

impl Sample {
    /// `per_million` of a million pages, every page from a million on.
    #[must_use]
    pub fn new(seed: u64, per_million: u32) -> Self {
        let limit = match per_million {
            0 => None,
            1_000_000.. => Some(u64::MAX),
            share => Some(u64::MAX / 1_000_000 * u64::from(share)),
        };
        Self { seed, limit }
    }

    /// What draws the same pages again.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The drawn blocks that `plan` takes from the parent without reading them.
    #[must_use]
    pub fn of(&self, path: &str, plan: &ReadPlan) -> Vec<BlockRun> {
        let (
            Some(limit),
            ReadPlan::Blocks {
                runs,
                inherit_limit,
            },
        ) = (self.limit, plan)
        else {
            return Vec::new();
        };
        let of_path = xxh3_64_with_seed(path.as_bytes(), self.seed);
        let mut drawn = Vec::new();
        let mut from = 0;
        // The last gap ends at the limit; a run beyond it leaves none.
        let end = BlockRun {
            start: *inherit_limit,
            count: 1,
        };
        for read in runs.iter().chain([&end]) {
            for start in from..read.start.min(*inherit_limit) {
                if mix(of_path.wrapping_add(u64::from(start))) <= limit {
                    BlockRun::append(&mut drawn, BlockRun { start, count: 1 });
                }
            }
            from = u32::try_from(read.end()).unwrap_or(u32::MAX);
        }
        drawn
    }
}

/// The finish of SplitMix64: neighbours give numbers that have nothing in common.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u32, count: u32) -> BlockRun {
        BlockRun { start, count }
    }

    fn plan(runs: &[BlockRun], inherit_limit: u32) -> ReadPlan {
        ReadPlan::Blocks {
            runs: runs.to_vec(),
            inherit_limit,
        }
    }

    #[test]
    fn all_pages_are_those_that_are_not_read() {
        let all = Sample::new(1, 1_000_000);
        let of = |runs: &[BlockRun], limit| all.of("base/5/1", &plan(runs, limit));
        assert_eq!(of(&[], 10), [run(0, 10)]);
        assert_eq!(of(&[run(0, 2), run(5, 1)], 10), [run(2, 3), run(6, 4)]);
        assert_eq!(of(&[run(3, 2), run(8, 30)], 8), [run(0, 3), run(5, 3)]);
        assert_eq!(of(&[run(0, 10)], 0), []);
        assert_eq!(all.of("base/5/1", &ReadPlan::Whole), []);
    }

    #[test]
    fn a_share_is_about_that_share_and_the_same_again() {
        let count = |per_million, seed| {
            let drawn = Sample::new(seed, per_million).of("base/5/1", &plan(&[], 100_000));
            drawn.iter().map(|run| run.count).sum::<u32>()
        };
        assert_eq!(count(0, 7), 0);
        assert!((900..1100).contains(&count(10_000, 7)));
        assert!((900..1100).contains(&count(10_000, 8)));
        let of = |seed| Sample::new(seed, 10_000).of("base/5/1", &plan(&[], 100_000));
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }
}
