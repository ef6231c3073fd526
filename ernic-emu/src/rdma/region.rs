//! The memory-region table: key → protection domain, access, address range, pages.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use ionic_abi::{AdminStatus, CreateMr, MrFlags};
use rdma_token::Window;

use super::pages::{PageList, Pages};
use crate::mem::{Access, DmaError, GuestMemory};

/// Regions and windows together (`nmrs_per_lif`); index 0 is reserved.
pub const MAX_REGIONS: u32 = 65_536;
/// Page table entries of all regions together (`npts_per_lif`): 64 GiB of 4 KiB pages, at 8 bytes of ours each.
pub const MAX_PAGES: u32 = 16 << 20;

/// Why a key does not give access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Key 0 is the driver's own key to all of memory, and not for anybody else.
    #[error("key 0 is reserved")]
    Reserved,
    /// There is no region of that index.
    #[error("no region has this key")]
    Unknown,
    /// There is one, but under another key, or nothing is mapped to it now.
    #[error("the key is stale")]
    Stale,
    /// The region does not allow it.
    #[error("the region does not allow this access")]
    Access,
    /// The range leaves the region.
    #[error("the range leaves the region")]
    Bounds,
    /// A page of it is not guest memory now.
    #[error("the region's pages are gone: {0}")]
    Dma(#[from] DmaError),
}

/// A registered region. All that opening a window asks for is in one cache line, of which a large table has many.
#[derive(Debug)]
#[repr(align(32))]
struct Region {
    key: u32,
    flags: MrFlags,
    /// Whether there are pages.
    mapped: bool,
    va: u64,
    length: u64,
    rest: Box<Rest>,
}

/// What moving bytes asks for besides.
#[derive(Debug)]
struct Rest {
    pd: u32,
    /// `None` until a fast registration maps something, and for windows.
    pages: Option<Pages>,
    /// Of a window that is bound: the key of the region that it is a window to.
    parent: u32,
    /// Of a window of type 2 that is bound: the only queue pair that may be asked for it.
    bound: Option<u32>,
}

/// On whose behalf memory is looked up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    pub(super) pd: u32,
    pub(super) qpn: u32,
    /// The reserved key is allowed, whose addresses are bus addresses.
    pub(super) privileged: bool,
}

/// A piece of memory by its key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) va: u64,
    pub(super) len: u32,
    pub(super) key: u32,
}

/// What REG_MR asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Register {
    pub(super) key: u32,
    pub(super) byte: u8,
    pub(super) access: MrFlags,
    pub(super) list: PageList,
}

/// What BIND_MW asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bind {
    pub(super) window: u32,
    pub(super) byte: u8,
    pub(super) access: MrFlags,
    pub(super) parent: u32,
    pub(super) va: u64,
    pub(super) length: u64,
}

/// The access rights among the flags; the others say what kind of region it is, and stay.
const RIGHTS: MrFlags = MrFlags::from_bits_truncate(0x0fff);

const _: () = assert!(size_of::<Option<Region>>() == 32);

impl Region {
    /// Whether it gives access of kind `need`.
    fn check(&self, need: MrFlags) -> Result<(), RegionError> {
        if !self.flags.contains(need) {
            Err(RegionError::Access)
        } else if !self.mapped {
            Err(RegionError::Stale)
        } else {
            Ok(())
        }
    }

    /// Whether `[address, address + len)` lies inside.
    fn covers(&self, address: u64, len: u64) -> bool {
        address.checked_sub(self.va).is_some_and(|offset| offset <= self.length && len <= self.length - offset)
    }

    /// Nothing is mapped any more; page table entries that are free now.
    fn unmap(&mut self) -> u64 {
        self.mapped = false;
        self.rest.parent = 0;
        self.rest.bound = None;
        self.rest.pages.take().as_ref().map_or(0, Pages::entries)
    }
}

#[derive(Debug)]
struct Table {
    slots: Vec<Option<Region>>,
    live: u32,
    budget: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self { slots: Vec::new(), live: 0, budget: MAX_PAGES.into() }
    }
}

impl Table {
    fn find(&self, key: u32) -> Result<&Region, RegionError> {
        if key == 0 {
            return Err(RegionError::Reserved);
        }
        let region = self.slots.get(index(key)).and_then(Option::as_ref).ok_or(RegionError::Unknown)?;
        if region.key == key { Ok(region) } else { Err(RegionError::Stale) }
    }

    /// The pages behind `[address, address + len)` of a region: its own, or those of the region which a window is to.
    fn reach<'a>(&'a self, region: &'a Region, address: u64, len: u64) -> Result<&'a Pages, RegionError> {
        if !region.covers(address, len) {
            return Err(RegionError::Bounds);
        }
        let owner = match region.rest.parent {
            0 => region,
            parent => self.find(parent).map_err(|_| RegionError::Stale)?,
        };
        owner.rest.pages.as_ref().ok_or(RegionError::Stale)
    }

    /// The region of an index, whatever its key byte, in a protection domain.
    fn own(&mut self, key: u32, pd: u32) -> Result<&mut Region, RegionError> {
        let region = self.slots.get_mut(index(key)).and_then(Option::as_mut).ok_or(RegionError::Unknown)?;
        if region.rest.pd == pd { Ok(region) } else { Err(RegionError::Access) }
    }
}

/// The table while nobody changes it.
#[derive(Debug)]
pub(super) struct Reader<'a>(RwLockReadGuard<'a, Table>);

impl Reader<'_> {
    /// The pages behind a piece of a queue pair's own memory (`None`: its addresses are bus addresses).
    pub(super) fn local(&self, scope: Scope, piece: Piece, need: MrFlags) -> Result<Option<&Pages>, RegionError> {
        self.look_up(scope, piece, need, false)
    }

    /// The pages behind a piece of memory that a peer names.
    pub(super) fn remote(&self, scope: Scope, piece: Piece, need: MrFlags) -> Result<Option<&Pages>, RegionError> {
        self.look_up(scope, piece, need, true)
    }

    fn look_up(&self, scope: Scope, piece: Piece, need: MrFlags, remote: bool) -> Result<Option<&Pages>, RegionError> {
        if piece.key == 0 && scope.privileged {
            return Ok(None);
        }
        let region = self.0.find(piece.key)?;
        region.check(need)?;
        let window = region.flags.contains(MrFlags::IS_MW);
        // A window is for peers alone.
        if region.rest.pd != scope.pd
            || window && !remote
            || region.rest.bound.is_some_and(|qpn| qpn != scope.qpn)
            || region.flags.contains(MrFlags::ZERO_BASED)
        {
            return Err(RegionError::Access);
        }
        self.0.reach(region, piece.va, piece.len.into()).map(Some)
    }

    /// Whether a peer may make a key invalid.
    pub(super) fn may_invalidate(&self, pd: u32, key: u32) -> Result<(), RegionError> {
        let region = self.0.find(key)?;
        let may = region.rest.pd == pd && region.flags.contains(MrFlags::INV_EN);
        if may { Ok(()) } else { Err(RegionError::Access) }
    }
}

/// The table. Clones share it: the device changes it, transfers look keys up in it. A transfer holds the table while it copies,
/// so that a region is not touched any more once it was removed, whichever thread copies.
#[derive(Debug, Clone, Default)]
pub struct MemoryRegions(Arc<RwLock<Table>>);

fn index(key: u32) -> usize {
    usize::try_from(key >> 8).unwrap_or(usize::MAX)
}

impl MemoryRegions {
    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers what CREATE_MR describes.
    pub(super) fn create(&self, mem: &GuestMemory, cmd: &CreateMr) -> Result<(), AdminStatus> {
        let key = cmd.id_ver.get();
        let at = index(key);
        if at == 0 || at >= MAX_REGIONS as usize {
            return Err(AdminStatus::BAD_INDEX);
        }
        let mut table = self.write();
        if table.slots.get(at).is_some_and(Option::is_some) {
            return Err(AdminStatus::BAD_INDEX);
        }
        let pages = match cmd.map_count.get() {
            0 => None,
            map_count => {
                let list = PageList {
                    va: cmd.va.get(),
                    length: cmd.length.get(),
                    map_count,
                    dma_addr: cmd.dma_addr.get(),
                    shift: cmd.page_size_log2,
                };
                Some(Pages::read(mem, list, &mut table.budget)?)
            }
        };
        if table.slots.len() <= at {
            table.slots.resize_with(at + 1, || None);
        }
        table.slots[at] = Some(Region {
            key,
            flags: MrFlags::from_bits_truncate(cmd.dbid_flags.get()),
            mapped: pages.is_some(),
            va: pages.as_ref().map_or(0, Pages::va),
            length: pages.as_ref().map_or(0, Pages::length),
            rest: Box::new(Rest { pd: cmd.pd_id.get(), pages, parent: 0, bound: None }),
        });
        table.live += 1;
        Ok(())
    }

    /// Removes the region of a key's index; the key byte may have changed since it was created.
    pub(super) fn destroy(&self, key: u32) -> Result<(), AdminStatus> {
        let mut table = self.write();
        let region = table.slots.get_mut(index(key)).and_then(Option::take).ok_or(AdminStatus::BAD_INDEX)?;
        table.live -= 1;
        table.budget += region.rest.pages.as_ref().map_or(0, Pages::entries);
        Ok(())
    }

    /// The table, for several look-ups.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Maps something to a region that was made for it (REG_MR). The driver uses its table's memory again afterwards: it is
    /// copied.
    pub(super) fn register(&self, mem: &GuestMemory, scope: Scope, what: &Register) -> Result<(), RegionError> {
        let mut guard = self.write();
        let table = &mut *guard;
        let region = table.own(what.key, scope.pd)?;
        if !region.flags.contains(MrFlags::UKEY_EN) || region.flags.contains(MrFlags::IS_MW) {
            return Err(RegionError::Access);
        }
        let freed = region.unmap();
        table.budget += freed;
        let pages = Pages::read(mem, what.list, &mut table.budget).map_err(|_| RegionError::Bounds)?;
        let region = table.own(what.key, scope.pd)?;
        region.key = region.key & !0xff | u32::from(what.byte);
        region.flags = (region.flags - RIGHTS) | (what.access & RIGHTS);
        (region.va, region.length, region.mapped) = (pages.va(), pages.length(), true);
        region.rest.pages = Some(pages);
        Ok(())
    }

    /// Opens a window to a part of a region, or closes it (BIND_MW).
    pub(super) fn bind(&self, scope: Scope, what: &Bind) -> Result<(), RegionError> {
        let mut table = self.write();
        let access = what.access & RIGHTS;
        let window = table.own(what.window, scope.pd)?;
        let second = window.flags.contains(MrFlags::INV_EN);
        if !window.flags.contains(MrFlags::IS_MW)
            || second && (window.mapped || what.length == 0)
            || access.contains(MrFlags::ZERO_BASED)
        {
            return Err(RegionError::Access);
        }
        if what.length > 0 {
            let parent = table.find(what.parent)?;
            let mut need = MrFlags::MW_BIND;
            if access.intersects(MrFlags::REMOTE_WRITE | MrFlags::REMOTE_ATOMIC) {
                need |= MrFlags::LOCAL_WRITE;
            }
            parent.check(need)?;
            if parent.rest.pd != scope.pd || parent.flags.contains(MrFlags::IS_MW) {
                return Err(RegionError::Access);
            }
            if !parent.covers(what.va, what.length) {
                return Err(RegionError::Bounds);
            }
        }
        let window = table.own(what.window, scope.pd)?;
        window.unmap();
        window.key = window.key & !0xff | u32::from(what.byte);
        if what.length > 0 {
            window.flags = (window.flags - RIGHTS) | access;
            (window.va, window.length, window.mapped) = (what.va, what.length, true);
            window.rest.parent = what.parent;
            window.rest.bound = second.then_some(scope.qpn);
        }
        Ok(())
    }

    /// Makes a key invalid that may be (LOCAL_INV, SEND with invalidate).
    pub(super) fn invalidate(&self, pd: u32, key: u32) -> Result<(), RegionError> {
        self.reader().may_invalidate(pd, key)?;
        let mut table = self.write();
        let freed = table.own(key, pd)?.unmap();
        table.budget += freed;
        Ok(())
    }

    /// Removes everything.
    pub(super) fn clear(&self) {
        *self.write() = Table::default();
    }

    /// Live regions.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).live
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets `f` have the region of a key, which nobody removes meanwhile.
    fn with<R>(&self, key: u32, f: impl FnOnce(&Table, &Region) -> Result<R, RegionError>) -> Result<R, RegionError> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        f(&table, table.find(key)?)
    }

    /// Lets `f` have the pages of the region of a key that gives access of kind `need` to all of `len` bytes at `address`.
    fn access<R>(
        &self,
        key: u32,
        need: MrFlags,
        (address, len): (u64, usize),
        f: impl FnOnce(&Pages) -> Result<R, RegionError>,
    ) -> Result<R, RegionError> {
        self.with(key, |table, region| {
            region.check(need)?;
            let len = u64::try_from(len).map_err(|_| RegionError::Bounds)?;
            f(table.reach(region, address, len)?)
        })
    }

    /// The addresses of the region of `key`, which must give access of kind `need`.
    pub fn extent(&self, key: u32, need: MrFlags) -> Result<Window, RegionError> {
        self.with(key, |_, region| {
            region.check(need)?;
            Ok(Window { address: region.va, length: region.length })
        })
    }

    /// Reads from a peer's region, which must allow remote reads. The key is checked anew each time: a region that was
    /// destroyed or invalidated meanwhile is an error.
    pub fn read(&self, mem: &GuestMemory, key: u32, address: u64, into: &mut [u8]) -> Result<(), RegionError> {
        self.access(key, MrFlags::REMOTE_READ, (address, into.len()), move |pages| {
            let mut into = into;
            for_runs(pages, address, into.len(), mem, |mem, bus, n| {
                let (part, rest) = std::mem::take(&mut into).split_at_mut(n);
                into = rest;
                mem.read(bus, part)
            })
        })
    }

    /// Writes into a peer's region, which must allow remote writes; as [`MemoryRegions::read`].
    pub fn store(&self, mem: &GuestMemory, key: u32, address: u64, from: &[u8]) -> Result<(), RegionError> {
        self.access(key, MrFlags::REMOTE_WRITE, (address, from.len()), |pages| {
            let mut from = from;
            for_runs(pages, address, from.len(), mem, |mem, bus, n| {
                let (part, rest) = from.split_at(n);
                from = rest;
                mem.write(bus, part)
            })
        })
    }

    /// The protection domain of a region, for checks and tests.
    #[must_use]
    pub fn protection_domain(&self, key: u32) -> Option<u32> {
        self.with(key, |_, region| Ok(region.rest.pd)).ok()
    }
}

/// Gives each run of `[address, address + len)`, in order, to `copy`: its bus address and its length, which is never 0.
fn for_runs(
    pages: &Pages,
    address: u64,
    len: usize,
    mem: &GuestMemory,
    mut copy: impl FnMut(&mut Access<'_>, u64, usize) -> Result<(), DmaError>,
) -> Result<(), RegionError> {
    let length = u64::try_from(len).map_err(|_| RegionError::Bounds)?;
    if !pages.covers(address, length) {
        return Err(RegionError::Bounds);
    }
    let mut mem = mem.access();
    let (mut at, mut left) = (address, len);
    let mut run = if left > 0 { Some(next_run(pages, at, left)?) } else { None };
    while let Some((bus, n)) = run {
        at = at.wrapping_add(u64::try_from(n).unwrap_or(0));
        left -= n;
        run = if left > 0 { Some(next_run(pages, at, left)?) } else { None };
        if let Some((next, _)) = run {
            // Pages that lie apart share nothing of what the processor needs to find them; that takes as long as a good part
            // of copying one.
            mem.prefetch(next, 1);
        }
        copy(&mut mem, bus, n)?;
    }
    Ok(())
}

fn next_run(pages: &Pages, at: u64, len: usize) -> Result<(u64, usize), RegionError> {
    let (bus, n) = pages.run(at, u64::try_from(len).unwrap_or(u64::MAX)).ok_or(RegionError::Bounds)?;
    Ok((bus, usize::try_from(n).map_err(|_| RegionError::Bounds)?))
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;
    use crate::mem::Prot;

    /// Guest memory from bus address 0, and a scratch page for tables at its end.
    const RAM: u64 = 4 << 20;
    const TABLES: u64 = RAM - (64 << 10);

    fn memory() -> GuestMemory {
        let fd = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, RAM).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let mem = GuestMemory::new();
        mem.map_fd(0, RAM, Prot::READ | Prot::WRITE, fd, 0).unwrap();
        mem
    }

    fn all() -> MrFlags {
        MrFlags::LOCAL_WRITE | MrFlags::REMOTE_WRITE | MrFlags::REMOTE_READ
    }

    fn create(key: u32, va: u64, length: u64, map_count: u32, dma_addr: u64, flags: MrFlags) -> CreateMr {
        CreateMr {
            va: va.into(),
            length: length.into(),
            pd_id: 7.into(),
            id_ver: key.into(),
            tbl_index: u32::MAX.into(),
            map_count: map_count.into(),
            dma_addr: dma_addr.into(),
            dbid_flags: flags.bits().into(),
            page_size_log2: 12,
            ..CreateMr::default()
        }
    }

    /// A region of pages in the given order, its table in guest memory.
    fn paged(mem: &GuestMemory, key: u32, va: u64, length: u64, pages: &[u64]) -> CreateMr {
        let table: Vec<u8> = pages.iter().flat_map(|p| p.to_le_bytes()).collect();
        mem.write(TABLES, &table).unwrap();
        create(key, va, length, pages.len() as u32, TABLES, all())
    }

    #[test]
    fn keys_are_checked_whole() {
        let (mem, regions) = (memory(), MemoryRegions::default());
        regions.create(&mem, &create(0x501, 0x10_0000, 100, 1, 0x2010, all())).unwrap();
        assert_eq!(
            regions.create(&mem, &create(0x502, 0, 1, 1, 0, all())),
            Err(AdminStatus::BAD_INDEX),
            "index in use"
        );
        assert_eq!(regions.create(&mem, &create(0x00ff, 0, 1, 1, 0, all())), Err(AdminStatus::BAD_INDEX), "index 0");
        let over = MAX_REGIONS << 8;
        assert_eq!(regions.create(&mem, &create(over, 0, 1, 1, 0, all())), Err(AdminStatus::BAD_INDEX));
        let mut b = [0; 4];
        assert_eq!(regions.read(&mem, 0, 0, &mut b), Err(RegionError::Reserved));
        assert_eq!(regions.read(&mem, 0x42, 0, &mut b), Err(RegionError::Unknown), "index 0, key byte 0x42");
        assert_eq!(regions.read(&mem, 0x601, 0x10_0000, &mut b), Err(RegionError::Unknown));
        assert_eq!(regions.read(&mem, 0x500, 0x10_0000, &mut b), Err(RegionError::Stale));
        assert_eq!(regions.read(&mem, u32::MAX, 0x10_0000, &mut b), Err(RegionError::Unknown));
        assert_eq!(regions.read(&mem, 0x501, 0x10_0000, &mut b), Ok(()));
        assert_eq!(regions.len(), 1);
        // The key byte may have changed since: only the index counts.
        assert_eq!(regions.destroy(0x5aa), Ok(()));
        assert_eq!(regions.destroy(0x501), Err(AdminStatus::BAD_INDEX));
        assert_eq!(regions.read(&mem, 0x501, 0x10_0000, &mut b), Err(RegionError::Unknown));
        regions.create(&mem, &create(0x502, 0x10_0000, 100, 1, 0x2010, all())).unwrap();
        assert_eq!(regions.read(&mem, 0x501, 0x10_0000, &mut b), Err(RegionError::Stale), "same index, new key byte");
        regions.clear();
        assert!(regions.is_empty());
    }

    #[test]
    fn rights_are_enforced() {
        let (mem, regions) = (memory(), MemoryRegions::default());
        regions.create(&mem, &create(0x100, 0x1000, 64, 1, 0x3000, MrFlags::REMOTE_READ)).unwrap();
        regions.create(&mem, &create(0x200, 0x1000, 64, 1, 0x4000, MrFlags::REMOTE_WRITE)).unwrap();
        regions.create(&mem, &create(0x300, 0x1000, 64, 1, 0x5000, MrFlags::LOCAL_WRITE)).unwrap();
        let mut b = [0; 8];
        for (key, read, write) in [(0x100, true, false), (0x200, false, true), (0x300, false, false)] {
            assert_eq!(regions.read(&mem, key, 0x1000, &mut b).is_ok(), read);
            assert_eq!(regions.store(&mem, key, 0x1000, &b).is_ok(), write);
            assert_eq!(regions.extent(key, MrFlags::REMOTE_WRITE).is_ok(), write);
        }
        // A region with nothing mapped, as fast registration makes it.
        regions.create(&mem, &create(0x400, 0, 0, 0, 0, all() | MrFlags::UKEY_EN | MrFlags::INV_EN)).unwrap();
        assert_eq!(regions.read(&mem, 0x400, 0, &mut b), Err(RegionError::Stale));
    }

    #[test]
    fn bounds_cannot_wrap() {
        let (mem, regions) = (memory(), MemoryRegions::default());
        regions.create(&mem, &create(0x100, 0x1000, 64, 1, 0x3000, all())).unwrap();
        let mut b = [0; 8];
        for (address, ok) in
            [(0x1000, true), (0x1038, true), (0x1039, false), (0xfff, false), (u64::MAX, false), (0x1040, false)]
        {
            assert_eq!(regions.read(&mem, 0x100, address, &mut b).is_ok(), ok, "{address:#x}");
        }
        assert_eq!(regions.read(&mem, 0x100, 0x1040, &mut []), Ok(()), "nothing, at the end");
        assert_eq!(regions.extent(0x100, all()), Ok(Window { address: 0x1000, length: 64 }));
        assert_eq!(regions.create(&mem, &create(0x200, u64::MAX, 2, 1, 0, all())), Err(AdminStatus::BAD_ATTR));
        assert_eq!(regions.create(&mem, &create(0x200, 0, u64::MAX, 1, 1, all())), Err(AdminStatus::BAD_ATTR));
    }

    #[test]
    fn hostile_page_lists_are_refused_and_cost_nothing() {
        let (mem, regions) = (memory(), MemoryRegions::default());
        let bad = |mut cmd: CreateMr, change: fn(&mut CreateMr)| {
            change(&mut cmd);
            assert_eq!(regions.create(&mem, &cmd), Err(AdminStatus::BAD_ATTR));
        };
        let good = paged(&mem, 0x100, 0x7800, 0x1000, &[0x1000, 0x9000]);
        bad(good, |c| c.map_count = u32::MAX.into());
        bad(good, |c| c.map_count = 3.into());
        bad(good, |c| c.page_size_log2 = 0);
        bad(good, |c| c.page_size_log2 = 13);
        bad(good, |c| c.page_size_log2 = 63);
        bad(good, |c| c.page_size_log2 = 255);
        bad(good, |c| c.dma_addr = (RAM - 8).into());
        bad(good, |c| c.dma_addr = u64::MAX.into());
        bad(good, |c| c.length = u64::MAX.into());
        // A table that says it has more pages than memory: refused before anything is allocated for it.
        bad(create(0x100, 0, u64::from(u32::MAX) << 12, u32::MAX, 0, all()), |_| {});
        bad(paged(&mem, 0x100, 0x7800, 0x1000, &[0x1000, 0x9001]), |_| {});
        bad(paged(&mem, 0x100, 0x7800, 0x1000, &[0x1000, u64::MAX << 12]), |_| {});
        assert_eq!(regions.create(&mem, &good), Err(AdminStatus::BAD_ATTR), "the table was overwritten");
        let good = paged(&mem, 0x100, 0x7800, 0x1000, &[0x1000, 0x9000]);
        regions.create(&mem, &good).unwrap();
        assert_eq!(regions.0.read().unwrap().budget, u64::from(MAX_PAGES) - 2);
        regions.destroy(0x100).unwrap();
        assert_eq!(regions.0.read().unwrap().budget, u64::from(MAX_PAGES));
    }

    #[test]
    fn pages_outside_memory_fail_when_used() {
        let (mem, regions) = (memory(), MemoryRegions::default());
        regions.create(&mem, &paged(&mem, 0x100, 0, 0x2000, &[0x1000, RAM + 0x1000])).unwrap();
        let mut b = vec![0; 0x2000];
        assert!(matches!(regions.read(&mem, 0x100, 0, &mut b), Err(RegionError::Dma(_))));
        assert_eq!(regions.read(&mem, 0x100, 0, &mut b[..0x1000]), Ok(()));
        mem.unmap(0, RAM);
        assert!(matches!(regions.read(&mem, 0x100, 0, &mut b[..16]), Err(RegionError::Dma(_))), "the map went");
    }

    /// Whoever copies in another thread is done with a region when DESTROY_MR is.
    #[test]
    fn a_removed_region_is_not_touched_any_more() {
        let (mem, regions) = (memory(), MemoryRegions::default());
        let length = 1 << 20;
        for key in (0x100..0x140).chain(0x200..0x240) {
            regions.create(&mem, &create(key, 0, length, 1, 0x10_0000, all())).unwrap();
            let (table, memory) = (regions.clone(), mem.clone());
            let copies = std::thread::spawn(move || {
                let bytes = vec![0xab; length as usize];
                while table.store(&memory, key, 0, &bytes).is_ok() {}
            });
            let mut first = [0];
            while first[0] != 0xab {
                mem.read(0x10_0000, &mut first).unwrap();
            }
            regions.destroy(key).unwrap();
            mem.write(0x10_0000, &vec![0; length as usize]).unwrap();
            copies.join().unwrap();
            let mut after = vec![1; length as usize];
            mem.read(0x10_0000, &mut after).unwrap();
            assert!(after.iter().all(|byte| *byte == 0), "{key:#x}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Any window of a region of shuffled pages reads and writes exactly the bytes that the page list says, and not one
        /// beside them.
        #[test]
        fn windows_follow_the_page_list(
            order in Just((0..16u64).collect::<Vec<_>>()).prop_shuffle(),
            count in 1usize..=16, first in 0u64..4096, short in 0u64..4096,
            from in 0u64..70_000, len in 0usize..70_000, fill in any::<u8>(),
        ) {
            let (mem, regions) = (memory(), MemoryRegions::default());
            let va = 0x7f00_0000_0000 + first;
            let length = (count as u64 * 4096 - first).saturating_sub(short).max(1);
            let needed = ((first + length - 1) >> 12) + 1;
            let pages: Vec<u64> = order.iter().take(needed as usize).map(|p| 0x10_0000 + p * 4096).collect();
            let cmd = if pages.len() == 1 {
                create(0x100, va, length, 1, pages[0] + first, all())
            } else {
                paged(&mem, 0x100, va, length, &pages)
            };
            regions.create(&mem, &cmd).unwrap();
            let mut ram: Vec<u8> = (0..16 * 4096u32).map(|i| (i * 31 % 251) as u8).collect();
            mem.write(0x10_0000, &ram).unwrap();
            let at = |offset: u64| {
                let x = first + offset;
                (pages[(x >> 12) as usize] - 0x10_0000 + (x & 4095)) as usize
            };
            let fits = from <= length && len as u64 <= length - from;
            let mut got = vec![0; len];
            prop_assert_eq!(regions.read(&mem, 0x100, va + from, &mut got).is_ok(), fits);
            if fits {
                let want: Vec<u8> = (0..len as u64).map(|i| ram[at(from + i)]).collect();
                prop_assert!(got == want);
                for i in 0..len as u64 {
                    ram[at(from + i)] = fill;
                }
            }
            prop_assert_eq!(regions.store(&mem, 0x100, va + from, &vec![fill; len]).is_ok(), fits);
            let mut after = vec![0; ram.len()];
            mem.read(0x10_0000, &mut after).unwrap();
            prop_assert!(after == ram);
        }
    }
}
