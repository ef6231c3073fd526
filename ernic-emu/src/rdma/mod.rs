//! The RDMA half of the device: queues, queue pairs, memory regions, address handles, and the admin queues that make them.
//!
//! Work requests are executed between the queue pairs of the device: there is no network behind it. A peer that is elsewhere is
//! waited for, and then the request fails as it would for want of an answer. A region's key is a row in [`MemoryRegions`], for
//! work requests and for tokens alike.

mod admin;
mod exec;
mod pages;
mod qp;
mod queue;
mod region;
mod remote;
mod wqe;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use ionic_abi::{
    CQ_RING_ARM, CQ_RING_CONS, CQ_RING_SOL, Doorbell, LifIdentityRdma, LifLogicalQtype, Opcode, RdmaQueueCmd, Status,
};
use zerocopy::FromZeros;

use self::{
    admin::AdminQueue,
    pages::Pages,
    qp::QueuePair,
    queue::{CQE, CompletionQueue, EventQueue, Full, notify, notify_broken},
    wqe::Template,
};
pub use self::{
    region::{MAX_PAGES, MAX_REGIONS, MemoryRegions, RegionError},
    remote::NicMemory,
};
use crate::{device::GuestErrors, intr::Interrupts, mem::GuestMemory, pci};

/// Doorbell slots of the RDMA queues, beside the Ethernet ones (0 to 3) on the same page.
const QTYPE_AQ: u8 = 4;
const QTYPE_SQ: u8 = 5;
const QTYPE_RQ: u8 = 6;
const QTYPE_CQ: u8 = 7;
const QTYPE_EQ: u8 = 8;

/// Admin queues, queue pairs, completion queues and event queues that the identity offers. The driver wants powers of
/// two for queue pairs and completion queues, and at least four event queues.
const ADMIN_QUEUES: u32 = 4;
const QUEUE_PAIRS: u32 = 65_536;
const COMPLETION_QUEUES: u32 = 65_536;
const EVENT_QUEUES: u32 = 16;
const ADDRESS_HANDLES: u32 = 65_536;
/// Page table entries of all queues together.
const QUEUE_PAGES: u64 = 4 << 20;

/// The bit of a queue's number that says which of the two data movers it belongs to. At least 1, or the first queue pair of
/// the second one collides with the GSI's number.
const UDMA_SHIFT: u8 = 6;

/// What the RDMA half needs of the rest of the device while it works.
pub(crate) struct Env<'a> {
    pub(crate) mem: &'a GuestMemory,
    pub(crate) intr: &'a mut Interrupts,
    /// Vectors to raise at the end of the turn, one bit each.
    pub(crate) events: &'a mut u64,
    pub(crate) errors: &'a mut GuestErrors,
    /// Monotonic; that of the last turn, outside of one.
    pub(crate) now: Duration,
    /// What the driver set on the interface, bytes.
    pub(crate) mtu: u32,
}

impl Env<'_> {
    fn raise(&mut self, vector: u16) {
        *self.events |= 1u64.checked_shl(vector.into()).unwrap_or(0);
    }
}

/// How many objects there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Objects {
    /// Event queues.
    pub eqs: usize,
    /// Completion queues, those of the admin queues among them.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Address handles.
    pub ahs: usize,
    /// Memory regions and windows.
    pub regions: u32,
}

/// Names of the operations of work requests, in the order of [`WorkOp`](ionic_abi::WorkOp).
pub const OPERATIONS: [&str; 11] = [
    "send",
    "send_inv",
    "send_imm",
    "read",
    "write",
    "write_imm",
    "compare_swap",
    "fetch_add",
    "register",
    "invalidate",
    "bind",
];

/// What work requests did, since the device was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that succeeded, by operation in the order of [`OPERATIONS`].
    pub by_operation: [u64; OPERATIONS.len()],
    /// Requests that failed; those that were flushed are not counted.
    pub failed: u64,
    /// Bytes that were moved for them.
    pub bytes: u64,
    /// Datagrams that went nowhere.
    pub dropped: u64,
    /// How often a request had to wait: for a receive buffer, or for a peer.
    pub waits: u64,
}

impl Traffic {
    /// Requests that succeeded.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.by_operation.iter().sum()
    }
}

/// An address handle.
#[derive(Debug)]
struct AddressHandle {
    pd: u32,
    header: Template,
}

/// All RDMA objects of the LIF.
#[derive(Debug)]
pub(crate) struct Rdma {
    regions: MemoryRegions,
    eqs: BTreeMap<u32, EventQueue>,
    cqs: BTreeMap<u32, CompletionQueue>,
    aqs: BTreeMap<u32, AdminQueue>,
    qps: BTreeMap<u32, QueuePair>,
    ahs: BTreeMap<u32, AddressHandle>,
    /// Queue pairs that wait for a turn, in order.
    ready: VecDeque<u32>,
    /// When those that wait for something else get one at the latest.
    timers: BTreeSet<(Duration, u32)>,
    /// The last one given.
    epoch: u64,
    traffic: Traffic,
    queue_pages: u64,
}

impl Rdma {
    pub(crate) fn new() -> Self {
        Self {
            regions: MemoryRegions::default(),
            eqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            aqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            ahs: BTreeMap::new(),
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            epoch: 0,
            traffic: Traffic::default(),
            queue_pages: QUEUE_PAGES,
        }
    }

    pub(crate) fn regions(&self) -> &MemoryRegions {
        &self.regions
    }

    pub(crate) fn objects(&self) -> Objects {
        Objects {
            eqs: self.eqs.len(),
            cqs: self.cqs.len(),
            qps: self.qps.len(),
            ahs: self.ahs.len(),
            regions: self.regions.len(),
        }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// What the LIF identity says of it (`union ionic_lif_identity`, 04 §2).
    pub(crate) fn identity() -> LifIdentityRdma {
        let mut id = LifIdentityRdma::new_zeroed();
        id.version = 1;
        id.qp_opcodes = ionic_abi::QP_OPCODES;
        id.admin_opcodes = ionic_abi::ADMIN_OPCODES;
        // The driver's largest region is half of this many pages, its table and its copy.
        id.npts_per_lif = (2 * MAX_PAGES).into();
        id.nmrs_per_lif = MAX_REGIONS.into();
        id.nahs_per_lif = ADDRESS_HANDLES.into();
        id.max_stride = 9;
        id.cl_stride = 6;
        id.pte_stride = 3;
        id.rrq_stride = 6;
        id.rsq_stride = 6;
        id.udma_shift = UDMA_SHIFT;
        id.page_size_cap = 0x4020_1000.into();
        let queues =
            |qtype, count: u32| LifLogicalQtype { qtype, rsvd: [0; 3], qid_count: count.into(), qid_base: 0.into() };
        id.aq_qtype = queues(QTYPE_AQ, ADMIN_QUEUES);
        id.sq_qtype = queues(QTYPE_SQ, QUEUE_PAIRS);
        id.rq_qtype = queues(QTYPE_RQ, QUEUE_PAIRS);
        id.cq_qtype = queues(QTYPE_CQ, COMPLETION_QUEUES);
        id.eq_qtype = queues(QTYPE_EQ, EVENT_QUEUES);
        id
    }

    /// RDMA_RESET_LIF: every object goes, and the vectors of its event queues fall silent (the driver only frees them).
    pub(crate) fn reset(&mut self, intr: &mut Interrupts) {
        for eq in self.eqs.values() {
            intr.silence(eq.vector());
        }
        self.regions.clear();
        *self = Self { regions: self.regions.clone(), traffic: self.traffic, epoch: self.epoch, ..Self::new() };
    }

    /// CREATE_EQ, CREATE_CQ and CREATE_ADMINQ of the Ethernet admin queue.
    pub(crate) fn create_queue(&mut self, cmd: &RdmaQueueCmd) -> Result<(), Status> {
        let (id, cid) = (cmd.qid_ver.get(), cmd.cid.get());
        let (base, log2) = (cmd.dma_addr.get(), cmd.depth_log2);
        match (cmd.opcode, cmd.stride_log2) {
            (Opcode::RDMA_CREATE_EQ, 2) => {
                let vector = u16::try_from(cid).ok().filter(|v| *v < pci::VECTORS).ok_or(Status::ERANGE)?;
                if id >= EVENT_QUEUES {
                    return Err(Status::EQID);
                }
                self.eqs.insert(id, EventQueue::new(base, log2, vector).ok_or(Status::EINVAL)?);
            }
            (Opcode::RDMA_CREATE_CQ, 5) => {
                if id >= COMPLETION_QUEUES || !self.eqs.contains_key(&cid) {
                    return Err(Status::EQID);
                }
                if !(1..=16).contains(&log2) {
                    return Err(Status::EINVAL);
                }
                let cq = CompletionQueue::new(cid, 0, direct(base, CQE << log2)?, log2);
                self.queue_pages += self.cqs.insert(id, cq).map_or(0, |old| old.entries());
            }
            (Opcode::RDMA_CREATE_ADMINQ, 6) => {
                if id >= ADMIN_QUEUES || !self.cqs.contains_key(&cid) {
                    return Err(Status::EQID);
                }
                self.aqs.insert(id, AdminQueue::new(base, log2, cid).ok_or(Status::EINVAL)?);
            }
            _ => return Err(Status::EINVAL),
        }
        Ok(())
    }

    /// A doorbell on `page`. `false` if there is no such queue, index, or right to ring it. Doorbells of queues that a
    /// reset took away still come, and mean nothing.
    pub(crate) fn doorbell(&mut self, env: &mut Env<'_>, page: u16, qtype: u8, doorbell: Doorbell) -> bool {
        let Doorbell { p_index, ring, qid } = doorbell;
        match (qtype, ring) {
            (QTYPE_AQ, 0) if page == 0 => self.aqs.get_mut(&qid).is_some_and(|aq| aq.indices.set_producer(p_index)),
            (QTYPE_SQ, 0) => {
                let known = self.qps.get_mut(&qid).filter(|qp| qp.page == page);
                let rung = known.is_some_and(|qp| qp.sq.indices.set_producer(p_index));
                if rung {
                    self.wake(qid);
                }
                rung
            }
            (QTYPE_RQ, 0) => {
                let Some(qp) = self.qps.get_mut(&qid).filter(|qp| qp.page == page) else { return false };
                let (known, peer) = (qp.rq.indices.set_producer(p_index), qp.peer());
                // It may wait for a buffer.
                self.wake(peer);
                known
            }
            (QTYPE_CQ, CQ_RING_CONS | CQ_RING_ARM | CQ_RING_SOL) => {
                let Some(cq) = self.cqs.get_mut(&qid).filter(|cq| cq.page == page) else { return false };
                if ring == CQ_RING_CONS {
                    cq.consumed(p_index);
                } else if cq.arm(ring == CQ_RING_SOL) {
                    notify(self.eqs.get_mut(&cq.eq), env, qid);
                }
                true
            }
            _ => false,
        }
    }

    /// One turn: admin commands, work requests, events that waited. Whether there is more to do at once, and when there will be at
    /// the latest.
    pub(crate) fn run(&mut self, env: &mut Env<'_>) -> (bool, Option<Duration>) {
        let mut more = self.run_admin(env);
        more |= self.run_work(env);
        for eq in self.eqs.values_mut() {
            eq.flush(env);
        }
        (more, self.timers.first().map(|(at, _)| *at))
    }

    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// Writes a completion. `false`: there is no such queue any more, or it broke, and what is due is lost.
    fn complete(&mut self, env: &mut Env<'_>, cqid: u32, entry: [u8; 32], solicited: bool) -> bool {
        let Some(cq) = self.cqs.get_mut(&cqid) else { return false };
        let eq = self.eqs.get_mut(&cq.eq);
        match cq.post(env, entry, solicited) {
            Ok(true) => notify(eq, env, cqid),
            Ok(false) => {}
            Err(Full::Now) => {
                crate::warn_limited!(cqid, "completion queue overrun or not in guest memory");
                notify_broken(eq, env, cqid);
                return false;
            }
            Err(Full::Before) => return false,
        }
        true
    }
}

fn direct(base: u64, length: u64) -> Result<Pages, Status> {
    Pages::contiguous(base, length).ok_or(Status::BAD_ADDR)
}
