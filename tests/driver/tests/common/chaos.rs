//! A guest that does anything in any order: nothing it does may panic or hang the device, and after a reset the device works.

use std::time::Duration;

use ionic_abi::*;
use ionic_driver::{Bar, Config, DmaBuf, Ionic};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config as Runs, FileFailurePersistence, TestRunner},
};
use zerocopy::{FromZeros, IntoBytes};

use super::{IOVA, MAC, PEER, RAM, TestBus, device_config, frames, receive, works};

/// One thing that a guest, its hypervisor or the wire does.
#[derive(Debug, Clone)]
enum Act {
    Write {
        bar: Bar,
        offset: u64,
        data: Vec<u8>,
    },
    Read {
        bar: Bar,
        offset: u64,
        len: usize,
    },
    Config {
        offset: u64,
        data: Vec<u8>,
    },
    Doorbell {
        page: u64,
        slot: u64,
        value: Doorbell,
    },
    /// A transmit descriptor on a ring of the driver's, rung for.
    Tx {
        queue: usize,
        desc: [u64; 2],
        sg: Vec<[u64; 2]>,
    },
    /// A receive descriptor likewise.
    Rx {
        queue: usize,
        desc: [u64; 2],
        sg: Vec<[u64; 2]>,
    },
    /// Bytes into one of the rings, or of the device's blocks.
    Poke {
        which: usize,
        offset: usize,
        data: Vec<u8>,
    },
    /// A command on the admin queue, rung for and not waited for.
    Admin([u8; 64]),
    /// A command in the mailbox.
    Mailbox([u8; 64]),
    Frame(Vec<u8>),
    Turn,
    Pass(u64),
    Unmap,
    Map,
    Reset,
    Flr,
    Link(bool),
    Vectors(u16),
    /// The driver goes on with whatever it finds.
    Poll,
    /// The driver binds again, so that there is something to break.
    Bind,
}

/// Addresses: memory, its edges, around them, and anything.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0..RAM as u64).prop_map(|at| IOVA + at),
        1 => (0..64u64).prop_map(|d| IOVA + RAM as u64 - d),
        1 => Just(IOVA),
        1 => prop_oneof![Just(0), Just(IOVA - 1), Just(u64::MAX), Just(u64::MAX - 4095), Just(ADDR_MASK)],
        1 => any::<u64>(),
    ]
}

fn length() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), 1..20u16, 40..1600u16, Just(u16::MAX), any::<u16>()]
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(0xff), any::<u8>()], 1..=most)
}

fn element() -> impl Strategy<Value = [u64; 2]> {
    (address(), length()).prop_map(|(addr, len)| [addr, len.into()])
}

/// A command: a known opcode or any, with fields that often make sense.
fn command() -> impl Strategy<Value = [u8; 64]> {
    let opcode = prop_oneof![
        4 => proptest::sample::select(vec![
            Opcode::Q_INIT, Opcode::Q_CONTROL, Opcode::LIF_SETATTR, Opcode::RX_FILTER_ADD, Opcode::RX_MODE_SET, Opcode::LIF_INIT,
            Opcode::PORT_INIT,
        ]),
        2 => proptest::sample::select(Opcode::ALL.iter().map(|(_, o)| *o).collect::<Vec<_>>()),
        1 => any::<u8>().prop_map(Opcode),
    ];
    let q_init = (0..5u8, 0..18u32, 0..70u16, any::<u16>(), 0..17u8, address(), address(), address()).prop_map(
        |(type_, index, vector, flags, log2, ring, comp, sg)| {
            let cmd = QInitCmd {
                opcode: Opcode::Q_INIT,
                type_: QType(type_),
                index: index.into(),
                intr_index: vector.into(),
                // Controller memory and event queues are refused; mostly not asked for.
                flags: if flags & 0x700 == 0 { flags } else { flags & 7 }.into(),
                ring_size: log2,
                ring_base: ring.into(),
                cq_ring_base: comp.into(),
                sg_ring_base: sg.into(),
                ..QInitCmd::default()
            };
            zerocopy::transmute!(cmd)
        },
    );
    let control = (0..5u8, 0..18u32, 0..4u8).prop_map(|(type_, index, oper)| {
        let cmd = QControlCmd {
            opcode: Opcode::Q_CONTROL,
            type_: QType(type_),
            index: index.into(),
            oper: QOper(oper),
            ..QControlCmd::default()
        };
        zerocopy::transmute!(cmd)
    });
    let rss = (any::<u16>(), address()).prop_map(|(types, addr)| {
        let value = RssValue { types: types.into(), addr: addr.into(), ..RssValue::default() };
        let cmd =
            LifSetattrCmd { value: zerocopy::transmute!(value), ..ionic_driver::ionic::lif_setattr(LifAttr::RSS) };
        zerocopy::transmute!(cmd)
    });
    let any_bytes = (opcode, proptest::array::uniform32(any::<u8>()), address(), 0..16usize).prop_map(
        |(opcode, tail, addr, at)| {
            let mut cmd = [0; 64];
            cmd[0] = opcode.0;
            cmd[1..33].copy_from_slice(&tail);
            // Somewhere an address of the right size.
            let at = 8 + at % 4 * 4;
            cmd[at..at + 8].copy_from_slice(&addr.to_le_bytes());
            cmd
        },
    );
    prop_oneof![3 => q_init, 2 => control, 1 => rss, 4 => any_bytes]
}

fn act() -> impl Strategy<Value = Act> {
    let interesting = prop_oneof![
        Just(DEV_CMD_DOORBELL),
        Just(DEV_CMD_DONE),
        (0..64u64).prop_map(|i| DEV_CMD_CMD + i),
        (0..70u16, 0..32u64).prop_map(|(v, reg)| intr_reg(v, reg)),
        0..0x1_0000u64,
    ];
    let tx = (0..2usize, 0..16u8, 0..16u8, proptest::collection::vec(element(), 0..15), element(), any::<[u16; 3]>())
        .prop_map(|(queue, opcode, flags, sg, [addr, len], [tci, a, b])| {
            let flags = TxqFlags::from_bits_retain(flags);
            let cmd = TxqDesc::pack(TxqOpcode(opcode % 4), flags, sg.len() as u8, addr);
            let words = [len, u64::from(tci), u64::from(a % 256), u64::from(b)];
            let second = words.iter().enumerate().map(|(i, w)| w << (16 * i)).sum();
            Act::Tx { queue, desc: [cmd, second], sg }
        });
    let rx = (0..2usize, 0..3u64, proptest::collection::vec(element(), 0..8), element())
        .prop_map(|(queue, opcode, sg, [addr, len])| Act::Rx { queue, desc: [opcode | len << 48, addr], sg });
    let frame = prop_oneof![
        bytes(64).prop_map(Act::Frame),
        (0..3000usize, any::<u64>()).prop_map(|(len, seed)| Act::Frame(frames::udp(
            PEER,
            MAC,
            &frames::pattern(len, seed)
        ))),
    ];
    prop_oneof![
        4 => (interesting.clone(), bytes(8)).prop_map(|(offset, data)| Act::Write { bar: Bar::Registers, offset, data }),
        1 => (0..0x2_0000u64, bytes(8)).prop_map(|(offset, data)| Act::Write { bar: Bar::Doorbells, offset, data }),
        1 => (any::<bool>(), interesting, 1..16usize).prop_map(|(registers, offset, len)| Act::Read {
            bar: if registers { Bar::Registers } else { Bar::Doorbells },
            offset: offset.min(0xfff0),
            len,
        }),
        1 => (0..256u64, bytes(4)).prop_map(|(offset, data)| Act::Config { offset, data }),
        4 => (0..3u64, 0..9u64, any::<u16>(), 0..4u8, 0..20u32).prop_map(|(page, slot, p_index, ring, qid)| Act::Doorbell {
            page: page / 2,
            slot,
            value: Doorbell { p_index: if ring == 0 { p_index % 64 } else { p_index }, ring: ring / 3, qid: qid / 4 },
        }),
        4 => tx,
        3 => rx,
        3 => (0..10usize, 0..4096usize, bytes(32)).prop_map(|(which, offset, data)| Act::Poke { which, offset, data }),
        5 => command().prop_map(Act::Admin),
        3 => command().prop_map(Act::Mailbox),
        4 => frame,
        6 => Just(Act::Turn),
        1 => (0..300u64).prop_map(Act::Pass),
        1 => Just(Act::Unmap),
        1 => Just(Act::Map),
        1 => Just(Act::Reset),
        1 => Just(Act::Flr),
        1 => any::<bool>().prop_map(Act::Link),
        1 => (0..40u16).prop_map(Act::Vectors),
        2 => Just(Act::Poll),
        2 => Just(Act::Bind),
    ]
}

/// What the guest still knows while everything falls apart.
struct Guest<T> {
    nic: Ionic<T>,
    admin_head: u16,
    /// Commands, and completions a page behind them.
    admin_ring: DmaBuf,
    mapped: bool,
}

impl<T: TestBus> Guest<T> {
    /// Binds the driver, if the device lets it, and puts an admin ring of our own in place of the driver's.
    fn bind(&mut self) {
        // It may have been left in any state, and memory may be gone: then the driver fails.
        let _ = self.nic.probe().and_then(|()| self.nic.up());
        self.admin_ring.fill(0);
        let cmd = QInitCmd {
            ring_base: self.admin_ring.iova().into(),
            cq_ring_base: (self.admin_ring.iova() + 4096).into(),
            ..ionic_driver::ionic::q_init(QType::ADMINQ, 0, 0, QInitFlags::IRQ | QInitFlags::ENA, 16)
        };
        let _ = self.nic.devcmd(&cmd);
        self.admin_head = 0;
    }

    fn act(&mut self, act: &Act) {
        let nic = &mut self.nic;
        match act {
            Act::Write { bar, offset, data } => nic.bus.write(*bar, *offset, data).unwrap(),
            Act::Read { bar, offset, len } => {
                nic.bus.read(*bar, *offset, &mut vec![0xee; *len]).unwrap();
            }
            Act::Config { offset, data } => nic.bus.config_write(*offset, data).unwrap(),
            Act::Doorbell { page, slot, value } => {
                nic.bus.write64(Bar::Doorbells, page * 4096 + slot * 8, value.value()).unwrap();
            }
            Act::Tx { queue, desc, sg } => {
                let Some(pair) = nic.pairs.get_mut(*queue) else { return };
                let sg: Vec<TxqSgElem> = sg.iter().map(|e| zerocopy::transmute!(*e)).collect();
                // A full ring is started again: the device may think of it what it likes.
                let _ = pair.tx.post_raw(&zerocopy::transmute!(*desc), &sg);
                let (hw, head) = (pair.tx.hw, pair.tx.head());
                nic.ring(hw, head).unwrap();
            }
            Act::Rx { queue, desc, sg } => {
                let Some(pair) = nic.pairs.get_mut(*queue) else { return };
                let sg: Vec<RxqSgElem> = sg.iter().map(|e| zerocopy::transmute!(*e)).collect();
                let head = pair.rx.post_raw(&zerocopy::transmute!(*desc), &sg);
                let hw = pair.rx.hw;
                nic.ring(hw, head).unwrap();
            }
            Act::Poke { which, offset, data } => {
                let Some(pair) = nic.pairs.get(which % 2) else { return };
                let buf = [&pair.tx.desc, &pair.tx.sg, &pair.rx.desc, &pair.rx.sg, &pair.rx.comp][which / 2];
                buf.write((*offset).min(buf.len() - data.len()), data);
            }
            Act::Admin(cmd) => {
                nic.bus.ram().write(self.admin_ring.iova() + u64::from(self.admin_head) * 64, cmd);
                self.admin_head = (self.admin_head + 1) % 16;
                let value = Doorbell { p_index: self.admin_head, ring: 0, qid: 0 }.value();
                nic.bus.write64(Bar::Doorbells, 0, value).unwrap();
            }
            Act::Mailbox(cmd) => {
                nic.bus.write(Bar::Registers, DEV_CMD_CMD, &cmd[..]).unwrap();
                nic.bus.write32(Bar::Registers, DEV_CMD_DONE, 0).unwrap();
                nic.bus.write32(Bar::Registers, DEV_CMD_DOORBELL, 1).unwrap();
                assert_eq!(nic.bus.read32(Bar::Registers, DEV_CMD_DONE).unwrap(), 1, "every command is answered");
            }
            Act::Frame(frame) => nic.bus.wire().lock().inbound.push_back(frame.clone()),
            Act::Turn => nic.bus.settle(),
            Act::Pass(ms) => nic.bus.pass(Duration::from_millis(*ms)),
            Act::Unmap if self.mapped => {
                nic.bus.unmap_ram();
                self.mapped = false;
            }
            Act::Map if !self.mapped => {
                nic.bus.map_ram();
                self.mapped = true;
            }
            Act::Unmap | Act::Map => {}
            Act::Reset => nic.bus.reset().unwrap(),
            Act::Flr => nic.bus.config_write(0x48, &0x8000_u16.to_le_bytes()).unwrap(),
            Act::Link(up) => {
                let up = *up;
                nic.bus.with_device(move |d| d.set_link(up));
            }
            Act::Bind => self.bind(),
            Act::Vectors(count) => nic.bus.set_vectors(*count).unwrap(),
            Act::Poll => {
                // Whatever the driver finds wrong now is of the guest's own making.
                for _ in 0..8 {
                    if !matches!(nic.poll(&mut |_| {}), Ok(true)) {
                        break;
                    }
                }
            }
        }
    }
}

fn run<T: TestBus>(acts: &[Act]) {
    let config =
        Config { queues: 2, tx_entries: 64, rx_entries: 64, timeout: Duration::from_millis(50), ..Config::default() };
    let nic = Ionic::new(T::make(device_config()), config.clone()).unwrap();
    let admin_ring = nic.bus.ram().alloc(8192).unwrap();
    let mut guest = Guest { nic, admin_head: 0, admin_ring, mapped: true };
    guest.bind();
    assert!(guest.nic.running());
    for act in acts {
        guest.act(act);
    }
    let Guest { nic, mapped, .. } = guest;
    let mut bus = nic.into_bus();
    bus.settle();
    if !mapped {
        bus.map_ram();
    }
    bus.with_device(|d| d.set_link(true));
    bus.reset().unwrap();
    bus.settle();
    bus.wire().lock().inbound.clear();
    let mut next = Ionic::attach(bus, config).unwrap();
    next.up().unwrap();
    assert!(receive(&mut next).is_empty());
    works(&mut next);
}

/// So many guests, or as many as `ERNIC_CHAOS_CASES` says.
pub fn guests_that_do_anything<T: TestBus>(cases: u32) {
    let cases = std::env::var("ERNIC_CHAOS_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    let persistence = FileFailurePersistence::Direct("proptest-regressions/chaos.txt");
    let runs = Runs { cases, failure_persistence: Some(Box::new(persistence)), ..Runs::default() };
    TestRunner::new(runs)
        .run(&proptest::collection::vec(act(), 1..120), |acts| {
            run::<T>(&acts);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// The commands of the strategy are what they seem.
pub fn commands_are_commands() {
    let mut runner = TestRunner::deterministic();
    let mut known = 0;
    for _ in 0..200 {
        let cmd = command().new_tree(&mut runner).unwrap().current();
        let mut typed = AdminCmd::new_zeroed();
        typed.as_mut_bytes().copy_from_slice(&cmd);
        known += usize::from(typed.opcode.name().is_some());
    }
    assert!(known > 100, "{known} of 200");
}
