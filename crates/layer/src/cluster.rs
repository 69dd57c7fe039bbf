//! The cluster record: whose backups lie under a name, fixed once by `init`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::entry::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::keys::ClusterName;
use crate::record;

const KIND: &str = "cluster";

/// Version of the repository format below a cluster's name.
pub const FORMAT: u32 = 1;

/// What the objects below a cluster's name belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// The name it lies under, so that an object copied elsewhere is found out.
    pub name: String,
    /// Version of everything below the name; readers refuse any but [`FORMAT`].
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
}

/// The object's bytes.
#[must_use]
pub fn encode(record: &ClusterRecord) -> Vec<u8> {
    record::encode(KIND, record)
}

/// Reads the object.
///
/// # Errors
/// When it is damaged, of another version, or describes a cluster that cannot be.
pub fn decode(bytes: &[u8]) -> Result<ClusterRecord> {
    let cluster: ClusterRecord = record::decode(KIND, bytes)?;
    if cluster.format != FORMAT {
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
