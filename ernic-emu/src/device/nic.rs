//! The state that a reset forgets: LIF, port, queues, filters.

use std::time::Duration;

use ionic_abi::{
    EthFeatures, LifInfo, PktType, PortConfig, PortInfo, PortOperStatus, QType, RxMode, SPEED_100G, U64, XcvrPid,
    XcvrState,
};
use zerocopy::{FromZeros, IntoBytes};

use super::{
    DeviceConfig, MAX_QUEUES,
    filter::Filters,
    ring::{CompRing, Ring},
    rx::{Delivery, RxMeta, RxQueue},
    stats::{RxDrop, Stats},
    tx::TxQueue,
};
use crate::{
    intr::Interrupts,
    link::{Link, RxSink, Sums},
    mem::GuestMemory,
    offload::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, PROTO_TCP, PROTO_UDP},
    rss::Rss,
};

/// How often the statistics block in guest memory follows the counters.
pub(super) const STATS_INTERVAL: Duration = Duration::from_millis(100);

/// Descriptors that one poll takes from the transmit queues together: a turn stays in the tens of microseconds.
const TX_BUDGET: usize = 256;

/// Received bytes after which a queue's interrupt does not wait for the end of the turn: in a long one the guest works while we
/// do. Above any small answer, which is to cost one interrupt.
const EARLY_EVENT: usize = 32 << 10;

/// The admin queue.
#[derive(Debug)]
pub(super) struct AdminQueue {
    pub(super) ring: Ring,
    pub(super) comp: CompRing,
    pub(super) intr: u16,
    pub(super) enabled: bool,
}

/// The notify queue: entries of 64 bytes behind its unused descriptor ring.
#[derive(Debug)]
pub(super) struct NotifyQueue {
    pub(super) base: u64,
    pub(super) log2: u8,
    pub(super) intr: u16,
    pub(super) enabled: bool,
    pub(super) eid: u64,
}

/// The LIF.
#[derive(Debug)]
pub(super) struct Lif {
    /// Where its information block is, once it was initialised.
    pub(super) info_pa: Option<u64>,
    pub(super) features: EthFeatures,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    pub(super) name: [u8; 16],
    pub(super) rx_mode: RxMode,
    pub(super) filters: Filters,
    pub(super) rss: Rss,
}

/// Everything between one reset and the next.
#[derive(Debug)]
pub(super) struct Nic {
    pub(super) lif: Lif,
    pub(super) port_pa: Option<u64>,
    pub(super) port: PortConfig,
    pub(super) adminq: Option<AdminQueue>,
    pub(super) notifyq: Option<NotifyQueue>,
    pub(super) tx: [Option<TxQueue>; MAX_QUEUES],
    pub(super) rx: [Option<RxQueue>; MAX_QUEUES],
    /// Receive queues that frames can be sent to and that are enabled.
    rx_active: Vec<usize>,
    /// Where the transmit round begins, so that no queue starves another.
    tx_next: usize,
    pub(super) stats: Stats,
    stats_written: Duration,
}

/// What the NIC needs of the rest of the device while it works.
pub(super) struct Env<'a> {
    pub(super) mem: &'a GuestMemory,
    pub(super) intr: &'a mut Interrupts,
    pub(super) scratch: &'a mut Vec<u8>,
    /// Vectors to raise at the end of the turn, one bit each.
    pub(super) events: &'a mut u64,
    /// Bytes received since a vector was last raised before the end of the turn.
    pub(super) received: usize,
}

impl Env<'_> {
    fn completed(&mut self, vector: u16, count: u32) {
        if count > 0 {
            self.intr.completions(vector, count);
            *self.events |= 1u64.checked_shl(vector.into()).unwrap_or(0);
        }
    }

    /// A frame of `len` bytes was completed on a receive queue of this vector.
    fn received(&mut self, vector: u16, len: usize) {
        self.completed(vector, 1);
        self.received += len;
        if self.received >= EARLY_EVENT {
            self.received = 0;
            *self.events &= !1u64.checked_shl(vector.into()).unwrap_or(0);
            self.intr.event(vector);
        }
    }
}

impl Nic {
    pub(super) fn new(config: &DeviceConfig) -> Self {
        Self {
            lif: Lif {
                info_pa: None,
                features: EthFeatures::empty(),
                mac: config.mac,
                mtu: super::DEFAULT_MTU,
                name: [0; 16],
                rx_mode: RxMode::empty(),
                filters: Filters::default(),
                rss: Rss::default(),
            },
            port_pa: None,
            port: port_config(config),
            adminq: None,
            notifyq: None,
            tx: [const { None }; MAX_QUEUES],
            rx: [const { None }; MAX_QUEUES],
            rx_active: Vec::new(),
            tx_next: 0,
            stats: Stats::default(),
            stats_written: Duration::ZERO,
        }
    }

    /// The queues of the LIF are gone, and everything that was set on it.
    pub(super) fn reset_lif(&mut self, config: &DeviceConfig, intr: &mut Interrupts) {
        for vector in self.vectors() {
            intr.silence(vector);
        }
        let fresh = Self::new(config);
        *self = Self { port_pa: self.port_pa, port: self.port, stats: self.stats, ..fresh };
        // The information block is gone: the next one starts from its counters.
        self.stats.lif = ionic_abi::LifStats::default();
        self.stats.dirty = false;
    }

    fn vectors(&self) -> Vec<u16> {
        let tx = self.tx.iter().flatten().map(|q| q.intr);
        let rx = self.rx.iter().flatten().map(|q| q.intr);
        tx.chain(rx).chain(self.adminq.iter().map(|q| q.intr)).chain(self.notifyq.iter().map(|q| q.intr)).collect()
    }

    /// A doorbell of the kernel's page. `false` if there is no such queue or index.
    pub(super) fn doorbell(&mut self, qtype: QType, qid: u32, ring: u8, index: u16) -> bool {
        let Ok(qid) = usize::try_from(qid) else { return false };
        if ring != 0 {
            return false;
        }
        match qtype {
            QType::ADMINQ if qid == 0 => self.adminq.as_mut().is_some_and(|q| q.ring.set_producer(index)),
            QType::RXQ => self.rx.get_mut(qid).and_then(Option::as_mut).is_some_and(|q| q.doorbell(index)),
            QType::TXQ => self.tx.get_mut(qid).and_then(Option::as_mut).is_some_and(|q| q.doorbell(index)),
            _ => false,
        }
    }

    /// Recomputes where frames can go, after RSS or a queue changed.
    pub(super) fn refresh_rx_active(&mut self) {
        let mut active: Vec<usize> = self.lif.rss.queues().map(usize::from).collect();
        active.sort_unstable();
        active.dedup();
        active.retain(|&i| self.rx.get(i).is_some_and(|q| q.as_ref().is_some_and(|q| q.enabled)));
        self.rx_active = active;
    }

    /// Sends what waits, up to a budget; whether more waits.
    pub(super) fn transmit(&mut self, env: &mut Env<'_>, max_frame: usize, link: &mut dyn Link) -> bool {
        let mut budget = TX_BUDGET;
        let mut more = false;
        for step in 0..MAX_QUEUES {
            let at = (self.tx_next + step) % MAX_QUEUES;
            let Some(queue) = self.tx[at].as_mut().filter(|q| q.has_work()) else { continue };
            let completed = queue.process(env.mem, &mut self.stats, max_frame, link, &mut budget);
            let (vector, left) = (queue.intr, queue.has_work());
            env.completed(vector, completed);
            if left {
                more = true;
                self.tx_next = at;
                break;
            }
        }
        more
    }

    pub(super) fn info(&self, config: &DeviceConfig, up: bool, flaps: u16) -> LifInfo {
        let mut info = LifInfo::new_zeroed();
        info.config = super::command::lif_config(config, &self.lif);
        info.status.link_status = link_status(up);
        info.status.link_speed = if up { SPEED_100G } else { 0 }.into();
        info.status.link_down_count = flaps.into();
        info.status.eid = self.notifyq.as_ref().map_or(0, |q| q.eid).into();
        info.stats = self.stats.lif;
        info
    }

    /// Writes the LIF's information block.
    pub(super) fn write_info(&mut self, mem: &GuestMemory, config: &DeviceConfig, up: bool, flaps: u16) -> bool {
        let Some(at) = self.lif.info_pa else { return true };
        let written = mem.write(at, self.info(config, up, flaps).as_bytes());
        if let Err(error) = written {
            self.stats.info_unwritable("LIF information", error);
            self.lif.info_pa = None;
        }
        written.is_ok()
    }

    /// Writes the port's information block up to its extra statistics, which the driver marked invalid.
    pub(super) fn write_port_info(&mut self, mem: &GuestMemory, up: bool, flaps: u16) -> bool {
        let Some(at) = self.port_pa else { return true };
        let mut info = PortInfo::new_zeroed();
        info.config = self.port;
        info.status.speed = SPEED_100G.into();
        info.status.status = if up { PortOperStatus::UP } else { PortOperStatus::DOWN };
        info.status.link_down_count = flaps.into();
        info.status.xcvr.state = XcvrState::INSERTED;
        info.status.xcvr.phy = ionic_abi::PhyType::COPPER;
        info.status.xcvr.pid = XcvrPid::QSFP_100G_CR4.0.into();
        // Identifier of a QSFP28 module (SFF-8024 table 4-1).
        info.status.xcvr.sprom[0] = 0x11;
        info.stats = self.stats.port;
        let end = core::mem::offset_of!(PortInfo, extra_stats);
        let written = mem.write(at, &info.as_bytes()[..end]);
        if let Err(error) = written {
            self.stats.info_unwritable("port information", error);
            self.port_pa = None;
        }
        written.is_ok()
    }

    /// Lets the statistics in guest memory follow, at most every [`STATS_INTERVAL`]. When the next one is due.
    pub(super) fn refresh_stats(&mut self, mem: &GuestMemory, now: Duration) -> Option<Duration> {
        if !self.stats.dirty {
            return None;
        }
        let due = self.stats_written + STATS_INTERVAL;
        if now < due {
            return Some(due);
        }
        self.stats.dirty = false;
        self.stats_written = now;
        if let Some(at) = self.lif.info_pa {
            let at = at.wrapping_add(core::mem::offset_of!(LifInfo, stats) as u64);
            if let Err(error) = mem.write(at, self.stats.lif.as_bytes()) {
                self.stats.info_unwritable("LIF statistics", error);
                self.lif.info_pa = None;
            }
        }
        if let Some(at) = self.port_pa {
            let at = at.wrapping_add(core::mem::offset_of!(PortInfo, stats) as u64);
            if let Err(error) = mem.write(at, self.stats.port.as_bytes()) {
                self.stats.info_unwritable("port statistics", error);
                self.port_pa = None;
            }
        }
        None
    }

    /// Tells the driver that the link changed: the blocks first, then the event.
    pub(super) fn notify_link(&mut self, env: &mut Env<'_>, config: &DeviceConfig, up: bool, flaps: u16) {
        let Some(queue) = self.notifyq.as_mut().filter(|q| q.enabled) else {
            self.write_info(env.mem, config, up, flaps);
            self.write_port_info(env.mem, up, flaps);
            return;
        };
        queue.eid += 1;
        let (eid, vector) = (queue.eid, queue.intr);
        let entries = 1u64 << queue.log2;
        let at = queue.base.wrapping_add(entries_offset(queue.log2)).wrapping_add((eid - 1) % entries * 64);
        self.write_info(env.mem, config, up, flaps);
        self.write_port_info(env.mem, up, flaps);
        let event = ionic_abi::LinkChangeEvent {
            eid: U64::ZERO,
            ecode: ionic_abi::EventCode::LINK_CHANGE.0.into(),
            link_status: link_status(up),
            link_speed: if up { SPEED_100G } else { 0 }.into(),
            rsvd: [0; 48],
        };
        // The event number comes last: it is what makes the entry new.
        let posted = env
            .mem
            .write(at.wrapping_add(8), &event.as_bytes()[8..])
            .and_then(|()| env.mem.write_completion(at, &eid.to_le_bytes()));
        if let Err(error) = posted {
            crate::warn_limited!(%error, "notify queue is not in guest memory");
            self.stats.guest.info_dma += 1;
            return;
        }
        env.completed(vector, 1);
    }
}

/// Offset of the notify queue's entries behind its descriptor ring of 4-byte entries, page-aligned
/// (`ionic_lif.c: ionic_qcq_alloc`).
fn entries_offset(log2: u8) -> u64 {
    (4u64 << log2).next_multiple_of(4096)
}

fn link_status(up: bool) -> ionic_abi::U16 {
    u16::from(if up { PortOperStatus::UP } else { PortOperStatus::DOWN }.0).into()
}

/// The port's configuration before the driver changes it.
pub(super) fn port_config(config: &DeviceConfig) -> PortConfig {
    let mut port = PortConfig::new_zeroed();
    port.speed = SPEED_100G.into();
    port.mtu = config.max_frame().into();
    port.state = ionic_abi::PortAdminState::UP;
    port
}

/// The guest's receive rings, lent to the link.
pub(super) struct RxPort<'a, 'e> {
    pub(super) nic: &'a mut Nic,
    pub(super) env: Env<'e>,
    /// Bus mastering is on and the LIF is there.
    pub(super) open: bool,
}

impl RxSink for RxPort<'_, '_> {
    fn room(&self) -> usize {
        if !self.open {
            return 0;
        }
        // The hash picks the queue once the frame is known, so the fullest queue speaks for all.
        let posted = |&i: &usize| self.nic.rx.get(i)?.as_ref().map(|q| usize::from(q.posted()));
        self.nic.rx_active.iter().filter_map(posted).min().unwrap_or(0)
    }

    fn deliver(&mut self, len: usize, sums: Sums, fill: &mut dyn FnMut(&mut [u8])) {
        if self.env.scratch.len() < len {
            self.env.scratch.resize(len, 0);
        }
        let mut scratch = std::mem::take(self.env.scratch);
        if let Some(frame) = scratch.get_mut(..len) {
            fill(frame);
            self.receive(frame, sums);
        }
        *self.env.scratch = scratch;
    }
}

impl RxPort<'_, '_> {
    fn receive(&mut self, mut frame: &mut [u8], sums: Sums) {
        let nic = &mut *self.nic;
        let features = nic.lif.features;
        let wanted = nic.lif.filters.accept(frame, nic.lif.rx_mode, features.contains(EthFeatures::VLAN_RX_FILTER));
        if !wanted {
            return nic.stats.rx_drop(frame, RxDrop::Filtered);
        }
        let Some(mut layers) = offload::layers(frame) else { return nic.stats.rx_drop(frame, RxDrop::Filtered) };
        let mut meta = RxMeta::default();
        if features.contains(EthFeatures::VLAN_RX_STRIP)
            && layers.l3 >= 18
            && let [_, _, _, _, _, _, _, _, _, _, _, _, t0, t1, hi, lo, ..] = *frame
            && [t0, t1] == ETHERTYPE_VLAN.to_be_bytes()
        {
            meta.tci = Some(u16::from_be_bytes([hi, lo]));
            frame.copy_within(0..12, 4);
            frame = &mut frame[4..];
            layers.l3 -= 4;
            layers.l4 = layers.l4.map(|(proto, at)| (proto, at - 4));
        }
        let (queue, hash) = nic.lif.rss.select(frame, &layers);
        if features.contains(EthFeatures::RX_HASH) {
            meta.hash = hash;
        }
        meta.pkt_type = packet_type(&layers).0;
        if features.contains(EthFeatures::RX_CSUM)
            && let Some(behind) = frame.get(14..)
        {
            let known = (sums == Sums::Right).then(|| offload::sum_of_right_tcp(frame, &layers)).flatten();
            meta.csum = Some(known.unwrap_or_else(|| offload::fold(offload::sum_le(behind))));
        }
        let Some(rx) = nic.rx.get_mut(usize::from(queue)).and_then(Option::as_mut).filter(|q| self.open && q.enabled)
        else {
            return nic.stats.rx_drop(frame, RxDrop::Disabled);
        };
        let delivery = rx.deliver(self.env.mem, frame, meta);
        let (vector, lost) = (rx.intr, !rx.enabled);
        match delivery {
            Delivery::Done => nic.stats.rx_frame(frame, meta.tci.is_some()),
            Delivery::Empty => return nic.stats.rx_drop(frame, RxDrop::Empty),
            Delivery::TooLong => nic.stats.rx_drop(frame, RxDrop::TooLong),
            Delivery::Dma => nic.stats.rx_drop(frame, RxDrop::Dma),
        }
        if lost {
            nic.stats.lif.rx_desc_fetch_error += 1;
            nic.refresh_rx_active();
        } else {
            self.env.received(vector, frame.len());
        }
    }
}

fn packet_type(layers: &offload::Layers) -> PktType {
    let proto = layers.l4.filter(|_| !layers.fragment).map(|(proto, _)| proto);
    match (layers.ethertype, proto) {
        (ETHERTYPE_IPV4, Some(PROTO_TCP)) => PktType::IPV4_TCP,
        (ETHERTYPE_IPV4, Some(PROTO_UDP)) => PktType::IPV4_UDP,
        (ETHERTYPE_IPV4, _) => PktType::IPV4,
        (ETHERTYPE_IPV6, Some(PROTO_TCP)) => PktType::IPV6_TCP,
        (ETHERTYPE_IPV6, Some(PROTO_UDP)) => PktType::IPV6_UDP,
        (ETHERTYPE_IPV6, _) => PktType::IPV6,
        _ => PktType::NON_IP,
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::{
        intr::{BLOCK_SIZE, VECTORS},
        vfio::IrqTable,
    };

    #[test]
    fn a_long_turn_interrupts_before_its_end_and_a_short_one_only_then() {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let mut intr = Interrupts::new(IrqTable::new(VECTORS));
        intr.irqs().install(3, fd.try_clone().unwrap()).unwrap();
        intr.set_open(true);
        // Unmask it; it does not mask itself.
        intr.write(3 * BLOCK_SIZE + 4, 0);
        let fired = || {
            let mut count = [0; 8];
            rustix::io::read(&fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        let (mem, mut scratch, mut events) = (GuestMemory::new(), Vec::new(), 0);
        let mut env = Env { mem: &mem, intr: &mut intr, scratch: &mut scratch, events: &mut events, received: 0 };
        env.received(3, EARLY_EVENT - 1);
        assert_eq!((fired(), *env.events), (0, 1 << 3), "it waits for the end of the turn");
        env.received(3, 1);
        assert_eq!((fired(), *env.events), (1, 0), "everything so far was told");
        env.received(3, 60);
        assert_eq!((fired(), *env.events), (0, 1 << 3), "and what came since was not");
        assert_eq!(env.intr.read(3 * BLOCK_SIZE + 8), 3, "credits");
    }
}
