//! What is in the archive.

use futures::stream::{self, StreamExt};
use pgstrata_layer::wal;
use pgstrata_pgdata::{ArchiveFile, TimelineHistory, TimelineId, WalSegment};

use super::{Archive, ArchivedWal, mended};
use crate::catalog::wal_given_up;
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};
use crate::repository::ObjectInfo;

/// Histories are small and far away: this many are fetched at once.
const FETCH_AT_ONCE: usize = 16;

impl Archive {
    /// Everything in the archive, as its listing tells; histories are not read. Of the `watched` segments each time is
    /// kept.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn list(&self, watched: impl Iterator<Item = WalSegment>) -> Result<ArchivedWal> {
        Ok(self.listed(objects(&self.cluster).await?, watched))
    }

    /// What a listing tells that was made while layers were looked for, and may be older than the newest of them; a new one
    /// is made when it does not have the `ends` of them all, the segments in which they were stopped.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn list_beside(
        &self,
        objects: Vec<ObjectInfo>,
        ends: impl Iterator<Item = WalSegment>,
        watched: impl Iterator<Item = WalSegment> + Clone,
    ) -> Result<ArchivedWal> {
        let found = self.listed(objects, watched.clone());
        let mut ends = ends;
        match ends.all(|segment| found.holds(segment)) {
            true => Ok(found),
            false => self.list(watched).await,
        }
    }

    fn listed(
        &self,
        objects: Vec<ObjectInfo>,
        watched: impl Iterator<Item = WalSegment>,
    ) -> ArchivedWal {
        let mut found = ArchivedWal::new(self.segment_size);
        found.watch(watched);
        let name = &self.cluster.name;
        let prefix = name.wal_prefix();
        let place = |object: ObjectInfo| (mended::place_of(name, &object), object);
        let mut placed: Vec<(String, ObjectInfo)> = objects.into_iter().map(place).collect();
        // Listings of several repositories are put together in the order of their keys.
        placed.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (place, object) in placed {
            let below = place[prefix.len()..].trim_start_matches('/');
            let Some((directory, name)) = below.split_once('/') else {
                continue;
            };
            let Some(timeline) = timeline_named(directory) else {
                continue;
            };
            let of_timeline = found.of_timeline(timeline);
            of_timeline.stored_bytes += object.size_bytes;
            match self.parse(name) {
                Ok(file) if self.key(file) != place => of_timeline.unknown.push(object.key),
                Ok(ArchiveFile::Segment(segment)) => {
                    found.add_segment(segment, object.modified);
                    if object.size_bytes < wal::least_bytes(self.segment_size.get()) {
                        found.short().insert(segment, None);
                    }
                }
                Ok(ArchiveFile::History(_)) => {
                    of_timeline.history_stored_at = Some(object.modified)
                }
                Ok(ArchiveFile::BackupLabel { segment, .. }) => found.add_backup_label(segment),
                // It does not take part in recovery.
                Ok(ArchiveFile::Partial(segment)) => found.add_partial(segment),
                Err(_) => of_timeline.unknown.push(object.key),
            }
        }
        found
    }

    /// Reads the histories that `found` lists, and from where on WAL is promised to be there. Those that can be read are
    /// known then; of those that are there and are none it is known why ([`ArchivedWal::unreadable_histories`]).
    ///
    /// # Errors
    /// `Repository` when the repository cannot be read; `Refused` when no identity at hand opens one.
    pub async fn read_histories(&self, found: &mut ArchivedWal) -> Result<()> {
        let listed: Vec<_> = found
            .by_timeline()
            .filter_map(|(timeline, found)| Some((timeline, found.history_stored_at?)))
            .collect();
        let reading = listed.into_iter().map(|(timeline, stored_at)| async move {
            (timeline, stored_at, self.history(timeline).await)
        });
        let reading = stream::iter(reading).buffered(FETCH_AT_ONCE);
        let (histories, given_up) =
            futures::join!(reading.collect::<Vec<_>>(), wal_given_up(&self.cluster));
        found.set_released(given_up?);
        let mut first = None;
        for (timeline, stored_at, history) in histories {
            match history {
                Ok(history) => found.add_history(history, stored_at),
                Err(error) => {
                    if !error.is_of_one_object() {
                        first.get_or_insert_with(|| error.clone());
                    }
                    found.add_unreadable(timeline, error);
                }
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// The history of every timeline of which there is anything, or why there is none: `NotFound`, or what is wrong with it.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn histories(&self) -> Result<Vec<(TimelineId, Result<TimelineHistory>)>> {
        let timelines = self.timelines().await?.into_iter();
        let reading =
            timelines.map(|timeline| async move { (timeline, self.history(timeline).await) });
        Ok(stream::iter(reading)
            .buffered(FETCH_AT_ONCE)
            .collect()
            .await)
    }

    /// Reads the segments whose objects are shorter than one can be: something whole may stand in for them.
    ///
    /// # Errors
    /// `Repository` when the store does not answer.
    pub async fn read_short(&self, found: &mut ArchivedWal) -> Result<()> {
        let mut good = Vec::new();
        for (segment, why) in found.short() {
            match self.inspect(ArchiveFile::Segment(*segment)).await {
                Ok(_) => good.push(*segment),
                Err(error) if error.kind() == Kind::Repository && !error.is_of_one_object() => {
                    return Err(error);
                }
                Err(error) => *why = Some(error.to_string()),
            }
        }
        found.short().retain(|segment, _| !good.contains(segment));
        Ok(())
    }

    /// The history of `timeline`. The first timeline has no file, and nobody reads what is in its place; its history is
    /// itself (`readTimeLineHistory`, `src/backend/access/transam/timeline.c`).
    ///
    /// # Errors
    /// `NotFound` when the history is certainly not in the archive; `Damaged` when
    /// it cannot be read.
    pub async fn history(&self, timeline: TimelineId) -> Result<TimelineHistory> {
        if timeline == TimelineId::FIRST {
            return Ok(TimelineHistory::first(timeline));
        }
        let contents = match self.contents(ArchiveFile::History(timeline)).await {
            Err(error) if error.kind() == Kind::Damaged => return Err(error.hint(NO_HISTORY)),
            read => read?,
        };
        let read = TimelineHistory::read(timeline, &contents).map_err(Error::from);
        read.map_err(|error| error.hint(NO_HISTORY))
    }

    /// The timelines of which something is archived, in order.
    pub(super) async fn timelines(&self) -> Result<Vec<TimelineId>> {
        archived_timelines(&self.cluster).await
    }
}

/// The timelines of which something is in the archive of `cluster`, in order. Other names are none, whatever has them.
///
/// # Errors
/// `Repository` when it cannot be listed.
pub async fn archived_timelines(cluster: &ClusterRepository) -> Result<Vec<TimelineId>> {
    let (archived, mended) = (cluster.name.wal_prefix(), cluster.name.mended_wal_prefix());
    let (mut names, mended) = futures::try_join!(
        cluster.repository.list_names(&archived),
        cluster.repository.list_names(&mended)
    )?;
    names.extend(mended);
    names.sort_unstable();
    names.dedup();
    Ok(names
        .iter()
        .filter_map(|name| timeline_named(name))
        .collect())
}

/// What to do about a history that cannot be read: nobody knows then which way recovery goes.
const NO_HISTORY: &str = "a restore along a timeline that is named (--target-timeline) passes it over when it is not needed on the way. A server that has been on that timeline keeps the file in its pg_wal: store it once more with \"pgstrata archive-push\". If no server \
    of yours has been there, somebody has added the object: \"pgstrata rescue --since TIME --dry-run\" lists what was added, and when it is deleted everything goes on; \
    --repository-as-of TIME reads a bucket with versions as it was before";

/// The objects of the archive of `cluster`, for [`Archive::list_beside`], in the order of their files; of a file whose object is
/// lost what stands in for it.
///
/// # Errors
/// `Repository` when it cannot be listed.
pub async fn objects(cluster: &ClusterRepository) -> Result<Vec<ObjectInfo>> {
    let (archived, mended) = (cluster.name.wal_prefix(), cluster.name.mended_wal_prefix());
    let (mut objects, mended) = futures::try_join!(
        cluster.repository.list(&archived),
        cluster.repository.list(&mended)
    )?;
    mended::add_stand_ins(&cluster.name, &mut objects, mended);
    Ok(objects)
}

/// The timeline whose files are in the directory `name`.
fn timeline_named(name: &str) -> Option<TimelineId> {
    let number = u32::from_str_radix(name, 16).ok().filter(|&n| n > 0);
    let timeline = TimelineId::new(number?);
    (timeline.hex8() == name).then_some(timeline)
}
