//! The seam between who holds the bytes and who wants them.

use std::{fmt, pin::Pin};

use async_trait::async_trait;

use crate::{RcEndpoint, TokenHeader, Window};

/// Most bytes that a caller moves at a time, 256 KiB: an emulated NIC copies them within one turn of its event loop, and a
/// register access of the guest waits for it that long.
pub const CHUNK: usize = 256 * 1024;

/// What is done to the client's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RemoteAccess {
    /// It is read: PutObject and UploadPart. Needs the right of remote reads.
    Read,
    /// It is written: GetObject. Needs the right of remote writes.
    Write,
}

/// Why a client's memory was not reached.
///
/// All but [`Transport`](Self::Transport), [`Unsupported`](Self::Unsupported) and [`Exhausted`](Self::Exhausted) are mistakes of
/// the client's. Names, with their
/// values, are for logs: what the client is told is in the wire document, section 4, rules 10 to 12.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// No memory is registered under the key.
    #[error("unknown rkey {0:#x}")]
    UnknownKey(u32),
    /// The key is reserved: 0 names raw bus addresses, for the driver's own use (rule 12).
    #[error("rkey 0 is reserved")]
    ReservedKey,
    /// The window begins outside of the registration, or a transfer leaves the window.
    #[error("{} bytes at {:#x} are out of bounds", .0.length, .0.address)]
    Bounds(Window),
    /// The registration does not allow it.
    #[error("the registration does not allow a remote {}", match .0 { RemoteAccess::Read => "read", RemoteAccess::Write => "write" })]
    Access(RemoteAccess),
    /// The key was valid once, or when the window was opened, and is no more.
    #[error("rkey {0:#x} is no longer valid")]
    Stale(u32),
    /// The transfer failed on its way: memory behind the registration is gone, a queue pair broke.
    #[error("transfer failed: {0}")]
    Transport(String),
    /// Tokens of this kind cannot be served here, whatever they name.
    #[error("{0} are not supported")]
    Unsupported(String),
    /// There is no buffer or queue pair left, now: the client is to come again.
    #[error("no {0} is free")]
    Exhausted(&'static str),
    /// More bytes than one transfer may have here.
    #[error("{size} bytes are more than the {most} of one transfer")]
    TooLarge {
        /// Bytes that were asked for.
        size: u64,
        /// Bytes of the largest transfer.
        most: u64,
    },
}

impl RemoteError {
    /// The kind of failure in one word, for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownKey(_) => "unknown_key",
            Self::ReservedKey => "reserved_key",
            Self::Bounds(_) => "bounds",
            Self::Access(_) => "access",
            Self::Stale(_) => "stale",
            Self::Transport(_) => "transport",
            Self::Unsupported(_) => "unsupported",
            Self::Exhausted(_) => "exhausted",
            Self::TooLarge { .. } => "too_large",
        }
    }
}

/// Work that goes on by itself.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is to be done for a client that connects only once it has read the answer.
pub struct AnswerFirst {
    /// For the answer.
    pub endpoint: RcEndpoint,
    /// For the payload. Writing to it waits until the client has connected.
    pub window: Box<dyn RemoteWindow>,
    /// Runs what moves the payload beside everything else.
    pub spawn: Box<dyn FnOnce(Task) + Send + Sync>,
}

impl fmt::Debug for AnswerFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerFirst").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Memory of clients, named by their tokens.
#[async_trait]
pub trait RemoteMemory: Send + Sync {
    /// Looks up what a token names, and moves nothing. Errors, in this order:
    ///
    /// - [`RemoteError::Unsupported`], by the token's family or transport;
    /// - [`RemoteError::ReservedKey`], [`RemoteError::UnknownKey`], [`RemoteError::Stale`], by its key;
    /// - [`RemoteError::Access`], if the registration lacks the right;
    /// - [`RemoteError::Bounds`], if [`TokenHeader::window`] is not empty and begins outside of the registration.
    ///
    /// [`RemoteError::Transport`] comes at any point, where a connection is to be made.
    async fn open(&self, header: &TokenHeader, access: RemoteAccess) -> Result<Box<dyn RemoteWindow>, RemoteError>;

    /// The handshake of hipObject's first protocol for GETs, where it is switched on (wire document, section 5): the client is
    /// answered first, and connects to the endpoint that the answer has; then its memory is written. `None` where it is off, where
    /// the token is of another family, and where the client is connected already: then the memory is to be opened. Errors: those
    /// of [`RemoteMemory::open`], and [`RemoteError::Exhausted`].
    async fn answer_first(&self, header: &TokenHeader) -> Result<Option<AnswerFirst>, RemoteError> {
        let _ = header;
        Ok(None)
    }
}

/// A range of a client's memory that is open for reading or for writing.
///
/// A transfer does all or fails. One that failed may have moved some bytes, and which they were is unknown; the window is then
/// of no more use and fails with the same error. Callers move at most [`CHUNK`] bytes at a time and give their event loop a
/// turn after each [`RemoteWindow::stride`]: an implementation may copy without giving the thread back.
///
/// When a transfer has completed and was flushed, its bytes are where they belong: a client that hears of it later finds them
/// there. When its future is dropped before, neither the caller's buffer nor the client's memory is touched any more once the
/// drop returns.
#[async_trait]
pub trait RemoteWindow: Send + Sync {
    /// Bytes: those of [`TokenHeader::window`], cut off where the registration ends ([`Window::clip`]; wire document, section
    /// 4, rule 1). Where the registration's extent is not known, as behind real hardware, nothing is cut off and a transfer
    /// beyond it fails.
    fn len(&self) -> u64;

    /// Most bytes that are moved before the caller gives the thread back, a multiple of [`CHUNK`]: where other threads do the other
    /// work, changing often between them costs more than it gives.
    fn stride(&self) -> usize {
        CHUNK
    }

    /// Whether there is not one byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads all of `into` from `offset` bytes behind the window's start on.
    ///
    /// Errors: [`RemoteError::Bounds`] if that leaves the window, and nothing is moved; [`RemoteError::Access`] if the window was
    /// opened for writing; [`RemoteError::Stale`] if the registration was given up or changed since;
    /// [`RemoteError::Transport`]. After an error the content of `into` is arbitrary.
    async fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), RemoteError>;

    /// Writes all of `from` to `offset` bytes behind the window's start and on. Errors as of [`RemoteWindow::read`], with the
    /// accesses exchanged. After an error these `from.len()` bytes of the window are arbitrary, and no other byte is touched.
    ///
    /// Where transfers take their time, as over a network, the bytes may still be under way when this returns; a failure then comes
    /// with a later call.
    async fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), RemoteError>;

    /// Waits until all that was written is where it belongs. Errors: as of [`RemoteWindow::write`].
    async fn flush(&mut self) -> Result<(), RemoteError> {
        Ok(())
    }

    /// The server's end of the connection that the window is reached over, for the reply (section 4, rule 3). `None` where there
    /// is no connection.
    fn endpoint(&self) -> Option<RcEndpoint> {
        None
    }
}
