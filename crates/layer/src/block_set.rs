//! A set of blocks of one file: a bit for each.
//!
//! Runs would be smaller for few blocks, but eight bytes for each of many scattered
//! ones; a bitmap of a whole relation segment is 16 KiB whatever its blocks, so that
//! the changes of a terabyte fit into 16 MiB.

use crate::bytes::to_usize;
use crate::entry::BlockRun;

/// Blocks of one file, counted from its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockSet {
    /// Bit `i % 8`, lowest first, of byte `i / 8` is block `i`. The last byte is not zero.
    bits: Vec<u8>,
}

impl BlockSet {
    /// The set that `bits` says: bit `i % 8`, lowest first, of byte `i / 8` is block `i`.
    #[must_use]
    pub fn from_bits(mut bits: Vec<u8>) -> Self {
        let used = bits.iter().rposition(|&byte| byte != 0);
        bits.truncate(used.map_or(0, |last| last + 1));
        Self { bits }
    }

    /// Adds the blocks of `other`.
    pub fn unite(&mut self, other: &Self) {
        if self.bits.len() < other.bits.len() {
            self.bits.resize(other.bits.len(), 0);
        }
        for (mine, theirs) in self.bits.iter_mut().zip(&other.bits) {
            *mine |= theirs;
        }
    }

    /// Adds one block.
    pub fn insert(&mut self, block: u32) {
        let byte = to_usize(block / 8);
        if self.bits.len() <= byte {
            self.bits.resize(byte + 1, 0);
        }
        if let Some(bits) = self.bits.get_mut(byte) {
            *bits |= 1 << (block % 8);
        }
    }

    /// Whether `block` is in the set.
    #[must_use]
    pub fn contains(&self, block: u32) -> bool {
        let byte = self.bits.get(to_usize(block / 8));
        byte.is_some_and(|bits| bits >> (block % 8) & 1 == 1)
    }

    /// Its blocks below `end` as runs, ascending.
    #[must_use]
    pub fn runs_below(&self, end: u32) -> Vec<BlockRun> {
        let mut runs = Vec::new();
        for (start, &byte) in (0_u32..).step_by(8).zip(&self.bits) {
            if start >= end {
                break;
            }
            if byte == 0 {
                continue;
            }
            for start in (start..start.saturating_add(8).min(end)).filter(|&b| self.contains(b)) {
                BlockRun::append(&mut runs, BlockRun { start, count: 1 });
            }
        }
        runs
    }
}

impl FromIterator<u32> for BlockSet {
    fn from_iter<I: IntoIterator<Item = u32>>(blocks: I) -> Self {
        let mut set = Self::default();
        for block in blocks {
            set.insert(block);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u32, count: u32) -> BlockRun {
        BlockRun { start, count }
    }

    #[test]
    fn bits_are_blocks_lowest_first() {
        let set = BlockSet::from_bits(vec![0b1000_0001, 0b0000_0011, 0, 0b0001_0000, 0]);
        assert_eq!(set.runs_below(u32::MAX), [run(0, 1), run(7, 3), run(28, 1)]);
        assert_eq!(set.runs_below(9), [run(0, 1), run(7, 2)]);
        assert_eq!(set.runs_below(0), []);
        assert!(set.contains(28) && !set.contains(27) && !set.contains(4_000_000_000));
    }

    #[test]
    fn a_set_is_the_same_however_it_was_made() {
        let mut united = BlockSet::from_bits(vec![1]);
        united.unite(&[7, 8, 9, 28].into_iter().collect());
        assert_eq!(
            united,
            BlockSet::from_bits(vec![0b1000_0001, 0b0000_0011, 0, 0b0001_0000, 0, 0])
        );
    }
}
