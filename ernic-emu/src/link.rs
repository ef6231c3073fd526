//! What is on the wire: the seam between the NIC and whatever is at the other end of it.
//!
//! The NIC *pushes* frames that the guest sends ([`Link::transmit`]) and lends its receive rings to the link
//! ([`Link::poll`], [`RxSink`]), which *pulls* frames from its sources only while the guest has receive buffers. So a
//! frame is never dropped for want of one: the source is pushed back instead.

use std::{fmt, time::Duration};

/// What the guest left for the NIC to do to a frame on its way out. Offsets count from the first byte of the frame,
/// with an inserted VLAN tag included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Offload {
    /// The frame is complete.
    #[default]
    None,
    /// The 16-bit one's-complement sum from `start` to the end belongs, inverted, at `start + offset`.
    Checksum {
        /// First summed byte.
        start: u16,
        /// Where the sum goes, counted from `start`.
        offset: u16,
    },
    /// A TCP super-frame: headers, then any number of payload bytes, to be cut into segments. The IP length field is
    /// that of the super-frame; the IPv4 header checksum is unset and the TCP checksum field holds the pseudo-header's
    /// sum with length 0.
    Segment {
        /// Offset of the TCP payload.
        hdr_len: u16,
        /// Payload bytes per segment; never 0.
        mss: u16,
    },
}

/// A frame from the guest, gathered, with its VLAN tag in place.
pub struct TxFrame<'a> {
    /// The frame from its destination address to its last payload byte (no FCS); at least an Ethernet header.
    pub bytes: &'a mut [u8],
    /// What is still to be done to it before it can go on a real wire; see [`crate::offload::materialize`].
    pub offload: Offload,
}

impl fmt::Debug for TxFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxFrame").field("len", &self.bytes.len()).field("offload", &self.offload).finish()
    }
}

/// The guest's receive rings, lent to the link for one call.
pub trait RxSink {
    /// Frames that can be taken now, whatever queue each is for. 0 while the interface is down.
    fn room(&self) -> usize;

    /// One frame of `len` bytes (Ethernet header included, no FCS, checksums complete), written by `fill`. A frame
    /// that the NIC's filters refuse, or that comes without [`RxSink::room`], is counted and dropped.
    fn deliver(&mut self, len: usize, sums: Sums, fill: &mut dyn FnMut(&mut [u8]));
}

/// What the source of a frame for the guest knows of its checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// Nothing: the frame came from elsewhere, and the guest shall judge.
    Unknown,
    /// It computed them over these very bytes, padding there is none. The NIC need not sum the frame again.
    Right,
}

/// What a link has left to do after a poll.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkPoll {
    /// There is more to do at once: call again after serving the transport.
    pub more: bool,
}

/// The other end of the wire.
pub trait Link {
    /// A frame that the guest sent.
    fn transmit(&mut self, frame: &mut TxFrame<'_>);

    /// Lets the link do a bounded amount of work and hand frames to the guest. `now` is monotonic.
    fn poll(&mut self, now: Duration, rx: &mut dyn RxSink) -> LinkPoll;

    /// The guest set its MTU (bytes of IP packet).
    fn set_mtu(&mut self, mtu: u32);

    /// The device was reset: whoever the guest was talking to is forgotten.
    fn reset(&mut self);
}
