//! The audit: pages that the change source calls unchanged, drawn at random, read, and
//! compared with the parent.
//!
//! A digest that differs makes a suspect, not a verdict: the page may have been
//! written since the changes were asked for, and without checksums a crash can leave
//! hint bits on disk that no source knows of and no reader misses. What remains then
//! is a page that the layer would have got wrong: the backup is given up, and a record
//! in the repository keeps every later one from trusting a source where this one failed.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::audit::Sample;
use pgstrata_layer::changeset::Changes;
use pgstrata_layer::distrust::{self, DistrustRecord};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::{ChangeSource, Manifest};
use pgstrata_pgdata::Lsn;
use pgstrata_pgdata::page::{PageHeader, without_hints};
use pgstrata_pgdata::relation::ForkKind;

use super::choose::SourceChoice;
use super::packer::Destination;
use super::parent::Parent;
use super::prepare::Ready;
use crate::catalog::{Layer, WRITTEN_BY, last_distrusted};
use crate::error::{Error, Kind, Result};
use crate::repository::Repository;

/// A page whose digest is not the parent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) path: String,
    pub(super) fork: ForkKind,
    pub(super) block: u32,
    pub(super) page: Vec<u8>,
}

/// What the workers saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) pages: u64,
    pub(super) suspects: Vec<Suspect>,
    /// Suspects beyond those that are kept.
    pub(super) more_suspects: u64,
}

/// Suspects kept, 8 KiB each: a source that misses more is wrong whatever the rest is.
const MOST_SUSPECTS: usize = 1000;

impl Seen {
    pub(super) fn add(&mut self, pages: u64, suspects: Vec<Suspect>) {
        self.pages += pages;
        for suspect in suspects {
            if self.suspects.len() < MOST_SUSPECTS {
                self.suspects.push(suspect);
            } else {
                self.more_suspects += 1;
            }
        }
    }
}

/// What an audit that passed looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// Pages that were compared with the parent.
    pub pages: u64,
    /// Of them, pages that differ in hint bits alone.
    pub pages_with_hints: u64,
    /// What draws the same pages again.
    pub seed: u64,
}

/// One audit, of a backup that has stored its pages.
pub(super) struct Audit<'a> {
    pub(super) ready: &'a Ready,
    pub(super) destination: &'a Destination,
    /// The parent's, newest first; not empty.
    pub(super) chain: &'a [Arc<Layer>],
    pub(super) source: &'a SourceChoice,
    pub(super) start_lsn: Lsn,
    pub(super) sample: Sample,
}

impl Audit<'_> {
    /// Passes, or fails the backup and voids the trust in its change source.
    pub(super) async fn judge(&self, seen: Seen) -> Result<AuditReport> {
        let mut report = AuditReport {
            pages: seen.pages,
            pages_with_hints: 0,
            seed: self.sample.seed(),
        };
        let unexplained = self.without_later_changes(seen.suspects).await?;
        let before = unexplained.len();
        let missed = if self.hints_are_logged() {
            unexplained
        } else {
            self.without_hint_changes(unexplained).await?
        };
        report.pages_with_hints = to_u64(before - missed.len());
        let Some(first) = missed.first() else {
            if seen.more_suspects == 0 {
                return Ok(report);
            }
            // A thousand pages written within one backup, and more: that is no finding.
            return Err(Error::new(
                Kind::Busy,
                format!(
                    "could not audit the backup: {} audited pages changed while it ran",
                    seen.more_suspects + to_u64(MOST_SUSPECTS)
                ),
            )
            .hint("audit a smaller share"));
        };
        let count = to_u64(missed.len());
        self.record(first, count, report.pages).await?;
        Err(self.failure(first, count, &report))
    }

    /// With either of these, the first hint bit after a checkpoint writes the page into the WAL.
    fn hints_are_logged(&self) -> bool {
        self.ready.control.has_checksums() || self.ready.control.wal_log_hints
    }

    /// Drops what was written after the changes were asked for.
    async fn without_later_changes(&self, mut suspects: Vec<Suspect>) -> Result<Vec<Suspect>> {
        if suspects.is_empty() {
            return Ok(suspects);
        }
        if let (ChangeSource::Tracker, Some(token), Ok(tracker)) =
            (self.source.record.used, self.token(), &self.ready.tracker)
        {
            // A block is marked before it is written: what we read is in this answer.
            let now = tracker.changes(token).await?;
            suspects.retain(|suspect| {
                !now.may_have_changed(&suspect.path, suspect.fork, suspect.block)
            });
        } else {
            suspects.retain(|suspect| {
                let header = PageHeader::new(&suspect.page);
                header.is_ok_and(|header| header.lsn() < self.start_lsn)
            });
        }
        Ok(suspects)
    }

    fn token(&self) -> Option<&str> {
        self.chain.first()?.manifest.tracker_token.as_deref()
    }

    /// Drops pages of main forks that differ from the parent's in hint bits alone.
    async fn without_hint_changes(&self, suspects: Vec<Suspect>) -> Result<Vec<Suspect>> {
        if suspects.is_empty() {
            return Ok(suspects);
        }
        let (destination, chain) = (self.destination.clone(), self.chain.to_vec());
        let comparing = tokio::task::spawn_blocking(move || {
            let (repository, cluster) = (&destination.repository, &destination.cluster);
            let mut parent = Parent::new("", repository, cluster, chain, &destination.runtime);
            let mut left = Vec::new();
            let mut path = String::new();
            let mut entries = None;
            for suspect in suspects {
                if path != suspect.path {
                    entries = parent.find(&suspect.path)?;
                    path.clone_from(&suspect.path);
                }
                let before = match &entries {
                    Some(entries) => parent.page(entries, suspect.block)?,
                    None => Vec::new(),
                };
                let is_hint = suspect.fork == ForkKind::Main
                    && without_hints(&before) == without_hints(&suspect.page);
                if !is_hint {
                    left.push(suspect);
                }
            }
            Ok(left)
        });
        comparing.await.unwrap_or_else(|error| {
            Err(Error::new(
                Kind::Repository,
                format!("could not compare audited pages with the parent: {error}"),
            ))
        })
    }

    async fn record(&self, first: &Suspect, pages_missed: u64, pages_audited: u64) -> Result<()> {
        let Destination {
            repository,
            cluster,
            label,
            ..
        } = self.destination;
        let parent = self.chain.first().map(|parent| parent.label.to_string());
        let record = DistrustRecord {
            label: label.to_string(),
            parent: parent.unwrap_or_default(),
            found_at: Timestamp::now(),
            source: self.source.record.used,
            path: first.path.clone(),
            block: first.block,
            pages_missed,
            pages_audited,
            seed: self.sample.seed(),
            written_by: WRITTEN_BY.to_owned(),
        };
        let body = Bytes::from(distrust::encode(&record));
        repository.create(&cluster.distrust_key(label), body).await
    }

    fn failure(&self, first: &Suspect, count: u64, report: &AuditReport) -> Error {
        let source = self.source.record.used.as_str();
        let others = match count {
            1 => String::new(),
            count => format!(" and {} others", count - 1),
        };
        Error::new(
            Kind::Audit,
            format!(
                "the audit failed: block {} of \"{}\"{others} changed since the parent, and the {source} called it unchanged ({} pages audited, seed {})",
                first.block, first.path, report.pages, report.seed
            ),
        )
        .hint("no layer was made; the next backup will compare every page by digest; find out what writes to the data directory past the server")
    }
}

/// Why nothing but digests may tell what changed since `parent`, if so.
pub(super) async fn distrust(
    repository: &Repository,
    cluster: &ClusterName,
    parent: &Manifest,
) -> Result<Option<String>> {
    // A merged layer is as old as the backup whose state it has, whatever its label says.
    let stamp = parent.state_stamp();
    let newest = last_distrusted(repository, cluster).await?;
    let Some(label) = newest.filter(|label| stamp.as_str() <= label.own_stamp()) else {
        return Ok(None);
    };
    let object = repository.get(&cluster.distrust_key(&label)).await?;
    // That the record is there is what counts; what it says is for people.
    let found = distrust::decode(&object).map_or_else(
        |error| error.to_string(),
        |found| {
            format!(
                "block {} of \"{}\" was called unchanged by the {}",
                found.block,
                found.path,
                found.source.as_str()
            )
        },
    );
    Ok(Some(format!("the audit of {label} failed: {found}")))
}

/// Whether there is anything to audit in what a source said.
pub(super) fn sample_for(changes: &Changes, sample: Option<Sample>) -> Option<Sample> {
    sample.filter(|_| matches!(changes, Changes::Exact(_)))
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).expect("usize has 64 bits")
}
