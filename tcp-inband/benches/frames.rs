//! The endpoint's share of a request: from frames of the guest to frames for the guest, with a guest that costs next to
//! nothing (it patches templates and looks at lengths). `cargo bench -p tcp-inband --profile quick`.
#![allow(missing_docs, clippy::cast_possible_truncation)]

use std::{
    future::{Future, poll_fn},
    hint::black_box,
    io::IoSlice,
    net::Ipv4Addr,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use criterion::{Bencher, Criterion, Throughput, criterion_group, criterion_main};
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::Incoming,
    rt::{Read, ReadBuf, Write},
    server::conn::http1,
    service::service_fn,
};
use rustix::time::{ClockId, clock_gettime};
use tcp_inband::{Config, Endpoint, FrameSink, Stream, exec::Executor};

const IP: Ipv4Addr = Ipv4Addr::new(192, 168, 200, 1);
const GET: &[u8] = b"GET /bucket/key HTTP/1.1\r\nhost: 192.168.200.1:9000\r\nuser-agent: bench\r\naccept: */*\r\n\r\n";

/// Receive buffers of the guest, used over and over, and what its TCP remembers.
struct Guest {
    buffer: Vec<u8>,
    frame: Vec<u8>,
    port: u16,
    seq: u32,
    ack: u32,
    /// Right edge of the endpoint's window, and that window's scale.
    edge: u32,
    shift: u32,
    received: u64,
    frames: u64,
}

impl FrameSink for Guest {
    fn room(&self) -> usize {
        512
    }

    fn send(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        fill(&mut self.buffer[..len]);
        let word = |at: usize| u32::from_be_bytes(self.buffer[at..at + 4].try_into().unwrap());
        let payload = (len - 34 - usize::from(self.buffer[46] >> 4) * 4) as u32;
        let syn = u32::from(self.buffer[47] >> 1 & 1);
        self.ack = word(38).wrapping_add(payload + syn);
        let window = u32::from(u16::from_be_bytes([self.buffer[48], self.buffer[49]])) << (self.shift * (1 - syn));
        self.edge = word(42).wrapping_add(window);
        self.received += u64::from(payload);
        self.frames += 1;
    }
}

impl Guest {
    fn new(port: u16, buffer: usize) -> Self {
        Self {
            shift: buffer.ilog2() - 15,
            buffer: vec![0; 10_000],
            frame: Vec::new(),
            port,
            seq: 0,
            ack: 0,
            edge: 0,
            received: 0,
            frames: 0,
        }
    }

    /// A frame with the given flags, options and payload; no checksums, as with offloads.
    fn frame(&mut self, flags: u8, options: &[u8], payload: &[u8]) -> &[u8] {
        let header = 20 + options.len();
        self.frame.clear();
        self.frame.extend([2, 0x53, 192, 168, 200, 1, 0x52, 0x54, 0, 1, 2, 3, 8, 0, 0x45, 0]);
        self.frame.extend(((20 + header + payload.len()) as u16).to_be_bytes());
        self.frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 192, 168, 200, 2, 192, 168, 200, 1]);
        self.frame.extend(self.port.to_be_bytes());
        self.frame.extend(9000u16.to_be_bytes());
        self.frame.extend(self.seq.to_be_bytes());
        self.frame.extend(self.ack.to_be_bytes());
        self.frame.extend([(header as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        self.frame.extend(options);
        self.frame.extend(payload);
        self.seq = self.seq.wrapping_add(payload.len() as u32 + u32::from(flags >> 1 & 1));
        &self.frame
    }
}

/// Processor time of this thread: the machine may be busy with other things.
fn measure(b: &mut Bencher<'_>, mut f: impl FnMut()) {
    let time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it is positive");
    b.iter_custom(|count| {
        let start = time();
        for _ in 0..count {
            f();
        }
        time() - start
    });
}

struct Bench {
    endpoint: Endpoint,
    executor: Executor,
    guest: Guest,
    start: Instant,
}

impl Bench {
    fn new<F: Future<Output = ()> + 'static>(mtu: usize, buffer: usize, serve: impl FnOnce(Stream) -> F) -> Self {
        let config = Config { mtu, buffer, ..Config::new(IP, 9000) };
        let mut bench = Self {
            endpoint: Endpoint::new(config, Duration::ZERO).unwrap(),
            executor: Executor::new(Arc::new(|| {})),
            guest: Guest::new(40_000, buffer),
            start: Instant::now(),
        };
        let [hi, lo] = (mtu as u16 - 40).to_be_bytes();
        bench.give(2, &[2, 4, hi, lo, 1, 3, 3, 7], b"");
        bench.turn();
        bench.give(16, &[], b"");
        assert!(bench.executor.spawn(serve(bench.endpoint.accept().unwrap())).is_ok());
        bench.turn();
        bench
    }

    fn give(&mut self, flags: u8, options: &[u8], payload: &[u8]) {
        let now = self.start.elapsed();
        self.endpoint.ingress(now, self.guest.frame(flags, options, payload));
    }

    /// The event loop, until there is nothing to do but for the guest.
    fn turn(&mut self) {
        loop {
            self.executor.run_ready();
            let now = self.start.elapsed();
            let more = self.endpoint.poll(now, &mut self.guest).more;
            if !more && self.executor.is_idle() {
                return;
            }
        }
    }

    /// Takes `bytes`, acknowledging each burst.
    fn download(&mut self, bytes: u64) {
        let end = self.guest.received + bytes;
        while self.guest.received < end {
            self.give(16, &[], b"");
            self.turn();
        }
    }

    /// Sends `bytes` in pieces of `piece`, as the window allows.
    fn upload(&mut self, bytes: usize, piece: &[u8]) {
        let mut left = bytes;
        while left > 0 {
            let mut burst = 0;
            while left > 0 && burst < 64 && self.guest.edge.wrapping_sub(self.guest.seq) as usize >= piece.len() {
                self.give(16, &[], piece);
                left = left.saturating_sub(piece.len());
                burst += 1;
            }
            self.turn();
        }
    }
}

/// Writes the same megabyte for ever, as a store's pieces come.
async fn source(mut stream: Stream, block: Bytes) {
    loop {
        let mut at = 0;
        while at < block.len() {
            let slices = [IoSlice::new(&block[at..])];
            match poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &slices)).await {
                Ok(count) => at += count,
                Err(_) => return,
            }
        }
    }
}

async fn discard(mut stream: Stream) {
    let mut space = vec![0; 128 << 10];
    loop {
        let count = poll_fn(|cx| {
            let mut buf = ReadBuf::new(&mut space);
            Pin::new(&mut stream).poll_read(cx, buf.unfilled()).map_ok(|()| buf.filled().len())
        });
        match count.await {
            Ok(0) | Err(_) => return,
            Ok(count) => drop(black_box(count)),
        }
    }
}

async fn http(stream: Stream, body: Bytes) {
    let service = service_fn(move |_: Request<Incoming>| {
        let body = body.clone();
        async move { Ok::<_, std::convert::Infallible>(Response::new(Full::new(body))) }
    });
    let _ = http1::Builder::new().half_close(true).serve_connection(stream, service).await;
}

fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("request");
    for mtu in [1500, 9000] {
        let mut bench = Bench::new(mtu, 64 << 10, |stream| http(stream, Bytes::from(vec![7; 4096])));
        group.bench_function(format!("http_get_4k/{mtu}"), |b| {
            measure(b, || {
                let before = bench.guest.received;
                bench.give(24, &[], GET);
                bench.turn();
                assert!(bench.guest.received > before + 4096);
            });
        });
    }
    group.finish();
}

fn bulk(c: &mut Criterion) {
    const BYTES: usize = 64 << 20;
    let mut group = c.benchmark_group("bulk");
    group.throughput(Throughput::Bytes(BYTES as u64)).sample_size(20);
    for (mtu, buffer) in [(1500, 64 << 10), (9000, 64 << 10), (1500, 256 << 10), (9000, 256 << 10)] {
        let block = Bytes::from(vec![7; 1 << 20]);
        let mut bench = Bench::new(mtu, buffer, |stream| source(stream, block));
        let name = format!("{mtu}/{}K", buffer >> 10);
        group.bench_function(format!("download/{name}"), |b| measure(b, || bench.download(BYTES as u64)));
        let mut bench = Bench::new(mtu, buffer, |stream| http(stream, Bytes::from(vec![7; BYTES])));
        group.bench_function(format!("http_get/{name}"), |b| {
            measure(b, || {
                bench.give(24, &[], GET);
                bench.download(BYTES as u64 + 1);
            });
        });
        let mut bench = Bench::new(mtu, buffer, discard);
        let piece = vec![7; mtu - 40];
        group.bench_function(format!("upload/{name}"), |b| measure(b, || bench.upload(BYTES, &piece)));
    }
    let mut bench = Bench::new(1500, 64 << 10, discard);
    let piece = vec![7; 22 * 1460];
    group.bench_function("upload/tso/64K", |b| measure(b, || bench.upload(BYTES, &piece)));
    group.finish();
}

criterion_group!(benches, small, bulk);
criterion_main!(benches);
