//! The removal: who is removing which layers, so that nobody comes to stand on one of them meanwhile.
//!
//! There is at most one, created before the last look for whoever may stand on the layers and deleted after the last of
//! them. A writer has created its claim before it looks for a removal: one of the two sees the other.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::from_hex_exact;
use crate::error::{Error, Result};
use crate::label::Label;
use crate::manifest::ParentRef;
use crate::record;

const KIND: &str = "removal";

/// Who removes what.
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

/// The object's bytes.
#[must_use]
pub fn encode(record: &RemovalRecord) -> Vec<u8> {
    record::encode(KIND, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<RemovalRecord> {
    let removal: RemovalRecord = record::decode(KIND, bytes)?;
    for layer in &removal.layers {
        let digest = from_hex_exact::<32>(&layer.manifest_digest);
        if Label::parse(&layer.label).is_none() || digest.is_none() {
            return Err(Error::damaged(format!(
                "removal names layer {:?} with digest {:?}, which cannot be",
                layer.label, layer.manifest_digest
            )));
        }
    }
    Ok(removal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    #[test]
    fn a_removal_reads_back_and_survives_no_flip() {
        let record = RemovalRecord {
            layers: vec![ParentRef {
                label: "20261121-093305F".to_owned(),
                manifest_digest: "0f".repeat(32),
            }],
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
}
