//! The record of an attempt that was given up, in the place of the layer's manifest.
//!
//! The manifest's key decides what becomes of a label, once: a manifest makes the layer exist, this record makes sure
//! that it never will. Who removes objects of an attempt that is not its own has created it before: a writer that
//! was only stopped, and goes on, then cannot create its manifest. It is never removed, because nothing tells how long
//! a writer may have been stopped.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::label::Label;
use crate::record;

const KIND: &str = "abandoned";

/// Who gave up an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AbandonedRecord {
    /// The label of which there will be no layer.
    pub label: String,
    /// Host name of who gave it up.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When.
    pub abandoned_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// Whether the object in a manifest's place says that it is such a record. Whether it is whole, [`decode`] tells.
#[must_use]
pub fn is_one(object: &[u8]) -> bool {
    record::is_of(KIND, object)
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &AbandonedRecord) -> Vec<u8> {
    record::encode(KIND, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<AbandonedRecord> {
    record::decode_checked(KIND, bytes, |found: &AbandonedRecord| {
        match Label::parse(&found.label) {
            Some(_) => Ok(()),
            None => Err(Error::damaged(format!("label {:?} cannot be", found.label))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    #[test]
    fn it_reads_back_survives_no_flip_and_is_no_manifest() {
        let record = AbandonedRecord {
            label: "20261121-093305F".to_owned(),
            host: "db1".to_owned(),
            pid: 4711,
            abandoned_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        };
        let bytes = encode(&record);
        assert_eq!(decode(&bytes).ok(), Some(record.clone()));
        require_damage_found(&bytes, decode);
        assert!(is_one(&bytes));
        assert!(!is_one(b"pgstrata manifest 1 3 00\nabandoned"));
        assert!(crate::manifest::decode(&bytes).is_err());
        let wrong = AbandonedRecord {
            label: "../x".to_owned(),
            ..record
        };
        assert!(decode(&encode(&wrong)).is_err());
    }
}
