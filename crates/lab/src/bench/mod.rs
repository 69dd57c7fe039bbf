//! Backup and restore side by side with peers and with the limits of the machine.
//!
//! Everything is measured from outside, as users run it: the programs are started
//! as processes, and their cost is read from `/proc`.

pub mod chain;
pub mod contender;
pub mod limits;
pub mod measure;
pub mod native;
pub mod pgbackrest;
pub mod pgstrata;
pub mod profile;
pub mod table;
