//! Whether the WAL of backups, and of what follows them, will get into the repository.

use std::path::Path;
use std::time::Duration;

use pgstrata_layer::cluster::ClusterRecord;
use pgstrata_layer::frame::Codec;
use pgstrata_pgdata::{TimelineId, WalSegment};
use pgstrata_store::archive;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{FileContext, Result};
use tokio::time::Instant;

use super::{ServerArchive, WalChoice, WalRoute, choose};
use crate::backup::options::WalMode;
use crate::health::{self, server::ServerVerdict};
use crate::server::Session;
use crate::server::archiver::TAKEN_WITHIN;

/// What to do about a file that waits for the archiver and could not be compared with the archive's.
const COMPARE: &str = "run pgstrata archive-push with that file: it says what is wrong with it, and mends what is damaged in the archive";

/// Whether WAL will get into the repository.
pub(crate) struct WalCheck<'a> {
    pub(crate) cluster: &'a ClusterRepository,
    pub(crate) record: &'a ClusterRecord,
    pub(crate) data_directory: &'a Path,
    pub(crate) timeline: TimelineId,
}

/// What a check of the WAL found.
pub(crate) struct WalProof {
    /// What was found, for people.
    pub(crate) detail: String,
    /// What to do about what could not be proved.
    pub(crate) doubt: Option<String>,
}

impl WalCheck<'_> {
    /// Switches to a new segment and waits for the old one when a backup would rely on the archiver, or would if that one
    /// arrived; otherwise holds WAL and reads it as a backup would.
    pub(crate) async fn run(
        &self,
        session: &Session,
        mode: WalMode,
        timeout: Duration,
    ) -> Result<WalProof> {
        // A switch would finish the segment that shows another history: so that is looked for before.
        let choice = choose(mode, session, self.route()).await?;
        let proof = self.prove(session, mode, timeout, &choice).await?;
        Ok(match choice.unknown.join("; ") {
            unknown if unknown.is_empty() => proof,
            unknown => WalProof {
                detail: format!("{}; {unknown}", proof.detail),
                doubt: Some(proof.doubt.unwrap_or_else(|| COMPARE.to_owned())),
            },
        })
    }

    /// Refuses an archive that has another history, and changes nothing.
    pub(crate) async fn require_own_history(&self, session: &Session) -> Result<()> {
        self.archive()?.check_now(session).await.map(|_| ())
    }

    async fn prove(
        &self,
        session: &Session,
        mode: WalMode,
        timeout: Duration,
        choice: &WalChoice,
    ) -> Result<WalProof> {
        let facts = session.facts();
        let archives = match (choice.streams, mode) {
            (false, _) => true,
            (true, WalMode::Auto) => self
                .route()
                .archiving(session, TAKEN_WITHIN)
                .await?
                .may_be_proved(),
            (true, _) => false,
        };
        if !archives {
            return self.check_stream(session, choice, timeout).await;
        }
        if facts.in_recovery || !facts.may_switch_wal {
            let hint = if facts.in_recovery {
                "run the check against the primary as well".to_owned()
            } else {
                format!(
                    "GRANT EXECUTE ON FUNCTION pg_catalog.pg_switch_wal() TO \"{}\"",
                    facts.role
                )
            };
            return Ok(WalProof {
                detail: format!(
                    "{}; that a new segment arrives was not tested: role \"{}\" cannot call pg_switch_wal() here",
                    choice.reason, facts.role
                ),
                doubt: Some(hint),
            });
        }
        self.round_trip(session, timeout).await
    }

    async fn round_trip(&self, session: &Session, timeout: Duration) -> Result<WalProof> {
        let archive = self.archive()?;
        let size = archive.segment_size;
        // Nothing to switch leaves the segment open: a record of ours makes sure there is something.
        let end = session.switch_wal_with_record().await?;
        let started = Instant::now();
        let segment = WalSegment::containing_end(self.timeline, end, size);
        let range = segment.start_lsn(size)..end;
        archive.wait(session, self.timeline, range, timeout).await?;
        let waited = started.elapsed();
        let held = archive::Archive::new(self.cluster, self.record.clone())?;
        let file = pgstrata_pgdata::ArchiveFile::Segment(segment);
        held.inspect(file).await?;
        Ok(WalProof {
            detail: format!(
                "segment {} arrived in {:.1} s and reads back",
                segment.file_name(size),
                waited.as_secs_f64()
            ),
            doubt: None,
        })
    }

    async fn check_stream(
        &self,
        session: &Session,
        choice: &WalChoice,
        timeout: Duration,
    ) -> Result<WalProof> {
        let slot = format!("pgstrata_check_{:08x}", rand::random::<u32>());
        let archive = self.archive()?;
        session.hold_wal(&slot).await?;
        let now = session.wal_end().await?;
        let segment = WalSegment::containing_end(self.timeline, now, archive.segment_size);
        let path = archive
            .wal_directory
            .join(segment.file_name(archive.segment_size));
        tokio::fs::File::open(&path)
            .await
            .context(|| format!("could not read \"{}\"", path.display()))?;
        let archiving = self.route().archiving(session, timeout).await?;
        let mut detail = format!("backups store their own WAL: {}", choice.reason);
        let doubt = match health::server::archiver(&archiving) {
            ServerVerdict::Wrong(alarm) => {
                if !detail.contains(&alarm.reason) {
                    detail = format!("{detail}; {}", alarm.reason);
                }
                detail.push_str(&alarm.losses());
                Some(alarm.to_do)
            }
            ServerVerdict::Fine { .. } | ServerVerdict::Unseen { .. } => None,
        };
        Ok(WalProof { detail, doubt })
    }

    fn route(&self) -> WalRoute<'_> {
        WalRoute {
            cluster: self.cluster,
            others: &[],
            record: self.record,
            data_directory: self.data_directory,
        }
    }

    fn archive(&self) -> Result<ServerArchive> {
        self.route().archive(Codec::default())
    }
}
