//! Page lists: how a region or a queue lies in guest memory.

use ionic_abi::AdminStatus;
use zerocopy::IntoBytes;

use crate::mem::GuestMemory;

/// Addresses have 52 bits (`IONIC_ADDR_LEN`).
const MAX_ADDRESS: u64 = 1 << 52;
/// Page sizes that the driver uses: 4 KiB, 2 MiB, 1 GiB (`page_size_cap` 0x40201000).
const PAGE_SHIFTS: [u8; 3] = [12, 21, 30];

/// Where the bytes of `[va, va + length)` are. A copy: the driver frees its table as soon as the command completes.
#[derive(Debug)]
pub(super) struct Pages {
    va: u64,
    length: u64,
    layout: Layout,
}

#[derive(Debug)]
enum Layout {
    /// One run; the bus address of `va` itself.
    Direct(u64),
    /// Page addresses; the first holds `va`.
    Table { shift: u8, pages: Box<[u64]> },
}

/// How the driver describes a list (04 §5.2).
#[derive(Debug, Clone, Copy)]
pub(super) struct PageList {
    pub(super) va: u64,
    pub(super) length: u64,
    pub(super) map_count: u32,
    pub(super) dma_addr: u64,
    pub(super) shift: u8,
}

impl Pages {
    /// Reads a list. `budget` is how many table entries the device still takes; the entries used are subtracted.
    pub(super) fn read(mem: &GuestMemory, list: PageList, budget: &mut u64) -> Result<Self, AdminStatus> {
        let PageList { va, length, map_count, dma_addr, shift } = list;
        let last = match length.checked_sub(1) {
            Some(more) => va.checked_add(more).ok_or(AdminStatus::BAD_ATTR)?,
            None => va,
        };
        let layout = match map_count {
            0 => return Err(AdminStatus::BAD_ATTR),
            1 => {
                let end = dma_addr.checked_add(length).ok_or(AdminStatus::BAD_ATTR)?;
                if end > MAX_ADDRESS {
                    return Err(AdminStatus::BAD_ATTR);
                }
                Layout::Direct(dma_addr)
            }
            count => {
                if !PAGE_SHIFTS.contains(&shift) {
                    return Err(AdminStatus::BAD_ATTR);
                }
                let needed = (last >> shift) - (va >> shift) + 1;
                // More pages than bytes is a driver that lies; fewer is a region with a hole.
                if needed != u64::from(count) {
                    return Err(AdminStatus::BAD_ATTR);
                }
                *budget = budget.checked_sub(needed).ok_or(AdminStatus::BAD_ATTR)?;
                let read = read_table(mem, dma_addr, count, shift);
                if read.is_err() {
                    *budget += needed;
                }
                Layout::Table { shift, pages: read? }
            }
        };
        Ok(Self { va, length, layout })
    }

    /// One run, if its addresses make sense.
    pub(super) fn contiguous(base: u64, length: u64) -> Option<Self> {
        let end = base.checked_add(length)?;
        (end <= MAX_ADDRESS).then_some(Self { va: 0, length, layout: Layout::Direct(base) })
    }

    /// Table entries held.
    pub(super) fn entries(&self) -> u64 {
        match &self.layout {
            Layout::Direct(_) => 0,
            Layout::Table { pages, .. } => u64::try_from(pages.len()).unwrap_or(u64::MAX),
        }
    }

    pub(super) fn va(&self) -> u64 {
        self.va
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Whether `[address, address + len)` lies inside.
    pub(super) fn covers(&self, address: u64, len: u64) -> bool {
        address.checked_sub(self.va).is_some_and(|offset| offset <= self.length && len <= self.length - offset)
    }

    /// The bus address of `address`, which is inside, and how many bytes behind it are contiguous, at most `len`.
    /// Neighbouring pages that are neighbours on the bus too make one run.
    pub(super) fn run(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        let offset = address.checked_sub(self.va).filter(|offset| *offset < self.length)?;
        let len = len.min(self.length - offset);
        match &self.layout {
            Layout::Direct(base) => Some((base.checked_add(offset)?, len)),
            Layout::Table { shift, pages } => {
                let size = 1u64 << shift;
                let within = address & (size - 1);
                let mut index = usize::try_from((address >> shift) - (self.va >> shift)).ok()?;
                let first = *pages.get(index)?;
                let mut run = size - within;
                let mut next = first.wrapping_add(size);
                while run < len {
                    index += 1;
                    if pages.get(index) != Some(&next) {
                        break;
                    }
                    next = next.wrapping_add(size);
                    run += size;
                }
                Some((first + within, run.min(len)))
            }
        }
    }
}

fn read_table(mem: &GuestMemory, at: u64, count: u32, shift: u8) -> Result<Box<[u64]>, AdminStatus> {
    let count = usize::try_from(count).map_err(|_| AdminStatus::BAD_ATTR)?;
    // All of it must be there before memory is taken for it: the count is the guest's.
    mem.check(at, count * 8, crate::mem::Prot::READ).map_err(|_| AdminStatus::BAD_ATTR)?;
    let mut pages = vec![0u64; count].into_boxed_slice();
    mem.read(at, pages.as_mut_bytes()).map_err(|_| AdminStatus::BAD_ATTR)?;
    let size = 1u64 << shift;
    for page in &mut *pages {
        *page = u64::from_le(*page);
        if !page.is_multiple_of(size) || *page > MAX_ADDRESS - size {
            return Err(AdminStatus::BAD_ATTR);
        }
    }
    Ok(pages)
}
