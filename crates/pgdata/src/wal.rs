//! WAL segments: their names, the positions they hold, and the header of their first page.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::{Fields, name_word};
use crate::{Error, Lsn, Major, Result, TimelineId};

/// Size of every WAL segment of a cluster: a power of two from 1 MiB to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct WalSegmentSize(u64);

impl WalSegmentSize {
    /// What `initdb` chooses unless told otherwise.
    pub const DEFAULT: Self = Self(16 << 20);

    /// The size in bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// How many segments share the middle eight digits of their names.
    const fn segments_per_name_part(self) -> u64 {
        (1 << 32) / self.0
    }
}

impl Lsn {
    /// The number of the WAL segment that holds this position, on whatever timeline.
    #[must_use]
    pub fn segment(self, size: WalSegmentSize) -> u64 {
        self.get() / size.get()
    }
}

impl TryFrom<u64> for WalSegmentSize {
    type Error = Error;

    fn try_from(size_bytes: u64) -> Result<Self> {
        if size_bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&size_bytes) {
            Ok(Self(size_bytes))
        } else {
            Err(Error::malformed(format!(
                "invalid WAL segment size {size_bytes}: expected a power of two from 1 MiB to 1 GiB"
            )))
        }
    }
}

impl From<WalSegmentSize> for u64 {
    fn from(size: WalSegmentSize) -> Self {
        size.0
    }
}

impl fmt::Display for WalSegmentSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// One WAL segment of one timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalSegment {
    /// The timeline whose records it holds.
    pub timeline: TimelineId,
    /// How many segments of the same size come before it.
    pub number: u64,
}

impl WalSegment {
    /// The segment that holds the byte at `lsn`.
    #[must_use]
    pub fn containing(timeline: TimelineId, lsn: Lsn, size: WalSegmentSize) -> Self {
        Self {
            timeline,
            number: lsn.segment(size),
        }
    }

    /// The segment that holds the byte before `end`: the last one that a range ending at `end` needs.
    #[must_use]
    pub fn containing_end(timeline: TimelineId, end: Lsn, size: WalSegmentSize) -> Self {
        Self {
            timeline,
            number: end.get().saturating_sub(1) / size.get(),
        }
    }

    /// The segments that hold `start..end`, in order; none when the range is empty.
    pub fn covering(
        timeline: TimelineId,
        range: std::ops::Range<Lsn>,
        size: WalSegmentSize,
    ) -> impl Iterator<Item = Self> + Clone + use<> {
        let first = range.start.segment(size);
        let past = if range.start < range.end {
            Self::containing_end(timeline, range.end, size).number + 1
        } else {
            first
        };
        (first..past).map(move |number| Self { timeline, number })
    }

    /// Reads a 24-digit file name.
    ///
    /// # Errors
    ///
    /// When it is not the name of a segment of this size.
    pub fn parse(name: &str, size: WalSegmentSize) -> Result<Self> {
        Self::from_digits(name, size).ok_or_else(|| {
            Error::malformed(format!(
                "invalid WAL segment name {name:?} for segments of {size} bytes"
            ))
        })
    }

    fn from_digits(digits: &str, size: WalSegmentSize) -> Option<Self> {
        let timeline = name_word(digits.get(..8)?)?;
        let high = u64::from(name_word(digits.get(8..16)?)?);
        let low = u64::from(name_word(digits.get(16..)?)?);
        if timeline == 0 || low >= size.segments_per_name_part() {
            return None;
        }
        let number = high * size.segments_per_name_part() + low;
        Some(Self {
            timeline: TimelineId::new(timeline),
            number,
        })
    }

    /// The file name: 24 hexadecimal digits.
    #[must_use]
    pub fn file_name(self, size: WalSegmentSize) -> String {
        let per_part = size.segments_per_name_part();
        format!(
            "{:08X}{:08X}{:08X}",
            self.timeline.get(),
            self.number / per_part,
            self.number % per_part
        )
    }

    /// Position of its first byte.
    #[must_use]
    pub fn start_lsn(self, size: WalSegmentSize) -> Lsn {
        Lsn::new(self.number.saturating_mul(size.get()))
    }

    /// Position after its last byte.
    #[must_use]
    pub fn end_lsn(self, size: WalSegmentSize) -> Lsn {
        self.next().start_lsn(size)
    }

    /// The segment after it on the same timeline.
    #[must_use]
    pub fn next(self) -> Self {
        Self {
            number: self.number.saturating_add(1),
            ..self
        }
    }
}

/// A file that PostgreSQL hands to `archive_command`, known by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArchiveFile {
    /// A complete WAL segment.
    Segment(WalSegment),
    /// The last segment of a timeline that ended within it: `….partial`.
    Partial(WalSegment),
    /// The history of a timeline: `0000000A.history`.
    History(TimelineId),
    /// The record of a finished backup: `….00000028.backup`.
    BackupLabel {
        /// The segment in which the backup started.
        segment: WalSegment,
        /// Where in that segment, in bytes.
        offset: u32,
    },
}

impl ArchiveFile {
    /// Reads a file name.
    ///
    /// # Errors
    ///
    /// When PostgreSQL archives no file of that name.
    pub fn parse(name: &str, size: WalSegmentSize) -> Result<Self> {
        Self::from_name(name, size).ok_or_else(|| {
            Error::malformed(format!(
                "invalid archive file name {name:?}: not a WAL segment of {size} bytes, a timeline history or a backup label"
            ))
        })
    }

    fn from_name(name: &str, size: WalSegmentSize) -> Option<Self> {
        if let Some(digits) = name.strip_suffix(".history") {
            let timeline = name_word(digits).filter(|&number| number > 0)?;
            return Some(Self::History(TimelineId::new(timeline)));
        }
        let segment = WalSegment::from_digits(name.get(..24)?, size)?;
        match name.get(24..)? {
            "" => Some(Self::Segment(segment)),
            ".partial" => Some(Self::Partial(segment)),
            rest => {
                let offset = name_word(rest.strip_prefix('.')?.strip_suffix(".backup")?)?;
                (u64::from(offset) < size.get()).then_some(Self::BackupLabel { segment, offset })
            }
        }
    }

    /// The file name.
    #[must_use]
    pub fn file_name(self, size: WalSegmentSize) -> String {
        match self {
            Self::Segment(segment) => segment.file_name(size),
            Self::Partial(segment) => format!("{}.partial", segment.file_name(size)),
            Self::History(timeline) => timeline.history_file_name(),
            Self::BackupLabel { segment, offset } => {
                format!("{}.{offset:08X}.backup", segment.file_name(size))
            }
        }
    }
}

/// The long header that opens every WAL segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalPageHeader {
    /// The version that wrote the page.
    pub major: Major,
    /// Timeline of the first record on the page.
    pub timeline: TimelineId,
    /// Position of the page.
    pub page_address: Lsn,
    /// The cluster.
    pub system_identifier: u64,
    /// Size of the segment.
    pub segment_size: WalSegmentSize,
    /// Size of a WAL page.
    pub block_size: u32,
}

impl WalPageHeader {
    /// Bytes that [`WalPageHeader::parse`] needs.
    pub const SIZE_BYTES: usize = 40;

    /// `XLP_LONG_HEADER`: the fields that only the first page of a segment has are there.
    const LONG_HEADER: u16 = 0x0002;
    /// `XLP_ALL_FLAGS`.
    const ALL_FLAGS: u16 = 0x000F;

    /// Reads the header of the first page of a segment.
    ///
    /// # Errors
    ///
    /// When the bytes are not the beginning of a WAL segment of a supported version.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields(bytes);
        let (Some(magic), Some(flags)) = (fields.half(0), fields.half(2)) else {
            return Err(too_short(bytes));
        };
        let major = Major::from_wal_page_magic(magic).ok_or_else(|| {
            Error::unsupported(format!(
                "invalid WAL page: magic {magic:04X} is not that of PostgreSQL 15 to 18"
            ))
        })?;
        if flags & Self::LONG_HEADER == 0 || flags & !Self::ALL_FLAGS != 0 {
            return Err(Error::malformed(format!(
                "invalid WAL page: flags {flags:04X} are not those of the first page of a segment"
            )));
        }
        let read = || {
            let timeline = fields.word(4)?;
            let page_address = fields.long(8)?;
            Some((
                timeline,
                page_address,
                fields.long(24)?,
                fields.word(32)?,
                fields.word(36)?,
            ))
        };
        let (timeline, page_address, system_identifier, segment_size, block_size) =
            read().ok_or_else(|| too_short(bytes))?;
        let segment_size = WalSegmentSize::try_from(u64::from(segment_size))?;
        if timeline == 0 || page_address % segment_size.get() != 0 {
            return Err(Error::malformed(format!(
                "invalid WAL page: timeline {timeline}, address {} do not begin a segment of {segment_size} bytes",
                Lsn::new(page_address),
            )));
        }
        Ok(Self {
            major,
            timeline: TimelineId::new(timeline),
            page_address: Lsn::new(page_address),
            system_identifier,
            segment_size,
            block_size,
        })
    }

    /// The segment that this page opens.
    #[must_use]
    pub fn segment(&self) -> WalSegment {
        WalSegment::containing(self.timeline, self.page_address, self.segment_size)
    }
}

fn too_short(bytes: &[u8]) -> Error {
    Error::malformed(format!(
        "invalid WAL page: {} bytes are less than a header of {}",
        bytes.len(),
        WalPageHeader::SIZE_BYTES
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMELINE: TimelineId = TimelineId::new(0x1A);
    const MIB: u64 = 1 << 20;

    fn sizes() -> impl Iterator<Item = WalSegmentSize> {
        (0..=10).map(|shift| WalSegmentSize::try_from(MIB << shift).unwrap())
    }

    #[test]
    fn sizes_are_powers_of_two_from_1_mib_to_1_gib() {
        for bad in [0, 1, MIB - 1, MIB / 2, 3 * MIB, 2048 * MIB, u64::MAX] {
            assert!(WalSegmentSize::try_from(bad).is_err(), "{bad} was taken");
        }
        assert_eq!(WalSegmentSize::DEFAULT.get(), 16 * MIB);
    }

    #[test]
    fn names_carry_into_the_middle_part() {
        let last = WalSegment {
            timeline: TIMELINE,
            number: 255,
        };
        assert_eq!(
            last.file_name(WalSegmentSize::DEFAULT),
            "0000001A00000000000000FF"
        );
        assert_eq!(
            last.next().file_name(WalSegmentSize::DEFAULT),
            "0000001A0000000100000000"
        );
        assert!(WalSegment::parse("0000001A0000000000000100", WalSegmentSize::DEFAULT).is_err());
    }

    #[test]
    fn every_size_reaches_the_end_of_the_wal() {
        for size in sizes() {
            let last = WalSegment::containing(TIMELINE, Lsn::new(u64::MAX), size);
            let name = last.file_name(size);
            assert_eq!(WalSegment::parse(&name, size).unwrap(), last, "size {size}");
            assert_eq!(
                last.start_lsn(size).get(),
                u64::MAX - size.get() + 1,
                "size {size}"
            );
        }
    }

    #[test]
    fn rule_7_a_stop_lsn_on_a_boundary_needs_the_segment_before_it() {
        for size in sizes() {
            let boundary = Lsn::new(7 * size.get());
            assert_eq!(
                WalSegment::containing_end(TIMELINE, boundary, size).number,
                6
            );
            assert_eq!(WalSegment::containing(TIMELINE, boundary, size).number, 7);
            let after = boundary.checked_add(1).unwrap();
            assert_eq!(WalSegment::containing_end(TIMELINE, after, size).number, 7);
        }
        assert_eq!(
            WalSegment::containing_end(TIMELINE, Lsn::INVALID, WalSegmentSize::DEFAULT).number,
            0
        );
    }

    #[test]
    fn a_range_is_covered_by_the_segments_of_its_bytes() {
        let size = WalSegmentSize::DEFAULT;
        let numbers = |start: u64, end: u64| -> Vec<u64> {
            WalSegment::covering(TIMELINE, Lsn::new(start)..Lsn::new(end), size)
                .map(|segment| segment.number)
                .collect()
        };
        assert_eq!(numbers(16 * MIB, 48 * MIB), [1, 2]);
        assert_eq!(numbers(16 * MIB + 40, 48 * MIB + 1), [1, 2, 3]);
        assert_eq!(numbers(17 * MIB, 18 * MIB), [1]);
        assert_eq!(numbers(17 * MIB, 17 * MIB), [0; 0]);
        assert_eq!(numbers(18 * MIB, 17 * MIB), [0; 0]);
    }

    #[test]
    fn archive_names_are_told_apart() {
        let size = WalSegmentSize::DEFAULT;
        let segment = WalSegment {
            timeline: TIMELINE,
            number: 0x2_0B,
        };
        for (name, file) in [
            ("0000001A000000020000000B", ArchiveFile::Segment(segment)),
            (
                "0000001A000000020000000B.partial",
                ArchiveFile::Partial(segment),
            ),
            (
                "0000001A000000020000000B.00000028.backup",
                ArchiveFile::BackupLabel {
                    segment,
                    offset: 0x28,
                },
            ),
            ("0000001A.history", ArchiveFile::History(TIMELINE)),
        ] {
            assert_eq!(ArchiveFile::parse(name, size).unwrap(), file);
            assert_eq!(file.file_name(size), name);
        }
    }

    #[test]
    fn other_names_are_not_archived() {
        for name in [
            "",
            "0000001A000000020000000",
            "0000001A000000020000000b",
            "0000001A000000020000000B0",
            "0000001A000000020000000B.Partial",
            "0000001A000000020000000B.partial.partial",
            "0000001A000000020000000B.28.backup",
            "0000001A000000020000000B.01000000.backup",
            "00000000000000020000000B",
            "00000000.history",
            "1A.history",
            "0000001A.history.tmp",
            "../0000001A.history",
            "+000001A000000020000000B",
            "0000001A0000000200000é0B",
            "RECOVERYXLOG",
        ] {
            assert!(
                ArchiveFile::parse(name, WalSegmentSize::DEFAULT).is_err(),
                "{name:?} was taken"
            );
        }
    }
}
