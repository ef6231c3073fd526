//! What is needed of libibverbs: structures as `infiniband/verbs.h` lays them out on 64-bit machines, the functions that the
//! library exports, and four that it does not: the header's `ibv_poll_cq`, `ibv_req_notify_cq`, `ibv_post_send` and
//! `ibv_post_recv` call what is in a table of the context. None of it has changed since libibverbs 1.1 (2007), but for
//! `_ibv_query_gid_ex`, which came with rdma-core 32 (`libibverbs.map.in`, `IBVERBS_1.11`).

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`; only its address counts.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Device([u8; 0]);

/// The first members of `struct ibv_context`; more follow.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
}

/// `struct ibv_context_ops`: 32 pointers to functions, of which the library fills those that the header calls.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ContextOps {
    _before: [*mut c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _between: [*mut c_void; 12],
    pub(super) post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(super) post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _behind: [*mut c_void; 5],
}

/// `struct ibv_comp_channel`, which the library allocates and writes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CompChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

/// `struct ibv_sge`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr` of an RDMA WRITE: the members of its unions that this has, and room for the others.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// In network byte order.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) _more: [u64; 9],
}

impl Default for SendWr {
    fn default() -> Self {
        Self {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            imm_data: 0,
            remote_addr: 0,
            rkey: 0,
            _more: [0; 9],
        }
    }
}

/// `struct ibv_recv_wr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network byte order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `struct ibv_pd`; only its address counts.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Pd([u8; 0]);

/// `struct ibv_cq`; only its address counts.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Cq([u8; 0]);

/// The beginning of `struct ibv_port_attr` that the exported `ibv_query_port` writes: all up to `flags` (rdma-core,
/// `libibverbs/verbs.c`, `struct _compat_ibv_port_attr`). What has been added since is only reached through a function pointer.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PortAttr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
}

const _: () = assert!(size_of::<PortAttr>() == 48);

/// `union ibv_gid`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct Gid(pub(super) [u8; 16]);

/// `struct ibv_gid_entry`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct GidEntry {
    pub(super) gid: Gid,
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `struct ibv_mr`, which the library allocates and writes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Mr {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// The first members of `struct ibv_qp`, which the library allocates and writes; more follow.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut Pd,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: c_uint,
}

/// `struct ibv_qp_cap`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with the members of `struct ibv_global_route` in it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct AhAttr {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_global_route`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct GlobalRoute {
    pub(super) dgid: Gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// `struct ibv_qp_attr`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `enum ibv_port_state`: the link is up. 5 is the same with a deferred error.
pub(super) const PORT_ACTIVE: [c_uint; 2] = [4, 5];

/// `IBV_LINK_LAYER_INFINIBAND`.
pub(super) const LINK_LAYER_INFINIBAND: u8 = 1;

/// `enum ibv_access_flags`.
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;

/// `IBV_QPT_RC`.
pub(super) const QPT_RC: c_uint = 2;

/// `enum ibv_qp_state`.
pub(super) const QPS_INIT: c_uint = 1;
pub(super) const QPS_RTR: c_uint = 2;
pub(super) const QPS_RTS: c_uint = 3;

/// `enum ibv_qp_attr_mask`: what a move to INIT says.
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
const QP_AV: c_int = 1 << 7;
const QP_PATH_MTU: c_int = 1 << 8;
const QP_TIMEOUT: c_int = 1 << 9;
const QP_RETRY_CNT: c_int = 1 << 10;
const QP_RNR_RETRY: c_int = 1 << 11;
const QP_RQ_PSN: c_int = 1 << 12;
const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
const QP_MIN_RNR_TIMER: c_int = 1 << 15;
const QP_SQ_PSN: c_int = 1 << 16;
const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
const QP_DEST_QPN: c_int = 1 << 20;

/// What a move to RTR says, and one to RTS (`ibv_modify_qp(3)`, the required attributes of RC).
pub(super) const TO_RTR: c_int =
    QP_STATE | QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN | QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER;
pub(super) const TO_RTS: c_int = QP_STATE | QP_SQ_PSN | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_MAX_QP_RD_ATOMIC;

/// `IBV_WR_RDMA_WRITE_WITH_IMM`.
pub(super) const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
/// `IBV_SEND_SIGNALED`.
pub(super) const SEND_SIGNALED: c_uint = 2;
/// `IBV_WC_SUCCESS`.
pub(super) const WC_SUCCESS: c_uint = 0;
/// `enum ibv_wc_opcode`.
pub(super) const WC_RDMA_WRITE: c_uint = 1;
pub(super) const WC_RECV_RDMA_WITH_IMM: c_uint = 129;
/// `IBV_WC_WITH_IMM`.
pub(super) const WC_WITH_IMM: c_uint = 2;

macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The library's functions, and the library, which stays loaded for as long as they are there.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            _library: libloading::Library,
        }

        impl Functions {
            /// Finds the functions in a library.
            ///
            /// # Safety
            ///
            /// It is libibverbs.
            pub(super) unsafe fn find(library: libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        // SAFETY: libibverbs exports the function with this signature.
                        *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list(*mut *mut Device) -> ();
    ibv_get_device_name(*mut Device) -> *const c_char;
    ibv_open_device(*mut Device) -> *mut Context;
    ibv_close_device(*mut Context) -> c_int;
    ibv_query_port(*mut Context, u8, *mut PortAttr) -> c_int;
    _ibv_query_gid_ex(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    ibv_alloc_pd(*mut Context) -> *mut Pd;
    ibv_dealloc_pd(*mut Pd) -> c_int;
    ibv_reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr(*mut Mr) -> c_int;
    ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
    ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut Cq, c_uint) -> ();
    ibv_wc_status_str(c_uint) -> *const c_char;
    ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_destroy_cq(*mut Cq) -> c_int;
    ibv_create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp(*mut Qp) -> c_int;
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Functions(libibverbs)")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_wrap)]

    use std::{mem::offset_of, path::Path, process::Command};

    use super::*;

    /// What [`ours`] is to be: printed by the program of [`program`], built with the header of Debian's libibverbs-dev 44.0-2
    /// and, with the same result, of 65.0-1.1, by gcc 12 on x86-64.
    const TABLE: &str = "\
ibv_gid_entry 32
ibv_gid_entry.gid 0
ibv_gid_entry.gid_index 16
ibv_gid_entry.port_num 20
ibv_gid_entry.gid_type 24
ibv_gid_entry.ndev_ifindex 28
ibv_port_attr.state 0
ibv_port_attr.gid_tbl_len 12
ibv_port_attr.lid 34
ibv_port_attr.phys_state 45
ibv_port_attr.link_layer 46
ibv_port_attr.flags 47
ibv_mr 48
ibv_mr.addr 16
ibv_mr.lkey 36
ibv_mr.rkey 40
ibv_qp_cap 20
ibv_qp_init_attr 64
ibv_qp_init_attr.send_cq 8
ibv_qp_init_attr.cap 32
ibv_qp_init_attr.qp_type 52
ibv_qp_init_attr.sq_sig_all 56
ibv_global_route 24
ibv_ah_attr 32
ibv_qp_attr 144
ibv_qp_attr.qp_access_flags 32
ibv_qp_attr.cap 36
ibv_qp_attr.ah_attr 56
ibv_qp_attr.pkey_index 120
ibv_qp_attr.port_num 129
ibv_qp_attr.rate_limit 136
ibv_qp.handle 48
ibv_qp.qp_num 52
ibv_qp.state 56
IBV_PORT_ACTIVE 4
IBV_PORT_ACTIVE_DEFER 5
IBV_LINK_LAYER_INFINIBAND 1
IBV_GID_TYPE_IB 0
IBV_GID_TYPE_ROCE_V1 1
IBV_GID_TYPE_ROCE_V2 2
IBV_ACCESS_LOCAL_WRITE 1
IBV_ACCESS_REMOTE_WRITE 2
IBV_ACCESS_REMOTE_READ 4
IBV_QPT_RC 2
IBV_QPS_INIT 1
IBV_QPS_RTR 2
IBV_QPS_RTS 3
IBV_QP_STATE 1
IBV_QP_ACCESS_FLAGS 8
IBV_QP_PKEY_INDEX 16
IBV_QP_PORT 32
IBV_QP_AV 128
IBV_QP_PATH_MTU 256
IBV_QP_TIMEOUT 512
IBV_QP_RETRY_CNT 1024
IBV_QP_RNR_RETRY 2048
IBV_QP_RQ_PSN 4096
IBV_QP_MAX_QP_RD_ATOMIC 8192
IBV_QP_MIN_RNR_TIMER 32768
IBV_QP_SQ_PSN 65536
IBV_QP_MAX_DEST_RD_ATOMIC 131072
IBV_QP_DEST_QPN 1048576
ibv_context.ops 8
ibv_context.ops.poll_cq 96
ibv_context.ops.req_notify_cq 104
ibv_context.ops.post_send 208
ibv_context.ops.post_recv 216
ibv_context_ops 256
ibv_comp_channel.fd 8
ibv_comp_channel 16
ibv_sge 16
ibv_sge.length 8
ibv_sge.lkey 12
ibv_send_wr 128
ibv_send_wr.next 8
ibv_send_wr.sg_list 16
ibv_send_wr.num_sge 24
ibv_send_wr.opcode 28
ibv_send_wr.send_flags 32
ibv_send_wr.imm_data 36
ibv_send_wr.wr.rdma.remote_addr 40
ibv_send_wr.wr.rdma.rkey 48
ibv_recv_wr 32
ibv_recv_wr.num_sge 24
ibv_wc 48
ibv_wc.status 8
ibv_wc.opcode 12
ibv_wc.byte_len 20
ibv_wc.imm_data 24
ibv_wc.wc_flags 36
ibv_wc.dlid_path_bits 45
ibv_qp_attr.path_mtu 8
ibv_qp_attr.rq_psn 20
ibv_qp_attr.sq_psn 24
ibv_qp_attr.dest_qp_num 28
ibv_qp_attr.max_rd_atomic 126
ibv_qp_attr.max_dest_rd_atomic 127
ibv_qp_attr.min_rnr_timer 128
ibv_qp_attr.timeout 130
ibv_qp_attr.retry_cnt 131
ibv_qp_attr.rnr_retry 132
ibv_global_route.flow_label 16
ibv_global_route.sgid_index 20
ibv_global_route.hop_limit 21
ibv_ah_attr.dlid 24
ibv_ah_attr.is_global 29
ibv_ah_attr.port_num 30
ibv_port_attr.active_mtu 8
IBV_WR_RDMA_WRITE_WITH_IMM 1
IBV_SEND_SIGNALED 2
IBV_WC_SUCCESS 0
IBV_WC_RDMA_WRITE 1
IBV_WC_RECV_RDMA_WITH_IMM 129
IBV_WC_WITH_IMM 2
";

    /// The same lines from our structures and constants.
    fn ours() -> String {
        let lines: &[(&str, i64)] = &[
            ("ibv_gid_entry", size_of::<GidEntry>() as i64),
            ("ibv_gid_entry.gid", offset_of!(GidEntry, gid) as i64),
            ("ibv_gid_entry.gid_index", offset_of!(GidEntry, gid_index) as i64),
            ("ibv_gid_entry.port_num", offset_of!(GidEntry, port_num) as i64),
            ("ibv_gid_entry.gid_type", offset_of!(GidEntry, gid_type) as i64),
            ("ibv_gid_entry.ndev_ifindex", offset_of!(GidEntry, ndev_ifindex) as i64),
            ("ibv_port_attr.state", offset_of!(PortAttr, state) as i64),
            ("ibv_port_attr.gid_tbl_len", offset_of!(PortAttr, gid_tbl_len) as i64),
            ("ibv_port_attr.lid", offset_of!(PortAttr, lid) as i64),
            ("ibv_port_attr.phys_state", offset_of!(PortAttr, phys_state) as i64),
            ("ibv_port_attr.link_layer", offset_of!(PortAttr, link_layer) as i64),
            ("ibv_port_attr.flags", offset_of!(PortAttr, flags) as i64),
            ("ibv_mr", size_of::<Mr>() as i64),
            ("ibv_mr.addr", offset_of!(Mr, addr) as i64),
            ("ibv_mr.lkey", offset_of!(Mr, lkey) as i64),
            ("ibv_mr.rkey", offset_of!(Mr, rkey) as i64),
            ("ibv_qp_cap", size_of::<QpCap>() as i64),
            ("ibv_qp_init_attr", size_of::<QpInitAttr>() as i64),
            ("ibv_qp_init_attr.send_cq", offset_of!(QpInitAttr, send_cq) as i64),
            ("ibv_qp_init_attr.cap", offset_of!(QpInitAttr, cap) as i64),
            ("ibv_qp_init_attr.qp_type", offset_of!(QpInitAttr, qp_type) as i64),
            ("ibv_qp_init_attr.sq_sig_all", offset_of!(QpInitAttr, sq_sig_all) as i64),
            ("ibv_global_route", size_of::<GlobalRoute>() as i64),
            ("ibv_ah_attr", size_of::<AhAttr>() as i64),
            ("ibv_qp_attr", size_of::<QpAttr>() as i64),
            ("ibv_qp_attr.qp_access_flags", offset_of!(QpAttr, qp_access_flags) as i64),
            ("ibv_qp_attr.cap", offset_of!(QpAttr, cap) as i64),
            ("ibv_qp_attr.ah_attr", offset_of!(QpAttr, ah_attr) as i64),
            ("ibv_qp_attr.pkey_index", offset_of!(QpAttr, pkey_index) as i64),
            ("ibv_qp_attr.port_num", offset_of!(QpAttr, port_num) as i64),
            ("ibv_qp_attr.rate_limit", offset_of!(QpAttr, rate_limit) as i64),
            ("ibv_qp.handle", offset_of!(Qp, handle) as i64),
            ("ibv_qp.qp_num", offset_of!(Qp, qp_num) as i64),
            ("ibv_qp.state", offset_of!(Qp, state) as i64),
            ("IBV_PORT_ACTIVE", PORT_ACTIVE[0].into()),
            ("IBV_PORT_ACTIVE_DEFER", PORT_ACTIVE[1].into()),
            ("IBV_LINK_LAYER_INFINIBAND", LINK_LAYER_INFINIBAND.into()),
            ("IBV_GID_TYPE_IB", i64::from(crate::gid::GidType::new(0) == crate::gid::GidType::Ib) - 1),
            ("IBV_GID_TYPE_ROCE_V1", i64::from(crate::gid::GidType::new(1) == crate::gid::GidType::RoceV1)),
            ("IBV_GID_TYPE_ROCE_V2", 2 * i64::from(crate::gid::GidType::new(2) == crate::gid::GidType::RoceV2)),
            ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE.into()),
            ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE.into()),
            ("IBV_ACCESS_REMOTE_READ", ACCESS_REMOTE_READ.into()),
            ("IBV_QPT_RC", QPT_RC.into()),
            ("IBV_QPS_INIT", QPS_INIT.into()),
            ("IBV_QPS_RTR", QPS_RTR.into()),
            ("IBV_QPS_RTS", QPS_RTS.into()),
            ("IBV_QP_STATE", QP_STATE.into()),
            ("IBV_QP_ACCESS_FLAGS", QP_ACCESS_FLAGS.into()),
            ("IBV_QP_PKEY_INDEX", QP_PKEY_INDEX.into()),
            ("IBV_QP_PORT", QP_PORT.into()),
            ("IBV_QP_AV", QP_AV.into()),
            ("IBV_QP_PATH_MTU", QP_PATH_MTU.into()),
            ("IBV_QP_TIMEOUT", QP_TIMEOUT.into()),
            ("IBV_QP_RETRY_CNT", QP_RETRY_CNT.into()),
            ("IBV_QP_RNR_RETRY", QP_RNR_RETRY.into()),
            ("IBV_QP_RQ_PSN", QP_RQ_PSN.into()),
            ("IBV_QP_MAX_QP_RD_ATOMIC", QP_MAX_QP_RD_ATOMIC.into()),
            ("IBV_QP_MIN_RNR_TIMER", QP_MIN_RNR_TIMER.into()),
            ("IBV_QP_SQ_PSN", QP_SQ_PSN.into()),
            ("IBV_QP_MAX_DEST_RD_ATOMIC", QP_MAX_DEST_RD_ATOMIC.into()),
            ("IBV_QP_DEST_QPN", QP_DEST_QPN.into()),
            ("ibv_context.ops", offset_of!(Context, ops) as i64),
            ("ibv_context.ops.poll_cq", offset_of!(Context, ops.poll_cq) as i64),
            ("ibv_context.ops.req_notify_cq", offset_of!(Context, ops.req_notify_cq) as i64),
            ("ibv_context.ops.post_send", offset_of!(Context, ops.post_send) as i64),
            ("ibv_context.ops.post_recv", offset_of!(Context, ops.post_recv) as i64),
            ("ibv_context_ops", size_of::<ContextOps>() as i64),
            ("ibv_comp_channel.fd", offset_of!(CompChannel, fd) as i64),
            ("ibv_comp_channel", size_of::<CompChannel>() as i64),
            ("ibv_sge", size_of::<Sge>() as i64),
            ("ibv_sge.length", offset_of!(Sge, length) as i64),
            ("ibv_sge.lkey", offset_of!(Sge, lkey) as i64),
            ("ibv_send_wr", size_of::<SendWr>() as i64),
            ("ibv_send_wr.next", offset_of!(SendWr, next) as i64),
            ("ibv_send_wr.sg_list", offset_of!(SendWr, sg_list) as i64),
            ("ibv_send_wr.num_sge", offset_of!(SendWr, num_sge) as i64),
            ("ibv_send_wr.opcode", offset_of!(SendWr, opcode) as i64),
            ("ibv_send_wr.send_flags", offset_of!(SendWr, send_flags) as i64),
            ("ibv_send_wr.imm_data", offset_of!(SendWr, imm_data) as i64),
            ("ibv_send_wr.wr.rdma.remote_addr", offset_of!(SendWr, remote_addr) as i64),
            ("ibv_send_wr.wr.rdma.rkey", offset_of!(SendWr, rkey) as i64),
            ("ibv_recv_wr", size_of::<RecvWr>() as i64),
            ("ibv_recv_wr.num_sge", offset_of!(RecvWr, num_sge) as i64),
            ("ibv_wc", size_of::<Wc>() as i64),
            ("ibv_wc.status", offset_of!(Wc, status) as i64),
            ("ibv_wc.opcode", offset_of!(Wc, opcode) as i64),
            ("ibv_wc.byte_len", offset_of!(Wc, byte_len) as i64),
            ("ibv_wc.imm_data", offset_of!(Wc, imm_data) as i64),
            ("ibv_wc.wc_flags", offset_of!(Wc, wc_flags) as i64),
            ("ibv_wc.dlid_path_bits", offset_of!(Wc, dlid_path_bits) as i64),
            ("ibv_qp_attr.path_mtu", offset_of!(QpAttr, path_mtu) as i64),
            ("ibv_qp_attr.rq_psn", offset_of!(QpAttr, rq_psn) as i64),
            ("ibv_qp_attr.sq_psn", offset_of!(QpAttr, sq_psn) as i64),
            ("ibv_qp_attr.dest_qp_num", offset_of!(QpAttr, dest_qp_num) as i64),
            ("ibv_qp_attr.max_rd_atomic", offset_of!(QpAttr, max_rd_atomic) as i64),
            ("ibv_qp_attr.max_dest_rd_atomic", offset_of!(QpAttr, max_dest_rd_atomic) as i64),
            ("ibv_qp_attr.min_rnr_timer", offset_of!(QpAttr, min_rnr_timer) as i64),
            ("ibv_qp_attr.timeout", offset_of!(QpAttr, timeout) as i64),
            ("ibv_qp_attr.retry_cnt", offset_of!(QpAttr, retry_cnt) as i64),
            ("ibv_qp_attr.rnr_retry", offset_of!(QpAttr, rnr_retry) as i64),
            ("ibv_global_route.flow_label", offset_of!(GlobalRoute, flow_label) as i64),
            ("ibv_global_route.sgid_index", offset_of!(GlobalRoute, sgid_index) as i64),
            ("ibv_global_route.hop_limit", offset_of!(GlobalRoute, hop_limit) as i64),
            ("ibv_ah_attr.dlid", offset_of!(AhAttr, dlid) as i64),
            ("ibv_ah_attr.is_global", offset_of!(AhAttr, is_global) as i64),
            ("ibv_ah_attr.port_num", offset_of!(AhAttr, port_num) as i64),
            ("ibv_port_attr.active_mtu", offset_of!(PortAttr, active_mtu) as i64),
            ("IBV_WR_RDMA_WRITE_WITH_IMM", WR_RDMA_WRITE_WITH_IMM.into()),
            ("IBV_SEND_SIGNALED", SEND_SIGNALED.into()),
            ("IBV_WC_SUCCESS", WC_SUCCESS.into()),
            ("IBV_WC_RDMA_WRITE", WC_RDMA_WRITE.into()),
            ("IBV_WC_RECV_RDMA_WITH_IMM", WC_RECV_RDMA_WITH_IMM.into()),
            ("IBV_WC_WITH_IMM", WC_WITH_IMM.into()),
        ];
        lines.iter().map(|(name, number)| format!("{name} {number}\n")).collect()
    }

    /// A C program that prints the lines of [`TABLE`], by their names.
    fn program() -> String {
        let lines: String = TABLE
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, _)| {
                let value = match name.split_once('.') {
                    Some((of, member)) => format!("offsetof(struct {of}, {member})"),
                    None if name.starts_with("IBV_") => name.to_owned(),
                    None => format!("sizeof(struct {name})"),
                };
                format!("printf(\"{name} %ld\\n\", (long){value});\n")
            })
            .collect();
        format!(
            "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{lines}return 0; }}\n"
        )
    }

    #[test]
    fn structures_are_those_of_the_table() {
        assert_eq!(ours(), TABLE);
    }

    /// Where the header and a compiler are installed, the table is made anew. `ERNIC_VERBS_INCLUDE` may name the folder that has
    /// `infiniband/verbs.h`.
    #[test]
    fn structures_are_those_of_the_header() {
        let include = std::env::var("ERNIC_VERBS_INCLUDE").unwrap_or_else(|_| "/usr/include".into());
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        if !Path::new(&include).join("infiniband/verbs.h").is_file()
            || Command::new(&compiler).arg("--version").output().is_err()
        {
            eprintln!("no {include}/infiniband/verbs.h or no {compiler}: the committed table has to do");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (source, binary) = (folder.path().join("offsets.c"), folder.path().join("offsets"));
        std::fs::write(&source, program()).unwrap();
        let built =
            Command::new(&compiler).arg("-I").arg(&include).arg(&source).arg("-o").arg(&binary).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let printed = Command::new(&binary).output().unwrap();
        assert_eq!(String::from_utf8(printed.stdout).unwrap(), TABLE);
    }
}
