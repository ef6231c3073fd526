//! Guest memory: the maps that the client announced with DMA_MAP, and copies in and out of them.
//!
//! All access is by copy. The guest (and QEMU, and any process that shares the memory) may change a byte at any moment,
//! so no reference into guest memory ever exists: an accessor copies once into the caller's own memory, and what it
//! copied is what the caller judges. A copy may cross any number of maps; before the first byte moves, the whole range is
//! known to be mapped with the right permission, so a refusal never leaves half a result.
//!
//! # What a map can be
//! - **Memory that cannot shrink** (a memfd with `F_SEAL_SHRINK`; the seal is added here where the client allows it, and
//!   QEMU's `memory-backend-memfd` sets it itself). It is `mmap`ed whole, once per (device, inode), and copied to and from
//!   directly. With a virtual IOMMU there is one map per 4 KiB page, thousands of them, all of the same memfd.
//! - **A file that could be truncated under us** (`memory-backend-file`, hugetlbfs, a memfd without seals). Touching a page
//!   beyond the end of such a file raises SIGBUS, which would end the process. So these are never touched by our own loads
//!   and stores: `process_vm_readv`/`process_vm_writev` on ourselves do the copy in the kernel, which reports a missing
//!   page as EFAULT ([`DmaError::Fault`]). It costs a system call per access and is said once, at the first such map.
//! - **Nothing at all**: a map without a descriptor. Access goes through [`MessageDma`] (DMA_READ and DMA_WRITE messages).
//!
//! What remains outside of this: host memory that fails or runs out while a page of a sealed memfd is first touched
//! (strict overcommit, a poisoned page). The kernel ends the process for that, as it ends any process.
//!
//! # Threads
//! [`GuestMemory`] is a cheap clone and `Send + Sync`. A copy holds a read lock; [`GuestMemory::unmap`] and
//! [`GuestMemory::clear`] take it for writing, so once they return no copy to or from the removed range is under way.
#![allow(unsafe_code)] // Maps of guest memory and raw copies live here and nowhere else.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{FileType, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use lock::{ReadGuard, ReadMostly, WriteGuard};

mod lock;

/// Most maps at a time: what the transport announces as `max_dma_maps` (QEMU's and Linux VFIO's default, 65,535).
pub const MAX_MAPS: usize = 65_535;
/// Most different files behind the maps. QEMU has a handful; the bound keeps a client from using up this process's
/// `vm.max_map_count` (65,530), without which it could not even allocate.
pub const MAX_FILES: usize = 1024;
/// Granularity of maps, bytes: address, length and file offset are multiples. It is what the transport announces as `pgsizes`.
pub const MAP_ALIGN: u64 = 4096;

bitflags::bitflags! {
    /// What the device may do with a map. The bits are those of DMA_MAP (vfio-user specification, "VFIO_USER_DMA_MAP").
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Prot: u32 {
        /// The device may read guest memory.
        const READ = 1;
        /// The device may write guest memory.
        const WRITE = 2;
    }
}

/// Why a map was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Address, length or file offset is not a multiple of [`MAP_ALIGN`], the length is 0, or the range leaves 64 bits.
    #[error("map of {len:#x} bytes at iova {iova:#x}, file offset {offset:#x}: not whole pages of a 64-bit space")]
    BadRange {
        /// First guest address.
        iova: u64,
        /// Bytes.
        len: u64,
        /// Offset in the file, bytes.
        offset: u64,
    },
    /// The range touches a map that exists.
    #[error("map at iova {iova:#x} overlaps the map at {existing:#x}")]
    Overlap {
        /// First guest address asked for.
        iova: u64,
        /// First guest address of the map in the way.
        existing: u64,
    },
    /// The file ends before the map does.
    #[error("file of {size:#x} bytes is shorter than the map's end at {end:#x}")]
    FileTooShort {
        /// Bytes in the file.
        size: u64,
        /// Where the map ends in the file.
        end: u64,
    },
    /// The descriptor is not a regular file (memfd, tmpfs, hugetlbfs, disk), or may not be read.
    #[error("descriptor is not a readable regular file; guest memory must be one (memory-backend-memfd)")]
    NotAFile,
    /// Write permission is asked for and the descriptor does not give it.
    #[error("descriptor is read-only and the map is not")]
    ReadOnlyFile,
    /// [`MAX_MAPS`] maps exist.
    #[error("more than {MAX_MAPS} maps")]
    TooManyMaps,
    /// [`MAX_FILES`] different files are mapped.
    #[error("more than {MAX_FILES} different files behind the maps")]
    TooManyFiles,
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// Its name.
        call: &'static str,
        /// Why.
        errno: Errno,
    },
}

impl MapError {
    /// The number that goes into the reply of a DMA_MAP.
    pub fn errno(&self) -> Errno {
        match self {
            Self::BadRange { .. } | Self::FileTooShort { .. } | Self::NotAFile => Errno::INVAL,
            Self::Overlap { .. } => Errno::EXIST,
            Self::ReadOnlyFile => Errno::ACCESS,
            Self::TooManyMaps | Self::TooManyFiles => Errno::NOSPC,
            Self::System { errno, .. } => *errno,
        }
    }
}

/// Why guest memory could not be read or written. `iova` is the first byte that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// Nothing is mapped there.
    #[error("no guest memory at iova {iova:#x}")]
    Unmapped {
        /// First byte without a map.
        iova: u64,
    },
    /// The map there does not allow it.
    #[error("guest memory at iova {iova:#x} does not allow {want:?}")]
    Denied {
        /// First byte of the map (or of the range).
        iova: u64,
        /// What was wanted.
        want: Prot,
    },
    /// The range leaves the 64-bit address space.
    #[error("{len:#x} bytes at iova {iova:#x} leave the address space")]
    Wrap {
        /// First byte.
        iova: u64,
        /// Bytes.
        len: usize,
    },
    /// Address or length is not a multiple of 8.
    #[error("{len:#x} bytes at iova {iova:#x} are not whole 8-byte words")]
    Misaligned {
        /// First byte.
        iova: u64,
        /// Bytes.
        len: usize,
    },
    /// The file behind the map was truncated.
    #[error("the file behind guest memory at iova {iova:#x} is gone")]
    Fault {
        /// First byte of the map (or of the range).
        iova: u64,
    },
    /// The map has no descriptor, and the client did not answer a DMA message (or no client is there to ask).
    #[error("DMA message for iova {iova:#x} failed: {kind}")]
    Message {
        /// First byte of the part that went by message.
        iova: u64,
        /// Why.
        kind: io::ErrorKind,
    },
}

/// An atomic operation on a number in guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    /// Adds, without overflow.
    Add(u64),
    /// Sets it if it is a given number.
    Swap {
        /// What it has to be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
}

impl AtomicOp {
    /// The number afterwards; `None` if it stays.
    fn apply(self, before: u64) -> Option<u64> {
        match self {
            Self::Add(add) => Some(before.wrapping_add(add)),
            Self::Swap { compare, swap } => (before == compare).then_some(swap),
        }
    }
}

/// Access to maps that came without a descriptor: one message to the client and back per call.
pub trait MessageDma: Send + Sync {
    /// Fills `buf` from guest memory at `iova`.
    ///
    /// # Errors
    /// The client refused, is gone, or did not answer in time.
    fn read(&self, iova: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Copies `buf` to guest memory at `iova`.
    ///
    /// # Errors
    /// As [`MessageDma::read`].
    fn write(&self, iova: u64, buf: &[u8]) -> io::Result<()>;
}

/// The guest's memory as the device sees it. Clones share one table.
#[derive(Clone, Default)]
pub struct GuestMemory(Arc<Inner>);

#[derive(Default)]
struct Inner {
    table: ReadMostly<Table>,
    /// Files by (device, inode): every map of one file shares one mapping.
    files: Mutex<HashMap<(u64, u64), Weak<FileMap>>>,
    /// The cost of files that cannot be sealed was already logged.
    said_slow: AtomicBool,
}

impl fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        let bytes: u128 = table.maps.iter().map(|m| u128::from(m.last - m.iova) + 1).sum();
        f.debug_struct("GuestMemory").field("maps", &table.maps.len()).field("bytes", &bytes).finish()
    }
}

#[derive(Default)]
struct Table {
    /// Disjoint, sorted by *descending* address: a Linux guest with a virtual IOMMU hands out IOVAs downwards from 4 GiB, so
    /// its thousands of maps are appended, not inserted in front of all others.
    maps: Vec<Map>,
    /// Index of the map that served the last access. Only a guess: checked before use.
    hint: AtomicUsize,
    message_dma: Option<Arc<dyn MessageDma>>,
}

struct Map {
    iova: u64,
    /// Last byte, so that a map may end at the end of the address space.
    last: u64,
    prot: Prot,
    backing: Backing,
}

enum Backing {
    /// Sealed against shrinking: `base` and the map's length lie in `_file` for as long as that lives.
    Direct { base: *mut u8, _file: Arc<FileMap> },
    /// The same, but pages may vanish: only the kernel touches them.
    Guarded { base: *mut u8, _file: Arc<FileMap> },
    /// No descriptor.
    Message,
}

// SAFETY: the pointer refers to a shared file mapping that `_file` keeps alive; it is only used for raw copies, which any
// thread may do.
unsafe impl Send for Backing {}
// SAFETY: as above; copies from several threads at once are ordinary shared-memory accesses without references.
unsafe impl Sync for Backing {}

/// A whole file, mapped shared.
struct FileMap {
    base: *mut c_void,
    len: usize,
    writable: bool,
    sealed: bool,
}

// SAFETY: the mapping belongs to the process, not to a thread; `base` is never dereferenced through this type.
unsafe impl Send for FileMap {}
// SAFETY: as above.
unsafe impl Sync for FileMap {}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are those of a successful mmap, and every user of the mapping holds an `Arc` of self.
        let unmapped = unsafe { rustix::mm::munmap(self.base, self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// One stretch of a range that lies in one map.
struct Run<'a> {
    map: &'a Map,
    iova: u64,
    /// Bytes of the caller's buffer that this stretch is.
    range: Range<usize>,
}

/// A stretch that has to go by message once the lock is free.
type Deferred = (u64, Range<usize>);

impl Map {
    /// Whether the map holds all of `iova..=last`.
    fn holds(&self, iova: u64, last: u64) -> bool {
        self.iova <= iova && last <= self.last
    }
}

impl Table {
    /// Index of the first (highest) map that starts at or below `iova`.
    fn index_at_or_below(&self, iova: u64) -> usize {
        self.maps.partition_point(|m| m.iova > iova)
    }

    /// The map that holds the byte at `iova`.
    #[inline]
    fn find(&self, iova: u64) -> Option<&Map> {
        let hint = self.hint.load(Ordering::Relaxed);
        if let Some(map) = self.maps.get(hint)
            && map.holds(iova, iova)
        {
            return Some(map);
        }
        self.search(iova)
    }

    fn search(&self, iova: u64) -> Option<&Map> {
        let index = self.index_at_or_below(iova);
        let map = self.maps.get(index).filter(|m| iova <= m.last)?;
        self.hint.store(index, Ordering::Relaxed);
        Some(map)
    }

    /// The one map that holds `len` bytes (not 0) at `iova` and allows `want`, if it is that simple.
    #[inline]
    fn whole(&self, iova: u64, len: usize, want: Prot) -> Option<&Map> {
        let last = iova.checked_add(u64::try_from(len).ok()?.checked_sub(1)?)?;
        self.find(iova).filter(|m| last <= m.last && m.prot.contains(want))
    }

    /// The stretches of `len` bytes (not 0) at `iova`, map by map; ends with an error at the first byte that is refused.
    fn runs(&self, iova: u64, len: usize, want: Prot) -> impl Iterator<Item = Result<Run<'_>, DmaError>> {
        let mut done = 0;
        let mut failed = false;
        let wraps = u64::try_from(len).map_or(true, |len| len > 0 && iova.checked_add(len - 1).is_none());
        std::iter::from_fn(move || {
            if failed || done >= len {
                return None;
            }
            if wraps {
                failed = true;
                return Some(Err(DmaError::Wrap { iova, len }));
            }
            // No overflow: the last byte of the range fits in 64 bits, and `done < len`.
            let at = iova + done as u64;
            let Some(map) = self.find(at) else {
                failed = true;
                return Some(Err(DmaError::Unmapped { iova: at }));
            };
            if !map.prot.contains(want) {
                failed = true;
                return Some(Err(DmaError::Denied { iova: at, want }));
            }
            let here = usize::try_from(map.last - at).map_or(len - done, |rest| rest.saturating_add(1).min(len - done));
            let range = done..done + here;
            done += here;
            Some(Ok(Run { map, iova: at, range }))
        })
    }

    fn check(&self, iova: u64, len: usize, want: Prot) -> Result<(), DmaError> {
        self.runs(iova, len, want).try_for_each(|run| run.map(drop))
    }
}

impl GuestMemory {
    /// An empty table: every access is refused.
    pub fn new() -> Self {
        Self::default()
    }

    #[inline]
    fn table(&self) -> ReadGuard<'_, Table> {
        self.0.table.read()
    }

    fn table_mut(&self) -> WriteGuard<'_, Table> {
        self.0.table.write()
    }

    /// Maps `len` bytes of `fd` from `offset` at guest address `iova`. The descriptor is not needed afterwards.
    ///
    /// # Errors
    /// See [`MapError`]; nothing is mapped then.
    pub fn map_fd(&self, iova: u64, len: u64, prot: Prot, fd: OwnedFd, offset: u64) -> Result<(), MapError> {
        let bad_range = MapError::BadRange { iova, len, offset };
        let last = range_last(iova, len).filter(|_| offset.is_multiple_of(MAP_ALIGN)).ok_or(bad_range)?;
        let end = offset.checked_add(len).ok_or(bad_range)?;
        let start = usize::try_from(offset).map_err(|_| bad_range)?;
        // Before any system call, so that a client which repeats a bad request costs little. Checked again when inserting.
        self.table().room_for(iova, last)?;

        let file = self.file_map(fd, prot.contains(Prot::WRITE), end)?;
        // SAFETY: `end <= file.len`, checked by `file_map`, so the offset stays inside the mapping.
        let base = unsafe { file.base.cast::<u8>().add(start) };
        let backing = if file.sealed {
            Backing::Direct { base, _file: file }
        } else {
            if !self.0.said_slow.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "guest memory is a file that could be truncated: DMA costs a system call per access. \
                     Use memory-backend-memfd, which is sealed, for full speed"
                );
            }
            Backing::Guarded { base, _file: file }
        };
        self.insert(Map { iova, last, prot, backing })
    }

    /// Maps `len` bytes at `iova` that have no descriptor: access goes by messages ([`GuestMemory::set_message_dma`]).
    ///
    /// # Errors
    /// See [`MapError`]; nothing is mapped then.
    pub fn map_message(&self, iova: u64, len: u64, prot: Prot) -> Result<(), MapError> {
        let last = range_last(iova, len).ok_or(MapError::BadRange { iova, len, offset: 0 })?;
        self.insert(Map { iova, last, prot, backing: Backing::Message })
    }

    fn insert(&self, map: Map) -> Result<(), MapError> {
        let mut table = self.table_mut();
        let index = table.room_for(map.iova, map.last)?;
        table.maps.insert(index, map);
        Ok(())
    }

    /// Removes every map that lies wholly in `len` bytes at `iova` and returns how many those were; 0 and thousands are
    /// both usual. Maps that stick out of the range stay: see [`GuestMemory::cuts`]. No copy to or from the removed maps is
    /// under way when this returns.
    pub fn unmap(&self, iova: u64, len: u64) -> usize {
        let Some(last) = len.checked_sub(1).map(|n| iova.saturating_add(n)) else { return 0 };
        let removed: Vec<Map> = {
            let mut table = self.table_mut();
            let from = table.maps.partition_point(|m| m.last > last);
            let to = table.maps.partition_point(|m| m.iova >= iova).max(from);
            table.maps.drain(from..to).collect()
        };
        // Here the lock is free: giving a large mapping back to the kernel takes its time.
        removed.len()
    }

    /// Whether a map lies partly inside and partly outside of `len` bytes at `iova`. Such a DMA_UNMAP is refused: maps go
    /// as they came (Linux VFIO type 1 v2 has the same rule).
    pub fn cuts(&self, iova: u64, len: u64) -> bool {
        let Some(last) = len.checked_sub(1).map(|n| iova.saturating_add(n)) else { return false };
        let table = self.table();
        let cut = |at: u64, edge: u64| {
            table.maps.get(table.index_at_or_below(at)).is_some_and(|m| m.holds(at, edge) && at != edge)
        };
        iova.checked_sub(1).is_some_and(|before| cut(before, iova))
            || last.checked_add(1).is_some_and(|after| cut(last, after))
    }

    /// Removes all maps and returns how many there were. As [`GuestMemory::unmap`], it waits for copies under way.
    pub fn clear(&self) -> usize {
        let removed = std::mem::take(&mut self.table_mut().maps);
        removed.len()
    }

    /// How many maps exist.
    pub fn map_count(&self) -> usize {
        self.table().maps.len()
    }

    /// Sets (or takes away) the way to reach maps without a descriptor.
    pub fn set_message_dma(&self, dma: Option<Arc<dyn MessageDma>>) {
        let old = std::mem::replace(&mut self.table_mut().message_dma, dma);
        drop(old);
    }

    /// Whether `len` bytes at `iova` are mapped and allow `want`. It is an answer about now: the next access checks again.
    ///
    /// # Errors
    /// What an access would fail with.
    pub fn check(&self, iova: u64, len: usize, want: Prot) -> Result<(), DmaError> {
        self.table().check(iova, len, want)
    }

    /// Copies guest memory at `iova` into `buf`, once.
    ///
    /// # Errors
    /// See [`DmaError`]; what `buf` holds then is unspecified.
    #[inline]
    pub fn read(&self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.access().read(iova, buf)
    }

    /// Many accesses at the price of one: the table's lock is taken at the first and kept until this is dropped. Beside its own
    /// price a lock has another: it waits for every store before it, and those are the bytes just copied into memory that no
    /// cache has. Whoever changes the table waits for it, so it is for one frame or one piece of a transfer; a thread that has one
    /// uses nothing else of this table.
    #[inline]
    pub fn access(&self) -> Access<'_> {
        Access { mem: self, table: None }
    }

    #[cold]
    fn read_runs(&self, table: ReadGuard<'_, Table>, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        table.check(iova, buf.len(), Prot::READ)?;
        let mut deferred: Vec<Deferred> = Vec::new();
        for run in table.runs(iova, buf.len(), Prot::READ) {
            let Run { map, iova, range } = run?;
            let offset = to_usize(iova - map.iova);
            match &map.backing {
                Backing::Message => deferred.push((iova, range)),
                Backing::Direct { base, .. } => {
                    let Some(part) = buf.get_mut(range) else { continue };
                    // SAFETY: the run lies in its map, see `read`.
                    unsafe { copy_in(base.add(offset), part.as_mut_ptr(), part.len()) };
                }
                Backing::Guarded { base, .. } => {
                    let Some(part) = buf.get_mut(range) else { continue };
                    // SAFETY: the run lies in its map's file mapping; the kernel checks whether the pages are there.
                    unsafe { guarded_read(base.add(offset), part) }.map_err(|()| DmaError::Fault { iova })?;
                }
            }
        }
        let dma = table.message_dma.clone();
        drop(table); // A message waits for the client: no lock is held over that.
        for (iova, range) in deferred {
            let dma = dma.as_ref().ok_or(DmaError::Message { iova, kind: io::ErrorKind::NotConnected })?;
            let Some(part) = buf.get_mut(range) else { continue };
            dma.read(iova, part).map_err(|e| DmaError::Message { iova, kind: e.kind() })?;
        }
        Ok(())
    }

    /// Copies `buf` to guest memory at `iova`.
    ///
    /// # Errors
    /// See [`DmaError`]. [`DmaError::Fault`] and [`DmaError::Message`] can come after a part was written; with all others
    /// nothing was.
    #[inline]
    pub fn write(&self, iova: u64, buf: &[u8]) -> Result<(), DmaError> {
        self.access().write(iova, buf)
    }

    #[cold]
    fn write_runs(&self, table: ReadGuard<'_, Table>, iova: u64, buf: &[u8]) -> Result<(), DmaError> {
        table.check(iova, buf.len(), Prot::WRITE)?;
        let mut deferred: Vec<Deferred> = Vec::new();
        for run in table.runs(iova, buf.len(), Prot::WRITE) {
            let Run { map, iova, range } = run?;
            let offset = to_usize(iova - map.iova);
            match &map.backing {
                Backing::Message => deferred.push((iova, range)),
                Backing::Direct { base, .. } => {
                    let Some(part) = buf.get(range) else { continue };
                    // SAFETY: the run lies in its map, which is writable, see `write`.
                    unsafe { copy_out(part.as_ptr(), base.add(offset), part.len()) };
                }
                Backing::Guarded { base, .. } => {
                    let Some(part) = buf.get(range) else { continue };
                    // SAFETY: as in `read_runs`.
                    unsafe { guarded_write(part, base.add(offset)) }.map_err(|()| DmaError::Fault { iova })?;
                }
            }
        }
        let dma = table.message_dma.clone();
        drop(table);
        for (iova, range) in deferred {
            let dma = dma.as_ref().ok_or(DmaError::Message { iova, kind: io::ErrorKind::NotConnected })?;
            let Some(part) = buf.get(range) else { continue };
            dma.write(iova, part).map_err(|e| DmaError::Message { iova, kind: e.kind() })?;
        }
        Ok(())
    }

    /// Does an atomic operation on the 8 bytes at `iova`, a little-endian number; the number before. In memory that is mapped
    /// directly it is atomic for the guest's processors too, elsewhere only for the other operations of this device.
    ///
    /// # Errors
    /// [`DmaError::Misaligned`] unless `iova` is a multiple of 8; otherwise as [`GuestMemory::read`] and [`GuestMemory::write`].
    pub fn atomic(&self, iova: u64, op: AtomicOp) -> Result<u64, DmaError> {
        if !iova.is_multiple_of(8) {
            return Err(DmaError::Misaligned { iova, len: 8 });
        }
        let mut access = self.access();
        if let Some(at) = access.direct(iova, 8, Prot::READ | Prot::WRITE) {
            // SAFETY: `direct` says that 8 bytes are there, mapped writable while `access` lives; maps and files are page-aligned, so an
            // aligned iova is an aligned address. An atomic may be shared with anyone.
            let word = unsafe { AtomicU64::from_ptr(at.cast()) };
            let step = |word: u64| op.apply(u64::from_le(word)).map(u64::to_le);
            return match word.fetch_update(Ordering::AcqRel, Ordering::Acquire, step) {
                Ok(before) | Err(before) => Ok(u64::from_le(before)),
            };
        }
        // Its table is let go of: what comes now may wait for the client.
        drop(access);
        self.check(iova, 8, Prot::READ | Prot::WRITE)?;
        let mut word = [0; 8];
        self.read(iova, &mut word)?;
        let before = u64::from_le_bytes(word);
        if let Some(after) = op.apply(before) {
            self.write(iova, &after.to_le_bytes())?;
        }
        Ok(before)
    }

    /// Reads one wire struct, once.
    ///
    /// # Errors
    /// As [`GuestMemory::read`].
    #[inline]
    pub fn read_plain<T: FromBytes>(&self, iova: u64) -> Result<T, DmaError> {
        self.access().read_plain(iova)
    }

    /// Writes one wire struct.
    ///
    /// # Errors
    /// As [`GuestMemory::write`].
    pub fn write_plain<T: IntoBytes + Immutable>(&self, iova: u64, value: &T) -> Result<(), DmaError> {
        self.write(iova, value.as_bytes())
    }

    /// Writes a completion entry whose last 8-byte word holds the colour (or valid) bit: first all other words, then the last
    /// one with release order, so that a guest which sees the new colour sees the whole entry.
    ///
    /// # Errors
    /// [`DmaError::Misaligned`] unless `iova` and the entry's length are multiples of 8 and the entry is not empty; otherwise as
    /// [`GuestMemory::write`].
    pub fn write_completion(&self, iova: u64, entry: &[u8]) -> Result<(), DmaError> {
        self.access().write_completion(iova, entry)
    }

    /// Stores one 8-byte value, little-endian, with release order.
    ///
    /// # Errors
    /// [`DmaError::Misaligned`] unless `iova` is a multiple of 8; otherwise as [`GuestMemory::write`].
    pub fn store_u64(&self, iova: u64, value: u64) -> Result<(), DmaError> {
        if !iova.is_multiple_of(8) {
            return Err(DmaError::Misaligned { iova, len: 8 });
        }
        self.access().store_word(iova, value.to_le())
    }

    /// Stores 4 bytes at once, with release order; `word` has them as they stand in memory.
    ///
    /// # Errors
    /// [`DmaError::Misaligned`] unless `iova` is a multiple of 4; otherwise as [`GuestMemory::write`].
    pub fn store_u32(&self, iova: u64, word: [u8; 4]) -> Result<(), DmaError> {
        if !iova.is_multiple_of(4) {
            return Err(DmaError::Misaligned { iova, len: 4 });
        }
        let mut access = self.access();
        if let Some(at) = access.direct(iova, 4, Prot::WRITE) {
            // SAFETY: as in `store_word`.
            unsafe { store_release_u32(at, u32::from_ne_bytes(word)) };
            return Ok(());
        }
        fence(Ordering::Release);
        access.write(iova, &word)
    }

    /// The mapping of the whole file behind `fd`, made now or shared with earlier maps; at least `end` bytes long.
    fn file_map(&self, fd: OwnedFd, write: bool, end: u64) -> Result<Arc<FileMap>, MapError> {
        let system = |call| move |errno| MapError::System { call, errno };
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(system("fcntl(F_GETFL)"))?;
        // The seal first, the size second: what fstat says then stays true.
        let sealed = seal_against_shrinking(&fd);
        let stat = rustix::fs::fstat(&fd).map_err(system("fstat"))?;
        let access = flags & OFlags::ACCMODE;
        let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !file || access == OFlags::WRONLY || flags.contains(OFlags::PATH) {
            return Err(MapError::NotAFile);
        }
        let writable = access == OFlags::RDWR;
        if write && !writable {
            return Err(MapError::ReadOnlyFile);
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if end > size {
            return Err(MapError::FileTooShort { size, end });
        }

        let mut files = self.0.files.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (stat.st_dev, stat.st_ino);
        if let Some(file) = files.get(&key).and_then(Weak::upgrade)
            && file.len as u64 >= end
            && (file.writable || !write)
            && (file.sealed || !sealed)
        {
            return Ok(file);
        }
        files.retain(|_, file| file.strong_count() > 0);
        if files.len() >= MAX_FILES {
            return Err(MapError::TooManyFiles);
        }
        if !sealed {
            guarded_copies_work().map_err(system("process_vm_readv"))?;
        }
        let len = usize::try_from(size).map_err(|_| MapError::System { call: "mmap", errno: Errno::NOMEM })?;
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, writable);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, 0) }
            .map_err(system("mmap"))?;
        let file = Arc::new(FileMap { base, len, writable, sealed });
        files.insert(key, Arc::downgrade(&file));
        Ok(file)
    }
}

/// The table of a [`GuestMemory`], taken for several accesses; see [`GuestMemory::access`].
pub struct Access<'a> {
    mem: &'a GuestMemory,
    /// Not held over what may have to wait for the client.
    table: Option<ReadGuard<'a, Table>>,
}

impl fmt::Debug for Access<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("held", &self.table.is_some()).finish_non_exhaustive()
    }
}

impl<'a> Access<'a> {
    #[inline]
    fn table(&mut self) -> &ReadGuard<'a, Table> {
        let mem = self.mem;
        self.table.get_or_insert_with(|| mem.table())
    }

    /// Where `len` bytes at `iova` are, if it is that simple and `want` is allowed. The pointer is good until the table is let go of.
    #[inline]
    fn direct(&mut self, iova: u64, len: usize, want: Prot) -> Option<*mut u8> {
        let map = self.table().whole(iova, len, want)?;
        let Backing::Direct { base, .. } = map.backing else { return None };
        // SAFETY: `whole` says that the `len` bytes from `iova` lie in this map.
        Some(unsafe { base.add(to_usize(iova - map.iova)) })
    }

    fn take_table(&mut self) -> ReadGuard<'a, Table> {
        self.table.take().unwrap_or_else(|| self.mem.table())
    }

    /// See [`GuestMemory::read`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read(&mut self, iova: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        let len = buf.len();
        if len == 0 {
            return Ok(());
        }
        if let Some(at) = self.direct(iova, len, Prot::READ) {
            // SAFETY: `direct` says that `len` bytes are there, which stay mapped and backed while the table is held; `buf` is ours
            // and `len` long.
            unsafe { copy_in(at, buf.as_mut_ptr(), len) };
            return Ok(());
        }
        let table = self.take_table();
        self.mem.read_runs(table, iova, buf)
    }

    /// See [`GuestMemory::write`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn write(&mut self, iova: u64, buf: &[u8]) -> Result<(), DmaError> {
        let len = buf.len();
        if len == 0 {
            return Ok(());
        }
        if let Some(at) = self.direct(iova, len, Prot::WRITE) {
            // SAFETY: as in `read`; the mapping is writable because the map has `Prot::WRITE`.
            unsafe { copy_out(buf.as_ptr(), at, len) };
            return Ok(());
        }
        let table = self.take_table();
        self.mem.write_runs(table, iova, buf)
    }

    /// Copies `len` bytes of guest memory at `from` to guest memory at `to`; the two may overlap. The last byte becomes visible
    /// last, since a program may wait for it; an aligned word of 8 bytes is copied as a whole.
    ///
    /// # Errors
    /// As [`GuestMemory::read`] and [`GuestMemory::write`].
    pub fn copy(&mut self, from: u64, to: u64, len: usize) -> Result<(), DmaError> {
        if len == 0 {
            return Ok(());
        }
        if let Some(src) = self.direct(from, len, Prot::READ)
            && let Some(dst) = self.direct(to, len, Prot::WRITE)
        {
            // SAFETY: `direct` says that `len` bytes are at each, mapped and backed while the table is held, those at `dst` writable.
            unsafe { copy_within(src, dst, len) };
            return Ok(());
        }
        // What is not that simple goes by way of our own memory, a piece at a time. Nothing moves unless all of it can.
        self.take_table().check(from, len, Prot::READ)?;
        self.take_table().check(to, len, Prot::WRITE)?;
        let mut buffer = [0; 4096];
        for at in (0..len).step_by(buffer.len()) {
            let Some(part) = buffer.get_mut(..(len - at).min(4096)) else { continue };
            self.read(from + at as u64, part)?;
            self.write(to + at as u64, part)?;
        }
        Ok(())
    }

    /// See [`GuestMemory::read_plain`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read_plain<T: FromBytes>(&mut self, iova: u64) -> Result<T, DmaError> {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: all bytes of `value`, padding included, are initialised (zeroed), and it is borrowed for this call only.
        let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
        self.read(iova, bytes)?;
        // SAFETY: `T: FromBytes`: any initialised bytes are a valid `T`.
        Ok(unsafe { value.assume_init() })
    }

    /// See [`GuestMemory::write_completion`].
    ///
    /// # Errors
    /// As there.
    pub fn write_completion(&mut self, iova: u64, entry: &[u8]) -> Result<(), DmaError> {
        let len = entry.len();
        let misaligned = DmaError::Misaligned { iova, len };
        if !len.is_multiple_of(8) || !iova.is_multiple_of(8) {
            return Err(misaligned);
        }
        let (head, last) = entry.split_last_chunk::<8>().ok_or(misaligned)?;
        let last = u64::from_ne_bytes(*last);
        if let Some(at) = self.direct(iova, len, Prot::WRITE) {
            // SAFETY: as in `write`; `head.len()` more bytes leave room for the last word.
            unsafe {
                copy_out(head.as_ptr(), at, head.len());
                store_release(at.add(head.len()), last);
            }
            return Ok(());
        }
        // All or nothing also when the entry lies in two maps.
        self.take_table().check(iova, len, Prot::WRITE)?;
        self.write(iova, head)?;
        self.store_word(iova + head.len() as u64, last)
    }

    /// Stores a word whose bytes in memory are those of `word`, after everything before it; `iova` is aligned.
    fn store_word(&mut self, iova: u64, word: u64) -> Result<(), DmaError> {
        if let Some(at) = self.direct(iova, 8, Prot::WRITE) {
            // SAFETY: as in `write`; maps and files are page-aligned, so an aligned iova is an aligned address.
            unsafe { store_release(at, word) };
            return Ok(());
        }
        fence(Ordering::Release);
        self.write(iova, &word.to_ne_bytes())
    }

    /// Begins to fetch the cache lines at `iova`, which will be read or written soon: entries of rings were last touched by a
    /// processor of the guest. Changes nothing, and does nothing where the bytes are not mapped.
    #[inline]
    pub fn prefetch(&mut self, iova: u64, len: usize) {
        if let Some(at) = self.direct(iova, len, Prot::READ) {
            for line in (0..len).step_by(64) {
                // SAFETY: `direct` says that `len` bytes are there.
                prefetch_line(unsafe { at.add(line) });
            }
        }
    }
}

impl Table {
    /// Where a map of `iova..=last` goes in the list.
    fn room_for(&self, iova: u64, last: u64) -> Result<usize, MapError> {
        let index = self.index_at_or_below(last);
        if let Some(below) = self.maps.get(index)
            && below.last >= iova
        {
            return Err(MapError::Overlap { iova, existing: below.iova });
        }
        if self.maps.len() >= MAX_MAPS {
            return Err(MapError::TooManyMaps);
        }
        Ok(index)
    }
}

/// The last byte of a range of whole pages; `None` if it is not one.
fn range_last(iova: u64, len: u64) -> Option<u64> {
    if !iova.is_multiple_of(MAP_ALIGN) || !len.is_multiple_of(MAP_ALIGN) {
        return None;
    }
    iova.checked_add(len.checked_sub(1)?)
}

/// An offset inside a mapping that exists, hence one that fits.
fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Whether the file behind `fd` can no longer get shorter. Adds the seal where the file's owner permits it: guest memory
/// is never shrunk by one who means well.
fn seal_against_shrinking(fd: &impl AsFd) -> bool {
    let sealed = || rustix::fs::fcntl_get_seals(fd).is_ok_and(|s| s.contains(SealFlags::SHRINK));
    sealed() || (rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK).is_ok() && sealed())
}

/// Copies guest memory to ours. The bytes may change meanwhile; an aligned word of 8 bytes is fetched as a whole.
///
/// # Safety
/// `len` bytes at `src` are mapped and backed; `len` bytes at `dst` are ours to write.
#[inline]
unsafe fn copy_in(src: *const u8, dst: *mut u8, len: usize) {
    if len == 8 && src.addr().is_multiple_of(8) {
        // SAFETY: the caller vouches for 8 bytes; `src` is aligned, `dst` need not be.
        unsafe { dst.cast::<u64>().write_unaligned(src.cast::<u64>().read_volatile()) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { bulk_copy(src, dst, len) };
    }
}

/// Copies our memory to the guest's; an aligned word of 8 bytes is stored as a whole.
///
/// # Safety
/// `len` bytes at `src` are ours to read; `len` bytes at `dst` are mapped writable and backed.
#[inline]
unsafe fn copy_out(src: *const u8, dst: *mut u8, len: usize) {
    if len == 8 && dst.addr().is_multiple_of(8) {
        // SAFETY: the caller vouches for 8 bytes; `dst` is aligned, `src` need not be.
        unsafe { dst.cast::<u64>().write_volatile(src.cast::<u64>().read_unaligned()) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { bulk_copy(src, dst, len) };
    }
}

/// `memcpy` between guest memory and ours. Never inlined, and fenced against the compiler: otherwise it could replace a later
/// copy out of the destination by a second fetch from the source, which the guest may have changed since.
///
/// # Safety
/// `len` bytes at `src` can be read and `len` bytes at `dst` written; they do not overlap (one is guest memory, one is not).
#[inline(never)]
unsafe fn bulk_copy(src: *const u8, dst: *mut u8, len: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(src, dst, len) };
    compiler_fence(Ordering::SeqCst);
}

/// Copies guest memory to guest memory, its last byte last.
///
/// # Safety
/// `len` bytes (not 0) at `src` and at `dst` are mapped and backed, those at `dst` writable.
unsafe fn copy_within(src: *const u8, dst: *mut u8, len: usize) {
    if len == 8 && src.addr().is_multiple_of(8) && dst.addr().is_multiple_of(8) {
        // SAFETY: 8 aligned bytes at each, by the caller's promise.
        unsafe { store_release(dst, src.cast::<u64>().read_volatile()) };
        return;
    }
    // Read before anything is written: the two may overlap.
    // SAFETY: `len` is not 0, so that `len - 1` is inside.
    let last = unsafe { src.add(len - 1).read_volatile() };
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the caller's promise; `ptr::copy` allows an overlap.
    unsafe { ptr::copy(src, dst, len - 1) };
    compiler_fence(Ordering::SeqCst);
    // SAFETY: as above; an atomic of one byte is always aligned.
    unsafe { AtomicU8::from_ptr(dst.add(len - 1)) }.store(last, Ordering::Release);
}

/// Asks the processor for a cache line; a hint.
#[inline]
fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: needs SSE, which every x86-64 processor has; a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Stores an aligned word after everything stored before it.
///
/// # Safety
/// 8 bytes at `at` are mapped writable and backed, and `at` is a multiple of 8.
#[inline]
unsafe fn store_release(at: *mut u8, word: u64) {
    // SAFETY: aligned and valid by the caller's promise. An atomic may be shared with anyone, also with another process.
    unsafe { AtomicU64::from_ptr(at.cast()) }.store(word, Ordering::Release);
}

/// As [`store_release`], for 4 bytes.
///
/// # Safety
/// 4 bytes at `at` are mapped writable and backed, and `at` is a multiple of 4.
#[inline]
unsafe fn store_release_u32(at: *mut u8, word: u32) {
    // SAFETY: as in `store_release`.
    unsafe { AtomicU32::from_ptr(at.cast()) }.store(word, Ordering::Release);
}

/// Copies from a mapping whose pages may be missing.
///
/// # Safety
/// `src` and `buf.len()` describe a part of a file mapping that stays mapped meanwhile (its pages need not exist).
unsafe fn guarded_read(src: *const u8, buf: &mut [u8]) -> Result<(), ()> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        // SAFETY: `done <= buf.len()`, inside the mapping.
        let remote = libc::iovec { iov_base: unsafe { src.add(done) }.cast_mut().cast(), iov_len: rest.len() };
        // SAFETY: the kernel writes at most `rest.len()` bytes to `rest`, which is ours, and checks every page of the remote side.
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        done += usize::try_from(n).ok().filter(|n| *n > 0).ok_or(())?;
    }
    Ok(())
}

/// Copies to a mapping whose pages may be missing.
///
/// # Safety
/// As [`guarded_read`], with a writable mapping.
unsafe fn guarded_write(buf: &[u8], dst: *mut u8) -> Result<(), ()> {
    let mut done = 0;
    while let Some(rest) = buf.get(done..).filter(|r| !r.is_empty()) {
        let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        // SAFETY: `done <= buf.len()`, inside the mapping.
        let remote = libc::iovec { iov_base: unsafe { dst.add(done) }.cast(), iov_len: rest.len() };
        // SAFETY: the kernel only reads `rest`, and writes to pages of the guest's file mapping, which it checks.
        let n = unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        done += usize::try_from(n).ok().filter(|n| *n > 0).ok_or(())?;
    }
    Ok(())
}

/// Whether the kernel lets us copy within ourselves (a seccomp filter may not).
fn guarded_copies_work() -> Result<(), Errno> {
    let source = [0x5a_u8; 8];
    let mut copy = [0_u8; 8];
    // SAFETY: both sides are local arrays.
    match unsafe { guarded_read(source.as_ptr(), &mut copy) } {
        Ok(()) if copy == source => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::PERM)),
    }
}

#[cfg(test)]
mod tests;
