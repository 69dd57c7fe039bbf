//! What a repository that no identity at hand opens tells by its names.
//!
//! "Not there" must be true of every repository. What lies in one that is closed cannot be read, but it has a name that needs no
//! key: the file itself, files behind it, histories, layers. Where the names leave open whether the archive goes on, the
//! repositories that are opened may know: a history or a layer of theirs with the same name is the same. What nobody knows
//! is never taken for the end.

use pgstrata_layer::abandoned;
use pgstrata_layer::label::Label;
use pgstrata_pgdata::{ArchiveFile, TimelineHistory, TimelineId, WalSegment};

use super::{Archive, timeline_of};
use crate::catalog;
use crate::cluster::ClusterRepository;
use crate::error::{Error, Kind, Result};

/// Why the archive cannot be said to end before the file, which none of the `opened` repositories has: `closed` has it, or
/// may go on behind it. Nothing when it ends there as far as its names and the others tell. `along`: as [`Archive::along`].
///
/// # Errors
/// When a repository cannot be read; `Refused` when the file's name is of another cluster.
pub async fn names_in_closed(
    closed: &ClusterRepository,
    file_name: &str,
    opened: &[ClusterRepository],
    along: Option<TimelineId>,
) -> Result<Option<Error>> {
    let archive = Archive::load(closed).await?;
    let file = archive.parse(file_name)?;
    let mut known = Vec::with_capacity(opened.len());
    for cluster in opened {
        known.push(Archive::load(cluster).await?.along(along));
    }
    let found = Closed {
        archive: &archive,
        opened: &known,
    };
    let verdict = found.judge(file).await?;
    // Only if the record is still there, the answers were answers.
    archive.check_record().await?;
    Ok(verdict)
}

struct Closed<'a> {
    archive: &'a Archive,
    opened: &'a [Archive],
}

impl Closed<'_> {
    async fn judge(&self, file: ArchiveFile) -> Result<Option<Error>> {
        let archive = self.archive;
        let name = file.file_name(archive.segment_size);
        let mended = archive.mended_files(timeline_of(file)).await?;
        let is_there = archive.cluster.repository.size(&archive.key(file)).await?;
        if is_there.is_some() || mended.contains(&name) {
            return Ok(Some(self.has(&name)));
        }
        let seen = match file {
            ArchiveFile::Segment(segment) => self.behind(segment, &mended).await?,
            ArchiveFile::History(TimelineId::FIRST) => return Ok(None),
            ArchiveFile::History(timeline) => self.later_timeline(timeline).await?,
            ArchiveFile::Partial(_) | ArchiveFile::BackupLabel { .. } => return Ok(None),
        };
        let seen = match seen {
            Some(seen) => Some(seen),
            None => self.layers(file).await?,
        };
        Ok(seen.map(|seen| self.may_go_on(&name, &seen)))
    }

    /// What shows, or leaves open, that the archive goes on behind a segment.
    async fn behind(&self, segment: WalSegment, mended: &[String]) -> Result<Option<String>> {
        let archive = self.archive;
        let stands_in = || archive.first_behind(segment, mended).cloned();
        let later = archive.later_file(segment).await?.or_else(stands_in);
        if let Some(name) = later {
            return Ok(Some(format!("\"{name}\" is there")));
        }
        for timeline in archive.timelines().await? {
            // Without its history nobody can follow it.
            if timeline <= segment.timeline || !self.names_history(timeline).await? {
                continue;
            }
            let seen = match self.known_history(timeline).await? {
                Some(history) => archive.passes(&history, segment),
                None => Some(format!("the history of timeline {timeline} is there")),
            };
            if seen.is_some() {
                return Ok(seen);
            }
        }
        Ok(None)
    }

    async fn names_history(&self, timeline: TimelineId) -> Result<bool> {
        let archive = self.archive;
        let file = ArchiveFile::History(timeline);
        let object = archive.cluster.repository.size(&archive.key(file)).await?;
        Ok(object.is_some() || {
            let name = file.file_name(archive.segment_size);
            self.archive.mended_files(timeline).await?.contains(&name)
        })
    }

    /// The history of `timeline`, out of a repository that is opened.
    async fn known_history(&self, timeline: TimelineId) -> Result<Option<TimelineHistory>> {
        for archive in self.opened {
            match archive.history(timeline).await {
                Err(error) if error.kind() == Kind::NotFound || error.is_lack_of_key() => {}
                Err(error) if archive.passes_over(timeline, &error) => {}
                read => return read.map(Some),
            }
        }
        Ok(None)
    }

    async fn later_timeline(&self, timeline: TimelineId) -> Result<Option<String>> {
        let known = self.archive.timelines().await?;
        let later = known.into_iter().find(|other| *other >= timeline);
        Ok(later.map(|other| format!("files of timeline {other} are there")))
    }

    /// A layer of which nobody knows whether its WAL goes beyond the file. Those that are not newer than one that is
    /// known do not: as in [`Archive::beyond`].
    async fn layers(&self, file: ArchiveFile) -> Result<Option<String>> {
        let timeline = timeline_of(file);
        // By the state that is known: a merge gives an old one a new label.
        let mut known: Option<String> = None;
        for archive in self.opened {
            let labels = catalog::labels(&archive.cluster).await?;
            let newest = catalog::newest_manifest(&archive.cluster, &labels, timeline).await?;
            let newest = newest.filter(|newest| newest.manifest.timeline <= timeline);
            known = known.max(newest.map(|newest| newest.manifest.state_stamp()));
        }
        let cluster = &self.archive.cluster;
        let mut last = None;
        for label in catalog::labels(cluster).await?.into_iter().rev() {
            let is_newer = known
                .as_ref()
                .is_none_or(|known| label.own_stamp() > known.as_str());
            if last.is_some() && !is_newer {
                break;
            }
            let key = cluster.name.manifest_key(&label);
            let object = match cluster.repository.get(&key).await {
                Ok(object) if abandoned::is_one(&object) => continue,
                Ok(object) => object,
                Err(error) if error.kind() == Kind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if is_newer && !self.is_known(&label, &object).await? {
                return Ok(Some(format!("layer {label} is there")));
            }
            last = Some(label);
        }
        match last {
            Some(label) if !self.archive.has_any(file).await? => Ok(Some(format!(
                "layer {label} needs WAL, and there is none at all any more"
            ))),
            _ => Ok(None),
        }
    }

    /// Whether a repository that is opened has that very layer.
    async fn is_known(&self, label: &Label, object: &[u8]) -> Result<bool> {
        for archive in self.opened {
            let cluster = &archive.cluster;
            let key = cluster.name.manifest_key(label);
            let own = match cluster.repository.get(&key).await {
                Err(error) if error.kind() == Kind::NotFound => continue,
                read => read?,
            };
            if own == object && cluster.sealing().await?.manifest(&own).is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has(&self, name: &str) -> Error {
        let (cluster, url) = self.place();
        let what = format!(
            "\"{name}\" is in the archive of cluster \"{cluster}\" in {url}, which the identity at hand does not open, and in no \
             repository that it opens"
        );
        Error::new(Kind::Refused, what)
            .for_lack_of_key()
            .hint(BRING_IT)
    }

    fn may_go_on(&self, name: &str, seen: &str) -> Error {
        let (cluster, url) = self.place();
        let what = format!(
            "\"{name}\" is in no repository, and the archive of cluster \"{cluster}\" may go on behind it in {url}, which the \
             identity at hand does not open: {seen}"
        );
        Error::new(Kind::WalMissing, what).hint(BRING_IT)
    }

    fn place(&self) -> (&str, &str) {
        let cluster = &self.archive.cluster;
        (cluster.name.as_str(), cluster.repository.url())
    }
}

const BRING_IT: &str = "bring it with \"pgstrata copy\" into a repository that this identity opens, or give an identity that opens \
    the other one (one file may hold several); to recover without the other one, take its table out of the configuration file";
