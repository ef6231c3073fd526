//! Figures of `ernic serve`: the store on the host's own TCP, beside other servers that do the same.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use crate::{
    Bench,
    figures::{Direction, Figure, at_least, at_most, between, bytes, escape, n},
    limits,
    load::{self, Job, Outcome},
    peers::{self, BUCKET, Peer, Tcp},
    stats::{Samples, bandwidth, gbps, latency, median, rate, round},
};

const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 20;
/// How long new requests are made in one go.
const LONG: Duration = Duration::from_secs(10);

/// What a server does on loopback.
pub const FIGURES: &[Figure] = &[
    Figure {
        key: "serve_put_4k_1",
        goals: &[at_least("ratio_peer", 1.5)],
        run: |bench| row(bench, Direction::Put, SMALL, 1),
    },
    Figure {
        key: "serve_put_4k_16",
        goals: &[at_least("ratio_peer", 1.5)],
        run: |bench| row(bench, Direction::Put, SMALL, 16),
    },
    Figure {
        key: "serve_get_4k_1",
        goals: &[at_least("ratio_peer", 1.5)],
        run: |bench| row(bench, Direction::Get, SMALL, 1),
    },
    Figure {
        key: "serve_get_4k_16",
        goals: &[at_least("ratio_peer", 1.5)],
        run: |bench| row(bench, Direction::Get, SMALL, 16),
    },
    // All of them make an MD5 of what comes, and there is one right way to do that.
    Figure {
        key: "serve_put_64m_1",
        goals: &[at_least("ratio_peer", 1.0)],
        run: |bench| row(bench, Direction::Put, LARGE, 1),
    },
    Figure {
        key: "serve_put_64m_16",
        goals: &[at_least("ratio_peer", 1.0)],
        run: |bench| row(bench, Direction::Put, LARGE, 16),
    },
    Figure {
        key: "serve_get_64m_1",
        goals: &[at_least("ratio_peer", 1.5)],
        run: |bench| row(bench, Direction::Get, LARGE, 1),
    },
    Figure {
        key: "serve_get_64m_16",
        goals: &[at_least("ratio_peer", 1.5)],
        run: |bench| row(bench, Direction::Get, LARGE, 16),
    },
    Figure { key: "serve_disk_get_64m", goals: &[at_least("ratio_memory", 0.7)], run: disk_get },
    Figure { key: "serve_disk_put_64m", goals: &[at_least("ratio_dd", 0.5)], run: disk_put },
    Figure { key: "serve_100x1g", goals: &[at_most("rss_kib", 200.0 * 1024.0)], run: many_readers },
    Figure {
        key: "list_1k_of_1m_memory",
        goals: &[at_most("p50_us", 10_000.0)],
        run: |bench| list(bench, Keep::Memory),
    },
    Figure { key: "list_1k_of_1m_disk", goals: &[at_most("p50_us", 10_000.0)], run: |bench| list(bench, Keep::Disk) },
];

/// Heads of the requests for some objects, made beforehand.
#[derive(Debug)]
struct Objects {
    puts: Vec<Vec<u8>>,
    gets: Vec<Vec<u8>>,
    body: Vec<u8>,
}

impl Objects {
    fn new(count: usize, size: usize) -> Self {
        let paths = || (0..count).map(|n| format!("/{BUCKET}/data/object-{n:04}"));
        Self {
            puts: paths().map(|path| load::head("PUT", &path, Some(size))).collect(),
            gets: paths().map(|path| load::head("GET", &path, None)).collect(),
            body: bytes(size, 11),
        }
    }

    /// Requests for one object after the other.
    fn jobs(&self, direction: Direction, count: usize) -> impl Iterator<Item = Job<'_>> {
        let (heads, body, answer) = match direction {
            Direction::Put => (&self.puts, &self.body[..], None),
            Direction::Get => (&self.gets, &[][..], Some(self.body.len())),
        };
        heads.iter().cycle().take(count).map(move |head| Job { head, body, answer })
    }

    /// Stores all of them and compares one, byte for byte.
    fn fill(&self, server: &Tcp) -> anyhow::Result<()> {
        // The first one alone: rclone refuses some of the PUTs that make the same folder at once.
        load::run(server.address, 1, self.jobs(Direction::Put, 1), &mut |_, _| ())?;
        load::run(server.address, 4, self.jobs(Direction::Put, self.puts.len()), &mut |_, _| ())?;
        let (mut at, mut equal) = (0, true);
        load::run(server.address, 1, self.jobs(Direction::Get, 1), &mut |_, piece| {
            equal &= self.body.get(at..at + piece.len()) == Some(piece);
            at += piece.len();
        })?;
        ensure!(equal && at == self.body.len(), "the object is not what was stored");
        Ok(())
    }

    /// Makes `count` requests, or as many as begin in [`LONG`]: some servers take very long for some of them.
    fn run(&self, server: &Tcp, direction: Direction, connections: usize, count: usize) -> anyhow::Result<Outcome> {
        let end = Instant::now() + LONG;
        let jobs = self.jobs(direction, count).take_while(|_| Instant::now() < end);
        load::run(server.address, connections, jobs, &mut |_, _| ())
    }
}

/// How often, in the unit of the figure.
fn speed(size: usize, outcome: &Outcome) -> f64 {
    let count = outcome.latencies.len();
    if size == SMALL {
        #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let count = count as f64;
        count / outcome.time.as_secs_f64()
    } else {
        gbps(size * count, outcome.time)
    }
}

/// The same load on ours and on the others, one after the other; the faster of the others counts.
fn row(bench: &Bench, direction: Direction, size: usize, connections: usize) -> anyhow::Result<Map<String, Value>> {
    let peers: Vec<(Peer, &Path)> = [(Peer::S3sFs, &bench.peers.s3s_fs), (Peer::Rclone, &bench.peers.rclone)]
        .into_iter()
        .filter_map(|(peer, program)| Some((peer, program.as_deref()?)))
        .collect();
    ensure!(!peers.is_empty(), "there is nothing to compare with: name --s3s-fs PATH, --rclone PATH or both");
    let count = match (size, connections) {
        (SMALL, 1) => n(10_000, bench),
        (SMALL, _) => n(40_000, bench),
        (_, 1) => n(16, bench),
        _ => n(48, bench).max(connections),
    };
    let objects = Objects::new(if size == SMALL { 256 } else { connections }, size);
    let measure = |server: Tcp| -> anyhow::Result<(f64, Samples)> {
        objects.fill(&server)?;
        objects.run(&server, direction, connections, count.div_ceil(8).max(connections))?;
        let outcome = objects.run(&server, direction, connections, count)?;
        Ok((speed(size, &outcome), outcome.latencies))
    };
    let (mut ours, mut samples, mut theirs) = (Vec::new(), Vec::new(), vec![Vec::new(); peers.len()]);
    for _ in 0..bench.starts {
        let (speed, latencies) = measure(peers::ernic(&bench.server, "size=4G,objects=10000")?)?;
        ours.push(speed);
        samples.push(latencies);
        for ((peer, program), speeds) in peers.iter().zip(&mut theirs) {
            let one = || peer.start(program).and_then(&measure).with_context(|| peer.name());
            // A fault of a peer's must not cost the whole run.
            let (speed, _) = one().or_else(|error| {
                eprintln!("{error:#}; this start is taken once more");
                one()
            })?;
            speeds.push(speed);
        }
    }
    let mut result = if size == SMALL { rate(&ours) } else { bandwidth(&ours) };
    for (name, value) in latency(&samples) {
        if ["p50_us", "p99_us", "n"].contains(&name.as_str()) {
            result.insert(name, value);
        }
    }
    let best = peers.iter().zip(&theirs).max_by(|(_, one), (_, other)| median(one).total_cmp(&median(other)));
    let ((peer, _), speeds) = best.context("no peer")?;
    let ratios: Vec<f64> = ours.iter().zip(speeds).map(|(ours, theirs)| ours / theirs).collect();
    result.insert("ratio_peer".into(), round(median(&ratios)));
    result.insert("ratio_of_starts".into(), ratios.iter().map(|v| round(*v)).collect());
    result.insert("peer".into(), json!(peer.name()));
    for ((peer, _), speeds) in peers.iter().zip(&theirs) {
        result.insert(format!("of_{}", peer.name()), round(median(speeds)));
    }
    Ok(result)
}

/// A folder on the disk that the programs are on.
fn disk(bench: &Bench) -> anyhow::Result<tempfile::TempDir> {
    let beside = bench.server.parent().context("no folder beside the server")?;
    tempfile::Builder::new().prefix("bench-disk-").tempdir_in(beside).context("no folder for a store")
}

/// A server whose store is in a folder.
fn on_disk(bench: &Bench, dir: &Path, options: &str) -> anyhow::Result<Tcp> {
    // A quote in the path is none of ours.
    peers::ernic(&bench.server, &format!("{options},store=\"disk:{}\"", dir.join("store").display()))
}

/// GETs from disk beside GETs from memory; what was just written is in the page cache.
fn disk_get(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    let objects = Objects::new(4, LARGE);
    let count = n(16, bench);
    let (mut ours, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..bench.starts {
        let dir = disk(bench)?;
        let memory = peers::ernic(&bench.server, "size=1G")?;
        let disk = on_disk(bench, dir.path(), "size=1G")?;
        let mut speeds = [Vec::new(), Vec::new()];
        for (server, _) in [&memory, &disk].iter().zip(&speeds) {
            objects.fill(server)?;
        }
        // In turns, so that what else the machine does hits both alike.
        for _ in 0..4 {
            for (server, speeds) in [&memory, &disk].iter().zip(&mut speeds) {
                let count = count.div_ceil(4);
                speeds.push(speed(LARGE, &objects.run(server, Direction::Get, 1, count)?));
            }
        }
        let [memory, disk] = speeds.map(|speeds| median(&speeds));
        ours.push(disk);
        ratios.push(disk / memory);
    }
    let mut result = bandwidth(&ours);
    result.insert("ratio_memory".into(), round(median(&ratios)));
    result.insert("ratio_of_starts".into(), ratios.iter().map(|v| round(*v)).collect());
    Ok(result)
}

/// PUTs that have reached the disk when they are answered, beside `dd` that does the same. One PUT cannot be faster than its
/// MD5, which is measured too; so are PUTs to a server whose ETags need none.
fn disk_put(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    let objects = Objects::new(4, LARGE);
    let (mut ours, mut theirs, mut digests) = (Vec::new(), Vec::new(), Vec::new());
    let [mut of_dd, mut of_md5, mut of_dd_crc64] = [const { Vec::new() }; 3];
    for _ in 0..bench.starts {
        let dir = disk(bench)?;
        let start = |name, options| -> anyhow::Result<(tempfile::TempDir, Tcp)> {
            let place = tempfile::Builder::new().prefix(name).tempdir_in(dir.path())?;
            let server = on_disk(bench, place.path(), options)?;
            objects.fill(&server)?;
            Ok((place, server))
        };
        let (_md5_place, md5) = start("md5-", "size=1G,durability=full")?;
        let (_crc64_place, crc64) = start("crc64-", "size=1G,durability=full,etag=crc64nvme")?;
        let mut speeds = [const { Vec::new() }; 4];
        for _ in 0..n(8, bench) {
            let put = |server| anyhow::Ok(speed(LARGE, &objects.run(server, Direction::Put, 1, 1)?));
            let dd = gbps(LARGE, dd(&dir.path().join("dd"))?);
            for (speeds, speed) in
                speeds.iter_mut().zip([put(&md5)?, put(&crc64)?, dd, gbps(LARGE, limits::md5(LARGE)?)])
            {
                speeds.push(speed);
            }
        }
        let [put, put_crc64, dd, digest] = speeds.map(|speeds| median(&speeds));
        ours.push(put);
        theirs.push(dd);
        digests.push(digest);
        of_dd.push(put / dd);
        of_md5.push(put / digest);
        of_dd_crc64.push(put_crc64 / dd);
    }
    let mut result = bandwidth(&ours);
    result.insert("ratio_dd".into(), round(median(&of_dd)));
    result.insert("ratio_of_starts".into(), of_dd.iter().map(|v| round(*v)).collect());
    result.insert("of_dd".into(), round(median(&theirs)));
    result.insert("of_md5".into(), round(median(&digests)));
    result.insert("ratio_md5".into(), round(median(&of_md5)));
    result.insert("ratio_dd_crc64nvme".into(), round(median(&of_dd_crc64)));
    Ok(result)
}

/// Writes 64 MiB and waits for the disk.
fn dd(file: &Path) -> anyhow::Result<Duration> {
    let mut command = Command::new("dd");
    command.args(["if=/dev/zero", "bs=1M", "count=64", "conv=fsync", "status=none"]);
    command.arg(format!("of={}", file.display()));
    let start = Instant::now();
    let status = command.status().context("cannot run dd")?;
    let time = start.elapsed();
    ensure!(status.success(), "dd: {status}");
    std::fs::remove_file(file)?;
    Ok(time)
}

/// The server's memory at its most, while 100 clients read 1 GiB each; a quarter of that for a look.
fn many_readers(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    const CLIENTS: usize = 100;
    const SIZE: usize = 1 << 30;
    let each = n(SIZE, bench);
    let path = format!("/{BUCKET}/large");
    let put = load::head("PUT", &path, Some(SIZE));
    let body = bytes(SIZE, 12);
    let mut get = load::head("GET", &path, None);
    if each < SIZE {
        get.truncate(get.len() - 2);
        get.extend_from_slice(format!("Range: bytes=0-{}\r\n\r\n", each - 1).as_bytes());
    }
    let (mut rss, mut speeds) = (Vec::new(), Vec::new());
    for _ in 0..bench.starts {
        let dir = disk(bench)?;
        let server = on_disk(bench, dir.path(), "size=2G,maxpart=1G")?;
        load::run(server.address, 1, [Job { head: &put, body: &body, answer: None }], &mut |_, _| ())?;
        let job = Job { head: &get, body: &[], answer: Some(each) };
        let (done, most) = (AtomicBool::new(false), AtomicU64::new(0));
        let outcome = thread::scope(|scope| {
            let watch = scope.spawn(|| -> anyhow::Result<()> {
                while !done.load(Relaxed) {
                    most.fetch_max(server.rss_kib()?, Relaxed);
                    thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            });
            let outcome = load::run(server.address, CLIENTS, vec![job; CLIENTS], &mut |_, _| ());
            done.store(true, Relaxed);
            watch.join().ok().context("the watch failed")??;
            outcome
        })?;
        rss.push(f64::from(u32::try_from(most.load(Relaxed))?));
        speeds.push(gbps(CLIENTS * each, outcome.time));
    }
    let mut result = Map::new();
    result.insert("rss_kib".into(), round(rss.iter().copied().fold(0.0, f64::max)));
    result.insert("rss_kib_of_starts".into(), rss.iter().map(|v| round(*v)).collect());
    result.insert("gbps".into(), round(median(&speeds)));
    result.insert("clients".into(), json!(CLIENTS));
    result.insert("mib_of_client".into(), json!(each >> 20));
    Ok(result)
}

/// Where objects are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Memory,
    Disk,
}

/// Pages of 1,000 keys at random places of a bucket with a million; with a quarter of that for a look.
fn list(bench: &Bench, keep: Keep) -> anyhow::Result<Map<String, Value>> {
    const PAGE: usize = 1000;
    const AT_ONCE: usize = 10_000;
    let count = n(1_000_000, bench);
    let pages = n(400, bench);
    let key = |n: usize| format!("data/object-{n:07}");
    let dir = disk(bench)?;
    let options = "size=1G,objects=1100000";
    let start = || match keep {
        Keep::Memory => peers::ernic(&bench.server, options),
        // What has not reached the disk does not matter here.
        Keep::Disk => on_disk(bench, dir.path(), &format!("{options},durability=os")),
    };
    let fill = |server: &Tcp| -> anyhow::Result<()> {
        for first in (0..count).step_by(AT_ONCE) {
            let heads: Vec<_> = (first..count.min(first + AT_ONCE))
                .map(|n| load::head("PUT", &format!("/{BUCKET}/{}", key(n)), Some(0)))
                .collect();
            let jobs = heads.iter().map(|head| Job { head, body: &[], answer: None });
            load::run(server.address, 16, jobs, &mut |_, _| ())?;
        }
        Ok(())
    };
    let mut random = numbers(1);
    let mut starts = Vec::new();
    for number in 0..bench.starts {
        let server = start()?;
        // What is on disk is there again.
        if keep == Keep::Memory || number == 0 {
            fill(&server)?;
            if keep == Keep::Disk {
                // The server is killed in the end, and the last second of `durability=os` would go with it.
                thread::sleep(Duration::from_secs(3));
            }
        }
        let firsts: Vec<usize> = (0..pages).map(|_| random() % (count - PAGE)).collect();
        let path = |n: usize| format!("/{BUCKET}?list-type=2&start-after={}", escape(&key(n)));
        let heads: Vec<_> = firsts.iter().map(|&first| load::head("GET", &path(first), None)).collect();
        let jobs = heads.iter().map(|head| Job { head, body: &[], answer: None });
        let mut texts = vec![Vec::new(); pages];
        let outcome = load::run(server.address, 1, jobs, &mut |n, piece| {
            if let Some(text) = texts.get_mut(n) {
                text.extend_from_slice(piece);
            }
        })?;
        for (first, text) in firsts.iter().zip(&texts) {
            let keys = between(str::from_utf8(text)?, "<Key>", "</Key>");
            ensure!(keys.eq((first + 1..=first + PAGE).map(key)), "the page behind key {first} is not the right one");
        }
        starts.push(outcome.latencies);
    }
    let mut result = latency(&starts);
    result.insert("objects".into(), json!(count));
    Ok(result)
}

/// Numbers that repeat with the seed (Knuth's MMIX).
fn numbers(seed: u64) -> impl FnMut() -> usize {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0)
    }
}
