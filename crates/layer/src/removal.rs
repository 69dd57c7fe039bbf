//! A removal: who wants to remove which layers, and the verdict on it.
//!
//! Two objects. The first announces, so that nobody comes to stand on one of the layers meanwhile. The second, the
//! verdict, is created once: by the remover with what goes, after it has looked for whoever stands on them or
//! may be about to; or by anybody with nothing, which withdraws the removal for good. Nothing is removed before a verdict
//! names it, and what a verdict names goes, whoever removes it.

use jiff::Timestamp;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::manifest::ParentRef;
use crate::record;

const ANNOUNCED: &str = "removal";
const VERDICT: &str = "verdict";

/// The version of a verdict that names WAL which stays.
const NAMES_WAL: u32 = 2;

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
    /// WAL before it that stays all the same, because layers that stay need it to become consistent. Who does not know of
    /// these would remove them, so a verdict that has any is of version 2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wal_kept: Vec<WalKept>,
    /// Host name of who decided.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When.
    pub decided_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// Segments of one timeline that hold any byte from `start_lsn` on, before `stop_lsn`; that of `start_lsn` at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalKept {
    /// The timeline.
    pub timeline: TimelineId,
    /// Where it begins.
    pub start_lsn: Lsn,
    /// Where it ends.
    pub stop_lsn: Lsn,
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
    let version = match record.wal_kept.is_empty() {
        true => record::VERSION,
        false => NAMES_WAL,
    };
    record::encode_version(VERDICT, version, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged or of another version.
pub fn decode_verdict(bytes: &[u8]) -> Result<VerdictRecord> {
    let (version, found) = record::decode_versions(VERDICT, NAMES_WAL, bytes)?;
    check_verdict(version, &found).map_err(|error| error.into_damage().within(VERDICT))?;
    Ok(found)
}

fn check_verdict(version: u32, found: &VerdictRecord) -> Result<()> {
    ParentRef::check(&found.layers)?;
    if (version == NAMES_WAL) == found.wal_kept.is_empty() {
        return Err(Error::damaged(format!(
            "version {version} does not fit the WAL that stays"
        )));
    }
    let can_be = |kept: &WalKept| {
        let before = found.wal_before.unwrap_or(Lsn::INVALID);
        kept.timeline.get() > 0 && kept.start_lsn <= kept.stop_lsn && kept.start_lsn < before
    };
    match found.wal_kept.iter().find(|kept| !can_be(kept)) {
        None => Ok(()),
        Some(kept) => Err(Error::damaged(format!(
            "WAL from {} to {} on timeline {} cannot stay",
            kept.start_lsn, kept.stop_lsn, kept.timeline
        ))),
    }
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
            wal_kept: Vec::new(),
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

    #[test]
    fn a_verdict_that_names_wal_is_of_a_version_that_others_refuse() {
        let kept = WalKept {
            timeline: TimelineId::FIRST,
            start_lsn: Lsn::new(0x0300_0028),
            stop_lsn: Lsn::new(0x0400_0000),
        };
        let record = VerdictRecord {
            layers: layers(),
            wal_before: Some(Lsn::new(0x1600_0028)),
            wal_kept: vec![kept],
            host: "db1".to_owned(),
            pid: 4711,
            decided_at: Timestamp::UNIX_EPOCH,
            written_by: "a test".to_owned(),
        };
        let bytes = encode_verdict(&record);
        assert!(bytes.starts_with(b"pgstrata verdict 2 "));
        assert_eq!(decode_verdict(&bytes).ok(), Some(record.clone()));
        require_damage_found(&bytes, decode_verdict);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let older = text.replacen("verdict 2 ", "verdict 1 ", 1);
        assert!(decode_verdict(older.as_bytes()).is_err());
        for wrong in [
            WalKept {
                timeline: TimelineId::new(0),
                ..kept
            },
            WalKept {
                stop_lsn: Lsn::new(1),
                ..kept
            },
            WalKept {
                start_lsn: Lsn::new(0x1700_0000),
                stop_lsn: Lsn::new(0x1800_0000),
                ..kept
            },
        ] {
            let mut record = record.clone();
            record.wal_kept = vec![wrong];
            assert!(decode_verdict(&encode_verdict(&record)).is_err());
        }
    }
}
