//! The acts of a backup in their order.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use pgstrata_layer::audit::Sample;
use pgstrata_layer::changeset::Changes;
use pgstrata_layer::manifest::{self, Beside, Manifest, ParentRef, Tablespace};
use pgstrata_pgdata::{ControlFile, Lsn, TimelineId};
use pgstrata_store::catalog::{self, Catalog, Layer, LayerPlan, NewLayer, Siblings, hex};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;

use super::abort::{Abort, unless_cancelled};
use super::copy::check::PageCheck;
use super::copy::pipeline::{self, Stored, Work};
use super::decide::audit::{self, Audit, AuditReport};
use super::decide::backup_type::{SourceChoice, choose_type};
use super::decide::checkpoint::{self, CheckpointChoice};
use super::decide::past;
use super::decide::prepare::{Ready, nested, prepare};
use super::decide::source::{self, Question, Search};
use super::manifest::check_label;
use super::options::{BackupOptions, CorruptPagePolicy};
use super::phases::Stopwatch;
use super::repeated::SecuredWal;
use super::report::{BackupPlan, BackupReport};
use super::standby::{
    Finisher, SegmentEnd, require_not_promoted, require_one_timeline, unless_promoted,
};
use super::wal::{self, Following, ServerArchive, Stream, WalChoice, WalRoute};
use crate::frames::{Chain, LayerWriter};
use crate::priority::{self, Impact};
use crate::server::Session;
use crate::server::control::{ControlReading, check_start_is_visible, control_of, postmaster};
use crate::server::databases::{DatabaseWatch, DatabasesSeen};
use crate::server::scan::Scan;
use crate::server::storage::require_visible;

/// Says what a backup would do now; changes nothing.
///
/// # Errors
/// What would keep the backup from starting.
pub async fn plan(cluster: &ClusterRepository, options: &BackupOptions) -> Result<BackupPlan> {
    let ready = prepare(cluster, options).await?;
    let catalog = catalog::examine_as_verified(cluster).await?;
    cluster.require_newest_epoch().await?;
    let choice = choose_type(&catalog, options.backup_type, options.parent.as_ref())?;
    let now = ready.standpoint(&ready.control, ready.would_start().await?);
    let search = Search {
        ready: &ready,
        cluster,
        wanted: options.change_source,
        parent: choice.chain.first().copied(),
    };
    let source = source::find(search, &now, Question::Would).await?;
    let mut found = ready.scan().await?;
    let finisher = Finisher::find(&ready, options).await?;
    found.warnings.extend(finisher.doubt());
    let wal = choose_wal(options, &ready, cluster).await?;
    found.warnings.extend(wal.doubts());
    let checkpoint = checkpoint::choose(options.checkpoint, &ready.session, wal.streams).await;
    Ok(BackupPlan {
        kind: choice.kind,
        parent: choice.chain.first().map(|layer| layer.label.clone()),
        type_reason: choice.reason,
        change_source: source.record,
        checkpoint,
        wal,
        from_standby: ready.session.facts().in_recovery,
        file_count: u64::try_from(found.files.len()).expect("usize has 64 bits"),
        size_bytes: found.size_bytes,
        jobs: limits::workers(options.jobs),
        warnings: found.warnings,
        data_directory: ready.data_directory,
    })
}

/// Takes a backup. When it returns `Ok` the layer exists and stands on its own
/// with its chain; otherwise there is no layer and the server is out of backup mode.
///
/// # Errors
/// Whatever kept the backup from being complete.
pub async fn run(
    cluster: &ClusterRepository,
    options: &BackupOptions,
    progress: Progress,
) -> Result<BackupReport> {
    let started_at = Timestamp::now();
    let stopwatch = Stopwatch::start();
    let ready = unless_cancelled(&progress, locked(cluster, options)).await?;
    // Under the lock: a backup that has just ended is this one's parent.
    let wal = choose_wal(options, &ready, cluster);
    let (catalog, wal) = futures::join!(catalog::examine_as_verified(cluster), wal);
    let catalog = catalog?;
    // With what the catalog shows, and before advice to take a full backup.
    cluster.require_newest_epoch().await?;
    let choice = choose_type(&catalog, options.backup_type, options.parent.as_ref())?;
    let wal = wal?;
    for doubt in wal.doubts() {
        tracing::warn!("{doubt}");
    }
    let abort = Abort::new();
    let lost = abort.clone();
    let plan = LayerPlan {
        kind: choice.kind,
        parent: choice.chain.first().map(|layer| &layer.label),
    };
    let layer = NewLayer::begin(cluster, &catalog, plan, started_at, move |error| {
        lost.fail(error)
    });
    let layer = layer.await?;
    let label = layer.label().clone();
    tracing::info!(%label, reason = %choice.reason, "making this {} backup", choice.kind.as_str());
    let chain: Vec<Arc<Layer>> = choice
        .chain
        .iter()
        .map(|layer| Arc::new((*layer).clone()))
        .collect();
    let type_reason = choice.reason.clone();
    let siblings = Siblings::begin(&options.siblings, &layer, plan, &chain).await;
    let siblings = Arc::new(siblings);
    let backup = Backup {
        options,
        catalog: &catalog,
        layer: &layer,
        siblings: Arc::clone(&siblings),
        progress,
        chain: Chain::new(cluster, chain),
        type_reason,
        wal,
        started_at,
        stopwatch,
        abort,
        sample: options.audit.map(|audit| {
            let seed = audit.seed.unwrap_or_else(rand::random);
            Sample::new(seed, audit.per_million)
        }),
    };
    let outcome = match backup.run(&ready).await {
        // Only when it counted as dead.
        Err(error) => {
            let error = catalog::unless_removed(cluster, &backup.chain.layers, error).await;
            Err(advise(error, &backup.chain))
        }
        done => done,
    };
    drop(backup);
    // Threads that were given up hold it until they see that.
    if let Some(siblings) = Arc::into_inner(siblings) {
        siblings
            .end(outcome.is_ok() || layer.may_exist(), &label)
            .await;
    }
    layer.end(&outcome).await;
    // The next one may begin at once, also after this one has failed; but the server may be busy with what was interrupted.
    let was_stopped = |error: &Error| matches!(error.kind(), Kind::Interrupted | Kind::Server);
    if !outcome.as_ref().is_err_and(was_stopped) {
        ready.session.unlock().await;
    }
    outcome
}

/// Ready, and with the lock that keeps other backups away. Whoever drops this half way lets go of it.
async fn locked(cluster: &ClusterRepository, options: &BackupOptions) -> Result<Ready> {
    let ready = prepare(cluster, options).await?;
    ready.session.lock().await?;
    Ok(ready)
}

async fn choose_wal(
    options: &BackupOptions,
    ready: &Ready,
    cluster: &ClusterRepository,
) -> Result<WalChoice> {
    let route = route(cluster, options, ready);
    wal::choose(options.wal, &ready.session, route).await
}

fn route<'a>(
    cluster: &'a ClusterRepository,
    options: &'a BackupOptions,
    ready: &'a Ready,
) -> WalRoute<'a> {
    WalRoute {
        cluster,
        others: &options.archives,
        record: &ready.record,
        data_directory: &ready.data_directory,
    }
}

/// One backup under way.
pub(super) struct Backup<'a> {
    pub(super) options: &'a BackupOptions,
    /// As it was before the start.
    catalog: &'a Catalog,
    pub(super) layer: &'a NewLayer,
    siblings: Arc<Siblings>,
    pub(super) progress: Progress,
    /// The parent's; empty for a full backup.
    pub(super) chain: Chain,
    pub(super) type_reason: String,
    pub(super) wal: WalChoice,
    pub(super) started_at: Timestamp,
    pub(super) stopwatch: Stopwatch,
    pub(super) abort: Abort,
    /// Which unchanged pages to look at.
    pub(super) sample: Option<Sample>,
}

/// Where a backup starts.
pub(super) struct Start {
    pub(super) lsn: Lsn,
    /// The one with which it starts.
    checkpoint: CheckpointChoice,
    /// The control file as it was then.
    control: ControlFile,
    /// The databases from before, and of then.
    databases: DatabaseWatch,
    /// The tablespaces from before.
    tablespaces: Vec<Tablespace>,
    /// Summaries of the WAL from here on were written since.
    summaries_from: Option<Lsn>,
}

impl Start {
    pub(super) fn timeline(&self) -> TimelineId {
        self.control.timeline
    }
}

/// What is known when all files are stored.
pub(super) struct Copied {
    pub(super) start_lsn: Lsn,
    checkpoint: CheckpointChoice,
    pub(super) timeline: TimelineId,
    pub(super) source: SourceChoice,
    pub(super) stored: Stored,
    pub(super) tablespaces: Vec<Tablespace>,
    pub(super) warnings: Vec<String>,
    pub(super) control: ControlReading,
    /// From before the start, for the children.
    pub(super) token: Option<String>,
    pub(super) audit: Option<AuditReport>,
    /// A layer that may lie beside this one.
    pub(super) beside: Option<Beside>,
}

/// The WAL from start to stop, and where it goes.
struct WalOfBackup<'a> {
    archive: &'a ServerArchive,
    finisher: &'a Finisher,
    timeline: TimelineId,
    range: std::ops::Range<Lsn>,
    databases: &'a DatabasesSeen,
}

/// A token of the tracker, or why there is none.
type TrackerToken = std::result::Result<String, String>;

/// Ends threads and tasks when the backup's future is dropped half way.
struct EndWith(Abort);

impl Drop for EndWith {
    fn drop(&mut self) {
        self.0
            .fail(Error::new(Kind::Interrupted, "the backup was stopped"));
    }
}

impl Backup<'_> {
    async fn run(&self, ready: &Ready) -> Result<BackupReport> {
        let _end = EndWith(self.abort.clone());
        let watching = tokio::spawn(
            self.abort
                .clone()
                .watch(self.progress.clone(), ready.session.lost()),
        );
        let outcome = self.acts(ready).await;
        watching.abort();
        outcome
    }

    async fn acts(&self, ready: &Ready) -> Result<BackupReport> {
        // Early, so that no work is done in vain; the commit looks again.
        let chain = &self.chain;
        let leaving = catalog::check_stays(&chain.cluster, &chain.layers).await?;
        let archive = route(&chain.cluster, self.options, ready).archive(self.options.codec)?;
        let stream = self.hold_wal(ready, &archive).await?;
        let finding = Finisher::find(ready, self.options);
        let finisher = self.abort.guard(finding).await?;
        if let Some(doubt) = finisher.doubt() {
            tracing::warn!("{doubt}");
        }
        // Before the start: what is written in between must be the next backup's.
        let token = self.abort.guard(self.make_token(ready)).await?;
        self.stopwatch.end("prepare");
        // The start finishes a segment, which may be the first that the archive has of another history.
        let ours = archive.check_written(&ready.session);
        self.abort.guard(ours).await?;
        let start = self.start(ready).await?;
        catalog::check_wal(&leaving, start.lsn)?;
        let ours = archive.check_future(&ready.session, start.timeline());
        self.abort.guard(ours).await?;
        if stream.is_some() {
            // The start finished a segment, and another server may have been quicker since the last look.
            self.abort.guard(archive.check_waiting()).await?;
        }
        let following =
            stream.map(|stream| stream.follow(start.timeline(), start.lsn, &self.abort));
        let copying = self.copy(ready, &start, token);
        let mut copied = unless_promoted(&ready.session, &self.abort, copying).await?;
        self.stopwatch.end("copy");
        let missing = std::mem::take(&mut copied.stored.assembled.missing);
        let checking = self.check_still(ready, &start, &missing);
        let databases = self.abort.guard(checking).await?;
        let stopped = self.abort.guard(ready.session.stop()).await?;
        self.stopwatch.end("stop");
        tracing::info!(stop_lsn = %stopped.lsn, "the backup has stopped");
        check_label(&stopped, &start, ready)?;
        let control = control_of(&ready.data_directory).await?.control;
        require_one_timeline(&ready.session, &control, start.timeline()).await?;
        let corrupt_pages = self.corrupt_pages(&mut copied.stored, stopped.lsn)?;
        let wal = WalOfBackup {
            archive: &archive,
            finisher: &finisher,
            timeline: start.timeline(),
            range: start.lsn..stopped.lsn,
            databases: &databases,
        };
        let securing = self.secure_wal(&ready.session, wal, following);
        let (wal_segments_stored, warning) = self.abort.guard(securing).await?;
        let warnings = warning.into_iter().chain(self.doubts().await);
        copied.warnings.extend(warnings);
        self.stopwatch.end("wal");
        let manifest = self.manifest(ready, &copied, &stopped, corrupt_pages);
        let object = self.layer.encode(&manifest).await?;
        let reference = ParentRef {
            label: manifest.label.clone(),
            manifest_digest: manifest::digest(&object),
        };
        let remembering = async {
            past::remember(ready, reference, start.summaries_from).await;
            Ok(())
        };
        self.abort.guard(remembering).await?;
        let committed = self.layer.commit(&self.chain.layers, object);
        copied.warnings.extend(committed.await?);
        self.stopwatch.end("commit");
        Ok(self.report(manifest, copied, wal_segments_stored))
    }

    /// Has the server keep the WAL from here on, when this backup is to store it.
    async fn hold_wal(&self, ready: &Ready, archive: &ServerArchive) -> Result<Option<Stream>> {
        let (stream, by) = if self.wal.streams {
            let id = hex(&self.layer.id());
            let holding = Stream::hold(&ready.session, archive, &id);
            (Some(self.abort.guard(holding).await?), "this backup")
        } else {
            (None, "the server")
        };
        tracing::info!(reason = %self.wal.reason, "WAL will be stored by {by}");
        Ok(stream)
    }

    /// What the next backup will ask the tracker for.
    async fn make_token(&self, ready: &Ready) -> Result<Option<TrackerToken>> {
        let token = source::make_token(ready).await;
        if self.options.require_tracker {
            source::require_tracker(self.search(ready), token.as_ref()).await?;
        }
        Ok(token)
    }

    /// What somebody should look at, though the backup is good.
    async fn doubts(&self) -> Vec<String> {
        let clock = self.layer.clock_doubt().await;
        self.wal.doubts().chain(clock).collect()
    }

    /// Puts the server into backup mode.
    async fn start(&self, ready: &Ready) -> Result<Start> {
        let beginning = DatabaseWatch::begin(&ready.session, &ready.data_directory);
        let mut databases = self.abort.guard(beginning).await?;
        // One that comes while the start waits for its checkpoint is in the list of files, and its record in the WAL.
        let tablespaces = ready.tablespaces().await?;
        let summaries_from = ready.summaries_written().await;
        let choosing = async {
            let wanted = self.options.checkpoint;
            Ok(checkpoint::choose(wanted, &ready.session, self.wal.streams).await)
        };
        let checkpoint = self.abort.guard(choosing).await?;
        let lsn = self.start_after(ready, &checkpoint).await?;
        self.stopwatch.end("checkpoint");
        tracing::info!(start_lsn = %lsn, "the backup has started");
        databases.start().await?;
        // Only now: after a promotion it tells the old timeline until a checkpoint, such as that of the start.
        let control = control_of(&ready.data_directory).await?.control;
        check_start_is_visible(&ready.data_directory, &control, lsn)?;
        require_one_timeline(&ready.session, &control, control.timeline).await?;
        match ready.session.timeline(lsn).await? {
            Some(timeline) if timeline != control.timeline => Err(Error::new(
                Kind::Refused,
                format!(
                    "the server is on timeline {timeline}, but its control file says {} after the checkpoint of the backup's start",
                    control.timeline
                ),
            )
            .hint("start the backup again")),
            _ => Ok(Start {
                lsn,
                checkpoint,
                control,
                databases,
                tablespaces,
                summaries_from,
            }),
        }
    }

    /// Puts the server into backup mode after this checkpoint; returns where recovery begins.
    async fn start_after(&self, ready: &Ready, checkpoint: &CheckpointChoice) -> Result<Lsn> {
        let CheckpointChoice { is_spread, reason } = checkpoint;
        let how = if *is_spread { "spread" } else { "made at once" };
        tracing::info!(%reason, "the checkpoint with which the backup starts is {how}");
        if *is_spread {
            self.progress
                .wait_for(Some("the server's checkpoint, which is spread".to_owned()));
        }
        let name = format!("pgstrata {}", self.layer.label());
        let starting = ready.session.start(&name, !is_spread);
        let started = self.abort.guard(starting).await;
        self.progress.wait_for(None);
        if started.is_err() {
            // It may wait for a checkpoint for as long as checkpoint_timeout, and would not see us go.
            ready.session.cancel().await;
        }
        started
    }

    fn search<'a>(&'a self, ready: &'a Ready) -> Search<'a> {
        Search {
            ready,
            cluster: &self.chain.cluster,
            wanted: self.options.change_source,
            parent: self.chain.layers.first().map(Arc::as_ref),
        }
    }

    /// Everything between start and stop.
    async fn copy(
        &self,
        ready: &Ready,
        start: &Start,
        token: Option<TrackerToken>,
    ) -> Result<Copied> {
        let start_lsn = start.lsn;
        let now = ready.standpoint(&start.control, start_lsn);
        let finding = source::find(self.search(ready), &now, Question::What);
        let source = self.abort.guard(finding).await?;
        if !self.chain.layers.is_empty() {
            if self.options.require_tracker {
                source::require_used(&source)?;
            }
            tracing::info!(reason = %source.record.reason, "changed pages are found by {}", source.record.used.as_str());
        }
        let parent = self.chain.layers.first().map(|parent| &parent.manifest);
        let token = source::token_or_say(token, &source, parent);
        let beside = past::beside(ready, self.catalog, now.timeline).await;
        self.stopwatch.end("changes");
        let found = ready.scan().await?;
        let missing = start.databases.missing_in_list().await?;
        self.stopwatch.end("list");
        self.progress.set_total(found.size_bytes);
        let Scan {
            files,
            tablespaces,
            mut warnings,
            ..
        } = found;
        let sample = audit::sample_for(&source.changes, self.sample);
        let work = self.work(ready, start_lsn, source.changes.clone(), sample);
        let mut stored = pipeline::store(work, self.chain.clone(), files).await?;
        stored.assembled.missing.extend(missing);
        let audit = match sample {
            Some(sample) => {
                let audit = Audit {
                    ready,
                    label: self.layer.label(),
                    chain: &self.chain,
                    source: &source,
                    start_lsn,
                    sample,
                };
                let seen = std::mem::take(&mut stored.assembled.audit);
                let judged = audit.judge(seen).await?;
                warnings.extend(judged.as_ref().err().cloned());
                judged.ok()
            }
            None => None,
        };
        warnings.extend(beside.as_ref().map(|beside| another(beside, now.timeline)));
        warnings.extend(nested(&tablespaces, &ready.data_directory));
        warnings.extend(ready.tablespaces_since(&start.tablespaces).await?);
        warnings.extend(stored.assembled.torn.iter().map(|path| {
            format!("\"{path}\" was written whenever it was read: its contents may be of several versions")
        }));
        // After everything else: on a standby its minimum recovery point must cover all pages read.
        let control = control_of(&ready.data_directory).await?;
        Ok(Copied {
            start_lsn,
            checkpoint: start.checkpoint.clone(),
            timeline: start.timeline(),
            source,
            stored,
            tablespaces,
            warnings,
            control,
            token,
            audit,
            beside,
        })
    }

    /// What the threads need to know that copy the files.
    fn work(&self, ready: &Ready, start_lsn: Lsn, changes: Changes, audit: Option<Sample>) -> Work {
        self.say_what_gives_way(ready);
        let (cluster, label) = (self.chain.cluster.clone(), self.layer.label().clone());
        Work {
            data_directory: ready.data_directory.clone(),
            layer: LayerWriter::new(
                cluster,
                label,
                self.layer.id(),
                self.layer.seal().clone(),
                self.progress.clone(),
            )
            .beside(&self.siblings),
            progress: self.progress.clone(),
            codec: self.options.codec,
            jobs: self.options.jobs,
            check: PageCheck::new(
                ready.control.has_checksums(),
                self.options.check_page_headers,
                start_lsn,
            ),
            fail_on_corrupt_page: self.options.on_corrupt_page == CorruptPagePolicy::Fail,
            max_rate: self.options.max_rate,
            impact: self.options.impact,
            changes,
            audit,
            abort: self.abort.clone(),
        }
    }

    /// Workers that were asked to give way may be unable to.
    fn say_what_gives_way(&self, ready: &Ready) {
        if self.options.impact == Impact::None {
            return;
        }
        let server = postmaster(&ready.data_directory);
        if let Some(reason) = server.and_then(priority::apart_from) {
            tracing::debug!("{reason}");
        }
    }

    /// A promotion voids the backup of a standby. Databases that moved may void that of any server: the WAL will tell.
    async fn check_still(
        &self,
        ready: &Ready,
        start: &Start,
        missing: &BTreeSet<String>,
    ) -> Result<DatabasesSeen> {
        require_not_promoted(&ready.session).await?;
        if !missing.is_empty() {
            // Files of a tablespace whose mount has gone look like those of tables that were dropped.
            let major = ready.session.facts().major;
            require_visible(&ready.session, &ready.data_directory, major).await?;
        }
        start.databases.end(&ready.session, missing).await
    }

    /// The WAL of the backup, and the history of its timeline, are in the repository, and recovery can repeat it. Returns how
    /// many segments were stored here, and what to say about it.
    async fn secure_wal(
        &self,
        session: &Session,
        wal: WalOfBackup<'_>,
        following: Option<Following>,
    ) -> Result<(u64, Vec<String>)> {
        let WalOfBackup {
            archive,
            finisher,
            timeline,
            range,
            databases,
        } = wal;
        let own = SecuredWal {
            archive,
            major: session.facts().major,
            timeline,
            range: range.clone(),
        };
        let timeout = self.options.wal_timeout;
        archive.push_history(timeline).await?;
        let mut said = Vec::from_iter(archive.lacks_history(timeline).await?);
        archive.push_lost_histories(timeline).await?;
        let end = SegmentEnd {
            timeline,
            stop: range.end,
            size: archive.segment_size,
        };
        let last = finisher.finish(session, end, timeout).await?;
        let range = range.start..last.segment.end_lsn(archive.segment_size);
        self.progress.wait_for(Some(last.waits_for));
        let secured = match following {
            Some(following) => {
                let finishing = following.finish(archive, timeline, range.end, timeout);
                finishing.await.map(|stored| (stored, None))
            }
            None => {
                let waiting = archive.wait_or_store(session, timeline, range, timeout);
                waiting.await
            }
        };
        self.progress.wait_for(None);
        let (stored, warning) = secured?;
        said.extend(warning);
        own.require_whole_sources(databases).await?;
        Ok((stored, said))
    }

    fn report(&self, manifest: Manifest, copied: Copied, wal_segments_stored: u64) -> BackupReport {
        BackupReport {
            label: self.layer.label().clone(),
            parent: self.chain.layers.first().map(|parent| parent.label.clone()),
            type_reason: self.type_reason.clone(),
            change_source: manifest.change_source,
            audit: copied.audit,
            checkpoint: copied.checkpoint,
            wal: self.wal.clone(),
            wal_segments_stored,
            start_lsn: manifest.start_lsn,
            stop_lsn: manifest.stop_lsn,
            timeline: manifest.timeline,
            from_standby: manifest.from_standby,
            totals: manifest.totals,
            pack_count: manifest.pack_count,
            pack_bytes: manifest.pack_bytes,
            corrupt_pages: manifest.corrupt_pages,
            warnings: copied.warnings,
            started_at: manifest.started_at,
            finished_at: manifest.finished_at,
            phases: self.stopwatch.phases(),
        }
    }
}

/// What to do when what the backup stands on cannot be read.
fn advise(error: Error, chain: &Chain) -> Error {
    let is_told = error.hint_text().is_some() || chain.layers.is_empty();
    match error.kind() {
        Kind::Damaged if !is_told => error.hint(
            "run \"pgstrata verify\": what it finds damaged nothing stands on any more; or take a full backup now (--type full)",
        ),
        _ => error,
    }
}

/// What is to be known of a layer that may be another server's.
fn another(Beside { layer, reason }: &Beside, timeline: TimelineId) -> String {
    format!(
        "this server may be another one than that of layer {}, which is of the same timeline {timeline}: {reason}; a repository can \
         hold the WAL of one of them: give a second server a cluster of its own (\"pgstrata init\")",
        layer.label
    )
}
