//! The lab: experiments, comparisons and their reports.
//!
//! It stands alone: it drives PostgreSQL, pgbench and the backup program from
//! outside, as users do, and shares no code with them. Measurements become one
//! [`result`] file from which every number of every report is computed again.

pub mod ab;
pub mod analysis;
pub mod arm;
pub mod bench;
pub mod bottleneck;
pub mod cluster;
pub mod commands;
pub mod counters;
pub mod environment;
pub mod expectation;
pub mod format;
pub mod interrupt;
pub mod latency;
mod leash;
pub mod lock;
pub mod number;
mod os_user;
pub mod pgbench;
mod programs;
pub mod quantity;
pub mod report;
pub mod result;
pub mod s3;
pub mod sample;
pub mod seed;
pub mod server;
pub mod session;
pub mod settle;
pub mod slow_link;
pub mod stat;
pub mod workload;
