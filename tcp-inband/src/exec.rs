//! The executor of the device thread: at most [`MAX_TASKS`] boxed futures and one word of "ready" bits.
//!
//! A waker sets its task's bit and nothing else, so it may be called from anywhere: from within the TCP stack, which wakes
//! in the middle of [`Endpoint::ingress`](crate::Endpoint::ingress), or from another thread, which thereby also calls the
//! notify function if no bit was set before. Nothing is polled but by [`Executor::run_ready`].

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Wake, Waker},
    thread::{self, ThreadId},
};

/// Tasks that an executor can hold: bits of its word.
pub const MAX_TASKS: usize = 64;

/// A task: it need not be `Send`.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Shared {
    ready: AtomicU64,
    owner: ThreadId,
    notify: Arc<dyn Fn() + Send + Sync>,
}

struct TaskWaker {
    shared: Arc<Shared>,
    bit: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: what the other thread wrote before waking is seen by the task. With a bit set already the owner has
        // not yet looked, and looks before it sleeps.
        let before = self.shared.ready.fetch_or(self.bit, Ordering::AcqRel);
        if before == 0 && thread::current().id() != self.shared.owner {
            (self.shared.notify)();
        }
    }
}

/// Runs futures on the thread that created it, when told to.
pub struct Executor {
    tasks: Vec<Option<Task>>,
    wakers: Vec<Waker>,
    occupied: u64,
    shared: Arc<Shared>,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("tasks", &self.len()).finish_non_exhaustive()
    }
}

impl Executor {
    /// An executor for this thread. `notify` is called from other threads when there is something to run; it must make
    /// this thread call [`Executor::run_ready`] soon (it writes an eventfd, say).
    #[must_use]
    pub fn new(notify: Arc<dyn Fn() + Send + Sync>) -> Self {
        let shared = Arc::new(Shared { ready: AtomicU64::new(0), owner: thread::current().id(), notify });
        Self { tasks: Vec::new(), wakers: Vec::new(), occupied: 0, shared }
    }

    /// Takes a future; it is polled at the next [`Executor::run_ready`].
    ///
    /// # Errors
    ///
    /// The future itself if there is no room ([`Executor::has_room`]).
    pub fn spawn<F: Future<Output = ()> + 'static>(&mut self, future: F) -> Result<(), F> {
        if !self.has_room() {
            return Err(future);
        }
        let index = usize::try_from((!self.occupied).trailing_zeros()).unwrap_or(0);
        let bit = 1 << index;
        if index == self.tasks.len() {
            self.wakers.push(Arc::new(TaskWaker { shared: Arc::clone(&self.shared), bit }).into());
            self.tasks.push(None);
        }
        self.tasks[index] = Some(Box::pin(future));
        self.occupied |= bit;
        self.shared.ready.fetch_or(bit, Ordering::AcqRel);
        Ok(())
    }

    /// Whether [`Executor::spawn`] would take a future.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.occupied != u64::MAX
    }

    /// Polls each task that was woken before the call, once; returns how many that were. A task that wakes itself runs
    /// in the next call.
    pub fn run_ready(&mut self) -> usize {
        let mut bits = self.shared.ready.swap(0, Ordering::AcqRel) & self.occupied;
        let mut polled = 0;
        while bits != 0 {
            let index = usize::try_from(bits.trailing_zeros()).unwrap_or(0);
            bits &= bits - 1;
            let (Some(slot), Some(waker)) = (self.tasks.get_mut(index), self.wakers.get(index)) else { continue };
            let Some(task) = slot else { continue };
            polled += 1;
            if task.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                *slot = None;
                self.occupied &= !(1 << index);
            }
        }
        polled
    }

    /// Whether nothing is to be run. Ask before sleeping: a waker of this thread does not notify.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.ready.load(Ordering::Acquire) == 0
    }

    /// Tasks that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.iter().flatten().count()
    }

    /// Whether there is no task.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Drops all tasks.
    pub fn clear(&mut self) {
        for task in &mut self.tasks {
            *task = None;
        }
        self.occupied = 0;
        self.shared.ready.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::poll_fn, rc::Rc, sync::atomic::AtomicUsize, task::Poll};

    use super::*;

    fn counting() -> (Arc<AtomicUsize>, Executor) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        (
            calls,
            Executor::new(Arc::new(move || {
                counter.fetch_add(1, Ordering::SeqCst);
            })),
        )
    }

    /// A task that hands out its waker and counts its polls until told to end.
    fn parked(log: &Rc<RefCell<Vec<Waker>>>, end: &Rc<RefCell<bool>>) -> impl Future<Output = ()> + 'static {
        let (log, end) = (Rc::clone(log), Rc::clone(end));
        poll_fn(move |cx| {
            log.borrow_mut().push(cx.waker().clone());
            if *end.borrow() { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    #[test]
    fn sixty_four_tasks_and_no_more() {
        let (_, mut executor) = counting();
        let (log, end) = (Rc::default(), Rc::new(RefCell::new(false)));
        for _ in 0..MAX_TASKS {
            assert!(executor.spawn(parked(&log, &end)).is_ok());
        }
        assert!(!executor.has_room());
        assert!(executor.spawn(parked(&log, &end)).is_err());
        assert_eq!(executor.run_ready(), 64);
        assert_eq!(executor.run_ready(), 0);
        *end.borrow_mut() = true;
        log.borrow()[17].wake_by_ref();
        log.borrow()[63].wake_by_ref();
        assert!(!executor.is_idle());
        assert_eq!(executor.run_ready(), 2);
        assert_eq!(executor.len(), 62);
        assert!(executor.has_room());
        executor.clear();
        assert!(executor.is_empty() && executor.is_idle());
    }

    #[test]
    fn a_task_that_wakes_itself_runs_in_the_next_turn() {
        let (_, mut executor) = counting();
        let mut left = 3;
        let task = poll_fn(move |cx| {
            cx.waker().wake_by_ref();
            left -= 1;
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        assert!(executor.spawn(task).is_ok());
        assert_eq!([executor.run_ready(), executor.run_ready(), executor.run_ready()], [1, 1, 1]);
        assert!(executor.is_empty());
        // The bit that the ended task left behind wakes nobody.
        assert_eq!(executor.run_ready(), 0);
    }

    #[test]
    fn only_other_threads_notify_and_only_the_first() {
        let (calls, mut executor) = counting();
        let (log, end) = (Rc::default(), Rc::new(RefCell::new(false)));
        for _ in 0..2 {
            assert!(executor.spawn(parked(&log, &end)).is_ok());
        }
        executor.run_ready();
        let wakers: Vec<Waker> = log.borrow().clone();
        wakers[0].wake_by_ref();
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        executor.run_ready();
        thread::spawn(move || wakers.iter().for_each(Waker::wake_by_ref)).join().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(executor.run_ready(), 2);
    }

    #[test]
    fn a_late_waker_of_an_ended_task_is_harmless() {
        let (_, mut executor) = counting();
        let (log, end) = (Rc::default(), Rc::new(RefCell::new(true)));
        assert!(executor.spawn(parked(&log, &end)).is_ok());
        executor.run_ready();
        let late = log.borrow()[0].clone();
        *end.borrow_mut() = false;
        assert!(executor.spawn(parked(&log, &end)).is_ok());
        executor.run_ready();
        late.wake();
        // The place has a new task: it is polled once too often, as wakers allow.
        assert_eq!(executor.run_ready(), 1);
        assert_eq!(executor.len(), 1);
    }
}
