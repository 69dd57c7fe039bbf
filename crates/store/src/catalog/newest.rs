//! The newest layer by its manifest alone, for who has no time to read the whole catalog.

use std::cmp::Ordering;

use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::Manifest;
use pgstrata_pgdata::TimelineId;

use crate::cluster::ClusterRepository;
use crate::error::Result;

/// Servers change timelines seldom: the newest layer of one is not far behind. Who asks is waiting.
const MOST_LOOKED_AT: usize = 100;

/// Layers in the order they were made.
pub(super) fn order(label: &Label) -> (&str, &str) {
    (label.own_stamp(), label.as_str())
}

/// The labels of a cluster, of layers or not, oldest first.
///
/// # Errors
/// When the repository cannot be read.
pub(crate) async fn labels(cluster: &ClusterRepository) -> Result<Vec<Label>> {
    let names = cluster
        .repository
        .list_names(&cluster.name.layers_prefix())
        .await?;
    let mut labels: Vec<Label> = names.iter().filter_map(|name| Label::parse(name)).collect();
    labels.sort_by(|one, other| order(one).cmp(&order(other)));
    Ok(labels)
}

/// A layer, by its manifest alone.
pub(crate) struct Known {
    pub(crate) label: Label,
    pub(crate) manifest: Manifest,
}

impl Known {
    /// A merge gives an old state a new label.
    fn is_merged(&self) -> bool {
        !self.manifest.replaces.is_empty()
    }

    fn by_state(&self, other: &Self) -> Ordering {
        let state = |one: &Self| (one.manifest.state_stamp(), one.manifest.stop_lsn);
        state(self).cmp(&state(other))
    }
}

/// The layer of the newest state among those with these labels, oldest first, that is not of a later timeline than
/// `timeline`; when there is none, the newest of all. What cannot be read is passed over, and no more than
/// [`MOST_LOOKED_AT`] are looked at.
///
/// # Errors
/// When the repository cannot be read.
pub(crate) async fn newest_manifest(
    cluster: &ClusterRepository,
    labels: &[Label],
    timeline: TimelineId,
) -> Result<Option<Known>> {
    let (mut fitting, mut others) = (Vec::new(), Vec::new());
    for label in labels.iter().rev().take(MOST_LOOKED_AT) {
        let key = cluster.name.manifest_key(label);
        let Some(Ok(object)) = cluster.repository.find_record(&key).await? else {
            continue;
        };
        let manifest = match cluster.opened(|sealing| sealing.manifest(&object)).await {
            Ok(manifest) => manifest,
            Err(error) if error.is_of_one_object() => continue,
            Err(error) => return Err(error),
        };
        let found = Known {
            label: label.clone(),
            manifest,
        };
        let fits = found.manifest.timeline <= timeline;
        // Those behind it are older, in whatever way they were made.
        let is_last = fits && !found.is_merged();
        match fits {
            true => fitting.push(found),
            false => others.push(found),
        }
        if is_last {
            break;
        }
    }
    let newest = fitting.into_iter().max_by(Known::by_state);
    Ok(newest.or_else(|| others.into_iter().max_by(Known::by_state)))
}
