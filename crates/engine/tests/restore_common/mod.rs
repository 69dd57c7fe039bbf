//! Chains made by hand: a model of a cluster's files at three moments, written as a full layer and two increments.

#![allow(
    dead_code,
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by test binaries, about small numbers"
)]

pub(crate) mod there;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_engine::expire::{self, ExpireOptions, ExpireReport};
use pgstrata_engine::info::{self, InfoOptions, InfoReport};
use pgstrata_engine::merge::{self, MergeOptions, MergeReport};
use pgstrata_engine::restore::{self, Method, RestoreOptions, RestoreReport, Target, TargetAction};
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::digest;
use pgstrata_layer::entry::{BLOCK_BYTES, BlockRun, DigestRef, EntryKind, FileEntry, FrameRef};
use pgstrata_layer::frame::{Codec, FrameEncoder};
use pgstrata_layer::index::IndexWriter;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{
    self, ChangeSource, ChangeSourceRecord, ClusterIdentity, IndexPartRef, Manifest, ParentRef,
    Tablespace, Totals,
};
use pgstrata_layer::pack::PackBuilder;
use pgstrata_layer::retention::Policy;
use pgstrata_layer::wal;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_pgdata::wal::WalSegment;
use pgstrata_pgdata::{ControlFile, Major};
use pgstrata_store::catalog::Catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;

const CONTROL: &[u8] = include_bytes!("../../../pgdata/tests/golden/15/pg_control_production");

const BLOCK: usize = BLOCK_BYTES as usize;

/// The files of a cluster at one moment; `None` is a directory.
pub(crate) type Files = BTreeMap<String, Option<Vec<u8>>>;

/// A page that tells which generation and block it is of.
pub(crate) fn page(generation: u8, block: u32) -> Vec<u8> {
    let mut page = vec![0; BLOCK];
    for (at, byte) in page.iter_mut().enumerate() {
        *byte = (at as u32)
            .wrapping_mul(31)
            .wrapping_add(block)
            .to_le_bytes()[at % 4]
            ^ generation;
    }
    page[0] = generation;
    page[8190] = 1;
    page
}

pub(crate) fn pages(generation: u8, blocks: u32) -> Vec<u8> {
    (0..blocks)
        .flat_map(|block| page(generation, block))
        .collect()
}

/// What a test made and expects back.
pub(crate) struct Made {
    pub(crate) cluster: ClusterName,
    pub(crate) labels: Vec<Label>,
    /// The files of the newest layer.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    pub(crate) directories: Vec<String>,
    pub(crate) backup_label: String,
    pub(crate) pg_control: Vec<u8>,
}

impl Made {
    /// The cluster, in a repository that holds what was made, or may.
    pub(crate) fn within(&self, repository: &Repository) -> ClusterRepository {
        ClusterRepository::new(repository, &self.cluster)
    }

    /// Restores a layer, or the newest, to the end of its backup.
    pub(crate) async fn restore(
        &self,
        repository: &Repository,
        directory: &Path,
        label: Option<&Label>,
    ) -> Result<RestoreReport> {
        let options = RestoreOptions {
            label: label.cloned(),
            ..options(directory)
        };
        let plan = restore::plan(&self.within(repository), options).await?;
        restore::execute(&plan, &Progress::default()).await
    }

    pub(crate) fn nonzero_blocks(&self, contents: &[u8]) -> u64 {
        contents
            .chunks(BLOCK)
            .filter(|page| !digest::is_zeros(page))
            .count() as u64
    }

    pub(crate) fn assert_restored(&self, target: &Path) {
        for (path, expected) in &self.files {
            if path == "postgresql.auto.conf" {
                continue;
            }
            let found = fs::read(target.join(path)).unwrap();
            assert!(found == *expected, "{path} differs");
        }
        for directory in &self.directories {
            assert!(target.join(directory).is_dir(), "{directory}");
        }
        assert!(target.join("global/pg_control").exists());
        assert!(!target.join("pgstrata.restore-incomplete").exists());
        assert!(target.join("backup_manifest").exists());
        assert!(target.join("recovery.signal").exists());
    }

    pub(crate) async fn pack_keys(&self, repository: &Repository) -> Vec<String> {
        let objects = repository
            .list(&self.cluster.layers_prefix())
            .await
            .unwrap();
        // An empty pack has a header and a trailer of 56 bytes.
        let packs = objects
            .into_iter()
            .filter(|object| object.key.contains("/pack-") && object.size_bytes > 100);
        packs.map(|object| object.key).collect()
    }

    /// A copy of the repository in which one byte of one object is another.
    pub(crate) async fn copy_with_flipped_byte(
        &self,
        repository: &Repository,
        key: &str,
        at: usize,
    ) -> Repository {
        let copy = Repository::memory();
        for object in repository.list(self.cluster.as_str()).await.unwrap() {
            let mut bytes = repository.get(&object.key).await.unwrap().to_vec();
            if object.key == key {
                bytes[at] ^= 1;
            }
            copy.create(&object.key, Bytes::from(bytes)).await.unwrap();
        }
        copy
    }
}

/// A store of its own with everything that `repository` holds.
pub(crate) async fn copy_of(
    repository: &Repository,
    made: &Made,
) -> std::sync::Arc<object_store::memory::InMemory> {
    let memory = std::sync::Arc::new(object_store::memory::InMemory::new());
    let copy = Repository::with_store(memory.clone());
    for object in repository.list(made.cluster.as_str()).await.unwrap() {
        let bytes = repository.get(&object.key).await.unwrap();
        copy.create(&object.key, bytes).await.unwrap();
    }
    memory
}

pub(crate) fn options(directory: &Path) -> RestoreOptions {
    RestoreOptions {
        label: None,
        target: Target::Immediate,
        same_timeline: false,
        timeline: None,
        inclusive: true,
        action: TargetAction::Pause,
        directory: directory.to_owned(),
        tablespaces: Vec::new(),
        wal_directory: None,
        config_directory: None,
        restore_command: vec!["/usr/bin/pgstrata".to_owned(), "archive-get".to_owned()],
        others: Vec::new(),
        jobs: 3,
        method: Method::default(),
        archive_mode: None,
        vouched: restore::Vouched::default(),
    }
}

fn directories() -> Vec<String> {
    [
        "base",
        "base/5",
        "global",
        "pg_replslot",
        "pg_tblspc",
        "pg_wal",
        "pg_wal/archive_status",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn with_directories(files: Vec<(&str, Vec<u8>)>) -> Files {
    let files = files
        .into_iter()
        .map(|(path, contents)| (path.to_owned(), Some(contents)));
    directories()
        .into_iter()
        .map(|path| (path, None))
        .chain(files)
        .collect()
}

pub(crate) fn generations() -> [Files; 3] {
    let plain = || {
        vec![
            ("PG_VERSION", b"15\n".to_vec()),
            ("postgresql.conf", b"port = 1\n".to_vec()),
        ]
    };
    let mut sparse = vec![0; 64 * BLOCK];
    sparse[3 * BLOCK..4 * BLOCK].copy_from_slice(&page(1, 3));
    let mut first = plain();
    first.extend([
        ("base/5/10", pages(1, 10)),
        ("base/5/20", pages(1, 40)),
        ("base/5/30", sparse.clone()),
        ("base/5/40", pages(1, 2)),
        ("base/5/50", pages(1, 5)),
        ("postgresql.auto.conf", b"work_mem = '8MB'\n".to_vec()),
        ("pg_note", vec![7; 3 * BLOCK + 100]),
    ]);

    let mut ten = pages(1, 12);
    ten[2 * BLOCK..3 * BLOCK].copy_from_slice(&page(2, 2));
    let mut second = plain();
    second.extend([
        ("base/5/10", ten.clone()),
        // Truncated: what comes back later must not be the old pages.
        ("base/5/20", pages(1, 8)),
        ("base/5/30", sparse.clone()),
        ("base/5/40", pages(2, 3)),
        ("base/5/50", pages(1, 5)),
        ("postgresql.auto.conf", b"work_mem = '8MB'\n".to_vec()),
        ("pg_note", vec![7; 3 * BLOCK + 100]),
    ]);

    ten[..BLOCK].copy_from_slice(&page(3, 0));
    ten[4 * BLOCK..5 * BLOCK].fill(0);
    let mut twenty = pages(1, 8);
    twenty.resize(30 * BLOCK, 0);
    twenty.extend(page(3, 30));
    let mut third = plain();
    third.extend([
        ("base/5/10", ten),
        ("base/5/20", twenty),
        ("base/5/30", sparse),
        ("base/5/40", Vec::new()),
        ("base/5/60", pages(3, 300)),
        (
            "postgresql.auto.conf",
            b"work_mem = '8MB'\nrecovery_target_xid = '5'\n".to_vec(),
        ),
        ("pg_note", vec![8; 2 * BLOCK + 1]),
    ]);
    [
        with_directories(first),
        with_directories(second),
        with_directories(third),
    ]
}

/// A full layer and two increments in `repository`, with the WAL they need.
pub(crate) async fn chain_of_three(repository: &Repository) -> Made {
    chain(repository, &generations(), &[], None).await
}

/// A chain of any number of generations.
pub(crate) async fn chain(
    repository: &Repository,
    generations: &[Files],
    tablespaces: &[Tablespace],
    tablespace_map: Option<&str>,
) -> Made {
    let change = |_, manifest: &mut Manifest| {
        manifest.tablespaces = tablespaces.to_vec();
        manifest.tablespace_map = tablespace_map.map(str::to_owned);
    };
    history(repository, generations, &[0], change).await
}

/// Layers of any number of generations: those of `full` are full, and the others stand on the one before. `change` is done
/// to the manifest of each.
pub(crate) async fn history(
    repository: &Repository,
    generations: &[Files],
    full: &[usize],
    change: impl Fn(usize, &mut Manifest),
) -> Made {
    let cluster = ClusterName::parse("main").unwrap();
    store_record(repository, &cluster).await;
    let mut labels: Vec<Label> = Vec::new();
    let mut parent: Option<ParentRef> = None;
    let empty = Files::new();
    for (number, files) in generations.iter().enumerate() {
        let time = jiff::civil::date(2026, 11, 21).at(9, i8::try_from(number).unwrap(), 0, 0);
        let below = labels.last().filter(|_| !full.contains(&number));
        let (label, before) = match below {
            None => (Label::full(time), &empty),
            Some(last) => {
                let kind = pgstrata_layer::label::LayerKind::Incremental;
                (last.successor(kind, time), &generations[number - 1])
            }
        };
        parent = parent.filter(|_| below.is_some());
        let id = [number as u8 + 1; 16];
        let layer = LayerMaker::new(repository, (&cluster, &label), id, number);
        let stored = layer.store(before, files, parent.is_some()).await;
        let mut manifest = stored.unwrap();
        manifest.parent = parent.take();
        change(number, &mut manifest);
        let object = manifest::encode(&manifest);
        parent = Some(ParentRef {
            label: label.to_string(),
            manifest_digest: manifest::digest(&object),
        });
        repository
            .create(&cluster.manifest_key(&label), object.into())
            .await
            .unwrap();
        labels.push(label);
    }
    store_wal(repository, &cluster, generations.len()).await;
    let newest = generations.last().unwrap();
    let files = newest
        .iter()
        .filter_map(|(path, contents)| Some((path.clone(), contents.clone()?)));
    Made {
        cluster,
        labels,
        files: files.collect(),
        directories: newest
            .iter()
            .filter(|(_, c)| c.is_none())
            .map(|(path, _)| path.clone())
            .collect(),
        backup_label: backup_label(generations.len() - 1),
        pg_control: CONTROL.to_vec(),
    }
}

fn control() -> ControlFile {
    ControlFile::parse(CONTROL).unwrap()
}

fn start_lsn(number: usize) -> Lsn {
    Lsn::new((20 + 10 * number as u64) * control().wal_segment_size.get() + 40)
}

fn backup_label(number: usize) -> String {
    let start = start_lsn(number);
    let size = control().wal_segment_size;
    let file = WalSegment::containing(TimelineId::FIRST, start, size).file_name(size);
    format!(
        "START WAL LOCATION: {start} (file {file})\nCHECKPOINT LOCATION: {start}\nBACKUP METHOD: streamed\n\
         BACKUP FROM: primary\nSTART TIME: 2026-11-21 09:00:00 UTC\nLABEL: by\nhand\nSTART TIMELINE: 1\n"
    )
}

/// Stores the objects of a layer, all but its manifest: `files`, or what of them is not as `before`.
pub(crate) async fn store_layer(
    cluster: &ClusterRepository,
    label: &Label,
    layer_id: [u8; 16],
    before: Option<&Files>,
    files: &Files,
) -> Result<Manifest> {
    let named = (&cluster.name, label);
    let layer = LayerMaker::new(&cluster.repository, named, layer_id, 0);
    let empty = Files::new();
    layer
        .store(before.unwrap_or(&empty), files, before.is_some())
        .await
}

/// What the clusters of these tests have.
pub(crate) fn wal_segment_size() -> u64 {
    control().wal_segment_size.get()
}

/// What `init` makes; a repository may have it by now.
pub(crate) async fn store_record(repository: &Repository, cluster: &ClusterName) {
    let control = control();
    let record = ClusterRecord {
        name: cluster.as_str().to_owned(),
        format: pgstrata_layer::cluster::FORMAT,
        system_identifier: control.system_identifier,
        major: 15,
        catalog_version: control.catalog_version,
        block_size: control.block_size,
        wal_segment_size: u32::try_from(control.wal_segment_size.get()).unwrap(),
        created_at: Timestamp::UNIX_EPOCH,
        written_by: "a test".to_owned(),
        sealing: None,
        retention: None,
    };
    let object = pgstrata_layer::cluster::encode(&record);
    let key = cluster.cluster_key();
    repository.create(&key, object.into()).await.ok();
}

/// A segment in which the server wrote nothing but a switch to the next one (`access/xlog_internal.h`, `xlogrecord.h`).
pub(crate) fn switched(segment: WalSegment) -> Vec<u8> {
    const HEADER: u64 = 40;
    const RECORD: u32 = 24;
    const SWITCH: u8 = 0x40;
    let size = control().wal_segment_size;
    let start = segment.start_lsn(size).get();
    let before = start - size.get() + HEADER;
    let block = u32::try_from(BLOCK).unwrap();
    let mut bytes = Vec::new();
    bytes.extend(Major::V15.wal_page_magic().to_le_bytes());
    bytes.extend(2_u16.to_le_bytes());
    bytes.extend(segment.timeline.get().to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(control().system_identifier.to_le_bytes());
    bytes.extend(u32::try_from(size.get()).unwrap().to_le_bytes());
    bytes.extend(block.to_le_bytes());
    bytes.extend(RECORD.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(before.to_le_bytes());
    bytes.push(SWITCH);
    bytes.resize(usize::try_from(size.get()).unwrap(), 0);
    bytes
}

async fn store_wal(repository: &Repository, cluster: &ClusterName, layers: usize) {
    let size = control().wal_segment_size;
    let first = start_lsn(0).segment(size);
    let last = start_lsn(layers).segment(size);
    for number in first..=last {
        let segment = WalSegment {
            timeline: TimelineId::FIRST,
            number,
        };
        let name = segment.file_name(size);
        store_file(repository, cluster, &name, &switched(segment)).await;
    }
}

/// The object of such a segment of the first timeline.
pub(crate) fn switched_object(number: u64) -> Vec<u8> {
    let timeline = TimelineId::FIRST;
    let segment = WalSegment { timeline, number };
    let name = segment.file_name(control().wal_segment_size);
    let system = control().system_identifier;
    wal::encode(&name, &switched(segment), system, Codec::default()).unwrap()
}

/// Stores a file of the archive.
async fn store_file(repository: &Repository, cluster: &ClusterName, name: &str, raw: &[u8]) {
    let object = wal::encode(name, raw, control().system_identifier, Codec::default()).unwrap();
    let key = cluster.wal_key(&name[..8], name);
    repository.create(&key, object.into()).await.unwrap();
}

/// The archive of a server that left timeline 1 at the end of the layer of that number, from 0, as the layer says it: the history
/// of timeline 2, and `count` segments of it.
pub(crate) async fn branch_off(repository: &Repository, made: &Made, number: usize, count: u64) {
    let size = control().wal_segment_size;
    let fork = Lsn::new(start_lsn(number).get() + size.get());
    let history = format!("1\t{fork}\tno recovery target specified\n");
    let name = TimelineId::new(2).history_file_name();
    store_file(repository, &made.cluster, &name, history.as_bytes()).await;
    for number in (fork.segment(size)..).take(usize::try_from(count).unwrap()) {
        let timeline = TimelineId::new(2);
        let segment = WalSegment { timeline, number };
        let name = segment.file_name(size);
        store_file(repository, &made.cluster, &name, &switched(segment)).await;
    }
}

/// Writes one layer.
struct LayerMaker<'a> {
    repository: &'a Repository,
    cluster: &'a ClusterName,
    label: &'a Label,
    number: usize,
    layer_id: [u8; 16],
    encoder: FrameEncoder,
    /// Two packs, used in turn, so that a file's frames are spread.
    packs: Vec<PackBuilder>,
    turn: usize,
}

impl<'a> LayerMaker<'a> {
    fn new(
        repository: &'a Repository,
        (cluster, label): (&'a ClusterName, &'a Label),
        layer_id: [u8; 16],
        number: usize,
    ) -> Self {
        Self {
            repository,
            cluster,
            label,
            number,
            layer_id,
            encoder: FrameEncoder::new(Codec::default()).unwrap(),
            packs: (0..2).map(|n| PackBuilder::new(layer_id, n, 0)).collect(),
            turn: 0,
        }
    }

    async fn store(mut self, before: &Files, files: &Files, incremental: bool) -> Result<Manifest> {
        let mut writer = IndexWriter::new(self.layer_id).unwrap();
        let mut index: Vec<IndexPartRef> = Vec::new();
        let mut totals = Totals::default();
        let mut parts = Vec::new();
        for (path, contents) in files {
            let parent = before
                .get(path)
                .and_then(Option::as_ref)
                .filter(|_| incremental);
            let (entry, digests) = self.entry(path, contents.as_deref(), parent.map(Vec::as_slice));
            totals.files += 1;
            totals.cluster_bytes += entry.size_bytes;
            totals.pages_stored += entry.pages_stored();
            parts.extend(writer.push(entry, &digests).unwrap());
        }
        parts.extend(writer.finish().unwrap());
        for part in parts {
            let number = part.number;
            let key = self.cluster.index_key(self.label, number);
            self.repository.create(&key, part.index.into()).await?;
            let key = self.cluster.digest_key(self.label, number);
            self.repository.create(&key, part.digest.into()).await?;
            index.push(part.reference);
        }
        let mut pack_bytes = 0;
        for (number, pack) in self.packs.into_iter().enumerate() {
            let bytes = pack.finish();
            pack_bytes += bytes.len() as u64;
            let key = self.cluster.pack_key(self.label, number as u32);
            self.repository.create(&key, bytes.into()).await?;
        }
        Ok(manifest_of(
            self.label,
            self.layer_id,
            self.number,
            (index, pack_bytes, totals),
        ))
    }

    fn entry(
        &mut self,
        path: &str,
        contents: Option<&[u8]>,
        parent: Option<&[u8]>,
    ) -> (FileEntry, Vec<u64>) {
        let relation = path.starts_with("base/5/") || path.starts_with("pg_tblspc/");
        let kind = match contents {
            None => EntryKind::Directory,
            Some(_) if relation => EntryKind::Relation,
            Some(_) => EntryKind::Plain,
        };
        let contents = contents.unwrap_or_default();
        let mut entry = FileEntry {
            path: path.to_owned(),
            kind,
            mode: match (kind, path) {
                (EntryKind::Directory, _) => 0o700,
                (_, "postgresql.conf") => 0o644,
                _ => 0o600,
            },
            modified: 1_700_000_000,
            size_bytes: contents.len() as u64,
            identity: 1,
            inherit_limit: 0,
            content_digest: (kind == EntryKind::Plain).then(|| digest::contents(contents)),
            frames: Vec::new(),
            zero_runs: Vec::new(),
            page_digests: DigestRef::default(),
        };
        if let Some(parent) = parent {
            let blocks = |bytes: &[u8]| u32::try_from(bytes.len() / BLOCK).unwrap();
            entry.inherit_limit = match kind {
                EntryKind::Plain if parent == contents => {
                    u32::try_from(contents.len().div_ceil(BLOCK)).unwrap()
                }
                EntryKind::Plain => 0,
                _ => blocks(contents).min(blocks(parent)),
            };
        }
        let digests = self.store_changed(&mut entry, contents, parent);
        (entry, digests)
    }

    /// Stores the blocks that are not as in the parent; returns the digests of their pages.
    fn store_changed(
        &mut self,
        entry: &mut FileEntry,
        contents: &[u8],
        parent: Option<&[u8]>,
    ) -> Vec<u64> {
        let mut digests = Vec::new();
        let mut changed = Vec::new();
        for (block, page) in contents.chunks(BLOCK).enumerate() {
            let block = u32::try_from(block).unwrap();
            let at = block as usize * BLOCK;
            let same = block < entry.inherit_limit
                && parent.and_then(|p| p.get(at..at + page.len())) == Some(page);
            if same {
                continue;
            }
            if digest::is_zeros(page) {
                BlockRun::append(
                    &mut entry.zero_runs,
                    BlockRun {
                        start: block,
                        count: 1,
                    },
                );
                continue;
            }
            changed.push((block, page));
        }
        for group in changed.chunks(3) {
            let raw: Vec<u8> = group
                .iter()
                .flat_map(|(_, page)| page.iter().copied())
                .collect();
            let mut runs = Vec::new();
            for (block, page) in group {
                BlockRun::append(
                    &mut runs,
                    BlockRun {
                        start: *block,
                        count: 1,
                    },
                );
                if entry.kind == EntryKind::Relation {
                    digests.push(digest::page(page));
                }
            }
            entry.frames.push(self.append(&raw, runs));
        }
        digests
    }

    fn append(&mut self, raw: &[u8], runs: Vec<BlockRun>) -> FrameRef {
        self.turn += 1;
        let pack = self.turn / 4 % self.packs.len();
        let placed = self.packs[pack].append(&mut self.encoder, raw).unwrap();
        FrameRef {
            pack: pack as u32,
            offset: placed.offset,
            length: placed.length,
            checksum: placed.checksum,
            runs,
        }
    }
}

fn manifest_of(
    label: &Label,
    layer_id: [u8; 16],
    number: usize,
    (index, pack_bytes, totals): (Vec<IndexPartRef>, u64, Totals),
) -> Manifest {
    let control = control();
    let time = Timestamp::from_second(1_700_000_000 + 100 * number as i64).unwrap();
    let start = start_lsn(number);
    Manifest {
        label: label.to_string(),
        layer_id: layer_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        parent: None,
        replaces: Vec::new(),
        inputs: Vec::new(),
        beside: None,
        cluster: ClusterIdentity {
            system_identifier: control.system_identifier,
            major: 15,
            catalog_version: control.catalog_version,
            block_size: control.block_size,
            wal_segment_size: u32::try_from(control.wal_segment_size.get()).unwrap(),
            data_checksum_version: 0,
        },
        written_by: "a test".to_owned(),
        started_at: time,
        finished_at: time,
        start_lsn: start,
        stop_lsn: Lsn::new(start.get() + control.wal_segment_size.get()),
        timeline: TimelineId::FIRST,
        from_standby: false,
        change_source: ChangeSourceRecord {
            used: ChangeSource::Digest,
            reason: "by hand".to_owned(),
        },
        tracker_token: None,
        backup_label: backup_label(number),
        tablespace_map: None,
        pg_control: CONTROL.iter().map(|byte| format!("{byte:02x}")).collect(),
        pg_control_size: u32::try_from(CONTROL.len()).unwrap(),
        tablespaces: Vec::new(),
        index,
        pack_count: 2,
        pack_bytes,
        totals,
        corrupt_pages: Vec::new(),
        encryption: None,
    }
}

/// An expiry by these rules.
pub(crate) fn rules(policy: Policy) -> ExpireOptions {
    ExpireOptions {
        policy,
        codec: Codec::default(),
        jobs: 2,
        // Of the restores by which tests look at what they did.
        ignore_restores: true,
    }
}

/// Does it.
pub(crate) async fn expire_by(
    repository: &Repository,
    made: &Made,
    options: &ExpireOptions,
) -> Result<ExpireReport> {
    expire::execute(&made.within(repository), options, &Progress::default()).await
}

/// Merges the layer of that number, from 0, with those that it stands on.
pub(crate) async fn merge_from(
    repository: &Repository,
    made: &Made,
    number: usize,
    remove: bool,
) -> MergeReport {
    let options = MergeOptions {
        label: made.labels[number].clone(),
        into: None,
        codec: Codec::default(),
        jobs: 2,
        remove,
        ignore_restores: true,
    };
    let cluster = made.within(repository);
    let merged = merge::execute(&cluster, &options, &Progress::default()).await;
    merged.unwrap()
}

/// The layers that are there, in the catalog's order.
pub(crate) async fn labels(repository: &Repository, made: &Made) -> Vec<Label> {
    let catalog = Catalog::load(&made.within(repository)).await.unwrap();
    let layers = catalog.layers.into_iter();
    layers.map(|layer| layer.label).collect()
}

/// What `info` says without a server.
pub(crate) async fn info(repository: &Repository, made: &Made) -> InfoReport {
    let cluster = made.within(repository);
    info::collect(&cluster, &InfoOptions::default())
        .await
        .unwrap()
}

/// What is there when it holds still: a restore that was given up does not wait for the piece of WAL that is being written.
pub(crate) fn settled<T: PartialEq>(look: impl Fn() -> T) -> T {
    let mut before = look();
    loop {
        thread::sleep(Duration::from_millis(100));
        let now = look();
        if now == before {
            return now;
        }
        before = now;
    }
}
