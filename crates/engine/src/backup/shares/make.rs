//! Making one share: the pipeline over its files, and one object that says what came of it.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::share::{
    Share, ShareComplaint, ShareDone, ShareFile, ShareSuspect, encode_done,
};
use pgstrata_pgdata::relation::PathKind;

use super::super::abort::Abort;
use super::super::assembler::Assembled;
use super::super::index_store::Place;
use super::super::packer::Packs;
use super::super::pages::PageCheck;
use super::super::parent::Parent;
use super::super::pipeline::{self, Work};
use super::{Desk, PackNumbers};
use crate::catalog::Layer;
use crate::cluster::ScannedFile;
use crate::error::{Error, Kind, Result};

/// What a process needs to make shares of one layer.
pub(in crate::backup) struct Maker {
    pub(super) desk: Desk,
    packs: Packs,
    /// The parent's, newest first.
    chain: Vec<Arc<Layer>>,
    pub(super) data_directory: PathBuf,
    jobs: usize,
    max_rate: Option<u64>,
    pub(super) abort: Abort,
}

impl Maker {
    /// `chain`: the parent's, newest first.
    pub(in crate::backup) fn new(
        desk: Desk,
        chain: Vec<Arc<Layer>>,
        data_directory: PathBuf,
        (jobs, max_rate): (usize, Option<u64>),
        abort: Abort,
    ) -> Self {
        Self {
            packs: Packs::shared(PackNumbers::new(desk.clone())),
            desk,
            chain,
            data_directory,
            jobs,
            max_rate,
            abort,
        }
    }

    /// Makes the share, whose claim for this attempt is ours; false when another process has made it meanwhile.
    pub(super) fn make(&self, share: &Share, attempt: u32) -> Result<bool> {
        let number = share.number;
        tracing::info!(label = %share.label, number, of = share.count, files = share.files.len(), "making a share");
        let check = PageCheck::new(share.checksums, share.check_page_headers, share.start_lsn);
        let destination = &self.desk.destination;
        let work = Work {
            data_directory: &self.data_directory,
            destination,
            codec: share.parsed_codec()?,
            jobs: self.jobs,
            check: &check,
            // Whether the backup is to fail is for the leader to say, who sees all complaints.
            fail_on_corrupt_page: false,
            max_rate: self.max_rate,
            changes: &share.changes,
            audit: share.audit,
            abort: &self.abort,
            packs: &self.packs,
            place: Place::Share((number, attempt)),
        };
        let first = share.files.first().map_or("", |file| file.path.as_str());
        let parent = (!self.chain.is_empty()).then(|| {
            Parent::new(
                first,
                &destination.repository,
                &destination.cluster,
                self.chain.clone(),
                &destination.runtime,
            )
        });
        let files: Result<Vec<ScannedFile>> = share.files.iter().map(scanned).collect();
        let assembled = pipeline::run(&work, parent, files?)?;
        self.desk.check_wanted()?;
        let object = encode_done(&self.outcome(number, attempt, assembled));
        let key = destination
            .cluster
            .share_done_key(&destination.label, number);
        self.desk.create(&key, Bytes::from(object))
    }

    fn outcome(&self, number: u32, attempt: u32, assembled: Assembled) -> ShareDone {
        let complaints = assembled.complaints.into_iter();
        let suspects = assembled.audit.suspects.into_iter();
        ShareDone {
            layer_id: self.desk.us.layer_id.clone(),
            number,
            attempt,
            host: self.desk.us.host.clone(),
            pid: self.desk.us.pid,
            finished_at: Timestamp::now(),
            index: assembled.parts,
            totals: assembled.totals,
            gone: assembled.gone,
            complaints: complaints
                .map(|(path, block, complaint)| ShareComplaint {
                    path,
                    block,
                    lsn: complaint.lsn,
                    reason: complaint.reason,
                })
                .collect(),
            pages_audited: assembled.audit.pages,
            suspects: suspects
                .map(|one| ShareSuspect::new(one.path, one.fork, one.block, &one.page))
                .collect(),
            more_suspects: assembled.audit.more_suspects,
        }
    }
}

/// A file of a share as the scan had it.
fn scanned(file: &ShareFile) -> Result<ScannedFile> {
    let segment = match (file.kind, PathKind::of(&file.path)) {
        (EntryKind::Relation, PathKind::RelSegment(segment)) => Some(segment),
        (EntryKind::Relation, _) => {
            let what = format!("\"{}\" is not the path of a relation", file.path);
            return Err(Error::new(Kind::Damaged, what));
        }
        _ => None,
    };
    Ok(ScannedFile {
        path: file.path.clone(),
        kind: file.kind,
        segment,
        mode: file.mode,
        modified: file.modified,
        size_bytes: file.size_bytes,
        identity: file.identity,
    })
}

/// A file of the scan as a share has it.
pub(super) fn listed(file: &ScannedFile) -> ShareFile {
    ShareFile {
        path: file.path.clone(),
        kind: file.kind,
        mode: file.mode,
        modified: file.modified,
        size_bytes: file.size_bytes,
        identity: file.identity,
    }
}
