//! Hands work to workers so that they keep out of each other's way.
//!
//! A file takes one writer at a time: the kernel holds its inode's lock for each buffered
//! write, and two workers in one file spin for it. So each worker has a stretch of the
//! work, in order, and takes from the end of another's only when its own is done.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

/// Tasks, in a stretch for each worker.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    stretches: Vec<VecDeque<T>>,
    /// More may come.
    is_open: bool,
    /// Workers that still take tasks.
    workers: usize,
}

impl<T> State<T> {
    fn waiting(&self) -> usize {
        self.stretches.iter().map(VecDeque::len).sum()
    }
}

/// A worker's end of the queue; dropped when it takes no more.
pub(super) struct Taker<'a, T> {
    queue: &'a Queue<T>,
    number: usize,
}

impl<T> Queue<T> {
    pub(super) fn new(workers: usize) -> Self {
        let stretches = std::iter::repeat_with(VecDeque::new);
        Self {
            state: Mutex::new(State {
                stretches: stretches.take(workers).collect(),
                is_open: true,
                workers,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state
            .lock()
            .expect("no thread panics while it holds the queue")
    }

    fn wait<'g>(&self, state: MutexGuard<'g, State<T>>) -> MutexGuard<'g, State<T>> {
        self.changed
            .wait(state)
            .expect("no thread panics while it holds the queue")
    }

    /// Waits until there is less than one task for each worker, then adds a batch in equal
    /// stretches. False when no worker is left.
    pub(super) fn push(&self, tasks: Vec<T>) -> bool {
        let mut state = self.lock();
        while state.waiting() >= state.workers && state.workers > 0 {
            state = self.wait(state);
        }
        let workers = state.stretches.len();
        let share = tasks.len().div_ceil(workers).max(1);
        for (at, task) in tasks.into_iter().enumerate() {
            state.stretches[at / share].push_back(task);
        }
        self.changed.notify_all();
        state.workers > 0
    }

    /// Says that nothing more comes.
    pub(super) fn close(&self) {
        self.lock().is_open = false;
        self.changed.notify_all();
    }

    /// The end of worker `number`, from 0.
    pub(super) fn taker(&self, number: usize) -> Taker<'_, T> {
        Taker {
            queue: self,
            number,
        }
    }
}

impl<T> Taker<'_, T> {
    /// The next task, waited for; `None` when there is none left.
    pub(super) fn next(&self) -> Option<T> {
        let mut state = self.queue.lock();
        loop {
            if let Some(task) = self.take(&mut state) {
                return Some(task);
            }
            if !state.is_open {
                return None;
            }
            state = self.queue.wait(state);
        }
    }

    /// A task that is there now.
    pub(super) fn ready(&self) -> Option<T> {
        self.take(&mut self.queue.lock())
    }

    fn take(&self, state: &mut State<T>) -> Option<T> {
        let longest = (0..state.stretches.len()).max_by_key(|&n| state.stretches[n].len())?;
        let own = state.stretches[self.number].pop_front();
        let task = own.or_else(|| state.stretches[longest].pop_back());
        if task.is_some() {
            self.queue.changed.notify_all();
        }
        task
    }
}

impl<T> Drop for Taker<'_, T> {
    fn drop(&mut self) {
        self.queue.lock().workers -= 1;
        self.queue.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_a_stretch_and_helps_at_the_end() {
        let queue = Queue::new(2);
        assert!(queue.push((0..6).collect()));
        queue.close();
        let (first, second) = (queue.taker(0), queue.taker(1));
        let taken: Vec<_> = [&first, &second, &first, &first, &first]
            .map(Taker::next)
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(taken, [0, 3, 1, 2, 5]);
        assert_eq!((second.next(), second.next()), (Some(4), None));
    }

    #[test]
    fn every_task_is_taken_once_by_any_number_of_workers() {
        for workers in 1..5 {
            let queue = Queue::new(workers);
            let taken = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for number in 0..workers {
                    let (queue, taken) = (&queue, &taken);
                    scope.spawn(move || {
                        let taker = queue.taker(number);
                        while let Some(task) = taker.next() {
                            taken.lock().unwrap().push(task);
                        }
                    });
                }
                for batch in 0..20 {
                    assert!(queue.push((batch * 7..batch * 7 + 7).collect()));
                }
                queue.close();
            });
            let mut taken = taken.into_inner().unwrap();
            taken.sort_unstable();
            assert_eq!(taken, (0..140).collect::<Vec<_>>());
        }
    }

    #[test]
    fn without_workers_nothing_waits() {
        let queue = Queue::new(1);
        drop(queue.taker(0));
        assert!(!queue.push(vec![1, 2, 3]));
    }
}
