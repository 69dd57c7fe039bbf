//! A backup: plan, read, check, compress and store in parallel, then commit.
//!
//! Order is everything. The session starts the backup; files are listed; pages
//! become packs and an index; `pg_control` is read last; the session stops the
//! backup; the WAL of the backup is in the repository; only then the manifest is
//! created, and with it the layer. Whatever fails before, no layer exists and
//! the server has left backup mode.

mod abort;
mod copy;
mod decide;
mod manifest;
mod options;
mod phases;
mod repeated;
mod report;
mod run;
mod standby;
mod wal;

pub use decide::audit::AuditReport;
pub use decide::checkpoint::CheckpointChoice;
pub use decide::harmless::HarmlessPages;
pub use options::{
    AuditOptions, BackupOptions, BackupType, ChangeSourceChoice, CorruptPagePolicy,
    StartCheckpoint, WalMode,
};
pub use phases::Phase;
pub use report::{BackupPlan, BackupReport};
pub use run::{plan, run};
pub use wal::WalChoice;

pub(crate) use wal::WalCheck;
