//! Measuring: loads, servers and what they cost, under known conditions.
//!
//! What was planned and measured becomes a [`result::Experiment`]; [`stat`] says what it proves.

pub mod ab;
pub mod arm;
pub mod cost;
pub mod counters;
pub mod environment;
pub mod expectation;
pub mod latency;
pub mod lock;
pub mod pgbench;
pub mod programs;
pub mod result;
pub mod sample;
pub mod server;
pub mod session;
pub mod settle;
pub mod stat;
pub mod workload;
