//! Reading frames: region by region, in order of where they lie, adjacent ones in one request, by many threads.
//!
//! The frames of a large file, or of many small ones, make a group and are sorted by region of the file, layer, pack
//! and offset, so that a region is whole soon after it was begun, whatever the number of layers. What a layer has of
//! several regions side by side is fetched by one request and kept until the last of them has used it. Many groups make
//! a window, and each worker gets a part of it. Workers check and decode frames and hand each to the caller; what they
//! need next is already on its way meanwhile. Memory is bounded by
//! `workers * (AHEAD_BYTES + 3 * MAX_RANGE_BYTES + frame) + 2 * window`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pgstrata_layer::entry::FrameRef;
use pgstrata_layer::frame::FrameDecoder;
use pgstrata_store::catalog::Layer;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::courtesy;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::limits;
use pgstrata_store::progress::Progress;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use super::chain::Chain;
use super::fetch::{MAX_RANGE_BYTES, PackRange};
use super::queue::{Queue, Taker};

/// Regions of which one request fetches something: what it fetched is kept until the last has come.
const MAX_RANGE_REGIONS: usize = 64;

/// Frames in one task; pages that compress well would make one worker decode for seconds while others wait.
const MAX_TASK_FRAMES: usize = 256;

/// Tasks whose frames all workers have on their way while they decode, and those of one at least and at most; as long as
/// these are less than [`AHEAD_BYTES`] together: small ones are decoded faster than an object store answers. Behind
/// 20 ms of latency a chain of six took 2.25 s with 32 for each of two workers, 2.69 s with 8.
const ALL_AHEAD: usize = 64;
const MIN_AHEAD: usize = 4;
const MAX_AHEAD: usize = 32;
const AHEAD_BYTES: u64 = 8 << 20;

/// Blocks of the regions of all workers: 32 MiB; of one worker's at least 2 MiB and at most 4.
const ALL_REGION_BLOCKS: u32 = 4_096;
const MIN_REGION_BLOCKS: u32 = 256;
const MAX_REGION_BLOCKS: u32 = 512;

/// Frames from which a group is worth requests of its own: at 128 KiB each 16 MiB of pages.
const GROUP_FRAMES: usize = 128;

/// Most frames in a window: at 128 KiB each 4 GiB of pages, the files of four workers; about 8 MB of plan. From half of
/// it on a window ends with a file.
const WINDOW_FRAMES: usize = 32_768;

/// One frame to be read, with what the caller wants to know when it is there.
#[derive(Debug)]
pub(crate) struct WantedFrame<T> {
    /// Which layer of the chain, 0 the newest.
    pub(crate) layer: usize,
    pub(crate) frame: FrameRef,
    pub(crate) purpose: T,
}

/// A range whose frames are of one task, or of several that follow each other at a distance.
struct SharedRange {
    range: PackRange,
    /// Regions whose frames begin in it.
    regions: Range<u32>,
    contents: OnceCell<Bytes>,
}

impl SharedRange {
    fn of<T>(wanted: &WantedFrame<T>, region: u32) -> Self {
        Self {
            range: PackRange::of(wanted.layer, &wanted.frame),
            regions: region..region + 1,
            contents: OnceCell::new(),
        }
    }

    /// Takes in `next`, which does not begin before it, if one request is better than two.
    fn join(&mut self, next: &Self, across_bytes: u64) -> bool {
        let first = self.regions.start.min(next.regions.start);
        let regions = first..self.regions.end.max(next.regions.end);
        let limit = match regions.len() {
            1 => MAX_RANGE_BYTES,
            _ => across_bytes,
        };
        match self.range.joined(&next.range, limit) {
            Some(bytes) if regions.len() <= MAX_RANGE_REGIONS => {
                (self.range.bytes, self.regions) = (bytes, regions);
                true
            }
            _ => false,
        }
    }

    /// What is there; whoever comes first fetches it.
    async fn fetched(
        &self,
        cluster: &ClusterRepository,
        layer: &Layer,
        progress: &Progress,
    ) -> Result<Bytes> {
        let fetch = || self.range.fetch(cluster, layer, progress);
        self.contents.get_or_try_init(fetch).await.cloned()
    }
}

/// Frames of one region, or of a few small ones, that lie in one range.
struct ReadTask<T> {
    shared: Arc<SharedRange>,
    frames: Vec<WantedFrame<T>>,
    /// Bytes of the frames.
    length: u64,
}

/// How frames are joined to requests.
#[derive(Clone, Copy, Debug)]
struct Joining {
    /// Blocks of a region.
    region_blocks: u32,
    /// Length up to which one request goes beyond a region.
    across_bytes: u64,
}

/// Reads frames of a chain.
pub(crate) struct FrameReader<'a> {
    pub(crate) chain: &'a Chain,
    pub(crate) progress: &'a Progress,
    pub(crate) workers: usize,
    /// Counts the frames that were decoded.
    pub(crate) frames: &'a AtomicU64,
}

impl FrameReader<'_> {
    /// Blocks of a region: frames that begin in the same one come one after the other.
    pub(crate) fn region_blocks(&self) -> u32 {
        let workers = u32::try_from(self.workers.max(1)).unwrap_or(u32::MAX);
        (ALL_REGION_BLOCKS / workers).clamp(MIN_REGION_BLOCKS, MAX_REGION_BLOCKS)
    }

    /// One range of each layer may be waiting for the next region: together they are as long as the longest.
    fn joining(&self) -> Joining {
        let layers = u64::try_from(self.chain.layers.len().max(1)).unwrap_or(u64::MAX);
        Joining {
            region_blocks: self.region_blocks(),
            across_bytes: MAX_RANGE_BYTES / layers,
        }
    }

    /// Tasks whose frames one worker has on their way.
    fn ahead(&self) -> usize {
        (ALL_AHEAD / self.workers.max(1)).clamp(MIN_AHEAD, MAX_AHEAD)
    }

    /// Runs `plan`, which says which frames are wanted, and `on_frame` for each frame, on `workers` threads with a state
    /// each, which goes to `on_end` when all is well. Stops at the first error.
    ///
    /// # Errors
    /// The first error of any of them.
    pub(crate) fn read<T: Send, S>(
        &self,
        state: impl Fn() -> Result<S> + Sync,
        on_frame: impl Fn(&mut S, WantedFrame<T>, &[u8]) -> Result<()> + Sync,
        on_end: impl Fn(S) -> Result<()> + Sync,
        plan: impl FnOnce(&mut WantedFrames<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let workers = self.workers.max(1);
        let queue = Queue::new(workers);
        let failure = FirstError::default();
        std::thread::scope(|scope| {
            let started = limits::start_workers(scope, workers, |number| {
                let (taker, failure) = (queue.taker(number), &failure);
                let (state, on_frame, on_end) = (&state, &on_frame, &on_end);
                move || {
                    let outcome = state().and_then(|mut state| {
                        let on_frame = |frame, raw: &[u8]| on_frame(&mut state, frame, raw);
                        self.work(&taker, failure, on_frame)?;
                        match failure.is_set() {
                            true => Ok(()),
                            false => on_end(state),
                        }
                    });
                    if let Err(error) = outcome {
                        failure.set(error);
                    }
                }
            });
            let mut wanted = WantedFrames::new(&queue, &failure, self.joining());
            let planned = started.and_then(|_| plan(&mut wanted).and_then(|()| wanted.flush()));
            drop(wanted);
            if let Err(error) = planned {
                failure.set(error);
            }
        });
        failure.into_result()
    }

    fn work<T>(
        &self,
        tasks: &Taker<'_, ReadTask<T>>,
        failure: &FirstError,
        mut on_frame: impl FnMut(WantedFrame<T>, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut decoder = FrameDecoder::new()?;
        let mut raw = Vec::new();
        let mut ahead = VecDeque::new();
        while let Some(fetch) = ahead
            .pop_front()
            .or_else(|| Some(Fetch::start(self, tasks.next()?)))
        {
            // Tasks are still taken off the queue, so that the planner never waits for a worker that has given up.
            if failure.is_set() {
                continue;
            }
            while ahead.len() < self.ahead()
                && ahead.iter().map(|fetch| fetch.task.length).sum::<u64>() < AHEAD_BYTES
            {
                let Some(task) = tasks.ready() else { break };
                ahead.push_back(Fetch::start(self, task));
            }
            let outcome = self.read_task(fetch, &mut decoder, &mut raw, &mut on_frame);
            if let Err(error) = outcome {
                failure.set(error);
            }
        }
        Ok(())
    }

    fn read_task<T>(
        &self,
        mut fetch: Fetch<T>,
        decoder: &mut FrameDecoder,
        raw: &mut Vec<u8>,
        on_frame: &mut impl FnMut(WantedFrame<T>, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let contents = fetch.wait(self.chain)?;
        let ReadTask { shared, frames, .. } = fetch.task;
        for wanted in frames {
            if self.progress.is_cancelled() {
                return Err(Error::new(Kind::Interrupted, "interrupted"));
            }
            let damaged = |what: &dyn std::fmt::Display| {
                self.chain.damaged(wanted.layer, &wanted.frame, what)
            };
            let stored = shared.range.frame_in(&contents, &wanted.frame);
            let stored = stored.ok_or_else(|| damaged(&"lies outside of what was fetched"))?;
            decoder
                .decode(&stored, Some(wanted.frame.checksum), raw)
                .map_err(|error| damaged(&error))?;
            self.frames.fetch_add(1, Ordering::Relaxed);
            on_frame(wanted, raw)?;
            courtesy::rest();
        }
        Ok(())
    }
}

/// Gathers wanted frames and passes them to the workers, window by window.
pub(crate) struct WantedFrames<'q, T> {
    group: Vec<WantedFrame<T>>,
    /// The groups before, and how many frames they have.
    tasks: Vec<ReadTask<T>>,
    frames: usize,
    joining: Joining,
    queue: &'q Queue<ReadTask<T>>,
    failure: &'q FirstError,
}

impl<'q, T> WantedFrames<'q, T> {
    fn new(queue: &'q Queue<ReadTask<T>>, failure: &'q FirstError, joining: Joining) -> Self {
        Self {
            joining,
            failure,
            group: Vec::new(),
            tasks: Vec::new(),
            frames: 0,
            queue,
        }
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// When the workers have stopped; the reason is theirs.
    pub(crate) fn push(&mut self, frame: WantedFrame<T>) -> Result<()> {
        self.go_on()?;
        self.group.push(frame);
        match self.frames + self.group.len() >= WINDOW_FRAMES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Says that what comes next belongs to another file.
    ///
    /// # Errors
    /// When the workers have stopped; the reason is theirs.
    pub(crate) fn end_file(&mut self) -> Result<()> {
        self.go_on()?;
        if self.group.len() >= GROUP_FRAMES {
            self.end_group();
        }
        match self.frames >= WINDOW_FRAMES / 2 {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Workers that have given up still take what is planned. To plan may be to read all files of a cluster.
    fn go_on(&self) -> Result<()> {
        match self.failure.is_set() {
            true => Err(stopped()),
            false => Ok(()),
        }
    }

    fn end_group(&mut self) {
        self.frames += self.group.len();
        let group = std::mem::take(&mut self.group);
        self.tasks.extend(coalesce(group, self.joining));
    }

    fn flush(&mut self) -> Result<()> {
        self.end_group();
        self.frames = 0;
        match self.queue.push(std::mem::take(&mut self.tasks)) {
            true => Ok(()),
            false => Err(stopped()),
        }
    }
}

impl<T> Drop for WantedFrames<'_, T> {
    /// Also when planning has panicked: workers must not wait for ever.
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn stopped() -> Error {
    Error::new(Kind::Interrupted, "workers have stopped")
}

/// The first error of several threads.
#[derive(Default)]
struct FirstError {
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl FirstError {
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

/// A task whose bytes are on their way; given up when it is dropped.
struct Fetch<T> {
    task: ReadTask<T>,
    contents: JoinSet<Result<Bytes>>,
}

impl<T> Fetch<T> {
    fn start(reader: &FrameReader<'_>, task: ReadTask<T>) -> Self {
        let (shared, chain) = (Arc::clone(&task.shared), reader.chain);
        let (cluster, progress) = (chain.cluster.clone(), reader.progress.clone());
        let layer = Arc::clone(&chain.layers[shared.range.layer]);
        let mut contents = JoinSet::new();
        contents.spawn_on(
            async move { shared.fetched(&cluster, &layer, &progress).await },
            &chain.runtime,
        );
        Self { task, contents }
    }

    fn wait(&mut self, chain: &Chain) -> Result<Bytes> {
        let stopped = || Error::new(Kind::Interrupted, "reading was stopped");
        let fetched = chain.runtime.block_on(self.contents.join_next());
        fetched.ok_or_else(stopped)?.map_err(|_| stopped())?
    }
}

/// Joins frames that lie side by side to ranges, and sorts them by where they go and lie.
fn coalesce<T>(mut frames: Vec<WantedFrame<T>>, joining: Joining) -> Vec<ReadTask<T>> {
    frames.sort_unstable_by_key(|wanted| (wanted.layer, wanted.frame.pack, wanted.frame.offset));
    let mut ranges: Vec<SharedRange> = Vec::new();
    let mut placed = Vec::with_capacity(frames.len());
    for wanted in frames {
        let region = wanted.frame.first_block() / joining.region_blocks;
        let own = SharedRange::of(&wanted, region);
        let last = ranges.last_mut();
        if !last.is_some_and(|last| last.join(&own, joining.across_bytes)) {
            ranges.push(own);
        }
        placed.push((region, ranges.len() - 1, wanted));
    }
    placed.sort_by_key(|(region, range, _)| (*region, *range));
    let ranges: Vec<Arc<SharedRange>> = ranges.into_iter().map(Arc::new).collect();
    let mut tasks: Vec<ReadTask<T>> = Vec::new();
    for (_, range, wanted) in placed {
        let range = &ranges[range];
        let length = u64::from(wanted.frame.length);
        let begun = tasks
            .last_mut()
            .filter(|task| Arc::ptr_eq(&task.shared, range) && task.frames.len() < MAX_TASK_FRAMES);
        match begun {
            Some(task) => {
                task.length += length;
                task.frames.push(wanted);
            }
            None => tasks.push(ReadTask {
                shared: Arc::clone(range),
                frames: vec![wanted],
                length,
            }),
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pgstrata_layer::entry::BlockRun;
    use pgstrata_layer::keys::ClusterName;
    use pgstrata_store::repository::Repository;

    use super::super::fetch::MAX_GAP_BYTES;
    use super::*;

    const JOINING: Joining = Joining {
        region_blocks: 2048,
        across_bytes: MAX_RANGE_BYTES,
    };

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

    /// To plan may be to read all files of a cluster, and those that differ are emptied on the way.
    #[tokio::test]
    async fn nothing_more_is_planned_when_a_worker_has_failed() {
        let name = ClusterName::parse("main").unwrap();
        let cluster = ClusterRepository::new(&Repository::memory(), &name);
        let chain = Chain::new(&cluster, Vec::new());
        let reading = tokio::task::spawn_blocking(move || {
            let reader = FrameReader {
                chain: &chain,
                progress: &Progress::default(),
                workers: 2,
                frames: &AtomicU64::new(0),
            };
            let state = || Err::<(), _>(Error::new(Kind::File, "the disk is full"));
            let on_frame = |(): &mut (), _: WantedFrame<()>, _: &[u8]| Ok(());
            let began = Instant::now();
            let mut was_told = false;
            let read = reader.read(state, on_frame, Ok, |planned| {
                while began.elapsed() < Duration::from_secs(30) {
                    planned
                        .end_file()
                        .and_then(|()| planned.push(wanted(0, 0, 0, 1)))
                        .inspect_err(|_| was_told = true)?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
            (read, was_told)
        });
        let (read, was_told) = reading.await.unwrap();
        assert_eq!(read.unwrap_err().to_string(), "the disk is full");
        assert!(was_told);
    }

    #[test]
    fn adjacent_frames_are_read_in_one_request() {
        let frames = vec![
            wanted(0, 0, 132, 100),
            wanted(0, 0, 32, 100),
            wanted(0, 1, 32, 50),
            wanted(1, 0, 232, 10),
            wanted(0, 0, 232 + MAX_GAP_BYTES, 8),
            wanted(0, 0, 240 + 2 * MAX_GAP_BYTES + 1, 8),
        ];
        let tasks = coalesce(frames, JOINING);
        let found: Vec<_> = tasks
            .iter()
            .map(|t| {
                (
                    t.shared.range.layer,
                    t.shared.range.pack,
                    t.shared.range.bytes.clone(),
                    t.frames.len(),
                )
            })
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
    fn a_region_is_whole_before_the_next_begins() {
        let at = |layer, offset, start| {
            let mut found = wanted(layer, 0, offset, 100);
            found.frame.runs.push(BlockRun { start, count: 1 });
            found
        };
        let frames = vec![
            at(0, 0, 5),
            at(0, 100, 2048),
            at(1, 0, 0),
            at(1, 100, 2047),
            at(1, 200, 2049),
        ];
        let tasks = coalesce(frames, JOINING);
        let found = tasks.iter().map(|task| {
            let offsets = task.frames.iter().map(|wanted| wanted.frame.offset);
            (task.shared.range.layer, offsets.collect::<Vec<_>>())
        });
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                (0, vec![0]),
                (1, vec![0, 100]),
                (0, vec![100]),
                (1, vec![200])
            ]
        );
        // One request for each layer.
        assert!(Arc::ptr_eq(&tasks[0].shared, &tasks[2].shared));
        assert!(Arc::ptr_eq(&tasks[1].shared, &tasks[3].shared));
    }

    #[test]
    fn little_is_kept_for_later_regions() {
        let mut frames = Vec::new();
        for region in 0..64 {
            let mut found = wanted(0, 0, u64::from(region) << 10, 1 << 10);
            let start = region * JOINING.region_blocks;
            found.frame.runs.push(BlockRun { start, count: 1 });
            frames.push(found);
        }
        let across_bytes = 4 << 10;
        let tasks = coalesce(
            frames,
            Joining {
                across_bytes,
                ..JOINING
            },
        );
        assert_eq!(tasks.len(), 16);
        for task in &tasks {
            assert_eq!(
                task.shared.range.bytes.end - task.shared.range.bytes.start,
                across_bytes
            );
        }
        // Far away regions have their own, or packs without order would be kept whole.
        let mut frames = vec![wanted(0, 0, 0, 100), wanted(0, 0, 100, 100)];
        let far = u32::try_from(MAX_RANGE_REGIONS).unwrap() * JOINING.region_blocks;
        frames[0].frame.runs.push(BlockRun {
            start: far,
            count: 1,
        });
        let tasks = coalesce(frames, JOINING);
        assert!(!Arc::ptr_eq(&tasks[0].shared, &tasks[1].shared));
    }

    #[test]
    fn a_large_file_is_whole_before_the_next_begins() {
        let queue = Queue::new(1);
        let failure = FirstError::default();
        let mut wanted_frames = WantedFrames::new(&queue, &failure, JOINING);
        let large = u64::try_from(GROUP_FRAMES).unwrap();
        // Two layers of a large file, then two small files.
        for layer in [0, 1] {
            for frame in 0..large / 2 {
                wanted_frames
                    .push(wanted(layer, 0, frame * 100, 100))
                    .unwrap();
            }
        }
        wanted_frames.end_file().unwrap();
        for file in [1000, 1001] {
            for layer in [0, 1] {
                let offset = file * large * 100;
                wanted_frames.push(wanted(layer, 0, offset, 100)).unwrap();
            }
            wanted_frames.end_file().unwrap();
        }
        wanted_frames.flush().unwrap();
        drop(wanted_frames);
        let taker = queue.taker(0);
        let mut tasks = Vec::new();
        while let Some(task) = taker.next() {
            tasks.push((
                task.shared.range.layer,
                task.shared.range.bytes.start / (large * 100),
            ));
        }
        tasks.dedup();
        // Small files share requests.
        assert_eq!(tasks, [(0, 0), (1, 0), (0, 1000), (1, 1000)]);
    }

    #[test]
    fn no_request_is_larger_than_its_bound() {
        let frames = (0..100u64)
            .map(|n| wanted(0, 0, n << 20, 1 << 20))
            .collect();
        let tasks = coalesce(frames, JOINING);
        assert_eq!(tasks.len(), 25);
        assert!(tasks.iter().all(|task| task.shared.range.bytes.end
            - task.shared.range.bytes.start
            <= MAX_RANGE_BYTES));
        let small = (0..1000u64).map(|n| wanted(0, 0, n * 30, 30)).collect();
        assert!(
            coalesce(small, JOINING)
                .iter()
                .all(|task| task.frames.len() <= MAX_TASK_FRAMES)
        );
    }
}
