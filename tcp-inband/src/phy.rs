//! smoltcp's view of the wire: IP packets in and out, one call at a time.
//!
//! smoltcp runs without a link layer (`Medium::Ip`); Ethernet headers are put in front here, from the [`Path`] of the
//! frame or connection that is being served.

use std::collections::VecDeque;

use smoltcp::{
    phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken},
    time::Instant,
};

use crate::{FrameSink, Stats, wire::Header};

/// Answers that may wait for the sink. A guest that sends without posting receive buffers loses the rest; all of them
/// answer something that is repeated.
const MAX_ANSWERS: usize = 256;

pub(crate) fn capabilities(mtu: usize) -> DeviceCapabilities {
    // `Checksum::Tx`: computed on the way out, never verified on the way in.
    let mut checksum = ChecksumCapabilities::default();
    checksum.ipv4 = Checksum::Tx;
    checksum.udp = Checksum::Tx;
    checksum.tcp = Checksum::Tx;
    checksum.icmpv4 = Checksum::Tx;
    let mut caps = DeviceCapabilities::default();
    caps.medium = Medium::Ip;
    caps.max_transmission_unit = mtu;
    caps.checksum = checksum;
    caps
}

/// Whole frames that answer a frame of the guest, in order.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    queue: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Answers {
    /// Queues a frame of `header` and `len` bytes written by `fill`.
    pub(crate) fn push<R>(
        &mut self,
        header: &Header,
        len: usize,
        stats: &mut Stats,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(header.as_bytes());
        let start = frame.len();
        frame.resize(start + len, 0);
        let result = fill(frame.get_mut(start..).unwrap_or_default());
        if self.queue.len() < MAX_ANSWERS {
            self.queue.push_back(frame);
        } else {
            stats.answers_dropped += 1;
            self.spare.push(frame);
        }
        result
    }

    pub(crate) fn front(&self) -> Option<&[u8]> {
        self.queue.front().map(Vec::as_slice)
    }

    pub(crate) fn pop(&mut self) {
        if let Some(frame) = self.queue.pop_front()
            && self.spare.len() < 16
        {
            self.spare.push(frame);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }
}

/// Lends one packet of the guest to smoltcp and queues its answer.
#[derive(Debug)]
pub(crate) struct Ingress<'a> {
    pub(crate) packet: Option<&'a [u8]>,
    pub(crate) answers: &'a mut Answers,
    pub(crate) header: Header,
    pub(crate) stats: &'a mut Stats,
    pub(crate) mtu: usize,
}

impl Device for Ingress<'_> {
    type RxToken<'a>
        = Packet<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Answer<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Packet<'_>, Answer<'_>)> {
        let packet = self.packet.take()?;
        Some((Packet(packet), Answer { answers: self.answers, header: &self.header, stats: self.stats }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Answer<'_>> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.mtu)
    }
}

#[derive(Debug)]
pub(crate) struct Packet<'a>(&'a [u8]);

impl RxToken for Packet<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

#[derive(Debug)]
pub(crate) struct Answer<'a> {
    answers: &'a mut Answers,
    header: &'a Header,
    stats: &'a mut Stats,
}

impl TxToken for Answer<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.answers.push(self.header, len, self.stats, f)
    }
}

/// The sink, with its room counted so that it is asked once per batch and not once per frame.
pub(crate) struct Outlet<'a> {
    sink: &'a mut dyn FrameSink,
    room: usize,
    scratch: Vec<u8>,
}

impl<'a> Outlet<'a> {
    pub(crate) fn new(sink: &'a mut dyn FrameSink) -> Self {
        let room = sink.room();
        Self { sink, room, scratch: Vec::new() }
    }

    pub(crate) fn has_room(&mut self) -> bool {
        if self.room == 0 {
            self.room = self.sink.room();
        }
        self.room > 0
    }

    /// Sends a frame of `header` and `len` bytes written by `f`.
    pub(crate) fn send<R>(
        &mut self,
        header: &[u8],
        len: usize,
        stats: &mut Stats,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        self.room = self.room.saturating_sub(1);
        let total = header.len() + len;
        let mut fill = Some(f);
        let mut result = None;
        self.sink.send(total, &mut |buffer| {
            if let Some((head, body)) = buffer.get_mut(..total).and_then(|b| b.split_at_mut_checked(header.len()))
                && let Some(fill) = fill.take()
            {
                head.copy_from_slice(header);
                result = Some(fill(body));
            }
        });
        if let Some(result) = result {
            stats.frames_out += 1;
            stats.bytes_out += u64::try_from(total).unwrap_or(u64::MAX);
            return result;
        }
        // The sink broke its contract. The stack needs its result all the same, and sends the data again later.
        stats.sink_lost += 1;
        self.scratch.resize(len, 0);
        let fill = fill.take().expect("taken only where `result` is set");
        fill(&mut self.scratch)
    }
}

/// Takes a segment that one connection has to send.
pub(crate) struct Egress<'a, 'b> {
    pub(crate) outlet: &'a mut Outlet<'b>,
    pub(crate) header: Header,
    pub(crate) stats: &'a mut Stats,
    pub(crate) mtu: usize,
}

impl<'b> Device for Egress<'_, 'b> {
    type RxToken<'a>
        = Packet<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Outgoing<'a, 'b>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Packet<'_>, Outgoing<'_, 'b>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Outgoing<'_, 'b>> {
        self.outlet.has_room().then_some(Outgoing { outlet: self.outlet, header: &self.header, stats: self.stats })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.mtu)
    }
}

pub(crate) struct Outgoing<'a, 'b> {
    outlet: &'a mut Outlet<'b>,
    header: &'a Header,
    stats: &'a mut Stats,
}

impl TxToken for Outgoing<'_, '_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.outlet.send(self.header.as_bytes(), len, self.stats, f)
    }
}
