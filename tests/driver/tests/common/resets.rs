//! Resets at every point, and that a new driver finds a device as after power-on.

use std::time::Duration;

use ionic_abi::*;
use ionic_driver::{Bar, Bus, BusError, Config, GuestRam, Ionic, TxOffload};

use super::{LONG, MAC, PEER, TestBus, device_config, frames, receive, up, works};

/// What a driver does in one life: as much as there is, with traffic both ways.
fn live<B: Bus>(nic: &mut Ionic<B>, inject: &mut dyn FnMut(Vec<u8>)) -> Result<(), ionic_driver::DriverError> {
    nic.probe()?;
    nic.up()?;
    for i in 0..4 {
        nic.send(usize::from(i) % nic.pairs.len(), &frames::udp(MAC, PEER, &[i; 200]), TxOffload::None, None)?;
        inject(frames::udp(PEER, MAC, &[i; 300]));
    }
    let tcp = frames::Tcp::plain(false);
    let mut frame = tcp.frame(MAC, PEER, &frames::pattern(4000, 1));
    frames::preload(&mut frame, true);
    nic.send(0, &frame, TxOffload::Tso { hdr_len: tcp.header_len() as u16, mss: 1000 }, None)?;
    nic.poll_until(Duration::from_millis(20), &mut |_| {}, &mut |nic| {
        nic.stats.tx_completed >= 8 && nic.stats.rx_frames >= 4
    })?;
    nic.set_mtu(9000)?;
    nic.down()?;
    nic.remove()
}

fn config() -> Config {
    Config { queues: 2, tx_entries: 64, rx_entries: 64, ..Config::default() }
}

pub fn reset_by_the_vm<T: TestBus>() {
    let mut nic = up::<T>(config());
    for round in 1..=10 {
        works(&mut nic);
        let pairs = &nic.pairs;
        let watched: Vec<_> = pairs.iter().map(|p| (p.rx.comp.iova(), p.rx.comp.len())).collect();
        // Traffic is under way; the guest reboots: DEVICE_RESET, twice.
        let mac = nic.mac;
        nic.bus.wire().lock().inbound.extend((0..50).map(|i| frames::udp(PEER, mac, &[i])));
        nic.post(0, &frames::udp(MAC, PEER, b"x"), TxOffload::None, None).unwrap();
        nic.flush(0).unwrap();
        nic.bus.reset().unwrap();
        nic.bus.set_vectors(0).unwrap();
        nic.bus.reset().unwrap();
        nic.bus.settle();
        assert!(nic.bus.wire().lock().resets > 0);
        // From now on nothing is written to what was the guest's memory.
        let ram = nic.bus.ram().clone();
        let image: Vec<Vec<u8>> = watched
            .iter()
            .map(|(at, len)| {
                let mut bytes = vec![0; *len];
                assert!(ram.read(*at, &mut bytes));
                bytes
            })
            .collect();
        nic.bus.wire().lock().inbound.push_back(frames::udp(PEER, mac, b"late"));
        let tx = nic.pairs[0].tx.hw;
        nic.ring(tx, 5).unwrap();
        nic.bus.pass(Duration::from_secs(1));
        for ((at, len), image) in watched.iter().zip(&image) {
            let mut bytes = vec![0; *len];
            assert!(ram.read(*at, &mut bytes));
            assert_eq!(&bytes, image, "round {round}");
        }
        let mut word = [0; 2];
        nic.bus.config_read(4, &mut word).unwrap();
        assert_eq!(u16::from_le_bytes(word) & 4, 0, "bus mastering is off");
        nic.bus.wire().lock().inbound.clear();
        nic.bus.wire().take();
        // The next kernel.
        nic = Ionic::attach(nic.into_bus(), config()).unwrap();
        nic.up().unwrap();
        assert!(receive(&mut nic).is_empty());
    }
    works(&mut nic);
}

pub fn reset_by_flr<T: TestBus>() {
    let mut nic = up::<T>(config());
    for _ in 0..15 {
        works(&mut nic);
        let mac = nic.mac;
        nic.bus.wire().lock().inbound.extend((0..20).map(|i| frames::udp(PEER, mac, &[i])));
        let before = nic.bus.wire().lock().resets;
        nic.flr().unwrap();
        nic.bus.settle();
        assert!(nic.bus.wire().lock().resets > before);
        assert!(nic.running());
        receive(&mut nic);
    }
    works(&mut nic);
}

pub fn unbind_and_bind<T: TestBus>() {
    let mut nic = up::<T>(config());
    for _ in 0..20 {
        works(&mut nic);
        nic.remove().unwrap();
        // LIF_RESET and PORT_RESET of what is not there are no error.
        for cmd in [
            LifResetCmd { opcode: Opcode::LIF_RESET, ..LifResetCmd::default() }.into_cmd(),
            PortResetCmd { opcode: Opcode::PORT_RESET, ..PortResetCmd::default() }.into_cmd(),
        ] {
            assert_eq!(nic.devcmd_raw(&cmd).unwrap().status, Status::SUCCESS);
        }
        nic.probe().unwrap();
        nic.up().unwrap();
    }
    works(&mut nic);
    assert_eq!(nic.bus.errors(), ernic_emu::device::GuestErrors::default());
}

/// A bus that resets the device in front of one of its accesses.
struct ResetAt<T> {
    inner: T,
    left: usize,
    seen: usize,
}

impl<T: Bus> ResetAt<T> {
    fn count(&mut self) -> Result<(), BusError> {
        self.seen += 1;
        if self.left > 0 {
            self.left -= 1;
            if self.left == 0 {
                self.inner.reset()?;
            }
        }
        Ok(())
    }
}

impl<T: Bus> Bus for ResetAt<T> {
    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.count()?;
        self.inner.read(bar, offset, data)
    }
    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.count()?;
        self.inner.write(bar, offset, data)
    }
    fn config_read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.inner.config_read(offset, data)
    }
    fn config_write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.count()?;
        self.inner.config_write(offset, data)
    }
    fn reset(&mut self) -> Result<(), BusError> {
        self.inner.reset()
    }
    fn ram(&self) -> &GuestRam {
        self.inner.ram()
    }
    fn set_vectors(&mut self, count: u16) -> Result<(), BusError> {
        self.count()?;
        self.inner.set_vectors(count)
    }
    fn take_irq(&mut self, vector: u16) -> Result<u64, BusError> {
        self.inner.take_irq(vector)
    }
    fn take_irqs(&mut self, count: u16, f: &mut dyn FnMut(u16, u64)) -> Result<(), BusError> {
        self.inner.take_irqs(count, f)
    }
    fn wait(&mut self, limit: Duration) -> Result<bool, BusError> {
        self.count()?;
        self.inner.wait(limit)
    }
    fn now(&self) -> Duration {
        self.inner.now()
    }
}

/// A guest that is reset at any access of its driver's life, and starts again: nothing of the old life answers, the new one works at once.
pub fn case_22_reset_at_every_access<T: TestBus>() {
    // How many accesses a life has. Identities are read word by word, so not each of them is worth a life of its own.
    let bus = T::make(device_config());
    let wire = bus.wire();
    let mut nic = Ionic::new(ResetAt { inner: bus, left: 0, seen: 0 }, config()).unwrap();
    live(&mut nic, &mut |f| wire.lock().inbound.push_back(f)).unwrap();
    let accesses = nic.bus.seen;
    assert!(accesses > 5000, "{accesses}");
    let mut bus = nic.into_bus().inner;
    let lives = if T::EXACT { 400 } else { 60 };
    let mut ended = 0;
    for life in 0..lives {
        // An odd step, so that over all lives every kind of access is hit.
        let left = 1 + life * (accesses / lives) + life % 7;
        wire.lock().inbound.clear();
        // After a reset most waits are for nothing: the time of one says how long a life takes.
        let timeout = if T::EXACT { Duration::from_millis(50) } else { Duration::from_millis(20) };
        let mut nic = Ionic::new(ResetAt { inner: bus, left, seen: 0 }, Config { timeout, ..config() }).unwrap();
        // It may fail in any way that is an error of the driver's; the device must not.
        ended += usize::from(live(&mut nic, &mut |f| wire.lock().inbound.push_back(f)).is_err());
        bus = nic.into_bus().inner;
        bus.reset().unwrap();
        bus.settle();
        wire.lock().inbound.clear();
        let mut next = Ionic::attach(bus, config()).unwrap();
        next.up().unwrap();
        assert!(receive(&mut next).is_empty(), "life {life}: a frame of the last one");
        works(&mut next);
        bus = next.into_bus();
    }
    assert!(ended > lives / 2, "{ended} of {lives} lives noticed");
}

pub fn reset_command_forgets_everything<T: TestBus>() {
    let mut nic = up::<T>(config());
    works(&mut nic);
    nic.devcmd(&DevResetCmd { opcode: Opcode::RESET, ..DevResetCmd::default() }).unwrap();
    // No queue answers any more, all vectors are masked, nothing is written.
    let (tx, rx) = (nic.pairs[0].tx.hw, nic.pairs[0].rx.hw);
    let before = nic.bus.errors();
    nic.ring(tx, 1).unwrap();
    nic.ring(rx, 1).unwrap();
    let mac = nic.mac;
    nic.bus.wire().lock().inbound.push_back(frames::udp(PEER, mac, b"x"));
    nic.bus.pass(Duration::from_secs(1));
    assert_eq!(nic.bus.errors().doorbells, before.doorbells + 2);
    assert_eq!(nic.bus.wire().lock().inbound.len(), 1);
    for vector in 0..3 {
        assert_eq!(nic.bus.read32(Bar::Registers, intr_reg(vector, INTR_MASK)).unwrap(), 1);
        assert_eq!(nic.bus.take_irq(vector).unwrap(), 0);
    }
    // The firmware-restart path: no INIT, no Q_IDENTIFY, the same identity.
    let dev = nic.dev;
    nic.config.timeout = LONG;
    nic.probe().unwrap();
    assert_eq!(nic.dev, dev);
    nic.up().unwrap();
    assert_eq!(receive(&mut nic).len(), 1);
    works(&mut nic);
}
