//! From a list of files to packs and an index in the repository.
//!
//! One planner, N workers and one assembler, as threads. Items and outcomes go
//! through channels; how far one may run ahead of the other is bounded. The
//! first failure raises [`Abort`] and everything ends.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, Scope};

use pgstrata_layer::audit::Sample;
use pgstrata_layer::changeset::Changes;
use pgstrata_layer::frame::Codec;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;
use tracing::info;

use super::assemble::{Assembled, Assembler};
use super::cache::PageCache;
use super::check::PageCheck;
use super::job::{PartOutcome, WorkItem};
use super::limiter::Limiter;
use super::parent::Parent;
use super::plan::{Planner, SmallFiles};
use super::read::{Worker, WorkerContext};
use super::window::Window;
use crate::backup::abort::Abort;
use crate::frames::{Chain, LayerWriter};
use crate::priority::{self, Impact, Staffing, Yielding};
use crate::server::ScannedFile;

/// All packs in memory together: with reading buffers and indexes this keeps a backup with up to 16 workers below 256 MiB. With more,
/// each takes some 12 MiB: what it reads, the pack that it fills and the one that is on its way.
const PACKS_BYTES: usize = 160 << 20;

/// One S3 request; larger packs gain nothing, smaller ones cost requests.
const LARGEST_PACK_BYTES: usize = pgstrata_layer::pack::TARGET_BYTES;

/// One item and its frames.
const SMALLEST_PACK_BYTES: usize = 4 << 20;

/// Everything the threads need to know.
pub(crate) struct Work {
    pub(crate) data_directory: PathBuf,
    pub(crate) layer: LayerWriter,
    pub(crate) progress: Progress,
    pub(crate) codec: Codec,
    pub(crate) jobs: usize,
    pub(crate) check: PageCheck,
    pub(crate) fail_on_corrupt_page: bool,
    pub(crate) max_rate: Option<u64>,
    pub(crate) impact: Impact,
    pub(crate) changes: Changes,
    pub(crate) audit: Option<Sample>,
    pub(crate) abort: Abort,
}

/// What was stored.
pub(crate) struct Stored {
    pub(crate) assembled: Assembled,
    pub(crate) pack_count: u32,
    pub(crate) pack_bytes: u64,
    /// What decides at the end which complaints stand.
    pub(crate) check: PageCheck,
}

/// Stores all `files`; `chain` is the parent's, and empty for a full backup. Everything is durable when it returns.
///
/// It is to be waited for also when the backup is given up: the threads see an abort themselves, and must be gone
/// before anybody cleans up.
pub(crate) async fn store(work: Work, chain: Chain, files: Vec<ScannedFile>) -> Result<Stored> {
    let stored = tokio::task::spawn_blocking(move || {
        let parent = (!chain.layers.is_empty()).then(|| Parent::new(&chain));
        let assembled = run(&work, parent, files)?;
        Ok(Stored {
            assembled,
            pack_count: work.layer.pack_count(),
            pack_bytes: work.layer.pack_bytes(),
            check: work.check,
        })
    });
    stored.await.unwrap_or_else(|error| {
        Err(Error::new(
            Kind::File,
            format!("could not read the cluster: {error}"),
        ))
    })
}

fn run(work: &Work, parent: Option<Parent>, files: Vec<ScannedFile>) -> Result<Assembled> {
    let workers = limits::workers(work.jobs);
    // One worker more may come, when these starve.
    let pack_bytes =
        (PACKS_BYTES / (workers + 1) / 2).clamp(SMALLEST_PACK_BYTES, LARGEST_PACK_BYTES);
    let (limiter, window) = (Limiter::new(work.max_rate), Window::default());
    let cache = PageCache::new(work.impact != Impact::None);
    let crew = Crew {
        work,
        context: WorkerContext {
            data_directory: &work.data_directory,
            codec: work.codec,
            check: &work.check,
            fail_on_corrupt_page: work.fail_on_corrupt_page,
            limiter: &limiter,
            cache: &cache,
            progress: &work.progress,
            abort: &work.abort,
        },
        pack_bytes,
        yielding: Yielding::default(),
        staffing: Staffing::new(workers),
    };
    let (items, receive_items) = sync_channel::<WorkItem>(workers * 2);
    let (done, receive_done) = channel::<PartOutcome>();
    let assembled = thread::scope(|scope| {
        let planner = Planner {
            changes: &work.changes,
            audit: work.audit,
            parent,
            items,
            done: done.clone(),
            window: &window,
            progress: &work.progress,
            abort: &work.abort,
            batch: SmallFiles::default(),
        };
        // It comes first: of workers there may be fewer.
        scope.spawn(move || {
            planner
                .run(files)
                .unwrap_or_else(|error| work.abort.fail(error))
        });
        let started = crew.start(scope, workers, receive_items, done);
        if let Err(error) = started {
            work.abort.fail(error);
            return None;
        }
        let assembled = work
            .layer
            .index()
            .map(|index| Assembler::new(index, &window, &work.check))
            .and_then(|assembler| assembler.run(&receive_done, &work.abort));
        if let Err(error) = assembled {
            work.abort.fail(error);
            return None;
        }
        assembled.ok()
    });
    match assembled {
        Some(assembled) if !work.abort.is_raised() => Ok(assembled),
        _ => Err(work.abort.take()),
    }
}

/// Those who copy.
struct Crew<'a> {
    work: &'a Work,
    context: WorkerContext<'a>,
    /// Of one pack.
    pack_bytes: usize,
    yielding: Yielding,
    staffing: Staffing,
}

impl Crew<'_> {
    /// Starts `workers` threads, and what looks after them. Only they hold the receiving end: when they are gone, sending
    /// fails instead of blocking.
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        workers: usize,
        items: Receiver<WorkItem>,
        done: Sender<PartOutcome>,
    ) -> Result<()> {
        let items = Arc::new(Mutex::new(items));
        let (end, ended) = channel::<()>();
        limits::start_workers(scope, workers, |number| {
            let (items, done, end) = (Arc::clone(&items), done.clone(), end.clone());
            move || {
                if self.work.impact != Impact::None {
                    self.yielding.enter();
                }
                self.copy(&items, done, number);
                drop(end);
            }
        })?;
        if self.work.impact == Impact::Auto {
            let items = Arc::downgrade(&items);
            let companion = move || {
                if self.yielding.starve_before(&ended)
                    && let Some(items) = items.upgrade()
                {
                    info!(
                        "the machine is too busy for workers that give way: one more goes on at nice 10"
                    );
                    priority::help_out();
                    self.copy(&items, done, 0);
                }
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, companion) {
                info!(%error, "nobody will help workers that starve: the system gives no thread");
            }
        }
        Ok(())
    }

    fn copy(&self, items: &Mutex<Receiver<WorkItem>>, done: Sender<PartOutcome>, number: usize) {
        let packs = self.work.layer.packs(self.pack_bytes);
        let is_wanted = || self.staffing.is_wanted(number);
        let worked =
            Worker::new(&self.context, packs, done).and_then(|worker| worker.run(items, is_wanted));
        worked.unwrap_or_else(|error| self.work.abort.fail(error));
    }
}
