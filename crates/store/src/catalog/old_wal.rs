//! WAL that nobody needs.
//!
//! Recovery from a layer begins at its start and only goes forward, on whatever timeline: what ends before the first
//! start of all is read by none. Of layers from which nobody wants to go on, only the WAL from their start to their end
//! is needed, and a record says that the WAL between them was given up. Histories are kept for ever.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::ParentRef;
use pgstrata_layer::released::{self, ReleasedRecord};
use pgstrata_layer::removal::WalKept;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_pgdata::wal::{ArchiveFile, WalSegment, WalSegmentSize};

use super::lease::CLOCKS_DIFFER;
use super::presence::{WRITTEN_BY, host_name};
use super::restoring::{InUse, wal_needed};
use super::{Catalog, Layer, PendingRemoval};
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::repository::ObjectInfo;

/// What S3 deletes with one request. Between two of these the remover looks whether it may go on.
const AT_ONCE: usize = 1000;

/// Where the WAL begins that stays, and what of the WAL before stays too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalLimit {
    /// What ends at or before this goes.
    pub before: Lsn,
    /// But for this.
    pub kept: Vec<WalKept>,
}

impl WalLimit {
    /// What is needed when the layers `going` are gone, and of the layers `own_alone` nothing but the WAL that makes them
    /// consistent; `None` when there is no layer.
    #[must_use]
    pub fn of(
        catalog: &Catalog,
        going: &[Label],
        own_alone: &HashSet<ParentRef>,
        restores: &[InUse],
    ) -> Option<Self> {
        let going: HashSet<&Label> = going.iter().collect();
        let stays = catalog.layers.iter();
        let stays: Vec<&Layer> = stays
            .filter(|layer| !going.contains(&layer.label))
            .collect();
        let start = |layer: &&Layer| layer.manifest.start_lsn;
        let goes_on = |layer: &&&Layer| !own_alone.contains(&layer.reference());
        let first = stays.iter().filter(goes_on).map(start).min();
        // Somebody goes on from one of them, when it is not known who.
        let first = first.or_else(|| stays.iter().map(start).min())?;
        let before = wal_needed(restores).map_or(first, |needed| needed.min(first));
        let older = stays.iter().filter(|layer| start(layer) < before);
        let kept: BTreeSet<WalKept> = older
            .map(|layer| WalKept {
                timeline: layer.manifest.timeline,
                start_lsn: layer.manifest.start_lsn,
                stop_lsn: kept_until(layer),
            })
            .collect();
        Some(Self {
            before,
            kept: kept.into_iter().collect(),
        })
    }

    /// Whether the segment goes, and what else belongs to it.
    #[must_use]
    pub fn takes(&self, segment: WalSegment, size: WalSegmentSize) -> bool {
        let WalSegment { timeline, number } = segment;
        number < self.before.segment(size)
            && !self.kept.iter().any(|kept| {
                let first = kept.start_lsn.segment(size);
                let end = WalSegment::containing_end(timeline, kept.stop_lsn, size).number;
                kept.timeline == timeline && first <= number && number <= end.max(first)
            })
    }
}

/// Where the WAL ends that stays with a layer: where its own does. Of one that may be of another server than those before it
/// the next segment stays as well: it proves that an archiver has brought the layer's own. Of a standby's, too: recovery stops
/// at the first record behind its end, which may be there.
#[must_use]
pub fn kept_until(layer: &Layer) -> Lsn {
    let manifest = &layer.manifest;
    let segment = u64::from(manifest.cluster.wal_segment_size);
    match manifest.beside.is_some() || manifest.from_standby {
        true => Lsn::new(manifest.stop_lsn.get().saturating_add(segment)),
        false => manifest.stop_lsn,
    }
}

/// WAL between layers that an expiry has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Before this only what makes layers consistent is promised.
    pub before: Lsn,
    /// When, by the clock of the host that expired.
    pub at: Timestamp,
    /// On which timelines; empty when the record, of version 1, does not say so.
    pub timelines: Vec<TimelineId>,
}

/// A file of the archive that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldWal {
    /// The object.
    pub key: String,
    /// Its length in bytes.
    pub size_bytes: u64,
    /// The segment to which it belongs.
    pub segment: WalSegment,
    /// When it was stored.
    pub modified: Timestamp,
}

impl OldWal {
    /// The file that the object holds, or for which it stands in; `None` for histories, and for what is not of the archive.
    #[must_use]
    pub fn of(name: &ClusterName, size: WalSegmentSize, object: ObjectInfo) -> Option<Self> {
        let below = |prefix: String| object.key.strip_prefix(&prefix)?.strip_prefix('/');
        let (place, is_mended) = match below(name.mended_wal_prefix()) {
            Some(place) => (place, true),
            None => (below(name.wal_prefix())?, false),
        };
        let mut file = place.rsplit('/').next()?;
        if is_mended {
            file = ClusterName::mended_file(file);
        }
        let segment = match ArchiveFile::parse(file, size).ok()? {
            ArchiveFile::Segment(s) | ArchiveFile::Partial(s) => s,
            ArchiveFile::BackupLabel { segment, .. } => segment,
            ArchiveFile::History(_) => return None,
        };
        Some(Self {
            key: object.key,
            size_bytes: object.size_bytes,
            segment,
            modified: object.modified,
        })
    }
}

/// Objects of the archive that go; what stands in for a damaged one comes before it.
///
/// # Errors
/// When the repository cannot be read.
pub async fn find(cluster: &ClusterRepository, limit: &WalLimit) -> Result<Vec<OldWal>> {
    let record = cluster.record().await?;
    let size = WalSegmentSize::try_from(u64::from(record.wal_segment_size))?;
    let mut superfluous = Vec::new();
    // What stands in for a damaged object goes before that object.
    let mended = cluster.name.mended_wal_prefix();
    for prefix in [&mended, &cluster.name.wal_prefix()] {
        for directory in cluster.repository.list_names(prefix).await? {
            for object in cluster
                .repository
                .list(&format!("{prefix}/{directory}"))
                .await?
            {
                if cluster.repository.still_locks(object.modified) {
                    continue;
                }
                let found = OldWal::of(&cluster.name, size, object);
                superfluous.extend(found.filter(|found| limit.takes(found.segment, size)));
            }
        }
    }
    Ok(superfluous)
}

impl PendingRemoval {
    /// What is left of the WAL that it names. By their positions alone these may be files of a server that was taken back since,
    /// and writes there anew: on a timeline that began after the verdict, of which its remover has listed nothing.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn wal_left(&self, cluster: &ClusterRepository) -> Result<Vec<OldWal>> {
        let Some(limit) = &self.wal else {
            return Ok(Vec::new());
        };
        let mut left = find(cluster, limit).await?;
        if left.is_empty() {
            return Ok(left);
        }
        let verdict = cluster.name.verdict_key(&self.id);
        // Without a time nothing is known to have come later.
        let Some(decided) = cluster.repository.modified(&verdict).await? else {
            return Ok(left);
        };
        let timelines: BTreeSet<TimelineId> =
            left.iter().map(|found| found.segment.timeline).collect();
        for timeline in timelines {
            if began_after(cluster, timeline, decided).await? {
                left.retain(|found| {
                    found.segment.timeline != timeline || !came_after(found.modified, decided)
                });
            }
        }
        Ok(left)
    }
}

/// Whether the timeline began after that time: its history is there, and all that is there of it was stored later. A file alone
/// tells less: it may have been there before, removed, and pushed again under its name. Of an older timeline the history tells,
/// which no removal takes.
async fn began_after(
    cluster: &ClusterRepository,
    timeline: TimelineId,
    time: Timestamp,
) -> Result<bool> {
    let (name, directory) = (&cluster.name, timeline.hex8());
    let history = name.wal_key(&directory, &timeline.history_file_name());
    let mut objects: Vec<ObjectInfo> = Vec::new();
    for prefix in [name.wal_prefix(), name.mended_wal_prefix()] {
        let place = format!("{prefix}/{directory}");
        objects.extend(cluster.repository.list(&place).await?);
    }
    let has_history =
        timeline != TimelineId::FIRST && objects.iter().any(|object| object.key == history);
    let mut times = objects.iter().map(|object| object.modified);
    Ok(has_history && times.all(|stored_at| came_after(stored_at, time)))
}

/// Stores note times by several clocks, and some in whole seconds.
fn came_after(stored_at: Timestamp, time: Timestamp) -> bool {
    stored_at.duration_since(time) > CLOCKS_DIFFER
}

/// The keys of these files, as many together as go with one request; what stands in for damaged ones comes before those.
pub(super) fn batches(cluster: &ClusterRepository, found: &[OldWal]) -> Vec<Vec<String>> {
    let mended = cluster.name.mended_wal_prefix();
    let keys = found.iter().map(|found| found.key.clone());
    let (mended, archived): (Vec<_>, Vec<_>) = keys.partition(|key| key.starts_with(&mended));
    let batches = [mended, archived];
    let batches = batches.iter().flat_map(|keys| keys.chunks(AT_ONCE));
    batches.map(<[String]>::to_vec).collect()
}

/// The timelines of which anything is in the archive.
///
/// # Errors
/// When the repository cannot be read.
pub(super) async fn timelines(cluster: &ClusterRepository) -> Result<BTreeSet<TimelineId>> {
    let prefix = cluster.name.wal_prefix();
    let names = cluster.repository.list_names(&prefix).await?.into_iter();
    let numbers = names.filter_map(|name| u32::from_str_radix(&name, 16).ok());
    Ok(numbers
        .filter(|number| *number > 0)
        .map(TimelineId::new)
        .collect())
}

/// Records that WAL between layers goes on these timelines, when `limit` has some of it go, before any does: whoever finds a
/// hole there knows that it was meant. What was recorded for less says nothing more then: its timelines are still there.
///
/// # Errors
/// When the repository cannot be read or written.
pub(super) async fn release(
    cluster: &ClusterRepository,
    limit: &WalLimit,
    timelines: &BTreeSet<TimelineId>,
) -> Result<()> {
    if limit.kept.is_empty() {
        return Ok(());
    }
    let before = limit.before;
    let record = ReleasedRecord {
        wal_before: before,
        timelines: timelines.iter().copied().collect(),
        host: host_name(),
        pid: std::process::id(),
        released_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
    };
    let key = cluster.name.released_key(before);
    let body = Bytes::from(released::encode(&record));
    let says_as_much = |found: &GivenUp| timelines.iter().all(|one| found.timelines.contains(one));
    match cluster.repository.create(&key, body.clone()).await {
        Err(error) if error.kind() == Kind::AlreadyExists => match read(cluster, &key).await? {
            Some(Ok(found)) if says_as_much(&found) => {}
            // Damaged, or of fewer timelines: what it said the new one says, too.
            found => {
                if found.is_some() {
                    cluster.repository.delete(&key).await?;
                }
                cluster.repository.create(&key, body).await?;
            }
        },
        created => created?,
    }
    let prefix = cluster.name.released_prefix();
    let listed = cluster.repository.list(&prefix).await?.into_iter();
    // The keys are in the order of what they say.
    let older: Vec<String> = listed
        .map(|object| object.key)
        .filter(|other| *other < key)
        .collect();
    cluster.repository.delete_all(&older).await
}

/// What is on record of WAL between layers that was given up.
#[derive(Debug, Default)]
pub struct Released {
    /// All that is known. One of an earlier position may be of other timelines.
    pub given_up: Vec<GivenUp>,
    /// Records that may say more, by their keys, and why they cannot be read: another hole may be meant.
    pub unreadable: Vec<(String, Error)>,
}

/// Looks what was given up between layers.
///
/// # Errors
/// When the repository cannot be read. A record that is damaged is no error here.
pub async fn wal_given_up(cluster: &ClusterRepository) -> Result<Released> {
    let mut released = Released::default();
    let prefix = cluster.name.released_prefix();
    for object in cluster.repository.list(&prefix).await? {
        match read(cluster, &object.key).await? {
            // A later one says more.
            None => {}
            Some(Err(error)) => released.unreadable.push((object.key, error)),
            Some(Ok(found)) => released.given_up.push(found),
        }
    }
    Ok(released)
}

/// What the record says; the inner error is of its contents, and `None` when it is gone.
async fn read(cluster: &ClusterRepository, key: &str) -> Result<Option<Result<GivenUp>>> {
    let object = match cluster.repository.find_record(key).await? {
        Some(Ok(object)) => object,
        Some(Err(error)) => return Ok(Some(Err(error))),
        None => return Ok(None),
    };
    let act = |error: Error| error.while_doing(format!("could not read \"{key}\""));
    Ok(Some(match released::decode(&object) {
        Err(error) => Err(act(error.into())),
        Ok(record) if cluster.name.released_key(record.wal_before) != key => {
            let what = format!("it is of WAL before {}", record.wal_before);
            Err(act(Error::new(Kind::Damaged, what)))
        }
        Ok(record) => Ok(GivenUp {
            before: record.wal_before,
            at: record.released_at,
            timelines: record.timelines,
        }),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_a_layer_consistent_stays_on_its_timeline() {
        let size = WalSegmentSize::try_from(16 << 20).unwrap();
        let at = |segment: u64, offset: u64| Lsn::new((segment << 24) + offset);
        let kept = |timeline, start_lsn, stop_lsn| WalKept {
            timeline: TimelineId::new(timeline),
            start_lsn,
            stop_lsn,
        };
        let limit = WalLimit {
            before: at(20, 40),
            kept: vec![
                // It ends where segment 5 begins, which it does not need.
                kept(1, at(3, 40), at(5, 0)),
                kept(2, at(9, 40), at(9, 40)),
                kept(2, at(12, 0), at(12, 0)),
            ],
        };
        let stays = |timeline| -> Vec<u64> {
            let timeline = TimelineId::new(timeline);
            let all = (0..23).filter(|number| {
                let number = *number;
                !limit.takes(WalSegment { timeline, number }, size)
            });
            all.collect()
        };
        assert_eq!(stays(1), [3, 4, 20, 21, 22]);
        assert_eq!(stays(2), [9, 12, 20, 21, 22]);
        assert_eq!(stays(3), [20, 21, 22]);
    }
}
