//! Crossing between counts and reals, in the one place where it is argued.

/// A count as a real: exact below 2^53, which no run of the lab reaches.
#[must_use]
#[allow(
    clippy::as_conversions,
    reason = "there is no checked conversion to f64; above 2^53 the rounding is harmless"
)]
pub const fn real(count: usize) -> f64 {
    count as f64
}

/// As [`real`], for 64-bit counters of the kernel and the server.
#[must_use]
#[allow(clippy::as_conversions, reason = "as for real()")]
pub const fn real_u64(count: u64) -> f64 {
    count as f64
}

/// As [`real`], for signed 64-bit counters.
#[must_use]
#[allow(clippy::as_conversions, reason = "as for real()")]
pub const fn real_i64(count: i64) -> f64 {
    count as f64
}

/// The whole part of a real, or zero for what is negative or no number.
#[must_use]
#[allow(
    clippy::as_conversions,
    reason = "float to integer casts saturate, which is the meaning wanted here"
)]
pub const fn whole(value: f64) -> usize {
    value as usize
}

/// As [`whole`], in 64 bits.
#[must_use]
#[allow(clippy::as_conversions, reason = "as for whole()")]
pub const fn whole_u64(value: f64) -> u64 {
    value as u64
}
