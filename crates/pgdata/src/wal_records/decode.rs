//! What is in a record behind its header: the main data of each kind.

use super::{Meaning, WalTime};
use crate::bytes::Fields;
use crate::control::WalLevel;
use crate::relation::{DatabaseDirectory, ForkKind, Oid, RelationFork};

/// `XLR_BLOCK_ID_…`: what stands before the main data of a record without blocks.
const MAIN_DATA_SHORT: u8 = 255;
const MAIN_DATA_LONG: u8 = 254;
const ORIGIN: u8 = 253;
const TOP_LEVEL_TRANSACTION: u8 = 252;

/// `xl_restore_point`: a time, and a name of `MAXFNAMELEN` bytes.
pub(super) fn restore_point(data: &[u8]) -> Option<Meaning> {
    let time = WalTime(Fields(data).signed_long(0)?);
    let name = data.get(8..72)?;
    let length = name.iter().position(|&byte| byte == 0)?;
    let name = name[..length].to_vec();
    Some(Meaning::RestorePoint { name, time })
}

/// `CheckPoint`: `time`, seconds since 1970, is at the same place from 15 to 18.
pub(super) fn checkpoint(data: &[u8]) -> Option<Meaning> {
    let seconds = Fields(data).signed_long(64)?;
    let time = WalTime::of_unix_seconds(seconds)?;
    Some(Meaning::Checkpoint { time })
}

/// `xl_parameter_change`: five numbers, and `wal_level`.
pub(super) fn parameter_change(data: &[u8]) -> Option<Meaning> {
    let level = WalLevel::of(Fields(data).signed_word(20)?)?;
    Some(Meaning::WalLevel(level))
}

/// `xl_smgr_create`: `RelFileNode`, later `RelFileLocator`, and the number of a fork.
pub(super) fn relation_file_made(data: &[u8]) -> Option<Meaning> {
    let fields = Fields(data);
    let made = RelationFork {
        tablespace: Oid(fields.word(0)?),
        database: Oid(fields.word(4)?),
        relation: Oid(fields.word(8)?),
        fork: ForkKind::from_number(fields.word(12)?)?,
    };
    Some(match made.fork {
        ForkKind::Init => Meaning::InitForkMade(made),
        _ => Meaning::Other,
    })
}

/// `xl_tblspc_create_rec`: an OID, and a path that ends with a zero.
pub(super) fn tablespace(data: &[u8]) -> Option<Meaning> {
    let oid = Fields(data).word(0)?;
    let path = data.get(4..)?;
    let length = path.iter().position(|&byte| byte == 0)?;
    let location = path[..length].to_vec();
    Some(Meaning::TablespaceCreated { oid, location })
}

/// `xl_dbase_create_file_copy_rec`: what was made, then what it is a copy of.
pub(super) fn database_copied(data: &[u8]) -> Option<Meaning> {
    let copy_of = Some(directory(data, 8)?);
    let directory = directory(data, 0)?;
    Some(Meaning::DatabaseMade { directory, copy_of })
}

/// `xl_dbase_create_wal_log_rec`.
pub(super) fn database_created(data: &[u8]) -> Option<Meaning> {
    let directory = directory(data, 0)?;
    Some(Meaning::DatabaseMade {
        directory,
        copy_of: None,
    })
}

/// `xl_dbase_drop_rec`: a database, and the tablespaces where it was.
pub(super) fn database_dropped(data: &[u8]) -> Option<Meaning> {
    let database = Oid(Fields(data).word(0)?);
    let listed = data.get(8..behind(data, 4, 4)?)?.chunks_exact(4);
    let dropped = listed.filter_map(|one| {
        let tablespace = Oid(Fields(one).word(0)?);
        Some(DatabaseDirectory {
            tablespace,
            database,
        })
    });
    Some(Meaning::DatabaseDropped(dropped.collect()))
}

/// The OIDs of a database and of a tablespace, in this order.
fn directory(data: &[u8], at: usize) -> Option<DatabaseDirectory> {
    let fields = Fields(data);
    Some(DatabaseDirectory {
        database: Oid(fields.word(at)?),
        tablespace: Oid(fields.word(at + 4)?),
    })
}

/// Where an array ends that begins at `at` with the number of its items.
pub(super) fn behind(data: &[u8], at: usize, item_bytes: usize) -> Option<usize> {
    let count = usize::try_from(Fields(data).signed_word(at)?).ok()?;
    let end = count.checked_mul(item_bytes)?.checked_add(at)? + 4;
    (end <= data.len()).then_some(end)
}

/// The main data of a record without blocks: the last thing in it.
pub(super) fn main_data(body: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        let fields = Fields(body);
        let (begin, length) = match fields.byte(at)? {
            MAIN_DATA_SHORT => (at + 2, usize::from(fields.byte(at + 1)?)),
            MAIN_DATA_LONG => (at + 5, usize::try_from(fields.word(at + 1)?).ok()?),
            // `RepOriginId` and `TransactionId`.
            ORIGIN => {
                at += 3;
                continue;
            }
            TOP_LEVEL_TRANSACTION => {
                at += 5;
                continue;
            }
            _ => return None,
        };
        let data = body.get(begin..)?;
        return (data.len() == length).then_some(data);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PAGE_BYTES, RecordReader, WalRecord, XLOG, XLOG_PARAMETER_CHANGE};
    use super::*;
    use crate::{FileChecksum, Lsn, Major, Result, TimelineId, WalSegment, WalSegmentSize};

    const SIZE: u32 = 1 << 20;
    const SEGMENT: WalSegment = WalSegment {
        timeline: TimelineId::FIRST,
        number: 3,
    };

    fn size() -> WalSegmentSize {
        WalSegmentSize::try_from(u64::from(SIZE)).unwrap()
    }

    /// `XLogRecord` and `xl_parameter_change` of a server with that `wal_level`.
    fn change(level: u32) -> Vec<u8> {
        let mut body = vec![MAIN_DATA_SHORT, 28];
        for setting in [100, 8, 10, 0, 64, level] {
            body.extend(u32::to_le_bytes(setting));
        }
        // `wal_log_hints`, `track_commit_timestamp`, and what fills the structure up.
        body.extend([0, 0, 0, 0]);
        let length = u32::try_from(24 + body.len()).unwrap();
        let mut record = length.to_le_bytes().to_vec();
        record.extend([0; 4]);
        record.extend(8_u64.to_le_bytes());
        record.extend([XLOG_PARAMETER_CHANGE, XLOG, 0, 0]);
        let mut checksum = FileChecksum::of(&body);
        checksum.update(&record);
        record.extend(checksum.crc().to_le_bytes());
        record.extend(body);
        record
    }

    /// Pages of two segments: the last `before` bytes of a record of an earlier one, then `record`, then nothing.
    fn pages(major: Major, before: usize, record: &[u8]) -> Vec<u8> {
        let mut pages = Vec::new();
        let mut contents = vec![0xAA; before];
        contents.extend(record);
        let mut at = 0;
        for page in 0..2 * SIZE / 8192 {
            let is_first = page % (SIZE / 8192) == 0;
            let ends = if at < before { before } else { contents.len() };
            // A record that begins with the page is none that goes on.
            let left = if at == before { 0 } else { ends - at };
            let flags = u16::from(left > 0) | if is_first { 2 } else { 0 };
            let address = SEGMENT.start_lsn(size()).get() + u64::from(page) * 8192;
            let end = pages.len() + PAGE_BYTES;
            pages.extend(major.wal_page_magic().to_le_bytes());
            pages.extend(flags.to_le_bytes());
            pages.extend(1_u32.to_le_bytes());
            pages.extend(address.to_le_bytes());
            pages.extend(u32::try_from(left).unwrap().to_le_bytes());
            pages.extend([0; 4]);
            if is_first {
                pages.extend(7_u64.to_le_bytes());
                pages.extend(SIZE.to_le_bytes());
                pages.extend(8192_u32.to_le_bytes());
            }
            let taken = (contents.len() - at).min(end - pages.len());
            pages.extend(&contents[at..at + taken]);
            at += taken;
            pages.resize(end, 0);
        }
        pages
    }

    /// What is read until the WAL ends.
    fn levels(reader: &mut RecordReader, bytes: &[u8]) -> (Vec<(Lsn, WalLevel)>, Result<()>) {
        let mut found = Vec::new();
        let outcome = reader.feed(bytes, |record: WalRecord| {
            if let Meaning::WalLevel(level) = record.meaning {
                found.push((record.start, level));
            }
        });
        (found, outcome)
    }

    #[test]
    fn a_record_says_which_wal_level_the_server_has_from_there_on() {
        for major in Major::ALL {
            for (number, level) in [
                (0, WalLevel::Minimal),
                (1, WalLevel::Replica),
                (2, WalLevel::Logical),
            ] {
                let mut reader = RecordReader::new(major, SEGMENT, size());
                let pages = pages(major, 16, &change(number));
                let start = Lsn::new(SEGMENT.start_lsn(size()).get() + 40 + 16);
                let (found, _) = levels(&mut reader, &pages[..PAGE_BYTES]);
                assert_eq!(found, [(start, level)], "PostgreSQL {major}");
            }
        }
    }

    #[test]
    fn records_of_databases_name_the_directories_that_come_and_go() {
        let data = |words: &[u32]| {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            bytes.collect::<Vec<u8>>()
        };
        let place = |database, tablespace| DatabaseDirectory {
            tablespace: Oid(tablespace),
            database: Oid(database),
        };
        let made = |copy_of| Meaning::DatabaseMade {
            directory: place(5, 1663),
            copy_of,
        };
        let copy = database_copied(&data(&[5, 1663, 1, 1700]));
        assert_eq!(copy, Some(made(Some(place(1, 1700)))));
        assert_eq!(database_copied(&data(&[5, 1663, 1])), None);
        let created = database_created(&data(&[5, 1663]));
        assert_eq!(created, Some(made(None)));
        assert_eq!(database_created(&data(&[5])), None);
        let dropped = database_dropped(&data(&[5, 2, 1663, 1700]));
        let both = vec![place(5, 1663), place(5, 1700)];
        assert_eq!(dropped, Some(Meaning::DatabaseDropped(both)));
        assert_eq!(database_dropped(&data(&[5, 2, 1663])), None);
    }

    #[test]
    fn a_record_of_an_init_fork_names_the_relation() {
        let data = |words: [u32; 4]| words.map(u32::to_le_bytes).concat();
        let made = relation_file_made(&data([1663, 5, 16384, 3]));
        let fork = RelationFork {
            tablespace: Oid(1663),
            database: Oid(5),
            relation: Oid(16384),
            fork: ForkKind::Init,
        };
        assert_eq!(made, Some(Meaning::InitForkMade(fork)));
        let main = relation_file_made(&data([1663, 5, 16384, 0]));
        assert_eq!(main, Some(Meaning::Other));
        assert_eq!(relation_file_made(&data([1663, 5, 16384, 4])), None);
        assert_eq!(relation_file_made(&data([1663, 5, 16384, 3])[..12]), None);
    }

    #[test]
    fn a_wal_level_that_does_not_exist_and_one_that_was_changed_are_errors() {
        let read = |pages: &[u8]| {
            let mut reader = RecordReader::new(Major::V18, SEGMENT, size());
            let (found, outcome) = levels(&mut reader, &pages[..PAGE_BYTES]);
            assert!(found.is_empty(), "{found:?}");
            outcome.unwrap_err().to_string()
        };
        let unknown = read(&pages(Major::V18, 16, &change(3)));
        assert!(unknown.contains("the form of its kind"), "{unknown}");
        let mut changed = pages(Major::V18, 16, &change(1));
        // 40 bytes of the page's header, 16 of the record before, 26 of headers, five settings.
        changed[40 + 16 + 26 + 20] = 0;
        let changed = read(&changed);
        assert!(changed.contains("checksum"), "{changed}");
    }

    /// Wherever the segment ends within it.
    #[test]
    fn a_wal_level_in_two_segments_is_read_with_the_next_one() {
        let record = change(0);
        // What fits into a segment, behind the headers of its pages.
        let room = usize::try_from(SIZE - 40 - 127 * 24).unwrap();
        for first_part in (8..record.len()).step_by(8) {
            let pages = pages(Major::V15, room - first_part, &record);
            let (one, next) = pages.split_at(pages.len() / 2);
            let mut reader = RecordReader::new(Major::V15, SEGMENT, size());
            let (found, outcome) = levels(&mut reader, one);
            assert_eq!((found, outcome.is_ok()), (Vec::new(), true));
            assert!(reader.may_go_on_to_change_wal_level(), "{first_part}");
            let number = SEGMENT.number + 1;
            reader.follow(WalSegment { number, ..SEGMENT }).unwrap();
            let (found, _) = levels(&mut reader, next);
            let end = SEGMENT.end_lsn(size()).get();
            let start = Lsn::new(end - u64::try_from(first_part).unwrap());
            assert_eq!(found, [(start, WalLevel::Minimal)], "{first_part}");
            assert!(!reader.may_go_on_to_change_wal_level(), "{first_part}");
        }
    }
}
