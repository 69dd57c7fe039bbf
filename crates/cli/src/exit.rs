//! Exit codes, one for each kind of error. `docs/OPERATIONS.md` lists them.

use pgstrata_store::error::Kind;

/// Done, with warnings that need a look.
pub(crate) const WARNINGS: u8 = 3;

/// `archive-get`: the archive ends before the file.
pub(crate) const NOT_IN_ARCHIVE: u8 = 1;

/// `archive-get`: anything else. PostgreSQL stops recovery for codes above 125;
/// lower ones it takes for the end of the archive (`RestoreArchivedFile()` in
/// `xlogarchive.c`).
pub(crate) const STOP_RECOVERY: u8 = 255;

/// The arguments make no sense.
pub(crate) const USAGE: u8 = 2;

/// A mistake of ours, as Rust has it.
pub(crate) const PANIC: u8 = 101;

/// The exit code for `kind`.
pub(crate) fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Usage => 2,
        Kind::NotFound => 10,
        Kind::AlreadyExists => 11,
        Kind::Busy => 12,
        Kind::Refused => 13,
        Kind::Damaged => 14,
        Kind::Repository => 15,
        Kind::Server => 16,
        Kind::File => 17,
        Kind::WalMissing => 18,
        Kind::Target => 19,
        Kind::CorruptPages => 20,
        Kind::Unsupported => 21,
        Kind::Audit => 22,
        Kind::Interrupted => 130,
    }
}

/// The kind's name in JSON output.
pub(crate) fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Usage => "usage",
        Kind::NotFound => "not-found",
        Kind::AlreadyExists => "already-exists",
        Kind::Busy => "busy",
        Kind::Refused => "refused",
        Kind::Damaged => "damaged",
        Kind::Repository => "repository",
        Kind::Server => "server",
        Kind::File => "file",
        Kind::WalMissing => "wal-missing",
        Kind::Target => "target",
        Kind::CorruptPages => "corrupt-pages",
        Kind::Unsupported => "unsupported",
        Kind::Audit => "audit",
        Kind::Interrupted => "interrupted",
    }
}
