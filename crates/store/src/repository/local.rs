//! A directory as an object store: create-only and durable.
//!
//! An object is written to a file without a name (`O_TMPFILE`; where the file system
//! has none, to a hidden one), synced, linked under its name (which fails when the
//! name is taken) and its directory synced. So a name always leads to a whole,
//! durable object, and a crash leaves nothing that is listed. Each directory that
//! this process writes to is synced up to the repository's root once, because another
//! process may have made it and died before syncing it. The root, and what is above it,
//! has a durable name from the moment in which it is made, or is not there.
//!
//! Directories are never removed: removing one while another process creates an
//! object in it would lose the synced entry. One is, made a moment ago, whose own name
//! cannot be synced. An empty directory is not listed.
//! Names starting with a dot are not objects, nor is what a file system keeps in
//! its uppermost directory, which may be any of these: `wal` may be a link to it.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::process::geteuid;

use super::creates::Creates;
use super::{hidden, reserve};
use crate::direct;

/// A repository holds whole databases: not for everybody's eyes.
const FILE_MODE: u32 = 0o640;
const DIRECTORY_MODE: u32 = 0o750;

/// Root's own in the uppermost directory of many file systems; nobody else may look into it.
const LOST_AND_FOUND: &str = "lost+found";

/// Files removed by one thread before their directories are synced.
const DELETED_AT_ONCE: usize = 1000;

/// Writes an object.
pub(super) type WriteObject = dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync;

/// The same to the file that it will be.
type Fill<'a> = &'a dyn Fn(&File) -> io::Result<()>;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct LocalStore(Arc<OpenDirectory>);

/// To whom a file belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    user: Uid,
    group: Gid,
}

impl Owner {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            user: Uid::from_raw(metadata.uid()),
            group: Gid::from_raw(metadata.gid()),
        }
    }
}

#[derive(Debug)]
struct OpenDirectory {
    root: PathBuf,
    /// Directories whose entries, up to the root's parent, this process has synced, as far as it may.
    durable: Mutex<HashSet<PathBuf>>,
    /// Which directory the root was when an object was read in it. Another one that has its name now tells nothing of what is
    /// not there, and nothing is put into it: a file system that was unmounted leaves an empty directory, and what is stored
    /// there is lost when it comes back.
    read_in: OnceLock<(u64, u64)>,
    creates: Creates,
}

impl std::fmt::Display for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "directory {}", self.0.root.display())
    }
}

impl LocalStore {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self(Arc::new(OpenDirectory {
            root: root.into(),
            durable: Mutex::default(),
            read_in: OnceLock::new(),
            creates: Creates::default(),
        }))
    }

    /// The directory.
    pub(super) fn root(&self) -> &FilePath {
        &self.0.root
    }

    /// Syncs the name of an object that somebody else created.
    pub(super) async fn make_durable(&self, location: &Path) -> Result<()> {
        let location = location.clone();
        self.blocking(move |inner| {
            let path = inner.file_path(&location);
            let directory = path.parent().unwrap_or(&inner.root);
            let synced = inner.make_durable(directory);
            synced
                .and_then(|()| sync_directory(directory))
                .map_err(failed)
        })
        .await
    }

    /// Creates an object that `write` writes, from its beginning whenever it is called.
    pub(super) async fn create_written(
        &self,
        location: &Path,
        write: Arc<WriteObject>,
    ) -> Result<()> {
        let location = location.clone();
        self.create(location, move |mut file: &File| write(&mut file))
            .await
    }

    /// Waits until no thread creates an object any more, also none whose result nobody waits for.
    pub(super) async fn end_of_creates(&self) {
        self.0.creates.end().await;
    }

    async fn create(
        &self,
        location: Path,
        fill: impl Fn(&File) -> io::Result<()> + Send + 'static,
    ) -> Result<()> {
        let begun = self.0.creates.begin();
        self.blocking(move |inner| {
            let _begun = begun;
            inner.create(&location, &fill)
        })
        .await
    }

    /// Makes the directories of a prefix; as root, gives them to `owner`.
    pub(super) async fn make_home(&self, prefix: &Path, owner: Owner) -> Result<()> {
        let prefix = prefix.clone();
        self.blocking(move |inner| {
            let directory = inner.file_path(&prefix);
            let made = inner.make_directories(&directory, Some(owner));
            made.map_err(|e| named(&directory, e))
        })
        .await
    }

    /// Fills the reserve.
    pub(super) async fn lay_up_room(&self) -> Result<()> {
        self.blocking(move |inner| {
            let file = reserve::lay_up(&inner.root).map_err(failed)?;
            give_to_owner_of(&inner.root, &file).map_err(failed)
        })
        .await
    }

    /// Gives up part of the reserve; false when there is none.
    pub(super) async fn free_room(&self) -> Result<bool> {
        self.blocking(move |inner| reserve::free(&inner.root).map_err(failed))
            .await
    }

    /// Removes files that killed writers have left below that directory, and that are no objects; answers how many.
    pub(super) async fn collect_hidden(&self, below: &str) -> Result<usize> {
        let below = self.root().join(below);
        self.blocking(move |_| Ok(hidden::collect(&below, SystemTime::now())))
            .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&OpenDirectory) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || act(&inner)).await?
    }
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if !matches!(options.mode, PutMode::Create) {
            return Err(unsupported("overwriting"));
        }
        let location = location.clone();
        let fill = move |file: &File| {
            let mut parts = payload.iter();
            parts.try_for_each(|part| direct::write(file, part).map(drop))
        };
        self.create(location, fill).await?;
        Ok(PutResult {
            e_tag: None,
            version: None,
            extensions: object_store::Extensions::default(),
        })
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(unsupported("multipart upload"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let location = location.clone();
        self.blocking(move |inner| inner.open(location, &options))
            .await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let location = location.clone();
        let ranges = ranges.to_vec();
        self.blocking(move |inner| {
            let path = inner.file_path(&location);
            let (file, _) = inner.open_file(&path)?;
            let read = ranges.iter().map(|r| read_range(&file, r));
            read.collect::<io::Result<_>>().map_err(|e| named(&path, e))
        })
        .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let deleted = locations.chunks(DELETED_AT_ONCE).then(move |batch| {
            let store = store.clone();
            async move {
                let deleted = store.blocking(move |inner| Ok(inner.delete(batch)));
                deleted.await.unwrap_or_else(|error| vec![Err(error)])
            }
        });
        deleted.flat_map(stream::iter).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix, Some(offset.clone()))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        self.blocking(move |inner| {
            let found = inner.list_level(&prefix)?;
            inner.require_same_root().map_err(failed)?;
            Ok(found)
        })
        .await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unsupported("copying"))
    }
}

impl LocalStore {
    fn listing(
        &self,
        prefix: Option<&Path>,
        after: Option<Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let prefix = prefix.cloned().unwrap_or_default();
        let found = async move {
            let walked = store.blocking(move |inner| {
                let mut found = Vec::new();
                inner.walk(&prefix, after.as_ref(), &mut found)?;
                inner.require_same_root().map_err(failed)?;
                Ok(found)
            });
            match walked.await {
                Ok(found) => found.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            }
        };
        stream::once(found).flat_map(stream::iter).boxed()
    }
}

impl OpenDirectory {
    fn file_path(&self, location: &Path) -> PathBuf {
        let mut path = self.root.clone();
        path.extend(location.parts().map(|p| p.as_ref().to_owned()));
        path
    }

    fn create(&self, location: &Path, fill: Fill<'_>) -> Result<()> {
        let path = self.file_path(location);
        let directory = path.parent().unwrap_or(&self.root).to_owned();
        let written = loop {
            self.make_durable(&directory)
                .map_err(|e| named(&directory, e))?;
            match write_new(&directory, &path, fill) {
                // The directory went away after it was made.
                Err(e) if e.kind() == io::ErrorKind::NotFound => self.forget(&directory),
                other => break other,
            }
        };
        match written {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                // Whoever repeats a create relies on the object as if it were its own, so
                // its directory entry must be durable here too.
                sync_directory(&directory).map_err(|e| named(&directory, e))?;
                Err(Error::AlreadyExists {
                    path: location.to_string(),
                    source: e.into(),
                })
            }
            Err(e) => Err(failed(e)),
        }
    }

    /// Makes `directory` and syncs it and every directory above it, to the root's parent.
    fn make_durable(&self, directory: &FilePath) -> io::Result<()> {
        let known = |set: &HashSet<PathBuf>| set.contains(directory);
        if known(&self.durable.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        self.make_directories(directory, None)?;
        let above = directory.ancestors().skip(1);
        for ancestor in above.take_while(|a| a.starts_with(&self.root)) {
            sync_directory(ancestor)?;
        }
        self.sync_root()?;
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        durable.insert(directory.to_owned());
        Ok(())
    }

    /// Syncs the name of the root, which another process may have made. Whoever may enter the directory in which that is, and
    /// not read it, cannot.
    fn sync_root(&self) -> io::Result<()> {
        match self.root.parent().map(sync_directory) {
            Some(Err(e)) if e.kind() != io::ErrorKind::PermissionDenied => Err(e),
            _ => Ok(()),
        }
    }

    /// Makes `directory` and those above it, as far as they are missing. Made by root they belong to `owner`, or else to
    /// the owner of the one above: a backup by root must not keep the server from archiving. Below the root names are synced
    /// when something is put there.
    fn make_directories(&self, directory: &FilePath, owner: Option<Owner>) -> io::Result<()> {
        let missing = directory.ancestors().take_while(|path| !path.is_dir());
        let missing: Vec<&FilePath> = missing.collect();
        if !missing.is_empty() {
            self.require_same_root()?;
        }
        for path in missing.into_iter().rev() {
            match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => continue,
                made => made?,
            }
            if geteuid().is_root() {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = File::from(rustix::fs::open(path, flags, Mode::empty())?);
                match (owner, path.parent()) {
                    (Some(owner), _) => give_to(&made, owner),
                    (None, Some(above)) => give_to_owner_of(above, &made)?,
                    (None, None) => {}
                }
            }
            if self.root.starts_with(path) {
                keep_name_of(path)?;
            }
        }
        Ok(())
    }

    fn root_identity(&self) -> io::Result<(u64, u64)> {
        let metadata = fs::metadata(&self.root)?;
        Ok((metadata.dev(), metadata.ino()))
    }

    fn require_same_root(&self) -> io::Result<()> {
        let Some(read_in) = self.read_in.get() else {
            return Ok(());
        };
        match self.root_identity() {
            Ok(now) if now == *read_in => Ok(()),
            _ => Err(io::Error::other(
                "the repository's directory went away, or another one took its place: is it mounted?",
            )),
        }
    }

    fn forget(&self, directory: &FilePath) {
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        durable.remove(directory);
    }

    /// A file, and what it is; or a directory. A pipe is opened without waiting for somebody at its other end.
    fn open_file(&self, path: &FilePath) -> Result<(File, fs::Metadata)> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let file = opened.map_err(|error| self.not_opened(path, error.into()))?;
        let file = File::from(file);
        let metadata = file.metadata().map_err(|e| named(path, e))?;
        match metadata.is_file() || metadata.is_dir() {
            true => Ok((file, metadata)),
            false => Err(failed(no_file(path, "a pipe, a device or a socket"))),
        }
    }

    /// In a directory that is another one by now nothing is "not there"; nor is what a link of that name does not lead to.
    fn not_opened(&self, path: &FilePath, error: io::Error) -> Error {
        if is_absent(&error)
            && let Err(error) = self.require_same_root()
        {
            return failed(error);
        }
        match leads_nowhere(&error) && path.is_symlink() {
            true => failed(no_file(path, "a link that leads nowhere")),
            false => named(path, error),
        }
    }

    fn open(&self, location: Path, options: &GetOptions) -> Result<GetResult> {
        let path = self.file_path(&location);
        // Once is enough, and before the object is opened.
        let root = match self.read_in.get() {
            Some(_) => None,
            None => self.root_identity().ok(),
        };
        let (file, metadata) = self.open_file(&path)?;
        if let Some(root) = root {
            self.read_in.get_or_init(|| root);
        }
        if !metadata.is_file() {
            return Err(named(&path, io::ErrorKind::NotFound.into()));
        }
        let meta = meta(location, &metadata).map_err(|e| named(&path, e))?;
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            None => 0..meta.size,
            Some(GetRange::Bounded(r)) if r.end <= meta.size => r.clone(),
            Some(_) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
        };
        Ok(GetResult {
            payload: GetResultPayload::File(file, path),
            meta,
            range,
            attributes: Attributes::default(),
            extensions: object_store::Extensions::default(),
        })
    }

    /// Removes files, and then syncs each directory once: a sync costs more than all the removals.
    fn delete(&self, locations: Vec<Result<Path>>) -> Vec<Result<Path>> {
        let mut directories = BTreeMap::new();
        let mut remove = |location: Result<Path>| {
            let location = location?;
            let path = self.file_path(&location);
            fs::remove_file(&path).map_err(|e| named(&path, e))?;
            if let Some(directory) = path.parent() {
                directories.insert(directory.to_owned(), location.clone());
            }
            Ok(location)
        };
        let mut outcomes: Vec<Result<Path>> = locations.into_iter().map(&mut remove).collect();
        for (directory, last) in directories {
            if let Err(error) = sync_directory(&directory) {
                let of_last = |outcome: &&mut Result<Path>| {
                    outcome.as_ref().is_ok_and(|deleted| *deleted == last)
                };
                if let Some(outcome) = outcomes.iter_mut().find(of_last) {
                    *outcome = Err(named(&directory, error));
                }
            }
        }
        outcomes
    }

    fn walk(&self, prefix: &Path, after: Option<&Path>, found: &mut Vec<ObjectMeta>) -> Result<()> {
        for (name, path) in self.entries(prefix)? {
            let location = prefix.clone().join(name);
            if after.is_some_and(|after| ends_before(&location, after)) {
                continue;
            }
            // A directory that went away held nothing.
            let Some(metadata) = present(metadata(&path))? else {
                continue;
            };
            if metadata.is_dir() {
                self.walk(&location, after, found)?;
            } else if after.is_none_or(|a| location > *a) {
                found.push(meta(location, &metadata).map_err(failed)?);
            }
        }
        Ok(())
    }

    fn list_level(&self, prefix: &Path) -> Result<ListResult> {
        let mut result = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: object_store::Extensions::default(),
        };
        for (name, path) in self.entries(prefix)? {
            let location = prefix.clone().join(name);
            let Some(metadata) = present(metadata(&path))? else {
                continue;
            };
            if !metadata.is_dir() {
                let meta = meta(location, &metadata).map_err(failed)?;
                result.objects.push(meta);
            } else if self.holds_object(&location)? {
                result.common_prefixes.push(location);
            }
        }
        Ok(result)
    }

    fn holds_object(&self, prefix: &Path) -> Result<bool> {
        let mut below = Vec::new();
        for (name, path) in self.entries(prefix)? {
            match present(metadata(&path))? {
                Some(metadata) if metadata.is_dir() => below.push(prefix.clone().join(name)),
                Some(_) => return Ok(true),
                None => {}
            }
        }
        for directory in below {
            if self.holds_object(&directory)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What lies in the directory of `prefix` and may be, or hold, an object.
    fn entries(&self, prefix: &Path) -> Result<Vec<(String, PathBuf)>> {
        let path = self.file_path(prefix);
        let listed = match fs::read_dir(&path) {
            // Like a missing bucket: not an empty repository.
            Err(e) if path == self.root => return Err(failed(e)),
            listed => match present(listed)? {
                Some(listed) => listed,
                // An object store does not know an empty prefix from a missing one.
                None if self.root.is_dir() => return Ok(Vec::new()),
                None => return Err(failed(io::ErrorKind::NotFound.into())),
            },
        };
        let mut found = Vec::new();
        for entry in listed {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let is_ours = !name.starts_with('.') && name != LOST_AND_FOUND;
            if is_ours && Path::parse(&name).is_ok() {
                found.push((name, entry.path()));
            }
        }
        Ok(found)
    }
}

/// Whether `location`, and whatever may lie below it, comes before `after`: an archive of years has a hundred thousand
/// files, and who looks for the few after one must not look at each.
fn ends_before(location: &Path, after: &Path) -> bool {
    location < after && !after.as_ref().starts_with(location.as_ref())
}

/// Writes what `fill` writes as the new file `path` in `directory`; both are durable afterwards.
fn write_new(directory: &FilePath, path: &FilePath, fill: Fill<'_>) -> io::Result<()> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::from_raw_mode(FILE_MODE)) {
        Ok(fd) => {
            let file = File::from(fd);
            give_to_owner_of(directory, &file)?;
            fill(&file)?;
            file.sync_all()?;
            link_unnamed(&file, path)?;
        }
        Err(e) if e == rustix::io::Errno::NOENT => return Err(e.into()),
        // No O_TMPFILE here (NFS, FUSE, overlays): EOPNOTSUPP, EISDIR or EINVAL, by kernel.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => {
            write_named(directory, path, fill)?;
        }
        Err(e) => return Err(e.into()),
    }
    sync_directory(directory)
}

/// As root, gives what we have made to the owner of the directory that it is in, unless that is root.
fn give_to_owner_of(directory: &FilePath, file: &File) -> io::Result<()> {
    if geteuid().is_root() {
        give_to(file, Owner::of(&fs::metadata(directory)?));
    }
    Ok(())
}

/// A file server may not let root do that.
fn give_to(file: &File, owner: Owner) {
    if !owner.user.is_root()
        && let Err(error) = rustix::fs::fchown(file, Some(owner.user), Some(owner.group))
    {
        tracing::debug!(%error, "what root has made in the repository stays root's");
    }
}

/// Gives an unnamed file its name, unless the name is taken.
fn link_unnamed(file: &File, path: &FilePath) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Err(e) if e == rustix::io::Errno::NOENT && !FilePath::new("/proc/self/fd").exists() => {
            Err(io::Error::other("/proc is not mounted"))
        }
        linked => Ok(linked?),
    }
}

fn write_named(directory: &FilePath, path: &FilePath, fill: Fill<'_>) -> io::Result<()> {
    let hidden = hidden::path_in(directory);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(
        &hidden,
        flags,
        Mode::from_raw_mode(FILE_MODE),
    )?);
    hidden::lock(&file);
    let published = give_to_owner_of(directory, &file)
        .and_then(|()| fill(&file))
        .and_then(|()| file.sync_all())
        .and_then(|()| publish_named(&hidden, path));
    let removed = fs::remove_file(&hidden);
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => published.and(Err(e)),
        _ => published,
    }
}

/// Renames or links `hidden` to `path` unless that is taken; `hidden` may remain.
fn publish_named(hidden: &FilePath, path: &FilePath) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE) {
        // The file system (NFS) knows no such flag; a link does not replace either.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
            fs::hard_link(hidden, path)
        }
        renamed => Ok(renamed?),
    }
}

fn sync_directory(path: &FilePath) -> io::Result<()> {
    // The root of the file system has no parent that could be named.
    let path = if path.as_os_str().is_empty() {
        FilePath::new(".")
    } else {
        path
    };
    File::open(path)?.sync_all()
}

/// Syncs the name of a directory that was made just now. When that cannot be done the directory goes again: whoever met it
/// later would take it for one that was there before, and its name for durable.
fn keep_name_of(made: &FilePath) -> io::Result<()> {
    let above = made.parent().unwrap_or(made);
    let Err(error) = sync_directory(above) else {
        return Ok(());
    };
    let _ = fs::remove_dir(made);
    Err(match error.kind() {
        io::ErrorKind::PermissionDenied => io::Error::other(format!(
            "the directory \"{}\" was made and taken away again: \"{}\", in which it was, cannot be synced: {error}; let the user \
             who runs this read that, or make the directory by hand",
            made.display(),
            above.display()
        )),
        _ => error,
    })
}

/// One `pread` per range, into memory of the right size.
fn read_range(file: &File, range: &Range<u64>) -> io::Result<Bytes> {
    let length = usize::try_from(range.end - range.start)
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, range.start)?;
    Ok(buffer.into())
}

fn meta(location: Path, metadata: &fs::Metadata) -> io::Result<ObjectMeta> {
    Ok(ObjectMeta {
        location,
        last_modified: metadata.modified()?.into(),
        size: metadata.size(),
        e_tag: None,
        version: None,
    })
}

/// What has the name. Whoever put something else than a file in an object's place has not made the object absent: it is
/// listed, and cannot be read.
fn metadata(path: &FilePath) -> io::Result<fs::Metadata> {
    match fs::metadata(path) {
        Err(error) if leads_nowhere(&error) => fs::symlink_metadata(path),
        found => found,
    }
}

/// Whether a link may be the reason.
fn leads_nowhere(error: &io::Error) -> bool {
    is_absent(error) || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

fn no_file(path: &FilePath, what: &str) -> io::Error {
    io::Error::other(format!("{} is {what}, and no file", path.display()))
}

fn present<T>(found: io::Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// An error on an object that may simply not be there.
fn named(path: &FilePath, error: io::Error) -> Error {
    if is_absent(&error) {
        return Error::NotFound {
            path: path.display().to_string(),
            source: error.into(),
        };
    }
    failed(error)
}

fn failed(error: io::Error) -> Error {
    Error::Generic {
        store: "directory",
        source: error.into(),
    }
}

fn unsupported(what: &str) -> Error {
    Error::NotImplemented {
        operation: what.to_owned(),
        implementer: "a directory repository".to_owned(),
    }
}
