//! The claim: the first object of a layer, created before any pack.
//!
//! Creating it decides who owns the label; a layer with a claim and no manifest
//! is a backup that is running or was interrupted, and the claim says whose.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::from_hex_exact;
use crate::error::{Error, Result};
use crate::label::Label;
use crate::record;

const KIND: &str = "claim";

/// Who is writing a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRecord {
    /// The label it claims.
    pub label: String,
    /// The layer's id, as its manifest will have it.
    pub layer_id: String,
    /// Host name of the writer.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &ClaimRecord) -> Vec<u8> {
    record::encode(KIND, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<ClaimRecord> {
    let claim: ClaimRecord = record::decode(KIND, bytes)?;
    if Label::parse(&claim.label).is_none() || from_hex_exact::<16>(&claim.layer_id).is_none() {
        return Err(Error::damaged(format!(
            "claim has label {:?} and layer id {:?}, which cannot be",
            claim.label, claim.layer_id
        )));
    }
    Ok(claim)
}
