//! Receive-side scaling: the Toeplitz hash over addresses and ports, and the indirection table.

use ionic_abi::{RSS_HASH_KEY_SIZE, RssTypes};

use crate::offload::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Layers, PROTO_TCP, PROTO_UDP};

/// Length of the hash key (`IONIC_RSS_HASH_KEY_SIZE`).
pub const KEY_LEN: usize = RSS_HASH_KEY_SIZE;
/// Entries of the indirection table that we offer.
pub const TABLE_LEN: usize = 128;

/// The Toeplitz hash of `input` under `key`; bytes beyond what the key covers (36 for 40 bytes) are ignored.
#[must_use]
pub fn toeplitz(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let mut window = u64::from_be_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]]);
    let mut following = key[8..].iter();
    let mut hash = 0u32;
    for byte in input.iter().take(KEY_LEN - 4) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                hash ^= u32::try_from(window >> 32).unwrap_or(0);
            }
            window <<= 1;
        }
        // 8 bits were used up: bring in the next key byte behind the remaining 56.
        window |= u64::from(following.next().copied().unwrap_or(0));
    }
    hash
}

/// The state of receive-side scaling.
#[derive(Debug, Clone)]
pub struct Rss {
    types: RssTypes,
    key: [u8; KEY_LEN],
    table: [u8; TABLE_LEN],
    /// The last flow and its hash: bulk traffic is one flow, and the hash costs more than the rest of a delivery.
    last: ([u8; 36], usize, u32),
}

impl Default for Rss {
    fn default() -> Self {
        Self { types: RssTypes::empty(), key: [0; KEY_LEN], table: [0; TABLE_LEN], last: ([0; 36], 0, 0) }
    }
}

impl Rss {
    /// Takes what LIF_SETATTR RSS brought. No types: everything goes to queue 0.
    pub fn configure(&mut self, types: RssTypes, key: [u8; KEY_LEN], table: [u8; TABLE_LEN]) {
        *self = Self { types, key, table, last: ([0; 36], 0, 0) };
    }

    /// Whether frames are spread at all.
    #[must_use]
    pub fn enabled(&self) -> bool {
        !self.types.is_empty()
    }

    /// The queues that frames can be sent to.
    pub fn queues(&self) -> impl Iterator<Item = u8> + '_ {
        let n = if self.enabled() { TABLE_LEN } else { 0 };
        self.table[..n].iter().copied().chain((n == 0).then_some(0))
    }

    /// Queue and hash of a frame; hash 0 where nothing is hashed.
    pub fn select(&mut self, frame: &[u8], layers: &Layers) -> (u8, u32) {
        if !self.enabled() {
            return (0, 0);
        }
        let hash = self.hash(frame, layers).unwrap_or(0);
        (self.table[hash as usize % TABLE_LEN], hash)
    }

    fn hash(&mut self, frame: &[u8], layers: &Layers) -> Option<u32> {
        let (addresses, addr_type, tcp, udp) = match layers.ethertype {
            ETHERTYPE_IPV4 => {
                (frame.get(layers.l3 + 12..layers.l3 + 20)?, RssTypes::IPV4, RssTypes::IPV4_TCP, RssTypes::IPV4_UDP)
            }
            ETHERTYPE_IPV6 => {
                (frame.get(layers.l3 + 8..layers.l3 + 40)?, RssTypes::IPV6, RssTypes::IPV6_TCP, RssTypes::IPV6_UDP)
            }
            _ => return None,
        };
        let wants_ports = |proto| match proto {
            PROTO_TCP => self.types.contains(tcp),
            PROTO_UDP => self.types.contains(udp),
            _ => false,
        };
        let mut input = [0u8; 36];
        let mut len = addresses.len();
        input[..len].copy_from_slice(addresses);
        // Fragments hash by address alone, or the parts of a datagram would part ways.
        match layers.l4.filter(|&(proto, _)| !layers.fragment && wants_ports(proto)) {
            Some((_, l4)) => {
                input[len..len + 4].copy_from_slice(frame.get(l4..l4 + 4)?);
                len += 4;
            }
            None if self.types.contains(addr_type) => {}
            None => return None,
        }
        if self.last.1 == len && self.last.0 == input {
            return Some(self.last.2);
        }
        let hash = toeplitz(&self.key, &input[..len]);
        self.last = (input, len, hash);
        Some(hash)
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;

    /// The key and vectors of Microsoft's "Verifying the RSS hash calculation".
    const KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn toeplitz_vectors() {
        let v = |src: [u8; 4], dst: [u8; 4], sp: u16, dp: u16| {
            let mut input = Vec::new();
            input.extend(src);
            input.extend(dst);
            let addr = toeplitz(&KEY, &input);
            input.extend(sp.to_be_bytes());
            input.extend(dp.to_be_bytes());
            (addr, toeplitz(&KEY, &input))
        };
        assert_eq!(v([66, 9, 149, 187], [161, 142, 100, 80], 2794, 1766), (0x323e_8fc2, 0x51cc_c178));
        assert_eq!(v([199, 92, 111, 2], [65, 69, 140, 83], 14230, 4739), (0xd718_262a, 0xc626_b0ea));
        assert_eq!(v([24, 19, 198, 95], [12, 22, 207, 184], 12898, 38024), (0xd2d0_a5de, 0x5c2b_394a));
    }

    #[test]
    fn flows_follow_the_table_and_types() {
        let mut frame = vec![0u8; 54];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[23] = 6;
        frame[26..30].copy_from_slice(&[66, 9, 149, 187]);
        frame[30..34].copy_from_slice(&[161, 142, 100, 80]);
        frame[34..36].copy_from_slice(&2794u16.to_be_bytes());
        frame[36..38].copy_from_slice(&1766u16.to_be_bytes());
        let layers = crate::offload::layers(&frame).unwrap();
        let mut table = [0u8; TABLE_LEN];
        table[0x51cc_c178 % TABLE_LEN] = 3;
        table[0x323e_8fc2 % TABLE_LEN] = 2;
        let mut rss = Rss::default();
        assert_eq!(rss.select(&frame, &layers), (0, 0));
        rss.configure(RssTypes::all(), KEY, table);
        assert_eq!(rss.select(&frame, &layers), (3, 0x51cc_c178));
        assert_eq!(rss.select(&frame, &layers), (3, 0x51cc_c178), "from the flow cache");
        rss.configure(RssTypes::IPV4, KEY, table);
        assert_eq!(rss.select(&frame, &layers), (2, 0x323e_8fc2));
        rss.configure(RssTypes::IPV6, KEY, table);
        assert_eq!(rss.select(&frame, &layers), (0, 0));
    }
}
