//! The seven fields of a cuObject token.

use std::fmt;

use crate::{Malformed, Window};

/// Memory that a client offers, and the dynamically connected queue pair through which it can be reached: the token of
/// NVIDIA's libcuobjclient and of all that speak to it (wire document, section 1, family C).
///
/// Written as `address:length:rkey:lid:qpn:gid_present:gid`, hex numbers of fixed widths, most significant digit first, 81
/// characters in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Virtual address of the first byte, in the client.
    pub address: u64,
    /// Bytes; 0 is malformed, unless the length comes from elsewhere (families D and E).
    pub length: u32,
    /// Remote key of the registered memory.
    pub rkey: u32,
    /// Local identifier of the client's port; 0 for RoCE.
    pub lid: u16,
    /// Queue pair number.
    pub qpn: Qpn,
    /// Address of the client's port, in the order of its bytes; for RoCE an IPv6 or an IPv4-mapped address.
    ///
    /// `None` is `gid_present` 0: the client is reached by its LID alone (InfiniBand within one subnet). The 32 digits that
    /// follow are there all the same, say nothing, and are written as zeros.
    pub gid: Option<[u8; 16]>,
}

/// Queue pair number: 24 bits (InfiniBand Architecture Specification, "QP number").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The largest number.
    pub const MAX: Self = Self(0xff_ffff);

    /// A queue pair number, if it is one of 24 bits.
    #[must_use]
    pub fn new(qpn: u32) -> Option<Self> {
        (qpn <= Self::MAX.0).then_some(Self(qpn))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Descriptor {
    /// Characters of a descriptor.
    pub const CHARACTERS: usize = 81;

    /// The memory that is meant.
    #[must_use]
    pub fn window(&self) -> Window {
        Window { address: self.address, length: self.length.into() }
    }

    /// Reads the seven fields. They are counted from 1.
    pub(crate) fn from_fields(fields: [&[u8]; 7]) -> Result<Self, Malformed> {
        let [address, length, rkey, lid, qpn, gid_present, gid] = fields;
        let address = u64::from_be_bytes(bytes(1, address)?);
        let length = u32::from_be_bytes(bytes(2, length)?);
        let rkey = u32::from_be_bytes(bytes(3, rkey)?);
        let lid = u16::from_be_bytes(bytes(4, lid)?);
        let [a, b, c] = bytes(5, qpn)?;
        let gid_present = match gid_present {
            b"0" => false,
            b"1" => true,
            [digit] if digit.is_ascii_hexdigit() => return Err(Malformed::GidPresent),
            [_] => return Err(Malformed::Digit { field: 6 }),
            other => return Err(Malformed::Width { field: 6, digits: other.len() }),
        };
        let gid = bytes(7, gid)?;
        Ok(Self {
            address,
            length,
            rkey,
            lid,
            qpn: Qpn(u32::from_be_bytes([0, a, b, c])),
            gid: gid_present.then_some(gid),
        })
    }
}

/// Lower case.
impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, length, rkey, lid, qpn: Qpn(qpn), gid } = self;
        let present = u8::from(gid.is_some());
        let gid = u128::from_be_bytes(gid.unwrap_or_default());
        write!(f, "{address:016x}:{length:08x}:{rkey:08x}:{lid:04x}:{qpn:06x}:{present}:{gid:032x}")
    }
}

/// Exactly `2 * N` hex digits of either case.
pub(crate) fn bytes<const N: usize>(field: usize, digits: &[u8]) -> Result<[u8; N], Malformed> {
    if digits.len() != 2 * N {
        return Err(Malformed::Width { field, digits: digits.len() });
    }
    let mut bytes = [0; N];
    hex::decode_to_slice(digits, &mut bytes).map_err(|_| Malformed::Digit { field })?;
    Ok(bytes)
}
