//! Memory regions: what a token reaches.

use ernic_emu::rdma::MAX_REGIONS;
use ionic_abi::{AdminOp, AdminStatus, MrFlags};
use ionic_driver::{
    DriverError, UserMem, Verbs,
    user::{HUGE_PAGE, Placement},
    verbs::{PageTable, RegMr},
};
use rdma_token::{RemoteAccess, RemoteError, Window};

use super::{
    common::{TestBus, TestLink, device_config, frames},
    kit::{ALL, Guest, PLACEMENTS, now},
};

/// Where a program's buffer may begin.
const BASES: [u64; 4] = [0x7f11_2233_4000, 0x7f11_2233_4005, 0x5555_5555_6fff, u64::MAX - 0xf_ffff];

pub fn start_and_stop<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    for _ in 0..5 {
        let objects = guest.nic.bus.with_device(|device| device.rdma_objects());
        assert_eq!((objects.eqs, objects.cqs, objects.qps, objects.regions), (4, 4, 0, 0));
        let mem = UserMem::new(guest.nic.bus.ram(), BASES[1], 100_000, Placement::Scattered).unwrap();
        let pd = guest.verbs.create_pd();
        let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
        guest.put(mr.key, mr.va, b"bytes").unwrap();
        assert_eq!(guest.nic.bus.with_device(|device| device.rdma_objects().regions), 1);
        let verbs = std::mem::replace(&mut guest.verbs, Verbs::open(&mut guest.nic).unwrap());
        // The second one has reset the device, so that the first has nothing left to stop.
        drop(verbs);
        assert_eq!(guest.put(mr.key, mr.va, b"bytes"), Err(RemoteError::UnknownKey(mr.key)));
    }
    let Guest { mut nic, verbs } = guest;
    verbs.close(&mut nic).unwrap();
    let objects = nic.bus.with_device(|device| device.rdma_objects());
    assert_eq!(objects, ernic_emu::rdma::Objects::default());
    assert_eq!(nic.bus.errors(), ernic_emu::device::GuestErrors::default());
    nic.remove().unwrap();
}

/// One page, pages that are not neighbours, unaligned beginnings and ends: every byte of a transfer lands where the page list
/// says, and no other changes.
pub(super) fn every_shape<T: TestBus>(guest: &mut Guest<T>, most: usize) {
    let pd = guest.verbs.create_pd();
    for va in BASES {
        for len in [1, 100, 4096, 4097, 60_000, 1_000_000].into_iter().filter(|len| *len <= most) {
            for placement in PLACEMENTS {
                let mem = UserMem::new(guest.nic.bus.ram(), va, len, placement).unwrap();
                let before = frames::pattern(len, 7);
                mem.write(0, &before);
                let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
                assert_eq!(guest.get(mr.key, va, len).unwrap(), before);
                let mut expected = before;
                for (from, n) in [(0, 1), (len / 3, len / 2), (len - 1, 1), (0, len), (len / 2, 0)] {
                    let bytes = frames::pattern(n, (from + n) as u64);
                    guest.put(mr.key, va + from as u64, &bytes).unwrap();
                    expected[from..from + n].copy_from_slice(&bytes);
                    assert!(mem.content() == expected && mem.intact(), "{va:#x}+{len} {placement:?}: {from}+{n}");
                }
                // One byte beyond either end.
                let beyond = va.wrapping_add(len as u64);
                for (address, n) in [(va - 1, 2), (beyond.wrapping_sub(1), 2), (beyond, 1), (va, len + 1)] {
                    let refused = guest.put(mr.key, address, &vec![0xff; n]);
                    assert!(matches!(refused, Err(RemoteError::Bounds(_))), "{refused:?}");
                }
                assert!(mem.content() == expected && mem.intact());
                guest.verbs.dereg_mr(&mut guest.nic, mr.key).unwrap();
                assert_eq!(guest.get(mr.key, va, 1), Err(RemoteError::UnknownKey(mr.key)));
            }
        }
    }
}

pub fn bytes_go_where_the_page_list_says<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    every_shape(&mut guest, usize::MAX);
    assert_eq!(guest.nic.bus.errors(), ernic_emu::device::GuestErrors::default());
}

pub fn huge_pages<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let sizes = guest.verbs.identity.page_size_cap.get();
    // Within one huge page; across the border of two; three and a bit, from the middle of the first.
    for (va, len, entries) in
        [(0x7f00_0020_1005, 300_000, 1), (0x7f00_003f_0000, 200_000, 2), (0x7f00_0010_0000, 3 * HUGE_PAGE + 5, 4)]
    {
        let mem = UserMem::new(guest.nic.bus.ram(), va, len, Placement::Huge).unwrap();
        let table = PageTable::new(va, len as u64, &mem.pages(), sizes).unwrap();
        assert_eq!((table.shift, table.pages.len()), (21, entries));
        let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
        let bytes = frames::pattern(len, 3);
        guest.put(mr.key, va, &bytes).unwrap();
        assert!(mem.content() == bytes && mem.intact());
        // Two huge pages that are not neighbours, and lie in the wrong order.
        let regs = [RegMr::part(&mem, 0, len / 2, ALL), RegMr::part(&mem, len / 2, len - len / 2, ALL)];
        let halves = guest.verbs.reg_mrs(&mut guest.nic, pd, &regs).unwrap();
        for (half, range) in halves.into_iter().zip([0..len / 2, len / 2..len]) {
            let half = half.unwrap();
            assert!(guest.get(half.key, half.va, range.len()).unwrap() == bytes[range]);
            assert!(matches!(guest.get(half.key, half.va, half.length as usize + 1), Err(RemoteError::Bounds(_))));
        }
    }
    let (a, b) = (aligned(&guest, HUGE_PAGE), aligned(&guest, HUGE_PAGE));
    let va = 0x7f00_0000_0000_u64;
    let pages: Vec<u64> = [b.iova(), a.iova()].iter().flat_map(|at| (0..512).map(move |i| at + i * 4096)).collect();
    let what = RegMr { va, length: 2 * HUGE_PAGE as u64, pages, access: ALL };
    let table = PageTable::new(va, what.length, &what.pages, sizes).unwrap();
    assert_eq!((table.shift, table.pages), (21, vec![b.iova(), a.iova()]));
    let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &what).unwrap();
    guest.put(mr.key, va + HUGE_PAGE as u64 - 3, b"abcdef").unwrap();
    let mut end = [0; 3];
    b.read(HUGE_PAGE - 3, &mut end);
    assert_eq!(&end, b"abc");
    a.read(0, &mut end);
    assert_eq!(&end, b"def");
}

fn aligned<T: TestBus>(guest: &Guest<T>, len: usize) -> ionic_driver::DmaBuf {
    guest.nic.bus.ram().alloc_aligned(len, HUGE_PAGE, 0).unwrap()
}

pub fn more_than_a_gigabyte<T: TestBus>() {
    const GIB: usize = 1 << 30;
    let ram = 4 * GIB;
    let mut guest = Guest::on(T::make_for(device_config(), ram, TestLink::default(), |_| TestLink::default()));
    let pd = guest.verbs.create_pd();
    let sizes = guest.verbs.identity.page_size_cap.get();
    let len = GIB + GIB / 4 + 1234;
    for (va, placement, shift) in
        [(0x7f00_0000_5005, Placement::Contiguous, 12), (0x7f00_0010_0003, Placement::Huge, 21)]
    {
        let mem = UserMem::new(guest.nic.bus.ram(), va, len, placement).unwrap();
        let table = PageTable::new(va, len as u64, &mem.pages(), sizes).unwrap();
        assert_eq!(table.shift, shift);
        let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
        for at in [0, 12_345, GIB / 2 - 3, GIB - 4096, GIB - 7, len - 10_000] {
            let bytes = frames::pattern(10_000, at as u64);
            guest.put(mr.key, va + at as u64, &bytes).unwrap();
            let mut got = vec![0; bytes.len()];
            mem.read(at, &mut got);
            assert!(got == bytes && mem.intact(), "{at:#x}");
            assert!(guest.get(mr.key, va + at as u64, 10_000).unwrap() == bytes);
        }
        assert!(matches!(guest.put(mr.key, va + len as u64 - 1, &[1, 2]), Err(RemoteError::Bounds(_))));
        guest.verbs.dereg_mr(&mut guest.nic, mr.key).unwrap();
    }
    // A page of 1 GiB whose whole is not guest memory: what of it is registered is.
    let start = guest.nic.bus.ram().iova().next_multiple_of(GIB as u64);
    let what = RegMr {
        va: 0x7f00_4000_0000,
        length: GIB as u64 + 5,
        pages: (0..=GIB as u64 / 4096).map(|i| start + i * 4096).collect(),
        access: ALL,
    };
    let table = PageTable::new(what.va, what.length, &what.pages, sizes).unwrap();
    assert_eq!((table.shift, table.pages.len()), (30, 2));
    let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &what).unwrap();
    guest.put(mr.key, what.va + GIB as u64 - 3, b"12345678").unwrap();
    let mut got = [0; 9];
    assert!(guest.nic.bus.ram().read(start + GIB as u64 - 3, &mut got));
    assert_eq!(&got, b"12345678\0");
}

pub fn case_12_the_table_is_full<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let mem = UserMem::new(guest.nic.bus.ram(), 0x1000, 4096, Placement::Contiguous).unwrap();
    let limit = MAX_REGIONS as usize - 1;
    assert_eq!(guest.verbs.identity.nmrs_per_lif.get() as usize, limit + 1, "index 0 is nobody's");
    let what = vec![RegMr::all(&mem, ALL); limit];
    let mrs = guest.verbs.reg_mrs(&mut guest.nic, pd, &what).unwrap();
    let keys: Vec<u32> = mrs.into_iter().map(|mr| mr.unwrap().key).collect();
    let regions = |guest: &mut Guest<T>| guest.nic.bus.with_device(|device| device.regions().len()) as usize;
    assert_eq!(regions(&mut guest), limit);
    for round in 0..3 {
        let refused = guest.verbs.reg_mr(&mut guest.nic, pd, &what[0]).unwrap_err();
        let expected = DriverError::Verb { op: AdminOp::CREATE_MR, status: AdminStatus::BAD_INDEX };
        assert_eq!(refused.to_string(), expected.to_string());
        assert_eq!(regions(&mut guest), limit);
        // One is freed, and one made in its place.
        let old = keys[17_000 + round];
        guest.verbs.dereg_mr(&mut guest.nic, old).unwrap();
        let new = guest.verbs.reg_mr(&mut guest.nic, pd, &what[0]).unwrap().key;
        assert!(new != old && new >> 8 == old >> 8);
        guest.put(new, 0x1000, b"new").unwrap();
        assert_eq!(guest.put(old, 0x1000, b"old"), Err(RemoteError::Stale(old)));
        assert_eq!(&mem.content()[..3], b"new");
        guest.verbs.dereg_mr(&mut guest.nic, new).unwrap();
        let again = guest.verbs.reg_mr(&mut guest.nic, pd, &what[0]).unwrap();
        guest.put(again.key, 0x1000, b"yes").unwrap();
    }
    // First and last of the others still work.
    for key in [keys[0], keys[limit - 1]] {
        guest.put(key, 0x1100, b"all").unwrap();
    }
    let Guest { mut nic, verbs } = guest;
    verbs.close(&mut nic).unwrap();
    assert!(nic.bus.with_device(|device| device.regions().is_empty()));
}

/// Regions whose pages are few, but whose page lists are long: the device's memory for them has an end.
pub fn case_12_the_page_tables_are_full<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    // Every second page of it is one page of guest memory, the others are another.
    let pages: u64 = 1 << 20;
    let mem = UserMem::new(guest.nic.bus.ram(), 0, 8192, Placement::Scattered).unwrap();
    let [a, b] = [mem.pages()[0], mem.pages()[1]];
    let what = RegMr {
        va: 0x7000_0000_0000,
        length: pages * 4096,
        pages: (0..pages).map(|i| if i % 2 == 0 { a } else { b }).collect(),
        access: ALL,
    };
    let limit = u64::from(guest.verbs.identity.npts_per_lif.get()) / 2 / pages;
    let mut keys = Vec::new();
    for _ in 0..limit {
        keys.push(guest.verbs.reg_mr(&mut guest.nic, pd, &what).unwrap().key);
    }
    guest.put(keys[3], what.va + 4096 * (pages - 1) - 2, b"last").unwrap();
    assert_eq!(mem.content()[4096..4098], *b"st");
    for round in 0..3 {
        let refused = guest.verbs.reg_mr(&mut guest.nic, pd, &what).unwrap_err();
        assert!(matches!(refused, DriverError::Verb { status: AdminStatus::BAD_ATTR, .. }), "{refused}");
        // One that needs no table has room.
        let small = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::part(&mem, 100, 50, ALL)).unwrap();
        guest.verbs.dereg_mr(&mut guest.nic, small.key).unwrap();
        let old = keys.swap_remove(round);
        guest.verbs.dereg_mr(&mut guest.nic, old).unwrap();
        keys.push(guest.verbs.reg_mr(&mut guest.nic, pd, &what).unwrap().key);
    }
}

pub fn keys_are_never_good_twice<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let mem = UserMem::new(guest.nic.bus.ram(), 0x1000, 100, Placement::Contiguous).unwrap();
    mem.write(0, &[0; 100]);
    let mut old = Vec::new();
    // More often than there are key bytes.
    for round in 0..300_u32 {
        let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
        assert_eq!(mr.key >> 8, 1, "the same index each time");
        guest.put(mr.key, 0x1000, &round.to_le_bytes()).unwrap();
        for key in old.iter().rev().take(50) {
            assert_eq!(guest.put(*key, 0x1000, b"old!"), Err(RemoteError::Stale(*key)));
        }
        assert_eq!(mem.content()[..4], round.to_le_bytes());
        guest.verbs.dereg_mr(&mut guest.nic, mr.key).unwrap();
        assert_eq!(guest.put(mr.key, 0x1000, b"gone"), Err(RemoteError::UnknownKey(mr.key)));
        old.push(mr.key);
    }
    let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap();
    // Every other key of its index, those of the first ones, and keys of no index.
    for byte in 0..=255_u32 {
        let key = mr.key & !0xff | byte;
        let expected = if key == mr.key { Ok(vec![43, 1, 0, 0]) } else { Err(RemoteError::Stale(key)) };
        assert_eq!(guest.get(key, 0x1000, 4), expected);
        let expected = if byte == 0 { RemoteError::ReservedKey } else { RemoteError::UnknownKey(byte) };
        assert_eq!(guest.get(byte, 0x1000, 4), Err(expected.clone()));
        // The reserved key is no way to all of memory either: bus addresses are nothing to it.
        assert_eq!(guest.put(byte, guest.nic.bus.ram().iova(), b"x"), Err(expected));
        for index in [2, 0xffff, 0xff_ffff] {
            let key = index << 8 | byte;
            assert_eq!(guest.get(key, 0x1000, 4), Err(RemoteError::UnknownKey(key)));
        }
    }
    assert!(mem.intact());
}

pub fn rights_are_kept<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let mem = UserMem::new(guest.nic.bus.ram(), 0x1005, 10_000, Placement::Scattered).unwrap();
    mem.write(0, &[1; 10_000]);
    let (local, read, write) = (MrFlags::LOCAL_WRITE, MrFlags::REMOTE_READ, MrFlags::REMOTE_WRITE);
    let atomic = MrFlags::REMOTE_ATOMIC;
    for flags in [MrFlags::empty(), local, read, write | local, read | local, atomic | local, MrFlags::MW_BIND | local]
    {
        let mr = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, flags)).unwrap();
        let got = guest.get(mr.key, 0x1005, 10_000);
        let put = guest.put(mr.key, 0x1005, &[2; 10_000]);
        assert_eq!(got.is_ok(), flags.contains(read));
        assert_eq!(put.is_ok(), flags.contains(write));
        let refused = |access| Err(RemoteError::Access(access));
        if !flags.contains(read) {
            assert_eq!(got, refused(RemoteAccess::Read));
        }
        if !flags.contains(write) {
            assert_eq!(put, refused(RemoteAccess::Write).map(|_: Vec<u8>| ()));
            assert!(mem.content().iter().all(|byte| *byte == 1));
        }
        mem.write(0, &[1; 10_000]);
        guest.verbs.dereg_mr(&mut guest.nic, mr.key).unwrap();
    }
    assert!(mem.intact());
}

/// Windows and regions for fast registration: there until they are destroyed, but no memory is behind them.
pub fn regions_without_memory<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let keys = [
        guest.verbs.alloc_mr(&mut guest.nic, pd).unwrap(),
        guest.verbs.alloc_mw(&mut guest.nic, pd, false).unwrap(),
        guest.verbs.alloc_mw(&mut guest.nic, pd, true).unwrap(),
    ];
    assert_eq!(guest.nic.bus.with_device(|device| device.regions().len()), 3);
    for key in keys {
        for (address, n) in [(0, 0), (0, 1), (guest.nic.bus.ram().iova(), 100)] {
            assert!(guest.get(key, address, n).is_err(), "{key:#x}");
            assert!(guest.put(key, address, &vec![0; n]).is_err());
        }
        guest.verbs.dereg_mr(&mut guest.nic, key).unwrap();
    }
    assert!(guest.nic.bus.with_device(|device| device.regions().is_empty()));
}

/// Many at once, each beside the next in guest memory: none reaches into another.
pub fn many_at_once<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let pd = guest.verbs.create_pd();
    let count = 2000;
    let mems: Vec<UserMem> = (0..count)
        .map(|i| {
            let placement = if i % 2 == 0 { Placement::Scattered } else { Placement::Contiguous };
            UserMem::new(guest.nic.bus.ram(), 0x7000_0000 + 0x10_0000 * i, 1 + i as usize * 7 % 9000, placement)
                .unwrap()
        })
        .collect();
    let what: Vec<RegMr> = mems.iter().map(|mem| RegMr::all(mem, ALL)).collect();
    let mrs = guest.verbs.reg_mrs(&mut guest.nic, pd, &what).unwrap();
    let keys: Vec<u32> = mrs.into_iter().map(|mr| mr.unwrap().key).collect();
    let jobs: Vec<(u32, u64, usize)> = keys.iter().zip(&mems).map(|(key, mem)| (*key, mem.va(), mem.len())).collect();
    guest.with_memory(move |memory| {
        use rdma_token::RemoteMemory;
        for (key, va, len) in jobs {
            let header = super::kit::token(key, Window { address: va, length: len as u64 });
            let mut window = now(memory.open(&header, RemoteAccess::Write)).unwrap();
            now(window.write(0, &frames::pattern(len, key.into()))).unwrap();
        }
    });
    for (key, mem) in keys.iter().zip(&mems) {
        assert!(mem.content() == frames::pattern(mem.len(), (*key).into()) && mem.intact(), "{key:#x}");
    }
    guest.verbs.dereg_mrs(&mut guest.nic, &keys).unwrap();
    assert!(guest.nic.bus.with_device(|device| device.regions().is_empty()));
    assert_eq!(guest.nic.bus.errors(), ernic_emu::device::GuestErrors::default());
}
