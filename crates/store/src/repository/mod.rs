//! The repository: named, immutable objects in a directory or an object store.
//!
//! Every object is created if absent and never overwritten, and is durable when
//! [`Repository::create`] returns. A create whose answer was lost and that is
//! repeated meets its own object and succeeds. Failures that may pass (a dropped
//! connection, a server error, throttling) are retried with growing pauses; what
//! remains is one error that names the act, the object and the repository, with
//! a hint where there is something to do.
//!
//! The runtime it is called from needs tokio's timer.

mod client;
mod creates;
mod credentials;
mod delete;
mod directory;
mod existing;
#[doc(hidden)]
pub mod fault;
mod hidden;
mod local;
mod open;
mod page;
mod probe;
mod reason;
pub(crate) mod record;
mod refused;
mod reserve;
mod retries;
mod sendable;
mod settings;
mod signatures;
mod spill;
mod strange;
pub mod versions;

use std::fs::Metadata;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, future};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::blocking::blocking;
use crate::error::{Error, Kind, Result};
use crate::limits;
use credentials::{Renewal, Secrets};
pub use credentials::{is_secret_option, read_credentials};
pub use directory::{ANSWERS_WITHIN, RealDirectory, no_answer};
use existing::{SETTLES, There};
use local::{LocalStore, Owner};
pub use open::RepositoryOptions;
pub(crate) use probe::PROBE;
use reason::Reason;
use retries::{Patience, Retries};
pub use settings::is_same_option;
use spill::Remembering;
use strange::is_strange;
use versions::{Bucket, Retention};

/// Requests that the `object_store` crate makes at once for several ranges of one object.
const RANGES_AT_ONCE: usize = 10;

/// One listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key, relative to the repository's root.
    pub key: String,
    /// Its length.
    pub size_bytes: u64,
    /// When it was created, by the store's clock.
    pub modified: Timestamp,
}

/// A handle on a repository. Cheap to clone.
#[derive(Clone)]
pub struct Repository(Arc<OpenRepository>);

impl std::fmt::Debug for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Repository({})", self.url())
    }
}

struct OpenRepository {
    store: Arc<dyn ObjectStore>,
    /// The same store, when it is a directory.
    local: Option<LocalStore>,
    /// The same store, when it is a bucket of S3.
    bucket: Option<Bucket>,
    /// For how long what is created is locked, when it is.
    retention: OnceLock<Retention>,
    /// What comes before every key in the store.
    root: Path,
    url: String,
    /// Whether it is shown as it was once, to read.
    is_past: bool,
    patience: Patience,
    /// Whether any request was ever answered.
    reached: AtomicBool,
    /// Whether it was said that deletion is not allowed.
    told_of_denial: AtomicBool,
    /// Values that must not appear in a message.
    secrets: Secrets,
    /// Whether credentials that have expired may be followed by others.
    renewal: Renewal,
    /// One for each connection, or open file, that there may be.
    permits: Semaphore,
}

impl Repository {
    /// Opens the repository that `options` name. Does not touch it.
    ///
    /// # Errors
    /// `Usage` for an unknown scheme or option.
    pub fn open(options: &RepositoryOptions) -> Result<Self> {
        let opened = open::open(options)?;
        Ok(Self(Arc::new(OpenRepository {
            store: opened.store,
            local: opened.local,
            bucket: opened.bucket,
            retention: OnceLock::new(),
            root: opened.root,
            url: opened.url,
            is_past: false,
            patience: opened.patience,
            reached: AtomicBool::new(false),
            told_of_denial: AtomicBool::new(false),
            secrets: opened.secrets,
            renewal: opened.renewal,
            permits: Semaphore::new(limits::requests()),
        })))
    }

    /// An empty repository in memory, for tests.
    #[must_use]
    pub fn memory() -> Self {
        Self::with_store(Arc::new(object_store::memory::InMemory::new()))
    }

    /// A repository over any store, for tests: the store's root is the repository's,
    /// and it is retried for a second at most.
    #[must_use]
    pub fn with_store(store: Arc<dyn ObjectStore>) -> Self {
        let second = Duration::from_secs(1);
        Self(Arc::new(OpenRepository {
            store,
            local: None,
            bucket: None,
            retention: OnceLock::new(),
            root: Path::default(),
            url: "memory:///".to_owned(),
            is_past: false,
            patience: Patience {
                first: second,
                later: second,
            },
            reached: AtomicBool::new(false),
            told_of_denial: AtomicBool::new(false),
            secrets: Secrets::default(),
            renewal: Renewal::None,
            permits: Semaphore::new(limits::requests()),
        }))
    }

    /// The same repository as another store shows it.
    fn showing_past(&self, store: Arc<dyn ObjectStore>, url: String) -> Self {
        let own = &self.0;
        Self(Arc::new(OpenRepository {
            store,
            local: None,
            bucket: None,
            retention: OnceLock::new(),
            root: own.root.clone(),
            url,
            is_past: true,
            patience: own.patience,
            reached: AtomicBool::new(own.reached.load(Ordering::Relaxed)),
            told_of_denial: AtomicBool::new(false),
            secrets: own.secrets.clone(),
            renewal: own.renewal.clone(),
            permits: Semaphore::new(limits::requests()),
        }))
    }

    /// Whether this is the repository as it was once: nothing comes or goes there.
    #[must_use]
    pub fn is_past(&self) -> bool {
        self.0.is_past
    }

    /// Where the repository is, without credentials.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The directory that holds the repository; `None` when an object store does.
    #[must_use]
    pub fn directory(&self) -> Option<&std::path::Path> {
        self.0.local.as_ref().map(LocalStore::root)
    }

    /// Creates the object `key`, durably. Repeating a create with the same contents succeeds.
    ///
    /// # Errors
    /// `AlreadyExists` when the object is there with other contents; `Repository` when it
    /// cannot be written; `Unsupported` when it cannot be locked.
    pub async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        const ACT: &str = "could not write";
        self.require_lockable()?;
        let path = self.path(key)?;
        let mut retries = self.retries();
        let mut hidden = Retries::new(self.0.patience.later.min(SETTLES));
        loop {
            let error = match self.put_new(&path, &body).await {
                Ok(()) => {
                    self.note_answer();
                    return Ok(());
                }
                Err(error) => error,
            };
            if matches!(error, object_store::Error::AlreadyExists { .. }) {
                self.note_answer();
            } else {
                if !self.may_pass(&error) || !retries.wait().await {
                    return Err(self.error(ACT, key, &error));
                }
                tracing::debug!(key, error = %self.why(&error), "repeating a create");
                if !self.is_taken(&path).await {
                    continue;
                }
            }
            match self.what_is_there(key, &path, &body).await? {
                There::Same => return self.make_durable(key).await,
                There::Other => return Err(self.exists_with_other_contents(key)),
                There::Beginning(size) => return Err(self.cut_off(key, size, &body)),
                // Deleted since, or the store refused two creates at once and kept neither.
                There::Nothing if hidden.wait().await => {}
                There::Nothing => return Err(self.hidden(key)),
            }
        }
    }

    /// Creates the object `key`, durably, of which `write` writes the bytes, from the first one whenever it is called. The
    /// whole of it is not held in memory: an object store takes an object in one piece, and gets it out of a temporary file.
    ///
    /// # Errors
    /// `AlreadyExists` when the object is there, whatever it holds; that of `write`; `Repository` when it cannot be written.
    pub async fn create_written(
        &self,
        key: &str,
        write: impl Fn(&mut dyn Write) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let Some(local) = &self.0.local else {
            let body = blocking(move || spill::written(&write)).await?;
            return self.create(key, body).await;
        };
        let failed = Arc::new(Mutex::new(None));
        let failing = Arc::clone(&failed);
        let write = move |out: &mut dyn Write| {
            let mut out = Remembering { out, failed: None };
            let written = write(&mut out);
            match (out.failed, written) {
                // The file of the object could not be written: that says why.
                (Some(error), _) => Err(error),
                (None, Ok(())) => Ok(()),
                (None, Err(error)) => {
                    let told = io::Error::other(error.to_string());
                    *failing.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    Err(told)
                }
            }
        };
        let path = self.path(key)?;
        let _permit = self.permit(1).await;
        let created = local.create_written(&path, Arc::new(write)).await;
        let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (created, failed) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => Err(error),
            (Err(object_store::Error::AlreadyExists { .. }), None) => {
                Err(self.exists_with_other_contents(key))
            }
            (Err(error), None) => Err(self.error("could not write", key, &error)),
        }
    }

    /// The whole object `key`.
    ///
    /// # Errors
    /// `NotFound` when the repository answered that there is no such object.
    pub async fn get(&self, key: &str) -> Result<Bytes> {
        let path = self.path(key)?;
        self.retrying(|| async { self.0.store.get(&path).await?.bytes().await })
            .await
            .map_err(|e| self.error("could not read", key, &e))
    }

    /// The first bytes of the object `key`, as many as `most`, and its length: one request for both.
    ///
    /// # Errors
    /// As for [`Repository::get`].
    pub async fn get_start(&self, key: &str, most: u64) -> Result<(Bytes, u64)> {
        let path = self.path(key)?;
        if self.0.local.is_some() {
            return match self.size(key).await? {
                Some(size) => Ok((self.get_range(key, 0..size.min(most)).await?, size)),
                // Says that it is not there, or what else is the matter; unless it has come since.
                None => self.get(key).await.map(|whole| start_of(whole, most)),
            };
        }
        let read = async || {
            let options = GetOptions::default().with_range(Some(GetRange::Bounded(0..most)));
            let found = self.0.store.get_opts(&path, options).await?;
            let size = found.meta.size;
            Ok((found.bytes().await?, size))
        };
        let error = match self.retrying(read).await {
            Ok(read) => return Ok(read),
            Err(error) => error,
        };
        // An empty object has no range at all.
        if !matches!(error, object_store::Error::NotFound { .. })
            && let Ok(Some(0)) = self.size(key).await
        {
            return Ok((Bytes::new(), 0));
        }
        Err(self.error("could not read", key, &error))
    }

    /// Bytes `range` of the object `key`.
    ///
    /// # Errors
    /// `Damaged` when the object is shorter; `NotFound` as for [`Repository::get`].
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let mut parts = self.get_ranges(key, &[range]).await?;
        Ok(parts.pop().unwrap_or_default())
    }

    /// Bytes `range` of the object `key`, as far as there are.
    ///
    /// # Errors
    /// As for [`Repository::get_range`], when there is none of them.
    pub async fn get_up_to(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        if self.0.local.is_some() {
            let size = match self.size(key).await? {
                Some(size) => size,
                // As above.
                None => self.get_start(key, 0).await?.1,
            };
            return self.get_range(key, range.start..range.end.min(size)).await;
        }
        let path = self.path(key)?;
        let got = self.retrying(|| async {
            let options = GetOptions {
                range: Some(GetRange::Bounded(range.clone())),
                ..GetOptions::default()
            };
            self.0.store.get_opts(&path, options).await?.bytes().await
        });
        match got.await {
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(self
                .range_error(key, std::slice::from_ref(&range), &error)
                .await),
        }
    }

    /// Several ranges of the object `key`, in the order asked for.
    ///
    /// # Errors
    /// As for [`Repository::get_range`].
    pub async fn get_ranges(&self, key: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.path(key)?;
        let wanted: Vec<Range<u64>> = ranges.iter().filter(|r| r.start < r.end).cloned().collect();
        let got = match &wanted[..] {
            [] => Ok(Vec::new()),
            [one] => self
                .retrying(|| self.0.store.get_range(&path, one.clone()))
                .await
                .map(|bytes| vec![bytes]),
            _ => {
                let at_once = wanted.len().min(RANGES_AT_ONCE);
                self.retrying_as(at_once, || self.0.store.get_ranges(&path, &wanted))
                    .await
            }
        };
        let got = match got {
            Ok(got) => got,
            Err(error) => return Err(self.range_error(key, &wanted, &error).await),
        };
        for (range, bytes) in wanted.iter().zip(&got) {
            if u64::try_from(bytes.len()).ok() != Some(range.end - range.start) {
                return Err(self.too_short(key, range.end, None));
            }
        }
        let mut got = got.into_iter();
        Ok(ranges
            .iter()
            .map(|r| if r.start < r.end { got.next() } else { None })
            .map(Option::unwrap_or_default)
            .collect())
    }

    /// The length of the object `key`; `None` when there is no such object.
    ///
    /// # Errors
    /// `Repository` when that cannot be known. A missing bucket is indistinguishable
    /// from a missing object here; [`Repository::get`] tells them apart.
    pub async fn size(&self, key: &str) -> Result<Option<u64>> {
        Ok(self.look_up(key).await?.map(|meta| meta.size))
    }

    /// When the object `key` was created, by the store's clock; `None` when there is none, or the time is none.
    ///
    /// # Errors
    /// As for [`Repository::size`].
    pub async fn modified(&self, key: &str) -> Result<Option<Timestamp>> {
        let found = self.look_up(key).await?;
        let micros = found.map(|meta| meta.last_modified.timestamp_micros());
        Ok(micros.and_then(|micros| Timestamp::from_microsecond(micros).ok()))
    }

    async fn look_up(&self, key: &str) -> Result<Option<ObjectMeta>> {
        let path = self.path(key)?;
        match self.retrying(|| self.0.store.head(&path)).await {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if Reason::of(&error).object_is_absent => Ok(None),
            Err(error) => Err(self.error("could not look up", key, &error)),
        }
    }

    /// Every object below `prefix` (a whole key component), in order of key.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let path = self.path(prefix)?;
        let found = self
            .retrying(|| self.0.store.list(Some(&path)).try_collect::<Vec<_>>())
            .await
            .map_err(|e| self.error("could not list", prefix, &e))?;
        self.infos(found)
    }

    /// Like [`Repository::list`], only keys greater than `after`.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn list_from(&self, prefix: &str, after: &str) -> Result<Vec<ObjectInfo>> {
        let path = self.path(prefix)?;
        let offset = self.path(after)?;
        let found = self
            .retrying(|| self.listed_after(&path, &offset).try_collect::<Vec<_>>())
            .await
            .map_err(|e| self.error("could not list", prefix, &e))?;
        self.infos(found)
    }

    /// Keys of objects below `prefix` that are greater than `after`, in order: the first of them, and as many as `most`.
    /// Costs an object store one request for each thousand.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn list_some(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<String>> {
        let path = self.path(prefix)?;
        let offset = self.path(after)?;
        // A directory is listed in no order; what it costs is paid with the listing.
        let most = if self.0.local.is_some() {
            usize::MAX
        } else {
            most
        };
        let found = self
            .retrying(|| {
                let stream = self.listed_after(&path, &offset);
                stream.take(most).try_collect::<Vec<_>>()
            })
            .await
            .map_err(|e| self.error("could not list", prefix, &e))?;
        let infos = self.infos(found)?;
        Ok(infos.into_iter().map(|object| object.key).collect())
    }

    /// What the store lists from `offset` on, but for strange names: they are not counted. Some stores know no such thing as an
    /// offset, and list everything.
    fn listed_after(
        &self,
        path: &Path,
        offset: &Path,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let after = offset.clone();
        let listed = self.0.store.list_with_offset(Some(path), offset);
        let root = self.0.root.clone();
        let listed = listed.try_filter(move |object| {
            let key = object.location.prefix_match(&root).map(Path::from_iter);
            let is_ours = key.is_some_and(|key| !is_strange(key.as_ref()));
            future::ready(object.location > after && is_ours)
        });
        listed.boxed()
    }

    /// The names one level below `prefix`, of objects and of prefixes that hold objects, in order.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        let path = self.path(prefix)?;
        let found = self
            .retrying(|| self.0.store.list_with_delimiter(Some(&path)))
            .await
            .map_err(|e| self.error("could not list", prefix, &e))?;
        let objects = found.objects.iter().map(|o| &o.location);
        let mut names: Vec<String> = objects
            .chain(&found.common_prefixes)
            .filter_map(|p| p.filename().map(str::to_owned))
            .filter(|name| !is_strange(name))
            .collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Makes an object that was found, not created, as durable as one's own: in a directory its
    /// writer may not have come to syncing its name. An object store has nothing to do.
    ///
    /// # Errors
    /// `Repository` when it cannot be done.
    pub async fn make_durable(&self, key: &str) -> Result<()> {
        let path = self.path(key)?;
        match &self.0.local {
            None => Ok(()),
            Some(local) => local
                .make_durable(&path)
                .await
                .map_err(|e| self.error("could not sync", key, &e)),
        }
    }

    /// Makes the directories of `prefix` in a directory, and gives them to the owner of `like` when we are root: the server
    /// stores its WAL there. An object store has nothing to do.
    ///
    /// # Errors
    /// `Repository` when it cannot be done.
    pub async fn make_home(&self, prefix: &str, like: &Metadata) -> Result<()> {
        let path = self.path(prefix)?;
        match &self.0.local {
            None => Ok(()),
            Some(local) => local
                .make_home(&path, Owner::of(like))
                .await
                .map_err(|e| self.error("could not make the directory", prefix, &e)),
        }
    }

    /// Waits until what was given up while it was created in a directory has its name, or will never have one. An object store has
    /// nothing to do: a request that is given up is not sent.
    pub async fn end_of_creates(&self) {
        if let Some(local) = &self.0.local {
            local.end_of_creates().await;
        }
    }

    /// Lays up some room in a directory, as far as there is any: on a full disk nothing could be removed otherwise, because
    /// a removal is announced before. An object store has nothing to do.
    pub async fn lay_up_room(&self) {
        if let Some(local) = &self.0.local
            && let Err(error) = local.lay_up_room().await
        {
            tracing::debug!(%error, "there is no reserve for an expiry of a full repository");
        }
    }

    /// Gives up part of what was laid up; false when nothing is left.
    ///
    /// # Errors
    /// `Repository` when it cannot be done.
    pub async fn free_room(&self) -> Result<bool> {
        match &self.0.local {
            None => Ok(false),
            Some(local) => local
                .free_room()
                .await
                .map_err(|e| self.error("could not free the reserve of", "", &e)),
        }
    }

    /// Proves that objects created below `prefix` are created if absent, whole, listed,
    /// readable by range and deletable. Leaves nothing behind.
    ///
    /// # Errors
    /// `Refused` when the store cannot be trusted; `Repository` when it cannot be used.
    pub async fn probe(&self, prefix: &str) -> Result<()> {
        probe::run(self, prefix).await
    }

    async fn put_new(&self, path: &Path, body: &Bytes) -> object_store::Result<()> {
        let options = PutOptions::from(PutMode::Create);
        let payload = PutPayload::from_bytes(body.clone());
        let _permit = self.permit(1).await;
        if let Some(created) = self.create_locked(path, body).await {
            return created;
        }
        let denied = match self.0.store.put_opts(path, payload, options).await {
            Err(error) if reason::may_deny_what_exists(&error) => error,
            put => return put.map(|_| ()),
        };
        match self.0.store.head(path).await {
            Ok(_) => Err(object_store::Error::AlreadyExists {
                path: path.to_string(),
                source: Box::new(denied),
            }),
            // Whether it is there is not known.
            Err(error) if self.may_pass(&error) => Err(error),
            Err(_) => Err(denied),
        }
    }

    /// Waits until so many requests may be made. Whoever has a permit asks for no other.
    async fn permit(&self, requests: usize) -> SemaphorePermit<'_> {
        let requests = u32::try_from(requests.min(limits::requests())).unwrap_or(1);
        let permit = self.0.permits.acquire_many(requests).await;
        permit.expect("it is never closed")
    }

    async fn retrying<T, F, Fut>(&self, act: F) -> object_store::Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = object_store::Result<T>>,
    {
        self.retrying_as(1, act).await
    }

    /// As `retrying`, for an act that makes so many requests at once.
    async fn retrying_as<T, F, Fut>(&self, requests: usize, mut act: F) -> object_store::Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = object_store::Result<T>>,
    {
        let mut retries = self.retries();
        loop {
            let done = {
                // Not while it waits to try again.
                let _permit = self.permit(requests).await;
                act().await
            };
            match done {
                Ok(done) => {
                    self.note_answer();
                    return Ok(done);
                }
                Err(error) => {
                    if !self.may_pass(&error) || !retries.wait().await {
                        return Err(error);
                    }
                    tracing::debug!(error = %self.why(&error), "repeating a request to the repository");
                }
            }
        }
    }

    /// Whether the same request may succeed later, perhaps with other credentials.
    fn may_pass(&self, error: &object_store::Error) -> bool {
        let (reason, renewal) = (Reason::of(error), &self.0.renewal);
        reason.may_pass
            || (reason.token_has_expired && renewal.is_possible())
            || (reason.may_be_of_key() && renewal.is_under_way())
    }

    fn retries(&self) -> Retries {
        let patience = &self.0.patience;
        Retries::new(if self.0.reached.load(Ordering::Relaxed) {
            patience.later
        } else {
            patience.first
        })
    }

    fn note_answer(&self) {
        self.0.reached.store(true, Ordering::Relaxed);
    }

    fn path(&self, key: &str) -> Result<Path> {
        let parsed = Path::parse(key)
            .map_err(|e| Error::new(Kind::Usage, format!("bad object name \"{key}\": {e}")))?;
        Ok(self.0.root.parts().chain(parsed.parts()).collect())
    }

    fn infos(&self, found: Vec<ObjectMeta>) -> Result<Vec<ObjectInfo>> {
        let mut infos = Vec::with_capacity(found.len());
        for meta in found {
            let Some(rest) = meta.location.prefix_match(&self.0.root) else {
                continue;
            };
            let key: Path = rest.collect();
            if is_strange(key.as_ref()) {
                continue;
            }
            let micros = meta.last_modified.timestamp_micros();
            let modified = Timestamp::from_microsecond(micros).map_err(|e| {
                Error::new(
                    Kind::Damaged,
                    format!("object \"{key}\" has a bad time: {e}"),
                )
            })?;
            infos.push(ObjectInfo {
                key: key.into(),
                size_bytes: meta.size,
                modified,
            });
        }
        infos.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(infos)
    }

    fn object(&self, key: &str) -> String {
        if key.is_empty() {
            self.url().to_owned()
        } else {
            format!("\"{key}\" in {}", self.url())
        }
    }

    /// Stores answer a range beyond the end in ways of their own; the size tells.
    async fn range_error(
        &self,
        key: &str,
        wanted: &[Range<u64>],
        e: &object_store::Error,
    ) -> Error {
        if !matches!(e, object_store::Error::NotFound { .. }) {
            let end = wanted.iter().map(|r| r.end).max().unwrap_or(0);
            if let Ok(Some(size)) = self.size(key).await
                && size < end
            {
                return self.too_short(key, end, Some(size));
            }
        }
        self.error("could not read", key, e)
    }

    fn error(&self, act: &str, key: &str, error: &object_store::Error) -> Error {
        let reason = Reason::of(error);
        let reads = act == "could not read";
        let kind = match reads && reason.object_is_absent {
            true => Kind::NotFound,
            false if reason.is_lack_of_memory() => Kind::File,
            false => Kind::Repository,
        };
        let asks = reads || act == "could not look up";
        let text = self.0.secrets.hidden_in(&reason.text);
        let made = Error::new(kind, format!("{act} {}: {text}", self.object(key)));
        let made = reason.noted_in(made, asks);
        match reason.hint {
            Some(hint) if kind != Kind::NotFound => made.hint(hint),
            _ => made,
        }
    }
}

/// The first bytes of an object, and its length.
fn start_of(mut whole: Bytes, most: u64) -> (Bytes, u64) {
    let size = u64::try_from(whole.len()).unwrap_or(u64::MAX);
    let wanted = usize::try_from(size.min(most)).unwrap_or(usize::MAX);
    whole.truncate(wanted);
    (whole, size)
}
