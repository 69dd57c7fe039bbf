//! The acts of a backup in their order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use pgstrata_layer::audit::Sample;
use pgstrata_layer::changeset::Changes;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::{self, CorruptPage, Manifest, ParentRef, Tablespace};
use pgstrata_layer::share::Share;
use pgstrata_pgdata::label::BackupFrom;
use pgstrata_pgdata::{BackupLabel, Lsn};
use tokio::runtime::Handle;

use super::abort::Abort;
use super::audit::{self, Audit, AuditReport};
use super::choose::{SourceChoice, choose_type};
use super::index_store::Place;
use super::options::{BackupOptions, CorruptPagePolicy};
use super::packer::{Destination, Packs};
use super::pages::PageCheck;
use super::parent::Parent;
use super::phases::Stopwatch;
use super::pipeline::{self, Stored, Work, worker_count};
use super::prepare::{Ready, control_of, prepare};
use super::report::{BackupPlan, BackupReport};
use super::shares::{Desk, Lead, Maker};
use super::source::{self, Question, Search};
use super::wal::{self, Archive, Following, Stream, WalChoice};
use super::worker::corrupt_page_error;
use crate::catalog::{self, Catalog, Layer, WRITTEN_BY, hex, our_claim};
use crate::cluster::ScannedFile;
use crate::cluster::control::{ControlReading, check_start_is_visible};
use crate::cluster::scan::{Scan, identity};
use crate::cluster::session::Stopped;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::repository::Repository;

/// Says what a backup would do now; changes nothing.
///
/// # Errors
/// What would keep the backup from starting.
pub async fn plan(
    repository: &Repository,
    cluster: &ClusterName,
    options: &BackupOptions,
) -> Result<BackupPlan> {
    let ready = prepare(repository, cluster, options).await?;
    let catalog = Catalog::load(repository, cluster).await?;
    let choice = choose_type(&catalog, options.backup_type, options.parent.as_ref())?;
    // A primary will write a checkpoint; a standby starts at its last restartpoint.
    let would_start = if ready.session.facts().in_recovery {
        ready.control.redo_lsn
    } else {
        ready.session.wal_end().await?
    };
    let now = ready.standpoint(&ready.control, would_start);
    let search = Search {
        ready: &ready,
        repository,
        cluster,
        wanted: options.change_source,
        parent: choice.chain.first().copied(),
    };
    let source = source::find(search, &now, Question::Would).await?;
    let found = ready.scan().await?;
    Ok(BackupPlan {
        kind: choice.kind,
        parent: choice.chain.first().map(|layer| layer.label.clone()),
        type_reason: choice.reason,
        change_source: source.record,
        wal: choose_wal(options, &ready, (repository, cluster)).await?,
        from_standby: ready.session.facts().in_recovery,
        file_count: u64::try_from(found.files.len()).expect("usize has 64 bits"),
        size_bytes: found.size_bytes,
        jobs: worker_count(options.jobs),
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
    repository: &Repository,
    cluster: &ClusterName,
    options: &BackupOptions,
    progress: Progress,
) -> Result<BackupReport> {
    let started_at = Timestamp::now();
    let stopwatch = Stopwatch::start();
    let ready = prepare(repository, cluster, options).await?;
    ready.session.lock().await?;
    // Under the lock: a backup that has just ended is this one's parent.
    let catalog = Catalog::load(repository, cluster).await?;
    let choice = choose_type(&catalog, options.backup_type, options.parent.as_ref())?;
    let wal = choose_wal(options, &ready, (repository, cluster)).await?;
    let layer_id: [u8; 16] = rand::random();
    let claim = our_claim("", &hex(&layer_id), started_at);
    let parent_label = choice.chain.first().map(|layer| layer.label.clone());
    let label = catalog::claim(
        repository,
        cluster,
        &catalog,
        (choice.kind, parent_label.as_ref()),
        claim,
    )
    .await?;
    tracing::info!(%label, reason = %choice.reason, "making this {} backup", choice.kind.as_str());
    let chain: Vec<Arc<Layer>> = choice
        .chain
        .iter()
        .map(|layer| Arc::new((*layer).clone()))
        .collect();
    let destination = Destination {
        repository: repository.clone(),
        cluster: cluster.clone(),
        label: label.clone(),
        layer_id,
        progress,
        runtime: Handle::current(),
    };
    let type_reason = choice.reason.clone();
    let (abort, committing) = (Abort::new(), AtomicBool::new(false));
    let backup = Backup {
        options,
        destination,
        chain,
        type_reason,
        wal,
        started_at,
        stopwatch,
        abort,
        sample: options.audit.map(|audit| {
            let seed = audit.seed.unwrap_or_else(rand::random);
            Sample::new(seed, audit.per_million)
        }),
        committing,
    };
    let outcome = backup.run(&ready).await;
    if outcome.is_err() {
        backup.clean_up().await;
    }
    outcome
}

async fn choose_wal(
    options: &BackupOptions,
    ready: &Ready,
    (repository, cluster): (&Repository, &ClusterName),
) -> Result<WalChoice> {
    let place = wal::Place {
        repository,
        cluster,
        data_directory: &ready.data_directory,
    };
    wal::choose(options.wal, &ready.session, place).await
}

/// One backup under way.
struct Backup<'a> {
    options: &'a BackupOptions,
    destination: Destination,
    chain: Vec<Arc<Layer>>,
    type_reason: String,
    wal: WalChoice,
    started_at: Timestamp,
    stopwatch: Stopwatch,
    abort: Abort,
    /// Which unchanged pages to look at.
    sample: Option<Sample>,
    /// Set before the manifest is sent: from then on the layer may exist.
    committing: AtomicBool,
}

/// What is known when all files are stored.
struct Copied {
    start_lsn: Lsn,
    source: SourceChoice,
    stored: Stored,
    tablespaces: Vec<Tablespace>,
    warnings: Vec<String>,
    control: ControlReading,
    check: PageCheck,
    /// From before the start, for the children.
    token: Option<String>,
    audit: Option<AuditReport>,
}

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
                .watch(self.destination.progress.clone(), ready.session.lost()),
        );
        let outcome = self.acts(ready).await;
        watching.abort();
        outcome
    }

    async fn acts(&self, ready: &Ready) -> Result<BackupReport> {
        // Early, so that no work is done in vain; the commit looks again.
        let destination = &self.destination;
        catalog::check_stays(&destination.repository, &destination.cluster, &self.chain).await?;
        let archive = self.archive(ready);
        let timeline = ready.control.timeline;
        let stream = if self.wal.streams {
            let id = hex(&self.destination.layer_id);
            Some(
                self.abort
                    .guard(Stream::hold(&ready.session, &archive, &id))
                    .await?,
            )
        } else {
            None
        };
        let by = if self.wal.streams {
            "this backup"
        } else {
            "the server"
        };
        tracing::info!(reason = %self.wal.reason, "WAL will be stored by {by}");
        // Before the start: what is written in between must be the next backup's.
        let token = source::make_token(ready).await;
        if self.options.require_tracker {
            source::require_tracker(self.search(ready), token.as_ref()).await?;
        }
        let name = format!("pgstrata {}", self.destination.label);
        self.stopwatch.end("prepare");
        let starting = ready.session.start(&name, self.options.fast_checkpoint);
        let start_lsn = self.abort.guard(starting).await?;
        self.stopwatch.end("checkpoint");
        tracing::info!(%start_lsn, "the backup has started");
        let following = stream.map(|stream| stream.follow(timeline, start_lsn, &self.abort));
        let copied = self.copy(ready, start_lsn, token).await?;
        self.stopwatch.end("copy");
        self.abort.guard(self.check_still(ready)).await?;
        let stopped = self.abort.guard(ready.session.stop()).await?;
        self.stopwatch.end("stop");
        tracing::info!(stop_lsn = %stopped.lsn, "the backup has stopped");
        check_label(&stopped, start_lsn, ready)?;
        let corrupt_pages = self.corrupt_pages(&copied, stopped.lsn)?;
        let securing = self.secure_wal(&archive, following, ready, start_lsn..stopped.lsn);
        let wal_segments_stored = self.abort.guard(securing).await?;
        self.stopwatch.end("wal");
        let manifest = self.manifest(ready, &copied, &stopped, corrupt_pages);
        self.commit(&manifest).await?;
        self.stopwatch.end("commit");
        Ok(self.report(manifest, copied, wal_segments_stored))
    }

    fn search<'a>(&'a self, ready: &'a Ready) -> Search<'a> {
        Search {
            ready,
            repository: &self.destination.repository,
            cluster: &self.destination.cluster,
            wanted: self.options.change_source,
            parent: self.chain.first().map(Arc::as_ref),
        }
    }

    fn archive(&self, ready: &Ready) -> Archive {
        Archive {
            repository: self.destination.repository.clone(),
            cluster: self.destination.cluster.clone(),
            record: ready.record.clone(),
            segment_size: ready.control.wal_segment_size,
            wal_directory: Archive::wal_directory(&ready.data_directory),
            codec: self.options.codec,
        }
    }

    /// Everything between start and stop.
    async fn copy(&self, ready: &Ready, start_lsn: Lsn, token: Option<String>) -> Result<Copied> {
        let begun = control_of(&ready.data_directory).await?;
        check_start_is_visible(&ready.data_directory, &begun.control, start_lsn)?;
        let now = ready.standpoint(&begun.control, start_lsn);
        let finding = source::find(self.search(ready), &now, Question::What);
        let source = self.abort.guard(finding).await?;
        if !self.chain.is_empty() {
            tracing::info!(reason = %source.record.reason, "changed pages are found by {}", source.record.used.as_str());
        }
        self.stopwatch.end("changes");
        let found = ready.scan().await?;
        self.stopwatch.end("list");
        self.destination.progress.set_total(found.size_bytes);
        let Scan {
            files,
            tablespaces,
            mut warnings,
            ..
        } = found;
        let check = PageCheck::new(
            ready.control.has_checksums(),
            self.options.check_page_headers,
            start_lsn,
        );
        let sample = audit::sample_for(&source.changes, self.sample);
        let (mut stored, check) = self
            .store(ready, files, check, (source.changes.clone(), sample))
            .await?;
        let audit = match sample {
            Some(sample) => Some(
                Audit {
                    ready,
                    destination: &self.destination,
                    chain: &self.chain,
                    source: &source,
                    start_lsn,
                    sample,
                }
                .judge(std::mem::take(&mut stored.assembled.audit))
                .await?,
            ),
            None => None,
        };
        warnings.extend(ready.tablespaces_since(&tablespaces).await?);
        // After everything else: on a standby its minimum recovery point must cover all pages read.
        let control = control_of(&ready.data_directory).await?;
        Ok(Copied {
            start_lsn,
            source,
            stored,
            tablespaces,
            warnings,
            control,
            check,
            token,
            audit,
        })
    }

    /// Files to packs and index.
    async fn store(
        &self,
        ready: &Ready,
        files: Vec<ScannedFile>,
        check: PageCheck,
        (changes, audit): (Changes, Option<Sample>),
    ) -> Result<(Stored, PageCheck)> {
        let (destination, abort) = (self.destination.clone(), self.abort.clone());
        let (chain, data_directory) = (self.chain.clone(), ready.data_directory.clone());
        let (codec, jobs, max_rate) =
            (self.options.codec, self.options.jobs, self.options.max_rate);
        let fail_on_corrupt_page = self.options.on_corrupt_page == CorruptPagePolicy::Fail;
        let lead = self.lead(ready, check.start_lsn(), (&changes, audit));
        let stored = tokio::task::spawn_blocking(move || {
            if let Some(lead) = lead {
                return Ok((lead.run(files)?, check));
            }
            let packs = Packs::default();
            let parent = (!chain.is_empty()).then(|| {
                Parent::new(
                    "",
                    &destination.repository,
                    &destination.cluster,
                    chain,
                    &destination.runtime,
                )
            });
            let work = Work {
                data_directory: &data_directory,
                destination: &destination,
                codec,
                jobs,
                check: &check,
                fail_on_corrupt_page,
                max_rate,
                changes: &changes,
                audit,
                abort: &abort,
                packs: &packs,
                place: Place::Layer,
            };
            let assembled = pipeline::run(&work, parent, files)?;
            let stored = Stored {
                assembled,
                pack_count: packs.count(),
                pack_bytes: packs.bytes(),
                shares: Vec::new(),
            };
            Ok((stored, check))
        });
        // Not guarded: the threads see an abort themselves, and must be gone before we clean up.
        stored.await.unwrap_or_else(|error| {
            Err(Error::new(
                Kind::File,
                format!("could not read the cluster: {error}"),
            ))
        })
    }

    /// The lead of a backup that is shared.
    fn lead(
        &self,
        ready: &Ready,
        start_lsn: Lsn,
        (changes, audit): (&Changes, Option<Sample>),
    ) -> Option<Lead> {
        let options = self.options.shares?;
        let destination = &self.destination;
        let desk = Desk::new(destination.clone());
        let version = std::fs::metadata(ready.data_directory.join("PG_VERSION"));
        let share = Share {
            label: destination.label.to_string(),
            layer_id: hex(&destination.layer_id),
            number: 0,
            count: 0,
            parent: self.chain.first().map(|parent| parent.reference()),
            system_identifier: ready.control.system_identifier,
            start_lsn,
            timeline: ready.control.timeline,
            from_standby: ready.session.facts().in_recovery,
            version_identity: version.map_or(0, |metadata| identity(&metadata)),
            checksums: ready.control.has_checksums(),
            check_page_headers: self.options.check_page_headers,
            codec: self.options.codec.to_string(),
            audit,
            changes: changes.clone(),
            files: Vec::new(),
        };
        let limits = (self.options.jobs, self.options.max_rate);
        let directory = ready.data_directory.clone();
        let maker = Maker::new(
            desk,
            self.chain.clone(),
            directory,
            limits,
            self.abort.clone(),
        );
        Some(Lead::new(maker, options, share))
    }

    /// A promotion voids the backup of a standby.
    async fn check_still(&self, ready: &Ready) -> Result<()> {
        let in_recovery = ready.session.is_in_recovery().await?;
        if in_recovery == ready.session.facts().in_recovery {
            return Ok(());
        }
        Err(Error::new(
            Kind::Refused,
            "the standby was promoted while it was backed up",
        )
        .hint("start the backup again"))
    }

    fn corrupt_pages(&self, copied: &Copied, stop_lsn: Lsn) -> Result<Vec<CorruptPage>> {
        let complaints = copied.stored.assembled.complaints.iter();
        let standing =
            complaints.filter(|(_, _, complaint)| copied.check.stands(complaint, stop_lsn));
        let pages: Vec<CorruptPage> = standing
            .map(|(path, block, complaint)| CorruptPage {
                path: path.clone(),
                block: *block,
                reason: complaint.reason.clone(),
            })
            .collect();
        for page in pages.iter().take(10) {
            tracing::warn!(
                "block {} of \"{}\" is corrupt: {}",
                page.block,
                page.path,
                page.reason
            );
        }
        match pages.first() {
            Some(page) if self.options.on_corrupt_page == CorruptPagePolicy::Fail => {
                Err(corrupt_page_error(&page.path, page.block, &page.reason))
            }
            _ => Ok(pages),
        }
    }

    /// The WAL of the backup, and the history of its timeline, are in the repository.
    async fn secure_wal(
        &self,
        archive: &Archive,
        following: Option<Following>,
        ready: &Ready,
        range: std::ops::Range<Lsn>,
    ) -> Result<u64> {
        let (timeline, timeout) = (ready.control.timeline, self.options.wal_timeout);
        archive.push_history(timeline).await?;
        match following {
            Some(following) => {
                following
                    .finish(archive, timeline, range.end, timeout)
                    .await
            }
            None => {
                let waiting = archive.wait(&ready.session, (timeline, range), timeout);
                waiting.await.map(|()| 0)
            }
        }
    }

    fn manifest(
        &self,
        ready: &Ready,
        copied: &Copied,
        stopped: &Stopped,
        corrupt_pages: Vec<CorruptPage>,
    ) -> Manifest {
        let control = &copied.control.bytes;
        let used = control
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        let assembled = &copied.stored.assembled;
        Manifest {
            label: self.destination.label.as_str().to_owned(),
            layer_id: hex(&self.destination.layer_id),
            parent: self.chain.first().map(|parent| ParentRef {
                label: parent.label.as_str().to_owned(),
                manifest_digest: parent.manifest_digest.clone(),
            }),
            replaces: Vec::new(),
            inputs: Vec::new(),
            cluster: ready.identity.clone(),
            written_by: WRITTEN_BY.to_owned(),
            started_at: self.started_at,
            finished_at: Timestamp::now(),
            start_lsn: copied.start_lsn,
            stop_lsn: stopped.lsn,
            timeline: ready.control.timeline,
            from_standby: ready.session.facts().in_recovery,
            change_source: copied.source.record.clone(),
            tracker_token: copied.token.clone(),
            backup_label: stopped.backup_label.clone(),
            tablespace_map: stopped.tablespace_map.clone(),
            pg_control: hex(&control[..used]),
            pg_control_size: u32::try_from(control.len()).expect("8192"),
            tablespaces: copied.tablespaces.clone(),
            index: assembled.parts.clone(),
            pack_count: copied.stored.pack_count,
            pack_bytes: copied.stored.pack_bytes,
            totals: assembled.totals,
            corrupt_pages,
            encryption: None,
        }
    }

    /// Makes the layer exist.
    async fn commit(&self, manifest: &Manifest) -> Result<()> {
        let object = manifest::encode(manifest);
        let destination = &self.destination;
        catalog::commit_layer(
            &destination.repository,
            &destination.cluster,
            &self.chain,
            (&destination.label, object),
            &self.committing,
        )
        .await
    }

    fn report(&self, manifest: Manifest, copied: Copied, wal_segments_stored: u64) -> BackupReport {
        BackupReport {
            label: self.destination.label.clone(),
            parent: self.chain.first().map(|parent| parent.label.clone()),
            type_reason: self.type_reason.clone(),
            change_source: manifest.change_source,
            audit: copied.audit,
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
            shares: copied.stored.shares,
            phases: self.stopwatch.phases(),
        }
    }

    /// Removes what a failed backup has stored, as far as the repository lets us; the claim last.
    async fn clean_up(&self) {
        let (repository, cluster, label) = (
            &self.destination.repository,
            &self.destination.cluster,
            &self.destination.label,
        );
        if self.committing.load(Ordering::Relaxed) {
            // The manifest may have been created, or may yet be, although we were told otherwise.
            tracing::warn!(%label, "it is not known whether the layer was committed: see info");
            return;
        }
        let attempt = async {
            let claim = cluster.claim_key(label);
            let mut objects = repository.list(&cluster.layer_prefix(label)).await?;
            // Helpers that find their shares gone stop.
            let shares = cluster.shares_prefix(label);
            objects.sort_by_key(|object| !object.key.starts_with(&shares));
            for object in objects {
                if object.key != claim {
                    repository.delete(&object.key).await?;
                }
            }
            repository.delete(&claim).await
        };
        if let Err(error) = attempt.await {
            tracing::warn!(%label, %error, "could not remove what the failed backup has stored: it is harmless, and listed by info");
        }
    }
}

/// The label must be of this backup: of this start, this timeline, this kind of server.
fn check_label(stopped: &Stopped, start_lsn: Lsn, ready: &Ready) -> Result<()> {
    let wrong = |what: String| {
        Error::new(
            Kind::Server,
            format!("the backup label of the server is not that of this backup: {what}"),
        )
    };
    let label =
        BackupLabel::parse(&stopped.backup_label).map_err(|error| wrong(error.to_string()))?;
    if label.start_lsn != start_lsn || label.start_timeline != ready.control.timeline {
        return Err(wrong(format!(
            "it starts at {} on timeline {}, expected {start_lsn} on {}",
            label.start_lsn, label.start_timeline, ready.control.timeline
        )));
    }
    if (label.backup_from == BackupFrom::Standby) != ready.session.facts().in_recovery {
        return Err(wrong(
            "the server has changed between primary and standby".to_owned(),
        ));
    }
    if stopped.lsn < start_lsn {
        return Err(wrong(format!(
            "it ends at {}, before its start at {start_lsn}",
            stopped.lsn
        )));
    }
    Ok(())
}
