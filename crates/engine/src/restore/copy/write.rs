//! Writing files: each page once, by many threads, with the checksum that `backup_manifest` wants.
//!
//! A file is created with its final size, so that what is never written is a hole. Workers write at positions, in
//! whatever order frames come; when the last page of a file is there, its checksum is put together from the pieces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pgstrata_layer::entry::{BLOCK_BYTES, BlockRun, EntryKind};
use pgstrata_layer::outside::is_outside;
use pgstrata_layer::overlay::{FilePlan, Take};
use pgstrata_pgdata::FileChecksum;
use pgstrata_pgdata::backup_manifest::WalRange;
use pgstrata_store::error::{Error, FileContext, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown};

use super::direct::{self, Handover, PositionedFile};
use super::listing::ManifestSink;
use super::region::{Departing, Region};
use crate::frames::{FrameReader, WantedFrame, WantedFrames, bytes_of, pages_of};
use crate::restore::place::claim::Root;
use crate::restore::place::{access, beneath};

/// The file in which the server keeps what ALTER SYSTEM sets.
pub(crate) const AUTO_CONF: &str = "postgresql.auto.conf";

/// A file from this size on is worth that its pages go to disk now rather than at the end: past the page cache, or by a system
/// call that asks for it.
const LARGE_BYTES: u64 = 1 << 20;

/// A run of this length is written at once: gathering it first would cost more than the call.
const LONG_BYTES: usize = 64 << 10;

/// Zeros are written in pieces of this size.
const ZEROS_BYTES: u64 = 64 << 10;

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct FileTask {
    path: String,
    root: usize,
    size_bytes: u64,
    modified: i64,
    /// Bytes from frames that have not been written.
    left: AtomicU64,
    /// Whether `backup_manifest` names it when all of them are.
    listed: bool,
    /// Whether it is written past the page cache.
    is_direct: bool,
    /// Offset and checksum of what has been written.
    pieces: Mutex<Vec<(u64, FileChecksum)>>,
}

/// A file or directory of the restore: which of its directories holds it, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Below {
    pub(crate) root: usize,
    pub(crate) path: String,
}

/// What is known of a configuration file before it is as it will be.
#[derive(Clone, Copy, Debug)]
struct Unsettled {
    modified: i64,
    mode: u32,
}

/// What goes to one file from one frame.
#[derive(Debug)]
pub(crate) struct Part {
    file: Arc<FileTask>,
    take: Vec<Take>,
}

/// A file that is open to be written; more than one thread may have it.
struct OpenTarget {
    task: Arc<FileTask>,
    file: PositionedFile,
}

/// A worker's open file, and what of it has yet to be written.
struct TargetFile<'h> {
    current: Option<Arc<OpenTarget>>,
    region: Region,
    /// Who writes past the page cache; without it the worker does.
    handover: Option<&'h Handover<Arc<OpenTarget>>>,
}

impl<'h> TargetFile<'h> {
    /// None yet.
    fn new(region_bytes: usize, handover: Option<&'h Handover<Arc<OpenTarget>>>) -> Result<Self> {
        Ok(Self {
            current: None,
            region: Region::new(region_bytes)?,
            handover,
        })
    }

    /// Closes the file; when it is whole, asks the system to begin writing it back. One with holes that are still to be
    /// filled would be given many small extents.
    fn close(&mut self) {
        if let Some(open) = self.current.take()
            && !open.file.is_direct()
            && open.task.size_bytes >= LARGE_BYTES
            && open.task.left.load(Ordering::Acquire) == 0
        {
            open.file.begin_writeback();
        }
    }
}

impl Drop for TargetFile<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Writes the files of one restore.
pub(crate) struct Writer<'a> {
    roots: &'a [Root],
    /// Whether new files of each root are written past the page cache.
    direct: Vec<bool>,
    /// Prefix of paths that lie in another root than the data directory, with its index.
    prefixes: Vec<(String, usize)>,
    owner: Option<(Uid, Gid)>,
    listing: Mutex<ManifestSink>,
    /// Configuration files of the data directory, which may be changed when all are there and are listed then.
    unsettled: Mutex<BTreeMap<String, Unsettled>>,
    /// Bytes written to files of the cluster.
    written: AtomicU64,
    /// Those of them that went past the page cache.
    written_directly: AtomicU64,
    progress: &'a Progress,
    /// Whether the source let its group read.
    group_access: AtomicBool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        roots: &'a [Root],
        prefixes: Vec<(String, usize)>,
        listing: ManifestSink,
        progress: &'a Progress,
    ) -> Result<Self> {
        Ok(Self {
            owner: owner(&roots[0])?,
            roots,
            direct: roots.iter().map(direct::is_for).collect(),
            prefixes,
            listing: Mutex::new(listing),
            unsettled: Mutex::default(),
            written: AtomicU64::new(0),
            written_directly: AtomicU64::new(0),
            progress,
            group_access: AtomicBool::new(false),
        })
    }

    /// The root that holds `path`, and the path below it; `None` for a path that is a root or the link to one.
    pub(crate) fn locate<'p>(&self, path: &'p str) -> Option<(usize, &'p str)> {
        for (prefix, root) in &self.prefixes {
            if let Some(rest) = path.strip_prefix(prefix.as_str()) {
                if rest.is_empty() {
                    return None;
                }
                if let Some(below) = rest.strip_prefix('/') {
                    return Some((*root, below));
                }
            }
        }
        Some((0, path))
    }

    fn full_path(&self, root: usize, below: &str) -> PathBuf {
        self.roots[root].path.join(below)
    }

    /// Creates what `plan` describes, and gives each frame it needs to `push`.
    pub(crate) fn begin(
        &self,
        plan: FilePlan,
        push: impl FnMut(WantedFrame<Part>) -> Result<()>,
    ) -> Result<()> {
        if plan.kind == EntryKind::Directory {
            return self.create_directory(&plan.path, plan.mode);
        }
        let (root, below) = self.locate_file(&plan.path)?;
        drop(self.create_file(root, below, plan.mode, plan.size_bytes)?);
        let is_direct = plan.size_bytes >= LARGE_BYTES
            && direct::takes_size(plan.size_bytes)
            && self.direct[root];
        self.take_on(plan, Vec::new(), is_direct, push)
    }

    /// Gives each frame that a file needs to `push`. The file is there with its final size; `kept` of it has been
    /// found to be as it must be.
    pub(crate) fn enlist(
        &self,
        plan: FilePlan,
        kept: Vec<(u64, FileChecksum)>,
        push: impl FnMut(WantedFrame<Part>) -> Result<()>,
    ) -> Result<()> {
        // It has been read, and what differs lies scattered.
        self.take_on(plan, kept, false, push)
    }

    fn take_on(
        &self,
        plan: FilePlan,
        mut kept: Vec<(u64, FileChecksum)>,
        is_direct: bool,
        mut push: impl FnMut(WantedFrame<Part>) -> Result<()>,
    ) -> Result<()> {
        let (root, _) = self.locate_file(&plan.path)?;
        let listed = is_listed(&plan.path);
        let is_unsettled = listed && is_configuration(&plan);
        if is_unsettled {
            let known = Unsettled {
                modified: plan.modified,
                mode: plan.mode,
            };
            self.unsettled().insert(plan.path.clone(), known);
        }
        let takes = plan.pieces.iter().flat_map(|piece| &piece.take);
        let left = takes.map(|take| bytes_of(take, plan.size_bytes)).sum();
        kept.reserve(plan.pieces.len());
        let task = Arc::new(FileTask {
            root,
            size_bytes: plan.size_bytes,
            modified: plan.modified,
            left: AtomicU64::new(left),
            listed: listed && !is_unsettled,
            is_direct,
            pieces: Mutex::new(kept),
            path: plan.path,
        });
        if left == 0 {
            return self.complete(&task);
        }
        for piece in plan.pieces {
            let purpose = Part {
                file: Arc::clone(&task),
                take: piece.take,
            };
            push(WantedFrame {
                layer: piece.layer,
                frame: piece.frame,
                purpose,
            })?;
        }
        Ok(())
    }

    fn locate_file<'p>(&self, path: &'p str) -> Result<(usize, &'p str)> {
        self.locate(path).ok_or_else(|| {
            Error::new(
                Kind::Damaged,
                format!("the index has a file \"{path}\" where a directory belongs"),
            )
        })
    }

    /// Opens a file that is there, with the permissions and the size it must have. `None` when there is none; one
    /// that has other names is removed, for it may be part of a copy. So is one of another user, who alone could set its
    /// permissions.
    pub(crate) fn open_existing(&self, plan: &FilePlan) -> Result<Option<File>> {
        let (root, below) = self.locate_file(&plan.path)?;
        let about = || {
            format!(
                "could not open \"{}\"",
                self.full_path(root, below).display()
            )
        };
        let dir = &self.roots[root].dir;
        let Some(file) = beneath::open_to_change(dir, Path::new(below)).context(about)? else {
            return Ok(None);
        };
        let status = file.metadata().context(about)?;
        let mode = plan.mode & 0o777 | 0o600;
        let has_mode = status.mode() & 0o7777 == mode;
        if status.nlink() > 1 || !(has_mode || access::is_ours(&status)) {
            beneath::remove_file(dir, Path::new(below)).context(about)?;
            return Ok(None);
        }
        if !has_mode {
            fchmod(&file, Mode::from_raw_mode(mode))
                .map_err(io::Error::from)
                .context(about)?;
        }
        if let Some((user, group)) = self.owner {
            fchown(&file, Some(user), Some(group))
                .map_err(io::Error::from)
                .context(about)?;
        }
        if status.len() != plan.size_bytes {
            file.set_len(plan.size_bytes).context(about)?;
        }
        Ok(Some(file))
    }

    /// Removes a file that is there.
    pub(crate) fn remove_existing(&self, plan: &FilePlan) -> Result<()> {
        let (root, below) = self.locate_file(&plan.path)?;
        let removed = beneath::remove_file(&self.roots[root].dir, Path::new(below));
        removed.context(|| {
            let path = self.full_path(root, below);
            format!("could not remove \"{}\"", path.display())
        })
    }

    /// Makes blocks of an open file zeros.
    pub(crate) fn write_zeros(
        &self,
        file: &File,
        plan: &FilePlan,
        runs: &[BlockRun],
    ) -> Result<()> {
        let block = u64::from(BLOCK_BYTES);
        let about = || format!("could not write \"{}\"", plan.path);
        for run in runs {
            let mut offset = u64::from(run.start) * block;
            let end = (run.end() * block).min(plan.size_bytes);
            while offset < end {
                let length = (end - offset).min(ZEROS_BYTES);
                let zeros = vec![0; usize::try_from(length).expect("64 KiB")];
                file.write_all_at(&zeros, offset).context(about)?;
                offset += length;
                self.count(length);
            }
            self.progress.add_pages(u64::from(run.count));
        }
        Ok(())
    }

    fn count(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.progress.add_done(bytes);
    }

    /// Bytes written to files of the cluster so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes of these that went past the page cache.
    pub(crate) fn direct_bytes(&self) -> u64 {
        self.written_directly.load(Ordering::Relaxed)
    }

    /// Creates a directory with the permissions it had; its owner can always work in it.
    pub(crate) fn create_directory(&self, path: &str, mode: u32) -> Result<()> {
        let mode = mode & 0o777 | 0o700;
        if path == "global" && mode & 0o050 == 0o050 {
            self.group_access.store(true, Ordering::Relaxed);
        }
        match self.locate(path) {
            Some((root, below)) => self.make_directory(root, below, mode),
            None => Ok(()),
        }
    }

    fn make_directory(&self, root: usize, below: &str, mode: u32) -> Result<()> {
        let about = || {
            format!(
                "could not create the directory \"{}\"",
                self.full_path(root, below).display()
            )
        };
        let (dir, below) = (&self.roots[root].dir, Path::new(below));
        let made = beneath::make_directory(dir, below).context(about)?;
        if made && mode == 0o700 && self.owner.is_none() {
            return Ok(());
        }
        let directory = beneath::directory(dir, below).context(about)?;
        fchmod(&directory, Mode::from_raw_mode(mode))
            .map_err(io::Error::from)
            .context(about)?;
        if let Some((user, group)) = self.owner {
            fchown(&directory, Some(user), Some(group))
                .map_err(io::Error::from)
                .context(about)?;
        }
        Ok(())
    }

    /// Creates a file of its final size: all hole.
    fn create_file(&self, root: usize, below: &str, mode: u32, size_bytes: u64) -> Result<File> {
        let about = || {
            format!(
                "could not create \"{}\"",
                self.full_path(root, below).display()
            )
        };
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let (dir, mode_at_first) = (&self.roots[root].dir, Mode::RUSR | Mode::WUSR);
        let file = beneath::open(dir, Path::new(below), flags, mode_at_first).context(about)?;
        if size_bytes > 0 {
            file.set_len(size_bytes).context(about)?;
        }
        self.set_mode(&file, mode).context(about)?;
        Ok(file)
    }

    fn set_mode(&self, file: &impl AsFd, mode: u32) -> io::Result<()> {
        let mode = mode & 0o777 | 0o600;
        if mode != 0o600 {
            fchmod(file, Mode::from_raw_mode(mode))?;
        }
        if let Some((user, group)) = self.owner {
            fchown(file, Some(user), Some(group))?;
        }
        Ok(())
    }

    /// Writes a small file of our own making; `listed` ones appear in `backup_manifest`.
    pub(crate) fn write_whole(&self, path: &str, contents: &[u8], listed: bool) -> Result<()> {
        let (root, below) = self.locate(path).expect("files of ours are not roots");
        let mode = if self.group_access() { 0o640 } else { 0o600 };
        let mut file = self.create_file(root, below, mode, 0)?;
        file.write_all(contents).context(|| {
            format!(
                "could not write \"{}\"",
                self.full_path(root, below).display()
            )
        })?;
        if listed {
            self.list(
                path,
                jiff::Timestamp::now().as_second(),
                FileChecksum::of(contents),
            )?;
        }
        Ok(())
    }

    /// Creates a file of our own making, empty, which is not listed; returns its path too.
    pub(crate) fn create(&self, path: &str) -> Result<(File, PathBuf)> {
        let (root, below) = self.locate(path).expect("files of ours are not roots");
        let mode = if self.group_access() { 0o640 } else { 0o600 };
        let file = self.create_file(root, below, mode, 0)?;
        Ok((file, self.full_path(root, below)))
    }

    /// Lets the group read a file that was created before it was known whether it may.
    pub(crate) fn admit_group(&self, path: &str) -> Result<()> {
        if !self.group_access() {
            return Ok(());
        }
        let (root, below) = self.locate(path).expect("files of ours are not roots");
        let about = || {
            let path = self.full_path(root, below);
            format!("could not set the permissions of \"{}\"", path.display())
        };
        let (dir, flags) = (&self.roots[root].dir, OFlags::WRONLY);
        let file = beneath::open(dir, Path::new(below), flags, Mode::empty()).context(about)?;
        self.set_mode(&file, 0o640).context(about)
    }

    fn unsettled(&self) -> MutexGuard<'_, BTreeMap<String, Unsettled>> {
        self.unsettled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a configuration file anew, whatever is there. It gets the permissions of the source, when they are known.
    pub(crate) fn write_over(
        &self,
        place: &Below,
        contents: &[u8],
        mode: Option<u32>,
    ) -> Result<()> {
        let Below { root, path } = place;
        let known = self.unsettled().get(path).copied().filter(|_| *root == 0);
        let ours = if self.group_access() { 0o640 } else { 0o600 };
        let mode = mode.or(known.map(|known| known.mode)).unwrap_or(ours);
        let about = || {
            format!(
                "could not write \"{}\"",
                self.full_path(*root, path).display()
            )
        };
        if let Some((above, _)) = path.rsplit_once('/') {
            let above = Below {
                root: *root,
                path: above.to_owned(),
            };
            self.make_directories(&above, 0)?;
        }
        match beneath::remove_file(&self.roots[*root].dir, Path::new(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).context(about);
            }
            _ => {}
        }
        let mut file = self.create_file(*root, path, mode, 0)?;
        file.write_all(contents).context(about)?;
        if *root == 0 && is_listed(path) {
            let modified = known.map_or_else(
                || jiff::Timestamp::now().as_second(),
                |known| known.modified,
            );
            let known = Unsettled { modified, mode };
            self.unsettled().insert(path.clone(), known);
        }
        Ok(())
    }

    /// Makes a directory and those above it, as far as they are not there.
    pub(crate) fn make_directories(&self, place: &Below, mode: u32) -> Result<()> {
        let ends = place.path.match_indices('/').map(|(end, _)| end);
        for end in ends.chain([place.path.len()]) {
            let below = &place.path[..end];
            let mode = if end == place.path.len() { mode } else { 0 };
            let there = beneath::exists(&self.roots[place.root].dir, Path::new(below));
            let about = || {
                format!(
                    "could not look at \"{}\"",
                    self.full_path(place.root, below).display()
                )
            };
            if !there.context(about)? {
                self.make_directory(place.root, below, mode & 0o777 | 0o700)?;
            }
        }
        Ok(())
    }

    /// Lists the configuration files as they are now.
    pub(crate) fn list_settled(&self) -> Result<()> {
        let unsettled = std::mem::take(&mut *self.unsettled());
        for (path, known) in unsettled {
            let (root, below) = self.locate_file(&path)?;
            let read = beneath::read(&self.roots[root].dir, Path::new(below));
            let contents = read.context(|| format!("could not read \"{path}\""))?;
            let contents = contents.unwrap_or_default();
            self.list(&path, known.modified, FileChecksum::of(&contents))?;
        }
        Ok(())
    }

    /// Lists a file.
    pub(crate) fn list(&self, path: &str, modified: i64, checksum: FileChecksum) -> Result<()> {
        let listing = self.listing.lock();
        let mut listing = listing.expect("no thread panics while it holds the listing");
        listing.file(path, modified, checksum)
    }

    /// Reads the frames that `plan` asks for and writes what is wanted from them.
    ///
    /// # Errors
    /// The first error of planning, reading or writing.
    pub(crate) fn write_frames(
        &self,
        reader: &FrameReader<'_>,
        plan: impl FnOnce(&mut WantedFrames<'_, Part>) -> Result<()>,
    ) -> Result<()> {
        let region_bytes = usize::try_from(reader.region_blocks() * BLOCK_BYTES);
        let region_bytes = region_bytes.expect("usize has 64 bits");
        let handover = Handover::<Arc<OpenTarget>>::new(reader.workers, region_bytes);
        // Workers come first when threads are few, and write themselves then.
        let wanted = reader.workers + handover.writers();
        let worth_it = self.direct.contains(&true) && limits::try_threads(wanted).is_ok();
        let read = std::thread::scope(|scope| {
            let _end = handover.end();
            let started = worth_it
                && limits::start_workers(scope, handover.writers(), |_| {
                    let writer = handover.writer();
                    || {
                        writer.work(|open, gathered| {
                            let written = gathered.write(|at, bytes| self.put(open, at, bytes));
                            // Nothing more is planned, and no file compared: that it was interrupted nobody is told.
                            written.inspect_err(|_| self.progress.cancel())
                        })
                    }
                })
                .is_ok();
            let handover = started.then_some(&handover);
            reader.read(
                || TargetFile::new(region_bytes, handover),
                |open, wanted, raw| self.write(open, wanted, raw),
                |mut open| self.leave(&mut open),
                plan,
            )
        });
        match handover.outcome() {
            Ok(()) => read,
            written => written,
        }
    }

    /// Takes what is wanted from a frame, decoded to `raw`; writes what is complete with it.
    fn write(&self, to: &mut TargetFile<'_>, wanted: WantedFrame<Part>, raw: &[u8]) -> Result<()> {
        let Part { file, take } = wanted.purpose;
        let same = to.current.take_if(|open| Arc::ptr_eq(&open.task, &file));
        let open = match same {
            Some(open) => open,
            None => {
                self.leave(to)?;
                Arc::new(self.reopen(&file)?)
            }
        };
        let open = &*to.current.insert(open);
        let start = u64::from(wanted.frame.first_block()) * u64::from(BLOCK_BYTES);
        to.region
            .move_to(start, |left| self.depart(to.handover, open, left))?;
        for take in &take {
            let (offset, bytes) = pages_of(take, raw, file.size_bytes).ok_or_else(|| {
                Error::new(
                    Kind::Damaged,
                    format!(
                        "a frame of \"{}\" does not hold block {} in full",
                        file.path, take.run.start
                    ),
                )
            })?;
            match bytes.len() >= LONG_BYTES && !open.file.is_direct() {
                true => self.put(open, offset, bytes)?,
                false => to.region.place(offset, bytes),
            }
        }
        Ok(())
    }

    /// Writes what a worker still has of the file that it leaves.
    fn leave(&self, from: &mut TargetFile<'_>) -> Result<()> {
        if let Some(open) = &from.current {
            from.region
                .finish(|left| self.depart(from.handover, open, left))?;
        }
        from.close();
        Ok(())
    }

    /// Writes what a region leaves behind, or has it written.
    fn depart(
        &self,
        handover: Option<&Handover<Arc<OpenTarget>>>,
        open: &Arc<OpenTarget>,
        left: Departing<'_>,
    ) -> Result<()> {
        match (left, handover.filter(|_| open.file.is_direct())) {
            (Departing::Region(gathered), Some(handover)) => {
                handover.give(Arc::clone(open), gathered)
            }
            (Departing::Region(gathered), None) => {
                gathered.write(|offset, bytes| self.put(open, offset, bytes))
            }
            (Departing::Piece(offset, bytes), _) => self.put(open, offset, bytes),
        }
    }

    /// Writes a run of pages, and lists the file when it was the last.
    fn put(&self, open: &OpenTarget, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = &open.task;
        let went_past = open.file.write_all_at(bytes, offset).context(|| {
            format!(
                "could not write \"{}\"",
                self.roots[file.root].path.join(&file.path).display()
            )
        })?;
        let written = u64::try_from(bytes.len()).expect("usize has 64 bits");
        self.count(written);
        if went_past {
            self.written_directly.fetch_add(written, Ordering::Relaxed);
        }
        self.progress
            .add_pages(written.div_ceil(u64::from(BLOCK_BYTES)));
        file.pieces
            .lock()
            .expect("no thread panics while it holds the pieces")
            .push((offset, FileChecksum::of(bytes)));
        if file.left.fetch_sub(written, Ordering::AcqRel) == written {
            self.complete(file)?;
        }
        Ok(())
    }

    fn reopen(&self, task: &Arc<FileTask>) -> Result<OpenTarget> {
        let (root, below) = self.locate(&task.path).expect("created before");
        let dir = &self.roots[root].dir;
        let open = |flags| beneath::open(dir, Path::new(below), flags, Mode::empty());
        let opened = PositionedFile::open(task.is_direct, open);
        let file = opened.context(|| {
            format!(
                "could not open \"{}\"",
                self.full_path(root, below).display()
            )
        })?;
        Ok(OpenTarget {
            task: Arc::clone(task),
            file,
        })
    }

    /// Puts the checksum of a finished file together and lists it.
    fn complete(&self, file: &FileTask) -> Result<()> {
        if !file.listed {
            return Ok(());
        }
        let mut pieces = std::mem::take(
            &mut *file
                .pieces
                .lock()
                .expect("no thread panics while it holds the pieces"),
        );
        pieces.sort_unstable_by_key(|(offset, _)| *offset);
        let mut checksum = FileChecksum::new();
        for (offset, piece) in &pieces {
            let gap = offset.checked_sub(checksum.size_bytes());
            checksum.zeros(gap.ok_or_else(|| {
                Error::new(
                    Kind::Damaged,
                    format!("a block of \"{}\" has more than one source", file.path),
                )
            })?);
            checksum.append(piece);
        }
        checksum.zeros(file.size_bytes.saturating_sub(checksum.size_bytes()));
        self.list(&file.path, file.modified, checksum)
    }

    /// Whether files of ours may be read by the group, as those of the source were.
    pub(crate) fn group_access(&self) -> bool {
        self.group_access.load(Ordering::Relaxed)
    }

    pub(crate) fn owner(&self) -> Option<(Uid, Gid)> {
        self.owner
    }

    /// Ends `backup_manifest`. Files that are `gone` were listed and do not stay.
    pub(crate) fn finish(self, wal: WalRange, gone: &BTreeSet<String>) -> Result<()> {
        let listing = self.listing.into_inner();
        let listing = listing.expect("no thread panics while it holds the listing");
        listing.finish(wal, gone)
    }
}

/// Whether `backup_manifest` lists a file of the index. `postgresql.auto.conf` is rewritten and listed then;
/// `pg_wal` is described by its WAL range; configuration from outside does not stay.
fn is_listed(path: &str) -> bool {
    path != AUTO_CONF && !path.starts_with("pg_wal/") && !is_outside(path)
}

/// Whether a file of the data directory may be part of the server's configuration.
fn is_configuration(plan: &FilePlan) -> bool {
    /// Others are something else, and too large to read at once.
    const LARGEST_BYTES: u64 = 16 << 20;
    plan.path.ends_with(".conf") && plan.size_bytes <= LARGEST_BYTES
}

/// Whom the files shall belong to, when we are root: PostgreSQL does not start from files of another user.
fn owner(data: &Root) -> Result<Option<(Uid, Gid)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let status = rustix::fs::fstat(&data.dir).map_err(io::Error::from);
    let status = status.context(|| format!("could not look at \"{}\"", data.path.display()))?;
    let (user, group) = (Uid::from_raw(status.st_uid), Gid::from_raw(status.st_gid));
    Ok((!user.is_root()).then_some((user, group)))
}

/// Gives a file to whom the data directory belongs, when we are root.
pub(crate) fn give_to_owner(file: &File, data: &Root) -> io::Result<()> {
    let status = rustix::fs::fstat(&data.dir)?;
    if rustix::process::geteuid().is_root() && status.st_uid != 0 {
        fchown(
            file,
            Some(Uid::from_raw(status.st_uid)),
            Some(Gid::from_raw(status.st_gid)),
        )?;
    }
    Ok(())
}
