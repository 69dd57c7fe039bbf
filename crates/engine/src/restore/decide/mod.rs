//! What is restored and how far: the layer, the way along timelines and WAL to the target, and the plan.

mod branches;
pub(super) mod plan;
mod select;
