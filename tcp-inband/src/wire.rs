//! The link layer, and the few fields of IP and TCP headers that tell connections apart.

use std::net::Ipv4Addr;

use smoltcp::wire::{Ipv4Packet, TcpPacket};

pub(crate) type Mac = [u8; 6];

pub(crate) const BROADCAST: Mac = [0xff; 6];
pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
/// IEEE 802.1Q: 2 bytes of tag follow, then the frame's own type.
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHER_HEADER: usize = 14;
const TAGGED_HEADER: usize = 18;

/// The way to a peer: the source of a frame of its, turned round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) mac: Mac,
    /// Tag control information of the 802.1Q tag: priority and VLAN. The answer has the same.
    pub(crate) tci: Option<u16>,
}

impl Path {
    pub(crate) const NONE: Self = Self { mac: [0; 6], tci: None };

    /// The Ethernet header of a frame on this path.
    pub(crate) fn header(self, from: Mac, ethertype: u16) -> Header {
        let mut bytes = [0; TAGGED_HEADER];
        bytes[..6].copy_from_slice(&self.mac);
        bytes[6..12].copy_from_slice(&from);
        match self.tci {
            None => {
                bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
                Header { bytes, len: ETHER_HEADER }
            }
            Some(tci) => {
                bytes[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
                bytes[14..16].copy_from_slice(&tci.to_be_bytes());
                bytes[16..18].copy_from_slice(&ethertype.to_be_bytes());
                Header { bytes, len: TAGGED_HEADER }
            }
        }
    }
}

/// An Ethernet header with or without a tag.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    bytes: [u8; TAGGED_HEADER],
    len: usize,
}

impl Header {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

/// A frame's link layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) dst: Mac,
    /// The way back to the sender.
    pub(crate) path: Path,
    pub(crate) ethertype: u16,
    pub(crate) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// `None` if the frame ends within its headers.
    pub(crate) fn parse(frame: &'a [u8]) -> Option<Self> {
        let (dst, rest) = frame.split_first_chunk::<6>()?;
        let (mac, rest) = rest.split_first_chunk::<6>()?;
        let (ethertype, rest) = rest.split_first_chunk::<2>()?;
        let ethertype = u16::from_be_bytes(*ethertype);
        if ethertype != ETHERTYPE_VLAN {
            return Some(Self { dst: *dst, path: Path { mac: *mac, tci: None }, ethertype, payload: rest });
        }
        let (tci, rest) = rest.split_first_chunk::<2>()?;
        let (ethertype, payload) = rest.split_first_chunk::<2>()?;
        let path = Path { mac: *mac, tci: Some(u16::from_be_bytes(*tci)) };
        Some(Self { dst: *dst, path, ethertype: u16::from_be_bytes(*ethertype), payload })
    }
}

/// Whether a MAC address can be a sender's.
pub(crate) fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Whether an address can be a host's, whatever its subnet (RFC 1122, section 3.2.1.3).
pub(crate) fn is_unicast(ip: Ipv4Addr) -> bool {
    !(ip.octets()[0] == 0 || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())
}

/// Whether an address is the network's own or the broadcast address of its subnet.
pub(crate) fn is_subnet_edge(ip: Ipv4Addr, prefix_len: u8) -> bool {
    let hosts = u32::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0);
    let host = u32::from(ip) & hosts;
    host == 0 || host == hosts
}

/// The part of `packet` that its IPv4 header covers, if header and length make sense (RFC 791).
pub(crate) fn ipv4(packet: &[u8]) -> Option<Ipv4Packet<&[u8]>> {
    let header = Ipv4Packet::new_checked(packet).ok()?;
    let whole = packet.get(..usize::from(header.total_len()))?;
    (header.version() == 4).then(|| Ipv4Packet::new_unchecked(whole))
}

/// Whether the start of an IPv4 packet is that of a DHCP message to a server.
pub(crate) fn is_dhcp_request(head: &[u8]) -> bool {
    let field = |at: usize| head.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let Some(&first) = head.first() else { return false };
    let header_len = usize::from(first & 0x0f) * 4;
    // UDP, not a fragment other than the first, destination port of a DHCP server.
    first >> 4 == 4
        && head.get(9) == Some(&17)
        && field(6).is_some_and(|fragment| fragment & 0x1fff == 0)
        && field(header_len + 2) == Some(smoltcp::wire::DHCP_SERVER_PORT)
}

/// What tells a TCP segment's connection and its place in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: u32,
    pub(crate) rst: bool,
    /// SYN alone: the first segment of a connection.
    pub(crate) opens: bool,
    pub(crate) payload_len: usize,
}

impl Segment {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let tcp = TcpPacket::new_checked(bytes).ok()?;
        let rst = tcp.rst();
        // smoltcp keeps sequence numbers in an i32; the bits are what counts.
        let seq = u32::from_be_bytes(*bytes.get(4..)?.first_chunk::<4>()?);
        Some(Self {
            src_port: tcp.src_port(),
            dst_port: tcp.dst_port(),
            seq,
            rst,
            opens: tcp.syn() && !rst && !tcp.ack() && !tcp.fin(),
            payload_len: bytes.len().checked_sub(usize::from(tcp.header_len()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_with_and_without_a_tag() {
        for tci in [None, Some(0), Some(0xe123)] {
            let path = Path { mac: [2, 0, 0, 0, 0, 9], tci };
            let mut bytes = path.header([2, 0x53, 1, 2, 3, 4], ETHERTYPE_ARP).as_bytes().to_vec();
            assert_eq!(bytes.len(), if tci.is_some() { 18 } else { 14 });
            bytes.extend_from_slice(b"payload");
            let frame = Frame::parse(&bytes).unwrap();
            assert_eq!((frame.dst, frame.path.mac, frame.path.tci), (path.mac, [2, 0x53, 1, 2, 3, 4], tci));
            assert_eq!((frame.ethertype, frame.payload), (ETHERTYPE_ARP, &b"payload"[..]));
            for end in 0..bytes.len() - 7 {
                assert!(Frame::parse(&bytes[..end]).is_none(), "cut at {end}");
            }
        }
    }

    #[test]
    fn addresses_of_hosts() {
        for ip in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
            assert!(!is_unicast(ip.parse().unwrap()), "{ip}");
        }
        assert!(is_unicast("192.168.200.7".parse().unwrap()));
        assert!(is_subnet_edge("192.168.200.255".parse().unwrap(), 24));
        assert!(is_subnet_edge("192.168.200.0".parse().unwrap(), 24));
        assert!(!is_subnet_edge("192.168.200.255".parse().unwrap(), 16));
        assert!(is_subnet_edge("10.0.0.3".parse().unwrap(), 30));
    }
}
