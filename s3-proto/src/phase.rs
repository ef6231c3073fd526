//! Telling the owner of a connection where its requests are.

use std::{fmt, rc::Rc};

/// Where a request is. Phases of one connection alternate: hyper serves one request at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A request's head is complete, and the request is being served. A head that is no HTTP is answered without a phase.
    Started,
    /// The answer has been handed to the connection to its last byte, or the connection has ended. What the connection
    /// has buffered of the answer (256 KiB at most) may still have to be written.
    Finished,
}

/// Hears of the phases of a connection.
#[derive(Clone)]
pub(crate) struct Listener(Rc<dyn Fn(Phase)>);

impl Listener {
    pub(crate) fn new(on: impl Fn(Phase) + 'static) -> Self {
        Self(Rc::new(on))
    }

    /// Says that a request is being served for as long as the returned guard lives.
    pub(crate) fn start(&self) -> Serving {
        (self.0)(Phase::Started);
        Serving(self.clone())
    }
}

/// A request that is being served.
pub(crate) struct Serving(Listener);

impl Drop for Serving {
    fn drop(&mut self) {
        (self.0.0)(Phase::Finished);
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}
