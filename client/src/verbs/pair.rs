//! A queue pair for one transfer: connected, one work request each way, and gone.

use std::{
    ffi::{CStr, c_int, c_uint},
    io, ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use rdma_token::{RcTarget, Token, Window};

use super::{Inner, abi, failed, status};
use crate::memory::{Arrived, MemoryError, Port, QueuePair, Region};

/// Longest wait for the completion of an RDMA WRITE of a gibibyte: at 10 MB/s. That a peer is gone is found out by retries, in
/// less than a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// Attributes of a connection (wire document, section 5: hipObject's own).
mod value {
    /// Local ACK timeout, 4.096 µs · 2^14: 67 ms.
    pub(super) const TIMEOUT: u8 = 14;
    /// Retries of a packet that is not acknowledged.
    pub(super) const RETRIES: u8 = 7;
    /// Retries while the peer has no receive posted: 7 is without end (InfiniBand Architecture Specification, 9.9.2.1.3).
    pub(super) const RNR_RETRIES: u8 = 7;
    /// What a peer that finds none here is told to wait: 12 is 0.64 ms (the same, table 46).
    pub(super) const RNR_TIMER: u8 = 12;
    /// Reads at once, of which there are none.
    pub(super) const READS: u8 = 1;
    /// Hops of a RoCE packet.
    pub(super) const HOPS: u8 = 64;
}

/// How a port's packets are addressed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub(super) port: Port,
    /// Index of its GID.
    pub(super) gid_index: u8,
    /// `enum ibv_mtu` of the port as it is now.
    pub(super) mtu: c_uint,
}

/// A queue pair with a completion queue and a channel of its own.
pub(super) struct Pair {
    device: Arc<Inner>,
    channel: *mut abi::CompChannel,
    cq: *mut abi::Cq,
    qp: *mut abi::Qp,
    path: Path,
}

// SAFETY: libibverbs may be called from any thread, and these objects are this structure's alone.
unsafe impl Send for Pair {}

impl Drop for Pair {
    fn drop(&mut self) {
        let functions = &self.device.functions;
        // SAFETY: each was made by the library, is destroyed once, and after what uses it. All events have been acknowledged.
        unsafe {
            if !self.qp.is_null() {
                (functions.ibv_destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                (functions.ibv_destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (functions.ibv_destroy_comp_channel)(self.channel);
            }
        }
    }
}

impl Pair {
    /// Makes one, in INIT. Errors: [`MemoryError::Verb`].
    pub(super) fn new(device: &Arc<Inner>, path: Path) -> Result<Self, MemoryError> {
        let made = |null: bool, verb| if null { Err(failed(verb)) } else { Ok(()) };
        let device = Arc::clone(device);
        let (channel, cq, qp) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut pair = Self { device, channel, cq, qp, path };
        let functions = &pair.device.functions;
        let context = pair.device.context.as_ptr();
        // SAFETY: an open context.
        pair.channel = unsafe { (functions.ibv_create_comp_channel)(context) };
        made(pair.channel.is_null(), "ibv_create_comp_channel")?;
        // SAFETY: the context, and a channel of it; two entries, one for each queue, no user context, the first vector.
        pair.cq = unsafe { (functions.ibv_create_cq)(context, 2, ptr::null_mut(), pair.channel, 0) };
        made(pair.cq.is_null(), "ibv_create_cq")?;
        pair.qp = pair.device.create_qp(pair.cq, path.port.number)?;
        // SAFETY: the queue pair was made, and its number does not change.
        pair.path.port.qpn = unsafe { (*pair.qp).qp_num };
        Ok(pair)
    }

    fn modify(&self, attributes: &mut abi::QpAttr, mask: c_int) -> Result<(), MemoryError> {
        // SAFETY: the queue pair is there; only the members that the mask names are read.
        status("ibv_modify_qp", unsafe { (self.device.functions.ibv_modify_qp)(self.qp, attributes, mask) })
    }

    /// The functions that the driver of the device has.
    fn ops(&self) -> &abi::ContextOps {
        // SAFETY: libibverbs fills the table when the device is opened, and the context lives as long as the device.
        unsafe { &self.device.context.as_ref().ops }
    }

    /// Waits for the one completion there will be.
    fn completion(&self, what: &'static str, patience: Duration) -> Result<abi::Wc, MemoryError> {
        let qpn = self.path.port.qpn;
        let until = Instant::now() + patience;
        loop {
            // Armed first: what comes between the look and the wait makes an event.
            let arm = self.ops().req_notify_cq.ok_or_else(|| missing("ibv_req_notify_cq"))?;
            // SAFETY: a queue of this device; any completion is to make an event.
            status("ibv_req_notify_cq", unsafe { arm(self.cq, 0) })?;
            let mut wc = abi::Wc::default();
            let poll = self.ops().poll_cq.ok_or_else(|| missing("ibv_poll_cq"))?;
            // SAFETY: room for one completion.
            match unsafe { poll(self.cq, 1, &raw mut wc) } {
                0 => {}
                n if n < 0 => return Err(failed("ibv_poll_cq")),
                _ if wc.status == abi::WC_SUCCESS => return Ok(wc),
                _ => {
                    return Err(MemoryError::Completion { what, qpn, status: self.status_text(wc.status) });
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            // SAFETY: the channel is there, and its descriptor is its own.
            let ready = !left.is_zero() && unsafe { readable((*self.channel).fd, left) }.map_err(channel_error)?;
            if !ready {
                return Err(MemoryError::Silence { what, qpn, patience });
            }
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: places for what the function says; there is an event, so that it does not wait.
            let result =
                unsafe { (self.device.functions.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) };
            status("ibv_get_cq_event", result)?;
            // SAFETY: the one event that was just taken, of the one queue of this channel.
            unsafe { (self.device.functions.ibv_ack_cq_events)(self.cq, 1) };
        }
    }

    /// What a completion's status is called.
    fn status_text(&self, number: c_uint) -> String {
        // SAFETY: takes any number; what it returns is a constant.
        let text = unsafe { (self.device.functions.ibv_wc_status_str)(number) };
        if text.is_null() {
            return format!("status {number}");
        }
        // SAFETY: a C string that stays.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

fn missing(verb: &'static str) -> MemoryError {
    MemoryError::Verb { verb, source: io::ErrorKind::Unsupported.into(), hint: "; the device's driver has none" }
}

fn channel_error(source: io::Error) -> MemoryError {
    MemoryError::Verb { verb: "poll", source, hint: "" }
}

/// Waits until there is something to read. Returns whether there is.
///
/// # Safety
///
/// The descriptor is open.
#[cfg(target_os = "linux")]
unsafe fn readable(fd: c_int, patience: Duration) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // SAFETY: the caller's promise.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Elsewhere no device is opened, and nothing waits.
///
/// # Safety
///
/// None is needed.
#[cfg(not(target_os = "linux"))]
unsafe fn readable(_: c_int, _: Duration) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

impl QueuePair for Pair {
    fn port(&self) -> Port {
        self.path.port
    }

    fn connect(&mut self, peer: &Token, psn: u32, peer_psn: u32) -> Result<(), MemoryError> {
        // The data goes where the server says: the receive is only for the immediate.
        let mut receive = abi::RecvWr { wr_id: 1, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        let mut bad = ptr::null_mut();
        let post = self.ops().post_recv.ok_or_else(|| missing("ibv_post_recv"))?;
        // SAFETY: the queue pair is there, and the request lives for the call.
        status("ibv_post_recv", unsafe { post(self.qp, &raw mut receive, &raw mut bad) })?;
        let Path { port, gid_index, mtu } = self.path;
        let grh = abi::GlobalRoute {
            dgid: abi::Gid(peer.gid),
            flow_label: 0,
            sgid_index: gid_index,
            hop_limit: value::HOPS,
            traffic_class: 0,
        };
        let ah_attr =
            abi::AhAttr { grh, dlid: peer.lid, is_global: 1, port_num: port.number, ..abi::AhAttr::default() };
        let mut attributes = abi::QpAttr {
            qp_state: abi::QPS_RTR,
            path_mtu: mtu,
            dest_qp_num: peer.qpn,
            rq_psn: peer_psn,
            max_dest_rd_atomic: value::READS,
            min_rnr_timer: value::RNR_TIMER,
            ah_attr,
            ..abi::QpAttr::default()
        };
        self.modify(&mut attributes, abi::TO_RTR)?;
        let mut attributes = abi::QpAttr {
            qp_state: abi::QPS_RTS,
            sq_psn: psn,
            timeout: value::TIMEOUT,
            retry_cnt: value::RETRIES,
            rnr_retry: value::RNR_RETRIES,
            max_rd_atomic: value::READS,
            ..abi::QpAttr::default()
        };
        self.modify(&mut attributes, abi::TO_RTS)
    }

    fn write(&mut self, region: &dyn Region, window: Window, to: RcTarget, immediate: u32) -> Result<(), MemoryError> {
        // More than a work request has is more than a transfer has.
        let length = u32::try_from(window.length).unwrap_or(u32::MAX);
        let mut piece = abi::Sge { addr: window.address, length, lkey: region.lkey() };
        let mut request = abi::SendWr {
            wr_id: 2,
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: 1,
            opcode: abi::WR_RDMA_WRITE_WITH_IMM,
            send_flags: abi::SEND_SIGNALED,
            imm_data: immediate.to_be(),
            remote_addr: to.address,
            rkey: to.rkey,
            ..abi::SendWr::default()
        };
        let mut bad = ptr::null_mut();
        let post = self.ops().post_send.ok_or_else(|| missing("ibv_post_send"))?;
        // SAFETY: the queue pair is there, and the request and its piece live for the call. The memory is the region's, which is
        // borrowed until the completion, or until the queue pair is gone.
        status("ibv_post_send", unsafe { post(self.qp, &raw mut request, &raw mut bad) })?;
        let wc = self.completion("RDMA WRITE", PATIENCE)?;
        if wc.opcode != abi::WC_RDMA_WRITE {
            let status = format!("a completion of opcode {}", wc.opcode);
            return Err(MemoryError::Completion { what: "RDMA WRITE", qpn: self.path.port.qpn, status });
        }
        Ok(())
    }

    fn arrived(&mut self, patience: Duration) -> Result<Arrived, MemoryError> {
        let what = "server's RDMA WRITE";
        let wc = self.completion(what, patience)?;
        if wc.opcode != abi::WC_RECV_RDMA_WITH_IMM || wc.wc_flags & abi::WC_WITH_IMM == 0 {
            let status = format!("a completion of opcode {} with flags {:#x}", wc.opcode, wc.wc_flags);
            return Err(MemoryError::Completion { what, qpn: self.path.port.qpn, status });
        }
        Ok(Arrived { bytes: wc.byte_len.into(), immediate: u32::from_be(wc.imm_data) })
    }
}
