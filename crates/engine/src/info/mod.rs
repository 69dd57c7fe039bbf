//! What is in the repository: the cluster, its archive, its layers and leftovers.
//!
//! Collecting never fails because of what is damaged: a manifest, a chain or an
//! archive that cannot be used is listed with the reason. It reads manifests and
//! lists WAL; it does not look into packs, which `verify` does.

mod leftover;

use std::collections::HashSet;

use jiff::Timestamp;
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{ChangeSourceRecord, CorruptPage, Tablespace, Totals};
use pgstrata_pgdata::{Lsn, WalSegment, WalSegmentSize};
use serde::Serialize;

pub use leftover::Leftover;
pub(crate) use leftover::is_running;

use crate::archive::{self, Inventory, TimelineInventory};
use crate::catalog::{Catalog, Layer, cluster_record};
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// Version of [`InfoReport`] as a document: `docs/schema/info-1.json`.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything there is to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InfoReport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Where the repository is.
    pub repository: String,
    /// The cluster's name there.
    pub cluster: String,
    /// The cluster's record; `None` when it cannot be read.
    pub record: Option<ClusterRecord>,
    /// Whether every layer can be used, and what keeps it from that.
    pub status: Status,
    /// The WAL archive.
    pub archive: ArchiveInfo,
    /// Finished layers, oldest first.
    pub layers: Vec<LayerInfo>,
    /// Layers whose manifest cannot be used.
    pub damaged: Vec<DamagedLayer>,
    /// What backups that are running or were interrupted have left.
    pub unfinished: Vec<Leftover>,
}

/// One word for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Every layer can be used, as far as manifests and listings tell.
    Ok,
    /// There is no finished layer.
    Empty,
    /// Some layers cannot be used.
    Damaged,
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

/// A layer whose manifest cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedLayer {
    /// Its label.
    pub label: String,
    /// Why.
    pub reason: String,
}

/// Collects what there is of `cluster`; of one layer when `label` is given.
///
/// # Errors
/// `NotFound` when there is no such cluster or layer; `Repository` when it cannot be read.
pub async fn collect(
    repository: &Repository,
    cluster: &ClusterName,
    label: Option<&Label>,
) -> Result<InfoReport> {
    let record = match cluster_record(repository, cluster).await {
        Ok(record) => Some(record),
        Err(error) if error.kind() == Kind::Damaged => None,
        Err(error) => return Err(error),
    };
    let catalog = Catalog::load(repository, cluster).await?;
    let inventory = archive::inventory(repository, cluster).await;
    let archived = inventory.as_ref().ok().map(archived_segments);
    let layers = catalog.layers.iter();
    let layers = layers.map(|layer| layer_info(&catalog, layer, archived.as_ref()));
    let mut report = InfoReport {
        schema_version: SCHEMA_VERSION,
        repository: repository.url().to_owned(),
        cluster: cluster.as_str().to_owned(),
        record,
        status: Status::Ok,
        archive: archive_info(inventory),
        layers: layers.collect::<Result<_>>()?,
        damaged: catalog.damaged.iter().map(damaged).collect(),
        unfinished: catalog.unfinished.iter().map(Leftover::of).collect(),
    };
    if let Some(label) = label {
        report.keep_only(label)?;
    }
    report.status = report.judge();
    Ok(report)
}

impl InfoReport {
    fn keep_only(&mut self, label: &Label) -> Result<()> {
        let wanted = label.as_str();
        self.layers.retain(|layer| layer.label == wanted);
        self.damaged.retain(|damaged| damaged.label == wanted);
        self.unfinished.retain(|leftover| leftover.label == wanted);
        let found = self.layers.len() + self.damaged.len() + self.unfinished.len();
        if found > 0 {
            return Ok(());
        }
        Err(
            Error::new(Kind::NotFound, format!("layer {label} does not exist"))
                .hint("\"pgstrata info\" lists the layers"),
        )
    }

    fn judge(&self) -> Status {
        let broken = self.layers.iter().any(|layer| layer.problem.is_some());
        if broken || !self.damaged.is_empty() || self.record.is_none() {
            Status::Damaged
        } else if self.layers.is_empty() {
            Status::Empty
        } else {
            Status::Ok
        }
    }
}

fn damaged((label, error): &(Label, Error)) -> DamagedLayer {
    DamagedLayer {
        label: label.to_string(),
        reason: error.to_string(),
    }
}

fn archived_segments(inventory: &Inventory) -> HashSet<WalSegment> {
    let timelines = inventory.timelines.iter();
    timelines
        .flat_map(|timeline| timeline.segments.iter().copied())
        .collect()
}

fn archive_info(inventory: Result<Inventory>) -> ArchiveInfo {
    let inventory = match inventory {
        Ok(inventory) => inventory,
        Err(error) => {
            return ArchiveInfo {
                problem: Some(error.to_string()),
                ..ArchiveInfo::default()
            };
        }
    };
    let size = inventory.segment_size;
    let timelines = inventory.timelines.iter();
    ArchiveInfo {
        stored_bytes: timelines.clone().map(|t| t.stored_bytes).sum(),
        timelines: timelines.map(|t| timeline_info(t, size)).collect(),
        problem: None,
    }
}

fn timeline_info(found: &TimelineInventory, size: WalSegmentSize) -> TimelineInfo {
    let name = |segment: &WalSegment| segment.file_name(size);
    let gaps = found.gaps();
    TimelineInfo {
        timeline: found.timeline.get(),
        first: found.segments.first().map(name),
        last: found.segments.last().map(name),
        segments: u64::try_from(found.segments.len()).expect("usize has 64 bits"),
        missing: gaps.iter().map(|(a, b)| range(*a, *b, size)).collect(),
        has_history: found.has_history,
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
    archived: Option<&HashSet<WalSegment>>,
) -> Result<LayerInfo> {
    let manifest = &layer.manifest;
    let size = WalSegmentSize::try_from(u64::from(manifest.cluster.wal_segment_size))?;
    let (timeline, lsns) = (manifest.timeline, manifest.start_lsn..manifest.stop_lsn);
    let chain = catalog.chain(&layer.label);
    let problem = match &chain {
        Err(error) => Some(error.to_string()),
        Ok(_) => archived.and_then(|archived| {
            let mut needed = WalSegment::covering(timeline, lsns, size);
            let missing = needed.find(|segment| !archived.contains(segment))?;
            let name = missing.file_name(size);
            Some(format!("its WAL segment {name} is not in the archive"))
        }),
    };
    let chain = chain.unwrap_or_else(|_| vec![layer]);
    Ok(LayerInfo {
        label: layer.label.to_string(),
        kind: layer.label.kind().as_str(),
        parent: manifest.parent.as_ref().map(|parent| parent.label.clone()),
        chain_length: u64::try_from(chain.len()).expect("usize has 64 bits"),
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
        change_source: manifest.change_source.clone(),
        tracker_token: manifest.tracker_token.clone(),
        totals: manifest.totals,
        stored_bytes: stored_bytes(layer),
        chain_stored_bytes: chain.iter().map(|layer| stored_bytes(layer)).sum(),
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
