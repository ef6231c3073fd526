//! What a guest can get wrong in RDMA, and tokens that reach for what they may not.

use ernic_emu::rdma::NicMemory;
use ionic_abi::{
    ADDR_MASK, AdminOp, AdminStatus, CreateAh, CreateCq, CreateMr, CreateQp, DestroyById, ModifyQp, MrFlags, Opcode,
    QpType, QueryQp, RdmaQueueCmd, Request as _, StatsCmd, Status,
};
use ionic_driver::{
    UserMem, Verbs,
    user::Placement,
    verbs::{Command, QpConfig, RegMr},
};
use rdma_token::{Descriptor, Family, Qpn, RemoteAccess, RemoteMemory, Token, TokenHeader, Transport, Window};
use zerocopy::{FromZeros, IntoBytes};

use super::{
    common::{IOVA, RAM, TestBus, frames},
    kit::{ALL, Dice, Guest, PLACEMENTS, now},
};

/// Addresses that are not guest memory, and one that is, at its end.
const ADDRESSES: [u64; 8] =
    [0, 1, IOVA - 8, IOVA + RAM as u64, IOVA + RAM as u64 - 8, ADDR_MASK, ADDR_MASK - 4095, u64::MAX];
const NUMBERS: [u64; 12] =
    [0, 1, 2, 255, 256, 0xffff, 0x1_0000, 0x00ff_ffff, 0x7fff_ffff, 0xffff_ffff, 1 << 52, u64::MAX];

/// Something that must survive: memory that nobody registered, a region that works, and a queue pair.
struct Witness {
    bystander: UserMem,
    mem: UserMem,
    key: u32,
    qpn: u32,
}

impl Witness {
    fn new<T: TestBus>(guest: &mut Guest<T>) -> Self {
        let ram = guest.nic.bus.ram();
        let bystander = UserMem::new(ram, 0, 4 << 20, Placement::Scattered).unwrap();
        bystander.write(0, &vec![0x42; 4 << 20]);
        let mem = UserMem::new(ram, 0x7f00_0000_0123, 50_000, Placement::Scattered).unwrap();
        mem.write(0, &vec![0x43; 50_000]);
        let pd = guest.verbs.create_pd();
        let key = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, ALL)).unwrap().key;
        let cq = guest.verbs.create_cq(&mut guest.nic, 10).unwrap();
        let qpn = guest.verbs.create_qp(&mut guest.nic, QpConfig::new(QpType::RC, pd, cq)).unwrap();
        Self { bystander, mem, key, qpn }
    }

    fn check<T: TestBus>(&self, guest: &mut Guest<T>, what: &str) {
        let at = self.mem.va() + 17;
        guest.put(self.key, at, &[0x44; 4000]).unwrap();
        assert_eq!(guest.get(self.key, at, 4000).unwrap(), [0x44; 4000], "{what}");
        guest.put(self.key, at, &[0x43; 4000]).unwrap();
        guest.verbs.query_qp(&mut guest.nic, self.qpn).unwrap();
        assert!(self.mem.content().iter().all(|byte| *byte == 0x43) && self.mem.intact(), "{what}");
        assert!(self.bystander.content().iter().all(|byte| *byte == 0x42) && self.bystander.intact(), "{what}");
        assert!(guest.verbs.rings_intact(), "{what}");
    }
}

/// A command of each kind that the device would take, apart from the number of what it makes.
fn templates(ram: u64, number: u32, qpn: u32) -> Vec<(AdminOp, Vec<u8>)> {
    let mr = CreateMr {
        va: 0x1000.into(),
        length: 0x3000.into(),
        pd_id: 1.into(),
        id_ver: (number << 8 | 1).into(),
        tbl_index: u32::MAX.into(),
        map_count: 3.into(),
        dma_addr: ram.into(),
        dbid_flags: ALL.bits().into(),
        page_size_log2: 12,
        ..CreateMr::default()
    };
    let cq = CreateCq {
        eq_id: 2.into(),
        depth_log2: 7,
        stride_log2: 5,
        id_ver: number.into(),
        map_count: 1.into(),
        dma_addr: ram.into(),
        ..CreateCq::default()
    };
    let qp = CreateQp {
        pd_id: 1.into(),
        sq_depth_log2: 5,
        sq_stride_log2: 6,
        sq_page_size_log2: 12,
        sq_map_count: 1.into(),
        sq_dma_addr: ram.into(),
        rq_depth_log2: 5,
        rq_stride_log2: 6,
        rq_page_size_log2: 12,
        rq_map_count: 1.into(),
        rq_dma_addr: (ram + 4096).into(),
        id_ver: number.into(),
        ..CreateQp::new_zeroed()
    };
    let modify = ModifyQp {
        attr_mask: u32::MAX.into(),
        pmtu: 10,
        ah_id_len: (42 << 24).into(),
        type_state: 3,
        dma_addr: ram.into(),
        id_ver: qpn.into(),
        ..ModifyQp::default()
    };
    let query =
        QueryQp { sq_dma_addr: ram.into(), rq_dma_addr: (ram + 64).into(), id_ver: qpn.into(), ..QueryQp::default() };
    let ah = CreateAh { dma_addr: ram.into(), length: 62.into(), id_ver: number.into(), ..CreateAh::default() };
    let stats = StatsCmd { dma_addr: ram.into(), length: 4096.into(), ..StatsCmd::default() };
    let destroy = DestroyById { id_ver: number.into() };
    let destroy_mr = DestroyById { id_ver: (number << 8).into() };
    vec![
        (AdminOp::NOOP, Vec::new()),
        (AdminOp::CREATE_MR, mr.as_bytes().to_vec()),
        (AdminOp::CREATE_CQ, cq.as_bytes().to_vec()),
        (AdminOp::CREATE_QP, qp.as_bytes().to_vec()),
        (AdminOp::MODIFY_QP, modify.as_bytes().to_vec()),
        (AdminOp::QUERY_QP, query.as_bytes().to_vec()),
        (AdminOp::CREATE_AH, ah.as_bytes().to_vec()),
        (AdminOp::STATS_HDRS, stats.as_bytes().to_vec()),
        (AdminOp::STATS_VALS, stats.as_bytes().to_vec()),
        (AdminOp::QP_STATS_HDRS, stats.as_bytes().to_vec()),
        (AdminOp::QP_STATS_VALS, stats.as_bytes().to_vec()),
        (AdminOp::DESTROY_MR, destroy_mr.as_bytes().to_vec()),
        (AdminOp::DESTROY_CQ, destroy.as_bytes().to_vec()),
        (AdminOp::DESTROY_QP, destroy.as_bytes().to_vec()),
        (AdminOp::DESTROY_AH, destroy.as_bytes().to_vec()),
    ]
}

/// Every opcode with fields that no driver sends: an answer each time, in order, and nothing else changes.
pub fn every_opcode_with_hostile_fields<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let witness = Witness::new(&mut guest);
    // A page of page addresses, that hostile commands may read from and write to.
    let table = guest.nic.bus.ram().alloc(16 << 10).unwrap();
    for (i, page) in [IOVA + RAM as u64, 1, ADDR_MASK].into_iter().enumerate() {
        table.store(8 * i, &page);
    }
    // Unknown opcodes, and known ones with nothing behind them.
    for op in 0..=255 {
        let known = templates(0, 0, 0).iter().any(|(known, _)| known.0 == op);
        for body in [vec![], vec![0_u8; 3], vec![0xff; 60], vec![0xff; 100], vec![0; 124]] {
            let status = guest.verbs.run_one(&mut guest.nic, Command::new(AdminOp(op), &body[..]));
            let status = status.unwrap_or_else(|error| panic!("{op} with {body:02x?}: {error}"));
            assert!(known || status == AdminStatus::BAD_CMD, "{op}: {status}");
        }
        if op % 16 == 0 {
            witness.check(&mut guest, &format!("opcode {op}"));
        }
    }
    // What answers commands cannot be taken away by one.
    for number in 0..4_u32 {
        let command = Command::new(AdminOp::DESTROY_CQ, &DestroyById { id_ver: number.into() });
        assert_eq!(guest.verbs.run_one(&mut guest.nic, command).unwrap(), AdminStatus::BAD_STATE);
    }
    // A length that is not the body's: longer than the command that follows, and than any command.
    for len in [0, 1, 33, 61, 64, 124, 125, 1000, u16::MAX] {
        for (op, body) in templates(table.iova(), 900, witness.qpn) {
            let body = body[..body.len().min(60)].to_vec();
            let command = Command { op, len, body };
            guest.verbs.run_one(&mut guest.nic, command).unwrap();
        }
        witness.check(&mut guest, &format!("length {len}"));
    }
    // Fields: each byte position of each command, with values of every width.
    let mut dice = Dice(1);
    let rounds = if T::EXACT { 20_000 } else { 1_500 };
    for round in 0..rounds {
        let number = 1000 + dice.below(40) as u32;
        let commands = templates(table.iova(), number, witness.qpn);
        let (op, mut body) = commands[round % commands.len()].clone();
        if !body.is_empty() {
            for _ in 0..1 + dice.below(2) {
                let width = dice.pick(&[1, 2, 4, 8]);
                let at = dice.below(body.len());
                let value = match dice.below(3) {
                    0 => dice.pick(&ADDRESSES),
                    1 => dice.pick(&NUMBERS),
                    _ => dice.roll(),
                };
                let bytes = if dice.below(2) == 0 { value.to_le_bytes() } else { value.to_be_bytes() };
                // An answer may be asked for anywhere; this test is not about where, so the witnesses are spared.
                let end = (at + width).min(body.len());
                body[at..end].copy_from_slice(&bytes[..end - at]);
            }
        }
        // What may be destroyed is destroyed: not the witnesses.
        let id = body.first_chunk().map_or(0, |id| u32::from_le_bytes(*id));
        if op == AdminOp::DESTROY_MR && id >> 8 == witness.key >> 8 || op == AdminOp::DESTROY_QP && id == witness.qpn {
            continue;
        }
        if op == AdminOp::QUERY_QP && body.len() == 34 {
            spare(&mut body, table.iova());
        }
        guest.verbs.run_one(&mut guest.nic, Command::new(op, &body[..])).unwrap();
        if round % 500 == 0 {
            witness.check(&mut guest, &format!("round {round}"));
        }
    }
    // A queue pair whose state was played with is put right by its owner.
    let errors = guest.nic.bus.errors();
    assert!(errors.rdma_commands > 1000 && errors.rdma_dma > 0, "{errors:?}");
    witness.check(&mut guest, "the end");
    let Guest { mut nic, verbs } = guest;
    verbs.close(&mut nic).unwrap();
    assert!(nic.bus.with_device(|device| device.regions().is_empty()));
    let verbs = Verbs::open(&mut nic).unwrap();
    let mut guest = Guest { nic, verbs };
    Witness::new(&mut guest).check(&mut guest, "afterwards");
}

/// Keeps the addresses that QUERY_QP writes to within the page that is for it, or outside of memory.
fn spare(body: &mut [u8], page: u64) {
    for at in [8, 16] {
        let mut word = [0; 8];
        word.copy_from_slice(&body[at..at + 8]);
        let address = u64::from_le_bytes(word);
        let inside = (IOVA..IOVA + RAM as u64 - 64).contains(&address);
        if inside && !(page..page + 4096).contains(&address) {
            body[at..at + 8].copy_from_slice(&page.to_le_bytes());
        }
    }
}

/// Page lists that are not in memory, do not fit the length, or name pages that are none.
pub fn page_lists_outside_memory<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let witness = Witness::new(&mut guest);
    let table = guest.nic.bus.ram().alloc(64 << 10).unwrap();
    let end = IOVA + RAM as u64;
    let good = CreateMr {
        va: 0x1800.into(),
        length: 0x2000.into(),
        id_ver: 0x9_9901.into(),
        map_count: 3.into(),
        dma_addr: table.iova().into(),
        dbid_flags: ALL.bits().into(),
        page_size_log2: 12,
        ..CreateMr::default()
    };
    let pages = |pages: &[u64]| pages.iter().zip(0..).for_each(|(page, i)| table.store(8 * i, page));
    let mut run = |cmd: &CreateMr, what: &str, expected: AdminStatus| {
        let status = guest.verbs.run_one(&mut guest.nic, Command::new(AdminOp::CREATE_MR, cmd)).unwrap();
        assert_eq!(status, expected, "{what}");
        if status == AdminStatus::OK {
            let gone = DestroyById { id_ver: cmd.id_ver };
            let status = guest.verbs.run_one(&mut guest.nic, Command::new(AdminOp::DESTROY_MR, &gone)).unwrap();
            assert_eq!(status, AdminStatus::OK);
        }
    };
    let bad = AdminStatus::BAD_ATTR;
    pages(&[0x1000, 0x5000, 0x3000]);
    run(&good, "pages that are not memory are found out when they are used", AdminStatus::OK);
    for count in [2, 4, 1 << 20, u32::MAX] {
        run(&CreateMr { map_count: count.into(), ..good }, "a count that is not the length's", bad);
    }
    for (va, length) in [(0x1800, u64::MAX), (u64::MAX, 2), (u64::MAX - 0x1000, 0x2000), (0x1800, 0x2801), (0, 1 << 60)]
    {
        run(&CreateMr { va: va.into(), length: length.into(), ..good }, "a length that is not the pages'", bad);
    }
    for shift in [0, 1, 3, 11, 13, 22, 31, 52, 63, 64, 255] {
        run(&CreateMr { page_size_log2: shift, ..good }, "no page size", bad);
    }
    for at in [end, end - 16, 0, IOVA - 8, ADDR_MASK, u64::MAX, u64::MAX - 7] {
        run(&CreateMr { dma_addr: at.into(), ..good }, "a table outside memory", bad);
    }
    // As large as it can be said to be, with nothing behind it: nothing may be kept for it.
    for (shift, pages) in [(12, 1_u64 << 31), (21, 1 << 30), (30, 1 << 22)] {
        let cmd = CreateMr {
            va: 0.into(),
            length: (pages << shift).into(),
            map_count: (pages as u32).into(),
            page_size_log2: shift,
            ..good
        };
        run(&cmd, "a table that no memory holds", bad);
    }
    for page in [0x1001, 0x800, ADDR_MASK, 1 << 52, u64::MAX, u64::MAX << 12] {
        pages(&[0x1000, page, 0x3000]);
        run(&good, "an address that no page has", bad);
    }
    for (index, status) in
        [(0, AdminStatus::BAD_INDEX), (65_536, AdminStatus::BAD_INDEX), (0x00ff_ffff, AdminStatus::BAD_INDEX)]
    {
        pages(&[0x1000, 0x5000, 0x3000]);
        run(&CreateMr { id_ver: (index << 8 | 5).into(), ..good }, "an index that is none", status);
    }
    run(&CreateMr { dma_addr: (1 << 52).into(), map_count: 1.into(), ..good }, "one run beyond any address", bad);
    run(&CreateMr { dma_addr: (ADDR_MASK - 10).into(), map_count: 1.into(), ..good }, "one that leaves it", bad);
    // Partly memory: what is there is reached, what is not fails, and nothing in between.
    let mem = UserMem::new(guest.nic.bus.ram(), 0, 4096, Placement::Contiguous).unwrap();
    mem.write(0, &[9; 4096]);
    pages(&[mem.pages()[0], end, IOVA - 4096]);
    let key = good.id_ver.get();
    let status = guest.verbs.run_one(&mut guest.nic, Command::new(AdminOp::CREATE_MR, &good)).unwrap();
    assert_eq!(status, AdminStatus::OK);
    guest.put(key, 0x1800, &[8; 0x800]).unwrap();
    assert!(guest.put(key, 0x2000, &[7; 1]).is_err() && guest.put(key, 0x3000, &[7; 0x800]).is_err());
    assert!(guest.get(key, 0x1fff, 2).is_err());
    let content = mem.content();
    assert!(content[..0x800] == [9; 0x800] && content[0x800..] == [8; 0x800] && mem.intact());
    witness.check(&mut guest, "page lists");
}

/// A command that makes a ring of `1 << depth` entries of `1 << stride` bytes.
fn queue_cmd(opcode: Opcode, qid: u32, cid: u32, (depth, stride): (u8, u8), at: u64) -> RdmaQueueCmd {
    RdmaQueueCmd {
        opcode,
        qid_ver: qid.into(),
        cid: cid.into(),
        depth_log2: depth,
        stride_log2: stride,
        dma_addr: at.into(),
        ..RdmaQueueCmd::default()
    }
}

/// The commands that make rings, with rings that are nowhere, of any size, and owners that do not exist.
pub fn rings_that_are_nowhere<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let witness = Witness::new(&mut guest);
    let ring = guest.nic.bus.ram().alloc(1 << 20).unwrap();
    for opcode in [Opcode::RDMA_CREATE_EQ, Opcode::RDMA_CREATE_CQ, Opcode::RDMA_CREATE_ADMINQ] {
        for (qid, cid, depth, stride, at) in [
            (u32::MAX, 3, 8, 5, ring.iova()),
            (1 << 20, 3, 8, 2, ring.iova()),
            (70, 64, 8, 2, ring.iova()),
            (12, u32::MAX, 8, 5, ring.iova()),
            (12, 40_000, 8, 6, ring.iova()),
            (12, 3, 0, 2, ring.iova()),
            (12, 3, 17, 2, ring.iova()),
            (12, 3, 255, 5, ring.iova()),
            (12, 3, 200, 6, ring.iova()),
            (12, 3, 8, 0, ring.iova()),
            (12, 3, 8, 255, ring.iova()),
        ] {
            let cmd = queue_cmd(opcode, qid, cid, (depth, stride), at);
            let status = guest.nic.admin_raw(&cmd.into_cmd()).unwrap().status;
            assert_ne!(status, Status::SUCCESS, "{cmd:?}");
        }
    }
    // Where it is shows only when it is used: an event queue, a completion queue and an admin queue in no memory.
    for at in ADDRESSES {
        for (opcode, qid, cid, depth, stride) in [
            (Opcode::RDMA_CREATE_EQ, 9, 20, 10, 2),
            (Opcode::RDMA_CREATE_CQ, 60_000, 9, 8, 5),
            (Opcode::RDMA_CREATE_ADMINQ, 3, 60_000, 9, 6),
        ] {
            let cmd = queue_cmd(opcode, qid, cid, (depth, stride), at);
            guest.nic.admin_raw(&cmd.into_cmd()).unwrap();
        }
        let slot = guest.verbs.identity.aq_qtype.qtype;
        guest.nic.doorbell(0, slot, ionic_abi::Doorbell { p_index: 100, ring: 0, qid: 3 }).unwrap();
        guest.nic.bus.settle();
    }
    assert!(guest.nic.bus.errors().rdma_dma > 0);
    let Guest { mut nic, verbs } = guest;
    verbs.close(&mut nic).unwrap();
    let mut guest = Guest { verbs: Verbs::open(&mut nic).unwrap(), nic };
    drop(witness);
    Witness::new(&mut guest).check(&mut guest, "afterwards");
}

/// A region, as the test knows it.
struct Known {
    key: u32,
    va: u64,
    read: bool,
    write: bool,
    mem: UserMem,
    content: Vec<u8>,
}

/// A token of any form, near enough to a good one to reach something.
fn any_token(dice: &mut Dice, known: &[Known]) -> Option<TokenHeader> {
    let region = &known[dice.below(known.len())];
    let len = region.content.len() as u64;
    let rkey = match dice.below(8) {
        0 => 0,
        1 => region.key ^ 1 << dice.below(32),
        2 => dice.roll() as u32,
        3 => region.key & 0xff,
        _ => region.key,
    };
    let address = match dice.below(8) {
        0 => region.va.wrapping_sub(1 + dice.roll() % 100),
        1 => region.va.wrapping_add(len).wrapping_add(dice.roll() % 3).wrapping_sub(1),
        2 => IOVA + dice.roll() % RAM as u64,
        3 => dice.roll(),
        _ => region.va.wrapping_add(dice.roll() % len),
    };
    let length = match dice.below(6) {
        0 => dice.roll(),
        1 => u64::MAX - dice.roll() % 3,
        2 => len,
        3 => 0,
        _ => 1 + dice.roll() % (2 * len),
    };
    let a = Token {
        transport: Transport::Rc,
        qpn: dice.roll() as u32,
        gid: [0; 16],
        rkey,
        address,
        length,
        port: 1,
        lid: 0,
    };
    let qpn = Qpn::new(dice.roll() as u32 & 0xff_ffff)?;
    let c = Descriptor { address, length: length as u32, rkey, lid: 0, qpn, gid: None };
    let window = Window { address: dice.pick(&[address, 0, dice.0]), length: dice.pick(&[length, 0, 1, u64::MAX]) };
    let header = match dice.pick(&[Family::A, Family::B, Family::C, Family::D, Family::E]) {
        Family::A => TokenHeader::A(a),
        Family::B => TokenHeader::B(a, window),
        Family::C => TokenHeader::C(c),
        Family::D => TokenHeader::D(c, window),
        Family::E => TokenHeader::E(c, window),
    };
    // A third has a digit changed on its way, or two.
    if header.family() == Family::E || dice.below(3) > 0 {
        return Some(header);
    }
    let mut value = header.headers().remove(0).1.into_bytes();
    for _ in 0..1 + dice.below(2) {
        let at = dice.below(value.len());
        value[at] = dice.pick(b"0123456789abcdefABCDEF:x");
    }
    TokenHeader::parse(&value).ok()
}

/// Ten thousand tokens against a few regions: what a model of the table says moves, and not one other byte of guest memory.
pub fn ten_thousand_tokens<T: TestBus>() {
    let mut guest = Guest::<T>::new();
    let witness = Witness::new(&mut guest);
    let pd = guest.verbs.create_pd();
    let mut known = Vec::new();
    let rights =
        [ALL, MrFlags::REMOTE_READ, MrFlags::REMOTE_WRITE | MrFlags::LOCAL_WRITE, MrFlags::LOCAL_WRITE, ALL, ALL];
    let bases = [0x7f00_0000_0005, 0x7f00_0100_0000, 0x7f00_0000_0005, 0x1000, u64::MAX - 20_000, 0x7fff_ffff_f000];
    let lens = [10_000, 4096, 1, 30_000, 20_001, 12_345];
    for (i, ((access, va), len)) in rights.into_iter().zip(bases).zip(lens).enumerate() {
        let mem = UserMem::new(guest.nic.bus.ram(), va, len, PLACEMENTS[i % 3]).unwrap();
        let content = frames::pattern(len, i as u64);
        mem.write(0, &content);
        let key = guest.verbs.reg_mr(&mut guest.nic, pd, &RegMr::all(&mem, access)).unwrap().key;
        let (read, write) = (access.contains(MrFlags::REMOTE_READ), access.contains(MrFlags::REMOTE_WRITE));
        known.push(Known { key, va, read, write, mem, content });
    }
    let mut dice = Dice(2);
    let (mut tokens, mut opened, mut refused) = (0_u32, 0, 0);
    while tokens < 10_000 {
        let Some(header) = any_token(&mut dice, &known) else { continue };
        tokens += 1;
        let access = dice.pick(&[RemoteAccess::Read, RemoteAccess::Write]);
        // Pieces of a transfer, some of them beyond its window.
        let pieces: Vec<(u64, usize)> = (0..3)
            .map(|_| {
                let offset = dice.pick(&[0, 1, 4095, 9_999, dice.0 >> 50, u64::MAX, u64::MAX - 4096]);
                (offset, dice.below(12_000))
            })
            .collect();
        let fill = (tokens % 251) as u8;
        let (asked, rkey, jobs) = (header.window(), header.rkey(), pieces.clone());
        let results = guest.with_memory(move |memory: &NicMemory| {
            let mut window = match now(memory.open(&header, access)) {
                Ok(window) => window,
                Err(error) => return Err(error),
            };
            let moved = jobs.into_iter().map(|(offset, n)| match access {
                RemoteAccess::Write => now(window.write(offset, &vec![fill; n])).map(|()| Vec::new()),
                RemoteAccess::Read => {
                    let mut bytes = vec![0; n];
                    now(window.read(offset, &mut bytes)).map(|()| bytes)
                }
            });
            let moved: Vec<_> = moved.collect();
            Ok((window.len(), moved))
        });
        // What should have happened.
        let region = known.iter_mut().find(|known| known.key == rkey && rkey != 0);
        let allowed = region.filter(|known| if access == RemoteAccess::Read { known.read } else { known.write });
        let start = allowed.as_ref().map(|known| asked.address.wrapping_sub(known.va));
        let inside = |known: &Known, start: u64| asked.address >= known.va && start < known.content.len() as u64;
        match (allowed, start, results) {
            (Some(known), Some(start), Ok((len, moved))) if asked.length == 0 || inside(known, start) => {
                opened += 1;
                let room = if asked.length == 0 { 0 } else { asked.length.min(known.content.len() as u64 - start) };
                assert_eq!(len, room, "{asked:x?}");
                let mut failed = false;
                for ((offset, n), moved) in pieces.into_iter().zip(moved) {
                    failed |= offset > room || n as u64 > room - offset;
                    assert_eq!(moved.is_err(), failed, "{asked:x?}: {offset}+{n} of {room}");
                    let Ok(bytes) = moved else { continue };
                    if n == 0 {
                        continue;
                    }
                    let at = (start + offset) as usize;
                    match access {
                        RemoteAccess::Write => known.content[at..at + n].fill(fill),
                        RemoteAccess::Read => assert!(bytes == known.content[at..at + n]),
                    }
                }
                assert!(known.mem.content() == known.content && known.mem.intact(), "{rkey:#x} {asked:x?}");
            }
            (allowed, _, Err(_)) => {
                refused += 1;
                assert!(
                    allowed
                        .is_none_or(|known| asked.length > 0 && !inside(known, asked.address.wrapping_sub(known.va)))
                );
            }
            (_, _, Ok((len, moved))) => panic!("{rkey:#x} {asked:x?} gives {len} bytes: {moved:?}"),
        }
        if tokens % 500 == 0 {
            for known in &known {
                assert!(known.mem.content() == known.content && known.mem.intact());
            }
            witness.check(&mut guest, &format!("token {tokens}"));
        }
    }
    assert!(opened > 1000 && refused > 1000, "{opened} {refused}");
}
