//! The lab: experiments, comparisons and their reports.
//!
//! It stands alone: it drives PostgreSQL, pgbench and the backup program from
//! outside, as users do, and shares no code with them. Measurements become one
//! [`measure::result`] file from which every number of every report is computed again.
//!
//! Rooms, each using only those before it: [`measure`] takes numbers, [`report`]
//! shows them, [`contenders`] are the programs compared, [`experiments`] put the
//! three together, [`commands`] let users ask for it.

pub mod chaos;
pub mod commands;
pub mod contenders;
pub mod experiments;
pub mod format;
pub mod interrupt;
pub mod measure;
pub mod number;
pub mod quantity;
pub mod report;
