//! One connected socket: messages in and out, descriptors, and calls that wait for a reply. Both sides use it.
//!
//! # Incoming
//! One `recvmsg` takes as much as the buffer holds, usually many messages. A Unix stream socket returns the descriptors of at most
//! one `sendmsg` per `recvmsg`, and stops there; since both QEMU and we send one message per `sendmsg`, descriptors belong to the
//! *last message that starts* in what one `recvmsg` returned. Descriptors that come in the middle of a message belong to nobody and
//! are closed.
//!
//! # Outgoing
//! A reply never waits for a peer that does not read: what the socket does not take is kept, message by message (a message must
//! start in a `sendmsg` of its own: QEMU takes a header in two pieces for an error), and a peer with more than [`MAX_PENDING`] bytes
//! unread is given up.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use zerocopy::FromBytes;

use super::proto::{HEADER_LEN, Header, MAX_MESSAGE, MAX_MSG_FDS};

/// Receive buffer to begin with: more than 1,000 posted doorbell writes of 40 bytes.
const RX_BUFFER: usize = 64 << 10;
/// Most bytes of commands that are kept while a reply is waited for.
const MAX_DEFERRED: usize = 8 << 20;
/// Longest receive buffer.
const MAX_BUFFER: usize = MAX_DEFERRED + MAX_MESSAGE;
/// Most descriptors of commands that are kept.
const MAX_HELD_FDS: usize = 256;
/// Most bytes that the peer may leave unread: some replies of the longest kind. Any client that waits for its replies stays below.
const MAX_PENDING: usize = 8 << 20;

/// Most replies that are kept without a call that waits for them.
const MAX_UNEXPECTED: usize = 4096;

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    /// The peer closed it, between two messages.
    #[error("the client closed the connection")]
    Closed,
    /// The peer closed it inside a message.
    #[error("the client closed the connection in the middle of a message")]
    ClosedInMessage,
    /// The size in a header is below 16 or above the longest message: the stream cannot be followed any further.
    #[error("message of {size} bytes ({command}): not within {HEADER_LEN}..={MAX_MESSAGE}")]
    BadSize {
        /// What the header says.
        size: u32,
        /// Its command.
        command: super::proto::Command,
    },
    /// The first message was not a VERSION with a version and capabilities that work.
    #[error("no agreement on a version: {0}")]
    Version(&'static str),
    /// The peer leaves its replies unread.
    #[error("the client left {MAX_PENDING} bytes of replies unread")]
    NotReading,
    /// The peer sends commands without end instead of the reply that is waited for.
    #[error("the client sent {MAX_DEFERRED} bytes of commands while a DMA reply was due")]
    NotReplying,
    /// The socket failed.
    #[error("socket: {0}")]
    Io(Errno),
}

impl From<ConnError> for io::Error {
    fn from(e: ConnError) -> Self {
        match e {
            ConnError::Closed | ConnError::ClosedInMessage => Self::new(io::ErrorKind::ConnectionAborted, e),
            ConnError::Io(errno) => errno.into(),
            other => Self::other(other),
        }
    }
}

/// Where a message lies in a buffer, and what came with it.
pub(super) struct Frame {
    pub header: Header,
    /// Position of the body in the buffer.
    pub body: Range<usize>,
    pub fds: Vec<OwnedFd>,
    /// More descriptors were sent than a message may have, or than this process can open.
    pub fds_lost: bool,
}

/// Complete messages, taken out of the channel so that they can be handled without its lock.
#[derive(Default)]
pub(super) struct Batch {
    buf: Vec<u8>,
    frames: VecDeque<Frame>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
    pub fn next(&mut self) -> Option<(Frame, &[u8])> {
        let frame = self.frames.pop_front()?;
        let body = self.buf.get(frame.body.clone()).unwrap_or_default();
        Some((frame, body))
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("frames", &self.frames.len()).finish()
    }
}

/// A message on its own.
#[derive(Debug)]
pub(super) struct Message {
    pub header: Header,
    pub body: Vec<u8>,
}

/// Everything received and not yet taken.
pub(super) struct Inbox {
    buf: Vec<u8>,
    /// Bytes of `buf` that are filled.
    end: usize,
    /// Where the first message that is not complete starts.
    scan: usize,
    frames: VecDeque<Frame>,
    /// Descriptors of the message that starts at `scan`.
    early_fds: Vec<OwnedFd>,
    early_fds_lost: bool,
    held_fds: usize,
    /// Ids of calls that wait for a reply.
    expected: Vec<u16>,
    /// Ids of calls that stopped waiting.
    late: Vec<u16>,
    replies: Vec<Message>,
    /// Keep replies that nobody waits for.
    keep_all: bool,
    /// A thread polls the socket and will receive.
    reading: bool,
    over: Option<ConnError>,
    /// The header that `over` complains about, when it is a [`ConnError::BadSize`].
    bad: Option<Header>,
}

impl Inbox {
    fn new(keep_all: bool) -> Self {
        Self {
            buf: vec![0; RX_BUFFER],
            end: 0,
            scan: 0,
            frames: VecDeque::new(),
            early_fds: Vec::new(),
            early_fds_lost: false,
            held_fds: 0,
            expected: Vec::new(),
            late: Vec::new(),
            replies: Vec::new(),
            keep_all,
            reading: false,
            over: None,
            bad: None,
        }
    }

    pub fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Why nothing more will come, once all that came has been taken.
    pub fn over(&self) -> Option<ConnError> {
        if self.has_frames() { None } else { self.over }
    }

    pub fn bad_header(&self) -> Option<Header> {
        self.bad
    }

    /// Whether a call that stopped waiting is still unanswered.
    fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Moves all complete messages to `batch`, which is empty; the beginning of an incomplete one stays.
    pub fn take_batch(&mut self, batch: &mut Batch) {
        if self.frames.is_empty() {
            return;
        }
        std::mem::swap(&mut self.frames, &mut batch.frames);
        std::mem::swap(&mut self.buf, &mut batch.buf);
        self.held_fds = self.early_fds.len();
        let tail = batch.buf.get(self.scan..self.end).unwrap_or_default();
        if self.buf.len() < tail.len().max(RX_BUFFER) {
            self.buf.resize(tail.len().max(RX_BUFFER), 0);
        }
        if let Some(start) = self.buf.get_mut(..tail.len()) {
            start.copy_from_slice(tail);
        }
        self.end = tail.len();
        self.scan = 0;
    }

    /// The first complete command, on its own.
    fn take_command(&mut self) -> Option<Message> {
        let frame = self.frames.pop_front()?;
        self.held_fds = self.held_fds.saturating_sub(frame.fds.len());
        let body = self.buf.get(frame.body.clone()).unwrap_or_default().to_vec();
        Some(Message { header: frame.header, body })
    }

    fn take_reply(&mut self, id: u16) -> Option<Message> {
        let at = self.replies.iter().position(|r| r.header.id == id)?;
        Some(self.replies.remove(at))
    }

    /// Makes room for more bytes. `false`: there is too much already.
    fn make_room(&mut self) -> bool {
        // Drop what was taken (by `take_command`) or is a reply: everything before the first message kept.
        let keep_from = self.frames.front().map_or(self.scan, |f| f.body.start - HEADER_LEN);
        let fits = |inbox: &Self| inbox.end < inbox.buf.len() && inbox.wanted() <= inbox.buf.len();
        if keep_from > 0 && (keep_from == self.end || !fits(self)) {
            self.buf.copy_within(keep_from..self.end, 0);
            self.end -= keep_from;
            self.scan -= keep_from;
            for frame in &mut self.frames {
                frame.body = frame.body.start - keep_from..frame.body.end - keep_from;
            }
        }
        if fits(self) {
            return true;
        }
        let len = self.wanted().max(self.buf.len() * 2);
        if self.wanted() > MAX_BUFFER || self.buf.len() >= MAX_BUFFER {
            return false;
        }
        self.buf.resize(len.min(MAX_BUFFER), 0);
        true
    }

    /// Where the message will end whose beginning is there.
    fn wanted(&self) -> usize {
        let incomplete = self.buf.get(self.scan..self.end).and_then(|b| Header::read_from_prefix(b).ok());
        incomplete.map_or(0, |(header, _)| self.scan.saturating_add(to_usize(header.size)))
    }

    /// One `recvmsg`, and the cutting into messages. Never waits.
    fn receive(&mut self, sock: BorrowedFd<'_>) {
        if self.over.is_some() {
            return;
        }
        if !self.make_room() {
            self.over = Some(ConnError::NotReplying);
            return;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MSG_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = self.buf.get_mut(self.end..).unwrap_or_default();
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(sock, &mut [IoSliceMut::new(room)], &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(Errno::CONNRESET) => return self.over = Some(self.closed()),
            Err(errno) => return self.over = Some(ConnError::Io(errno)),
        };
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return self.over = Some(self.closed());
        }
        let from = self.end;
        self.end += received.bytes;
        self.cut(from, fds, received.flags.contains(ReturnFlags::CTRUNC));
    }

    fn closed(&self) -> ConnError {
        if self.end == self.scan { ConnError::Closed } else { ConnError::ClosedInMessage }
    }

    /// Cuts what came at `from` into messages.
    fn cut(&mut self, from: usize, fds: Vec<OwnedFd>, fds_lost: bool) {
        let mut fds = (!fds.is_empty() || fds_lost).then_some((fds, fds_lost));
        let owner = fds.as_ref().and_then(|_| self.last_start(from));
        loop {
            if owner == Some(self.scan)
                && let Some((fds, lost)) = fds.take()
            {
                if self.held_fds + fds.len() > MAX_HELD_FDS {
                    self.early_fds_lost = true;
                } else {
                    self.held_fds += fds.len();
                    self.early_fds = fds;
                    self.early_fds_lost = lost;
                }
            }
            let Some((header, _)) = self.buf.get(self.scan..self.end).and_then(|b| Header::read_from_prefix(b).ok())
            else {
                break;
            };
            let size = to_usize(header.size);
            if !(HEADER_LEN..=MAX_MESSAGE).contains(&size) {
                self.over = Some(ConnError::BadSize { size: header.size, command: header.command });
                self.bad = Some(header);
                break;
            }
            if self.end - self.scan < size {
                break;
            }
            let body = self.scan + HEADER_LEN..self.scan + size;
            self.scan += size;
            let fds = std::mem::take(&mut self.early_fds);
            let fds_lost = std::mem::take(&mut self.early_fds_lost);
            if header.is_reply() {
                self.held_fds -= fds.len();
                self.reply(header, body);
            } else {
                self.frames.push_back(Frame { header, body, fds, fds_lost });
            }
        }
        if let Some((fds, _)) = fds {
            crate::debug_limited!(count = fds.len(), "descriptors that belong to no message: closed");
        }
    }

    /// Where the last message starts that starts at or after `from`.
    fn last_start(&self, from: usize) -> Option<usize> {
        let mut at = self.scan;
        let mut last = None;
        while at < self.end {
            if at >= from {
                last = Some(at);
            }
            let Some((header, _)) = self.buf.get(at..self.end).and_then(|b| Header::read_from_prefix(b).ok()) else {
                break;
            };
            let size = to_usize(header.size);
            if !(HEADER_LEN..=MAX_MESSAGE).contains(&size) {
                break;
            }
            at += size;
        }
        last
    }

    fn reply(&mut self, header: Header, body: Range<usize>) {
        if remove(&mut self.expected, header.id) || (self.keep_all && self.replies.len() < MAX_UNEXPECTED) {
            let body = self.buf.get(body).unwrap_or_default().to_vec();
            self.replies.push(Message { header, body });
        } else if !remove(&mut self.late, header.id) {
            crate::debug_limited!(id = header.id, command = %header.command, "reply to nothing: ignored");
        }
    }
}

/// Takes `id` out of `ids`; whether it was there.
fn remove(ids: &mut Vec<u16>, id: u16) -> bool {
    let at = ids.iter().position(|i| *i == id);
    at.map(|at| ids.swap_remove(at)).is_some()
}

/// Replies and commands that the socket did not take yet.
#[derive(Debug, Default)]
struct Outbox {
    pending: VecDeque<Vec<u8>>,
    /// Bytes of the first pending message that were sent.
    sent: usize,
    bytes: usize,
    next_id: u16,
}

impl Outbox {
    /// Sends pending messages as far as the socket takes them.
    fn flush(&mut self, sock: BorrowedFd<'_>) -> Result<(), ConnError> {
        while let Some(first) = self.pending.front() {
            let rest = first.get(self.sent..).unwrap_or_default();
            match send(sock, rest, &[]) {
                Ok(n) if n == rest.len() => {
                    self.bytes -= first.len();
                    self.sent = 0;
                    self.pending.pop_front();
                }
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(send_error(errno)),
            }
        }
        Ok(())
    }

    /// Sends `message` now or later.
    fn post(&mut self, sock: BorrowedFd<'_>, message: &[u8]) -> Result<(), ConnError> {
        self.flush(sock)?;
        if self.pending.is_empty() {
            self.sent = match send(sock, message, &[]) {
                Ok(n) if n == message.len() => return Ok(()),
                Ok(n) => n,
                Err(Errno::AGAIN) => 0,
                Err(errno) => return Err(send_error(errno)),
            };
        }
        if self.bytes + message.len() > MAX_PENDING {
            return Err(ConnError::NotReading);
        }
        self.bytes += message.len();
        self.pending.push_back(message.to_vec());
        Ok(())
    }
}

fn send_error(errno: Errno) -> ConnError {
    match errno {
        Errno::PIPE | Errno::CONNRESET => ConnError::Closed,
        errno => ConnError::Io(errno),
    }
}

/// One `sendmsg` that does not wait.
fn send(sock: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if fds.is_empty() {
        return rustix::io::retry_on_intr(|| rustix::net::send(sock, bytes, flags));
    }
    // The kernel's own limit (SCM_MAX_FD) is 253; hostile tests send up to that.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(sock, &[IoSlice::new(bytes)], &mut control, flags))
}

/// A connected socket, shared by the threads that use it. While one waits for a reply it holds no lock.
pub(super) struct Channel {
    sock: OwnedFd,
    rx: Mutex<Inbox>,
    /// Signalled whenever a thread has received something.
    arrived: Condvar,
    tx: Mutex<Outbox>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("sock", &self.sock).finish_non_exhaustive()
    }
}

impl Channel {
    /// `keep_all`: replies that no call waits for are kept for [`Channel::any_reply`].
    pub fn new(sock: OwnedFd, keep_all: bool) -> Self {
        Self { sock, rx: Mutex::new(Inbox::new(keep_all)), arrived: Condvar::new(), tx: Mutex::default() }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.sock.as_fd()
    }

    fn rx(&self) -> MutexGuard<'_, Inbox> {
        self.rx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tx(&self) -> MutexGuard<'_, Outbox> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inbox, after one `recvmsg` if no complete command lies in it.
    pub fn receive(&self) -> MutexGuard<'_, Inbox> {
        let mut rx = self.rx();
        if !rx.has_frames() {
            rx.receive(self.sock.as_fd());
            if !rx.replies.is_empty() || rx.over.is_some() {
                self.arrived.notify_all();
            }
        }
        rx
    }

    /// The inbox as it is.
    pub fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.rx()
    }

    /// Sends what is pending as far as the socket takes it.
    pub fn flush(&self) -> Result<(), ConnError> {
        self.tx().flush(self.sock.as_fd())
    }

    /// Whether something is pending.
    pub fn is_pending(&self) -> bool {
        !self.tx().pending.is_empty()
    }

    /// Sends a message now or, if the socket is full, later.
    pub fn post(&self, message: &[u8]) -> Result<(), ConnError> {
        self.tx().post(self.sock.as_fd(), message)
    }

    /// Sends all of `message` with `fds`, waiting for room until `deadline`; receives meanwhile, so that two peers that both send
    /// much do not wait for each other.
    pub fn send_all(&self, message: &[u8], fds: &[BorrowedFd<'_>], deadline: Instant) -> io::Result<()> {
        self.send_locked(&mut self.tx(), message, fds, deadline)
    }

    fn send_locked(
        &self,
        tx: &mut Outbox,
        message: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        let sock = self.sock.as_fd();
        let mut sent = 0;
        loop {
            tx.flush(sock)?;
            if tx.pending.is_empty() {
                let rest = message.get(sent..).unwrap_or_default();
                match send(sock, rest, if sent == 0 { fds } else { &[] }) {
                    Ok(n) => sent += n,
                    Err(Errno::AGAIN) => {}
                    Err(errno) => return Err(send_error(errno).into()),
                }
                if sent == message.len() {
                    return Ok(());
                }
            }
            match self.poll(PollFlags::IN | PollFlags::OUT, deadline) {
                Ok(ready) if ready.contains(PollFlags::IN) => {
                    let mut rx = self.rx();
                    rx.receive(sock);
                    self.arrived.notify_all();
                    if let Some(over) = rx.over {
                        return Err(over.into());
                    }
                }
                Ok(_) => {}
                Err(e) => {
                    if sent > 0 {
                        // The rest of the message has to follow, or the stream is out of step.
                        tx.bytes += message.len();
                        tx.sent = sent;
                        tx.pending.push_front(message.to_vec());
                    }
                    return Err(e);
                }
            }
        }
    }

    /// Sends a command and waits for its reply until `timeout` from now. Commands of the peer that come meanwhile stay in the inbox;
    /// after each arrival `on_arrival` may look at them.
    ///
    /// A call fails at once while an earlier one is unanswered beyond its time, if `fail_fast`: a peer that does not answer costs one
    /// timeout, not one per call.
    pub fn call(
        &self,
        message: &mut [u8],
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
        fail_fast: bool,
        on_arrival: &mut dyn FnMut(),
    ) -> io::Result<Message> {
        let deadline = Instant::now() + timeout;
        if fail_fast && self.receive().is_late() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "an earlier call is still unanswered"));
        }
        let id = {
            let mut tx = self.tx();
            let id = tx.next_id;
            tx.next_id = id.wrapping_add(1);
            if let Some(start) = message.first_chunk_mut::<2>() {
                *start = id.to_ne_bytes();
            }
            self.rx().expected.push(id);
            self.send_locked(&mut tx, message, fds, deadline).inspect_err(|_| {
                remove(&mut self.rx().expected, id);
            })?;
            id
        };
        let reply = self.wait(&mut |rx| rx.take_reply(id), deadline, on_arrival);
        if reply.is_err() {
            let mut rx = self.rx();
            if remove(&mut rx.expected, id) {
                rx.late.push(id);
            }
        }
        reply
    }

    /// The next reply that nobody else waits for.
    pub fn any_reply(&self, deadline: Instant, on_arrival: &mut dyn FnMut()) -> io::Result<Message> {
        let mut first = |rx: &mut Inbox| (!rx.replies.is_empty()).then(|| rx.replies.remove(0));
        self.wait(&mut first, deadline, on_arrival)
    }

    /// Receives until `deadline`.
    pub fn serve(&self, deadline: Instant, on_arrival: &mut dyn FnMut()) -> io::Result<()> {
        match self.wait(&mut |_| None, deadline, on_arrival) {
            Err(e) if e.kind() != io::ErrorKind::TimedOut => Err(e),
            _ => Ok(()),
        }
    }

    /// Receives until `pick` finds what it wants.
    fn wait(
        &self,
        pick: &mut dyn FnMut(&mut Inbox) -> Option<Message>,
        deadline: Instant,
        on_arrival: &mut dyn FnMut(),
    ) -> io::Result<Message> {
        on_arrival();
        let mut rx = self.rx();
        loop {
            if let Some(message) = pick(&mut rx) {
                return Ok(message);
            }
            if let Some(over) = rx.over {
                return Err(over.into());
            }
            if rx.reading {
                // Another thread is at the socket: it wakes us when something has come.
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                rx = self.arrived.wait_timeout(rx, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            rx.reading = true;
            drop(rx);
            let ready = self.poll(PollFlags::IN, deadline);
            rx = self.rx();
            rx.reading = false;
            if ready.is_ok() {
                rx.receive(self.sock.as_fd());
            }
            self.arrived.notify_all();
            ready?;
            if rx.has_frames() {
                drop(rx);
                on_arrival();
                rx = self.rx();
            }
        }
    }

    /// Takes the first complete command out of the inbox.
    pub fn take_command(&self) -> Option<Message> {
        self.rx().take_command()
    }

    fn poll(&self, events: PollFlags, deadline: Instant) -> io::Result<PollFlags> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let timeout = Timespec::try_from(left).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            let mut fds = [PollFd::new(&self.sock, events)];
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let [fd] = fds;
                    let ready = fd.revents();
                    // A hang-up or an error shows in the next receive.
                    return Ok(if ready.intersects(PollFlags::HUP | PollFlags::ERR) {
                        ready | PollFlags::IN
                    } else {
                        ready
                    });
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn to_usize(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
