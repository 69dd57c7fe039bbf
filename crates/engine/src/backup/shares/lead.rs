//! The leader: cuts the work, makes its part of it, waits for the rest, and writes the layer's index.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pgstrata_layer::index::{IndexReader, digests_of};
use pgstrata_layer::manifest::IndexPartRef;
use pgstrata_layer::pack::PackBuilder;
use pgstrata_layer::share::{self, PACKS_AT_ONCE, Share, ShareDone};

use super::super::assembler::Assembled;
use super::super::audit::Suspect;
use super::super::index_store::{IndexStore, Place};
use super::super::pages::Complaint;
use super::super::pipeline::Stored;
use super::make::{Maker, listed};
use crate::catalog::missing_is_damage;
use crate::cluster::ScannedFile;
use crate::cluster::scan::identity;
use crate::error::{Error, Kind, Result};
use crate::shares::SharedOptions;

/// How often the leader looks for what others have made, when it has nothing else to do.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Who made a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareMade {
    /// Which one.
    pub number: u32,
    /// Host of its maker.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Bytes read for it.
    pub bytes_read: u64,
    /// Relation pages stored for it.
    pub pages_stored: u64,
}

/// A backup that is shared.
pub(in crate::backup) struct Lead {
    maker: Maker,
    options: SharedOptions,
    /// A share with all changes, and without number and files.
    template: Share,
    files: Vec<ScannedFile>,
    ranges: Vec<Range<usize>>,
}

impl Lead {
    /// `template`: a share with all changes, and without number and files.
    pub(in crate::backup) fn new(maker: Maker, options: SharedOptions, template: Share) -> Self {
        Self {
            maker,
            options,
            template,
            files: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Stores all files, with whoever helps. Everything is durable when it returns.
    pub(in crate::backup) fn run(self, files: Vec<ScannedFile>) -> Result<Stored> {
        let lead = self.cut(files);
        lead.publish()?;
        lead.make_all()
    }

    pub(super) fn cut(mut self, files: Vec<ScannedFile>) -> Self {
        let sizes: Vec<u64> = files.iter().map(|file| file.size_bytes).collect();
        let starts = share::cut(&sizes, self.options.count);
        let ends = starts.iter().copied().skip(1).chain([files.len()]);
        let ranges = starts.iter().copied().zip(ends);
        self.ranges = ranges.map(|(start, end)| start..end).collect();
        self.files = files;
        self
    }

    pub(super) fn make_all(&self) -> Result<Stored> {
        for number in 0..self.count() {
            self.check_abort()?;
            self.attempt(number, 0)?;
        }
        self.wait_for_others()?;
        let (pack_count, pack_bytes) = self.fill_packs()?;
        let (assembled, shares) = self.gather(pack_count)?;
        self.maker.desk.remove_shares();
        Ok(Stored {
            assembled,
            pack_count,
            pack_bytes,
            shares,
        })
    }

    fn check_abort(&self) -> Result<()> {
        match self.maker.abort.is_raised() {
            true => Err(self.maker.abort.take()),
            false => Ok(()),
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.ranges.len()).expect("no more than were asked for")
    }

    fn files_of(&self, number: u32) -> &[ScannedFile] {
        let position = usize::try_from(number).expect("usize has 64 bits");
        &self.files[self.ranges[position].clone()]
    }

    fn share(&self, number: u32) -> Share {
        let files = self.files_of(number);
        let path = |file: Option<&ScannedFile>| file.map_or("", |file| &file.path).to_owned();
        let (first, last) = (path(files.first()), path(files.last()));
        let mut share = self.template.of_paths(&first, &last);
        (share.number, share.count) = (number, self.count());
        share.files = files.iter().map(listed).collect();
        share
    }

    /// Says what the shares are; the first one last, so that who sees it sees all.
    pub(super) fn publish(&self) -> Result<()> {
        let destination = &self.maker.desk.destination;
        for number in (0..self.count()).rev() {
            let key = destination.cluster.share_key(&destination.label, number);
            let body = Bytes::from(share::encode(&self.share(number)));
            self.maker
                .desk
                .wait(destination.repository.create(&key, body))?;
        }
        tracing::info!(
            shares = self.count(),
            "\"pgstrata backup-share {}\" makes shares of this backup where its data directory is seen",
            destination.label
        );
        Ok(())
    }

    /// Makes the share, unless this attempt is another process's.
    fn attempt(&self, number: u32, attempt: u32) -> Result<()> {
        let destination = &self.maker.desk.destination;
        let cluster = &destination.cluster;
        let key = cluster.share_claim_key(&destination.label, (number, attempt));
        if self.maker.desk.claim(&key)? {
            self.maker.make(&self.share(number), attempt)?;
        }
        Ok(())
    }

    fn wait_for_others(&self) -> Result<()> {
        let destination = &self.maker.desk.destination;
        let prefix = destination.cluster.shares_prefix(&destination.label);
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            self.check_abort()?;
            let names = self
                .maker
                .desk
                .wait(destination.repository.list_names(&prefix))?;
            let missing = self.without_outcome(&names);
            if missing.is_empty() {
                return Ok(());
            }
            if names.len() != seen {
                (seen, since) = (names.len(), Instant::now());
            }
            if since.elapsed() < self.options.timeout {
                thread::sleep(LOOK_EVERY);
                continue;
            }
            tracing::warn!(shares = ?missing, "helpers have stored nothing for {} seconds: making their shares again", self.options.timeout.as_secs());
            for number in missing {
                self.check_abort()?;
                if self.outcome(number)?.is_none() {
                    self.attempt(number, 1)?;
                }
            }
        }
    }

    fn without_outcome(&self, names: &[String]) -> Vec<u32> {
        let destination = &self.maker.desk.destination;
        let done: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        let is_missing = |number: &u32| {
            let key = destination
                .cluster
                .share_done_key(&destination.label, *number);
            !done.contains(key.rsplit('/').next().unwrap_or(&key))
        };
        (0..self.count()).filter(is_missing).collect()
    }

    /// What came of a share, when that is known.
    fn outcome(&self, number: u32) -> Result<Option<ShareDone>> {
        let destination = &self.maker.desk.destination;
        let key = destination
            .cluster
            .share_done_key(&destination.label, number);
        let bytes = match self.maker.desk.wait(destination.repository.get(&key)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let done = share::decode_done(&bytes)
            .map_err(|error| Error::from(error).while_doing(format!("could not read \"{key}\"")))?;
        if done.number != number || done.layer_id != self.template.layer_id {
            let what = format!("\"{key}\" is what came of share {}", done.number);
            return Err(Error::new(Kind::Damaged, what));
        }
        Ok(Some(done))
    }

    /// Gives every number that was set aside and not used an empty pack: packs are numbered
    /// without gaps, and a process that comes too late finds its numbers taken.
    fn fill_packs(&self) -> Result<(u32, u64)> {
        let desk = &self.maker.desk;
        let destination = &desk.destination;
        let (cluster, label) = (&destination.cluster, &destination.label);
        let names = desk.wait(
            destination
                .repository
                .list_names(&cluster.shares_prefix(label)),
        )?;
        let batches = names.iter().filter(|name| name.starts_with("packs-"));
        let count = u32::try_from(batches.count())
            .unwrap_or(u32::MAX)
            .saturating_mul(PACKS_AT_ONCE);
        loop {
            let objects = desk.wait(destination.repository.list(&cluster.layer_prefix(label)))?;
            let sizes: BTreeMap<String, u64> = objects
                .into_iter()
                .map(|object| (object.key, object.size_bytes))
                .collect();
            let mut bytes = 0;
            let mut missing = Vec::new();
            for number in 0..count {
                match sizes.get(&cluster.pack_key(label, number)) {
                    Some(size) => bytes += size,
                    None => missing.push(number),
                }
            }
            if missing.is_empty() {
                return Ok((count, bytes));
            }
            for number in missing {
                let empty = PackBuilder::new(destination.layer_id, number, 0).finish();
                desk.create(&cluster.pack_key(label, number), Bytes::from(empty))?;
            }
        }
    }

    /// The layer's index out of those of the shares, and the rest of what they tell.
    fn gather(&self, pack_count: u32) -> Result<(Assembled, Vec<ShareMade>)> {
        let desk = &self.maker.desk;
        let mut index = IndexStore::new(desk.destination.clone(), Place::Layer)?;
        let (mut all, mut made) = (Assembled::default(), Vec::new());
        for number in 0..self.count() {
            let done = self.outcome(number)?.ok_or_else(|| {
                let what = format!("what came of share {number} is gone from the repository");
                Error::new(Kind::Damaged, what)
            })?;
            self.check_gone(&done)?;
            self.copy_index(&done, pack_count, &mut index)?;
            let ours = done.host == desk.us.host && done.pid == desk.us.pid;
            if !ours {
                desk.destination
                    .progress
                    .add_done(done.totals.cluster_bytes);
            }
            made.push(ShareMade {
                number,
                host: done.host.clone(),
                pid: done.pid,
                bytes_read: done.totals.bytes_read,
                pages_stored: done.totals.pages_stored,
            });
            add(&mut all, done)?;
        }
        all.parts = index.finish()?;
        Ok((all, made))
    }

    /// A file that a helper did not find must be gone from where we look, too: else the helper
    /// looked into another directory, or through a mount that does not show all of it.
    fn check_gone(&self, done: &ShareDone) -> Result<()> {
        let gone: BTreeSet<&str> = done.gone.iter().map(String::as_str).collect();
        let files = self.files_of(done.number).iter();
        for file in files.filter(|file| gone.contains(file.path.as_str())) {
            let Ok(metadata) = fs::metadata(self.maker.data_directory.join(&file.path)) else {
                continue;
            };
            let now = identity(&metadata);
            if now == file.identity || now == 0 || file.identity == 0 {
                let what = format!(
                    "\"{}\" was not found by process {} on \"{}\", and is there",
                    file.path, done.pid, done.host
                );
                return Err(Error::new(Kind::Refused, what).hint(
                    "that host must see the whole data directory, tablespaces included, at the same paths",
                ));
            }
        }
        Ok(())
    }

    /// Every file of the share has an entry, or is gone, and nothing else has.
    fn copy_index(&self, done: &ShareDone, pack_count: u32, index: &mut IndexStore) -> Result<()> {
        let gone: BTreeSet<&str> = done.gone.iter().map(String::as_str).collect();
        let files = self.files_of(done.number).iter();
        let mut expected = files.filter(|file| !gone.contains(file.path.as_str()));
        let wrong = |what: String| {
            let message = format!("what came of share {} is not of it: {what}", done.number);
            Error::new(Kind::Damaged, message)
        };
        for (part, reference) in (0..).zip(&done.index) {
            let (entries, digests) = self.part(done, part, reference)?;
            for entry in entries {
                let entry = entry?;
                if expected.next().map(|file| &file.path) != Some(&entry.path) {
                    return Err(wrong(format!("it has \"{}\"", entry.path)));
                }
                if entry.frames.iter().any(|frame| frame.pack >= pack_count) {
                    return Err(wrong(format!("\"{}\" is in no pack", entry.path)));
                }
                let layer_id = self.maker.desk.destination.layer_id;
                let own = digests_of(&digests, layer_id, part, &entry.page_digests)?;
                index.push(entry, &own)?;
            }
        }
        match expected.next() {
            Some(file) => Err(wrong(format!("it lacks \"{}\"", file.path))),
            None => Ok(()),
        }
    }

    fn part(
        &self,
        done: &ShareDone,
        part: u32,
        reference: &IndexPartRef,
    ) -> Result<(IndexReader, Bytes)> {
        let desk = &self.maker.desk;
        let destination = &desk.destination;
        let (cluster, share) = (&destination.cluster, (done.number, done.attempt));
        let index = cluster.share_index_key(&destination.label, share, part);
        let digest = cluster.share_digest_key(&destination.label, share, part);
        let get = |key| desk.wait(destination.repository.get(key));
        let index = get(&index).map_err(missing_is_damage)?;
        let digest = get(&digest).map_err(missing_is_damage)?;
        let entries = IndexReader::new(index, destination.layer_id, part, reference)?;
        Ok((entries, digest))
    }
}

/// Adds what a share tells to what the others have.
fn add(all: &mut Assembled, done: ShareDone) -> Result<()> {
    all.totals += done.totals;
    all.gone.extend(done.gone);
    let complaints = done.complaints.into_iter().map(|one| {
        let complaint = Complaint {
            lsn: one.lsn,
            reason: one.reason,
        };
        (one.path, one.block, complaint)
    });
    all.complaints.extend(complaints);
    let mut suspects = Vec::new();
    for one in done.suspects {
        let page = one.page_bytes()?;
        suspects.push(Suspect {
            path: one.path,
            fork: one.fork,
            block: one.block,
            page,
        });
    }
    all.audit.add(done.pages_audited, suspects);
    all.audit.more_suspects += done.more_suspects;
    Ok(())
}
