//! WAL summaries (`summarize_wal`, PostgreSQL 17 and later): which blocks of main forks
//! the WAL of a stretch names.
//!
//! A stretch is covered when summaries of its very timeline reach from its first to
//! its last byte without a gap; a summary that reaches over an end only names more.
//! A summary is believed only when this run of the server has written it. Older files that are copied over a data
//! directory leave newer summaries where they are. They are of a history that is lost, their LSNs come again, and the
//! server itself takes them for its own: its summarizer goes on behind the last of them. No time of a file tells them
//! apart, for whoever changes rights or makes links sets a new one, and clocks may be ahead. So a backup looks, before it
//! starts, whether a summary goes beyond the WAL that there is. When none does, this run writes all summaries of the WAL
//! that comes then, because nothing is put back while it lasts.
//!
//! Free space and visibility maps change without the WAL naming their blocks, so
//! nothing is said of them ([`ChangedBlocks::covers_all_forks`] is false).

use std::ops::Range;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use pgstrata_layer::changeset::ChangedBlocks;
use pgstrata_pgdata::relation::{BLOCKS_PER_SEGMENT, ForkKind, Oid, RelSegment, RelationFork};
use pgstrata_pgdata::{Lsn, Major, TimelineId};
use pgstrata_store::error::{Error, Kind, Result};

use super::session::{Session, get, lsn, row_of, rows_of, server_error};

/// The summarizer follows the WAL within seconds; one that is this far behind is stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often we look whether it has come: a small part of a backup's time.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// WAL of one timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The timeline.
    pub timeline: TimelineId,
    /// From its first byte to the one after its last.
    pub range: Range<Lsn>,
}

/// Why summaries do not cover a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    /// The summarizer has not come to its end.
    Behind(Lsn),
    /// WAL from here on is in no summary, and later WAL is.
    Hole(Lsn),
}

impl Stretch {
    fn touches(&self, other: &Self) -> bool {
        self.timeline == other.timeline
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// The summaries that cover `stretch`, out of all that there are.
fn cover(stretch: &Stretch, available: &[Stretch]) -> std::result::Result<Vec<Stretch>, Gap> {
    let touching = available.iter().filter(|summary| summary.touches(stretch));
    let mut of_timeline: Vec<&Stretch> = touching.collect();
    of_timeline.sort_unstable_by_key(|summary| (summary.range.start, summary.range.end));
    let mut reached = stretch.range.start;
    for summary in &of_timeline {
        if summary.range.start > reached {
            return Err(Gap::Hole(reached));
        }
        reached = reached.max(summary.range.end);
    }
    if reached < stretch.range.end {
        return Err(Gap::Behind(reached));
    }
    Ok(of_timeline.into_iter().cloned().collect())
}

/// The summaries of one server.
pub struct Summaries<'a> {
    session: &'a Session,
    major: Major,
}

impl<'a> Summaries<'a> {
    /// Of a server that makes them.
    ///
    /// # Errors
    /// Why this one does not.
    pub async fn of(session: &'a Session) -> Result<std::result::Result<Self, String>> {
        let major = session.facts().major;
        if major < Major::V17 {
            let version = &session.facts().version;
            return Ok(Err(format!("version {version} does not summarize WAL")));
        }
        let act = "could not ask whether WAL is summarized";
        let query = "SELECT current_setting('summarize_wal')::bool";
        if !get::<bool>(&row_of(session.client(), act, query, &[]).await?, 0, act)? {
            return Ok(Err("summarize_wal is off".to_owned()));
        }
        Ok(Ok(Self { session, major }))
    }

    /// Why the summaries cannot cover `stretches`; `None` when they do, or still may.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn doubt(&self, stretches: &[Stretch]) -> Result<Option<String>> {
        let available = self.available().await?;
        let last = stretches.len().saturating_sub(1);
        for (position, stretch) in stretches.iter().enumerate() {
            match cover(stretch, &available) {
                Ok(_) => {}
                // Nothing of the stretch: the server has removed it, or never made it.
                Err(Gap::Behind(reached)) if position == last && reached > stretch.range.start => {}
                Err(Gap::Behind(from) | Gap::Hole(from)) => {
                    return Ok(Some(missing(stretch, from)));
                }
            }
        }
        Ok(None)
    }

    /// Blocks that the WAL of `stretches` names, once it is summarized; or why they are not known.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn changes(
        &self,
        stretches: &[Stretch],
    ) -> Result<std::result::Result<ChangedBlocks, String>> {
        let end = Instant::now() + PATIENCE;
        let summaries = loop {
            let available = self.available().await?;
            let covers: std::result::Result<Vec<_>, _> = stretches
                .iter()
                .map(|stretch| cover(stretch, &available).map_err(|gap| (stretch, gap)))
                .collect();
            match covers {
                Ok(covers) => break covers.concat(),
                Err((_, Gap::Behind(_))) if Instant::now() < end => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Err((stretch, Gap::Behind(from) | Gap::Hole(from))) => {
                    return Ok(Err(missing(stretch, from)));
                }
            }
        };
        let mut changes = ChangedBlocks::default();
        for summary in &summaries {
            self.read(summary, &mut changes).await?;
        }
        Ok(Ok(changes))
    }

    /// All that there are.
    ///
    /// # Errors
    /// When the role may not see them.
    pub async fn available(&self) -> Result<Vec<Stretch>> {
        available(self.session).await
    }

    async fn read(&self, summary: &Stretch, changes: &mut ChangedBlocks) -> Result<()> {
        let act = format!(
            "could not read the WAL summary from {} to {}",
            summary.range.start, summary.range.end
        );
        let failed = |error: tokio_postgres::Error| server_error(&act, &error);
        let query = "SELECT (s).* FROM (SELECT pg_wal_summary_contents($1::int8, $2::text::pg_lsn, $3::text::pg_lsn) AS s OFFSET 0) AS streamed";
        let timeline = i64::from(summary.timeline.get());
        let (start, end) = (
            summary.range.start.to_string(),
            summary.range.end.to_string(),
        );
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&timeline, &start, &end];
        let rows = self.session.client().query_raw(query, parameters).await;
        let mut rows = pin!(rows.map_err(failed)?);
        while let Some(row) = rows.try_next().await.map_err(failed)? {
            let oid = |column| row.try_get::<_, u32>(column).map(Oid).map_err(failed);
            let fork: i16 = row.try_get(3).map_err(failed)?;
            let block: i64 = row.try_get(4).map_err(failed)?;
            let named = Named {
                relation_fork: RelationFork {
                    relation: oid(0)?,
                    tablespace: oid(1)?,
                    database: oid(2)?,
                    fork: u32::try_from(fork)
                        .ok()
                        .and_then(ForkKind::from_number)
                        .ok_or_else(|| strange(&act, "a fork that is none"))?,
                },
                block: u32::try_from(block).map_err(|_| strange(&act, "a block that is none"))?,
                is_limit: row.try_get(5).map_err(failed)?,
            };
            named.add_to(self.major, changes);
        }
        Ok(())
    }
}

/// Where the WAL is, when every summary that is there is of WAL from before; `None` when one is not, or when nobody can tell.
/// `timeline` is not later than the server's.
pub async fn written_before(session: &Session, timeline: TimelineId) -> Option<Lsn> {
    if session.facts().major < Major::V17 {
        return None;
    }
    let looking = async {
        // In this order: what is listed cannot go beyond what comes after.
        let available = available(session).await?;
        let act = "could not ask for the end of the WAL";
        let query = "SELECT CASE WHEN pg_is_in_recovery()
                THEN greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())
                ELSE pg_current_wal_insert_lsn() END::text";
        let end = lsn(&row_of(session.client(), act, query, &[]).await?, 0, act)?;
        Ok::<_, Error>((available, end))
    };
    match looking.await {
        Ok((available, end)) => none_beyond(&available, timeline, end).then_some(end),
        Err(error) => {
            tracing::debug!("{error}");
            None
        }
    }
}

/// Whether no summary is of WAL that a server on this timeline, whose WAL ends there, is yet to write.
pub(crate) fn none_beyond(available: &[Stretch], timeline: TimelineId, end: Lsn) -> bool {
    available.iter().all(|summary| {
        summary.timeline < timeline || summary.timeline == timeline && summary.range.end <= end
    })
}

async fn available(session: &Session) -> Result<Vec<Stretch>> {
    let act = "could not list the WAL summaries";
    let query = "SELECT tli, start_lsn::text, end_lsn::text FROM pg_available_wal_summaries()";
    let rows = rows_of(session.client(), act, query).await?;
    rows.iter()
        .map(|row| {
            let timeline: i64 = row.try_get(0)?;
            let (start, end): (&str, &str) = (row.try_get(1)?, row.try_get(2)?);
            Ok((timeline, start.parse(), end.parse()))
        })
        .map(|row: std::result::Result<_, tokio_postgres::Error>| {
            let row = row.map_err(|error| server_error(act, &error))?;
            let (timeline, Ok(start), Ok(end)) = row else {
                return Err(strange(act, "an LSN that is none"));
            };
            let timeline = u32::try_from(timeline);
            Ok(Stretch {
                timeline: TimelineId::new(
                    timeline.map_err(|_| strange(act, "a timeline that is none"))?,
                ),
                range: start..end,
            })
        })
        .collect()
}

fn missing(stretch: &Stretch, from: Lsn) -> String {
    format!(
        "WAL from {from} on timeline {} is not summarized up to {}",
        stretch.timeline, stretch.range.end
    )
}

fn strange(act: &str, what: &str) -> Error {
    Error::new(Kind::Server, format!("{act}: the server returned {what}"))
}

/// One row of `pg_wal_summary_contents()`.
#[derive(Clone, Copy, Debug)]
struct Named {
    relation_fork: RelationFork,
    block: u32,
    /// The fork was this short at some time: it was cut, dropped or created.
    is_limit: bool,
}

impl Named {
    fn add_to(self, major: Major, changes: &mut ChangedBlocks) {
        let of_segment = |number| RelSegment {
            relation_fork: self.relation_fork,
            number,
        };
        if self.relation_fork.relation == Oid::INVALID {
            // The whole database was copied or dropped.
            let path = of_segment(0).path(major);
            let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
            changes.directories.insert(directory.to_owned());
            return;
        }
        if self.relation_fork.fork != ForkKind::Main {
            return;
        }
        if self.is_limit {
            let limit = changes
                .fork_limits
                .entry(of_segment(0).path(major))
                .or_insert(self.block);
            *limit = self.block.min(*limit);
            return;
        }
        let path = of_segment(self.block / BLOCKS_PER_SEGMENT).path(major);
        let file = changes.files.entry(path).or_default();
        file.blocks.insert(self.block % BLOCKS_PER_SEGMENT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(timeline: u32, start: u64, end: u64) -> Stretch {
        Stretch {
            timeline: TimelineId::new(timeline),
            range: Lsn::new(start)..Lsn::new(end),
        }
    }

    #[test]
    fn summaries_cover_without_a_gap_or_not_at_all() {
        let available = [
            stretch(1, 100, 200),
            stretch(1, 300, 400),
            stretch(1, 200, 300),
        ];
        let covered = cover(&stretch(1, 150, 250), &available).unwrap();
        assert_eq!(covered, [stretch(1, 100, 200), stretch(1, 200, 300)]);
        let gap = |wanted: Stretch| cover(&wanted, &available).unwrap_err();
        assert_eq!(gap(stretch(1, 350, 500)), Gap::Behind(Lsn::new(400)));
        assert_eq!(gap(stretch(1, 50, 150)), Gap::Hole(Lsn::new(50)));
        assert_eq!(gap(stretch(1, 400, 500)), Gap::Behind(Lsn::new(400)));
        let with_hole = [stretch(1, 100, 200), stretch(1, 201, 300)];
        let gap = cover(&stretch(1, 100, 300), &with_hole).unwrap_err();
        assert_eq!(gap, Gap::Hole(Lsn::new(200)));
    }

    #[test]
    fn a_summary_of_another_timeline_covers_nothing() {
        let available = [stretch(1, 100, 400), stretch(2, 300, 400)];
        let gap = cover(&stretch(2, 200, 400), &available).unwrap_err();
        assert_eq!(gap, Gap::Hole(Lsn::new(200)));
        // One that goes on beyond the point where its timeline was left names more, never less.
        assert!(cover(&stretch(1, 100, 200), &available).is_ok());
    }

    #[test]
    fn a_summary_of_wal_that_is_yet_to_come_is_of_a_history_that_is_lost() {
        let at = |available: &[Stretch], timeline, end| {
            none_beyond(available, TimelineId::new(timeline), Lsn::new(end))
        };
        let available = [stretch(1, 100, 200), stretch(1, 200, 300)];
        assert!(at(&[], 1, 0));
        assert!(at(&available, 1, 300));
        assert!(!at(&available, 1, 299));
        // Of a timeline that was left, it is no summary of WAL that comes.
        assert!(at(&available, 2, 250));
        assert!(!at(&[stretch(2, 100, 200)], 1, 300));
    }

    fn named(relation: u32, fork: ForkKind, block: u32, is_limit: bool) -> Named {
        Named {
            relation_fork: RelationFork {
                tablespace: Oid::DEFAULT_TABLESPACE,
                database: Oid(5),
                relation: Oid(relation),
                fork,
            },
            block,
            is_limit,
        }
    }

    #[test]
    fn rows_name_blocks_limits_and_databases() {
        let mut changes = ChangedBlocks::default();
        for row in [
            named(16384, ForkKind::Main, BLOCKS_PER_SEGMENT + 7, false),
            named(16384, ForkKind::Main, 9, true),
            named(16384, ForkKind::Main, 4, true),
            named(16384, ForkKind::Main, 6, true),
            named(16385, ForkKind::Vm, 0, false),
            named(0, ForkKind::Main, 0, true),
        ] {
            row.add_to(Major::V17, &mut changes);
        }
        assert!(changes.files["base/5/16384.1"].blocks.contains(7));
        assert_eq!(changes.files.len(), 1);
        assert_eq!(changes.fork_limits["base/5/16384"], 4);
        assert!(changes.directories.contains("base/5"));
        assert!(!changes.covers_all_forks);
    }
}
