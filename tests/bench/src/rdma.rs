//! The figures of payloads by RDMA: a registered buffer in the guest's memory, and requests with tokens of it.
//!
//! The buffer lies in huge pages, as Debian's kernel gives them to a program that maps as much, or, where a figure is said to be
//! of scattered pages, in pages of 4 KiB of which no two are neighbours. It has windows for 256 MiB of payload, each with an
//! object of its own, and requests go round them, so that no cache has what comes next; before each GET the guest writes all of
//! the window. After each start the service's counters must have risen by exactly what was asked
//! for, and the bytes are compared once.

use std::{
    future::Future,
    hint::black_box,
    pin::pin,
    task::{Context as TaskContext, Poll, Waker},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use ernic_emu::{
    device::DeviceConfig,
    link::{Link, LinkPoll, RxSink, TxFrame},
    rdma::NicMemory,
};
use ionic_abi::MrFlags;
use ionic_driver::{
    Bus, Config, GuestRam, InProcess, Ionic, UserMem, Verbs, http::Response, user::Placement, verbs::RegMr,
};
use rdma_token::{RemoteAccess, RemoteMemory, Token, TokenHeader, Transport};
use serde_json::{Map, Value, json};

use crate::{
    Bench,
    figures::{Direction, Figure, SMALL_BUFFER, WARM, at_least, at_most, bytes, etag, n},
    guest::{self, Http, Net, guest_with},
    limits,
    server::Server,
    stats::{Samples, bandwidth, gbps, latency, median, round},
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The figures, in the order in which they are taken.
pub const FIGURES: &[Figure] = &[
    Figure { key: "rdma_get_4k", goals: &[at_most("p50_us", 70.0)], run: |bench| get(bench, 4 * KIB) },
    Figure { key: "rdma_get_64k", goals: &[], run: |bench| get(bench, 64 * KIB) },
    Figure { key: "rdma_get_1m", goals: &[at_least("gbps", 3.0)], run: |bench| get(bench, MIB) },
    Figure { key: "rdma_get_16m", goals: &[at_least("copy_ratio", 0.6)], run: |bench| get(bench, 16 * MIB) },
    Figure { key: "rdma_get_256m", goals: &[at_least("copy_ratio", 0.6)], run: |bench| get(bench, 256 * MIB) },
    Figure { key: "rdma_put_4k", goals: &[], run: |bench| put(bench, 4 * KIB, "md5") },
    Figure { key: "rdma_put_64k", goals: &[], run: |bench| put(bench, 64 * KIB, "md5") },
    Figure { key: "rdma_put_1m", goals: &[], run: |bench| put(bench, MIB, "md5") },
    Figure { key: "rdma_put_16m", goals: &[at_least("ratio_md5", 0.8)], run: |bench| put(bench, 16 * MIB, "md5") },
    Figure { key: "rdma_put_256m", goals: &[at_least("ratio_md5", 0.8)], run: |bench| put(bench, 256 * MIB, "md5") },
    Figure { key: "rdma_put_crc64_1m", goals: &[], run: |bench| put(bench, MIB, "crc64nvme") },
    Figure {
        key: "rdma_put_crc64_16m",
        goals: &[at_least("ratio_memcpy", 0.5)],
        run: |bench| put(bench, 16 * MIB, "crc64nvme"),
    },
    Figure {
        key: "register_read_during_get",
        goals: &[at_most("p99_us", 1000.0)],
        run: |bench| register_reads(bench, Direction::Get),
    },
    Figure {
        key: "register_read_during_put",
        goals: &[at_most("p99_us", 1000.0)],
        run: |bench| register_reads(bench, Direction::Put),
    },
    Figure { key: "mr_lookup", goals: &[at_most("ratio", 1.2)], run: mr_lookup },
];

/// Payload of all windows together.
const TOTAL: usize = 256 * MIB;
/// Most windows: a small object is asked for more than once before its turn comes again.
const MAX_WINDOWS: usize = 256;
/// Where the buffer is in its process.
const VA: u64 = 0x7f12_3456_7000;
/// Rights that GET and PUT need.
const RIGHTS: MrFlags = MrFlags::LOCAL_WRITE.union(MrFlags::REMOTE_READ).union(MrFlags::REMOTE_WRITE);
/// What a window holds before a GET.
static STALE: [u8; 64 * KIB] = [0xee; 64 * KIB];

/// A server, and a guest with a registered buffer.
struct Rig {
    net: Net,
    http: Http,
    memory: UserMem,
    rkey: u32,
    size: usize,
    windows: usize,
    /// What each window holds, one after the other, and the object of the same number.
    content: Vec<u8>,
    // After the guest, which detaches first.
    server: Server,
}

/// Figures of the service that tell whether a transfer was one.
#[derive(Debug, Clone, Copy)]
struct Moved {
    reads: f64,
    bytes_read: f64,
    read_seconds: f64,
    writes: f64,
    bytes_written: f64,
    write_seconds: f64,
}

impl Rig {
    /// Starts both. The buffer holds the content of the objects, and nothing is stored yet.
    fn start(bench: &Bench, size: usize, etag: &str) -> anyhow::Result<Self> {
        Self::start_in(bench, size, etag, Placement::Huge)
    }

    fn start_in(bench: &Bench, size: usize, etag: &str, placement: Placement) -> anyhow::Result<Self> {
        let windows = (TOTAL / size).clamp(1, MAX_WINDOWS);
        let server = Server::start(&bench.server, &format!("s3:size=1G,maxpart=256M,objects=1024,etag={etag}"))?;
        // A page of the guest's own lies between any two that are scattered.
        let mut net = guest_with(&server, 1500, SMALL_BUFFER, 2 * windows * size + 16 * MIB)?;
        let mut verbs = Verbs::open(&mut net.nic)?;
        let pd = verbs.create_pd();
        let memory = UserMem::new(net.nic.bus.ram(), VA, windows * size, placement)?;
        let mr = verbs.reg_mr(&mut net.nic, pd, &RegMr::all(&memory, RIGHTS))?;
        let content = bytes(windows * size, 11);
        memory.write(0, &content);
        let http = Http::connect(&mut net)?;
        Ok(Self { net, http, memory, rkey: mr.key, size, windows, content, server })
    }

    /// Range of window `i`.
    fn window(&self, i: usize) -> std::ops::Range<usize> {
        i * self.size..(i + 1) * self.size
    }

    /// Sends a request with the token of window `i` and checks all of its answer but the bytes; how long it took.
    fn request(&mut self, direction: Direction, i: usize) -> anyhow::Result<(Duration, Response)> {
        let method = match direction {
            Direction::Get => "GET",
            Direction::Put => "PUT",
        };
        let offset = u64::try_from(self.window(i).start)?;
        let token = hex::encode(token(self.rkey, VA + offset, u64::try_from(self.size)?).to_bytes());
        let mut head = Http::request(method, &format!("/ernic/object-{i}"), (method == "PUT").then_some(0));
        head.truncate(head.len() - 2);
        head.push_str(&format!("x-amz-rdma-token: {token}\r\n\r\n"));
        let start = Instant::now();
        let answer = self.http.exchange(&mut self.net, &head, &[], &mut |_| {})?;
        let took = answer.at - start;
        let response = answer.response;
        let said = |name| response.header(name).unwrap_or_default();
        let moved = self.size.to_string();
        if response.status != 200 || !said("x-amz-rdma-reply").starts_with("200:") || said("x-amz-rdma-bytes") != moved
        {
            bail!("{method} by RDMA: {response:?}");
        }
        Ok((took, response))
    }

    /// GETs object `i` into its window, which the guest has just written.
    fn get(&mut self, i: usize) -> anyhow::Result<Duration> {
        let window = self.window(i);
        for at in window.clone().step_by(STALE.len()) {
            self.memory.write(at, &STALE[..STALE.len().min(window.end - at)]);
        }
        Ok(self.request(Direction::Get, i)?.0)
    }

    /// PUTs window `i` as its object.
    fn put(&mut self, i: usize) -> anyhow::Result<Duration> {
        Ok(self.request(Direction::Put, i)?.0)
    }

    /// The window must hold the object's bytes.
    fn compare(&self, i: usize) -> anyhow::Result<()> {
        let window = self.window(i);
        let mut got = vec![0; self.size];
        self.memory.read(window.start, &mut got);
        ensure!(self.content.get(window) == Some(&got[..]), "object {i} is not what was put");
        Ok(())
    }

    /// The service's counters.
    fn moved(&mut self) -> anyhow::Result<Moved> {
        let mut page = Vec::new();
        let request = Http::request("GET", "/metrics", None);
        self.http.exchange(&mut self.net, &request, &[], &mut |piece| page.extend_from_slice(piece))?;
        let page = String::from_utf8(page)?;
        let figure = |name: &str| -> anyhow::Result<f64> {
            let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            Ok(value.with_context(|| format!("/metrics has no {name}"))?.parse()?)
        };
        Ok(Moved {
            reads: figure("minio_api_rdma_read_ops_total")?,
            bytes_read: figure("ernic_rdma_bytes_total{operation=\"read\"}")?,
            read_seconds: figure("ernic_rdma_transfer_seconds_sum{operation=\"read\"}")?,
            writes: figure("minio_api_rdma_write_ops_total")?,
            bytes_written: figure("ernic_rdma_bytes_total{operation=\"write\"}")?,
            write_seconds: figure("ernic_rdma_transfer_seconds_sum{operation=\"write\"}")?,
        })
    }

    /// The counters must have risen by `gets` and `puts` transfers since `before`; seconds that the service spent on a
    /// GET's transfer and on a PUT's, on average.
    #[allow(clippy::cast_precision_loss, reason = "below 2^52")]
    fn check(&mut self, before: Moved, gets: usize, puts: usize) -> anyhow::Result<(f64, f64)> {
        let now = self.moved()?;
        let size = self.size as f64;
        let (gets, puts) = (gets as f64, puts as f64);
        let rose = [
            (now.reads - before.reads, gets),
            (now.bytes_read - before.bytes_read, gets * size),
            (now.writes - before.writes, puts),
            (now.bytes_written - before.bytes_written, puts * size),
        ];
        // Whole numbers, all of them.
        ensure!(rose.iter().all(|(by, expected)| (by - expected).abs() < 0.5), "the counters rose by {rose:?}");
        ensure!(self.memory.intact(), "something was written beside the buffer");
        guest::check(&self.net)?;
        Ok(((now.read_seconds - before.read_seconds) / gets, (now.write_seconds - before.write_seconds) / puts))
    }
}

/// A token of family A.
fn token(rkey: u32, address: u64, length: u64) -> Token {
    let gid = guest::ENDPOINT.to_ipv6_mapped().octets();
    Token { transport: Transport::Rc, qpn: 2, gid, rkey, address, length, port: 1, lid: 0 }
}

/// Requests of each start that are counted.
fn requests(size: usize, bench: &Bench) -> usize {
    match size {
        0..MIB => n(4000, bench),
        MIB..=4194304 => n(1024, bench),
        _ => n((1024 * MIB / size).max(8), bench),
    }
}

/// What the starts of one kind gave.
#[derive(Debug, Default)]
struct Gets {
    latencies: Vec<Samples>,
    gbps: Vec<f64>,
    per_cpu: Vec<f64>,
    ratios: Vec<f64>,
}

impl Gets {
    fn start(&mut self, bench: &Bench, size: usize, placement: Placement) -> anyhow::Result<()> {
        let mut rig = Rig::start_in(bench, size, "crc64nvme", placement)?;
        for i in 0..rig.windows {
            rig.put(i)?;
        }
        // Once round, and small ones often enough.
        for i in 0..rig.windows.max(if size < MIB { WARM } else { 0 }) {
            let i = i % rig.windows;
            rig.get(i)?;
            rig.compare(i)?;
        }
        let count = requests(size, bench);
        let (before, mut samples, mut copies) = (rig.moved()?, Samples::default(), Vec::new());
        let used = rig.server.cpu()?;
        for i in 0..count {
            samples.push(rig.get(i % rig.windows)?);
            if i % count.div_ceil(4) == 0 {
                copies.push(limits::memcpy(size)?.as_secs_f64());
            }
        }
        self.per_cpu.push(gbps(count * size, rig.server.cpu()? - used));
        let (alone, _) = rig.check(before, count, 0)?;
        rig.compare(0)?;
        self.gbps.push(gbps(size, samples.median()));
        self.ratios.push(median(&copies) / alone);
        self.latencies.push(samples);
        Ok(())
    }
}

fn get(bench: &Bench, size: usize) -> anyhow::Result<Map<String, Value>> {
    let (mut huge, mut scattered) = (Gets::default(), Gets::default());
    for _ in 0..bench.starts {
        huge.start(bench, size, Placement::Huge)?;
        if size > MIB {
            scattered.start(bench, size, Placement::Scattered)?;
        }
    }
    let mut result = latency(&huge.latencies);
    result.append(&mut bandwidth(&huge.gbps));
    // What the server would do with a processor of its own: other load on the machine does not show in it.
    result.insert("gbps_per_server_cpu".into(), round(median(&huge.per_cpu)));
    result.insert("copy_ratio".into(), round(median(&huge.ratios)));
    result.insert("copy_ratio_of_starts".into(), huge.ratios.iter().map(|v| round(*v)).collect());
    if size > MIB {
        result.insert("gbps_scattered".into(), round(median(&scattered.gbps)));
        result.insert("copy_ratio_scattered".into(), round(median(&scattered.ratios)));
    }
    Ok(result)
}

fn put(bench: &Bench, size: usize, kind: &str) -> anyhow::Result<Map<String, Value>> {
    let (mut starts, mut ours, mut per_cpu) = (Vec::new(), Vec::new(), Vec::new());
    let (mut to_md5, mut to_memcpy) = (Vec::new(), Vec::new());
    for _ in 0..bench.starts {
        let mut rig = Rig::start(bench, size, kind)?;
        let etags: Vec<_> = rig.content.chunks(size).map(etag).collect();
        // Twice round: the second time they replace what is there, as all that follow do.
        let warm = rig.windows.max(if size < MIB { WARM } else { 0 });
        for i in 0..2 * warm {
            let i = i % rig.windows;
            let (_, response) = rig.request(Direction::Put, i)?;
            let said = response.header("etag").unwrap_or_default();
            let right = if kind == "md5" { said == etags[i] } else { said.ends_with("-crc64nvme\"") };
            ensure!(right, "object {i} has ETag {said}");
        }
        let count = requests(size, bench);
        let (before, used) = (rig.moved()?, rig.server.cpu()?);
        let (mut samples, mut copies, mut digests) = (Samples::default(), Vec::new(), Vec::new());
        for i in 0..count {
            samples.push(rig.put(i % rig.windows)?);
            if i % count.div_ceil(4) == 0 {
                copies.push(limits::memcpy(size)?.as_secs_f64());
                digests.push(limits::md5(size)?.as_secs_f64());
            }
        }
        per_cpu.push(gbps(count * size, rig.server.cpu()? - used));
        rig.check(before, 0, count)?;
        for i in 0..rig.windows {
            rig.get(i)?;
            rig.compare(i)?;
        }
        let took = samples.median();
        ours.push(gbps(size, took));
        to_md5.push(median(&digests) / took.as_secs_f64());
        to_memcpy.push(median(&copies) / took.as_secs_f64());
        starts.push(samples);
    }
    let mut result = latency(&starts);
    result.append(&mut bandwidth(&ours));
    result.insert("gbps_per_server_cpu".into(), round(median(&per_cpu)));
    for (name, values) in [("ratio_md5", &to_md5), ("ratio_memcpy", &to_memcpy)] {
        if kind == "md5" || name != "ratio_md5" {
            result.insert(name.into(), round(median(values)));
            result.insert(format!("{name}_of_starts"), values.iter().map(|v| round(*v)).collect());
        }
    }
    Ok(result)
}

/// The guest reads a register while a transfer of 256 MiB is under way, again and again with pauses in between.
fn register_reads(bench: &Bench, direction: Direction) -> anyhow::Result<Map<String, Value>> {
    const SIZE: usize = 256 * MIB;
    let mut starts = Vec::new();
    for _ in 0..bench.starts {
        let mut rig = Rig::start(bench, SIZE, "md5")?;
        rig.put(0)?;
        rig.get(0)?;
        rig.compare(0)?;
        let count = match direction {
            Direction::Get => n(20, bench),
            Direction::Put => n(4, bench),
        };
        let before = rig.moved()?;
        for _ in 0..count {
            // The answer ends the wait, and with it the reading.
            rig.net.nic.bus.probes.get_or_insert_default();
            rig.request(direction, 0)?;
        }
        let samples = rig.net.nic.bus.probes.take().unwrap_or_default();
        let (gets, puts) = if direction == Direction::Get { (count, 0) } else { (0, count) };
        rig.check(before, gets, puts)?;
        ensure!(samples.len() > 10 * count, "only {} reads during {count} transfers", samples.len());
        starts.push(samples);
    }
    Ok(latency(&starts))
}

/// Nothing is on the wire.
struct NoWire;

impl Link for NoWire {
    fn transmit(&mut self, _: &mut TxFrame<'_>) {}

    fn poll(&mut self, _: Duration, _: &mut dyn RxSink) -> LinkPoll {
        LinkPoll::default()
    }

    fn set_mtu(&mut self, _: u32) {}

    fn reset(&mut self) {}
}

/// What a future that never waits gives.
fn now<F: Future>(future: F) -> anyhow::Result<F::Output> {
    match pin!(future).poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => bail!("the NIC's memory waits for something"),
    }
}

/// A device with `count` regions of a page each, and their keys in no order: as many keys whatever the regions, so that reading
/// them costs the same.
fn regions(count: usize) -> anyhow::Result<(NicMemory, Vec<u32>)> {
    let ram = GuestRam::new(64 * MIB, 1 << 32)?;
    let config = DeviceConfig { mac: [2, 0, 0, 0, 0, 1], device_id: 0x1002, max_mtu: 1500 };
    let small = Config { queues: 1, tx_entries: 64, rx_entries: 64, ..Config::default() };
    let mut nic = Ionic::attach(InProcess::new(config, NoWire, ram.clone())?, small)?;
    nic.up()?;
    let mut verbs = Verbs::open(&mut nic)?;
    let pd = verbs.create_pd();
    let page = UserMem::new(&ram, VA, 4 * KIB, Placement::Contiguous)?;
    let what = vec![RegMr::all(&page, RIGHTS); count];
    let mut keys = Vec::new();
    for made in verbs.reg_mrs(&mut nic, pd, &what)? {
        keys.push(made.map_err(|status| anyhow::anyhow!("region {} of {count}: {status:?}", keys.len()))?.key);
    }
    let device = &nic.bus.device;
    ensure!(usize::try_from(device.regions().len())? == count, "{:?}", device.rdma_objects());
    let memory = NicMemory::new(device.regions().clone(), device.memory().clone());
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..keys.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        keys.swap(i, usize::try_from(state >> 33)? % (i + 1));
    }
    Ok((memory, keys.into_iter().cycle().take(LOOKUPS).collect()))
}

/// Regions of the larger table.
const MANY: usize = 60_000;
/// Look-ups of one turn.
const LOOKUPS: usize = MANY;

/// What a request pays to find the region of its token, which is to open a window; the tables take turns.
fn mr_lookup(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    let (mut ratios, mut one, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.starts {
        let sides = [regions(1)?, regions(MANY)?];
        let mut nanos = [Vec::new(), Vec::new()];
        for _ in 0..n(40, bench) {
            for ((memory, keys), nanos) in sides.iter().zip(&mut nanos) {
                let start = Instant::now();
                for rkey in keys {
                    let token = TokenHeader::A(token(*rkey, VA, 4096));
                    black_box(now(memory.open(&token, RemoteAccess::Write))?.context("a region is not found")?);
                }
                nanos.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(keys.len())?));
            }
        }
        let [with_one, with_many] = nanos.map(|nanos| median(&nanos));
        ratios.push(with_many / with_one);
        one.push(with_one);
        many.push(with_many);
    }
    let mut result = Map::new();
    result.insert("ratio".into(), round(median(&ratios)));
    result.insert("ratio_of_starts".into(), ratios.iter().map(|v| round(*v)).collect());
    result.insert("ns_1".into(), round(median(&one)));
    result.insert("ns_60k".into(), round(median(&many)));
    result.insert("regions".into(), json!(MANY));
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_found() {
        let (memory, keys) = regions(3).expect("a device");
        for rkey in keys {
            let opened = now(memory.open(&TokenHeader::A(token(rkey, VA, 4096)), RemoteAccess::Write)).expect("ready");
            assert_eq!(opened.expect("found").len(), 4096);
        }
    }
}
