//! What both lanes share: a device on either bus with a wire that tests hold both ends of, and the suites.
#![allow(
    dead_code,
    unused_imports,
    clippy::crate_in_macro_def,
    missing_docs,
    missing_debug_implementations,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    unreachable_pub
)]

pub mod chaos;
pub mod frames;
pub mod hostile;
pub mod offloads;
pub mod queues;
pub mod resets;
pub mod services;
pub mod socket_bus;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use ernic_emu::{
    device::{Device, DeviceConfig, GuestErrors},
    link::{Link, LinkPoll, Offload, RxSink, Sums, TxFrame},
    offload,
};
use ionic_driver::{Bus, Config, GuestRam, InProcess, Ionic, RxFrame};

pub use self::socket_bus::SocketBus;

/// The NIC's address in tests.
pub const MAC: [u8; 6] = [0x02, 0, 0, 0xaa, 0xbb, 0x01];
/// Somebody on the wire.
pub const PEER: [u8; 6] = [0x02, 0, 0, 0xcc, 0xdd, 0x02];
/// Bounds a hang; nothing depends on it.
pub const LONG: Duration = Duration::from_secs(20);
/// Guest memory, and where it is: above 4 GiB, so that a truncated address shows.
pub const RAM: usize = 192 << 20;
pub const IOVA: u64 = 0x12_3400_0000;

/// A frame that the device put on the wire.
#[derive(Debug, Clone)]
pub struct Sent {
    /// As gathered, tag inserted.
    pub bytes: Vec<u8>,
    pub offload: Offload,
    /// As it would leave: segments with checksums.
    pub wire: Vec<Vec<u8>>,
}

/// Both directions of the wire, and what else the device told the link.
#[derive(Debug, Default)]
pub struct Wire {
    pub sent: Vec<Sent>,
    pub inbound: VecDeque<Vec<u8>>,
    pub mtus: Vec<u32>,
    pub resets: u64,
    pub delivered: u64,
    /// Deliver even without room: what a link must not do.
    pub rude: bool,
    /// Room that the device last offered.
    pub room: usize,
    scratch: Vec<u8>,
}

/// A link whose ends tests hold.
#[derive(Debug, Clone, Default)]
pub struct TestLink(Arc<Mutex<Wire>>);

impl TestLink {
    pub fn lock(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap()
    }

    /// Everything that left the device, frame by frame.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().sent).into_iter().flat_map(|s| s.wire).collect()
    }
}

impl Link for TestLink {
    fn transmit(&mut self, frame: &mut TxFrame<'_>) {
        let mut wire = self.lock();
        let bytes = frame.bytes.to_vec();
        let offload = frame.offload;
        let mut scratch = std::mem::take(&mut wire.scratch);
        let mut parts = Vec::new();
        offload::materialize(frame, &mut scratch, &mut |part| parts.push(part.to_vec()));
        wire.scratch = scratch;
        wire.sent.push(Sent { bytes, offload, wire: parts });
    }

    fn poll(&mut self, _: Duration, rx: &mut dyn RxSink) -> LinkPoll {
        let mut wire = self.lock();
        wire.room = rx.room();
        for _ in 0..64 {
            if rx.room() == 0 && !wire.rude {
                break;
            }
            let Some(frame) = wire.inbound.pop_front() else { break };
            rx.deliver(frame.len(), Sums::Unknown, &mut |to| to.copy_from_slice(&frame));
            wire.delivered += 1;
        }
        LinkPoll { more: !wire.inbound.is_empty() && (rx.room() > 0 || wire.rude) }
    }

    fn set_mtu(&mut self, mtu: u32) {
        self.lock().mtus.push(mtu);
    }

    fn reset(&mut self) {
        self.lock().resets += 1;
    }
}

/// A bus with the device and the wire within reach.
pub trait TestBus: Bus + Sized + 'static {
    /// Whether register writes take effect at once, and time is the test's own.
    const EXACT: bool;

    /// A device after power-on, with a test link.
    fn make(config: DeviceConfig) -> Self {
        let link = TestLink::default();
        Self::make_with(config, link.clone(), move || link)
    }

    /// A device after power-on, with a link that is made in the device's thread.
    fn make_with<L: Link + 'static>(
        config: DeviceConfig,
        wire: TestLink,
        link: impl FnOnce() -> L + Send + 'static,
    ) -> Self {
        Self::make_for(config, RAM, wire, |_| link())
    }

    /// As [`TestBus::make_with`], with `ram` bytes of guest memory, and a link that knows the device.
    fn make_for<L: Link + 'static>(
        config: DeviceConfig,
        ram: usize,
        wire: TestLink,
        link: impl FnOnce(&Device) -> L + Send + 'static,
    ) -> Self;

    fn wire(&self) -> TestLink;

    /// Looks at the device between two of its turns.
    fn with_device<R: Send + 'static>(&mut self, f: impl FnOnce(&mut Device) -> R + Send + 'static) -> R;

    /// Lets the device do everything that waits.
    fn settle(&mut self);

    /// Lets time pass for the device, which does what is due.
    fn pass(&mut self, time: Duration);

    fn unmap_ram(&mut self);

    fn map_ram(&mut self);

    fn errors(&mut self) -> GuestErrors {
        self.settle();
        self.with_device(|d| d.guest_errors())
    }
}

/// Any link.
pub struct AnyLink(Box<dyn Link>);

impl Link for AnyLink {
    fn transmit(&mut self, frame: &mut TxFrame<'_>) {
        self.0.transmit(frame);
    }
    fn poll(&mut self, now: Duration, rx: &mut dyn RxSink) -> LinkPoll {
        self.0.poll(now, rx)
    }
    fn set_mtu(&mut self, mtu: u32) {
        self.0.set_mtu(mtu);
    }
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// The device in this thread.
pub struct Direct {
    pub inner: InProcess<AnyLink>,
    wire: TestLink,
}

impl Bus for Direct {
    fn read(&mut self, bar: ionic_driver::Bar, offset: u64, data: &mut [u8]) -> Result<(), ionic_driver::BusError> {
        self.inner.read(bar, offset, data)
    }
    fn write(&mut self, bar: ionic_driver::Bar, offset: u64, data: &[u8]) -> Result<(), ionic_driver::BusError> {
        self.inner.write(bar, offset, data)
    }
    fn config_read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), ionic_driver::BusError> {
        self.inner.config_read(offset, data)
    }
    fn config_write(&mut self, offset: u64, data: &[u8]) -> Result<(), ionic_driver::BusError> {
        self.inner.config_write(offset, data)
    }
    fn reset(&mut self) -> Result<(), ionic_driver::BusError> {
        self.inner.reset()
    }
    fn ram(&self) -> &GuestRam {
        self.inner.ram()
    }
    fn set_vectors(&mut self, count: u16) -> Result<(), ionic_driver::BusError> {
        self.inner.set_vectors(count)
    }
    fn take_irq(&mut self, vector: u16) -> Result<u64, ionic_driver::BusError> {
        self.inner.take_irq(vector)
    }
    fn take_irqs(&mut self, count: u16, f: &mut dyn FnMut(u16, u64)) -> Result<(), ionic_driver::BusError> {
        self.inner.take_irqs(count, f)
    }
    fn wait(&mut self, limit: Duration) -> Result<bool, ionic_driver::BusError> {
        self.inner.wait(limit)
    }
    fn now(&self) -> Duration {
        self.inner.now()
    }
}

impl TestBus for Direct {
    const EXACT: bool = true;

    fn make_for<L: Link + 'static>(
        config: DeviceConfig,
        ram: usize,
        wire: TestLink,
        link: impl FnOnce(&Device) -> L + Send + 'static,
    ) -> Self {
        let ram = GuestRam::new(ram, IOVA).unwrap();
        let mut inner = InProcess::new(config, AnyLink(Box::new(TestLink::default())), ram).unwrap();
        inner.link = AnyLink(Box::new(link(&inner.device)));
        Self { inner, wire }
    }

    fn wire(&self) -> TestLink {
        self.wire.clone()
    }

    fn with_device<R: Send + 'static>(&mut self, f: impl FnOnce(&mut Device) -> R + Send + 'static) -> R {
        f(&mut self.inner.device)
    }

    fn settle(&mut self) {
        self.inner.settle();
    }

    fn pass(&mut self, time: Duration) {
        self.inner.skip(time);
        self.inner.settle();
    }

    fn unmap_ram(&mut self) {
        self.inner.unmap_ram();
    }

    fn map_ram(&mut self) {
        self.inner.map_ram().unwrap();
    }
}

pub fn device_config() -> DeviceConfig {
    DeviceConfig { mac: MAC, device_id: 0x1002, max_mtu: 9000 }
}

/// A driver whose interface is up.
pub fn up<T: TestBus>(config: Config) -> Ionic<T> {
    let mut nic = Ionic::attach(T::make(device_config()), config).unwrap();
    nic.up().unwrap();
    assert!(nic.running(), "carrier is up at once");
    nic
}

/// A received frame, copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    pub queue: usize,
    pub bytes: Vec<u8>,
    pub vlan: Option<u16>,
    pub csum: Option<u16>,
    pub hash: u32,
    pub pkt_type: u8,
    pub sg: u8,
}

impl Got {
    fn new(frame: &RxFrame<'_>) -> Self {
        Self {
            queue: frame.queue,
            bytes: frame.bytes.to_vec(),
            vlan: frame.vlan(),
            csum: frame.csum(),
            hash: frame.comp.rss_hash.get(),
            pkt_type: frame.comp.pkt_type().0,
            sg: frame.comp.num_sg_elems,
        }
    }
}

/// Puts frames on the wire, waits until the device has taken them all, and returns what the driver got.
pub fn inject<T: TestBus>(nic: &mut Ionic<T>, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Got> {
    // Register writes may still be on their way, and frames would overtake them.
    nic.bus.settle();
    nic.bus.wire().lock().inbound.extend(frames);
    receive(nic)
}

/// Waits until the device has taken everything from the wire, and returns what the driver got.
pub fn receive<T: TestBus>(nic: &mut Ionic<T>) -> Vec<Got> {
    let mut got = Vec::new();
    let wire = nic.bus.wire();
    loop {
        nic.bus.settle();
        let before = got.len();
        while nic.poll(&mut |frame| got.push(Got::new(frame))).unwrap() {
            nic.bus.settle();
        }
        if got.len() == before && (wire.lock().inbound.is_empty() || wire.lock().room == 0) {
            // Interrupts are on their way while the device is settled: nothing may be left.
            nic.poll_until(Duration::ZERO, &mut |frame| got.push(Got::new(frame)), &mut |_| false).unwrap();
            return got;
        }
    }
}

/// Waits until everything that was posted is completed, and returns what is on the wire.
pub fn drain<T: TestBus>(nic: &mut Ionic<T>) -> Vec<Vec<u8>> {
    let done = nic.poll_until(LONG, &mut |_| {}, &mut |nic| nic.pairs.iter().all(|p| p.tx.in_flight() == 0));
    assert!(done.unwrap(), "frames were not completed");
    nic.bus.wire().take()
}

/// The device still works: one frame each way.
pub fn works<T: TestBus>(nic: &mut Ionic<T>) {
    let wire = nic.bus.wire();
    wire.lock().sent.clear();
    let out = frames::udp(MAC, PEER, b"still there?");
    nic.send(0, &out, ionic_driver::TxOffload::None, None).unwrap();
    assert_eq!(drain(nic), [out]);
    let back = frames::udp(PEER, nic.mac, b"yes");
    let got = inject(nic, [back.clone()]);
    assert_eq!(got.iter().map(|g| &g.bytes).collect::<Vec<_>>(), [&back]);
}

/// All tests of a lane; both lanes have the same.
#[macro_export]
macro_rules! lane {
    ($bus:ty) => {
        $crate::lane! { @ $bus;
            queues: probe_reads_what_the_driver_needs, devcmd_register_rules, commands_through_the_wrong_door,
                interrupts_are_latched_while_masked, credits_refire_only_what_was_left, events_wait_for_bus_mastering_and_msix,
                rings_wrap_and_colours_flip, completions_of_many_queues, disabled_queues_remember, nothing_touches_rings_after_down,
                link_changes_are_told, notify_queue_wraps, statistics_move, ring_sizes_and_channels, many_admin_commands;
            offloads: frames_are_gathered, checksums_are_completed, tso_segments_are_right, tso_chains_may_come_in_two_doorbells,
                received_frames_are_scattered, tags_are_stripped_where_negotiated, filters_and_modes, vlan_filters,
                rss_spreads_by_toeplitz, checksum_complete_is_right, mtu_changes;
            hostile: bad_transmit_descriptors, bad_receive_descriptors, rings_outside_memory, doorbells_for_nothing,
                unknown_commands, bad_queue_commands, odd_register_accesses, bad_tso_chains, oversize_frames_from_the_wire,
                information_blocks_outside_memory, memory_unmapped_under_traffic, rude_links;
            resets: reset_by_the_vm, reset_by_flr, unbind_and_bind, case_22_reset_at_every_access, reset_command_forgets_everything;
            services: arp_ping_and_dhcp, case_22_a_new_guest_takes_an_old_port, http_both_ways_with_every_offload, http_on_a_vlan, mtu_change_under_a_download;
        }
    };
    (@ $bus:ty; $($module:ident: $($name:ident),*;)*) => {
        $(mod $module { $(
            #[test]
            fn $name() {
                crate::common::$module::$name::<$bus>();
            }
        )* })*
    };
}
