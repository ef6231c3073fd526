//! A connection without a network: a pipe in memory, and an executor that polls one future.
#![allow(missing_debug_implementations)]

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
};

use hyper::rt::{Read, ReadBufCursor, Write};
use s3_proto::S3Service;

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

/// A kept connection to a service.
pub struct Connection {
    pipe: Rc<RefCell<Pipe>>,
    server: Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>,
    flag: Arc<Flag>,
}

impl Connection {
    pub fn new(service: &S3Service) -> Self {
        let pipe = Rc::new(RefCell::new(Pipe::default()));
        let server = Box::pin(service.serve(End(Rc::clone(&pipe))));
        Self { pipe, server, flag: Arc::new(Flag(AtomicBool::new(true))) }
    }

    /// One exchange; gives the bytes of the answer.
    pub fn exchange(&mut self, request: &Rc<[u8]>) -> usize {
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

/// A request with a body of `body` bytes. `headers` are whole lines.
pub fn request(method: &str, target: &str, headers: &str, body: usize) -> Rc<[u8]> {
    let mut bytes = format!(
        "{method} {target} HTTP/1.1\r\nhost: 192.168.200.1:9000\r\nuser-agent: bench\r\naccept: */*\r\n{headers}"
    )
    .into_bytes();
    if method == "PUT" {
        bytes.extend_from_slice(format!("content-length: {body}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.resize(bytes.len() + body, b'x');
    bytes.into()
}
