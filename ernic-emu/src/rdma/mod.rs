//! The RDMA half of the device: queues, queue pairs, memory regions, address handles, and the admin queues that make them.
//!
//! Work requests are not executed yet: one that is posted completes with an error, so that no program waits for ever.
//! What works is everything that a token needs: a region's key is a row in [`MemoryRegions`].

mod admin;
mod pages;
mod qp;
mod queue;
mod region;
mod remote;

use std::collections::{BTreeMap, BTreeSet};

use ionic_abi::{
    CQ_RING_ARM, CQ_RING_CONS, CQ_RING_SOL, CQE_ERROR, CQE_QID_SHIFT, CQE_TYPE_SHIFT, CqeType, Doorbell,
    LifIdentityRdma, LifLogicalQtype, Opcode, QpState, QpType, RdmaQueueCmd, Status,
};
use zerocopy::FromZeros;

use self::{
    admin::AdminQueue,
    pages::Pages,
    qp::QueuePair,
    queue::{CQE, CompletionQueue, EventQueue, Full, notify, notify_broken},
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

/// Work requests that one turn completes.
const WORK_BUDGET: usize = 256;

/// Completion status (05 §4): the queue pair could not do it.
const STATUS_LOCAL_QP_OPER: u32 = 2;
/// Completion status: flushed. The driver makes one up for every request that is outstanding.
const STATUS_FLUSHED: u32 = 4;

/// What the RDMA half needs of the rest of the device while it works.
pub(crate) struct Env<'a> {
    pub(crate) mem: &'a GuestMemory,
    pub(crate) intr: &'a mut Interrupts,
    /// Vectors to raise at the end of the turn, one bit each.
    pub(crate) events: &'a mut u64,
    pub(crate) errors: &'a mut GuestErrors,
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

/// All RDMA objects of the LIF.
#[derive(Debug)]
pub(crate) struct Rdma {
    regions: MemoryRegions,
    eqs: BTreeMap<u32, EventQueue>,
    cqs: BTreeMap<u32, CompletionQueue>,
    aqs: BTreeMap<u32, AdminQueue>,
    qps: BTreeMap<u32, QueuePair>,
    ahs: BTreeMap<u32, Vec<u8>>,
    /// Queue pairs whose send queue was rung.
    rung: BTreeSet<u32>,
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
            rung: BTreeSet::new(),
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
        *self = Self { regions: self.regions.clone(), ..Self::new() };
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
                    self.rung.insert(qid);
                }
                rung
            }
            (QTYPE_RQ, 0) => self
                .qps
                .get_mut(&qid)
                .filter(|qp| qp.page == page)
                .is_some_and(|qp| qp.rq.indices.set_producer(p_index)),
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

    /// One turn: admin commands, work requests, events that waited. Whether there is more to do at once.
    pub(crate) fn run(&mut self, env: &mut Env<'_>) -> bool {
        let mut more = self.run_admin(env);
        let mut budget = WORK_BUDGET;
        while budget > 0
            && let Some(qpn) = self.rung.pop_first()
        {
            self.refuse_work(env, qpn, &mut budget);
        }
        more |= !self.rung.is_empty();
        for eq in self.eqs.values_mut() {
            eq.flush(env);
        }
        more
    }

    /// Completes what was posted on a send queue, with an error.
    fn refuse_work(&mut self, env: &mut Env<'_>, qpn: u32, budget: &mut usize) {
        loop {
            let Some(qp) = self.qps.get_mut(&qpn) else { return };
            if qp.state != QpState::RTS || qp.sq.indices.available() == 0 {
                return;
            }
            if *budget == 0 {
                self.rung.insert(qpn);
                return;
            }
            *budget -= 1;
            let head = qp.sq.next().and_then(|at| env.mem.read_plain::<WorkHead>(at).ok()).unwrap_or_default();
            let (cq, kind) = (qp.sq.cq, qp.kind);
            qp.sq.indices.advance(1);
            crate::debug_limited!(qpn, op = head.op, "work requests are not executed yet");
            // Datagram queue pairs and local operations complete by index, the others by message number; the first
            // request since RESET fails, so that number is 1.
            let local = matches!(head.op, OP_REG_MR | OP_LOCAL_INV | OP_BIND_MW);
            let entry = if kind == QpType::UD || local {
                send_entry(CqeType::SEND_NPG, qpn, 0, head.wqe_idx.get(), STATUS_LOCAL_QP_OPER)
            } else {
                send_entry(CqeType::SEND_MSN, qpn, 1, 0, STATUS_LOCAL_QP_OPER)
            };
            self.complete(env, cq, entry, true);
            if kind != QpType::UD {
                self.fail(env, qpn);
                return;
            }
        }
    }

    /// The queue pair goes to ERR: one flush completion for each side.
    fn fail(&mut self, env: &mut Env<'_>, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        qp.state = QpState::ERR;
        qp.sq.indices.discard();
        qp.rq.indices.discard();
        let (send, receive) = (qp.sq.cq, qp.rq.cq);
        self.complete(env, receive, send_entry(CqeType::RECV, qpn, 0, 0, STATUS_FLUSHED), true);
        self.complete(env, send, send_entry(CqeType::SEND_NPG, qpn, 0, 0, STATUS_FLUSHED), true);
    }

    fn complete(&mut self, env: &mut Env<'_>, cqid: u32, entry: [u8; 32], solicited: bool) {
        let Some(cq) = self.cqs.get_mut(&cqid) else { return };
        let eq = self.eqs.get_mut(&cq.eq);
        match cq.post(env, entry, solicited) {
            Ok(true) => notify(eq, env, cqid),
            Ok(false) => {}
            Err(Full) => {
                crate::warn_limited!(cqid, "completion queue overrun or not in guest memory");
                notify_broken(eq, env, cqid);
            }
        }
    }
}

fn direct(base: u64, length: u64) -> Result<Pages, Status> {
    Pages::contiguous(base, length).ok_or(Status::BAD_ADDR)
}

/// Head of a work request (`struct ionic_v1_base_hdr`).
#[derive(Debug, Clone, Copy, Default, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C)]
struct WorkHead {
    wqe_idx: ionic_abi::U64,
    op: u8,
    num_sge_key: u8,
    flags: ionic_abi::Be16,
    imm_data_key: ionic_abi::Be32,
}

/// Local operations of version 1 (05 §3).
const OP_REG_MR: u8 = 8;
const OP_LOCAL_INV: u8 = 9;
const OP_BIND_MW: u8 = 10;

/// An error completion (05 §4): message number at 4, ring position at 16, status at 24.
fn send_entry(kind: CqeType, qpn: u32, msn: u32, wqe_idx: u64, status: u32) -> [u8; 32] {
    let mut entry = [0; 32];
    entry[4..8].copy_from_slice(&msn.to_be_bytes());
    entry[16..24].copy_from_slice(&(wqe_idx & 0xffff).to_le_bytes());
    entry[24..28].copy_from_slice(&status.to_be_bytes());
    let tail = qpn << CQE_QID_SHIFT | u32::from(kind.0) << CQE_TYPE_SHIFT | CQE_ERROR;
    entry[28..32].copy_from_slice(&tail.to_be_bytes());
    entry
}
