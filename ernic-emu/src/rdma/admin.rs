//! RDMA admin queues: entries of 64 bytes, executed and completed in order (04 §4, §5).

use ionic_abi::{
    AdminOp, AdminStatus, CQE_ERROR, CQE_QID_SHIFT, CQE_TYPE_SHIFT, CqeType, CreateAh, CreateCq, CreateMr, CreateQp,
    DestroyById, EQE_QP_SQ_DRAIN, EQE_TYPE_QP, ModifyQp, QpAttr, QpFlags, QpState, QpType, QueryQp, RdmaAdminCqe,
    RdmaAdminHead,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{
    ADDRESS_HANDLES, AddressHandle, COMPLETION_QUEUES, Env, QUEUE_PAIRS, Rdma, UDMA_SHIFT,
    pages::{PageList, Pages},
    qp::{QueuePair, WorkQueue},
    queue::{CQE, CompletionQueue},
    wqe::Template,
};
use crate::ring::Indices;

/// Bytes of an entry.
const ENTRY: u64 = 64;
/// Entries of the longest command, CREATE_QP.
const MAX_ENTRIES: u16 = 2;
/// Commands that one turn runs.
const BUDGET: usize = 64;

/// One admin queue.
#[derive(Debug)]
pub(super) struct AdminQueue {
    base: u64,
    pub(super) indices: Indices,
    cq: u32,
}

impl AdminQueue {
    pub(super) fn new(base: u64, log2: u8, cq: u32) -> Option<Self> {
        let indices = Indices::new(log2).filter(|_| (2..=15).contains(&log2))?;
        Some(Self { base, indices, cq })
    }
}

/// A command, taken out of its ring.
struct Command {
    index: u16,
    op: AdminOp,
    body: [u8; 124],
    /// Bytes of the body.
    len: usize,
}

impl Command {
    fn body<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<T, AdminStatus> {
        // A longer body is a newer driver's, whose tail means nothing to us; a shorter one is no command.
        let body = self.body.get(..self.len).ok_or(AdminStatus::BAD_CMD)?;
        T::read_from_prefix(body).map(|(body, _)| body).map_err(|_| AdminStatus::BAD_CMD)
    }
}

impl Rdma {
    /// Runs what waits in the admin queues; whether more does.
    pub(super) fn run_admin(&mut self, env: &mut Env<'_>) -> bool {
        let mut budget = BUDGET;
        let ids: Vec<u32> = self.aqs.keys().copied().collect();
        for id in ids {
            while let Some(aq) = self.aqs.get_mut(&id).filter(|aq| aq.indices.available() > 0) {
                if budget == 0 {
                    return true;
                }
                budget -= 1;
                let cq = aq.cq;
                let Some((command, outcome)) = take(aq, env) else {
                    // The ring is not guest memory: nothing of it can be completed.
                    crate::warn_limited!(queue = id, "RDMA admin queue is not in guest memory");
                    env.errors.rdma_dma += 1;
                    self.aqs.remove(&id);
                    break;
                };
                let outcome = outcome.and_then(|()| self.command(env, &command));
                if let Err(status) = outcome {
                    env.errors.rdma_commands += 1;
                    crate::warn_limited!(op = ?command.op, ?status, "RDMA admin command refused");
                }
                let _ = self.complete(env, cq, completion(id, &command, outcome), false);
            }
        }
        false
    }

    fn command(&mut self, env: &mut Env<'_>, command: &Command) -> Result<(), AdminStatus> {
        match command.op {
            AdminOp::NOOP => Ok(()),
            AdminOp::CREATE_MR => self.regions.create(env.mem, &command.body::<CreateMr>()?),
            AdminOp::DESTROY_MR => self.regions.destroy(command.body::<DestroyById>()?.id_ver.get()),
            AdminOp::CREATE_CQ => self.create_cq(env, &command.body()?),
            AdminOp::DESTROY_CQ => {
                let id = command.body::<DestroyById>()?.id_ver.get();
                // Those of admin queues go with all of RDMA: without one, no command could be answered any more.
                if self.aqs.values().any(|aq| aq.cq == id) {
                    return Err(AdminStatus::BAD_STATE);
                }
                let cq = self.cqs.remove(&id).ok_or(AdminStatus::BAD_INDEX)?;
                self.queue_pages += cq.entries();
                Ok(())
            }
            AdminOp::CREATE_QP => self.create_qp(env, &command.body()?),
            AdminOp::MODIFY_QP => self.modify_qp(env, &command.body()?),
            AdminOp::QUERY_QP => self.query_qp(env, &command.body()?),
            AdminOp::DESTROY_QP => {
                let id = command.body::<DestroyById>()?.id_ver.get();
                let qp = self.qps.remove(&id).ok_or(AdminStatus::BAD_INDEX)?;
                self.queue_pages += qp.entries();
                if let Some(at) = qp.timer {
                    self.timers.remove(&(at, id));
                }
                // Whoever waits for it notices.
                self.wake(qp.peer());
                Ok(())
            }
            AdminOp::CREATE_AH => self.create_ah(env, &command.body()?),
            AdminOp::DESTROY_AH => {
                let id = command.body::<DestroyById>()?.id_ver.get();
                self.ahs.remove(&id).map(drop).ok_or(AdminStatus::BAD_INDEX)
            }
            _ => Err(AdminStatus::BAD_CMD),
        }
    }

    /// The pages of a queue: `map_count` 1 is a run, more is a table of pages.
    fn queue_pages(
        &mut self,
        env: &Env<'_>,
        length: u64,
        map_count: u32,
        dma_addr: u64,
        shift: u8,
    ) -> Result<Pages, AdminStatus> {
        Pages::read(env.mem, PageList { va: 0, length, map_count, dma_addr, shift }, &mut self.queue_pages)
    }

    fn create_cq(&mut self, env: &Env<'_>, cmd: &CreateCq) -> Result<(), AdminStatus> {
        let id = cmd.id_ver.get();
        if id >= COMPLETION_QUEUES || self.cqs.contains_key(&id) {
            return Err(AdminStatus::BAD_INDEX);
        }
        if !self.eqs.contains_key(&cmd.eq_id.get()) || cmd.stride_log2 != 5 || !(1..=16).contains(&cmd.depth_log2) {
            return Err(AdminStatus::BAD_ATTR);
        }
        let pages =
            self.queue_pages(env, CQE << cmd.depth_log2, cmd.map_count.get(), cmd.dma_addr.get(), cmd.page_size_log2)?;
        self.cqs.insert(id, CompletionQueue::new(cmd.eq_id.get(), cmd.dbid_flags.get(), pages, cmd.depth_log2));
        Ok(())
    }

    fn create_qp(&mut self, env: &Env<'_>, cmd: &CreateQp) -> Result<(), AdminStatus> {
        let id = cmd.id_ver.get();
        if id >= QUEUE_PAIRS || self.qps.contains_key(&id) {
            return Err(AdminStatus::BAD_INDEX);
        }
        if !matches!(cmd.type_state, QpType::RC | QpType::UC | QpType::UD) {
            return Err(AdminStatus::BAD_TYPE);
        }
        let flags = QpFlags::from_bits_truncate(cmd.priv_flags.get());
        let (sq_cq, rq_cq) = (cmd.sq_cq_id.get(), cmd.rq_cq_id.get());
        if flags.intersects(QpFlags::SQ_CMB | QpFlags::RQ_CMB)
            || !self.cqs.contains_key(&sq_cq)
            || !self.cqs.contains_key(&rq_cq)
        {
            return Err(AdminStatus::BAD_ATTR);
        }
        let ring = |depth: u8, stride: u8| {
            let indices = Indices::new(depth).filter(|_| (6..=9).contains(&stride))?;
            Some((indices, 1u64 << (depth + stride)))
        };
        let (sq_indices, sq_len) = ring(cmd.sq_depth_log2, cmd.sq_stride_log2).ok_or(AdminStatus::BAD_ATTR)?;
        let (rq_indices, rq_len) = ring(cmd.rq_depth_log2, cmd.rq_stride_log2).ok_or(AdminStatus::BAD_ATTR)?;
        let sq = self.queue_pages(env, sq_len, cmd.sq_map_count.get(), cmd.sq_dma_addr.get(), cmd.sq_page_size_log2)?;
        let rq = self
            .queue_pages(env, rq_len, cmd.rq_map_count.get(), cmd.rq_dma_addr.get(), cmd.rq_page_size_log2)
            .inspect_err(|_| self.queue_pages += sq.entries())?;
        let sq = WorkQueue::new(sq_cq, sq, sq_indices, cmd.sq_stride_log2);
        let rq = WorkQueue::new(rq_cq, rq, rq_indices, cmd.rq_stride_log2);
        let mut qp = QueuePair::new(cmd.dbid_flags.get(), cmd.type_state, cmd.pd_id.get(), flags, sq, rq);
        qp.restart(self.next_epoch());
        self.qps.insert(id, qp);
        Ok(())
    }

    fn modify_qp(&mut self, env: &mut Env<'_>, cmd: &ModifyQp) -> Result<(), AdminStatus> {
        let id = cmd.id_ver.get();
        let mask = QpAttr::from_bits_truncate(cmd.attr_mask.get());
        let epoch = self.next_epoch();
        let qp = self.qps.get_mut(&id).ok_or(AdminStatus::BAD_INDEX)?;
        let route = match mask.contains(QpAttr::AV) && qp.kind == QpType::RC {
            true => Some(template(env, cmd.dma_addr.get(), cmd.ah_id_len.get() >> 24)?),
            false => None,
        };
        let to = qp.modify(cmd)?;
        if route.is_some() {
            qp.route = route;
        }
        match to {
            None => {}
            Some(QpState::ERR) if qp.state != QpState::ERR && qp.state != QpState::RESET => self.fail(env, id),
            Some(state) => {
                if state == QpState::RESET {
                    qp.restart(epoch);
                }
                qp.state = state;
                let notify = QpFlags::from_bits_truncate(cmd.access_flags.get().into()).contains(QpFlags::SQD_NOTIFY)
                    && mask.contains(QpAttr::EN_SQD_ASYNC_NOTIFY);
                qp.tell_drained = state == QpState::SQD && notify;
                // What it was at is finished first.
                if qp.tell_drained && qp.work.is_none() {
                    qp.tell_drained = false;
                    self.tell_owner(env, id, EQE_QP_SQ_DRAIN);
                }
            }
        }
        // It may send now, and be sent to.
        self.wake(id);
        if let Some(peer) = self.qps.get(&id).map(QueuePair::peer) {
            self.wake(peer);
        }
        Ok(())
    }

    /// An event of a queue pair: on the event queue of its data mover, 0 or 1, which serve no completion queue (04 §3).
    pub(super) fn tell_owner(&mut self, env: &mut Env<'_>, qpn: u32, code: u32) {
        if let Some(eq) = self.eqs.get_mut(&(qpn >> UDMA_SHIFT & 1)) {
            eq.post(env, EQE_TYPE_QP, code, qpn);
        }
    }

    fn query_qp(&mut self, env: &mut Env<'_>, cmd: &QueryQp) -> Result<(), AdminStatus> {
        let qp = self.qps.get(&cmd.id_ver.get()).ok_or(AdminStatus::BAD_INDEX)?;
        // The kernel would follow a null pointer if the address vector of a datagram queue pair were answered.
        if cmd.hdr_dma_addr.get() != 0 && qp.kind != QpType::RC {
            return Err(AdminStatus::BAD_TYPE);
        }
        let (sq, rq) = qp.query();
        let written = env
            .mem
            .write(cmd.sq_dma_addr.get(), sq.as_bytes())
            .and_then(|()| env.mem.write(cmd.rq_dma_addr.get(), rq.as_bytes()));
        written.map_err(|_| {
            env.errors.rdma_dma += 1;
            AdminStatus::BAD_ATTR
        })
    }

    fn create_ah(&mut self, env: &mut Env<'_>, cmd: &CreateAh) -> Result<(), AdminStatus> {
        let id = cmd.id_ver.get();
        if id >= ADDRESS_HANDLES {
            return Err(AdminStatus::BAD_INDEX);
        }
        let header = template(env, cmd.dma_addr.get(), cmd.length.get())?;
        self.ahs.insert(id, AddressHandle { pd: cmd.pd_id.get(), header });
        Ok(())
    }
}

/// Copies a header template; the driver unmaps it as soon as the command completes.
fn template(env: &mut Env<'_>, at: u64, len: u32) -> Result<Template, AdminStatus> {
    let len = usize::try_from(len).ok().filter(|len| Template::LENGTHS.contains(len)).ok_or(AdminStatus::BAD_ATTR)?;
    let mut header = vec![0; len];
    if env.mem.read(at, &mut header).is_err() {
        env.errors.rdma_dma += 1;
        return Err(AdminStatus::BAD_ATTR);
    }
    Template::new(header).ok_or(AdminStatus::BAD_ATTR)
}

/// Takes the next command; `None` if its entry cannot be read. The second value is an error of its framing.
fn take(aq: &mut AdminQueue, env: &Env<'_>) -> Option<(Command, Result<(), AdminStatus>)> {
    let (base, indices) = (aq.base, aq.indices);
    let index = indices.next();
    let address = |ahead: u16| base.wrapping_add(u64::from(indices.after(ahead)) * ENTRY);
    let mut first = [0; 64];
    env.mem.read(address(0), &mut first).ok()?;
    let (head, rest) = RdmaAdminHead::read_from_prefix(&first).ok()?;
    let len = usize::from(head.len.get());
    let mut command = Command { index, op: head.op, body: [0; 124], len };
    let entries = u16::try_from((len + size_of::<RdmaAdminHead>()).div_ceil(64)).unwrap_or(u16::MAX);
    if entries > MAX_ENTRIES || entries > indices.available() {
        aq.indices.advance(1);
        return Some((command, Err(AdminStatus::BAD_CMD)));
    }
    let here = len.min(rest.len());
    command.body[..here].copy_from_slice(&rest[..here]);
    if entries == 2 {
        let mut second = [0; 64];
        env.mem.read(address(1), &mut second).ok()?;
        command.body[here..len].copy_from_slice(&second[..len - here]);
    }
    aq.indices.advance(entries);
    Some((command, Ok(())))
}

fn completion(aq: u32, command: &Command, outcome: Result<(), AdminStatus>) -> [u8; 32] {
    let error = if outcome.is_err() { CQE_ERROR } else { 0 };
    let cqe = RdmaAdminCqe {
        cmd_idx: command.index.into(),
        cmd_op: command.op,
        status_length: outcome.err().map_or(0, |status| u32::from(status.0)).into(),
        qid_type_flags: (aq << CQE_QID_SHIFT | u32::from(CqeType::ADMIN.0) << CQE_TYPE_SHIFT | error).into(),
        ..RdmaAdminCqe::default()
    };
    zerocopy::transmute!(cqe)
}
