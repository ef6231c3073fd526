//! Device and admin-queue commands: one set of handlers behind both transports.
//!
//! The order in which the stock driver sends them, and the answers that it needs, were validated live against Linux
//! 7.3; see the device reference in `docs/`.

use ionic_abi::{
    AdminCmd, AdminComp, DEV_CMD_DATA_SIZE, DEV_IDENTITY_VERSION_2, DevIdentity, EthFeatures, IDENTITY_VERSION_1,
    IdentifyComp, LifAttr, LifCaps, LifConfig, LifGetattrCmd, LifGetattrComp, LifIdentifyCmd, LifIdentity, LifInitCmd,
    LifInitComp, LifResetCmd, LifSetattrCmd, LifSetattrComp, Opcode, PortAttr, PortIdentifyCmd, PortIdentity,
    PortInitCmd, PortResetCmd, PortSetattrCmd, PortType, QControlCmd, QFeatures, QIdentifyCmd, QIdentifyComp,
    QIdentity, QInitCmd, QInitComp, QInitFlags, QOper, QType, Response, RssTypes, RxFilterAddCmd, RxFilterAddComp,
    RxFilterDelCmd, RxFilterMatch, RxMode, RxModeSetCmd, SPEED_100G, Status,
};
use zerocopy::{FromZeros, IntoBytes};

use super::{
    Device, DeviceConfig, MAX_QUEUES,
    filter::{self, Match},
    nic::{AdminQueue, Lif, NotifyQueue, port_config},
    ring::{CompRing, Ring},
    rx::RxQueue,
    tx::{Rings, TxQueue},
};
use crate::{pci, rdma::Rdma, rss};

/// How a command arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Via {
    /// The mailbox in BAR0.
    Mailbox,
    /// The Ethernet admin queue.
    AdminQueue,
}

/// The data window of the mailbox.
pub(super) type Data = [u8; DEV_CMD_DATA_SIZE];

/// Filters that the identity offers, unicast and multicast each; one more and the driver turns promiscuous.
const MAX_FILTERS: u32 = 512;
/// Smallest frame (`min_frame_size`); the driver's smallest MTU is the larger of this and 68.
const MIN_FRAME: u32 = 64;
/// Features that we offer: everything but tunnels and time stamps.
const FEATURES: EthFeatures = EthFeatures::VLAN_TX_TAG
    .union(EthFeatures::VLAN_RX_STRIP)
    .union(EthFeatures::VLAN_RX_FILTER)
    .union(EthFeatures::RX_HASH)
    .union(EthFeatures::RX_CSUM)
    .union(EthFeatures::TX_SG)
    .union(EthFeatures::RX_SG)
    .union(EthFeatures::TX_CSUM)
    .union(EthFeatures::TSO)
    .union(EthFeatures::TSO_IPV6)
    .union(EthFeatures::TSO_ECN);

/// Ring sizes that the driver uses: 16 (admin) to 32,768 entries.
const RING_LOG2: std::ops::RangeInclusive<u8> = 1..=15;

/// The outcome of a command that fails.
type Outcome = Result<AdminComp, Status>;

const OK: Outcome =
    Ok(AdminComp { status: Status::SUCCESS, rsvd: 0, comp_index: ionic_abi::U16::ZERO, cmd_data: [0; 11], color: 0 });

/// The LIF configuration as the identity and the information block show it.
pub(super) fn lif_config(config: &DeviceConfig, lif: &Lif) -> LifConfig {
    let mut c = LifConfig::new_zeroed();
    c.name = lif.name;
    c.mtu = lif.mtu.into();
    c.mac = config.mac;
    c.features = FEATURES.bits().into();
    let queues = u32::try_from(MAX_QUEUES).unwrap_or(0);
    for (qtype, count) in [(QType::ADMINQ, 1), (QType::NOTIFYQ, 1), (QType::RXQ, queues), (QType::TXQ, queues)] {
        c.queue_count[usize::from(qtype.0)] = count.into();
    }
    c
}

impl Device {
    /// Runs a command; `data` is the mailbox's window, where identities go.
    pub(super) fn execute(&mut self, cmd: &AdminCmd, via: Via, data: Option<&mut Data>) -> AdminComp {
        let outcome = match (cmd.opcode, via) {
            (
                Opcode::LIF_GETATTR
                | Opcode::LIF_SETATTR
                | Opcode::RX_MODE_SET
                | Opcode::RX_FILTER_ADD
                | Opcode::RX_FILTER_DEL
                | Opcode::Q_INIT
                | Opcode::Q_CONTROL,
                _,
            ) => self.lif_command(cmd),
            (Opcode::RDMA_RESET_LIF, _) => {
                self.rdma.reset(&mut self.intr);
                OK
            }
            (Opcode::RDMA_CREATE_EQ | Opcode::RDMA_CREATE_CQ | Opcode::RDMA_CREATE_ADMINQ, Via::AdminQueue) => {
                self.rdma.create_queue(cmd.view()).and(OK)
            }
            (opcode, Via::AdminQueue) if is_device_command(opcode) => Err(Status::DEV_CMD),
            (_, Via::Mailbox) => self.device_command(cmd, data),
            _ => Err(Status::EOPCODE),
        };
        let comp = outcome.unwrap_or_else(AdminComp::new);
        tracing::trace!(opcode = %cmd.opcode, ?via, status = %comp.status, "command");
        match comp.status {
            Status::SUCCESS => {}
            Status::EOPCODE => self.nic.stats.guest.unknown_commands += 1,
            // What real firmware answers to a probing driver, not misbehaviour.
            Status::ENOSUPP | Status::EEXIST | Status::ENOSPC => {}
            _ => self.nic.stats.guest.bad_commands += 1,
        }
        if comp.status != Status::SUCCESS && comp.status != Status::EEXIST {
            crate::warn_limited!(opcode = %cmd.opcode, ?via, status = %comp.status, "command refused");
        }
        comp
    }

    fn device_command(&mut self, cmd: &AdminCmd, data: Option<&mut Data>) -> Outcome {
        match cmd.opcode {
            Opcode::NOP | Opcode::INIT => OK,
            Opcode::RESET => {
                self.reset_nic();
                OK
            }
            Opcode::IDENTIFY => {
                answer(data, self.dev_identity().as_bytes());
                identified(DEV_IDENTITY_VERSION_2)
            }
            Opcode::PORT_IDENTIFY if cmd.view::<PortIdentifyCmd>().index == 0 => {
                answer(data, self.port_identity().as_bytes());
                identified(IDENTITY_VERSION_1)
            }
            Opcode::PORT_INIT if cmd.view::<PortInitCmd>().index == 0 => {
                self.nic.port_pa = Some(cmd.view::<PortInitCmd>().info_pa.get());
                let (up, flaps) = (self.link_up, self.link_flaps);
                if self.pci.bus_master() && self.nic.write_port_info(&self.mem, up, flaps) {
                    OK
                } else {
                    self.nic.port_pa = None;
                    Err(Status::BAD_ADDR)
                }
            }
            Opcode::PORT_RESET if cmd.view::<PortResetCmd>().index == 0 => {
                self.nic.port_pa = None;
                self.nic.port = port_config(&self.config);
                OK
            }
            Opcode::PORT_SETATTR if cmd.view::<PortSetattrCmd>().index == 0 => self.port_setattr(cmd.view()),
            Opcode::PORT_IDENTIFY | Opcode::PORT_INIT | Opcode::PORT_RESET | Opcode::PORT_SETATTR => {
                Err(Status::EINVAL)
            }
            Opcode::LIF_IDENTIFY => {
                if cmd.view::<LifIdentifyCmd>().type_ != 0 {
                    return Err(Status::EINVAL);
                }
                answer(data, self.lif_identity().as_bytes());
                identified(IDENTITY_VERSION_1)
            }
            Opcode::LIF_INIT => self.lif_init(cmd.view()),
            Opcode::LIF_RESET => {
                if cmd.view::<LifResetCmd>().index.get() != 0 {
                    return Err(Status::EINVAL);
                }
                self.rdma.reset(&mut self.intr);
                self.nic.reset_lif(&self.config, &mut self.intr);
                self.pending.reset = true;
                OK
            }
            Opcode::Q_IDENTIFY => {
                let identity = q_identity(cmd.view::<QIdentifyCmd>().type_).ok_or(Status::EQTYPE)?;
                answer(data, identity.as_bytes());
                Ok(QIdentifyComp { ver: identity.version, ..QIdentifyComp::default() }.into_comp())
            }
            opcode if is_known(opcode) => Err(Status::ENOSUPP),
            _ => Err(Status::EOPCODE),
        }
    }

    fn dev_identity(&self) -> DevIdentity {
        let mut id = DevIdentity::new_zeroed();
        id.version = DEV_IDENTITY_VERSION_2;
        id.nports = 1;
        id.nlifs = 1.into();
        id.nintrs = u32::from(pci::VECTORS).into();
        id.ndbpgs_per_lif = pci::DOORBELL_PAGES.into();
        // One device unit is 4 µs: the driver's default of 64 µs becomes 16 of at most 63 units.
        id.intr_coal_mult = 1.into();
        id.intr_coal_div = 4.into();
        id
    }

    fn port_identity(&self) -> PortIdentity {
        let mut id = PortIdentity::new_zeroed();
        id.version = IDENTITY_VERSION_1;
        id.type_ = PortType::ETH;
        id.num_lanes = 4;
        id.min_frame_size = MIN_FRAME.into();
        id.max_frame_size = self.config.max_frame().into();
        id.speeds[0] = SPEED_100G.into();
        id.config = self.nic.port;
        id
    }

    fn lif_identity(&self) -> LifIdentity {
        let mut id = LifIdentity::new_zeroed();
        id.capabilities = (LifCaps::ETH | LifCaps::RDMA).bits().into();
        id.rdma = Rdma::identity();
        id.eth.version = IDENTITY_VERSION_1;
        id.eth.max_ucast_filters = MAX_FILTERS.into();
        id.eth.max_mcast_filters = MAX_FILTERS.into();
        id.eth.rss_ind_tbl_sz = u16::try_from(rss::TABLE_LEN).unwrap_or(0).into();
        id.eth.min_frame_size = MIN_FRAME.into();
        id.eth.max_frame_size = self.config.max_frame().into();
        id.eth.config = lif_config(&self.config, &self.nic.lif);
        id
    }

    fn port_setattr(&mut self, cmd: &PortSetattrCmd) -> Outcome {
        let port = &mut self.nic.port;
        match cmd.attr {
            PortAttr::STATE => port.state.0 = cmd.value_u8(),
            PortAttr::SPEED => port.speed = cmd.value_u32().into(),
            PortAttr::MTU => port.mtu = cmd.value_u32().into(),
            PortAttr::AUTONEG => port.an_enable = cmd.value_u8(),
            PortAttr::FEC => port.fec_type = cmd.value_u8(),
            PortAttr::PAUSE => port.pause_type = cmd.value_u8(),
            PortAttr::LOOPBACK => port.loopback_mode = cmd.value_u8(),
            PortAttr::STATS_CTRL => {}
            _ => return Err(Status::EINVAL),
        }
        let (up, flaps) = (self.link_up, self.link_flaps);
        if self.pci.bus_master() {
            self.nic.write_port_info(&self.mem, up, flaps);
        }
        OK
    }

    fn lif_init(&mut self, cmd: &LifInitCmd) -> Outcome {
        if cmd.type_ != 0 || cmd.index.get() != 0 {
            return Err(Status::EINVAL);
        }
        self.nic.lif.info_pa = Some(cmd.info_pa.get());
        let (up, flaps) = (self.link_up, self.link_flaps);
        if self.pci.bus_master() && self.nic.write_info(&self.mem, &self.config, up, flaps) {
            Ok(LifInitComp::default().into_comp())
        } else {
            self.nic.lif.info_pa = None;
            Err(Status::BAD_ADDR)
        }
    }

    fn lif_command(&mut self, cmd: &AdminCmd) -> Outcome {
        match cmd.opcode {
            Opcode::LIF_GETATTR => self.lif_getattr(cmd.view()),
            Opcode::LIF_SETATTR => self.lif_setattr(cmd.view()),
            Opcode::RX_MODE_SET => {
                self.nic.lif.rx_mode = RxMode::from_bits_truncate(cmd.view::<RxModeSetCmd>().rx_mode.get());
                OK
            }
            Opcode::RX_FILTER_ADD => self.rx_filter_add(cmd.view()),
            Opcode::RX_FILTER_DEL => {
                // Deleting what is not there is what a driver does after a reset it did not see.
                self.nic.lif.filters.remove(cmd.view::<RxFilterDelCmd>().filter_id.get());
                OK
            }
            Opcode::Q_INIT => self.q_init(cmd.view()),
            Opcode::Q_CONTROL => self.q_control(cmd.view()),
            _ => Err(Status::EOPCODE),
        }
    }

    fn lif_getattr(&mut self, cmd: &LifGetattrCmd) -> Outcome {
        let lif = &self.nic.lif;
        let mut comp = LifGetattrComp::default();
        match cmd.attr {
            LifAttr::STATE => comp.value[0] = ionic_abi::LifState::ENABLE.0,
            // The completion has room for 11 bytes of a name of 16.
            LifAttr::NAME => comp.value.copy_from_slice(&lif.name[..11]),
            LifAttr::MTU => comp.value[..4].copy_from_slice(&lif.mtu.to_le_bytes()),
            LifAttr::MAC => comp.value[..6].copy_from_slice(&lif.mac),
            LifAttr::FEATURES => comp.value[..8].copy_from_slice(&lif.features.bits().to_le_bytes()),
            LifAttr::TXSTAMP => return Err(Status::ENOSUPP),
            _ => return Err(Status::EINVAL),
        }
        Ok(comp.into_comp())
    }

    fn lif_setattr(&mut self, cmd: &LifSetattrCmd) -> Outcome {
        let lif = &mut self.nic.lif;
        match cmd.attr {
            // QUIESCE asks for in-flight work to end, and none outlives a turn. It is not a gate: no ENABLE follows.
            LifAttr::STATE | LifAttr::STATS_CTRL => {}
            LifAttr::NAME => lif.name = cmd.name(),
            LifAttr::MTU => {
                let mtu = cmd.mtu();
                if !(u32::from(super::MIN_MTU)..=self.config.max_mtu.into()).contains(&mtu) {
                    return Err(Status::ERANGE);
                }
                lif.mtu = mtu;
                self.pending.mtu = Some(mtu);
            }
            LifAttr::MAC => {
                let mac = cmd.mac();
                if mac[0] & 1 != 0 || mac == [0; 6] {
                    return Err(Status::EINVAL);
                }
                lif.mac = mac;
            }
            LifAttr::FEATURES => {
                lif.features = cmd.features() & FEATURES;
                return Ok(
                    LifSetattrComp { features: lif.features.bits().into(), ..LifSetattrComp::default() }.into_comp()
                );
            }
            LifAttr::RSS => {
                let value = cmd.rss();
                let types = RssTypes::from_bits_truncate(value.types.get());
                let mut table = [0; rss::TABLE_LEN];
                if !types.is_empty() {
                    if !self.pci.bus_master() || self.mem.read(value.addr.get(), &mut table).is_err() {
                        return Err(Status::BAD_ADDR);
                    }
                    if table.iter().any(|&queue| usize::from(queue) >= MAX_QUEUES) {
                        return Err(Status::EINVAL);
                    }
                }
                lif.rss.configure(types, value.key, table);
                self.nic.refresh_rx_active();
            }
            LifAttr::TXSTAMP => return Err(Status::ENOSUPP),
            _ => return Err(Status::EINVAL),
        }
        OK
    }

    fn rx_filter_add(&mut self, cmd: &RxFilterAddCmd) -> Outcome {
        let filter = match cmd.match_type() {
            RxFilterMatch::VLAN => Match::Vlan(cmd.vlan()),
            RxFilterMatch::MAC => Match::Mac(cmd.mac()),
            RxFilterMatch::MAC_VLAN => Match::MacVlan(cmd.mac(), cmd.vlan()),
            // Only time stamping steers by packet class.
            RxFilterMatch::STEER_PKTCLASS => return Err(Status::ENOSUPP),
            _ => return Err(Status::EINVAL),
        };
        match self.nic.lif.filters.add(filter) {
            Ok(id) => Ok(RxFilterAddComp { filter_id: id.into(), ..RxFilterAddComp::default() }.into_comp()),
            Err(filter::Refused::Exists) => Err(Status::EEXIST),
            Err(filter::Refused::Full) => Err(Status::ENOSPC),
        }
    }

    fn q_init(&mut self, cmd: &QInitCmd) -> Outcome {
        let flags = QInitFlags::from_bits_truncate(cmd.flags.get());
        if flags.intersects(QInitFlags::CMB | QInitFlags::EQ) {
            return Err(Status::ENOSUPP);
        }
        if !RING_LOG2.contains(&cmd.ring_size) || cmd.lif_index.get() != 0 || cmd.pid.get() != 0 {
            return Err(Status::EINVAL);
        }
        if flags.contains(QInitFlags::IRQ) && cmd.intr_index.get() >= pci::VECTORS {
            return Err(Status::ERANGE);
        }
        let index = usize::try_from(cmd.index.get()).unwrap_or(usize::MAX);
        // Without an interrupt the vector is one that does not exist, and its events go nowhere.
        let intr = if flags.contains(QInitFlags::IRQ) { cmd.intr_index.get() } else { u16::MAX };
        let enabled = flags.contains(QInitFlags::ENA);
        let rings = Rings {
            log2: cmd.ring_size,
            base: cmd.ring_base.get(),
            comp: cmd.cq_ring_base.get(),
            sg: cmd.sg_ring_base.get(),
            intr,
        };
        match (cmd.type_, index) {
            (QType::ADMINQ, 0) => {
                let (Some(ring), Some(comp)) =
                    (Ring::new(rings.base, rings.log2), CompRing::new(rings.comp, rings.log2))
                else {
                    return Err(Status::EINVAL);
                };
                self.nic.adminq = Some(AdminQueue { ring, comp, intr, enabled });
            }
            (QType::NOTIFYQ, 0) => {
                self.nic.notifyq = Some(NotifyQueue { base: rings.base, log2: rings.log2, intr, enabled, eid: 0 });
            }
            (QType::RXQ, 0..MAX_QUEUES) => {
                let mut queue = RxQueue::new(rings).ok_or(Status::EINVAL)?;
                queue.enabled = enabled;
                self.nic.rx[index] = Some(queue);
                self.nic.refresh_rx_active();
            }
            (QType::TXQ, 0..MAX_QUEUES) => {
                let mut queue = TxQueue::new(rings).ok_or(Status::EINVAL)?;
                queue.enabled = enabled;
                self.nic.tx[index] = Some(queue);
            }
            (QType::ADMINQ | QType::NOTIFYQ | QType::RXQ | QType::TXQ, _) => return Err(Status::EQID),
            _ => return Err(Status::EQTYPE),
        }
        Ok(QInitComp { hw_index: cmd.index, hw_type: cmd.type_.0, ..QInitComp::default() }.into_comp())
    }

    fn q_control(&mut self, cmd: &QControlCmd) -> Outcome {
        let index = usize::try_from(cmd.index.get()).unwrap_or(usize::MAX);
        let nic = &mut self.nic;
        let enabled = match (cmd.type_, index) {
            (QType::ADMINQ, 0) => nic.adminq.as_mut().map(|q| &mut q.enabled),
            (QType::NOTIFYQ, 0) => nic.notifyq.as_mut().map(|q| &mut q.enabled),
            (QType::RXQ, _) => nic.rx.get_mut(index).and_then(Option::as_mut).map(|q| &mut q.enabled),
            (QType::TXQ, _) => nic.tx.get_mut(index).and_then(Option::as_mut).map(|q| &mut q.enabled),
            (QType::ADMINQ | QType::NOTIFYQ, _) => None,
            _ => return Err(Status::EQTYPE),
        };
        let enabled = enabled.ok_or(Status::EQID)?;
        match cmd.oper {
            // Queues work only inside a turn of the device's loop, so nothing of this one is under way now.
            QOper::DISABLE => *enabled = false,
            QOper::ENABLE => *enabled = true,
            QOper::HANG_RESET => {}
            _ => return Err(Status::EINVAL),
        }
        nic.refresh_rx_active();
        OK
    }
}

fn identified(ver: u8) -> Outcome {
    Ok(IdentifyComp { ver, ..IdentifyComp::default() }.into_comp())
}

fn answer(data: Option<&mut Data>, identity: &[u8]) {
    if let Some(data) = data {
        let n = identity.len().min(data.len());
        data[..n].copy_from_slice(&identity[..n]);
        data[n..].fill(0);
    }
}

/// Queue identities. Version 1 of the transmit queue brings SG descriptors of 256 bytes, without which the driver writes
/// beyond 128-byte ones; no version here lets rings lie in controller memory.
fn q_identity(qtype: QType) -> Option<QIdentity> {
    let mut id = QIdentity::new_zeroed();
    id.supported = 1;
    let (features, desc, comp) = match qtype {
        QType::ADMINQ => (QFeatures::CQ, 64, 16),
        QType::NOTIFYQ => (QFeatures::empty(), 64, 64),
        QType::RXQ => {
            (id.sg_desc_sz, id.max_sg_elems, id.sg_desc_stride) = (128.into(), 8.into(), 8.into());
            (QFeatures::CQ | QFeatures::SG, 16, 16)
        }
        QType::TXQ => {
            (id.version, id.supported) = (1, 0b11);
            (id.sg_desc_sz, id.max_sg_elems, id.sg_desc_stride) = (256.into(), 15.into(), 16.into());
            (QFeatures::CQ | QFeatures::SG, 16, 16)
        }
        _ => return None,
    };
    id.features = features.bits().into();
    id.desc_sz = desc.into();
    id.comp_sz = comp.into();
    Some(id)
}

fn is_known(opcode: Opcode) -> bool {
    opcode.name().is_some()
}

/// Commands that only the mailbox takes.
fn is_device_command(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::IDENTIFY
            | Opcode::INIT
            | Opcode::RESET
            | Opcode::PORT_IDENTIFY
            | Opcode::PORT_INIT
            | Opcode::PORT_RESET
            | Opcode::PORT_GETATTR
            | Opcode::PORT_SETATTR
            | Opcode::LIF_IDENTIFY
            | Opcode::LIF_INIT
            | Opcode::LIF_RESET
            | Opcode::Q_IDENTIFY
    )
}
