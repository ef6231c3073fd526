//! Work requests as they lie in their rings (`struct ionic_v1_wqe`, 05 §2 and §3): a copy, taken once.

use ionic_abi::{MrFlags, WorkFlags, WorkOp};

use super::{
    pages::PageList,
    region::{Bind, Piece, Register},
};
use crate::mem::{AtomicOp, DmaError, GuestMemory};

/// Bytes of the longest entry (`max_stride`).
const MAX_ENTRY: usize = 512;
/// Where the payload starts: bytes of an inline one, or SGEs; and SGEs behind speculative lengths.
const PAYLOAD: usize = 32;
const PAYLOAD_SPEC: usize = 64;
/// Bytes of an SGE.
const SGE: usize = 16;
/// Longest message (`max_msg_sz` of the driver's port attributes).
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

/// An entry of a send or receive queue.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    raw: [u8; MAX_ENTRY],
    len: usize,
}

/// A list of pieces of memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum List<'a> {
    /// Those of an entry.
    Entry(&'a Entry),
    /// One.
    One(Piece),
}

impl List<'_> {
    pub(super) fn get(&self, index: usize) -> Option<Piece> {
        match self {
            Self::Entry(entry) => entry.piece(index),
            Self::One(piece) => (index == 0).then_some(*piece),
        }
    }
}

impl Entry {
    /// Copies an entry of `len` bytes.
    pub(super) fn read(mem: &GuestMemory, at: u64, len: usize) -> Result<Self, DmaError> {
        let mut entry = Self { raw: [0; MAX_ENTRY], len: len.min(MAX_ENTRY) };
        let raw = entry.raw.get_mut(..entry.len).unwrap_or_default();
        mem.read(at, raw)?;
        Ok(entry)
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.raw.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    /// A word, big-endian.
    pub(super) fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    /// A double word, big-endian.
    pub(super) fn double(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    /// What completions call it.
    pub(super) fn index(&self) -> u16 {
        u16::from_le_bytes(self.bytes(0))
    }

    pub(super) fn op(&self) -> WorkOp {
        let [op] = self.bytes(8);
        WorkOp(op)
    }

    /// Number of SGEs, or a key byte.
    fn count(&self) -> u8 {
        let [count] = self.bytes(9);
        count
    }

    pub(super) fn flags(&self) -> WorkFlags {
        WorkFlags::from_bits_truncate(u16::from_be_bytes(self.bytes(10)))
    }

    /// Immediate data or a key, as it stands.
    pub(super) fn immediate(&self) -> u32 {
        self.word(12)
    }

    /// The payload, if it is in the request; `None` also if it would leave it.
    pub(super) fn inline(&self) -> Option<&[u8]> {
        let len = usize::try_from(self.word(28)).ok()?;
        self.raw.get(..self.len)?.get(PAYLOAD..)?.get(..len)
    }

    /// Bytes of the message; `None` if the request does not hold what it says, or it would be too long.
    pub(super) fn total(&self) -> Option<u64> {
        if self.flags().contains(WorkFlags::INL) {
            return self.inline().and_then(|bytes| u64::try_from(bytes.len()).ok());
        }
        let count = usize::from(self.count());
        if self.list_at() + count * SGE > self.len && count > 0 {
            return None;
        }
        let total = (0..count).filter_map(|i| self.piece(i)).map(|piece| u64::from(piece.len)).sum();
        (total <= MAX_MESSAGE).then_some(total)
    }

    fn list_at(&self) -> usize {
        if self.flags().intersects(WorkFlags::SPEC32 | WorkFlags::SPEC16) { PAYLOAD_SPEC } else { PAYLOAD }
    }

    fn piece(&self, index: usize) -> Option<Piece> {
        let at = self.list_at() + index * SGE;
        (index < usize::from(self.count())).then(|| self.piece_at(at))
    }

    fn piece_at(&self, at: usize) -> Piece {
        Piece { va: self.double(at), len: self.word(at + 8), key: self.word(at + 12) }
    }

    /// The peer's memory, of reads and writes: `len` bytes of it.
    pub(super) fn remote(&self, len: u32) -> Piece {
        Piece { va: self.double(16), len, key: self.word(24) }
    }

    /// An atomic operation: what it does to the peer's memory, and where the number before goes (version 1).
    pub(super) fn atomic(&self) -> (AtomicOp, Piece, Piece) {
        let operand = self.double(28);
        let op = match self.op() {
            WorkOp::ATOMIC_CS => AtomicOp::Swap { compare: self.double(36), swap: operand },
            _ => AtomicOp::Add(operand),
        };
        (op, self.remote(8), self.piece_at(48))
    }

    /// REG_MR.
    pub(super) fn register(&self) -> Register {
        let [_, shift] = self.bytes(54);
        Register {
            key: self.immediate(),
            byte: self.count(),
            access: MrFlags::from_bits_truncate(u16::from_be_bytes(self.bytes(52))),
            list: PageList {
                va: self.double(16),
                length: self.double(24),
                map_count: self.word(48),
                dma_addr: self.double(40),
                shift,
            },
        }
    }

    /// Bytes of the page table that a REG_MR brings.
    pub(super) fn table(&self) -> u64 {
        if self.op() == WorkOp::REG_MR { u64::from(self.word(48)) * 8 } else { 0 }
    }

    /// BIND_MW.
    pub(super) fn bind(&self) -> Bind {
        Bind {
            window: self.immediate(),
            byte: self.count(),
            access: MrFlags::from_bits_truncate(u16::from_be_bytes(self.bytes(36))),
            parent: self.word(32),
            va: self.double(16),
            length: self.double(24),
        }
    }
}

/// A packet header up to UDP, as address handles and connections have it (04 §5.8).
#[derive(Debug, Clone)]
pub(super) struct Template(Vec<u8>);

/// Bytes before the payload of a datagram in the receiver's buffer.
pub(super) const GRH: usize = 40;
/// What a datagram has behind its IP header, beside the payload: UDP, BTH, DETH, ICRC; and immediate data.
const BEHIND_IP: usize = 8 + 12 + 8 + 4;
const IMMEDIATE: usize = 4;

impl Template {
    /// Lengths: Ethernet, optional VLAN, IPv4 or IPv6, UDP.
    pub(super) const LENGTHS: [usize; 4] = [42, 46, 62, 66];

    /// `None` unless it has one of the lengths.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        Self::LENGTHS.contains(&bytes.len()).then_some(Self(bytes))
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    /// Source at the link.
    pub(super) fn mac(&self) -> [u8; 6] {
        self.get(6)
    }

    pub(super) fn v4(&self) -> bool {
        matches!(self.0.len(), 42 | 46)
    }

    /// VLAN tag.
    pub(super) fn tci(&self) -> Option<u16> {
        matches!(self.0.len(), 46 | 66).then(|| u16::from_be_bytes(self.get(14)))
    }

    fn ip(&self) -> usize {
        if self.tci().is_some() { 18 } else { 14 }
    }

    /// Whether it leads back to where it comes from: the kernel resolves an address of its own to its own link address.
    pub(super) fn loops(&self) -> bool {
        let ip = self.ip();
        let same_link = self.get::<6>(0) == self.mac();
        let same_address = if self.v4() {
            self.get::<4>(ip + 12) == self.get(ip + 16)
        } else {
            self.get::<16>(ip + 8) == self.get(ip + 24)
        };
        same_link || same_address
    }

    /// The 40 bytes in front of a datagram of `len` bytes: the IPv6 header, or 20 zeros and the IPv4 header.
    pub(super) fn grh(&self, len: usize, immediate: bool) -> [u8; GRH] {
        let mut area = [0; GRH];
        let behind = BEHIND_IP + if immediate { IMMEDIATE } else { 0 } + len.next_multiple_of(4);
        let ip = self.ip();
        if self.v4() {
            let mut header: [u8; 20] = self.get(ip);
            header[2..4].copy_from_slice(&u16::try_from(20 + behind).unwrap_or(u16::MAX).to_be_bytes());
            header[10..12].fill(0);
            let words = header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
            let sum = words.sum::<u32>();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            header[10..12].copy_from_slice(&(!u16::try_from(sum).unwrap_or(0)).to_be_bytes());
            area[20..].copy_from_slice(&header);
        } else {
            area = self.get(ip);
            area[4..6].copy_from_slice(&u16::try_from(behind).unwrap_or(u16::MAX).to_be_bytes());
        }
        area
    }
}
