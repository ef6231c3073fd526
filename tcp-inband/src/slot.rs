//! A place for one connection: a smoltcp socket with its buffers, kept for ever, and what we know about its user.

use std::task::Waker;

use smoltcp::{
    iface::{SocketHandle, SocketSet},
    socket::tcp::{Socket, SocketBuffer, State},
    time::Instant,
};

use crate::{
    Timeouts,
    clock::span,
    wire::{Path, Segment},
};

/// Where a place is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody's. Its socket may be in TIME-WAIT, to acknowledge a FIN that comes again until the place is needed.
    Free,
    /// A SYN came.
    Half,
    /// Established, and not yet given up by its [`Stream`](crate::Stream).
    Conn,
    /// Given up; the rest of the closing, or the RST, is on its way.
    Drain,
}

/// What the owner says about the requests on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serving {
    /// Nothing: guess.
    Unknown,
    /// None is being served; the head of one has been coming in since.
    Between(Option<Instant>),
    /// One is.
    Request,
}

/// What is to be done about a connection, by [`Timeouts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Forget it without a word.
    Vanish,
    /// Half-open for too long: likewise.
    GiveUp,
    Reset,
    /// Let it read end of file.
    EndOfFile,
    /// It read end of file and its user did nothing about it: send FIN.
    Close,
}

/// How soon a connection may go to make room for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spare {
    Quiet,
    Stalled,
    Blocked,
}

/// The parts of a socket's state by which a change is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) state: State,
    pub(crate) received: usize,
    pub(crate) unsent: usize,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) set: SocketSet<'static>,
    handle: SocketHandle,
    pub(crate) phase: Phase,
    /// Changes whenever a [`Stream`](crate::Stream) of this place loses it.
    pub(crate) generation: u32,
    pub(crate) path: Path,
    /// The peer's initial sequence number.
    pub(crate) irs: u32,
    /// Bytes taken out of the receive buffer, modulo 2^32.
    taken: u32,
    /// A segment after the SYN|ACK has told the peer its window; see [`Slot::overruns`].
    pub(crate) announced: bool,
    /// When the phase began.
    pub(crate) since: Instant,
    /// When a payload byte last moved, in either direction.
    pub(crate) moved: Instant,
    /// When the peer last sent anything.
    pub(crate) heard: Instant,
    /// When our FIN was acknowledged while the peer's is missing.
    pub(crate) fin_acked: Option<Instant>,
    /// When it was told to read end of file.
    pub(crate) end_of_file: Option<Instant>,
    /// A stream exists.
    pub(crate) owned: bool,
    pub(crate) serving: Serving,
    /// Bytes were read since the last were written.
    unanswered: bool,
    discarded: usize,
    /// When to look at it again.
    pub(crate) deadline: Option<Instant>,
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
}

impl Slot {
    pub(crate) fn new(buffer: usize, now: Instant) -> Self {
        let mut socket = Socket::new(SocketBuffer::new(vec![0; buffer]), SocketBuffer::new(vec![0; buffer]));
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let handle = set.add(socket);
        Self {
            set,
            handle,
            phase: Phase::Free,
            generation: 0,
            path: Path::NONE,
            irs: 0,
            taken: 0,
            announced: false,
            since: now,
            moved: now,
            heard: now,
            fin_acked: None,
            end_of_file: None,
            owned: false,
            serving: Serving::Unknown,
            unanswered: false,
            discarded: 0,
            deadline: None,
            reader: None,
            writer: None,
        }
    }

    pub(crate) fn socket(&self) -> &Socket<'static> {
        self.set.get(self.handle)
    }

    pub(crate) fn socket_mut(&mut self) -> &mut Socket<'static> {
        self.set.get_mut(self.handle)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let socket = self.socket();
        Snapshot { state: socket.state(), received: socket.recv_queue(), unsent: socket.send_queue() }
    }

    /// The connection is over and every frame of it has left.
    pub(crate) fn is_closed(&self) -> bool {
        let socket = self.socket();
        socket.state() == State::Closed && socket.remote_endpoint().is_none()
    }

    /// Waits for a SYN on `port` with the given sequence number, which must be the next frame it gets.
    pub(crate) fn begin(&mut self, now: Instant, port: u16, irs: u32, path: Path) {
        // Whatever it was before, this is silent: listening resets a socket that is closed, and so forgets its peer.
        self.socket_mut().abort();
        let listening = self.socket_mut().listen(port);
        debug_assert_eq!(listening, Ok(()), "the port is not 0 and the socket is closed");
        self.phase = Phase::Half;
        self.path = path;
        self.irs = irs;
        self.taken = 0;
        self.announced = false;
        self.since = now;
        self.moved = now;
        self.heard = now;
        self.fin_acked = None;
        self.end_of_file = None;
        self.owned = false;
        self.serving = Serving::Unknown;
        self.unanswered = false;
        self.discarded = 0;
        self.deadline = None;
    }

    /// Ends whatever there is, without a frame.
    pub(crate) fn silence(&mut self, port: u16) {
        self.socket_mut().abort();
        // A listening socket has no peer, and one that stops listening is closed without one.
        if self.socket_mut().listen(port).is_ok() {
            self.socket_mut().close();
        }
        self.deadline = None;
    }

    /// Takes the connection away from its stream, if there is one.
    pub(crate) fn disown(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.owned = false;
        self.wake();
    }

    pub(crate) fn wake(&mut self) {
        self.wake_reader();
        self.wake_writer();
    }

    pub(crate) fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    pub(crate) fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// Whether a segment goes beyond the window that the peer was told.
    ///
    /// smoltcp 0.14 must be kept from seeing such a one until our first segment after the SYN|ACK that is not a window
    /// probe (those leave its record of the window alone): a SYN|ACK's window field is not scaled, but smoltcp scales it
    /// when it computes the window's end (`tcp.rs`: `dispatch` stores `remote_last_win`, `process` shifts it), and payload
    /// that it then accepts beyond its buffer makes it panic (`RingBuffer::enqueue_unallocated`).
    pub(crate) fn overruns(&self, segment: &Segment) -> bool {
        if self.announced || segment.payload_len == 0 {
            return false;
        }
        let socket = self.socket();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let next = self.irs.wrapping_add(1).wrapping_add(self.taken).wrapping_add(count(socket.recv_queue()));
        let beyond_next = segment.seq.wrapping_add(count(segment.payload_len)).wrapping_sub(next);
        let room = count(socket.recv_capacity() - socket.recv_queue());
        // A difference of half the space or more is a segment from before.
        beyond_next > room && beyond_next < 1 << 31
    }

    /// Bytes went from the receive buffer to the user.
    pub(crate) fn read(&mut self, now: Instant, bytes: usize) {
        self.take(bytes);
        self.moved = now;
        self.unanswered = true;
        if let Serving::Between(head @ None) = &mut self.serving {
            *head = Some(now);
        }
    }

    pub(crate) fn wrote(&mut self, now: Instant) {
        self.moved = now;
        self.unanswered = false;
    }

    fn take(&mut self, bytes: usize) {
        self.taken = self.taken.wrapping_add(u32::try_from(bytes).unwrap_or(0));
    }

    /// Throws away what came after the user left, at most `limit` bytes in all.
    pub(crate) fn discard(&mut self, limit: usize) {
        while self.discarded < limit {
            match self.socket_mut().recv(|bytes| (bytes.len(), bytes.len())) {
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    self.take(count);
                    self.discarded += count;
                }
            }
        }
    }

    /// The peer went on sending after we closed.
    fn has_junk(&self) -> bool {
        self.discarded > 0 || self.socket().recv_queue() > 0
    }

    /// Something was read that is not yet answered.
    fn owes(&self) -> bool {
        match self.serving {
            Serving::Unknown => self.unanswered,
            Serving::Between(head) => head.is_some(),
            Serving::Request => true,
        }
    }

    fn is_quiet(&self) -> bool {
        let socket = self.socket();
        socket.send_queue() == 0 && socket.recv_queue() == 0 && !self.owes()
    }

    /// What happens to the connection if nothing else does, and when.
    pub(crate) fn outlook(&self, timeouts: &Timeouts) -> Option<(Instant, Verdict)> {
        let socket = self.socket();
        let silent = self.heard.max(self.moved) + span(timeouts.peer);
        match (self.phase, socket.state()) {
            (Phase::Free, _) => None,
            (Phase::Half, _) => Some((self.since + span(timeouts.handshake), Verdict::GiveUp)),
            (Phase::Conn, _) if socket.send_queue() > 0 => Some((silent, Verdict::Reset)),
            (Phase::Conn, _) => match self.end_of_file {
                Some(told) => self.is_quiet().then(|| (told + span(timeouts.linger), Verdict::Close)),
                None => {
                    let idle = self.moved + span(timeouts.idle);
                    let head = match self.serving {
                        Serving::Between(Some(head)) => idle.min(head + span(timeouts.head)),
                        _ => idle,
                    };
                    Some((head, Verdict::EndOfFile))
                }
            },
            (Phase::Drain, State::FinWait2) => {
                let verdict = if self.has_junk() { Verdict::Reset } else { Verdict::Vanish };
                Some((self.fin_acked.unwrap_or(self.heard) + span(timeouts.linger), verdict))
            }
            // In TIME-WAIT only our last ACK is missing; in CLOSED, our RST.
            (Phase::Drain, State::TimeWait | State::Closed) => None,
            // Here only acknowledged bytes move.
            (Phase::Drain, _) => Some((self.moved + span(timeouts.peer), Verdict::Reset)),
        }
    }

    /// When the connection may go if others need its place.
    pub(crate) fn spare(&self, timeouts: &Timeouts) -> Option<(Instant, Spare)> {
        if self.phase != Phase::Conn || self.end_of_file.is_some() || !self.socket().may_send() {
            return None;
        }
        Some(if self.is_quiet() {
            (self.moved + span(timeouts.quiet), Spare::Quiet)
        } else if self.socket().send_queue() == 0 {
            (self.moved + span(timeouts.stalled), Spare::Stalled)
        } else {
            (self.moved + span(timeouts.idle), Spare::Blocked)
        })
    }

    /// The place is on its way to being free.
    pub(crate) fn is_leaving(&self) -> bool {
        self.phase == Phase::Drain || self.phase == Phase::Conn && self.end_of_file.is_some()
    }

    /// Since when only the peer's FIN is missing, if that is all: then the place can be used again on demand. The FIN
    /// that comes later is answered with RST, which a peer that has closed does not notice.
    pub(crate) fn waits_for_fin(&self) -> Option<Instant> {
        (self.phase == Phase::Drain && self.socket().state() == State::FinWait2 && !self.has_junk())
            .then_some(self.fin_acked)
            .flatten()
    }
}
