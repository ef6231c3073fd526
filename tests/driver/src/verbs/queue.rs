//! Rings that the device writes: event queues and completion queues.

use ionic_abi::{CQE_COLOR, EQE_COLOR};

use super::mr::PageTable;
use crate::{
    error::DriverError,
    ram::{DmaBuf, GuestRam, PAGE},
    user::{Placement, UserMem},
};

/// Memory of a ring, zeroed: one run if it is the kernel's, pages in any order if it is a process's. Virtual addresses of
/// rings count from 0.
pub(super) fn ring(ram: &GuestRam, bytes: usize, kernel: bool) -> Result<UserMem, DriverError> {
    let placement = if kernel { Placement::Contiguous } else { Placement::Scattered };
    let mem = UserMem::new(ram, 0, bytes, placement)?;
    mem.write(0, &vec![0; bytes]);
    Ok(mem)
}

/// How a ring is described (04 §5.2): pages, their size (log2), and the pages of a table, of which there is none for one run.
pub(super) fn ring_table(mem: &UserMem, kernel: bool) -> (u32, u8, Option<Vec<u64>>) {
    if kernel {
        return (1, 0, None);
    }
    // Rings of processes are always described in small pages.
    let pages = PageTable::new(0, mem.len() as u64, &mem.pages(), PAGE as u64).map_or(Vec::new(), |table| table.pages);
    let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
    (count, 12, (pages.len() > 1).then_some(pages))
}

/// An event queue: words of 4 bytes, big-endian.
#[derive(Debug)]
pub(super) struct EventRing {
    pub(super) vector: u16,
    ring: DmaBuf,
    at: usize,
    color: bool,
}

impl EventRing {
    /// Entries: a page of them (`ionic_queue_init` makes a page of the 512 that are asked for).
    pub(super) const LOG2: u8 = 10;

    pub(super) fn new(ram: &GuestRam, vector: u16) -> Result<Self, DriverError> {
        Ok(Self { vector, ring: ram.alloc(PAGE).ok_or(DriverError::NoMemory(PAGE))?, at: 0, color: true })
    }

    pub(super) fn iova(&self) -> u64 {
        self.ring.iova()
    }

    /// Where the device writes.
    pub(super) fn extent(&self) -> (u64, usize) {
        (self.ring.iova(), 4 << Self::LOG2)
    }

    fn peek(&self) -> Option<u32> {
        let pair = self.ring.load_acquire(self.at / 2 * 8);
        let words = [pair & 0xffff_ffff, pair >> 32];
        let word = u32::try_from(words[self.at % 2]).unwrap_or(0).swap_bytes();
        ((word & EQE_COLOR != 0) == self.color).then_some(word)
    }

    pub(super) fn ready(&self) -> bool {
        self.peek().is_some()
    }

    pub(super) fn next(&mut self) -> Option<u32> {
        let event = self.peek()?;
        self.at = (self.at + 1) % (1 << Self::LOG2);
        self.color ^= self.at == 0;
        Some(event)
    }
}

/// A completion, as it lies in the ring.
pub(super) type Cqe = [u8; 32];

/// A word of a completion, big-endian.
pub(super) fn be32(cqe: &Cqe, at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&cqe[at..at + 4]);
    u32::from_be_bytes(word)
}

/// A completion queue of the device.
#[derive(Debug)]
pub(super) struct CompletionRing {
    pub(super) number: u32,
    pub(super) ring: UserMem,
    pub(super) log2: u8,
    /// Next entry to read, and what the device was last told of it.
    pub(super) at: u16,
    pub(super) told: u16,
    color: bool,
    /// How often it was armed, and whether an event is due.
    pub(super) arms: u16,
    pub(super) armed: bool,
    /// An event may come without having been asked for: queues of processes start armed.
    unasked: bool,
}

impl CompletionRing {
    /// A ring of `1 << log2` entries; the kernel's, or a process's.
    pub(super) fn new(ram: &GuestRam, number: u32, log2: u8, kernel: bool) -> Result<Self, DriverError> {
        let ring = ring(ram, 32 << log2, kernel)?;
        Ok(Self { number, ring, log2, at: 0, told: 0, color: true, arms: 0, armed: false, unasked: !kernel })
    }

    /// The beginning of the ring.
    pub(super) fn iova(&self) -> u64 {
        self.ring.pages().first().copied().unwrap_or(0)
    }

    /// An event came: one per arm.
    pub(super) fn disarmed(&mut self, whose: &str) -> Result<(), DriverError> {
        if !std::mem::take(&mut self.armed) && !std::mem::take(&mut self.unasked) {
            let text = format!("an event of {whose} completion queue {}, which is not armed", self.number);
            return Err(DriverError::Violation(text));
        }
        Ok(())
    }

    fn peek(&self) -> Option<Cqe> {
        let at = usize::from(self.at) * 32;
        let last = self.ring.load_acquire(at + 24);
        let [.., byte] = last.to_le_bytes();
        if (u32::from(byte) & CQE_COLOR != 0) != self.color {
            return None;
        }
        let mut cqe = [0; 32];
        self.ring.read(at, &mut cqe[..24]);
        cqe[24..].copy_from_slice(&last.to_le_bytes());
        Some(cqe)
    }

    pub(super) fn ready(&self) -> bool {
        self.peek().is_some()
    }

    pub(super) fn next(&mut self) -> Option<Cqe> {
        let cqe = self.peek()?;
        self.at = u16::try_from((u32::from(self.at) + 1) % (1 << self.log2)).unwrap_or(0);
        self.color ^= self.at == 0;
        Some(cqe)
    }
}
