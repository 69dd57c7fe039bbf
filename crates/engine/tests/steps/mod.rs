//! A repository in which actors do one operation of the store at a time, when the test lets them, and whose clock is a
//! number. Who makes layers has another clock, and this process, by which merges and expiries go, may have a third.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by test binaries, about small numbers"
)]

pub mod actors;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use pgstrata_layer::claim::ClaimRecord;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::{Label, LayerKind};
use pgstrata_layer::manifest::{self, Manifest};
use pgstrata_pgdata::Lsn;
use pgstrata_store::catalog::{self, Catalog, Layer, LayerPlan};
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::repository::Repository;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, LocalSet};

use super::restore_common::{
    Files, pages, store_layer, store_record, switched_object, wal_segment_size,
};

/// In seconds.
pub const MINUTES: i64 = 60;

/// In seconds.
pub const HOURS: i64 = 60 * MINUTES;

/// Long enough for a copy to be given up.
pub const VERY_LONG: i64 = 8 * 24 * HOURS;

/// 2026-11-22.
const BEGINNING: i64 = 1_795_305_600;

/// Between two of the layers that are there at the beginning.
const APART: i64 = 30 * MINUTES;

/// How a backup goes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    full: bool,
    /// On the second layer, which is old, instead of the newest.
    on_old: bool,
    /// How many segments its start lies behind the end of WAL, as on a standby.
    behind: u64,
    /// How many seconds the clock of its host is ahead of the store's.
    ahead: i64,
}

impl Plan {
    pub fn full() -> Self {
        Self {
            full: true,
            on_old: false,
            behind: 0,
            ahead: 0,
        }
    }

    pub fn incremental() -> Self {
        Self {
            full: false,
            on_old: false,
            behind: 0,
            ahead: 0,
        }
    }

    pub fn on_old() -> Self {
        Self {
            on_old: true,
            ..Self::incremental()
        }
    }

    pub fn behind() -> Self {
        Self {
            full: true,
            on_old: false,
            behind: 25,
            ahead: 0,
        }
    }

    /// The same on a host with another clock.
    pub fn ahead(self, seconds: i64) -> Self {
        Self {
            ahead: seconds,
            ..self
        }
    }
}

/// The store and its time.
pub struct World {
    memory: Arc<InMemory>,
    clock: Arc<AtomicI64>,
    times: Arc<Mutex<HashMap<Path, i64>>>,
    /// How many objects were written and deleted.
    changes: Arc<AtomicU64>,
    /// After how many of them the layers were whole.
    whole_after: AtomicU64,
    cluster: ClusterName,
    /// What a full layer holds, and what an increment does.
    contents: Arc<[Files; 2]>,
    /// The increments that are there at the beginning.
    incrementals: Vec<Label>,
    /// Number of the segment that is written now.
    segment: AtomicI64,
}

thread_local! {
    /// Those that were made before, by how much this process is ahead of them.
    static MADE: RefCell<HashMap<Option<i64>, Arc<World>>> = RefCell::default();

    /// The objects of segments of WAL, by number.
    static SEGMENTS: RefCell<HashMap<u64, Bytes>> = RefCell::default();
}

impl World {
    /// With two full layers and an increment on each.
    pub async fn new() -> Arc<Self> {
        Self::made_once(None).await
    }

    /// The same, where the clock of this process is so many seconds ahead of the store's.
    pub async fn with_process_ahead(seconds: i64) -> Arc<Self> {
        Self::made_once(Some(seconds)).await
    }

    async fn made_once(ahead: Option<i64>) -> Arc<Self> {
        if let Some(made) = MADE.with_borrow(|made| made.get(&ahead).cloned()) {
            return made.copy();
        }
        let beginning = ahead.map_or(BEGINNING, |ahead| {
            Timestamp::now().as_second() - ahead - 4 * APART
        });
        let made = Self::begin(beginning).await;
        MADE.with_borrow_mut(|all| all.insert(ahead, Arc::clone(&made)));
        made.copy()
    }

    async fn begin(beginning: i64) -> Arc<Self> {
        let mut world = Self {
            memory: Arc::new(InMemory::new()),
            clock: Arc::new(AtomicI64::new(beginning)),
            times: Arc::default(),
            changes: Arc::default(),
            whole_after: AtomicU64::new(0),
            cluster: ClusterName::parse("main").unwrap(),
            contents: Arc::new(contents()),
            incrementals: Vec::new(),
            segment: AtomicI64::new(20),
        };
        let repository = world.repository();
        store_record(&repository, &world.cluster).await;
        for plan in [
            Plan::full(),
            Plan::incremental(),
            Plan::full(),
            Plan::incremental(),
        ] {
            let label = world.backup(&repository, plan).await.unwrap();
            // Of some, their makers were killed before they knew that they were committed.
            if plan.full {
                let noted = world.cluster.committed_key(&label);
                repository.delete(&noted).await.unwrap();
            } else {
                world.incrementals.push(label);
            }
            world.pass(APART);
        }
        world.require_whole_layers().await;
        Arc::new(world)
    }

    /// A world of its own in the same state.
    pub fn copy(&self) -> Arc<Self> {
        let memory = Arc::new(self.memory.fork());
        let times = self.times.lock().unwrap().clone();
        Arc::new(Self {
            memory,
            clock: Arc::new(AtomicI64::new(self.clock.load(Ordering::SeqCst))),
            times: Arc::new(Mutex::new(times)),
            changes: Arc::default(),
            whole_after: AtomicU64::new(0),
            cluster: self.cluster.clone(),
            contents: Arc::clone(&self.contents),
            incrementals: self.incrementals.clone(),
            segment: AtomicI64::new(self.segment.load(Ordering::SeqCst)),
        })
    }

    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// The cluster as an actor reaches it.
    pub fn within(&self, repository: &Repository) -> ClusterRepository {
        ClusterRepository::new(repository, &self.cluster)
    }

    /// The increment on the first full layer of the beginning, or on the last.
    pub fn incremental(&self, last: bool) -> Label {
        self.incrementals[usize::from(last)].clone()
    }

    /// A layer of which a command said that it is made, and that nothing had a reason to remove, is listed.
    pub async fn require_listed(&self, label: &Label, moment: &str) {
        let repository = self.repository();
        let catalog = Catalog::load(&self.within(&repository)).await.unwrap();
        assert!(catalog.layer(label).is_ok(), "{moment}: {label} is gone");
    }

    /// Time passes.
    pub fn pass(&self, seconds: i64) {
        self.clock.fetch_add(seconds, Ordering::SeqCst);
    }

    /// A repository that nothing holds up.
    pub fn repository(&self) -> Repository {
        Repository::with_store(self.store(None, Arc::default()))
    }

    fn store(&self, gate: Option<Arc<Semaphore>>, mishap: Arc<Mutex<Option<Mishap>>>) -> Arc<Gate> {
        Arc::new(Gate {
            inner: Arc::clone(&self.memory),
            clock: Arc::clone(&self.clock),
            times: Arc::clone(&self.times),
            changes: Arc::clone(&self.changes),
            gate,
            mishap,
        })
    }

    /// By a clock that is so many seconds ahead.
    fn now(&self, ahead: i64) -> Timestamp {
        Timestamp::from_second(self.clock.load(Ordering::SeqCst) + ahead).unwrap()
    }

    /// What a backup does to the repository.
    pub async fn backup(&self, repository: &Repository, plan: Plan) -> Result<Label> {
        let catalog = Catalog::load(&self.within(repository)).await?;
        let parent = match plan.on_old {
            true => catalog.layers.get(1),
            false => catalog.layers.last(),
        };
        let chain: Vec<Arc<Layer>> = match parent {
            Some(parent) if !plan.full => {
                let chain = catalog.chain(&parent.label)?.into_iter();
                chain.map(|layer| Arc::new(layer.clone())).collect()
            }
            _ => Vec::new(),
        };
        let layer_id: [u8; 16] = rand::random();
        let claim = ClaimRecord {
            label: String::new(),
            layer_id: catalog::hex(&layer_id),
            host: "a host".to_owned(),
            pid: 1,
            started_at: self.now(plan.ahead),
            written_by: "a test".to_owned(),
        };
        let parent = chain.first().map(|parent| &parent.label);
        let kind = match parent {
            Some(_) => LayerKind::Incremental,
            None => LayerKind::Full,
        };
        let label = catalog::claim(
            &self.within(repository),
            &catalog,
            LayerPlan { kind, parent },
            claim,
        )
        .await?;
        let leaving = catalog::check_stays(&self.within(repository), &chain).await?;
        let end = self.segment.fetch_add(10, Ordering::SeqCst) as u64 + 10;
        let start_lsn = self.position(end - plan.behind.min(end - 1));
        catalog::check_wal(&leaving, start_lsn)?;
        let parent = chain.first().map(|parent| parent.reference());
        let stored = self.store_objects(repository, &label, layer_id, parent.is_some());
        let manifest = Manifest {
            parent,
            start_lsn,
            stop_lsn: self.position(end + 1),
            finished_at: self.now(plan.ahead),
            ..stored.await?
        };
        self.secure_wal(repository, &manifest).await?;
        let object = manifest::encode(&manifest);
        catalog::commit_layer(&self.within(repository), &label, &chain, object).await?;
        Ok(label)
    }

    /// The objects and the WAL of a layer that is there in another world.
    pub async fn store_copy(&self, repository: &Repository, layer: &Layer) -> Result<()> {
        let id = layer.manifest.layer_id_bytes()?;
        let stands = layer.manifest.parent.is_some();
        self.store_objects(repository, &layer.label, id, stands)
            .await?;
        self.secure_wal(repository, &layer.manifest).await
    }

    async fn store_objects(
        &self,
        repository: &Repository,
        label: &Label,
        layer_id: [u8; 16],
        stands_on_another: bool,
    ) -> Result<Manifest> {
        let [before, after] = &*self.contents;
        let (before, files) = match stands_on_another {
            true => (Some(before), after),
            false => (None, before),
        };
        store_layer(&self.within(repository), label, layer_id, before, files).await
    }

    fn position(&self, segment: u64) -> Lsn {
        Lsn::new(segment * wal_segment_size() + 40)
    }

    /// The server archives every tenth segment from here to there: a layer needs the first and the last of its own.
    async fn secure_wal(&self, repository: &Repository, manifest: &Manifest) -> Result<()> {
        for (number, key) in self.wal_of(manifest) {
            let object = SEGMENTS.with_borrow_mut(|made| {
                let object = made.entry(number);
                let object = object.or_insert_with(|| switched_object(number).into());
                object.clone()
            });
            repository.create(&key, object).await?;
        }
        Ok(())
    }

    fn wal_of(&self, manifest: &Manifest) -> [(u64, String); 2] {
        let size = u64::from(manifest.cluster.wal_segment_size);
        [manifest.start_lsn, manifest.stop_lsn].map(|lsn| {
            let number = lsn.get() / size;
            let in_a_log = 0x1_0000_0000 / size;
            let name = format!("00000001{:08X}{:08X}", number / in_a_log, number % in_a_log);
            (number, self.cluster.wal_key("00000001", &name))
        })
    }

    /// Every layer that is listed has all it needs, and stands on layers of which that is true.
    ///
    /// Most operations only read: what was whole before them is whole.
    pub async fn require_whole_layers(&self) {
        let changes = self.changes.load(Ordering::SeqCst);
        if changes > 0 && self.whole_after.swap(changes, Ordering::SeqCst) == changes {
            return;
        }
        let repository = self.repository();
        let catalog = Catalog::load(&self.within(&repository)).await.unwrap();
        assert!(catalog.damaged.is_empty(), "{:?}", catalog.damaged);
        let objects = repository.list(self.cluster.as_str()).await.unwrap();
        let sizes: BTreeMap<&str, u64> = objects
            .iter()
            .map(|object| (object.key.as_str(), object.size_bytes))
            .collect();
        for layer in &catalog.layers {
            let label = &layer.label;
            let chain = catalog.chain(label);
            assert!(chain.is_ok(), "{label}: {chain:?}");
            let mut needed = self.wal_of(&layer.manifest).map(|(_, key)| key).to_vec();
            needed.push(self.cluster.claim_key(label));
            let packs = 0..layer.manifest.pack_count;
            needed.extend(packs.map(|number| self.cluster.pack_key(label, number)));
            for number in 0..layer.manifest.index.len() as u32 {
                needed.push(self.cluster.index_key(label, number));
                needed.push(self.cluster.digest_key(label, number));
            }
            for key in needed {
                assert!(sizes.contains_key(key.as_str()), "{label} has lost {key}");
            }
        }
        assert!(!catalog.layers.is_empty(), "the last layer went");
    }

    /// No attempt, no removal, no object of the clock; records of abandoned labels stay.
    pub async fn require_nothing_left_over(&self) {
        let repository = self.repository();
        let catalog = Catalog::load(&self.within(&repository)).await.unwrap();
        assert!(catalog.unfinished.is_empty(), "{:?}", catalog.unfinished);
        for prefix in [self.cluster.removals_prefix(), self.cluster.clock_prefix()] {
            let left = repository.list(&prefix).await.unwrap();
            let left = left
                .iter()
                .filter(|object| !object.key.ends_with("/verdict"));
            assert_eq!(left.count(), 0, "{prefix}");
        }
    }
}

/// A page changes, and one more comes.
fn contents() -> [Files; 2] {
    let relation = pages(1, 4);
    let mut changed = pages(1, 5);
    changed[8192..2 * 8192].copy_from_slice(&pages(2, 1));
    [relation, changed].map(|relation| {
        let files = [
            ("PG_VERSION", Some(b"15\n".to_vec())),
            ("base", None),
            ("base/5", None),
            ("base/5/10", Some(relation)),
            ("global", None),
            ("pg_tblspc", None),
            ("pg_wal", None),
            ("pg_wal/archive_status", None),
        ];
        files.map(|(path, held)| (path.to_owned(), held)).into()
    })
}

/// How an operation of the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// It is not done.
    NotDone,
    /// It is done, and nobody hears of that.
    AnswerLost,
    /// The same, but for an object that is created: the client tries again, and hears that the object is there.
    TriedAgain,
}

/// A process.
pub struct Actor<T> {
    gate: Arc<Semaphore>,
    mishap: Arc<Mutex<Option<Mishap>>>,
    task: JoinHandle<Result<T>>,
}

/// Runs a test whose actors have one thread together.
pub fn alone(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all();
    runtime
        .build()
        .unwrap()
        .block_on(LocalSet::new().run_until(test));
}

impl<T: 'static> Actor<T> {
    pub fn start<F: Future<Output = Result<T>> + 'static>(
        world: &Arc<World>,
        act: impl FnOnce(Arc<World>, Repository) -> F,
    ) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let mishap = Arc::default();
        let store = world.store(Some(Arc::clone(&gate)), Arc::clone(&mishap));
        let task = tokio::task::spawn_local(act(Arc::clone(world), Repository::with_store(store)));
        Self { gate, mishap, task }
    }

    /// Its next operation fails for good.
    pub fn fail(&self, mishap: Mishap) {
        *self.mishap.lock().unwrap() = Some(mishap);
    }

    /// Lets it do one operation; false when it has ended.
    pub async fn step(&mut self) -> bool {
        settle().await;
        if self.task.is_finished() {
            return false;
        }
        if self.gate.available_permits() == 0 {
            self.gate.add_permits(1);
        } else {
            // It waits before it tries again.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        settle().await;
        true
    }

    /// Lets it do that many; false when it has ended before.
    pub async fn steps(&mut self, count: u64) -> bool {
        for _ in 0..count {
            if !self.step().await {
                return false;
            }
        }
        true
    }

    pub async fn kill(&mut self) {
        self.task.abort();
        // Threads of its own would wait for ever.
        self.gate.close();
        settle().await;
    }

    pub async fn outcome(mut self) -> Result<T> {
        (&mut self.task)
            .await
            .unwrap_or_else(|error| match error.is_cancelled() {
                true => Err(Error::new(Kind::Interrupted, "killed")),
                false => std::panic::resume_unwind(error.into_panic()),
            })
    }
}

impl<T> Drop for Actor<T> {
    fn drop(&mut self) {
        self.task.abort();
        self.gate.close();
    }
}

/// Every layer that is listed is whole after each of its operations.
pub async fn to_its_end<T: 'static>(world: &World, actor: &mut Actor<T>) {
    while actor.step().await {
        world.require_whole_layers().await;
    }
}

/// Until all others wait: they have one thread together.
async fn settle() {
    for _ in 0..40 {
        tokio::task::yield_now().await;
    }
}

/// The store as one process sees it.
#[derive(Clone, Debug)]
struct Gate {
    inner: Arc<InMemory>,
    clock: Arc<AtomicI64>,
    times: Arc<Mutex<HashMap<Path, i64>>>,
    changes: Arc<AtomicU64>,
    gate: Option<Arc<Semaphore>>,
    /// Meets the next operation.
    mishap: Arc<Mutex<Option<Mishap>>>,
}

fn denied(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::PermissionDenied {
        path: String::new(),
        source: source.into(),
    }
}

/// What is heard of an operation that was done.
fn heard<T>(mishap: Option<Mishap>, done: T) -> object_store::Result<T> {
    match mishap {
        Some(_) => Err(denied("the answer was lost")),
        None => Ok(done),
    }
}

/// Waits until the test lets an operation go on. What a killed process had begun fails for good.
async fn pass(gate: &Semaphore) -> object_store::Result<()> {
    match gate.acquire().await {
        Ok(permit) => permit.forget(),
        Err(closed) => return Err(denied(closed)),
    }
    Ok(())
}

/// What becomes of the operation that is begun.
fn meet(mishap: &Mutex<Option<Mishap>>) -> object_store::Result<Option<Mishap>> {
    match mishap.lock().unwrap().take() {
        Some(Mishap::NotDone) => Err(denied("nothing was done")),
        mishap => Ok(mishap),
    }
}

impl Gate {
    /// Every operation takes a second.
    async fn enter(&self) -> object_store::Result<Option<Mishap>> {
        if let Some(gate) = &self.gate {
            pass(gate).await?;
            self.clock.fetch_add(1, Ordering::SeqCst);
        }
        meet(&self.mishap)
    }

    fn dated(&self, mut meta: ObjectMeta) -> ObjectMeta {
        let times = self.times.lock().unwrap();
        let seconds = times.get(&meta.location).copied().unwrap_or(BEGINNING);
        let since = SignedDuration::from_secs(seconds).unsigned_abs();
        meta.last_modified = (SystemTime::UNIX_EPOCH + since).into();
        meta
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("steps")
    }
}

#[async_trait]
impl ObjectStore for Gate {
    async fn put_opts(
        &self,
        to: &Path,
        body: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let mishap = self.enter().await?;
        let creates = options.mode == PutMode::Create;
        let done = self.inner.put_opts(to, body, options).await?;
        self.changes.fetch_add(1, Ordering::SeqCst);
        let now = self.clock.load(Ordering::SeqCst);
        self.times.lock().unwrap().insert(to.clone(), now);
        if creates && mishap == Some(Mishap::TriedAgain) {
            let path = to.to_string();
            let source = "it was created by the first try".into();
            return Err(object_store::Error::AlreadyExists { path, source });
        }
        heard(mishap, done)
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        panic!("not used")
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let mishap = self.enter().await?;
        heard(mishap, self.inner.get_opts(from, options).await?)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let store = self.clone();
        let deleted = locations.then(move |location| {
            let store = store.clone();
            async move {
                if let Some(gate) = &store.gate {
                    pass(gate).await?;
                }
                let mishap = meet(&store.mishap)?;
                let location = location?;
                store.inner.delete(&location).await?;
                store.changes.fetch_add(1, Ordering::SeqCst);
                heard(mishap, location)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let store = self.clone();
        let prefix = prefix.cloned();
        let listed = async move {
            let found = async {
                let mishap = store.enter().await?;
                let listed = store.inner.list(prefix.as_ref());
                heard(mishap, listed.try_collect::<Vec<ObjectMeta>>().await?)
            };
            match found.await {
                Ok(found) => found
                    .into_iter()
                    .map(|meta| Ok(store.dated(meta)))
                    .collect(),
                Err(error) => vec![Err(error)],
            }
        };
        stream::once(listed).flat_map(stream::iter).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        let mishap = self.enter().await?;
        heard(mishap, self.inner.list_with_delimiter(prefix).await?)
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        panic!("not used")
    }
}
