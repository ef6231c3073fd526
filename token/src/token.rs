//! The 44 bytes of a token.

use std::fmt;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{Malformed, Window, descriptor::bytes};

/// How the client's queue pair is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Dynamically connected.
    Dc = 0,
    /// Reliable connection.
    Rc = 1,
}

/// Memory that a client offers, and the queue pair through which it can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// How the queue pair is connected.
    pub transport: Transport,
    /// Queue pair number.
    pub qpn: u32,
    /// Address of the client's port, as it is on the wire; for RoCE an IPv6 or an IPv4-mapped address.
    pub gid: [u8; 16],
    /// Remote key of the registered memory.
    pub rkey: u32,
    /// Virtual address of the first byte, in the client.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Port of the client's device, from 1.
    pub port: u8,
    /// Local identifier of the port; 0 for RoCE.
    pub lid: u16,
}

/// A token as bytes: packed, little-endian (wire document, section 1, family A).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    transport: u8,
    qpn: U32,
    gid: [u8; 16],
    rkey: U32,
    address: U64,
    length: U64,
    port: u8,
    lid: U16,
}

const _: () = assert!(size_of::<Wire>() == Token::BYTES);

impl Token {
    /// Bytes of a token.
    pub const BYTES: usize = 44;

    /// Hex digits of a token.
    pub const DIGITS: usize = 2 * Self::BYTES;

    /// What a server says of itself in a reply: a reliably connected queue pair, and no memory (rkey, address, length and
    /// port are zero; wire document, section 4, rule 3).
    #[must_use]
    pub fn endpoint(qpn: u32, gid: [u8; 16], lid: u16) -> Self {
        Self { transport: Transport::Rc, qpn, gid, rkey: 0, address: 0, length: 0, port: 0, lid }
    }

    /// The memory that is meant.
    #[must_use]
    pub fn window(&self) -> Window {
        Window { address: self.address, length: self.length }
    }

    /// Reads the bytes of a token. Errors: [`Malformed::Transport`]; every other value is a token.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, Malformed> {
        let wire: Wire = zerocopy::transmute!(*bytes);
        let transport = match wire.transport {
            0 => Transport::Dc,
            1 => Transport::Rc,
            other => return Err(Malformed::Transport(other)),
        };
        Ok(Self {
            transport,
            qpn: wire.qpn.get(),
            gid: wire.gid,
            rkey: wire.rkey.get(),
            address: wire.address.get(),
            length: wire.length.get(),
            port: wire.port,
            lid: wire.lid.get(),
        })
    }

    /// The bytes of a token.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(Wire {
            transport: match self.transport {
                Transport::Dc => 0,
                Transport::Rc => 1,
            },
            qpn: self.qpn.into(),
            gid: self.gid,
            rkey: self.rkey.into(),
            address: self.address.into(),
            length: self.length.into(),
            port: self.port,
            lid: self.lid.into(),
        })
    }

    /// Reads exactly 88 hex digits of either case.
    pub(crate) fn from_digits(digits: &[u8]) -> Result<Self, Malformed> {
        Self::from_bytes(&bytes(1, digits)?)
    }
}

/// 88 hex digits in lower case.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0; Self::DIGITS];
        hex::encode_to_slice(self.to_bytes(), &mut digits).map_err(|_| fmt::Error)?;
        f.pad(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
    }
}
