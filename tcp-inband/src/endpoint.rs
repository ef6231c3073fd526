//! The endpoint: which frame is for whom, who may have a place, and what goes out in which order.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
    rc::Rc,
    time::Duration,
};

use smoltcp::{
    iface::{Config as InterfaceConfig, Interface, SocketSet},
    socket::tcp::State,
    time::Instant,
    wire::{
        ArpOperation, ArpPacket, ArpRepr, DhcpMessageType, EthernetAddress, HardwareAddress, IpCidr, IpProtocol,
        Ipv4Cidr, UDP_HEADER_LEN,
    },
};

use crate::{
    Config, ConfigError, FrameSink, MAX_MTU, MIN_MTU, Stats, Stream,
    clock::{Clock, span},
    dhcp::Responder,
    phy::{Answers, Egress, Ingress, Outlet},
    slot::{Phase, Slot, Spare, Verdict},
    wire::{self, BROADCAST, ETHERTYPE_ARP, ETHERTYPE_IPV4, Frame, Mac, Path, Segment},
};

/// Frames that one call of [`Endpoint::poll`] sends at most, so that other work is not kept waiting: some 2 MB at MTU
/// 9000, half a millisecond.
const BUDGET: usize = 256;
/// A parked SYN not repeated for this long is forgotten: Linux's gaps between repetitions grow to 64 s at most
/// (`tcp_syn_retries` 6).
const PARKED: Duration = Duration::from_secs(75);
/// How long a peer has for its FIN before its place is given to another.
const FIN_GRACE: Duration = Duration::from_millis(100);
/// IP length of a segment with one byte and no options.
const ONE_BYTE_PACKET: usize = 41;
/// Longest IPv4 and TCP headers.
const MAX_HEADERS: usize = 120;
/// The least time after which a connection without anything to send is looked at again: should smoltcp ask for "now" and
/// then do nothing, this is not a busy loop.
const RECHECK: smoltcp::time::Duration = smoltcp::time::Duration::from_millis(1);

/// What [`Endpoint::poll`] left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Poll {
    /// There is more to send and the sink may have room for it: call again soon.
    pub more: bool,
}

/// An Ethernet endpoint; see the crate's documentation. Cheap to clone: clones are the same endpoint.
#[derive(Clone)]
pub struct Endpoint {
    inner: Rc<RefCell<Inner>>,
    mac: Mac,
    ip: Ipv4Addr,
    dhcp: bool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("mac", &self.mac).field("ip", &self.ip).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint without connections.
    ///
    /// # Errors
    ///
    /// What is wrong with `config`.
    pub fn new(config: Config, now: Duration) -> Result<Self, ConfigError> {
        config.check()?;
        let (mac, ip, dhcp) = (config.mac, config.ip, config.dhcp);
        Ok(Self { inner: Rc::new(RefCell::new(Inner::new(config, now))), mac, ip, dhcp })
    }

    /// Its MAC address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Its IP address.
    #[must_use]
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// Whether a frame is for the endpoint: sent to its MAC address, or broadcast and an ARP request for its address or
    /// a message to a DHCP server. `head` is the frame or its first 82 bytes; the whole is checked by
    /// [`Endpoint::ingress`].
    #[must_use]
    pub fn wants(&self, head: &[u8]) -> bool {
        let Some(frame) = Frame::parse(head) else { return false };
        if frame.dst == self.mac {
            return true;
        }
        frame.dst == BROADCAST
            && match frame.ethertype {
                // Offset of the target's protocol address (RFC 826, for Ethernet and IPv4).
                ETHERTYPE_ARP => frame.payload.get(24..28) == Some(&self.ip.octets()),
                ETHERTYPE_IPV4 => self.dhcp && wire::is_dhcp_request(frame.payload),
                _ => false,
            }
    }

    /// Takes a frame from the guest and processes it; answers leave with the next [`Endpoint::poll`]. Anything is
    /// allowed: frames that make no sense or are for others are counted and dropped. A TCP super-frame must have the
    /// right IP total length; checksums are not looked at.
    pub fn ingress(&mut self, now: Duration, frame: &[u8]) {
        self.inner.borrow_mut().ingress(now, frame);
    }

    /// Sends what there is to send while `sink` has room, at most 256 frames, connections taking turns; lets time pass;
    /// makes places for parked SYNs. Call after [`Endpoint::ingress`], after streams were used, when the sink has room
    /// again, and at [`Endpoint::poll_at`].
    pub fn poll(&mut self, now: Duration, sink: &mut dyn FrameSink) -> Poll {
        self.inner.borrow_mut().poll(now, sink)
    }

    /// When to call [`Endpoint::poll`] next if nothing happens before; `None` if never. Not after the time passed in last
    /// if there is something to send. While frames wait for room in the sink there is no deadline.
    #[must_use]
    pub fn poll_at(&self) -> Option<Duration> {
        self.inner.borrow().poll_at()
    }

    /// The next connection that was established and not yet accepted.
    pub fn accept(&mut self) -> Option<Stream> {
        let (id, peer) = self.inner.borrow_mut().accept()?;
        Some(Stream::new(Rc::clone(&self.inner), id, peer))
    }

    /// The guest changed its MTU (bytes of IP packet; clamped to [`MIN_MTU`] and [`MAX_MTU`]). From now on no segment of
    /// any connection is larger, and new connections and DHCP clients are told.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.inner.borrow_mut().set_mtu(mtu);
    }

    /// The device was reset: connections, parked SYNs and frames that wait are forgotten without a word; streams fail
    /// with [`ConnectionReset`](std::io::ErrorKind::ConnectionReset). DHCP leases are kept, so that a guest finds its old
    /// address after a reboot.
    pub fn reset(&mut self) {
        self.inner.borrow_mut().reset();
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.borrow().stats()
    }

    /// Whether there is a connection, be it only that a SYN was answered.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner.borrow().slots.iter().any(|slot| slot.phase != Phase::Free)
    }
}

/// A place, as long as it is the same connection's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotId {
    index: usize,
    generation: u32,
}

/// A peer's address and port in one word; 0 is none (no peer has port 0).
fn key_of(ip: Ipv4Addr, port: u16) -> u64 {
    u64::from(u32::from(ip)) << 16 | u64::from(port)
}

fn peer_of(key: u64) -> SocketAddrV4 {
    let [_, _, a, b, c, d, hi, lo] = key.to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([hi, lo]))
}

/// A SYN that waits for a place: its headers.
struct Parked {
    key: u64,
    path: Path,
    packet: [u8; MAX_HEADERS],
    len: usize,
    at: Duration,
}

pub(crate) struct Inner {
    config: Config,
    mtu: usize,
    seed: u64,
    iface: Interface,
    /// No sockets: for packets that belong to no connection.
    nobody: SocketSet<'static>,
    slots: Vec<Slot>,
    /// Each place's peer, or 0.
    keys: Vec<u64>,
    /// Places that may have something to send, as bits.
    dirty: u64,
    /// The place whose turn it is to send.
    turn: usize,
    /// Not after any place's deadline.
    next_deadline: Option<Instant>,
    accepted: VecDeque<SlotId>,
    parked: VecDeque<Parked>,
    /// When a place may be made for a parked SYN.
    evict_at: Option<Instant>,
    answers: Answers,
    dhcp: Option<Responder>,
    clock: Clock,
    stats: Stats,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// What became of a connection's turn to send.
enum Turn {
    Sent,
    Nothing,
    NoRoom,
}

impl Inner {
    fn new(config: Config, now: Duration) -> Self {
        let mtu = config.mtu;
        let clock = Clock::new(now);
        let mut seed = config.seed;
        Self {
            mtu,
            iface: interface(&config, mtu, &mut seed, clock.now()),
            seed,
            nobody: SocketSet::new(Vec::new()),
            slots: Vec::new(),
            keys: Vec::new(),
            dirty: 0,
            turn: 0,
            next_deadline: None,
            accepted: VecDeque::new(),
            parked: VecDeque::new(),
            evict_at: None,
            answers: Answers::default(),
            dhcp: config.dhcp.then(|| Responder::new(config.ip, config.prefix_len)),
            clock,
            stats: Stats::default(),
            config,
        }
    }

    // For `Stream`.

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn resolve(&self, id: SlotId) -> Option<usize> {
        self.slots.get(id.index).is_some_and(|slot| slot.generation == id.generation).then_some(id.index)
    }

    /// A place by an index that [`Inner::resolve`] or a search of `slots` gave.
    pub(crate) fn slot_mut(&mut self, index: usize) -> &mut Slot {
        &mut self.slots[index]
    }

    /// There may be something to send.
    pub(crate) fn touch(&mut self, index: usize) {
        self.dirty |= 1 << index;
    }

    /// The stream of a place is gone.
    pub(crate) fn release(&mut self, index: usize, shut_down: bool) {
        let slot = &mut self.slots[index];
        if !shut_down && slot.socket().is_active() {
            slot.socket_mut().abort();
            self.stats.aborted += 1;
        }
        self.drain(index);
    }

    fn drain(&mut self, index: usize) {
        let limit = self.config.linger_bytes;
        let slot = &mut self.slots[index];
        slot.disown();
        slot.phase = Phase::Drain;
        slot.discard(limit);
        self.touch(index);
    }

    // Frames in.

    fn ingress(&mut self, now: Duration, bytes: &[u8]) {
        self.clock.advance(now);
        self.stats.frames_in += 1;
        self.stats.bytes_in += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let Some(frame) = Frame::parse(bytes) else {
            self.stats.malformed += 1;
            return;
        };
        if frame.dst != self.config.mac && frame.dst != BROADCAST {
            self.stats.not_ours += 1;
        } else if !wire::is_station(frame.path.mac) {
            self.stats.malformed += 1;
        } else {
            match frame.ethertype {
                ETHERTYPE_ARP => self.arp(&frame),
                ETHERTYPE_IPV4 => self.ipv4(&frame),
                _ => self.stats.unsupported += 1,
            }
        }
    }

    fn arp(&mut self, frame: &Frame<'_>) {
        let parsed = ArpPacket::new_checked(frame.payload).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) = parsed
        else {
            self.stats.malformed += 1;
            return;
        };
        // Probes (RFC 5227), with source 0.0.0.0, are answered too: the address is taken.
        if target_protocol_addr != self.config.ip || operation != ArpOperation::Request {
            self.stats.not_ours += 1;
            return;
        }
        let reply = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: EthernetAddress(self.config.mac),
            source_protocol_addr: self.config.ip,
            target_hardware_addr: source_hardware_addr,
            target_protocol_addr: source_protocol_addr,
        };
        self.stats.arp += 1;
        let header = frame.path.header(self.config.mac, ETHERTYPE_ARP);
        self.answers.push(&header, reply.buffer_len(), &mut self.stats, |buffer| {
            reply.emit(&mut ArpPacket::new_unchecked(buffer));
        });
    }

    fn ipv4(&mut self, frame: &Frame<'_>) {
        let Some(packet) = wire::ipv4(frame.payload) else {
            self.stats.malformed += 1;
            return;
        };
        if packet.more_frags() || packet.frag_offset() != 0 {
            self.stats.fragments += 1;
            return;
        }
        let (src, dst, protocol) = (packet.src_addr(), packet.dst_addr(), packet.next_header());
        let (payload, whole) = (packet.payload(), packet.into_inner());
        let ours = dst == self.config.ip && frame.dst == self.config.mac;
        if wire::is_dhcp_request(whole) && self.dhcp.is_some() {
            // From 0.0.0.0 and to anybody, mostly.
            if ours || frame.dst == BROADCAST {
                self.dhcp(frame.path, payload);
            } else {
                self.stats.not_ours += 1;
            }
            return;
        }
        if !ours {
            self.stats.not_ours += 1;
            return;
        }
        let edge = wire::is_subnet_edge(src, self.config.prefix_len) && self.in_subnet(src);
        if !wire::is_unicast(src) || edge || src == self.config.ip {
            self.stats.malformed += 1;
            return;
        }
        match protocol {
            IpProtocol::Tcp => match Segment::parse(payload) {
                Some(segment) if segment.src_port != 0 => self.tcp(frame.path, src, &segment, whole),
                _ => self.stats.malformed += 1,
            },
            IpProtocol::Icmp => {
                self.stats.icmp += 1;
                self.answer(frame.path, whole);
            }
            IpProtocol::Udp => {
                self.stats.udp += 1;
                self.answer(frame.path, whole);
            }
            _ => {
                self.stats.unsupported += 1;
                self.answer(frame.path, whole);
            }
        }
    }

    fn in_subnet(&self, ip: Ipv4Addr) -> bool {
        Ipv4Cidr::new(self.config.ip, self.config.prefix_len).contains_addr(&ip)
    }

    fn dhcp(&mut self, path: Path, datagram: &[u8]) {
        let Some(responder) = &mut self.dhcp else { return };
        self.stats.dhcp += 1;
        // UDP's own length, if it makes sense; padding after the options would do no harm.
        let len = datagram.get(4..6).map_or(0, |l| usize::from(u16::from_be_bytes([l[0], l[1]])));
        let Some(message) = datagram.get(UDP_HEADER_LEN..len) else {
            self.stats.malformed += 1;
            return;
        };
        let Some(reply) = responder.answer(self.clock.real(), self.mtu, message) else { return };
        match reply.kind {
            DhcpMessageType::Offer => self.stats.dhcp_offers += 1,
            DhcpMessageType::Nak => self.stats.dhcp_naks += 1,
            _ => self.stats.dhcp_acks += 1,
        }
        let header = Path { mac: reply.mac, tci: path.tci }.header(self.config.mac, ETHERTYPE_IPV4);
        self.answers.push(&header, reply.packet.len(), &mut self.stats, |buffer| buffer.copy_from_slice(&reply.packet));
    }

    /// Lets smoltcp answer a packet that belongs to no connection.
    fn answer(&mut self, path: Path, packet: &[u8]) {
        let mut phy = Ingress {
            packet: Some(packet),
            answers: &mut self.answers,
            header: path.header(self.config.mac, ETHERTYPE_IPV4),
            stats: &mut self.stats,
            mtu: self.mtu,
        };
        self.iface.poll_ingress_single(self.clock.now(), &mut phy, &mut self.nobody);
    }

    fn find(&self, key: u64) -> Option<usize> {
        self.keys.iter().position(|&known| known == key)
    }

    fn tcp(&mut self, path: Path, src: Ipv4Addr, segment: &Segment, packet: &[u8]) {
        if segment.dst_port != self.config.port {
            self.stats.strays += 1;
            return self.answer(path, packet);
        }
        let key = key_of(src, segment.src_port);
        match self.find(key) {
            Some(index) if segment.opens => {
                self.stats.syns += 1;
                let slot = &self.slots[index];
                if slot.phase != Phase::Free {
                    if slot.irs == segment.seq {
                        return self.feed(index, path, segment, packet);
                    }
                    self.stats.replaced += 1;
                    self.vanish(index);
                }
                self.open(index, key, path, segment.seq, packet);
            }
            Some(index) => self.feed(index, path, segment, packet),
            None if segment.opens => {
                self.stats.syns += 1;
                match self.place() {
                    // Those that came before go first; `make_room` has them in hand.
                    Some(index) if self.parked.is_empty() => self.open(index, key, path, segment.seq, packet),
                    _ => self.park(key, path, segment, packet),
                }
            }
            None => {
                if segment.rst {
                    self.parked.retain(|syn| syn.key != key);
                }
                self.stats.strays += 1;
                self.answer(path, packet);
            }
        }
    }

    /// Gives a segment to its connection.
    fn feed(&mut self, index: usize, path: Path, segment: &Segment, packet: &[u8]) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        slot.path = path;
        slot.heard = now;
        if slot.overruns(segment) {
            self.stats.overruns += 1;
            return;
        }
        let before = slot.snapshot();
        self.deliver(index, packet);

        let slot = &mut self.slots[index];
        let after = slot.snapshot();
        let acknowledged = after.unsent < before.unsent;
        let received = after.received > before.received;
        if acknowledged || received && slot.phase != Phase::Drain {
            slot.moved = now;
        }
        if after.state != before.state {
            slot.wake();
        } else {
            if received {
                slot.wake_reader();
            }
            // A writer waits only while the buffer is full. Waking it for a quarter at least costs nothing, since more
            // acknowledgements are on their way, and saves polling it for each of them.
            let capacity = slot.socket().send_capacity();
            if acknowledged && after.unsent <= capacity - capacity / 4 {
                slot.wake_writer();
            }
        }
        match (slot.phase, after.state) {
            (Phase::Half, State::SynReceived) => {}
            // The peer refused our SYN|ACK.
            (Phase::Half, State::Listen | State::Closed) => self.vanish(index),
            (Phase::Half, _) => {
                slot.phase = Phase::Conn;
                slot.since = now;
                slot.moved = now;
                self.stats.accepted += 1;
                self.accepted.push_back(SlotId { index, generation: slot.generation });
            }
            // After LAST-ACK this is the regular end, and its stream may still be read.
            (Phase::Conn, State::Closed) if before.state != State::LastAck && slot.is_closed() => {
                self.stats.peer_resets += 1;
                self.vanish(index);
            }
            (Phase::Drain, _) => slot.discard(self.config.linger_bytes),
            _ => {}
        }
        self.touch(index);
    }

    fn deliver(&mut self, index: usize, packet: &[u8]) {
        let slot = &mut self.slots[index];
        let mut phy = Ingress {
            packet: Some(packet),
            answers: &mut self.answers,
            header: slot.path.header(self.config.mac, ETHERTYPE_IPV4),
            stats: &mut self.stats,
            mtu: self.mtu,
        };
        self.iface.poll_ingress_single(self.clock.now(), &mut phy, &mut slot.set);
    }

    // Places.

    /// A place that can be used at once.
    fn place(&mut self) -> Option<usize> {
        let free = |index: &usize| self.slots.get(*index).is_some_and(|slot| slot.phase == Phase::Free);
        if let Some(index) = self.keys.iter().position(|&key| key == 0).filter(free) {
            return Some(index);
        }
        if self.slots.len() < self.config.max_connections {
            self.slots.push(Slot::new(self.config.buffer, self.clock.now()));
            self.keys.push(0);
            return Some(self.slots.len() - 1);
        }
        let in_time_wait = self.slots.iter().enumerate().filter(|(_, slot)| slot.phase == Phase::Free);
        if let Some((index, _)) = in_time_wait.min_by_key(|(_, slot)| slot.since) {
            return Some(index);
        }
        let latest = self.clock.now() - span(FIN_GRACE);
        let waiting = self.slots.iter().enumerate().filter_map(|(index, slot)| Some((slot.waits_for_fin()?, index)));
        let (_, index) = waiting.filter(|&(since, _)| since <= latest).min()?;
        self.vanish(index);
        Some(index)
    }

    /// Starts a connection with a SYN.
    fn open(&mut self, index: usize, key: u64, path: Path, irs: u32, packet: &[u8]) {
        let slot = &mut self.slots[index];
        slot.begin(self.clock.now(), self.config.port, irs, path);
        self.keys[index] = key;
        self.deliver(index, packet);
        if self.slots[index].socket().state() == State::SynReceived {
            self.touch(index);
        } else {
            // Options that make no sense.
            self.stats.malformed += 1;
            self.vanish(index);
        }
    }

    /// Frees a place at once; nothing is sent.
    fn vanish(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.silence(self.config.port);
        slot.phase = Phase::Free;
        slot.since = self.clock.now();
        slot.disown();
        self.keys[index] = 0;
        self.dirty &= !(1 << index);
    }

    fn park(&mut self, key: u64, path: Path, segment: &Segment, packet: &[u8]) {
        let mut syn = Parked { key, path, packet: [0; MAX_HEADERS], len: 0, at: self.clock.real() };
        // Without what a SYN may carry besides: the stack does not take it from a SYN, and the peer sends it again.
        syn.len = packet.len() - segment.payload_len;
        let (Some(to), Some(from)) = (syn.packet.get_mut(..syn.len), packet.get(..syn.len)) else {
            self.stats.malformed += 1;
            return;
        };
        to.copy_from_slice(from);
        to[2..4].copy_from_slice(&u16::try_from(syn.len).unwrap_or(0).to_be_bytes());
        if let Some(same) = self.parked.iter_mut().find(|known| known.key == key) {
            *same = syn;
            return;
        }
        if self.parked.len() >= self.config.max_parked {
            let now = self.clock.real();
            self.parked.retain(|known| known.at + PARKED > now);
        }
        if self.parked.len() < self.config.max_parked {
            self.parked.push_back(syn);
        } else {
            self.stats.syns_dropped += 1;
        }
    }

    /// Replays parked SYNs while there are places, and closes connections for the rest.
    fn make_room(&mut self) {
        self.evict_at = None;
        let real = self.clock.real();
        while let Some(syn) = self.parked.front() {
            if syn.at + PARKED > real && self.place().is_none() {
                break;
            }
            let Some(syn) = self.parked.pop_front() else { break };
            if syn.at + PARKED <= real {
                continue;
            }
            let packet = syn.packet.get(..syn.len).unwrap_or_default();
            if let (Some(index), Some(segment)) = (self.place(), headers(packet)) {
                self.open(index, syn.key, syn.path, segment.seq, packet);
            }
        }
        if self.parked.is_empty() {
            return;
        }
        let now = self.clock.now();
        let timeouts = self.config.timeouts;
        let mut leaving = self.slots.iter().filter(|slot| slot.is_leaving()).count();
        while leaving < self.parked.len() {
            let spare = self.slots.iter().enumerate().filter_map(|(index, slot)| {
                let (at, kind) = slot.spare(&timeouts)?;
                Some((at, kind, slot.moved, index))
            });
            let next = spare.clone().map(|(at, ..)| at).min();
            let Some((_, kind, _, index)) =
                spare.filter(|&(at, ..)| at <= now).min_by_key(|&(_, kind, moved, _)| (kind, moved))
            else {
                self.evict_at = next;
                break;
            };
            self.stats.evicted += 1;
            match kind {
                Spare::Quiet | Spare::Stalled => self.end_of_file(index),
                Spare::Blocked => self.abort(index),
            }
            leaving += 1;
        }
        let fins = self.slots.iter().filter_map(|slot| Some(slot.waits_for_fin()? + span(FIN_GRACE)));
        self.evict_at = fins.chain(self.evict_at).min();
    }

    /// Asks the user of a connection to close it.
    fn end_of_file(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.end_of_file = Some(self.clock.now());
        if slot.owned {
            slot.wake_reader();
            self.touch(index);
        } else {
            self.close(index);
        }
    }

    fn close(&mut self, index: usize) {
        self.slots[index].socket_mut().close();
        self.drain(index);
    }

    fn abort(&mut self, index: usize) {
        self.stats.aborted += 1;
        self.slots[index].socket_mut().abort();
        self.drain(index);
    }

    // Frames out.

    fn poll(&mut self, now: Duration, sink: &mut dyn FrameSink) -> Poll {
        self.clock.advance(now);
        let mut outlet = Outlet::new(sink);
        if outlet.has_room() {
            self.clock.unblock();
        }
        self.run_timers();
        self.make_room();
        let mut budget = BUDGET;
        let done = self.send_answers(&mut outlet, &mut budget) && self.send_connections(&mut outlet, &mut budget);
        // The last of a connection may just have left.
        if !self.parked.is_empty() {
            self.make_room();
        }
        if done {
            self.clock.unblock();
        } else if budget > 0 {
            self.clock.block();
        }
        // A connection that nobody looked at for long may have been overdue when it got its deadline.
        let overdue = self.next_deadline.is_some_and(|at| at <= self.clock.now());
        Poll { more: !self.clock.is_blocked() && (self.dirty != 0 || overdue || !self.answers.is_empty()) }
    }

    /// Whether all were sent.
    fn send_answers(&mut self, outlet: &mut Outlet<'_>, budget: &mut usize) -> bool {
        while let Some(frame) = self.answers.front() {
            if *budget == 0 || !outlet.has_room() {
                return false;
            }
            outlet.send(&[], frame.len(), &mut self.stats, |buffer| buffer.copy_from_slice(frame));
            self.answers.pop();
            *budget -= 1;
        }
        true
    }

    /// One segment of each connection in turn, from where the last call ended: with little room, all get the same.
    fn send_connections(&mut self, outlet: &mut Outlet<'_>, budget: &mut usize) -> bool {
        while self.dirty != 0 {
            if *budget == 0 {
                return false;
            }
            let ahead = self.dirty.rotate_right(u32::try_from(self.turn).unwrap_or(0)).trailing_zeros();
            let index = (self.turn + usize::try_from(ahead).unwrap_or(0)) % crate::MAX_CONNECTIONS;
            match self.send_one(index, outlet) {
                Turn::Sent => *budget -= 1,
                Turn::Nothing => {
                    self.dirty &= !(1 << index);
                    self.settle(index);
                }
                Turn::NoRoom => {
                    self.turn = index;
                    return false;
                }
            }
            self.turn = (index + 1) % crate::MAX_CONNECTIONS;
        }
        true
    }

    fn send_one(&mut self, index: usize, outlet: &mut Outlet<'_>) -> Turn {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        if !outlet.has_room() {
            // smoltcp 0.14 must not find that out itself: a fast retransmission that its device refuses is forgotten,
            // and the retransmission timer with it (`tcp.rs`, `dispatch`: both are cleared before `emit`).
            let waits = self.iface.poll_at(now, &slot.set).is_some_and(|at| at <= now);
            return if waits { Turn::NoRoom } else { Turn::Nothing };
        }
        let opening = slot.socket().state() == State::SynReceived;
        let frames = self.stats.frames_out + self.stats.sink_lost;
        let bytes = self.stats.bytes_out;
        let header = slot.path.header(self.config.mac, ETHERTYPE_IPV4);
        let mut phy = Egress { outlet, header, stats: &mut self.stats, mtu: self.mtu };
        self.iface.poll_egress(now, &mut phy, &mut slot.set);
        if self.stats.frames_out + self.stats.sink_lost == frames {
            Turn::Nothing
        } else {
            // Not by a segment with one byte, which may be a window probe.
            let probe = u64::try_from(header.as_bytes().len() + ONE_BYTE_PACKET).unwrap_or(0);
            let sent = self.stats.bytes_out - bytes;
            slot.announced |= !opening && sent != 0 && sent != probe;
            Turn::Sent
        }
    }

    /// A connection has sent all that it had: what is it waiting for?
    fn settle(&mut self, index: usize) {
        let now = self.clock.now();
        let slot = &mut self.slots[index];
        let state = slot.socket().state();
        if state == State::FinWait2 {
            slot.fin_acked.get_or_insert(now);
        }
        match (slot.phase, state) {
            (Phase::Drain, State::TimeWait) => {
                slot.phase = Phase::Free;
                slot.since = now;
            }
            (Phase::Drain | Phase::Free, State::Closed) if slot.is_closed() => return self.vanish(index),
            _ => {}
        }
        let stack = self.iface.poll_at(now, &slot.set).map(|at| at.max(now + RECHECK));
        let policy = slot.outlook(&self.config.timeouts).map(|(at, _)| at);
        slot.deadline = stack.into_iter().chain(policy).min();
        self.next_deadline = self.next_deadline.into_iter().chain(slot.deadline).min();
    }

    fn run_timers(&mut self) {
        let now = self.clock.now();
        if self.next_deadline.is_none_or(|at| at > now) {
            return;
        }
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.deadline.is_none_or(|at| at > now) {
                continue;
            }
            slot.deadline = None;
            self.touch(index);
            match self.slots[index].outlook(&self.config.timeouts).filter(|&(at, _)| at <= now) {
                None => {}
                Some((_, Verdict::Vanish)) => self.vanish(index),
                Some((_, Verdict::GiveUp)) => {
                    self.stats.half_open_dropped += 1;
                    self.vanish(index);
                }
                Some((_, Verdict::Reset)) => self.abort(index),
                Some((_, Verdict::EndOfFile)) => {
                    self.stats.idle_closed += 1;
                    self.end_of_file(index);
                }
                Some((_, Verdict::Close)) => self.close(index),
            }
        }
        self.next_deadline = self.slots.iter().filter_map(|slot| slot.deadline).min();
    }

    fn poll_at(&self) -> Option<Duration> {
        if self.clock.is_blocked() {
            return None;
        }
        if self.dirty != 0 || !self.answers.is_empty() {
            return Some(self.clock.real());
        }
        let deadlines = self.slots.iter().filter_map(|slot| slot.deadline);
        deadlines.chain(self.evict_at).min().map(|at| self.clock.when(at))
    }

    // The rest.

    fn accept(&mut self) -> Option<(SlotId, SocketAddrV4)> {
        while let Some(id) = self.accepted.pop_front() {
            if let Some(index) = self.resolve(id) {
                self.slots[index].owned = true;
                return Some((id, peer_of(self.keys[index])));
            }
        }
        None
    }

    fn set_mtu(&mut self, mtu: usize) {
        let mtu = mtu.clamp(MIN_MTU, MAX_MTU);
        if mtu != self.mtu {
            self.mtu = mtu;
            // An interface asks its device for the MTU when it is made, and never again.
            self.iface = interface(&self.config, mtu, &mut self.seed, self.clock.now());
        }
    }

    fn reset(&mut self) {
        self.stats.resets += 1;
        for index in 0..self.slots.len() {
            self.vanish(index);
        }
        self.accepted.clear();
        self.parked.clear();
        self.answers.clear();
        self.evict_at = None;
        self.next_deadline = None;
        self.clock.unblock();
    }

    fn stats(&self) -> Stats {
        Stats {
            live: self.slots.iter().filter(|slot| slot.phase != Phase::Free).count(),
            parked: self.parked.len(),
            ..self.stats
        }
    }
}

/// The TCP header of a packet that was parsed before.
fn headers(packet: &[u8]) -> Option<Segment> {
    Segment::parse(wire::ipv4(packet)?.payload())
}

fn interface(config: &Config, mtu: usize, seed: &mut u64, now: Instant) -> Interface {
    // Each interface starts its sequence numbers elsewhere (the increment is SplitMix64's).
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut settings = InterfaceConfig::new(HardwareAddress::Ip);
    settings.random_seed = *seed;
    let (mut answers, mut stats) = (Answers::default(), Stats::default());
    let header = Path::NONE.header(config.mac, ETHERTYPE_IPV4);
    let mut device = Ingress { packet: None, answers: &mut answers, header, stats: &mut stats, mtu };
    let mut interface = Interface::new(settings, &mut device, now);
    interface.update_ip_addrs(|addresses| {
        // There is room for two by default.
        let _ = addresses.push(IpCidr::new(config.ip.into(), config.prefix_len));
    });
    interface
}
