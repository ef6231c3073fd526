//! The driver: probe, interface up and down, queues, interrupts, filters, resets — in the order and with the accesses of the stock
//! Linux driver (`ionic_main.c`, `ionic_lif.c`, `ionic_txrx.c`).

use std::{collections::VecDeque, ops::Range, time::Duration};

use ionic_abi::{
    AdminCmd, AdminComp, BAR0_DEV_INFO, DEV_CMD_CMD, DEV_CMD_COMP, DEV_CMD_DATA, DEV_CMD_DONE, DEV_CMD_DONE_BIT,
    DEV_CMD_DOORBELL, DEV_IDENTITY_VERSION_2, DEV_INFO_FW_STATUS, DEV_INFO_SIGNATURE, DevIdentifyCmd, DevIdentity,
    DevInfoRegs, DevInitCmd, DevResetCmd, Doorbell, DrvIdentity, EthFeatures, EventCode, FW_STS_F_RUNNING,
    IDENTITY_VERSION_1, INTR_COAL_INIT, INTR_CRED_COUNT_SIGNED, INTR_CREDITS, INTR_MASK, INTR_MASK_ASSERT, IntrCredits,
    LifAttr, LifGetattrCmd, LifGetattrComp, LifIdentifyCmd, LifIdentity, LifInfo, LifInitCmd, LifInitComp, LifResetCmd,
    LifSetattrCmd, LifSetattrComp, LifState, LifStats, NotifyqEntry, Opcode, PortAdminState, PortAttr, PortIdentifyCmd,
    PortIdentity, PortInfo, PortInitCmd, PortOperStatus, PortResetCmd, PortSetattrCmd, QControlCmd, QIdentifyCmd,
    QIdentity, QInitCmd, QInitComp, QInitFlags, QOper, QType, RSS_HASH_KEY_SIZE, Request, RssTypes, RssValue,
    RxFilterAddCmd, RxFilterAddComp, RxFilterDelCmd, RxFilterMatch, RxMode, RxModeSetCmd, RxqComp, RxqCsumFlags,
    Status, intr_reg,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::{
    bus::{Bar, Bus},
    error::DriverError,
    ram::{DmaBuf, PAGE},
    rings::{HwQueue, RxInfo, RxRing, TxLayout, TxOffload, TxRing},
};

/// Entries of the admin queue (`IONIC_ADMINQ_LENGTH`).
const ADMINQ_LEN: u16 = 16;
/// Entries of the notify queue (`IONIC_NOTIFYQ_LENGTH`).
const NOTIFYQ_LEN: u16 = 64;
/// Bytes of an admin command, and of a notify entry.
const CMD: usize = 64;
/// Receive completions that one NAPI poll takes (`NAPI_POLL_WEIGHT`).
pub const RX_BUDGET: usize = 64;
/// Transmit completions that one NAPI poll takes beside them (`IONIC_TX_BUDGET_DEFAULT`).
const TX_BUDGET: usize = 256;
/// Ethernet header and VLAN tag beside the MTU (`ETH_HLEN + VLAN_HLEN`).
pub const FRAME_OVERHEAD: u32 = 18;
/// Configuration space: command register, its bits, capability pointer.
const PCI_COMMAND: u64 = 0x04;
const PCI_COMMAND_MEMORY: u16 = 1 << 1;
const PCI_COMMAND_MASTER: u16 = 1 << 2;
const PCI_CAPABILITIES: u64 = 0x34;
const PCI_CAP_EXPRESS: u8 = 0x10;
const PCI_CAP_MSIX: u8 = 0x11;
const MSIX_ENABLE: u16 = 1 << 15;
/// Device Control of the PCI Express capability, and its function-level reset bit.
const EXP_DEVCTL: u64 = 8;
const EXP_DEVCTL_FLR: u16 = 1 << 15;
/// What a tagged address of a TX ring's buffer space may use.
const TX_SPACE: usize = 2 << 20;

/// The key of the verification suite in Microsoft's RSS specification.
pub const RSS_KEY: [u8; RSS_HASH_KEY_SIZE] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// What the guest is like.
#[derive(Debug, Clone)]
pub struct Config {
    /// Queue pairs: the guest's CPUs.
    pub queues: u16,
    /// Entries of a transmit ring, a power of two (`ethtool -G tx`).
    pub tx_entries: u16,
    /// Entries of a receive ring, a power of two (`ethtool -G rx`).
    pub rx_entries: u16,
    /// MTU, bytes.
    pub mtu: u32,
    /// Features that the driver asks for.
    pub features: EthFeatures,
    /// Transmit queues have vectors of their own (`ethtool -L`).
    pub split: bool,
    /// Largest receive buffer piece, bytes.
    pub rx_piece: usize,
    /// How transmitted frames lie in memory.
    pub tx_layout: TxLayout,
    /// Initial coalescing timer, device units.
    pub coalesce: u32,
    /// RSS key.
    pub rss_key: [u8; RSS_HASH_KEY_SIZE],
    /// How long a command may take (`DEVCMD_TIMEOUT`).
    pub timeout: Duration,
}

impl Default for Config {
    /// What Linux 7.3 does on a machine with one CPU.
    fn default() -> Self {
        // Bits 0-5 and 7-16; tunnels are asked for and refused.
        let tunnels = EthFeatures::TSO_GRE
            | EthFeatures::TSO_GRE_CSUM
            | EthFeatures::TSO_IPXIP4
            | EthFeatures::TSO_IPXIP6
            | EthFeatures::TSO_UDP
            | EthFeatures::TSO_UDP_CSUM;
        let vlan = EthFeatures::VLAN_TX_TAG | EthFeatures::VLAN_RX_STRIP | EthFeatures::VLAN_RX_FILTER;
        let tso = EthFeatures::TSO | EthFeatures::TSO_IPV6 | EthFeatures::TSO_ECN;
        let csum = EthFeatures::RX_CSUM | EthFeatures::TX_CSUM | EthFeatures::RX_HASH | EthFeatures::TX_SG;
        Self {
            queues: 1,
            tx_entries: 1024,
            rx_entries: 1024,
            mtu: 1500,
            features: vlan | csum | tso | tunnels,
            split: false,
            rx_piece: PAGE,
            tx_layout: TxLayout::LINEAR,
            coalesce: 16,
            rss_key: RSS_KEY,
            timeout: Duration::from_secs(5),
        }
    }
}

/// A transmit and a receive queue.
#[derive(Debug)]
pub struct Pair {
    /// Transmit ring.
    pub tx: TxRing,
    /// Receive ring.
    pub rx: RxRing,
    /// Vector of the receive ring.
    pub rx_vector: u16,
    /// Vector of the transmit ring; the same unless split.
    pub tx_vector: u16,
}

/// What the driver counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriverStats {
    /// Frames received with status 0.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames completed with another status, which the driver drops.
    pub rx_dropped: u64,
    /// Frames with a checksum from the device (CHECKSUM_COMPLETE).
    pub rx_csum_complete: u64,
    /// Transmit descriptors completed.
    pub tx_completed: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Link change events.
    pub link_events: u64,
}

/// A received frame, in its buffer.
#[derive(Debug, Clone, Copy)]
pub struct RxFrame<'a> {
    /// The queue.
    pub queue: usize,
    /// From the destination address on; a stripped tag is not in it.
    pub bytes: &'a [u8],
    /// Its completion.
    pub comp: &'a RxqComp,
}

impl RxFrame<'_> {
    /// The stripped VLAN tag.
    #[must_use]
    pub fn vlan(&self) -> Option<u16> {
        stripped_tag(self.comp)
    }

    /// The device's sum over everything behind the Ethernet header.
    #[must_use]
    pub fn csum(&self) -> Option<u16> {
        device_sum(self.comp)
    }
}

pub(crate) fn stripped_tag(comp: &RxqComp) -> Option<u16> {
    comp.flags().contains(RxqCsumFlags::VLAN).then(|| comp.vlan_tci.get())
}

pub(crate) fn device_sum(comp: &RxqComp) -> Option<u16> {
    comp.flags().contains(RxqCsumFlags::CALC).then(|| comp.csum.get())
}

/// A receive filter that the device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// A station or multicast address.
    Mac([u8; 6]),
    /// A VLAN id.
    Vlan(u16),
}

/// The admin queue and the notify queue, which share vector 0.
#[derive(Debug)]
struct AdminQueues {
    desc: DmaBuf,
    comp: DmaBuf,
    hw: HwQueue,
    head: u16,
    tail: u16,
    color: bool,
    /// Descriptor ring page, then the entries.
    notify: DmaBuf,
    last_eid: u64,
    done: Option<AdminComp>,
}

/// The driver of one device.
#[derive(Debug)]
pub struct Ionic<B> {
    /// The way to the device.
    pub bus: B,
    /// What the guest is like; changes count from the next [`Ionic::up`] or [`Ionic::reconfigure`].
    pub config: Config,
    /// Device information registers, as read at probe (without the reserved part).
    pub info: DevInfoRegs,
    /// Device identity.
    pub dev: DevIdentity,
    /// LIF identity.
    pub lif: LifIdentity,
    /// Port identity.
    pub port: PortIdentity,
    /// Queue identities, by [`QType`].
    pub queue_identity: [QIdentity; 4],
    /// Features that are on.
    pub features: EthFeatures,
    /// Station address.
    pub mac: [u8; 6],
    /// Queue pairs, while the interface is up.
    pub pairs: Vec<Pair>,
    /// Counters.
    pub stats: DriverStats,
    /// The link, as the driver knows it.
    pub carrier: bool,
    /// Filters with their ids.
    filters: Vec<(Filter, u32)>,
    rx_mode: RxMode,
    port_info: DmaBuf,
    lif_info: DmaBuf,
    rss_table: DmaBuf,
    admin: Option<AdminQueues>,
    hw_index: u16,
    vectors: u16,
    /// The interface is up, carrier or not.
    open: bool,
    /// Queues are enabled.
    running: bool,
    link_changed: bool,
    scheduled: VecDeque<u16>,
    /// Vectors of the RDMA half's event queues, and those of them that were signalled.
    rdma_vectors: Range<u16>,
    rdma_signalled: VecDeque<u16>,
    caps: Capabilities,
}

#[derive(Debug, Clone, Copy, Default)]
struct Capabilities {
    express: u64,
    msix: u64,
}

impl<B: Bus> Ionic<B> {
    /// A driver that has not touched the device yet.
    ///
    /// # Errors
    /// No guest memory.
    pub fn new(bus: B, config: Config) -> Result<Self, DriverError> {
        let alloc = |bytes| bus.ram().alloc(bytes).ok_or(DriverError::NoMemory(bytes));
        let (port_info, lif_info, rss_table) =
            (alloc(size_of::<PortInfo>())?, alloc(size_of::<LifInfo>())?, alloc(PAGE)?);
        Ok(Self {
            bus,
            config,
            info: DevInfoRegs::new_zeroed(),
            dev: DevIdentity::new_zeroed(),
            lif: LifIdentity::new_zeroed(),
            port: PortIdentity::new_zeroed(),
            queue_identity: [QIdentity::new_zeroed(); 4],
            features: EthFeatures::empty(),
            mac: [0; 6],
            pairs: Vec::new(),
            stats: DriverStats::default(),
            carrier: false,
            filters: Vec::new(),
            rx_mode: RxMode::empty(),
            port_info,
            lif_info,
            rss_table,
            admin: None,
            hw_index: 0,
            vectors: 0,
            open: false,
            running: false,
            link_changed: false,
            scheduled: VecDeque::new(),
            rdma_vectors: 0..0,
            rdma_signalled: VecDeque::new(),
            caps: Capabilities::default(),
        })
    }

    /// A driver that is bound to the device ([`Ionic::probe`]).
    ///
    /// # Errors
    /// What the stock driver's probe would fail with.
    pub fn attach(bus: B, config: Config) -> Result<Self, DriverError> {
        let mut nic = Self::new(bus, config)?;
        nic.probe()?;
        Ok(nic)
    }

    /// Gives the bus back. The device is left as it is, as by a guest that crashed.
    pub fn into_bus(self) -> B {
        self.bus
    }

    // ----- configuration space

    fn config16(&mut self, offset: u64) -> Result<u16, DriverError> {
        let mut data = [0; 2];
        self.bus.config_read(offset, &mut data)?;
        Ok(u16::from_le_bytes(data))
    }

    fn set_config16(&mut self, offset: u64, value: u16) -> Result<(), DriverError> {
        Ok(self.bus.config_write(offset, &value.to_le_bytes())?)
    }

    fn find_capabilities(&mut self) -> Result<(), DriverError> {
        let mut at = u64::from(self.config16(PCI_CAPABILITIES)? & 0xfc);
        // The list lies behind the header in 256 bytes, 4 bytes at least each.
        for _ in 0..48 {
            if at == 0 {
                break;
            }
            let [id, next] = self.config16(at)?.to_le_bytes();
            match id {
                PCI_CAP_EXPRESS => self.caps.express = at,
                PCI_CAP_MSIX => self.caps.msix = at,
                _ => {}
            }
            at = u64::from(next & 0xfc);
        }
        if self.caps.msix == 0 {
            return Err(DriverError::Identity { what: "MSI-X capability", value: 0 });
        }
        Ok(())
    }

    fn set_command(&mut self, set: u16, clear: u16) -> Result<(), DriverError> {
        let command = self.config16(PCI_COMMAND)?;
        self.set_config16(PCI_COMMAND, (command | set) & !clear)
    }

    // ----- device commands

    /// Runs a device command (`ionic_dev_cmd_go`, `__ionic_dev_cmd_wait`, `ionic_dev_cmd_clean`); any status.
    ///
    /// # Errors
    /// The bus failed, or there was no answer.
    pub fn devcmd_raw(&mut self, cmd: &AdminCmd) -> Result<AdminComp, DriverError> {
        for (i, word) in cmd.as_bytes().chunks(4).enumerate() {
            self.bus.write(Bar::Registers, DEV_CMD_CMD + 4 * i as u64, word)?;
        }
        self.bus.write32(Bar::Registers, DEV_CMD_DONE, 0)?;
        self.bus.write32(Bar::Registers, DEV_CMD_DOORBELL, 1)?;
        let end = self.bus.now() + self.config.timeout;
        loop {
            self.check_firmware()?;
            if self.bus.read32(Bar::Registers, DEV_CMD_DONE)? & DEV_CMD_DONE_BIT != 0 {
                break;
            }
            if self.bus.now() >= end {
                return Err(DriverError::Timeout { what: "device command" });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let status = Status(self.bus.read8(Bar::Registers, DEV_CMD_COMP)?);
        if status == Status::EAGAIN {
            // The driver would ring again after a second without writing the command again.
            return Ok(AdminComp::new(status));
        }
        if status == Status::SUCCESS {
            self.bus.write32(Bar::Registers, DEV_CMD_DOORBELL, 0)?;
            for i in 0..CMD as u64 {
                self.bus.write(Bar::Registers, DEV_CMD_CMD + i, &[0])?;
            }
        }
        // Only now does the driver read completion and data.
        let mut comp = AdminComp::new_zeroed();
        for (i, word) in comp.as_mut_bytes().chunks_mut(4).enumerate() {
            self.bus.read(Bar::Registers, DEV_CMD_COMP + 4 * i as u64, word)?;
        }
        if comp.status != status {
            return Err(DriverError::Violation(format!("status {status} became {}", comp.status)));
        }
        Ok(comp)
    }

    /// Runs a device command that has to succeed.
    ///
    /// # Errors
    /// As [`Ionic::devcmd_raw`], and any status but success.
    pub fn devcmd(&mut self, cmd: &impl AsCmd) -> Result<AdminComp, DriverError> {
        let cmd = cmd.as_cmd();
        succeeded(cmd.opcode, self.devcmd_raw(&cmd)?)
    }

    /// `fw_status` says that the firmware runs (`ionic_is_fw_running`).
    fn check_firmware(&mut self) -> Result<(), DriverError> {
        let value = self.bus.read8(Bar::Registers, DEV_INFO_FW_STATUS)?;
        if value == 0xff || value & FW_STS_F_RUNNING == 0 {
            return Err(DriverError::Identity { what: "fw_status", value: value.into() });
        }
        Ok(())
    }

    fn write_data(&mut self, data: &[u8]) -> Result<(), DriverError> {
        for (i, word) in data.chunks(4).enumerate() {
            self.bus.write(Bar::Registers, DEV_CMD_DATA + 4 * i as u64, word)?;
        }
        Ok(())
    }

    /// Reads an identity: 478 words.
    fn read_data<T: IntoBytes + zerocopy::FromBytes>(&mut self) -> Result<T, DriverError> {
        let mut value = T::new_zeroed();
        for (i, word) in value.as_mut_bytes().chunks_mut(4).enumerate() {
            self.bus.read(Bar::Registers, DEV_CMD_DATA + 4 * i as u64, word)?;
        }
        Ok(value)
    }

    // ----- interrupts

    pub(crate) fn intr(&mut self, vector: u16, reg: u64, value: u32) -> Result<(), DriverError> {
        Ok(self.bus.write32(Bar::Registers, intr_reg(vector, reg), value)?)
    }

    /// Gives back whatever credits there are (`ionic_intr_clean`).
    pub(crate) fn intr_clean(&mut self, vector: u16) -> Result<(), DriverError> {
        let credits = self.bus.read32(Bar::Registers, intr_reg(vector, INTR_CREDITS))? & INTR_CRED_COUNT_SIGNED;
        self.intr(vector, INTR_CREDITS, credits | IntrCredits::RESET_COALESCE.bits())
    }

    /// `ionic_alloc_qcq_interrupt`.
    pub(crate) fn intr_alloc(&mut self, vector: u16) -> Result<(), DriverError> {
        self.intr_clean(vector)?;
        self.intr(vector, INTR_MASK_ASSERT, 1)
    }

    /// Masks or unmasks a vector.
    ///
    /// # Errors
    /// The bus failed.
    pub fn mask(&mut self, vector: u16, masked: bool) -> Result<(), DriverError> {
        self.intr(vector, INTR_MASK, masked.into())
    }

    /// Takes what was signalled: NAPI is scheduled for those vectors; those of the RDMA half wait for it.
    pub(crate) fn collect_interrupts(&mut self) -> Result<(), DriverError> {
        let Self { bus, stats, scheduled, rdma_vectors, rdma_signalled, vectors, .. } = self;
        Ok(bus.take_irqs(*vectors, &mut |vector, count| {
            stats.interrupts += count;
            let waiting = if rdma_vectors.contains(&vector) { &mut *rdma_signalled } else { &mut *scheduled };
            if !waiting.contains(&vector) {
                waiting.push_back(vector);
            }
        })?)
    }

    /// Gives `count` vectors behind those of the queues to the RDMA half; the first of them.
    pub(crate) fn claim_rdma_vectors(&mut self, count: u16) -> Result<u16, DriverError> {
        let first = 1 + 2 * self.queue_pairs();
        let end = first + count;
        if end > self.vectors {
            return Err(DriverError::Identity { what: "vectors left for event queues", value: self.vectors.into() });
        }
        self.rdma_vectors = first..end;
        self.rdma_signalled.clear();
        Ok(first)
    }

    /// Takes them back.
    pub(crate) fn release_rdma_vectors(&mut self) {
        self.rdma_vectors = 0..0;
        self.rdma_signalled.clear();
    }

    /// The next vector of the RDMA half that was signalled.
    pub(crate) fn next_rdma_vector(&mut self) -> Result<Option<u16>, DriverError> {
        self.collect_interrupts()?;
        Ok(self.rdma_signalled.pop_front())
    }

    // ----- admin queue

    /// Runs a command on the admin queue; any status. What comes for other queues meanwhile stays scheduled.
    ///
    /// # Errors
    /// There was no answer, no interrupt for it, or the wrong one.
    pub fn admin_raw(&mut self, cmd: &AdminCmd) -> Result<AdminComp, DriverError> {
        let down = DriverError::Violation("no admin queue".into());
        let Some(admin) = self.admin.as_mut() else { return Err(down) };
        admin.desc.store(usize::from(admin.head) * CMD, cmd);
        admin.head = (admin.head + 1) % ADMINQ_LEN;
        admin.done = None;
        let (hw, head) = (admin.hw, admin.head);
        self.ring(hw, head)?;
        let end = self.bus.now() + self.config.timeout;
        loop {
            if self.scheduled.contains(&0) {
                self.scheduled.retain(|v| *v != 0);
                self.admin_poll()?;
            }
            if let Some(comp) = self.admin.as_mut().and_then(|a| a.done.take()) {
                return Ok(comp);
            }
            let left = end.saturating_sub(self.bus.now());
            let signalled = self.bus.wait(left)?;
            self.collect_interrupts()?;
            if !signalled && left.is_zero() {
                let there = self.admin.as_ref().is_some_and(|a| a.completed().is_some());
                return Err(if there {
                    DriverError::LostInterrupt { what: "an admin command is complete", vector: 0 }
                } else {
                    DriverError::Timeout { what: "admin command" }
                });
            }
        }
    }

    /// Runs a command on the admin queue that has to succeed.
    ///
    /// # Errors
    /// As [`Ionic::admin_raw`], and any status but success.
    pub fn admin(&mut self, cmd: &impl AsCmd) -> Result<AdminComp, DriverError> {
        let cmd = cmd.as_cmd();
        succeeded(cmd.opcode, self.admin_raw(&cmd)?)
    }

    /// NAPI poll of vector 0 (`ionic_adminq_napi`).
    fn admin_poll(&mut self) -> Result<(), DriverError> {
        let mut work = 0;
        while let Some(event) = self.admin.as_mut().and_then(AdminQueues::next_event).transpose()? {
            work += 1;
            if event.ecode.get() == EventCode::LINK_CHANGE.0 {
                self.stats.link_events += 1;
                self.link_changed = true;
            }
        }
        while let Some(comp) = self.admin.as_mut().and_then(AdminQueues::next_completion).transpose()? {
            work += 1;
            if let Some(admin) = self.admin.as_mut() {
                admin.done = Some(comp);
            }
        }
        self.intr(0, INTR_CREDITS, work | IntrCredits::REARM.bits())
    }

    /// Rings a doorbell of the kernel's page.
    ///
    /// # Errors
    /// The bus failed.
    pub fn ring(&mut self, hw: HwQueue, p_index: u16) -> Result<(), DriverError> {
        self.doorbell(0, hw.type_, Doorbell { p_index, ring: 0, qid: hw.index })
    }

    /// Rings any doorbell of doorbell page `page` of the LIF: 0 is the kernel's, the others belong to processes.
    ///
    /// # Errors
    /// The bus failed.
    pub fn doorbell(&mut self, page: u16, slot: u8, doorbell: Doorbell) -> Result<(), DriverError> {
        let page = u32::from(self.hw_index) * self.dev.ndbpgs_per_lif.get() + u32::from(page);
        Ok(self.bus.write64(Bar::Doorbells, Doorbell::offset(page, slot), doorbell.value())?)
    }

    // ----- probe

    /// Binds to the device: everything up to a netdev that is down (`ionic_probe`).
    ///
    /// # Errors
    /// What the stock driver's probe would fail with.
    pub fn probe(&mut self) -> Result<(), DriverError> {
        self.forget_lif();
        self.find_capabilities()?;
        self.set_command(PCI_COMMAND_MEMORY, 0)?;
        self.setup(true)?;
        self.enable_vectors()?;
        self.lif = self.lif_identify()?;
        for (qtype, ver) in [(QType::ADMINQ, 0), (QType::NOTIFYQ, 0), (QType::RXQ, 2), (QType::TXQ, 3)] {
            let cmd = QIdentifyCmd { opcode: Opcode::Q_IDENTIFY, type_: qtype, ver, ..QIdentifyCmd::default() };
            self.devcmd(&cmd)?;
            self.queue_identity[usize::from(qtype.0)] = self.read_data()?;
        }
        let tx = &self.queue_identity[usize::from(QType::TXQ.0)];
        if tx.version < 1 || tx.sg_desc_sz.get() != 256 {
            // The driver would use 15 elements of a descriptor that has 8.
            return Err(DriverError::Identity { what: "TX SG descriptor size", value: tx.sg_desc_sz.get().into() });
        }
        self.lif_init()?;
        self.station()?;
        self.update_carrier()?;
        self.set_name(b"eth0")
    }

    /// `ionic_setup_one`: the device from RESET to its port.
    fn setup(&mut self, identify_lif: bool) -> Result<(), DriverError> {
        let end = core::mem::offset_of!(DevInfoRegs, rsvd_pad1024);
        let mut head = vec![0; end];
        self.bus.read(Bar::Registers, BAR0_DEV_INFO.start, &mut head[..4])?;
        self.bus.read(Bar::Registers, BAR0_DEV_INFO.start + 5, &mut head[5..6])?;
        self.bus.read(Bar::Registers, BAR0_DEV_INFO.start + 6, &mut head[6..7])?;
        self.bus.read(Bar::Registers, BAR0_DEV_INFO.start + 7, &mut head[7..8])?;
        for at in (8..end).step_by(4) {
            self.bus.read(Bar::Registers, BAR0_DEV_INFO.start + at as u64, &mut head[at..at + 4])?;
        }
        self.info.as_mut_bytes()[..end].copy_from_slice(&head);
        if self.info.signature.get() != DEV_INFO_SIGNATURE {
            return Err(DriverError::Identity { what: "signature", value: self.info.signature.get().into() });
        }
        self.check_firmware()?;
        // Bus mastering is still off: the device may not touch memory for this.
        self.devcmd(&DevResetCmd { opcode: Opcode::RESET, ..DevResetCmd::default() })?;
        self.set_command(PCI_COMMAND_MASTER, 0)?;

        let mut drv = DrvIdentity::new_zeroed();
        drv.os_type = 1.into();
        drv.driver_ver_str[..5].copy_from_slice(b"7.3.4");
        let end = core::mem::offset_of!(DrvIdentity, rsvd);
        self.write_data(&drv.as_bytes()[..end])?;
        let cmd = DevIdentifyCmd { opcode: Opcode::IDENTIFY, ver: DEV_IDENTITY_VERSION_2, ..DevIdentifyCmd::default() };
        self.devcmd(&cmd)?;
        self.dev = self.read_data()?;
        if self.dev.ndbpgs_per_lif.get() == 0 {
            return Err(DriverError::Identity { what: "ndbpgs_per_lif", value: 0 });
        }
        if identify_lif {
            self.lif = self.lif_identify()?;
        }
        self.devcmd(&DevInitCmd { opcode: Opcode::INIT, ..DevInitCmd::default() })?;
        self.port_identify()?;

        self.port_info.fill(0);
        // The driver marks the extra statistics invalid.
        let extra = core::mem::offset_of!(PortInfo, extra_stats);
        self.port_info.write(extra, &[0xff; 160]);
        self.write_data(self.port.config.as_bytes().to_vec().as_slice())?;
        let cmd =
            PortInitCmd { opcode: Opcode::PORT_INIT, info_pa: self.port_info.iova().into(), ..PortInitCmd::default() };
        self.devcmd(&cmd)?;
        let mut cmd =
            PortSetattrCmd { opcode: Opcode::PORT_SETATTR, attr: PortAttr::STATE, ..PortSetattrCmd::default() };
        cmd.value[0] = PortAdminState::UP.0;
        self.devcmd(&cmd)?;
        Ok(())
    }

    fn port_identify(&mut self) -> Result<(), DriverError> {
        self.devcmd(&PortIdentifyCmd {
            opcode: Opcode::PORT_IDENTIFY,
            ver: IDENTITY_VERSION_1,
            ..PortIdentifyCmd::default()
        })?;
        self.port = self.read_data()?;
        Ok(())
    }

    fn lif_identify(&mut self) -> Result<LifIdentity, DriverError> {
        self.devcmd(&LifIdentifyCmd {
            opcode: Opcode::LIF_IDENTIFY,
            ver: IDENTITY_VERSION_1,
            ..LifIdentifyCmd::default()
        })?;
        let lif: LifIdentity = self.read_data()?;
        let counts = lif.eth.config.queue_count;
        for (what, value) in [
            ("rss_ind_tbl_sz", u32::from(lif.eth.rss_ind_tbl_sz.get())),
            ("receive queues", counts[usize::from(QType::RXQ.0)].get()),
            ("transmit queues", counts[usize::from(QType::TXQ.0)].get()),
        ] {
            if value == 0 {
                return Err(DriverError::Identity { what, value: 0 });
            }
        }
        Ok(lif)
    }

    /// Queue pairs that the guest and the device both have (`ionic_lif_size`).
    #[must_use]
    pub fn queue_pairs(&self) -> u16 {
        let count = |qtype: QType| self.lif.eth.config.queue_count[usize::from(qtype.0)].get();
        let most = count(QType::RXQ).min(count(QType::TXQ));
        self.config.queues.min(u16::try_from(most).unwrap_or(u16::MAX))
    }

    /// MSI-X on, with a vector for everything that may want one.
    fn enable_vectors(&mut self) -> Result<(), DriverError> {
        let most = u16::try_from(self.dev.nintrs.get()).unwrap_or(u16::MAX);
        self.vectors = most.min(1 + 2 * self.queue_pairs().max(16));
        if self.vectors < 1 + self.queue_pairs() {
            return Err(DriverError::Identity { what: "nintrs", value: self.vectors.into() });
        }
        let control = self.config16(self.caps.msix + 2)?;
        if control & 0x7ff < self.vectors - 1 {
            return Err(DriverError::Identity { what: "MSI-X table size", value: control.into() });
        }
        self.set_config16(self.caps.msix + 2, control | MSIX_ENABLE)?;
        Ok(self.bus.set_vectors(self.vectors)?)
    }

    /// `ionic_lif_init`: LIF, admin and notify queue, features.
    fn lif_init(&mut self) -> Result<(), DriverError> {
        self.intr_alloc(0)?;
        self.lif_info.fill(0);
        let cmd =
            LifInitCmd { opcode: Opcode::LIF_INIT, info_pa: self.lif_info.iova().into(), ..LifInitCmd::default() };
        self.hw_index = self.devcmd(&cmd)?.view::<LifInitComp>().hw_index.get();

        let ram = self.bus.ram();
        let alloc = |bytes| ram.alloc(bytes).ok_or(DriverError::NoMemory(bytes));
        let mut admin = AdminQueues {
            desc: alloc(usize::from(ADMINQ_LEN) * CMD)?,
            comp: alloc(usize::from(ADMINQ_LEN) * 16)?,
            hw: HwQueue { index: 0, type_: 0 },
            head: 0,
            tail: 0,
            color: true,
            notify: alloc(PAGE + usize::from(NOTIFYQ_LEN) * CMD)?,
            last_eid: 0,
            done: None,
        };
        let flags = QInitFlags::IRQ | QInitFlags::ENA;
        let cmd = QInitCmd {
            ring_base: admin.desc.iova().into(),
            cq_ring_base: admin.comp.iova().into(),
            ..q_init(QType::ADMINQ, 0, 0, flags, ADMINQ_LEN)
        };
        let comp = self.devcmd(&cmd)?;
        let comp = comp.view::<QInitComp>();
        admin.hw = HwQueue { index: comp.hw_index.get(), type_: comp.hw_type };
        let notify = admin.notify.iova();
        self.admin = Some(admin);
        self.mask(0, false)?;
        let cmd = QInitCmd { ring_base: notify.into(), ..q_init(QType::NOTIFYQ, 0, 0, flags, NOTIFYQ_LEN) };
        self.admin(&cmd)?;
        self.set_features(self.config.features)?;
        if self.queue_pairs() > 1 {
            self.set_rss(false)?;
        }
        Ok(())
    }

    /// Asks for features; what is on afterwards is in [`Ionic::features`].
    ///
    /// # Errors
    /// The command failed, or the device turned on what nobody asked for.
    pub fn set_features(&mut self, mut wanted: EthFeatures) -> Result<(), DriverError> {
        if self.queue_pairs() <= 1 {
            wanted.remove(EthFeatures::RX_HASH);
        }
        let mut cmd = lif_setattr(LifAttr::FEATURES);
        cmd.value[..8].copy_from_slice(&wanted.bits().to_le_bytes());
        let comp = self.admin(&cmd)?;
        let on = EthFeatures::from_bits_retain(comp.view::<LifSetattrComp>().features.get());
        if !wanted.contains(on) {
            return Err(DriverError::Violation(format!("features {on:?} of {wanted:?}")));
        }
        self.features = on;
        Ok(())
    }

    /// Station address and its filter (`ionic_station_set`).
    fn station(&mut self) -> Result<(), DriverError> {
        let cmd = LifGetattrCmd { opcode: Opcode::LIF_GETATTR, attr: LifAttr::MAC, ..LifGetattrCmd::default() };
        let comp = self.admin(&cmd)?;
        let value = comp.view::<LifGetattrComp>().value;
        self.mac.copy_from_slice(&value[..6]);
        if self.mac == [0; 6] || self.mac[0] & 1 != 0 {
            return Err(DriverError::Violation(format!("station address {:02x?}", self.mac)));
        }
        self.add_filter(Filter::Mac(self.mac)).map(drop)
    }

    /// Tells the device the interface's name.
    ///
    /// # Errors
    /// The command failed.
    pub fn set_name(&mut self, name: &[u8]) -> Result<(), DriverError> {
        let mut cmd = lif_setattr(LifAttr::NAME);
        cmd.value.iter_mut().zip(name.iter().take(15)).for_each(|(to, from)| *to = *from);
        self.admin(&cmd).map(drop)
    }

    // ----- filters

    /// Adds a receive filter; its id, or `None` if the device has no room for it. One that is there already keeps its id.
    ///
    /// # Errors
    /// The command failed otherwise, or the id is not unique.
    pub fn add_filter(&mut self, filter: Filter) -> Result<Option<u32>, DriverError> {
        let mut cmd = RxFilterAddCmd { opcode: Opcode::RX_FILTER_ADD, ..RxFilterAddCmd::default() };
        match filter {
            Filter::Mac(mac) => {
                cmd.match_ = RxFilterMatch::MAC.0.into();
                cmd.value[..6].copy_from_slice(&mac);
            }
            Filter::Vlan(vid) => {
                cmd.match_ = RxFilterMatch::VLAN.0.into();
                cmd.value[..2].copy_from_slice(&vid.to_le_bytes());
            }
        }
        let comp = self.admin_raw(&cmd.into_cmd())?;
        match comp.status {
            Status::SUCCESS => {}
            Status::EEXIST => return Ok(self.filters.iter().find(|(f, _)| *f == filter).map(|(_, id)| *id)),
            Status::ENOSPC => return Ok(None),
            status => return Err(DriverError::Refused { opcode: Opcode::RX_FILTER_ADD, status }),
        }
        let id = comp.view::<RxFilterAddComp>().filter_id.get();
        if self.filters.iter().any(|(_, known)| *known == id) {
            return Err(DriverError::Violation(format!("filter id {id} twice")));
        }
        self.filters.push((filter, id));
        Ok(Some(id))
    }

    /// Removes a receive filter that was added.
    ///
    /// # Errors
    /// The command failed.
    pub fn remove_filter(&mut self, filter: Filter) -> Result<(), DriverError> {
        let Some(at) = self.filters.iter().position(|(known, _)| *known == filter) else { return Ok(()) };
        let (_, id) = self.filters.remove(at);
        let cmd = RxFilterDelCmd { opcode: Opcode::RX_FILTER_DEL, filter_id: id.into(), ..RxFilterDelCmd::default() };
        self.admin(&cmd).map(drop)
    }

    /// Sets the receive mode, if it changes.
    ///
    /// # Errors
    /// The command failed.
    pub fn set_rx_mode(&mut self, mode: RxMode) -> Result<(), DriverError> {
        if mode == self.rx_mode {
            return Ok(());
        }
        let cmd = RxModeSetCmd { opcode: Opcode::RX_MODE_SET, rx_mode: mode.bits().into(), ..RxModeSetCmd::default() };
        self.admin(&cmd)?;
        self.rx_mode = mode;
        Ok(())
    }

    /// Programs the RSS types, key and table, or switches RSS off.
    fn set_rss(&mut self, on: bool) -> Result<(), DriverError> {
        let queues = self.queue_pairs();
        let table: Vec<u8> = (0..self.lif.eth.rss_ind_tbl_sz.get()).map(|i| low_byte(i % queues)).collect();
        self.set_rss_table(if on { RssTypes::all() } else { RssTypes::empty() }, &table)
    }

    /// Programs RSS with a table of its own (`ethtool -X`).
    ///
    /// # Errors
    /// The command failed.
    pub fn set_rss_table(&mut self, types: RssTypes, table: &[u8]) -> Result<(), DriverError> {
        self.rss_table.write(0, table);
        let value = RssValue {
            types: types.bits().into(),
            key: self.config.rss_key,
            addr: self.rss_table.iova().into(),
            ..RssValue::default()
        };
        let cmd = LifSetattrCmd { value: zerocopy::transmute!(value), ..lif_setattr(LifAttr::RSS) };
        self.admin(&cmd).map(drop)
    }

    // ----- interface up and down

    /// Brings the interface up (`ionic_open`): queues start now, or when the carrier comes.
    ///
    /// # Errors
    /// A command failed.
    pub fn up(&mut self) -> Result<(), DriverError> {
        if self.open {
            return Ok(());
        }
        self.init_queues()?;
        self.open = true;
        if self.carrier {
            self.start_queues()?;
        }
        // A work item adds these afterwards; the mode does not change again.
        let [a, b, c] = [self.mac[3], self.mac[4], self.mac[5]];
        for mac in [[0x33, 0x33, 0, 0, 0, 1], [0x01, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0xff, a, b, c]] {
            self.add_filter(Filter::Mac(mac))?;
        }
        Ok(())
    }

    /// Allocates rings and vectors, and initialises the queues (`ionic_txrx_alloc`, `ionic_txrx_init`).
    fn init_queues(&mut self) -> Result<(), DriverError> {
        let Config { tx_entries, rx_entries, mtu, split, rx_piece, coalesce, .. } = self.config;
        let total = usize::try_from(mtu + FRAME_OVERHEAD).unwrap_or(usize::MAX);
        let pairs = self.queue_pairs();
        self.pairs.clear();
        for i in 0..pairs {
            let (rx_vector, number) = (1 + i, usize::from(i));
            let tx_vector = if split { 1 + pairs + i } else { rx_vector };
            for vector in [Some(rx_vector), split.then_some(tx_vector)].into_iter().flatten() {
                self.intr_alloc(vector)?;
                self.intr(vector, INTR_COAL_INIT, coalesce)?;
            }
            let tx = TxRing::new(self.bus.ram(), number, tx_entries, TX_SPACE)?;
            let rx = RxRing::new(self.bus.ram(), number, rx_entries, total, rx_piece)?;
            self.pairs.push(Pair { tx, rx, rx_vector, tx_vector });
        }
        let version = |nic: &Self, qtype: QType| nic.queue_identity[usize::from(qtype.0)].version;
        let (tx_ver, rx_ver) = (version(self, QType::TXQ), version(self, QType::RXQ));
        let flags = QInitFlags::IRQ | QInitFlags::SG;
        for i in 0..usize::from(pairs) {
            let (index, pair) = (u32::try_from(i).unwrap_or(0), &self.pairs[i]);
            let tx = QInitCmd {
                ver: tx_ver,
                ring_base: pair.tx.desc.iova().into(),
                cq_ring_base: pair.tx.comp.iova().into(),
                sg_ring_base: pair.tx.sg.iova().into(),
                ..q_init(QType::TXQ, index, pair.tx_vector, flags, tx_entries)
            };
            let rx = QInitCmd {
                ver: rx_ver,
                ring_base: pair.rx.desc.iova().into(),
                cq_ring_base: pair.rx.comp.iova().into(),
                sg_ring_base: pair.rx.sg.iova().into(),
                ..q_init(QType::RXQ, index, pair.rx_vector, flags, rx_entries)
            };
            let hw = |comp: &AdminComp| {
                let comp = comp.view::<QInitComp>();
                HwQueue { index: comp.hw_index.get(), type_: comp.hw_type }
            };
            let (tx, rx) = (self.admin(&tx)?, self.admin(&rx)?);
            self.pairs[i].tx.hw = hw(&tx);
            self.pairs[i].rx.hw = hw(&rx);
        }
        if self.features.contains(EthFeatures::RX_HASH) {
            self.set_rss(true)?;
        }
        self.set_rx_mode(RxMode::UNICAST | RxMode::MULTICAST | RxMode::BROADCAST)
    }

    /// `ionic_start_queues`: buffers first, then ENABLE.
    fn start_queues(&mut self) -> Result<(), DriverError> {
        for i in 0..self.pairs.len() {
            self.refill(i)?;
            let (rx_vector, tx_vector) = (self.pairs[i].rx_vector, self.pairs[i].tx_vector);
            self.intr_clean(rx_vector)?;
            self.queue_control(QType::RXQ, i, QOper::ENABLE)?;
            self.mask(rx_vector, false)?;
            if tx_vector != rx_vector {
                self.intr_clean(tx_vector)?;
            }
            self.queue_control(QType::TXQ, i, QOper::ENABLE)?;
            if tx_vector != rx_vector {
                self.mask(tx_vector, false)?;
            }
        }
        self.running = true;
        Ok(())
    }

    /// `ionic_stop_queues`: all transmit queues, then all receive queues, then QUIESCE.
    fn stop_queues(&mut self) -> Result<(), DriverError> {
        for i in 0..self.pairs.len() {
            if self.pairs[i].tx_vector != self.pairs[i].rx_vector {
                self.mask(self.pairs[i].tx_vector, true)?;
            }
            self.queue_control(QType::TXQ, i, QOper::DISABLE)?;
        }
        for i in 0..self.pairs.len() {
            self.mask(self.pairs[i].rx_vector, true)?;
            self.queue_control(QType::RXQ, i, QOper::DISABLE)?;
        }
        self.running = false;
        let vectors: Vec<u16> = self.pairs.iter().flat_map(|p| [p.rx_vector, p.tx_vector]).collect();
        self.scheduled.retain(|v| !vectors.contains(v));
        let mut cmd = lif_setattr(LifAttr::STATE);
        cmd.value[0] = LifState::QUIESCE.0;
        self.admin(&cmd).map(drop)
    }

    /// Enables or disables one queue.
    ///
    /// # Errors
    /// The command failed.
    pub fn queue_control(&mut self, qtype: QType, index: usize, oper: QOper) -> Result<(), DriverError> {
        let index = u32::try_from(index).unwrap_or(u32::MAX).into();
        let cmd = QControlCmd { opcode: Opcode::Q_CONTROL, type_: qtype, index, oper, ..QControlCmd::default() };
        self.admin(&cmd).map(drop)
    }

    /// Takes the interface down (`ionic_stop`). The rings, which the device may not touch any more, are given back for
    /// inspection.
    ///
    /// # Errors
    /// A command failed.
    pub fn down(&mut self) -> Result<Vec<Pair>, DriverError> {
        if !self.open {
            return Ok(Vec::new());
        }
        self.open = false;
        if self.running {
            self.stop_queues()?;
        }
        // The driver forgets the mode, so that the next time it is sent again.
        self.rx_mode = RxMode::empty();
        Ok(std::mem::take(&mut self.pairs))
    }

    /// Changes the MTU (`ionic_change_mtu`); queues that run are made anew.
    ///
    /// # Errors
    /// A command failed; an MTU that the device does not take is [`DriverError::Refused`], and nothing changed.
    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), DriverError> {
        let mut cmd = lif_setattr(LifAttr::MTU);
        cmd.value[..4].copy_from_slice(&mtu.to_le_bytes());
        self.admin(&cmd)?;
        self.config.mtu = mtu;
        if self.open { self.reconfigure() } else { Ok(()) }
    }

    /// Makes the queues anew with what [`Ionic::config`] says now: ring sizes, channels, buffers.
    ///
    /// # Errors
    /// A command failed.
    pub fn reconfigure(&mut self) -> Result<(), DriverError> {
        if self.running {
            self.stop_queues()?;
        }
        self.init_queues()?;
        if self.carrier { self.start_queues() } else { Ok(()) }
    }

    /// Unbinds (`ionic_remove`): what `rmmod` does.
    ///
    /// # Errors
    /// A command failed.
    pub fn remove(&mut self) -> Result<(), DriverError> {
        self.down()?;
        self.set_rss(false)?;
        self.mask(0, true)?;
        for _ in 0..2 {
            self.devcmd(&LifResetCmd { opcode: Opcode::LIF_RESET, ..LifResetCmd::default() })?;
        }
        self.forget_lif();
        let control = self.config16(self.caps.msix + 2)?;
        self.set_config16(self.caps.msix + 2, control & !MSIX_ENABLE)?;
        self.bus.set_vectors(0)?;
        self.vectors = 0;
        self.devcmd(&PortResetCmd { opcode: Opcode::PORT_RESET, ..PortResetCmd::default() })?;
        self.devcmd(&DevResetCmd { opcode: Opcode::RESET, ..DevResetCmd::default() })?;
        self.set_command(0, PCI_COMMAND_MASTER)
    }

    fn forget_lif(&mut self) {
        self.admin = None;
        self.filters.clear();
        self.scheduled.clear();
        self.release_rdma_vectors();
        self.rx_mode = RxMode::empty();
        self.open = false;
        self.running = false;
        self.carrier = false;
        self.link_changed = false;
        self.pairs.clear();
    }

    /// Resets the function by its PCI Express capability and starts again (`ionic_reset_prepare`, `ionic_reset_done`): INIT and
    /// PORT_INIT are repeated, Q_IDENTIFY is not; filters come back.
    ///
    /// # Errors
    /// A command failed.
    pub fn flr(&mut self) -> Result<(), DriverError> {
        let (filters, open) = (self.filters.clone(), self.open);
        self.down()?;
        self.forget_lif();
        if self.caps.express == 0 {
            return Err(DriverError::Identity { what: "PCI Express capability", value: 0 });
        }
        let control = self.config16(self.caps.express + EXP_DEVCTL)?;
        self.set_config16(self.caps.express + EXP_DEVCTL, control | EXP_DEVCTL_FLR)?;
        if self.config16(self.caps.express + EXP_DEVCTL)? & EXP_DEVCTL_FLR != 0 {
            return Err(DriverError::Violation("the function-level reset bit reads 1".into()));
        }
        self.set_command(PCI_COMMAND_MEMORY, 0)?;
        self.setup(false)?;
        self.enable_vectors()?;
        self.lif_init()?;
        self.station()?;
        self.set_name(b"eth0")?;
        for (filter, _) in filters {
            if filter != Filter::Mac(self.mac) {
                self.add_filter(filter)?;
            }
        }
        self.update_carrier()?;
        if open { self.up() } else { Ok(()) }
    }

    // ----- link

    /// `ionic_link_status_check`.
    fn update_carrier(&mut self) -> Result<(), DriverError> {
        self.link_changed = false;
        let info = self.lif_info();
        let up = info.status.link_status.get() == u16::from(PortOperStatus::UP.0);
        if up == self.carrier {
            return Ok(());
        }
        self.carrier = up;
        if up {
            if self.open && !self.running {
                self.start_queues()?;
            }
            self.port_identify()
        } else if self.running {
            self.stop_queues()
        } else {
            Ok(())
        }
    }

    /// What the watchdog does every 5 s: looks at the link without being told.
    ///
    /// # Errors
    /// A command failed.
    pub fn watchdog(&mut self) -> Result<(), DriverError> {
        self.check_firmware()?;
        self.update_carrier()
    }

    // ----- information blocks

    /// The LIF information block as it is in memory now.
    #[must_use]
    pub fn lif_info(&self) -> LifInfo {
        self.lif_info.load(0)
    }

    /// The LIF statistics as they are in memory now.
    #[must_use]
    pub fn lif_stats(&self) -> LifStats {
        self.lif_info().stats
    }

    /// The port information block as it is in memory now.
    #[must_use]
    pub fn port_info(&self) -> PortInfo {
        self.port_info.load(0)
    }

    /// Whether queues are enabled.
    #[must_use]
    pub fn running(&self) -> bool {
        self.running
    }

    // ----- traffic

    /// Posts a frame on transmit queue `queue` and rings the doorbell.
    ///
    /// # Errors
    /// The queue is full, or the bus failed.
    pub fn send(
        &mut self,
        queue: usize,
        frame: &[u8],
        offload: TxOffload,
        tci: Option<u16>,
    ) -> Result<(), DriverError> {
        self.post(queue, frame, offload, tci)?;
        self.flush(queue)
    }

    /// Posts a frame; the doorbell waits for [`Ionic::flush`].
    ///
    /// # Errors
    /// The queue is full.
    pub fn post(
        &mut self,
        queue: usize,
        frame: &[u8],
        offload: TxOffload,
        tci: Option<u16>,
    ) -> Result<(), DriverError> {
        let layout = self.config.tx_layout;
        self.pair(queue)?.tx.post(frame, layout, offload, tci)
    }

    /// Rings the doorbell of transmit queue `queue` if something was posted.
    ///
    /// # Errors
    /// The bus failed.
    pub fn flush(&mut self, queue: usize) -> Result<(), DriverError> {
        let tx = &mut self.pair(queue)?.tx;
        let hw = tx.hw;
        match tx.doorbell() {
            Some(head) => self.ring(hw, head),
            None => Ok(()),
        }
    }

    /// The queue pair.
    ///
    /// # Errors
    /// The interface is down, or there is no such queue.
    pub fn pair(&mut self, queue: usize) -> Result<&mut Pair, DriverError> {
        self.pairs.get_mut(queue).ok_or_else(|| DriverError::Violation(format!("no queue pair {queue}")))
    }

    /// Posts receive buffers where enough are free, and rings.
    pub(crate) fn refill(&mut self, queue: usize) -> Result<(), DriverError> {
        let rx = &mut self.pair(queue)?.rx;
        let hw = rx.hw;
        match rx.fill() {
            Some(head) => self.ring(hw, head),
            None => Ok(()),
        }
    }

    /// The next vector whose NAPI is scheduled, after taking new interrupts.
    pub(crate) fn next_scheduled(&mut self) -> Result<Option<u16>, DriverError> {
        self.collect_interrupts()?;
        Ok(self.scheduled.pop_front())
    }

    /// Work that waits for no interrupt: the link changed, or a poll used its budget up.
    pub(crate) fn has_scheduled(&self) -> bool {
        self.link_changed || !self.scheduled.is_empty()
    }

    /// The queue pair of a vector, and whether it is for receive and for transmit.
    pub(crate) fn owner(&self, vector: u16) -> Option<(usize, bool, bool)> {
        let at = self.pairs.iter().position(|p| p.rx_vector == vector || p.tx_vector == vector)?;
        let pair = self.pairs.get(at)?;
        Some((at, pair.rx_vector == vector, pair.tx_vector == vector))
    }

    /// The administrative half of a poll: vector 0, and the link.
    pub(crate) fn poll_admin(&mut self) -> Result<(), DriverError> {
        self.admin_poll()?;
        self.check_link()
    }

    /// Acts on a link event that came while a command was waited for.
    pub(crate) fn check_link(&mut self) -> Result<(), DriverError> {
        if self.link_changed { self.update_carrier() } else { Ok(()) }
    }

    /// Takes transmit completions of a queue.
    pub(crate) fn service_tx(&mut self, queue: usize, budget: usize) -> Result<usize, DriverError> {
        let freed = self.pair(queue)?.tx.service(budget)?;
        self.stats.tx_completed += u64::from(freed);
        Ok(usize::from(freed))
    }

    /// Takes the next received frame of a queue, dropping those with an error status; counts.
    pub(crate) fn pop_rx(&mut self, queue: usize) -> Result<Option<RxInfo>, DriverError> {
        let Some(info) = self.pair(queue)?.rx.pop()? else { return Ok(None) };
        if info.comp.status == Status::SUCCESS {
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += info.len as u64;
            self.stats.rx_csum_complete += u64::from(device_sum(&info.comp).is_some());
        } else {
            self.stats.rx_dropped += 1;
        }
        Ok(Some(info))
    }

    /// The end of a NAPI poll (`ionic_txrx_napi`): credits, and the vector's unmasking if the poll did not use its budget up.
    pub(crate) fn complete_poll(&mut self, vector: u16, rx: usize, tx: usize, done: bool) -> Result<(), DriverError> {
        if done {
            let work = u32::try_from(rx + tx).unwrap_or(0);
            return self.intr(vector, INTR_CREDITS, work | IntrCredits::REARM.bits());
        }
        self.scheduled.push_back(vector);
        if rx > 0 {
            let work = u32::try_from(rx + tx).unwrap_or(0);
            return self.intr(vector, INTR_CREDITS, work | IntrCredits::RESET_COALESCE.bits());
        }
        Ok(())
    }

    /// One NAPI poll of whatever is scheduled; `f` sees each received frame. `false` if nothing was.
    ///
    /// # Errors
    /// The device broke the rules, or the bus failed.
    pub fn poll(&mut self, f: &mut dyn FnMut(&RxFrame<'_>)) -> Result<bool, DriverError> {
        self.check_link()?;
        let Some(vector) = self.next_scheduled()? else { return Ok(false) };
        if vector == 0 {
            self.poll_admin()?;
            return Ok(true);
        }
        // A vector whose queues are gone: the interrupt was on its way.
        let Some((queue, rx, tx)) = self.owner(vector) else { return Ok(true) };
        let tx_work = if tx { self.service_tx(queue, TX_BUDGET)? } else { 0 };
        let mut rx_work = 0;
        if rx {
            while rx_work < RX_BUDGET
                && let Some(info) = self.pop_rx(queue)?
            {
                rx_work += 1;
                if info.comp.status == Status::SUCCESS {
                    self.pairs[queue].rx.bufs.with_bytes(info.offset, info.len, |bytes| {
                        f(&RxFrame { queue, bytes, comp: &info.comp });
                    });
                }
            }
            self.refill(queue)?;
        }
        // A transmit vector of its own has the transmit budget as its weight.
        let done = if rx { rx_work < RX_BUDGET } else { tx_work < TX_BUDGET };
        self.complete_poll(vector, rx_work, tx_work, done)?;
        Ok(true)
    }

    /// Polls until `done` says so, letting the device run. `false` if that did not happen within `limit`.
    ///
    /// # Errors
    /// As [`Ionic::poll`]; [`DriverError::LostInterrupt`] if at the end completions lie in a ring and no interrupt told of them.
    pub fn poll_until(
        &mut self,
        limit: Duration,
        f: &mut dyn FnMut(&RxFrame<'_>),
        done: &mut dyn FnMut(&Self) -> bool,
    ) -> Result<bool, DriverError> {
        let end = self.bus.now() + limit;
        loop {
            while self.poll(f)? {}
            if done(self) {
                return Ok(true);
            }
            let left = end.saturating_sub(self.bus.now());
            if !self.bus.wait(left)? && left.is_zero() {
                return self.check_lost().map(|()| false);
            }
        }
    }

    /// Nothing may lie in a completion ring once all interrupts were served.
    pub(crate) fn check_lost(&self) -> Result<(), DriverError> {
        for pair in self.pairs.iter().filter(|_| self.running) {
            if pair.rx.has_completion() {
                return Err(DriverError::LostInterrupt { what: "a frame is there", vector: pair.rx_vector });
            }
            if pair.tx.has_completion() {
                return Err(DriverError::LostInterrupt { what: "a frame was sent", vector: pair.tx_vector });
            }
        }
        Ok(())
    }
}

impl AdminQueues {
    /// The next completion, if it is there; the wrong one is a violation.
    fn next_completion(&mut self) -> Option<Result<AdminComp, DriverError>> {
        let comp = self.completed()?;
        if comp.comp_index.get() != self.tail || self.tail == self.head {
            let text = format!("admin completion of {} while {}..{} wait", comp.comp_index.get(), self.tail, self.head);
            return Some(Err(DriverError::Violation(text)));
        }
        self.tail = (self.tail + 1) % ADMINQ_LEN;
        if self.tail == 0 {
            self.color = !self.color;
        }
        Some(Ok(comp))
    }

    /// The completion at the tail: one per command, so the completion ring's index is the descriptor's.
    fn completed(&self) -> Option<AdminComp> {
        let at = usize::from(self.tail) * 16;
        let last = self.comp.load_acquire(at + 8);
        let [.., byte] = last.to_le_bytes();
        let words = [self.comp.load_acquire(at).to_le(), last.to_le()];
        ((byte & ionic_abi::COMP_COLOR != 0) == self.color).then(|| zerocopy::transmute!(words))
    }

    /// The next event, if its number is above the last one's (`ionic_notifyq_service`).
    fn next_event(&mut self) -> Option<Result<NotifyqEntry, DriverError>> {
        let slot = usize::try_from(self.last_eid % u64::from(NOTIFYQ_LEN)).unwrap_or(0);
        let at = PAGE + slot * CMD;
        let eid = self.notify.load_acquire(at);
        if eid <= self.last_eid {
            return None;
        }
        let event: NotifyqEntry = self.notify.load(at);
        if eid != self.last_eid + 1 {
            return Some(Err(DriverError::Violation(format!("event {eid} after {}", self.last_eid))));
        }
        self.last_eid = eid;
        Some(Ok(event))
    }
}

/// What can be sent as a command.
pub trait AsCmd {
    /// The command.
    fn as_cmd(&self) -> AdminCmd;
}

impl<T: Request + Copy> AsCmd for T {
    fn as_cmd(&self) -> AdminCmd {
        self.into_cmd()
    }
}

fn succeeded(opcode: Opcode, comp: AdminComp) -> Result<AdminComp, DriverError> {
    match comp.status {
        Status::SUCCESS => Ok(comp),
        status => Err(DriverError::Refused { opcode, status }),
    }
}

/// LIF_SETATTR of `attr` without a value.
#[must_use]
pub fn lif_setattr(attr: LifAttr) -> LifSetattrCmd {
    LifSetattrCmd { opcode: Opcode::LIF_SETATTR, attr, ..LifSetattrCmd::new_zeroed() }
}

/// Q_INIT without addresses.
#[must_use]
pub fn q_init(type_: QType, index: u32, vector: u16, flags: QInitFlags, entries: u16) -> QInitCmd {
    QInitCmd {
        opcode: Opcode::Q_INIT,
        type_,
        index: index.into(),
        intr_index: vector.into(),
        flags: flags.bits().into(),
        ring_size: u8::try_from(entries.max(1).ilog2()).unwrap_or(0),
        ..QInitCmd::default()
    }
}

fn low_byte(n: u16) -> u8 {
    n.to_le_bytes()[0]
}
