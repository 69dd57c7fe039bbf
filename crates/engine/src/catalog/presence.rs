//! Who is at work, and whether what one stands on is still there.

use std::fs;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::keys::ClusterName;

use super::{Catalog, FETCH_AT_ONCE, Layer, Unfinished};
use crate::error::{Error, Kind, Result};
use crate::info::Leftover;
use crate::repository::Repository;

/// A writer of another host that stored nothing for a day is taken for dead.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// This host's name, as claims have it.
pub(crate) fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// Lower-case hexadecimal, as manifests and claims have layer ids.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is removed of an act whose process is gone must not be that of another host with the same name: its objects
/// come more often than this.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(1);

impl Unfinished {
    /// Whether nobody is at work on it any more: its process on this host is gone, or nothing was stored for a day.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        let over = Leftover::of(self).running == Some(false);
        over || self.was_merged || self.is_quiet_for(ABANDONED_AFTER)
    }

    /// Whether its objects can be removed: it is abandoned, and has been for a while.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.was_merged || (self.is_abandoned() && self.is_quiet_for(FORGOTTEN_AFTER))
    }

    fn is_quiet_for(&self, span: SignedDuration) -> bool {
        let quiet = self
            .modified
            .map(|last| Timestamp::now().duration_since(last));
        quiet.is_some_and(|quiet| quiet > span)
    }
}

/// Refuses when a layer of `chain`, newest first, has been removed, unless a merged one has taken its place.
///
/// # Errors
/// `Refused` then; when the repository cannot be read.
pub(crate) async fn still_there(
    repository: &Repository,
    cluster: &ClusterName,
    chain: &[Arc<Layer>],
) -> Result<()> {
    let Some(newest) = chain.first() else {
        return Ok(());
    };
    let looking = chain.iter().map(|layer| async {
        let size = repository.size(&cluster.manifest_key(&layer.label)).await?;
        Ok::<bool, Error>(size.is_some())
    });
    let there: Vec<bool> = futures::stream::iter(looking)
        .buffer_unordered(FETCH_AT_ONCE)
        .try_collect()
        .await?;
    if there.iter().all(|there| *there) {
        return Ok(());
    }
    let catalog = Catalog::load(repository, cluster).await?;
    let stands = |layer: &&Layer| {
        let replaced = layer.manifest.replaces.iter().any(|replaced| {
            replaced.label == newest.label.as_str()
                && replaced.manifest_digest == newest.manifest_digest
        });
        replaced || layer.manifest_digest == newest.manifest_digest
    };
    let mut standing = catalog.layers.iter().filter(stands);
    match standing.any(|layer| catalog.chain(&layer.label).is_ok()) {
        true => Ok(()),
        false => Err(Error::new(
            Kind::Refused,
            format!(
                "layer {} or one that it stands on was removed in the meantime",
                newest.label
            ),
        )
        .hint("start again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgstrata_layer::claim::ClaimRecord;
    use pgstrata_layer::label::Label;

    fn unfinished(host: &str, pid: u32, hours: i64) -> Unfinished {
        let modified = Timestamp::now() - SignedDuration::from_hours(hours);
        Unfinished {
            label: Label::full(jiff::civil::date(2026, 11, 21).at(9, 0, 0, 0)),
            claim: Some(ClaimRecord {
                label: "20261121-090000F".to_owned(),
                layer_id: "00".repeat(16),
                host: host.to_owned(),
                pid,
                started_at: modified,
                written_by: "a test".to_owned(),
            }),
            object_count: 1,
            size_bytes: 1,
            modified: Some(modified),
            was_merged: false,
        }
    }

    #[test]
    fn a_writer_is_dead_when_its_process_is_or_after_a_day() {
        let here = host_name();
        assert!(unfinished(&here, 999_999_999, 0).is_abandoned());
        assert!(!unfinished(&here, 999_999_999, 0).is_forgotten());
        assert!(unfinished(&here, 999_999_999, 2).is_forgotten());
        assert!(!unfinished("elsewhere", 999_999_999, 23).is_abandoned());
        assert!(unfinished("elsewhere", 999_999_999, 25).is_forgotten());
    }
}
