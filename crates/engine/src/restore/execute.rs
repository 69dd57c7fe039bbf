//! Obeys a plan.
//!
//! Order: directories and markers; files, page by page; label, map, links, settings and signal; everything durable;
//! `pg_control`; markers gone. Killed anywhere before `pg_control`, no server starts from what is there, and the same
//! restore begins anew; killed after it, only markers are left, and the same restore removes them.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use jiff::Timestamp;
use pgstrata_layer::overlay::Overlay;
use pgstrata_pgdata::backup_manifest::WalRange;
use pgstrata_pgdata::exclude::empty_wal_directories;
use pgstrata_pgdata::label::{BackupLabel, TablespaceMap};
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_pgdata::wal::WalSegment;
use pgstrata_pgdata::{FileChecksum, Oid};
use serde::Serialize;
use tokio::runtime::Handle;

use super::compare::Comparison;
use super::destination::{Claimed, Condition, Layout, new_marker};
use super::durable;
use super::in_place::{Inventory, needs_link, remember};
use super::inventory::archived_file;
use super::oldest_first;
use super::plan::{PlanInner, RestorePlan, inspect, prefixes};
use super::reads::Reading;
use super::settings::RecoverySettings;
use super::shares::{Lead, ShareMade};
use super::writes::{Listing, ManifestSink, Writer};
use super::{Method, Source};
use crate::catalog::{ChainDigests, ChainEntries};
use crate::error::{Error, FileContext, Kind, Result};
use crate::progress::Progress;
use crate::repository::Repository;
use crate::shares::SharedOptions;

/// Name under which `pg_control` is written before it is renamed.
const CONTROL_TEMPORARY: &str = "pg_control.pgstrata";

const AUTO_CONF: &str = "postgresql.auto.conf";

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
    /// Who made which part of a restore that was shared.
    pub shares: Vec<ShareMade>,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Restores what `plan` says.
///
/// # Errors
/// Whatever stops it; the destination then cannot be started, and the same restore can be run again.
pub async fn execute(
    repository: &Repository,
    plan: &RestorePlan,
    progress: &Progress,
) -> Result<RestoreReport> {
    let started = Instant::now();
    let source = Source {
        repository: repository.clone(),
        cluster: plan.inner.cluster.clone(),
        runtime: Handle::current(),
    };
    progress.set_total(match plan.method {
        Method::Delta => plan.write_bytes.max(plan.existing_bytes),
        Method::Overlay | Method::OldestFirst => plan.write_bytes,
    });
    let task = Restore {
        source,
        plan: plan.inner.clone(),
        timeline: plan.timeline,
        progress: progress.clone(),
        done: Done::default(),
        kept_settings: Vec::new(),
    };
    let done = tokio::task::spawn_blocking(move || task.run());
    let done = done
        .await
        .map_err(|e| Error::new(Kind::Interrupted, format!("the restore was stopped: {e}")))??;
    let reading = progress.read();
    Ok(RestoreReport {
        label: plan.label.clone(),
        files: done.files,
        pages: reading.pages,
        written_bytes: done.written_bytes,
        fetched_bytes: reading.stored_bytes,
        frames: done.frames,
        method: plan.method,
        read_bytes: done.read_bytes,
        removed: done.removed,
        shares: done.shares,
        seconds: started.elapsed().as_secs_f64(),
        notes: done.notes,
    })
}

struct Restore {
    source: Source,
    plan: PlanInner,
    timeline: TimelineId,
    progress: Progress,
    done: Done,
    kept_settings: Vec<String>,
}

/// What has been done so far.
#[derive(Debug, Default)]
struct Done {
    files: u64,
    frames: u64,
    written_bytes: u64,
    read_bytes: u64,
    removed: u64,
    shares: Vec<ShareMade>,
    notes: Vec<String>,
}

impl Restore {
    fn run(mut self) -> Result<Done> {
        let label = self.plan.chain[0].label.to_string();
        let layout = self.plan.layout.clone();
        let condition = inspect(
            &layout,
            &self.plan.cluster,
            &self.plan.chain[0],
            self.plan.options.method,
        )?;
        if condition == Condition::Complete {
            Claimed::reopen(&layout)?.unmark()?;
            self.done.notes.push(
                "the restore was complete but for its markers, which were removed".to_owned(),
            );
            return Ok(self.done);
        }
        let mut marker = new_marker(
            &layout,
            self.source.cluster.as_str(),
            &label,
            Timestamp::now(),
        );
        let claimed = if condition == Condition::Existing {
            let identity = &self.plan.chain[0].manifest.cluster;
            let found = remember(&self.plan.options, identity, &layout.data)?;
            self.kept_settings.clone_from(&found.kept_settings);
            marker.in_place = Some(found);
            let claimed = Claimed::claim_in_place(&layout, &marker)?;
            self.remove_strays(&layout)?;
            claimed
        } else {
            Claimed::claim(&layout, &marker)?
        };
        layout.check_space(&self.plan.space)?;
        self.write_cluster(&claimed, &layout, &condition)?;
        if !layout.data.join("postgresql.conf").exists() {
            self.done.notes.push(
                "the layer holds no postgresql.conf: the configuration of its server lies elsewhere".to_owned(),
            );
        }
        durable::sync(&claimed.roots)?;
        self.write_control(&claimed)?;
        claimed.unmark()?;
        Ok(self.done)
    }

    /// Removes what the layer does not have.
    fn remove_strays(&mut self, layout: &Layout) -> Result<()> {
        let identity = &self.plan.chain[0].manifest.cluster;
        let inventory = Inventory::of(layout, &prefixes(layout), identity)?;
        let newest = &self.plan.chain[..1];
        let source = &self.source;
        let entries =
            ChainEntries::new(&source.repository, &source.cluster, newest, &source.runtime);
        let belongs = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.map(|entry| (entry.path, entry.kind)));
        self.done.removed =
            inventory.remove_strays(belongs, identity, &layout.directories()[1..])?;
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
        let listing = match self.plan.options.method {
            // Its checksums come from pages written once.
            Method::OldestFirst => None,
            Method::Overlay | Method::Delta => Some(Listing::Manifest(ManifestSink::create(
                claimed,
                self.plan.major,
                system_identifier,
            )?)),
        };
        let progress = self.progress.clone();
        let writer = Writer::new(&claimed.roots, prefixes(layout), listing, &progress)?;
        if let Some(wal) = &layout.wal {
            self.link(claimed, &writer, "pg_wal", wal)?;
        }
        match self.plan.options.shares {
            Some(options) => self.share_files(claimed, &writer, options)?,
            None => self.write_files(&writer, condition)?,
        }
        for directory in ["pg_wal"]
            .iter()
            .chain(empty_wal_directories(self.plan.major))
        {
            writer.create_directory(directory, 0o700)?;
        }
        self.write_wal(&writer)?;
        self.write_label_and_map(claimed, &writer, layout)?;
        self.write_settings(claimed, &writer)?;
        let control = manifest.pg_control_bytes()?;
        writer.list(
            "global/pg_control",
            manifest.finished_at.as_second(),
            FileChecksum::of(&control),
        )?;
        let mode = if writer.group_access() { 0o750 } else { 0o700 };
        for root in &claimed.roots {
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
        self.done.written_bytes += writer.written_bytes();
        writer.finish(WalRange {
            timeline: manifest.timeline,
            start: manifest.start_lsn,
            end: manifest.stop_lsn,
        })
    }

    /// All files of the index, with the help of other processes.
    fn share_files(
        &mut self,
        claimed: &Claimed,
        writer: &Writer<'_>,
        options: SharedOptions,
    ) -> Result<()> {
        let lead = Lead {
            source: &self.source,
            plan: &self.plan,
            progress: &self.progress,
            claimed,
            writer,
        };
        let led = lead.run(&options)?;
        (self.done.files, self.done.frames) = (led.files, led.frames);
        self.done.written_bytes = led.written_bytes;
        self.done.notes.extend(led.notes);
        self.done.shares = led.shares;
        Ok(())
    }

    /// All files of the index.
    fn write_files(&mut self, writer: &Writer<'_>, condition: &Condition) -> Result<()> {
        let (source, chain) = (&self.source, &self.plan.chain);
        let frames = AtomicU64::new(0);
        let reading = Reading {
            source,
            chain,
            progress: &self.progress,
            workers: self.plan.options.jobs,
            frames: &frames,
        };
        if self.plan.options.method == Method::OldestFirst {
            self.done.files = oldest_first::write(&reading, writer)?;
            self.done.frames = frames.into_inner();
            return Ok(());
        }
        let mut comparison = (*condition == Condition::Existing).then(|| {
            let digests = ChainDigests::new(
                &source.repository,
                &source.cluster,
                chain.clone(),
                &source.runtime,
            );
            Comparison::new(writer, digests, self.plan.options.jobs, &self.progress)
        });
        let mut files = 0;
        writer.write_frames(&reading, |window| {
            let streams =
                ChainEntries::new(&source.repository, &source.cluster, chain, &source.runtime);
            for planned in Overlay::new(streams) {
                let (file, entries) = planned?;
                files += 1;
                match &mut comparison {
                    None => writer.begin(file, |frame| window.push(frame))?,
                    Some(comparison) => {
                        comparison.begin(file, &entries, |frame| window.push(frame))?;
                    }
                }
                window.end_file()?;
            }
            Ok(())
        })?;
        self.done.files = files;
        self.done.frames = frames.into_inner();
        self.done.read_bytes = comparison.map_or(0, |comparison| comparison.read_bytes());
        Ok(())
    }

    /// The WAL that makes the layer consistent. Recovery could fetch it itself; with it in place the directory passes
    /// `pg_verifybackup` and, restored without recovery settings, stands on its own.
    fn write_wal(&self, writer: &Writer<'_>) -> Result<()> {
        let size = self.plan.segment_size;
        for &(timeline, first, last) in &self.plan.wal_parts {
            for number in first..=last {
                let name = WalSegment { timeline, number }.file_name(size);
                let fetch = archived_file(
                    &self.source.repository,
                    &self.source.cluster,
                    timeline,
                    &name,
                );
                let contents = self.source.runtime.block_on(fetch)?;
                if u64::try_from(contents.len()).ok() != Some(size.get()) {
                    return Err(Error::new(
                        Kind::Damaged,
                        format!(
                            "WAL segment {name} has {} bytes in the archive, expected {size}",
                            contents.len()
                        ),
                    ));
                }
                writer.write_whole(&format!("pg_wal/{name}"), &contents, false)?;
                // It comes from the archive; without this the server would archive it again.
                writer.write_whole(&format!("pg_wal/archive_status/{name}.done"), b"", false)?;
            }
        }
        Ok(())
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
        let mut moved = false;
        for location in &mut map.locations {
            let Oid(oid) = location.oid;
            let Some(directory) = layout.tablespaces.get(&oid) else {
                return Err(Error::new(
                    Kind::Damaged,
                    format!(
                        "tablespace_map names tablespace {oid}, which the manifest does not list"
                    ),
                ));
            };
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
        // Byte for byte unless a tablespace has moved: the server makes the links from the map.
        let text = if moved { map.format() } else { text.clone() };
        writer.write_whole("tablespace_map", text.as_bytes(), true)
    }

    fn link(
        &self,
        claimed: &Claimed,
        writer: &Writer<'_>,
        path: &str,
        to: &std::path::Path,
    ) -> Result<()> {
        let link = claimed.roots[0].path.join(path);
        let about = || format!("could not create the link \"{}\"", link.display());
        if !needs_link(&link, to)? {
            return Ok(());
        }
        std::os::unix::fs::symlink(to, &link).context(about)?;
        if let Some((user, group)) = writer.owner() {
            std::os::unix::fs::lchown(&link, Some(user.as_raw()), Some(group.as_raw()))
                .context(about)?;
        }
        Ok(())
    }

    fn write_settings(&self, claimed: &Claimed, writer: &Writer<'_>) -> Result<()> {
        let options = &self.plan.options;
        let label = self.plan.chain[0].label.to_string();
        let settings = RecoverySettings {
            label: &label,
            target: &options.target,
            inclusive: options.inclusive,
            action: options.action,
            timeline: options.timeline,
            planned_timeline: self.timeline,
            restore_command: &options.restore_command,
            in_place_tablespaces: self.plan.chain[0].manifest.tablespaces_in_place(),
            kept: &self.kept_settings,
        };
        let root = &claimed.roots[0].path;
        let path = root.join(AUTO_CONF);
        let about = || format!("could not read \"{}\"", path.display());
        let old = match fs::read(&path) {
            Ok(bytes) => {
                fs::remove_file(&path).context(about)?;
                bytes
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e).context(about),
        };
        let new = settings.rewrite(&String::from_utf8_lossy(&old));
        writer.write_whole(AUTO_CONF, new.as_bytes(), true)?;
        if let Some(signal) = settings.signal() {
            writer.write_whole(signal.name(), b"", false)?;
        }
        Ok(())
    }

    /// Makes the directory one that a server starts from.
    fn write_control(&self, claimed: &Claimed) -> Result<()> {
        let root = &claimed.roots[0];
        let global = root.path.join("global");
        let temporary = global.join(CONTROL_TEMPORARY);
        let about = || format!("could not write \"{}\"", temporary.display());
        let contents = self.plan.chain[0].manifest.pg_control_bytes()?;
        let mut file = File::create_new(&temporary).context(about)?;
        file.write_all(&contents).context(about)?;
        let status = fs::metadata(&root.path).context(about)?;
        let mode = if status.permissions().mode() & 0o050 == 0 {
            0o600
        } else {
            0o640
        };
        file.set_permissions(fs::Permissions::from_mode(mode))
            .context(about)?;
        super::writes::give_to_owner(&file, root).context(about)?;
        file.sync_all().context(about)?;
        let control = global.join("pg_control");
        fs::rename(&temporary, &control)
            .context(|| format!("could not rename \"{}\"", temporary.display()))?;
        File::open(&global)
            .and_then(|directory| directory.sync_all())
            .context(|| format!("could not fsync \"{}\"", global.display()))
    }
}
