//! In which order the arms of each block run.
//!
//! Every block holds every arm once. With two arms, as many blocks begin with
//! one as with the other; with more, the rows of a Williams square are used, in
//! which every arm follows every other equally often.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

/// The rows of a Williams square: `arms` rows for an even number of arms, twice
/// as many for an odd one.
#[must_use]
pub fn williams(arms: usize) -> Vec<Vec<usize>> {
    // 0, 1, k−1, 2, k−2, …: neighbours differ by every step once.
    let mut first = Vec::with_capacity(arms);
    for place in 0..arms {
        first.push(if place % 2 == 1 {
            place.div_ceil(2)
        } else {
            (arms - place / 2) % arms.max(1)
        });
    }
    let mut rows: Vec<Vec<usize>> = (0..arms)
        .map(|shift| first.iter().map(|arm| (arm + shift) % arms).collect())
        .collect();
    if arms % 2 == 1 && arms > 1 {
        let reversed: Vec<Vec<usize>> = rows
            .iter()
            .map(|row| row.iter().rev().copied().collect())
            .collect();
        rows.extend(reversed);
    }
    rows
}

/// The orders of so many blocks: shuffled squares, one after another.
#[must_use]
pub fn interleaved(arms: usize, blocks: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = Pcg64::seed_from_u64(seed);
    let mut orders = Vec::with_capacity(blocks);
    if arms == 0 {
        return orders;
    }
    if arms == 2 {
        // One list for all blocks: balanced however many there are.
        orders = (0..blocks)
            .map(|block| {
                if block % 2 == 0 {
                    vec![0, 1]
                } else {
                    vec![1, 0]
                }
            })
            .collect();
        orders.shuffle(&mut random);
        return orders;
    }
    while orders.len() < blocks {
        let mut rows = williams(arms);
        rows.shuffle(&mut random);
        orders.extend(rows);
    }
    orders.truncate(blocks);
    orders
}
