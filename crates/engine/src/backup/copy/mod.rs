//! From the list of files to packs and an index: each file is planned, read, checked and stored.
//!
//! It asks nobody what has changed: that was decided before.

mod assemble;
mod cache;
pub(super) mod check;
pub(super) mod job;
mod limiter;
pub(super) mod parent;
pub(super) mod pipeline;
mod plain;
mod plan;
pub(super) mod read;
pub(super) mod suspects;
mod window;
