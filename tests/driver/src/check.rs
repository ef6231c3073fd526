//! What Linux would do with a received frame: every checksum verified, every length compared, and a reason for each refusal.
//!
//! Sums are computed here and not borrowed from the device, so that the two cannot share a mistake.

use ionic_abi::{RSS_HASH_KEY_SIZE, RssTypes};

/// Bytes of an Ethernet header.
pub const ETH: usize = 14;
/// EtherTypes (IEEE 802).
pub const IPV4: u16 = 0x0800;
/// ARP.
pub const ARP: u16 = 0x0806;
/// An 802.1Q tag.
pub const VLAN: u16 = 0x8100;
/// IPv6.
pub const IPV6: u16 = 0x86dd;
/// IP protocol numbers.
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMPv6.
pub const ICMPV6: u8 = 58;

/// Why Linux would drop a frame, or complain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Refusal {
    #[error("shorter than an Ethernet header")]
    Runt,
    #[error("for another station")]
    OtherHost,
    #[error("tagged for VLAN {0}, which has no interface")]
    OtherVlan(u16),
    #[error("a tag in the frame although the device strips tags")]
    NotStripped,
    #[error("hw csum failure: the device says {device:#06x}, the frame has {frame:#06x}")]
    HwChecksum { device: u16, frame: u16 },
    #[error("IP header cut short or malformed")]
    IpHeader,
    #[error("IPv4 header checksum")]
    IpChecksum,
    #[error("IP length {ip} in a frame with room for {frame}")]
    IpLength { ip: usize, frame: usize },
    #[error("IP packet of {len} bytes at MTU {mtu}")]
    TooLong { len: usize, mtu: usize },
    #[error("checksum of IP protocol {0}")]
    Checksum(u8),
    #[error("header of IP protocol {0} cut short or malformed")]
    L4Header(u8),
    #[error("ARP packet malformed")]
    Arp,
}

/// Where a frame's layers are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layers {
    /// EtherType behind a tag.
    pub ethertype: u16,
    /// Offset of the network header.
    pub l3: usize,
    /// Protocol, and offset of the transport header.
    pub l4: Option<(u8, usize)>,
    /// End of the IP packet; behind it is padding.
    pub end: usize,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// One's-complement sum of 16-bit words as they lie in little-endian memory (RFC 1071 §2: the order of bytes does not matter as
/// long as it is always the same), folded to 16 bits.
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut total = 0u64;
    for word in words {
        let word = u64::from_le_bytes(*word);
        total += (word & 0xffff_ffff) + (word >> 32);
    }
    let mut tail = [0; 8];
    tail[..rest.len()].copy_from_slice(rest);
    let tail = u64::from_le_bytes(tail);
    fold(total + (tail & 0xffff_ffff) + (tail >> 32))
}

fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    // It fits now.
    u16::try_from(total).unwrap_or(0)
}

/// One's-complement addition.
fn add(a: u16, b: u16) -> u16 {
    fold(u64::from(a) + u64::from(b))
}

/// One's-complement subtraction.
fn sub(a: u16, b: u16) -> u16 {
    add(a, !b)
}

/// 0 has two forms.
fn same(a: u16, b: u16) -> bool {
    a == b || (a == 0 && b == 0xffff) || (a == 0xffff && b == 0)
}

/// The sum of the pseudo-header of TCP, UDP or ICMPv6 (RFC 9293 §3.1, RFC 8200 §8.1) with `len` bytes of payload and header.
#[must_use]
pub fn pseudo_sum(addresses: &[u8], protocol: u8, len: usize) -> u16 {
    let len = u32::try_from(len).unwrap_or(0).to_be_bytes();
    add(sum(addresses), add(sum(&len), sum(&[0, protocol])))
}

/// The bytes of both addresses of an IP packet.
#[must_use]
pub fn addresses<'a>(frame: &'a [u8], layers: &Layers) -> &'a [u8] {
    let range = match layers.ethertype {
        IPV4 => layers.l3 + 12..layers.l3 + 20,
        _ => layers.l3 + 8..layers.l3 + 40,
    };
    frame.get(range).unwrap_or_default()
}

/// Finds the layers of a frame, and checks lengths and the IPv4 header.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(frame: &[u8]) -> Result<Layers, Refusal> {
    let mut layers = Layers { ethertype: be16(frame, 12).ok_or(Refusal::Runt)?, l3: ETH, l4: None, end: frame.len() };
    if layers.ethertype == VLAN {
        layers.ethertype = be16(frame, 16).ok_or(Refusal::Runt)?;
        layers.l3 = 18;
    }
    let packet = frame.get(layers.l3..).unwrap_or_default();
    match layers.ethertype {
        IPV4 => {
            let first = *packet.first().ok_or(Refusal::IpHeader)?;
            let header = usize::from(first & 0xf) * 4;
            let bytes = packet.get(..header).filter(|_| first >> 4 == 4 && header >= 20).ok_or(Refusal::IpHeader)?;
            if !same(sum(bytes), 0xffff) {
                return Err(Refusal::IpChecksum);
            }
            let len = usize::from(be16(bytes, 2).ok_or(Refusal::IpHeader)?);
            if len > packet.len() {
                return Err(Refusal::IpLength { ip: len, frame: packet.len() });
            }
            if len < header {
                return Err(Refusal::IpHeader);
            }
            layers.end = layers.l3 + len;
            // A fragment's transport header, if it has one, does not cover what is there.
            if be16(bytes, 6).is_some_and(|f| f & 0x3fff == 0) {
                layers.l4 = Some((bytes[9], layers.l3 + header));
            }
        }
        IPV6 => {
            let header = packet.get(..40).filter(|h| h[0] >> 4 == 6).ok_or(Refusal::IpHeader)?;
            let len = usize::from(be16(header, 4).ok_or(Refusal::IpHeader)?) + 40;
            if len > packet.len() {
                return Err(Refusal::IpLength { ip: len, frame: packet.len() });
            }
            layers.end = layers.l3 + len;
            let (mut next, mut at) = (header[6], 40);
            // Hop-by-hop, routing and destination options.
            while matches!(next, 0 | 43 | 60) {
                let [following, words] = *packet.get(at..at + 2).ok_or(Refusal::IpHeader)? else {
                    return Err(Refusal::IpHeader);
                };
                (next, at) = (following, at + 8 + usize::from(words) * 8);
            }
            if at > len {
                return Err(Refusal::IpHeader);
            }
            if next != 44 {
                layers.l4 = Some((next, layers.l3 + at));
            }
        }
        // Ethernet and IPv4 (RFC 826).
        ARP if packet.get(..6) != Some(&[0, 1, 8, 0, 6, 4]) || packet.len() < 28 => return Err(Refusal::Arp),
        _ => {}
    }
    Ok(layers)
}

/// Checks the checksums of a whole frame; `csum` is the device's sum over everything behind the Ethernet header, if it gives one.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(frame: &[u8], csum: Option<u16>) -> Result<Layers, Refusal> {
    let layers = parse(frame)?;
    let behind = frame.get(ETH..).unwrap_or_default();
    let mut whole = None;
    if let Some(device) = csum {
        let real = sum(behind);
        if !same(device, real) {
            return Err(Refusal::HwChecksum { device, frame: real });
        }
        whole = Some(real);
    }
    let Some((protocol, at)) = layers.l4 else { return Ok(layers) };
    let body = frame.get(at..layers.end).ok_or(Refusal::L4Header(protocol))?;
    let (header, field) = match protocol {
        TCP => (20, 16),
        UDP => (8, 6),
        ICMP | ICMPV6 => (4, 2),
        _ => return Ok(layers),
    };
    if body.len() < header {
        return Err(Refusal::L4Header(protocol));
    }
    match protocol {
        TCP if usize::from(body[12] >> 4) * 4 < 20 || usize::from(body[12] >> 4) * 4 > body.len() => {
            return Err(Refusal::L4Header(protocol));
        }
        UDP => {
            let len = usize::from(be16(body, 4).unwrap_or(0));
            if len < 8 || len > body.len() {
                return Err(Refusal::L4Header(protocol));
            }
            if be16(body, field) == Some(0) {
                // "No checksum" exists in IPv4 only (RFC 8200 §8.1).
                return if layers.ethertype == IPV4 { Ok(layers) } else { Err(Refusal::Checksum(protocol)) };
            }
        }
        _ => {}
    }
    // With the device's sum there is no second pass over the payload, as in Linux: what is not payload is taken off. That works
    // while everything in front of the payload has even length, which IP headers and tags have; an odd end shifts the padding.
    let mut total = match whole {
        Some(whole) => {
            let front = sum(frame.get(ETH..at).unwrap_or_default());
            let padding = sum(frame.get(layers.end..).unwrap_or_default());
            let odd = (layers.end - ETH) % 2 == 1;
            sub(sub(whole, front), if odd { padding.swap_bytes() } else { padding })
        }
        None => sum(body),
    };
    if protocol != ICMP {
        total = add(total, pseudo_sum(addresses(frame, &layers), protocol, body.len()));
    }
    if same(total, 0xffff) { Ok(layers) } else { Err(Refusal::Checksum(protocol)) }
}

/// The interface that a frame arrives at.
#[derive(Debug, Clone, Copy)]
pub struct Interface {
    /// Its address.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu: u32,
    /// The VLAN whose interface it is; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// The device strips tags.
    pub strips: bool,
}

/// What Linux does with a received frame, from the driver to the protocol: `tag` is what the device stripped, `csum` its sum.
///
/// # Errors
/// Linux would drop the frame, or report a hardware checksum failure.
pub fn receive(interface: &Interface, frame: &[u8], tag: Option<u16>, csum: Option<u16>) -> Result<Layers, Refusal> {
    let dst: [u8; 6] = *frame.first_chunk().ok_or(Refusal::Runt)?;
    let inner = be16(frame, 12).ok_or(Refusal::Runt)?;
    if dst[0] & 1 == 0 && dst != interface.mac {
        return Err(Refusal::OtherHost);
    }
    if inner == VLAN && interface.strips && tag.is_none() {
        return Err(Refusal::NotStripped);
    }
    let tci = tag.or_else(|| if inner == VLAN { be16(frame, 14) } else { None });
    let vid = tci.map(|tci| tci & 0xfff);
    // Priority tags (VLAN 0) belong to the interface itself.
    if vid.filter(|v| *v != 0) != interface.vlan {
        return Err(Refusal::OtherVlan(vid.unwrap_or(0)));
    }
    let layers = verify(frame, csum)?;
    let (len, mtu) = (layers.end - layers.l3, usize::try_from(interface.mtu).unwrap_or(usize::MAX));
    if matches!(layers.ethertype, IPV4 | IPV6) && len > mtu {
        return Err(Refusal::TooLong { len, mtu });
    }
    Ok(layers)
}

/// The Toeplitz hash, bit by bit (Microsoft, "RSS hashing functions"): for each set bit of the input, the 32 key bits from there on.
#[must_use]
pub fn toeplitz(key: &[u8; RSS_HASH_KEY_SIZE], input: &[u8]) -> u32 {
    let bit = |at: usize| u32::from(key.get(at / 8).copied().unwrap_or(0) >> (7 - at % 8) & 1);
    let window = |at: usize| (at..at + 32).fold(0, |word, i| word << 1 | bit(i));
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        for j in 0..8 {
            if byte >> (7 - j) & 1 != 0 {
                hash ^= window(i * 8 + j);
            }
        }
    }
    hash
}

/// The hash that the device should give a frame, 0 if `types` has none for it.
#[must_use]
pub fn rss_hash(key: &[u8; RSS_HASH_KEY_SIZE], types: RssTypes, frame: &[u8]) -> u32 {
    let Ok(layers) = parse(frame) else { return 0 };
    let mut input = addresses(frame, &layers).to_vec();
    let ports = |at: usize| frame.get(at..at + 4).unwrap_or_default();
    let (whole, tcp, udp) = match layers.ethertype {
        IPV4 => (RssTypes::IPV4, RssTypes::IPV4_TCP, RssTypes::IPV4_UDP),
        IPV6 => (RssTypes::IPV6, RssTypes::IPV6_TCP, RssTypes::IPV6_UDP),
        _ => return 0,
    };
    match layers.l4 {
        Some((TCP, at)) if types.contains(tcp) => input.extend(ports(at)),
        Some((UDP, at)) if types.contains(udp) => input.extend(ports(at)),
        _ if types.contains(whole) => {}
        _ => return 0,
    }
    toeplitz(key, &input)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;
    use crate::ionic::RSS_KEY;

    fn udp(payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(1234, 80)
            .write(&mut frame, payload)
            .unwrap();
        frame
    }

    const PORT: Interface = Interface { mac: [4; 6], mtu: 1500, vlan: None, strips: true };

    #[test]
    fn right_frames_pass_with_and_without_the_devices_sum() {
        for len in [0, 1, 2, 3, 100, 101, 1472] {
            let payload: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
            for padding in [0, 1, 6, 7] {
                let mut frame = udp(&payload);
                // Linux takes padding off the sum whatever it holds.
                frame.extend(std::iter::repeat_n(0x5a, padding));
                let csum = sum(&frame[ETH..]);
                let layers = receive(&PORT, &frame, None, None).unwrap();
                assert_eq!(layers.end, frame.len() - padding);
                assert_eq!(receive(&PORT, &frame, None, Some(csum)), Ok(layers), "{len}+{padding}");
                assert_eq!(
                    receive(&PORT, &frame, None, Some(csum ^ 1)),
                    Err(Refusal::HwChecksum { device: csum ^ 1, frame: csum })
                );
            }
        }
    }

    #[test]
    fn every_wrong_bit_is_seen() {
        let frame = udp(b"hello, world");
        for at in ETH..frame.len() {
            for bit in 0..8 {
                let mut bad = frame.clone();
                bad[at] ^= 1 << bit;
                assert!(receive(&PORT, &bad, None, None).is_err(), "byte {at} bit {bit}");
                assert!(receive(&PORT, &bad, None, Some(sum(&bad[ETH..]))).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn reasons() {
        let frame = udp(b"x");
        assert_eq!(receive(&Interface { mac: [6; 6], ..PORT }, &frame, None, None), Err(Refusal::OtherHost));
        assert_eq!(receive(&PORT, &frame, Some(5), None), Err(Refusal::OtherVlan(5)));
        assert!(receive(&PORT, &frame, Some(0xe000), None).is_ok(), "a priority tag");
        assert!(receive(&Interface { vlan: Some(5), ..PORT }, &frame, Some(5), None).is_ok());
        assert_eq!(receive(&Interface { vlan: Some(5), ..PORT }, &frame, None, None), Err(Refusal::OtherVlan(0)));
        let mut tagged = frame.clone();
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        assert_eq!(receive(&PORT, &tagged, None, None), Err(Refusal::NotStripped));
        assert!(receive(&Interface { vlan: Some(5), strips: false, ..PORT }, &tagged, None, None).is_ok());
        assert_eq!(
            receive(&Interface { mtu: 28, ..PORT }, &frame, None, None),
            Err(Refusal::TooLong { len: 29, mtu: 28 })
        );
        assert_eq!(receive(&PORT, &frame[..40], None, None), Err(Refusal::IpLength { ip: 29, frame: 26 }));
        assert_eq!(receive(&PORT, &frame[..13], None, None), Err(Refusal::Runt));
        let mut none = frame.clone();
        none[40..42].fill(0);
        assert!(receive(&PORT, &none, None, None).is_ok(), "UDP over IPv4 without a checksum");
    }

    /// The verification suite of Microsoft's RSS specification.
    #[test]
    fn toeplitz_vectors() {
        let v4 = |s: [u8; 4], sp: u16, d: [u8; 4], dp: u16| -> (Vec<u8>, Vec<u8>) {
            let addresses = [s, d].concat();
            let all = [addresses.clone(), sp.to_be_bytes().to_vec(), dp.to_be_bytes().to_vec()].concat();
            (addresses, all)
        };
        let (two, four) = v4([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766);
        assert_eq!((toeplitz(&RSS_KEY, &two), toeplitz(&RSS_KEY, &four)), (0x323e_8fc2, 0x51cc_c178));
        let (two, four) = v4([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739);
        assert_eq!((toeplitz(&RSS_KEY, &two), toeplitz(&RSS_KEY, &four)), (0xd718_262a, 0xc626_b0ea));
    }
}
