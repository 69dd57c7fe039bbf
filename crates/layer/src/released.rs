//! The record that WAL was given up on purpose: from where on the archive still promises to have no hole.
//!
//! Whoever removes WAL between layers that stay creates it first. Without it nobody could tell what was given up from
//! what was lost.

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::record;

const KIND: &str = "released";

/// WAL that nobody promises any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleasedRecord {
    /// Of segments that end at or before this only those are promised that make a layer consistent.
    pub wal_before: Lsn,
    /// Host name of who decided.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When.
    pub released_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &ReleasedRecord) -> Vec<u8> {
    record::encode(KIND, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<ReleasedRecord> {
    record::decode(KIND, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    #[test]
    fn it_reads_back_and_survives_no_flip() {
        let record = ReleasedRecord {
            wal_before: Lsn::new(0x1600_0028),
            host: "db1".to_owned(),
            pid: 4711,
            released_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        };
        let bytes = encode(&record);
        assert_eq!(decode(&bytes).ok(), Some(record));
        require_damage_found(&bytes, decode);
    }
}
