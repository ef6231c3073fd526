//! Device and admin-queue commands (64 bytes) and completions (16 bytes).

use bitflags::bitflags;

use crate::{COMP_COLOR, U16, U32, U64, open_enum, wire};

open_enum! {
    /// Command opcode (`enum ionic_cmd_opcode`).
    pub struct Opcode(u8) {
        NOP = 0,
        IDENTIFY = 1,
        INIT = 2,
        RESET = 3,
        GETATTR = 4,
        SETATTR = 5,
        PORT_IDENTIFY = 10,
        PORT_INIT = 11,
        PORT_RESET = 12,
        PORT_GETATTR = 13,
        PORT_SETATTR = 14,
        LIF_IDENTIFY = 20,
        LIF_INIT = 21,
        LIF_RESET = 22,
        LIF_GETATTR = 23,
        LIF_SETATTR = 24,
        LIF_SETPHC = 25,
        RX_MODE_SET = 30,
        RX_FILTER_ADD = 31,
        RX_FILTER_DEL = 32,
        Q_IDENTIFY = 39,
        Q_INIT = 40,
        Q_CONTROL = 41,
        RDMA_RESET_LIF = 50,
        RDMA_CREATE_EQ = 51,
        RDMA_CREATE_CQ = 52,
        RDMA_CREATE_ADMINQ = 53,
        VF_GETATTR = 60,
        VF_SETATTR = 61,
        VF_CTRL = 62,
        DISCOVER_CMB = 80,
        QOS_CLASS_IDENTIFY = 240,
        QOS_CLASS_INIT = 241,
        QOS_CLASS_RESET = 242,
        QOS_CLASS_UPDATE = 243,
        QOS_CLEAR_STATS = 244,
        QOS_RESET = 245,
        FW_DOWNLOAD = 252,
        FW_CONTROL = 253,
        FW_DOWNLOAD_V1 = 254,
        FW_CONTROL_V1 = 255,
    }
}

open_enum! {
    /// Completion status (`enum ionic_status_code`).
    pub struct Status(u8) {
        SUCCESS = 0,
        EVERSION = 1,
        EOPCODE = 2,
        EIO = 3,
        EPERM = 4,
        EQID = 5,
        EQTYPE = 6,
        ENOENT = 7,
        EINTR = 8,
        EAGAIN = 9,
        ENOMEM = 10,
        EFAULT = 11,
        EBUSY = 12,
        EEXIST = 13,
        EINVAL = 14,
        ENOSPC = 15,
        ERANGE = 16,
        BAD_ADDR = 17,
        DEV_CMD = 18,
        ENOSUPP = 19,
        ERROR = 29,
        ERDMA = 30,
        EVFID = 31,
        EBAD_FW = 32,
    }
}

open_enum! {
    /// Logical queue type (`enum ionic_logical_qtype`).
    pub struct QType(u8) {
        ADMINQ = 0,
        NOTIFYQ = 1,
        RXQ = 2,
        TXQ = 3,
        EQ = 4,
    }
}
/// Length of arrays that are indexed by [`QType`] (`IONIC_QTYPE_MAX`).
pub const QTYPE_MAX: usize = 16;

open_enum! {
    /// What Q_CONTROL does (`enum ionic_q_control_oper`).
    pub struct QOper(u8) {
        DISABLE = 0,
        ENABLE = 1,
        HANG_RESET = 2,
    }
}

open_enum! {
    /// LIF attribute (`enum ionic_lif_attr`).
    pub struct LifAttr(u8) {
        STATE = 0,
        NAME = 1,
        MTU = 2,
        MAC = 3,
        FEATURES = 4,
        RSS = 5,
        STATS_CTRL = 6,
        TXSTAMP = 7,
    }
}

open_enum! {
    /// Value of [`LifAttr::STATE`] (`enum ionic_lif_state`).
    pub struct LifState(u8) {
        QUIESCE = 0,
        ENABLE = 1,
        DISABLE = 2,
    }
}

open_enum! {
    /// Port attribute (`enum ionic_port_attr`).
    pub struct PortAttr(u8) {
        STATE = 0,
        SPEED = 1,
        MTU = 2,
        AUTONEG = 3,
        FEC = 4,
        PAUSE = 5,
        LOOPBACK = 6,
        STATS_CTRL = 7,
    }
}

bitflags! {
    /// Flags of Q_INIT (`IONIC_QINIT_F_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QInitFlags: u16 {
        /// `intr_index` is valid.
        const IRQ = 0x01;
        /// Start enabled.
        const ENA = 0x02;
        /// `sg_ring_base` is valid.
        const SG = 0x04;
        /// `intr_index` is an Ethernet event queue.
        const EQ = 0x08;
        /// `ring_base` is an offset into controller memory.
        const CMB = 0x10;
        /// Debug.
        const DEBUG = 0x80;
    }
}

bitflags! {
    /// Receive mode of RX_MODE_SET (`enum ionic_rx_mode`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RxMode: u16 {
        /// Unicast that matches a filter.
        const UNICAST = 0x01;
        /// Multicast that matches a filter.
        const MULTICAST = 0x02;
        /// Broadcast.
        const BROADCAST = 0x04;
        /// Everything.
        const PROMISC = 0x08;
        /// All multicast.
        const ALLMULTI = 0x10;
        /// RDMA frames too.
        const RDMA_SNIFFER = 0x20;
    }
}

bitflags! {
    /// Hash types of RSS (`enum ionic_rss_hash_types`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RssTypes: u16 {
        /// IPv4 addresses.
        const IPV4 = 0x01;
        /// IPv4 addresses and TCP ports.
        const IPV4_TCP = 0x02;
        /// IPv4 addresses and UDP ports.
        const IPV4_UDP = 0x04;
        /// IPv6 addresses.
        const IPV6 = 0x08;
        /// IPv6 addresses and TCP ports.
        const IPV6_TCP = 0x10;
        /// IPv6 addresses and UDP ports.
        const IPV6_UDP = 0x20;
    }
}
/// Bytes of the Toeplitz key (`IONIC_RSS_HASH_KEY_SIZE`).
pub const RSS_HASH_KEY_SIZE: usize = 40;

bitflags! {
    /// Features of the Ethernet LIF (`enum ionic_eth_hw_features`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EthFeatures: u64 {
        /// VLAN insertion.
        const VLAN_TX_TAG = 1 << 0;
        /// VLAN stripping.
        const VLAN_RX_STRIP = 1 << 1;
        /// VLAN filtering.
        const VLAN_RX_FILTER = 1 << 2;
        /// Receive hash and RSS.
        const RX_HASH = 1 << 3;
        /// Receive checksum.
        const RX_CSUM = 1 << 4;
        /// Transmit scatter-gather.
        const TX_SG = 1 << 5;
        /// Receive scatter-gather.
        const RX_SG = 1 << 6;
        /// Transmit checksum.
        const TX_CSUM = 1 << 7;
        /// TCP segmentation over IPv4.
        const TSO = 1 << 8;
        /// TCP segmentation over IPv6.
        const TSO_IPV6 = 1 << 9;
        /// TCP segmentation with CWR.
        const TSO_ECN = 1 << 10;
        /// TCP segmentation in GRE.
        const TSO_GRE = 1 << 11;
        /// … with outer checksum.
        const TSO_GRE_CSUM = 1 << 12;
        /// TCP segmentation in IP over IPv4.
        const TSO_IPXIP4 = 1 << 13;
        /// TCP segmentation in IP over IPv6.
        const TSO_IPXIP6 = 1 << 14;
        /// TCP segmentation in UDP tunnels.
        const TSO_UDP = 1 << 15;
        /// … with outer checksum.
        const TSO_UDP_CSUM = 1 << 16;
        /// Receive checksum in GENEVE.
        const RX_CSUM_GENEVE = 1 << 17;
        /// Transmit checksum in GENEVE.
        const TX_CSUM_GENEVE = 1 << 18;
        /// TCP segmentation in GENEVE.
        const TSO_GENEVE = 1 << 19;
        /// Hardware time stamps.
        const TIMESTAMP = 1 << 20;
        /// Time stamps of RDMA completions.
        const RDMA_TIMESTAMP = 1 << 21;
    }
}

/// Reads a typed request out of a 64-byte command, and makes one of it.
pub trait Request: Sized {
    /// The command as this request.
    fn from_cmd(cmd: &AdminCmd) -> &Self;
    /// The request as a command.
    fn into_cmd(self) -> AdminCmd;
}

/// Reads a typed response out of a 16-byte completion, and makes one of it.
pub trait Response: Sized {
    /// The completion as this response.
    fn from_comp(comp: &AdminComp) -> &Self;
    /// The response as a completion.
    fn into_comp(self) -> AdminComp;
}

macro_rules! requests {
    ($($name:ident),* $(,)?) => {$(
        impl Request for $name {
            #[inline]
            fn from_cmd(cmd: &AdminCmd) -> &Self {
                zerocopy::transmute_ref!(cmd)
            }
            #[inline]
            fn into_cmd(self) -> AdminCmd {
                zerocopy::transmute!(self)
            }
        }
    )*};
}

macro_rules! responses {
    ($($name:ident),* $(,)?) => {$(
        impl Response for $name {
            #[inline]
            fn from_comp(comp: &AdminComp) -> &Self {
                zerocopy::transmute_ref!(comp)
            }
            #[inline]
            fn into_comp(self) -> AdminComp {
                zerocopy::transmute!(self)
            }
        }
    )*};
}

requests!(
    DevIdentifyCmd,
    DevInitCmd,
    DevResetCmd,
    PortIdentifyCmd,
    PortInitCmd,
    PortResetCmd,
    PortGetattrCmd,
    PortSetattrCmd,
    LifIdentifyCmd,
    LifInitCmd,
    LifResetCmd,
    LifGetattrCmd,
    LifSetattrCmd,
    RxModeSetCmd,
    RxFilterAddCmd,
    RxFilterDelCmd,
    QIdentifyCmd,
    QInitCmd,
    QControlCmd,
    RdmaResetCmd,
    RdmaQueueCmd,
);
responses!(
    IdentifyComp,
    PortGetattrComp,
    LifInitComp,
    LifGetattrComp,
    LifSetattrComp,
    RxFilterAddComp,
    QIdentifyComp,
    QInitComp
);

wire! {
    /// Any command, of the mailbox (`union ionic_dev_cmd`) or the admin queue (`union ionic_adminq_cmd`).
    pub struct AdminCmd, 64 {
        /// What to do.
        pub opcode: Opcode,
        /// Depends on the opcode.
        pub data: [u8; 63],
    }

    /// Any completion (`struct ionic_admin_comp`, `union ionic_dev_cmd_comp`, `union ionic_adminq_comp`).
    pub struct AdminComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Reserved.
        pub rsvd: u8,
        /// On the admin queue: ring index of the command that this completes.
        pub comp_index: U16,
        /// Depends on the opcode.
        pub cmd_data: [u8; 11],
        /// On the admin queue: [`COMP_COLOR`].
        pub color: u8,
    }

    /// IDENTIFY (`struct ionic_dev_identify_cmd`); data in: [`crate::DrvIdentity`], data out: [`crate::DevIdentity`].
    pub struct DevIdentifyCmd, 64 {
        /// [`Opcode::IDENTIFY`].
        pub opcode: Opcode,
        /// Highest identity version that the driver knows, 2.
        pub ver: u8,
        /// Reserved.
        pub rsvd: [u8; 62],
    }

    /// INIT (`struct ionic_dev_init_cmd`).
    pub struct DevInitCmd, 64 {
        /// [`Opcode::INIT`].
        pub opcode: Opcode,
        /// Device type, 0.
        pub type_: u8,
        /// Reserved.
        pub rsvd: [u8; 62],
    }

    /// RESET (`struct ionic_dev_reset_cmd`).
    pub struct DevResetCmd, 64 {
        /// [`Opcode::RESET`].
        pub opcode: Opcode,
        /// Reserved.
        pub rsvd: [u8; 63],
    }

    /// Completion of IDENTIFY, PORT_IDENTIFY and LIF_IDENTIFY (`struct ionic_dev_identify_comp` and two like it).
    pub struct IdentifyComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Version of the identity in the data window.
        pub ver: u8,
        /// Reserved.
        pub rsvd: [u8; 14],
    }

    /// PORT_IDENTIFY (`struct ionic_port_identify_cmd`); data out: [`crate::PortIdentity`].
    pub struct PortIdentifyCmd, 64 {
        /// [`Opcode::PORT_IDENTIFY`].
        pub opcode: Opcode,
        /// Port.
        pub index: u8,
        /// Highest version that the driver knows.
        pub ver: u8,
        /// Reserved.
        pub rsvd: [u8; 61],
    }

    /// PORT_INIT (`struct ionic_port_init_cmd`); data in: [`crate::PortConfig`].
    pub struct PortInitCmd, 64 {
        /// [`Opcode::PORT_INIT`].
        pub opcode: Opcode,
        /// Port.
        pub index: u8,
        /// Reserved.
        pub rsvd: [u8; 6],
        /// Where the device keeps [`crate::PortInfo`].
        pub info_pa: U64,
        /// Reserved.
        pub rsvd2: [u8; 48],
    }

    /// PORT_RESET (`struct ionic_port_reset_cmd`).
    pub struct PortResetCmd, 64 {
        /// [`Opcode::PORT_RESET`].
        pub opcode: Opcode,
        /// Port.
        pub index: u8,
        /// Reserved.
        pub rsvd: [u8; 62],
    }

    /// PORT_GETATTR (`struct ionic_port_getattr_cmd`); not sent by Linux 7.3.
    pub struct PortGetattrCmd, 64 {
        /// [`Opcode::PORT_GETATTR`].
        pub opcode: Opcode,
        /// Port.
        pub index: u8,
        /// Which.
        pub attr: PortAttr,
        /// Reserved.
        pub rsvd: [u8; 61],
    }

    /// PORT_SETATTR (`struct ionic_port_setattr_cmd`).
    pub struct PortSetattrCmd, 64 {
        /// [`Opcode::PORT_SETATTR`].
        pub opcode: Opcode,
        /// Port.
        pub index: u8,
        /// Which.
        pub attr: PortAttr,
        /// Reserved.
        pub rsvd: u8,
        /// The value: a u32 for speed and MTU, else a u8.
        pub value: [u8; 60],
    }

    /// Completion of PORT_GETATTR (`struct ionic_port_getattr_comp`).
    pub struct PortGetattrComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Reserved.
        pub rsvd: [u8; 3],
        /// The value.
        pub value: [u8; 11],
        /// Color.
        pub color: u8,
    }

    /// LIF_IDENTIFY (`struct ionic_lif_identify_cmd`); data out: [`crate::LifIdentity`].
    pub struct LifIdentifyCmd, 64 {
        /// [`Opcode::LIF_IDENTIFY`].
        pub opcode: Opcode,
        /// LIF type, 0 classic.
        pub type_: u8,
        /// Highest version that the driver knows, 1.
        pub ver: u8,
        /// Reserved.
        pub rsvd: [u8; 61],
    }

    /// LIF_INIT (`struct ionic_lif_init_cmd`).
    pub struct LifInitCmd, 64 {
        /// [`Opcode::LIF_INIT`].
        pub opcode: Opcode,
        /// LIF type.
        pub type_: u8,
        /// LIF.
        pub index: U16,
        /// Reserved.
        pub rsvd: U32,
        /// Where the device keeps [`crate::LifInfo`].
        pub info_pa: U64,
        /// Reserved.
        pub rsvd2: [u8; 48],
    }

    /// Completion of LIF_INIT (`struct ionic_lif_init_comp`).
    pub struct LifInitComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Reserved.
        pub rsvd: u8,
        /// Hardware number of the LIF; selects its doorbell pages.
        pub hw_index: U16,
        /// Reserved.
        pub rsvd2: [u8; 12],
    }

    /// LIF_RESET (`struct ionic_lif_reset_cmd`).
    pub struct LifResetCmd, 64 {
        /// [`Opcode::LIF_RESET`].
        pub opcode: Opcode,
        /// Reserved.
        pub rsvd: u8,
        /// LIF.
        pub index: U16,
        /// Reserved.
        pub rsvd2: [U32; 15],
    }

    /// LIF_GETATTR (`struct ionic_lif_getattr_cmd`).
    pub struct LifGetattrCmd, 64 {
        /// [`Opcode::LIF_GETATTR`].
        pub opcode: Opcode,
        /// Which.
        pub attr: LifAttr,
        /// LIF.
        pub index: U16,
        /// Reserved.
        pub rsvd: [u8; 60],
    }

    /// Completion of LIF_GETATTR (`struct ionic_lif_getattr_comp`).
    pub struct LifGetattrComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Reserved.
        pub rsvd: u8,
        /// Ring index of the command.
        pub comp_index: U16,
        /// The value.
        pub value: [u8; 11],
        /// Color.
        pub color: u8,
    }

    /// LIF_SETATTR (`struct ionic_lif_setattr_cmd`).
    pub struct LifSetattrCmd, 64 {
        /// [`Opcode::LIF_SETATTR`].
        pub opcode: Opcode,
        /// Which.
        pub attr: LifAttr,
        /// LIF.
        pub index: U16,
        /// The value; [`LifSetattrCmd`]'s methods read it.
        pub value: [u8; 60],
    }

    /// Value of [`LifAttr::RSS`] (the `rss` member of `struct ionic_lif_setattr_cmd`).
    pub struct RssValue, 60 {
        /// [`RssTypes`]; 0 switches RSS off.
        pub types: U16,
        /// Toeplitz key.
        pub key: [u8; RSS_HASH_KEY_SIZE],
        /// Reserved.
        pub rsvd: [u8; 6],
        /// Where the indirection table lies: one byte per entry.
        pub addr: U64,
        /// The rest of the value.
        pub rsvd2: [u8; 4],
    }

    /// Completion of LIF_SETATTR (`struct ionic_lif_setattr_comp`).
    pub struct LifSetattrComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Reserved.
        pub rsvd: u8,
        /// Ring index of the command.
        pub comp_index: U16,
        /// For [`LifAttr::FEATURES`]: what is on now, [`EthFeatures`].
        pub features: U64,
        /// Reserved.
        pub rsvd2: [u8; 3],
        /// Color.
        pub color: u8,
    }

    /// RX_MODE_SET (`struct ionic_rx_mode_set_cmd`).
    pub struct RxModeSetCmd, 64 {
        /// [`Opcode::RX_MODE_SET`].
        pub opcode: Opcode,
        /// Reserved.
        pub rsvd: u8,
        /// LIF.
        pub lif_index: U16,
        /// [`RxMode`].
        pub rx_mode: U16,
        /// Reserved.
        pub rsvd2: [U16; 29],
    }

    /// RX_FILTER_ADD (`struct ionic_rx_filter_add_cmd`).
    pub struct RxFilterAddCmd, 64 {
        /// [`Opcode::RX_FILTER_ADD`].
        pub opcode: Opcode,
        /// Queue type for steering; 0 otherwise.
        pub qtype: QType,
        /// LIF.
        pub lif_index: U16,
        /// Queue for steering; 0 otherwise.
        pub qid: U32,
        /// [`RxFilterMatch`].
        pub match_: U16,
        /// The match; [`RxFilterAddCmd`]'s methods read it.
        pub value: [u8; 54],
    }

    /// Completion of RX_FILTER_ADD (`struct ionic_rx_filter_add_comp`).
    pub struct RxFilterAddComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Reserved.
        pub rsvd: u8,
        /// Ring index of the command.
        pub comp_index: U16,
        /// Names the filter in RX_FILTER_DEL; unique among live filters.
        pub filter_id: U32,
        /// Reserved.
        pub rsvd2: [u8; 7],
        /// Color.
        pub color: u8,
    }

    /// RX_FILTER_DEL (`struct ionic_rx_filter_del_cmd`).
    pub struct RxFilterDelCmd, 64 {
        /// [`Opcode::RX_FILTER_DEL`].
        pub opcode: Opcode,
        /// Reserved.
        pub rsvd: u8,
        /// LIF.
        pub lif_index: U16,
        /// The filter.
        pub filter_id: U32,
        /// Reserved.
        pub rsvd2: [u8; 56],
    }

    /// Q_IDENTIFY (`struct ionic_q_identify_cmd`); data out: [`crate::QIdentity`].
    pub struct QIdentifyCmd, 64 {
        /// [`Opcode::Q_IDENTIFY`].
        pub opcode: Opcode,
        /// Reserved.
        pub rsvd: u8,
        /// LIF type.
        pub lif_type: U16,
        /// Queue type.
        pub type_: QType,
        /// Highest version that the driver knows.
        pub ver: u8,
        /// Reserved.
        pub rsvd2: [u8; 58],
    }

    /// Completion of Q_IDENTIFY (`struct ionic_q_identify_comp`).
    pub struct QIdentifyComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Reserved.
        pub rsvd: u8,
        /// Ring index of the command.
        pub comp_index: U16,
        /// Version of the identity in the data window.
        pub ver: u8,
        /// Reserved.
        pub rsvd2: [u8; 11],
    }

    /// Q_INIT (`struct ionic_q_init_cmd`). The addresses are not naturally aligned.
    pub struct QInitCmd, 64 {
        /// [`Opcode::Q_INIT`].
        pub opcode: Opcode,
        /// Reserved.
        pub rsvd: u8,
        /// LIF.
        pub lif_index: U16,
        /// Queue type.
        pub type_: QType,
        /// Queue version, as Q_IDENTIFY answered.
        pub ver: u8,
        /// Reserved.
        pub rsvd1: [u8; 2],
        /// Logical queue number within its type.
        pub index: U32,
        /// Doorbell page of the owner; 0 is the kernel.
        pub pid: U16,
        /// MSI-X vector.
        pub intr_index: U16,
        /// [`QInitFlags`].
        pub flags: U16,
        /// Class of service.
        pub cos: u8,
        /// Ring entries, log2.
        pub ring_size: u8,
        /// Descriptor ring.
        pub ring_base: U64,
        /// Completion ring; 0 for a notify queue.
        pub cq_ring_base: U64,
        /// Scatter-gather ring.
        pub sg_ring_base: U64,
        /// Reserved.
        pub rsvd2: [u8; 12],
        /// [`QFeatures`].
        pub features: U64,
    }

    /// Completion of Q_INIT (`struct ionic_q_init_comp`).
    pub struct QInitComp, 16 {
        /// Outcome.
        pub status: Status,
        /// Reserved.
        pub rsvd: u8,
        /// Ring index of the command.
        pub comp_index: U16,
        /// Queue number for doorbells.
        pub hw_index: U32,
        /// Slot in the doorbell page.
        pub hw_type: u8,
        /// Reserved.
        pub rsvd2: [u8; 6],
        /// Color.
        pub color: u8,
    }

    /// Q_CONTROL (`struct ionic_q_control_cmd`).
    pub struct QControlCmd, 64 {
        /// [`Opcode::Q_CONTROL`].
        pub opcode: Opcode,
        /// Queue type.
        pub type_: QType,
        /// LIF.
        pub lif_index: U16,
        /// Logical queue number, as given to Q_INIT.
        pub index: U32,
        /// What to do.
        pub oper: QOper,
        /// Reserved.
        pub rsvd: [u8; 55],
    }

    /// RDMA_RESET_LIF (`struct ionic_rdma_reset_cmd`).
    pub struct RdmaResetCmd, 64 {
        /// [`Opcode::RDMA_RESET_LIF`].
        pub opcode: Opcode,
        /// Reserved.
        pub rsvd: u8,
        /// LIF.
        pub lif_index: U16,
        /// Reserved.
        pub rsvd2: [u8; 60],
    }

    /// RDMA_CREATE_EQ, _CQ and _ADMINQ (`struct ionic_rdma_queue_cmd`).
    pub struct RdmaQueueCmd, 64 {
        /// [`Opcode::RDMA_CREATE_EQ`], [`Opcode::RDMA_CREATE_CQ`] or [`Opcode::RDMA_CREATE_ADMINQ`].
        pub opcode: Opcode,
        /// Reserved.
        pub rsvd: u8,
        /// LIF.
        pub lif_index: U16,
        /// Queue number and version.
        pub qid_ver: U32,
        /// EQ: MSI-X vector. CQ: event queue. Admin queue: completion queue.
        pub cid: U32,
        /// Doorbell page of the owner.
        pub dbid: U16,
        /// Entries, log2.
        pub depth_log2: u8,
        /// Bytes of an entry, log2.
        pub stride_log2: u8,
        /// The ring, contiguous.
        pub dma_addr: U64,
        /// Reserved.
        pub rsvd2: [u8; 40],
    }
}

impl AdminCmd {
    /// The command as a typed request.
    #[must_use]
    #[inline]
    pub fn view<T: Request>(&self) -> &T {
        T::from_cmd(self)
    }
}

impl AdminComp {
    /// A completion that says only `status`.
    #[must_use]
    #[inline]
    pub fn new(status: Status) -> Self {
        Self { status, ..Self::default() }
    }

    /// The completion as a typed response.
    #[must_use]
    #[inline]
    pub fn view<T: Response>(&self) -> &T {
        T::from_comp(self)
    }

    /// Whether the color bit is set.
    #[must_use]
    #[inline]
    pub fn color(&self) -> bool {
        self.color & COMP_COLOR != 0
    }
}

/// The first four bytes of a value as a u32.
fn first_u32(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
}

impl PortSetattrCmd {
    /// The value of an attribute that is a u8.
    #[must_use]
    #[inline]
    pub fn value_u8(&self) -> u8 {
        self.value[0]
    }

    /// The value of an attribute that is a u32 (speed in Mb/s, MTU in bytes).
    #[must_use]
    #[inline]
    pub fn value_u32(&self) -> u32 {
        first_u32(&self.value)
    }
}

impl LifSetattrCmd {
    /// Value of [`LifAttr::STATE`].
    #[must_use]
    #[inline]
    pub fn state(&self) -> LifState {
        LifState(self.value[0])
    }

    /// Value of [`LifAttr::NAME`], NUL-padded (`IONIC_IFNAMSIZ` bytes).
    #[must_use]
    #[inline]
    pub fn name(&self) -> [u8; 16] {
        self.value.first_chunk().copied().unwrap_or_default()
    }

    /// Value of [`LifAttr::MTU`], bytes.
    #[must_use]
    #[inline]
    pub fn mtu(&self) -> u32 {
        first_u32(&self.value)
    }

    /// Value of [`LifAttr::MAC`].
    #[must_use]
    #[inline]
    pub fn mac(&self) -> [u8; 6] {
        self.value.first_chunk().copied().unwrap_or_default()
    }

    /// Value of [`LifAttr::FEATURES`].
    #[must_use]
    #[inline]
    pub fn features(&self) -> EthFeatures {
        EthFeatures::from_bits_retain(self.value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)))
    }

    /// Value of [`LifAttr::RSS`].
    #[must_use]
    #[inline]
    pub fn rss(&self) -> &RssValue {
        zerocopy::transmute_ref!(&self.value)
    }
}

/// What a receive filter matches (`enum ionic_rx_filter_match_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxFilterMatch(pub u16);

impl RxFilterMatch {
    /// VLAN id (`IONIC_RX_FILTER_MATCH_VLAN`).
    pub const VLAN: Self = Self(0);
    /// MAC address (`IONIC_RX_FILTER_MATCH_MAC`).
    pub const MAC: Self = Self(1);
    /// Both (`IONIC_RX_FILTER_MATCH_MAC_VLAN`).
    pub const MAC_VLAN: Self = Self(2);
    /// Steer a packet class, for time stamps (`IONIC_RX_FILTER_STEER_PKTCLASS`).
    pub const STEER_PKTCLASS: Self = Self(0x10);
}

impl RxFilterAddCmd {
    /// What it matches.
    #[must_use]
    #[inline]
    pub fn match_type(&self) -> RxFilterMatch {
        RxFilterMatch(self.match_.get())
    }

    /// VLAN id of a [`RxFilterMatch::VLAN`] or [`RxFilterMatch::MAC_VLAN`] filter.
    #[must_use]
    #[inline]
    pub fn vlan(&self) -> u16 {
        u16::from_le_bytes([self.value[0], self.value[1]])
    }

    /// Address of a [`RxFilterMatch::MAC`] (offset 0) or [`RxFilterMatch::MAC_VLAN`] (offset 2) filter.
    #[must_use]
    #[inline]
    pub fn mac(&self) -> [u8; 6] {
        let at = if self.match_type() == RxFilterMatch::MAC_VLAN { 2 } else { 0 };
        self.value[at..].first_chunk().copied().unwrap_or_default()
    }
}

bitflags! {
    /// Queue features (`enum ionic_q_feature`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QFeatures: u64 {
        /// Has a completion ring.
        const CQ = 1 << 0;
        /// Has a scatter-gather ring.
        const SG = 1 << 1;
        /// Can use an event queue.
        const EQ = 1 << 2;
        /// Ring may lie in controller memory.
        const CMB = 1 << 3;
        /// Double-size descriptors.
        const DESC_2X = 1 << 4;
        /// Double-size completions.
        const CQ_DESC_2X = 1 << 5;
        /// Double-size scatter-gather descriptors.
        const SG_DESC_2X = 1 << 6;
        /// Quadruple-size descriptors.
        const DESC_4X = 1 << 7;
        /// Quadruple-size completions.
        const CQ_DESC_4X = 1 << 8;
        /// Quadruple-size scatter-gather descriptors.
        const SG_DESC_4X = 1 << 9;
        /// Express doorbells.
        const EXPDB = 1 << 10;
        /// Time stamps in completions (`IONIC_RXQ_F_HWSTAMP`, `IONIC_TXQ_F_HWSTAMP`).
        const HWSTAMP = 1 << 16;
    }
}
