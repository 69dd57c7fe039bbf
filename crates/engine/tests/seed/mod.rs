//! The seed of a random test: printed, so that a run can be repeated.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "for tests alone")]

/// What the environment says, or another one each time.
pub(crate) fn seed() -> u64 {
    let told = std::env::var("PGSTRATA_TEST_SEED").ok();
    let seed = told.map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("to run again: PGSTRATA_TEST_SEED={seed}");
    seed
}
