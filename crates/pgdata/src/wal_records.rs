//! Records of the WAL: where each begins and ends, and what those say at which a recovery can be told to stop.
//!
//! [`RecordReader`] takes the bytes of one segment, in order and in pieces of any size, and hands out its records. Of most
//! it reads the header alone; transaction ends, restore points, checkpoints, new tablespaces, databases that are made
//! or dropped, new files of relations, and changes of `wal_level` are gathered whole, and their checksum is checked. A record that
//! began in an earlier segment is passed over; one that goes on in the next is completed by [`RecordReader::follow`]. Every page must be the one that belongs there, and every record must
//! point back to the one before it, as the server's own reader (`xlogreader.c`) wants it. Whatever does not fit is an error.
//!
//! The layouts are those of `access/xlogrecord.h`, `access/xlog_internal.h`, `access/xact.h`, `access/rmgrlist.h`,
//! `catalog/pg_control.h`, `catalog/storage_xlog.h` and `commands/dbcommands_xlog.h`. From 15 to 18 only `xl_xact_stats_item` differs.

mod decode;

use crate::bytes::Fields;
use crate::control::WalLevel;
use crate::relation::{DatabaseDirectory, RelationFork};
use crate::wal_pages::WAL_PAGE_BYTES;
use crate::{
    Error, FileChecksum, Lsn, Major, Result, TimelineId, WalPageHeader, WalSegment, WalSegmentSize,
};
use decode::{behind, main_data};

/// [`WAL_PAGE_BYTES`] as a length in memory.
const PAGE_BYTES: usize = 8192;

/// `SizeOfXLogShortPHD` and `SizeOfXLogLongPHD`, both aligned.
const SHORT_HEADER_BYTES: usize = 24;
const LONG_HEADER_BYTES: usize = WalPageHeader::SIZE_BYTES;

/// `XLP_FIRST_IS_CONTRECORD`: the page begins with the rest of a record.
const CONTINUES: u16 = 0x0001;
/// `XLP_LONG_HEADER`.
const LONG_HEADER: u16 = 0x0002;
/// `XLP_FIRST_IS_OVERWRITE_CONTRECORD`: the rest of the record before was never written, and never will be.
const OVERWRITES: u16 = 0x0008;
/// `XLP_ALL_FLAGS`.
const ALL_FLAGS: u16 = 0x000F;

/// `SizeOfXLogRecord`.
const RECORD_HEADER_BYTES: usize = 24;
const RECORD_HEADER: u64 = 24;

/// `MaxAllocSize`, which a server of 15 can still replay; later ones write at most `XLogRecordMaxSize`, 4 MiB less.
const MOST_RECORD_BYTES: u64 = 1 << 30;

/// Records begin at multiples of this (`MAXIMUM_ALIGNOF`).
const ALIGNMENT: u64 = 8;

/// `RM_XLOG_ID`, `RM_XACT_ID`, `RM_SMGR_ID`, `RM_DBASE_ID` and `RM_TBLSPC_ID`.
const XLOG: u8 = 0;
const XACT: u8 = 1;
const STORAGE: u8 = 2;
const DATABASE: u8 = 4;
const TABLESPACE: u8 = 5;
/// `RM_MAX_BUILTIN_ID` (`RM_LOGICALMSG_ID`), and `RM_MIN_CUSTOM_ID` of extensions.
const LAST_BUILT_IN: u8 = 21;
const FIRST_CUSTOM: u8 = 128;

/// `XLR_RMGR_INFO_MASK`: what of `xl_info` belongs to the resource manager.
const INFO_MASK: u8 = 0xF0;
const XLOG_CHECKPOINT_SHUTDOWN: u8 = 0x00;
const XLOG_CHECKPOINT_ONLINE: u8 = 0x10;
const XLOG_SWITCH: u8 = 0x40;
const XLOG_PARAMETER_CHANGE: u8 = 0x60;
const XLOG_RESTORE_POINT: u8 = 0x70;

/// Headers of the record and its data, then `xl_parameter_change`.
const PARAMETER_CHANGE_BYTES: u64 = 24 + 2 + 28;

/// `XLOG_SMGR_CREATE`, and headers of the record and its data, then `xl_smgr_create`.
const STORAGE_CREATE: u8 = 0x10;
const STORAGE_CREATE_BYTES: u64 = 24 + 2 + 16;

/// `XLOG_DBASE_CREATE_FILE_COPY`, `XLOG_DBASE_CREATE_WAL_LOG` and `XLOG_DBASE_DROP`.
const DATABASE_COPY: u8 = 0x00;
const DATABASE_CREATE: u8 = 0x10;
const DATABASE_DROP: u8 = 0x20;

/// `XLOG_TBLSPC_CREATE` (`commands/tablespace.h`).
const TABLESPACE_CREATE: u8 = 0x00;
/// With `MAXPGPATH`, the OID, and headers of the record and its data.
const MOST_TABLESPACE_BYTES: u64 = 1024 + 4 + 24 + 5;

/// `XLOG_XACT_OPMASK`.
const XACT_OPERATION: u8 = 0x70;
const XACT_COMMIT: u8 = 0x00;
const XACT_PREPARE: u8 = 0x10;
const XACT_ABORT: u8 = 0x20;
const XACT_COMMIT_PREPARED: u8 = 0x30;
const XACT_ABORT_PREPARED: u8 = 0x40;
/// `XLOG_XACT_HAS_INFO`: flags follow the time.
const XACT_HAS_INFO: u8 = 0x80;

/// `XACT_XINFO_HAS_…`: which parts follow the flags, in the order in which `ParseCommitRecord` reads them.
const HAS_DATABASE: u32 = 1 << 0;
const HAS_SUBTRANSACTIONS: u32 = 1 << 1;
const HAS_FILES: u32 = 1 << 2;
const HAS_DROPPED_STATISTICS: u32 = 1 << 8;
const HAS_INVALIDATIONS: u32 = 1 << 3;
const HAS_PREPARED: u32 = 1 << 4;

/// A transaction, without its epoch: all that a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u32);

/// A moment on the clock of the server that wrote it: microseconds since 2000-01-01 00:00 UTC (`TimestampTz`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalTime(pub i64);

/// How many microseconds lie between 1970 and 2000.
const UNIX_EPOCH: i64 = 946_684_800_000_000;

impl WalTime {
    /// Microseconds since 1970-01-01 00:00 UTC; `None` when that is no number any more.
    #[must_use]
    pub fn unix_microseconds(self) -> Option<i64> {
        self.0.checked_add(UNIX_EPOCH)
    }

    /// From seconds since 1970-01-01 00:00 UTC (`pg_time_t`); `None` when that is no number any more.
    fn of_unix_seconds(seconds: i64) -> Option<Self> {
        let micros = seconds.checked_mul(1_000_000)?;
        micros.checked_sub(UNIX_EPOCH).map(Self)
    }
}

/// The end of a transaction: where recovery looks for transactions and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionEnd {
    /// The transaction that ends; of a prepared one, that which prepared it.
    pub transaction: TransactionId,
    /// When it ended.
    pub time: WalTime,
    /// Whether it committed.
    pub committed: bool,
    /// Those of its subtransactions that have transaction IDs and end in the same way.
    pub subtransactions: Vec<TransactionId>,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// What `pg_create_restore_point()` wrote.
    RestorePoint {
        /// Its name, in whatever encoding.
        name: Vec<u8>,
        /// When it was made.
        time: WalTime,
    },
    /// A commit or an abort, also of a prepared transaction.
    End(TransactionEnd),
    /// `PREPARE TRANSACTION`, which ends nothing yet.
    Prepared(TransactionId),
    /// A checkpoint.
    Checkpoint {
        /// When it began, in whole seconds.
        time: WalTime,
    },
    /// `CREATE TABLESPACE`.
    TablespaceCreated {
        /// Its OID.
        oid: u32,
        /// The directory that the statement named, in whatever encoding; empty for one inside the data directory.
        location: Vec<u8>,
    },
    /// `CREATE DATABASE`, or `ALTER DATABASE ... SET TABLESPACE`: one directory of it was made.
    DatabaseMade {
        /// The directory that was made.
        directory: DatabaseDirectory,
        /// The directory of which it is a copy that recovery makes again; `None` when records of their own have its contents.
        copy_of: Option<DatabaseDirectory>,
    },
    /// `DROP DATABASE`, or the end of a move: these directories were removed.
    DatabaseDropped(Vec<DatabaseDirectory>),
    /// The init fork of a relation was made: the relation is unlogged, and at the end of recovery the server makes its main fork
    /// of that one.
    InitForkMade(RelationFork),
    /// What the server had for `wal_level` from there on; it may be what it had before.
    WalLevel(WalLevel),
    /// Anything else: nothing but the header was read.
    Other,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalRecord {
    /// Where it begins.
    pub start: Lsn,
    /// Where the next one can begin at the earliest.
    pub end: Lsn,
    /// What it says.
    pub meaning: Meaning,
}

/// Reads the records of a segment.
#[derive(Clone, Debug)]
pub struct RecordReader {
    major: Major,
    size: WalSegmentSize,
    /// The segment that is being read.
    segment: WalSegment,
    /// Where the next page belongs.
    position: Lsn,
    /// Where the last whole record began.
    previous: Option<Lsn>,
    /// How the first page goes on with what was before it.
    entrance: Entrance,
    /// What the first record that begins here says is before it.
    points_back: Option<Lsn>,
    state: ScanState,
    /// Whether there was anything behind a switch.
    has_remains: bool,
    /// Bytes of a page that is not complete.
    pending: Vec<u8>,
}

#[derive(Clone, Debug)]
enum ScanState {
    /// Nothing was read yet.
    Fresh,
    /// The next record begins at the next aligned place.
    Between,
    /// A record has begun and has not ended.
    Within(Partial),
    /// What is left of a record that began before the first segment that was read.
    Foreign { left: u64, whole: u64 },
    /// A switch: the rest of the segment is empty.
    Switched,
}

/// A record, as far as it was read.
#[derive(Clone, Debug)]
struct Partial {
    start: Lsn,
    length: u64,
    taken: u64,
    header: Vec<u8>,
    /// What follows the header, when anybody wants it.
    body: Option<Vec<u8>>,
}

/// What the first page says of the record that is open where the segment begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entrance {
    /// Bytes that are left of it.
    pub(crate) left: u64,
    /// Whether its rest was never written, and never will be.
    pub(crate) overwrites: bool,
}

/// How a whole segment begins and ends: what must fit the segments beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEnds {
    pub(crate) entrance: Entrance,
    /// What the first record that begins in it says is before it.
    pub(crate) points_back: Option<Lsn>,
    /// Where the last record begins of those that begin and end in it.
    pub(crate) last_whole: Option<Lsn>,
    /// Bytes that are left of a record for the next segment.
    pub(crate) left: u64,
    /// Where that record begins, when it begins in this one.
    pub(crate) open: Option<Lsn>,
}

struct RecordPageHeader {
    flags: u16,
    /// `xlp_rem_len`: bytes left of the record that the page goes on with.
    left: u64,
    size: usize,
}

impl RecordReader {
    /// A reader of `segment` of a cluster of version `major`.
    #[must_use]
    pub fn new(major: Major, segment: WalSegment, size: WalSegmentSize) -> Self {
        Self {
            major,
            size,
            segment,
            position: segment.start_lsn(size),
            previous: None,
            entrance: Entrance::default(),
            points_back: None,
            state: ScanState::Fresh,
            has_remains: false,
            pending: Vec::new(),
        }
    }

    /// Takes the next bytes of the segment, and hands out the records that they complete.
    ///
    /// # Errors
    /// When they are not those of that segment, or not WAL; also when the WAL ends before the segment does.
    pub fn feed(&mut self, bytes: &[u8], mut sink: impl FnMut(WalRecord)) -> Result<()> {
        let mut bytes = bytes;
        if !self.pending.is_empty() {
            let taken = bytes.len().min(PAGE_BYTES - self.pending.len());
            self.pending.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.pending.len() < PAGE_BYTES {
                return Ok(());
            }
            let page = std::mem::take(&mut self.pending);
            self.page(&page, &mut sink)?;
        }
        let pages = bytes.chunks_exact(PAGE_BYTES);
        self.pending.extend_from_slice(pages.remainder());
        for page in pages {
            self.page(page, &mut sink)?;
        }
        Ok(())
    }

    /// Where a record began that may matter, and goes on behind what was read.
    #[must_use]
    pub fn open_record(&self) -> Option<Lsn> {
        match &self.state {
            ScanState::Within(partial) if partial.body.is_some() => Some(partial.start),
            _ => None,
        }
    }

    /// Whether a record goes on behind what was read that may be of a tablespace's creation, or of an init fork's.
    #[must_use]
    pub fn may_go_on_to_create(&self) -> bool {
        match &self.state {
            ScanState::Within(partial) if partial.header.len() == RECORD_HEADER_BYTES => {
                let manager = RecordHeader::of(partial).manager;
                [TABLESPACE, STORAGE].contains(&manager) && partial.body.is_some()
            }
            ScanState::Within(partial) => {
                partial.length <= MOST_TABLESPACE_BYTES || partial.length == STORAGE_CREATE_BYTES
            }
            _ => false,
        }
    }

    /// Whether a record goes on behind what was read that may say what `wal_level` is.
    #[must_use]
    pub fn may_go_on_to_change_wal_level(&self) -> bool {
        match &self.state {
            ScanState::Within(partial) if partial.header.len() == RECORD_HEADER_BYTES => {
                let header = RecordHeader::of(partial);
                (header.manager, header.info) == (XLOG, XLOG_PARAMETER_CHANGE)
            }
            ScanState::Within(partial) => partial.length == PARAMETER_CHANGE_BYTES,
            _ => false,
        }
    }

    /// Whether there is anything behind a switch, where a server writes zeros (`CopyXLogRecordToWAL` in `xlog.c`): what a file
    /// still has of an earlier name, because the rest of the segment has not come.
    #[must_use]
    pub fn has_remains(&self) -> bool {
        self.has_remains
    }

    /// How the segment begins and ends; `None` when it was not read from one end to the other.
    #[must_use]
    pub fn ends(&self) -> Option<SegmentEnds> {
        let is_whole = self.position == self.segment.end_lsn(self.size) && self.pending.is_empty();
        let (left, open) = match &self.state {
            ScanState::Within(partial) => (partial.length - partial.taken, Some(partial.start)),
            ScanState::Foreign { left, .. } => (*left, None),
            ScanState::Fresh | ScanState::Between | ScanState::Switched => (0, None),
        };
        is_whole.then_some(SegmentEnds {
            entrance: self.entrance,
            points_back: self.points_back,
            last_whole: self.previous,
            left,
            open,
        })
    }

    /// Goes on with `segment`, which must be the next one, perhaps of a later timeline.
    ///
    /// # Errors
    /// When it is not the next one.
    pub fn follow(&mut self, segment: WalSegment) -> Result<()> {
        let begin = segment.start_lsn(self.size);
        if begin != self.position || !self.pending.is_empty() {
            return Err(Error::malformed(format!(
                "WAL was read up to {}, and segment {} does not begin there",
                self.position,
                segment.file_name(self.size)
            )));
        }
        self.segment = segment;
        Ok(())
    }

    fn page(&mut self, page: &[u8], sink: &mut impl FnMut(WalRecord)) -> Result<()> {
        let address = self.position;
        let next = address.checked_add(WAL_PAGE_BYTES);
        self.position = next.ok_or_else(|| self.wrong(address, "is the last that there is"))?;
        let mut at = 0;
        if !matches!(self.state, ScanState::Switched) {
            let header = self.page_header(page, address)?;
            self.resume(&header, address)?;
            at = header.size;
        }
        while at < PAGE_BYTES && !matches!(self.state, ScanState::Switched) {
            at = self.step(page, at, address, sink)?;
        }
        let behind = page.get(at..).unwrap_or_default();
        self.has_remains |= behind.iter().any(|byte| *byte != 0);
        Ok(())
    }

    fn page_header(&self, page: &[u8], address: Lsn) -> Result<RecordPageHeader> {
        let fields = Fields(page);
        let read = || {
            let flags = fields.half(2)?;
            Some((
                fields.half(0)?,
                flags,
                fields.word(4)?,
                fields.long(8)?,
                fields.word(16)?,
            ))
        };
        let (magic, flags, timeline, found, left) =
            read().ok_or_else(|| self.wrong(address, "is cut short"))?;
        if magic != self.major.wal_page_magic() {
            let major = self.major;
            return Err(self.wrong(
                address,
                format!("has magic {magic:04X}, which is not that of PostgreSQL {major}"),
            ));
        }
        if found != address.get() {
            return Err(self.wrong(
                address,
                format!("says that it is the page at {}", Lsn::new(found)),
            ));
        }
        if timeline == 0 || TimelineId::new(timeline) > self.segment.timeline {
            return Err(self.wrong(address, format!("is of timeline {timeline}")));
        }
        let first = address.get().is_multiple_of(self.size.get());
        let long = flags & LONG_HEADER != 0;
        let continues = flags & CONTINUES != 0;
        if flags & !ALL_FLAGS != 0 || long != first || continues != (left > 0) {
            return Err(self.wrong(address, format!("has flags {flags:04X}")));
        }
        if long && WalPageHeader::parse(page)?.segment_size != self.size {
            return Err(self.wrong(address, "begins a segment of another size"));
        }
        Ok(RecordPageHeader {
            flags,
            left: u64::from(left),
            size: match long {
                true => LONG_HEADER_BYTES,
                false => SHORT_HEADER_BYTES,
            },
        })
    }

    /// Whether the page goes on where the one before it ended.
    fn resume(&mut self, header: &RecordPageHeader, address: Lsn) -> Result<()> {
        let expected = match &self.state {
            ScanState::Fresh => {
                self.entrance = Entrance {
                    left: header.left,
                    overwrites: header.flags & OVERWRITES != 0,
                };
                self.state = match header.left {
                    0 => ScanState::Between,
                    left => ScanState::Foreign { left, whole: left },
                };
                return Ok(());
            }
            ScanState::Within(partial) => partial.length - partial.taken,
            ScanState::Foreign { left, .. } => *left,
            ScanState::Between | ScanState::Switched => 0,
        };
        if expected > 0 && header.flags & OVERWRITES != 0 && header.left == 0 {
            self.state = ScanState::Between;
            return Ok(());
        }
        match header.left == expected {
            true => Ok(()),
            false => Err(self.wrong(
                address,
                format!(
                    "goes on with {} bytes of a record of which {expected} are missing",
                    header.left
                ),
            )),
        }
    }

    /// Reads at offset `at` of the page, and answers where to go on.
    fn step(
        &mut self,
        page: &[u8],
        at: usize,
        address: Lsn,
        sink: &mut impl FnMut(WalRecord),
    ) -> Result<usize> {
        match std::mem::replace(&mut self.state, ScanState::Between) {
            ScanState::Foreign { left, whole } => {
                let (taken, at) = take(left, at);
                if taken < left {
                    let left = left - taken;
                    self.state = ScanState::Foreign { left, whole };
                    return Ok(PAGE_BYTES);
                }
                // A switch that began in the segment before has nothing but a header, and nothing behind it.
                if whole <= RECORD_HEADER && Fields(page).word(at) == Some(0) {
                    self.state = ScanState::Switched;
                }
                Ok(at)
            }
            ScanState::Within(mut partial) => {
                let (taken, end) = take(partial.length - partial.taken, at);
                let bytes = page.get(at..at + length(taken)).unwrap_or_default();
                self.gather(&mut partial, bytes)?;
                if partial.header.len() == RECORD_HEADER_BYTES {
                    let header = RecordHeader::of(&partial);
                    self.points_back.get_or_insert(header.previous);
                }
                if partial.taken < partial.length {
                    self.state = ScanState::Within(partial);
                    return Ok(PAGE_BYTES);
                }
                self.complete(partial, offset(address, end), sink)?;
                Ok(end)
            }
            ScanState::Fresh | ScanState::Between | ScanState::Switched => {
                let start = offset(address, at);
                self.state = ScanState::Within(self.begin(page, at, start)?);
                Ok(at)
            }
        }
    }

    /// The record that begins there. Its length is on this page, because it begins aligned.
    fn begin(&self, page: &[u8], at: usize, start: Lsn) -> Result<Partial> {
        let length = u64::from(Fields(page).word(at).unwrap_or(0));
        match length {
            0 => Err(Error::malformed(format!(
                "WAL ends at {start}, in the middle of segment {}",
                self.segment.file_name(self.size)
            ))),
            RECORD_HEADER..=MOST_RECORD_BYTES => Ok(Partial {
                start,
                length,
                taken: 0,
                header: Vec::with_capacity(RECORD_HEADER_BYTES),
                // Until the header says otherwise.
                body: Some(Vec::new()),
            }),
            _ => Err(self.invalid(start, format!("has length {length}"))),
        }
    }

    /// Adds `bytes`; the header says whether what follows it is kept.
    fn gather(&self, partial: &mut Partial, bytes: &[u8]) -> Result<()> {
        partial.taken += u64::try_from(bytes.len()).expect("usize has 64 bits");
        let missing = RECORD_HEADER_BYTES - partial.header.len();
        let (header, body) = bytes.split_at(missing.min(bytes.len()));
        if missing > 0 {
            partial.header.extend_from_slice(header);
            if partial.header.len() < RECORD_HEADER_BYTES {
                return Ok(());
            }
            if !self.check_header(partial)? {
                partial.body = None;
            }
        }
        if let Some(kept) = &mut partial.body {
            kept.extend_from_slice(body);
        }
        Ok(())
    }

    /// Checks a header as `ValidXLogRecordHeader` does; answers whether the record matters.
    fn check_header(&self, partial: &Partial) -> Result<bool> {
        let header = RecordHeader::of(partial);
        let fits = match self.previous {
            Some(previous) => header.previous == previous,
            None => header.previous < partial.start,
        };
        if !fits {
            let previous = header.previous;
            return Err(self.invalid(
                partial.start,
                format!("says that the record before it is at {previous}"),
            ));
        }
        match header.manager {
            XLOG => Ok(matches!(
                header.info,
                XLOG_RESTORE_POINT
                    | XLOG_CHECKPOINT_SHUTDOWN
                    | XLOG_CHECKPOINT_ONLINE
                    | XLOG_PARAMETER_CHANGE
            )),
            XACT => Ok(matches!(
                header.operation(),
                XACT_COMMIT
                    | XACT_PREPARE
                    | XACT_ABORT
                    | XACT_COMMIT_PREPARED
                    | XACT_ABORT_PREPARED
            )),
            STORAGE => Ok(header.info == STORAGE_CREATE),
            DATABASE => Ok(matches!(
                header.info,
                DATABASE_COPY | DATABASE_CREATE | DATABASE_DROP
            )),
            TABLESPACE => Ok(header.info == TABLESPACE_CREATE),
            0..=LAST_BUILT_IN | FIRST_CUSTOM..=u8::MAX => Ok(false),
            manager => Err(self.invalid(
                partial.start,
                format!("is of resource manager {manager}, which does not exist"),
            )),
        }
    }

    fn complete(
        &mut self,
        partial: Partial,
        end: Lsn,
        sink: &mut impl FnMut(WalRecord),
    ) -> Result<()> {
        let header = RecordHeader::of(&partial);
        self.previous = Some(partial.start);
        let mut end = end;
        if header.manager == XLOG && header.info == XLOG_SWITCH {
            self.state = ScanState::Switched;
            end = self.segment.end_lsn(self.size);
        }
        let meaning = match &partial.body {
            None => Meaning::Other,
            Some(body) => {
                let mut checksum = FileChecksum::of(body);
                checksum.update(&partial.header[..20]);
                if checksum.crc() != header.checksum {
                    return Err(Error::damaged(format!(
                        "the WAL record at {} has checksum {:08x}, expected {:08x}",
                        partial.start,
                        checksum.crc(),
                        header.checksum
                    )));
                }
                let meaning = main_data(body).and_then(|data| header.meaning(data, self.major));
                meaning.ok_or_else(|| {
                    self.invalid(partial.start, "does not have the form of its kind")
                })?
            }
        };
        sink(WalRecord {
            start: partial.start,
            end,
            meaning,
        });
        Ok(())
    }

    fn wrong(&self, address: Lsn, what: impl std::fmt::Display) -> Error {
        Error::malformed(format!(
            "the WAL page at {address} in segment {} {what}",
            self.segment.file_name(self.size)
        ))
    }

    fn invalid(&self, start: Lsn, what: impl std::fmt::Display) -> Error {
        Error::malformed(format!(
            "the WAL record at {start} in segment {} {what}",
            self.segment.file_name(self.size)
        ))
    }
}

/// `XLogRecord`, which is little-endian.
struct RecordHeader {
    transaction: TransactionId,
    previous: Lsn,
    /// The resource manager's part of it.
    info: u8,
    manager: u8,
    checksum: u32,
}

impl RecordHeader {
    /// The header of a record of which that much was read.
    fn of(partial: &Partial) -> Self {
        let fields = Fields(&partial.header);
        Self {
            transaction: TransactionId(fields.word(4).unwrap_or(0)),
            previous: Lsn::new(fields.long(8).unwrap_or(0)),
            info: fields.byte(16).unwrap_or(0) & INFO_MASK,
            manager: fields.byte(17).unwrap_or(0),
            checksum: fields.word(20).unwrap_or(0),
        }
    }

    const fn operation(&self) -> u8 {
        self.info & XACT_OPERATION
    }

    fn meaning(&self, data: &[u8], major: Major) -> Option<Meaning> {
        match (self.manager, self.info) {
            (XLOG, XLOG_RESTORE_POINT) => return decode::restore_point(data),
            (XLOG, XLOG_PARAMETER_CHANGE) => return decode::parameter_change(data),
            (XLOG, _) => return decode::checkpoint(data),
            (STORAGE, _) => return decode::relation_file_made(data),
            (DATABASE, DATABASE_COPY) => return decode::database_copied(data),
            (DATABASE, DATABASE_CREATE) => return decode::database_created(data),
            (DATABASE, _) => return decode::database_dropped(data),
            (TABLESPACE, _) => return decode::tablespace(data),
            _ => {}
        }
        match self.operation() {
            // `xl_xact_prepare`: magic, length, transaction.
            XACT_PREPARE => Some(Meaning::Prepared(TransactionId(Fields(data).word(8)?))),
            _ => self.transaction_end(data, major).map(Meaning::End),
        }
    }

    /// `xl_xact_commit` or `xl_xact_abort`, as `ParseCommitRecord` and `ParseAbortRecord` read them.
    fn transaction_end(&self, data: &[u8], major: Major) -> Option<TransactionEnd> {
        let fields = Fields(data);
        let operation = self.operation();
        let flags = match self.info & XACT_HAS_INFO {
            0 => 0,
            _ => fields.word(8)?,
        };
        let has = |flag: u32| flags & flag != 0;
        let mut end = TransactionEnd {
            transaction: self.transaction,
            time: WalTime(fields.signed_long(0)?),
            committed: matches!(operation, XACT_COMMIT | XACT_COMMIT_PREPARED),
            subtransactions: Vec::new(),
        };
        let mut at = if self.info & XACT_HAS_INFO == 0 {
            8
        } else {
            12
        };
        if has(HAS_DATABASE) {
            at += 8;
        }
        if has(HAS_SUBTRANSACTIONS) {
            let next = behind(data, at, 4)?;
            let listed = data.get(at + 4..next)?.chunks_exact(4);
            let listed = listed.filter_map(|one| Fields(one).word(0));
            end.subtransactions = listed.map(TransactionId).collect();
            at = next;
        }
        // `RelFileNode`, later `RelFileLocator`: three OIDs.
        if has(HAS_FILES) {
            at = behind(data, at, 12)?;
        }
        // `xl_xact_stats_item`: kind, database and object, which has 64 bits since 18.
        if has(HAS_DROPPED_STATISTICS) {
            at = behind(data, at, if major < Major::V18 { 12 } else { 16 })?;
        }
        // `SharedInvalidationMessage`.
        if has(HAS_INVALIDATIONS) && end.committed {
            at = behind(data, at, 16)?;
        }
        if matches!(operation, XACT_COMMIT_PREPARED | XACT_ABORT_PREPARED) {
            end.transaction = has(HAS_PREPARED)
                .then(|| fields.word(at))?
                .map(TransactionId)?;
        }
        Some(end)
    }
}

/// How much of `left` bytes the page holds from `at` on, and where the next record begins if that is all of them.
fn take(left: u64, at: usize) -> (u64, usize) {
    let room = u64::try_from(PAGE_BYTES - at).expect("a page is small");
    let taken = left.min(room);
    let end = (at + length(taken)).next_multiple_of(length(ALIGNMENT));
    (taken, end)
}

/// A number of bytes that lie on a page.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a page is small")
}

/// The position `at` bytes behind the beginning of a page.
fn offset(address: Lsn, at: usize) -> Lsn {
    let bytes = u64::try_from(at).expect("a page is small");
    address.checked_add(bytes).unwrap_or(address)
}
