//! A removal: who wants to remove which layers, and the verdict on it.
//!
//! Two objects. The first announces, so that nobody comes to stand on one of the layers meanwhile. The second, the
//! verdict, is created once: by the remover with what goes, after it has looked for whoever stands on them or
//! may be about to; or by anybody with nothing, which withdraws the removal for good. Nothing is removed before a verdict
//! names it, and what a verdict names goes, whoever removes it.

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::manifest::ParentRef;
use crate::record;

const ANNOUNCED: &str = "removal";
const VERDICT: &str = "verdict";

/// Who wants to remove what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemovalRecord {
    /// The layers.
    pub layers: Vec<ParentRef>,
    /// Host name of who removes them.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When it began.
    pub started_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// What goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictRecord {
    /// The layers that go, in the order in which they do.
    pub layers: Vec<ParentRef>,
    /// WAL segments that end at or before this go too, on whatever timeline. When there is neither, the removal is
    /// withdrawn.
    pub wal_before: Option<Lsn>,
    /// Host name of who decided.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When.
    pub decided_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &RemovalRecord) -> Vec<u8> {
    record::encode(ANNOUNCED, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<RemovalRecord> {
    record::decode_checked(ANNOUNCED, bytes, |found: &RemovalRecord| {
        ParentRef::check(&found.layers)
    })
}

/// The object's bytes.
#[must_use]
pub fn encode_verdict(record: &VerdictRecord) -> Vec<u8> {
    record::encode(VERDICT, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode_verdict(bytes: &[u8]) -> Result<VerdictRecord> {
    record::decode_checked(VERDICT, bytes, |found: &VerdictRecord| {
        ParentRef::check(&found.layers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    fn layers() -> Vec<ParentRef> {
        vec![ParentRef {
            label: "20261121-093305F".to_owned(),
            manifest_digest: "0f".repeat(32),
        }]
    }

    #[test]
    fn a_removal_reads_back_and_survives_no_flip() {
        let record = RemovalRecord {
            layers: layers(),
            host: "db1".to_owned(),
            pid: 4711,
            started_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        };
        let bytes = encode(&record);
        assert_eq!(decode(&bytes).ok(), Some(record.clone()));
        require_damage_found(&bytes, decode);
        let mut wrong = record;
        wrong.layers[0].label = "../20261121-093305F".to_owned();
        assert!(decode(&encode(&wrong)).is_err());
    }

    #[test]
    fn a_verdict_reads_back_and_survives_no_flip() {
        let record = VerdictRecord {
            layers: layers(),
            wal_before: Some(Lsn::new(0x1600_0028)),
            host: "db1".to_owned(),
            pid: 4711,
            decided_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        };
        let bytes = encode_verdict(&record);
        assert_eq!(decode_verdict(&bytes).ok(), Some(record.clone()));
        require_damage_found(&bytes, decode_verdict);
        assert!(decode(&bytes).is_err());
        let mut wrong = record;
        wrong.layers[0].manifest_digest.clear();
        assert!(decode_verdict(&encode_verdict(&wrong)).is_err());
    }
}
