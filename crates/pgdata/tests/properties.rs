//! What holds for all values: no parser panics, and what is written is read back.
//!
//! Every run draws new values and prints its seed; `PGSTRATA_TEST_SEED=<seed>` repeats it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "the helpers of tests fail and report as tests do"
)]

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use pgstrata_pgdata::backup_manifest::ManifestFile;
use pgstrata_pgdata::control::ControlFile;
use pgstrata_pgdata::exclude::{EntryType, UnloggedRelations, decide};
use pgstrata_pgdata::label::{BackupLabel, TablespaceLocation, TablespaceMap};
use pgstrata_pgdata::page::{PageVerdict, check_header, is_zero, page_checksum, verify};
use pgstrata_pgdata::relation::{
    BLOCK_SIZE, BlockNumber, ForkKind, Oid, PathKind, RelSegment, RelationFork,
};
use pgstrata_pgdata::{
    ArchiveFile, BackupManifestWriter, FileChecksum, Lsn, Major, TimelineHistory, TimelineId,
    WalPageHeader, WalSegment, WalSegmentSize,
};

/// Runs `property` on many values of `strategy`.
fn hold<S: Strategy>(
    name: &str,
    strategy: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let seed = match std::env::var("PGSTRATA_TEST_SEED") {
        Ok(seed) => seed.parse().expect("PGSTRATA_TEST_SEED is a number"),
        Err(_) => std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), name),
    };
    eprintln!("{name}: PGSTRATA_TEST_SEED={seed}");
    let config = Config {
        cases: 2000,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    };
    if let Err(error) = TestRunner::new(config).run(&strategy, property) {
        panic!("{name} with PGSTRATA_TEST_SEED={seed}: {error}");
    }
}

fn lsns() -> impl Strategy<Value = Lsn> {
    prop_oneof![any::<u64>(), 0..=0x1_0000_0000_u64, Just(u64::MAX)].prop_map(Lsn::new)
}

fn segment_sizes() -> impl Strategy<Value = WalSegmentSize> {
    (20..=30_u32).prop_map(|shift| WalSegmentSize::try_from(1_u64 << shift).unwrap())
}

fn timelines() -> impl Strategy<Value = TimelineId> {
    (1..=u32::MAX).prop_map(TimelineId::new)
}

fn majors() -> impl Strategy<Value = Major> {
    proptest::sample::select(Major::ALL.to_vec())
}

/// Text made of the pieces that the parsers look for, in any order.
fn near_misses() -> impl Strategy<Value = String> {
    let pieces = proptest::sample::select(vec![
        "START WAL LOCATION: ",
        "0/A00028",
        " (file ",
        "00000001000000000000000A",
        ")",
        "\n",
        "\r",
        "CHECKPOINT LOCATION: ",
        "BACKUP METHOD: streamed",
        "BACKUP FROM: primary",
        "START TIME: ",
        "LABEL: ",
        "START TIMELINE: ",
        "1",
        "16400",
        " ",
        "/a",
        "\\",
        "\t",
        "#",
        "INCREMENTAL FROM LSN: ",
        "INCREMENTAL FROM TLI: ",
        "base/",
        "global/",
        "pg_tblspc/",
        "_vm",
        ".",
        "PG_15_202209061/",
        "t3_",
        "_init",
        ".partial",
        ".backup",
        ".history",
        "pg_wal",
        "é",
        "\0",
        "/",
        "4294967296",
    ]);
    prop_oneof![
        proptest::collection::vec(pieces, 0..20).prop_map(|pieces| pieces.concat()),
        ".*"
    ]
}

#[test]
fn text_parsers_return() {
    hold(
        "text_parsers_return",
        (near_misses(), segment_sizes(), majors()),
        |(text, size, major)| {
            let _ = text.parse::<Lsn>();
            let _ = text.parse::<TimelineId>();
            let _ = Major::parse(&text);
            let _ = Major::from_tablespace_directory(&text);
            let _ = BackupLabel::parse(&text);
            let _ = TablespaceMap::parse(&text);
            let _ = TimelineHistory::parse(TimelineId::new(7), &text);
            let _ = ArchiveFile::parse(&text, size);
            let _ = WalSegment::parse(&text, size);
            let _ = PathKind::of(&text);
            let _ = UnloggedRelations::among([&text]).omits(&text);
            for entry in [
                EntryType::File,
                EntryType::Directory,
                EntryType::Symlink,
                EntryType::Special,
            ] {
                let _ = decide(&text, entry, major);
            }
            Ok(())
        },
    );
}

#[test]
fn byte_parsers_return() {
    let sizes = prop_oneof![0..600_usize, Just(BLOCK_SIZE), Just(BLOCK_SIZE - 1)];
    let bytes = sizes.prop_flat_map(|size| proptest::collection::vec(any::<u8>(), size));
    // With the first fields right, so that the later ones are reached too.
    let heads = proptest::sample::select(vec![
        vec![],
        0xD110_u16.to_le_bytes().to_vec(),
        [0x18, 0xD1, 2, 0].to_vec(),
        [vec![0; 8], 1300_u32.to_le_bytes().to_vec()].concat(),
        [vec![0; 8], 1800_u32.to_le_bytes().to_vec()].concat(),
    ]);
    hold(
        "byte_parsers_return",
        (bytes, heads, any::<u32>()),
        |(mut bytes, head, block)| {
            let length = head.len().min(bytes.len());
            bytes[..length].copy_from_slice(&head[..length]);
            prop_assert!(
                ControlFile::parse(&bytes).is_err(),
                "random bytes have a right checksum"
            );
            let _ = WalPageHeader::parse(&bytes);
            let _ = PathKind::of(&bytes);
            let _ = decide(&bytes, EntryType::File, Major::V15);
            let _ = verify(&bytes, BlockNumber(block));
            let _ = check_header(&bytes);
            let _ = page_checksum(&bytes, BlockNumber(block));
            prop_assert_eq!(is_zero(&bytes), bytes.iter().all(|&byte| byte == 0));
            Ok(())
        },
    );
}

#[test]
fn lsn_text_comes_back() {
    hold("lsn_text_comes_back", lsns(), |lsn| {
        prop_assert_eq!(lsn.to_string().parse::<Lsn>().unwrap(), lsn);
        let json = serde_json::to_string(&lsn).unwrap();
        prop_assert_eq!(serde_json::from_str::<Lsn>(&json).unwrap(), lsn);
        Ok(())
    });
}

#[test]
fn segment_names_come_back_in_order() {
    hold(
        "segment_names_come_back_in_order",
        (timelines(), lsns(), lsns(), segment_sizes()),
        |(timeline, left, right, size)| {
            let segments = [left, right].map(|lsn| WalSegment::containing(timeline, lsn, size));
            let names = segments.map(|segment| segment.file_name(size));
            for (segment, name) in segments.iter().zip(&names) {
                prop_assert_eq!(name.len(), 24);
                prop_assert_eq!(WalSegment::parse(name, size).unwrap(), *segment);
            }
            prop_assert_eq!(segments[0].cmp(&segments[1]), names[0].cmp(&names[1]));
            prop_assert!(segments[0].start_lsn(size) <= left);
            prop_assert!(
                left < segments[0].end_lsn(size) || segments[0].end_lsn(size).get() == u64::MAX
            );
            Ok(())
        },
    );
}

#[test]
fn covering_segments_hold_every_byte_and_no_more() {
    let ranges = (
        timelines(),
        0..u64::MAX / 2,
        1..5_000_000_000_u64,
        segment_sizes(),
    );
    hold(
        "covering_segments_hold_every_byte_and_no_more",
        ranges,
        |(timeline, start, length, size)| {
            let (start, end) = (Lsn::new(start), Lsn::new(start + length));
            let mut segments = WalSegment::covering(timeline, start..end, size);
            let first = segments.next().unwrap();
            prop_assert!(first.start_lsn(size) <= start && start < first.end_lsn(size));
            let mut last = first;
            for segment in segments {
                prop_assert_eq!(segment, last.next());
                last = segment;
            }
            prop_assert!(last.start_lsn(size) < end && end <= last.end_lsn(size));
            prop_assert_eq!(last, WalSegment::containing_end(timeline, end, size));
            Ok(())
        },
    );
}

#[test]
fn archive_names_come_back() {
    hold(
        "archive_names_come_back",
        (timelines(), lsns(), segment_sizes(), 0..4_u8),
        |(timeline, lsn, size, kind)| {
            let segment = WalSegment::containing(timeline, lsn, size);
            let offset = u32::try_from(lsn.get() % size.get()).unwrap();
            let file = match kind {
                0 => ArchiveFile::Segment(segment),
                1 => ArchiveFile::Partial(segment),
                2 => ArchiveFile::History(timeline),
                _ => ArchiveFile::BackupLabel { segment, offset },
            };
            prop_assert_eq!(
                ArchiveFile::parse(&file.file_name(size), size).unwrap(),
                file
            );
            Ok(())
        },
    );
}

#[test]
fn relation_paths_come_back() {
    let forks = proptest::sample::select(vec![
        ForkKind::Main,
        ForkKind::Fsm,
        ForkKind::Vm,
        ForkKind::Init,
    ]);
    let places = prop_oneof![
        Just((Oid::GLOBAL_TABLESPACE, Oid::INVALID)),
        (1..=u32::MAX).prop_map(|database| (Oid::DEFAULT_TABLESPACE, Oid(database))),
        (2000..=u32::MAX, 1..=u32::MAX)
            .prop_map(|(tablespace, database)| (Oid(tablespace), Oid(database))),
    ];
    let values = (places, 1..=u32::MAX, forks, 0..32_768_u32, majors());
    hold(
        "relation_paths_come_back",
        values,
        |((tablespace, database), relation, fork, number, major)| {
            let relation_fork = RelationFork {
                tablespace,
                database,
                relation: Oid(relation),
                fork,
            };
            let segment = RelSegment {
                relation_fork,
                number,
            };
            prop_assert_eq!(
                PathKind::of(segment.path(major)),
                PathKind::RelSegment(segment)
            );
            Ok(())
        },
    );
}

#[test]
fn tablespace_maps_come_back() {
    let locations = proptest::collection::vec((1..=u32::MAX, "/[ -~\n\r\\\\é]{0,30}"), 0..5);
    hold("tablespace_maps_come_back", locations, |locations| {
        let locations = locations
            .into_iter()
            .map(|(oid, path)| TablespaceLocation {
                oid: Oid(oid),
                path,
            })
            .collect();
        let map = TablespaceMap { locations };
        prop_assert_eq!(TablespaceMap::parse(&map.format()).unwrap(), map);
        Ok(())
    });
}

#[test]
fn labels_come_back_whatever_the_user_wrote() {
    let values = (
        lsns(),
        lsns(),
        timelines(),
        prop_oneof![near_misses(), ".*"],
    );
    hold(
        "labels_come_back_whatever_the_user_wrote",
        values,
        |(start, checkpoint, timeline, label)| {
            let file = WalSegment::containing(timeline, start, WalSegmentSize::DEFAULT)
                .file_name(WalSegmentSize::DEFAULT);
            let text = format!(
                "START WAL LOCATION: {start} (file {file})\nCHECKPOINT LOCATION: {checkpoint}\nBACKUP METHOD: streamed\n\
             BACKUP FROM: primary\nSTART TIME: 2026-11-21 12:02:29 UTC\nLABEL: {label}\nSTART TIMELINE: {timeline}\n"
            );
            let parsed = BackupLabel::parse(&text).unwrap();
            prop_assert_eq!(
                (parsed.start_lsn, parsed.checkpoint_lsn),
                (start, checkpoint)
            );
            prop_assert_eq!(
                (parsed.start_timeline, parsed.start_wal_file),
                (timeline, file)
            );
            prop_assert_eq!(parsed.label, label);
            Ok(())
        },
    );
}

#[test]
fn a_history_gives_every_byte_one_timeline() {
    // Switch points in any order, as recovery can leave them.
    let switches = proptest::collection::vec(0..100_u64, 0..6);
    hold(
        "a_history_gives_every_byte_one_timeline",
        switches,
        |switches| {
            let count = u32::try_from(switches.len()).unwrap();
            let lines = switches
                .iter()
                .zip(1..)
                .map(|(at, parent)| format!("{parent}\t{}\treason\n", Lsn::new(*at)));
            let history =
                TimelineHistory::parse(TimelineId::new(count + 1), &lines.collect::<String>())
                    .unwrap();
            for position in 0..100 {
                let lsn = Lsn::new(position);
                // The server searches newest first: each timeline but the first begins at its parent's switch point.
                let newest = (1..=count + 1)
                    .rev()
                    .find(|&timeline| {
                        timeline == 1
                            || switches[usize::try_from(timeline - 2).unwrap()] <= position
                    })
                    .unwrap();
                prop_assert_eq!(history.timeline_at(lsn), Some(TimelineId::new(newest)));
                let holders = history.entries().iter().filter(|entry| {
                    history.contains(entry.timeline, lsn..lsn.checked_add(1).unwrap())
                });
                prop_assert_eq!(holders.count(), 1);
            }
            Ok(())
        },
    );
}

#[test]
fn file_checksums_do_not_depend_on_the_pieces() {
    // (bytes, how they are added)
    let piece = (
        proptest::collection::vec(prop_oneof![Just(0), any::<u8>()], 0..300),
        0..3_u8,
    );
    hold(
        "file_checksums_do_not_depend_on_the_pieces",
        proptest::collection::vec(piece, 0..12),
        |pieces| {
            let mut whole = Vec::new();
            let mut checksum = FileChecksum::new();
            for (bytes, how) in pieces {
                match how {
                    0 => checksum.update(&bytes),
                    1 => checksum.append(&FileChecksum::of(&bytes)),
                    _ => checksum.zeros(u64::try_from(bytes.len()).unwrap()),
                }
                whole.extend(if how == 2 {
                    vec![0; bytes.len()]
                } else {
                    bytes
                });
            }
            prop_assert_eq!(checksum.crc(), crc_fast::crc32_iscsi(&whole));
            prop_assert_eq!(checksum, FileChecksum::of(&whole));
            Ok(())
        },
    );
}

#[test]
fn sealed_pages_verify_and_altered_ones_do_not() {
    let pages = (
        proptest::collection::vec(any::<u8>(), BLOCK_SIZE),
        any::<u32>(),
        0..BLOCK_SIZE,
        1..=255_u8,
    );
    hold(
        "sealed_pages_verify_and_altered_ones_do_not",
        pages,
        |(mut page, block, offset, mask)| {
            // Flags, lower, upper, special, size and version of an empty heap page.
            page[10..20].copy_from_slice(&[0, 0, 24, 0, 0, 32, 0, 32, 4, 32]);
            let block = BlockNumber(block);
            let checksum = page_checksum(&page, block);
            prop_assert!(checksum != 0);
            page[8..10].copy_from_slice(&checksum.to_le_bytes());
            prop_assert_eq!(
                page_checksum(&page, block),
                checksum,
                "the stored checksum counts"
            );
            prop_assert_eq!(verify(&page, block), PageVerdict::Ok);
            page[offset] ^= mask;
            // Two pages in 65535 share a checksum, so only the verdict of a page whose checksum differs is certain.
            if page_checksum(&page, block) != u16::from_le_bytes([page[8], page[9]]) {
                prop_assert!(verify(&page, block) != PageVerdict::Ok);
            }
            Ok(())
        },
    );
}

#[test]
fn manifests_are_json_with_the_paths_given() {
    let paths = proptest::collection::vec(proptest::collection::vec(1..=255_u8, 1..20), 0..4);
    hold(
        "manifests_are_json_with_the_paths_given",
        (paths, majors(), any::<i64>()),
        |(paths, major, modified)| {
            let mut text = String::new();
            let mut writer = BackupManifestWriter::begin(major, 1, &mut text).unwrap();
            for path in &paths {
                writer
                    .file(
                        &ManifestFile {
                            path,
                            modified,
                            checksum: FileChecksum::of(path),
                        },
                        &mut text,
                    )
                    .unwrap();
            }
            writer.finish(&[], &mut text).unwrap();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let files = value["Files"].as_array().unwrap();
            prop_assert_eq!(files.len(), paths.len());
            for (file, path) in files.iter().zip(&paths) {
                match std::str::from_utf8(path) {
                    Ok(path) => prop_assert_eq!(file["Path"].as_str(), Some(path)),
                    Err(_) => prop_assert!(file["Encoded-Path"].is_string()),
                }
            }
            Ok(())
        },
    );
}
