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
    /// Entries written since the queue was made, and how many of them the driver has seen for certain.
    written: u64,
    seen: u64,
    /// Interrupts delivered when that was last looked at, and entries written by then.
    raised: u64,
    written_then: u64,
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
            written: 0,
            seen: 0,
            raised: 0,
            written_then: 0,
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
        // The driver reads until nothing is left, and then unmasks. What was written before the interrupt that it handled it has
        // seen; what came while it did, perhaps not.
        let (raised, handled) = (env.intr.raised(self.vector), env.intr.handled(self.vector));
        if handled > self.raised {
            self.seen = self.written;
        } else if handled == self.raised {
            self.seen = self.seen.max(self.written_then);
        }
        if raised != self.raised {
            self.raised = raised;
            self.written_then = self.written;
        }
        let mut posted = false;
        // One entry stays free, so that a full queue differs from an empty one.
        while self.written - self.seen < u64::from(self.mask) {
            let Some(event) = self.waiting.pop_front() else { break };
            let event = (event & !EQE_COLOR) | (u32::from(self.color) * EQE_COLOR);
            let at = self.base.wrapping_add(u64::from(self.prod) * 4);
            if let Err(error) = env.mem.store_u32(at, event.to_be_bytes()) {
                crate::warn_limited!(%error, "RDMA event queue is not in guest memory");
                env.errors.rdma_dma += 1;
                self.waiting.clear();
                return;
            }
            self.prod = (self.prod + 1) & self.mask;
            self.color ^= self.prod == 0;
            self.written += 1;
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
            return Err(Full::Before);
        }
        if self.prod.wrapping_sub(self.cons) > self.mask {
            self.broken = true;
            return Err(Full::Now);
        }
        entry[31] = (entry[31] & !COLOR) | u8::from(self.color);
        let at = u64::from(self.prod & self.mask) * CQE;
        let written = self.pages.run(at, CQE).map(|(bus, _)| env.mem.write_completion(bus, &entry));
        if !matches!(written, Some(Ok::<(), DmaError>(()))) {
            env.errors.rdma_dma += 1;
            self.broken = true;
            return Err(Full::Now);
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
pub(super) enum Full {
    /// It just broke.
    Now,
    /// It was.
    Before,
}

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

#[cfg(test)]
mod tests {
    use rustix::{
        event::{EventfdFlags, eventfd},
        fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    };

    use super::*;
    use crate::{
        device::GuestErrors,
        intr::{Interrupts, VECTORS},
        mem::{GuestMemory, Prot},
        vfio::{IrqAction, IrqTable},
    };

    const VECTOR: u16 = 3;
    /// Registers of the vector (01 §5).
    const MASK: u64 = VECTOR as u64 * 32 + 4;
    const CREDITS: u64 = MASK + 4;
    const MASK_ASSERT: u64 = CREDITS + 4;
    const UNMASK: u32 = 1 << 16;

    /// The driver's side: it reads as far as the colour says.
    struct Driver {
        mem: GuestMemory,
        at: u64,
        got: u32,
    }

    impl Driver {
        /// Reads what is there. The events are numbered: none may be missing, and none come twice.
        fn drain(&mut self) {
            loop {
                let mut word = [0; 4];
                self.mem.read(self.at % 16 * 4, &mut word).unwrap();
                let word = u32::from_be_bytes(word);
                if (word & EQE_COLOR != 0) != (self.at / 16).is_multiple_of(2) {
                    return;
                }
                assert_eq!(word >> EQE_QID_SHIFT, self.got, "lost or overwritten");
                self.at += 1;
                self.got += 1;
            }
        }
    }

    #[test]
    fn events_that_come_while_the_driver_reads_are_not_overwritten() {
        let fd = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let mem = GuestMemory::new();
        mem.map_fd(0, 4096, Prot::READ | Prot::WRITE, fd, 0).unwrap();
        let mut intr = Interrupts::new(IrqTable::new(VECTORS));
        let fds = vec![Some(eventfd(0, EventfdFlags::NONBLOCK).unwrap())];
        intr.irqs().apply(IrqAction::EventFds { start: VECTOR.into(), fds }).unwrap();
        intr.set_open(true);
        intr.write(MASK_ASSERT, 1);
        intr.write(MASK, 0);
        let mut errors = GuestErrors::default();
        let mut eq = EventQueue::new(0, 4, VECTOR).unwrap();
        let mut driver = Driver { mem: mem.clone(), at: 0, got: 0 };
        let mut next = 0;
        // Turns of the device with so many events each, some of them between the driver's last look and its unmasking.
        let mut turn = |eq: &mut EventQueue, intr: &mut Interrupts, count: u32| {
            let mut events = 0;
            let (now, mtu) = (std::time::Duration::ZERO, 1500);
            let mut env = Env { mem: &mem, intr: &mut *intr, events: &mut events, errors: &mut errors, now, mtu };
            for number in next..next + count {
                eq.post(&mut env, EQE_TYPE_CQ, EQE_CQ_NOTIFY, number);
            }
            next += count;
            eq.flush(&mut env);
            if events != 0 {
                intr.event(VECTOR);
            }
        };
        for round in 0..200 {
            turn(&mut eq, &mut intr, round % 23);
            driver.drain();
            turn(&mut eq, &mut intr, round % 17);
            intr.write(CREDITS, UNMASK);
            turn(&mut eq, &mut intr, round % 7);
        }
        // In the end all of them come.
        for _ in 0..1000 {
            driver.drain();
            intr.write(CREDITS, UNMASK);
            turn(&mut eq, &mut intr, 0);
        }
        driver.drain();
        assert!(next > 4000, "{next}");
        assert_eq!(driver.got, next);
    }
}
