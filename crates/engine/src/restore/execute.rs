//! Obeys a plan.
//!
//! Order: directories and markers; files, page by page; label, map, links, settings, signal and lineage; everything
//! durable; `pg_control`; markers gone. Killed anywhere before `pg_control`, no server starts from what is there, and the same
//! restore begins anew; killed after it, only markers are left, and the same restore removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use jiff::Timestamp;
use pgstrata_layer::lineage::FILE_NAME;
use pgstrata_layer::outside;
use pgstrata_layer::overlay::Overlay;
use pgstrata_layer::restoring::RestoreRecord;
use pgstrata_pgdata::FileChecksum;
use pgstrata_pgdata::backup_manifest::WalRange;
use pgstrata_pgdata::exclude::empty_wal_directories;
use pgstrata_pgdata::label::{BackupLabel, TablespaceMap};
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_store::catalog::{self, Restoring, WRITTEN_BY, host_name};
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;
use rustix::fs::{AtFlags, Mode, OFlags, chownat};
use serde::Serialize;

use super::copy::compare::Comparison;
use super::copy::listing::ManifestSink;
use super::copy::wal::WalBeside;
use super::copy::write::{AUTO_CONF, Writer};
use super::decide::plan::{PlanInner, RestorePlan, inspect, prefixes};
use super::finish::config::{Configuration, Entry};
use super::finish::durable;
use super::finish::lineage;
use super::place::beneath;
use super::place::claim::Claimed;
use super::place::in_place::{Inventory, belonging, needs_link, remember};
use super::place::layout::{Condition, Layout, MARKER, new_marker, read_marker, version_directory};
use super::place::own_settings::{archiving, has_delay, is_set, spellings_of_targets};
use super::settings::{KeptLine, RecoverySettings};
use super::{ArchiveMode, Method, Target, TargetAction};
use crate::frames::{Chain, FrameReader};
use crate::server::control::CONTROL_PATH;
use crate::server::recovery_left::names_target;

/// Name under which `pg_control` is written before it is renamed.
const CONTROL_TEMPORARY: &str = "global/pg_control.pgstrata";

/// What is said of a standby that was given no way to its primary, or has lost it.
const FOLLOWS_NOBODY: &str = "no primary_conninfo is in this standby's directory: it follows the archive alone, unless it is started with a configuration \
     elsewhere that has one; to stream, set it in postgresql.auto.conf";

/// What a restore has done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestoreReport {
    /// The layer.
    pub label: String,
    /// Files and directories.
    pub files: u64,
    /// Pages written.
    pub pages: u64,
    /// Bytes written to files of the cluster.
    pub written_bytes: u64,
    /// Bytes of these that went past the page cache.
    pub direct_bytes: u64,
    /// Bytes fetched from packs.
    pub fetched_bytes: u64,
    /// Frames decoded.
    pub frames: u64,
    /// How what was there and what is in the layers came together.
    pub method: Method,
    /// Bytes of files that were there, read for comparison.
    pub read_bytes: u64,
    /// Files and directories removed because they do not belong.
    pub removed: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether the restored server archives.
    pub archive_mode: ArchiveMode,
    /// What the user should know, what the plan says included.
    pub notes: Vec<String>,
}

/// Restores what `plan` says.
///
/// # Errors
/// Whatever stops it; the destination then cannot be started, and the same restore can be run again.
pub async fn execute(plan: &RestorePlan, progress: &Progress) -> Result<RestoreReport> {
    let started = Instant::now();
    progress.set_total(match plan.method {
        Method::Delta => plan.write_bytes.max(plan.existing_bytes),
        Method::Overlay => plan.write_bytes,
    });
    let task = Restore {
        chain: Chain::new(&plan.inner.cluster, plan.inner.chain.clone()).keeping(&plan.inner.kept),
        plan: plan.inner.clone(),
        timeline: plan.timeline,
        progress: progress.clone(),
        done: Tally::default(),
        kept_settings: Vec::new(),
        archived_by: None,
    };
    let saying = say_what_is_needed(plan);
    let running = async || {
        let done = tokio::task::spawn_blocking(move || task.run()).await;
        done.unwrap_or_else(|e| {
            let what = format!("the restore was stopped: {e}");
            Err(Error::new(Kind::Interrupted, what))
        })
    };
    let (restoring, done) = match plan.method {
        // It removes files, so it begins when the repository knows, and the layers stay.
        Method::Delta => {
            let restoring = saying.await;
            let done = match require_staying(plan, restoring.is_ok()).await {
                Ok(()) => running().await,
                Err(error) => Err(error),
            };
            (restoring, done)
        }
        Method::Overlay => futures::join!(saying, running()),
    };
    let (mut done, unsaid) = match (done, restoring) {
        (Ok(done), Ok(restoring)) => {
            restoring.copied().await;
            (done, None)
        }
        (Ok(done), Err(error)) => (done, Some(error)),
        (Err(error), restoring) => return Err(failed(plan, error, restoring).await),
    };
    done.notes.extend(unsaid.map(|error| {
        format!("the repository does not know of this restore: do not expire before recovery has ended ({error})")
    }));
    let reading = progress.read();
    Ok(RestoreReport {
        label: plan.label.clone(),
        files: done.files,
        pages: reading.pages,
        written_bytes: done.written_bytes,
        direct_bytes: done.direct_bytes,
        fetched_bytes: reading.stored_bytes,
        frames: done.frames,
        method: plan.method,
        read_bytes: done.read_bytes,
        removed: done.removed,
        seconds: started.elapsed().as_secs_f64(),
        archive_mode: plan.archive_mode,
        notes: plan.notes.iter().cloned().chain(done.notes).collect(),
    })
}

/// What has stopped the restore, and what becomes of it; the repository learns that, too.
async fn failed(plan: &RestorePlan, error: Error, restoring: Result<Restoring>) -> Error {
    let is_taken_apart = is_taken_apart(plan);
    if let Ok(restoring) = restoring {
        match is_taken_apart {
            // Nothing but the same restore makes a cluster of it again, and needs these layers.
            true => restoring.copied().await,
            false => restoring.failed().await,
        }
    }
    let (cluster, chain) = (&plan.inner.cluster, &plan.inner.chain);
    let error = catalog::unless_removed(cluster, chain, error).await;
    // Where it is there again, only markers are left.
    let is_without_control = !plan.directory.join(CONTROL_PATH).exists();
    match is_taken_apart && is_without_control {
        true => while_taken_apart(plan, error),
        false => error,
    }
}

/// So that what the restore needs is not expired before recovery has ended.
async fn say_what_is_needed(plan: &RestorePlan) -> Result<Restoring> {
    let record = RestoreRecord {
        layers: plan.inner.chain.iter().map(|l| l.reference()).collect(),
        start_lsn: plan.wal.start_lsn,
        timeline: plan.timeline.get(),
        host: host_name(),
        pid: std::process::id(),
        directory: plan.directory.display().to_string(),
        started_at: Timestamp::now(),
        written_by: WRITTEN_BY.to_owned(),
    };
    Restoring::begin(&plan.inner.cluster, &record).await
}

/// Refuses to take a directory apart for layers that somebody is removing. Where that was done before there is nothing to lose,
/// and out of the past nothing goes.
async fn require_staying(plan: &RestorePlan, is_known: bool) -> Result<()> {
    let inner = &plan.inner;
    let is_taken_apart = plan.resumes && inner.seen.control.is_none();
    if is_taken_apart || inner.cluster.repository.is_past() {
        return Ok(());
    }
    let goes_on = !matches!(inner.options.target, Target::Immediate | Target::None);
    catalog::require_staying(&inner.cluster, &inner.chain, goes_on, is_known).await
}

/// Whether a restore in place has begun to change the directory. One that cannot be read counts as changed.
fn is_taken_apart(plan: &RestorePlan) -> bool {
    plan.method == Method::Delta && !matches!(read_marker(&plan.directory), Ok(None))
}

/// What stopped a restore in place, for those who would start the server again.
fn while_taken_apart(plan: &RestorePlan, error: Error) -> Error {
    const AGAIN: &str = "run this again, or restore another layer (LABEL --delta)";
    let hint = match error.hint_text() {
        // No server is left of which a backup could be taken, as is advised then.
        Some(_) if error.kind() == Kind::Damaged => format!(
            "{AGAIN}; \"pgstrata verify\" shows what is damaged, and \"pgstrata copy\" brings it where another repository has it"
        ),
        Some(hint) => format!("{AGAIN}; as to what stopped it: {hint}"),
        None => AGAIN.to_owned(),
    };
    let what = format!(
        "\"{}\" cannot be started until a restore with --delta has completed",
        plan.directory.display()
    );
    error.while_doing(what).hint(hint)
}

struct Restore {
    chain: Chain,
    plan: PlanInner,
    timeline: TimelineId,
    progress: Progress,
    done: Tally,
    kept_settings: Vec<KeptLine>,
    /// What the directory that is changed in place said of archiving, when its server goes on with that.
    archived_by: Option<BTreeMap<String, Option<String>>>,
}

/// What has been done so far.
#[derive(Debug, Default)]
struct Tally {
    files: u64,
    frames: u64,
    written_bytes: u64,
    direct_bytes: u64,
    read_bytes: u64,
    removed: u64,
    notes: Vec<String>,
}

impl Restore {
    fn run(mut self) -> Result<Tally> {
        let label = self.plan.chain[0].label.to_string();
        let layout = self.plan.layout.clone();
        let condition = inspect(
            &layout,
            &self.plan.cluster.name,
            &self.plan.chain[0],
            &self.plan.options,
            &self.plan.links,
        )?;
        if condition == Condition::Complete {
            let claimed = Claimed::reopen(&layout)?;
            // Whoever placed the control file may have ended before that was durable.
            durable::sync(&claimed.roots)?;
            claimed.unmark()?;
            self.done.notes.push(
                "the restore was complete but for its markers, which were removed".to_owned(),
            );
            return Ok(self.done);
        }
        let mut marker = new_marker(
            &layout,
            self.chain.cluster.name.as_str(),
            &label,
            self.plan.options.asked(),
            Timestamp::now(),
        );
        let claimed = if condition == Condition::Existing {
            let identity = &self.plan.chain[0].manifest.cluster;
            let found = remember(
                self.plan.archive_mode,
                &self.plan.links,
                identity,
                &layout.data,
            )?;
            self.kept_settings.clone_from(&found.kept_settings);
            self.archived_by = self.archiving_of(&layout.data);
            marker.in_place = Some(found);
            // Others may have filled the disk since the plan was made, and the cluster is still whole.
            layout.check_space(&self.plan.space)?;
            let claimed = Claimed::claim_in_place(&layout, &marker, &self.plan.seen)?;
            self.remove_strays(&layout, &claimed)?;
            claimed
        } else {
            let version = version_directory(&self.plan.chain[0].manifest.cluster);
            Claimed::claim(&layout, &marker, &version)?
        };
        layout.check_space(&self.plan.space)?;
        self.write_cluster(&claimed, &layout, &condition)?;
        if layout.config.is_none() && !layout.data.join("postgresql.conf").exists() {
            self.done.notes.push(
                "the layer holds no postgresql.conf: the configuration of its server lies elsewhere".to_owned(),
            );
        }
        if claimed.belongs_to_root()? {
            self.done.notes.push(
                "all files belong to root, as the target directory does: PostgreSQL does not start as root, so give them \
                 to its user (chown -R)"
                    .to_owned(),
            );
        }
        durable::sync(&claimed.roots)?;
        self.place_control(&claimed)?;
        claimed.unmark()?;
        Ok(self.done)
    }

    /// Removes what the layer does not have.
    fn remove_strays(&mut self, layout: &Layout, claimed: &Claimed) -> Result<()> {
        let identity = &self.plan.chain[0].manifest.cluster;
        let inventory = Inventory::of(layout, &prefixes(layout), identity)?;
        inventory.widen(&claimed.roots)?;
        let belongs = belonging(&self.chain);
        self.done.removed =
            inventory.remove_strays(belongs, &claimed.roots, &self.plan.links, identity)?;
        Ok(())
    }

    /// Everything but `pg_control`.
    fn write_cluster(
        &mut self,
        claimed: &Claimed,
        layout: &Layout,
        condition: &Condition,
    ) -> Result<()> {
        let layer = Arc::clone(&self.plan.chain[0]);
        let manifest = &layer.manifest;
        let system_identifier = manifest.cluster.system_identifier;
        let listing = ManifestSink::create(claimed, self.plan.major, system_identifier)?;
        let progress = self.progress.of_part();
        let writer = Writer::new(&claimed.roots, prefixes(layout), listing, &progress)?;
        if let Some(wal) = &layout.wal {
            self.link(claimed, &writer, "pg_wal", wal)?;
        }
        for directory in ["pg_wal"]
            .iter()
            .chain(empty_wal_directories(self.plan.major))
        {
            writer.create_directory(directory, 0o700)?;
        }
        let wal = WalBeside::of(&self.plan, &self.chain.runtime)?;
        let outside = wal.write_beside(&writer, &progress, || {
            self.write_files(&writer, condition, &progress)
        })?;
        let config = layout.config_root();
        let settled = Configuration::new(&claimed.roots, &writer, config, &outside).settle()?;
        self.done.notes.extend(settled.notes);
        writer.list_settled()?;
        self.write_label_and_map(claimed, &writer, layout)?;
        let gone = self.make_way(claimed, &writer, &wal)?;
        self.write_settings(claimed, &writer, settled.targets)?;
        self.note_archiving(claimed);
        let mode = if writer.group_access() { 0o750 } else { 0o700 };
        // A directory for configuration keeps what its owner gave it.
        let of_the_cluster = claimed.roots.len() - usize::from(config > 0);
        for root in &claimed.roots[..of_the_cluster] {
            let about = || {
                format!(
                    "could not set the permissions of \"{}\"",
                    root.path.display()
                )
            };
            root.dir
                .set_permissions(fs::Permissions::from_mode(mode))
                .context(about)?;
        }
        self.prepare_control(claimed, &writer)?;
        self.done.written_bytes += writer.written_bytes();
        self.done.direct_bytes += writer.direct_bytes();
        let range = WalRange {
            timeline: manifest.timeline,
            start: manifest.start_lsn,
            end: manifest.stop_lsn,
        };
        writer.finish(range, &gone)
    }

    /// Looks what recovery makes out of the WAL that lies in `pg_wal`, and removes what would be in its way; answers which files
    /// that were.
    fn make_way(
        &self,
        claimed: &Claimed,
        writer: &Writer<'_>,
        wal: &WalBeside,
    ) -> Result<BTreeSet<String>> {
        let PlanInner { major, layout, .. } = &self.plan;
        let start_lsn = self.plan.chain[0].manifest.start_lsn;
        let in_place = wal.in_place(*major, start_lsn);
        let to_come = in_place.to_come(&claimed.roots[0].path)?;
        to_come.require_fit(*major, &layout.tablespaces, &[])?;
        to_come.remove_main_forks(*major, |directory| match writer.locate(directory) {
            Some((root, below)) => beneath::directory(&claimed.roots[root].dir, Path::new(below)),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }

    /// All files of the index; returns those that are configuration from outside of the data directory.
    fn write_files(
        &mut self,
        writer: &Writer<'_>,
        condition: &Condition,
        progress: &Progress,
    ) -> Result<Vec<Entry>> {
        let chain = &self.chain;
        let frames = AtomicU64::new(0);
        let reader = FrameReader {
            chain,
            progress,
            workers: limits::workers(self.plan.options.jobs),
            frames: &frames,
        };
        let mut comparison = (*condition == Condition::Existing).then(|| {
            Comparison::new(
                writer,
                chain.digests(),
                limits::workers(self.plan.options.jobs),
                progress,
            )
        });
        let (mut files, mut outside) = (0, Vec::new());
        writer.write_frames(&reader, |wanted| {
            for planned in Overlay::new(chain.entries()) {
                let (file, entries) = planned?;
                if progress.is_cancelled() {
                    return Err(Error::new(Kind::Interrupted, "interrupted"));
                }
                if file.path == MARKER {
                    continue;
                }
                files += 1;
                if outside::parse(&file.path).is_some() {
                    outside.push(Entry {
                        path: file.path.clone(),
                        kind: file.kind,
                        mode: file.mode,
                    });
                }
                match &mut comparison {
                    None => writer.begin(file, |frame| wanted.push(frame))?,
                    Some(comparison) => {
                        comparison.begin(file, &entries, |frame| wanted.push(frame))?;
                    }
                }
                wanted.end_file()?;
            }
            Ok(())
        })?;
        self.done.files = files;
        self.done.frames = frames.into_inner();
        self.done.read_bytes = comparison.map_or(0, |comparison| comparison.read_bytes());
        Ok(outside)
    }

    fn write_label_and_map(
        &self,
        claimed: &Claimed,
        writer: &Writer<'_>,
        layout: &Layout,
    ) -> Result<()> {
        let manifest = &self.plan.chain[0].manifest;
        BackupLabel::parse(&manifest.backup_label)?;
        writer.write_whole("backup_label", manifest.backup_label.as_bytes(), true)?;
        for (oid, directory) in &layout.tablespaces {
            self.link(claimed, writer, &format!("pg_tblspc/{oid}"), directory)?;
        }
        let Some(text) = &manifest.tablespace_map else {
            return Ok(());
        };
        let mut map = TablespaceMap::parse(text)?;
        // One that was dropped before the backup listed its files is in the server's map alone. Recovery drops it, and needs no
        // link, which may lead into another tablespace now.
        let named = map.locations.len();
        map.locations
            .retain(|location| layout.tablespaces.contains_key(&location.oid.0));
        if map.locations.is_empty() {
            return Ok(());
        }
        let mut moved = map.locations.len() < named;
        for location in &mut map.locations {
            let directory = &layout.tablespaces[&location.oid.0];
            let directory = directory.to_str().ok_or_else(|| {
                Error::new(
                    Kind::Usage,
                    format!("\"{}\" is not UTF-8", directory.display()),
                )
            })?;
            if location.path != directory {
                directory.clone_into(&mut location.path);
                moved = true;
            }
        }
        // Byte for byte unless a tablespace has moved or gone: the server makes the links from the map.
        let text = if moved { map.format() } else { text.clone() };
        writer.write_whole("tablespace_map", text.as_bytes(), true)
    }

    fn link(&self, claimed: &Claimed, writer: &Writer<'_>, path: &str, to: &Path) -> Result<()> {
        let data = &claimed.roots[0];
        let about = || {
            format!(
                "could not create the link \"{}\"",
                data.path.join(path).display()
            )
        };
        if !needs_link(data, path, to)? {
            return Ok(());
        }
        beneath::link(&data.dir, Path::new(path), to).context(about)?;
        if let Some((user, group)) = writer.owner() {
            let (above, name) = beneath::parent(&data.dir, Path::new(path)).context(about)?;
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(&above, name, Some(user), Some(group), flags)
                .map_err(io::Error::from)
                .context(about)?;
        }
        Ok(())
    }

    /// `taken_out`: targets that the source's configuration had, as they were spelt; where the server is started with a
    /// configuration elsewhere, they are still there.
    fn write_settings(
        &mut self,
        claimed: &Claimed,
        writer: &Writer<'_>,
        taken_out: BTreeSet<String>,
    ) -> Result<()> {
        let options = &self.plan.options;
        let label = self.plan.chain[0].label.to_string();
        // The end of what is to be recovered: the server opens there, as at any other end of the archive.
        let stop = self.plan.stop_before.map(Target::Lsn);
        let asked = (options.inclusive, options.action, options.timeline);
        let told = (false, TargetAction::Promote, None);
        let (inclusive, action, timeline) = stop.as_ref().map_or(asked, |_| told);
        let root = &claimed.roots[0];
        let config = &claimed.roots[self.plan.layout.config_root()].path;
        let others = taken_out.into_iter().filter(|name| !names_target(name));
        let spellings = spellings_of_targets(config, &root.path).into_iter();
        let spellings = BTreeSet::from_iter(spellings.chain(others));
        let settings = RecoverySettings {
            label: &label,
            target: stop.as_ref().unwrap_or(&options.target),
            inclusive,
            action,
            timeline,
            planned_timeline: self.timeline,
            restore_command: &options.restore_command,
            in_place_tablespaces: self.plan.chain[0].manifest.tablespaces_in_place(),
            kept: match options.target {
                // It goes on following its primary.
                Target::Standby => &self.kept_settings,
                _ => &[],
            },
            archiving_off: self.plan.archive_mode == ArchiveMode::Off,
            has_delay: has_delay(config, &root.path),
            spellings: &Vec::from_iter(spellings),
        };
        let about = || format!("could not read \"{}\"", root.path.join(AUTO_CONF).display());
        let path = Path::new(AUTO_CONF);
        let old = beneath::read(&root.dir, path).context(about)?;
        if old.is_some() {
            beneath::remove_file(&root.dir, path).context(about)?;
        }
        let old = old.unwrap_or_default();
        writer.write_whole(AUTO_CONF, &settings.rewrite(&old), true)?;
        if let Some(signal) = settings.signal() {
            writer.write_whole(signal.name(), b"", false)?;
        }
        self.done.notes.extend(settings.stays());
        let is_standby = options.target == Target::Standby;
        if is_standby && !is_set("primary_conninfo", config, &root.path) {
            self.done.notes.push(FOLLOWS_NOBODY.to_owned());
        }
        Ok(())
    }

    /// What decides on archiving in a directory that is about to be changed, when its server archives on. Unknown where the
    /// configuration lies elsewhere, and when an earlier attempt has changed it.
    fn archiving_of(&self, data: &Path) -> Option<BTreeMap<String, Option<String>>> {
        let goes_on = self.plan.archive_mode == ArchiveMode::Keep && !self.plan.seen.marked;
        let is_here = data.join("postgresql.conf").exists();
        (goes_on && is_here).then(|| archiving(data, data))
    }

    /// Says when the layer's configuration, which counts from now on, archives otherwise than the directory's own did.
    fn note_archiving(&mut self, claimed: &Claimed) {
        let Some(before) = &self.archived_by else {
            return;
        };
        let config = &claimed.roots[self.plan.layout.config_root()].path;
        let now = archiving(config, &claimed.roots[0].path);
        let names = BTreeSet::from_iter(before.keys().chain(now.keys()));
        let others = names.into_iter();
        let others = others.filter(|name| before.get(*name) != now.get(*name));
        let others: Vec<&str> = others.map(String::as_str).collect();
        if !others.is_empty() {
            self.done.notes.push(format!(
                "the server archives as the layer's configuration says, which differs from what the directory had ({}): look at \
                 that before it is started",
                others.join(", ")
            ));
        }
    }

    /// Writes `pg_control` beside its place, and the lineage, which tells this very file from others.
    fn prepare_control(&mut self, claimed: &Claimed, writer: &Writer<'_>) -> Result<()> {
        let root = &claimed.roots[0];
        let about = || {
            let path = root.path.join(CONTROL_TEMPORARY);
            format!("could not write \"{}\"", path.display())
        };
        let contents = self.plan.chain[0].manifest.pg_control_bytes()?;
        let temporary = Path::new(CONTROL_TEMPORARY);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file =
            beneath::open(&root.dir, temporary, flags, Mode::RUSR | Mode::WUSR).context(about)?;
        file.write_all(&contents).context(about)?;
        let status = root.dir.metadata().context(about)?;
        let mode = if status.permissions().mode() & 0o050 == 0 {
            0o600
        } else {
            0o640
        };
        file.set_permissions(fs::Permissions::from_mode(mode))
            .context(about)?;
        super::copy::write::give_to_owner(&file, root).context(about)?;
        file.sync_all().context(about)?;
        let layer = &self.plan.chain[0];
        let lineage = lineage::write(layer, root, &file)?;
        let modified = layer.manifest.finished_at.as_second();
        for (path, contents) in [(CONTROL_PATH, &contents), (FILE_NAME, &lineage)] {
            writer.list(path, modified, FileChecksum::of(contents))?;
        }
        Ok(())
    }

    /// Makes the directory one that a server starts from.
    fn place_control(&self, claimed: &Claimed) -> Result<()> {
        let root = &claimed.roots[0];
        beneath::rename(
            &root.dir,
            Path::new(CONTROL_TEMPORARY),
            OsStr::new("pg_control"),
        )
        .context(|| format!("could not rename \"{CONTROL_TEMPORARY}\""))
    }
}
