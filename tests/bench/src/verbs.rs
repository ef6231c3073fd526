//! The figures of work requests: two memories of a guest, and queue pairs of its NIC that are connected to each other.
//!
//! The guest posts as libionic does and polls its completion queues without a pause, as perftest does; the server is another
//! process, and doorbells go over its socket. Bandwidths go round memories of 256 MiB, so that no cache has what comes next.
//! The bytes are compared after each start.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ionic_abi::{MrFlags, QpFlags, QpType};
use ionic_driver::{
    Bus, Ionic, UserMem, Verbs,
    user::Placement,
    verbs::{AddressVector, Mr, QpConfig, Receive, RegMr, Request, Sge},
};
use serde_json::{Map, Value};

use crate::{
    Bench,
    bus::GuestBus,
    figures::{Figure, WARM, at_least, at_most, bytes, n},
    guest::driver_with,
    limits,
    server::Server,
    stats::{Samples, bandwidth, gbps, latency, median, rate, round},
};

const MIB: usize = 1 << 20;
/// What each of the two memories holds for bandwidths, and for anything else.
const LARGE: usize = 256 * MIB;
const SMALL: usize = 4 * MIB;
/// Bytes of a small message.
const WORD: usize = 8;
/// Most requests of a queue pair that are posted and not complete.
const DEPTH: usize = 64;
/// Queue pairs that share the device, bytes of their messages, and how many of them each has posted.
const SHARERS: usize = 16;
const SHARE: usize = 64 << 10;
const POSTED: usize = 4;
/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(10);

const RIGHTS: MrFlags = MrFlags::LOCAL_WRITE.union(MrFlags::REMOTE_READ).union(MrFlags::REMOTE_WRITE);
const ACCESS: QpFlags = QpFlags::REMOTE_READ.union(QpFlags::REMOTE_WRITE);

/// The figures, in the order in which they are taken.
pub const FIGURES: &[Figure] = &[
    Figure { key: "verbs_write_lat_8", goals: &[at_most("p50_us", 15.0)], run: |bench| small(bench, Kind::Write) },
    Figure { key: "verbs_read_lat_8", goals: &[], run: |bench| small(bench, Kind::Read) },
    Figure { key: "verbs_send_lat_8", goals: &[], run: |bench| small(bench, Kind::Send) },
    Figure {
        key: "verbs_write_bw_1m",
        goals: &[at_least("ratio_memcpy", 0.7)],
        run: |bench| large(bench, Kind::Write),
    },
    Figure { key: "verbs_read_bw_1m", goals: &[at_least("ratio_memcpy", 0.7)], run: |bench| large(bench, Kind::Read) },
    Figure { key: "verbs_write_rate_8", goals: &[at_least("rate", 2e6)], run: write_rate },
    Figure { key: "verbs_fairness_16", goals: &[at_least("ratio", 0.8)], run: fairness },
];

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Send,
}

/// A queue pair of the near end, and its completion queues: of what it sends, and of what the far one receives.
#[derive(Debug)]
struct Pair {
    near: u32,
    far: u32,
    sends: u32,
    receives: u32,
}

/// A guest with a near and a far memory.
struct Rig {
    nic: Ionic<GuestBus>,
    verbs: Verbs,
    pd: u32,
    near: (UserMem, Mr),
    far: (UserMem, Mr),
    // After the guest, which detaches first.
    _server: Server,
}

impl Rig {
    fn start(bench: &Bench, size: usize) -> anyhow::Result<Self> {
        let server = Server::start(&bench.server, "s3:size=16M")?;
        let mut nic = driver_with(&server, 2 * size + 64 * MIB)?;
        let mut verbs = Verbs::open(&mut nic)?;
        let pd = verbs.create_pd();
        let mut region = |at| -> anyhow::Result<_> {
            let memory = UserMem::new(nic.bus.ram(), at, size, Placement::Huge)?;
            let mr = verbs.reg_mr(&mut nic, pd, &RegMr::all(&memory, RIGHTS))?;
            Ok((memory, mr))
        };
        let (near, far) = (region(0x7f12_3456_7000)?, region(0x7e12_3456_7000)?);
        Ok(Self { nic, verbs, pd, near, far, _server: server })
    }

    /// Two queue pairs that are connected.
    fn connect(&mut self) -> anyhow::Result<Pair> {
        let Self { nic, verbs, pd, .. } = self;
        let (sends, receives) = (verbs.create_cq(nic, 400)?, verbs.create_cq(nic, 400)?);
        let mut create = || {
            let config = QpConfig { receive_cq: receives, sq_log2: 8, ..QpConfig::new(QpType::RC, *pd, sends) };
            verbs.create_qp(nic, config)
        };
        let (near, far) = (create()?, create()?);
        let mac = [2, 0, 0, 0, 0, 1];
        let address = [192, 168, 200, 9].into();
        let loops = AddressVector { macs: [mac, mac], tci: None, addresses: [address, address], hops: 64 };
        verbs.connect_qp(nic, near, far, ACCESS, loops)?;
        verbs.connect_qp(nic, far, near, ACCESS, loops)?;
        Ok(Pair { near, far, sends, receives })
    }

    fn piece(&self, at: usize, len: usize) -> anyhow::Result<Sge> {
        let mr = &self.near.1;
        Ok(Sge { va: mr.va + u64::try_from(at)?, length: u32::try_from(len)?, lkey: mr.key })
    }

    /// Moves `len` bytes at `at` between the memories.
    fn request(&self, kind: Kind, at: usize, len: usize) -> anyhow::Result<Request> {
        let (list, mr) = (vec![self.piece(at, len)?], &self.far.1);
        let there = mr.va + u64::try_from(at)?;
        Ok(match kind {
            Kind::Write => Request::Write(list, there, mr.key),
            Kind::Read => Request::Read(list, there, mr.key),
            Kind::Send => Request::Send(list, None),
        })
    }

    /// Polls until there is a completion. All of them must be of success.
    fn poll(&mut self, cq: u32) -> anyhow::Result<usize> {
        let end = Instant::now() + PATIENCE;
        loop {
            let wcs = self.verbs.poll_cq(cq)?;
            if let Some(failed) = wcs.iter().find(|wc| wc.status != 0) {
                anyhow::bail!("a work request failed: {failed:?}");
            }
            if !wcs.is_empty() {
                return Ok(wcs.len());
            }
            ensure!(Instant::now() < end, "no completion in {} s", PATIENCE.as_secs());
            std::hint::spin_loop();
        }
    }

    /// Polls until `left` completions have come.
    fn drain(&mut self, cq: u32, mut left: usize) -> anyhow::Result<()> {
        while left > 0 {
            left = left.checked_sub(self.poll(cq)?).context("more completions than requests")?;
        }
        Ok(())
    }

    /// The device may use the entries of what was polled again.
    fn give_back(&mut self, pair: &Pair) -> anyhow::Result<()> {
        self.verbs.tell_cq(&mut self.nic, pair.sends)?;
        Ok(self.verbs.tell_cq(&mut self.nic, pair.receives)?)
    }

    /// Both memories hold the same, which is `content`, as far as that goes.
    fn compare(&self, content: &[u8]) -> anyhow::Result<()> {
        for (memory, name) in [(&self.near.0, "near"), (&self.far.0, "far")] {
            let mut got = vec![0; content.len()];
            memory.read(0, &mut got);
            ensure!(got == content, "the {name} memory does not hold what was sent");
            ensure!(memory.intact(), "something was written beside the {name} memory");
        }
        ensure!(self.verbs.rings_intact(), "something was written beside a ring");
        Ok(())
    }

    /// Fills the memory that is read, and the other with something else.
    fn fill(&self, kind: Kind, content: &[u8]) {
        let (from, to) = if kind == Kind::Read { (&self.far, &self.near) } else { (&self.near, &self.far) };
        from.0.write(0, content);
        to.0.write(0, &vec![0xee; content.len()]);
    }
}

/// One request of 8 bytes after the other: from the doorbell to the completion that is seen.
fn small(bench: &Bench, kind: Kind) -> anyhow::Result<Map<String, Value>> {
    let mut starts = Vec::new();
    for _ in 0..bench.starts {
        let mut rig = Rig::start(bench, SMALL)?;
        let pair = rig.connect()?;
        let content = bytes(WORD, 21);
        rig.fill(kind, &content);
        let request = rig.request(kind, 0, WORD)?;
        let buffer = Receive(vec![Sge { lkey: rig.far.1.key, va: rig.far.1.va, length: u32::try_from(WORD)? }]);
        let mut samples = Samples::default();
        for round in 0..WARM + n(20_000, bench) {
            if kind == Kind::Send {
                rig.verbs.post_receive(&mut rig.nic, pair.far, 1, &buffer)?;
            }
            let start = Instant::now();
            rig.verbs.post_send(&mut rig.nic, pair.near, 1, &request)?;
            rig.poll(pair.sends)?;
            if round >= WARM {
                samples.push(start.elapsed());
            }
            if kind == Kind::Send {
                rig.poll(pair.receives)?;
            }
            if round % DEPTH == 0 {
                rig.give_back(&pair)?;
            }
        }
        rig.compare(&content)?;
        starts.push(samples);
    }
    Ok(latency(&starts))
}

/// Requests of 1 MiB, with always some that wait, beside memcpy.
fn large(bench: &Bench, kind: Kind) -> anyhow::Result<Map<String, Value>> {
    const BATCH: usize = 16;
    let (mut speeds, mut ratios) = (Vec::new(), Vec::new());
    let content = bytes(LARGE, 22);
    for _ in 0..bench.starts {
        let mut rig = Rig::start(bench, LARGE)?;
        let pair = rig.connect()?;
        rig.fill(kind, &content);
        let requests: Vec<_> = (0..LARGE / MIB)
            .map(|i| Ok((u64::try_from(i)?, rig.request(kind, i * MIB, MIB)?, i % BATCH == BATCH - 1)))
            .collect::<anyhow::Result<_>>()?;
        let (mut ours, mut copies) = (Vec::new(), Vec::new());
        // The first round has seen no page yet.
        for round in 0..=n(8, bench) {
            let (start, mut left) = (Instant::now(), 0);
            for batch in requests.chunks(BATCH) {
                rig.verbs.post_sends(&mut rig.nic, pair.near, batch)?;
                left += 1;
                if left == 2 {
                    left -= rig.poll(pair.sends)?;
                }
            }
            rig.drain(pair.sends, left)?;
            let time = start.elapsed();
            rig.give_back(&pair)?;
            if round > 0 {
                ours.push(gbps(LARGE, time));
                copies.push(gbps(MIB, limits::memcpy(MIB)?));
            }
        }
        rig.compare(&content)?;
        speeds.push(median(&ours));
        ratios.push(median(&ours) / median(&copies));
    }
    let mut result = bandwidth(&speeds);
    result.insert("ratio_memcpy".into(), round(median(&ratios)));
    result.insert("ratio_of_starts".into(), ratios.iter().map(|v| round(*v)).collect());
    Ok(result)
}

/// Writes of 8 bytes that are in the request, 64 with each doorbell.
fn write_rate(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    let mut rates = Vec::new();
    for _ in 0..bench.starts {
        let mut rig = Rig::start(bench, SMALL)?;
        let pair = rig.connect()?;
        let content = bytes(DEPTH * WORD, 23);
        rig.fill(Kind::Write, &content);
        let (there, key) = (rig.far.1.va, rig.far.1.key);
        let requests: Vec<_> = (0..)
            .zip(content.chunks_exact(WORD))
            .map(|(i, word)| {
                let to = there + i * u64::try_from(WORD)?;
                Ok((i, Request::WriteInline(word.to_vec(), to, key), i == u64::try_from(DEPTH - 1)?))
            })
            .collect::<anyhow::Result<_>>()?;
        let batches = n(16_000, bench);
        let (mut start, mut left) = (Instant::now(), 0);
        for batch in 0..batches + WARM {
            if batch == WARM {
                start = Instant::now();
            }
            rig.verbs.post_sends(&mut rig.nic, pair.near, &requests)?;
            left += 1;
            if left == 3 {
                left -= rig.poll(pair.sends)?;
            }
            if batch % DEPTH == 0 {
                rig.give_back(&pair)?;
            }
        }
        rig.drain(pair.sends, left)?;
        let time = start.elapsed();
        rig.compare(&content)?;
        let writes = f64::from(u32::try_from(batches * DEPTH)?);
        rates.push(writes / time.as_secs_f64());
    }
    Ok(rate(&rates))
}

/// Writes of 64 KiB of 16 queue pairs at once: the bytes of the slowest one, when all together have enough, to those of the
/// mean.
fn fairness(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    let mut ratios = Vec::new();
    for _ in 0..bench.starts {
        let mut rig = Rig::start(bench, SHARERS * SHARE)?;
        let content = bytes(SHARERS * SHARE, 24);
        rig.fill(Kind::Write, &content);
        let pairs = (0..SHARERS).map(|_| rig.connect()).collect::<anyhow::Result<Vec<_>>>()?;
        let all = n(32_768, bench);
        let mut done = [0_usize; SHARERS];
        let requests =
            (0..SHARERS).map(|i| rig.request(Kind::Write, i * SHARE, SHARE)).collect::<anyhow::Result<Vec<_>>>()?;
        for (pair, request) in pairs.iter().zip(&requests) {
            for id in 0..POSTED {
                rig.verbs.post_send(&mut rig.nic, pair.near, u64::try_from(id)?, request)?;
            }
        }
        let end = Instant::now() + 6 * PATIENCE;
        while done.iter().sum::<usize>() < all {
            for ((pair, request), done) in pairs.iter().zip(&requests).zip(&mut done) {
                let wcs = rig.verbs.poll_cq(pair.sends)?;
                for wc in &wcs {
                    ensure!(wc.status == 0, "a work request failed: {wc:?}");
                    rig.verbs.post_send(&mut rig.nic, pair.near, wc.id, request)?;
                    *done += 1;
                    if *done % DEPTH == 0 {
                        rig.verbs.tell_cq(&mut rig.nic, pair.sends)?;
                    }
                }
            }
            ensure!(Instant::now() < end, "{done:?} of {all} requests in a minute");
        }
        let slowest = done.iter().min().context("no queue pair")?;
        let of = |count: usize| anyhow::Ok(f64::from(u32::try_from(count)?));
        ratios.push(of(*slowest)? * of(SHARERS)? / of(done.iter().sum())?);
        for pair in &pairs {
            rig.drain(pair.sends, POSTED)?;
        }
        rig.compare(&content)?;
    }
    let mut result = Map::new();
    result.insert("ratio".into(), round(median(&ratios)));
    result.insert("ratio_of_starts".into(), ratios.iter().map(|v| round(*v)).collect());
    Ok(result)
}
