//! Compares every structure and constant of this crate with `layout.tsv`, which `cargo xtask abi-check` makes by compiling
//! the kernel's headers. Nothing here holds an offset or a value.
#![allow(clippy::cast_possible_truncation, missing_docs)]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{offset_of, size_of};

use ionic_abi::*;
use zerocopy::{FromZeros, IntoBytes};

/// What the kernel's headers say.
struct Table {
    sizes: BTreeMap<&'static str, usize>,
    fields: BTreeMap<(&'static str, &'static str), (usize, usize)>,
    consts: BTreeMap<&'static str, u64>,
    /// Rows that were compared, so that a forgotten one shows.
    seen: RefCell<BTreeSet<String>>,
}

impl Table {
    fn load() -> Self {
        let mut table =
            Self { sizes: BTreeMap::new(), fields: BTreeMap::new(), consts: BTreeMap::new(), seen: RefCell::default() };
        for line in include_str!("layout.tsv").lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("bad number in {line:?}"));
            let fresh = match *line.split('\t').collect::<Vec<_>>() {
                ["size", name, size] => table.sizes.insert(name, number(size) as usize).is_none(),
                ["field", name, field, offset, size] => {
                    table.fields.insert((name, field), (number(offset) as usize, number(size) as usize)).is_none()
                }
                ["const", name, value] => table.consts.insert(name, number(value)).is_none(),
                _ => panic!("bad row {line:?}"),
            };
            assert!(fresh, "row twice: {line:?}");
        }
        table
    }

    fn size(&self, name: &'static str) -> usize {
        self.seen.borrow_mut().insert(format!("size {name}"));
        *self.sizes.get(name).unwrap_or_else(|| panic!("no row `size {name}`"))
    }

    fn field(&self, name: &'static str, field: &'static str) -> (usize, usize) {
        self.seen.borrow_mut().insert(format!("field {name} {field}"));
        *self.fields.get(&(name, field)).unwrap_or_else(|| panic!("no row `field {name} {field}`"))
    }

    fn constant(&self, name: &str) -> u64 {
        self.seen.borrow_mut().insert(format!("const {name}"));
        *self.consts.get(name).unwrap_or_else(|| panic!("no row `const {name}`"))
    }

    /// Compares named values with the constants `prefix` + name, and asks that the kernel has no others with that prefix.
    fn values(&self, prefix: &str, values: impl IntoIterator<Item = (String, u64)>, except: &[&str]) {
        let mut ours: BTreeSet<String> = except.iter().map(|&n| n.to_owned()).collect();
        for (name, value) in values {
            let name = format!("{prefix}{name}");
            assert_eq!(self.constant(&name), value, "{name}");
            ours.insert(name);
        }
        let forgotten: Vec<_> = self.consts.keys().filter(|k| k.starts_with(prefix) && !ours.contains(**k)).collect();
        assert!(forgotten.is_empty(), "constants without a counterpart: {forgotten:?}");
    }

    fn untested(&self) -> Vec<String> {
        let seen = self.seen.borrow();
        let sizes = self.sizes.keys().map(|n| format!("size {n}"));
        let fields = self.fields.keys().map(|(n, f)| format!("field {n} {f}"));
        let consts = self.consts.keys().map(|n| format!("const {n}"));
        sizes.chain(fields).chain(consts).filter(|row| !seen.contains(row)).collect()
    }
}

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// `Ours = "kernel type" { field, field = "kernel.path", gap = _ }`: a field with `_` has no name in the kernel and must
/// reach to the next named one or to the end. The pattern without `..` makes a forgotten field a compile error.
macro_rules! layout {
    ($table:expr; $($ours:ident = $theirs:literal { $($field:ident $(= $path:tt)?),* $(,)? })*) => {$({
        let theirs = $theirs;
        assert_eq!(size_of::<$ours>(), $table.size(theirs), "size of {theirs}");
        let $ours { $($field: _),* } = $ours::new_zeroed();
        $(
            let ours = (offset_of!($ours, $field), size_of_field(|x: &$ours| &x.$field));
            layout!(@one $table, theirs, ours, size_of::<$ours>(), $field $(, $path)?);
        )*
    })*};
    (@one $table:expr, $theirs:expr, $ours:expr, $size:expr, $field:ident, _) => {
        let end = $ours.0 + $ours.1;
        let named = $table.fields.iter().any(|(&(name, _), &(offset, _))| name == $theirs && offset == end);
        assert!(end == $size || named, "{} of {} ends at {end}, where nothing starts", stringify!($field), $theirs);
    };
    (@one $table:expr, $theirs:expr, $ours:expr, $size:expr, $field:ident, $path:literal) => {
        assert_eq!($ours, $table.field($theirs, $path), "{} of {}: (offset, size)", $path, $theirs);
    };
    (@one $table:expr, $theirs:expr, $ours:expr, $size:expr, $field:ident) => {
        assert_eq!($ours, $table.field($theirs, stringify!($field)), "{} of {}: (offset, size)", stringify!($field), $theirs);
    };
}

fn structures(t: &Table) {
    layout! { t;
        DevInfoRegs = "union ionic_dev_info_regs" {
            signature, version, asic_type, asic_rev, fw_status, fw_heartbeat, fw_version, serial_num, rsvd_pad1024,
            hwstamp_tick_low = "hwstamp.tick_low", hwstamp_tick_high = "hwstamp.tick_high", rsvd = _,
        }
        DevCmdRegs = "union ionic_dev_cmd_regs" { doorbell, done, cmd, comp, rsvd, data }
        Intr = "struct ionic_intr" { coal_init, mask, credits, mask_assert, coal, rsvd }

        AdminCmd = "union ionic_dev_cmd" { opcode = "cmd.opcode", data = _ }
        AdminComp = "struct ionic_admin_comp" { status, rsvd, comp_index, cmd_data, color }
        DevIdentifyCmd = "struct ionic_dev_identify_cmd" { opcode, ver, rsvd }
        DevInitCmd = "struct ionic_dev_init_cmd" { opcode, type_ = "type", rsvd }
        DevResetCmd = "struct ionic_dev_reset_cmd" { opcode, rsvd }
        IdentifyComp = "struct ionic_dev_identify_comp" { status, ver, rsvd }
        PortIdentifyCmd = "struct ionic_port_identify_cmd" { opcode, index, ver, rsvd }
        PortInitCmd = "struct ionic_port_init_cmd" { opcode, index, rsvd, info_pa, rsvd2 }
        PortResetCmd = "struct ionic_port_reset_cmd" { opcode, index, rsvd }
        PortGetattrCmd = "struct ionic_port_getattr_cmd" { opcode, index, attr, rsvd }
        PortGetattrComp = "struct ionic_port_getattr_comp" { status, rsvd, value = "rsvd2", color }
        PortSetattrCmd = "struct ionic_port_setattr_cmd" { opcode, index, attr, rsvd, value = "rsvd2" }
        LifIdentifyCmd = "struct ionic_lif_identify_cmd" { opcode, type_ = "type", ver, rsvd }
        LifInitCmd = "struct ionic_lif_init_cmd" { opcode, type_ = "type", index, rsvd, info_pa, rsvd2 }
        LifInitComp = "struct ionic_lif_init_comp" { status, rsvd, hw_index, rsvd2 }
        LifResetCmd = "struct ionic_lif_reset_cmd" { opcode, rsvd, index, rsvd2 }
        LifGetattrCmd = "struct ionic_lif_getattr_cmd" { opcode, attr, index, rsvd }
        LifGetattrComp = "struct ionic_lif_getattr_comp" { status, rsvd, comp_index, value = "rsvd2", color }
        LifSetattrCmd = "struct ionic_lif_setattr_cmd" { opcode, attr, index, value = "rsvd" }
        LifSetattrComp = "struct ionic_lif_setattr_comp" { status, rsvd, comp_index, features, rsvd2 = _, color }
        RxModeSetCmd = "struct ionic_rx_mode_set_cmd" { opcode, rsvd, lif_index, rx_mode, rsvd2 }
        RxFilterAddCmd = "struct ionic_rx_filter_add_cmd" { opcode, qtype, lif_index, qid, match_ = "match", value = "rsvd" }
        RxFilterAddComp = "struct ionic_rx_filter_add_comp" { status, rsvd, comp_index, filter_id, rsvd2, color }
        RxFilterDelCmd = "struct ionic_rx_filter_del_cmd" { opcode, rsvd, lif_index, filter_id, rsvd2 }
        QIdentifyCmd = "struct ionic_q_identify_cmd" { opcode, rsvd, lif_type, type_ = "type", ver, rsvd2 }
        QIdentifyComp = "struct ionic_q_identify_comp" { status, rsvd, comp_index, ver, rsvd2 }
        QInitCmd = "struct ionic_q_init_cmd" {
            opcode, rsvd, lif_index, type_ = "type", ver, rsvd1, index, pid, intr_index, flags, cos, ring_size, ring_base,
            cq_ring_base, sg_ring_base, rsvd2, features,
        }
        QInitComp = "struct ionic_q_init_comp" { status, rsvd, comp_index, hw_index, hw_type, rsvd2, color }
        QControlCmd = "struct ionic_q_control_cmd" { opcode, type_ = "type", lif_index, index, oper, rsvd }
        RdmaResetCmd = "struct ionic_rdma_reset_cmd" { opcode, rsvd, lif_index, rsvd2 }
        RdmaQueueCmd = "struct ionic_rdma_queue_cmd" {
            opcode, rsvd, lif_index, qid_ver, cid, dbid, depth_log2, stride_log2, dma_addr, rsvd2,
        }

        DrvIdentity = "union ionic_drv_identity" {
            os_type, os_dist, os_dist_str, kernel_ver, kernel_ver_str, driver_ver_str, rsvd = _,
        }
        DevIdentity = "union ionic_dev_identity" {
            version, type_ = "type", rsvd, nports, rsvd2, nlifs, nintrs, ndbpgs_per_lif, intr_coal_mult, intr_coal_div, eq_count,
            hwstamp_mask, hwstamp_mult, hwstamp_shift, capabilities, rsvd3 = _,
        }
        LifIdentityEth = "__typeof__(((union ionic_lif_identity *)0)->eth)" {
            version, rsvd, max_ucast_filters, max_mcast_filters, rss_ind_tbl_sz, min_frame_size, max_frame_size, rsvd2,
            hwstamp_tx_modes, hwstamp_rx_filters, rsvd3, config,
        }
        LifLogicalQtype = "struct ionic_lif_logical_qtype" { qtype, rsvd, qid_count, qid_base }
        LifIdentityRdma = "__typeof__(((union ionic_lif_identity *)0)->rdma)" {
            version, qp_opcodes, admin_opcodes, minor_version, npts_per_lif, nmrs_per_lif, nahs_per_lif, max_stride, cl_stride,
            pte_stride, rrq_stride, rsq_stride, dcqcn_profiles, udma_shift, rsvd_dimensions, page_size_cap, aq_qtype, sq_qtype,
            rq_qtype, cq_qtype, eq_qtype, stats_type, rsvd, rcq_sign_bit, rsvd1,
        }
        LifIdentity = "union ionic_lif_identity" { capabilities, eth, rdma, rsvd = _ }
        PortIdentity = "union ionic_port_identity" {
            version, type_ = "type", num_lanes, autoneg, min_frame_size, max_frame_size, fec_type, pause_type, loopback_mode, speeds,
            rsvd2, config, rsvd3 = _,
        }
        QIdentity = "union ionic_q_identity" {
            version, supported, rsvd, features, desc_sz, comp_sz, sg_desc_sz, max_sg_elems, sg_desc_stride, rsvd2 = _,
        }

        LifConfig = "union ionic_lif_config" { state, rsvd, name, mtu, mac, vlan, features, queue_count, rsvd2 = _ }
        LifStatus = "struct ionic_lif_status" { eid, port_num, rsvd, link_status, link_speed, link_down_count, rsvd2 }
        LifInfo = "struct ionic_lif_info" { config, status, stats }
        PortConfig = "union ionic_port_config" { speed, mtu, state, an_enable, fec_type, pause_type, loopback_mode, rsvd = _ }
        XcvrStatus = "struct ionic_xcvr_status" { state, phy, pid, sprom }
        PortStatus = "struct ionic_port_status" { id, speed, status, link_down_count, fec_type, rsvd, xcvr }
        PortExtraStats = "struct ionic_port_extra_stats" {
            rsfec_correctable_blocks, rsfec_uncorrectable_blocks, fec_corrected_bits_total, rx_bits_phy, fec_codeword_error_bin,
        }
        PortInfo = "struct ionic_port_info" { config, status, stats, sprom_epage, rsvd, extra_stats }
        LifStats = "struct ionic_lif_stats" {
            rx_ucast_bytes, rx_ucast_packets, rx_mcast_bytes, rx_mcast_packets, rx_bcast_bytes, rx_bcast_packets,
            rsvd0, rsvd1, rx_ucast_drop_bytes, rx_ucast_drop_packets, rx_mcast_drop_bytes, rx_mcast_drop_packets,
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
            rdma_resp_rx_cqe_err, rdma_resp_rx_cqe_flush_err, rdma_resp_rx_local_len_err,
            rdma_resp_rx_inv_request_err, rdma_resp_rx_local_qp_oper_err, rdma_resp_rx_out_of_atomic_resource,
            rdma_resp_tx_pkt_seq_err, rdma_resp_tx_remote_inv_req_err, rdma_resp_tx_remote_access_err,
            rdma_resp_tx_remote_oper_err, rdma_resp_tx_rnr_retry_err, rsvd57, rsvd58,
        }
        PortStats = "struct ionic_port_stats" {
            frames_rx_ok, frames_rx_all, frames_rx_bad_fcs, frames_rx_bad_all, octets_rx_ok, octets_rx_all,
            frames_rx_unicast, frames_rx_multicast, frames_rx_broadcast, frames_rx_pause, frames_rx_bad_length,
            frames_rx_undersized, frames_rx_oversized, frames_rx_fragments, frames_rx_jabber, frames_rx_pripause,
            frames_rx_stomped_crc, frames_rx_too_long, frames_rx_vlan_good, frames_rx_dropped,
            frames_rx_less_than_64b, frames_rx_64b, frames_rx_65b_127b, frames_rx_128b_255b, frames_rx_256b_511b,
            frames_rx_512b_1023b, frames_rx_1024b_1518b, frames_rx_1519b_2047b, frames_rx_2048b_4095b,
            frames_rx_4096b_8191b, frames_rx_8192b_9215b, frames_rx_other, frames_tx_ok, frames_tx_all,
            frames_tx_bad, octets_tx_ok, octets_tx_total, frames_tx_unicast, frames_tx_multicast,
            frames_tx_broadcast, frames_tx_pause, frames_tx_pripause, frames_tx_vlan, frames_tx_less_than_64b,
            frames_tx_64b, frames_tx_65b_127b, frames_tx_128b_255b, frames_tx_256b_511b, frames_tx_512b_1023b,
            frames_tx_1024b_1518b, frames_tx_1519b_2047b, frames_tx_2048b_4095b, frames_tx_4096b_8191b,
            frames_tx_8192b_9215b, frames_tx_other, frames_tx_pri_0, frames_tx_pri_1, frames_tx_pri_2,
            frames_tx_pri_3, frames_tx_pri_4, frames_tx_pri_5, frames_tx_pri_6, frames_tx_pri_7, frames_rx_pri_0,
            frames_rx_pri_1, frames_rx_pri_2, frames_rx_pri_3, frames_rx_pri_4, frames_rx_pri_5, frames_rx_pri_6,
            frames_rx_pri_7, tx_pripause_0_1us_count, tx_pripause_1_1us_count, tx_pripause_2_1us_count,
            tx_pripause_3_1us_count, tx_pripause_4_1us_count, tx_pripause_5_1us_count, tx_pripause_6_1us_count,
            tx_pripause_7_1us_count, rx_pripause_0_1us_count, rx_pripause_1_1us_count, rx_pripause_2_1us_count,
            rx_pripause_3_1us_count, rx_pripause_4_1us_count, rx_pripause_5_1us_count, rx_pripause_6_1us_count,
            rx_pripause_7_1us_count, rx_pause_1us_count, frames_tx_truncated,
        }

        NotifyqEntry = "struct ionic_notifyq_event" { eid, ecode, data }
        LinkChangeEvent = "struct ionic_link_change_event" { eid, ecode, link_status, link_speed, rsvd }
        ResetEvent = "struct ionic_reset_event" { eid, ecode, reset_code, state, rsvd }
        NotifyqCmd = "struct ionic_notifyq_cmd" { data }

        TxqDesc = "struct ionic_txq_desc" { cmd, len, vlan_tci, hword1, hword2 }
        TxqSgElem = "struct ionic_txq_sg_elem" { addr, len, rsvd }
        TxqSgDesc = "struct ionic_txq_sg_desc_v1" { elems }
        TxqComp = "struct ionic_txq_comp" { status, rsvd, comp_index, rsvd2, color }
        RxqDesc = "struct ionic_rxq_desc" { opcode, rsvd, len, addr }
        RxqSgElem = "struct ionic_rxq_sg_elem" { addr, len, rsvd }
        RxqSgDesc = "struct ionic_rxq_sg_desc" { elems }
        RxqComp = "struct ionic_rxq_comp" {
            status, num_sg_elems, comp_index, rss_hash, csum, vlan_tci, len, csum_flags, pkt_type_color,
        }

        CreateMr = "struct ionic_admin_create_mr" {
            va, length, pd_id, id_ver, tbl_index, map_count, dma_addr, dbid_flags, pt_type, dir_size_log2, page_size_log2,
        }
        CreateCq = "struct ionic_admin_create_cq" {
            eq_id, depth_log2, stride_log2, dir_size_log2_rsvd, page_size_log2, cq_flags, id_ver, tbl_index, map_count,
            dma_addr, dbid_flags,
        }
        CreateQp = "struct ionic_admin_create_qp" {
            pd_id, priv_flags, sq_cq_id, sq_depth_log2, sq_stride_log2, sq_dir_size_log2 = "sq_dir_size_log2_rsvd",
            sq_page_size_log2, sq_tbl_index_xrcd_id, sq_map_count, sq_dma_addr, rq_cq_id, rq_depth_log2, rq_stride_log2,
            rq_dir_size_log2 = "rq_dir_size_log2_rsvd", rq_page_size_log2, rq_tbl_index_srq_id, rq_map_count, rq_dma_addr,
            id_ver, dbid_flags, type_state, rsvd,
        }
        ModifyQp = "struct ionic_admin_mod_qp" {
            attr_mask, dcqcn_profile, tfp_csum_profile, access_flags, rq_psn, sq_psn, qkey_dest_qpn, rate_limit_kbps, pmtu,
            retry, rnr_timer, retry_timeout, rsq_depth, rrq_depth, pkey_id, ah_id_len, en_pcp, ip_dscp, rsvd2, type_state,
            rrq_index, rsq_index, dma_addr, id_ver,
        }
        QueryQp = "struct ionic_admin_query_qp" { hdr_dma_addr, sq_dma_addr, rq_dma_addr, ah_id, id_ver, dbid_flags }
        QuerySq = "struct ionic_v1_admin_query_qp_sq" {
            rnr_timer, retry_timeout, access_perms_flags, rsvd, pkey_id, qkey_dest_qpn, rate_limit_kbps, rq_psn,
        }
        QueryRq = "struct ionic_v1_admin_query_qp_rq" {
            state_pmtu, retry_rnrtry, rrq_depth, rsq_depth, sq_psn, access_perms_flags, rsvd,
        }
        CreateAh = "struct ionic_admin_create_ah" { dma_addr, length, pd_id, id_ver, dbid_flags, csum_profile, crypto }
        StatsCmd = "struct ionic_admin_stats_hdr" { dma_addr, length, id_ver, type_state }
        DestroyById = "struct ionic_admin_destroy_mr" { id_ver = "mr_id" }
        DestroyById = "struct ionic_admin_destroy_cq" { id_ver = "cq_id" }
        DestroyById = "struct ionic_admin_destroy_qp" { id_ver = "qp_id" }
        DestroyById = "struct ionic_admin_destroy_ah" { id_ver = "ah_id" }
        RdmaAdminCqe = "struct ionic_v1_cqe" {
            cmd_idx = "admin.cmd_idx", cmd_op = "admin.cmd_op", rsvd = "admin.rsvd", old_sq_cindex = "admin.old_sq_cindex",
            old_rq_cq_cindex = "admin.old_rq_cq_cindex", status_length, qid_type_flags,
        }
    }

    // A head, and its command behind it: ours are two structures.
    let wqe = "struct ionic_v1_admin_wqe";
    assert_eq!(t.field(wqe, "op"), (offset_of!(RdmaAdminHead, op), 1));
    assert_eq!(t.field(wqe, "rsvd"), (offset_of!(RdmaAdminHead, rsvd), 1));
    assert_eq!(t.field(wqe, "len"), (offset_of!(RdmaAdminHead, len), 2));
    assert_eq!(t.field(wqe, "cmd"), (size_of::<RdmaAdminHead>(), size_of::<CreateQp>()), "the longest command");
    assert_eq!(t.constant("ADMIN_WQE_HDR_LEN"), size_of::<RdmaAdminHead>() as u64);
    // Completions of work are written byte by byte, and events as words.
    assert_eq!(t.field("struct ionic_v1_cqe", "send.msg_msn"), (4, 4));
    assert_eq!(t.field("struct ionic_v1_cqe", "send.npg_wqe_idx_timestamp"), (16, 8));
    assert_eq!(t.size("struct ionic_v1_eqe"), 4);
}

/// Members of unions, that we read with methods: the value goes where the kernel has it, the method must find it.
fn union_members(t: &Table) {
    fn put<T: FromZeros + IntoBytes + zerocopy::FromBytes>(
        t: &Table,
        theirs: &'static str,
        field: &'static str,
        bytes: &[u8],
    ) -> T {
        let (offset, size) = t.field(theirs, field);
        assert_eq!(size, bytes.len(), "{theirs} {field}");
        let mut value = T::new_zeroed();
        value.as_mut_bytes()[offset..offset + size].copy_from_slice(bytes);
        value
    }

    let port = "struct ionic_port_setattr_cmd";
    assert_eq!(put::<PortSetattrCmd>(t, port, "speed", &0x1234_5678_u32.to_le_bytes()).value_u32(), 0x1234_5678);
    assert_eq!(put::<PortSetattrCmd>(t, port, "mtu", &0x1234_5678_u32.to_le_bytes()).value_u32(), 0x1234_5678);
    for field in ["state", "an_enable", "fec_type", "pause_type", "loopback_mode", "stats_ctl"] {
        assert_eq!(put::<PortSetattrCmd>(t, port, field, &[0xa5]).value_u8(), 0xa5, "{field}");
    }

    let lif = "struct ionic_lif_setattr_cmd";
    assert_eq!(put::<LifSetattrCmd>(t, lif, "state", &[2]).state(), LifState::DISABLE);
    assert_eq!(put::<LifSetattrCmd>(t, lif, "name", b"0123456789abcdef").name(), *b"0123456789abcdef");
    assert_eq!(put::<LifSetattrCmd>(t, lif, "mtu", &0x1234_5678_u32.to_le_bytes()).mtu(), 0x1234_5678);
    assert_eq!(put::<LifSetattrCmd>(t, lif, "mac", &[1, 2, 3, 4, 5, 6]).mac(), [1, 2, 3, 4, 5, 6]);
    let features = 0x1234_5678_9abc_def0_u64;
    assert_eq!(put::<LifSetattrCmd>(t, lif, "features", &features.to_le_bytes()).features().bits(), features);
    assert_eq!(put::<LifSetattrCmd>(t, lif, "rss.types", &[0x3f, 0x12]).rss().types.get(), 0x123f);
    let key = std::array::from_fn::<u8, RSS_HASH_KEY_SIZE, _>(|i| i as u8);
    assert_eq!(put::<LifSetattrCmd>(t, lif, "rss.key", &key).rss().key, key);
    assert_eq!(put::<LifSetattrCmd>(t, lif, "rss.addr", &features.to_le_bytes()).rss().addr.get(), features);

    let mac = "struct ionic_rx_filter_add_cmd";
    assert_eq!(put::<RxFilterAddCmd>(t, mac, "vlan.vlan", &[0x34, 0x12]).vlan(), 0x1234);
    let filter = put::<RxFilterAddCmd>(t, mac, "mac.addr", &[1, 2, 3, 4, 5, 6]);
    assert_eq!(RxFilterAddCmd { match_: U16::new(RxFilterMatch::MAC.0), ..filter }.mac(), [1, 2, 3, 4, 5, 6]);
    let filter = put::<RxFilterAddCmd>(t, mac, "mac_vlan.addr", &[1, 2, 3, 4, 5, 6]);
    assert_eq!(RxFilterAddCmd { match_: U16::new(RxFilterMatch::MAC_VLAN.0), ..filter }.mac(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(put::<RxFilterAddCmd>(t, mac, "mac_vlan.vlan", &[0x34, 0x12]).vlan(), 0x1234);

    let tx = "struct ionic_txq_desc";
    assert_eq!(put::<TxqDesc>(t, tx, "csum_start", &[0x34, 0x12]).csum_start(), 0x1234);
    assert_eq!(put::<TxqDesc>(t, tx, "hdr_len", &[0x34, 0x12]).hdr_len(), 0x1234);
    assert_eq!(put::<TxqDesc>(t, tx, "csum_offset", &[0x34, 0x12]).csum_offset(), 0x1234);
    assert_eq!(put::<TxqDesc>(t, tx, "mss", &[0x34, 0x12]).mss(), 0x1234);

    // The doorbell as the header's structure has it: queue number split over a byte and a half-word.
    let db = "struct ionic_doorbell";
    assert_eq!(t.size(db), 8);
    let mut value = [0_u8; 8];
    for (field, bytes) in
        [("p_index", &[0x34, 0x12][..]), ("ring", &[2]), ("qid_lo", &[0x9a]), ("qid_hi", &[0x78, 0x56])]
    {
        let (offset, size) = t.field(db, field);
        value[offset..offset + size].copy_from_slice(bytes);
    }
    assert_eq!(Doorbell::from_value(u64::from_le_bytes(value)), Doorbell { p_index: 0x1234, ring: 2, qid: 0x56_789a });
}

fn named<T: Copy>(all: &[(&'static str, T)], value: fn(T) -> u64) -> Vec<(String, u64)> {
    all.iter().map(|&(name, v)| (name.to_owned(), value(v))).collect()
}

fn flags<F: bitflags::Flags>() -> Vec<(String, u64)>
where
    F::Bits: Into<u64>,
{
    F::FLAGS.iter().map(|f| (f.name().to_owned(), f.value().bits().into())).collect()
}

fn constants(t: &Table) {
    t.values("IONIC_CMD_", named(Opcode::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_RC_", named(Status::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_QTYPE_", named(QType::ALL, |v| v.0.into()), &["IONIC_QTYPE_MAX"]);
    assert_eq!(t.constant("IONIC_QTYPE_MAX"), QTYPE_MAX as u64);
    t.values("IONIC_Q_DISABLE", [(String::new(), QOper::DISABLE.0.into())], &[]);
    t.values("IONIC_Q_ENABLE", [(String::new(), QOper::ENABLE.0.into())], &[]);
    t.values("IONIC_Q_HANG_RESET", [(String::new(), QOper::HANG_RESET.0.into())], &[]);
    t.values("IONIC_LIF_ATTR_", named(LifAttr::ALL, |v| v.0.into()), &["IONIC_LIF_ATTR_MAX"]);
    assert_eq!(t.constant("IONIC_LIF_ATTR_MAX"), u64::from(u8::MAX));
    for &(name, v) in LifState::ALL {
        assert_eq!(t.constant(&format!("IONIC_LIF_{name}")), u64::from(v.0), "{name}");
    }
    t.values("IONIC_PORT_ATTR_", named(PortAttr::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_PORT_TYPE_", named(PortType::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_PORT_ADMIN_STATE_", named(PortAdminState::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_PORT_OPER_STATUS_", named(PortOperStatus::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_XCVR_STATE_", named(XcvrState::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_PHY_TYPE_", named(PhyType::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_ASIC_TYPE_", named(AsicType::ALL, |v| v.0.into()), &[]);
    t.values(
        "IONIC_TXQ_DESC_OPCODE_",
        named(TxqOpcode::ALL, |v| v.0.into()),
        &["IONIC_TXQ_DESC_OPCODE_SHIFT", "IONIC_TXQ_DESC_OPCODE_MASK"],
    );
    t.values("IONIC_RXQ_DESC_OPCODE_", named(RxqOpcode::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_PKT_TYPE_", named(PktType::ALL, |v| v.0.into()), &[]);
    for (name, ours) in [
        ("LINK_CHANGE", EventCode::LINK_CHANGE),
        ("RESET", EventCode::RESET),
        ("HEARTBEAT", EventCode::HEARTBEAT),
        ("LOG", EventCode::LOG),
        ("XCVR", EventCode::XCVR),
    ] {
        assert_eq!(t.constant(&format!("IONIC_EVENT_{name}")), u64::from(ours.0), "{name}");
    }
    for (name, ours) in [
        ("MATCH_VLAN", RxFilterMatch::VLAN),
        ("MATCH_MAC", RxFilterMatch::MAC),
        ("MATCH_MAC_VLAN", RxFilterMatch::MAC_VLAN),
        ("STEER_PKTCLASS", RxFilterMatch::STEER_PKTCLASS),
    ] {
        assert_eq!(t.constant(&format!("IONIC_RX_FILTER_{name}")), u64::from(ours.0), "{name}");
    }

    t.values("IONIC_TXQ_DESC_FLAG_", flags::<TxqFlags>(), &[]);
    t.values("IONIC_RXQ_COMP_CSUM_F_", flags::<RxqCsumFlags>(), &[]);
    t.values("IONIC_QINIT_F_", flags::<QInitFlags>(), &[]);
    t.values("IONIC_RX_MODE_F_", flags::<RxMode>(), &[]);
    t.values("IONIC_RSS_TYPE_", flags::<RssTypes>(), &[]);
    t.values("IONIC_ETH_HW_", flags::<EthFeatures>(), &[]);
    t.values("IONIC_DEV_CAP_", flags::<DevCaps>(), &[]);
    t.values("IONIC_LIF_CAP_", flags::<LifCaps>(), &[]);
    t.values("IONIC_INTR_CRED_", flags::<IntrCredits>(), &["IONIC_INTR_CRED_COUNT", "IONIC_INTR_CRED_COUNT_SIGNED"]);
    for (name, ours) in [
        ("IONIC_QIDENT_F_CQ", QFeatures::CQ),
        ("IONIC_QIDENT_F_SG", QFeatures::SG),
        ("IONIC_QIDENT_F_EQ", QFeatures::EQ),
        ("IONIC_QIDENT_F_CMB", QFeatures::CMB),
        ("IONIC_Q_F_2X_DESC", QFeatures::DESC_2X),
        ("IONIC_Q_F_2X_CQ_DESC", QFeatures::CQ_DESC_2X),
        ("IONIC_Q_F_2X_SG_DESC", QFeatures::SG_DESC_2X),
        ("IONIC_Q_F_4X_DESC", QFeatures::DESC_4X),
        ("IONIC_Q_F_4X_CQ_DESC", QFeatures::CQ_DESC_4X),
        ("IONIC_Q_F_4X_SG_DESC", QFeatures::SG_DESC_4X),
        ("IONIC_QIDENT_F_EXPDB", QFeatures::EXPDB),
        ("IONIC_RXQ_F_HWSTAMP", QFeatures::HWSTAMP),
        ("IONIC_TXQ_F_HWSTAMP", QFeatures::HWSTAMP),
    ] {
        assert_eq!(t.constant(name), ours.bits(), "{name}");
    }

    t.values("IONIC_MRF_", flags::<MrFlags>(), &[]);
    t.values("IONIC_QPF_", flags::<QpFlags>(), &[]);
    t.values("IONIC_QPT_", named(QpType::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_QPS_", named(QpState::ALL, |v| v.0.into()), &[]);
    t.values("IONIC_V1_ASTS_", named(AdminStatus::ALL, |v| v.0.into()), &[]);
    t.values(
        "IONIC_V1_CQE_TYPE_",
        named(CqeType::ALL, |v| v.0.into()),
        &["IONIC_V1_CQE_TYPE_SHIFT", "IONIC_V1_CQE_TYPE_MASK"],
    );
    let reserved = ["IONIC_V1_ADMIN_RSVD_7", "IONIC_V1_ADMIN_OPCODES_MAX"];
    t.values("IONIC_V1_ADMIN_", named(AdminOp::ALL, |v| v.0.into()), &reserved);
    assert_eq!(AdminOp(u8::try_from(t.constant(reserved[0])).unwrap()).name(), None, "an opcode that means nothing");

    for (name, ours) in [
        ("IONIC_V1_ADMIN_OPCODES_MAX", ADMIN_OPCODES.into()),
        ("ADMIN_WQE_STRIDE", 64),
        ("IONIC_MRID_INDEX_SHIFT", 8),
        ("IONIC_V1_OP_REG_MR", 8),
        ("IONIC_V1_OP_LOCAL_INV", 9),
        ("IONIC_V1_OP_BIND_MW", (QP_OPCODES - 1).into()),
        ("IONIC_DBELL_RING_1", u64::from(CQ_RING_ARM) << Doorbell::RING_SHIFT),
        ("IONIC_DBELL_RING_2", u64::from(CQ_RING_SOL) << Doorbell::RING_SHIFT),
        ("IONIC_V1_CQE_COLOR", CQE_COLOR.into()),
        ("IONIC_V1_CQE_ERROR", CQE_ERROR.into()),
        ("IONIC_V1_CQE_TYPE_SHIFT", CQE_TYPE_SHIFT.into()),
        ("IONIC_V1_CQE_TYPE_MASK", 7),
        ("IONIC_V1_CQE_QID_SHIFT", CQE_QID_SHIFT.into()),
        ("IONIC_V1_EQE_COLOR", EQE_COLOR.into()),
        ("IONIC_V1_EQE_TYPE_SHIFT", EQE_TYPE_SHIFT.into()),
        ("IONIC_V1_EQE_TYPE_MASK", 7),
        ("IONIC_V1_EQE_CODE_SHIFT", EQE_CODE_SHIFT.into()),
        ("IONIC_V1_EQE_CODE_MASK", 15),
        ("IONIC_V1_EQE_QID_SHIFT", EQE_QID_SHIFT.into()),
        ("IONIC_V1_EQE_TYPE_CQ", EQE_TYPE_CQ.into()),
        ("IONIC_V1_EQE_CQ_NOTIFY", EQE_CQ_NOTIFY.into()),
        ("IONIC_V1_EQE_CQ_ERR", EQE_CQ_ERR.into()),
        ("IONIC_V1_EQE_TYPE_QP", EQE_TYPE_QP.into()),
        ("IONIC_V1_EQE_SQ_DRAIN", EQE_QP_SQ_DRAIN.into()),
        ("IONIC_V1_EQE_QP_ERR", EQE_QP_ERR.into()),
        ("PCI_VENDOR_ID_PENSANDO", PCI_VENDOR_ID.into()),
        ("PCI_DEVICE_ID_PENSANDO_IONIC_ETH_PF", PCI_DEVICE_ID_ETH_PF.into()),
        ("PCI_DEVICE_ID_PENSANDO_IONIC_ETH_VF", PCI_DEVICE_ID_ETH_VF.into()),
        ("IONIC_PCI_BAR_DBELL", PCI_BAR_DBELL as u64),
        ("IONIC_BAR0_SIZE", BAR0_SIZE),
        ("IONIC_BAR0_SIZE", BAR0_INTR_CTRL.end),
        ("IONIC_ADDR_LEN", ADDR_LEN.into()),
        ("IONIC_ADDR_MASK", ADDR_MASK),
        ("IONIC_BAR0_DEV_INFO_REGS_OFFSET", BAR0_DEV_INFO.start),
        ("IONIC_BAR0_DEV_CMD_REGS_OFFSET", BAR0_DEV_CMD.start),
        ("IONIC_BAR0_INTR_STATUS_OFFSET", BAR0_INTR_STATUS.start),
        ("IONIC_BAR0_INTR_CTRL_OFFSET", BAR0_INTR_CTRL.start),
        ("IONIC_DEV_INFO_SIGNATURE", DEV_INFO_SIGNATURE.into()),
        ("IONIC_DEV_INFO_VERSION", DEV_INFO_VERSION.into()),
        ("IONIC_FW_STS_F_RUNNING", FW_STS_F_RUNNING.into()),
        ("IONIC_FW_STS_F_GENERATION", FW_STS_F_GENERATION.into()),
        ("IONIC_DEV_CMD_DONE", DEV_CMD_DONE_BIT.into()),
        ("IONIC_INTR_CTRL_COAL_MAX", INTR_CTRL_COAL_MAX.into()),
        ("IONIC_INTR_CRED_COUNT", INTR_CRED_COUNT.into()),
        ("IONIC_INTR_CRED_COUNT_SIGNED", INTR_CRED_COUNT_SIGNED.into()),
        ("IONIC_DBELL_QID_MASK", Doorbell::QID_MASK.into()),
        ("IONIC_DBELL_QID_SHIFT", Doorbell::QID_SHIFT.into()),
        ("IONIC_DBELL_RING_MASK", Doorbell::RING_MASK.into()),
        ("IONIC_DBELL_RING_SHIFT", Doorbell::RING_SHIFT.into()),
        ("IONIC_DBELL_INDEX_MASK", u16::MAX.into()),
        ("IONIC_COMP_COLOR_MASK", COMP_COLOR.into()),
        ("IONIC_TX_MAX_SG_ELEMS_V1", TX_MAX_SG_ELEMS as u64),
        ("IONIC_RX_MAX_SG_ELEMS", RX_MAX_SG_ELEMS as u64),
        ("IONIC_TXQ_DESC_OPCODE_SHIFT", TxqDesc::OPCODE_SHIFT.into()),
        ("IONIC_TXQ_DESC_OPCODE_MASK", 0xf),
        ("IONIC_TXQ_DESC_NSGE_SHIFT", TxqDesc::NSGE_SHIFT.into()),
        ("IONIC_TXQ_DESC_NSGE_MASK", TX_MAX_SG_ELEMS as u64),
        ("IONIC_TXQ_DESC_ADDR_SHIFT", TxqDesc::ADDR_SHIFT.into()),
        ("IONIC_RXQ_COMP_PKT_TYPE_MASK", RXQ_COMP_PKT_TYPE_MASK.into()),
        ("IONIC_RSS_HASH_KEY_SIZE", RSS_HASH_KEY_SIZE as u64),
        ("IONIC_IFNAMSIZ", size_of_field(|c: &LifConfig| &c.name) as u64),
        ("IONIC_IDENTITY_VERSION_1", IDENTITY_VERSION_1.into()),
        ("IONIC_DEV_IDENTITY_VERSION_2", DEV_IDENTITY_VERSION_2.into()),
        ("IONIC_XCVR_PID_UNKNOWN", XcvrPid::UNKNOWN.0.into()),
        ("IONIC_XCVR_PID_QSFP_100G_CR4", XcvrPid::QSFP_100G_CR4.0.into()),
        ("IONIC_SPEED_100G", SPEED_100G.into()),
    ] {
        assert_eq!(t.constant(name), ours, "{name}");
    }
    assert_eq!(TxqDesc::pack(TxqOpcode(15), TxqFlags::all(), 15, u64::MAX), u64::MAX, "the fields cover the word");
}

#[test]
fn everything_agrees_with_the_kernel() {
    let table = Table::load();
    structures(&table);
    union_members(&table);
    constants(&table);
    assert_eq!(table.untested(), Vec::<String>::new(), "rows of layout.tsv that nothing compares");
}
