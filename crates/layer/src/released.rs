//! The record that WAL was given up on purpose: from where on the archive still promises to have no hole.
//!
//! Whoever removes WAL between layers that stay creates it first. Without it nobody could tell what was given up from
//! what was lost.

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::record;

const KIND: &str = "released";

/// The version that names timelines.
const NAMES_TIMELINES: u32 = 2;

/// WAL that nobody promises any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleasedRecord {
    /// Of segments that end at or before this only those are promised that make a layer consistent.
    pub wal_before: Lsn,
    /// The timelines of which that is so, ascending: those that there were. One that begins later, before that position, is
    /// promised. Empty in version 1, which says nothing of timelines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timelines: Vec<TimelineId>,
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
    let version = match record.timelines.is_empty() {
        true => record::VERSION,
        false => NAMES_TIMELINES,
    };
    record::encode_version(KIND, version, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode(bytes: &[u8]) -> Result<ReleasedRecord> {
    let (version, found) = record::decode_versions(KIND, NAMES_TIMELINES, bytes)?;
    check(version, &found).map_err(|error| error.into_damage().within(KIND))?;
    Ok(found)
}

fn check(version: u32, found: &ReleasedRecord) -> Result<()> {
    let timelines = &found.timelines;
    if (version == NAMES_TIMELINES) == timelines.is_empty() {
        return Err(Error::damaged(format!(
            "version {version} does not fit the timelines"
        )));
    }
    let ascend = timelines.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascend || timelines.first().is_some_and(|first| first.get() == 0) {
        return Err(Error::damaged("timelines that cannot be"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    #[test]
    fn it_reads_back_and_survives_no_flip() {
        let record = ReleasedRecord {
            wal_before: Lsn::new(0x1600_0028),
            timelines: Vec::new(),
            host: "db1".to_owned(),
            pid: 4711,
            released_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        };
        let bytes = encode(&record);
        assert_eq!(decode(&bytes).ok(), Some(record.clone()));
        require_damage_found(&bytes, decode);
        let of = |timelines: &[u32]| ReleasedRecord {
            timelines: timelines.iter().copied().map(TimelineId::new).collect(),
            ..record.clone()
        };
        let named = of(&[1, 3]);
        let bytes = encode(&named);
        assert!(bytes.starts_with(b"pgstrata released 2 "));
        assert_eq!(decode(&bytes).ok(), Some(named.clone()));
        require_damage_found(&bytes, decode);
        for (version, wrong) in [(record::VERSION, &named), (NAMES_TIMELINES, &record)] {
            assert!(decode(&record::encode_version(KIND, version, wrong)).is_err());
        }
        for wrong in [&[3, 1][..], &[1, 1], &[0, 1]] {
            assert!(decode(&encode(&of(wrong))).is_err(), "{wrong:?}");
        }
    }
}
