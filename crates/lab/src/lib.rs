//! The lab: experiments, comparisons and their reports.
//!
//! It stands alone: it drives PostgreSQL, pgbench and the backup program from
//! outside, as users do, and shares no code with them. Measurements become one
//! [`result`] file from which every number of every report is computed again.

pub mod bench;
pub mod cluster;
pub mod format;
mod leash;
pub mod number;
mod os_user;
mod programs;
pub mod s3;
pub mod stat;
