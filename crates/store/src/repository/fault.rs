//! A store that fails where a test says. Not for anything but tests.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::Semaphore;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation is not done, and fails for good.
    Before,
    /// The operation is done, and reported as failed for good.
    After,
    /// The operation is not done; trying again would help.
    PassingBefore,
    /// The operation is done, its answer is lost, trying again would help.
    LostAnswer,
    /// The operation is not done, as a file system would say.
    Io(std::io::ErrorKind),
    /// A read or write is cut to half its bytes, and reported as successful.
    Truncated,
    /// Half of what was to be deleted is, and the first of the rest fails for good; another operation is done.
    Halfway,
    /// The operation is done late.
    Delayed(Duration),
    /// The operation is not done, and its object is said not to be there.
    Absent,
}

/// The error of an injected fault.
#[derive(Clone, Copy, Debug)]
pub struct Injected {
    nth: u64,
    fault: Fault,
}

impl Injected {
    pub(super) fn may_pass(&self) -> bool {
        matches!(self.fault, Fault::PassingBefore | Fault::LostAnswer)
    }
}

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "injected failure of operation {} ({:?})",
            self.nth, self.fault
        )
    }
}

impl std::error::Error for Injected {}

/// Wraps a store and counts its operations (each create, read, range request, look-up,
/// listing and deletion is one); fails those it was told to, or holds one up, or gives one object out to nobody.
#[derive(Debug)]
pub struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    faults: Mutex<Vec<(Range<u64>, Fault)>>,
    held_up: Option<(u64, Arc<Barrier>)>,
    withheld: Option<Path>,
    count: AtomicU64,
}

/// Where an operation waits.
#[derive(Debug)]
struct Barrier {
    reached: Semaphore,
    open: Semaphore,
}

impl Barrier {
    async fn wait(&self) {
        self.reached.add_permits(1);
        // Closed: open for good.
        self.open.acquire().await.map(drop).unwrap_or_default();
    }
}

/// What becomes of an operation.
#[derive(Debug)]
struct Drawn {
    nth: u64,
    injected: Option<Injected>,
    waits_at: Option<Arc<Barrier>>,
}

impl FaultStore {
    /// Passes everything on, until told otherwise.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self::passing(inner))
    }

    fn passing(inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            inner,
            faults: Mutex::default(),
            held_up: None,
            withheld: None,
            count: AtomicU64::new(0),
        }
    }

    /// Says of that object, whenever it is read, that trying again would help.
    #[must_use]
    pub fn withholding(key: &str, inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self {
            withheld: Some(Path::from(key)),
            ..Self::passing(inner)
        })
    }

    /// Holds the `nth` operation (from 0) up until [`Self::go_on`].
    #[must_use]
    pub fn holding_up(nth: u64, inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        let barrier = Barrier {
            reached: Semaphore::new(0),
            open: Semaphore::new(0),
        };
        Arc::new(Self {
            held_up: Some((nth, Arc::new(barrier))),
            ..Self::passing(inner)
        })
    }

    /// Waits for the operation that is held up; for ever when there is none.
    pub async fn reached(&self) {
        match &self.held_up {
            Some((_, barrier)) => barrier
                .reached
                .acquire()
                .await
                .map(drop)
                .unwrap_or_default(),
            None => std::future::pending().await,
        }
    }

    /// Lets the operation that is held up be done.
    pub fn go_on(&self) {
        if let Some((_, barrier)) = &self.held_up {
            barrier.open.close();
        }
    }

    /// Fails the `nth` operation (from 0) and no other.
    #[must_use]
    pub fn failing_at(nth: u64, fault: Fault, inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        let store = Self::new(inner);
        store.fail(nth..nth + 1, fault);
        store
    }

    /// Fails the operations `which`, counted from the beginning of the store's life.
    pub fn fail(&self, which: Range<u64>, fault: Fault) {
        let mut faults = self
            .faults
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        faults.push((which, fault));
    }

    /// How many operations there were.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts an operation; answers its fault, having failed or waited where that comes first.
    async fn enter(&self) -> Result<Option<Injected>> {
        meet(self.draw()).await
    }

    /// The same of an operation that reads an object.
    async fn enter_read(&self, from: &Path) -> Result<Option<Injected>> {
        let mut drawn = self.draw();
        if self.withheld.as_ref() == Some(from) {
            let (nth, fault) = (drawn.nth, Fault::PassingBefore);
            drawn.injected = Some(Injected { nth, fault });
        }
        meet(drawn).await
    }

    /// Counts an operation, and says what becomes of it.
    fn draw(&self) -> Drawn {
        let nth = self.count.fetch_add(1, Ordering::SeqCst);
        let faults = self
            .faults
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut faults = faults.iter();
        let fault = faults.find(|(which, _)| which.contains(&nth));
        let held_up = self.held_up.as_ref().filter(|(at, _)| *at == nth);
        Drawn {
            nth,
            injected: fault.map(|&(_, fault)| Injected { nth, fault }),
            waits_at: held_up.map(|(_, barrier)| Arc::clone(barrier)),
        }
    }
}

/// Before an operation: fails or waits where that comes first.
async fn meet(drawn: Drawn) -> Result<Option<Injected>> {
    if let Some(barrier) = drawn.waits_at {
        barrier.wait().await;
    }
    let Some(injected) = drawn.injected else {
        return Ok(None);
    };
    match injected.fault {
        Fault::Before | Fault::PassingBefore => Err(injected.into()),
        Fault::Io(kind) => Err(Error::Generic {
            store: "fault",
            source: std::io::Error::from(kind).into(),
        }),
        Fault::Absent => Err(Error::NotFound {
            path: "injected".to_owned(),
            // What a store says that has the bucket and not the object.
            source: "NoSuchKey".into(),
        }),
        Fault::Delayed(time) => {
            tokio::time::sleep(time).await;
            Ok(None)
        }
        Fault::After | Fault::LostAnswer | Fault::Truncated => Ok(Some(injected)),
        Fault::Halfway => Ok(None),
    }
}

impl From<Injected> for Error {
    fn from(injected: Injected) -> Self {
        Self::Generic {
            store: "fault",
            source: Box::new(injected),
        }
    }
}

/// After an operation: its result, unless it is to be reported as failed.
fn leave<T>(injected: Option<Injected>, done: Result<T>) -> Result<T> {
    match injected {
        Some(i) if matches!(i.fault, Fault::After | Fault::LostAnswer) => Err(i.into()),
        _ => done,
    }
}

fn truncates(injected: Option<Injected>) -> bool {
    injected.is_some_and(|i| i.fault == Fault::Truncated)
}

fn half(bytes: &Bytes) -> Bytes {
    bytes.slice(..bytes.len() / 2)
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(
        &self,
        to: &Path,
        body: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let injected = self.enter().await?;
        let body = if truncates(injected) {
            half(&body.into()).into()
        } else {
            body
        };
        let done = self.inner.put_opts(to, body, options).await;
        leave(injected, done)
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let injected = self.enter().await?;
        let done = self.inner.put_multipart_opts(to, options).await;
        leave(injected, done)
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        let injected = self.enter_read(from).await?;
        let done = self.inner.get_opts(from, options).await;
        if !truncates(injected) {
            return leave(injected, done);
        }
        let done = done?;
        let (range, meta) = (done.range.clone(), done.meta.clone());
        let (attributes, extensions) = (done.attributes.clone(), done.extensions.clone());
        let cut = half(&done.bytes().await?);
        let payload = GetResultPayload::Stream(stream::once(async { Ok(cut) }).boxed());
        Ok(GetResult {
            payload,
            meta,
            range,
            attributes,
            extensions,
        })
    }

    async fn get_ranges(&self, from: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let injected = self.enter_read(from).await?;
        let done = self.inner.get_ranges(from, ranges).await;
        if truncates(injected) {
            return done.map(|parts| parts.iter().map(half).collect());
        }
        leave(injected, done)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        // As with S3, which is asked to delete many at once: one operation.
        let inner = Arc::clone(&self.inner);
        let drawn = self.draw();
        let deleted = async move {
            let mut locations: Vec<Path> = locations.try_collect().await?;
            let halfway = drawn.injected;
            let halfway = halfway.filter(|injected| injected.fault == Fault::Halfway);
            let injected = meet(drawn).await?;
            if halfway.is_some() {
                locations.truncate(locations.len() / 2);
            }
            let deleting = inner.delete_stream(stream::iter(locations).map(Ok).boxed());
            let mut outcomes: Vec<Result<Path>> = deleting.collect().await;
            if let Err(error) = leave(injected, Ok(())) {
                outcomes = vec![Err(error)];
            }
            outcomes.extend(halfway.map(|injected| Err(injected.into())));
            Ok::<_, Error>(stream::iter(outcomes))
        };
        stream::once(deleted).try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned();
        self.listing(move |inner| inner.list(prefix.as_ref()))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (prefix, offset) = (prefix.cloned(), offset.clone());
        self.listing(move |inner| inner.list_with_offset(prefix.as_ref(), &offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let injected = self.enter().await?;
        let done = self.inner.list_with_delimiter(prefix).await;
        leave(injected, done)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let injected = self.enter().await?;
        let done = self.inner.copy_opts(from, to, options).await;
        leave(injected, done)
    }
}

impl FaultStore {
    /// A listing fails at its first entry, or at its end.
    fn listing(
        &self,
        list: impl FnOnce(&dyn ObjectStore) -> BoxStream<'static, Result<ObjectMeta>> + Send + 'static,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (inner, drawn) = (Arc::clone(&self.inner), self.draw());
        let listed = async move {
            let injected = meet(drawn).await?;
            let failure = injected.filter(|injected| injected.fault != Fault::Truncated);
            let end = stream::iter(failure.map(|injected| Err(Error::from(injected))));
            Ok::<_, Error>(list(inner.as_ref()).chain(end))
        };
        stream::once(listed).try_flatten().boxed()
    }
}
