//! Event queues and completion queues: what the device writes for the driver to read.

use std::collections::VecDeque;

use ionic_abi::{
    CQE_COLOR, EQE_CODE_SHIFT, EQE_COLOR, EQE_CQ_ERR, EQE_CQ_NOTIFY, EQE_QID_SHIFT, EQE_TYPE_CQ, EQE_TYPE_SHIFT,
};

use super::{Env, pages::Pages};
use crate::mem::DmaError;

/// Event queue: entries of 4 bytes, big-endian, with a colour in bit 0.
#[derive(Debug)]
pub(super) struct EventQueue {
    base: u64,
    mask: u32,
    prod: u32,
    color: bool,
    vector: u16,
    /// Entries written since the driver last unmasked the vector, which is when it has seen all of them.
    unseen: u32,
    /// The vector's count of unmasks when that was last looked at.
    unmasks: u64,
    waiting: VecDeque<u32>,
}

/// Events that wait for room beyond a full queue; more than one per completion queue and queue pair cannot be due.
const MAX_WAITING: usize = 1 << 17;

impl EventQueue {
    pub(super) fn new(base: u64, log2: u8, vector: u16) -> Option<Self> {
        (4..=16).contains(&log2).then(|| Self {
            base,
            mask: (1 << log2) - 1,
            prod: 0,
            color: true,
            vector,
            unseen: 0,
            unmasks: 0,
            waiting: VecDeque::new(),
        })
    }

    pub(super) fn vector(&self) -> u16 {
        self.vector
    }

    /// Posts an event, or keeps it until the driver has made room.
    pub(super) fn post(&mut self, env: &mut Env<'_>, kind: u32, code: u32, qid: u32) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(qid << EQE_QID_SHIFT | code << EQE_CODE_SHIFT | kind << EQE_TYPE_SHIFT);
        }
        self.flush(env);
    }

    /// Writes what waits, as far as there is room.
    pub(super) fn flush(&mut self, env: &mut Env<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        let unmasks = env.intr.unmasks(self.vector);
        if unmasks != self.unmasks {
            self.unmasks = unmasks;
            self.unseen = 0;
        }
        let mut posted = false;
        // One entry stays free, so that a full queue differs from an empty one.
        while self.unseen < self.mask {
            let Some(event) = self.waiting.pop_front() else { break };
            let event = (event & !EQE_COLOR) | (u32::from(self.color) * EQE_COLOR);
            let at = self.base.wrapping_add(u64::from(self.prod) * 4);
            if env.mem.store_u32(at, event.to_be_bytes()).is_err() {
                env.errors.rdma_dma += 1;
                self.waiting.clear();
                return;
            }
            self.prod = (self.prod + 1) & self.mask;
            self.color ^= self.prod == 0;
            self.unseen += 1;
            posted = true;
        }
        if posted {
            env.raise(self.vector);
        }
    }
}

/// Completion queue: entries of 32 bytes, with a colour in the last word.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    pub(super) eq: u32,
    /// The doorbell page that may ring it.
    pub(super) page: u16,
    pages: Pages,
    mask: u32,
    /// Free-running.
    prod: u32,
    cons: u32,
    color: bool,
    armed_any: bool,
    armed_sol: bool,
    /// Position of the last completion that was solicited or an error, counted as `prod` is.
    solicited: Option<u32>,
    broken: bool,
}

/// The colour, in the last byte of an entry.
const COLOR: u8 = 1;
const _: () = assert!(CQE_COLOR == COLOR as u32);

/// Bytes of an entry.
pub(super) const CQE: u64 = 32;

impl CompletionQueue {
    pub(super) fn new(eq: u32, page: u16, pages: Pages, log2: u8) -> Self {
        Self {
            eq,
            page,
            pages,
            mask: (1 << log2) - 1,
            prod: 0,
            cons: 0,
            color: true,
            // libionic writes its first arm only with a later poll or post; a program that waits before its first poll
            // never arms at all. One early event does no harm.
            armed_any: page != 0,
            armed_sol: false,
            solicited: None,
            broken: false,
        }
    }

    pub(super) fn entries(&self) -> u64 {
        self.pages.entries()
    }

    /// The driver's consumer index.
    pub(super) fn consumed(&mut self, index: u16) {
        let behind = self.prod.wrapping_sub(index.into()) & self.mask;
        self.cons = self.prod.wrapping_sub(behind);
    }

    /// Arms for any completion, or for solicited ones. Whether there is one already, and the driver is to be told.
    pub(super) fn arm(&mut self, solicited_only: bool) -> bool {
        let due = if solicited_only {
            self.solicited.is_some_and(|at| self.prod.wrapping_sub(at) <= self.prod.wrapping_sub(self.cons))
        } else {
            self.prod != self.cons
        };
        if due {
            self.disarm();
        } else if solicited_only {
            self.armed_sol = true;
        } else {
            self.armed_any = true;
        }
        due
    }

    fn disarm(&mut self) {
        self.armed_any = false;
        self.armed_sol = false;
    }

    /// Writes a completion, its word with the colour last. `Ok(true)`: the driver is to be told.
    pub(super) fn post(&mut self, env: &mut Env<'_>, mut entry: [u8; 32], solicited: bool) -> Result<bool, Full> {
        if self.broken {
            return Ok(false);
        }
        if self.prod.wrapping_sub(self.cons) > self.mask {
            self.broken = true;
            return Err(Full);
        }
        entry[31] = (entry[31] & !COLOR) | u8::from(self.color);
        let at = u64::from(self.prod & self.mask) * CQE;
        let written = self.pages.run(at, CQE).map(|(bus, _)| env.mem.write_completion(bus, &entry));
        if !matches!(written, Some(Ok::<(), DmaError>(()))) {
            env.errors.rdma_dma += 1;
            self.broken = true;
            return Err(Full);
        }
        self.prod = self.prod.wrapping_add(1);
        self.color ^= self.prod & self.mask == 0;
        if solicited {
            self.solicited = Some(self.prod.wrapping_sub(1));
        }
        let tell = self.armed_any || self.armed_sol && solicited;
        if tell {
            self.disarm();
        }
        Ok(tell)
    }
}

/// The completion queue cannot take more: it is broken, and its owner is told once.
#[derive(Debug)]
pub(super) struct Full;

/// Tells the driver of a completion queue that it has completions.
pub(super) fn notify(eq: Option<&mut EventQueue>, env: &mut Env<'_>, cq: u32) {
    if let Some(eq) = eq {
        eq.post(env, EQE_TYPE_CQ, EQE_CQ_NOTIFY, cq);
    }
}

/// Tells the driver that a completion queue broke.
pub(super) fn notify_broken(eq: Option<&mut EventQueue>, env: &mut Env<'_>, cq: u32) {
    if let Some(eq) = eq {
        eq.post(env, EQE_TYPE_CQ, EQE_CQ_ERR, cq);
    }
}
