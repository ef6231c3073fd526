//! What a guest can get wrong: each time the counter, and that the next good request works.

use std::time::Duration;

use ernic_emu::device::GuestErrors;
use ionic_abi::*;
use ionic_driver::{
    Bar, Config, Ionic, TxOffload,
    ionic::{lif_setattr, q_init},
};
use zerocopy::FromZeros;

use super::{IOVA, MAC, PEER, RAM, TestBus, drain, frames, inject, receive, up, works};

/// Addresses that are not guest memory: none, just behind it, across its end, beyond 52 bits' worth of it.
const NOWHERE: [u64; 4] = [0, IOVA + RAM as u64, IOVA + RAM as u64 - 8, ADDR_MASK];

fn stats<T: TestBus>(nic: &mut Ionic<T>) -> LifStats {
    nic.bus.settle();
    nic.bus.with_device(|d| *d.lif_stats())
}

fn tx_desc(opcode: TxqOpcode, flags: TxqFlags, nsge: u8, addr: u64, len: u16) -> TxqDesc {
    TxqDesc { cmd: TxqDesc::pack(opcode, flags, nsge, addr).into(), len: len.into(), ..TxqDesc::default() }
}

pub fn bad_transmit_descriptors<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    let good = nic.bus.ram().alloc(8192).unwrap();
    good.write(0, &frames::udp(MAC, PEER, &[0; 2000]));
    let at = good.iova();
    let sg = |addr: u64, len: u16| TxqSgElem { addr: addr.into(), len: len.into(), rsvd: [0xffff.into(); 3] };
    let none = TxqOpcode::CSUM_NONE;
    let plain = TxqFlags::empty();

    // Memory that is not there: first buffer, and a fragment.
    let before = stats(&mut nic);
    for addr in NOWHERE {
        nic.pairs[0].tx.post_raw(&tx_desc(none, plain, 0, addr, 100), &[]).unwrap();
        nic.pairs[0].tx.post_raw(&tx_desc(none, plain, 2, at, 100), &[sg(at, 10), sg(addr, 100)]).unwrap();
    }
    nic.flush(0).unwrap();
    assert!(drain(&mut nic).is_empty(), "nothing was sent, everything was completed");
    let after = stats(&mut nic);
    assert_eq!(after.tx_dma_error.get() - before.tx_dma_error.get(), 2 * NOWHERE.len() as u64);
    works(&mut nic);

    // Frames that are none: empty, shorter than a header, longer than the device takes, and fragments of no bytes around them.
    let before = stats(&mut nic);
    let bad = [
        (tx_desc(none, plain, 0, at, 0), vec![]),
        (tx_desc(none, plain, 0, 0, 0), vec![]),
        (tx_desc(none, plain, 0, at, 13), vec![]),
        (tx_desc(none, plain, 2, at, 5), vec![sg(at, 0), sg(at, 8)]),
        (tx_desc(none, plain, 0, at, 9019), vec![]),
        (tx_desc(none, plain, 15, at, 1000), vec![sg(at, 1000); 15]),
        (tx_desc(none, TxqFlags::VLAN, 0, at, 13), vec![]),
        (tx_desc(none, plain, 15, at, u16::MAX), vec![sg(at, u16::MAX); 15]),
    ];
    for (desc, elems) in &bad {
        nic.pairs[0].tx.post_raw(desc, elems).unwrap();
    }
    nic.flush(0).unwrap();
    assert!(drain(&mut nic).is_empty());
    let after = stats(&mut nic);
    assert_eq!(after.tx_desc_data_error.get() - before.tx_desc_data_error.get(), bad.len() as u64);
    works(&mut nic);

    // Empty fragments among others, and an address of length 0 that is nowhere, are not wrong.
    let elems = [sg(at + 100, 0), sg(at + 100, 50), sg(0, 0)];
    nic.pairs[0].tx.post_raw(&tx_desc(none, plain, 3, at, 100), &elems).unwrap();
    nic.flush(0).unwrap();
    let mut expected = vec![0; 150];
    good.read(0, &mut expected);
    assert_eq!(drain(&mut nic), [expected.clone()]);
    // An unknown opcode is taken for a frame without a wish, or refused; it is completed in any case.
    for opcode in [2, 7, 15] {
        nic.pairs[0].tx.post_raw(&tx_desc(TxqOpcode(opcode), plain, 0, at, 150), &[]).unwrap();
    }
    nic.flush(0).unwrap();
    assert!(drain(&mut nic).iter().all(|f| *f == expected));
    // Checksums outside of the frame: no frame leaves with somebody else's bytes changed.
    for (start, offset) in [(150, 0), (149, 1), (u16::MAX, u16::MAX), (0, 149), (34, 4000), (151, 0)] {
        let desc = TxqDesc {
            hword1: start.into(),
            hword2: offset.into(),
            ..tx_desc(TxqOpcode::CSUM_PARTIAL, plain, 0, at, 150)
        };
        nic.pairs[0].tx.post_raw(&desc, &[]).unwrap();
    }
    nic.flush(0).unwrap();
    assert!(drain(&mut nic).is_empty());
    works(&mut nic);
}

pub fn bad_tso_chains<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 256, rx_entries: 64, ..Config::default() });
    let tcp = frames::Tcp::plain(false);
    let mut frame = tcp.frame(MAC, PEER, &frames::pattern(3000, 1));
    frames::preload(&mut frame, true);
    let hdr = tcp.header_len() as u16;
    let buf = nic.bus.ram().alloc(4 * 65536).unwrap();
    buf.write(0, &frame);
    let at = buf.iova();
    let (sot, eot) = (TxqFlags::TSO_SOT, TxqFlags::TSO_EOT);
    let tso = |flags, addr, len: u16, hdr: u16, mss: u16| TxqDesc {
        hword1: hdr.into(),
        hword2: mss.into(),
        ..tx_desc(TxqOpcode::TSO, flags, 0, addr, len)
    };
    let errors = |s: &LifStats| s.tx_desc_data_error.get() + s.tx_dma_error.get();
    let chains: [&[TxqDesc]; 11] = [
        // No MSS; no header; a header longer than the frame; a header that ends within TCP's.
        &[tso(sot | eot, at, 1000, hdr, 0)],
        &[tso(sot | eot, at, 1000, 0, 500)],
        &[tso(sot | eot, at, 1000, 1000, 500)],
        &[tso(sot | eot, at, 1000, u16::MAX, 500)],
        // An end without a start, and a middle without either.
        &[tso(eot, at, 100, hdr, 1000)],
        &[tso(TxqFlags::empty(), at, 100, hdr, 1000), tso(eot, at, 100, hdr, 1000)],
        // Memory that is not there, in the first and in the last.
        &[tso(sot, 0, 1000, hdr, 1000), tso(eot, at, 1000, hdr, 1000)],
        &[tso(sot, at, 1000, hdr, 1000), tso(eot, IOVA + RAM as u64, 1000, hdr, 1000)],
        // Longer than an IP packet can be.
        &[tso(sot, at, u16::MAX, hdr, 9000), tso(eot, at, u16::MAX, hdr, 9000)],
        // Not TCP; nothing at all.
        &[tso(sot | eot, at + 500, 1000, hdr, 100)],
        &[tso(sot | eot, at, 0, 0, 0)],
    ];
    for (i, chain) in chains.iter().enumerate() {
        let before = stats(&mut nic);
        for desc in *chain {
            nic.pairs[0].tx.post_raw(desc, &[]).unwrap();
        }
        nic.flush(0).unwrap();
        assert!(drain(&mut nic).is_empty(), "chain {i} sent something");
        let counted = errors(&stats(&mut nic)) - errors(&before);
        // A header of the wrong length is seen only by who cuts the frame, and there nothing leaves.
        assert!(counted == 1 || i == 1, "chain {i} counted {counted} times");
        works(&mut nic);
    }
    // A start while a chain is open, and an ordinary frame in the middle of one: the broken one is counted, the other sent.
    let before = errors(&stats(&mut nic));
    nic.pairs[0].tx.post_raw(&tso(sot, at, 1000, hdr, 1000), &[]).unwrap();
    nic.send(0, &frame, TxOffload::Tso { hdr_len: hdr, mss: 1000 }, None).unwrap();
    assert_eq!(drain(&mut nic), tcp.segments(MAC, PEER, &frames::pattern(3000, 1), 1000));
    nic.pairs[0].tx.post_raw(&tso(sot, at, 1000, hdr, 1000), &[]).unwrap();
    let out = frames::udp(MAC, PEER, b"between");
    nic.send(0, &out, TxOffload::None, None).unwrap();
    assert_eq!(drain(&mut nic), [out]);
    assert_eq!(errors(&stats(&mut nic)) - before, 2);
    // The largest that is right.
    let payload = frames::pattern(65_535 - 20 - 32, 4);
    let mut large = tcp.frame(MAC, PEER, &payload);
    frames::preload(&mut large, true);
    nic.send(0, &large, TxOffload::Tso { hdr_len: hdr, mss: 1448 }, None).unwrap();
    assert_eq!(drain(&mut nic).len(), payload.len().div_ceil(1448));
    works(&mut nic);
}

pub fn bad_receive_descriptors<T: TestBus>() {
    // Each as the next descriptor behind the ones that the driver posted, which are used up first.
    let rx = |opcode, addr: u64, len: u16| RxqDesc { opcode, addr: addr.into(), len: len.into(), rsvd: [0xff; 5] };
    let sg = |addr: u64, len: u16| RxqSgElem { addr: addr.into(), len: len.into(), ..RxqSgElem::default() };
    let frame = frames::udp(PEER, MAC, &[7; 1000]);
    let n = frame.len() as u16;
    let (simple, scattered) = (RxqOpcode::SIMPLE, RxqOpcode::SG);
    let good = IOVA + 0x100_0000;
    let cases: Vec<(RxqDesc, Vec<RxqSgElem>, bool)> = vec![
        // (descriptor, elements, whether it is a matter of memory)
        (rx(simple, 0, 1518), vec![], true),
        (rx(simple, IOVA + RAM as u64 - 8, 1518), vec![], true),
        (rx(scattered, good, 100), vec![sg(0, 1400)], true),
        (rx(scattered, good, 100), vec![sg(good, 400), sg(u64::MAX, 1400)], true),
        (rx(simple, good, 0), vec![], false),
        (rx(simple, good, n - 1), vec![], false),
        (rx(scattered, good, 100), vec![sg(good, 400), sg(0, 0), sg(good, 1400)], false),
        (rx(scattered, good, 1), vec![sg(good, 1); 8], false),
        (rx(RxqOpcode(77), good, 10), vec![sg(good, 1400)], false),
    ];
    for (i, (desc, elems, memory)) in cases.iter().enumerate() {
        let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
        let used = usize::from(nic.pairs[0].rx.posted());
        nic.bus.wire().lock().inbound.extend(vec![frame.clone(); used]);
        nic.bus.settle();
        // Taken by hand, so that the driver posts no others.
        while nic.pairs[0].rx.pop().unwrap().is_some() {}
        let head = nic.pairs[0].rx.post_raw(desc, elems);
        let hw = nic.pairs[0].rx.hw;
        nic.ring(hw, head).unwrap();
        let before = stats(&mut nic);
        nic.bus.wire().lock().inbound.push_back(frame.clone());
        nic.bus.settle();
        let after = stats(&mut nic);
        let dma = after.rx_dma_error.get() - before.rx_dma_error.get();
        let long = after.rx_ucast_drop_packets.get() - before.rx_ucast_drop_packets.get();
        assert_eq!((dma, long), if *memory { (1, 0) } else { (0, 1) }, "case {i}");
        // The descriptor is completed with an error, in order, and the driver goes on.
        let got = receive(&mut nic);
        assert_eq!((got.len(), nic.stats.rx_dropped), (0, 1), "case {i}");
        works(&mut nic);
    }
}

pub fn rings_outside_memory<T: TestBus>() {
    let mut nic = up::<T>(Config { queues: 2, tx_entries: 64, rx_entries: 64, ..Config::default() });
    let ram = nic.bus.ram().clone();
    let (page, flags) = (ram.alloc(4096).unwrap(), QInitFlags::IRQ | QInitFlags::SG);
    let ok = page.iova();
    let bad_tx = |base: u64, comp: u64, sg: u64, log2: u8| QInitCmd {
        ring_base: base.into(),
        cq_ring_base: comp.into(),
        sg_ring_base: sg.into(),
        ring_size: log2,
        ver: 1,
        ..q_init(QType::TXQ, 1, 2, flags, 64)
    };
    // Rings that are nowhere, or run out of memory: the queue is refused or dies at its first use; nothing else does.
    let end = IOVA + RAM as u64;
    for (base, comp, sg, log2) in [
        (0, ok, ok, 6),
        (end - 16, ok, ok, 6),
        (ok, 0, ok, 6),
        (ok, end - 8, ok, 6),
        (ok, ok, 0, 6),
        (u64::MAX - 15, ok, ok, 6),
        (end - 4096, end - 4096, ok, 15),
        (ok, u64::MAX - 3, u64::MAX - 255, 15),
    ] {
        let before = stats(&mut nic);
        let accepted = nic.admin_raw(&bad_tx(base, comp, sg, log2).into_cmd()).unwrap().status == Status::SUCCESS;
        if accepted {
            let addr = frames_at(&nic, &page);
            let desc = tx_desc(TxqOpcode::CSUM_NONE, TxqFlags::empty(), 1, addr, 60);
            ram.write(base, zerocopy::IntoBytes::as_bytes(&desc));
            nic.queue_control(QType::TXQ, 1, QOper::ENABLE).unwrap();
            let hw = nic.pairs[1].tx.hw;
            let last = if log2 == 6 { 3 } else { 0x7fff };
            nic.ring(hw, last).unwrap();
            nic.bus.pass(Duration::from_millis(1));
            let after = stats(&mut nic);
            let sum = |s: &LifStats| {
                s.tx_desc_fetch_error.get() + s.tx_queue_error.get() + s.tx_dma_error.get() + s.tx_desc_data_error.get()
            };
            assert!(sum(&after) > sum(&before), "tx {base:#x} {comp:#x} {sg:#x}");
        }
        works(&mut nic);
    }
    // Receive rings: the queue that everything is steered to.
    let table = [1u8; 128];
    nic.set_rss_table(RssTypes::all(), &table).unwrap();
    for (base, comp) in [(0, ok), (ok, 0), (end - 16, ok), (ok, end - 16)] {
        let cmd = QInitCmd {
            ring_base: base.into(),
            cq_ring_base: comp.into(),
            ..q_init(QType::RXQ, 1, 2, QInitFlags::IRQ, 64)
        };
        let before = stats(&mut nic);
        if nic.admin_raw(&cmd.into_cmd()).unwrap().status == Status::SUCCESS {
            let desc = RxqDesc { len: 2048.into(), addr: (ok + 2048).into(), ..RxqDesc::default() };
            ram.write(base, zerocopy::IntoBytes::as_bytes(&desc));
            nic.queue_control(QType::RXQ, 1, QOper::ENABLE).unwrap();
            let hw = nic.pairs[1].rx.hw;
            nic.ring(hw, 3).unwrap();
            nic.bus.wire().lock().inbound.extend(vec![frames::udp(PEER, MAC, b"lost"); 3]);
            nic.bus.pass(Duration::from_millis(1));
            nic.bus.wire().lock().inbound.clear();
            let after = stats(&mut nic);
            let sum = |s: &LifStats| s.rx_dma_error.get() + s.rx_desc_fetch_error.get() + s.rx_queue_error.get();
            // The last one is right for its first completion.
            assert!(sum(&after) > sum(&before) || comp == end - 16, "rx {base:#x} {comp:#x}");
        }
    }
    nic.set_rss_table(RssTypes::all(), &[0; 128]).unwrap();
    works(&mut nic);
    // Made anew, the queues are as good as any.
    nic.reconfigure().unwrap();
    works(&mut nic);
    // The admin queue itself: the device survives, and the mailbox brings everything back.
    for (base, comp) in [(0, ok), (ok, 0)] {
        let cmd = QInitCmd {
            ring_base: base.into(),
            cq_ring_base: comp.into(),
            ..q_init(QType::ADMINQ, 0, 0, QInitFlags::IRQ | QInitFlags::ENA, 16)
        };
        let before = nic.bus.errors();
        if nic.devcmd_raw(&cmd.into_cmd()).unwrap().status == Status::SUCCESS {
            nic.bus.write64(Bar::Doorbells, 0, Doorbell { p_index: 1, ring: 0, qid: 0 }.value()).unwrap();
            assert_eq!(nic.bus.errors().admin_dma, before.admin_dma + 1);
        }
        let bus = nic.into_bus();
        nic = Ionic::attach(bus, Config { queues: 2, tx_entries: 64, rx_entries: 64, ..Config::default() }).unwrap();
        nic.up().unwrap();
        works(&mut nic);
    }
}

/// Puts a frame behind the first kilobyte of `page`.
fn frames_at<T: TestBus>(_: &Ionic<T>, page: &ionic_driver::DmaBuf) -> u64 {
    page.write(1024, &frames::udp(MAC, PEER, &[1; 100]));
    page.iova() + 1024
}

pub fn doorbells_for_nothing<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    let (tx, rx) = (nic.pairs[0].tx.hw, nic.pairs[0].rx.hw);
    let mut wrong = 0;
    let before = nic.bus.errors();
    let mut ring = |nic: &mut Ionic<T>, page: u64, slot: u64, value: u64| {
        nic.bus.write64(Bar::Doorbells, page * 4096 + slot * 8, value).unwrap();
        wrong += 1;
    };
    let value = |p_index, ring, qid| Doorbell { p_index, ring, qid }.value();
    // Queues that are not there; slots of no type; rings that Ethernet queues do not have; pages of other processes.
    for qid in [1, 15, 16, 0xff_ffff] {
        ring(&mut nic, 0, u64::from(tx.type_), value(1, 0, qid));
    }
    for slot in [1, 4, 7, 8, 100, 511] {
        ring(&mut nic, 0, slot, value(1, 0, 0));
    }
    for r in 1..8 {
        ring(&mut nic, 0, u64::from(tx.type_), value(1, r, 0));
    }
    for page in [1, 2, 1023] {
        ring(&mut nic, page, u64::from(tx.type_), value(1, 0, 0));
    }
    // Beyond the ring: 64 entries.
    for p_index in [64, 65, 0x8000, 0xffff] {
        ring(&mut nic, 0, u64::from(tx.type_), value(p_index, 0, 0));
        ring(&mut nic, 0, u64::from(rx.type_), value(p_index, 0, 0));
    }
    let after = nic.bus.errors();
    assert_eq!(after.doorbells - before.doorbells, wrong);
    assert_eq!(GuestErrors { doorbells: before.doorbells, ..after }, before, "and nothing else was counted");
    assert!(nic.bus.wire().take().is_empty());
    // A doorbell that says what is known already is nothing at all.
    nic.ring(tx, nic.pairs[0].tx.head()).unwrap();
    // Reading a doorbell gives nothing away.
    assert_eq!(nic.bus.read32(Bar::Doorbells, 24).unwrap(), 0);
    works(&mut nic);
    assert_eq!(nic.bus.errors().doorbells, after.doorbells);
}

pub fn unknown_commands<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    let before = nic.bus.errors();
    let unknown = [6, 9, 15, 33, 54, 100, 200, 239, 251];
    for opcode in unknown {
        let cmd = AdminCmd { opcode: Opcode(opcode), data: [0xff; 63] };
        assert_eq!(nic.devcmd_raw(&cmd).unwrap().status, Status::EOPCODE, "mailbox {opcode}");
        assert_eq!(nic.admin_raw(&cmd).unwrap().status, Status::EOPCODE, "admin queue {opcode}");
    }
    // Known, and not for us.
    for opcode in [Opcode::VF_GETATTR, Opcode::DISCOVER_CMB, Opcode::FW_CONTROL_V1, Opcode::QOS_RESET, Opcode::GETATTR]
    {
        let cmd = AdminCmd { opcode, ..AdminCmd::new_zeroed() };
        let status = nic.devcmd_raw(&cmd).unwrap().status;
        assert!(matches!(status, Status::ENOSUPP | Status::EOPCODE), "{opcode}: {status}");
    }
    let after = nic.bus.errors();
    assert_eq!(after.unknown_commands - before.unknown_commands, 2 * unknown.len() as u64);
    works(&mut nic);
}

pub fn bad_queue_commands<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    let page = nic.bus.ram().alloc(4096).unwrap();
    let good = QInitCmd {
        ring_base: page.iova().into(),
        cq_ring_base: page.iova().into(),
        sg_ring_base: page.iova().into(),
        ver: 1,
        ..q_init(QType::TXQ, 5, 1, QInitFlags::IRQ | QInitFlags::SG, 64)
    };
    let before = nic.bus.errors();
    let mut refused = 0;
    let cases = [
        ("no such type", QInitCmd { type_: QType(9), ..good }),
        ("event queue", QInitCmd { type_: QType::EQ, ..good }),
        ("no such queue", QInitCmd { index: 16.into(), ..good }),
        ("no such queue", QInitCmd { index: u32::MAX.into(), ..good }),
        ("second admin queue", QInitCmd { type_: QType::ADMINQ, index: 1.into(), ..good }),
        ("another LIF", QInitCmd { lif_index: 1.into(), ..good }),
        ("one entry", QInitCmd { ring_size: 0, ..good }),
        ("too many entries", QInitCmd { ring_size: 16, ..good }),
        ("too many entries", QInitCmd { ring_size: 255, ..good }),
        ("no such vector", QInitCmd { intr_index: 64.into(), ..good }),
        ("no such vector", QInitCmd { intr_index: u16::MAX.into(), ..good }),
    ];
    for (what, cmd) in cases {
        assert_ne!(nic.admin_raw(&cmd.into_cmd()).unwrap().status, Status::SUCCESS, "{what}");
        refused += 1;
    }
    let cmb = QInitCmd { flags: (QInitFlags::CMB | QInitFlags::IRQ).bits().into(), ..good };
    assert_eq!(nic.admin_raw(&cmb.into_cmd()).unwrap().status, Status::ENOSUPP, "controller memory");
    for (qtype, index) in
        [(QType::TXQ, 5), (QType::RXQ, 16), (QType::TXQ, u32::MAX), (QType(77), 0), (QType::ADMINQ, 3)]
    {
        let cmd = QControlCmd {
            opcode: Opcode::Q_CONTROL,
            type_: qtype,
            index: index.into(),
            oper: QOper::ENABLE,
            ..QControlCmd::default()
        };
        assert_ne!(nic.admin_raw(&cmd.into_cmd()).unwrap().status, Status::SUCCESS, "{qtype} {index}");
        refused += 1;
    }
    let mut rss = lif_setattr(LifAttr::RSS);
    for (types, addr) in [(0x3f_u16, 0_u64), (0x3f, IOVA + RAM as u64 - 64)] {
        rss.value[..2].copy_from_slice(&types.to_le_bytes());
        rss.value[48..56].copy_from_slice(&addr.to_le_bytes());
        assert_eq!(nic.admin_raw(&rss.into_cmd()).unwrap().status, Status::BAD_ADDR);
        refused += 1;
    }
    // A table that names queues which do not exist.
    page.fill(200);
    rss.value[48..56].copy_from_slice(&page.iova().to_le_bytes());
    assert_ne!(nic.admin_raw(&rss.into_cmd()).unwrap().status, Status::SUCCESS);
    refused += 1;
    for attr in [LifAttr(8), LifAttr(255)] {
        assert_ne!(nic.admin_raw(&lif_setattr(attr).into_cmd()).unwrap().status, Status::SUCCESS);
        let get = LifGetattrCmd { opcode: Opcode::LIF_GETATTR, attr, ..LifGetattrCmd::default() };
        assert_ne!(nic.admin_raw(&get.into_cmd()).unwrap().status, Status::SUCCESS);
        refused += 2;
    }
    let filter = RxFilterAddCmd { opcode: Opcode::RX_FILTER_ADD, match_: 7.into(), ..RxFilterAddCmd::new_zeroed() };
    assert_ne!(nic.admin_raw(&filter.into_cmd()).unwrap().status, Status::SUCCESS);
    refused += 1;
    // In the mailbox: ports, LIFs and queue types that are not there.
    for cmd in [
        PortIdentifyCmd { opcode: Opcode::PORT_IDENTIFY, index: 1, ..PortIdentifyCmd::default() }.into_cmd(),
        PortInitCmd { opcode: Opcode::PORT_INIT, index: 200, ..PortInitCmd::default() }.into_cmd(),
        PortSetattrCmd { opcode: Opcode::PORT_SETATTR, attr: PortAttr(99), ..PortSetattrCmd::default() }.into_cmd(),
        LifIdentifyCmd { opcode: Opcode::LIF_IDENTIFY, type_: 3, ..LifIdentifyCmd::default() }.into_cmd(),
        LifInitCmd { opcode: Opcode::LIF_INIT, index: 1.into(), ..LifInitCmd::default() }.into_cmd(),
        LifResetCmd { opcode: Opcode::LIF_RESET, index: 1.into(), ..LifResetCmd::default() }.into_cmd(),
        QIdentifyCmd { opcode: Opcode::Q_IDENTIFY, type_: QType(14), ..QIdentifyCmd::default() }.into_cmd(),
    ] {
        assert_ne!(nic.devcmd_raw(&cmd).unwrap().status, Status::SUCCESS, "{}", cmd.opcode);
        refused += 1;
    }
    assert_eq!(nic.bus.errors().bad_commands - before.bad_commands, refused);
    works(&mut nic);
}

pub fn odd_register_accesses<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    // Reads of any size and alignment, across every edge and beyond what is there: zero where nothing is, never all ones.
    for at in [
        0, 1, 3, 0x7fd, 0x7ff, 0x800, 0xfff, 0x1000, 0x1ffe, 0x2001, 0x2006, 0x7ffd, 0x8000, 0x8003, 0xbfff, 0xc000,
        0xfff8,
    ] {
        for len in [1, 2, 3, 4, 5, 7, 8] {
            let mut data = vec![0xee; len];
            nic.bus.read(Bar::Registers, at, &mut data).unwrap();
        }
    }
    let mut data = [0xee; 8];
    for at in [0x1000, 0x1ff8, 0x9000, 0xe000, 0xfff8] {
        nic.bus.read(Bar::Registers, at, &mut data).unwrap();
        assert_eq!(data, [0; 8], "nothing is at {at:#x}");
    }
    let mut big = vec![0xee; 0x1000];
    nic.bus.read(Bar::Registers, 0, &mut big).unwrap();
    assert_eq!(big[..4], DEV_INFO_SIGNATURE.to_le_bytes());
    // The registers are read-only where they are.
    for at in [0, 4, 7, 8, 0x2c] {
        nic.bus.write(Bar::Registers, at, &[0xff; 4]).unwrap();
    }
    assert_eq!(nic.bus.read32(Bar::Registers, 0).unwrap(), DEV_INFO_SIGNATURE);
    assert_eq!(nic.bus.read8(Bar::Registers, DEV_INFO_FW_STATUS).unwrap(), FW_STS_F_RUNNING);
    // Interrupt registers are words; doorbells are eight bytes, or two halves. All else is counted and does nothing.
    let before = nic.bus.errors();
    let mask = intr_reg(1, INTR_MASK);
    nic.bus.write(Bar::Registers, mask, &[1]).unwrap();
    nic.bus.write(Bar::Registers, mask, &[1, 0]).unwrap();
    nic.bus.write(Bar::Registers, mask + 1, &[1, 1, 1, 1]).unwrap();
    nic.bus.write(Bar::Registers, mask + 2, &[1, 1, 1, 1, 1, 1, 1, 1]).unwrap();
    nic.bus.write(Bar::Registers, mask, &[1, 0, 0, 0, 9]).unwrap();
    for (at, len) in [(24, 1), (24, 2), (25, 8), (28, 8), (26, 4), (24, 3), (24, 7), (4095, 8)] {
        nic.bus.write(Bar::Doorbells, at, &[1; 8][..len]).unwrap();
    }
    // A high half without its low one, and one that belongs to another slot.
    nic.bus.write(Bar::Doorbells, 28, &[0; 4]).unwrap();
    nic.bus.write(Bar::Doorbells, 16, &[1, 0, 0, 0]).unwrap();
    nic.bus.write(Bar::Doorbells, 28, &[0; 4]).unwrap();
    let after = nic.bus.errors();
    assert_eq!(after.accesses - before.accesses, 5 + 8 + 2);
    assert_eq!(nic.bus.read32(Bar::Registers, mask).unwrap(), 0);
    assert!(nic.bus.wire().take().is_empty());
    // Two halves are a doorbell.
    let out = frames::udp(MAC, PEER, b"two halves");
    nic.post(0, &out, TxOffload::None, None).unwrap();
    let hw = nic.pairs[0].tx.hw;
    let value = Doorbell { p_index: nic.pairs[0].tx.head(), ring: 0, qid: hw.index }.value().to_le_bytes();
    nic.bus.write(Bar::Doorbells, 8 * u64::from(hw.type_), &value[..4]).unwrap();
    nic.bus.write(Bar::Doorbells, 8 * u64::from(hw.type_) + 4, &value[4..]).unwrap();
    assert_eq!(drain(&mut nic), [out]);
    // Writes where nothing is, and vectors beyond the last.
    for at in [0x1000, 0x1234, 0x7ff0, 0x9000, 0xc000, 0xfffc] {
        nic.bus.write32(Bar::Registers, at, 0xffff_ffff).unwrap();
    }
    works(&mut nic);
}

pub fn oversize_frames_from_the_wire<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    for len in [1519, 1520, 2048, 9000, 9018, 65_000] {
        let before = stats(&mut nic);
        let mut frame = frames::pattern(len, 3);
        frame[..14].copy_from_slice(&[&MAC[..], &PEER, &[0x88, 0xb5]].concat());
        assert!(inject(&mut nic, [frame]).is_empty(), "{len} bytes in buffers of 1518");
        let after = stats(&mut nic);
        assert_eq!(after.rx_ucast_drop_packets.get() - before.rx_ucast_drop_packets.get(), 1);
        assert_eq!(after.rx_ucast_drop_bytes.get() - before.rx_ucast_drop_bytes.get(), len as u64);
        works(&mut nic);
    }
    for len in [0, 1, 5, 6, 11, 12, 13] {
        assert!(inject(&mut nic, [vec![0xff; len]]).is_empty(), "{len} bytes");
    }
    works(&mut nic);
}

pub fn information_blocks_outside_memory<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    for addr in NOWHERE {
        let cmd = LifInitCmd { opcode: Opcode::LIF_INIT, info_pa: addr.into(), ..LifInitCmd::default() };
        assert_ne!(nic.devcmd_raw(&cmd.into_cmd()).unwrap().status, Status::SUCCESS, "LIF at {addr:#x}");
        let cmd = PortInitCmd { opcode: Opcode::PORT_INIT, info_pa: addr.into(), ..PortInitCmd::default() };
        assert_ne!(nic.devcmd_raw(&cmd.into_cmd()).unwrap().status, Status::SUCCESS, "port at {addr:#x}");
    }
    works(&mut nic);
    // Gone after it was given: statistics and link events find nothing, are counted, and traffic goes on where memory is.
    let before = nic.bus.errors();
    nic.bus.unmap_ram();
    nic.bus.with_device(|d| d.set_link(false));
    nic.bus.with_device(|d| d.set_link(true));
    nic.bus.pass(Duration::from_secs(1));
    nic.bus.map_ram();
    assert!(nic.bus.errors().info_dma > before.info_dma);
    let bus = nic.into_bus();
    let mut nic = Ionic::attach(bus, Config::default()).unwrap();
    nic.up().unwrap();
    works(&mut nic);
}

pub fn memory_unmapped_under_traffic<T: TestBus>() {
    let config = Config { tx_entries: 64, rx_entries: 64, ..Config::default() };
    let mut nic = up::<T>(config.clone());
    for round in 0..5 {
        works(&mut nic);
        // Everything is posted and nothing is mapped.
        nic.bus.unmap_ram();
        for i in 0..10 {
            nic.post(0, &frames::udp(MAC, PEER, &[i]), TxOffload::None, None).unwrap();
        }
        nic.flush(0).unwrap();
        let mac = nic.mac;
        nic.bus.wire().lock().inbound.extend((0..10).map(|i| frames::udp(PEER, mac, &[i])));
        nic.bus.pass(Duration::from_millis(200));
        assert!(nic.bus.wire().take().is_empty());
        let s = nic.bus.with_device(|d| *d.lif_stats());
        assert!(s.tx_desc_fetch_error.get() + s.tx_dma_error.get() > 0, "round {round}");
        nic.bus.map_ram();
        nic.bus.wire().lock().inbound.clear();
        // The driver's watchdog would make the queues anew; here the guest starts again.
        let bus = nic.into_bus();
        nic = Ionic::attach(bus, config.clone()).unwrap();
        nic.up().unwrap();
        assert!(receive(&mut nic).is_empty());
    }
    works(&mut nic);
}

pub fn rude_links<T: TestBus>() {
    // A link that delivers without room: counted as what it is, and the driver's rings stay whole.
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    nic.bus.wire().lock().rude = true;
    let before = stats(&mut nic);
    let frames: Vec<_> = (0..100).map(|i| frames::udp(PEER, MAC, &[i])).collect();
    nic.bus.wire().lock().inbound.extend(frames.clone());
    nic.bus.settle();
    let after = stats(&mut nic);
    assert_eq!(after.rx_queue_empty.get() - before.rx_queue_empty.get(), 100 - 63);
    nic.bus.wire().lock().rude = false;
    let got: Vec<_> = receive(&mut nic).into_iter().map(|g| g.bytes).collect();
    assert_eq!(got, frames[..63]);
    nic.down().unwrap();
    nic.bus.wire().lock().rude = true;
    nic.bus.wire().lock().inbound.extend(frames);
    nic.bus.settle();
    let down = stats(&mut nic);
    assert_eq!(down.rx_queue_disabled.get() - after.rx_queue_disabled.get(), 100);
    nic.bus.wire().lock().rude = false;
    nic.up().unwrap();
    works(&mut nic);
}
