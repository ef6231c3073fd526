//! Lane `rdma-faults`: entries of the rings that are random, or right but for a few bits; doorbells for anything; queue pairs and
//! regions that go while they are at work. The device never panics, and never writes a byte that was not registered for that: now
//! and then, the guest's whole memory is compared.
#![allow(clippy::cast_possible_truncation)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/rdma.rs"]
mod kit;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::{Direct, IOVA, TestBus, TestLink, device_config};
use ionic_abi::{Doorbell, QpState, QpType, WorkFlags};
use ionic_driver::{
    Bus as _, DriverError, UserMem,
    user::Placement,
    verbs::{AddressVector, Change, Mr, QpConfig, Receive, RegMr, Request, Sge},
};
use kit::{ACCESS, ALL, Dice, Guest, RIGHTS, address};

/// Guest memory: little, so that all of it can be compared often.
const RAM: usize = 16 << 20;
/// Bytes of each region.
const REGION: usize = 20_000;
/// Batches of actions of one guest.
const BATCHES: usize = 400;
/// One batch in so many is followed by a comparison of all memory.
const COMPARED: usize = 8;
/// Bytes of an entry, log2.
const STRIDE: u8 = 7;

/// What a region allows, and whether the device may write it.
struct Area {
    mem: UserMem,
    mr: Mr,
    pd: u32,
    writable: bool,
}

/// What has happened, so that a run that does nothing fails.
#[derive(Debug, Default)]
struct Tally {
    guests: usize,
    entries: usize,
    doorbells: usize,
    compared: usize,
    /// Completions by status.
    completed: BTreeMap<u32, usize>,
}

/// One guest that misbehaves.
struct Chaos {
    guest: Guest<Direct>,
    dice: Dice,
    pds: [u32; 2],
    cqs: [u32; 2],
    /// Queue pairs, two and two of them connected; the last two are for datagrams.
    qps: Vec<u32>,
    areas: Vec<Area>,
    windows: Vec<u32>,
    handle: u32,
    tally: Tally,
}

impl Chaos {
    fn new(seed: u64) -> Result<Self, DriverError> {
        let link = TestLink::default();
        let bus = Direct::make_for(device_config(), RAM, link.clone(), move |_| link);
        let mut guest = Guest::on(bus);
        let pds = [guest.verbs.create_pd(), guest.verbs.create_pd()];
        let mut cqs = [0; 2];
        for cq in &mut cqs {
            *cq = guest.verbs.create_cq(&mut guest.nic, 400)?;
        }
        let windows = [true, false].map(|second| guest.verbs.alloc_mw(&mut guest.nic, pds[0], second));
        let windows = windows.into_iter().collect::<Result<_, _>>()?;
        let handle = guest.verbs.create_ah(&mut guest.nic, pds[0], Self::peer())?;
        let dice = Dice(seed);
        let (qps, areas, tally) = (Vec::new(), Vec::new(), Tally { guests: 1, ..Tally::default() });
        let mut chaos = Self { guest, dice, pds, cqs, qps, areas, windows, handle, tally };
        for at in 0..6 {
            let qpn = chaos.make(at)?;
            chaos.qps.push(qpn);
        }
        for at in 0..6 {
            chaos.connect(at)?;
        }
        for at in 0..6 {
            let area = chaos.register(at)?;
            chaos.areas.push(area);
        }
        Ok(chaos)
    }

    fn peer() -> AddressVector {
        address(false, None)
    }

    /// The queue pair of place `at`, in RESET.
    fn make(&mut self, at: usize) -> Result<u32, DriverError> {
        let kind = if at < 4 { QpType::RC } else { QpType::UD };
        let [send_cq, receive_cq] = self.cqs;
        let config = QpConfig {
            receive_cq,
            stride_log2: STRIDE,
            sq_log2: 4,
            rq_log2: 4,
            ..QpConfig::new(kind, self.pds[at % 2], send_cq)
        };
        self.guest.verbs.create_qp(&mut self.guest.nic, config)
    }

    fn connect(&mut self, at: usize) -> Result<(), DriverError> {
        let Guest { nic, verbs } = &mut self.guest;
        verbs.modify_qp(nic, self.qps[at], &Change::to(QpState::RESET))?;
        match at {
            // The last one to the one that is gone most of the time.
            0..4 => verbs.connect_qp(nic, self.qps[at], self.qps[at ^ 1], ACCESS, Self::peer()),
            _ => verbs.ready_qp(nic, self.qps[at], 0x1111_1111),
        }
    }

    /// The region of place `at`: two that are written, two that are only read, one that only its owner writes, and one in the
    /// middle of its pages' memory.
    fn register(&mut self, at: usize) -> Result<Area, DriverError> {
        let pd = self.pds[at % 2];
        let va = 0x7000_0000_0f05 + (at as u64) * 0x1000_0000;
        let mem = UserMem::new(self.guest.nic.bus.ram(), va, REGION, Placement::Scattered)?;
        mem.write(0, &vec![0x40 + at as u8; REGION]);
        let rights = match at {
            0 | 1 => RIGHTS,
            2 | 3 => ionic_abi::MrFlags::REMOTE_READ,
            4 => ionic_abi::MrFlags::LOCAL_WRITE,
            _ => ALL,
        };
        let mr = self.guest.verbs.reg_mr(&mut self.guest.nic, pd, &RegMr::all(&mem, rights))?;
        Ok(Area { mem, mr, pd, writable: !matches!(at, 2 | 3) })
    }

    fn key(&mut self) -> u32 {
        match self.dice.below(12) {
            0 => 0,
            1 => u32::MAX,
            2 => self.dice.roll() as u32,
            3 => self.dice.pick(&self.windows),
            4 => {
                let at = self.dice.below(self.areas.len());
                self.areas[at].mr.key ^ (1 << self.dice.below(32))
            }
            _ => {
                let at = self.dice.below(self.areas.len());
                self.areas[at].mr.key
            }
        }
    }

    /// A piece of a region of its, mostly; else anything.
    fn sge(&mut self, pd: u32) -> Sge {
        if self.dice.below(24) == 0 {
            let va = self.dice.pick(&[0, 1, IOVA, IOVA + RAM as u64 - 5, 0x7000_0000_0f04, u64::MAX - 3]);
            let length = self.dice.pick(&[0, 1, 8, REGION as u32, 1 << 31, u32::MAX]);
            return Sge { va, length, lkey: self.key() };
        }
        let own: Vec<usize> = (0..self.areas.len()).filter(|at| self.areas[*at].pd == pd).collect();
        let area = &self.areas[self.dice.pick(&own)];
        let from = self.dice.below(REGION);
        let length = self.dice.pick(&[0, 1, 8, 64, 1500, 5000]).min(REGION - from + 1);
        Sge { va: area.mr.va + from as u64, length: length as u32, lkey: area.mr.key }
    }

    fn sges(&mut self, pd: u32, most: usize) -> Vec<Sge> {
        (0..self.dice.below(most + 1)).map(|_| self.sge(pd)).collect()
    }

    /// A request that makes sense, mostly.
    fn request(&mut self, at: usize) -> Request {
        let (pd, peers) = (self.pds[at % 2], self.pds[(at + 1) % 2]);
        let target = self.sge(peers);
        let (va, rkey) = (target.va, if self.dice.below(12) == 0 { self.key() } else { target.lkey });
        // Datagrams can only be sent.
        let most = if at >= 4 && self.dice.below(8) > 0 { 2 } else { 12 };
        let request = match self.dice.below(most) {
            0 | 1 if at >= 4 => Request::Send(self.sges(pd, 4), Some([self.handle, self.qps[at ^ 1], 0x1111_1111])),
            0 | 1 => Request::Send(self.sges(pd, 4), None),
            2 => Request::SendInline(vec![0x11; self.dice.below(96)]),
            3 | 4 => Request::Write(self.sges(pd, 4), va, rkey),
            5 | 6 => Request::Read(self.sges(pd, 4), va, rkey),
            7 => Request::WriteInline(vec![0x22; self.dice.below(96)], va, rkey),
            8 => Request::FetchAdd(Sge { length: 8, ..self.sge(pd) }, va & !7, rkey, self.dice.roll()),
            9 => Request::CompareSwap(Sge { length: 8, ..self.sge(pd) }, va & !7, rkey, 0, self.dice.roll()),
            10 => Request::LocalInvalidate(self.key()),
            _ => {
                let (window, key) = (self.dice.pick(&self.windows), self.key());
                Request::BindWindow(self.dice.roll() as u8, window, key, va, self.dice.roll() % 30_000, RIGHTS.bits())
            }
        };
        match self.dice.below(12) {
            0 => Request::Immediate(self.dice.roll() as u32, Box::new(request)),
            1 => Request::Invalidate(self.key(), Box::new(request)),
            2 => Request::Flagged(WorkFlags::from_bits_retain(self.dice.roll() as u16), Box::new(request)),
            _ => request,
        }
    }

    /// Changes an entry: bits, bytes, numbers at their places, all of it.
    fn mutate(&mut self, mut entry: Vec<u8>) -> Vec<u8> {
        let fill = self.dice.pick(&[0_u8, 0xff, 0x55]);
        entry.resize(1 << STRIDE, fill);
        let times = self.dice.pick(&[0, 0, 0, 0, 0, 0, 1, 1, 2, 6]);
        for _ in 0..times {
            match self.dice.below(8) {
                0..=3 => {
                    let bit = self.dice.below(entry.len() * 8);
                    entry[bit / 8] ^= 1 << (bit % 8);
                }
                4 => {
                    let at = self.dice.below(entry.len());
                    entry[at] = self.dice.roll() as u8;
                }
                5 | 6 => {
                    let (width, value) = (self.dice.pick(&[2, 4, 8]), self.number());
                    let at = self.dice.below(entry.len() / width) * width;
                    entry[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
                }
                _ => entry.fill_with(|| self.dice.roll() as u8),
            }
        }
        entry
    }

    fn number(&mut self) -> u64 {
        match self.dice.below(3) {
            0 => self.dice.roll(),
            1 => self.dice.pick(&[0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, IOVA, IOVA + RAM as u64, u64::MAX]),
            _ => {
                let at = self.dice.below(self.areas.len());
                self.areas[at].mr.va.wrapping_add(REGION as u64 - self.dice.below(3) as u64)
            }
        }
    }

    /// Writes an entry to some ring, and mostly rings for it.
    fn entry(&mut self) -> Result<(), DriverError> {
        let (at, receive) = (self.dice.below(self.qps.len()), self.dice.below(3) == 0);
        let entry = if receive {
            Receive(self.sges(self.pds[at % 2], 5)).entry()
        } else {
            let request = self.request(at);
            request.entry(self.dice.below(4) > 0)
        };
        let entry = self.mutate(entry);
        self.tally.entries += 1;
        let Guest { nic, verbs } = &mut self.guest;
        let p_index = verbs.write_entry(self.qps[at], receive, &entry)?;
        if self.dice.below(5) > 0 {
            let slot = if receive { verbs.identity.rq_qtype.qtype } else { verbs.identity.sq_qtype.qtype };
            nic.doorbell(verbs.page, slot, Doorbell { p_index, ring: 0, qid: self.qps[at] })?;
        }
        Ok(())
    }

    /// A doorbell with a number that may be anything, of a page that may be anybody's.
    fn doorbell(&mut self) -> Result<(), DriverError> {
        let Guest { nic, verbs } = &mut self.guest;
        // Not those whose doorbells ask for events, which the driver would not know of.
        let slot = self.dice.pick(&[verbs.identity.sq_qtype.qtype, verbs.identity.rq_qtype.qtype]);
        let qid = match self.dice.below(3) {
            0 => self.dice.roll() as u32 & 0xff_ffff,
            // Not that of management, which is the driver's.
            _ => self.dice.pick(&self.qps),
        };
        let page = if self.dice.below(4) == 0 { self.dice.below(4) as u16 } else { verbs.page };
        let doorbell = Doorbell { p_index: self.dice.roll() as u16, ring: self.dice.below(4) as u8, qid };
        self.tally.doorbells += 1;
        nic.doorbell(page, slot, doorbell)
    }

    /// Something changes that requests may be using right now.
    fn change(&mut self) -> Result<(), DriverError> {
        let at = self.dice.below(self.qps.len());
        let changed = match self.dice.below(4) {
            0 => {
                let states = [QpState::RESET, QpState::INIT, QpState::RTS, QpState::SQD, QpState::ERR];
                let state = self.dice.pick(&states);
                self.guest.verbs.modify_qp(&mut self.guest.nic, self.qps[at], &Change::to(state))
            }
            1 => {
                self.guest.verbs.destroy_qp(&mut self.guest.nic, self.qps[at])?;
                self.qps[at] = self.make(at)?;
                self.connect(at)
            }
            2 => {
                let area = self.dice.below(self.areas.len());
                let key = self.areas[area].mr.key;
                self.guest.verbs.dereg_mr(&mut self.guest.nic, key)?;
                self.areas[area] = self.register(area)?;
                Ok(())
            }
            _ => self.connect(at),
        };
        refusable(changed)
    }

    /// Takes what has completed, and says so to the device.
    fn drain(&mut self) -> Result<(), DriverError> {
        for cq in self.cqs {
            for wc in self.guest.verbs.poll_cq(cq)? {
                *self.tally.completed.entry(wc.status).or_default() += 1;
            }
            self.guest.verbs.tell_cq(&mut self.guest.nic, cq)?;
        }
        self.guest.verbs.events.clear();
        Ok(())
    }

    /// Everything in the guest's memory.
    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; RAM];
        assert!(self.guest.nic.bus.ram().read(IOVA, &mut bytes));
        bytes
    }

    /// Lets the device work off what lies in the rings, and sees that it writes what it may.
    fn settle_compared(&mut self, what: &str) {
        let before = self.memory();
        self.guest.nic.bus.settle();
        self.guest.nic.bus.pass(Duration::from_millis(1));
        let mut allowed = self.guest.verbs.device_rings();
        allowed.extend(self.areas.iter().filter(|area| area.writable).flat_map(|area| area.mem.extents()));
        allowed.sort_unstable();
        let after = self.memory();
        let mut at = 0;
        for (iova, len) in allowed.into_iter().chain([(IOVA + RAM as u64, 0)]) {
            let end = usize::try_from(iova - IOVA).unwrap();
            if end > at && before[at..end] != after[at..end] {
                let first = (at..end).find(|at| before[*at] != after[*at]).unwrap_or(at);
                let (was, is) = (before[first], after[first]);
                panic!("{what}: byte {:#x} was {was:#x} and is {is:#x}", IOVA + first as u64);
            }
            at = at.max(end + len);
        }
        self.tally.compared += 1;
    }

    fn run(&mut self, seed: u64) -> Result<(), DriverError> {
        for batch in 0..BATCHES {
            let compared = batch % COMPARED == 0;
            for _ in 0..1 + self.dice.below(8) {
                match self.dice.below(32) {
                    0 => self.doorbell()?,
                    1 => self.change()?,
                    // Before a comparison, everything is still to be done.
                    2 | 3 if !compared => self.guest.turn(),
                    _ => self.entry()?,
                }
            }
            match (compared, self.dice.below(3)) {
                (true, _) => self.settle_compared(&format!("seed {seed}, batch {batch}")),
                (false, 0) => self.guest.turn(),
                (false, _) => self.guest.nic.bus.settle(),
            }
            self.drain()?;
            if batch % 2 == 1 {
                for at in 0..self.qps.len() {
                    refusable(self.connect(at))?;
                }
                self.drain()?;
            }
        }
        // The device works for somebody else as if nothing had been.
        self.guest.nic.bus.settle();
        let (mut a, mut b) = (self.make(0)?, self.make(1)?);
        std::mem::swap(&mut self.qps[0], &mut a);
        std::mem::swap(&mut self.qps[1], &mut b);
        for qpn in [a, b] {
            self.guest.verbs.destroy_qp(&mut self.guest.nic, qpn)?;
        }
        for at in [0, 1] {
            let key = self.areas[at].mr.key;
            self.guest.verbs.dereg_mr(&mut self.guest.nic, key)?;
            self.areas[at] = self.register(at)?;
            self.connect(at)?;
        }
        self.drain()?;
        let (from, to) = (&self.areas[0], &self.areas[1]);
        let sge = Sge { va: from.mr.va + 5, length: 5000, lkey: from.mr.key };
        let write = Request::Write(vec![sge], to.mr.va + 3, to.mr.key);
        self.guest.verbs.post_send(&mut self.guest.nic, self.qps[0], 7, &write)?;
        self.guest.nic.bus.settle();
        let wcs = self.guest.verbs.poll_cq(self.cqs[0])?;
        assert!(matches!(wcs[..], [wc] if (wc.qpn, wc.id, wc.status) == (self.qps[0], 7, 0)), "seed {seed}: {wcs:x?}");
        let content = self.areas[1].mem.content();
        assert!(content[3..5003].iter().all(|byte| *byte == 0x40), "seed {seed}");
        assert!(content[..3].iter().chain(&content[5003..]).all(|byte| *byte == 0x41), "seed {seed}");
        Ok(())
    }
}

/// A change that the device may refuse: a queue pair is broken by its peer's requests between any two commands.
fn refusable(result: Result<(), DriverError>) -> Result<(), DriverError> {
    match result {
        Err(DriverError::Verb { .. }) => Ok(()),
        other => other,
    }
}

/// Guests with seeds from `first` on, until `time` is over.
fn mutations(first: u64, time: Duration) {
    let (start, mut total) = (Instant::now(), Tally::default());
    for seed in first.. {
        let mut chaos = Chaos::new(seed).unwrap();
        if let Err(error) = chaos.run(seed) {
            panic!("seed {seed}: {error}");
        }
        let Tally { guests, entries, doorbells, compared, completed } = chaos.tally;
        total.guests += guests;
        total.entries += entries;
        total.doorbells += doorbells;
        total.compared += compared;
        for (status, count) in completed {
            *total.completed.entry(status).or_default() += count;
        }
        if start.elapsed() > time {
            break;
        }
    }
    println!("{total:?}");
    // Requests succeed, and fail in many ways.
    assert!(total.completed.get(&0).is_some_and(|count| *count > total.entries / 25), "{total:?}");
    assert!(total.completed.len() >= 8, "{total:?}");
}

#[test]
fn a_minute_of_mutations() {
    mutations(1, Duration::from_secs(60));
}

#[test]
#[ignore = "takes ten minutes"]
fn ten_minutes_of_mutations() {
    mutations(1_000_000, Duration::from_secs(600));
}
