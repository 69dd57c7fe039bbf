//! A repository in which actors do one operation of the store at a time, when the test lets them, and whose clock is a
//! number.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    reason = "shared by test binaries, about small numbers"
)]

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
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
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
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

use super::restore_common::chain_of_three;

/// In seconds.
pub const MINUTES: i64 = 60;

const PACKS: u32 = 2;

/// 2026-11-22, after the template's layers.
const BEGINNING: i64 = 1_795_305_600;

/// How a backup goes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    full: bool,
    /// On the second layer, which is old, instead of the newest.
    on_old: bool,
    /// How many segments its start lies behind the end of WAL, as on a standby.
    behind: u64,
}

impl Plan {
    pub fn full() -> Self {
        Self {
            full: true,
            on_old: false,
            behind: 0,
        }
    }

    pub fn incremental() -> Self {
        Self {
            full: false,
            on_old: false,
            behind: 0,
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
        }
    }
}

/// The store and its time.
pub struct World {
    memory: Arc<InMemory>,
    clock: Arc<AtomicI64>,
    times: Arc<Mutex<HashMap<Path, i64>>>,
    cluster: ClusterName,
    template: Manifest,
    /// Number of the segment that is written now.
    segment: AtomicI64,
}

impl World {
    /// With two full layers and an increment on each.
    pub async fn new() -> Arc<Self> {
        let made_in = Repository::memory();
        let made = chain_of_three(&made_in).await;
        let catalog = Catalog::load(&made.within(&made_in)).await.unwrap();
        let template = catalog.layers[0].manifest.clone();
        let world = Arc::new(Self {
            memory: Arc::new(InMemory::new()),
            clock: Arc::new(AtomicI64::new(BEGINNING)),
            times: Arc::default(),
            cluster: made.cluster.clone(),
            template,
            segment: AtomicI64::new(20),
        });
        let repository = world.repository();
        let key = world.cluster.cluster_key();
        let record = made_in.get(&key).await.unwrap();
        repository.create(&key, record).await.unwrap();
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
            }
            world.pass(30 * MINUTES);
        }
        world.require_whole_layers().await;
        world
    }

    /// A world of its own in the same state.
    pub fn copy(&self) -> Arc<Self> {
        let memory = Arc::new(self.memory.fork());
        let times = self.times.lock().unwrap().clone();
        Arc::new(Self {
            memory,
            clock: Arc::new(AtomicI64::new(self.clock.load(Ordering::SeqCst))),
            times: Arc::new(Mutex::new(times)),
            cluster: self.cluster.clone(),
            template: self.template.clone(),
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

    /// Time passes.
    pub fn pass(&self, seconds: i64) {
        self.clock.fetch_add(seconds, Ordering::SeqCst);
    }

    /// A repository that nothing holds up.
    pub fn repository(&self) -> Repository {
        Repository::with_store(self.store(None))
    }

    fn store(&self, gate: Option<Arc<Semaphore>>) -> Arc<Gate> {
        Arc::new(Gate {
            inner: Arc::clone(&self.memory),
            clock: Arc::clone(&self.clock),
            times: Arc::clone(&self.times),
            gate,
        })
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.clock.load(Ordering::SeqCst)).unwrap()
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
        let layer_id: String = format!("{:032x}", rand::random::<u128>());
        let claim = ClaimRecord {
            label: String::new(),
            layer_id: layer_id.clone(),
            host: "a host".to_owned(),
            pid: 1,
            started_at: self.now(),
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
        let manifest = Manifest {
            label: label.to_string(),
            layer_id,
            parent: chain.first().map(|parent| parent.reference()),
            start_lsn,
            stop_lsn: self.position(end + 1),
            finished_at: self.now(),
            pack_count: PACKS,
            pack_bytes: u64::from(PACKS) * 100,
            ..self.template.clone()
        };
        self.store_objects(repository, &label, &manifest).await?;
        self.secure_wal(repository, &manifest).await?;
        let object = manifest::encode(&manifest);
        catalog::commit_layer(&self.within(repository), &label, &chain, object).await?;
        Ok(label)
    }

    /// The objects and the WAL of a layer that is there in another world.
    pub async fn store_copy(&self, repository: &Repository, layer: &Layer) -> Result<()> {
        self.store_objects(repository, &layer.label, &layer.manifest)
            .await?;
        self.secure_wal(repository, &layer.manifest).await
    }

    async fn store_objects(
        &self,
        repository: &Repository,
        label: &Label,
        manifest: &Manifest,
    ) -> Result<()> {
        for number in 0..PACKS {
            let key = self.cluster.pack_key(label, number);
            repository.create(&key, Bytes::from(vec![0; 100])).await?;
        }
        for (number, part) in (0..).zip(&manifest.index) {
            let index = Bytes::from(vec![1; part.index_bytes as usize]);
            let digest = Bytes::from(vec![2; part.digest_bytes as usize]);
            let key = self.cluster.index_key(label, number);
            repository.create(&key, index).await?;
            let key = self.cluster.digest_key(label, number);
            repository.create(&key, digest).await?;
        }
        Ok(())
    }

    fn position(&self, segment: u64) -> Lsn {
        Lsn::new(segment * u64::from(self.template.cluster.wal_segment_size) + 40)
    }

    /// The server archives every tenth segment from here to there: a layer needs the first and the last of its own.
    async fn secure_wal(&self, repository: &Repository, manifest: &Manifest) -> Result<()> {
        for key in self.wal_of(manifest) {
            repository.create(&key, Bytes::from_static(b"WAL")).await?;
        }
        Ok(())
    }

    fn wal_of(&self, manifest: &Manifest) -> [String; 2] {
        let size = u64::from(manifest.cluster.wal_segment_size);
        let name = |lsn: Lsn| {
            let number = lsn.get() / size;
            let in_a_log = 0x1_0000_0000 / size;
            format!("00000001{:08X}{:08X}", number / in_a_log, number % in_a_log)
        };
        [manifest.start_lsn, manifest.stop_lsn]
            .map(|lsn| self.cluster.wal_key("00000001", &name(lsn)))
    }

    /// Every layer that is listed has all it needs, and stands on layers of which that is true.
    pub async fn require_whole_layers(&self) {
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
            let mut needed: Vec<String> = self.wal_of(&layer.manifest).to_vec();
            needed.push(self.cluster.claim_key(label));
            needed.extend((0..PACKS).map(|number| self.cluster.pack_key(label, number)));
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

/// A process.
pub struct Actor<T> {
    gate: Arc<Semaphore>,
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
        let repository = Repository::with_store(world.store(Some(Arc::clone(&gate))));
        let task = tokio::task::spawn_local(act(Arc::clone(world), repository));
        Self { gate, task }
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
            tokio::time::sleep(Duration::from_millis(20)).await;
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
        settle().await;
    }

    pub async fn outcome(self) -> Result<T> {
        self.task
            .await
            .unwrap_or_else(|error| match error.is_cancelled() {
                true => Err(Error::new(Kind::Interrupted, "killed")),
                false => std::panic::resume_unwind(error.into_panic()),
            })
    }
}

/// Until all others wait: they have one thread together.
async fn settle() {
    for _ in 0..40 {
        tokio::task::yield_now().await;
    }
}

/// The store as one process sees it.
#[derive(Debug)]
struct Gate {
    inner: Arc<InMemory>,
    clock: Arc<AtomicI64>,
    times: Arc<Mutex<HashMap<Path, i64>>>,
    gate: Option<Arc<Semaphore>>,
}

impl Gate {
    /// Every operation takes a second.
    async fn enter(&self) {
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
            self.clock.fetch_add(1, Ordering::SeqCst);
        }
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
        self.enter().await;
        let done = self.inner.put_opts(to, body, options).await?;
        let now = self.clock.load(Ordering::SeqCst);
        self.times.lock().unwrap().insert(to.clone(), now);
        Ok(done)
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        panic!("not used")
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.enter().await;
        self.inner.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let (inner, gate) = (Arc::clone(&self.inner), self.gate.clone());
        let deleted = locations.then(move |location| {
            let (inner, gate) = (Arc::clone(&inner), gate.clone());
            async move {
                if let Some(gate) = gate {
                    gate.acquire().await.unwrap().forget();
                }
                let location = location?;
                inner.delete(&location).await?;
                Ok(location)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let again = Gate {
            inner: Arc::clone(&self.inner),
            clock: Arc::clone(&self.clock),
            times: Arc::clone(&self.times),
            gate: self.gate.clone(),
        };
        let prefix = prefix.cloned();
        let listed = async move {
            again.enter().await;
            let found: object_store::Result<Vec<ObjectMeta>> =
                again.inner.list(prefix.as_ref()).try_collect().await;
            match found {
                Ok(found) => found
                    .into_iter()
                    .map(|meta| Ok(again.dated(meta)))
                    .collect(),
                Err(error) => vec![Err(error)],
            }
        };
        stream::once(listed).flat_map(stream::iter).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.enter().await;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        panic!("not used")
    }
}
