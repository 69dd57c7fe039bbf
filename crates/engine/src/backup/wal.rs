//! The WAL of a backup: it must be in the repository before the layer exists.
//!
//! Either the server's archiver brings it and we wait, or we take finished
//! segments out of `pg_wal` while the backup runs. A temporary replication slot,
//! which ends with our session, keeps the server from recycling what we have
//! not stored yet.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::wal as object;
use pgstrata_pgdata::{ControlFile, Lsn, TimelineId, WalSegment, WalSegmentSize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::abort::Abort;
use super::options::WalMode;
use crate::cluster::{ServerFacts, Session};
use crate::error::{Error, FileContext, Kind, Result};
use crate::repository::Repository;

/// How often finished segments are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How the WAL gets into the repository, and why that way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalChoice {
    /// By us (or else by the server's archiver).
    pub streams: bool,
    /// One line, for people.
    pub reason: String,
}

impl std::fmt::Display for WalChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.streams { "stream" } else { "archive" };
        write!(f, "{how}: {}", self.reason)
    }
}

/// Decides how the WAL gets into the repository.
pub(super) fn choose(mode: WalMode, facts: &ServerFacts) -> Result<WalChoice> {
    let choice = |streams: bool, reason: &str| WalChoice {
        streams,
        reason: reason.to_owned(),
    };
    match mode {
        WalMode::Stream => Ok(choice(true, "asked for")),
        WalMode::Archive if facts.archives() => Ok(choice(false, "asked for")),
        WalMode::Archive => Err(Error::new(
            Kind::Refused,
            format!(
                "the server does not archive: archive_mode is \"{}\", archive_command is \"{}\"",
                facts.archive_mode, facts.archive_command
            ),
        )
        .hint("set archive_command = 'pgstrata ... archive-push %p', or use --wal stream")),
        WalMode::Auto if !facts.archives() => Ok(choice(true, "the server does not archive")),
        WalMode::Auto if is_ours(&facts.archive_command) => {
            Ok(choice(false, "the server's archive_command is ours"))
        }
        WalMode::Auto => Ok(choice(true, "the server archives elsewhere")),
    }
}

fn is_ours(command: &str) -> bool {
    command.contains("pgstrata")
        && (command.contains("archive-push") || command.contains("wal-push"))
}

/// The archive of one cluster, seen from its data directory.
#[derive(Clone, Debug)]
pub(super) struct Archive {
    pub(super) repository: Repository,
    pub(super) cluster: ClusterName,
    pub(super) system_identifier: u64,
    pub(super) segment_size: WalSegmentSize,
    pub(super) wal_directory: PathBuf,
    pub(super) codec: Codec,
}

impl Archive {
    pub(super) fn wal_directory(data_directory: &Path) -> PathBuf {
        data_directory.join("pg_wal")
    }

    /// Stores a file of `pg_wal`. Storing it again succeeds.
    async fn push(&self, timeline: TimelineId, file_name: &str) -> Result<()> {
        let path = self.wal_directory.join(file_name);
        let raw = tokio::fs::read(&path)
            .await
            .context(|| format!("could not read \"{}\"", path.display()))?;
        let key = self.cluster.wal_key(&timeline.hex8(), file_name);
        let body = object::encode(file_name, &raw, self.system_identifier, self.codec)?;
        self.repository.create(&key, Bytes::from(body)).await
    }

    /// Stores the history of `timeline`, unless it is the first.
    pub(super) async fn push_history(&self, timeline: TimelineId) -> Result<()> {
        let name = timeline.history_file_name();
        if timeline == TimelineId::FIRST || !self.wal_directory.join(&name).exists() {
            return Ok(());
        }
        self.push(timeline, &name).await
    }

    /// Waits until the archiver has brought the WAL of `start..stop`.
    pub(super) async fn wait(
        &self,
        timeline: TimelineId,
        range: std::ops::Range<Lsn>,
        timeout: Duration,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        for segment in WalSegment::covering(timeline, range.clone(), self.segment_size) {
            let name = segment.file_name(self.segment_size);
            let key = self.cluster.wal_key(&timeline.hex8(), &name);
            while self.repository.size(&key).await?.is_none() {
                if Instant::now() >= deadline {
                    return Err(missing(&name, timeout));
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }
}

fn missing(name: &str, timeout: Duration) -> Error {
    Error::new(
        Kind::WalMissing,
        format!("WAL segment {name} did not arrive in the repository within {} s", timeout.as_secs()),
    )
    .hint("look into the server's log and pg_stat_archiver for why archive_command fails, or use --wal stream")
}

/// Takes the WAL out of `pg_wal` while a backup runs.
pub(super) struct Stream {
    archive: Archive,
    session: Arc<Session>,
    slot: String,
}

impl Stream {
    /// Makes the server keep its WAL from here on: before the backup starts.
    pub(super) async fn hold(
        session: &Arc<Session>,
        archive: &Archive,
        layer_id: &str,
    ) -> Result<Self> {
        let slot = format!("pgstrata_{}", layer_id.get(..16).unwrap_or(layer_id));
        session.hold_wal(&slot).await?;
        Ok(Self {
            archive: archive.clone(),
            session: Arc::clone(session),
            slot,
        })
    }

    /// Begins to store the segments from that of `start_lsn` on as they are finished.
    pub(super) fn follow(self, timeline: TimelineId, start_lsn: Lsn, abort: &Abort) -> Following {
        let next = WalSegment::containing(timeline, start_lsn, self.archive.segment_size);
        let (end, ended) = watch::channel(None);
        let abort = abort.clone();
        let task = tokio::spawn(async move {
            let outcome = self.run(next, ended).await;
            if let Err(error) = &outcome {
                // The backup cannot be completed any more: end it now, not when the files are done.
                abort.fail(
                    Error::new(error.kind(), error.to_string())
                        .hint(error.hint_text().unwrap_or_default()),
                );
            }
            outcome
        });
        Following { end, task }
    }

    async fn run(
        self,
        mut next: WalSegment,
        mut ended: watch::Receiver<Option<End>>,
    ) -> Result<u64> {
        let size = self.archive.segment_size;
        let mut stored = 0;
        loop {
            let complete = self.session.wal_end().await?;
            let end = *ended.borrow_and_update();
            let before = stored;
            while next.end_lsn(size) <= complete && end.is_none_or(|end| next <= end.last) {
                self.store(next).await?;
                stored += 1;
                next = next.next();
            }
            if stored > before {
                self.session
                    .release_wal(&self.slot, next.start_lsn(size))
                    .await?;
            }
            if let Some(end) = end {
                if next > end.last {
                    return Ok(stored);
                }
                if Instant::now() >= end.deadline {
                    let name = next.file_name(size);
                    return Err(Error::new(Kind::WalMissing, format!("WAL segment {name} was not finished in time"))
                        .hint("on a standby the primary must finish it: run SELECT pg_switch_wal() there, or set archive_timeout"));
                }
            }
            tokio::select! {
                changed = ended.changed(), if end.is_none() => {
                    if changed.is_err() {
                        return Err(Error::new(Kind::Interrupted, "the backup was stopped"));
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    async fn store(&self, segment: WalSegment) -> Result<()> {
        let name = segment.file_name(self.archive.segment_size);
        self.archive.push(segment.timeline, &name).await.map_err(|error| {
            let error = error.while_doing(format!("could not store WAL segment {name}"));
            match error.kind() {
                Kind::File => error.hint("the server removed it: raise max_slot_wal_keep_size, or let it archive to the repository"),
                _ => error,
            }
        })
    }
}

/// The last segment a backup needs, and until when to wait for it.
#[derive(Clone, Copy, Debug)]
struct End {
    last: WalSegment,
    deadline: Instant,
}

/// A stream at work.
pub(super) struct Following {
    end: watch::Sender<Option<End>>,
    task: JoinHandle<Result<u64>>,
}

impl Following {
    /// Waits until all is stored up to `stop_lsn`; returns the number of segments.
    pub(super) async fn finish(
        mut self,
        archive: &Archive,
        timeline: TimelineId,
        stop_lsn: Lsn,
        timeout: Duration,
    ) -> Result<u64> {
        let last = WalSegment::containing_end(timeline, stop_lsn, archive.segment_size);
        self.end.send_replace(Some(End {
            last,
            deadline: Instant::now() + timeout,
        }));
        (&mut self.task).await.unwrap_or_else(|error| {
            Err(Error::new(
                Kind::WalMissing,
                format!("could not store the WAL: {error}"),
            ))
        })
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether WAL will get into the repository.
pub(crate) struct WalCheck<'a> {
    pub(crate) repository: &'a Repository,
    pub(crate) cluster: &'a ClusterName,
    pub(crate) data_directory: &'a Path,
    pub(crate) control: &'a ControlFile,
}

impl WalCheck<'_> {
    /// Switches to a new segment and waits for the old one, or holds WAL as a
    /// backup would. Returns what was found, for people.
    pub(crate) async fn run(
        &self,
        session: &Session,
        mode: WalMode,
        timeout: Duration,
    ) -> Result<String> {
        let facts = session.facts();
        let choice = choose(mode, facts)?;
        if choice.streams {
            session.hold_wal("pgstrata_check").await?;
            return Ok(format!("backups store it themselves: {}", choice.reason));
        }
        if facts.in_recovery || !facts.may_switch_wal {
            return Ok(format!(
                "{}; its arrival was not tested: role \"{}\" may not call pg_switch_wal() here",
                choice.reason, facts.role
            ));
        }
        let archive = Archive {
            repository: self.repository.clone(),
            cluster: self.cluster.clone(),
            system_identifier: self.control.system_identifier,
            segment_size: self.control.wal_segment_size,
            wal_directory: Archive::wal_directory(self.data_directory),
            codec: Codec::default(),
        };
        // Nothing to switch leaves the segment open: a record of ours makes sure there is something.
        let end = session.switch_wal_with_record().await?;
        let timeline = self.control.timeline;
        let segment = WalSegment::containing_end(timeline, end, archive.segment_size);
        archive
            .wait(
                timeline,
                segment.start_lsn(archive.segment_size)..end,
                timeout,
            )
            .await?;
        Ok(format!(
            "segment {} arrived",
            segment.file_name(archive.segment_size)
        ))
    }
}
