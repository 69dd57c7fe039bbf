//! Files that real servers wrote, read back. `tests/golden/README.md` says how they were made.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests fail and report as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pgstrata_pgdata::backup_manifest::{ManifestFile, WalRange};
use pgstrata_pgdata::control::ControlFile;
use pgstrata_pgdata::exclude::{
    Decision, EntryType, UnloggedRelations, decide, empty_wal_directories,
};
use pgstrata_pgdata::label::{BackupFrom, BackupLabel, TablespaceMap};
use pgstrata_pgdata::page::{PageHeader, PageVerdict, check_header, page_checksum, verify};
use pgstrata_pgdata::relation::{BLOCK_SIZE, BlockNumber, Oid};
use pgstrata_pgdata::{
    ArchiveFile, BackupManifestWriter, FileChecksum, Kind, Lsn, Major, TimelineHistory, TimelineId,
    WalPageHeader, WalSegment, WalSegmentSize,
};

fn path(major: Major, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(major.to_string())
        .join(name)
}

fn bytes(major: Major, name: &str) -> Vec<u8> {
    let path = path(major, name);
    fs::read(&path).unwrap_or_else(|error| panic!("could not read {}: {error}", path.display()))
}

fn text(major: Major, name: &str) -> String {
    String::from_utf8(bytes(major, name)).expect("a golden text is UTF-8")
}

fn lsn(text: &str) -> Lsn {
    text.parse().unwrap()
}

fn segment_size() -> WalSegmentSize {
    WalSegmentSize::try_from(1 << 20).unwrap()
}

/// The names and values `pg_controldata` prints, from what we read.
fn as_controldata(control: &ControlFile) -> Vec<(&'static str, String)> {
    let redo_segment =
        WalSegment::containing(control.timeline, control.redo_lsn, control.wal_segment_size);
    let mut fields = recovery_controldata(control);
    fields.extend([
        (
            "pg_control version number",
            control.major.control_version().to_string(),
        ),
        (
            "Catalog version number",
            control.catalog_version.to_string(),
        ),
        (
            "Database system identifier",
            control.system_identifier.to_string(),
        ),
        ("Database cluster state", control.state.to_string()),
        (
            "Latest checkpoint location",
            control.checkpoint_lsn.to_string(),
        ),
        (
            "Latest checkpoint's REDO location",
            control.redo_lsn.to_string(),
        ),
        (
            "Latest checkpoint's REDO WAL file",
            redo_segment.file_name(control.wal_segment_size),
        ),
        (
            "Latest checkpoint's TimeLineID",
            control.timeline.to_string(),
        ),
        (
            "Latest checkpoint's PrevTimeLineID",
            control.previous_timeline.to_string(),
        ),
        (
            "Latest checkpoint's full_page_writes",
            on_off(control.full_page_writes),
        ),
        ("wal_level setting", control.wal_level.to_string()),
        ("wal_log_hints setting", on_off(control.wal_log_hints)),
        ("Database block size", control.block_size.to_string()),
        (
            "Blocks per segment of large relation",
            control.blocks_per_segment.to_string(),
        ),
        ("WAL block size", control.wal_block_size.to_string()),
        (
            "Bytes per WAL segment",
            control.wal_segment_size.to_string(),
        ),
        (
            "Data page checksum version",
            control.data_checksum_version.to_string(),
        ),
    ]);
    fields
}

fn recovery_controldata(control: &ControlFile) -> Vec<(&'static str, String)> {
    let position = |lsn: Option<Lsn>| lsn.unwrap_or(Lsn::INVALID).to_string();
    let timeline = control.min_recovery_timeline.map_or(0, TimelineId::get);
    let end_required = if control.backup_end_required {
        "yes"
    } else {
        "no"
    };
    vec![
        (
            "Minimum recovery ending location",
            position(control.min_recovery_lsn),
        ),
        ("Min recovery ending loc's timeline", timeline.to_string()),
        ("Backup start location", position(control.backup_start_lsn)),
        ("Backup end location", position(control.backup_end_lsn)),
        ("End-of-backup record required", end_required.to_owned()),
    ]
}

fn on_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

const CONTROL_FILES: [&str; 4] = [
    "pg_control_production",
    "pg_control_shutdown",
    "pg_control_standby",
    "pg_control_timeline2",
];

#[test]
fn pg_control_says_what_pg_controldata_reads() {
    for major in Major::ALL {
        for name in CONTROL_FILES {
            let control = ControlFile::parse(&bytes(major, name)).unwrap();
            assert_eq!(control.major, major);
            let printed = text(major, &format!("{name}.txt"));
            for (field, value) in as_controldata(&control) {
                let line = printed
                    .lines()
                    .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
                    .unwrap_or_else(|| panic!("pg_controldata {major} printed no {field:?}"));
                assert_eq!(value, line.trim(), "{major} {name}: {field}");
            }
        }
    }
}

#[test]
fn pg_control_time_is_that_of_the_last_write() {
    // "pg_control last modified: Sat Nov 21 hh:mm:ss 2026", in UTC.
    for major in Major::ALL {
        for name in CONTROL_FILES {
            let control = ControlFile::parse(&bytes(major, name)).unwrap();
            let second = control.time.rem_euclid(86_400);
            let clock = format!(
                "{:02}:{:02}:{:02}",
                second / 3600,
                second / 60 % 60,
                second % 60
            );
            let expected = format!("pg_control last modified:             Sat Nov 21 {clock} 2026");
            assert!(
                text(major, &format!("{name}.txt")).contains(&expected),
                "{major} {name}"
            );
            // 2026-11-21 began 20778 days after 1970-01-01.
            assert_eq!(control.time.div_euclid(86_400), 20_778, "{major} {name}");
        }
    }
}

#[test]
fn rule_8_every_damaged_byte_of_pg_control_is_noticed() {
    for major in Major::ALL {
        let good = bytes(major, "pg_control_production");
        let end = if major == Major::V18 { 296 } else { 292 };
        for offset in 0..end {
            for mask in [0x01, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[offset] ^= mask;
                let error = ControlFile::parse(&bad).expect_err("a damaged pg_control was read");
                let expected = if (8..12).contains(&offset) {
                    Kind::Unsupported
                } else {
                    Kind::Damaged
                };
                assert_eq!(error.kind(), expected, "{major}: byte {offset}");
            }
        }
        for size in 0..end {
            assert!(
                ControlFile::parse(&good[..size]).is_err(),
                "{major}: {size} bytes were enough"
            );
        }
        assert_eq!(
            ControlFile::parse(&good[..end]),
            ControlFile::parse(&good),
            "{major}"
        );
    }
}

/// A `pg_control` with other bytes and a checksum that fits them.
fn altered_control(offset: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = bytes(Major::V15, "pg_control_production");
    bytes[offset..offset + value.len()].copy_from_slice(value);
    let crc = FileChecksum::of(&bytes[..288]).crc();
    bytes[288..292].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn rule_10_clusters_of_another_build_are_refused_by_name() {
    for (offset, value, word) in [
        (12, 202_107_181_u32, "catalog version 202107181"),
        (12, 202_506_291, "catalog version 202506291"),
        (204, 4, "alignment 4"),
        (216, 16_384, "block size 16384"),
        (220, 65_536, "relation segment size in blocks 65536"),
        (224, 16_384, "WAL block size 16384"),
    ] {
        let error = ControlFile::parse(&altered_control(offset, &value.to_le_bytes())).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    for (offset, value) in [(16, 7_u32), (172, 3), (228, 12_345)] {
        let error = ControlFile::parse(&altered_control(offset, &value.to_le_bytes())).unwrap_err();
        assert_eq!(error.kind(), Kind::Malformed, "{error}");
    }
}

#[test]
fn wal_segments_name_themselves() {
    for major in Major::ALL {
        let name = text(major, "wal_segment_name");
        let header = WalPageHeader::parse(&bytes(major, "wal_segment_start")).unwrap();
        let control = ControlFile::parse(&bytes(major, "pg_control_production")).unwrap();
        assert_eq!(header.major, major);
        assert_eq!(header.system_identifier, control.system_identifier);
        assert_eq!(header.segment_size, control.wal_segment_size);
        assert_eq!(header.block_size, control.wal_block_size);
        assert_eq!(header.timeline, control.timeline);
        assert_eq!(header.segment().file_name(header.segment_size), name.trim());
    }
}

#[test]
fn damaged_wal_headers_never_pass_for_the_same_segment() {
    let good = bytes(Major::V18, "wal_segment_start");
    let header = WalPageHeader::parse(&good).unwrap();
    for offset in (0..40).filter(|offset| !(16..24).contains(offset)) {
        let mut bad = good.clone();
        bad[offset] ^= 0x08;
        // Flags that are allowed mean nothing here.
        let same = WalPageHeader::parse(&bad).is_ok_and(|read| read == header);
        assert!(!same || offset == 2, "byte {offset}");
    }
    for size in 0..WalPageHeader::SIZE_BYTES {
        assert!(
            WalPageHeader::parse(&good[..size]).is_err(),
            "{size} bytes were enough"
        );
    }
}

#[test]
fn archived_names_are_all_known() {
    for major in [Major::V15, Major::V18] {
        for name in text(major, "archive_names").lines() {
            let file = ArchiveFile::parse(name, segment_size()).unwrap();
            assert_eq!(file.file_name(segment_size()), name);
        }
    }
}

fn pages(bytes: &[u8]) -> impl Iterator<Item = (BlockNumber, &[u8])> {
    (0..).map(BlockNumber).zip(bytes.chunks(BLOCK_SIZE))
}

#[test]
fn rule_5_pages_of_every_fork_verify_at_their_own_block() {
    for (major, name) in [
        (Major::V15, "heap"),
        (Major::V15, "btree"),
        (Major::V15, "vm"),
        (Major::V15, "fsm"),
        (Major::V16, "heap"),
        (Major::V17, "heap"),
        (Major::V18, "heap"),
        (Major::V18, "btree"),
        (Major::V18, "vm"),
        (Major::V18, "fsm"),
    ] {
        let file = bytes(major, name);
        for (block, page) in pages(&file) {
            assert_eq!(
                verify(page, block),
                PageVerdict::Ok,
                "{major} {name} block {block}"
            );
            assert_eq!(
                check_header(page),
                PageVerdict::Ok,
                "{major} {name} block {block}"
            );
        }
        let page = &file[..BLOCK_SIZE];
        assert!(
            matches!(
                verify(page, BlockNumber(1)),
                PageVerdict::BadChecksum { .. }
            ),
            "{major} {name}"
        );
    }
}

#[test]
fn rule_5_every_damaged_byte_of_a_page_is_noticed() {
    let page = bytes(Major::V18, "heap")[..BLOCK_SIZE].to_vec();
    for offset in 0..BLOCK_SIZE {
        let mut bad = page.clone();
        bad[offset] ^= 0x10;
        assert_ne!(
            verify(&bad, BlockNumber(0)),
            PageVerdict::Ok,
            "byte {offset}"
        );
    }
}

#[test]
fn page_checksums_are_those_of_pageinspect() {
    for major in [Major::V15, Major::V18] {
        let file = bytes(major, "heap");
        let lines = text(major, "heap_checksums");
        assert_eq!(lines.lines().count(), 5);
        for line in lines.lines() {
            let (block, checksum) = line.split_once('|').unwrap();
            let expected: i16 = checksum.parse().unwrap();
            let found = page_checksum(&file[..BLOCK_SIZE], BlockNumber(block.parse().unwrap()));
            assert_eq!(found, expected.cast_unsigned(), "{major} block {block}");
        }
    }
}

#[test]
fn page_lsns_lie_before_the_checkpoint() {
    for major in Major::ALL {
        let control = ControlFile::parse(&bytes(major, "pg_control_shutdown")).unwrap();
        for (block, page) in pages(&bytes(major, "heap")) {
            let lsn = PageHeader::new(page).unwrap().lsn();
            // initdb leaves more than 1 MiB of WAL behind, so a half that is read wrong shows.
            assert!(
                lsn > Lsn::new(1 << 20) && lsn < control.redo_lsn,
                "{major} block {block}: {lsn}"
            );
        }
    }
}

#[test]
fn rule_2_a_label_cannot_pass_for_another_field() {
    for major in Major::ALL {
        let label = BackupLabel::parse(&text(major, "backup_label")).unwrap();
        assert_eq!(label.label, "first line\nSTART TIMELINE: 7\nlast line");
        assert_eq!(label.start_timeline, TimelineId::new(1));
        assert_eq!(label.backup_from, BackupFrom::Primary);
        assert_eq!(label.backup_method, "streamed");
        assert_eq!(label.incremental_from, None);
        assert!(label.start_lsn < label.checkpoint_lsn);
        let segment = WalSegment::containing(label.start_timeline, label.start_lsn, segment_size());
        assert_eq!(label.start_wal_file, segment.file_name(segment_size()));
    }
}

#[test]
fn tablespace_maps_are_read_and_written_as_the_server_does() {
    let path = fs::read_to_string(path(Major::V15, "../tablespace_path")).unwrap();
    for major in Major::ALL {
        let text = text(major, "tablespace_map");
        let map = TablespaceMap::parse(&text).unwrap();
        assert_eq!(
            map.locations.len(),
            1,
            "an in-place tablespace is not in the map"
        );
        assert_eq!(map.locations[0].path, path.strip_suffix('\n').unwrap());
        assert!(map.locations[0].oid > Oid(16_383));
        assert_eq!(map.format(), text);
    }
}

#[test]
fn histories_lead_to_the_switch() {
    for major in Major::ALL {
        let two = TimelineId::new(2);
        let history = TimelineHistory::parse(two, &text(major, "00000002.history")).unwrap();
        let control = ControlFile::parse(&bytes(major, "pg_control_timeline2")).unwrap();
        let switch = history.switch_point(TimelineId::FIRST).unwrap();
        assert_eq!(history.timeline_at(control.redo_lsn), Some(two));
        assert_eq!(
            history.timeline_at(Lsn::new(switch.get() - 1)),
            Some(TimelineId::FIRST)
        );
        assert_eq!(history.entries().len(), 2);
    }
}

#[test]
fn rule_4_10_a_history_that_goes_backwards_gives_each_byte_to_the_newest_timeline() {
    // Recovery aimed at timeline 2 (which left timeline 1 at 0/F00000) ended at 0/D00108, before that.
    let history =
        TimelineHistory::parse(TimelineId::new(3), &text(Major::V15, "00000003.history")).unwrap();
    let end = lsn("0/D00108");
    assert_eq!(history.switch_point(TimelineId::new(1)), Some(end));
    assert_eq!(
        history.timeline_at(lsn("0/D00107")),
        Some(TimelineId::new(1))
    );
    assert_eq!(history.timeline_at(end), Some(TimelineId::new(3)));
    assert_eq!(
        history.timeline_at(lsn("0/E80000")),
        Some(TimelineId::new(3))
    );
    assert!(!history.contains(TimelineId::new(1), lsn("0/D00000")..lsn("0/E00000")));
    assert!(!history.contains(TimelineId::new(2), lsn("0/F00000")..lsn("0/F00001")));
}

/// Seconds of Unix time of `2026-11-21 12:02:29 GMT`; the goldens are all of that day.
fn seconds(modified: &str) -> i64 {
    let clock = modified
        .strip_prefix("2026-11-21 ")
        .and_then(|rest| rest.strip_suffix(" GMT"))
        .unwrap();
    let day = 20_778 * 86_400;
    clock.split(':').fold(0, |seconds, part| {
        seconds * 60 + part.parse::<i64>().unwrap()
    }) + day
}

fn unhex(digits: &str) -> Vec<u8> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn manifests_are_written_byte_for_byte_as_the_server_does() {
    for major in [Major::V15, Major::V18] {
        let golden = text(major, "backup_manifest");
        let value: serde_json::Value = serde_json::from_str(&golden).unwrap();
        let control = ControlFile::parse(&bytes(major, "pg_control_production")).unwrap();
        let mut written = String::new();
        let mut writer =
            BackupManifestWriter::begin(major, control.system_identifier, &mut written).unwrap();
        for file in value["Files"].as_array().unwrap() {
            let path = match file["Path"].as_str() {
                Some(path) => path.as_bytes().to_vec(),
                None => unhex(file["Encoded-Path"].as_str().unwrap()),
            };
            let crc = u32::from_le_bytes(
                unhex(file["Checksum"].as_str().unwrap())
                    .try_into()
                    .unwrap(),
            );
            let entry = ManifestFile {
                path: &path,
                modified: seconds(file["Last-Modified"].as_str().unwrap()),
                checksum: FileChecksum::from_parts(crc, file["Size"].as_u64().unwrap()),
            };
            writer.file(&entry, &mut written).unwrap();
        }
        let ranges: Vec<WalRange> = value["WAL-Ranges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|range| WalRange {
                timeline: TimelineId::new(range["Timeline"].as_u64().unwrap().try_into().unwrap()),
                start: lsn(range["Start-LSN"].as_str().unwrap()),
                end: lsn(range["End-LSN"].as_str().unwrap()),
            })
            .collect();
        writer.finish(&ranges, &mut written).unwrap();
        assert!(written == golden, "the manifest of {major} differs");
    }
}

#[test]
fn manifest_checksums_are_those_of_the_files() {
    for major in [Major::V15, Major::V18] {
        let manifest: serde_json::Value =
            serde_json::from_str(&text(major, "backup_manifest")).unwrap();
        for (name, contents) in [
            ("backup_label", bytes(major, "basebackup_label")),
            ("PG_VERSION", format!("{major}\n").into_bytes()),
        ] {
            let files = manifest["Files"].as_array().unwrap();
            let file = files.iter().find(|file| file["Path"] == name).unwrap();
            let checksum = FileChecksum::of(&contents);
            assert_eq!(
                file["Checksum"],
                checksum.to_manifest_hex(),
                "{major} {name}"
            );
            assert_eq!(file["Size"], checksum.size_bytes(), "{major} {name}");
        }
    }
}

/// What our rules take of a listed data directory, as `find` would list it afterwards.
fn taken(listing: &str, major: Major) -> BTreeSet<String> {
    let mut directories: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in listing.lines() {
        let (directory, name) = line[2..].rsplit_once('/').unwrap_or(("", &line[2..]));
        directories.entry(directory).or_default().push(name);
    }
    let unlogged: BTreeMap<_, _> = directories
        .into_iter()
        .map(|(directory, names)| (directory, UnloggedRelations::among(names)))
        .collect();
    let is_taken = |line: &&str| {
        let path = &line[2..];
        let entry = if line.starts_with('d') {
            EntryType::Directory
        } else {
            EntryType::File
        };
        let above_are_kept = path.match_indices('/').all(|(slash, _)| {
            decide(&path[..slash], EntryType::Directory, major) == Decision::Keep
        });
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        above_are_kept
            && decide(path, entry, major) != Decision::Skip
            && !unlogged[directory].omits(name)
    };
    let below_wal = empty_wal_directories(major)
        .iter()
        .map(|directory| format!("d {directory}"));
    listing
        .lines()
        .filter(is_taken)
        .map(str::to_owned)
        .chain(below_wal)
        .collect()
}

#[test]
fn rule_6_what_is_taken_is_what_the_servers_own_base_backup_takes() {
    for major in Major::ALL {
        let listing = text(major, "listing");
        let taken = taken(&listing, major);
        let basebackup = text(major, "listing_basebackup");
        // The server writes a label of its own in place of the old one.
        let basebackup = basebackup
            .lines()
            .filter(|line| *line != "f backup_label")
            .map(str::to_owned)
            .collect();
        assert_eq!(taken, basebackup, "PostgreSQL {major}");
        assert!(
            listing.lines().count() > taken.len() + 50,
            "PostgreSQL {major}: the listing has too little to leave out"
        );
    }
}
