//! The guest's memory: a memfd that the device maps, and an allocator of DMA buffers in it.
//!
//! It is made the way QEMU makes a guest's RAM (`memory-backend-memfd,share=on`): sealed against shrinking, mapped shared.
//! The driver's own view is a mapping of its own; every access is a copy through a raw pointer or an atomic, except
//! [`DmaBuf::with_bytes`] and [`DmaBuf::with_bytes_mut`], which are for buffers that the device has given back or not yet got.
#![allow(unsafe_code)] // A shared mapping, and raw copies in and out of it.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use ernic_emu::mem::MessageDma;
use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{MapFlags, ProtFlags},
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Granularity of allocations and of DMA maps, bytes.
pub const PAGE: usize = 4096;

/// The guest's memory. Clones are the same memory.
#[derive(Clone)]
pub struct GuestRam(Arc<Inner>);

struct Inner {
    base: *mut u8,
    len: usize,
    iova: u64,
    fd: OwnedFd,
    free: Mutex<Free>,
}

// SAFETY: the pointer is that of a shared mapping which lives as long as `Inner`; it is used for copies and atomics only.
unsafe impl Send for Inner {}
// SAFETY: as above; whoever copies from two threads at once gets what the guest of a real NIC gets.
unsafe impl Sync for Inner {}

/// Free pages, and what was handed out before.
#[derive(Debug)]
struct Free {
    /// Start and length of each free run, bytes.
    runs: BTreeMap<usize, usize>,
    /// Everything from here on was never handed out and is still zero.
    fresh: usize,
}

impl fmt::Debug for GuestRam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestRam").field("iova", &self.0.iova).field("len", &self.0.len).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are those of the mmap in `new`, and nobody has a pointer into it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

fn round_up(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

impl GuestRam {
    /// `len` bytes of zeroes that the device sees at `iova`. Both are rounded to pages.
    ///
    /// # Errors
    /// The memfd cannot be made or mapped.
    pub fn new(len: usize, iova: u64) -> io::Result<Self> {
        let len = round_up(len);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("guest-ram", flags)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        // What QEMU's memfd backend arrives with.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        }?;
        let free = Mutex::new(Free { runs: BTreeMap::from([(0, len)]), fresh: 0 });
        Ok(Self(Arc::new(Inner { base: base.cast(), len, iova: iova & !(PAGE as u64 - 1), fd, free })))
    }

    /// The file behind it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// Where the device sees it.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.0.iova
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Page-aligned, contiguous, zeroed memory; `None` if there is not enough.
    #[must_use]
    pub fn alloc(&self, len: usize) -> Option<DmaBuf> {
        let (buf, used) = self.take(len)?;
        if used {
            buf.fill(0);
        }
        Some(buf)
    }

    /// As [`GuestRam::alloc`], with whatever the last user left in it.
    #[must_use]
    pub fn alloc_dirty(&self, len: usize) -> Option<DmaBuf> {
        self.take(len).map(|(buf, _)| buf)
    }

    /// As [`GuestRam::alloc_dirty`], at an address for the device that is a multiple of `align` bytes, a power of two, plus
    /// `offset`.
    #[must_use]
    pub fn alloc_aligned(&self, len: usize, align: usize, offset: usize) -> Option<DmaBuf> {
        self.take_at(len, align.max(PAGE), offset).map(|(buf, _)| buf)
    }

    fn take(&self, len: usize) -> Option<(DmaBuf, bool)> {
        self.take_at(len, PAGE, 0)
    }

    fn take_at(&self, len: usize, align: usize, offset: usize) -> Option<(DmaBuf, bool)> {
        let len = round_up(len.max(1));
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mask = align as u64 - 1;
        let (start, room, at) = free.runs.iter().find_map(|(&start, &room)| {
            let bus = self.0.iova + start as u64;
            let skip = usize::try_from((offset as u64).wrapping_sub(bus) & mask).ok()?;
            (skip.checked_add(len)? <= room).then_some((start, room, start + skip))
        })?;
        free.runs.remove(&start);
        for (from, to) in [(start, at), (at + len, start + room)] {
            if from < to {
                free.runs.insert(from, to - from);
            }
        }
        let used = at < free.fresh;
        free.fresh = free.fresh.max(at + len);
        Some((DmaBuf { ram: Arc::clone(&self.0), at, len }, used))
    }

    /// Offset of `len` bytes at `iova`, if they are inside.
    fn offset(&self, iova: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(iova.checked_sub(self.0.iova)?).ok()?;
        (at.checked_add(len)? <= self.0.len).then_some(at)
    }

    /// Copies from `iova`; `false` if the range is not inside.
    pub fn read(&self, iova: u64, to: &mut [u8]) -> bool {
        let Some(at) = self.offset(iova, to.len()) else { return false };
        self.0.copy_out(at, to);
        true
    }

    /// Copies to `iova`; `false` if the range is not inside.
    pub fn write(&self, iova: u64, from: &[u8]) -> bool {
        let Some(at) = self.offset(iova, from.len()) else { return false };
        self.0.copy_in(at, from);
        true
    }
}

/// What a vfio-user client answers DMA_READ and DMA_WRITE from, where memory was mapped without a descriptor.
impl MessageDma for GuestRam {
    fn read(&self, iova: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.read(iova, buf) { Ok(()) } else { Err(io::ErrorKind::AddrNotAvailable.into()) }
    }

    fn write(&self, iova: u64, buf: &[u8]) -> io::Result<()> {
        if self.write(iova, buf) { Ok(()) } else { Err(io::ErrorKind::AddrNotAvailable.into()) }
    }
}

impl Inner {
    fn copy_out(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.len, "read beyond guest memory");
        // SAFETY: the range is inside the mapping, and `to` is ours.
        unsafe { ptr::copy_nonoverlapping(self.base.add(at), to.as_mut_ptr(), to.len()) }
    }

    fn copy_in(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len, "write beyond guest memory");
        // SAFETY: the range is inside the mapping, and `from` is not in it.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.base.add(at), from.len()) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "not an aligned word of guest memory");
        // SAFETY: aligned, inside the mapping, and only ever used as an atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }
}

/// Contiguous, page-aligned guest memory. It goes back to the allocator when dropped.
pub struct DmaBuf {
    ram: Arc<Inner>,
    at: usize,
    len: usize,
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({:#x}+{:#x})", self.iova(), self.len)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        let mut free = self.ram.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut at, mut len) = (self.at, self.len);
        if let Some((&before, &room)) = free.runs.range(..at).next_back()
            && before + room == at
        {
            free.runs.remove(&before);
            (at, len) = (before, len + room);
        }
        if let Some(room) = free.runs.remove(&(at + len)) {
            len += room;
        }
        free.runs.insert(at, len);
    }
}

impl DmaBuf {
    /// Where the device sees it.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.ram.iova + self.at as u64
    }

    /// Bytes; a multiple of [`PAGE`].
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Position of `len` bytes at `offset` in the memory.
    fn inside(&self, offset: usize, len: usize) -> usize {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{offset:#x}+{len:#x} is not in {self:?}");
        self.at + offset
    }

    /// Copies from `offset`. Like all accessors, panics if the range is not inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.ram.copy_out(self.inside(offset, to.len()), to);
    }

    /// Copies to `offset`.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.ram.copy_in(self.inside(offset, from.len()), from);
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: the buffer is inside the mapping.
        unsafe { ptr::write_bytes(self.ram.base.add(self.at), byte, self.len) }
    }

    /// Reads a structure.
    #[must_use]
    pub fn load<T: FromBytes + IntoBytes>(&self, offset: usize) -> T {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes());
        value
    }

    /// Writes a structure.
    pub fn store<T: IntoBytes + Immutable>(&self, offset: usize, value: &T) {
        self.write(offset, value.as_bytes());
    }

    /// Reads an aligned word that the device writes: what it wrote before is visible after this.
    #[must_use]
    pub fn load_acquire(&self, offset: usize) -> u64 {
        u64::from_le(self.ram.word(self.inside(offset, 8)).load(Ordering::Acquire))
    }

    /// Lends bytes that the device does not write now: a completed receive buffer, or one of the driver's own.
    pub fn with_bytes<R>(&self, offset: usize, len: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let at = self.inside(offset, len);
        // SAFETY: inside the mapping. The caller owns the buffer: the device has completed it and does not have it again.
        f(unsafe { std::slice::from_raw_parts(self.ram.base.add(at), len) })
    }

    /// Lends bytes to fill before the device hears of them.
    pub fn with_bytes_mut<R>(&self, offset: usize, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let at = self.inside(offset, len);
        // SAFETY: inside the mapping, and the caller owns the buffer: it is not posted. `DmaBuf`s do not overlap, and this
        // one is not `Clone`; the crate does not call this twice at once for one buffer.
        f(unsafe { std::slice::from_raw_parts_mut(self.ram.base.add(at), len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_joins_up_again_and_comes_back_zeroed() {
        let ram = GuestRam::new(4 * PAGE, 0x1_0000_0000).unwrap();
        let (a, b, c) = (ram.alloc(1).unwrap(), ram.alloc(PAGE + 1).unwrap(), ram.alloc(PAGE).unwrap());
        assert_eq!([a.iova(), b.iova(), c.iova()], [0x1_0000_0000, 0x1_0000_1000, 0x1_0000_3000]);
        assert!(ram.alloc(1).is_none());
        a.fill(0xaa);
        b.write(PAGE, &[1, 2, 3]);
        drop(a);
        drop(c);
        drop(b);
        let all = ram.alloc(4 * PAGE).unwrap();
        assert!(ram.alloc_dirty(1).is_none());
        let mut bytes = vec![1; 4 * PAGE];
        all.read(0, &mut bytes);
        assert!(bytes.iter().all(|b| *b == 0));
    }

    #[test]
    fn memory_can_be_aligned() {
        let ram = GuestRam::new(64 * PAGE, 0x1_0000_1000).unwrap();
        let first = ram.alloc(1).unwrap();
        let aligned = ram.alloc_aligned(3 * PAGE, 16 * PAGE, 0).unwrap();
        assert_eq!((first.iova(), aligned.iova()), (0x1_0000_1000, 0x1_0001_0000));
        let offset = ram.alloc_aligned(PAGE, 16 * PAGE, 2 * PAGE).unwrap();
        assert_eq!(offset.iova(), 0x1_0000_2000, "between the two");
        assert_eq!(ram.alloc(12 * PAGE).unwrap().iova(), 0x1_0000_3000, "what was skipped is still free");
        drop((first, aligned, offset));
        assert!(ram.alloc(64 * PAGE).is_some());
    }

    #[test]
    fn structures_words_and_ranges() {
        let ram = GuestRam::new(PAGE, 0).unwrap();
        let buf = ram.alloc(PAGE).unwrap();
        buf.store(8, &0x1122_3344_5566_7788_u64);
        assert_eq!(buf.load_acquire(8), 0x1122_3344_5566_7788_u64);
        assert_eq!(buf.load::<u32>(12), 0x1122_3344);
        buf.with_bytes_mut(0, 2, |b| b.copy_from_slice(&[9, 8]));
        buf.with_bytes(0, 3, |b| assert_eq!(b, [9, 8, 0]));
        assert!(ram.write(PAGE as u64 - 1, &[7]) && !ram.write(PAGE as u64 - 1, &[7, 7]));
        assert!(!ram.read(u64::MAX, &mut [0]));
    }

    #[test]
    #[should_panic(expected = "is not in DmaBuf")]
    fn a_buffer_ends_where_it_ends() {
        let ram = GuestRam::new(2 * PAGE, 0).unwrap();
        let _ = ram.alloc(PAGE).unwrap().load::<u64>(PAGE - 4);
    }
}
