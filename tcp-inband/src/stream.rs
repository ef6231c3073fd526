//! A connection as a byte stream.

use std::{
    cell::RefCell,
    cmp, io,
    net::SocketAddrV4,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use hyper::rt::{Read, ReadBufCursor, Write};
use smoltcp::socket::tcp::RecvError;

use crate::{
    endpoint::{Inner, SlotId},
    slot::{Serving, Slot},
};

/// An established connection; from [`Endpoint::accept`](crate::Endpoint::accept).
///
/// Reading yields end of file when the peer has closed its side, or when the endpoint wants the connection to end (see
/// the crate's documentation); writing goes on until [`Write::poll_shutdown`], which closes our side after what was
/// written and returns at once. After that, dropping it leaves the rest to the endpoint; dropping it before resets the
/// connection. If the peer or the endpoint ended it, both directions fail with
/// [`ConnectionReset`](io::ErrorKind::ConnectionReset) or [`BrokenPipe`](io::ErrorKind::BrokenPipe).
///
/// Wakers are called while the endpoint is borrowed: they must not poll or drop anything that uses it (those of
/// [`exec::Executor`](crate::exec::Executor) only set bits).
#[derive(Debug)]
pub struct Stream {
    inner: Rc<RefCell<Inner>>,
    id: SlotId,
    peer: SocketAddrV4,
    shut_down: bool,
}

impl Stream {
    pub(crate) fn new(inner: Rc<RefCell<Inner>>, id: SlotId, peer: SocketAddrV4) -> Self {
        Self { inner, id, peer, shut_down: false }
    }

    /// The peer's address and port.
    #[must_use]
    pub fn peer(&self) -> SocketAddrV4 {
        self.peer
    }

    /// A handle with which the owner says when a request is being served. From now on the endpoint relies on it.
    #[must_use]
    pub fn activity(&self) -> Activity {
        let activity = Activity { inner: Rc::clone(&self.inner), id: self.id };
        activity.set(Serving::Between(None));
        activity
    }

    fn with<R>(&self, f: impl FnOnce(&mut Inner, usize) -> R) -> Option<R> {
        let mut inner = self.inner.borrow_mut();
        let index = inner.resolve(self.id)?;
        Some(f(&mut inner, index))
    }

    fn write(&self, cx: &Context<'_>, bufs: &mut dyn Iterator<Item = &[u8]>) -> Poll<io::Result<usize>> {
        self.with(|inner, index| {
            let now = inner.now();
            let slot = inner.slot_mut(index);
            let mut wanted = 0;
            let mut written = 0;
            for buf in bufs {
                wanted += buf.len();
                let Ok(count) = slot.socket_mut().send_slice(buf) else {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                };
                written += count;
                if count < buf.len() {
                    break;
                }
            }
            if written > 0 {
                slot.wrote(now);
                inner.touch(index);
            } else if wanted > 0 {
                register(&mut slot.writer, cx);
                return Poll::Pending;
            }
            Poll::Ready(Ok(written))
        })
        .unwrap_or_else(|| Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())))
    }
}

fn register(place: &mut Option<std::task::Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

/// Copies received bytes; `Ok(0)` if there are none.
fn receive(slot: &mut Slot, buf: &mut ReadBufCursor<'_>) -> Result<usize, RecvError> {
    let mut total = 0;
    // Twice at most: the buffer is a ring.
    while buf.remaining() > 0 {
        let copied = slot.socket_mut().recv(|bytes| {
            let count = cmp::min(bytes.len(), buf.remaining());
            buf.put_slice(&bytes[..count]);
            (count, count)
        });
        match copied {
            Ok(0) => break,
            Ok(count) => total += count,
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        self.with(|inner, index| {
            if buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let now = inner.now();
            let slot = inner.slot_mut(index);
            match receive(slot, &mut buf) {
                Ok(0) if slot.end_of_file.is_some() => Poll::Ready(Ok(())),
                Ok(0) => {
                    register(&mut slot.reader, cx);
                    Poll::Pending
                }
                Ok(count) => {
                    slot.read(now, count);
                    // There may be a window to announce.
                    inner.touch(index);
                    Poll::Ready(Ok(()))
                }
                Err(RecvError::Finished) => Poll::Ready(Ok(())),
                Err(RecvError::InvalidState) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        })
        .unwrap_or_else(|| Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())))
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, &mut std::iter::once(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, &mut bufs.iter().map(|buf| &**buf))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Ready at once: what was written leaves at the next [`Endpoint::poll`](crate::Endpoint::poll) that has room.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ready at once; the FIN follows what was written.
    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut_down = true;
        self.with(|inner, index| {
            inner.slot_mut(index).socket_mut().close();
            inner.touch(index);
        });
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.with(|inner, index| inner.release(index, self.shut_down));
    }
}

/// What the owner of a [`Stream`] knows about the requests on it; see the crate's documentation for what it is used for.
#[derive(Debug, Clone)]
pub struct Activity {
    inner: Rc<RefCell<Inner>>,
    id: SlotId,
}

impl Activity {
    /// A request's head is complete, and the request is being served.
    pub fn request_started(&self) {
        self.set(Serving::Request);
    }

    /// The answer to it was written completely.
    pub fn request_finished(&self) {
        self.set(Serving::Between(None));
    }

    fn set(&self, serving: Serving) {
        let mut inner = self.inner.borrow_mut();
        if let Some(index) = inner.resolve(self.id) {
            inner.slot_mut(index).serving = serving;
            // Its deadline may have changed.
            inner.touch(index);
        }
    }
}
