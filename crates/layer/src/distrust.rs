//! A record that a change source was wrong: an audit found a page that had changed
//! and that the source called unchanged.
//!
//! The backup that found it is not committed; the record is created under its label.
//! No source but digests may tell the changes since a layer that is not newer than it:
//! whatever was missed once would be missed again.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::entry::check_path;
use crate::error::{Error, Result};
use crate::label::Label;
use crate::manifest::ChangeSource;
use crate::record;

const KIND: &str = "distrust";

/// What an audit found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DistrustRecord {
    /// Label of the backup that found it and was given up.
    pub label: String,
    /// Label of the parent it was to stand on.
    pub parent: String,
    /// When.
    pub found_at: Timestamp,
    /// The source that was wrong.
    pub source: ChangeSource,
    /// The first page that it missed: file, relative to the data directory.
    pub path: String,
    /// Block within the file.
    pub block: u32,
    /// How many pages it missed, of those that were looked at.
    pub pages_missed: u64,
    /// How many pages were looked at.
    pub pages_audited: u64,
    /// What draws the same pages again.
    pub seed: u64,
    /// Program and version.
    pub written_by: String,
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &DistrustRecord) -> Vec<u8> {
    record::encode(KIND, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<DistrustRecord> {
    let found: DistrustRecord = record::decode(KIND, bytes)?;
    check_path(&found.path).map_err(Error::into_damage)?;
    if Label::parse(&found.label).is_none() || Label::parse(&found.parent).is_none() {
        return Err(Error::damaged(format!(
            "distrust has label {:?} and parent {:?}, which cannot be",
            found.label, found.parent
        )));
    }
    Ok(found)
}
