//! Work requests, executed between the queue pairs of the device (05 §6, §7).
//!
//! Queue pairs take turns: each visit runs a few requests or moves a few bytes, and the rest waits behind the others, so
//! that neither a peer, nor the Ethernet half, nor a register read waits behind a long transfer. A request that is not
//! finished is kept with its queue pair, with how far it has come; everything it names is looked up again at each visit.
//! One that has to wait (the peer is not there, or has no receive buffer) gives its turn up, and gets it back when the peer
//! changes or its time is over.

use std::time::Duration;

use ionic_abi::{
    CQE_ERROR, CQE_QID_SHIFT, CQE_RECV_IPV4, CQE_RECV_OP_SHIFT, CQE_RECV_VLAN, CQE_TYPE_SHIFT, CqeType, EQE_QP_ERR,
    EQE_QP_ERR_ACCESS, EQE_QP_ERR_REQUEST, EQE_QP_SQ_DRAIN, MrFlags, QpFlags, QpState, QpType, WorkFlags, WorkOp,
    WorkStatus,
};

use super::{
    Env, Rdma,
    qp::QueuePair,
    region::{Piece, Reader, RegionError, Scope},
    wqe::{Entry, GRH, List, Template},
};
use crate::mem::{GuestMemory, Prot};

/// What one turn of the device does: tens of microseconds of small requests, or of copying.
const TURN: Budget = Budget { requests: 256, bytes: 1 << 20 };
/// What a queue pair does before the next one has its turn.
const VISIT: Budget = Budget { requests: 16, bytes: 64 << 10 };

/// What IB packets have beside their payload, at most (`iboe_get_mtu`: GRH, UDP, BTH, XRC, atomics, ICRC).
const IB_OVERHEAD: u32 = 40 + 8 + 12 + 4 + 28 + 4;

/// Requests and bytes that may still be done.
#[derive(Debug, Clone, Copy)]
struct Budget {
    requests: u32,
    bytes: u64,
}

impl Budget {
    fn is_spent(self) -> bool {
        self.requests == 0 || self.bytes == 0
    }

    fn spend(&mut self, requests: u32, bytes: u64) {
        self.requests = self.requests.saturating_sub(requests);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// A request that was taken from its ring.
#[derive(Debug)]
pub(super) struct Work {
    entry: Entry,
    /// Its message number, if it completes by that.
    message: Option<u32>,
    /// Bytes that it moves, and how many of them it has.
    total: u64,
    done: u64,
    /// It makes sense, and the requester's own memory is there.
    checked: bool,
    receive: Option<Receive>,
    hold: Option<(Hold, Option<Duration>)>,
}

/// The receiver's buffer.
#[derive(Debug)]
struct Receive {
    entry: Entry,
    /// Of the receiver.
    epoch: u64,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    Peer,
    Buffer,
}

/// What came of a visit to a request.
#[derive(Debug)]
enum Step {
    Done,
    /// The budget is spent.
    Again,
    /// Until then at the latest.
    Wait(Option<Duration>),
}

/// A request failed.
#[derive(Debug)]
struct Failure {
    status: WorkStatus,
    /// The peer's queue pair goes down with it.
    peer: Option<Fallen>,
}

/// How the peer's queue pair goes down.
#[derive(Debug, Clone, Copy)]
struct Fallen {
    qpn: u32,
    /// Its receive that failed.
    receive: Option<(u16, WorkStatus)>,
    /// The event for its owner.
    event: u32,
}

impl From<WorkStatus> for Failure {
    fn from(status: WorkStatus) -> Self {
        Self { status, peer: None }
    }
}

/// Where the responder's part of a transfer is.
#[derive(Debug, Clone, Copy)]
enum Far<'a> {
    Receive(&'a Entry),
    Remote(Piece),
}

/// Whose memory a transfer failed at.
#[derive(Debug)]
enum Side {
    From(RegionError),
    To(RegionError),
}

/// A walk through pieces of memory.
struct Walk<'a> {
    reader: &'a Reader<'a>,
    scope: Scope,
    list: List<'a>,
    need: MrFlags,
    remote: bool,
    index: usize,
    /// Bytes of the piece at `index` that are behind.
    at: u64,
}

impl Walk<'_> {
    fn look(&self, piece: Piece) -> Result<Option<&super::Pages>, RegionError> {
        if self.remote {
            self.reader.remote(self.scope, piece, self.need)
        } else {
            self.reader.local(self.scope, piece, self.need)
        }
    }

    /// Whether every piece that is not empty may be used.
    fn check(&self) -> Result<(), RegionError> {
        for piece in (0..).map_while(|index| self.list.get(index)).filter(|piece| piece.len > 0) {
            self.look(piece)?;
        }
        Ok(())
    }

    /// The next bytes, at most `max`: their bus address, and how many there are in one run. None at the end.
    fn run(&mut self, max: u64) -> Result<Option<(u64, u64)>, RegionError> {
        while let Some(piece) = self.list.get(self.index) {
            let left = u64::from(piece.len).saturating_sub(self.at);
            if left == 0 {
                self.index += 1;
                self.at = 0;
                continue;
            }
            let address = piece.va.wrapping_add(self.at);
            let len = left.min(max);
            return match self.look(piece)? {
                None => Ok(Some((address, len))),
                Some(pages) => pages.run(address, len).map(Some).ok_or(RegionError::Bounds),
            };
        }
        Ok(None)
    }

    /// Passes bytes over.
    fn skip(&mut self, mut len: u64) {
        while let Some(piece) = self.list.get(self.index) {
            let left = u64::from(piece.len) - self.at;
            if len < left {
                break;
            }
            len -= left;
            self.index += 1;
            self.at = 0;
        }
        self.at += len;
    }
}

fn dma_side(mem: &GuestMemory, from: u64, len: usize, error: crate::mem::DmaError) -> Side {
    if mem.check(from, len, Prot::READ).is_err() { Side::From(error.into()) } else { Side::To(error.into()) }
}

/// Copies `len` bytes, in order.
fn transfer(mem: &GuestMemory, from: &mut Walk<'_>, to: &mut Walk<'_>, mut len: u64) -> Result<(), Side> {
    let mut access = mem.access();
    while len > 0 {
        let (source, have) = from.run(len).map_err(Side::From)?.ok_or(Side::From(RegionError::Bounds))?;
        let (target, room) = to.run(len).map_err(Side::To)?.ok_or(Side::To(RegionError::Bounds))?;
        let part = have.min(room);
        let bytes = usize::try_from(part).map_err(|_| Side::From(RegionError::Bounds))?;
        if let Err(error) = access.copy(source, target, bytes) {
            // Its table is let go of before anything else of it is used.
            drop(access);
            return Err(dma_side(mem, source, bytes, error));
        }
        from.at += part;
        to.at += part;
        len -= part;
    }
    Ok(())
}

/// Writes bytes of our own, in order.
fn put(mem: &GuestMemory, mut bytes: &[u8], to: &mut Walk<'_>) -> Result<(), RegionError> {
    let mut access = mem.access();
    while !bytes.is_empty() {
        let left = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let (target, room) = to.run(left)?.ok_or(RegionError::Bounds)?;
        let (part, rest) = bytes.split_at(usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len()));
        access.write(target, part)?;
        to.at += room;
        bytes = rest;
    }
    Ok(())
}

/// Done at the requester alone, and completed by index.
fn is_local(op: WorkOp) -> bool {
    matches!(op, WorkOp::REG_MR | WorkOp::LOCAL_INV | WorkOp::BIND_MW)
}

/// It takes a buffer of the receiver's.
fn receives(op: WorkOp) -> bool {
    matches!(op, WorkOp::SEND | WorkOp::SEND_INV | WorkOp::SEND_IMM | WorkOp::RDMA_WRITE_IMM)
}

/// Its operation in the receiver's completion (`IONIC_V1_CQE_RECV_OP_*`).
fn receive_op(op: WorkOp) -> u32 {
    match op {
        WorkOp::SEND_INV => 1,
        WorkOp::SEND_IMM => 2,
        WorkOp::RDMA_WRITE_IMM => 3,
        _ => 0,
    }
}

/// What the peer's memory must allow, and its queue pair.
fn remote_rights(op: WorkOp) -> (MrFlags, QpFlags) {
    match op {
        WorkOp::RDMA_READ => (MrFlags::REMOTE_READ, QpFlags::REMOTE_READ),
        WorkOp::ATOMIC_CS | WorkOp::ATOMIC_FA => (MrFlags::REMOTE_ATOMIC, QpFlags::REMOTE_ATOMIC),
        _ => (MrFlags::REMOTE_WRITE, QpFlags::REMOTE_WRITE),
    }
}

/// What a queue pair of this kind does.
fn is_offered(kind: QpType, op: WorkOp) -> bool {
    match kind {
        QpType::RC => op.name().is_some(),
        QpType::UC => {
            is_local(op) || matches!(op, WorkOp::SEND | WorkOp::SEND_IMM | WorkOp::RDMA_WRITE | WorkOp::RDMA_WRITE_IMM)
        }
        _ => matches!(op, WorkOp::SEND | WorkOp::SEND_IMM),
    }
}

/// A completion of a send queue (05 §4): message number at 4, ring position at 16, status at 24.
fn send_entry(qpn: u32, message: Option<u32>, index: u16, status: WorkStatus) -> [u8; 32] {
    let mut entry = [0; 32];
    let kind = match message {
        Some(message) => {
            entry[4..8].copy_from_slice(&message.to_be_bytes());
            CqeType::SEND_MSN
        }
        None => {
            entry[16..18].copy_from_slice(&index.to_le_bytes());
            CqeType::SEND_NPG
        }
    };
    finish(entry, qpn, kind, status, 0)
}

/// A completion of a receive queue: what came from whom.
fn receive_entry(
    qpn: u32,
    index: u16,
    source: u32,
    (immediate, len): (u32, u32),
    datagram: Option<&Template>,
) -> [u8; 32] {
    let mut entry = [0; 32];
    entry[0..2].copy_from_slice(&index.to_le_bytes());
    let mut word = source;
    if let Some(header) = datagram {
        entry[12..18].copy_from_slice(&header.mac());
        if let Some(tci) = header.tci() {
            word |= CQE_RECV_VLAN;
            entry[18..20].copy_from_slice(&tci.to_be_bytes());
        }
        if header.v4() {
            word |= CQE_RECV_IPV4;
        }
    }
    entry[8..12].copy_from_slice(&word.to_be_bytes());
    entry[20..24].copy_from_slice(&immediate.to_be_bytes());
    finish(entry, qpn, CqeType::RECV, WorkStatus::OK, len)
}

/// A receive that failed.
fn receive_error(qpn: u32, index: u16, status: WorkStatus) -> [u8; 32] {
    let mut entry = [0; 32];
    entry[0..2].copy_from_slice(&index.to_le_bytes());
    finish(entry, qpn, CqeType::RECV, status, 0)
}

fn finish(mut entry: [u8; 32], qpn: u32, kind: CqeType, status: WorkStatus, len: u32) -> [u8; 32] {
    let (word, error) = if status == WorkStatus::OK { (len, 0) } else { (status.0.into(), CQE_ERROR) };
    entry[24..28].copy_from_slice(&word.to_be_bytes());
    let tail = qpn << CQE_QID_SHIFT | u32::from(kind.0) << CQE_TYPE_SHIFT | error;
    entry[28..32].copy_from_slice(&tail.to_be_bytes());
    entry
}

/// The largest IB packet of an interface of `mtu` bytes: 256 to 4,096 (`iboe_get_mtu`).
fn packet(mtu: u32) -> u64 {
    let room = mtu.saturating_sub(IB_OVERHEAD);
    [4096, 2048, 1024, 512].into_iter().find(|size| *size <= room).unwrap_or(256).into()
}

impl Rdma {
    /// Lets a queue pair have a turn, if it has anything to do.
    pub(super) fn wake(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if !qp.queued && (qp.work.is_some() || qp.sq.indices.available() > 0) {
            qp.queued = true;
            self.ready.push_back(qpn);
        }
    }

    /// One turn of the work requests; whether there are more.
    pub(super) fn run_work(&mut self, env: &mut Env<'_>) -> bool {
        while let Some(&(at, qpn)) = self.timers.first()
            && at <= env.now
        {
            self.timers.pop_first();
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.timer = None;
            }
            self.wake(qpn);
        }
        let mut budget = TURN;
        while !budget.is_spent()
            && let Some(qpn) = self.ready.pop_front()
        {
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            qp.queued = false;
            if let Some(at) = qp.timer.take() {
                self.timers.remove(&(at, qpn));
            }
            if self.visit(env, qpn, &mut budget) {
                self.wake(qpn);
            }
        }
        !self.ready.is_empty()
    }

    /// Runs requests of a queue pair, a few of them; whether there are more that can run.
    fn visit(&mut self, env: &mut Env<'_>, qpn: u32, turn: &mut Budget) -> bool {
        let mut visit = VISIT;
        loop {
            let spent = visit.is_spent() || turn.is_spent();
            let Some(qp) = self.qps.get_mut(&qpn) else { return false };
            let mut work = match qp.work.take() {
                Some(work) => *work,
                None if qp.state != QpState::RTS => return false,
                None if spent => return true,
                None => match qp.sq.take(env.mem) {
                    None => return false,
                    Some(Ok(entry)) => Work::new(qp, entry),
                    Some(Err(error)) => {
                        crate::warn_limited!(qpn, %error, "send queue is not in guest memory");
                        env.errors.rdma_dma += 1;
                        self.break_down(env, qpn, EQE_QP_ERR);
                        return false;
                    }
                },
            };
            if work.done == 0 {
                visit.spend(1, 0);
                turn.spend(1, 0);
            }
            let before = work.done;
            let allowed = visit.bytes.min(turn.bytes);
            let step = self.step(env, qpn, &mut work, allowed);
            let moved = work.done.saturating_sub(before);
            self.traffic.bytes += moved;
            let cost = moved + work.entry.table();
            visit.spend(0, cost);
            turn.spend(0, cost);
            match step {
                Ok(Step::Done) => {
                    if !self.succeed(env, qpn, &work) {
                        return false;
                    }
                }
                Ok(Step::Again) => {
                    if let Some(qp) = self.qps.get_mut(&qpn) {
                        qp.work = Some(Box::new(work));
                    }
                    return true;
                }
                Ok(Step::Wait(until)) => {
                    if let Some(qp) = self.qps.get_mut(&qpn) {
                        qp.work = Some(Box::new(work));
                        qp.timer = until;
                    }
                    self.timers.extend(until.map(|at| (at, qpn)));
                    return false;
                }
                Err(failure) => {
                    self.give_up(env, qpn, &work, &failure);
                    return false;
                }
            }
        }
    }

    fn step(&mut self, env: &mut Env<'_>, qpn: u32, work: &mut Work, allowed: u64) -> Result<Step, Failure> {
        let Some(qp) = self.qps.get(&qpn) else { return Ok(Step::Done) };
        let op = work.entry.op();
        let (kind, scope) = (qp.kind, qp.scope(qpn));
        if !is_offered(kind, op) {
            return Err(WorkStatus::LOCAL_QP_OPER.into());
        }
        if is_local(op) {
            let done = match op {
                WorkOp::REG_MR => self.regions.register(env.mem, scope, &work.entry.register()),
                WorkOp::LOCAL_INV => self.regions.invalidate(scope.pd, work.entry.immediate()),
                _ => self.regions.bind(scope, &work.entry.bind()),
            };
            return done.map(|()| Step::Done).map_err(|_| WorkStatus::MEM_MGMT_OPER.into());
        }
        if kind == QpType::UD {
            return self.datagram(env, qpn, work).map(|()| Step::Done).map_err(Failure::from);
        }
        match self.message(env, qpn, work, allowed) {
            // What does not arrive on an unreliable connection is nobody's concern.
            Ok(Step::Wait(_)) if kind == QpType::UC => {
                self.traffic.dropped += 1;
                Ok(Step::Done)
            }
            Err(failure) if kind == QpType::UC && failure.status.0 >= WorkStatus::REMOTE_INV_REQ.0 => {
                self.traffic.dropped += 1;
                Ok(Step::Done)
            }
            step => step,
        }
    }

    /// A request that the peer of a connection answers.
    fn message(&mut self, env: &mut Env<'_>, qpn: u32, work: &mut Work, allowed: u64) -> Result<Step, Failure> {
        let Some(qp) = self.qps.get(&qpn) else { return Ok(Step::Done) };
        let (to, kind, scope) = (qp.peer(), qp.kind, qp.scope(qpn));
        let op = work.entry.op();
        let atomic = matches!(op, WorkOp::ATOMIC_CS | WorkOp::ATOMIC_FA);
        let inline = work.entry.flags().contains(WorkFlags::INL);
        let own = if atomic || op == WorkOp::RDMA_READ { MrFlags::LOCAL_WRITE } else { MrFlags::empty() };
        if !work.checked {
            if inline && (atomic || op == WorkOp::RDMA_READ) {
                return Err(WorkStatus::LOCAL_QP_OPER.into());
            }
            work.total = if atomic { 8 } else { work.entry.total().ok_or(WorkStatus::LOCAL_LEN)? };
            let reader = self.regions.reader();
            let walk = |list| Walk { reader: &reader, scope, list, need: own, remote: false, index: 0, at: 0 };
            let there = match (inline, atomic) {
                (true, _) => Ok(()),
                (_, true) => {
                    let (_, _, result) = work.entry.atomic();
                    if result.len != 8 {
                        return Err(WorkStatus::LOCAL_LEN.into());
                    }
                    walk(List::One(result)).check()
                }
                _ => walk(List::Entry(&work.entry)).check(),
            };
            there.map_err(|_| WorkStatus::LOCAL_PROT)?;
            work.checked = true;
        }

        // The peer is of this device, of the same kind, ready to receive, and connected to no other.
        let here = qp.route.as_ref().is_none_or(Template::loops);
        let peer = self.qps.get(&to).filter(|peer| here && peer.kind == kind && peer.receives() && peer.peer() == qpn);
        let Some(peer) = peer.filter(|peer| work.receive.as_ref().is_none_or(|r| r.epoch == peer.epoch)) else {
            let limit = qp.retry_time();
            // Whatever arrived of it is forgotten.
            (work.receive, work.done) = (None, 0);
            return self.hold(env, work, Hold::Peer, limit, WorkStatus::RETRY_EXCEEDED);
        };
        let (epoch, flags) = (peer.epoch, peer.flags);
        let (far_scope, far_remote) = (peer.scope(to), peer.remote_scope(to));
        let refused = |status, event| Failure { status, peer: Some(Fallen { qpn: to, receive: None, event }) };

        // What it asks of the peer's memory.
        let (need, right) = remote_rights(op);
        let remote = work.entry.remote(u32::try_from(work.total).unwrap_or(u32::MAX));
        let names_memory = !matches!(op, WorkOp::SEND | WorkOp::SEND_IMM | WorkOp::SEND_INV) && work.total > 0;
        if names_memory {
            if atomic && !remote.va.is_multiple_of(8) {
                return Err(refused(WorkStatus::REMOTE_INV_REQ, EQE_QP_ERR_REQUEST));
            }
            let allowed = flags.contains(right) && self.regions.reader().remote(far_remote, remote, need).is_ok();
            if !allowed {
                return Err(refused(WorkStatus::REMOTE_ACC, EQE_QP_ERR_ACCESS));
            }
        }
        if op == WorkOp::SEND_INV && self.regions.reader().may_invalidate(far_scope.pd, work.entry.immediate()).is_err()
        {
            return Err(refused(WorkStatus::REMOTE_ACC, EQE_QP_ERR_ACCESS));
        }

        // The buffer.
        if receives(op) && work.receive.is_none() {
            let Some(peer) = self.qps.get_mut(&to) else { return Ok(Step::Again) };
            match peer.rq.take(env.mem) {
                Some(Ok(entry)) => work.receive = Some(Receive { entry, epoch }),
                Some(Err(error)) => {
                    crate::warn_limited!(qpn = to, %error, "receive queue is not in guest memory");
                    env.errors.rdma_dma += 1;
                    return Err(refused(WorkStatus::REMOTE_OPER, EQE_QP_ERR));
                }
                None => {
                    let time = peer.rnr_time();
                    let retries = self.qps.get(&qpn).and_then(QueuePair::rnr_retries);
                    let limit = retries.map(|retries| time.saturating_mul(retries));
                    return self.hold(env, work, Hold::Buffer, limit, WorkStatus::RNR_RETRY_EXCEEDED);
                }
            }
            if op != WorkOp::RDMA_WRITE_IMM
                && let Some(receive) = &work.receive
            {
                let room = receive.entry.total();
                if room.is_none_or(|room| room < work.total) {
                    let receive = Some((receive.entry.index(), WorkStatus::LOCAL_LEN));
                    let fallen = Fallen { qpn: to, receive, event: EQE_QP_ERR };
                    return Err(Failure { status: WorkStatus::REMOTE_INV_REQ, peer: Some(fallen) });
                }
            }
        }
        work.hold = None;

        let len = (work.total - work.done).min(allowed.max(1));
        if atomic {
            self.atomic(env.mem, work, scope, far_remote).map_err(|error| match error {
                Side::From(_) => refused(WorkStatus::REMOTE_OPER, EQE_QP_ERR),
                Side::To(_) => WorkStatus::LOCAL_PROT.into(),
            })?;
            work.done = work.total;
        } else if len > 0 {
            let far = match (&work.receive, op) {
                (Some(receive), WorkOp::SEND | WorkOp::SEND_IMM | WorkOp::SEND_INV) => Far::Receive(&receive.entry),
                _ => Far::Remote(remote),
            };
            let moved = self.move_bytes(env.mem, work, far, (scope, own), (far_scope, far_remote, need), len);
            moved.map_err(|(near, error)| match (near, far) {
                (true, _) => WorkStatus::LOCAL_PROT.into(),
                (_, Far::Receive(entry)) => Failure {
                    status: WorkStatus::REMOTE_OPER,
                    peer: Some(Fallen {
                        qpn: to,
                        receive: Some((entry.index(), WorkStatus::LOCAL_PROT)),
                        event: EQE_QP_ERR,
                    }),
                },
                _ if matches!(error, RegionError::Dma(_)) => refused(WorkStatus::REMOTE_OPER, EQE_QP_ERR),
                _ => refused(WorkStatus::REMOTE_ACC, EQE_QP_ERR_ACCESS),
            })?;
            work.done += len;
        }
        if work.done < work.total {
            return Ok(Step::Again);
        }

        // All of it is there: the receiver is told.
        if let Some(receive) = work.receive.take() {
            let mut word = 0;
            if op == WorkOp::SEND_INV {
                word = work.entry.immediate();
                if self.regions.invalidate(far_scope.pd, word).is_err() {
                    return Err(refused(WorkStatus::REMOTE_ACC, EQE_QP_ERR_ACCESS));
                }
            } else if op != WorkOp::SEND {
                word = work.entry.immediate();
            }
            let length = u32::try_from(work.total).unwrap_or(u32::MAX);
            let source = qpn | receive_op(op) << CQE_RECV_OP_SHIFT;
            let entry = receive_entry(to, receive.entry.index(), source, (word, length), None);
            self.received(env, to, entry, work.entry.flags());
        }
        Ok(Step::Done)
    }

    /// Moves `len` bytes of a request on. An error says whether it is at the requester.
    fn move_bytes(
        &self,
        mem: &GuestMemory,
        work: &Work,
        far: Far<'_>,
        (scope, own): (Scope, MrFlags),
        (far_scope, far_remote, need): (Scope, Scope, MrFlags),
        len: u64,
    ) -> Result<(), (bool, RegionError)> {
        let reader = self.regions.reader();
        let mut near =
            Walk { reader: &reader, scope, list: List::Entry(&work.entry), need: own, remote: false, index: 0, at: 0 };
        let mut other = match far {
            Far::Receive(entry) => Walk {
                reader: &reader,
                scope: far_scope,
                list: List::Entry(entry),
                need: MrFlags::LOCAL_WRITE,
                remote: false,
                index: 0,
                at: 0,
            },
            Far::Remote(piece) => {
                Walk { reader: &reader, scope: far_remote, list: List::One(piece), need, remote: true, index: 0, at: 0 }
            }
        };
        // Nothing moves into a receiver's buffer that is partly none.
        if work.done == 0 {
            other.check().map_err(|error| (false, error))?;
        }
        other.skip(work.done);
        if work.entry.flags().contains(WorkFlags::INL) {
            let bytes = work.entry.inline().unwrap_or_default();
            let from = usize::try_from(work.done).unwrap_or(usize::MAX);
            let to = usize::try_from(work.done + len).unwrap_or(usize::MAX);
            return put(mem, bytes.get(from..to).unwrap_or_default(), &mut other).map_err(|error| (false, error));
        }
        near.skip(work.done);
        if work.entry.op() == WorkOp::RDMA_READ {
            transfer(mem, &mut other, &mut near, len).map_err(|side| match side {
                Side::From(error) => (false, error),
                Side::To(error) => (true, error),
            })
        } else {
            transfer(mem, &mut near, &mut other, len).map_err(|side| match side {
                Side::From(error) => (true, error),
                Side::To(error) => (false, error),
            })
        }
    }

    /// An atomic operation, and its result.
    fn atomic(&self, mem: &GuestMemory, work: &Work, scope: Scope, far: Scope) -> Result<(), Side> {
        let (op, target, result) = work.entry.atomic();
        let reader = self.regions.reader();
        let walk = |scope, list, need, remote| Walk { reader: &reader, scope, list, need, remote, index: 0, at: 0 };
        let mut target = walk(far, List::One(target), MrFlags::REMOTE_ATOMIC, true);
        let (bus, run) = target.run(8).map_err(Side::From)?.ok_or(Side::From(RegionError::Bounds))?;
        if run < 8 {
            return Err(Side::From(RegionError::Bounds));
        }
        let before = mem.atomic(bus, op).map_err(|error| Side::From(error.into()))?;
        put(mem, &before.to_le_bytes(), &mut walk(scope, List::One(result), MrFlags::LOCAL_WRITE, false))
            .map_err(Side::To)
    }

    /// A request waits, or has waited long enough.
    fn hold(
        &mut self,
        env: &Env<'_>,
        work: &mut Work,
        what: Hold,
        limit: Option<Duration>,
        status: WorkStatus,
    ) -> Result<Step, Failure> {
        let until = match work.hold {
            Some((held, until)) if held == what => until,
            _ => {
                self.traffic.waits += 1;
                let until = limit.map(|limit| env.now.saturating_add(limit));
                work.hold = Some((what, until));
                until
            }
        };
        if until.is_some_and(|until| env.now >= until) { Err(status.into()) } else { Ok(Step::Wait(until)) }
    }

    /// A datagram: whatever is wrong at the other end, it is lost.
    fn datagram(&mut self, env: &mut Env<'_>, qpn: u32, work: &mut Work) -> Result<(), WorkStatus> {
        let Some(qp) = self.qps.get(&qpn) else { return Ok(()) };
        let entry = &work.entry;
        let (op, scope, flags) = (entry.op(), qp.scope(qpn), entry.flags());
        let total = entry.total().filter(|total| *total <= packet(env.mtu)).ok_or(WorkStatus::LOCAL_LEN)?;
        let inline = flags.contains(WorkFlags::INL);
        let reader = self.regions.reader();
        let list = List::Entry(entry);
        let mut near = Walk { reader: &reader, scope, list, need: MrFlags::empty(), remote: false, index: 0, at: 0 };
        if !inline {
            near.check().map_err(|_| WorkStatus::LOCAL_PROT)?;
        }
        let handle = self.ahs.get(&entry.word(16)).filter(|ah| ah.pd == qp.pd).ok_or(WorkStatus::LOCAL_QP_OPER)?;
        let (to, key) = (entry.word(20), entry.word(24));
        // A Q_Key with its highest bit set stands for the sender's own (InfiniBand specification 10.2.5).
        let key = if key >> 31 == 1 { qp.peer() } else { key };
        self.traffic.dropped += 1;
        let peer = self.qps.get(&to).filter(|peer| peer.kind == QpType::UD && peer.receives() && peer.peer() == key);
        let Some(peer) = peer.filter(|_| handle.header.loops()) else { return Ok(()) };
        let length = usize::try_from(total).unwrap_or(0);
        let receive = match peer.rq.peek(env.mem) {
            Some(Ok(receive)) => receive,
            None => return Ok(()),
            Some(Err(error)) => {
                crate::warn_limited!(qpn = to, %error, "receive queue is not in guest memory");
                env.errors.rdma_dma += 1;
                drop(reader);
                self.break_down(env, to, EQE_QP_ERR);
                return Ok(());
            }
        };
        if receive.total().is_none_or(|room| room < total + GRH as u64) {
            return Ok(());
        }
        let mut far = Walk {
            reader: &reader,
            scope: peer.scope(to),
            list: List::Entry(&receive),
            need: MrFlags::LOCAL_WRITE,
            remote: false,
            index: 0,
            at: 0,
        };
        let header = handle.header.grh(length, op == WorkOp::SEND_IMM);
        let written = far.check().and_then(|()| put(env.mem, &header, &mut far)).map_err(Side::To).and_then(|()| {
            if inline {
                put(env.mem, entry.inline().unwrap_or_default(), &mut far).map_err(Side::To)
            } else {
                transfer(env.mem, &mut near, &mut far, total)
            }
        });
        let immediate = if op == WorkOp::SEND_IMM { entry.immediate() } else { 0 };
        let source = qpn | receive_op(op) << CQE_RECV_OP_SHIFT;
        let lengths = (immediate, u32::try_from(length + GRH).unwrap_or(0));
        let told = receive_entry(to, receive.index(), source, lengths, Some(&handle.header));
        drop(reader);
        let mut cq = None;
        if let Some(peer) = self.qps.get_mut(&to) {
            peer.rq.indices.advance(1);
            cq = Some(peer.rq.cq);
        }
        match written {
            Ok(()) => {
                self.traffic.dropped -= 1;
                work.done = total;
                self.received(env, to, told, flags);
            }
            Err(Side::From(_)) => {
                // The buffer was taken, and nobody may be told that something is in it.
                let _ = cq.is_some_and(|cq| {
                    self.complete(env, cq, receive_error(to, receive.index(), WorkStatus::LOCAL_PROT), true)
                });
                self.break_down(env, to, EQE_QP_ERR);
                return Err(WorkStatus::LOCAL_PROT);
            }
            Err(Side::To(_)) => {
                let _ = cq.is_some_and(|cq| {
                    self.complete(env, cq, receive_error(to, receive.index(), WorkStatus::LOCAL_PROT), true)
                });
                self.break_down(env, to, EQE_QP_ERR);
            }
        }
        Ok(())
    }

    /// Tells a receiver what came.
    fn received(&mut self, env: &mut Env<'_>, qpn: u32, entry: [u8; 32], flags: WorkFlags) {
        let Some(cq) = self.qps.get(&qpn).map(|qp| qp.rq.cq) else { return };
        if !self.complete(env, cq, entry, flags.contains(WorkFlags::SOL)) {
            self.break_down(env, qpn, EQE_QP_ERR);
        }
    }

    /// A request is done. `false`: its queue pair cannot go on.
    fn succeed(&mut self, env: &mut Env<'_>, qpn: u32, work: &Work) -> bool {
        // Of no other operation is there a success.
        if let Some(count) = self.traffic.by_operation.get_mut(usize::from(work.entry.op().0)) {
            *count += 1;
        }
        let Some(qp) = self.qps.get_mut(&qpn) else { return false };
        let (cq, kind, signalled) = (qp.sq.cq, qp.kind, work.entry.flags().contains(WorkFlags::SIG));
        let mut written = true;
        match work.message {
            Some(message) => {
                qp.succeeded = message;
                if signalled {
                    qp.told = message;
                    written = self.complete(env, cq, send_entry(qpn, Some(message), 0, WorkStatus::OK), false);
                }
            }
            None => {
                // The driver takes completions in the order of its ring: what is before this one must be complete to it.
                if signalled && kind != QpType::UD {
                    written &= self.catch_up(env, qpn);
                }
                let entry = send_entry(qpn, None, work.entry.index(), WorkStatus::OK);
                written &= self.complete(env, cq, entry, false);
            }
        }
        if !written {
            self.break_down(env, qpn, EQE_QP_ERR);
            return false;
        }
        if let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.state == QpState::SQD) {
            if std::mem::take(&mut qp.tell_drained) {
                self.tell_owner(env, qpn, EQE_QP_SQ_DRAIN);
            }
            return false;
        }
        true
    }

    /// Says that everything so far that completes by message number succeeded, if the driver does not know.
    fn catch_up(&mut self, env: &mut Env<'_>, qpn: u32) -> bool {
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.told != qp.succeeded) else { return true };
        qp.told = qp.succeeded;
        let (cq, entry) = (qp.sq.cq, send_entry(qpn, Some(qp.told), 0, WorkStatus::OK));
        self.complete(env, cq, entry, false)
    }

    /// A request failed: it is told with its status, and its queue pair goes down, and the peer's if it has to.
    fn give_up(&mut self, env: &mut Env<'_>, qpn: u32, work: &Work, failure: &Failure) {
        self.traffic.failed += 1;
        let status = failure.status;
        crate::debug_limited!(qpn, op = %work.entry.op(), %status, "work request failed");
        if work.message.is_none() {
            self.catch_up(env, qpn);
        }
        if let Some(cq) = self.qps.get(&qpn).map(|qp| qp.sq.cq) {
            let _ = self.complete(env, cq, send_entry(qpn, work.message, work.entry.index(), status), true);
        }
        if let Some(Fallen { qpn: peer, receive, event }) = failure.peer {
            let cq = self.qps.get(&peer).map(|qp| qp.rq.cq);
            if let (Some((index, status)), Some(cq)) = (receive, cq) {
                let _ = self.complete(env, cq, receive_error(peer, index, status), true);
            }
            self.break_down(env, peer, event);
        }
        self.fail(env, qpn);
    }

    /// A queue pair goes to ERR through no doing of its owner's, who is told.
    fn break_down(&mut self, env: &mut Env<'_>, qpn: u32, event: u32) {
        if self.qps.get(&qpn).is_some_and(|qp| qp.state != QpState::ERR) {
            self.fail(env, qpn);
            self.tell_owner(env, qpn, event);
        }
    }

    /// The queue pair goes to ERR: one flush completion for each side, of which the driver makes one for each request that is
    /// outstanding.
    pub(super) fn fail(&mut self, env: &mut Env<'_>, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn).filter(|qp| qp.state != QpState::ERR) else { return };
        qp.state = QpState::ERR;
        qp.work = None;
        qp.sq.indices.discard();
        qp.rq.indices.discard();
        let (send, receive, peer) = (qp.sq.cq, qp.rq.cq, qp.peer());
        let _ = self.complete(env, receive, receive_error(qpn, 0, WorkStatus::WQE_FLUSHED), true);
        let _ = self.complete(env, send, send_entry(qpn, None, 0, WorkStatus::WQE_FLUSHED), true);
        // Whoever sends to it notices.
        self.wake(peer);
    }
}

impl Work {
    /// A request that was just taken; it gets its message number here.
    fn new(qp: &mut QueuePair, entry: Entry) -> Self {
        let mut message = None;
        if qp.kind != QpType::UD && !is_local(entry.op()) {
            qp.messages = qp.messages.wrapping_add(1);
            message = Some(qp.messages);
        }
        Self { entry, message, total: 0, done: 0, checked: false, receive: None, hold: None }
    }
}
