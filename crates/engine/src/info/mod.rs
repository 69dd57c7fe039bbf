//! What is in the repository: the cluster, its archive, its layers and leftovers.
//!
//! Collecting never fails because of what is damaged: a record, a manifest, a chain or an
//! archive that cannot be used is listed with the reason. It reads manifests and
//! lists all objects; it does not look into packs, which `verify` does.

mod leftover;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{ChangeSourceRecord, CorruptPage, Tablespace, Totals};
use pgstrata_pgdata::{Lsn, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{Archive, ArchivedTimeline, ArchivedWal};
use pgstrata_store::catalog::{self, Catalog, InUse, Layer, StoreTime};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use serde::Serialize;

pub use leftover::Leftover;

use crate::health::{self, Alarm, Facts};

/// Layers that were removed while they were looked at are no alarm: it is looked again, so often.
const LOOKS: u32 = 5;

/// Everything there is to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InfoReport {
    /// Where the repository is.
    pub repository: String,
    /// The cluster's name there.
    pub cluster: String,
    /// The cluster's record; `None` when it cannot be read.
    pub record: Option<ClusterRecord>,
    /// Whether there is an alarm.
    pub status: Status,
    /// What is wrong, the worst first.
    pub alarms: Vec<Alarm>,
    /// The WAL archive.
    pub archive: ArchiveInfo,
    /// Finished layers, oldest first.
    pub layers: Vec<LayerInfo>,
    /// Layers whose manifest cannot be used.
    pub damaged: Vec<DamagedLayer>,
    /// What backups that are running or were interrupted have left.
    pub unfinished: Vec<Leftover>,
    /// Restores that may still need layers or WAL, oldest first.
    pub restores: Vec<RestoreInfo>,
}

/// A restore that has given a sign of life lately. Nothing tells when its recovery has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestoreInfo {
    /// The layer that is restored.
    pub label: String,
    /// The chain, that layer first.
    pub layers: Vec<String>,
    /// Where recovery begins.
    pub start_lsn: Lsn,
    /// The timeline that recovery follows.
    pub timeline: u32,
    /// Host that restores.
    pub host: String,
    /// Process there.
    pub pid: u32,
    /// The data directory there.
    pub directory: String,
    /// When it began.
    pub started_at: Timestamp,
    /// Seconds since its last sign of life, by this host's clock.
    pub age_seconds: i64,
}

/// One word for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// What was promised can be restored, as far as manifests and listings tell.
    Ok,
    /// There is no finished layer.
    Empty,
    /// Something is wrong.
    Alarm,
}

/// The WAL archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ArchiveInfo {
    /// Its timelines, oldest first.
    pub timelines: Vec<TimelineInfo>,
    /// Bytes of all its objects.
    pub stored_bytes: u64,
    /// Why it could not be listed.
    pub problem: Option<String>,
}

/// One timeline of the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineInfo {
    /// Its number.
    pub timeline: u32,
    /// Name of the first whole segment.
    pub first: Option<String>,
    /// Name of the last whole segment.
    pub last: Option<String>,
    /// Number of whole segments.
    pub segments: u64,
    /// Runs of segments that are missing in between.
    pub missing: Vec<SegmentRange>,
    /// Whether its history file is there; the first timeline has none.
    pub has_history: bool,
    /// Bytes of its objects.
    pub stored_bytes: u64,
    /// Objects that are no file of an archive.
    pub unknown: Vec<String>,
}

/// Segments from the first to the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentRange {
    /// Name of the first.
    pub first: String,
    /// Name of the last.
    pub last: String,
    /// How many they are.
    pub count: u64,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerInfo {
    /// Its label.
    pub label: String,
    /// `full`, `differential` or `incremental`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Label of the layer it stands on.
    pub parent: Option<String>,
    /// Number of layers a restore reads, this one included.
    pub chain_length: u64,
    /// Why it cannot be restored; `None` when nothing is known against it.
    pub problem: Option<String>,
    /// When the backup began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Seconds between the two.
    pub duration_seconds: i64,
    /// Where its WAL begins.
    pub start_lsn: Lsn,
    /// Where it ends: no recovery target before this can be reached.
    pub stop_lsn: Lsn,
    /// The timeline of both.
    pub timeline: u32,
    /// Its WAL segments.
    pub wal: SegmentRange,
    /// Whether it was taken from a standby.
    pub from_standby: bool,
    /// The layer of the same timeline that may lie beside this one, and why.
    pub beside: Option<BesideInfo>,
    /// How changed pages were found, and why so.
    pub change_source: ChangeSourceRecord,
    /// State of the server's page tracker, as the next backup needs it.
    pub tracker_token: Option<String>,
    /// Counts of files, pages and bytes.
    pub totals: Totals,
    /// Bytes of its objects, but for claim and manifest.
    pub stored_bytes: u64,
    /// The same of all layers a restore reads.
    pub chain_stored_bytes: u64,
    /// Whether pages of the cluster carry checksums.
    pub data_checksums: bool,
    /// Tablespaces besides the two of every cluster.
    pub tablespaces: Vec<Tablespace>,
    /// Pages that were corrupt in the cluster.
    pub corrupt_pages: Vec<CorruptPage>,
    /// Program that made it.
    pub written_by: String,
}

/// A layer that another one does not seem to come after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BesideInfo {
    /// Its label.
    pub label: String,
    /// Why.
    pub reason: String,
}

/// A layer whose manifest cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedLayer {
    /// Its label.
    pub label: String,
    /// Why.
    pub reason: String,
}

/// What to collect.
#[derive(Clone, Debug, Default)]
pub struct InfoOptions {
    /// This layer alone.
    pub label: Option<Label>,
    /// An older newest backup is an alarm.
    pub max_age: Option<Duration>,
}

/// Collects what there is of `cluster`.
///
/// # Errors
/// `NotFound` when there is no such cluster or layer; `Repository` when it cannot be read.
pub async fn collect(cluster: &ClusterRepository, options: &InfoOptions) -> Result<InfoReport> {
    let mut report = collect_once(cluster, options).await?;
    for _ in 0..LOOKS {
        let settled = report.0.alarms.is_empty()
            || catalog::removed_since(cluster, &report.1).await?.is_empty();
        if settled {
            break;
        }
        // What is missing may belong to a layer that an expiry has removed meanwhile.
        report = collect_once(cluster, options).await?;
    }
    Ok(report.0)
}

/// What there is, and the layers of which it was told.
async fn collect_once(
    cluster: &ClusterRepository,
    options: &InfoOptions,
) -> Result<(InfoReport, Vec<Arc<Layer>>)> {
    let record = match cluster.record().await {
        Err(error) if error.kind() != Kind::Damaged => return Err(error),
        record => record,
    };
    let catalog = Catalog::examine(cluster).await?;
    let mut histories = None;
    let archived = archived(cluster, &mut histories).await;
    let chain_bytes = catalog.layers.along_chains(|layer, below| {
        let below = below.copied().unwrap_or(0);
        stored_bytes(layer) + below
    });
    let layers = catalog.layers.iter().zip(chain_bytes);
    let layers =
        layers.map(|(layer, bytes)| layer_info(&catalog, layer, bytes, archived.as_ref().ok()));
    let now = StoreTime::by_this_host();
    let unfinished = catalog.unfinished.iter();
    let unfinished = unfinished.map(|unfinished| Leftover::of(unfinished, now));
    let restores = match catalog::in_use(cluster, now).await {
        Ok(restores) => restores,
        Err(error) if matches!(error.kind(), Kind::Damaged | Kind::Unsupported) => {
            tracing::warn!("{error}");
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let alarms = health::judge(&Facts {
        catalog: &catalog,
        archived: archived.as_ref(),
        histories: histories.as_ref(),
        record: record.as_ref().err(),
        now: Timestamp::now(),
        max_age: options.max_age,
    });
    let mut report = InfoReport {
        repository: cluster.repository.url().to_owned(),
        cluster: cluster.name.as_str().to_owned(),
        record: record.ok(),
        status: Status::Ok,
        alarms,
        archive: archive_info(archived.as_ref()),
        layers: layers.collect::<Result<_>>()?,
        damaged: catalog.damaged.iter().map(damaged).collect(),
        unfinished: unfinished.collect(),
        restores: restores.iter().map(restore_info).collect(),
    };
    if let Some(label) = &options.label {
        report.keep_only(label, &catalog)?;
    }
    report.status = match (report.alarms.is_empty(), report.layers.is_empty()) {
        (false, _) => Status::Alarm,
        (true, true) => Status::Empty,
        (true, false) => Status::Ok,
    };
    let layers = catalog.layers.into_iter().map(Arc::new);
    Ok((report, layers.collect()))
}

impl InfoReport {
    fn keep_only(&mut self, label: &Label, catalog: &Catalog) -> Result<()> {
        let wanted = label.as_str();
        let links = catalog.links(label).unwrap_or_default();
        let concerns = |layer: &str| {
            let mut links = links.iter();
            layer == wanted || links.any(|link| link.label.as_str() == layer)
        };
        self.layers.retain(|layer| layer.label == wanted);
        self.damaged.retain(|damaged| damaged.label == wanted);
        self.unfinished.retain(|leftover| leftover.label == wanted);
        self.alarms
            .retain(|alarm| alarm.layer.as_deref().is_some_and(concerns));
        self.restores
            .retain(|restore| restore.layers.iter().any(|layer| layer == wanted));
        let found = self.layers.len() + self.damaged.len() + self.unfinished.len();
        if found > 0 {
            return Ok(());
        }
        Err(
            Error::new(Kind::NotFound, format!("layer {label} does not exist"))
                .hint("\"pgstrata info\" lists the layers"),
        )
    }
}

fn restore_info(found: &InUse) -> RestoreInfo {
    let record = &found.record;
    RestoreInfo {
        label: record.layers[0].label.clone(),
        layers: record.layers.iter().map(|l| l.label.clone()).collect(),
        start_lsn: record.start_lsn,
        timeline: record.timeline,
        host: record.host.clone(),
        pid: record.pid,
        directory: record.directory.clone(),
        started_at: record.started_at,
        age_seconds: found.age.as_secs(),
    }
}

fn damaged((label, error): &(Label, Error)) -> DamagedLayer {
    DamagedLayer {
        label: label.to_string(),
        reason: error.to_string(),
    }
}

/// The archive's listing, and why not all histories in it could be read.
async fn archived(cluster: &ClusterRepository, unread: &mut Option<Error>) -> Result<ArchivedWal> {
    let archive = Archive::load(cluster).await?;
    let mut archived = archive.list(std::iter::empty()).await?;
    *unread = archive.read_histories(&mut archived).await.err();
    Ok(archived)
}

fn archive_info(archived: std::result::Result<&ArchivedWal, &Error>) -> ArchiveInfo {
    let archived = match archived {
        Ok(archived) => archived,
        Err(error) => {
            return ArchiveInfo {
                problem: Some(error.to_string()),
                ..ArchiveInfo::default()
            };
        }
    };
    let size = archived.segment_size();
    let timelines = archived.by_timeline();
    ArchiveInfo {
        stored_bytes: archived.by_timeline().map(|(_, t)| t.stored_bytes).sum(),
        timelines: timelines
            .map(|(timeline, found)| timeline_info(timeline, found, size))
            .collect(),
        problem: None,
    }
}

fn timeline_info(
    timeline: TimelineId,
    found: &ArchivedTimeline,
    size: WalSegmentSize,
) -> TimelineInfo {
    let segment = |number| WalSegment { timeline, number };
    let name = |number| segment(number).file_name(size);
    TimelineInfo {
        timeline: timeline.get(),
        first: found.runs.first().map(|run| name(run.first)),
        last: found.runs.last().map(|run| name(run.last)),
        segments: found.segments(),
        missing: found
            .gaps()
            .map(|gap| range(segment(*gap.start()), segment(*gap.end()), size))
            .collect(),
        has_history: found.history_stored_at.is_some(),
        stored_bytes: found.stored_bytes,
        unknown: found.unknown.clone(),
    }
}

fn range(first: WalSegment, last: WalSegment, size: WalSegmentSize) -> SegmentRange {
    SegmentRange {
        first: first.file_name(size),
        last: last.file_name(size),
        count: (last.number + 1).saturating_sub(first.number),
    }
}

fn layer_info(
    catalog: &Catalog,
    layer: &Layer,
    chain_bytes: Option<u64>,
    archived: Option<&ArchivedWal>,
) -> Result<LayerInfo> {
    let manifest = &layer.manifest;
    let size = WalSegmentSize::try_from(u64::from(manifest.cluster.wal_segment_size))?;
    let timeline = manifest.timeline;
    let chain_length = catalog.chain_length(&layer.label).unwrap_or(1);
    let problem = health::problem(catalog, layer, archived);
    Ok(LayerInfo {
        label: layer.label.to_string(),
        kind: layer.label.kind().as_str(),
        parent: manifest.parent.as_ref().map(|parent| parent.label.clone()),
        chain_length: u64::try_from(chain_length).expect("usize has 64 bits"),
        problem,
        started_at: manifest.started_at,
        finished_at: manifest.finished_at,
        duration_seconds: manifest.finished_at.as_second() - manifest.started_at.as_second(),
        start_lsn: manifest.start_lsn,
        stop_lsn: manifest.stop_lsn,
        timeline: timeline.get(),
        wal: range(
            WalSegment::containing(timeline, manifest.start_lsn, size),
            WalSegment::containing_end(timeline, manifest.stop_lsn, size),
            size,
        ),
        from_standby: manifest.from_standby,
        beside: manifest.beside.as_ref().map(|beside| BesideInfo {
            label: beside.layer.label.clone(),
            reason: beside.reason.clone(),
        }),
        change_source: manifest.change_source.clone(),
        tracker_token: manifest.tracker_token.clone(),
        totals: manifest.totals,
        stored_bytes: stored_bytes(layer),
        chain_stored_bytes: chain_bytes.unwrap_or_else(|| stored_bytes(layer)),
        data_checksums: manifest.cluster.data_checksum_version > 0,
        tablespaces: manifest.tablespaces.clone(),
        corrupt_pages: manifest.corrupt_pages.clone(),
        written_by: manifest.written_by.clone(),
    })
}

/// Bytes of the packs, index and digest parts that a manifest names.
#[must_use]
pub fn stored_bytes(layer: &Layer) -> u64 {
    let parts = layer.manifest.index.iter();
    let parts: u64 = parts.map(|part| part.index_bytes + part.digest_bytes).sum();
    parts + layer.manifest.pack_bytes
}
