//! An Ethernet endpoint without I/O: frames in, byte streams out.
//!
//! [`Endpoint`] answers ARP, ICMP echo, DHCP and TCP on one port of one IPv4 address. Frames from the guest go into
//! [`Endpoint::ingress`]; [`Endpoint::poll`] hands frames for the guest to a [`FrameSink`] while that has room. Each TCP
//! connection is a [`Stream`], which implements `hyper::rt::{Read, Write}`; [`exec::Executor`] runs the futures that use
//! them on the same thread. Time is passed in as a [`Duration`] since any fixed origin. Nothing here
//! opens a socket, reads a clock or starts a thread.
//!
//! ```text
//! loop {
//!     for each frame of the guest (at most 64 a turn):  endpoint.ingress(now, frame)
//!     while executor.has_room(), endpoint.accept():     executor.spawn(serve(stream))
//!     executor.run_ready()
//!     more = endpoint.poll(now, sink).more
//!     sleep unless more or !executor.is_idle(), until a frame, room in the sink, the executor's notify, endpoint.poll_at()
//! }
//! ```
//!
//! # TCP
//!
//! smoltcp is the TCP. It has no backlog and finds a segment's socket by scanning, so connections are told apart here:
//! each has a socket set of its own, a SYN takes any free one, and no listening sockets have to be refilled. The peer's
//! MAC address and VLAN tag are those of the connection's latest frame, so no answer ever waits for ARP.
//!
//! - Checksums are never verified on the way in (the guest leaves them to the NIC) and always computed on the way out.
//!   A frame may be a TCP super-frame of up to 64 KiB.
//! - A SYN for a connection that is there already: with the same sequence number it is a repetition; with another one
//!   the peer has forgotten the connection (it rebooted) and the new one replaces it at once. In TIME-WAIT likewise.
//! - Segments for other ports, or for no connection, are answered with RST.
//! - While the sink has no room, smoltcp's clock stands still, so that waiting for the guest is not taken for a loss
//!   (see [`FrameSink::room`]).
//! - IPv4 fragments and IPv6 are dropped and counted. The peer may have any address; it need not be on our subnet.
//!
//! # Connections that have to go
//!
//! There are [`Config::max_connections`] places. A SYN that finds none free is parked (up to [`Config::max_parked`], one
//! per peer address and port) and replayed once there is one; beyond that it is dropped and the peer repeats it. None is
//! refused. While SYNs wait, places are made, in this order, never more than SYNs wait:
//!
//! 1. the connection quiet for longest, at least [`Timeouts::quiet`]: nothing unsent, unread or unanswered. It reads end
//!    of file, so that HTTP closes it in order, and a request that is on its way is still served;
//! 2. the one on which no byte has moved for longest, at least [`Timeouts::stalled`]: likewise (this is a request head
//!    that never ends);
//! 3. the one whose peer has taken none of what waits for it for longest, at least [`Timeouts::idle`]: it is reset.
//!
//! Without need for places: a connection with no byte moved for [`Timeouts::idle`] and nothing unsent reads end of file.
//! A half-open one goes after [`Timeouts::handshake`]; one whose peer has fallen silent with data on its way, after
//! [`Timeouts::peer`]. A closed one lingers: what its peer still sends is discarded, up to [`Config::linger_bytes`] (then
//! its window closes) and [`Timeouts::linger`] after all of ours was acknowledged (then it is reset, or forgotten if it
//! sent nothing). End of file does not cancel a request that is being served only if the HTTP server allows half-closed
//! connections (`half_close(true)` in hyper).
//!
//! "Unanswered" is a guess from below: bytes were read since the last were written. An owner that knows better says so
//! with [`Activity`]; it also bounds request heads that trickle ([`Timeouts::head`]), which nobody can see from below.

mod clock;
mod dhcp;
mod endpoint;
pub mod exec;
mod phy;
mod slot;
mod stream;
mod wire;

use std::{
    hash::{BuildHasher, RandomState},
    net::Ipv4Addr,
    time::Duration,
};

pub use endpoint::{Endpoint, Poll};
pub use stream::{Activity, Stream};

/// Largest [`Config::mtu`]: smoltcp's largest frame (9216 bytes, `smoltcp::phy::DeviceCapabilities`) less an Ethernet
/// header with a VLAN tag.
pub const MAX_MTU: usize = 9216 - 18;
/// Smallest [`Config::mtu`]: what every IPv4 link can carry (RFC 791, section 3.2); Linux's `ETH_MIN_MTU`.
pub const MIN_MTU: usize = 68;
/// Most connections at a time; also the number of tasks of an [`exec::Executor`].
pub const MAX_CONNECTIONS: usize = 64;

/// The endpoint's MAC address unless told otherwise: `02:53:` (locally administered) and the four bytes of `ip`.
#[must_use]
pub fn mac_of(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0x53, a, b, c, d]
}

/// What the endpoint is and how much it may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Its MAC address; unicast.
    pub mac: [u8; 6],
    /// Its only address.
    pub ip: Ipv4Addr,
    /// Length of the subnet's prefix, 8 to 30; 24 by default. Used for DHCP and for the broadcast address.
    pub prefix_len: u8,
    /// The only TCP port.
    pub port: u16,
    /// Largest IP packet that the guest takes, [`MIN_MTU`] to [`MAX_MTU`]; 1500 by default. See [`Endpoint::set_mtu`].
    pub mtu: usize,
    /// Whether to answer DHCP; yes by default.
    pub dhcp: bool,
    /// Connections at a time, 1 to [`MAX_CONNECTIONS`] (the default).
    pub max_connections: usize,
    /// SYNs that may wait for a place; 256 by default.
    pub max_parked: usize,
    /// Bytes of each of a connection's two buffers, 4 KiB to 16 MiB; 64 KiB by default. More buys a little bulk for much
    /// latency of small requests beside it. They are allocated at a place's first use and kept.
    pub buffer: usize,
    /// Bytes discarded from a peer that goes on sending on a closed connection; 1 MiB by default.
    pub linger_bytes: usize,
    /// Seed of initial sequence numbers; random by default.
    pub seed: u64,
    /// How long things may take.
    pub timeouts: Timeouts,
}

impl Config {
    /// The defaults for an endpoint at `ip` and `port`.
    #[must_use]
    pub fn new(ip: Ipv4Addr, port: u16) -> Self {
        Self {
            mac: mac_of(ip),
            ip,
            prefix_len: 24,
            port,
            mtu: 1500,
            dhcp: true,
            max_connections: MAX_CONNECTIONS,
            max_parked: 256,
            buffer: 64 << 10,
            linger_bytes: 1 << 20,
            seed: RandomState::new().hash_one(0u8),
            timeouts: Timeouts::default(),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let ip = self.ip;
        if self.mac[0] & 1 == 1 || self.mac == [0; 6] {
            Err(ConfigError::Mac(self.mac))
        } else if !(8..=30).contains(&self.prefix_len) {
            Err(ConfigError::Prefix(self.prefix_len))
        } else if !wire::is_unicast(ip) || wire::is_subnet_edge(ip, self.prefix_len) {
            Err(ConfigError::Address(ip, self.prefix_len))
        } else if self.port == 0 {
            Err(ConfigError::Port)
        } else if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            Err(ConfigError::Mtu(self.mtu))
        } else if !(1..=MAX_CONNECTIONS).contains(&self.max_connections) {
            Err(ConfigError::Connections(self.max_connections))
        } else if !(4 << 10..=16 << 20).contains(&self.buffer) {
            Err(ConfigError::Buffer(self.buffer))
        } else {
            Ok(())
        }
    }
}

/// How long things may take. All but [`Timeouts::peer`] are our policy; see the crate's documentation for each. Time in
/// which the guest has no receive buffer for a frame that waits does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Without a byte in either direction, until the connection reads end of file; 60 s.
    pub idle: Duration,
    /// From the first byte of a request head to [`Activity::request_started`], once [`Stream::activity`] was called; 30 s.
    pub head: Duration,
    /// From SYN to ESTABLISHED; 10 s (the SYN|ACK is repeated after 1, 3 and 7 s).
    pub handshake: Duration,
    /// From the acknowledgement of our FIN to the peer's; 2 s.
    pub linger: Duration,
    /// While SYNs wait: how long a connection must have been quiet to make room; 1 s.
    pub quiet: Duration,
    /// While SYNs wait: how long a busy one must have been without a byte; 10 s.
    pub stalled: Duration,
    /// Without any frame from a peer that has data or a FIN to acknowledge; 120 s (RFC 9293 names 100 s as the least).
    pub peer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            head: Duration::from_secs(30),
            handshake: Duration::from_secs(10),
            linger: Duration::from_secs(2),
            quiet: Duration::from_secs(1),
            stalled: Duration::from_secs(10),
            peer: Duration::from_secs(120),
        }
    }
}

/// A [`Config`] that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// [`Config::mac`].
    #[error("MAC address {0:02x?} is not a unicast address: use one with an even first byte")]
    Mac([u8; 6]),
    /// [`Config::ip`].
    #[error("{0}/{1} is not the address of a host: use one inside the subnet")]
    Address(Ipv4Addr, u8),
    /// [`Config::prefix_len`].
    #[error("bad prefix length {0}: use 8 to 30")]
    Prefix(u8),
    /// [`Config::port`].
    #[error("bad port 0: use 1 to 65535")]
    Port,
    /// [`Config::mtu`].
    #[error("bad MTU {0}: use {MIN_MTU} to {MAX_MTU}")]
    Mtu(usize),
    /// [`Config::max_connections`].
    #[error("bad number of connections {0}: use 1 to {MAX_CONNECTIONS}")]
    Connections(usize),
    /// [`Config::buffer`].
    #[error("bad buffer size {0}: use 4096 to 16777216 bytes")]
    Buffer(usize),
}

/// Where frames for the guest go; lent for one call of [`Endpoint::poll`].
pub trait FrameSink {
    /// Frames that can be taken now, whatever they are. While it is 0 and a frame waits, connections' timers stand
    /// still; poll again as soon as there is room.
    fn room(&self) -> usize;

    /// One frame of `len` bytes: Ethernet header, 802.1Q tag if any, payload; no FCS, no padding, checksums complete.
    /// `fill` must be called once, with at least `len` bytes, and writes the first `len`. Called only with room.
    fn send(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]));
}

/// Counters since the start, unless marked "now".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames given to [`Endpoint::ingress`].
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Frames given to the sink.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Frames or headers that contradict themselves, or come from an address that no host can have.
    pub malformed: u64,
    /// Frames for another MAC or IP address.
    pub not_ours: u64,
    /// IPv4 fragments.
    pub fragments: u64,
    /// Other protocols (IPv6 among them), doubly tagged frames.
    pub unsupported: u64,
    /// ARP requests answered.
    pub arp: u64,
    /// ICMP packets received.
    pub icmp: u64,
    /// UDP datagrams received, without DHCP.
    pub udp: u64,
    /// DHCP messages received.
    pub dhcp: u64,
    /// DHCP offers sent.
    pub dhcp_offers: u64,
    /// DHCP acknowledgements sent.
    pub dhcp_acks: u64,
    /// DHCP refusals sent.
    pub dhcp_naks: u64,
    /// Answers dropped because 256 waited for the sink already.
    pub answers_dropped: u64,
    /// Frames that the sink lost: it did not call `fill`, or with too few bytes.
    pub sink_lost: u64,
    /// TCP segments for another port or for no connection, answered with RST (unless RST themselves).
    pub strays: u64,
    /// TCP segments beyond the window that we announced.
    pub overruns: u64,
    /// SYNs received, repetitions among them.
    pub syns: u64,
    /// SYNs dropped because no place was free and no more could be parked.
    pub syns_dropped: u64,
    /// SYNs parked now.
    pub parked: usize,
    /// Connections that were established.
    pub accepted: u64,
    /// Places in use now: half-open, open and lingering connections.
    pub live: usize,
    /// Connections closed to make room for parked SYNs.
    pub evicted: u64,
    /// Connections closed for [`Timeouts::idle`] or [`Timeouts::head`].
    pub idle_closed: u64,
    /// Connections that the peer reset.
    pub peer_resets: u64,
    /// Connections that we reset.
    pub aborted: u64,
    /// Connections replaced by a new SYN from the same address and port.
    pub replaced: u64,
    /// Half-open connections given up.
    pub half_open_dropped: u64,
    /// Calls of [`Endpoint::reset`].
    pub resets: u64,
}
