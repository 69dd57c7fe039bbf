//! Reading frames: in order of where they lie, adjacent ones in one request, by many threads.
//!
//! The frames of many files are gathered into a window and sorted by layer, pack and offset, and each worker gets a
//! stretch of it. Workers fetch a range, check and decode its frames and hand each to the caller; the next ranges are
//! already on their way meanwhile. Memory is bounded by `workers * (3 * MAX_RANGE_BYTES + frame) + 2 * window`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pgstrata_layer::entry::FrameRef;
use pgstrata_layer::frame::FrameDecoder;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::Source;
use super::queue::{Queue, Taker};
use crate::catalog::Layer;
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;

/// 8 MiB: one S3 range request at 2 Gbit/s costs less than its latency, and a few workers keep any disk busy.
const MAX_RANGE_BYTES: u64 = 8 << 20;

/// Frames in one request; pages that compress well would make one worker decode for seconds while others wait.
const MAX_RANGE_FRAMES: usize = 256;

/// Ranges that a worker has on their way while it decodes one, as long as they are less than [`MAX_RANGE_BYTES`]
/// together: small ranges are decoded faster than an object store answers.
const MAX_AHEAD: usize = 4;

/// Bytes between two wanted frames that are cheaper read than asked for again.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// Frames in a window: at 128 KiB each 4 GiB of pages, the files of four workers; about 8 MB of plan.
const WINDOW_FRAMES: usize = 32_768;

/// One frame to be read, with what the caller wants to know when it is there.
#[derive(Debug)]
pub(crate) struct WantedFrame<T> {
    /// Which layer of the chain, 0 the newest.
    pub(crate) layer: usize,
    pub(crate) frame: FrameRef,
    pub(crate) purpose: T,
}

/// Frames that one request fetches.
struct ReadTask<T> {
    layer: usize,
    pack: u32,
    range: Range<u64>,
    frames: Vec<WantedFrame<T>>,
}

/// What all workers need.
pub(crate) struct Reading<'a> {
    pub(crate) source: &'a Source,
    pub(crate) chain: &'a [Arc<Layer>],
    pub(crate) progress: &'a Progress,
    pub(crate) workers: usize,
    /// Counts the frames that were decoded.
    pub(crate) frames: &'a AtomicU64,
}

/// Gathers wanted frames and passes them to the workers, window by window.
pub(crate) struct Window<'q, T> {
    frames: Vec<WantedFrame<T>>,
    queue: &'q Queue<ReadTask<T>>,
}

impl<T> Window<'_, T> {
    /// Adds a frame.
    ///
    /// # Errors
    /// When the workers have stopped; the reason is theirs.
    pub(crate) fn push(&mut self, frame: WantedFrame<T>) -> Result<()> {
        self.frames.push(frame);
        match self.frames.len() >= WINDOW_FRAMES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        let tasks = coalesce(std::mem::take(&mut self.frames));
        match self.queue.push(tasks) {
            true => Ok(()),
            false => Err(stopped()),
        }
    }
}

impl<T> Drop for Window<'_, T> {
    /// Also when planning has panicked: workers must not wait for ever.
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn stopped() -> Error {
    Error::new(Kind::Interrupted, "workers have stopped")
}

/// Runs `plan`, which says which frames are wanted, and `on_frame` for each frame, on `workers` threads with a state
/// each. Stops at the first error.
///
/// # Errors
/// The first error of any of them.
pub(crate) fn read_frames<T: Send, S>(
    reading: &Reading<'_>,
    state: impl Fn() -> S + Sync,
    on_frame: impl Fn(&mut S, WantedFrame<T>, &[u8]) -> Result<()> + Sync,
    plan: impl FnOnce(&mut Window<'_, T>) -> Result<()>,
) -> Result<()> {
    let workers = reading.workers.max(1);
    let queue = Queue::new(workers);
    let failure = Failure::default();
    std::thread::scope(|scope| {
        for number in 0..workers {
            let (taker, state, failure, on_frame) =
                (queue.taker(number), &state, &failure, &on_frame);
            scope.spawn(move || {
                let mut state = state();
                let outcome = work(reading, &taker, failure, |frame, raw| {
                    on_frame(&mut state, frame, raw)
                });
                if let Err(error) = outcome {
                    failure.set(error);
                }
            });
        }
        let mut window = Window {
            frames: Vec::new(),
            queue: &queue,
        };
        let planned = plan(&mut window).and_then(|()| window.flush());
        drop(window);
        if let Err(error) = planned {
            failure.set(error);
        }
    });
    failure.into_result()
}

/// The first error of several threads.
#[derive(Default)]
struct Failure {
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Failure {
    fn set(&self, error: Error) {
        let mut first = self
            .error
            .lock()
            .expect("no thread panics while it holds the error");
        first.get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn into_result(self) -> Result<()> {
        let error = self
            .error
            .into_inner()
            .expect("no thread panics while it holds the error");
        error.map_or(Ok(()), Err)
    }
}

fn work<T>(
    reading: &Reading<'_>,
    tasks: &Taker<'_, ReadTask<T>>,
    failure: &Failure,
    mut on_frame: impl FnMut(WantedFrame<T>, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut decoder = FrameDecoder::new()?;
    let mut raw = Vec::new();
    let mut ahead = VecDeque::new();
    while let Some(fetch) = ahead
        .pop_front()
        .or_else(|| Some(Fetch::start(reading, tasks.next()?)))
    {
        // Tasks are still taken off the queue, so that the planner never waits for a worker that has given up.
        if failure.is_set() {
            continue;
        }
        while ahead.len() < MAX_AHEAD && ahead.iter().map(Fetch::len).sum::<u64>() < MAX_RANGE_BYTES
        {
            let Some(task) = tasks.ready() else { break };
            ahead.push_back(Fetch::start(reading, task));
        }
        let outcome = read_task(reading, fetch, &mut decoder, &mut raw, &mut on_frame);
        if let Err(error) = outcome {
            failure.set(error);
        }
    }
    Ok(())
}

/// A range on its way; given up when it is dropped.
struct Fetch<T> {
    task: ReadTask<T>,
    key: String,
    bytes: JoinSet<Result<Bytes>>,
}

impl<T> Fetch<T> {
    fn start(reading: &Reading<'_>, task: ReadTask<T>) -> Self {
        let source = reading.source;
        let label = &reading.chain[task.layer].label;
        let key = source.cluster.pack_key(label, task.pack);
        let (repository, wanted, range) =
            (source.repository.clone(), key.clone(), task.range.clone());
        let mut bytes = JoinSet::new();
        bytes.spawn_on(
            async move { repository.get_range(&wanted, range).await },
            &source.runtime,
        );
        Self { task, key, bytes }
    }

    fn len(&self) -> u64 {
        self.task.range.end - self.task.range.start
    }

    fn wait(&mut self, runtime: &Handle) -> Result<Bytes> {
        let stopped = || Error::new(Kind::Interrupted, "reading was stopped");
        let fetched = runtime.block_on(self.bytes.join_next());
        let fetched = fetched.ok_or_else(stopped)?.map_err(|_| stopped())?;
        fetched.map_err(|e| missing_is_damage(e, &self.key))
    }
}

fn read_task<T>(
    reading: &Reading<'_>,
    mut fetch: Fetch<T>,
    decoder: &mut FrameDecoder,
    raw: &mut Vec<u8>,
    on_frame: &mut impl FnMut(WantedFrame<T>, &[u8]) -> Result<()>,
) -> Result<()> {
    let bytes = fetch.wait(&reading.source.runtime)?;
    let task = fetch.task;
    let label = &reading.chain[task.layer].label;
    reading
        .progress
        .add_stored(task.range.end - task.range.start);
    for wanted in task.frames {
        if reading.progress.is_cancelled() {
            return Err(Error::new(Kind::Interrupted, "interrupted"));
        }
        let within = |what: &dyn std::fmt::Display| {
            Error::new(
                Kind::Damaged,
                format!(
                    "could not read pack {} of layer {label}: frame at {}: {what}",
                    task.pack, wanted.frame.offset
                ),
            )
        };
        let stored = usize::try_from(wanted.frame.offset - task.range.start)
            .ok()
            .and_then(|start| {
                bytes
                    .get(start..)?
                    .get(..usize::try_from(wanted.frame.length).ok()?)
            })
            .ok_or_else(|| within(&"lies outside of what was fetched"))?;
        decoder
            .decode(stored, Some(wanted.frame.checksum), raw)
            .map_err(|e| within(&e))?;
        reading.frames.fetch_add(1, Ordering::Relaxed);
        on_frame(wanted, raw)?;
    }
    Ok(())
}

/// An object that a manifest names and that is not there is damage, not absence.
pub(crate) fn missing_is_damage(error: Error, key: &str) -> Error {
    match error.kind() {
        Kind::NotFound => Error::new(
            Kind::Damaged,
            format!("object \"{key}\" is missing from the repository, though a manifest names it"),
        ),
        _ => error,
    }
}

/// Sorts frames by where they lie and joins neighbours into requests.
fn coalesce<T>(mut frames: Vec<WantedFrame<T>>) -> Vec<ReadTask<T>> {
    frames.sort_unstable_by_key(|wanted| (wanted.layer, wanted.frame.pack, wanted.frame.offset));
    let mut tasks: Vec<ReadTask<T>> = Vec::new();
    for wanted in frames {
        let start = wanted.frame.offset;
        let end = start.saturating_add(u64::from(wanted.frame.length));
        let joined = tasks.last_mut().filter(|task| {
            let same_pack = task.layer == wanted.layer && task.pack == wanted.frame.pack;
            let gap = start.checked_sub(task.range.end);
            same_pack
                && gap.is_some_and(|gap| gap <= MAX_GAP_BYTES)
                && end - task.range.start <= MAX_RANGE_BYTES
                && task.frames.len() < MAX_RANGE_FRAMES
        });
        match joined {
            Some(task) => {
                task.range.end = end;
                task.frames.push(wanted);
            }
            None => tasks.push(ReadTask {
                layer: wanted.layer,
                pack: wanted.frame.pack,
                range: start..end,
                frames: vec![wanted],
            }),
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(layer: usize, pack: u32, offset: u64, length: u32) -> WantedFrame<()> {
        let frame = FrameRef {
            pack,
            offset,
            length,
            checksum: 0,
            runs: Vec::new(),
        };
        WantedFrame {
            layer,
            frame,
            purpose: (),
        }
    }

    #[test]
    fn adjacent_frames_are_read_in_one_request() {
        let tasks = coalesce(vec![
            wanted(0, 0, 132, 100),
            wanted(0, 0, 32, 100),
            wanted(0, 1, 32, 50),
            wanted(1, 0, 232, 10),
            wanted(0, 0, 232 + MAX_GAP_BYTES, 8),
            wanted(0, 0, 240 + 2 * MAX_GAP_BYTES + 1, 8),
        ]);
        let found: Vec<_> = tasks
            .iter()
            .map(|t| (t.layer, t.pack, t.range.clone(), t.frames.len()))
            .collect();
        let gap = MAX_GAP_BYTES;
        assert_eq!(
            found,
            [
                (0, 0, 32..240 + gap, 3),
                (0, 0, 241 + 2 * gap..249 + 2 * gap, 1),
                (0, 1, 32..82, 1),
                (1, 0, 232..242, 1),
            ]
        );
    }

    #[test]
    fn no_request_is_larger_than_its_bound() {
        let frames = (0..100u64)
            .map(|n| wanted(0, 0, n << 20, 1 << 20))
            .collect();
        let tasks = coalesce(frames);
        assert_eq!(tasks.len(), 13);
        assert!(
            tasks
                .iter()
                .all(|task| task.range.end - task.range.start <= MAX_RANGE_BYTES)
        );
        let small = (0..1000u64).map(|n| wanted(0, 0, n * 30, 30)).collect();
        assert!(
            coalesce(small)
                .iter()
                .all(|task| task.frames.len() <= MAX_RANGE_FRAMES)
        );
    }
}
