//! What the backup tests share: a recorded cluster, and a plain reader that
//! rebuilds a data directory from a chain without the restore engine.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test binary uses its own part, and tests may fail"
)]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_engine::backup::{self, BackupOptions, BackupReport, BackupType};
use pgstrata_engine::server::{ConnectionOptions, read_control};
use pgstrata_layer::cluster::{ClusterRecord, FORMAT};
use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::frame::FrameDecoder;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::overlay::Overlay;
use pgstrata_layer::wal;
use pgstrata_pgdata::{WalSegment, WalSegmentSize};
use pgstrata_store::catalog::{Catalog, ChainEntries, Layer};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::Result;
use pgstrata_store::progress::Progress;
use pgstrata_store::repository::Repository;
use pgstrata_testbed::cluster::{Cluster, Major};
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};

/// Versions that every rule is tested on.
pub const MAJORS: [Major; 2] = [Major::V15, Major::V18];

/// A server, a repository and the name of the one in the other.
pub struct Scene {
    pub cluster: Cluster,
    pub repository: Repository,
    pub name: ClusterName,
    pub runtime: Runtime,
}

/// Cluster settings that make small tests quick.
pub fn server(major: Major) -> pgstrata_testbed::cluster::Builder {
    Cluster::builder(major)
        .checksums(true)
        .conf("wal_level", "replica")
        .conf("autovacuum", "off")
}

impl Scene {
    /// A running server of its own and a repository in memory.
    pub fn new(major: Major) -> Self {
        Self::of(server(major).start().unwrap(), Repository::memory())
    }

    pub fn of(cluster: Cluster, repository: Repository) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let name = ClusterName::parse("main").unwrap();
        runtime.block_on(record(&repository, &name, cluster.pgdata()));
        Self {
            cluster,
            repository,
            name,
            runtime,
        }
    }

    fn within(&self) -> ClusterRepository {
        ClusterRepository::new(&self.repository, &self.name)
    }

    pub fn options(&self) -> BackupOptions {
        BackupOptions {
            connection: ConnectionOptions {
                conninfo: self.cluster.conninfo("postgres"),
            },
            data_directory: Some(self.cluster.pgdata().to_owned()),
            jobs: 2,
            ..BackupOptions::default()
        }
    }

    pub fn try_backup(&self, options: &BackupOptions) -> Result<BackupReport> {
        self.runtime
            .block_on(backup::run(&self.within(), options, Progress::default()))
    }

    pub fn backup(&self, backup_type: BackupType) -> BackupReport {
        self.try_backup(&BackupOptions {
            backup_type,
            ..self.options()
        })
        .unwrap()
    }

    pub fn catalog(&self) -> Catalog {
        self.runtime
            .block_on(Catalog::load(&self.within()))
            .unwrap()
    }

    pub fn sql(&self, script: &str) -> String {
        self.cluster.sql("postgres", script).unwrap()
    }

    /// Rebuilds the layer into a new directory.
    pub fn rebuild(&self, label: &Label) -> Rebuilt {
        rebuild(&self.within(), label, &self.runtime)
    }

    /// Rebuilds the layer and starts a server on it, which replays to the end of the backup.
    pub fn start_rebuilt(&self, label: &Label) -> (Rebuilt, Cluster) {
        self.rebuild(label).start(self.cluster.major())
    }
}

/// What `init` does.
pub async fn record(repository: &Repository, name: &ClusterName, pgdata: &Path) {
    let control = read_control(pgdata).unwrap().control;
    let record = ClusterRecord {
        name: name.as_str().to_owned(),
        format: FORMAT,
        system_identifier: control.system_identifier,
        major: u16::try_from(control.major.get()).unwrap(),
        catalog_version: control.catalog_version,
        block_size: control.block_size,
        wal_segment_size: u32::try_from(control.wal_segment_size.get()).unwrap(),
        created_at: Timestamp::now(),
        written_by: "test".to_owned(),
        sealing: None,
        retention: None,
    };
    let body = Bytes::from(pgstrata_layer::cluster::encode(&record));
    repository.create(&name.cluster_key(), body).await.unwrap();
}

/// A data directory made of a chain; removed with the value.
pub struct Rebuilt {
    pub directory: TempDir,
    pub pgdata: PathBuf,
}

impl Rebuilt {
    /// Starts a server on it, which replays to the end of the backup.
    pub fn start(self, major: Major) -> (Self, Cluster) {
        let cluster = Cluster::adopt(major, &self.pgdata)
            .conf("archive_mode", "off")
            .start()
            .unwrap_or_else(|error| panic!("{error:#}"));
        (self, cluster)
    }
}

/// Reads a chain the plain way: one file after the other, one frame after the other.
pub fn rebuild(cluster: &ClusterRepository, label: &Label, runtime: &Runtime) -> Rebuilt {
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let pgdata = directory.path().join("pgdata");
    fs::create_dir(&pgdata).unwrap();
    fs::set_permissions(&pgdata, fs::Permissions::from_mode(0o700)).unwrap();
    let catalog = runtime.block_on(Catalog::load(cluster)).unwrap();
    let chain: Vec<Arc<Layer>> = catalog
        .chain(label)
        .unwrap()
        .into_iter()
        .map(|layer| Arc::new(layer.clone()))
        .collect();
    let handle = runtime.handle().clone();
    write_files(cluster, &chain, &pgdata, &handle);
    let manifest = &chain[0].manifest;
    fs::write(pgdata.join("backup_label"), &manifest.backup_label).unwrap();
    if let Some(map) = &manifest.tablespace_map {
        fs::write(pgdata.join("tablespace_map"), map).unwrap();
    }
    fs::write(
        pgdata.join("global/pg_control"),
        manifest.pg_control_bytes().unwrap(),
    )
    .unwrap();
    let size = WalSegmentSize::try_from(u64::from(manifest.cluster.wal_segment_size)).unwrap();
    for segment in WalSegment::covering(
        manifest.timeline,
        manifest.start_lsn..manifest.stop_lsn,
        size,
    ) {
        let file_name = segment.file_name(size);
        let key = cluster.name.wal_key(&manifest.timeline.hex8(), &file_name);
        let object = runtime.block_on(cluster.repository.get(&key)).unwrap();
        fs::write(
            pgdata.join("pg_wal").join(&file_name),
            wal::decode(&file_name, &object).unwrap(),
        )
        .unwrap();
    }
    Rebuilt { directory, pgdata }
}

fn write_files(cluster: &ClusterRepository, chain: &[Arc<Layer>], pgdata: &Path, runtime: &Handle) {
    let mut decoder = FrameDecoder::new().unwrap();
    let mut raw = Vec::new();
    for planned in Overlay::new(ChainEntries::new(cluster, chain, runtime, None)) {
        let (plan, _) =
            planned.unwrap_or_else(|error: pgstrata_store::error::Error| panic!("{error}"));
        let path = pgdata.join(&plan.path);
        if plan.kind == EntryKind::Directory {
            fs::create_dir(&path).unwrap();
        } else {
            let file = File::create_new(&path).unwrap();
            file.set_len(plan.size_bytes).unwrap();
            for piece in &plan.pieces {
                let layer = &chain[piece.layer];
                let start = piece.frame.offset;
                let key = cluster.name.pack_key(&layer.label, piece.frame.pack);
                let stored = runtime
                    .block_on(
                        cluster
                            .repository
                            .get_range(&key, start..start + u64::from(piece.frame.length)),
                    )
                    .unwrap();
                decoder
                    .decode(&stored, Some(piece.frame.checksum), &mut raw)
                    .unwrap();
                for take in &piece.take {
                    let from = usize::try_from(take.frame_page).unwrap() * 8192;
                    let to =
                        (from + usize::try_from(take.run.count).unwrap() * 8192).min(raw.len());
                    file.write_all_at(&raw[from..to], u64::from(take.run.start) * 8192)
                        .unwrap();
                }
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(plan.mode)).unwrap();
    }
}
