//! Whether the checkpoint with which a backup starts is made at once, or spread like the server's own ones.
//!
//! While it is made at once, whoever waits for the disk waits behind all that is to be written. One that is spread sleeps a tenth of
//! a second after each page until it is behind its schedule (postmaster/checkpointer.c, `CheckpointWriteDelay`): from some thousand
//! pages on it takes its whole time, minutes as a server is installed. So it is spread where somebody would feel it otherwise.

use std::fmt;
use std::time::{Duration, Instant};

use pgstrata_pgdata::Lsn;
use pgstrata_store::error::Result;

use crate::backup::options::StartCheckpoint;
use crate::server::{CheckpointOutlook, Session};

/// With less WAL since the last checkpoint the next one mostly has some thousand pages to write, a moment's work: after a checkpoint
/// the first change of a page brings the whole page into the WAL.
const MUCH_BYTES: u64 = 64 << 20;

/// One that takes longer is not waited for. Where the server is at another one, that is waited for as well.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// A server on which somebody writes five times a second or more is mostly seen to write twice in that time. Once is not enough: by
/// itself it logs a snapshot now and then (postmaster/bgwriter.c, `LogStandbySnapshot`).
const WATCH_FOR: Duration = Duration::from_millis(400);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A server that is slow to answer is looked at for longer.
const LOOKS: u32 = 20;

/// How the checkpoint is made, and why so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointChoice {
    /// The server spreads it (or else it makes it at once).
    pub is_spread: bool,
    /// One line, for people.
    pub reason: String,
}

impl CheckpointChoice {
    fn fast(reason: impl Into<String>) -> Self {
        Self {
            is_spread: false,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for CheckpointChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_spread { "spread" } else { "fast" };
        write!(f, "{how}: {}", self.reason)
    }
}

/// Decides; where that is left to us, by what the server has to write and by whether somebody writes now. `streams` says whether the
/// backup stores its own WAL.
pub(crate) async fn choose(
    wanted: StartCheckpoint,
    session: &Session,
    streams: bool,
) -> CheckpointChoice {
    let asked = "as --checkpoint or --impact says";
    match wanted {
        StartCheckpoint::Fast => CheckpointChoice::fast(asked),
        StartCheckpoint::Spread => CheckpointChoice {
            is_spread: true,
            reason: asked.to_owned(),
        },
        // Its restartpoint is one of the checkpoints that it has replayed, and there may be none to wait for.
        StartCheckpoint::Auto if session.facts().in_recovery => {
            CheckpointChoice::fast("the server is a standby")
        }
        // From the slot's beginning on, and nobody may use a slot while its session waits: a server of 18 takes it for idle.
        StartCheckpoint::Auto if streams => CheckpointChoice::fast(
            "the backup stores its own WAL, all of which the server would keep while a spread one is made",
        ),
        // It is for the users' comfort, and decides nothing about the backup. Who has lost the server hears that from the start.
        StartCheckpoint::Auto => look(session)
            .await
            .unwrap_or_else(|error| CheckpointChoice::fast(error.to_string())),
    }
}

async fn look(session: &Session) -> Result<CheckpointChoice> {
    let outlook = session.checkpoint_outlook().await?;
    if let Some(choice) = needs_no_look(&outlook) {
        return Ok(choice);
    }
    Ok(match is_written_to(session, outlook.position).await? {
        true => spread(&outlook),
        false => CheckpointChoice::fast("nobody writes at the moment"),
    })
}

/// What is made at once whoever is there.
fn needs_no_look(outlook: &CheckpointOutlook) -> Option<CheckpointChoice> {
    let reason = if outlook.wal_bytes < MUCH_BYTES {
        format!(
            "only {} MiB of WAL since the last checkpoint",
            outlook.wal_bytes >> 20
        )
    } else if outlook.spread_over() > LONGEST {
        format!(
            "a spread one would take about {}, which is too long to wait for unasked; --checkpoint spread waits",
            minutes(outlook.spread_over())
        )
    } else {
        return None;
    };
    Some(CheckpointChoice::fast(reason))
}

fn spread(outlook: &CheckpointOutlook) -> CheckpointChoice {
    CheckpointChoice {
        is_spread: true,
        reason: format!(
            "others write, {} MiB of WAL since the last checkpoint; a spread one takes about {}, and as much again when the server is at \
             another one; --checkpoint fast does not wait",
            outlook.wal_bytes >> 20,
            minutes(outlook.spread_over())
        ),
    }
}

/// Whether somebody writes now.
async fn is_written_to(session: &Session, mut position: Lsn) -> Result<bool> {
    let began = Instant::now();
    let (mut looks, mut advances) = (0, 0);
    while advances < 2 && (looks < LOOKS || began.elapsed() < WATCH_FOR) {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = session.insert_position().await?;
        advances += u32::from(now != position);
        position = now;
        looks += 1;
    }
    Ok(advances >= 2)
}

/// A span of time in words: minutes, or seconds where it is short.
fn minutes(span: Duration) -> String {
    match span.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_spread_only_where_it_is_felt_and_ends_soon_enough() {
        let said = |wal_mib: u64, timeout_seconds| {
            let outlook = CheckpointOutlook {
                position: Lsn::new(1),
                wal_bytes: wal_mib << 20,
                wal_seconds: 60.0,
                timeout_seconds,
                max_wal_bytes: 1e12,
                target: 0.5,
            };
            let choice = needs_no_look(&outlook).unwrap_or_else(|| spread(&outlook));
            choice.to_string()
        };
        let little = "fast: only 63 MiB of WAL since the last checkpoint";
        assert_eq!(said(63, 540.0), little);
        let much = "spread: others write, 64 MiB of WAL since the last checkpoint; a spread one takes about 5 min,";
        assert!(said(64, 540.0).starts_with(much));
        assert!(said(64, 3600.0).starts_with("spread: "));
        assert!(said(64, 54.0).contains(" about 27 s,"));
        assert!(said(64, 3700.0).starts_with("fast: a spread one would take about 31 min,"));
    }
}
