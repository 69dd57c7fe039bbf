//! From a list of files to packs and an index in the repository.
//!
//! One planner, N workers and one assembler, as threads. Items and outcomes go
//! through channels; how far one may run ahead of the other is bounded. The
//! first failure raises [`Abort`] and everything ends.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use pgstrata_layer::audit::Sample;
use pgstrata_layer::changeset::Changes;
use pgstrata_layer::frame::Codec;

use super::abort::Abort;
use super::assembler::{Assembled, Assembler};
use super::index_store::{IndexStore, Place};
use super::job::{Done, Item};
use super::limiter::Limiter;
use super::packer::{Destination, Packer, Packs};
use super::pages::PageCheck;
use super::parent::Parent;
use super::planner::{Batch, Planner};
use super::shares::ShareMade;
use super::window::Window;
use super::worker::{Shop, Worker};
use crate::cluster::ScannedFile;
use crate::error::Result;

/// All packs in memory together: with reading buffers and indexes this keeps a backup below 256 MiB.
const PACKS_BYTES: usize = 160 << 20;

/// One S3 request; larger packs gain nothing, smaller ones cost requests.
const LARGEST_PACK_BYTES: usize = pgstrata_layer::pack::TARGET_BYTES;

/// One item and its frames.
const SMALLEST_PACK_BYTES: usize = 4 << 20;

/// Everything the threads need to know.
pub(super) struct Work<'a> {
    pub(super) data_directory: &'a Path,
    pub(super) destination: &'a Destination,
    pub(super) codec: Codec,
    pub(super) jobs: usize,
    pub(super) check: &'a PageCheck,
    pub(super) fail_on_corrupt_page: bool,
    pub(super) max_rate: Option<u64>,
    pub(super) changes: &'a Changes,
    pub(super) audit: Option<Sample>,
    pub(super) abort: &'a Abort,
    pub(super) packs: &'a Packs,
    /// Where the index goes.
    pub(super) place: Place,
}

/// What was stored.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) assembled: Assembled,
    pub(super) pack_count: u32,
    pub(super) pack_bytes: u64,
    /// Who made which share, when there were any.
    pub(super) shares: Vec<ShareMade>,
}

/// How many workers `jobs` means.
pub(super) fn worker_count(jobs: usize) -> usize {
    match jobs {
        0 => thread::available_parallelism().map_or(1, NonZeroUsize::get),
        jobs => jobs,
    }
}

/// Stores all `files`. Everything is durable when it returns.
pub(super) fn run(
    work: &Work<'_>,
    parent: Option<Parent>,
    files: Vec<ScannedFile>,
) -> Result<Assembled> {
    let workers = worker_count(work.jobs);
    let target = (PACKS_BYTES / workers / 2).clamp(SMALLEST_PACK_BYTES, LARGEST_PACK_BYTES);
    let (limiter, window) = (Limiter::new(work.max_rate), Window::default());
    let shop = Shop {
        data_directory: work.data_directory,
        check: work.check,
        fail_on_corrupt_page: work.fail_on_corrupt_page,
        limiter: &limiter,
        progress: &work.destination.progress,
        abort: work.abort,
    };
    let (items, receive_items) = sync_channel::<Item>(workers * 2);
    let (done, receive_done) = channel::<Done>();
    // Only workers hold the receiving end: when they are gone, sending fails instead of blocking.
    let receive_items: Arc<Mutex<Receiver<Item>>> = Arc::new(Mutex::new(receive_items));
    let assembled = thread::scope(|scope| {
        for _ in 0..workers {
            let (items, done, shop) = (Arc::clone(&receive_items), done.clone(), &shop);
            scope.spawn(move || {
                let act = Packer::new(work.destination, work.packs, work.codec, target)
                    .and_then(|packer| Worker::new(shop, items, packer, done).run());
                act.unwrap_or_else(|error| work.abort.fail(error));
            });
        }
        drop(receive_items);
        let planner = Planner {
            changes: work.changes,
            audit: work.audit,
            parent,
            items,
            done,
            window: &window,
            progress: &work.destination.progress,
            abort: work.abort,
            batch: Batch::default(),
        };
        scope.spawn(move || {
            planner
                .run(files)
                .unwrap_or_else(|error| work.abort.fail(error))
        });
        let assembled = IndexStore::new(work.destination.clone(), work.place)
            .and_then(|index| Assembler::new(index, &window).run(&receive_done, work.abort));
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
