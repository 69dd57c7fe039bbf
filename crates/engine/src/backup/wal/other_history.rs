//! Whether the archive has WAL of another history under the names of this server's own.
//!
//! A copy of a server, or one whose storage was set back, writes segments of names that the archive has. Whoever stores its WAL
//! behind those takes names that the other server will need, and that one's archiver stops there for ever. So a backup looks
//! before it claims a layer, and again before it stores any WAL: at the segment that is being written, and at what waits for
//! the archiver. What cannot be compared is told, and is not called the same.

use std::path::Path;

use pgstrata_pgdata::{ArchiveFile, TimelineId, WalSegment};
use pgstrata_store::archive::{Archive, WaitingCompared, waiting_files};
use pgstrata_store::blocking::blocking;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::ANSWERS_WITHIN;
use tokio::time::timeout;

use super::ServerArchive;
use crate::server::Session;

/// What there is to do in either case.
const SET_BACK: &str = "the server was set back to an earlier state, or a copy of it archives under this cluster's name: give this \
     server a name of its own (pgstrata init --cluster NAME, the same NAME in its archive_command and in its configuration file, a \
     full backup)";

/// What else there is to do while nothing has been refused.
const OR_BRANCH: &str = "or begin a new timeline within this segment (the steps are in OPERATIONS.md, \"When the archive has another \
     history\": a fast stop would finish the segment, and the archiver would stumble over it)";

/// What helps no more when something waits.
const TOO_LATE: &str = "what waits for its archiver is then stored under that name. A new timeline does not help, and removing what \
     waits loses it (OPERATIONS.md, \"When the archive has another history\")";

impl ServerArchive {
    /// Refuses an archive that has another history, as far as it shows now: before a backup starts, which would finish the
    /// segment that is being written. Answers what could not be compared.
    pub(in crate::backup) async fn check_now(&self, session: &Session) -> Result<Vec<String>> {
        // First: while something waits that is refused, a new timeline does not help.
        let unknown = self.check_waiting().await?;
        self.check_written(session).await?;
        Ok(unknown)
    }

    /// Refuses an archive that has the segment which the server is writing.
    pub(in crate::backup) async fn check_written(&self, session: &Session) -> Result<()> {
        let end = session.wal_end().await?;
        match session.timeline(end).await? {
            Some(timeline) => self.check_future(session, timeline).await,
            None => Ok(()),
        }
    }

    /// Refuses an archive that has a segment which the server has not finished: one of another history, of which the
    /// server's own will never arrive.
    pub(in crate::backup) async fn check_future(
        &self,
        session: &Session,
        timeline: TimelineId,
    ) -> Result<()> {
        if session.facts().in_recovery {
            // Its primary is ahead.
            return Ok(());
        }
        let size = self.segment_size;
        let segment = WalSegment::containing(timeline, session.wal_end().await?, size);
        let name = segment.file_name(size);
        let held = Archive::new(&self.cluster, self.record.clone())?;
        // What is damaged is looked at when the server has finished its own.
        let is_there = match held.holds(&name).await {
            Err(error) if error.kind() == Kind::Repository => return Err(error),
            held => held.unwrap_or(true),
        };
        if !is_there {
            return Ok(());
        }
        // Or the server has filled it meanwhile, which it says later than its archiver may have brought it.
        let next = session.insert_position().await?;
        if WalSegment::containing(timeline, next, size) != segment {
            return Ok(());
        }
        let what = format!(
            "the archive already has WAL segment \"{name}\", which the server is still writing: it is of another history"
        );
        let hint = format!("{SET_BACK}; {OR_BRANCH}");
        Err(Error::new(Kind::AlreadyExists, what).hint(hint))
    }

    /// Refuses an archive, or another one into which the server may archive, that has other contents under the name of a
    /// file that waits for the archiver. Answers what could not be compared.
    pub(in crate::backup) async fn check_waiting(&self) -> Result<Vec<String>> {
        let (pg_wal, size) = (&self.wal_directory, self.segment_size);
        let directory = pg_wal.clone();
        let waiting = match blocking(move || waiting_files(&directory, size)).await {
            Ok(waiting) if waiting.is_empty() => return Ok(Vec::new()),
            Ok(waiting) => waiting,
            Err(error) => return Ok(vec![not_known("what waits for the archiver", &error)]),
        };
        let own = Archive::new(&self.cluster, self.record.clone())?;
        let compared = own.compare_waiting(pg_wal, &waiting).await?;
        let mut unknown = self.judge(compared, "the archive")?;
        for other in &self.others {
            let place = format!("the archive in {}", other.repository.url());
            let comparing = compare_in(other, pg_wal, &waiting);
            match timeout(ANSWERS_WITHIN, comparing).await {
                Ok(Ok(compared)) => unknown.extend(self.judge(compared, &place)?),
                // This backup does not depend on it.
                Ok(Err(error)) => unknown.push(not_known(&place, &error)),
                Err(_) => unknown.push(not_known(&place, &"it does not answer in time")),
            }
        }
        Ok(unknown)
    }

    fn judge(&self, compared: WaitingCompared, place: &str) -> Result<Vec<String>> {
        if let Some(file) = compared.other {
            let name = file.file_name(self.segment_size);
            let kind = match file {
                ArchiveFile::Segment(_) => "WAL segment",
                _ => "a file",
            };
            let what = format!(
                "{place} already has {kind} \"{name}\" with other contents than the one that waits for the server's archiver: it \
                 is of another history"
            );
            let hint = format!("{SET_BACK}; {TOO_LATE}");
            return Err(Error::new(Kind::AlreadyExists, what).hint(hint));
        }
        let unknown = compared.unknown.into_iter();
        Ok(unknown
            .map(|(name, why)| not_known(&format!("\"{name}\" in {place}"), &why))
            .collect())
    }
}

async fn compare_in(
    other: &ClusterRepository,
    pg_wal: &Path,
    waiting: &[ArchiveFile],
) -> Result<WaitingCompared> {
    let archive = Archive::load(other).await?;
    archive.compare_waiting(pg_wal, waiting).await
}

fn not_known(what: &str, why: &impl std::fmt::Display) -> String {
    format!("whether {what} is of another history than this server is not known: {why}")
}
