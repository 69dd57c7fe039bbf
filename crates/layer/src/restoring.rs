//! The record of a restore: which layers and which WAL somebody needs until recovery has ended.
//!
//! Whoever expires keeps them while the record is young. It says nothing of safety: a restore whose layers go ends in
//! an error.

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::ParentRef;
use crate::record;

const KIND: &str = "restore";

/// With this begins what the record of a copy has instead of a directory; a directory begins with a slash.
const COPY_OF: &str = "copy of ";

/// A restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreRecord {
    /// The chain, the layer that is restored first.
    pub layers: Vec<ParentRef>,
    /// Where recovery begins.
    pub start_lsn: Lsn,
    /// The timeline that recovery follows.
    pub timeline: u32,
    /// Host name of who restores.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// The data directory there.
    pub directory: String,
    /// When it began.
    pub started_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

impl RestoreRecord {
    /// What the record says instead of a directory when a layer comes into this repository out of that one.
    #[must_use]
    pub fn place_of_copy(label: &str, from: &str) -> String {
        format!("{COPY_OF}{label} from {from}")
    }

    /// Whether it is of a layer that is being copied into this repository, and of what that is to stand on. Its id is then
    /// the id of that layer.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.directory.starts_with(COPY_OF)
    }
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &RestoreRecord) -> Vec<u8> {
    record::encode(KIND, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<RestoreRecord> {
    record::decode_checked(KIND, bytes, |found: &RestoreRecord| {
        if found.layers.is_empty() || found.timeline == 0 {
            return Err(Error::damaged("no layer, or timeline 0"));
        }
        ParentRef::check(&found.layers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    #[test]
    fn a_restore_reads_back_and_survives_no_flip() {
        let record = RestoreRecord {
            layers: vec![ParentRef {
                label: "20261121-093305F".to_owned(),
                manifest_digest: "0f".repeat(32),
            }],
            start_lsn: Lsn::new(0x1600_0028),
            timeline: 1,
            host: "db1".to_owned(),
            pid: 4711,
            directory: "/var/lib/postgresql/15/main".to_owned(),
            started_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        };
        let bytes = encode(&record);
        assert_eq!(decode(&bytes).ok(), Some(record.clone()));
        require_damage_found(&bytes, decode);
        let mut wrong = record.clone();
        wrong.layers.clear();
        assert!(decode(&encode(&wrong)).is_err());
        wrong = record;
        wrong.timeline = 0;
        assert!(decode(&encode(&wrong)).is_err());
    }
}
