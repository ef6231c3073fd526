//! The seam of servers that reach clients over reliable connections of their own: real NICs.

use async_trait::async_trait;

use crate::{RemoteAccess, RemoteError, RemoteMemory, RemoteWindow, Token};

/// What one side of a reliable connection tells the other, so that both can be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RcEndpoint {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Address of the port, as it is in tokens.
    pub gid: [u8; 16],
    /// Local identifier of the port; 0 for RoCE.
    pub lid: u16,
    /// First packet sequence number that this side sends, 24 bits. Never 0: clients refuse that.
    pub psn: u32,
    /// Registered memory of this side that the other may write, if there is any.
    pub staging: Option<RcStaging>,
}

/// A server's memory that one client may write during one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RcStaging {
    /// Virtual address of the first byte, in the server.
    pub address: u64,
    /// Key that the client writes with.
    pub rkey: u32,
    /// Bytes.
    pub length: u64,
}

/// Where in the client's memory a GET's bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RcTarget {
    /// Virtual address of the first byte, in the client.
    pub address: u64,
    /// Key that the server writes with.
    pub rkey: u32,
}

/// A server's RDMA device: memory of clients, reached over queue pairs that are connected for it.
#[async_trait]
pub trait RcFabric: RemoteMemory {
    /// Makes a queue pair and a registered buffer of `size` bytes for one transfer, and connects the queue pair to the client's
    /// (`hipobj-rc-v2`, wire document, section 5). `psn` is the first that the client sends. For [`RemoteAccess::Write`], a GET, the
    /// server will write to the client's memory, which only [`RcSession::send`] names: the token's key and window may be zeros.
    /// For [`RemoteAccess::Read`], a PUT, the client will write to the buffer, and what it ends with is waited for from now on.
    ///
    /// Errors: [`RemoteError::Unsupported`], by the token's transport; [`RemoteError::Exhausted`] if there is no buffer, now;
    /// [`RemoteError::TooLarge`] if there will never be one; [`RemoteError::Transport`] if the queue pair cannot be made or connected.
    async fn prepare(
        &self,
        peer: &Token,
        psn: u32,
        size: u64,
        access: RemoteAccess,
    ) -> Result<Box<dyn RcSession>, RemoteError>;
}

/// One transfer over a queue pair of its own. Dropped, it gives back the queue pair and the buffer; the client's writes then come
/// to nothing.
///
/// [`RemoteWindow::len`] is the size that was prepared. Of a GET, [`RemoteWindow::write`] fills the buffer from its beginning on, and
/// [`RcSession::send`] moves it. Of a PUT, [`RcSession::received`] waits for the client, and [`RemoteWindow::read`] reads the buffer.
#[async_trait]
pub trait RcSession: RemoteWindow {
    /// This side of the connection. For a PUT, with the buffer.
    fn local(&self) -> RcEndpoint;

    /// Writes the first `length` bytes of the buffer, which may be none, to the client's memory in one RDMA WRITE with
    /// `immediate`, and waits for its completion. The immediate is a number here; in a work request it is in network byte order.
    /// Errors: [`RemoteError::Transport`]; the client may have the bytes or not.
    async fn send(&mut self, to: RcTarget, length: u64, immediate: u32) -> Result<(), RemoteError>;

    /// Waits for the client's RDMA WRITE with immediate. Returns the bytes that the completion counts, and the immediate. Errors:
    /// [`RemoteError::Transport`], also when it does not come in the time that the device's options give.
    async fn received(&mut self) -> Result<(u64, u32), RemoteError>;
}
