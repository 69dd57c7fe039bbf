//! The sample repository: one cluster, a full layer, an incremental layer on it, and WAL.
//!
//! The golden files are this repository, stored once. Changing what is built here
//! makes the golden tests fail, which is their purpose.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pgstrata_layer::abandoned::{self, AbandonedRecord};
use pgstrata_layer::claim::{self, ClaimRecord};
use pgstrata_layer::cluster::{self, ClusterRecord, LockMode, RetentionRecord};
use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::lineage::{self, Identity, Line, Lineage, Link, Located, Place};
use pgstrata_layer::manifest::{
    self, Beside, ChangeSource, ChangeSourceRecord, ClusterIdentity, CorruptPage, Manifest,
    ParentRef, Tablespace, Totals,
};
use pgstrata_layer::mark::{self, Annotation, Mark, MarkRecord, Pin, Unpin};
use pgstrata_layer::released::{self, ReleasedRecord};
use pgstrata_layer::removal::{self, RemovalRecord, VerdictRecord, WalKept};
use pgstrata_layer::restoring::{self, RestoreRecord};
use pgstrata_layer::verified::{self, VerifiedRecord};
use pgstrata_layer::wal;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;

use super::merging::merge;
use super::{BLOCK, LayerMaker, Selection, SourceFile, StoredLayer, block_count, noise, prose};

pub const FULL: &str = "20261121-093305F";
pub const INCREMENTAL: &str = "20261121-093305F_20261121-103000I";
pub const FULL_ID: [u8; 16] = *b"sample layer no1";
pub const INCREMENTAL_ID: [u8; 16] = *b"sample layer no2";
pub const SYSTEM_IDENTIFIER: u64 = 7_432_198_765_432_101_234;
pub const SEGMENT: &str = "000000010000000000000003";
pub const HISTORY: &str = "00000002.history";
pub const HISTORY_TEXT: &str = "1\t0/3000110\tno recovery target specified\n";

/// Files by path.
pub type Files = BTreeMap<String, SourceFile>;

/// Objects by key.
pub type Objects = BTreeMap<String, Vec<u8>>;

fn file(kind: EntryKind, identity: u64, bytes: Vec<u8>) -> SourceFile {
    let (mode, modified) = if kind == EntryKind::Directory {
        (0o700, 1_795_253_000)
    } else {
        (0o600, 1_795_253_500)
    };
    SourceFile {
        kind,
        mode,
        modified,
        identity,
        bytes,
    }
}

fn pages(contents: &[&[u8]]) -> Vec<u8> {
    contents.concat()
}

/// The cluster when the full layer was made.
pub fn files_of_full() -> Files {
    let zeros = vec![0; BLOCK];
    let heap = pages(&[
        &noise(1, BLOCK),
        &prose(2, BLOCK),
        &zeros,
        &prose(3, BLOCK),
        &zeros,
    ]);
    [
        ("PG_VERSION", file(EntryKind::Plain, 11, b"15\n".to_vec())),
        ("base", file(EntryKind::Directory, 12, Vec::new())),
        ("base/5", file(EntryKind::Directory, 13, Vec::new())),
        ("base/5/16384", file(EntryKind::Relation, 14, heap)),
        (
            "base/5/16384_vm",
            file(EntryKind::Relation, 15, prose(4, BLOCK)),
        ),
        (
            "base/5/16390",
            file(EntryKind::Relation, 16, prose(5, 2 * BLOCK)),
        ),
        ("base/5/16400", file(EntryKind::Relation, 17, Vec::new())),
        ("pg_xact", file(EntryKind::Directory, 18, Vec::new())),
        (
            "pg_xact/0000",
            file(EntryKind::Plain, 19, prose(6, BLOCK + 100)),
        ),
        (
            "postgresql.auto.conf",
            file(EntryKind::Plain, 20, b"# no change\n".to_vec()),
        ),
    ]
    .map(|(path, file)| (path.to_owned(), file))
    .into()
}

/// The cluster when the incremental layer was made.
pub fn files_of_incremental() -> Files {
    let mut files = files_of_full();
    let heap = files.get_mut("base/5/16384").unwrap();
    // Block 0 changed, 2 was filled, 3 became zeros, 5 and 6 are new.
    heap.bytes[..BLOCK].copy_from_slice(&prose(21, BLOCK));
    heap.bytes[2 * BLOCK..3 * BLOCK].copy_from_slice(&prose(22, BLOCK));
    heap.bytes[3 * BLOCK..4 * BLOCK].fill(0);
    heap.bytes.extend(prose(23, BLOCK));
    heap.bytes.extend([0; BLOCK]);
    // Truncated to one block, then extended again.
    let truncated = files.get_mut("base/5/16390").unwrap();
    truncated.bytes.truncate(BLOCK);
    truncated.bytes.extend(prose(24, BLOCK));
    files.remove("base/5/16400");
    files.insert(
        "base/5/16401".to_owned(),
        file(EntryKind::Relation, 30, prose(25, 100)),
    );
    let log = files.get_mut("pg_xact/0000").unwrap();
    log.bytes[0] = b'P';
    files
}

fn selections_of_incremental(files: &Files) -> BTreeMap<String, Selection> {
    let mut selections: BTreeMap<_, _> = files
        .iter()
        .map(|(path, file)| (path.clone(), Selection::whole(file)))
        .collect();
    let mut select = |path: &str, blocks: &[u32], inherit_limit| {
        let selection = Selection {
            blocks: blocks.to_vec(),
            inherit_limit,
        };
        selections.insert(path.to_owned(), selection);
    };
    select("PG_VERSION", &[], 1);
    select("base/5/16384", &[0, 2, 3, 5, 6], 5);
    select("base/5/16390", &[1], 1);
    select("postgresql.auto.conf", &[], 1);
    selections
}

pub fn full_layer(codec: Codec) -> StoredLayer {
    full_layer_of(FULL_ID, codec)
}

fn full_layer_of(id: [u8; 16], codec: Codec) -> StoredLayer {
    full_layer_with(&files_of_full(), id, codec)
}

fn full_layer_with(files: &Files, id: [u8; 16], codec: Codec) -> StoredLayer {
    let mut maker = LayerMaker::new(id, codec, 2);
    for (path, file) in files {
        maker.store(path, file, &Selection::whole(file));
    }
    maker.finish()
}

pub fn incremental_layer(codec: Codec) -> StoredLayer {
    let files = files_of_incremental();
    let mut maker = LayerMaker::new(INCREMENTAL_ID, codec, 2);
    for (path, selection) in &selections_of_incremental(&files) {
        maker.store(path, &files[path], selection);
    }
    maker.finish()
}

/// Bytes that WAL objects hold: a segment of more than one frame, and a history file.
pub fn segment() -> Vec<u8> {
    prose(31, 300_000)
}

pub fn cluster_record() -> ClusterRecord {
    ClusterRecord {
        name: "main".to_owned(),
        format: 1,
        system_identifier: SYSTEM_IDENTIFIER,
        major: 15,
        catalog_version: 202_209_061,
        block_size: 8192,
        wal_segment_size: 16 << 20,
        created_at: time("2026-11-21T09:00:00Z"),
        written_by: "pgstrata 0.1.0".to_owned(),
        sealing: None,
        retention: None,
    }
}

pub fn claim_record() -> ClaimRecord {
    ClaimRecord {
        label: FULL.to_owned(),
        layer_id: hex(FULL_ID),
        host: "db1.example.org".to_owned(),
        pid: 4711,
        started_at: time("2026-11-21T09:33:05Z"),
        written_by: "pgstrata 0.1.0".to_owned(),
    }
}

fn located(path: Option<&str>, inode: u64, born_ns: Option<u64>) -> Located {
    Located {
        path: path.map(str::to_owned),
        identity: Identity { inode, born_ns },
    }
}

pub fn lineage_file() -> Lineage {
    let layer = |label: &str, digit: &str| ParentRef {
        label: label.to_owned(),
        manifest_digest: digit.repeat(64),
    };
    let born = Some(1_795_253_000_000_000_001);
    let link = |link: &str, leads_to| Link {
        link: link.to_owned(),
        leads_to,
    };
    Lineage {
        system_identifier: SYSTEM_IDENTIFIER,
        place: Place {
            directory: located(Some("/var/lib/postgresql/15/main"), 262_145, born),
            control: Identity {
                inode: 262_146,
                born_ns: born,
            },
            links: vec![
                link("pg_tblspc/16390", located(Some("/srv/fast"), 128, None)),
                link("pg_wal", located(None, 129, born)),
            ],
        },
        boot_id: Some("0f2c3f5e-8d1b-4c62-9a55-2f6f0f6f6b1d".to_owned()),
        fsync: true,
        server_run: Some("2026-11-20 07:00:00.123456 7446034815423456789 5432".to_owned()),
        tracker_token: Some("1:24c24b03a16c1ac3".to_owned()),
        summaries_from_lsn: None,
        lines: vec![
            Line {
                repository: "c".repeat(64),
                layers: vec![layer(INCREMENTAL, "2"), layer(FULL, "1")],
                of_run: 0,
            },
            Line {
                repository: "d".repeat(64),
                layers: vec![layer(FULL, "3")],
                of_run: 0,
            },
        ],
        written_at: time("2026-11-21T10:30:01Z"),
        written_by: "pgstrata 0.1.0".to_owned(),
    }
}

/// Files of a data directory, not of the repository.
pub fn data_directory() -> Objects {
    let file = lineage::encode(&lineage_file());
    Objects::from([(lineage::FILE_NAME.to_owned(), file)])
}

/// One that says what happened in the run of the server.
pub fn lineage_of_run() -> Lineage {
    let mut lineage = lineage_file();
    lineage.summaries_from_lsn = Some(Lsn::new(0x1_0500_0060));
    lineage.lines[0].of_run = 1;
    lineage
}

/// The files of a data directory whose server was backed up twice without a restart.
pub fn data_directory_of_run() -> Objects {
    let file = lineage::encode(&lineage_of_run());
    Objects::from([(lineage::FILE_NAME.to_owned(), file)])
}

pub fn abandoned_record() -> AbandonedRecord {
    AbandonedRecord {
        label: INCREMENTAL.to_owned(),
        host: "backup1".to_owned(),
        pid: 4712,
        abandoned_at: "2026-11-22T04:00:00Z".parse().unwrap(),
        written_by: "pgstrata 0.1.0".to_owned(),
    }
}

fn going() -> Vec<ParentRef> {
    let layer = |label: &str, digit: &str| ParentRef {
        label: label.to_owned(),
        manifest_digest: digit.repeat(64),
    };
    vec![layer(INCREMENTAL, "a"), layer(FULL, "b")]
}

pub fn removal_record() -> RemovalRecord {
    RemovalRecord {
        layers: going(),
        host: "backup1".to_owned(),
        pid: 4712,
        started_at: "2026-11-22T04:00:01Z".parse().unwrap(),
        written_by: "pgstrata 0.1.0".to_owned(),
    }
}

pub fn verdict_record() -> VerdictRecord {
    VerdictRecord {
        layers: going(),
        wal_before: Some("0/16000028".parse().unwrap()),
        wal_kept: Vec::new(),
        host: "backup1".to_owned(),
        pid: 4712,
        decided_at: "2026-11-22T04:00:02Z".parse().unwrap(),
        written_by: "pgstrata 0.1.0".to_owned(),
    }
}

pub fn restore_record() -> RestoreRecord {
    RestoreRecord {
        layers: going(),
        start_lsn: "0/16000028".parse().unwrap(),
        timeline: 2,
        host: "db2".to_owned(),
        pid: 4713,
        directory: "/var/lib/postgresql/15/main".to_owned(),
        started_at: "2026-11-22T05:00:00Z".parse().unwrap(),
        written_by: "pgstrata 0.1.0".to_owned(),
    }
}

pub const ID: &str = "0123456789abcdef0123456789abcdef";

/// When it ended, and a number drawn by chance.
pub const VERIFIED: &str = "20261122-050730-01234567";

pub fn verified_record() -> VerifiedRecord {
    VerifiedRecord {
        label: None,
        deep: true,
        layers: 2,
        newest: Some(INCREMENTAL.to_owned()),
        wal_files: 17,
        errors: 0,
        warnings: 1,
        damaged: Vec::new(),
        other_errors: None,
        host: "backup1".to_owned(),
        pid: 4714,
        started_at: "2026-11-22T05:00:00.5Z".parse().unwrap(),
        finished_at: "2026-11-22T05:07:30Z".parse().unwrap(),
        written_by: "pgstrata 0.1.0".to_owned(),
    }
}

/// The record of a cluster whose objects are locked.
pub fn retained() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let record = cluster::encode(&retained_record());
    Objects::from([(name.cluster_key(), record)])
}

/// A cluster whose objects are locked in the store.
pub fn retained_record() -> ClusterRecord {
    ClusterRecord {
        format: 3,
        retention: Some(RetentionRecord {
            version: 1,
            mode: LockMode::Compliance,
            days: 30,
        }),
        ..cluster_record()
    }
}

/// What a verification leaves.
pub fn verified() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    Objects::from([(
        name.verified_key(VERIFIED),
        verified::encode(&verified_record()),
    )])
}

/// What a verification leaves that found damage.
pub fn found_damaged() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let record = verified::encode(&damage_record());
    Objects::from([(name.verified_key(VERIFIED), record)])
}

pub fn damage_record() -> VerifiedRecord {
    VerifiedRecord {
        errors: 3,
        damaged: vec![FULL.to_owned(), INCREMENTAL.to_owned()],
        ..verified_record()
    }
}

/// What a verification leaves that found more than damaged layers.
pub fn found_more() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let record = verified::encode(&counted_record());
    Objects::from([(name.verified_key(VERIFIED), record)])
}

pub fn counted_record() -> VerifiedRecord {
    VerifiedRecord {
        other_errors: Some(1),
        ..damage_record()
    }
}

/// What those who are at work tell each other.
pub fn work() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let label = Label::parse(INCREMENTAL).unwrap();
    Objects::from([
        (
            name.manifest_key(&label),
            abandoned::encode(&abandoned_record()),
        ),
        (name.removal_key(ID), removal::encode(&removal_record())),
        (
            name.verdict_key(ID),
            removal::encode_verdict(&verdict_record()),
        ),
        (name.restore_key(ID), restoring::encode(&restore_record())),
    ])
}

/// A verdict that gives up WAL between layers that stay.
pub fn verdict_that_keeps_wal() -> VerdictRecord {
    let kept = |timeline, start: &str, stop: &str| WalKept {
        timeline: TimelineId::new(timeline),
        start_lsn: start.parse().unwrap(),
        stop_lsn: stop.parse().unwrap(),
    };
    VerdictRecord {
        wal_kept: vec![
            kept(1, "0/3000028", "0/4000000"),
            kept(2, "0/7000028", "0/8000138"),
        ],
        ..verdict_record()
    }
}

pub fn released_record() -> ReleasedRecord {
    ReleasedRecord {
        wal_before: "0/16000028".parse().unwrap(),
        timelines: Vec::new(),
        host: "backup1".to_owned(),
        pid: 4712,
        released_at: "2026-11-22T04:00:03Z".parse().unwrap(),
        written_by: "pgstrata 0.1.0".to_owned(),
    }
}

/// The same, which says of which timelines.
pub fn released_of_timelines() -> ReleasedRecord {
    ReleasedRecord {
        timelines: [1, 2].map(TimelineId::new).to_vec(),
        ..released_record()
    }
}

/// WAL that was given up on some timelines.
pub fn released() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let record = released_of_timelines();
    let key = name.released_key(record.wal_before);
    Objects::from([(key, released::encode(&record))])
}

/// A pin, what is written about it, and its end.
pub fn marks() -> Vec<MarkRecord> {
    let says = [
        Mark::Pin(Pin {
            until: Some("2027-01-31T23:59:59Z".parse().unwrap()),
            note: Some("before the move".to_owned()),
        }),
        Mark::Annotate(Annotation {
            key: "ticket".to_owned(),
            value: Some("DB-1042".to_owned()),
        }),
        Mark::Unpin(Unpin {}),
        Mark::Annotate(Annotation {
            key: "ticket".to_owned(),
            value: None,
        }),
    ];
    let record = |(number, says): (u32, Mark)| MarkRecord {
        layer: going()[1].clone(),
        number,
        says,
        host: "backup1".to_owned(),
        pid: 4712,
        marked_at: "2026-11-22T06:00:00Z".parse().unwrap(),
        written_by: "pgstrata 0.1.0".to_owned(),
    };
    (0..).zip(says).map(record).collect()
}

/// What is said of layers that are kept, and of WAL that is not.
pub fn kept() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let label = Label::parse(FULL).unwrap();
    let marks = marks().into_iter();
    let mut objects: Objects = marks
        .map(|record| (name.mark_key(&label, record.number), mark::encode(&record)))
        .collect();
    let verdict = verdict_that_keeps_wal();
    objects.insert(name.verdict_key(ID), removal::encode_verdict(&verdict));
    let released = released_record();
    objects.insert(
        name.released_key(released.wal_before),
        released::encode(&released),
    );
    objects
}

pub fn full_manifest(layer: &StoredLayer) -> Manifest {
    Manifest {
        label: FULL.to_owned(),
        layer_id: hex(FULL_ID),
        parent: None,
        replaces: Vec::new(),
        inputs: Vec::new(),
        beside: None,
        cluster: ClusterIdentity {
            system_identifier: SYSTEM_IDENTIFIER,
            major: 15,
            catalog_version: 202_209_061,
            block_size: 8192,
            wal_segment_size: 16 << 20,
            data_checksum_version: 1,
        },
        written_by: "pgstrata 0.1.0".to_owned(),
        started_at: time("2026-11-21T09:33:05Z"),
        finished_at: time("2026-11-21T09:33:07.25Z"),
        start_lsn: Lsn::new(0x200_0028),
        stop_lsn: Lsn::new(0x200_0138),
        timeline: TimelineId::FIRST,
        from_standby: false,
        change_source: ChangeSourceRecord {
            used: ChangeSource::Everything,
            reason: "full backup".to_owned(),
        },
        tracker_token: None,
        backup_label: "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\n".to_owned(),
        tablespace_map: Some("16500 /srv/\"fast\" disk\n".to_owned()),
        pg_control: "f2c1a9".to_owned(),
        pg_control_size: 8192,
        tablespaces: vec![
            Tablespace {
                oid: 16500,
                location: Some("/srv/\"fast\" disk".to_owned()),
            },
            Tablespace {
                oid: 16501,
                location: None,
            },
        ],
        index: layer
            .parts
            .iter()
            .map(|part| part.reference.clone())
            .collect(),
        pack_count: u32::try_from(layer.packs.len()).unwrap(),
        pack_bytes: layer
            .packs
            .iter()
            .map(|pack| u64::try_from(pack.len()).unwrap())
            .sum(),
        totals: Totals {
            files: 10,
            cluster_bytes: 73_847,
            relation_blocks: 8,
            pages_marked: 8,
            pages_stored: 6,
            pages_zero: 2,
            bytes_read: 73_847,
        },
        corrupt_pages: vec![CorruptPage {
            path: "base/5/16384".to_owned(),
            block: 0,
            reason: "checksum 1a2b, expected 3c4d".to_owned(),
        }],
        encryption: None,
    }
}

pub fn incremental_manifest(layer: &StoredLayer, parent: &[u8]) -> Manifest {
    Manifest {
        label: INCREMENTAL.to_owned(),
        layer_id: hex(INCREMENTAL_ID),
        parent: Some(ParentRef {
            label: FULL.to_owned(),
            manifest_digest: manifest::digest(parent),
        }),
        started_at: time("2026-11-21T10:30:00Z"),
        finished_at: time("2026-11-21T10:30:01Z"),
        start_lsn: Lsn::new(0x300_0028),
        stop_lsn: Lsn::new(0x300_0100),
        change_source: ChangeSourceRecord {
            used: ChangeSource::Tracker,
            reason: "the map reaches back to 0/2000028".to_owned(),
        },
        tracker_token: Some("map 3f2a from 0/3000028".to_owned()),
        tablespace_map: None,
        corrupt_pages: Vec::new(),
        ..full_manifest(layer)
    }
}

/// The state of the incremental layer as one, and a layer that changed nothing and names the incremental one.
pub const MERGED: &str = "20261122-040000F";
pub const CHILD: &str = "20261121-093305F_20261121-113000I";
const MERGED_ID: [u8; 16] = [0x77; 16];
const CHILD_ID: [u8; 16] = [0x78; 16];

pub fn merged_layer() -> StoredLayer {
    let (full, incremental) = (full_layer(Codec::Lz4), incremental_layer(Codec::Lz4));
    merge(&[&incremental, &full], 2, MERGED_ID).0
}

pub fn child_layer() -> StoredLayer {
    let mut maker = LayerMaker::new(CHILD_ID, Codec::Lz4, 2);
    for (path, file) in &files_of_incremental() {
        let unchanged = Selection {
            blocks: Vec::new(),
            inherit_limit: block_count(file),
        };
        maker.store(path, file, &unchanged);
    }
    maker.finish()
}

fn replaced() -> ParentRef {
    let full = manifest::encode(&full_manifest(&full_layer(Codec::Lz4)));
    let layer = incremental_layer(Codec::Lz4);
    let object = manifest::encode(&incremental_manifest(&layer, &full));
    ParentRef {
        label: INCREMENTAL.to_owned(),
        manifest_digest: manifest::digest(&object),
    }
}

fn full() -> ParentRef {
    ParentRef {
        label: FULL.to_owned(),
        manifest_digest: manifest::digest(&manifest::encode(&full_manifest(&full_layer(
            Codec::Lz4,
        )))),
    }
}

pub fn merged_manifest(layer: &StoredLayer) -> Manifest {
    Manifest {
        label: MERGED.to_owned(),
        layer_id: hex(MERGED_ID),
        parent: None,
        replaces: vec![replaced()],
        inputs: vec![replaced(), full()],
        ..incremental_manifest(layer, b"")
    }
}

pub fn child_manifest(layer: &StoredLayer) -> Manifest {
    Manifest {
        label: CHILD.to_owned(),
        layer_id: hex(CHILD_ID),
        parent: Some(replaced()),
        ..incremental_manifest(layer, b"")
    }
}

/// A full layer of a copy of the server that went on by itself.
pub const BESIDE: &str = "20261122-070000F";
const BESIDE_ID: [u8; 16] = [0x79; 16];

pub fn beside_layer() -> StoredLayer {
    full_layer_of(BESIDE_ID, Codec::Lz4)
}

pub fn beside_manifest(layer: &StoredLayer) -> Manifest {
    Manifest {
        label: BESIDE.to_owned(),
        layer_id: hex(BESIDE_ID),
        beside: Some(Beside {
            layer: replaced(),
            reason: "the data directory is a copy: its lineage file is that of \"/srv/15/main\""
                .to_owned(),
        }),
        ..full_manifest(layer)
    }
}

/// A repository with that layer.
pub fn beside_repository() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let layer = beside_layer();
    let manifest = manifest::encode(&beside_manifest(&layer));
    let mut objects = Objects::new();
    objects.insert(name.cluster_key(), cluster::encode(&cluster_record()));
    insert_layer(&mut objects, layer, BESIDE, manifest);
    objects
}

/// A full layer with files whose names share half a letter, as bytes.
pub fn letters_repository() -> (Objects, Files) {
    let mut files = files_of_full();
    for (identity, name) in [(101, "base/zo\u{e9}"), (102, "base/zo\u{eb}")] {
        let contents = file(EntryKind::Plain, identity, name.as_bytes().to_vec());
        files.insert(name.to_owned(), contents);
    }
    let name = ClusterName::parse("main").unwrap();
    let layer = full_layer_with(&files, FULL_ID, Codec::Lz4);
    let manifest = manifest::encode(&full_manifest(&layer));
    let mut objects = Objects::new();
    objects.insert(name.cluster_key(), cluster::encode(&cluster_record()));
    insert_layer(&mut objects, layer, FULL, manifest);
    (objects, files)
}

/// A repository in which the layer that the child names has been merged and removed.
pub fn merged_repository() -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let (merged, child) = (merged_layer(), child_layer());
    let mut objects = Objects::new();
    objects.insert(name.cluster_key(), cluster::encode(&cluster_record()));
    let manifests = [merged_manifest(&merged), child_manifest(&child)];
    for (layer, manifest) in [merged, child].into_iter().zip(manifests) {
        insert_layer(
            &mut objects,
            layer,
            &manifest.label,
            manifest::encode(&manifest),
        );
    }
    objects
}

fn insert_layer(objects: &mut Objects, layer: StoredLayer, label: &str, manifest: Vec<u8>) {
    let name = ClusterName::parse("main").unwrap();
    let label = Label::parse(label).unwrap();
    for part in layer.parts {
        objects.insert(name.index_key(&label, part.number), part.index);
        objects.insert(name.digest_key(&label, part.number), part.digest);
    }
    for (number, pack) in (0..).zip(layer.packs) {
        objects.insert(name.pack_key(&label, number), pack);
    }
    objects.insert(name.manifest_key(&label), manifest);
}

/// Every object of the sample repository.
pub fn repository(codec: Codec) -> Objects {
    let name = ClusterName::parse("main").unwrap();
    let mut objects = Objects::new();
    objects.insert(name.cluster_key(), cluster::encode(&cluster_record()));
    let (full, incremental) = (full_layer(codec), incremental_layer(codec));
    let full_manifest = manifest::encode(&full_manifest(&full));
    let child = manifest::encode(&incremental_manifest(&incremental, &full_manifest));
    let claim = claim::encode(&claim_record());
    for (label, layer, manifest) in [
        (FULL, full, full_manifest),
        (INCREMENTAL, incremental, child),
    ] {
        insert_layer(&mut objects, layer, label, manifest);
    }
    objects.insert(name.claim_key(&Label::parse(FULL).unwrap()), claim);
    let mut wal = |timeline: &str, file_name: &str, raw: &[u8]| {
        let object = wal::encode(file_name, raw, SYSTEM_IDENTIFIER, codec).unwrap();
        objects.insert(name.wal_key(timeline, file_name), object);
    };
    wal("00000002", HISTORY, HISTORY_TEXT.as_bytes());
    if codec != Codec::None {
        wal("00000001", SEGMENT, &segment());
    }
    objects
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}
