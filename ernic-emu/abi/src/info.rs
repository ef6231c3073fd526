//! Blocks that the device keeps up to date in host memory: LIF information and statistics, port information.

use crate::{QTYPE_MAX, U16, U32, U64, open_enum, wire};

/// Declares a block of 64-bit counters.
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $name:ident, $size:literal { $($field:ident),* $(,)? }) => {
        wire! {
            $(#[$meta])*
            pub struct $name, $size {
                $(
                    #[doc = concat!("`", stringify!($field), "`; a count of what its name says (octets and bytes are bytes).")]
                    pub $field: U64,
                )*
            }
        }
    };
}

wire! {
    /// LIF configuration (`union ionic_lif_config`).
    pub struct LifConfig, 256 {
        /// [`crate::LifState`].
        pub state: u8,
        /// Reserved.
        pub rsvd: [u8; 3],
        /// Interface name, NUL-padded.
        pub name: [u8; 16],
        /// MTU, bytes.
        pub mtu: U32,
        /// Station address.
        pub mac: [u8; 6],
        /// Default VLAN.
        pub vlan: U16,
        /// [`crate::EthFeatures`].
        pub features: U64,
        /// Queues per [`crate::QType`].
        pub queue_count: [U32; QTYPE_MAX],
        /// The rest.
        pub rsvd2: [u8; 152],
    }

    /// LIF status (`struct ionic_lif_status`).
    pub struct LifStatus, 64 {
        /// Last notify queue event.
        pub eid: U64,
        /// Port.
        pub port_num: u8,
        /// Reserved.
        pub rsvd: u8,
        /// [`PortOperStatus`] as a u16.
        pub link_status: U16,
        /// Mb/s.
        pub link_speed: U32,
        /// How often the link went down.
        pub link_down_count: U16,
        /// Reserved.
        pub rsvd2: [u8; 46],
    }

    /// LIF information (`struct ionic_lif_info`), at LIF_INIT's `info_pa`.
    pub struct LifInfo, 1344 {
        /// Configuration.
        pub config: LifConfig,
        /// Status.
        pub status: LifStatus,
        /// Statistics.
        pub stats: LifStats,
    }

    /// Port configuration (`union ionic_port_config`).
    pub struct PortConfig, 256 {
        /// Mb/s.
        pub speed: U32,
        /// Bytes.
        pub mtu: U32,
        /// Administrative state.
        pub state: PortAdminState,
        /// Autonegotiation is on.
        pub an_enable: u8,
        /// FEC: 0 none, 1 FC, 2 RS (`enum ionic_port_fec_type`).
        pub fec_type: u8,
        /// Pause: low nibble `enum ionic_port_pause_type`, high nibble TX 0x10 and RX 0x20.
        pub pause_type: u8,
        /// Loopback: 0 none, 1 MAC, 2 PHY (`enum ionic_port_loopback_mode`).
        pub loopback_mode: u8,
        /// The rest.
        pub rsvd: [u8; 243],
    }

    /// Transceiver (`struct ionic_xcvr_status`).
    pub struct XcvrStatus, 260 {
        /// State.
        pub state: XcvrState,
        /// Copper or fibre.
        pub phy: PhyType,
        /// [`XcvrPid`].
        pub pid: U16,
        /// Its EEPROM.
        pub sprom: [u8; 256],
    }

    /// Port status (`struct ionic_port_status`).
    pub struct PortStatus, 320 {
        /// Port.
        pub id: U32,
        /// Mb/s.
        pub speed: U32,
        /// Link.
        pub status: PortOperStatus,
        /// How often the link went down.
        pub link_down_count: U16,
        /// FEC in use.
        pub fec_type: u8,
        /// Reserved.
        pub rsvd: [u8; 48],
        /// Transceiver.
        pub xcvr: XcvrStatus,
    }

    /// Extra port statistics (`struct ionic_port_extra_stats`); all ones: invalid.
    pub struct PortExtraStats, 160 {
        /// RS-FEC blocks corrected.
        pub rsfec_correctable_blocks: U64,
        /// RS-FEC blocks lost.
        pub rsfec_uncorrectable_blocks: U64,
        /// Bits corrected.
        pub fec_corrected_bits_total: U64,
        /// Bits received.
        pub rx_bits_phy: U64,
        /// Codewords by number of errors.
        pub fec_codeword_error_bin: [U64; 16],
    }

    /// Port information (`struct ionic_port_info`), at PORT_INIT's `info_pa`.
    pub struct PortInfo, 2208 {
        /// Configuration.
        pub config: PortConfig,
        /// Status.
        pub status: PortStatus,
        /// MAC statistics.
        pub stats: PortStats,
        /// Transceiver EEPROM, upper pages.
        pub sprom_epage: [u8; 384],
        /// Reserved.
        pub rsvd: [u8; 376],
        /// Extra statistics.
        pub extra_stats: PortExtraStats,
    }
}

counters! {
    /// LIF statistics (`struct ionic_lif_stats`). `ip -s link` shows nothing else.
    pub struct LifStats, 1024 {
        rx_ucast_bytes, rx_ucast_packets, rx_mcast_bytes, rx_mcast_packets, rx_bcast_bytes, rx_bcast_packets, rsvd0,
        rsvd1, rx_ucast_drop_bytes, rx_ucast_drop_packets, rx_mcast_drop_bytes, rx_mcast_drop_packets,
        rx_bcast_drop_bytes, rx_bcast_drop_packets, rx_dma_error, rsvd2, tx_ucast_bytes, tx_ucast_packets,
        tx_mcast_bytes, tx_mcast_packets, tx_bcast_bytes, tx_bcast_packets, rsvd3, rsvd4, tx_ucast_drop_bytes,
        tx_ucast_drop_packets, tx_mcast_drop_bytes, tx_mcast_drop_packets, tx_bcast_drop_bytes,
        tx_bcast_drop_packets, tx_dma_error, rsvd5, rx_queue_disabled, rx_queue_empty, rx_queue_error,
        rx_desc_fetch_error, rx_desc_data_error, rsvd6, rsvd7, rsvd8, tx_queue_disabled, tx_queue_error,
        tx_desc_fetch_error, tx_desc_data_error, tx_queue_empty, rsvd10, rsvd11, rsvd12, tx_rdma_ucast_bytes,
        tx_rdma_ucast_packets, tx_rdma_mcast_bytes, tx_rdma_mcast_packets, tx_rdma_cnp_packets, rsvd13, rsvd14,
        rsvd15, rx_rdma_ucast_bytes, rx_rdma_ucast_packets, rx_rdma_mcast_bytes, rx_rdma_mcast_packets,
        rx_rdma_cnp_packets, rx_rdma_ecn_packets, rsvd16, rsvd17, rsvd18, rsvd19, rsvd20, rsvd21, rsvd22, rsvd23,
        rsvd24, rsvd25, rsvd26, rsvd27, rsvd28, rsvd29, rsvd30, rsvd31, rsvd32, rsvd33, rsvd34, rsvd35, rsvd36,
        rsvd37, rsvd38, rsvd39, rsvd40, rsvd41, rsvd42, rsvd43, rsvd44, rsvd45, rsvd46, rsvd47, rsvd48, rsvd49,
        rdma_req_rx_pkt_seq_err, rdma_req_rx_rnr_retry_err, rdma_req_rx_remote_access_err,
        rdma_req_rx_remote_inv_req_err, rdma_req_rx_remote_oper_err, rdma_req_rx_implied_nak_seq_err,
        rdma_req_rx_cqe_err, rdma_req_rx_cqe_flush_err, rdma_req_rx_dup_responses, rdma_req_rx_invalid_packets,
        rdma_req_tx_local_access_err, rdma_req_tx_local_oper_err, rdma_req_tx_memory_mgmt_err, rsvd52, rsvd53,
        rsvd54, rdma_resp_rx_dup_requests, rdma_resp_rx_out_of_buffer, rdma_resp_rx_out_of_seq_pkts,
        rdma_resp_rx_cqe_err, rdma_resp_rx_cqe_flush_err, rdma_resp_rx_local_len_err, rdma_resp_rx_inv_request_err,
        rdma_resp_rx_local_qp_oper_err, rdma_resp_rx_out_of_atomic_resource, rdma_resp_tx_pkt_seq_err,
        rdma_resp_tx_remote_inv_req_err, rdma_resp_tx_remote_access_err, rdma_resp_tx_remote_oper_err,
        rdma_resp_tx_rnr_retry_err, rsvd57, rsvd58,
    }
}

counters! {
    /// Port MAC statistics (`struct ionic_port_stats`).
    pub struct PortStats, 712 {
        frames_rx_ok, frames_rx_all, frames_rx_bad_fcs, frames_rx_bad_all, octets_rx_ok, octets_rx_all,
        frames_rx_unicast, frames_rx_multicast, frames_rx_broadcast, frames_rx_pause, frames_rx_bad_length,
        frames_rx_undersized, frames_rx_oversized, frames_rx_fragments, frames_rx_jabber, frames_rx_pripause,
        frames_rx_stomped_crc, frames_rx_too_long, frames_rx_vlan_good, frames_rx_dropped, frames_rx_less_than_64b,
        frames_rx_64b, frames_rx_65b_127b, frames_rx_128b_255b, frames_rx_256b_511b, frames_rx_512b_1023b,
        frames_rx_1024b_1518b, frames_rx_1519b_2047b, frames_rx_2048b_4095b, frames_rx_4096b_8191b,
        frames_rx_8192b_9215b, frames_rx_other, frames_tx_ok, frames_tx_all, frames_tx_bad, octets_tx_ok,
        octets_tx_total, frames_tx_unicast, frames_tx_multicast, frames_tx_broadcast, frames_tx_pause,
        frames_tx_pripause, frames_tx_vlan, frames_tx_less_than_64b, frames_tx_64b, frames_tx_65b_127b,
        frames_tx_128b_255b, frames_tx_256b_511b, frames_tx_512b_1023b, frames_tx_1024b_1518b, frames_tx_1519b_2047b,
        frames_tx_2048b_4095b, frames_tx_4096b_8191b, frames_tx_8192b_9215b, frames_tx_other, frames_tx_pri_0,
        frames_tx_pri_1, frames_tx_pri_2, frames_tx_pri_3, frames_tx_pri_4, frames_tx_pri_5, frames_tx_pri_6,
        frames_tx_pri_7, frames_rx_pri_0, frames_rx_pri_1, frames_rx_pri_2, frames_rx_pri_3, frames_rx_pri_4,
        frames_rx_pri_5, frames_rx_pri_6, frames_rx_pri_7, tx_pripause_0_1us_count, tx_pripause_1_1us_count,
        tx_pripause_2_1us_count, tx_pripause_3_1us_count, tx_pripause_4_1us_count, tx_pripause_5_1us_count,
        tx_pripause_6_1us_count, tx_pripause_7_1us_count, rx_pripause_0_1us_count, rx_pripause_1_1us_count,
        rx_pripause_2_1us_count, rx_pripause_3_1us_count, rx_pripause_4_1us_count, rx_pripause_5_1us_count,
        rx_pripause_6_1us_count, rx_pripause_7_1us_count, rx_pause_1us_count, frames_tx_truncated,
    }
}

open_enum! {
    /// Administrative state of the port (`enum ionic_port_admin_state`).
    pub struct PortAdminState(u8) {
        NONE = 0,
        DOWN = 1,
        UP = 2,
    }
}

open_enum! {
    /// Link state (`enum ionic_port_oper_status`).
    pub struct PortOperStatus(u8) {
        NONE = 0,
        UP = 1,
        DOWN = 2,
    }
}

open_enum! {
    /// Transceiver state (`enum ionic_xcvr_state`).
    pub struct XcvrState(u8) {
        REMOVED = 0,
        INSERTED = 1,
        PENDING = 2,
        SPROM_READ = 3,
        SPROM_READ_ERR = 4,
    }
}

open_enum! {
    /// Medium (`enum ionic_phy_type`).
    pub struct PhyType(u8) {
        NONE = 0,
        COPPER = 1,
        FIBER = 2,
    }
}

/// Transceiver model (`enum ionic_xcvr_pid`), those that this project uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XcvrPid(pub u16);

impl XcvrPid {
    /// Unknown (`IONIC_XCVR_PID_UNKNOWN`).
    pub const UNKNOWN: Self = Self(0);
    /// 100G copper (`IONIC_XCVR_PID_QSFP_100G_CR4`).
    pub const QSFP_100G_CR4: Self = Self(1);
}

/// Link speed of the emulated port, Mb/s (`IONIC_SPEED_100G`).
pub const SPEED_100G: u32 = 100_000;
