//! What PostgreSQL has written: control file, labels, WAL, configuration, histories.

use pgstrata_layer::digest;
use pgstrata_pgdata::control::ControlFile;
use pgstrata_pgdata::label::{BackupLabel, TablespaceMap};
use pgstrata_pgdata::wal_pages::TimelinePages;
use pgstrata_pgdata::{
    ArchiveFile, FileChecksum, LockFile, Lsn, Major, RecordReader, TimelineHistory, TimelineId,
    WalPageHeader, WalSegment, WalSegmentSize, conf as configuration,
};

use super::input::Input;

const PAGE: usize = 8192;

pub fn control(bytes: &[u8]) {
    ControlFile::parse(bytes).ok();
    for (version, crc_at) in [(1300_u32, 288), (1700, 288), (1800, 292)] {
        let mut mended = bytes.to_vec();
        if mended.len() < crc_at + 4 {
            return;
        }
        mended[8..12].copy_from_slice(&version.to_le_bytes());
        let sum = FileChecksum::of(&mended[..crc_at]).crc();
        mended[crc_at..crc_at + 4].copy_from_slice(&sum.to_le_bytes());
        if let Ok(control) = ControlFile::parse(&mended) {
            let _ = control.has_checksums();
        }
    }
}

pub fn label(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    BackupLabel::parse(text).ok();
    if let Ok(mut map) = TablespaceMap::parse(text) {
        let written = map.format();
        assert_eq!(TablespaceMap::parse(&written).unwrap(), map, "{written:?}");
        let first = map.locations.first().map(|first| first.path.clone());
        assert_eq!(
            map.remap(&first.clone().unwrap_or_default(), "/x"),
            first.is_some()
        );
    }
}

pub fn wal_page(bytes: &[u8]) {
    timeline_pages(bytes);
    if let Ok(page) = WalPageHeader::parse(bytes) {
        let size = page.segment_size;
        let name = page.segment().file_name(size);
        assert_eq!(WalSegment::parse(&name, size).unwrap(), page.segment());
    }
    if let Ok(name) = std::str::from_utf8(bytes) {
        for shift in [20, 24, 30] {
            let size = WalSegmentSize::try_from(1 << shift).unwrap();
            if let Ok(file) = ArchiveFile::parse(name, size) {
                assert_eq!(file.file_name(size), name);
            }
        }
    }
}

/// Where pages of a timeline lie, however they come: pages with these heads, some with the address that they should have.
fn timeline_pages(bytes: &[u8]) {
    let mut input = Input(bytes);
    let from_start = u64::from(input.word()) << 13;
    // So many bytes before the end of all WAL.
    let begin = match input.chance() {
        true => from_start,
        false => from_start.wrapping_neg(),
    };
    let step = 1 + 61 * input.below(256);
    let (mut pages, mut first, mut last_other) = (Vec::new(), None, None);
    while !input.is_empty() && pages.len() < 8 * PAGE {
        let Some(address) = begin.checked_add(u64::try_from(pages.len()).unwrap()) else {
            break;
        };
        let is_placed = input.chance();
        let mut page = input.take(24).to_vec();
        page.resize(PAGE, 7);
        if is_placed {
            page[8..16].copy_from_slice(&address.to_le_bytes());
            page[5..8].fill(0);
        }
        if page[8..16] == address.to_le_bytes() {
            match u32::from_le_bytes(page[4..8].try_into().unwrap()) {
                2 => first = first.or(Some(Lsn::new(address))),
                _ => last_other = Some(Lsn::new(address)),
            }
        }
        pages.extend(page);
    }
    let mut seen = TimelinePages::of(TimelineId::new(2), Lsn::new(begin));
    for piece in pages.chunks(step) {
        seen.feed(piece);
    }
    assert_eq!((seen.first(), seen.last_other()), (first, last_other));
}

/// Records with any contents, in pages and with checksums as they should be, then with some bytes changed.
pub fn wal_records(bytes: &[u8]) {
    let mut input = Input(bytes);
    let major = Major::ALL[input.below(4)];
    let size = WalSegmentSize::try_from(1 << 20).unwrap();
    let segment = WalSegment {
        timeline: TimelineId::new(1),
        number: u64::from(input.byte()),
    };
    let changed = input.below(4);
    let changes: Vec<(u32, u8)> = (0..changed).map(|_| (input.word(), input.byte())).collect();
    let step = 1 + 97 * input.below(200);
    let mut pages = Pages::new(major, segment, size);
    while !input.is_empty() && pages.bytes.len() < 16 * PAGE {
        pages.record(&mut input);
    }
    pages.finish();
    let mut bytes = pages.bytes;
    for (at, byte) in changes {
        let at = usize::try_from(at).unwrap() % bytes.len();
        bytes[at] ^= byte;
    }
    let read = |step: usize| {
        let (mut reader, mut records) = (RecordReader::new(major, segment, size), Vec::new());
        let fed = bytes
            .chunks(step)
            .try_for_each(|piece| reader.feed(piece, |record| records.push(format!("{record:?}"))));
        let _ = reader.open_record();
        (fed.map_err(|error| error.to_string()), records)
    };
    assert_eq!(read(step), read(bytes.len()), "however it comes");
}

/// WAL from the beginning of a segment on.
struct Pages {
    major: Major,
    size: WalSegmentSize,
    start: u64,
    timeline: u32,
    bytes: Vec<u8>,
    previous: u64,
}

impl Pages {
    fn new(major: Major, segment: WalSegment, size: WalSegmentSize) -> Self {
        Self {
            major,
            size,
            start: segment.start_lsn(size).get(),
            timeline: segment.timeline.get(),
            bytes: Vec::new(),
            previous: 0,
        }
    }

    fn position(&self) -> u64 {
        self.start + u64::try_from(self.bytes.len()).unwrap()
    }

    /// A page begins; so many bytes of a record are left.
    fn header(&mut self, left: usize) {
        let first = self.bytes.is_empty();
        let flags = u16::from(left > 0) | if first { 2 } else { 0 };
        let left = u32::try_from(left).unwrap();
        let address = self.position();
        self.bytes.extend(self.major.wal_page_magic().to_le_bytes());
        self.bytes.extend(flags.to_le_bytes());
        self.bytes.extend(self.timeline.to_le_bytes());
        self.bytes.extend(address.to_le_bytes());
        self.bytes.extend(left.to_le_bytes());
        self.bytes.extend([0; 4]);
        if first {
            self.bytes.extend(7_u64.to_le_bytes());
            let size = u32::try_from(self.size.get()).unwrap();
            self.bytes.extend(size.to_le_bytes());
            self.bytes.extend(8192_u32.to_le_bytes());
        }
    }

    fn put(&mut self, mut record: &[u8]) {
        let whole = record.len();
        while !record.is_empty() {
            if self.bytes.len().is_multiple_of(PAGE) {
                let begun = record.len() < whole;
                self.header(if begun { record.len() } else { 0 });
            }
            let room = PAGE - self.bytes.len() % PAGE;
            let (here, rest) = record.split_at(room.min(record.len()));
            self.bytes.extend(here);
            record = rest;
        }
        while !self.bytes.len().is_multiple_of(8) {
            self.bytes.push(0);
        }
    }

    fn record(&mut self, input: &mut Input<'_>) {
        let (manager, info, xid) = (input.byte(), input.byte(), input.word());
        let length = input.below(256) * if input.byte() > 250 { 40 } else { 1 };
        let mut body = input.take(length).to_vec();
        if input.byte() > 128 {
            body.resize(length, 7);
        }
        let mut start = self.position();
        if self.bytes.len().is_multiple_of(PAGE) {
            start += if self.bytes.is_empty() { 40 } else { 24 };
        }
        let total = u32::try_from(body.len() + 24).unwrap();
        let mut header = Vec::new();
        header.extend(total.to_le_bytes());
        header.extend(xid.to_le_bytes());
        header.extend(self.previous.to_le_bytes());
        header.extend([info, manager, 0, 0]);
        let sum = FileChecksum::of(&[&body[..], &header].concat()).crc();
        header.extend(sum.to_le_bytes());
        header.extend(&body);
        self.previous = start;
        self.put(&header);
    }

    fn finish(&mut self) {
        while self.bytes.is_empty() || !self.bytes.len().is_multiple_of(PAGE) {
            if self.bytes.is_empty() {
                self.header(0);
            }
            self.bytes.push(0);
        }
    }
}

pub fn conf(bytes: &[u8]) {
    for line in bytes.split(|&byte| byte == b'\n') {
        // A name is there, or the line has none and sets nothing.
        let sets = !configuration::settings(line).is_empty();
        match configuration::spelling(line) {
            Some(name) => assert!(!name.is_empty()),
            None => assert!(!sets),
        }
    }
    for setting in configuration::settings(bytes) {
        assert!(setting.line.start <= setting.line.end);
        assert!(setting.line.end <= bytes.len());
        let spelling = configuration::spelling(&bytes[setting.line.clone()]).unwrap();
        assert_eq!(spelling.to_ascii_lowercase(), setting.name);
        let word = std::str::from_utf8(&setting.value);
        let Ok(word) = word.map(|word| word.replace('\n', "")) else {
            continue;
        };
        // An empty value counts as none.
        if word.is_empty() {
            continue;
        }
        let line = format!("{} = {}", setting.name, configuration::quoted(&word));
        let again = configuration::settings(line.as_bytes());
        assert_eq!(again.len(), 1, "{line:?}");
        assert_eq!(String::from_utf8_lossy(&again[0].value), word, "{line:?}");
    }
    for token in configuration::tokens(bytes) {
        assert!(token.span.start < token.span.end);
        assert!(token.span.end <= bytes.len());
    }
}

pub fn history(bytes: &[u8]) {
    let sum = digest::page(bytes);
    for timeline in [2, 7, u32::MAX] {
        let timeline = TimelineId::new(timeline);
        let read = TimelineHistory::read(timeline, bytes);
        if let Ok(text) = std::str::from_utf8(bytes) {
            assert_eq!(
                TimelineHistory::parse(timeline, text).ok(),
                read.as_ref().ok().cloned()
            );
        }
        let Ok(history) = read else {
            continue;
        };
        let entries = history.entries();
        assert_eq!(entries.last().unwrap().end, None);
        for pair in entries.windows(2) {
            assert_eq!(pair[0].end, Some(pair[1].begin));
            assert!(pair[0].begin <= pair[1].begin);
        }
        let lsn = Lsn::new(sum);
        let at = history.timeline_at(lsn).unwrap();
        assert!(history.is_ancestor(at, lsn));
    }
}

/// Written in pieces: what was read of the front is read of the whole, too, but for the last line.
pub fn lock_file(bytes: &[u8]) {
    let whole = LockFile::parse(bytes);
    let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else {
        return;
    };
    let front = LockFile::parse(&bytes[..end]);
    if front.port.is_some() {
        assert_eq!(front.pid, whole.pid);
    }
    if front.address.is_some() {
        assert_eq!(front.socket_directory, whole.socket_directory);
    }
}
