//! A connection to the service without any runtime: an in-memory pipe that hands the server exactly the pieces the test
//! wants, an executor that polls one future, a reader of HTTP answers and one of XML, all independent of the code under test.
#![allow(dead_code, clippy::cast_possible_truncation, missing_debug_implementations)]

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use ernic_store::{MemoryConfig, MemoryStore};
use hyper::rt::{Read, ReadBufCursor, Write};
use s3_proto::{Phase, S3Config, S3Service};

pub const MIB: usize = 1024 * 1024;

// ---------------------------------------------------------------- the wire

#[derive(Default)]
struct Wire {
    /// What the server will read, piece by piece: one read never crosses into the next piece.
    input: VecDeque<Vec<u8>>,
    eof: bool,
    output: Vec<u8>,
    /// Bytes that the server may still write.
    room: usize,
    /// The server has closed its side.
    shutdown: bool,
    vectored_writes: u64,
    read_waker: Option<Waker>,
    write_waker: Option<Waker>,
}

struct ServerEnd(Rc<RefCell<Wire>>);

impl Read for ServerEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.0.borrow_mut();
        let Some(mut piece) = wire.input.pop_front() else {
            if !wire.eof {
                wire.read_waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            return Poll::Ready(Ok(()));
        };
        let n = piece.len().min(buf.remaining());
        let rest = piece.split_off(n);
        buf.put_slice(&piece);
        if !rest.is_empty() {
            wire.input.push_front(rest);
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for ServerEnd {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut wire = self.0.borrow_mut();
        assert!(!wire.shutdown, "the server writes after it has closed");
        if wire.room == 0 {
            wire.write_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        wire.vectored_writes += u64::from(bufs.len() > 1);
        let mut written = 0;
        for buf in bufs {
            let n = buf.len().min(wire.room);
            wire.output.extend_from_slice(&buf[..n]);
            wire.room -= n;
            written += n;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().shutdown = true;
        Poll::Ready(Ok(()))
    }
}

// ---------------------------------------------------------------- the executor

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A connection to a service, polled by hand.
pub struct Client {
    wire: Rc<RefCell<Wire>>,
    server: Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>,
    woken: Arc<Flag>,
    /// How the connection ended.
    pub ended: Option<Result<(), hyper::Error>>,
    /// How often the server has been polled.
    pub turns: u64,
}

impl Client {
    pub fn new(service: &S3Service) -> Self {
        Self::watched(service, |_| {})
    }

    /// A connection whose phases `on` hears.
    pub fn watched(service: &S3Service, on: impl Fn(Phase) + 'static) -> Self {
        let wire = Rc::new(RefCell::new(Wire { room: usize::MAX, ..Wire::default() }));
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        let server = Box::pin(service.serve_with(ServerEnd(Rc::clone(&wire)), on));
        Self { server, wire, woken, ended: None, turns: 0 }
    }

    /// Polls the server once, if it has been woken. Returns whether it was.
    pub fn turn(&mut self) -> bool {
        if self.ended.is_some() || !self.woken.0.swap(false, Ordering::SeqCst) {
            return false;
        }
        self.turns += 1;
        let waker = Waker::from(Arc::clone(&self.woken));
        if let Poll::Ready(end) = self.server.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.ended = Some(end);
        }
        true
    }

    /// Polls the server until it waits for the client.
    pub fn run(&mut self) {
        let mut turns = 0;
        while self.turn() {
            turns += 1;
            assert!(turns < 1_000_000, "the server does not come to rest");
        }
    }

    /// Queues a piece of input without running the server.
    pub fn push(&mut self, piece: &[u8]) {
        let mut wire = self.wire.borrow_mut();
        if !piece.is_empty() {
            wire.input.push_back(piece.to_vec());
        }
        if let Some(waker) = wire.read_waker.take() {
            waker.wake();
        }
    }

    /// Sends a piece and lets the server work on it.
    pub fn send(&mut self, piece: &[u8]) {
        self.push(piece);
        self.run();
    }

    /// The client closes its side.
    pub fn finish(&mut self) {
        self.wire.borrow_mut().eof = true;
        self.push(b"");
        self.run();
    }

    /// Lets the server write `bytes` more, and then stalls it.
    pub fn set_room(&mut self, bytes: usize) {
        let mut wire = self.wire.borrow_mut();
        wire.room = bytes;
        if let Some(waker) = wire.write_waker.take() {
            waker.wake();
        }
    }

    /// Whether the server has closed its side.
    pub fn closed(&self) -> bool {
        self.wire.borrow().shutdown
    }

    pub fn vectored_writes(&self) -> u64 {
        self.wire.borrow().vectored_writes
    }

    /// What the server has sent and the test has not taken.
    pub fn output(&self) -> Vec<u8> {
        self.wire.borrow().output.clone()
    }

    pub fn output_len(&self) -> usize {
        self.wire.borrow().output.len()
    }

    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.wire.borrow_mut().output)
    }

    /// Takes the next answer, which must be complete.
    pub fn answer(&mut self, method: &str) -> Answer {
        let mut wire = self.wire.borrow_mut();
        let (answer, used) = Answer::parse(&wire.output, method)
            .unwrap_or_else(|| panic!("no whole answer in {:?}", String::from_utf8_lossy(&wire.output)));
        wire.output.drain(..used);
        answer
    }

    /// One request and its answer; nothing else may come.
    pub fn call(&mut self, request: &Request) -> Answer {
        self.send(&request.bytes());
        let answer = self.answer(&request.method);
        assert_eq!(self.output(), b"", "more than one answer");
        answer
    }
}

// ---------------------------------------------------------------- requests

#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    /// Written as `content-length`, unless there is a `transfer-encoding`.
    pub length: Option<usize>,
}

pub fn request(method: &str, target: &str) -> Request {
    Request { method: method.into(), target: target.into(), headers: Vec::new(), body: Vec::new(), length: None }
}

pub fn get(target: &str) -> Request {
    request("GET", target)
}

pub fn put(target: &str, body: impl Into<Vec<u8>>) -> Request {
    request("PUT", target).body(body)
}

impl Request {
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.into(), value.as_ref().to_vec()));
        self
    }

    /// A body with `content-length`.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.length = Some(self.body.len());
        self
    }

    /// A body with `transfer-encoding: chunked`, in chunks of `size` bytes.
    pub fn chunked(mut self, body: &[u8], size: usize) -> Self {
        self.body = Vec::new();
        for chunk in body.chunks(size) {
            self.body.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
            self.body.extend_from_slice(chunk);
            self.body.extend_from_slice(b"\r\n");
        }
        self.body.extend_from_slice(b"0\r\n\r\n");
        self.length = None;
        self.header("transfer-encoding", "chunked")
    }

    /// A body of `aws-chunked`, as SDKs send it.
    pub fn aws_chunked(mut self, body: &[u8], size: usize, sha256: &str, trailers: &[(&str, &str)]) -> Self {
        let signed = sha256.contains("HMAC");
        let signature = if signed { format!(";chunk-signature={}", "0f".repeat(32)) } else { String::new() };
        let mut coded = Vec::new();
        for chunk in body.chunks(size) {
            coded.extend_from_slice(format!("{:x}{signature}\r\n", chunk.len()).as_bytes());
            coded.extend_from_slice(chunk);
            coded.extend_from_slice(b"\r\n");
        }
        coded.extend_from_slice(format!("0{signature}\r\n").as_bytes());
        for (name, value) in trailers {
            coded.extend_from_slice(format!("{name}:{value}\r\n").as_bytes());
            self = self.header("x-amz-trailer", name);
        }
        coded.extend_from_slice(b"\r\n");
        self.body(coded)
            .header("content-encoding", "aws-chunked")
            .header("x-amz-content-sha256", sha256)
            .header("x-amz-decoded-content-length", body.len().to_string())
    }

    pub fn head(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            out.extend_from_slice(b"host: s3.test\r\n");
        }
        if let Some(length) = self.length {
            out.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
        }
        for (name, value) in &self.headers {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        [self.head(), self.body.clone()].concat()
    }
}

// ---------------------------------------------------------------- answers

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// Reads an answer to a `method` request from the front of `bytes`; gives it and its length.
    pub fn parse(bytes: &[u8], method: &str) -> Option<(Self, usize)> {
        let head_len = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head: String = bytes[..head_len - 4].iter().map(|&b| char::from(b)).collect();
        let mut lines = head.split("\r\n");
        let status_line = lines.next()?;
        let status: u16 = status_line.strip_prefix("HTTP/1.1 ").expect("status line").get(..3)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").expect("header line"))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let value = |name: &str| headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone());
        let rest = &bytes[head_len..];
        let (body, body_len) = if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            (Vec::new(), 0)
        } else if value("transfer-encoding").as_deref() == Some("chunked") {
            unchunk(rest)?
        } else {
            let length: usize = value("content-length").expect("an answer with a length").parse().unwrap();
            (rest.get(..length)?.to_vec(), length)
        };
        Some((Self { status, headers, body }, head_len + body_len))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(have, _)| have == name);
        let first = values.next();
        assert!(values.next().is_none(), "{name} twice in {:?}", self.headers);
        first.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub fn xml(&self) -> Node {
        assert_eq!(self.header("content-type"), Some("application/xml"), "{self:?}");
        Node::parse(&self.text())
    }

    /// Checks that this is the error document `code` about `resource` with the status.
    #[track_caller]
    pub fn expect_error(&self, status: u16, code: &str, resource: &str) -> Node {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.xml();
        assert_eq!(error.name, "Error");
        assert_eq!(error.text_of("Code"), code, "{}", self.text());
        assert_eq!(error.text_of("Resource"), resource);
        assert_eq!(Some(error.text_of("RequestId").as_str()), self.header("x-amz-request-id"));
        assert!(!error.text_of("Message").is_empty());
        error
    }

    #[track_caller]
    pub fn expect(&self, status: u16) -> &Self {
        assert_eq!(self.status, status, "{self:?} {}", String::from_utf8_lossy(&self.body));
        self
    }
}

fn unchunk(mut rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let whole = rest.len();
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).expect("chunk size");
        rest = &rest[end + 2..];
        body.extend_from_slice(rest.get(..size)?);
        assert_eq!(rest.get(size..size + 2)?, b"\r\n");
        rest = &rest[size + 2..];
        if size == 0 {
            return Some((body, whole - rest.len()));
        }
    }
}

/// An XML element, read with quick-xml.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub name: String,
    pub text: String,
    pub children: Vec<Node>,
}

impl Node {
    pub fn parse(document: &str) -> Self {
        use quick_xml::events::Event;
        let mut reader = quick_xml::Reader::from_str(document);
        let mut open = vec![Node::default()];
        loop {
            match reader.read_event().expect("well-formed XML") {
                Event::Start(start) => {
                    let name = start.name().as_ref().to_owned();
                    open.push(Node { name: to_string(name), ..Node::default() });
                }
                Event::Empty(start) => {
                    let name = start.name().as_ref().to_owned();
                    open.last_mut().unwrap().children.push(Node { name: to_string(name), ..Node::default() });
                }
                Event::End(_) => {
                    let node = open.pop().unwrap();
                    open.last_mut().unwrap().children.push(node);
                }
                Event::Text(text) => open.last_mut().unwrap().text.push_str(&text.xml10_content()),
                Event::GeneralRef(reference) => {
                    let name = to_string(reference.into_inner().into_owned());
                    let c = match name.as_str() {
                        "amp" => '&',
                        "lt" => '<',
                        "gt" => '>',
                        "quot" => '"',
                        "apos" => '\'',
                        hex if hex.starts_with("#x") => {
                            char::from_u32(u32::from_str_radix(&hex[2..], 16).unwrap()).unwrap()
                        }
                        decimal => char::from_u32(decimal[1..].parse().unwrap()).unwrap(),
                    };
                    open.last_mut().unwrap().text.push(c);
                }
                Event::Eof => break,
                _ => {}
            }
        }
        assert_eq!(open.len(), 1);
        let mut root = open.pop().unwrap();
        assert_eq!(root.children.len(), 1, "one root element");
        root.children.pop().unwrap()
    }

    pub fn all(&self, name: &str) -> Vec<&Node> {
        self.children.iter().filter(|child| child.name == name).collect()
    }

    #[track_caller]
    pub fn child(&self, name: &str) -> &Node {
        let all = self.all(name);
        assert_eq!(all.len(), 1, "{name} in {self:?}");
        all[0]
    }

    #[track_caller]
    pub fn text_of(&self, name: &str) -> String {
        self.child(name).text.clone()
    }

    /// The text of `inner` in each `outer`.
    pub fn texts(&self, outer: &str, inner: &str) -> Vec<String> {
        self.all(outer).iter().map(|node| node.text_of(inner)).collect()
    }
}

fn to_string(name: impl Into<String>) -> String {
    name.into()
}

// ---------------------------------------------------------------- the service

pub struct Bench {
    pub service: S3Service,
    pub store: Arc<MemoryStore>,
}

pub const BUCKET: &str = "ernic";

/// A service over an empty memory store with the bucket [`BUCKET`].
pub fn bench_of(capacity: u64, objects: u64, config: S3Config) -> Bench {
    let store = Arc::new(MemoryStore::new(MemoryConfig { capacity, objects }));
    assert!(store.create_bucket(BUCKET));
    Bench { service: S3Service::new(Arc::clone(&store) as _, config), store }
}

/// One whose multipart uploads may have small parts.
pub fn plain() -> Bench {
    bench_of(256 * MIB as u64, 10_000, S3Config { min_part: 0, ..S3Config::default() })
}

impl Bench {
    pub fn client(&self) -> Client {
        Client::new(&self.service)
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn call(&self, request: &Request) -> Answer {
        self.client().call(request)
    }
}

/// Bytes that do not repeat early.
pub fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
