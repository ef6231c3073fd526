//! The endpoint and a second TCP joined by frame queues: whole transfers, many connections, closes, losses, HTTP.
#![allow(clippy::cast_possible_truncation)]

mod common;

use std::{cell::RefCell, convert::Infallible, io, rc::Rc, time::Duration};

use bytes::Bytes;
use common::{
    net::{Faults, Net, read_exact, read_some, shut_down, write_all},
    *,
};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use proptest::prelude::*;
use smoltcp::socket::tcp::{Socket, State};
use tcp_inband::{Config, Stream, Timeouts, exec::Task};

/// Requests of our own making: lengths of upload and download, then the upload. Answered with its hash and the download.
async fn transfers(mut stream: Stream) -> io::Result<()> {
    loop {
        let first = read_some(&mut stream, 8).await?;
        if first.is_empty() {
            shut_down(stream).await;
            return Ok(());
        }
        let mut head = first;
        head.extend(read_exact(&mut stream, 8 - head.len()).await?);
        let length = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
        let upload = read_exact(&mut stream, length(0)).await?;
        write_all(&mut stream, &hash(&upload).to_le_bytes()).await?;
        write_all(&mut stream, &pattern(length(4), 42)).await?;
    }
}

fn serve_transfers(stream: Stream) -> Task {
    Box::pin(async move { drop(transfers(stream).await) })
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn request(upload: usize, download: usize) -> Vec<u8> {
    let mut bytes = [upload as u32, download as u32].map(u32::to_le_bytes).concat();
    bytes.extend(pattern(upload, upload as u64));
    bytes
}

fn answer(upload: usize, download: usize) -> Vec<u8> {
    let mut bytes = hash(&pattern(upload, upload as u64)).to_le_bytes().to_vec();
    bytes.extend(pattern(download, 42));
    bytes
}

/// Starts a connection with one request and checks nothing yet.
fn start(net: &mut Net, port: u16, upload: usize, download: usize) -> usize {
    net.connect(port, request(upload, download), Some(8 + download))
}

fn check(net: &Net, job: usize, upload: usize, download: usize) {
    assert!(net.jobs[job].received == answer(upload, download), "job {job}: bytes differ");
}

#[test]
fn bulk_in_both_directions() {
    const MIB: usize = 1 << 20;
    for (mtu, room, buffer) in
        [(1500, 1 << 20, 64 << 10), (1500, 3, 64 << 10), (9000, 64, 64 << 10), (9000, 1, 256 << 10)]
    {
        let mut net = Net::new(Config { mtu, buffer, ..config() }, serve_transfers);
        net.room = room;
        let (up, down) = (start(&mut net, 1000, 5 * MIB + 17, 0), start(&mut net, 1001, 3, 7 * MIB + 1));
        net.finish(secs(60));
        check(&net, up, 5 * MIB + 17, 0);
        check(&net, down, 3, 7 * MIB + 1);
    }
}

#[test]
fn many_requests_on_one_connection() {
    let mut net = Net::new(config(), serve_transfers);
    let sizes = [(0, 0), (1, 100_000), (100_000, 1), (5000, 5000), (0, 1460), (0, 1461)];
    let send: Vec<u8> = sizes.iter().flat_map(|&(up, down)| request(up, down)).collect();
    let expected: Vec<u8> = sizes.iter().flat_map(|&(up, down)| answer(up, down)).collect();
    // All at once, as a pipelining client does.
    let job = net.connect(1000, send, Some(expected.len()));
    net.finish(secs(10));
    assert!(net.jobs[job].received == expected);
}

#[test]
fn sixty_four_at_once_in_one_burst() {
    let mut net = Net::new(config(), serve_transfers);
    for n in 0..64 {
        start(&mut net, 1000 + n, 100, 50_000 + usize::from(n));
    }
    net.finish(secs(10));
    for n in 0..64 {
        check(&net, n, 100, 50_000 + n);
    }
    let stats = net.endpoint.stats();
    assert_eq!((stats.accepted, stats.parked, stats.evicted, stats.aborted, stats.strays), (64, 0, 0, 0, 0));
    // All at once: none waited for a repeated SYN.
    assert!(net.now < secs(2));
}

#[test]
fn case_21_seventy_connections_at_once_are_all_served() {
    let mut net = Net::new(config(), serve_transfers);
    for n in 0..70 {
        start(&mut net, 1000 + n, 10, 20_000);
    }
    net.finish(secs(30));
    for n in 0..70 {
        check(&net, n, 10, 20_000);
    }
    let stats = net.endpoint.stats();
    assert_eq!((stats.accepted, stats.syns_dropped, stats.aborted, stats.strays), (70, 0, 0, 0));
}

#[test]
fn case_21_seventy_that_keep_their_connections() {
    // A client with a pool: it does not close after the answer, but when the server does.
    let mut net = Net::new(config(), serve_transfers);
    let expected = answer(10, 1000);
    for n in 0..70 {
        net.connect(1000 + n, request(10, 1000), None);
    }
    let all_answered = net.run(secs(30), |net| net.jobs.iter().all(|job| job.received.len() == 1008));
    assert!(all_answered, "{:?}", net.endpoint.stats());
    assert!(net.jobs.iter().all(|job| job.received == expected && !job.was_reset));
    let stats = net.endpoint.stats();
    assert_eq!((stats.accepted, stats.evicted, stats.aborted), (70, 6, 0));
    // Those that were closed were closed in order, and had been idle for a second.
    assert!(net.now >= secs(2) && net.now < secs(4), "{:?}", net.now);
}

#[test]
fn four_hundred_connections_at_once_are_all_served() {
    let mut net = Net::new(config(), serve_transfers);
    for n in 0..400 {
        start(&mut net, 1000 + n, 10, 2000);
    }
    net.finish(secs(300));
    for n in 0..400 {
        check(&net, n, 10, 2000);
    }
    net.run(secs(20), |_| false);
    let stats = net.endpoint.stats();
    assert_eq!((stats.accepted, stats.aborted, stats.live, stats.parked), (400, 0, 0, 0));
    assert!(stats.syns_dropped > 0, "64 places and 256 parked are fewer than 400");
}

#[test]
fn short_connections_by_the_thousand() {
    let mut net = Net::new(Config { max_connections: 8, ..config() }, serve_transfers);
    for round in 0..500u16 {
        for n in 0..4 {
            let job = start(&mut net, 1000 + round * 4 + n, 1, 100);
            // Either side closes first.
            if n % 2 == 0 {
                net.jobs[job].half_close = true;
                net.jobs[job].expect = None;
            }
        }
        net.finish(secs(10));
        // The last FINs.
        net.run(ms(1), |_| false);
        for job in std::mem::take(&mut net.jobs) {
            assert!(job.received == answer(1, 100));
            net.sockets.remove(job.handle);
        }
    }
    net.run(secs(30), |_| false);
    let stats = net.endpoint.stats();
    assert_eq!((stats.accepted, stats.aborted, stats.live, stats.strays), (2000, 0, 0, 0));
    assert_eq!(net.endpoint.poll_at(), None);
}

#[test]
fn the_guest_does_not_read_for_a_while() {
    let mut net = Net::new(config(), serve_transfers);
    let job = start(&mut net, 1000, 0, 1_000_000);
    net.jobs[job].appetite = 0;
    net.run(ms(2_500), |_| false);
    let before = net.endpoint.stats();
    assert!(before.bytes_out < 100_000);
    // The first window update lets it go on.
    net.jobs[job].appetite = 10_000;
    net.finish(secs(30));
    check(&net, job, 0, 1_000_000);
    let frames = net.endpoint.stats().frames_out - before.frames_out;
    assert!(frames < 1_000_000 / 1460 * 2, "{frames}");
}

#[test]
fn the_service_does_not_read_for_a_while() {
    let gate = Rc::new(RefCell::new(false));
    let opened = Rc::clone(&gate);
    let mut net = Net::new(config(), move |stream| {
        let gate = Rc::clone(&opened);
        Box::pin(async move {
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if *gate.borrow() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            drop(transfers(stream).await);
        })
    });
    let job = start(&mut net, 1000, 1_000_000, 5);
    for _ in 0..200 {
        net.turn();
        net.now += ms(10);
    }
    // Our window is full, and that of the guest too.
    assert!(net.jobs[job].sent <= 2 * (64 << 10));
    *gate.borrow_mut() = true;
    net.finish(secs(30));
    check(&net, job, 1_000_000, 5);
}

#[test]
fn no_receive_buffers_for_seconds_and_not_a_frame_twice() {
    let mut net = Net::new(config(), serve_transfers);
    let job = start(&mut net, 1000, 0, 2_000_000);
    net.run(secs(1), |net| net.jobs[0].received.len() > 500_000);
    net.room = 0;
    for _ in 0..100 {
        net.turn();
        net.now += ms(100);
    }
    net.room = 7;
    net.finish(secs(10));
    check(&net, job, 0, 2_000_000);
    // SYN|ACK, ARP, the answer, acknowledgements of the request and the FIN: hardly more than the data needs.
    let frames = net.endpoint.stats().frames_out;
    assert!(frames <= 2_000_008u64.div_ceil(1460) + 40, "{frames}");
}

#[test]
fn lost_frames_are_repaired() {
    for (seed, drop) in [(1, 10), (2, 30), (3, 100)] {
        let mut net = Net::new(config(), serve_transfers);
        net.to_server = Faults { drop, ..Faults::new(seed) };
        net.to_client = Faults { drop, ..Faults::new(seed + 100) };
        let jobs = [start(&mut net, 1000, 200_000, 0), start(&mut net, 1001, 0, 200_000)];
        net.finish(secs(3_000));
        check(&net, jobs[0], 200_000, 0);
        check(&net, jobs[1], 0, 200_000);
    }
}

#[test]
fn the_mtu_changes_while_data_flows() {
    let mut net = Net::new(Config { mtu: 9000, ..config() }, serve_transfers);
    let job = start(&mut net, 1000, 1_000_000, 5_000_000);
    let mut next = 0;
    while !net.jobs[job].finished {
        net.run(secs(1), |net| net.jobs[0].finished || net.jobs[0].received.len() > next);
        next = net.jobs[job].received.len() + 100_000;
        net.endpoint.set_mtu(if next / 100_000 % 2 == 0 { 1500 } else { 9000 });
    }
    check(&net, job, 1_000_000, 5_000_000);
}

#[test]
fn case_22_reset_in_the_middle_and_the_same_port_again() {
    for device_reset in [true, false] {
        let mut net = Net::new(config(), serve_transfers);
        start(&mut net, 1000, 0, 50_000_000);
        net.run(secs(1), |net| net.jobs[0].received.len() > 1_000_000);
        // The guest reboots: its stack forgets everything.
        let job = net.jobs.remove(0);
        net.sockets.remove(job.handle);
        net.wire.rx.clear();
        net.wire.tx.clear();
        if device_reset {
            net.endpoint.reset();
            net.executor.run_ready();
            assert!(net.executor.is_empty(), "the task of the old connection has ended");
        }
        let before = net.now;
        let job = start(&mut net, 1000, 100, 100_000);
        net.finish(secs(10));
        check(&net, job, 100, 100_000);
        assert!(net.now - before < ms(500), "at once");
        net.run(secs(20), |_| false);
        assert_eq!((net.endpoint.stats().live, net.executor.len()), (0, 0));
    }
}

#[test]
fn closes_in_every_order_leave_nothing() {
    /// (guest closes its half after sending, server drops the stream, bytes that the server leaves unread)
    async fn serve(mut stream: Stream, drops: bool, read: usize) {
        let _ = read_exact(&mut stream, read).await;
        let _ = write_all(&mut stream, &pattern(3000, 42)).await;
        if drops { drop(stream) } else { shut_down(stream).await }
    }
    for half_close in [false, true] {
        for drops in [false, true] {
            for unread in [0, 5000] {
                let mut net = Net::new(config(), move |stream| Box::pin(serve(stream, drops, 10_000 - unread)));
                let job = net.connect(1000, pattern(10_000, 1), None);
                net.jobs[job].half_close = half_close;
                net.run(secs(30), |_| false);
                let case = format!("{half_close} {drops} {unread}");
                let job = &net.jobs[job];
                if drops {
                    // Reset: what was written may or may not have come.
                    assert!(job.was_reset || job.finished, "{case}");
                } else {
                    assert!(job.finished && job.received == pattern(3000, 42), "{case}");
                }
                assert_eq!(net.endpoint.stats().live, 0, "{case}");
                assert_eq!(net.endpoint.poll_at(), None, "{case}");
                let state = net.sockets.get::<Socket<'_>>(job.handle).state();
                assert!(matches!(state, State::Closed | State::TimeWait), "{case}: {state}");
            }
        }
    }
}

#[test]
fn a_fin_ack_without_room_is_not_lost() {
    // The guest's last FIN is acknowledged from egress: its place must not be used before that has left.
    let mut net = Net::new(Config { max_connections: 1, ..config() }, serve_transfers);
    let first = net.connect(1000, request(0, 100), Some(108));
    net.run(secs(1), |net| net.jobs[0].received.len() == 108);
    let second = start(&mut net, 1001, 0, 100);
    net.room = 0;
    for _ in 0..50 {
        net.turn();
        net.now += ms(1);
    }
    net.room = 100;
    let before = net.now;
    net.finish(secs(10));
    check(&net, second, 0, 100);
    let state = net.sockets.get::<Socket<'_>>(net.jobs[first].handle).state();
    assert!(matches!(state, State::Closed | State::TimeWait), "{state}");
    assert!(net.now - before < ms(900), "without a retransmission");
}

// HTTP

async fn echo(request: Request<Incoming>) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let body = match request.uri().path() {
        "/big" => Bytes::from(pattern(3_000_000, 9)),
        "/refuse" => {
            let body = Full::new(Bytes::from_static(b"no")).boxed();
            return Ok(Response::builder().status(403).header("connection", "close").body(body).unwrap());
        }
        _ => request.into_body().collect().await.map(|all| all.to_bytes()).unwrap_or_default(),
    };
    Ok(Response::new(Full::new(body).boxed()))
}

fn serve_http(stream: Stream) -> Task {
    Box::pin(async move {
        let _ = http1::Builder::new().half_close(true).serve_connection(stream, service_fn(echo)).await;
    })
}

/// The bodies of `count` answers with a length, and the status codes.
fn answers(mut bytes: &[u8], count: usize) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    while all.len() < count {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
        let head = std::str::from_utf8(&bytes[..end]).unwrap().to_ascii_lowercase();
        let status = head[9..12].parse().unwrap();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |l| l.parse().unwrap());
        all.push((status, bytes[end..end + length].to_vec()));
        bytes = &bytes[end + length..];
    }
    assert!(bytes.is_empty(), "bytes after the last answer");
    all
}

fn http(net: &mut Net, port: u16, text: &[u8], half_close: bool) -> Vec<u8> {
    let job = net.connect(port, text.to_vec(), None);
    net.jobs[job].half_close = half_close;
    net.run(secs(20), |net| net.jobs[job].finished);
    net.jobs[job].received.clone()
}

fn post(body: &[u8]) -> Vec<u8> {
    [format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

#[test]
fn an_http_server_runs_on_streams() {
    for mtu in [1500, 9000] {
        let mut net = Net::new(Config { mtu, ..config() }, serve_http);
        let bodies = [pattern(0, 1), pattern(1, 1), pattern(700_000, 1), pattern(4096, 1)];
        let text: Vec<u8> = bodies.iter().flat_map(|body| post(body)).collect();
        // The guest closes its half with the last request: every answer still comes.
        let received = http(&mut net, 1000, &text, true);
        let expected: Vec<_> = bodies.iter().map(|body| (200, body.clone())).collect();
        assert!(answers(&received, 4) == expected);
        let received = http(&mut net, 1001, b"GET /big HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", false);
        assert!(answers(&received, 1) == [(200, pattern(3_000_000, 9))]);
        net.run(secs(1), |_| false);
        assert_eq!((net.endpoint.stats().live, net.executor.len()), (0, 0));
    }
}

#[test]
fn case_07_requests_a_byte_at_a_time_and_two_in_a_segment() {
    let mut net = Net::new(config(), serve_http);
    let first = post(b"one");
    let two = [post(b"two"), post(b"three")].concat();
    let job = net.connect(1000, Vec::new(), None);
    net.run(secs(1), |net| net.jobs[job].established);
    let before = net.now;
    for piece in first.chunks(1).chain([&two[..]]) {
        net.jobs[job].send.extend(piece);
        net.run(ms(1), |_| false);
    }
    net.run(ms(20), |net| net.jobs[job].received.ends_with(b"three"));
    let bodies: Vec<Vec<u8>> = answers(&net.jobs[job].received, 3).into_iter().map(|(_, body)| body).collect();
    assert_eq!(bodies, [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
    // Only the pauses that the guest made itself: a byte a millisecond.
    assert!(net.now - before <= ms(first.len() as u64 + 30));
}

#[test]
fn a_refused_upload_gets_its_answer_and_then_the_rest_is_swallowed() {
    let mut net = Net::new(config(), serve_http);
    let head = b"PUT /refuse HTTP/1.1\r\nhost: x\r\ncontent-length: 700000\r\n\r\n";
    let received = http(&mut net, 1000, &[&head[..], &pattern(700_000, 1)].concat(), false);
    assert_eq!(answers(&received, 1), [(403, b"no".to_vec())]);
    assert!(!net.jobs[0].was_reset);
    // With 100-continue, the body need never be sent.
    let head = b"PUT /refuse HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 700000\r\n\r\n";
    let received = http(&mut net, 1001, head, false);
    assert_eq!(answers(&received, 1), [(403, b"no".to_vec())]);
    let head = b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\nhello";
    let received = http(&mut net, 1002, head, true);
    assert_eq!(answers(&received, 2), [(100, Vec::new()), (200, b"hello".to_vec())]);
}

#[test]
fn requests_that_never_end_and_nonsense_do_not_hold_places() {
    let mut net = Net::new(config(), serve_http);
    let received = http(&mut net, 1000, b"\x16\x03\x01 nonsense\r\n\r\n", false);
    assert_eq!(answers(&received, 1)[0].0, 400);
    // A head that stops in the middle; a body that does; a connection that says nothing.
    for (n, text) in
        [&b"GET / HT"[..], b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc", b""].iter().enumerate()
    {
        net.connect(2000 + n as u16, text.to_vec(), None);
    }
    net.run(secs(65), |_| false);
    assert_eq!((net.endpoint.stats().live, net.executor.len()), (0, 0));
    assert_eq!(net.endpoint.stats().idle_closed, 3);
}

// Whatever the wire does

const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/loopback.txt");

proptest! {
    #![proptest_config(cases(REGRESSIONS))]

    #[test]
    fn streams_deliver_exactly_whatever_the_wire_does(
        seed in any::<u64>(),
        drop in prop_oneof![Just(0u64), 0u64..80],
        repeat in 0u64..100,
        delay in 0u64..100,
        split in 0u64..300,
        room in prop_oneof![Just(1usize), 2usize..8, Just(1_000usize)],
        mtu in prop_oneof![Just(1500usize), Just(9000usize), 576usize..2000],
        sizes in prop::collection::vec((0usize..20_000, 0usize..20_000), 1..4),
    ) {
        // A wire this bad makes any connection look stalled: what is done about those is tested elsewhere.
        let long = Duration::from_secs(100_000);
        let timeouts = Timeouts { idle: long, handshake: long, linger: long, quiet: long, stalled: long, peer: long, ..Timeouts::default() };
        let config = Config { mtu, seed, max_connections: 2, buffer: 16 << 10, timeouts, ..config() };
        let mut net = Net::new(config, serve_transfers);
        net.room = room;
        net.to_server = Faults { drop, repeat, delay, split, ..Faults::new(seed) };
        net.to_client = Faults { drop, repeat, delay, ..Faults::new(!seed) };
        for (n, &(up, down)) in sizes.iter().enumerate() {
            start(&mut net, 1000 + n as u16, up, down);
        }
        net.finish(Duration::from_secs(20_000));
        for (n, &(up, down)) in sizes.iter().enumerate() {
            prop_assert!(net.jobs[n].received == answer(up, down), "job {n}");
        }
    }
}
