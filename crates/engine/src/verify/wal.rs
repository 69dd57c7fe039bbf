//! The WAL that a layer needs to become consistent, and the WAL with which restores go on from there.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::time::Instant;

use futures::StreamExt;
use pgstrata_pgdata::control::WalLevel;
use pgstrata_pgdata::wal_records::Meaning;
use pgstrata_pgdata::{
    ArchiveFile, Lsn, Major, RecordReader, SegmentEnds, TimelineHistory, TimelineId, WalContinuity,
    WalRecord, WalSegment, WalSegmentSize,
};
use pgstrata_store::archive::{Archive, ArchivedWal};
use pgstrata_store::catalog::{Catalog, Layer};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Result};

use super::outage::{kind_of, outlast, require_reachable};
use super::{FindingKind, LOOK_AGAIN, MAY_HAVE_COME, Verifier};
use crate::health::{self, Hole, LostHistory, RecoveryPath};

/// Files of the archive that were read; layers share them.
#[derive(Debug, Default)]
pub(super) struct WalSeen {
    good: HashSet<ArchiveFile>,
    bad: HashSet<ArchiveFile>,
    /// How each segment begins and ends that a key at hand opens, or why its records cannot be read to its end.
    ends: HashMap<WalSegment, Ends>,
    /// Where the server goes on with `wal_level = minimal` in a segment, which is rare.
    pub(super) minimal: HashMap<WalSegment, Vec<Lsn>>,
    /// The first layer seen that needs a segment to become consistent.
    needed: HashMap<WalSegment, String>,
    pub(super) read: u64,
    /// What was archived when it was last looked how the promised WAL fits together.
    pub(super) settled: Option<ArchivedWal>,
}

type Ends = std::result::Result<SegmentEnds, String>;

/// A segment whose records are read.
#[derive(Clone)]
struct SegmentReading {
    reader: RecordReader,
    /// Why they cannot be read further.
    stopped: Option<String>,
    /// Where the last record ends that was read.
    reached: Option<Lsn>,
    /// Where the server goes on with `wal_level = minimal`.
    minimal: Vec<Lsn>,
}

/// What was learnt of a segment.
struct SegmentRead {
    segment: WalSegment,
    ends: Ends,
    minimal: Vec<Lsn>,
}

impl SegmentReading {
    fn of(segment: WalSegment, size: WalSegmentSize, major: Major) -> Self {
        Self {
            reader: RecordReader::new(major, segment, size),
            stopped: None,
            reached: None,
            minimal: Vec::new(),
        }
    }

    /// What is no WAL is a finding only when recovery would have to go through it.
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let Self {
            reader,
            stopped,
            reached,
            minimal,
        } = self;
        let note = |record: WalRecord| {
            *reached = Some(record.end);
            if record.meaning == Meaning::WalLevel(WalLevel::Minimal) {
                minimal.push(record.start);
            }
        };
        if stopped.is_none()
            && let Err(error) = reader.feed(bytes, note)
        {
            *stopped = Some(error.to_string());
        }
        Ok(())
    }

    fn ends(&self) -> Ends {
        match &self.stopped {
            Some(why) => Err(why.clone()),
            None => self
                .reader
                .ends()
                .ok_or_else(|| "it is cut short".to_owned()),
        }
    }

    /// Whether the next segment has to say which `wal_level` the server goes on with in this one.
    fn is_left_open(&self) -> bool {
        self.stopped.is_none() && self.reader.may_go_on_to_change_wal_level()
    }
}

impl WalSeen {
    fn note(&mut self, read: SegmentRead) {
        let SegmentRead {
            segment,
            ends,
            minimal,
        } = read;
        self.ends.insert(segment, ends);
        if !minimal.is_empty() {
            self.minimal.insert(segment, minimal);
        }
    }

    /// What was found wrong may have been removed meanwhile.
    pub(super) fn look_again(&mut self) {
        self.bad.clear();
    }

    /// What to do about a segment with which no record of the one before it goes on.
    fn advice(&self, segment: &WalSegment) -> String {
        match self.needed.get(segment) {
            Some(layer) => format!(
                "{layer} needs the segment to become consistent, so keep it: where two servers, or two histories of one, have stored \
                 WAL under this cluster's name, give the server a name of its own (OPERATIONS.md, \"When the archive has another \
                 history\")"
            ),
            None => {
                "when the segment is another server's, delete the object, and archive the right one"
                    .to_owned()
            }
        }
    }

    /// Whether all that is missing was named with a layer that needs it.
    fn is_known(&self, hole: &Hole<'_>) -> bool {
        let mut numbers = hole.first.number..=hole.last;
        numbers.all(|number| {
            let segment = WalSegment {
                number,
                ..hole.first
            };
            self.bad.contains(&ArchiveFile::Segment(segment))
        })
    }

    fn is_new(&self, file: ArchiveFile) -> bool {
        !self.good.contains(&file) && !self.bad.contains(&file)
    }
}

/// For whom files of the archive are read, and why.
struct WalNeed {
    /// The layer that needs them; nothing when none is known.
    layer: String,
    size: WalSegmentSize,
    major: Major,
    why: String,
}

impl WalNeed {
    fn of(layer: &Layer, why: String) -> Result<Self> {
        let cluster = &layer.manifest.cluster;
        Ok(Self {
            layer: layer.label.to_string(),
            size: WalSegmentSize::try_from(u64::from(cluster.wal_segment_size))?,
            major: Major::try_from(u32::from(cluster.major))?,
            why,
        })
    }

    /// For no layer that is known; `any` is of the cluster.
    fn of_no_layer(any: &Layer, why: &str) -> Result<Self> {
        Ok(Self {
            layer: String::new(),
            ..Self::of(any, why.to_owned())?
        })
    }
}

impl Verifier {
    /// Every segment from start to stop, and the history of the timeline.
    pub(super) async fn wal_of(&self, layer: &Layer, seen: &mut WalSeen) -> Result<()> {
        let manifest = &layer.manifest;
        let size = WalSegmentSize::try_from(u64::from(manifest.cluster.wal_segment_size))?;
        let range = manifest.start_lsn..manifest.stop_lsn;
        let segments: Vec<_> = WalSegment::covering(manifest.timeline, range, size).collect();
        for segment in &segments {
            let label = || layer.label.to_string();
            seen.needed.entry(*segment).or_insert_with(label);
        }
        let files = segments.iter().copied().map(ArchiveFile::Segment);
        let history = history_of(manifest.timeline);
        let why = format!("a restore of {} needs it to become consistent", layer.label);
        let reader = WalNeed::of(layer, why)?;
        self.read_wal(files.chain(history), &reader, seen).await?;
        self.require_continuous(&segments, None, layer, seen);
        self.require_end(&segments, layer, &reader, seen).await
    }

    /// Every segment and history from the first layer to the end of each timeline, the histories of all others, and holes
    /// in between.
    pub(super) async fn promised_wal(&self, catalog: &Catalog, seen: &mut WalSeen) -> Result<()> {
        let Some(archive) = &self.archive else {
            return Ok(());
        };
        let archived = self.settled(archive, catalog, seen).await?;
        seen.settled = Some(archived.clone());
        let holes = health::holes(catalog, &archived, self.options.now());
        let unproved = health::beside::unproved(catalog, &archived);
        for hole in holes.iter().filter(|hole| !seen.is_known(hole)) {
            let key = archive.key(ArchiveFile::Segment(hole.first));
            let mut message = format!(
                "{}: a restore of {} ends before it",
                hole.describe(&archived),
                hole.from.label
            );
            if health::beside::is_doubted(&unproved, hole.first.timeline) {
                message.push_str(health::beside::MAY_BE_OF_ANOTHER);
            }
            let doubt = match hole.is_firm {
                _ if self.options.doubts(hole.is_young) => MAY_HAVE_COME,
                true => {
                    self.findings.add(FindingKind::WalMissing, "", key, message);
                    continue;
                }
                false => health::DOUBTFUL,
            };
            self.findings.add_doubt("", key, message + doubt);
        }
        for way in health::ways(catalog, &archived) {
            let runs = self.walk(&way, &archived, seen).await?;
            self.require_archived_levels(&way, &runs, catalog, seen);
        }
        self.timelines(catalog, &archived, seen).await
    }

    /// What recovery reads on one way; answers the segments that lie one behind the other.
    async fn walk(
        &self,
        way: &RecoveryPath<'_>,
        archived: &ArchivedWal,
        seen: &mut WalSeen,
    ) -> Result<Vec<Vec<WalSegment>>> {
        let size = archived.segment_size();
        let (first, _) = way.layer.own_wal(size);
        let stretches = archived.stretches(&way.history, first.start_lsn(size));
        let runs = stretches.into_iter().map(|(coverage, _)| {
            let parts = coverage.parts.into_iter();
            let run = parts.flat_map(|(timeline, first, last)| {
                (first..=last).map(move |number| WalSegment { timeline, number })
            });
            run.collect()
        });
        // Between them is a hole each.
        let runs: Vec<Vec<WalSegment>> = runs.collect();
        let timelines = way.history.entries().iter();
        let histories = timelines.flat_map(|entry| history_of(entry.timeline));
        let files = runs.iter().flatten().copied().map(ArchiveFile::Segment);
        let why = format!("a restore of {} cannot get past it", way.layer.label);
        // What the layer itself needs was read with it.
        let reader = WalNeed::of_no_layer(way.layer, &why)?;
        self.read_wal(files.chain(histories), &reader, seen).await?;
        for run in &runs {
            self.require_continuous(run, Some(&way.history), way.layer, seen);
        }
        Ok(runs)
    }

    /// The histories of all timelines, and the WAL of those that nobody can follow without theirs.
    async fn timelines(
        &self,
        catalog: &Catalog,
        archived: &ArchivedWal,
        seen: &mut WalSeen,
    ) -> Result<()> {
        let (Some(archive), Some(any)) = (&self.archive, catalog.layers.first()) else {
            return Ok(());
        };
        let lost = health::lost_histories(catalog, archived, self.options.now());
        for lost in &lost {
            let file = ArchiveFile::History(lost.timeline);
            // What is there and cannot be read is named when it is read.
            if archived.has_history(lost.timeline) || !seen.is_new(file) {
                continue;
            }
            let key = archive.key(file);
            let what = format!("{}: recovery stops when it asks for it", lost.describe());
            if self.options.doubts(lost.is_young()) {
                self.findings.add_doubt("", key, what + MAY_HAVE_COME);
                continue;
            }
            let hint = health::without_history(lost.timeline);
            let kind = FindingKind::WalMissing;
            self.findings.add_hinted(kind, "", (key, what), hint);
        }
        let listed = archived.by_timeline().map(|(timeline, _)| timeline);
        let there = listed.filter(|timeline| archived.has_history(*timeline));
        let histories = there.map(ArchiveFile::History);
        let size = archived.segment_size();
        let starts = catalog.layers.iter().map(|layer| layer.manifest.start_lsn);
        let start = starts.min().unwrap_or(Lsn::INVALID);
        let runs = lost.iter().flat_map(|lost| {
            let runs = archived.runs(lost.timeline).iter();
            runs.flat_map(move |run| {
                (run.first..=run.last).map(move |number| WalSegment {
                    timeline: lost.timeline,
                    number,
                })
            })
        });
        let segments = runs.filter(|segment| {
            segment.number >= start.segment(size) && !archived.was_released(*segment)
        });
        let reader = WalNeed::of_no_layer(any, "a recovery that asks for it stops")?;
        let files = histories.chain(segments.map(ArchiveFile::Segment));
        self.read_wal(files, &reader, seen).await
    }

    /// Files that no recovery asks for. Who has exchanged or spoilt one may have done more.
    pub(super) async fn wal_aside(
        &self,
        catalog: &Catalog,
        files: Vec<ArchiveFile>,
        seen: &mut WalSeen,
    ) -> Result<()> {
        let Some(any) = catalog.layers.first() else {
            return Ok(());
        };
        let why = "no recovery needs it, and it is not what was archived";
        let reader = WalNeed::of_no_layer(any, why)?;
        self.read_wal(files.into_iter(), &reader, seen).await
    }

    /// What is in the archive. What may be on its way there is waited for: a verification says what is, and not what may be.
    async fn settled(
        &self,
        archive: &Archive,
        catalog: &Catalog,
        seen: &WalSeen,
    ) -> Result<ArchivedWal> {
        let deadline = Instant::now() + self.options.patience();
        loop {
            let now = self.options.now();
            let archived = self.archived(archive).await?;
            let holes = health::holes(catalog, &archived, now);
            let young = holes.iter().filter(|hole| hole.is_young);
            let young = young.filter(|hole| !seen.is_known(hole));
            let mut waits_for = young.map(|hole| hole.describe(&archived));
            let lost = health::lost_histories(catalog, &archived, now);
            let lost = lost.iter().find(|lost| lost.is_young());
            let what = waits_for.next().or(lost.map(LostHistory::describe));
            let Some(what) = what.filter(|_| Instant::now() < deadline) else {
                return Ok(archived);
            };
            tracing::debug!("waiting: {what}");
            self.check_interrupted()?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// What is in the archive now, with all histories. One that cannot be read is named when its turn comes.
    async fn archived(&self, archive: &Archive) -> Result<ArchivedWal> {
        let mut archived = archive.list(iter::empty()).await?;
        let mut read = archive.read_histories(&mut archived).await;
        if read.as_ref().is_err_and(Error::is_outage) {
            require_reachable(&self.cluster).await?;
            archived = archive.list(iter::empty()).await?;
            read = archive.read_histories(&mut archived).await;
        }
        let mut unread = archived.unreadable_histories().values();
        let is_of_history = unread.any(Error::is_outage);
        match read {
            Err(error) if error.is_outage() && is_of_history => {
                require_reachable(&self.cluster).await?;
                Ok(archived)
            }
            read => read.map(|()| archived),
        }
    }

    /// Reads a file; answers what was learnt of a segment that a key at hand opens.
    async fn look_at(
        &self,
        archive: &Archive,
        file: ArchiveFile,
        reader: &WalNeed,
    ) -> Result<Option<SegmentRead>> {
        let cluster = &self.cluster;
        let whole = || outlast(cluster, move || archive.inspect(file));
        let read = match file {
            ArchiveFile::Segment(segment) => {
                let read = read_segment(cluster, archive, segment, reader);
                read.await.map(Some)
            }
            ArchiveFile::History(timeline) => {
                let read = outlast(cluster, || archive.history(timeline));
                read.await.map(|_| None)
            }
            _ => return whole().await.map(|_| None),
        };
        match read {
            // Who makes backups, or removes them, reads no WAL. Whether it is whole is seen all the same.
            Err(error) if error.is_lack_of_key() => {
                self.note_closed();
                whole().await.map(|_| None)
            }
            read => read,
        }
    }

    /// Reads each of `files` that was not read before. What was found wrong is read again for each layer that needs it: each is
    /// damaged.
    async fn read_wal(
        &self,
        files: impl Iterator<Item = ArchiveFile>,
        reader: &WalNeed,
        seen: &mut WalSeen,
    ) -> Result<()> {
        let Some(archive) = &self.archive else {
            return Ok(());
        };
        let mut once = HashSet::new();
        let is_wanted = |file: ArchiveFile| match reader.layer.is_empty() {
            true => seen.is_new(file),
            false => !seen.good.contains(&file),
        };
        let files: Vec<ArchiveFile> = files
            .filter(|file| is_wanted(*file) && once.insert(*file))
            .collect();
        let mut outcomes = futures::stream::iter(files)
            .map(|file| async move { (file, self.look_at(archive, file, reader).await) })
            .buffer_unordered(self.jobs);
        while let Some((file, outcome)) = outcomes.next().await {
            self.check_interrupted()?;
            let error = match outcome {
                Ok(read) => {
                    seen.read += 1;
                    seen.good.insert(file);
                    if let Some(read) = read {
                        seen.note(read);
                    }
                    continue;
                }
                Err(error) => error,
            };
            seen.bad.insert(file);
            let kind = match kind_of(&self.cluster, &error).await? {
                FindingKind::Missing => FindingKind::WalMissing,
                FindingKind::Damaged => FindingKind::WalDamaged,
                kind => kind,
            };
            let error = error.while_doing(&reader.why);
            let (layer, key) = (&reader.layer, archive.key(file));
            match file {
                ArchiveFile::History(timeline) if kind != FindingKind::Unreadable => {
                    let hint = health::without_history(timeline);
                    let found = (key, error.to_string());
                    self.findings.add_hinted(kind, layer, found, hint);
                }
                _ => self.findings.add_error(kind, layer, (key, &error)),
            }
        }
        Ok(())
    }
}

impl Verifier {
    /// Segments one behind the other, which recovery goes through from the first to the last: where one does not go on where
    /// the one before it ends, recovery takes that for the end of the WAL, and the server opens.
    ///
    /// Where the history leaves a timeline in the middle of a segment, and the archive has that of the timeline that was left
    /// alone, nothing is said: what comes behind it was stored by a backup for itself.
    fn require_continuous(
        &self,
        run: &[WalSegment],
        history: Option<&TimelineHistory>,
        layer: &Layer,
        seen: &WalSeen,
    ) {
        let Some(archive) = &self.archive else {
            return;
        };
        let is_left_within = |segment: &WalSegment| {
            let end = segment.end_lsn(archive.segment_size());
            let last = history.and_then(|history| history.timeline_at(Lsn::new(end.get() - 1)));
            last.is_some_and(|timeline| timeline != segment.timeline)
        };
        let mut continuity = WalContinuity::default();
        for (at, segment) in run.iter().enumerate() {
            let is_last = at + 1 == run.len() || is_left_within(segment);
            let why = match seen.ends.get(segment) {
                Some(Ok(ends)) => continuity.follow(ends).err().map(|error| error.to_string()),
                // The last one may end early: a server that is gone has written no further.
                Some(Err(why)) => {
                    continuity.interrupt();
                    (!is_last).then(|| why.clone())
                }
                // Named already, or no key at hand opens it.
                None => {
                    continuity.interrupt();
                    None
                }
            };
            if is_left_within(segment) {
                continuity.interrupt();
            }
            if let Some(why) = why {
                let key = archive.key(ArchiveFile::Segment(*segment));
                let message = format!(
                    "{why}: a restore of {} ends there, and the server opens without what is behind it; {}",
                    layer.label,
                    seen.advice(segment)
                );
                let of_layer = match history {
                    None => layer.label.as_str(),
                    Some(_) => "",
                };
                self.findings
                    .add(FindingKind::WalDamaged, of_layer, key, message);
            }
        }
    }
}

impl Verifier {
    /// Recovery of a layer goes through its last segment up to the layer's end at least. Only behind that may it end early.
    async fn require_end(
        &self,
        segments: &[WalSegment],
        layer: &Layer,
        need: &WalNeed,
        seen: &WalSeen,
    ) -> Result<()> {
        let (Some(archive), Some(last)) = (&self.archive, segments.last()) else {
            return Ok(());
        };
        let Some(Err(why)) = seen.ends.get(last) else {
            return Ok(());
        };
        // The last record that is needed may begin in the segment before.
        let tail = &segments[segments.len().saturating_sub(2)..];
        let read = outlast(&self.cluster, || last_record(archive, tail, need));
        let reached = match read.await {
            Ok(reached) => reached,
            Err(error) if error.is_outage() => return Err(error),
            // What cannot be read there is a finding of its own.
            Err(_) => return Ok(()),
        };
        let stop_lsn = layer.manifest.stop_lsn;
        if reached.is_some_and(|reached| reached >= stop_lsn) {
            return Ok(());
        }
        let message = format!(
            "{why}: a restore of {} needs the records up to {stop_lsn} to become consistent",
            layer.label
        );
        let key = archive.key(ArchiveFile::Segment(*last));
        self.findings
            .add(FindingKind::WalDamaged, &layer.label, key, message);
        Ok(())
    }
}

/// Where the last record ends that can be read in segments which follow one another.
async fn last_record(
    archive: &Archive,
    segments: &[WalSegment],
    need: &WalNeed,
) -> Result<Option<Lsn>> {
    let Some((first, further)) = segments.split_first() else {
        return Ok(None);
    };
    let read = async |reading, segment| {
        let file = ArchiveFile::Segment(segment);
        archive.walk(file, &reading, SegmentReading::take).await
    };
    let mut reading = read(SegmentReading::of(*first, need.size, need.major), *first).await?;
    for segment in further {
        reading.reader.follow(*segment)?;
        reading = read(reading, *segment).await?;
    }
    Ok(reading.reached)
}

/// The records of a segment, to the end of the last one that begins in it and that matters.
async fn read_segment(
    cluster: &ClusterRepository,
    archive: &Archive,
    segment: WalSegment,
    need: &WalNeed,
) -> Result<SegmentRead> {
    let take = SegmentReading::take;
    let reading = SegmentReading::of(segment, need.size, need.major);
    let file = ArchiveFile::Segment(segment);
    let mut reading = outlast(cluster, || archive.walk(file, &reading, take)).await?;
    let ends = reading.ends();
    let next = segment.next();
    if reading.is_left_open() && reading.reader.follow(next).is_ok() {
        let file = ArchiveFile::Segment(next);
        let walked = outlast(cluster, || archive.walk(file, &reading, take)).await;
        match walked {
            Ok(further) => reading = further,
            Err(error) if error.is_outage() => return Err(error),
            // Without the next segment recovery does not get there either, and that is its own finding.
            Err(_) => {}
        }
    }
    let mut minimal = reading.minimal;
    minimal.retain(|at| *at < segment.end_lsn(need.size));
    Ok(SegmentRead {
        segment,
        ends,
        minimal,
    })
}

/// The history file of `timeline`; the first has none.
fn history_of(timeline: TimelineId) -> Option<ArchiveFile> {
    (timeline != TimelineId::FIRST).then_some(ArchiveFile::History(timeline))
}
