//! One test for each rule of physical backup that tools have got wrong, named after it.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

mod support;

#[path = "rules/changes.rs"]
mod changes;
#[path = "rules/contents.rs"]
mod contents;
#[path = "rules/files.rs"]
mod files;
#[path = "rules/pages.rs"]
mod pages;
#[path = "rules/start.rs"]
mod start;
