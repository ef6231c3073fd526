//! Giving the thread back in the middle of long work.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

/// Counts how often the executor has polled a connection.
///
/// hyper polls a request's future up to 16 times for one poll of its connection (`proto/h1/dispatch.rs`, `poll_loop`), so a
/// future that is pending once does not give the thread back. [`Turn::pass`] is pending until the *executor* has come
/// round again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turn(Arc<AtomicU64>);

impl Turn {
    /// Says that the executor polls the connection.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Completes in a later turn than the one it was first polled in. It wakes itself.
    pub(crate) fn pass(&self) -> Pass<'_> {
        Pass { turn: self, since: None }
    }
}

/// See [`Turn::pass`].
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    turn: &'a Turn,
    since: Option<u64>,
}

impl Future for Pass<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.turn.0.load(Relaxed);
        if *self.since.get_or_insert(now) != now {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Waker};

    use super::*;

    #[test]
    fn passes_only_in_a_later_turn() {
        let turn = Turn::default();
        turn.begin();
        let mut pass = pin!(turn.pass());
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..20 {
            assert!(pass.as_mut().poll(&mut cx).is_pending());
        }
        turn.begin();
        assert!(pass.as_mut().poll(&mut cx).is_ready());
    }
}
