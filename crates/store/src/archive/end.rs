//! Whether the archive ends before a file that is not in it.
//!
//! PostgreSQL takes "not there" for the end of the archive and opens for writes. That is right only when nothing of what
//! comes later was archived either. A segment is known to have been whole when the archive has a later one of its
//! timeline, or the history of a timeline that left its own after it; the history of a timeline, when the archive has
//! anything else of that timeline or of a later one (the server asks for one number after the other, and stops at the
//! first that is missing). Backup labels and partial segments are no part of recovery.
//!
//! Layers tell it too, when the WAL that would have told is gone itself: each was made when its own WAL was in the archive.

use pgstrata_pgdata::{ArchiveFile, TimelineHistory, TimelineId, WalSegment};

use super::{Archive, timeline_of};
use crate::catalog;
use crate::error::{Error, Kind, Result};
use crate::repository::record::is_far;

/// One request's worth of names.
const NAMES: usize = 1000;

impl Archive {
    /// What shows that the archive does not end before `file`, which is not in it.
    pub(super) async fn beyond(&self, file: ArchiveFile) -> Result<Option<String>> {
        let in_archive = match file {
            ArchiveFile::History(timeline) if self.comes_after(timeline) => return Ok(None),
            // What is far ahead is passed over.
            ArchiveFile::History(timeline) if self.leaves_aside(timeline) => None,
            ArchiveFile::Segment(segment) => self.later_wal(segment).await?,
            // The first timeline has no history, and servers ask for it.
            ArchiveFile::History(TimelineId::FIRST) => return Ok(None),
            ArchiveFile::History(timeline) => self.later_timeline(timeline).await?,
            ArchiveFile::Partial(_) | ArchiveFile::BackupLabel { .. } => return Ok(None),
        };
        match in_archive {
            Some(seen) => Ok(Some(seen)),
            None => self.layer_beyond(file).await,
        }
    }

    /// What shows that the archive does not end before `segment`, when that is not in it.
    ///
    /// # Errors
    /// Those of the repository.
    pub async fn goes_on_without(&self, segment: WalSegment) -> Result<Option<String>> {
        let file = ArchiveFile::Segment(segment);
        // At once: whoever asks may be far from the store.
        let (archived, by_layer) =
            futures::try_join!(self.later_wal(segment), self.layer_beyond(file))?;
        let Some(seen) = archived.or(by_layer) else {
            return Ok(None);
        };
        // It may have come, and more behind it, since somebody found it missing.
        let now = self.cluster.repository.size(&self.key(file)).await?;
        Ok(now.is_none().then_some(seen))
    }

    /// What the archive itself has that came after `segment`.
    async fn later_wal(&self, segment: WalSegment) -> Result<Option<String>> {
        let (later, mended) = futures::try_join!(
            self.later_file(segment),
            self.mended_files(segment.timeline)
        )?;
        match later {
            Some(name) if name == segment.file_name(self.segment_size) => {
                return Ok(Some("the store lists it".to_owned()));
            }
            Some(name) => return Ok(Some(format!("\"{name}\" is there"))),
            None => {}
        }
        // What was stored once more was archived, whatever became of the object for which it stands in.
        match self.first_behind(segment, &mended) {
            Some(name) => Ok(Some(format!(
                "\"{name}\" was archived, and what stands in for it is there"
            ))),
            None => self.later_branch(segment).await,
        }
    }

    /// A file of the same timeline that the server could not have written before `segment` was whole; or `segment` itself,
    /// when it has come meanwhile, or the store lists what it says is not there.
    pub(super) async fn later_file(&self, segment: WalSegment) -> Result<Option<String>> {
        let key = self.key(ArchiveFile::Segment(segment));
        let (prefix, own) = key.rsplit_once('/').unwrap_or((&key, ""));
        // Without its last digit, it comes before itself.
        let mut after = key[..key.len() - 1].to_owned();
        loop {
            let listed = self
                .cluster
                .repository
                .list_some(prefix, &after, NAMES)
                .await?;
            for key in &listed {
                let name = &key[prefix.len() + 1..];
                if name == own || self.number_of(name) > Some(segment.number) {
                    return Ok(Some(name.to_owned()));
                }
            }
            match listed.last() {
                Some(last) if listed.len() >= NAMES => after.clone_from(last),
                _ => return Ok(None),
            }
        }
    }

    /// The first of these files that the server could not have written before `segment` was whole.
    pub(super) fn first_behind<'n>(
        &self,
        segment: WalSegment,
        names: &'n [String],
    ) -> Option<&'n String> {
        let mut names = names.iter();
        names.find(|name| self.number_of(name) > Some(segment.number))
    }

    /// The number of the segment to which the file of that name belongs.
    pub(super) fn number_of(&self, name: &str) -> Option<u64> {
        match self.parse(name).ok()? {
            ArchiveFile::Segment(s) | ArchiveFile::Partial(s) => Some(s.number),
            ArchiveFile::BackupLabel { segment, .. } => Some(segment.number),
            ArchiveFile::History(_) => None,
        }
    }

    /// A history that goes along the timeline of `segment` beyond its end.
    async fn later_branch(&self, segment: WalSegment) -> Result<Option<String>> {
        for timeline in self.timelines().await? {
            if timeline <= segment.timeline {
                continue;
            }
            let history = match self.history(timeline).await {
                // Without its history nobody can follow it.
                Err(error) if error.kind() == Kind::NotFound => continue,
                // It may come from here, and then the WAL between is lost.
                Err(error) if self.passes_over(timeline, &error) => {
                    let begins = self.first_file(timeline).await?;
                    match begins.filter(|(number, _)| *number > segment.number) {
                        Some((_, name)) => {
                            return Ok(Some(format!(
                                "\"{name}\" is there, of a timeline whose history cannot be read"
                            )));
                        }
                        None => continue,
                    }
                }
                read => read?,
            };
            let seen = self.passes(&history, segment);
            if seen.is_some() {
                return Ok(seen);
            }
        }
        Ok(None)
    }

    /// The first file of WAL of `timeline`, and the number of its segment.
    pub(super) async fn first_file(&self, timeline: TimelineId) -> Result<Option<(u64, String)>> {
        let wal = self.cluster.name.wal_prefix();
        let prefix = format!("{wal}/{}", timeline.hex8());
        let repository = &self.cluster.repository;
        let listed = repository.list_some(&prefix, &prefix, NAMES).await?;
        let mut names = listed.iter().map(|key| &key[prefix.len() + 1..]);
        Ok(names.find_map(|name| Some((self.number_of(name)?, name.to_owned()))))
    }

    /// How far that history goes along the timeline of `segment`, when that is beyond its end.
    pub(super) fn passes(&self, history: &TimelineHistory, segment: WalSegment) -> Option<String> {
        let left = history.switch_point(segment.timeline)?;
        let (timeline, along) = (history.timeline(), segment.timeline);
        (left.segment(self.segment_size) > segment.number)
            .then(|| format!("timeline {timeline} goes along timeline {along} to {left}"))
    }

    /// A layer that was made when the archive held the file, or held any WAL though it holds none now.
    ///
    /// Along one timeline LSNs ascend with time, and so do timelines. So the newest layer tells that is not of a later
    /// timeline than the file, or else the newest of all.
    async fn layer_beyond(&self, file: ArchiveFile) -> Result<Option<String>> {
        let labels = catalog::labels(&self.cluster).await?;
        let timeline = timeline_of(file);
        let newest = catalog::newest_manifest(&self.cluster, &labels, timeline).await?;
        let Some(catalog::Known { label, manifest }) = newest else {
            return Ok(None);
        };
        let goes_beyond = match file {
            ArchiveFile::Segment(segment) if manifest.timeline == timeline => {
                let stop = manifest.stop_lsn;
                let end = WalSegment::containing_end(timeline, stop, self.segment_size);
                end.number >= segment.number
            }
            ArchiveFile::History(_) => manifest.timeline >= timeline,
            _ => false,
        };
        if goes_beyond {
            let (timeline, stop) = (manifest.timeline, manifest.stop_lsn);
            return Ok(Some(format!(
                "layer {label} goes along timeline {timeline} to {stop}"
            )));
        }
        if self.has_any(file).await? {
            return Ok(None);
        }
        Ok(Some(format!(
            "layer {label} needs WAL, and there is none at all any more"
        )))
    }

    /// Whether there is any WAL at all. Mostly the segment before the one asked for tells.
    pub(super) async fn has_any(&self, file: ArchiveFile) -> Result<bool> {
        let repository = &self.cluster.repository;
        if let ArchiveFile::Segment(segment) = file
            && let Some(number) = segment.number.checked_sub(1)
        {
            let before = ArchiveFile::Segment(WalSegment { number, ..segment });
            if repository.size(&self.key(before)).await?.is_some() {
                return Ok(true);
            }
        }
        let wal = self.cluster.name.wal_prefix();
        let first = repository.list_some(&wal, &wal, 1).await?;
        Ok(!first.is_empty())
    }

    /// What shows, to a recovery that stays on an earlier timeline, that the history of another one is missing: the number of
    /// that timeline is not free. Who puts something under a number far ahead has not used up those before it.
    pub(super) async fn taken_before(&self, file: ArchiveFile) -> Result<Option<String>> {
        let ArchiveFile::History(timeline) = file else {
            return Ok(None);
        };
        if !self.leaves_aside(timeline) {
            return Ok(None);
        }
        let next = self.next_known(timeline).await?;
        let near = next.filter(|other| !is_far(other.get(), timeline.get()));
        Ok(near.map(|other| {
            format!("its history is missing, and files of timeline {other} are there")
        }))
    }

    async fn later_timeline(&self, timeline: TimelineId) -> Result<Option<String>> {
        let later = self.next_known(timeline).await?;
        Ok(later.map(|other| format!("files of timeline {other} are there")))
    }

    /// The first timeline from `timeline` on of which there is anything.
    async fn next_known(&self, timeline: TimelineId) -> Result<Option<TimelineId>> {
        let known = self.timelines().await?;
        Ok(known.into_iter().find(|other| *other >= timeline))
    }

    /// The error of a file that is missing though the archive goes on, as `seen` shows.
    pub(super) fn hole(&self, file: ArchiveFile, seen: &str) -> Error {
        let name = file.file_name(self.segment_size);
        let (cluster, url) = (&self.cluster.name, self.cluster.repository.url());
        Error::new(
            Kind::WalMissing,
            format!(
                "\"{name}\" is missing from the archive of cluster \"{}\" in {url}, which does not end before it: {seen}",
                cluster.as_str()
            ),
        )
        .hint(
            "bring it with archive-push from where it still is (pg_wal of a server, another archive); \
             or recover to a point before it; or, on a standby that can stream it, add --on-hole=end to archive-get",
        )
    }
}
