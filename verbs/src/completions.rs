//! Who waits for which work request.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use rdma_mummy_sys::ibv_wc_status::IBV_WC_SUCCESS;
use tokio::sync::oneshot;

use crate::counters::Counters;

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    /// `IBV_WC_…`
    pub(crate) status: u32,
    /// Bytes that came, of a receive.
    pub(crate) bytes: u32,
    /// The immediate that came with them, as a number.
    pub(crate) immediate: Option<u32>,
}

/// What a work request does, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Writes so many bytes to a client's memory.
    Write(u64),
    /// Reads so many from there.
    Read(u64),
    /// Waits for what a client writes.
    Receive,
}

/// The work requests of a device whose completions are waited for.
#[derive(Debug)]
pub(crate) struct Completions {
    waiting: Mutex<HashMap<u64, (Kind, oneshot::Sender<Completion>)>>,
    next: AtomicU64,
    counters: Arc<Counters>,
}

/// One of them. Dropped, it is waited for no more.
#[derive(Debug)]
pub(crate) struct Pending {
    id: u64,
    completion: oneshot::Receiver<Completion>,
    of: Arc<Completions>,
}

impl Completions {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self { waiting: Mutex::default(), next: AtomicU64::new(1), counters }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, (Kind, oneshot::Sender<Completion>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a work request. Its id, which is never used twice, goes into the request.
    pub(crate) fn expect(self: &Arc<Self>, kind: Kind) -> (u64, Pending) {
        let id = self.next.fetch_add(1, Relaxed);
        let (sender, completion) = oneshot::channel();
        self.waiting().insert(id, (kind, sender));
        (id, Pending { id, completion, of: Arc::clone(self) })
    }

    /// Hands a completion to who waits for it, and counts it.
    pub(crate) fn settle(&self, id: u64, completion: Completion) {
        self.counters.completed(completion.status);
        let Some((kind, sender)) = self.waiting().remove(&id) else { return };
        if completion.status == IBV_WC_SUCCESS {
            match kind {
                Kind::Write(bytes) => self.counters.written.fetch_add(bytes, Relaxed),
                Kind::Read(bytes) => self.counters.read.fetch_add(bytes, Relaxed),
                Kind::Receive => self.counters.read.fetch_add(completion.bytes.into(), Relaxed),
            };
        }
        // Who waited may just have left.
        let _ = sender.send(completion);
    }

    /// Whether one is waited for.
    pub(crate) fn any(&self) -> bool {
        !self.waiting().is_empty()
    }
}

impl Pending {
    /// Waits. `None` if the device is no more.
    pub(crate) async fn done(&mut self) -> Option<Completion> {
        (&mut self.completion).await.ok()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.of.waiting().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Completion = Completion { status: 0, bytes: 0, immediate: None };

    #[tokio::test]
    async fn each_gets_its_own_and_what_is_unknown_is_only_counted() {
        let counters = Arc::new(Counters::default());
        let completions = Arc::new(Completions::new(Arc::clone(&counters)));
        let (a, mut first) = completions.expect(Kind::Write(100));
        let (b, mut second) = completions.expect(Kind::Read(20));
        let (c, mut third) = completions.expect(Kind::Receive);
        assert!(a != b && b != c && completions.any());
        let arrival = Completion { status: 0, bytes: 3, immediate: Some(7) };
        completions.settle(c, arrival);
        completions.settle(b, Completion { status: 12, ..DONE });
        completions.settle(a, DONE);
        completions.settle(a, DONE);
        completions.settle(u64::MAX, DONE);
        assert_eq!(first.done().await, Some(DONE));
        assert_eq!(second.done().await, Some(Completion { status: 12, ..DONE }));
        assert_eq!(third.done().await, Some(arrival));
        assert!(!completions.any());
        // What failed moved nothing; a repeated completion counts no bytes.
        assert_eq!((counters.written.load(Relaxed), counters.read.load(Relaxed)), (100, 3));
    }

    #[tokio::test]
    async fn who_leaves_is_forgotten() {
        let completions = Arc::new(Completions::new(Arc::default()));
        let (id, pending) = completions.expect(Kind::Write(1));
        drop(pending);
        assert!(!completions.any());
        completions.settle(id, DONE);
    }
}
