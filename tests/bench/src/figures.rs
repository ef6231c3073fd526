//! The figures: what is done, how often, and what is asked of each.

use std::{
    cell::Cell,
    collections::BTreeSet,
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use ionic_driver::{TxOffload, check, net::PATIENCE};
use md5::{Digest, Md5};
use serde_json::{Map, Value, json};

use crate::{
    Bench,
    guest::{self, ENDPOINT, Http, Net, driver, guest},
    limits, rdma, serve,
    server::Server,
    stats::{Samples, bandwidth, gbps, latency, median, round},
    verbs,
};

/// One key of the schema.
#[derive(Debug)]
pub struct Figure {
    /// The key.
    pub key: &'static str,
    /// What is asked of its fields.
    pub goals: &'static [Goal],
    /// Measures it.
    pub run: fn(&Bench) -> anyhow::Result<Map<String, Value>>,
}

/// What is asked of a field.
#[derive(Debug, Clone, Copy)]
pub struct Goal {
    /// The field.
    pub field: &'static str,
    /// How it compares to `limit` when the goal is reached.
    pub bound: Bound,
    /// The limit.
    pub limit: f64,
}

/// How a figure compares to its limit.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// It is not above it.
    AtMost,
    /// It is not below it.
    AtLeast,
}

pub const fn at_most(field: &'static str, limit: f64) -> Goal {
    Goal { field, bound: Bound::AtMost, limit }
}

pub const fn at_least(field: &'static str, limit: f64) -> Goal {
    Goal { field, bound: Bound::AtLeast, limit }
}

/// All figures, in the order in which they are taken.
pub fn all() -> impl Iterator<Item = &'static Figure> {
    FIGURES.iter().chain(rdma::FIGURES).chain(verbs::FIGURES).chain(serve::FIGURES)
}

/// What the guest does without RDMA.
const FIGURES: &[Figure] = &[
    Figure { key: "doorbell_to_rx", goals: &[at_most("p50_us", 15.0)], run: doorbell_to_rx },
    Figure { key: "http_get_4k", goals: &[at_most("p50_us", 60.0)], run: http_get_4k },
    Figure { key: "http_get_4k_newconn", goals: &[], run: http_get_4k_newconn },
    Figure {
        key: "http_get_64m_mtu1500",
        goals: &[at_least("gbps", 1.0)],
        run: |bench| transfer(bench, Direction::Get, 1500),
    },
    Figure {
        key: "http_get_64m_mtu9000",
        goals: &[at_least("gbps", 2.5)],
        run: |bench| transfer(bench, Direction::Get, 9000),
    },
    Figure {
        key: "http_put_64m_mtu1500",
        goals: &[at_least("ratio_md5", 0.5)],
        run: |bench| transfer(bench, Direction::Put, 1500),
    },
    Figure {
        key: "http_put_64m_mtu9000",
        goals: &[at_least("ratio_md5", 0.7)],
        run: |bench| transfer(bench, Direction::Put, 9000),
    },
    Figure { key: "objects_60k_get", goals: &[at_most("ratio", 1.2)], run: objects_60k_get },
    Figure { key: "list_10k_pages", goals: &[], run: list_10k_pages },
    Figure { key: "idle", goals: &[at_most("rss_kib", 40.0 * 1024.0), at_most("cpu_ms_per_s", 1.0)], run: idle },
];

/// TCP buffers of the guest for small answers, and for 64 MiB: what Linux grows a busy connection's to (`tcp_rmem`).
pub const SMALL_BUFFER: usize = 64 << 10;
const LARGE_BUFFER: usize = 4 << 20;
/// Exchanges that are not counted, so that both sides have been where they will be again.
pub const WARM: usize = 200;

/// How often something is done, unless only a look is wanted.
pub fn n(count: usize, bench: &Bench) -> usize {
    count / bench.thrift
}

/// Bytes that do not repeat (xorshift64*).
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut words = Vec::with_capacity(len + 8);
    while words.len() < len {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        words.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    words.truncate(len);
    words
}

/// The ETag of a body.
pub fn etag(body: &[u8]) -> String {
    format!("\"{}\"", hex::encode(Md5::digest(body)))
}

/// An ARP request for the endpoint (RFC 826).
fn arp_request(mac: [u8; 6]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend([192, 168, 200, 100, 0, 0, 0, 0, 0, 0]);
    frame.extend(ENDPOINT.octets());
    frame
}

fn doorbell_to_rx(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    let mut starts = Vec::new();
    for _ in 0..bench.starts {
        let server = Server::start(&bench.server, "s3")?;
        let mut nic = driver(&server)?;
        nic.up()?;
        let request = arp_request(nic.mac);
        let mut samples = Samples::default();
        for i in 0..WARM + n(20_000, bench) {
            nic.post(0, &request, TxOffload::None, None)?;
            let seen: Cell<Option<Instant>> = Cell::new(None);
            let right = Cell::new(false);
            let start = Instant::now();
            nic.flush(0)?;
            let done = nic.poll_until(
                PATIENCE,
                &mut |frame| {
                    seen.set(Some(Instant::now()));
                    let sound = check::verify(frame.bytes, frame.csum()).is_ok();
                    // A reply, from the address that was asked for.
                    let reply =
                        frame.bytes.get(20..22) == Some(&[0, 2]) && frame.bytes.get(28..32) == Some(&ENDPOINT.octets());
                    right.set(sound && reply);
                },
                &mut |_| seen.get().is_some(),
            )?;
            let seen = seen.get().filter(|_| done && right.get()).context("no ARP reply")?;
            if i >= WARM {
                samples.push(seen - start);
            }
        }
        starts.push(samples);
    }
    Ok(latency(&starts))
}

/// GETs the object `count` times on a kept connection.
fn get_many(
    net: &mut Net,
    http: &mut Http,
    paths: &mut dyn Iterator<Item = &String>,
    size: usize,
) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    for path in paths {
        let request = Http::request("GET", path, None);
        let mut came = 0;
        let start = Instant::now();
        let answer = http.exchange(net, &request, &[], &mut |piece| came += piece.len())?;
        samples.push(answer.at - start);
        ensure!(came == size, "{came} bytes of {size}");
    }
    Ok(samples)
}

fn http_get_4k(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    let body = bytes(4096, 1);
    let path = "/ernic/object".to_owned();
    let mut starts = Vec::new();
    for _ in 0..bench.starts {
        let server = Server::start(&bench.server, "s3")?;
        let mut net = guest(&server, 1500, SMALL_BUFFER)?;
        let mut http = Http::connect(&mut net)?;
        http.put(&mut net, &path, &body, &etag(&body))?;
        http.get_and_compare(&mut net, &path, &body)?;
        get_many(&mut net, &mut http, &mut std::iter::repeat_n(&path, WARM), body.len())?;
        starts.push(get_many(&mut net, &mut http, &mut std::iter::repeat_n(&path, n(10_000, bench)), body.len())?);
        guest::check(&net)?;
    }
    Ok(latency(&starts))
}

/// From the SYN to the last byte; closing is not counted.
fn http_get_4k_newconn(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    let body = bytes(4096, 2);
    let path = "/ernic/object";
    let request = Http::request("GET", path, None);
    let mut starts = Vec::new();
    for _ in 0..bench.starts {
        let server = Server::start(&bench.server, "s3")?;
        let mut net = guest(&server, 1500, SMALL_BUFFER)?;
        let mut http = Http::connect(&mut net)?;
        http.put(&mut net, path, &body, &etag(&body))?;
        http.get_and_compare(&mut net, path, &body)?;
        http.close(&mut net)?;
        let mut samples = Samples::default();
        for i in 0..WARM + n(2_000, bench) {
            let mut came = 0;
            let start = Instant::now();
            let mut http = Http::connect(&mut net)?;
            let answer = http.exchange(&mut net, &request, &[], &mut |piece| came += piece.len())?;
            if i >= WARM {
                samples.push(answer.at - start);
            }
            ensure!(came == body.len(), "{came} bytes of {}", body.len());
            http.close(&mut net)?;
        }
        starts.push(samples);
        guest::check(&net)?;
    }
    Ok(latency(&starts))
}

/// Which way the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the guest.
    Get,
    /// From the guest.
    Put,
}

/// 64 MiB in one request, alternating with the limits.
fn transfer(bench: &Bench, direction: Direction, mtu: u32) -> anyhow::Result<Map<String, Value>> {
    const SIZE: usize = 64 << 20;
    /// What a program reads at once (`CURL_MAX_READ_SIZE` is larger, `cat` smaller).
    const READ: usize = 128 << 10;
    let body = bytes(SIZE, 3);
    let md5 = etag(&body);
    let path = "/ernic/object";
    let (mut ours, mut per_cpu, mut to_memcpy, mut to_md5) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.starts {
        let server = Server::start(&bench.server, "s3")?;
        let mut net = guest(&server, mtu, LARGE_BUFFER)?;
        let mut http = Http::connect(&mut net)?;
        http.put(&mut net, path, &body, &md5)?;
        http.get_and_compare(&mut net, path, &body)?;
        let (mut transfers, mut copies, mut digests) = (Vec::new(), Vec::new(), Vec::new());
        let mut read = vec![0; READ];
        let mut used = Duration::ZERO;
        for _ in 0..n(4, bench) {
            let before = server.cpu()?;
            let start = Instant::now();
            let answer = match direction {
                Direction::Put => http.put(&mut net, path, &body, &md5)?,
                Direction::Get => {
                    let mut came = 0;
                    let request = Http::request("GET", path, None);
                    let answer = http.exchange(&mut net, &request, &[], &mut |piece| {
                        for part in piece.chunks(READ) {
                            if let Some(to) = read.get_mut(..part.len()) {
                                to.copy_from_slice(part);
                                black_box(to);
                            }
                        }
                        came += piece.len();
                    })?;
                    ensure!(came == SIZE, "{came} bytes of {SIZE}");
                    answer
                }
            };
            transfers.push(gbps(SIZE, answer.at - start));
            used += server.cpu()? - before;
            copies.push(gbps(SIZE, limits::memcpy(SIZE)?));
            if direction == Direction::Put {
                digests.push(gbps(SIZE, limits::md5(SIZE)?));
            }
        }
        http.get_and_compare(&mut net, path, &body)?;
        guest::check(&net)?;
        ours.push(median(&transfers));
        per_cpu.push(gbps(SIZE * n(4, bench), used));
        to_memcpy.push(median(&transfers) / median(&copies));
        to_md5.push(median(&transfers) / median(&digests));
    }
    let mut result = bandwidth(&ours);
    result.insert("ratio_memcpy".into(), round(median(&to_memcpy)));
    // What the server would do with a processor of its own: other load on the machine does not show in it.
    result.insert("gbps_per_server_cpu".into(), round(median(&per_cpu)));
    if direction == Direction::Put {
        result.insert("ratio_md5".into(), round(median(&to_md5)));
        result.insert("ratio_md5_of_starts".into(), to_md5.iter().map(|v| round(*v)).collect());
    }
    Ok(result)
}

/// Keys for ever, in an order that no cache foresees.
fn shuffled(paths: &[String]) -> impl Iterator<Item = &String> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        paths.get(usize::try_from(state >> 33).unwrap_or(0) % paths.len().max(1))
    })
    .flatten()
}

/// Two servers, one with 60 objects and one with 60,000, asked in short turns so that what else the machine does hits both alike: the
/// ratio is that of the medians of random GETs.
fn objects_60k_get(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    const FEW: usize = 60;
    const MANY: usize = 60_000;
    const TURN: usize = 100;
    let body = bytes(4096, 4);
    let md5 = etag(&body);
    let paths: Vec<String> = (0..MANY).map(|i| format!("/ernic/data/object-{i:06}")).collect();
    let (mut ratios, mut few, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.starts {
        let mut sides = Vec::new();
        for count in [FEW, MANY] {
            let server = Server::start(&bench.server, "s3:size=1G,objects=100000")?;
            let mut net = guest(&server, 1500, SMALL_BUFFER)?;
            let mut http = Http::connect(&mut net)?;
            let paths = paths.get(..count).unwrap_or_default();
            for path in paths {
                http.put(&mut net, path, &body, &md5)?;
            }
            sides.push((server, net, http, shuffled(paths), Samples::default()));
        }
        for turn in 0..=n(40, bench) {
            for (_, net, http, paths, samples) in &mut sides {
                let more = get_many(net, http, &mut paths.by_ref().take(TURN), body.len())?;
                if turn > 0 {
                    samples.extend(&more);
                }
            }
        }
        let mut p50 = Vec::new();
        for (_, net, _, _, samples) in &sides {
            guest::check(net)?;
            p50.push(samples.percentile(50));
        }
        if let [with_few, with_all] = *p50 {
            ratios.push(with_all / with_few);
            few.push(with_few);
            many.push(with_all);
        }
    }
    let mut result = Map::new();
    result.insert("ratio".into(), round(median(&ratios)));
    result.insert("ratio_of_starts".into(), ratios.iter().map(|v| round(*v)).collect());
    result.insert("p50_us_60".into(), round(median(&few)));
    result.insert("p50_us_60k".into(), round(median(&many)));
    Ok(result)
}

/// The text between `open` and `close`, wherever they are.
pub fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close).map(|(inside, _)| inside))
}

fn list_10k_pages(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    const OBJECTS: usize = 10_000;
    let keys: BTreeSet<String> = (0..OBJECTS).map(|i| format!("data/object-{i:06}")).collect();
    let body = bytes(16, 5);
    let md5 = etag(&body);
    let mut starts = Vec::new();
    let mut pages = 0;
    for _ in 0..bench.starts {
        let server = Server::start(&bench.server, "s3:objects=10000")?;
        let mut net = guest(&server, 1500, LARGE_BUFFER)?;
        let mut http = Http::connect(&mut net)?;
        for key in &keys {
            http.put(&mut net, &format!("/ernic/{key}"), &body, &md5)?;
        }
        let mut walks = Vec::new();
        for _ in 0..n(4, bench) {
            let mut found = Vec::with_capacity(OBJECTS);
            let mut token = String::new();
            let mut total = Duration::ZERO;
            pages = 0;
            loop {
                let request = Http::request("GET", &format!("/ernic?list-type=2{token}"), None);
                let mut page = Vec::with_capacity(1 << 20);
                let start = Instant::now();
                let answer = http.exchange(&mut net, &request, &[], &mut |piece| page.extend_from_slice(piece))?;
                total += answer.at - start;
                pages += 1;
                let text = str::from_utf8(&page)?;
                found.extend(between(text, "<Key>", "</Key>").map(str::to_owned));
                let Some(next) = between(text, "<NextContinuationToken>", "</NextContinuationToken>").next() else {
                    break;
                };
                token = format!("&continuation-token={}", escape(next));
            }
            ensure!(found.len() == OBJECTS && found.iter().eq(&keys), "the pages do not hold each key exactly once");
            walks.push(total.as_secs_f64() * 1e6);
        }
        guest::check(&net)?;
        starts.push(median(&walks));
    }
    let mut result = Map::new();
    result.insert("total_us".into(), round(median(&starts)));
    result.insert("total_us_of_starts".into(), starts.iter().map(|v| round(*v)).collect());
    result.insert("pages".into(), json!(pages));
    result.insert("keys".into(), json!(OBJECTS));
    Ok(result)
}

/// Percent-encodes all but unreserved characters (RFC 3986 §2.3).
pub fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// After use: memory beyond what is stored, and what the processor does for a guest that is attached and silent, except that its
/// driver looks at the link every 5 s, as Linux does.
fn idle(bench: &Bench) -> anyhow::Result<Map<String, Value>> {
    const SIZE: usize = 64 << 20;
    const LAST: Duration = Duration::from_secs(10);
    let body = bytes(SIZE, 6);
    let md5 = etag(&body);
    // All at once: what idle servers take from each other is nothing.
    let mut servers = Vec::new();
    for _ in 0..bench.starts {
        let server = Server::start(&bench.server, "s3")?;
        let mut net = guest(&server, 1500, LARGE_BUFFER)?;
        let mut http = Http::connect(&mut net)?;
        for _ in 0..2 {
            http.put(&mut net, "/ernic/object", &body, &md5)?;
        }
        http.get_and_compare(&mut net, "/ernic/object", &body)?;
        ensure!(net.nic.carrier, "the link is down");
        servers.push((server, net));
    }
    // What was freed goes back to the system within seconds.
    thread::sleep(Duration::from_secs(3));
    let before = servers.iter().map(|(server, _)| server.cpu()).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    for half in 1..=2 {
        thread::sleep((LAST * half / 2).saturating_sub(start.elapsed()));
        for (_, net) in &mut servers {
            net.nic.watchdog()?;
        }
    }
    let (mut rss, mut cpu) = (Vec::new(), Vec::new());
    for ((server, net), before) in servers.iter().zip(before) {
        let used = server.cpu()? - before;
        cpu.push(used.as_secs_f64() * 1e3 / start.elapsed().as_secs_f64());
        let contents = u32::try_from(SIZE >> 10)?;
        rss.push(f64::from(u32::try_from(server.rss_kib()?)?) - f64::from(contents));
        guest::check(net)?;
    }
    let mut result = Map::new();
    result.insert("rss_kib".into(), round(median(&rss)));
    result.insert("rss_kib_of_starts".into(), rss.iter().map(|v| round(*v)).collect());
    result.insert("cpu_ms_per_s".into(), round(median(&cpu)));
    result.insert("cpu_ms_per_s_of_starts".into(), cpu.iter().map(|v| round(*v)).collect());
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_schema_once_each() {
        let keys: BTreeSet<&str> = all().map(|figure| figure.key).collect();
        assert_eq!(keys.len(), all().count());
        assert_eq!(keys.len(), 10 + 15 + 7 + 13);
    }

    #[test]
    fn text_between_tags() {
        let text = "<Key>a</Key><Size>1</Size><Key>b/c</Key><Key>cut";
        assert_eq!(between(text, "<Key>", "</Key>").collect::<Vec<_>>(), ["a", "b/c"]);
        assert_eq!(escape("a/b=+é~"), "a%2Fb%3D%2B%C3%A9~");
    }

    #[test]
    fn bytes_differ_and_repeat_by_seed() {
        assert_eq!(bytes(100, 7), bytes(100, 7));
        assert_ne!(bytes(100, 7), bytes(100, 9));
        assert_eq!(bytes(13, 7).len(), 13);
    }
}
