//! What a guest gets wrong is said, and said a limited number of times. A process of its own: the limits are per call site.

#![allow(clippy::cast_possible_truncation)]

mod common;

use std::{
    io,
    sync::{Arc, Mutex},
};

use common::{Direct, IOVA, RAM, TestBus, up, works};
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
    let cases: [Case; 5] = [
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
