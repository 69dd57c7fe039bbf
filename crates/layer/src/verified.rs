//! The record of a verification that has finished: when, of what, and what it found.
//!
//! It says nothing of safety: it is for who asks when somebody has looked last.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::label::Label;
use crate::record;

const KIND: &str = "verified";

/// The version that names damaged layers.
const NAMES_DAMAGE: u32 = 2;

/// The version that also counts the errors of which the damaged layers say nothing.
const COUNTS_OTHERS: u32 = 3;

/// A verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifiedRecord {
    /// The layer that was verified, with those on which it stands; `None`: all, and all promised WAL.
    pub label: Option<String>,
    /// Whether pages were decoded.
    pub deep: bool,
    /// Number of layers.
    pub layers: u64,
    /// Label of the newest of them.
    pub newest: Option<String>,
    /// Number of files of the archive.
    pub wal_files: u64,
    /// Number of findings because of which a restore fails or loses something.
    pub errors: u64,
    /// Number of other findings.
    pub warnings: u64,
    /// Labels of the layers of which an object is not what was written, or is not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// Number of those errors that are of none of these layers, and of all that are of WAL: they stay when the layers go. `None`
    /// when nothing was found, and in records of older programs, which did not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_errors: Option<u64>,
    /// Host name of who verified.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &VerifiedRecord) -> Vec<u8> {
    let version = match (record.other_errors, record.damaged.is_empty()) {
        (Some(_), _) => COUNTS_OTHERS,
        (None, false) => NAMES_DAMAGE,
        (None, true) => record::VERSION,
    };
    record::encode_version(KIND, version, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<VerifiedRecord> {
    let (version, found) = record::decode_versions(KIND, COUNTS_OTHERS, bytes)?;
    check(version, &found).map_err(|error| error.into_damage().within(KIND))?;
    Ok(found)
}

fn check(version: u32, found: &VerifiedRecord) -> Result<()> {
    let labels = found.label.iter().chain(&found.newest);
    let mut labels = labels.chain(&found.damaged);
    if labels.any(|label| Label::parse(label).is_none()) {
        return Err(Error::damaged("a label that is none"));
    }
    let fits = match version {
        COUNTS_OTHERS => found.other_errors.is_some(),
        NAMES_DAMAGE => found.other_errors.is_none() && !found.damaged.is_empty(),
        _ => found.other_errors.is_none() && found.damaged.is_empty(),
    };
    if !fits {
        return Err(Error::damaged(format!(
            "version {version} does not fit the damaged layers and other errors"
        )));
    }
    let others = found.other_errors.unwrap_or(0);
    if others > found.errors {
        return Err(Error::damaged("more other errors than errors"));
    }
    if version == COUNTS_OTHERS && others == 0 && found.damaged.is_empty() {
        return Err(Error::damaged("errors of nothing"));
    }
    if found.errors == 0 && !found.damaged.is_empty() {
        return Err(Error::damaged("damaged layers and no error"));
    }
    if found.finished_at < found.started_at {
        return Err(Error::damaged("an end before the beginning"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    #[test]
    fn a_verification_reads_back_and_survives_no_flip() {
        let record = VerifiedRecord {
            label: None,
            deep: true,
            layers: 2,
            newest: Some("20261121-093305F_20261121-103000I".to_owned()),
            wal_files: 17,
            errors: 0,
            warnings: 1,
            damaged: Vec::new(),
            other_errors: None,
            host: "db1".to_owned(),
            pid: 4711,
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        };
        let bytes = encode(&record);
        assert_eq!(decode(&bytes).ok(), Some(record.clone()));
        require_damage_found(&bytes, decode);
        let found = VerifiedRecord {
            errors: 1,
            damaged: record.newest.iter().cloned().collect(),
            ..record.clone()
        };
        let bytes = encode(&found);
        assert!(bytes.starts_with(b"pgstrata verified 2 "));
        assert_eq!(decode(&bytes).ok(), Some(found.clone()));
        require_damage_found(&bytes, decode);
        let counted = VerifiedRecord {
            errors: 3,
            other_errors: Some(2),
            ..found.clone()
        };
        let bytes = encode(&counted);
        assert!(bytes.starts_with(b"pgstrata verified 3 "));
        assert_eq!(decode(&bytes).ok(), Some(counted.clone()));
        require_damage_found(&bytes, decode);
        for (version, wrong) in [
            (record::VERSION, &found),
            (NAMES_DAMAGE, &record),
            (NAMES_DAMAGE, &counted),
            (COUNTS_OTHERS, &found),
        ] {
            assert!(decode(&record::encode_version(KIND, version, wrong)).is_err());
        }
        for (errors, others) in [(3, 4), (0, 0)] {
            let wrong = VerifiedRecord {
                errors,
                other_errors: Some(others),
                ..record.clone()
            };
            assert!(decode(&encode(&wrong)).is_err(), "{others} of {errors}");
        }
        let mut wrong = found;
        wrong.errors = 0;
        assert!(decode(&encode(&wrong)).is_err());
        let mut wrong = record.clone();
        wrong.newest = Some("nonsense".to_owned());
        assert!(decode(&encode(&wrong)).is_err());
        wrong = record;
        wrong.started_at = Timestamp::MAX;
        assert!(decode(&encode(&wrong)).is_err());
    }
}
