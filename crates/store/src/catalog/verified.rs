//! Verifications that have finished, as the repository knows them.
//!
//! Each leaves a record of its own, named after the moment at which it ended, so that the newest are the last of the listing. Who
//! may not create objects leaves none. An expiry removes those that are of no use any more: whatever is older than the last
//! [`KEPT`].

use bytes::Bytes;
use jiff::tz::TimeZone;
use pgstrata_layer::verified::{self, VerifiedRecord};

use super::hex;
use crate::cluster::ClusterRepository;
use crate::error::{Kind, Result};

/// A month of daily verifications; also the most that are read to find one.
const KEPT: usize = 30;

/// Says that a verification has finished.
///
/// # Errors
/// When the repository cannot be written.
pub async fn note_verified(cluster: &ClusterRepository, record: &VerifiedRecord) -> Result<()> {
    let ended = record.finished_at.to_zoned(TimeZone::UTC);
    let chance = hex(&rand::random::<[u8; 4]>());
    let id = format!("{}-{chance}", ended.strftime("%Y%m%d-%H%M%S.%6f"));
    let body = Bytes::from(verified::encode(record));
    let key = cluster.name.verified_key(&id);
    cluster.repository.create(&key, body).await?;
    Ok(())
}

/// What is on record of verifications of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastVerified {
    /// The newest.
    pub newest: Option<VerifiedRecord>,
    /// The newest that found nothing because of which a restore fails.
    pub clean: Option<VerifiedRecord>,
}

/// Looks for the last verifications of all layers. A record that cannot be read is left out, with a warning.
///
/// # Errors
/// When the repository cannot be read.
pub async fn last_verified(cluster: &ClusterRepository) -> Result<LastVerified> {
    let prefix = cluster.name.verified_prefix();
    let names = cluster.repository.list_names(&prefix).await?;
    let mut last = LastVerified::default();
    for name in names.iter().rev().take(KEPT) {
        let key = cluster.name.verified_key(name);
        let object = match cluster.repository.get(&key).await {
            Ok(object) => object,
            // An expiry has removed it.
            Err(error) if error.kind() == Kind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let record = match verified::decode(&object) {
            Ok(record) if record.label.is_none() => record,
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!("could not read \"{key}\": {error}");
                continue;
            }
        };
        if record.errors == 0 {
            last.newest.get_or_insert_with(|| record.clone());
            last.clean = Some(record);
            break;
        }
        last.newest.get_or_insert(record);
    }
    Ok(last)
}

/// Removes the records of all but the last verifications.
///
/// # Errors
/// When the repository cannot be read or written.
pub async fn forget_old_verifications(cluster: &ClusterRepository) -> Result<()> {
    let prefix = cluster.name.verified_prefix();
    let mut names = cluster.repository.list_names(&prefix).await?;
    let old = names.len().saturating_sub(KEPT);
    names.truncate(old);
    let keys: Vec<String> = names
        .iter()
        .map(|name| cluster.name.verified_key(name))
        .collect();
    cluster.repository.delete_all(&keys).await
}
