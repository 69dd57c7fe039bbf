//! The WAL of a backup: it must be in the repository before the layer exists.
//!
//! Either the server's archiver brings it and we wait, or we take finished
//! segments out of `pg_wal` while the backup runs. A temporary replication slot,
//! which ends with our session, keeps the server from recycling what we have
//! not stored yet.

mod check;
mod other_history;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::frame::Codec;
use pgstrata_pgdata::{ArchiveFile, Lsn, Major, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::archive::{self, FileRecords, Forks, PushOptions};
use pgstrata_store::blocking::blocking;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::progress::Progress;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::abort::Abort;
use super::decide::prepare::history;
use super::options::WalMode;
use super::standby::{require_not_promoted, require_one_timeline, until_promoted, why_left};
use crate::server::archiver::{self, Archiving, TAKEN_WITHIN};
use crate::server::control::control_of;
use crate::server::session::Archiver;
use crate::server::{ServerFacts, Session};

pub(crate) use check::WalCheck;

/// How long the archiver has for the WAL of a backup before it is asked whether it works; then twice as long, and so on.
const ARCHIVER_HAS: Duration = Duration::from_secs(5);

/// How often WAL is let go that is stored, while more waits.
const RELEASE_EVERY: Duration = Duration::from_secs(2);

/// How often the slot is used: below any `idle_replication_slot_timeout` that is of use to somebody.
const USE_SLOT_EVERY: Duration = Duration::from_secs(1);

/// How often finished segments are looked for while files are copied.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// And how often when the backup waits for the last of them.
const LOOK_AT_END_EVERY: Duration = Duration::from_millis(100);

/// Segments in memory at once while they are compared with the archive: 64 MiB of the usual size.
const COMPARED_AT_ONCE: usize = 4;

/// How the WAL gets into the repository, and why that way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalChoice {
    /// By us (or else by the server's archiver).
    pub streams: bool,
    /// One line, for people.
    pub reason: String,
    /// The server's archiver is relied on by whoever restores to a later point, and does not work.
    pub trouble: Option<String>,
    /// What could not be compared of what waits for it.
    pub unknown: Vec<String>,
}

impl WalChoice {
    /// What somebody should look at.
    pub fn doubts(&self) -> impl Iterator<Item = String> {
        self.unknown.iter().chain(&self.trouble).cloned()
    }
}

impl std::fmt::Display for WalChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.streams { "stream" } else { "archive" };
        write!(f, "{how}: {}", self.reason)
    }
}

/// Where WAL comes from and goes to.
#[derive(Clone, Copy)]
pub(super) struct WalRoute<'a> {
    pub(super) cluster: &'a ClusterRepository,
    /// The same cluster in other repositories.
    pub(super) others: &'a [ClusterRepository],
    pub(super) record: &'a ClusterRecord,
    pub(super) data_directory: &'a Path,
}

impl WalRoute<'_> {
    /// How the server archives. A file may wait for the archiver for as long as `patience`.
    async fn archiving(&self, session: &Session, patience: Duration) -> Result<Archiving> {
        let held = archive::Archive::new(self.cluster, self.record.clone())?;
        let pg_wal = ServerArchive::wal_directory(self.data_directory);
        Archiving::ask(session, Some(&pg_wal), self.cluster, &held, patience).await
    }

    /// The archive; what a backup stores there it compresses so.
    pub(super) fn archive(&self, codec: Codec) -> Result<ServerArchive> {
        let segment_size = u64::from(self.record.wal_segment_size);
        Ok(ServerArchive {
            cluster: self.cluster.clone(),
            others: self.others.to_vec(),
            record: self.record.clone(),
            segment_size: WalSegmentSize::try_from(segment_size)?,
            wal_directory: ServerArchive::wal_directory(self.data_directory),
            codec,
        })
    }
}

/// Decides how the WAL gets into the repository.
///
/// `auto` waits for the server's archiver only when it is seen to work: the command is ours,
/// its last attempt did not fail, it keeps up, and the file archived last is in this
/// repository. In doubt the backup takes its WAL itself. That both store a segment does no harm: it is compared.
///
/// # Errors
/// `AlreadyExists` when the archive has another history: nothing of this server's may be stored there.
pub(super) async fn choose(
    mode: WalMode,
    session: &Session,
    route: WalRoute<'_>,
) -> Result<WalChoice> {
    let archive = route.archive(Codec::default())?;
    let unknown = archive.check_now(session).await?;
    let mut choice = decide(mode, session, route).await?;
    choice.unknown = unknown;
    if choice.streams && session.facts().archives() {
        // The backup does not depend on it: what cannot be asked is no trouble.
        let archiver = session.archiver().await.unwrap_or_default();
        let pg_wal = ServerArchive::wal_directory(route.data_directory);
        let late = archiver::late(&pg_wal, TAKEN_WITHIN);
        choice.trouble = archiver::trouble(&archiver, late.as_deref()).map(|trouble| {
            format!(
                "{trouble}: this backup stores its own WAL, and no restore gets past its end until WAL is archived \
                 again; look at the server's log, and at archive_command"
            )
        });
    }
    Ok(choice)
}

async fn decide(mode: WalMode, session: &Session, route: WalRoute<'_>) -> Result<WalChoice> {
    let facts = session.facts();
    let choice = |streams: bool, reason: String| {
        Ok(WalChoice {
            streams,
            reason,
            trouble: None,
            unknown: Vec::new(),
        })
    };
    let archiving = match mode {
        WalMode::Stream => return choice(true, "asked for".to_owned()),
        _ if facts.archives() => route.archiving(session, TAKEN_WITHIN).await?,
        WalMode::Archive => return Err(does_not_archive(facts)),
        WalMode::Auto => return choice(true, "the server does not archive".to_owned()),
    };
    if let Some(other) = &archiving.other_cluster
        && archiving.is_ours()
    {
        return Err(archives_as(other, &archiving, route.cluster.name.as_str()));
    }
    if mode == WalMode::Archive {
        return choice(false, "asked for".to_owned());
    }
    match (archiving.doubt(), &archiving.archiver.archived) {
        (None, Some((file, _))) => choice(
            false,
            format!("the server archives to this repository, {file} arrived"),
        ),
        _ if !facts.may_replicate && archiving.is_elsewhere() => {
            Err(cannot_get_wal(facts, &archiving))
        }
        (Some(doubt), _) if !facts.may_replicate => choice(
            false,
            format!(
                "role \"{}\" may not create a replication slot, although {doubt}",
                facts.role
            ),
        ),
        (doubt, _) => choice(true, doubt.unwrap_or_default()),
    }
}

fn cannot_get_wal(facts: &ServerFacts, archiving: &Archiving) -> Error {
    let (role, by) = (&facts.role, archiving.describe());
    Error::new(
        Kind::Refused,
        format!(
            "there is no way to get the WAL of a backup: the server archives elsewhere ({by}), and role \"{role}\" may not create the replication slot that streaming needs"
        ),
    )
    .hint(format!(
        "run: ALTER ROLE \"{role}\" REPLICATION; or set archive_command = 'pgstrata ... archive-push %p'; or say --wal archive if WAL comes to this repository all the same"
    ))
}

/// A schedule that was left behind when a copy of a server got a name of its own: the WAL of its backups would take the names
/// that the original needs. Whether the copy got a repository of its own as well makes no difference to that.
fn archives_as(other: &str, archiving: &Archiving, cluster: &str) -> Error {
    let (place, also) = match archiving.names_another {
        true => (
            " of another repository",
            " and --repo as archive_command does",
        ),
        false => ("", ""),
    };
    let what = format!(
        "the server archives as cluster \"{other}\"{place}, and this backup would be one of cluster \"{cluster}\""
    );
    Error::new(Kind::Refused, what).hint(format!(
        "say --cluster {other}{also}, or write that into the configuration file that the schedule uses; or name \"{cluster}\" in \
         archive_command; with --wal stream the backup brings its own WAL into \"{cluster}\" all the same"
    ))
}

fn does_not_archive(facts: &ServerFacts) -> Error {
    let standby = if facts.in_recovery && facts.archive_mode == "on" {
        " (a standby archives only with \"always\")"
    } else {
        ""
    };
    Error::new(
        Kind::Refused,
        format!(
            "the server does not archive: archive_mode is \"{}\"{standby}, archive_command is \"{}\"",
            facts.archive_mode, facts.archive_command
        ),
    )
    .hint("set archive_command = 'pgstrata ... archive-push %p', or use --wal stream")
}

/// The archive of one cluster, seen from its data directory.
#[derive(Clone, Debug)]
pub(super) struct ServerArchive {
    pub(super) cluster: ClusterRepository,
    /// The same cluster in other repositories, into which the server may archive as well.
    others: Vec<ClusterRepository>,
    pub(super) record: ClusterRecord,
    pub(super) segment_size: WalSegmentSize,
    pub(super) wal_directory: PathBuf,
    pub(super) codec: Codec,
}

impl ServerArchive {
    pub(super) fn wal_directory(data_directory: &Path) -> PathBuf {
        data_directory.join("pg_wal")
    }

    /// Stores a file of `pg_wal` as the server's archiver would. What is there already, from it
    /// or from another backup, is the same and stays.
    async fn push(&self, file_name: &str) -> Result<()> {
        let options = PushOptions {
            codec: self.codec,
            neighbours: 0,
            jobs: 1,
            notes: None,
            // By what the server says of the end of its WAL.
            finished: true,
            told: None,
        };
        let path = self.wal_directory.join(file_name);
        archive::push(&self.cluster, &self.record, &path, &options)
            .await
            .map(|_| ())
    }

    /// As [`Self::push`], of a file that the server may have removed: whether it was there.
    async fn push_if_there(&self, file_name: &str) -> Result<bool> {
        let path = self.wal_directory.join(file_name);
        if !path.exists() {
            return Ok(false);
        }
        match self.push(file_name).await {
            Err(error) if error.kind() == Kind::File && !path.exists() => Ok(false),
            pushed => pushed.map(|()| true),
        }
    }

    /// Whether the server has finished the file of `segment`, when it has reached `complete`. A standby may have got there on
    /// another timeline, or have replayed the record of a switch before it has what is behind it: what is in the file tells. It
    /// may also have the whole file and replay it later.
    async fn is_finished(
        &self,
        session: &Session,
        segment: WalSegment,
        complete: Lsn,
    ) -> Result<bool> {
        let size = self.segment_size;
        if segment.end_lsn(size) > complete {
            return Ok(false);
        }
        if !session.facts().in_recovery {
            return Ok(true);
        }
        let path = self.wal_directory.join(segment.file_name(size));
        let (directory, major) = (self.wal_directory.clone(), session.facts().major);
        blocking(move || {
            let fork = Forks::beside(&directory)?.before_end(segment, size);
            match FileRecords::read(&path, segment, size, major) {
                // The server has removed it, or has never had it.
                Err(error) if error.kind() == Kind::File && !path.exists() => Ok(fork.is_none()),
                read => Ok(read?.are_whole(fork)),
            }
        })
        .await
    }

    /// Refuses to wait for a segment that a standby will never have, because it has followed its primary to another timeline.
    async fn require_not_left(&self, session: &Session, segment: WalSegment) -> Result<()> {
        if !session.facts().in_recovery {
            return Ok(());
        }
        let (directory, size) = (self.wal_directory.clone(), self.segment_size);
        let fork = blocking(move || Ok(Forks::beside(&directory)?.before_end(segment, size)));
        match fork.await? {
            Some(fork) => Err(why_left(session, segment.timeline, fork.to).await),
            None => Ok(()),
        }
    }

    /// Ends a standby's backup as soon as its stop is bound to lie on another timeline.
    async fn require_one_timeline(&self, session: &Session, timeline: TimelineId) -> Result<()> {
        match self.wal_directory.parent() {
            Some(data_directory) if session.facts().in_recovery => {
                let control = control_of(data_directory).await?.control;
                require_one_timeline(session, &control, timeline).await
            }
            _ => Ok(()),
        }
    }

    /// Stores the history of `timeline`, unless it is the first.
    pub(super) async fn push_history(&self, timeline: TimelineId) -> Result<()> {
        let name = timeline.history_file_name();
        if timeline == TimelineId::FIRST || !self.wal_directory.join(&name).exists() {
            return Ok(());
        }
        self.push(&name).await
    }

    /// What is to be said when the history of `timeline` is nowhere: a server that was restored with the timeline of its source
    /// has none.
    pub(super) async fn lacks_history(&self, timeline: TimelineId) -> Result<Option<String>> {
        let name = timeline.history_file_name();
        if timeline == TimelineId::FIRST || self.wal_directory.join(&name).exists() {
            return Ok(None);
        }
        Ok(self.is_not_archived(&name).await?.then(|| {
            format!(
                "\"{name}\", the history of this server's timeline, is neither in its pg_wal nor in the archive: until it is archived, only \
                 --target-type none restores this layer; fetch it with \"pgstrata archive-get\" out of the repository from which this server \
                 was restored, and store it with \"pgstrata archive-push\""
            )
        }))
    }

    /// Whether the archive has no such file. What is there and damaged is told by the alarms.
    async fn is_not_archived(&self, name: &str) -> Result<bool> {
        let held = archive::Archive::new(&self.cluster, self.record.clone())?;
        Ok(matches!(held.holds(name).await, Ok(false)))
    }

    /// Stores the histories of timelines before `timeline` that the archive has lost and the server has.
    pub(super) async fn push_lost_histories(&self, timeline: TimelineId) -> Result<()> {
        // One that cannot be read was refused when it was to be stored.
        let Ok(history) = history(&self.wal_directory, timeline) else {
            return Ok(());
        };
        for entry in history.entries() {
            let earlier = entry.timeline;
            if earlier == timeline || earlier == TimelineId::FIRST {
                continue;
            }
            let name = earlier.history_file_name();
            if self.wal_directory.join(&name).exists() && self.is_not_archived(&name).await? {
                self.push(&name).await?;
            }
        }
        Ok(())
    }

    /// Compares what the archive has with the server's own files. What the server has removed, it removed because
    /// its archiver had brought it.
    async fn check_same(&self, session: &Session, segments: &[WalSegment]) -> Result<()> {
        let size = self.segment_size;
        let complete = session.wal_reached().await?;
        let compare = async |segment: WalSegment| {
            if self.is_finished(session, segment, complete).await? {
                self.push_if_there(&segment.file_name(size)).await?;
            }
            Ok(())
        };
        let comparisons = segments.iter().map(|segment| compare(*segment));
        stream::iter(comparisons)
            .buffer_unordered(COMPARED_AT_ONCE)
            .try_collect()
            .await
    }

    /// Waits until the archiver has brought the WAL of `start..stop`, this server's own.
    pub(super) async fn wait(
        &self,
        session: &Session,
        timeline: TimelineId,
        range: std::ops::Range<Lsn>,
        timeout: Duration,
    ) -> Result<()> {
        let segments: Vec<WalSegment> =
            WalSegment::covering(timeline, range, self.segment_size).collect();
        let progress = Progress::default();
        let held = archive::Archive::new(&self.cluster, self.record.clone())?;
        let waited = held.wait_for(&segments, timeout, &progress);
        match waited.await {
            Ok(()) => self.check_same(session, &segments).await,
            Err(error) if error.kind() == Kind::WalMissing => {
                self.check_waiting().await?;
                let why = self.archiver(session).await.why;
                let advice = format!("{why}; or use --wal stream");
                Err(Error::new(Kind::WalMissing, error.to_string()).hint(advice))
            }
            Err(error) => Err(error),
        }
    }

    /// As [`Self::wait`], but what the archiver does not bring is stored out of `pg_wal`: its trouble must not cost a
    /// backup that is all but done. Returns how many segments that were, and what to say about it.
    pub(super) async fn wait_or_store(
        &self,
        session: &Session,
        timeline: TimelineId,
        range: std::ops::Range<Lsn>,
        timeout: Duration,
    ) -> Result<(u64, Option<String>)> {
        let segments: Vec<WalSegment> =
            WalSegment::covering(timeline, range.clone(), self.segment_size).collect();
        let progress = Progress::default();
        let held = archive::Archive::new(&self.cluster, self.record.clone())?;
        let deadline = Instant::now() + timeout;
        let (mut stored, mut warning) = (0, None);
        let mut pause = ARCHIVER_HAS;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_over = tokio::select! {
                waited = held.wait_for(&segments, left, &progress) => match waited {
                    Ok(()) => break,
                    Err(error) if error.kind() == Kind::WalMissing => true,
                    Err(error) => return Err(error),
                },
                () = self.until_it_is_broken(session, pause) => false,
                // What it has finished is still there, and nothing more comes.
                () = until_promoted(session) => false,
            };
            pause *= 2;
            // What the archiver is refused no backup may store either, and nothing behind it.
            self.check_waiting().await?;
            let why = self.archiver(session).await.why;
            let (more, missing) = self.store_what_is_left(session, &held, &segments).await?;
            stored += more;
            if stored > 0 {
                warning = Some(format!(
                    "the backup stored {stored} WAL segments of its own that the server's archiver did not bring: {why}"
                ));
            }
            if !missing.is_empty() {
                require_not_promoted(session).await?;
            }
            match missing.first() {
                Some(first) if is_over => {
                    let late = archive::never_arrived(first, missing.len(), timeout);
                    let what = format!("{late}, and pg_wal has no finished one");
                    let advice = format!("{why}; or use --wal stream");
                    return Err(Error::new(Kind::WalMissing, what).hint(advice));
                }
                _ if is_over => break,
                _ => {}
            }
        }
        self.check_same(session, &segments).await?;
        self.push_note(timeline, range.start).await?;
        Ok((stored, warning))
    }

    /// Stores the server's note of the backup that started at `start_lsn`. It tells that the server archived, and the archiver
    /// may break before it has brought it. A standby has none.
    async fn push_note(&self, timeline: TimelineId, start_lsn: Lsn) -> Result<()> {
        let size = self.segment_size;
        let segment = WalSegment::containing(timeline, start_lsn, size);
        let offset = start_lsn.get() - segment.start_lsn(size).get();
        let Ok(offset) = u32::try_from(offset) else {
            return Ok(());
        };
        let note = ArchiveFile::BackupLabel { segment, offset };
        self.push_if_there(&note.file_name(size)).await.map(|_| ())
    }

    /// Stores the segments that are not in the archive and that the server has finished and still has. Returns how
    /// many those are, and which are nowhere.
    async fn store_what_is_left(
        &self,
        session: &Session,
        held: &archive::Archive,
        segments: &[WalSegment],
    ) -> Result<(u64, Vec<String>)> {
        let complete = session.wal_reached().await?;
        let (mut stored, mut missing) = (0, Vec::new());
        for segment in segments {
            let name = segment.file_name(self.segment_size);
            if held.holds(&name).await? {
                continue;
            }
            let is_finished = self.is_finished(session, *segment, complete).await?;
            if !is_finished && segment.end_lsn(self.segment_size) <= complete {
                self.require_not_left(session, *segment).await?;
            }
            match is_finished && self.push_if_there(&name).await? {
                true => stored += 1,
                false => missing.push(name),
            }
        }
        Ok((stored, missing))
    }

    /// Looks at the archiver every `pause`; returns when it does not work.
    async fn until_it_is_broken(&self, session: &Session, pause: Duration) {
        loop {
            tokio::time::sleep(pause).await;
            if self.archiver(session).await.is_broken {
                return;
            }
        }
    }

    async fn archiver(&self, session: &Session) -> ArchiverState {
        // The server knows more; if it cannot be asked, what is known must do.
        let archiver = session.archiver().await.unwrap_or_default();
        let late = archiver::late(&self.wal_directory, TAKEN_WITHIN);
        ArchiverState {
            is_broken: archiver.is_failing || late.is_some(),
            why: why_not(&archiver, late),
        }
    }
}

/// How the server's archiver does.
struct ArchiverState {
    is_broken: bool,
    /// What that tells about WAL that does not come.
    why: String,
}

/// What the archiver's state tells about WAL that does not come.
fn why_not(archiver: &Archiver, late: Option<String>) -> String {
    match (&archiver.failed, &archiver.archived) {
        _ if late.is_some() => {
            format!(
                "the archiver {}: look at the server's log",
                late.unwrap_or_default()
            )
        }
        (Some((file, time)), _) if archiver.is_failing => {
            format!("archive_command failed with {file} at {time}: look at the server's log")
        }
        (_, Some((file, time))) => format!(
            "the archiver's last file was {file} at {time}: is archive_command that of this \
             repository and cluster, and does the archiver keep up"
        ),
        _ => "the archiver has not archived anything: look at the server's log".to_owned(),
    }
}

/// Takes the WAL out of `pg_wal` while a backup runs.
pub(super) struct Stream {
    archive: ServerArchive,
    session: Arc<Session>,
    slot: String,
}

impl Stream {
    /// Makes the server keep its WAL from here on: before the backup starts.
    pub(super) async fn hold(
        session: &Arc<Session>,
        archive: &ServerArchive,
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
            // Beside it: one segment may take long to store.
            let outcome = tokio::select! {
                outcome = self.run(next, ended) => outcome,
                never = self.use_slot() => match never {},
            };
            if let Err(error) = &outcome {
                // The backup cannot be completed any more: end it now, not when the files are done.
                let told = Error::new(error.kind(), error.to_string());
                abort.fail(match error.hint_text() {
                    Some(hint) => told.hint(hint),
                    None => told,
                });
            }
            outcome
        });
        Following { end, task }
    }

    /// Keeps the slot from looking idle.
    async fn use_slot(&self) -> Infallible {
        while self.session.facts().major >= Major::V18 {
            tokio::time::sleep(USE_SLOT_EVERY).await;
            if let Err(error) = self.session.touch_slot(&self.slot).await {
                // The slot is gone with the error. What the server removes too early will be missed by name.
                tracing::warn!("the server may remove WAL before it is stored: {error}");
                break;
            }
        }
        std::future::pending().await
    }

    async fn run(
        &self,
        mut next: WalSegment,
        mut ended: watch::Receiver<Option<End>>,
    ) -> Result<u64> {
        let size = self.archive.segment_size;
        // WAL of a timeline without its history is of no use to anybody.
        self.archive.push_history(next.timeline).await?;
        let mut stored = 0;
        let (mut holds, mut released) = (true, Instant::now());
        loop {
            let (archive, session) = (&self.archive, &self.session);
            archive.require_one_timeline(session, next.timeline).await?;
            let complete = session.wal_reached().await?;
            let end = *ended.borrow_and_update();
            let before = stored;
            while end.is_none_or(|end| next <= end.last)
                && archive.is_finished(session, next, complete).await?
            {
                self.store(next).await?;
                stored += 1;
                next = next.next();
                // What waited while the repository did not answer may be much.
                if holds && released.elapsed() >= RELEASE_EVERY {
                    holds = self.release(next).await;
                    released = Instant::now();
                }
            }
            if stored > before && holds {
                holds = self.release(next).await;
            }
            if let Some(end) = end {
                if next > end.last {
                    return Ok(stored);
                }
                if next.end_lsn(size) <= complete {
                    archive.require_not_left(session, next).await?;
                }
                // Nobody finishes it any more then.
                require_not_promoted(session).await?;
                if Instant::now() >= end.deadline {
                    let name = next.file_name(size);
                    return Err(Error::new(Kind::WalMissing, format!("WAL segment {name} was not finished in time"))
                        .hint("on a standby the primary must finish it: say with --primary how to reach it, or run SELECT pg_switch_wal() there, or set archive_timeout"));
                }
            }
            tokio::select! {
                changed = ended.changed(), if end.is_none() => {
                    if changed.is_err() {
                        return Err(Error::new(Kind::Interrupted, "the backup was stopped"));
                    }
                }
                () = tokio::time::sleep(if end.is_some() { LOOK_AT_END_EVERY } else { LOOK_EVERY }) => {}
            }
        }
    }

    /// Lets the server remove the segments before `next`; answers whether it can still be told.
    async fn release(&self, next: WalSegment) -> bool {
        let keep_from = next.start_lsn(self.archive.segment_size);
        let released = self.session.release_wal(&self.slot, keep_from).await;
        if let Err(error) = &released {
            // The slot is gone with the error. What the server removes too early will be missed by name.
            tracing::warn!("the server may remove WAL before it is stored: {error}");
        }
        released.is_ok()
    }

    async fn store(&self, segment: WalSegment) -> Result<()> {
        let name = segment.file_name(self.archive.segment_size);
        self.archive.push(&name).await.map_err(|error| {
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
        archive: &ServerArchive,
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
