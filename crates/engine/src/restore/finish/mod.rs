//! What makes a cluster of the files: recovery settings, lineage, and that all of it is durable.

pub(super) mod config;
pub(super) mod durable;
pub(super) mod lineage;
