//! The RDMA half: admin queue entries, completions, events (`ionic_fw.h`, `ionic_res.h` of the `ionic_rdma` driver).
//!
//! Byte orders are mixed in the ABI itself: admin commands are little-endian but for a few fields, completions and events
//! are big-endian but for a few.

use bitflags::bitflags;

use crate::{U16, U32, U64, open_enum, wire};

/// Big-endian 16-bit field.
pub type Be16 = zerocopy::big_endian::U16;
/// Big-endian 32-bit field.
pub type Be32 = zerocopy::big_endian::U32;

open_enum! {
    /// Admin queue opcode (`enum ionic_v1_admin_op`).
    pub struct AdminOp(u8) {
        NOOP = 0,
        CREATE_CQ = 1,
        CREATE_QP = 2,
        CREATE_MR = 3,
        STATS_HDRS = 4,
        STATS_VALS = 5,
        DESTROY_MR = 6,
        DESTROY_CQ = 8,
        MODIFY_QP = 9,
        QUERY_QP = 10,
        DESTROY_QP = 11,
        DEBUG = 12,
        CREATE_AH = 13,
        QUERY_AH = 14,
        MODIFY_DCQCN = 15,
        DESTROY_AH = 16,
        QP_STATS_HDRS = 17,
        QP_STATS_VALS = 18,
    }
}
/// Number of admin opcodes (`IONIC_V1_ADMIN_OPCODES_MAX`): the driver refuses any at or above what the identity says.
pub const ADMIN_OPCODES: u8 = 19;
open_enum! {
    /// Work request opcode of version 1 (`enum ionic_v1_op`).
    pub struct WorkOp(u8) {
        SEND = 0,
        SEND_INV = 1,
        SEND_IMM = 2,
        RDMA_READ = 3,
        RDMA_WRITE = 4,
        RDMA_WRITE_IMM = 5,
        ATOMIC_CS = 6,
        ATOMIC_FA = 7,
        REG_MR = 8,
        LOCAL_INV = 9,
        BIND_MW = 10,
    }
}

open_enum! {
    /// Status of a work completion (`enum ionic_status`, with `IBV_WC_*` of the same names behind it).
    pub struct WorkStatus(u8) {
        OK = 0,
        LOCAL_LEN = 1,
        LOCAL_QP_OPER = 2,
        LOCAL_PROT = 3,
        WQE_FLUSHED = 4,
        MEM_MGMT_OPER = 5,
        BAD_RESP = 6,
        LOCAL_ACC = 7,
        REMOTE_INV_REQ = 8,
        REMOTE_ACC = 9,
        REMOTE_OPER = 10,
        RETRY_EXCEEDED = 11,
        RNR_RETRY_EXCEEDED = 12,
        XRC_VIO = 13,
        LOCAL_SGL_INV = 14,
    }
}

bitflags! {
    /// Work request flags (`enum ionic_v1_flag`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct WorkFlags: u16 {
        /// Not before earlier reads and atomics are done.
        const FENCE = 1 << 0;
        /// The receiver's event is solicited.
        const SOL = 1 << 1;
        /// The payload is in the request.
        const INL = 1 << 2;
        /// It wants a completion.
        const SIG = 1 << 3;
        /// Lengths of 32 bits in front of the SGEs, which start at 64.
        const SPEC32 = 1 << 12;
        /// Lengths of 16 bits likewise.
        const SPEC16 = 1 << 13;
    }
}

/// Number of work request opcodes of version 1 that libionic needs to see.
pub const QP_OPCODES: u8 = 11;

open_enum! {
    /// Admin completion status (`enum ionic_v1_admin_status`), in [`RdmaAdminCqe::status_length`].
    pub struct AdminStatus(u8) {
        OK = 0,
        BAD_CMD = 1,
        BAD_INDEX = 2,
        BAD_STATE = 3,
        BAD_TYPE = 4,
        BAD_ATTR = 5,
        MSG_TOO_BIG = 6,
    }
}

open_enum! {
    /// Queue pair type (`enum ionic_qp_type`).
    pub struct QpType(u8) {
        RC = 0,
        UC = 1,
        RD = 2,
        UD = 3,
        SRQ = 4,
        XRC_INI = 5,
        XRC_TGT = 6,
        XRC_SRQ = 7,
    }
}

open_enum! {
    /// Queue pair state (`enum ionic_qp_state`), IB's order.
    pub struct QpState(u8) {
        RESET = 0,
        INIT = 1,
        RTR = 2,
        RTS = 3,
        SQD = 4,
        SQE = 5,
        ERR = 6,
    }
}

bitflags! {
    /// Memory region flags (`enum ionic_mr_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct MrFlags: u16 {
        /// The owner's local writes.
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging.
        const ON_DEMAND = 1 << 6;
        /// Physical buffer.
        const PB = 1 << 7;
        /// The key byte may be replaced.
        const UKEY_EN = 1 << 13;
        /// It is a memory window.
        const IS_MW = 1 << 14;
        /// It may be invalidated.
        const INV_EN = 1 << 15;
    }
}

bitflags! {
    /// Queue pair flags (`enum ionic_qp_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct QpFlags: u32 {
        /// Peers may write.
        const REMOTE_WRITE = 1 << 0;
        /// Peers may read.
        const REMOTE_READ = 1 << 1;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 2;
        /// Send queue in a physical buffer.
        const SQ_PB = 1 << 6;
        /// Receive queue in a physical buffer.
        const RQ_PB = 1 << 7;
        /// Send queue entries with SGEs at 64.
        const SQ_SPEC = 1 << 8;
        /// Receive queue entries likewise.
        const RQ_SPEC = 1 << 9;
        /// Peers may use the reserved key.
        const REMOTE_PRIVILEGED = 1 << 10;
        /// Draining.
        const SQ_DRAINING = 1 << 11;
        /// Tell when drained.
        const SQD_NOTIFY = 1 << 12;
        /// Send queue in controller memory.
        const SQ_CMB = 1 << 13;
        /// Receive queue in controller memory.
        const RQ_CMB = 1 << 14;
        /// The owner may use the reserved key.
        const PRIVILEGED = 1 << 15;
    }
}

bitflags! {
    /// Which fields of MODIFY_QP count (`enum ib_qp_attr_mask`, `include/rdma/ib_verbs.h`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct QpAttr: u32 {
        /// State.
        const STATE = 1 << 0;
        /// Current state.
        const CUR_STATE = 1 << 1;
        /// Notify when drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Access flags.
        const ACCESS_FLAGS = 1 << 3;
        /// P_Key.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Acknowledge timeout.
        const TIMEOUT = 1 << 9;
        /// Retry count.
        const RETRY_CNT = 1 << 10;
        /// RNR retry count.
        const RNR_RETRY = 1 << 11;
        /// Receive packet sequence number.
        const RQ_PSN = 1 << 12;
        /// Outstanding reads as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// RNR timer.
        const MIN_RNR_TIMER = 1 << 15;
        /// Send packet sequence number.
        const SQ_PSN = 1 << 16;
        /// Outstanding reads as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration.
        const PATH_MIG_STATE = 1 << 18;
        /// Capacities.
        const CAP = 1 << 19;
        /// Peer's queue pair.
        const DEST_QPN = 1 << 20;
        /// Rate limit.
        const RATE_LIMIT = 1 << 25;
    }
}

wire! {
    /// Head of an admin queue entry (`struct ionic_v1_admin_wqe`): entries are 64 bytes, a body that does not fit goes on in
    /// the next.
    pub struct RdmaAdminHead, 4 {
        /// What to do.
        pub op: AdminOp,
        /// Reserved.
        pub rsvd: u8,
        /// Bytes of the body.
        pub len: U16,
    }

    /// CREATE_MR body (`struct ionic_admin_create_mr`).
    pub struct CreateMr, 45 {
        /// First address.
        pub va: U64,
        /// Bytes.
        pub length: U64,
        /// Protection domain.
        pub pd_id: U32,
        /// Key: index and key byte.
        pub id_ver: U32,
        /// All ones.
        pub tbl_index: U32,
        /// Pages; 0 while nothing is mapped.
        pub map_count: U32,
        /// One page: its address with the offset in it. More: address of a table of page addresses.
        pub dma_addr: U64,
        /// [`MrFlags`].
        pub dbid_flags: U16,
        /// 0.
        pub pt_type: u8,
        /// 0.
        pub dir_size_log2: u8,
        /// Bytes of a page, log2.
        pub page_size_log2: u8,
    }

    /// CREATE_CQ body (`struct ionic_admin_create_cq`).
    pub struct CreateCq, 34 {
        /// Event queue.
        pub eq_id: U32,
        /// Entries, log2.
        pub depth_log2: u8,
        /// Bytes of an entry, log2.
        pub stride_log2: u8,
        /// 0.
        pub dir_size_log2_rsvd: u8,
        /// Bytes of a page, log2.
        pub page_size_log2: u8,
        /// 0.
        pub cq_flags: U32,
        /// Number.
        pub id_ver: U32,
        /// All ones.
        pub tbl_index: U32,
        /// Pages.
        pub map_count: U32,
        /// As in [`CreateMr::dma_addr`].
        pub dma_addr: U64,
        /// Doorbell page that may ring it.
        pub dbid_flags: U16,
    }

    /// CREATE_QP body (`struct ionic_admin_create_qp`); spans two entries.
    pub struct CreateQp, 64 {
        /// Protection domain.
        pub pd_id: U32,
        /// [`QpFlags`].
        pub priv_flags: Be32,
        /// Completion queue of the send queue.
        pub sq_cq_id: U32,
        /// Entries, log2.
        pub sq_depth_log2: u8,
        /// Bytes of an entry, log2.
        pub sq_stride_log2: u8,
        /// 0.
        pub sq_dir_size_log2: u8,
        /// Bytes of a page, log2.
        pub sq_page_size_log2: u8,
        /// All ones.
        pub sq_tbl_index_xrcd_id: U32,
        /// Pages.
        pub sq_map_count: U32,
        /// As in [`CreateMr::dma_addr`].
        pub sq_dma_addr: U64,
        /// Completion queue of the receive queue.
        pub rq_cq_id: U32,
        /// Entries, log2.
        pub rq_depth_log2: u8,
        /// Bytes of an entry, log2.
        pub rq_stride_log2: u8,
        /// 0.
        pub rq_dir_size_log2: u8,
        /// Bytes of a page, log2.
        pub rq_page_size_log2: u8,
        /// All ones.
        pub rq_tbl_index_srq_id: U32,
        /// Pages.
        pub rq_map_count: U32,
        /// As in [`CreateMr::dma_addr`].
        pub rq_dma_addr: U64,
        /// Number.
        pub id_ver: U32,
        /// Doorbell page that may ring it.
        pub dbid_flags: U16,
        /// [`QpType`].
        pub type_state: QpType,
        /// Reserved.
        pub rsvd: u8,
    }

    /// MODIFY_QP body (`struct ionic_admin_mod_qp`).
    pub struct ModifyQp, 60 {
        /// [`QpAttr`].
        pub attr_mask: Be32,
        /// 0.
        pub dcqcn_profile: u8,
        /// Shape of the header template.
        pub tfp_csum_profile: u8,
        /// Low half of [`QpFlags`].
        pub access_flags: Be16,
        /// Receive packet sequence number.
        pub rq_psn: U32,
        /// Send packet sequence number.
        pub sq_psn: U32,
        /// Q_Key or the peer's queue pair.
        pub qkey_dest_qpn: U32,
        /// Rate limit.
        pub rate_limit_kbps: U32,
        /// Path MTU, log2 bytes.
        pub pmtu: u8,
        /// Low nibble retry count, high nibble RNR retry.
        pub retry: u8,
        /// RNR timer code.
        pub rnr_timer: u8,
        /// Acknowledge timeout code.
        pub retry_timeout: u8,
        /// Reads as responder, log2.
        pub rsq_depth: u8,
        /// Reads as requester, log2.
        pub rrq_depth: u8,
        /// 0.
        pub pkey_id: U16,
        /// Bits 0–23 address handle, 24–31 length of the header template.
        pub ah_id_len: U32,
        /// Service level.
        pub en_pcp: u8,
        /// Traffic class.
        pub ip_dscp: u8,
        /// Reserved.
        pub rsvd2: u8,
        /// Low nibble: state to go to; high nibble: state to come from.
        pub type_state: u8,
        /// Unused.
        pub rrq_index: U32,
        /// Unused.
        pub rsq_index: U32,
        /// Header template.
        pub dma_addr: U64,
        /// Number.
        pub id_ver: U32,
    }

    /// QUERY_QP body (`struct ionic_admin_query_qp`).
    pub struct QueryQp, 34 {
        /// Where the header template goes, or 0.
        pub hdr_dma_addr: U64,
        /// Where [`QuerySq`] goes.
        pub sq_dma_addr: U64,
        /// Where [`QueryRq`] goes.
        pub rq_dma_addr: U64,
        /// Address handle.
        pub ah_id: U32,
        /// Number.
        pub id_ver: U32,
        /// 0.
        pub dbid_flags: U16,
    }

    /// Answer of QUERY_QP, send side (`struct ionic_v1_admin_query_qp_sq`).
    pub struct QuerySq, 20 {
        /// RNR timer code.
        pub rnr_timer: u8,
        /// Acknowledge timeout code.
        pub retry_timeout: u8,
        /// Low half of [`QpFlags`].
        pub access_perms_flags: Be16,
        /// Reserved.
        pub rsvd: Be16,
        /// 0.
        pub pkey_id: Be16,
        /// Q_Key or the peer's queue pair.
        pub qkey_dest_qpn: Be32,
        /// Rate limit.
        pub rate_limit_kbps: Be32,
        /// Receive packet sequence number.
        pub rq_psn: Be32,
    }

    /// Answer of QUERY_QP, receive side (`struct ionic_v1_admin_query_qp_rq`).
    pub struct QueryRq, 12 {
        /// High nibble: [`QpState`]; low nibble: path MTU, log2 bytes.
        pub state_pmtu: u8,
        /// Low nibble retry count, high nibble RNR retry.
        pub retry_rnrtry: u8,
        /// Reads as requester, log2.
        pub rrq_depth: u8,
        /// Reads as responder, log2.
        pub rsq_depth: u8,
        /// Send packet sequence number.
        pub sq_psn: Be32,
        /// Low half of [`QpFlags`].
        pub access_perms_flags: Be16,
        /// Reserved.
        pub rsvd: Be16,
    }

    /// CREATE_AH body (`struct ionic_admin_create_ah`).
    pub struct CreateAh, 24 {
        /// Header template.
        pub dma_addr: U64,
        /// Its bytes.
        pub length: U32,
        /// Protection domain.
        pub pd_id: U32,
        /// Number.
        pub id_ver: U32,
        /// 0.
        pub dbid_flags: U16,
        /// Shape of the header template.
        pub csum_profile: u8,
        /// 0.
        pub crypto: u8,
    }

    /// Body of the DESTROY commands (`struct ionic_admin_destroy_mr` and three like it).
    pub struct DestroyById, 4 {
        /// Number; of a memory region: its key.
        pub id_ver: U32,
    }

    /// Body of the statistics commands (`struct ionic_admin_stats_hdr`).
    pub struct StatsCmd, 17 {
        /// Where they go.
        pub dma_addr: U64,
        /// Room, bytes.
        pub length: U32,
        /// Queue pair, or 0.
        pub id_ver: U32,
        /// Unused.
        pub type_state: u8,
    }

    /// Admin completion (`struct ionic_v1_cqe`, admin form).
    pub struct RdmaAdminCqe, 32 {
        /// Ring index of the command's first entry.
        pub cmd_idx: Be16,
        /// What it was.
        pub cmd_op: AdminOp,
        /// Reserved.
        pub rsvd: [u8; 17],
        /// 0.
        pub old_sq_cindex: U16,
        /// 0.
        pub old_rq_cq_cindex: U16,
        /// [`AdminStatus`] if [`CQE_ERROR`] is set.
        pub status_length: Be32,
        /// Queue in bits 8–31, type in bits 5–7, [`CQE_ERROR`], [`CQE_COLOR`].
        pub qid_type_flags: Be32,
    }
}

/// Colour of a completion (`IONIC_V1_CQE_COLOR`).
pub const CQE_COLOR: u32 = 1 << 0;
/// The completion is an error (`IONIC_V1_CQE_ERROR`).
pub const CQE_ERROR: u32 = 1 << 1;
/// Shift of the completion type (`IONIC_V1_CQE_TYPE_SHIFT`).
pub const CQE_TYPE_SHIFT: u32 = 5;
/// Shift of the queue number (`IONIC_V1_CQE_QID_SHIFT`).
pub const CQE_QID_SHIFT: u32 = 8;

open_enum! {
    /// Completion type (`IONIC_V1_CQE_TYPE_*` of `enum ionic_v1_cqe_qtf_bits`).
    pub struct CqeType(u8) {
        ADMIN = 0,
        RECV = 1,
        SEND_MSN = 2,
        SEND_NPG = 3,
    }
}

/// Colour of an event (`IONIC_V1_EQE_COLOR`).
pub const EQE_COLOR: u32 = 1 << 0;
/// Shift of the event type (`IONIC_V1_EQE_TYPE_SHIFT`).
pub const EQE_TYPE_SHIFT: u32 = 1;
/// Shift of the event code (`IONIC_V1_EQE_CODE_SHIFT`).
pub const EQE_CODE_SHIFT: u32 = 4;
/// Shift of the queue number (`IONIC_V1_EQE_QID_SHIFT`).
pub const EQE_QID_SHIFT: u32 = 8;
/// Event type: completion queue.
pub const EQE_TYPE_CQ: u32 = 0;
/// Event type: queue pair.
pub const EQE_TYPE_QP: u32 = 1;
/// Completion queue event: an armed queue has a completion.
pub const EQE_CQ_NOTIFY: u32 = 0;
/// Completion queue event: it broke.
pub const EQE_CQ_ERR: u32 = 8;
/// Queue pair event: its send queue is drained.
pub const EQE_QP_SQ_DRAIN: u32 = 1;
/// Queue pair event: it broke.
pub const EQE_QP_ERR: u32 = 8;
/// Queue pair event: a peer asked for what makes no sense.
pub const EQE_QP_ERR_REQUEST: u32 = 9;
/// Queue pair event: a peer asked for what it may not.
pub const EQE_QP_ERR_ACCESS: u32 = 10;
/// Receive completion: shift of the operation in its third word (`IONIC_V1_CQE_RECV_OP_SHIFT`).
pub const CQE_RECV_OP_SHIFT: u32 = 24;
/// Receive completion: the packet had a VLAN tag (`IONIC_V1_CQE_RECV_IS_VLAN`).
pub const CQE_RECV_VLAN: u32 = 1 << 30;
/// Receive completion: the packet was IPv4 (`IONIC_V1_CQE_RECV_IS_IPV4`).
pub const CQE_RECV_IPV4: u32 = 1 << 31;

/// Rings of a completion queue's doorbell: consumer index, arm, arm for solicited only (`IONIC_CQ_RING_*`).
pub const CQ_RING_CONS: u8 = 0;
/// See [`CQ_RING_CONS`].
pub const CQ_RING_ARM: u8 = 1;
/// See [`CQ_RING_CONS`].
pub const CQ_RING_SOL: u8 = 2;
