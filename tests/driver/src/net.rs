//! The guest's network: smoltcp on top of the driver, as strict as Linux about what it receives and using what Linux uses to send.

use std::{
    collections::HashMap,
    fmt,
    net::Ipv4Addr,
    num::{NonZeroU16, NonZeroUsize},
    time::Duration,
};

use ionic_abi::{EthFeatures, Status};
use smoltcp::{
    iface::{Config as InterfaceConfig, Interface, PollIngressSingleResult, SocketHandle, SocketSet},
    phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken},
    socket::{dhcpv4, icmp, tcp},
    time::Instant,
    wire::{EthernetAddress, HardwareAddress, Icmpv4Packet, Icmpv4Repr, IpAddress, IpCidr, Ipv4Cidr},
};

use crate::{
    bus::Bus,
    check::{self, Refusal},
    error::DriverError,
    ionic::{Ionic, RX_BUDGET, device_sum, stripped_tag},
    ram::DmaBuf,
    rings::{RxInfo, RxRing, TxLayout, TxOffload, TxRing},
};

/// Largest super-frame that is left to the NIC to cut: IP packet and Ethernet header (`gso_max_size`).
const TSO_MAX: usize = 65_535;
/// The smallest MSS of a peer (RFC 9293 §3.7.1).
const MIN_MSS: usize = 536;
/// How long the guest waits for an answer before it gives up. Only bounds hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What the guest's stack leaves to the NIC (`ethtool -K`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// Transmit checksums of TCP and UDP are partial.
    pub tx_csum: bool,
    /// TCP segmentation.
    pub tso: bool,
    /// VLAN interface: all frames are tagged with this id.
    pub vlan: Option<u16>,
    /// Bytes of a TCP socket's receive buffer, and of its transmit buffer.
    pub buffer: usize,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self { tx_csum: true, tso: true, vlan: None, buffer: 1 << 20 }
    }
}

/// What the stack saw.
#[derive(Debug, Clone, Default)]
pub struct NetStats {
    /// Frames given to the protocols.
    pub accepted: u64,
    /// Frames that Linux would have dropped, by reason.
    pub refused: HashMap<Refusal, u64>,
    /// Frames that were sent with a partial checksum.
    pub sent_partial: u64,
    /// Super-frames that were sent.
    pub sent_tso: u64,
    /// Frames sent in all.
    pub sent: u64,
    /// Answers that found the transmit ring full.
    pub dropped: u64,
}

/// A guest with one interface.
pub struct GuestNet<B> {
    /// Its NIC.
    pub nic: Ionic<B>,
    /// Counters.
    pub stats: NetStats,
    config: NetConfig,
    interface: Interface,
    sockets: SocketSet<'static>,
    address: Option<Ipv4Cidr>,
    next_port: u16,
}

impl<B: fmt::Debug> fmt::Debug for GuestNet<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestNet").field("nic", &self.nic).field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// The NIC as smoltcp sees it, for one call.
struct Port<'a> {
    tx: &'a mut TxRing,
    rx: Option<&'a mut dyn FnMut() -> Result<Option<RxInfo>, DriverError>>,
    bufs: &'a DmaBuf,
    layout: TxLayout,
    config: NetConfig,
    interface: check::Interface,
    stats: &'a mut NetStats,
    error: &'a mut Option<DriverError>,
    caps: &'a DeviceCapabilities,
}

impl<B: Bus> GuestNet<B> {
    /// A guest whose interface is up and has no address yet.
    ///
    /// # Errors
    /// The interface does not come up.
    pub fn new(mut nic: Ionic<B>, config: NetConfig) -> Result<Self, DriverError> {
        nic.up()?;
        if let Some(vid) = config.vlan {
            nic.add_filter(crate::ionic::Filter::Vlan(vid))?;
        }
        let interface = make_interface(&nic, &config);
        Ok(Self {
            nic,
            stats: NetStats::default(),
            config,
            interface,
            sockets: SocketSet::new(Vec::new()),
            address: None,
            next_port: 49_152,
        })
    }

    /// Gives the NIC back.
    pub fn into_nic(self) -> Ionic<B> {
        self.nic
    }

    /// Sets the interface's address.
    pub fn set_address(&mut self, address: Ipv4Addr, prefix: u8) {
        self.address = Some(Ipv4Cidr::new(address, prefix));
        self.apply_address();
    }

    fn apply_address(&mut self) {
        let address = self.address;
        self.interface.update_ip_addrs(|list| {
            list.clear();
            // There is room for one.
            let _ = address.map(|a| list.push(IpCidr::Ipv4(a)));
        });
    }

    /// Changes the MTU of the NIC and of the stack. Connections stay.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), DriverError> {
        self.nic.set_mtu(mtu)?;
        self.interface = make_interface(&self.nic, &self.config);
        self.apply_address();
        Ok(())
    }

    /// Starts the stack anew on a NIC that was reset or bound again: connections are forgotten.
    ///
    /// # Errors
    /// The interface does not come up.
    pub fn restart(&mut self) -> Result<(), DriverError> {
        self.nic.up()?;
        self.sockets = SocketSet::new(Vec::new());
        self.interface = make_interface(&self.nic, &self.config);
        self.apply_address();
        Ok(())
    }

    fn time(&self) -> Instant {
        Instant::from_micros(i64::try_from(self.nic.bus.now().as_micros()).unwrap_or(i64::MAX))
    }

    /// One round: interrupts, received frames, timers, frames to send. `true` if anything happened.
    ///
    /// # Errors
    /// The device broke the rules, or the bus failed.
    pub fn poll(&mut self) -> Result<bool, DriverError> {
        let mut active = false;
        self.nic.check_link()?;
        while let Some(vector) = self.nic.next_scheduled()? {
            active = true;
            if vector == 0 {
                self.nic.poll_admin()?;
            } else if let Some((queue, rx, tx)) = self.nic.owner(vector) {
                let tx_work = if tx { self.nic.service_tx(queue, 256)? } else { 0 };
                let rx_work = if rx { self.receive(queue)? } else { 0 };
                if rx {
                    self.nic.refill(queue)?;
                }
                self.nic.complete_poll(vector, rx_work, tx_work, rx_work < RX_BUDGET)?;
            }
            // What was received is answered before the next batch: it may open the peer's window.
            self.send()?;
        }
        active |= self.send()?;
        Ok(active)
    }

    fn receive(&mut self, queue: usize) -> Result<usize, DriverError> {
        let now = self.time();
        let caps = capabilities(&self.nic, &self.config);
        let port = interface_of(&self.nic, &self.config);
        let layout = self.nic.config.tx_layout;
        let mut error = None;
        let mut work = 0;
        while work < RX_BUDGET && error.is_none() {
            let Some(info) = self.nic.pop_rx(queue)? else { break };
            work += 1;
            if info.comp.status != Status::SUCCESS {
                continue;
            }
            let mut one = Some(info);
            let pair = self.nic.pair(queue)?;
            let mut device = Port {
                tx: &mut pair.tx,
                rx: Some(&mut || Ok(one.take())),
                bufs: rx_bufs(&pair.rx),
                layout,
                config: self.config,
                interface: port,
                stats: &mut self.stats,
                error: &mut error,
                caps: &caps,
            };
            // A refused frame ends the call without one.
            let _: PollIngressSingleResult = self.interface.poll_ingress_single(now, &mut device, &mut self.sockets);
        }
        error.map_or(Ok(work), Err)
    }

    /// Sends what the stack has to send; `true` if that was anything.
    fn send(&mut self) -> Result<bool, DriverError> {
        let now = self.time();
        if !self.nic.running() {
            return Ok(false);
        }
        let caps = capabilities(&self.nic, &self.config);
        let port = interface_of(&self.nic, &self.config);
        let layout = self.nic.config.tx_layout;
        let mut error = None;
        let before = self.stats.sent;
        let pair = self.nic.pair(0)?;
        let mut device = Port {
            tx: &mut pair.tx,
            rx: None,
            bufs: rx_bufs(&pair.rx),
            layout,
            config: self.config,
            interface: port,
            stats: &mut self.stats,
            error: &mut error,
            caps: &caps,
        };
        self.interface.poll_maintenance(now);
        loop {
            let sent = device.stats.sent;
            let _ = self.interface.poll_egress(now, &mut device, &mut self.sockets);
            if device.stats.sent == sent || device.error.is_some() {
                break;
            }
        }
        for queue in 0..self.nic.pairs.len() {
            self.nic.flush(queue)?;
        }
        if let Some(error) = error {
            return Err(error);
        }
        Ok(self.stats.sent != before)
    }

    /// Polls until `done` gives something, letting the device run.
    ///
    /// # Errors
    /// As [`GuestNet::poll`]; a timeout after `limit`.
    pub fn wait_for<T>(
        &mut self,
        what: &'static str,
        limit: Duration,
        done: &mut dyn FnMut(&mut Self) -> Result<Option<T>, DriverError>,
    ) -> Result<T, DriverError> {
        let end = self.nic.bus.now() + limit;
        loop {
            self.poll()?;
            if let Some(found) = done(self)? {
                // What `done` did to a socket may have something to send.
                self.send()?;
                return Ok(found);
            }
            if self.send()? || self.nic.has_scheduled() {
                continue;
            }
            let now = self.nic.bus.now();
            if now >= end {
                self.nic.check_lost()?;
                return Err(DriverError::Timeout { what });
            }
            let timer = self.interface.poll_delay(self.time(), &self.sockets).map(Duration::from);
            self.nic.bus.wait(timer.unwrap_or(Duration::MAX).min(end - now))?;
        }
    }

    /// Gets an address by DHCP and takes it; the address, the server, and the MTU the server offers if it does.
    ///
    /// # Errors
    /// There was no answer.
    pub fn dhcp(&mut self) -> Result<(Ipv4Cidr, Ipv4Addr), DriverError> {
        let handle = self.sockets.add(dhcpv4::Socket::new());
        let found = self.wait_for("DHCP lease", PATIENCE, &mut |net| {
            Ok(match net.sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll() {
                Some(dhcpv4::Event::Configured(lease)) => Some((lease.address, lease.server.address)),
                _ => None,
            })
        });
        self.sockets.remove(handle);
        let (address, server) = found?;
        self.set_address(address.address(), address.prefix_len());
        Ok((address, server))
    }

    /// Sends an echo request of `len` bytes and waits for its answer, which has to be the same bytes.
    ///
    /// # Errors
    /// There was no answer, or another one.
    pub fn ping(&mut self, to: Ipv4Addr, len: usize, seq_no: u16) -> Result<(), DriverError> {
        const IDENT: u16 = 0x22b;
        let data: Vec<u8> = (0..len).map(|i| (i % 256).to_le_bytes()[0]).collect();
        let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; 2 * (len + 64)]);
        let mut socket = icmp::Socket::new(buffer(), buffer());
        let bad = |_| DriverError::Connection("cannot send an echo request");
        socket.bind(icmp::Endpoint::Ident(IDENT)).map_err(|_| DriverError::Connection("cannot bind an ICMP socket"))?;
        let request = Icmpv4Repr::EchoRequest { ident: IDENT, seq_no, data: &data };
        let checksum = ChecksumCapabilities::default();
        let emit = |payload: &mut [u8]| request.emit(&mut Icmpv4Packet::new_unchecked(payload), &checksum);
        socket.send(request.buffer_len(), IpAddress::Ipv4(to)).map(emit).map_err(bad)?;
        let handle = self.sockets.add(socket);
        let answer = self.wait_for("echo reply", PATIENCE, &mut |net| {
            let socket = net.sockets.get_mut::<icmp::Socket<'_>>(handle);
            let Ok((payload, from)) = socket.recv() else { return Ok(None) };
            let reply = Icmpv4Packet::new_checked(payload)
                .ok()
                .and_then(|p| Icmpv4Repr::parse(&p, &checksum).ok().map(|r| r == answer_to(seq_no, &data, IDENT)));
            Ok((from == IpAddress::Ipv4(to)).then_some(reply == Some(true)))
        });
        self.sockets.remove(handle);
        if answer? { Ok(()) } else { Err(DriverError::Connection("the echo reply is not the request")) }
    }

    /// Opens a TCP connection.
    ///
    /// # Errors
    /// It is refused, or there is no answer.
    pub fn connect(&mut self, to: Ipv4Addr, port: u16) -> Result<SocketHandle, DriverError> {
        let local = self.next_port;
        self.next_port = if local == u16::MAX { 49_152 } else { local + 1 };
        self.connect_from(local, to, port)
    }

    /// Opens a TCP connection from a port of one's choice.
    ///
    /// # Errors
    /// It is refused, or there is no answer.
    pub fn connect_from(&mut self, local: u16, to: Ipv4Addr, port: u16) -> Result<SocketHandle, DriverError> {
        let handle = self.start_connect(local, to, port)?;
        let connected = self.wait_for("TCP connection", PATIENCE, &mut |net| {
            let socket = net.sockets.get::<tcp::Socket<'_>>(handle);
            match socket.state() {
                tcp::State::Established => Ok(Some(())),
                tcp::State::Closed => Err(DriverError::Connection("refused")),
                _ => Ok(None),
            }
        });
        if connected.is_err() {
            self.sockets.remove(handle);
        }
        connected.map(|()| handle)
    }

    /// Sends the SYN of a TCP connection, and does not wait.
    ///
    /// # Errors
    /// The stack refuses it.
    pub fn start_connect(&mut self, local: u16, to: Ipv4Addr, port: u16) -> Result<SocketHandle, DriverError> {
        let buffer = || tcp::SocketBuffer::new(vec![0; self.config.buffer]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket
            .connect(self.interface.context(), (IpAddress::Ipv4(to), port), local)
            .map_err(|_| DriverError::Connection("cannot be opened"))?;
        let handle = self.sockets.add(socket);
        self.send()?;
        Ok(handle)
    }

    /// The TCP socket.
    pub fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Closes a connection and waits until both sides have.
    ///
    /// # Errors
    /// The peer does not close.
    pub fn close(&mut self, handle: SocketHandle) -> Result<(), DriverError> {
        self.socket(handle).close();
        let closed = self.wait_for("end of a TCP connection", PATIENCE, &mut |net| {
            let state = net.socket(handle).state();
            Ok(matches!(state, tcp::State::Closed | tcp::State::TimeWait).then_some(()))
        });
        self.sockets.remove(handle);
        closed
    }

    /// Forgets a connection without a word, as a guest that crashed.
    pub fn forget(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }

    /// Frames refused in all.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.stats.refused.values().sum()
    }
}

fn answer_to(seq_no: u16, data: &[u8], ident: u16) -> Icmpv4Repr<'_> {
    Icmpv4Repr::EchoReply { ident, seq_no, data }
}

fn rx_bufs(rx: &RxRing) -> &DmaBuf {
    &rx.bufs
}

fn interface_of<B: Bus>(nic: &Ionic<B>, config: &NetConfig) -> check::Interface {
    check::Interface {
        mac: nic.mac,
        mtu: nic.config.mtu,
        vlan: config.vlan,
        strips: nic.features.contains(EthFeatures::VLAN_RX_STRIP),
    }
}

fn capabilities<B: Bus>(nic: &Ionic<B>, config: &NetConfig) -> DeviceCapabilities {
    let mut caps = DeviceCapabilities::default();
    caps.medium = Medium::Ethernet;
    caps.max_transmission_unit = usize::try_from(nic.config.mtu).unwrap_or(1500) + check::ETH;
    // Everything was verified before the stack sees it; what the NIC does not do is computed.
    let partial = config.tx_csum && nic.features.contains(EthFeatures::TX_CSUM);
    caps.checksum.ipv4 = Checksum::Tx;
    caps.checksum.icmpv4 = Checksum::Tx;
    caps.checksum.udp = if partial { Checksum::None } else { Checksum::Tx };
    caps.checksum.tcp = caps.checksum.udp;
    if partial && config.tso && nic.features.contains(EthFeatures::TSO) {
        caps.segmentation.tcpv4 = NonZeroUsize::new(TSO_MAX);
    }
    caps
}

fn make_interface<B: Bus>(nic: &Ionic<B>, config: &NetConfig) -> Interface {
    struct Nothing<'a>(&'a DeviceCapabilities);
    struct NoToken;
    impl RxToken for NoToken {
        fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
            f(&[])
        }
    }
    impl TxToken for NoToken {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
            f(&mut vec![0; len])
        }
    }
    impl Device for Nothing<'_> {
        type RxToken<'a>
            = NoToken
        where
            Self: 'a;
        type TxToken<'a>
            = NoToken
        where
            Self: 'a;
        fn receive(&mut self, _: Instant) -> Option<(NoToken, NoToken)> {
            None
        }
        fn transmit(&mut self, _: Instant) -> Option<NoToken> {
            None
        }
        fn capabilities(&self) -> DeviceCapabilities {
            self.0.clone()
        }
    }
    let hardware = HardwareAddress::Ethernet(EthernetAddress(nic.mac));
    let now = Instant::from_micros(i64::try_from(nic.bus.now().as_micros()).unwrap_or(i64::MAX));
    let mut interface_config = InterfaceConfig::new(hardware);
    interface_config.random_seed =
        u64::from_le_bytes([nic.mac[0], nic.mac[1], nic.mac[2], nic.mac[3], nic.mac[4], nic.mac[5], 0, 0]);
    Interface::new(interface_config, &mut Nothing(&capabilities(nic, config)), now)
}

/// A frame to be read from its buffer.
struct Received<'a> {
    bufs: &'a DmaBuf,
    info: RxInfo,
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        self.bufs.with_bytes(self.info.offset, self.info.len, f)
    }
}

/// A frame to be written into the ring's memory.
struct Sending<'a> {
    /// `None`: the ring is full, and the frame (an answer to a received one) is dropped, as by Linux.
    tx: Option<&'a mut TxRing>,
    layout: TxLayout,
    config: NetConfig,
    partial: bool,
    stats: &'a mut NetStats,
    error: &'a mut Option<DriverError>,
    segment: Option<NonZeroU16>,
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Self { tx, layout, config, partial, stats, error, segment } = self;
        let segments = segment.map_or(1, |mss| len / usize::from(mss.get()) + 1);
        let segments = u16::try_from(segments).unwrap_or(u16::MAX);
        let Some((tx, at)) = tx.and_then(|tx| tx.reserve(len, segments).map(|at| (tx, at))) else {
            stats.dropped += 1;
            return f(&mut vec![0; len]);
        };
        let (result, offload) = tx.fill(at, len, |frame| {
            let result = f(frame);
            (result, if partial { leave_to_the_nic(frame, segment) } else { TxOffload::None })
        });
        stats.sent += 1;
        match offload {
            TxOffload::Tso { .. } => stats.sent_tso += 1,
            TxOffload::Csum { .. } => stats.sent_partial += 1,
            TxOffload::None => {}
        }
        if let Err(e) = tx.commit(at, len, layout, offload, config.vlan) {
            *error = Some(e);
        }
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta.segmentation_offload_size;
    }
}

/// Leaves checksum and segmentation of a finished frame to the NIC, as Linux's stack does: the checksum field gets the pseudo-header's sum, with
/// length 0 for TSO, whose IPv4 header checksum is 0 (`ionic_tx_tcp_pseudo_csum`).
fn leave_to_the_nic(frame: &mut [u8], segment: Option<NonZeroU16>) -> TxOffload {
    // `parse` would check lengths that a super-frame does not have: only addresses are wanted.
    let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let ethertype = frame.get(12..14).map_or(0, |t| u16::from_be_bytes([t[0], t[1]]));
    let (protocol, l4) = match ethertype {
        check::IPV4 => match (frame.get(check::ETH), frame.get(check::ETH + 9)) {
            (Some(first), Some(protocol)) => (*protocol, check::ETH + usize::from(first & 0xf) * 4),
            _ => return TxOffload::None,
        },
        check::IPV6 => (frame.get(check::ETH + 6).copied().unwrap_or(0), check::ETH + 40),
        _ => return TxOffload::None,
    };
    let field = match protocol {
        check::TCP => 16,
        check::UDP => 6,
        _ => return TxOffload::None,
    };
    let layers = check::Layers { ethertype, l3: check::ETH, l4: Some((protocol, l4)), end: frame.len() };
    let len = if segment.is_some() { 0 } else { frame.len() - l4 };
    let pseudo = check::pseudo_sum(check::addresses(frame, &layers), protocol, len);
    let Some(at) = frame.get_mut(l4 + field..l4 + field + 2) else { return TxOffload::None };
    at.copy_from_slice(&pseudo.to_le_bytes());
    match segment {
        None => TxOffload::Csum { start: short(l4), offset: field_offset(field) },
        Some(mss) => {
            if ethertype == check::IPV4 {
                frame[check::ETH + 10..check::ETH + 12].fill(0);
            } else {
                frame[check::ETH + 4..check::ETH + 6].fill(0);
            }
            let header = l4 + usize::from(frame[l4 + 12] >> 4) * 4;
            TxOffload::Tso { hdr_len: short(header), mss: mss.get() }
        }
    }
}

fn field_offset(field: usize) -> u16 {
    u16::try_from(field).unwrap_or(0)
}

impl Port<'_> {
    /// A frame of the largest size can be sent, in segments down to those of a peer with the smallest MSS.
    fn has_room(&self) -> bool {
        let (len, segments) = match self.caps.segmentation.tcpv4 {
            Some(max) => (max.get() + check::ETH, TSO_MAX / MIN_MSS + 1),
            None => (self.caps.max_transmission_unit, 1),
        };
        let segments = u16::try_from(segments).unwrap_or(u16::MAX).min(self.tx.entries() / 2);
        self.tx.reserve(len, segments).is_some()
    }

    fn sending(&mut self, room: bool) -> Sending<'_> {
        Sending {
            tx: room.then_some(&mut *self.tx),
            layout: self.layout,
            config: self.config,
            partial: !self.caps.checksum.tcp.tx(),
            stats: self.stats,
            error: self.error,
            segment: None,
        }
    }
}

impl Device for Port<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Sending<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sending<'_>)> {
        let info = match self.rx.as_mut()?() {
            Ok(info) => info?,
            Err(error) => {
                *self.error = Some(error);
                return None;
            }
        };
        let verdict = self.bufs.with_bytes(info.offset, info.len, |frame| {
            check::receive(&self.interface, frame, stripped_tag(&info.comp), device_sum(&info.comp))
        });
        if let Err(refusal) = verdict {
            *self.stats.refused.entry(refusal).or_default() += 1;
            return None;
        }
        self.stats.accepted += 1;
        let (bufs, room) = (self.bufs, self.has_room());
        Some((Received { bufs, info }, self.sending(room)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        self.has_room().then(|| self.sending(true))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.caps.clone()
    }
}
