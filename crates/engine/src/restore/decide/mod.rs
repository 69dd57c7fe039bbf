//! What is restored and how far: the layer, the way along timelines and WAL to the target, and the plan.

pub(super) mod among;
mod branches;
mod forks;
pub(super) mod histories;
mod locate;
mod moments;
pub(super) mod newest;
pub(super) mod own_wal;
pub(super) mod plan;
mod scan;
mod select;
mod servers;
mod sightings;
mod survey;
