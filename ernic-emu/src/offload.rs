//! Checksums and segmentation: what makes a frame of the guest fit for a real wire.

use crate::link::{Offload, TxFrame};

/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IP protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;

/// Folds a sum of 16-bit words to 16 bits, carries added back in (RFC 1071).
#[must_use]
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

/// One's-complement sum of `bytes` as little-endian 16-bit words, an odd last byte padded with zero; not folded.
/// Little-endian because the sum is byte-order independent (RFC 1071 §2) and this is how memory is read.
#[must_use]
pub fn sum_le(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut lanes = [0u64; 8];
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<4>().0) {
            *lane += u64::from(u32::from_le_bytes(*word));
        }
    }
    let mut sum: u64 = lanes.iter().map(|lane| (lane & 0xffff_ffff) + (lane >> 32)).sum();
    let (words, odd) = rest.as_chunks::<2>();
    for word in words {
        sum += u64::from(u16::from_le_bytes(*word));
    }
    if let Some(last) = odd.first() {
        sum += u64::from(*last);
    }
    sum
}

/// What [`sum_le`] gives, folded, for all of a frame behind its Ethernet header, if it is an untagged IPv4 packet with TCP whose
/// checksums are right and which ends with the frame: without reading the payload. `None` for anything else.
///
/// A right IPv4 header sums to all ones, and so does the segment together with its pseudo-header (RFC 791, RFC 9293 §3.1): what
/// remains is the complement of the pseudo-header's sum.
#[must_use]
pub fn sum_of_right_tcp(frame: &[u8], layers: &Layers) -> Option<u16> {
    let (PROTO_TCP, l4) =
        layers.l4.filter(|_| layers.ethertype == ETHERTYPE_IPV4 && layers.l3 == 14 && !layers.fragment)?
    else {
        return None;
    };
    let packet = frame.get(layers.l3..)?;
    u16::try_from(packet.len()).ok().filter(|&len| u16_at(packet, 2) == Some(len))?;
    let segment = u16::try_from(frame.len().checked_sub(l4)?).ok()?;
    let word = |value: u16| u64::from(u16::from_le_bytes(value.to_be_bytes()));
    let pseudo = sum_le(packet.get(12..20)?) + word(PROTO_TCP.into()) + word(segment);
    // Zero is the sum of nothing but zeros, which a packet is not: all ones is the same number.
    Some(match !fold(pseudo) {
        0 => 0xffff,
        sum => sum,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}

/// Where a frame's layers begin, as far as they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layers {
    /// EtherType behind the 802.1Q tags, of which at most two are looked behind: one that the driver had in band, and one
    /// that the NIC put in.
    pub ethertype: u16,
    /// Offset of the network header: 14, and 4 more for each tag.
    pub l3: usize,
    /// Protocol and offset of the transport header, for IPv4 and IPv6; `None` for anything else, for fragments behind
    /// the first, and for headers that are cut short.
    pub l4: Option<(u8, usize)>,
    /// The packet is a fragment (its transport header, if any, does not cover the whole datagram).
    pub fragment: bool,
}

/// Finds the layers of an Ethernet frame; `None` if it has no Ethernet header.
#[must_use]
pub fn layers(frame: &[u8]) -> Option<Layers> {
    let mut l3 = 14;
    let mut ethertype = u16_at(frame, 12)?;
    for _ in 0..2 {
        if ethertype == ETHERTYPE_VLAN
            && let Some(inner) = u16_at(frame, l3 + 2)
        {
            ethertype = inner;
            l3 += 4;
        }
    }
    let mut found = Layers { ethertype, l3, l4: None, fragment: false };
    match ethertype {
        ETHERTYPE_IPV4 => {
            if let (Some(first), Some(frag), Some(proto)) = (frame.get(l3), u16_at(frame, l3 + 6), frame.get(l3 + 9)) {
                let ihl = usize::from(first & 0x0f) * 4;
                found.fragment = frag & 0x3fff != 0;
                if first >> 4 == 4 && ihl >= 20 && frag & 0x1fff == 0 && l3 + ihl <= frame.len() {
                    found.l4 = Some((*proto, l3 + ihl));
                }
            }
        }
        ETHERTYPE_IPV6 if frame.len() >= l3 + 40 => {
            let mut next = frame.get(l3 + 6).copied()?;
            let mut at = l3 + 40;
            // Extension headers that Linux itself sends before TCP and UDP; the count bounds a hostile chain.
            for _ in 0..8 {
                match next {
                    // hop-by-hop, routing, destination options (RFC 8200 §4)
                    0 | 43 | 60 => {
                        let (Some(&following), Some(&len)) = (frame.get(at), frame.get(at + 1)) else { break };
                        next = following;
                        at += (usize::from(len) + 1) * 8;
                    }
                    44 => {
                        found.fragment = true;
                        break;
                    }
                    _ => {
                        if at <= frame.len() {
                            found.l4 = Some((next, at));
                        }
                        break;
                    }
                }
            }
        }
        _ => {}
    }
    Some(found)
}

/// Completes a frame for a real wire and hands it (or each of its segments) to `emit`. Returns how many frames that
/// were; 0 when the offload does not fit the frame, which only a misbehaving driver can cause.
///
/// Semantics of the TX descriptor of `ionic_if.h` (`IONIC_TXQ_DESC_OPCODE_*`): the checksum field is preloaded with the
/// pseudo-header's sum; a UDP sum of 0 is sent as 0xffff.
pub fn materialize(frame: &mut TxFrame<'_>, scratch: &mut Vec<u8>, emit: &mut dyn FnMut(&[u8])) -> usize {
    match frame.offload {
        Offload::None => {
            emit(frame.bytes);
            1
        }
        Offload::Checksum { start, offset } => {
            if complete_checksum(frame.bytes, start.into(), offset.into()).is_none() {
                return 0;
            }
            emit(frame.bytes);
            1
        }
        Offload::Segment { hdr_len, mss } => segment(frame.bytes, hdr_len.into(), mss.into(), scratch, emit),
    }
}

fn complete_checksum(bytes: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let field = start + offset;
    u16_at(bytes, field)?;
    let mut sum = !fold(sum_le(bytes.get(start..)?));
    if sum == 0 {
        // The same value in one's complement, and what UDP needs (RFC 768).
        sum = 0xffff;
    }
    bytes.get_mut(field..field + 2)?.copy_from_slice(&sum.to_le_bytes());
    Some(())
}

const TCP_FIN_PSH: u8 = 0x01 | 0x08;
const TCP_CWR: u8 = 0x80;

fn segment(bytes: &[u8], hdr_len: usize, mss: usize, scratch: &mut Vec<u8>, emit: &mut dyn FnMut(&[u8])) -> usize {
    let Some((header, payload)) = bytes.split_at_checked(hdr_len) else { return 0 };
    let Some(found) = layers(header) else { return 0 };
    let Some((PROTO_TCP, l4)) = found.l4 else { return 0 };
    if l4 + 20 > hdr_len || mss == 0 || payload.is_empty() {
        return 0;
    }
    let v4 = found.ethertype == ETHERTYPE_IPV4;
    let id = u16_at(header, found.l3 + 4).unwrap_or(0);
    let seq = header.get(l4 + 4..l4 + 8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
    let flags = header.get(l4 + 13).copied().unwrap_or(0);
    let count = payload.len().div_ceil(mss);
    for (index, part) in payload.chunks(mss).enumerate() {
        scratch.clear();
        scratch.extend_from_slice(header);
        scratch.extend_from_slice(part);
        let last = index + 1 == count;
        let mut kept = flags;
        if !last {
            kept &= !TCP_FIN_PSH;
        }
        if index > 0 {
            kept &= !TCP_CWR;
        }
        let sent = u32::try_from(index * mss).unwrap_or(0);
        let step = u16::try_from(index & 0xffff).unwrap_or(0);
        if patch_segment(scratch, found.l3, l4, v4, id.wrapping_add(step), seq.wrapping_add(sent), kept).is_none() {
            return index;
        }
        emit(scratch);
    }
    count
}

fn patch_segment(seg: &mut [u8], l3: usize, l4: usize, v4: bool, id: u16, seq: u32, flags: u8) -> Option<()> {
    let total = seg.len();
    if v4 {
        put_u16(seg, l3 + 2, u16::try_from(total - l3).ok()?)?;
        put_u16(seg, l3 + 4, id)?;
        put_u16(seg, l3 + 10, 0)?;
        let sum = !fold(sum_le(seg.get(l3..l4)?));
        seg.get_mut(l3 + 10..l3 + 12)?.copy_from_slice(&sum.to_le_bytes());
    } else {
        put_u16(seg, l3 + 4, u16::try_from(total - l3 - 40).ok()?)?;
    }
    seg.get_mut(l4 + 4..l4 + 8)?.copy_from_slice(&seq.to_be_bytes());
    *seg.get_mut(l4 + 13)? = flags;
    let tcp_len = u16::try_from(total - l4).ok()?;
    let sum = sum_le(seg.get(l4..)?) + u64::from(tcp_len.to_be());
    seg.get_mut(l4 + 16..l4 + 18)?.copy_from_slice(&(!fold(sum)).to_le_bytes());
    Some(())
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_le_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn sum_matches_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(fold(sum_le(&bytes)), naive(&bytes));
        }

        #[test]
        fn hostile_offloads_never_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200), a in any::<u16>(), b in any::<u16>(), seg in any::<bool>(),
        ) {
            let offload = if seg { Offload::Segment { hdr_len: a % 256, mss: b } } else { Offload::Checksum { start: a % 256, offset: b } };
            let mut n = 0;
            let done = materialize(&mut TxFrame { bytes: &mut bytes, offload }, &mut Vec::new(), &mut |_| n += 1);
            prop_assert_eq!(done, n);
        }
    }

    /// A hand-made TCP/IPv4 super-frame of `payload` bytes behind `tags` tags, with the checksums as the driver leaves them.
    fn super_frame(payload: usize, tags: u8) -> (Vec<u8>, u16) {
        let mut f = vec![2, 0x53, 192, 168, 200, 1, 2, 0, 0, 0, 0, 1];
        for tag in 0..tags {
            f.extend([0x81, 0, 0, 5 + tag]);
        }
        f.extend([8, 0]);
        let l3 = f.len();
        f.extend([0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 192, 168, 200, 2, 192, 168, 200, 1]);
        let l4 = f.len();
        f.extend([0x80, 0, 0x23, 0x28, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 1, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
        // pseudo header with length 0, not inverted
        let pseudo: [u8; 12] = [192, 168, 200, 2, 192, 168, 200, 1, 0, 6, 0, 0];
        let sum = fold(sum_le(&pseudo));
        f[l4 + 16..l4 + 18].copy_from_slice(&sum.to_le_bytes());
        let hdr = f.len() as u16;
        f.extend((0..payload).map(|i| (i * 7 % 251) as u8));
        let total = (f.len() - l3) as u16;
        f[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
        (f, hdr)
    }

    #[test]
    fn segments_carry_right_headers_and_sums() {
        for tags in 0..=2 {
            let (mut f, hdr_len) = super_frame(3001, tags);
            let whole = f.clone();
            let mut out = Vec::new();
            let n = materialize(
                &mut TxFrame { bytes: &mut f, offload: Offload::Segment { hdr_len, mss: 1000 } },
                &mut Vec::new(),
                &mut |s| out.push(s.to_vec()),
            );
            assert_eq!((n, out.len()), (4, 4));
            let l3 = 14 + 4 * usize::from(tags);
            let mut payload: Vec<u8> = Vec::new();
            for (k, s) in out.iter().enumerate() {
                let ip = &s[l3..];
                assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
                assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), 0xffffu16.wrapping_add(k as u16));
                assert_eq!(naive(&ip[..20]), 0xffff, "IPv4 header sum");
                let behind = fold(sum_le(&s[14..]));
                let known = sum_of_right_tcp(s, &layers(s).unwrap());
                assert_eq!(known, (tags == 0).then_some(behind), "the sum of the segment, known without its payload");
                let padded = [s.as_slice(), &[0]].concat();
                assert_eq!(sum_of_right_tcp(&padded, &layers(&padded).unwrap()), None);
                let tcp = &ip[20..];
                assert_eq!(
                    u32::from_be_bytes(tcp[4..8].try_into().unwrap()),
                    0xffff_fff0u32.wrapping_add(1000 * k as u32)
                );
                assert_eq!(
                    tcp[13],
                    match k {
                        0 => 0x90,
                        3 => 0x19,
                        _ => 0x10,
                    }
                );
                let mut pseudo = ip[12..20].to_vec();
                pseudo.extend([0, 6]);
                pseudo.extend((tcp.len() as u16).to_be_bytes());
                pseudo.extend(tcp);
                assert_eq!(naive(&pseudo), 0xffff, "TCP sum of segment {k}");
                payload.extend(&tcp[20..]);
            }
            assert_eq!(payload, whole[usize::from(hdr_len)..]);
        }
    }

    #[test]
    fn udp_sum_zero_becomes_ffff() {
        let mut f = vec![0u8; 42];
        f[40] = 0xff;
        f[41] = 0xff;
        let mut frame = TxFrame { bytes: &mut f, offload: Offload::Checksum { start: 34, offset: 6 } };
        assert_eq!(materialize(&mut frame, &mut Vec::new(), &mut |_| {}), 1);
        assert_eq!(f[40..42], [0xff, 0xff]);
    }
}
