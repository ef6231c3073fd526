//! The body path without a network: requests through [`S3Service::serve`] over a pipe in memory.
//!
//! `cargo bench -p s3-proto`. One operation is a whole exchange on a kept connection: the request's bytes are handed to the
//! server, and it is polled until the answer is complete. Answers are counted, not copied.

use std::{
    cell::RefCell,
    future::Future,
    hint::black_box,
    io,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ernic_store::{MemoryConfig, MemoryStore};
use hyper::rt::{Read, ReadBufCursor, Write};
use s3_proto::{S3Config, S3Service};

#[derive(Default)]
struct Pipe {
    input: Rc<[u8]>,
    at: usize,
    written: usize,
    first: [u8; 16],
    waker: Option<Waker>,
}

struct End(Rc<RefCell<Pipe>>);

/// What one read gives: a TCP receive buffer.
const READ: usize = 64 * 1024;

impl Read for End {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.0.borrow_mut();
        let n = (pipe.input.len() - pipe.at).min(buf.remaining()).min(READ);
        if n == 0 {
            pipe.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        buf.put_slice(&pipe.input[pipe.at..pipe.at + n]);
        pipe.at += n;
        Poll::Ready(Ok(()))
    }
}

impl Write for End {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.borrow_mut();
        if pipe.written == 0
            && let Some(first) = bufs.first()
        {
            let n = first.len().min(16);
            pipe.first[..n].copy_from_slice(&first[..n]);
        }
        let n = bufs.iter().map(|buf| black_box(buf).len()).sum();
        pipe.written += n;
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Connection {
    pipe: Rc<RefCell<Pipe>>,
    server: Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>,
    flag: Arc<Flag>,
}

impl Connection {
    fn new(service: &S3Service) -> Self {
        let pipe = Rc::new(RefCell::new(Pipe::default()));
        let server = Box::pin(service.serve(End(Rc::clone(&pipe))));
        Self { pipe, server, flag: Arc::new(Flag(AtomicBool::new(true))) }
    }

    /// One exchange; gives the bytes of the answer.
    fn exchange(&mut self, request: &Rc<[u8]>) -> usize {
        let waker = {
            let mut pipe = self.pipe.borrow_mut();
            pipe.input = Rc::clone(request);
            pipe.at = 0;
            pipe.written = 0;
            pipe.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        let waker = Waker::from(Arc::clone(&self.flag));
        while self.flag.0.swap(false, Ordering::Relaxed) {
            assert!(self.server.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let pipe = self.pipe.borrow();
        assert!(pipe.first.starts_with(b"HTTP/1.1 200 OK"));
        pipe.written
    }
}

fn request(method: &str, target: &str, body: usize) -> Rc<[u8]> {
    let mut bytes =
        format!("{method} {target} HTTP/1.1\r\nhost: 192.168.200.1:9000\r\nuser-agent: bench\r\naccept: */*\r\n")
            .into_bytes();
    if body > 0 {
        bytes.extend_from_slice(format!("content-length: {body}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.resize(bytes.len() + body, b'x');
    bytes.into()
}

fn body_path(c: &mut Criterion) {
    const SMALL: usize = 4096;
    const LARGE: usize = 64 << 20;
    let store = Arc::new(MemoryStore::new(MemoryConfig { capacity: 1 << 30, objects: 1000 }));
    store.create_bucket("ernic");
    let service = S3Service::new(store, S3Config::default());
    let mut connection = Connection::new(&service);
    connection.exchange(&request("PUT", "/ernic/small", SMALL));
    connection.exchange(&request("PUT", "/ernic/large", LARGE));

    let mut group = c.benchmark_group("s3_body_path");
    for (name, target, size) in [("get_4k", "/ernic/small", SMALL), ("get_64m", "/ernic/large", LARGE)] {
        let get = request("GET", target, 0);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(name, |b| b.iter(|| assert!(connection.exchange(&get) > size)));
    }
    for (name, target, size) in [("put_4k", "/ernic/small", SMALL), ("put_64m", "/ernic/large", LARGE)] {
        let put = request("PUT", target, size);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(name, |b| b.iter(|| connection.exchange(&put)));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(4));
    targets = body_path
}
criterion_main!(benches);
