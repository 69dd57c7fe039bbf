//! Reads records of the archived WAL, segment by segment.
//!
//! Segments are read a few at once and counted in order. Each is read by itself; a record that matters and goes on in the
//! next segment is completed from there. WAL that is missing, damaged or no WAL ends a stretch and says why: recovery would
//! not get past it either. That the repository cannot be asked is an error.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_pgdata::wal::{ArchiveFile, WalSegment, WalSegmentSize};
use pgstrata_pgdata::{Major, RecordReader};
use pgstrata_store::archive::Archive;
use pgstrata_store::error::{Error, Kind, Result};

use super::sightings::{Sightings, Wanted};

/// As many pieces of 8 MiB and their contents are in memory.
const AT_ONCE: usize = 8;

/// A stretch doubles up to here: what lies near is found with one request, what lies far with few pauses.
const MOST_IN_A_STRETCH: u64 = 64;

const SAY_EVERY: Duration = Duration::from_secs(10);

/// The segments on the way, as [`pgstrata_store::archive::Coverage`] has them.
pub(super) type Parts = [(TimelineId, u64, u64)];

/// WAL that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    /// Where the segment begins.
    pub(super) at: Lsn,
    pub(super) why: String,
}

/// One search through archived WAL.
pub(super) struct WalScan<'a> {
    archive: &'a Archive,
    major: Major,
    size: WalSegmentSize,
    wanted: Arc<Wanted>,
    /// How to call what is looked for.
    name: String,
    began: Instant,
    said: Instant,
    segments: u64,
    pub(super) seen: Sightings,
}

impl<'a> WalScan<'a> {
    pub(super) fn new(
        archive: &'a Archive,
        major: Major,
        size: WalSegmentSize,
        wanted: Wanted,
        name: String,
    ) -> Self {
        Self {
            archive,
            major,
            size,
            wanted: Arc::new(wanted),
            name,
            began: Instant::now(),
            said: Instant::now(),
            segments: 0,
            seen: Sightings::default(),
        }
    }

    /// What it took: "12 WAL segments were read in 0.3 s".
    pub(super) fn cost(&self) -> String {
        let plural = if self.segments == 1 { " was" } else { "s were" };
        format!(
            "{} WAL segment{plural} read in {:.1} s",
            self.segments,
            self.began.elapsed().as_secs_f64()
        )
    }

    /// Reads the records that begin in `range`, from its start on, until nothing is to be learnt.
    pub(super) async fn forward(
        &mut self,
        parts: &Parts,
        range: Range<Lsn>,
    ) -> Result<Option<Unread>> {
        let (mut number, past) = self.numbers(&range);
        let mut length = 1;
        while number < past && !self.is_done() {
            let end = past.min(number + length);
            let stretch = number..end;
            if let Some(unread) = self.stretch(parts, stretch, &range).await? {
                return Ok(Some(unread));
            }
            number = end;
            length = (length * 2).min(MOST_IN_A_STRETCH);
        }
        Ok(None)
    }

    /// Reads the records that begin in `range`, from its end on, until a hit is seen. What could not be read does not
    /// keep it from looking further back.
    pub(super) async fn backward(
        &mut self,
        parts: &Parts,
        range: Range<Lsn>,
    ) -> Result<Option<Unread>> {
        let (first, mut past) = self.numbers(&range);
        let mut length = 1;
        let mut unread = None;
        while first < past && !self.is_done() {
            let begin = first.max(past.saturating_sub(length));
            let found = self.stretch(parts, begin..past, &range).await?;
            unread = found.or(unread);
            past = begin;
            length = (length * 2).min(MOST_IN_A_STRETCH);
        }
        Ok(unread)
    }

    fn is_done(&self) -> bool {
        self.wanted.first_is_enough() && self.seen.is_hit()
    }

    /// Numbers of the segments that hold `range`.
    fn numbers(&self, range: &Range<Lsn>) -> (u64, u64) {
        let first = range.start.segment(self.size);
        let last = range.end.get().saturating_sub(1) / self.size.get();
        match range.is_empty() {
            true => (first, first),
            false => (first, last + 1),
        }
    }

    async fn stretch(
        &mut self,
        parts: &Parts,
        numbers: Range<u64>,
        range: &Range<Lsn>,
    ) -> Result<Option<Unread>> {
        let (archive, size) = (self.archive, self.size);
        let looks = numbers.map(|number| {
            let look = self.look_at(parts, number, range);
            async move { (number, read(archive, parts, number, look).await) }
        });
        let looks: Vec<_> = looks.collect();
        let mut looks = stream::iter(looks).buffered(AT_ONCE);
        while let Some((number, seen)) = looks.next().await {
            self.say();
            let error = match seen {
                Ok(seen) => {
                    self.segments += 1;
                    self.seen.join(seen);
                    continue;
                }
                Err(error) => error,
            };
            return match error.kind() {
                Kind::Damaged | Kind::Unsupported | Kind::NotFound | Kind::WalMissing => {
                    Ok(Some(Unread {
                        at: Lsn::new(number.saturating_mul(size.get())),
                        why: error.to_string(),
                    }))
                }
                _ => Err(error.while_doing(format!("could not look for {}", self.name))),
            };
        }
        Ok(None)
    }

    fn look_at(&self, parts: &Parts, number: u64, range: &Range<Lsn>) -> Option<Look> {
        let segment = segment_of(parts, number)?;
        let begin = range.start.max(segment.start_lsn(self.size));
        let end = range.end.min(segment.end_lsn(self.size));
        Some(Look {
            reader: RecordReader::new(self.major, segment, self.size),
            wanted: Arc::clone(&self.wanted),
            range: begin..end,
            seen: Sightings::default(),
        })
    }

    /// Now and then, so that nobody thinks that nothing happens.
    fn say(&mut self) {
        if self.said.elapsed() > SAY_EVERY {
            self.said = Instant::now();
            tracing::info!("looking for {}: {}", self.name, self.cost());
        }
    }
}

/// One segment that is read.
#[derive(Clone)]
struct Look {
    reader: RecordReader,
    wanted: Arc<Wanted>,
    /// Records that begin elsewhere do not count.
    range: Range<Lsn>,
    seen: Sightings,
}

impl Look {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let Self {
            reader,
            wanted,
            range,
            seen,
        } = self;
        reader.feed(bytes, |record| {
            if range.contains(&record.start) {
                seen.see(wanted, &record);
            }
        })?;
        Ok(())
    }
}

/// What the records say that begin in segment `number`.
async fn read(
    archive: &Archive,
    parts: &Parts,
    number: u64,
    look: Option<Look>,
) -> Result<Sightings> {
    let missing = || Error::new(Kind::WalMissing, format!("segment {number} is not there"));
    let mut look = look.ok_or_else(missing)?;
    let mut next = number;
    while let Some(segment) = segment_of(parts, next) {
        if next > number {
            look.reader.follow(segment)?;
        }
        let file = ArchiveFile::Segment(segment);
        look = archive.walk(file, &look, Look::take).await?;
        // What opens in a later segment is that one's.
        if look
            .reader
            .open_record()
            .is_none_or(|start| start >= look.range.end)
        {
            break;
        }
        next += 1;
    }
    Ok(look.seen)
}

fn segment_of(parts: &Parts, number: u64) -> Option<WalSegment> {
    let mut parts = parts.iter();
    let &(timeline, ..) = parts.find(|(_, first, last)| (*first..=*last).contains(&number))?;
    Some(WalSegment { timeline, number })
}
