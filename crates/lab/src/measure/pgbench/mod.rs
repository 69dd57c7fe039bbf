//! Real pgbench as the load: how it is called, what it says.

pub mod log;
pub mod options;
pub mod rate;
pub mod run;
pub mod summary;
