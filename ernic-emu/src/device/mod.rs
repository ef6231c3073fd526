//! The ionic device: registers, commands, queues.
//!
//! [`Device`] is a state machine without I/O of its own. The transport writes registers and doorbells into it
//! ([`VfioDevice`]), and one thread gives it turns ([`Device::poll`]), in which it does a bounded amount of work: admin
//! commands, transmit rings, then whatever the [`Link`] has for the receive rings, then interrupts. Device commands run
//! at once, inside the register write that asks for them.

mod command;
mod filter;
mod nic;
mod ring;
mod rx;
mod stats;
mod tx;

use std::time::Duration;

use ionic_abi::{
    AdminCmd, AdminComp, AsicType, BAR0_DEV_CMD, BAR0_DEV_INFO, BAR0_INTR_CTRL, DB_PAGE_SIZE, DEV_CMD_DONE_BIT,
    DEV_CMD_DOORBELL, DEV_INFO_SIGNATURE, DEV_INFO_VERSION, DevCmdRegs, DevInfoRegs, Doorbell, FW_STS_F_RUNNING,
    LifStats, QType, Status,
};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

pub use stats::GuestErrors;

use self::{
    command::Via,
    nic::{Env, Nic, RxPort},
};
use crate::{
    intr::Interrupts,
    link::Link,
    mem::GuestMemory,
    pci::{self, ConfigSpace, MSIX_PBA, MSIX_TABLE},
    rdma::{self, MemoryRegions, Objects, Rdma, Traffic},
    vfio::{IrqAction, IrqTable, RegionInfo, VfioDevice},
};

/// Receive queues, and transmit queues.
pub const MAX_QUEUES: usize = 16;
/// MTU of a device that nobody set one on.
pub const DEFAULT_MTU: u32 = 1500;
/// Smallest MTU (IPv4's, RFC 791).
pub const MIN_MTU: u16 = 68;
/// Largest MTU that may be offered: what fits a 9,216-byte frame, as on the real device.
pub const MAX_MTU: u16 = 9198;
/// What a frame has beside its MTU: Ethernet header and one VLAN tag.
const FRAME_OVERHEAD: u16 = 18;

/// Region indices of vfio (`linux/vfio.h`, `VFIO_PCI_*_REGION_INDEX`).
const REGION_BAR0: u32 = 0;
const REGION_BAR2: u32 = 2;
const REGION_CONFIG: u32 = 7;
/// Interrupt index of MSI-X (`VFIO_PCI_MSIX_IRQ_INDEX`).
const IRQ_MSIX: u32 = 2;

/// Admin commands that one turn runs; the driver's ring holds 15.
const ADMIN_BUDGET: usize = 16;

/// What the device is.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Station address: unicast, not zero.
    pub mac: [u8; 6],
    /// PCI device id: [`pci::DEVICE_ID_ETH_PF`] or [`pci::DEVICE_ID_ERNIC`].
    pub device_id: u16,
    /// Largest MTU that the driver may set, [`MIN_MTU`]`..=`[`MAX_MTU`].
    pub max_mtu: u16,
}

impl DeviceConfig {
    fn max_frame(&self) -> u32 {
        u32::from(self.max_mtu) + u32::from(FRAME_OVERHEAD)
    }
}

/// What a turn left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Poll {
    /// There is more to do at once: poll again after serving the transport.
    pub more: bool,
    /// When to poll again at the latest, on the clock given to [`Device::poll`], even if nothing happens.
    pub deadline: Option<Duration>,
}

/// What the link must hear of at the next turn.
#[derive(Debug, Default)]
struct Pending {
    reset: bool,
    mtu: Option<u32>,
}

/// The emulated NIC.
#[derive(Debug)]
pub struct Device {
    config: DeviceConfig,
    mem: GuestMemory,
    pci: ConfigSpace,
    intr: Interrupts,
    info: DevInfoRegs,
    regs: DevCmdRegs,
    /// The MSI-X table as written; delivery goes by the client's eventfds.
    msix_table: Vec<u8>,
    nic: Nic,
    rdma: Rdma,
    link_up: bool,
    link_flaps: u16,
    /// The driver has not been told of the last link change.
    link_changed: bool,
    pending: Pending,
    /// Low half of a doorbell that came in two.
    half: Option<(u64, u32)>,
    scratch: Vec<u8>,
    /// That of the last turn.
    now: Duration,
}

impl Device {
    /// A device as after power-on, with its link up. `mem` is the guest's memory, which the transport fills with maps.
    #[must_use]
    pub fn new(config: DeviceConfig, mem: GuestMemory) -> Self {
        let mut info = DevInfoRegs::new_zeroed();
        info.signature = DEV_INFO_SIGNATURE.into();
        info.version = DEV_INFO_VERSION;
        // Not NONE or ELBA: those arm a workaround in the driver that panics the guest on repeated PCI resets.
        info.asic_type = AsicType::SALINA;
        info.fw_status = FW_STS_F_RUNNING;
        let version = concat!(env!("CARGO_PKG_VERSION"), "-ernic");
        info.fw_version[..version.len()].copy_from_slice(version.as_bytes());
        let serial = format!("ERNIC{:02X}{:02X}{:02X}", config.mac[3], config.mac[4], config.mac[5]);
        info.serial_num[..serial.len()].copy_from_slice(serial.as_bytes());
        Self {
            pci: ConfigSpace::new(config.device_id),
            intr: Interrupts::new(IrqTable::new(pci::VECTORS.into())),
            info,
            regs: DevCmdRegs::new_zeroed(),
            msix_table: vec![0; usize::from(pci::VECTORS) * 16],
            nic: Nic::new(&config),
            rdma: Rdma::new(),
            link_up: true,
            link_flaps: 0,
            link_changed: false,
            pending: Pending::default(),
            half: None,
            scratch: Vec::new(),
            now: Duration::ZERO,
            config,
            mem,
        }
    }

    /// The guest's memory.
    #[must_use]
    pub fn memory(&self) -> &GuestMemory {
        &self.mem
    }

    /// What the driver sees in its statistics block.
    #[must_use]
    pub fn lif_stats(&self) -> &LifStats {
        &self.nic.stats.lif
    }

    /// What the guest did wrong.
    #[must_use]
    pub fn guest_errors(&self) -> GuestErrors {
        self.nic.stats.guest
    }

    /// Interrupts delivered on `vector` since the last reset.
    #[must_use]
    pub fn interrupts(&self, vector: u16) -> u64 {
        self.intr.raised(vector)
    }

    /// Interrupts delivered on all vectors since the last reset.
    #[must_use]
    pub fn interrupts_total(&self) -> u64 {
        (0..pci::VECTORS).map(|vector| self.intr.raised(vector)).sum()
    }

    /// Whether the cable is plugged in.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.link_up
    }

    /// The MTU that the guest set.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.nic.lif.mtu
    }

    /// The memory regions that the guest has registered; shared with whoever moves bytes in and out of them.
    #[must_use]
    pub fn regions(&self) -> &MemoryRegions {
        self.rdma.regions()
    }

    /// How many RDMA objects there are.
    #[must_use]
    pub fn rdma_objects(&self) -> Objects {
        self.rdma.objects()
    }

    /// What work requests did.
    #[must_use]
    pub fn rdma_traffic(&self) -> Traffic {
        self.rdma.traffic()
    }

    /// Whether a driver has initialised the LIF.
    #[must_use]
    pub fn attached(&self) -> bool {
        self.nic.lif.info_pa.is_some()
    }

    /// Plugs or unplugs the cable. The driver hears of it at the next turn.
    pub fn set_link(&mut self, up: bool) {
        if self.link_up != up {
            self.link_up = up;
            self.link_changed = true;
            if !up {
                self.link_flaps = self.link_flaps.wrapping_add(1);
            }
        }
    }

    /// One turn: a bounded amount of everything that waits. `now` is monotonic.
    pub fn poll(&mut self, now: Duration, link: &mut dyn Link) -> Poll {
        self.tell_link(link);
        let open = self.pci.bus_master();
        let mut events = 0;
        let mut more = false;
        let mut deadline = None;
        if open {
            more |= self.run_admin_queue(&mut events);
            self.tell_link(link);
            self.now = now;
            let (rdma_more, rdma_deadline) = self.rdma.run(&mut rdma::Env {
                mem: &self.mem,
                intr: &mut self.intr,
                events: &mut events,
                errors: &mut self.nic.stats.guest,
                now,
                mtu: self.nic.lif.mtu,
            });
            more |= rdma_more;
            deadline = rdma_deadline;
            if std::mem::take(&mut self.link_changed) {
                let (up, flaps) = (self.link_up, self.link_flaps);
                let (nic, mut env) = split(&mut self.nic, &self.mem, &mut self.intr, &mut self.scratch, &mut events);
                nic.notify_link(&mut env, &self.config, up, flaps);
            }
            let max_frame = usize::try_from(self.config.max_frame()).unwrap_or(usize::MAX);
            let (nic, mut env) = split(&mut self.nic, &self.mem, &mut self.intr, &mut self.scratch, &mut events);
            more |= nic.transmit(&mut env, max_frame, link);
        }
        let (nic, env) = split(&mut self.nic, &self.mem, &mut self.intr, &mut self.scratch, &mut events);
        more |= link.poll(now, &mut RxPort { nic, env, open: open && self.link_up }).more;
        self.raise(events);
        let stats = if open { self.nic.refresh_stats(&self.mem, now) } else { None };
        Poll { more, deadline: deadline.into_iter().chain(stats).min() }
    }

    /// Raises the vectors of a turn, one bit each.
    fn raise(&mut self, mut events: u64) {
        while events != 0 {
            let vector = events.trailing_zeros();
            events &= events - 1;
            self.intr.event(u16::try_from(vector).unwrap_or(u16::MAX));
        }
    }

    fn tell_link(&mut self, link: &mut dyn Link) {
        let pending = std::mem::take(&mut self.pending);
        if pending.reset {
            link.reset();
        }
        if let Some(mtu) = pending.mtu {
            link.set_mtu(mtu);
        }
    }

    fn run_admin_queue(&mut self, events: &mut u64) -> bool {
        for _ in 0..ADMIN_BUDGET {
            let Some(queue) = self.nic.adminq.as_mut().filter(|q| q.enabled && q.ring.available() > 0) else {
                return false;
            };
            let index = queue.ring.index();
            let at = queue.ring.descriptor(64);
            queue.ring.advance();
            let comp = match self.mem.read_plain::<AdminCmd>(at) {
                Ok(cmd) => self.execute(&cmd, Via::AdminQueue, None),
                Err(_) => {
                    self.nic.stats.guest.admin_dma += 1;
                    crate::warn_limited!(at, "admin queue is not in guest memory");
                    AdminComp::new(Status::BAD_ADDR)
                }
            };
            // The command may have replaced or removed the queue.
            let Some(queue) = self.nic.adminq.as_mut() else { return false };
            let comp = AdminComp { comp_index: index.into(), ..comp };
            if queue.comp.post(&mut self.mem.access(), zerocopy::transmute!(comp)).is_err() {
                self.nic.stats.guest.admin_dma += 1;
                queue.enabled = false;
                return false;
            }
            let vector = queue.intr;
            self.intr.completions(vector, 1);
            *events |= 1u64.checked_shl(vector.into()).unwrap_or(0);
        }
        true
    }

    /// RESET (device command): everything but identity, registers and configuration space.
    fn reset_nic(&mut self) {
        let guest = self.nic.stats.guest;
        self.nic = Nic::new(&self.config);
        self.nic.stats.guest = guest;
        self.rdma.reset(&mut self.intr);
        self.intr.reset();
        self.pending = Pending { reset: true, mtu: Some(DEFAULT_MTU) };
        self.half = None;
    }

    /// Function-level reset and DEVICE_RESET: everything.
    fn reset_function(&mut self) {
        self.reset_nic();
        self.regs = DevCmdRegs::new_zeroed();
        self.msix_table.fill(0);
        self.pci.reset();
        self.intr.set_open(false);
    }

    fn update_gate(&mut self) {
        self.intr.set_open(self.pci.bus_master() && self.pci.msix_enabled());
    }

    fn bad_access(&mut self, region: u32, offset: u64, len: usize) {
        self.nic.stats.guest.accesses += 1;
        crate::warn_limited!(region, offset, len, "access that no register has");
    }

    fn read_bar0(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let copy = |block: &[u8], start: u64, data: &mut [u8]| {
            let from = usize::try_from(offset - start).unwrap_or(usize::MAX);
            if let Some(rest) = block.get(from..) {
                let n = rest.len().min(data.len());
                data[..n].copy_from_slice(&rest[..n]);
            }
        };
        if BAR0_DEV_INFO.contains(&offset) {
            copy(self.info.as_bytes(), BAR0_DEV_INFO.start, data);
        } else if BAR0_DEV_CMD.contains(&offset) {
            copy(self.regs.as_bytes(), BAR0_DEV_CMD.start, data);
        } else if BAR0_INTR_CTRL.contains(&offset) {
            for (at, byte) in (offset - BAR0_INTR_CTRL.start..).zip(data.iter_mut()) {
                let word = self.intr.read(at & !3).to_le_bytes();
                *byte = word[usize::try_from(at & 3).unwrap_or(0)];
            }
        } else if MSIX_TABLE.contains(&offset) {
            copy(&self.msix_table, MSIX_TABLE.start, data);
        } else if MSIX_PBA.contains(&offset) {
            let mut bits = [0u8; 8];
            for vector in 0..pci::VECTORS {
                if self.intr.pending(vector) {
                    bits[usize::from(vector / 8)] |= 1 << (vector % 8);
                }
            }
            copy(&bits, MSIX_PBA.start, data);
        }
    }

    fn write_bar0(&mut self, offset: u64, data: &[u8]) {
        if BAR0_DEV_CMD.contains(&offset) {
            let from = usize::try_from(offset - BAR0_DEV_CMD.start).unwrap_or(usize::MAX);
            let regs = self.regs.as_mut_bytes();
            if let Some(rest) = regs.get_mut(from..) {
                let n = rest.len().min(data.len());
                rest[..n].copy_from_slice(&data[..n]);
            }
            // The doorbell runs the command when a write that touches it leaves it at 1; 0 is written after each one.
            let doorbell = DEV_CMD_DOORBELL..DEV_CMD_DOORBELL + 4;
            if offset < doorbell.end && self.regs.doorbell.get() == 1 {
                self.run_device_command();
            }
        } else if BAR0_INTR_CTRL.contains(&offset) {
            // Registers of 32 bits whose writes have effects: only whole ones count.
            let (words, rest) = data.as_chunks::<4>();
            if !offset.is_multiple_of(4) || !rest.is_empty() || words.is_empty() {
                return self.bad_access(REGION_BAR0, offset, data.len());
            }
            for (at, word) in (offset - BAR0_INTR_CTRL.start..).step_by(4).zip(words) {
                self.intr.write(at, u32::from_le_bytes(*word));
            }
        } else if MSIX_TABLE.contains(&offset) {
            let from = usize::try_from(offset - MSIX_TABLE.start).unwrap_or(usize::MAX);
            if let Some(rest) = self.msix_table.get_mut(from..) {
                let n = rest.len().min(data.len());
                rest[..n].copy_from_slice(&data[..n]);
            }
        }
    }

    fn run_device_command(&mut self) {
        let cmd = self.regs.cmd;
        let mut data = self.regs.data;
        let comp = self.execute(&cmd, Via::Mailbox, Some(&mut data));
        self.regs.data = data;
        self.regs.comp = comp;
        self.regs.done = DEV_CMD_DONE_BIT.into();
    }

    fn write_doorbell(&mut self, offset: u64, data: &[u8]) {
        let value = match *data {
            [_, _, _, _, _, _, _, _] if offset.is_multiple_of(8) => data.first_chunk().map(|b| u64::from_le_bytes(*b)),
            // A 32-bit guest writes two halves, the low one first.
            [a, b, c, d] if offset.is_multiple_of(8) => {
                self.half = Some((offset, u32::from_le_bytes([a, b, c, d])));
                return;
            }
            [a, b, c, d] if offset % 8 == 4 => self
                .half
                .take()
                .filter(|(at, _)| *at == offset - 4)
                .map(|(_, low)| u64::from(u32::from_le_bytes([a, b, c, d])) << 32 | u64::from(low)),
            _ => None,
        };
        let Some(value) = value else { return self.bad_access(REGION_BAR2, offset, data.len()) };
        let doorbell = Doorbell::from_value(value);
        let page = offset / DB_PAGE_SIZE;
        let qtype = u8::try_from(offset % DB_PAGE_SIZE / 8).map_or(QType(u8::MAX), QType);
        // Page 0 is the kernel's; the others belong to verbs contexts, which own no Ethernet queue.
        let known = if page == 0 && self.nic.doorbell(qtype, doorbell.qid, doorbell.ring, doorbell.p_index) {
            true
        } else {
            let mut events = 0;
            let mut env = rdma::Env {
                mem: &self.mem,
                intr: &mut self.intr,
                events: &mut events,
                errors: &mut self.nic.stats.guest,
                now: self.now,
                mtu: self.nic.lif.mtu,
            };
            let known = self.pci.bus_master()
                && u16::try_from(page).is_ok_and(|page| self.rdma.doorbell(&mut env, page, qtype.0, doorbell));
            self.raise(events);
            known
        };
        if !known {
            self.nic.stats.guest.doorbells += 1;
            crate::debug_limited!(page, ?qtype, ?doorbell, "doorbell for no queue");
        }
    }
}

/// Borrows the parts of the device that a turn works on.
fn split<'a>(
    nic: &'a mut Nic,
    mem: &'a GuestMemory,
    intr: &'a mut Interrupts,
    scratch: &'a mut Vec<u8>,
    events: &'a mut u64,
) -> (&'a mut Nic, Env<'a>) {
    (nic, Env { mem, intr, scratch, events, received: 0 })
}

impl VfioDevice for Device {
    fn region_info(&self, index: u32) -> RegionInfo {
        let size = match index {
            REGION_BAR0 => pci::BAR0_SIZE,
            REGION_BAR2 => pci::BAR2_SIZE,
            REGION_CONFIG => pci::CONFIG_SIZE as u64,
            _ => return RegionInfo::default(),
        };
        RegionInfo { size, read: true, write: true }
    }

    fn irq_count(&self, index: u32) -> u32 {
        if index == IRQ_MSIX { pci::VECTORS.into() } else { 0 }
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match index {
            REGION_BAR0 => self.read_bar0(offset, data),
            // Doorbells are write-only.
            REGION_BAR2 => data.fill(0),
            REGION_CONFIG => self.pci.read(offset, data),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match index {
            REGION_BAR0 => self.write_bar0(offset, data),
            REGION_BAR2 => self.write_doorbell(offset, data),
            REGION_CONFIG => {
                let effect = self.pci.write(offset, data);
                if effect.flr {
                    tracing::debug!("function-level reset");
                    self.reset_function();
                } else if effect.gate {
                    self.update_gate();
                }
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, action: IrqAction) -> Result<(), Errno> {
        if index != IRQ_MSIX {
            // There is no INTx or MSI to change; taking away what is not there is no error.
            return match action {
                IrqAction::DisableAll => Ok(()),
                _ => Err(Errno::INVAL),
            };
        }
        let applied = self.intr.irqs().apply(action);
        self.intr.retry();
        applied
    }

    fn reset(&mut self) {
        tracing::debug!("device reset");
        self.reset_function();
    }

    fn dma_unmapping(&mut self, _iova: u64, _size: u64) {
        // Guest memory is touched only inside a turn, and turns and messages share one thread.
    }

    fn disconnected(&mut self) {
        self.reset_function();
        self.intr.irqs().disable_all();
    }
}
