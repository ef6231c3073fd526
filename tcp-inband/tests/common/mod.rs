//! What the tests share: a sink with limited room, frames made and taken apart without smoltcp, and streams used by hand.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

pub mod net;

use std::{
    collections::VecDeque,
    io,
    net::Ipv4Addr,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use etherparse::{Icmpv4Slice, IpNumber, Ipv4Header, Ipv4HeaderSlice, TcpHeader, TcpOptionElement, UdpHeader};
use hyper::rt::{Read, ReadBuf, Write};
use proptest::{
    prelude::ProptestConfig,
    test_runner::{FailurePersistence, FileFailurePersistence},
};
use tcp_inband::{Config, Endpoint, FrameSink, Stream, mac_of};

pub const IP: Ipv4Addr = Ipv4Addr::new(192, 168, 200, 1);
pub const MAC: [u8; 6] = [0x02, 0x53, 192, 168, 200, 1];
pub const PORT: u16 = 9000;
pub const BROADCAST: [u8; 6] = [0xff; 6];

pub fn config() -> Config {
    assert_eq!(mac_of(IP), MAC);
    Config { seed: 1, ..Config::new(IP, PORT) }
}

/// Receive buffers of a guest.
#[derive(Default)]
pub struct Queue {
    pub frames: VecDeque<Vec<u8>>,
    pub room: usize,
}

impl FrameSink for Queue {
    fn room(&self) -> usize {
        self.room
    }

    fn send(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        assert!(self.room > 0, "a frame without room");
        self.room -= 1;
        // Longer and not zero: whatever is not written shows.
        let mut frame = vec![0xaa; len + 7];
        fill(&mut frame);
        assert_eq!(frame[len..], [0xaa; 7], "wrote beyond the frame");
        frame.truncate(len);
        self.frames.push_back(frame);
    }
}

/// RFC 1071, word by word.
pub fn ones_complement(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for word in part.chunks(2) {
            sum += u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn pseudo_header(ip: &Ipv4HeaderSlice<'_>, len: usize) -> Vec<u8> {
    let mut bytes = [ip.source(), ip.destination()].concat();
    bytes.extend([0, ip.protocol().0]);
    bytes.extend((len as u16).to_be_bytes());
    bytes
}

#[derive(Debug, Clone)]
pub enum Content {
    Arp(Vec<u8>),
    Tcp(TcpHeader, Vec<u8>),
    Udp(UdpHeader, Vec<u8>),
    /// Type, code, everything behind the checksum.
    Icmp(u8, u8, Vec<u8>),
}

/// A frame from the endpoint, after all its checksums and lengths were found right.
#[derive(Debug, Clone)]
pub struct Out {
    pub dst: [u8; 6],
    pub tci: Option<u16>,
    pub to: Ipv4Addr,
    pub ip_len: usize,
    pub content: Content,
}

impl Out {
    pub fn tcp(&self) -> (&TcpHeader, &[u8]) {
        match &self.content {
            Content::Tcp(header, payload) => (header, payload),
            other => panic!("not TCP: {other:?}"),
        }
    }

    pub fn mss(&self) -> Option<u16> {
        self.tcp().0.options_iterator().find_map(|option| match option {
            Ok(TcpOptionElement::MaximumSegmentSize(mss)) => Some(mss),
            _ => None,
        })
    }

    pub fn window_scale(&self) -> Option<u8> {
        self.tcp().0.options_iterator().find_map(|option| match option {
            Ok(TcpOptionElement::WindowScale(shift)) => Some(shift),
            _ => None,
        })
    }
}

pub fn dissect(frame: &[u8]) -> Out {
    let dst: [u8; 6] = frame[..6].try_into().unwrap();
    assert_eq!(frame[6..12], MAC);
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (tci, ethertype, start) =
        if word(12) == 0x8100 { (Some(word(14)), word(16), 18) } else { (None, word(12), 14) };
    let packet = &frame[start..];
    if ethertype == 0x0806 {
        assert_eq!(packet.len(), 28);
        return Out { dst, tci, to: Ipv4Addr::UNSPECIFIED, ip_len: 0, content: Content::Arp(packet.to_vec()) };
    }
    assert_eq!(ethertype, 0x0800);
    let ip = Ipv4HeaderSlice::from_slice(packet).unwrap();
    assert_eq!(usize::from(ip.total_len()), packet.len(), "IP total length");
    assert_eq!(ones_complement(&[ip.slice()]), 0xffff, "IP header checksum");
    assert_eq!(ip.source_addr(), IP);
    assert!(ip.dont_fragment() || ip.identification() != 0);
    let body = &packet[ip.slice().len()..];
    let pseudo = pseudo_header(&ip, body.len());
    let content = match ip.protocol() {
        IpNumber::TCP => {
            assert_eq!(ones_complement(&[&pseudo, body]), 0xffff, "TCP checksum");
            let (header, payload) = TcpHeader::from_slice(body).unwrap();
            Content::Tcp(header, payload.to_vec())
        }
        IpNumber::UDP => {
            let (header, payload) = UdpHeader::from_slice(body).unwrap();
            assert_ne!(header.checksum, 0, "UDP checksum not computed");
            assert_eq!(ones_complement(&[&pseudo, body]), 0xffff, "UDP checksum");
            assert_eq!(usize::from(header.length), body.len());
            Content::Udp(header, payload.to_vec())
        }
        IpNumber::ICMP => {
            assert_eq!(ones_complement(&[body]), 0xffff, "ICMP checksum");
            let icmp = Icmpv4Slice::from_slice(body).unwrap();
            Content::Icmp(icmp.type_u8(), icmp.code_u8(), body[4..].to_vec())
        }
        other => panic!("unexpected protocol {other:?}"),
    };
    Out { dst, tci, to: ip.destination_addr(), ip_len: packet.len(), content }
}

/// A guest's network interface. Like a real one with offloads, it leaves checksums to the NIC: they are wrong.
#[derive(Debug, Clone, Copy)]
pub struct Guest {
    pub mac: [u8; 6],
    pub ip: Ipv4Addr,
    pub tci: Option<u16>,
}

pub const GUEST: Guest =
    Guest { mac: [0x52, 0x54, 0, 0x12, 0x34, 0x56], ip: Ipv4Addr::new(192, 168, 200, 2), tci: None };

impl Guest {
    pub fn tagged(self, tci: u16) -> Self {
        Self { tci: Some(tci), ..self }
    }

    pub fn frame(&self, dst: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = [dst, self.mac].concat();
        if let Some(tci) = self.tci {
            frame.extend(0x8100u16.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(payload);
        frame
    }

    pub fn packet(&self, to: Ipv4Addr, protocol: IpNumber, payload: &[u8]) -> Vec<u8> {
        let mut header = Ipv4Header::new(payload.len() as u16, 64, protocol, self.ip.octets(), to.octets()).unwrap();
        header.header_checksum = 0xdead;
        let mut packet = header.to_bytes().to_vec();
        packet.extend(payload);
        packet
    }

    pub fn ip(&self, protocol: IpNumber, payload: &[u8]) -> Vec<u8> {
        self.frame(MAC, 0x0800, &self.packet(IP, protocol, payload))
    }

    pub fn tcp(&self, header: &TcpHeader, payload: &[u8]) -> Vec<u8> {
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(payload);
        self.ip(IpNumber::TCP, &bytes)
    }

    pub fn udp(&self, from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = [from, to, payload.len() as u16 + 8, 0xbad1].map(u16::to_be_bytes).concat();
        bytes.extend(payload);
        self.ip(IpNumber::UDP, &bytes)
    }

    pub fn ping(&self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![8, 0, 0xba, 0xd1, 0x12, 0x34, 0, 7];
        bytes.extend(payload);
        self.ip(IpNumber::ICMP, &bytes)
    }

    pub fn arp(&self, dst: [u8; 6], operation: u16, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let mut bytes = [1u16, 0x0800, 0x0604, operation].map(u16::to_be_bytes).concat();
        bytes.extend(self.mac);
        bytes.extend(sender.octets());
        bytes.extend([0; 6]);
        bytes.extend(target.octets());
        self.frame(dst, 0x0806, &bytes)
    }
}

/// The endpoint, a clock and the guest's receive buffers.
pub struct Lab {
    pub endpoint: Endpoint,
    pub now: Duration,
    pub queue: Queue,
}

impl Lab {
    pub fn new(config: Config) -> Self {
        let now = Duration::from_secs(1_000);
        let endpoint = Endpoint::new(config, now).unwrap();
        Self { endpoint, now, queue: Queue { frames: VecDeque::new(), room: usize::MAX } }
    }

    pub fn give(&mut self, frame: &[u8]) {
        self.endpoint.ingress(self.now, frame);
    }

    pub fn poll(&mut self) {
        while self.endpoint.poll(self.now, &mut self.queue).more {}
    }

    /// All that the endpoint sends now.
    pub fn take(&mut self) -> Vec<Out> {
        self.poll();
        self.queue.frames.drain(..).map(|frame| dissect(&frame)).collect()
    }

    /// The one frame that the endpoint sends now.
    pub fn one(&mut self) -> Out {
        let mut out = self.take();
        assert_eq!(out.len(), 1, "{out:?}");
        out.remove(0)
    }

    pub fn nothing(&mut self) {
        let out = self.take();
        assert!(out.is_empty(), "{out:?}");
    }

    /// Lets time pass as an event loop would: polling at each deadline. Returns how many there were.
    pub fn sleep(&mut self, duration: Duration) -> usize {
        let end = self.now + duration;
        for count in 0..100_000 {
            self.poll();
            match self.endpoint.poll_at() {
                Some(at) if at <= end => {
                    assert!(at > self.now, "a deadline in the past after a poll");
                    self.now = at;
                }
                _ => {
                    self.now = end;
                    self.poll();
                    return count;
                }
            }
        }
        panic!("too many deadlines");
    }

    pub fn accept(&mut self) -> Stream {
        self.endpoint.accept().expect("a connection")
    }

    /// A connection of `guest` from `port`, established, accepted, with the given MSS.
    pub fn connect(&mut self, guest: Guest, port: u16, mss: u16) -> (Peer, Stream) {
        let mut peer = Peer::new(guest, port);
        self.give(&peer.syn(Some(mss)));
        let syn_ack = self.one();
        peer.took(&syn_ack);
        self.give(&peer.segment(b""));
        let stream = self.accept();
        (peer, stream)
    }
}

/// The guest's side of a connection, driven by hand.
#[derive(Debug, Clone)]
pub struct Peer {
    pub guest: Guest,
    pub port: u16,
    pub to_port: u16,
    pub isn: u32,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub scale: u8,
    /// What arrived in order.
    pub received: Vec<u8>,
}

impl Peer {
    pub fn new(guest: Guest, port: u16) -> Self {
        let isn = 0xffff_ff00u32.wrapping_add(u32::from(port));
        Self { guest, port, to_port: PORT, isn, seq: isn, ack: 0, window: 0xffff, scale: 7, received: Vec::new() }
    }

    pub fn header(&self) -> TcpHeader {
        let mut header = TcpHeader::new(self.port, self.to_port, self.seq, self.window);
        header.checksum = 0xbad1;
        header
    }

    pub fn syn(&self, mss: Option<u16>) -> Vec<u8> {
        let mut header = self.header();
        header.syn = true;
        header.sequence_number = self.isn;
        let mut options = vec![
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::Timestamp(1, 0),
            TcpOptionElement::Noop,
            TcpOptionElement::WindowScale(self.scale),
        ];
        options.extend(mss.map(TcpOptionElement::MaximumSegmentSize));
        header.set_options(&options).unwrap();
        self.guest.tcp(&header, b"")
    }

    /// A segment at the current place, which advances.
    pub fn segment(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut header = self.header();
        header.ack = true;
        header.psh = !payload.is_empty();
        header.acknowledgment_number = self.ack;
        self.seq = self.seq.wrapping_add(payload.len() as u32);
        self.guest.tcp(&header, payload)
    }

    pub fn fin(&mut self) -> Vec<u8> {
        let mut header = self.header();
        header.ack = true;
        header.fin = true;
        header.acknowledgment_number = self.ack;
        self.seq = self.seq.wrapping_add(1);
        self.guest.tcp(&header, b"")
    }

    pub fn rst(&self) -> Vec<u8> {
        let mut header = self.header();
        header.rst = true;
        self.guest.tcp(&header, b"")
    }

    /// Takes a segment as TCP does: what is next in order counts.
    pub fn took(&mut self, out: &Out) {
        let (header, payload) = out.tcp();
        assert_eq!((header.source_port, header.destination_port), (self.to_port, self.port));
        assert_eq!(out.to, self.guest.ip);
        if header.syn {
            assert!(header.ack);
            assert_eq!(header.acknowledgment_number, self.isn.wrapping_add(1));
            self.seq = self.isn.wrapping_add(1);
            self.ack = header.sequence_number.wrapping_add(1);
            return;
        }
        if header.sequence_number == self.ack {
            self.received.extend(payload);
            self.ack = self.ack.wrapping_add(payload.len() as u32 + u32::from(header.fin));
        }
    }
}

pub fn poll_read(stream: &mut Stream, max: usize) -> Poll<io::Result<Vec<u8>>> {
    let mut bytes = vec![0; max];
    let mut buf = ReadBuf::new(&mut bytes);
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(stream).poll_read(&mut cx, buf.unfilled())?.map(|()| Ok(buf.filled().to_vec()))
}

/// What can be read now.
pub fn read(stream: &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Poll::Ready(Ok(bytes)) = poll_read(stream, 1 << 20) {
        if bytes.is_empty() {
            break;
        }
        all.extend(bytes);
    }
    all
}

pub fn is_end_of_file(stream: &mut Stream) -> bool {
    matches!(poll_read(stream, 1), Poll::Ready(Ok(bytes)) if bytes.is_empty())
}

pub fn read_error(stream: &mut Stream) -> io::ErrorKind {
    match poll_read(stream, 1) {
        Poll::Ready(Err(error)) => error.kind(),
        other => panic!("{other:?}"),
    }
}

pub fn poll_write(stream: &mut Stream, bytes: &[u8]) -> Poll<io::Result<usize>> {
    Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), bytes)
}

/// Writes what there is room for.
pub fn write(stream: &mut Stream, bytes: &[u8]) -> usize {
    match poll_write(stream, bytes) {
        Poll::Ready(Ok(count)) => count,
        Poll::Pending => 0,
        Poll::Ready(Err(error)) => panic!("{error}"),
    }
}

pub fn close(mut stream: Stream) {
    assert!(Pin::new(&mut stream).poll_shutdown(&mut Context::from_waker(Waker::noop())).is_ready());
}

/// Bytes that repeat late and differ from place to place.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// At least 1,000 cases (more by `PROPTEST_CASES`); failing seeds are kept in `proptest-regressions`.
pub fn cases(file: &'static str) -> ProptestConfig {
    let default = ProptestConfig::default();
    let failure_persistence: Option<Box<dyn FailurePersistence>> = Some(Box::new(FileFailurePersistence::Direct(file)));
    ProptestConfig { cases: default.cases.max(1_000), failure_persistence, ..default }
}

pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}
