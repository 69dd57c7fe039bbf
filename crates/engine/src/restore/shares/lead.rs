//! The leader: cuts the work, makes its part of it, waits for the rest, and moves files into place.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Instant;

use pgstrata_layer::entry::{EntryKind, FileEntry};
use pgstrata_layer::restore_share::{RestoreShareDone, RestoreWork, RestoredFile};
use pgstrata_layer::share::Cutter;
use rustix::fs::{AtFlags, renameat, statat};
use serde::Serialize;

use super::super::Source;
use super::super::destination::{Claimed, Layout, Root};
use super::super::plan::{PlanInner, prefixes};
use super::super::writes::Writer;
use super::make::Maker;
use super::{Desk, LOOK_EVERY, SHARES, is_gone, make_directory, remove};
use crate::catalog::{ChainEntries, hex};
use crate::error::{Error, FileContext, Kind, Result};
use crate::progress::Progress;
use crate::shares::SharedOptions;

/// Who made a share of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShareMade {
    /// Which one.
    pub number: u32,
    /// Host of its maker.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Files in it.
    pub files: u64,
    /// Bytes written for it.
    pub written_bytes: u64,
}

/// What came of a shared restore.
#[derive(Debug, Default)]
pub(in crate::restore) struct Led {
    /// Files and directories.
    pub(in crate::restore) files: u64,
    pub(in crate::restore) frames: u64,
    pub(in crate::restore) written_bytes: u64,
    pub(in crate::restore) shares: Vec<ShareMade>,
    pub(in crate::restore) notes: Vec<String>,
}

/// A restore that is shared.
pub(in crate::restore) struct Lead<'a> {
    pub(in crate::restore) source: &'a Source,
    pub(in crate::restore) plan: &'a PlanInner,
    pub(in crate::restore) progress: &'a Progress,
    pub(in crate::restore) claimed: &'a Claimed,
    /// Writes to the final places.
    pub(in crate::restore) writer: &'a Writer<'a>,
}

impl Lead<'_> {
    /// Restores all files of the index, with whoever helps.
    pub(in crate::restore) fn run(&self, options: &SharedOptions) -> Result<Led> {
        let (files, first_paths) = self.cut(options.count)?;
        let maker = self.maker(first_paths)?;
        let outcome = self.make_all(&maker, options);
        if outcome.is_err() {
            maker.desk.withdraw();
        }
        let mut led = outcome?;
        led.files = files;
        // Before there is a pg_control: no helper has a place to write to from here on.
        for root in &self.claimed.roots {
            if let Err(error) = remove(&root.path) {
                led.notes.push(format!(
                    "{error}: nothing in it is of the cluster, remove it"
                ));
            }
        }
        Ok(led)
    }

    /// The entries of the newest layer: all files that the restored cluster has.
    fn entries(&self) -> impl Iterator<Item = Result<FileEntry>> {
        let Source {
            repository,
            cluster,
            runtime,
        } = self.source;
        let newest = &self.plan.chain[..1];
        let streams = ChainEntries::new(repository, cluster, newest, runtime);
        streams.into_iter().flatten()
    }

    /// Creates all directories. Returns how many files and directories there are, and the first file of each share.
    fn cut(&self, count: u32) -> Result<(u64, Vec<String>)> {
        let (total_bytes, total_files) = self.plan.extent;
        let mut cutter = Cutter::new(total_bytes, total_files, count);
        let (mut files, mut first_paths) = (0, Vec::new());
        for entry in self.entries() {
            let entry = entry?;
            files += 1;
            if entry.kind == EntryKind::Directory {
                self.writer.create_directory(&entry.path, entry.mode)?;
            } else if cutter.begins(entry.size_bytes) {
                first_paths.push(entry.path);
            }
        }
        Ok((files, first_paths))
    }

    /// Says what the shares are.
    fn maker(&self, first_paths: Vec<String>) -> Result<Maker> {
        let (layout, newest) = (&self.plan.layout, &self.plan.chain[0]);
        let work = RestoreWork {
            restore_id: hex(&rand::random::<[u8; 16]>()),
            cluster: self.source.cluster.as_str().to_owned(),
            label: newest.label.to_string(),
            manifest_digest: newest.manifest_digest.clone(),
            first_paths,
            ..directories_of(layout)?
        };
        let roots = self.claimed.roots.iter();
        let places: Result<Vec<Root>> = roots.map(|root| make_directory(root, SHARES)).collect();
        let desk = Desk::new(places?, &work.restore_id, newest);
        desk.publish(&work)?;
        tracing::info!(
            shares = work.count(),
            "\"pgstrata restore-share --target-dir {}\" makes shares of this restore where that directory is seen",
            work.data_directory
        );
        Ok(Maker {
            desk,
            work,
            source: self.source.clone(),
            chain: self.plan.chain.clone(),
            prefixes: prefixes(layout),
            jobs: self.plan.options.jobs,
            progress: self.progress.clone(),
        })
    }

    fn make_all(&self, maker: &Maker, options: &SharedOptions) -> Result<Led> {
        for number in 0..maker.work.count() {
            self.check_cancelled()?;
            if maker.desk.claim(number)? {
                maker.make(number, 0)?;
            }
        }
        self.wait_for_others(maker, options)?;
        self.gather(maker)
    }

    fn check_cancelled(&self) -> Result<()> {
        match self.progress.is_cancelled() {
            true => Err(Error::new(Kind::Interrupted, "interrupted")),
            false => Ok(()),
        }
    }

    /// Until every share is made; those of whom nothing is heard are made again.
    fn wait_for_others(&self, maker: &Maker, options: &SharedOptions) -> Result<()> {
        let mut heard = BTreeMap::new();
        loop {
            self.check_cancelled()?;
            let mut is_complete = true;
            for number in 0..maker.work.count() {
                if maker.desk.is_done(number)? {
                    continue;
                }
                is_complete = false;
                let (beat, now) = (maker.desk.last_beat(number), Instant::now());
                let last = heard.entry(number).or_insert((beat, now));
                if last.0 != beat {
                    *last = (beat, now);
                }
                if last.1.elapsed() >= options.timeout {
                    tracing::warn!(
                        number,
                        "nothing was heard for {} seconds of the helper that makes this share: making it again",
                        options.timeout.as_secs()
                    );
                    maker.make(number, 1)?;
                }
            }
            if is_complete {
                return Ok(());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Moves all files into place: those that the index has, and no others.
    fn gather(&self, maker: &Maker) -> Result<Led> {
        let is_file = |entry: &Result<FileEntry>| !matches!(entry, Ok(entry) if entry.kind == EntryKind::Directory);
        let mut expected = self.entries().filter(is_file);
        let mut led = Led::default();
        for number in 0..maker.work.count() {
            let done = maker.desk.outcome(number)?.ok_or_else(|| {
                let what = format!("what came of share {number} is gone");
                Error::new(Kind::Damaged, what)
            })?;
            let staging = maker.desk.staged(number, done.attempt)?;
            for file in &done.files {
                let entry = expected.next().transpose()?;
                let same = |entry: &FileEntry| {
                    entry.path == file.path && entry.size_bytes == file.size_bytes
                };
                if !entry.as_ref().is_some_and(same) {
                    return Err(not_of_it(&done, &format!("it has \"{}\"", file.path)));
                }
                self.move_into_place(&staging, file, &done)?;
            }
            self.count(&mut led, maker, done);
        }
        match expected.next().transpose()? {
            None => Ok(led),
            Some(entry) => {
                let what = format!("the shares of the restore lack \"{}\"", entry.path);
                Err(Error::new(Kind::Damaged, what))
            }
        }
    }

    fn count(&self, led: &mut Led, maker: &Maker, done: RestoreShareDone) {
        let us = &maker.desk.us;
        if (&done.host, done.pid) != (&us.host, us.pid) {
            self.progress.add_done(done.written_bytes);
            self.progress.add_pages(done.pages);
            self.progress.add_stored(done.fetched_bytes);
        }
        led.frames += done.frames;
        led.written_bytes += done.written_bytes;
        led.shares.push(ShareMade {
            number: done.number,
            host: done.host,
            pid: done.pid,
            files: u64::try_from(done.files.len()).expect("usize has 64 bits"),
            written_bytes: done.written_bytes,
        });
    }

    fn move_into_place(
        &self,
        staging: &[Root],
        file: &RestoredFile,
        done: &RestoreShareDone,
    ) -> Result<()> {
        let Some((root, below)) = self.writer.locate(&file.path) else {
            return Err(not_of_it(done, &format!("it has \"{}\"", file.path)));
        };
        let (from, to) = (&staging[root], &self.claimed.roots[root]);
        let about = || {
            let from = from.path.join(below);
            format!("could not move \"{}\" into place", from.display())
        };
        let found = match statat(&from.dir, below, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(e) if is_gone(e) => return Err(elsewhere(from, done)),
            Err(e) => return Err(io::Error::from(e)).context(about),
        };
        if u64::try_from(found.st_size).ok() != Some(file.size_bytes) {
            let what = format!(
                "\"{}\" has {} bytes, expected {}",
                file.path, found.st_size, file.size_bytes
            );
            return Err(not_of_it(done, &what));
        }
        renameat(&from.dir, below, &to.dir, below)
            .map_err(io::Error::from)
            .context(about)?;
        self.writer.list_restored(file)
    }
}

fn not_of_it(done: &RestoreShareDone, what: &str) -> Error {
    let message = format!("what came of share {} is not of it: {what}", done.number);
    Error::new(Kind::Damaged, message)
}

fn elsewhere(staging: &Root, done: &RestoreShareDone) -> Error {
    let what = format!(
        "files that process {} on \"{}\" has restored are not in \"{}\"",
        done.pid,
        done.host,
        staging.path.display()
    );
    Error::new(Kind::Refused, what).hint(
        "that host must see every directory of the restore, those of tablespaces included, at the same path",
    )
}

/// The directories, in a record that says nothing else yet.
pub(super) fn directories_of(layout: &Layout) -> Result<RestoreWork> {
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        let what = || format!("\"{}\" is not UTF-8", path.display());
        text.ok_or_else(|| Error::new(Kind::Usage, what()))
    };
    let tablespaces = layout.tablespaces.iter();
    let tablespaces: Result<BTreeMap<u32, String>> = tablespaces
        .map(|(oid, path)| Ok((*oid, text(path)?)))
        .collect();
    Ok(RestoreWork {
        restore_id: String::new(),
        cluster: String::new(),
        label: String::new(),
        manifest_digest: String::new(),
        data_directory: text(&layout.data)?,
        tablespaces: tablespaces?,
        wal_directory: layout.wal.as_deref().map(text).transpose()?,
        first_paths: Vec::new(),
    })
}
