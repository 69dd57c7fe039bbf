//! The plan of a restore: all that is decided before anything is written, as data.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use pgstrata_layer::entry::{BLOCK_BYTES, EntryKind};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::overlay::{FilePlan, Overlay};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};
use pgstrata_pgdata::{ControlFile, Major};
use serde::Serialize;
use tokio::runtime::Handle;

use super::archived::ArchivedWal;
use super::destination::{Condition, Layout};
use super::in_place::{Inventory, follow_links, refuse_unarchived_wal};
use super::inventory::archived_wal;
use super::select::{Candidate, Request, Selection, select};
use super::shares::SHARES;
use super::{Method, RestoreOptions, Source};
use crate::catalog::{Catalog, ChainEntries, Layer};
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// Version of the plan's JSON.
const SCHEMA: u32 = 1;

/// One layer of the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedLayer {
    /// Its label.
    pub label: String,
    /// When it was finished.
    pub finished_at: Timestamp,
    /// Frames that are read from it.
    pub frames: u64,
    /// Bytes of those frames.
    pub fetch_bytes: u64,
    /// Bytes of the pages in them that are wanted, in proportion.
    pub needed_bytes: u64,
}

/// The WAL that recovery reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedWal {
    /// Where recovery begins.
    pub start_lsn: Lsn,
    /// Where the layer becomes consistent.
    pub consistent_lsn: Lsn,
    /// The first segment.
    pub first_segment: String,
    /// The last segment; for targets that only replay can find, the last one in the archive.
    pub last_segment: String,
    /// Number of segments.
    pub segment_count: u64,
    /// Timelines recovery passes, in order.
    pub timelines: Vec<TimelineId>,
}

/// What a restore will do.
#[derive(Clone, Debug, Serialize)]
pub struct RestorePlan {
    /// Version of this record.
    pub schema: u32,
    /// The cluster's name in the repository.
    pub cluster: String,
    /// The layer that is restored.
    pub label: String,
    /// The type of the target.
    pub target_type: String,
    /// Its value.
    pub target: Option<String>,
    /// The timeline recovery follows.
    pub timeline: TimelineId,
    /// The chain, newest layer first.
    pub layers: Vec<PlannedLayer>,
    /// The WAL.
    pub wal: PlannedWal,
    /// The data directory.
    pub directory: PathBuf,
    /// The directory of each tablespace.
    pub tablespaces: BTreeMap<u32, PathBuf>,
    /// The directory for WAL, when it is outside of the data directory.
    pub wal_directory: Option<PathBuf>,
    /// Files and directories.
    pub files: u64,
    /// Sum of the sizes of all files.
    pub cluster_bytes: u64,
    /// Bytes written; the rest of `cluster_bytes` are holes.
    pub write_bytes: u64,
    /// Bytes of frames fetched; of a delta restore, at most.
    pub fetch_bytes: u64,
    /// Frames fetched and decoded, each once.
    pub frames: u64,
    /// Read amplification: bytes of frames fetched for a byte of pages that are wanted. What is above 1 are pages that
    /// newer layers have overwritten, in frames of which others still count.
    pub read_amplification: f64,
    /// How what is there and what is in the layers come together.
    pub method: Method,
    /// Bytes that are there and will be read for comparison.
    pub existing_bytes: u64,
    /// Whether this completes a restore that was interrupted.
    pub resumes: bool,
    /// What the user should know.
    pub notes: Vec<String>,
    #[serde(skip)]
    pub(super) inner: PlanInner,
}

/// What only [`super::execute`] needs.
#[derive(Clone, Debug)]
pub(super) struct PlanInner {
    pub(super) cluster: ClusterName,
    pub(super) chain: Vec<Arc<Layer>>,
    pub(super) layout: Layout,
    pub(super) options: RestoreOptions,
    pub(super) major: Major,
    pub(super) segment_size: WalSegmentSize,
    /// Segments that make the layer consistent.
    pub(super) wal_parts: Vec<(TimelineId, u64, u64)>,
    /// Bytes written below each directory, as [`Layout::directories`].
    pub(super) space: Vec<u64>,
    /// Bytes of all files together, and how many files and directories there are.
    pub(super) extent: (u64, u64),
}

/// Plans a restore. Reads the catalog, the archive's listing and the chain's indexes; looks at the destination.
///
/// # Errors
/// `Target` or `WalMissing` when the target cannot be reached, `Refused` when the destination is not fit, `Damaged`
/// when the chain is.
pub async fn plan(
    repository: &Repository,
    cluster: &ClusterName,
    mut options: RestoreOptions,
) -> Result<RestorePlan> {
    check_options(&options)?;
    let catalog = Catalog::load(repository, cluster).await?;
    let candidates = candidates(&catalog, cluster)?;
    let segment_size = segment_size(&catalog, options.label.as_ref())?;
    let archive = archived_wal(repository, cluster, segment_size).await?;
    if let Some(label) = &options.label {
        // Says more than selection can when the layer is unfinished or damaged.
        catalog.layer(label)?;
    }
    let request = Request {
        target: &options.target,
        timeline: options.timeline,
        label: options.label.as_ref(),
        now: Timestamp::now(),
    };
    let mut selection = select(&candidates, &request, &archive)?;
    let chain: Vec<Arc<Layer>> = catalog
        .chain(&candidates[selection.candidate].label)?
        .into_iter()
        .cloned()
        .map(Arc::new)
        .collect();
    let layer = Arc::clone(&chain[0]);
    let major = check_control(&layer)?;
    selection.notes.extend(layer_notes(&catalog, &layer));
    if options.method == Method::Delta {
        follow_links(&mut options, &layer.manifest.tablespaces);
    }
    let layout = Layout::new(
        &options.directory,
        options.wal_directory.as_deref(),
        &layer.manifest.tablespaces,
        &options.tablespaces,
    )?;
    let condition = inspect(&layout, cluster, &layer, options.method)?;
    let inventory = match condition {
        Condition::Existing => {
            refuse_unarchived_wal(&layout.data, &archive, segment_size)?;
            Inventory::of(&layout, &prefixes(&layout), &layer.manifest.cluster)?
        }
        _ => Inventory::default(),
    };
    let source = Source {
        repository: repository.clone(),
        cluster: cluster.clone(),
        runtime: Handle::current(),
    };
    let survey = survey_of(source, chain.clone(), &layout).await?;
    let own = own_wal(&layer, &selection, &archive);
    let inner = PlanInner {
        cluster: cluster.clone(),
        layout,
        options,
        major,
        segment_size,
        wal_parts: own,
        space: survey.space(segment_size, &layer, &inventory.taken),
        extent: (survey.cluster_bytes, survey.files),
        chain,
    };
    let mut plan = describe(inner, &selection, &survey, &condition);
    plan.existing_bytes = inventory.size_bytes;
    if condition_needs_space(&plan) {
        plan.inner.layout.check_space(&plan.inner.space)?;
    }
    Ok(plan)
}

fn check_options(options: &RestoreOptions) -> Result<()> {
    if options.shares.is_none() || options.method == Method::Overlay {
        return Ok(());
    }
    let what = "a restore in place or by layers cannot be shared";
    Err(Error::new(Kind::Usage, what).hint("leave out --shares, or --delta and --unpack-order"))
}

/// What the user should know of the layer.
fn layer_notes(catalog: &Catalog, layer: &Layer) -> Vec<String> {
    let damaged = catalog.damaged.iter();
    let mut notes: Vec<String> = damaged
        .map(|(label, error)| format!("layer {label} cannot be used: {error}"))
        .collect();
    let manifest = &layer.manifest;
    if !manifest.corrupt_pages.is_empty() {
        notes.push(format!(
            "layer {} has {} pages that were corrupt when they were backed up",
            layer.label,
            manifest.corrupt_pages.len()
        ));
    }
    if manifest.tablespaces_in_place() {
        notes.push(
            "a tablespace lies within the data directory: allow_in_place_tablespaces is turned on, because the server \
             does not finish recovery without it"
                .to_owned(),
        );
    }
    notes
}

/// Looks at the destination as the method asks.
pub(super) fn inspect(
    layout: &Layout,
    cluster: &ClusterName,
    layer: &Layer,
    method: Method,
) -> Result<Condition> {
    let label = layer.label.as_str();
    match method {
        Method::Delta => {
            layout.inspect_in_place((cluster.as_str(), label), &layer.manifest.cluster)
        }
        Method::Overlay | Method::OldestFirst => layout.inspect(label),
    }
}

/// An interrupted restore has already taken part of the room; it is checked again once that is cleared away.
fn condition_needs_space(plan: &RestorePlan) -> bool {
    !plan.resumes
}

fn candidates(catalog: &Catalog, cluster: &ClusterName) -> Result<Vec<Candidate>> {
    let candidate = |layer: &Layer| Candidate {
        label: layer.label.clone(),
        start: layer.manifest.start_lsn,
        stop: layer.manifest.stop_lsn,
        timeline: layer.manifest.timeline,
        finished_at: layer.manifest.finished_at,
    };
    // A layer whose chain is broken cannot be restored; naming it says why.
    let whole = catalog
        .layers
        .iter()
        .filter(|layer| catalog.chain(&layer.label).is_ok());
    let candidates: Vec<Candidate> = whole.map(candidate).collect();
    if candidates.is_empty() {
        if let Some(layer) = catalog.layers.last() {
            catalog.chain(&layer.label)?;
        }
        if let Some((label, error)) = catalog.damaged.last() {
            return Err(Error::new(
                Kind::Damaged,
                format!("could not use layer {label}: {error}"),
            ));
        }
        return Err(Error::new(
            Kind::NotFound,
            format!(
                "cluster \"{}\" has no complete backup to restore",
                cluster.as_str()
            ),
        )
        .hint("take one with \"pgstrata backup\"; \"pgstrata info\" shows what there is"));
    }
    Ok(candidates)
}

fn segment_size(
    catalog: &Catalog,
    label: Option<&pgstrata_layer::label::Label>,
) -> Result<WalSegmentSize> {
    if let Some(label) = label {
        catalog.chain(label)?;
    }
    let newest = catalog.layers.last();
    let layer = label.map_or(Ok(newest), |label| catalog.layer(label).map(Some))?;
    let Some(layer) = layer else {
        return Err(Error::new(
            Kind::NotFound,
            "there is no complete layer to restore",
        ));
    };
    Ok(WalSegmentSize::try_from(u64::from(
        layer.manifest.cluster.wal_segment_size,
    ))?)
}

/// Checks the layer's `pg_control` against its manifest; a server would refuse to start, or worse.
fn check_control(layer: &Layer) -> Result<Major> {
    let manifest = &layer.manifest;
    let control = ControlFile::parse(&manifest.pg_control_bytes()?).map_err(|e| {
        Error::from(e).while_doing(format!(
            "could not use the pg_control of layer {}",
            layer.label
        ))
    })?;
    let identity = &manifest.cluster;
    let same = control.system_identifier == identity.system_identifier
        && control.major.get() == u32::from(identity.major)
        && control.block_size == identity.block_size
        && identity.block_size == BLOCK_BYTES
        && control.wal_segment_size.get() == u64::from(identity.wal_segment_size);
    match same {
        true => Ok(control.major),
        false => Err(Error::new(
            Kind::Damaged,
            format!(
                "the pg_control of layer {} is not that of the cluster its manifest names",
                layer.label
            ),
        )),
    }
}

/// The segments from the layer's start to its stop.
fn own_wal(
    layer: &Layer,
    selection: &Selection,
    archive: &ArchivedWal,
) -> Vec<(TimelineId, u64, u64)> {
    let manifest = &layer.manifest;
    let size = archive.segment_size();
    let stop = WalSegment::containing_end(manifest.timeline, manifest.stop_lsn, size).number;
    archive
        .coverage(&selection.history, manifest.start_lsn, Some(stop))
        .parts
}

/// Paths that do not lie in the data directory, with their directory's place in [`Layout::directories`].
pub(super) fn prefixes(layout: &Layout) -> Vec<(String, usize)> {
    let tablespaces = layout
        .tablespaces
        .keys()
        .map(|oid| format!("pg_tblspc/{oid}"));
    let wal = layout.wal.iter().map(|_| "pg_wal".to_owned());
    tablespaces.chain(wal).zip(1..).collect()
}

/// What is fetched of one layer.
#[derive(Clone, Copy, Debug, Default)]
struct Fetch {
    frames: u64,
    bytes: u64,
    needed_bytes: u64,
}

/// What the overlay adds up to.
#[derive(Debug, Default)]
struct Survey {
    files: u64,
    cluster_bytes: u64,
    write_bytes: u64,
    /// By layer of the chain.
    layers: Vec<Fetch>,
    /// Bytes by directory.
    roots: Vec<u64>,
}

/// As [`survey`], on a thread of its own.
async fn survey_of(source: Source, chain: Vec<Arc<Layer>>, layout: &Layout) -> Result<Survey> {
    let (prefixes, roots) = (prefixes(layout), layout.directories().len());
    tokio::task::spawn_blocking(move || survey(&source, &chain, &prefixes, roots))
        .await
        .map_err(|e| Error::new(Kind::Interrupted, format!("planning was stopped: {e}")))?
}

/// Lays the overlay once without reading pages: whatever is wrong with the indexes is found before anything is written.
fn survey(
    source: &Source,
    chain: &[Arc<Layer>],
    prefixes: &[(String, usize)],
    roots: usize,
) -> Result<Survey> {
    let mut survey = Survey {
        layers: vec![Fetch::default(); chain.len()],
        roots: vec![0; roots],
        ..Survey::default()
    };
    let streams = ChainEntries::new(&source.repository, &source.cluster, chain, &source.runtime);
    for planned in Overlay::new(streams) {
        let (file, _) = planned?;
        check_place(&file)?;
        survey.files += 1;
        survey.cluster_bytes += file.size_bytes;
        let zeros: u64 = file.zero_runs.iter().map(|run| u64::from(run.count)).sum();
        let written = file
            .size_bytes
            .saturating_sub(zeros * u64::from(BLOCK_BYTES));
        survey.write_bytes += written;
        let root = prefixes.iter().find(|(prefix, _)| {
            file.path
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.starts_with('/'))
        });
        // A file takes whole blocks of the file system, of 4 KiB as a rule.
        survey.roots[root.map_or(0, |(_, root)| *root)] += written.next_multiple_of(4096);
        for piece in &file.pieces {
            let layer = &mut survey.layers[piece.layer];
            let (length, pages) = (u64::from(piece.frame.length), piece.frame.page_count());
            let taken: u64 = piece
                .take
                .iter()
                .map(|take| u64::from(take.run.count))
                .sum();
            layer.frames += 1;
            layer.bytes += length;
            layer.needed_bytes += length * taken / pages.max(1);
        }
    }
    Ok(survey)
}

/// Paths that a restore writes itself must not come from an index: a server could start too early or wrongly.
fn check_place(file: &FilePlan) -> Result<()> {
    const OURS: [&str; 7] = [
        "global/pg_control",
        "backup_label",
        "tablespace_map",
        "backup_manifest",
        "recovery.signal",
        "standby.signal",
        "postmaster.pid",
    ];
    let wrong = OURS.contains(&file.path.as_str())
        || file.path == super::MARKER
        || file.path == SHARES
        || (file.kind != EntryKind::Directory
            && matches!(file.path.as_str(), "pg_wal" | "pg_tblspc" | "global"));
    match wrong {
        false => Ok(()),
        true => Err(Error::new(
            Kind::Damaged,
            format!(
                "the index has a file \"{}\", which no backup stores",
                file.path
            ),
        )),
    }
}

impl Survey {
    /// Bytes needed below each directory, the layer's own WAL included.
    fn space(&self, segment_size: WalSegmentSize, layer: &Layer, taken: &[u64]) -> Vec<u64> {
        let manifest = &layer.manifest;
        let first = manifest.start_lsn.segment(segment_size);
        let last = manifest.stop_lsn.segment(segment_size);
        let wal = (last - first.min(last) + 1).saturating_mul(segment_size.get());
        let mut space = self.roots.clone();
        // The directory for WAL, when there is one, is the last.
        let tablespaces = manifest
            .tablespaces
            .iter()
            .filter(|t| t.location.is_some())
            .count();
        let roots = self.roots.len();
        let root = if roots > tablespaces + 1 {
            roots - 1
        } else {
            0
        };
        space[root] = space[root].saturating_add(wal);
        // What is there is overwritten or removed first.
        for (space, taken) in space.iter_mut().zip(taken) {
            *space = space.saturating_sub(*taken);
        }
        space
    }
}

fn describe(
    inner: PlanInner,
    selection: &Selection,
    survey: &Survey,
    condition: &Condition,
) -> RestorePlan {
    let layer = Arc::clone(&inner.chain[0]);
    let size = inner.segment_size;
    let parts = &selection.coverage.parts;
    let name = |part: Option<&(TimelineId, u64, u64)>, last: bool| {
        let segment = part.map(|&(timeline, first, end)| WalSegment {
            timeline,
            number: if last { end } else { first },
        });
        segment.map_or(String::new(), |segment| segment.file_name(size))
    };
    let layers = inner.chain.iter().zip(&survey.layers);
    let sum = |count: fn(&Fetch) -> u64| survey.layers.iter().map(count).sum::<u64>();
    RestorePlan {
        schema: SCHEMA,
        cluster: inner.cluster.as_str().to_owned(),
        label: layer.label.to_string(),
        target_type: inner.options.target.kind().to_owned(),
        target: inner.options.target.value(),
        timeline: selection.history.timeline(),
        layers: layers
            .map(|(layer, fetch)| PlannedLayer {
                label: layer.label.to_string(),
                finished_at: layer.manifest.finished_at,
                frames: fetch.frames,
                fetch_bytes: fetch.bytes,
                needed_bytes: fetch.needed_bytes,
            })
            .collect(),
        wal: PlannedWal {
            start_lsn: layer.manifest.start_lsn,
            consistent_lsn: layer.manifest.stop_lsn,
            first_segment: name(parts.first(), false),
            last_segment: name(parts.last(), true),
            segment_count: parts.iter().map(|(_, first, last)| last - first + 1).sum(),
            timelines: parts.iter().map(|(timeline, ..)| *timeline).collect(),
        },
        directory: inner.layout.data.clone(),
        tablespaces: inner.layout.tablespaces.clone(),
        wal_directory: inner.layout.wal.clone(),
        files: survey.files,
        cluster_bytes: survey.cluster_bytes,
        write_bytes: survey.write_bytes,
        fetch_bytes: sum(|fetch| fetch.bytes),
        frames: sum(|fetch| fetch.frames),
        read_amplification: ratio(sum(|fetch| fetch.bytes), sum(|fetch| fetch.needed_bytes)),
        method: inner.options.method,
        existing_bytes: 0,
        resumes: matches!(condition, Condition::Incomplete | Condition::Complete),
        notes: selection.notes.clone(),
        inner,
    }
}

/// `one / other` to three decimals; 1 when there is nothing to compare.
fn ratio(one: u64, other: u64) -> f64 {
    let thousandths = u128::from(one) * 1000 / u128::from(other.max(1));
    match other {
        0 => 1.0,
        _ => f64::from(u32::try_from(thousandths).unwrap_or(u32::MAX)) / 1000.0,
    }
}
