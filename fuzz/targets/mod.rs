//! What is fuzzed: each target takes bytes as a stranger's, and must neither panic nor hang, whatever they are.
//!
//! Used by the fuzzer, and by the test of crates/store that puts the corpus through the targets. What has a checksum is
//! given twice: as it is, and with the checksums that it should have, so that what lies behind them is reached.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure here is a failed test"
)]

mod answers;
mod conninfo;
mod envelope;
mod input;
mod models;
mod objects;
mod pgdata;
mod records;
mod sealed;
mod tracker;

#[path = "../../crates/layer/tests/support/mod.rs"]
pub mod support;

/// What takes the bytes.
pub type Target = fn(&[u8]);

/// All of them by name.
pub const TARGETS: [(&str, Target); 22] = [
    ("frame", objects::frame),
    ("pack", objects::pack),
    ("index", objects::index),
    ("chain", objects::chain),
    ("digest", objects::digest),
    ("wal-object", objects::wal_object),
    ("record", records::record),
    ("sealed", sealed::sealed),
    ("secrets", sealed::secrets),
    ("envelope", envelope::envelope),
    ("answers", answers::answers),
    ("control", pgdata::control),
    ("label", pgdata::label),
    ("wal-page", pgdata::wal_page),
    ("wal-records", pgdata::wal_records),
    ("conf", pgdata::conf),
    ("history", pgdata::history),
    ("lock-file", pgdata::lock_file),
    ("conninfo", conninfo::parameters),
    ("tracker", tracker::rows),
    ("layers", models::layers),
    ("retention", models::retention),
];
