//! Load on an HTTP server over TCP: requests made beforehand, on kept connections, from one thread that never waits for any
//! single connection. It is the same for every server that is measured.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fd::OwnedFd,
};

use crate::stats::Samples;

/// Bytes that are read at once: what holds all that the kernel keeps for a connection of the loopback device by default
/// (`tcp_rmem`) is no faster.
const READ: usize = 256 << 10;
/// Longest head of an answer.
const HEAD: usize = 16 << 10;
/// No answer takes this long unless something hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// One request, and what is to come back.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Request line and fields.
    pub head: &'a [u8],
    /// Body.
    pub body: &'a [u8],
    /// Bytes of the answer's body; `None` if any number will do.
    pub answer: Option<usize>,
}

/// What a load did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// From the first request to the last byte of the last answer.
    pub time: Duration,
    /// From a request's first byte to the last one of its answer.
    pub latencies: Samples,
}

/// The head of a request on a kept connection.
pub fn head(method: &str, path: &str, length: Option<usize>) -> Vec<u8> {
    let length = length.map_or_else(String::new, |n| format!("Content-Length: {n}\r\n"));
    // Some servers look buckets up by host name.
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n{length}\r\n")
        .into()
}

/// Runs `jobs` on `connections` connections; each connection starts its next request once it has the answer to the last.
/// `see` gets the pieces of the answers' bodies, with the number of the request.
pub fn run<'a>(
    address: SocketAddr,
    connections: usize,
    jobs: impl IntoIterator<Item = Job<'a>>,
    see: &mut dyn FnMut(usize, &[u8]),
) -> anyhow::Result<Outcome> {
    let mut jobs = jobs.into_iter().enumerate();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
    let mut lines = Vec::new();
    for number in 0..connections {
        lines.push(Line::connect(address, &poll, number)?);
    }
    let mut outcome = Outcome::default();
    let mut scratch = vec![0; READ];
    let start = Instant::now();
    let mut busy = 0;
    for line in &mut lines {
        if let Some((number, job)) = jobs.next() {
            line.begin(number, job, &poll)?;
            busy += 1;
        }
    }
    let mut events = Vec::with_capacity(connections.max(1));
    let patience = Timespec::try_from(PATIENCE).context("a time limit")?;
    while busy > 0 {
        events.clear();
        match epoll::wait(&poll, spare_capacity(&mut events), Some(&patience)) {
            Ok(0) => bail!("no answer for {} s", PATIENCE.as_secs()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("epoll"),
        }
        for event in &events {
            let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            let line = lines.get_mut(number).context("an event of no connection")?;
            if line.step(&mut scratch, &poll, see)? {
                outcome.latencies.push(line.since.elapsed());
                match jobs.next() {
                    Some((number, job)) => line.begin(number, job, &poll)?,
                    None => busy -= 1,
                }
            }
        }
    }
    outcome.time = start.elapsed();
    Ok(outcome)
}

/// A connection and the request that is on it.
struct Line<'a> {
    stream: TcpStream,
    number: usize,
    job: Option<Job<'a>>,
    request: usize,
    since: Instant,
    /// Bytes of the request that are sent.
    sent: usize,
    /// Whether it is told when there is room to send.
    waits_for_room: bool,
    /// The head of the answer, as far as it has come.
    head: Vec<u8>,
    /// What is left of the answer's body, once its head is there.
    body: Option<Body>,
    /// Bytes of the body that came.
    came: usize,
}

#[derive(Debug, Clone, Copy)]
enum Body {
    Left(usize),
    /// Ends with the last chunk; these are the last bytes so far.
    Chunked([u8; 5]),
}

impl<'a> Line<'a> {
    fn connect(address: SocketAddr, poll: &OwnedFd, number: usize) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(u64::try_from(number)?);
        epoll::add(poll, &stream, data, epoll::EventFlags::IN).context("epoll")?;
        Ok(Self {
            stream,
            number,
            job: None,
            request: 0,
            since: Instant::now(),
            sent: 0,
            waits_for_room: false,
            head: Vec::with_capacity(HEAD),
            body: None,
            came: 0,
        })
    }

    fn begin(&mut self, request: usize, job: Job<'a>, poll: &OwnedFd) -> anyhow::Result<()> {
        self.job = Some(job);
        self.request = request;
        self.sent = 0;
        self.came = 0;
        self.head.clear();
        self.body = None;
        self.since = Instant::now();
        self.send(poll)
    }

    /// Sends what there is room for.
    fn send(&mut self, poll: &OwnedFd) -> anyhow::Result<()> {
        let Some(Job { head, body, .. }) = self.job else {
            return Ok(());
        };
        let all = head.len() + body.len();
        while self.sent < all {
            let head = head.get(self.sent..).unwrap_or_default();
            let body = body.get(self.sent.saturating_sub(all - body.len())..).unwrap_or_default();
            match self.stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("sending a request"),
            }
        }
        let waits = self.sent < all;
        if waits != self.waits_for_room {
            self.waits_for_room = waits;
            let flags = if waits { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            let data = epoll::EventData::new_u64(u64::try_from(self.number)?);
            epoll::modify(poll, &self.stream, data, flags).context("epoll")?;
        }
        Ok(())
    }

    /// Goes on after an event. Returns whether the answer is complete.
    fn step(&mut self, scratch: &mut [u8], poll: &OwnedFd, see: &mut dyn FnMut(usize, &[u8])) -> anyhow::Result<bool> {
        if self.waits_for_room {
            self.send(poll)?;
        }
        loop {
            let came = match self.stream.read(scratch) {
                Ok(0) => bail!("the server closed a connection: {}", String::from_utf8_lossy(&self.head)),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).context("receiving an answer"),
            };
            let mut piece = scratch.get(..came).unwrap_or_default();
            if self.body.is_none() {
                piece = self.take_head(piece)?;
            }
            let complete = self.take_body(piece, see)?;
            if complete || came < scratch.len() {
                return Ok(complete);
            }
        }
    }

    /// Takes the head of an answer, and returns what is behind it.
    fn take_head<'p>(&mut self, piece: &'p [u8]) -> anyhow::Result<&'p [u8]> {
        let before = self.head.len();
        self.head.extend_from_slice(piece.get(..piece.len().min(HEAD - before)).unwrap_or_default());
        let from = before.saturating_sub(3);
        let end = self.head.get(from..).unwrap_or_default().windows(4).position(|w| w == b"\r\n\r\n");
        let Some(end) = end.map(|at| from + at + 4) else {
            ensure!(self.head.len() < HEAD, "a head of {HEAD} bytes and more");
            return Ok(&[]);
        };
        self.head.truncate(end);
        let text = str::from_utf8(&self.head).context("a head that is not text")?;
        ensure!(text.get(8..10) == Some(" 2"), "the server answers {text}");
        let field = |name: &str| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim())
            })
        };
        self.body = Some(match field("content-length") {
            Some(length) => Body::Left(length.parse().context("content-length")?),
            None if field("transfer-encoding") == Some("chunked") => Body::Chunked([0; 5]),
            None => bail!("an answer without a length: {text}"),
        });
        Ok(piece.get(end - before..).unwrap_or_default())
    }

    /// Takes some of the body of an answer. Returns whether it is complete.
    fn take_body(&mut self, piece: &[u8], see: &mut dyn FnMut(usize, &[u8])) -> anyhow::Result<bool> {
        let complete = match &mut self.body {
            None => return Ok(false),
            Some(Body::Left(left)) => {
                *left = left.checked_sub(piece.len()).context("more than the answer's length")?;
                *left == 0
            }
            Some(Body::Chunked(last)) => {
                for byte in piece {
                    last.rotate_left(1);
                    last[4] = *byte;
                }
                last == b"0\r\n\r\n"
            }
        };
        if !piece.is_empty() {
            self.came += piece.len();
            see(self.request, piece);
        }
        if complete {
            let wanted = self.job.and_then(|job| job.answer);
            ensure!(wanted.is_none_or(|n| n == self.came), "{} bytes instead of {wanted:?}", self.came);
            let all = self.job.map_or(0, |job| job.head.len() + job.body.len());
            ensure!(self.sent == all, "the answer came before the request was sent");
        }
        Ok(complete)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// Serves each connection a whole answer for each request of `length` bytes, in small pieces.
    fn server(length: usize, answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut request = vec![0; length];
                    while stream.read_exact(&mut request).is_ok() {
                        for piece in answer.chunks(7) {
                            stream.write_all(piece).unwrap();
                        }
                    }
                });
            }
        });
        address
    }

    #[test]
    fn all_requests_are_answered_on_all_connections() {
        let body = vec![7; 3 << 20];
        let head = head("PUT", "/b/k", Some(body.len()));
        let job = Job { head: &head, body: &body, answer: Some(5) };
        for answer in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: x\r\n\r\nhello"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            let address = server(head.len() + body.len(), answer);
            for connections in [1, 3] {
                let mut seen = Vec::new();
                let outcome = run(address, connections, [job; 10], &mut |n, piece| {
                    seen.resize(seen.len().max(n + 1), 0);
                    seen[n] += piece.len();
                });
                assert_eq!(outcome.unwrap().latencies.len(), 10);
                assert_eq!(seen, [5; 10]);
            }
        }
    }

    #[test]
    fn what_is_not_the_right_answer_is_an_error() {
        let head = head("GET", "/b/k", None);
        let text = str::from_utf8(&head).unwrap();
        assert_eq!(text, "GET /b/k HTTP/1.1\r\nHost: localhost\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n\r\n");
        for (answer, expected) in [
            (&b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"[..], "the server answers HTTP/1.1 503"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd", "4 bytes instead of Some(5)"),
            (b"HTTP/1.1 200 OK\r\n\r\n", "an answer without a length"),
        ] {
            let address = server(head.len(), answer);
            let job = Job { head: &head, body: &[], answer: Some(5) };
            let error = run(address, 1, [job], &mut |_, _| ()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
