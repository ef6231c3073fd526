//! Probe, commands, interrupts, rings, link, statistics.

use std::time::Duration;

use ernic_emu::pci;
use ionic_abi::*;
use ionic_driver::{
    Bar, Config, DriverError, Filter, Ionic, TxOffload,
    ionic::{lif_setattr, q_init},
};
use zerocopy::{FromZeros, IntoBytes};

use super::{LONG, MAC, PEER, TestBus, device_config, drain, frames, inject, receive, up, works};

pub fn probe_reads_what_the_driver_needs<T: TestBus>() {
    let nic = Ionic::attach(T::make(device_config()), Config { queues: 4, ..Config::default() }).unwrap();
    // Registers. asic_type 0 and 2 arm a workaround that can panic the guest.
    assert_eq!(nic.info.asic_type, AsicType::SALINA);
    assert_eq!((nic.info.fw_status, nic.info.fw_heartbeat.get()), (1, 0));
    assert!(nic.info.fw_version[0].is_ascii_graphic() && nic.info.serial_num[0].is_ascii_graphic());
    // Device.
    assert_eq!((nic.dev.version, nic.dev.type_, nic.dev.nports, nic.dev.nlifs.get()), (2, 0, 1, 1));
    assert_eq!((nic.dev.nintrs.get(), nic.dev.ndbpgs_per_lif.get(), nic.dev.eq_count.get()), (64, 1024, 0));
    assert_eq!((nic.dev.intr_coal_mult.get(), nic.dev.intr_coal_div.get()), (1, 4));
    assert_eq!(nic.dev.capabilities.get(), 0);
    // LIF.
    let eth = &nic.lif.eth;
    assert!(LifCaps::from_bits_retain(nic.lif.capabilities.get()).contains(LifCaps::ETH));
    assert_eq!((eth.max_ucast_filters.get(), eth.max_mcast_filters.get(), eth.rss_ind_tbl_sz.get()), (512, 512, 128));
    assert_eq!((eth.min_frame_size.get(), eth.max_frame_size.get()), (64, 9000 + 18));
    assert_eq!(eth.config.queue_count.map(|n| n.get())[..4], [1, 1, 16, 16]);
    assert_eq!(eth.config.features.get(), 0x7ff);
    assert_eq!(eth.config.mac, MAC);
    assert_eq!((eth.hwstamp_tx_modes.get(), eth.hwstamp_rx_filters.get()), (0, 0));
    // Port.
    assert_eq!((nic.port.type_, nic.port.speeds[0].get()), (PortType::ETH, 100_000));
    assert_eq!((nic.port.config.speed.get(), nic.port.config.state), (100_000, PortAdminState::UP));
    // Queues: no version and no feature here lets rings lie in controller memory.
    let q = |t: QType| {
        let q = &nic.queue_identity[usize::from(t.0)];
        (q.version, q.desc_sz.get(), q.comp_sz.get(), q.sg_desc_sz.get(), q.max_sg_elems.get(), q.sg_desc_stride.get())
    };
    assert_eq!(q(QType::ADMINQ), (0, 64, 16, 0, 0, 0));
    assert_eq!(q(QType::NOTIFYQ), (0, 64, 64, 0, 0, 0));
    assert_eq!(q(QType::RXQ), (0, 16, 16, 128, 8, 8));
    assert_eq!(q(QType::TXQ), (1, 16, 16, 256, 15, 16));
    for q in &nic.queue_identity {
        assert!(!QFeatures::from_bits_retain(q.features.get()).intersects(QFeatures::CMB | QFeatures::EXPDB));
    }
    // What was asked for and is not tunnels.
    assert_eq!(nic.features.bits(), 0x7bf);
    assert_eq!(nic.mac, MAC);
    assert!(nic.carrier);
    // Blocks in memory.
    let info = nic.lif_info();
    assert_eq!((info.status.link_status.get(), info.status.link_speed.get()), (1, 100_000));
    let port = nic.port_info();
    assert_eq!((port.status.status, port.status.speed.get()), (PortOperStatus::UP, 100_000));
    assert_eq!((port.status.xcvr.phy, port.status.xcvr.pid.get()), (PhyType::COPPER, 1), "or ethtool reports no speed");
    assert_eq!(port.extra_stats.as_bytes(), [0xff; 160], "marked invalid by the driver, and left so");

    let mut nic = nic;
    assert_eq!(nic.bus.read8(Bar::Registers, 4).unwrap(), DEV_INFO_VERSION, "which Linux does not look at");

    // PCI: identity, no BAR 4, Express with a link speed, MSI-X in BAR 0 above the registers.
    let mut config = [0; 256];
    for (i, word) in config.chunks_mut(4).enumerate() {
        nic.bus.config_read(4 * i as u64, word).unwrap();
    }
    assert_eq!(config[..4], [0xd8, 0x1d, 0x02, 0x10]);
    assert_eq!(config[9..12], [0, 0, 2]);
    assert_eq!(config[0x20..0x28], [0; 8]);
    let find = |id: u8| {
        let mut at = usize::from(config[0x34]);
        while config[at] != id {
            at = usize::from(config[at + 1]);
            assert_ne!(at, 0, "capability {id:#x}");
        }
        at
    };
    let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    let express = find(0x10);
    assert_ne!(word(express + 4) & 1 << 28, 0, "FLR");
    assert_eq!(word(express + 0x0c) & 0x3ff, 0x103);
    assert_eq!(word(express + 0x10) >> 16 & 0x3ff, 0x103);
    assert_eq!(word(express + 0x2c), 0x0e, "or Linux prints an unknown link speed");
    let msix = find(0x11);
    assert_eq!(word(msix) >> 16 & 0x7ff, 63);
    assert_eq!((word(msix + 4) & 7, word(msix + 8) & 7), (0, 0), "both in BAR 0");
    assert!(u64::from(word(msix + 4)) >= BAR0_SIZE && u64::from(word(msix + 8)) >= BAR0_SIZE);
    assert_eq!(nic.bus.errors(), ernic_emu::device::GuestErrors::default(), "a well-behaved driver");
}

pub fn devcmd_register_rules<T: TestBus>() {
    let mut nic = Ionic::new(T::make(device_config()), Config::default()).unwrap();
    nic.probe().unwrap();
    let bus = &mut nic.bus;
    let read = |bus: &mut T, at| bus.read32(Bar::Registers, at).unwrap();
    // Writing 0 to the doorbell, or anything to done, cmd or data, runs nothing: done stays as it was written.
    bus.write32(Bar::Registers, DEV_CMD_CMD, 1).unwrap();
    bus.write32(Bar::Registers, DEV_CMD_DONE, 0).unwrap();
    bus.write32(Bar::Registers, DEV_CMD_DOORBELL, 0).unwrap();
    bus.write32(Bar::Registers, DEV_CMD_DATA, 0xffff_ffff).unwrap();
    bus.write32(Bar::Registers, DEV_CMD_DOORBELL, 2).unwrap();
    assert_eq!(read(bus, DEV_CMD_DONE), 0);
    assert_eq!(read(bus, DEV_CMD_DATA), 0xffff_ffff);
    // The command keeps its bytes, and completion and data stay until the next one is rung for.
    bus.write32(Bar::Registers, DEV_CMD_DOORBELL, 1).unwrap();
    assert_eq!((read(bus, DEV_CMD_DONE), read(bus, DEV_CMD_CMD), read(bus, DEV_CMD_COMP) & 0xff), (1, 1, 0));
    let identity = read(bus, DEV_CMD_DATA);
    assert_eq!(identity, 2, "version of the device identity");
    bus.write32(Bar::Registers, DEV_CMD_DOORBELL, 0).unwrap();
    for i in 0..64 {
        bus.write(Bar::Registers, DEV_CMD_CMD + i, &[0]).unwrap();
    }
    assert_eq!((read(bus, DEV_CMD_DATA), read(bus, DEV_CMD_COMP) & 0xff), (identity, 0));
    // Other sizes: the doorbell as bytes, and a command written with everything in front of it as eight bytes.
    bus.write(Bar::Registers, DEV_CMD_CMD, &[Opcode::NOP.0]).unwrap();
    for (i, byte) in [1, 0, 0, 0].into_iter().enumerate() {
        bus.write32(Bar::Registers, DEV_CMD_DONE, 0).unwrap();
        bus.write(Bar::Registers, DEV_CMD_DOORBELL + i as u64, &[byte]).unwrap();
        assert_eq!(read(bus, DEV_CMD_DONE), 1, "the register is 1 after byte {i}");
    }
    bus.write(Bar::Registers, DEV_CMD_DOORBELL, &1u64.to_le_bytes()).unwrap();
    assert_eq!(read(bus, DEV_CMD_DONE), 1, "done cleared and doorbell rung by one write");
    let mut eight = [0; 8];
    bus.read(Bar::Registers, DEV_CMD_DOORBELL, &mut eight).unwrap();
    assert_eq!(eight, [1, 0, 0, 0, 1, 0, 0, 0]);
    // NOP succeeds.
    assert_eq!(nic.devcmd_raw(&AdminCmd::new_zeroed()).unwrap().status, Status::SUCCESS);
    nic.up().unwrap();
    works(&mut nic);
}

pub fn commands_through_the_wrong_door<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    let before = nic.bus.errors();
    for opcode in [Opcode::IDENTIFY, Opcode::PORT_INIT, Opcode::LIF_RESET, Opcode::RESET] {
        let cmd = AdminCmd { opcode, ..AdminCmd::new_zeroed() };
        assert_eq!(nic.admin_raw(&cmd).unwrap().status, Status::DEV_CMD, "{opcode}");
    }
    assert_eq!(nic.bus.errors().bad_commands, before.bad_commands + 4);
    works(&mut nic);
}

/// Reads the control block of a vector.
fn intr<T: TestBus>(nic: &mut Ionic<T>, vector: u16, reg: u64) -> u32 {
    nic.bus.read32(Bar::Registers, intr_reg(vector, reg)).unwrap()
}

fn set_intr<T: TestBus>(nic: &mut Ionic<T>, vector: u16, reg: u64, value: u32) {
    nic.bus.write32(Bar::Registers, intr_reg(vector, reg), value).unwrap();
}

/// Signals of a vector after the device did everything.
fn signals<T: TestBus>(nic: &mut Ionic<T>, vector: u16) -> u64 {
    nic.bus.settle();
    nic.bus.take_irq(vector).unwrap()
}

fn put<T: TestBus>(nic: &mut Ionic<T>, count: usize) {
    let mac = nic.mac;
    // Register writes may still be on their way, and frames would overtake them.
    nic.bus.settle();
    nic.bus.wire().lock().inbound.extend((0..count).map(|i| frames::udp(PEER, mac, &[i as u8])));
    nic.bus.settle();
}

pub fn interrupts_are_latched_while_masked<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    let v = nic.pairs[0].rx_vector;
    assert_eq!((intr(&mut nic, v, INTR_MASK), intr(&mut nic, v, INTR_MASK_ASSERT)), (0, 1));
    assert_eq!(intr(&mut nic, v, INTR_COAL_INIT), 16);
    put(&mut nic, 1);
    assert_eq!(signals(&mut nic, v), 1);
    assert_eq!(intr(&mut nic, v, INTR_MASK), 1, "masked by delivery");
    // Two more while masked: nothing, then exactly one signal on unmask.
    put(&mut nic, 2);
    assert_eq!(signals(&mut nic, v), 0);
    nic.mask(v, false).unwrap();
    assert_eq!(signals(&mut nic, v), 1);
    // Looked at everything; unmasking again has nothing to say.
    set_intr(&mut nic, v, INTR_CREDITS, 3 | IntrCredits::REARM.bits());
    assert_eq!(signals(&mut nic, v), 0);
    assert_eq!(intr(&mut nic, v, INTR_MASK), 0);
    // Without mask_assert the vector stays open.
    set_intr(&mut nic, v, INTR_MASK_ASSERT, 0);
    put(&mut nic, 1);
    put(&mut nic, 1);
    assert_eq!((signals(&mut nic, v), intr(&mut nic, v, INTR_MASK)), (2, 0));
    set_intr(&mut nic, v, INTR_MASK_ASSERT, 1);
    // Masked by the driver, and an event before it takes the queues down: silence afterwards, and it still works.
    nic.mask(v, true).unwrap();
    put(&mut nic, 1);
    assert_eq!(signals(&mut nic, v), 0);
    nic.down().unwrap();
    nic.up().unwrap();
    assert_eq!(receive(&mut nic).len(), 0);
    works(&mut nic);
}

pub fn credits_refire_only_what_was_left<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    let v = nic.pairs[0].rx_vector;
    put(&mut nic, 10);
    assert_eq!(signals(&mut nic, v), 1);
    assert_eq!(intr(&mut nic, v, INTR_CREDITS) & INTR_CRED_COUNT_SIGNED, 10);
    // Credits without UNMASK do not unmask.
    set_intr(&mut nic, v, INTR_CREDITS, 2 | IntrCredits::RESET_COALESCE.bits());
    put(&mut nic, 1);
    assert_eq!((signals(&mut nic, v), intr(&mut nic, v, INTR_MASK)), (0, 1));
    assert_eq!(intr(&mut nic, v, INTR_CREDITS) & INTR_CRED_COUNT_SIGNED, 9);
    // An event came meanwhile: unmasking delivers it, once.
    set_intr(&mut nic, v, INTR_CREDITS, 1 | IntrCredits::REARM.bits());
    assert_eq!(signals(&mut nic, v), 1);
    // No event since, but eight entries are left: "I looked at three" has to be told again.
    set_intr(&mut nic, v, INTR_CREDITS, 3 | IntrCredits::REARM.bits());
    assert_eq!(signals(&mut nic, v), 1);
    // "I looked and found nothing" must not: that would be a storm.
    set_intr(&mut nic, v, INTR_CREDITS, IntrCredits::REARM.bits());
    assert_eq!(signals(&mut nic, v), 0);
    assert_eq!(intr(&mut nic, v, INTR_CREDITS) & INTR_CRED_COUNT_SIGNED, 0);
    // More credits than there were is no debt.
    set_intr(&mut nic, v, INTR_CREDITS, 1000 | IntrCredits::REARM.bits());
    put(&mut nic, 2);
    assert_eq!(signals(&mut nic, v), 1);
    assert_eq!(intr(&mut nic, v, INTR_CREDITS) & INTR_CRED_COUNT_SIGNED, 2);
    // Vectors do not share anything.
    assert_eq!((intr(&mut nic, v + 1, INTR_CREDITS), signals(&mut nic, 0)), (0, 0));
    // The ring was not looked at in all of this, and the driver sees all 13 frames.
    set_intr(&mut nic, v, INTR_CREDITS, 1 | IntrCredits::REARM.bits());
    assert_eq!(receive(&mut nic).len(), 13);
    works(&mut nic);
}

pub fn events_wait_for_bus_mastering_and_msix<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    let v = nic.pairs[0].rx_vector;
    let mut word = [0; 2];
    nic.bus.config_read(4, &mut word).unwrap();
    let command = u16::from_le_bytes(word);
    let set = |nic: &mut Ionic<T>, at: u64, value: u16| nic.bus.config_write(at, &value.to_le_bytes()).unwrap();
    // Bus mastering off: no DMA, so the frame waits on the wire, and a doorbell is remembered.
    set(&mut nic, 4, command & !4);
    let out = frames::udp(MAC, PEER, b"later");
    nic.send(0, &out, TxOffload::None, None).unwrap();
    put(&mut nic, 1);
    assert_eq!((signals(&mut nic, v), nic.bus.wire().lock().inbound.len()), (0, 1));
    assert!(nic.bus.wire().take().is_empty());
    set(&mut nic, 4, command);
    assert_eq!(signals(&mut nic, v), 1);
    assert_eq!(nic.bus.wire().take(), [out]);
    nic.mask(v, false).unwrap();
    nic.bus.take_irq(v).unwrap();
    let control_at = u64::from(msix(&mut nic)) + 2;
    // MSI-X function mask, and disabled: memory is written, the event is latched.
    for control in [0xc000, 0x0000] {
        set_intr(&mut nic, v, INTR_CREDITS, IntrCredits::REARM.bits());
        set(&mut nic, control_at, control);
        put(&mut nic, 1);
        assert_eq!((signals(&mut nic, v), nic.bus.wire().lock().inbound.len()), (0, 0));
        let pending = {
            let mut byte = [0];
            nic.bus.read(Bar::Registers, pci::MSIX_PBA.start, &mut byte).unwrap();
            byte[0]
        };
        assert_eq!(pending, 1 << v);
        set(&mut nic, control_at, 0x8000);
        assert_eq!(signals(&mut nic, v), 1);
    }
    // No eventfd: latched until one is there.
    set_intr(&mut nic, v, INTR_CREDITS, IntrCredits::REARM.bits());
    nic.bus.set_vectors(0).unwrap();
    put(&mut nic, 1);
    nic.bus.settle();
    nic.bus.set_vectors(8).unwrap();
    assert_eq!(signals(&mut nic, v), 1);
    // The driver has looked at nothing in all of this: the next event shows it everything.
    set_intr(&mut nic, v, INTR_CREDITS, IntrCredits::REARM.bits());
    put(&mut nic, 1);
    assert_eq!(receive(&mut nic).len(), 5);
    works(&mut nic);
}

fn msix<T: TestBus>(nic: &mut Ionic<T>) -> u8 {
    let mut at = [0; 2];
    nic.bus.config_read(0x34, &mut at).unwrap();
    let mut at = at[0];
    loop {
        let mut head = [0; 2];
        nic.bus.config_read(at.into(), &mut head).unwrap();
        if head[0] == 0x11 {
            return at;
        }
        at = head[1];
    }
}

pub fn rings_wrap_and_colours_flip<T: TestBus>() {
    for (tx_entries, rx_entries) in [(64, 64), (256, 128)] {
        let mut nic = up::<T>(Config { tx_entries, rx_entries, ..Config::default() });
        let mut seed = 0;
        // Steps that do not divide the ring, for several times around it.
        for step in [1, 7, 31, 63, 50, 13].into_iter().cycle().take(30) {
            let out: Vec<_> =
                (0..step).map(|i| frames::udp(MAC, PEER, &frames::pattern(30 + i, seed + i as u64))).collect();
            for frame in &out {
                nic.post(0, frame, TxOffload::None, None).unwrap();
            }
            nic.flush(0).unwrap();
            assert_eq!(drain(&mut nic), out, "transmit, {tx_entries} entries");
            let into: Vec<_> =
                (0..step).map(|i| frames::udp(PEER, MAC, &frames::pattern(40 + i, seed + i as u64))).collect();
            let got: Vec<_> = inject(&mut nic, into.clone()).into_iter().map(|g| g.bytes).collect();
            assert_eq!(got, into, "receive, {rx_entries} entries");
            seed += 1000;
        }
        // More than the ring holds, while the driver looks away: the wire keeps what does not fit.
        let many: Vec<_> = (0..300).map(|i| frames::udp(PEER, MAC, &frames::pattern(60, i))).collect();
        let got: Vec<_> = inject(&mut nic, many.clone()).into_iter().map(|g| g.bytes).collect();
        assert_eq!(got, many);
        let stats = nic.bus.with_device(|d| *d.lif_stats());
        assert_eq!(
            (stats.rx_queue_empty.get(), stats.rx_dma_error.get()),
            (0, 0),
            "never dropped for want of a buffer"
        );
    }
}

pub fn completions_of_many_queues<T: TestBus>() {
    for split in [false, true] {
        let mut nic = up::<T>(Config { queues: 16, tx_entries: 64, rx_entries: 64, split, ..Config::default() });
        assert_eq!(nic.pairs.len(), 16);
        for round in 0..10_u64 {
            let mut all = Vec::new();
            for queue in 0..16 {
                for i in 0..3 + queue as u64 {
                    let frame = frames::udp(MAC, PEER, &frames::pattern(50, round << 16 | (queue as u64) << 8 | i));
                    nic.post(queue, &frame, TxOffload::None, None).unwrap();
                    all.push(frame);
                }
                nic.flush(queue).unwrap();
            }
            let mut sent = drain(&mut nic);
            sent.sort();
            all.sort();
            assert_eq!(sent, all);
        }
        works(&mut nic);
    }
    // A guest with more CPUs than the device has queues.
    let nic = up::<T>(Config { queues: 40, tx_entries: 64, rx_entries: 64, ..Config::default() });
    assert_eq!(nic.pairs.len(), 16);
}

pub fn disabled_queues_remember<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    // Get away from index 0 and into the second colour.
    for i in 0..100 {
        nic.send(0, &frames::udp(MAC, PEER, &[i]), TxOffload::None, None).unwrap();
        drain(&mut nic);
        assert_eq!(inject(&mut nic, [frames::udp(PEER, MAC, &[i])]).len(), 1);
    }
    nic.queue_control(QType::TXQ, 0, QOper::DISABLE).unwrap();
    nic.queue_control(QType::RXQ, 0, QOper::DISABLE).unwrap();
    let out = frames::udp(MAC, PEER, b"while disabled");
    nic.send(0, &out, TxOffload::None, None).unwrap();
    put(&mut nic, 3);
    assert!(nic.bus.wire().take().is_empty());
    assert_eq!(nic.bus.wire().lock().inbound.len(), 3, "nothing is taken while there is nowhere to put it");
    assert_eq!(signals(&mut nic, 1), 0);
    // QUIESCE is not a gate: no ENABLE of the LIF ever comes.
    let quiesce = lif_setattr(LifAttr::STATE);
    nic.admin(&quiesce).unwrap();
    nic.queue_control(QType::RXQ, 0, QOper::ENABLE).unwrap();
    nic.queue_control(QType::TXQ, 0, QOper::ENABLE).unwrap();
    assert_eq!(drain(&mut nic), [out]);
    receive(&mut nic);
    assert_eq!(nic.stats.rx_frames, 103, "indices and colours go on");
    works(&mut nic);
    // HANG_RESET is known, nonsense is not.
    nic.queue_control(QType::TXQ, 0, QOper::HANG_RESET).unwrap();
    let refused = nic.queue_control(QType::TXQ, 0, QOper(9)).unwrap_err();
    assert!(matches!(refused, DriverError::Refused { status: Status::EINVAL, .. }), "{refused}");
    works(&mut nic);
}

pub fn nothing_touches_rings_after_down<T: TestBus>() {
    let mut nic = up::<T>(Config { queues: 2, tx_entries: 64, rx_entries: 64, ..Config::default() });
    works(&mut nic);
    let pairs = nic.down().unwrap();
    let all = |f: &mut dyn FnMut(&ionic_driver::DmaBuf)| {
        for pair in &pairs {
            for buf in
                [&pair.tx.desc, &pair.tx.comp, &pair.tx.sg, &pair.rx.desc, &pair.rx.comp, &pair.rx.sg, &pair.rx.bufs]
            {
                f(buf);
            }
        }
    };
    all(&mut |buf| buf.fill(0xa5));
    // Doorbells that were on their way, and frames.
    for pair in &pairs {
        nic.ring(pair.tx.hw, 40).unwrap();
        nic.ring(pair.rx.hw, 40).unwrap();
    }
    put(&mut nic, 5);
    nic.bus.pass(Duration::from_secs(1));
    all(&mut |buf| buf.with_bytes(0, buf.len(), |bytes| assert!(bytes.iter().all(|b| *b == 0xa5))));
    assert_eq!([signals(&mut nic, 1), signals(&mut nic, 2)], [0, 0]);
    drop(pairs);
    nic.up().unwrap();
    assert_eq!(receive(&mut nic).len(), 5, "the wire kept them");
    works(&mut nic);
}

pub fn link_changes_are_told<T: TestBus>() {
    let mut nic = up::<T>(Config { queues: 2, tx_entries: 64, rx_entries: 64, ..Config::default() });
    for flap in 1..=3_u16 {
        nic.bus.with_device(|d| d.set_link(false));
        let down = nic.poll_until(LONG, &mut |_| {}, &mut |nic| !nic.carrier).unwrap();
        assert!(down && !nic.running(), "the driver heard of it");
        let info = nic.lif_info();
        assert_eq!((info.status.link_status.get(), info.status.link_down_count.get()), (2, flap));
        assert_eq!(nic.port_info().status.status, PortOperStatus::DOWN);
        put(&mut nic, 2);
        assert_eq!(nic.bus.wire().lock().inbound.len(), 2, "the cable is out");
        nic.bus.with_device(|d| d.set_link(true));
        let up = nic.poll_until(LONG, &mut |_| {}, &mut |nic| nic.carrier).unwrap();
        assert!(up && nic.running());
        let info = nic.lif_info();
        assert_eq!((info.status.link_status.get(), info.status.link_speed.get()), (1, 100_000));
        assert_eq!(info.status.eid.get(), 2 * u64::from(flap));
        // No Q_INIT in between: the rings go on where they were.
        receive(&mut nic);
        assert_eq!(nic.stats.rx_frames, 3 * u64::from(flap) - 1);
        works(&mut nic);
    }
    assert_eq!(nic.stats.link_events, 6);
    // A cable that is out when the driver comes: no carrier, until the watchdog or an event says so.
    let mut bus = nic.into_bus();
    bus.with_device(|d| d.set_link(false));
    let mut nic = Ionic::attach(bus, Config::default()).unwrap();
    nic.up().unwrap();
    assert!(!nic.carrier && !nic.running());
    nic.bus.with_device(|d| d.set_link(true));
    assert!(nic.poll_until(LONG, &mut |_| {}, &mut |nic| nic.carrier).unwrap());
    works(&mut nic);
    nic.watchdog().unwrap();
    works(&mut nic);
}

pub fn notify_queue_wraps<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    for i in 0..150_u64 {
        nic.bus.with_device(move |d| d.set_link(i % 2 != 0));
        let heard =
            nic.poll_until(LONG, &mut |_| {}, &mut |nic| nic.stats.link_events > i && nic.carrier == (i % 2 != 0));
        assert!(heard.unwrap(), "event {i} of a ring of 64");
    }
    works(&mut nic);
}

pub fn statistics_move<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    let multicast = [0x01, 0, 0x5e, 0, 0, 1];
    let sizes = |frames: &[Vec<u8>]| frames.iter().map(|f| f.len() as u64).sum::<u64>();
    let out: Vec<Vec<u8>> = (0..3).map(|i| frames::udp(MAC, PEER, &vec![0; 10 * i])).collect();
    let out_m = vec![frames::udp(MAC, multicast, &[0; 100]); 2];
    let out_b = vec![frames::udp(MAC, [0xff; 6], &[0; 77])];
    for frame in out.iter().chain(&out_m).chain(&out_b) {
        nic.send(0, frame, TxOffload::None, None).unwrap();
    }
    drain(&mut nic);
    let into: Vec<Vec<u8>> = (0..5).map(|i| frames::udp(PEER, MAC, &vec![0; 20 * i])).collect();
    let into_m = vec![frames::udp(PEER, multicast, &[0; 33]); 4];
    let into_b = vec![frames::udp(PEER, [0xff; 6], &[0; 44]); 2];
    let other = vec![frames::udp(PEER, [2, 9, 9, 9, 9, 9], &[0; 44])];
    let n = inject(&mut nic, [into.clone(), into_m.clone(), into_b.clone(), other].concat()).len();
    assert_eq!(n, 11);
    nic.bus.pass(Duration::from_millis(200));
    let s = nic.lif_stats();
    assert_eq!([s.tx_ucast_packets, s.tx_mcast_packets, s.tx_bcast_packets].map(U64::get), [3, 2, 1]);
    assert_eq!(
        [s.tx_ucast_bytes, s.tx_mcast_bytes, s.tx_bcast_bytes].map(U64::get),
        [sizes(&out), sizes(&out_m), sizes(&out_b)]
    );
    assert_eq!([s.rx_ucast_packets, s.rx_mcast_packets, s.rx_bcast_packets].map(U64::get), [5, 4, 2]);
    assert_eq!(
        [s.rx_ucast_bytes, s.rx_mcast_bytes, s.rx_bcast_bytes].map(U64::get),
        [sizes(&into), sizes(&into_m), sizes(&into_b)]
    );
    // What filters refuse is no loss of this interface.
    let errors = [
        s.rx_ucast_drop_packets,
        s.rx_queue_empty,
        s.rx_queue_disabled,
        s.rx_dma_error,
        s.tx_dma_error,
        s.tx_desc_data_error,
    ];
    assert_eq!(errors.map(U64::get), [0; 6]);
    let port = nic.port_info().stats;
    assert_eq!((port.frames_tx_ok.get(), port.frames_rx_ok.get(), port.frames_rx_dropped.get()), (6, 11, 1));
    assert_eq!(port.octets_tx_ok.get(), sizes(&out) + sizes(&out_m) + sizes(&out_b));
    // A super-frame counts as what leaves: segments, each with its header.
    let tcp = frames::Tcp::plain(false);
    let payload = frames::pattern(2500, 1);
    let mut frame = tcp.frame(MAC, PEER, &payload);
    frames::preload(&mut frame, true);
    let hdr_len = tcp.header_len() as u16;
    nic.send(0, &frame, TxOffload::Tso { hdr_len, mss: 1000 }, None).unwrap();
    drain(&mut nic);
    nic.bus.pass(Duration::from_millis(200));
    let t = nic.lif_stats();
    assert_eq!(t.tx_ucast_packets.get(), 6);
    assert_eq!(t.tx_ucast_bytes.get() - s.tx_ucast_bytes.get(), 2500 + 3 * u64::from(hdr_len));
    // They start again with the LIF.
    nic.remove().unwrap();
    nic.probe().unwrap();
    nic.up().unwrap();
    nic.bus.pass(Duration::from_millis(200));
    assert_eq!(nic.lif_stats().tx_ucast_packets.get(), 0);
    works(&mut nic);
}

pub fn ring_sizes_and_channels<T: TestBus>() {
    let mut nic = up::<T>(Config::default());
    for (queues, tx, rx, split) in
        [(1, 64, 64, false), (4, 8192, 4096, false), (2, 128, 16384, true), (8, 64, 1024, true), (3, 1024, 1024, false)]
    {
        nic.config = Config { queues, tx_entries: tx, rx_entries: rx, split, ..nic.config.clone() };
        nic.reconfigure().unwrap();
        assert_eq!(nic.pairs.len(), usize::from(queues));
        works(&mut nic);
        let many: Vec<_> = (0..500).map(|i| frames::udp(PEER, MAC, &frames::pattern(60, i))).collect();
        assert_eq!(inject(&mut nic, many).len(), 500);
    }
    for _ in 0..20 {
        nic.down().unwrap();
        nic.up().unwrap();
        works(&mut nic);
    }
    assert_eq!(nic.bus.errors(), ernic_emu::device::GuestErrors::default());
}

pub fn many_admin_commands<T: TestBus>() {
    let mut nic = up::<T>(Config { tx_entries: 64, rx_entries: 64, ..Config::default() });
    // 15 times around the ring, and every id unique.
    for i in 0..120_u16 {
        let [a, b] = i.to_be_bytes();
        assert!(nic.add_filter(Filter::Mac([2, 7, 7, 7, a, b])).unwrap().is_some());
    }
    for i in 0..120_u16 {
        let [a, b] = i.to_be_bytes();
        nic.remove_filter(Filter::Mac([2, 7, 7, 7, a, b])).unwrap();
    }
    nic.set_name(b"enp0s3").unwrap();
    let cmd = LifGetattrCmd { opcode: Opcode::LIF_GETATTR, attr: LifAttr::NAME, ..LifGetattrCmd::default() };
    assert_eq!(&nic.admin(&cmd).unwrap().view::<LifGetattrComp>().value[..7], b"enp0s3\0");
    let cmd = LifGetattrCmd { attr: LifAttr::MTU, ..cmd };
    assert_eq!(&nic.admin(&cmd).unwrap().view::<LifGetattrComp>().value[..4], &1500_u32.to_le_bytes());
    // A queue that is initialised again starts from nothing (TX timeout does this under traffic).
    let pair = &nic.pairs[0];
    let again = QInitCmd {
        ring_base: pair.tx.desc.iova().into(),
        cq_ring_base: pair.tx.comp.iova().into(),
        sg_ring_base: pair.tx.sg.iova().into(),
        ver: 1,
        ..q_init(QType::TXQ, 0, pair.tx_vector, QInitFlags::IRQ | QInitFlags::SG, 64)
    };
    nic.admin(&again).unwrap();
    nic.reconfigure().unwrap();
    works(&mut nic);
}
