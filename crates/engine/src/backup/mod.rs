//! A backup: plan, read, check, compress and store in parallel, then commit.
//!
//! Order is everything. The session starts the backup; files are listed; pages
//! become packs and an index; `pg_control` is read last; the session stops the
//! backup; the WAL of the backup is in the repository; only then the manifest is
//! created, and with it the layer. Whatever fails before, no layer exists and
//! the server has left backup mode.

mod abort;
mod assembler;
mod audit;
mod choose;
mod index_store;
mod job;
mod limiter;
mod options;
mod packer;
mod pages;
mod parent;
mod phases;
mod pipeline;
mod planner;
mod prepare;
mod report;
mod run;
mod shares;
mod source;
mod wal;
mod window;
mod worker;

pub use audit::AuditReport;
pub use options::{
    AuditOptions, BackupOptions, BackupType, ChangeSourceChoice, CorruptPagePolicy, WalMode,
};
pub use phases::Phase;
pub use report::{BackupPlan, BackupReport};
pub use run::{plan, run};
pub use shares::{HelpOptions, ShareMade, help};
pub use wal::WalChoice;

pub(crate) use prepare::{check_record, control_of, files_of};
pub(crate) use wal::WalCheck;
