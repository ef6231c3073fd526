//! Identities: what the device says of itself in the data window.

use bitflags::bitflags;

use crate::{LifConfig, PortConfig, U16, U32, U64, open_enum, wire};

/// Identity version that Linux asks for in IDENTIFY (`IONIC_DEV_IDENTITY_VERSION_2`).
pub const DEV_IDENTITY_VERSION_2: u8 = 2;
/// Version of the other identities (`IONIC_IDENTITY_VERSION_1`).
pub const IDENTITY_VERSION_1: u8 = 1;

wire! {
    /// What the driver says of itself (`union ionic_drv_identity`), data in of IDENTIFY.
    pub struct DrvIdentity, 1912 {
        /// Operating system, 1 Linux (`enum ionic_os_type`).
        pub os_type: U32,
        /// Distribution.
        pub os_dist: U32,
        /// Distribution, text.
        pub os_dist_str: [u8; 128],
        /// Kernel version.
        pub kernel_ver: U32,
        /// Kernel version, text.
        pub kernel_ver_str: [u8; 32],
        /// Driver version, text (Linux: `UTS_RELEASE`).
        pub driver_ver_str: [u8; 32],
        /// The rest.
        pub rsvd: [u8; 1708],
    }

    /// Device identity (`union ionic_dev_identity`), data out of IDENTIFY.
    pub struct DevIdentity, 1912 {
        /// Identity version.
        pub version: u8,
        /// Device type.
        pub type_: u8,
        /// Reserved.
        pub rsvd: [u8; 2],
        /// Ports.
        pub nports: u8,
        /// Reserved.
        pub rsvd2: [u8; 3],
        /// LIFs.
        pub nlifs: U32,
        /// Interrupt vectors.
        pub nintrs: U32,
        /// Doorbell pages per LIF.
        pub ndbpgs_per_lif: U32,
        /// Interrupt coalescing: device units = microseconds · mult / div.
        pub intr_coal_mult: U32,
        /// See `intr_coal_mult`.
        pub intr_coal_div: U32,
        /// Ethernet event queues.
        pub eq_count: U32,
        /// Bits of the hardware clock.
        pub hwstamp_mask: U64,
        /// Clock to nanoseconds.
        pub hwstamp_mult: U32,
        /// Clock to nanoseconds.
        pub hwstamp_shift: U32,
        /// [`DevCaps`].
        pub capabilities: U64,
        /// The rest.
        pub rsvd3: [u8; 1856],
    }

    /// Ethernet part of [`LifIdentity`].
    pub struct LifIdentityEth, 384 {
        /// Version.
        pub version: u8,
        /// Reserved.
        pub rsvd: [u8; 3],
        /// Unicast (and multicast) filters before the driver turns promiscuous.
        pub max_ucast_filters: U32,
        /// Multicast filters.
        pub max_mcast_filters: U32,
        /// Entries of the RSS indirection table.
        pub rss_ind_tbl_sz: U16,
        /// Smallest frame, bytes.
        pub min_frame_size: U32,
        /// Largest frame, bytes; the largest MTU is 18 less.
        pub max_frame_size: U32,
        /// Reserved.
        pub rsvd2: [u8; 2],
        /// Time stamp modes.
        pub hwstamp_tx_modes: U64,
        /// Time stamp filters.
        pub hwstamp_rx_filters: U64,
        /// Reserved.
        pub rsvd3: [u8; 88],
        /// Configuration.
        pub config: LifConfig,
    }

    /// A range of RDMA queues (`struct ionic_lif_logical_qtype`).
    pub struct LifLogicalQtype, 12 {
        /// Slot in the doorbell page.
        pub qtype: u8,
        /// Reserved.
        pub rsvd: [u8; 3],
        /// How many.
        pub qid_count: U32,
        /// The first.
        pub qid_base: U32,
    }

    /// RDMA part of [`LifIdentity`].
    pub struct LifIdentityRdma, 256 {
        /// Version.
        pub version: u8,
        /// Number of work request opcodes known.
        pub qp_opcodes: u8,
        /// Number of admin opcodes known.
        pub admin_opcodes: u8,
        /// Minor version.
        pub minor_version: u8,
        /// Page table entries.
        pub npts_per_lif: U32,
        /// Memory regions.
        pub nmrs_per_lif: U32,
        /// Address handles.
        pub nahs_per_lif: U32,
        /// Largest work request, log2 bytes.
        pub max_stride: u8,
        /// Cache line, log2 bytes.
        pub cl_stride: u8,
        /// Page table entry, log2 bytes.
        pub pte_stride: u8,
        /// Remote request entry, log2 bytes.
        pub rrq_stride: u8,
        /// Remote state entry, log2 bytes.
        pub rsq_stride: u8,
        /// DCQCN profiles.
        pub dcqcn_profiles: u8,
        /// Shift that spreads queue numbers over the two data movers.
        pub udma_shift: u8,
        /// Reserved.
        pub rsvd_dimensions: u8,
        /// Page sizes, one bit each.
        pub page_size_cap: U64,
        /// Admin queues.
        pub aq_qtype: LifLogicalQtype,
        /// Send queues.
        pub sq_qtype: LifLogicalQtype,
        /// Receive queues.
        pub rq_qtype: LifLogicalQtype,
        /// Completion queues.
        pub cq_qtype: LifLogicalQtype,
        /// Event queues.
        pub eq_qtype: LifLogicalQtype,
        /// Statistics that exist.
        pub stats_type: U16,
        /// Reserved.
        pub rsvd: u8,
        /// Sign bit.
        pub rcq_sign_bit: u8,
        /// Reserved.
        pub rsvd1: [u8; 160],
    }

    /// LIF identity (`union ionic_lif_identity`), data out of LIF_IDENTIFY.
    pub struct LifIdentity, 1912 {
        /// [`LifCaps`].
        pub capabilities: U64,
        /// Ethernet.
        pub eth: LifIdentityEth,
        /// RDMA.
        pub rdma: LifIdentityRdma,
        /// The rest.
        pub rsvd: [u8; 1264],
    }

    /// Port identity (`union ionic_port_identity`), data out of PORT_IDENTIFY.
    pub struct PortIdentity, 1912 {
        /// Version.
        pub version: u8,
        /// Kind of port.
        pub type_: PortType,
        /// Lanes.
        pub num_lanes: u8,
        /// Autonegotiation is supported.
        pub autoneg: u8,
        /// Smallest frame, bytes.
        pub min_frame_size: U32,
        /// Largest frame, bytes.
        pub max_frame_size: U32,
        /// FEC types.
        pub fec_type: [u8; 4],
        /// Pause types.
        pub pause_type: [u8; 2],
        /// Loopback modes.
        pub loopback_mode: [u8; 2],
        /// Speeds, Mb/s.
        pub speeds: [U32; 16],
        /// Reserved.
        pub rsvd2: [u8; 44],
        /// Configuration.
        pub config: PortConfig,
        /// The rest.
        pub rsvd3: [u8; 1528],
    }

    /// Queue identity (`union ionic_q_identity`), data out of Q_IDENTIFY.
    pub struct QIdentity, 1912 {
        /// Version of this queue type that the device uses.
        pub version: u8,
        /// Versions that it knows, one bit each.
        pub supported: u8,
        /// Reserved.
        pub rsvd: [u8; 6],
        /// [`crate::QFeatures`].
        pub features: U64,
        /// Bytes of a descriptor.
        pub desc_sz: U16,
        /// Bytes of a completion.
        pub comp_sz: U16,
        /// Bytes of a scatter-gather descriptor.
        pub sg_desc_sz: U16,
        /// Elements in one.
        pub max_sg_elems: U16,
        /// Elements from one to the next.
        pub sg_desc_stride: U16,
        /// The rest.
        pub rsvd2: [u8; 1886],
    }
}

open_enum! {
    /// Kind of port (`enum ionic_port_type`).
    pub struct PortType(u8) {
        NONE = 0,
        ETH = 1,
        MGMT = 2,
    }
}

bitflags! {
    /// Device capabilities (`enum ionic_dev_capability`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DevCaps: u64 {
        /// VF control commands.
        const VF_CTRL = 1 << 0;
        /// DISCOVER_CMB.
        const DISC_CMB = 1 << 1;
        /// Extra port statistics.
        const EXTRA_STATS = 1 << 4;
    }
}

bitflags! {
    /// LIF capabilities (`enum ionic_lif_capability`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LifCaps: u64 {
        /// Ethernet.
        const ETH = 1 << 0;
        /// RDMA.
        const RDMA = 1 << 1;
    }
}
