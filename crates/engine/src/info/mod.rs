//! What is in the repository: the cluster, its archive, its layers and leftovers.
//!
//! Collecting never fails because of what is damaged: a record, a manifest, a chain or an
//! archive that cannot be used is listed with the reason. It reads manifests and
//! lists all objects; it does not look into packs, which `verify` does.

mod leftover;
pub mod server;
mod traces;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{ChangeSourceRecord, CorruptPage, Tablespace, Totals};
use pgstrata_layer::verified::VerifiedRecord;
use pgstrata_pgdata::{Lsn, TimelineHistory, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{self, Archive, ArchivedTimeline, ArchivedWal};
use pgstrata_store::catalog::mark::AllMarks;
use pgstrata_store::catalog::{
    self, Catalog, InUse, LastVerified, Layer, LayerMark, PendingRemoval, StoreTime,
};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::ObjectInfo;
use serde::Serialize;

pub use leftover::Leftover;

use crate::health::{self, Alarm, AlarmKind, Facts};
use crate::mark::PinInfo;
use crate::restore;
use server::{NotLookedAt, ServerHealth, ServerOptions};
use traces::Traces;

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
    /// Alarms that could not be raised, because no server told.
    pub not_looked_at: Vec<NotLookedAt>,
    /// Whether a server was asked and did not answer.
    #[serde(skip)]
    pub is_server_silent: bool,
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
    /// The last verification of all layers that is on record.
    pub verified: Option<VerifiedRecord>,
    /// The history that a restore of the newest state follows, when that is known.
    #[serde(skip)]
    pub newest_state: Option<TimelineHistory>,
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
    /// Seconds after its last sign of life for which its layers and WAL are kept.
    pub kept_seconds: i64,
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
    /// From where on WAL is promised without a hole, on whatever timeline; before, an expiry has given up what no layer needs to
    /// be consistent, on the timelines that there were.
    pub promised_from: Option<Lsn>,
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
    /// Runs of segments that an expiry has given up in between.
    pub released: Vec<SegmentRange>,
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
    /// Whether the WAL behind its end is promised, so that restores can go on from it.
    pub goes_on: bool,
    /// The pin that is in force.
    pub pin: Option<PinInfo>,
    /// What people have written about it.
    pub annotations: BTreeMap<String, String>,
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
    /// So is an older newest verification that found nothing wrong.
    pub max_verify_age: Option<Duration>,
    /// The server to ask, too; `None`: nobody looks at one.
    pub server: Option<ServerOptions>,
    /// When the repository was as it is shown; `None`: it is as it is.
    pub as_of: Option<Timestamp>,
}

impl InfoOptions {
    /// The time by which all is judged: of the past not that of today.
    fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        self.as_of.map_or(now, |moment| moment.min(now))
    }
}

/// Collects what there is of `cluster`.
///
/// # Errors
/// `NotFound` when there is no such cluster or layer; `Repository` when it cannot be read.
pub async fn collect(cluster: &ClusterRepository, options: &InfoOptions) -> Result<InfoReport> {
    let mut report = collect_once(cluster, options).await?;
    for _ in 0..LOOKS {
        let settled = report.0.alarms.is_empty()
            || catalog::removed_since(cluster, report.1.iter().map(|layer| layer.known_as()))
                .await?
                .is_empty();
        if settled {
            break;
        }
        // What is missing may belong to a layer that an expiry has removed meanwhile.
        report = collect_once(cluster, options).await?;
    }
    let mut report = report.0;
    report.add(server::look(cluster, options.server.as_ref()).await);
    Ok(report)
}

/// What the repository has.
struct Read {
    record: Result<ClusterRecord>,
    catalog: Catalog,
    /// Those of the archive.
    objects: Result<Vec<ObjectInfo>>,
    restores: Vec<InUse>,
    removals: Vec<PendingRemoval>,
    /// Why nothing can be removed.
    barred: Option<Error>,
    marks: AllMarks,
    verified: LastVerified,
}

async fn read(cluster: &ClusterRepository, now: StoreTime) -> Result<Read> {
    let (record, catalog, objects, restores, removals, marks, verified) = futures::join!(
        cluster.record(),
        Catalog::examine(cluster),
        archive::objects(cluster),
        catalog::in_use(cluster, now),
        catalog::pending_removals(cluster),
        catalog::mark::load(cluster),
        catalog::last_verified(cluster)
    );
    let record = match record {
        Err(error) if error.kind() != Kind::Damaged => return Err(error),
        record => record,
    };
    let (mut catalog, marks, mut verified) = (catalog?, marks?, verified?);
    catalog.found_damaged = std::mem::take(&mut verified.damaged);
    let (restores, barred) = readable(restores)?;
    let (removals, unread) = readable(removals)?;
    Ok(Read {
        record,
        catalog,
        objects,
        restores,
        removals,
        barred: barred.or(unread),
        marks,
        verified,
    })
}

/// What there is, and the layers of which it was told.
async fn collect_once(
    cluster: &ClusterRepository,
    options: &InfoOptions,
) -> Result<(InfoReport, Vec<Arc<Layer>>)> {
    let now = StoreTime::at(options.now());
    let Read {
        record,
        catalog,
        objects,
        restores,
        removals,
        barred,
        marks,
        verified,
    } = read(cluster, now).await?;
    let known = record.as_ref().ok();
    let archived = archived(cluster, known, &catalog, objects).await;
    let layers = layer_infos(&catalog, archived.as_ref().ok(), &marks, now)?;
    let unfinished = catalog.unfinished.iter();
    let unfinished = unfinished.map(|unfinished| Leftover::of(unfinished, now));
    let restores = catalog::still_going(&restores, &catalog);
    let key_fault = key_fault(cluster).await?;
    let traces = Traces {
        catalog: &catalog,
        verified: &verified,
        marks: &marks,
        removals: &removals,
        archived: archived.as_ref().ok(),
    };
    let traces = traces.find(cluster, known).await?;
    let newest = archived.as_ref().ok();
    let newest = newest.and_then(|archived| restore::newest_state(&catalog, archived));
    let alarms = health::judge(&Facts {
        catalog: &catalog,
        archived: archived.as_ref(),
        refused: newest.as_ref().and_then(|newest| newest.as_ref().err()),
        record: record.as_ref().err(),
        keys: key_fault.as_ref(),
        removal: barred.as_ref(),
        unread_marks: unread_marks(&marks, &catalog),
        gone_pins: marks.pins_of_gone(&catalog, now.timestamp()).collect(),
        now: now.timestamp(),
        max_age: options.max_age,
        traces,
        created_at: known.map(|record| record.created_at),
        verified: &verified,
        max_verify_age: options.max_verify_age,
    });
    let mut report = InfoReport {
        repository: cluster.repository.url().to_owned(),
        cluster: cluster.name.as_str().to_owned(),
        record: record.ok(),
        status: Status::Ok,
        alarms,
        not_looked_at: Vec::new(),
        is_server_silent: false,
        archive: archive_info(archived.as_ref()),
        layers,
        damaged: catalog.damaged.iter().map(damaged).collect(),
        unfinished: unfinished.collect(),
        restores: restores.iter().map(restore_info).collect(),
        verified: verified.newest.map(|newest| newest.record),
        newest_state: newest.and_then(Result::ok),
    };
    if let Some(label) = &options.label {
        report.keep_only(label, &catalog)?;
    }
    report.judge();
    let layers = catalog.layers.into_iter().map(Arc::new);
    Ok((report, layers.collect()))
}

fn layer_infos(
    catalog: &Catalog,
    archived: Option<&ArchivedWal>,
    marks: &AllMarks,
    now: StoreTime,
) -> Result<Vec<LayerInfo>> {
    let chain_bytes = catalog.layers.along_chains(|layer, below| {
        let below = below.copied().unwrap_or(0);
        stored_bytes(layer) + below
    });
    let layers = catalog.layers.iter().zip(chain_bytes);
    let infos = layers.map(|(layer, bytes)| {
        let mut info = layer_info(catalog, layer, bytes, archived)?;
        info.mark(marks, catalog, (layer, now));
        Ok(info)
    });
    infos.collect()
}

/// Layers that are there and have a mark that cannot be read, and why not.
fn unread_marks<'a>(marks: &'a AllMarks, catalog: &Catalog) -> Vec<(&'a Label, &'a Error)> {
    let unreadable = marks.all_unreadable();
    unreadable
        .filter(|(label, _)| catalog.layers.position(label).is_some())
        .collect()
}

/// What is wrong with the keys of a sealed cluster: an epoch that is lost or that nobody opens, or a key box that is none.
async fn key_fault(cluster: &ClusterRepository) -> Result<Option<Error>> {
    let Some(ring) = cluster.sealing().await?.ring() else {
        return Ok(None);
    };
    let lost = ring.lost(cluster.home()).await?;
    let lost = lost.last().map(|number| ring.not_there(*number));
    if let Some(error) = lost.or_else(|| ring.unread_error()) {
        return Ok(Some(error));
    }
    let (_, forged) = ring.survey_all(cluster.home()).await?;
    Ok(forged.into_iter().next())
}

/// What others have on record; nothing, and why, when a record of them cannot be read.
fn readable<T>(records: Result<Vec<T>>) -> Result<(Vec<T>, Option<Error>)> {
    match records {
        Err(error) if error.is_of_one_object() => Ok((Vec::new(), Some(error))),
        records => records.map(|records| (records, None)),
    }
}

impl InfoReport {
    /// One word for all.
    fn judge(&mut self) {
        self.status = match (self.alarms.is_empty(), self.layers.is_empty()) {
            (false, _) => Status::Alarm,
            (true, true) => Status::Empty,
            (true, false) => Status::Ok,
        };
    }

    /// The alarm when a restore of the newest state would follow another server than the primary that writes this timeline.
    #[must_use]
    pub fn leaves(&self, timeline: Option<TimelineId>) -> Option<Alarm> {
        health::server::left_behind(timeline?, self.newest_state.as_ref()?)
    }

    /// Adds what a server told.
    fn add(&mut self, told: ServerHealth) {
        self.alarms.extend(self.leaves(told.timeline));
        self.not_looked_at = told.not_looked_at;
        self.is_server_silent = told.is_silent;
        self.alarms.extend(told.alarms);
        self.alarms
            .sort_by_key(|alarm| std::cmp::Reverse(alarm.severity));
        self.judge();
    }

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
        // What makes a layer useless may be told once for all of a timeline.
        let is_of_archive =
            self.archive.problem.is_some() || self.layers.iter().any(|kept| kept.problem.is_some());
        self.alarms.retain(|alarm| match &alarm.layer {
            Some(layer) => concerns(layer),
            None => {
                alarm.kind.is_of_cluster() || (is_of_archive && alarm.kind == AlarmKind::Archive)
            }
        });
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

impl LayerInfo {
    fn mark(&mut self, marks: &AllMarks, catalog: &Catalog, (layer, now): (&Layer, StoreTime)) {
        self.annotations = marks.of(layer).annotations;
        let pinned = marks.pinned(catalog, layer, now.timestamp());
        self.pin = pinned.map(|mark| match mark {
            LayerMark::Pinned(pin) => PinInfo::from(pin),
            unknown @ LayerMark::Unknown(_) => PinInfo {
                until: None,
                note: Some(unknown.describe()),
            },
        });
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
        kept_seconds: catalog::lease_of(record).as_secs(),
    }
}

fn damaged((label, error): &(Label, Error)) -> DamagedLayer {
    DamagedLayer {
        label: label.to_string(),
        reason: error.to_string(),
    }
}

/// The archive's listing, and the histories in it.
async fn archived(
    cluster: &ClusterRepository,
    record: Option<&ClusterRecord>,
    catalog: &Catalog,
    objects: Result<Vec<ObjectInfo>>,
) -> Result<ArchivedWal> {
    let archive = match record {
        Some(record) => Archive::new(cluster, record.clone())?,
        // Says what is wrong with it.
        None => Archive::load(cluster).await?,
    };
    let (size, layers) = (archive.segment_size(), catalog.layers.iter());
    let (starts, ends): (Vec<_>, Vec<_>) = layers.map(|layer| layer.own_wal(size)).unzip();
    let mut archived = archive
        .list_beside(objects?, ends.into_iter(), starts.into_iter())
        .await?;
    archive.read_short(&mut archived).await?;
    let read = archive.read_histories(&mut archived).await;
    // Each that cannot be read is an alarm of its own.
    let is_known = archived.by_timeline().any(|(timeline, _)| {
        archived.has_history(timeline) && archived.history_problem(timeline).is_some()
    });
    match read {
        Err(error) if !is_known => Err(error),
        _ => Ok(archived),
    }
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
    let timelines = archived.by_timeline();
    ArchiveInfo {
        stored_bytes: archived.by_timeline().map(|(_, t)| t.stored_bytes).sum(),
        timelines: timelines
            .map(|(timeline, found)| timeline_info(timeline, found, archived))
            .collect(),
        promised_from: archived.promised_from(),
        problem: None,
    }
}

fn timeline_info(
    timeline: TimelineId,
    found: &ArchivedTimeline,
    archived: &ArchivedWal,
) -> TimelineInfo {
    let size = archived.segment_size();
    let (mut missing, mut released) = (Vec::new(), Vec::new());
    for gap in found.gaps() {
        // What was given up ends where the promise begins.
        let (first, end) = (*gap.start(), *gap.end() + 1);
        let middle = archived
            .released_until(timeline)
            .map_or(first, |from| from.segment(size).clamp(first, end));
        for (list, first, end) in [(&mut released, first, middle), (&mut missing, middle, end)] {
            if first < end {
                let segment = |number| WalSegment { timeline, number };
                list.push(range(segment(first), segment(end - 1), size));
            }
        }
    }
    let segment = |number| WalSegment { timeline, number };
    let name = |number| segment(number).file_name(size);
    TimelineInfo {
        timeline: timeline.get(),
        first: found.runs.first().map(|run| name(run.first)),
        last: found.runs.last().map(|run| name(run.last)),
        segments: found.segments(),
        missing,
        released,
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
    let (first, last) = layer.own_wal(size);
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
        wal: range(first, last, size),
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
        goes_on: archived.is_none_or(|archived| archived.goes_on_from(manifest)),
        pin: None,
        annotations: BTreeMap::new(),
    })
}

/// Bytes of the packs, index and digest parts that a manifest names.
#[must_use]
pub fn stored_bytes(layer: &Layer) -> u64 {
    let parts = layer.manifest.index.iter();
    let parts: u64 = parts.map(|part| part.index_bytes + part.digest_bytes).sum();
    parts + layer.manifest.pack_bytes
}
