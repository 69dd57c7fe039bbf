//! The end of a standby's backup: it lies in a WAL segment that only the primary can finish.
//!
//! A primary finishes the segment by itself when its backup stops. A standby cannot, and a primary with nothing to do
//! would not for hours. So the backup asks the primary, and says what it waits for, to whom it cannot ask as well.
//! A standby that is promoted, or follows its primary to another timeline, has no such end, and that is told as soon as it shows.

use std::convert::Infallible;
use std::time::Duration;

use pgstrata_pgdata::{ControlFile, Lsn, TimelineId, WalSegment, WalSegmentSize};
use pgstrata_store::error::{Error, Kind, Result};

use super::abort::Abort;
use super::decide::prepare::Ready;
use super::options::BackupOptions;
use crate::server::{Primary, Session};

/// How often a standby is asked whether it is one still, while it is backed up.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a promotion may take from where it writes its timeline into the control file to where it ends: there
/// `recovery_end_command` runs.
const PROMOTED_WITHIN: Duration = Duration::from_secs(2);

/// A standby follows its primary to another timeline, and knows of no restartpoint there for a while. A backup ends at the
/// minimum recovery point that `control` has (`do_pg_backup_stop` in PostgreSQL), and a layer has one timeline. A promotion, too,
/// leaves such a point until a checkpoint has ended (`CreateEndOfRecoveryRecord`).
///
/// # Errors
/// When that point is not on `timeline`, where the backup began: with what has brought the server there.
pub(super) async fn require_one_timeline(
    session: &Session,
    control: &ControlFile,
    timeline: TimelineId,
) -> Result<()> {
    match control.min_recovery_timeline {
        Some(other) if other != timeline => Err(why_left(session, timeline, other).await),
        _ => Ok(()),
    }
}

/// Why a standby is on another timeline than that on which its backup began.
pub(super) async fn why_left(session: &Session, timeline: TimelineId, other: TimelineId) -> Error {
    for pause in [Duration::ZERO, PROMOTED_WITHIN] {
        tokio::time::sleep(pause).await;
        if let Err(error) = require_not_promoted(session).await {
            return error;
        }
    }
    has_followed(timeline, other)
}

/// A promotion voids the backup of a standby.
///
/// # Errors
/// `Refused` when there was one since the session began; when the server does not answer.
pub(super) async fn require_not_promoted(session: &Session) -> Result<()> {
    match session.is_in_recovery().await? == session.facts().in_recovery {
        true => Ok(()),
        false => Err(promoted()),
    }
}

fn promoted() -> Error {
    let what = "the standby was promoted while it was backed up";
    Error::new(Kind::Refused, what).hint("start the backup again")
}

/// Does a part of a backup, and ends the backup as soon as its standby has been promoted: a copy may take hours yet, and keep WAL,
/// and the last segment of the old timeline is waited for in vain.
pub(super) async fn unless_promoted<T>(
    session: &Session,
    abort: &Abort,
    part: impl Future<Output = T>,
) -> T {
    tokio::select! {
        // It sees the abort by itself, and is to be waited for.
        done = part => done,
        never = end_when_promoted(session, abort) => match never {},
    }
}

async fn end_when_promoted(session: &Session, abort: &Abort) -> Infallible {
    until_promoted(session).await;
    abort.fail(promoted());
    std::future::pending().await
}

/// Returns when the server was a standby and has been promoted.
pub(super) async fn until_promoted(session: &Session) {
    if !session.facts().in_recovery {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        // That the server does not answer is told by whoever needs an answer.
        if matches!(session.is_in_recovery().await, Ok(false)) {
            return;
        }
    }
}

/// A standby's backup began on `timeline`, and the standby is on another one.
fn has_followed(timeline: TimelineId, other: TimelineId) -> Error {
    Error::new(
        Kind::Refused,
        format!(
            "the standby has followed its primary from timeline {timeline}, on which the backup started, to timeline {other}"
        ),
    )
    .hint("run CHECKPOINT on the primary, and on the standby when it has replayed that; then start the backup again")
}

/// Who finishes the last WAL segment of a backup.
pub(super) enum Finisher {
    /// The server that is backed up: a primary.
    Server,
    /// The primary of the standby, when it is asked.
    Primary(Primary),
    /// The primary, sooner or later: why it cannot be asked.
    Nobody(String),
}

impl Finisher {
    /// Looks for it before the copy, which may take hours.
    ///
    /// # Errors
    /// When the user names a primary that cannot be asked.
    pub(super) async fn find(ready: &Ready, options: &BackupOptions) -> Result<Self> {
        let session = &ready.session;
        if !session.facts().in_recovery {
            return Ok(Self::Server);
        }
        let told = options.primary.as_ref();
        match Primary::find(session, &options.connection, told).await {
            Ok(primary) => Ok(Self::Primary(primary)),
            Err(error) if told.is_some() => {
                Err(error.while_doing("could not use the primary that --primary names"))
            }
            Err(error) => Ok(Self::Nobody(error.to_string())),
        }
    }

    /// What may hold a backup up that is otherwise done.
    pub(super) fn doubt(&self) -> Option<String> {
        let Self::Nobody(why) = self else {
            return None;
        };
        Some(format!(
            "the backup will wait at its end until the primary has finished a WAL segment, because the primary cannot be asked to do so: {why}; --primary says how to reach it"
        ))
    }

    /// Has the segment finished in which the backup ends.
    ///
    /// Recovery to the end of the backup stops at the first record behind it, and fails when there is none. A primary
    /// writes one when its backup stops; behind the stop of a standby's backup the primary has to write one.
    pub(super) async fn finish(
        &self,
        session: &Session,
        end: SegmentEnd,
        timeout: Duration,
    ) -> Result<LastSegment> {
        let size = end.size;
        let last = WalSegment::containing_end(end.timeline, end.stop, size);
        let beyond = WalSegment::containing(end.timeline, end.stop, size);
        let complete = session.wal_end().await?;
        let why = match self {
            Self::Server => return Ok(LastSegment::there(last, size)),
            _ if beyond.end_lsn(size) <= complete => return Ok(LastSegment::there(beyond, size)),
            Self::Nobody(why) => why.clone(),
            Self::Primary(primary) => {
                // It may take connections and answer nothing.
                let asked = tokio::time::timeout(timeout, primary.finish(beyond, size));
                match asked.await {
                    Ok(Ok(())) => return Ok(LastSegment::asked(beyond, size, primary)),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("the primary at {primary} does not answer"),
                }
            }
        };
        let name = last.file_name(size);
        if last.end_lsn(size) <= complete {
            tracing::warn!(
                "the backup ends where WAL segment {name} ends: until the next one is archived, restore it with --target-type default, because recovery does not stop where the archive ends; the backup cannot have it finished, {why}"
            );
            return Ok(LastSegment::there(last, size));
        }
        tracing::warn!(
            "waiting up to {} s for WAL segment {name}, in which the backup ends and which only the primary can finish: run SELECT pg_switch_wal() on the primary; the backup cannot ask it, {why}",
            timeout.as_secs()
        );
        Ok(LastSegment {
            segment: last,
            waits_for: format!("WAL segment {name}, which the primary must finish"),
        })
    }
}

/// Where a backup has stopped.
#[derive(Clone, Copy)]
pub(super) struct SegmentEnd {
    pub(super) timeline: TimelineId,
    pub(super) stop: Lsn,
    pub(super) size: WalSegmentSize,
}

/// The last WAL segment that goes with a backup.
pub(super) struct LastSegment {
    pub(super) segment: WalSegment,
    /// What is waited for, for people.
    pub(super) waits_for: String,
}

impl LastSegment {
    fn there(segment: WalSegment, size: WalSegmentSize) -> Self {
        Self {
            segment,
            waits_for: format!("WAL segment {}", segment.file_name(size)),
        }
    }

    fn asked(segment: WalSegment, size: WalSegmentSize, primary: &Primary) -> Self {
        let name = segment.file_name(size);
        tracing::info!(
            "the primary at {primary} was asked to finish WAL segment {name}, in which the backup ends"
        );
        Self {
            segment,
            waits_for: format!(
                "WAL segment {name}, which the primary at {primary} was asked to finish"
            ),
        }
    }
}
