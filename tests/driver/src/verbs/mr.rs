//! Memory regions and windows (`ionic_controlpath.c`, `ionic_pgtbl.c`).

use ionic_abi::{AdminOp, AdminStatus, CreateMr, DestroyById, MrFlags};
use zerocopy::IntoBytes;

use super::{Command, Verbs};
use crate::{
    bus::Bus,
    error::DriverError,
    ionic::Ionic,
    ram::{DmaBuf, PAGE},
    user::UserMem,
};

/// Bytes that a table of page addresses is aligned to: what `kmalloc` gives for small ones.
const TABLE_ALIGN: usize = 16;

/// A registered region, or a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mr {
    /// lkey and rkey.
    pub key: u32,
    /// First address.
    pub va: u64,
    /// Bytes.
    pub length: u64,
}

/// What to register: a range of the memory of a process.
#[derive(Debug, Clone)]
pub struct RegMr {
    /// First address.
    pub va: u64,
    /// Bytes.
    pub length: u64,
    /// Bus addresses of the pages of 4 KiB, the first holding `va`.
    pub pages: Vec<u64>,
    /// Rights.
    pub access: MrFlags,
}

impl RegMr {
    /// All of the memory of a process.
    #[must_use]
    pub fn all(mem: &UserMem, access: MrFlags) -> Self {
        Self { va: mem.va(), length: mem.len() as u64, pages: mem.pages(), access }
    }

    /// A part of it.
    #[must_use]
    pub fn part(mem: &UserMem, offset: usize, length: usize, access: MrFlags) -> Self {
        assert!(offset + length <= mem.len(), "{offset:#x}+{length:#x} is not in {mem:?}");
        let va = mem.va() + offset as u64;
        let first = usize::try_from(va / PAGE as u64 - mem.va() / PAGE as u64).unwrap_or(0);
        let count = (usize::try_from(va % PAGE as u64).unwrap_or(0) + length.max(1)).div_ceil(PAGE);
        let pages = mem.pages().into_iter().skip(first).take(count).collect();
        Self { va, length: length as u64, pages, access }
    }
}

/// How pages are described to the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageTable {
    /// Bytes of a page, log2.
    pub shift: u8,
    /// Address of each page.
    pub pages: Vec<u64>,
    /// What `dma_addr` says if there is only one: its address with the offset of the first byte.
    pub direct: u64,
}

impl PageTable {
    /// The largest pages among `sizes` (a bit each) that describe `[va, va + length)`, whose pages of 4 KiB are `pages`, but
    /// none larger than one that holds all of it (`ib_umem_find_best_pgsz`). A page size fits if every address has the same
    /// offset in its page as its bus address has.
    #[must_use]
    pub fn new(va: u64, length: u64, pages: &[u64], sizes: u64) -> Option<Self> {
        let offset = va % PAGE as u64;
        let (first, small) = (*pages.first()?, PAGE as u64);
        // Starts of runs on the bus: number of the page, and its address.
        let numbers = (va / small)..;
        let starts = |shift: u8| {
            let mask = (1u64 << shift) - 1;
            let mut before = None;
            pages.iter().zip(numbers.clone()).all(|(&bus, number)| {
                let same_run = before.replace(bus) == Some(bus.wrapping_sub(small));
                let at = number.wrapping_mul(small);
                let boundary = number == va / small || at & mask == 0;
                same_run || (bus ^ at) & mask == 0 && boundary
            })
        };
        let count = |shift: u8| {
            let last = va.checked_add(length.max(1) - 1)?;
            Some((last >> shift) - (va >> shift) + 1)
        };
        let mut shift = None;
        for fits in (12..=30u8).filter(|shift| sizes >> shift & 1 != 0 && starts(*shift)) {
            shift = Some(fits);
            if count(fits)? == 1 {
                break;
            }
        }
        let shift = shift?;
        let entries = usize::try_from(count(shift)?).ok()?;
        let mask = (1u64 << shift) - 1;
        let per_page = (1u64 << shift) / small;
        // Number of the first page of each entry among the small ones, seen from that of `va`.
        let skew = (va >> 12) % per_page;
        let table = (0..entries as u64)
            .map(|i| {
                let at = (i * per_page).saturating_sub(skew);
                Some(*pages.get(usize::try_from(at).ok()?)? & !mask)
            })
            .collect::<Option<_>>()?;
        Some(Self { shift, pages: table, direct: first + offset })
    }
}

impl Verbs {
    /// Registers memory of a process (`ibv_reg_mr`).
    ///
    /// # Errors
    /// The device refused it, or there is no memory for its table.
    pub fn reg_mr<B: Bus>(&mut self, nic: &mut Ionic<B>, pd: u32, what: &RegMr) -> Result<Mr, DriverError> {
        let mr = self.reg_mrs(nic, pd, std::slice::from_ref(what))?;
        mr.into_iter().next().unwrap_or(Err(AdminStatus(u8::MAX))).map_err(refused)
    }

    /// Registers many, with as many commands at once as there is room for; the status of those that were refused.
    ///
    /// # Errors
    /// As [`Verbs::run`], or there is no memory for a table.
    pub fn reg_mrs<B: Bus>(
        &mut self,
        nic: &mut Ionic<B>,
        pd: u32,
        what: &[RegMr],
    ) -> Result<Vec<Result<Mr, AdminStatus>>, DriverError> {
        let sizes = self.identity.page_size_cap.get();
        let mut tables = Vec::new();
        let (mut commands, mut mrs) = (Vec::new(), Vec::new());
        // Where the next small table goes: they share a piece of memory, one behind the other and across pages.
        let mut at = TABLE_ALIGN * 7;
        for reg in what {
            let table = PageTable::new(reg.va, reg.length, &reg.pages, sizes)
                .ok_or_else(|| DriverError::Violation(format!("no page size fits {:#x}+{:#x}", reg.va, reg.length)))?;
            let key = self.new_key();
            let dma_addr = match table.pages.len() {
                0 | 1 => table.direct,
                _ => self.place_table(&table.pages, &mut at, &mut tables)?,
            };
            let body = CreateMr {
                va: reg.va.into(),
                length: reg.length.into(),
                pd_id: pd.into(),
                id_ver: key.into(),
                tbl_index: u32::MAX.into(),
                map_count: u32::try_from(table.pages.len()).unwrap_or(u32::MAX).into(),
                dma_addr: dma_addr.into(),
                dbid_flags: reg.access.bits().into(),
                page_size_log2: table.shift,
                ..CreateMr::default()
            };
            commands.push(Command::new(AdminOp::CREATE_MR, &body));
            mrs.push(Mr { key, va: reg.va, length: reg.length });
        }
        let statuses = self.run(nic, &commands)?;
        // The tables are freed, and others get the memory: whoever reads them now reads something else.
        self.scratch.fill(0xff);
        tables.iter().for_each(|table: &DmaBuf| table.fill(0xff));
        let made = mrs.into_iter().zip(statuses).map(|(mr, status)| match status {
            AdminStatus::OK => Ok(mr),
            status => {
                self.mrs.give(mr.key >> 8);
                Err(status)
            }
        });
        Ok(made.collect())
    }

    fn place_table(&self, pages: &[u64], at: &mut usize, tables: &mut Vec<DmaBuf>) -> Result<u64, DriverError> {
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        if *at + bytes.len() <= self.scratch.len() {
            let place = *at;
            *at = (place + bytes.len()).next_multiple_of(TABLE_ALIGN);
            self.scratch.write(place, &bytes);
            return Ok(self.scratch.iova() + place as u64);
        }
        let table = self.ram.alloc_dirty(bytes.len()).ok_or(DriverError::NoMemory(bytes.len()))?;
        table.write(0, &bytes);
        let iova = table.iova();
        tables.push(table);
        Ok(iova)
    }

    /// A key that no region has: the lowest free index, and a key byte that is another one each time.
    pub fn new_key(&mut self) -> u32 {
        self.next_key = self.next_key.wrapping_add(1);
        self.mrs.take() << 8 | u32::from(self.next_key)
    }

    /// Makes a region that nothing is mapped to, as the kernel does for fast registration (`alloc_mr`).
    ///
    /// # Errors
    /// The device refused it.
    pub fn alloc_mr<B: Bus>(&mut self, nic: &mut Ionic<B>, pd: u32) -> Result<u32, DriverError> {
        self.alloc_unmapped(nic, pd, MrFlags::UKEY_EN | MrFlags::INV_EN)
    }

    /// Makes a memory window of type 1 or 2 (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// The device refused it.
    pub fn alloc_mw<B: Bus>(&mut self, nic: &mut Ionic<B>, pd: u32, second_type: bool) -> Result<u32, DriverError> {
        let mut flags = MrFlags::UKEY_EN | MrFlags::IS_MW;
        flags.set(MrFlags::INV_EN, second_type);
        self.alloc_unmapped(nic, pd, flags)
    }

    fn alloc_unmapped<B: Bus>(&mut self, nic: &mut Ionic<B>, pd: u32, flags: MrFlags) -> Result<u32, DriverError> {
        let key = self.new_key();
        let body = CreateMr {
            pd_id: pd.into(),
            id_ver: key.into(),
            tbl_index: u32::MAX.into(),
            dbid_flags: flags.bits().into(),
            ..CreateMr::default()
        };
        self.verb(nic, AdminOp::CREATE_MR, &body).inspect_err(|_| self.mrs.give(key >> 8))?;
        Ok(key)
    }

    /// Gives a region or window up (`ibv_dereg_mr`, `ibv_dealloc_mw`). Afterwards the device may not touch its memory.
    ///
    /// # Errors
    /// The device refused it.
    pub fn dereg_mr<B: Bus>(&mut self, nic: &mut Ionic<B>, key: u32) -> Result<(), DriverError> {
        self.verb(nic, AdminOp::DESTROY_MR, &DestroyById { id_ver: key.into() })?;
        self.mrs.give(key >> 8);
        Ok(())
    }

    /// Gives many up.
    ///
    /// # Errors
    /// As [`Verbs::run`]; the device refused one.
    pub fn dereg_mrs<B: Bus>(&mut self, nic: &mut Ionic<B>, keys: &[u32]) -> Result<(), DriverError> {
        let op = AdminOp::DESTROY_MR;
        let commands: Vec<_> =
            keys.iter().map(|key| Command::new(op, &DestroyById { id_ver: (*key).into() })).collect();
        for (key, status) in keys.iter().zip(self.run(nic, &commands)?) {
            if status != AdminStatus::OK {
                return Err(DriverError::Verb { op, status });
            }
            self.mrs.give(key >> 8);
        }
        Ok(())
    }

    /// A copy of a header or table for the time of a command.
    pub(super) fn stage(&self, bytes: &(impl IntoBytes + zerocopy::Immutable + ?Sized)) -> u64 {
        // Not aligned to anything but 16: as memory of `kmalloc`.
        self.scratch.write(TABLE_ALIGN * 3, bytes.as_bytes());
        self.scratch.iova() + TABLE_ALIGN as u64 * 3
    }

    /// The memory of [`Verbs::stage`] is somebody else's again.
    pub(super) fn unstage(&self) {
        self.scratch.fill(0xff);
    }
}

fn refused(status: AdminStatus) -> DriverError {
    DriverError::Verb { op: AdminOp::CREATE_MR, status }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: u64 = 0x4020_1000;

    fn run(bus: u64, count: u64) -> Vec<u64> {
        (0..count).map(|i| bus + i * PAGE as u64).collect()
    }

    #[test]
    fn pages_are_as_large_as_they_can_be() {
        let table = |va, length, pages: &[u64]| PageTable::new(va, length, pages, SIZES).unwrap();
        // One page, whatever its alignment.
        let one = table(0x7f00_0000_1005, 100, &[0x20_3000]);
        assert_eq!((one.shift, one.pages, one.direct), (12, vec![0x20_3000], 0x20_3005));
        // Two pages that are neighbours and not aligned to more, and two that are not neighbours.
        assert_eq!(table(0x1fff, 2, &[0x5000, 0x6000]).pages, [0x5000, 0x6000]);
        assert_eq!(table(0x1fff, 2, &[0x9000, 0x5000]).pages, [0x9000, 0x5000]);
        // The same offset in 2 MiB: one entry, whose address may lie below the memory.
        let huge = table(0x4000_3001, 0x1000, &run(0x8020_3000, 2));
        assert_eq!((huge.shift, huge.pages, huge.direct), (21, vec![0x8020_0000], 0x8020_3001));
        // Two huge pages, apart from each other.
        let two = [run(0x8020_3000, 509), run(0x100_0000, 4)].concat();
        let two = table(0x4000_3000, 0x1fd000 + 0x3001, &two);
        assert_eq!((two.shift, two.pages), (21, vec![0x8020_0000, 0x100_0000]));
        // A run that ends where no huge page does.
        let apart = [run(0x8020_3000, 508), run(0x100_0000, 4)].concat();
        assert_eq!(table(0x4000_3000, 512 * 4096, &apart).shift, 12);
        // A gigabyte and a byte.
        let gig = table(0x4000_0000, (1 << 30) + 1, &run(0xc000_0000, (1 << 18) + 1));
        assert_eq!((gig.shift, gig.pages), (30, vec![0xc000_0000, 0x1_0000_0000]));
        // At the end of the address space.
        assert_eq!(table(u64::MAX - 4096, 4097, &[0x1000, 0x7000]).pages, [0x1000, 0x7000]);
    }
}
