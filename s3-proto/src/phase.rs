//! Telling the owner of a connection where its requests are.

use std::{fmt, sync::Arc};

/// Where a request is. Phases of one connection alternate: hyper serves one request at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A request's head is complete, and the request is being served. A head that is no HTTP is answered without a phase.
    Started,
    /// The answer has been handed to the connection to its last byte, or the connection has ended. What the connection
    /// has buffered of the answer (256 KiB at most) may still have to be written.
    Finished,
}

/// Hears of the phases of a connection. Its type is kept, so that a connection can move between threads where what listens can.
pub(crate) struct Listener<F>(Arc<F>);

impl<F: Fn(Phase)> Listener<F> {
    pub(crate) fn new(on: F) -> Self {
        Self(Arc::new(on))
    }

    /// Says that a request is being served for as long as the returned guard lives.
    pub(crate) fn start(&self) -> Serving<F> {
        (self.0)(Phase::Started);
        Serving(Arc::clone(&self.0))
    }
}

/// A request that is being served.
pub(crate) struct Serving<F: Fn(Phase)>(Arc<F>);

impl<F: Fn(Phase)> Drop for Serving<F> {
    fn drop(&mut self) {
        (self.0)(Phase::Finished);
    }
}

impl<F: Fn(Phase)> fmt::Debug for Serving<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}
