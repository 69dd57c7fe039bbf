//! Records of real servers' WAL, read as `pg_waldump` reads them. `tests/golden/README.md` says how they were made.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests fail and report as tests do"
)]

use std::fs;
use std::path::Path;

use pgstrata_pgdata::wal_records::{Meaning, TransactionEnd, TransactionId, WalTime};
use pgstrata_pgdata::{Lsn, Major, RecordReader, Result, WalRecord, WalSegment, WalSegmentSize};

fn bytes(major: Major, name: &str) -> Vec<u8> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    fs::read(golden.join(major.to_string()).join(name)).unwrap()
}

fn size() -> WalSegmentSize {
    WalSegmentSize::try_from(1 << 20).unwrap()
}

fn segment(major: Major) -> WalSegment {
    let name = String::from_utf8(bytes(major, "wal_records_name")).unwrap();
    WalSegment::parse(name.trim_end(), size()).unwrap()
}

fn read(major: Major, bytes: &[u8]) -> Result<Vec<WalRecord>> {
    let mut records = Vec::new();
    let mut reader = RecordReader::new(major, segment(major), size());
    reader.feed(bytes, |record| records.push(record))?;
    Ok(records)
}

/// Microseconds since 2000 of `2026-11-22 23:49:23.784638 UTC`, which all lie on two days.
fn time(text: &str) -> WalTime {
    let (day, clock) = text
        .strip_prefix("2026-11-")
        .unwrap()
        .split_once(' ')
        .unwrap();
    let clock = clock.trim_end_matches(" UTC");
    let (seconds, fraction) = clock.split_once('.').unwrap();
    let seconds = seconds.split(':').map(|part| part.parse::<i64>().unwrap());
    let seconds = seconds.fold(0, |sum, part| sum * 60 + part);
    // 26 years with 7 leap days, then January to October of 2026.
    let days = 26 * 365 + 7 + 304 + day.parse::<i64>().unwrap() - 1;
    WalTime((days * 86_400 + seconds) * 1_000_000 + fraction.parse::<i64>().unwrap())
}

fn transactions(text: &str) -> Vec<TransactionId> {
    let numbers = text
        .split_ascii_whitespace()
        .map(|one| TransactionId(one.parse().unwrap()));
    numbers.collect()
}

/// What `pg_waldump` says of a record: where it begins and, of those that matter, what it means.
fn described(line: &str) -> (Lsn, Meaning) {
    let after = |key: &str| line.split_once(key).map(|(_, rest)| rest);
    let word = |key: &str| after(key).unwrap().split(',').next().unwrap().trim();
    let lsn = word("lsn: ").parse().unwrap();
    let header = TransactionId(word("tx: ").parse().unwrap());
    let text = after("desc: ").unwrap();
    let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
    let end = |transaction, times: &str, committed| {
        let subtransactions = after("subxacts: ").map(|rest| rest.split(';').next().unwrap());
        Meaning::End(TransactionEnd {
            transaction,
            time: time(times.split(';').next().unwrap()),
            committed,
            subtransactions: transactions(subtransactions.unwrap_or_default()),
        })
    };
    let prepared = || {
        let (transaction, times) = rest.split_once(": ").unwrap();
        (TransactionId(transaction.parse().unwrap()), times)
    };
    let meaning = match (line.contains("rmgr: Transaction"), kind) {
        (true, "COMMIT") => end(header, rest, true),
        (true, "ABORT") => end(header, rest, false),
        (true, "COMMIT_PREPARED") => end(prepared().0, prepared().1, true),
        (true, "ABORT_PREPARED") => end(prepared().0, prepared().1, false),
        (true, "PREPARE") => Meaning::Prepared(header),
        (false, "RESTORE_POINT") => Meaning::RestorePoint {
            name: rest.as_bytes().to_vec(),
            // It does not print it.
            time: WalTime(0),
        },
        (false, "CHECKPOINT_ONLINE" | "CHECKPOINT_SHUTDOWN") => {
            Meaning::Checkpoint { time: WalTime(0) }
        }
        _ => Meaning::Other,
    };
    (lsn, meaning)
}

/// A segment that was switched, and the same as a standby has it before its rest has come: in a file that had another name.
#[test]
fn what_a_file_has_behind_a_switch_is_seen_and_read_all_the_same() {
    for major in Major::ALL {
        let mut whole = bytes(major, "wal_records");
        whole.resize(1 << 20, 0);
        let has_remains = |bytes: &[u8]| {
            let mut reader = RecordReader::new(major, segment(major), size());
            reader.feed(bytes, |_| {}).unwrap();
            assert!(reader.ends().is_some());
            reader.has_remains()
        };
        assert!(!has_remains(&whole), "PostgreSQL {major}");
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
        // The switch itself ends with its checksum, whose last byte may be 0.
        for at in [used + 8, whole.len() - 1] {
            let mut reused = whole.clone();
            reused[at] = 7;
            assert!(has_remains(&reused), "PostgreSQL {major}, byte {at}");
        }
    }
}

#[test]
fn records_are_those_that_pg_waldump_prints() {
    for major in Major::ALL {
        let dump = String::from_utf8(bytes(major, "wal_records.txt")).unwrap();
        let expected: Vec<(Lsn, Meaning)> = dump.lines().map(described).collect();
        let mut found = Vec::new();
        let mut ends = Vec::new();
        for mut record in read(major, &bytes(major, "wal_records")).unwrap() {
            if let Meaning::RestorePoint { time, .. } | Meaning::Checkpoint { time } =
                &mut record.meaning
            {
                assert!(
                    time.unix_microseconds() > Some(1_795_305_600_000_000),
                    "{time:?}"
                );
                *time = WalTime(0);
            }
            ends.push(record.end);
            found.push((record.start, record.meaning));
        }
        assert_eq!(found, expected, "PostgreSQL {major}");
        let with_times = found
            .iter()
            .filter(|(_, meaning)| *meaning != Meaning::Other);
        assert!(with_times.count() > 15, "PostgreSQL {major}");
        // A record ends where the next begins, or before the header of a page.
        for (end, (next, _)) in ends.iter().zip(&found[1..]) {
            let header = if end.get() % 8192 == 0 { 24 } else { 0 };
            assert_eq!(end.get() + header, next.get(), "PostgreSQL {major}");
        }
        let end_of_segment = segment(major).end_lsn(size());
        assert_eq!(ends.last(), Some(&end_of_segment), "PostgreSQL {major}");
    }
}

#[test]
fn records_do_not_depend_on_the_pieces_in_which_they_come() {
    for major in Major::ALL {
        let bytes = bytes(major, "wal_records");
        let expected = read(major, &bytes).unwrap();
        for piece in [1, 7, 4096, 8191, 8192, 8193, 30_000] {
            let mut reader = RecordReader::new(major, segment(major), size());
            let mut found = Vec::new();
            for piece in bytes.chunks(piece) {
                reader.feed(piece, |record| found.push(record)).unwrap();
            }
            assert_eq!(found, expected, "PostgreSQL {major}, {piece} bytes");
        }
    }
}

/// What is read of a segment ends with the damage: no record comes out that the server did not write, up to what its
/// header does not say and nobody checks.
#[test]
fn a_flip_of_any_byte_is_an_error_or_changes_nothing_that_matters() {
    for major in [Major::V15, Major::V18] {
        let bytes = bytes(major, "wal_records");
        // As far as subtransactions and prepared ones reach.
        let bytes = &bytes[..8192];
        let matters = |record: &&WalRecord| record.meaning != Meaning::Other;
        let expected = read(major, bytes).unwrap();
        let expected: Vec<&WalRecord> = expected.iter().filter(matters).collect();
        let mut errors = 0;
        for at in 0..bytes.len() {
            let mut flipped = bytes.to_vec();
            for mask in [0x01, 0x80, 0xFF] {
                flipped[at] = bytes[at] ^ mask;
                let Ok(found) = read(major, &flipped) else {
                    errors += 1;
                    continue;
                };
                // The kind of a record may change, which only a checksum of all records would tell.
                let found = found.iter().filter(matters);
                for record in found {
                    assert!(expected.contains(&record), "byte {at}: {record:?}");
                }
            }
        }
        assert!(errors > 4000, "PostgreSQL {major}: {errors}");
    }
}

#[test]
fn wal_cut_anywhere_gives_the_records_before_the_cut() {
    let major = Major::V18;
    let bytes = bytes(major, "wal_records");
    let expected = read(major, &bytes).unwrap();
    for cut in (0..bytes.len()).step_by(509) {
        let found = read(major, &bytes[..cut]).unwrap();
        assert_eq!(found, expected[..found.len()], "{cut}");
        let mut zeroed = bytes[..cut].to_vec();
        zeroed.resize(bytes.len(), 0);
        let mut found = Vec::new();
        let mut reader = RecordReader::new(major, segment(major), size());
        let outcome = reader.feed(&zeroed, |record| found.push(record));
        let whole = found.len() == expected.len();
        assert!(whole || outcome.is_err(), "{cut}");
        // A record whose end was zeroed has a length still, and nobody checks what nobody reads.
        for record in found
            .iter()
            .filter(|record| record.meaning != Meaning::Other)
        {
            assert!(expected.contains(record), "{cut}: {record:?}");
        }
    }
}

#[test]
fn a_segment_of_another_place_version_or_timeline_is_refused() {
    let major = Major::V17;
    let bytes = bytes(major, "wal_records");
    let right = segment(major);
    let read = |major, segment, size| {
        let mut reader = RecordReader::new(major, segment, size);
        reader
            .feed(&bytes, |_| {})
            .map_err(|error| error.to_string())
    };
    read(major, right, size()).unwrap();
    let error = read(major, right.next(), size()).unwrap_err();
    assert!(error.contains("says that it is the page at"), "{error}");
    let error = read(Major::V16, right, size()).unwrap_err();
    assert!(error.contains("not that of PostgreSQL 16"), "{error}");
    let two = WalSegmentSize::try_from(2 << 20).unwrap();
    let number = right.number / 2;
    let error = read(major, WalSegment { number, ..right }, two);
    assert_eq!(
        error.is_err(),
        right.number.is_multiple_of(2) || error.is_err()
    );
}
