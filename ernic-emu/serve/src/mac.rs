//! Ethernet addresses: the one a person gives, the one derived from the socket path, the endpoint's.

use std::{fmt, net::Ipv4Addr, path::Path, str::FromStr};

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

/// Why an address cannot be a NIC's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MacError {
    /// Not six pairs of hexadecimal digits.
    #[error("six pairs of hexadecimal digits are wanted, as in 02:1d:00:00:00:01")]
    Malformed,
    /// The group bit is set.
    #[error("it is a group address; the first byte must be even")]
    Group,
    /// All zero.
    #[error("it is all zero")]
    Zero,
}

impl Mac {
    /// The NIC's address when none is given: `02:1d:` (locally administered, unicast) and a 32-bit hash of the socket's
    /// path, so that it stays the same from start to start and differs between two servers on one machine. The second
    /// byte keeps it apart from [`Mac::of_endpoint`]. The path should be absolute.
    #[must_use]
    pub fn of_socket(path: &Path) -> Self {
        let hash = fnv1a(path.as_os_str().as_encoded_bytes());
        // Folding keeps all of the 64 bits in play.
        let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
        Self([0x02, 0x1d, a ^ e, b ^ f, c ^ g, d ^ h])
    }

    /// The endpoint's address: `02:53:` and its IPv4 address.
    #[must_use]
    pub fn of_endpoint(ip: Ipv4Addr) -> Self {
        let [a, b, c, d] = ip.octets();
        Self([0x02, 0x53, a, b, c, d])
    }

    /// Its bytes, in the order of the wire.
    #[must_use]
    pub fn octets(self) -> [u8; 6] {
        self.0
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv, section 5: offset basis and prime). Chosen because it is fixed for ever, unlike
/// the standard library's hasher, and short; nothing depends on its strength.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = MacError;

    /// Reads six pairs of hexadecimal digits between colons or dashes; refuses what cannot be a NIC's own address.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut mac = [0; 6];
        let mut pairs = text.split(separator);
        for byte in &mut mac {
            let pair = pairs.next().ok_or(MacError::Malformed)?;
            // `from_str_radix` alone would take a sign.
            if pair.len() != 2 || !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(MacError::Malformed);
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| MacError::Malformed)?;
        }
        if pairs.next().is_some() {
            return Err(MacError::Malformed);
        }
        if mac == [0; 6] {
            return Err(MacError::Zero);
        }
        if mac[0] & 1 != 0 {
            return Err(MacError::Group);
        }
        Ok(Self(mac))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn text_both_ways() {
        let mac = Mac([0x02, 0x1d, 0x0a, 0xb0, 0xff, 0x00]);
        assert_eq!(mac.to_string(), "02:1d:0a:b0:ff:00");
        assert_eq!("02:1D:0a:B0:ff:00".parse(), Ok(mac));
        assert_eq!("02-1d-0a-b0-ff-00".parse(), Ok(mac));
        for text in
            ["", "02:1d:0a:b0:ff", "02:1d:0a:b0:ff:00:11", "2:1d:0a:b0:ff:00", "02:1d:0a:b0:ff:0g", "021d0ab0ff00"]
        {
            assert_eq!(text.parse::<Mac>(), Err(MacError::Malformed), "{text:?}");
        }
        for text in ["+2:1d:0a:b0:ff:00", "02:1d-0a:b0:ff:00", " 02:1d:0a:b0:ff:00"] {
            assert_eq!(text.parse::<Mac>(), Err(MacError::Malformed), "{text:?}");
        }
        assert_eq!("01:00:5e:00:00:01".parse::<Mac>(), Err(MacError::Group));
        assert_eq!("ff:ff:ff:ff:ff:ff".parse::<Mac>(), Err(MacError::Group));
        assert_eq!("00:00:00:00:00:00".parse::<Mac>(), Err(MacError::Zero));
    }

    #[test]
    fn endpoint_address_follows_its_ip() {
        assert_eq!(Mac::of_endpoint(Ipv4Addr::new(192, 168, 200, 1)).to_string(), "02:53:c0:a8:c8:01");
    }

    #[test]
    fn hash_is_the_published_one() {
        // Test vectors of the FNV draft, appendix C.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn socket_addresses_are_stable_apart_and_usable() {
        // Pinned: a guest that names its interface after the address must find it again after an upgrade.
        assert_eq!(Mac::of_socket(Path::new("/tmp/ernic.sock")).to_string(), "02:1d:c1:ae:10:03");
        let many: HashSet<_> = (0..1000).map(|i| Mac::of_socket(Path::new(&format!("/tmp/ernic-{i}.sock")))).collect();
        assert_eq!(many.len(), 1000);
        for mac in many {
            assert_eq!(mac.to_string().parse(), Ok(mac), "unicast");
            assert_ne!(mac.0[1], 0x53, "never an endpoint's");
        }
    }
}
