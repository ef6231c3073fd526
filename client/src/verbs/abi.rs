//! What is needed of libibverbs: structures as `infiniband/verbs.h` lays them out on 64-bit machines, and the functions that the
//! library exports. Neither has changed since libibverbs 1.1 (2007), but for `_ibv_query_gid_ex`, which came with
//! rdma-core 32 (`libibverbs.map.in`, `IBVERBS_1.11`).

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`; only its address counts.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Device([u8; 0]);

/// `struct ibv_context`; only its address counts.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Context([u8; 0]);

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

/// `IBV_QPS_INIT`.
pub(super) const QPS_INIT: c_uint = 1;

/// `enum ibv_qp_attr_mask`: what a move to INIT says.
pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;

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
    ibv_create_cq(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut Cq;
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
IBV_QP_STATE 1
IBV_QP_ACCESS_FLAGS 8
IBV_QP_PKEY_INDEX 16
IBV_QP_PORT 32
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
            ("IBV_QP_STATE", QP_STATE.into()),
            ("IBV_QP_ACCESS_FLAGS", QP_ACCESS_FLAGS.into()),
            ("IBV_QP_PKEY_INDEX", QP_PKEY_INDEX.into()),
            ("IBV_QP_PORT", QP_PORT.into()),
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
