//! Time, for what is to be slower than it is.

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use async_trait::async_trait;

use super::faults::Faults;

/// How late a chunk may be without the rate suffering: loops come round when they come round.
const SLACK: Duration = Duration::from_millis(2);

/// Time as the loop knows it that runs the service's futures. [`Timers`] is one for a loop of one's own.
#[async_trait]
pub trait Pacer: Send + Sync {
    /// Time since any fixed origin.
    fn now(&self) -> Duration;

    /// Completes when [`Pacer::now`] has reached `deadline`.
    async fn until(&self, deadline: Duration);
}

/// A slower and less reliable fabric than there is: for tests, of clients above all.
#[derive(Clone)]
pub struct Impairment {
    /// What waits.
    pub pacer: Arc<dyn Pacer>,
    /// Most bytes that all transfers together move in a second.
    pub rate: Option<NonZeroU64>,
    /// What goes wrong.
    pub faults: Faults,
    /// Takes the link down for a time; called for [`Action::LinkDown`](super::Action::LinkDown), which does nothing without.
    pub link_down: Option<Arc<dyn Fn(Duration) + Send + Sync>>,
}

impl Impairment {
    /// One that changes nothing yet.
    pub fn new(pacer: Arc<dyn Pacer>) -> Self {
        Self { pacer, rate: None, faults: Faults::default(), link_down: None }
    }
}

impl fmt::Debug for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Impairment").field("rate", &self.rate).field("faults", &self.faults).finish_non_exhaustive()
    }
}

/// A line that all transfers share, of a limited rate.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// When it has sent what was given to it.
    free: Mutex<Duration>,
}

impl Line {
    /// Completes when the line has sent `bytes` more.
    pub(super) async fn send(&self, bytes: usize, rate: NonZeroU64, pacer: &dyn Pacer) {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(rate.get());
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let sent = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            *free = pacer.now().saturating_sub(SLACK).max(*free).saturating_add(takes);
            *free
        };
        pacer.until(sent).await;
    }
}

/// Deadlines of futures, for an event loop: it sleeps no longer than to [`Timers::next`] and calls [`Timers::advance`]
/// when it comes round. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Timers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    now: Duration,
    /// By deadline and a number of their own.
    waiting: BTreeMap<(Duration, u64), Waker>,
    next_id: u64,
}

impl Timers {
    /// None, at time zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that it is `now`, and wakes whatever has waited for it. Wakers must not call back.
    pub fn advance(&self, now: Duration) {
        let mut state = self.lock();
        state.now = state.now.max(now);
        let after = state.now.saturating_add(Duration::from_nanos(1));
        let later = state.waiting.split_off(&(after, 0));
        let due = std::mem::replace(&mut state.waiting, later);
        drop(state);
        due.into_values().for_each(Waker::wake);
    }

    /// The earliest deadline, if anything waits.
    pub fn next(&self) -> Option<Duration> {
        self.lock().waiting.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Pacer for Timers {
    fn now(&self) -> Duration {
        self.lock().now
    }

    async fn until(&self, deadline: Duration) {
        let waiting = Waiting { timers: self, key: { (deadline, self.lock().new_id()) } };
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.now >= deadline {
                return Poll::Ready(());
            }
            state.waiting.insert(waiting.key, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl State {
    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// Takes the deadline back when its future is done or dropped.
struct Waiting<'a> {
    timers: &'a Timers,
    key: (Duration, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.timers.lock().waiting.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Context};

    use futures_util::{FutureExt, future::join_all};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn timers_wake_in_time_and_forget_what_is_dropped() {
        let timers = Timers::new();
        let mut cx = Context::from_waker(Waker::noop());
        timers.advance(MS);
        assert!(timers.until(MS).now_or_never().is_some(), "due already");
        let mut late = pin!(timers.until(5 * MS));
        let mut soon = Box::pin(timers.until(2 * MS));
        let mut soon_too = Box::pin(timers.until(2 * MS));
        assert_eq!(timers.next(), None, "nothing is polled");
        assert!(late.as_mut().poll_unpin(&mut cx).is_pending());
        assert!(soon.as_mut().poll_unpin(&mut cx).is_pending());
        assert!(soon_too.as_mut().poll_unpin(&mut cx).is_pending());
        assert_eq!(timers.next(), Some(2 * MS));
        drop(soon_too);
        timers.advance(MS + MS / 2);
        assert!(soon.as_mut().poll_unpin(&mut cx).is_pending());
        timers.advance(2 * MS);
        assert!(soon.as_mut().poll_unpin(&mut cx).is_ready());
        drop(soon);
        assert_eq!(timers.next(), Some(5 * MS));
        // Time does not run backwards.
        timers.advance(MS);
        assert_eq!(timers.now(), 2 * MS);
        timers.advance(100 * MS);
        assert!(late.as_mut().poll_unpin(&mut cx).is_ready());
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_line_keeps_its_rate_over_all_who_share_it() {
        let (timers, line) = (Timers::new(), Line::default());
        timers.advance(Duration::from_secs(1));
        let rate = NonZeroU64::new(1_000_000).unwrap();
        let mut all = pin!(join_all((0..3).map(|_| async {
            for _ in 0..10 {
                line.send(10_000, rate, &timers).await;
            }
        })));
        let mut cx = Context::from_waker(Waker::noop());
        while all.as_mut().poll_unpin(&mut cx).is_pending() {
            timers.advance(timers.next().expect("somebody waits"));
        }
        // 300,000 bytes at 1 MB/s, less the slack.
        assert_eq!(timers.now(), Duration::from_secs(1) + 300 * MS - SLACK);
        // A loop that is late by less than the slack loses nothing.
        let mut more = pin!(async {
            for _ in 0..100 {
                line.send(10_000, rate, &timers).await;
            }
        });
        let start = timers.now();
        while more.as_mut().poll_unpin(&mut cx).is_pending() {
            timers.advance(timers.next().expect("somebody waits") + MS);
        }
        assert!(timers.now() - start <= 1001 * MS, "{:?}", timers.now() - start);
    }
}
