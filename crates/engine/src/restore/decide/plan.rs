//! The plan of a restore: all that is decided before anything is written, as data.

use std::collections::BTreeMap;
use std::iter;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::entry::BLOCK_BYTES;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_pgdata::wal::{WalSegment, WalSegmentSize};
use pgstrata_pgdata::{ControlFile, Major};
use pgstrata_store::archive::{self, Archive, ArchivedWal};
use pgstrata_store::catalog::{self, Catalog, KeptParts, Layer, Loss};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use serde::Serialize;

use super::branches::refuse_leaving;
use super::histories::{passed_over, require_histories, require_way_known};
use super::locate::Locator;
use super::own_wal::require_fit;
use super::select::{BesideLayer, Candidate, Lost, Request, Selection, Told};
use super::servers::one_server;
use super::survey::{self, LayerFetch, Survey};
use crate::frames::Chain;
use crate::health;
use crate::restore::place::in_place::{self, Inventory};
use crate::restore::place::layout::{Condition, Layout, Seen, resolve, version_directory};
use crate::restore::place::links::Links;
use crate::restore::place::unarchived::{refuse_received_wal, refuse_unarchived_wal};
use crate::restore::{ArchiveMode, Method, RestoreOptions, Target, TargetAction};
use crate::server::apart::{answering, require_apart, require_apart_from};

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
    /// Whether the restored server archives.
    pub archive_mode: ArchiveMode,
    /// Whether this completes a restore that was interrupted.
    pub resumes: bool,
    /// What the user should know.
    pub notes: Vec<String>,
    #[serde(skip)]
    pub(crate) inner: PlanInner,
}

/// What only [`crate::restore::execute`] needs.
#[derive(Clone, Debug)]
pub(crate) struct PlanInner {
    pub(crate) cluster: ClusterRepository,
    pub(crate) record: ClusterRecord,
    pub(crate) chain: Vec<Arc<Layer>>,
    /// What planning has read of the indexes.
    pub(crate) kept: KeptParts,
    pub(crate) layout: Layout,
    pub(crate) options: RestoreOptions,
    pub(crate) major: Major,
    pub(crate) segment_size: WalSegmentSize,
    pub(crate) archive_mode: ArchiveMode,
    /// Which links of what is there are its own.
    pub(crate) links: Links,
    /// What is there to be changed in place.
    pub(crate) seen: Seen,
    /// Segments that make the layer consistent.
    pub(crate) wal_parts: Vec<(TimelineId, u64, u64)>,
    /// Bytes written below each directory, as [`Layout::directories`].
    pub(crate) space: Vec<u64>,
    /// Where a recovery to the end of the archive is told to stop.
    pub(crate) stop_before: Option<Lsn>,
}

/// Plans a restore. Reads the catalog, the archive's listing and the chain's indexes; looks at the destination.
///
/// # Errors
/// `Target` or `WalMissing` when the target cannot be reached, `Refused` when the destination is not fit, `Damaged`
/// when the chain is.
pub async fn plan(cluster: &ClusterRepository, mut options: RestoreOptions) -> Result<RestorePlan> {
    check_same_timeline(&options)?;
    check_options(&options)?;
    let Chosen {
        chain,
        mut selection,
        archive,
        notes,
        major,
        losses,
        record,
    } = choose(cluster, &options).await?;
    require_opened(cluster, &chain).await?;
    selection.notes.extend(notes);
    let segment_size = archive.segment_size();
    let layer = Arc::clone(&chain[0]);
    let links = own_links(&mut options, &layer)?;
    let layout = Layout::new(
        &options.directory,
        options.wal_directory.as_deref(),
        options.config_directory.as_deref(),
        &layer.manifest.tablespaces,
        &options.tablespaces,
    )?;
    require_all_apart(cluster, &options, &layout).await?;
    let condition = inspect(&layout, &cluster.name, &layer, &options, &links)?;
    let inventory = match condition {
        Condition::Existing => {
            refuse_leaving(&layout.data, &options, &selection.history)?;
            let held = Archive::new(cluster, record.clone())?;
            let unknown = refuse_unarchived_wal(&layout.data, &held, &archive).await?;
            let received = refuse_received_wal(&layout.data, &held, &archive, &options.target)?;
            selection.notes.extend(unknown.into_iter().chain(received));
            survey::require_digests(&chain, &losses)?;
            Inventory::of(&layout, &prefixes(&layout), &layer.manifest.cluster)?
        }
        _ => Inventory::default(),
    };
    let archive_mode = archive_mode(&options, &condition, &layout, (&links, &cluster.name))?;
    selection.notes.extend(copy_notes(archive_mode, &options));
    selection.notes.extend(stop_notes(&options, &selection));
    let kept = KeptParts::default();
    let whole = Chain::new(cluster, chain.clone()).keeping(&kept);
    let inventory = survey::removable(inventory, &whole).await?;
    let survey = survey::survey_unless_removed(whole, losses, &layout).await?;
    selection.notes.extend(survey.outside_note(&layout)?);
    let own = own_wal(&layer, &selection, &archive);
    let seen = seen(&condition, &layout, &options)?;
    let wal_root = wal_root(&layout);
    let inner = PlanInner {
        cluster: cluster.clone(),
        record,
        kept,
        layout,
        options,
        major,
        segment_size,
        wal_parts: own,
        archive_mode,
        links,
        seen,
        space: survey.space(segment_size, &layer, &inventory, wal_root),
        stop_before: selection.stop_before,
        chain,
    };
    let mut plan = describe(inner, &selection, &survey, &condition);
    plan.existing_bytes = inventory.size_bytes;
    require_room_and_wal(&plan, &condition).await?;
    Ok(plan)
}

async fn require_all_apart(
    cluster: &ClusterRepository,
    options: &RestoreOptions,
    layout: &Layout,
) -> Result<()> {
    let others = answering(&options.others).await;
    for repository in iter::once(&cluster.repository).chain(&others) {
        require_apart(repository, &layout.data).await?;
        require_apart_from(repository, layout.directories())?;
    }
    Ok(())
}

/// Nothing is planned, and no directory made, for who could not read the pages.
async fn require_opened(cluster: &ClusterRepository, chain: &[Arc<Layer>]) -> Result<()> {
    let Some(ring) = cluster.sealing().await?.ring() else {
        return Ok(());
    };
    for layer in chain {
        let Some(encryption) = &layer.manifest.encryption else {
            continue;
        };
        let opened = ring.require_reader(encryption.epoch);
        let label = &layer.label;
        opened.map_err(|error| error.while_doing(format!("layer {label} cannot be restored")))?;
    }
    Ok(())
}

/// The links of what is there that are followed, as the options then are.
fn own_links(options: &mut RestoreOptions, layer: &Layer) -> Result<Links> {
    if options.method != Method::Delta {
        return Ok(Links::default());
    }
    let links = Links::of(&resolve(&options.directory)?, options.vouched)?;
    links.follow(options, &layer.manifest.tablespaces)?;
    Ok(links)
}

/// What is there to be changed in place.
fn seen(condition: &Condition, layout: &Layout, options: &RestoreOptions) -> Result<Seen> {
    match condition {
        Condition::Existing => Seen::of(&layout.data, options.vouched),
        _ => Ok(Seen::default()),
    }
}

/// Where among [`Layout::directories`] the WAL goes.
fn wal_root(layout: &Layout) -> usize {
    let own = layout.wal.as_ref();
    own.map_or(0, |_| layout.tablespaces.len() + 1)
}

/// Nobody gets a second server on one timeline without having asked for it.
fn check_same_timeline(options: &RestoreOptions) -> Result<()> {
    let goes_on = options.target == Target::None;
    if goes_on == options.same_timeline {
        return Ok(());
    }
    let error = match goes_on {
        true => Error::new(
            Kind::Usage,
            "a restore of type none goes on with the timeline of its source: what either writes from there on has the same LSNs and WAL file names, and other contents",
        )
        .hint("use --target-type immediate --target-action promote, which ends at the same point and begins a timeline; or say --same-timeline if that is wanted all the same"),
        false => Error::new(
            Kind::Usage,
            "--same-timeline is for a restore of type none: every other one begins a timeline of its own, or follows its primary",
        ),
    };
    Err(error)
}

/// What is restored, and the WAL that goes with it.
struct Chosen {
    /// The newest layer first.
    chain: Vec<Arc<Layer>>,
    selection: Selection,
    archive: ArchivedWal,
    /// What the user should know of the layer.
    notes: Vec<String>,
    major: Major,
    /// What the layers of the chain have lost, which nobody chooses who was not told to.
    losses: Vec<Option<Loss>>,
    record: ClusterRecord,
}

/// Chooses the layer and the way from it to the target.
async fn choose(cluster: &ClusterRepository, options: &RestoreOptions) -> Result<Chosen> {
    // Says what no listing says: a format that this version does not know.
    let reading = (cluster.record(), catalog::examine_as_verified(cluster));
    let (record, catalog, objects) =
        futures::join!(reading.0, reading.1, archive::objects(cluster));
    let (record, catalog) = (record?, catalog?);
    let (mut candidates, mut lost) = candidates(&catalog, options.label.as_ref());
    if candidates.is_empty() {
        return Err(nothing_to_restore(&catalog, &cluster.name));
    }
    let segment_size = segment_size(&catalog, options.label.as_ref())?;
    let own = catalog
        .layers
        .iter()
        .map(|layer| layer.own_wal(segment_size));
    let (starts, ends): (Vec<_>, Vec<_>) = own.unzip();
    let held = Archive::new(cluster, record.clone())?;
    let mut archive = held
        .list_beside(objects?, ends.into_iter(), starts.into_iter())
        .await?;
    held.read_histories(&mut archive).await?;
    set_aside(options, (&mut candidates, &mut lost), &catalog, &archive);
    let unreadable = archive.unreadable_histories();
    require_way_known(&options.target, options.timeline, unreadable)?;
    if let Some(label) = &options.label {
        // Says more than selection can when the layer is unfinished or damaged.
        catalog.layer(label)?;
    }
    let request = Request {
        target: &options.target,
        timeline: options.timeline,
        label: options.label.as_ref(),
        lost: &lost,
        skip_damaged: options.vouched.skip_damaged,
        told: &Told::default(),
    };
    let locator = Locator {
        candidates: &candidates,
        archive: &held,
        listed: &archive,
        major: Major::try_from(u32::from(record.major))?,
        inclusive: options.inclusive,
    };
    let chosen = locator.select(&request).await.and_then(|selection| {
        require_histories(&selection, &request, &archive, &candidates)?;
        one_server(selection, &request, &archive, &candidates)
    });
    let mut selection = match chosen {
        Ok(selection) => selection,
        Err(error) => {
            let layers = catalog.layers.into_iter().map(Arc::new);
            let layers: Vec<Arc<Layer>> = layers.collect();
            return Err(catalog::unless_removed(cluster, &layers, error).await);
        }
    };
    selection.notes.extend(passed_over(&selection, &archive));
    let chain = catalog.links(&candidates[selection.candidate].label)?;
    let losses = chain.iter().map(|layer| catalog.losses.get(&layer.label));
    let losses: Vec<Option<Loss>> = losses.map(Option::<&Loss>::cloned).collect();
    let chain: Vec<Arc<Layer>> = chain.into_iter().cloned().map(Arc::new).collect();
    let mut notes = layer_notes(&catalog, &chain[0]);
    notes.extend(loss_notes(&chain, &losses));
    Ok(Chosen {
        major: check_control(&chain[0], record.system_identifier)?,
        notes,
        losses,
        chain,
        selection,
        archive,
        record,
    })
}

/// What the layers of the chain have lost.
fn loss_notes(chain: &[Arc<Layer>], losses: &[Option<Loss>]) -> Vec<String> {
    let lossy = chain.iter().zip(losses);
    let notes = lossy.filter_map(|(layer, loss)| {
        let what = loss.as_ref()?.describe();
        let label = &layer.label;
        Some(format!(
            "layer {label} has lost objects, of which this restore needs none: {what}"
        ))
    });
    notes.collect()
}

fn check_options(options: &RestoreOptions) -> Result<()> {
    if options.archive_mode == Some(ArchiveMode::Keep) && options.target == Target::None {
        let what =
            "a restore of type none goes on with the timeline of its source and cannot archive";
        return Err(Error::new(Kind::Usage, what)
            .hint("Leave out --archive-mode; turn archiving on later, for a new repository."));
    }
    Ok(())
}

/// Whether the restored server archives. A copy that did, into the repository of its source, would branch the history
/// or, on the same timeline, stand in the way of the source's WAL.
fn archive_mode(
    options: &RestoreOptions,
    condition: &Condition,
    layout: &Layout,
    (links, cluster): (&Links, &ClusterName),
) -> Result<ArchiveMode> {
    match (options.archive_mode, condition) {
        (Some(told), _) => Ok(told),
        (None, Condition::Existing) if options.target != Target::None => {
            in_place::archive_mode(&layout.data, links.directory_known, cluster)
        }
        (None, _) => Ok(ArchiveMode::Off),
    }
}

/// What a copy does not do as its source does.
fn copy_notes(mode: ArchiveMode, options: &RestoreOptions) -> Vec<String> {
    if mode == ArchiveMode::Keep {
        return Vec::new();
    }
    let mut notes = vec![
        "archiving is off in this copy (archive_mode = 'off' in its postgresql.auto.conf); should the server replace its \
         source, turn it on: ALTER SYSTEM SET archive_mode = 'on', and restart"
            .to_owned(),
    ];
    if options.target != Target::Standby {
        notes.push(
            "this copy waits for no synchronous standby and applies no subscription (postgresql.auto.conf); should the \
             server replace its source: ALTER SYSTEM RESET synchronous_standby_names, ALTER SYSTEM RESET \
             max_logical_replication_workers, and restart"
                .to_owned(),
        );
    }
    notes
}

/// What the server does at the target, for those who would take it for done.
fn action_note(options: &RestoreOptions) -> Option<String> {
    let note = match options.action {
        _ if !options.target.has_stop_point() => return None,
        TargetAction::Promote => return None,
        TargetAction::Pause => {
            "the server will pause at the target, open for queries (with hot_standby = off it will shut down): look \
             whether the state is the right one, then open it for writes with SELECT pg_wal_replay_resume(); with \
             --target-action promote it does not pause"
        }
        TargetAction::Shutdown => {
            "the server will shut down at the target, and again whenever it is started, until recovery_target_action in \
             its postgresql.auto.conf is 'promote' or 'pause'"
        }
    };
    Some(note.to_owned())
}

/// What the server does at the target, and what stays in its configuration.
fn stop_notes(options: &RestoreOptions, selection: &Selection) -> Vec<String> {
    let mut notes = Vec::from_iter(action_note(options));
    if options.target.has_stop_point() || selection.stop_before.is_some() {
        notes.push(PREFETCH_NOTE.to_owned());
    }
    notes
}

const PREFETCH_NOTE: &str = "recovery reads no WAL ahead of what it replays (recovery_prefetch = 'off'), because damage behind the target must not \
     end it; should the server replace its source: ALTER SYSTEM RESET recovery_prefetch, and reload";

/// What the user should know of the layer.
fn layer_notes(catalog: &Catalog, layer: &Layer) -> Vec<String> {
    let found = health::found_damaged(catalog, &layer.label);
    let manifest = &layer.manifest;
    let stamp = manifest.state_stamp();
    let begun = catalog.unfinished.iter().filter(|unfinished| {
        !unfinished.was_merged && unfinished.label.own_stamp() > stamp.as_str()
    });
    let mut notes: Vec<String> = begun
        .map(|unfinished| {
            let label = &unfinished.label;
            format!("layer {label} is newer and has no manifest: its backup is at work, or never finished")
        })
        .collect();
    notes.extend(found.map(|found| {
        format!(
            "{found}: layer {} is restored as far as it can be read, because it was named",
            layer.label
        )
    }));
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
pub(crate) fn inspect(
    layout: &Layout,
    cluster: &ClusterName,
    layer: &Layer,
    options: &RestoreOptions,
    links: &Links,
) -> Result<Condition> {
    match options.method {
        Method::Delta => layout.inspect_in_place(cluster, layer, options.vouched, links),
        Method::Overlay => {
            let version = version_directory(&layer.manifest.cluster);
            layout.inspect(layer.label.as_str(), &options.asked(), &version)
        }
    }
}

/// What is looked at last, because WAL may be much to read.
async fn require_room_and_wal(plan: &RestorePlan, condition: &Condition) -> Result<()> {
    // One into a new directory has taken part of the room by then; it is checked again once that is cleared away.
    if !plan.resumes || *condition == Condition::Existing {
        plan.inner.layout.check_space(&plan.inner.space)?;
    }
    match condition {
        Condition::Existing => require_fit(&plan.inner).await,
        _ => Ok(()),
    }
}

/// The layers that can be restored, and those that cannot, oldest first. Of the layer that is `named` it is found out
/// later whether this restore needs what was lost.
pub(super) fn candidates(catalog: &Catalog, named: Option<&Label>) -> (Vec<Candidate>, Vec<Lost>) {
    let candidate = |layer: &Layer| Candidate {
        label: layer.label.clone(),
        start: layer.manifest.start_lsn,
        stop: layer.manifest.stop_lsn,
        timeline: layer.manifest.timeline,
        finished_at: layer.manifest.finished_at,
        stamp: layer.manifest.state_stamp(),
        beside: layer.manifest.beside.as_ref().map(|beside| BesideLayer {
            label: beside.layer.label.clone(),
            reason: beside.reason.clone(),
            is_there: catalog.layers.standing_for(&beside.layer).is_some(),
        }),
        from_standby: layer.manifest.from_standby,
    };
    let (mut candidates, mut lost) = (Vec::new(), Vec::new());
    for layer in &catalog.layers {
        let chain = match named == Some(&layer.label) {
            true => catalog.chain_length(&layer.label).map(drop),
            false => usable(catalog, &layer.label),
        };
        match chain {
            Ok(_) => candidates.push(candidate(layer)),
            Err(error) => lost.push(Lost {
                label: layer.label.clone(),
                kind: error.kind(),
                why: error.to_string(),
                known: Some(candidate(layer)),
            }),
        }
    }
    // What was merged into a layer that can be read is not missed.
    let merged = |label: &str| {
        let mut layers = catalog.layers.iter();
        layers.any(|layer| layer.manifest.replaces.iter().any(|one| one.label == label))
    };
    let damaged = catalog.damaged.iter();
    for (label, error) in damaged.filter(|(label, _)| !merged(label.as_str())) {
        lost.push(Lost {
            label: label.clone(),
            kind: error.kind(),
            why: error.to_string(),
            known: None,
        });
    }
    lost.sort_by(|one, other| one.label.own_stamp().cmp(other.label.own_stamp()));
    (candidates, lost)
}

/// Why a layer is not to be taken which nobody has named.
fn usable(catalog: &Catalog, label: &Label) -> Result<()> {
    catalog.whole(label)?;
    match health::found_damaged(catalog, label) {
        None => Ok(()),
        Some(found) => Err(Error::new(Kind::Damaged, found)
            .hint("name the layer to restore it all the same: it may be in order again")),
    }
}

/// Moves the layers whose own WAL is not there to those that cannot be restored, when those are passed over.
fn set_aside(
    options: &RestoreOptions,
    (candidates, lost): (&mut Vec<Candidate>, &mut Vec<Lost>),
    catalog: &Catalog,
    archive: &ArchivedWal,
) {
    if !options.vouched.skip_damaged || options.label.is_some() {
        return;
    }
    candidates.retain(|candidate| {
        let Ok(layer) = catalog.layer(&candidate.label) else {
            return true;
        };
        let Some(why) = health::problem(catalog, layer, Some(archive)) else {
            return true;
        };
        lost.push(Lost {
            label: candidate.label.clone(),
            kind: Kind::WalMissing,
            why,
            known: Some(candidate.clone()),
        });
        false
    });
    lost.sort_by(|one, other| one.label.own_stamp().cmp(other.label.own_stamp()));
}

fn nothing_to_restore(catalog: &Catalog, cluster: &ClusterName) -> Error {
    let newest = catalog.layers.last();
    if let Some(error) = newest.and_then(|layer| usable(catalog, &layer.label).err()) {
        return error;
    }
    if let Some((label, error)) = catalog.damaged.last() {
        return Error::new(
            error.kind(),
            format!("could not use layer {label}: {error}"),
        );
    }
    Error::new(
        Kind::NotFound,
        format!(
            "cluster \"{}\" has no complete backup to restore",
            cluster.as_str()
        ),
    )
    .hint("take one with \"pgstrata backup\"; \"pgstrata info\" shows what there is")
}

fn segment_size(catalog: &Catalog, label: Option<&Label>) -> Result<WalSegmentSize> {
    if let Some(label) = label {
        catalog.chain_length(label)?;
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

/// Checks the layer's `pg_control` against its manifest; a server would refuse to start, or worse. Both are of the
/// cluster that the repository has under this name.
fn check_control(layer: &Layer, system_identifier: u64) -> Result<Major> {
    let manifest = &layer.manifest;
    let control = ControlFile::parse(&manifest.pg_control_bytes()?).map_err(|e| {
        Error::from(e).while_doing(format!(
            "could not use the pg_control of layer {}",
            layer.label
        ))
    })?;
    let identity = &manifest.cluster;
    let same = control.system_identifier == identity.system_identifier
        && system_identifier == identity.system_identifier
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
    let (_, last) = layer.own_wal(archive.segment_size());
    let start = layer.manifest.start_lsn;
    archive
        .coverage(&selection.history, start, Some(last.number))
        .parts
}

/// Paths that do not lie in the data directory, with their directory's place in [`Layout::directories`].
pub(crate) fn prefixes(layout: &Layout) -> Vec<(String, usize)> {
    let tablespaces = layout
        .tablespaces
        .keys()
        .map(|oid| format!("pg_tblspc/{oid}"));
    let wal = layout.wal.iter().map(|_| "pg_wal".to_owned());
    tablespaces.chain(wal).zip(1..).collect()
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
    let sum = |count: fn(&LayerFetch) -> u64| survey.layers.iter().map(count).sum::<u64>();
    RestorePlan {
        cluster: inner.cluster.name.as_str().to_owned(),
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
        archive_mode: inner.archive_mode,
        resumes: matches!(condition, Condition::Incomplete | Condition::Complete)
            || inner.seen.marked,
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
