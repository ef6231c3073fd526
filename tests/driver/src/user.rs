//! Memory of a process in the guest: virtual addresses, and the pages of guest memory behind them.

use crate::{
    error::DriverError,
    ram::{DmaBuf, GuestRam, PAGE},
};

/// What lies around the memory of a process, and must stay.
const CANARY: u8 = 0xc5;
/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// How the pages of a process lie in guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// One after the other.
    Contiguous,
    /// No two of them beside each other, in an order that only the page list knows.
    Scattered,
    /// One after the other, and every virtual address at the same place in its huge page of 2 MiB as the bus address is.
    Huge,
}

/// A range of a process's memory. What it was allocated with around it holds a pattern, so that a byte that is written
/// beside it shows.
#[derive(Debug)]
pub struct UserMem {
    va: u64,
    len: usize,
    /// Where each page lies in `backing`, the first holding `va`.
    places: Vec<usize>,
    backing: DmaBuf,
}

impl UserMem {
    /// `len` bytes, at least 1, at virtual address `va`, which need not be aligned; not more than reaches the end of the
    /// address space. They hold what was there.
    ///
    /// # Errors
    /// No guest memory.
    pub fn new(ram: &GuestRam, va: u64, len: usize, placement: Placement) -> Result<Self, DriverError> {
        let slack = usize::try_from(va % PAGE as u64).unwrap_or(0);
        let pages = (slack + len.max(1)).div_ceil(PAGE);
        // A page of canaries before, behind, and between those that must not touch.
        let stride = if placement == Placement::Scattered { 2 } else { 1 };
        let bytes = (1 + stride * pages) * PAGE + PAGE * (2 - stride);
        let backing = match placement {
            Placement::Huge => {
                // The first page is a canary.
                let offset = usize::try_from(va.wrapping_sub(PAGE as u64) % HUGE_PAGE as u64).unwrap_or(0);
                ram.alloc_aligned(bytes, HUGE_PAGE, offset & !(PAGE - 1))
            }
            _ => ram.alloc_dirty(bytes),
        };
        let backing = backing.ok_or(DriverError::NoMemory(bytes))?;
        let mut places: Vec<usize> = (0..pages).map(|i| (1 + stride * i) * PAGE).collect();
        if placement == Placement::Scattered {
            shuffle(&mut places);
        }
        let mem = Self { va, len, places, backing };
        mem.for_canaries(|backing, at, n| backing.write(at, &[CANARY; PAGE][..n]));
        Ok(mem)
    }

    /// The first address.
    #[must_use]
    pub fn va(&self) -> u64 {
        self.va
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bus addresses of the pages of 4 KiB, the first holding the first address.
    #[must_use]
    pub fn pages(&self) -> Vec<u64> {
        self.places.iter().map(|at| self.backing.iova() + *at as u64).collect()
    }

    /// Bytes of the first page that are before the first address.
    fn slack(&self) -> usize {
        usize::try_from(self.va % PAGE as u64).unwrap_or(0)
    }

    /// Cuts `len` bytes from `offset` where pages end: place in the backing, and range of the bytes.
    fn pieces(&self, offset: usize, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let (first, end) = (self.slack() + offset, self.slack() + offset + len);
        assert!(offset + len <= self.len, "{offset:#x}+{len:#x} is not in {:#x} bytes", self.len);
        let mut at = first;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let n = (PAGE - at % PAGE).min(end - at);
                let piece = (self.places[at / PAGE] + at % PAGE, at - first..at - first + n);
                at += n;
                piece
            })
        })
    }

    /// Where it is: bus address and bytes of each piece.
    pub fn extents(&self) -> impl Iterator<Item = (u64, usize)> {
        self.pieces(0, self.len).map(|(place, range)| (self.backing.iova() + place as u64, range.len()))
    }

    /// Copies from `offset`. Like all accessors, panics if the range is not inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        for (place, range) in self.pieces(offset, to.len()) {
            self.backing.read(place, &mut to[range]);
        }
    }

    /// Copies to `offset`.
    pub fn write(&self, offset: usize, from: &[u8]) {
        for (place, range) in self.pieces(offset, from.len()) {
            self.backing.write(place, &from[range]);
        }
    }

    /// Reads an aligned word that the device writes, as [`DmaBuf::load_acquire`].
    #[must_use]
    pub fn load_acquire(&self, offset: usize) -> u64 {
        let at = self.slack() + offset;
        self.backing.load_acquire(self.places[at / PAGE] + at % PAGE)
    }

    /// All of it.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes);
        bytes
    }

    /// Whether nothing beside it was touched.
    #[must_use]
    pub fn intact(&self) -> bool {
        let mut intact = true;
        self.for_canaries(|backing, at, n| {
            intact &= backing.with_bytes(at, n, |bytes| bytes.iter().all(|byte| *byte == CANARY));
        });
        intact
    }

    /// Everything in the backing that is not the process's, in pieces within pages.
    fn for_canaries(&self, mut f: impl FnMut(&DmaBuf, usize, usize)) {
        let pages = self.backing.len() / PAGE;
        let mut used = vec![false; pages];
        for place in &self.places {
            used[place / PAGE] = true;
        }
        for (page, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
            f(&self.backing, page * PAGE, PAGE);
        }
        f(&self.backing, self.places[0], self.slack());
        let end = (self.slack() + self.len) % PAGE;
        if end > 0
            && let Some(last) = self.places.last()
        {
            f(&self.backing, last + end, PAGE - end);
        }
    }
}

/// An order without a pattern, the same each time.
fn shuffle(places: &mut [usize]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..places.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bound = i as u64 + 1;
        places.swap(i, usize::try_from((state >> 33) % bound).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_where_the_page_list_says() {
        let ram = GuestRam::new(16 << 20, 0x1_0000_0000).unwrap();
        for placement in [Placement::Contiguous, Placement::Scattered, Placement::Huge] {
            for (va, len) in [(0x7f00_0000_0005, 3 * PAGE), (0x1000, PAGE), (u64::MAX - 99, 100), (0x2ffe, 4)] {
                let mem = UserMem::new(&ram, va, len, placement).unwrap();
                let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect();
                mem.write(0, &bytes);
                assert!(mem.intact() && mem.content() == bytes);
                let pages = mem.pages();
                for (i, byte) in bytes.iter().enumerate() {
                    let at = va % PAGE as u64 + i as u64;
                    let mut got = [0];
                    assert!(ram.read(pages[usize::try_from(at).unwrap() / PAGE] + at % PAGE as u64, &mut got));
                    assert_eq!(got[0], *byte);
                }
                if placement == Placement::Huge {
                    assert_eq!((pages[0] ^ va) % HUGE_PAGE as u64 / PAGE as u64, 0);
                }
            }
        }
    }

    #[test]
    fn a_byte_beside_it_shows() {
        let ram = GuestRam::new(16 << 20, 0).unwrap();
        for placement in [Placement::Contiguous, Placement::Scattered, Placement::Huge] {
            let mem = UserMem::new(&ram, 0x1ffe, PAGE, placement).unwrap();
            let first = mem.pages()[0];
            for at in [first + 0xffd, first - 1, first - PAGE as u64, mem.pages()[1] + 0xffe] {
                let mut old = [0];
                assert!(ram.read(at, &mut old) && mem.intact());
                assert!(ram.write(at, &[!old[0]]) && !mem.intact(), "{at:#x} of {mem:?}");
                assert!(ram.write(at, &old));
            }
        }
    }
}
