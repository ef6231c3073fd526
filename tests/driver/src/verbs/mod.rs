//! The RDMA half of the driver: what `ionic_rdma` does in the kernel (admin queues, regions, queues, queue pairs) and libionic
//! in a process (doorbells of its own page, work requests, polling).
//!
//! All calls take the [`Ionic`] that the device is bound to. Commands go round the admin queues as those of CPUs would.

mod admin;
mod mr;
mod qp;
mod queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ionic_abi::{
    EQE_CODE_SHIFT, EQE_CQ_NOTIFY, EQE_QID_SHIFT, EQE_TYPE_CQ, EQE_TYPE_SHIFT, INTR_COAL_INIT, INTR_CREDITS,
    INTR_MASK_ASSERT, IntrCredits, LifCaps, LifIdentityRdma, Opcode, RdmaQueueCmd, RdmaResetCmd,
};

use self::{
    admin::AdminQueue,
    qp::{Cq, Qp},
    queue::EventRing,
};
pub use self::{
    admin::Command,
    mr::{Mr, PageTable, RegMr},
    qp::{AddressVector, Change, QpConfig, QpInfo, Receive, Received, Request, Sge, Wc},
};
use crate::{
    bus::Bus,
    error::DriverError,
    ionic::Ionic,
    ram::{DmaBuf, GuestRam, PAGE},
};

/// Admin queues that the driver takes at most (`IONIC_AQ_COUNT`).
const ADMIN_QUEUES: u32 = 4;
/// Event queues below which the driver does not start (`IONIC_EQ_COUNT_MIN`).
const EVENT_QUEUES: u16 = 4;
/// Work request versions and opcodes that libionic takes.
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=2;
const QP_OPCODES: u8 = 11;
/// Data movers; every completion queue of a program is one of each (`udma_count` of `ionic_fill_lif_cfg`).
const MOVERS: u32 = 2;

/// An event that is not for an admin queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A completion queue that was armed has a completion. Its number at the device.
    Completion(u32),
    /// Something happened to a completion queue.
    Queue {
        /// Its number at the device.
        cq: u32,
        /// Event code.
        code: u32,
    },
    /// Something happened to a queue pair.
    QueuePair {
        /// Its number.
        qpn: u32,
        /// Event code.
        code: u32,
    },
}

/// Numbers of a kind of object: the lowest free one is the next, as bitmaps give them out.
#[derive(Debug, Default)]
struct Numbers {
    free: BTreeSet<u32>,
    next: u32,
}

impl Numbers {
    fn from(first: u32) -> Self {
        Self { free: BTreeSet::new(), next: first }
    }

    fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn give(&mut self, number: u32) {
        self.free.insert(number);
    }
}

/// The verbs device of a NIC.
#[derive(Debug)]
pub struct Verbs {
    /// RDMA part of the LIF identity.
    pub identity: LifIdentityRdma,
    /// Doorbell page of objects that are made from now on: 0 makes them the kernel's, others those of a process.
    pub page: u16,
    /// Events that came, but for those of admin queues.
    pub events: VecDeque<Event>,
    ram: GuestRam,
    eqs: Vec<EventRing>,
    aqs: Vec<AdminQueue>,
    next_aq: usize,
    /// Where page lists are for the time of a command; small ones lie anywhere in it, as in memory of `kmalloc`.
    scratch: DmaBuf,
    pds: Numbers,
    mrs: Numbers,
    next_key: u8,
    ahs: Numbers,
    /// Numbers of completion queues and queue pairs, one list per data mover.
    cq_numbers: [Numbers; 2],
    qp_numbers: [Numbers; 2],
    next_mover: u32,
    cqs: BTreeMap<u32, Cq>,
    qps: BTreeMap<u32, Qp>,
    /// Completions that were taken out of a completion queue while another queue pair's were dropped.
    ready: Vec<(u32, Wc)>,
}

/// The number of position `at` among those of data mover `mover` (`ionic_bitid_to_qid`): movers alternate every
/// `1 << shift` numbers.
fn spread(at: u32, mover: u32, shift: u8) -> u32 {
    (at >> shift) << (shift + 1) | mover << shift | at & ((1 << shift) - 1)
}

impl Verbs {
    /// Starts the RDMA half (`ionic_create_ibdev`): resets it, and makes event queues, admin queues and their completion
    /// queues.
    ///
    /// # Errors
    /// What the stock driver's probe would fail with.
    pub fn open<B: Bus>(nic: &mut Ionic<B>) -> Result<Self, DriverError> {
        let identity = nic.lif.rdma;
        let check = |what, value: u64, good: bool| {
            if good { Ok(()) } else { Err(DriverError::Identity { what, value }) }
        };
        let caps = nic.lif.capabilities.get();
        check("RDMA capability of the LIF", caps, caps & LifCaps::RDMA.bits() != 0)?;
        let (eqs, aqs) = (identity.eq_qtype.qid_count.get(), identity.aq_qtype.qid_count.get());
        check("event queues", eqs.into(), eqs >= EVENT_QUEUES.into())?;
        check("admin queues", aqs.into(), aqs >= 1)?;
        check("RDMA version", identity.version.into(), VERSIONS.contains(&identity.version))?;
        check("work request opcodes", identity.qp_opcodes.into(), identity.qp_opcodes >= QP_OPCODES)?;
        let (sqs, cqs) = (identity.sq_qtype.qid_count.get(), identity.cq_qtype.qid_count.get());
        for count in [sqs, cqs] {
            let least = 4u64 << identity.udma_shift;
            check("queue numbers", count.into(), count.is_power_of_two() && u64::from(count) >= least)?;
        }
        // With 0 the first queue pair of the second mover has the number of the GSI.
        check("udma_shift", identity.udma_shift.into(), identity.udma_shift >= 1)?;
        let slots = [identity.aq_qtype, identity.sq_qtype, identity.rq_qtype, identity.cq_qtype];
        let distinct: BTreeSet<u8> = slots.iter().map(|q| q.qtype).chain(0..4).collect();
        check("queue types", distinct.len() as u64, distinct.len() == slots.len() + 4)?;

        let ram = nic.bus.ram().clone();
        let scratch = ram.alloc(4 * PAGE).ok_or(DriverError::NoMemory(4 * PAGE))?;
        let mut verbs = Self {
            identity,
            page: 1,
            events: VecDeque::new(),
            ram,
            eqs: Vec::new(),
            aqs: Vec::new(),
            next_aq: 0,
            scratch,
            pds: Numbers::from(1),
            mrs: Numbers::from(1),
            next_key: 0,
            ahs: Numbers::from(0),
            cq_numbers: Default::default(),
            // 0 is the SMI's and 1 the GSI's.
            qp_numbers: [Numbers::from(2), Numbers::from(0)],
            next_mover: 0,
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            ready: Vec::new(),
        };
        verbs.reset(nic)?;
        let first = nic.claim_rdma_vectors(EVENT_QUEUES)?;
        for (id, vector) in (0..u32::from(EVENT_QUEUES)).zip(first..) {
            nic.intr_alloc(vector)?;
            nic.mask(vector, true)?;
            nic.intr(vector, INTR_MASK_ASSERT, 1)?;
            nic.intr(vector, INTR_COAL_INIT, 0)?;
            nic.intr_clean(vector)?;
            let eq = EventRing::new(&verbs.ram, vector)?;
            verbs.create_ring(nic, Opcode::RDMA_CREATE_EQ, id, vector.into(), EventRing::LOG2, 2, eq.iova())?;
            verbs.eqs.push(eq);
            nic.mask(vector, false)?;
        }
        for id in 0..aqs.min(ADMIN_QUEUES) {
            let cq = verbs.cq_numbers[0].take();
            let eq = id % u32::from(EVENT_QUEUES);
            let aq = AdminQueue::new(&verbs.ram, id, cq)?;
            verbs.create_ring(nic, Opcode::RDMA_CREATE_CQ, cq, eq, AdminQueue::CQ_LOG2, 5, aq.cq.iova())?;
            verbs.create_ring(nic, Opcode::RDMA_CREATE_ADMINQ, id, cq, AdminQueue::LOG2, 6, aq.iova())?;
            verbs.aqs.push(aq);
        }
        Ok(verbs)
    }

    /// Stops it (`ionic_destroy_ibdev`): the admin queues are dead at once, and the device is told to forget everything.
    ///
    /// # Errors
    /// The command failed.
    pub fn close<B: Bus>(self, nic: &mut Ionic<B>) -> Result<(), DriverError> {
        self.reset(nic)?;
        nic.release_rdma_vectors();
        Ok(())
    }

    /// RDMA_RESET_LIF.
    fn reset<B: Bus>(&self, nic: &mut Ionic<B>) -> Result<(), DriverError> {
        nic.admin(&RdmaResetCmd { opcode: Opcode::RDMA_RESET_LIF, ..RdmaResetCmd::default() }).map(drop)
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of the command")]
    fn create_ring<B: Bus>(
        &self,
        nic: &mut Ionic<B>,
        opcode: Opcode,
        id: u32,
        cid: u32,
        depth_log2: u8,
        stride_log2: u8,
        iova: u64,
    ) -> Result<(), DriverError> {
        let cmd = RdmaQueueCmd {
            opcode,
            qid_ver: id.into(),
            cid: cid.into(),
            depth_log2,
            stride_log2,
            dma_addr: iova.into(),
            ..RdmaQueueCmd::default()
        };
        nic.admin(&cmd).map(drop)
    }

    /// A protection domain: only the driver knows of it.
    pub fn create_pd(&mut self) -> u32 {
        self.pds.take()
    }

    /// The event queue of completion vector `vector` of data mover `mover` (`ionic_get_eqid`): the first of each mover
    /// has no completion queue.
    fn event_queue(&self, vector: u32, mover: u32) -> u32 {
        let pairs = u32::try_from(self.eqs.len()).unwrap_or(0) / MOVERS;
        (vector % (pairs - 1) + 1) * MOVERS + mover
    }

    /// Serves the event queues whose vectors were signalled; whether there was anything.
    ///
    /// # Errors
    /// The bus failed, or an event makes no sense.
    pub fn serve_events<B: Bus>(&mut self, nic: &mut Ionic<B>) -> Result<bool, DriverError> {
        let mut any = false;
        while let Some(vector) = nic.next_rdma_vector()? {
            let Some(at) = self.eqs.iter().position(|eq| eq.vector == vector) else { continue };
            while let Some(event) = self.eqs[at].next() {
                any = true;
                self.event(event)?;
            }
            // Event queues return no credits.
            nic.intr(vector, INTR_CREDITS, IntrCredits::UNMASK.bits())?;
        }
        Ok(any)
    }

    fn event(&mut self, event: u32) -> Result<(), DriverError> {
        let number = event >> EQE_QID_SHIFT;
        let kind = event >> EQE_TYPE_SHIFT & 7;
        let code = event >> EQE_CODE_SHIFT & 15;
        if kind == EQE_TYPE_CQ && code == EQE_CQ_NOTIFY {
            if let Some(aq) = self.aqs.iter_mut().find(|aq| aq.cq.number == number) {
                aq.cq.disarmed("admin")?;
            } else {
                // One that came while the queue was destroyed means nothing to the kernel.
                if let Some(ring) = self.cqs.values_mut().flat_map(|cq| &mut cq.rings).find(|r| r.number == number) {
                    ring.disarmed("a program's")?;
                }
                self.events.push_back(Event::Completion(number));
            }
        } else if kind == EQE_TYPE_CQ {
            self.events.push_back(Event::Queue { cq: number, code });
        } else {
            self.events.push_back(Event::QueuePair { qpn: number, code });
        }
        Ok(())
    }

    /// Whether an event lies in a ring, and the vector that should have said so.
    fn lost_event(&self) -> Option<u16> {
        self.eqs.iter().find(|eq| eq.ready()).map(|eq| eq.vector)
    }
}
