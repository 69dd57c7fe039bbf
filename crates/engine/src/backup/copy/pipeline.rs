//! From a list of files to packs and an index in the repository.
//!
//! One planner, N workers and one assembler, as threads. Items and outcomes go
//! through channels; how far one may run ahead of the other is bounded. The
//! first failure raises [`Abort`] and everything ends.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use pgstrata_layer::audit::Sample;
use pgstrata_layer::changeset::Changes;
use pgstrata_layer::frame::Codec;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;

use super::assemble::{Assembled, Assembler};
use super::check::PageCheck;
use super::job::{PartOutcome, WorkItem};
use super::limiter::Limiter;
use super::parent::Parent;
use super::plan::{Planner, SmallFiles};
use super::read::{Worker, WorkerContext};
use super::window::Window;
use crate::backup::abort::Abort;
use crate::frames::{Chain, LayerWriter};
use crate::server::ScannedFile;

/// All packs in memory together: with reading buffers and indexes this keeps a backup below 256 MiB.
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
    let target = (PACKS_BYTES / workers / 2).clamp(SMALLEST_PACK_BYTES, LARGEST_PACK_BYTES);
    let (limiter, window) = (Limiter::new(work.max_rate), Window::default());
    let context = WorkerContext {
        data_directory: &work.data_directory,
        codec: work.codec,
        check: &work.check,
        fail_on_corrupt_page: work.fail_on_corrupt_page,
        limiter: &limiter,
        progress: &work.progress,
        abort: &work.abort,
    };
    let (items, receive_items) = sync_channel::<WorkItem>(workers * 2);
    let (done, receive_done) = channel::<PartOutcome>();
    // Only workers hold the receiving end: when they are gone, sending fails instead of blocking.
    let receive_items: Arc<Mutex<Receiver<WorkItem>>> = Arc::new(Mutex::new(receive_items));
    let assembled = thread::scope(|scope| {
        for _ in 0..workers {
            let (items, done, context) = (Arc::clone(&receive_items), done.clone(), &context);
            scope.spawn(move || {
                let packs = work.layer.packs(target);
                let worked =
                    Worker::new(context, packs, done).and_then(|worker| worker.run(&items));
                worked.unwrap_or_else(|error| work.abort.fail(error));
            });
        }
        drop(receive_items);
        let planner = Planner {
            changes: &work.changes,
            audit: work.audit,
            parent,
            items,
            done,
            window: &window,
            progress: &work.progress,
            abort: &work.abort,
            batch: SmallFiles::default(),
        };
        scope.spawn(move || {
            planner
                .run(files)
                .unwrap_or_else(|error| work.abort.fail(error))
        });
        let assembled = work
            .layer
            .index()
            .and_then(|index| Assembler::new(index, &window).run(&receive_done, &work.abort));
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
