//! RDMA admin queues (`ionic_admin.c`).

use std::collections::VecDeque;

use ionic_abi::{
    AdminOp, AdminStatus, CQ_RING_ARM, CQ_RING_CONS, CQE_ERROR, CQE_QID_SHIFT, CQE_TYPE_SHIFT, CqeType, Doorbell,
    RdmaAdminHead,
};
use zerocopy::{Immutable, IntoBytes};

use super::{
    Verbs,
    queue::{CompletionRing, be32},
};
use crate::{
    bus::Bus,
    error::DriverError,
    ionic::Ionic,
    ram::{DmaBuf, GuestRam},
};

/// Bytes of an entry.
const ENTRY: usize = 64;

/// A command: its opcode and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub op: AdminOp,
    /// What it says of its length; that of the body, if the driver is no liar.
    pub len: u16,
    /// The body.
    pub body: Vec<u8>,
}

impl Command {
    /// A command with the body that belongs to it.
    pub fn new(op: AdminOp, body: &(impl IntoBytes + Immutable + ?Sized)) -> Self {
        let body = body.as_bytes().to_vec();
        Self { op, len: u16::try_from(body.len()).unwrap_or(u16::MAX), body }
    }

    /// Entries of the ring that the body takes.
    fn entries(&self) -> u16 {
        let bytes = self.body.len() + size_of::<RdmaAdminHead>();
        u16::try_from(bytes.div_ceil(ENTRY)).unwrap_or(u16::MAX)
    }
}

/// An admin queue and its completion queue.
#[derive(Debug)]
pub(super) struct AdminQueue {
    id: u32,
    ring: DmaBuf,
    head: u16,
    /// Entries of commands that wait.
    used: u16,
    /// Index of the first entry, entries and opcode of each command that waits.
    waiting: VecDeque<(u16, u16, AdminOp)>,
    pub(super) cq: CompletionRing,
}

impl AdminQueue {
    /// Entries (`ionic_queue_init` makes 512 of the 63 that are asked for, and 256 of the 163 completions).
    pub(super) const LOG2: u8 = 9;
    pub(super) const CQ_LOG2: u8 = 8;

    pub(super) fn new(ram: &GuestRam, id: u32, cq: u32) -> Result<Self, DriverError> {
        let bytes = ENTRY << Self::LOG2;
        let ring = ram.alloc(bytes).ok_or(DriverError::NoMemory(bytes))?;
        let cq = CompletionRing::new(ram, cq, Self::CQ_LOG2, true)?;
        Ok(Self { id, ring, head: 0, used: 0, waiting: VecDeque::new(), cq })
    }

    pub(super) fn iova(&self) -> u64 {
        self.ring.iova()
    }

    fn room(&self) -> bool {
        // Completions that are due must fit their queue, and one entry of the ring stays free.
        self.waiting.len() < (1 << Self::CQ_LOG2) - 1 && self.used < (1 << Self::LOG2) - 4
    }

    /// Writes a command: the first entry has the head, what does not fit it goes on in the next ones, and what was there
    /// before stays behind it.
    fn push(&mut self, command: &Command) {
        let head = RdmaAdminHead { op: command.op, rsvd: 0, len: command.len.into() };
        let bytes = [head.as_bytes(), &command.body].concat();
        let (first, entries) = (self.head, command.entries());
        for entry in bytes.chunks(ENTRY) {
            self.ring.write(usize::from(self.head) * ENTRY, entry);
            self.head = (self.head + 1) % (1 << Self::LOG2);
        }
        self.used += entries;
        self.waiting.push_back((first, entries, command.op));
    }

    /// The next completion. Anything but that of the oldest command would be skipped by the driver, and the command time out.
    fn next(&mut self) -> Result<Option<AdminStatus>, DriverError> {
        let Some(cqe) = self.cq.next() else { return Ok(None) };
        let word = be32(&cqe, 28);
        let index = u16::from_be_bytes([cqe[0], cqe[1]]);
        let (number, kind) = (word >> CQE_QID_SHIFT, word >> CQE_TYPE_SHIFT & 7);
        match self.waiting.pop_front() {
            Some((first, entries, op))
                if (number, kind, index, cqe[2]) == (self.id, CqeType::ADMIN.0.into(), first, op.0) =>
            {
                self.used -= entries;
                let status = u8::try_from(be32(&cqe, 24)).map_or(AdminStatus(u8::MAX), AdminStatus);
                let failed = word & CQE_ERROR != 0;
                if failed == (status == AdminStatus::OK) {
                    return Err(DriverError::Violation(format!("error bit {failed} with status {status}")));
                }
                Ok(Some(status))
            }
            waiting => {
                let text = format!("admin completion {cqe:02x?} of queue {} while {waiting:?} is the oldest", self.id);
                Err(DriverError::Violation(text))
            }
        }
    }
}

impl Verbs {
    /// Runs commands on one admin queue, many at once; the status of each.
    ///
    /// # Errors
    /// The bus failed, an answer or its interrupt did not come, or it makes no sense.
    pub fn run<B: Bus>(&mut self, nic: &mut Ionic<B>, commands: &[Command]) -> Result<Vec<AdminStatus>, DriverError> {
        let at = self.next_aq % self.aqs.len();
        self.next_aq += 1;
        let mut statuses = Vec::with_capacity(commands.len());
        let mut left = commands.iter().peekable();
        while statuses.len() < commands.len() {
            let aq = &mut self.aqs[at];
            let mut rung = false;
            while aq.room()
                && let Some(command) = left.next()
            {
                aq.push(command);
                rung = true;
            }
            if rung {
                let doorbell = Doorbell { p_index: aq.head, ring: 0, qid: aq.id };
                nic.doorbell(0, self.identity.aq_qtype.qtype, doorbell)?;
            }
            statuses.push(self.finish(nic, at)?);
            while let Some(status) = self.aqs[at].next()? {
                statuses.push(status);
            }
            self.tell_admin(nic, at)?;
        }
        Ok(statuses)
    }

    /// Waits for the next completion of an admin queue.
    fn finish<B: Bus>(&mut self, nic: &mut Ionic<B>, at: usize) -> Result<AdminStatus, DriverError> {
        let end = nic.bus.now() + nic.config.timeout;
        loop {
            if let Some(status) = self.aqs[at].next()? {
                return Ok(status);
            }
            if !self.aqs[at].cq.armed {
                self.arm_admin(nic, at)?;
                continue;
            }
            if self.serve_events(nic)? {
                continue;
            }
            let left = end.saturating_sub(nic.bus.now());
            let signalled = nic.bus.wait(left)?;
            if !signalled && left.is_zero() {
                return Err(match self.lost_event() {
                    Some(vector) => DriverError::LostInterrupt { what: "an RDMA event is there", vector },
                    None if self.aqs[at].cq.ready() => {
                        DriverError::Violation("an RDMA admin command is complete, and no event said so".into())
                    }
                    None => DriverError::Timeout { what: "RDMA admin command" },
                });
            }
        }
    }

    /// Says how far the completion queue was read.
    fn tell_admin<B: Bus>(&mut self, nic: &mut Ionic<B>, at: usize) -> Result<(), DriverError> {
        let cq = &mut self.aqs[at].cq;
        if std::mem::replace(&mut cq.told, cq.at) == cq.at {
            return Ok(());
        }
        let doorbell = Doorbell { p_index: cq.at, ring: CQ_RING_CONS, qid: cq.number };
        nic.doorbell(0, self.identity.cq_qtype.qtype, doorbell)
    }

    /// Asks for an event with the next completion.
    fn arm_admin<B: Bus>(&mut self, nic: &mut Ionic<B>, at: usize) -> Result<(), DriverError> {
        self.tell_admin(nic, at)?;
        let cq = &mut self.aqs[at].cq;
        cq.arms = cq.arms.wrapping_add(1);
        cq.armed = true;
        let doorbell = Doorbell { p_index: cq.arms, ring: CQ_RING_ARM, qid: cq.number };
        nic.doorbell(0, self.identity.cq_qtype.qtype, doorbell)
    }

    /// Runs one command; any status.
    ///
    /// # Errors
    /// As [`Verbs::run`].
    pub fn run_one<B: Bus>(&mut self, nic: &mut Ionic<B>, command: Command) -> Result<AdminStatus, DriverError> {
        let statuses = self.run(nic, &[command])?;
        Ok(statuses.first().copied().unwrap_or(AdminStatus(u8::MAX)))
    }

    /// Runs one command that has to succeed.
    ///
    /// # Errors
    /// As [`Verbs::run`], and any status but OK.
    pub(super) fn verb<B: Bus>(
        &mut self,
        nic: &mut Ionic<B>,
        op: AdminOp,
        body: &(impl IntoBytes + Immutable),
    ) -> Result<(), DriverError> {
        match self.run_one(nic, Command::new(op, body))? {
            AdminStatus::OK => Ok(()),
            status => Err(DriverError::Verb { op, status }),
        }
    }
}
