//! The audit: pages that the change source calls unchanged, drawn at random, read, and
//! compared with the parent.
//!
//! A digest that differs makes a suspect, not a verdict: the page may have been
//! written since the changes were asked for, or differ in what no recovery repeats
//! and no reader misses (`harmless`). What remains then
//! is a page that the layer would have got wrong: the backup is given up, and a record
//! in the repository keeps every later one from trusting a source where this one failed.

use std::fs;
use std::io::ErrorKind;

use jiff::Timestamp;
use pgstrata_layer::audit::Sample;
use pgstrata_layer::changeset::{ChangedBlocks, Changes};
use pgstrata_layer::distrust::{self, DistrustRecord};
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{ChangeSource, Manifest};
use pgstrata_pgdata::Lsn;
use pgstrata_pgdata::page::PageHeader;
use pgstrata_pgdata::relation::{BLOCK_SIZE, ForkKind};
use pgstrata_store::catalog::{WRITTEN_BY, last_distrusted};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, FileContext, Kind, Result};

use super::backup_type::SourceChoice;
use super::harmless::{Examiner, HarmlessPages, excuses, hint_logging};
use super::past::ThisRun;
use super::prepare::Ready;
use crate::backup::copy::job::block_bytes;
use crate::backup::copy::read::read_at;
use crate::backup::copy::suspects::{Audited, Others, PAGES_KEPT, Suspect};
use crate::frames::Chain;

/// What an audit that passed looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// Pages that were compared with the parent.
    pub pages: u64,
    /// Of them, pages that differ in what no recovery repeats.
    pub harmless: HarmlessPages,
    /// What draws the same pages again.
    pub seed: u64,
}

/// One audit, of a backup that has stored its pages.
pub(crate) struct Audit<'a> {
    pub(crate) ready: &'a Ready,
    /// Of the layer that is being made.
    pub(crate) label: &'a Label,
    /// The parent's; not empty.
    pub(crate) chain: &'a Chain,
    pub(crate) source: &'a SourceChoice,
    pub(crate) start_lsn: Lsn,
    pub(crate) sample: Sample,
}

/// What an audit has found.
#[derive(Default)]
struct Unexplained {
    /// The first pages that nothing explains, of `count`.
    missed: Vec<Suspect>,
    count: u64,
    harmless: HarmlessPages,
    /// The first page of which nobody knows whether it was written meanwhile, and why.
    undecided: Option<(Suspect, Error)>,
}

impl Audit<'_> {
    /// Passes, or fails the backup and voids the trust in its change source. The inner error says why nobody knows: the trust is
    /// void then, too.
    pub(crate) async fn judge(
        &self,
        seen: Audited,
    ) -> Result<std::result::Result<AuditReport, String>> {
        let pages = seen.pages;
        let Unexplained {
            missed,
            count,
            harmless,
            undecided,
        } = self.find(seen).await?;
        let report = AuditReport {
            pages,
            harmless,
            seed: self.sample.seed(),
        };
        if let Some(first) = missed.first() {
            let recorded = self.record(first, count, pages).await;
            return Err(self.failure(first, count, (&report, recorded.err())));
        }
        let Some((first, error)) = undecided else {
            return Ok(Ok(report));
        };
        self.record(&first, 1, pages).await?;
        Ok(Err(format!(
            "the audit of {pages} pages came to no end: block {} of \"{}\" differs from the parent, and whether it was written \
             during the backup cannot be asked any more: {error}; the next backup will compare every page by digest",
            first.block, first.path
        )))
    }

    async fn find(&self, seen: Audited) -> Result<Unexplained> {
        let mut found = Unexplained::default();
        self.examine(seen.suspects, &mut found).await?;
        for some in &self.not_written_since(seen.others).await {
            self.examine(self.read_again(some)?, &mut found).await?;
        }
        Ok(found)
    }

    /// Adds the suspects that nothing explains, and what the others had.
    async fn examine(&self, suspects: Vec<Suspect>, found: &mut Unexplained) -> Result<()> {
        let unexplained = self.without_later_changes(suspects, found).await;
        let (missed, harmless) = self.without_harmless(unexplained).await?;
        found.harmless.add(harmless);
        found.count += to_u64(missed.len());
        if found.missed.is_empty() {
            found.missed = missed;
        }
        Ok(())
    }

    /// What the tracker says by now, or why it does not know it any more; `None` with other sources.
    async fn changes_now(&self) -> Option<Result<ChangedBlocks>> {
        match (self.source.record.used, self.token(), &self.ready.tracker) {
            (ChangeSource::Tracker, Some(token), Ok(tracker)) => Some(tracker.changes(token).await),
            _ => None,
        }
    }

    /// Of suspects without pages those that the tracker does not name now, as many at once as there is room for their
    /// pages. With other sources the page tells, when it is read again.
    async fn not_written_since(&self, others: Vec<Others>) -> Vec<Others> {
        let now = match others.is_empty() {
            true => None,
            false => self.changes_now().await.and_then(Result::ok),
        };
        let mut left = Vec::new();
        for Others { path, fork, blocks } in others {
            let is_named = |block| match &now {
                Some(now) => now.may_have_changed(&path, fork, block),
                None => false,
            };
            let unnamed = blocks.into_iter().filter(|&block| !is_named(block));
            let unnamed: Vec<u32> = unnamed.collect();
            left.extend(unnamed.chunks(PAGES_KEPT).map(|blocks| Others {
                path: path.clone(),
                fork,
                blocks: blocks.to_vec(),
            }));
        }
        left
    }

    /// Reads suspects once more. What is written after that, the tracker names; what was dropped is no suspect.
    fn read_again(&self, others: &Others) -> Result<Vec<Suspect>> {
        let path = self.ready.data_directory.join(&others.path);
        let about = || format!("could not read \"{}\"", path.display());
        let file = match fs::File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.context(about)?,
        };
        let mut suspects = Vec::new();
        for &block in &others.blocks {
            let mut page = vec![0; BLOCK_SIZE];
            let offset = u64::from(block) * block_bytes();
            if read_at(&file, &mut page, offset).context(about)? == BLOCK_SIZE {
                suspects.push(Suspect {
                    path: others.path.clone(),
                    fork: others.fork,
                    block,
                    page,
                });
            }
        }
        Ok(suspects)
    }

    /// Drops what was written after the changes were asked for. Without an answer of the tracker the LSNs of pages tell, where the
    /// fork has them.
    async fn without_later_changes(
        &self,
        mut suspects: Vec<Suspect>,
        found: &mut Unexplained,
    ) -> Vec<Suspect> {
        if suspects.is_empty() {
            return suspects;
        }
        // A block is marked before it is written: what we read is in this answer.
        match self.changes_now().await {
            Some(Ok(now)) => suspects.retain(|suspect| {
                !now.may_have_changed(&suspect.path, suspect.fork, suspect.block)
                    && !self.is_gone(suspect)
            }),
            None => suspects.retain(|suspect| self.is_older(suspect)),
            Some(Err(error)) => {
                suspects.retain(|suspect| !self.is_gone(suspect));
                let has_lsn = |page: &[u8]| {
                    PageHeader::new(page).is_ok_and(|header| header.lsn() != Lsn::INVALID)
                };
                let tells =
                    |suspect: &Suspect| suspect.fork == ForkKind::Main && has_lsn(&suspect.page);
                let (told, untold): (Vec<_>, Vec<_>) = suspects.into_iter().partition(tells);
                if let Some(first) = untold.into_iter().next() {
                    found.undecided.get_or_insert((first, error));
                }
                suspects = told;
                suspects.retain(|suspect| self.is_older(suspect));
            }
        }
        suspects
    }

    /// Whether the page was last written before the backup started, as its LSN says.
    fn is_older(&self, suspect: &Suspect) -> bool {
        let header = PageHeader::new(&suspect.page);
        header.is_ok_and(|header| header.lsn() < self.start_lsn)
    }

    /// Whether the file was dropped since it was read: then the tracker has forgotten its
    /// marks, and the WAL of this backup drops it again. The server cuts a dropped file
    /// before it removes it; a new one of that name is named as a whole.
    fn is_gone(&self, suspect: &Suspect) -> bool {
        let path = self.ready.data_directory.join(&suspect.path);
        let after = (u64::from(suspect.block) + 1) * block_bytes();
        match fs::metadata(path) {
            Ok(file) => file.len() < after,
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    fn token(&self) -> Option<&str> {
        self.chain.layers.first()?.manifest.tracker_token.as_deref()
    }

    /// Drops pages that differ in what no recovery repeats.
    async fn without_harmless(
        &self,
        suspects: Vec<Suspect>,
    ) -> Result<(Vec<Suspect>, HarmlessPages)> {
        if suspects.is_empty() {
            return Ok((suspects, HarmlessPages::default()));
        }
        let sealing = self.chain.cluster.sealing().await?;
        for layer in &self.chain.layers {
            if !sealing.layer(&layer.manifest)?.opens_data() {
                tracing::warn!(
                    "{} audited pages differ from the parent, whose pages this host cannot read: that they differ \
                     harmlessly cannot be known, so they count as changed",
                    suspects.len()
                );
                return Ok((suspects, HarmlessPages::default()));
            }
        }
        let control = &self.ready.control;
        let run = ThisRun::look(self.ready).await;
        let parent = self.chain.layers.first().expect("not empty");
        let logging = hint_logging(self.ready, parent, &run);
        let examiner = Examiner {
            chain: self.chain.clone(),
            data_directory: self.ready.data_directory.clone(),
            major: control.major,
            excuses: excuses(&parent.manifest, control, logging),
        };
        let examining = tokio::task::spawn_blocking(move || examiner.examine(suspects));
        examining.await.unwrap_or_else(|error| {
            Err(Error::new(
                Kind::Repository,
                format!("could not compare audited pages with the parent: {error}"),
            ))
        })
    }

    async fn record(&self, first: &Suspect, pages_missed: u64, pages_audited: u64) -> Result<()> {
        let (cluster, label) = (&self.chain.cluster, self.label);
        let parent = self
            .chain
            .layers
            .first()
            .map(|parent| parent.label.to_string());
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
        let key = cluster.name.distrust_key(label);
        let sealing = cluster.sealing().await?;
        let body = sealing.seal_record(&cluster.name, &key, distrust::encode(&record))?;
        cluster.repository.create(&key, body).await
    }

    fn failure(
        &self,
        first: &Suspect,
        count: u64,
        (report, unrecorded): (&AuditReport, Option<Error>),
    ) -> Error {
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
        .hint(match unrecorded {
            None => "no layer was made; the next backup will compare every page by digest; find out what writes to the data directory past the server".to_owned(),
            Some(error) => format!(
                "no layer was made, and the repository does not know why ({error}): take the next backup with --change-source digest; find out what writes to the data directory past the server"
            ),
        })
    }
}

/// Why nothing but digests may tell what changed since `parent`, if so.
pub(crate) async fn distrust(
    cluster: &ClusterRepository,
    parent: &Manifest,
) -> Result<Option<String>> {
    // A merged layer is as old as the backup whose state it has, whatever its label says.
    let stamp = parent.state_stamp();
    let newest = last_distrusted(cluster).await?;
    let Some(label) = newest.filter(|label| stamp.as_str() <= label.own_stamp()) else {
        return Ok(None);
    };
    let key = cluster.name.distrust_key(&label);
    let gone = || Err(Error::new(Kind::NotFound, "its record is gone"));
    let object = cluster.repository.find_record(&key).await?;
    let sealing = cluster.sealing().await?;
    let opened = object.unwrap_or_else(gone);
    let opened = opened.and_then(|object| sealing.open_record(&cluster.name, &key, object));
    let found = opened.and_then(|object| Ok(distrust::decode(&object)?));
    // That the record is there is what counts; what it says is for people.
    let found = found.map_or_else(
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
pub(crate) fn sample_for(changes: &Changes, sample: Option<Sample>) -> Option<Sample> {
    sample.filter(|_| matches!(changes, Changes::Exact(_)))
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).expect("usize has 64 bits")
}
