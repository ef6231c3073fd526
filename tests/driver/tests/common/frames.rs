//! Frames, made by etherparse: an author of its own for headers and checksums.

use etherparse::{PacketBuilder, SingleVlanHeader, TcpHeader};

/// Bytes that differ from their neighbours at every distance that matters.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

/// UDP over IPv4, checksums right.
pub fn udp(src: [u8; 6], dst: [u8; 6], payload: &[u8]) -> Vec<u8> {
    udp_flow(src, dst, ([10, 0, 0, 1], 1000), ([10, 0, 0, 2], 2000), payload)
}

pub fn udp_flow(src: [u8; 6], dst: [u8; 6], from: ([u8; 4], u16), to: ([u8; 4], u16), payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(src, dst).ipv4(from.0, to.0, 64).udp(from.1, to.1).write(&mut frame, payload).unwrap();
    frame
}

pub fn udp6(src: [u8; 6], dst: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(src, dst).ipv6([0xfd; 16], [0xfe; 16], 64).udp(1000, 2000);
    builder.write(&mut frame, payload).unwrap();
    frame
}

pub fn icmp6(src: [u8; 6], dst: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(src, dst).ipv6([0xfd; 16], [0xfe; 16], 64).icmpv6_echo_request(7, 8);
    builder.write(&mut frame, payload).unwrap();
    frame
}

/// TCP over IPv4 or IPv6, as one segment of a larger packet.
#[derive(Clone)]
pub struct Tcp {
    pub v6: bool,
    pub seq: u32,
    pub id: u16,
    pub fin: bool,
    pub psh: bool,
    pub cwr: bool,
    pub options: bool,
    /// Tag in the frame.
    pub tag: Option<u16>,
}

impl Tcp {
    pub fn plain(v6: bool) -> Self {
        Self { v6, seq: 1_000_000, id: 100, fin: false, psh: false, cwr: false, options: true, tag: None }
    }

    /// The frame with checksums right.
    pub fn frame(&self, src: [u8; 6], dst: [u8; 6], payload: &[u8]) -> Vec<u8> {
        let mut header = TcpHeader::new(1234, 80, self.seq, 4096);
        header.acknowledgment_number = 77;
        (header.ack, header.fin, header.psh, header.cwr) = (true, self.fin, self.psh, self.cwr);
        if self.options {
            let time = etherparse::TcpOptionElement::Timestamp(1, 2);
            header
                .set_options(&[etherparse::TcpOptionElement::Noop, etherparse::TcpOptionElement::Noop, time])
                .unwrap();
        }
        let mut frame = Vec::new();
        let link = PacketBuilder::ethernet2(src, dst);
        let ip = if self.v6 {
            etherparse::IpHeaders::Ipv6(
                etherparse::Ipv6Header {
                    hop_limit: 64,
                    source: [0xfd; 16],
                    destination: [0xfe; 16],
                    ..Default::default()
                },
                etherparse::Ipv6Extensions::default(),
            )
        } else {
            let mut v4 =
                etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
            v4.identification = self.id;
            etherparse::IpHeaders::Ipv4(v4, etherparse::Ipv4Extensions::default())
        };
        let builder = match self.tag {
            Some(tci) => link
                .vlan(etherparse::VlanHeader::Single(SingleVlanHeader {
                    pcp: etherparse::VlanPcp::try_new((tci >> 13) as u8).unwrap(),
                    drop_eligible_indicator: tci & 0x1000 != 0,
                    vlan_id: etherparse::VlanId::try_new(tci & 0xfff).unwrap(),
                    ether_type: etherparse::EtherType(0),
                }))
                .ip(ip)
                .tcp_header(header),
            None => link.ip(ip).tcp_header(header),
        };
        builder.write(&mut frame, payload).unwrap();
        frame
    }

    /// Bytes in front of the payload.
    pub fn header_len(&self) -> usize {
        let link = if self.tag.is_some() { 18 } else { 14 };
        link + if self.v6 { 40 } else { 20 } + if self.options { 32 } else { 20 }
    }

    /// The segments that a NIC has to make of `payload`, from the rules of TCP and IP alone.
    pub fn segments(&self, src: [u8; 6], dst: [u8; 6], payload: &[u8], mss: usize) -> Vec<Vec<u8>> {
        let count = payload.len().div_ceil(mss).max(1);
        (0..count)
            .map(|k| {
                let at = k * mss;
                let one = Self {
                    seq: self.seq.wrapping_add(at as u32),
                    id: self.id.wrapping_add(k as u16),
                    fin: self.fin && k + 1 == count,
                    psh: self.psh && k + 1 == count,
                    cwr: self.cwr && k == 0,
                    ..self.clone()
                };
                one.frame(src, dst, &payload[at..(at + mss).min(payload.len())])
            })
            .collect()
    }
}

/// Inserts a tag behind the addresses.
pub fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let mut out = frame.to_vec();
    out.splice(12..12, [&[0x81, 0x00], tci.to_be_bytes().as_slice()].concat());
    out
}

/// Puts the pseudo-header's sum into the checksum field, as the stack does before it leaves the rest to the NIC; `len` is 0 for TSO.
pub fn preload(frame: &mut [u8], tso: bool) -> (u16, u16) {
    use ionic_driver::check;
    let layers = check::parse(frame).unwrap();
    let (protocol, l4) = layers.l4.unwrap();
    let field = match protocol {
        check::TCP => 16,
        check::UDP => 6,
        _ => 2,
    };
    let len = if tso { 0 } else { layers.end - l4 };
    let sum = check::pseudo_sum(check::addresses(frame, &layers), protocol, len);
    frame[l4 + field..l4 + field + 2].copy_from_slice(&sum.to_le_bytes());
    if tso && layers.ethertype == check::IPV4 {
        frame[layers.l3 + 10..layers.l3 + 12].fill(0);
    }
    if tso && layers.ethertype == check::IPV6 {
        frame[layers.l3 + 4..layers.l3 + 6].fill(0);
    }
    (l4 as u16, field as u16)
}
