//! Threads for what may wait for a disk.
//!
//! The caller of a store has an executor of its own and one thread for everything; whatever may block runs here, and the
//! result wakes the caller. Nobody has more than three jobs here at a time (a writer two full buffers and the end of it, a
//! reader one piece, any other operation itself), so that the queue is as short as there are clients.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use futures_channel::oneshot;

use crate::{Result, StoreError};

/// Most threads. Concurrent small writes each wait for an fsync here, and the journal of the file system takes whatever
/// waits together: 16 cover a usual client's concurrency.
const THREADS: usize = 16;

/// Stack of a thread: nothing here is deep, or has large buffers on its stack.
const STACK: usize = 512 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads, which it starts as they are needed.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that wait for a job.
    idle: usize,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("jobs", &self.jobs.len()).field("threads", &self.threads.len()).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No job runs under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.lock();
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

impl Pool {
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Runs a job as soon as a thread is free. Without any thread, and after [`Pool::close`], it runs at once.
    pub(super) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        if !queue.closed {
            if queue.idle <= queue.jobs.len() && queue.threads.len() < THREADS {
                let shared = Arc::clone(&self.shared);
                let builder = thread::Builder::new().name("store-disk".into()).stack_size(STACK);
                match builder.spawn(move || shared.work()) {
                    Ok(thread) => queue.threads.push(thread),
                    Err(error) => tracing::warn!(%error, "no further thread for the disk store"),
                }
            }
            if !queue.threads.is_empty() {
                queue.jobs.push_back(Box::new(job));
                drop(queue);
                self.shared.wake.notify_one();
                return;
            }
        }
        drop(queue);
        job();
    }

    /// Starts a job whose result is wanted.
    pub(super) fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> oneshot::Receiver<Result<T>> {
        let (sender, receiver) = oneshot::channel();
        self.spawn(move || {
            // Whoever asked may have gone.
            let _ = sender.send(job());
        });
        receiver
    }

    /// The result of a job.
    pub(super) async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.start(job).await.unwrap_or_else(|_| Err(lost()))
    }

    /// Does what is queued, and ends the threads.
    pub(super) fn close(&self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        self.shared.wake.notify_all();
        for thread in threads {
            if thread.thread().id() != thread::current().id() {
                // A job that panicked has been reported by the panic itself.
                let _ = thread.join();
            }
        }
    }
}

/// A job ended without a result, which only a panic does.
pub(super) fn lost() -> StoreError {
    StoreError::Internal("a job of the disk store was lost".into())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_run_side_by_side_up_to_the_number_of_threads() {
        let pool = Pool::new();
        let (sender, results) = mpsc::channel();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        for n in 0..THREADS + 3 {
            let (sender, gate) = (sender.clone(), Arc::clone(&gate));
            pool.spawn(move || {
                sender.send(n).unwrap();
                drop(gate.1.wait_while(gate.0.lock().unwrap(), |open| !*open));
            });
        }
        let mut started: Vec<usize> = (0..THREADS).map(|_| results.recv().unwrap()).collect();
        started.sort_unstable();
        assert_eq!(started, (0..THREADS).collect::<Vec<_>>());
        assert_eq!(pool.shared.lock().jobs.len(), 3, "the others wait");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        pool.close();
        assert_eq!(results.try_iter().count(), 3, "what was queued is done before the pool ends");
        pool.spawn(move || sender.send(99).unwrap());
        assert_eq!(results.try_recv(), Ok(99), "a closed pool has no threads, and does it at once");
    }

    #[test]
    fn threads_are_started_only_when_needed() {
        let pool = Pool::new();
        for _ in 0..20 {
            let (sender, done) = mpsc::channel();
            pool.spawn(move || sender.send(()).unwrap());
            done.recv().unwrap();
            // Idle again, not only done.
            while pool.shared.lock().idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(pool.shared.lock().threads.len(), 1);
        pool.close();
    }
}
