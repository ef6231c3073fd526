//! What a guest gets wrong is said, and said a limited number of times. A process of its own: the limits are per call site.

#![allow(clippy::cast_possible_truncation)]

mod common;

use std::{
    io,
    sync::{Arc, Mutex},
};

use common::{Direct, IOVA, MAC, PEER, RAM, TestBus, drain, frames, up, works};
use ernic_emu::ratelimit::{BURST, INTERVAL};
use ionic_abi::*;
use ionic_driver::{Bar, Bus, Config, Ionic, ionic::q_init};
use zerocopy::FromZeros;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

/// The first address behind guest memory.
const NOWHERE: u64 = IOVA + RAM as u64;

/// Makes queue 0 of a type anew with rings where they are said to be, and rings it.
fn lose_queue(nic: &mut Ionic<Direct>, qtype: QType, base: u64, comp: u64) {
    let cmd = QInitCmd {
        ring_base: base.into(),
        cq_ring_base: comp.into(),
        ..q_init(qtype, 0, 0, QInitFlags::IRQ | QInitFlags::ENA, 64)
    };
    assert_eq!(nic.admin_raw(&cmd.into_cmd()).unwrap().status, Status::SUCCESS);
    let hw = if qtype == QType::TXQ { nic.pairs[0].tx.hw } else { nic.pairs[0].rx.hw };
    nic.ring(hw, 1).unwrap();
    nic.bus.settle();
}

/// A frame from the wire, which the device has to do with as it can.
fn lose_frame(nic: &mut Ionic<Direct>) {
    nic.bus.wire().lock().inbound.push_back(frames::udp(PEER, MAC, b"lost"));
    nic.bus.settle();
    nic.bus.wire().lock().inbound.clear();
}

/// Makes an event queue, a completion queue and an RDMA admin queue where they are said to be, asks for one command, and for
/// an event.
fn rdma_queues(nic: &mut Ionic<Direct>, events: u64, commands: u64) {
    let completions = nic.pairs[0].tx.comp.iova();
    for (opcode, id, cid, stride_log2, at) in [
        (Opcode::RDMA_CREATE_EQ, 9, 20, 2, events),
        (Opcode::RDMA_CREATE_CQ, 5, 9, 5, completions),
        (Opcode::RDMA_CREATE_ADMINQ, 1, 5, 6, commands),
    ] {
        let cmd = RdmaQueueCmd {
            opcode,
            qid_ver: id.into(),
            cid: cid.into(),
            depth_log2: 4,
            stride_log2,
            dma_addr: at.into(),
            ..RdmaQueueCmd::default()
        };
        assert_eq!(nic.admin_raw(&cmd.into_cmd()).unwrap().status, Status::SUCCESS);
    }
    let (admin, completion) = (nic.lif.rdma.aq_qtype.qtype, nic.lif.rdma.cq_qtype.qtype);
    nic.doorbell(0, admin, Doorbell { p_index: 1, ring: 0, qid: 1 }).unwrap();
    nic.bus.settle();
    nic.doorbell(0, completion, Doorbell { p_index: 0, ring: CQ_RING_ARM, qid: 5 }).unwrap();
    nic.bus.settle();
}

#[test]
fn misbehaviour_is_logged_at_a_limited_rate() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let mut nic = up::<Direct>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    works(&mut nic);
    let good = log.take();
    assert!(!good.contains("WARN"), "a well-behaved guest:\n{good}");

    /// What it is, how it is done, and what the line says.
    type Case = (&'static str, fn(&mut Ionic<Direct>, u64), &'static [&'static str]);
    let cases: [Case; 15] = [
        (
            "an unknown command",
            |nic, i| {
                let cmd = AdminCmd { opcode: Opcode(200 + (i % 20) as u8), ..AdminCmd::new_zeroed() };
                nic.admin_raw(&cmd).unwrap();
            },
            &["WARN", "command refused", "EOPCODE"],
        ),
        (
            "an odd register access",
            |nic, i| nic.bus.write(Bar::Registers, intr_reg(1, INTR_MASK) + 1, &[i as u8]).unwrap(),
            &["WARN", "access that no register has", "len=1"],
        ),
        (
            "an odd doorbell",
            |nic, _| nic.bus.write(Bar::Doorbells, 24, &[1, 2]).unwrap(),
            // The same call site as above: its lines are used up, or another interval has begun.
            &["access that no register has", "region=2"],
        ),
        (
            "a doorbell of no queue",
            |nic, i| {
                nic.bus
                    .write64(Bar::Doorbells, 24, Doorbell { p_index: 1, ring: 0, qid: 5 + i as u32 }.value())
                    .unwrap()
            },
            &["DEBUG", "doorbell for no queue"],
        ),
        (
            "a transmit buffer outside memory",
            |nic, i| {
                let cmd = TxqDesc::pack(TxqOpcode::CSUM_NONE, TxqFlags::empty(), 0, i * 4096);
                let desc = TxqDesc { cmd: cmd.into(), len: 100.into(), ..TxqDesc::default() };
                nic.pairs[0].tx.post_raw(&desc, &[]).unwrap();
                nic.flush(0).unwrap();
                assert!(drain(nic).is_empty(), "it was completed, and nothing sent");
            },
            &["WARN", "TX buffer or scatter list is not in guest memory", "no guest memory at iova"],
        ),
        (
            "a transmit ring outside memory",
            |nic, _| lose_queue(nic, QType::TXQ, NOWHERE, nic.pairs[0].rx.comp.iova()),
            &["WARN", "TX ring is not in guest memory"],
        ),
        (
            "a transmit completion ring outside memory",
            |nic, _| lose_queue(nic, QType::TXQ, nic.pairs[0].rx.comp.iova(), NOWHERE),
            &["WARN", "TX completion ring is not in guest memory"],
        ),
        (
            "a receive ring outside memory",
            |nic, _| {
                lose_queue(nic, QType::RXQ, NOWHERE, nic.pairs[0].tx.comp.iova());
                lose_frame(nic);
            },
            &["WARN", "RX ring is not in guest memory"],
        ),
        (
            "a receive completion ring outside memory",
            |nic, _| {
                lose_queue(nic, QType::RXQ, nic.pairs[0].tx.comp.iova(), NOWHERE);
                lose_frame(nic);
            },
            &["WARN", "RX completion ring is not in guest memory"],
        ),
        (
            "a receive buffer outside memory",
            |nic, _| {
                let ring = nic.pairs[0].tx.comp.iova();
                let desc = RxqDesc { len: 2048.into(), addr: NOWHERE.into(), ..RxqDesc::default() };
                nic.bus.ram().write(ring, zerocopy::IntoBytes::as_bytes(&desc));
                lose_queue(nic, QType::RXQ, ring, nic.pairs[0].rx.comp.iova());
                lose_frame(nic);
            },
            &["WARN", "RX buffer or scatter list is not in guest memory"],
        ),
        (
            "a notify queue outside memory",
            |nic, i| {
                let flags = QInitFlags::IRQ | QInitFlags::ENA;
                let cmd = QInitCmd { ring_base: NOWHERE.into(), ..q_init(QType::NOTIFYQ, 0, 0, flags, 64) };
                assert_eq!(nic.admin_raw(&cmd.into_cmd()).unwrap().status, Status::SUCCESS);
                nic.bus.with_device(move |device| device.set_link(i % 2 == 1));
                nic.bus.settle();
            },
            &["WARN", "notify queue is not in guest memory"],
        ),
        (
            "an information block outside memory",
            |nic, i| {
                let lif = LifInitCmd { opcode: Opcode::LIF_INIT, info_pa: NOWHERE.into(), ..LifInitCmd::default() };
                let port = PortInitCmd { opcode: Opcode::PORT_INIT, info_pa: NOWHERE.into(), ..PortInitCmd::default() };
                let cmd = if i % 2 == 0 { lif.into_cmd() } else { port.into_cmd() };
                assert_ne!(nic.devcmd_raw(&cmd).unwrap().status, Status::SUCCESS);
            },
            &["WARN", "information block is not in guest memory"],
        ),
        (
            "an RDMA admin queue outside memory",
            |nic, _| rdma_queues(nic, nic.pairs[0].rx.comp.iova(), NOWHERE),
            &["WARN", "RDMA admin queue is not in guest memory"],
        ),
        (
            "an RDMA event queue outside memory",
            |nic, _| rdma_queues(nic, NOWHERE, nic.pairs[0].rx.comp.iova()),
            &["WARN", "RDMA event queue is not in guest memory"],
        ),
        (
            "an admin queue outside memory",
            |nic, _| {
                let cmd = QInitCmd {
                    ring_base: (IOVA + RAM as u64).into(),
                    cq_ring_base: nic.pairs[0].tx.comp.iova().into(),
                    ..q_init(QType::ADMINQ, 0, 0, QInitFlags::IRQ | QInitFlags::ENA, 16)
                };
                nic.devcmd(&cmd).unwrap();
                nic.bus.write64(Bar::Doorbells, 0, Doorbell { p_index: 1, ring: 0, qid: 0 }.value()).unwrap();
                nic.bus.settle();
            },
            &["WARN", "admin queue is not in guest memory"],
        ),
    ];
    let start = std::time::Instant::now();
    for (what, wrong, says) in cases {
        for i in 0..300 {
            wrong(&mut nic, i);
        }
        let text = log.take();
        let lines = text.lines().filter(|line| says.iter().all(|word| line.contains(word))).count() as u64;
        let intervals = start.elapsed().as_secs() / INTERVAL.as_secs() + 2;
        assert!(lines <= BURST * intervals, "{what}: {lines} lines for 300 times");
        assert!(lines >= 1 || what == "an odd doorbell", "{what}: no line\n{text}");
        assert!((text.lines().count() as u64) <= 2 * BURST * intervals, "{what}: other lines\n{text}");
    }
    let mut nic = Ionic::attach(nic.into_bus(), Config::default()).unwrap();
    nic.up().unwrap();
    works(&mut nic);
}
