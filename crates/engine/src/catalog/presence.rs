//! Who is at work, and whether what one stands on is still there.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use pgstrata_layer::claim::ClaimRecord;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest;

use super::{Catalog, FETCH_AT_ONCE, Layer, Unfinished, removal};
use crate::error::{Error, Kind, Result};
use crate::info::Leftover;
use crate::repository::Repository;

/// A writer of another host that stored nothing for a day is taken for dead.
pub(super) const ABANDONED_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// This host's name, as claims have it.
pub(crate) fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// Program and version, as objects record them.
pub(crate) const WRITTEN_BY: &str = concat!("pgstrata ", env!("CARGO_PKG_VERSION"));

/// A claim of this process.
pub(crate) fn our_claim(label: &str, layer_id: &str, started_at: Timestamp) -> ClaimRecord {
    ClaimRecord {
        label: label.to_owned(),
        layer_id: layer_id.to_owned(),
        host: host_name(),
        pid: std::process::id(),
        started_at,
        written_by: WRITTEN_BY.to_owned(),
    }
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

/// Backups and merges under way, which may be reading layers or be about to stand on them.
pub(crate) fn at_work(catalog: &Catalog) -> Vec<String> {
    let unfinished = catalog.unfinished.iter();
    unfinished
        .filter(|unfinished| !unfinished.is_abandoned())
        .map(|unfinished| {
            format!(
                "{} is being made, or was interrupted less than a day ago: nothing is removed meanwhile",
                unfinished.label
            )
        })
        .collect()
}

/// Makes a layer exist whose label has been claimed, unless a layer of `chain`, newest first, has been removed or is about to be.
///
/// # Errors
/// `Refused` then; when the repository cannot be read or written. It is not known after a failure to write whether the
/// layer exists: `committing` says that it came so far.
pub async fn commit_layer(
    repository: &Repository,
    cluster: &ClusterName,
    chain: &[Arc<Layer>],
    (label, manifest): (&Label, Vec<u8>),
    committing: &AtomicBool,
) -> Result<()> {
    // What we could not read back must not be written.
    manifest::decode(&manifest)?;
    check_stays(repository, cluster, chain).await?;
    committing.store(true, Ordering::Relaxed);
    let key = cluster.manifest_key(label);
    repository.create(&key, Bytes::from(manifest)).await
}

/// Refuses when a layer of `chain`, newest first, has been removed or is about to be, unless a merged one has taken its
/// place. Whoever calls it has claimed the label of the layer that is to stand on them.
///
/// # Errors
/// `Refused` then; when the repository cannot be read.
pub(crate) async fn check_stays(
    repository: &Repository,
    cluster: &ClusterName,
    chain: &[Arc<Layer>],
) -> Result<()> {
    let Some(newest) = chain.first() else {
        return Ok(());
    };
    let leaving = removal::leaving(repository, cluster).await?;
    let stays = |layer: &Layer| !leaving.contains(&layer.reference());
    let looking = chain.iter().map(|layer| async {
        let size = repository.size(&cluster.manifest_key(&layer.label)).await?;
        Ok::<bool, Error>(size.is_some() && stays(layer))
    });
    let there: Vec<bool> = futures::stream::iter(looking)
        .buffer_unordered(FETCH_AT_ONCE)
        .try_collect()
        .await?;
    if there.iter().all(|there| *there) {
        return Ok(());
    }
    let mut catalog = Catalog::load(repository, cluster).await?;
    catalog.layers.retain(stays);
    let parent = newest.reference();
    let standing = catalog.standing_for(&parent);
    match standing.is_some_and(|layer| catalog.chain(&layer.label).is_ok()) {
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
