//! Queue pairs: their state, and what the driver may ask of it.

use std::time::Duration;

use ionic_abi::{AdminStatus, ModifyQp, QpAttr, QpFlags, QpState, QpType, QueryRq, QuerySq};

use super::{
    exec::Work,
    pages::Pages,
    region::Scope,
    wqe::{Entry, Template},
};
use crate::{
    mem::{DmaError, GuestMemory},
    ring::Indices,
};

/// Bits that MODIFY_QP's ACCESS_FLAGS change.
const ACCESS: QpFlags = QpFlags::REMOTE_WRITE.union(QpFlags::REMOTE_READ).union(QpFlags::REMOTE_ATOMIC);

/// One ring of work requests.
#[derive(Debug)]
pub(super) struct WorkQueue {
    pub(super) cq: u32,
    pages: Pages,
    stride_log2: u8,
    pub(super) indices: Indices,
}

impl WorkQueue {
    pub(super) fn new(cq: u32, pages: Pages, indices: Indices, stride_log2: u8) -> Self {
        Self { cq, pages, stride_log2, indices }
    }

    pub(super) fn entries(&self) -> u64 {
        self.pages.entries()
    }

    /// A copy of the next entry, if one waits.
    pub(super) fn peek(&self, mem: &GuestMemory) -> Option<Result<Entry, DmaError>> {
        if self.indices.available() == 0 {
            return None;
        }
        let len = 1u64 << self.stride_log2;
        // Entries never straddle pages.
        let at = self.pages.run(u64::from(self.indices.next()) * len, len).filter(|(_, run)| *run >= len);
        Some(at.map_or(Err(DmaError::Unmapped { iova: 0 }), |(bus, _)| Entry::read(mem, bus, 1 << self.stride_log2)))
    }

    /// Takes it.
    pub(super) fn take(&mut self, mem: &GuestMemory) -> Option<Result<Entry, DmaError>> {
        let entry = self.peek(mem)?;
        self.indices.advance(1);
        Some(entry)
    }
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    /// The doorbell page that may ring it.
    pub(super) page: u16,
    pub(super) kind: QpType,
    pub(super) state: QpState,
    pub(super) sq: WorkQueue,
    pub(super) rq: WorkQueue,
    pub(super) pd: u32,
    pub(super) flags: QpFlags,
    /// Where its connection leads.
    pub(super) route: Option<Template>,
    /// What it is at: a request that is not finished.
    pub(super) work: Option<Box<Work>>,
    /// It waits for a turn.
    pub(super) queued: bool,
    /// When it gets one at the latest, if it waits for something else.
    pub(super) timer: Option<Duration>,
    /// Requests so far, since RESET, that complete by message number; how many of them succeeded, and the number that the
    /// driver was told last.
    pub(super) messages: u32,
    pub(super) succeeded: u32,
    pub(super) told: u32,
    /// Another one each time that it starts anew.
    pub(super) epoch: u64,
    /// Its owner asked to be told when its send queue is drained.
    pub(super) tell_drained: bool,
    rq_psn: u32,
    sq_psn: u32,
    qkey_dest_qpn: u32,
    rate_limit: u32,
    pmtu: u8,
    retry: u8,
    rnr_timer: u8,
    retry_timeout: u8,
    rsq_depth: u8,
    rrq_depth: u8,
}

/// Path MTU until one is set: 1,024 bytes.
const DEFAULT_PMTU: u8 = 10;
/// Path MTUs that IB has: 256 to 4,096 bytes.
const PMTUS: std::ops::RangeInclusive<u8> = 8..=12;

impl QueuePair {
    pub(super) fn new(page: u16, kind: QpType, pd: u32, flags: QpFlags, sq: WorkQueue, rq: WorkQueue) -> Self {
        Self {
            page,
            pd,
            route: None,
            work: None,
            queued: false,
            timer: None,
            messages: 0,
            succeeded: 0,
            told: 0,
            epoch: 0,
            tell_drained: false,
            kind,
            state: QpState::RESET,
            sq,
            rq,
            flags,
            rq_psn: 0,
            sq_psn: 0,
            qkey_dest_qpn: 0,
            rate_limit: 0,
            pmtu: DEFAULT_PMTU,
            retry: 0,
            rnr_timer: 0,
            retry_timeout: 0,
            rsq_depth: 0,
            rrq_depth: 0,
        }
    }

    pub(super) fn entries(&self) -> u64 {
        self.sq.entries() + self.rq.entries()
    }

    /// Back to where it began, as RESET asks for.
    pub(super) fn restart(&mut self, epoch: u64) {
        self.sq.indices.reset();
        self.rq.indices.reset();
        self.work = None;
        (self.messages, self.succeeded, self.told) = (0, 0, 0);
        self.epoch = epoch;
        self.tell_drained = false;
    }

    /// The peer of a connection, or the Q_Key.
    pub(super) fn peer(&self) -> u32 {
        self.qkey_dest_qpn
    }

    /// It takes what comes in.
    pub(super) fn receives(&self) -> bool {
        matches!(self.state, QpState::RTR | QpState::RTS | QpState::SQD)
    }

    /// On whose behalf its own memory is looked up.
    pub(super) fn scope(&self, qpn: u32) -> Scope {
        Scope { pd: self.pd, qpn, privileged: self.flags.contains(QpFlags::PRIVILEGED) }
    }

    /// On whose behalf a peer's requests are looked up.
    pub(super) fn remote_scope(&self, qpn: u32) -> Scope {
        Scope { pd: self.pd, qpn, privileged: self.flags.contains(QpFlags::REMOTE_PRIVILEGED) }
    }

    /// How long a peer that is not there is waited for: `(retries + 1)` times 4.096 µs · 2^code; code 0 is for ever.
    pub(super) fn retry_time(&self) -> Option<Duration> {
        let timeout = Duration::from_nanos(4096).checked_mul(1 << (self.retry_timeout & 0x1f))?;
        (self.retry_timeout & 0x1f != 0).then_some(timeout)?.checked_mul(u32::from(self.retry & 0x0f) + 1)
    }

    /// How often it asks a receiver that is not ready again; `None` is for ever.
    pub(super) fn rnr_retries(&self) -> Option<u32> {
        let retries = self.retry >> 4;
        (retries != 7).then_some(retries.into())
    }

    /// What a receiver that is not ready asks its peer to wait.
    pub(super) fn rnr_time(&self) -> Duration {
        // Hundredths of milliseconds of the codes (InfiniBand specification, table "Encoding for RNR NAK Timer Field").
        const TIMES: [u64; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
            4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(TIMES.get(usize::from(self.rnr_timer & 0x1f)).copied().unwrap_or(0) * 10)
    }

    /// Applies the fields that the mask names; the new state if the state is among them. Errors: [`AdminStatus::BAD_ATTR`] for what
    /// is no state or no MTU, [`AdminStatus::BAD_STATE`] for a transition that there is not; nothing is changed then. A kernel checks
    /// the transition from the state that it believes the queue pair to be in (`ib_modify_qp_is_ok`).
    pub(super) fn modify(&mut self, cmd: &ModifyQp) -> Result<Option<QpState>, AdminStatus> {
        let mask = QpAttr::from_bits_truncate(cmd.attr_mask.get());
        let to = QpState(cmd.type_state & 0x0f);
        if mask.contains(QpAttr::STATE) {
            if to.name().is_none() {
                return Err(AdminStatus::BAD_ATTR);
            }
            if !follows(self.state, to) {
                return Err(AdminStatus::BAD_STATE);
            }
        }
        if mask.contains(QpAttr::PATH_MTU) {
            if !PMTUS.contains(&cmd.pmtu) {
                return Err(AdminStatus::BAD_ATTR);
            }
            self.pmtu = cmd.pmtu;
        }
        let low = QpFlags::from_bits_truncate(cmd.access_flags.get().into());
        if mask.contains(QpAttr::ACCESS_FLAGS) {
            self.flags = (self.flags - ACCESS) | (low & ACCESS);
        }
        let set = |bit, field: &mut u32, value: u32| {
            if mask.contains(bit) {
                *field = value;
            }
        };
        set(QpAttr::RQ_PSN, &mut self.rq_psn, cmd.rq_psn.get());
        set(QpAttr::SQ_PSN, &mut self.sq_psn, cmd.sq_psn.get());
        set(QpAttr::RATE_LIMIT, &mut self.rate_limit, cmd.rate_limit_kbps.get());
        set(QpAttr::QKEY, &mut self.qkey_dest_qpn, cmd.qkey_dest_qpn.get());
        set(QpAttr::DEST_QPN, &mut self.qkey_dest_qpn, cmd.qkey_dest_qpn.get());
        let set = |bit, field: &mut u8, value: u8| {
            if mask.contains(bit) {
                *field = value;
            }
        };
        set(QpAttr::TIMEOUT, &mut self.retry_timeout, cmd.retry_timeout);
        set(QpAttr::MIN_RNR_TIMER, &mut self.rnr_timer, cmd.rnr_timer);
        set(QpAttr::MAX_DEST_RD_ATOMIC, &mut self.rsq_depth, cmd.rsq_depth);
        set(QpAttr::MAX_QP_RD_ATOMIC, &mut self.rrq_depth, cmd.rrq_depth);
        if mask.contains(QpAttr::RETRY_CNT) {
            self.retry = self.retry & 0xf0 | cmd.retry & 0x0f;
        }
        if mask.contains(QpAttr::RNR_RETRY) {
            self.retry = self.retry & 0x0f | cmd.retry & 0xf0;
        }
        Ok(mask.contains(QpAttr::STATE).then_some(to))
    }

    /// The answer of QUERY_QP.
    pub(super) fn query(&self) -> (QuerySq, QueryRq) {
        // The query answers have room for the low half.
        let access = u16::try_from(self.flags.bits() & 0xffff).unwrap_or(0);
        let sq = QuerySq {
            rnr_timer: self.rnr_timer,
            retry_timeout: self.retry_timeout,
            access_perms_flags: access.into(),
            qkey_dest_qpn: self.qkey_dest_qpn.into(),
            rate_limit_kbps: self.rate_limit.into(),
            rq_psn: self.rq_psn.into(),
            ..QuerySq::default()
        };
        let rq = QueryRq {
            state_pmtu: self.state.0 << 4 | self.pmtu,
            retry_rnrtry: self.retry,
            rrq_depth: self.rrq_depth,
            rsq_depth: self.rsq_depth,
            sq_psn: self.sq_psn.into(),
            access_perms_flags: access.into(),
            ..QueryRq::default()
        };
        (sq, rq)
    }
}

/// Whether a queue pair may go from one state to the other (InfiniBand Architecture Specification, 10.3.1, figure "QP/EE
/// context state diagram").
fn follows(from: QpState, to: QpState) -> bool {
    matches!(
        (from, to),
        (_, QpState::RESET | QpState::ERR)
            | (QpState::RESET | QpState::INIT, QpState::INIT)
            | (QpState::INIT, QpState::RTR)
            | (QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE, QpState::RTS)
            | (QpState::RTS | QpState::SQD, QpState::SQD)
    )
}
