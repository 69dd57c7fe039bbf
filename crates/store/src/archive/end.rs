//! Whether the archive ends before a file that is not in it.
//!
//! PostgreSQL takes "not there" for the end of the archive and opens for writes. That is right only when nothing of what
//! comes later was archived either. A segment is known to have been whole when the archive has a later one of its
//! timeline, or the history of a timeline that left its own after it; the history of a timeline, when the archive has
//! anything else of that timeline or of a later one (the server asks for one number after the other, and stops at the
//! first that is missing). Backup labels and partial segments are no part of recovery.

use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegment};

use super::Archive;
use crate::error::{Error, Kind, Result};

/// One request's worth of names.
const NAMES: usize = 1000;

impl Archive {
    /// What shows that the archive does not end before `file`, which is not in it.
    pub(super) async fn beyond(&self, file: ArchiveFile) -> Result<Option<String>> {
        match file {
            ArchiveFile::Segment(segment) => match self.later_file(segment).await? {
                Some(name) => Ok(Some(format!("\"{name}\" is there"))),
                None => self.later_branch(segment).await,
            },
            // The first timeline has no history.
            ArchiveFile::History(TimelineId::FIRST) => Ok(None),
            ArchiveFile::History(timeline) => self.later_timeline(timeline).await,
            ArchiveFile::Partial(_) | ArchiveFile::BackupLabel { .. } => Ok(None),
        }
    }

    /// A file of the same timeline that the server could not have written before `segment` was whole.
    async fn later_file(&self, segment: WalSegment) -> Result<Option<String>> {
        let key = self.key(ArchiveFile::Segment(segment));
        let (prefix, _) = key.rsplit_once('/').unwrap_or((&key, ""));
        let mut after = key.clone();
        loop {
            let listed = self
                .cluster
                .repository
                .list_some(prefix, &after, NAMES)
                .await?;
            for key in &listed {
                let name = &key[prefix.len() + 1..];
                let number = match self.parse(name) {
                    Ok(ArchiveFile::Segment(s) | ArchiveFile::Partial(s)) => s.number,
                    Ok(ArchiveFile::BackupLabel { segment: s, .. }) => s.number,
                    _ => continue,
                };
                if number > segment.number {
                    return Ok(Some(name.to_owned()));
                }
            }
            match listed.last() {
                Some(last) if listed.len() >= NAMES => after.clone_from(last),
                _ => return Ok(None),
            }
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
                read => read?,
            };
            let left = history.switch_point(segment.timeline);
            if let Some(left) = left
                && left.segment(self.segment_size) > segment.number
            {
                return Ok(Some(format!(
                    "timeline {timeline} goes along timeline {} to {left}",
                    segment.timeline
                )));
            }
        }
        Ok(None)
    }

    async fn later_timeline(&self, timeline: TimelineId) -> Result<Option<String>> {
        let known = self.timelines().await?;
        let later = known.into_iter().find(|other| *other >= timeline);
        Ok(later.map(|other| format!("files of timeline {other} are there")))
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
