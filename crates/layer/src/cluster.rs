//! The cluster record: whose backups lie under a name, fixed once by `init`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::from_hex_exact;
use crate::entry::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::keys::ClusterName;
use crate::record;

const KIND: &str = "cluster";

/// Version of the repository format below a cluster's name.
pub const FORMAT: u32 = 1;

/// The version of a cluster in which everything is sealed that has a secret in it.
pub const SEALED_FORMAT: u32 = 2;

/// The version of a cluster whose objects are locked in the store.
pub const RETAINED_FORMAT: u32 = 3;

/// What the objects below a cluster's name belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// The name it lies under, so that an object copied elsewhere is found out.
    pub name: String,
    /// Version of everything below the name: [`FORMAT`]; [`SEALED_FORMAT`] when `sealing` is there; [`RETAINED_FORMAT`]
    /// when `retention` is, sealed or not.
    pub format: u32,
    /// From `pg_control`.
    pub system_identifier: u64,
    /// Major version of the server, 15 to 18.
    pub major: u16,
    /// From `pg_control`.
    pub catalog_version: u32,
    /// Bytes per page.
    pub block_size: u32,
    /// Bytes per WAL segment.
    pub wal_segment_size: u32,
    /// When the record was made.
    pub created_at: Timestamp,
    /// Program and version that made it.
    pub written_by: String,
    /// That and how the cluster is sealed, from its first object to its last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealing: Option<SealRecord>,
    /// That and how objects are locked in the store: a program that does not know of it must not write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionRecord>,
}

/// For how long objects are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionRecord {
    /// Version of the scheme; 1.
    pub version: u32,
    /// Who may lift a lock.
    pub mode: LockMode,
    /// For how many days after a layer was made it stays, with all it stands on: 1 to 36500.
    pub days: u32,
}

/// Who may lift the lock of an object, in the words of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Nobody.
    Compliance,
    /// Who has a right of its own for that.
    Governance,
}

/// A lock of a hundred years is a mistake.
const MOST_DAYS: u32 = 36_500;

/// How a cluster is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealRecord {
    /// Version of the scheme; 1.
    pub version: u32,
    /// What the first epoch's public keys are known by: 128 bits in hexadecimal. Part of every key that is derived.
    pub seal_id: String,
}

impl SealRecord {
    /// The 128 bits.
    ///
    /// # Errors
    /// When they are not hexadecimal.
    pub fn seal_id_bytes(&self) -> Result<[u8; 16]> {
        from_hex_exact(&self.seal_id)
            .ok_or_else(|| Error::damaged("seal id is not 32 hexadecimal digits"))
    }
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &ClusterRecord) -> Vec<u8> {
    match version_of(record) {
        FORMAT => record::encode(KIND, record),
        version => record::encode_version(KIND, version, record),
    }
}

/// The lowest version that says what the record says.
fn version_of(record: &ClusterRecord) -> u32 {
    match (&record.retention, &record.sealing) {
        (Some(_), _) => RETAINED_FORMAT,
        (None, Some(_)) => SEALED_FORMAT,
        (None, None) => FORMAT,
    }
}

/// Whether these bytes say that they are such an object, of whatever version.
#[must_use]
pub fn is_one(bytes: &[u8]) -> bool {
    record::is_of(KIND, bytes)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged, of another version, or describes a cluster that cannot be.
pub fn decode(bytes: &[u8]) -> Result<ClusterRecord> {
    let (version, cluster): (u32, ClusterRecord) =
        record::decode_versions(KIND, RETAINED_FORMAT, bytes)?;
    if let Some(sealing) = &cluster.sealing {
        sealing.seal_id_bytes()?;
        if sealing.version != 1 {
            return Err(Error::unsupported(format!(
                "cluster is sealed by scheme {}, which this version does not know",
                sealing.version
            )));
        }
    }
    if let Some(retention) = &cluster.retention
        && (retention.version != 1 || !(1..=MOST_DAYS).contains(&retention.days))
    {
        return Err(Error::unsupported(format!(
            "cluster has a retention of {} days by scheme {}, which this version does not know",
            retention.days, retention.version
        )));
    }
    let expected = version_of(&cluster);
    if version != expected {
        return Err(Error::damaged(format!(
            "cluster record of version {version} does not say what one of version {expected} says"
        )));
    }
    if cluster.format != expected {
        return Err(Error::unsupported(format!(
            "cluster record says format {}, which this version does not know",
            cluster.format
        )));
    }
    if ClusterName::parse(&cluster.name).is_none() {
        return Err(Error::damaged(format!(
            "cluster record has the invalid name {:?}",
            cluster.name
        )));
    }
    check_server(cluster.major, cluster.block_size, cluster.wal_segment_size)?;
    Ok(cluster)
}

/// What version 1 can hold: majors 15 to 18, pages of 8 KiB, WAL segments as `initdb` allows.
pub(crate) fn check_server(major: u16, block_size: u32, wal_segment_size: u32) -> Result<()> {
    let segment_fits =
        wal_segment_size.is_power_of_two() && (1 << 20..=1 << 30).contains(&wal_segment_size);
    if (15..=18).contains(&major) && block_size == BLOCK_BYTES && segment_fits {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "PostgreSQL {major} with pages of {block_size} bytes and WAL segments of {wal_segment_size} bytes is not supported"
    )))
}
